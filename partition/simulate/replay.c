/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's steps are a fixed sequence, and every wait is for a message or a slot that one other
 * rank gives: a Kahn network, so that one greedy replay decides for every interleaving whether it
 * ends, and gives the times of all. When it stops short, each stuck rank waits for one other:
 * following these arrows gives the cycle that is printed.
 */
#include "partition/simulate/replay.h"

#include <stdio.h>
#include <string.h>

#include "partition/memory/layout.h"

/* Times in ns at which message `seq` of a route was made, has arrived, was used, and at which it
 * and all before it had been; NEVER before that. */
typedef struct message {
  double made, arrived, used, freed;
} message;
static const double NEVER = -1.0;

typedef struct replay {
  const opi_plan *plan;
  const opi_cut *cut;
  const opi_program_list *list;
  const double *stage_ns;
  opi_arena scratch;
  uint32_t n_requests;
  uint32_t n_messages;  /* n_requests * n_microbatches */
  uint32_t *slots;      /* [n_routes] */
  uint32_t *at;         /* [n_ranks] next step, counted over all requests */
  double *now;          /* [n_ranks] */
  message *messages;    /* [n_routes][n_messages] */
  uint32_t *n_freed;    /* [n_routes] messages that were used, and all before them */
  double *link_free;    /* [n_routes] when the last message has left the sender */
  double *credit;       /* [n_messages] when the last stage gave its i-th credit */
  double *finish;       /* [n_requests] */
  uint32_t *n_computed; /* [n_ranks] */
  opi_replay_result *result;
  uint32_t n_given, n_taken;
  opipe_error *err;
} replay;

static const char *kind_name(uint32_t kind) {
  static const char *const names[] = {"COMPUTE", "RECV", "SEND", "LOAD", "STORE"};
  return kind < OPI_COUNT(names) ? names[kind] : "?";
}

static uint32_t rank_of(const replay *p, uint32_t stage) {
  return opi_plan_rank(p->plan, stage, 0);
}

static uint32_t steps_of(const replay *p, uint32_t rank) {
  return p->list->rank_first[rank + 1] - p->list->rank_first[rank];
}

/* Number of the message that a step of `rank` is about, counted over the stream. */
static uint32_t sequence(const replay *p, uint32_t rank, uint32_t microbatch) {
  return p->at[rank] / steps_of(p, rank) * p->plan->n_microbatches + microbatch;
}

static message *message_of(const replay *p, uint32_t route, uint32_t seq) {
  return &p->messages[(size_t)route * p->n_messages + seq];
}

static bool wait_for(double need, uint32_t rank, double *io_when, uint32_t *out_peer) {
  if (need < 0) {
    *out_peer = rank;
    return false;
  }
  if (need > *io_when)
    *io_when = need;
  return true;
}

/* Message seq lies in slot seq % slots. Receives are posted in the order of their numbers: it can
 * come once message seq - slots and all before that have been used. */
static bool compute_ready(const replay *p, const opi_step *step, uint32_t seq, double *io_when,
                          uint32_t *out_peer) {
  const opi_cut *c = p->cut;
  for (uint32_t i = c->cell_first[step->stage]; i < c->cell_first[step->stage + 1]; ++i) {
    const opi_cell *cell = &c->cells[i];
    if (cell->source == OPI_CELL_RECEIVED &&
        !wait_for(message_of(p, cell->route, seq)->made,
                  rank_of(p, c->routes[cell->route].src_stage), io_when, out_peer))
      return false;
    for (uint32_t r = cell->first_out; r != OPIPE_NONE; r = c->routes[r].next_out) {
      if (seq >= p->slots[r] && !wait_for(message_of(p, r, seq - p->slots[r])->freed,
                                          rank_of(p, c->routes[r].dst_stage), io_when, out_peer))
        return false;
    }
  }
  return true;
}

