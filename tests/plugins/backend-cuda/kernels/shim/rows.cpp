/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of shim_rows.h: one per kernel of the table. */
#include "shim_rows.h"

#include "run.h"
#include "table.h"

#define CUDA_ROW_RUN(name, type, threads)                                                   \
  extern "C" void name(const type &a);                                                      \
  static void body_##name(const void *args) {                                               \
    name(*static_cast<const type *>(args));                                                 \
  }                                                                                         \
  static void run_##name(const void *args, const uint32_t grid[3], const uint32_t block[3], \
                         uint32_t shared_bytes, uint64_t seed) {                            \
    shim_run(#name, body_##name, args, grid, block, threads, shared_bytes, seed);           \
  }
CUDA_KERNELS(CUDA_ROW_RUN)

#define CUDA_ROW(name, type, threads) {#name, sizeof(type), 0, run_##name},
const cuda_shim_row cuda_shim_rows[] = {CUDA_KERNELS(CUDA_ROW)};
const uint32_t cuda_shim_n_rows = sizeof cuda_shim_rows / sizeof cuda_shim_rows[0];
