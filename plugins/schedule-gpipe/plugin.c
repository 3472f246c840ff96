/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "gpipe": all micro-batches forward through all stages, each rank as soon as it can.
 *
 * Forward form: one stage per rank; every rank computes the micro-batches in rising order. The
 * pipeline fills and drains once per stream, not once per request (Huang et al., GPipe,
 * section 2.3, has the training form).
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
  return opipe_layout_line(request, io_layout, "gpipe", err);
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  (void)self;
  return opipe_emit_rising(problem, emit, emit_ctx, err);
}

static const opipe_schedule table = {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, list_options,
                                     lay_out, plan};

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "gpipe", "0.1.0", "Apache-2.0",
                       "all micro-batches forward through all stages, each rank as soon as it can",
                       OPIPE_SCHEDULE_ID, table);
