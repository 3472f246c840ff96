/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "sequential": one micro-batch after the other through all stages and back.
 *
 * One stage per rank. A micro-batch enters the first stage only when the one before has left the
 * last (forward form: in_flight is 1) or has come back (training form: the backward in the first
 * stage stands before its next forward). The slowest schedule, and the one that needs least memory.
 */
#include <opipe/orders.h>

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  (void)self;
  const opipe_status status =
      opipe_layout_chunks(request, io_layout, 1, OPIPE_PLACE_LOOP, "sequential", err);
  io_layout->in_flight = request->mode == OPIPE_MODE_FORWARD ? 1 : 0;
  return status;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  static const uint32_t passes[] = {OPIPE_PASS_FORWARD, OPIPE_PASS_BACKWARD};
  const uint32_t n_passes = problem->mode == OPIPE_MODE_TRAIN ? 2 : 1;
  (void)self;
  for (uint32_t stage = 0; stage < problem->layout->n_stages; ++stage) {
    for (uint32_t m = 0; m < problem->n_microbatches; ++m) {
      for (uint32_t i = 0; i < n_passes; ++i) {
        const opipe_status status =
            opipe_emit_pass(problem, emit, emit_ctx, stage, m, 0, passes[i], 0, err);
        if (status < 0) {
          return status;
        }
      }
    }
  }
  return OPIPE_OK;
}

OPIPE_SCHEDULE_TABLE_PLAIN(table, lay_out, plan);

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "sequential", "0.2.0", "Apache-2.0",
                       "one micro-batch after the other through all stages", OPIPE_SCHEDULE_ID,
                       table);
