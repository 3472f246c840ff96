/* SPDX-License-Identifier: Apache-2.0 */
/* The player of operations: runs each of them on the clock (partition/plan/clock.h), by time, over
 * shared links. A rank's operations run until one needs something that is not there; its messages
 * and collectives wake other ranks when their time has come. */
#include "partition/study/simulate/play.h"

#include "partition/study/simulate/flows.h"

enum { SENT = 1, POSTED = 2 };
static const double NEVER = OPI_CLOCK_STANDS;

/* A message of one class, or a collective of the classes that it joins. */
typedef struct transfer {
  double arrived;  /* NEVER: not yet */
  uint32_t next;   /* next in its flow's queue; OPIPE_NONE */
  uint32_t n_come; /* collective: members that have reached it */
  uint32_t flags;
} transfer;

typedef struct queue {
  uint32_t first, last; /* transfers; first is in progress */
} queue;

typedef struct player {
  const opi_play *play;
  opi_played *out;
  opi_arena *arena;
  opi_play_classes classes;
  opi_clock clock;
  opi_flows flows;
  uint32_t *at;          /* [ranks] operation */
  uint32_t *turn;        /* [ranks] operation that began the endpoint's current work: see begin() */
  uint32_t *batch_end;   /* [ranks] the current batch ends before this operation */
  bool *open;            /* [ranks] the current work may still be joined */
  transfer *transfers;   /* [(n_messages + n_collectives) * n_classes] */
  queue *queues;         /* [flows] */
  opi_batch_lanes lanes; /* operation: its index */
  double *through;   /* [2 * messages * n_classes] when the batches on lanes of its sender and its
                        receiver have ended; NEVER: not yet */
  uint32_t *members; /* [n_groups * n_classes] ranks that a collective joins */
  uint32_t n_ranks, n_transfers;
  opipe_error *err;
} player;

static uint32_t list_of(const player *p, uint32_t rank) {
  return rank / p->classes.n_classes;
}

static uint32_t kind_of(const opi_play_group *g) {
  return (g->over_tensor ? 1u : 0u) + (g->over_data ? 2u : 0u);
}

/* ---- transfers ---- */

static uint32_t message_of(const player *p, uint32_t message, uint32_t class) {
  return message * p->classes.n_classes + class;
}

static uint32_t collective_of(const player *p, uint32_t collective, uint32_t class) {
  const opi_play_group *g = &p->play->groups[p->play->collective_group[collective]];
  const uint32_t joined = p->classes.joined[kind_of(g) * p->classes.n_classes + class];
  return (p->play->n_messages + collective) * p->classes.n_classes + joined;
}

static bool is_message(const player *p, uint32_t t) {
  return t / p->classes.n_classes < p->play->n_messages;
}

static uint32_t flow_of(const player *p, uint32_t t) {
  const uint32_t n = p->classes.n_classes, index = t / n;
  const uint32_t flow =
      index < p->play->n_messages
          ? p->play->message_stream[index]
          : p->play->n_streams + p->play->collective_group[index - p->play->n_messages];
  return flow * n + t % n;
}

static void wake(player *p, uint32_t rank, uint32_t t, double at) {
  opi_clock_wake(&p->clock, rank, t, at);
  if (opi_batch_lanes_has(&p->lanes, rank))
    opi_clock_wake(&p->clock, p->n_ranks + rank, t, at);
}

/* Wakes every rank that may wait for the transfer, and its lane: the sender before the receiver,
 * members of a group in order. */
static void wake_all(player *p, uint32_t t, double at) {
  const uint32_t n = p->classes.n_classes, index = t / n, class = t % n;
  if (index < p->play->n_messages) {
    const opi_play_stream *s = &p->play->streams[p->play->message_stream[index]];
    wake(p, s->src * n + class, t, at);
    wake(p, s->dst * n + class, t, at);
    return;
  }
  const opi_play_group *g =
      &p->play->groups[p->play->collective_group[index - p->play->n_messages]];
  for (uint32_t l = 0; l < g->n_lists; ++l) {
    for (uint32_t k = 0; k < n; ++k)
      opi_clock_wake(&p->clock, p->play->group_lists[g->first + l] * n + k, t, at);
  }
}

