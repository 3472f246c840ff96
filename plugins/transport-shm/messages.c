/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: post, reserve, send, test. The sender copies to where the receiver's cell says, and
 * publishes a number. A message whose data is ready only later (an event of the sender's device) is
 * copied by whichever call of the sender's rank first finds it ready.
 */
#include "shm.h"

static opipe_status record(const opipe_endpoint *e, opipe_event *event, opipe_error *err) {
  return opipe_endpoint_record(e->rank, e->backend, e->queue, event, err);
}

static opipe_status check_side(const opipe_stream *stream, uint32_t side, const char *what,
                               opipe_error *err) {
  if ((stream->sides & (1u << side)) == 0)
    return opipe_stream_not_held(stream->endpoint->rank, &stream->params, what, err);
  return stream->endpoint->late != NULL ? shm_go_on(stream->endpoint, err)
                                        : shm_check(stream->endpoint->world, err);
}

static shm_slot *slot_of(const opipe_stream *stream, uint32_t side, uint64_t sequence) {
  return &stream->ends[side].slots[sequence % stream->params.depth];
}

static shm_cell *cell_of(const opipe_stream *stream, uint32_t side, uint64_t sequence) {
  shm_cell *cells = atomic_load_explicit(&stream->ends[side].cells, memory_order_acquire);
  return cells == NULL ? NULL : &cells[sequence % stream->params.depth];
}

/* ---- the sender ---- */

opipe_status shm_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  const opipe_status status = check_side(stream, 0, "reserve", err);
  if (status < 0)
    return status;
  shm_cell *cell = cell_of(stream, 0, sequence);
  if (cell == NULL || atomic_load_explicit(&cell->posted, memory_order_acquire) != sequence + 1)
    return OPIPE_PENDING;
  return OPIPE_OK;
}

/* The message is where it belongs. */
static opipe_status publish(shm_slot *slot, opipe_error *err) {
  opipe_stream *stream = slot->stream;
  opipe_endpoint *e = stream->endpoint;
  shm_cell *cell = cell_of(stream, 0, slot->begun - 1);
  if (slot->source != NULL && slot->n_bytes != 0)
    memmove(slot->target, slot->source, (size_t)slot->n_bytes);
  if (slot->to != NULL)
    shm_let_go(slot->to);
  slot->to = NULL;
  slot->ended = slot->begun;
  atomic_store_explicit(&cell->n_bytes, slot->n_bytes, memory_order_relaxed);
  atomic_store_explicit(&cell->sent, slot->begun, memory_order_release);
  shm_ring_rank(e->world, stream->params.dst_rank);
  return record(e, slot->done, err);
}

opipe_status shm_go_on(opipe_endpoint *endpoint, opipe_error *err) {
  opipe_status status = shm_check(endpoint->world, err);
  shm_slot **at = &endpoint->late;
  while (status >= 0 && *at != NULL) {
    shm_slot *slot = *at;
    status = endpoint->backend->event_poll(slot->ready, err);
    if (status == OPIPE_OK) {
      *at = slot->next;
      status = publish(slot, err);
    } else {
      at = &slot->next;
    }
  }
  endpoint->unready = endpoint->unready || endpoint->late != NULL;
  return status < 0 ? status : OPIPE_OK;
}

void shm_cancel(const opipe_stream *stream) {
  shm_slot **at = &stream->endpoint->late;
  while (*at != NULL) {
    shm_slot *slot = *at;
    if (slot->stream != stream) {
      at = &slot->next;
      continue;
    }
    *at = slot->next;
    if (slot->to != NULL)
      shm_let_go(slot->to);
  }
}