/* May the step run, and when at the earliest? If not, *out_peer is the rank that it waits for. */
static bool step_ready(const replay *p, uint32_t rank, const opi_step *step, double *io_when,
                       uint32_t *out_peer) {
  const uint32_t seq = sequence(p, rank, step->microbatch);
  if (step->kind == OPI_ACT_COMPUTE)
    return compute_ready(p, step, seq, io_when, out_peer);
  if (step->kind != OPI_ACT_RECV)
    return true;
  double need = 0;
  if (step->route == OPI_ROUTE_CREDIT) {
    *out_peer = rank_of(p, p->plan->n_stages - 1);
    if (p->n_taken < p->plan->in_flight)
      return true;
    if (p->n_taken >= p->n_given + p->plan->in_flight)
      return false;
    need = p->credit[p->n_taken - p->plan->in_flight];
  } else {
    *out_peer = rank_of(p, p->cut->routes[step->route].src_stage);
    need = message_of(p, step->route, seq)->arrived;
  }
  if (need < 0)
    return false;
  if (need > *io_when)
    *io_when = need;
  return true;
}

static void use_message(replay *p, uint32_t route, uint32_t seq, double when) {
  uint32_t *n = &p->n_freed[route];
  message_of(p, route, seq)->used = when;
  for (; *n < p->n_messages && message_of(p, route, *n)->used >= 0; ++*n)
    message_of(p, route, *n)->freed = when;
}

static void run_compute(replay *p, uint32_t rank, uint32_t stage, uint32_t seq) {
  const uint32_t action = p->plan->rank_first[rank] + p->n_computed[rank]++;
  const bool wanted = p->result->start_ns != NULL && action < p->plan->rank_first[rank + 1];
  if (wanted)
    p->result->start_ns[action] = p->now[rank];
  if (p->stage_ns != NULL)
    p->now[rank] += p->stage_ns[stage];
  if (wanted)
    p->result->end_ns[action] = p->now[rank];
  for (uint32_t i = p->cut->cell_first[stage]; i < p->cut->cell_first[stage + 1]; ++i) {
    const opi_cell *cell = &p->cut->cells[i];
    if (cell->source == OPI_CELL_RECEIVED)
      use_message(p, cell->route, seq, p->now[rank]);
    for (uint32_t r = cell->first_out; r != OPIPE_NONE; r = p->cut->routes[r].next_out)
      message_of(p, r, seq)->made = p->now[rank];
  }
}

/* Messages of a route go one after the other where the transport has a bandwidth. */
static double arrival(replay *p, uint32_t route, double when) {
  const opi_link *link = &p->plan->link;
  if (p->stage_ns == NULL)
    return when;
  if (link->bytes_per_ns > 0) {
    when = when > p->link_free[route] ? when : p->link_free[route];
    when += (double)p->cut->routes[route].n_bytes / link->bytes_per_ns;
    p->link_free[route] = when;
  }
  return when + link->latency_ns;
}

static void run_step(replay *p, uint32_t rank, const opi_step *step, double when) {
  const uint32_t seq = sequence(p, rank, step->microbatch);
  p->now[rank] = when;
  if (step->route == OPI_ROUTE_CREDIT) {
    if (step->kind == OPI_ACT_SEND)
      p->credit[p->n_given++] = when + (p->stage_ns == NULL ? 0 : p->plan->link.latency_ns);
    else
      ++p->n_taken;
  } else if (step->kind == OPI_ACT_SEND) {
    message_of(p, step->route, seq)->arrived = arrival(p, step->route, when);
  } else if (step->kind == OPI_ACT_COMPUTE) {
    run_compute(p, rank, step->stage, seq);
  }
  double *finish = &p->finish[p->at[rank] / steps_of(p, rank)];
  if (p->now[rank] > *finish)
    *finish = p->now[rank];
  ++p->at[rank];
}

static const opi_step *next_step(const replay *p, uint32_t rank) {
  const uint32_t n = steps_of(p, rank);
  return n == 0 || p->at[rank] / n >= p->n_requests
             ? NULL
             : &p->list->steps[p->list->rank_first[rank] + p->at[rank] % n];
}

