/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of arithmetic, element by element. dX has X's shape: what was broadcast is summed.
 *
 * Max and Min halve the gradient where both are equal; Clip passes it at its bounds; Abs gives 0 at
 * 0, Sqrt infinity. Pow: the exponent's gradient is 0 where the base is 0 and the exponent is not
 * negative.
 */
#include "loader/ops/elementwise.h"

/* -- short forms -- */

static opipe_status two(opi_grad *g, const char *op, uint32_t a, uint32_t b, uint32_t *out,
                        opipe_error *err) {
  return opi_b_op2(g->builder, op, a, b, out, err);
}

static opipe_status one(opi_grad *g, const char *op, uint32_t a, uint32_t *out, opipe_error *err) {
  return opi_b_op1(g->builder, op, a, out, err);
}

/* a op (a constant of a's type). */
static opipe_status with(opi_grad *g, const char *op, uint32_t a, double number, uint32_t *out,
                         opipe_error *err) {
  uint32_t c;
  OPI_TRY(opi_grad_const(g, a, number, &c, err));
  return two(g, op, a, c, out, err);
}

/* -- two inputs -- */

opipe_status opi_gradient_add(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  OPI_TRY(opi_grad_give_reduced(g, node, 0, dy, err));
  return opi_grad_give_reduced(g, node, 1, dy, err);
}

opipe_status opi_gradient_sub(opi_grad *g, const opi_node *node, opipe_error *err) {
  uint32_t dy = opi_grad_of(g, node, 0);
  OPI_TRY(opi_grad_give_reduced(g, node, 0, dy, err));
  if (!opi_grad_wants(g, node, 1))
    return OPIPE_OK;
  OPI_TRY(opi_grad_reduce(g, node, 1, dy, &dy, err));
  OPI_TRY(one(g, "Neg", dy, &dy, err));
  return opi_grad_give(g, node, 1, dy, err);
}

opipe_status opi_gradient_mul(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  for (uint32_t i = 0; i < 2; ++i) {
    uint32_t d;
    if (!opi_grad_wants(g, node, i))
      continue;
    OPI_TRY(two(g, "Mul", dy, node->in[1 - i], &d, err));
    OPI_TRY(opi_grad_give_reduced(g, node, i, d, err));
  }
  return OPIPE_OK;
}

/* dB = -dY Y / B: what broadcasting adds up is added up before the division. */
opipe_status opi_gradient_div(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  uint32_t d;
  if (opi_grad_wants(g, node, 0)) {
    OPI_TRY(two(g, "Div", dy, node->in[1], &d, err));
    OPI_TRY(opi_grad_give_reduced(g, node, 0, d, err));
  }
  if (!opi_grad_wants(g, node, 1))
    return OPIPE_OK;
  OPI_TRY(two(g, "Mul", dy, node->out[0], &d, err));
  OPI_TRY(opi_grad_reduce(g, node, 1, d, &d, err));
  OPI_TRY(two(g, "Div", d, node->in[1], &d, err));
  OPI_TRY(one(g, "Neg", d, &d, err));
  return opi_grad_give(g, node, 1, d, err);
}

/* a mod b = a - q b with a whole q: dB = -q dY. */
opipe_status opi_gradient_mod(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  uint32_t q;
  OPI_TRY(opi_grad_give_reduced(g, node, 0, dy, err));
  if (!opi_grad_wants(g, node, 1))
    return OPIPE_OK;
  OPI_TRY(two(g, "Sub", node->out[0], node->in[0], &q, err));
  OPI_TRY(two(g, "Div", q, node->in[1], &q, err));
  OPI_TRY(one(g, "Round", q, &q, err));
  OPI_TRY(two(g, "Mul", dy, q, &q, err));
  return opi_grad_give_reduced(g, node, 1, q, err);
}