/* Where the receiver wants message `sequence`. */
static opipe_status find_target(opipe_stream *stream, uint64_t sequence, shm_slot *slot,
                                uint64_t n_bytes, opipe_error *err) {
  const opipe_stream_params *p = &stream->params;
  shm_cell *cell = cell_of(stream, 0, sequence);
  if (cell == NULL || atomic_load_explicit(&cell->posted, memory_order_acquire) != sequence + 1)
    return OPIPE_PENDING;
  const uint64_t room = atomic_load_explicit(&cell->room, memory_order_relaxed);
  const shm_place place = {.offset = atomic_load_explicit(&cell->offset, memory_order_relaxed),
                           .segment = atomic_load_explicit(&cell->segment, memory_order_relaxed)};
  slot->to = NULL;
  slot->target = NULL;
  if (n_bytes > room) {
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "stream %u of stages %u -> %u: message %llu has %llu bytes, rank %u posted room for %llu",
        p->index, p->src_stage, p->dst_stage, (unsigned long long)sequence,
        (unsigned long long)n_bytes, p->dst_rank, (unsigned long long)room);
  }
  return n_bytes == 0 ? OPIPE_OK
                      : shm_use(stream->endpoint->world, p->dst_rank, place, n_bytes, 1, &slot->to,
                                &slot->target, err);
}

/* A region without a host address: its queue reads it to the receiver's memory. */
static opipe_status fetch(const opipe_endpoint *e, shm_slot *slot, const opipe_region *region,
                          opipe_event *ready, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (slot->moved == NULL)
    status = e->backend->event_create(e->device, &slot->moved, err);
  if (status >= 0 && ready != NULL)
    status = e->backend->event_wait(e->queue, ready, err);
  if (status >= 0)
    status = e->backend->read(e->queue, slot->target, region, err);
  return status < 0 ? status : e->backend->event_record(e->queue, slot->moved, err);
}

opipe_status shm_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                      opipe_event *ready, opipe_event *done, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  void *source = NULL;
  bool remote = false;
  opipe_status status = check_side(stream, 0, "send", err);
  if (status == OPIPE_OK)
    status = shm_address(e, region, &source, &remote, err);
  if (status < 0)
    return status;
  shm_slot *slot = slot_of(stream, 0, sequence);
  if (slot->begun > sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "send of message %llu: it was sent before",
                      (unsigned long long)sequence);
  }
  if (slot->begun != slot->ended)
    return OPIPE_PENDING; /* the cell's message before waits for its device */
  status = find_target(stream, sequence, slot, region->n_bytes, err);
  if (status != OPIPE_OK)
    return status;
  remote = remote && region->n_bytes > 0;
  if (remote)
    status = fetch(e, slot, region, ready, err);
  slot->ready = remote ? slot->moved : ready;
  if (status >= 0 && slot->ready != NULL)
    status = e->backend->event_poll(slot->ready, err);
  if (status < 0) {
    if (slot->to != NULL)
      shm_let_go(slot->to);
    return status;
  }
  slot->begun = sequence + 1;
  slot->source = remote ? NULL : source;
  slot->n_bytes = region->n_bytes;
  slot->done = done;
  if (status == OPIPE_OK)
    return publish(slot, err);
  slot->next = e->late;
  e->late = slot;
  e->unready = true;
  return OPIPE_OK;
}

/* ---- the receiver ---- */

/* The place of the region that message `sequence` is received in. */
static opipe_status find_place(opipe_stream *stream, shm_slot *slot, const void *data, bool remote,
                               shm_place *out_place, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  slot->away = false;
  if (slot->region.n_bytes == 0 || (!remote && shm_find(e, data, slot->region.n_bytes, out_place)))
    return OPIPE_OK;
  if (slot->bounce == NULL) {
    pthread_mutex_lock(&e->world->lock);
    const opipe_status status = shm_stream_bounce(stream, err);
    pthread_mutex_unlock(&e->world->lock);
    if (status < 0)
      return status;
  }
  slot->away = true;
  *out_place = slot->bounce->place;
  if (slot->region.n_bytes > slot->bounce->n_bytes)
    slot->region.n_bytes = slot->bounce->n_bytes;
  return OPIPE_OK;
}

/* From the bounce to the region, in the queue's order where that is a device's. */
static opipe_status bring_home(const opipe_stream *stream, shm_slot *slot, uint64_t n_bytes,
                               opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  opipe_region region = slot->region;
  void *data = NULL;
  bool remote = false;
  region.n_bytes = n_bytes;
  opipe_status status = shm_address(e, &region, &data, &remote, err);
  if (status < 0 && !remote)
    return status;
  if (!remote) {
    memcpy(data, slot->bounce->data, (size_t)n_bytes);
    return OPIPE_OK;
  }
  status = OPIPE_OK;
  if (slot->moved == NULL)
    status = e->backend->event_create(e->device, &slot->moved, err);
  if (status >= 0)
    status = e->backend->write(e->queue, &region, slot->bounce->data, err);
  return status < 0 ? status : e->backend->event_record(e->queue, slot->moved, err);
}

