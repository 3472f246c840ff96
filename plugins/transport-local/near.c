/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on one device, or on devices of which one reaches the other's memory: what has no host
 * address is copied and added where it lies, by the queue of one of them, which takes the others'
 * buffers for its own by their native addresses. A stream's sender copies; a group's round is
 * queued by member 0, and the queues of the others wait for it.
 */
#include "local.h"

/* ---- who reaches whom ---- */

static uint64_t native_of(const opipe_endpoint *e, uint32_t what) {
  uint64_t value = 0;
  return e->backend->native(e->device, what, NULL, &value, NULL) == OPIPE_OK ? value : UINT64_MAX;
}

static bool takes_addresses(const opipe_backend *backend) {
  return OPIPE_HAS(backend, opipe_backend, buffer_import) && backend->native != NULL &&
         backend->buffer_import != NULL;
}

/* A device may refuse what it has promised: its peer's memory is taken once, as a trial. Under the
 * lock. */
static bool try_peer(const opipe_endpoint *from, const opipe_endpoint *to, char *out_why,
                     size_t room) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_buffer *buffer = NULL;
  uint64_t native = 0;
  opipe_status status =
      from->backend->native(to->device, OPIPE_NATIVE_BUFFER, to->sample, &native, &err);
  if (status >= 0)
    status = from->backend->buffer_import(from->device, native, 1, &buffer, &err);
  if (status >= 0)
    from->backend->buffer_free(buffer);
  else
    (void)snprintf(out_why, room, "%.150s", err.message);
  return status >= 0;
}

/* How does the queue of `from` get at memory of `to`, which has no host address? NONE: it is not
 * known before `to` has registered some. */
static uint32_t find_way(const opipe_endpoint *from, const opipe_endpoint *to, char *out_why,
                         size_t room) {
  const opipe_backend *backend = from->backend;
  out_why[0] = '\0';
  if (backend == NULL || to->backend == NULL || from->queue == NULL || to->queue == NULL) {
    (void)snprintf(out_why, room, "a rank has no queue");
    return OPIPE_WAY_STAGED;
  }
  if (to->backend == backend && takes_addresses(backend) && from->device != NULL &&
      native_of(from, OPIPE_NATIVE_KIND) == native_of(to, OPIPE_NATIVE_KIND) &&
      native_of(from, OPIPE_NATIVE_DEVICE) == native_of(to, OPIPE_NATIVE_DEVICE))
    return OPIPE_WAY_DEVICE;
  if (from->device_index == OPIPE_NONE || to->device_index == OPIPE_NONE) {
    (void)snprintf(out_why, room, "the numbers of the devices are not known");
    return OPIPE_WAY_STAGED;
  }
  const opipe_way_params params = {.struct_size = (uint32_t)sizeof params,
                                   .src_index = from->device_index,
                                   .dst_index = to->device_index,
                                   .src_backend = backend,
                                   .dst_backend = to->backend,
                                   .src_self = from->backend_self,
                                   .dst_self = to->backend_self};
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_way_found found;
  if (opipe_way_find(&params, OPIPE_REACH_PEER, &found, &err) < 0) {
    (void)snprintf(out_why, room, "%.150s", err.message);
    return OPIPE_WAY_STAGED;
  }
  (void)snprintf(out_why, room, "%s", found.why);
  if (found.way == OPIPE_WAY_STAGED && !found.dst_remote)
    return OPIPE_WAY_PAGEABLE; /* it is read straight to the host's */
  if (found.way != OPIPE_WAY_PEER)
    return found.way;
  return to->sample == NULL                  ? (uint32_t)OPIPE_WAY_NONE
         : try_peer(from, to, out_why, room) ? (uint32_t)OPIPE_WAY_PEER
                                             : (uint32_t)OPIPE_WAY_STAGED;
}

static bool is_near(uint32_t way) {
  return way == OPIPE_WAY_DEVICE || way == OPIPE_WAY_PEER;
}

/* Once both ends are open, whoever asks first decides for both. */
bool local_stream_is_near(opipe_stream *stream) {
  wire *w = stream->wire;
  opipe_world *world = stream->endpoint->world;
  const opipe_stream_params *p = &w->base.params;
  uint32_t near = atomic_load_explicit(&w->near, memory_order_acquire);
  if (near != LOCAL_UNKNOWN)
    return near == LOCAL_NEAR;
  pthread_mutex_lock(&world->lock);
  const opipe_endpoint *src = atomic_load(&world->endpoints[p->src_rank]);
  const opipe_endpoint *dst = atomic_load(&world->endpoints[p->dst_rank]);
  near = atomic_load(&w->near);
  if (near == LOCAL_UNKNOWN && src != NULL && dst != NULL) {
    w->way = find_way(src, dst, w->why, sizeof w->why);
    near = w->way == OPIPE_WAY_NONE ? LOCAL_UNKNOWN : is_near(w->way) ? LOCAL_NEAR : LOCAL_FAR;
    atomic_store_explicit(&w->near, near, memory_order_release);
  }
  pthread_mutex_unlock(&world->lock);
  return near == LOCAL_NEAR;
}

