/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: two ranks open the two ends of one wire. The wire is made by the first of them, must be
 * described alike by the second, and is gone when both have closed. All of this under the world's
 * lock; as everything here.
 */
#include "emulated.h"

static bool same_name(const opipe_stream_params *a, const opipe_stream_params *b) {
  return a->kind == b->kind && a->src_rank == b->src_rank && a->dst_rank == b->dst_rank &&
         a->src_stage == b->src_stage && a->dst_stage == b->dst_stage &&
         a->src_replica == b->src_replica && a->dst_replica == b->dst_replica &&
         a->index == b->index;
}

static opipe_status check_params(const opipe_endpoint *endpoint, const opipe_stream_params *p,
                                 opipe_error *err) {
  if (p->struct_size < OPIPE_END(opipe_stream_params, n_bytes)) {
    return opipe_fail(err, OPIPE_E_ABI, "stream_open: struct_size %u is too small", p->struct_size);
  }
  if (p->kind > OPIPE_STREAM_CONTROL)
    return opipe_fail(err, OPIPE_E_INVALID, "stream_open: unknown kind %u", p->kind);
  if (p->src_rank >= endpoint->world->n_ranks || p->dst_rank >= endpoint->world->n_ranks) {
    return opipe_fail(err, OPIPE_E_INVALID, "stream_open: ranks %u -> %u in a world of %u",
                      p->src_rank, p->dst_rank, endpoint->world->n_ranks);
  }
  if (p->src_rank != endpoint->rank && p->dst_rank != endpoint->rank) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "stream_open: rank %u is neither end of a stream %u -> %u", endpoint->rank,
                      p->src_rank, p->dst_rank);
  }
  if (p->depth == 0 || p->depth > 65536) {
    return opipe_fail(err, OPIPE_E_INVALID, "stream_open: depth %u, 1 to 65536 are possible",
                      p->depth);
  }
  return OPIPE_OK;
}

static wire *find_wire(opipe_world *world, const opipe_stream_params *params) {
  wire *w = world->wires;
  while (w != NULL && !same_name(&w->params, params))
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
  if (w->params.depth != params->depth || w->params.n_bytes != params->n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "stream %u of stages %u -> %u: rank %u opens it with depth %u and %llu "
                      "bytes, its peer with depth %u "
                      "and %llu bytes",
                      params->index, params->src_stage, params->dst_stage, endpoint->rank,
                      params->depth, (unsigned long long)params->n_bytes, w->params.depth,
                      (unsigned long long)w->params.n_bytes);
  }
  for (uint32_t side = 0; side < 2; ++side) {
    if ((sides & (1u << side)) != 0 && w->ends[side] != NULL) {
      return opipe_fail(err, OPIPE_E_STATE,
                        "stream %u of stages %u -> %u is open already on rank %u", params->index,
                        params->src_stage, params->dst_stage, endpoint->rank);
    }
  }
  return OPIPE_OK;
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
  opipe_status status = check_params(endpoint, params, err);
  if (status < 0)
    return status;
  opipe_stream *stream = emutrans_alloc(world->host, sizeof *stream);
  if (stream == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "a stream: the host has no %zu bytes left",
                      sizeof *stream);
  stream->endpoint = endpoint;
  stream->sides = (params->src_rank == endpoint->rank ? 1u : 0u) |
                  (params->dst_rank == endpoint->rank ? 2u : 0u);
  pthread_mutex_lock(&world->lock);
  status = open_locked(endpoint, params, stream, err);
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
