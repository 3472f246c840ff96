/* SPDX-License-Identifier: Apache-2.0 */
/* The shim finds what a device leaves undefined, in every order of threads, and says what it is.
 * ctest: always */
#include <stdio.h>

#include "tests/plugins/backend-cuda/kernels/shim/faulty.h"
#include "tests/support/apart.h"

typedef struct launch {
  uint32_t fault;
  uint64_t seed;
} launch;

static void run_one(void *ctx) {
  const launch *of = ctx;
  faulty_run(of->fault, of->seed);
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
                                            "copied before the wait",
                                            "not fenced"};
  for (uint32_t fault = 0; fault < FAULTS; ++fault) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      char text[1024];
      launch of = {fault, seed};
      const bool ended = opi_test_apart(run_one, &of, text, sizeof text);
      if (ended != (fault == FAULT_NONE) || strstr(text, words[fault]) == NULL) {
        OPI_FAIL("fault %u, seed %llu: %s, '%s'", fault, (unsigned long long)seed,
                 ended ? "nothing was found" : "another one", text);
      }
      OPI_ASSERT(fault == FAULT_NONE || strstr(text, "kernel faulty") != NULL);
    }
  }
}

OPI_TEST_MAIN("cuda_shim", OPI_TEST(test_faults_are_found))
