/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: post, reserve, send, test. The sender copies to where the receiver's cell says, and
 * publishes a number. A message whose data is ready only later (an event of the sender's device) is
 * copied by whichever call of the sender's rank first finds it ready.
 */
#include <unistd.h>

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

/* Says that the message is there; queued: once its event has completed. */
static void say(shm_slot *slot, bool queued) {
  opipe_stream *stream = slot->stream;
  shm_cell *cell = cell_of(stream, 0, slot->begun - 1);
  atomic_store_explicit(&cell->n_bytes, slot->n_bytes, memory_order_relaxed);
  atomic_store_explicit(&cell->queued, queued, memory_order_relaxed);
  atomic_store_explicit(&cell->sent, slot->begun, memory_order_release);
  slot->said = true;
  shm_ring_rank(stream->endpoint->world, stream->params.dst_rank);
}

static void let_go(shm_slot *slot) {
  if (slot->to != NULL)
    shm_let_go(slot->to);
  if (slot->into != NULL)
    shm_let_go_lent(slot->into);
  slot->to = NULL;
  slot->into = NULL;
}

/* The message is where it belongs. */
static opipe_status publish(shm_slot *slot, opipe_error *err) {
  if (slot->source != NULL && slot->n_bytes != 0)
    memmove(slot->target, slot->source, (size_t)slot->n_bytes);
  let_go(slot);
  slot->ended = slot->begun;
  if (!slot->said)
    say(slot, false);
  return record(slot->stream->endpoint, slot->done, err);
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
    let_go(slot);
  }
}

/* Where the receiver wants message `sequence`; *out_place: in its device memory, slot->into. */
static opipe_status find_target(opipe_stream *stream, uint64_t sequence, shm_slot *slot,
                                uint64_t n_bytes, opipe_region *out_place, opipe_error *err) {
  const opipe_stream_params *p = &stream->params;
  shm_cell *cell = cell_of(stream, 0, sequence);
  if (cell == NULL || atomic_load_explicit(&cell->posted, memory_order_acquire) != sequence + 1)
    return OPIPE_PENDING;
  const uint64_t room = atomic_load_explicit(&cell->room, memory_order_relaxed);
  const uint32_t lent = atomic_load_explicit(&cell->lent, memory_order_relaxed);
  const shm_place place = {.offset = atomic_load_explicit(&cell->offset, memory_order_relaxed),
                           .segment = atomic_load_explicit(&cell->segment, memory_order_relaxed)};
  slot->to = NULL;
  slot->into = NULL;
  slot->target = NULL;
  if (n_bytes > room) {
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "stream %u of stages %u -> %u: message %llu has %llu bytes, rank %u posted room for %llu",
        p->index, p->src_stage, p->dst_stage, (unsigned long long)sequence,
        (unsigned long long)n_bytes, p->dst_rank, (unsigned long long)room);
  }
  if (n_bytes == 0)
    return OPIPE_OK;
  if (lent != 0) {
    return shm_use_lent(stream->endpoint, p->dst_rank, lent, place.offset, n_bytes, &slot->into,
                        out_place, err);
  }
  return shm_use(stream->endpoint->world, p->dst_rank, place, n_bytes, 1, &slot->to, &slot->target,
                 err);
}

/* Memory that the queue reads to is pinned once, unless it is that of letters. */
static void pin(opipe_stream *stream, shm_slot *slot) {
  opipe_endpoint *e = stream->endpoint;
  opipe_error why = OPIPE_ERROR_INIT;
  if (stream->params.kind == OPIPE_STREAM_CONTROL ||
      atomic_load_explicit(&slot->to->pins, memory_order_acquire) != SHM_PIN_UNTRIED)
    return;
  pthread_mutex_lock(&e->world->lock);
  const bool pinned = shm_pin(e, slot->to, &why);
  pthread_mutex_unlock(&e->world->lock);
  if (!pinned && e->world->host->log != NULL)
    e->world->host->log(e->world->host->ctx, OPIPE_LOG_WARN, NULL, 0, why.message);
}

/* A region without a host address: its queue reads it to the receiver's memory, or copies it to the
 * receiver's device. */
static opipe_status fetch(opipe_stream *stream, shm_slot *slot, const opipe_region *region,
                          const opipe_region *place, opipe_event *ready, opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  opipe_status status = OPIPE_OK;
  if (slot->into == NULL)
    pin(stream, slot);
  if (slot->moved == NULL)
    status = e->backend->event_create(e->device, &slot->moved, err);
  if (status >= 0 && ready != NULL)
    status = e->backend->event_wait(e->queue, ready, err);
  if (status >= 0) {
    status = slot->into != NULL ? e->backend->copy(e->queue, place, region, err)
                                : e->backend->read(e->queue, slot->target, region, err);
  }
  return status < 0 ? status : e->backend->event_record(e->queue, slot->moved, err);
}

