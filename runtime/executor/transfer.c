/* SPDX-License-Identifier: Apache-2.0 */
/* Guards a request's memory, and stores outputs that no program makes.
 *
 * A rank sets `touching` before it touches a request's memory, and then looks whether the session
 * has failed, so that a failed request is never handed back to its owner while a rank still copies.
 */
#include <string.h>

#include "runtime/executor/steps.h"

bool opi_rank_touch(opi_rank *rank) {
  atomic_store(&rank->worker->touching, 1);
  if (!opi_session_failed(rank->setup))
    return true;
  atomic_store(&rank->worker->touching, 0);
  return false;
}

void opi_rank_let_go(opi_rank *rank) {
  atomic_store(&rank->worker->touching, 0);
}

/* ---- outputs that no program makes ---- */

opipe_status opi_store_plain(opi_rank *rank, opi_request *request, opipe_error *err) {
  const opi_setup *s = rank->setup;
  const opi_compiled *t = request->runs;
  const opi_cut *c = t->model->cuts[0];
  const uint32_t *ports = t->ports[0][0].input;
  if (!request->has_plain || opi_request_failed(request))
    return OPIPE_OK;
  bool ready = true;
  if (!opi_rank_touch(rank))
    return OPIPE_OK;
  for (uint32_t o = 0; o < s->n_outputs && ready; ++o) {
    const uint32_t port = c->output_port[o];
    ready =
        opi_output_is_made(c, o) || ((port == OPIPE_NONE || opi_feed_ready(request, ports[port])) &&
                                     opi_result_ready(request, o));
  }
  if (!ready) {
    opi_rank_let_go(rank);
    return opi_rank_at_fence(rank);
  }
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    const opi_result *result = &request->results[o];
    if (opi_output_is_made(c, o) || result->n_bytes == 0)
      continue;
    if (c->output_port[o] == OPIPE_NONE) {
      memcpy(result->data, c->graph->values[c->graph->outputs[o]].data, (size_t)result->n_bytes);
      continue;
    }
    const uint32_t input = ports[c->output_port[o]];
    const uint32_t bits = opi_dtype_bits(s->inputs[input].value->dtype);
    const opi_view view = {.data = request->feeds[input].data,
                           .shape = request->feeds[input].shape,
                           .strides = request->feeds[input].strides,
                           .rank = (uint32_t)s->inputs[input].value->rank,
                           .elem_bytes = bits / 8};
    if (bits < 8)
      memcpy(result->data, view.data, (size_t)result->n_bytes);
    else
      opi_view_gather(&view, result->data);
  }
  opi_rank_let_go(rank);
  (void)err;
  return OPIPE_OK;
}

/* ---- between ranks, for the reference ---- */

opipe_status opi_move_region(opi_rank *from, const opipe_region *src, opi_rank *to,
                             const opipe_region *dst, opipe_error *err) {
  void *a = NULL, *b = NULL;
  if (src->n_bytes == 0)
    return OPIPE_OK;
  if ((from->device_flags & to->device_flags & OPIPE_DEVICE_HOST_MEMORY) != 0) {
    OPI_TRY(opi_buffer_host(from, src->buffer, &a, err));
    OPI_TRY(opi_buffer_host(to, dst->buffer, &b, err));
    memmove((char *)b + dst->offset_bytes, (const char *)a + src->offset_bytes,
            (size_t)src->n_bytes);
    return OPIPE_OK;
  }
  char *staging = opi_rank_staging(from);
  if ((from->device_flags & OPIPE_DEVICE_HOST_MEMORY) != 0) {
    OPI_TRY(opi_buffer_host(from, src->buffer, &a, err));
    staging = (char *)a + src->offset_bytes;
  } else {
    OPI_TRY(OPI_ASK_RANK(from, read, err, from->queue, staging, src));
    OPI_TRY(opi_rank_sync(from, err));
  }
  OPI_TRY(OPI_ASK_RANK(to, write, err, to->queue, dst, staging));
  return opi_rank_sync(to, err);
}
