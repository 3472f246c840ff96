/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and sums through host memory: into it (IN), by 'local' (AWAY), out of it (OUT). */
#include "staged.h"

/* ---- steps of a passage ---- */

opipe_status staged_mirror(opipe_endpoint *e, const opipe_region *region, opipe_region *out_mirror,
                           opipe_error *err) {
  *out_mirror = *region;
  (void)pthread_mutex_lock(&e->lock);
  opipe_memory *m = e->memories;
  while (m != NULL && m->buffer != region->buffer)
    m = m->next;
  (void)pthread_mutex_unlock(&e->lock);
  if (m == NULL && region->n_bytes == 0)
    return OPIPE_OK;
  if (m == NULL || region->offset_bytes > m->mirror.n_bytes ||
      region->n_bytes > m->mirror.n_bytes - region->offset_bytes) {
    return opipe_fail(
        err, OPIPE_E_INVALID, "rank %u: %llu bytes at %llu lie in no registered memory", e->rank,
        (unsigned long long)region->n_bytes, (unsigned long long)region->offset_bytes);
  }
  out_mirror->buffer = &m->mirror;
  return OPIPE_OK;
}

/* Queues the copy between the region and its mirror, records `done`, then the passage's own event.
 */
static opipe_status copy(opipe_endpoint *e, passage *p, uint32_t state, opipe_event *done,
                         opipe_error *err) {
  opipe_status status = OPIPE_OK;
  char *data = p->region.n_bytes == 0 ? NULL : p->mirror.buffer->data + p->mirror.offset_bytes;
  if (data != NULL && state == IN)
    status = e->backend->read(e->queue, data, &p->region, err);
  else if (data != NULL)
    status = e->backend->write(e->queue, &p->region, data, err);
  if (status >= 0 && done != NULL)
    status = e->backend->event_record(e->queue, done, err);
  if (status >= 0)
    status = e->backend->event_record(e->queue, p->event, err);
  if (status < 0)
    return status;
  p->state = state;
  ++e->n_copying;
  return OPIPE_OK;
}

/* Whether the copy is done; then the passage is in `next`. */
static opipe_status look(opipe_endpoint *e, passage *p, uint32_t next, opipe_error *err) {
  const opipe_status status = e->backend->event_poll(p->event, err);
  if (status == OPIPE_PENDING)
    return status;
  --e->n_copying;
  p->state = next;
  return status;
}

static opipe_status await(opipe_endpoint *e, opipe_event *ready, opipe_error *err) {
  return ready == NULL ? OPIPE_OK : e->backend->event_wait(e->queue, ready, err);
}

/* Before its event and the mirror go. */
static void settle(const opipe_endpoint *e, const passage *p) {
  if (p->state == IN || p->state == OUT)
    (void)e->backend->event_sync(p->event, UINT64_MAX, NULL);
}

/* ---- streams ---- */

static void free_passages(opipe_stream *stream, passage *list) {
  const opipe_endpoint *e = stream->endpoint;
  for (uint32_t i = 0; list != NULL && i < stream->depth; ++i) {
    settle(e, &list[i]);
    e->backend->event_destroy(list[i].event);
  }
  staged_free(e->self, list, stream->depth * sizeof *list);
}

static opipe_status make_passages(opipe_stream *stream, passage **out_list, opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  opipe_status status = OPIPE_OK;
  *out_list = staged_zeroed(e->self, "messages", stream->depth * sizeof **out_list, err);
  if (*out_list == NULL)
    return OPIPE_E_NOMEM;
  for (uint32_t i = 0; i < stream->depth && status == OPIPE_OK; ++i)
    status = e->backend->event_create(e->device, &(*out_list)[i].event, err);
  return status;
}

static opipe_status make_outgoing(opipe_stream *s, uint64_t n_bytes, opipe_error *err) {
  const opipe_instance *self = s->endpoint->self;
  s->outgoing.n_bytes = s->depth * (n_bytes == 0 ? 1 : n_bytes);
  s->outgoing.data = staged_zeroed(self, "messages", s->outgoing.n_bytes, err);
  if (s->outgoing.data == NULL)
    return OPIPE_E_NOMEM;
  return self->inner->memory_register(s->endpoint->inner, &s->outgoing, s->outgoing.n_bytes,
                                      &s->registered, err);
}

