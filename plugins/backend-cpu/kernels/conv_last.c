/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution with channels last; see conv_last.h. The units are blocks of output pixels, by parts
 * of the panels where there are fewer blocks than threads: a thread writes the patches of its block
 * into its workspace and multiplies them by the packed weights. Where a pixel is its own patch
 * there is nothing to write. With several groups a unit is a group, whose weights the thread packs.
 */
#include "conv_last.h"

#include "table.h"

enum {
  LEAST_ROWS = 24,      /* of a block */
  MOST_ROWS = 72,       /* the same; a multiple of the product's six rows */
  BLOCK_BYTES = 3 << 17 /* of patches: they stay in the second-level cache */
};

static int64_t taps_of(const cpu_conv_last_args *g) {
  return g->kernel[0] * g->kernel[1];
}

static int64_t depth_of(const cpu_conv_last_args *g) {
  return taps_of(g) * (g->c_in / g->groups);
}

static bool is_depthwise(const cpu_conv_last_args *g) {
  return g->groups > 1 && g->groups == g->c_in && g->c_out == g->c_in;
}

/* The input is the matrix of patches. */
static bool is_pointwise(const cpu_conv_last_args *g) {
  return g->groups == 1 && taps_of(g) == 1 && g->stride[0] == 1 && g->stride[1] == 1 &&
         g->out_size[0] == g->in_size[0] && g->out_size[1] == g->in_size[1];
}

/* Rows of a block, by the depth alone; few blocks are made equal. */
static int64_t block_rows(int64_t rows, int64_t depth) {
  int64_t most = BLOCK_BYTES / ((int64_t)sizeof(float) * (depth > 0 ? depth : 1)) / 6 * 6;
  most = most < LEAST_ROWS ? LEAST_ROWS : most > MOST_ROWS ? MOST_ROWS : most;
  if (rows <= MOST_ROWS)
    return rows > 0 ? rows : 1;
  const int64_t blocks = (rows + most - 1) / most;
  return ((rows + blocks - 1) / blocks + 5) / 6 * 6;
}

/* The same for threads that share the blocks: no fewer of them, and as many for each. */
static int64_t shared_rows(int64_t rows, int64_t depth, int32_t workers) {
  const int64_t most = block_rows(rows, depth), blocks = (rows + most - 1) / most;
  const int64_t equal = (blocks + workers - 1) / workers * workers;
  return workers == 1 || blocks < workers ? most : (rows + equal - 1) / equal;
}

/* ---- weights ---- */

bool cpu_conv_pack_bytes(int64_t c_out, int64_t c_in, int64_t taps, uint64_t *out_bytes) {
  return cpu_pack_bytes(CPU_PACK_F32_PANEL, c_in * taps, c_out, out_bytes);
}

typedef struct pack_job {
  const cpu_kernels *kernels;
  const char *weight;
  cpu_dtype dtype;
  int64_t c_out, c_in, taps;
  float *packed;
} pack_job;

static void pack_panels(const pack_job *j, int64_t begin, int64_t end) {
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t t = 0; t < j->taps; ++t) {
      const cpu_pack_source source = {.data = j->weight + t * (j->dtype == CPU_F32 ? 4 : 2),
                                      .dtype = j->dtype,
                                      .k = j->c_in,
                                      .n = j->c_out,
                                      .k_stride = j->taps,
                                      .n_stride = j->c_in * j->taps};
      j->kernels->pack_panel(&source, panel,
                             j->packed + (panel * j->taps + t) * j->c_in * CPU_PANEL);
    }
  }
}

static void pack_task(void *argument, int32_t worker, int32_t workers) {
  const pack_job *j = argument;
  cpu_range share;
  cpu_team_share((j->c_out + CPU_PANEL - 1) / CPU_PANEL, worker, workers, &share.begin, &share.end);
  pack_panels(j, share.begin, share.end);
}

void cpu_conv_pack(const cpu_exec *x, cpu_dtype dtype, const void *weight, int64_t c_out,
                   int64_t c_in, int64_t taps, void *packed) {
  pack_job job = {x->kernels, weight, dtype, c_out, c_in, taps, packed};
  cpu_team_run(x->team, pack_task, &job);
}

/* ---- products ---- */

typedef struct conv_job {
  const cpu_kernels *kernels;
  const cpu_conv_last_args *args;
  const float *panels; /* of one group; of depthwise: [c_in / 64][taps][64] */
  char *threads;       /* workspace of each thread */
  uint64_t thread_bytes;
  int64_t rows, block, parts; /* parts of the panels */
} conv_job;

