/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes a team. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "runtime/launch/team.h"

static const uint64_t TIMEOUT_NS = 60 * OPI_SECOND, SILENCE_NS = 10 * OPI_SECOND;
static const uint64_t SILENCE_LEAST_NS = OPI_SECOND / 10, BEAT_MOST_NS = OPI_SECOND;
static const uint64_t CLOSE_NS = OPI_SECOND, RETRY_NS = OPI_SECOND / 200;
enum { BEATS_OF_SILENCE = 5, SHOWN_MISSING = 128, SECRET_BYTES = 16 };

/* ---- where to meet ---- */

/* A process's part in a host's own all-gather. */
typedef struct meeting {
  uint32_t rank, size;
  char job[OPI_JOB_ROOM];
} meeting;

/* Process 0 draws a name, and the host's all-gather tells it to the others. */
static opipe_status agree_on_job(opi_team *t, const opipe_team_params *params, opipe_error *err) {
  const uint32_t size = t->place.size;
  meeting own = {.rank = t->place.rank, .size = size};
  uint8_t secret[SECRET_BYTES];
  if (opi_team_is_root(t)) {
    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret)
      return opi_fail_errno(err, errno, "a job's name cannot be drawn");
    for (uint32_t i = 0; i < SECRET_BYTES; ++i)
      (void)snprintf(own.job + (size_t)2 * i, 3, "%02x", secret[i]);
  }
  meeting *all = opi_alloc_zero(t->allocator, size, sizeof *all);
  if (all == NULL)
    return opi_fail_nomem(err, size * sizeof *all, "a team");
  opipe_status status =
      params->all_gather(params->all_gather_ctx, &own, sizeof own, all, t->timeout_ns);
  if (status < 0)
    status = opi_fail(err, status, "the host's all_gather failed with status %d", (int)status);
  for (uint32_t r = 0; r < size && status >= 0; ++r) {
    if (all[r].rank != r || all[r].size != size) {
      status = opi_fail(err, OPIPE_E_INVALID,
                        "all_gather: part %u is of rank %u of %u, it must be of rank %u of %u", r,
                        all[r].rank, all[r].size, r, size);
    }
  }
  if (status >= 0) {
    all[0].job[OPI_JOB_ROOM - 1] = '\0';
    memcpy(t->place.job, all[0].job, OPI_JOB_ROOM);
  }
  opi_free(t->allocator, all, size * sizeof *all);
  return status < 0 ? status : OPIPE_OK;
}

static opipe_status find_place(opi_team *t, const opi_team_env *env,
                               const opipe_team_params *params, opipe_error *err) {
  const opi_variables *v = env->variables != NULL ? env->variables : &opi_process_variables;
  OPI_TRY(opi_launcher_place(v, params->launcher, &t->place, err));
  OPI_TRY(opi_place_given(&t->place, params->rank, params->size, params->job, err));
  if (t->place.against[0] != '\0') {
    opi_log(&t->logger, OPIPE_LOG_WARN,
            "this is rank %u of %u by the variables of %s, which count as a whole; %s",
            t->place.rank, t->place.size, t->place.launcher, t->place.against);
  } else if (t->place.launcher[0] != 'n') {
    opi_log(&t->logger, OPIPE_LOG_INFO, "this is rank %u of %u by the variables of %s",
            t->place.rank, t->place.size, t->place.launcher);
  }
  if (t->place.size == 0)
    t->place.size = t->place.local_size = 1;
  t->timeout_ns = params->timeout_ns == 0 ? TIMEOUT_NS : params->timeout_ns;
  t->silence_ns = params->silence_ns == 0 ? SILENCE_NS : params->silence_ns;
  if (t->silence_ns < SILENCE_LEAST_NS) {
    return opi_fail(err, OPIPE_E_INVALID, "silence_ns is %llu, at least %llu are needed",
                    (unsigned long long)t->silence_ns, (unsigned long long)SILENCE_LEAST_NS);
  }
  t->beat_ns = t->silence_ns / BEATS_OF_SILENCE;
  if (t->beat_ns > BEAT_MOST_NS)
    t->beat_ns = BEAT_MOST_NS;
  if (params->all_gather != NULL)
    OPI_TRY(agree_on_job(t, params, err));
  if (t->place.job[0] == '\0' && t->place.size > 1) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "a team of %u processes needs a place to meet: a job's name, a launcher's "
                    "variables, or all_gather",
                    t->place.size);
  }
  if (t->place.job[0] == '\0')
    (void)snprintf(t->place.job, sizeof t->place.job, "process-%d", (int)getpid());
  t->carrier->address(t->place.job, t->address);
  return OPIPE_OK;
}

