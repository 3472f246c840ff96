/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of domain "opipe": what gradient rules emit beside the standard's own, and what only a
 * training graph has (Accumulate, Dropout by counter). See abi/guide/operators.md, families C.
 */
#include "loader/gradient/rules.h"

/* Output 0 like input `like`. */
static opipe_status infer_like(opi_builder *b, const opi_node *node, uint32_t like,
                               opipe_error *err) {
  OPI_TRY(opi_need(b, node, like, "X", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  const opi_value x = *opi_input(b, node, like);
  return opi_b_set(b, node, 0, x.dtype, x.shape, (uint32_t)x.rank, err);
}

static opipe_status accumulate_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  const opi_value x = *opi_input(b, node, 0);
  return opi_b_set(b, node, 0, OPIPE_FLOAT, x.shape, (uint32_t)x.rank, err);
}

/* dY and X (or Y) of one type and shape. */
static opipe_status pair_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(infer_like(b, node, 1, err));
  const opi_value x = *opi_input(b, node, 1);
  OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
  return opi_need_shape(b, node, 0, x.shape, (uint32_t)x.rank, err);
}

static opipe_status loss_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(opi_need(b, node, 0, "dL", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "scores", OPI_T_FLOAT, 2, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 2, "labels", OPI_T_WIDE, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_may(b, node, 3, "weights", OPI_T_FLOAT, 1, 1, err));
  return infer_like(b, node, 1, err);
}

static opipe_status dropout_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(infer_like(b, node, 0, err));
  for (uint32_t i = 1; i < 5; ++i)
    OPI_TRY(opi_need(b, node, i, "a scalar of the run", OPI_T_WIDE, 0, 0, err));
  const opi_value x = *opi_input(b, node, 0);
  return opi_b_set(b, node, 1, OPIPE_BOOL, x.shape, (uint32_t)x.rank, err);
}

/* The same mask on dY. */
static opipe_status dropout_gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  if (dy == OPIPE_NONE)
    return OPIPE_OK;
  const uint32_t in[5] = {dy, node->in[1], node->in[2], node->in[3], node->in[4]};
  uint32_t dx;
  const opi_emit emit = {.op = "Dropout",
                         .domain = "opipe",
                         .in = in,
                         .n_in = 5,
                         .n_out = 1,
                         .attrs = node->attrs,
                         .n_attrs = node->n_attrs,
                         .version = 1};
  OPI_TRY(opi_b_emit(g->builder, &emit, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

static void transcendental_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, 10.0, out_work);
}

#define OWN(name_, min_in_, max_in_, max_out_, infer_, work_)                                    \
  .name = name_, .domain = "opipe", .first = 1, .last = 1, .min_in = min_in_, .max_in = max_in_, \
  .min_out = 1, .max_out = max_out_, .infer = infer_, .work = work_

static const opi_op ops[] = {
    {OWN("Accumulate", 1, 1, 1, accumulate_infer, NULL)},
    {OWN("ActivationGrad", 2, 2, 1, pair_infer, transcendental_work)},
    {OWN("SoftmaxCrossEntropyLossGrad", 3, 4, 1, loss_infer, transcendental_work)},
    {OWN("Dropout", 5, 5, 2, dropout_infer, transcendental_work), .gradient = dropout_gradient,
     .stops_gradient = 0x1e},
};

extern const opi_op_family opi_ops_train;
const opi_op_family opi_ops_train = {ops, OPI_COUNT(ops)};
