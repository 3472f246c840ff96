/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of several regions, of any floating-point type, rounded once: shares of whole blocks for
 * every thread.
 */
#include <opipe/collect.h>

#include "ops/op.h"

enum { SUM_SMALL_BYTES = 32 << 10 /* one thread's work */ };

typedef struct sum_job {
  const opipe_region *src; /* [n] checked */
  char *dst;
  uint64_t n_values;
  uint32_t dtype, n;
} sum_job;

static const char *values_at(const opipe_region *region, uint64_t offset) {
  return (const char *)region->buffer->data + region->offset_bytes + offset;
}

static void sum_task(void *argument, int32_t worker, int32_t workers) {
  const sum_job *j = argument;
  const uint64_t size = opipe_sum_size(j->dtype);
  int64_t block = 0, end = 0;
  opipe_sum sum;
  cpu_team_share((int64_t)((j->n_values + OPIPE_SUM_BLOCK - 1) / OPIPE_SUM_BLOCK), worker, workers,
                 &block, &end);
  for (; block < end; ++block) {
    const uint64_t first = (uint64_t)block * OPIPE_SUM_BLOCK;
    const uint64_t left = j->n_values - first;
    const uint64_t n = left < OPIPE_SUM_BLOCK ? left : OPIPE_SUM_BLOCK;
    for (uint32_t i = 0; i < j->n; ++i)
      opipe_sum_add(&sum, j->dtype, values_at(&j->src[i], first * size), 0, n, i == 0);
    opipe_sum_round(&sum, j->dtype, j->dst + first * size, n);
  }
}

static opipe_status check_region(const opipe_region *region, const char *what, uint64_t n_bytes,
                                 uint64_t size, opipe_error *err) {
  void *data = NULL;
  CPU_TRY(cpu_region_data(region, what, &data, err));
  if (region->n_bytes == n_bytes && n_bytes % size == 0 && region->offset_bytes % size == 0)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID,
                    "%s: %llu bytes at offset %llu, not %llu of whole values of %llu", what,
                    (unsigned long long)region->n_bytes, (unsigned long long)region->offset_bytes,
                    (unsigned long long)n_bytes, (unsigned long long)size);
}

opipe_status cpu_sum(opipe_queue *queue, uint32_t dtype, const opipe_region *dst,
                     const opipe_region *src, uint32_t n, opipe_error *err) {
  const uint64_t size = opipe_sum_size(dtype);
  sum_job job = {.src = src, .dtype = dtype, .n = n};
  void *to = NULL;
  if (size == 0) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "sum of %s: it is no type that is added",
                      opipe_dtype_name(dtype));
  }
  if (n == 0)
    return opipe_fail(err, OPIPE_E_INVALID, "sum of 0 regions, 1 is the least");
  CPU_TRY(check_region(dst, "sum: destination", dst->n_bytes, size, err));
  for (uint32_t i = 0; i < n; ++i)
    CPU_TRY(check_region(&src[i], "sum: source", dst->n_bytes, size, err));
  CPU_TRY(cpu_region_data(dst, "sum: destination", &to, err));
  job.dst = to;
  job.n_values = dst->n_bytes / size;
  const cpu_exec exec = cpu_take_exec(queue->device);
  cpu_team_run(dst->n_bytes < SUM_SMALL_BYTES ? NULL : exec.team, sum_task, &job);
  cpu_give_exec(queue->device, &exec);
  return OPIPE_OK;
}
