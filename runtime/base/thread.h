/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, locks and clocks: the core's only use of pthreads.
 *
 * ThreadSanitizer understands pthreads but not C11 threads. Waits use the monotonic clock.
 */
#ifndef OPI_THREAD_H
#define OPI_THREAD_H

#include <pthread.h>
#include <time.h>

#include "loader/base/base.h"

typedef struct opi_thread {
  pthread_t handle;
  bool running;
  char name[16];
  void *(*run)(void *arg);
  void *arg;
} opi_thread;

/* A lock with a signal: waiters sleep on it with the lock held. */
typedef struct opi_lock {
  pthread_mutex_t mutex;
  pthread_cond_t cond;
} opi_lock;

/* Starts `run(arg)` on a thread that the host's signals do not reach and that has the default
 * floating-point environment (opipe/threads.h). Debuggers show `name`, of which 15 characters are
 * kept. `thread` must not move until it is joined. */
opipe_status opi_thread_start(opi_thread *thread, const char *name, void *(*run)(void *arg),
                              void *arg, opipe_error *err);
void opi_thread_join(opi_thread *thread); /* does nothing if it was never started */

opipe_status opi_lock_init(opi_lock *lock, opipe_error *err);
void opi_lock_destroy(opi_lock *lock);
static inline void opi_lock_take(opi_lock *lock) {
  (void)pthread_mutex_lock(&lock->mutex);
}
/* False: another thread holds it. */
static inline bool opi_lock_try(opi_lock *lock) {
  return pthread_mutex_trylock(&lock->mutex) == 0;
}
static inline void opi_lock_give(opi_lock *lock) {
  (void)pthread_mutex_unlock(&lock->mutex);
}
static inline void opi_lock_signal(opi_lock *lock) {
  (void)pthread_cond_broadcast(&lock->cond);
}
/* Releases the lock until it is signalled or the clock shows `until_ns`. May wake spuriously. */
void opi_lock_wait(opi_lock *lock, uint64_t until_ns);

/* Monotonic nanoseconds. */
static inline uint64_t opi_clock_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* a + b, or UINT64_MAX on overflow; for the ends of waits. */
static inline uint64_t opi_later_ns(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return opi_add_u64(a, b, &sum) ? UINT64_MAX : sum;
}

/* Cores that this process may use (opi_cores), at least 1. */
uint32_t opi_cores_allowed(void);

#endif /* OPI_THREAD_H */
