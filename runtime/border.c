/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors at the host border: DLPack's types and ours, where memory may lie, which fences are known. */
#include "runtime/state.h"

static const struct {
  uint8_t code, bits;
  uint32_t dtype;
} TYPES[] = {{OPIPE_DL_FLOAT, 32, OPIPE_FLOAT},
             {OPIPE_DL_FLOAT, 64, OPIPE_DOUBLE},
             {OPIPE_DL_FLOAT, 16, OPIPE_FLOAT16},
             {OPIPE_DL_BFLOAT, 16, OPIPE_BFLOAT16},
             {OPIPE_DL_INT, 64, OPIPE_INT64},
             {OPIPE_DL_INT, 32, OPIPE_INT32},
             {OPIPE_DL_INT, 16, OPIPE_INT16},
             {OPIPE_DL_INT, 8, OPIPE_INT8},
             {OPIPE_DL_INT, 4, OPIPE_INT4},
             {OPIPE_DL_INT, 2, OPIPE_INT2},
             {OPIPE_DL_UINT, 64, OPIPE_UINT64},
             {OPIPE_DL_UINT, 32, OPIPE_UINT32},
             {OPIPE_DL_UINT, 16, OPIPE_UINT16},
             {OPIPE_DL_UINT, 8, OPIPE_UINT8},
             {OPIPE_DL_UINT, 4, OPIPE_UINT4},
             {OPIPE_DL_UINT, 2, OPIPE_UINT2},
             {OPIPE_DL_BOOL, 8, OPIPE_BOOL},
             {OPIPE_DL_FLOAT8_E4M3FN, 8, OPIPE_FLOAT8E4M3FN},
             {OPIPE_DL_FLOAT8_E4M3FNUZ, 8, OPIPE_FLOAT8E4M3FNUZ},
             {OPIPE_DL_FLOAT8_E5M2, 8, OPIPE_FLOAT8E5M2},
             {OPIPE_DL_FLOAT8_E5M2FNUZ, 8, OPIPE_FLOAT8E5M2FNUZ},
             {OPIPE_DL_FLOAT8_E8M0FNU, 8, OPIPE_FLOAT8E8M0},
             {OPIPE_DL_FLOAT4_E2M1FN, 4, OPIPE_FLOAT4E2M1}};

static uint32_t dtype_of(opipe_dtype type) {
  for (size_t i = 0; i < OPI_COUNT(TYPES); ++i) {
    if (TYPES[i].code == type.code && TYPES[i].bits == type.bits && type.lanes == 1) return TYPES[i].dtype;
  }
  return OPIPE_UNDEFINED;
}

opipe_dtype opi_dtype_to_dl(uint32_t dtype) {
  for (size_t i = 0; i < OPI_COUNT(TYPES); ++i) {
    if (TYPES[i].dtype == dtype) return (opipe_dtype){.code = TYPES[i].code, .bits = TYPES[i].bits, .lanes = 1};
  }
  return (opipe_dtype){.lanes = 1};
}

opipe_status opi_check_fence(const char *name, const opipe_fence *fence, opipe_error *err) {
  if (fence->kind > OPIPE_FENCE_HOST_FLAG) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "tensor '%s': fences of kind %u are not known to its device", name, fence->kind);
  }
  if (fence->kind == OPIPE_FENCE_HOST_FLAG && fence->handle == NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "tensor '%s': a host flag without an address", name);
  }
  return OPIPE_OK;
}

opipe_status opi_check_tensor(const char *name, const opipe_tensor *tensor, uint32_t dtype, opipe_error *err) {
  if (tensor->device_type != OPIPE_DL_CPU) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "tensor '%s' lies on a device of type %d, host memory (%d) is taken", name,
                    tensor->device_type, OPIPE_DL_CPU);
  }
  const uint32_t given = dtype_of(tensor->dtype);
  if (given == dtype) return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "tensor '%s' is %s (DLPack code %u, %u bits), the model wants %s", name,
                  opi_dtype_name(given), tensor->dtype.code, tensor->dtype.bits, opi_dtype_name(dtype));
}
