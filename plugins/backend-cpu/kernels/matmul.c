/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: sizes, and how the work is divided among the team. Shares are panels of B where
 * there are enough of them, else rows of A: whichever makes the largest share smaller. No share
 * reads what another writes, so there is no barrier inside. */
#include "matmul.h"

#include <stddef.h>

#include "table.h"

static uint64_t element_bytes(cpu_pack_format format) {
  return format == CPU_PACK_F32_PANEL ? sizeof(float) : sizeof(uint16_t);
}

static cpu_dtype type_of(cpu_pack_format format) {
  return format == CPU_PACK_F32_PANEL ? CPU_F32 : format == CPU_PACK_F16_PANEL ? CPU_F16 : CPU_BF16;
}

bool cpu_pack_bytes(cpu_pack_format format, int64_t k, int64_t n, uint64_t *out_bytes) {
  if (format < CPU_PACK_F32_PANEL || format > CPU_PACK_BF16_PANEL || k < 0 || n < 0)
    return false;
  uint64_t panels = ((uint64_t)n + CPU_PANEL - 1) / CPU_PANEL;
  uint64_t panel_bytes = 0;
  return !__builtin_mul_overflow((uint64_t)k, CPU_PANEL * element_bytes(format), &panel_bytes) &&
         !__builtin_mul_overflow(panel_bytes, panels, out_bytes);
}

typedef struct pack_job {
  const cpu_kernels *kernels;
  const cpu_pack_source *source;
  char *packed;
  cpu_pack_format format;
} pack_job;

static void pack_task(void *argument, int32_t worker, int32_t workers) {
  const pack_job *job = argument;
  const cpu_pack_source *s = job->source;
  const int64_t panels = (s->n + CPU_PANEL - 1) / CPU_PANEL;
  const int64_t depth = s->depth != 0 ? s->depth : s->k;
  const int64_t stride = CPU_PANEL * depth * (int64_t)element_bytes(job->format);
  cpu_range share;
  cpu_team_share(panels, worker, workers, &share.begin, &share.end);
  for (int64_t j = share.begin; j < share.end; ++j) {
    void *to = job->packed + j * stride;
    if (job->format == CPU_PACK_F32_PANEL)
      job->kernels->pack_panel(s, j, to);
    else
      job->kernels->pack_half_panel(s, j, to);
  }
}

void cpu_pack(const cpu_exec *x, cpu_pack_format format, const cpu_pack_source *source,
              void *packed) {
  pack_job job = {x->kernels, source, packed, format};
  cpu_team_run(x->team, pack_task, &job);
}

typedef struct unpack_job {
  const cpu_packed *packed;
  float *out;
  int64_t out_stride;
} unpack_job;

static void unpack_task(void *argument, int32_t worker, int32_t workers) {
  const unpack_job *job = argument;
  const cpu_packed *b = job->packed;
  const float *panels = b->data;
  cpu_range share;
  cpu_team_share(b->k, worker, workers, &share.begin, &share.end);
  for (int64_t k = share.begin; k < share.end; ++k) {
    for (int64_t n = 0; n < b->n; ++n) {
      int64_t panel = n / CPU_PANEL;
      job->out[k * job->out_stride + n] = panels[(panel * b->k + k) * CPU_PANEL + n % CPU_PANEL];
    }
  }
}

void cpu_unpack(const cpu_exec *x, const cpu_packed *packed, float *out, int64_t out_stride) {
  unpack_job job = {packed, out, out_stride};
  cpu_team_run(x->team, unpack_task, &job);
}

/* ---- packed product ---- */

enum { HALF_BUFFER = CPU_CHAIN * CPU_PANEL }; /* floats of a thread */

typedef struct product_job {
  const cpu_kernels *kernels;
  cpu_product product;
  int64_t m;
  cpu_pack_format format;
  const cpu_dots *dots;
  const uint16_t *a_half;
  float *workspace;
} product_job;

bool cpu_matmul_workspace(int32_t threads, cpu_pack_format format, uint64_t *out_bytes) {
  *out_bytes = format == CPU_PACK_F32_PANEL || threads <= 0
                   ? 0
                   : (uint64_t)threads * HALF_BUFFER * sizeof(float);
  return threads > 0;
}

/* Products below this many multiplications are not worth waking the team: about a microsecond. */
enum { SMALL_PRODUCT = 1 << 15 };

cpu_team *cpu_product_team(const cpu_exec *x, int64_t m, int64_t n, int64_t k) {
  return (double)m * (double)n * (double)k < SMALL_PRODUCT ? NULL : x->team;
}

/* Rows are shared one by one where each thread gets several tiles of them, else by whole tiles. */
enum { TILE = 6, MANY_TILES = 4 };

static int64_t rows_of_a_block(int64_t m) {
  return m >= MANY_TILES * TILE ? 1 : TILE;
}

/* Part of the columns, or of the rows, that the largest share has: compared to choose. The last
 * panel may be narrow. */
