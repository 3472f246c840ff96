/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, locks and clocks over pthreads. */
#include "runtime/base/thread.h"

#include <opipe/threads.h>
#include <stdio.h>

#include "loader/base/cores.h"

static void *begin(void *arg) {
  const opi_thread *thread = arg;
  opipe_thread_enter(thread->name);
  return thread->run(thread->arg);
}

opipe_status opi_thread_start(opi_thread *thread, const char *name, void *(*run)(void *arg),
                              void *arg, opipe_error *err) {
  (void)snprintf(thread->name, sizeof thread->name, "%s", name);
  thread->run = run;
  thread->arg = arg;
  const int failed = opipe_thread_create(&thread->handle, NULL, begin, thread);
  if (failed != 0)
    return opi_fail_errno(err, failed, "thread '%s' cannot be started", name);
  thread->running = true;
  return OPIPE_OK;
}

void opi_thread_join(opi_thread *thread) {
  if (!thread->running)
    return;
  (void)pthread_join(thread->handle, NULL);
  thread->running = false;
}

opipe_status opi_lock_init(opi_lock *lock, opipe_error *err) {
  pthread_condattr_t attributes;
  int failed = pthread_mutex_init(&lock->mutex, NULL);
  if (failed != 0)
    return opi_fail_errno(err, failed, "a lock cannot be made");
  failed = pthread_condattr_init(&attributes);
  if (failed == 0) {
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    failed = pthread_cond_init(&lock->cond, &attributes);
    (void)pthread_condattr_destroy(&attributes);
  }
  if (failed == 0)
    return OPIPE_OK;
  (void)pthread_mutex_destroy(&lock->mutex);
  return opi_fail_errno(err, failed, "a signal cannot be made");
}

void opi_lock_destroy(opi_lock *lock) {
  (void)pthread_cond_destroy(&lock->cond);
  (void)pthread_mutex_destroy(&lock->mutex);
}

void opi_lock_wait(opi_lock *lock, uint64_t until_ns) {
  const struct timespec until = {.tv_sec = (time_t)(until_ns / UINT64_C(1000000000)),
                                 .tv_nsec = (long)(until_ns % UINT64_C(1000000000))};
  (void)pthread_cond_timedwait(&lock->cond, &lock->mutex, &until);
}

uint32_t opi_cores_allowed(void) {
  return opi_cores("");
}