/* The transfer has all it needs and queues in its flow. */
static void enqueue(player *p, uint32_t t, double now) {
  const uint32_t flow = flow_of(p, t);
  queue *q = &p->queues[flow];
  p->transfers[t].next = OPIPE_NONE;
  if (is_message(p, t))
    p->out->sent_at[t] = now;
  if (q->first != OPIPE_NONE) {
    p->transfers[q->last].next = t;
    q->last = t;
    return;
  }
  q->first = q->last = t;
  if (is_message(p, t))
    p->out->began_at[t] = now;
  opi_flows_start(&p->flows, flow, now);
}

/* The last byte of a flow's first transfer has left: the next begins. */
static void end_flow(void *ctx, uint32_t flow, uint32_t version, double now) {
  player *p = ctx;
  queue *q = &p->queues[flow];
  if (!opi_flows_end(&p->flows, flow, version, now))
    return;
  const uint32_t t = q->first;
  const opi_play_flow *w = &p->classes.flows[flow];
  for (uint32_t i = 0; i < p->play->cluster->n_tiers; ++i)
    p->out->tiers[i].n_bytes += w->tier_bytes[i];
  p->transfers[t].arrived = now + w->latency_ns;
  if (is_message(p, t))
    p->out->arrived_at[t] = now + w->latency_ns;
  q->first = p->transfers[t].next;
  if (q->first != OPIPE_NONE && is_message(p, q->first))
    p->out->began_at[q->first] = now;
  if (q->first != OPIPE_NONE)
    opi_flows_start(&p->flows, flow, now);
  wake_all(p, t, p->transfers[t].arrived);
}

/* ---- operations: until when the rank is busy with it, now or later; NEVER: not yet known ---- */

static double stand(player *p, uint32_t rank, uint32_t t) {
  return opi_clock_wait(&p->clock, rank, t);
}

/* Notes one end of a message. Returns whether it is new. */
static bool note_end(player *p, uint32_t t, uint32_t end, double now) {
  transfer *x = &p->transfers[t];
  if ((x->flags & end) != 0)
    return false;
  x->flags |= end;
  if (x->flags == (SENT | POSTED))
    enqueue(p, t, now);
  wake_all(p, t, now);
  return true;
}

/* The rank's end of a message is there; it counts the bytes that it sends. */
static void send_end(player *p, uint32_t rank, uint32_t t, double now) {
  const uint32_t stream = p->play->message_stream[t / p->classes.n_classes];
  if (note_end(p, t, SENT, now))
    p->out->sent_bytes[rank] += p->play->streams[stream].n_bytes;
}

/* ---- lanes ---- */

static uint32_t message_at(const player *p, uint32_t rank, uint64_t op) {
  return message_of(p, p->play->ops[op].index, rank % p->classes.n_classes);
}

static void begin_operation(void *ctx, uint32_t rank, uint64_t op, double now) {
  player *p = ctx;
  const uint32_t t = message_at(p, rank, op);
  if (p->play->ops[op].kind == OPI_PLAY_SEND)
    send_end(p, rank, t, now);
  else
    (void)note_end(p, t, POSTED, now);
}

static double arrival(void *ctx, uint32_t actor, uint32_t rank, uint64_t op) {
  player *p = ctx;
  const uint32_t t = message_at(p, rank, op);
  const double arrived = p->transfers[t].arrived;
  return arrived == NEVER ? opi_clock_wait(&p->clock, actor, t) : arrived;
}

static void end_operation(void *ctx, uint32_t rank, uint64_t op, double now) {
  player *p = ctx;
  const bool receives = p->play->ops[op].kind == OPI_PLAY_POST;
  const uint32_t through = 2 * message_at(p, rank, op) + receives;
  p->through[through] = now;
  opi_clock_wake(&p->clock, rank, p->n_transfers + through, now);
}

/* The rank comes to a batch, or to an operation that stands alone, and goes on. Returns the number
 * of its operations, with that of the batch itself; 0: the operation is none, or the rank has no
 * lane. */
