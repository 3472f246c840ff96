/* SPDX-License-Identifier: Apache-2.0 */
/* The sequence form in a member's graph: values in rows have 1 entry in the dimensions before the
 * last one that is flattened, and the member's rows there, so that their rank stays.
 */
#include <string.h>

#include "loader/shard/writer.h"

static const opi_value *value_of(const opi_writer *w, uint32_t v) {
  return &w->s->g->values[v];
}

static opipe_status no_memory(opi_writer *w) {
  return opi_fail_nomem(w->err, 64, "a member's rows");
}

/* ---- forms ---- */

/* A shape of which the first k dimensions are flattened into the last of them, with n entries. */
static void flat_shape(const int64_t *shape, uint32_t rank, uint32_t k, int64_t n, int64_t *out) {
  for (uint32_t d = 0; d < rank; ++d)
    out[d] = d + 1 < k ? 1 : d + 1 == k ? n : shape[d];
}

/* x in a shape in which k dimensions are flattened, or are no longer. A node even if the shapes
 * happen to be equal: graphs of other numbers of rows have the same nodes. */
static opipe_status reshape(opi_writer *w, uint32_t x, const int64_t *shape, uint32_t rank,
                            uint32_t k, uint32_t *out) {
  *out = x;
  if (k < 2)
    return OPIPE_OK;
  uint32_t in[2] = {x, opi_b_const_ints(&w->b, shape, rank)}; /* a node even if x is known */
  opi_attrs attrs = {.n = 0};
  OPI_TRY(opi_k_const(in[1], w->err));
  opi_attrs_int(&attrs, "allowzero", 1);
  return opi_k_one(&w->b, "Reshape", 0, in, 2, &attrs, out, w->err);
}

/* x in the shape of another form of it. */
static opipe_status as_formed(opi_writer *w, uint32_t x, const opi_value *form, uint32_t *out) {
  const opi_value *from = opi_b_value(&w->b, x);
  *out = x;
  const bool same =
      from->rank == form->rank &&
      memcmp(from->shape, form->shape, (size_t)form->rank * sizeof(*form->shape)) == 0;
  if (opi_b_choose(&w->b, same) != 0 && same)
    return OPIPE_OK;
  return reshape(w, x, form->shape, (uint32_t)form->rank, 2, out);
}

/* x with all rows of its first k dimensions in one of them. */
static opipe_status flatten(opi_writer *w, uint32_t x, const int64_t *shape, uint32_t rank,
                            uint32_t k, uint32_t *out) {
  int64_t flat[OPIPE_MAX_RANK];
  flat_shape(shape, rank, k, opi_sh_count_rows(shape, k), flat);
  return reshape(w, x, flat, rank, k, out);
}

static int64_t *parts_of(opi_writer *w, int64_t rows) {
  int64_t *parts = OPI_ARENA_ARRAY(&w->scratch, int64_t, w->s->width);
  for (uint32_t r = 0; parts != NULL && r < w->s->width; ++r)
    parts[r] = opi_sh_row_run(w->s, rows, r).n;
  return parts;
}

opipe_status opi_w_scatter(opi_writer *w, uint32_t v, uint32_t *out) {
  const opi_value *x = value_of(w, v);
  const uint32_t k = w->s->rows.dims[v];
  const int64_t *parts = parts_of(w, opi_sh_count_rows(x->shape, k));
  if (parts == NULL)
    return no_memory(w);
  OPI_TRY(flatten(w, w->own[v], x->shape, (uint32_t)x->rank, k, out));
  return opi_group_scatter(&w->b, *out, k - 1, parts, w->s->width, w->r, out, w->err);
}

opipe_status opi_w_row(opi_writer *w, uint32_t v, uint32_t *out) {
  if (w->row[v] == OPIPE_NONE && !w->s->partial[v]) {
    return opi_fail(w->err, OPIPE_E_INTERNAL, "rows of '%s' are read before they are made",
                    value_of(w, v)->name);
  }
  if (w->row[v] == OPIPE_NONE)
    OPI_TRY(opi_w_sum(w, v, &w->row[v]));
  *out = w->row[v];
  return OPIPE_OK;
}

opipe_status opi_w_gather(opi_writer *w, uint32_t v, bool sum, uint32_t *out) {
  const opi_value *x = value_of(w, v);
  const uint32_t k = w->s->rows.dims[v];
  const opi_node *node = &w->s->g->nodes[x->producer];
  if (w->s->rows.nodes[x->producer] && opi_op_of(node)->takes == OPI_TAKES_FORM) {
    OPI_TRY(sum ? opi_w_spread(w, node->in[0], out) : opi_w_whole(w, node->in[0], out));
    OPI_TRY(opi_w_origin(w, node));
    return as_formed(w, *out, x, out);
  }
  const int64_t *parts = parts_of(w, opi_sh_count_rows(x->shape, k));
  if (parts == NULL)
    return no_memory(w);
  OPI_TRY(opi_w_row(w, v, out));
  OPI_TRY(opi_w_origin(w, &w->s->g->nodes[x->producer]));
  OPI_TRY(opi_group_gather(&w->b, *out, k - 1, parts, w->s->width, w->r, sum, out, w->err));
  return reshape(w, *out, x->shape, (uint32_t)x->rank, k, out);
}

