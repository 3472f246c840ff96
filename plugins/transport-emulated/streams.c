/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: two ranks open the two ends of one wire (opipe/meeting.h), which stands in a channel
 * where the rule asks for one. Under the world's lock, as everything here.
 */
#include "emulated.h"

static void leave(opipe_world *world, wire *w, uint32_t sides) {
  if (!opipe_wire_leave(&w->base, sides))
    return;
  emutrans_channel_leave(world, w);
  opipe_wire_drop(&world->wires, &w->base);
}

static opipe_status open_locked(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                opipe_stream *stream, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_wire *base = NULL;
  opipe_status status = opipe_wire_open(&world->wires, endpoint->rank, params, &base, err);
  if (status < 0)
    return status;
  wire *w = (wire *)base;
  stream->sides = opipe_stream_sides(params, endpoint->rank);
  if (w->channel == NULL)
    status = emutrans_channel_take(world, w, err);
  if (status < 0) {
    leave(world, w, stream->sides);
    return status;
  }
  stream->wire = w;
  stream->n_opened = emutrans_opened(endpoint);
  if ((stream->sides & 1u) != 0)
    w->src_backend = endpoint->backend;
  if ((stream->sides & 2u) != 0)
    w->dst_backend = endpoint->backend;
  status = emutrans_cells_open(stream, err);
  if (status < 0)
    leave(world, w, stream->sides);
  return status;
}

opipe_status emutrans_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                  opipe_stream **out_stream, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_stream *stream = opipe_zeroed(world->host, "a stream", sizeof *stream, ALIGN, err);
  if (stream == NULL)
    return OPIPE_E_NOMEM;
  stream->endpoint = endpoint;
  pthread_mutex_lock(&world->lock);
  const opipe_status status = open_locked(endpoint, params, stream, err);
  pthread_mutex_unlock(&world->lock);
  if (status < 0)
    opipe_free(world->host, stream, sizeof *stream, ALIGN);
  else
    *out_stream = stream;
  return status;
}

void emutrans_stream_close(opipe_stream *stream) {
  if (stream == NULL)
    return;
  opipe_world *world = stream->endpoint->world;
  pthread_mutex_lock(&world->lock);
  emutrans_forget(stream);
  emutrans_cells_close(stream);
  leave(world, stream->wire, stream->sides);
  pthread_mutex_unlock(&world->lock);
  opipe_free(world->host, stream, sizeof *stream, ALIGN);
}
