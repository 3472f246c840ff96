/* SPDX-License-Identifier: Apache-2.0 */
/* A driver that nothing runs on: libcuda.so.1 for plans.c. It loads modules, so that cuDNN takes
 * what it has compiled for loaded, and answers everything else with the error of the vendor's stub.
 */
enum { DONE = 0, STUB = 34, VERSION = 13000 };

#define MAKES(name)      \
  int name(void **out);  \
  int name(void **out) { \
    static int made;     \
    *out = &made;        \
    return DONE;         \
  }
#define LACKS(name) \
  int name(void);   \
  int name(void) {  \
    return STUB;    \
  }

MAKES(cuLibraryLoadData)
MAKES(cuLibraryGetKernel)
MAKES(cuLibraryGetModule)
MAKES(cuKernelGetFunction)
MAKES(cuModuleLoadData)
MAKES(cuModuleGetFunction)

int cuDriverGetVersion(int *out);
int cuDriverGetVersion(int *out) {
  *out = VERSION;
  return DONE;
}

int cuGetErrorString(int error, const char **out);
int cuGetErrorString(int error, const char **out) {
  (void)error;
  *out = "no driver";
  return DONE;
}

LACKS(cuInit)
LACKS(cuGetErrorName)
LACKS(cuGetExportTable)
LACKS(cuGetProcAddress)
LACKS(cuGetProcAddress_v2)
LACKS(cuDeviceGet)
LACKS(cuDeviceGetCount)
LACKS(cuDeviceGetAttribute)
LACKS(cuDevicePrimaryCtxRetain)
LACKS(cuDevicePrimaryCtxRelease)
LACKS(cuDevicePrimaryCtxReset)
LACKS(cuCtxGetCurrent)
LACKS(cuCtxGetDevice)
LACKS(cuCtxGetLimit)
LACKS(cuCtxPopCurrent)
LACKS(cuCtxPushCurrent)
LACKS(cuStreamGetCtx)
LACKS(cuStreamSynchronize)
LACKS(cuLinkCreate)
LACKS(cuLinkCreate_v2)
LACKS(cuLinkAddData)
LACKS(cuLinkAddData_v2)
LACKS(cuLinkAddFile_v2)
LACKS(cuLinkComplete)
LACKS(cuLinkDestroy)
LACKS(cuLaunchKernel)
LACKS(cuLaunchKernelEx)
LACKS(cuLaunchCooperativeKernel)
LACKS(cuLibraryLoadFromFile)
LACKS(cuLibraryUnload)
LACKS(cuKernelGetAttribute)
LACKS(cuKernelSetAttribute)
LACKS(cuModuleLoadDataEx)
LACKS(cuModuleLoadFatBinary)
LACKS(cuModuleUnload)
LACKS(cuModuleGetGlobal_v2)
LACKS(cuMemcpyDtoH_v2)
LACKS(cuFuncGetAttribute)
LACKS(cuFuncSetAttribute)
LACKS(cuTensorMapEncodeTiled)
LACKS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
LACKS(cuOccupancyMaxPotentialClusterSize)