static cpu_epilogue epilogue_at(const cpu_conv_last_args *g, int64_t row, int64_t column) {
  const int64_t at = row * g->c_out + column;
  return (cpu_epilogue){.alpha = 1.0f,
                        .activation = g->activation,
                        .bias = g->bias == NULL ? NULL : g->bias + column,
                        .multiplier = g->multiplier == NULL ? NULL : g->multiplier + at,
                        .multiplier_stride = g->c_out,
                        .residual = g->residual == NULL ? NULL : g->residual + at,
                        .residual_stride = g->c_out,
                        .relu_last = g->relu_last};
}

static void multiply(const conv_job *j, int64_t row, int64_t count, int64_t column, int64_t n,
                     const float *patches, const float *panels, cpu_range of) {
  const cpu_conv_last_args *g = j->args;
  const int64_t depth = depth_of(g);
  const cpu_epilogue epilogue = epilogue_at(g, row, column);
  const cpu_product product = {.n = n,
                               .k = depth,
                               .a = patches,
                               .a_stride = depth,
                               .panels = panels,
                               .c = g->out + row * g->c_out + column,
                               .c_stride = g->c_out,
                               .epilogue = &epilogue};
  j->kernels->product(&product, of, (cpu_range){0, count});
}

static void block_task(void *argument, int32_t worker, int32_t workers) {
  const conv_job *j = argument;
  const cpu_conv_last_args *g = j->args;
  const int64_t blocks = (j->rows + j->block - 1) / j->block;
  const int64_t panels = (g->c_out + CPU_PANEL - 1) / CPU_PANEL;
  float *patches = (float *)(void *)(j->threads + (uint64_t)worker * j->thread_bytes);
  cpu_range share;
  cpu_team_share(blocks * j->parts, worker, workers, &share.begin, &share.end);
  for (int64_t u = share.begin; u < share.end; ++u) {
    const int64_t row = u / j->parts * j->block;
    const int64_t count = j->rows - row < j->block ? j->rows - row : j->block;
    const int64_t part = u % j->parts;
    const cpu_range of = {panels * part / j->parts, panels * (part + 1) / j->parts};
    if (u == share.begin || part == 0)
      j->kernels->patches(g, (cpu_range){row, row + count}, 0, g->c_in, patches);
    multiply(j, row, count, 0, g->c_out, patches, j->panels, of);
  }
}

static void group_task(void *argument, int32_t worker, int32_t workers) {
  const conv_job *j = argument;
  const cpu_conv_last_args *g = j->args;
  const int64_t n_in = g->c_in / g->groups, n_out = g->c_out / g->groups, depth = depth_of(g);
  const int64_t panels = (n_out + CPU_PANEL - 1) / CPU_PANEL;
  float *packed = (float *)(void *)(j->threads + (uint64_t)worker * j->thread_bytes);
  float *patches = packed + panels * CPU_PANEL * depth;
  cpu_range share;
  cpu_team_share(g->groups, worker, workers, &share.begin, &share.end);
  for (int64_t group = share.begin; group < share.end; ++group) {
    const pack_job pack = {j->kernels, (const char *)(g->weight + group * n_out * depth),
                           CPU_F32,    n_out,
                           n_in,       taps_of(g),
                           packed};
    pack_panels(&pack, 0, panels);
    for (int64_t row = 0; row < j->rows; row += j->block) {
      const int64_t count = j->rows - row < j->block ? j->rows - row : j->block;
      j->kernels->patches(g, (cpu_range){row, row + count}, group * n_in, n_in, patches);
      multiply(j, row, count, group * n_out, n_out, patches, packed, (cpu_range){0, panels});
    }
  }
}

static void depthwise_task(void *argument, int32_t worker, int32_t workers) {
  const conv_job *j = argument;
  const cpu_conv_last_args *g = j->args;
  const int64_t blocks = (g->c_in + CPU_CHANNEL_BLOCK - 1) / CPU_CHANNEL_BLOCK;
  const cpu_epilogue epilogue = epilogue_at(g, 0, 0);
  cpu_range share;
  cpu_team_share(g->images * g->out_size[0] * blocks, worker, workers, &share.begin, &share.end);
  j->kernels->depthwise(g, &epilogue, j->panels, share);
}

/* ---- the whole ---- */

