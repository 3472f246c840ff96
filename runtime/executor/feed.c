/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between a request's memory and the stages: inputs and labels in, results and losses out.
 * Labels of causal models are shifted here, as whole rows, before anything is split.
 */
#include <math.h>
#include <string.h>

#include "runtime/executor/ahead.h"
#include "runtime/executor/steps.h"

/* ---- in ---- */

static opipe_status load_cell(opi_rank *rank, const opi_request *request, uint32_t cell,
                              uint32_t microbatch, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  const opi_cell *c = &t->model->cuts[opi_class_at(t, microbatch)]->cells[cell];
  int64_t shape[OPIPE_MAX_RANK];
  opipe_region region = opi_cell_region(t, cell, microbatch);
  char *host = opi_cell_host(t, cell, microbatch);
  const uint32_t input = opi_ports_at(t, opi_piece_at(t, c->stage, microbatch))->input[c->port];
  if (!opi_stream_load(request, input, opi_member_of(t, c->stage), &region, &host))
    return OPIPE_OK;
  const opi_view view = opi_step_part(t, request, c->stage, c->port, microbatch, shape);
  if (request->feeds[input].on_device) {
    return region.n_bytes == 0 || opi_lent_in_place(request, cell, microbatch)
               ? OPIPE_OK
               : opi_lent_load(rank, request, input, &view, &region, err);
  }
  if (rank->worker->ahead == NULL || region.n_bytes == 0)
    return opi_rank_write(rank, &view, &region, host, err);
  char *staged = opi_ahead_stage(rank, region.n_bytes);
  if (staged == NULL)
    return OPIPE_PENDING;
  opi_view_gather(&view, staged);
  return OPI_ASK_RANK(rank, write, err, rank->queue, &region, staged);
}

/* Loads the step's inputs. cursor->part counts the cells that are done, for the next try. */
static opipe_status load_cells(opi_rank *rank, const opi_request *request, const opi_step *step,
                               opipe_error *err) {
  const opi_cut *cut = opi_compiled_at(rank)->model->cuts[0];
  const opi_ahead_entry e = {.kind = OPI_AHEAD_DATA};
  const uint32_t first = cut->cell_first[step->stage], end = cut->cell_first[step->stage + 1];
  uint32_t *part = &opi_cursor_of(rank)->part;
  opipe_status status = OPIPE_OK;
  const uint32_t before = *part;
  while (status == OPIPE_OK && first + *part < end) {
    if (cut->cells[first + *part].source == OPI_CELL_REQUEST && !cut->cells[first + *part].held)
      status = load_cell(rank, request, first + *part, step->microbatch, err);
    *part += status == OPIPE_OK;
  }
  if (status >= 0 && rank->worker->ahead != NULL && *part != before)
    OPI_TRY(opi_ahead_push(rank, &e, err));
  return status;
}

/* Are the inputs that the step reads ready? The host's flags are touched like its inputs. */
static bool feeds_ready(const opi_compiled *t, const opi_request *request, const opi_step *step) {
  const opi_cut *cut = t->model->cuts[0];
  const opi_ports *ports = opi_ports_at(t, opi_piece_at(t, step->stage, step->microbatch));
  const uint32_t first = cut->cell_first[step->stage], end = cut->cell_first[step->stage + 1];
  bool ready = true;
  for (uint32_t c = first; c < end && ready; ++c) {
    ready = cut->cells[c].source != OPI_CELL_REQUEST || cut->cells[c].held ||
            opi_feed_ready(request, ports->input[cut->cells[c].port]);
  }
  return ready;
}

opipe_status opi_step_load(opi_rank *rank, const opi_step *step, opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  opi_request *request = opi_step_request(rank, step);
  if (request->ticket == NULL && opi_request_failed(request))
    return OPIPE_OK;
  if (!opi_ahead_has_room(rank))
    return OPIPE_PENDING;
  /* Look at the host's fences of the inputs that the step reads. */
  if (!opi_rank_touch(rank))
    return OPIPE_OK;
  const bool ready = feeds_ready(t, request, step);
  opi_rank_let_go(rank);
  if (!ready)
    return opi_rank_at_fence(rank);
  /* Copy the inputs. */
  OPI_TRY(opi_lent_begin(rank, request, err));
  if (!opi_rank_touch(rank))
    return OPIPE_OK;
  const opipe_status status = load_cells(rank, request, step, err);
  opi_rank_let_go(rank);
  return status;
}

