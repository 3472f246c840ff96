/* SPDX-License-Identifier: Apache-2.0 */
/* Losses and dropout: SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss, Dropout.
 *
 * Canonical: the standard's forms with `reduction` written out; ignore_index only where the file
 * has it. Dropout of every opset is nothing at all (and a mask of ones) unless the builder was
 * asked to keep it and the node trains; then it is Dropout-13 with known ratio and training_mode
 * true.
 */
#include "loader/ops/dropout.h"
#include "loader/ops/gradients.h"
#include "loader/ops/kit.h"

/* -- Dropout ----------------------------------------------------------------------------------- */

/* The ratio, and whether the node drops anything: opset 12 has inputs, 7 to 11 an attribute and
 * inference only, <= 6 is_test. */
static opipe_status dropout_form(opi_builder *b, const opi_node *node, uint32_t ratio_in,
                                 double *out_ratio, bool *out_trains, opipe_error *err) {
  const opi_value *ratio = opi_input(b, node, ratio_in);
  const opi_value *mode = opi_input(b, node, ratio_in + 1);
  const bool inputs = node->domain[0] != '\0' || node->version >= 12;
  double trains = 0;
  *out_ratio = 0.5;
  *out_trains = false;
  if (!inputs) {
    *out_ratio = opi_attr_float(node, "ratio", 0.5);
    *out_trains = node->version <= 6 && opi_attr_int(node, "is_test", 0) == 0;
  } else {
    if (ratio != NULL && !opi_known_scalar(ratio, out_ratio))
      return opi_need_value(b, node, node->in[ratio_in], err);
    if (mode != NULL && !opi_known_scalar(mode, &trains))
      return opi_need_value(b, node, node->in[ratio_in + 1], err);
    *out_trains = trains != 0;
  }
  if (!(*out_ratio >= 0 && *out_ratio < 1)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "the ratio is %g, it must be at least 0 and below 1", *out_ratio);
  }
  return OPIPE_OK;
}

static opipe_status ones(opi_builder *b, uint32_t like, uint32_t *out, opipe_error *err) {
  const opi_value v = *opi_b_value(b, like);
  uint32_t one;
  OPI_TRY(opi_k_const(one = opi_b_const_scalar(b, OPIPE_BOOL, 1), err));
  return opi_k_expand(b, one, v.shape, (uint32_t)v.rank, out, err);
}

opipe_status opi_dropout(opi_builder *b, const opi_node *node, uint32_t x, uint32_t ratio_in,
                         bool want_mask, uint32_t *out, uint32_t *out_mask, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  uint32_t in[3] = {x, OPIPE_NONE, OPIPE_NONE}, values[2];
  double ratio = 0;
  bool trains = false;
  *out_mask = OPIPE_NONE;
  if (b->dropout == OPI_DROPOUT_GRAPH)
    OPI_TRY(dropout_form(b, node, ratio_in, &ratio, &trains, err));
  if (b->dropout == OPI_DROPOUT_RATIO) {
    ratio = b->dropout_ratio;
    trains = true;
  }
  if (!trains || ratio == 0) {
    *out = x;
    return want_mask ? ones(b, x, out_mask, err) : OPIPE_OK;
  }
  OPI_TRY(opi_k_const(in[1] = opi_b_const_scalar(b, OPIPE_FLOAT, ratio), err));
  OPI_TRY(opi_k_const(in[2] = opi_b_const_scalar(b, OPIPE_BOOL, 1), err));
  if (opi_attr_find(node, "seed") != NULL)
    opi_attrs_int(&attrs, "seed", opi_attr_int(node, "seed", 0));
  OPI_TRY(opi_k_node(b, "Dropout", NULL, 13, in, 3, want_mask ? 3 : 1, &attrs, values, err));
  *out = values[0];
  if (want_mask)
    *out_mask = values[1];
  return OPIPE_OK;
}

static opipe_status dropout_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t y, mask;
  OPI_TRY(opi_need(b, node, 0, "data", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  const uint32_t dtype = opi_input(b, node, 0)->dtype;
  OPI_TRY(opi_dropout(b, node, node->in[0], 1, opi_wants(node, 1), &y, &mask, err));
  OPI_TRY(opi_b_result(b, node, 0, y, err));
  if (!opi_wants(node, 1))
    return OPIPE_OK;
  if (node->version < 10)
    OPI_TRY(opi_k_cast(b, mask, dtype, &mask, err)); /* the mask is of the data's type */
  return opi_b_result(b, node, 1, mask, err);
}

static opipe_status dropout_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(opi_infer_float(b, node, err));
  const opi_value *x = opi_input(b, node, 0);
  return opi_b_set(b, node, 1, OPIPE_BOOL, x->shape, (uint32_t)x->rank, err);
}

/* -- losses ------------------------------------------------------------------------------------ */

static opipe_status check_reduction(const opi_builder *b, const opi_node *node,
                                    const char **out_name, opipe_error *err) {
  *out_name = opi_attr_string(node, "reduction", "mean");
  if (strcmp(*out_name, "none") == 0 || strcmp(*out_name, "sum") == 0 ||
      strcmp(*out_name, "mean") == 0)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "attribute reduction is '%.40s', it must be none, sum or mean", *out_name);
}

