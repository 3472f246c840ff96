/* SPDX-License-Identifier: Apache-2.0 */
/* Follows one axis (batch, token, feature) from the inputs through every node.
 *
 * Nodes that read nothing carrying it carry nothing; the others answer by their operator's rule.
 * What has no rule, or whose rule says that splitting does not commute, is refused by name.
 */
#include <string.h>

#include "loader/ops/common.h"
#include "loader/passes/passes.h"

typedef struct follower {
  const opi_graph *graph;
  opi_carry *carry;    /* [n_values] */
  opi_carry *in, *out; /* room for any node */
  int64_t length;      /* of the axis; 0: no input carries it */
  opi_arena *scratch;
  opi_carry *derived; /* [n_values] what a value that carries nothing may be taken to carry; made
                         when needed */
  uint8_t *tried;     /* [n_values] */
  bool *mixed;        /* [n_values] not NULL: what is refused is marked, with all that reads it */
  bool failed;        /* out of memory */
} follower;

static opipe_status apply_rule(const follower *f, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err) {
  const opi_op *op = opi_op_find(node->domain, node->op);
  for (uint32_t o = 0; o < node->n_out; ++o)
    out[o] = OPI_CARRY_NONE;
  if (op == NULL || op->carry == NULL) {
    return opi_carry_fail(f->graph, node, err, "the operator has no rule for it");
  }
  return op->carry(f->graph, node, in, out, err);
}

/* The first dimension along which all parts of a value are equal: the axis alone, or the axis
 * before, then behind other factors (heads). */
static opi_carry uniform_dimension(const follower *f, uint32_t v) {
  const opi_value *value = &f->graph->values[v];
  for (uint32_t form = 0; form < 3; ++form) {
    for (int32_t d = 0; d < value->rank; ++d) {
      const int64_t rest = f->length == 0 ? 0 : value->shape[d] / f->length;
      const opi_carry carry = {d, 0, form == 2 ? rest : 1, form == 1 ? rest : 1};
      if (rest < 1 || value->shape[d] % f->length != 0 || (rest == 1) != (form == 0))
        continue;
      if (opi_is_uniform(f->graph, v, (uint32_t)d, carry.outer, f->length, carry.inner)) {
        return carry;
      }
    }
  }
  return OPI_CARRY_NONE;
}

enum { MOST_STEPS_BACK = 64 };

/* What does not depend on the split, but was expanded to the axis' length (latents, a class token),
 * may be taken to carry it: each part is made from the same. Followed back to where it was
 * expanded. */
static opi_carry derive(follower *f, uint32_t v, uint32_t depth) {
  if (v == OPIPE_NONE || depth == 0)
    return OPI_CARRY_NONE;
  if (f->tried[v])
    return f->derived[v];
  f->tried[v] = 1;
  f->derived[v] = uniform_dimension(f, v);
  const uint32_t producer = f->graph->values[v].producer;
  if (opi_carries(&f->derived[v]) || producer == OPIPE_NONE)
    return f->derived[v];
  const opi_node *node = &f->graph->nodes[producer];
  opi_carry *in = OPI_ARENA_ARRAY(f->scratch, opi_carry, (size_t)node->n_in + node->n_out);
  if (in == NULL) {
    f->failed = true;
    return OPI_CARRY_NONE;
  }
  opi_carry *out = in + node->n_in;
  bool any = false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = derive(f, node->in[i], depth - 1);
    any = any || opi_carries(&in[i]);
  }
  if (!any || apply_rule(f, node, in, out, NULL) < 0)
    return OPI_CARRY_NONE;
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == v)
      f->derived[v] = out[o];
  }
  return f->derived[v];
}

/* The rule refused: tries again with one input that carries nothing taken to carry what it may. */
static bool retry(follower *f, const opi_node *node) {
  const size_t n = f->graph->n_values;
  if (f->derived == NULL) {
    f->derived = OPI_ARENA_ARRAY(f->scratch, opi_carry, n);
    f->tried = OPI_ARENA_ARRAY(f->scratch, uint8_t, n);
    if (f->derived == NULL || f->tried == NULL) {
      f->failed = true;
      return false;
    }
    for (size_t v = 0; v < n; ++v)
      f->derived[v] = OPI_CARRY_NONE;
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE || opi_carries(&f->in[i]))
      continue;
    f->in[i] = derive(f, node->in[i], MOST_STEPS_BACK);
    if (opi_carries(&f->in[i]) && apply_rule(f, node, f->in, f->out, NULL) >= 0)
      return true;
    f->in[i] = OPI_CARRY_NONE;
  }
  return false;
}

