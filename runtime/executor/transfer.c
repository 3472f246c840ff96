/* SPDX-License-Identifier: Apache-2.0 */
/* Between a request's memory and the device: inputs are gathered (any strides, the micro-batch's
 * rows) into the stage's slots, results are put into their place in the caller's or the library's
 * buffer.
 *
 * While a rank touches a request's memory it says so (`touching`) and then looks whether the
 * session has failed, so that a failed request is never handed back to its owner while somebody
 * still copies.
 */
#include <string.h>

#include "runtime/state.h"

/* ---- fences ---- */

bool opi_fence_set(const opipe_fence *fence) {
  if (fence->kind != OPIPE_FENCE_HOST_FLAG)
    return true;
  return __atomic_load_n((const uint32_t *)fence->handle, __ATOMIC_ACQUIRE) != 0;
}

/* False when the session has failed: the memory must not be touched then. */
bool opi_rank_touch(opi_rank *rank) {
  atomic_store(&rank->touching, 1);
  if (!opi_session_failed(rank->session))
    return true;
  atomic_store(&rank->touching, 0);
  return false;
}

void opi_rank_let_go(opi_rank *rank) {
  atomic_store(&rank->touching, 0);
}

/* ---- inputs ---- */

opi_view opi_feed_part(const opi_feed *feed, const opi_value *value, int64_t *shape, int32_t axis,
                       int64_t first) {
  static const int64_t one = 1;
  uint64_t n_bytes = 0;
  opi_view view = {.data = feed->data,
                   .shape = shape,
                   .strides = feed->strides,
                   .rank = (uint32_t)value->rank,
                   .elem_bytes = opi_dtype_bits(value->dtype) / 8};
  if (view.elem_bytes == 0) { /* packed below a byte: dense and never cut */
    (void)opi_tensor_bytes(value->dtype, shape, view.rank, &n_bytes);
    view.elem_bytes = 1;
    view.rank = 1;
    shape[0] = (int64_t)n_bytes;
    view.strides = &one;
  } else if (axis >= 0) {
    view.data += first * feed->strides[axis] * (int64_t)view.elem_bytes;
  }
  return view;
}

static opipe_status load_one(opi_rank *rank, opi_shape *shape, const opi_request *request,
                             uint32_t cell, uint32_t microbatch, opipe_error *err) {
  const opi_session *s = rank->session;
  const opi_slot *slot = &shape->layout->cells[cell];
  const uint32_t input = shape->port_input[shape->cut->cells[cell].port];
  const opi_input *in = &s->inputs[input];
  const opi_feed *feed = &request->feeds[input];
  int64_t dims[OPIPE_MAX_RANK], first = 0;
  uint64_t n_bytes = 0;
  memcpy(dims, feed->shape, sizeof feed->shape);
  if (in->batch_axis >= 0) {
    dims[in->batch_axis] = request->shape[opi_class_of(request, microbatch)]->rows;
    first = opi_row_of(request, microbatch);
  }
  (void)opi_tensor_bytes(in->value->dtype, dims, (uint32_t)in->value->rank, &n_bytes);
  if (n_bytes != shape->cut->cells[cell].n_bytes) {
    return opi_fail(
        err, OPIPE_E_INTERNAL, "input '%s' of a micro-batch has %llu bytes, its slot %llu",
        in->name, (unsigned long long)n_bytes, (unsigned long long)shape->cut->cells[cell].n_bytes);
  }
  const opi_view view = opi_feed_part(feed, in->value, dims, in->batch_axis, first);
  const opipe_region region = opi_slot_region(shape, slot, 0, n_bytes);
  return opi_rank_write(rank, &view, &region, opi_slot_host(shape, slot, 0), err);
}

opipe_status opi_load_inputs(opi_rank *rank, opi_shape *shape, opi_request *request, uint32_t stage,
                             uint32_t microbatch, opipe_error *err) {
  const opi_cut *c = shape->cut;
  opipe_status status = OPIPE_OK;
  if (opi_request_failed(request))
    return OPIPE_OK;
  for (uint32_t i = c->cell_first[stage]; i < c->cell_first[stage + 1]; ++i) {
    if (c->cells[i].source != OPI_CELL_REQUEST)
      continue;
    if (opi_fence_set(&request->feeds[shape->port_input[c->cells[i].port]].ready))
      continue;
    rank->polls = true;
    return OPIPE_PENDING;
  }
  if (!opi_rank_touch(rank))
    return OPIPE_OK;
  for (uint32_t i = c->cell_first[stage]; i < c->cell_first[stage + 1] && status == OPIPE_OK; ++i) {
    if (c->cells[i].source != OPI_CELL_REQUEST)
      continue;
    status = load_one(rank, shape, request, i, microbatch, err);
  }
  opi_rank_let_go(rank);
  return status;
}

