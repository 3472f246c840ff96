/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of training beside the operators of inference (domain opipe): Accumulate, gradients of
 * activations, softmax, Gather and Attention; Dropout by counter. Norms: norm_gradient.c. */
#include "ops/attention.h"

/* ---- sums into accumulators ---- */

static opipe_status rule_accumulate(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0), *g = cuda_out(r, 0);
  cuda_launch launch;
  if (g == NULL || g->role != OPIPE_VALUE_GRADIENT)
    return cuda_refuse(r, OPIPE_E_INVALID, "its output is not a gradient");
  CUDA_TRY(cuda_expect(r, 0, OPIPE_FLOAT, x->shape, x->rank));
  const cuda_accumulate_args args = {cuda_at_out(r, 0), cuda_at_in(r, 0), (int64_t)cuda_elems(x)};
  return cuda_plan_accumulate(&args, x->dtype, &launch) ? cuda_emit(r, &launch)
                                                        : cuda_no_kernel(r, x);
}

/* Which axis, and dX's rows [outer, extent, inner]; dY has as many rows as there are indices. */
static opipe_status read_gather(const cuda_rule *r, cuda_scatter_args *args) {
  const opipe_value *dy = cuda_in(r, 0), *indices = cuda_in(r, 1), *dx = cuda_out(r, 0);
  uint32_t n = 0, axis = 0;
  const int64_t *shape = opipe_attr_ints(r->node, "shape", &n);
  uint64_t total = 0;
  if (shape == NULL || n > OPIPE_MAX_RANK)
    return cuda_refuse(r, OPIPE_E_INVALID, "it has no shape");
  CUDA_TRY(cuda_expect(r, 0, dy->dtype, shape, n));
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", 0), n, &axis));
  args->outer = cuda_extent(dx, 0, axis);
  args->extent = dx->shape[axis];
  args->inner = cuda_extent(dx, axis + 1, n);
  args->n = (int64_t)cuda_elems(indices);
  args->index_bytes = cuda_size(indices);
  CUDA_TRY(cuda_read_range(r, args->extent, &args->first, &args->whole));
  if ((indices->dtype != OPIPE_INT32 && indices->dtype != OPIPE_INT64) ||
      !cuda_is_float(dy->dtype)) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%s rows by indices of %s",
                       opipe_dtype_name(dy->dtype), opipe_dtype_name(indices->dtype));
  }
  if (__builtin_mul_overflow((uint64_t)(args->outer * args->inner), (uint64_t)args->n, &total) ||
      total != cuda_elems(dy)) {
    return cuda_refuse(r, OPIPE_E_INVALID, "its gradient does not have %lld rows of %lld",
                       (long long)(args->outer * args->n), (long long)args->inner);
  }
  return OPIPE_OK;
}

static opipe_status rule_gather_grad(cuda_rule *r) {
  const opipe_value *dy = cuda_in(r, 0);
  cuda_scatter_args args = {.form = CUDA_SCATTER_AXIS, .kind = 1};
  CUDA_TRY(read_gather(r, &args));
  const bool adds = cuda_accumulator(r, 0) != OPIPE_NONE;
  if (!adds)
    CUDA_TRY(cuda_emit_zeros(r));
  if (args.n == 0)
    return OPIPE_OK;
  args.updates = cuda_at_in(r, 0);
  args.indices = cuda_at_in(r, 1);
  args.out = cuda_at_out(r, 0);
  return cuda_emit_scatter(r, &args, dy->dtype, adds ? (uint32_t)OPIPE_FLOAT : dy->dtype);
}

/* ---- element by element, and rows ---- */

/* For a gate: dY is a product that is made along. */
static opipe_status emit_gate_grad(cuda_rule *r, const opipe_node *front,
                                   const cuda_map_args *like) {
  const opipe_value *x = cuda_in(r, 1);
  const cuda_gate_grad_args args = {.dx = cuda_at_out(r, 0),
                                    .dy = cuda_at(r, front->in[0], 0),
                                    .z = cuda_at(r, front->in[1], 0),
                                    .x = cuda_at_in(r, 1),
                                    .n = (int64_t)cuda_elems(x),
                                    .alpha = like->alpha,
                                    .op = like->op};
  cuda_launch launch;
  if (!cuda_plan_gate_grad(&args, x->dtype, &launch))
    return cuda_no_kernel(r, x);
  CUDA_TRY(cuda_emit(r, &launch));
  if (cuda_root(r->program, front->in[0]) != cuda_root(r->program, front->in[1])) {
    r->step->overwrites = front->in[0];
    r->step->result = r->node->out[0];
  }
  return OPIPE_OK;
}

