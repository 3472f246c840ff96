/* SPDX-License-Identifier: Apache-2.0 */
/* See lanes.h. */
#include "partition/plan/lanes.h"

#include "partition/plan/rules.h"

enum { IDLE = 0, DUE, UNDER_WAY, ENDING }; /* phases of a lane's first batch */

bool opi_rank_has_lane(const opi_decision *plan, uint32_t rank) {
  const opi_link *link = &plan->link;
  return plan->n_ranks > 1 && link->rule == OPI_RULE_GROUPED && link->queues &&
         (plan->devices[rank].flags & OPIPE_DEVICE_SYNCHRONOUS) == 0;
}

opipe_status opi_batch_lanes_open(uint32_t n_ranks, const bool *has,
                                  const opi_batch_lane_rules *rules, opi_clock *clock,
                                  uint64_t first_event, opi_arena *arena, opi_batch_lanes *out,
                                  opipe_error *err) {
  *out = (opi_batch_lanes){.rules = *rules,
                           .clock = clock,
                           .arena = arena,
                           .first_event = first_event,
                           .n_ranks = n_ranks};
  if (has == NULL)
    return OPIPE_OK;
  out->of = OPI_ARENA_ARRAY(arena, opi_batch_lane, n_ranks);
  out->has = opi_arena_copy(arena, has, n_ranks * sizeof *has);
  return out->of == NULL || out->has == NULL
             ? opi_fail_nomem(err, n_ranks * sizeof *out->of, "a clock")
             : OPIPE_OK;
}

void opi_batch_lanes_issue(opi_batch_lanes *l, uint32_t rank, uint64_t first, uint32_t n,
                           double now) {
  opi_batch_lane *lane = &l->of[rank];
  if (lane->first == lane->n)
    lane->first = lane->n = 0;
  if (!opi_arena_grow(l->arena, (void **)&lane->list, &lane->room, lane->n + 1,
                      sizeof *lane->list)) {
    l->failed = true;
    return;
  }
  lane->list[lane->n++] = (opi_lane_batch){first, n, now};
  opi_clock_wake(l->clock, l->n_ranks + rank, l->first_event + rank, now);
}

/* When all operations of the batch have arrived; the lane waits until that is known. */
static double end_of(const opi_batch_lanes *l, uint32_t actor, const opi_lane_batch *b,
                     double now) {
  double end = now;
  for (uint32_t i = 0; i < b->n; ++i) {
    const double at = l->rules.arrival(l->rules.ctx, actor, actor - l->n_ranks, b->first + i);
    if (at < 0)
      return at;
    end = at > end ? at : end;
  }
  return end;
}

double opi_batch_lanes_act(opi_batch_lanes *l, uint32_t actor, double now) {
  const uint32_t rank = actor - l->n_ranks;
  opi_batch_lane *lane = &l->of[rank];
  if (lane->first == lane->n)
    return opi_clock_wait(l->clock, actor, l->first_event + rank);
  const opi_lane_batch b = lane->list[lane->first];
  double until = now;
  switch (lane->phase) {
    case IDLE:
      lane->phase = DUE;
      return b.at > now ? b.at : now;
    case DUE:
      for (uint32_t i = 0; i < b.n; ++i)
        l->rules.begin(l->rules.ctx, rank, b.first + i, now);
      lane->phase = UNDER_WAY;
      return now;
    case UNDER_WAY:
      until = end_of(l, actor, &b, now);
      lane->phase = until < 0 ? UNDER_WAY : ENDING;
      return until;
    default:
      ++lane->first;
      lane->phase = IDLE;
      for (uint32_t i = 0; i < b.n; ++i)
        l->rules.end(l->rules.ctx, rank, b.first + i, now);
      return now;
  }
}
