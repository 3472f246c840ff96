/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: post, reserve, send, test. The receiver's operation is posted to UCX, then a note says
 * so; the sender's begins once its data is there. Which of the rank's calls first finds a late
 * message's event complete sends it.
 */
#include "ucx.h"

static opipe_status record(const opipe_endpoint *e, opipe_event *event, opipe_error *err) {
  return opipe_endpoint_record(e->rank, e->backend, e->queue, event, err);
}

static opipe_status check_side(const opipe_stream *stream, uint32_t side, const char *what,
                               opipe_error *err) {
  if (stream->side != side)
    return opipe_stream_not_held(stream->endpoint->rank, &stream->params, what, err);
  return ucx_go_on(stream->endpoint, err);
}

static ucx_slot *slot_of(const opipe_stream *stream, uint64_t sequence) {
  return &stream->slots[sequence % stream->params.depth];
}

static uint64_t tag_of(uint32_t receivers_id, uint64_t sequence) {
  return UCX_TAG_STREAM | (uint64_t)receivers_id << 32 | (uint32_t)sequence;
}

/* An operation of UCX that was cancelled, or has failed: the world has ended, or ends now. */
static opipe_status failed(const ucx_slot *slot, opipe_error *err) {
  opipe_world *world = slot->stream->endpoint->world;
  const opipe_status status = ucx_check(world, err);
  return status < 0 ? status
                    : ucx_failed(world, slot->stream->side == 0 ? "sending" : "receiving",
                                 slot->op.status, err);
}

/* ---- the sender ---- */

opipe_status ucx_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  if (stream->near != NULL)
    return shm_transport.reserve(stream->near, sequence, err);
  const opipe_status status = check_side(stream, 0, "reserve", err);
  if (status < 0)
    return status;
  if (!stream->joined || atomic_load_explicit(&slot_of(stream, sequence)->posted,
                                              memory_order_acquire) != sequence + 1)
    return OPIPE_PENDING;
  return OPIPE_OK;
}

static void start(ucx_slot *slot) {
  ucx_worker *worker = slot->stream->endpoint->worker;
  ucx_lock(worker);
  ucx_send_op(&slot->op, slot->source, slot->n_bytes,
              tag_of(slot->stream->peer_id, slot->begun - 1));
  if (ucx_is_pending(&slot->op))
    ucx_poke(worker);
  ucx_unlock(worker);
  slot->started = true;
}

/* OK once the region may be reused. */
static opipe_status finish_send(ucx_slot *slot, opipe_error *err) {
  if (slot->begun == slot->ended)
    return OPIPE_OK;
  if (!slot->started || ucx_is_pending(&slot->op))
    return OPIPE_PENDING;
  if (slot->op.status != UCP_FINE)
    return failed(slot, err);
  slot->ended = slot->begun;
  return record(slot->stream->endpoint, slot->done, err);
}

opipe_status ucx_go_on(opipe_endpoint *endpoint, opipe_error *err) {
  opipe_status status = ucx_check(endpoint->world, err);
  ucx_slot **at = &endpoint->late;
  while (status >= 0 && *at != NULL) {
    ucx_slot *slot = *at;
    if (!slot->started) {
      status = endpoint->backend->event_poll(slot->ready, err);
      endpoint->unready = endpoint->unready || status == OPIPE_PENDING;
      if (status == OPIPE_OK)
        start(slot);
    }
    if (slot->started)
      status = finish_send(slot, err);
    if (status == OPIPE_OK && slot->started) {
      *at = slot->next;
      slot->is_late = false;
    } else {
      at = &slot->next;
    }
  }
  return status < 0 ? status : OPIPE_OK;
}

void ucx_cancel(const opipe_stream *stream) {
  ucx_slot **at = &stream->endpoint->late;
  while (*at != NULL) {
    if ((*at)->stream == stream)
      *at = (*at)->next;
    else
      at = &(*at)->next;
  }
}

