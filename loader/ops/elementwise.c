/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic, element by element: Add Sub Mul Div Pow Mod Max Min Sum Mean, the unary functions,
 * Clip, Cast, CastLike.
 *
 * Canonical forms left in a bound graph:
 *   Add Sub Mul Div Mod Pow Max Min   two inputs, numpy broadcasting. Sum and Mean of n, Max and
 * Min of n become chains of two from left to right (Mean: then Div by n). Mod has attribute fmod.
 *   Abs Neg ... (unary)               one input, output of the same type.
 *   Clip(x, min?, max?)               bounds of x's type, rank 0.
 *   Cast(x)                           attributes to, saturate; one that changes nothing vanishes.
 * CastLike becomes it. Opset < 7: attributes broadcast and axis become a Reshape of the second
 * input.
 */
#include "loader/ops/elementwise.h"

#include <strings.h>

/* -- two inputs -- */

/* Opset < 7: B of shape [b...] stands at A's dimensions axis .. (default: the last ones). */
static opipe_status align_old(opi_builder *b, const opi_node *node, uint32_t *out_b,
                              opipe_error *err) {
  const opi_value *x = NULL, *y = NULL;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t axis = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_in(b, node, 1, &y, err));
  *out_b = node->in[1];
  if (opi_attr_int(node, "broadcast", 0) == 0 || opi_attr_find(node, "axis") == NULL ||
      y->rank == 0)
    return OPIPE_OK;
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  if (axis + (uint32_t)y->rank > (uint32_t)x->rank) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "'%s' of rank %" PRId32 " does not fit at axis %" PRIu32
                         " of rank %" PRId32,
                         y->name, y->rank, axis, x->rank);
  }
  const uint32_t rank = (uint32_t)x->rank - axis;
  for (uint32_t d = 0; d < rank; ++d)
    shape[d] = d < (uint32_t)y->rank ? y->shape[d] : 1;
  return opi_emit_reshape(b, node->in[1], shape, rank, NULL, out_b, err);
}

opipe_status opi_lift_binary(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[2] = {node->in[0], node->n_in > 1 ? node->in[1] : OPIPE_NONE};
  if (node->version < 7)
    OPI_TRY(align_old(b, node, &in[1], err));
  return opi_b_lift(b, node, node->op, in, 2, NULL, 0, err);
}

static opipe_status lift_mod(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opipe_attr attr = OPI_ATTR_I("fmod", opi_attr_int(node, "fmod", 0) != 0);
  return opi_b_lift(b, node, "Mod", node->in, node->n_in, &attr, 1, err);
}

opipe_status opi_infer_broadcast(opi_builder *b, const opi_node *node, uint32_t first, uint32_t n,
                                 uint32_t dtype, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  char have[96], more[96];
  for (uint32_t i = first; i < first + n; ++i) {
    const opi_value *x = NULL;
    OPI_TRY(opi_in(b, node, i, &x, err));
    if (opi_broadcast(shape, rank, x->shape, (uint32_t)x->rank, shape, &rank))
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "'%s' of shape %s does not broadcast with %s", x->name,
                         opi_shape_text(more, sizeof(more), x->shape, (uint32_t)x->rank),
                         opi_shape_text(have, sizeof(have), shape, rank));
  }
  return opi_b_set(b, node, 0, dtype, shape, rank, err);
}

static opipe_status infer_binary(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT | OPI_TYPES_INTEGER, err));
  OPI_TRY(opi_check_same_type(b, node, 0, err));
  return opi_infer_broadcast(b, node, 0, node->n_in, x->dtype, err);
}

/* The exponent may be of another type. */
static opipe_status infer_pow(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL, *e = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_in(b, node, 1, &e, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT | OPI_TYPES_INTEGER, err));
  OPI_TRY(opi_check_type(b, node, e, OPI_TYPES_FLOAT | OPI_TYPES_INTEGER, err));
  return opi_infer_broadcast(b, node, 0, 2, x->dtype, err);
}

/* -- n inputs -- */

/* ((x0 op x1) op x2) ...: the order of additions is the file's. */
static opipe_status chain(opi_builder *b, const opi_node *node, const char *op, uint32_t *out,
                          opipe_error *err) {
  *out = node->in[0];
  for (uint32_t i = 1; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "lacks input %" PRIu32, i);
    OPI_TRY(opi_b_op2(b, op, *out, node->in[i], out, err));
  }
  return OPIPE_OK;
}

static opipe_status lift_sum(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t out = OPIPE_NONE;
  OPI_TRY(chain(b, node, "Add", &out, err));
  return opi_b_result(b, node, 0, out, err);
}

