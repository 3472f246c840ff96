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
 *                if a batch starts together, as no operation starts later. Clock: as BLOCKING, with
 *                a batch as one operation, in which sends do not block
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
#include <stdio.h>

#include "partition/lists/meetings.h"
#include "partition/lists/offloads.h"
#include "partition/plan/rules.h"

/* Times at which a message's ends, and the message itself, were there; NEVER before. */
enum { POSTED, SENT, ARRIVED, ENDS, NOTHING = ENDS };
typedef struct ends {
  double at[ENDS];
} ends;
static const double NEVER = -1.0;

/* Operations in progress at a rank's endpoint, under BLOCKING and GROUPED. */
typedef struct under_way {
  const ends *of[OPIPE_BATCH_MOST];
  uint32_t n;
  uint32_t batch_end; /* the current batch ends before this step */
  bool begun;         /* the batch has an operation in progress */
  bool is_batch;      /* its operations complete together */
  bool open;          /* receives that join the next operation: no end has asked for them yet */
} under_way;

typedef struct replay {
  const opi_piece_plan *plan;
  const opi_lists *lists;
  const opi_cut *cut;
  ends *ends;            /* [(n_items + 1) * n_messages] by item and message */
  uint32_t *item, *step; /* [n_ranks] current item and step of each rank */
  uint32_t *position;    /* [n_ranks] request within the item */
  opi_clock clock;       /* events: ends and arrivals of messages, groups at their updates, sums */
  double *now;           /* [n_ranks] the clock's */
  double *link_free;     /* [n_streams] when the last message has left the sender */
  under_way *under_way;  /* [n_ranks] */
  double *finish;        /* [n_items * n_positions] when the last rank finished a request or,
                            training, an item */
  double *barrier;       /* [n_items * n_ranks] when the last rank of a group reached the update */
  uint32_t *n_updates;   /* [n_items * n_ranks] ranks of a group that reached the update */
  uint32_t *group;       /* [n_ranks] ranks that wait for each other at the update, named by the
                            lowest */
  uint32_t *group_size;  /* [n_ranks] */
  bool *updates;         /* [n_ranks] it has updated in its item */
  bool *comes;           /* [n_ranks] its step has come to a sum, and waits there */
  opi_meetings meetings; /* sums over ranks */
  opi_moves_clock moves; /* stashes on their way to the host and back: each rank's own affair */
  uint32_t n_items, rule;
  bool twice; /* weights in two versions */
  bool timed;
  bool meets;     /* rules BLOCKING, GROUPED */
  bool one_queue; /* sums are in it */
  opi_replay_result *result;
  opipe_error *err;
} replay;

/* Whether the step runs in this item of a double-buffered run: prologue, body or epilogue. */
static bool takes_part(const replay *p, uint32_t item, const opi_step *step) {
  if (!p->twice)
    return true;
  if (item == 0)
    return step->next == 1;
  return item + 1 < p->n_items || step->next == 0;
}

/* The mini-batch, or body, to which a step's sums belong: counted from the first. */
static uint32_t batch_of(const replay *p, uint32_t rank, const opi_step *step) {
  return p->twice ? p->item[rank] + step->next - 1 : p->item[rank];
}

/* NULL: the message is of before the first item or, double-buffered, of a mini-batch after the
 * last. */
static ends *ends_of(const replay *p, uint32_t item, const opi_step *step) {
  const int64_t own = p->twice ? (int64_t)item + step->next - 1 : (int64_t)item;
  const int64_t batch = own + step->lap;
  if (batch < 0 || (p->twice && batch + 1 >= (int64_t)p->n_items))
    return NULL;
  return &p->ends[(size_t)batch * p->lists->n_messages + step->route];
}

/* The clock's event for an end of a message, or for its arrival. */
static uint64_t event_of(const replay *p, const ends *e, uint32_t end) {
  return (uint64_t)(e - p->ends) * ENDS + end;
}

static void happen(replay *p, ends *e, uint32_t end, double at) {
  e->at[end] = at;
  opi_clock_happen(&p->clock, event_of(p, e, end), at);
}

/* Makes the rank wait for it. */
static bool await(replay *p, uint32_t rank, const ends *e, uint32_t end) {
  (void)opi_clock_wait(&p->clock, rank, event_of(p, e, end));
  return false;
}

static bool is_end(const opi_step *step) {
  return step->kind == OPI_ACT_POST || step->kind == OPI_ACT_SEND;
}

