/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: both ends take their messages in the order of their numbers; NCCL matches what two ranks
 * send each other in the order in which both start it, so nothing of a stream travels beside.
 */
#include "world.h"

static opipe_status check_new(const opipe_endpoint *e, const opipe_stream_params *p,
                              opipe_error *err) {
  const opipe_status status = opipe_stream_check(e->rank, e->world->n_ranks, p, err);
  if (status < 0)
    return status;
  if (p->src_rank == p->dst_rank) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "transport 'nccl': stream %u of stages %u -> %u leads from rank %u to itself",
                      p->index, p->src_stage, p->dst_stage, p->src_rank);
  }
  for (const opipe_stream *at = e->streams; at != NULL; at = at->next) {
    if (opipe_stream_same(&at->params, p)) {
      return opipe_fail(err, OPIPE_E_STATE,
                        "stream %u of stages %u -> %u is open already on rank %u", p->index,
                        p->src_stage, p->dst_stage, e->rank);
    }
  }
  return OPIPE_OK;
}

static void free_stream(opipe_stream *stream) {
  const opipe_host *host = stream->endpoint->world->host;
  nccl_delete(host, stream->slots, stream->params.depth * sizeof *stream->slots);
  nccl_delete(host, stream, sizeof *stream);
}

opipe_status nccl_stream_open(opipe_endpoint *e, const opipe_stream_params *params,
                              opipe_stream **out_stream, opipe_error *err) {
  const opipe_host *host = e->world->host;
  opipe_stream *stream = nccl_new(host, "a stream", sizeof *stream, err);
  if (stream == NULL)
    return OPIPE_E_NOMEM;
  stream->endpoint = e;
  (void)pthread_mutex_lock(&e->lock);
  opipe_status status = check_new(e, params, err);
  if (status == OPIPE_OK) {
    memcpy(&stream->params, params, OPIPE_END(opipe_stream_params, n_bytes));
    stream->side = params->src_rank == e->rank ? 0 : 1;
    stream->peer = stream->side == 0 ? params->dst_rank : params->src_rank;
    stream->slots = nccl_new(host, "a stream", params->depth * sizeof *stream->slots, err);
    status = stream->slots == NULL ? OPIPE_E_NOMEM : nccl_count_stream(e, params, err);
  }
  if (status == OPIPE_OK) {
    stream->next = e->streams;
    e->streams = stream;
  }
  (void)pthread_mutex_unlock(&e->lock);
  if (status < 0)
    free_stream(stream);
  else
    *out_stream = stream;
  return status;
}

void nccl_stream_close(opipe_stream *stream) {
  if (stream == NULL || nccl_is_child(stream->endpoint->world))
    return;
  opipe_endpoint *e = stream->endpoint;
  nccl_leave(e, stream->launch);
  (void)pthread_mutex_lock(&e->lock);
  nccl_batch_forget(stream);
  opipe_stream **at = &e->streams;
  while (*at != stream)
    at = &(*at)->next;
  *at = stream->next;
  (void)pthread_mutex_unlock(&e->lock);
  free_stream(stream);
}
