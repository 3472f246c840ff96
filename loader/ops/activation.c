/* SPDX-License-Identifier: Apache-2.0 */
/* Activations: functions of one element, and PRelu.
 *
 * Canonical: the standard's own operators with every attribute written out. com.microsoft's Gelu,
 * FastGelu, BiasGelu and QuickGelu become Add, Gelu-20 and Swish-24 (contrib.c).
 */
#include "loader/ops/rules.h"

static opipe_status plain_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  return opi_infer_float(b, node, err);
}

static opipe_status relu_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  return opi_k_infer_same(b, node, OPI_T_FLOAT | OPI_T_WIDE | OPI_T_SMALL, err);
}

static opipe_status plain_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  return opi_k_lift(b, node, node->op, NULL, 0, NULL,
                    err); /* drops attributes of opset 1 (consumed_inputs) */
}

static opipe_status one_number(opi_builder *b, const opi_node *node, double alpha,
                               opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  opi_attrs_float(&attrs, "alpha", opi_attr_float(node, "alpha", alpha));
  return opi_k_lift(b, node, node->op, NULL, 0, &attrs, err);
}

static opipe_status unit_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  return one_number(b, node, 1.0, err); /* Elu, ThresholdedRelu, Celu, Swish */
}

/* Inputs: gate A, value B of the same shape. Swish(A) * B. */
static opipe_status swiglu_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  uint32_t y;
  OPI_TRY(opi_need(b, node, 0, "A", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "B", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
  const opi_value *gate = opi_input(b, node, 0);
  OPI_TRY(opi_need_shape(b, node, 1, gate->shape, (uint32_t)gate->rank, err));
  opi_attrs_float(&attrs, "alpha", opi_attr_float(node, "alpha", 1.0));
  OPI_TRY(opi_k_one(b, "Swish", 0, node->in, 1, &attrs, &y, err));
  OPI_TRY(opi_b_op2(b, "Mul", y, node->in[1], &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static opipe_status leaky_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  return one_number(b, node, (double)0.01f, err);
}

static opipe_status selu_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  const bool old = node->version < 6;
  opi_attrs attrs = {.n = 0};
  opi_attrs_float(
      &attrs, "alpha",
      opi_attr_float(node, "alpha", (double)(old ? 1.6732f : 1.67326319217681884765625f)));
  opi_attrs_float(
      &attrs, "gamma",
      opi_attr_float(node, "gamma", (double)(old ? 1.0507f : 1.05070102214813232421875f)));
  return opi_k_lift(b, node, "Selu", NULL, 22, &attrs, err);
}

static opipe_status hard_sigmoid_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  opi_attrs_float(&attrs, "alpha", opi_attr_float(node, "alpha", (double)0.2f));
  opi_attrs_float(&attrs, "beta", opi_attr_float(node, "beta", 0.5));
  return opi_k_lift(b, node, "HardSigmoid", NULL, 22, &attrs, err);
}

static opipe_status gelu_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  const char *form = opi_attr_string(node, "approximate", "none");
  opi_attrs attrs = {.n = 0};
  if (strcmp(form, "none") != 0 && strcmp(form, "tanh") != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute approximate is '%.40s', it must be none or tanh", form);
  }
  opi_attrs_string(&attrs, "approximate", form);
  return opi_k_lift(b, node, "Gelu", NULL, 20, &attrs, err);
}

/* -- PRelu ------------------------------------------------------------------------------------- */

