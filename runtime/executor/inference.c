/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of inference: a rank's part of one is a stretch of its shape's body. */
#include <string.h>

#include "runtime/executor/ahead.h"
#include "runtime/executor/steps.h"

static opipe_status compute(opi_rank *rank, const opi_step *step, uint32_t index,
                            opipe_error *err) {
  static const double one = 1;
  opi_compiled *t = opi_compiled_at(rank);
  opi_request *request = rank->worker->request;
  opi_errand work = {.step = step,
                     .request = request,
                     .shape = t,
                     .ran = opi_ran_at(t, rank->index, index),
                     .ran_number = request->order + 1,
                     .program = OPI_PROGRAM_F};
  if (request->deadline_ns != 0)
    opi_request_check_deadline(request, rank, step->stage / t->model->n_pieces);
  if (opi_request_failed(request)) /* its stream may be closed, with its bindings freed */
    return OPIPE_OK;
  opipe_binding *bound = t->bound[index];
  if (request->bound != NULL && request->bound[index] != NULL)
    bound = request->bound[index]; /* with its stream's or host's memory */
  if (bound == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_lent_begin(rank, request, err));
  if (!t->draws)
    return opi_program_run(rank, &work, bound, 0, err);
  /* The seed stays 0; the count, which a loss would be divided by, is 1. */
  memcpy(&opi_cursor_of(rank)->scalars[OPI_SCALAR_COUNT], &one, sizeof one);
  opi_program_place(rank, step, request->number);
  return opi_program_run(rank, &work, bound, OPI_SCALAR_SUM, err);
}

/* A shape's first request is preceded by the receives of the first body. */
static void begin(opi_rank *rank) {
  opi_cursor *cursor = opi_cursor_of(rank);
  const opi_request *request = rank->worker->request;
  opi_compiled *t = request->runs;
  const opi_lists *lists = t->lists;
  const uint32_t p = rank->index * lists->n_positions + request->position;
  if (!cursor->begun) {
    cursor->item = (opi_item){.current = rank->worker->request,
                              .next = rank->worker->request,
                              .shape = t,
                              .body = request->body,
                              .kind = OPI_ITEM_REQUEST};
    cursor->begun = true;
    cursor->posting = request->body == 0 && request->position == 0;
  } else {
    cursor->posting = false;
  }
  rank->worker->step = cursor->posting ? lists->rank_first[rank->index] : lists->request_first[p];
  cursor->end = cursor->posting ? lists->rank_first[rank->index + 1] : lists->request_first[p + 1];
}

static opipe_status run(opi_rank *rank, opipe_error *err) {
  if (!opi_cursor_of(rank)->begun)
    begin(rank);
  OPI_TRY(opi_messages_flush(rank, err));
  /* The receives of a shape's first body, then the request itself. */
  opipe_status status = opi_list_walk(rank, err);
  if (status == OPIPE_OK && opi_cursor_of(rank)->posting) {
    begin(rank);
    status = opi_list_walk(rank, err);
  }
  if (status == OPIPE_OK && rank == opi_session_first(rank->setup))
    status = opi_store_plain(rank, rank->worker->request, err);
  if (status == OPIPE_PENDING && rank->worker->at_fence)
    opi_count_on(&rank->worker->n_looks);
  if (status == OPIPE_OK)
    opi_cursor_of(rank)->begun = false;
  return status;
}

const opi_runner opi_request_runner = {.n_items = 1,
                                       .run = run,
                                       .compute = compute,
                                       .store = opi_store_results,
                                       .reference = opi_reference_request};
