/* SPDX-License-Identifier: Apache-2.0 */
/* Starts ranks: torchrun's variables, pipes, a process group each, and a signal if this process
 * dies. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"
#include "tables.h"

enum { NOT_RUN = 127, SELF_ROOM = 4096 };

/* A port that nobody has, for programs that want one: ranks of onnx-pipe do not. */
static uint16_t draw_port(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t n = sizeof address;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&address, n) == 0 &&
                   getsockname(fd, (struct sockaddr *)&address, &n) == 0;
  if (fd >= 0)
    (void)close(fd);
  return has ? ntohs(address.sin_port) : 29500; /* torchrun's own preset */
}

static bool set_number(const char *name, uint64_t value) {
  char text[32];
  (void)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
  return setenv(name, text, 1) == 0;
}

/* torchrun's convention. */
static bool set_variables(const launch_job *job, uint32_t rank) {
  const uint32_t of_all = job->first_rank + rank, n_all = job->n * job->n_nodes;
  return set_number("RANK", of_all) && set_number("LOCAL_RANK", rank) &&
         set_number("ROLE_RANK", of_all) && set_number("GROUP_RANK", job->node) &&
         set_number("WORLD_SIZE", n_all) && set_number("LOCAL_WORLD_SIZE", job->n) &&
         set_number("ROLE_WORLD_SIZE", n_all) && set_number("GROUP_WORLD_SIZE", job->n_nodes) &&
         set_number("MASTER_PORT", job->port) && launch_tell_nodes(job) &&
         unsetenv("TORCHELASTIC_USE_AGENT_STORE") == 0 && setenv("ROLE_NAME", "default", 1) == 0 &&
         setenv("TORCHELASTIC_RUN_ID", job->id, 1) == 0 &&
         set_number("TORCHELASTIC_RESTART_COUNT", job->attempt) &&
         set_number("TORCHELASTIC_MAX_RESTARTS", job->n_restarts) &&
         launch_tell_origin(&job->origin, job->attempt);
}

/* ---- in the child ---- */

/* Standard input, output and error of a rank. */
static bool take_streams(int input, const int outputs[LAUNCH_STREAMS]) {
  const int none = input >= 0 ? input : open("/dev/null", O_RDONLY | O_CLOEXEC);
  return none >= 0 && (none == STDIN_FILENO || dup2(none, STDIN_FILENO) >= 0) &&
         dup2(outputs[0], STDOUT_FILENO) >= 0 && dup2(outputs[1], STDERR_FILENO) >= 0;
}

static bool is_own_command(const char *name) {
  for (const cli_command *c = cli_commands; c->name != NULL; ++c) {
    if (strcmp(c->name, name) == 0)
      return true;
  }
  return false;
}

/* Does not return. told: where errno goes if the command cannot be run. */
static void be_rank(const launch_job *job, uint32_t rank, pid_t parent, int input,
                    const int outputs[LAUNCH_STREAMS], int told) {
  char self[SELF_ROOM];
  (void)setpgid(0, 0);
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) /* it has died before */
    _exit(NOT_RUN);
  errno = 0;
  if (take_streams(input, outputs) && set_variables(job, rank)) {
    (void)signal(SIGPIPE, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &job->before, NULL);
    if (is_own_command(job->words[1])) {
      const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
      self[n < 0 ? 0 : n] = '\0';
      (void)execv(self, job->words);
    } else {
      (void)execvp(job->words[1], job->words + 1);
    }
  }
  const int failed = errno;
  (void)write(told, &failed, sizeof failed);
  _exit(NOT_RUN);
}

/* ---- in the parent ---- */

typedef struct pipes {
  int ends[4][2]; /* output, error, errno of exec, input; [0] is read, [1] is written */
} pipes;
enum { EXEC = 2, INPUT = 3, PIPES = 4 };

static void close_pipes(pipes *p) {
  for (uint32_t i = 0; i < PIPES; ++i) {
    for (uint32_t e = 0; e < 2; ++e) {
      if (p->ends[i][e] >= 0)
        (void)close(p->ends[i][e]);
      p->ends[i][e] = -1;
    }
  }
}

static bool make_pipes(pipes *p, bool with_input) {
  for (uint32_t i = 0; i < PIPES; ++i)
    p->ends[i][0] = p->ends[i][1] = -1;
  for (uint32_t i = 0; i < PIPES; ++i) {
    if ((i != INPUT || with_input) && pipe2(p->ends[i], O_CLOEXEC) != 0)
      return false;
  }
  return true;
}

static int take_end(int *end) {
  const int fd = *end;
  *end = -1;
  return fd;
}

/* errno of a command that cannot be run; 0: it runs. */
static int read_exec(pipes *p) {
  int failed = 0;
  (void)close(take_end(&p->ends[EXEC][1]));
  ssize_t n = 0;
  do {
    n = read(p->ends[EXEC][0], &failed, sizeof failed);
  } while (n < 0 && errno == EINTR);
  return n == (ssize_t)sizeof failed ? failed : 0;
}

static int start_rank(launch_job *job, uint32_t rank) {
  pipes p;
  launch_rank *r = &job->ranks[rank];
  const bool by_pipe = rank == 0 && isatty(STDIN_FILENO);
  const bool made = make_pipes(&p, by_pipe);
  const pid_t parent = getpid();
  const pid_t child = made ? fork() : -1;
  if (child == 0) {
    const int outputs[] = {p.ends[0][1], p.ends[1][1]};
    const int input = by_pipe ? p.ends[INPUT][0] : rank == 0 ? STDIN_FILENO : -1;
    be_rank(job, rank, parent, input, outputs, p.ends[EXEC][1]);
  }
  int status = CLI_DONE;
  if (child < 0) {
    status = cli_fail("launch: rank %u of %u cannot be started: %s", job->first_rank + rank,
                      job->n * job->n_nodes, strerror(errno));
  } else {
    (void)setpgid(child, child); /* here too: whoever comes first */
    r->pid = child;
    for (uint32_t s = 0; s < LAUNCH_STREAMS; ++s) {
      r->streams[s].fd = take_end(&p.ends[s][0]);
      (void)fcntl(r->streams[s].fd, F_SETFL, O_NONBLOCK);
    }
    if (by_pipe) {
      job->input = take_end(&p.ends[INPUT][1]);
      (void)fcntl(job->input, F_SETFL, O_NONBLOCK);
    }
    const int failed = read_exec(&p);
    if (failed == ENOENT) {
      status = cli_usage("launch: there is no program '%s'", job->words[1]);
    } else if (failed != 0) {
      status = cli_fail("launch: rank %u: '%s' cannot be run: %s", job->first_rank + rank,
                        job->words[1], strerror(failed));
    }
  }
  close_pipes(&p);
  return status;
}

int launch_start(launch_job *job) {
  int status = CLI_DONE;
  job->port = draw_port();
  launch_count_oom(job->oom_before);
  for (uint32_t r = 0; r < job->n && status == CLI_DONE; ++r)
    status = start_rank(job, r);
  return status;
}
