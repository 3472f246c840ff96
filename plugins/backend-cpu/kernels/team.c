/* SPDX-License-Identifier: Apache-2.0 */
/* The team of threads; see team.h.
 *
 * Sleeping and waking: a waiter that has spun long enough counts itself as a sleeper, reads the
 * word again and only then sleeps on it by futex; whoever changes the word does so first and then
 * reads the count of sleepers. All four steps are sequentially consistent, so either the waiter
 * sees the new word or the other sees the sleeper and wakes it. Nobody asleep costs no system call.
 *
 * Shares: who runs a share claims it for the job's generation first. Each worker claims its own;
 * the caller, done with share 0, takes those whose workers have not come (they sleep, or others
 * have their processors), so that a job takes at most as long as without a team. A job lasts until
 * its shares have ended, so that a claim that succeeds finds `task` and `argument` as they were
 * posted; a worker that comes too late finds its share claimed and waits on.
 */
#include "team.h"

#include <errno.h>
#include <linux/futex.h>
#include <opipe/threads.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A number that threads wait on, alone on its cache lines. */
typedef struct wait_word {
  alignas(CPU_TEAM_ALIGN_BYTES) atomic_uint value;
  atomic_uint sleepers;
} wait_word;

typedef struct team_worker {
  alignas(CPU_TEAM_ALIGN_BYTES) atomic_uint claimed; /* generation of the last job whose share of
                                                        this worker was claimed */
  pthread_t thread;
  cpu_team *team;
  int32_t index;
} team_worker;

struct cpu_team {
  wait_word generation; /* rises by one a job; `task` and `argument` are written before */
  cpu_task task;        /* NULL: the workers end */
  void *argument;
  wait_word finished; /* shares of the current job that workers have ended */
  alignas(CPU_TEAM_ALIGN_BYTES) _Atomic int64_t spin_ns;
  int32_t threads;
  int32_t started; /* workers that exist */
  team_worker workers[];
};

static void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  atomic_signal_fence(memory_order_seq_cst);
#endif
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The word's value once it differs from `old`. */
static unsigned wait_change(wait_word *word, unsigned old, int64_t spin_ns) {
  enum { READS_PER_CLOCK = 64 };
  int64_t deadline = 0;
  unsigned value = atomic_load_explicit(&word->value, memory_order_acquire);
  while (value == old && spin_ns > 0) {
    for (int i = 0; i < READS_PER_CLOCK && value == old; ++i) {
      pause_briefly();
      value = atomic_load_explicit(&word->value, memory_order_acquire);
    }
    int64_t now = now_ns();
    deadline = deadline == 0 ? now + spin_ns : deadline;
    if (now >= deadline)
      break;
  }
  while (value == old) {
    atomic_fetch_add(&word->sleepers, 1);
    value = atomic_load(&word->value);
    if (value == old) {
      syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
      value = atomic_load(&word->value);
    }
    atomic_fetch_sub(&word->sleepers, 1);
  }
  return value;
}

