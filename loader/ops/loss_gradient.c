/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss: by sums of terms; a mean is a
 * sum divided by the number (or the weight) of the labels that count.
 *
 * Labels and class weights get no gradient.
 */
#include "loader/ops/gradients.h"

/* bool: labels that do not count; OPIPE_NONE: all do. */
static opipe_status ignored(opi_grad *g, const opi_node *node, uint32_t *out, opipe_error *err) {
  opi_builder *b = g->builder;
  uint32_t none;
  *out = OPIPE_NONE;
  if (opi_attr_find(node, "ignore_index") == NULL)
    return OPIPE_OK;
  none = opi_b_const_scalar(b, opi_b_value(b, node->in[1])->dtype,
                            (double)opi_attr_int(node, "ignore_index", 0));
  OPI_TRY(opi_k_const(none, err));
  return opi_b_op2(b, "Equal", node->in[1], none, out, err);
}

/* Labels with 0 where they do not count. */
static opipe_status safe_labels(opi_grad *g, const opi_node *node, uint32_t drop, uint32_t *out,
                                opipe_error *err) {
  uint32_t zero;
  *out = node->in[1];
  if (drop == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_grad_const(g, node->in[1], 0, &zero, err));
  return opi_k_where(g->builder, drop, zero, node->in[1], out, err);
}

/* The factor of each label's term: 0, or its class's weight (1). It has the labels' shape, or is a
 * scalar if all are 1. */
static opipe_status factors(opi_grad *g, const opi_node *node, uint32_t *out, opipe_error *err) {
  opi_builder *b = g->builder;
  const uint32_t weights = opi_node_in(node, 2);
  opi_attrs attrs = {.n = 0};
  uint32_t drop, zero, terms, labels;
  OPI_TRY(ignored(g, node, &drop, err));
  OPI_TRY(opi_grad_const(g, node->in[0], 0, &zero, err));
  OPI_TRY(opi_grad_const(g, node->in[0], 1, &terms, err));
  if (weights != OPIPE_NONE) {
    OPI_TRY(safe_labels(g, node, drop, &labels, err));
    const uint32_t in[2] = {weights, labels};
    opi_attrs_int(&attrs, "axis", 0);
    OPI_TRY(opi_k_one(b, "Gather", 0, in, 2, &attrs, &terms, err));
  }
  if (drop != OPIPE_NONE)
    OPI_TRY(opi_k_where(b, drop, zero, terms, &terms, err));
  *out = terms;
  return OPIPE_OK;
}

/* Gradient of the sum of terms: dL, or dL / sum of factors for a mean. */
static opipe_status of_sum(opi_grad *g, const opi_node *node, uint32_t *out, opipe_error *err) {
  opi_builder *b = g->builder;
  uint32_t total;
  int64_t axes[OPIPE_MAX_RANK];
  *out = opi_grad_of(g, node, 0);
  if (strcmp(opi_attr_string(node, "reduction", "mean"), "mean") != 0)
    return OPIPE_OK;
  OPI_TRY(factors(g, node, &total, err));
  const opi_value v = *opi_b_value(b, total), labels = *opi_b_value(b, node->in[1]);
  for (int32_t d = 0; d < v.rank; ++d)
    axes[d] = d;
  if (v.rank != 0)
    OPI_TRY(opi_k_reduce(b, "ReduceSum", 0, total, axes, (uint32_t)v.rank, false, &total, err));
  else
    OPI_TRY(opi_grad_const(g, node->in[0], opi_k_elems(&labels), &total, err));
  return opi_b_op2(b, "Div", *out, total, out, err);
}

/* The second output, log p: as LogSoftmax. */
static opipe_status from_log_prob(opi_grad *g, const opi_node *node, uint32_t *io_dx,
                                  opipe_error *err) {
  const uint32_t in[2] = {opi_grad_of(g, node, 1), node->out[1]};
  opi_attrs attrs = {.n = 0};
  uint32_t d;
  opi_attrs_int(&attrs, "axis", 1);
  OPI_TRY(opi_grad_own(g, "LogSoftmaxGrad", in, 2, &attrs, &d, err));
  if (*io_dx == OPIPE_NONE) {
    *io_dx = d;
    return OPIPE_OK;
  }
  return opi_b_op2(g->builder, "Add", *io_dx, d, io_dx, err);
}

