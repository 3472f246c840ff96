/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes a team. */
#include <errno.h>
#include <fcntl.h>
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
static const uint64_t RETRY_FAR_NS = OPI_SECOND / 10, PROVE_NS = 10 * OPI_SECOND;
enum { BEATS_OF_SILENCE = 5, SHOWN_MISSING = 128, SHOWN_PRESENT = 240, SECRET_BYTES = 16 };

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

/* The carrier, the address, and the token where other machines or users can come. */
static opipe_status find_address(opi_team *t, const opi_variables *v,
                                 const opipe_team_params *params, opipe_error *err) {
  OPI_TRY(opi_place_address(v, params->address, &t->place, err));
  if (t->place.address[0] == '\0' || t->place.size == 1) {
    t->carrier->address(t->place.job, t->reach.address);
    return OPIPE_OK;
  }
  t->carrier = &opi_carrier_tcp;
  memcpy(t->reach.address, t->place.address, sizeof t->reach.address);
  return opi_token_find(v, params->token, &t->reach.token, err);
}

/* Who this machine is. */
static void find_machine(opi_team *t, const char *boot) {
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? -1 : read(fd, t->reach.boot, sizeof t->reach.boot - 1);
  t->reach.boot[n < 0 ? 0 : n] = '\0';
  t->reach.boot[strcspn(t->reach.boot, "\n")] = '\0';
  if (fd >= 0)
    (void)close(fd);
  if (boot != NULL)
    (void)snprintf(t->reach.boot, sizeof t->reach.boot, "%s", boot);
  if (gethostname(t->reach.host, sizeof t->reach.host) != 0)
    t->reach.host[0] = '\0';
  t->reach.host[sizeof t->reach.host - 1] = '\0';
  (void)opi_text_clean(t->reach.host, sizeof t->reach.host);
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
  find_machine(t, env->boot);
  return find_address(t, v, params, err);
}

/* ---- connections ---- */

/* One try. OPIPE_PENDING: process 0 is not there; err may have the reason. */
static opipe_status try_root(opi_team *t, uint64_t until, opipe_error *err) {
  opi_connection *link = &t->links[0];
  int fd = -1;
  opipe_status status = t->carrier->connect(t->reach.address, t->reach.token.is_set, &fd, err);
  if (status != OPIPE_OK)
    return status;
  OPI_TRY(opi_connection_begin(t, link, fd, err));
  if (t->carrier->greets) {
    const uint64_t soon = opi_later_ns(opi_clock_ns(), PROVE_NS);
    status = opi_connection_prove(t, link, soon < until ? soon : until, err);
  }
  if (status == OPIPE_OK)
    return opi_team_say(t, link, OPI_FRAME_HELLO, err);
  opi_connection_close(t, link);
  return status == OPIPE_PENDING
             ? status
             : opi_error_prefix(err,
                                "process %u of %u: process 0 of job '%s' at %s: ", t->place.rank,
                                t->place.size, t->place.job, t->reach.address);
}

/* Connects to process 0 as soon as that is there. */
static opipe_status connect_to_root(opi_team *t, opipe_error *err) {
  const uint64_t until = opi_later_ns(t->opened_ns, t->timeout_ns);
  const struct timespec pause = {.tv_nsec = (long)(t->carrier->greets ? RETRY_FAR_NS : RETRY_NS)};
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_PENDING;
  while ((status = try_root(t, until, &why)) == OPIPE_PENDING && opi_clock_ns() < until)
    (void)nanosleep(&pause, NULL);
  if (status == OPIPE_PENDING) {
    return opi_fail(
        err, OPIPE_E_TIMEOUT,
        "process %u of %u: process 0 of job '%s' has not come within %.1f s: nothing listens at "
        "%s%s%s",
        t->place.rank, t->place.size, t->place.job, (double)t->timeout_ns / 1e9, t->reach.address,
        why.message[0] == '\0' ? "" : "; the last try: ", why.message);
  }
  return status < 0 ? opi_fail(err, status, "%s", why.message) : status;
}

