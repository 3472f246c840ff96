/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule for the tests of old minors (mocks.cmake): id "mock-order", one stage per rank, all
 * micro-batches forward, in the training form then all backward. By the
 * frozen interface alone: what orders.h offers may change.
 */
#include <opipe/helpers.h>

static opipe_status options(opipe_instance *self, const opipe_schedule_option **out_options,
                            uint32_t *out_count, opipe_error *err) {
  (void)self;
  (void)err;
  *out_options = NULL;
  *out_count = 0;
  return OPIPE_OK;
}

static opipe_status layout(opipe_instance *self, const opipe_layout_request *request,
                           opipe_layout *io_layout, opipe_error *err) {
  const uint32_t n = request->n_stages != 0 ? request->n_stages : request->n_ranks;
  (void)self;
  io_layout->n_ranks = n;
  io_layout->n_stages = n;
  io_layout->n_replicas = 1;
  io_layout->n_slices = 1;
  io_layout->n_parts = 1;
  io_layout->versions = OPIPE_VERSIONS_ONE;
  io_layout->sync = OPIPE_SYNC_END;
  io_layout->in_flight = 0;
  io_layout->slice_lengths = NULL;
  if (n > io_layout->instance_room) {
    return opipe_fail(err, OPIPE_E_LIMIT, "mock-order needs room for %u instances, %u were given",
                      n, io_layout->instance_room);
  }
  for (uint32_t s = 0; s < n; ++s)
    io_layout->instance_rank[s] = s;
  return OPIPE_OK;
}

static opipe_status one_pass(const opipe_schedule_problem *problem, uint32_t stage, uint32_t pass,
                             opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (uint32_t m = 0; m < problem->n_microbatches && status >= 0; ++m) {
    opipe_action action;
    memset(&action, 0, sizeof action);
    action.rank = stage;
    action.stage = stage;
    action.microbatch = m;
    action.pass = (uint8_t)pass;
    status = emit(emit_ctx, &action, 1, err);
  }
  return status;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  (void)self;
  for (uint32_t s = 0; s < problem->layout->n_stages && status >= 0; ++s) {
    status = one_pass(problem, s, OPIPE_PASS_FORWARD, emit, emit_ctx, err);
    if (status >= 0 && problem->mode == OPIPE_MODE_TRAIN)
      status = one_pass(problem, s, OPIPE_PASS_BACKWARD, emit, emit_ctx, err);
  }
  return status;
}

static const opipe_schedule table = {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, options, layout,
                                     plan};

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "mock-order", "1.0", "Apache-2.0",
                       "all forward, then all backward", OPIPE_SCHEDULE_ID, table);
