/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "chimera": pipelines in both directions (Li and Hoefler, Chimera, section 3).
 *
 * D stages on D ranks, 2f pipelines, each with an instance of every stage: replica 2i is the i-th
 * down pipeline, stage s on rank (s + i D/f) mod D; replica 2i + 1 is its mirror image. Each takes
 * a share of the micro-batches, in blocks; where they do not come out even the down pipelines have
 * one more. D is even and f divides D / 2. More than D micro-batches (`concat`):
 *   direct    units of D follow each other
 *   doubling  units of 2 D: a forward slot takes two micro-batches, one after the other
 *   halving   units of D: each backward runs as two, along the batch (n_parts 2, for any number of
 *             micro-batches)
 * Forward form: the first down pipeline alone, as there is no backward to fill its gaps.
 */
#include "chimera.h"

enum { PIPELINES_MOST = 4096 };

static const opipe_schedule_option options[] = {
    {"pipelines", NULL, "2", "pipelines: 2 f, half of them in each direction", 2, PIPELINES_MOST,
     'i', 0},
    {"concat", "direct|doubling|halving", "direct", "how more than D micro-batches follow", 0, 0,
     's', 0},
    {"sync", "end|eager|eager-opt", "end", "when the replicas' gradients are summed", 0, 0, 's', 0},
};

static bool is(const char *value, const char *name) {
  return value != NULL && strcmp(value, name) == 0;
}

/* For `n_stages` stages; also fit for a layout's answer. */
static opipe_status read_settings(const opipe_schedule_setting *settings, uint32_t n,
                                  uint32_t n_stages, uint32_t n_microbatches, chimera *out,
                                  opipe_error *err) {
  const char *concat = opipe_setting_find(settings, n, "concat");
  const opipe_status status =
      opipe_setting_int(settings, n, "pipelines", 2, PIPELINES_MOST, 2, &out->n_pipelines, err);
  if (status < 0)
    return status;
  if (n_stages % 2 != 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule 'chimera' needs an even number of stages and ranks: %u is odd",
                      n_stages);
  }
  if (out->n_pipelines % 2 != 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule 'chimera': pipelines=%u, half of them in each direction, is odd",
                      out->n_pipelines);
  }
  if (n_stages % out->n_pipelines != 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule 'chimera': pipelines=%u, %u in each direction, which must divide "
                      "half the %u stages",
                      out->n_pipelines, out->n_pipelines / 2, n_stages);
  }
  out->n_stages = n_stages;
  out->n_microbatches = n_microbatches;
  out->n_parts = is(concat, "halving") ? 2 : 1;
  out->per_slot = is(concat, "doubling") && n_microbatches > n_stages ? 2 : 1;
  return OPIPE_OK;
}

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  const char *sync = opipe_setting_find(request->settings, request->n_settings, "sync");
  chimera c;
  (void)self;
  opipe_status status =
      opipe_layout_chunks(request, io_layout, 1, OPIPE_PLACE_LOOP, "chimera", err);
  if ((status < 0 && status != OPIPE_E_LIMIT) || request->mode == OPIPE_MODE_FORWARD)
    return status;
  status = read_settings(request->settings, request->n_settings, io_layout->n_stages,
                         request->n_microbatches, &c, err);
  if (status < 0)
    return status;
  const uint64_t n = (uint64_t)io_layout->n_stages * c.n_pipelines;
  io_layout->n_replicas = c.n_pipelines;
  io_layout->n_parts = c.n_parts;
  io_layout->sync = is(sync, "eager")       ? OPIPE_SYNC_EAGER
                    : is(sync, "eager-opt") ? OPIPE_SYNC_EAGER_OPT
                                            : OPIPE_SYNC_END;
  if (n > io_layout->instance_room) { /* the caller makes room and asks again */
    return opipe_fail(err, OPIPE_E_LIMIT,
                      "schedule 'chimera' needs room for %llu instances, %u were given",
                      (unsigned long long)n, io_layout->instance_room);
  }
  for (uint32_t i = 0; i < (uint32_t)n; ++i)
    io_layout->instance_rank[i] = chimera_rank(&c, i / c.n_pipelines, i % c.n_pipelines);
  return OPIPE_OK;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  chimera c;
  (void)self;
  if (problem->mode == OPIPE_MODE_FORWARD)
    return opipe_emit_forwards(problem, 0, emit, emit_ctx, err);
  const opipe_status status =
      read_settings(problem->settings, problem->n_settings, problem->layout->n_stages,
                    problem->n_microbatches, &c, err);
  return status < 0 ? status : chimera_emit(&c, emit, emit_ctx, err);
}

OPIPE_SCHEDULE_TABLE(table, options, lay_out, plan);

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "chimera", OPIPE_VERSION, "Apache-2.0",
                       "pipelines in both directions, 2 f replicas of each stage",
                       OPIPE_SCHEDULE_ID, table);