static uint32_t issue(player *p, uint32_t rank, double now) {
  const uint32_t n = p->classes.n_classes, at = p->at[rank];
  const opi_play_op *op = &p->play->ops[at];
  const bool batch = op->kind == OPI_PLAY_BATCH;
  if ((!batch && op->kind != OPI_PLAY_SEND && op->kind != OPI_PLAY_POST) ||
      !opi_batch_lanes_has(&p->lanes, rank))
    return 0;
  const uint32_t all = batch ? 1 + op->index : 1;
  opi_batch_lanes_issue(&p->lanes, rank, at + batch, all - batch, now);
  for (uint32_t i = at; i < at + all; ++i) {
    const size_t slot = (size_t)i * n + rank % n;
    p->out->start[slot] = p->out->end[slot] = now;
  }
  return all;
}

/* When the batch of the rank's end of a message has ended. */
static double await_batch(player *p, uint32_t rank, uint32_t t, bool receives, double now) {
  const double at = p->through[2 * t + receives];
  if (at == NEVER)
    return opi_clock_wait(&p->clock, rank, p->n_transfers + 2 * t + receives);
  return at > now ? at : now;
}

/* ---- ranks without lanes ---- */

static bool occupies_rank(const player *p) {
  return p->play->cluster->occupies == OPI_OCCUPIES_RANK;
}

/* When all operations of the rank's endpoint have arrived (BLOCKING, GROUPED); the rank waits until
 * that is known. */
static double await_all(player *p, uint32_t rank, double now) {
  double until = now;
  for (uint32_t i = p->turn[rank]; i < p->at[rank]; ++i) {
    const opi_play_op *op = &p->play->ops[i];
    if (op->kind != OPI_PLAY_SEND && op->kind != OPI_PLAY_POST)
      continue;
    const uint32_t t = message_of(p, op->index, rank % p->classes.n_classes);
    if (p->transfers[t].arrived == NEVER)
      return stand(p, rank, t);
    until = p->transfers[t].arrived > until ? p->transfers[t].arrived : until;
  }
  return until;
}

/* The endpoint holds one operation, or one batch: the rank waits in front of the next. */
static double await_turn(player *p, uint32_t rank, double now) {
  const double until = await_all(p, rank, now);
  if (until > now)
    return opi_clock_again(&p->clock, rank, until);
  if (until == now)
    p->turn[rank] = p->at[rank];
  return until;
}

/* Whether the message belongs to the current batch, whose messages complete together. */
static bool is_in_batch(const player *p, uint32_t rank, uint32_t message) {
  const uint32_t turn = p->turn[rank];
  const opi_play_op *ops = &p->play->ops[turn];
  bool found = false;
  if (turn == p->at[rank] || ops[0].kind != OPI_PLAY_BATCH)
    return false;
  for (uint32_t i = 1; i <= ops[0].index; ++i)
    found = found || ops[i].index == message;
  return found;
}

static bool is_batched(const player *p, uint32_t rank) {
  return p->at[rank] < p->batch_end[rank];
}

static bool takes_turns(const player *p) {
  return p->play->rule == OPI_RULE_BLOCKING || p->play->rule == OPI_RULE_GROUPED;
}

/* When the rank's end of a message may begin. Under GROUPED it joins receives whose arrival no end
 * has asked for yet. */
static double begin(player *p, uint32_t rank, double now) {
  return !takes_turns(p) || is_batched(p, rank) || p->open[rank] ? now : await_turn(p, rank, now);
}

/* A send outside a batch begins when its receive is posted. */
static double run_send(player *p, uint32_t rank, uint32_t t, double now) {
  const transfer *x = &p->transfers[t];
  const bool posted = (x->flags & POSTED) != 0 || is_batched(p, rank);
  if ((x->flags & SENT) == 0 && takes_turns(p)) {
    if (!posted)
      return stand(p, rank, t);
    if (begin(p, rank, now) == NEVER)
      return NEVER;
    p->open[rank] = false;
  }
  send_end(p, rank, t, now);
  if (p->play->rule > OPI_RULE_STREAM && !posted)
    return stand(p, rank, t);
  return !occupies_rank(p) || x->arrived != NEVER ? now : stand(p, rank, t);
}

static double run_post(player *p, uint32_t rank, uint32_t t, double now) {
  if (begin(p, rank, now) == NEVER)
    return NEVER;
  p->open[rank] = p->play->rule == OPI_RULE_GROUPED && !is_batched(p, rank);
  (void)note_end(p, t, POSTED, now);
  return now;
}

