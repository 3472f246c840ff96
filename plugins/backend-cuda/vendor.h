/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of NVIDIA's driver and of cublasLt that this backend calls, declared by us: it
 * builds without any header of theirs. A test compares every declaration with the vendor's where
 * those headers are (OPIPE_CUDA_VENDOR_HEADERS: their types instead of ours).
 *
 *   cuda_driver      libcuda.so.1
 *   cuda_products    libcublasLt.so.13
 *
 * Names in the lists are those of the libraries' symbols. Numbers are the vendor's, under our
 * names.
 */
#ifndef OPIPE_BACKEND_CUDA_VENDOR_H_
#define OPIPE_BACKEND_CUDA_VENDOR_H_

#include <stddef.h>
#include <stdint.h>

/* ---- types ---- */

typedef struct cuda_lt_algo { /* cublasLtMatmulAlgo_t */
  uint64_t data[8];
} cuda_lt_algo;
typedef struct cuda_lt_choice { /* cublasLtMatmulHeuristicResult_t */
  cuda_lt_algo algo;
  size_t workspace_bytes;
  int state; /* of cublasLt */
  float waves;
  int reserved[4];
} cuda_lt_choice;
typedef struct cuda_launch_attribute { /* CUlaunchAttribute */
  int id;
  int unused;
  union {
    uint64_t room[8];
    int flag;
  } value;
} cuda_launch_attribute;
typedef struct cuda_launch_config { /* CUlaunchConfig */
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  struct CUstream_st *stream;
  cuda_launch_attribute *attributes; /* [n_attributes] */
  unsigned n_attributes;
} cuda_launch_config;

#ifndef OPIPE_CUDA_VENDOR_HEADERS
typedef int CUresult;
typedef int CUdevice;
typedef int CUdevice_attribute;
typedef int CUpointer_attribute;
typedef int CUfunction_attribute;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef int CUstreamCaptureMode;
typedef void (*CUhostFn)(void *data);
typedef struct CUuuid_st {
  char bytes[16];
} CUuuid;
typedef struct CUipcMemHandle_st {
  char reserved[64];
} CUipcMemHandle;
typedef struct CUipcEventHandle_st {
  char reserved[64];
} CUipcEventHandle;
typedef int cublasStatus_t;
typedef int cudaDataType;
typedef int cudaDataType_t;
typedef int cublasComputeType_t;
typedef int cublasLtMatmulDescAttributes_t;
typedef int cublasLtMatrixLayoutAttribute_t;
typedef int cublasLtMatmulPreferenceAttributes_t;
typedef int cublasLtMatmulAlgoConfigAttributes_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cuda_lt_desc *cublasLtMatmulDesc_t;
typedef struct cuda_lt_layout *cublasLtMatrixLayout_t;
typedef struct cuda_lt_preference *cublasLtMatmulPreference_t;
typedef struct CUstream_st *cudaStream_t;
typedef cuda_launch_config CUlaunchConfig;
typedef cuda_lt_algo cublasLtMatmulAlgo_t;
typedef cuda_lt_choice cublasLtMatmulHeuristicResult_t;
#endif

/* ---- numbers ---- */