/* Starts the message if both ends are there. */
static void meet(replay *p, const opi_step *step, ends *e) {
  const opi_list_message *m = &p->lists->messages[step->route];
  const opi_link *link = &p->plan->whole->link;
  if (e->at[ARRIVED] >= 0 || e->at[POSTED] < 0 || e->at[SENT] < 0)
    return;
  const uint64_t n_bytes = m->route == OPI_ROUTE_CREDIT ? 0 : p->cut->routes[m->route].n_bytes;
  const double at = e->at[SENT] > e->at[POSTED] ? e->at[SENT] : e->at[POSTED];
  happen(p, e, ARRIVED, p->timed ? opi_link_pass(link, at, n_bytes, &p->link_free[m->stream]) : at);
}

/* Notes that the rank has reached the end of a message, which others may await. */
static void arrive(replay *p, uint32_t rank, const opi_step *step) {
  ends *e = ends_of(p, p->item[rank], step);
  const uint32_t end = step->kind == OPI_ACT_POST ? POSTED : SENT;
  if (e == NULL)
    return;
  if (e->at[end] < 0)
    happen(p, e, end, p->now[rank]);
  meet(p, step, e);
}

/* The message's end, or its arrival, that a step waits for. */
static uint32_t wanted(const replay *p, const opi_step *step) {
  switch (step->kind) {
    case OPI_ACT_POST:
      return p->meets ? SENT : NOTHING;
    case OPI_ACT_SEND:
      return p->rule <= OPI_RULE_STREAM ? NOTHING : POSTED;
    case OPI_ACT_RESERVE:
      return POSTED;
    default: /* RECV, DRAIN */
      return ARRIVED;
  }
}

/* Whether it is there; then the rank's time is at least its time. */
static bool take(replay *p, uint32_t rank, const ends *e, uint32_t end) {
  if (e->at[end] < 0)
    return await(p, rank, e, end);
  p->now[rank] = e->at[end] > p->now[rank] ? e->at[end] : p->now[rank];
  return true;
}

static double duration(const replay *p, const opi_step *step) {
  double all = 0;
  for (uint32_t i = 0; i < OPI_PHASES && p->timed; ++i)
    all += opi_phase_ns(p->plan, p->cut, step->stage, step->pass, i);
  return all;
}

static void compute(replay *p, uint32_t rank, const opi_step *step) {
  opi_replay_result *result = p->result;
  const bool wanted = result != NULL && result->start_ns != NULL && p->item[rank] == p->twice;
  if (wanted)
    result->start_ns[step->route] = p->now[rank];
  p->now[rank] += duration(p, step);
  if (wanted)
    result->end_ns[step->route] = p->now[rank];
}

static uint64_t first_update(const replay *p) {
  return (uint64_t)(p->n_items + 1) * p->lists->n_messages * ENDS;
}

