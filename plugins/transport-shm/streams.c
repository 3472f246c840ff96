/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: the receiver's rank makes the cells, the sender's is told where they are. */
#include <stdio.h>

#include "shm.h"

static uint32_t other_rank(const opipe_stream_params *p, uint32_t side) {
  return side == 0 ? p->dst_rank : p->src_rank;
}

static opipe_status check_twice(const opipe_stream *stream, opipe_error *err) {
  const opipe_stream_params *p = &stream->params;
  for (const opipe_stream *at = stream->endpoint->world->streams; at != NULL; at = at->next) {
    if (at->endpoint == stream->endpoint && opipe_stream_same(&at->params, p)) {
      return opipe_fail(err, OPIPE_E_STATE,
                        "stream %u of stages %u -> %u is open already on rank %u", p->index,
                        p->src_stage, p->dst_stage, stream->endpoint->rank);
    }
  }
  return OPIPE_OK;
}

static opipe_status make_end(opipe_stream *stream, uint32_t side, opipe_error *err) {
  opipe_world *world = stream->endpoint->world;
  shm_end *end = &stream->ends[side];
  const uint32_t depth = stream->params.depth;
  end->slots = shm_new(world->host, "a stream", depth * sizeof *end->slots, err);
  if (end->slots == NULL)
    return OPIPE_E_NOMEM;
  for (uint32_t i = 0; i < depth; ++i)
    end->slots[i].stream = stream;
  end->id = ++world->last_id;
  if (side == 0)
    return OPIPE_OK;
  const opipe_status status =
      shm_take(world, stream->endpoint->rank, (uint64_t)depth * sizeof(shm_cell), false, "a stream",
               &end->span, err);
  if (status == OPIPE_OK)
    atomic_store(&end->cells, (shm_cell *)(void *)end->span->data);
  return status;
}

opipe_status shm_stream_bounce(opipe_stream *stream, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  shm_end *end = &stream->ends[1];
  const opipe_stream_params *p = &stream->params;
  const bool pin = stream->way == OPIPE_WAY_STAGED && e->has_remote;
  opipe_error why = OPIPE_ERROR_INIT;
  if (end->ring != NULL)
    return OPIPE_OK;
  end->step = opipe_ring_step(p->n_bytes);
  const uint64_t n_bytes = pin ? opipe_ring_bytes(p->depth, p->n_bytes) : p->depth * end->step;
  const opipe_status status =
      shm_take(e->world, e->rank, n_bytes, pin, "messages", &end->ring, err);
  if (status < 0)
    return status;
  for (uint32_t i = 0; i < p->depth; ++i)
    end->slots[i].bounce = end->ring->data + i * end->step;
  if (!pin)
    return OPIPE_OK;
  end->pinned = shm_pin(e, shm_mapped_of(e->world, e->rank, end->ring->place.segment), &why);
  if (!end->pinned) {
    stream->way = OPIPE_WAY_PAGEABLE;
    (void)snprintf(stream->why, sizeof stream->why, "%.150s", why.message);
  }
  return OPIPE_OK;
}

/* Letters, and what a backend without imports receives, lie in memory of the backend's. A device
 * without host memory waits for its sender, who knows whether it can do without. */
static bool needs_bounces(const opipe_stream *stream) {
  const opipe_endpoint *e = stream->endpoint;
  return (stream->sides & 2u) != 0 && e->has_other &&
         (stream->params.kind == OPIPE_STREAM_CONTROL || (!e->has_memory && !e->has_remote));
}

opipe_status shm_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                             opipe_stream **out_stream, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_status status = opipe_stream_check(endpoint->rank, world->n_ranks, params, err);
  if (status < 0)
    return status;
  opipe_stream *stream = shm_new(world->host, "a stream", sizeof *stream, err);
  if (stream == NULL)
    return OPIPE_E_NOMEM;
  stream->endpoint = endpoint;
  stream->params = *params;
  stream->params.struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes);
  stream->sides = opipe_stream_sides(params, endpoint->rank);
  pthread_mutex_lock(&world->lock);
  status = check_twice(stream, err);
  stream->next = world->streams;
  world->streams = stream;
  for (uint32_t side = 0; side < 2 && status >= 0; ++side) {
    if ((stream->sides & (1u << side)) != 0)
      status = make_end(stream, side, err);
  }
  if (status >= 0 && needs_bounces(stream))
    status = shm_stream_bounce(stream, err);
  for (uint32_t side = 0; side < 2 && status >= 0; ++side) {
    if ((stream->sides & (1u << side)) != 0)
      status = shm_tell_stream(stream, side, err);
  }
  if (status >= 0)
    status = shm_stream_ready(stream, err);
  pthread_mutex_unlock(&world->lock);
  if (status < 0)
    shm_stream_close(stream);
  else
    *out_stream = stream;
  return status < 0 ? status : OPIPE_OK;
}

