/* SPDX-License-Identifier: Apache-2.0 */
/* A value in the form in which a reader wants it: whole, spread, its own, or cut. */
#include <string.h>

#include "loader/shard/writer.h"

static const opi_value *value_of(const opi_writer *w, uint32_t v) {
  return &w->s->g->values[v];
}

static opipe_status no_memory(opi_writer *w) {
  return opi_fail_nomem(w->err, sizeof(opi_value), "a member's graph");
}

opipe_status opi_w_runs(opi_writer *w, const opi_labels *l, opi_shard_run **out_runs,
                        uint32_t *out_n, int64_t *out_sum, bool *out_shared) {
  *out_runs = opi_sh_runs(w->s, l, w->r, &w->scratch, out_n, out_sum, out_shared);
  return *out_runs == NULL ? no_memory(w) : OPIPE_OK;
}

opipe_status opi_w_shape(opi_writer *w, uint32_t v, const opi_labels *l, int64_t *shape) {
  const opi_value *x = value_of(w, v);
  opi_shard_run *runs;
  uint32_t n = 0;
  bool shared = false;
  if (x->rank > 0)
    memcpy(shape, x->shape, (size_t)x->rank * sizeof(*shape));
  return l == NULL ? OPIPE_OK : opi_w_runs(w, l, &runs, &n, &shape[l->dims[0]], &shared);
}

opipe_status opi_w_origin(opi_writer *w, const opi_node *node) {
  opi_node *origin = OPI_ARENA_NEW(&w->scratch, opi_node);
  if (origin == NULL)
    return no_memory(w);
  *origin = *node;
  origin->name = opi_arena_printf(&w->scratch, "%s/part", node->name);
  w->b.origin = origin;
  return origin->name == NULL ? no_memory(w) : OPIPE_OK;
}

/* ---- forms ---- */

opipe_status opi_w_sum(opi_writer *w, uint32_t v, uint32_t *out) {
  const opi_aside *aside = &w->aside[v];
  const uint32_t p = value_of(w, v)->producer;
  OPI_TRY(opi_w_origin(w, &w->s->g->nodes[p]));
  if (w->s->rows.dims[v] != 0)
    OPI_TRY(opi_w_scatter(w, v, out));
  else
    OPI_TRY(opi_group_sum(&w->b, w->own[v], out, w->err));
  for (uint32_t i = 0; i < aside->n; ++i)
    OPI_TRY(opi_b_op2(&w->b, "Add", *out, aside->list[i], out, w->err));
  return OPIPE_OK;
}

/* v whole, in the stage that makes it. */
static opipe_status whole_at_home(opi_writer *w, uint32_t v, uint32_t *out) {
  *out = w->whole[v];
  if (*out != OPIPE_NONE)
    return OPIPE_OK;
  if (value_of(w, v)->producer == OPIPE_NONE)
    return opi_w_leaf(w, v, out);
  if (w->s->rows.dims[v] != 0) {
    OPI_TRY(opi_w_gather(w, v, false, out));
    w->whole[v] = *out;
    return OPIPE_OK;
  }
  if (w->own[v] == OPIPE_NONE || w->s->labels[v] != NULL) {
    return opi_fail(w->err, OPIPE_E_INTERNAL, "'%s' is divided and was wanted whole",
                    value_of(w, v)->name);
  }
  *out = w->own[v];
  if (w->s->partial[v])
    OPI_TRY(opi_w_sum(w, v, out));
  if (w->s->partial[v])
    w->whole[v] = *out;
  return OPIPE_OK;
}

opipe_status opi_w_whole(opi_writer *w, uint32_t v, uint32_t *out) {
  OPI_TRY(whole_at_home(w, v, out));
  return opi_w_arrive(w, v, out);
}

opipe_status opi_w_spread_node(opi_writer *w, uint32_t x, uint32_t *out) {
  *out = x;
  return (w->s->wish->flags & OPI_SHARD_TRAIN) == 0 ? OPIPE_OK
                                                    : opi_group_spread(&w->b, x, out, w->err);
}

static opipe_status note_sum(opi_writer *w, uint32_t v) {
  for (uint32_t i = 0; i < w->n_sums; ++i) {
    if (w->sums[i] == v)
      return OPIPE_OK;
  }
  if (!opi_arena_grow(&w->scratch, (void **)&w->sums, &w->room_sums, w->n_sums + 1,
                      sizeof(*w->sums)))
    return no_memory(w);
  w->sums[w->n_sums++] = v;
  return OPIPE_OK;
}

opipe_status opi_w_spread(opi_writer *w, uint32_t v, uint32_t *out) {
  const bool trains = w->s->trains[v] && (w->s->wish->flags & OPI_SHARD_TRAIN) != 0 &&
                      opi_dtype_is_float(value_of(w, v)->dtype);
  if (trains && w->s->rows.dims[v] != 0 && !w->s->rows.gathered[v]) {
    if (w->spread[v] == OPIPE_NONE)
      OPI_TRY(opi_w_gather(w, v, true, &w->spread[v]));
    *out = w->spread[v];
    return OPIPE_OK;
  }
  OPI_TRY(opi_w_whole(w, v, out));
  if (!trains || opi_sh_is_pushed(w->s, v))
    return OPIPE_OK;
  if (value_of(w, v)->producer == OPIPE_NONE && w->s->leaf[v] == OPI_LEAF_SPREAD)
    return note_sum(w, v);
  opi_w_arrival *arrival = opi_w_arrival_of(w, v);
  uint32_t *spread = arrival == NULL ? &w->spread[v] : &arrival->spread;
  if (*spread == OPIPE_NONE)
    OPI_TRY(opi_w_spread_node(w, *out, spread));
  *out = *spread;
  return OPIPE_OK;
}

