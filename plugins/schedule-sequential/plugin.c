/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "sequential": one micro-batch after the other through all stages
 *
 * Forward form: one stage per rank; every rank computes the micro-batches in rising order. A
 * micro-batch enters the first stage only when the one before has left the last: in_flight is 1.
 * The slowest schedule, and the one that needs least memory.
 */
#include <opipe/schedule.h>
#include <stdio.h>

static opipe_status fail(opipe_error *err, opipe_status status, const char *fmt, unsigned a,
                         unsigned b) {
  if (err != NULL) {
    err->status = status;
    err->domain = OPIPE_DOMAIN_NONE;
    err->native = 0;
    (void)snprintf(err->message, sizeof(err->message), fmt, a, b);
  }
  return status;
}

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
  const uint32_t n = request->n_stages != 0 ? request->n_stages : request->n_ranks;
  if (request->mode != OPIPE_MODE_FORWARD) {
    return fail(err, OPIPE_E_UNSUPPORTED,
                "schedule 'sequential' has no form for mode %u; it has mode %u (forward)",
                request->mode, OPIPE_MODE_FORWARD);
  }
  if (request->n_stages != 0 && request->n_ranks != 0 && request->n_stages != request->n_ranks) {
    return fail(
        err, OPIPE_E_INVALID,
        "schedule 'sequential' puts one stage on each rank: %u stages on %u ranks do not fit",
        request->n_stages, request->n_ranks);
  }
  io_layout->n_ranks = n;
  io_layout->n_stages = n;
  io_layout->n_replicas = 1;
  io_layout->n_slices = 1;
  io_layout->n_parts = 1;
  io_layout->versions = OPIPE_VERSIONS_ONE;
  io_layout->sync = OPIPE_SYNC_END;
  io_layout->in_flight = 1;
  io_layout->slice_lengths = NULL;
  if (n > io_layout->instance_room) {
    return fail(err, OPIPE_E_LIMIT,
                "schedule 'sequential' needs room for %u instances, %u were given", n,
                io_layout->instance_room);
  }
  for (uint32_t s = 0; s < n; ++s)
    io_layout->instance_rank[s] = s;
  return OPIPE_OK;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  (void)self;
  for (uint32_t rank = 0; rank < problem->layout->n_ranks; ++rank) {
    for (uint32_t m = 0; m < problem->n_microbatches; ++m) {
      const opipe_action forward = {
          .rank = rank, .stage = rank, .microbatch = m, .pass = OPIPE_PASS_FORWARD};
      const opipe_status status = emit(emit_ctx, &forward, 1, err);
      if (status < 0)
        return status;
    }
  }
  return OPIPE_OK;
}

static const opipe_schedule table = {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, list_options,
                                     lay_out, plan};

/* The schedule has no state: the instance is a token. */
static char token;

static opipe_status open_plugin(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  (void)host;
  (void)err;
  *out_self = (opipe_instance *)(void *)&token;
  return OPIPE_OK;
}

static void close_plugin(opipe_instance *self) {
  (void)self;
}

static const void *find_interface(opipe_instance *self, const char *id) {
  static const char known[] = OPIPE_SCHEDULE_ID;
  (void)self;
  for (uint32_t i = 0; id[i] == known[i]; ++i) {
    if (known[i] == '\0')
      return &table;
  }
  return NULL;
}

OPIPE_EXPORT extern const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_SCHEDULE, 0),
                                          "sequential",
                                          "0.1.0",
                                          "Apache-2.0",
                                          "one micro-batch after the other through all stages",
                                          open_plugin,
                                          close_plugin,
                                          find_interface};
