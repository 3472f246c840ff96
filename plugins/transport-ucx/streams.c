/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: opened in transport-shm's world, or joined by notes once it is known that UCX carries
 * them.
 */
#include "ucx.h"

#define UCX_STAGES "UCX moves host memory only"

static opipe_status check_twice(const opipe_endpoint *endpoint, const opipe_stream_params *p,
                                opipe_error *err) {
  for (const opipe_stream *at = endpoint->worker->streams; at != NULL; at = at->next) {
    if (opipe_stream_same(&at->params, p)) {
      return opipe_fail(err, OPIPE_E_STATE,
                        "stream %u of stages %u -> %u is open already on rank %u", p->index,
                        p->src_stage, p->dst_stage, endpoint->rank);
    }
  }
  return OPIPE_OK;
}

static opipe_status make_slots(opipe_stream *stream, opipe_error *err) {
  const opipe_world *world = stream->endpoint->world;
  ucx_worker *worker = stream->endpoint->worker;
  const uint32_t depth = stream->params.depth;
  stream->slots = ucx_new(world->host, "a stream", depth * sizeof *stream->slots, err);
  stream->requests = ucx_new(world->host, "a stream", 2 * depth * world->request_bytes, err);
  if (stream->slots == NULL || stream->requests == NULL)
    return OPIPE_E_NOMEM;
  char *requests = stream->requests;
  for (uint32_t i = 0; i < depth; ++i) {
    ucx_slot *slot = &stream->slots[i];
    slot->stream = stream;
    ucx_op_init(&slot->op, worker, stream->other, &requests, ucx_ring);
    ucx_op_init(&slot->tells, worker, stream->other, &requests, ucx_ring);
  }
  return OPIPE_OK;
}

/* Letters of the core's are few, small, and not pinned. */
opipe_status ucx_stream_bounce(opipe_stream *stream, opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  const opipe_stream_params *p = &stream->params;
  const bool pin = p->kind != OPIPE_STREAM_CONTROL;
  opipe_error why = OPIPE_ERROR_INIT;
  if (stream->has_ring)
    return OPIPE_OK;
  const opipe_status status = opipe_ring_make(e->world->host, e->backend, e->device, p->depth,
                                              p->n_bytes, pin, &stream->ring, &why);
  if (status < 0)
    return opipe_fail(err, status, "%s", why.message);
  stream->has_ring = true;
  if (stream->ring.data != NULL && !stream->ring.pinned) {
    (void)snprintf(stream->why, sizeof stream->why, "%.150s",
                   pin ? why.message : "letters are not pinned");
  }
  for (uint32_t i = 0; i < p->depth; ++i)
    stream->slots[i].bounce = opipe_ring_at(&stream->ring, i);
  return OPIPE_OK;
}

/* UCX carries it: from now on notes of the receiver find it. */
static opipe_status take_over(opipe_stream *stream, opipe_error *err) {
  ucx_worker *worker = stream->endpoint->worker;
  opipe_status status = make_slots(stream, err);
  ucx_lock(worker);
  if (status == OPIPE_OK)
    status = ucx_next_id(worker, &stream->id, err);
  stream->by_ucx = status == OPIPE_OK;
  ucx_unlock(worker);
  return status;
}

static opipe_status tell(opipe_stream *stream, opipe_error *err) {
  ucx_worker *worker = stream->endpoint->worker;
  ucx_note note = {.brief = ucx_brief_of(worker, UCX_NOTE_STREAM, stream->id),
                   .stream = stream->params};
  note.brief.index = stream->side;
  ucx_lock(worker);
  const opipe_status status = ucx_tell(worker, stream->other, &note, err);
  ucx_poke(worker);
  ucx_unlock(worker);
  stream->told = status == OPIPE_OK;
  return status;
}

