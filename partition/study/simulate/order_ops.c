/* SPDX-License-Identifier: Apache-2.0 */
/* From actions to operations: computes and their waits, reductions, steps. */
#include "partition/study/simulate/order_build.h"

/* ---- computes ---- */

typedef struct reader {
  opi_order_builder *b;
  const opi_do *a;
  uint32_t item;
  opipe_status status;
} reader;

/* Waits for an input from another rank. */
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
  if (b->links.message_at[m] == OPIPE_NONE) {
    r->status = opi_fail(b->err, OPIPE_E_INVALID, "a message that nobody sends: is it lowered?");
    return false;
  }
  r->status = opi_builder_op(b, OPI_PLAY_WAIT, b->links.message_at[m], r->item);
  return r->status == OPIPE_OK;
}

/* Waits for the inputs of a compute of that kind. */
static opipe_status wait_for_all(opi_order_builder *b, const opi_do *a, uint32_t kind,
                                 uint32_t item) {
  opi_do read = *a;
  reader r = {b, a, item, OPIPE_OK};
  read.kind = (uint8_t)kind;
  (void)opi_each_need(&b->prover.index, &read, wait_for, &r);
  return r.status;
}

/* The load whose times an instance has. */
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
  return opi_stage_sums(b->problem, stage) && b->how->stages[stage].gradient_bytes > 0;
}

/* Begins the sum of a micro-batch's gradients, after that of the micro-batch before. */
static opipe_status begin_update(opi_order_builder *b, const opi_do *a, uint32_t item) {
  uint32_t *update = &b->update[a->stage];
  if (*update != OPIPE_NONE)
    OPI_TRY(opi_builder_op(b, OPI_PLAY_JOIN, *update, item));
  OPI_TRY(opi_builder_collective(b, GROUP_REDUCE, a->stage, a->replica, a->slice, update));
  return opi_builder_op(b, OPI_PLAY_START, *update, item);
}

/* After every micro-batch: its sum over copies, waited for unless it runs in the background, and a
 * step. */
static opipe_status add_update(opi_order_builder *b, const opi_do *a, uint32_t item) {
  if (sums(b, a->stage)) {
    OPI_TRY(b->how->updates_beside ? begin_update(b, a, item)
                                   : opi_builder_join(b, GROUP_REDUCE, a, item));
  }
  const double ns = times_of(b, a->stage, a->replica)->step_ns;
  return ns > 0 ? opi_builder_work(b, (opi_play_work){ns, 0, 0}, item) : OPIPE_OK;
}

static opipe_status add_compute(opi_order_builder *b, uint32_t rank, uint32_t item) {
  enum { GATHERS = 1 << OPI_DO_GATHER_F | 1 << OPI_DO_GATHER_B };
  const opi_do *a = &b->list->items[item];
  const bool late = b->how->recomputes_late && b->recomputes[a->stage];
  const bool backward = a->kind == OPI_DO_B || a->kind == OPI_DO_I;
  /* a late recomputation has already waited for its backward's inputs; gathered inputs are there
   * too */
  const bool waited = (late && backward) || (opi_groups_around(b->list, rank, item) & GATHERS) != 0;
  if (!opi_is_second(b->list, b->list->rank_first[rank], item)) {
    OPI_TRY(opi_builder_drain(b, item));
    ++b->moves.n_computes;
  }
  if (!waited)
    OPI_TRY(wait_for_all(b, a, late && a->kind == OPI_DO_R ? OPI_DO_B : a->kind, item));
  OPI_TRY(opi_builder_arrive(b, item));
  OPI_TRY(opi_builder_work(b, work_of(b, a), item));
  const bool updates = b->how->updates_each && (a->kind == OPI_DO_B || a->kind == OPI_DO_W);
  return updates ? add_update(b, a, item) : OPIPE_OK;
}

/* Adds a collective around a pass; one in front of it needs the pass's inputs. */
static opipe_status add_group(opi_order_builder *b, uint32_t rank, uint32_t item) {
  static const uint32_t groups[] = {GROUP_SUM_F,    GROUP_SUM_B,     GROUP_GATHER_F,
                                    GROUP_GATHER_B, GROUP_SCATTER_F, GROUP_SCATTER_B};
  const opi_do *a = &b->list->items[item];
  const bool arrives = opi_do_group_is_before(a->kind) && !b->problem->sequence;
  const uint32_t pass = opi_group_pass(b->list, rank, item);
  uint32_t which = groups[a->kind - OPI_DO_SUM_F];
  if (arrives)
    which = a->kind == OPI_DO_GATHER_F ? GROUP_ARRIVE : GROUP_RETURN;
  if (pass != OPIPE_NONE && opi_do_group_is_before(a->kind)) {
    const opi_do *of = &b->list->items[pass];
    const bool late = b->how->recomputes_late && b->recomputes[a->stage];
    if (!late || of->kind == OPI_DO_F) /* else its recomputation has waited */
      OPI_TRY(wait_for_all(b, of, of->kind, item));
  }
  return arrives || b->how->stages[a->stage].tensor_sums > 0 ? opi_builder_join(b, which, a, item)
                                                             : OPIPE_OK;
}

