/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of inputs and outputs that travel between processes. An input's part is a micro-batch's
 * rows of it, or all of an input without rows; an output's part is what a STORE makes of it.
 */
#include "runtime/compiled/parcels.h"

#include <string.h>

#include "runtime/compiled/build.h"

/* ---- who reads which rows ---- */

/* Inputs of the session, and the shifted labels behind them. */
static uint32_t n_feeds(const opi_setup *s) {
  return s->n_inputs + 1;
}

static size_t at_reads(const opi_compiled *t, uint32_t process, uint32_t feed, uint32_t m) {
  return ((size_t)process * n_feeds(t->setup) + feed) * t->pieces->n_microbatches + m;
}

/* The labels' port compares with shifted labels; every other one reads the input. */
static uint32_t feed_of(const opi_compiled *t, const opi_ports *ports, uint32_t port) {
  const opi_setup *s = t->setup;
  return opi_labels_are_shifted(s) && port == ports->labels ? s->n_inputs : ports->input[port];
}

static uint32_t input_of(const opi_setup *s, uint32_t feed) {
  return feed == s->n_inputs ? s->shapes->labels_input : feed;
}

/* The axis along which the feed is cut into micro-batches; -1: it travels as a whole. */
static int32_t axis_of(const opi_compiled *t, uint32_t feed) {
  const opi_setup *s = t->setup;
  const opi_ports *ports = &t->ports[0][0];
  const uint32_t input = input_of(s, feed);
  if (opi_dtype_bits(s->inputs[input].value->dtype) < 8 || t->given.binding.batch_dim == NULL)
    return -1;
  return input == s->shapes->labels_input && ports->labels != OPIPE_NONE
             ? ports->axis[ports->labels]
             : s->inputs[input].batch_axis;
}

/* Marks the micro-batches whose rows the LOAD's piece has. */
static void mark_rows(opi_compiled *t, uint32_t process, uint32_t feed, const opi_step *step) {
  const opi_piece *piece = opi_piece_at(t, step->stage, step->microbatch);
  const uint32_t n = t->given.n_microbatches, first = step->microbatch / n * n;
  const int64_t begin = opi_piece_row(t, piece, step->microbatch), end = begin + piece->rows;
  if (axis_of(t, feed) < 0) {
    t->reads[at_reads(t, process, feed, first)] = true;
    return;
  }
  for (uint32_t m = first; m < first + n; ++m) {
    const int64_t row = opi_row_at(t, m), behind = row + t->rows[opi_class_at(t, m)];
    if (row < end && begin < behind)
      t->reads[at_reads(t, process, feed, m)] = true;
  }
}

static void mark_load(opi_compiled *t, const opi_step *step) {
  const opi_setup *s = t->setup;
  const opi_cut *cut = t->model->cuts[opi_class_at(t, step->microbatch)];
  const opi_ports *ports = opi_ports_at(t, opi_piece_at(t, step->stage, step->microbatch));
  const uint32_t process = s->env.places[opi_piece_rank(t->pieces, step->stage, step->replica)];
  for (uint32_t c = cut->cell_first[step->stage]; c < cut->cell_first[step->stage + 1]; ++c) {
    const opi_cell *cell = &cut->cells[c];
    if (cell->source == OPI_CELL_REQUEST && ports->input[cell->port] != OPIPE_NONE)
      mark_rows(t, process, feed_of(t, ports, cell->port), step);
  }
}

opipe_status opi_parcel_find(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const size_t n = (size_t)s->env.n_processes * n_feeds(s) * t->pieces->n_microbatches;
  if (!s->inputs_travel)
    return OPIPE_OK;
  t->reads = OPI_ARENA_ARRAY(&t->arena, bool, n);
  if (t->reads == NULL)
    return opi_fail_nomem(err, n, "inputs that travel");
  for (uint32_t i = 0; i < t->lists->n_steps; ++i) {
    if (t->lists->steps[i].kind == OPI_ACT_LOAD)
      mark_load(t, &t->lists->steps[i]);
  }
  return OPIPE_OK;
}

void opi_parcel_read_everywhere(opi_compiled *t, uint32_t input) {
  const uint32_t n = t->pieces->n_microbatches;
  for (uint32_t i = 0; t->reads != NULL && i < n * t->setup->env.n_processes; ++i) {
    if (axis_of(t, input) >= 0 || i % n % t->given.n_microbatches == 0)
      t->reads[at_reads(t, i / n, input, i % n)] = true;
  }
}

