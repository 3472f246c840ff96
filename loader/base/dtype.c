/* SPDX-License-Identifier: Apache-2.0 */
/* Element types (ONNX codes) and the size of tensors, every product checked. */
#include "loader/base/base.h"

#include <string.h>

/* The rows of opipe/dtypes.h are found by their number. */
#define PLACE(key, ...) PLACE_##key,
#define IN_PLACE(key, number, ...) \
  OPIPE_STATIC_ASSERT((int)PLACE_##key == (number), "rows of element types rise by one");
enum { OPIPE_DTYPES(PLACE) };
OPIPE_DTYPES(IN_PLACE)

uint32_t opi_dtype_bits(uint32_t dtype) {
  return opipe_dtype_row_of(dtype)->bits;
}

const char *opi_dtype_name(uint32_t dtype) {
  return dtype < OPIPE_N_DTYPES ? opipe_dtype_row_of(dtype)->name : "unknown";
}

bool opi_dtype_is_float(uint32_t dtype) {
  return opipe_dtype_row_of(dtype)->elements == OPIPE_ELEM_FLOAT;
}

bool opi_dtype_is_unsigned(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  return row->elements == OPIPE_ELEM_UINT && row->bits >= 8;
}

bool opi_dtype_is_integer(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  return opi_dtype_is_unsigned(dtype) || (row->elements == OPIPE_ELEM_INT && row->bits >= 8);
}

bool opi_shape_elems(const int64_t *shape, uint32_t rank, uint64_t *out_elems) {
  uint64_t product = 1, nonzero = 1;
  for (uint32_t d = 0; d < rank; ++d) {
    if (shape[d] < 0)
      return false;
    product *= (uint64_t)shape[d]; /* wraps only when nonzero overflows, which fails below */
    if (shape[d] != 0 && opi_mul_u64(nonzero, (uint64_t)shape[d], &nonzero))
      return false;
  }
  if (nonzero > INT64_MAX)
    return false; /* a zero elsewhere must not hide absurd dimensions */
  *out_elems = product;
  return true;
}

bool opi_tensor_bytes(uint32_t dtype, const int64_t *shape, uint32_t rank, uint64_t *out_bytes) {
  uint64_t elems = 0, bits = 0;
  const uint32_t elem_bits = opi_dtype_bits(dtype);
  if (elem_bits == 0 || !opi_shape_elems(shape, rank, &elems))
    return false;
  if (opi_mul_u64(elems, elem_bits, &bits))
    return false;
  *out_bytes = bits / 8 + (bits % 8 != 0);
  return true;
}

opipe_dtype opi_dtype_to_dl(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  if (row->dl < 0)
    return (opipe_dtype){0, 0, 0};
  return (opipe_dtype){(uint8_t)row->dl, (uint8_t)row->bits, 1};
}

uint32_t opi_dtype_from_dl(opipe_dtype dl) {
  for (uint32_t dtype = 0; dtype < OPIPE_N_DTYPES; ++dtype) {
    const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
    if (row->dl == dl.code && row->bits == dl.bits && dl.lanes == 1)
      return dtype;
  }
  return OPIPE_UNDEFINED;
}

void opi_tensor_pack(const opipe_tensor *tensor, void *out) {
  const size_t size = (size_t)tensor->dtype.bits / 8;
  const char *data = (const char *)tensor->data + tensor->byte_offset;
  int64_t index[OPIPE_MAX_RANK] = {0};
  uint64_t n = 0;
  if (!opi_shape_elems(tensor->shape, (uint32_t)tensor->rank, &n))
    return;
  if (tensor->strides == NULL) {
    if (n != 0)
      memcpy(out, data, (size_t)n * size);
    return;
  }
  for (uint64_t i = 0; i < n; ++i) {
    int64_t offset = 0;
    for (int32_t d = 0; d < tensor->rank; ++d)
      offset += index[d] * tensor->strides[d];
    memcpy((char *)out + i * size, data + offset * (int64_t)size, size);
    for (int32_t d = tensor->rank - 1; d >= 0 && ++index[d] == tensor->shape[d]; --d)
      index[d] = 0;
  }
}
