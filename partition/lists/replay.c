/* SPDX-License-Identifier: Apache-2.0 */
/* Replays exactly the lists that run, under the executor's own rules and the transport's, on the
 * clock (partition/plan/clock.h): the proof, untimed, and the times that plans predict. A rank's
 * steps are a fixed sequence, and every wait is for one end of a message that one other rank
 * brings. This is a Kahn network: one greedy replay decides for every interleaving whether it ends,
 * and gives the times of all. If it stops short, the chain of "waits for" is the cycle to report.
 * If messages are matched by order, two ranks that disagree on the order are an error too.
 *
 *   TAG, STREAM  posting a receive never waits; a send waits in the background for its receive
 *   EDGE, PAIR   posting a receive never waits; a send blocks the rank until its receive is posted
 *   BLOCKING     proof: sends and receives block the rank until the other end is there. Clock: an
 *                endpoint has one operation in progress; the rank waits in front of the next until
 *                that has arrived, and at a send until its receive is posted
 *   GROUPED      proof: as BLOCKING. Lists that pass with one operation after the other also pass
 *                if a batch starts together, as no operation starts later. Clock, asynchronous
 *                devices: a rank comes to a batch and goes on, its lane (lanes.h) does the batches
 *                one after the other; others: as BLOCKING, with a batch as one operation, in which
 *                sends do not block
 *
 * Beyond the proof's waits, the clock only waits for operations in progress to arrive: a proven
 * list ends by the clock too.
 *
 * Sums over ranks are meetings of their groups (meetings.h): a SUM or REDUCE comes to one, an AWAIT
 * or UPDATE waits for it. Under GROUPED the proof waits at the SUM or REDUCE itself: a rank's
 * messages and sums of all groups are one queue, as a device's communicators need it. A training
 * step is a barrier: no rank proceeds before all have reached their update. Double-buffered ranks
 * that step alone wait for those with which they share a weight.
 */
#include "partition/lists/replaying.h"

static const double NEVER = -1.0;

/* The clock's event for an end of a message, or for its arrival. */
static uint64_t event_of(const opi_replay *p, const opi_ends *e, uint32_t end) {
  return (uint64_t)(e - p->ends) * ENDS + end;
}

static void happen(opi_replay *p, opi_ends *e, uint32_t end, double at) {
  e->at[end] = at;
  opi_clock_happen(&p->clock, event_of(p, e, end), at);
}

/* Makes the rank wait for it. */
static bool await(opi_replay *p, uint32_t rank, const opi_ends *e, uint32_t end) {
  (void)opi_clock_wait(&p->clock, rank, event_of(p, e, end));
  return false;
}

/* Starts the message if both ends are there. */
static void meet(opi_replay *p, const opi_step *step, opi_ends *e) {
  const opi_list_message *m = &p->lists->messages[step->route];
  const opi_link *link = &p->plan->whole->link;
  if (e->at[ARRIVED] >= 0 || e->at[POSTED] < 0 || e->at[SENT] < 0)
    return;
  const uint64_t n_bytes = m->route == OPI_ROUTE_CREDIT ? 0 : p->cut->routes[m->route].n_bytes;
  const double at = e->at[SENT] > e->at[POSTED] ? e->at[SENT] : e->at[POSTED];
  happen(p, e, ARRIVED, p->timed ? opi_link_pass(link, at, n_bytes, &p->link_free[m->stream]) : at);
}

/* Notes that the end of a message is there, which others may await. */
static void arrive(opi_replay *p, uint32_t item, const opi_step *step, double now) {
  opi_ends *e = opi_replay_ends_of(p, item, step);
  const uint32_t end = step->kind == OPI_ACT_POST ? POSTED : SENT;
  if (e == NULL)
    return;
  if (e->at[end] < 0)
    happen(p, e, end, now);
  meet(p, step, e);
}