/* ---- out ---- */

static const opi_value *value_of(const opi_compiled *t, const opi_cell *cell, uint32_t microbatch) {
  return &opi_graphs_at(t, cell->stage, microbatch)->graph->values[cell->value];
}

/* Copies a STORE's `data` to the request's result, or a loss to its ticket. */
void opi_step_stored(opi_rank *rank, const opi_ahead_entry *e) {
  const opi_compiled *t = e->work.shape;
  const opi_request *request = e->work.request;
  const opi_cell *cell = &t->model->cuts[opi_class_at(t, e->work.step->microbatch)]->cells[e->cell];
  const opi_result *result = &request->results[e->output];
  const uint32_t n_pieces = t->model->n_pieces;
  opi_result_place place;
  if (request->ticket != NULL && e->output == 0) {
    float loss = 0;
    memcpy(&loss, e->data, sizeof loss);
    request->ticket->losses[e->work.step->microbatch * n_pieces + e->work.step->stage % n_pieces] =
        (double)loss;
    return;
  }
  if ((request->ticket == NULL && opi_request_failed(request)) || !opi_rank_touch(rank))
    return;
  if (result->data != NULL && cell->n_bytes != 0) {
    opi_step_place(t, request, e->work.step->stage, e->work.step->microbatch,
                   request->ticket == NULL ? e->output : 0, &t->output_carry[e->output], &place);
    opi_result_put(result, value_of(t, cell, e->work.step->microbatch), &place, e->data);
  }
  opi_rank_let_go(rank);
}

/* Copies a cell to the host's tensor on the device, unless it was made there. `own`: the cell is in
 * the rank's memory. */
static opipe_status store_on_device(opi_rank *rank, opi_ahead_entry *e, const opipe_region *region,
                                    bool own, opipe_error *err) {
  const opi_compiled *t = e->work.shape;
  const uint32_t m = e->work.step->microbatch;
  const opi_cell *cell = &t->model->cuts[opi_class_at(t, m)]->cells[e->cell];
  opi_result_place place;
  const opi_lent_part part = {e->output, value_of(t, cell, m), &place, e->data};
  if (cell->n_bytes == 0 || opi_lent_in_place(e->work.request, e->cell, m))
    return OPIPE_OK;
  if (!opi_ahead_has_room(rank))
    return OPIPE_PENDING;
  opi_step_place(t, e->work.request, e->work.step->stage, m, e->output, &t->output_carry[e->output],
                 &place);
  OPI_TRY(opi_lent_store(rank, e->work.request, &part, own ? region : NULL, err));
  const opi_ahead_entry data = {.kind = OPI_AHEAD_DATA};
  OPI_TRY(rank->worker->ahead == NULL ? OPIPE_OK : opi_ahead_push(rank, &data, err));
  return own ? OPIPE_OK : opi_rank_sync(rank, err); /* its source may be reused */
}

/* Copies a cell to the host, then to its place. A cell made in place may be in another rank's
 * memory, which then is host memory. */
static opipe_status store(opi_rank *rank, opi_ahead_entry *e, opipe_error *err) {
  const opi_compiled *t = e->work.shape;
  const uint32_t m = e->work.step->microbatch;
  const size_t occurrence = (size_t)e->cell * t->pieces->n_microbatches + m;
  const opipe_region region = opi_cell_region(t, e->cell, m);
  const bool own = t->lists->lies_on[occurrence] == rank->index && region.n_bytes != 0;
  e->kind = OPI_AHEAD_STORE;
  e->data = opi_cell_host(t, e->cell, m);
  if (!own && !opi_ahead_is_empty(rank))
    return OPIPE_PENDING;
  if (e->work.request->results[e->output].on_device)
    return store_on_device(rank, e, &region, own, err);
  if (own && rank->worker->ahead != NULL) {
    char *staged = opi_ahead_has_room(rank) ? opi_ahead_stage(rank, region.n_bytes) : NULL;
    if (staged == NULL)
      return OPIPE_PENDING;
    e->data = staged;
    OPI_TRY(OPI_ASK_RANK(rank, read, err, rank->queue, staged, &region));
    return opi_ahead_push(rank, e, err);
  }
  if (own)
    OPI_TRY(opi_rank_read(rank, &region, opi_cell_host(t, e->cell, m), &e->data, err));
  opi_step_stored(rank, e);
  return OPIPE_OK;
}