opipe_status staged_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                opipe_stream **out_stream, opipe_error *err) {
  const opipe_instance *self = endpoint->self;
  opipe_stream *s = staged_zeroed(self, "a stream", sizeof *s, err);
  if (s == NULL)
    return OPIPE_E_NOMEM;
  s->endpoint = endpoint;
  s->depth = params->depth;
  opipe_status status = self->inner->stream_open(endpoint->inner, params, &s->inner, err);
  if (status == OPIPE_OK && params->src_rank == endpoint->rank)
    status = make_passages(s, &s->sends, err);
  if (status == OPIPE_OK && s->sends != NULL)
    status = make_outgoing(s, params->n_bytes, err);
  if (status == OPIPE_OK && params->dst_rank == endpoint->rank)
    status = make_passages(s, &s->receives, err);
  if (status < 0) {
    staged_stream_close(s);
    return status;
  }
  *out_stream = s;
  return OPIPE_OK;
}

void staged_stream_close(opipe_stream *stream) {
  if (stream == NULL)
    return;
  const opipe_instance *self = stream->endpoint->self;
  self->inner->stream_close(stream->inner);
  free_passages(stream, stream->sends);
  free_passages(stream, stream->receives);
  self->inner->memory_drop(stream->registered);
  staged_free(self, stream->outgoing.data, stream->outgoing.n_bytes);
  staged_free(self, stream, sizeof *stream);
}

opipe_status staged_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  return stream->endpoint->self->inner->reserve(stream->inner, sequence, err);
}

opipe_status staged_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                         opipe_event *ready, opipe_event *done, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  opipe_status status = staged_reserve(stream, sequence, err);
  if (status != OPIPE_OK)
    return status;
  passage *p = &stream->sends[sequence % stream->depth];
  if (p->state != IDLE || p->number > sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "send of message %llu: message %llu of its slot was sent",
                      (unsigned long long)sequence, (unsigned long long)(p->number - 1));
  }
  p->region = *region;
  const uint64_t most = stream->outgoing.n_bytes / stream->depth;
  if (region->n_bytes > most) {
    return opipe_fail(err, OPIPE_E_INVALID, "a message of %llu bytes in a stream of %llu at most",
                      (unsigned long long)region->n_bytes, (unsigned long long)most);
  }
  status = staged_mirror(e, region, &p->mirror, err); /* registered? */
  p->mirror.buffer = &stream->outgoing;
  p->mirror.offset_bytes = sequence % stream->depth * most;
  if (status >= 0)
    status = await(e, ready, err);
  if (status >= 0)
    status = copy(e, p, IN, done, err);
  if (status < 0)
    return status;
  p->number = sequence + 1;
  return OPIPE_OK;
}

opipe_status staged_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                         opipe_event *done, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  passage *p = &stream->receives[sequence % stream->depth];
  opipe_region mirror;
  opipe_status status = staged_mirror(e, region, &mirror, err);
  if (p->state != IDLE)
    return OPIPE_PENDING;
  if (status >= 0)
    status = e->self->inner->recv(stream->inner, sequence, &mirror, NULL, err);
  if (status != OPIPE_OK)
    return status;
  p->region = *region;
  p->mirror = mirror;
  p->done = done;
  p->number = sequence + 1;
  p->state = AWAY;
  return OPIPE_OK;
}

static opipe_status test_send(opipe_stream *stream, passage *p, uint64_t sequence,
                              opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  const opipe_transport *inner = e->self->inner;
  opipe_status status = OPIPE_OK;
  if (p->state == IN) {
    status = look(e, p, AWAY, err);
    if (status == OPIPE_OK)
      status = inner->send(stream->inner, sequence, &p->mirror, NULL, NULL, err);
    if (status != OPIPE_OK)
      return status;
  }
  status = inner->test(stream->inner, sequence, err);
  if (status == OPIPE_OK)
    p->state = IDLE;
  return status;
}