opipe_status opi_gradient_cross_entropy(opi_grad *g, const opi_node *node, opipe_error *err) {
  const bool none = strcmp(opi_attr_string(node, "reduction", "mean"), "none") == 0;
  opi_attrs attrs = {.n = 0};
  uint32_t dx = OPIPE_NONE, in[4] = {OPIPE_NONE, node->in[0], node->in[1], opi_node_in(node, 2)};
  if (opi_grad_of(g, node, 0) != OPIPE_NONE) {
    opi_attrs_string(&attrs, "reduction", none ? "none" : "sum");
    if (opi_attr_find(node, "ignore_index") != NULL)
      opi_attrs_int(&attrs, "ignore_index", opi_attr_int(node, "ignore_index", 0));
    opi_attrs_float(&attrs, "smoothing", 0);
    OPI_TRY(of_sum(g, node, &in[0], err));
    OPI_TRY(opi_grad_own(g, "SoftmaxCrossEntropyLossGrad", in, 4, &attrs, &dx, err));
  }
  if (opi_grad_of(g, node, 1) != OPIPE_NONE)
    OPI_TRY(from_log_prob(g, node, &dx, err));
  return dx == OPIPE_NONE ? OPIPE_OK : opi_grad_give(g, node, 0, dx, err);
}

/* The gradient of a member's scores. Its statistics pass none: they come from the same scores. */
opipe_status opi_gradient_divided_entropy(opi_grad *g, const opi_node *node, opipe_error *err) {
  static const char *const copied[] = {"ignore_index", "first", "whole"};
  const bool none = strcmp(opi_attr_string(node, "reduction", "mean"), "none") == 0;
  uint32_t in[5] = {OPIPE_NONE, node->in[0], node->in[1], opi_node_in(node, 2), node->out[1]}, dx;
  opi_attrs attrs = {.n = 0};
  if (opi_grad_of(g, node, 0) == OPIPE_NONE)
    return OPIPE_OK;
  opi_attrs_string(&attrs, "reduction", none ? "none" : "sum");
  opi_attrs_float(&attrs, "smoothing", opi_attr_float(node, "smoothing", 0));
  for (size_t i = 0; i < OPI_COUNT(copied); ++i) {
    if (opi_attr_find(node, copied[i]) != NULL)
      opi_attrs_int(&attrs, copied[i], opi_attr_int(node, copied[i], 0));
  }
  OPI_TRY(of_sum(g, node, &in[0], err));
  OPI_TRY(opi_grad_own(g, "CrossEntropyPartGrad", in, 5, &attrs, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

/* -factor dL at each label's place, 0 elsewhere. */
opipe_status opi_gradient_likelihood(opi_grad *g, const opi_node *node, opipe_error *err) {
  opi_builder *b = g->builder;
  const opi_value x = *opi_b_value(b, node->in[0]), labels = *opi_b_value(b, node->in[1]);
  int64_t shape[OPIPE_MAX_RANK];
  opi_attrs attrs = {.n = 0};
  uint32_t drop, terms, dl, in[3], hot;
  OPI_TRY(of_sum(g, node, &dl, err));
  OPI_TRY(factors(g, node, &terms, err));
  OPI_TRY(opi_b_op2(b, "Mul", terms, dl, &terms, err));
  OPI_TRY(opi_k_expand(b, terms, labels.shape, (uint32_t)labels.rank, &terms, err));
  shape[0] = labels.shape[0];
  shape[1] = 1;
  for (int32_t d = 1; d < labels.rank; ++d)
    shape[d + 1] = labels.shape[d];
  OPI_TRY(opi_k_reshape(b, terms, shape, (uint32_t)labels.rank + 1, &terms, err));
  OPI_TRY(ignored(g, node, &drop, err));
  OPI_TRY(safe_labels(g, node, drop, &in[0], err));
  const int64_t depth = x.shape[1], two = 2;
  uint32_t values[2];
  OPI_TRY(opi_k_const(in[1] = opi_b_const(b, OPIPE_INT64, NULL, 0, &depth), err));
  for (uint32_t i = 0; i < 2; ++i) {
    OPI_TRY(opi_grad_const(g, node->in[0], i == 0 ? 0 : -1, &values[i], err));
    OPI_TRY(opi_k_reshape(b, values[i], (const int64_t[]){1}, 1, &values[i], err));
  }
  OPI_TRY(opi_k_concat(b, values, (uint32_t)two, 0, &in[2], err));
  opi_attrs_int(&attrs, "axis", 1);
  OPI_TRY(opi_k_one(b, "OneHot", 0, in, 3, &attrs, &hot, err));
  OPI_TRY(opi_b_op2(b, "Mul", hot, terms, &hot, err));
  return opi_grad_give(g, node, 0, hot, err);
}
