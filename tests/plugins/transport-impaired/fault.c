/* SPDX-License-Identifier: Apache-2.0 */
/* Counts calls, and goes wrong at the one that the environment names. */
#include "fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { EATEN_BYTES = 1 << 20 };

static void hang(void) {
  for (;;)
    (void)pause();
}

static void eat(void) {
  for (;;) {
    char *volatile bytes = malloc(EATEN_BYTES);
    if (bytes != NULL)
      memset(bytes, 1, EATEN_BYTES);
  }
}

static bool is_spared(void) {
  static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
  const char *wanted = getenv("OPIPE_FAULT_PROCESS"), *own = NULL;
  for (uint32_t i = 0; i < sizeof names / sizeof names[0] && own == NULL; ++i)
    own = getenv(names[i]);
  return wanted != NULL && (own == NULL || strcmp(own, wanted) != 0);
}

opipe_status fault_pass(const char *where, _Atomic uint32_t *count, opipe_error *err) {
  const char *fault = getenv("OPIPE_FAULT");
  char how[16], at[16];
  unsigned n = 0;
  const unsigned number = atomic_fetch_add(count, 1) + 1;
  if (fault == NULL || sscanf(fault, "%15[^@]@%15[^:]:%u", how, at, &n) != 3 ||
      strcmp(at, where) != 0 || number != n || is_spared())
    return OPIPE_OK;
  if (strcmp(how, "kill") == 0)
    (void)raise(SIGKILL);
  else if (strcmp(how, "stop") == 0)
    (void)kill(getpid(), SIGSTOP);
  else if (strcmp(how, "exit0") == 0 || strcmp(how, "exit3") == 0)
    exit(how[4] - '0');
  else if (strcmp(how, "hang") == 0)
    hang();
  else if (strcmp(how, "eat") == 0)
    eat();
  return strcmp(how, "refuse") == 0
             ? opipe_fail(err, OPIPE_E_LIMIT, "the test refuses call %u of %s", n, where)
             : OPIPE_OK;
}
