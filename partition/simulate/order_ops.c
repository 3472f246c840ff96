/* SPDX-License-Identifier: Apache-2.0 */
/* From actions to operations: computes and what they wait for, reductions, steps. */
#include "partition/simulate/order_build.h"

/* ---- computes ---- */

typedef struct reader {
  opi_order_builder *b;
  const opi_do *a;
  uint32_t item;
  opipe_status status;
} reader;

/* Waits for what comes from another rank. */
static bool wait_for(void *ctx, const opi_do *a, const opi_need *need) {
  reader *r = ctx;
  opi_order_builder *b = r->b;
  const opi_problem *p = b->problem;
  if (need->edge == OPIPE_NONE || need->replica == OPIPE_NONE ||
      opi_problem_rank(p, need->stage, need->replica) == opi_problem_rank(p, a->stage, a->replica))
    return true;
  const bool forward = p->edges[need->edge].src == need->stage;
  const uint64_t m = opi_message_index(
      &b->prover, opi_step_of(&b->prover, r->item), need->edge, forward, a->microbatch, need->slice,
      need->part, forward ? need->replica : a->replica, forward ? a->replica : need->replica);
  if (b->message_at[m] == OPIPE_NONE) {
    r->status = opi_fail(b->err, OPIPE_E_INVALID, "a message that nobody sends: is it lowered?");
    return false;
  }
  r->status = opi_builder_op(b, OPI_PLAY_WAIT, b->message_at[m], r->item);
  if (r->status == OPIPE_OK && b->how->scattered && b->play->n_tensor > 1)
    r->status = opi_builder_join(b, forward ? GROUP_ARRIVE : GROUP_RETURN, a, r->item);
  return r->status == OPIPE_OK;
}

/* Whose times an instance takes. */
static const opi_stage_load *times_of(const opi_order_builder *b, uint32_t stage,
                                      uint32_t replica) {
  return b->how->instances == NULL
             ? &b->how->stages[stage]
             : &b->how->instances[(size_t)stage * b->problem->n_replicas + replica];
}

static opi_play_work work_of(const opi_order_builder *b, const opi_do *a) {
  const opi_stage_load *s = times_of(b, a->stage, a->replica);
  const double part = opi_compute_share(b->problem, b->n_tokens, a);
  const double time = b->how->slice_times == NULL ? part
                                                  : part / opi_builder_slice_share(b, a->slice) *
                                                        b->how->slice_times[a->slice];
  const bool again = b->recomputes[a->stage], train = b->problem->mode != OPIPE_MODE_FORWARD;
  const double kept = train ? (again ? s->input_bytes : s->stash_bytes) * part : 0;
  const double all = (again ? s->input_bytes + s->stash_bytes : s->stash_bytes) * part;
  switch (a->kind) {
    case OPI_DO_F:
      return (opi_play_work){s->forward_ns * time, kept, 0};
    case OPI_DO_R:
      return (opi_play_work){(s->recompute_ns > 0 ? s->recompute_ns : s->forward_ns) * time,
                             s->stash_bytes * part, 0};
    case OPI_DO_B:
      return (opi_play_work){(s->input_ns + s->weight_ns) * time, 0, all};
    case OPI_DO_I:
      return (opi_play_work){s->input_ns * time, 0, 0};
    default:
      return (opi_play_work){s->weight_ns * time, 0, all};
  }
}

static bool sums(const opi_order_builder *b, uint32_t stage) {
  uint32_t n = b->play->n_data;
  for (uint32_t r = 0; r < b->problem->n_replicas && n < 2; ++r)
    n += r > 0 && opi_problem_rank(b->problem, stage, r) != OPIPE_NONE;
  return n > 1 && b->how->stages[stage].gradient_bytes > 0;
}

/* After every micro-batch: its sum over copies, waited for, and a step. */
static opipe_status add_update(opi_order_builder *b, const opi_do *a, uint32_t item) {
  if (sums(b, a->stage))
    OPI_TRY(opi_builder_join(b, GROUP_REDUCE, a, item));
  const double ns = times_of(b, a->stage, a->replica)->step_ns;
  return ns > 0 ? opi_builder_work(b, (opi_play_work){ns, 0, 0}, item) : OPIPE_OK;
}

static opipe_status add_compute(opi_order_builder *b, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  const opi_stage_load *s = &b->how->stages[a->stage];
  const bool late = b->how->recomputes_late && b->recomputes[a->stage];
  opi_do read = *a; /* what a late recomputation waits for, its backward has then */
  read.kind = late && a->kind == OPI_DO_R ? OPI_DO_B : a->kind;
  reader r = {b, a, item, OPIPE_OK};
  if (!late || (a->kind != OPI_DO_B && a->kind != OPI_DO_I))
    (void)opi_each_need(&b->prover.index, &read, wait_for, &r);
  OPI_TRY(r.status);
  OPI_TRY(opi_builder_work(b, work_of(b, a), item));
  const bool forward = a->kind == OPI_DO_F || a->kind == OPI_DO_R;
  if (b->play->n_tensor > 1 && s->tensor_sums > 0 && a->kind != OPI_DO_W)
    OPI_TRY(opi_builder_join(b, forward ? GROUP_FORWARD : GROUP_BACKWARD, a, item));
  const bool updates = b->how->updates_each && (a->kind == OPI_DO_B || a->kind == OPI_DO_W);
  return updates ? add_update(b, a, item) : OPIPE_OK;
}

