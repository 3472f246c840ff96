/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs of this process, and how entries begin and end.
 *
 * The primary context is the one that the CUDA runtime and frameworks use too: nothing is set on
 * it, and it is retained, never made or reset. A lost context stays lost until the process ends.
 */
#include <unistd.h>

#include "cuda.h"
#include "image.h"

static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_place places[CUDA_PLACES]; /* by index of the GPU */

opipe_status cuda_check_owner(pid_t owner, const char *what, opipe_error *err) {
  const pid_t here = getpid();
  return owner == here ? OPIPE_OK
                       : opipe_fail(err, OPIPE_E_STATE,
                                    "%s: opened in another process (%ld, this is %ld): CUDA does "
                                    "not work after fork",
                                    what, (long)owner, (long)here);
}

bool cuda_place_is_lost(const cuda_place *place) {
  return __atomic_load_n(&place->lost, __ATOMIC_ACQUIRE) != 0;
}

bool cuda_is_fatal(CUresult result) {
  static const int fatal[] = {CUDA_ECC_UNCORRECTABLE,
                              CUDA_NVLINK_UNCORRECTABLE,
                              CUDA_CONTAINED,
                              CUDA_ILLEGAL_ADDRESS,
                              CUDA_LAUNCH_TIMEOUT,
                              CUDA_CONTEXT_IS_DESTROYED,
                              CUDA_ASSERT,
                              CUDA_HARDWARE_STACK_ERROR,
                              CUDA_ILLEGAL_INSTRUCTION,
                              CUDA_MISALIGNED_ADDRESS,
                              CUDA_INVALID_ADDRESS_SPACE,
                              CUDA_INVALID_PC,
                              CUDA_LAUNCH_FAILED,
                              CUDA_TENSOR_MEMORY_LEAK,
                              CUDA_MPS_CLIENT_TERMINATED,
                              CUDA_EXTERNAL_DEVICE,
                              CUDA_UNKNOWN};
  for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; ++i) {
    if ((int)result == fatal[i])
      return true;
  }
  return false;
}

opipe_status cuda_result(cuda_place *place, CUresult result, const char *what, opipe_error *err) {
  const char *name = NULL;
  if (result == CUDA_OK)
    return OPIPE_OK;
  if (place->driver->error_name(result, &name) != CUDA_OK || name == NULL)
    name = "an unknown error";
  if (cuda_is_fatal(result))
    __atomic_store_n(&place->lost, 1u, __ATOMIC_RELEASE);
  const opipe_status status = result == CUDA_OUT_OF_MEMORY ? OPIPE_E_NOMEM : OPIPE_E_DEVICE;
  (void)opipe_fail(err, status, "cuda:%u: %s: %s (%d)%s", place->index, what, name, (int)result,
                   cuda_is_fatal(result) ? "; the CUDA context is lost, restart the process" : "");
  if (err != NULL) {
    err->domain = OPIPE_DOMAIN_CUDA;
    err->native = (int32_t)result;
  }
  return status;
}

static opipe_status refuse_lost(const cuda_place *place, const char *what, opipe_error *err) {
  return opipe_fail(err, OPIPE_E_DEVICE,
                    "cuda:%u: %s: the CUDA context is lost, restart the process", place->index,
                    what);
}

opipe_status cuda_enter(const opipe_device *device, const char *what, opipe_error *err) {
  cuda_place *place = device->place;
  CUDA_TRY(cuda_check_owner(device->owner, what, err));
  if (cuda_place_is_lost(place))
    return refuse_lost(place, what, err);
  return cuda_result(place, place->driver->context_push(place->context), what, err);
}

opipe_status cuda_library_failed(const opipe_device *device, const char *what, opipe_error *err) {
  cuda_place *place = device->place;
  const CUresult result = place->driver->stream_query(device->control);
  return cuda_is_fatal(result) ? cuda_result(place, result, what, err) : OPIPE_E_DEVICE;
}

void cuda_leave(const opipe_device *device) {
  CUcontext ours = NULL;
  (void)device->place->driver->context_pop(&ours);
}

/* ---- made by the first opening, released by the last ---- */

static opipe_status load_kernels(cuda_place *place, opipe_error *err) {
  CUcontext ours = NULL;
  CUDA_TRY(
      cuda_result(place, place->driver->context_push(place->context), "cuCtxPushCurrent", err));
  const CUresult result = place->driver->module_load(&place->module, cuda_kernels_image);
  (void)place->driver->context_pop(&ours);
  return cuda_result(place, result, "loading the kernels", err);
}

static opipe_status make_place(cuda_place *place, uint32_t index, opipe_error *err) {
  const cuda_driver *driver = place->driver;
  place->index = index;
  CUDA_TRY(cuda_result(place, driver->device_get(&place->ordinal, (int)index), "cuDeviceGet", err));
  CUDA_TRY(cuda_result(place,
                       driver->device_attribute(
                           &place->shared_bytes,
                           (CUdevice_attribute)CUDA_ATTRIBUTE_SHARED_BYTES_OPTIN, place->ordinal),
                       "cuDeviceGetAttribute", err));
  CUDA_TRY(cuda_result(place, driver->context_retain(&place->context, place->ordinal),
                       "cuDevicePrimaryCtxRetain", err));
  const opipe_status status = load_kernels(place, err);
  if (status < 0)
    (void)driver->context_release(place->ordinal);
  return status;
}

opipe_status cuda_place_take(const cuda_libraries *libraries, uint32_t index,
                             cuda_place **out_place, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (index >= CUDA_PLACES) {
    return opipe_fail(err, OPIPE_E_LIMIT, "backend cuda: device %u, at most %d are opened", index,
                      CUDA_PLACES);
  }
  cuda_place *place = &places[index];
  (void)pthread_mutex_lock(&places_lock);
  if (cuda_place_is_lost(place)) {
    place->index = index;
    status = refuse_lost(place, "device_open", err);
  } else if (!place->is_made) {
    place->libraries = libraries;
    place->driver = &libraries->driver;
    status = make_place(place, index, err);
    place->is_made = status >= 0;
  }
  if (status >= 0)
    ++place->n_open;
  (void)pthread_mutex_unlock(&places_lock);
  if (status >= 0)
    *out_place = place;
  return status;
}

void cuda_place_give(cuda_place *place, bool all) {
  CUcontext ours = NULL;
  (void)pthread_mutex_lock(&places_lock);
  if (--place->n_open == 0 && all) {
    place->is_made = false;
    if (place->driver->context_push(place->context) == CUDA_OK) {
      (void)place->driver->module_unload(place->module);
      (void)place->driver->context_pop(&ours);
    }
    cuda_peers_give(place);
    (void)place->driver->context_release(place->ordinal);
  }
  (void)pthread_mutex_unlock(&places_lock);
}