static opipe_status check_room(const opipe_stream *stream, uint64_t sequence, const ucx_slot *slot,
                               uint64_t n_bytes, opipe_error *err) {
  const opipe_stream_params *p = &stream->params;
  if (!stream->joined || atomic_load_explicit(&slot->posted, memory_order_acquire) != sequence + 1)
    return OPIPE_PENDING;
  const uint64_t room = atomic_load_explicit(&slot->room, memory_order_relaxed);
  if (n_bytes <= room)
    return OPIPE_OK;
  return opipe_fail(
      err, OPIPE_E_INVALID,
      "stream %u of stages %u -> %u: message %llu has %llu bytes, rank %u posted room for %llu",
      p->index, p->src_stage, p->dst_stage, (unsigned long long)sequence,
      (unsigned long long)n_bytes, p->dst_rank, (unsigned long long)room);
}

/* A region without a host address: its queue reads it to the slot's bounce. */
static opipe_status fetch(opipe_stream *stream, ucx_slot *slot, const opipe_region *region,
                          opipe_event *ready, opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  opipe_status status = stream->has_ring ? OPIPE_OK : ucx_stream_bounce(stream, err);
  if (status >= 0 && slot->moved == NULL)
    status = e->backend->event_create(e->device, &slot->moved, err);
  if (status >= 0 && ready != NULL)
    status = e->backend->event_wait(e->queue, ready, err);
  if (status >= 0)
    status = e->backend->read(e->queue, slot->bounce, region, err);
  return status < 0 ? status : e->backend->event_record(e->queue, slot->moved, err);
}

static void be_late(opipe_endpoint *e, ucx_slot *slot) {
  slot->next = e->late;
  slot->is_late = true;
  e->late = slot;
}

opipe_status ucx_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                      opipe_event *ready, opipe_event *done, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  void *source = NULL;
  bool remote = false;
  if (stream->near != NULL)
    return shm_transport.send(stream->near, sequence, region, ready, done, err);
  opipe_status status = check_side(stream, 0, "send", err);
  if (status == OPIPE_OK)
    status = ucx_address(e, region, &source, &remote, err);
  if (status < 0 || !stream->joined)
    return status < 0 ? status : OPIPE_PENDING;
  ucx_slot *slot = slot_of(stream, sequence);
  if (slot->begun > sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "send of message %llu: it was sent before",
                      (unsigned long long)sequence);
  }
  if (slot->is_late)
    return OPIPE_PENDING;
  status = finish_send(slot, err); /* of the slot's message before */
  if (status == OPIPE_OK)
    status = check_room(stream, sequence, slot, region->n_bytes, err);
  if (status != OPIPE_OK)
    return status;
  remote = remote && region->n_bytes > 0;
  if (remote)
    status = fetch(stream, slot, region, ready, err);
  slot->ready = remote ? slot->moved : ready;
  if (status >= 0 && slot->ready != NULL)
    status = e->backend->event_poll(slot->ready, err);
  if (status < 0)
    return status;
  slot->begun = sequence + 1;
  slot->source = remote ? slot->bounce : source;
  slot->n_bytes = region->n_bytes;
  slot->done = done;
  slot->started = false;
  if (status == OPIPE_OK)
    start(slot);
  else
    e->unready = true;
  if (slot->started)
    status = finish_send(slot, err);
  if (status == OPIPE_PENDING && (!slot->started || done != NULL))
    be_late(e, slot);
  return status < 0 ? status : OPIPE_OK;
}

/* ---- the receiver ---- */

/* From the bounce to the region, in the queue's order. */
static opipe_status bring_home(const ucx_slot *slot, opipe_error *err) {
  const opipe_endpoint *e = slot->stream->endpoint;
  opipe_region region = slot->region;
  region.n_bytes = slot->op.n_bytes;
  const opipe_status status = e->backend->write(e->queue, &region, slot->bounce, err);
  return status < 0 ? status : e->backend->event_record(e->queue, slot->moved, err);
}