/* Stores an output that its stream keeps. It was made in its place, unless other stages read it
 * too: then it was made in its cell, and is copied once. */
static opipe_status store_kept(opi_rank *rank, uint32_t output, uint32_t cell, uint32_t microbatch,
                               opipe_error *err) {
  static const int64_t one = 1;
  const opi_ahead_entry e = {.kind = OPI_AHEAD_DATA};
  const opi_compiled *t = opi_compiled_at(rank);
  const size_t occurrence = (size_t)cell * t->pieces->n_microbatches + microbatch;
  const opipe_region src = opi_cell_region(t, cell, microbatch);
  const int64_t n_bytes = (int64_t)src.n_bytes;
  opipe_region dst;
  char *kept = NULL;
  if (t->model->cuts[0]->cells[cell].first_out == OPIPE_NONE || n_bytes == 0)
    return OPIPE_OK;
  const uint32_t member = opi_member_of(t, t->model->cuts[0]->cells[cell].stage);
  opi_stream_place(rank->worker->request, output, member, src.n_bytes, &dst, &kept);
  const char *host = opi_cell_host(t, cell, microbatch);
  const bool own = t->lists->lies_on[occurrence] == rank->index;
  if (own ? !opi_ahead_has_room(rank) : !opi_ahead_is_empty(rank))
    return OPIPE_PENDING;
  if (own && (host == NULL || rank->worker->ahead != NULL)) {
    OPI_TRY(OPI_ASK_RANK(rank, copy, err, rank->queue, &dst, &src));
    return rank->worker->ahead == NULL ? opi_rank_sync(rank, err) : opi_ahead_push(rank, &e, err);
  }
  const opi_view view = {
      .data = host, .shape = &n_bytes, .strides = &one, .rank = 1, .elem_bytes = 1};
  return opi_rank_write(rank, &view, &dst, kept, err);
}

/* Stores the step's part of a result. */
static opipe_status store_result(opi_rank *rank, const opi_step *step, uint32_t output,
                                 opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  const opi_cut *cut = t->model->cuts[opi_class_at(t, step->microbatch)];
  opi_ahead_entry e = {.work = {.step = step, .request = rank->worker->request, .shape = t},
                       .cell = opi_output_cell_at(cut, output, step->stage),
                       .output = output};
  if (opi_stream_keeps(rank->worker->request, output))
    return store_kept(rank, output, e.cell, step->microbatch, err);
  return opi_result_takes(t, step->stage, step->microbatch, output) ? store(rank, &e, err)
                                                                    : OPIPE_OK;
}

static bool makes_result(const opi_compiled *t, uint32_t stage, uint32_t output) {
  return opi_output_cell_at(t->model->cuts[0], output, stage) != OPIPE_NONE;
}

opipe_status opi_store_results(opi_rank *rank, const opi_step *step, opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  const uint32_t n = rank->setup->n_outputs;
  opipe_status status = OPIPE_OK;
  bool ready = true;
  /* Look at the host's fences of the outputs that the step makes. */
  if (opi_request_failed(rank->worker->request) || !opi_rank_touch(rank))
    return OPIPE_OK;
  for (uint32_t o = 0; o < n && ready; ++o)
    ready = !makes_result(t, step->stage, o) || opi_result_ready(rank->worker->request, o);
  opi_rank_let_go(rank);
  if (!ready) {
    opi_request_check_deadline(rank->worker->request, rank, step->stage / t->model->n_pieces);
    return opi_request_failed(rank->worker->request) ? OPIPE_OK : opi_rank_at_fence(rank);
  }
  /* Store them, one after the other; those that are done are not stored again. */
  OPI_TRY(opi_lent_begin(rank, rank->worker->request, err));
  uint32_t *part = &opi_cursor_of(rank)->part;
  while (status == OPIPE_OK && *part < n) {
    if (makes_result(t, step->stage, *part))
      status = store_result(rank, step, *part, err);
    *part += status == OPIPE_OK;
  }
  return status;
}

