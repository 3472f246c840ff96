/* SPDX-License-Identifier: Apache-2.0 */
/* Activations, element by element. The reference forms use the C library's functions.
 */
#include <tgmath.h>

#include "map.h"

#define SIGMOID(X) ((real)1 / ((real)1 + exp(-(X))))
#define SOFTPLUS(X) ((X) > 0 ? (X) + log1p(exp(-(X))) : log1p(exp(X)))
#define UNIT(X) ((X) < 0 ? (real)0 : (X) > 1 ? (real)1 : (X))

CPU_MAP1(sigmoid, SIGMOID(x))
CPU_MAP1(relu, x > 0 || x != x ? x : (real)0)
CPU_MAP1(hyperbolic, tanh(x))
CPU_MAP1(gelu_erf, (real)0.5 * x * ((real)1 + erf(x * (real)0.70710678118654752440)))
CPU_MAP1(gelu_tanh,
         (real)0.5 * x *
             ((real)1 + tanh((real)0.79788456080286535588 * (x + (real)0.044715 * x * x * x))))
CPU_MAP1(swish, x *SIGMOID(p *x))
CPU_MAP1(elu, x > 0 ? x : p * expm1(x))
CPU_MAP1(celu, (x > 0 ? x : (real)0) + (x < 0 ? p * expm1(x / p) : (real)0))
CPU_MAP1(selu, q *(x > 0 ? x : p * expm1(x)))
CPU_MAP1(leaky_relu, x < 0 ? p * x : x)
CPU_MAP1(thresholded_relu, x > p ? x : (real)0)
CPU_MAP1(mish, x *tanh(SOFTPLUS(x)))
CPU_MAP1(hard_swish, x *UNIT(x *((real)1 / (real)6) + (real)0.5))
CPU_MAP1(hard_sigmoid, UNIT(p *x + q))
CPU_MAP1(softplus, SOFTPLUS(x))
CPU_MAP1(softsign, x / ((real)1 + fabs(x)))
CPU_MAP1(shrink, x<-p ? x + q : x> p ? x - q : (real)0)
CPU_MAP1_TYPE(relu_i64, int64_t, x > 0 ? x : 0)

enum {
  SIGMOID_,
  RELU,
  TANH,
  GELU_ERF,
  GELU_TANH,
  SWISH,
  QUICK,
  ELU,
  CELU,
  SELU,
  LEAKY,
  THRESHOLDED,
  MISH,
  HARD_SWISH,
  HARD_SIGMOID,
  SOFTPLUS_,
  SOFTSIGN,
  SHRINK
};

