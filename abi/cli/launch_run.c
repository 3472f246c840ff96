/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for ranks, signals and time, and ends those that remain after the first failure: 3 s, then
 * SIGTERM, 5 s later SIGKILL, to their process groups. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"
#include "progress.h"

static const double GRACE_S = 3, TERM_S = 5, LOOK_S = 0.05;
enum { INPUT_BYTES = 4096 }; /* a pipe that is writable takes as many */

/* Where the end of a job stands. */
typedef struct ending {
  double term_at, kill_at; /* seconds; 0: not set */
  bool drains;             /* all ranks have ended: what they left behind has its time */
} ending;

/* ---- ranks that end ---- */

static bool has_failed(const launch_rank *r) {
  return r->ended && (!WIFEXITED(r->status) || WEXITSTATUS(r->status) != 0);
}

/* If several are seen at once, one that a signal has ended came first and the others followed. */
static bool came_before(const launch_rank *a, const launch_rank *b) {
  return WIFSIGNALED(a->status) && !WIFSIGNALED(b->status);
}

/* True if one of them is the first failure. */
static bool reap(launch_job *job) {
  int64_t first = -1;
  for (uint32_t i = 0; i < job->n; ++i) {
    launch_rank *r = &job->ranks[i];
    if (r->pid == 0 || r->ended || waitpid(r->pid, &r->status, WNOHANG) != r->pid)
      continue;
    r->ended = true;
    ++job->n_ended;
    if (has_failed(r) && (first < 0 || came_before(r, &job->ranks[first])))
      first = i;
  }
  if (first < 0 || job->first >= 0)
    return false;
  job->first = first;
  return true;
}

/* Signals the groups; those of ranks that have ended too: children may be left. True if there was
 * one. */
static bool signal_groups(const launch_job *job, int number) {
  bool any = false;
  for (uint32_t i = 0; i < job->n; ++i) {
    if (job->ranks[i].pid != 0)
      any = kill(-job->ranks[i].pid, number) == 0 || any;
  }
  return any;
}

static void pass_on(launch_job *job) {
  struct signalfd_siginfo told;
  while (read(job->signals, &told, sizeof told) == (ssize_t)sizeof told) {
    const int number = (int)told.ssi_signo;
    if (number == SIGCHLD)
      continue;
    if (number != SIGUSR1 && number != SIGUSR2) {
      (void)signal_groups(job, number);
      continue;
    }
    for (uint32_t i = 0; i < job->n; ++i) { /* these are the rank's own, not its children's */
      if (job->ranks[i].pid != 0 && !job->ranks[i].ended)
        (void)kill(job->ranks[i].pid, number);
    }
  }
}

/* ---- time ---- */

/* One more look at who is left, and at the clock. */
static void keep_time(launch_job *job, ending *e) {
  const double now = cli_now();
  const bool all = job->n_ended == job->n;
  if (all && !e->drains) { /* children of ranks */
    e->drains = true;
    if (e->kill_at == 0) {
      (void)signal_groups(job, SIGTERM);
      e->term_at = 0;
      e->kill_at = now + TERM_S;
    }
  }
  if (e->term_at != 0 && now >= e->term_at) {
    (void)signal_groups(job, SIGTERM);
    e->term_at = 0;
    e->kill_at = now + TERM_S;
  }
  if (e->kill_at != 0 && now >= e->kill_at && !(all && !signal_groups(job, 0)))
    (void)signal_groups(job, SIGKILL);
}

static void end_now(launch_job *job, ending *e) {
  if (e->kill_at != 0)
    return;
  (void)signal_groups(job, SIGTERM);
  e->term_at = 0;
  e->kill_at = cli_now() + TERM_S;
}

/* ---- the loop ---- */

/* Passes on to rank 0 the words typed at a terminal. */
static void pump_input(launch_job *job) {
  char bytes[INPUT_BYTES];
  struct pollfd room = {.fd = job->input, .events = POLLOUT};
  if (poll(&room, 1, (int)(LOOK_S * 1000)) == 0)
    return;
  const ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
  if (n > 0 && write(job->input, bytes, (size_t)n) == n)
    return;
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  (void)close(job->input);
  job->input = -1;
}

