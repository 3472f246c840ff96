/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that make tensors from few numbers: Constant ConstantOfShape Range EyeLike.
 *
 * None is left in a bound graph: Constant, Range and EyeLike become constants; ConstantOfShape
 * becomes an Expand of a scalar, which is folded when it is small.
 */
#include "loader/ops/common.h"

#include <math.h>

#define MOST_BYTES ((uint64_t)256 << 20)

static opipe_status result(opi_builder *b, const opi_node *node, uint32_t v, opipe_error *err) {
  if (v == OPIPE_NONE)
    return opi_fail_nomem(err, sizeof(opi_value), "a constant");
  return opi_b_result(b, node, 0, v, err);
}

/* -- Constant -- */

static opipe_status from_literal(opi_builder *b, const opi_node *node, const opipe_literal *t,
                                 opipe_error *err) {
  uint64_t n_bytes = 0;
  if (t == NULL || opi_dtype_bits(t->dtype) == 0) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "its value has type %s",
                         opi_dtype_name(t != NULL ? t->dtype : OPIPE_UNDEFINED));
  }
  if (t->rank > OPIPE_MAX_RANK || !opi_tensor_bytes(t->dtype, t->shape, t->rank, &n_bytes) ||
      n_bytes != t->n_bytes || t->data == NULL) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "its value has %" PRIu64 " bytes, its shape asks for %" PRIu64, t->n_bytes,
                         n_bytes);
  }
  return result(b, node, opi_b_borrow(b, NULL, t->dtype, t->shape, t->rank, t->data), err);
}

static opipe_status lift_constant(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opipe_attr *attr = node->n_attrs == 1 ? &node->attrs[0] : NULL;
  for (uint32_t a = 0; attr == NULL && a < node->n_attrs; ++a) {
    if (strncmp(node->attrs[a].name, "value", 5) == 0)
      attr = &node->attrs[a];
  }
  if (attr == NULL)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "has no value");
  const int64_t n = attr->n;
  const float single = (float)attr->f;
  switch (attr->kind) {
    case OPIPE_ATTR_TENSOR:
      return from_literal(b, node, attr->data, err);
    case OPIPE_ATTR_INT:
      return result(b, node, opi_b_const(b, OPIPE_INT64, NULL, 0, &attr->i), err);
    case OPIPE_ATTR_FLOAT:
      return result(b, node, opi_b_const(b, OPIPE_FLOAT, NULL, 0, &single), err);
    case OPIPE_ATTR_INTS:
      return result(b, node, opi_b_const(b, OPIPE_INT64, &n, 1, attr->data), err);
    case OPIPE_ATTR_FLOATS:
      return result(b, node, opi_b_const(b, OPIPE_FLOAT, &n, 1, attr->data), err);
    default:
      return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "a value of form '%s' is not known",
                           attr->name);
  }
}

/* -- ConstantOfShape -- */

static opipe_status lift_constant_of_shape(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opipe_attr *attr = opi_attr_find(node, "value");
  const opipe_literal *t = attr != NULL && attr->kind == OPIPE_ATTR_TENSOR ? attr->data : NULL;
  const int64_t *shape = NULL;
  const float zero = 0;
  uint32_t n = 0, in[2] = {OPIPE_NONE, OPIPE_NONE};
  OPI_TRY(opi_known_ints(b, node, 0, &shape, &n, err));
  if (t != NULL && (t->data == NULL || t->n_bytes * 8 != opi_dtype_bits(t->dtype)))
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "its value is not one number");
  for (uint32_t d = 0; d < n; ++d) {
    if (shape[d] >= 0 && n <= OPIPE_MAX_RANK)
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "shape entry %" PRIu32 " is %" PRId64 " (rank %" PRIu32 ")", d, shape[d],
                         n);
  }
  in[0] = t != NULL ? opi_b_const(b, t->dtype, NULL, 0, t->data)
                    : opi_b_const(b, OPIPE_FLOAT, NULL, 0, &zero);
  if (in[0] == OPIPE_NONE)
    return opi_fail_nomem(err, 8, "a constant");
  if (n == 0)
    return opi_b_result(b, node, 0, in[0], err);
  OPI_TRY(opi_ints_value(b, shape, n, &in[1], err));
  return opi_b_lift(b, node, "Expand", in, 2, NULL, 0, err);
}

/* -- Range -- */

