/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "sequential": one micro-batch after the other through all stages.
 *
 * Forward form: one stage per rank; every rank computes the micro-batches in rising order. A
 * micro-batch enters the first stage only when the one before has left the last: in_flight is 1.
 * The slowest schedule, and the one that needs least memory.
 */
#include <opipe/helpers.h>
#include <opipe/schedule.h>

static opipe_status list_options(opipe_instance *self, const opipe_schedule_option **out_options,
                                 uint32_t *out_count, opipe_error *err) {
  (void)self;
  (void)err;
  *out_options = NULL;
  *out_count = 0;
  return OPIPE_OK;
}

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  (void)self;
  const opipe_status status = opipe_layout_line(request, io_layout, "sequential", err);
  io_layout->in_flight = 1;
  return status;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  (void)self;
  return opipe_emit_rising(problem, emit, emit_ctx, err);
}

static const opipe_schedule table = {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, list_options,
                                     lay_out, plan};

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "sequential", "0.1.0", "Apache-2.0",
                       "one micro-batch after the other through all stages", OPIPE_SCHEDULE_ID,
                       table);