#define MAP(NAME, ATTR1, DEFAULT1, ATTR2, DEFAULT2, FAST_CODE) \
  { {NAME##_f32, NAME##_f64, NULL, NULL}, {ATTR1, ATTR2}, {DEFAULT1, DEFAULT2}, FAST_CODE }
#define SIMPLE(NAME, FAST_CODE) MAP(NAME, NULL, 0, NULL, 0, FAST_CODE)

static const cpu_map maps[] = {
    [SIGMOID_] = SIMPLE(sigmoid, CPU_ACT_SIGMOID),
    [RELU] = {{relu_f32, relu_f64, relu_i64, NULL}, {NULL, NULL}, {0, 0}, CPU_ACT_RELU},
    [TANH] = SIMPLE(hyperbolic, CPU_ACT_TANH),
    [GELU_ERF] = SIMPLE(gelu_erf, CPU_ACT_GELU_ERF),
    [GELU_TANH] = SIMPLE(gelu_tanh, CPU_ACT_GELU_TANH),
    [SWISH] = MAP(swish, "alpha", 1.0, NULL, 0, CPU_NO_FAST),
    [QUICK] = MAP(swish, "alpha", 1.702, NULL, 0, CPU_ACT_GELU_QUICK),
    [ELU] = MAP(elu, "alpha", 1.0, NULL, 0, CPU_NO_FAST),
    [CELU] = MAP(celu, "alpha", 1.0, NULL, 0, CPU_NO_FAST),
    [SELU] = MAP(selu, "alpha", 1.67326319217681884765625, "gamma", 1.05070102214813232421875,
                 CPU_NO_FAST),
    [LEAKY] = MAP(leaky_relu, "alpha", 0.01, NULL, 0, CPU_NO_FAST),
    [THRESHOLDED] = MAP(thresholded_relu, "alpha", 1.0, NULL, 0, CPU_NO_FAST),
    [MISH] = SIMPLE(mish, CPU_NO_FAST),
    [HARD_SWISH] = SIMPLE(hard_swish, CPU_ACT_HARD_SWISH),
    [HARD_SIGMOID] = MAP(hard_sigmoid, "alpha", 0.2, "beta", 0.5, CPU_NO_FAST),
    [SOFTPLUS_] = SIMPLE(softplus, CPU_NO_FAST),
    [SOFTSIGN] = SIMPLE(softsign, CPU_NO_FAST),
    [SHRINK] = MAP(shrink, "lambd", 0.5, "bias", 0.0, CPU_NO_FAST),
};

static opipe_status prepare(cpu_prep *p) {
  return cpu_prepare_map(p, &maps[p->op->code], 0);
}

static opipe_status prepare_gelu(cpu_prep *p) {
  const char *form = opipe_attr_string(p->node, "approximate", "none");
  if (strcmp(form, "none") != 0 && strcmp(form, "tanh") != 0)
    return cpu_refuse(p, "approximate '%.20s' is not known", form);
  return cpu_prepare_map(p, &maps[strcmp(form, "tanh") == 0 ? GELU_TANH : GELU_ERF], 0);
}

/* Swish and com.microsoft QuickGelu, x sigmoid(alpha x), with the vector kernels for the two alphas
 * that occur. */
static opipe_status prepare_swish(cpu_prep *p) {
  cpu_map map = maps[strcmp(p->node->op, "QuickGelu") == 0 ? QUICK : SWISH];
  const cpu_activation known = cpu_activation_of(p->node);
  map.fast = known == CPU_ACT_NONE ? CPU_NO_FAST : (int)known;
  return cpu_prepare_map(p, &map, 0);
}

cpu_activation cpu_activation_of(const opipe_node *node) {
  static const struct {
    const char *name;
    cpu_activation activation;
  } plain[] = {{"Relu", CPU_ACT_RELU},
               {"Tanh", CPU_ACT_TANH},
               {"Sigmoid", CPU_ACT_SIGMOID},
               {"HardSwish", CPU_ACT_HARD_SWISH}};
  for (uint32_t i = 0; i < CPU_COUNT_OF(plain); ++i) {
    if (strcmp(node->op, plain[i].name) == 0)
      return plain[i].activation;
  }
  if (strcmp(node->op, "Gelu") == 0) {
    return strcmp(opipe_attr_string(node, "approximate", "none"), "tanh") == 0 ? CPU_ACT_GELU_TANH
                                                                               : CPU_ACT_GELU_ERF;
  }
  const bool quick = strcmp(node->op, "QuickGelu") == 0;
  if (quick || strcmp(node->op, "Swish") == 0) {
    const float alpha = (float)opipe_attr_float(node, "alpha", quick ? 1.702 : 1.0);
    return alpha == 1.0f ? CPU_ACT_SILU : alpha == 1.702f ? CPU_ACT_GELU_QUICK : CPU_ACT_NONE;
  }
  return CPU_ACT_NONE;
}

CPU_MAP2_TYPE(prelu_f32, float, float, a < 0 ? a * b : (real)a)
CPU_MAP2_TYPE(prelu_f64, double, double, a < 0 ? a * b : (real)a)
CPU_MAP2_TYPE(prelu_i64, int64_t, int64_t, a < 0 ? a * b : (real)a)

static opipe_status prepare_prelu(cpu_prep *p) {
  static const cpu_map map = {
      {prelu_f32, prelu_f64, prelu_i64, NULL}, {NULL, NULL}, {0, 0}, CPU_NO_FAST};
  CPU_TRY(cpu_expect_like(p, 0, cpu_in(p, 0)));
  return cpu_prepare_map(p, &map, 0);
}

#define ROW(NAME, CODE) \
  { NAME, NULL, prepare, 1, 1, 1, 0, CODE }

static const cpu_op ops[] = {
    ROW("Sigmoid", SIGMOID_),
    ROW("Relu", RELU),
    ROW("Tanh", TANH),
    ROW("Elu", ELU),
    ROW("Celu", CELU),
    ROW("Selu", SELU),
    ROW("LeakyRelu", LEAKY),
    ROW("ThresholdedRelu", THRESHOLDED),
    ROW("Mish", MISH),
    ROW("HardSwish", HARD_SWISH),
    ROW("HardSigmoid", HARD_SIGMOID),
    ROW("Softplus", SOFTPLUS_),
    ROW("Softsign", SOFTSIGN),
    ROW("Shrink", SHRINK),
    {"Gelu", NULL, prepare_gelu, 1, 1, 1, 0, 0},
    {"Gelu", "com.microsoft", prepare_gelu, 1, 1, 1, 0, 0},
    {"Swish", NULL, prepare_swish, 1, 1, 1, 0, 0},
    {"QuickGelu", "com.microsoft", prepare_swish, 1, 1, 1, 0, 0},
    {"PRelu", NULL, prepare_prelu, 2, 2, 1, 0, 0},
};

const cpu_op_family cpu_family_activation = {ops, CPU_COUNT_OF(ops)};