/* The rank is at its update. Returns whether its sums are met and its whole group is there. */
static bool update(replay *p, uint32_t rank, const opi_step *step) {
  const size_t at = (size_t)p->item[rank] * p->plan->n_ranks + p->group[rank];
  if (!opi_meetings_await_gradients(&p->meetings, rank, batch_of(p, rank, step), &p->now[rank]))
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
static bool take_turn(replay *p, uint32_t rank) {
  under_way *u = &p->under_way[rank];
  bool all = true;
  for (uint32_t i = 0; i < u->n && all; ++i)
    all = take(p, rank, u->of[i], ARRIVED);
  u->n = all ? 0 : u->n;
  return all;
}

/* A receiver or sender asks for a message. Returns whether it is complete, with its batch. */
static bool is_through(replay *p, uint32_t rank, const ends *e) {
  const under_way *u = &p->under_way[rank];
  bool found = false, all = true;
  for (uint32_t i = 0; i < u->n && u->is_batch; ++i)
    found = found || u->of[i] == e;
  for (uint32_t i = 0; i < u->n && found && all; ++i)
    all = take(p, rank, u->of[i], ARRIVED);
  return all;
}

static void begin_batch(under_way *u, uint32_t end) {
  u->batch_end = end;
  u->begun = false;
}

/* The same; begins the end of a message if it may begin. Returns whether it did. */
static bool begin_end(replay *p, uint32_t rank, const opi_step *step) {
  under_way *u = &p->under_way[rank];
  const ends *e = ends_of(p, p->item[rank], step);
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
  arrive(p, rank, step);
  return true;
}

static bool is_sum(const opi_step *step) {
  return step->kind == OPI_ACT_REDUCE || step->kind == OPI_ACT_SUM;
}

/* The rank comes to a sum, and in one queue waits for it. */
static bool come(replay *p, uint32_t rank, const opi_step *step) {
  const uint32_t batch = batch_of(p, rank, step);
  if (!p->comes[rank])
    opi_meetings_come(&p->meetings, rank, batch, step->route, p->step[rank], p->now[rank]);
  const bool waits = p->one_queue && opi_meetings_has_come(&p->meetings, rank, batch, step->route);
  p->comes[rank] =
      waits && !opi_meetings_await(&p->meetings, rank, batch, step->route, &p->now[rank]);
  return !p->comes[rank];
}

/* Performs the step if it can happen. Returns whether it did. */
static bool advance(replay *p, uint32_t rank, const opi_step *step) {
  const bool message = is_end(step) || step->kind == OPI_ACT_RECV || step->kind == OPI_ACT_DRAIN ||
                       step->kind == OPI_ACT_RESERVE;
  if (step->kind == OPI_ACT_COMPUTE)
    compute(p, rank, step);
  if (step->kind == OPI_ACT_UPDATE)
    return update(p, rank, step);
  if (opi_step_moves(step))
    opi_moves_advance(&p->moves, rank, step, p->timed, &p->now[rank]);
  if (is_sum(step))
    return come(p, rank, step);
  if (step->kind == OPI_ACT_AWAIT) {
    return opi_meetings_await(&p->meetings, rank, batch_of(p, rank, step), step->route,
                              &p->now[rank]);
  }
  if (!message)
    return true;
  if (step->kind == OPI_ACT_RECV)
    p->under_way[rank].open = false;
  if (is_end(step) && p->meets && p->timed)
    return begin_end(p, rank, step);
  if ((step->kind == OPI_ACT_RECV || step->kind == OPI_ACT_DRAIN) &&
      !is_through(p, rank, ends_of(p, p->item[rank], step)))
    return false;
  if (is_end(step))
    arrive(p, rank, step);
  const ends *e = ends_of(p, p->item[rank], step);
  const uint32_t end = e == NULL ? NOTHING : wanted(p, step);
  return end == NOTHING || take(p, rank, e, end);
}

/* The rank has reached `step`: it is done with the requests that end there. */
static void note_finish(replay *p, uint32_t rank, uint32_t step) {
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
static void end_item(replay *p, uint32_t rank) {
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
  replay *p = ctx;
  (void)now; /* p->now[rank], which waiting raises */
  if (p->item[rank] == p->n_items)
    return OPI_CLOCK_STANDS;
  if (p->step[rank] == p->lists->rank_first[rank + 1]) {
    end_item(p, rank);
    return p->now[rank];
  }
  const opi_step *step = &p->lists->steps[p->step[rank]];
  if (step->batch != 0)
    begin_batch(&p->under_way[rank], p->step[rank] + step->batch);
  if (takes_part(p, p->item[rank], step) && !advance(p, rank, step))
    return OPI_CLOCK_STANDS;
  note_finish(p, rank, ++p->step[rank]);
  return p->now[rank];
}

/* ---- reports of deadlocks ---- */

static const char *tensor_of(const replay *p, uint32_t message) {
  const opi_list_message *m = &p->lists->messages[message];
  return m->route == OPI_ROUTE_CREDIT ? "(credit)"
                                      : p->cut->cells[p->cut->routes[m->route].src_cell].name;
}

/* "rank 1 (stage 2, token slice 0)": the stage is the schedule's. */
static const char *place_of(const replay *p, uint32_t rank, uint32_t stage, char *out,
                            size_t room) {
  const uint32_t n = p->plan->n_pieces;
  const int used = snprintf(out, room, "rank %u (stage %u", rank, stage / n);
  const size_t at = used < 0 || (size_t)used >= room ? room - 1 : (size_t)used;
  if (p->plan->whole->n_slices > 1) {
    (void)snprintf(out + at, room - at, ", token slice %u)",
                   opi_piece_place_of(p->plan->whole, stage % n).slice);
  } else {
    (void)snprintf(out + at, room - at, ")");
  }
  return out;
}

/* Names a rank of the group that has not reached its update. */
static uint32_t describe_update(const replay *p, uint32_t rank, char *text, size_t room) {
  uint32_t other = 0;
  while (p->group[other] != p->group[rank] || p->item[other] > p->item[rank] ||
         (p->item[other] == p->item[rank] && p->updates[other]))
    ++other;
  (void)snprintf(text, room, "rank %u at step %u, the update, waits for rank %u to come to its own",
                 rank, p->step[rank] - p->lists->rank_first[rank], other);
  return other;
}

/* The sum for which the rank's step waits; OPIPE_NONE: none. */
static uint32_t missing_sum(const replay *p, uint32_t rank) {
  const opi_step *step = &p->lists->steps[p->step[rank]];
  if (step->kind == OPI_ACT_AWAIT || (is_sum(step) && p->comes[rank]))
    return step->route;
  return step->kind == OPI_ACT_UPDATE
             ? opi_meetings_missing(&p->meetings, rank, batch_of(p, rank, step))
             : OPIPE_NONE;
}

/* Names a rank that has not come to a sum, or the cycle of sums, which is then all of it. */
static uint32_t describe_sum(const replay *p, uint32_t rank, uint32_t sum, char *text,
                             size_t room) {
  const opi_step *step = &p->lists->steps[p->step[rank]];
  const int n = snprintf(text, room, "rank %u at step %u%s waits for a sum: ", rank,
                         p->step[rank] - p->lists->rank_first[rank],
                         step->kind == OPI_ACT_UPDATE ? ", the update," : "");
  const size_t at = n < 0 || (size_t)n >= room ? room - 1 : (size_t)n;
  const uint32_t other =
      opi_meetings_describe(&p->meetings, batch_of(p, rank, step), sum, text + at, room - at);
  return other == OPIPE_NONE ? rank : other;
}

/* Describes what the rank's step waits for; returns the rank that would bring it. */
static uint32_t describe(const replay *p, uint32_t rank, char *text, size_t room) {
  const opi_step *step = &p->lists->steps[p->step[rank]];
  const uint32_t sum = missing_sum(p, rank);
  if (sum != OPIPE_NONE)
    return describe_sum(p, rank, sum, text, room);
  if (step->kind == OPI_ACT_UPDATE)
    return describe_update(p, rank, text, room);
  const opi_list_message *m = &p->lists->messages[step->route];
  const opi_list_stream *stream = &p->lists->streams[m->stream];
  const bool posted = ends_of(p, p->item[rank], step)->at[POSTED] >= 0;
  char src[64], dst[64];
  (void)snprintf(text, room,
                 "rank %u at step %u, tensor '%s' of micro-batch %u from %s to %s was %s", rank,
                 p->step[rank] - p->lists->rank_first[rank], tensor_of(p, step->route),
                 m->microbatch, place_of(p, stream->src_rank, stream->src_stage, src, sizeof src),
                 place_of(p, stream->dst_rank, stream->dst_stage, dst, sizeof dst),
                 posted ? "never sent" : "never awaited");
  return posted ? stream->src_rank : stream->dst_rank;
}

/* Writes the rank's next operations, from the one that it stands at: its list as far as the cycle
 * needs it. Returns the text's length. */
static size_t list_queue(const replay *p, uint32_t rank, char *out, size_t room) {
  enum { OPERATIONS = 3 };
  const opi_lists *l = p->lists;
  size_t at = 0;
  uint32_t n = 0;
  for (uint32_t i = p->step[rank]; i < l->rank_first[rank + 1] && n < OPERATIONS && at < room;
       ++i) {
    const opi_step *step = &l->steps[i];
    int more = 0;
    if (is_sum(step) && step->route != OPIPE_NONE) {
      more = snprintf(out + at, room - at, "%s sum of stage %u", n == 0 ? "" : ",",
                      l->meetings[step->route].stage);
    } else if (is_end(step)) {
      const opi_list_stream *s = &l->streams[l->messages[step->route].stream];
      const bool sends = step->kind == OPI_ACT_SEND;
      more = snprintf(out + at, room - at, "%s %s %u of micro-batch %u", n == 0 ? "" : ",",
                      sends ? "to" : "from", sends ? s->dst_rank : s->src_rank,
                      l->messages[step->route].microbatch);
    } else {
      continue;
    }
    at += more > 0 ? (size_t)more : 0;
    ++n;
  }
  return at < room ? at : room - 1;
}

/* Adds what the ranks of the cycle issue next, if messages and sums are one queue. */
static void add_queues(const replay *p, uint32_t first, uint32_t second, char *text, size_t at,
                       size_t room) {
  const uint32_t ranks[2] = {first, second};
  for (uint32_t i = 0; p->one_queue && i < 2 && ranks[i] != OPIPE_NONE && at < room; ++i) {
    const int n = snprintf(text + at, room - at, "; rank %u issues", ranks[i]);
    at += n > 0 ? (size_t)n : 0;
    if (at < room)
      at += list_queue(p, ranks[i], text + at, room - at);
  }
}

/* Follows "waits for" from the first stopped rank until one repeats, and reports that cycle. */
static opipe_status stuck(const replay *p) {
  char text[700] = "";
  size_t at = 0;
  uint32_t rank = 0, last = OPIPE_NONE;
  while (rank < p->plan->n_ranks && p->item[rank] == p->n_items)
    ++rank;
  if (rank == p->plan->n_ranks)
    return OPIPE_OK;
  const uint32_t first = rank;
  for (uint32_t i = 0; i <= p->plan->n_ranks && p->item[rank] < p->n_items; ++i) {
    char one[480];
    if (i > 0 && (rank == first || rank == last)) /* a cycle; or a rank's own later step */
      break;
    last = rank;
    rank = describe(p, rank, one, sizeof one);
    const int n = snprintf(text + at, sizeof text - at, "%s%s", i == 0 ? "" : "; ", one);
    at = n < 0 || (size_t)n >= sizeof text - at ? sizeof text - 1 : at + (size_t)n;
  }
  add_queues(p, first, last == first ? OPIPE_NONE : last, text, at, sizeof text);
  return opi_fail(p->err, OPIPE_E_INVALID, "schedule '%s' deadlocks: %s", p->plan->whole->schedule,
                  text);
}

/* ---- matching by order ---- */

/* Numbers the operations of a rank with a peer, at both ends of each message. EDGE: sends and
 * receives are counted apart. */
static void number_ends(const replay *p, uint32_t rank, uint32_t *counts, uint32_t *sends,
                        uint32_t *posts) {
  const opi_lists *l = p->lists;
  for (uint32_t i = l->rank_first[rank]; i < l->rank_first[rank + 1]; ++i) {
    const opi_step *step = &l->steps[i];
    if (!is_end(step))
      continue;
    const bool send = step->kind == OPI_ACT_SEND;
    const opi_list_stream *stream = &l->streams[l->messages[step->route].stream];
    const uint32_t peer = send ? stream->dst_rank : stream->src_rank;
    const uint32_t side = p->rule == OPI_RULE_EDGE && send ? 1 : 0;
    (send ? sends : posts)[step->route] = counts[2 * peer + side]++;
  }
}

static opipe_status refuse_order(const replay *p, uint32_t message, uint32_t send, uint32_t post) {
  const opi_list_message *m = &p->lists->messages[message];
  const opi_list_stream *stream = &p->lists->streams[m->stream];
  return opi_fail(p->err, OPIPE_E_INVALID,
                  "schedule '%s' under rule '%s': tensor '%s' of micro-batch %u is operation %u of "
                  "rank %u with rank %u, and operation %u of rank %u with rank %u",
                  p->plan->whole->schedule, opi_rule_name(p->rule), tensor_of(p, message),
                  m->microbatch, send, stream->src_rank, stream->dst_rank, post, stream->dst_rank,
                  stream->src_rank);
}

/* Both ends of a message must be the same operation between the two ranks. */
static opipe_status check_order(const replay *p, opi_arena *scratch) {
  const uint32_t n_ranks = p->plan->n_ranks, n = p->lists->n_messages;
  uint32_t *sends = OPI_ARENA_ARRAY(scratch, uint32_t, n);
  uint32_t *posts = OPI_ARENA_ARRAY(scratch, uint32_t, n);
  if (p->rule != OPI_RULE_EDGE && p->rule != OPI_RULE_PAIR)
    return OPIPE_OK;
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    uint32_t *counts = OPI_ARENA_ARRAY(scratch, uint32_t, 2 * (size_t)n_ranks);
    if (counts == NULL || sends == NULL || posts == NULL)
      return opi_fail_nomem(p->err, n * sizeof *sends, "a proof");
    number_ends(p, rank, counts, sends, posts);
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (sends[i] != posts[i])
      return refuse_order(p, i, sends[i], posts[i]);
  }
  return OPIPE_OK;
}

/* ---- all of it ---- */

/* Posts a stream's receives from before its first request. */
static void post_first(replay *p) {
  for (uint32_t i = 0; i < p->lists->n_steps && !p->plan->trains; ++i) {
    const opi_step *step = &p->lists->steps[i];
    if (step->kind == OPI_ACT_POST && step->lap > 0)
      p->ends[step->route].at[POSTED] = 0;
  }
}

/* Counts the ranks of each update's group. */
static opipe_status find_groups(replay *p, opi_arena *scratch) {
  const opi_piece_plan *plan = p->plan;
  OPI_TRY(opi_update_groups(plan, p->cut, scratch, &p->group, p->err));
  p->group_size = OPI_ARENA_ARRAY(scratch, uint32_t, plan->n_ranks);
  if (p->group_size == NULL)
    return opi_fail_nomem(p->err, plan->n_ranks * sizeof *p->group_size, "a proof");
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank)
    p->group_size[p->group[rank]] += p->lists->rank_first[rank + 1] != p->lists->rank_first[rank];
  return OPIPE_OK;
}

