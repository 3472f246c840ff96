/* SPDX-License-Identifier: Apache-2.0 */
/* Where an axis lies in a member's values. Values of the whole graph have it where they had it, or
 * within their rows; what stands between them (forms of a value, and what follows a sum) is
 * followed by rules, but for nodes that cut or join rows: these leave it in its place.
 */
#include "loader/shard/rows.h"

static const opi_carry none = {-1, 0, 1, 1, 0};

/* An axis in one of the dimensions that are flattened: the ones before and behind it multiply. */
static opi_carry within_rows(const opi_value *x, const opi_carry *carry, int32_t axis) {
  opi_carry in = *carry;
  if (carry->axis < 0 || carry->axis > axis)
    return *carry;
  for (int32_t d = 0; d < carry->axis; ++d)
    in.outer *= x->shape[d];
  for (int32_t d = carry->axis + 1; d <= axis; ++d)
    in.inner *= x->shape[d];
  in.axis = axis;
  return in;
}

/* Carries of the values that the whole graph has; known [member's n_values] marks them. */
static void take_own(const opi_graph *whole, const opi_shard_member *m, const opi_carry *carry,
                     opi_carry *out, bool *known) {
  for (uint32_t v = 0; v < whole->n_values; ++v) {
    if (m->value_of[v] == OPIPE_NONE)
      continue;
    out[m->value_of[v]] = carry[v];
    known[m->value_of[v]] = true;
  }
  for (uint32_t i = 0; i < m->n_rows; ++i) {
    const opi_shard_rows *rows = &m->rows[i];
    out[rows->value] = within_rows(&whole->values[rows->whole], &carry[rows->whole], rows->axis);
  }
}

/* Cuts or joins entries along an axis, or is the same in all members. */
static bool keeps_place(const opi_node *node) {
  return opi_op_of(node)->kind == OPI_KIND_COLLECTIVE || opi_op_of(node)->takes == OPI_TAKES_PART;
}

static opipe_status follow(const opi_graph *g, const opi_node *node, opi_carry *carry,
                           const bool *known, opi_carry *room, opipe_error *err) {
  const opi_op *op = opi_op_of(node);
  opi_carry *in = room, *made = room + node->n_in;
  bool any = false, own = true;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = node->in[i] == OPIPE_NONE ? none : carry[node->in[i]];
    any = any || in[i].axis >= 0;
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    made[o] = none;
    own = own && (node->out[o] == OPIPE_NONE || known[node->out[o]]);
  }
  if (own)
    return OPIPE_OK;
  if (keeps_place(node)) {
    made[0] = in[0];
  } else if (any) {
    if (op->carry == NULL)
      return opi_carry_fail(g, node, err, "the operator has no rule for it");
    OPI_TRY(op->carry(g, node, in, made, err));
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE && !known[node->out[o]])
      carry[node->out[o]] = made[o];
  }
  return OPIPE_OK;
}

opipe_status opi_shard_carry(const opi_graph *whole, const opi_shard_member *member,
                             const opi_carry *carry, opi_carry *out, opipe_error *err) {
  const opi_graph *g = member->bound->graph;
  const opipe_allocator *allocator = g->arena->allocator;
  opi_arena scratch;
  opipe_status status = OPIPE_OK;
  opi_arena_init(&scratch, allocator, 0);
  uint32_t most = 1;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const uint32_t room = g->nodes[n].n_in + g->nodes[n].n_out;
    most = room > most ? room : most;
  }
  bool *known = OPI_ARENA_ARRAY(&scratch, bool, (size_t)g->n_values + 1);
  opi_carry *room = OPI_ARENA_ARRAY(&scratch, opi_carry, most);
  if (known == NULL || room == NULL)
    status = opi_fail_nomem(err, g->n_values + most * sizeof *room, "carries");
  for (uint32_t v = 0; status >= 0 && v < g->n_values; ++v)
    out[v] = none;
  if (status >= 0)
    take_own(whole, member, carry, out, known);
  for (uint32_t n = 0; status >= 0 && n < g->n_nodes; ++n)
    status = follow(g, &g->nodes[n], out, known, room, err);
  opi_arena_release(&scratch);
  return status;
}