static opipe_status lift_mean(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t out = OPIPE_NONE;
  OPI_TRY(chain(b, node, "Add", &out, err));
  if (node->n_in > 1) {
    const uint32_t n = opi_b_const_scalar(b, opi_b_value(b, out)->dtype, (double)node->n_in);
    if (n == OPIPE_NONE)
      return opi_fail_nomem(err, 8, "a constant");
    OPI_TRY(opi_b_op2(b, "Div", out, n, &out, err));
  }
  return opi_b_result(b, node, 0, out, err);
}

static opipe_status lift_extreme(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t out = OPIPE_NONE;
  OPI_TRY(chain(b, node, node->op, &out, err));
  return opi_b_result(b, node, 0, out, err);
}

/* -- one input -- */

/* Old forms carry attributes that mean nothing today (consumed_inputs). */
opipe_status opi_lift_plain(opi_builder *b, const opi_node *node, opipe_error *err) {
  return opi_b_lift(b, node, node->op, node->in, node->n_in, NULL, 0, err);
}

static opipe_status infer_float(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT, err));
  return opi_infer_same(b, node, err);
}

static opipe_status infer_number(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT | OPI_TYPES_INTEGER, err));
  return opi_infer_same(b, node, err);
}

/* -- Clip -- */

static opipe_status clip_bound(opi_builder *b, const opi_node *node, uint32_t i, const char *name,
                               uint32_t *out, opipe_error *err) {
  const opi_value *x = NULL;
  *out = opi_node_in(node, i);
  if (*out != OPIPE_NONE || opi_attr_find(node, name) == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  *out = opi_b_const_scalar(b, x->dtype, opi_attr_float(node, name, 0));
  return *out != OPIPE_NONE ? OPIPE_OK : opi_fail_nomem(err, 8, "a bound");
}

static opipe_status lift_clip(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[3] = {node->in[0], OPIPE_NONE, OPIPE_NONE};
  OPI_TRY(clip_bound(b, node, 1, "min", &in[1], err));
  OPI_TRY(clip_bound(b, node, 2, "max", &in[2], err));
  if (in[1] == OPIPE_NONE && in[2] == OPIPE_NONE)
    return opi_b_result(b, node, 0, in[0], err);
  return opi_b_lift(b, node, "Clip", in, 3, NULL, 0, err);
}

static opipe_status infer_clip(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(opi_check_same_type(b, node, 0, err));
  for (uint32_t i = 1; i < node->n_in; ++i) {
    const opi_value *bound = opi_in_optional(b, node, i);
    if (bound == NULL || opi_elems(bound) == 1)
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "bound '%s' has %" PRIu64 " elements, not 1", bound->name,
                         opi_elems(bound));
  }
  return infer_number(b, node, err);
}

/* -- Cast -- */

/* Opset 1 spells the type. */
static uint32_t type_by_name(const char *name) {
  for (uint32_t dtype = 0; dtype < OPIPE_N_DTYPES; ++dtype) {
    if (strcasecmp(opipe_dtype_row_of(dtype)->key, name) == 0)
      return dtype;
  }
  return OPIPE_UNDEFINED;
}

static bool is_castable(uint32_t dtype) {
  const uint32_t elements = opipe_dtype_row_of(dtype)->elements;
  return elements != OPIPE_ELEM_NONE && elements != OPIPE_ELEM_COMPLEX;
}

static opipe_status emit_cast(opi_builder *b, const opi_node *node, uint32_t to, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  if (!is_castable(to) || !is_castable(x->dtype)) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "'%s' of type %s cannot become %s",
                         x->name, opi_dtype_name(x->dtype), opi_dtype_name(to));
  }
  if (x->dtype == to)
    return opi_b_result(b, node, 0, node->in[0], err);
  const opipe_attr attrs[2] = {OPI_ATTR_I("to", to),
                               OPI_ATTR_I("saturate", opi_attr_int(node, "saturate", 1) != 0)};
  uint32_t out = OPIPE_NONE;
  const opi_emit emit = {
      .op = "Cast", .in = node->in, .n_in = 1, .n_out = 1, .attrs = attrs, .n_attrs = 2};
  OPI_TRY(opi_b_emit(b, &emit, &out, err));
  return opi_b_result(b, node, 0, out, err);
}

static opipe_status lift_cast(opi_builder *b, const opi_node *node, opipe_error *err) {
  const char *name = opi_attr_string(node, "to", NULL);
  const int64_t to = name != NULL ? (int64_t)type_by_name(name) : opi_attr_int(node, "to", 0);
  if (to <= 0 || to >= OPIPE_N_DTYPES) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "type %s%" PRId64 " is not known",
                         name != NULL ? name : "", to);
  }
  return emit_cast(b, node, (uint32_t)to, err);
}