/* ---- connections ---- */

static opipe_status say_hello(opi_team *t, opipe_error *err) {
  uint8_t frame[OPI_FRAME_MOST];
  const opi_hello own = opi_team_hello(t);
  uint64_t at = 0;
  const uint32_t n =
      opi_frame_write(frame, OPI_FRAME_HELLO, 0, (const uint8_t *)&own, sizeof own, &at);
  const int pidfd = opi_pidfd_self();
  const opipe_status status = opi_send_with(t->links[0].fd, frame, n, pidfd, err);
  if (pidfd >= 0)
    (void)close(pidfd);
  return status;
}

/* Connects to process 0 as soon as that is there. */
static opipe_status connect_to_root(opi_team *t, opipe_error *err) {
  const uint64_t until = opi_later_ns(t->opened_ns, t->timeout_ns);
  int fd = -1;
  opipe_status status = OPIPE_PENDING;
  while ((status = t->carrier->connect(t->address, &fd, err)) == OPIPE_PENDING) {
    const struct timespec pause = {.tv_nsec = (long)RETRY_NS};
    if (opi_clock_ns() >= until) {
      return opi_fail(err, OPIPE_E_TIMEOUT,
                      "process %u of %u: process 0 of job '%s' has not come within %.1f s: nothing "
                      "listens at %s",
                      t->place.rank, t->place.size, t->place.job, (double)t->timeout_ns / 1e9,
                      t->address);
    }
    (void)nanosleep(&pause, NULL);
  }
  OPI_TRY(status);
  OPI_TRY(opi_connection_begin(t, &t->links[0], fd, err));
  return say_hello(t, err);
}

static opipe_status meet(opi_team *t, opipe_error *err) {
  t->members[t->place.rank].pid = getpid();
  t->members[t->place.rank].joined = true;
  t->n_joined = 1;
  if (t->place.size == 1) {
    t->started = true;
    return OPIPE_OK;
  }
  return opi_team_is_root(t) ? t->carrier->listen(t->address, &t->listener, err)
                             : connect_to_root(t, err);
}

/* Sleeps until all have joined. */
static opipe_status wait_for_all(opi_team *t, opipe_error *err) {
  const uint64_t until = opi_later_ns(t->opened_ns, t->timeout_ns);
  char missing[SHOWN_MISSING];
  opi_lock_take(&t->lock);
  while (!t->started && !t->failed && opi_clock_ns() < until)
    opi_lock_wait(&t->lock, until);
  if (!t->started && !t->failed && opi_team_is_root(t)) {
    opi_team_missing(t, missing, sizeof missing);
    opi_team_fail(
        t, 0, OPIPE_E_TIMEOUT,
        "%u of the %u processes of job '%s' have not come within %.1f s: rank %s; process "
        "0 (pid %d) listens at %s",
        t->place.size - t->n_joined, t->place.size, t->place.job, (double)t->timeout_ns / 1e9,
        missing, (int)getpid(), t->address);
  } else if (!t->started && !t->failed) {
    opi_team_fail(
        t, t->place.rank, OPIPE_E_TIMEOUT,
        "process %u of job '%s' has waited %.1f s for process 0 (pid %lld) and the others",
        t->place.rank, t->place.job, (double)t->timeout_ns / 1e9, (long long)t->members[0].pid);
  }
  const opipe_status status = opi_team_failure(t, err);
  opi_lock_give(&t->lock);
  return status;
}