enum {
  CUDA_OK = 0,
  CUDA_INVALID_VALUE = 1,
  CUDA_OUT_OF_MEMORY = 2,
  CUDA_NOT_INITIALIZED = 3,
  CUDA_STUB_LIBRARY = 34,
  CUDA_NO_DEVICE = 100,
  CUDA_INVALID_DEVICE = 101,
  CUDA_INVALID_IMAGE = 200,
  CUDA_INVALID_CONTEXT = 201,
  CUDA_MAP_FAILED = 205,
  CUDA_NO_BINARY_FOR_GPU = 209,
  CUDA_ECC_UNCORRECTABLE = 214,
  CUDA_PEER_UNSUPPORTED = 217,
  CUDA_NVLINK_UNCORRECTABLE = 220,
  CUDA_CONTAINED = 226,
  CUDA_INVALID_HANDLE = 400,
  CUDA_NOT_FOUND = 500,
  CUDA_NOT_READY = 600,
  CUDA_ILLEGAL_ADDRESS = 700,
  CUDA_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_LAUNCH_TIMEOUT = 702,
  CUDA_PEER_ALREADY_ENABLED = 704,
  CUDA_CONTEXT_IS_DESTROYED = 709,
  CUDA_ASSERT = 710,
  CUDA_ALREADY_REGISTERED = 712,
  CUDA_NOT_REGISTERED = 713,
  CUDA_HARDWARE_STACK_ERROR = 714,
  CUDA_ILLEGAL_INSTRUCTION = 715,
  CUDA_MISALIGNED_ADDRESS = 716,
  CUDA_INVALID_ADDRESS_SPACE = 717,
  CUDA_INVALID_PC = 718,
  CUDA_LAUNCH_FAILED = 719,
  CUDA_TENSOR_MEMORY_LEAK = 721,
  CUDA_NOT_SUPPORTED = 801,
  CUDA_MPS_CLIENT_TERMINATED = 810,
  CUDA_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_EXTERNAL_DEVICE = 911,
  CUDA_UNKNOWN = 999
};
enum {
  CUDA_ATTRIBUTE_CLOCK_KHZ = 13,
  CUDA_ATTRIBUTE_PROCESSORS = 16,
  CUDA_ATTRIBUTE_MEMORY_CLOCK_KHZ = 36,
  CUDA_ATTRIBUTE_MEMORY_BUS_BITS = 37,
  CUDA_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CUDA_ATTRIBUTE_MAJOR = 75,
  CUDA_ATTRIBUTE_MINOR = 76,
  CUDA_ATTRIBUTE_SHARED_BYTES_OPTIN = 97,
  CUDA_ATTRIBUTE_IPC = 125 /* memory and events can be opened by other processes */
};
enum {
  CUDA_POINTER_MEMORY_TYPE = 2,
  CUDA_POINTER_DEVICE_ORDINAL = 9,
  CUDA_MEMORY_HOST = 1,
  CUDA_MEMORY_DEVICE = 2,
  CUDA_FUNCTION_STATIC_SHARED_BYTES = 1,
  CUDA_FUNCTION_PTX_VERSION = 5, /* 90: of PTX for compute capability 9.0 */
  CUDA_FUNCTION_DYNAMIC_SHARED_BYTES = 8,
  CUDA_LAUNCH_PROGRAMMATIC = 6, /* a flag: the kernel waits itself for what is in front */
  CUDA_STREAM_NON_BLOCKING = 1,
  CUDA_STREAM_PER_THREAD = 2, /* a handle: of the calling thread's own stream */
  CUDA_EVENT_DISABLE_TIMING = 2,
  CUDA_EVENT_INTERPROCESS = 4, /* with the one before */
  CUDA_IPC_LAZY_PEERS = 1,     /* peer access is enabled where it is needed */
  CUDA_HOST_PORTABLE = 1,
  CUDA_HOST_DEVICEMAP = 2,
  CUDA_CAPTURE_THREAD_LOCAL = 1
};
enum {
  CUDA_LT_SUCCESS = 0,
  CUDA_LT_NO_MEMORY = 3,
  CUDA_LT_INVALID_VALUE = 7,
  CUDA_LT_OTHER_CHIP = 8,
  CUDA_LT_NOT_SUPPORTED = 15
};
enum { CUDA_R32F = 0, CUDA_R64F = 1, CUDA_R16F = 2, CUDA_R16BF = 14 };
enum { CUDA_COMPUTE_32F = 68, CUDA_COMPUTE_64F = 70, CUDA_COMPUTE_32F_FAST_TF32 = 77 };
enum { /* of a product */
       CUDA_LT_DESC_TRANSA = 3,
       CUDA_LT_DESC_TRANSB = 4,
       CUDA_LT_DESC_EPILOGUE = 7,
       CUDA_LT_DESC_BIAS_POINTER = 8,
       CUDA_LT_DESC_AUX_POINTER = 11,
       CUDA_LT_DESC_AUX_DISTANCE = 12,
       CUDA_LT_DESC_PROCESSORS = 15, /* that are aimed at; 0: all */
       CUDA_LT_DESC_BIAS_TYPE = 26
};
enum { CUDA_OP_N = 0, CUDA_OP_T = 1 };
enum { /* bits, but for the first */
       CUDA_LT_EPILOGUE_DEFAULT = 1,
       CUDA_LT_EPILOGUE_BIAS = 4,
       CUDA_LT_EPILOGUE_GELU = 32,    /* by tanh */
       CUDA_LT_EPILOGUE_AUX = 128,    /* GELU's argument is written too */
       CUDA_LT_EPILOGUE_DGELU = 192,  /* times GELU's derivative of aux */
       CUDA_LT_EPILOGUE_SUMS_A = 256, /* over k, of A's rows: they are written to the bias */
       CUDA_LT_EPILOGUE_SUMS_B = 512  /* of B's columns */
};
enum {                      /* of an algorithm */
       CUDA_LT_ALGO_ID = 0, /* read only */
       CUDA_LT_ALGO_TILE = 1,
       CUDA_LT_ALGO_SPLIT = 2,
       CUDA_LT_ALGO_SCHEME = 3,
       CUDA_LT_ALGO_SWIZZLE = 4,
       CUDA_LT_ALGO_CUSTOM = 5,
       CUDA_LT_ALGO_STAGES = 6,
       CUDA_LT_ALGO_INNER = 7,  /* 16 bits */
       CUDA_LT_ALGO_CLUSTER = 8 /* 16 bits */
};
enum {                             /* how pieces of a sum are added; 0: there is one piece */
       CUDA_LT_SCHEME_INPLACE = 1, /* in D and its type */
       CUDA_LT_SCHEME_COMPUTE = 2, /* behind the last one, in the type that is summed in */
       CUDA_LT_SCHEME_OUTPUT = 4   /* the same in D's type */
};
enum { CUDA_LT_LAYOUT_BATCH_COUNT = 5, CUDA_LT_LAYOUT_BATCH_STRIDE = 6 };
enum {
  CUDA_LT_PREFER_WORKSPACE = 1,
  CUDA_LT_PREFER_SCHEMES = 3,
  CUDA_LT_PREFER_ALIGN_A = 5,
  CUDA_LT_PREFER_ALIGN_B = 6,
  CUDA_LT_PREFER_ALIGN_C = 7,
  CUDA_LT_PREFER_ALIGN_D = 8
};