static opipe_status lift_cast_like(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *like = NULL;
  OPI_TRY(opi_in(b, node, 1, &like, err));
  return emit_cast(b, node, like->dtype, err);
}

static opipe_status infer_cast(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t to = opi_attr_int(node, "to", 0);
  OPI_TRY(opi_in(b, node, 0, &x, err));
  if (to <= 0 || to >= OPIPE_N_DTYPES || !is_castable((uint32_t)to))
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "type %" PRId64 " is not known", to);
  return opi_b_set(b, node, 0, (uint32_t)to, x->shape, (uint32_t)x->rank, err);
}

#define BINARY(name_, first_, lift_, infer_, gradient_, half_, meets_, range_, sums_, attrs_) \
  {                                                                                           \
    OPI_OP(name_, "", first_, OPI_NEWEST_ONNX, 2, 2, 1, 1), attrs_,                           \
        .lift = lift_, .infer = infer_, .carry = opi_carry_broadcast, .gradient = gradient_,  \
        OPI_COLUMNS(NONE, half_, meets_, range_, NONE, PLAIN, sums_)                          \
  }
#define EXTREME(name_, range_, attrs_)                                             \
  {                                                                                \
    OPI_OP(name_, "", 1, OPI_NEWEST_ONNX, 1, 255, 1, 1), attrs_,                   \
        .lift = lift_extreme, .infer = infer_binary, .carry = opi_carry_broadcast, \
        .gradient = opi_gradient_extreme,                                          \
        OPI_COLUMNS(EXTREME, COMMON, NUMBERS, range_, NONE, PLAIN, NEVER)          \
  }
#define UNARY(name_, first_, infer_, gradient_, half_, meets_, takes_, range_, sums_, attrs_) \
  {                                                                                           \
    OPI_OP(name_, "", first_, OPI_NEWEST_ONNX, 1, 1, 1, 1), attrs_,                           \
        .lift = opi_lift_plain, .infer = infer_, .carry = opi_carry_broadcast,                \
        .gradient = gradient_, OPI_COLUMNS(takes_, half_, meets_, range_, NONE, PLAIN, sums_) \
  }
#define STEPS(name_, first_, infer_, range_, attrs_)                                               \
  {                                                                                                \
    OPI_OP(name_, "", first_, OPI_NEWEST_ONNX, 1, 1, 1, 1), attrs_,                                \
        .lift = opi_lift_plain, .infer = infer_, .carry = opi_carry_broadcast,                     \
        .stops_gradient = UINT64_MAX, OPI_COLUMNS(NONE, COMMON, OTHER, range_, NONE, PLAIN, NEVER) \
  }