opipe_status opi_store_losses(opi_rank *rank, const opi_step *step, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  const opi_cut *cut = t->model->cuts[opi_class_at(t, step->microbatch)];
  opi_request *request = opi_step_request(rank, step);
  const uint32_t first = cut->cell_first[step->stage], end = cut->cell_first[step->stage + 1];
  uint32_t *part = &opi_cursor_of(rank)->part;
  opipe_status status = OPIPE_OK;
  while (status == OPIPE_OK && first + *part < end) {
    const opi_cell *cell = &cut->cells[first + *part];
    opi_ahead_entry e = {.work = {.step = step, .request = request, .shape = t},
                         .cell = first + *part,
                         .output = cell->output};
    if (cell->output == 0 ||
        (cell->output != OPIPE_NONE && request->ticket->kind != OPI_TICKET_TRAIN))
      status = store(rank, &e, err);
    *part += status == OPIPE_OK;
  }
  return status;
}

bool opi_train_is_finite(const opi_compiled *t, const opi_request *request, uint32_t rank) {
  const uint32_t n_pieces = t->model->n_pieces;
  for (uint32_t m = 0; m < t->pieces->n_microbatches; ++m) {
    for (uint32_t v = 0; v < n_pieces; ++v) {
      const uint32_t instance = opi_instance_at(t, t->model->loss_stage * n_pieces + v, m);
      if (t->pieces->instance_rank[instance] == rank &&
          !isfinite(request->ticket->losses[m * n_pieces + v]))
        return false;
    }
  }
  return true;
}

/* ---- labels ---- */

/* Row t is compared with label t + 1, the last row with none. */
opipe_status opi_train_shift(opi_setup *s, opi_request *request, opipe_error *err) {
  const opi_loss *loss = &s->plan->decided.train->loss;
  struct opi_ticket *ticket = request->ticket;
  ticket->judge.data = NULL;
  if (!opi_labels_are_shifted(s))
    return OPIPE_OK;
  const opi_feed *feed = &request->feeds[s->shapes->labels_input];
  const uint32_t rank = (uint32_t)s->inputs[s->shapes->labels_input].value->rank;
  uint64_t n_bytes = 0;
  if (rank == 0 || s->inputs[s->shapes->labels_input].value->dtype != OPIPE_INT64 ||
      !opi_tensor_bytes(OPIPE_INT64, feed->shape, rank, &n_bytes)) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "labels '%s' cannot be shifted: int64 with a token axis is needed",
                    s->inputs[s->shapes->labels_input].name);
  }
  if (feed->on_device) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "labels '%s' lie on device %d:%d: they are shifted by the host, in host memory",
                    s->inputs[s->shapes->labels_input].name, feed->device_type, feed->device_id);
  }
  if (!opi_feed_ready(request, s->shapes->labels_input))
    return OPIPE_PENDING;
  /* Copy the labels densely, into memory that the ticket keeps. */
  if (ticket->labels_bytes < n_bytes) {
    opi_free(s->allocator, ticket->labels, (size_t)ticket->labels_bytes);
    ticket->labels_bytes = 0;
    ticket->labels = opi_alloc(s->allocator, (size_t)n_bytes);
    if (ticket->labels == NULL)
      return opi_fail_nomem(err, n_bytes, "labels");
    ticket->labels_bytes = n_bytes;
  }
  const opi_view view = {.data = feed->data,
                         .shape = feed->shape,
                         .strides = feed->strides,
                         .rank = rank,
                         .elem_bytes = sizeof(int64_t)};
  opi_view_gather(&view, (char *)ticket->labels);
  const uint64_t n_tokens = (uint64_t)feed->shape[rank - 1];
  const uint64_t n_rows = n_tokens == 0 ? 0 : n_bytes / sizeof(int64_t) / n_tokens;
  int64_t dense = 1;
  /* Shift each row by one token. */
  for (uint64_t r = 0; r < n_rows; ++r) {
    int64_t *row = ticket->labels + r * n_tokens;
    memmove(row, row + 1, (size_t)(n_tokens - 1) * sizeof *row);
    row[n_tokens - 1] = loss->ignore;
  }
  /* The labels' port reads the copy from now on. */
  ticket->judge = *feed;
  ticket->judge.data = (const char *)ticket->labels;
  for (uint32_t d = rank; d > 0; --d) {
    ticket->judge.strides[d - 1] = dense;
    dense *= feed->shape[d - 1];
  }
  return OPIPE_OK;
}