/* ---- results ---- */

/* Rows `first` to first + n_rows of a result of `n_whole` rows. */
void opi_result_put(const opi_result *result, const opi_carry *carry, int64_t n_whole,
                    int64_t first, int64_t n_rows, const char *part, uint64_t n_bytes) {
  uint64_t outer = (uint64_t)carry->outer;
  for (int32_t d = 0; d < carry->axis; ++d)
    outer *= (uint64_t)result->shape[d];
  if (n_bytes == 0)
    return;
  if (carry->axis >= 0) {
    opi_scatter_part(result->data, part, outer, (uint64_t)n_whole, (uint64_t)first,
                     (uint64_t)n_rows, n_bytes / outer / (uint64_t)n_rows);
  } else {
    memcpy(result->data, part, (size_t)n_bytes);
  }
}

/* The device that holds a produced tensor may be another rank's, whose memory is then the host's
 * too (in place). */
static opipe_status store_one(opi_rank *rank, const opi_shape *shape, const opi_request *request,
                              uint32_t output, uint32_t microbatch, uint64_t sequence,
                              opipe_error *err) {
  const uint32_t cell = shape->cut->output_cell[output];
  const uint64_t n_bytes = shape->cut->cells[cell].n_bytes;
  const opi_slot *slot = &shape->layout->cells[cell];
  const opi_carry *carry = &shape->output_carry[output];
  const char *data = opi_slot_host(shape, slot, sequence);
  const opipe_region region = opi_slot_region(shape, slot, sequence, n_bytes);
  if (slot->rank == rank->index)
    OPI_TRY(opi_rank_read(rank, &region, opi_slot_host(shape, slot, sequence), &data, err));
  if (carry->axis >= 0 || microbatch == 0) { /* it is the same for all of them */
    opi_result_put(&request->results[output], carry, request->rows, opi_row_of(request, microbatch),
                   shape->rows, data, n_bytes);
  }
  return OPIPE_OK;
}

opipe_status opi_store_results(opi_rank *rank, opi_shape *shape, opi_request *request,
                               uint32_t stage, uint32_t microbatch, uint64_t sequence,
                               opipe_error *err) {
  const opi_stage_run *run = &shape->stages[stage];
  opipe_status status = OPIPE_OK;
  if (opi_request_failed(request))
    return OPIPE_OK;
  for (uint32_t i = 0; i < run->n_results; ++i) {
    if (opi_fence_set(&request->results[run->results[i]].ready))
      continue;
    rank->polls = true;
    return OPIPE_PENDING;
  }
  if (!opi_rank_touch(rank))
    return OPIPE_OK;
  for (uint32_t i = 0; i < run->n_results && status == OPIPE_OK; ++i)
    status = store_one(rank, shape, request, run->results[i], microbatch, sequence, err);
  opi_rank_let_go(rank);
  return status;
}

/* ---- outputs that no program makes ---- */

opipe_status opi_store_plain(opi_rank *rank, opi_request *request, opipe_error *err) {
  const opi_session *s = rank->session;
  const opi_cut *c = request->shape[0]->cut;
  if (!request->has_plain || opi_request_failed(request))
    return OPIPE_OK;
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    if (c->output_cell[o] != OPIPE_NONE)
      continue;
    const uint32_t port = c->output_port[o];
    const bool ready = port == OPIPE_NONE ||
                       opi_fence_set(&request->feeds[request->shape[0]->port_input[port]].ready);
    if (ready && opi_fence_set(&request->results[o].ready))
      continue;
    rank->polls = true;
    return OPIPE_PENDING;
  }
  if (!opi_rank_touch(rank))
    return OPIPE_OK;
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    const opi_result *result = &request->results[o];
    if (c->output_cell[o] != OPIPE_NONE || result->n_bytes == 0)
      continue;
    if (c->output_port[o] == OPIPE_NONE) {
      memcpy(result->data, c->graph->values[c->graph->outputs[o]].data, (size_t)result->n_bytes);
      continue;
    }
    const uint32_t input = request->shape[0]->port_input[c->output_port[o]];
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
  char *staging = atomic_load_explicit(&from->staging, memory_order_acquire);
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
