/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that the host drives, on whichever thread and in whichever loop it likes: session_drive,
 * and file descriptors that say when it is worth while.
 *
 * No wake-up is lost: the doorbell is read before the interpreter runs for the last time, and the
 * transport is asked to tell when it leaves that value, at once if it has.
 */
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "runtime/executor/ahead.h"
#include "runtime/requests/held.h"

/* ---- file descriptors ---- */

/* A rank's is a timer, so that it can be looked after again soon; 0: it is not readable. */
static void wake_in(int fd, long ns) {
  const struct itimerspec t = {.it_value = {.tv_nsec = ns}};
  (void)timerfd_settime(fd, 0, &t, NULL);
}

/* [callback of the transport: any thread] */
static void ring_rank(void *ctx) {
  const opi_rank *rank = ctx;
  wake_in(atomic_load_explicit(&rank->fd, memory_order_relaxed), 1);
}

void opi_session_ring_finished(opi_session *s) {
  const uint64_t one = 1;
  while (write(atomic_load(&s->finished_fd), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

/* Nothing is given up that somebody may have in a loop: made once, kept until the end. */
static opipe_status make_fd(opi_session *s, _Atomic int32_t *place, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  opi_lock_take(&s->lock);
  if (atomic_load(place) < 0) {
    const bool finished = place == &s->finished_fd;
    const int fd = finished ? eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)
                            : timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (fd < 0)
      status = opi_fail_errno(err, errno, "session_fd: no file descriptor could be made");
    else
      atomic_store(place, fd);
    if (fd >= 0 && !finished)
      wake_in(fd, 1);
  }
  opi_lock_give(&s->lock);
  return status;
}

opipe_status opi_session_fd(opi_session *s, uint32_t rank, int32_t *out_fd, opipe_error *err) {
  OPI_TRY(opi_session_check(s, err));
  _Atomic int32_t *place = &s->finished_fd;
  if (rank != OPIPE_NONE) {
    if (s->threads != OPIPE_THREADS_HOST || s->reference) {
      return opi_fail(err, OPIPE_E_STATE,
                      "session_fd: rank %u has a thread of its own, or none at all", rank);
    }
    if (rank >= s->plan->n_ranks)
      return opi_fail(err, OPIPE_E_INVALID, "session_fd: rank %u of %u", rank, s->plan->n_ranks);
    OPI_TRY(opi_rank_find(s, "session_fd", rank, err));
    if (s->transport->notify == NULL) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "session_fd: transport '%s' cannot tell when a rank has work; drive it with "
                      "a timeout",
                      s->env.transport.id);
    }
    place = &s->ranks[rank].fd;
  }
  OPI_TRY(make_fd(s, place, err));
  *out_fd = atomic_load(place);
  return OPIPE_OK;
}

void opi_session_close_fds(opi_session *s) {
  const int32_t finished = atomic_exchange(&s->finished_fd, -1);
  if (finished >= 0)
    (void)close(finished);
  for (uint32_t r = 0; s->ranks != NULL && r < s->plan->n_ranks; ++r) {
    const int32_t fd = s->ranks[r].session == NULL ? -1 : atomic_exchange(&s->ranks[r].fd, -1);
    if (fd >= 0)
      (void)close(fd);
  }
}

/* ---- driving ---- */

static opipe_status run(opi_rank *rank, uint64_t timeout_ns, uint32_t *out_seen, opipe_error *err) {
  const opipe_transport *t = rank->session->transport;
  const uint64_t until = opi_later_ns(opi_clock_ns(), timeout_ns);
  const uint64_t before = atomic_load_explicit(&rank->n_moves, memory_order_relaxed);
  for (;;) {
    *out_seen = t->doorbell(rank->endpoint);
    opi_session_look(rank->session, false);
    opipe_status status = opi_rank_advance(rank, err);
    const bool moved = atomic_load_explicit(&rank->n_moves, memory_order_relaxed) != before;
    if (status < 0)
      return status;
    if (moved && status == OPIPE_OK)
      return OPIPE_OK; /* all that was to be done */
    if (timeout_ns == 0 || opi_clock_ns() >= until)
      return moved ? OPIPE_OK : OPIPE_PENDING;
    (void)opi_rank_wait(rank, *out_seen, status == OPIPE_OK, until); /* advance tells a failure */
  }
}

static opipe_status drive(opi_rank *rank, uint64_t timeout_ns, opipe_error *err) {
  opi_session *s = rank->session;
  const int32_t fd = atomic_load_explicit(&rank->fd, memory_order_relaxed);
  uint32_t seen = 0;
  if (fd >= 0)
    wake_in(fd, 0);
  const opipe_status status = run(rank, timeout_ns, &seen, err);
  atomic_store_explicit(&rank->driven_ns, opi_clock_ns(), memory_order_relaxed);
  if (status == OPIPE_PENDING)
    opi_watch(s);
  if (fd >= 0 && status >= 0)
    s->transport->notify(rank->endpoint, seen, ring_rank, rank);
  if (fd >= 0 && status >= 0 && rank->polls) /* nobody rings for what a device has done */
    wake_in(fd, (long)opi_rank_looks_ns(rank));
  return status;
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
  OPI_TRY(opi_rank_find(session, "session_drive", index, err));
  opi_rank *rank = &session->ranks[index];
  if (atomic_exchange(&rank->driving, 1) != 0)
    return opi_fail(err, OPIPE_E_STATE, "session_drive: another thread is driving rank %u", index);
  const opipe_status status = drive(rank, timeout_ns, err);
  if (status < 0)
    opi_rank_note(rank, OPI_DOING_NOTHING, NULL, 0);
  atomic_store(&rank->driving, 0);
  if (status < 0)
    opi_session_settle(session);
  return status;
}
