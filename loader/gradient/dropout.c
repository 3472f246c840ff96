/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout that runs: opipe.Dropout, whose mask depends on seed, step, the node's name, the sample's
 * number in the mini-batch (or request), the token's number in the sequence and the place in the
 * rest, so that no split changes it and a clone has the same one.
 */
#include "loader/gradient/state.h"

static void carry_attrs(opi_attrs *attrs, const char *const names[3], const opi_carry *carry) {
  const opi_carry none = {-1, 0, 1, 1};
  const opi_carry *c = carry != NULL ? carry : &none;
  opi_attrs_int(attrs, names[0], c->axis);
  opi_attrs_int(attrs, names[1], c->axis < 0 ? 1 : c->outer);
  opi_attrs_int(attrs, names[2], c->axis < 0 ? 1 : c->inner);
}

/* Attributes of the node that draws for `node` of graph g. */
static opipe_status describe(const opi_graph *g, const opi_node *node, const opi_carry *batch,
                             const opi_carry *tokens, opi_attrs *attrs, opipe_error *err) {
  static const char *const batch_names[3] = {"batch_axis", "batch_outer", "batch_inner"};
  static const char *const token_names[3] = {"token_axis", "token_outer", "token_inner"};
  static const char *const part_names[3] = {"part_axis", "part_whole", "part_runs"};
  const uint32_t given = opi_node_in(node, 1);
  double ratio = 0.5;
  attrs->n = 0;
  if (given != OPIPE_NONE && !opi_known_scalar(&g->values[given], &ratio))
    return opi_fail(err, OPIPE_E_INTERNAL, "node '%s': its ratio is not known", node->name);
  opi_attrs_float(attrs, "ratio", ratio);
  opi_attrs_string(attrs, "key", node->name);
  carry_attrs(attrs, batch_names, batch != NULL ? &batch[node->in[0]] : NULL);
  carry_attrs(attrs, token_names, tokens != NULL ? &tokens[node->in[0]] : NULL);
  for (size_t i = 0; i < OPI_COUNT(part_names); ++i) { /* of a member of a tensor group */
    const opipe_attr *part = opi_attr_find(node, part_names[i]);
    if (part != NULL)
      attrs->list[attrs->n++] = *part;
  }
  return OPIPE_OK;
}

/* Version 2 has parts. */
static uint32_t version_of(const opi_node *node) {
  return opi_attr_find(node, "part_axis") != NULL ? 2 : 1;
}

opipe_status opi_grad_dropout(opi_grad_state *s, const opi_node *node, uint32_t x,
                              const char *const *out_names, uint32_t *out, opipe_error *err) {
  const opi_gradient_options *o = s->options;
  opi_attrs attrs;
  uint32_t in[5] = {x};
  for (uint32_t i = 0; i < 4; ++i)
    OPI_TRY(opi_grad_scalar(s, OPI_SCALAR_SEED + i, &in[1 + i], err));
  OPI_TRY(describe(s->bound->graph, node, o->carry, o->token_carry, &attrs, err));
  const opi_emit emit = {.op = "Dropout",
                         .domain = "opipe",
                         .in = in,
                         .n_in = 5,
                         .n_out = node->n_out,
                         .attrs = attrs.list,
                         .n_attrs = attrs.n,
                         .version = version_of(node),
                         .out_names = out_names};
  return opi_b_emit_kept(&s->builder, &emit, out, err);
}

/* ---- without a backward ---- */

bool opi_node_draws(const opi_node *node) {
  return opi_op_of(node)->kind == OPI_KIND_RANDOM && node->domain[0] == '\0';
}

/* A value of rank 0 that whoever runs the graph gives. */
static opipe_status add_scalar(opi_graph *g, const char *name, uint32_t *out_value,
                               opipe_error *err) {
  *out_value = opi_graph_add_value(g, name, OPIPE_INT64, NULL, 0);
  if (*out_value == OPIPE_NONE)
    return opi_fail_nomem(err, sizeof(opi_value), "a scalar of the run");
  g->values[*out_value].flags = OPI_VALUE_SCALAR;
  g->values[*out_value].n_bytes = sizeof(int64_t);
  return OPIPE_OK;
}

static opipe_status draw(opi_graph *g, uint32_t n, const opi_carry *batch, const opi_carry *tokens,
                         const uint32_t *scalars, opipe_error *err) {
  opi_node *node = &g->nodes[n];
  opi_attrs attrs;
  OPI_TRY(describe(g, node, batch, tokens, &attrs, err));
  const uint32_t in[5] = {node->in[0], scalars[OPI_SCALAR_SEED], scalars[OPI_SCALAR_STEP],
                          scalars[OPI_SCALAR_SAMPLE], scalars[OPI_SCALAR_TOKEN]};
  node->version = version_of(node);
  node->domain = "opipe";
  node->n_in = 5;
  node->in = opi_arena_copy(g->arena, in, sizeof in);
  node->n_attrs = attrs.n;
  node->attrs = opi_arena_copy(g->arena, attrs.list, attrs.n * sizeof *attrs.list);
  return node->in == NULL || node->attrs == NULL ? opi_fail_nomem(err, sizeof in, "a node")
                                                 : OPIPE_OK;
}

opipe_status opi_graph_draws(const opi_graph *graph, const opi_carry *batch,
                             const opi_carry *tokens, opi_arena *arena, const opi_graph **out_graph,
                             uint32_t *out_scalars, opipe_error *err) {
  static const char *const names[] = {"run/seed", "run/step", "run/sample", "run/token"};
  opi_graph *g = OPI_ARENA_NEW(arena, opi_graph);
  if (g == NULL)
    return opi_fail_nomem(err, sizeof *g, "a graph");
  *g = *graph;
  g->arena = arena;
  g->room_values = g->n_values;
  g->room_nodes = g->n_nodes;
  g->values = opi_arena_copy(arena, graph->values, graph->n_values * sizeof *graph->values);
  g->nodes = opi_arena_copy(arena, graph->nodes, graph->n_nodes * sizeof *graph->nodes);
  if (g->values == NULL || g->nodes == NULL)
    return opi_fail_nomem(err, graph->n_values * sizeof *graph->values, "a graph");
  for (uint32_t i = 0; i < OPI_COUNT(names); ++i)
    OPI_TRY(add_scalar(g, names[i], &out_scalars[OPI_SCALAR_SEED + i], err));
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    if (opi_node_draws(&g->nodes[n]))
      OPI_TRY(draw(g, n, batch, tokens, out_scalars, err));
  }
  *out_graph = g;
  return OPIPE_OK;
}
