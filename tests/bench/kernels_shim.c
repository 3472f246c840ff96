/* SPDX-License-Identifier: Apache-2.0 */
/* The packed product behind four plain functions, as a shared library for kernels.py. */
#include <stdlib.h>
#include <sys/mman.h>

#include "plugins/backend-cpu/kernels/kernels.h"

#define SHIM_EXPORT __attribute__((visibility("default")))

SHIM_EXPORT cpu_exec *shim_open(const char *isa_name, int32_t threads);
SHIM_EXPORT const char *shim_isa(const cpu_exec *x);
SHIM_EXPORT void *shim_pack(const cpu_exec *x, const float *b, int64_t k, int64_t n);
SHIM_EXPORT void shim_matmul(const cpu_exec *x, int64_t rows, int64_t k, int64_t n, const float *a,
                             void *const *packed, int64_t copies, float *c);

/* Kernels of `isa_name` ("" for the best) with a team of `threads`, which live until the process
 * ends; NULL when there are none. */
cpu_exec *shim_open(const char *isa_name, int32_t threads) {
  cpu_isa isa = cpu_isa_detect();
  void *memory = NULL;
  cpu_exec *x = calloc(1, sizeof *x);
  cpu_team_options options = {.threads = threads, .spin_ns = CPU_TEAM_SPIN_NS};
  if (x == NULL || (isa_name[0] != '\0' && !cpu_isa_parse(isa_name, &isa)) ||
      cpu_team_bytes(threads) == 0 ||
      posix_memalign(&memory, CPU_TEAM_ALIGN_BYTES, cpu_team_bytes(threads)) != 0) {
    free(x);
    return NULL;
  }
  x->kernels = cpu_kernels_get(isa);
  if (x->kernels == NULL || cpu_team_start(memory, &options, &x->team) != 0) {
    free(memory);
    free(x);
    return NULL;
  }
  return x;
}

const char *shim_isa(const cpu_exec *x) {
  for (int isa = 0; isa < CPU_ISA_COUNT; ++isa) {
    if (x->kernels == cpu_kernels_get((cpu_isa)isa))
      return cpu_isa_name((cpu_isa)isa);
  }
  return "";
}

/* Panels of the row-major b[k, n], on huge pages as the backend's buffers, to be freed with free();
 * NULL when there is no memory. */
void *shim_pack(const cpu_exec *x, const float *b, int64_t k, int64_t n) {
  uint64_t bytes = 0;
  void *packed = NULL;
  cpu_pack_source source = {b, CPU_F32, k, n, n, 1};
  if (!cpu_pack_bytes(CPU_PACK_F32_PANEL, k, n, &bytes) ||
      posix_memalign(&packed, (size_t)1 << 21, bytes) != 0)
    return NULL;
  (void)madvise(packed, bytes >> 21 << 21, MADV_HUGEPAGE);
  cpu_pack(x, CPU_PACK_F32_PANEL, &source, packed);
  return packed;
}

/* One product with each of the packed copies, c overwritten. */
void shim_matmul(const cpu_exec *x, int64_t rows, int64_t k, int64_t n, const float *a,
                 void *const *packed, int64_t copies, float *c) {
  for (int64_t i = 0; i < copies; ++i) {
    cpu_matmul_args g = {.m = rows,
                         .a = a,
                         .a_stride = k,
                         .b = {CPU_PACK_F32_PANEL, k, n, packed[i]},
                         .c = c,
                         .c_stride = n};
    cpu_matmul(x, &g);
  }
}