/* y' of x^e for a known e: e x^(e - 1), in the cheapest spelling. */
static opipe_status known_power(opi_grad *g, const opi_node *node, double e, uint32_t *out,
                                opipe_error *err) {
  const uint32_t x = node->in[0];
  uint32_t d, c;
  if (e == 2)
    return with(g, "Mul", x, 2, out, err);
  if (e == 3) {
    OPI_TRY(two(g, "Mul", x, x, &d, err));
    return with(g, "Mul", d, 3, out, err);
  }
  if (e == 0.5) {
    OPI_TRY(one(g, "Reciprocal", node->out[0], &d, err));
    return with(g, "Mul", d, 0.5, out, err);
  }
  OPI_TRY(opi_grad_const(g, x, e - 1, &c, err));
  OPI_TRY(two(g, "Pow", x, c, &d, err));
  return with(g, "Mul", d, e, out, err);
}

/* The same for exponents that differ or are not known: 0 where e is 0. */
static opipe_status any_power(opi_grad *g, const opi_node *node, uint32_t e, uint32_t *out,
                              opipe_error *err) {
  uint32_t less, power, zero, none;
  OPI_TRY(with(g, "Sub", e, 1, &less, err));
  OPI_TRY(two(g, "Pow", node->in[0], less, &power, err));
  OPI_TRY(two(g, "Mul", power, e, &power, err));
  OPI_TRY(opi_grad_const(g, e, 0, &zero, err));
  OPI_TRY(two(g, "Equal", e, zero, &none, err));
  return opi_k_where(g->builder, none, zero, power, out, err);
}

/* dE = dY Y log X, in X's type. */
static opipe_status exponent(opi_grad *g, const opi_node *node, uint32_t e, uint32_t dy,
                             opipe_error *err) {
  const uint32_t to = opi_b_value(g->builder, node->in[1])->dtype;
  uint32_t d, log, zero, at_zero, kept;
  OPI_TRY(opi_grad_const(g, node->in[0], 0, &zero, err));
  OPI_TRY(one(g, "Log", node->in[0], &log, err));
  OPI_TRY(two(g, "Mul", node->out[0], log, &d, err));
  OPI_TRY(two(g, "Equal", node->in[0], zero, &at_zero, err));
  OPI_TRY(two(g, "GreaterOrEqual", e, zero, &kept, err));
  OPI_TRY(two(g, "And", at_zero, kept, &kept, err));
  OPI_TRY(opi_k_where(g->builder, kept, zero, d, &d, err));
  OPI_TRY(two(g, "Mul", dy, d, &d, err));
  OPI_TRY(opi_grad_reduce(g, node, 1, d, &d, err));
  OPI_TRY(opi_k_cast(g->builder, d, to, &d, err));
  return opi_grad_give(g, node, 1, d, err);
}

opipe_status opi_gradient_pow(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const opi_value exp = *opi_b_value(g->builder, node->in[1]);
  double number = 0;
  uint32_t e = OPIPE_NONE, d;
  const bool known = opi_elems(&exp) == 1 && opi_known_scalar(&exp, &number);
  if (!known || opi_grad_wants(g, node, 1))
    OPI_TRY(opi_k_cast(g->builder, node->in[1], x.dtype, &e, err));
  if (opi_grad_wants(g, node, 1))
    OPI_TRY(exponent(g, node, e, dy, err));
  if (!opi_grad_wants(g, node, 0) || (known && number == 0))
    return OPIPE_OK;
  if (known && number == 1)
    return opi_grad_give_reduced(g, node, 0, dy, err);
  OPI_TRY(known ? known_power(g, node, number, &d, err) : any_power(g, node, e, &d, err));
  OPI_TRY(two(g, "Mul", dy, d, &d, err));
  return opi_grad_give_reduced(g, node, 0, d, err);
}

