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
               .optimizer = {.kind = OPIPE_OPTIMIZER_SGD, .lr = 0.05}}};
  sums s = {0};
  OPI_ASSERT_OK_FATAL(kit_plan(k, &c), &k->err);
  for (uint32_t i = 0; i < k->plan->decided.n_stages; ++i) {
    s.forward += k->plan->predicted.times.stage_ns[i] / 1e6;
    s.input += k->plan->predicted.times.input_ns[i] / 1e6;
    s.weight += k->plan->predicted.times.weight_ns[i] / 1e6;
  }
  return s;
}

static double less(double x, double y) {
  return x < y ? x : y;
}

static sums least(const sums *x, const sums *y) {
  return (sums){less(x->forward, y->forward), less(x->input, y->input), less(x->weight, y->weight)};
}

/* A factor, not a figure: sleeps end late. */
static bool is_about(double found, double before, double factor) {
  const double times = found / before;
  return times > factor / 2 && times < factor * 2;
}

/* On a busy machine all takes longer: the least of some tries counts. */
static void test_halves_are_measured(void) {
  static const char *const plain_us =
      "forward_us=2000,backward_input_us=2000,backward_weight_us=2000";
  static const char *const other_us =
      "forward_us=2000,backward_input_us=9000,backward_weight_us=9000";
  kit k;
  sums plain = {1e9, 1e9, 1e9}, other = {1e9, 1e9, 1e9};
  bool good = false;
  OPI_ASSERT_OK_FATAL(
      kit_open(&k, opi_test_source("tests/data/odd/dropout_tokens/model.onnx"), 8, 8), &k.err);
  k.dropout = OPI_DROPOUT_GRAPH; /* its nodes read the scalars of a run */
  for (uint32_t i = 0; i < 5 && !good; ++i) {
    const sums x = measure(&k, plain_us), y = measure(&k, other_us);
    plain = least(&plain, &x);
    other = least(&other, &y);
    good = is_about(other.forward, plain.forward, 1) && is_about(other.input, plain.input, 4.5) &&
           is_about(other.weight, plain.weight, 4.5);
  }
  OPI_ASSERT(plain.forward > 10 && plain.input > 10 && plain.weight > 4);
  if (!OPI_ASSERT(good)) {
    (void)printf("forward %.2f, %.2f ms; input half %.2f, %.2f; weight half %.2f, %.2f\n",
                 plain.forward, other.forward, plain.input, other.input, plain.weight,
                 other.weight);
  }
  kit_close(&k);
}

static bool near(double x, double y) {
  return x > y - 1e-6 * y && x < y + 1e-6 * y;
}

/* The plan follows the times of stages that the caller gives. */
static void test_given_times_are_the_plans(void) {
  kit k;
  static const double forward[] = {20, 10};
  const opi_costs costs = {.input = 6, .weight = 4, .stage_forward = forward, .n_stages = 2};
  kit_case c = {.schedule = "1f1b",
                .n_ranks = 2,
                .n_microbatches = 2,
                .device = "cpu",
                .stages = &costs,
                .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY,
                                  .output = "logits",
                                  .labels = "labels",
                                  .ignore = -100,
                                  .shift = true},
                         .optimizer = {.kind = OPIPE_OPTIMIZER_SGD, .lr = 0.05}}};
  OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source("tests/data/gpt_8block/model.onnx"), 8, 8),
                      &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  for (uint32_t s = 0; s < 2; ++s) {
    OPI_ASSERT(near(k.plan->predicted.times.stage_ns[s], 1e6 * forward[s]));
    OPI_ASSERT(near(k.plan->predicted.times.input_ns[s], 6e6) &&
               near(k.plan->predicted.times.weight_ns[s], 4e6));
  }
  OPI_ASSERT(near(k.plan->predicted.bound_ns, 25e6));
  OPI_ASSERT_INT(k.plan->predicted.cost_kind, OPI_COST_GIVEN);
  /* stage 0: F0 0-20, F1 20-40, B0 40-50, B1 60-70; stage 1: F0 20, B0 30, F1 40, B1 50-60 */
  const double step = k.plan->predicted.request_ns;
  OPI_ASSERT(step > 70e6 && step < 70.1e6);
  c.stages = NULL;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT(k.plan->predicted.request_ns < step / 10);
  OPI_ASSERT_INT(k.plan->predicted.cost_kind, OPI_COST_RATES);
  const opi_costs three = {.forward = 1, .n_stages = 3};
  c.stages = &three;
  OPI_ASSERT_ERROR(kit_plan(&k, &c), OPIPE_E_INVALID, &k.err,
                   "costs of 3 stages for a schedule of 2");
  kit_close(&k);
}

/* Two versions of the weights: mini-batch follows mini-batch without a bubble, unless ranks share a
 * weight (a tied table, of the first and the last stage), or clip by a norm of all. */
static void test_double_buffered_steps_are_not_flushed(void) {
  static const struct {
    const char *model;
    double clip;
    bool flushed;
  } rows[] = {{"tests/data/llama_8block/model.onnx", 0, false},
              {"tests/data/llama_8block/model.onnx", 1, true},
              {"tests/data/gpt_8block/model.onnx", 0, true}};
  const opi_costs costs = {.forward = 5, .input = 5, .weight = 5};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    kit k;
    kit_case c = kit_case_of("2bw", 4, 4, true);
    c.stages = &costs;
    c.spec.optimizer.clip_norm = rows[i].clip;
    OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source(rows[i].model), 8, 8), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT(near(k.plan->predicted.bound_ns * 4, 60e6));
    OPI_ASSERT(k.plan->predicted.request_ns > 100e6); /* alone: a pipeline is filled and drained */
    OPI_ASSERT(rows[i].flushed
                   ? k.plan->predicted.interval_ns > 85e6 && k.plan->predicted.interval_ns < 95e6
                   : k.plan->predicted.interval_ns >= 60e6 &&
                         k.plan->predicted.interval_ns < 60.1e6);
    kit_close(&k);
  }
}

OPI_TEST_MAIN("measured costs", OPI_TEST(test_halves_are_measured),
              OPI_TEST(test_given_times_are_the_plans),
              OPI_TEST(test_double_buffered_steps_are_not_flushed))
