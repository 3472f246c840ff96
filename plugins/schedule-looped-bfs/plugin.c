/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "looped-bfs": several stages per rank, breadth first (Lamy-Poirier, section 4).
 *
 * Stage c * P + r is chunk c of rank r. A rank takes all micro-batches through one chunk before it
 * turns to the next; the backwards go through the chunks and the micro-batches in falling order.
 * Bubble as interleaved 1F1B, stash as GPipe; messages are hidden, and a chunk's weights are used
 * in one stretch.
 */
#include <opipe/orders.h>

static const opipe_schedule_option options[] = {OPIPE_OPTION_CHUNKS};

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  uint32_t chunks = 0;
  (void)self;
  const opipe_status status = opipe_setting_chunks(request, &chunks, err);
  return status < 0
             ? status
             : opipe_layout_chunks(request, io_layout, chunks, OPIPE_PLACE_LOOP, "looped-bfs", err);
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  (void)self;
  opipe_status status = opipe_emit_forwards(problem, 0, emit, emit_ctx, err);
  if (status < 0 || problem->mode == OPIPE_MODE_FORWARD) {
    return status;
  }
  for (uint32_t stage = problem->layout->n_stages; stage > 0; --stage) {
    for (uint32_t m = problem->n_microbatches; m > 0; --m) {
      status = opipe_emit_pass(problem, emit, emit_ctx, stage - 1, m - 1, 0, OPIPE_PASS_BACKWARD, 0,
                               err);
      if (status < 0) {
        return status;
      }
    }
  }
  return OPIPE_OK;
}

OPIPE_SCHEDULE_TABLE(table, options, lay_out, plan);

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "looped-bfs", OPIPE_VERSION, "Apache-2.0",
                       "several stages per rank, breadth first", OPIPE_SCHEDULE_ID, table);
