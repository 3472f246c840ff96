/* SPDX-License-Identifier: Apache-2.0 */
/* Measured costs: the backward halves of a stage are timed by running them, not told from the
 * forward. On a device of modelled time, whose runs take what its options say for their pass. */
#include <stdio.h>

#include "tests/runtime/train/kit.h"

typedef struct sums {
  double forward, input, weight; /* ms of all stages */
} sums;

static sums measure(kit *k, const char *device_options) {
  const kit_case c = {
      .schedule = "gpipe",
      .n_ranks = 2,
      .n_microbatches = 2,
      .device = "emulated",
      .device_options = device_options,
      .cost = OPIPE_COST_MEASURED,
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .optimizer = {.kind = OPI_OPT_SGD, .lr = 0.05}}};
  sums s = {0};
  OPI_ASSERT_OK_FATAL(kit_plan(k, &c), &k->err);
  for (uint32_t i = 0; i < k->plan->n_stages; ++i) {
    s.forward += k->plan->stage_ns[i] / 1e6;
    s.input += k->plan->input_ns[i] / 1e6;
    s.weight += k->plan->weight_ns[i] / 1e6;
  }
  return s;
}

/* Sleeps of a busy machine end late: a factor, not a figure. */
static void expect_times(const char *what, double found, double before, double factor) {
  const double times = found / before;
  if (!(times > factor / 2 && times < factor * 2))
    OPI_FAIL("%s: %.2f ms after %.2f, wanted %g times as much", what, found, before, factor);
  else
    OPI_ASSERT(true);
}

static void test_halves_are_measured(void) {
  kit k;
  OPI_ASSERT_OK_FATAL(
      kit_open(&k, opi_test_source("tests/data/odd/dropout_tokens/model.onnx"), 8, 8), &k.err);
  k.dropout = OPI_DROPOUT_GRAPH; /* its nodes read the scalars of a run */
  const sums plain = measure(&k, "forward_us=2000,backward_input_us=2000,backward_weight_us=2000");
  const sums other = measure(&k, "forward_us=2000,backward_input_us=9000,backward_weight_us=9000");
  OPI_ASSERT(plain.forward > 10 && plain.input > 10 && plain.weight > 4);
  expect_times("forward", other.forward, plain.forward, 1);
  expect_times("input half", other.input, plain.input, 4.5);
  expect_times("weight half", other.weight, plain.weight, 4.5);
  kit_close(&k);
}

OPI_TEST_MAIN("measured costs", OPI_TEST(test_halves_are_measured))
