/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.ActivationGrad: dX = dY f'(X), element by element.
 *
 * Where a function has a corner its derivative is that of the side PyTorch takes: 0 for Relu at 0.
 */
#include <tgmath.h>

#include "map.h"

#define SIGMOID(X) ((real)1 / ((real)1 + exp(-(X))))
#define SOFTPLUS(X) ((X) > 0 ? (X) + log1p(exp(-(X))) : log1p(exp(X)))

/* name_f32 and name_f64: d is the gradient, x the input, p and q the parameters. */
#define GRAD_TYPE(NAME, T, EXPR)                                                              \
  CPU_MAP_TYPE(NAME, T, const real *dy = in[0]; const real *a = in[1];, const real d = dy[k]; \
               const real x = a[k];, EXPR)
#define GRAD(NAME, EXPR)             \
  GRAD_TYPE(NAME##_f32, float, EXPR) \
  GRAD_TYPE(NAME##_f64, double, EXPR)

#define ROOT_2_PI ((real)0.79788456080286535588)
#define TANH_ARG(X) (ROOT_2_PI * ((X) + (real)0.044715 * (X) * (X) * (X)))
#define SLOPE(T, X)              \
  ((real)0.5 * ((real)1 + (T)) + \
   (real)0.5 * (X) * ((real)1 - (T) * (T)) * ROOT_2_PI * ((real)1 + (real)0.134145 * (X) * (X)))

GRAD(relu, x > 0 ? d : x != x ? x : (real)0)
GRAD(sigmoid, d *SIGMOID(x) * ((real)1 - SIGMOID(x)))
GRAD(hyperbolic, d *((real)1 - tanh(x) * tanh(x)))
GRAD(gelu_erf, d *((real)0.5 * ((real)1 + erf(x * (real)0.70710678118654752440)) +
                   x * (real)0.39894228040143267794 * exp((real)-0.5 * x * x)))
GRAD(gelu_tanh, d *SLOPE(tanh(TANH_ARG(x)), x))
GRAD(swish, d *SIGMOID(p *x) * ((real)1 + p * x * ((real)1 - SIGMOID(p * x))))
GRAD(error, d *(real)1.12837916709551257390 * exp(-x * x))
GRAD(elu, x > 0 ? d : d * p * exp(x))
GRAD(celu, x > 0 ? d : d * exp(x / p))
GRAD(selu, d *q *(x > 0 ? (real)1 : p * exp(x)))
GRAD(leaky_relu, x < 0 ? p * d : d)
GRAD(thresholded_relu, x > p ? d : (real)0)
GRAD(mish,
     d *(tanh(SOFTPLUS(x)) + x * SIGMOID(x) * ((real)1 - tanh(SOFTPLUS(x)) * tanh(SOFTPLUS(x)))))
GRAD(hard_swish, x <= -3 ? (real)0 : x >= 3 ? d : d * (x / (real)3 + (real)0.5))
GRAD(hard_sigmoid, p *x + q > 0 && p * x + q < 1 ? p * d : (real)0)
GRAD(softplus, d *SIGMOID(x))
GRAD(softsign, d / (((real)1 + fabs(x)) * ((real)1 + fabs(x))))

typedef struct activation_row {
  const char *name;
  cpu_map map;
} activation_row;

#define ROW(NAME, FN, ATTR1, DEFAULT1, ATTR2, DEFAULT2)                                   \
  {                                                                                       \
    NAME, {                                                                               \
      {FN##_f32, FN##_f64, NULL, NULL}, {ATTR1, ATTR2}, {DEFAULT1, DEFAULT2}, CPU_NO_FAST \
    }                                                                                     \
  }

static const activation_row rows[] = {
    ROW("Relu", relu, NULL, 0, NULL, 0),
    ROW("Sigmoid", sigmoid, NULL, 0, NULL, 0),
    ROW("Tanh", hyperbolic, NULL, 0, NULL, 0),
    ROW("Gelu", gelu_erf, NULL, 0, NULL, 0),
    ROW("GeluTanh", gelu_tanh, NULL, 0, NULL, 0),
    ROW("QuickGelu", swish, "alpha", 1.702, NULL, 0),
    ROW("Swish", swish, "alpha", 1.0, NULL, 0),
    ROW("Erf", error, NULL, 0, NULL, 0),
    ROW("Elu", elu, "alpha", 1.0, NULL, 0),
    ROW("Celu", celu, "alpha", 1.0, NULL, 0),
    ROW("Selu", selu, "alpha", 1.67326319217681884765625, "gamma", 1.05070102214813232421875),
    ROW("LeakyRelu", leaky_relu, "alpha", 0.01, NULL, 0),
    ROW("ThresholdedRelu", thresholded_relu, "alpha", 1.0, NULL, 0),
    ROW("Mish", mish, NULL, 0, NULL, 0),
    ROW("HardSwish", hard_swish, NULL, 0, NULL, 0),
    ROW("HardSigmoid", hard_sigmoid, "alpha", 0.2, "beta", 0.5),
    ROW("Softplus", softplus, NULL, 0, NULL, 0),
    ROW("Softsign", softsign, NULL, 0, NULL, 0),
};

typedef struct fast_plan {
  cpu_activation activation;
} fast_plan;

static opipe_status fast_kernel(const cpu_call *call, opipe_error *err) {
  const fast_plan *plan = call->plan;
  (void)err;
  cpu_activation_grad(call->exec, plan->activation, call->in[0].data, call->in[1].data,
                      call->out[0].data, (int64_t)call->out[0].n);
  return OPIPE_OK;
}

/* fp16 and bf16, chunk by chunk through fp32. */
static void half_chunks(void *ctx, int64_t begin, int64_t end) {
  enum { CHUNK = 2048 };
  const cpu_call *call = ctx;
  const fast_plan *plan = call->plan;
  const cpu_exec alone = cpu_alone(call->exec);
  const cpu_dtype dtype = cpu_storage_type(call->out[0].dtype);
  _Alignas(CPU_ALIGN_BYTES) float buffer[2][CHUNK];
  for (int64_t first = begin; first < end; first += CHUNK) {
    const int64_t n = end - first < CHUNK ? end - first : CHUNK;
    for (int i = 0; i < 2; ++i)
      cpu_convert(&alone, dtype, (const uint16_t *)call->in[i].data + first, CPU_F32, buffer[i], n);
    cpu_activation_grad(&alone, plan->activation, buffer[0], buffer[1], buffer[0], n);
    cpu_convert(&alone, CPU_F32, buffer[0], dtype, (uint16_t *)call->out[0].data + first, n);
  }
}

static opipe_status half_kernel(const cpu_call *call, opipe_error *err) {
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, (int64_t)call->out[0].n, (int64_t)call->out[0].n, half_chunks, &copy);
  return OPIPE_OK;
}

/* The activation, where there is a vector kernel. */
static cpu_activation known_activation(const opipe_node *node, const char *name) {
  static const struct {
    const char *name;
    cpu_activation activation;
  } known[] = {{"Relu", CPU_ACT_RELU},
               {"Sigmoid", CPU_ACT_SIGMOID},
               {"Tanh", CPU_ACT_TANH},
               {"Gelu", CPU_ACT_GELU_ERF},
               {"GeluTanh", CPU_ACT_GELU_TANH}};
  for (uint32_t i = 0; i < CPU_COUNT_OF(known); ++i) {
    if (strcmp(known[i].name, name) == 0)
      return known[i].activation;
  }
  const bool quick = strcmp(name, "QuickGelu") == 0;
  if (quick || strcmp(name, "Swish") == 0) {
    const float alpha = (float)opipe_attr_float(node, "alpha", quick ? 1.702 : 1.0);
    return alpha == 1.0f ? CPU_ACT_SILU : alpha == 1.702f ? CPU_ACT_GELU_QUICK : CPU_ACT_NONE;
  }
  return CPU_ACT_NONE;
}

/* Takes the vector kernel: fp32, both inputs of one shape. */
static opipe_status choose_fast(cpu_prep *p, cpu_activation activation) {
  const opipe_value *x = cpu_in(p, 1);
  fast_plan *plan = CPU_PLAN(p, fast_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  plan->activation = activation;
  cpu_want_layout(p, 0, CPU_LAYOUT_COPY);
  cpu_want_layout(p, 1, CPU_LAYOUT_COPY);
  p->step->inplace = 0;
  for (uint32_t i = 0; i < 2; ++i)
    p->step->inplace |= cpu_elems(cpu_in(p, i)) == cpu_elems(x) ? 1u << i : 0;
  p->step->run = cpu_is_half(x->dtype) ? half_kernel : fast_kernel;
  return OPIPE_OK;
}

static opipe_status prepare_activation_grad(cpu_prep *p) {
  const char *name = opipe_attr_string(p->node, "activation", "");
  CPU_TRY(cpu_expect_like(p, 0, cpu_in(p, 1)));
  for (uint32_t i = 0; i < CPU_COUNT_OF(rows); ++i) {
    if (strcmp(rows[i].name, name) == 0) {
      const cpu_activation known = known_activation(p->node, name);
      if (p->fast && known != CPU_ACT_NONE && cpu_in(p, 0)->dtype == cpu_in(p, 1)->dtype &&
          (cpu_in(p, 1)->dtype == OPIPE_FLOAT || cpu_is_half(cpu_in(p, 1)->dtype)) &&
          cpu_elems(cpu_in(p, 0)) == cpu_elems(cpu_in(p, 1)))
        return choose_fast(p, known);
      return cpu_prepare_map(p, &rows[i].map, 0);
    }
  }
  return cpu_refuse(p, "activation '%.40s' is not known", name);
}

static const cpu_op ops[] = {
    {"ActivationGrad", "opipe", prepare_activation_grad, 2, 2, 1, 0, 0},
};

const cpu_op_family cpu_family_activation_grad = {ops, CPU_COUNT_OF(ops)};
