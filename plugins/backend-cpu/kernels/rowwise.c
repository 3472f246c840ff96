/* SPDX-License-Identifier: Apache-2.0 */
/* Row-wise operations: how the work is divided among the team. Small jobs stay on the calling
 * thread, by a rule of size alone; bits do not depend on it. */
#include "rowwise.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "table.h"

/* Elements below which waking the team costs more than it gives. */
enum { SMALL_JOB = 8192, SHARE_STEP = 64 };

static cpu_team *team_for(const cpu_exec *x, int64_t elements) {
  return elements < SMALL_JOB ? NULL : x->team;
}

/* A share of n elements that begins at a multiple of SHARE_STEP. */
static cpu_range element_share(int64_t n, int32_t worker, int32_t workers) {
  cpu_range share;
  cpu_team_share((n + SHARE_STEP - 1) / SHARE_STEP, worker, workers, &share.begin, &share.end);
  share.begin *= SHARE_STEP;
  share.end = share.end * SHARE_STEP < n ? share.end * SHARE_STEP : n;
  return share;
}

typedef struct unary_job {
  const cpu_kernels *kernels;
  cpu_unary op;
  const float *in;
  float *out;
  int64_t n;
} unary_job;

static void unary_task(void *argument, int32_t worker, int32_t workers) {
  const unary_job *j = argument;
  cpu_range s = element_share(j->n, worker, workers);
  if (s.begin < s.end)
    j->kernels->unary(j->op, j->in + s.begin, j->out + s.begin, s.end - s.begin);
}

void cpu_unary_f32(const cpu_exec *x, cpu_unary op, const float *in, float *out, int64_t n) {
  unary_job job = {x->kernels, op, in, out, n};
  cpu_team_run(team_for(x, n), unary_task, &job);
}

typedef struct convert_job {
  const cpu_kernels *kernels;
  cpu_dtype from, to;
  const char *in;
  char *out;
  int64_t n;
} convert_job;

static int64_t dtype_bytes(cpu_dtype dtype) {
  return dtype == CPU_F32 ? 4 : 2;
}

static void convert_task(void *argument, int32_t worker, int32_t workers) {
  const convert_job *j = argument;
  cpu_range s = element_share(j->n, worker, workers);
  if (s.begin < s.end) {
    j->kernels->convert(j->from, j->in + s.begin * dtype_bytes(j->from), j->to,
                        j->out + s.begin * dtype_bytes(j->to), s.end - s.begin);
  }
}

void cpu_convert(const cpu_exec *x, cpu_dtype from, const void *in, cpu_dtype to, void *out,
                 int64_t n) {
  convert_job job = {x->kernels, from, to, in, out, n};
  cpu_team_run(team_for(x, n), convert_task, &job);
}

/* Operations on rows share one task: the function of the table and its arguments. */
typedef struct rows_job {
  const cpu_kernels *kernels;
  const void *args;
  void (*share)(const cpu_kernels *kernels, const void *args, cpu_range rows);
  int64_t rows;
} rows_job;

static void rows_task(void *argument, int32_t worker, int32_t workers) {
  const rows_job *j = argument;
  cpu_range s;
  cpu_team_share(j->rows, worker, workers, &s.begin, &s.end);
  if (s.begin < s.end)
    j->share(j->kernels, j->args, s);
}

static void run_rows(const cpu_exec *x, const void *args,
                     void (*share)(const cpu_kernels *kernels, const void *args, cpu_range rows),
                     int64_t rows, int64_t columns) {
  rows_job job = {x->kernels, args, share, rows};
  cpu_team_run(rows < 2 ? NULL : team_for(x, rows * columns), rows_task, &job);
}

static void binary_rows(const cpu_kernels *kernels, const void *args, cpu_range rows) {
  kernels->binary(args, rows);
}

/* One long row is divided by columns. */
typedef struct long_binary {
  const cpu_kernels *kernels;
  const cpu_binary_args *args;
} long_binary;

static void long_binary_task(void *argument, int32_t worker, int32_t workers) {
  const long_binary *j = argument;
  cpu_binary_args part = *j->args;
  cpu_range s = element_share(part.columns, worker, workers);
  part.columns = s.end - s.begin;
  part.a += s.begin * part.a_column;
  part.b += s.begin * part.b_column;
  part.out += s.begin;
  if (part.columns > 0)
    j->kernels->binary(&part, (cpu_range){0, part.rows});
}

void cpu_binary_f32(const cpu_exec *x, const cpu_binary_args *args) {
  if (args->rows == 1) {
    long_binary job = {x->kernels, args};
    cpu_team_run(team_for(x, args->columns), long_binary_task, &job);
    return;
  }
  run_rows(x, args, binary_rows, args->rows, args->columns);
}

