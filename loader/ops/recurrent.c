/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM, GRU and RNN of the standard: both directions, both layouts.
 *
 * None is left in a bound graph. Each direction becomes
 *
 *   G = X W^T + biases     one product over all steps (Gemm), time first
 *   opipe.LSTM|GRU|RNN     the steps (recurrent_layer.c)
 *
 * and the directions are joined. Where the specification is silent, ONNX Runtime is followed: clip
 * acts on the inputs of the gates' activations, not on the LSTM's h(c); values of activation_alpha
 * and activation_beta go in turn to those activations that have such a number; a row without steps
 * keeps its initial state.
 */
#include <string.h>
#include <strings.h>

#include "loader/ops/common.h"
#include "loader/ops/recurrent.h"

enum { IN_X = 0, IN_W, IN_R, IN_B, IN_LENS, IN_H0, IN_C0, IN_P };
enum { MAX_FUNCTIONS = 6 };

typedef struct layer {
  opi_builder *b;
  const opi_node *node;
  opi_recurrence cell;
  int64_t gates, steps, batch, features, hidden;
  uint32_t directions;
  bool reverse; /* of the only direction */
  bool batch_first, linear_before_reset, input_forget;
  double clip;
  const char *function[MAX_FUNCTIONS]; /* [directions * functions] */
  float alpha[MAX_FUNCTIONS], beta[MAX_FUNCTIONS];
  uint32_t x; /* time first, flat: [S * B, I] */
} layer;

/* -- reading the node -------------------------------------------------------------------------- */

/* The activations of recurrent layers and the numbers that they have when none is given. */
typedef struct function_row {
  const char *name;
  bool has_alpha, has_beta;
  float alpha, beta;
} function_row;

static const function_row functions[] = {
    {"Sigmoid", false, false, 0, 0},     {"Tanh", false, false, 0, 0},
    {"Relu", false, false, 0, 0},        {"Affine", true, true, 1, 0},
    {"LeakyRelu", true, false, .01f, 0}, {"ThresholdedRelu", true, false, 1, 0},
    {"ScaledTanh", true, true, 1, 1},    {"HardSigmoid", true, true, .2f, .5f},
    {"Elu", true, false, 1, 0},          {"Softsign", false, false, 0, 0},
    {"Softplus", false, false, 0, 0},
};

static const char *const usual[3][3] = {
    {"Sigmoid", "Tanh", "Tanh"}, {"Sigmoid", "Tanh", NULL}, {"Tanh", NULL, NULL}};

static opipe_status find_function(const layer *l, const char *name, const function_row **out,
                                  opipe_error *err) {
  for (uint32_t i = 0; i < OPI_COUNT(functions); ++i) {
    if (strcasecmp(functions[i].name, name) == 0) {
      *out = &functions[i];
      return OPIPE_OK;
    }
  }
  return opi_node_fail(l->b, l->node, err, OPIPE_E_INVALID, "does not know activation '%.40s'",
                       name);
}

static opipe_status read_functions(layer *l, opipe_error *err) {
  const uint32_t each = opi_recurrence_functions(l->cell), n = each * l->directions;
  const opipe_attr *names = opi_attr_find(l->node, "activations");
  const opipe_attr *alphas = opi_attr_find(l->node, "activation_alpha");
  const opipe_attr *betas = opi_attr_find(l->node, "activation_beta");
  const bool given = names != NULL && names->kind == OPIPE_ATTR_STRINGS && names->n > 0;
  uint32_t a = 0, b = 0;
  if (given && names->n != n) {
    return opi_node_fail(l->b, l->node, err, OPIPE_E_INVALID,
                         "has %u activations, %u directions need %u", names->n, l->directions, n);
  }
  const uint32_t n_alpha = alphas != NULL && alphas->kind == OPIPE_ATTR_FLOATS ? alphas->n : 0;
  const uint32_t n_beta = betas != NULL && betas->kind == OPIPE_ATTR_FLOATS ? betas->n : 0;
  for (uint32_t i = 0; i < n; ++i) {
    const function_row *f = NULL;
    const char *name = given ? ((const char *const *)names->data)[i] : usual[l->cell][i % each];
    OPI_TRY(find_function(l, name, &f, err));
    l->function[i] = f->name;
    l->alpha[i] = f->has_alpha && a < n_alpha ? ((const float *)alphas->data)[a++] : f->alpha;
    l->beta[i] = f->has_beta && b < n_beta ? ((const float *)betas->data)[b++] : f->beta;
  }
  return OPIPE_OK;
}

