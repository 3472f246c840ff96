/* SPDX-License-Identifier: Apache-2.0 */
/* One step of a rank's list: each either happens or answers OPIPE_PENDING without having done
 * anything, and is tried again.
 *
 * A request that has failed flows on: its messages are received, slots reserved and handed over as
 * ever, so that the counting of all ranks stays in step; only loads, programs and stores are left
 * out.
 */
#include "runtime/state.h"

/* ---- receives: posted as soon as a slot is free ---- */

opipe_status opi_post_receives(opi_rank *rank, opi_shape *shape, opi_route_run *route,
                               uint64_t n_bytes, opipe_error *err) {
  while (route->n_posted < route->n_used + route->slot->depth) {
    const opipe_region region = opi_slot_region(shape, route->slot, route->n_posted, n_bytes);
    const opipe_status status =
        OPI_POLL_WIRE(rank->session, recv, err, route->dst, route->n_posted, &region, NULL);
    if (status < 0)
      return status;
    if (status == OPIPE_PENDING)
      return OPIPE_OK;
    ++route->n_posted;
    opi_count_on(&rank->n_moves);
  }
  return OPIPE_OK;
}

static const opipe_region NOTHING = {.buffer = NULL};

opipe_status opi_post_credits(opi_rank *rank, opipe_error *err) {
  const opi_session *s = rank->session;
  while (rank->credits_posted < rank->credits_used + s->plan->in_flight) {
    const opipe_status status =
        OPI_POLL_WIRE(s, recv, err, rank->credit_dst, rank->credits_posted, &NOTHING, NULL);
    if (status < 0)
      return status;
    if (status == OPIPE_PENDING)
      return OPIPE_OK;
    ++rank->credits_posted;
    opi_count_on(&rank->n_moves);
  }
  return OPIPE_OK;
}

/* The first stage may start micro-batch n once credit n - in_flight has come. n counts from the
 * session's start. */
static opipe_status take_credit(opi_rank *rank, opipe_error *err) {
  const opi_session *s = rank->session;
  rank->peer = opi_plan_rank(s->plan, s->plan->n_stages - 1, 0);
  if (rank->credits_started >= s->plan->in_flight) {
    OPI_TRY(opi_post_credits(rank, err));
    const opipe_status status = OPI_POLL_WIRE(s, test, err, rank->credit_dst, rank->credits_used);
    if (status != OPIPE_OK)
      return status;
    ++rank->credits_used;
    OPI_TRY(opi_post_credits(rank, err));
  }
  ++rank->credits_started;
  return OPIPE_OK;
}

static opipe_status give_credit(opi_rank *rank, opipe_error *err) {
  const opi_session *s = rank->session;
  rank->peer = opi_plan_rank(s->plan, 0, 0);
  const opipe_status status =
      OPI_POLL_WIRE(s, send, err, rank->credit_src, rank->credits_given, &NOTHING, NULL, NULL);
  if (status == OPIPE_OK)
    ++rank->credits_given;
  return status;
}

/* ---- messages ---- */

static opipe_status receive(opi_rank *rank, opi_shape *shape, const opi_step *step,
                            uint64_t sequence, opipe_error *err) {
  opi_route_run *route = &shape->routes[step->route];
  rank->peer = route->src_rank;
  if (route->n_posted <= sequence) {
    OPI_TRY(opi_post_receives(rank, shape, route, shape->cut->routes[step->route].n_bytes, err));
    if (route->n_posted <= sequence)
      return OPIPE_PENDING;
  }
  return OPI_POLL_WIRE(rank->session, test, err, route->dst, sequence);
}

static opipe_status deliver(opi_rank *rank, opi_shape *shape, const opi_step *step,
                            uint64_t sequence, opipe_error *err) {
  opi_route_run *route = &shape->routes[step->route];
  const uint64_t n_bytes = shape->cut->routes[step->route].n_bytes;
  const opipe_region region = opi_slot_region(shape, route->home, sequence, n_bytes);
  rank->peer = route->dst_rank;
  return OPI_POLL_WIRE(rank->session, send, err, route->src, sequence, &region, NULL, NULL);
}

/* ---- programs ---- */

/* May the program write its outputs? In place: the receiver has set the slot aside. Own memory: the
 * messages that lay there are gone. */
