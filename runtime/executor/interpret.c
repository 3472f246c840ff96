/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's interpreter: request after request in the order of submission, step after step in the
 * list of its shape. Its place is a few numbers, so that it can stop at any step and go on later,
 * on any thread.
 */
#include <string.h>

#include "runtime/executor/ahead.h"
#include "runtime/executor/steps.h"

/* Has the rank steps of the request? Copies of the pipeline that take requests in turn do not share
 * any. */
static bool has_steps(const opi_rank *rank, const opi_request *request) {
  const opi_lists *lists = request->runs->lists;
  const uint32_t p = rank->index * lists->n_positions + request->position;
  return lists->request_first[p] != lists->request_first[p + 1];
}

/* Without steps, rank 0 still stores outputs that are passed through from inputs. */
static bool has_part(const opi_rank *rank, const opi_request *request) {
  return request->ticket != NULL || request->runs->lists->n_taking == NULL ||
         has_steps(rank, request) || (rank == opi_session_first(rank->setup) && request->has_plain);
}

uint32_t opi_request_n_taking(const opi_request *request) {
  const opi_setup *s = request->setup;
  if (request->ticket != NULL || request->runs->lists->n_taking == NULL)
    return s->n_here;
  return request->runs->lists->n_taking[request->position] +
         (request->has_plain && !has_steps(opi_session_first(s), request));
}

/* The last of those that have a part ends it for the caller, the last of all lets it go; where
 * other sessions share it, their verdict has come before. */
void opi_request_leave(const opi_rank *rank, opi_request *request) {
  const opi_setup *s = rank->setup;
  const opi_engine *engine = s->engine;
  if (request->ticket == NULL && request->runs->lists->n_taking != NULL &&
      engine->elsewhere == NULL && has_part(rank, request) &&
      atomic_fetch_sub(&request->n_taking_left, 1) == 1)
    engine->above.finish(request);
  const uint32_t left = atomic_fetch_sub(&request->n_ranks_left, 1);
  if (left == 1)
    engine->above.passed(request);
  else if (left == 2 && engine->elsewhere != NULL)
    s->transport->ring(opi_session_first(s)->endpoint); /* it may have waited for the others */
}

/* Leaves the request, or waits for its verdict where other sessions share it. Reports go to rank 0,
 * so the other ranks of its session have nobody to tell. */
void opi_rank_leave(opi_rank *rank, opi_request *request) {
  const opi_elsewhere *there = opi_engine_of(rank)->elsewhere;
  if (request->stream_kept != NULL)
    opi_stream_look(request); /* queued ahead: earlier failures are known only now */
  if (there == NULL || (opi_rank_is_here(rank->setup, 0) && rank->index != 0))
    opi_request_leave(rank, request);
  else
    there->await(there->ctx, rank, request);
}

/* Leaves the request once nothing of it is left on the device. There is always room for the entry.
 */
static opipe_status leave_request(opi_rank *rank, opi_request *request, opipe_error *err) {
  const opi_ahead_entry e = {.kind = OPI_AHEAD_LEAVE, .work.request = request};
  OPI_TRY(opi_lent_end(rank, request, err));
  if (opi_lent_queued(request))
    opi_engine_of(rank)->above.queued(opi_engine_of(rank)->above.ctx);
  if (!opi_ahead_is_empty(rank))
    return opi_ahead_push(rank, &e, err);
  opi_rank_leave(rank, request);
  return OPIPE_OK;
}

/* Numbers the step. Whether it is left out is decided by now, so all ranks count alike. */
static void count_step(const opi_rank *rank) {
  opi_cursor *cursor = rank->worker->cursor;
  const opi_request *request = rank->worker->request;
  cursor->number = cursor->n_steps;
  cursor->n_steps += request->ticket != NULL && request->ticket->kind == OPI_TICKET_TRAIN &&
                     !opi_request_withdrawn(request);
}