static opipe_status rule_activation_grad(cuda_rule *r) {
  static const struct {
    const char *name;
    uint32_t code;
    double alpha, beta, gamma;
  } known[] = {
      {"Relu", CUDA_MAP_GRAD_RELU, 0, 0, 0},
      {"Sigmoid", CUDA_MAP_GRAD_SIGMOID, 0, 0, 0},
      {"Tanh", CUDA_MAP_GRAD_TANH, 0, 0, 0},
      {"Gelu", CUDA_MAP_GRAD_GELU, 0, 0, 0},
      {"GeluTanh", CUDA_MAP_GRAD_GELUTANH, 0, 0, 0},
      {"QuickGelu", CUDA_MAP_GRAD_QUICKGELU, 1.702, 0, 0},
      {"Swish", CUDA_MAP_GRAD_SWISH, 1.0, 0, 0},
      {"Erf", CUDA_MAP_GRAD_ERF, 0, 0, 0},
      {"Elu", CUDA_MAP_GRAD_ELU, 1.0, 0, 0},
      {"Celu", CUDA_MAP_GRAD_CELU, 1.0, 0, 0},
      {"Selu", CUDA_MAP_GRAD_SELU, 1.67326319217681884765625, 0, 1.05070102214813232421875},
      {"LeakyRelu", CUDA_MAP_GRAD_LEAKYRELU, 0.01, 0, 0},
      {"ThresholdedRelu", CUDA_MAP_GRAD_THRESHOLDEDRELU, 1.0, 0, 0},
      {"Mish", CUDA_MAP_GRAD_MISH, 0, 0, 0},
      {"HardSwish", CUDA_MAP_GRAD_HARDSWISH, 0, 0, 0},
      {"HardSigmoid", CUDA_MAP_GRAD_HARDSIGMOID, 0.2, 0.5, 0},
      {"Softplus", CUDA_MAP_GRAD_SOFTPLUS, 0, 0, 0},
      {"Softsign", CUDA_MAP_GRAD_SOFTSIGN, 0, 0, 0}};
  const opipe_value *x = cuda_in(r, 1);
  const char *name = opipe_attr_string(r->node, "activation", "");
  CUDA_TRY(cuda_expect_like(r, 0, x));
  if (cuda_in(r, 0)->dtype != x->dtype)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "a gradient of another type");
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
    if (strcmp(known[i].name, name) == 0) {
      cuda_map_args args = {.op = known[i].code,
                            .alpha = opipe_attr_float(r->node, "alpha", known[i].alpha),
                            .beta = opipe_attr_float(r->node, "beta", known[i].beta),
                            .gamma = opipe_attr_float(r->node, "gamma", known[i].gamma)};
      const opipe_node *front = cuda_front_of(r->program, r->node);
      return front != NULL ? emit_gate_grad(r, front, &args) : cuda_emit_map(r, &args, 2, x->dtype);
    }
  }
  return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "activation '%.40s' is not known", name);
}

static opipe_status rule_softmax_grad(cuda_rule *r) {
  const opipe_value *y = cuda_in(r, 1);
  uint32_t axis = 0;
  cuda_launch launch;
  CUDA_TRY(cuda_expect_like(r, 0, y));
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", -1), y->rank, &axis));
  if (cuda_in(r, 0)->dtype != y->dtype || cuda_elems(cuda_in(r, 0)) != cuda_elems(y))
    return cuda_refuse(r, OPIPE_E_INVALID, "its gradient is not like its output");
  const cuda_softmax_grad_args args = {.dx = cuda_at_out(r, 0),
                                       .dy = cuda_at_in(r, 0),
                                       .y = cuda_at_in(r, 1),
                                       .outer = cuda_extent(y, 0, axis),
                                       .n = y->shape[axis],
                                       .inner = cuda_extent(y, axis + 1, y->rank),
                                       .mode = strcmp(r->node->op, "SoftmaxGrad") == 0 ? 0 : 1};
  if (!cuda_plan_softmax_grad(&args, y->dtype, &launch))
    return cuda_no_kernel(r, y);
  CUDA_TRY(cuda_emit(r, &launch));
  cuda_may_overwrite(r, 0);
  return OPIPE_OK;
}

/* ---- attention ---- */

enum { BASE = 1, OUT_DQ = 0, OUT_DK, OUT_DV, OUT_DMASK, OUT_DPAST_K, OUT_DPAST_V, OUTPUTS };

