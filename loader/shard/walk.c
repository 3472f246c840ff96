/* SPDX-License-Identifier: Apache-2.0 */
/* The walk: every node in order, with what it reads whole, divided or partial.
 *
 * A product of a whole activation and a parameter is *opened*: its columns get atoms. A table whose
 * rows are picked by an activation is opened, too: its output is partial at once. If a rule
 * refuses, the regions that meet there fail, and the walk is repeated without their openings
 * (settle.c), until nothing fails.
 */
#include <string.h>

#include "loader/shard/sharder.h"

static const opi_value *value_of(const opi_sharder *s, uint32_t v) {
  return &s->g->values[v];
}

/* ---- facts ---- */

/* Could node n be opened, whatever happened before? */
static bool could_open(const opi_sharder *s, const opi_node *node) {
  if (opi_sh_is_product(node))
    return s->weight[node->in[1]] && !s->weight[node->in[0]] && value_of(s, node->in[1])->rank > 1;
  return opi_op_of(node)->takes == OPI_TAKES_ROWS && opi_attr_int(node, "axis", 0) == 0 &&
         s->weight[node->in[0]] && !s->weight[node->in[1]] && value_of(s, node->in[0])->rank > 1 &&
         opi_dtype_is_float(value_of(s, node->in[0])->dtype);
}

static void find_facts(opi_sharder *s) {
  const opi_graph *g = s->g;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const opi_value *x = value_of(s, v);
    if (x->producer != OPIPE_NONE)
      continue;
    s->weight[v] = x->data != NULL || (x->flags & OPI_VALUE_INITIALIZER) != 0;
    s->trains[v] =
        (x->flags & OPI_VALUE_INITIALIZER) != 0 && opi_dtype_is_float(x->dtype) && opi_elems(x) > 1;
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    bool weight = opi_op_of(node)->kind != OPI_KIND_RANDOM, main = false, trains = false;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      const uint32_t v = node->in[i];
      if (v == OPIPE_NONE)
        continue;
      weight = weight && s->weight[v];
      main = main || s->main[v];
      trains = trains || s->trains[v];
      ++s->uses[v];
    }
    main = main || could_open(s, node);
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (node->out[o] == OPIPE_NONE)
        continue;
      s->weight[node->out[o]] = weight;
      s->main[node->out[o]] = main;
      s->trains[node->out[o]] = trains;
    }
  }
  for (uint32_t o = 0; o < g->n_outputs; ++o)
    ++s->uses[g->outputs[o]];
}

/* ---- openings ---- */

static opi_labels *open_axis(opi_sharder *s, uint32_t n, uint32_t v, uint8_t axis) {
  const opi_value *x = value_of(s, v);
  const uint32_t count = (uint32_t)x->shape[axis];
  if (!opi_arena_grow(&s->scratch, (void **)&s->openings, &s->room_openings, s->n_openings + 1,
                      sizeof(*s->openings))) {
    s->failed = true;
    return NULL;
  }
  s->openings[s->n_openings] = (opi_opening){
      .node = n, .first = opi_sh_fresh(s, count), .n = count, .parent = s->n_openings};
  opi_labels *l = s->failed ? NULL : opi_sh_labels(s, x->shape, &axis, 1);
  for (uint64_t i = 0; l != NULL && i < l->n; ++i)
    l->atoms[i] = s->openings[s->n_openings].first + (uint32_t)i;
  ++s->n_openings;
  return l;
}

static bool may_open(const opi_sharder *s, uint32_t n) {
  const opi_node *node = &s->g->nodes[n];
  if (s->width < 2 || s->closed[n] != NULL || !could_open(s, node))
    return false;
  const int32_t axis = opi_sh_is_product(node) ? opi_sh_product_axes(s->g, node).n : 0;
  const uint32_t from = opi_sh_is_product(node) ? 1 : 0;
  return axis >= 0 && value_of(s, node->in[from])->shape[axis] > 1 &&
         value_of(s, node->in[from])->shape[axis] < INT32_MAX;
}

static opipe_status open_rows(opi_sharder *s, uint32_t n) {
  const opi_node *node = &s->g->nodes[n];
  opi_labels *l = open_axis(s, n, node->in[0], 0);
  if (l == NULL)
    return opi_fail_nomem(&s->why, 64, "labels");
  s->decisions[n].mode = OPI_MODE_ROWS;
  s->decisions[n].reads[0] = (opi_read){OPI_READ_CUT, l};
  s->partial[node->out[0]] = true;
  return opi_sh_demand(s, node->in[0], l)
             ? OPIPE_OK
             : opi_sh_refuse(s, node, "'%s' cannot be cut", value_of(s, node->in[0])->name);
}

/* ---- partial sums ---- */

static bool is_real(const opi_sharder *s, uint32_t v) {
  return v != OPIPE_NONE && opi_dtype_is_float(value_of(s, v)->dtype);
}