static double run_batch(player *p, uint32_t rank, uint32_t n, double now) {
  if (await_turn(p, rank, now) == NEVER)
    return NEVER;
  p->batch_end[rank] = p->at[rank] + 1 + n;
  p->open[rank] = false;
  return now;
}

/* When the message has arrived; a receiver's own copy follows that. */
static double run_wait(player *p, uint32_t rank, uint32_t t, double now, bool copies) {
  const double arrived = p->transfers[t].arrived;
  if (arrived == NEVER)
    return stand(p, rank, t);
  const double copy = copies && occupies_rank(p) ? p->classes.flows[flow_of(p, t)].work_ns : 0;
  return (arrived > now ? arrived : now) + copy;
}

static double run_message_wait(player *p, uint32_t rank, const opi_play_op *op, double now,
                               bool copies) {
  const uint32_t t = message_of(p, op->index, rank % p->classes.n_classes);
  if (opi_batch_lanes_has(&p->lanes, rank))
    return await_batch(p, rank, t, op->kind == OPI_PLAY_WAIT, now);
  const double all = is_in_batch(p, rank, op->index) ? await_all(p, rank, now) : now;
  return all == NEVER ? NEVER : run_wait(p, rank, t, all, copies);
}

static double run_start(player *p, uint32_t collective, uint32_t t, double now) {
  const uint32_t n = p->classes.n_classes, group = p->play->collective_group[collective];
  if (++p->transfers[t].n_come == p->members[group * n + t % n])
    enqueue(p, t, now);
  return now;
}

static double run_op(player *p, uint32_t rank, const opi_play_op *op, double now) {
  const uint32_t class = rank % p->classes.n_classes;
  switch (op->kind) {
    case OPI_PLAY_COMPUTE:
      p->out->busy_ns[rank] += p->play->work[op->index].ns;
      return now + p->play->work[op->index].ns;
    case OPI_PLAY_SEND:
      return run_send(p, rank, message_of(p, op->index, class), now);
    case OPI_PLAY_POST:
      return run_post(p, rank, message_of(p, op->index, class), now);
    case OPI_PLAY_RESERVE:
      return (p->transfers[message_of(p, op->index, class)].flags & POSTED) != 0
                 ? now
                 : stand(p, rank, message_of(p, op->index, class));
    case OPI_PLAY_BATCH:
      return run_batch(p, rank, op->index, now);
    case OPI_PLAY_WAIT:
      p->open[rank] = false;
      return run_message_wait(p, rank, op, now, true);
    case OPI_PLAY_DRAIN:
      return run_message_wait(p, rank, op, now, false);
    case OPI_PLAY_START:
      return run_start(p, op->index, collective_of(p, op->index, class), now);
    default:
      return run_wait(p, rank, collective_of(p, op->index, class), now, false);
  }
}

/* One operation on the clock, or the end of the rank's list. */
static double act(void *ctx, uint32_t rank, double now) {
  player *p = ctx;
  const uint32_t n = p->classes.n_classes;
  if (rank >= p->n_ranks)
    return opi_batch_lanes_act(&p->lanes, rank, now);
  if (p->at[rank] == p->play->list_first[list_of(p, rank) + 1]) {
    p->out->finish_ns[rank] = now;
    p->out->makespan = now > p->out->makespan ? now : p->out->makespan;
    return OPI_CLOCK_STANDS;
  }
  const uint32_t n_issued = issue(p, rank, now);
  p->at[rank] += n_issued;
  if (n_issued != 0)
    return now;
  const size_t slot = (size_t)p->at[rank] * n + rank % n;
  if (p->out->start[slot] == NEVER)
    p->out->start[slot] = now;
  const double until = run_op(p, rank, &p->play->ops[p->at[rank]], now);
  if (until == NEVER)
    return until;
  p->out->end[slot] = until;
  ++p->at[rank];
  return until;
}

/* ---- all of it ---- */

static void count_members(const player *p) {
  const uint32_t n = p->classes.n_classes;
  for (uint32_t g = 0; g < p->play->n_groups; ++g) {
    for (uint32_t k = 0; k < n; ++k) {
      const uint32_t joined = p->classes.joined[kind_of(&p->play->groups[g]) * n + k];
      p->members[g * n + joined] += p->play->groups[g].n_lists;
    }
  }
}