/* ---- reductions and steps ---- */

/* The reduction, the same for all replicas of a stage in a mini-batch. */
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
  for (uint32_t r = 0; r < p->n_replicas; ++r) { /* the rank's last replica comes for all of them */
    if (opi_problem_rank(p, stage, r) == opi_problem_rank(p, stage, replica) && !came[r])
      return OPIPE_OK;
  }
  OPI_TRY(reduction_of(b, step, stage, GROUP_REDUCE, &c));
  OPI_TRY(opi_builder_op(b, OPI_PLAY_START, c, item));
  return b->how->waits_for_reductions ? opi_builder_op(b, OPI_PLAY_JOIN, c, item) : OPIPE_OK;
}

/* The step waits for all sums of the rank's stages. */
static opipe_status join_all(opi_order_builder *b, uint32_t rank, uint32_t step, uint32_t item) {
  const opi_problem *p = b->problem;
  const uint32_t n = p->n_stages * p->n_replicas;
  for (uint32_t k = 0; k < n; ++k) {
    uint32_t c = 0;
    if (p->instance_rank[k] != rank || !b->reduces[(size_t)step * n + k] ||
        opi_builder_is_twin(p, k))
      continue;
    OPI_TRY(reduction_of(b, step, k / p->n_replicas, GROUP_REDUCE, &c));
    OPI_TRY(opi_builder_op(b, OPI_PLAY_JOIN, c, item));
  }
  return OPIPE_OK;
}

static opipe_status add_step(opi_order_builder *b, uint32_t rank, uint32_t step, uint32_t item) {
  const opi_problem *p = b->problem;
  double ns = 0;
  for (uint32_t k = 0; k < p->n_stages * p->n_replicas; ++k) {
    const uint32_t stage = k / p->n_replicas;
    if (p->instance_rank[k] == rank && !opi_builder_is_twin(p, k)) {
      const bool shards = p->sharded && sums(b, stage);
      ns += times_of(b, stage, k % p->n_replicas)->step_ns / (shards ? b->play->n_data : 1);
    }
  }
  OPI_TRY(join_all(b, rank, step, item));
  return opi_builder_work(b, (opi_play_work){ns, 0, 0}, item);
}

/* Gathers weights of which each member of a data group has stepped a part. */
static opipe_status add_gather(opi_order_builder *b, uint32_t step, const opi_do *a,
                               uint32_t item) {
  uint32_t c = 0;
  if (!sums(b, a->stage))
    return OPIPE_OK;
  OPI_TRY(reduction_of(b, step, a->stage, GROUP_GATHER, &c));
  OPI_TRY(opi_builder_op(b, OPI_PLAY_START, c, item));
  return opi_builder_op(b, OPI_PLAY_JOIN, c, item);
}

static opipe_status add_message(opi_order_builder *b, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  const uint32_t m = b->links.message_at[opi_message_of(&b->prover, item)];
  const bool sends = a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_SEND_B;
  if (!sends && b->play->posted_ahead)
    return OPIPE_OK;
  return m == OPIPE_NONE ? opi_fail(b->err, OPIPE_E_INVALID, "a receive without its send")
                         : opi_builder_op(b, sends ? OPI_PLAY_SEND : OPI_PLAY_POST, m, item);
}

opipe_status opi_builder_item(opi_order_builder *b, uint32_t rank, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  const uint32_t step = opi_step_of(&b->prover, item);
  const bool updates = !b->how->updates_each; /* else they belong to micro-batches */
  if (opi_do_is_compute(a->kind))
    return add_compute(b, rank, item);
  if (opi_do_is_message(a->kind))
    return add_message(b, item);
  if (opi_do_is_group(a->kind))
    return add_group(b, rank, item);
  switch (a->kind) {
    case OPI_DO_OFFLOAD:
    case OPI_DO_RELOAD:
      return opi_builder_move(b, item);
    case OPI_DO_REDUCE:
    case OPI_DO_SCATTER:
      return updates ? add_reduction(b, step, a->stage, a->replica, item) : OPIPE_OK;
    case OPI_DO_GATHER:
      return updates ? add_gather(b, step, a, item) : OPIPE_OK;
    case OPI_DO_STEP:
      return updates ? add_step(b, rank, step, item) : OPIPE_OK;
    default:
      return OPIPE_OK;
  }
}
