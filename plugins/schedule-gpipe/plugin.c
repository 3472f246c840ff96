/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "gpipe": all micro-batches forward through all stages, each rank as soon as it can, then
 * all of them backward (Huang et al., GPipe, section 2.3).
 *
 * One stage per rank. Forward form: the forwards alone; the pipeline fills and drains once per
 * stream, not once per request. Both halves take the micro-batches in rising order, so every rank
 * keeps the activations of all of them in between.
 */
#include <opipe/orders.h>

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  (void)self;
  return opipe_layout_chunks(request, io_layout, 1, OPIPE_PLACE_LOOP, "gpipe", err);
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  static const uint32_t passes[] = {OPIPE_PASS_FORWARD, OPIPE_PASS_BACKWARD};
  const uint32_t n_passes = problem->mode == OPIPE_MODE_TRAIN ? 2 : 1;
  (void)self;
  for (uint32_t stage = 0; stage < problem->layout->n_stages; ++stage) {
    for (uint32_t i = 0; i < n_passes; ++i) {
      for (uint32_t m = 0; m < problem->n_microbatches; ++m) {
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

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "gpipe", "0.2.0", "Apache-2.0",
                       "all micro-batches forward through all stages, then all backward",
                       OPIPE_SCHEDULE_ID, table);
