/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of token rows: workspace, writing into pages, and how the work is divided. Units are
 * runs of rows of one sequence with the heads that share a kv head; every thread takes a stretch of
 * them with an equal share of the keys to look at. */
#include "attention_rows.h"

#include <string.h>

#include "attention_rows_plan.h"

/* One thread's share, a multiple of CPU_ALIGN_BYTES. */
static bool thread_workspace(const cpu_row_attention_args *g, uint64_t *out_bytes) {
  attention_rows_plan plan;
  uint64_t padded, scores, sums, sum;
  if (g->qk_dim < 1 || g->v_dim < 1 || g->page < 1 || g->pages < 1 || g->qk_dim > INT32_MAX ||
      g->v_dim > INT32_MAX ||
      __builtin_mul_overflow((uint64_t)g->page, (uint64_t)g->pages, &padded) ||
      __builtin_mul_overflow(padded, ATTENTION_UNIT_ROWS + 1, &scores))
    return false;
  plan.v_width = attention_rows_floats(g->v_dim);
  sums = (uint64_t)attention_rows_floats(ATTENTION_UNIT_ROWS * g->qk_dim) +
         (2 * ATTENTION_UNIT_ROWS + CPU_PANEL) * (uint64_t)plan.v_width;
  return !__builtin_add_overflow(scores, sums, &sum) &&
         !__builtin_mul_overflow((sum + 15) / 16 * 16, sizeof(float), out_bytes);
}

bool cpu_attention_rows_workspace(int32_t threads, const cpu_row_attention_args *args,
                                  uint64_t *out_bytes) {
  uint64_t bytes = 0;
  return threads > 0 && thread_workspace(args, &bytes) &&
         !__builtin_mul_overflow(bytes, (uint64_t)threads, out_bytes);
}

/* A page's first tokens of kv head h. Keys lie in panels, of which whole ones are copied. */
static void copy_head(const cpu_row_attention_args *g, const int64_t *copy, int64_t h) {
  const int64_t from = (copy[0] * g->kv_heads + h) * g->page;
  const int64_t to = (copy[1] * g->kv_heads + h) * g->page;
  const int64_t keys = (copy[2] + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;
  memcpy(g->key_pages + to * g->qk_dim, g->key_pages + from * g->qk_dim,
         (size_t)(keys * g->qk_dim) * sizeof(float));
  memcpy(g->value_pages + to * g->v_dim, g->value_pages + from * g->v_dim,
         (size_t)(copy[2] * g->v_dim) * sizeof(float));
}

void cpu_attention_rows_write(const cpu_row_attention_args *g, int64_t first, int64_t end) {
  for (int64_t c = 0; c < g->n_copies; ++c) {
    const int64_t *copy = g->copies + 3 * c;
    for (int64_t h = first; h < end && copy[0] >= 0 && copy[0] != copy[1]; ++h)
      copy_head(g, copy, h);
  }
  for (int64_t r = 0; r < g->rows; ++r) {
    if (g->sequence[r] < 0)
      continue;
    const int64_t at = g->position[r], column = at % CPU_PANEL;
    for (int64_t h = first; h < end; ++h) {
      const float *key = g->k + (r * g->kv_heads + h) * g->qk_dim;
      float *keys = cpu_page_keys(g, g->sequence[r], h, at - column) + column;
      for (int64_t d = 0; d < g->qk_dim; ++d)
        keys[d * CPU_PANEL] = key[d];
      memcpy(cpu_page_value(g, g->sequence[r], h, at), g->v + (r * g->kv_heads + h) * g->v_dim,
             (size_t)g->v_dim * sizeof(float));
    }
  }
}

typedef struct rows_job {
  const cpu_kernels *kernels;
  const cpu_row_attention_args *args;
  uint64_t thread_bytes;
} rows_job;

static void write_task(void *argument, int32_t worker, int32_t workers) {
  const rows_job *j = argument;
  const int64_t heads = j->args->kv_heads;
  cpu_attention_rows_write(j->args, heads * worker / workers, heads * (worker + 1) / workers);
}

/* Rows from `row` on that may go together: of one sequence, at consecutive positions. */
static int64_t unit_rows(const cpu_row_attention_args *g, int64_t row, int64_t most) {
  int64_t n = 1;
  while (n < most && row + n < g->rows && g->sequence[row + n] == g->sequence[row] &&
         g->position[row + n] == g->position[row] + n)
    ++n;
  return n;
}

static int64_t unit_cost(const cpu_row_attention_args *g, int64_t row, int64_t count) {
  const cpu_range seen = attention_rows_seen(g, g->position[row + count - 1]);
  return count * (seen.end - seen.begin + 16);
}

/* Passes over all units in order and computes those that begin in this worker's share of the
 * cost. */
static void rows_task(void *argument, int32_t worker, int32_t workers) {
  const rows_job *j = argument;
  const cpu_row_attention_args *g = j->args;
  const int64_t group = g->heads / g->kv_heads;
  const int64_t together = group < ATTENTION_UNIT_ROWS ? group : ATTENTION_UNIT_ROWS;
  const int64_t parts = (group + together - 1) / together, units = g->kv_heads * parts;
  const int64_t most = ATTENTION_UNIT_ROWS / together;
  void *workspace = (char *)g->workspace + (uint64_t)worker * j->thread_bytes;
  double total = 0, at = 0;
  for (int64_t r = 0, n; r < g->rows; r += n) {
    n = unit_rows(g, r, most);
    total += g->sequence[r] < 0 ? 0 : (double)(unit_cost(g, r, n) * units);
  }
  const double begin = total * worker / workers, end = total * (worker + 1) / workers;
  for (int64_t r = 0, n; r < g->rows; r += n) {
    n = unit_rows(g, r, most);
    const double cost = g->sequence[r] < 0 ? 0 : (double)unit_cost(g, r, n);
    for (int64_t u = 0; u < units && cost > 0; ++u, at += cost) {
      const int64_t first = u / parts * group, part = u % parts;
      const cpu_attention_unit unit = {
          r, n, {first + part * group / parts, first + (part + 1) * group / parts}};
      if (at >= begin && at < end)
        j->kernels->attention_rows(g, &unit, workspace);
    }
  }
}

/* Below this many multiplications the team is not woken. */
enum { SMALL_ATTENTION = 1 << 15 };

void cpu_attention_rows(const cpu_exec *x, const cpu_row_attention_args *args) {
  rows_job job = {.kernels = x->kernels, .args = args};
  double keys = 0;
  if (!thread_workspace(args, &job.thread_bytes))
    return;
  for (int64_t r = 0; r < args->rows; ++r) {
    const int64_t n = args->heads * args->v_dim;
    if (args->sequence[r] < 0)
      memset(args->out + r * n, 0, (size_t)n * sizeof(float));
    else
      keys += (double)args->position[r] + 1;
  }
  const double work = keys * (double)(args->heads * (args->qk_dim + args->v_dim));
  cpu_team *team = work < SMALL_ATTENTION ? NULL : x->team;
  cpu_team_run(team, write_task, &job);
  cpu_team_run(team, rows_task, &job);
}