static opipe_status read_attributes(layer *l, opipe_error *err) {
  const char *direction = opi_attr_string(l->node, "direction", "forward");
  const opipe_attr *clip = opi_attr_find(l->node, "clip");
  int64_t layout = 0;
  OPI_TRY(opi_int_attr(l->b, l->node, "layout", 0, &layout, err));
  l->reverse = strcmp(direction, "reverse") == 0;
  l->directions = strcmp(direction, "bidirectional") == 0 ? 2 : 1;
  if (l->directions == 1 && !l->reverse && strcmp(direction, "forward") != 0) {
    return opi_node_fail(l->b, l->node, err, OPIPE_E_INVALID,
                         "attribute direction is '%.40s', which is unknown", direction);
  }
  if (layout != 0 && layout != 1) {
    return opi_node_fail(l->b, l->node, err, OPIPE_E_INVALID,
                         "attribute layout is %lld, not 0 or 1", (long long)layout);
  }
  l->batch_first = layout == 1;
  l->linear_before_reset = opi_attr_int(l->node, "linear_before_reset", 0) != 0;
  l->input_forget = opi_attr_int(l->node, "input_forget", 0) != 0;
  l->clip = clip != NULL && clip->kind == OPIPE_ATTR_FLOAT ? (double)clip->f : 0;
  if (!(l->clip >= 0))
    return opi_node_fail(l->b, l->node, err, OPIPE_E_INVALID, "attribute clip is %g", l->clip);
  return read_functions(l, err);
}

static opipe_status read_shapes(layer *l, opipe_error *err) {
  opi_builder *b = l->b;
  const opi_node *node = l->node;
  OPI_TRY(opi_need(b, node, IN_X, "X", OPI_T_FLOAT, 3, 3, err));
  OPI_TRY(opi_need(b, node, IN_W, "W", OPI_T_FLOAT, 3, 3, err));
  OPI_TRY(opi_need(b, node, IN_R, "R", OPI_T_FLOAT, 3, 3, err));
  const opi_value *x = opi_input(b, node, IN_X);
  l->steps = x->shape[l->batch_first ? 1 : 0];
  l->batch = x->shape[l->batch_first ? 0 : 1];
  l->features = x->shape[2];
  l->hidden = opi_input(b, node, IN_R)->shape[2];
  const int64_t d = l->directions, h = l->hidden, hidden = opi_attr_int(node, "hidden_size", h);
  if (hidden != h || h < 1) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute hidden_size is %lld, input '%s' (R) has %lld units",
                         (long long)hidden, opi_input(b, node, IN_R)->name, (long long)h);
  }
  const int64_t w[3] = {d, l->gates * h, l->features}, r[3] = {d, l->gates * h, h};
  const int64_t bias[2] = {d, 2 * l->gates * h}, peep[2] = {d, 3 * h};
  const int64_t state[3] = {l->batch_first ? l->batch : d, l->batch_first ? d : l->batch, h};
  OPI_TRY(opi_need_shape(b, node, IN_W, w, 3, err));
  OPI_TRY(opi_need_shape(b, node, IN_R, r, 3, err));
  OPI_TRY(opi_may(b, node, IN_LENS, "sequence_lens", OPI_T_WIDE, 1, 1, err));
  OPI_TRY(opi_need_shape(b, node, IN_LENS, &l->batch, 1, err));
  for (uint32_t i = IN_W; i <= IN_P; ++i) {
    if (i == IN_LENS)
      continue;
    OPI_TRY(opi_may(b, node, i, "a parameter or state", OPI_T_FLOAT, 2, 3, err));
    OPI_TRY(opi_need_same_type(b, node, IN_X, i, err));
  }
  OPI_TRY(opi_need_shape(b, node, IN_B, bias, 2, err));
  OPI_TRY(opi_need_shape(b, node, IN_P, peep, 2, err));
  OPI_TRY(opi_need_shape(b, node, IN_H0, state, 3, err));
  return opi_need_shape(b, node, IN_C0, state, 3, err);
}

/* -- one direction ----------------------------------------------------------------------------- */

/* Part `d` of input i along `axis`, the axis gone. OPIPE_NONE where the input is absent. */
static opipe_status part(const layer *l, uint32_t i, uint32_t axis, uint32_t d, uint32_t *out,
                         opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK];
  *out = opi_node_in(l->node, i);
  if (*out == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_k_slice(l->b, *out, axis, d, d + 1, out, err));
  const opi_value v = *opi_b_value(l->b, *out);
  for (uint32_t a = 0, n = 0; a < (uint32_t)v.rank; ++a) {
    if (a != axis)
      shape[n++] = v.shape[a];
  }
  return opi_k_reshape(l->b, *out, shape, (uint32_t)v.rank - 1, out, err);
}