/* ---- the object ---- */

static opipe_status allocate(opi_team *t, opipe_error *err) {
  const uint32_t size = t->place.size;
  const opipe_allocator *a = t->allocator;
  t->n_links = size == 1 ? 0 : opi_team_is_root(t) ? size - 1 + OPI_PENDING_MOST : 1;
  const size_t n_polls = 2 + 2 * (size_t)t->n_links;
  t->members = opi_alloc_zero(a, size, sizeof *t->members);
  t->polls = opi_alloc_zero(a, n_polls, sizeof *t->polls);
  t->links = opi_alloc_zero(a, (size_t)t->n_links + 1, sizeof *t->links);
  if (t->members == NULL || t->polls == NULL || t->links == NULL)
    return opi_fail_nomem(err, size * sizeof *t->links, "a team");
  for (uint32_t i = 0; i <= t->n_links; ++i)
    opi_connection_clear(&t->links[i]);
  OPI_TRY(opi_map_create(a, &t->board.keys, err));
  OPI_TRY(opi_lock_init(&t->lock, err));
  t->has_lock = true;
  t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (t->wake >= 0)
    return OPIPE_OK;
  return errno == EMFILE || errno == ENFILE ? opi_fail_descriptors(err, "a team")
                                            : opi_fail_errno(err, errno, "a team");
}

void opi_team_close(opi_team *t) {
  if (t == NULL)
    return;
  if (t->helper.running) {
    opi_lock_take(&t->lock);
    if (!t->failed)
      opi_team_send(t, OPI_NOBODY, OPI_FRAME_LEAVE, 0, NULL, 0);
    t->closing = true;
    t->close_by_ns = opi_later_ns(opi_clock_ns(), CLOSE_NS);
    opi_team_wake(t);
    opi_lock_give(&t->lock);
    opi_thread_join(&t->helper);
  }
  for (uint32_t i = 0; t->links != NULL && i < t->n_links; ++i)
    opi_connection_close(t, &t->links[i]);
  if (t->listener >= 0)
    (void)close(t->listener);
  if (t->wake >= 0)
    (void)close(t->wake);
  opi_collect_release(t);
  opi_board_release(t);
  if (t->has_lock)
    opi_lock_destroy(&t->lock);
  const opipe_allocator *a = t->allocator;
  opi_standing_release(t);
  opi_free(a, t->members, t->place.size * sizeof *t->members);
  opi_free(a, t->polls, (2 + 2 * (size_t)t->n_links) * sizeof *t->polls);
  opi_free(a, t->links, ((size_t)t->n_links + 1) * sizeof *t->links);
  opi_free(a, t, sizeof *t);
}

opipe_status opi_team_open(const opi_team_env *env, const opipe_team_params *params,
                           opi_team **out_team, opipe_error *err) {
  opi_team *t = opi_alloc_zero(env->allocator, 1, sizeof *t);
  if (t == NULL)
    return opi_fail_nomem(err, sizeof *t, "a team");
  t->allocator = env->allocator;
  t->logger = env->logger != NULL ? *env->logger : (opi_logger){NULL, NULL, 0};
  t->carrier = &opi_carrier_unix;
  t->wake = t->listener = -1;
  t->opened_ns = opi_clock_ns();
  opipe_status status = find_place(t, env, params, err);
  if (status == OPIPE_OK)
    status = allocate(t, err);
  if (status == OPIPE_OK)
    status = meet(t, err);
  if (status == OPIPE_OK)
    status = opi_thread_start(&t->helper, "opipe-team", opi_team_help, t, err);
  if (status == OPIPE_OK)
    status = wait_for_all(t, err);
  if (status < 0) {
    opi_team_close(t);
    return status;
  }
  *out_team = t;
  return OPIPE_OK;
}

void opi_team_end_calls(opi_team *t) {
  opi_lock_take(&t->lock);
  t->cancelled = true;
  opi_lock_signal(&t->lock);
  opi_lock_give(&t->lock);
}
