/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: post, reserve, publish, test. One cell per sequence number modulo the stream's depth.
 *
 * In place: the sender's region is the posted one, and publishing is one store. Else the sender
 * copies before it publishes; on one device its queue does, from region to region (near.c). When
 * the data is ready only later (an event of the sender's device), the message is published at once
 * and the side that first finds it ready finishes it: a sender may wait for its memory while the
 * receiver is at something else that waits for the sender.
 */
#include "local.h"

static cell *cell_of(const opipe_stream *stream, uint64_t sequence) {
  const opipe_wire *w = &stream->wire->base;
  return (cell *)w->cells + sequence % w->params.depth;
}

static opipe_status check_side(const opipe_stream *stream, uint32_t side, const char *what,
                               opipe_error *err) {
  if ((stream->sides & (1u << side)) != 0)
    return local_check(stream->endpoint->world, err);
  return opipe_stream_not_held(stream->endpoint->rank, &stream->wire->base.params, what, err);
}

opipe_status local_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  const opipe_status status = check_side(stream, 0, "reserve", err);
  if (status < 0)
    return status;
  cell *c = cell_of(stream, sequence);
  if (atomic_load_explicit(&c->posted, memory_order_acquire) != sequence + 1)
    return OPIPE_PENDING;
  __builtin_prefetch(&c->sent, 1); /* the line is here when it is sent */
  return OPIPE_OK;
}

opipe_status local_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                        opipe_event *done, opipe_error *err) {
  void *target = NULL;
  bool remote = false;
  cell *c = cell_of(stream, sequence);
  opipe_status status = check_side(stream, 1, "recv", err);
  if (status == OPIPE_OK)
    status = local_address(stream->endpoint, region, &target, &remote, err);
  const bool near = status == OPIPE_OK && remote && local_stream_is_near(stream);
  if (status == OPIPE_OK && remote && !near)
    status = local_stream_bounce(stream, err);
  if (status < 0)
    return status;
  const uint64_t before = atomic_load_explicit(&c->posted, memory_order_relaxed);
  if (before > sequence) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "recv of message %llu: message %llu of the same slot was posted before",
                      (unsigned long long)sequence, (unsigned long long)(before - 1));
  }
  if (before != 0 && atomic_load_explicit(&c->arrived, memory_order_acquire) != before)
    return OPIPE_PENDING;
  if (remote && c->written != NULL) { /* the cell's previous message has left the bounce */
    status = stream->endpoint->backend->event_poll(c->written, err);
    if (status == OPIPE_PENDING)
      stream->endpoint->unready = true;
    if (status != OPIPE_OK)
      return status;
  }
  c->region = *region;
  c->away = remote && region->n_bytes > 0;
  if (remote)
    target = near ? NULL : c->bounce;
  c->target = target;
  c->recv_done = done;
  atomic_store_explicit(&c->posted, sequence + 1, memory_order_release);
  local_ring_rank(stream->endpoint->world, stream->wire->base.params.src_rank);
  return OPIPE_OK;
}

opipe_status local_recv_after(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                              opipe_event *ready, opipe_event *done, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  opipe_status status = check_side(stream, 1, "recv_after", err);
  if (status == OPIPE_OK && done == NULL) {
    status = opipe_fail(err, OPIPE_E_INVALID, "recv_after of message %llu: done is NULL",
                        (unsigned long long)sequence);
  }
  if (status == OPIPE_OK && ready != NULL)
    status = e->backend->event_poll(ready, err);
  if (status == OPIPE_PENDING)
    e->unready = true;
  return status == OPIPE_OK ? local_recv(stream, sequence, region, done, err) : status;
}

static void copy_bytes(char *to, const char *from, uint64_t n_bytes) {
  if (n_bytes != 0 && to != from)
    memmove(to, from, (size_t)n_bytes);
}

/* The awaited event: OK once the data is valid, and there. */
static opipe_status finish_late(opipe_stream *stream, cell *c, uint64_t sequence,
                                opipe_error *err) {
  const wire *w = stream->wire;
  const opipe_status status = w->src_backend->event_poll(c->ready, err);
  if (status == OPIPE_PENDING)
    stream->endpoint->unready = true;
  if (status < 0 && (stream->sides & 1u) == 0)
    return OPIPE_PENDING; /* the sender's device has failed: its rank knows more about it */
  if (status != OPIPE_OK)
    return status;
  uint64_t before = atomic_load_explicit(&c->taken, memory_order_relaxed);
  if (before > sequence ||
      !atomic_compare_exchange_strong_explicit(&c->taken, &before, sequence + 1,
                                               memory_order_acquire, memory_order_relaxed))
    return OPIPE_PENDING; /* the other side is at it, and rings */
  if (c->source != NULL)
    copy_bytes(c->target, c->source, c->n_bytes);
  atomic_store_explicit(&c->arrived, sequence + 1, memory_order_release);
  local_ring_rank(stream->endpoint->world, w->base.params.src_rank);
  local_ring_rank(stream->endpoint->world, w->base.params.dst_rank);
  return OPIPE_OK;
}

