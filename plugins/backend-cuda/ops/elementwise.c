/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that compute an element from elements: one kernel, the operator a number. */
#include "ops/rule.h"

typedef struct map_row {
  const char *op;
  uint32_t code; /* CUDA_MAP_* */
} map_row;

static uint32_t code_of(const map_row *rows, size_t n, const char *op) {
  for (size_t i = 0; i < n; ++i) {
    if (strcmp(rows[i].op, op) == 0)
      return rows[i].code;
  }
  return CUDA_MAP_COUNT;
}
#define CODE_OF(rows, op) code_of((rows), sizeof(rows) / sizeof((rows)[0]), (op))

opipe_status cuda_emit_map(cuda_rule *r, cuda_map_args *args, uint32_t n_in, uint32_t in_dtype) {
  const opipe_value *y = cuda_out(r, 0);
  cuda_loop loop = {.rank = y->rank, .n_operands = n_in};
  cuda_launch launch;
  args->n = (int64_t)cuda_elems(y);
  if (y->rank > 0)
    memcpy(loop.shape, y->shape, y->rank * sizeof loop.shape[0]);
  for (uint32_t i = 0; i < n_in; ++i) {
    const opipe_value *x = cuda_in(r, i);
    if (x != NULL && !opipe_broadcast_strides(x->shape, x->rank, y->shape, y->rank, loop.stride[i]))
      return cuda_refuse(r, OPIPE_E_INVALID, "input %u does not broadcast to the output", i);
  }
  /* the output is dense: an axis of it may be merged where all inputs allow it */
  CUDA_TRY(cuda_loop_merge(r, &loop));
  args->rank = loop.rank;
  memcpy(args->shape, loop.shape, sizeof args->shape);
  for (uint32_t i = 0; i < n_in; ++i)
    memcpy(args->stride[i], loop.stride[i], sizeof args->stride[i]);
  args->out = cuda_at_out(r, 0);
  for (uint32_t i = 0; i < n_in; ++i)
    args->in[i] = args->in[i] != NULL ? args->in[i] : cuda_at_in(r, i);
  if (!cuda_plan_map(args, in_dtype, y->dtype, &launch)) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "no kernel from %s to %s",
                       opipe_dtype_name(in_dtype), opipe_dtype_name(y->dtype));
  }
  CUDA_TRY(cuda_emit(r, &launch));
  for (uint32_t i = 0; i < n_in; ++i) {
    const opipe_value *x = cuda_in(r, i);
    if (x != NULL && x->n_bytes == y->n_bytes && cuda_same_shape(x, y))
      cuda_may_overwrite(r, i);
  }
  return OPIPE_OK;
}

/* ---- one input ---- */

static const map_row unary[] = {
    {"Abs", CUDA_MAP_ABS},
    {"Neg", CUDA_MAP_NEG},
    {"Sign", CUDA_MAP_SIGN},
    {"Sqrt", CUDA_MAP_SQRT},
    {"Reciprocal", CUDA_MAP_RECIPROCAL},
    {"Exp", CUDA_MAP_EXP},
    {"Log", CUDA_MAP_LOG},
    {"Floor", CUDA_MAP_FLOOR},
    {"Ceil", CUDA_MAP_CEIL},
    {"Round", CUDA_MAP_ROUND},
    {"Sin", CUDA_MAP_SIN},
    {"Cos", CUDA_MAP_COS},
    {"Tan", CUDA_MAP_TAN},
    {"Asin", CUDA_MAP_ASIN},
    {"Acos", CUDA_MAP_ACOS},
    {"Atan", CUDA_MAP_ATAN},
    {"Sinh", CUDA_MAP_SINH},
    {"Cosh", CUDA_MAP_COSH},
    {"Asinh", CUDA_MAP_ASINH},
    {"Acosh", CUDA_MAP_ACOSH},
    {"Atanh", CUDA_MAP_ATANH},
    {"Not", CUDA_MAP_NOT},
    {"Relu", CUDA_MAP_RELU},
    {"Sigmoid", CUDA_MAP_SIGMOID},
    {"Tanh", CUDA_MAP_TANH},
    {"Erf", CUDA_MAP_ERF},
    {"Softplus", CUDA_MAP_SOFTPLUS},
    {"Softsign", CUDA_MAP_SOFTSIGN},
    {"Mish", CUDA_MAP_MISH},
    {"HardSwish", CUDA_MAP_HARDSWISH},
};

static opipe_status rule_unary(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  cuda_map_args args = {.op = CODE_OF(unary, r->node->op)};
  CUDA_TRY(cuda_expect_like(r, 0, x));
  return cuda_emit_map(r, &args, 1, x->dtype);
}

