/* SPDX-License-Identifier: Apache-2.0 */
/* Attention: workspace, and how the work is divided. Few query rows: the units are kv heads, or
 * parts of the heads that share one; every thread takes equally many. Otherwise the units are row
 * blocks of (batch, head) pairs in order; every thread takes a stretch of them with an equal share
 * of the keys to look at, so that causal blocks, of which the last cost most, balance too. Whole
 * heads fall to one thread when there are enough of them, and then their keys are packed once. */
#include "attention.h"

#include <stddef.h>

#include "attention_plan.h"

/* The same with few query rows. */
static bool few_workspace(const cpu_attention_args *g, uint64_t *out_bytes) {
  const uint64_t rows = (uint64_t)(attention_heads_together(g) * g->q_rows);
  const uint64_t padded = ((uint64_t)g->kv_rows + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
  uint64_t dims = 0, sum = 0, panel = 0, line = 0;
  return !__builtin_mul_overflow((uint64_t)g->qk_dim, CPU_PANEL, &panel) &&
         !__builtin_add_overflow((uint64_t)g->qk_dim, (uint64_t)g->v_dim, &dims) &&
         !__builtin_add_overflow(dims, padded, &dims) &&
         !__builtin_mul_overflow(dims, rows, &line) && !__builtin_add_overflow(line, panel, &sum) &&
         !__builtin_add_overflow(sum, CPU_PANEL, &sum) &&
         !__builtin_mul_overflow((sum + 15) / 16 * 16, sizeof(float), out_bytes);
}

/* One thread's share of the workspace, a multiple of CPU_ALIGN_BYTES. */
static bool thread_workspace(const cpu_attention_args *g, uint64_t *out_bytes) {
  const int64_t kv_rows = g->kv_rows, qk_dim = g->qk_dim, v_dim = g->v_dim;
  uint64_t padded = 0;
  uint64_t keys = 0;
  uint64_t columns = 0;
  uint64_t values = 0;
  uint64_t scores = 0;
  uint64_t sum = 0;
  if (kv_rows < 0 || qk_dim < 0 || v_dim < 0)
    return false;
  if (attention_is_few(g))
    return few_workspace(g, out_bytes);
  padded = ((uint64_t)kv_rows + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
  columns = ((uint64_t)v_dim + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
  return !__builtin_mul_overflow(padded, (uint64_t)qk_dim, &keys) &&
         !__builtin_mul_overflow((uint64_t)kv_rows, columns, &values) &&
         !__builtin_mul_overflow(padded, ATTENTION_ROWS, &scores) &&
         !__builtin_add_overflow(keys, values, &sum) &&
         !__builtin_add_overflow(sum, scores, &sum) &&
         !__builtin_mul_overflow(sum, sizeof(float), out_bytes);
}

bool cpu_attention_workspace(int32_t threads, const cpu_attention_args *args, uint64_t *out_bytes) {
  uint64_t bytes = 0;
  return threads > 0 && thread_workspace(args, &bytes) &&
         !__builtin_mul_overflow(bytes, (uint64_t)threads, out_bytes);
}

/* Keys that a row block looks at, and a little for its rows. */
static int64_t block_cost(const cpu_attention_args *g, int64_t block) {
  int64_t row = block * ATTENTION_ROWS;
  int64_t count = g->q_rows - row < ATTENTION_ROWS ? g->q_rows - row : ATTENTION_ROWS;
  return attention_keys_seen(g, g->kv_rows, row + count - 1).end + 1;
}

/* The first unit (block of a head) of `worker`: where its part of the total cost begins. */
static int64_t first_unit(const cpu_attention_args *g, int32_t worker, int32_t workers) {
  const int64_t blocks = (g->q_rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
  const int64_t pairs = g->batch * g->heads;
  int64_t head_cost = 0;
  for (int64_t b = 0; b < blocks; ++b)
    head_cost += block_cost(g, b);
  const double begin = (double)pairs * (double)worker / (double)workers;
  const int64_t whole = (int64_t)begin;
  const double rest = (begin - (double)whole) * (double)head_cost;
  int64_t block = 0;
  double sum = 0.0;
  while (block < blocks && sum + 0.5 * (double)block_cost(g, block) < rest) {
    sum += (double)block_cost(g, block);
    ++block;
  }
  return whole * blocks + block;
}

typedef struct attention_job {
  const cpu_kernels *kernels;
  const cpu_attention_args *args;
  uint64_t thread_bytes;
} attention_job;

static void attention_task(void *argument, int32_t worker, int32_t workers) {
  const attention_job *j = argument;
  const cpu_attention_args *g = j->args;
  const int64_t blocks = (g->q_rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
  const int64_t end = first_unit(g, worker + 1, workers);
  void *workspace = (char *)g->workspace + (uint64_t)worker * j->thread_bytes;
  int64_t unit = first_unit(g, worker, workers);
  while (unit < end) {
    const int64_t pair = unit / blocks;
    cpu_range range = {unit % blocks, blocks};
    if (end - unit < range.end - range.begin)
      range.end = range.begin + end - unit;
    j->kernels->attention(g, pair / g->heads, pair % g->heads, range, workspace);
    unit += range.end - range.begin;
  }
}

/* All query rows of stretches of heads. */
static void few_task(void *argument, int32_t worker, int32_t workers) {
  const attention_job *j = argument;
  const cpu_attention_args *g = j->args;
  const int64_t group = g->heads / g->kv_heads, pairs = g->batch * g->kv_heads;
  void *workspace = (char *)g->workspace + (uint64_t)worker * j->thread_bytes;
  int64_t together = attention_heads_together(g);
  while (together > 1 && pairs * ((group + together - 1) / together) < workers)
    together = (together + 1) / 2;
  const int64_t parts = (group + together - 1) / together, units = pairs * parts;
  for (int64_t u = units * worker / workers; u < units * (worker + 1) / workers; ++u) {
    const int64_t first = u / parts % g->kv_heads * group, part = u % parts;
    const cpu_range heads = {first + part * group / parts, first + (part + 1) * group / parts};
    j->kernels->attention_few(g, u / parts / g->kv_heads, heads, workspace);
  }
}

/* Below this many multiplications the team is not woken. */
enum { SMALL_ATTENTION = 1 << 15 };

void cpu_attention(const cpu_exec *x, const cpu_attention_args *args) {
  attention_job job = {.kernels = x->kernels, .args = args};
  if (args->q_rows > 0 && args->v_dim > 0 && thread_workspace(args, &job.thread_bytes)) {
    double work = (double)(args->batch * args->heads * args->q_rows) * (double)args->kv_rows *
                  (double)(args->qk_dim + args->v_dim);
    cpu_team_run(work < SMALL_ATTENTION ? NULL : x->team,
                 attention_is_few(args) ? few_task : attention_task, &job);
  }
}