static opipe_status publish(opipe_stream *stream, cell *c, uint64_t sequence, const char *source,
                            uint64_t n_bytes, opipe_event *ready, opipe_error *err) {
  c->ready = NULL;
  c->source = source == c->target ? NULL : source;
  c->n_bytes = n_bytes;
  opipe_status status = OPIPE_OK;
  if (ready != NULL)
    status = stream->endpoint->backend->event_poll(ready, err);
  if (status < 0)
    return status;
  if (status == OPIPE_PENDING) {
    c->ready = ready;
  } else {
    copy_bytes(c->target, source, n_bytes);
    atomic_store_explicit(&c->arrived, sequence + 1, memory_order_release);
  }
  atomic_store_explicit(&c->sent, sequence + 1, memory_order_release);
  local_ring_rank(stream->endpoint->world, stream->wire->base.params.dst_rank);
  return OPIPE_OK;
}

/* A region without a host address: its queue reads it to where the receiver wants it, and that is
 * what is awaited. */
static opipe_status fetch(opipe_stream *stream, cell *c, const opipe_region *region,
                          opipe_event **io_ready, opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  opipe_status status = local_stream_bounce(stream, err);
  if (status >= 0 && *io_ready != NULL)
    status = e->backend->event_wait(e->queue, *io_ready, err);
  if (status >= 0)
    status = e->backend->read(e->queue, c->target, region, err);
  if (status >= 0)
    status = e->backend->event_record(e->queue, c->fetched, err);
  *io_ready = c->fetched;
  return status;
}

opipe_status local_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                        opipe_event *ready, opipe_event *done, opipe_error *err) {
  void *source = NULL;
  bool remote = false;
  cell *c = cell_of(stream, sequence);
  opipe_status status = check_side(stream, 0, "send", err);
  if (status == OPIPE_OK)
    status = local_address(stream->endpoint, region, &source, &remote, err);
  if (status < 0)
    return status;
  if (atomic_load_explicit(&c->sent, memory_order_relaxed) > sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "send of message %llu: it was sent before",
                      (unsigned long long)sequence);
  }
  if (atomic_load_explicit(&c->posted, memory_order_acquire) != sequence + 1)
    return OPIPE_PENDING;
  if (region->n_bytes > c->region.n_bytes) {
    const opipe_stream_params *p = &stream->wire->base.params;
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "stream %u of stages %u -> %u: message %llu has %llu bytes, rank %u posted room for %llu",
        p->index, p->src_stage, p->dst_stage, (unsigned long long)sequence,
        (unsigned long long)region->n_bytes, p->dst_rank, (unsigned long long)c->region.n_bytes);
  }
  c->placed = c->away && region->n_bytes > 0 && local_stream_is_near(stream);
  if (c->placed || (remote && region->n_bytes > 0)) {
    status = (c->placed ? local_place : fetch)(stream, c, region, &ready, err);
    source = c->target;
    if (status < 0)
      return status;
  }
  status = publish(stream, c, sequence, source, region->n_bytes, ready, err);
  if (status < 0)
    return status;
  if (atomic_load_explicit(&c->arrived, memory_order_relaxed) == sequence + 1)
    return local_record(stream->endpoint, done, err);
  c->send_done = done;
  return OPIPE_OK;
}

/* The receiver's side: what has come to the bounce goes to its region, in the queue's order. */
static opipe_status bring_home(const opipe_stream *stream, cell *c, uint64_t sequence,
                               opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  if ((stream->sides & 2u) == 0 || !c->away ||
      atomic_load_explicit(&c->posted, memory_order_relaxed) != sequence + 1)
    return OPIPE_OK;
  c->away = false;
  if (c->placed)
    return OPIPE_OK;
  opipe_region region = c->region;
  region.n_bytes = c->n_bytes;
  const opipe_status status = e->backend->write(e->queue, &region, c->bounce, err);
  return status < 0 ? status : e->backend->event_record(e->queue, c->written, err);
}

/* Records the events that this rank asked for with message `sequence`, once. */
static opipe_status record_done(const opipe_stream *stream, cell *c, uint64_t sequence,
                                opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if ((stream->sides & 1u) != 0 && c->send_done != NULL &&
      atomic_load_explicit(&c->sent, memory_order_relaxed) == sequence + 1) {
    status = local_record(stream->endpoint, c->send_done, err);
    c->send_done = NULL;
  }
  if (status == OPIPE_OK && (stream->sides & 2u) != 0 && c->recv_done != NULL &&
      atomic_load_explicit(&c->posted, memory_order_relaxed) == sequence + 1) {
    status = local_record(stream->endpoint, c->recv_done, err);
    c->recv_done = NULL;
  }
  return status;
}

opipe_status local_test(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  cell *c = cell_of(stream, sequence);
  opipe_status status = local_check(stream->endpoint->world, err);
  if (status < 0)
    return status;
  if (atomic_load_explicit(&c->arrived, memory_order_acquire) <= sequence) {
    if (atomic_load_explicit(&c->sent, memory_order_acquire) != sequence + 1)
      return OPIPE_PENDING;
    if (atomic_load_explicit(&c->arrived, memory_order_acquire) <= sequence) {
      status = finish_late(stream, c, sequence, err);
      if (status != OPIPE_OK)
        return status;
    }
  }
  status = bring_home(stream, c, sequence, err);
  return status < 0 ? status : record_done(stream, c, sequence, err);
}
