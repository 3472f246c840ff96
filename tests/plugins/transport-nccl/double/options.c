/* SPDX-License-Identifier: Apache-2.0 */
/* Options, chance, faults, counts and ends of NCCL's double. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "double.h"

nccl_counts nccl_counted;
static char last_error[512];
static uint64_t random_state;

static const char *text_of(const char *name) {
  char whole[64];
  (void)snprintf(whole, sizeof whole, "OPIPE_NCCL_DOUBLE_%s", name);
  const char *text = getenv(whole);
  return text != NULL && *text != '\0' ? text : NULL;
}

uint64_t nccl_option(const char *name, uint64_t fallback) {
  const char *text = text_of(name);
  return text != NULL ? strtoull(text, NULL, 10) : fallback;
}

/* Each process draws other numbers. */
uint64_t nccl_draw(uint64_t n) {
  if (random_state == 0) {
    const uint64_t who = nccl_comms == NULL ? 0 : (uint64_t)nccl_comms->rank;
    random_state = (nccl_option("SEED", 1) * 64 + who) * UINT64_C(0x9e3779b97f4a7c15) + 1;
  }
  random_state ^= random_state << 13; /* xorshift64, Marsaglia 2003 */
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state % n;
}

uint64_t nccl_now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void nccl_nap(uint64_t us) {
  const struct timespec pause = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};
  (void)nanosleep(&pause, NULL);
}

void nccl_die(const char *form, ...) {
  char text[1024];
  va_list list;
  va_start(list, form);
  (void)vsnprintf(text, sizeof text, form, list);
  va_end(list);
  (void)fprintf(stderr, "nccl double: %s\n", text);
  abort();
}

int nccl_fail(int result, const char *form, ...) {
  va_list list;
  va_start(list, form);
  (void)vsnprintf(last_error, sizeof last_error, form, list);
  va_end(list);
  return result;
}

const char *nccl_words(void) {
  return last_error;
}

/* ---- faults ---- */

static int fault_of(const char *text, size_t n) {
  static const char *const names[] = {"", "silent", "die", "stop", "error"};
  for (int i = FAULT_SILENT; i <= FAULT_ERROR; ++i) {
    if (strlen(names[i]) == n && strncmp(names[i], text, n) == 0)
      return i;
  }
  nccl_die("OPIPE_NCCL_DOUBLE_FAULT: there is no fault '%s'", text);
}

int nccl_fault(const char *where) {
  const char *text = text_of("FAULT");
  if (text == NULL)
    return FAULT_NONE;
  const size_t n = strcspn(text, "@");
  const int fault = fault_of(text, n);
  if (text[n] != '@' || strcmp(text + n + 1, where) != 0)
    return FAULT_NONE;
  if (fault == FAULT_DIE || fault == FAULT_STOP)
    (void)raise(fault == FAULT_DIE ? SIGKILL : SIGSTOP);
  return fault;
}

int nccl_fault_at_launch(uint64_t number, uint64_t sum) {
  char where[32];
  (void)snprintf(where, sizeof where, "%llu", (unsigned long long)number);
  const int fault = nccl_fault(where);
  (void)snprintf(where, sizeof where, "sum:%llu", (unsigned long long)sum);
  return fault != FAULT_NONE || sum == 0 ? fault : nccl_fault(where);
}

/* ---- counts ---- */

void nccl_count_late(const char *what) {
  const char *late = text_of("LATE");
  if (!nccl_counted.settled)
    return;
  ++nccl_counted.late;
  if (late != NULL && strcmp(late, "die") == 0)
    nccl_die("%s is made lazily: after a launch for which all were there", what);
}

void nccl_report(void) {
  char line[400];
  const char *path = text_of("REPORT");
  if (path == NULL)
    return;
  const nccl_counts *c = &nccl_counted;
  const int n = snprintf(
      line, sizeof line,
      "{\"pid\": %d, \"communicators\": %llu, \"connections\": %llu, \"launches\": %llu, "
      "\"most_in_group\": %llu, \"messages\": %llu, \"late\": %llu, \"aborts\": %llu}\n",
      (int)getpid(), (unsigned long long)c->comms, (unsigned long long)c->connections,
      (unsigned long long)c->launches, (unsigned long long)c->most, (unsigned long long)c->messages,
      (unsigned long long)c->late, (unsigned long long)c->aborts);
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, line, (size_t)n) != n)
    nccl_die("the report %s cannot be written: %s", path, strerror(errno));
  (void)close(fd);
}
