/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.LSTM, GRU, RNN: recurrent layers of one direction, forwards.
 *
 * G holds what the layer's input gives to the gates (one product over all steps, in front of this
 * operator). Every step is a product of the state of all rows by R and a launch of one kernel; a
 * GRU without linear_before_reset has two of each, since its last gate's product is of r h. State
 * and sums lie in the workspace, behind what the products need of it:
 *
 *   [ products' | state | cell | h | sums ]     state, cell, sums in float (double of double)
 *
 * A row whose steps have ended keeps its state, and its Y is 0. Bits of a row depend on no other
 * row's values.
 */
#include "ops/rule.h"

enum { MOST_PRODUCTS = 4096 };

/* Inputs. */
enum { IN_G, IN_R, IN_LENS, IN_H0, IN_C0, IN_EXTRA };

typedef struct layer {
  cuda_recurrent_args args; /* all but addresses, step and part */
  uint32_t dtype, real;     /* types of elements, of sums */
  bool is_lstm, is_gru;
  bool resets;                              /* a GRU that resets in front of its last product */
  uint64_t state, cell, h, sums, workspace; /* offsets in the workspace, and its bytes */
} layer;

/* ---- attributes and shapes ---- */

static opipe_status read_activations(const cuda_rule *r, layer *l) {
  static const struct {
    const char *name;
    uint32_t code;
  } known[] = {{"Sigmoid", CUDA_MAP_SIGMOID},
               {"Tanh", CUDA_MAP_TANH},
               {"Relu", CUDA_MAP_RELU},
               {"Affine", CUDA_GATE_AFFINE},
               {"LeakyRelu", CUDA_MAP_LEAKYRELU},
               {"ThresholdedRelu", CUDA_MAP_THRESHOLDEDRELU},
               {"ScaledTanh", CUDA_GATE_SCALED_TANH},
               {"HardSigmoid", CUDA_MAP_HARDSIGMOID},
               {"Elu", CUDA_MAP_ELU},
               {"Softsign", CUDA_MAP_SOFTSIGN},
               {"Softplus", CUDA_MAP_SOFTPLUS}};
  const uint32_t n = l->is_lstm ? 3 : l->is_gru ? 2 : 1;
  const opipe_attr *list = opipe_attr_find(r->node, "activations");
  const opipe_attr *alpha = opipe_attr_find(r->node, "activation_alpha");
  const opipe_attr *beta = opipe_attr_find(r->node, "activation_beta");
  if (list == NULL || list->kind != OPIPE_ATTR_STRINGS || list->n != n || alpha == NULL ||
      alpha->kind != OPIPE_ATTR_FLOATS || alpha->n != n || beta == NULL ||
      beta->kind != OPIPE_ATTR_FLOATS || beta->n != n) {
    return cuda_refuse(r, OPIPE_E_INVALID,
                       "its activations are not %u names and as many alphas and betas", n);
  }
  for (uint32_t i = 0; i < n; ++i) {
    const char *name = ((const char *const *)list->data)[i];
    size_t k = 0;
    while (k < sizeof known / sizeof known[0] && strcmp(name, known[k].name) != 0)
      ++k;
    if (k == sizeof known / sizeof known[0])
      return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "it does not know activation '%.40s'", name);
    l->args.activation[i] = known[k].code;
    l->args.alpha[i] = (double)((const float *)alpha->data)[i];
    l->args.beta[i] = (double)((const float *)beta->data)[i];
  }
  return OPIPE_OK;
}

static bool is_like(const opipe_value *x, uint32_t dtype, uint32_t rank, int64_t a, int64_t b) {
  return x == NULL || (x->dtype == dtype && x->rank == rank && x->shape[0] == a &&
                       (rank < 2 || x->shape[1] == b));
}

