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
    *out_stream = stream;
  }
  pthread_mutex_unlock(&world->lock);
  if (status < 0)
    opipe_free(world->host, stream, sizeof *stream, _Alignof(opipe_stream));
  return status;
}

void local_stream_close(opipe_stream *stream) {
  if (stream == NULL)
    return;
  opipe_world *world = stream->endpoint->world;
  opipe_wire *w = &stream->wire->base;
  pthread_mutex_lock(&world->lock);
  if (opipe_wire_leave(w, stream->sides))
    opipe_wire_drop(&world->wires, w);
  pthread_mutex_unlock(&world->lock);
  opipe_free(world->host, stream, sizeof *stream, _Alignof(opipe_stream));
}
