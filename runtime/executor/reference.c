/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: the plan's own stages, one micro-batch after the other, stage after stage, in the
 * submitting thread. The same programs, parameters and buffers; no schedule, no transport, no other
 * thread.
 */
#include "runtime/state.h"

static opi_rank *rank_of(const opi_session *s, uint32_t stage) {
  return &s->ranks[opi_plan_rank(s->plan, stage, 0)];
}

static opipe_status hand_on(opi_shape *shape, uint32_t stage, uint64_t sequence, opipe_error *err) {
  opi_session *s = shape->session;
  for (uint32_t i = 0; i < shape->stages[stage].n_sends; ++i) {
    const uint32_t r = shape->stages[stage].sends[i];
    const opi_route *route = &shape->cut->routes[r];
    const opi_route_run *run = &shape->routes[r];
    if (run->in_place)
      continue;
    const opipe_region src = opi_slot_region(shape, run->home, sequence, route->n_bytes);
    const opipe_region dst = opi_slot_region(shape, run->slot, sequence, route->n_bytes);
    OPI_TRY(
        opi_move_region(&s->ranks[run->home->rank], &src, &s->ranks[run->slot->rank], &dst, err));
  }
  return OPIPE_OK;
}

static opipe_status run_stage(opi_shape *shape, opi_request *request, uint32_t stage, uint32_t m,
                              uint64_t sequence, opipe_error *err) {
  opi_rank *rank = rank_of(shape->session, stage);
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING) {
    status =
        opi_load_inputs(rank, shape, request, stage, m, err); /* until the host's flag is set */
  }
  if (status == OPIPE_OK)
    status = opi_stage_compute(rank, shape, request, stage, m, sequence, err);
  if (status == OPIPE_OK)
    status = hand_on(shape, stage, sequence, err);
  if (status != OPIPE_OK)
    return status;
  status = OPIPE_PENDING;
  while (status == OPIPE_PENDING)
    status = opi_store_results(rank, shape, request, stage, m, sequence, err);
  return status;
}

opipe_status opi_run_reference(opi_session *session, opi_request *request, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (uint32_t m = 0; m < request->n_microbatches && status == OPIPE_OK; ++m) {
    opi_shape *shape = request->shape[opi_class_of(request, m)];
    const uint64_t sequence = opi_sequence_of(request, m);
    for (uint32_t stage = 0; stage < session->plan->n_stages && status == OPIPE_OK; ++stage)
      status = run_stage(shape, request, stage, m, sequence, err);
  }
  while (status == OPIPE_OK && request->has_plain) {
    status = opi_store_plain(&session->ranks[0], request, err);
    if (status == OPIPE_OK)
      break;
    if (status == OPIPE_PENDING)
      status = OPIPE_OK;
  }
  return status;
}