bool opi_parcel_reads(const opi_compiled *t, uint32_t process, uint32_t feed) {
  bool reads = false;
  for (uint32_t m = 0; m < t->pieces->n_microbatches && !reads; ++m)
    reads = t->reads[at_reads(t, process, feed, m)];
  return reads;
}

/* ---- copying ---- */

/* Some bytes of a part: bytes `first` to `end` - 1 of it lie at `bytes`. */
typedef struct part_bytes {
  char *whole, *bytes; /* the tensor; the part's bytes */
  uint64_t first, end;
  bool puts; /* from `bytes` to the tensor, else the other way */
} part_bytes;

static opipe_status copy_run(void *ctx, uint64_t whole_at, uint64_t part_at, uint64_t n_bytes) {
  const part_bytes *s = ctx;
  const uint64_t begin = part_at > s->first ? part_at : s->first;
  const uint64_t end = part_at + n_bytes < s->end ? part_at + n_bytes : s->end;
  if (begin >= end)
    return OPIPE_OK;
  char *whole = s->whole + whole_at + (begin - part_at), *bytes = s->bytes + (begin - s->first);
  memcpy(s->puts ? whole : bytes, s->puts ? bytes : whole, (size_t)(end - begin));
  return OPIPE_OK;
}

/* ---- inputs ---- */

enum { COUNT_ITEM = 0, COUNT_BYTES = (1 + OPI_MOST_SUMS) * (int)sizeof(double) };

static const opi_feed *feed_at(const opi_request *request, uint32_t feed) {
  return feed == request->setup->n_inputs ? &request->ticket->judge : &request->feeds[feed];
}

/* A micro-batch's rows of a feed. The view borrows dims [OPIPE_MAX_RANK]. */
static opi_view rows_of(const opi_compiled *t, const opi_request *request, uint32_t feed,
                        uint32_t m, int64_t *dims) {
  const opi_feed *f = feed_at(request, feed);
  const opi_value *value = t->setup->inputs[input_of(t->setup, feed)].value;
  const int32_t axis = axis_of(t, feed);
  int64_t first = 0;
  memcpy(dims, f->shape, (size_t)value->rank * sizeof *dims);
  if (axis >= 0) { /* a row may have several entries */
    const int64_t unit = f->shape[axis] / t->given.binding.batch_rows;
    dims[axis] = t->rows[opi_class_at(t, m)] * unit;
    first = opi_row_at(t, m) * unit;
  }
  return opi_feed_part(f, value, dims, axis, first);
}

/* The request's own data travel, not states and values that decide shapes. */
static bool travels(const opi_request *request, uint32_t feed) {
  const opi_setup *s = request->setup;
  if (feed == s->n_inputs && !(request->ticket != NULL && opi_labels_are_shifted(s)))
    return false;
  const uint32_t input = input_of(s, feed);
  return request->feeds[input].given && !s->inputs[input].valued;
}

static uint64_t bytes_in(const opi_compiled *t, const opi_request *request, uint32_t process,
                         uint32_t item, uint32_t m) {
  const uint32_t position = request->ticket == NULL ? request->position : 0;
  const uint32_t at = position * t->given.n_microbatches + m, feed = item - 1;
  int64_t dims[OPIPE_MAX_RANK] = {0};
  if (item == COUNT_ITEM)
    return request->ticket != NULL && m == 0 ? (uint64_t)COUNT_BYTES : 0;
  if (!travels(request, feed) || !t->reads[at_reads(t, process, feed, at)])
    return 0;
  const opi_view view = rows_of(t, request, feed, at, dims);
  uint64_t n = view.elem_bytes;
  for (uint32_t d = 0; d < view.rank; ++d)
    n *= (uint64_t)view.shape[d];
  return n;
}

bool opi_parcel_in(const opi_compiled *t, const opi_request *request, uint32_t process,
                   opi_parcel *io) {
  const uint32_t n = t->given.n_microbatches;
  for (; io->item <= n_feeds(t->setup); ++io->item, io->next = 0) {
    while (io->next < n) {
      const uint32_t m = io->next++;
      io->n_bytes = bytes_in(t, request, process, io->item, m);
      io->part = m;
      if (io->n_bytes != 0)
        return true;
    }
  }
  return false;
}

/* The count and the sums, one after the other. */
static void copy_counts(opi_ticket *ticket, uint64_t first, uint64_t n, char *bytes, bool puts) {
  double all[1 + OPI_MOST_SUMS];
  all[0] = ticket->count;
  memcpy(all + 1, ticket->sums, sizeof ticket->sums);
  if (!puts) {
    memcpy(bytes, (const char *)all + first, (size_t)n);
    return;
  }
  memcpy((char *)all + first, bytes, (size_t)n);
  ticket->count = all[0];
  memcpy(ticket->sums, all + 1, sizeof ticket->sums);
}

