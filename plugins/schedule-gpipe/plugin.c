/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules "gpipe" and "sequential", one stage per rank; compiled once for each id of ids.txt.
 *
 * gpipe: all micro-batches forward through all stages, each rank as soon as it can, then all of
 * them backward (Huang et al., GPipe, section 2.3). Forward form: the forwards alone; the pipeline
 * fills and drains once per stream, not once per request. Both halves take the micro-batches in
 * rising order, so every rank keeps the activations of all of them in between.
 *
 * sequential: one micro-batch after the other through all stages and back. It enters the first
 * stage only when the one before has left the last (forward form: in_flight is 1) or has come back
 * (training form: the backward in the first stage stands before its next forward). The slowest
 * schedule, and the one that needs least memory.
 */
#include <opipe/orders.h>

/* Constants, so that the descriptor stays one. */
#define IS_SEQUENTIAL (__builtin_strcmp(OPIPE_PLUGIN_ID, "sequential") == 0)
#define SUMMARY                                                         \
  (IS_SEQUENTIAL ? "one micro-batch after the other through all stages" \
                 : "all micro-batches forward through all stages, then all backward")

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  (void)self;
  const opipe_status status =
      opipe_layout_chunks(request, io_layout, 1, OPIPE_PLACE_LOOP, OPIPE_PLUGIN_ID, err);
  io_layout->in_flight = IS_SEQUENTIAL && request->mode == OPIPE_MODE_FORWARD ? 1 : 0;
  return status;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  static const uint32_t passes[] = {OPIPE_PASS_FORWARD, OPIPE_PASS_BACKWARD};
  const uint32_t n_passes = problem->mode == OPIPE_MODE_TRAIN ? 2 : 1;
  const uint32_t n = problem->n_microbatches;
  (void)self;
  for (uint32_t stage = 0; stage < problem->layout->n_stages; ++stage) {
    for (uint64_t i = 0; i < (uint64_t)n_passes * n; ++i) {
      const uint64_t pass = IS_SEQUENTIAL ? i % n_passes : i / n;
      const uint64_t m = IS_SEQUENTIAL ? i / n_passes : i % n;
      const opipe_status status =
          opipe_emit_pass(problem, emit, emit_ctx, stage, (uint32_t)m, 0, passes[pass], 0, err);
      if (status < 0) {
        return status;
      }
    }
  }
  return OPIPE_OK;
}

OPIPE_SCHEDULE_TABLE_PLAIN(table, lay_out, plan);

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, OPIPE_PLUGIN_ID, "0.2.0", "Apache-2.0", SUMMARY,
                       OPIPE_SCHEDULE_ID, table);