static struct pollfd *fill_polls(const launch_job *job, struct pollfd *p) {
  *p++ = (struct pollfd){.fd = job->signals, .events = POLLIN};
  *p++ = (struct pollfd){.fd = job->input >= 0 ? STDIN_FILENO : -1, .events = POLLIN};
  for (uint32_t i = 0; i < job->n; ++i) {
    for (uint32_t s = 0; s < LAUNCH_STREAMS; ++s)
      *p++ = (struct pollfd){.fd = job->ranks[i].streams[s].fd, .events = POLLIN};
  }
  return p;
}

static void serve(launch_job *job, const struct pollfd *p) {
  if (p[0].revents != 0)
    pass_on(job);
  if (p[1].revents != 0 && job->input >= 0)
    pump_input(job);
  p += 2;
  for (uint32_t i = 0; i < job->n; ++i) {
    for (uint32_t s = 0; s < LAUNCH_STREAMS; ++s, ++p) {
      if (p->revents != 0 && job->ranks[i].streams[s].fd >= 0)
        launch_read(job, &job->ranks[i], s);
    }
  }
}

static bool streams_are_open(const launch_job *job) {
  for (uint32_t i = 0; i < job->n; ++i) {
    for (uint32_t s = 0; s < LAUNCH_STREAMS; ++s) {
      if (job->ranks[i].streams[s].fd >= 0)
        return true;
    }
  }
  return false;
}

/* Nothing of the ranks is left, or nothing that can be ended. */
static bool is_over(const launch_job *job, const ending *e) {
  if (!e->drains)
    return false;
  const bool group_is_left = signal_groups(job, 0);
  return !group_is_left || (e->kill_at != 0 && cli_now() >= e->kill_at + 1);
}

int launch_wait(launch_job *job) {
  struct pollfd *polls = calloc(2 + (size_t)job->n * LAUNCH_STREAMS, sizeof *polls);
  ending e = {0};
  if (polls == NULL) {
    (void)signal_groups(job, SIGKILL);
    return cli_fail("out of memory");
  }
  while (!is_over(job, &e)) {
    const struct pollfd *end = fill_polls(job, polls);
    const bool hurries = e.term_at != 0 || e.kill_at != 0;
    (void)poll(polls, (nfds_t)(end - polls), hurries ? (int)(LOOK_S * 1000) : 1000);
    serve(job, polls);
    if (reap(job)) {
      if (!job->output_is_lost) /* else this command ends them */
        launch_say_failure(job, (uint32_t)job->first);
      if (e.kill_at == 0)
        e.term_at = cli_now() + GRACE_S;
    }
    if (job->output_is_lost)
      end_now(job, &e);
    keep_time(job, &e);
  }
  /* Empties the pipes; nobody else who holds them is waited for. */
  for (uint32_t k = 0; k < 1024 && streams_are_open(job); ++k) {
    const struct pollfd *end = fill_polls(job, polls);
    polls[0].fd = polls[1].fd = -1;
    if (poll(polls, (nfds_t)(end - polls), 0) <= 0)
      break;
    serve(job, polls);
  }
  for (uint32_t i = 0; i < job->n; ++i) {
    for (uint32_t s = 0; s < LAUNCH_STREAMS; ++s)
      launch_end_stream(job, &job->ranks[i], s);
  }
  free(polls);
  return job->output_is_lost ? cli_fail("launch: cannot write the output") : CLI_DONE;
}

void launch_stop(launch_job *job) {
  (void)signal_groups(job, SIGKILL);
  for (uint32_t i = 0; i < job->n; ++i) {
    if (job->ranks[i].pid != 0)
      (void)waitpid(job->ranks[i].pid, NULL, 0);
    for (uint32_t s = 0; s < LAUNCH_STREAMS; ++s)
      launch_end_stream(job, &job->ranks[i], s);
  }
}

int launch_status(const launch_job *job) {
  if (job->first < 0)
    return CLI_DONE;
  const int status = job->ranks[job->first].status;
  return WIFSIGNALED(status) ? CLI_SIGNALLED + WTERMSIG(status) : WEXITSTATUS(status);
}
