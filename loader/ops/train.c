/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of domain "opipe": what gradient rules emit beside the standard's own, and what only a
 * training graph has (Accumulate, Dropout by counter). See abi/guide/operators.md, families C.
 *
 * They have no file form: inputs and attributes come from gradient rules, the checks
 * catch rules that are wrong. X, Y, dX, dY are named as in the forward operator. Operators that
 * need a family's own shapes (AttentionGrad, ConvGrad*, *PoolGrad) are checked in its file.
 */
#include "loader/ops/attention.h"
#include "loader/ops/common.h"
#include "loader/ops/conv.h"
#include "loader/ops/group.h"
#include "loader/ops/rules.h"

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

/* dY and X (or Y) of one shape, dX of X's type. */
static opipe_status shapes_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(infer_like(b, node, 1, err));
  OPI_TRY(opi_need(b, node, 0, "dY", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  const opi_value x = *opi_input(b, node, 1);
  return opi_need_shape(b, node, 0, x.shape, (uint32_t)x.rank, err);
}

/* The same, and of one type. */
static opipe_status pair_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(shapes_infer(b, node, err));
  return opi_need_same_type(b, node, 0, 1, err);
}

static opipe_status softmax_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t axis;
  OPI_TRY(pair_infer(b, node, err));
  return opi_need_axis(b, node, -1, &axis, err);
}

static void softmax_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, 4.0, out_work);
}

/* dY and X (or Y) carry it in one place, not along the normalised axis. */
static opipe_status line_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err) {
  OPI_TRY(opi_carry_broadcast(graph, node, in, out, err));
  if (out[0].axis >= 0 && out[0].axis == opi_attr_int(node, "axis", 0))
    return opi_carry_refuse(graph, node, 1, "it is summed over", err);
  return OPIPE_OK;
}

/* -- norms ------------------------------------------------------------------------------------- */

/* Elements that are normalised together. */
static opipe_status norm_extent(opi_builder *b, const opi_node *node, uint32_t *out_axis,
                                opipe_error *err) {
  OPI_TRY(shapes_infer(b, node, err));
  return opi_need_axis(b, node, -1, out_axis, err);
}

static opipe_status norm_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t axis;
  double n = 1;
  OPI_TRY(norm_extent(b, node, &axis, err));
  OPI_TRY(opi_need(b, node, 2, "Scale", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  const opi_value *x = opi_input(b, node, 1), *scale = opi_input(b, node, 2);
  for (uint32_t a = axis; a < (uint32_t)x->rank; ++a)
    n *= (double)x->shape[a];
  if (opi_k_elems(scale) != n) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (Scale) has %.0f elements, %.0f are normalised", scale->name,
                         opi_k_elems(scale), n);
  }
  return OPIPE_OK;
}

/* Sums over rows: fp32 whatever the activations are (fp64 for fp64). */
static opipe_status norm_scale_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t axis;
  OPI_TRY(norm_extent(b, node, &axis, err));
  const opi_value x = *opi_input(b, node, 1);
  const bool wide = x.dtype == OPIPE_DOUBLE || opi_input(b, node, 0)->dtype == OPIPE_DOUBLE;
  for (uint32_t o = 0; o < 2; ++o) {
    OPI_TRY(opi_b_set(b, node, o, wide ? OPIPE_DOUBLE : OPIPE_FLOAT, x.shape + axis,
                      (uint32_t)x.rank - axis, err));
  }
  return OPIPE_OK;
}

static void norm_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  out_work->flops = 14.0 * opi_k_elems_of(graph, node->in[1]);
  out_work->bytes = opi_work_bytes(graph, node);
}

static opipe_status norm_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err) {
  if (in[2].axis >= 0)
    return opi_carry_refuse(graph, node, 2, "the scale holds it", err);
  out[0] = in[1];
  if (in[0].axis != in[1].axis ||
      (in[0].axis >= 0 && (in[0].outer != in[1].outer || in[0].inner != in[1].inner)))
    return opi_carry_refuse(graph, node, 0, "dY and X carry it at different places", err);
  if (out[0].axis >= (int32_t)opi_attr_int(node, "axis", 0))
    return opi_carry_refuse(graph, node, 1, "it is normalised over", err);
  return OPIPE_OK;
}

/* -- loss -------------------------------------------------------------------------------------- */

static opipe_status loss_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  const bool each = strcmp(opi_attr_string(node, "reduction", "sum"), "none") == 0;
  int64_t labels[OPIPE_MAX_RANK];
  OPI_TRY(opi_need(b, node, 0, "dL", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "scores", OPI_T_FLOAT, 2, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 2, "labels", OPI_T_WIDE, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_may(b, node, 3, "weights", OPI_T_FLOAT, 1, 1, err));
  const opi_value *x = opi_input(b, node, 1);
  const uint32_t rank = (uint32_t)x->rank - 1;
  for (uint32_t a = 0; a < rank; ++a)
    labels[a] = x->shape[a == 0 ? 0 : a + 1];
  OPI_TRY(opi_need_shape(b, node, 2, labels, rank, err));
  OPI_TRY(opi_need_shape(b, node, 0, labels, each ? rank : 0, err));
  OPI_TRY(opi_need_dim(b, node, 3, 0, x->shape[1], "the classes of the scores", err));
  return infer_like(b, node, 1, err);
}