static void copy_in(const opi_compiled *t, const opi_request *request, const opi_parcel *at,
                    part_bytes *s) {
  const uint32_t position = request->ticket == NULL ? request->position : 0;
  int64_t dims[OPIPE_MAX_RANK] = {0};
  if (at->item == COUNT_ITEM) {
    copy_counts(request->ticket, s->first, s->end - s->first, s->bytes, s->puts);
    return;
  }
  const opi_view view =
      rows_of(t, request, at->item - 1, position * t->given.n_microbatches + at->part, dims);
  s->whole = (char *)(uintptr_t)view.data;
  (void)opi_view_runs(&view, copy_run, s);
}

void opi_parcel_take_in(const opi_compiled *t, const opi_request *request, const opi_parcel *at,
                        uint64_t first, uint64_t n, char *out_bytes) {
  part_bytes s = {.bytes = out_bytes, .first = first, .end = first + n};
  copy_in(t, request, at, &s);
}

void opi_parcel_put_in(const opi_compiled *t, const opi_request *request, const opi_parcel *at,
                       uint64_t first, uint64_t n, const char *bytes) {
  part_bytes s = {
      .bytes = (char *)(uintptr_t)bytes, .first = first, .end = first + n, .puts = true};
  copy_in(t, request, at, &s);
}

/* ---- outputs ---- */

static const opi_value *value_of(const opi_compiled *t, const opi_step *step, uint32_t output) {
  const uint32_t cell = t->setup->shapes->kind->makes(t, step, output);
  const opi_cut *cut = t->model->cuts[opi_class_at(t, step->microbatch)];
  return cell == OPIPE_NONE ? NULL
                            : &opi_graphs_at(t, step->stage, step->microbatch)
                                   ->graph->values[cut->cells[cell].value];
}

static uint64_t bytes_out(const opi_compiled *t, const opi_request *request, const opi_step *step,
                          uint32_t output) {
  const bool evaluates = request->ticket != NULL && request->ticket->kind != OPI_TICKET_TRAIN;
  const bool stores = request->ticket == NULL || (evaluates && output != 0);
  if (step->kind != OPI_ACT_STORE || !stores || request->results[output].n_bytes == 0 ||
      opi_stream_keeps(request, output))
    return 0;
  const opi_value *value = value_of(t, step, output);
  return value == NULL ? 0 : value->n_bytes;
}

static uint32_t first_step(const opi_compiled *t, const opi_request *request, uint32_t rank,
                           bool behind) {
  const opi_lists *lists = t->lists;
  if (request->ticket != NULL)
    return lists->rank_first[rank + (behind ? 1u : 0u)];
  return lists->request_first[rank * lists->n_positions + request->position + (behind ? 1u : 0u)];
}

bool opi_parcel_out(const opi_compiled *t, const opi_request *request, uint32_t process,
                    opi_parcel *io) {
  const opi_setup *s = t->setup;
  for (; io->item < s->plan->decided.n_ranks; ++io->item, io->next = 0, io->output = 0) {
    const uint32_t first = first_step(t, request, io->item, false);
    const uint32_t end = first_step(t, request, io->item, true);
    if (s->env.places[io->item] != process)
      continue;
    for (; first + io->next < end; ++io->next, io->output = 0) {
      while (io->output < s->n_outputs) {
        io->part = first + io->next;
        io->which = io->output++;
        io->n_bytes = bytes_out(t, request, &t->lists->steps[io->part], io->which);
        if (io->n_bytes != 0)
          return true;
      }
    }
  }
  return false;
}

static void copy_out(const opi_compiled *t, const opi_request *request, const opi_parcel *at,
                     part_bytes *s) {
  const opi_step *step = &t->lists->steps[at->part];
  opi_result_place place;
  s->whole = request->results[at->which].data;
  opi_step_place(t, request, step->stage, step->microbatch, request->ticket == NULL ? at->which : 0,
                 &t->output_carry[at->which], &place);
  (void)opi_result_runs(value_of(t, step, at->which), &place, copy_run, s);
}

void opi_parcel_take_out(const opi_compiled *t, const opi_request *request, const opi_parcel *at,
                         uint64_t first, uint64_t n, char *out_bytes) {
  part_bytes s = {.bytes = out_bytes, .first = first, .end = first + n};
  copy_out(t, request, at, &s);
}

