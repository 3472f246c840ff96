/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL without a GPU: libnccl.so.2 of the tests, on the driver's double
 * (tests/plugins/backend-cuda/doubles). Real processes meet in shared memory.
 *
 * It holds its callers to these rules, as the vendor's does or more strictly:
 *   - nothing is buffered: a send ends when its receive has taken everything, a collective when all
 *     members have come; operations of one direction to one peer run in the order of the calls
 *   - a communicator is of the current device of the thread that opens it; two ranks on one device
 *     of one host (NCCL_HOSTID, else this machine) are refused as duplicates
 *   - a communicator that does not block answers ncclInProgress and launches later: until
 *     ncclCommGetAsyncError says ncclSuccess nothing else is given to it or to its stream
 *   - a device runs one launch at a time; of several that could start, one is drawn, unless
 *     NCCL_LAUNCH_ORDER_IMPLICIT=1: then they start in the order of the host's calls
 *   - operations of a group on one communicator are on one stream; its collectives run first, in
 *     order, then all its messages at once
 *   - connections are made at first use, when both hosts have come to it
 *   - nobody notices that a peer is gone, unless OPIPE_NCCL_DOUBLE_REMOTE=1
 * Sums begin with another member than the first, and half types are rounded at every addition.
 * Ranks that wait for each other, ends that differ in count or type, a group of more than 256
 * messages, and whatever else the vendor leaves undefined, is named on stderr and ends the process.
 *
 * Environment: OPIPE_NCCL_DOUBLE_SEED (1), _VERSION (22809), _DELAY_US (200: most that a start
 * waits), _PATIENCE_MS (30000: an operation that stands still for longer ends the process),
 * _ABORT_MS (0: what ncclCommAbort takes before it ends anything), _REMOTE, _LATE ("die":
 * connections or communicators made after the first launch that needed no connection), _REPORT (a
 * file: a line of JSON when a process has closed its last communicator),
 * _FAULT ("silent", "die", "stop" or "error", then "@" and "init", "finalize", "destroy", "abort",
 * the number of a launch, from 1, or "sum:" and the number of a launch of collectives).
 */
#ifndef OPIPE_TEST_NCCL_API_H_
#define OPIPE_TEST_NCCL_API_H_

#include <stddef.h>
#include <stdint.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId {
  char internal[128];
} ncclUniqueId;
/* The members that this double reads, as NCCL 2.14 and later have them. */
typedef struct nccl_double_config {
  size_t size;
  unsigned magic, version;
  int blocking, cluster, fewest_blocks, most_blocks;
} nccl_double_config;
struct CUstream_st;

enum {
  NCCL_DOUBLE_SUCCESS = 0,
  NCCL_DOUBLE_CUDA_ERROR = 1,
  NCCL_DOUBLE_SYSTEM_ERROR = 2,
  NCCL_DOUBLE_INTERNAL_ERROR = 3,
  NCCL_DOUBLE_INVALID_ARGUMENT = 4,
  NCCL_DOUBLE_INVALID_USAGE = 5,
  NCCL_DOUBLE_REMOTE_ERROR = 6,
  NCCL_DOUBLE_IN_PROGRESS = 7
};
enum { /* types of values */
       NCCL_DOUBLE_INT8 = 0,
       NCCL_DOUBLE_UINT8 = 1,
       NCCL_DOUBLE_INT32 = 2,
       NCCL_DOUBLE_UINT32 = 3,
       NCCL_DOUBLE_INT64 = 4,
       NCCL_DOUBLE_UINT64 = 5,
       NCCL_DOUBLE_FLOAT16 = 6,
       NCCL_DOUBLE_FLOAT32 = 7,
       NCCL_DOUBLE_FLOAT64 = 8,
       NCCL_DOUBLE_BFLOAT16 = 9,
       NCCL_DOUBLE_TYPES = 10
};
enum { NCCL_DOUBLE_SUM = 0, NCCL_DOUBLE_PROD = 1, NCCL_DOUBLE_MAX = 2, NCCL_DOUBLE_MIN = 3 };
enum { NCCL_DOUBLE_MAGIC = (int)0xcafebeef, NCCL_DOUBLE_NO_COLOR = -1, NCCL_DOUBLE_MOST = 256 };

