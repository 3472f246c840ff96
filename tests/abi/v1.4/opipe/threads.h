/* SPDX-License-Identifier: Apache-2.0 */
/* For plugins that start threads, and for the library's own: such a thread must not disturb the
 * process that hosts it. Header only, as helpers.h; nothing here is part of the ABI.
 *
 *   opipe_thread_create   a thread to which the system delivers none of the host's signals
 *   opipe_thread_enter    the first call on it: its name, its floating-point environment
 *   opipe_fp_defaults     the floating-point environment in which every program starts
 *
 * Signals: asynchronous ones (SIGINT, SIGTERM, SIGCHLD, SIGUSR1, timers ...) are blocked, so that
 * the host's handlers run on the host's threads, and a signal that the host has blocked everywhere
 * waits for its sigwait or signalfd. Signals that a thread raises itself (SIGSEGV, SIGBUS, SIGFPE,
 * SIGILL, SIGTRAP, SIGSYS, and SIGABRT by abort) stay deliverable, so that the host's handler runs:
 * the system ends a process at once that raises a blocked one.
 *
 * Needs POSIX: build with -std=gnu11 or -D_GNU_SOURCE; otherwise nothing is declared.
 */
#ifndef OPIPE_THREADS_H
#define OPIPE_THREADS_H

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

#if defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 199506L

#ifdef __cplusplus
extern "C" {
#endif

/* Splits the signals into those that a thread raises itself, and all others. */
static inline void opipe_signals_split(sigset_t *out_raised, sigset_t *out_others) {
  static const int raised[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  (void)sigemptyset(out_raised);
  (void)sigfillset(out_others);
  for (size_t i = 0; i < sizeof raised / sizeof raised[0]; ++i) {
    (void)sigaddset(out_raised, raised[i]);
    (void)sigdelset(out_others, raised[i]);
  }
}

/* Starts run(arg) with the host's signals blocked; run calls opipe_thread_enter first. attributes
 * may be NULL. Returns the result of pthread_create: 0, or an errno value. */
static inline int opipe_thread_create(pthread_t *out_thread, const pthread_attr_t *attributes,
                                      void *(*run)(void *arg), void *arg) {
  sigset_t raised, others, before;
  opipe_signals_split(&raised, &others);
  int failed = pthread_sigmask(SIG_BLOCK, &others, &before);
  if (failed == 0) {
    failed = pthread_create(out_thread, attributes, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  return failed;
}

/* Round to nearest, no flushing of small numbers to zero, no traps, no flags raised. A new thread
 * inherits the environment of its creator, which may be any host's. */
static inline void opipe_fp_defaults(void) {
#if defined(__x86_64__)
  const uint32_t sse = 0x1f80;
  const uint16_t x87 = 0x037f;
  __asm__ volatile("fnclex\n\tfldcw %0\n\tldmxcsr %1" : : "m"(x87), "m"(sse) : "memory");
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %0" : : "r"(UINT64_C(0)) : "memory");
#else
  (void)fesetenv(FE_DFL_ENV);
#endif
}

/* name: shown by debuggers and `top -H`, its first 15 characters. Unblocks signals that a thread
 * raises itself, if the host has blocked any. */
static inline void opipe_thread_enter(const char *name) {
  sigset_t raised, others;
  opipe_signals_split(&raised, &others);
  (void)pthread_sigmask(SIG_UNBLOCK, &raised, NULL);
#if defined(__linux__)
  (void)prctl(PR_SET_NAME, name, 0UL, 0UL, 0UL);
#else
  (void)name;
#endif
  opipe_fp_defaults();
}

#ifdef __cplusplus
}
#endif
#endif /* _POSIX_C_SOURCE */
#endif /* OPIPE_THREADS_H */