opipe_status opi_gradient_extreme(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  const char *wins = strcmp(node->op, "Max") == 0 ? "Greater" : "Less";
  uint32_t zero, half, tie, won, d;
  OPI_TRY(opi_grad_const(g, dy, 0, &zero, err));
  OPI_TRY(with(g, "Mul", dy, 0.5, &half, err));
  OPI_TRY(two(g, "Equal", node->in[0], node->in[1], &tie, err));
  OPI_TRY(opi_k_where(g->builder, tie, half, zero, &tie, err));
  for (uint32_t i = 0; i < 2; ++i) {
    if (!opi_grad_wants(g, node, i))
      continue;
    OPI_TRY(two(g, wins, node->in[i], node->in[1 - i], &won, err));
    OPI_TRY(opi_k_where(g->builder, won, dy, tie, &d, err));
    OPI_TRY(opi_grad_give_reduced(g, node, i, d, err));
  }
  return OPIPE_OK;
}

/* -- one input -- */

/* dX = dY times what `factor` makes. */
typedef opipe_status (*factor_rule)(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                    opipe_error *err);

static opipe_status abs_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                               opipe_error *err) {
  (void)y;
  return one(g, "Sign", x, out, err);
}

static opipe_status sqrt_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                opipe_error *err) {
  uint32_t c;
  (void)x;
  OPI_TRY(opi_grad_const(g, y, 0.5, &c, err));
  return two(g, "Div", c, y, out, err);
}

static opipe_status reciprocal_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                      opipe_error *err) {
  uint32_t d;
  (void)x;
  OPI_TRY(two(g, "Mul", y, y, &d, err));
  return one(g, "Neg", d, out, err);
}

static opipe_status exp_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                               opipe_error *err) {
  (void)g;
  (void)x;
  (void)err;
  *out = y;
  return OPIPE_OK;
}

static opipe_status log_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                               opipe_error *err) {
  (void)y;
  return one(g, "Reciprocal", x, out, err);
}

static opipe_status sin_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                               opipe_error *err) {
  (void)y;
  return one(g, "Cos", x, out, err);
}

static opipe_status cos_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                               opipe_error *err) {
  uint32_t d;
  (void)y;
  OPI_TRY(one(g, "Sin", x, &d, err));
  return one(g, "Neg", d, out, err);
}

static opipe_status tan_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                               opipe_error *err) {
  uint32_t d;
  (void)x;
  OPI_TRY(two(g, "Mul", y, y, &d, err));
  return with(g, "Add", d, 1, out, err);
}

static opipe_status sinh_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                opipe_error *err) {
  (void)y;
  return one(g, "Cosh", x, out, err);
}

static opipe_status cosh_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                opipe_error *err) {
  (void)y;
  return one(g, "Sinh", x, out, err);
}

/* 1 / (sign x^2 + offset), under a root or not. */
static opipe_status inverse(opi_grad *g, uint32_t x, double sign, double offset, bool root,
                            uint32_t *out, opipe_error *err) {
  uint32_t d;
  OPI_TRY(two(g, "Mul", x, x, &d, err));
  if (sign < 0)
    OPI_TRY(one(g, "Neg", d, &d, err));
  OPI_TRY(with(g, "Add", d, offset, &d, err));
  if (root)
    OPI_TRY(one(g, "Sqrt", d, &d, err));
  return one(g, "Reciprocal", d, out, err);
}

static opipe_status asin_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                opipe_error *err) {
  (void)y;
  return inverse(g, x, -1, 1, true, out, err);
}

static opipe_status acos_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                opipe_error *err) {
  uint32_t d;
  (void)y;
  OPI_TRY(inverse(g, x, -1, 1, true, &d, err));
  return one(g, "Neg", d, out, err);
}

static opipe_status atan_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                opipe_error *err) {
  (void)y;
  return inverse(g, x, 1, 1, false, out, err);
}

static opipe_status asinh_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                 opipe_error *err) {
  (void)y;
  return inverse(g, x, 1, 1, true, out, err);
}

static opipe_status acosh_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                 opipe_error *err) {
  (void)y;
  return inverse(g, x, 1, -1, true, out, err);
}