static opipe_status join(opipe_stream *stream, uint32_t side, opipe_error *err) {
  opipe_world *world = stream->endpoint->world;
  shm_end *end = &stream->ends[side];
  const opipe_stream_params *p = &stream->params;
  const uint32_t other = other_rank(p, side);
  const shm_note key = {.kind = SHM_NOTE_STREAM, .stream = *p};
  shm_heard *at = *shm_bucket(world, &key), *found = NULL;
  for (; at != NULL; at = at->next) {
    if (at->note.kind == SHM_NOTE_STREAM && at->note.index != side && at->note.rank == other &&
        !at->taken && opipe_stream_same(&at->note.stream, p))
      found = at; /* the newest are first */
  }
  if (found == NULL)
    return OPIPE_PENDING;
  const opipe_status same = opipe_stream_agree(stream->endpoint->rank, p, &found->note.stream, err);
  if (same < 0)
    return same;
  if (side == 0) {
    shm_mapped *m = NULL;
    char *data = NULL;
    const opipe_status status =
        shm_use(world, other, found->note.place, (uint64_t)p->depth * sizeof(shm_cell),
                MACHINE_LINE, &m, &data, err);
    if (status != OPIPE_OK)
      return status;
    end->heard = found;
    found->taken = true;
    stream->cells_in = m;
    atomic_store_explicit(&end->cells, (shm_cell *)(void *)data, memory_order_release);
    return shm_decide_way(stream, &found->note, err);
  }
  end->heard = found;
  found->taken = true;
  return OPIPE_OK;
}

opipe_status shm_stream_ready(opipe_stream *stream, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (uint32_t side = 0; side < 2 && status >= 0; ++side) {
    if ((stream->sides & (1u << side)) == 0)
      continue;
    opipe_status one = OPIPE_OK;
    if (stream->ends[side].heard == NULL)
      one = join(stream, side, err);
    if (one == OPIPE_OK && side == 1 && stream->way == OPIPE_WAY_NONE)
      one = shm_take_way(stream, err);
    if (one != OPIPE_OK)
      status = one;
  }
  return status;
}

/* Copies that are on their way end first. */
static void free_slots(opipe_stream *stream, shm_end *end) {
  const opipe_endpoint *e = stream->endpoint;
  for (uint32_t i = 0; end->slots != NULL && i < stream->params.depth; ++i) {
    shm_slot *slot = &end->slots[i];
    if (slot->moved != NULL)
      (void)e->backend->event_sync(slot->moved, UINT64_MAX, NULL);
    if (slot->moved != NULL && !slot->lent)
      e->backend->event_destroy(slot->moved);
    if (slot->peers != NULL)
      e->backend->event_destroy(slot->peers);
  }
}

/* The receiver's memory goes when the sender has closed, too. */
static void leave(opipe_stream *stream, shm_end *end) {
  opipe_endpoint *e = stream->endpoint;
  for (uint32_t i = 0; end->slots != NULL && i < stream->params.depth; ++i) {
    if (end->slots[i].lent)
      shm_keep_event(e, end->heard, end->slots[i].moved);
  }
  shm_leave(e->world, end->heard, end->ring);
  shm_leave(e->world, end->heard, end->span);
  if (end->id != 0)
    shm_tell_close(e->world, e->rank, end->id);
  shm_delete(e->world->host, end->slots, stream->params.depth * sizeof *end->slots);
}

void shm_stream_close(opipe_stream *stream) {
  if (stream == NULL)
    return;
  opipe_world *world = stream->endpoint->world;
  free_slots(stream, &stream->ends[0]);
  free_slots(stream, &stream->ends[1]);
  shm_cancel(stream);
  pthread_mutex_lock(&world->lock);
  opipe_stream **at = &world->streams;
  while (*at != stream)
    at = &(*at)->next;
  *at = stream->next;
  if (stream->cells_in != NULL)
    shm_let_go(stream->cells_in);
  leave(stream, &stream->ends[1]);
  leave(stream, &stream->ends[0]);
  shm_close_ended(world);
  shm_sweep(world, false);
  pthread_mutex_unlock(&world->lock);
  shm_delete(world->host, stream, sizeof *stream);
}