static const map_row activations[] = {{"Swish", CUDA_MAP_SWISH},
                                      {"Elu", CUDA_MAP_ELU},
                                      {"LeakyRelu", CUDA_MAP_LEAKYRELU},
                                      {"ThresholdedRelu", CUDA_MAP_THRESHOLDEDRELU},
                                      {"Celu", CUDA_MAP_CELU},
                                      {"Selu", CUDA_MAP_SELU},
                                      {"HardSigmoid", CUDA_MAP_HARDSIGMOID}};

static opipe_status rule_activation(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  cuda_map_args args = {.op = CODE_OF(activations, r->node->op),
                        .alpha = opipe_attr_float(r->node, "alpha", 1.0),
                        .beta = opipe_attr_float(r->node, "beta", 0.0),
                        .gamma = opipe_attr_float(r->node, "gamma", 1.0)};
  CUDA_TRY(cuda_expect_like(r, 0, x));
  return cuda_emit_map(r, &args, 1, x->dtype);
}

static opipe_status rule_gelu(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  const char *form = opipe_attr_string(r->node, "approximate", "none");
  const bool is_tanh = strcmp(form, "tanh") == 0;
  cuda_map_args args = {.op = is_tanh ? CUDA_MAP_GELU_TANH : CUDA_MAP_GELU};
  if (!is_tanh && strcmp(form, "none") != 0)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "approximate '%.40s'", form);
  CUDA_TRY(cuda_expect_like(r, 0, x));
  return cuda_emit_map(r, &args, 1, x->dtype);
}

static opipe_status rule_test(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  const bool is_nan = strcmp(r->node->op, "IsNaN") == 0;
  cuda_map_args args = {.op = is_nan ? CUDA_MAP_ISNAN : CUDA_MAP_ISINF,
                        .alpha = (double)opipe_attr_int(r->node, "detect_negative", 1),
                        .beta = (double)opipe_attr_int(r->node, "detect_positive", 1)};
  CUDA_TRY(cuda_expect(r, 0, OPIPE_BOOL, x->shape, x->rank));
  return cuda_emit_map(r, &args, 1, x->dtype);
}

static opipe_status rule_cast(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0), *y = cuda_out(r, 0);
  cuda_map_args args = {.op = CUDA_MAP_CAST};
  if (y == NULL || !cuda_same_shape(x, y) ||
      opipe_attr_int(r->node, "to", (int64_t)y->dtype) != (int64_t)y->dtype)
    return cuda_refuse(r, OPIPE_E_INVALID, "its output is of another type or shape");
  return x->dtype == y->dtype ? cuda_view(r, 0, r->node->in[0])
                              : cuda_emit_map(r, &args, 1, x->dtype);
}

/* ---- several ---- */

static const map_row binary[] = {
    {"Add", CUDA_MAP_ADD}, {"Sub", CUDA_MAP_SUB},    {"Mul", CUDA_MAP_MUL}, {"Div", CUDA_MAP_DIV},
    {"Max", CUDA_MAP_MAX}, {"Min", CUDA_MAP_MIN},    {"And", CUDA_MAP_AND}, {"Or", CUDA_MAP_OR},
    {"Xor", CUDA_MAP_XOR}, {"PRelu", CUDA_MAP_PRELU}};

static const map_row comparisons[] = {{"Equal", CUDA_MAP_EQUAL},
                                      {"Greater", CUDA_MAP_GREATER},
                                      {"GreaterOrEqual", CUDA_MAP_GREATEROREQUAL},
                                      {"Less", CUDA_MAP_LESS},
                                      {"LessOrEqual", CUDA_MAP_LESSOREQUAL}};

static const map_row gates[] = {
    {"Sigmoid", CUDA_MAP_SIGMOID}, {"Relu", CUDA_MAP_RELU}, {"Swish", CUDA_MAP_SWISH}};

/* The shape that two broadcast to; false: they do not. */
static bool join_shapes(const opipe_value *a, const opipe_value *b, int64_t *shape,
                        uint32_t *out_rank) {
  const uint32_t rank = a->rank > b->rank ? a->rank : b->rank;
  for (uint32_t i = 0; i < rank; ++i) {
    const int64_t n = i < a->rank ? a->shape[a->rank - 1 - i] : 1;
    const int64_t m = i < b->rank ? b->shape[b->rank - 1 - i] : 1;
    if (n != m && n != 1 && m != 1)
      return false;
    shape[rank - 1 - i] = n == 1 ? m : n;
  }
  *out_rank = rank;
  return true;
}