static opipe_status loss_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  const bool cross = strcmp(node->op, "SoftmaxCrossEntropyLoss") == 0;
  const uint32_t want = opi_wants(node, 0) ? (opi_wants(node, 1) ? 3 : 1) : 2;
  const char *reduction;
  uint32_t out[2];
  OPI_TRY(check_reduction(b, node, &reduction, err));
  opi_attrs_string(&attrs, "reduction", reduction);
  if (opi_attr_find(node, "ignore_index") != NULL)
    opi_attrs_int(&attrs, "ignore_index", opi_attr_int(node, "ignore_index", 0));
  OPI_TRY(
      opi_k_node(b, node->op, NULL, cross ? 13 : 22, node->in, node->n_in, want, &attrs, out, err));
  if ((want & 1u) != 0)
    OPI_TRY(opi_b_result(b, node, 0, out[0], err));
  return (want & 2u) != 0 ? opi_b_result(b, node, 1, out[1], err) : OPIPE_OK;
}

static opipe_status loss_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  const char *reduction;
  int64_t labels[OPIPE_MAX_RANK];
  OPI_TRY(check_reduction(b, node, &reduction, err));
  OPI_TRY(opi_need(b, node, 0, "scores", OPI_T_FLOAT, 2, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "labels", OPI_T_WIDE, 1, OPIPE_MAX_RANK, err));
  const opi_value *x = opi_input(b, node, 0);
  const uint32_t rank = (uint32_t)x->rank - 1;
  for (uint32_t a = 0; a < rank; ++a)
    labels[a] = x->shape[a == 0 ? 0 : a + 1];
  OPI_TRY(opi_need_shape(b, node, 1, labels, rank, err));
  OPI_TRY(opi_may(b, node, 2, "weights", OPI_T_FLOAT, 1, 1, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 2, err));
  OPI_TRY(opi_need_dim(b, node, 2, 0, x->shape[1], "the classes of the scores", err));
  OPI_TRY(opi_b_set(b, node, 0, x->dtype, labels, strcmp(reduction, "none") == 0 ? rank : 0, err));
  return opi_b_set(b, node, 1, x->dtype, x->shape, (uint32_t)x->rank, err);
}

static void loss_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, strcmp(node->op, "SoftmaxCrossEntropyLoss") == 0 ? 6.0 : 1.0,
                out_work);
}

/* Scores and labels carry it together, not along the classes; a reduced loss does not carry it. */
static opipe_status loss_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err) {
  const int32_t axis = in[0].axis;
  for (uint32_t o = 0; o < node->n_out; ++o)
    out[o] = (opi_carry){.axis = -1};
  if (axis == 1)
    return opi_carry_refuse(graph, node, 0, "the classes are summed over", err);
  if (in[1].axis != (axis > 1 ? axis - 1 : axis) ||
      (axis >= 0 && (in[1].outer != in[0].outer || in[1].inner != in[0].inner)))
    return opi_carry_refuse(graph, node, 1, "scores and labels carry different axes", err);
  if (node->n_in > 2 && node->in[2] != OPIPE_NONE && in[2].axis >= 0)
    return opi_carry_refuse(graph, node, 2, "class weights have no such axis", err);
  if (axis < 0)
    return OPIPE_OK;
  if (strcmp(opi_attr_string(node, "reduction", "mean"), "none") != 0)
    return opi_carry_refuse(graph, node, 0, "the loss is reduced over it", err);
  out[0] = in[1];
  if (node->n_out > 1)
    out[1] = in[0];
  return OPIPE_OK;
}

static const opi_op ops[] = {
    {OPI_OP("Dropout", "", 1, OPI_NEWEST_ONNX, 1, 3, 1, 2),
     OPI_ATTRS(22, OPI_A(INT, "is_test", .until = 6, OPI_PRESET(0)), OPI_A_CONSUMED,
               OPI_A(FLOAT, "ratio", .until = 11, OPI_PRESET(0.5)),
               OPI_A(INT, "seed", .since = 12)),
     .lift = dropout_lift, .infer = dropout_infer, .carry = opi_carry_first,
     OPI_COLUMNS(NONE, COMMON, OTHER, DROPPED, NONE, RANDOM, FIRST)},
    {OPI_OP("SoftmaxCrossEntropyLoss", "", 12, OPI_NEWEST_ONNX, 2, 3, 1, 2),
     OPI_ATTRS(13, OPI_A(INT, "ignore_index"),
               OPI_A(STRING, "reduction", OPI_TEXTS("mean sum none"))),
     .lift = loss_lift, .infer = loss_infer, .work = loss_work, .carry = loss_carry,
     .gradient = opi_gradient_cross_entropy, .stops_gradient = 0x6,
     OPI_COLUMNS(NONE, WIDE, OTHER, ANY, CLASSES, LOSS, NEVER)},
    {OPI_OP("NegativeLogLikelihoodLoss", "", 12, OPI_NEWEST_ONNX, 2, 3, 1, 1),
     OPI_ATTRS(22, OPI_A(INT, "ignore_index"),
               OPI_A(STRING, "reduction", OPI_TEXTS("mean sum none"))),
     .lift = loss_lift, .infer = loss_infer, .work = loss_work, .carry = loss_carry,
     .gradient = opi_gradient_likelihood, .stops_gradient = 0x6,
     OPI_COLUMNS(NONE, WIDE, OTHER, ANY, CLASSES, LIKELIHOOD, NEVER)},
};

const opi_op_family opi_ops_loss = {ops, OPI_COUNT(ops)};