static opipe_status atanh_factor(opi_grad *g, uint32_t x, uint32_t y, uint32_t *out,
                                 opipe_error *err) {
  (void)y;
  return inverse(g, x, -1, 1, false, out, err);
}

opipe_status opi_gradient_unary(opi_grad *g, const opi_node *node, opipe_error *err) {
  static const struct {
    const char *op;
    factor_rule factor;
  } rules[] = {
      {"Abs", abs_factor},     {"Sqrt", sqrt_factor},   {"Reciprocal", reciprocal_factor},
      {"Exp", exp_factor},     {"Log", log_factor},     {"Sin", sin_factor},
      {"Cos", cos_factor},     {"Tan", tan_factor},     {"Asin", asin_factor},
      {"Acos", acos_factor},   {"Atan", atan_factor},   {"Sinh", sinh_factor},
      {"Cosh", cosh_factor},   {"Asinh", asinh_factor}, {"Acosh", acosh_factor},
      {"Atanh", atanh_factor},
  };
  for (size_t i = 0; i < OPI_COUNT(rules); ++i) {
    uint32_t d;
    if (strcmp(rules[i].op, node->op) != 0)
      continue;
    OPI_TRY(rules[i].factor(g, node->in[0], node->out[0], &d, err));
    OPI_TRY(two(g, "Mul", opi_grad_of(g, node, 0), d, &d, err));
    return opi_grad_give(g, node, 0, d, err);
  }
  return opi_node_fail(g->builder, node, err, OPIPE_E_INTERNAL, "has no gradient rule");
}

opipe_status opi_gradient_neg(opi_grad *g, const opi_node *node, opipe_error *err) {
  uint32_t d;
  OPI_TRY(one(g, "Neg", opi_grad_of(g, node, 0), &d, err));
  return opi_grad_give(g, node, 0, d, err);
}

/* -- Clip, Cast -- */

opipe_status opi_gradient_clip(opi_grad *g, const opi_node *node, opipe_error *err) {
  uint32_t d = opi_grad_of(g, node, 0), zero, inside;
  OPI_TRY(opi_grad_const(g, d, 0, &zero, err));
  for (uint32_t i = 1; i < 3; ++i) {
    uint32_t bound = opi_node_in(node, i);
    if (bound == OPIPE_NONE)
      continue;
    OPI_TRY(opi_k_reshape(g->builder, bound, NULL, 0, &bound, err));
    OPI_TRY(two(g, i == 1 ? "GreaterOrEqual" : "LessOrEqual", node->in[0], bound, &inside, err));
    OPI_TRY(opi_k_where(g->builder, inside, d, zero, &d, err));
  }
  return opi_grad_give(g, node, 0, d, err);
}

opipe_status opi_gradient_cast(opi_grad *g, const opi_node *node, opipe_error *err) {
  uint32_t d;
  OPI_TRY(opi_k_cast(g->builder, opi_grad_of(g, node, 0),
                     opi_b_value(g->builder, node->in[0])->dtype, &d, err));
  return opi_grad_give(g, node, 0, d, err);
}

/* Both branches are summed over what was broadcast; the one not taken gets 0, whatever dY is. */
opipe_status opi_gradient_where(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0), cond = node->in[0];
  uint32_t zero, d;
  OPI_TRY(opi_grad_const(g, dy, 0, &zero, err));
  if (opi_grad_wants(g, node, 1)) {
    OPI_TRY(opi_k_where(g->builder, cond, dy, zero, &d, err));
    OPI_TRY(opi_grad_give_reduced(g, node, 1, d, err));
  }
  if (opi_grad_wants(g, node, 2)) {
    OPI_TRY(opi_k_where(g->builder, cond, zero, dy, &d, err));
    OPI_TRY(opi_grad_give_reduced(g, node, 2, d, err));
  }
  return OPIPE_OK;
}