static void transcendental_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, 10.0, out_work);
}

/* -- Dropout ----------------------------------------------------------------------------------- */

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
                         .version = node->version};
  OPI_TRY(opi_b_emit(g->builder, &emit, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

/* -- GatherGrad -------------------------------------------------------------------------------- */

static opipe_status gather_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t want[2 * OPIPE_MAX_RANK];
  uint32_t n = 0, rank = 0, axis = 0;
  const int64_t *shape = opi_attr_ints(node, "shape", &n);
  OPI_TRY(opi_need(b, node, 0, "dY", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "indices", OPI_T_WIDE, 0, OPIPE_MAX_RANK, err));
  const opi_value *at = opi_input(b, node, 1);
  if (shape == NULL || n > OPIPE_MAX_RANK || !opi_axis(opi_attr_int(node, "axis", 0), n, &axis))
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attributes shape and axis do not fit");
  for (uint32_t d = 0; d < axis; ++d)
    want[rank++] = shape[d];
  for (int32_t d = 0; d < at->rank; ++d)
    want[rank++] = at->shape[d];
  for (uint32_t d = axis + 1; d < n; ++d)
    want[rank++] = shape[d];
  OPI_TRY(opi_need_shape(b, node, 0, want, rank, err));
  if (opi_attr_find(node, "whole") != NULL) { /* version 2: a part of the rows */
    opi_part_range range;
    OPI_TRY(opi_part_range_of(b, node, shape[axis], &range, err));
  }
  return opi_b_set(b, node, 0, opi_input(b, node, 0)->dtype, shape, n, err);
}

static void gather_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  out_work->flops = opi_k_elems_of(graph, node->in[0]);
  out_work->bytes = opi_work_bytes(graph, node);
}

#define OWN(name_, min_in_, max_in_, max_out_, infer_, work_, carry_, kind_) \
  OPI_OP(name_, "opipe", 1, 1, min_in_, max_in_, 1, max_out_),               \
      .infer = infer_, .work = work_, .carry = carry_,                       \
      OPI_COLUMNS(NONE, COMMON, OTHER, ANY, NONE, kind_, NEVER)

static const opi_op ops[] = {
    {OWN("Accumulate", 1, 1, 1, accumulate_infer, NULL, NULL, ACCUMULATE)},
    {OWN("ActivationGrad", 2, 2, 1, pair_infer, transcendental_work, opi_carry_broadcast, PLAIN)},
    {OWN("SoftmaxGrad", 2, 2, 1, softmax_infer, softmax_work, line_carry, PLAIN)},
    {OWN("LogSoftmaxGrad", 2, 2, 1, softmax_infer, transcendental_work, line_carry, PLAIN)},
    {OWN("LayerNormalizationGrad", 3, 3, 1, norm_infer, norm_work, norm_carry, PLAIN)},
    {OWN("RMSNormalizationGrad", 3, 3, 1, norm_infer, norm_work, norm_carry, PLAIN)},
    {OWN("LayerNormalizationGradScale", 2, 2, 2, norm_scale_infer, norm_work, NULL, PLAIN)},
    {OWN("RMSNormalizationGradScale", 2, 2, 1, norm_scale_infer, norm_work, NULL, PLAIN)},
    {OWN("AttentionGrad", 4, 10, 6, opi_attention_grad_infer, opi_attention_grad_work, NULL,
         PLAIN)},
    {OWN("SoftmaxCrossEntropyLossGrad", 3, 4, 1, loss_infer, transcendental_work, NULL, PLAIN)},
    {OPI_OP("GatherGrad", "opipe", 1, 2, 2, 2, 1, 1), .infer = gather_infer, .work = gather_work,
     OPI_COLUMNS(NONE, COMMON, OTHER, ANY, NONE, PLAIN, NEVER)},
    {OWN("ConvGradX", 2, 2, 1, opi_conv_grad_infer, opi_conv_grad_work, NULL, PLAIN)},
    {OWN("ConvGradW", 2, 2, 1, opi_conv_grad_infer, opi_conv_grad_work, NULL, PLAIN)},
    {OWN("MaxPoolGrad", 2, 2, 1, opi_pool_grad_infer, opi_conv_grad_work, NULL, PLAIN)},
    {OWN("AveragePoolGrad", 1, 1, 1, opi_pool_grad_infer, opi_conv_grad_work, NULL, PLAIN)},
    {OPI_OP("Dropout", "opipe", 1, 2, 5, 5, 1, 2), .infer = dropout_infer,
     .work = transcendental_work, .carry = opi_carry_first,
     OPI_COLUMNS(NONE, COMMON, OTHER, ANY, NONE, RANDOM, NEVER), .gradient = dropout_gradient,
     .stops_gradient = 0x1e},
};

extern const opi_op_family opi_ops_train;
const opi_op_family opi_ops_train = {ops, OPI_COUNT(ops)};