/* Biases added to X W^T, [N*H]; *out_extra: to h R^T of a GRU's last gate, if that is separate. */
static opipe_status biases(const layer *l, uint32_t d, uint32_t *out, uint32_t *out_extra,
                           opipe_error *err) {
  opi_builder *b = l->b;
  const int64_t n = l->gates * l->hidden, h = l->hidden;
  const bool apart = l->cell == OPI_RECURRENCE_GRU && l->linear_before_reset;
  uint32_t all, own, of_state;
  OPI_TRY(part(l, IN_B, 0, d, &all, err));
  *out = *out_extra = OPIPE_NONE;
  if (all == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_k_slice(b, all, 0, 0, n, &own, err));
  OPI_TRY(opi_k_slice(b, all, 0, n, apart ? n + 2 * h : 2 * n, &of_state, err));
  if (apart) {
    uint32_t in[2] = {of_state, opi_b_const_scalar(b, opi_b_value(b, all)->dtype, 0)};
    OPI_TRY(opi_k_const(in[1], err));
    OPI_TRY(opi_k_expand(b, in[1], &h, 1, &in[1], err));
    OPI_TRY(opi_k_concat(b, in, 2, 0, &of_state, err));
    OPI_TRY(opi_k_slice(b, all, 0, n + 2 * h, 2 * n, out_extra, err));
  }
  return opi_b_op2(b, "Add", own, of_state, out, err);
}

/* G [S,B,N*H] */
static opipe_status gates(const layer *l, uint32_t d, uint32_t *out, uint32_t *out_extra,
                          opipe_error *err) {
  uint32_t in[3] = {l->x, OPIPE_NONE, OPIPE_NONE}, y;
  const int64_t shape[3] = {l->steps, l->batch, l->gates * l->hidden};
  opi_attrs attrs = {.n = 0};
  OPI_TRY(part(l, IN_W, 0, d, &in[1], err));
  OPI_TRY(biases(l, d, &in[2], out_extra, err));
  opi_attrs_float(&attrs, "alpha", 1);
  opi_attrs_float(&attrs, "beta", 1);
  opi_attrs_int(&attrs, "transA", 0);
  opi_attrs_int(&attrs, "transB", 1);
  OPI_TRY(opi_k_one(l->b, "Gemm", 0, in, 3, &attrs, &y, err));
  return opi_k_reshape(l->b, y, shape, 3, out, err);
}

static opipe_attr list_attr(const char *name, uint32_t kind, const void *data, uint32_t n) {
  return (opipe_attr){.name = name, .data = data, .kind = kind, .n = n};
}

/* Y [S,B,H], Y_h and Y_c [B,H] of direction d. */
static opipe_status direction(const layer *l, uint32_t d, uint32_t *out, opipe_error *err) {
  uint32_t in[6];
  const uint32_t each = opi_recurrence_functions(l->cell), states = l->batch_first ? 1 : 0;
  const bool lstm = l->cell == OPI_RECURRENCE_LSTM;
  opi_attrs attrs = {.n = 0};
  OPI_TRY(gates(l, d, &in[OPI_REC_G], &in[OPI_REC_EXTRA], err));
  OPI_TRY(part(l, IN_R, 0, d, &in[OPI_REC_R], err));
  in[OPI_REC_LENS] = opi_node_in(l->node, IN_LENS);
  OPI_TRY(part(l, IN_H0, states, d, &in[OPI_REC_H0], err));
  OPI_TRY(part(l, IN_C0, states, d, &in[OPI_REC_C0], err));
  if (lstm)
    OPI_TRY(part(l, IN_P, 0, d, &in[OPI_REC_EXTRA], err));
  opi_attrs_int(&attrs, "reverse", l->directions == 2 ? d == 1 : l->reverse);
  opi_attrs_float(&attrs, "clip", l->clip);
  if (lstm)
    opi_attrs_int(&attrs, "input_forget", l->input_forget);
  if (l->cell == OPI_RECURRENCE_GRU)
    opi_attrs_int(&attrs, "linear_before_reset", l->linear_before_reset);
  attrs.list[attrs.n++] =
      list_attr("activations", OPIPE_ATTR_STRINGS, l->function + d * each, each);
  attrs.list[attrs.n++] =
      list_attr("activation_alpha", OPIPE_ATTR_FLOATS, l->alpha + d * each, each);
  attrs.list[attrs.n++] = list_attr("activation_beta", OPIPE_ATTR_FLOATS, l->beta + d * each, each);
  return opi_k_node(l->b, l->node->op, "opipe", 1, in, 6, lstm ? 7 : 3, &attrs, out, err);
}

/* -- joining ----------------------------------------------------------------------------------- */

