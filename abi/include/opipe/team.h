/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: the processes of a job, on one machine or several; part of host.h. Since 1.5.
 *
 *   team_open (in every process) -> team     team_gather, team_step, team_moved ...     team_close
 *
 * Every process of the job opens the team with its rank, the same size and the same job. Rank and
 * size come from the params or from the variables of the launcher that started the process
 * (torchrun, Open MPI, Hydra, Slurm; guide: hosts). Process 0 listens, and the others connect to
 * it; these connections stay open as the team's channel. On one machine it listens at a name that
 * follows from the user and the job, and only processes of the same user are accepted. With an
 * address it listens there, by TCP; beyond loopback both ends prove that they have one token, and
 * nothing is encrypted (guide: launchers).
 *
 * A team fails as a whole: when a process dies, is silent, leaves connections broken or calls
 * team_abort, every call of every process that waits or comes later answers OPIPE_E_PEER, and the
 * message names the process and the reason. A failed team stays failed: close it.
 *
 * Collective calls (team_gather) must be made by all processes, in the same order, one at a time.
 */
#ifndef OPIPE_TEAM_H
#define OPIPE_TEAM_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#if OPIPE_TARGET_MINOR >= 5
typedef struct opipe_team opipe_team;

typedef struct opipe_team_params {
  uint32_t struct_size;
  uint32_t rank;        /* of this process; counts if size is not 0 */
  uint32_t size;        /* processes of the job; 0: from the launcher's variables; without: 1 */
  uint32_t reserved;    /* 0 */
  const char *job;      /* name of the job, the same in all its processes; NULL: the launcher's */
  const char *launcher; /* "none", "torchrun", "openmpi", "hydra" or "slurm": the variables that
                           count; NULL: the first complete set, in this order */
  uint64_t timeout_ns;  /* for all processes to join; 0: 60 s */
  uint64_t silence_ns;  /* a process that is not heard for so long has failed; 0: 10 s; at least
                           100 ms */
  /* NULL: none. Gathers n_bytes of every process in the order of ranks to out_all [size * n_bytes],
   * within timeout_ns: how a host tells the processes where to meet, in place of `job`. [callback:
   * inside team_open] */
  opipe_status (*all_gather)(void *ctx, const void *mine, uint64_t n_bytes, void *out_all,
                             uint64_t timeout_ns);
  void *all_gather_ctx;
  const char *address; /* "HOST:PORT" where process 0 listens; NULL: of the variable
                          ONNX_PIPE_ADDRESS, else the launcher's if several machines take part, else
                          a name on this machine */
  const char *token;   /* 16 to 1024 bytes, the same in all processes; NULL: of ONNX_PIPE_TOKEN, or
                          the file of ONNX_PIPE_TOKEN_FILE; used only with an address */
} opipe_team_params;

/* Strings belong to the team. */
typedef struct opipe_team_info {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t size;
  uint32_t local_rank; /* among the processes of this machine */
  uint32_t local_size;
  uint32_t failed;      /* 1: the team has failed */
  const char *launcher; /* whose variables counted; "none" */
  const char *job;
  uint32_t machine;    /* the lowest process of this machine */
  uint32_t n_machines; /* of the team. Processes count as of one machine if they can pass each other
                          file descriptors */
} opipe_team_info;

/* ROOT: only the part of process 0 counts, the others pass none. */
enum { OPIPE_GATHER_ROOT = 1u };

/* One part of a collective call. */
typedef struct opipe_gather_params {
  uint32_t struct_size;
  uint32_t flags;      /* OPIPE_GATHER_* */
  const char *name;    /* of the call, at most 63 bytes; the same in all processes */
  const void *data;    /* [n_bytes] this process's part; NULL: none (a barrier) */
  uint64_t n_bytes;    /* all parts together: at most 48 MiB */
  uint64_t timeout_ns; /* UINT64_MAX: no limit (deaths and silence still end it) */
  const char *reason;  /* with `refused`: why */
  int32_t refused;     /* OPIPE_OK, or the status with which this process refuses: all processes get
                          the status and reason of the lowest rank that refuses */
  uint32_t reserved;   /* 0 */
  /* NULL: not wanted. Called for every part in the order of ranks (ROOT: for process 0's). `data`
   * is valid for the call. [callback: inside team_gather] */
  opipe_status (*part)(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes);
  void *part_ctx;
} opipe_gather_params;
#endif

#include "frozen/team.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_TEAM_H */