static opipe_status expect_joined(cuda_rule *r, const opipe_value *a, const opipe_value *b,
                                  uint32_t dtype) {
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  if (!join_shapes(a, b, shape, &rank))
    return cuda_refuse(r, OPIPE_E_INVALID, "its inputs do not broadcast to one shape");
  return cuda_expect(r, 0, dtype, shape, rank);
}

static opipe_status same_types(const cuda_rule *r, const opipe_value *a, const opipe_value *b) {
  return a->dtype == b->dtype ? OPIPE_OK
                              : cuda_refuse(r, OPIPE_E_INVALID, "its inputs are %s and %s",
                                            opipe_dtype_name(a->dtype), opipe_dtype_name(b->dtype));
}

/* The activation in front, times the other factor. */
static opipe_status emit_gate(cuda_rule *r, const opipe_node *front) {
  const opipe_value *y = cuda_out(r, 0);
  const uint32_t other = r->node->in[r->node->in[0] == front->out[0] ? 1 : 0];
  const bool is_tanh = strcmp(opipe_attr_string(front, "approximate", "none"), "tanh") == 0;
  cuda_gate_args args = {.n = (int64_t)cuda_elems(y),
                         .alpha = opipe_attr_float(front, "alpha", 1.0),
                         .op = strcmp(front->op, "Gelu") != 0 ? CODE_OF(gates, front->op)
                               : is_tanh                      ? CUDA_MAP_GELU_TANH
                                                              : CUDA_MAP_GELU};
  cuda_launch launch;
  args.y = cuda_at_out(r, 0);
  args.kept = cuda_at(r, cuda_keeps_front(r->program, r->node) ? front->out[0] : OPIPE_NONE, 0);
  args.x = cuda_at(r, front->in[0], 0);
  args.z = cuda_at(r, other, 0);
  if (!cuda_plan_gate(&args, y->dtype, &launch))
    return cuda_no_kernel(r, y);
  CUDA_TRY(cuda_emit(r, &launch));
  if (cuda_root(r->program, front->in[0]) != cuda_root(r->program, other)) {
    r->step->overwrites = front->in[0];
    r->step->result = r->node->out[0];
  }
  return OPIPE_OK;
}

static opipe_status rule_binary(cuda_rule *r) {
  const opipe_value *a = cuda_in(r, 0), *b = cuda_in(r, 1);
  const opipe_node *front = cuda_front_of(r->program, r->node);
  cuda_map_args args = {.op = CODE_OF(binary, r->node->op)};
  CUDA_TRY(same_types(r, a, b));
  CUDA_TRY(expect_joined(r, a, b, a->dtype));
  if (front != NULL)
    return emit_gate(r, front);
  if (args.op == CUDA_MAP_DIV && !cuda_is_float(a->dtype))
    CUDA_TRY(cuda_at_status(r, &args.status, &args.node));
  return cuda_emit_map(r, &args, 2, a->dtype);
}

static opipe_status rule_mod(cuda_rule *r) {
  const opipe_value *a = cuda_in(r, 0), *b = cuda_in(r, 1);
  const bool fmod_form = opipe_attr_int(r->node, "fmod", 0) != 0;
  cuda_map_args args = {.op = fmod_form ? CUDA_MAP_FMOD : CUDA_MAP_MOD};
  CUDA_TRY(same_types(r, a, b));
  CUDA_TRY(expect_joined(r, a, b, a->dtype));
  if (!cuda_is_float(a->dtype))
    CUDA_TRY(cuda_at_status(r, &args.status, &args.node));
  return cuda_emit_map(r, &args, 2, a->dtype);
}

static opipe_status rule_compare(cuda_rule *r) {
  const opipe_value *a = cuda_in(r, 0), *b = cuda_in(r, 1);
  cuda_map_args args = {.op = CODE_OF(comparisons, r->node->op)};
  CUDA_TRY(same_types(r, a, b));
  CUDA_TRY(expect_joined(r, a, b, OPIPE_BOOL));
  return cuda_emit_map(r, &args, 2, a->dtype);
}

static opipe_status rule_pow(cuda_rule *r) {
  const opipe_value *a = cuda_in(r, 0), *b = cuda_in(r, 1);
  cuda_map_args args = {.op = CUDA_MAP_POW};
  cuda_map_args cast = {.op = CUDA_MAP_CAST, .rank = 1};
  cuda_launch launch;
  CUDA_TRY(expect_joined(r, a, b, a->dtype));
  if (a->dtype == b->dtype)
    return cuda_emit_map(r, &args, 2, a->dtype);
  /* the exponent, in the base's type, goes to scratch first */
  const uint64_t n_bytes = cuda_align_up(cuda_elems(b) * cuda_size(a));
  cast.n = cast.shape[0] = (int64_t)cuda_elems(b);
  cast.stride[0][0] = 1;
  cast.in[0] = cuda_at_in(r, 1);
  cast.out = cuda_at(r, CUDA_AT_WORKSPACE, 0);
  if (!cuda_plan_map(&cast, b->dtype, a->dtype, &launch))
    return cuda_no_kernel(r, b);
  CUDA_TRY(cuda_emit(r, &launch));
  cuda_want_workspace(r, n_bytes);
  args.in[1] = cuda_at(r, CUDA_AT_WORKSPACE, 0);
  return cuda_emit_map(r, &args, 2, a->dtype);
}

