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
  const uint32_t n = request->n_stages != 0 ? request->n_stages : request->n_ranks;
  (void)self;
  if (request->mode != OPIPE_MODE_FORWARD) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "schedule 'example' has a forward form only");
  }
  if (request->n_stages != 0 && request->n_ranks != 0 && request->n_stages != request->n_ranks) {
    return opipe_fail(err, OPIPE_E_INVALID, "schedule 'example': %u stages need %u ranks, not %u",
                      request->n_stages, request->n_stages, request->n_ranks);
  }
  io_layout->n_ranks = n;
  io_layout->n_stages = n;
  io_layout->n_replicas = 1;
  io_layout->n_slices = 1;
  io_layout->n_parts = 1;
  if (n > io_layout->instance_room) { /* the caller makes room and asks again */
    return opipe_fail(err, OPIPE_E_LIMIT, "schedule 'example': %u instances, room for %u", n,
                      io_layout->instance_room);
  }
  for (uint32_t stage = 0; stage < n; ++stage)
    io_layout->instance_rank[stage] = stage;
  return OPIPE_OK;
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
      opipe_action forward;
      memset(&forward, 0, sizeof forward);
      forward.rank = rank;
      forward.stage = rank;
      forward.microbatch = falling ? n - 1 - i : i;
      forward.pass = OPIPE_PASS_FORWARD;
      const opipe_status status = emit(emit_ctx, &forward, 1, err);
      if (status < 0)
        return status;
    }
  }
  return OPIPE_OK;
}

/* ---- the plugin ---- */

static const opipe_schedule table = {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, list_options,
                                     layout, plan};

struct opipe_instance {
  int unused; /* this schedule has no state */
};

static opipe_status open_plugin(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  static opipe_instance only;
  (void)host;
  (void)err;
  *out_self = &only;
  return OPIPE_OK;
}

static void close_plugin(opipe_instance *self) {
  (void)self;
}

static const void *find_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_SCHEDULE_ID) == 0 ? &table : NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_SCHEDULE, 0),
                                          "example",
                                          "1.0",
                                          "Apache-2.0",
                                          "one stage per rank, rising or falling micro-batches",
                                          open_plugin,
                                          close_plugin,
                                          find_interface};