/* The message's end, or its arrival, that a step waits for. */
static uint32_t wanted(const opi_replay *p, uint32_t rank, const opi_step *step) {
  switch (step->kind) {
    case OPI_ACT_POST:
      return p->meets ? SENT : NOTHING;
    case OPI_ACT_SEND:
      return p->rule <= OPI_RULE_STREAM ? NOTHING : POSTED;
    case OPI_ACT_RESERVE:
      return POSTED;
    case OPI_ACT_RECV:
      return opi_batch_lanes_has(&p->lanes, rank) ? RECEIVED : ARRIVED;
    default: /* DRAIN */
      return opi_batch_lanes_has(&p->lanes, rank) ? LEFT : ARRIVED;
  }
}

/* Whether it is there; then the rank's time is at least its time. */
static bool take(opi_replay *p, uint32_t rank, const opi_ends *e, uint32_t end) {
  if (e->at[end] < 0)
    return await(p, rank, e, end);
  p->now[rank] = e->at[end] > p->now[rank] ? e->at[end] : p->now[rank];
  return true;
}

static double duration(const opi_replay *p, const opi_step *step) {
  double all = 0;
  for (uint32_t i = 0; i < OPI_PHASES && p->timed; ++i)
    all += opi_phase_ns(p->plan, p->cut, step->stage, step->pass, i);
  return all;
}

static void compute(opi_replay *p, uint32_t rank, const opi_step *step) {
  opi_replay_result *result = p->result;
  const bool wanted = result != NULL && result->start_ns != NULL && p->item[rank] == p->twice;
  if (wanted)
    result->start_ns[step->route] = p->now[rank];
  p->now[rank] += duration(p, step);
  if (wanted)
    result->end_ns[step->route] = p->now[rank];
}

static uint64_t first_update(const opi_replay *p) {
  return (uint64_t)(p->n_items + 1) * p->lists->n_messages * ENDS;
}

/* The rank is at its update. Returns whether its sums are met and its whole group is there. */
static bool update(opi_replay *p, uint32_t rank, const opi_step *step) {
  const size_t at = (size_t)p->item[rank] * p->plan->n_ranks + p->group[rank];
  if (!opi_meetings_await_gradients(&p->meetings, rank, opi_replay_batch_of(p, rank, step),
                                    &p->now[rank]))
    return false;
  double *last = &p->barrier[at];
  *last = p->now[rank] > *last ? p->now[rank] : *last;
  p->n_updates[at] += !p->updates[rank];
  p->updates[rank] = p->n_updates[at] < p->group_size[p->group[rank]];
  const uint64_t event = first_update(p) + at;
  if (p->updates[rank]) {
    (void)opi_clock_wait(&p->clock, rank, event);
    return false;
  }
  p->now[rank] = *last;
  opi_clock_happen(&p->clock, event, *last);
  return true;
}

/* By the clock, under BLOCKING and GROUPED: whether the operations in progress have arrived. */
static bool take_turn(opi_replay *p, uint32_t rank) {
  opi_under_way *u = &p->under_way[rank];
  bool all = true;
  for (uint32_t i = 0; i < u->n && all; ++i)
    all = take(p, rank, u->of[i], ARRIVED);
  u->n = all ? 0 : u->n;
  return all;
}

/* A receiver or sender asks for a message. Returns whether it is complete, with its batch. */
static bool is_through(opi_replay *p, uint32_t rank, const opi_ends *e) {
  const opi_under_way *u = &p->under_way[rank];
  bool found = false, all = true;
  for (uint32_t i = 0; i < u->n && u->is_batch; ++i)
    found = found || u->of[i] == e;
  for (uint32_t i = 0; i < u->n && found && all; ++i)
    all = take(p, rank, u->of[i], ARRIVED);
  return all;
}

static void begin_batch(opi_under_way *u, uint32_t end) {
  u->batch_end = end;
  u->begun = false;
}

