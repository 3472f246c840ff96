/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "interleaved": several stages per rank, one forward, one backward (Narayanan et al.,
 * Megatron-LM, section 2.2.2).
 *
 * Stage c * p + r is chunk c of rank r. Every rank counts through the same table of m * v
 * positions: groups of g micro-batches, within a group chunk after chunk (backwards: in falling
 * order), within a chunk micro-batch after micro-batch. Rank r does
 *   W = 2(p - r - 1) + (v - 1) g  forwards,
 * then a forward and a backward in turn, then the backwards that are left.
 * warmup=torch does so always; warmup=megatron W = p - r - 1 where there is one chunk, and all
 * forwards first where m == p.
 * Without `group` there are m / p groups whose sizes differ by one at most, p each where p divides
 * m; the makespan is then that of a bubble of (p - 1)/v passes whatever m >= p is. A given group
 * below p keeps fewer activations, W = p - r - 1 + (v - 1) g; backwards then have too little time
 * to come back through all ranks, and it takes longer, unless backward=halves lets the gradient go
 * on before a stage's own weights have theirs (as the grouped form in the zero-bubble authors'
 * code). Groups below p / 2, or small remainders, can make ranks wait for each other's next
 * position; orders.c finds out by replaying the order and lets the first rank that can do the other
 * pass first.
 */
#include "interleaved.h"

enum { GROUP_MOST = 1 << 24 };

struct opipe_instance {
  const opipe_host *host;
};

static const opipe_schedule_option options[] = {
    OPIPE_OPTION_CHUNKS,
    {"group", NULL, NULL, "micro-batches of a chunk in a row (default: ranks, or a little more)", 1,
     GROUP_MOST, 'i', 0},
    {"warmup", "megatron|torch", "megatron", "forwards before the first backward", 0, 0, 's', 0},
    {"backward", "whole|halves", "whole", "halves: the gradient goes on before W", 0, 0, 's', 0},
};

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  uint32_t chunks = 0;
  (void)self;
  const opipe_status status = opipe_setting_chunks(request, &chunks, err);
  return status < 0 ? status
                    : opipe_layout_chunks(request, io_layout, chunks, OPIPE_PLACE_LOOP,
                                          "interleaved", err);
}

/* Groups of the size that was asked for, with a smaller one at the end; or as many as hold p
 * micro-batches each, of sizes that differ by one at most. */
static void divide(interleaved *o, uint32_t size) {
  const uint32_t m = o->n_microbatches;
  const uint32_t n_groups = m < o->n_ranks ? 1 : m / o->n_ranks;
  const bool even = size == 0;
  o->n_first = even ? m % n_groups : m / size;
  o->first_size = even ? m / n_groups + 1 : size;
  o->rest_size = even ? m / n_groups : m % size;
  if (o->n_first == 0)
    o->first_size = o->rest_size;
}

static opipe_status describe(const opipe_schedule_problem *problem, interleaved *out,
                             opipe_error *err) {
  const char *warmup = opipe_setting_find(problem->settings, problem->n_settings, "warmup");
  const char *backward = opipe_setting_find(problem->settings, problem->n_settings, "backward");
  uint32_t size = 0;
  const opipe_status status = opipe_setting_int(problem->settings, problem->n_settings, "group", 1,
                                                GROUP_MOST, 0, &size, err);
  out->n_ranks = problem->layout->n_ranks;
  out->n_chunks = problem->layout->n_stages / out->n_ranks;
  out->n_microbatches = problem->n_microbatches;
  out->torch = warmup != NULL && strcmp(warmup, "torch") == 0;
  out->whole = !out->torch && size == 0 && out->n_microbatches == out->n_ranks;
  out->halves = backward != NULL && strcmp(backward, "halves") == 0;
  out->narrow = size != 0 && size < out->n_ranks;
  divide(out, size);
  return status;
}

static opipe_status emit_order(const interleaved *order, const opipe_host *host,
                               const opipe_schedule_problem *problem, opipe_emit_fn emit,
                               void *emit_ctx, opipe_error *err) {
  opipe_work work = {host, NULL};
  const opipe_status status = interleaved_replay(order, problem, &work, emit, emit_ctx, err);
  opipe_work_end(&work);
  return status;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  interleaved order = {0};
  const opipe_status status = describe(problem, &order, err);
  if (status < 0)
    return status;
  return problem->mode == OPIPE_MODE_FORWARD
             ? opipe_emit_forwards(problem, order.first_size, emit, emit_ctx, err)
             : emit_order(&order, self->host, problem, emit, emit_ctx, err);
}

static opipe_status cells(opipe_instance *self, const opipe_schedule_problem *problem,
                          opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  interleaved order = {.cells = true};
  const opipe_status status = describe(problem, &order, err);
  if (status >= 0 && !order.torch)
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "only warmup=torch was published as a table");
  return status < 0 ? status : emit_order(&order, self->host, problem, emit, emit_ctx, err);
}

OPIPE_SCHEDULE_TABLE(table, options, lay_out, plan);
OPIPE_SCHEDULE_CELLS(table_cells, cells);

OPIPE_SCHEDULE_PLUGIN_CELLS("interleaved", OPIPE_VERSION, "Apache-2.0",
                            "several stages per rank, one forward, one backward", table,
                            table_cells);
