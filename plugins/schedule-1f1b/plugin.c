/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "1f1b": one forward, one backward (PipeDream-Flush; DAPPLE, Fan et al., section 3.1).
 *
 * One stage per rank. Stage i of S does K_i forwards, then a backward and a forward in turn until
 * the forwards run out, then the remaining backwards; micro-batches in rising order both ways. K_i
 * is the most that the stage keeps activations of:
 *   policy pa                S - i          every hop of a message lengthens the steady period
 *   policy pb, or eager=1    2(S - i) - 1   hides hops of up to half of a forward and a backward
 * and never more than `depth`, than the rank's memory takes (D_mem), than the stage before has (or
 * the two would wait for each other), than there are micro-batches. The makespan with equal stages
 * and free messages is (M + S - 1)(F + B) under both policies.
 */
#include <opipe/orders.h>

enum { DEPTH_MOST = 1 << 24 };

static const opipe_schedule_option options[] = {
    {"policy", "pa|pb", "pa", "forwards before the first backward: S - i, or 2(S - i) - 1", 0, 0,
     's', 0},
    {"eager", NULL, "0", "1: eager 1F1B, the warm-up of policy pb", 0, 1, 'i', 0},
    {"depth", NULL, NULL, "most micro-batches that a stage keeps activations of", 1, DEPTH_MOST,
     'i', 0},
};

typedef struct warm_up {
  uint32_t eager;
  uint32_t depth; /* UINT32_MAX: no bound */
} warm_up;

static opipe_status read_settings(const opipe_schedule_setting *settings, uint32_t n, warm_up *out,
                                  opipe_error *err) {
  const char *policy = opipe_setting_find(settings, n, "policy");
  const bool pa = policy != NULL && strcmp(policy, "pa") == 0;
  const bool pb = policy != NULL && strcmp(policy, "pb") == 0;
  opipe_status status = opipe_setting_int(settings, n, "eager", 0, 1, pb, &out->eager, err);
  if (status >= 0)
    status = opipe_setting_int(settings, n, "depth", 1, DEPTH_MOST, UINT32_MAX, &out->depth, err);
  if (status >= 0 && ((pa && out->eager == 1) || (pb && out->eager == 0))) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule '1f1b': policy=%s and eager=%u contradict each other", policy,
                      out->eager);
  }
  return status;
}

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  warm_up unused;
  (void)self;
  const opipe_status status = read_settings(request->settings, request->n_settings, &unused, err);
  return status < 0 ? status
                    : opipe_layout_chunks(request, io_layout, 1, OPIPE_PLACE_LOOP, "1f1b", err);
}

static uint32_t least(uint32_t a, uint64_t b) {
  return a < b ? a : (uint32_t)b;
}

/* *io_keep: at most as many micro-batches as the stage's rank has memory for. */
static opipe_status bound_by_memory(const opipe_schedule_problem *problem, uint32_t stage,
                                    uint32_t *io_keep, opipe_error *err) {
  const uint32_t rank = problem->layout->instance_rank[stage];
  const uint64_t stash = problem->stash_bytes[stage];
  const uint64_t room = problem->rank_memory_bytes[rank];
  if (stash == 0 || room == UINT64_MAX)
    return OPIPE_OK;
  if (room < stash) {
    return opipe_fail(err, OPIPE_E_LIMIT,
                      "schedule '1f1b': stage %u keeps %llu bytes of one micro-batch, rank %u has "
                      "%llu bytes left for that",
                      stage, (unsigned long long)stash, rank, (unsigned long long)room);
  }
  *io_keep = least(*io_keep, room / stash);
  return OPIPE_OK;
}

static opipe_status order_stage(const opipe_schedule_problem *problem, uint32_t stage,
                                uint32_t keep, opipe_emit_fn emit, void *emit_ctx,
                                opipe_error *err) {
  const uint32_t n = problem->n_microbatches;
  opipe_status status = OPIPE_OK;
  for (uint32_t back = 0, ahead = 0; back < n && status >= 0; ++back) {
    for (; ahead < n && ahead - back < keep && status >= 0; ++ahead) {
      status =
          opipe_emit_pass(problem, emit, emit_ctx, stage, ahead, 0, OPIPE_PASS_FORWARD, 0, err);
    }
    if (status >= 0) {
      status =
          opipe_emit_pass(problem, emit, emit_ctx, stage, back, 0, OPIPE_PASS_BACKWARD, 0, err);
    }
  }
  return status;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint32_t n = problem->layout->n_stages;
  warm_up w;
  (void)self;
  opipe_status status = read_settings(problem->settings, problem->n_settings, &w, err);
  if (status >= 0 && problem->mode == OPIPE_MODE_FORWARD)
    return opipe_emit_forwards(problem, 0, emit, emit_ctx, err);
  uint32_t keep = w.depth;
  for (uint32_t stage = 0; stage < n && status >= 0; ++stage) {
    const uint64_t after = n - stage - 1;
    keep = least(keep, w.eager == 1 ? 2 * after + 1 : after + 1);
    status = bound_by_memory(problem, stage, &keep, err);
    if (status >= 0)
      status = order_stage(problem, stage, keep, emit, emit_ctx, err);
  }
  return status;
}

OPIPE_SCHEDULE_TABLE(table, options, lay_out, plan);

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "1f1b", OPIPE_VERSION, "Apache-2.0",
                       "one forward, one backward; warm-ups and memory bound of DAPPLE",
                       OPIPE_SCHEDULE_ID, table);