static opipe_status meet(opi_team *t, opipe_error *err) {
  opi_process *own = &t->members[t->place.rank];
  own->pid = getpid();
  own->joined = true;
  memcpy(own->boot, t->reach.boot, sizeof own->boot);
  memcpy(own->host, t->reach.host, sizeof own->host);
  t->n_joined = 1;
  if (t->place.size == 1) {
    t->started = true;
    return OPIPE_OK;
  }
  return opi_team_is_root(t)
             ? t->carrier->listen(t->reach.address, t->reach.token.is_set, &t->listener, err)
             : connect_to_root(t, err);
}

/* "; here are process 0 (pid 7), process 2 (pid 9 of node-b)", and connections that proved nothing,
 * as far as there is room. */
static void write_present(opi_team *t, char *out, size_t room) {
  char who[OPI_WHO_ROOM];
  size_t used = 0;
  t->reach.spread = t->carrier->greets; /* with the machines' names */
  for (uint32_t r = 0; r < t->place.size && used + OPI_WHO_ROOM < room; ++r) {
    if (t->members[r].joined) {
      used += (size_t)snprintf(out + used, room - used, "%s%s", used == 0 ? "; here: " : ", ",
                               opi_team_who(t, r, who));
    }
  }
  if (t->reach.n_unproven != 0 && used + OPI_WHO_ROOM < room) {
    (void)snprintf(out + used, room - used, "; %u connections did not prove the token",
                   t->reach.n_unproven);
  }
}

/* Sleeps until all have joined. */
static opipe_status wait_for_all(opi_team *t, opipe_error *err) {
  const uint64_t until = opi_later_ns(t->opened_ns, t->timeout_ns);
  char missing[SHOWN_MISSING], present[SHOWN_PRESENT];
  bool has_met = false;
  opi_lock_take(&t->lock);
  while (!t->started && !t->failed && opi_clock_ns() < until) {
    const bool meets = t->reach.placed && !has_met;
    if (meets)
      opi_neighbours_meet(t);
    else
      opi_lock_wait(&t->lock, until);
    has_met = has_met || meets;
  }
  if (!t->started && !t->failed && opi_team_is_root(t)) {
    opi_team_missing(t, missing, sizeof missing);
    write_present(t, present, sizeof present);
    opi_team_fail(
        t, 0, OPIPE_E_TIMEOUT,
        "%u of the %u processes of job '%s' have not come within %.1f s: rank %s; process "
        "0 (pid %d) listens at %s%s",
        t->place.size - t->n_joined, t->place.size, t->place.job, (double)t->timeout_ns / 1e9,
        missing, (int)getpid(), t->reach.address, present);
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
  const size_t n_polls = OPI_POLLS + OPI_POLLS_EACH * (size_t)t->n_links + size;
  t->members = opi_alloc_zero(a, size, sizeof *t->members);
  t->polls = opi_alloc_zero(a, n_polls, sizeof *t->polls);
  t->links = opi_alloc_zero(a, (size_t)t->n_links + 1, sizeof *t->links);
  if (t->members == NULL || t->polls == NULL || t->links == NULL)
    return opi_fail_nomem(err, size * sizeof *t->links, "a team");
  for (uint32_t i = 0; i <= t->n_links; ++i)
    opi_connection_clear(&t->links[i]);
  OPI_TRY(opi_standing_init(t, err));
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
  opi_neighbours_release(t);
  if (t->has_lock)
    opi_mail_release(t);
  if (t->has_lock)
    opi_lock_destroy(&t->lock);
  const opipe_allocator *a = t->allocator;
  opi_standing_release(t);
  opi_free(a, t->members, t->place.size * sizeof *t->members);
  const size_t n_polls = OPI_POLLS + OPI_POLLS_EACH * (size_t)t->n_links + t->place.size;
  opi_free(a, t->polls, n_polls * sizeof *t->polls);
  opi_free(a, t->links, ((size_t)t->n_links + 1) * sizeof *t->links);
  explicit_bzero(&t->reach.token, sizeof t->reach.token);
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