/* ---- answers about streams ---- */

/* The receiver's ring is where messages wait; a sender reads straight to host memory. */
static opipe_way way_of(const opipe_way_found *found, const opipe_backend *dst_backend,
                        const opipe_stream_params *stream) {
  opipe_way way = {.struct_size = (uint32_t)sizeof way, .way = found->way};
  (void)snprintf(way.why, sizeof way.why, "%s", found->why);
  if (found->way != OPIPE_WAY_STAGED)
    return way;
  if (!found->dst_remote || !opipe_ring_pins(dst_backend)) {
    way.way = OPIPE_WAY_PAGEABLE;
    return way;
  }
  way.dst_bytes = opipe_ring_bytes(stream->depth, stream->n_bytes);
  return way;
}

opipe_status local_way(opipe_instance *self, const char *options, const opipe_way_params *params,
                       opipe_way *io_way, opipe_error *err) {
  opipe_way_found found;
  (void)self;
  opipe_status status = local_check_options(options, err);
  if (status >= 0)
    status = opipe_way_find(params, OPIPE_REACH_PEER, &found, err);
  if (status < 0)
    return status;
  const opipe_way way = way_of(&found, params->dst_backend, params->stream);
  return opipe_way_tell(io_way, &way, err);
}

opipe_status local_stream_way(opipe_stream *stream, opipe_way *io_way, opipe_error *err) {
  const wire *w = stream->wire;
  const opipe_endpoint *e = stream->endpoint;
  opipe_way way = {.struct_size = (uint32_t)sizeof way};
  const bool near = local_stream_is_near(stream);
  if (atomic_load(&w->near) == LOCAL_UNKNOWN)
    return opipe_way_tell(io_way, &way, err);
  way.way = w->way;
  (void)snprintf(way.why, sizeof way.why, "%s", w->why);
  if (!near && e->remote && (stream->sides & 2u) != 0) {
    const opipe_status status = local_stream_bounce(stream, err);
    if (status < 0)
      return status;
    way.dst_bytes = stream->ring.pinned ? stream->ring.n_bytes : 0;
    if (stream->ring.data != NULL && !stream->ring.pinned) {
      way.way = OPIPE_WAY_PAGEABLE;
      (void)snprintf(way.why, sizeof way.why, "%s", stream->not_pinned);
    }
  }
  return opipe_way_tell(io_way, &way, err);
}

opipe_status local_borrow(const opipe_endpoint *endpoint, const opipe_endpoint *owner,
                          const opipe_region *region, borrowed *io, opipe_region *out_region,
                          opipe_error *err) {
  const opipe_backend *backend = endpoint->backend;
  const uint64_t wanted = region->offset_bytes + region->n_bytes;
  uint64_t native = 0;
  *out_region = *region;
  if (owner->device == endpoint->device)
    return OPIPE_OK;
  opipe_status status =
      backend->native(owner->device, OPIPE_NATIVE_BUFFER, region->buffer, &native, err);
  if (status >= 0 && (io->buffer == NULL || io->native != native || io->n_bytes < wanted)) {
    local_give_back(endpoint, io);
    status = backend->buffer_import(endpoint->device, native, wanted, &io->buffer, err);
    io->native = native;
    io->n_bytes = wanted;
  }
  out_region->buffer = io->buffer;
  return status;
}

void local_give_back(const opipe_endpoint *endpoint, borrowed *io) {
  if (io->buffer != NULL)
    endpoint->backend->buffer_free(io->buffer);
  io->buffer = NULL;
}

opipe_status local_place(opipe_stream *stream, cell *c, const opipe_region *region,
                         opipe_event **io_ready, opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  opipe_region to = c->region;
  to.n_bytes = region->n_bytes;
  opipe_status status = local_stream_bounce(stream, err); /* its event */
  if (status >= 0) {
    const uint32_t rank = stream->wire->base.params.dst_rank;
    status =
        local_borrow(e, atomic_load(&e->world->endpoints[rank]), &to, &stream->theirs, &to, err);
  }
  if (status >= 0 && *io_ready != NULL)
    status = e->backend->event_wait(e->queue, *io_ready, err);
  if (status >= 0)
    status = e->backend->copy(e->queue, &to, region, err);
  if (status >= 0)
    status = e->backend->event_record(e->queue, c->fetched, err);
  *io_ready = c->fetched;
  return status;
}