static opipe_status open_clock(player *p) {
  const opi_play *play = p->play;
  const uint32_t n = p->classes.n_classes;
  const opi_clock_rules rules = {act, end_flow, p, OPI_CLOCK_TIME};
  const opi_batch_lane_rules lane_rules = {begin_operation, arrival, end_operation, p};
  const size_t n_ends = play->lanes == NULL ? 0 : 2 * (size_t)play->n_messages * n;
  bool *lanes = play->lanes == NULL ? NULL : OPI_ARENA_ARRAY(p->arena, bool, p->n_ranks);
  p->through = OPI_ARENA_ARRAY(p->arena, double, n_ends);
  if (p->through == NULL || (play->lanes != NULL && lanes == NULL))
    return opi_fail_nomem(p->err, n_ends * sizeof(double), "a simulation");
  for (size_t i = 0; i < n_ends; ++i)
    p->through[i] = NEVER;
  for (uint32_t rank = 0; rank < p->n_ranks && lanes != NULL; ++rank)
    lanes[rank] = play->lanes[list_of(p, rank)];
  OPI_TRY(opi_clock_open(p->n_ranks + opi_batch_lanes_actors(p->n_ranks, lanes), &rules, p->arena,
                         &p->clock, p->err));
  return opi_batch_lanes_open(p->n_ranks, lanes, &lane_rules, &p->clock, p->n_transfers + n_ends,
                              p->arena, &p->lanes, p->err);
}

static opipe_status prepare(player *p) {
  const opi_play *play = p->play;
  opi_arena *arena = p->arena;
  OPI_TRY(opi_play_classify(play, arena, &p->classes, p->err));
  const uint32_t n = p->classes.n_classes, n_flows = (play->n_streams + play->n_groups) * n;
  const size_t n_ops = (size_t)play->list_first[play->n_lists] * n;
  const size_t n_messages = (size_t)play->n_messages * n;
  const size_t n_transfers = n_messages + (size_t)play->n_collectives * n;
  p->n_ranks = play->n_lists * n;
  p->n_transfers = (uint32_t)n_transfers;
  OPI_TRY(open_clock(p));
  OPI_TRY(opi_flows_open(&p->classes, n_flows, &p->clock, &p->flows, p->err));
  opi_played *out = p->out;
  *out = (opi_played){.n_classes = n,
                      .class_of = p->classes.class_of,
                      .class_size = p->classes.class_size,
                      .start = OPI_ARENA_ARRAY(arena, double, n_ops),
                      .end = OPI_ARENA_ARRAY(arena, double, n_ops),
                      .sent_at = OPI_ARENA_ARRAY(arena, double, n_messages),
                      .began_at = OPI_ARENA_ARRAY(arena, double, n_messages),
                      .arrived_at = OPI_ARENA_ARRAY(arena, double, n_messages),
                      .busy_ns = OPI_ARENA_ARRAY(arena, double, p->n_ranks),
                      .finish_ns = OPI_ARENA_ARRAY(arena, double, p->n_ranks),
                      .sent_bytes = OPI_ARENA_ARRAY(arena, double, p->n_ranks),
                      .peak_bytes = OPI_ARENA_ARRAY(arena, double, p->n_ranks)};
  p->at = OPI_ARENA_ARRAY(arena, uint32_t, p->n_ranks);
  p->turn = OPI_ARENA_ARRAY(arena, uint32_t, p->n_ranks);
  p->batch_end = OPI_ARENA_ARRAY(arena, uint32_t, p->n_ranks);
  p->open = OPI_ARENA_ARRAY(arena, bool, p->n_ranks);
  p->transfers = OPI_ARENA_ARRAY(arena, transfer, n_transfers);
  p->queues = OPI_ARENA_ARRAY(arena, queue, n_flows);
  p->members = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)play->n_groups * n);
  if (out->start == NULL || out->end == NULL || out->sent_at == NULL || out->began_at == NULL ||
      out->arrived_at == NULL || out->busy_ns == NULL || out->finish_ns == NULL ||
      out->sent_bytes == NULL || out->peak_bytes == NULL || p->at == NULL || p->turn == NULL ||
      p->batch_end == NULL || p->open == NULL || p->transfers == NULL || p->queues == NULL ||
      p->members == NULL)
    return opi_fail_nomem(p->err, n_ops * sizeof(double), "a simulation");
  for (size_t i = 0; i < n_ops; ++i)
    out->start[i] = out->end[i] = NEVER;
  for (size_t i = 0; i < n_transfers; ++i)
    p->transfers[i] = (transfer){.arrived = NEVER, .flags = play->posted_ahead ? POSTED : 0};
  for (uint32_t i = 0; i < n_flows; ++i)
    p->queues[i] = (queue){OPIPE_NONE, OPIPE_NONE};
  count_members(p);
  return OPIPE_OK;
}