static const opi_op ops[] = {
    BINARY("Add", 1, opi_lift_binary, infer_binary, opi_gradient_add, COMMON, SHIFT, ADD, TOGETHER,
           OPI_ATTRS(14, OPI_A_CONSUMED, OPI_A_BROADCASTS)),
    BINARY("Sub", 1, opi_lift_binary, infer_binary, opi_gradient_sub, COMMON, SHIFT, SUB, TOGETHER,
           OPI_ATTRS(14, OPI_A_CONSUMED, OPI_A_BROADCASTS)),
    BINARY("Mul", 1, opi_lift_binary, infer_binary, opi_gradient_mul, COMMON, SCALE, MUL, EACH,
           OPI_ATTRS(14, OPI_A_CONSUMED, OPI_A_BROADCASTS)),
    BINARY("Div", 1, opi_lift_binary, infer_binary, opi_gradient_div, COMMON, SCALE, DIV, FIRST,
           OPI_ATTRS(14, OPI_A_CONSUMED, OPI_A_BROADCASTS)),
    BINARY("Pow", 1, opi_lift_binary, infer_pow, opi_gradient_pow, WIDE, NUMBERS, ANY, NEVER,
           OPI_ATTRS(15, OPI_A_BROADCASTS)),
    BINARY("Mod", 10, lift_mod, infer_binary, opi_gradient_mod, COMMON, NUMBERS, ANY, NEVER,
           OPI_ATTRS(28, OPI_A(INT, "fmod", OPI_PRESET(0)))),
    EXTREME("Max", MAX, OPI_ATTRS(13, OPI_A_CONSUMED)),
    EXTREME("Min", MIN, OPI_ATTRS(13, OPI_A_CONSUMED)),
    {OPI_OP("Sum", "", 1, OPI_NEWEST_ONNX, 1, 255, 1, 1), OPI_ATTRS(13, OPI_A_CONSUMED),
     .lift = lift_sum},
    {OPI_OP("Mean", "", 1, OPI_NEWEST_ONNX, 1, 255, 1, 1), OPI_ATTRS(13, OPI_A_CONSUMED),
     .lift = lift_mean},
    UNARY("Abs", 1, infer_number, opi_gradient_unary, COMMON, OTHER, FUNCTION, ABS, NEVER,
          OPI_ATTRS(13, OPI_A_CONSUMED)),
    UNARY("Neg", 1, infer_number, opi_gradient_neg, COMMON, OTHER, FUNCTION, NEG, FIRST,
          OPI_ATTRS(13, OPI_A_CONSUMED)),
    STEPS("Sign", 9, infer_number, RISING, OPI_NO_ATTRS(13)),
    UNARY("Sqrt", 1, infer_float, opi_gradient_unary, WIDE, OTHER, FUNCTION, ANY, NEVER,
          OPI_ATTRS(13, OPI_A_CONSUMED)),
    UNARY("Reciprocal", 1, infer_float, opi_gradient_unary, WIDE, OTHER, FUNCTION, ANY, NEVER,
          OPI_ATTRS(13, OPI_A_CONSUMED)),
    UNARY("Exp", 1, infer_float, opi_gradient_unary, WIDE, OTHER, FUNCTION, RISING, NEVER,
          OPI_ATTRS(13, OPI_A_CONSUMED)),
    UNARY("Log", 1, infer_float, opi_gradient_unary, WIDE, OTHER, FUNCTION, ANY, NEVER,
          OPI_ATTRS(13, OPI_A_CONSUMED)),
    STEPS("Floor", 1, infer_float, RISING, OPI_ATTRS(13, OPI_A_CONSUMED)),
    STEPS("Ceil", 1, infer_float, RISING, OPI_ATTRS(13, OPI_A_CONSUMED)),
    STEPS("Round", 11, infer_float, ANY, OPI_NO_ATTRS(22)),
    UNARY("Sin", 7, infer_float, opi_gradient_unary, COMMON, ANGLES, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    UNARY("Cos", 7, infer_float, opi_gradient_unary, COMMON, ANGLES, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    UNARY("Tan", 7, infer_float, opi_gradient_unary, COMMON, OTHER, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    UNARY("Asin", 7, infer_float, opi_gradient_unary, COMMON, OTHER, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    UNARY("Acos", 7, infer_float, opi_gradient_unary, COMMON, OTHER, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    UNARY("Atan", 7, infer_float, opi_gradient_unary, COMMON, OTHER, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    UNARY("Sinh", 9, infer_float, opi_gradient_unary, COMMON, OTHER, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    UNARY("Cosh", 9, infer_float, opi_gradient_unary, COMMON, OTHER, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    UNARY("Asinh", 9, infer_float, opi_gradient_unary, COMMON, OTHER, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    UNARY("Acosh", 9, infer_float, opi_gradient_unary, COMMON, OTHER, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    UNARY("Atanh", 9, infer_float, opi_gradient_unary, COMMON, OTHER, NONE, ANY, NEVER,
          OPI_NO_ATTRS(22)),
    {OPI_OP("Clip", "", 1, OPI_NEWEST_ONNX, 1, 3, 1, 1),
     OPI_ATTRS(13, OPI_A_CONSUMED, OPI_A(FLOAT, "max", .until = 10, .input = 2),
               OPI_A(FLOAT, "min", .until = 10, .input = 1)),
     .lift = lift_clip, .infer = infer_clip, .carry = opi_carry_broadcast,
     .gradient = opi_gradient_clip, .stops_gradient = 0x6,
     OPI_COLUMNS(LIMITED, COMMON, NUMBERS, CLIP, NONE, PLAIN, NEVER)},
    {OPI_OP("Cast", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(28, OPI_A(STRING, "to"), OPI_A(INT, "to"),
               OPI_A(INT, "saturate", .since = 19, OPI_PRESET(1)),
               OPI_A(STRING, "round_mode", .since = 24, OPI_TEXTS("up"))),
     .lift = lift_cast, .infer = infer_cast, .carry = opi_carry_broadcast,
     .gradient = opi_gradient_cast, OPI_COLUMNS(CAST, AS_IS, OTHER, CAST, NONE, PLAIN, NEVER)},
    {OPI_OP("CastLike", "", 15, OPI_NEWEST_ONNX, 2, 2, 1, 1),
     OPI_ATTRS(25, OPI_A(INT, "saturate", .since = 19, OPI_PRESET(1)),
               OPI_A(STRING, "round_mode", .since = 24, OPI_TEXTS("up"))),
     .lift = lift_cast_like, .takes = OPI_TAKES_CAST},
};
extern const opi_op_family opi_ops_elementwise;
const opi_op_family opi_ops_elementwise = {ops, OPI_COUNT(ops)};
