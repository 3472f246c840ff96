/* SPDX-License-Identifier: Apache-2.0 */
/* The host's tensors: checks of their type, the place of their memory, their fences. */
#include "runtime/device/device.h"

bool opi_fence_set(const opipe_fence *fence) {
  if (fence->kind != OPIPE_FENCE_HOST_FLAG)
    return true;
  return __atomic_load_n((const uint32_t *)fence->handle, __ATOMIC_ACQUIRE) != 0;
}

/* Does a device here know tensors of that kind and number? */
static bool is_known(const opi_setup *s, int32_t device_type, int32_t device_id) {
  for (uint32_t h = 0; h < s->n_here; ++h) {
    const opi_rank *rank = &s->ranks[s->here[h]];
    if (rank->device_type == device_type && rank->device_id == device_id)
      return true;
  }
  return false;
}

static const opi_rank *first_that_takes(const opi_setup *s) {
  for (uint32_t i = 0; i < s->n_here; ++i) {
    if (s->ranks[s->here[i]].device_type != 0)
      return &s->ranks[s->here[i]];
  }
  return NULL;
}

opipe_status opi_check_fence(const opi_setup *s, const char *name, const opipe_fence *fence,
                             opipe_error *err) {
  if (fence->kind > OPIPE_FENCE_HOST_FLAG && first_that_takes(s) == NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "tensor '%s': its device does not support fences of kind %u", name,
                    fence->kind);
  }
  if (fence->kind == OPIPE_FENCE_NATIVE_EVENT && fence->handle == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "tensor '%s': a native event without a handle", name);
  if (fence->kind == OPIPE_FENCE_HOST_FLAG && fence->handle == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "tensor '%s': a host flag without an address", name);
  return OPIPE_OK;
}

opipe_status opi_check_tensor(const opi_setup *s, const char *name, const opipe_tensor *tensor,
                              uint32_t dtype, opipe_error *err) {
  const opi_rank *other = first_that_takes(s);
  if (tensor->device_type != OPIPE_DL_CPU && other == NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "tensor '%s' lies on a device of type %d, only host memory (%d) is accepted",
                    name, tensor->device_type, OPIPE_DL_CPU);
  }
  if (tensor->device_type != OPIPE_DL_CPU && !is_known(s, tensor->device_type, tensor->device_id)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "tensor '%s' lies on device %d:%d, no rank here is on it (rank %u: %d:%d)",
                    name, tensor->device_type, tensor->device_id, other->index, other->device_type,
                    other->device_id);
  }
  const uint32_t given = opi_dtype_from_dl(tensor->dtype);
  if (given == dtype)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "tensor '%s' is %s (DLPack code %u, %u bits, %u lane%s), the model wants %s",
                  name, opi_dtype_name(given), tensor->dtype.code, tensor->dtype.bits,
                  tensor->dtype.lanes, tensor->dtype.lanes == 1 ? "" : "s", opi_dtype_name(dtype));
}
