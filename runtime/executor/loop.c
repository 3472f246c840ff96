/* SPDX-License-Identifier: Apache-2.0 */
/* Who calls the interpreter: the rank's own thread, or the host by session_drive. Both wait at the
 * rank's doorbell in between. */
#include <sys/prctl.h>

#include "runtime/state.h"

opipe_status opi_rank_wait(opi_rank *rank, uint32_t seen, bool idle, uint64_t until_ns,
                           opipe_error *err) {
  opi_session *s = rank->session;
  uint64_t slice = idle ? UINT64_C(10) * OPI_SLICE_NS : rank->polls ? OPI_POLL_NS : OPI_SLICE_NS;
  if (!idle && s->watchdog_ns / 4 < slice)
    slice = s->watchdog_ns / 4 + 1;
  if (until_ns != UINT64_MAX) {
    const uint64_t now = opi_clock_ns();
    const uint64_t left = until_ns > now ? until_ns - now : 0;
    if (left < slice)
      slice = left;
  }
  const opipe_status status = s->transport->wait(rank->endpoint, seen, slice, err);
  if (status != OPIPE_E_TIMEOUT)
    return opi_answer(status, "transport", s->env.transport.id, "wait", err);
  opi_watch(s);
  return OPIPE_OK;
}

void *opi_rank_thread(void *arg) {
  opi_rank *rank = arg;
  const opipe_transport *t = rank->session->transport;
  opipe_status status = OPIPE_OK;
  /* Sleeps until a point in time end there, not 50 microseconds (the kernel's preset) later: a rank
   * that waits for a device or a message does so some hundred times in a step. */
  (void)prctl(PR_SET_TIMERSLACK, 1UL);
  while (status >= 0) {
    const uint32_t seen = t->doorbell(rank->endpoint);
    status = opi_rank_advance(rank, NULL);
    if (status >= 0)
      status = opi_rank_wait(rank, seen, status == OPIPE_OK, UINT64_MAX, NULL);
  }
  if (!opi_session_failed(rank->session)) { /* the transport itself failed while waiting */
    opipe_error why = OPIPE_ERROR_INIT;
    (void)t->wait(rank->endpoint, t->doorbell(rank->endpoint), 0, &why);
    if (why.status == 0)
      (void)opi_fail(&why, status, "rank %u: waiting failed", rank->index);
    opi_session_fail(rank->session, rank->index, NULL, &why);
  }
  opi_rank_note(rank, OPI_DOING_NOTHING, NULL, 0);
  atomic_store(&rank->gone, 1);
  opi_session_settle(rank->session);
  return NULL;
}

static opipe_status drive(opi_rank *rank, uint64_t timeout_ns, opipe_error *err) {
  const opipe_transport *t = rank->session->transport;
  const uint64_t until = opi_later_ns(opi_clock_ns(), timeout_ns);
  rank->blocked_since_ns = 0; /* it has not been stuck while nobody drove it */
  for (;;) {
    const uint32_t seen = t->doorbell(rank->endpoint);
    opipe_status status = opi_rank_advance(rank, err);
    if (status <= 0)
      return status;
    if (timeout_ns == 0 || opi_clock_ns() >= until)
      return OPIPE_PENDING;
    status = opi_rank_wait(rank, seen, false, until, err);
    if (status < 0 && !opi_session_failed(rank->session))
      return status;
  }
}

opipe_status opi_session_drive(opi_session *session, uint32_t index, uint64_t timeout_ns,
                               opipe_error *err) {
  OPI_TRY(opi_session_check(session, err));
  if (session->threads != OPIPE_THREADS_HOST || session->reference) {
    return opi_fail(err, OPIPE_E_STATE,
                    "session_drive: the session was opened with threads of its own");
  }
  if (index >= session->plan->n_ranks) {
    return opi_fail(err, OPIPE_E_INVALID, "session_drive: rank %u of %u", index,
                    session->plan->n_ranks);
  }
  opi_rank *rank = &session->ranks[index];
  if (atomic_exchange(&rank->driving, 1) != 0) {
    return opi_fail(err, OPIPE_E_STATE, "session_drive: another thread is driving rank %u", index);
  }
  const opipe_status status = drive(rank, timeout_ns, err);
  if (status <= 0)
    opi_rank_note(rank, OPI_DOING_NOTHING, NULL, 0);
  atomic_store(&rank->driving, 0);
  if (status < 0)
    opi_session_settle(session);
  return status;
}
