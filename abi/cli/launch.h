/* SPDX-License-Identifier: Apache-2.0 */
/* The command launch: N processes of one command on this machine, of as many on others.
 *
 *   launch.c         options, restarts
 *   launch_nodes.c   several machines
 *   launch_start.c   what a rank is given: variables, descriptors, a process group
 *   launch_run.c     waits for ranks, signals and time; ends those that remain
 *   launch_output.c  the lines that ranks write
 *   launch_said.c    how the first failure is told
 *   launch_again.c   the command of a restart
 */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include <signal.h>
#include <sys/types.h>

#include "cli.h"

enum { LAUNCH_ADDRESS = 272 };
enum { LAUNCH_STREAMS = 2 /* standard output, standard error */, LAUNCH_MOST = 4096 };

/* One stream of a rank: its pipe, and the line that has not ended yet. */
typedef struct launch_stream {
  int fd; /* -1: ended */
  char *line;
  size_t n, room;
} launch_stream;

typedef struct launch_rank {
  pid_t pid; /* also its process group; 0: not started */
  bool ended;
  int status; /* of wait */
  int log;    /* -1: none */
  launch_stream streams[LAUNCH_STREAMS];
} launch_rank;

/* Where a job's training begins. */
typedef struct launch_origin {
  uint64_t steps;      /* of the checkpoint that it resumes */
  uint64_t generation; /* of the one in its folder, which is another's; 0: none */
} launch_origin;

typedef struct launch_job {
  uint32_t n;                         /* ranks here */
  uint32_t n_nodes, node, first_rank; /* machines, this one, its first rank */
  char address[LAUNCH_ADDRESS];       /* "HOST:PORT"; "": none */
  bool tags;
  const char *logs; /* NULL: none */
  char **words;     /* this program's name, the command, NULL; the command's first word is one of
                       onnx-pipe's commands, or looked up in PATH */
  uint32_t attempt, n_restarts;
  launch_origin origin;
  char id[64]; /* of the job, the same in all attempts */
  uint16_t port;
  launch_rank *ranks;
  int signals; /* a signalfd */
  sigset_t before;
  int input;           /* standard input for rank 0 if that is a terminal: a pipe; else -1 */
  bool output_is_lost; /* nobody reads this command's output any more */
  uint32_t n_ended;
  int64_t first; /* the rank that failed first; -1: none */
  uint64_t oom_before[2];
} launch_job;

/* launch_start.c. CLI_DONE, or the exit status with the message printed; those started before live.
 */
int launch_start(launch_job *job);
/* launch_run.c: until all ranks have ended and nothing of them is left. CLI_DONE or CLI_FAILED: the
 * launch itself. */
int launch_wait(launch_job *job);
void launch_stop(launch_job *job);        /* ends what was started, at once */
int launch_status(const launch_job *job); /* exit status: of the first failure, or 0 */

/* ---- launch_nodes.c ---- */

/* Machines, address and first rank. CLI_DONE, or a usage error. */
int launch_read_nodes(const cli_options *o, launch_job *job);
/* Where ranks meet, in their variables. False: out of memory. */
bool launch_tell_nodes(const launch_job *job);

/* ---- launch_output.c ---- */

int launch_open_logs(launch_job *job);
/* Passes on what a stream has to say. It ends (fd -1) when its writers have. */
void launch_read(launch_job *job, launch_rank *rank, uint32_t stream);
void launch_end_stream(launch_job *job, launch_rank *rank, uint32_t stream);

/* ---- launch_said.c ---- */

/* Kills for lack of memory that the system has counted: of this cgroup, of the machine. */
void launch_count_oom(uint64_t out[2]);
void launch_say_failure(const launch_job *job, uint32_t rank);

/* ---- launch_again.c ---- */

/* Reads from the words of a command where its training begins. */
void launch_find_origin(char *const *words, launch_origin *out);
/* Sets the variable by which the ranks of a restart know it. False: out of memory. */
bool launch_tell_origin(const launch_origin *origin, uint32_t attempt);

#endif /* CLI_LAUNCH_H */
