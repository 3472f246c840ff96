/* SPDX-License-Identifier: Apache-2.0 */
/* The same tests on a device: OPIPE_KIT_IMAGE names the module that nvcc made of the kernels.
 *
 * Tensors lie in pinned memory, which a device reaches by the host's own addresses (unified
 * addressing), so that tests need not know where their kernels run. The driver is found as the
 * plugin finds it: the folders of OPIPE_CUDA_PATH, then the system's.
 */
#include "kit_device.h"

#include <dlfcn.h>
#include <stdio.h>

#include "plugins/backend-cuda/vendor.h"

static cuda_driver driver;
static CUmodule module;
static CUstream stream;

static void give_up(const char *what, int result) {
  (void)fprintf(stderr, "no device: %s (%d)\n", what, result);
  exit(99);
}

static void must(CUresult result, const char *what) {
  if (result != CUDA_OK)
    give_up(what, (int)result);
}

static void *open_driver(void) {
  const char *folders = getenv("OPIPE_CUDA_PATH");
  char path[4096];
  void *library = NULL;
  while (library == NULL && folders != NULL && *folders != '\0') {
    const size_t n = strcspn(folders, ":");
    (void)snprintf(path, sizeof path, "%.*s/libcuda.so.1", (int)n, folders);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    folders += n + (folders[n] == ':');
  }
  return library != NULL ? library : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

static void load_driver(void) {
  void *library = open_driver();
  if (library == NULL)
    give_up("there is no libcuda.so.1", 0);
#define KIT_TAKE(member, symbol, result, arguments)           \
  *(void **)(void *)&driver.member = dlsym(library, #symbol); \
  if (driver.member == NULL)                                  \
    give_up("libcuda.so.1 has no " #symbol, 0);
  CUDA_DRIVER_FUNCTIONS(KIT_TAKE)
}

bool kit_on_device(void) {
  static bool open;
  const char *path = getenv("OPIPE_KIT_IMAGE");
  size_t n_bytes = 0;
  CUdevice device = 0;
  CUcontext context = NULL;
  if (open || path == NULL || path[0] == '\0')
    return open;
  char *image = opi_test_read_file(path, &n_bytes);
  if (image == NULL)
    give_up(path, 0);
  load_driver();
  must(driver.init(0), "cuInit");
  must(driver.device_get(&device, 0), "cuDeviceGet");
  must(driver.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
  must(driver.context_push(context), "cuCtxPushCurrent");
  must(driver.module_load(&module, image), "loading the kernels");
  must(driver.stream_create(&stream, CUDA_STREAM_NON_BLOCKING), "cuStreamCreate");
  free(image);
  open = true;
  return open;
}

void *kit_device_alloc(size_t n_bytes) {
  void *data = NULL;
  must(driver.host_alloc(&data, n_bytes, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICEMAP),
       "pinned memory");
  return data;
}

void kit_device_free(void *data) {
  must(driver.host_free(data), "pinned memory");
}

void kit_device_launch(const cuda_launch *l) {
  CUfunction function = NULL;
  void *params[] = {(void *)(uintptr_t)cuda_launch_args(l)};
  must(driver.module_function(&function, module, l->kernel), l->kernel);
  if (l->shared_bytes > 40 * 1024) { /* the kernel may have memory of its own beside it */
    must(driver.function_set(function, (CUfunction_attribute)CUDA_FUNCTION_DYNAMIC_SHARED_BYTES,
                             (int)l->shared_bytes),
         l->kernel);
  }
  must(driver.launch(function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
                     l->block[2], l->shared_bytes, stream, params, NULL),
       l->kernel);
  must(driver.stream_sync(stream), l->kernel);
}