/* The other end's note, under the lock. */
static opipe_status join(opipe_stream *stream, opipe_error *err) {
  ucx_worker *worker = stream->endpoint->worker;
  const opipe_stream_params *p = &stream->params;
  ucx_heard *found = NULL;
  for (ucx_heard *at = worker->heard; at != NULL; at = at->next) {
    const ucx_brief *b = &at->note.brief;
    if (b->kind == UCX_NOTE_STREAM && b->index != stream->side && b->rank == stream->other &&
        opipe_stream_same(&at->note.stream, p))
      found = at; /* the last is the oldest */
  }
  if (found == NULL)
    return OPIPE_PENDING;
  const opipe_status same = opipe_stream_agree(stream->endpoint->rank, p, &found->note.stream, err);
  if (same < 0)
    return same;
  stream->peer_id = found->note.brief.id;
  stream->joined = true;
  ucx_forget_note(worker, found);
  return OPIPE_OK;
}

opipe_status ucx_stream_ready(opipe_stream *stream, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  bool by_ucx = stream->by_ucx;
  opipe_status status = OPIPE_OK;
  if (stream->near != NULL || stream->joined)
    return OPIPE_OK;
  if (!by_ucx)
    status = ucx_find(e->world, e->rank, stream->other, &by_ucx, err);
  if (status == OPIPE_OK && !by_ucx)
    return shm_transport.stream_open(e->near, &stream->params, &stream->near, err);
  if (status == OPIPE_OK && !stream->by_ucx)
    status = take_over(stream, err);
  if (status == OPIPE_OK)
    status = ucx_reach(e->worker, stream->other, err);
  if (status == OPIPE_OK && !stream->told)
    status = tell(stream, err);
  if (status != OPIPE_OK)
    return status;
  ucx_lock(e->worker);
  status = join(stream, err);
  ucx_unlock(e->worker);
  if (status == OPIPE_OK && e->has_remote && stream->params.kind != OPIPE_STREAM_CONTROL)
    status = ucx_stream_bounce(stream, err);
  return status;
}

/* Plans know of `together` alone: ranks that may share memory are taken to be on one machine. */
opipe_status ucx_way(opipe_instance *self, const char *options, const opipe_way_params *params,
                     opipe_way *io_way, opipe_error *err) {
  const opipe_stream_params *p = params->stream;
  opipe_way way = {.struct_size = (uint32_t)sizeof way};
  opipe_way_found found;
  ucx_options read;
  opipe_status status = ucx_read_options(options, &read, err);
  if (status >= 0 &&
      (read.together == 0 || p->src_rank / read.together == p->dst_rank / read.together))
    return shm_transport.way(self->near, NULL, params, io_way, err);
  if (status >= 0)
    status = opipe_way_find(params, OPIPE_REACH_SHARED, &found, err);
  if (status < 0)
    return status;
  const bool src_pins = found.src_remote && opipe_ring_pins(params->src_backend);
  const bool dst_pins = found.dst_remote && opipe_ring_pins(params->dst_backend);
  const uint64_t ring = opipe_ring_bytes(p->depth, p->n_bytes);
  way.way = !found.src_remote && !found.dst_remote                         ? OPIPE_WAY_HOST
            : src_pins == found.src_remote && dst_pins == found.dst_remote ? OPIPE_WAY_STAGED
                                                                           : OPIPE_WAY_PAGEABLE;
  if (way.way != OPIPE_WAY_HOST)
    (void)snprintf(way.why, sizeof way.why, "%s", UCX_STAGES);
  way.src_bytes = src_pins ? ring : 0;
  way.dst_bytes = dst_pins ? ring : 0;
  return opipe_way_tell(io_way, &way, err);
}

opipe_status ucx_stream_way(opipe_stream *stream, opipe_way *io_way, opipe_error *err) {
  opipe_way way = {.struct_size = (uint32_t)sizeof way};
  if (stream->near != NULL)
    return shm_transport.stream_way(stream->near, io_way, err);
  if (!stream->joined)
    return opipe_way_tell(io_way, &way, err);
  way.way = OPIPE_WAY_HOST; /* of this end */
  if (stream->has_ring) {
    const uint64_t n_bytes = stream->ring.pinned ? stream->ring.n_bytes : 0;
    way.way =
        stream->ring.data == NULL || stream->ring.pinned ? OPIPE_WAY_STAGED : OPIPE_WAY_PAGEABLE;
    *(stream->side == 0 ? &way.src_bytes : &way.dst_bytes) = n_bytes;
    (void)snprintf(way.why, sizeof way.why, "%s",
                   stream->why[0] != '\0' ? stream->why : UCX_STAGES);
  }
  return opipe_way_tell(io_way, &way, err);
}