/* Every message appears once at both ends, so blocked ranks wait for each other. */
static opipe_status check_end(const player *p) {
  static const char *const kinds[OPI_PLAY_KINDS] = {"compute", "send",  "post", "wait", "drain",
                                                    "reserve", "start", "join", "batch"};
  for (uint32_t rank = 0; rank < p->n_ranks; ++rank) {
    const uint32_t first = p->play->list_first[list_of(p, rank)];
    if (p->at[rank] == p->play->list_first[list_of(p, rank) + 1])
      continue;
    const opi_play_op *op = &p->play->ops[p->at[rank]];
    return opi_fail(p->err, OPIPE_E_INVALID, "rank %u is stuck at operation %u (%s of action %u)",
                    list_of(p, rank), p->at[rank] - first, kinds[op->kind], op->item);
  }
  return OPIPE_OK;
}

void opi_play_op_bytes(const opi_play *play, const opi_play_op *op, double *out_take,
                       double *out_give) {
  *out_take = *out_give = 0;
  if (op->kind == OPI_PLAY_COMPUTE) {
    *out_take = play->work[op->index].take_bytes;
    *out_give = play->work[op->index].give_bytes;
  } else if (op->kind == OPI_PLAY_START || op->kind == OPI_PLAY_JOIN) {
    const opi_play_group *g = &play->groups[play->collective_group[op->index]];
    if (g->op == OPI_STASH_IN && op->kind == OPI_PLAY_START)
      *out_take = g->kept_bytes;
    if (g->op == OPI_STASH_OUT && op->kind == OPI_PLAY_JOIN)
      *out_give = g->kept_bytes;
  }
}

/* Measures the rank's stashes in the order of its list. */
static void measure_memory(const player *p, uint32_t rank) {
  double held = 0, take = 0, give = 0;
  for (uint32_t i = p->play->list_first[list_of(p, rank)];
       i < p->play->list_first[list_of(p, rank) + 1]; ++i) {
    opi_play_op_bytes(p->play, &p->play->ops[i], &take, &give);
    held += take;
    p->out->peak_bytes[rank] = held > p->out->peak_bytes[rank] ? held : p->out->peak_bytes[rank];
    held -= give;
  }
}

static void measure_ports(const player *p) {
  const opi_cluster *c = p->play->cluster;
  for (uint32_t t = 0; t < c->n_tiers; ++t) {
    for (uint32_t i = 0; i < 2 * c->tiers[t].n_members; ++i) {
      const uint32_t member = i / 2;
      const uint32_t port = c->tiers[t].first_port + member + (i % 2 == 0 ? 0 : c->n_ports);
      const double room = c->tiers[t].port_bytes_per_ns[member] * p->out->makespan;
      const double part = room > 0 ? p->flows.moved[port] / room : 0;
      p->out->tiers[t].busiest = part > p->out->tiers[t].busiest ? part : p->out->tiers[t].busiest;
    }
  }
}

opipe_status opi_play_run(const opi_play *play, opi_arena *arena, opi_played *out_played,
                          opipe_error *err) {
  player p = {.play = play, .out = out_played, .arena = arena, .err = err};
  OPI_TRY(prepare(&p));
  for (uint32_t rank = 0; rank < p.n_ranks; ++rank)
    p.at[rank] = p.turn[rank] = play->list_first[list_of(&p, rank)];
  OPI_TRY(opi_clock_run(&p.clock, err));
  if (p.lanes.failed)
    return opi_fail_nomem(err, sizeof(opi_lane_batch), "a simulation");
  OPI_TRY(check_end(&p));
  for (uint32_t rank = 0; rank < p.n_ranks; ++rank)
    measure_memory(&p, rank);
  measure_ports(&p);
  return OPIPE_OK;
}