/* A known number of any type but the sub-byte ones, exact for integers. */
static bool read_number(const opi_value *x, double *out, int64_t *out_int) {
  float single = 0;
  double wide = 0;
  if (x->data == NULL || opi_elems(x) != 1)
    return false;
  if (x->dtype == OPIPE_FLOAT) {
    memcpy(&single, x->data, 4);
    *out = (double)single;
    return true;
  }
  if (x->dtype == OPIPE_DOUBLE) {
    memcpy(&wide, x->data, 8);
    *out = wide;
    return true;
  }
  if (x->dtype == OPIPE_INT64)
    memcpy(out_int, x->data, 8);
  if (x->dtype == OPIPE_INT32) {
    int32_t narrow = 0;
    memcpy(&narrow, x->data, 4);
    *out_int = narrow;
  }
  if (x->dtype == OPIPE_INT16) {
    int16_t narrow = 0;
    memcpy(&narrow, x->data, 2);
    *out_int = narrow;
  }
  *out = (double)*out_int;
  return x->dtype == OPIPE_INT64 || x->dtype == OPIPE_INT32 || x->dtype == OPIPE_INT16;
}

typedef struct range {
  double start, limit, delta;
  int64_t i_start, i_limit, i_delta; /* integers: exact */
  uint32_t dtype;
  uint64_t n;
} range;

/* ceil((limit - start) / delta), not below 0. */
static opipe_status count_range(const opi_builder *b, const opi_node *node, range *r,
                                opipe_error *err) {
  double steps = 0;
  if (r->delta == 0)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "its step is 0");
  if (opi_dtype_is_float(r->dtype)) {
    steps = ceil((r->limit - r->start) / r->delta);
  } else {
    const bool up = r->i_delta > 0;
    const uint64_t low = (uint64_t)(up ? r->i_start : r->i_limit);
    const uint64_t high = (uint64_t)(up ? r->i_limit : r->i_start);
    const uint64_t step = up ? (uint64_t)r->i_delta : 0 - (uint64_t)r->i_delta;
    const uint64_t span = (int64_t)high > (int64_t)low ? high - low : 0;
    steps = (double)(span / step + (span % step != 0));
  }
  if (!(steps < (double)(MOST_BYTES / 8))) {
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT,
                         "it has %g elements, at most %" PRIu64 " are possible", steps,
                         MOST_BYTES / 8);
  }
  r->n = steps > 0 ? (uint64_t)steps : 0;
  return OPIPE_OK;
}

static void write_range(const range *r, void *out) {
  for (uint64_t i = 0; i < r->n; ++i) {
    const int64_t whole = (int64_t)((uint64_t)r->i_start + i * (uint64_t)r->i_delta);
    const int32_t narrow = (int32_t)whole;
    const int16_t small = (int16_t)whole;
    const double wide = r->start + (double)i * r->delta;
    const float single = (float)r->start + (float)i * (float)r->delta;
    if (r->dtype == OPIPE_INT64)
      memcpy((char *)out + i * 8, &whole, 8);
    if (r->dtype == OPIPE_INT32)
      memcpy((char *)out + i * 4, &narrow, 4);
    if (r->dtype == OPIPE_INT16)
      memcpy((char *)out + i * 2, &small, 2);
    if (r->dtype == OPIPE_DOUBLE)
      memcpy((char *)out + i * 8, &wide, 8);
    if (r->dtype == OPIPE_FLOAT)
      memcpy((char *)out + i * 4, &single, 4);
  }
}

static opipe_status make_range(opi_builder *b, const opi_node *node, uint32_t *out,
                               opipe_error *err) {
  range r = {0};
  double *numbers[3] = {&r.start, &r.limit, &r.delta};
  int64_t *integers[3] = {&r.i_start, &r.i_limit, &r.i_delta};
  for (uint32_t i = 0; i < 3; ++i) {
    const opi_value *x = NULL;
    OPI_TRY(opi_in(b, node, i, &x, err));
    r.dtype = x->dtype;
    if (x->data == NULL)
      return opi_need_value(b, node, node->in[i], err);
    if (!read_number(x, numbers[i], integers[i])) {
      return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                           "'%s' of type %s with %" PRIu64 " elements is not a number", x->name,
                           opi_dtype_name(x->dtype), opi_elems(x));
    }
  }
  OPI_TRY(count_range(b, node, &r, err));
  const int64_t n = (int64_t)r.n;
  void *data = opi_arena_alloc(b->scratch, r.n * (opi_dtype_bits(r.dtype) / 8));
  if (data == NULL)
    return opi_fail_nomem(err, r.n * 8, "a range");
  write_range(&r, data);
  *out = opi_b_const(b, r.dtype, &n, 1, data);
  return *out != OPIPE_NONE ? OPIPE_OK : opi_fail_nomem(err, r.n * 8, "a range");
}

