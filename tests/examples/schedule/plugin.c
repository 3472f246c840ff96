/* SPDX-License-Identifier: Apache-2.0 */
/* A whole schedule in under 100 lines: id "example", one stage per rank, all micro-batches forward
 * in rising or falling order (option order=rising|falling), then, when training, all backward the
 * other way round: last in, first out.
 *
 * Built against the installed headers alone:
 *   cc -std=c11 -shared -fPIC -fvisibility=hidden -I<prefix>/include plugin.c
 *      -o opipe-schedule-example.so
 * A schedule says which instance of which stage computes which micro-batch on which rank, in which
 * order; messages, memory and execution are the library's business. Both calls are pure.
 */
#include <opipe/orders.h>

static const opipe_schedule_option options[] = {
    {"order", "rising|falling", "rising", "which micro-batch goes first", 0, 0, 's', 0}};

static opipe_status layout(opipe_instance *self, const opipe_layout_request *request,
                           opipe_layout *io_layout, opipe_error *err) {
  (void)self;
  return opipe_layout_chunks(request, io_layout, 1, OPIPE_PLACE_LOOP, "example", err);
}

/* All micro-batches through one stage. */
static opipe_status run(const opipe_schedule_problem *problem, uint32_t stage, uint32_t pass,
                        bool falling, opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint32_t n = problem->n_microbatches;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status >= 0; ++i) {
    status =
        opipe_emit_pass(problem, emit, emit_ctx, stage, falling ? n - 1 - i : i, 0, pass, 0, err);
  }
  return status;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const char *order = opipe_setting_find(problem->settings, problem->n_settings, "order");
  const bool falling = order != NULL && strcmp(order, "falling") == 0;
  opipe_status status = OPIPE_OK;
  (void)self;
  for (uint32_t stage = 0; stage < problem->layout->n_stages && status >= 0; ++stage) {
    status = run(problem, stage, OPIPE_PASS_FORWARD, falling, emit, emit_ctx, err);
    if (status >= 0 && problem->mode == OPIPE_MODE_TRAIN)
      status = run(problem, stage, OPIPE_PASS_BACKWARD, !falling, emit, emit_ctx, err);
  }
  return status;
}

OPIPE_SCHEDULE_TABLE(table, options, layout, plan);

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "example", "1.0", "Apache-2.0",
                       "one stage per rank, rising or falling micro-batches", OPIPE_SCHEDULE_ID,
                       table);
