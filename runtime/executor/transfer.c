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

#include "runtime/compiled/lent.h"

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

/* ---- results ---- */

/* Does the part have some of the axis, in dimension d? */
static bool is_cut_in(const opi_result_part *part, int32_t d) {
  return part->carry.axis == d && part->n != part->n_whole;
}

static uint32_t add_extent(opi_extent *extents, uint32_t n, uint64_t n_whole, uint64_t first,
                           uint64_t n_part) {
  extents[n] = (opi_extent){n_whole, first, n_part};
  return n + 1;
}

/* One axis alone: what lies behind it is told by the dimension's length, or what lies before. */
static uint32_t split_once(opi_extent *extents, uint32_t n, uint64_t length,
                           const opi_result_part *cut, bool by_outer) {
  const uint64_t own = (uint64_t)cut->n;
  const uint64_t outer =
      by_outer ? (uint64_t)cut->carry.outer : length / own / (uint64_t)cut->carry.inner;
  const uint64_t inner = length / own / outer;
  n = add_extent(extents, n, outer, 0, outer);
  n = add_extent(extents, n, (uint64_t)cut->n_whole, (uint64_t)cut->first, own);
  return add_extent(extents, n, inner, 0, inner);
}

/* Both in one dimension, one within the other. */
static uint32_t split_twice(opi_extent *extents, uint32_t n, uint64_t length,
                            const opi_result_part *rows, const opi_result_part *tokens) {
  const bool rows_first = rows->carry.inner > tokens->carry.inner;
  const opi_result_part *high = rows_first ? rows : tokens, *low = rows_first ? tokens : rows;
  const uint64_t outer = (uint64_t)high->carry.outer;
  n = add_extent(extents, n, outer, 0, outer);
  n = add_extent(extents, n, (uint64_t)high->n_whole, (uint64_t)high->first, (uint64_t)high->n);
  return split_once(extents, n, length / outer / (uint64_t)high->n, low, false);
}

opipe_status opi_result_runs(const opi_value *value, const opi_result_part *rows,
                             const opi_result_part *tokens, opi_run_fn each, void *ctx) {
  opi_extent extents[5 * OPIPE_MAX_RANK];
  uint32_t n = 0;
  if (value->n_bytes == 0)
    return OPIPE_OK;
  if (rows->carry.axis < 0 && tokens->carry.axis < 0)
    return each(ctx, 0, 0, value->n_bytes);
  for (int32_t d = 0; d < value->rank; ++d) {
    const uint64_t length = (uint64_t)value->shape[d];
    const bool by_rows = is_cut_in(rows, d), by_tokens = is_cut_in(tokens, d);
    if (by_rows && by_tokens)
      n = split_twice(extents, n, length, rows, tokens);
    else if (by_rows)
      n = split_once(extents, n, length, rows, true);
    else if (by_tokens)
      n = split_once(extents, n, length, tokens, tokens->carry.outer == 1);
    else
      n = add_extent(extents, n, length, 0, length);
  }
  return opi_part_runs(extents, n, opi_dtype_bits(value->dtype) / 8, each, ctx);
}

typedef struct both {
  char *whole;
  const char *part;
} both;

static opipe_status put_run(void *ctx, uint64_t whole_at, uint64_t part_at, uint64_t n_bytes) {
  const both *b = ctx;
  memcpy(b->whole + whole_at, b->part + part_at, (size_t)n_bytes);
  return OPIPE_OK;
}

void opi_result_put(const opi_result *result, const opi_value *value, const opi_result_part *rows,
                    const opi_result_part *tokens, const char *part) {
  both b = {result->data, part};
  (void)opi_result_runs(value, rows, tokens, put_run, &b);
}

/* ---- outputs that no program makes ---- */

opipe_status opi_store_plain(opi_rank *rank, opi_request *request, opipe_error *err) {
  const opi_session *s = rank->session;
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
