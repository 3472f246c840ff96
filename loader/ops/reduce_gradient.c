/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of reductions: dY, with the reduced axes back as ones, times what each element adds to
 * the result.
 *
 * ReduceMax and ReduceMin share dY among all elements that are equal to the result. ReduceL2 gives
 * 0 where the norm is 0. ReduceProd is exact with zeros among the factors.
 */
#include "loader/ops/common.h"
#include "loader/ops/gradients.h"

typedef struct reduction {
  opi_grad *g;
  const opi_node *node;
  opi_value x;
  int64_t axes[OPIPE_MAX_RANK];
  int64_t kept[OPIPE_MAX_RANK]; /* x's shape with ones */
  uint32_t n;
  uint32_t y, dy; /* of shape kept */
} reduction;

static opipe_status begin(opi_grad *g, const opi_node *node, reduction *r, opipe_error *err) {
  const int64_t *axes;
  r->g = g;
  r->node = node;
  r->x = *opi_b_value(g->builder, node->in[0]);
  OPI_TRY(opi_known_ints(g->builder, node, 1, &axes, &r->n, err));
  memcpy(r->kept, r->x.shape, (size_t)r->x.rank * sizeof(*r->kept));
  for (uint32_t i = 0; i < r->n; ++i) {
    r->axes[i] = axes[i];
    r->kept[axes[i]] = 1;
  }
  return opi_k_reshape(g->builder, opi_grad_of(g, node, 0), r->kept, (uint32_t)r->x.rank, &r->dy,
                       err);
}

/* The result in shape kept, for rules that read it. */
static opipe_status result(reduction *r, opipe_error *err) {
  return opi_k_reshape(r->g->builder, r->node->out[0], r->kept, (uint32_t)r->x.rank, &r->y, err);
}

static opipe_status sum(reduction *r, const char *op, uint32_t v, uint32_t *out, opipe_error *err) {
  *out = v;
  if (r->n == 0)
    return OPIPE_OK;
  return opi_k_reduce(r->g->builder, op, 0, v, r->axes, r->n, true, out, err);
}

static opipe_status two(reduction *r, const char *op, uint32_t a, uint32_t b, uint32_t *out,
                        opipe_error *err) {
  return opi_b_op2(r->g->builder, op, a, b, out, err);
}

static opipe_status number(reduction *r, double n, uint32_t *out, opipe_error *err) {
  return opi_grad_const(r->g, r->dy, n, out, err);
}

static opipe_status give_expanded(reduction *r, uint32_t d, opipe_error *err) {
  OPI_TRY(opi_k_expand(r->g->builder, d, r->x.shape, (uint32_t)r->x.rank, &d, err));
  return opi_grad_give(r->g, r->node, 0, d, err);
}

static opipe_status mean(reduction *r, opipe_error *err) {
  double n = 1;
  uint32_t c, d;
  for (uint32_t i = 0; i < r->n; ++i)
    n *= (double)r->x.shape[r->axes[i]];
  OPI_TRY(number(r, 1.0 / n, &c, err));
  OPI_TRY(two(r, "Mul", r->dy, c, &d, err));
  return give_expanded(r, d, err);
}

static opipe_status plain(reduction *r, opipe_error *err) {
  return give_expanded(r, r->dy, err);
}

static opipe_status extreme(reduction *r, opipe_error *err) {
  uint32_t hit, n, d, zero;
  OPI_TRY(result(r, err));
  OPI_TRY(two(r, "Equal", r->node->in[0], r->y, &hit, err));
  OPI_TRY(opi_k_cast(r->g->builder, hit, r->x.dtype, &n, err));
  OPI_TRY(sum(r, "ReduceSum", n, &n, err));
  OPI_TRY(two(r, "Div", r->dy, n, &d, err));
  OPI_TRY(number(r, 0, &zero, err));
  OPI_TRY(opi_k_where(r->g->builder, hit, d, zero, &d, err));
  return opi_grad_give(r->g, r->node, 0, d, err);
}

