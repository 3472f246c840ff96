/* SPDX-License-Identifier: Apache-2.0 */
/* An old driver, of CUDA 12.2: it has none of the functions that came later, which are all but
 * these here. */
#include "plugins/backend-cuda/vendor.h"

#define CUDA_OLD_DECLARE(member, symbol, result, arguments) result symbol arguments;
CUDA_DRIVER_FUNCTIONS(CUDA_OLD_DECLARE)

CUresult cuInit(unsigned flags) {
  return flags == 0 ? CUDA_OK : CUDA_INVALID_VALUE;
}

CUresult cuDriverGetVersion(int *version) {
  *version = 12020;
  return CUDA_OK;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
  (void)error;
  *name = "an error";
  return CUDA_OK;
}
