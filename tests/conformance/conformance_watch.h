/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin that crashes, or a call that never returns, ends a conformance program with a line that
 * says so and status 1, behind all that was found before.
 */
#ifndef CONFORMANCE_WATCH_H
#define CONFORMANCE_WATCH_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "conformance.h"

static atomic_uint watch_steps; /* moved by every report */

static void watch_step(void) {
  atomic_fetch_add(&watch_steps, 1);
}

/* How long nothing may be reported: OPIPE_CONFORMANCE_SECONDS, 3 to 3600, else 60. */
static uint32_t watch_seconds(void) {
  const char *text = getenv("OPIPE_CONFORMANCE_SECONDS");
  const unsigned long n = text == NULL ? 0 : strtoul(text, NULL, 10);
  return n >= 3 && n <= 3600 ? (uint32_t)n : 60;
}

/* The last line of a program that cannot go on. */
static _Noreturn void watch_end(const char *why, int number) {
  char text[512];
  const int n = conf_last_words(text, sizeof text, why, number);
  if (n > 0)
    (void)!write(STDOUT_FILENO, text, (size_t)n);
  _exit(1);
}

static void watch_crash(int number) {
  watch_end("the plugin crashed, with signal", number);
}

static void *watch_body(void *arg) {
  const uint32_t most = watch_seconds() * 10;
  const struct timespec pause = {.tv_nsec = 100000000};
  uint32_t seen = 0;
  (void)arg;
  for (uint32_t still = 0; still < most; ++still) {
    (void)nanosleep(&pause, NULL);
    if (atomic_load(&watch_steps) != seen)
      still = 0;
    seen = atomic_load(&watch_steps);
  }
  watch_end("a call does not return; seconds that it was given:", (int)(most / 10));
}

static void watch_start(void) {
  static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  pthread_t thread;
  for (size_t i = 0; OPIPE_BUILD_FLAGS == 0 && i < sizeof numbers / sizeof numbers[0]; ++i)
    (void)signal(numbers[i], watch_crash); /* sanitizers have more to say of one */
  if (pthread_create(&thread, NULL, watch_body, NULL) == 0)
    (void)pthread_detach(thread);
}

#endif /* CONFORMANCE_WATCH_H */