/* row(member of a table, symbol, result, arguments) */
#define NCCL_DOUBLE_FUNCTIONS(row)                                                                 \
  row(get_version, ncclGetVersion, int, (int *version)) row(                                       \
      get_id, ncclGetUniqueId, int,                                                                \
      (ncclUniqueId * id)) row(init, ncclCommInitRankConfig, int,                                  \
                               (ncclComm_t * comm, int n_ranks, ncclUniqueId id, int rank,         \
                                nccl_double_config *config))                                       \
      row(split, ncclCommSplit, int,                                                               \
          (ncclComm_t comm, int colour, int key, ncclComm_t *made, nccl_double_config *config))    \
          row(count, ncclCommCount, int, (ncclComm_t comm, int *count)) row(                       \
              rank, ncclCommUserRank, int,                                                         \
              (ncclComm_t comm, int *rank)) row(device, ncclCommCuDevice, int,                     \
                                                (ncclComm_t comm, int *device))                    \
              row(get_error, ncclCommGetAsyncError, int, (ncclComm_t comm, int *error)) row(       \
                  finalize, ncclCommFinalize, int,                                                 \
                  (ncclComm_t comm)) row(destroy, ncclCommDestroy, int, (ncclComm_t comm))         \
                  row(abort, ncclCommAbort, int, (ncclComm_t comm)) row(                           \
                      group_start, ncclGroupStart, int,                                            \
                      (void)) row(group_end, ncclGroupEnd, int, (void))                            \
                      row(send, ncclSend, int,                                                     \
                          (const void *from, size_t count, int type, int peer, ncclComm_t comm,    \
                           struct CUstream_st *stream))                                            \
                          row(recv, ncclRecv, int,                                                 \
                              (void *to, size_t count, int type, int peer, ncclComm_t comm,        \
                               struct CUstream_st *stream))                                        \
                              row(all_reduce, ncclAllReduce, int,                                  \
                                  (const void *from, void *to, size_t count, int type, int op,     \
                                   ncclComm_t comm, struct CUstream_st *stream))                   \
                                  row(reduce_scatter, ncclReduceScatter, int,                      \
                                      (const void *from, void *to, size_t count, int type, int op, \
                                       ncclComm_t comm, struct CUstream_st *stream))               \
                                      row(all_gather, ncclAllGather, int,                          \
                                          (const void *from, void *to, size_t count, int type,     \
                                           ncclComm_t comm, struct CUstream_st *stream))           \
                                          row(broadcast, ncclBroadcast, int,                       \
                                              (const void *from, void *to, size_t count, int type, \
                                               int root, ncclComm_t comm,                          \
                                               struct CUstream_st *stream))                        \
                                              row(reduce, ncclReduce, int,                         \
                                                  (const void *from, void *to, size_t count,       \
                                                   int type, int op, int root, ncclComm_t comm,    \
                                                   struct CUstream_st *stream))                    \
                                                  row(enroll, ncclCommRegister, int,               \
                                                      (ncclComm_t comm, void *buffer, size_t size, \
                                                       void **handle))                             \
                                                      row(unenroll, ncclCommDeregister, int,       \
                                                          (ncclComm_t comm, void *handle))         \
                                                          row(error_string, ncclGetErrorString,    \
                                                              const char *, (int result))          \
                                                              row(last_error, ncclGetLastError,    \
                                                                  const char *, (ncclComm_t comm))

#define NCCL_DOUBLE_DECLARE(member, symbol, result, arguments) result symbol arguments;
NCCL_DOUBLE_FUNCTIONS(NCCL_DOUBLE_DECLARE)

#endif /* OPIPE_TEST_NCCL_API_H_ */
