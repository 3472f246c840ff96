/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that judge the candidates of a round. Each takes the next unclaimed one. */
#include <opipe/threads.h>
#include <stdatomic.h>

#include "loader/base/fp.h"
#include "partition/study/auto/run.h"

enum { THREADS_MOST = 64 };

typedef struct crew {
  opi_auto_run *run;
  atomic_uint next;
} crew;

static void *judge_some(void *arg) {
  crew *c = arg;
  for (uint32_t i = atomic_fetch_add(&c->next, 1); i < c->run->n_round;
       i = atomic_fetch_add(&c->next, 1)) {
    opi_candidate *x = &c->run->round[i];
    x->err = (opipe_error)OPIPE_ERROR_INIT;
    x->status = opi_point_judge(c->run->space, &x->point, true, &x->judged, &x->err);
  }
  return NULL;
}

static void *judge_beside(void *arg) {
  opipe_thread_enter("opipe-planner");
  opi_locale_begin_thread();
  return judge_some(arg);
}

/* If a thread cannot be created, the others do its work. */
void opi_crew_judge(opi_auto_run *run) {
  crew c = {.run = run};
  pthread_t threads[THREADS_MOST];
  uint32_t wanted = run->space->question->n_threads, n = 0;
  wanted = wanted < run->n_round ? wanted : run->n_round;
  wanted = wanted < THREADS_MOST ? wanted : THREADS_MOST;
  while (n + 1 < wanted && opipe_thread_create(&threads[n], NULL, judge_beside, &c) == 0)
    ++n;
  (void)judge_some(&c);
  for (uint32_t i = 0; i < n; ++i)
    (void)pthread_join(threads[i], NULL);
}
