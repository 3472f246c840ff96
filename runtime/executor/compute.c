/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a stage's program. What a program says about its data (OPIPE_E_INVALID: a NaN with the check
 * on, an index out of range) fails the request; anything else fails the rank, and with it the
 * session.
 */
#include "runtime/state.h"

static void note_ran(opi_session *s, const opi_request *request, uint32_t stage,
                     uint32_t microbatch, const opi_span *span) {
  opi_ran *ran = opi_session_ran(s, stage, microbatch);
  atomic_store_explicit(&ran->start_ns, span->start_ns, memory_order_relaxed);
  atomic_store_explicit(&ran->end_ns, span->end_ns, memory_order_relaxed);
  atomic_store_explicit(&ran->request, request->number + 1, memory_order_relaxed);
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
  opi_span span;
  const opipe_status status = opi_rank_run(rank, &step, s->bindings[sequence % s->n_bindings],
                                           &(opi_running){.n_scalars = 0}, &span, &local);
  note_ran(rank->session, request, stage, microbatch, &span);
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