static opipe_status open_here(opipe_stream *stream, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  ucx_worker *worker = e->worker;
  if (worker == NULL)
    return shm_transport.stream_open(e->near, &stream->params, &stream->near, err);
  ucx_lock(worker);
  opipe_status status = check_twice(e, &stream->params, err);
  if (status == OPIPE_OK) {
    stream->next = worker->streams;
    worker->streams = stream;
    stream->is_listed = true;
  }
  ucx_unlock(worker);
  if (status == OPIPE_OK)
    status = ucx_stream_ready(stream, err);
  return status < 0 ? status : OPIPE_OK;
}

opipe_status ucx_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                             opipe_stream **out_stream, opipe_error *err) {
  const opipe_world *world = endpoint->world;
  opipe_status status = opipe_stream_check(endpoint->rank, world->n_ranks, params, err);
  if (status < 0)
    return status;
  opipe_stream *stream = ucx_new(world->host, "a stream", sizeof *stream, err);
  if (stream == NULL)
    return OPIPE_E_NOMEM;
  stream->endpoint = endpoint;
  stream->params = *params;
  stream->params.struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes);
  stream->side = params->src_rank == endpoint->rank ? 0 : 1;
  stream->other = stream->side == 0 ? params->dst_rank : params->src_rank;
  status = open_here(stream, err);
  if (status < 0)
    ucx_stream_close(stream);
  else
    *out_stream = stream;
  return status;
}

static bool has_pending(const void *what) {
  const opipe_stream *stream = what;
  bool any = false;
  for (uint32_t i = 0; stream->slots != NULL && i < stream->params.depth; ++i)
    any = any || ucx_is_pending(&stream->slots[i].op) || ucx_is_pending(&stream->slots[i].tells);
  return any;
}

/* Receives that nothing has come for end at once, messages under way when they are through. */
static void end_pending(opipe_stream *stream) {
  ucx_worker *worker = stream->endpoint->worker;
  ucx_lock(worker);
  for (uint32_t i = 0; stream->side == 1 && i < stream->params.depth; ++i)
    ucx_cancel_op(&stream->slots[i].op);
  ucx_unlock(worker);
  ucx_settle(worker, stream->other, has_pending, stream);
}

static void tell_close(const opipe_stream *stream) {
  ucx_worker *worker = stream->endpoint->worker;
  const ucx_note note = {.brief = ucx_brief_of(worker, UCX_NOTE_CLOSE, stream->id)};
  if (stream->told && !worker->stopped && !worker->peers[stream->other].left) {
    (void)ucx_tell(worker, stream->other, &note, NULL);
    ucx_poke(worker);
  }
}

static void leave(opipe_stream *stream) {
  ucx_worker *worker = stream->endpoint->worker;
  const opipe_endpoint *e = stream->endpoint;
  for (uint32_t i = 0; stream->slots != NULL && i < stream->params.depth; ++i) {
    ucx_slot *slot = &stream->slots[i];
    if (slot->moved != NULL) { /* copies that are on their way end first */
      (void)e->backend->event_sync(slot->moved, UINT64_MAX, NULL);
      e->backend->event_destroy(slot->moved);
    }
  }
  if (stream->by_ucx)
    end_pending(stream);
  ucx_lock(worker);
  opipe_stream **at = &worker->streams;
  while (*at != stream)
    at = &(*at)->next;
  *at = stream->next;
  tell_close(stream);
  ucx_unlock(worker);
}

void ucx_stream_close(opipe_stream *stream) {
  if (stream == NULL || ucx_is_child(stream->endpoint->world))
    return;
  const opipe_world *world = stream->endpoint->world;
  const uint32_t depth = stream->params.depth;
  ucx_cancel(stream);
  if (stream->is_listed)
    leave(stream);
  shm_transport.stream_close(stream->near);
  if (stream->ring.data != NULL) {
    const opipe_endpoint *e = stream->endpoint;
    opipe_ring_drop(world->host, e->backend, e->device, &stream->ring);
  }
  ucx_delete(world->host, stream->slots, depth * sizeof *stream->slots);
  ucx_delete(world->host, stream->requests, 2 * depth * world->request_bytes);
  ucx_delete(world->host, stream, sizeof *stream);
}
