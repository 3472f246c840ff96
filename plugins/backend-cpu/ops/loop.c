/* SPDX-License-Identifier: Apache-2.0 */
/* Strided loops: merging of axes, offsets of rows, copies, and the split over threads.
 */
#include "loop.h"

enum { PARALLEL_WORK = 32768 }; /* elements below which waking the team costs more than it gives */

/* True when axis a and a + 1 can be one: for every operand the outer stride spans the inner axis.
 */
static bool mergeable(const cpu_loop *loop, uint32_t a) {
  for (uint32_t i = 0; i < loop->n; ++i) {
    if (loop->stride[i][a] != loop->stride[i][a + 1] * loop->shape[a + 1])
      return false;
  }
  return true;
}

static void drop_axis(cpu_loop *loop, uint32_t a) {
  for (uint32_t k = a; k + 1 < loop->rank; ++k) {
    loop->shape[k] = loop->shape[k + 1];
    for (uint32_t i = 0; i < loop->n; ++i)
      loop->stride[i][k] = loop->stride[i][k + 1];
  }
  --loop->rank;
}

void cpu_loop_init(cpu_loop *loop, const int64_t *shape, uint32_t rank, uint32_t n,
                   int64_t (*strides)[OPIPE_MAX_RANK]) {
  loop->rank = rank;
  loop->n = n;
  loop->stride = strides;
  if (rank > 0)
    memcpy(loop->shape, shape, rank * sizeof shape[0]);
  for (uint32_t a = 0; a < loop->rank;) {
    if (loop->shape[a] == 1 && loop->rank > 1)
      drop_axis(loop, a);
    else
      ++a;
  }
  for (uint32_t a = 0; a + 1 < loop->rank;) {
    if (mergeable(loop, a)) {
      loop->shape[a + 1] *= loop->shape[a];
      drop_axis(loop, a);
    } else {
      ++a;
    }
  }
  if (loop->rank == 0) {
    loop->rank = 1;
    loop->shape[0] = 1;
    for (uint32_t i = 0; i < n; ++i)
      strides[i][0] = 0;
  }
  loop->columns = loop->shape[loop->rank - 1];
  loop->rows = 1;
  for (uint32_t a = 0; a + 1 < loop->rank; ++a)
    loop->rows *= loop->shape[a];
  for (uint32_t i = 0; loop->columns == 1 && i < n; ++i)
    strides[i][loop->rank - 1] = 1; /* one element: any stride, and 1 needs no conversion */
}

opipe_status cpu_loop_broadcast(cpu_prep *p, const opipe_value *out, uint32_t n_in,
                                cpu_loop *out_loop) {
  int64_t(*strides)[OPIPE_MAX_RANK] = cpu_pool_array(p->pool, (uint64_t)n_in + 1, sizeof *strides);
  if (strides == NULL)
    return cpu_nomem(p);
  for (uint32_t i = 0; i < n_in; ++i) {
    const opipe_value *in = cpu_in(p, i);
    if (in != NULL &&
        !opipe_broadcast_strides(in->shape, in->rank, out->shape, out->rank, strides[i]))
      return cpu_invalid(p, "input '%.80s' does not broadcast to the output's shape", in->name);
  }
  opipe_dense_strides(out->shape, out->rank, strides[n_in]);
  cpu_loop_init(out_loop, out->shape, out->rank, n_in + 1, strides);
  return OPIPE_OK;
}

int64_t cpu_loop_offset(const cpu_loop *loop, uint32_t i, int64_t row) {
  int64_t offset = 0;
  for (uint32_t a = loop->rank - 1; a > 0; --a) {
    const int64_t n = loop->shape[a - 1];
    offset += row % n * loop->stride[i][a - 1];
    row /= n;
  }
  return offset;
}

typedef struct range_job {
  cpu_range_body body;
  void *ctx;
  int64_t units;
} range_job;

static void range_task(void *argument, int32_t worker, int32_t workers) {
  const range_job *job = argument;
  int64_t begin = 0;
  int64_t end = 0;
  cpu_team_share(job->units, worker, workers, &begin, &end);
  if (begin < end)
    job->body(job->ctx, begin, end);
}