/* Opset < 7: a slope of rank 1 goes along axis 1 (the channels). */
static opipe_status prelu_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[2], y;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT | OPI_T_WIDE, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "slope", OPI_T_FLOAT | OPI_T_WIDE, 0, OPIPE_MAX_RANK, err));
  const opi_value x = *opi_input(b, node, 0);
  const opi_value slope = *opi_input(b, node, 1);
  in[0] = node->in[0];
  in[1] = node->in[1];
  if (node->version < 7 && slope.rank == 1 && x.rank > 2 && slope.shape[0] != 1) {
    int64_t shape[OPIPE_MAX_RANK];
    for (int32_t a = 0; a + 1 < x.rank; ++a)
      shape[a] = a == 0 ? slope.shape[0] : 1;
    OPI_TRY(opi_k_reshape(b, in[1], shape, (uint32_t)x.rank - 1, &in[1], err));
  }
  OPI_TRY(opi_k_one(b, "PRelu", 16, in, 2, NULL, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static opipe_status prelu_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t both[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT | OPI_T_WIDE, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "slope", OPI_T_FLOAT | OPI_T_WIDE, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
  const opi_value *x = opi_input(b, node, 0);
  const opi_value *s = opi_input(b, node, 1);
  if (!opi_broadcast(x->shape, (uint32_t)x->rank, s->shape, (uint32_t)s->rank, both, &rank) ||
      rank != (uint32_t)x->rank ||
      (rank != 0 && memcmp(both, x->shape, rank * sizeof(*both)) != 0)) {
    char has[128], want[128];
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' of shape %s does not broadcast to %s", s->name,
                         opi_shape_text(has, sizeof(has), s->shape, (uint32_t)s->rank),
                         opi_shape_text(want, sizeof(want), x->shape, (uint32_t)x->rank));
  }
  return opi_b_set(b, node, 0, x->dtype, x->shape, (uint32_t)x->rank, err);
}

/* The slope stays whole: it must not have the axis. */
static opipe_status prelu_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                opi_carry *out, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[0]];
  const opi_value *s = &graph->values[node->in[1]];
  const int32_t back = in[0].axis < 0 ? 0 : x->rank - in[0].axis;
  if (back != 0 && back <= s->rank && s->shape[s->rank - back] != 1)
    return opi_carry_refuse(graph, node, 0, "the slope has that axis", err);
  return opi_carry_first(graph, node, in, out, err);
}

/* -- gradients --------------------------------------------------------------------------------- */

/* By the operator's name, with its numbers; alpha is always there. */
static opipe_status activation_gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t in[2] = {opi_grad_of(g, node, 0), node->in[0]};
  const bool tanh = strcmp(opi_attr_string(node, "approximate", "none"), "tanh") == 0;
  opi_attrs attrs = {.n = 0};
  uint32_t dx;
  opi_attrs_string(&attrs, "activation", tanh ? "GeluTanh" : node->op);
  if (opi_attr_find(node, "alpha") == NULL)
    opi_attrs_float(&attrs, "alpha", 1);
  for (uint32_t a = 0; a < node->n_attrs; ++a) {
    if (node->attrs[a].kind == OPIPE_ATTR_FLOAT)
      opi_attrs_float(&attrs, node->attrs[a].name, node->attrs[a].f);
  }
  OPI_TRY(opi_grad_own(g, "ActivationGrad", in, 2, &attrs, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

/* dX = X < 0 ? slope dY : dY;  dslope = X < 0 ? X dY : 0. */
static opipe_status prelu_gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  opi_builder *b = g->builder;
  const uint32_t dy = opi_grad_of(g, node, 0);
  uint32_t zero, below, d;
  OPI_TRY(opi_grad_const(g, dy, 0, &zero, err));
  OPI_TRY(opi_b_op2(b, "Less", node->in[0], zero, &below, err));
  if (opi_grad_wants(g, node, 0)) {
    OPI_TRY(opi_b_op2(b, "Mul", dy, node->in[1], &d, err));
    OPI_TRY(opi_k_where(b, below, d, dy, &d, err));
    OPI_TRY(opi_grad_give(g, node, 0, d, err));
  }
  if (!opi_grad_wants(g, node, 1))
    return OPIPE_OK;
  OPI_TRY(opi_b_op2(b, "Mul", dy, node->in[0], &d, err));
  OPI_TRY(opi_k_where(b, below, d, zero, &d, err));
  return opi_grad_give_reduced(g, node, 1, d, err);
}

static void work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, 8.0, out_work);
}

static void cheap_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, 1.0, out_work);
}

#define UNARY(name_, first_, lift_, infer_, work_, takes_, range_, kind_, attrs_) \
  {                                                                               \
    OPI_OP(name_, "", first_, OPI_NEWEST_ONNX, 1, 1, 1, 1), attrs_,               \
        .lift = lift_, .infer = infer_, .work = work_, .carry = opi_carry_first,  \
        .gradient = activation_gradient,                                          \
        OPI_COLUMNS(takes_, COMMON, OTHER, range_, NONE, kind_, NEVER)            \
  }

