/* SPDX-License-Identifier: Apache-2.0 */
/* The divisor of a mini-batch's loss. It is a separate graph, cut out of the training graph, that
 * runs before the first backward and counts a micro-batch's labels (those that are not ignored, or
 * their weights) or sums the divisor of the file's own loss; or it is a constant.
 */
#include <string.h>

#include "loader/gradient/state.h"

/* Copies what `roots` need of the training graph into the builder's graph; map [n_values]. */
static opipe_status copy_needed(opi_grad_state *s, opi_builder *b, const uint32_t *roots,
                                uint32_t n_roots, uint32_t *map, opipe_error *err) {
  const opi_graph *graph = s->training->graph;
  bool *need = OPI_ARENA_ARRAY(&s->scratch, bool, graph->n_values);
  if (need == NULL)
    return opi_fail_nomem(err, graph->n_values, "marking values");
  for (uint32_t r = 0; r < n_roots; ++r) {
    if (roots[r] != OPIPE_NONE)
      need[roots[r]] = true;
  }
  for (uint32_t n = graph->n_nodes; n-- > 0;) {
    const opi_node *node = &graph->nodes[n];
    bool any = false;
    for (uint32_t o = 0; o < node->n_out; ++o)
      any = any || (node->out[o] != OPIPE_NONE && need[node->out[o]]);
    for (uint32_t i = 0; any && i < node->n_in; ++i) {
      if (node->in[i] != OPIPE_NONE)
        need[node->in[i]] = true;
    }
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opi_value *value = &graph->values[v];
    if (!need[v] || value->producer != OPIPE_NONE)
      continue;
    map[v] = opi_b_borrow(b, value->name, value->dtype, value->shape, (uint32_t)value->rank,
                          value->data);
    if (map[v] == OPIPE_NONE ||
        (value->flags & OPI_VALUE_INPUT && !opi_graph_add_input(b->graph, map[v])))
      return opi_fail_nomem(err, sizeof(opi_value), "the count graph");
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    bool any = false;
    for (uint32_t o = 0; o < node->n_out; ++o)
      any = any || (node->out[o] != OPIPE_NONE && need[node->out[o]]);
    if (!any)
      continue;
    uint32_t *in = OPI_ARENA_ARRAY(&s->scratch, uint32_t, node->n_in);
    uint32_t *out = OPI_ARENA_ARRAY(&s->scratch, uint32_t, node->n_out);
    const char **names = OPI_ARENA_ARRAY(&s->scratch, const char *, node->n_out);
    if (in == NULL || out == NULL || names == NULL)
      return opi_fail_nomem(err, node->n_in * 4 + node->n_out * 12, "the count graph");
    for (uint32_t i = 0; i < node->n_in; ++i)
      in[i] = node->in[i] == OPIPE_NONE ? OPIPE_NONE : map[node->in[i]];
    for (uint32_t o = 0; o < node->n_out; ++o)
      names[o] = node->out[o] == OPIPE_NONE ? "" : graph->values[node->out[o]].name;
    b->origin = node;
    b->n_emitted = 0;
    OPI_TRY(opi_b_emit_again(b, node, in, names, out, err));
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (node->out[o] != OPIPE_NONE)
        map[node->out[o]] = out[o];
    }
  }
  b->origin = NULL;
  return OPIPE_OK;
}

opipe_status opi_grad_sum_all(opi_builder *b, uint32_t x, uint32_t *out, opipe_error *err) {
  int64_t axes[OPIPE_MAX_RANK];
  const uint32_t rank = (uint32_t)opi_b_value(b, x)->rank;
  for (uint32_t a = 0; a < rank; ++a)
    axes[a] = a;
  if (rank == 0) {
    *out = x;
    return OPIPE_OK;
  }
  return opi_k_reduce(b, "ReduceSum", 0, x, axes, rank, false, out, err);
}