/* The same; begins the end of a message if it may begin. Returns whether it did. */
static bool begin_end(opi_replay *p, uint32_t rank, const opi_step *step) {
  opi_under_way *u = &p->under_way[rank];
  const opi_ends *e = opi_replay_ends_of(p, p->item[rank], step);
  const bool batched = p->step[rank] < u->batch_end, sends = step->kind == OPI_ACT_SEND;
  if (e == NULL)
    return true;
  if (sends && !batched && e->at[POSTED] < 0)
    return await(p, rank, e, POSTED);
  const bool joins = (batched ? u->begun : u->open) && u->n < OPIPE_BATCH_MOST;
  if (!joins && !take_turn(p, rank))
    return false;
  if (sends && !batched)
    (void)take(p, rank, e, POSTED);
  u->of[u->n++] = e;
  u->begun = u->is_batch = batched;
  u->open = p->rule == OPI_RULE_GROUPED && !batched && !sends;
  arrive(p, p->item[rank], step, p->now[rank]);
  return true;
}

/* ---- lanes ---- */

static const opi_step *operation(const opi_replay *p, uint64_t op, opi_ends **out_ends) {
  const uint32_t item = (uint32_t)(op / p->lists->n_steps);
  const opi_step *step = &p->lists->steps[op % p->lists->n_steps];
  *out_ends = opi_replay_takes_part(p, item, step) ? opi_replay_ends_of(p, item, step) : NULL;
  return step;
}

static void begin_operation(void *ctx, uint32_t rank, uint64_t op, double now) {
  opi_replay *p = ctx;
  opi_ends *e = NULL;
  const opi_step *step = operation(p, op, &e);
  (void)rank;
  if (e != NULL)
    arrive(p, (uint32_t)(op / p->lists->n_steps), step, now);
}

static double arrival(void *ctx, uint32_t actor, uint32_t rank, uint64_t op) {
  opi_replay *p = ctx;
  opi_ends *e = NULL;
  (void)rank;
  (void)operation(p, op, &e);
  if (e != NULL && e->at[ARRIVED] < 0)
    return opi_clock_wait(&p->clock, actor, event_of(p, e, ARRIVED));
  return e == NULL ? 0 : e->at[ARRIVED];
}

static void end_operation(void *ctx, uint32_t rank, uint64_t op, double now) {
  opi_replay *p = ctx;
  opi_ends *e = NULL;
  const opi_step *step = operation(p, op, &e);
  (void)rank;
  if (e != NULL)
    happen(p, e, step->kind == OPI_ACT_POST ? RECEIVED : LEFT, now);
}

/* The rank comes to a batch, or to an operation that stands alone, and goes on. Returns the number
 * of its steps; 0: the step is none, or the rank has no lane. */
static uint32_t issue(opi_replay *p, uint32_t rank, const opi_step *step) {
  const uint32_t n = step->batch != 0 ? step->batch : opi_step_is_end(step);
  if (n != 0 && opi_batch_lanes_has(&p->lanes, rank)) {
    opi_batch_lanes_issue(&p->lanes, rank,
                          (uint64_t)p->item[rank] * p->lists->n_steps + p->step[rank], n,
                          p->now[rank]);
    return n;
  }
  return 0;
}

/* Finds the ranks with lanes; NULL: none has one. */
static opipe_status find_lanes(opi_replay *p, opi_arena *scratch, bool **out_has) {
  const uint32_t n = p->plan->n_ranks;
  bool any = false;
  *out_has = NULL;
  if (!p->timed || p->rule != OPI_RULE_GROUPED)
    return OPIPE_OK;
  bool *has = OPI_ARENA_ARRAY(scratch, bool, n);
  if (has == NULL)
    return opi_fail_nomem(p->err, n * sizeof *has, "a proof");
  for (uint32_t rank = 0; rank < n; ++rank) {
    has[rank] = opi_rank_has_lane(p->plan->whole, rank);
    any = any || has[rank];
  }
  *out_has = any ? has : NULL;
  return OPIPE_OK;
}

/* ---- steps ---- */

