/* SPDX-License-Identifier: Apache-2.0 */
/* A team of threads that runs one job at a time: the calling thread and `threads - 1` workers.
 *
 * A job is a function, an argument and a generation number on a cache line of their own. Workers
 * wait for the next generation by reading it with a pause, for spin_ns, then by futex; with spin_ns
 * = 0 they sleep at once, which is right when more threads are runnable than there are cores. The
 * caller waits for the workers in the same way.
 *
 * Invariants: one thread at a time calls cpu_team_run (the thread that runs the device's queue); a
 * task never calls it again on the same team; running a job allocates nothing. All memory belongs
 * to whoever called cpu_team_start. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_TEAM_H_
#define OPIPE_BACKEND_CPU_KERNELS_TEAM_H_

#include <stddef.h>
#include <stdint.h>

typedef struct cpu_team cpu_team;

/* A share of a job, 0 <= worker < workers: the worker's own, or the caller's, who runs share 0 and
 * those of workers that have not come yet. No share may wait for another. */
typedef void (*cpu_task)(void *argument, int32_t worker, int32_t workers);

enum {
  CPU_TEAM_MAX_THREADS = 1024,
  CPU_TEAM_SPIN_NS = 100000, /* a good default where every thread has a core of its own */
  CPU_TEAM_ALIGN_BYTES = 128 /* alignment of the memory handed to cpu_team_start */
};

typedef struct cpu_team_options {
  int32_t threads;     /* the calling thread included; 1 .. CPU_TEAM_MAX_THREADS */
  int64_t spin_ns;     /* how long a waiting thread spins before it sleeps; 0: not at all */
  const int32_t *cpus; /* [threads] processor of every thread; NULL: not pinned. Entry 0, the
                          caller's, is not applied */
} cpu_team_options;

/* Bytes that a team of `threads` needs; 0 when `threads` is out of range. */
size_t cpu_team_bytes(int32_t threads);

/* Builds a team in `memory` (cpu_team_bytes, aligned to CPU_TEAM_ALIGN_BYTES, owned by the caller,
 * who frees it after cpu_team_stop) and starts its workers. Returns 0, or an errno value (EINVAL
 * for options out of range; what pthread_create or setting the affinity said), and then no thread
 * of it is left. */
int cpu_team_start(void *memory, const cpu_team_options *options, cpu_team **out_team);

/* Ends the workers and waits for them. NULL is accepted. Thread: the one that calls cpu_team_run.
 */
void cpu_team_stop(cpu_team *team);

/* Threads of the team, the caller included; 1 for NULL. */
int32_t cpu_team_size(const cpu_team *team);

/* Runs task(argument, w, workers) for every w once, 0 on the calling thread, and returns when all
 * have ended; what the workers wrote is visible then. With NULL, or a team of one, it is a plain
 * call. Blocks until the slowest has ended. */
void cpu_team_run(cpu_team *team, cpu_task task, void *argument);

/* Changes how long waiting threads spin, from the next wait on. Thread: any. */
void cpu_team_set_spin(cpu_team *team, int64_t spin_ns);

/* The static share of `worker` in 0 .. count: [*out_begin, *out_end), sizes differing by one at
 * most. */
void cpu_team_share(int64_t count, int32_t worker, int32_t workers, int64_t *out_begin,
                    int64_t *out_end);

#endif