static opipe_status check_gradients(const cuda_rule *r, const cuda_attention_args *a) {
  const opipe_value *dy = cuda_in(r, 0), *q = cuda_in(r, BASE);
  const int64_t four[4] = {a->batch, a->heads, a->queries, a->value_depth};
  const int64_t three[3] = {a->batch, a->queries, a->heads * a->value_depth};
  if (dy->dtype != q->dtype || dy->rank != q->rank ||
      memcmp(dy->shape, q->rank == 4 ? four : three, q->rank * sizeof four[0]) != 0)
    return cuda_refuse(r, OPIPE_E_INVALID, "its gradient is not like the output");
  if (r->node->n_in > IN_Y) {
    const int64_t rows[3] = {a->batch, a->heads, a->queries};
    const opipe_value *y = cuda_in(r, IN_Y), *found = cuda_in(r, IN_FOUND);
    if (y == NULL || y->dtype != q->dtype || !cuda_same_shape(y, dy) || found == NULL ||
        found->dtype != OPIPE_FLOAT || found->rank != 3 ||
        memcmp(found->shape, rows, sizeof rows) != 0) {
      return cuda_refuse(r, OPIPE_E_INVALID,
                         "an input that the forward hands on is not like the output");
    }
  }
  for (uint32_t i = 0; i < r->node->n_out; ++i) {
    const opipe_value *in = cuda_in(r, BASE + i);
    if (cuda_out(r, i) == NULL)
      continue;
    if (in == NULL || !cuda_is_float(in->dtype))
      return cuda_refuse(r, OPIPE_E_INVALID, "output %u is the gradient of no input", i);
    CUDA_TRY(cuda_expect_like(r, i, in));
  }
  return OPIPE_OK;
}

static void gradient_strides(const cuda_rule *r, uint32_t i, int64_t heads, int64_t rows,
                             int64_t depth, int64_t *out) {
  const uint32_t value = i < r->node->n_out ? r->node->out[i] : OPIPE_NONE;
  cuda_attention_strides(r, value, cuda_in(r, BASE)->rank == 3, heads, rows, depth, out);
}

static opipe_status rule_attention_grad(cuda_rule *r) {
  const opipe_value *q = cuda_in(r, BASE);
  cuda_attention_grad_args args = {.dy = NULL};
  cuda_launch launches[CUDA_LAUNCHES];
  bool done = false;
  CUDA_TRY(cuda_attention_read(r, BASE, &args.forward));
  CUDA_TRY(check_gradients(r, &args.forward));
  const cuda_attention_args *f = &args.forward;
  cuda_attention_point(r, BASE, &args.forward);
  cuda_head_strides(q->rank == 3, f->heads, f->queries, f->value_depth, args.dy_stride);
  const int64_t fresh = f->keys - f->past;
  gradient_strides(r, OUT_DQ, f->heads, f->queries, f->depth, args.dq_stride);
  gradient_strides(r, OUT_DK, f->kv_heads, fresh, f->depth, args.dk_stride);
  gradient_strides(r, OUT_DV, f->kv_heads, fresh, f->value_depth, args.dv_stride);
  memcpy(args.dpast_k_stride, f->past_k_stride, sizeof args.dpast_k_stride);
  memcpy(args.dpast_v_stride, f->past_v_stride, sizeof args.dpast_v_stride);
  if (r->node->n_in > IN_FOUND) { /* both are there: check_gradients */
    args.forward.y = cuda_at_in(r, IN_Y);
    args.forward.found = cuda_at_in(r, IN_FOUND);
  }
  args.dy = cuda_at_in(r, 0);
  args.dq = cuda_at_out(r, OUT_DQ);
  args.dk = cuda_at_out(r, OUT_DK);
  args.dv = cuda_at_out(r, OUT_DV);
  args.dmask = cuda_at_out(r, OUT_DMASK);
  args.dpast_k = cuda_at_out(r, OUT_DPAST_K);
  args.dpast_v = cuda_at_out(r, OUT_DPAST_V);
  args.workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0);
  CUDA_TRY(cuda_attention_grad_by_dnn(r, &args, q->dtype, &done));
  if (done)
    return OPIPE_OK;
  const uint32_t n = cuda_plan_attention_grad(&args, q->dtype, launches);
  if (n == 0)
    return cuda_no_kernel(r, q);
  CUDA_TRY(cuda_emit_all(r, launches, n));
  cuda_want_workspace(r, cuda_attention_grad_workspace(&args));
  return OPIPE_OK;
}

