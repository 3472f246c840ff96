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

/* The axis of the rows that a Reshape of equal shapes flattens, or (*out_back) that it takes apart:
 * of the node that reads or makes them. -1: neither. All dimensions before it are 1. */
static int32_t flat_axis(const opi_graph *g, const opi_node *node, bool *out_back) {
  const opi_value *x = &g->values[node->in[0]], *y = &g->values[node->out[0]];
  opi_collective how;
  *out_back = false;
  if (opi_op_of(node)->takes != OPI_TAKES_FORM || x->rank != y->rank || x->rank < 2 ||
      memcmp(x->shape, y->shape, (size_t)x->rank * sizeof(*x->shape)) != 0)
    return -1;
  if (x->producer != OPIPE_NONE && opi_collective_of(g, &g->nodes[x->producer], &how)) {
    *out_back = how.kind == OPI_COLLECTIVE_GATHER;
    return how.axis;
  }
  for (const opi_node *reader = node + 1; reader < g->nodes + g->n_nodes; ++reader) {
    if (reader->n_in == 0 || reader->in[0] != node->out[0])
      continue;
    if (opi_collective_of(g, reader, &how))
      return how.axis;
    const int64_t *axes = opi_op_of(reader)->takes == OPI_TAKES_PART && reader->n_in > 3
                              ? g->values[reader->in[3]].data
                              : NULL;
    return axes == NULL ? -1 : (int32_t)axes[0];
  }
  return -1;
}

/* With one sample the shapes of flattened values are those of whole ones; the axis moves. */
static opi_carry in_flat(const opi_graph *g, const opi_node *node, const opi_carry *in,
                         int32_t axis, bool back) {
  const opi_value *x = &g->values[node->in[0]];
  const int64_t rows = x->shape[axis];
  opi_carry out = *in;
  if (!back && in->axis >= 0 && in->axis < axis) {
    out.axis = axis;
    out.inner *= rows;
  } else if (back && in->axis == axis && axis > 0 && in->inner == rows) {
    out.axis = 0;
    out.inner = 1;
  }
  return out;
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
  bool back = false;
  const int32_t flat = any ? flat_axis(g, node, &back) : -1;
  if (flat >= 0) {
    made[0] = in_flat(g, node, &in[0], flat, back);
  } else if (keeps_place(node)) {
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
