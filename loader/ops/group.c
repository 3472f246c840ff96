/* SPDX-License-Identifier: Apache-2.0 */
/* Collective operations as nodes: see group.h. Their gradients are one another, so that a graph
 * that was divided before its gradient is built needs no other rule.
 */
#include "loader/ops/group.h"

#include "loader/ops/common.h"
#include "loader/ops/rules.h"

#include <inttypes.h>

/* -- descriptions ------------------------------------------------------------------------------ */

static const char *const names[] = {"GroupSpread", "GroupSum", "GroupGather", "GroupScatter"};

bool opi_collective_of(const opi_graph *graph, const opi_node *node, opi_collective *out) {
  uint32_t kind = 0;
  if (opi_op_of(node)->kind != OPI_KIND_COLLECTIVE)
    return false;
  while (kind + 1 < OPI_COUNT(names) && strcmp(names[kind], node->op) != 0)
    ++kind;
  *out = (opi_collective){.kind = kind, .axis = -1, .dtype = graph->values[node->in[0]].dtype};
  if (kind < OPI_COLLECTIVE_GATHER)
    return true;
  out->parts = opi_attr_ints(node, "parts", &out->n_parts);
  out->axis = (int32_t)opi_attr_int(node, "axis", 0);
  out->member = (uint32_t)opi_attr_int(node, "member", 0);
  return true;
}

/* -- shapes ------------------------------------------------------------------------------------ */

static opipe_status same_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  return opi_infer_same(b, node, err);
}

/* axis, parts and member; *out_sum: entries of all members. */
static opipe_status need_parts(opi_builder *b, const opi_node *node, uint32_t *out_axis,
                               int64_t *out_own, int64_t *out_sum, opipe_error *err) {
  uint32_t n = 0;
  const int64_t *parts = opi_attr_ints(node, "parts", &n);
  int64_t member = 0;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT | OPI_T_WIDE, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_axis(b, node, 0, out_axis, err));
  if (parts == NULL || n == 0)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute parts is missing");
  OPI_TRY(opi_need_int(b, node, "member", 0, (int64_t)n - 1, &member, err));
  *out_sum = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (parts[i] < 0 || __builtin_add_overflow(*out_sum, parts[i], out_sum)) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "part %" PRIu32 " has %" PRId64 " entries", i, parts[i]);
    }
  }
  *out_own = parts[member];
  return OPIPE_OK;
}

static opipe_status resized(opi_builder *b, const opi_node *node, uint32_t axis, int64_t extent,
                            opipe_error *err) {
  const opi_value x = *opi_input(b, node, 0);
  int64_t shape[OPIPE_MAX_RANK];
  memcpy(shape, x.shape, (size_t)x.rank * sizeof(*shape));
  shape[axis] = extent;
  return opi_b_set(b, node, 0, x.dtype, shape, (uint32_t)x.rank, err);
}

static opipe_status gather_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t axis = 0;
  int64_t own = 0, sum = 0;
  OPI_TRY(need_parts(b, node, &axis, &own, &sum, err));
  OPI_TRY(opi_need_dim(b, node, 0, axis, own, "the member's own part", err));
  return resized(b, node, axis, sum, err);
}

static opipe_status scatter_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t axis = 0;
  int64_t own = 0, sum = 0;
  OPI_TRY(need_parts(b, node, &axis, &own, &sum, err));
  OPI_TRY(opi_need_dim(b, node, 0, axis, sum, "the parts of all members", err));
  return resized(b, node, axis, own, err);
}

/* -- emission ---------------------------------------------------------------------------------- */

static opipe_status emit(opi_builder *b, uint32_t kind, uint32_t x, const opi_attrs *attrs,
                         uint32_t *out, opipe_error *err) {
  const opi_emit node = {.op = names[kind],
                         .domain = "opipe",
                         .in = &x,
                         .n_in = 1,
                         .n_out = 1,
                         .attrs = attrs == NULL ? NULL : attrs->list,
                         .n_attrs = attrs == NULL ? 0 : attrs->n,
                         .version = 1};
  return opi_b_emit_kept(b, &node, out, err);
}

opipe_status opi_group_spread(opi_builder *b, uint32_t x, uint32_t *out, opipe_error *err) {
  return emit(b, OPI_COLLECTIVE_SPREAD, x, NULL, out, err);
}

opipe_status opi_group_sum(opi_builder *b, uint32_t x, uint32_t *out, opipe_error *err) {
  return emit(b, OPI_COLLECTIVE_SUM, x, NULL, out, err);
}

static void parts_attrs(opi_attrs *attrs, int64_t axis, const int64_t *parts, uint32_t n_parts,
                        int64_t member) {
  attrs->n = 0;
  opi_attrs_int(attrs, "axis", axis);
  opi_attrs_ints(attrs, "parts", parts, n_parts);
  opi_attrs_int(attrs, "member", member);
}

opipe_status opi_group_gather(opi_builder *b, uint32_t x, uint32_t axis, const int64_t *parts,
                              uint32_t n_parts, uint32_t member, bool sum, uint32_t *out,
                              opipe_error *err) {
  opi_attrs attrs;
  parts_attrs(&attrs, axis, parts, n_parts, member);
  opi_attrs_int(&attrs, "sum", sum ? 1 : 0);
  return emit(b, OPI_COLLECTIVE_GATHER, x, &attrs, out, err);
}

