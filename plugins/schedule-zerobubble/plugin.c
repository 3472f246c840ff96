/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor, compiled once for every id of ids.txt; family.c knows what each of them is. */
#include "zb.h"

/* A constant, so that the descriptor stays one. */
#define IS(id_) (__builtin_strcmp(OPIPE_PLUGIN_ID, id_) == 0)
#define SUMMARY                                                                                  \
  (IS("zb-h1")            ? "memory of 1F1B, a third of its bubble: weight gradients come later" \
   : IS("zb-h2")          ? "no gap within a rank, for twice the memory of 1F1B"                 \
   : IS("zb-auto")        ? "one stage per rank, the shortest order found under a memory limit"  \
   : IS("zb-interleaved") ? "several stages per rank in a loop, later weight gradients"          \
   : IS("zbv")            ? "two stages per rank in a V, no gap within a rank, memory of 1F1B"   \
   : IS("v-half")         ? "two stages per rank in a V, half of the memory of 1F1B"             \
                          : "two stages per rank in a V, a third of the memory of 1F1B")

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

static opipe_status cells(opipe_instance *self, const opipe_schedule_problem *problem,
                          opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  return zb_cells(OPIPE_PLUGIN_ID, self->host, problem, emit, emit_ctx, err);
}

static const opipe_schedule table = {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, list_options,
                                     lay_out, plan};

OPIPE_SCHEDULE_CELLS(table_cells, cells);

OPIPE_SCHEDULE_PLUGIN_CELLS(OPIPE_PLUGIN_ID, OPIPE_VERSION, "Apache-2.0", SUMMARY, table,
                            table_cells);
