/* SPDX-License-Identifier: Apache-2.0 */
/* Rest between steps: waits until none is under way, and holds the next ones.
 *
 *   submit 7 ─ submit 8 ─ rest: the gate is 9 ─ submit 9 ─ 8 ends ─ reads ─ go on ─ 9
 *
 * A call that reads or writes parameters closes the gate. Steps and evaluations submitted before
 * are waited for; later ones are accepted and held as if their fences were not set. So nothing
 * moves meanwhile, and no submit blocks, not even one that must return before the host sets a flag
 * that the call waits for. Such calls run one after the other.
 */
#include <time.h>

#include "runtime/requests/requests.h"

/* ---- flushing ---- */

/* Is a request with a number below `mark` unfinished, or about to be handed back? */
static bool has_some_before(opi_session *s, uint64_t mark) {
  opi_lock_take(&s->shapes->submit_lock);
  const uint32_t later = opi_held_from(s, mark);
  const bool has = atomic_load(&s->n_unfinished) > later;
  opi_lock_give(&s->shapes->submit_lock);
  return has || opi_session_is_ending(s);
}

static opipe_status flush(opi_session *s, uint64_t mark, uint64_t timeout_ns, opipe_error *err) {
  const struct timespec again = {.tv_nsec = 100000};
  const uint64_t until = opi_later_ns(opi_clock_ns(), timeout_ns);
  bool had_held = atomic_load(&s->held.n) != 0;
  opi_train_leave_none(s);
  while (has_some_before(s, mark)) {
    const bool has_held = atomic_load(&s->held.n) != 0;
    if (opi_session_failed(s->setup))
      opi_session_settle(s);
    if (has_held)
      opi_session_admit(s);
    if (has_held || had_held) /* a look may have admitted a double-buffered step */
      opi_train_leave_none(s);
    had_held = has_held;
    if (s->setup->threads == OPIPE_THREADS_HOST && !s->setup->reference)
      return OPIPE_PENDING; /* the caller may have to drive */
    if (opi_clock_ns() >= until) {
      return opi_fail(err, OPIPE_E_TIMEOUT, "flush: %u steps are unfinished after %llu ns",
                      atomic_load(&s->n_unfinished), (unsigned long long)timeout_ns);
    }
    (void)nanosleep(&again, NULL);
  }
  if (opi_session_failed(s->setup))
    return opi_fail(err, OPIPE_E_STATE, "the session has failed: %s", s->setup->ending.why.message);
  return OPIPE_OK;
}

opipe_status opi_train_flush(opi_session *s, uint64_t timeout_ns, opipe_error *err) {
  OPI_TRY(opi_train_check(s, err));
  return flush(s, UINT64_MAX, timeout_ns, err);
}

/* ---- resting ---- */

/* A number of the calling thread, never 0. */
static uint64_t this_thread(void) {
  static _Thread_local char own;
  return (uint64_t)(uintptr_t)&own;
}

static opipe_status close_gate(opi_session *s, opipe_error *err) {
  OPI_TRY(opi_train_check(s, err));
  if (atomic_load(&s->steps.resting) == this_thread()) {
    return opi_fail(err, OPIPE_E_STATE,
                    "a call of this thread's reads or writes the session's parameters already: "
                    "none may be made from its callbacks");
  }
  opi_lock_take(&s->steps.rest_lock);
  atomic_store(&s->steps.resting, this_thread());
  opi_lock_take(&s->shapes->submit_lock);
  s->held.gate = s->shapes->n_numbered;
  opi_lock_give(&s->shapes->submit_lock);
  return OPIPE_OK;
}

void opi_train_go_on(opi_session *s) {
  opi_lock_take(&s->shapes->submit_lock);
  s->held.gate = UINT64_MAX;
  opi_lock_give(&s->shapes->submit_lock);
  atomic_store(&s->steps.resting, 0);
  opi_lock_give(&s->steps.rest_lock);
  opi_session_look(s, true);
}

static opipe_status rest(opi_session *s, opipe_error *err) {
  OPI_TRY(opi_session_check(s->setup, err));
  const opipe_status status = flush(s, s->held.gate, UINT64_MAX, err);
  if (status != OPIPE_PENDING)
    return status;
  return opi_fail(err, OPIPE_E_STATE,
                  "%u steps are under way: drive the ranks until session_flush answers OPIPE_OK",
                  atomic_load(&s->n_unfinished));
}

opipe_status opi_train_rest(opi_session *s, opipe_error *err) {
  OPI_TRY(close_gate(s, err));
  const opipe_status status = rest(s, err);
  if (status != OPIPE_OK)
    opi_train_go_on(s);
  return status;
}

/* Has every rank of the failed session stopped using its device? */
static bool has_stopped(opi_session *s) {
  bool stopped = atomic_load(&s->n_unfinished) == 0;
  for (uint32_t i = 0; i < s->setup->n_here; ++i) {
    const opi_rank *rank = &s->setup->ranks[s->setup->here[i]];
    stopped = stopped &&
              (s->setup->threads == OPIPE_THREADS_HOST ? atomic_load(&rank->worker->driving) == 0
                                                       : atomic_load(&rank->worker->gone) != 0);
  }
  return stopped;
}

static opipe_status rest_of_failed(opi_session *s, opipe_error *err) {
  const struct timespec again = {.tv_nsec = 100000};
  const uint64_t until = opi_later_ns(opi_clock_ns(), s->setup->watchdog_ns);
  while (!has_stopped(s) && opi_clock_ns() < until)
    (void)nanosleep(&again, NULL);
  if (!has_stopped(s)) {
    return opi_fail(err, OPIPE_E_STATE, "a rank has not stopped since the session failed: %s",
                    s->setup->ending.why.message);
  }
  if (opi_weights_whole(s->shapes->weights))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_STATE,
                  "the session has failed, and its ranks have weights of different steps: %s",
                  s->setup->ending.why.message);
}

opipe_status opi_train_rest_to_read(opi_session *s, opipe_error *err) {
  OPI_TRY(close_gate(s, err));
  opipe_status status = rest(s, err);
  if (status != OPIPE_OK && !s->setup->reference && opi_session_failed(s->setup) &&
      !opi_is_shared(s->setup) && atomic_load(&s->setup->ending.closing) == 0)
    status = rest_of_failed(s, err);
  if (status != OPIPE_OK)
    opi_train_go_on(s);
  return status;
}