/* The rank comes to a sum, and in one queue waits for it. */
static bool come(opi_replay *p, uint32_t rank, const opi_step *step) {
  const uint32_t batch = opi_replay_batch_of(p, rank, step);
  if (!p->comes[rank])
    opi_meetings_come(&p->meetings, rank, batch, step->route, p->step[rank], p->now[rank]);
  const bool waits = p->one_queue && opi_meetings_has_come(&p->meetings, rank, batch, step->route);
  p->comes[rank] =
      waits && !opi_meetings_await(&p->meetings, rank, batch, step->route, &p->now[rank]);
  return !p->comes[rank];
}

/* Performs the step if it can happen. Returns whether it did. */
static bool advance(opi_replay *p, uint32_t rank, const opi_step *step) {
  const bool message = opi_step_is_end(step) || step->kind == OPI_ACT_RECV ||
                       step->kind == OPI_ACT_DRAIN || step->kind == OPI_ACT_RESERVE;
  if (step->kind == OPI_ACT_COMPUTE)
    compute(p, rank, step);
  if (step->kind == OPI_ACT_UPDATE)
    return update(p, rank, step);
  if (opi_step_moves(step))
    opi_moves_advance(&p->moves, rank, step, p->timed, &p->now[rank]);
  if (opi_step_is_sum(step))
    return come(p, rank, step);
  if (step->kind == OPI_ACT_AWAIT) {
    return opi_meetings_await(&p->meetings, rank, opi_replay_batch_of(p, rank, step), step->route,
                              &p->now[rank]);
  }
  if (!message)
    return true;
  if (step->kind == OPI_ACT_RECV)
    p->under_way[rank].open = false;
  if (opi_step_is_end(step) && p->meets && p->timed)
    return begin_end(p, rank, step);
  if ((step->kind == OPI_ACT_RECV || step->kind == OPI_ACT_DRAIN) &&
      !is_through(p, rank, opi_replay_ends_of(p, p->item[rank], step)))
    return false;
  if (opi_step_is_end(step))
    arrive(p, p->item[rank], step, p->now[rank]);
  const opi_ends *e = opi_replay_ends_of(p, p->item[rank], step);
  const uint32_t end = e == NULL ? NOTHING : wanted(p, rank, step);
  return end == NOTHING || take(p, rank, e, end);
}

/* The rank has reached `step`: it is done with the requests that end there. */
static void note_finish(opi_replay *p, uint32_t rank, uint32_t step) {
  const uint32_t n = p->lists->n_positions;
  const uint32_t *first = &p->lists->request_first[rank * n];
  uint32_t *k = &p->position[rank];
  for (; !p->plan->trains && *k < n && first[*k + 1] <= step; ++*k) {
    double *finish = &p->finish[p->item[rank] * n + *k];
    if (first[*k] != first[*k + 1] && p->now[rank] > *finish)
      *finish = p->now[rank];
  }
}

/* The rank has reached the end of its list and starts it again for the next item. */
static void end_item(opi_replay *p, uint32_t rank) {
  double *finish = &p->finish[p->item[rank]];
  p->step[rank] = p->lists->rank_first[rank];
  p->under_way[rank].batch_end = 0;
  p->position[rank] = 0;
  if (p->plan->trains && p->now[rank] > *finish)
    *finish = p->now[rank];
  ++p->item[rank];
}

/* The rank's next step on the clock. */
static double act(void *ctx, uint32_t rank, double now) {
  opi_replay *p = ctx;
  if (rank >= p->plan->n_ranks)
    return opi_batch_lanes_act(&p->lanes, rank, now);
  /* The rank's time is p->now[rank], which waiting raises. */
  if (p->item[rank] == p->n_items)
    return OPI_CLOCK_STANDS;
  if (p->step[rank] == p->lists->rank_first[rank + 1]) {
    end_item(p, rank);
    return p->now[rank];
  }
  const opi_step *step = &p->lists->steps[p->step[rank]];
  const uint32_t n = issue(p, rank, step);
  if (n != 0) {
    p->step[rank] += n;
    note_finish(p, rank, p->step[rank]);
    return p->now[rank];
  }
  if (step->batch != 0)
    begin_batch(&p->under_way[rank], p->step[rank] + step->batch);
  if (opi_replay_takes_part(p, p->item[rank], step) && !advance(p, rank, step))
    return OPI_CLOCK_STANDS;
  note_finish(p, rank, ++p->step[rank]);
  return p->now[rank];
}

