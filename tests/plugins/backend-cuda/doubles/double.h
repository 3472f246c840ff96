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

enum { CUDA_DOUBLE_DEVICES = 16 /* at most */ };

/* Shared memory of a block. STATIC: every kernel is taken to have what the largest of those has
 * that have dynamic memory too. */
enum {
  CUDA_DOUBLE_SHARED = 48 * 1024,
  CUDA_DOUBLE_SHARED_OPTIN = 227 * 1024,
  CUDA_DOUBLE_SHARED_STATIC = 384
};

/* Memory of a device, pinned memory of the host, or memory of another process that was opened. */
typedef struct cuda_double_block {
  struct cuda_double_block *next;
  unsigned char *base; /* whole pages: its own, with the zones */
  size_t base_bytes;
  uintptr_t first;
  size_t n_bytes;
  bool pinned, opened;
  int device;                    /* a context's, by number */
  int fd;                        /* exported, opened: what it lies in; -1 */
  uint32_t opens;                /* opened: how often */
  struct cuda_double_told *told; /* exported, opened: the page that both processes see */
} cuda_double_block;

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
/* The device whose memory it is; -1: it is none, or of several blocks. */
int cuda_double_device_of(uintptr_t first, size_t n_bytes);
/* Does work of a device's streams get at memory of another? */
bool cuda_double_has_peer(int device, int other);
/* The device of the current context. */
int cuda_double_device(void);
cuda_double_block *cuda_double_find(uintptr_t first, size_t n_bytes);
cuda_double_block *cuda_double_first(void);
/* A device's place on the machine, whatever CUDA_VISIBLE_DEVICES says. */
int cuda_double_place(int device);
void cuda_double_add(cuda_double_block *block);
/* Takes it out of the list, and frees what stands for it. */
void cuda_double_remove(cuda_double_block *block);
/* The block is about to be freed: nobody has it open, and nobody will. */
void cuda_double_end_export(cuda_double_block *block);

/* State of an event; if it is for other processes, in memory that they see. */
typedef struct cuda_double_state {
  uint64_t n_recorded, n_done;
  double ns; /* of the stream's clock when it was recorded last */
} cuda_double_state;
struct cuda_double_told;
/* A state that other processes can open by the handle; NULL: the driver refuses. */
cuda_double_state *cuda_double_state_share(int *out_fd, struct cuda_double_told **out_told);
void cuda_double_state_end(int fd, struct cuda_double_told *told, bool opened);
CUresult cuda_double_state_handle(int fd, const struct cuda_double_told *told, void *out_handle);
CUresult cuda_double_state_open(const void *handle, cuda_double_state **out_state,
                                struct cuda_double_told **out_told);
/* Ends the process if its owner has destroyed it. */
void cuda_double_state_check(const struct cuda_double_told *told);
/* Is all of it pinned host memory? */
bool cuda_double_is_pinned(uintptr_t first, size_t n_bytes);
/* Does queued work use any of it? */
bool cuda_double_uses(uintptr_t first, size_t n_bytes);
/* Bytes of dynamic shared memory that a launch may have. */
uint32_t cuda_double_most_dynamic(CUfunction function);
/* Is there work that has come to a stop? */
bool cuda_double_is_stopped(void);
void cuda_double_count(cuda_double_facts *io_facts);
void cuda_double_count_shared(cuda_double_facts *io_facts); /* peers.c */

#endif
