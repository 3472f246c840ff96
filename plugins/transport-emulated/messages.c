/* SPDX-License-Identifier: Apache-2.0 */
/* Messages in modelled time. A sent message waits in its cell until its receive stands, its event
 * is complete and its clock has come; then whoever looks copies it. The sender's region is its own
 * again when `test` says so.
 */
#include "emulated.h"

cell *emutrans_cell(const opipe_stream *s, uint64_t sequence) {
  const opipe_wire *w = &s->wire->base;
  return (cell *)w->cells + sequence % w->params.depth;
}

static opipe_status check_side(const opipe_stream *s, uint32_t side, const char *what,
                               opipe_error *err) {
  if ((s->sides & (1u << side)) != 0) {
    const opipe_status status = emutrans_usable(s->endpoint, s->n_opened, what, err);
    return status < 0 ? status : emutrans_check(s->endpoint->world, err);
  }
  return opipe_stream_not_held(s->endpoint->rank, &s->wire->base.params, what, err);
}

/* First in, first out: a stream's operations must come in the order of their numbers. */
static opipe_status check_order(const opipe_stream *s, uint64_t sequence, uint64_t next,
                                const char *what, opipe_error *err) {
  if (s->endpoint->world->options.rule != OPIPE_RULE_STREAM || sequence == next)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_STATE,
                    "%s of message %llu on a first-in-first-out stream (%u of stages %u -> %u): "
                    "message %llu is next",
                    what, (unsigned long long)sequence, s->wire->base.params.index,
                    s->wire->base.params.src_stage, s->wire->base.params.dst_stage,
                    (unsigned long long)next);
}

opipe_status emutrans_address(const opipe_endpoint *e, const opipe_region *region, void **out,
                              opipe_error *err) {
  return opipe_endpoint_address(e->rank, e->backend, region, out, err);
}

opipe_status emutrans_record(const opipe_endpoint *e, opipe_event **io_event, opipe_error *err) {
  opipe_event *event = *io_event;
  *io_event = NULL;
  return opipe_endpoint_record(e->rank, e->backend, e->queue, event, err);
}

/* When both ends of a message are there: now, or when their batches on lanes by the clock began. */
static uint64_t both_at(const cell *c) {
  const uint64_t at = c->from_ns[0] > c->from_ns[1] ? c->from_ns[0] : c->from_ns[1];
  return c->from_ns[0] == 0 || c->from_ns[1] == 0 ? emutrans_now() : at;
}

uint64_t emutrans_chance(const options *o, uint32_t a, uint32_t b, uint64_t sequence) {
  if (o->jitter_ns == 0)
    return 0;
  const uint64_t words[] = {o->seed, a, b, sequence};
  uint64_t x = 0;
  for (uint32_t i = 0; i < sizeof words / sizeof words[0]; ++i) { /* splitmix64 of each */
    x += words[i] + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
  }
  return x % (o->jitter_ns + 1);
}

/* Clock at which a message arrives. */
static uint64_t arrival(opipe_world *world, wire *w, const cell *c, uint64_t sequence) {
  const options *o = &world->options;
  const uint64_t n_bytes = c->n_bytes, from = both_at(c);
  const uint64_t start = w->free_ns > from ? w->free_ns : from;
  w->free_ns = start + (o->bytes_per_ns > 0 ? (uint64_t)((double)n_bytes / o->bytes_per_ns) : 0);
  const opipe_stream_params *p = &w->base.params;
  uint64_t at = w->free_ns + o->latency_ns + emutrans_chance(o, p->src_rank, p->dst_rank, sequence);
  for (uint32_t i = 0; i < o->n_faults; ++i) {
    const fault *f = &o->faults[i];
    if (f->src != w->base.params.src_rank || f->dst != w->base.params.dst_rank ||
        f->sequence != sequence)
      continue;
    at = f->delay_ns == UINT64_MAX ? UINT64_MAX : at + f->delay_ns;
  }
  return at;
}

void emutrans_look_at(opipe_endpoint *e, uint64_t ns) {
  if (ns < e->next_ns)
    e->next_ns = ns;
}