static bool take_request(opi_rank *rank) {
  const opi_setup *s = rank->setup;
  const opi_elsewhere *there = s->engine->elsewhere;
  const uint64_t n = atomic_load_explicit(&rank->worker->n_taken, memory_order_relaxed);
  uint32_t no = OPI_BEGUN_NO;
  /* Get the next request of the ring, if there is one and the other sessions begin it, too. */
  if (n >= atomic_load_explicit(&s->engine->n_submitted, memory_order_acquire) ||
      (there != NULL && !there->let_begin(there->ctx, rank, n)))
    return false;
  opi_request *request = s->engine->ring[n % s->engine->ring_room];
  rank->worker->request = request;
  /* Fail it where its stream is broken or a step is late; a failed step is left out. */
  if (request->stream_kept != NULL)
    opi_stream_look(request);
  if (request->ticket != NULL && request->deadline_ns != 0)
    opi_request_check_deadline(request, rank, OPIPE_NONE);
  if (request->ticket != NULL && opi_request_failed(request))
    (void)opi_request_withdraw(request);
  /* Begin it: from here on it cannot be withdrawn. */
  if (atomic_load_explicit(&request->begun, memory_order_acquire) == OPI_BEGUN_NO &&
      has_part(rank, request))
    (void)atomic_compare_exchange_strong(&request->begun, &no, OPI_BEGUN_YES);
  count_step(rank);
  opi_count_on(&rank->worker->n_taken);
  return true;
}

/* Notes since when the step has been blocked. */
void opi_rank_blocked(opi_rank *rank, const opi_step *step) {
  if (!opi_ahead_is_empty(rank)) { /* the device is at work */
    rank->worker->blocked_since_ns = 0;
    opi_ahead_note(rank);
  }
  if (rank->worker->at_fence)
    opi_count_on(&rank->worker->n_looks);
  if (rank->worker->at_fence && rank->worker->fence_ns == 0)
    rank->worker->fence_ns = opi_clock_ns();
  if (rank->worker->at_fence && opi_ahead_is_empty(rank)) {
    opi_rank_unblocked(rank, step);
    return;
  }
  if (rank->worker->blocked_since_ns != 0 || !opi_ahead_is_empty(rank))
    return;
  rank->worker->blocked_since_ns = opi_clock_ns();
  opi_rank_note(rank, OPI_DOING_STEP, step, rank->worker->blocked_since_ns);
}

void opi_rank_unblocked(opi_rank *rank, const opi_step *step) {
  rank->worker->blocked_since_ns = 0;
  opi_rank_note(rank, OPI_DOING_STEP, step, 0);
}

static opipe_status why_failed(opi_setup *s, opipe_error *err) {
  return opi_fail(err, s->ending.why.status, "%s", s->ending.why.message);
}

/* The first to fail the session may still be writing the reason: the rank then returns its own. */
static opipe_status fail_session(opi_rank *rank, const opipe_error *own, opipe_error *err) {
  opi_setup *s = rank->setup;
  opi_session_fail(s, rank->index, rank->worker->request, own);
  return opi_session_failed(s) ? why_failed(s, err)
                               : opi_fail(err, own->status, "%s", own->message);
}

opipe_status opi_rank_settle(opi_rank *rank, opipe_error *err) {
  opi_weights *weights = rank->setup->shapes->weights;
  opi_cursor *cursor = rank->worker->cursor;
  const opipe_status status =
      weights == NULL ? OPIPE_OK : opi_weights_settle(weights, rank->index, err);
  opi_request *owed = cursor->owed;
  if (status == OPIPE_PENDING && rank->worker->ahead != NULL)
    rank->worker->polls = true; /* an asynchronous device has no doorbell */
  if (status == OPIPE_OK && owed != NULL) {
    cursor->owed = NULL;
    if (rank->index == opi_weights_reporter(weights))
      opi_weights_report(weights, rank->index, &owed->ticket->report);
    opi_count_on(&rank->worker->n_moves);
    OPI_TRY(leave_request(rank, owed, err));
  }
  if (status < 0)
    return status;
  OPI_TRY(opi_peers_move(rank, err));
  return status;
}

/* The rank is done with its list of a request. It leaves a step once its norms are settled. */
static opipe_status end_request(opi_rank *rank, opi_request *request, opipe_error *err) {
  if (request->ticket != NULL && request->ticket->kind == OPI_TICKET_TRAIN &&
      opi_weights_lags(rank->setup->shapes->weights, rank->index))
    rank->worker->cursor->owed = request;
  else
    return leave_request(rank, request, err);
  return OPIPE_OK;
}

