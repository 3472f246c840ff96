/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax, LogSoftmax, Hardmax.
 *
 * Canonical: opset 13, along one axis. Older forms flatten to two dimensions at `axis` (default 1):
 * the same thing when that is the last axis or all later ones are 1, else Reshape, the operator,
 * Reshape.
 */
#include "loader/ops/rules.h"

static opipe_status lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  int64_t flat[2] = {1, 1};
  uint32_t axis, y;
  OPI_TRY(opi_need(b, node, 0, "input", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  const opi_value x = *opi_input(b, node, 0);
  const uint32_t rank = (uint32_t)x.rank;
  if (rank == 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input '%s' is a scalar, it has no axis",
                         x.name);
  }
  if (node->version >= 13) {
    OPI_TRY(opi_need_axis(b, node, -1, &axis, err));
    opi_attrs_int(&attrs, "axis", axis);
    return opi_k_lift(b, node, node->op, NULL, 13, &attrs, err);
  }
  const int64_t given = opi_attr_int(node, "axis", 1);
  if (given == (int64_t)rank) /* everything in one row of nothing: [n, 1] */
    axis = rank;
  else
    OPI_TRY(opi_need_axis(b, node, 1, &axis, err));
  for (uint32_t a = 0; a < rank; ++a)
    flat[a < axis ? 0 : 1] *= x.shape[a];
  if (axis == rank - 1) {
    opi_attrs_int(&attrs, "axis", axis);
    return opi_k_lift(b, node, node->op, NULL, 13, &attrs, err);
  }
  opi_attrs_int(&attrs, "axis", 1);
  OPI_TRY(opi_k_reshape(b, node->in[0], flat, 2, &y, err));
  OPI_TRY(opi_k_one(b, node->op, 13, &y, 1, &attrs, &y, err));
  OPI_TRY(opi_k_reshape(b, y, x.shape, rank, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static opipe_status infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t axis;
  OPI_TRY(opi_need(b, node, 0, "input", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_axis(b, node, -1, &axis, err));
  return opi_infer_float(b, node, err);
}

static void work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, 5.0, out_work);
}

static opipe_status carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                          opi_carry *out, opipe_error *err) {
  return opi_carry_not(graph, node, (uint32_t)opi_attr_int(node, "axis", 0), true, in, out, err);
}

/* dX from dY and Y; one rule for both, since the operator's name tells. */
static opipe_status gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  const bool plain = strcmp(node->op, "Softmax") == 0;
  const uint32_t in[2] = {opi_grad_of(g, node, 0), node->out[0]};
  opi_attrs attrs = {.n = 0};
  uint32_t dx;
  opi_attrs_int(&attrs, "axis", opi_attr_int(node, "axis", -1));
  OPI_TRY(opi_grad_own(g, plain ? "SoftmaxGrad" : "LogSoftmaxGrad", in, 2, &attrs, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

#define SOFTMAX(name_, gradient_, stops_, half_, range_, kind_, attrs_)                       \
  {                                                                                           \
    OPI_OP(name_, "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1), attrs_,                                \
        .lift = lift, .infer = infer, .work = work, .carry = carry, .gradient = gradient_,    \
        .stops_gradient = stops_, OPI_COLUMNS(NONE, half_, OTHER, range_, NONE, kind_, NEVER) \
  }

static const opi_op ops[] = {
    SOFTMAX("Softmax", gradient, 0, COMMON, WEIGHTS, SOFTMAX, OPI_ATTRS(13, OPI_A(INT, "axis"))),
    SOFTMAX("LogSoftmax", gradient, 0, WIDE, ANY, LOG_SOFTMAX, OPI_ATTRS(13, OPI_A(INT, "axis"))),
    SOFTMAX("Hardmax", NULL, UINT64_MAX, COMMON, ANY, PLAIN, OPI_ATTRS(13, OPI_A(INT, "axis"))),
};

const opi_op_family opi_ops_softmax = {ops, OPI_COUNT(ops)};