void opi_parcel_put_out(const opi_compiled *t, const opi_request *request, const opi_parcel *at,
                        uint64_t first, uint64_t n, const char *bytes) {
  part_bytes s = {
      .bytes = (char *)(uintptr_t)bytes, .first = first, .end = first + n, .puts = true};
  copy_out(t, request, at, &s);
}

/* ---- submitting ---- */

static opipe_status place(opi_request *request, uint32_t feed, opi_feed *io_feed,
                          opipe_error *err) {
  const opi_setup *s = request->setup;
  const opi_input *input = &s->inputs[input_of(s, feed)];
  opi_landing *place = &request->come[feed];
  uint64_t n_bytes = 0;
  int64_t dense = 1;
  if (!opi_tensor_bytes(input->value->dtype, io_feed->shape, (uint32_t)input->value->rank,
                        &n_bytes))
    return opi_fail(err, OPIPE_E_INVALID, "input '%s': its size overflows", input->name);
  if (place->n_bytes < n_bytes) {
    opi_free(s->allocator, place->data, (size_t)place->n_bytes);
    place->n_bytes = 0;
    place->data = opi_alloc_zero(s->allocator, 1, (size_t)n_bytes);
    if (place->data == NULL)
      return opi_fail_nomem(err, n_bytes, input->name);
    place->n_bytes = n_bytes;
  }
  io_feed->data = place->data;
  for (int32_t d = input->value->rank; d > 0; --d) {
    io_feed->strides[d - 1] = dense;
    dense *= io_feed->shape[d - 1];
  }
  io_feed->absent = io_feed->on_device = false;
  io_feed->ready = io_feed->done = (opipe_fence){.kind = OPIPE_FENCE_NONE};
  return OPIPE_OK;
}

opipe_status opi_parcel_place(opi_request *request, opipe_error *err) {
  const opi_setup *s = request->setup;
  const opi_compiled *t = request->runs;
  const uint32_t process = s->env.process;
  if (!opi_inputs_come(s))
    return OPIPE_OK;
  if (request->ticket != NULL)
    request->ticket->judge.data = NULL;
  if (request->come == NULL)
    request->come = opi_alloc_zero(s->allocator, n_feeds(s), sizeof *request->come);
  if (request->come == NULL)
    return opi_fail_nomem(err, n_feeds(s) * sizeof *request->come, "inputs that travel");
  if (travels(request, s->n_inputs) && opi_parcel_reads(t, process, s->n_inputs)) {
    request->ticket->judge = request->feeds[s->shapes->labels_input];
    OPI_TRY(place(request, s->n_inputs, &request->ticket->judge, err));
  }
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    if (travels(request, i) && opi_parcel_reads(t, process, i))
      OPI_TRY(place(request, i, &request->feeds[i], err));
  }
  return OPIPE_OK;
}

opipe_status opi_parcel_check(const opi_request *request, opipe_error *err) {
  const opi_setup *s = request->setup;
  for (uint32_t i = 0; i < s->n_inputs && opi_inputs_go(s); ++i) {
    const opi_feed *feed = &request->feeds[i];
    if (!feed->on_device && feed->done.kind == OPIPE_FENCE_NONE)
      continue;
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "input '%s' %s: inputs that travel to other processes "
                    "(OPIPE_SESSION_INPUTS_OF_0) are in host memory until the request has ended",
                    s->inputs[i].name, feed->on_device ? "lies on a device" : "has a done fence");
  }
  for (uint32_t o = 0; o < s->n_outputs && s->outputs_travel; ++o) {
    const opi_result *result = &request->results[o];
    if (!result->on_device && result->ready.kind == OPIPE_FENCE_NONE &&
        result->done.kind == OPIPE_FENCE_NONE)
      continue;
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "output '%s' %s: outputs that travel to process 0 "
                    "(OPIPE_SESSION_OUTPUTS_TO_0) are in host memory and without fences",
                    s->output_names[o], result->on_device ? "lies on a device" : "has a fence");
  }
  return OPIPE_OK;
}

void opi_parcel_blank(const opi_request *request) {
  for (uint32_t f = 0; request->come != NULL && f < n_feeds(request->setup); ++f) {
    if (request->come[f].n_bytes != 0)
      memset(request->come[f].data, 0, (size_t)request->come[f].n_bytes);
  }
}

void opi_parcel_free(opi_request *request) {
  const opi_setup *s = request->setup;
  for (uint32_t f = 0; request->come != NULL && f < n_feeds(s); ++f)
    opi_free(s->allocator, request->come[f].data, (size_t)request->come[f].n_bytes);
  if (request->come != NULL)
    opi_free(s->allocator, request->come, n_feeds(s) * sizeof *request->come);
  request->come = NULL;
}
