/* SPDX-License-Identifier: Apache-2.0 */
/* Element types, one row each: the only place that says what a type is called and how it is stored.
 * A new type needs a row here and conversions in the code that computes with it.
 *
 * The numbers are part of the ABI. The other columns are not: as with helpers.h, every user gets a
 * copy.
 */
#ifndef OPIPE_DTYPES_H
#define OPIPE_DTYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* DLPack type codes, as they appear in opipe_dtype.code. */
enum {
  OPIPE_DL_INT = 0,
  OPIPE_DL_UINT = 1,
  OPIPE_DL_FLOAT = 2,
  OPIPE_DL_BFLOAT = 4,
  OPIPE_DL_COMPLEX = 5,
  OPIPE_DL_BOOL = 6,
  OPIPE_DL_FLOAT8_E4M3FN = 10,
  OPIPE_DL_FLOAT8_E4M3FNUZ = 11,
  OPIPE_DL_FLOAT8_E5M2 = 12,
  OPIPE_DL_FLOAT8_E5M2FNUZ = 13,
  OPIPE_DL_FLOAT8_E8M0FNU = 14,
  OPIPE_DL_FLOAT4_E2M1FN = 17
};

/* Class of the elements. */
enum {
  OPIPE_ELEM_NONE = 0, /* no numbers */
  OPIPE_ELEM_FLOAT = 1,
  OPIPE_ELEM_SMALL = 2, /* floats of 8 bits and fewer: only stored */
  OPIPE_ELEM_INT = 3,   /* signed */
  OPIPE_ELEM_UINT = 4,
  OPIPE_ELEM_BOOL = 5,
  OPIPE_ELEM_COMPLEX = 6
};

/* X(key, number, name, bits, elements, dl, safetensors, numpy), in the order of numbers:
 *   key, number     from ONNX TensorProto.DataType: OPIPE_FLOAT is 1
 *   name            in messages
 *   bits            of one element; types below 8 bits are packed
 *   elements        OPIPE_ELEM_*
 *   dl              DLPack's code at the host's border (these bits, 1 lane); -1: cannot cross it
 *   safetensors     name in safetensors files; NULL: neither written nor read
 *   numpy           descr of an array; NULL: none. If several are equal the first is read; types
 * that numpy lacks are written as their bits */
/* clang-format off */
#define OPIPE_DTYPES(X) \
  X(UNDEFINED, 0, "undefined", 0, NONE, -1, NULL, NULL) \
  X(FLOAT, 1, "float32", 32, FLOAT, OPIPE_DL_FLOAT, "F32", "<f4") \
  X(UINT8, 2, "uint8", 8, UINT, OPIPE_DL_UINT, "U8", "|u1") \
  X(INT8, 3, "int8", 8, INT, OPIPE_DL_INT, "I8", "|i1") \
  X(UINT16, 4, "uint16", 16, UINT, OPIPE_DL_UINT, "U16", "<u2") \
  X(INT16, 5, "int16", 16, INT, OPIPE_DL_INT, "I16", "<i2") \
  X(INT32, 6, "int32", 32, INT, OPIPE_DL_INT, "I32", "<i4") \
  X(INT64, 7, "int64", 64, INT, OPIPE_DL_INT, "I64", "<i8") \
  X(STRING, 8, "string", 0, NONE, -1, NULL, NULL) \
  X(BOOL, 9, "bool", 8, BOOL, OPIPE_DL_BOOL, "BOOL", "|b1") \
  X(FLOAT16, 10, "float16", 16, FLOAT, OPIPE_DL_FLOAT, "F16", "<f2") \
  X(DOUBLE, 11, "float64", 64, FLOAT, OPIPE_DL_FLOAT, "F64", "<f8") \
  X(UINT32, 12, "uint32", 32, UINT, OPIPE_DL_UINT, "U32", "<u4") \
  X(UINT64, 13, "uint64", 64, UINT, OPIPE_DL_UINT, "U64", "<u8") \
  X(COMPLEX64, 14, "complex64", 64, COMPLEX, OPIPE_DL_COMPLEX, NULL, "<c8") \
  X(COMPLEX128, 15, "complex128", 128, COMPLEX, OPIPE_DL_COMPLEX, NULL, "<c16") \
  X(BFLOAT16, 16, "bfloat16", 16, FLOAT, OPIPE_DL_BFLOAT, "BF16", "<u2") \
  X(FLOAT8E4M3FN, 17, "float8e4m3fn", 8, SMALL, OPIPE_DL_FLOAT8_E4M3FN, NULL, "|u1") \
  X(FLOAT8E4M3FNUZ, 18, "float8e4m3fnuz", 8, SMALL, OPIPE_DL_FLOAT8_E4M3FNUZ, NULL, "|u1") \
  X(FLOAT8E5M2, 19, "float8e5m2", 8, SMALL, OPIPE_DL_FLOAT8_E5M2, NULL, "|u1") \
  X(FLOAT8E5M2FNUZ, 20, "float8e5m2fnuz", 8, SMALL, OPIPE_DL_FLOAT8_E5M2FNUZ, NULL, "|u1") \
  X(UINT4, 21, "uint4", 4, UINT, OPIPE_DL_UINT, NULL, NULL) \
  X(INT4, 22, "int4", 4, INT, OPIPE_DL_INT, NULL, NULL) \
  X(FLOAT4E2M1, 23, "float4e2m1", 4, SMALL, OPIPE_DL_FLOAT4_E2M1FN, NULL, NULL) \
  X(FLOAT8E8M0, 24, "float8e8m0", 8, SMALL, OPIPE_DL_FLOAT8_E8M0FNU, NULL, "|u1") \
  X(UINT2, 25, "uint2", 2, UINT, OPIPE_DL_UINT, NULL, NULL) \
  X(INT2, 26, "int2", 2, INT, OPIPE_DL_INT, NULL, NULL)
/* clang-format on */

/* X(key, word): the types in which training can compute activations and products; the first is the
 * default. word: the spelling in `train --compute` and in messages. */
#define OPIPE_COMPUTE_TYPES(X) X(FLOAT, "fp32") X(BFLOAT16, "bf16") X(FLOAT16, "fp16")

#define OPIPE_DTYPE_NUMBER_(key, number, ...) OPIPE_##key = number,
#define OPIPE_DTYPE_COUNT_(...) +1
enum { OPIPE_DTYPES(OPIPE_DTYPE_NUMBER_) OPIPE_N_DTYPES = OPIPE_DTYPES(OPIPE_DTYPE_COUNT_) };

typedef struct opipe_dtype_row {
  const char *key, *name;
  uint32_t bits;
  uint16_t elements; /* OPIPE_ELEM_* */
  int16_t dl;
  const char *safetensors, *numpy;
} opipe_dtype_row;

#ifndef OPIPE_CDEF
/* Unknown numbers give the row of UNDEFINED. */
static inline const opipe_dtype_row *opipe_dtype_row_of(uint32_t dtype) {
#define OPIPE_DTYPE_ROW_(key, number, name, bits, elements, dl, safetensors, numpy) \
  {#key, name, bits, OPIPE_ELEM_##elements, dl, safetensors, numpy},
  static const opipe_dtype_row rows[] = {OPIPE_DTYPES(OPIPE_DTYPE_ROW_)};
  return &rows[dtype < (uint32_t)OPIPE_N_DTYPES ? dtype : 0];
}
#endif

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_DTYPES_H */
