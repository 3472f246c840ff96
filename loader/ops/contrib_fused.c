/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft FusedGemm and FusedConv, which ONNX Runtime's optimiser makes of a product or a
 * convolution and the activation behind it. They become the two again.
 *
 * FusedGemm    A, B, C?;     attributes of Gemm, activation, activation_alpha, _beta, _gamma
 * FusedConv    X, W, B?, Z?; attributes of Conv, activation, activation_params; Z is added before
 *              the activation; without `activation` there is none
 *
 * Numbers that an activation needs have no default there, as in ONNX Runtime.
 */
#include <stdio.h>

#include "loader/ops/contrib.h"
#include "loader/ops/conv.h"

enum { NUMBERS_MOST = 2, IN_GEMM = 1, IN_CONV = 2 };

/* An activation of the standard: its attributes in the order of activation_params. Clip's are
 * inputs. */
typedef struct activation {
  const char *op;
  const char *numbers[NUMBERS_MOST];
  uint32_t version, where;
} activation;
static const activation activations[] = {
    {"Relu", {NULL}, 14, IN_GEMM | IN_CONV},
    {"Sigmoid", {NULL}, 13, IN_GEMM | IN_CONV},
    {"Tanh", {NULL}, 13, IN_GEMM | IN_CONV},
    {"LeakyRelu", {"alpha"}, 16, IN_GEMM | IN_CONV},
    {"HardSigmoid", {"alpha", "beta"}, 22, IN_GEMM | IN_CONV},
    {"Elu", {"alpha"}, 22, IN_GEMM},
    {"Celu", {"alpha"}, 12, IN_GEMM},
    {"Selu", {"alpha", "gamma"}, 22, IN_GEMM},
    {"ThresholdedRelu", {"alpha"}, 22, IN_GEMM},
    {"Softplus", {NULL}, 22, IN_GEMM},
    {"Softsign", {NULL}, 22, IN_GEMM},
    {"HardSwish", {NULL}, 22, IN_CONV},
    {"Clip", {"min", "max"}, 13, IN_CONV},
};

static opipe_status find_activation(const opi_builder *b, const opi_node *node, uint32_t where,
                                    const activation **out, opipe_error *err) {
  const char *name = opi_attr_string(node, "activation", "");
  for (size_t i = 0; i < OPI_COUNT(activations); ++i) {
    if (strcmp(activations[i].op, name) == 0 && (activations[i].where & where) != 0) {
      *out = &activations[i];
      return OPIPE_OK;
    }
  }
  return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                       "attribute activation is '%.40s', which %s does not have", name, node->op);
}

static opipe_status emit_activation(opi_builder *b, const opi_node *node, const activation *a,
                                    const double *numbers, uint32_t x, opipe_error *err) {
  uint32_t in[1 + NUMBERS_MOST] = {x, OPIPE_NONE, OPIPE_NONE}, n_in = 1, y;
  opi_attrs attrs = {.n = 0};
  for (uint32_t i = 0; i < NUMBERS_MOST && a->numbers[i] != NULL; ++i) {
    if (strcmp(a->op, "Clip") == 0) {
      in[n_in] = opi_b_const_scalar(b, opi_b_value(b, x)->dtype, numbers[i]);
      OPI_TRY(opi_k_const(in[n_in++], err));
    } else {
      opi_attrs_float(&attrs, a->numbers[i], numbers[i]);
    }
  }
  OPI_TRY(opi_k_one(b, a->op, a->version, in, n_in, &attrs, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

/* -- FusedGemm --------------------------------------------------------------------------------- */

static opipe_status gemm_numbers(const opi_builder *b, const opi_node *node, const activation *a,
                                 double *out, opipe_error *err) {
  char name[32];
  for (uint32_t i = 0; i < NUMBERS_MOST && a->numbers[i] != NULL; ++i) {
    (void)snprintf(name, sizeof name, "activation_%s", a->numbers[i]);
    const opipe_attr *attr = opi_attr_find(node, name);
    if (attr == NULL || attr->kind != OPIPE_ATTR_FLOAT) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute %s is missing: %s needs it",
                           name, a->op);
    }
    out[i] = attr->f;
  }
  return OPIPE_OK;
}

opipe_status opi_ms_gemm_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  const uint32_t n_in = opi_node_in(node, 2) == OPIPE_NONE ? 2 : 3;
  const activation *a = NULL;
  double numbers[NUMBERS_MOST] = {0, 0};
  opi_attrs attrs = {.n = 0};
  uint32_t y;
  OPI_TRY(find_activation(b, node, IN_GEMM, &a, err));
  OPI_TRY(gemm_numbers(b, node, a, numbers, err));
  OPI_TRY(opi_need(b, node, 0, "A", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_need(b, node, 1, "B", OPI_T_FLOAT, 2, 2, err));
  opi_attrs_float(&attrs, "alpha", opi_attr_float(node, "alpha", 1.0));
  opi_attrs_float(&attrs, "beta", opi_attr_float(node, "beta", 1.0));
  opi_attrs_int(&attrs, "transA", opi_attr_int(node, "transA", 0) != 0);
  opi_attrs_int(&attrs, "transB", opi_attr_int(node, "transB", 0) != 0);
  OPI_TRY(opi_k_one(b, "Gemm", 13, node->in, n_in, &attrs, &y, err));
  return emit_activation(b, node, a, numbers, y, err);
}

/* -- FusedConv --------------------------------------------------------------------------------- */

static opipe_status conv_numbers(const opi_builder *b, const opi_node *node, const activation *a,
                                 double *out, opipe_error *err) {
  const opipe_attr *list = opi_attr_find(node, "activation_params");
  const uint32_t n = list != NULL && list->kind == OPIPE_ATTR_FLOATS ? list->n : 0;
  uint32_t need = 0;
  for (; need < NUMBERS_MOST && a->numbers[need] != NULL; ++need)
    out[need] = need < n ? (double)((const float *)list->data)[need] : 0;
  if (n < need) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute activation_params has %u numbers, %s needs %u", n, a->op, need);
  }
  return OPIPE_OK;
}

/* Z: of the convolution's own shape. */
static opipe_status add_residual(opi_builder *b, const opi_node *node, uint32_t *io,
                                 opipe_error *err) {
  if (opi_node_in(node, 3) == OPIPE_NONE)
    return OPIPE_OK;
  const opi_value y = *opi_b_value(b, *io);
  OPI_TRY(opi_need(b, node, 3, "Z", OPI_T_FLOAT, y.rank, y.rank, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 3, err));
  OPI_TRY(opi_need_shape(b, node, 3, y.shape, (uint32_t)y.rank, err));
  return opi_b_op2(b, "Add", *io, node->in[3], io, err);
}

opipe_status opi_ms_conv_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  const activation *a = NULL;
  double numbers[NUMBERS_MOST] = {0, 0};
  uint32_t y;
  if (opi_attr_find(node, "activation") != NULL) {
    OPI_TRY(find_activation(b, node, IN_CONV, &a, err));
    OPI_TRY(conv_numbers(b, node, a, numbers, err));
  }
  OPI_TRY(opi_conv_emit(b, node, &y, err));
  OPI_TRY(add_residual(b, node, &y, err));
  return a == NULL ? opi_b_result(b, node, 0, y, err)
                   : emit_activation(b, node, a, numbers, y, err);
}
