/* SPDX-License-Identifier: Apache-2.0 */
/* Follows one axis (batch, token, feature) from the inputs through every node.
 *
 * Nodes that read nothing carrying it carry nothing; the others answer by their operator's rule. What
 * has no rule, or whose rule says that splitting does not commute, is refused by name.
 */
#include "loader/ops/common.h"
#include "loader/passes/passes.h"

typedef struct follower {
  const opi_graph *graph;
  opi_carry *carry; /* [n_values] */
  opi_carry *in, *out; /* room for any node */
} follower;

static opipe_status follow_node(follower *f, const opi_node *node, opipe_error *err) {
  bool carried = false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    f->in[i] = node->in[i] == OPIPE_NONE ? OPI_CARRY_NONE : f->carry[node->in[i]];
    carried = carried || opi_carries(&f->in[i]);
  }
  for (uint32_t o = 0; o < node->n_out; ++o) f->out[o] = OPI_CARRY_NONE;
  if (carried) {
    const opi_op *op = opi_op_find(node->domain, node->op);
    if (op == NULL || op->carry == NULL) {
      return opi_carry_fail(f->graph, node, err, "the operator has no rule for it");
    }
    OPI_TRY(op->carry(f->graph, node, f->in, f->out, err));
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE) f->carry[node->out[o]] = f->out[o];
  }
  return OPIPE_OK;
}

static uint32_t widest(const opi_graph *graph) {
  uint32_t most = 1;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    if (graph->nodes[n].n_in > most) most = graph->nodes[n].n_in;
    if (graph->nodes[n].n_out > most) most = graph->nodes[n].n_out;
  }
  return most;
}

/* Every input holds the axis whole and with the same length. */
static opipe_status check_inputs(const opi_graph *graph, const opi_carry *in, opipe_error *err) {
  int64_t length = -1;
  const char *first = "";
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const opi_value *value = &graph->values[graph->inputs[i]];
    if (!opi_carries(&in[i])) continue;
    if (in[i].axis >= value->rank || in[i].outer < 1 || in[i].inner < 1 ||
        value->shape[in[i].axis] % (in[i].outer * in[i].inner) != 0) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "input '%s' of rank %" PRId32 " cannot hold the axis in dimension %" PRId32,
                      value->name, value->rank, in[i].axis);
    }
    const int64_t own = opi_carry_length(value, &in[i]);
    if (length >= 0 && own != length) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "the axis has length %" PRId64 " in input '%s' and %" PRId64 " in '%s'",
                      length, first, own, value->name);
    }
    if (length < 0) first = value->name;
    length = own;
  }
  return OPIPE_OK;
}

opipe_status opi_carry_axis(const opi_graph *graph, const opi_carry *in_carry,
                            opi_carry *out_carry, opipe_error *err) {
  opi_arena scratch;
  OPI_TRY(check_inputs(graph, in_carry, err));
  opi_arena_init(&scratch, graph->arena->allocator, 0);
  const uint32_t room = widest(graph);
  follower f = {graph, out_carry, OPI_ARENA_ARRAY(&scratch, opi_carry, room),
                OPI_ARENA_ARRAY(&scratch, opi_carry, room)};
  opipe_status status = OPIPE_OK;
  if (f.in == NULL || f.out == NULL) {
    status = opi_fail_nomem(err, room * 2 * sizeof(opi_carry), "carries");
  }
  for (uint32_t v = 0; v < graph->n_values && status >= 0; ++v) out_carry[v] = OPI_CARRY_NONE;
  for (uint32_t i = 0; i < graph->n_inputs && status >= 0; ++i) {
    out_carry[graph->inputs[i]] = in_carry[i];
  }
  for (uint32_t n = 0; n < graph->n_nodes && status >= 0; ++n) {
    status = follow_node(&f, &graph->nodes[n], err);
  }
  opi_arena_release(&scratch);
  return status;
}
