/* SPDX-License-Identifier: Apache-2.0 */
/* A driver without a GPU: libcuda.so.1 of the tests. Device memory is the host's; streams hold what
 * they were given and do it later, in an order that a seed draws from all that streams and events
 * allow, so that a missing wait or memory that is reused too early shows.
 *
 * It holds the caller to these rules, as the vendor's does or more strictly:
 *   - every call but those that ask for devices needs a current context of the calling thread
 *   - nothing works in a forked child, nor in a function that a stream was given
 *   - copies and fills lie inside live memory; memory that queued work uses is not freed
 *   - static and dynamic shared memory of a block are 48 KiB unless more was asked for the kernel;
 *     the last request counts, whoever asked
 *   - freeing memory, modules, contexts and libraries' handles waits for all work: not while some
 *     of it has come to a stop (cuda_double_hold)
 *   - a copy to or from host memory that is not pinned returns when it is done
 *   - bytes written behind an allocation are found when it is freed
 *   - a thread that captures takes no memory and waits for nothing, and a stream that is captured
 *     takes kernels, copies and fills alone; else the capture is not valid
 *   - a launch that may begin while the work in front of it on the stream ends (programmatic
 *     dependent launch) stands behind a kernel, and all its threads wait (shim.hpp); one of eight
 *     runs up to there before that kernel does
 *   - work uses memory of its stream's device, and of those that it was given access to
 *   - memory is freed when no live process has it open, and a process' own handles are not opened
 *     there; an event is not used once its process has destroyed it
 *   - after a fault (OPIPE_CUDA_DOUBLE_FAULT) every call answers it
 * Breaking a rule that the vendor leaves undefined is named on stderr and ends the process.
 *
 * Environment: OPIPE_CUDA_DOUBLE_SEED (1), _DEVICES (2), _VERSION (13000), _MEMORY (bytes of a
 * device, 1 GiB), _FAULT (the launch that faults, counted from 1), _FAULT_RESULT (700), _SLICE (the
 * device that is a MIG slice), _KERNEL_US (what a kernel takes by its stream's clock, 5), _NAME (of
 * the chips), _ALIKE (set: the name says no device's number), _CAPTURE (1; 0: nothing can be
 * captured), _PEERS (0; 1: all devices reach each other's memory, 2: so they say, and access is
 * refused), _IPC (1; 0: no device shares memory with other processes, 2: making handles is refused,
 * 3: opening them is), _CHIP (9: compute capability 9.0), _PTX (90: that of which its kernels' PTX
 * was; the chip's); CUDA_VISIBLE_DEVICES.
 */
#ifndef OPIPE_TEST_CUDA_DRIVER_H_
#define OPIPE_TEST_CUDA_DRIVER_H_

#include <stdbool.h>
#include <stdint.h>

#include "plugins/backend-cuda/vendor.h"

#define CUDA_DOUBLE_DECLARE(member, symbol, result, arguments) result symbol arguments;
CUDA_DRIVER_FUNCTIONS(CUDA_DOUBLE_DECLARE)
CUDA_PRODUCT_FUNCTIONS(CUDA_DOUBLE_DECLARE)

/* For the doubles of other libraries: fn(args) when the stream comes to it; args [n_bytes] are
 * copied, and are looked through for addresses of memory that the work uses. ns: what it takes by
 * the stream's clock, which events read. A copy or a fill takes 2 microseconds. */
CUresult cuda_double_queue(CUstream stream, void (*fn)(const void *args), const void *args,
                           size_t n_bytes, double ns);

/* For the double of NCCL. At the head of its stream fn(args) is asked, whenever somebody looks,
 * until it answers true: it does some of the work and never waits. Whoever waits for the stream
 * meanwhile sleeps between looks. */
void cuda_double_meet(CUstream stream, bool (*fn)(const void *args), const void *args,
                      size_t n_bytes);
/* Until then nothing else may be given to the stream; or no longer. [any-thread] */
void cuda_double_expect(CUstream stream, bool expects);
/* Runs one entry of a stream; false: none can go on. */
bool cuda_double_step(void);
/* Has something faulted? Nothing runs any more. [any-thread] */
bool cuda_double_has_fault(void);
/* The device of the calling thread's context; false: it has none. */
bool cuda_double_finds_device(int *out_device);
/* Is all of it live memory of a device, or pinned? */
bool cuda_double_is_there(uintptr_t first, size_t n_bytes);

/* A call of a library's: counted where the process is a forked child. */
void cuda_double_note_call(void);
/* Where the vendor's libraries wait for all work of a device, which never ends where some has come
 * to a stop. */
void cuda_double_wait_for_all(const char *who);

/* Numbers for tests. */
typedef struct cuda_double_facts {
  uint64_t live_bytes, live_blocks; /* device memory */
  uint64_t live_pinned;             /* blocks, registered ones among them */
  uint64_t waits;                   /* calls that block the host until work is done */
  uint64_t pageable; /* writes and reads of memory that is not pinned: each waits so, too */
  uint64_t writes, reads, copies; /* to the device, from it, on it: calls so far */
  uint64_t peer_copies;           /* between two devices */
  uint64_t exported, opened;      /* memory for other processes, of other processes: now */
  uint64_t events_opened;         /* events of other processes: now */
  uint64_t launches, queued;      /* kernels so far; entries that wait */
  uint64_t behind; /* kernels that may begin while what is in front ends: given or captured */
  uint64_t begun;  /* of those, that did */
  uint64_t graph_launches, live_graphs;
  uint64_t contexts; /* on the calling thread's stack */
  uint64_t retained; /* primary contexts */
  uint64_t forked;   /* calls in a forked child */
} cuda_double_facts;
void cuda_double_look(cuda_double_facts *out);
/* Work of the stream comes to a stop, as behind a peer that is gone, or goes on. */
void cuda_double_hold(CUstream stream, bool hold);
/* The device of a context; -1: none. */
int cuda_double_context_device(CUcontext context);
/* A context of the host's own on top of the calling thread's stack; popped by NULL. */
CUcontext cuda_double_current(void);
/* A library's handle of n_bytes, zeroed; NULL without a context. The newest are remembered: a real
 * library keeps those that a lost context leaves behind, so that nobody counts them as leaks. */
void *cuda_double_handle(size_t n_bytes);

#endif /* OPIPE_TEST_CUDA_DRIVER_H_ */
