/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels as host functions: what g++ makes of the sources that nvcc
 * compiles for devices.
 *
 * For tests and doubles only: the plugin itself has no such rows. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_SHIM_ROWS_H_
#define OPIPE_BACKEND_CUDA_KERNELS_SHIM_ROWS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* run: executes all blocks of a launch on the caller's thread, args
 * [args_bytes] as of a launch on a device; any thread may call it, several at
 * once. `seed` orders blocks and threads: 0 as they are numbered, else at
 * random. Pointers in `args` are host addresses. A kernel that breaks the rules
 * of the device (a barrier that not all threads reach, a write beyond its
 * shared memory) is named on stderr, and the process aborts. */
typedef struct cuda_shim_row {
  const char *kernel;
  uint32_t args_bytes;
  uint32_t reserved;
  void (*run)(const void *args, const uint32_t grid[3], const uint32_t block[3],
              uint32_t shared_bytes, uint64_t seed);
} cuda_shim_row;

extern const cuda_shim_row cuda_shim_rows[]; /* [cuda_shim_n_rows], in the order of table.h */
extern const uint32_t cuda_shim_n_rows;

/* Runs, for some blocks of such a launch, the work that their threads do before they wait for the
 * launch in front: a device may do so while that one has not begun. */
void cuda_shim_begin(const cuda_shim_row *row, const void *args, const uint32_t grid[3],
                     const uint32_t block[3], uint32_t shared_bytes, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