static opipe_status test_receive(opipe_stream *stream, passage *p, uint64_t sequence,
                                 opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  opipe_status status = OPIPE_OK;
  if (p->state == AWAY) {
    status = e->self->inner->test(stream->inner, sequence, err);
    if (status == OPIPE_OK)
      status = copy(e, p, OUT, p->done, err);
  }
  return status == OPIPE_OK && p->state == OUT ? look(e, p, IDLE, err) : status;
}

opipe_status staged_test(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  const uint64_t at = sequence % stream->depth;
  passage *sent = stream->sends == NULL ? NULL : &stream->sends[at];
  passage *received = stream->receives == NULL ? NULL : &stream->receives[at];
  const bool sends = sent != NULL && sent->number == sequence + 1 && sent->state != IDLE;
  const bool receives =
      received != NULL && received->number == sequence + 1 && received->state != IDLE;
  opipe_status status = OPIPE_OK;
  if (!sends && !receives)
    return stream->endpoint->self->inner->test(stream->inner, sequence, err);
  if (sends)
    status = test_send(stream, sent, sequence, err);
  if (receives && status >= 0) {
    const opipe_status other = test_receive(stream, received, sequence, err);
    status = other < 0 || status == OPIPE_OK ? other : status;
  }
  return status;
}

/* ---- sums ---- */

opipe_status staged_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                               uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  const opipe_instance *self = endpoint->self;
  opipe_group *g = staged_zeroed(self, "a group", sizeof *g, err);
  if (g == NULL)
    return OPIPE_E_NOMEM;
  g->endpoint = endpoint;
  opipe_status status = endpoint->backend->event_create(endpoint->device, &g->round.event, err);
  if (status == OPIPE_OK)
    status = self->inner->group_open(endpoint->inner, ranks, n_ranks, n_bytes, &g->inner, err);
  if (status < 0) {
    staged_group_close(g);
    return status;
  }
  *out_group = g;
  return OPIPE_OK;
}

void staged_group_close(opipe_group *group) {
  if (group == NULL)
    return;
  const opipe_instance *self = group->endpoint->self;
  self->inner->group_close(group->inner);
  settle(group->endpoint, &group->round);
  group->endpoint->backend->event_destroy(group->round.event);
  staged_free(self, group, sizeof *group);
}

opipe_status staged_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                               uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                               opipe_event *done, opipe_error *err) {
  opipe_endpoint *e = group->endpoint;
  passage *p = &group->round;
  if (p->state != IDLE)
    return OPIPE_PENDING;
  p->region = *region;
  opipe_status status = staged_mirror(e, region, &p->mirror, err);
  if (status >= 0)
    status = await(e, ready, err);
  if (status >= 0)
    status = copy(e, p, IN, NULL, err);
  if (status < 0)
    return status;
  p->number = sequence + 1;
  p->done = done;
  group->n_elems = n_elems;
  group->dtype = dtype;
  group->given = false;
  return OPIPE_OK;
}

/* With 'local': the sum is asked for once all rounds before are through, then waited for. */
static opipe_status sum(opipe_group *group, uint64_t sequence, opipe_error *err) {
  const opipe_transport *inner = group->endpoint->self->inner;
  opipe_status status = OPIPE_OK;
  if (!group->given) {
    status = inner->all_reduce(group->inner, sequence, &group->round.mirror, group->n_elems,
                               group->dtype, NULL, NULL, err);
    group->given = status == OPIPE_OK;
  }
  return status == OPIPE_OK ? inner->group_test(group->inner, sequence, err) : status;
}

opipe_status staged_group_test(opipe_group *group, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = group->endpoint;
  passage *p = &group->round;
  opipe_status status = OPIPE_OK;
  if (p->number != sequence + 1 || p->state == IDLE)
    return p->number > sequence ? OPIPE_OK : OPIPE_PENDING;
  if (p->state == IN)
    status = look(e, p, AWAY, err);
  if (status == OPIPE_OK && p->state == AWAY) {
    status = sum(group, sequence, err);
    if (status == OPIPE_OK)
      status = copy(e, p, OUT, p->done, err);
  }
  return status == OPIPE_OK && p->state == OUT ? look(e, p, IDLE, err) : status;
}
