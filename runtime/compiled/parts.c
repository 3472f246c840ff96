/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a request's tensors that a step reads or makes: rows of a micro-batch's piece, tokens
 * of its slice, and their place in the whole.
 */
#include <string.h>

#include "runtime/compiled/compiled.h"

/* ---- in ---- */

opi_view opi_feed_part(const opi_feed *feed, const opi_value *value, int64_t *shape, int32_t axis,
                       int64_t first) {
  static const int64_t one = 1;
  uint64_t n_bytes = 0;
  opi_view view = {.data = feed->data,
                   .shape = shape,
                   .strides = feed->strides,
                   .rank = (uint32_t)value->rank,
                   .elem_bytes = opi_dtype_bits(value->dtype) / 8};
  if (view.elem_bytes == 0) { /* elements smaller than a byte are dense and never cut */
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

const opi_feed *opi_port_feed(const opi_request *request, const opi_ports *ports, uint32_t port) {
  const struct opi_ticket *ticket = request->ticket;
  return ticket != NULL && port == ports->labels && ticket->judge.data != NULL
             ? &ticket->judge
             : &request->feeds[ports->input[port]];
}

opi_view opi_step_part(const opi_compiled *t, const opi_request *request, uint32_t stage,
                       uint32_t port, uint32_t microbatch, int64_t *shape) {
  const opi_piece *piece = opi_piece_at(t, stage, microbatch);
  const opi_variant_slice *slice = opi_graphs_at(t, stage, microbatch);
  const opi_ports *ports = opi_ports_at(t, piece);
  const opi_graph *g = slice->graph;
  const opi_value *value = &g->values[g->inputs[port]];
  const opi_feed *feed = opi_port_feed(request, ports, port);
  const int32_t axis = ports->axis[port];
  int64_t first = 0;
  if (value->rank > 0)
    memcpy(shape, value->shape, (size_t)value->rank * sizeof *shape);
  if (axis >= 0) /* a row may have several entries: tokens flattened into the batch */
    first = opi_piece_row(t, piece, microbatch) * (value->shape[axis] / piece->rows);
  opi_view view = opi_feed_part(feed, value, shape, axis, first);
  if (port == ports->labels && t->model->n_slices > 1)
    view.data += slice->first * feed->strides[t->token_axis] * (int64_t)view.elem_bytes;
  return view;
}

/* ---- out ---- */

void opi_step_rows(const opi_compiled *t, const opi_request *request, uint32_t stage,
                   uint32_t microbatch, uint32_t index, const opi_carry *carry,
                   opi_result_part *out_rows, opi_result_part *out_tokens) {
  const opi_piece *piece = opi_piece_at(t, stage, microbatch);
  const opi_variant_slice *slice = opi_graphs_at(t, stage, microbatch);
  *out_rows = (opi_result_part){.carry = *carry,
                                .n_whole = request->rows,
                                .first = opi_piece_row(t, piece, microbatch),
                                .n = piece->rows};
  *out_tokens = (opi_result_part){.carry = {.axis = -1}};
  if (slice->n_outputs > index) {
    const opi_token_output *part = &slice->outputs[index];
    *out_tokens = (opi_result_part){part->carry, part->n_whole, part->first, part->length};
  }
}

/* Does the part have only some entries of dimension d? */
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

/* Rows and tokens share the dimension, one within the other. */
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