/* ---- groups ---- */

static member *member_at(const opipe_group *group, uint32_t i) {
  return (member *)group->reduction->base.members + i;
}

static const opipe_endpoint *endpoint_of(const opipe_group *group, uint32_t i) {
  return atomic_load(&group->endpoint->world->endpoints[group->reduction->base.ranks[i]]);
}

/* Member 0's queue does the rounds. The first to ask decides for all. */
opipe_status local_group_nearness(opipe_group *group, bool *out_near) {
  reduction *r = group->reduction;
  opipe_world *world = group->endpoint->world;
  uint32_t near = atomic_load_explicit(&r->near, memory_order_acquire);
  opipe_status status = OPIPE_OK;
  if (near == LOCAL_UNKNOWN) {
    pthread_mutex_lock(&world->lock);
    near = atomic_load(&r->near);
    for (uint32_t i = 0; i < r->base.n && status == OPIPE_OK; ++i)
      status = endpoint_of(group, i) == NULL ? OPIPE_PENDING : OPIPE_OK;
    if (status == OPIPE_OK && near == LOCAL_UNKNOWN) {
      char why[160];
      near = LOCAL_NEAR;
      for (uint32_t i = 0; i < r->base.n && near != LOCAL_FAR; ++i) {
        const uint32_t way =
            find_way(endpoint_of(group, 0), endpoint_of(group, i), why, sizeof why);
        if (way == OPIPE_WAY_NONE)
          near = LOCAL_UNKNOWN;
        else if (!is_near(way))
          near = LOCAL_FAR;
      }
      atomic_store_explicit(&r->near, near, memory_order_release);
    }
    pthread_mutex_unlock(&world->lock);
  }
  *out_near = near == LOCAL_NEAR;
  return near == LOCAL_UNKNOWN ? OPIPE_PENDING : OPIPE_OK;
}

opipe_status local_give_near(opipe_group *group, opipe_event *ready, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  opipe_status status = OPIPE_OK;
  if (group->moved == NULL)
    status = e->backend->event_create(e->device, &group->moved, err);
  if (status >= 0 && ready != NULL)
    status = e->backend->event_wait(e->queue, ready, err);
  if (status >= 0)
    status = e->backend->event_record(e->queue, group->moved, err);
  member_at(group, group->index)->ready = group->moved;
  return status;
}

bool local_adds_near(const opipe_group *group, uint32_t dtype) {
  const opipe_backend *backend = group->endpoint->backend;
  const member *me = member_at(group, group->index);
  if (OPIPE_HAS(backend, opipe_backend, sum) && backend->sum != NULL)
    return true;
  return dtype == OPIPE_FLOAT && backend->add != NULL &&
         me->what.kind == OPIPE_COLLECT_ALL_REDUCE; /* to member 0's place, one after the other */
}

/* The walk's place as a region of member 0's device, n_bytes of it. */
static opipe_status piece_at(const opipe_group *group, uint32_t m, bool to, uint64_t offset,
                             uint64_t n_bytes, opipe_region *out, opipe_error *err) {
  const uint32_t walk = m + (to ? group->reduction->base.n : 0);
  const opipe_collect *what = &member_at(group, m)->what;
  const uint64_t within = opipe_cursor_move(&group->walks[walk], offset, &n_bytes);
  opipe_region region = (to ? what->to : what->from)[group->walks[walk].at];
  region.offset_bytes += within;
  region.n_bytes = n_bytes;
  return local_borrow(group->endpoint, endpoint_of(group, m), &region, &group->borrowed[walk], out,
                      err);
}

/* dst = the sum of the pieces [n]. */
static opipe_status queue_sum(const opipe_group *group, uint32_t dtype, const opipe_region *dst,
                              opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const uint32_t n = group->reduction->base.n;
  const opipe_region *from = group->pieces;
  if (OPIPE_HAS(e->backend, opipe_backend, sum) && e->backend->sum != NULL)
    return e->backend->sum(e->queue, dtype, dst, from, n, err);
  opipe_status status = OPIPE_OK;
  if (from[0].buffer != dst->buffer || from[0].offset_bytes != dst->offset_bytes)
    status = e->backend->copy(e->queue, dst, from, err);
  for (uint32_t i = 1; i < n && status >= 0; ++i)
    status = e->backend->add(e->queue, dst, &from[i], err);
  return status;
}

/* Sums of values [first, first + n), to the list of `target` from its value `to_first` on; and from
 * there to all others if `to_all`. */
