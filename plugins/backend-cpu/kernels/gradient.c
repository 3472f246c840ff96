/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the packed product: sizes, and how the work is divided among the team: dX by panels
 * of its columns or by rows, dW by panels, after the team has transposed a block of X together. */
#include <stddef.h>

#include "matmul.h"
#include "table.h"

static int64_t panels_of(int64_t n) {
  return (n + CPU_PANEL - 1) / CPU_PANEL;
}

bool cpu_matmul_dx_workspace(int32_t threads, uint64_t *out_bytes) {
  if (threads < 1)
    return false;
  *out_bytes = (uint64_t)threads * CPU_DX_DEPTH * CPU_PANEL * sizeof(float);
  return true;
}

typedef struct dx_job {
  const cpu_kernels *kernels;
  cpu_product product;
  const cpu_dots *dots;
  const uint16_t *dy_half;
  int64_t m;
  float *workspace;
} dx_job;

static void dx_task(void *argument, int32_t worker, int32_t workers) {
  const dx_job *j = argument;
  cpu_range panels = {0, panels_of(j->product.n)};
  cpu_range rows = {0, j->m};
  if (panels.end >= workers)
    cpu_team_share(panels.end, worker, workers, &panels.begin, &panels.end);
  else
    cpu_team_share(j->m, worker, workers, &rows.begin, &rows.end);
  if (rows.begin < rows.end && panels.begin < panels.end) {
    float *buffer = j->workspace + (int64_t)worker * CPU_DX_DEPTH * CPU_PANEL;
    const cpu_half_product half = {
        .product = j->product, .a = j->dy_half, .panels = j->product.panels, .dtype = CPU_F32};
    if (j->dots != NULL)
      j->dots->product_dx(&half, panels, rows, buffer);
    else
      j->kernels->product_dx(&j->product, panels, rows, buffer);
  }
}

void cpu_matmul_dx(const cpu_exec *x, const cpu_matmul_dx_args *args) {
  dx_job job = {.kernels = x->kernels,
                .product = {.n = args->w.k,
                            .k = args->w.n,
                            .a = args->dy,
                            .a_stride = args->dy_stride,
                            .panels = args->w.data,
                            .c = args->dx,
                            .c_stride = args->dx_stride,
                            .epilogue = args->epilogue},
                .dots = args->dots,
                .dy_half = args->dy_half,
                .m = args->m,
                .workspace = args->workspace};
  if (args->m > 0 && args->w.k > 0)
    cpu_team_run(x->team, dx_task, &job);
}

bool cpu_matmul_dw_workspace(int32_t threads, int64_t k, uint64_t *out_bytes) {
  const int64_t depth = k < CPU_DW_DEPTH ? k : CPU_DW_DEPTH;
  uint64_t rows = 0; /* of CPU_DW_ROWS floats: X^T, and a panel of dY a thread */
  return threads > 0 && k >= 0 &&
         !__builtin_add_overflow((uint64_t)depth, (uint64_t)threads * CPU_PANEL, &rows) &&
         !__builtin_mul_overflow(rows, CPU_DW_ROWS * sizeof(float), out_bytes);
}

typedef struct dw_job {
  const cpu_kernels *kernels;
  const cpu_matmul_dw_args *args;
  cpu_range sample, depth;
} dw_job;

static void dw_turn_task(void *argument, int32_t worker, int32_t workers) {
  const dw_job *j = argument;
  const cpu_matmul_dw_args *g = j->args;
  cpu_range columns;
  cpu_team_share(j->depth.end - j->depth.begin, worker, workers, &columns.begin, &columns.end);
  if (g->dots != NULL) {
    g->dots->turn(g->x_half + j->sample.begin * g->x_stride + j->depth.begin + columns.begin,
                  g->x_stride, j->sample.end - j->sample.begin, columns.end - columns.begin,
                  (uint16_t *)g->workspace + columns.begin * CPU_DW_ROWS);
    return;
  }
  j->kernels->transpose(g->x + j->sample.begin * g->x_stride + j->depth.begin + columns.begin,
                        g->x_stride, j->sample.end - j->sample.begin, columns.end - columns.begin,
                        (float *)g->workspace + columns.begin * CPU_DW_ROWS, CPU_DW_ROWS);
}

/* Panels are shared out; rows of them where the panels do not come out even. */
static void dw_task(void *argument, int32_t worker, int32_t workers) {
  const dw_job *j = argument;
  const cpu_matmul_dw_args *g = j->args;
  const int64_t height = j->depth.end - j->depth.begin;
  const int64_t held = height < CPU_DW_DEPTH ? height : CPU_DW_DEPTH;
  const float *turned = g->workspace;
  float *buffer = (float *)g->workspace + (held + (int64_t)worker * CPU_PANEL) * CPU_DW_ROWS;
  cpu_range panels = {0, panels_of(g->n)};
  cpu_range rows = {0, height};
  if (panels.end % workers == 0 || panels.end >= 8 * workers)
    cpu_team_share(panels.end, worker, workers, &panels.begin, &panels.end);
  else
    cpu_team_share(height, worker, workers, &rows.begin, &rows.end);
  if (rows.begin < rows.end && panels.begin < panels.end) {
    const cpu_range depth = {j->depth.begin + rows.begin, j->depth.begin + rows.end};
    if (g->dots != NULL) {
      g->dots->product_dw(g, (const uint16_t *)g->workspace + rows.begin * CPU_DW_ROWS, j->sample,
                          depth, panels, buffer);
      return;
    }
    j->kernels->product_dw(g, turned + rows.begin * CPU_DW_ROWS, CPU_DW_ROWS, j->sample, depth,
                           panels, buffer);
  }
}

void cpu_matmul_dw(const cpu_exec *x, const cpu_matmul_dw_args *args) {
  dw_job job = {.kernels = x->kernels, .args = args};
  for (int64_t k = 0; k < args->k && args->n > 0; k += CPU_DW_DEPTH) {
    job.depth = (cpu_range){k, args->k - k < CPU_DW_DEPTH ? args->k : k + CPU_DW_DEPTH};
    for (int64_t i = 0; i < args->m; i += CPU_DW_ROWS) {
      job.sample = (cpu_range){i, args->m - i < CPU_DW_ROWS ? args->m : i + CPU_DW_ROWS};
      cpu_team_run(x->team, dw_turn_task, &job);
      cpu_team_run(x->team, dw_task, &job);
    }
  }
}

typedef struct sum_job {
  const cpu_kernels *kernels;
  const float *in;
  int64_t in_row, rows, columns;
  float *out;
} sum_job;

static void sum_task(void *argument, int32_t worker, int32_t workers) {
  const sum_job *j = argument;
  cpu_range blocks; /* of 16 columns */
  cpu_team_share((j->columns + 15) / 16, worker, workers, &blocks.begin, &blocks.end);
  const int64_t begin = blocks.begin * 16;
  const int64_t end = blocks.end * 16 < j->columns ? blocks.end * 16 : j->columns;
  if (begin < end)
    j->kernels->sum_columns(j->in + begin, j->in_row, j->rows, end - begin, j->out + begin);
}

void cpu_sum_columns(const cpu_exec *x, const float *in, int64_t in_row, int64_t rows,
                     int64_t columns, float *out) {
  sum_job job = {x->kernels, in, in_row, rows, columns, out};
  cpu_team_run(x->team, sum_task, &job);
}
