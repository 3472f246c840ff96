/* SPDX-License-Identifier: Apache-2.0 */
/* Two schedules whose unit is a token slice, compiled once for each id of ids.txt.
 *
 * "terapipe" (Li et al., TeraPipe): all slices of all micro-batches go forward, slice by slice;
 * then backwards, micro-batch by micro-batch, each from its last slice to its first. Everything is
 * kept. "seq1f1b" (Sun et al., Seq1F1B): 1F1B over slices. Stage s begins with p - s - 2 + k
 * forwards, so that its first backward, of a micro-batch's last slice, finds the whole micro-batch
 * forwarded; it keeps at most p - s - 1 + k slices. Bubble of both, k even slices: (p-1)/(Mk+p-1).
 */
#include "slices.h"

/* A constant, so that the descriptor stays one. */
#define SUMMARY                                         \
  (__builtin_strcmp(OPIPE_PLUGIN_ID, "seq1f1b") == 0    \
       ? "1F1B over the token slices of a causal model" \
       : "token slices of a causal model, all forward, then all backward")

static const opipe_schedule_option options[] = {
    {"slices", NULL, "2", "token slices of equal length", 1, TERA_SLICES_MOST, 'i', 0},
    {"lengths", NULL, NULL, "tokens of every slice, as 704+688+656", 0, 0, 't', 0},
};

static bool one_by_one(void) {
  return strcmp(OPIPE_PLUGIN_ID, "seq1f1b") == 0;
}

static opipe_status list_options(opipe_instance *self, const opipe_schedule_option **out_options,
                                 uint32_t *out_count, opipe_error *err) {
  (void)self;
  (void)err;
  *out_options = options;
  *out_count = one_by_one() ? 1 : 2;
  return OPIPE_OK;
}

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  return tera_lay_out(self, request, io_layout, !one_by_one(), OPIPE_PLUGIN_ID, err);
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint64_t k = problem->layout->n_slices, units = k * problem->n_microbatches;
  const uint64_t p = problem->layout->n_stages;
  opipe_status status = OPIPE_OK;
  (void)self;
  if (problem->mode == OPIPE_MODE_FORWARD)
    return opipe_emit_forwards(problem, 0, emit, emit_ctx, err);
  for (uint64_t stage = 0; stage < p; ++stage) {
    const uint64_t ahead =
        one_by_one() ? p - stage + k - 2 : units; /* forwards before the first B */
    for (uint64_t u = 0; u < units + ahead; ++u) {
      if (u < units) {
        status = opipe_emit_pass(problem, emit, emit_ctx, (uint32_t)stage, (uint32_t)(u / k),
                                 (uint32_t)(u % k), OPIPE_PASS_FORWARD, 0, err);
      }
      if (u >= ahead && status >= 0) {
        const uint64_t back = u - ahead;
        status = opipe_emit_pass(problem, emit, emit_ctx, (uint32_t)stage, (uint32_t)(back / k),
                                 (uint32_t)(k - 1 - back % k), OPIPE_PASS_BACKWARD, 0, err);
      }
      if (status < 0)
        return status;
    }
  }
  return status;
}

static const opipe_schedule table = {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, list_options,
                                     lay_out, plan};

static const void *get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_SCHEDULE_ID) == 0 ? &table : NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_SCHEDULE, 0),
                                          OPIPE_PLUGIN_ID,
                                          OPIPE_VERSION,
                                          "Apache-2.0",
                                          SUMMARY,
                                          tera_open,
                                          tera_close,
                                          get_interface};
