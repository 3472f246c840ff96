/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over tensor groups. SUM notes that the rank has come; the collect starts as soon as the
 * rank's earlier ones have ended, and goes on between its other steps, so that nobody waits for a
 * rank that waits elsewhere. AWAIT waits until the sum has ended, and makes the device wait for its
 * values: not earlier, since what the rank queues meanwhile need not wait. They run for failed
 * requests, too: the other members need this one.
 */
#include <string.h>

#include "runtime/executor/ahead.h"
#include "runtime/executor/steps.h"

/* Records `ready` once for each collect: recorded again at every attempt, the event would never be
 * reached. */
static opipe_status make_ready(opi_rank *rank, opi_coming *c, opipe_error *err) {
  if (c->asked || c->meet->end->ready == NULL)
    return OPIPE_OK;
  c->asked = true;
  return OPI_ASK_RANK(rank, event_record, err, rank->queue, c->meet->end->ready);
}

/* Makes the rank's queue wait for values of collects before number `before`. */
static opipe_status wait_for(opi_rank *rank, opi_group_end *end, uint64_t before,
                             opipe_error *err) {
  for (uint32_t i = 0; i < OPI_COUNT(end->done); ++i) {
    if (end->due[i] == 0 || end->due[i] > before)
      continue;
    OPI_TRY(OPI_ASK_RANK(rank, event_wait, err, rank->queue, end->done[i]));
    end->due[i] = 0;
  }
  return OPIPE_OK;
}

static opipe_status give(opi_rank *rank, opi_coming *c, opipe_error *err) {
  opi_group_end *end = c->meet->end;
  opipe_collect what = c->meet->calls[c->call];
  what.ready = end->ready;
  what.done = end->done[end->round % OPI_COUNT(end->done)];
  OPI_TRY(make_ready(rank, c, err));
  if (end->round >= OPI_COUNT(end->done)) /* the event is recorded again */
    OPI_TRY(wait_for(rank, end, end->round - OPI_COUNT(end->done) + 1, err));
  const opipe_status status =
      OPI_POLL_WIRE(rank->setup, collect, err, end->collective, end->round, &what);
  c->given = status == OPIPE_OK;
  return status;
}

static void end_call(opi_coming *c) {
  opi_group_end *end = c->meet->end;
  const uint32_t at = end->round % OPI_COUNT(end->done);
  ++end->round;
  end->due[at] = end->done[at] == NULL ? 0 : end->round;
  ++c->call;
  c->meet->over = end->round;
  c->asked = c->given = false;
}

/* Carries on with the coming's collects. OPIPE_PENDING: others are awaited. */
static opipe_status carry_on(opi_rank *rank, opi_coming *c, opipe_error *err) {
  while (c->call < c->meet->n_calls) {
    opipe_status status = c->given ? OPIPE_OK : give(rank, c, err);
    if (status == OPIPE_OK) {
      status = OPI_POLL_WIRE(rank->setup, collect_test, err, c->meet->end->collective,
                             c->meet->end->round);
    }
    if (status != OPIPE_OK)
      return status;
    end_call(c);
  }
  return OPIPE_OK;
}

opipe_status opi_meets_carry_on(opi_rank *rank, opipe_error *err) {
  opi_comings *all = opi_comings_of(rank);
  opipe_status status = OPIPE_OK;
  while (all->n != 0 && status == OPIPE_OK) {
    opi_coming *c = &all->list[all->first];
    status = carry_on(rank, c, err);
    if (status != OPIPE_OK)
      break;
    opi_ran_at(opi_compiled_at(rank), rank->index, c->step)->span.end_ns = opi_clock_ns();
    all->first = (all->first + 1) % all->room;
    --all->n;
    opi_count_on(&rank->worker->n_moves);
  }
  /* An asynchronous device has no doorbell. */
  rank->worker->polls = rank->worker->polls || (all->n != 0 && rank->worker->ahead != NULL);
  return status < 0 ? status : OPIPE_OK;
}

opipe_status opi_step_sum(opi_rank *rank, const opi_step *step, uint32_t index, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_comings *all = opi_comings_of(rank);
  if (step->route == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_meets_move(rank, err));
  if (all->n == all->room || opi_queue_starts(rank))
    return OPIPE_PENDING;
  opi_meet *meet = opi_meet_at(t, step->route, rank->index);
  all->list[(all->first + all->n++) % all->room] = (opi_coming){.meet = meet, .step = index};
  *opi_ran_at(t, rank->index, index) =
      (opi_ran){{opi_clock_ns(), 0}, opi_step_request(rank, step)->order + 1};
  atomic_store(&meet->end->n_come, atomic_load(&meet->end->n_come) + 1);
  return opi_meets_move(rank, err);
}

bool opi_meets_start(const opi_rank *rank) {
  const opi_comings *all = opi_comings_of(rank);
  if (all->n != 1)
    return all->n != 0;
  const opi_coming *c = &all->list[all->first];
  return !c->given || c->call + 1 != c->meet->n_calls;
}

static bool is_coming(const opi_comings *all, const opi_meet *meet) {
  uint32_t i = 0;
  while (i < all->n && all->list[(all->first + i) % all->room].meet != meet)
    ++i;
  return i < all->n;
}

/* The sum may still lie in the queue: its memory is free for a receive once the device is there. */
static opipe_status note_queued(opi_rank *rank, opipe_error *err) {
  const opi_ahead_entry e = {.kind = OPI_AHEAD_DATA};
  return rank->worker->ahead == NULL ? OPIPE_OK : opi_ahead_push(rank, &e, err);
}

opipe_status opi_step_await(opi_rank *rank, const opi_step *step, opipe_error *err) {
  opi_comings *all = opi_comings_of(rank);
  if (step->route == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_meets_move(rank, err));
  opi_meet *meet = opi_meet_at(opi_compiled_at(rank), step->route, rank->index);
  if (is_coming(all, meet) || !opi_ahead_has_room(rank))
    return OPIPE_PENDING;
  OPI_TRY(wait_for(rank, meet->end, meet->over, err));
  return note_queued(rank, err);
}

/* How many sums has a member come to? UINT64_MAX: it is in another session. */
static uint64_t come_of(const opi_compiled *t, const opi_group_end *like, uint32_t rank) {
  for (uint32_t i = 0; i < t->meets.n_ends; ++i) {
    const opi_group_end *end = &t->meets.ends[i];
    if (t->meets.rank_of[i] == rank && end->n_ranks == like->n_ranks &&
        memcmp(end->ranks, like->ranks, end->n_ranks * sizeof *end->ranks) == 0)
      return atomic_load(&end->n_come);
  }
  return UINT64_MAX;
}

uint32_t opi_meet_awaits(const opi_rank *rank) {
  const opi_compiled *t = opi_compiled_at(rank);
  const opi_comings *all = opi_comings_of(rank);
  uint32_t elsewhere = OPIPE_NONE;
  if (all->n == 0)
    return OPIPE_NONE;
  const opi_group_end *end = all->list[all->first].meet->end;
  const uint64_t own = atomic_load(&end->n_come) - all->n + 1; /* of the first that is awaited */
  for (uint32_t m = 0; m < end->n_ranks; ++m) {
    const uint64_t come = come_of(t, end, end->ranks[m]);
    if (come < own)
      return end->ranks[m];
    if (come == UINT64_MAX)
      elsewhere = end->ranks[m];
  }
  return elsewhere;
}