/* No zero among the factors: y / x. One: the product of the others there, 0 elsewhere. More: 0. */
static opipe_status product(reduction *r, opipe_error *err) {
  opi_builder *b = r->g->builder;
  uint32_t zero, unit, is_zero, n, filled, rest, none, single, d, at_zero;
  OPI_TRY(number(r, 0, &zero, err));
  OPI_TRY(number(r, 1, &unit, err));
  OPI_TRY(two(r, "Equal", r->node->in[0], zero, &is_zero, err));
  OPI_TRY(opi_k_cast(b, is_zero, r->x.dtype, &n, err));
  OPI_TRY(sum(r, "ReduceSum", n, &n, err));
  OPI_TRY(opi_k_where(b, is_zero, unit, r->node->in[0], &filled, err));
  OPI_TRY(sum(r, "ReduceProd", filled, &rest, err));
  OPI_TRY(two(r, "Div", rest, filled, &d, err));
  OPI_TRY(two(r, "Equal", n, zero, &none, err));
  OPI_TRY(two(r, "Equal", n, unit, &single, err));
  OPI_TRY(two(r, "And", single, is_zero, &single, err));
  OPI_TRY(opi_k_where(b, single, rest, zero, &at_zero, err));
  OPI_TRY(opi_k_where(b, none, d, at_zero, &d, err));
  OPI_TRY(two(r, "Mul", r->dy, d, &d, err));
  return opi_grad_give(r->g, r->node, 0, d, err);
}

static opipe_status l1(reduction *r, opipe_error *err) {
  uint32_t d;
  OPI_TRY(opi_b_op1(r->g->builder, "Sign", r->node->in[0], &d, err));
  OPI_TRY(two(r, "Mul", r->dy, d, &d, err));
  return opi_grad_give(r->g, r->node, 0, d, err);
}

static opipe_status l2(reduction *r, opipe_error *err) {
  uint32_t zero, none, scale, d;
  OPI_TRY(result(r, err));
  OPI_TRY(number(r, 0, &zero, err));
  OPI_TRY(two(r, "Equal", r->y, zero, &none, err));
  OPI_TRY(two(r, "Div", r->dy, r->y, &scale, err));
  OPI_TRY(opi_k_where(r->g->builder, none, zero, scale, &scale, err));
  OPI_TRY(two(r, "Mul", scale, r->node->in[0], &d, err));
  return opi_grad_give(r->g, r->node, 0, d, err);
}

static opipe_status sum_square(reduction *r, opipe_error *err) {
  uint32_t c, d;
  OPI_TRY(number(r, 2, &c, err));
  OPI_TRY(two(r, "Mul", r->dy, c, &d, err));
  OPI_TRY(two(r, "Mul", d, r->node->in[0], &d, err));
  return opi_grad_give(r->g, r->node, 0, d, err);
}

static opipe_status log_sum(reduction *r, opipe_error *err) {
  uint32_t d;
  OPI_TRY(result(r, err));
  OPI_TRY(opi_b_op1(r->g->builder, "Exp", r->y, &d, err));
  OPI_TRY(two(r, "Div", r->dy, d, &d, err));
  return give_expanded(r, d, err);
}

static opipe_status log_sum_exp(reduction *r, opipe_error *err) {
  uint32_t d;
  OPI_TRY(result(r, err));
  OPI_TRY(two(r, "Sub", r->node->in[0], r->y, &d, err));
  OPI_TRY(opi_b_op1(r->g->builder, "Exp", d, &d, err));
  OPI_TRY(two(r, "Mul", r->dy, d, &d, err));
  return opi_grad_give(r->g, r->node, 0, d, err);
}

opipe_status opi_gradient_reduce(opi_grad *g, const opi_node *node, opipe_error *err) {
  static const struct {
    const char *op;
    opipe_status (*rule)(reduction *r, opipe_error *err);
  } rules[] = {{"ReduceMean", mean},      {"ReduceSum", plain},
               {"ReduceMax", extreme},    {"ReduceMin", extreme},
               {"ReduceProd", product},   {"ReduceL1", l1},
               {"ReduceL2", l2},          {"ReduceSumSquare", sum_square},
               {"ReduceLogSum", log_sum}, {"ReduceLogSumExp", log_sum_exp}};
  reduction r;
  memset(&r, 0, sizeof(r));
  OPI_TRY(begin(g, node, &r, err));
  for (size_t i = 0; i < OPI_COUNT(rules); ++i) {
    if (strcmp(rules[i].op, node->op) == 0)
      return rules[i].rule(&r, err);
  }
  return opi_node_fail(g->builder, node, err, OPIPE_E_INTERNAL, "has no gradient rule");
}

/* The sum from the other end. */
opipe_status opi_gradient_cum_sum(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t in[2] = {opi_grad_of(g, node, 0), node->in[1]};
  opi_attrs attrs = {.n = 0};
  uint32_t dx;
  opi_attrs_int(&attrs, "exclusive", opi_attr_int(node, "exclusive", 0));
  opi_attrs_int(&attrs, "reverse", opi_attr_int(node, "reverse", 0) == 0);
  OPI_TRY(opi_k_one(g->builder, "CumSum", 0, in, 2, &attrs, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}
