/* SPDX-License-Identifier: Apache-2.0 */
/* Programs and copies on a rank's device: the scalars that programs read, how one is started, and
 * how it ended.
 */
#include <string.h>

#include "runtime/executor/ahead.h"
#include "runtime/executor/steps.h"

void opi_program_place(opi_rank *rank, const opi_step *step, uint64_t number) {
  const opi_compiled *t = opi_compiled_at(rank);
  int64_t *scalars = opi_cursor_of(rank)->scalars;
  const opi_piece *piece = opi_piece_at(t, step->stage, step->microbatch);
  scalars[OPI_SCALAR_STEP] = (int64_t)number;
  scalars[OPI_SCALAR_SAMPLE] = opi_piece_row(t, piece, step->microbatch);
  scalars[OPI_SCALAR_TOKEN] = opi_graphs_at(t, step->stage, step->microbatch)->first;
}

/* Overwrites what nobody needs any more, for tests (OPIPE_SESSION_POISON). */
static void poison_freed(const opi_compiled *t, const opi_step *step) {
  const uint32_t n_mb = t->pieces->n_microbatches;
  for (uint32_t c = 0; c < t->model->cuts[0]->n_cells; ++c) {
    for (uint32_t m = 0; m < n_mb; ++m) {
      if (t->lists->freed_after[(size_t)c * n_mb + m] != step->route)
        continue;
      char *host = opi_cell_host(t, c, m);
      if (host != NULL)
        memset(host, 0xff, (size_t)t->model->cuts[opi_class_at(t, m)]->cells[c].n_bytes);
    }
  }
}

static void name_failure(const opi_rank *rank, const opi_errand *run, opipe_error *io_err) {
  static const char *const names[] = {"forward", "backward", "input backward", "weight backward",
                                      "forward"};
  const opi_compiled *t = run->shape;
  const uint32_t stage = run->step->stage / t->model->n_pieces;
  const uint32_t m = t->parts[run->step->microbatch].in_request;
  const struct opi_ticket *ticket = run->request->ticket;
  if (ticket != NULL && ticket->kind == OPI_TICKET_TRAIN) { /* as its report counts it */
    (void)opi_error_prefix(io_err,
                           "rank %u, stage %u, %s, step %llu, micro-batch %u: ", rank->index, stage,
                           names[run->program], (unsigned long long)run->number + 1, m);
  } else {
    (void)opi_error_prefix(io_err, "rank %u, stage %u, request %llu, micro-batch %u: ", rank->index,
                           stage, (unsigned long long)run->request->number, m);
  }
}

/* OPIPE_E_INVALID is about a request's data (a NaN with the check on, an index out of range). It
 * fails the request or evaluation only. Any other error fails the rank, and with it the session; so
 * does every error of a training step, since gradients that lack a micro-batch are of no use. */
opipe_status opi_step_ran(opi_rank *rank, const opi_errand *run, const opi_span *at,
                          opipe_status status, opipe_error *local, opipe_error *err) {
  const opi_setup *s = rank->setup;
  const uint32_t stage = run->step->stage / run->shape->model->n_pieces;
  const struct opi_ticket *ticket = run->request->ticket;
  const bool trains = ticket != NULL && ticket->kind == OPI_TICKET_TRAIN;
  opi_span span = {run->since_ns, opi_clock_ns()};
  if (at != NULL)
    span = *at;
  else if (rank->worker->ahead != NULL && rank->worker->ahead->moved_ns > span.start_ns)
    span.start_ns = rank->worker->ahead->moved_ns; /* the device was at the entry before */
  atomic_store_explicit(&rank->worker->busy_ns,
                        atomic_load_explicit(&rank->worker->busy_ns, memory_order_relaxed) +
                            (span.end_ns - span.start_ns),
                        memory_order_relaxed);
  if (run->ran != NULL && run->later)
    span.start_ns = run->ran->span.start_ns;
  if (run->ran != NULL)
    *run->ran = (opi_ran){span, run->ran_number};
  if (status >= 0) {
    if ((s->flags & OPIPE_SESSION_POISON) != 0 && !run->more)
      poison_freed(run->shape, run->step);
    return OPIPE_OK;
  }
  name_failure(rank, run, local);
  local->status = status;
  if (run->request->stream_kept != NULL)
    opi_stream_look(run->request); /* an earlier request may have left bad data in the stream */
  if (status == OPIPE_E_INVALID && !trains) {
    (void)opi_request_fail_at(run->request, stage, local);
    return OPIPE_OK;
  }
  *err = *local;
  return status;
}