/* double: how many labels are not `ignore`, or the sum of the weights of those. */
static opipe_status count_labels(opi_builder *b, uint32_t labels, bool ignores, int64_t ignore,
                                 uint32_t weights, uint32_t *out, opipe_error *err) {
  const uint32_t dtype = opi_b_value(b, labels)->dtype;
  opi_attrs attrs = {.n = 0};
  uint32_t drop = OPIPE_NONE, none, zero, terms, in[2] = {weights, labels};
  if (ignores) {
    OPI_TRY(opi_k_const(none = opi_b_const_scalar(b, dtype, (double)ignore), err));
    OPI_TRY(opi_b_op2(b, "Equal", labels, none, &drop, err));
  }
  if (weights == OPIPE_NONE) {
    OPI_TRY(opi_b_op1(b, "Not", drop, &terms, err));
    OPI_TRY(opi_k_cast(b, terms, OPIPE_DOUBLE, &terms, err));
    return opi_grad_sum_all(b, terms, out, err);
  }
  if (ignores) {
    OPI_TRY(opi_k_const(zero = opi_b_const_scalar(b, dtype, 0), err));
    OPI_TRY(opi_k_where(b, drop, zero, labels, &in[1], err));
  }
  opi_attrs_int(&attrs, "axis", 0);
  OPI_TRY(opi_k_one(b, "Gather", 0, in, 2, &attrs, &terms, err));
  OPI_TRY(opi_k_cast(b, terms, OPIPE_DOUBLE, &terms, err));
  if (ignores) {
    OPI_TRY(opi_k_const(zero = opi_b_const_scalar(b, OPIPE_DOUBLE, 0), err));
    OPI_TRY(opi_k_where(b, drop, zero, terms, &terms, err));
  }
  return opi_grad_sum_all(b, terms, out, err);
}

static opipe_status count_one(opi_builder *b, const opi_counted *c, const uint32_t *map,
                              opipe_error *err) {
  uint32_t count, times;
  if (c->sums) {
    OPI_TRY(opi_k_cast(b, map[c->labels], OPIPE_DOUBLE, &count, err));
    OPI_TRY(opi_grad_sum_all(b, count, &count, err));
  } else {
    OPI_TRY(count_labels(b, map[c->labels], c->ignores, c->ignore,
                         c->weights == OPIPE_NONE ? OPIPE_NONE : map[c->weights], &count, err));
  }
  if (c->times != 0) {
    OPI_TRY(opi_k_const(times = opi_b_const_scalar(b, OPIPE_DOUBLE, c->times), err));
    OPI_TRY(opi_b_op2(b, "Mul", count, times, &count, err));
  }
  return opi_graph_add_output(b->graph, count) ? OPIPE_OK
                                               : opi_fail_nomem(err, 4, "the count graph");
}

static opipe_status count_body(opi_grad_state *s, opi_builder *b, const opi_counted *list,
                               uint32_t n, opipe_error *err) {
  const opi_graph *graph = s->training->graph;
  uint32_t *roots = OPI_ARENA_ARRAY(&s->scratch, uint32_t, 2 * (size_t)n);
  uint32_t *map = OPI_ARENA_ARRAY(&s->scratch, uint32_t, graph->n_values);
  if (map == NULL || roots == NULL)
    return opi_fail_nomem(err, graph->n_values * sizeof(*map), "the count graph");
  memset(map, 0xff, graph->n_values * sizeof(*map));
  for (uint32_t i = 0; i < n; ++i) {
    roots[2 * i] = list[i].labels;
    roots[2 * i + 1] = list[i].weights;
  }
  OPI_TRY(copy_needed(s, b, roots, 2 * n, map, err));
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(count_one(b, &list[i], map, err));
  return OPIPE_OK;
}

opipe_status opi_grad_count_all(opi_grad_state *s, const opi_counted *list, uint32_t n,
                                opipe_error *err) {
  opi_builder b;
  opi_graph *graph = opi_graph_new(&s->training->arena, "count");
  if (graph == NULL)
    return opi_fail_nomem(err, sizeof(*graph), "the count graph");
  OPI_TRY(opi_b_open(&b, graph, &s->scratch, s->options->allocator, err));
  b.keep_parameters = true;
  const opipe_status status = count_body(s, &b, list, n, err);
  opi_b_close(&b);
  s->training->count_graph = graph;
  return status;
}

opipe_status opi_grad_count_sum(opi_grad_state *s, uint32_t value, opipe_error *err) {
  const opi_counted c = {.labels = value, .weights = OPIPE_NONE, .sums = true};
  return opi_grad_count_all(s, &c, 1, err);
}

opipe_status opi_grad_count(opi_grad_state *s, uint32_t labels, bool ignores, int64_t ignore,
                            uint32_t weights, opipe_error *err) {
  const opi_counted c = {labels, weights, ignore, ignores, false, 0};
  uint64_t n = 0;
  const opi_value *v = opi_b_value(&s->builder, labels);
  if (ignores || weights != OPIPE_NONE)
    return opi_grad_count_all(s, &c, 1, err);
  if (!opi_shape_elems(v->shape, (uint32_t)v->rank, &n))
    return opi_fail(err, OPIPE_E_LIMIT, "labels '%s' are too large", v->name);
  s->training->count = (double)n;
  return OPIPE_OK;
}
