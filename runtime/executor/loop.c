/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's thread: it runs the interpreter and waits at the rank's doorbell in between. A host that
 * drives ranks does the same (session/drive.c). */
#include <sys/prctl.h>

#include "runtime/executor/ahead.h"
#include "runtime/executor/steps.h"

enum {
  LOOKS_PER_WAIT = 16,    /* a flag is seen at most this part of its wait late, */
  LOOKS_MOST_NS = 5000000 /* or this long */
};

uint64_t opi_flag_looks_ns(uint64_t since_ns) {
  const uint64_t now = opi_clock_ns();
  const uint64_t next = now > since_ns ? (now - since_ns) / LOOKS_PER_WAIT : 0;
  return next < OPI_POLL_NS ? OPI_POLL_NS : next < LOOKS_MOST_NS ? next : LOOKS_MOST_NS;
}

/* A device has no doorbell. The longer a rank has waited for its first entry, the later it looks
 * again, so that the end is seen at most a sixteenth of the wait late. */
uint64_t opi_rank_looks_ns(const opi_rank *rank) {
  const struct opi_ahead *a = rank->worker->ahead;
  if (rank->worker->at_fence && opi_ahead_is_empty(rank))
    return opi_flag_looks_ns(rank->worker->fence_ns);
  const uint64_t now = opi_clock_ns();
  const uint64_t waited = a != NULL && now > a->moved_ns ? now - a->moved_ns : 0;
  const uint64_t next = a == NULL ? OPI_POLL_NS : waited / 16;
  return next < OPI_POLL_LEAST_NS ? OPI_POLL_LEAST_NS : next < OPI_POLL_NS ? next : OPI_POLL_NS;
}

opipe_status opi_rank_wait(opi_rank *rank, uint32_t seen, bool idle, uint64_t until_ns) {
  opi_setup *s = rank->setup;
  const opi_engine_above *above = &s->engine->above;
  /* How long: until the next look at a device, a held request, the watchdog or the deadline. */
  const uint64_t held =
      rank == opi_session_first(s) ? above->held_looks_ns(above->ctx) : UINT64_MAX;
  uint64_t slice = !idle && rank->worker->polls ? opi_rank_looks_ns(rank)
                   : idle                       ? UINT64_C(10) * OPI_LOOK_NS
                                                : OPI_LOOK_NS;
  if (held < slice)
    slice = held;
  if (!idle && s->watchdog_ns / 4 < slice)
    slice = s->watchdog_ns / 4 + 1;
  if (until_ns != UINT64_MAX) {
    const uint64_t now = opi_clock_ns();
    const uint64_t left = until_ns > now ? until_ns - now : 0;
    if (left < slice)
      slice = left;
  }
  /* Wait at the doorbell. */
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_status status = s->transport->wait(rank->endpoint, seen, slice, &why);
  if (status == OPIPE_E_TIMEOUT) {
    opi_watch(s);
    return OPIPE_OK;
  }
  status = opi_answer(status, "transport", s->env.transport.id, "wait", &why);
  if (status < 0 && !opi_session_failed(s)) { /* the transport would not report it again */
    (void)opi_error_prefix(&why, "rank %u: ", rank->index);
    opi_session_fail(s, rank->index, NULL, &why);
  }
  return status;
}

void *opi_rank_thread(void *arg) {
  opi_rank *rank = arg;
  const opipe_transport *t = rank->setup->transport;
  const opi_engine_above *above = &rank->setup->engine->above;
  opipe_status status = OPIPE_OK;
  /* Let timed sleeps end on time, not up to 50 microseconds (the kernel's default slack) later: a
   * rank that waits for a device or a message sleeps some hundred times in a step. */
  (void)prctl(PR_SET_TIMERSLACK, 1UL);
  while (status >= 0) {
    /* Read the doorbell first, so that a ring during the work below ends the wait. */
    const uint32_t seen = t->doorbell(rank->endpoint);
    /* The first rank admits held requests. */
    if (rank == opi_session_first(rank->setup))
      above->admit(above->ctx);
    /* Run as far as it goes, then wait. */
    status = opi_rank_advance(rank, NULL);
    if (status >= 0)
      status = opi_rank_wait(rank, seen, status == OPIPE_OK, UINT64_MAX);
  }
  /* The session has failed: this rank touches no request any more. */
  opi_rank_note(rank, OPI_DOING_NOTHING, NULL, 0);
  atomic_store(&rank->worker->gone, 1);
  above->settle(above->ctx);
  return NULL;
}