static opipe_status emit_cast(opi_builder *b, uint32_t value, uint32_t to, uint32_t *out,
                              opipe_error *err) {
  const opipe_attr attrs[2] = {OPI_ATTR_I("to", to), OPI_ATTR_I("saturate", 1)};
  const opi_emit emit = {
      .op = "Cast", .in = &value, .n_in = 1, .n_out = 1, .attrs = attrs, .n_attrs = 2};
  return opi_b_emit(b, &emit, out, err);
}

/* Opset 27: the 16-bit floats, counted in float32. */
static opipe_status lift_half_range(opi_builder *b, const opi_node *node, uint32_t dtype,
                                    opipe_error *err) {
  uint32_t in[3], wide = OPIPE_NONE, out = OPIPE_NONE;
  for (uint32_t i = 0; i < 3; ++i) {
    OPI_TRY(emit_cast(b, node->in[i], OPIPE_FLOAT, &in[i], err));
    if (opi_b_value(b, in[i])->data == NULL)
      return opi_need_value(b, node, in[i], err);
  }
  const opi_node inner = {.name = node->name, .op = node->op, .in = in, .n_in = 3};
  OPI_TRY(make_range(b, &inner, &wide, err));
  OPI_TRY(emit_cast(b, wide, dtype, &out, err));
  return opi_b_result(b, node, 0, out, err);
}

static opipe_status lift_range(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *start = NULL;
  uint32_t out = OPIPE_NONE;
  OPI_TRY(opi_in(b, node, 0, &start, err));
  OPI_TRY(opi_check_same_type(b, node, 0, err));
  if (start->dtype == OPIPE_FLOAT16 || start->dtype == OPIPE_BFLOAT16)
    return lift_half_range(b, node, start->dtype, err);
  OPI_TRY(make_range(b, node, &out, err));
  return opi_b_result(b, node, 0, out, err);
}

/* -- EyeLike -- */

static opipe_status lift_eye_like(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  uint64_t n_bytes = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  const uint32_t dtype = (uint32_t)opi_attr_int(node, "dtype", x->dtype);
  const int64_t k = opi_attr_int(node, "k", 0);
  if (x->rank != 2 || !opi_tensor_bytes(dtype, x->shape, 2, &n_bytes) || n_bytes > MOST_BYTES) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "'%s' of rank %" PRId32 " as %s of %" PRIu64 " bytes cannot be made",
                         x->name, x->rank, opi_dtype_name(dtype), n_bytes);
  }
  const int64_t rows = x->shape[0], columns = x->shape[1];
  const uint32_t size = opi_dtype_bits(dtype) / 8;
  const uint32_t one = opi_b_const_scalar(b, dtype, 1);
  char *data = opi_arena_alloc(b->scratch, n_bytes);
  if (one == OPIPE_NONE || size == 0) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "type %s is not known",
                         opi_dtype_name(dtype));
  }
  if (data == NULL)
    return opi_fail_nomem(err, n_bytes, "an identity matrix");
  for (int64_t r = 0; r < rows; ++r) {
    int64_t c = 0;
    if (__builtin_add_overflow(r, k, &c) || c < 0 || c >= columns)
      continue;
    memcpy(data + (size_t)(r * columns + c) * size, opi_b_value(b, one)->data, size);
  }
  const int64_t shape[2] = {rows, columns};
  return result(b, node, opi_b_const(b, dtype, shape, 2, data), err);
}

static const opi_op ops[] = {
    {OPI_OP("Constant", "", 1, OPI_NEWEST_ONNX, 0, 0, 1, 1),
     OPI_ATTRS(25, OPI_A(TENSOR, "value"), OPI_A(TENSOR, "sparse_value", .since = 11),
               OPI_A(STRINGS, "value_strings", .since = 12),
               OPI_A(STRING, "value_string", .since = 12),
               OPI_A(FLOATS, "value_floats", .since = 12), OPI_A(FLOAT, "value_float", .since = 12),
               OPI_A(INT, "value_float", .since = 12), OPI_A(INTS, "value_ints", .since = 12),
               OPI_A(INT, "value_int", .since = 12)),
     .lift = lift_constant},
    {OPI_OP("ConstantOfShape", "", 9, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(25, OPI_A(TENSOR, "value")), .lift = lift_constant_of_shape},
    {OPI_OP("Range", "", 11, OPI_NEWEST_ONNX, 3, 3, 1, 1),
     OPI_ATTRS(27, OPI_A(INT, "stash_type", .since = 27, OPI_ONLY(1))), .lift = lift_range},
    {OPI_OP("EyeLike", "", 9, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(22, OPI_A(INT, "dtype"), OPI_A(INT, "k", OPI_PRESET(0))), .lift = lift_eye_like},
};
extern const opi_op_family opi_ops_generate;
const opi_op_family opi_ops_generate = {ops, OPI_COUNT(ops)};
