/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers to integers of 8 bits: shares of whole vectors for every thread. */
#include "quantize.h"

#include "table.h"

enum { SMALL_JOB = 8192, LANES = 16, RANGE_BLOCKS = 64 };

static cpu_team *team_for(const cpu_exec *x, int64_t n) {
  return n < SMALL_JOB ? NULL : x->team;
}

typedef struct quantize_job {
  const cpu_kernels *kernels;
  const cpu_quantize_args *args;
} quantize_job;

static void quantize_task(void *argument, int32_t worker, int32_t workers) {
  const quantize_job *j = argument;
  const int64_t n = j->args->n;
  cpu_range s;
  cpu_team_share((n + LANES - 1) / LANES, worker, workers, &s.begin, &s.end);
  s.begin *= LANES;
  s.end = s.end * LANES < n ? s.end * LANES : n;
  if (s.begin < s.end)
    j->kernels->quantize(j->args, s);
}

void cpu_quantize(const cpu_exec *x, const cpu_quantize_args *args) {
  quantize_job job = {x->kernels, args};
  cpu_team_run(team_for(x, args->n), quantize_task, &job);
}

typedef struct dequantize_job {
  const cpu_kernels *kernels;
  const cpu_dequantize_args *args;
} dequantize_job;

static void dequantize_task(void *argument, int32_t worker, int32_t workers) {
  const dequantize_job *j = argument;
  cpu_range s;
  cpu_team_share(j->args->n, worker, workers, &s.begin, &s.end);
  if (s.begin < s.end)
    j->kernels->dequantize(j->args, s);
}

void cpu_dequantize(const cpu_exec *x, const cpu_dequantize_args *args) {
  dequantize_job job = {x->kernels, args};
  cpu_team_run(team_for(x, args->n), dequantize_task, &job);
}

typedef struct range_job {
  const cpu_kernels *kernels;
  const float *in;
  int64_t n, block;
  float of[RANGE_BLOCKS][2];
} range_job;

static void range_task(void *argument, int32_t worker, int32_t workers) {
  range_job *j = argument;
  cpu_range s;
  cpu_team_share(RANGE_BLOCKS, worker, workers, &s.begin, &s.end);
  for (int64_t b = s.begin; b < s.end; ++b) {
    const int64_t first = b * j->block, left = j->n - first;
    j->of[b][0] = j->of[b][1] = 0;
    if (left > 0)
      j->kernels->range(j->in + first, left < j->block ? left : j->block, j->of[b]);
  }
}

void cpu_range_f32(const cpu_exec *x, const float *in, int64_t n, float *out_least,
                   float *out_greatest) {
  range_job job = {.kernels = x->kernels, .in = in, .n = n};
  job.block = (n / RANGE_BLOCKS + LANES) / LANES * LANES;
  cpu_team_run(team_for(x, n), range_task, &job);
  *out_least = *out_greatest = 0;
  for (int64_t b = 0; b < RANGE_BLOCKS; ++b) {
    *out_least = job.of[b][0] < *out_least ? job.of[b][0] : *out_least;
    *out_greatest = job.of[b][1] > *out_greatest ? job.of[b][1] : *out_greatest;
  }
}