/* ---- all of it ---- */

/* Posts a stream's receives from before its first request. */
static void post_first(opi_replay *p) {
  for (uint32_t i = 0; i < p->lists->n_steps && !p->plan->trains; ++i) {
    const opi_step *step = &p->lists->steps[i];
    if (step->kind == OPI_ACT_POST && step->lap > 0)
      p->ends[step->route].at[POSTED] = 0;
  }
}

/* Counts the ranks of each update's group. */
static opipe_status find_groups(opi_replay *p, opi_arena *scratch) {
  const opi_piece_plan *plan = p->plan;
  OPI_TRY(opi_update_groups(plan, p->cut, scratch, &p->group, p->err));
  p->group_size = OPI_ARENA_ARRAY(scratch, uint32_t, plan->n_ranks);
  if (p->group_size == NULL)
    return opi_fail_nomem(p->err, plan->n_ranks * sizeof *p->group_size, "a proof");
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank)
    p->group_size[p->group[rank]] += p->lists->rank_first[rank + 1] != p->lists->rank_first[rank];
  return OPIPE_OK;
}

static opipe_status prepare(opi_replay *p, opi_arena *scratch) {
  const opi_clock_rules rules = {act, NULL, p, OPI_CLOCK_TURNS};
  const opi_batch_lane_rules lane_rules = {begin_operation, arrival, end_operation, p};
  const uint32_t n_ranks = p->plan->n_ranks;
  bool *lanes = NULL;
  OPI_TRY(find_lanes(p, scratch, &lanes));
  OPI_TRY(opi_clock_open(n_ranks + opi_batch_lanes_actors(n_ranks, lanes), &rules, scratch,
                         &p->clock, p->err));
  p->now = p->clock.now;
  const size_t n = (size_t)(p->n_items + 1) * p->lists->n_messages;
  p->ends = OPI_ARENA_ARRAY(scratch, opi_ends, n);
  p->item = OPI_ARENA_ARRAY(scratch, uint32_t, n_ranks);
  p->step = OPI_ARENA_ARRAY(scratch, uint32_t, n_ranks);
  p->position = OPI_ARENA_ARRAY(scratch, uint32_t, n_ranks);
  p->link_free = OPI_ARENA_ARRAY(scratch, double, p->lists->n_streams);
  p->under_way = OPI_ARENA_ARRAY(scratch, opi_under_way, n_ranks);
  p->finish = OPI_ARENA_ARRAY(scratch, double, (size_t)p->n_items * p->lists->n_positions);
  p->barrier = OPI_ARENA_ARRAY(scratch, double, (size_t)p->n_items *n_ranks);
  p->n_updates = OPI_ARENA_ARRAY(scratch, uint32_t, (size_t)p->n_items * n_ranks);
  p->updates = OPI_ARENA_ARRAY(scratch, bool, n_ranks);
  p->comes = OPI_ARENA_ARRAY(scratch, bool, n_ranks);
  if (p->ends == NULL || p->item == NULL || p->step == NULL || p->position == NULL ||
      p->link_free == NULL || p->under_way == NULL || p->finish == NULL || p->barrier == NULL ||
      p->n_updates == NULL || p->updates == NULL || p->comes == NULL)
    return opi_fail_nomem(p->err, n * sizeof *p->ends, "a proof");
  for (size_t i = 0; i < n; ++i)
    p->ends[i] = (opi_ends){{NEVER, NEVER, NEVER, NEVER, NEVER}};
  for (uint32_t rank = 0; rank < n_ranks; ++rank)
    p->step[rank] = p->lists->rank_first[rank];
  post_first(p);
  const uint64_t first_meeting = first_update(p) + (uint64_t)p->n_items * n_ranks;
  OPI_TRY(opi_batch_lanes_open(n_ranks, lanes, &lane_rules, &p->clock,
                               first_meeting + (uint64_t)p->n_items * p->lists->n_meetings, scratch,
                               &p->lanes, p->err));
  OPI_TRY(opi_meetings_open(p->lists, p->n_items, &p->clock, first_meeting,
                            p->timed ? &p->plan->whole->link : NULL, scratch, &p->meetings,
                            p->err));
  OPI_TRY(opi_moves_clock_open(p->plan, p->lists, scratch, &p->moves, p->err));
  OPI_TRY(find_groups(p, scratch));
  return opi_replay_check_order(p, scratch);
}

