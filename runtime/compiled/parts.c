/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a request's tensors that a step reads or makes: rows of a micro-batch's piece, tokens
 * of its slice, a member's entries, and their place in the whole.
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

/* A member's part of an input or output; NULL: all of it. */
static const opi_port_part *member_part(const opi_port_part *parts, uint32_t index) {
  return parts == NULL || parts[index].axis < 0 ? NULL : &parts[index];
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
  const opi_port_part *member = member_part(slice->input_parts, port);
  if (member != NULL && member->n_runs != 0)
    view.data += member->runs[0].first * feed->strides[member->axis] * (int64_t)view.elem_bytes;
  if (port == ports->labels && t->model->n_slices > 1)
    view.data += slice->first * feed->strides[t->token_axis] * (int64_t)view.elem_bytes;
  return view;
}

/* ---- out ---- */

void opi_step_place(const opi_compiled *t, const opi_request *request, uint32_t stage,
                    uint32_t microbatch, uint32_t index, const opi_carry *carry,
                    opi_result_place *out_place) {
  const opi_piece *piece = opi_piece_at(t, stage, microbatch);
  const opi_variant_slice *slice = opi_graphs_at(t, stage, microbatch);
  *out_place = (opi_result_place){.rows = {.carry = *carry,
                                           .n_whole = request->rows,
                                           .first = opi_piece_row(t, piece, microbatch),
                                           .n = piece->rows},
                                  .tokens = {.carry = {.axis = -1}},
                                  .member = member_part(slice->output_parts, index),
                                  .slice = slice,
                                  .index = index,
                                  .n_before = piece->graph % t->model->n_members};
  if (slice->n_outputs > index) {
    const opi_token_output *part = &slice->outputs[index];
    out_place->tokens = (opi_result_part){part->carry, part->n_whole, part->first, part->length};
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

/* Runs of a member's part that is made of several: each is a dense part of its own for
 * opi_part_runs, in the cell it has the others beside it. */
typedef struct member_run {
  uint64_t block, row, first; /* bytes: of the run, of all runs, before the run */
  opi_run_fn each;
  void *ctx;
} member_run;

static opipe_status move_run(void *ctx, uint64_t whole_at, uint64_t part_at, uint64_t n_bytes) {
  const member_run *m = ctx;
  return m->each(m->ctx, whole_at, part_at / m->block * m->row + m->first + part_at % m->block,
                 n_bytes);
}

static uint32_t add_run(opi_extent *extents, uint32_t n, const opi_port_part *member,
                        const opi_shard_run *run) {
  return add_extent(extents, n, (uint64_t)member->n_whole, (uint64_t)run->first, (uint64_t)run->n);
}

/* run NULL: the part has all entries along all axes but those of rows and tokens. */
static opipe_status part_runs(const opi_value *value, const opi_result_place *place,
                              const opi_shard_run *run, opi_run_fn each, void *ctx) {
  const opi_result_part *rows = &place->rows, *tokens = &place->tokens;
  opi_extent extents[5 * OPIPE_MAX_RANK];
  uint32_t n = 0;
  for (int32_t d = 0; d < value->rank; ++d) {
    const uint64_t length = (uint64_t)value->shape[d];
    const bool by_rows = is_cut_in(rows, d), by_tokens = is_cut_in(tokens, d);
    if (run != NULL && place->member->axis == d)
      n = add_run(extents, n, place->member, run);
    else if (by_rows && by_tokens)
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

/* Has a member before this one entry `at`? The answer holds up to *io_end, which it may lower. */
static bool is_before(const opi_result_place *place, int64_t at, int64_t *io_end) {
  for (uint32_t m = 1; m <= place->n_before; ++m) {
    const opi_port_part *part = &(place->slice - m)->output_parts[place->index];
    for (uint32_t k = 0; k < part->n_runs; ++k) {
      const int64_t first = part->runs[k].first, end = first + part->runs[k].n;
      if (at >= first && at < end) {
        *io_end = end < *io_end ? end : *io_end;
        return true;
      }
      *io_end = first > at && first < *io_end ? first : *io_end;
    }
  }
  return false;
}

/* The parts of all runs of a member, one after the other, but for what one before it has. */
static opipe_status member_runs(const opi_value *value, const opi_result_place *place,
                                opi_run_fn each, void *ctx) {
  const opi_port_part *part = place->member;
  uint64_t unit = opi_dtype_bits(value->dtype) / 8;
  opipe_status status = OPIPE_OK;
  for (int32_t d = part->axis + 1; d < value->rank; ++d)
    unit *= (uint64_t)value->shape[d];
  member_run one = {.row = (uint64_t)value->shape[part->axis] * unit, .each = each, .ctx = ctx};
  for (uint32_t k = 0; k < part->n_runs; ++k) {
    const int64_t run_end = part->runs[k].first + part->runs[k].n;
    int64_t end = 0;
    for (int64_t at = part->runs[k].first; at < run_end && status == OPIPE_OK; at = end) {
      end = run_end;
      const bool skips = part->shared && is_before(place, at, &end);
      const opi_shard_run run = {.first = at, .n = end - at};
      one.block = (uint64_t)run.n * unit;
      if (!skips)
        status = part_runs(value, place, &run, move_run, &one);
      one.first += one.block;
    }
  }
  return status;
}

opipe_status opi_result_runs(const opi_value *value, const opi_result_place *place, opi_run_fn each,
                             void *ctx) {
  if (value->n_bytes == 0)
    return OPIPE_OK;
  if (place->member != NULL)
    return member_runs(value, place, each, ctx);
  if (place->rows.carry.axis < 0 && place->tokens.carry.axis < 0)
    return each(ctx, 0, 0, value->n_bytes);
  return part_runs(value, place, NULL, each, ctx);
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

void opi_result_put(const opi_result *result, const opi_value *value, const opi_result_place *place,
                    const char *part) {
  both b = {result->data, part};
  (void)opi_result_runs(value, place, put_run, &b);
}

/* ---- members ---- */

static opipe_status check_output(const opi_compiled *t, const opi_variant_slice *slice,
                                 uint32_t output, opipe_error *err) {
  const opi_port_part *part = &slice->output_parts[output];
  const opi_value *value = &slice->graph->values[slice->graph->outputs[output]];
  const bool tokens = output < slice->n_outputs && slice->outputs[output].carry.axis == part->axis;
  if (part->axis < 0)
    return OPIPE_OK;
  if (opi_dtype_bits(value->dtype) < 8) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "output '%s' of type %s cannot be put together from parts of a tensor group",
                    value->name, opi_dtype_name(value->dtype));
  }
  if (tokens || (opi_plan_cuts_rows(&t->given) && t->output_carry[output].axis == part->axis)) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "output '%s': its dimension %d has the %s and the parts of a tensor group",
                    value->name, part->axis, tokens ? "tokens of slices" : "rows of micro-batches");
  }
  return OPIPE_OK;
}

static opipe_status check_input(const opi_compiled *t, uint32_t graph, uint32_t port,
                                opipe_error *err) {
  const opi_variant_slice *slice = &t->model->variants[t->model->base].slices[graph];
  const opi_port_part *part = &slice->input_parts[port];
  const opi_value *value = &slice->graph->values[slice->graph->inputs[port]];
  const bool shared = part->axis >= 0 && t->ports[t->model->base][graph].axis[port] == part->axis;
  if (part->axis < 0 || (part->n_runs < 2 && opi_dtype_bits(value->dtype) >= 8 && !shared))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "input '%s': member %u of a tensor group has %u parts of its dimension %d%s",
                  value->name, graph % t->model->n_members, part->n_runs, part->axis,
                  shared ? ", which has the rows of micro-batches" : "");
}

/* The ports that requests feed and read; keys and values that slices pass on are none. */
opipe_status opi_parts_check(const opi_compiled *t, opipe_error *err) {
  const opi_variant *base = &t->model->variants[t->model->base];
  for (uint32_t k = 0; t->model->n_members > 1 && k < opi_model_graphs(t->model); ++k) {
    const opi_variant_slice *slice = &base->slices[k];
    for (uint32_t o = 0; o < slice->graph->n_outputs && o < base->slices[0].graph->n_outputs; ++o) {
      if (o < t->setup->n_outputs)
        OPI_TRY(check_output(t, slice, o, err));
    }
    for (uint32_t i = 0; i < slice->graph->n_inputs; ++i) {
      if (t->ports[t->model->base][k].input[i] != OPIPE_NONE)
        OPI_TRY(check_input(t, k, i, err));
    }
  }
  return OPIPE_OK;
}