/* May the partial sum at input i pass this node? */
static bool passes(const opi_sharder *s, const opi_node *node, uint32_t i) {
  const uint32_t sums = opi_op_of(node)->sums;
  if (s->uses[node->in[i]] != 1 || node->out[0] == OPIPE_NONE)
    return false;
  switch (sums) {
    case OPI_SUMS_FIRST:
    case OPI_SUMS_AXES: /* summed before it grows */
      return i == 0 && !s->aside[node->in[i]] &&
             value_of(s, node->out[0])->n_bytes <= value_of(s, node->in[0])->n_bytes;
    case OPI_SUMS_EACH:
      return !s->aside[node->in[i]];
    case OPI_SUMS_TOGETHER:
      return true;
    default:
      return false;
  }
}

/* Adding what is whole to a partial sum, element by element. */
static bool adds(const opi_node *node) {
  return node->n_in == 2 && opi_op_of(node)->range == OPI_RANGE_ADD;
}

static bool same_shape(const opi_value *a, const opi_value *b) {
  return a->rank == b->rank &&
         (a->rank == 0 || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(int64_t)) == 0);
}

/* Partial inputs and whole ones; false: all partial inputs have to be summed before. */
static bool walk_partial(opi_sharder *s, uint32_t n, const bool *partial, uint32_t n_partial) {
  const opi_node *node = &s->g->nodes[n];
  const uint32_t sums = opi_op_of(node)->sums;
  opi_shard_decision *d = &s->decisions[n];
  const opi_value *y = value_of(s, node->out[0]);
  bool all = true, aside = false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    all = all && (partial[i] || node->in[i] == OPIPE_NONE);
    if (partial[i] && s->aside[node->in[i]])
      aside = true;
    if (partial[i] && sums == OPI_SUMS_TOGETHER && (!all || aside) && adds(node) &&
        !same_shape(value_of(s, node->in[i]), y))
      return false;
  }
  d->mode = OPI_MODE_PASS;
  if (sums == OPI_SUMS_TOGETHER && (!all || aside)) {
    if (!adds(node))
      return false;
    for (uint32_t i = 0; i < 2; ++i) {
      if (partial[i] && !same_shape(value_of(s, node->in[i]), y))
        return false;
    }
    d->mode = OPI_MODE_ADD;
    aside = true;
  } else if (sums == OPI_SUMS_EACH && n_partial != 1) {
    return false;
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const bool spread = d->mode == OPI_MODE_PASS && is_real(s, node->in[i]);
    d->reads[i].kind = partial[i] ? OPI_READ_OWN : spread ? OPI_READ_SPREAD : OPI_READ_WHOLE;
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    s->partial[node->out[o]] = true;
    s->aside[node->out[o]] = aside;
  }
  return true;
}

/* ---- divided ---- */

static void fail_regions(opi_sharder *s, opi_labels *const *in, uint32_t n_in) {
  const char *why = opi_arena_strdup(&s->keep, s->why.message);
  for (uint32_t i = 0; i < n_in; ++i) {
    for (uint64_t k = 0; in[i] != NULL && k < in[i]->n; ++k) {
      opi_opening *o = &s->openings[opi_sh_opening(s, in[i]->atoms[k])];
      if (!o->failed) {
        o->failed = true;
        o->why = why;
      }
    }
  }
}

static void forget(opi_sharder *s, uint32_t n) {
  const opi_node *node = &s->g->nodes[n];
  s->decisions[n].mode = OPI_MODE_WHOLE;
  memset(s->decisions[n].reads, 0, node->n_in * sizeof(opi_read));
}

static opipe_status walk_divided(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  opi_shard_decision *d = &s->decisions[n];
  opipe_status status = opi_sh_rule(s, n, in, out);
  if (s->failed)
    return OPIPE_E_NOMEM;
  if (status == OPIPE_E_UNSUPPORTED) {
    fail_regions(s, in, node->n_in);
    forget(s, n);
    return OPIPE_OK;
  }
  OPI_TRY(status);
  const bool layer = opi_op_of(node)->sums == OPI_SUMS_LAYER && d->mode == OPI_MODE_SUM;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const bool own = node->in[i] != OPIPE_NONE && s->labels[node->in[i]] != NULL;
    if (own)
      d->reads[i] = (opi_read){OPI_READ_OWN, NULL};
    else if (d->reads[i].kind == OPI_READ_WHOLE && is_real(s, node->in[i]) && !(layer && i == 2) &&
             d->mode != OPI_MODE_LOSS)
      d->reads[i].kind = OPI_READ_SPREAD;
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    s->labels[node->out[o]] = out[o];
    s->partial[node->out[o]] = d->mode == OPI_MODE_SUM;
    s->aside[node->out[o]] = layer && opi_node_in(node, 2) != OPIPE_NONE;
  }
  return OPIPE_OK;
}