opipe_status emutrans_move(opipe_stream *s, cell *c, uint64_t sequence, opipe_error *err) {
  const uint64_t now = emutrans_now();
  if (c->arrived > sequence)
    return OPIPE_OK;
  if (c->sent != sequence + 1 || c->posted != sequence + 1)
    return OPIPE_PENDING;
  if (emutrans_is_queued(c))
    return OPIPE_PENDING; /* the receiver's lane has not got it yet */
  if (c->after != NULL) {
    const opipe_status after = s->wire->dst_backend->event_poll(c->after, err);
    if (after == OPIPE_PENDING)
      emutrans_look_at(s->endpoint, now + AGAIN_NS);
    if (after < 0 && (s->sides & 2u) == 0)
      return OPIPE_PENDING; /* the receiver's rank knows more about it */
    if (after != OPIPE_OK)
      return after;
    c->after = NULL;
  }
  if (c->ready != NULL) {
    const opipe_status ready = s->wire->src_backend->event_poll(c->ready, err);
    if (ready == OPIPE_PENDING)
      emutrans_look_at(s->endpoint, now + AGAIN_NS);
    if (ready < 0 && (s->sides & 1u) == 0)
      return OPIPE_PENDING; /* the sender's device has failed: its rank knows more about it */
    if (ready != OPIPE_OK)
      return ready;
    c->ready = NULL;
    c->at_ns = arrival(s->endpoint->world, s->wire, c, sequence);
  }
  if (c->at_ns > now) {
    emutrans_look_at(s->endpoint, c->at_ns);
    return OPIPE_PENDING;
  }
  if (c->n_bytes != 0)
    memmove(c->target, c->source, (size_t)c->n_bytes);
  c->arrived = sequence + 1;
  emutrans_ring_locked(s->endpoint->world, s->wire->base.params.src_rank);
  emutrans_ring_locked(s->endpoint->world, s->wire->base.params.dst_rank);
  return OPIPE_OK;
}

opipe_status emutrans_reserve(opipe_stream *s, uint64_t sequence, opipe_error *err) {
  opipe_world *world = s->endpoint->world;
  pthread_mutex_lock(&world->lock);
  opipe_status status = check_side(s, 0, "reserve", err);
  if (status == OPIPE_OK)
    status = emutrans_not_noting(s->endpoint, "reserve", err);
  if (status == OPIPE_OK && emutrans_cell(s, sequence)->posted != sequence + 1)
    status = OPIPE_PENDING;
  pthread_mutex_unlock(&world->lock);
  return status;
}

opipe_status emutrans_meet(opipe_world *world, wire *w, cell *c, uint64_t sequence,
                           opipe_error *err) {
  if (c->offered != sequence + 1 || c->posted != sequence + 1 || c->sent == sequence + 1)
    return OPIPE_OK;
  if (c->n_bytes > c->room_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "message %llu has %llu bytes, rank %u posted room for %llu",
                      (unsigned long long)sequence, (unsigned long long)c->n_bytes,
                      w->base.params.dst_rank, (unsigned long long)c->room_bytes);
  }
  if (c->ready == NULL) /* else it leaves when that has completed */
    c->at_ns = arrival(world, w, c, sequence);
  c->sent = sequence + 1;
  w->n_sent = sequence + 1;
  return OPIPE_OK;
}

/* orders: what the receiver waits for is `done`. */
static opipe_status recv_locked(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                                opipe_event *ready, opipe_event *done, bool orders,
                                opipe_error *err) {
  void *target = NULL;
  cell *c = emutrans_cell(s, sequence);
  opipe_status status = check_side(s, 1, "recv", err);
  if (status == OPIPE_OK)
    status = check_order(s, sequence, s->wire->n_posted, "recv", err);
  if (status == OPIPE_OK)
    status = emutrans_address(s->endpoint, region, &target, err);
  if (status < 0)
    return status;
  if (emutrans_clock_takes(s->endpoint, orders)) {
    const operation op = {s, sequence, 1};
    return emutrans_clock_note(s->endpoint, &op, target, region->n_bytes, ready, done, orders, err);
  }
  if (c->posted > sequence) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "recv of message %llu: message %llu of the same slot was posted before",
                      (unsigned long long)sequence, (unsigned long long)(c->posted - 1));
  }
  if (c->arrived != c->posted)
    return OPIPE_PENDING;
  status = emutrans_begin(s, c, sequence, 1, err);
  if (status != OPIPE_OK)
    return status;
  c->target = target;
  c->room_bytes = region->n_bytes;
  c->recv_done = done;
  c->after = ready;
  c->to = *region;
  c->orders[1] = orders && s->endpoint->noting;
  c->from_ns[1] = 0;
  if (s->endpoint->noting)
    return OPIPE_OK; /* it stands at the end of the batch */
  c->posted = sequence + 1;
  s->wire->n_posted = sequence + 1;
  emutrans_ring_locked(s->endpoint->world, s->wire->base.params.src_rank);
  return emutrans_meet(s->endpoint->world, s->wire, c, sequence, err);
}

opipe_status emutrans_recv(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                           opipe_event *done, opipe_error *err) {
  opipe_world *world = s->endpoint->world;
  pthread_mutex_lock(&world->lock);
  const opipe_status status = recv_locked(s, sequence, region, NULL, done, false, err);
  pthread_mutex_unlock(&world->lock);
  return status;
}