/* ---- dropout ---- */

/* Version 2: which entries of a whole tensor X has. */
static opipe_status read_part(const cuda_rule *r, cuda_dropout_args *args) {
  const opipe_value *x = cuda_in(r, 0);
  const int64_t axis = opipe_attr_int(r->node, "part_axis", -1);
  uint32_t n = 0;
  const int64_t *runs = opipe_attr_ints(r->node, "part_runs", &n);
  int64_t sum = 0, end = 0;
  if (axis < 0)
    return OPIPE_OK;
  args->part_whole = opipe_attr_int(r->node, "part_whole", 0);
  bool fits = axis < (int64_t)x->rank && runs != NULL && n >= 2 && n % 2 == 0;
  for (uint32_t i = 0; fits && i < n; i += 2) {
    fits = runs[i] >= end && runs[i + 1] >= 0 && runs[i + 1] <= args->part_whole - runs[i];
    end = runs[i] + runs[i + 1];
    sum += runs[i + 1];
  }
  if (!fits || sum != x->shape[axis]) {
    return cuda_refuse(r, OPIPE_E_INVALID, "the runs of part axis %lld do not fit",
                       (long long)axis);
  }
  if (n > 2 * CUDA_DROPOUT_RUNS) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "a part of %u runs, at most %d", n / 2,
                       CUDA_DROPOUT_RUNS);
  }
  memcpy(args->part_runs, runs, n * sizeof runs[0]);
  args->part_axis = (uint32_t)axis;
  args->n_runs = n / 2;
  return OPIPE_OK;
}

/* PREFIX_axis, _outer, _inner: which factor of the axis counts. */
static opipe_status read_factor(const cuda_rule *r, const cuda_dropout_args *args,
                                const char *prefix, cuda_dropout_factor *out) {
  const opipe_value *x = cuda_in(r, 0);
  char name[32];
  int64_t rest = 0;
  (void)snprintf(name, sizeof name, "%s_axis", prefix);
  const int64_t axis = opipe_attr_int(r->node, name, -1);
  (void)snprintf(name, sizeof name, "%s_outer", prefix);
  const int64_t outer = opipe_attr_int(r->node, name, 1);
  (void)snprintf(name, sizeof name, "%s_inner", prefix);
  const int64_t inner = opipe_attr_int(r->node, name, 1);
  *out = (cuda_dropout_factor){1, 1, -1, 0};
  if (axis < 0)
    return OPIPE_OK;
  const bool is_part = args->n_runs > 0 && axis == (int64_t)args->part_axis;
  const int64_t extent = axis >= (int64_t)x->rank ? -1
                         : is_part                ? args->part_whole
                                                  : x->shape[axis];
  if (extent < 0 || outer < 1 || inner < 1 || __builtin_mul_overflow(outer, inner, &rest) ||
      extent % rest != 0) {
    return cuda_refuse(r, OPIPE_E_INVALID, "%s axis %lld of %lld * N * %lld elements does not fit",
                       prefix, (long long)axis, (long long)outer, (long long)inner);
  }
  const int64_t n = extent / rest;
  *out = (cuda_dropout_factor){n > 0 ? n : 1, inner, (int32_t)axis, 0};
  return OPIPE_OK;
}

static opipe_status read_factors(const cuda_rule *r, cuda_dropout_args *args) {
  CUDA_TRY(read_part(r, args));
  CUDA_TRY(read_factor(r, args, "batch", &args->batch_part));
  CUDA_TRY(read_factor(r, args, "token", &args->token_part));
  const cuda_dropout_factor *batch = &args->batch_part, *token = &args->token_part;
  const bool batch_first = batch->inner >= token->inner;
  const cuda_dropout_factor *high = batch_first ? batch : token, *low = batch_first ? token : batch;
  return batch->axis >= 0 && batch->axis == token->axis && high->inner % (low->inner * low->n) != 0
             ? cuda_refuse(r, OPIPE_E_INVALID, "batch and token overlap in axis %d", batch->axis)
             : OPIPE_OK;
}

