/* SPDX-License-Identifier: Apache-2.0 */
/* One launch on the caller's thread: what the rows of shim_rows.h call. */
#ifndef OPIPE_TESTS_CUDA_RUN_H_
#define OPIPE_TESTS_CUDA_RUN_H_

#include <stdint.h>

/* threads: the most that a block of this kernel may have. */
void shim_run(const char *kernel, void (*body)(const void *args), const void *args,
              const uint32_t grid[3], const uint32_t block[3], uint32_t threads,
              uint32_t shared_bytes, uint64_t seed);

#endif
