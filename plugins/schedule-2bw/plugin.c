/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "2bw": double-buffered weights, no flush (Narayanan et al., PipeDream-2BW, section 3).
 *
 * One stage per rank. The records are the periodic body of one mini-batch of m micro-batches: stage
 * r of d runs d - r - 1 forwards ahead, so the last of its forwards belong to the next mini-batch
 * and carry OPIPE_ACTION_NEXT_STEP. These forwards alone, in order, are the prologue; the body
 * without them is the epilogue, which flushes. Every micro-batch goes forward and backward with the
 * weights of one step ago: version 1 in the body of its own mini-batch, and version 0, the same
 * weights, in the body before. m >= d, so that a micro-batch in flight crosses one step at most.
 */
#include <opipe/orders.h>

enum { NEWEST = 0, OLDER = 1, ACCUMULATE_MOST = 1 << 20 };

static const opipe_schedule_option options[] = {
    {"accumulate", NULL, NULL, "micro-batches of a step, in units of the stages (default: any)", 1,
     ACCUMULATE_MOST, 'i', 0},
};

/* m >= d, and m = d * accumulate where that is asked for. */
static opipe_status check_counts(const opipe_schedule_setting *settings, uint32_t n_settings,
                                 uint32_t n_microbatches, uint32_t n_stages, opipe_error *err) {
  uint32_t accumulate = 0;
  const opipe_status status = opipe_setting_int(settings, n_settings, "accumulate", 1,
                                                ACCUMULATE_MOST, 0, &accumulate, err);
  const uint64_t wanted = (uint64_t)n_stages * accumulate;
  if (status < 0)
    return status;
  if (n_microbatches < n_stages) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule '2bw' needs as many micro-batches as stages: %u micro-batches, %u "
                      "stages",
                      n_microbatches, n_stages);
  }
  if (accumulate != 0 && n_microbatches != wanted) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule '2bw': accumulate=%u with %u stages is a step of %llu "
                      "micro-batches, %u were asked for",
                      accumulate, n_stages, (unsigned long long)wanted, n_microbatches);
  }
  return OPIPE_OK;
}

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  (void)self;
  const opipe_status status =
      opipe_layout_chunks(request, io_layout, 1, OPIPE_PLACE_LOOP, "2bw", err);
  if (status < 0 || request->mode != OPIPE_MODE_TRAIN)
    return status;
  io_layout->versions = OPIPE_VERSIONS_DOUBLE_BUFFERED;
  return check_counts(request->settings, request->n_settings, request->n_microbatches,
                      io_layout->n_stages, err);
}

static opipe_status put(const opipe_schedule_problem *problem, opipe_emit_fn emit, void *emit_ctx,
                        uint32_t stage, uint32_t microbatch, uint32_t pass, uint32_t version,
                        uint32_t flags, opipe_error *err) {
  opipe_action action = opipe_action_of(problem, stage, microbatch, pass);
  action.version = (uint16_t)version;
  action.flags = flags;
  return emit(emit_ctx, &action, 1, err);
}

static opipe_status order_stage(const opipe_schedule_problem *problem, uint32_t stage,
                                opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint32_t n = problem->n_microbatches;
  const uint32_t ahead = problem->layout->n_stages - stage - 1; /* below n */
  opipe_status status = OPIPE_OK;
  for (uint32_t m = 0; m < n && status >= 0; ++m) {
    status = m < n - ahead
                 ? put(problem, emit, emit_ctx, stage, m + ahead, OPIPE_PASS_FORWARD, OLDER, 0, err)
                 : put(problem, emit, emit_ctx, stage, m - (n - ahead), OPIPE_PASS_FORWARD, NEWEST,
                       OPIPE_ACTION_NEXT_STEP, err);
    if (status >= 0)
      status = put(problem, emit, emit_ctx, stage, m, OPIPE_PASS_BACKWARD, OLDER, 0, err);
  }
  return status;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint32_t n_stages = problem->layout->n_stages;
  (void)self;
  if (problem->mode == OPIPE_MODE_FORWARD)
    return opipe_emit_forwards(problem, 0, emit, emit_ctx, err);
  opipe_status status =
      check_counts(problem->settings, problem->n_settings, problem->n_microbatches, n_stages, err);
  for (uint32_t stage = 0; stage < n_stages && status >= 0; ++stage)
    status = order_stage(problem, stage, emit, emit_ctx, err);
  return status;
}

OPIPE_SCHEDULE_TABLE(table, options, lay_out, plan);

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "2bw", OPIPE_VERSION, "Apache-2.0",
                       "double-buffered weights: one forward, one backward, no flush",
                       OPIPE_SCHEDULE_ID, table);
