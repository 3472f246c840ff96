/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor, compiled once for every id of ids.txt; family.c knows what each of them is. */
#include "zb.h"

struct opipe_instance {
  const opipe_host *host;
};

static opipe_status list_options(opipe_instance *self, const opipe_schedule_option **out_options,
                                 uint32_t *out_count, opipe_error *err) {
  (void)self;
  return zb_options(OPIPE_PLUGIN_ID, out_options, out_count, err);
}

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  (void)self;
  return zb_lay_out(OPIPE_PLUGIN_ID, request, io_layout, err);
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  return zb_plan(OPIPE_PLUGIN_ID, self->host, problem, emit, emit_ctx, err);
}

static const opipe_schedule table = {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, list_options,
                                     lay_out, plan};

OPIPE_SCHEDULE_PLUGIN(OPIPE_PLUGIN_ID, "0.1.0", "Apache-2.0",
                      "backwards in two halves, weight gradients in the gaps (zero bubble)", table);
