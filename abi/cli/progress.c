/* SPDX-License-Identifier: Apache-2.0 */
/* One line of progress on the terminal, replaced by the next; and the signals that end a run
 * between two steps or requests. */
#include "progress.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define SHOWN_EVERY 0.1 /* s */

double cli_now(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- the line ---- */

static atomic_bool is_shown;

void cli_progress_end(void) {
  if (!atomic_exchange(&is_shown, false))
    return;
  (void)fputs("\r\033[K", stderr);
  (void)fflush(stderr);
}

void cli_progress(const char *fmt, ...) {
  va_list args;
  if (!cli_is_terminal())
    return;
  (void)fputs("\r\033[K", stderr);
  va_start(args, fmt);
  (void)vfprintf(stderr, fmt, args);
  va_end(args);
  (void)fflush(stderr);
  atomic_store(&is_shown, true);
}

bool cli_progress_due(double *io_last) {
  const double now = cli_is_terminal() ? cli_now() : 0;
  if (now < *io_last + SHOWN_EVERY)
    return false;
  *io_last = now;
  return true;
}

const char *cli_time_left(double seconds, char out[CLI_TIME_ROOM]) {
  const double most = 1e9;
  const uint64_t s = seconds > most ? (uint64_t)most : seconds > 0 ? (uint64_t)(seconds + 0.5) : 0;
  const uint32_t minutes = (uint32_t)(s / 60 % 60), rest = (uint32_t)(s % 60);
  if (s >= 3600) {
    (void)snprintf(out, CLI_TIME_ROOM, "%llu:%02u:%02u h", (unsigned long long)(s / 3600), minutes,
                   rest);
  } else {
    (void)snprintf(out, CLI_TIME_ROOM, "%u:%02u min", minutes, rest);
  }
  return out;
}

/* ---- signals ---- */

/* The SIGINT or SIGTERM received; 0: none. */
static volatile sig_atomic_t asked_to_stop;

/* A second signal ends the process at once. */
static void on_signal(int number) {
  asked_to_stop = number;
  (void)signal(SIGINT, SIG_DFL);
  (void)signal(SIGTERM, SIG_DFL);
}

static const int stop_signals[CLI_STOP_SIGNALS] = {SIGINT, SIGTERM};

void cli_listen(struct sigaction before[CLI_STOP_SIGNALS]) {
  struct sigaction own;
  memset(&own, 0, sizeof(own));
  asked_to_stop = 0;
  own.sa_handler = on_signal;
  own.sa_flags = SA_RESTART;
  for (int i = 0; i < CLI_STOP_SIGNALS; ++i)
    (void)sigaddset(&own.sa_mask, stop_signals[i]);
  for (int i = 0; i < CLI_STOP_SIGNALS; ++i) {
    (void)sigaction(stop_signals[i], NULL, &before[i]);
    if (before[i].sa_handler != SIG_IGN)
      (void)sigaction(stop_signals[i], &own, NULL);
  }
}

void cli_stop_listening(const struct sigaction before[CLI_STOP_SIGNALS]) {
  for (int i = 0; i < CLI_STOP_SIGNALS; ++i)
    (void)sigaction(stop_signals[i], &before[i], NULL);
}

int cli_asked_to_stop(void) {
  return asked_to_stop;
}

static volatile sig_atomic_t asked_to_save; /* 1: SIGUSR1 was received */

static void on_save_signal(int number) {
  (void)number;
  asked_to_save = 1;
}

void cli_listen_to_save(struct sigaction *before) {
  struct sigaction own;
  memset(&own, 0, sizeof(own));
  asked_to_save = 0;
  own.sa_handler = on_save_signal;
  own.sa_flags = SA_RESTART;
  (void)sigaction(SIGUSR1, NULL, before);
  if (before->sa_handler != SIG_IGN)
    (void)sigaction(SIGUSR1, &own, NULL);
}

void cli_stop_listening_to_save(const struct sigaction *before) {
  (void)sigaction(SIGUSR1, before, NULL);
}

bool cli_asked_to_save(void) {
  const bool asked = asked_to_save != 0;
  if (asked)
    asked_to_save = 0;
  return asked;
}

const char *cli_signal_name(int number) {
  return number == SIGINT ? "SIGINT" : "SIGTERM";
}
