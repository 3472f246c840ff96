/* SPDX-License-Identifier: Apache-2.0 */
/* Element types (ONNX codes) and the size of tensors, every product checked. */
#include "loader/base/base.h"

#include <string.h>

typedef struct dtype_row {
  const char *name;
  uint32_t bits;
} dtype_row;

/* By ONNX TensorProto.DataType. */
static const dtype_row rows[] = {
    [OPIPE_UNDEFINED] = {"undefined", 0},
    [OPIPE_FLOAT] = {"float32", 32},
    [OPIPE_UINT8] = {"uint8", 8},
    [OPIPE_INT8] = {"int8", 8},
    [OPIPE_UINT16] = {"uint16", 16},
    [OPIPE_INT16] = {"int16", 16},
    [OPIPE_INT32] = {"int32", 32},
    [OPIPE_INT64] = {"int64", 64},
    [OPIPE_STRING] = {"string", 0},
    [OPIPE_BOOL] = {"bool", 8},
    [OPIPE_FLOAT16] = {"float16", 16},
    [OPIPE_DOUBLE] = {"float64", 64},
    [OPIPE_UINT32] = {"uint32", 32},
    [OPIPE_UINT64] = {"uint64", 64},
    [OPIPE_COMPLEX64] = {"complex64", 64},
    [OPIPE_COMPLEX128] = {"complex128", 128},
    [OPIPE_BFLOAT16] = {"bfloat16", 16},
    [OPIPE_FLOAT8E4M3FN] = {"float8e4m3fn", 8},
    [OPIPE_FLOAT8E4M3FNUZ] = {"float8e4m3fnuz", 8},
    [OPIPE_FLOAT8E5M2] = {"float8e5m2", 8},
    [OPIPE_FLOAT8E5M2FNUZ] = {"float8e5m2fnuz", 8},
    [OPIPE_UINT4] = {"uint4", 4},
    [OPIPE_INT4] = {"int4", 4},
    [OPIPE_FLOAT4E2M1] = {"float4e2m1", 4},
    [OPIPE_FLOAT8E8M0] = {"float8e8m0", 8},
    [OPIPE_UINT2] = {"uint2", 2},
    [OPIPE_INT2] = {"int2", 2},
};

uint32_t opi_dtype_bits(uint32_t dtype) {
  return dtype < OPI_COUNT(rows) ? rows[dtype].bits : 0;
}

const char *opi_dtype_name(uint32_t dtype) {
  return dtype < OPI_COUNT(rows) ? rows[dtype].name : "unknown";
}

bool opi_dtype_is_float(uint32_t dtype) {
  return dtype == OPIPE_FLOAT || dtype == OPIPE_DOUBLE || dtype == OPIPE_FLOAT16 ||
         dtype == OPIPE_BFLOAT16;
}

bool opi_dtype_is_integer(uint32_t dtype) {
  return (dtype >= OPIPE_UINT8 && dtype <= OPIPE_INT64) || dtype == OPIPE_UINT32 ||
         dtype == OPIPE_UINT64;
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

typedef struct dl_row {
  uint32_t dtype;
  opipe_dtype dl;
} dl_row;

static const dl_row dl_rows[] = {
    {OPIPE_FLOAT, {OPIPE_DL_FLOAT, 32, 1}},
    {OPIPE_DOUBLE, {OPIPE_DL_FLOAT, 64, 1}},
    {OPIPE_FLOAT16, {OPIPE_DL_FLOAT, 16, 1}},
    {OPIPE_BFLOAT16, {OPIPE_DL_BFLOAT, 16, 1}},
    {OPIPE_INT64, {OPIPE_DL_INT, 64, 1}},
    {OPIPE_INT32, {OPIPE_DL_INT, 32, 1}},
    {OPIPE_INT16, {OPIPE_DL_INT, 16, 1}},
    {OPIPE_INT8, {OPIPE_DL_INT, 8, 1}},
    {OPIPE_INT4, {OPIPE_DL_INT, 4, 1}},
    {OPIPE_INT2, {OPIPE_DL_INT, 2, 1}},
    {OPIPE_UINT64, {OPIPE_DL_UINT, 64, 1}},
    {OPIPE_UINT32, {OPIPE_DL_UINT, 32, 1}},
    {OPIPE_UINT16, {OPIPE_DL_UINT, 16, 1}},
    {OPIPE_UINT8, {OPIPE_DL_UINT, 8, 1}},
    {OPIPE_UINT4, {OPIPE_DL_UINT, 4, 1}},
    {OPIPE_UINT2, {OPIPE_DL_UINT, 2, 1}},
    {OPIPE_BOOL, {OPIPE_DL_BOOL, 8, 1}},
    {OPIPE_FLOAT8E4M3FN, {OPIPE_DL_FLOAT8_E4M3FN, 8, 1}},
    {OPIPE_FLOAT8E4M3FNUZ, {OPIPE_DL_FLOAT8_E4M3FNUZ, 8, 1}},
    {OPIPE_FLOAT8E5M2, {OPIPE_DL_FLOAT8_E5M2, 8, 1}},
    {OPIPE_FLOAT8E5M2FNUZ, {OPIPE_DL_FLOAT8_E5M2FNUZ, 8, 1}},
    {OPIPE_FLOAT8E8M0, {OPIPE_DL_FLOAT8_E8M0FNU, 8, 1}},
    {OPIPE_FLOAT4E2M1, {OPIPE_DL_FLOAT4_E2M1FN, 4, 1}},
};

opipe_dtype opi_dtype_to_dl(uint32_t dtype) {
  for (size_t i = 0; i < OPI_COUNT(dl_rows); ++i) {
    if (dl_rows[i].dtype == dtype)
      return dl_rows[i].dl;
  }
  return (opipe_dtype){0, 0, 0};
}

uint32_t opi_dtype_from_dl(opipe_dtype dl) {
  for (size_t i = 0; i < OPI_COUNT(dl_rows); ++i) {
    const opipe_dtype *row = &dl_rows[i].dl;
    if (row->code == dl.code && row->bits == dl.bits && row->lanes == dl.lanes)
      return dl_rows[i].dtype;
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
