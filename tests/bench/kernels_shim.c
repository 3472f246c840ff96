/* SPDX-License-Identifier: Apache-2.0 */
/* The packed products behind plain functions, as a shared library for kernels.py and small.py. */
#include <stdlib.h>
#include <sys/mman.h>

#include "plugins/backend-cpu/kernels/kernels.h"

#define SHIM_EXPORT __attribute__((visibility("default")))

SHIM_EXPORT cpu_exec *shim_open(const char *isa_name, int32_t threads);
SHIM_EXPORT const char *shim_isa(const cpu_exec *x);
SHIM_EXPORT void *shim_pack(const cpu_exec *x, const float *b, int64_t k, int64_t n);
SHIM_EXPORT void shim_matmul(const cpu_exec *x, int64_t rows, int64_t k, int64_t n, const float *a,
                             void *const *packed, int64_t copies, float *c);
SHIM_EXPORT void *shim_codes_pack(const cpu_exec *x, const cpu_codes *form, const uint8_t *codes,
                                  const float *scales, uint64_t *out_bytes);
SHIM_EXPORT int shim_codes(const cpu_exec *x, const cpu_codes *form, const void *packed,
                           int64_t rows, const float *a, int int8, float *c);
SHIM_EXPORT uint64_t shim_read(const cpu_exec *x, const void *data, uint64_t n_bytes);

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
  cpu_pack_source source = {b, CPU_F32, k, n, n, 1, 0};
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

/* Weights as MatMulNBits has them, without zero points: codes [n, blocks, bytes], scales [n,
 * blocks]. To be freed with free(); NULL when there is no memory. */
void *shim_codes_pack(const cpu_exec *x, const cpu_codes *form, const uint8_t *codes,
                      const float *scales, uint64_t *out_bytes) {
  const int64_t blocks = (form->k + form->block - 1) / form->block;
  const cpu_codes_source source = {
      .codes = {codes, form->bits, false, CPU_F32, 1, blocks * form->block},
      .scales = {scales, 0, false, CPU_F32, 1, blocks}};
  void *packed = NULL;
  if (!cpu_codes_bytes(form, out_bytes) ||
      posix_memalign(&packed, (size_t)1 << 21, *out_bytes) != 0)
    return NULL;
  (void)madvise(packed, *out_bytes >> 21 << 21, MADV_HUGEPAGE);
  cpu_codes_pack(x, form, &source, 0, cpu_codes_panels(form), packed);
  return packed;
}

/* One product, c overwritten; -1 when there is no memory. */
int shim_codes(const cpu_exec *x, const cpu_codes *form, const void *packed, int64_t rows,
               const float *a, int int8, float *c) {
  static void *workspace; /* of the largest call so far */
  static uint64_t room;
  uint64_t bytes = 0;
  if (!cpu_codes_workspace(cpu_team_size(x->team), form, rows, int8 != 0, &bytes))
    return -1;
  if (bytes > room) {
    free(workspace);
    room = 0;
    if (posix_memalign(&workspace, CPU_ALIGN_BYTES, bytes) != 0) {
      workspace = NULL;
      return -1;
    }
    room = bytes;
  }
  cpu_codes_matmul(x, &(cpu_codes_args){.m = rows,
                                        .a = a,
                                        .a_stride = form->k,
                                        .form = form,
                                        .packed = packed,
                                        .c = c,
                                        .c_stride = form->n,
                                        .int8 = int8 != 0,
                                        .workspace = workspace});
  return 0;
}

typedef struct read_job {
  const uint64_t *data;
  uint64_t n;
  uint64_t sums[CPU_TEAM_MAX_THREADS]; /* of each worker: what is added up nobody may leave out */
} read_job;

static void read_task(void *argument, int32_t worker, int32_t workers) {
  read_job *job = argument;
  uint64_t sums[8] = {0};
  const uint64_t begin = job->n / (uint64_t)workers * (uint64_t)worker;
  const uint64_t end = begin + job->n / (uint64_t)workers;
  for (uint64_t i = begin / 8 * 8; i + 8 <= end; i += 8) {
    for (int l = 0; l < 8; ++l)
      sums[l] += job->data[i + (uint64_t)l];
  }
  job->sums[worker] = sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

/* Reads all of it once: the limit that a product of one row has. */
uint64_t shim_read(const cpu_exec *x, const void *data, uint64_t n_bytes) {
  read_job job = {data, n_bytes / sizeof(uint64_t), {0}};
  uint64_t sum = 0;
  cpu_team_run(x->team, read_task, &job);
  for (int i = 0; i < CPU_TEAM_MAX_THREADS; ++i)
    sum += job.sums[i];
  return sum;
}