static bool reads_mixed(const follower *f, const opi_node *node) {
  for (uint32_t i = 0; f->mixed != NULL && i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE && f->mixed[node->in[i]])
      return true;
  }
  return false;
}

static void mark_mixed(const follower *f, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      f->mixed[node->out[o]] = true;
  }
}

static opipe_status follow_node(follower *f, const opi_node *node, opipe_error *err) {
  bool carried = false;
  if (reads_mixed(f, node)) {
    mark_mixed(f, node);
    return OPIPE_OK;
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    f->in[i] = node->in[i] == OPIPE_NONE ? OPI_CARRY_NONE : f->carry[node->in[i]];
    carried = carried || opi_carries(&f->in[i]);
  }
  for (uint32_t o = 0; o < node->n_out; ++o)
    f->out[o] = OPI_CARRY_NONE;
  if (carried) {
    const opipe_status status = apply_rule(f, node, f->in, f->out, err);
    const bool passed = status >= 0 || (status == OPIPE_E_UNSUPPORTED && retry(f, node));
    if (f->failed)
      return opi_fail_nomem(err, f->graph->n_values * sizeof(opi_carry), "carries");
    if (!passed && status == OPIPE_E_UNSUPPORTED && f->mixed != NULL) {
      mark_mixed(f, node);
      return OPIPE_OK;
    }
    if (!passed)
      return status;
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      f->carry[node->out[o]] = f->out[o];
  }
  return OPIPE_OK;
}

static uint32_t widest(const opi_graph *graph) {
  uint32_t most = 1;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    if (graph->nodes[n].n_in > most)
      most = graph->nodes[n].n_in;
    if (graph->nodes[n].n_out > most)
      most = graph->nodes[n].n_out;
  }
  return most;
}

/* Every input holds the axis whole and with the same length. */
static opipe_status check_inputs(const opi_graph *graph, const opi_carry *in, int64_t *out_length,
                                 opipe_error *err) {
  int64_t length = -1;
  const char *first = "";
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const opi_value *value = &graph->values[graph->inputs[i]];
    if (!opi_carries(&in[i]))
      continue;
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
    if (length < 0)
      first = value->name;
    length = own;
  }
  *out_length = length < 0 ? 0 : length;
  return OPIPE_OK;
}

static opipe_status follow_all(const opi_graph *graph, const opi_carry *in_carry,
                               opi_carry *out_carry, bool *mixed, opipe_error *err) {
  opi_arena scratch;
  int64_t length = 0;
  OPI_TRY(check_inputs(graph, in_carry, &length, err));
  opi_arena_init(&scratch, graph->arena->allocator, 0);
  const uint32_t room = widest(graph);
  follower f = {.graph = graph,
                .carry = out_carry,
                .length = length,
                .mixed = mixed,
                .scratch = &scratch,
                .in = OPI_ARENA_ARRAY(&scratch, opi_carry, room),
                .out = OPI_ARENA_ARRAY(&scratch, opi_carry, room)};
  opipe_status status = OPIPE_OK;
  if (f.in == NULL || f.out == NULL) {
    status = opi_fail_nomem(err, room * 2 * sizeof(opi_carry), "carries");
  }
  for (uint32_t v = 0; v < graph->n_values && status >= 0; ++v)
    out_carry[v] = OPI_CARRY_NONE;
  for (uint32_t i = 0; i < graph->n_inputs && status >= 0; ++i) {
    out_carry[graph->inputs[i]] = in_carry[i];
  }
  for (uint32_t n = 0; n < graph->n_nodes && status >= 0; ++n) {
    status = follow_node(&f, &graph->nodes[n], err);
  }
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_carry_axis(const opi_graph *graph, const opi_carry *in_carry, opi_carry *out_carry,
                            opipe_error *err) {
  return follow_all(graph, in_carry, out_carry, NULL, err);
}

opipe_status opi_carry_follow(const opi_graph *graph, const opi_carry *in_carry,
                              opi_carry *out_carry, bool *out_mixed, opipe_error *err) {
  memset(out_mixed, 0, graph->n_values * sizeof *out_mixed);
  return follow_all(graph, in_carry, out_carry, out_mixed, err);
}