static const opi_op ops[] = {
    UNARY("Relu", 1, plain_lift, relu_infer, cheap_work, FUNCTION, RISING, PLAIN,
          OPI_ATTRS(14, OPI_A_CONSUMED)),
    UNARY("Sigmoid", 1, plain_lift, plain_infer, work, FUNCTION, RISING, PLAIN,
          OPI_ATTRS(13, OPI_A_CONSUMED)),
    UNARY("Tanh", 1, plain_lift, plain_infer, work, LIMITED, RISING, PLAIN,
          OPI_ATTRS(13, OPI_A_CONSUMED)),
    UNARY("Erf", 9, NULL, plain_infer, work, NONE, ANY, PLAIN, OPI_NO_ATTRS(13)),
    UNARY("Gelu", 20, gelu_lift, plain_infer, work, NONE, ANY, GELU,
          OPI_ATTRS(20, OPI_A(STRING, "approximate", OPI_TEXTS("none tanh")))),
    UNARY("Swish", 24, unit_lift, plain_infer, work, NONE, ANY, SWISH,
          OPI_ATTRS(24, OPI_A(FLOAT, "alpha", OPI_PRESET(1)))),
    UNARY("Elu", 1, unit_lift, plain_infer, work, NONE, ANY, PLAIN,
          OPI_ATTRS(22, OPI_A_CONSUMED, OPI_A(FLOAT, "alpha", OPI_PRESET(1)))),
    UNARY("Selu", 1, selu_lift, plain_infer, work, NONE, ANY, PLAIN,
          OPI_ATTRS(22, OPI_A_CONSUMED, OPI_A(FLOAT, "gamma"), OPI_A(FLOAT, "alpha"))),
    UNARY("LeakyRelu", 1, leaky_lift, plain_infer, cheap_work, NONE, ANY, PLAIN,
          OPI_ATTRS(16, OPI_A_CONSUMED, OPI_A(FLOAT, "alpha", OPI_PRESET(0.01)))),
    UNARY("Mish", 18, NULL, plain_infer, work, NONE, ANY, PLAIN, OPI_NO_ATTRS(22)),
    UNARY("HardSwish", 14, NULL, plain_infer, cheap_work, NONE, ANY, PLAIN, OPI_NO_ATTRS(22)),
    UNARY("HardSigmoid", 1, hard_sigmoid_lift, plain_infer, cheap_work, NONE, ANY, PLAIN,
          OPI_ATTRS(22, OPI_A_CONSUMED, OPI_A(FLOAT, "beta", OPI_PRESET(0.5)),
                    OPI_A(FLOAT, "alpha", OPI_PRESET(0.2)))),
    UNARY("Softplus", 1, NULL, plain_infer, work, FUNCTION, ANY, PLAIN, OPI_NO_ATTRS(22)),
    UNARY("Softsign", 1, NULL, plain_infer, cheap_work, NONE, ANY, PLAIN, OPI_NO_ATTRS(22)),
    UNARY("ThresholdedRelu", 10, unit_lift, plain_infer, cheap_work, NONE, ANY, PLAIN,
          OPI_ATTRS(22, OPI_A(FLOAT, "alpha", OPI_PRESET(1)))),
    UNARY("Celu", 12, unit_lift, plain_infer, work, NONE, ANY, PLAIN,
          OPI_ATTRS(28, OPI_A(FLOAT, "alpha", OPI_PRESET(1)))),
    {OPI_OP("SwiGLU", "", 28, OPI_NEWEST_ONNX, 2, 2, 1, 1),
     OPI_ATTRS(28, OPI_A(FLOAT, "alpha", OPI_PRESET(1))), .lift = swiglu_lift},
    {OPI_OP("PRelu", "", 1, OPI_NEWEST_ONNX, 2, 2, 1, 1), OPI_ATTRS(16, OPI_A_CONSUMED),
     .lift = prelu_lift, .infer = prelu_infer, .work = cheap_work, .carry = prelu_carry,
     .gradient = prelu_gradient, OPI_COLUMNS(NONE, COMMON, SLOPE, ANY, NONE, PLAIN, NEVER)},
};

const opi_op_family opi_ops_activation = {ops, OPI_COUNT(ops)};
