/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on one device: what has no host address is copied and summed where it lies, by the queue of
 * one of the two, which takes the other's buffers for its own by their native addresses.
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

/* Member 0: the others' values are added to its own, in their order, and the sums go to all. */
static opipe_status queue_sums(const opipe_group *group, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const opipe_region *sums = &member_at(group, 0)->region;
  opipe_status status = OPIPE_OK;
  for (uint32_t pass = 0; pass < 2; ++pass) {
    for (uint32_t i = 1; i < group->reduction->base.n && status >= 0; ++i) {
      const member *m = member_at(group, i);
      borrowed theirs = {NULL, 0, 0};
      opipe_region region;
      if (pass == 0)
        status = e->backend->event_wait(e->queue, m->ready, err);
      if (status >= 0)
        status = local_borrow(e, endpoint_of(group, i), &m->region, &theirs, &region, err);
      if (status >= 0 && pass == 0)
        status = e->backend->add(e->queue, sums, &region, err);
      else if (status >= 0)
        status = e->backend->copy(e->queue, &region, sums, err);
      local_give_back(e, &theirs);
    }
  }
  return status < 0 ? status : e->backend->event_record(e->queue, group->moved, err);
}

opipe_status local_sum_near(opipe_group *group, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = group->endpoint;
  if (group->index != 0) {
    return atomic_load_explicit(&member_at(group, 0)->added, memory_order_acquire) > sequence
               ? OPIPE_OK
               : OPIPE_PENDING;
  }
  if (group->fetched != sequence + 1) {
    const opipe_status status = queue_sums(group, err);
    if (status < 0)
      return status;
    group->fetched = sequence + 1;
  }
  const opipe_status status = e->backend->event_poll(group->moved, err);
  if (status == OPIPE_PENDING)
    e->unready = true;
  return status;
}