static opipe_status rule_where(cuda_rule *r) {
  const opipe_value *c = cuda_in(r, 0), *x = cuda_in(r, 1), *y = cuda_in(r, 2);
  int64_t shape[OPIPE_MAX_RANK];
  cuda_map_args args = {.op = CUDA_MAP_WHERE};
  opipe_value joined = *x;
  CUDA_TRY(same_types(r, x, y));
  if (c->dtype != OPIPE_BOOL)
    return cuda_refuse(r, OPIPE_E_INVALID, "its condition is %s", opipe_dtype_name(c->dtype));
  joined.shape = shape;
  if (!join_shapes(x, y, shape, &joined.rank))
    return cuda_refuse(r, OPIPE_E_INVALID, "its inputs do not broadcast to one shape");
  CUDA_TRY(expect_joined(r, c, &joined, x->dtype));
  return cuda_emit_map(r, &args, 3, x->dtype);
}

static opipe_status rule_clip(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  cuda_map_args args = {.op = CUDA_MAP_CLIP};
  CUDA_TRY(cuda_expect_like(r, 0, x));
  for (uint32_t i = 1; i < r->node->n_in; ++i) {
    const opipe_value *bound = cuda_in(r, i);
    if (bound != NULL && (bound->dtype != x->dtype || cuda_elems(bound) != 1))
      return cuda_refuse(r, OPIPE_E_INVALID, "bound %u is no scalar of its type", i);
  }
  return cuda_emit_map(r, &args, r->node->n_in, x->dtype);
}

#define UNARY(name) \
  { name, rule_unary, 1, 1, 1 }
#define ACTIVATION(name) \
  { name, rule_activation, 1, 1, 1 }
#define BINARY(name) \
  { name, rule_binary, 2, 2, 1 }
#define COMPARE(name) \
  { name, rule_compare, 2, 2, 1 }
static const cuda_row rows[] = {
    UNARY("Abs"),
    UNARY("Neg"),
    UNARY("Sign"),
    UNARY("Sqrt"),
    UNARY("Reciprocal"),
    UNARY("Exp"),
    UNARY("Log"),
    UNARY("Floor"),
    UNARY("Ceil"),
    UNARY("Round"),
    UNARY("Sin"),
    UNARY("Cos"),
    UNARY("Tan"),
    UNARY("Asin"),
    UNARY("Acos"),
    UNARY("Atan"),
    UNARY("Sinh"),
    UNARY("Cosh"),
    UNARY("Asinh"),
    UNARY("Acosh"),
    UNARY("Atanh"),
    UNARY("Not"),
    UNARY("Relu"),
    UNARY("Sigmoid"),
    UNARY("Tanh"),
    UNARY("Erf"),
    UNARY("Softplus"),
    UNARY("Softsign"),
    UNARY("Mish"),
    UNARY("HardSwish"),
    ACTIVATION("Swish"),
    ACTIVATION("Elu"),
    ACTIVATION("LeakyRelu"),
    ACTIVATION("Celu"),
    ACTIVATION("Selu"),
    ACTIVATION("ThresholdedRelu"),
    BINARY("Add"),
    BINARY("Sub"),
    BINARY("Mul"),
    BINARY("Div"),
    BINARY("Max"),
    BINARY("Min"),
    BINARY("And"),
    BINARY("Or"),
    BINARY("Xor"),
    BINARY("PRelu"),
    COMPARE("Equal"),
    COMPARE("Greater"),
    COMPARE("Less"),
    COMPARE("LessOrEqual"),
    COMPARE("GreaterOrEqual"),
    ACTIVATION("HardSigmoid"),
    {"Gelu", rule_gelu, 1, 1, 1},
    {"IsNaN", rule_test, 1, 1, 1},
    {"IsInf", rule_test, 1, 1, 1},
    {"Cast", rule_cast, 1, 1, 1},
    {"Mod", rule_mod, 2, 2, 1},
    {"Pow", rule_pow, 2, 2, 1},
    {"Where", rule_where, 3, 3, 1},
    {"Clip", rule_clip, 1, 3, 1},
};

const cuda_family cuda_elementwise_family = {"", CUDA_ROWS(rows)};
