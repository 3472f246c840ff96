/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons and logic: Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsNaN IsInf
 * Where.
 *
 * Canonical forms: two inputs with numpy broadcasting, output bool. IsInf has attributes
 * detect_negative and detect_positive always. Where(condition bool, x, y) broadcasts all three.
 */
#include "loader/ops/elementwise.h"

static opipe_status infer_compare(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT | OPI_TYPES_INTEGER, err));
  OPI_TRY(opi_check_same_type(b, node, 0, err));
  return opi_infer_broadcast(b, node, 0, 2, OPIPE_BOOL, err);
}

static opipe_status infer_equal(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT | OPI_TYPES_INTEGER | OPI_TYPES_BOOL, err));
  OPI_TRY(opi_check_same_type(b, node, 0, err));
  return opi_infer_broadcast(b, node, 0, 2, OPIPE_BOOL, err);
}

static opipe_status infer_logic(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_BOOL, err));
  OPI_TRY(opi_check_same_type(b, node, 0, err));
  return opi_infer_broadcast(b, node, 0, node->n_in, OPIPE_BOOL, err);
}

static opipe_status infer_is(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_check_type(b, node, x, OPI_TYPES_FLOAT, err));
  return opi_b_set(b, node, 0, OPIPE_BOOL, x->shape, (uint32_t)x->rank, err);
}

static opipe_status lift_is_inf(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opipe_attr attrs[2] = {
      OPI_ATTR_I("detect_negative", opi_attr_int(node, "detect_negative", 1) != 0),
      OPI_ATTR_I("detect_positive", opi_attr_int(node, "detect_positive", 1) != 0)};
  return opi_b_lift(b, node, "IsInf", node->in, node->n_in, attrs, 2, err);
}

static opipe_status infer_where(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *condition = NULL, *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &condition, err));
  OPI_TRY(opi_in(b, node, 1, &x, err));
  OPI_TRY(opi_check_type(b, node, condition, OPI_TYPES_BOOL, err));
  OPI_TRY(opi_check_same_type(b, node, 1, err));
  return opi_infer_broadcast(b, node, 0, 3, x->dtype, err);
}

#define TWO(name_, first_, infer_, range_, attrs_)                                                 \
  {                                                                                                \
    OPI_OP(name_, "", first_, OPI_NEWEST_ONNX, 2, 2, 1, 1), attrs_,                                \
        .lift = opi_lift_binary, .infer = infer_, .carry = opi_carry_broadcast,                    \
        .stops_gradient = UINT64_MAX, OPI_COLUMNS(NONE, COMMON, OTHER, range_, NONE, PLAIN, NEVER) \
  }
#define ONE(name_, first_, lift_, infer_, range_, attrs_)                                          \
  {                                                                                                \
    OPI_OP(name_, "", first_, OPI_NEWEST_ONNX, 1, 1, 1, 1), attrs_,                                \
        .lift = lift_, .infer = infer_, .carry = opi_carry_broadcast,                              \
        .stops_gradient = UINT64_MAX, OPI_COLUMNS(NONE, COMMON, OTHER, range_, NONE, PLAIN, NEVER) \
  }

static const opi_op ops[] = {
    TWO("Equal", 1, infer_equal, EQUAL, OPI_ATTRS(19, OPI_A_BROADCASTS)),
    TWO("Greater", 1, infer_compare, GREATER, OPI_ATTRS(13, OPI_A_BROADCASTS)),
    TWO("GreaterOrEqual", 12, infer_compare, GREATER, OPI_NO_ATTRS(16)),
    TWO("Less", 1, infer_compare, LESS, OPI_ATTRS(13, OPI_A_BROADCASTS)),
    TWO("LessOrEqual", 12, infer_compare, LESS, OPI_NO_ATTRS(16)),
    TWO("And", 1, infer_logic, AND, OPI_ATTRS(7, OPI_A_BROADCASTS)),
    TWO("Or", 1, infer_logic, OR, OPI_ATTRS(7, OPI_A_BROADCASTS)),
    TWO("Xor", 1, infer_logic, XOR, OPI_ATTRS(7, OPI_A_BROADCASTS)),
    ONE("Not", 1, opi_lift_plain, infer_logic, NOT, OPI_NO_ATTRS(1)),
    ONE("IsNaN", 9, opi_lift_plain, infer_is, NEVER, OPI_NO_ATTRS(20)),
    ONE("IsInf", 10, lift_is_inf, infer_is, ANY,
        OPI_ATTRS(20, OPI_A(INT, "detect_negative", OPI_PRESET(1)),
                  OPI_A(INT, "detect_positive", OPI_PRESET(1)))),
    {OPI_OP("Where", "", 9, OPI_NEWEST_ONNX, 3, 3, 1, 1), OPI_NO_ATTRS(16), .infer = infer_where,
     .carry = opi_carry_broadcast, .gradient = opi_gradient_where, .stops_gradient = 0x1,
     OPI_COLUMNS(CHOSEN, COMMON, OTHER, CHOICE, NONE, PLAIN, NEVER)},
};
extern const opi_op_family opi_ops_logic;
const opi_op_family opi_ops_logic = {ops, OPI_COUNT(ops)};
