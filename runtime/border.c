/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors at the host border: their type, where memory may lie, which fences are known. */
#include "runtime/state.h"

opipe_status opi_check_fence(const char *name, const opipe_fence *fence, opipe_error *err) {
  if (fence->kind > OPIPE_FENCE_HOST_FLAG) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "tensor '%s': its device does not support fences of kind %u", name,
                    fence->kind);
  }
  if (fence->kind == OPIPE_FENCE_HOST_FLAG && fence->handle == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "tensor '%s': a host flag without an address", name);
  return OPIPE_OK;
}

opipe_status opi_check_tensor(const char *name, const opipe_tensor *tensor, uint32_t dtype,
                              opipe_error *err) {
  if (tensor->device_type != OPIPE_DL_CPU) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "tensor '%s' lies on a device of type %d, only host memory (%d) is accepted",
                    name, tensor->device_type, OPIPE_DL_CPU);
  }
  const uint32_t given = opi_dtype_from_dl(tensor->dtype);
  if (given == dtype)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_INVALID, "tensor '%s' is %s (DLPack code %u, %u bits), the model wants %s", name,
      opi_dtype_name(given), tensor->dtype.code, tensor->dtype.bits, opi_dtype_name(dtype));
}