static opipe_status rule_dropout(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  cuda_dropout_args args = {.n = (int64_t)cuda_elems(x),
                            .ratio = opipe_attr_float(r->node, "ratio", 0.5),
                            .key = cuda_dropout_key(opipe_attr_string(r->node, "key", "")),
                            .rank = x->rank};
  cuda_launch launch;
  CUDA_TRY(cuda_expect_like(r, 0, x));
  if (cuda_out(r, 1) != NULL)
    CUDA_TRY(cuda_expect(r, 1, OPIPE_BOOL, x->shape, x->rank));
  for (uint32_t i = 1; i < 5; ++i) {
    if (cuda_in(r, i)->dtype != OPIPE_INT64 || cuda_elems(cuda_in(r, i)) != 1)
      return cuda_refuse(r, OPIPE_E_INVALID, "input %u is not one int64", i);
  }
  if (x->rank > CUDA_AXES)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%u axes, at most %d", x->rank, CUDA_AXES);
  CUDA_TRY(read_factors(r, &args));
  if (x->rank > 0)
    memcpy(args.shape, x->shape, x->rank * sizeof args.shape[0]);
  args.y = cuda_at_out(r, 0);
  args.mask = cuda_at_out(r, 1);
  args.x = cuda_at_in(r, 0);
  args.seed = cuda_at_in(r, 1);
  args.step = cuda_at_in(r, 2);
  args.sample = cuda_at_in(r, 3);
  args.token = cuda_at_in(r, 4);
  if (!cuda_plan_dropout(&args, x->dtype, &launch))
    return cuda_no_kernel(r, x);
  CUDA_TRY(cuda_emit(r, &launch));
  cuda_may_overwrite(r, 0);
  return OPIPE_OK;
}

/* The first element of a known input of a float type; false: it is none. */
static bool known_real(const opipe_value *x, double *out) {
  if (x == NULL || x->data == NULL || cuda_elems(x) != 1)
    return false;
  if (x->dtype == OPIPE_FLOAT)
    *out = (double)*(const float *)x->data;
  else if (x->dtype == OPIPE_DOUBLE)
    *out = *(const double *)x->data;
  return x->dtype == OPIPE_FLOAT || x->dtype == OPIPE_DOUBLE;
}

/* The standard's Dropout in training: programs of sessions have opipe.Dropout in its place, what it
 * costs is measured with this one. A mask by the node's name and `seed`. */
static opipe_status rule_plain_dropout(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0), *mode = cuda_in(r, 2);
  cuda_dropout_args args = {.n = (int64_t)cuda_elems(x),
                            .ratio = 0.5,
                            .batch_part = {1, 1, -1, 0},
                            .token_part = {1, 1, -1, 0},
                            .key = cuda_dropout_key(r->node->name),
                            .rank = 1};
  cuda_launch launch;
  CUDA_TRY(cuda_expect_like(r, 0, x));
  if (cuda_out(r, 1) != NULL)
    CUDA_TRY(cuda_expect(r, 1, OPIPE_BOOL, x->shape, x->rank));
  if (cuda_in(r, 1) != NULL && !known_real(cuda_in(r, 1), &args.ratio))
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "its ratio is not one known number of fp32 or fp64");
  if (mode != NULL && (mode->data == NULL || mode->dtype != OPIPE_BOOL || cuda_elems(mode) != 1))
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "training_mode is not one known truth value");
  if (mode == NULL || *(const uint8_t *)mode->data == 0)
    args.ratio = 0; /* nothing is dropped */
  args.key ^= (uint64_t)opipe_attr_int(r->node, "seed", 0);
  args.shape[0] = args.n;
  args.y = cuda_at_out(r, 0);
  args.mask = cuda_at_out(r, 1);
  args.x = cuda_at_in(r, 0);
  if (!cuda_plan_dropout(&args, x->dtype, &launch))
    return cuda_no_kernel(r, x);
  CUDA_TRY(cuda_emit(r, &launch));
  cuda_may_overwrite(r, 0);
  return OPIPE_OK;
}

static const cuda_row plain_rows[] = {{"Dropout", rule_plain_dropout, 1, 3, 2}};
static const cuda_row rows[] = {
    {"Accumulate", rule_accumulate, 1, 1, 1},
    {"ActivationGrad", rule_activation_grad, 2, 2, 1},
    {"SoftmaxGrad", rule_softmax_grad, 2, 2, 1},
    {"LogSoftmaxGrad", rule_softmax_grad, 2, 2, 1},
    {"GatherGrad", rule_gather_grad, 2, 2, 1},
    {"AttentionGrad", rule_attention_grad, 4, IN_FOUND + 1, OUTPUTS},
    {"Dropout", rule_dropout, 5, 5, 2},
};

const cuda_family cuda_gradient_family = {"opipe", CUDA_ROWS(rows)};
const cuda_family cuda_dropout_family = {"", CUDA_ROWS(plain_rows)};