static opipe_status check_shapes(const cuda_rule *r, layer *l) {
  const opipe_value *g = cuda_in(r, IN_G), *by = cuda_in(r, IN_R), *lens = cuda_in(r, IN_LENS);
  const int64_t gates = l->args.gates;
  if (g->rank != 3 || by->rank != 2 || by->dtype != g->dtype || by->shape[1] < 1 ||
      by->shape[0] != gates * by->shape[1] || g->shape[2] != by->shape[0]) {
    return cuda_refuse(r, OPIPE_E_INVALID, "'%.80s' and '%.80s' are not of %lld gates", g->name,
                       by->name, (long long)gates);
  }
  l->args.steps = g->shape[0];
  l->args.batch = g->shape[1];
  l->args.hidden = by->shape[1];
  const int64_t batch = l->args.batch, hidden = l->args.hidden;
  if (!is_like(lens, OPIPE_INT32, 1, batch, 0) && !is_like(lens, OPIPE_INT64, 1, batch, 0)) {
    return cuda_refuse(r, OPIPE_E_INVALID, "'%.80s' is not a length for each of %lld rows",
                       lens->name, (long long)batch);
  }
  for (uint32_t i = IN_H0; i <= IN_C0; ++i) {
    if (!is_like(cuda_in(r, i), g->dtype, 2, batch, hidden)) {
      return cuda_refuse(r, OPIPE_E_INVALID, "'%.80s' is not a state of %lld rows of %lld units",
                         cuda_in(r, i)->name, (long long)batch, (long long)hidden);
    }
  }
  if (!is_like(cuda_in(r, IN_EXTRA), g->dtype, 1, (l->is_lstm ? 3 : 1) * hidden, 0)) {
    return cuda_refuse(r, OPIPE_E_INVALID, "'%.80s' does not fit %lld units",
                       cuda_in(r, IN_EXTRA)->name, (long long)hidden);
  }
  l->args.lens_bytes = lens != NULL ? cuda_size(lens) : 0;
  return OPIPE_OK;
}

static opipe_status check_outputs(const cuda_rule *r, const layer *l) {
  const int64_t y[3] = {l->args.steps, l->args.batch, l->args.hidden};
  if (cuda_out(r, 0) != NULL)
    CUDA_TRY(cuda_expect(r, 0, l->dtype, y, 3));
  for (uint32_t i = 1; i < r->node->n_out; ++i) {
    if (cuda_out(r, i) != NULL)
      CUDA_TRY(cuda_expect(r, i, l->dtype, y + 1, 2));
  }
  return OPIPE_OK;
}

static opipe_status read_layer(const cuda_rule *r, layer *l) {
  const opipe_value *g = cuda_in(r, IN_G);
  memset(l, 0, sizeof *l);
  l->is_lstm = strcmp(r->node->op, "LSTM") == 0;
  l->is_gru = strcmp(r->node->op, "GRU") == 0;
  l->resets = l->is_gru && opipe_attr_int(r->node, "linear_before_reset", 0) == 0;
  l->dtype = g->dtype;
  l->real = g->dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
  l->args.gates = l->is_lstm ? 4 : l->is_gru ? 3 : 1;
  l->args.reverse = opipe_attr_int(r->node, "reverse", 0) != 0;
  l->args.input_forget = opipe_attr_int(r->node, "input_forget", 0) != 0;
  l->args.clip = opipe_attr_float(r->node, "clip", 0);
  if (!cuda_is_float(g->dtype))
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "it does not take %s", opipe_dtype_name(g->dtype));
  CUDA_TRY(check_shapes(r, l));
  if (l->args.steps * (l->resets ? 2 : 1) > MOST_PRODUCTS) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%lld products of its steps, at most %d",
                       (long long)l->args.steps * (l->resets ? 2 : 1), MOST_PRODUCTS);
  }
  CUDA_TRY(check_outputs(r, l));
  return read_activations(r, l);
}

/* ---- products ---- */

/* sums[:, gates] = h R[gates]^T, gates [first, first + n); see product.c for the order. */
static cuda_product product_of(const layer *l, uint32_t first, uint32_t n) {
  const int64_t hidden = l->args.hidden;
  const uint64_t size = opipe_dtype_bits(l->dtype) / 8, real = opipe_dtype_bits(l->real) / 8;
  return (cuda_product){.m = n * hidden,
                        .n = l->args.batch,
                        .k = hidden,
                        .batch = 1,
                        .a_distance = hidden,
                        .b_distance = hidden,
                        .d_distance = l->args.gates * hidden,
                        .a_offset = first * (uint64_t)(hidden * hidden) * size,
                        .d_offset = first * (uint64_t)hidden * real,
                        .alpha = 1.0,
                        .dtype = l->dtype,
                        .d_dtype = l->real,
                        .trans_a = 1};
}

static opipe_status emit_product(cuda_rule *r, const layer *l, uint32_t first, uint32_t n) {
  const cuda_product product = product_of(l, first, n);
  CUDA_TRY(cuda_emit_product(r, &product));
  cuda_want_workspace(r, l->workspace);
  CUDA_TRY(
      cuda_point(r, offsetof(cuda_product_args, a), r->node->in[IN_R], (int64_t)product.a_offset));
  CUDA_TRY(cuda_point(r, offsetof(cuda_product_args, b), CUDA_AT_WORKSPACE, (int64_t)l->h));
  return cuda_point(r, offsetof(cuda_product_args, d), CUDA_AT_WORKSPACE,
                    (int64_t)(l->sums + product.d_offset));
}