/* Bytes for weights that all threads read, and of one thread. */
static bool divide(const cpu_conv_last_args *g, uint64_t *out_shared, uint64_t *out_thread) {
  const int64_t rows = g->images * g->out_size[0] * g->out_size[1], depth = depth_of(g);
  const uint64_t patches = /* whole vectors are written */
      (uint64_t)(block_rows(rows, depth) * depth + 16) * sizeof(float);
  uint64_t panels = 0;
  *out_shared = *out_thread = 0;
  if (is_depthwise(g)) {
    return g->packed != NULL ||
           cpu_conv_pack_bytes(g->c_out, g->c_in / g->groups, taps_of(g), out_shared);
  }
  if (!cpu_pack_bytes(CPU_PACK_F32_PANEL, depth, g->c_out / g->groups, &panels))
    return false;
  *out_shared = g->groups == 1 && g->packed == NULL ? panels : 0;
  *out_thread = (is_pointwise(g) ? 0 : patches) + (g->groups > 1 ? panels : 0);
  *out_shared = (*out_shared + CPU_ALIGN_BYTES - 1) / CPU_ALIGN_BYTES * CPU_ALIGN_BYTES;
  *out_thread = (*out_thread + CPU_ALIGN_BYTES - 1) / CPU_ALIGN_BYTES * CPU_ALIGN_BYTES;
  return true;
}

bool cpu_conv_last_workspace(int32_t threads, const cpu_conv_last_args *args, uint64_t *out_bytes) {
  uint64_t shared = 0, each = 0;
  return threads > 0 && divide(args, &shared, &each) &&
         !__builtin_mul_overflow(each, (uint64_t)threads, out_bytes) &&
         !__builtin_add_overflow(*out_bytes, shared, out_bytes);
}

/* Panels of packed weights, of one group or depthwise: made in the workspace where they are not
 * given. */
static const float *panels_of(const cpu_exec *x, const cpu_conv_last_args *g) {
  if (g->packed == NULL) {
    cpu_conv_pack(x, CPU_F32, g->weight, g->c_out, g->c_in / g->groups, taps_of(g), g->workspace);
    return g->workspace;
  }
  return g->packed;
}

static void run_group(const cpu_exec *x, conv_job *job) {
  const cpu_conv_last_args *g = job->args;
  const int64_t panels = (g->c_out + CPU_PANEL - 1) / CPU_PANEL;
  const int32_t workers = cpu_team_size(x->team);
  job->panels = panels_of(x, g);
  if (is_pointwise(g)) {
    const cpu_epilogue epilogue = epilogue_at(g, 0, 0);
    const cpu_matmul_args args = {.m = job->rows,
                                  .a = g->in,
                                  .a_stride = g->c_in,
                                  .b = {CPU_PACK_F32_PANEL, g->c_in, g->c_out, job->panels},
                                  .c = g->out,
                                  .c_stride = g->c_out,
                                  .epilogue = &epilogue};
    cpu_matmul(x, &args);
    return;
  }
  job->block = shared_rows(job->rows, depth_of(g), workers);
  const int64_t blocks = (job->rows + job->block - 1) / job->block;
  job->parts = blocks < workers ? (workers + blocks - 1) / blocks : 1;
  job->parts = job->parts < panels ? job->parts : panels;
  cpu_team_run(x->team, block_task, job);
}

void cpu_conv_last(const cpu_exec *x, const cpu_conv_last_args *args) {
  conv_job job = {.kernels = x->kernels,
                  .args = args,
                  .rows = args->images * args->out_size[0] * args->out_size[1],
                  .parts = 1};
  uint64_t shared = 0;
  if (job.rows == 0 || args->c_out == 0)
    return;
  (void)divide(args, &shared, &job.thread_bytes);
  job.block = block_rows(job.rows, depth_of(args));
  job.threads = (char *)args->workspace + shared;
  if (is_depthwise(args)) {
    job.panels = panels_of(x, args);
    cpu_team_run(x->team, depthwise_task, &job);
  } else if (args->groups > 1) {
    cpu_team_run(x->team, group_task, &job);
  } else {
    run_group(x, &job);
  }
}

/* ---- pooling ---- */

typedef struct pool_job {
  const cpu_kernels *kernels;
  const cpu_pool_last_args *args;
} pool_job;

static void pool_task(void *argument, int32_t worker, int32_t workers) {
  const pool_job *j = argument;
  const cpu_pool_last_args *g = j->args;
  const int64_t blocks = (g->channels + CPU_CHANNEL_BLOCK - 1) / CPU_CHANNEL_BLOCK;
  cpu_range share;
  cpu_team_share(g->images * g->out_size[0] * blocks, worker, workers, &share.begin, &share.end);
  j->kernels->pool(g, share);
}

void cpu_pool_last(const cpu_exec *x, const cpu_pool_last_args *args) {
  pool_job job = {x->kernels, args};
  cpu_team_run(x->team, pool_task, &job);
}
