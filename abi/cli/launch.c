/* SPDX-License-Identifier: Apache-2.0 */
/* launch -n N -- COMMAND ...: N processes of one command, as torchrun starts them. */
#include "launch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "progress.h"

enum { STATUS_INTERRUPTED = 130, STATUS_TERMINATED = 143 };

/* Signals that are read from a descriptor. A caller's SIG_IGN stays. */
static int listen_to_signals(sigset_t *out_before) {
  static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};
  sigset_t all;
  (void)sigemptyset(&all);
  for (uint32_t i = 0; i < sizeof passed_on / sizeof passed_on[0]; ++i)
    (void)sigaddset(&all, passed_on[i]);
  (void)signal(SIGCHLD, SIG_DFL);
  (void)signal(SIGPIPE, SIG_IGN);
  (void)sigprocmask(SIG_BLOCK, &all, out_before);
  return signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* One attempt. *out_status: the command's. CLI_DONE: the launch itself did its work. */
static int run_once(launch_job *job, int *out_status) {
  job->n_ended = 0;
  job->first = -1;
  job->input = -1;
  for (uint32_t r = 0; r < job->n; ++r) {
    job->ranks[r] = (launch_rank){.log = -1};
    for (uint32_t s = 0; s < LAUNCH_STREAMS; ++s)
      job->ranks[r].streams[s].fd = -1;
  }
  int status = launch_open_logs(job);
  if (status == CLI_DONE)
    status = launch_start(job);
  if (status != CLI_DONE)
    launch_stop(job);
  else
    status = launch_wait(job);
  for (uint32_t r = 0; r < job->n; ++r) {
    if (job->ranks[r].log >= 0)
      (void)close(job->ranks[r].log);
  }
  if (job->input >= 0)
    (void)close(job->input);
  *out_status = launch_status(job);
  return status;
}

/* Usage errors and interruptions are not for trying again. */
static bool may_restart(const launch_job *job, int status) {
  return status != CLI_DONE && status != CLI_USAGE && status != STATUS_INTERRUPTED &&
         status != STATUS_TERMINATED && job->attempt < job->n_restarts;
}

static int run_all(launch_job *job) {
  int status = CLI_DONE, launched = CLI_DONE;
  launch_find_origin(job->words, &job->origin);
  for (;; ++job->attempt) {
    launched = run_once(job, &status);
    if (launched != CLI_DONE || !may_restart(job, status))
      break;
    (void)fprintf(stderr, "onnx-pipe: launch: restart %u of %u\n", job->attempt + 1,
                  job->n_restarts);
  }
  return launched != CLI_DONE ? launched : status;
}

int cli_launch(const cli_options *o) {
  static char self[] = "onnx-pipe";
  launch_job job = {.n = o->launch.n,
                    .tags = o->launch.tag != 0,
                    .logs = o->launch.logs,
                    .n_restarts = o->launch.restarts};
  int status = launch_read_nodes(o, &job);
  if (status != CLI_DONE)
    return status;
  if (job.n == 0)
    return cli_usage("launch: -n N is needed: the number of processes");
  if (o->n_operands == 0 || o->operands[0][0] == '\0')
    return cli_usage("launch: a command is needed: launch -n %u -- COMMAND ...", job.n);
  char **words = calloc((size_t)o->n_operands + 2, sizeof *words);
  job.ranks = calloc(job.n, sizeof *job.ranks);
  status = CLI_FAILED;
  if (words == NULL || job.ranks == NULL) {
    (void)cli_fail("out of memory");
  } else {
    words[0] = self;
    memcpy(words + 1, o->operands, o->n_operands * sizeof *words);
    job.words = words;
    if (job.n_nodes > 1) /* the same on all nodes */
      (void)snprintf(job.id, sizeof job.id, "launch-%.50s", job.address);
    else
      (void)snprintf(job.id, sizeof job.id, "launch-%d-%lld", (int)getpid(), (long long)time(NULL));
    job.signals = listen_to_signals(&job.before);
    status = job.signals < 0 ? cli_fail("launch: signals cannot be read") : run_all(&job);
    if (job.signals >= 0)
      (void)close(job.signals);
  }
  free(job.ranks);
  free(words);
  return status;
}