static opipe_status prepare(replay *p, opi_arena *scratch) {
  const opi_clock_rules rules = {act, NULL, p, OPI_CLOCK_TURNS};
  OPI_TRY(opi_clock_open(p->plan->n_ranks, &rules, scratch, &p->clock, p->err));
  p->now = p->clock.now;
  const uint32_t n_ranks = p->plan->n_ranks;
  const size_t n = (size_t)(p->n_items + 1) * p->lists->n_messages;
  p->ends = OPI_ARENA_ARRAY(scratch, ends, n);
  p->item = OPI_ARENA_ARRAY(scratch, uint32_t, n_ranks);
  p->step = OPI_ARENA_ARRAY(scratch, uint32_t, n_ranks);
  p->position = OPI_ARENA_ARRAY(scratch, uint32_t, n_ranks);
  p->link_free = OPI_ARENA_ARRAY(scratch, double, p->lists->n_streams);
  p->under_way = OPI_ARENA_ARRAY(scratch, under_way, n_ranks);
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
    p->ends[i] = (ends){{NEVER, NEVER, NEVER}};
  for (uint32_t rank = 0; rank < n_ranks; ++rank)
    p->step[rank] = p->lists->rank_first[rank];
  post_first(p);
  OPI_TRY(opi_meetings_open(
      p->lists, p->n_items, &p->clock, first_update(p) + (uint64_t)p->n_items * n_ranks,
      p->timed ? &p->plan->whole->link : NULL, scratch, &p->meetings, p->err));
  OPI_TRY(opi_moves_clock_open(p->plan, p->lists, scratch, &p->moves, p->err));
  OPI_TRY(find_groups(p, scratch));
  return check_order(p, scratch);
}

