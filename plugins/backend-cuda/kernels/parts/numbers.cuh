/* SPDX-License-Identifier: Apache-2.0 */
/* Elements whose type is known only as a kernel runs, as fp64 or 64-bit integers. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_NUMBERS_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_NUMBERS_CUH_

#include "../device.cuh"

enum { /* the numbers of OPIPE_FLOAT ... in opipe/dtypes.h; plan.c checks them */
       TYPE_F32 = 1,
       TYPE_U8 = 2,
       TYPE_I8 = 3,
       TYPE_U16 = 4,
       TYPE_I16 = 5,
       TYPE_I32 = 6,
       TYPE_I64 = 7,
       TYPE_BOOL = 9,
       TYPE_F16 = 10,
       TYPE_F64 = 11,
       TYPE_U32 = 12,
       TYPE_U64 = 13,
       TYPE_BF16 = 16
};

CUDA_FN bool is_float(uint32_t dtype) {
  return dtype == TYPE_F32 || dtype == TYPE_F16 || dtype == TYPE_BF16 || dtype == TYPE_F64;
}

CUDA_FN int64_t load_integer(const void *data, uint32_t dtype, int64_t i) {
  switch (dtype) {
    case TYPE_I8:
      return static_cast<const int8_t *>(data)[i];
    case TYPE_U16:
      return static_cast<const uint16_t *>(data)[i];
    case TYPE_I16:
      return static_cast<const int16_t *>(data)[i];
    case TYPE_I32:
      return static_cast<const int32_t *>(data)[i];
    case TYPE_U32:
      return static_cast<const uint32_t *>(data)[i];
    case TYPE_I64:
    case TYPE_U64:
      return static_cast<const int64_t *>(data)[i];
    default: /* U8, BOOL */
      return static_cast<const uint8_t *>(data)[i];
  }
}

/* Cut to the type. */
CUDA_FN void store_integer(void *data, uint32_t dtype, int64_t i, int64_t value) {
  switch (dtype) {
    case TYPE_U16:
    case TYPE_I16:
      static_cast<uint16_t *>(data)[i] = (uint16_t)value;
      break;
    case TYPE_I32:
    case TYPE_U32:
      static_cast<uint32_t *>(data)[i] = (uint32_t)value;
      break;
    case TYPE_I64:
    case TYPE_U64:
      static_cast<int64_t *>(data)[i] = value;
      break;
    default: /* I8, U8, BOOL */
      static_cast<uint8_t *>(data)[i] = (uint8_t)value;
      break;
  }
}

CUDA_FN double load_number(const void *data, uint32_t dtype, int64_t i) {
  switch (dtype) {
    case TYPE_F32:
      return static_cast<const float *>(data)[i];
    case TYPE_F16:
      return widen(static_cast<const f16 *>(data)[i]);
    case TYPE_BF16:
      return widen(static_cast<const bf16 *>(data)[i]);
    case TYPE_F64:
      return static_cast<const double *>(data)[i];
    case TYPE_U64:
      return (double)static_cast<const uint64_t *>(data)[i];
    default:
      return (double)load_integer(data, dtype, i);
  }
}

/* fp32 with the last bit set when it is not exact: rounded again to a narrower type it is what one
 * rounding would have been. */
CUDA_FN float to_odd(double x) {
  const float near = (float)x;
  if ((double)near == x || x != x || isinf(near))
    return near;
  unsigned bits = __float_as_uint(near);
  bits -= fabs((double)near) > fabs(x) ? 1u : 0u; /* towards zero */
  return __uint_as_float(bits | 1u);
}

CUDA_FN void store_number(void *data, uint32_t dtype, int64_t i, double x) {
  switch (dtype) {
    case TYPE_F32:
      static_cast<float *>(data)[i] = (float)x;
      break;
    case TYPE_F16:
      put(static_cast<f16 *>(data), i, to_odd(x));
      break;
    case TYPE_BF16:
      put(static_cast<bf16 *>(data), i, to_odd(x));
      break;
    default:
      static_cast<double *>(data)[i] = x;
      break;
  }
}

/* What does not fit 64 bits becomes the most negative integer. */
CUDA_FN int64_t to_integer(double x, uint32_t dtype) {
  if (dtype == TYPE_U64 && x >= 0x1p63 && x < 0x1p64)
    return (int64_t)(uint64_t)x;
  return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}

#endif