static opipe_status outputs_free(opi_rank *rank, const opi_shape *shape, uint32_t stage,
                                 uint64_t sequence, opipe_error *err) {
  const opi_stage_run *run = &shape->stages[stage];
  for (uint32_t i = 0; i < run->n_sends; ++i) {
    const opi_route_run *route = &shape->routes[run->sends[i]];
    opipe_status status = OPIPE_OK;
    if (route->src == NULL) {
      if (sequence >= route->n_used + route->slot->depth) {
        return opi_fail(
            err, OPIPE_E_INTERNAL,
            "rank %u: stage %u makes message %llu of a tensor of which stage %u has used the first "
            "%llu",
            rank->index, stage, (unsigned long long)sequence,
            shape->cut->routes[run->sends[i]].dst_stage, (unsigned long long)route->n_used);
      }
    } else if (route->in_place) {
      status = OPI_POLL_WIRE(rank->session, reserve, err, route->src, sequence);
    } else if (sequence >= route->home->depth) {
      status = OPI_POLL_WIRE(rank->session, test, err, route->src, sequence - route->home->depth);
    }
    if (status == OPIPE_OK)
      continue;
    rank->peer = route->dst_rank;
    return status;
  }
  return OPIPE_OK;
}

static void poison(const opi_shape *shape, const opi_slot *slot, uint64_t sequence,
                   uint64_t n_bytes) {
  char *data = opi_slot_host(shape, slot, sequence);
  for (uint64_t i = 0; data != NULL && i < n_bytes; ++i)
    data[i] = (char)0xdb;
}

/* A slot is free once its message was read and all before that were: a schedule may take
 * micro-batches in any order, receives are posted in theirs. */
static void give_back(opi_route_run *route, uint64_t sequence) {
  const uint32_t depth = route->slot->depth;
  route->used[sequence % depth] = true;
  for (; route->used[route->n_used % depth]; ++route->n_used)
    route->used[route->n_used % depth] = false;
}

/* The stage has read its inputs: their slots go back. */
opipe_status opi_give_inputs_back(opi_rank *rank, opi_shape *shape, uint32_t stage,
                                  uint64_t sequence, opipe_error *err) {
  const opi_session *s = rank->session;
  const opi_stage_run *run = &shape->stages[stage];
  for (uint32_t i = 0; i < run->n_receives; ++i) {
    opi_route_run *route = &shape->routes[run->receives[i]];
    const uint64_t n_bytes = shape->cut->routes[run->receives[i]].n_bytes;
    /* A slot of this rank's own producer may still be on its way elsewhere by a copying transport.
     */
    if ((s->flags & OPIPE_SESSION_POISON) != 0 && (s->direct || route->dst != NULL))
      poison(shape, route->slot, sequence, n_bytes);
    give_back(route, sequence);
    if (route->dst != NULL)
      OPI_TRY(opi_post_receives(rank, shape, route, n_bytes, err));
  }
  return OPIPE_OK;
}

static opipe_status compute(opi_rank *rank, opi_shape *shape, const opi_step *step,
                            uint64_t sequence, opipe_error *err) {
  const opipe_status status = outputs_free(rank, shape, step->stage, sequence, err);
  if (status != OPIPE_OK)
    return status;
  rank->holds_inputs = true;
  return opi_stage_compute(rank, shape, rank->request, step->stage, step->microbatch, sequence,
                           err);
}

opipe_status opi_step_run(opi_rank *rank, opi_shape *shape, const opi_step *step, uint64_t sequence,
                          opipe_error *err) {
  rank->peer = OPIPE_NONE;
  switch (step->kind) {
    case OPI_ACT_RECV:
      return step->route == OPI_ROUTE_CREDIT ? take_credit(rank, err)
                                             : receive(rank, shape, step, sequence, err);
    case OPI_ACT_SEND:
      return step->route == OPI_ROUTE_CREDIT ? give_credit(rank, err)
                                             : deliver(rank, shape, step, sequence, err);
    case OPI_ACT_LOAD:
      return opi_load_inputs(rank, shape, rank->request, step->stage, step->microbatch, err);
    case OPI_ACT_STORE:
      return opi_store_results(rank, shape, rank->request, step->stage, step->microbatch, sequence,
                               err);
    case OPI_ACT_COMPUTE:
      return compute(rank, shape, step, sequence, err);
    default:
      return opi_fail(err, OPIPE_E_INTERNAL, "rank %u: a step of kind %u", rank->index, step->kind);
  }
}
