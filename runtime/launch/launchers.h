/* SPDX-License-Identifier: Apache-2.0 */
/* A process's place in a job, from the variables that launchers set. A pure function of the
 * variables: tests give a table in place of the environment.
 *
 *   torchrun  RANK, WORLD_SIZE; LOCAL_RANK, LOCAL_WORLD_SIZE. Job: MASTER_PORT,
 *             TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT
 *   openmpi   OMPI_COMM_WORLD_RANK, _SIZE; _LOCAL_RANK, _LOCAL_SIZE. Job: PMIX_NAMESPACE
 *   hydra     PMI_RANK, PMI_SIZE; MPI_LOCALRANKID, MPI_LOCALNRANKS. Job: the process
 *             hydra_pmi_proxy
 *   slurm     SLURM_PROCID, SLURM_STEP_NUM_TASKS; SLURM_LOCALID. Job: SLURM_JOB_ID, SLURM_STEP_ID,
 *             SLURM_RESTART_COUNT
 *
 * The sets are tried in this order, and the first that is complete counts as a whole. Slurm's
 * counts only inside a step.
 *
 * A job is of several machines if fewer processes are on this machine than in the job, or Slurm's
 * step has several nodes (SLURM_STEP_NUM_NODES). Its processes meet at an address: the host's,
 * ONNX_PIPE_ADDRESS, or MASTER_ADDR and MASTER_PORT, unless that port is torchrun's agent's
 * (TORCHELASTIC_USE_AGENT_STORE). No other is guessed.
 */
#ifndef OPI_LAUNCHERS_H
#define OPI_LAUNCHERS_H

#include "loader/base/base.h"
#include "runtime/launch/carrier.h"

enum { OPI_LAUNCHER_ROOM = 16, OPI_JOB_ROOM = 128, OPI_AGAINST_ROOM = 128 };
enum { OPI_TEAM_MOST = 4096 /* processes */ };

/* Where variables are looked up. */
typedef struct opi_variables {
  void *ctx;
  const char *(*look)(void *ctx, const char *name); /* NULL: not set */
  /* Writes "PID-STARTTIME" of the nearest ancestor whose name begins with `name`, else of the
   * parent: the same text in every process that it started. */
  void (*ancestor)(void *ctx, const char *name, char *out, size_t room);
} opi_variables;

typedef struct opi_place {
  char launcher[OPI_LAUNCHER_ROOM]; /* "torchrun", "openmpi", "hydra", "slurm", or "none" */
  char job[OPI_JOB_ROOM];           /* the same in all processes of a job; "": not known */
  uint32_t rank, size;              /* size 0: not known */
  uint32_t local_rank, local_size;  /* on this machine, as the launcher says; size 0: not known */
  bool several;                     /* machines take part */
  bool job_is_local;                /* `job` differs from machine to machine */
  char address[OPI_ADDRESS_ROOM];   /* "HOST:PORT"; "": a name on this machine */
  char against[OPI_AGAINST_ROOM];   /* "openmpi says rank 1 of 2": sets that do not count and say
                                       otherwise; "": none */
} opi_place;

/* wanted: NULL, the first complete set; "none"; or a launcher's name. *out has launcher "none" and
 * size 0 if no launcher's variables are there. Errors: INVALID names the variables that are missing
 * or wrong, with both numbers; NOTFOUND, no such launcher. */
opipe_status opi_launcher_place(const opi_variables *variables, const char *wanted, opi_place *out,
                                opipe_error *err);
/* Takes a host's own numbers over (size 0, job NULL: none), which must agree with the launcher's.
 * Errors: INVALID, with both numbers. */
opipe_status opi_place_given(opi_place *io_place, uint32_t rank, uint32_t size, const char *job,
                             opipe_error *err);
/* Where the job's processes meet. given: a host's own; NULL: none. Errors: INVALID: it is no
 * address; other machines take part, and there is none. */
opipe_status opi_place_address(const opi_variables *variables, const char *given,
                               opi_place *io_place, opipe_error *err);
extern const opi_variables opi_process_variables; /* this process's */

#endif /* OPI_LAUNCHERS_H */
