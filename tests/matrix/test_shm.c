/* SPDX-License-Identifier: Apache-2.0 */
/* Training over transport-shm in one process, by every schedule: bits of the plan's reference.
 * ctest: timeout=240
 */
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/runtime/train/cases.h"

enum { SANITIZED_ONE_IN = 3, ROWS = 8, MICROBATCHES = 4 };

static void test_training(void) {
  kit_tally tally = {.passed = 0};
  kit_bench b;
  const opipe_status status = kit_bench_open(&b, &kit_subjects[0], &kit_computes[0], ROWS);
  OPI_ASSERT_OK(status, &b.k.err);
  for (size_t s = 0; s < kit_n_schedules && status == OPIPE_OK; ++s) {
    const uint32_t n_ranks = (kit_schedules[s].traits & KIT_FOUR) != 0 || s % 3 == 0 ? 4 : 2;
    if (opi_test_is_sanitized() && !opi_test_covers(s, SANITIZED_ONE_IN))
      continue;
    b.place.transport = "shm";
    kit_case_run(&b, &kit_schedules[s], n_ranks, MICROBATCHES, s / 2 % 2, &tally);
  }
  kit_bench_close(&b);
  kit_tally_print(kit_subjects[0].name, &tally);
  OPI_ASSERT(tally.failed == 0 && tally.passed > 0);
}

/* Messages and sums wait for events of devices that answer later; device 16 has no host memory. */
static void try_asynchronous_devices(const char *transport) {
  static const char *const schedules[] = {"1f1b", "chimera:sync=eager"};
  for (size_t i = 0; i < 2 * OPI_COUNT(schedules); ++i) {
    kit k;
    kit_outcome a, b;
    kit_case c = kit_case_of(schedules[i / 2], 4, MICROBATCHES, i % 2 == 0);
    c.spec.replicas = 1 + (uint32_t)i % 2;
    c.device = "emulated";
    c.device_options = "async=1,time_us=50";
    c.transport = transport;
    OPI_ASSERT_OK_FATAL(kit_open(&k, kit_subject_path(&kit_subjects[0]), ROWS, 8), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, 32, 0, &a), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, 32, OPIPE_SESSION_REFERENCE, &b), &k.err);
    kit_compare(schedules[i / 2], &a, &b, 0);
    kit_close(&k);
  }
}

static void test_asynchronous_devices(void) {
  try_asynchronous_devices("shm");
}

static void test_asynchronous_devices_over_ucx(void) {
  const pid_t pid = fork();
  int status = 0;
  if (pid == 0)
    _exit(dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL) == NULL);
  (void)waitpid(pid, &status, 0);
  if (status != 0)
    OPI_SKIP("UCX (libucp.so.0) is not there");
  try_asynchronous_devices("ucx:together=1");
}

OPI_TEST_MAIN("matrix over shared memory", OPI_TEST(test_training),
              OPI_TEST(test_asynchronous_devices), OPI_TEST(test_asynchronous_devices_over_ucx))