static bool rows_divide_better(int64_t m, int64_t n, int32_t workers) {
  const int64_t panels = (n + CPU_PANEL - 1) / CPU_PANEL, block = rows_of_a_block(m);
  const int64_t wide = (panels + workers - 1) / workers * CPU_PANEL, columns = (n + 15) / 16 * 16;
  const int64_t blocks = (m + block - 1) / block;
  const double by_panels = (double)(wide < columns ? wide : columns) / (double)columns;
  const double by_rows = (double)((blocks + workers - 1) / workers) / (double)blocks;
  /* Who shares panels reads B once but all of A, which others have just written; who shares rows
   * reads and writes rows of his own. */
  return by_rows * (m > n ? 0.95 : 1.05) < by_panels;
}

void cpu_product_share(int64_t m, int64_t n, int32_t worker, int32_t workers, cpu_range *out_panels,
                       cpu_range *out_rows) {
  const int64_t panels = (n + CPU_PANEL - 1) / CPU_PANEL, block = rows_of_a_block(m);
  *out_panels = (cpu_range){0, panels};
  *out_rows = (cpu_range){0, m};
  if (rows_divide_better(m, n, workers)) {
    cpu_range *rows = out_rows;
    cpu_team_share((m + block - 1) / block, worker, workers, &rows->begin, &rows->end);
    rows->begin *= block;
    rows->end = rows->end * block < m ? rows->end * block : m;
  } else {
    cpu_team_share(panels, worker, workers, &out_panels->begin, &out_panels->end);
  }
}

static void product_task(void *argument, int32_t worker, int32_t workers) {
  const product_job *job = argument;
  cpu_range panels, rows;
  cpu_product_share(job->m, job->product.n, worker, workers, &panels, &rows);
  if (rows.begin >= rows.end || panels.begin >= panels.end)
    return;
  if (job->format == CPU_PACK_F32_PANEL && job->dots == NULL) {
    job->kernels->product(&job->product, panels, rows);
    return;
  }
  const cpu_half_product half = {.product = job->product,
                                 .a = job->a_half,
                                 .panels = job->product.panels,
                                 .dtype = type_of(job->format)};
  float *buffer = job->workspace + (int64_t)worker * HALF_BUFFER;
  if (job->dots != NULL)
    job->dots->product(&half, panels, rows, buffer);
  else
    job->kernels->product_half(&half, panels, rows, buffer);
}

void cpu_matmul(const cpu_exec *x, const cpu_matmul_args *args) {
  if (args->m == 0 || args->b.n == 0)
    return;
  product_job job = {.kernels = x->kernels,
                     .product = {.n = args->b.n,
                                 .k = args->b.k,
                                 .a = args->a,
                                 .a_stride = args->a_stride,
                                 .panels = args->b.data,
                                 .c = args->c,
                                 .c_stride = args->c_stride,
                                 .epilogue = args->epilogue},
                     .m = args->m,
                     .format = args->b.format,
                     .dots = args->dots,
                     .a_half = args->a_half,
                     .workspace = args->workspace};
  cpu_team_run(cpu_product_team(x, args->m, args->b.n, args->b.k), product_task, &job);
}

/* ---- activations by activations: each thread packs the panel it is about to use ---- */

/* threads * panel_elements * element, rounded up to alignment a thread. */
static bool panel_workspace(int32_t threads, int64_t k, uint64_t element_bytes, uint64_t columns,
                            uint64_t *out_bytes) {
  uint64_t bytes = 0;
  return threads > 0 && k >= 0 &&
         !__builtin_mul_overflow((uint64_t)k, columns * element_bytes, &bytes) &&
         !__builtin_mul_overflow(bytes, (uint64_t)threads, out_bytes);
}

bool cpu_matmul_batch_workspace(int32_t threads, int64_t k, uint64_t *out_bytes) {
  return panel_workspace(threads, k, sizeof(float), CPU_PANEL, out_bytes);
}

typedef struct batch_job {
  const cpu_kernels *kernels;
  const cpu_matmul_batch_args *args;
} batch_job;

static void batch_panel(const batch_job *job, int64_t i0, int64_t i1, int64_t panel,
                        float *buffer) {
  const cpu_matmul_batch_args *g = job->args;
  const int64_t column = panel * CPU_PANEL;
  const int64_t columns = g->n - column < CPU_PANEL ? g->n - column : CPU_PANEL;
  cpu_pack_source source = {.data = g->b + i0 * g->b_batch[0] + i1 * g->b_batch[1],
                            .dtype = CPU_F32,
                            .k = g->k,
                            .n = g->n,
                            .k_stride = g->b_k_stride,
                            .n_stride = g->b_n_stride};
  job->kernels->pack_panel(&source, panel, buffer);
  cpu_epilogue epilogue = {.alpha = 1.0f};
  if (g->epilogue != NULL) {
    epilogue = *g->epilogue;
    epilogue.bias = epilogue.bias == NULL ? NULL : epilogue.bias + column;
  }
  cpu_product product = {.n = columns,
                         .k = g->k,
                         .a = g->a + i0 * g->a_batch[0] + i1 * g->a_batch[1],
                         .a_stride = g->a_stride,
                         .panels = buffer,
                         .c = g->c + i0 * g->c_batch[0] + i1 * g->c_batch[1] + column,
                         .c_stride = g->c_stride,
                         .epilogue = g->epilogue == NULL ? NULL : &epilogue};
  job->kernels->product(&product, (cpu_range){0, 1}, (cpu_range){0, g->m});
}