opipe_status opi_w_pick(opi_writer *w, uint32_t x, uint32_t axis, const opi_shard_run *runs,
                        uint32_t n_runs, uint32_t *out) {
  uint32_t in[2] = {x, OPIPE_NONE};
  int64_t n = 0, k = 0;
  opi_attrs attrs = {.n = 0};
  if (n_runs == 1 && runs[0].first == 0 && runs[0].n == opi_b_value(&w->b, x)->shape[axis]) {
    *out = x;
    return OPIPE_OK;
  }
  if (n_runs == 1)
    return opi_k_slice(&w->b, x, axis, runs[0].first, runs[0].first + runs[0].n, out, w->err);
  for (uint32_t i = 0; i < n_runs; ++i)
    n += runs[i].n;
  int64_t *list = OPI_ARENA_ARRAY(&w->scratch, int64_t, (size_t)n);
  if (list == NULL)
    return no_memory(w);
  for (uint32_t i = 0; i < n_runs; ++i) {
    for (int64_t j = 0; j < runs[i].n; ++j)
      list[k++] = runs[i].first + j;
  }
  OPI_TRY(opi_k_const(in[1] = opi_b_const_ints(&w->b, list, (uint32_t)n), w->err));
  opi_attrs_int(&attrs, "axis", axis);
  return opi_k_one(&w->b, "Gather", 0, in, 2, &attrs, out, w->err);
}

static opipe_status cut_by_parts(opi_writer *w, uint32_t v, opi_labels *l, opi_labels **labels,
                                 uint32_t *out) {
  const uint32_t p = value_of(w, v)->producer;
  const opi_node *node = &w->s->g->nodes[p];
  uint32_t *in = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)node->n_in + 1);
  if (in == NULL)
    return no_memory(w);
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = OPIPE_NONE;
    if (node->in[i] == OPIPE_NONE)
      continue;
    OPI_TRY(labels[i] != NULL ? opi_w_cut(w, node->in[i], labels[i], &in[i])
                              : opi_w_spread(w, node->in[i], &in[i]));
  }
  opi_labels *out_labels[1] = {l};
  return opi_w_node(w, p, in, labels[0], out_labels, OPI_NAMES_NEW, out);
}

opipe_status opi_w_cut(opi_writer *w, uint32_t v, opi_labels *l, uint32_t *out) {
  const uint32_t p = value_of(w, v)->producer;
  opi_sh_reduce(w->s, l, value_of(w, v)->shape);
  if (l->n_dims != 1) {
    return opi_fail(w->err, OPIPE_E_INTERNAL, "'%s' is cut along %u axes", value_of(w, v)->name,
                    l->n_dims);
  }
  const uint64_t hash = opi_sh_cut_hash(w->s, l);
  for (uint32_t i = 0; i < w->n_cuts; ++i) {
    if (w->cuts[i].whole == v && w->cuts[i].hash == hash) {
      *out = w->cuts[i].made;
      return OPIPE_OK;
    }
  }
  opi_labels **in = NULL;
  if (p != OPIPE_NONE) {
    in = OPI_ARENA_ARRAY(&w->scratch, opi_labels *, (size_t)w->s->g->nodes[p].n_in + 1);
    if (in == NULL)
      return no_memory(w);
  }
  if (p == OPIPE_NONE && w->s->leaf[v] == hash) {
    OPI_TRY(opi_w_leaf_part(w, v, l, out));
  } else if (p != OPIPE_NONE && opi_sh_by_parts(w->s, v, l, in)) {
    OPI_TRY(cut_by_parts(w, v, l, in, out));
  } else {
    opi_shard_run *runs;
    uint32_t n = 0, whole;
    int64_t sum = 0;
    bool shared = false;
    OPI_TRY(opi_w_spread(w, v, &whole));
    OPI_TRY(opi_w_runs(w, l, &runs, &n, &sum, &shared));
    OPI_TRY(opi_w_pick(w, whole, l->dims[0], runs, n, out));
  }
  if (!opi_arena_grow(&w->scratch, (void **)&w->cuts, &w->room_cuts, w->n_cuts + 1,
                      sizeof(*w->cuts)))
    return no_memory(w);
  w->cuts[w->n_cuts++] = (opi_shard_memo){hash, v, *out};
  return OPIPE_OK;
}

opipe_status opi_w_read(opi_writer *w, uint32_t n, uint32_t i, uint32_t *out) {
  const uint32_t v = w->s->g->nodes[n].in[i];
  const opi_read *read = &w->s->decisions[n].reads[i];
  *out = OPIPE_NONE;
  if (v == OPIPE_NONE)
    return OPIPE_OK;
  switch (read->kind) {
    case OPI_READ_OWN:
      *out = w->own[v];
      return OPIPE_OK;
    case OPI_READ_CUT:
      return opi_w_cut(w, v, read->labels, out);
    case OPI_READ_SPREAD:
      return opi_w_spread(w, v, out);
    default: {
      const opi_node *node = &w->s->g->nodes[n];
      const bool pushed = node->n_out == 1 && opi_sh_is_pushed(w->s, node->out[0]);
      return pushed ? opi_w_spread(w, v, out) : opi_w_whole(w, v, out);
    }
  }
}
