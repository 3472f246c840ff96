/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that the command owns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

size_t cli_dtype_bytes(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  return row->dl < 0 || row->bits % 8 != 0 ? 0 : row->bits / 8;
}

const char *cli_dtype_name(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  return row->bits == 0 ? "an unknown type" : row->name;
}

size_t cli_elems(const cli_tensor *tensor) {
  size_t n = 1;
  for (uint32_t d = 0; d < tensor->rank; ++d)
    n *= (size_t)tensor->shape[d];
  return n;
}

bool cli_tensor_alloc(cli_tensor *tensor) {
  size_t n = cli_dtype_bytes(tensor->dtype);
  if (n == 0)
    return false;
  for (uint32_t d = 0; d < tensor->rank; ++d) {
    if (tensor->shape[d] < 0 || __builtin_mul_overflow(n, (size_t)tensor->shape[d], &n))
      return false;
  }
  tensor->data = calloc(1, n == 0 ? 1 : n);
  tensor->n_bytes = n;
  return tensor->data != NULL;
}

void cli_tensor_free(cli_tensor *tensor) {
  free(tensor->data);
  free(tensor->name);
  tensor->data = NULL;
  tensor->name = NULL;
}

bool cli_tensor_name(cli_tensor *t, const char *text, size_t n) {
  char *own = malloc(n + 1);
  if (own == NULL)
    return false;
  memcpy(own, text, n);
  own[n] = '\0';
  free(t->name);
  t->name = own;
  return true;
}

bool cli_can_widen(uint32_t from, uint32_t to) {
  const opipe_dtype_row *row = opipe_dtype_row_of(from);
  const bool integer = row->elements == OPIPE_ELEM_INT || row->elements == OPIPE_ELEM_UINT;
  return to == OPIPE_INT64 && integer && row->bits >= 8 && row->bits < 64;
}

void cli_widen(uint32_t from, const void *in, size_t n, int64_t *out) {
  const bool is_signed = opipe_dtype_row_of(from)->elements == OPIPE_ELEM_INT;
  const size_t size = cli_dtype_bytes(from);
  for (size_t i = 0; i < n; ++i) {
    uint64_t bits = 0;
    memcpy(&bits, (const char *)in + i * size, size); /* little-endian */
    const uint64_t sign = is_signed ? UINT64_C(1) << (8 * size - 1) : 0;
    out[i] = (int64_t)((bits ^ sign) - sign);
  }
}

bool cli_tensor_widen(cli_tensor *t, uint32_t dtype) {
  if (!cli_can_widen(t->dtype, dtype))
    return true;
  cli_tensor wide = *t;
  wide.dtype = dtype;
  wide.data = NULL;
  if (!cli_tensor_alloc(&wide))
    return false;
  cli_widen(t->dtype, t->data, cli_elems(t), wide.data);
  free(t->data);
  *t = wide;
  return true;
}

opipe_tensor cli_tensor_view(const cli_tensor *tensor) {
  const opipe_dtype_row *row = opipe_dtype_row_of(tensor->dtype);
  opipe_tensor view = {.data = tensor->data,
                       .device_type = OPIPE_DL_CPU,
                       .rank = (int32_t)tensor->rank,
                       .shape = tensor->shape};
  if (row->dl >= 0)
    view.dtype = (opipe_dtype){(uint8_t)row->dl, (uint8_t)row->bits, 1};
  return view;
}

bool cli_tensor_copy(const char *name, const opipe_tensor *view, cli_tensor *out) {
  memset(out, 0, sizeof(*out));
  if (!cli_tensor_name(out, name, strlen(name)))
    return false;
  if (view->rank < 0 || view->rank > OPIPE_MAX_RANK || view->strides != NULL)
    return false;
  out->rank = (uint32_t)view->rank;
  for (int32_t d = 0; d < view->rank; ++d)
    out->shape[d] = view->shape[d];
  for (uint32_t dtype = 0; dtype < OPIPE_N_DTYPES; ++dtype) {
    const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
    if (row->dl == view->dtype.code && row->bits == view->dtype.bits)
      out->dtype = dtype;
  }
  if (!cli_tensor_alloc(out))
    return false;
  if (out->n_bytes != 0)
    memcpy(out->data, (const char *)view->data + view->byte_offset, out->n_bytes);
  return true;
}

static double half_to_double(uint16_t h) {
  const int sign = h >> 15, exponent = (h >> 10) & 31, fraction = h & 1023;
  double value = 0;
  if (exponent == 31)
    value = fraction == 0 ? (double)INFINITY : (double)NAN;
  else if (exponent == 0)
    value = ldexp(fraction, -24);
  else
    value = ldexp(1024 + fraction, exponent - 25);
  return sign != 0 ? -value : value;
}

static double bfloat_to_double(uint16_t b) {
  const uint32_t bits = (uint32_t)b << 16;
  float value = 0;
  memcpy(&value, &bits, sizeof(value));
  return (double)value;
}

#define GET_AT(type, at)                                                            \
  do {                                                                              \
    type value_;                                                                    \
    memcpy(&value_, (const char *)t->data + (at) * sizeof(value_), sizeof(value_)); \
    return (double)value_;                                                          \
  } while (0)
#define GET(type) GET_AT(type, i)

double cli_tensor_get(const cli_tensor *t, size_t i) {
  uint16_t bits = 0;
  switch (t->dtype) {
    case OPIPE_FLOAT:
      GET(float);
    case OPIPE_DOUBLE:
      GET(double);
    case OPIPE_INT64:
      GET(int64_t);
    case OPIPE_INT32:
      GET(int32_t);
    case OPIPE_INT16:
      GET(int16_t);
    case OPIPE_INT8:
      GET(int8_t);
    case OPIPE_UINT64:
      GET(uint64_t);
    case OPIPE_UINT32:
      GET(uint32_t);
    case OPIPE_UINT16:
      GET(uint16_t);
    case OPIPE_COMPLEX64:
      GET_AT(float, 2 * i);
    case OPIPE_COMPLEX128:
      GET_AT(double, 2 * i);
    case OPIPE_FLOAT16:
    case OPIPE_BFLOAT16:
      memcpy(&bits, (const char *)t->data + i * 2, 2);
      return t->dtype == OPIPE_FLOAT16 ? half_to_double(bits) : bfloat_to_double(bits);
    default:
      GET(uint8_t);
  }
}

double cli_tensor_imaginary(const cli_tensor *t, size_t i) {
  if (t->dtype == OPIPE_COMPLEX64)
    GET_AT(float, 2 * i + 1);
  if (t->dtype == OPIPE_COMPLEX128)
    GET_AT(double, 2 * i + 1);
  return 0;
}

const char *cli_tensor_text(const cli_tensor *t, size_t i, char out[CLI_NUMBER_TEXT]) {
  const double real = cli_tensor_get(t, i);
  if (opipe_dtype_row_of(t->dtype)->elements == OPIPE_ELEM_COMPLEX)
    (void)snprintf(out, CLI_NUMBER_TEXT, "%.6g%+.6gi", real, cli_tensor_imaginary(t, i));
  else
    (void)snprintf(out, CLI_NUMBER_TEXT, "%.6g", real);
  return out;
}
