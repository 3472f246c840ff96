/* SPDX-License-Identifier: Apache-2.0 */
/* A cover of both matrices on devices that do everything later; see async.h. ctest: timeout=240
 */
#include "tests/matrix/async.h"
#include "tests/matrix/copies.h"

enum { ONE_IN = 12, SANITIZED_ONE_IN = 15, ROWS = 8, MICROBATCHES = 4 };

static void test_inference(void) {
  const char *names[MX_FOLDERS];
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_count count;
  async_inference(opi_test_is_sanitized() ? SANITIZED_ONE_IN : ONE_IN, &count);
}

/* Every schedule's forward form, by copies of the pipeline. */
static void test_inference_by_copies(void) {
  const char *names[MX_FOLDERS];
  mx_count count;
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_copies(false, &ASYNC[1], 1, &count);
  OPI_ASSERT_INT(count.failed, 0);
}

/* Every schedule; places, rules and ranks in turn. */
static void test_training(void) {
  kit_tally tally = {.passed = 0};
  kit_bench b;
  const opipe_status status = kit_bench_open(&b, &kit_subjects[0], &kit_computes[0], ROWS);
  OPI_ASSERT_OK(status, &b.k.err);
  for (size_t s = 0; s < kit_n_schedules && status == OPIPE_OK; ++s) {
    const uint32_t n_ranks = (kit_schedules[s].traits & KIT_FOUR) != 0 || s % 3 == 0 ? 4 : 2;
    if (!opi_test_covers(s, opi_test_is_sanitized() ? 3 : 2))
      continue;
    b.place = ASYNC[s % ASYNC_PLACES];
    kit_case_run(&b, &kit_schedules[s], n_ranks, MICROBATCHES, s / 2 % 2, &tally);
  }
  kit_bench_close(&b);
  kit_tally_print(kit_subjects[0].name, &tally);
  OPI_ASSERT(tally.failed == 0 && tally.passed > 0);
}

/* Replicas add up their gradients in the devices' memory, half of them with modelled times. */
static void test_replicas(void) {
  static const char *const schedules[] = {"1f1b", "chimera:sync=eager", "2bw"};
  for (size_t i = 0; i < 2 * OPI_COUNT(schedules); ++i) {
    kit k;
    kit_outcome a, b;
    const kit_place *place = &ASYNC[i % ASYNC_PLACES];
    kit_case c = kit_case_of(schedules[i / 2], 4, MICROBATCHES * (1 + (uint32_t)i % 2), i % 2 == 0);
    c.spec.replicas = 1 + (uint32_t)i % 2;
    c.device = place->device;
    c.device_index = place->device_index;
    c.device_options = i / 2 == 0 ? "async=1,time_us=50" : place->device_options;
    c.transport = place->transport;
    OPI_ASSERT_OK_FATAL(kit_open(&k, kit_subject_path(&kit_subjects[0]), ROWS, 8), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, 32, 0, &a), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, 32, OPIPE_SESSION_REFERENCE, &b), &k.err);
    kit_compare(schedules[i / 2], &a, &b, 0);
    kit_close(&k);
  }
}

OPI_TEST_MAIN("matrix on asynchronous devices, cover", OPI_TEST(test_inference),
              OPI_TEST(test_inference_by_copies), OPI_TEST(test_training), OPI_TEST(test_replicas))
