/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's interpreter: request after request in the order of submission, action after action in
 * the plan's order, step after step in the list of the micro-batch's shape. Its place is a few
 * numbers, so that it can stop at any step and go on later, on any thread.
 */
#include "runtime/train/state.h"

/* Shapes that were compiled since the last look get their first receives. */
static opipe_status look_for_shapes(opi_rank *rank, opipe_error *err) {
  opi_session *s = rank->session;
  const uint32_t version = atomic_load_explicit(&s->shapes_version, memory_order_acquire);
  opipe_status status = OPIPE_OK;
  if (version == rank->seen_shapes || s->train != NULL)
    return OPIPE_OK;
  if (rank->credit_dst != NULL)
    OPI_TRY(opi_post_credits(rank, err));
  opi_lock_take(&s->shapes_lock);
  for (uint32_t i = 0; i < s->n_places && status == OPIPE_OK; ++i) {
    opi_shape *shape = s->shapes[i];
    if (shape == NULL || shape->started[rank->index])
      continue;
    for (uint32_t r = 0; r < shape->cut->n_routes && status == OPIPE_OK; ++r) {
      opi_route_run *route = &shape->routes[r];
      if (route->dst == NULL || route->dst_rank != rank->index)
        continue;
      status = opi_post_receives(rank, shape, route, shape->cut->routes[r].n_bytes, err);
    }
    shape->started[rank->index] = true;
  }
  opi_lock_give(&s->shapes_lock);
  rank->seen_shapes = version;
  return status;
}

static bool take_request(opi_rank *rank) {
  opi_session *s = rank->session;
  const uint64_t n = atomic_load_explicit(&rank->n_taken, memory_order_relaxed);
  if (n >= atomic_load_explicit(&s->n_submitted, memory_order_acquire))
    return false;
  rank->request = s->ring[n % s->ring_room];
  rank->action = s->plan->rank_first[rank->index];
  rank->step = OPIPE_NONE;
  uint32_t no = OPI_BEGUN_NO;
  if (s->train != NULL && rank->request->deadline_ns != 0)
    opi_request_check_deadline(rank->request, rank, OPIPE_NONE);
  if (s->train != NULL && opi_request_failed(rank->request))
    (void)opi_request_withdraw(rank->request);
  if (atomic_load_explicit(&rank->request->begun, memory_order_acquire) == OPI_BEGUN_NO)
    (void)atomic_compare_exchange_strong(&rank->request->begun, &no, OPI_BEGUN_YES);
  opi_count_on(&rank->n_taken);
  return true;
}

/* Remembers since when the step has been blocked, or that it moves again. */
void opi_rank_blocked(opi_rank *rank, const opi_step *step) {
  if (rank->blocked_since_ns != 0)
    return;
  rank->blocked_since_ns = opi_clock_ns();
  opi_rank_note(rank, OPI_DOING_STEP, step, rank->blocked_since_ns);
}

void opi_rank_moves(opi_rank *rank, const opi_step *step) {
  opi_count_on(&rank->n_moves);
  if (rank->blocked_since_ns == 0)
    return;
  rank->blocked_since_ns = 0;
  opi_rank_note(rank, OPI_DOING_STEP, step, 0);
}

/* What a program has read goes back behind its sends, for which somebody waits; but before the rank
 * itself waits, since what it waits for may need it. */
static opipe_status settle_inputs(opi_rank *rank, opi_shape *shape, uint64_t sequence,
                                  opipe_status status, opipe_error *err) {
  if (!rank->holds_inputs || status < 0)
    return status;
  rank->holds_inputs = false;
  OPI_TRY(opi_give_inputs_back(rank, shape, rank->session->plan->actions[rank->action].stage,
                               sequence, err));
  return status;
}

static opipe_status run_group(opi_rank *rank, opi_shape *shape, uint64_t sequence,
                              opipe_error *err) {
  const uint32_t end = shape->group_first[rank->action + 1];
  opipe_status status = OPIPE_OK;
  if (rank->step == OPIPE_NONE)
    rank->step = shape->group_first[rank->action];
  while (rank->step < end) {
    const opi_step *step = &shape->list->steps[rank->step];
    status = opi_step_run(rank, shape, step, sequence, err);
    if (status == OPIPE_PENDING)
      opi_rank_blocked(rank, step);
    if (status != OPIPE_OK)
      break;
    opi_rank_moves(rank, step);
    ++rank->step;
  }
  return settle_inputs(rank, shape, sequence, status, err);
}

static opipe_status run_request(opi_rank *rank, opipe_error *err) {
  const opi_plan *plan = rank->session->plan;
  const opi_request *request = rank->request;
  if (rank->session->train != NULL)
    return opi_train_run(rank, err);
  while (rank->action < plan->rank_first[rank->index + 1]) {
    const uint32_t m = plan->actions[rank->action].microbatch;
    if (m < request->n_microbatches) { /* else it has no rows: all ranks leave it out */
      const opipe_status status = run_group(rank, request->shape[opi_class_of(request, m)],
                                            opi_sequence_of(request, m), err);
      if (status != OPIPE_OK)
        return status;
      if (opi_session_failed(rank->session))
        return OPIPE_PENDING;
    }
    ++rank->action;
    rank->step = OPIPE_NONE;
  }
  return rank->index == 0 ? opi_store_plain(rank, rank->request, err) : OPIPE_OK;
}

static opipe_status why_failed(opi_session *s, opipe_error *err) {
  return opi_fail(err, s->why.status, "%s", s->why.message);
}

opipe_status opi_rank_advance(opi_rank *rank, opipe_error *err) {
  opi_session *s = rank->session;
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  rank->polls = false;
  while (status == OPIPE_OK) {
    if (opi_session_failed(s))
      return why_failed(s, err);
    status = look_for_shapes(rank, &local);
    if (status == OPIPE_OK && rank->request == NULL && !take_request(rank)) {
      opi_rank_note(rank, OPI_DOING_NOTHING, NULL, 0);
      if (s->train != NULL)
        status = opi_train_idle(rank, &local);
      if (status >= 0)
        return status;
    }
    if (status == OPIPE_OK)
      status = run_request(rank, &local);
    if (status != OPIPE_OK)
      break;
    opi_request *done = rank->request;
    rank->request = NULL;
    opi_count_on(&rank->n_moves);
    if (done != NULL && atomic_fetch_sub(&done->n_ranks_left, 1) == 1)
      opi_request_passed(done);
  }
  if (status == OPIPE_PENDING)
    return opi_session_failed(s) ? why_failed(s, err) : OPIPE_PENDING;
  opi_session_fail(s, rank->index, rank->request, &local);
  return why_failed(s, err);
}
