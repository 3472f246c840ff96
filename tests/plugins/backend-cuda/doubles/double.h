/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the driver's double. */
#ifndef OPIPE_TEST_CUDA_DOUBLE_H_
#define OPIPE_TEST_CUDA_DOUBLE_H_

#include <pthread.h>
#include <stdbool.h>

#include "driver.h"
#include "plugins/backend-cuda/kernels/shim_rows.h"

/* A kernel. */
struct CUfunc_st {
  const cuda_shim_row *row;
  uint32_t most_dynamic; /* bytes; 0: none was asked for, 48 KiB with what it has of its own */
};

/* Shared memory of a block. STATIC: every kernel is taken to have what the largest of those has
 * that have dynamic memory too. */
enum {
  CUDA_DOUBLE_SHARED = 48 * 1024,
  CUDA_DOUBLE_SHARED_OPTIN = 227 * 1024,
  CUDA_DOUBLE_SHARED_STATIC = 384
};

extern pthread_mutex_t cuda_double_lock; /* guards all of it, work that is done included */
extern CUresult cuda_double_fault;       /* CUDA_OK, or what every call answers from now on */

/* The calling thread is within a function that a stream was given: it may call nothing here. */
extern _Thread_local bool cuda_double_in_host_function;
/* The calling thread captures a graph: it may take no memory and wait for nothing. */
extern _Thread_local bool cuda_double_captures;

uint64_t cuda_double_option(const char *name, uint64_t fallback);
int cuda_double_chip(void); /* its compute capability, the major number */
int cuda_double_ptx(void);  /* of the PTX that its kernels are of, times 10 */
void cuda_double_die(const char *what);
CUresult cuda_double_enter(void);
/* The same for calls that a thread may not make while it captures. */
CUresult cuda_double_enter_apart(void);
/* The following under the lock. Is all of it live device memory? */
bool cuda_double_is_device(uintptr_t first, size_t n_bytes);
/* Is all of it pinned host memory? */
bool cuda_double_is_pinned(uintptr_t first, size_t n_bytes);
/* Does queued work use any of it? */
bool cuda_double_uses(uintptr_t first, size_t n_bytes);
/* Bytes of dynamic shared memory that a launch may have. */
uint32_t cuda_double_most_dynamic(CUfunction function);
/* Is there work that has come to a stop? */
bool cuda_double_is_stopped(void);
void cuda_double_count(cuda_double_facts *io_facts);

#endif
