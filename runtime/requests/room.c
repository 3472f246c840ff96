/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for room: a host sleeps here until another request may be accepted, instead of submitting
 * again and again.
 *
 * There is room when fewer than max_in_flight requests are unfinished. A submit may still find none
 * if every shape is in use, or a stream's bindings are. The next request that passes may make room
 * then, so one is waited for. If a value that decides shapes is behind a host's flag, the flag is
 * polled.
 */
#include "runtime/requests/requests.h"

void opi_room_tell(opi_session *s) {
  atomic_fetch_add(&s->room.n_passed, 1);
  if (atomic_load(&s->room.n_waiters) == 0)
    return;
  opi_lock_take(&s->room.lock);
  opi_lock_signal(&s->room.lock);
  opi_lock_give(&s->room.lock);
}

void opi_room_await(opi_session *s, const uint32_t *flag) {
  if (flag == NULL && atomic_load_explicit(&s->shapes->awaited, memory_order_relaxed) == NULL)
    return;
  opi_lock_take(&s->room.lock);
  atomic_store(&s->room.awaited_at, atomic_load(&s->room.n_passed));
  atomic_store(&s->shapes->awaited, flag);
  opi_lock_give(&s->room.lock);
}

/* Is a value that the last submit needed still missing, as far as is known? room.lock */
static bool awaits_value(opi_session *s) {
  const uint32_t *flag = atomic_load(&s->shapes->awaited);
  return flag != NULL && atomic_load(&s->room.awaited_at) == atomic_load(&s->room.n_passed) &&
         __atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0;
}

/* room.lock */
static bool has_room(opi_session *s) {
  const uint32_t n = atomic_load(&s->n_unfinished);
  if (awaits_value(s))
    return false;
  return n < s->setup->max_in_flight &&
         (n == 0 || atomic_load(&s->room.full_at) != atomic_load(&s->room.n_passed) + 1);
}

static opipe_status look(opi_session *s, opipe_error *err) {
  OPI_TRY(opi_session_check(s->setup, err));
  if (opi_session_failed(s->setup)) {
    opi_session_settle(s);
    return opi_fail(err, OPIPE_E_STATE, "the session has failed: %s", s->setup->ending.why.message);
  }
  opi_session_admit(s); /* held requests may go, or be late */
  opi_lock_take(&s->room.lock);
  const bool has = has_room(s);
  opi_lock_give(&s->room.lock);
  return has ? OPIPE_OK : OPIPE_PENDING;
}

opipe_status opi_session_wait_room(opi_session *s, uint64_t timeout_ns, opipe_error *err) {
  OPI_TRY(opi_session_check(s->setup, err));
  const uint64_t since = opi_clock_ns(), until = opi_later_ns(since, timeout_ns);
  const uint64_t looks =
      s->setup->watchdog_ns / 4 < OPI_LOOK_NS ? s->setup->watchdog_ns / 4 + 1 : OPI_LOOK_NS;
  atomic_fetch_add(&s->waits.n_waiters, 1);
  atomic_fetch_add(&s->room.n_waiters, 1); /* before the first look, so that no signal is lost */
  opipe_status status = look(s, err);
  while (status == OPIPE_PENDING) {
    const uint64_t now = opi_clock_ns();
    if (now >= until) {
      status = opi_fail(err, OPIPE_E_TIMEOUT,
                        "no room for another request after %llu ns of waiting: %u are unfinished, "
                        "at most %u may be",
                        (unsigned long long)timeout_ns, atomic_load(&s->n_unfinished),
                        s->setup->max_in_flight);
      break;
    }
    /* Sleep until something has passed, or until the next look at a flag or a held request. */
    opi_lock_take(&s->room.lock);
    const uint64_t flags = awaits_value(s) ? opi_flag_looks_ns(since) : UINT64_MAX;
    const uint64_t held = s->setup->reference ? opi_held_looks_ns(s) : UINT64_MAX;
    const uint64_t next = flags < held ? flags : held;
    const uint64_t end = opi_later_ns(now, next < looks ? next : looks);
    if (!has_room(s) && !opi_session_failed(s->setup) &&
        atomic_load(&s->setup->ending.closing) == 0)
      opi_lock_wait(&s->room.lock, end < until ? end : until);
    opi_lock_give(&s->room.lock);
    opi_watch(s->setup);
    status = look(s, err);
  }
  if (status == OPIPE_OK)
    opi_room_await(s, NULL); /* the host may free the flag */
  atomic_fetch_sub(&s->room.n_waiters, 1);
  atomic_fetch_sub(&s->waits.n_waiters, 1); /* must be last: close waits for it */
  return status;
}