/* ---- functions: X(member, symbol, result, arguments); first those that tell versions ---- */

#define CUDA_DRIVER_FUNCTIONS(X)                                                                   \
  X(init, cuInit, CUresult, (unsigned flags))                                                      \
  X(driver_version, cuDriverGetVersion, CUresult, (int *version))                                  \
  X(error_name, cuGetErrorName, CUresult, (CUresult error, const char **name))                     \
  X(device_count, cuDeviceGetCount, CUresult, (int *count))                                        \
  X(device_get, cuDeviceGet, CUresult, (CUdevice * device, int ordinal))                           \
  X(device_name, cuDeviceGetName, CUresult, (char *name, int room, CUdevice device))               \
  X(device_uuid, cuDeviceGetUuid_v2, CUresult, (CUuuid * uuid, CUdevice device))                   \
  X(device_bytes, cuDeviceTotalMem_v2, CUresult, (size_t * bytes, CUdevice device))                \
  X(device_attribute, cuDeviceGetAttribute, CUresult,                                              \
    (int *value, CUdevice_attribute attribute, CUdevice device))                                   \
  X(context_retain, cuDevicePrimaryCtxRetain, CUresult, (CUcontext * context, CUdevice device))    \
  X(context_release, cuDevicePrimaryCtxRelease_v2, CUresult, (CUdevice device))                    \
  X(context_push, cuCtxPushCurrent_v2, CUresult, (CUcontext context))                              \
  X(context_pop, cuCtxPopCurrent_v2, CUresult, (CUcontext * context))                              \
  X(memory_alloc, cuMemAlloc_v2, CUresult, (CUdeviceptr * address, size_t bytes))                  \
  X(memory_free, cuMemFree_v2, CUresult, (CUdeviceptr address))                                    \
  X(host_alloc, cuMemHostAlloc, CUresult, (void **data, size_t bytes, unsigned flags))             \
  X(host_free, cuMemFreeHost, CUresult, (void *data))                                              \
  X(host_register, cuMemHostRegister_v2, CUresult, (void *data, size_t bytes, unsigned flags))     \
  X(host_unregister, cuMemHostUnregister, CUresult, (void *data))                                  \
  X(pointer_attribute, cuPointerGetAttribute, CUresult,                                            \
    (void *data, CUpointer_attribute attribute, CUdeviceptr address))                              \
  X(launch_host, cuLaunchHostFunc, CUresult, (CUstream stream, CUhostFn fn, void *data))           \
  X(write, cuMemcpyHtoDAsync_v2, CUresult,                                                         \
    (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream))                             \
  X(read, cuMemcpyDtoHAsync_v2, CUresult,                                                          \
    (void *dst, CUdeviceptr src, size_t bytes, CUstream stream))                                   \
  X(copy, cuMemcpyDtoDAsync_v2, CUresult,                                                          \
    (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))                             \
  X(copy_peer, cuMemcpyPeerAsync, CUresult,                                                        \
    (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes, \
     CUstream stream))                                                                             \
  X(peer_can, cuDeviceCanAccessPeer, CUresult, (int *can, CUdevice device, CUdevice peer))         \
  X(peer_enable, cuCtxEnablePeerAccess, CUresult, (CUcontext peer, unsigned flags))                \
  X(ipc_memory_get, cuIpcGetMemHandle, CUresult, (CUipcMemHandle * handle, CUdeviceptr address))   \
  X(ipc_memory_open, cuIpcOpenMemHandle_v2, CUresult,                                              \
    (CUdeviceptr * address, CUipcMemHandle handle, unsigned flags))                                \
  X(ipc_memory_close, cuIpcCloseMemHandle, CUresult, (CUdeviceptr address))                        \
  X(ipc_event_get, cuIpcGetEventHandle, CUresult, (CUipcEventHandle * handle, CUevent event))      \
  X(ipc_event_open, cuIpcOpenEventHandle, CUresult, (CUevent * event, CUipcEventHandle handle))    \
  X(fill, cuMemsetD8Async, CUresult,                                                               \
    (CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream))                         \
  X(stream_create, cuStreamCreate, CUresult, (CUstream * stream, unsigned flags))                  \
  X(stream_destroy, cuStreamDestroy_v2, CUresult, (CUstream stream))                               \
  X(stream_sync, cuStreamSynchronize, CUresult, (CUstream stream))                                 \
  X(stream_query, cuStreamQuery, CUresult, (CUstream stream))                                      \
  X(stream_wait, cuStreamWaitEvent, CUresult, (CUstream stream, CUevent event, unsigned flags))    \
  X(event_create, cuEventCreate, CUresult, (CUevent * event, unsigned flags))                      \
  X(event_destroy, cuEventDestroy_v2, CUresult, (CUevent event))                                   \
  X(event_record, cuEventRecord, CUresult, (CUevent event, CUstream stream))                       \
  X(event_query, cuEventQuery, CUresult, (CUevent event))                                          \
  X(event_elapsed, cuEventElapsedTime_v2, CUresult,                                                \
    (float *milliseconds, CUevent from, CUevent to))                                               \
  X(module_load, cuModuleLoadData, CUresult, (CUmodule * module, const void *image))               \
  X(module_unload, cuModuleUnload, CUresult, (CUmodule module))                                    \
  X(module_function, cuModuleGetFunction, CUresult,                                                \
    (CUfunction * function, CUmodule module, const char *name))                                    \
  X(function_set, cuFuncSetAttribute, CUresult,                                                    \
    (CUfunction function, CUfunction_attribute attribute, int value))                              \
  X(function_get, cuFuncGetAttribute, CUresult,                                                    \
    (int *value, CUfunction_attribute attribute, CUfunction function))                             \
  X(launch, cuLaunchKernel, CUresult,                                                              \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **params,    \
     void **extra))                                                                                \
  X(launch_by, cuLaunchKernelEx, CUresult,                                                         \
    (const CUlaunchConfig *config, CUfunction function, void **params, void **extra))              \
  X(capture_begin, cuStreamBeginCapture_v2, CUresult, (CUstream stream, CUstreamCaptureMode mode)) \
  X(capture_end, cuStreamEndCapture, CUresult, (CUstream stream, CUgraph * graph))                 \
  X(graph_make, cuGraphInstantiateWithFlags, CUresult,                                             \
    (CUgraphExec * made, CUgraph graph, unsigned long long flags))                                 \
  X(graph_destroy, cuGraphDestroy, CUresult, (CUgraph graph))                                      \
  X(graph_launch, cuGraphLaunch, CUresult, (CUgraphExec made, CUstream stream))                    \
  X(graph_free, cuGraphExecDestroy, CUresult, (CUgraphExec made))