/* ---- reductions and steps ---- */

/* The same for all replicas of a stage, in a mini-batch. */
static opipe_status reduction_of(opi_order_builder *b, uint32_t step, uint32_t stage,
                                 uint32_t which, uint32_t *out_collective) {
  uint32_t *at = &b->reduction[((size_t)step * b->problem->n_stages + stage) * 2 + which];
  if (*at == OPIPE_NONE)
    OPI_TRY(opi_builder_collective(b, which, stage, 0, 0, at));
  *out_collective = *at;
  return OPIPE_OK;
}

static opipe_status add_reduction(opi_order_builder *b, uint32_t step, uint32_t stage,
                                  uint32_t replica, uint32_t item) {
  const opi_problem *p = b->problem;
  bool *came = &b->reduces[((size_t)step * p->n_stages + stage) * p->n_replicas];
  uint32_t c = 0;
  if (!sums(b, stage))
    return OPIPE_OK;
  came[replica] = true;
  for (uint32_t r = 0; r < p->n_replicas; ++r) { /* the rank's last one comes for all of them */
    if (opi_problem_rank(p, stage, r) == opi_problem_rank(p, stage, replica) && !came[r])
      return OPIPE_OK;
  }
  OPI_TRY(reduction_of(b, step, stage, GROUP_REDUCE, &c));
  OPI_TRY(opi_builder_op(b, OPI_PLAY_START, c, item));
  return b->how->waits_for_reductions ? opi_builder_op(b, OPI_PLAY_JOIN, c, item) : OPIPE_OK;
}

/* Starts the reductions that the order does not state (those over copies of all of it), waits for
 * all of them; or starts and waits for what gathers weights. */
static opipe_status join_all(opi_order_builder *b, uint32_t rank, uint32_t step, uint32_t which,
                             uint32_t item) {
  const opi_problem *p = b->problem;
  const uint32_t n = p->n_stages * p->n_replicas;
  for (uint32_t pass = 0; pass < 2; ++pass) {
    for (uint32_t k = 0; k < n; ++k) {
      uint32_t c = 0;
      if (p->instance_rank[k] != rank || !sums(b, k / p->n_replicas) || opi_builder_is_twin(p, k))
        continue;
      const bool started = which == GROUP_REDUCE && b->reduces[(size_t)step * n + k];
      OPI_TRY(reduction_of(b, step, k / p->n_replicas, which, &c));
      if (pass == 1)
        OPI_TRY(opi_builder_op(b, OPI_PLAY_JOIN, c, item));
      else if (!started)
        OPI_TRY(opi_builder_op(b, OPI_PLAY_START, c, item));
    }
  }
  return OPIPE_OK;
}

static opipe_status add_step(opi_order_builder *b, uint32_t rank, uint32_t step, uint32_t item) {
  const opi_problem *p = b->problem;
  double ns = 0;
  for (uint32_t k = 0; k < p->n_stages * p->n_replicas; ++k) {
    const uint32_t stage = k / p->n_replicas;
    if (p->instance_rank[k] == rank && !opi_builder_is_twin(p, k)) {
      const bool shards = b->how->sharded && sums(b, stage);
      ns += times_of(b, stage, k % p->n_replicas)->step_ns / (shards ? b->play->n_data : 1);
    }
  }
  OPI_TRY(join_all(b, rank, step, GROUP_REDUCE, item));
  OPI_TRY(opi_builder_work(b, (opi_play_work){ns, 0, 0}, item));
  return b->how->sharded ? join_all(b, rank, step, GROUP_GATHER, item) : OPIPE_OK;
}

opipe_status opi_builder_item(opi_order_builder *b, uint32_t rank, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  const uint32_t step = opi_step_of(&b->prover, item);
  if (opi_do_is_compute(a->kind))
    return add_compute(b, item);
  if (opi_do_is_message(a->kind)) {
    const uint32_t m = b->message_at[opi_message_of(&b->prover, item)];
    const bool sends = a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_SEND_B;
    if (!sends && b->play->posted_ahead)
      return OPIPE_OK;
    return m == OPIPE_NONE ? opi_fail(b->err, OPIPE_E_INVALID, "a receive without its send")
                           : opi_builder_op(b, sends ? OPI_PLAY_SEND : OPI_PLAY_POST, m, item);
  }
  if (a->kind == OPI_DO_REDUCE && b->how->updates_each)
    return OPIPE_OK;
  if (a->kind == OPI_DO_REDUCE)
    return add_reduction(b, step, a->stage, a->replica, item);
  return a->kind == OPI_DO_STEP && !b->how->updates_each ? add_step(b, rank, step, item) : OPIPE_OK;
}
