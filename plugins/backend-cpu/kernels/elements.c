/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise work on long arrays: shares of whole cache lines for every thread. */
#include "elements.h"

#include <stddef.h>

#include "table.h"

enum { SMALL_JOB = 8192, LINE = 16, SQUARE_BLOCKS = 256 };

static cpu_team *team_for(const cpu_exec *x, int64_t n) {
  return n < SMALL_JOB ? NULL : x->team;
}

static cpu_range share_of(int64_t n, int32_t worker, int32_t workers) {
  cpu_range s;
  cpu_team_share((n + LINE - 1) / LINE, worker, workers, &s.begin, &s.end);
  s.begin *= LINE;
  s.end = s.end * LINE < n ? s.end * LINE : n;
  return s;
}

typedef struct add_job {
  const cpu_kernels *kernels;
  const float *from;
  float *to;
  int64_t n;
} add_job;

static void add_task(void *argument, int32_t worker, int32_t workers) {
  const add_job *j = argument;
  const cpu_range s = share_of(j->n, worker, workers);
  if (s.begin < s.end)
    j->kernels->add(j->from + s.begin, j->to + s.begin, s.end - s.begin);
}

void cpu_add_f32(const cpu_exec *x, const float *from, float *to, int64_t n) {
  add_job job = {x->kernels, from, to, n};
  cpu_team_run(team_for(x, n), add_task, &job);
}

typedef struct square_job {
  const cpu_kernels *kernels;
  const float *in;
  int64_t n, block;
  double sum[SQUARE_BLOCKS];
} square_job;

static void square_task(void *argument, int32_t worker, int32_t workers) {
  square_job *j = argument;
  cpu_range s;
  cpu_team_share(SQUARE_BLOCKS, worker, workers, &s.begin, &s.end);
  for (int64_t b = s.begin; b < s.end; ++b) {
    const int64_t first = b * j->block;
    const int64_t left = j->n - first;
    j->sum[b] =
        left <= 0 ? 0 : j->kernels->sum_squares(j->in + first, left < j->block ? left : j->block);
  }
}

double cpu_sum_squares_f32(const cpu_exec *x, const float *in, int64_t n) {
  square_job job = {.kernels = x->kernels, .in = in, .n = n};
  double sum = 0;
  job.block = (n / SQUARE_BLOCKS + LINE) / LINE * LINE;
  cpu_team_run(team_for(x, n), square_task, &job);
  for (int64_t b = 0; b < SQUARE_BLOCKS; ++b)
    sum += job.sum[b];
  return sum;
}

typedef struct update_job {
  const cpu_kernels *kernels;
  const cpu_update_args *args;
} update_job;

static void update_task(void *argument, int32_t worker, int32_t workers) {
  const update_job *j = argument;
  const cpu_range s = share_of(j->args->n, worker, workers);
  if (s.begin < s.end)
    j->kernels->update(j->args, s);
}

void cpu_update_f32(const cpu_exec *x, const cpu_update_args *args) {
  update_job job = {x->kernels, args};
  cpu_team_run(team_for(x, args->n), update_task, &job);
}
