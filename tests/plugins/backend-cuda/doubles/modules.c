/* SPDX-License-Identifier: Apache-2.0 */
/* Modules and functions of the double: the kernels that the host's compiler made. */
#include <stdlib.h>
#include <string.h>

#include "double.h"

/* By device: the current context's. */
static struct CUmod_st {
  struct CUfunc_st *functions; /* [cuda_shim_n_rows] */
  bool loaded;
} modules[CUDA_DOUBLE_DEVICES];

static bool is_image(const unsigned char *image) {
  static const unsigned char fat[4] = {0x50, 0xed, 0x55, 0xba};
  return memcmp(image, fat, sizeof fat) == 0 || memcmp(image, "shim", 4) == 0;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  if (!is_image(image))
    return CUDA_INVALID_IMAGE;
  CUmodule made = &modules[cuda_double_device()];
  (void)pthread_mutex_lock(&cuda_double_lock);
  if (made->loaded)
    cuda_double_die("a second module: the plugin has one on each device");
  if (made->functions == NULL)
    made->functions = calloc(cuda_shim_n_rows, sizeof *made->functions);
  for (uint32_t i = 0; made->functions != NULL && i < cuda_shim_n_rows; ++i)
    made->functions[i] = (struct CUfunc_st){&cuda_shim_rows[i], 0};
  made->loaded = made->functions != NULL;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  *module = made;
  return made->loaded ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

CUresult cuModuleUnload(CUmodule module) {
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  cuda_double_wait_for_all("cuModuleUnload");
  module->loaded = false;
  return CUDA_OK;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  if (module != &modules[cuda_double_device()] || !module->loaded)
    return CUDA_INVALID_HANDLE;
  for (uint32_t i = 0; i < cuda_shim_n_rows; ++i) {
    if (strcmp(cuda_shim_rows[i].kernel, name) == 0) {
      *function = &module->functions[i];
      return CUDA_OK;
    }
  }
  return CUDA_NOT_FOUND;
}

/* The last value counts, be it less than one before: the function is the module's, whoever asks. */
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  if (attribute != CUDA_FUNCTION_DYNAMIC_SHARED_BYTES || value < 0 ||
      value > CUDA_DOUBLE_SHARED_OPTIN - CUDA_DOUBLE_SHARED_STATIC)
    return CUDA_INVALID_VALUE;
  __atomic_store_n(&function->most_dynamic, (uint32_t)value, __ATOMIC_RELAXED);
  return CUDA_OK;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  if (attribute == CUDA_FUNCTION_STATIC_SHARED_BYTES)
    *value = CUDA_DOUBLE_SHARED_STATIC;
  else if (attribute == CUDA_FUNCTION_DYNAMIC_SHARED_BYTES)
    *value = (int)cuda_double_most_dynamic(function);
  else if (attribute == CUDA_FUNCTION_PTX_VERSION)
    *value = cuda_double_ptx();
  else
    result = CUDA_INVALID_VALUE;
  return result;
}

uint32_t cuda_double_most_dynamic(CUfunction function) {
  const uint32_t asked = __atomic_load_n(&function->most_dynamic, __ATOMIC_RELAXED);
  return asked != 0 ? asked : CUDA_DOUBLE_SHARED - CUDA_DOUBLE_SHARED_STATIC;
}
