/* SPDX-License-Identifier: Apache-2.0 */
/* The team of threads: every share runs once a job, results are visible afterwards, spinning and
 * sleeping waiters, many short jobs, start and stop, refusals. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "kernel_test.h"

/* ctest: timeout=120 serial */

typedef struct counts {
  int64_t per_worker[8]; /* written by their worker alone, without atomics: the team orders them */
  int32_t workers;
} counts;

static void count_task(void *argument, int32_t worker, int32_t workers) {
  counts *c = argument;
  ++c->per_worker[worker];
  if (worker == 0)
    c->workers = workers;
}

static cpu_team *start(void **out_memory, int32_t threads, int64_t spin_ns) {
  cpu_team_options options = {.threads = threads, .spin_ns = spin_ns};
  cpu_team *team = NULL;
  *out_memory = kernel_memory(cpu_team_bytes(threads));
  OPI_ASSERT_INT(cpu_team_start(*out_memory, &options, &team), 0);
  return team;
}

static void run_many(int32_t threads, int64_t spin_ns, int jobs) {
  void *memory = NULL;
  cpu_team *team = start(&memory, threads, spin_ns);
  counts c = {{0}, 0};
  OPI_ASSERT_INT(cpu_team_size(team), threads);
  for (int i = 1; i <= jobs; ++i) {
    cpu_team_run(team, count_task, &c);
    for (int32_t w = 0; w < threads; ++w) {
      if (c.per_worker[w] != i) {
        OPI_FAIL("job %d: worker %d ran %lld times", i, w, (long long)c.per_worker[w]);
        i = jobs;
        break;
      }
    }
  }
  OPI_ASSERT_INT(c.workers, threads);
  cpu_team_stop(team);
  free(memory);
}

static void test_every_share_runs_once_a_job(void) {
  run_many(1, 0, 10);
  run_many(2, 100000, 20000);
  run_many(2, 0, 2000);
  run_many(5, 0, 500);     /* more threads than cores, sleeping */
  run_many(5, 50000, 200); /* and spinning */
}

/* Pauses longer than the spin put the workers to sleep; the next job wakes them. */
static void test_sleepers_wake(void) {
  void *memory = NULL;
  cpu_team *team = start(&memory, 3, 1000);
  counts c = {{0}, 0};
  for (int i = 0; i < 50; ++i) {
    struct timespec pause = {0, 2000000};
    nanosleep(&pause, NULL);
    cpu_team_set_spin(team, i % 2 == 0 ? 0 : 50000);
    cpu_team_run(team, count_task, &c);
  }
  OPI_ASSERT_INT(c.per_worker[0], 50);
  OPI_ASSERT_INT(c.per_worker[1], 50);
  OPI_ASSERT_INT(c.per_worker[2], 50);
  cpu_team_stop(team);
  free(memory);
}

/* Every job of a team of four, while others have the processors; jobs that were not as they must
 * be. */
static void *crowded(void *argument) {
  cpu_team_options options = {.threads = 4, .spin_ns = 0};
  void *memory = kernel_memory(cpu_team_bytes(4));
  cpu_team *team = NULL;
  counts c = {{0}, 0};
  intptr_t wrong = cpu_team_start(memory, &options, &team) != 0;
  for (int i = 1; i <= 3000 && wrong == 0; ++i) {
    cpu_team_run(team, count_task, &c);
    for (int32_t w = 0; w < 4; ++w)
      wrong += c.per_worker[w] != i;
  }
  cpu_team_stop(team);
  free(memory);
  return (char *)argument + wrong;
}

/* Workers come too late again and again, some for jobs that are over. */
static void test_many_teams_on_few_processors(void) {
  char none;
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i)
    OPI_ASSERT_FATAL(pthread_create(&threads[i], NULL, crowded, &none) == 0);
  for (int i = 0; i < 4; ++i) {
    void *found = NULL;
    OPI_ASSERT_INT(pthread_join(threads[i], &found), 0);
    OPI_ASSERT(found == &none);
  }
}

typedef struct meeting {
  pthread_t caller;
  bool waits;
  atomic_int by_caller, by_worker; /* runs of share 1 */
} meeting;

static void meet(void *argument, int32_t worker, int32_t workers) {
  meeting *m = argument;
  (void)workers;
  if (worker == 1)
    atomic_fetch_add(pthread_equal(pthread_self(), m->caller) ? &m->by_caller : &m->by_worker, 1);
  for (int i = 0; worker == 0 && m->waits && i < 20000 && atomic_load(&m->by_worker) == 0; ++i) {
  } /* time enough for a worker that spins */
}

/* A part whose worker sleeps is done by the caller, and only once; a worker that spins comes
 * itself. */
static void test_the_caller_runs_what_nobody_came_for(void) {
  for (int64_t spin_ns = 0; spin_ns <= 1000000; spin_ns += 1000000) {
    void *memory = NULL;
    cpu_team *team = start(&memory, 2, spin_ns);
    meeting m = {.caller = pthread_self(), .waits = spin_ns > 0};
    int jobs = 0;
    while (jobs < 100000 &&
           (spin_ns == 0 ? atomic_load(&m.by_caller) == 0 : atomic_load(&m.by_worker) == 0)) {
      cpu_team_run(team, meet, &m);
      ++jobs;
    }
    OPI_ASSERT_INT(atomic_load(&m.by_caller) + atomic_load(&m.by_worker), jobs);
    OPI_ASSERT(atomic_load(spin_ns == 0 ? &m.by_caller : &m.by_worker) > 0);
    cpu_team_stop(team);
    free(memory);
  }
}