#define CUDA_PRODUCT_FUNCTIONS(X)                                                                  \
  X(version, cublasLtGetVersion, size_t, (void))                                                   \
  X(status_name, cublasLtGetStatusName, const char *, (cublasStatus_t status))                     \
  X(create, cublasLtCreate, cublasStatus_t, (cublasLtHandle_t * handle))                           \
  X(destroy, cublasLtDestroy, cublasStatus_t, (cublasLtHandle_t handle))                           \
  X(desc_create, cublasLtMatmulDescCreate, cublasStatus_t,                                         \
    (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale))              \
  X(desc_destroy, cublasLtMatmulDescDestroy, cublasStatus_t, (cublasLtMatmulDesc_t desc))          \
  X(desc_set, cublasLtMatmulDescSetAttribute, cublasStatus_t,                                      \
    (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *value,       \
     size_t bytes))                                                                                \
  X(layout_create, cublasLtMatrixLayoutCreate, cublasStatus_t,                                     \
    (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t columns,          \
     int64_t distance))                                                                            \
  X(layout_destroy, cublasLtMatrixLayoutDestroy, cublasStatus_t, (cublasLtMatrixLayout_t layout))  \
  X(layout_set, cublasLtMatrixLayoutSetAttribute, cublasStatus_t,                                  \
    (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void *value,  \
     size_t bytes))                                                                                \
  X(preference_create, cublasLtMatmulPreferenceCreate, cublasStatus_t,                             \
    (cublasLtMatmulPreference_t * preference))                                                     \
  X(preference_destroy, cublasLtMatmulPreferenceDestroy, cublasStatus_t,                           \
    (cublasLtMatmulPreference_t preference))                                                       \
  X(preference_set, cublasLtMatmulPreferenceSetAttribute, cublasStatus_t,                          \
    (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,        \
     const void *value, size_t bytes))                                                             \
  X(choose, cublasLtMatmulAlgoGetHeuristic, cublasStatus_t,                                        \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,                 \
     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,                 \
     cublasLtMatmulPreference_t preference, int most, cublasLtMatmulHeuristicResult_t choices[],   \
     int *count))                                                                                  \
  X(algo_init, cublasLtMatmulAlgoInit, cublasStatus_t,                                             \
    (cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale, cudaDataType_t a, \
     cudaDataType_t b, cudaDataType_t c, cudaDataType_t d, int id, cublasLtMatmulAlgo_t *algo))    \
  X(algo_check, cublasLtMatmulAlgoCheck, cublasStatus_t,                                           \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,                 \
     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,                 \
     const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result))                   \
  X(algo_get, cublasLtMatmulAlgoConfigGetAttribute, cublasStatus_t,                                \
    (const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t attribute,             \
     void *value, size_t bytes, size_t *written))                                                  \
  X(algo_set, cublasLtMatmulAlgoConfigSetAttribute, cublasStatus_t,                                \
    (cublasLtMatmulAlgo_t * algo, cublasLtMatmulAlgoConfigAttributes_t attribute,                  \
     const void *value, size_t bytes))                                                             \
  X(product, cublasLtMatmul, cublasStatus_t,                                                       \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,         \
     cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,              \
     const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,                    \
     cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,           \
     size_t workspace_bytes, cudaStream_t stream))

#define CUDA_MEMBER(member, symbol, result, arguments) result(*member) arguments;
typedef struct cuda_driver {
  CUDA_DRIVER_FUNCTIONS(CUDA_MEMBER)
} cuda_driver;
typedef struct cuda_products {
  CUDA_PRODUCT_FUNCTIONS(CUDA_MEMBER)
} cuda_products;

#endif /* OPIPE_BACKEND_CUDA_VENDOR_H_ */