/* OK once the message that the slot waits for is there, and where it belongs. */
static opipe_status finish(ucx_slot *slot, opipe_error *err) {
  if (slot->begun == slot->ended)
    return OPIPE_OK;
  if (ucx_is_pending(&slot->op))
    return OPIPE_PENDING;
  if (slot->op.status != UCP_FINE)
    return failed(slot, err);
  if (slot->away && slot->op.n_bytes > 0) {
    const opipe_status status = bring_home(slot, err);
    if (status < 0)
      return status;
  }
  slot->ended = slot->begun;
  return record(slot->stream->endpoint, slot->done, err);
}

/* Has what the slot held before left it? */
static opipe_status is_free(ucx_slot *slot, opipe_error *err) {
  opipe_endpoint *e = slot->stream->endpoint;
  opipe_status status = finish(slot, err);
  if (status == OPIPE_OK && ucx_is_pending(&slot->tells))
    status = OPIPE_PENDING;
  if (status == OPIPE_OK && slot->moved != NULL) {
    status = e->backend->event_poll(slot->moved, err);
    e->unready = e->unready || status == OPIPE_PENDING;
  }
  return status;
}

static opipe_status find_place(opipe_stream *stream, ucx_slot *slot, bool remote,
                               opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  opipe_status status = OPIPE_OK;
  slot->away = remote && slot->region.n_bytes > 0;
  if (!slot->away)
    return OPIPE_OK;
  if (!stream->has_ring)
    status = ucx_stream_bounce(stream, err);
  if (status >= 0 && slot->moved == NULL)
    status = e->backend->event_create(e->device, &slot->moved, err);
  if (slot->region.n_bytes > stream->params.n_bytes)
    slot->region.n_bytes = stream->params.n_bytes;
  return status;
}

/* Posts it, then tells the sender. */
static void post(opipe_stream *stream, ucx_slot *slot, void *data, uint64_t sequence) {
  ucx_worker *worker = stream->endpoint->worker;
  slot->posts = ucx_brief_of(worker, UCX_NOTE_POSTED, stream->id);
  slot->posts.to = stream->peer_id;
  slot->posts.sequence = sequence;
  slot->posts.n_bytes = slot->region.n_bytes;
  ucx_lock(worker);
  ucx_recv_op(&slot->op, data, slot->region.n_bytes, tag_of(stream->id, sequence), UINT64_MAX);
  ucx_tell_briefly(&slot->tells, &slot->posts);
  if (ucx_is_pending(&slot->tells))
    ucx_poke(worker);
  ucx_unlock(worker);
}

opipe_status ucx_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                      opipe_event *done, opipe_error *err) {
  void *data = NULL;
  bool remote = false;
  if (stream->near != NULL)
    return shm_transport.recv(stream->near, sequence, region, done, err);
  opipe_status status = check_side(stream, 1, "recv", err);
  if (status == OPIPE_OK)
    status = ucx_address(stream->endpoint, region, &data, &remote, err);
  if (status < 0 || !stream->joined)
    return status < 0 ? status : OPIPE_PENDING;
  ucx_slot *slot = slot_of(stream, sequence);
  if (slot->begun > sequence) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "recv of message %llu: message %llu of the same slot was posted before",
                      (unsigned long long)sequence, (unsigned long long)(slot->begun - 1));
  }
  status = is_free(slot, err);
  if (status != OPIPE_OK)
    return status;
  slot->region = *region;
  status = find_place(stream, slot, remote, err);
  if (status < 0)
    return status;
  slot->begun = sequence + 1;
  slot->done = done;
  post(stream, slot, slot->away ? slot->bounce : data, sequence);
  return OPIPE_OK;
}

/* ---- both ---- */

opipe_status ucx_test(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  if (stream->near != NULL)
    return shm_transport.test(stream->near, sequence, err);
  const opipe_status status = ucx_go_on(stream->endpoint, err);
  if (status < 0 || !stream->joined)
    return status < 0 ? status : OPIPE_PENDING;
  ucx_slot *slot = slot_of(stream, sequence);
  if (slot->ended > sequence)
    return OPIPE_OK;
  if (slot->begun != sequence + 1)
    return OPIPE_PENDING;
  return stream->side == 0 ? finish_send(slot, err) : finish(slot, err);
}