void cpu_parallel(const cpu_exec *exec, int64_t units, int64_t work, cpu_range_body body,
                  void *ctx) {
  range_job job = {body, ctx, units};
  if (units <= 0)
    return;
  if (units == 1 || work < PARALLEL_WORK || exec->team == NULL)
    body(ctx, 0, units);
  else
    cpu_team_run(exec->team, range_task, &job);
}

opipe_status cpu_copy_plan_init(cpu_prep *p, cpu_copy_plan *plan, const int64_t *shape,
                                uint32_t rank, const int64_t *in_strides,
                                const int64_t *out_strides, uint32_t size) {
  int64_t(*strides)[OPIPE_MAX_RANK] = cpu_pool_array(p->pool, 2, sizeof *strides);
  if (strides == NULL)
    return cpu_nomem(p);
  if (rank > 0) {
    memcpy(strides[0], in_strides, rank * sizeof in_strides[0]);
    memcpy(strides[1], out_strides, rank * sizeof out_strides[0]);
  }
  cpu_loop_init(&plan->loop, shape, rank, 2, strides);
  plan->size = size;
  return OPIPE_OK;
}

#define COPY_STRIDED(T)                                                                        \
  do {                                                                                         \
    for (int64_t k = 0; k < n; ++k) {                                                          \
      memcpy(to + k * os * (int64_t)sizeof(T), from + k * is * (int64_t)sizeof(T), sizeof(T)); \
    }                                                                                          \
  } while (0)

static void copy_row(const char *from, int64_t is, char *to, int64_t os, int64_t n, uint32_t size) {
  if (is == 1 && os == 1) {
    memcpy(to, from, (size_t)n * size);
    return;
  }
  switch (size) {
    case 1:
      COPY_STRIDED(uint8_t);
      break;
    case 2:
      COPY_STRIDED(uint16_t);
      break;
    case 4:
      COPY_STRIDED(uint32_t);
      break;
    case 8:
      COPY_STRIDED(uint64_t);
      break;
    default:
      for (int64_t k = 0; k < n; ++k)
        memcpy(to + k * os * (int64_t)size, from + k * is * (int64_t)size, size);
      break;
  }
}

typedef struct copy_job {
  const cpu_copy_plan *plan;
  const char *in;
  char *out;
} copy_job;

enum { FEW_COLUMNS = 8, BLOCK_ROWS = 1024 };

/* Rows that lie evenly, at strides is and os; few columns one after the other, each in one go. */
static void copy_block(const cpu_copy_plan *plan, const char *from, char *to, int64_t rows,
                       int64_t is, int64_t os) {
  const cpu_loop *loop = &plan->loop;
  const int64_t size = plan->size, n = loop->columns;
  const int64_t in = loop->stride[0][loop->rank - 1], out = loop->stride[1][loop->rank - 1];
  if (n < FEW_COLUMNS && n < rows && (in != 1 || out != 1)) {
    for (int64_t k = 0; k < n; ++k)
      copy_row(from + k * in * size, is, to + k * out * size, os, rows, plan->size);
    return;
  }
  for (int64_t r = 0; r < rows; ++r)
    copy_row(from + r * is * size, in, to + r * os * size, out, n, plan->size);
}

static void copy_rows(void *ctx, int64_t begin, int64_t end) {
  const copy_job *job = ctx;
  const cpu_loop *loop = &job->plan->loop;
  const int64_t size = job->plan->size;
  const uint32_t outer = loop->rank > 1 ? loop->rank - 2 : 0;
  const int64_t n = loop->rank > 1 ? loop->shape[outer] : 1;
  int64_t rows = 0;
  for (int64_t row = begin; row < end; row += rows) {
    const int64_t from = job->plan->in_first + cpu_loop_offset(loop, 0, row);
    const int64_t to = job->plan->out_first + cpu_loop_offset(loop, 1, row);
    rows = n - row % n < end - row ? n - row % n : end - row;
    rows = rows < BLOCK_ROWS ? rows : BLOCK_ROWS;
    copy_block(job->plan, job->in + from * size, job->out + to * size, rows, loop->stride[0][outer],
               loop->stride[1][outer]);
  }
}

void cpu_copy_run(const cpu_exec *exec, const cpu_copy_plan *plan, const void *in, void *out) {
  copy_job job = {plan, in, out};
  const cpu_loop *loop = &plan->loop;
  if (loop->columns > 0)
    cpu_parallel(exec, loop->rows, loop->rows * loop->columns, copy_rows, &job);
}