static opipe_status walk_node(opi_sharder *s, uint32_t n) {
  const opi_node *node = &s->g->nodes[n];
  const size_t room = (size_t)node->n_in + node->n_out + 1;
  opi_labels **in = OPI_ARENA_ARRAY(&s->scratch, opi_labels *, room);
  bool *partial = OPI_ARENA_ARRAY(&s->scratch, bool, (size_t)node->n_in + 1);
  opi_shard_decision *d = &s->decisions[n];
  d->reads = OPI_ARENA_ARRAY(&s->scratch, opi_read, (size_t)node->n_in + 1);
  if (in == NULL || partial == NULL || d->reads == NULL)
    return opi_fail_nomem(&s->why, room * 24, "a node");
  bool divided = false;
  uint32_t n_partial = 0;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = node->in[i] == OPIPE_NONE ? NULL : s->labels[node->in[i]];
    divided = divided || in[i] != NULL;
    partial[i] = node->in[i] != OPIPE_NONE && s->partial[node->in[i]] && passes(s, node, i);
    n_partial += partial[i];
  }
  if (!divided && n_partial != 0 && walk_partial(s, n, partial, n_partial))
    return OPIPE_OK;
  forget(s, n);
  if (!divided && !may_open(s, n))
    return OPIPE_OK;
  if (divided)
    return walk_divided(s, n, in, in + node->n_in);
  if (!opi_sh_is_product(node)) {
    opipe_status status = open_rows(s, n);
    if (status == OPIPE_E_UNSUPPORTED) {
      in[0] = d->reads[0].labels;
      fail_regions(s, in, 1);
      s->partial[node->out[0]] = false;
      forget(s, n);
      status = OPIPE_OK;
    }
    return status;
  }
  in[1] = open_axis(s, n, node->in[1], (uint8_t)opi_sh_product_axes(s->g, node).n);
  if (in[1] == NULL)
    return opi_fail_nomem(&s->why, 64, "labels");
  opi_labels *cut = opi_sh_copy(s, in[1]);
  if (cut == NULL || !opi_sh_demand(s, node->in[1], cut)) {
    (void)opi_sh_refuse(s, node, "'%s' cannot be cut", value_of(s, node->in[1])->name);
    fail_regions(s, in, 2);
    return s->failed ? OPIPE_E_NOMEM : OPIPE_OK;
  }
  const opipe_status status = walk_divided(s, n, in, in + node->n_in);
  if (d->mode != OPI_MODE_WHOLE)
    d->reads[1] = (opi_read){OPI_READ_CUT, cut};
  return status;
}

static opipe_status begin(opi_sharder *s) {
  const size_t values = (size_t)s->g->n_values + 1, nodes = (size_t)s->g->n_nodes + 1;
  opi_arena_release(&s->scratch);
  opi_arena_init(&s->scratch, s->wish->allocator, 0);
  s->parent = NULL;
  s->openings = NULL;
  s->follows = NULL;
  s->n_atoms = s->room_atoms = s->n_openings = s->room_openings = 0;
  s->n_follows = s->room_follows = 0;
  s->labels = OPI_ARENA_ARRAY(&s->scratch, opi_labels *, values);
  s->partial = OPI_ARENA_ARRAY(&s->scratch, bool, values);
  s->aside = OPI_ARENA_ARRAY(&s->scratch, bool, values);
  s->needed = OPI_ARENA_ARRAY(&s->scratch, bool, values);
  s->leaf = OPI_ARENA_ARRAY(&s->scratch, uint64_t, values);
  s->cut = OPI_ARENA_ARRAY(&s->scratch, opi_labels *, values);
  s->rows.dims = OPI_ARENA_ARRAY(&s->scratch, uint8_t, values);
  s->rows.nodes = OPI_ARENA_ARRAY(&s->scratch, bool, nodes);
  s->rows.gathered = OPI_ARENA_ARRAY(&s->scratch, bool, values);
  s->rows.early = OPI_ARENA_ARRAY(&s->scratch, bool, values);
  s->rows.mixes = OPI_ARENA_ARRAY(&s->scratch, const char *, nodes);
  s->decisions = OPI_ARENA_ARRAY(&s->scratch, opi_shard_decision, nodes);
  if (s->labels == NULL || s->partial == NULL || s->aside == NULL || s->needed == NULL ||
      s->leaf == NULL || s->cut == NULL || s->decisions == NULL || s->rows.dims == NULL ||
      s->rows.nodes == NULL || s->rows.gathered == NULL || s->rows.early == NULL ||
      s->rows.mixes == NULL)
    return opi_fail_nomem(&s->why, values * 32, "dividing a graph");
  return OPIPE_OK;
}

static opipe_status walk_once(opi_sharder *s) {
  OPI_TRY(begin(s));
  for (uint32_t n = 0; n < s->g->n_nodes; ++n)
    OPI_TRY(walk_node(s, n));
  return OPIPE_OK;
}

opipe_status opi_sh_walk(opi_sharder *s, opipe_error *err) {
  bool again = true;
  find_facts(s);
  while (again) {
    s->why = (opipe_error)OPIPE_ERROR_INIT;
    const opipe_status status = walk_once(s);
    if (status < 0 || s->failed) {
      if (err != NULL)
        *err = s->why;
      return status < 0 ? status : opi_fail_nomem(err, 64, "dividing a graph");
    }
    OPI_TRY(opi_sh_settle(s, &again, err));
  }
  return OPIPE_OK;
}
