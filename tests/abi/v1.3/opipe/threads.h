/* SPDX-License-Identifier: Apache-2.0 */
/* For plugins that start threads, and for the library's own: a thread of ours must be no trouble to
 * the process that we are loaded into. Header only, as helpers.h; nothing here is part of the ABI.
 *
 *   opipe_thread_create   a thread to which the system delivers none of the host's signals
 *   opipe_thread_enter    the first call on it: its name, its floating-point environment
 *   opipe_fp_defaults     the floating-point environment that every program starts in
 *
 * Signals: asynchronous ones (SIGINT, SIGTERM, SIGCHLD, SIGUSR1, timers ...) are blocked, so that
 * the host's handlers run on the host's threads, and one that the host has blocked everywhere waits
 * for its sigwait or signalfd. Those that a thread raises by what it does (SIGSEGV, SIGBUS, SIGFPE,
 * SIGILL, SIGTRAP, SIGSYS, and SIGABRT by abort) stay deliverable, so that the host's handler runs:
 * the system ends a process at once that raises a blocked one.
 *
 * Needs POSIX, so build with -std=gnu11 or -D_GNU_SOURCE; without it nothing is declared.
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

/* The signals that a thread raises by what it does, and all others. */
static inline void opipe_signals_split(sigset_t *out_raised, sigset_t *out_others) {
  static const int raised[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  (void)sigemptyset(out_raised);
  (void)sigfillset(out_others);
  for (size_t i = 0; i < sizeof raised / sizeof raised[0]; ++i) {
    (void)sigaddset(out_raised, raised[i]);
    (void)sigdelset(out_others, raised[i]);
  }
}

/* Starts run(arg), which calls opipe_thread_enter first, with the host's signals blocked.
 * attributes may be NULL. Returns what pthread_create says: 0, or an errno value. */
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

/* Round to nearest, no flushing of small numbers to zero, no traps, no flags raised. A thread
 * begins with the environment of the one that made it, which may be any host's. */
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

/* `name`: what debuggers and `top -H` show, its first 15 characters. Whatever the host has blocked
 * of the signals that a thread raises itself is unblocked. */
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
