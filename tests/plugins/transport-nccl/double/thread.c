/* SPDX-License-Identifier: Apache-2.0 */
/* The double's thread: a GPU goes on while nobody looks. It lets communicators start and end, puts
 * launches into streams, and makes streams move while one of them holds a launch.
 */
#include <time.h>

#include "double.h"
#include "tests/plugins/backend-cuda/doubles/driver.h"

enum { LEAST_US = 20, MOST_US = 400, IDLE_US = 2000 };

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool runs;

/* Under the lock. */
static bool has_work(void) {
  bool works = nccl_launch_waits();
  for (ncclComm_t c = nccl_comms; c != NULL; c = c->next) {
    nccl_advance(c);
    works = works || c->n_queued > 0 || c->state == COMM_STARTING || c->state == COMM_FINALIZING;
  }
  return works;
}

/* Under the lock: sleeps, less if somebody has something to do. */
static void sleep_for(uint64_t us) {
  struct timespec until;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += (long)(us * 1000);
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  (void)pthread_cond_timedwait(&changed, &nccl_lock, &until);
}

static void *go_on(void *arg) {
  uint64_t us = LEAST_US;
  (void)arg;
  (void)pthread_mutex_lock(&nccl_lock);
  while (!nccl_places_drop() || nccl_comms != NULL) {
    const uint64_t moves = nccl_counted.moves;
    const bool works = has_work();
    (void)pthread_mutex_unlock(&nccl_lock);
    if (works) {
      nccl_launch_some();
      (void)cuda_double_step();
    }
    (void)pthread_mutex_lock(&nccl_lock);
    us = !works                        ? IDLE_US
         : moves != nccl_counted.moves ? LEAST_US
         : us < MOST_US                ? 2 * us
                                       : MOST_US;
    if (moves == nccl_counted.moves)
      sleep_for(us);
  }
  runs = false;
  (void)pthread_cond_broadcast(&changed);
  (void)pthread_mutex_unlock(&nccl_lock);
  return NULL;
}

void nccl_wake(void) {
  pthread_t thread;
  if (runs) {
    (void)pthread_cond_broadcast(&changed);
    return;
  }
  runs = true;
  if (pthread_create(&thread, NULL, go_on, NULL) != 0)
    nccl_die("no thread");
  (void)pthread_detach(thread);
}

void nccl_rest(void) {
  while (runs && nccl_comms == NULL && nccl_places_drop()) {
    (void)pthread_cond_broadcast(&changed);
    sleep_for(IDLE_US);
  }
}
