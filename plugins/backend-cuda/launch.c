/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels by name, and launches of them. */
#include "cuda.h"

enum { SHARED_WITHOUT_ASKING = 48 * 1024 };

opipe_status cuda_find_kernel(opipe_device *device, const cuda_launch *launch,
                              CUfunction *out_function, opipe_error *err) {
  char what[96];
  cuda_place *place = device->place;
  (void)snprintf(what, sizeof what, "kernel %.64s", launch->kernel);
  CUDA_TRY(cuda_result(place,
                       place->driver->module_function(out_function, place->module, launch->kernel),
                       what, err));
  if (launch->shared_bytes <= SHARED_WITHOUT_ASKING)
    return OPIPE_OK;
  return cuda_result(place,
                     place->driver->function_set(
                         *out_function, (CUfunction_attribute)CUDA_FUNCTION_DYNAMIC_SHARED_BYTES,
                         (int)launch->shared_bytes),
                     what, err);
}

opipe_status cuda_launch_on(opipe_device *device, CUfunction function, const cuda_launch *launch,
                            const unsigned char *args, CUstream stream, opipe_error *err) {
  cuda_place *place = device->place;
  const cuda_driver *driver = place->driver;
  void *params[] = {(void *)(uintptr_t)args};
  CUresult result = driver->launch(function, launch->grid[0], launch->grid[1], launch->grid[2],
                                   launch->block[0], launch->block[1], launch->block[2],
                                   launch->shared_bytes, stream, params, NULL);
  if (result == CUDA_OK && device->blocking)
    result = driver->stream_sync(stream);
  return cuda_result(place, result, launch->kernel, err);
}