/* Places `from` to `to` of a program; to 0: all of it. On an asynchronous device it ends later, but
 * an error may come at once. */
static opipe_status run(opi_rank *rank, opi_errand *work, opipe_binding *binding,
                        uint32_t n_scalars, uint32_t from, uint32_t to, opipe_error *err) {
  const bool ahead = rank->worker->ahead != NULL;
  const int64_t *scalars = opi_cursor_of(rank)->scalars;
  opipe_error local = OPIPE_ERROR_INIT;
  work->since_ns = opi_clock_ns();
  opi_rank_note(rank, ahead ? OPI_DOING_STEP : OPI_DOING_PROGRAM, work->step,
                ahead ? 0 : work->since_ns);
  opipe_status status = opi_ahead_begin(rank, &local);
  if (status == OPIPE_OK) {
    status = to == 0 ? OPI_ASK_RANK(rank, run, &local, binding, rank->queue, scalars, n_scalars)
                     : OPI_ASK_RANK(rank, run_part, &local, binding, rank->queue, scalars,
                                    n_scalars, from, to);
  }
  if (!ahead)
    opi_rank_note(rank, OPI_DOING_STEP, work->step, 0);
  if (!ahead || status < 0)
    return opi_step_ran(rank, work, NULL, status, &local, err);
  const opi_ahead_entry e = {.kind = OPI_AHEAD_RUN, .work = *work};
  status = opi_ahead_push(rank, &e, err);
  return status < 0 || (rank->setup->flags & OPIPE_SESSION_POISON) == 0
             ? status
             : opi_ahead_drain(rank, err);
}

opipe_status opi_program_run(opi_rank *rank, opi_errand *work, opipe_binding *binding,
                             uint32_t n_scalars, opipe_error *err) {
  return run(rank, work, binding, n_scalars, 0, 0, err);
}

opipe_status opi_program_run_parts(opi_rank *rank, opi_errand *work, opipe_binding *binding,
                                   uint32_t n_scalars, opipe_error *err) {
  const opi_compiled *t = work->shape;
  const uint32_t index = (uint32_t)(work->step - t->lists->steps);
  const uint32_t last = t->passed.first[index + 1] - 1, end = t->passed.list[last].place;
  uint32_t from = 0;
  for (uint32_t i = t->passed.first[index]; i <= last; ++i) {
    const opi_sum_point *part = &t->passed.list[i];
    if (part->place > from) {
      const bool whole = from == 0 && part->place == end;
      work->more = part->place < end;
      OPI_TRY(run(rank, work, binding, n_scalars, from, whole ? 0 : part->place, err));
      work->later = true;
      from = part->place;
    }
    if (part->n == 0) /* the program's end */
      continue;
    opi_cursor_of(rank)->passing = true;
    OPI_TRY(opi_weights_pass(opi_weights_of(rank), part->instance, part->n, err));
  }
  return OPIPE_OK;
}

/* Copies rows that a backward cannot read where they lie. */
opipe_status opi_step_copy(opi_rank *rank, const opi_step *step, opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  const opi_ahead_entry e = {.kind = OPI_AHEAD_DATA};
  opipe_region src, dst;
  opi_route_regions(t, step->route, step->microbatch, &src, &dst);
  if (src.n_bytes == 0)
    return OPIPE_OK;
  if (!opi_ahead_has_room(rank))
    return OPIPE_PENDING;
  OPI_TRY(OPI_ASK_RANK(rank, copy, err, rank->queue, &dst, &src));
  return rank->worker->ahead == NULL ? OPIPE_OK : opi_ahead_push(rank, &e, err);
}