static opipe_status queue_sums(const opipe_group *group, opipe_part part, uint32_t target,
                               uint64_t to_first, bool to_all, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const uint32_t n = group->reduction->base.n;
  const uint32_t dtype = member_at(group, 0)->what.dtype;
  const uint64_t size = opipe_sum_size(dtype);
  opipe_status status = OPIPE_OK;
  uint64_t n_bytes = 0;
  for (uint64_t at = 0; at < part.n * size && status >= 0; at += n_bytes) {
    const uint64_t from = part.first * size + at, to = to_first * size + at;
    opipe_region sum = {NULL, 0, 0}, other = {NULL, 0, 0};
    n_bytes = part.n * size - at;
    for (uint32_t m = 0; m < n; ++m) {
      (void)opipe_cursor_move(&group->walks[m], from, &n_bytes);
      if (to_all || m == target)
        (void)opipe_cursor_move(&group->walks[n + m], to, &n_bytes);
    }
    for (uint32_t m = 0; m < n && status >= 0; ++m)
      status = piece_at(group, m, false, from, n_bytes, &group->pieces[m], err);
    if (status >= 0)
      status = piece_at(group, target, true, to, n_bytes, &sum, err);
    if (status >= 0)
      status = queue_sum(group, dtype, &sum, err);
    for (uint32_t m = 0; m < n && to_all && status >= 0; ++m) {
      if (m == target)
        continue;
      status = piece_at(group, m, true, to, n_bytes, &other, err);
      if (status >= 0)
        status = e->backend->copy(e->queue, &other, &sum, err);
    }
  }
  return status;
}

/* The part of one member goes to all. */
static opipe_status queue_part(const opipe_group *group, uint32_t source, opipe_part part,
                               uint64_t size, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const uint32_t n = group->reduction->base.n;
  opipe_status status = OPIPE_OK;
  for (uint32_t m = 0; m < n && status >= 0; ++m) {
    uint64_t n_bytes = 0;
    for (uint64_t at = 0; at < part.n * size && status >= 0; at += n_bytes) {
      const uint64_t to = part.first * size + at;
      opipe_region from = {NULL, 0, 0}, place = {NULL, 0, 0};
      n_bytes = part.n * size - at;
      (void)opipe_cursor_move(&group->walks[source], at, &n_bytes);
      (void)opipe_cursor_move(&group->walks[n + m], to, &n_bytes);
      status = piece_at(group, source, false, at, n_bytes, &from, err);
      if (status >= 0)
        status = piece_at(group, m, true, to, n_bytes, &place, err);
      const bool in_place = m == source && from.offset_bytes == place.offset_bytes &&
                            (from.buffer == place.buffer ||
                             group->borrowed[source].native == group->borrowed[n + m].native);
      if (status >= 0 && !in_place)
        status = e->backend->copy(e->queue, &place, &from, err);
    }
  }
  return status;
}

/* Member 0: the whole round by its queue, behind the values of all. */
static opipe_status queue_round(const opipe_group *group, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const uint32_t n = group->reduction->base.n;
  const opipe_collect *what = &member_at(group, 0)->what;
  const uint64_t n_values = member_at(group, 0)->n_values;
  const uint64_t size = opipe_collect_size(what->kind, what->dtype);
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status >= 0; ++i) {
    const member *m = member_at(group, i);
    group->walks[i] = (opipe_cursor){.spans = m->from, .n = m->n_from};
    group->walks[n + i] = (opipe_cursor){.spans = m->to, .n = m->n_to};
    if (i != 0)
      status = e->backend->event_wait(e->queue, m->ready, err);
  }
  if (status >= 0 && what->kind == OPIPE_COLLECT_ALL_REDUCE)
    status = queue_sums(group, (opipe_part){0, n_values}, 0, 0, true, err);
  for (uint32_t i = 0; i < n && status >= 0 && what->kind != OPIPE_COLLECT_ALL_REDUCE; ++i) {
    const opipe_part part = opipe_collect_part(what, i, n_values);
    status = what->kind == OPIPE_COLLECT_REDUCE_SCATTER ? queue_sums(group, part, i, 0, false, err)
                                                        : queue_part(group, i, part, size, err);
  }
  for (uint32_t i = 0; i < 2 * n; ++i)
    local_give_back(e, &group->borrowed[i]);
  return status < 0 ? status : e->backend->event_record(e->queue, group->moved, err);
}

opipe_status local_queue_near(opipe_group *group, uint64_t sequence, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const member *first = member_at(group, 0);
  if (group->index == 0)
    return queue_round(group, err);
  if (atomic_load_explicit(&first->added, memory_order_acquire) <= sequence)
    return OPIPE_PENDING;
  opipe_status status = e->backend->event_wait(e->queue, first->ready, err);
  return status < 0 ? status : e->backend->event_record(e->queue, group->moved, err);
}