static void batch_task(void *argument, int32_t worker, int32_t workers) {
  const batch_job *job = argument;
  const cpu_matmul_batch_args *g = job->args;
  float *buffer = (float *)g->workspace + worker * CPU_PANEL * g->k;
  int64_t panels = (g->n + CPU_PANEL - 1) / CPU_PANEL;
  cpu_range share;
  cpu_team_share(g->batch[0] * g->batch[1] * panels, worker, workers, &share.begin, &share.end);
  for (int64_t u = share.begin; u < share.end; ++u) {
    int64_t item = u / panels;
    batch_panel(job, item / g->batch[1], item % g->batch[1], u % panels, buffer);
  }
}

void cpu_matmul_batch(const cpu_exec *x, const cpu_matmul_batch_args *args) {
  batch_job job = {x->kernels, args};
  const int64_t rows = args->batch[0] * args->batch[1] * args->m;
  if (rows > 0 && args->n > 0)
    cpu_team_run(cpu_product_team(x, rows, args->n, args->k), batch_task, &job);
}

/* ---- fp64 ---- */

enum { F64_PANEL = 32 };

bool cpu_matmul_f64_workspace(int32_t threads, int64_t k, uint64_t *out_bytes) {
  return panel_workspace(threads, k, sizeof(double), F64_PANEL, out_bytes);
}

typedef struct f64_job {
  const cpu_kernels *kernels;
  const cpu_matmul_f64_args *args;
} f64_job;

static void pack_f64(const cpu_matmul_f64_args *g, const double *b, int64_t column, int64_t columns,
                     double *out) {
  for (int64_t k = 0; k < g->k; ++k) {
    for (int64_t u = 0; u < F64_PANEL; ++u) {
      out[k * F64_PANEL + u] =
          u < columns ? b[k * g->b_k_stride + (column + u) * g->b_n_stride] : 0.0;
    }
  }
}

static void f64_task(void *argument, int32_t worker, int32_t workers) {
  const f64_job *job = argument;
  const cpu_matmul_f64_args *g = job->args;
  double *buffer = (double *)g->workspace + worker * F64_PANEL * g->k;
  int64_t panels = (g->n + F64_PANEL - 1) / F64_PANEL;
  cpu_range share;
  cpu_team_share(g->batch[0] * g->batch[1] * panels, worker, workers, &share.begin, &share.end);
  for (int64_t u = share.begin; u < share.end; ++u) {
    int64_t i0 = u / panels / g->batch[1];
    int64_t i1 = u / panels % g->batch[1];
    int64_t column = u % panels * F64_PANEL;
    int64_t columns = g->n - column < F64_PANEL ? g->n - column : F64_PANEL;
    pack_f64(g, g->b + i0 * g->b_batch[0] + i1 * g->b_batch[1], column, columns, buffer);
    job->kernels->product_f64(g, g->a + i0 * g->a_batch[0] + i1 * g->a_batch[1], buffer, columns,
                              g->c + i0 * g->c_batch[0] + i1 * g->c_batch[1] + column,
                              (cpu_range){0, g->m});
  }
}

void cpu_matmul_f64(const cpu_exec *x, const cpu_matmul_f64_args *args) {
  f64_job job = {x->kernels, args};
  if (args->m > 0 && args->n > 0)
    cpu_team_run(x->team, f64_task, &job);
}

/* ---- transposing ---- */

typedef struct transpose_job {
  const cpu_kernels *kernels;
  const float *in;
  int64_t in_stride, rows, columns;
  float *out;
  int64_t out_stride;
} transpose_job;

static void transpose_task(void *argument, int32_t worker, int32_t workers) {
  const transpose_job *j = argument;
  cpu_range share;
  cpu_team_share(j->columns, worker, workers, &share.begin, &share.end);
  j->kernels->transpose(j->in + share.begin, j->in_stride, j->rows, share.end - share.begin,
                        j->out + share.begin * j->out_stride, j->out_stride);
}

void cpu_transpose(const cpu_exec *x, const float *in, int64_t in_stride, int64_t rows,
                   int64_t columns, float *out, int64_t out_stride) {
  transpose_job job = {x->kernels, in, in_stride, rows, columns, out, out_stride};
  cpu_team_run(x->team, transpose_task, &job);
}