/* Rows of a whole value, repeated along the dimensions of rows that it lacks. Never folded: graphs
 * of other numbers of rows share what is known, by name. */
static opipe_status cut_rows(opi_writer *w, uint32_t v, const opi_value *y, uint32_t k,
                             uint32_t *out) {
  const opi_value *x = value_of(w, v);
  const uint32_t rank = (uint32_t)y->rank, lead = rank - (uint32_t)x->rank;
  const uint64_t limit = w->b.fold_limit_bytes;
  const int64_t rows = opi_sh_count_rows(y->shape, k);
  const opi_shard_run run = opi_sh_row_run(w->s, rows, w->r);
  int64_t shape[OPIPE_MAX_RANK];
  for (uint32_t d = 0; d < rank; ++d)
    shape[d] = d < k ? y->shape[d] : x->shape[d - lead];
  OPI_TRY(opi_w_spread(w, v, out));
  w->b.fold_limit_bytes = 0;
  opipe_status status = OPIPE_OK;
  if (opi_b_choose(&w->b, lead != 0 || memcmp(shape, x->shape, rank * sizeof(*shape)) != 0) != 0)
    status = opi_k_expand(&w->b, *out, shape, rank, out, w->err);
  if (status >= 0)
    status = flatten(w, *out, shape, rank, k, out);
  if (status >= 0)
    status = opi_k_slice(&w->b, *out, k - 1, run.first, run.first + run.n, out, w->err);
  w->b.fold_limit_bytes = limit;
  return status;
}

opipe_status opi_w_beside(opi_writer *w, uint32_t v, const opi_value *y, uint32_t k,
                          uint32_t *out) {
  const opi_value *x = value_of(w, v);
  const int32_t lead = y->rank - x->rank;
  const uint64_t rows = (uint64_t)opi_sh_count_rows(y->shape, k);
  const uint64_t hash = rows << 16 | (uint64_t)y->rank << 8 | k;
  bool has = false;
  if (w->s->rows.dims[v] != 0)
    return opi_w_row(w, v, out);
  for (int32_t d = lead; d < (int32_t)k; ++d)
    has = has || x->shape[d - lead] != 1;
  if (!has)
    return opi_w_spread(w, v, out);
  for (uint32_t i = 0; i < w->n_row_cuts; ++i) {
    if (w->row_cuts[i].whole == v && w->row_cuts[i].hash == hash) {
      *out = w->row_cuts[i].made;
      return OPIPE_OK;
    }
  }
  OPI_TRY(cut_rows(w, v, y, k, out));
  if (!opi_arena_grow(&w->scratch, (void **)&w->row_cuts, &w->room_row_cuts, w->n_row_cuts + 1,
                      sizeof(*w->row_cuts)))
    return no_memory(w);
  w->row_cuts[w->n_row_cuts++] = (opi_shard_memo){hash, v, *out};
  return OPIPE_OK;
}

opipe_status opi_w_added(opi_writer *w, uint32_t n, uint32_t i, uint32_t *out) {
  const opi_node *node = &w->s->g->nodes[n];
  const opi_value *y = value_of(w, node->out[0]);
  if (w->s->decisions[n].reads[i].kind != OPI_READ_ROWS)
    return opi_w_whole(w, node->in[i], out);
  OPI_TRY(opi_w_origin(w, node));
  return opi_w_beside(w, node->in[i], y, (uint32_t)y->rank - 1, out);
}

/* ---- nodes ---- */

/* From and to of a Slice: all of the member's rows. */
static opipe_status slice_rows(opi_writer *w, const opi_node *node, const int64_t *local,
                               uint32_t k, uint32_t *in) {
  uint64_t n = 0, n_other = 0;
  const int64_t *axes = opi_sh_ints(w->s, node->in[3], &n);
  int64_t *from = (int64_t *)(uintptr_t)opi_sh_ints(w->s, node->in[1], &n_other);
  int64_t *to = (int64_t *)(uintptr_t)opi_sh_ints(w->s, node->in[2], &n_other);
  if (axes == NULL || from == NULL || to == NULL)
    return no_memory(w);
  for (uint64_t i = 0; i < n; ++i) {
    if (axes[i] >= (int64_t)k)
      continue;
    from[i] = 0;
    to[i] = local[axes[i]];
  }
  OPI_TRY(opi_k_const(in[1] = opi_b_const_ints(&w->b, from, (uint32_t)n), w->err));
  return opi_k_const(in[2] = opi_b_const_ints(&w->b, to, (uint32_t)n), w->err);
}

