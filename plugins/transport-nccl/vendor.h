/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of NCCL and of NVIDIA's driver that this transport calls, declared by us: it builds
 * without any header of theirs. A test compares every declaration with the vendor's where those
 * headers are (OPIPE_NCCL_VENDOR_HEADERS: their types instead of ours).
 *
 *   nccl_calls    libnccl.so.2
 *   nccl_driver   libcuda.so.1
 *
 * Names in the lists are those of the libraries' symbols. Numbers are the vendor's, under our
 * names. Source: nccl.h of 2.28.9 and 2.30.7, cuda.h of 13.0.
 */
#ifndef OPIPE_TRANSPORT_NCCL_VENDOR_H_
#define OPIPE_TRANSPORT_NCCL_VENDOR_H_

#include <stddef.h>
#include <stdint.h>

#ifndef OPIPE_NCCL_VENDOR_HEADERS
typedef int ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct ncclUniqueId {
  char internal[128];
} ncclUniqueId;
/* The fields that 2.26 has; later versions know from `size` which are there. */
typedef struct ncclConfig_t {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char *netName;
  int splitShare;
  int trafficClass;
} ncclConfig_t;

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUuuid_st {
  char bytes[16];
} CUuuid;
#endif

enum {
  NCCL_CONFIG_BYTES = 48, /* up to and with trafficClass */
  NCCL_CONFIG_VERSION = 22600,
  NCCL_UNSET = INT32_MIN
};
#define NCCL_CONFIG_MAGIC 0xcafebeefu

enum { NCCL_FINE = 0, NCCL_INVALID_USAGE = 5, NCCL_REMOTE = 6, NCCL_IN_PROGRESS = 7 };
enum {
  NCCL_BYTES = 1, /* ncclUint8 */
  NCCL_FLOAT16 = 6,
  NCCL_FLOAT32 = 7,
  NCCL_FLOAT64 = 8,
  NCCL_BFLOAT16 = 9
};
enum { NCCL_ADD = 0 };
enum { NCCL_CUDA_FINE = 0 };

/* ---- functions: X(member, symbol, result, arguments); first the one that tells the version ----
 */

#define NCCL_FUNCTIONS(X)                                                                        \
  X(version, ncclGetVersion, ncclResult_t, (int *version))                                       \
  X(text, ncclGetErrorString, const char *, (ncclResult_t result))                               \
  X(last_error, ncclGetLastError, const char *, (ncclComm_t comm))                               \
  X(unique_id, ncclGetUniqueId, ncclResult_t, (ncclUniqueId * id))                               \
  X(init, ncclCommInitRankConfig, ncclResult_t,                                                  \
    (ncclComm_t * comm, int n_ranks, ncclUniqueId id, int rank, ncclConfig_t *config))           \
  X(async_error, ncclCommGetAsyncError, ncclResult_t, (ncclComm_t comm, ncclResult_t * error))   \
  X(finalize, ncclCommFinalize, ncclResult_t, (ncclComm_t comm))                                 \
  X(destroy, ncclCommDestroy, ncclResult_t, (ncclComm_t comm))                                   \
  X(abort, ncclCommAbort, ncclResult_t, (ncclComm_t comm))                                       \
  X(group_start, ncclGroupStart, ncclResult_t, (void))                                           \
  X(group_end, ncclGroupEnd, ncclResult_t, (void))                                               \
  X(send, ncclSend, ncclResult_t,                                                                \
    (const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,                 \
     cudaStream_t stream))                                                                       \
  X(recv, ncclRecv, ncclResult_t,                                                                \
    (void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))   \
  X(all_reduce, ncclAllReduce, ncclResult_t,                                                     \
    (const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, \
     cudaStream_t stream))                                                                       \
  X(reduce, ncclReduce, ncclResult_t,                                                            \
    (const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, int root,        \
     ncclComm_t comm, cudaStream_t stream))                                                      \
  X(broadcast, ncclBroadcast, ncclResult_t,                                                      \
    (const void *from, void *to, size_t n, ncclDataType_t type, int root, ncclComm_t comm,       \
     cudaStream_t stream))                                                                       \
  X(reduce_scatter, ncclReduceScatter, ncclResult_t,                                             \
    (const void *from, void *to, size_t n_each, ncclDataType_t type, ncclRedOp_t op,             \
     ncclComm_t comm, cudaStream_t stream))                                                      \
  X(all_gather, ncclAllGather, ncclResult_t,                                                     \
    (const void *from, void *to, size_t n_each, ncclDataType_t type, ncclComm_t comm,            \
     cudaStream_t stream))

#define NCCL_DRIVER_FUNCTIONS(X)                                                                \
  X(init, cuInit, CUresult, (unsigned flags))                                                   \
  X(device_get, cuDeviceGet, CUresult, (CUdevice * device, int ordinal))                        \
  X(device_uuid, cuDeviceGetUuid_v2, CUresult, (CUuuid * uuid, CUdevice device))                \
  X(context_retain, cuDevicePrimaryCtxRetain, CUresult, (CUcontext * context, CUdevice device)) \
  X(context_release, cuDevicePrimaryCtxRelease_v2, CUresult, (CUdevice device))                 \
  X(context_push, cuCtxPushCurrent_v2, CUresult, (CUcontext context))                           \
  X(context_pop, cuCtxPopCurrent_v2, CUresult, (CUcontext * context))                           \
  X(memory_alloc, cuMemAlloc_v2, CUresult, (CUdeviceptr * address, size_t n_bytes))             \
  X(memory_free, cuMemFree_v2, CUresult, (CUdeviceptr address))

#define NCCL_MEMBER(member, symbol, result, arguments) result(*member) arguments;
typedef struct nccl_calls {
  NCCL_FUNCTIONS(NCCL_MEMBER)
} nccl_calls;
typedef struct nccl_driver {
  NCCL_DRIVER_FUNCTIONS(NCCL_MEMBER)
} nccl_driver;

#endif /* OPIPE_TRANSPORT_NCCL_VENDOR_H_ */
