/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on one device: what has no host address is copied and added where it lies, by the queue of
 * one of them, which takes the others' buffers for its own by their native addresses. A group's
 * round is queued by member 0; the queues of the others wait for it.
 */
#include "local.h"

bool local_is_near(const opipe_endpoint *a, const opipe_endpoint *b) {
  static const uint32_t what[2] = {OPIPE_NATIVE_KIND, OPIPE_NATIVE_DEVICE};
  const opipe_backend *backend = a->backend;
  if (backend == NULL || b->backend != backend || a->queue == NULL || b->queue == NULL ||
      !OPIPE_HAS(backend, opipe_backend, buffer_import) || backend->native == NULL ||
      backend->buffer_import == NULL)
    return false;
  for (size_t i = 0; i < sizeof what / sizeof what[0]; ++i) {
    uint64_t one = 0, other = 0;
    if (backend->native(a->device, what[i], NULL, &one, NULL) != OPIPE_OK ||
        backend->native(b->device, what[i], NULL, &other, NULL) != OPIPE_OK || one != other)
      return false;
  }
  return true;
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

/* The other end of a stream; NULL: it is not open yet. */
static const opipe_endpoint *other_end(const opipe_stream *stream) {
  const opipe_stream_params *p = &stream->wire->base.params;
  const uint32_t rank = (stream->sides & 1u) != 0 ? p->dst_rank : p->src_rank;
  return atomic_load(&stream->endpoint->world->endpoints[rank]);
}

bool local_stream_is_near(opipe_stream *stream) {
  if (stream->near == LOCAL_UNKNOWN) {
    const opipe_endpoint *other = other_end(stream);
    if (other == NULL)
      return false;
    stream->near = local_is_near(stream->endpoint, other) ? LOCAL_NEAR : LOCAL_FAR;
  }
  return stream->near == LOCAL_NEAR;
}

opipe_status local_place(opipe_stream *stream, cell *c, const opipe_region *region,
                         opipe_event **io_ready, opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  opipe_region to = c->region;
  to.n_bytes = region->n_bytes;
  opipe_status status = local_stream_bounce(stream, err); /* its event */
  if (status >= 0)
    status = local_borrow(e, other_end(stream), &to, &stream->theirs, &to, err);
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

/* All members say the same: each asks when all endpoints are there. */
opipe_status local_group_nearness(opipe_group *group, bool *out_near) {
  for (uint32_t i = 0; group->near == LOCAL_UNKNOWN && i < group->reduction->base.n; ++i) {
    const opipe_endpoint *other = endpoint_of(group, i);
    if (other == NULL)
      return OPIPE_PENDING;
    if (!local_is_near(group->endpoint, other))
      group->near = LOCAL_FAR;
  }
  if (group->near == LOCAL_UNKNOWN)
    group->near = LOCAL_NEAR;
  *out_near = group->near == LOCAL_NEAR;
  return OPIPE_OK;
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
