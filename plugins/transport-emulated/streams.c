/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: two ranks open the two ends of one wire. The wire is made by the first of them, must be
 * described alike by the second, and is gone when both have closed. All of this under the world's
 * lock; as everything here.
 */
#include "emulated.h"

static wire *find_wire(opipe_world *world, const opipe_stream_params *params) {
  wire *w = world->wires;
  while (w != NULL && !opipe_stream_same(&w->params, params))
    w = w->next;
  return w;
}

static opipe_status make_wire(opipe_world *world, const opipe_stream_params *params,
                              wire **out_wire, opipe_error *err) {
  wire *w = emutrans_alloc(world->host, sizeof *w);
  if (w == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "a stream: the host has no %zu bytes left", sizeof *w);
  w->cells = emutrans_alloc(world->host, params->depth * sizeof(cell));
  if (w->cells == NULL) {
    emutrans_free(world->host, w, sizeof *w);
    return opipe_fail(err, OPIPE_E_NOMEM, "a stream: the host has no %zu bytes left",
                      params->depth * sizeof(cell));
  }
  w->params = *params;
  const opipe_status status = emutrans_channel_take(world, w, err);
  if (status < 0) {
    emutrans_free(world->host, w->cells, params->depth * sizeof(cell));
    emutrans_free(world->host, w, sizeof *w);
    return status;
  }
  w->next = world->wires;
  world->wires = w;
  *out_wire = w;
  return OPIPE_OK;
}

static void drop_wire(opipe_world *world, wire *w) {
  wire **at = &world->wires;
  while (*at != w)
    at = &(*at)->next;
  *at = w->next;
  emutrans_channel_leave(world, w);
  emutrans_free(world->host, w->cells, w->params.depth * sizeof(cell));
  emutrans_free(world->host, w, sizeof *w);
}

/* The sides of `w` that `endpoint` may take. */
static opipe_status check_wire(const opipe_endpoint *endpoint, const wire *w,
                               const opipe_stream_params *params, uint32_t sides,
                               opipe_error *err) {
  const opipe_status status = opipe_stream_agree(endpoint->rank, params, &w->params, err);
  for (uint32_t side = 0; side < 2 && status >= 0; ++side) {
    if ((sides & (1u << side)) != 0 && w->ends[side] != NULL) {
      return opipe_fail(err, OPIPE_E_STATE,
                        "stream %u of stages %u -> %u is open already on rank %u", params->index,
                        params->src_stage, params->dst_stage, endpoint->rank);
    }
  }
  return status;
}

static opipe_status open_locked(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                opipe_stream *stream, opipe_error *err) {
  opipe_world *world = endpoint->world;
  wire *w = find_wire(world, params);
  opipe_status status = OPIPE_OK;
  if (w == NULL) {
    status = make_wire(world, params, &w, err);
  } else {
    status = check_wire(endpoint, w, params, stream->sides, err);
  }
  if (status < 0)
    return status;
  stream->wire = w;
  if ((stream->sides & 1u) != 0) {
    w->ends[0] = stream;
    w->src_backend = endpoint->backend;
  }
  if ((stream->sides & 2u) != 0)
    w->ends[1] = stream;
  return OPIPE_OK;
}

opipe_status emutrans_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                  opipe_stream **out_stream, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_status status = opipe_stream_check(endpoint->rank, world->n_ranks, params, err);
  if (status < 0)
    return status;
  opipe_stream *stream = emutrans_alloc(world->host, sizeof *stream);
  if (stream == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "a stream: the host has no %zu bytes left",
                      sizeof *stream);
  stream->endpoint = endpoint;
  stream->sides = opipe_stream_sides(params, endpoint->rank);
  pthread_mutex_lock(&world->lock);
  status = open_locked(endpoint, params, stream, err);
  if (status == OPIPE_OK)
    stream->n_opened = emutrans_opened(endpoint);
  pthread_mutex_unlock(&world->lock);
  if (status < 0) {
    emutrans_free(world->host, stream, sizeof *stream);
    return status;
  }
  *out_stream = stream;
  return OPIPE_OK;
}

void emutrans_stream_close(opipe_stream *stream) {
  if (stream == NULL)
    return;
  opipe_world *world = stream->endpoint->world;
  wire *w = stream->wire;
  pthread_mutex_lock(&world->lock);
  emutrans_forget(stream);
  for (uint32_t side = 0; side < 2; ++side) {
    if (w->ends[side] == stream)
      w->ends[side] = NULL;
  }
  if (w->ends[0] == NULL && w->ends[1] == NULL)
    drop_wire(world, w);
  pthread_mutex_unlock(&world->lock);
  emutrans_free(world->host, stream, sizeof *stream);
}
