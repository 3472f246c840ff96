/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of row-wise operations: how the work is divided among the team. */
#include "rowgrad.h"

#include <stddef.h>

#include "table.h"

enum { SMALL_JOB = 8192, LINE = 16 };

static cpu_team *team_for(const cpu_exec *x, int64_t elements) {
  return elements < SMALL_JOB ? NULL : x->team;
}

/* A share of n that begins at a multiple of `step`. */
static cpu_range share_of(int64_t n, int64_t step, int32_t worker, int32_t workers) {
  cpu_range s;
  cpu_team_share((n + step - 1) / step, worker, workers, &s.begin, &s.end);
  s.begin *= step;
  s.end = s.end * step < n ? s.end * step : n;
  return s;
}

typedef struct norm_job {
  const cpu_kernels *kernels;
  const cpu_norm_grad_args *args;
} norm_job;

static void norm_task(void *argument, int32_t worker, int32_t workers) {
  const norm_job *j = argument;
  j->kernels->norm_grad(j->args, share_of(j->args->rows, 1, worker, workers));
}

void cpu_norm_grad(const cpu_exec *x, const cpu_norm_grad_args *args) {
  norm_job job = {x->kernels, args};
  if (args->rows > 0 && args->columns > 0)
    cpu_team_run(team_for(x, args->rows * args->columns), norm_task, &job);
}

typedef struct scale_job {
  const cpu_kernels *kernels;
  const cpu_norm_grad_scale_args *args;
} scale_job;

static void statistics_task(void *argument, int32_t worker, int32_t workers) {
  const scale_job *j = argument;
  j->kernels->norm_statistics(j->args, share_of(j->args->rows, 1, worker, workers));
}

static void scale_task(void *argument, int32_t worker, int32_t workers) {
  const scale_job *j = argument;
  const cpu_range s = share_of(j->args->columns, LINE, worker, workers);
  if (s.begin < s.end)
    j->kernels->norm_grad_scale(j->args, s);
}

void cpu_norm_grad_scale(const cpu_exec *x, const cpu_norm_grad_scale_args *args) {
  scale_job job = {x->kernels, args};
  cpu_team *team = team_for(x, args->rows * args->columns);
  if (args->rows > 0 && args->columns > 0) {
    cpu_team_run(team, statistics_task, &job);
    cpu_team_run(team, scale_task, &job);
  }
}

typedef struct softmax_job {
  const cpu_kernels *kernels;
  bool log;
  int64_t rows, columns;
  const float *dy, *y;
  float *dx;
} softmax_job;

static void softmax_task(void *argument, int32_t worker, int32_t workers) {
  const softmax_job *j = argument;
  const cpu_range s = share_of(j->rows, 1, worker, workers);
  j->kernels->softmax_grad(j->log, j->columns, j->dy, j->y, j->dx, s);
}

void cpu_softmax_grad(const cpu_exec *x, bool log, int64_t rows, int64_t columns, const float *dy,
                      const float *y, float *dx) {
  softmax_job job = {x->kernels, log, rows, columns, dy, y, dx};
  cpu_team_run(team_for(x, rows * columns), softmax_task, &job);
}

typedef struct activation_job {
  const cpu_kernels *kernels;
  cpu_activation activation;
  const float *dy, *in;
  float *dx;
  int64_t n;
} activation_job;

static void activation_task(void *argument, int32_t worker, int32_t workers) {
  const activation_job *j = argument;
  const cpu_range s = share_of(j->n, LINE, worker, workers);
  if (s.begin < s.end) {
    j->kernels->activation_grad(j->activation, j->dy + s.begin, j->in + s.begin, j->dx + s.begin,
                                s.end - s.begin);
  }
}

void cpu_activation_grad(const cpu_exec *x, cpu_activation activation, const float *dy,
                         const float *in, float *dx, int64_t n) {
  activation_job job = {x->kernels, activation, dy, in, dx, n};
  cpu_team_run(team_for(x, n), activation_task, &job);
}

typedef struct loss_job {
  const cpu_kernels *kernels;
  const cpu_loss_grad_args *args;
} loss_job;

static void loss_task(void *argument, int32_t worker, int32_t workers) {
  const loss_job *j = argument;
  j->kernels->loss_grad(j->args, share_of(j->args->rows, 1, worker, workers));
}

void cpu_loss_grad(const cpu_exec *x, const cpu_loss_grad_args *args) {
  loss_job job = {x->kernels, args};
  cpu_team_run(team_for(x, args->rows * args->columns), loss_task, &job);
}
