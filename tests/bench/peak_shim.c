/* SPDX-License-Identifier: Apache-2.0 */
/* The peak of a core, for kernels.py: fused multiply-adds on registers alone, as many at once as
 * the processor can have in flight. */
#include <immintrin.h>

#include "plugins/backend-cpu/kernels/kernels.h"

#define SHIM_EXPORT __attribute__((visibility("default")))

enum { CHAINS = 12 }; /* independent: latency of 4 or 5 on two units */

SHIM_EXPORT double shim_peak(const cpu_exec *x, int64_t steps);

typedef struct peak_job {
  cpu_isa isa;
  int64_t steps;
  float sums[CPU_TEAM_MAX_THREADS]; /* of each worker: what is added up nobody may leave out */
} peak_job;

__attribute__((target("avx512f"))) static float peak_avx512(int64_t steps) {
  const __m512 a = _mm512_set1_ps(0.999F), b = _mm512_set1_ps(0.001F);
  __m512 chains[CHAINS];
  float lanes[16];
  for (int c = 0; c < CHAINS; ++c)
    chains[c] = _mm512_set1_ps((float)c);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; ++c)
      chains[c] = _mm512_fmadd_ps(chains[c], a, b);
  }
  for (int c = 1; c < CHAINS; ++c)
    chains[0] = _mm512_add_ps(chains[0], chains[c]);
  _mm512_storeu_ps(lanes, chains[0]);
  return lanes[0];
}

__attribute__((target("avx2,fma"))) static float peak_avx2(int64_t steps) {
  const __m256 a = _mm256_set1_ps(0.999F), b = _mm256_set1_ps(0.001F);
  __m256 chains[CHAINS];
  float lanes[8];
  for (int c = 0; c < CHAINS; ++c)
    chains[c] = _mm256_set1_ps((float)c);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; ++c)
      chains[c] = _mm256_fmadd_ps(chains[c], a, b);
  }
  for (int c = 1; c < CHAINS; ++c)
    chains[0] = _mm256_add_ps(chains[0], chains[c]);
  _mm256_storeu_ps(lanes, chains[0]);
  return lanes[0];
}

static void peak_task(void *argument, int32_t worker, int32_t workers) {
  peak_job *job = argument;
  (void)workers;
  job->sums[worker] = job->isa == CPU_ISA_AVX512 ? peak_avx512(job->steps) : peak_avx2(job->steps);
}

/* Floating-point operations that every thread of the team together has made in `steps` steps; 0
 * where the kernels are the portable ones, which have no peak of their own. */
double shim_peak(const cpu_exec *x, int64_t steps) {
  peak_job job = {.isa = CPU_ISA_PORTABLE, .steps = steps};
  const double lanes[CPU_ISA_COUNT] = {[CPU_ISA_AVX2] = 8, [CPU_ISA_AVX512] = 16};
  float sum = 0;
  for (int isa = 0; isa < CPU_ISA_COUNT; ++isa)
    job.isa = x->kernels == cpu_kernels_get((cpu_isa)isa) ? (cpu_isa)isa : job.isa;
  if (job.isa != CPU_ISA_PORTABLE)
    cpu_team_run(x->team, peak_task, &job);
  for (int i = 0; i < CPU_TEAM_MAX_THREADS; ++i)
    sum += job.sums[i];
  return sum < 0 ? 0 : 2.0 * lanes[job.isa] * CHAINS * (double)steps * cpu_team_size(x->team);
}
