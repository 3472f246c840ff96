/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "looped-bfs": several stages per rank, breadth first (Lamy-Poirier, section 4).
 *
 * Stage c * P + r is chunk c of rank r. A rank takes all micro-batches through one chunk before it
 * turns to the next; the backwards go through the chunks and the micro-batches in falling order.
 * Bubble as interleaved 1F1B, stash as GPipe; messages are hidden, and a chunk's weights are used
 * in one stretch.
 */
#include <opipe/orders.h>

struct opipe_instance {
  const opipe_host *host;
};

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

static opipe_status emit_backwards(const opipe_schedule_problem *problem, opipe_emit_fn emit,
                                   void *emit_ctx, opipe_error *err) {
  for (uint32_t stage = problem->layout->n_stages; stage > 0; --stage) {
    for (uint32_t m = problem->n_microbatches; m > 0; --m) {
      const opipe_status status = opipe_emit_pass(problem, emit, emit_ctx, stage - 1, m - 1, 0,
                                                  OPIPE_PASS_BACKWARD, 0, err);
      if (status < 0)
        return status;
    }
  }
  return OPIPE_OK;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  (void)self;
  const opipe_status status = opipe_emit_forwards(problem, 0, emit, emit_ctx, err);
  return status < 0 || problem->mode == OPIPE_MODE_FORWARD
             ? status
             : emit_backwards(problem, emit, emit_ctx, err);
}

/* PyTorch's table: two slots for every hop between the last forward and the first backward. */
static opipe_status cells(opipe_instance *self, const opipe_schedule_problem *problem,
                          opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint32_t p = problem->layout->n_ranks;
  (void)self;
  opipe_status status = opipe_emit_idle_first(problem, emit, emit_ctx, err);
  if (status >= 0)
    status = opipe_emit_forwards(problem, 0, emit, emit_ctx, err);
  for (uint32_t rank = 0; rank < p && status >= 0; ++rank)
    status = opipe_emit_idle(emit, emit_ctx, rank, 2 * (p - 1 - rank), err);
  return status < 0 ? status : emit_backwards(problem, emit, emit_ctx, err);
}

OPIPE_SCHEDULE_TABLE(table, options, lay_out, plan);
OPIPE_SCHEDULE_CELLS(table_cells, cells);

OPIPE_SCHEDULE_PLUGIN_CELLS("looped-bfs", OPIPE_VERSION, "Apache-2.0",
                            "several stages per rank, breadth first", table, table_cells);
