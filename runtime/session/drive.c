/* SPDX-License-Identifier: Apache-2.0 */
/* Host-driven ranks: session_drive, on any thread and in any loop of the host's, and file
 * descriptors that are readable when there may be work.
 *
 * No wake-up is lost: the doorbell is read before the interpreter runs for the last time, and the
 * transport is asked to notify when it leaves that value, at once if it has.
 */
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "runtime/session/session.h"

/* ---- file descriptors ---- */

/* Makes a rank's descriptor readable in `ns`; 0: not at all. It is a timer, since a device has no
 * doorbell. */
static void wake_in(int fd, long ns) {
  const struct itimerspec t = {.it_value = {.tv_nsec = ns}};
  (void)timerfd_settime(fd, 0, &t, NULL);
}

/* [callback of the transport: any thread] */
static void ring_rank(void *ctx) {
  const opi_rank *rank = ctx;
  wake_in(atomic_load_explicit(&rank->worker->fd, memory_order_relaxed), 1);
}

/* Makes a descriptor once. It is kept until the end, since the host may have it in a loop. */
static opipe_status make_fd(opi_session *s, _Atomic int32_t *place, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  opi_lock_take(&s->waits.lock);
  if (atomic_load(place) < 0) {
    const bool finished = place == &s->waits.finished_fd;
    const int fd = finished ? eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)
                            : timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (fd < 0)
      status = opi_fail_errno(err, errno, "session_fd: no file descriptor could be made");
    else
      atomic_store(place, fd);
    if (fd >= 0 && !finished)
      wake_in(fd, 1);
  }
  opi_lock_give(&s->waits.lock);
  return status;
}

opipe_status opi_session_fd(opi_session *s, uint32_t rank, int32_t *out_fd, opipe_error *err) {
  OPI_TRY(opi_session_check(s->setup, err));
  _Atomic int32_t *place = &s->waits.finished_fd;
  if (rank != OPIPE_NONE) {
    if (s->setup->threads != OPIPE_THREADS_HOST || s->setup->reference) {
      return opi_fail(err, OPIPE_E_STATE,
                      "session_fd: rank %u has a thread of its own, or none at all", rank);
    }
    if (rank >= s->setup->plan->decided.n_ranks) {
      return opi_fail(err, OPIPE_E_INVALID, "session_fd: rank %u of %u", rank,
                      s->setup->plan->decided.n_ranks);
    }
    OPI_TRY(opi_rank_find(s->setup, "session_fd", rank, err));
    if (s->setup->transport->notify == NULL) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "session_fd: transport '%s' cannot tell when a rank has work; drive it with "
                      "a timeout",
                      s->setup->env.transport.id);
    }
    place = &s->setup->ranks[rank].worker->fd;
  }
  OPI_TRY(make_fd(s, place, err));
  *out_fd = atomic_load(place);
  return OPIPE_OK;
}

void opi_session_close_fds(opi_session *s) {
  const int32_t finished = atomic_exchange(&s->waits.finished_fd, -1);
  if (finished >= 0)
    (void)close(finished);
  for (uint32_t r = 0; s->setup->ranks != NULL && r < s->setup->plan->decided.n_ranks; ++r) {
    const int32_t fd =
        s->setup->ranks[r].setup == NULL ? -1 : atomic_exchange(&s->setup->ranks[r].worker->fd, -1);
    if (fd >= 0)
      (void)close(fd);
  }
}

/* ---- driving ---- */

static opipe_status run(opi_session *s, opi_rank *rank, uint64_t timeout_ns, uint32_t *out_seen,
                        opipe_error *err) {
  const opipe_transport *t = s->setup->transport;
  const uint64_t until = opi_later_ns(opi_clock_ns(), timeout_ns);
  const uint64_t before = atomic_load_explicit(&rank->worker->n_moves, memory_order_relaxed);
  for (;;) {
    *out_seen = t->doorbell(rank->endpoint);
    opi_session_look(s, false);
    opipe_status status = opi_rank_advance(rank, err);
    const bool moved = atomic_load_explicit(&rank->worker->n_moves, memory_order_relaxed) != before;
    if (status < 0)
      return status;
    if (moved && status == OPIPE_OK)
      return OPIPE_OK; /* all that was to be done */
    if (timeout_ns == 0 || opi_clock_ns() >= until)
      return moved ? OPIPE_OK : OPIPE_PENDING;
    (void)opi_rank_wait(rank, *out_seen, status == OPIPE_OK, until); /* advance tells a failure */
  }
}

static opipe_status drive(opi_session *s, opi_rank *rank, uint64_t timeout_ns, opipe_error *err) {
  const int32_t fd = atomic_load_explicit(&rank->worker->fd, memory_order_relaxed);
  uint32_t seen = 0;
  if (fd >= 0)
    wake_in(fd, 0);
  const opipe_status status = run(s, rank, timeout_ns, &seen, err);
  atomic_store_explicit(&rank->worker->driven_ns, opi_clock_ns(), memory_order_relaxed);
  if (status == OPIPE_PENDING)
    opi_watch(s->setup);
  if (fd >= 0 && status >= 0)
    s->setup->transport->notify(rank->endpoint, seen, ring_rank, rank);
  if (fd >= 0 && status >= 0 && rank->worker->polls) /* a device has no doorbell */
    wake_in(fd, (long)opi_rank_looks_ns(rank));
  return status;
}

opipe_status opi_session_drive(opi_session *session, uint32_t index, uint64_t timeout_ns,
                               opipe_error *err) {
  OPI_TRY(opi_session_check(session->setup, err));
  if (session->setup->threads != OPIPE_THREADS_HOST || session->setup->reference) {
    return opi_fail(err, OPIPE_E_STATE,
                    "session_drive: the session was opened with threads of its own");
  }
  if (index >= session->setup->plan->decided.n_ranks) {
    return opi_fail(err, OPIPE_E_INVALID, "session_drive: rank %u of %u", index,
                    session->setup->plan->decided.n_ranks);
  }
  OPI_TRY(opi_rank_find(session->setup, "session_drive", index, err));
  opi_rank *rank = &session->setup->ranks[index];
  if (atomic_exchange(&rank->worker->driving, 1) != 0)
    return opi_fail(err, OPIPE_E_STATE, "session_drive: another thread is driving rank %u", index);
  const opipe_status status = drive(session, rank, timeout_ns, err);
  if (status < 0)
    opi_rank_rest(rank);
  atomic_store(&rank->worker->driving, 0);
  if (status < 0)
    opi_session_settle(session);
  return status;
}