/* The shape of the member's rows of v. */
static void row_shape(const opi_writer *w, uint32_t v, int64_t *shape) {
  const opi_value *x = value_of(w, v);
  const uint32_t k = w->s->rows.dims[v];
  const opi_shard_run run = opi_sh_row_run(w->s, opi_sh_count_rows(x->shape, k), w->r);
  flat_shape(x->shape, (uint32_t)x->rank, k, run.n, shape);
}

static opipe_status row_inputs(opi_writer *w, uint32_t n, uint32_t *in) {
  const opi_node *node = &w->s->g->nodes[n];
  const opi_op *op = opi_op_of(node);
  const bool aligned = op->carry == opi_carry_broadcast && op->takes != OPI_TAKES_FORM;
  int64_t shape[OPIPE_MAX_RANK];
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    in[i] = OPIPE_NONE;
    if (v == OPIPE_NONE)
      continue;
    const uint32_t k = w->s->rows.dims[node->out[0] != OPIPE_NONE ? node->out[0] : v];
    const opi_value *y = value_of(w, aligned ? node->out[0] : v);
    OPI_TRY(w->s->decisions[n].reads[i].kind == OPI_READ_ROWS ? opi_w_beside(w, v, y, k, &in[i])
                                                              : opi_w_spread(w, v, &in[i]));
  }
  if ((op->takes & (OPI_TAKES_FORM | OPI_TAKES_STRETCHED)) != 0 && node->n_in > 1) {
    row_shape(w, node->out[0], shape);
    const int32_t rank = value_of(w, node->out[0])->rank;
    return opi_k_const(in[1] = opi_b_const_ints(&w->b, shape, (uint32_t)rank), w->err);
  }
  if (op->takes != OPI_TAKES_PART)
    return OPIPE_OK;
  row_shape(w, node->in[0], shape);
  return slice_rows(w, node, shape, w->s->rows.dims[node->in[0]], in);
}

opipe_status opi_w_row_node(opi_writer *w, uint32_t n) {
  const opi_node *node = &w->s->g->nodes[n];
  uint32_t *in = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)node->n_in + node->n_out + 1);
  opi_labels **none = OPI_ARENA_ARRAY(&w->scratch, opi_labels *, (size_t)node->n_out + 1);
  int64_t shape[OPIPE_MAX_RANK];
  if (in == NULL || none == NULL)
    return no_memory(w);
  uint32_t *out = in + node->n_in;
  OPI_TRY(opi_w_origin(w, node));
  OPI_TRY(row_inputs(w, n, in));
  OPI_TRY(opi_w_node(w, n, in, NULL, none, OPI_NAMES_ROWS, out));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    if (v == OPIPE_NONE)
      continue;
    const opi_value *y = opi_b_value(&w->b, out[o]);
    row_shape(w, v, shape);
    if (y->rank != value_of(w, v)->rank ||
        memcmp(y->shape, shape, (size_t)y->rank * sizeof(*shape)) != 0) {
      return opi_fail(w->err, OPIPE_E_INTERNAL, "node '%s' (%s): rows of '%s' have another shape",
                      node->name, node->op, value_of(w, v)->name);
    }
    w->row[v] = out[o];
    opi_b_value(&w->b, out[o])->source = value_of(w, v)->source;
  }
  return OPIPE_OK;
}

void opi_w_row_attrs(opi_writer *w, uint32_t n, opipe_attr *attrs, uint32_t *io_n) {
  const opi_node *node = &w->s->g->nodes[n];
  const uint32_t k = w->s->rows.dims[node->in[0]];
  int64_t *run = OPI_ARENA_ARRAY(&w->scratch, int64_t, 2);
  if (opi_op_of(node)->kind != OPI_KIND_RANDOM || run == NULL) {
    w->s->failed = w->s->failed || run == NULL;
    return;
  }
  const int64_t rows = opi_sh_count_rows(value_of(w, node->in[0])->shape, k);
  const opi_shard_run own = opi_sh_row_run(w->s, rows, w->r);
  run[0] = own.first;
  run[1] = own.n;
  attrs[(*io_n)++] = OPI_ATTR_I("part_axis", k - 1);
  attrs[(*io_n)++] = OPI_ATTR_I("part_whole", rows);
  attrs[(*io_n)++] = OPI_ATTR_N("part_runs", run, 2);
}