static void bias_rows(const cpu_kernels *kernels, const void *args, cpu_range rows) {
  kernels->bias_activation(args, rows);
}

void cpu_bias_activation(const cpu_exec *x, const cpu_bias_args *args) {
  run_rows(x, args, bias_rows, args->rows, args->columns);
}

static void softmax_rows(const cpu_kernels *kernels, const void *args, cpu_range rows) {
  kernels->softmax(args, rows);
}

void cpu_softmax(const cpu_exec *x, const cpu_softmax_args *args) {
  run_rows(x, args, softmax_rows, args->rows, args->columns);
}

static void norm_rows(const cpu_kernels *kernels, const void *args, cpu_range rows) {
  kernels->norm(args, rows);
}

void cpu_norm(const cpu_exec *x, const cpu_norm_args *args) {
  run_rows(x, args, norm_rows, args->rows, args->columns);
}

static void rotary_rows(const cpu_kernels *kernels, const void *args, cpu_range rows) {
  kernels->rotary(args, rows);
}

void cpu_rotary(const cpu_exec *x, const cpu_rotary_args *args) {
  run_rows(x, args, rotary_rows, args->batch * args->heads * args->rows, args->dim);
}

typedef struct reduce_job {
  cpu_reduce op;
  int64_t columns;
  const float *in;
  int64_t in_row;
  float *out;
} reduce_job;

static void reduce_rows(const cpu_kernels *kernels, const void *args, cpu_range rows) {
  const reduce_job *j = args;
  kernels->reduce_rows(j->op, j->columns, j->in, j->in_row, j->out, rows);
}

void cpu_reduce_rows(const cpu_exec *x, cpu_reduce op, int64_t rows, int64_t columns,
                     const float *in, int64_t in_row, float *out) {
  reduce_job job = {op, columns, in, in_row, out};
  run_rows(x, &job, reduce_rows, rows, columns);
}

/* ---- gather ---- */

typedef struct gather_job {
  const char *table;
  int64_t table_rows, row_bytes;
  const void *indices;
  int wide;
  int64_t count;
  char *out;
  _Atomic int64_t first_bad; /* INT64_MAX: none */
} gather_job;

static int64_t row_index(const gather_job *j, int64_t i) {
  int64_t index = j->wide ? ((const int64_t *)j->indices)[i] : ((const int32_t *)j->indices)[i];
  return index < 0 ? index + j->table_rows : index;
}

static void note_bad(gather_job *j, int64_t i) {
  int64_t seen = atomic_load(&j->first_bad);
  while (i < seen && !atomic_compare_exchange_weak(&j->first_bad, &seen, i)) {
  }
}

static void gather_task(void *argument, int32_t worker, int32_t workers) {
  enum { AHEAD = 4, LINE = 64, MOST_LINES = 64 };
  gather_job *j = argument;
  cpu_range s;
  cpu_team_share(j->count, worker, workers, &s.begin, &s.end);
  int64_t fetch = j->row_bytes < LINE * MOST_LINES ? j->row_bytes : LINE * MOST_LINES;
  for (int64_t i = s.begin; i < s.end; ++i) {
    int64_t later = i + AHEAD < s.end ? row_index(j, i + AHEAD) : -1;
    for (int64_t at = 0; later >= 0 && later < j->table_rows && at < fetch; at += LINE)
      __builtin_prefetch(j->table + later * j->row_bytes + at);
    int64_t index = row_index(j, i);
    if (index < 0 || index >= j->table_rows) {
      note_bad(j, i);
      return;
    }
    memcpy(j->out + i * j->row_bytes, j->table + index * j->row_bytes, (size_t)j->row_bytes);
  }
}

int64_t cpu_gather_rows(const cpu_exec *x, const void *table, int64_t table_rows, int64_t row_bytes,
                        const void *indices, bool wide, int64_t count, void *out) {
  gather_job job = {.table = table,
                    .table_rows = table_rows,
                    .row_bytes = row_bytes,
                    .indices = indices,
                    .wide = wide,
                    .count = count,
                    .out = out};
  atomic_init(&job.first_bad, INT64_MAX);
  int64_t rows_worth = 4 * SMALL_JOB / (row_bytes > 0 ? row_bytes : 1);
  cpu_team_run(count < 2 || count <= rows_worth ? NULL : x->team, gather_task, &job);
  int64_t bad = atomic_load(&job.first_bad);
  return bad == INT64_MAX ? -1 : bad;
}