opipe_status opi_group_scatter(opi_builder *b, uint32_t x, uint32_t axis, const int64_t *parts,
                               uint32_t n_parts, uint32_t member, uint32_t *out, opipe_error *err) {
  opi_attrs attrs;
  parts_attrs(&attrs, axis, parts, n_parts, member);
  return emit(b, OPI_COLLECTIVE_SCATTER, x, &attrs, out, err);
}

static const char part_name[] = "GroupPart";

opipe_status opi_group_part(opi_builder *b, uint32_t x, const opi_collective *how, const char *name,
                            uint32_t *out, opipe_error *err) {
  const int64_t axis = how->axis, step = 1;
  int64_t first = 0;
  opi_attrs attrs;
  for (uint32_t i = 0; i < how->member; ++i)
    first += how->parts[i];
  const int64_t end = first + how->parts[how->member];
  const uint32_t in[5] = {x, opi_b_const_ints(b, &first, 1), opi_b_const_ints(b, &end, 1),
                          opi_b_const_ints(b, &axis, 1), opi_b_const_ints(b, &step, 1)};
  for (uint32_t i = 1; i < OPI_COUNT(in); ++i)
    OPI_TRY(opi_k_const(in[i], err));
  parts_attrs(&attrs, axis, how->parts, how->n_parts, how->member);
  const opi_emit node = {.op = part_name,
                         .domain = "opipe",
                         .in = in,
                         .n_in = OPI_COUNT(in),
                         .n_out = 1,
                         .attrs = attrs.list,
                         .n_attrs = attrs.n,
                         .version = 1,
                         .out_names = &name};
  return opi_b_emit_kept(b, &node, out, err);
}

void opi_group_parts_to_slices(opi_graph *graph) {
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    opi_node *node = &graph->nodes[n];
    if (strcmp(node->op, part_name) != 0 || strcmp(node->domain, "opipe") != 0)
      continue;
    node->op = "Slice";
    node->domain = "";
    node->version = OPI_NEWEST_ONNX;
    node->n_attrs = 0;
  }
}

/* -- gradients --------------------------------------------------------------------------------- */

static opipe_status sum_gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  return dy == OPIPE_NONE ? OPIPE_OK : opi_grad_give(g, node, 0, dy, err);
}

static opipe_status spread_gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  uint32_t dx = opi_grad_of(g, node, 0);
  if (dx == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_group_sum(g->builder, dx, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

static opipe_status gather_gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  opi_collective how;
  uint32_t dx = dy;
  int64_t first = 0;
  if (dy == OPIPE_NONE || !opi_collective_of(g->builder->graph, node, &how))
    return OPIPE_OK;
  if (opi_attr_int(node, "sum", 0) != 0) {
    OPI_TRY(opi_group_scatter(g->builder, dy, (uint32_t)how.axis, how.parts, how.n_parts,
                              how.member, &dx, err));
  } else {
    for (uint32_t i = 0; i < how.member; ++i)
      first += how.parts[i];
    OPI_TRY(opi_k_slice(g->builder, dy, how.axis, first, first + how.parts[how.member], &dx, err));
  }
  return opi_grad_give(g, node, 0, dx, err);
}

static opipe_status scatter_gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  uint32_t dx = opi_grad_of(g, node, 0);
  opi_collective how;
  if (dx == OPIPE_NONE || !opi_collective_of(g->builder->graph, node, &how))
    return OPIPE_OK;
  OPI_TRY(opi_group_gather(g->builder, dx, (uint32_t)how.axis, how.parts, how.n_parts, how.member,
                           true, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

static opipe_status part_gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  uint32_t dx = opi_grad_of(g, node, 0), n_parts = 0;
  const int64_t *parts = opi_attr_ints(node, "parts", &n_parts);
  if (dx == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_group_gather(g->builder, dx, (uint32_t)opi_attr_int(node, "axis", 0), parts, n_parts,
                           (uint32_t)opi_attr_int(node, "member", 0), false, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

#define GROUP(name_, infer_, carry_, gradient_)                                         \
  {                                                                                     \
    OPI_OP(name_, "opipe", 1, 1, 1, 1, 1, 1),                                           \
        .infer = infer_, .work = opi_work_move, .carry = carry_, .gradient = gradient_, \
        OPI_COLUMNS(NONE, COMMON, OTHER, ANY, NONE, COLLECTIVE, NEVER)                  \
  }

/* Parts along one axis: the others may be split. */
static opipe_status parts_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                opi_carry *out, opipe_error *err) {
  return opi_carry_not(graph, node, (uint32_t)opi_attr_int(node, "axis", 0), true, in, out, err);
}

static const opi_op ops[] = {
    GROUP("GroupSpread", same_infer, opi_carry_first, spread_gradient),
    GROUP("GroupSum", same_infer, opi_carry_first, sum_gradient),
    GROUP("GroupGather", gather_infer, parts_carry, gather_gradient),
    GROUP("GroupScatter", scatter_infer, parts_carry, scatter_gradient),
    {OPI_OP("GroupPart", "opipe", 1, 1, 5, 5, 1, 1), .infer = scatter_infer, .work = opi_work_move,
     .carry = parts_carry, .gradient = part_gradient, .stops_gradient = 0x1e,
     OPI_COLUMNS(PART, COMMON, OTHER, RISING, NONE, PLAIN, NEVER)},
};

extern const opi_op_family opi_ops_group;
const opi_op_family opi_ops_group = {ops, OPI_COUNT(ops)};