/* Shifts times to the start of the body: after a prologue it is later than 0. */
static void shift_times(const replay *p) {
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
static void measure(replay *p) {
  const uint32_t n = p->lists->n_positions;
  const uint32_t n_bodies = p->twice && p->n_items > 2 ? p->n_items - 1 : p->n_items;
  const uint32_t last = n_bodies * n - 1;
  const uint32_t from = n_bodies > 1 ? last - n_bodies / 2 * n : last / 2;
  p->result->request_ns = p->twice ? p->finish[p->n_items - 1] : p->finish[0];
  shift_times(p);
  p->result->interval_ns =
      last == 0 ? p->finish[0] : (p->finish[last] - p->finish[from]) / (last - from);
}

static opipe_status run_all(replay *p, opi_arena *scratch) {
  OPI_TRY(prepare(p, scratch));
  OPI_TRY(opi_clock_run(&p->clock, p->err));
  if (p->meetings.failed)
    return opi_fail_nomem(p->err, sizeof(opi_sum_entry), "a proof");
  OPI_TRY(stuck(p));
  if (p->result != NULL)
    measure(p);
  return OPIPE_OK;
}

opipe_status opi_lists_replay(const opi_piece_plan *plan, const opi_lists *lists,
                              const opi_cut *cut, uint32_t n_items,
                              const opipe_allocator *allocator, opi_replay_result *io_result,
                              opipe_error *err) {
  replay p = {.plan = plan,
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