static void slow_worker(void *argument, int32_t worker, int32_t workers) {
  (void)workers;
  if (worker == 1) {
    struct timespec pause = {0, 3000000};
    nanosleep(&pause, NULL);
    *(int *)argument += 1;
  }
}

/* The caller outwaits a worker, sleeping, and sees what it wrote. */
static void test_caller_waits_for_the_slowest(void) {
  void *memory = NULL;
  cpu_team *team = start(&memory, 2, 0);
  int done = 0;
  for (int i = 0; i < 20; ++i) {
    cpu_team_run(team, slow_worker, &done);
    OPI_ASSERT_INT(done, i + 1);
  }
  cpu_team_stop(team);
  free(memory);
}

/* On one processor nothing may livelock. */
static void test_progress_on_one_processor(void) {
  cpu_set_t all;
  cpu_set_t one;
  OPI_ASSERT_INT(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (size_t i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &all)) {
      CPU_SET(i, &one);
      break;
    }
  }
  OPI_ASSERT_INT(sched_setaffinity(0, sizeof one, &one), 0);
  run_many(4, 50000, 50);
  run_many(4, 0, 300);
  OPI_ASSERT_INT(sched_setaffinity(0, sizeof all, &all), 0);
}

static void test_start_and_stop_again_and_again(void) {
  for (int i = 0; i < 100; ++i) {
    void *memory = NULL;
    cpu_team *team = start(&memory, 4, i % 2 == 0 ? 0 : 10000);
    counts c = {{0}, 0};
    if (i % 3 == 0) {
      cpu_team_run(team, count_task, &c);
      OPI_ASSERT_INT(c.per_worker[3], 1);
    }
    cpu_team_stop(team);
    free(memory);
  }
  cpu_team_stop(NULL);
}

static void test_options_out_of_range_are_refused(void) {
  cpu_team *team = NULL;
  void *memory = kernel_memory(cpu_team_bytes(2));
  cpu_team_options options = {.threads = 0};
  OPI_ASSERT_INT(cpu_team_start(memory, &options, &team), EINVAL);
  options.threads = CPU_TEAM_MAX_THREADS + 1;
  OPI_ASSERT_INT(cpu_team_start(memory, &options, &team), EINVAL);
  options = (cpu_team_options){.threads = 2, .spin_ns = -1};
  OPI_ASSERT_INT(cpu_team_start(memory, &options, &team), EINVAL);
  const int32_t cpus[2] = {0, 1 << 30};
  options = (cpu_team_options){.threads = 2, .cpus = cpus};
  OPI_ASSERT_INT(cpu_team_start(memory, &options, &team), EINVAL);
  options = (cpu_team_options){.threads = 1};
  OPI_ASSERT_INT(cpu_team_start((char *)memory + 8, &options, &team), EINVAL);
  OPI_ASSERT(team == NULL);
  OPI_ASSERT_INT(cpu_team_bytes(0), 0);
  free(memory);
}

static void test_pinned_workers_run_where_they_were_told(void) {
  void *memory = kernel_memory(cpu_team_bytes(2));
  const int32_t cpus[2] = {0, 0};
  cpu_team_options options = {.threads = 2, .cpus = cpus};
  cpu_team *team = NULL;
  if (cpu_team_start(memory, &options, &team) != 0) {
    free(memory);
    OPI_SKIP("processor 0 is not ours");
  }
  counts c = {{0}, 0};
  cpu_team_run(team, count_task, &c);
  OPI_ASSERT_INT(c.per_worker[1], 1);
  cpu_team_stop(team);
  free(memory);
}

static void test_shares_cover_and_balance(void) {
  for (int32_t workers = 1; workers < 9; ++workers) {
    for (int64_t n = 0; n < 40; ++n) {
      int64_t next = 0;
      for (int32_t w = 0; w < workers; ++w) {
        int64_t begin = -1;
        int64_t end = -1;
        cpu_team_share(n, w, workers, &begin, &end);
        OPI_ASSERT(begin == next && end >= begin && end - begin <= n / workers + 1);
        OPI_ASSERT(end - begin >= n / workers);
        next = end;
      }
      OPI_ASSERT(next == n);
    }
  }
}

OPI_TEST_MAIN("kernel_team", OPI_TEST(test_every_share_runs_once_a_job),
              OPI_TEST(test_many_teams_on_few_processors), OPI_TEST(test_sleepers_wake),
              OPI_TEST(test_the_caller_runs_what_nobody_came_for),
              OPI_TEST(test_caller_waits_for_the_slowest), OPI_TEST(test_progress_on_one_processor),
              OPI_TEST(test_start_and_stop_again_and_again),
              OPI_TEST(test_options_out_of_range_are_refused),
              OPI_TEST(test_pinned_workers_run_where_they_were_told),
              OPI_TEST(test_shares_cover_and_balance))
