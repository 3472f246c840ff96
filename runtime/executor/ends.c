/* SPDX-License-Identifier: Apache-2.0 */
/* Ending a request early, or the session; called by ranks and by callers. */
#include "runtime/executor/steps.h"

/* ---- requests that no rank has begun ---- */

bool opi_request_withdraw(opi_request *request) {
  uint32_t no = OPI_BEGUN_NO;
  if (!atomic_compare_exchange_strong(&request->begun, &no, OPI_BEGUN_NEVER))
    return false;
  request->setup->engine->above.finish(request);
  return true;
}

bool opi_step_leave_out(opi_request *request, const opipe_error *why) {
  uint32_t no = OPI_BEGUN_NO;
  if (!atomic_compare_exchange_strong(&request->begun, &no, OPI_BEGUN_NEVER))
    return false;
  (void)opi_request_fail(request, why);
  request->setup->engine->above.finish(request);
  return true;
}

/* ---- deadlines ---- */

/* Is the request late? Then *out_why is the reason. rank, stage: as in opi_request_check_deadline.
 */
static bool is_late(const opi_request *request, const opi_rank *rank, uint32_t stage,
                    opipe_error *out_why) {
  const uint64_t now = opi_clock_ns();
  if (request->deadline_ns == 0 || now < request->deadline_ns || opi_request_failed(request))
    return false;
  const double late_ms = (double)(now - request->deadline_ns) * 1e-6;
  if (rank == NULL || stage == OPIPE_NONE) {
    (void)opi_fail(out_why, OPIPE_E_TIMEOUT, "request %llu: its deadline passed %.3f ms ago",
                   (unsigned long long)request->number, late_ms);
  } else {
    (void)opi_fail(out_why, OPIPE_E_TIMEOUT,
                   "request %llu: its deadline passed %.3f ms before rank %u came to stage %u",
                   (unsigned long long)request->number, late_ms, rank->index, stage);
  }
  return request->ticket == NULL ||
         opi_rank_is_here(request->setup, 0); /* else rank 0's session decides about steps */
}

void opi_request_check_deadline(opi_request *request, const opi_rank *rank, uint32_t stage) {
  opipe_error why = OPIPE_ERROR_INIT;
  if (!is_late(request, rank, stage, &why))
    return;
  if (request->ticket != NULL && request->ticket->kind == OPI_TICKET_TRAIN)
    (void)opi_step_leave_out(request, &why);
  else
    (void)opi_request_fail(request, &why);
}

void opi_request_check_held(opi_request *request) {
  opipe_error why = OPIPE_ERROR_INIT;
  if (is_late(request, NULL, OPIPE_NONE, &why))
    (void)opi_request_fail(request, &why);
}

/* ---- the session ---- */

static bool others_have_gone(const opi_setup *s) {
  const opi_elsewhere *there = s->engine->elsewhere;
  return there != NULL && there->have_gone(there->ctx);
}

/* False: the session has failed before. */
static bool break_off(opi_setup *s, uint32_t rank, opi_request *request, const opipe_error *why) {
  uint32_t none = 0;
  opipe_error *own = &s->ending.why;
  if (!atomic_compare_exchange_strong(&s->ending.failing, &none, 1))
    return false;
  *own = *why;
  own->struct_size = (uint32_t)sizeof *own;
  const bool is_told = opi_watch_explain(s, rank, own); /* and logged where it is to be */
  if (request != NULL)
    (void)opi_request_fail(request, own);
  atomic_store(&s->ending.failed, 1);
  if (own->status != OPIPE_E_CANCELLED && !is_told && !others_have_gone(s))
    opi_log(s->env.logger, OPIPE_LOG_ERROR, "session failed: %s", own->message);
  if (s->world != NULL)
    s->transport->abort(s->world, rank, own);
  return true;
}

void opi_session_break(opi_setup *s, uint32_t rank, opi_request *request, const opipe_error *why) {
  (void)break_off(s, rank, request, why);
}

void opi_session_fail(opi_setup *s, uint32_t rank, opi_request *request, const opipe_error *why) {
  if (break_off(s, rank, request, why))
    s->engine->above.settle(s->engine->above.ctx);
}
