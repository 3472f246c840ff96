/* SPDX-License-Identifier: Apache-2.0 */
/* The shim finds what a device leaves undefined, in every order of threads, and says what it is. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/plugins/backend-cuda/kernels/shim/faulty.h"
#include "tests/support/support.h"

/* Runs the kernel in a child; its words on stderr. Returns whether it ended by itself. */
static bool run_apart(uint32_t fault, uint64_t seed, char *out_text, size_t room) {
  int ends[2], status = 0;
  OPI_ASSERT_FATAL(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    (void)dup2(ends[1], STDERR_FILENO);
    faulty_run(fault, seed);
    _exit(0);
  }
  close(ends[1]);
  size_t n = 0;
  for (ssize_t got = 1; got > 0 && n + 1 < room; n += got > 0 ? (size_t)got : 0)
    got = read(ends[0], out_text + n, room - 1 - n);
  out_text[n] = '\0';
  close(ends[0]);
  OPI_ASSERT(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void test_faults_are_found(void) {
  static const char *const words[FAULTS] = {"",
                                            "barrier",
                                            "different barriers",
                                            "wait",
                                            "meet",
                                            "not in mask",
                                            "beyond static",
                                            "nobody waited for",
                                            "not wait for the launch in front",
                                            "after the wait",
                                            "not fenced"};
  for (uint32_t fault = 0; fault < FAULTS; ++fault) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      char text[1024];
      const bool ended = run_apart(fault, seed, text, sizeof text);
      if (ended != (fault == FAULT_NONE) || strstr(text, words[fault]) == NULL) {
        OPI_FAIL("fault %u, seed %llu: %s, '%s'", fault, (unsigned long long)seed,
                 ended ? "nothing was found" : "another one", text);
      }
      OPI_ASSERT(fault == FAULT_NONE || strstr(text, "kernel faulty") != NULL);
    }
  }
}

OPI_TEST_MAIN("cuda_shim", OPI_TEST(test_faults_are_found))
