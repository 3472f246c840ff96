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

struct opipe_instance {
  const opipe_host *host;
};

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

/* Emits every stage's passes from number `first` on in its rank's order. */
static opipe_status emit_from(const opipe_schedule_problem *problem, uint64_t first, uint64_t end,
                              opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  static const uint32_t passes[] = {OPIPE_PASS_FORWARD, OPIPE_PASS_BACKWARD};
  const uint32_t n_passes = problem->mode == OPIPE_MODE_TRAIN ? 2 : 1;
  const uint32_t n = problem->n_microbatches;
  for (uint32_t stage = 0; stage < problem->layout->n_stages; ++stage) {
    for (uint64_t i = first; i < end; ++i) {
      const uint64_t pass = IS_SEQUENTIAL ? i % n_passes : i / n;
      const uint64_t m = IS_SEQUENTIAL ? i / n_passes : i % n;
      const opipe_status status =
          opipe_emit_pass(problem, emit, emit_ctx, stage, (uint32_t)m, 0, passes[pass], 0, err);
      if (status < 0)
        return status;
    }
  }
  return OPIPE_OK;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint64_t n = problem->n_microbatches;
  (void)self;
  return emit_from(problem, 0, problem->mode == OPIPE_MODE_TRAIN ? 2 * n : n, emit, emit_ctx, err);
}

/* PyTorch's table of gpipe: three slots for every hop between the last forward and the first
 * backward. */
static opipe_status cells(opipe_instance *self, const opipe_schedule_problem *problem,
                          opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint32_t n = problem->n_microbatches, p = problem->layout->n_ranks;
  (void)self;
  if (IS_SEQUENTIAL)
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "it was not published as a table");
  opipe_status status = opipe_emit_idle_first(problem, emit, emit_ctx, err);
  if (status >= 0)
    status = emit_from(problem, 0, n, emit, emit_ctx, err);
  for (uint32_t rank = 0; rank < p && status >= 0; ++rank)
    status = opipe_emit_idle(emit, emit_ctx, rank, 3 * (p - 1 - rank), err);
  return status < 0 ? status : emit_from(problem, n, 2 * (uint64_t)n, emit, emit_ctx, err);
}

OPIPE_SCHEDULE_TABLE_PLAIN(table, lay_out, plan);
OPIPE_SCHEDULE_CELLS(table_cells, cells);

OPIPE_SCHEDULE_PLUGIN_CELLS(OPIPE_PLUGIN_ID, "0.2.0", "Apache-2.0", SUMMARY, table, table_cells);