opipe_status emutrans_recv_after(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                                 opipe_event *ready, opipe_event *done, opipe_error *err) {
  opipe_world *world = s->endpoint->world;
  if (done == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID, "recv_after of message %llu: done is NULL",
                      (unsigned long long)sequence);
  }
  pthread_mutex_lock(&world->lock);
  const opipe_status status = recv_locked(s, sequence, region, ready, done, true, err);
  pthread_mutex_unlock(&world->lock);
  return status;
}

static opipe_status send_locked(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                                opipe_event *ready, opipe_event *done, opipe_error *err) {
  void *source = NULL;
  cell *c = emutrans_cell(s, sequence);
  opipe_status status = check_side(s, 0, "send", err);
  if (status == OPIPE_OK && (c->sent > sequence || c->offered > sequence)) {
    status = opipe_fail(err, OPIPE_E_STATE, "send of message %llu: it was sent before",
                        (unsigned long long)sequence);
  }
  if (status == OPIPE_OK)
    status = check_order(s, sequence, s->wire->n_sent, "send", err);
  if (status == OPIPE_OK)
    status = emutrans_address(s->endpoint, region, &source, err);
  if (status < 0)
    return status;
  if (emutrans_clock_takes(s->endpoint, done != NULL)) {
    const operation op = {s, sequence, 0};
    return emutrans_clock_note(s->endpoint, &op, source, region->n_bytes, ready, done, done != NULL,
                               err);
  }
  status = emutrans_begin(s, c, sequence, 0, err);
  if (status == OPIPE_OK && !s->endpoint->noting && c->posted != sequence + 1)
    status = OPIPE_PENDING;
  if (status == OPIPE_OK)
    status = emutrans_may_send(s, c, sequence, err);
  if (status != OPIPE_OK)
    return status;
  c->source = source;
  c->n_bytes = region->n_bytes;
  c->ready = ready;
  c->send_done = done;
  c->orders[0] = false;
  c->from_ns[0] = 0;
  if (s->endpoint->noting)
    return OPIPE_OK; /* it is offered at the end of the batch */
  c->offered = sequence + 1;
  emutrans_ring_locked(s->endpoint->world, s->wire->base.params.dst_rank);
  return emutrans_meet(s->endpoint->world, s->wire, c, sequence, err);
}

opipe_status emutrans_send(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                           opipe_event *ready, opipe_event *done, opipe_error *err) {
  opipe_world *world = s->endpoint->world;
  pthread_mutex_lock(&world->lock);
  const opipe_status status = send_locked(s, sequence, region, ready, done, err);
  pthread_mutex_unlock(&world->lock);
  return status;
}

/* By side: has the operation's batch on a lane by the clock ended? */
static bool is_through(const opipe_stream *s, const cell *c, uint64_t sequence) {
  return ((s->sides & 1u) != 0 && c->through[0] > sequence) ||
         ((s->sides & 2u) != 0 && c->through[1] > sequence);
}

static opipe_status test_locked(opipe_stream *s, uint64_t sequence, opipe_error *err) {
  cell *c = emutrans_cell(s, sequence);
  opipe_status status = emutrans_queue_move(s->endpoint, err);
  if (status >= 0) /* of an earlier batch, perhaps */
    status = emutrans_move(s, c, sequence, err);
  if (status == OPIPE_OK)
    status = emutrans_batch_done(s, sequence, err);
  if (status == OPIPE_OK && (s->sides & 1u) != 0 && c->sent == sequence + 1)
    status = emutrans_record(s->endpoint, &c->send_done, err);
  if (status == OPIPE_OK && (s->sides & 2u) != 0 && c->posted == sequence + 1)
    status = emutrans_record(s->endpoint, &c->recv_done, err);
  return status;
}

opipe_status emutrans_test(opipe_stream *s, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  pthread_mutex_lock(&e->world->lock);
  opipe_status status = emutrans_check(e->world, err);
  if (status == OPIPE_OK)
    status = emutrans_not_noting(e, "test", err);
  if (status == OPIPE_OK) {
    emutrans_close_group(e);
    status = emutrans_clock_move(e, err);
  }
  if (status >= 0 && is_through(s, emutrans_cell(s, sequence), sequence))
    status = OPIPE_OK;
  else if (status >= 0 && emutrans_clock_has(e, s, sequence))
    status = OPIPE_PENDING;
  else if (status >= 0)
    status = test_locked(s, sequence, err);
  pthread_mutex_unlock(&e->world->lock);
  return status;
}
