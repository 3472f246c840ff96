/* SPDX-License-Identifier: Apache-2.0 */
/* A whole schedule in under 200 lines: id "example", one stage per rank, micro-batches in rising or
 * falling order (option order=rising|falling).
 *
 * Built against the installed headers alone:
 *   cc -std=c11 -shared -fPIC -fvisibility=hidden -I<prefix>/include plugin.c
 *      -o opipe-schedule-example.so
 * A schedule says which instance of which stage computes which micro-batch on which rank, in which
 * order; messages, memory and execution are the library's business. Both calls are pure.
 */
#include <opipe/helpers.h>
#include <opipe/schedule.h>

static const opipe_schedule_option options[] = {
    {"order", "rising|falling", "rising", "which micro-batch goes first", 0, 0, 's', 0}};

static opipe_status list_options(opipe_instance *self, const opipe_schedule_option **out_options,
                                 uint32_t *out_count, opipe_error *err) {
  (void)self;
  (void)err;
  *out_options = options;
  *out_count = 1;
  return OPIPE_OK;
}

static opipe_status layout(opipe_instance *self, const opipe_layout_request *request,
                           opipe_layout *io_layout, opipe_error *err) {
  (void)self;
  return opipe_layout_line(request, io_layout, "example", err);
}

static bool is_falling(const opipe_schedule_problem *problem) {
  for (uint32_t i = 0; i < problem->n_settings; ++i) {
    if (strcmp(problem->settings[i].key, "order") == 0) {
      return strcmp(problem->settings[i].value, "falling") == 0;
    }
  }
  return false;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const bool falling = is_falling(problem);
  const uint32_t n = problem->n_microbatches;
  (void)self;
  for (uint32_t rank = 0; rank < problem->layout->n_ranks; ++rank) {
    for (uint32_t i = 0; i < n; ++i) {
      const opipe_status status =
          opipe_emit_forward(emit, emit_ctx, rank, falling ? n - 1 - i : i, err);
      if (status < 0)
        return status;
    }
  }
  return OPIPE_OK;
}

static const opipe_schedule table = {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, list_options,
                                     layout, plan};

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "example", "1.0", "Apache-2.0",
                       "one stage per rank, rising or falling micro-batches", OPIPE_SCHEDULE_ID,
                       table);