/* Shifts times to the start of the body: after a prologue it is later than 0. */
static void shift_times(const opi_replay *p) {
  const opi_replay_result *result = p->result;
  double first = -1;
  if (result->start_ns == NULL || !p->twice)
    return;
  for (uint32_t a = 0; a < p->plan->n_actions; ++a)
    first = first < 0 || result->start_ns[a] < first ? result->start_ns[a] : first;
  for (uint32_t a = 0; a < p->plan->n_actions; ++a) {
    result->start_ns[a] -= first;
    result->end_ns[a] -= first;
  }
}

/* Measures the last half of the replay, in whole bodies; a double-buffered epilogue does not count.
 */
static void measure(opi_replay *p) {
  const uint32_t n = p->lists->n_positions;
  const uint32_t n_bodies = p->twice && p->n_items > 2 ? p->n_items - 1 : p->n_items;
  const uint32_t last = n_bodies * n - 1;
  const uint32_t from = n_bodies > 1 ? last - n_bodies / 2 * n : last / 2;
  p->result->request_ns = p->twice ? p->finish[p->n_items - 1] : p->finish[0];
  shift_times(p);
  p->result->interval_ns =
      last == 0 ? p->finish[0] : (p->finish[last] - p->finish[from]) / (last - from);
}

static opipe_status run_all(opi_replay *p, opi_arena *scratch) {
  OPI_TRY(prepare(p, scratch));
  OPI_TRY(opi_clock_run(&p->clock, p->err));
  if (p->meetings.failed || p->lanes.failed)
    return opi_fail_nomem(p->err, sizeof(opi_sum_entry), "a proof");
  OPI_TRY(opi_replay_stuck(p));
  if (p->result != NULL)
    measure(p);
  return OPIPE_OK;
}

opipe_status opi_lists_replay(const opi_piece_plan *plan, const opi_lists *lists,
                              const opi_cut *cut, uint32_t n_items,
                              const opipe_allocator *allocator, opi_replay_result *io_result,
                              opipe_error *err) {
  opi_replay p = {.plan = plan,
                  .lists = lists,
                  .cut = cut,
                  .n_items = n_items,
                  .rule = plan->n_ranks > 1 ? plan->whole->link.rule : OPI_RULE_TAG,
                  .twice = plan->whole->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED,
                  .timed = io_result != NULL,
                  .result = io_result,
                  .err = err};
  p.meets = p.rule == OPI_RULE_BLOCKING || p.rule == OPI_RULE_GROUPED;
  p.one_queue = p.rule == OPI_RULE_GROUPED && !p.timed;
  opi_arena scratch;
  opi_arena_init(&scratch, allocator, 0);
  const opipe_status status = run_all(&p, &scratch);
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_lists_prove(const opi_piece_plan *plan, const opi_lists *lists, const opi_cut *cut,
                             const opipe_allocator *allocator, opipe_error *err) {
  enum { MINI_BATCHES = 3 };
  const bool twice = plan->whole->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED;
  const uint32_t n_items = plan->trains && !twice ? 2 : MINI_BATCHES + (plan->trains ? 1u : 0u);
  if (twice) /* a prologue and an epilogue, as in an evaluation */
    OPI_TRY(opi_lists_replay(plan, lists, cut, 2, allocator, NULL, err));
  return opi_lists_replay(plan, lists, cut, n_items, allocator, NULL, err);
}