static void wake_sleepers(wait_word *word) {
  if (atomic_load(&word->sleepers) != 0)
    syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* True for the first who asks in a generation. These rise, and a worker that comes too late asks
 * for one that is over: the share may have been claimed for later ones since. */
static bool claim(team_worker *of, unsigned generation) {
  unsigned last = atomic_load(&of->claimed);
  return (int32_t)(generation - last) > 0 &&
         atomic_compare_exchange_strong(&of->claimed, &last, generation);
}

static void *worker_main(void *argument) {
  team_worker *self = argument;
  cpu_team *team = self->team;
  unsigned seen = 0;
  char name[16];
  (void)snprintf(name, sizeof name, "opipe-cpu%d", self->index % 100000);
  opipe_thread_enter(name);
  for (;;) {
    int64_t spin_ns = atomic_load_explicit(&team->spin_ns, memory_order_relaxed);
    seen = wait_change(&team->generation, seen, spin_ns);
    if (!claim(self, seen))
      continue;
    if (team->task == NULL)
      return NULL;
    team->task(team->argument, self->index, team->threads);
    atomic_fetch_add(&team->finished.value, 1);
    wake_sleepers(&team->finished); /* the caller knows how many it waits for */
  }
}

static void post(cpu_team *team, cpu_task task, void *argument) {
  team->task = task;
  team->argument = argument;
  atomic_store(&team->finished.value, 0);
  atomic_fetch_add(&team->generation.value, 1);
  wake_sleepers(&team->generation);
}

size_t cpu_team_bytes(int32_t threads) {
  if (threads < 1 || threads > CPU_TEAM_MAX_THREADS)
    return 0;
  return sizeof(cpu_team) + (size_t)(threads - 1) * sizeof(team_worker);
}

static int start_worker(cpu_team *team, int32_t index, const int32_t *cpus) {
  team_worker *w = &team->workers[index - 1];
  atomic_init(&w->claimed, 0);
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error != 0)
    return error;
  if (cpus != NULL) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpus[index] < 0 || cpus[index] >= CPU_SETSIZE) {
      error = EINVAL;
      goto destroy_attributes;
    }
    CPU_SET((size_t)cpus[index], &set);
    error = pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
    if (error != 0)
      goto destroy_attributes;
  }
  w->team = team;
  w->index = index;
  error = opipe_thread_create(&w->thread, &attributes, worker_main, w);
destroy_attributes:
  pthread_attr_destroy(&attributes);
  return error;
}

int cpu_team_start(void *memory, const cpu_team_options *options, cpu_team **out_team) {
  if (cpu_team_bytes(options->threads) == 0 || options->spin_ns < 0 ||
      (uintptr_t)memory % CPU_TEAM_ALIGN_BYTES != 0)
    return EINVAL;
  cpu_team *team = memory;
  atomic_init(&team->generation.value, 0);
  atomic_init(&team->generation.sleepers, 0);
  atomic_init(&team->finished.value, 0);
  atomic_init(&team->finished.sleepers, 0);
  atomic_init(&team->spin_ns, options->spin_ns);
  team->task = NULL;
  team->argument = NULL;
  team->threads = options->threads;
  team->started = 0;
  for (int32_t i = 1; i < options->threads; ++i) {
    int error = start_worker(team, i, options->cpus);
    if (error != 0) {
      cpu_team_stop(team);
      return error;
    }
    team->started = i;
  }
  *out_team = team;
  return 0;
}

void cpu_team_stop(cpu_team *team) {
  if (team == NULL || team->started == 0)
    return;
  post(team, NULL, NULL);
  for (int32_t i = 0; i < team->started; ++i)
    pthread_join(team->workers[i].thread, NULL);
  team->started = 0;
}

int32_t cpu_team_size(const cpu_team *team) {
  return team == NULL ? 1 : team->threads;
}

void cpu_team_run(cpu_team *team, cpu_task task, void *argument) {
  if (team == NULL || team->threads == 1) {
    task(argument, 0, 1);
    return;
  }
  unsigned others = (unsigned)team->threads - 1; /* shares that workers run */
  post(team, task, argument);
  task(argument, 0, team->threads);
  const unsigned generation = atomic_load_explicit(&team->generation.value, memory_order_relaxed);
  for (int32_t w = 1; w < team->threads; ++w) {
    if (!claim(&team->workers[w - 1], generation))
      continue;
    task(argument, w, team->threads);
    --others;
  }
  int64_t spin_ns = atomic_load_explicit(&team->spin_ns, memory_order_relaxed);
  unsigned ended = atomic_load_explicit(&team->finished.value, memory_order_acquire);
  while (ended != others)
    ended = wait_change(&team->finished, ended, spin_ns);
}

void cpu_team_set_spin(cpu_team *team, int64_t spin_ns) {
  atomic_store_explicit(&team->spin_ns, spin_ns > 0 ? spin_ns : 0, memory_order_relaxed);
}

void cpu_team_share(int64_t count, int32_t worker, int32_t workers, int64_t *out_begin,
                    int64_t *out_end) {
  int64_t each = count / workers;
  int64_t rest = count % workers;
  *out_begin = each * worker + (worker < rest ? worker : rest);
  *out_end = *out_begin + each + (worker < rest ? 1 : 0);
}