opipe_status shm_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                      opipe_event *ready, opipe_event *done, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  opipe_region place = {NULL, 0, 0};
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
  status = find_target(stream, sequence, slot, region->n_bytes, &place, err);
  if (status != OPIPE_OK)
    return status;
  remote = remote && region->n_bytes > 0;
  if (slot->into != NULL && !remote) {
    let_go(slot);
    return opipe_fail(err, OPIPE_E_PEER,
                      "rank %u wants message %llu in its device memory, it lies in the host's",
                      stream->params.dst_rank, (unsigned long long)sequence);
  }
  if (remote)
    status = fetch(stream, slot, region, &place, ready, err);
  slot->ready = remote ? slot->moved : ready;
  if (status >= 0 && slot->ready != NULL)
    status = e->backend->event_poll(slot->ready, err);
  if (status < 0) {
    let_go(slot);
    return status;
  }
  slot->begun = sequence + 1;
  slot->source = remote ? NULL : source;
  slot->n_bytes = region->n_bytes;
  slot->done = done;
  slot->said = false;
  if (status == OPIPE_OK)
    return publish(slot, err);
  if (slot->into != NULL && slot->lent)
    say(slot, true); /* the receiver looks at the event itself */
  slot->next = e->late;
  e->late = slot;
  e->unready = true;
  return OPIPE_OK;
}

/* ---- the receiver ---- */

/* The place of the region that message `sequence` is received in; *out_lent: in device memory. */
static opipe_status find_place(opipe_stream *stream, shm_slot *slot, const void *data, bool remote,
                               shm_place *out_place, uint32_t *out_lent, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  shm_end *end = &stream->ends[1];
  slot->away = false;
  if (slot->region.n_bytes == 0 || (!remote && shm_find(e, data, slot->region.n_bytes, out_place)))
    return OPIPE_OK;
  if (remote && (stream->way == OPIPE_WAY_DEVICE || stream->way == OPIPE_WAY_PEER ||
                 stream->way == OPIPE_WAY_SHARED)) {
    *out_lent = shm_find_lent(e, &slot->region);
    out_place->offset = slot->region.offset_bytes;
  }
  if (*out_lent != 0)
    return OPIPE_OK;
  if (slot->bounce == NULL) {
    pthread_mutex_lock(&e->world->lock);
    const opipe_status status = shm_stream_bounce(stream, err);
    pthread_mutex_unlock(&e->world->lock);
    if (status < 0)
      return status;
  }
  slot->away = true;
  *out_place = end->ring->place;
  out_place->offset += (uint64_t)(slot->bounce - end->ring->data);
  if (slot->region.n_bytes > end->step)
    slot->region.n_bytes = end->step;
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
    memcpy(data, slot->bounce, (size_t)n_bytes);
    return OPIPE_OK;
  }
  status = OPIPE_OK;
  if (slot->moved == NULL)
    status = e->backend->event_create(e->device, &slot->moved, err);
  if (status >= 0)
    status = e->backend->write(e->queue, &region, slot->bounce, err);
  return status < 0 ? status : e->backend->event_record(e->queue, slot->moved, err);
}

/* A message that the sender's queue is still copying: OK once its event has completed. */
static opipe_status look_at_event(const opipe_stream *stream, shm_slot *slot, const shm_cell *cell,
                                  opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  opipe_status status = OPIPE_OK;
  if (slot->peers == NULL) {
    opipe_shared event; /* read once */
    memcpy(&event, &cell->event, sizeof event);
    status = stream->way != OPIPE_WAY_SHARED || event.process == (uint64_t)getpid()
                 ? opipe_fail(err, OPIPE_E_PEER, "rank %u tells of an event that is not its own",
                              stream->params.src_rank)
                 : e->backend->event_open(e->device, &event, &slot->peers, err);
  }
  if (status >= 0)
    status = e->backend->event_poll(slot->peers, err);
  e->unready = e->unready || status == OPIPE_PENDING;
  return status;
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
  if (!slot->away && n_bytes > 0 && atomic_load_explicit(&cell->queued, memory_order_relaxed) != 0)
    status = look_at_event(stream, slot, cell, err);
  if (slot->away && n_bytes > 0)
    status = bring_home(stream, slot, n_bytes, err);
  if (status != OPIPE_OK)
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
  uint32_t lent = 0;
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
  status = find_place(stream, slot, data, remote, &place, &lent, err);
  if (status < 0)
    return status;
  slot->begun = sequence + 1;
  slot->done = done;
  atomic_store_explicit(&cell->offset, place.offset, memory_order_relaxed);
  atomic_store_explicit(&cell->segment, place.segment, memory_order_relaxed);
  atomic_store_explicit(&cell->lent, lent, memory_order_relaxed);
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
