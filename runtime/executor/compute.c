/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a stage's program. What a program says about its data (OPIPE_E_INVALID: a NaN with the check
 * on, an index out of range) fails the request; anything else fails the rank, and with it the
 * session.
 *
 * An asynchronous device is waited for after every program, in slices, so that an abort or the
 * watchdog is never far.
 */
#include "runtime/state.h"

opipe_status opi_rank_sync_beside(opi_rank *rank, opi_beside_fn beside, opipe_error *err) {
  if (rank->event == NULL)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK_RANK(rank, event_record, err, rank->queue, rank->event));
  opipe_status status = OPIPE_E_TIMEOUT;
  while (status == OPIPE_E_TIMEOUT && !opi_session_failed(rank->session)) {
    bool more = false;
    if (beside != NULL)
      OPI_TRY(beside(rank, &more, err));
    status = rank->backend->event_sync(rank->event, more ? OPI_BESIDE_NS : OPI_SLICE_NS, err);
    if (status != OPIPE_E_TIMEOUT)
      status = opi_answer(status, "backend", opi_rank_backend(rank)->id, "event_sync", err);
    if (status == OPIPE_E_TIMEOUT)
      opi_watch(rank->session);
  }
  return status;
}

opipe_status opi_rank_sync(opi_rank *rank, opipe_error *err) {
  return opi_rank_sync_beside(rank, NULL, err);
}

static opipe_status run(opi_rank *rank, opi_shape *shape, const opi_stage_run *stage,
                        uint64_t sequence, opipe_error *err) {
  (void)shape;
  opipe_status status = OPI_ASK_RANK(rank, run, err, stage->bindings[sequence % stage->n_bindings],
                                     rank->queue, NULL, 0);
  if (status == OPIPE_OK)
    status = opi_rank_sync(rank, err);
  return status;
}

opipe_status opi_stage_compute(opi_rank *rank, opi_shape *shape, opi_request *request,
                               uint32_t stage, uint32_t microbatch, uint64_t sequence,
                               opipe_error *err) {
  const opi_stage_run *s = &shape->stages[stage];
  const opi_step step = {
      .kind = OPI_ACT_COMPUTE, .stage = stage, .microbatch = microbatch, .route = OPIPE_NONE};
  opipe_error local = OPIPE_ERROR_INIT;
  if (request->deadline_ns != 0)
    opi_request_check_deadline(request, rank, stage);
  if (s->program == NULL || opi_request_failed(request))
    return OPIPE_OK;
  const uint64_t start = opi_clock_ns();
  opi_rank_note(rank, OPI_DOING_PROGRAM, &step, start);
  opipe_status status = run(rank, shape, s, sequence, &local);
  const uint64_t end = opi_clock_ns();
  opi_rank_note(rank, OPI_DOING_STEP, &step, 0);
  atomic_store_explicit(&rank->busy_ns,
                        atomic_load_explicit(&rank->busy_ns, memory_order_relaxed) + (end - start),
                        memory_order_relaxed);
  if (status >= 0)
    return OPIPE_OK;
  local.status = status;
  (void)opi_error_prefix(&local, "rank %u, stage %u, request %llu, micro-batch %u: ", rank->index,
                         stage, (unsigned long long)request->number, microbatch);
  if (status == OPIPE_E_INVALID) {
    (void)opi_request_fail(request, &local);
    return OPIPE_OK;
  }
  if (err != NULL)
    *err = local;
  return status;
}