static opipe_status report_cycle(replay *p, uint32_t rank) {
  char text[400] = "";
  for (uint32_t seen = 0; seen <= p->plan->n_ranks; ++seen) {
    const opi_step *step = next_step(p, rank);
    uint32_t peer = rank;
    double when = 0;
    if (step == NULL || step_ready(p, rank, step, &when, &peer))
      break;
    const size_t n = strlen(text);
    (void)snprintf(text + n, sizeof(text) - n,
                   "%srank %u, step %u: %s of stage %u, micro-batch %u, waits for rank %u",
                   seen == 0 ? "" : "; ", rank, p->at[rank], kind_name(step->kind), step->stage,
                   sequence(p, rank, step->microbatch), peer);
    rank = peer;
  }
  return opi_fail(p->err, OPIPE_E_INVALID, "schedule '%s' deadlocks: %s", p->plan->schedule, text);
}

static opipe_status prepare(replay *p) {
  const uint64_t n = (uint64_t)p->cut->n_routes * p->n_messages;
  p->at = OPI_ARENA_ARRAY(&p->scratch, uint32_t, p->plan->n_ranks);
  p->now = OPI_ARENA_ARRAY(&p->scratch, double, p->plan->n_ranks);
  p->messages = OPI_ARENA_ARRAY(&p->scratch, message, n);
  p->n_freed = OPI_ARENA_ARRAY(&p->scratch, uint32_t, p->cut->n_routes);
  p->link_free = OPI_ARENA_ARRAY(&p->scratch, double, p->cut->n_routes);
  p->credit = OPI_ARENA_ARRAY(&p->scratch, double, p->n_messages);
  p->finish = OPI_ARENA_ARRAY(&p->scratch, double, p->n_requests);
  p->slots = OPI_ARENA_ARRAY(&p->scratch, uint32_t, p->cut->n_routes);
  p->n_computed = OPI_ARENA_ARRAY(&p->scratch, uint32_t, p->plan->n_ranks);
  if (p->n_computed == NULL || p->slots == NULL || p->at == NULL || p->now == NULL ||
      p->messages == NULL || p->credit == NULL || p->n_freed == NULL || p->link_free == NULL ||
      p->finish == NULL)
    return opi_fail_nomem(p->err, n * sizeof(message), "the simulation");
  for (uint64_t i = 0; i < n; ++i)
    p->messages[i] = (message){NEVER, NEVER, NEVER, NEVER};
  for (uint32_t r = 0; r < p->cut->n_routes; ++r)
    p->slots[r] = opi_route_slots(p->plan, &p->cut->routes[r]);
  return OPIPE_OK;
}

static opipe_status run_all(replay *p) {
  OPI_TRY(prepare(p));
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < p->plan->n_ranks; ++rank) {
      const opi_step *step = next_step(p, rank);
      uint32_t peer = 0;
      double when = p->now[rank];
      while (step != NULL && step_ready(p, rank, step, &when, &peer)) {
        run_step(p, rank, step, when);
        moved = true;
        step = next_step(p, rank);
        when = p->now[rank];
      }
    }
  }
  for (uint32_t rank = 0; rank < p->plan->n_ranks; ++rank) {
    if (next_step(p, rank) != NULL)
      return report_cycle(p, rank);
  }
  return OPIPE_OK;
}

opipe_status opi_replay(const opi_plan *plan, const opi_cut *cut, const opi_program_list *list,
                        const double *stage_ns, uint32_t n_requests,
                        const opipe_allocator *allocator, opi_replay_result *out_result,
                        opipe_error *err) {
  replay p = {.plan = plan,
              .cut = cut,
              .list = list,
              .stage_ns = stage_ns,
              .n_requests = n_requests,
              .n_messages = n_requests * plan->n_microbatches,
              .result = out_result,
              .err = err};
  opi_arena_init(&p.scratch, allocator, 0);
  const opipe_status status = run_all(&p);
  if (status == OPIPE_OK) {
    const uint32_t last = n_requests - 1, from = last / 2;
    out_result->request_ns = p.finish[0];
    out_result->interval_ns =
        last == 0 ? p.finish[0] : (p.finish[last] - p.finish[from]) / (last - from);
  }
  opi_arena_release(&p.scratch);
  return status;
}