/* parts [directions] of [.., B, H] to [.., D, B, H] along a new axis, in the file's layout. */
static opipe_status join(const layer *l, uint32_t output, const uint32_t *parts, opipe_error *err) {
  static const int64_t turn_y[4] = {2, 0, 1, 3}, turn_state[3] = {1, 0, 2};
  uint32_t placed[2], y;
  if (!opi_wants(l->node, output))
    return OPIPE_OK;
  const bool all = output == 0;
  const int64_t shape[4] = {l->steps, 1, l->batch, l->hidden};
  for (uint32_t d = 0; d < l->directions; ++d)
    OPI_TRY(opi_k_reshape(l->b, parts[d], all ? shape : shape + 1, all ? 4 : 3, &placed[d], err));
  y = placed[0];
  if (l->directions == 2)
    OPI_TRY(opi_k_concat(l->b, placed, 2, all ? 1 : 0, &y, err));
  if (l->batch_first)
    OPI_TRY(opi_k_transpose(l->b, y, all ? turn_y : turn_state, all ? 4 : 3, &y, err));
  return opi_b_result(l->b, l->node, output, y, err);
}

static opipe_status lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  static const int64_t turn[3] = {1, 0, 2};
  layer l = {.b = b, .node = node, .cell = opi_recurrence_of(node)};
  uint32_t made[2][3], parts[2];
  l.gates = opi_recurrence_gates(l.cell);
  OPI_TRY(read_attributes(&l, err));
  OPI_TRY(read_shapes(&l, err));
  const int64_t flat[2] = {l.steps * l.batch, l.features};
  l.x = node->in[IN_X];
  if (l.batch_first)
    OPI_TRY(opi_k_transpose(b, l.x, turn, 3, &l.x, err));
  OPI_TRY(opi_k_reshape(b, l.x, flat, 2, &l.x, err));
  for (uint32_t d = 0; d < l.directions; ++d)
    OPI_TRY(direction(&l, d, made[d], err));
  for (uint32_t output = 0; output < node->n_out; ++output) {
    for (uint32_t d = 0; d < l.directions; ++d)
      parts[d] = made[d][output];
    OPI_TRY(join(&l, output, parts, err));
  }
  return OPIPE_OK;
}

static const opi_op ops[] = {
    {OPI_OP("LSTM", "", 1, OPI_NEWEST_ONNX, 3, 8, 0, 3),
     OPI_ATTRS(22, OPI_A(FLOAT, "clip"), OPI_A(FLOATS, "activation_beta"),
               OPI_A(INT, "output_sequence", .until = 6, OPI_NO_EFFECT),
               OPI_A(FLOATS, "activation_alpha"), OPI_A(INT, "hidden_size"),
               OPI_A(STRING, "direction", OPI_TEXTS("forward reverse bidirectional")),
               OPI_A(INT, "input_forget", OPI_PRESET(0)), OPI_A(STRINGS, "activations"),
               OPI_A(INT, "layout", .since = 14, OPI_PRESET(0))),
     .lift = lift},
    {OPI_OP("GRU", "", 1, OPI_NEWEST_ONNX, 3, 6, 0, 2),
     OPI_ATTRS(22, OPI_A(FLOAT, "clip"), OPI_A(FLOATS, "activation_beta"),
               OPI_A(INT, "output_sequence", .until = 6, OPI_NO_EFFECT),
               OPI_A(FLOATS, "activation_alpha"), OPI_A(INT, "hidden_size"),
               OPI_A(STRING, "direction", OPI_TEXTS("forward reverse bidirectional")),
               OPI_A(STRINGS, "activations"),
               OPI_A(INT, "linear_before_reset", .since = 3, OPI_PRESET(0)),
               OPI_A(INT, "layout", .since = 14, OPI_PRESET(0))),
     .lift = lift},
    {OPI_OP("RNN", "", 1, OPI_NEWEST_ONNX, 3, 6, 0, 2),
     OPI_ATTRS(22, OPI_A(FLOAT, "clip"), OPI_A(FLOATS, "activation_beta"),
               OPI_A(INT, "output_sequence", .until = 6, OPI_NO_EFFECT),
               OPI_A(FLOATS, "activation_alpha"), OPI_A(INT, "hidden_size"),
               OPI_A(STRING, "direction", OPI_TEXTS("forward reverse bidirectional")),
               OPI_A(STRINGS, "activations"), OPI_A(INT, "layout", .since = 14, OPI_PRESET(0))),
     .lift = lift},
};

extern const opi_op_family opi_ops_recurrent;
const opi_op_family opi_ops_recurrent = {ops, OPI_COUNT(ops)};