/* Nothing is submitted: makes progress with norms, sends and the device. */
static opipe_status idle(opi_rank *rank, opipe_error *err) {
  if (opi_ahead_is_empty(rank))
    opi_rank_note(rank, OPI_DOING_NOTHING, NULL, 0);
  else
    opi_ahead_note(rank);
  const opipe_status lags = opi_rank_settle(rank, err);
  const opipe_status sends = lags < 0 ? lags : opi_list_idle(rank, err);
  if (sends != OPIPE_OK || lags != OPIPE_OK)
    return sends != OPIPE_OK ? sends : lags;
  const opi_elsewhere *there = opi_engine_of(rank)->elsewhere;
  const bool awaits = there != NULL && there->awaits(there->ctx, rank);
  return awaits || !opi_ahead_is_empty(rank) ? OPIPE_PENDING : OPIPE_OK;
}

/* Have all ranks done the training steps before the one that this rank is at? */
static bool are_even(const opi_rank *rank) {
  const opi_setup *s = rank->setup;
  for (uint32_t i = 0; i < s->n_here; ++i) {
    if (atomic_load(&s->engine->cursors[s->here[i]].n_done) + 1 < rank->worker->cursor->n_steps)
      return false;
  }
  return true;
}

/* A training step with bad data ends the session. Parameters must still be readable as the previous
 * step left them, so the session fails only once all ranks have done that step. In inference no
 * steps are counted, and ranks are always even. */
static opipe_status fail_evenly(opi_rank *rank, const opipe_error *own, opipe_error *err) {
  opi_setup *s = rank->setup;
  opi_cursor *cursor = rank->worker->cursor;
  const bool waits = own->status == OPIPE_E_INVALID && !s->shapes->periodic &&
                     s->engine->elsewhere == NULL && !opi_session_failed(s) && !are_even(rank);
  if (!waits)
    return fail_session(rank, own, err);
  if (own != &cursor->bad)
    cursor->bad = *own;
  (void)idle(rank, NULL); /* others may need this rank's norms and sends */
  rank->worker->polls = true;
  return OPIPE_PENDING;
}

opipe_status opi_rank_advance(opi_rank *rank, opipe_error *err) {
  opi_setup *s = rank->setup;
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  rank->worker->polls = rank->worker->at_fence = false;
  if (rank->worker->cursor->bad.status < 0)
    return fail_evenly(rank, &rank->worker->cursor->bad, err);
  while (status == OPIPE_OK) {
    if (opi_session_failed(s))
      return why_failed(s, err);
    /* Carry out the entries that the device has got to, and hear the other sessions' letters. */
    status = opi_ahead_move(rank, &local);
    if (status == OPIPE_OK)
      status = opi_peers_move(rank, &local);
    /* Take the next request. Without one, make progress with older work and return. */
    if (status == OPIPE_OK && rank->worker->request == NULL &&
        (!opi_ahead_has_room(rank) || !take_request(rank))) {
      status = idle(rank, &local);
      if (status >= 0)
        return status;
    } else if (status == OPIPE_OK) {
      status = opi_peers_move(rank, &local); /* tells the others that it is taken */
    }
    /* Run its list as far as it goes. */
    if (status == OPIPE_OK)
      status = opi_list_run(rank, &local);
    if (status != OPIPE_OK)
      break;
    /* Leave it: the last rank ends it. */
    opi_request *done = rank->worker->request;
    rank->worker->request = NULL;
    opi_count_on(&rank->worker->n_moves);
    if (done != NULL)
      status = end_request(rank, done, &local);
  }
  if (status == OPIPE_PENDING)
    return opi_session_failed(s) ? why_failed(s, err) : OPIPE_PENDING;
  /* Fail the session with the first error: a late error of the device may come before this one. */
  opipe_error before = OPIPE_ERROR_INIT;
  if (opi_ahead_move(rank, &before) < 0)
    local = before;
  if (strncmp(local.message, "rank ", 5) != 0) /* it may name its rank already */
    (void)opi_error_prefix(&local, "rank %u: ", rank->index);
  return fail_evenly(rank, &local, err);
}
