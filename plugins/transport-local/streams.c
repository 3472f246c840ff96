/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: two ranks open the two ends of one wire (opipe/meeting.h), under the world's lock; the
 * message path never takes it.
 */
#include "local.h"

opipe_status local_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                               opipe_stream **out_stream, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_wire *w = NULL;
  opipe_stream *stream =
      opipe_zeroed(world->host, "a stream", sizeof *stream, _Alignof(opipe_stream), err);
  if (stream == NULL)
    return OPIPE_E_NOMEM;
  stream->endpoint = endpoint;
  pthread_mutex_lock(&world->lock);
  const opipe_status status = opipe_wire_open(&world->wires, endpoint->rank, params, &w, err);
  if (status == OPIPE_OK) {
    stream->wire = (wire *)w;
    stream->sides = opipe_stream_sides(params, endpoint->rank);
    if ((stream->sides & 1u) != 0)
      stream->wire->src_backend = endpoint->backend;
  }
  pthread_mutex_unlock(&world->lock);
  if (status < 0) {
    opipe_free(world->host, stream, sizeof *stream, _Alignof(opipe_stream));
    return status;
  }
  const opipe_status made = endpoint->remote ? local_stream_bounce(stream, err) : OPIPE_OK;
  if (made < 0)
    local_stream_close(stream);
  else
    *out_stream = stream;
  return made;
}

/* The receiver's cells get places in a ring. Letters of the core's are few, small, and not pinned.
 */
static opipe_status make_ring(opipe_stream *stream, opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  const opipe_wire *w = &stream->wire->base;
  const bool pin = w->params.kind != OPIPE_STREAM_CONTROL;
  cell *cells = w->cells;
  opipe_error why = OPIPE_ERROR_INIT;
  const opipe_status status =
      opipe_ring_make(e->world->host, e->backend, e->device, w->params.depth, w->params.n_bytes,
                      pin, &stream->ring, &why);
  if (status < 0)
    return opipe_fail(err, status, "%s", why.message);
  if (stream->ring.data != NULL && !stream->ring.pinned) {
    (void)snprintf(stream->not_pinned, sizeof stream->not_pinned, "%.150s",
                   pin ? why.message : "letters are not pinned");
  }
  for (uint32_t i = 0; i < w->params.depth; ++i)
    cells[i].bounce = opipe_ring_at(&stream->ring, i);
  return OPIPE_OK;
}

opipe_status local_stream_bounce(opipe_stream *stream, opipe_error *err) {
  const opipe_endpoint *e = stream->endpoint;
  const opipe_wire *w = &stream->wire->base;
  cell *cells = w->cells;
  opipe_status status = OPIPE_OK;
  if (stream->bounces)
    return OPIPE_OK;
  stream->bounces = true; /* close frees the part that is there */
  for (uint32_t i = 0; i < w->params.depth && status >= 0; ++i) {
    if ((stream->sides & 1u) != 0)
      status = e->backend->event_create(e->device, &cells[i].fetched, err);
    if (status >= 0 && (stream->sides & 2u) != 0)
      status = e->backend->event_create(e->device, &cells[i].written, err);
  }
  if (status >= 0 && (stream->sides & 2u) != 0 && !local_stream_is_near(stream))
    status = make_ring(stream, err);
  return status;
}

/* Copies that are on their way end first. */
static void drop_event(const opipe_endpoint *e, opipe_event **event) {
  if (*event != NULL)
    (void)e->backend->event_sync(*event, UINT64_MAX, NULL);
  e->backend->event_destroy(*event);
  *event = NULL;
}

static void drop_bounces(const opipe_stream *stream) {
  const opipe_endpoint *e = stream->endpoint;
  const opipe_wire *w = &stream->wire->base;
  cell *cells = w->cells;
  for (uint32_t i = 0; stream->bounces && i < w->params.depth; ++i) {
    if ((stream->sides & 1u) != 0)
      drop_event(e, &cells[i].fetched);
    if ((stream->sides & 2u) != 0) {
      drop_event(e, &cells[i].written);
      cells[i].bounce = NULL;
    }
  }
}

static void drop_ring(opipe_stream *stream) {
  const opipe_endpoint *e = stream->endpoint;
  if (stream->ring.data != NULL)
    opipe_ring_drop(e->world->host, e->backend, e->device, &stream->ring);
}

void local_stream_close(opipe_stream *stream) {
  if (stream == NULL)
    return;
  opipe_world *world = stream->endpoint->world;
  opipe_wire *w = &stream->wire->base;
  drop_bounces(stream);
  drop_ring(stream);
  local_give_back(stream->endpoint, &stream->theirs);
  pthread_mutex_lock(&world->lock);
  if (opipe_wire_leave(w, stream->sides))
    opipe_wire_drop(&world->wires, w);
  pthread_mutex_unlock(&world->lock);
  opipe_free(world->host, stream, sizeof *stream, _Alignof(opipe_stream));
}
