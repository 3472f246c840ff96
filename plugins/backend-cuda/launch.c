/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels by name, and launches of them. */
#include "cuda.h"

/* Bytes of shared memory of a block: what a kernel has of its own and what the launch asks for
 * together, before the kernel must be allowed more; and how much a launch may ask for without a
 * look at what the kernel has. */
enum { SHARED_WITHOUT_ASKING = 48 * 1024, SHARED_WITHOUT_LOOKING = 40 * 1024 };

/* The function is the module's, whoever launches it, and the last bound that was set holds: it is
 * always set to the most that the device allows. */
static opipe_status allow_shared(cuda_place *place, const cuda_launch *launch, CUfunction function,
                                 const char *what, opipe_error *err) {
  const cuda_driver *driver = place->driver;
  int own = 0;
  CUDA_TRY(cuda_result(
      place,
      driver->function_get(&own, (CUfunction_attribute)CUDA_FUNCTION_STATIC_SHARED_BYTES, function),
      what, err));
  const int64_t wanted = (int64_t)launch->shared_bytes + own;
  if (wanted <= SHARED_WITHOUT_ASKING)
    return OPIPE_OK;
  if (wanted > place->shared_bytes) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "cuda:%u: %s takes %lld bytes of shared memory, the device gives %d",
                      place->index, what, (long long)wanted, place->shared_bytes);
  }
  return cuda_result(
      place,
      driver->function_set(function, (CUfunction_attribute)CUDA_FUNCTION_DYNAMIC_SHARED_BYTES,
                           place->shared_bytes - own),
      what, err);
}

opipe_status cuda_find_kernel(opipe_device *device, const cuda_launch *launch,
                              CUfunction *out_function, opipe_error *err) {
  char what[96];
  cuda_place *place = device->place;
  (void)snprintf(what, sizeof what, "kernel %.64s", launch->kernel);
  CUDA_TRY(cuda_result(place,
                       place->driver->module_function(out_function, place->module, launch->kernel),
                       what, err));
  return launch->shared_bytes <= SHARED_WITHOUT_LOOKING
             ? OPIPE_OK
             : allow_shared(place, launch, *out_function, what, err);
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

opipe_status cuda_launch_behind(opipe_device *device, CUfunction function,
                                const cuda_launch *launch, const unsigned char *args,
                                CUstream stream, opipe_error *err) {
  cuda_launch_attribute attribute = {.id = CUDA_LAUNCH_PROGRAMMATIC, .value.flag = 1};
  const cuda_launch_config config = {
      .grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
      .block = {launch->block[0], launch->block[1], launch->block[2]},
      .shared_bytes = launch->shared_bytes,
      .stream = stream,
      .attributes = &attribute,
      .n_attributes = 1};
  void *params[] = {(void *)(uintptr_t)args};
  if (!device->pdl || device->blocking)
    return cuda_launch_on(device, function, launch, args, stream, err);
  return cuda_result(device->place,
                     device->place->driver->launch_by(&config, function, params, NULL),
                     launch->kernel, err);
}