/* OK once the message that the slot waits for is there, and where it belongs. */
static opipe_status finish(opipe_stream *stream, shm_slot *slot, opipe_error *err) {
  const opipe_stream_params *p = &stream->params;
  shm_cell *cell = cell_of(stream, 1, slot->begun - 1);
  opipe_status status = OPIPE_OK;
  if (atomic_load_explicit(&cell->sent, memory_order_acquire) != slot->begun)
    return OPIPE_PENDING;
  const uint64_t n_bytes = atomic_load_explicit(&cell->n_bytes, memory_order_relaxed);
  if (n_bytes > slot->region.n_bytes) {
    return opipe_fail(err, OPIPE_E_PEER,
                      "stream %u of stages %u -> %u: rank %u says that message %llu has %llu "
                      "bytes, there was room for %llu",
                      p->index, p->src_stage, p->dst_stage, p->src_rank,
                      (unsigned long long)(slot->begun - 1), (unsigned long long)n_bytes,
                      (unsigned long long)slot->region.n_bytes);
  }
  if (slot->away && n_bytes > 0)
    status = bring_home(stream, slot, n_bytes, err);
  if (status < 0)
    return status;
  slot->ended = slot->begun;
  return record(stream->endpoint, slot->done, err);
}

/* Has what the slot held before left it? */
static opipe_status is_free(opipe_stream *stream, shm_slot *slot, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  opipe_status status = OPIPE_OK;
  if (slot->begun != slot->ended)
    status = finish(stream, slot, err);
  if (status == OPIPE_OK && slot->moved != NULL) {
    status = e->backend->event_poll(slot->moved, err);
    e->unready = e->unready || status == OPIPE_PENDING;
  }
  return status;
}

opipe_status shm_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                      opipe_event *done, opipe_error *err) {
  void *data = NULL;
  bool remote = false;
  shm_place place = {.offset = 0};
  opipe_status status = check_side(stream, 1, "recv", err);
  if (status == OPIPE_OK)
    status = shm_address(stream->endpoint, region, &data, &remote, err);
  if (status < 0)
    return status;
  shm_slot *slot = slot_of(stream, 1, sequence);
  shm_cell *cell = cell_of(stream, 1, sequence);
  if (slot->begun > sequence) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "recv of message %llu: message %llu of the same slot was posted before",
                      (unsigned long long)sequence, (unsigned long long)(slot->begun - 1));
  }
  status = is_free(stream, slot, err);
  if (status != OPIPE_OK)
    return status;
  slot->region = *region;
  status = find_place(stream, slot, data, remote, &place, err);
  if (status < 0)
    return status;
  slot->begun = sequence + 1;
  slot->done = done;
  atomic_store_explicit(&cell->offset, place.offset, memory_order_relaxed);
  atomic_store_explicit(&cell->segment, place.segment, memory_order_relaxed);
  atomic_store_explicit(&cell->room, slot->region.n_bytes, memory_order_relaxed);
  atomic_store_explicit(&cell->posted, sequence + 1, memory_order_release);
  shm_ring_rank(stream->endpoint->world, stream->params.src_rank);
  return OPIPE_OK;
}

/* ---- both ---- */

opipe_status shm_test(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  opipe_status status = e->late != NULL ? shm_go_on(e, err) : shm_check(e->world, err);
  if (status == OPIPE_OK && (stream->sides & 2u) != 0) {
    shm_slot *slot = slot_of(stream, 1, sequence);
    if (slot->ended <= sequence)
      status = slot->begun == sequence + 1 ? finish(stream, slot, err) : OPIPE_PENDING;
  }
  if (status == OPIPE_OK && (stream->sides & 1u) != 0 &&
      slot_of(stream, 0, sequence)->ended <= sequence)
    status = OPIPE_PENDING;
  return status;
}