/* ---- the workspace ---- */

/* Workspace that products of n gates from `first` on need in front of the rest. */
static opipe_status reserve(const cuda_rule *r, layer *l, uint32_t first, uint32_t n) {
  cuda_product product = product_of(l, first, n);
  opipe_error why = OPIPE_ERROR_INIT;
  const opipe_status status = cuda_product_choose(r->program->device, &product, &why);
  if (status < 0)
    return cuda_refuse(r, status, "%s", why.message);
  if (product.choice.workspace_bytes > l->workspace)
    l->workspace = product.choice.workspace_bytes;
  return OPIPE_OK;
}

static uint64_t put_behind(layer *l, uint64_t n_elems, uint32_t dtype) {
  const uint64_t at = l->workspace;
  l->workspace += cuda_align_up(n_elems * (opipe_dtype_bits(dtype) / 8));
  return at;
}

static opipe_status arrange(const cuda_rule *r, layer *l) {
  const uint64_t n = (uint64_t)l->args.batch * (uint64_t)l->args.hidden;
  CUDA_TRY(reserve(r, l, 0, l->resets ? 2 : l->args.gates));
  if (l->resets)
    CUDA_TRY(reserve(r, l, 2, 1));
  l->workspace = cuda_align_up(l->workspace);
  l->state = put_behind(l, n, l->real);
  l->cell = put_behind(l, n, l->real);
  l->h = put_behind(l, n, l->dtype);
  l->sums = put_behind(l, n * l->args.gates, l->real);
  return OPIPE_OK;
}

/* ---- steps ---- */

static opipe_status emit_part(cuda_rule *r, const layer *l, uint32_t part, int64_t step) {
  cuda_recurrent_args args = l->args;
  cuda_launch launch;
  args.part = part;
  args.step = step;
  args.g = cuda_at_in(r, IN_G);
  args.lens = cuda_at_in(r, IN_LENS);
  args.h0 = cuda_at_in(r, IN_H0);
  args.c0 = cuda_at_in(r, IN_C0);
  args.extra = cuda_at_in(r, IN_EXTRA);
  args.y = cuda_at_out(r, 0);
  args.last_h = cuda_at_out(r, 1);
  args.last_c = cuda_at_out(r, 2);
  args.state = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)l->state);
  args.cell = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)l->cell);
  args.h = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)l->h);
  args.sums = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)l->sums);
  if (part == CUDA_RECURRENT_BEGIN && args.lens != NULL)
    CUDA_TRY(cuda_at_status(r, &args.status, &args.node));
  if (!cuda_plan_recurrent(&args, l->dtype, &launch))
    return cuda_no_kernel(r, cuda_in(r, IN_G));
  CUDA_TRY(cuda_emit(r, &launch));
  cuda_want_workspace(r, l->workspace);
  return OPIPE_OK;
}

static opipe_status emit_time_step(cuda_rule *r, const layer *l, int64_t step) {
  CUDA_TRY(emit_product(r, l, 0, l->resets ? 2 : l->args.gates));
  if (l->resets) {
    CUDA_TRY(emit_part(r, l, CUDA_RECURRENT_RESET, step));
    CUDA_TRY(emit_product(r, l, 2, 1));
  }
  return emit_part(r, l,
                   l->resets    ? CUDA_RECURRENT_RENEW
                   : l->is_lstm ? CUDA_RECURRENT_LSTM
                   : l->is_gru  ? CUDA_RECURRENT_GRU
                                : CUDA_RECURRENT_RNN,
                   step);
}

static opipe_status rule_recurrent(cuda_rule *r) {
  layer l;
  CUDA_TRY(read_layer(r, &l));
  CUDA_TRY(arrange(r, &l));
  CUDA_TRY(emit_part(r, &l, CUDA_RECURRENT_BEGIN, 0));
  for (int64_t step = 0; l.args.batch > 0 && step < l.args.steps; ++step)
    CUDA_TRY(emit_time_step(r, &l, step));
  return cuda_out(r, 1) != NULL || cuda_out(r, 2) != NULL
             ? emit_part(r, &l, CUDA_RECURRENT_END, l.args.steps)
             : OPIPE_OK;
}

static const cuda_row rows[] = {{"LSTM", rule_recurrent, 2, 6, 3},
                                {"GRU", rule_recurrent, 2, 6, 3},
                                {"RNN", rule_recurrent, 2, 6, 3}};

const cuda_family cuda_recurrent_family = {"opipe", CUDA_ROWS(rows)};
