/* SPDX-License-Identifier: Apache-2.0 */
/* Training through the host's table: steps, evaluation, parameters by name, checkpoints, and calls
 * that do not fit.
 * ctest: timeout=120 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

enum { BATCH = 4, SEQ = 8, STEPS = 4 };

static const char *const GPT = "tests/data/gpt_8block/model.onnx";

static opipe_train_options options_of(uint32_t optimizer) {
  return (opipe_train_options){.struct_size = sizeof(opipe_train_options),
                               .loss = OPIPE_LOSS_CROSS_ENTROPY,
                               .output = "logits",
                               .labels = "labels",
                               .ignore = -100,
                               .shift = 1,
                               .optimizer = optimizer,
                               .lr = 0.01,
                               .momentum = optimizer == OPIPE_OPTIMIZER_SGD ? 0.9 : 0,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .epsilon = 1e-8};
}

static opipe_status open_under(host_kit *k, const opipe_train_options *train, uint32_t stages,
                               uint32_t flags, const char *schedule) {
  const opipe_plan_params plan = {.struct_size = sizeof plan,
                                  .n_stages = stages,
                                  .n_microbatches = 2,
                                  .schedule = schedule,
                                  .train = train};
  const opipe_session_params session = {
      .struct_size = sizeof session, .flags = flags, .spin_us = UINT32_MAX};
  const opipe_status status = kit_plan_training(k, GPT, BATCH, SEQ, &plan);
  return status == OPIPE_OK ? kit_open(k, &session) : status;
}

static opipe_status open_training(host_kit *k, const opipe_train_options *train, uint32_t stages,
                                  uint32_t flags) {
  return open_under(k, train, stages, flags, "1f1b");
}

static int64_t ids[BATCH * SEQ];
static const int64_t ids_shape[2] = {BATCH, SEQ};

static opipe_submit_params batch_of(opipe_binding_io inputs[2]) {
  for (uint32_t i = 0; i < BATCH * SEQ; ++i)
    ids[i] = (i * 37 + 11) % 344;
  inputs[0] = kit_ids(ids, ids_shape);
  inputs[1] = kit_ids(ids, ids_shape);
  inputs[1].name = "labels";
  return (opipe_submit_params){.struct_size = sizeof(opipe_submit_params),
                               .n_inputs = 2,
                               .io_stride = sizeof(opipe_binding_io),
                               .inputs = inputs};
}

/* lr < 0: the plan's. */
static opipe_train_report step_by(host_kit *k, double lr) {
  opipe_binding_io inputs[2];
  opipe_request *ticket = NULL;
  opipe_train_report report = {.struct_size = sizeof report};
  opipe_submit_params params = batch_of(inputs);
  params.flags = lr >= 0 ? OPIPE_SUBMIT_LR : 0;
  params.lr = lr >= 0 ? lr : 0;
  OPI_ASSERT_OK_FATAL(k->api->session_train_step(k->session, &params, &ticket, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->request_wait(ticket, UINT64_MAX, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->request_report(ticket, &report, &k->err), &k->err);
  opipe_tensor loss;
  OPI_ASSERT_OK(k->api->request_output(ticket, 0, &loss, &k->err), &k->err);
  OPI_ASSERT((double)*(const float *)loss.data == (double)(float)report.loss);
  k->api->request_release(ticket);
  return report;
}

static opipe_train_report step(host_kit *k) {
  return step_by(k, -1);
}

static void test_steps_and_evaluation(void) {
  host_kit k;
  opipe_binding_io inputs[2];
  opipe_request *request = NULL;
  opipe_tensor out;
  opipe_train_report before, after = {.struct_size = sizeof after};
  const opipe_train_options train = options_of(OPIPE_OPTIMIZER_ADAMW);
  OPI_ASSERT_OK_FATAL(open_training(&k, &train, 2, 0), &k.err);
  before = step(&k);
  for (uint32_t i = 1; i < STEPS; ++i)
    after = step(&k);
  OPI_ASSERT_INT(after.step, STEPS);
  OPI_ASSERT(after.loss < before.loss && after.gradient_norm > 0);
  OPI_ASSERT(before.count == BATCH * (SEQ - 1));
  const opipe_submit_params params = batch_of(inputs);
  after.struct_size = sizeof after;
  OPI_ASSERT_OK_FATAL(k.api->session_evaluate(k.session, &params, &request, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_report(request, &after, &k.err), &k.err);
  OPI_ASSERT(after.loss < before.loss);
  OPI_ASSERT_OK_FATAL(k.api->request_output(request, 1, &out, &k.err), &k.err);
  OPI_ASSERT(out.rank == 3 && out.shape[0] == BATCH && out.shape[1] == SEQ && out.shape[2] == 344);
  k.api->request_release(request);
  kit_close(&k);
}

static void test_a_step_has_the_loss_alone(void) {
  host_kit k;
  opipe_binding_io inputs[2];
  opipe_request *ticket = NULL;
  opipe_tensor out;
  const opipe_train_options train = options_of(OPIPE_OPTIMIZER_SGD);
  const opipe_submit_params params = batch_of(inputs);
  OPI_ASSERT_OK_FATAL(open_training(&k, &train, 2, 0), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->session_train_step(k.session, &params, &ticket, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->request_wait(ticket, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_output(ticket, 0, &out, &k.err), &k.err);
  OPI_ASSERT_ERROR(k.api->request_output(ticket, 1, &out, &k.err), OPIPE_E_NOTFOUND, &k.err,
                   "a training step has no output 1");
  k.api->request_release(ticket);
  kit_close(&k);
}

/* Every parameter's state, one after the other. */
static float *collect(host_kit *k, uint32_t state, size_t *out_n) {
  float *all = NULL;
  opipe_parameter_info info = {.struct_size = sizeof info};
  *out_n = 0;
  for (uint32_t i = 0; k->api->session_parameter(k->session, i, &info, NULL) == OPIPE_OK; ++i) {
    if (info.trained == 0)
      continue;
    all = realloc(all, *out_n * sizeof *all + info.n_bytes);
    OPI_ASSERT_FATAL(all != NULL);
    OPI_ASSERT_OK(
        k->api->session_get(k->session, info.name, state, 0, all + *out_n, info.n_bytes, &k->err),
        &k->err);
    *out_n += info.n_bytes / sizeof *all;
  }
  return all;
}

static void expect_same(host_kit *a, host_kit *b, uint32_t state) {
  size_t n = 0, m = 0;
  float *x = collect(a, state, &n), *y = collect(b, state, &m);
  OPI_ASSERT(n > 1000 && n == m && memcmp(x, y, n * sizeof *x) == 0);
  free(x);
  free(y);
}

static void test_a_checkpoint_continues_under_other_stages(void) {
  host_kit a, b;
  const uint64_t position[OPIPE_POSITION] = {7, 8, 9, 10};
  uint64_t found[OPIPE_POSITION] = {0};
  const opipe_train_options train = options_of(OPIPE_OPTIMIZER_ADAMW);
  const char *folder = opi_test_tmp("checkpoint");
  OPI_ASSERT_OK_FATAL(open_training(&a, &train, 2, 0), &a.err);
  OPI_ASSERT_OK_FATAL(open_training(&b, &train, 4, 0), &b.err);
  (void)step(&a);
  (void)step(&a);
  OPI_ASSERT_OK(a.api->session_save(a.session, folder, position, &a.err), &a.err);
  OPI_ASSERT_OK(b.api->session_load(b.session, folder, found, &b.err), &b.err);
  OPI_ASSERT(memcmp(position, found, sizeof found) == 0);
  for (uint32_t state = OPIPE_STATE_FIRST_MOMENT; state <= OPIPE_STATE_MASTER; ++state)
    expect_same(&a, &b, state);
  const opipe_train_report x = step(&a), y = step(&b);
  OPI_ASSERT(x.loss == y.loss && x.step == y.step && x.step == 3);
  expect_same(&a, &b, OPIPE_STATE_WEIGHT);
  kit_close(&a);
  kit_close(&b);
}

static void test_parameters_by_name(void) {
  host_kit k;
  opipe_parameter_info info = {.struct_size = sizeof info};
  const opipe_train_options train = options_of(OPIPE_OPTIMIZER_SGD);
  OPI_ASSERT_OK_FATAL(open_training(&k, &train, 2, OPIPE_SESSION_KEEP_GRADIENTS), &k.err);
  const opipe_train_report report = step(&k);
  double square = 0;
  size_t n = 0;
  float *gradients = collect(&k, OPIPE_STATE_GRADIENT, &n);
  for (size_t i = 0; i < n; ++i)
    square += (double)gradients[i] * (double)gradients[i];
  OPI_ASSERT(fabs(sqrt(square) - report.gradient_norm) <= 1e-6 * report.gradient_norm);
  free(gradients);
  uint32_t i = 0;
  while (k.api->session_parameter(k.session, i, &info, &k.err) == OPIPE_OK && info.trained == 0)
    ++i;
  float *values = calloc(1, info.n_bytes), *back = calloc(1, info.n_bytes);
  for (uint64_t e = 0; e < info.n_bytes / sizeof *values; ++e)
    values[e] = (float)e * 0.001f;
  OPI_ASSERT_OK(
      k.api->session_set(k.session, info.name, OPIPE_STATE_WEIGHT, 0, values, info.n_bytes, &k.err),
      &k.err);
  OPI_ASSERT_OK(
      k.api->session_get(k.session, info.name, OPIPE_STATE_WEIGHT, 0, back, info.n_bytes, &k.err),
      &k.err);
  OPI_ASSERT(memcmp(values, back, info.n_bytes) == 0);
  OPI_ASSERT_ERROR(k.api->session_get(k.session, "nobody", OPIPE_STATE_WEIGHT, 0, back, 4, &k.err),
                   OPIPE_E_NOTFOUND, &k.err, "'nobody'");
  OPI_ASSERT_ERROR(
      k.api->session_get(k.session, info.name, OPIPE_STATE_WEIGHT, 1, back, info.n_bytes, &k.err),
      OPIPE_E_INVALID, &k.err, "version 1, there are 1");
  free(values);
  free(back);
  kit_close(&k);
}

static void test_calls_that_do_not_fit(void) {
  host_kit k, t;
  opipe_binding_io inputs[2];
  opipe_request *request = NULL;
  opipe_train_options train = options_of(OPIPE_OPTIMIZER_ADAMW);
  const opipe_submit_params params = batch_of(inputs);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, BATCH, SEQ, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_ERROR(k.api->session_train_step(k.session, &params, &request, &k.err), OPIPE_E_STATE,
                   &k.err, "inference");
  OPI_ASSERT_ERROR(k.api->session_save(k.session, opi_test_tmp("x"), NULL, &k.err), OPIPE_E_STATE,
                   &k.err, "inference");
  const opipe_plan_params plan = {.struct_size = sizeof plan, .train = &train};
  opipe_plan *none = NULL;
  OPI_ASSERT_ERROR(k.api->plan_make(k.bound, &plan, &none, &k.err), OPIPE_E_STATE, &k.err,
                   "OPIPE_BIND_TRAIN");
  kit_close(&k);
  train.optimizer = 9;
  OPI_ASSERT_ERROR(open_training(&t, &train, 2, 0), OPIPE_E_INVALID, &t.err,
                   "train.optimizer is 9");
  kit_close(&t);
  train = options_of(OPIPE_OPTIMIZER_SGD);
  train.momentum = -1;
  OPI_ASSERT_ERROR(open_training(&t, &train, 2, 0), OPIPE_E_INVALID, &t.err, "momentum is -1");
  OPI_ASSERT(t.plan == NULL); /* before anything is made for it */
  kit_close(&t);
  train = options_of(OPIPE_OPTIMIZER_SGD);
  train.output = "nothing";
  OPI_ASSERT_ERROR(open_training(&t, &train, 2, 0), OPIPE_E_INVALID, &t.err, "nothing");
  kit_close(&t);
}

/* A host that knows nothing of double-buffered weights waits for each step: nothing stands still,
 * and the loss falls. */
static void test_waiting_for_the_newest_step_flushes(void) {
  host_kit k;
  const opipe_train_options train = options_of(OPIPE_OPTIMIZER_SGD);
  OPI_ASSERT_OK_FATAL(open_under(&k, &train, 2, 0, "2bw"), &k.err);
  const double first = step(&k).loss;
  double last = first;
  for (uint32_t i = 1; i < STEPS + 2; ++i)
    last = step(&k).loss;
  OPI_ASSERT(last < first);
  kit_close(&k);
}

/* ---- learning rates ---- */

/* A host's own schedule does what the plan's does, whatever the plan says; steps without one go on
 * with the plan's. */
static void test_the_host_says_the_learning_rate(void) {
  static const struct {
    const char *schedule;
    uint32_t flags, optimizer;
  } cases[] = {{"1f1b", 0, OPIPE_OPTIMIZER_ADAMW},
               {"2bw", 0, OPIPE_OPTIMIZER_SGD},
               {"1f1b", OPIPE_SESSION_REFERENCE, OPIPE_OPTIMIZER_SGD}};
  for (uint32_t c = 0; c < 3; ++c) {
    host_kit by_plan, by_host;
    opipe_train_options train = options_of(cases[c].optimizer);
    train.lr_schedule = OPIPE_LR_LINEAR;
    train.warmup_steps = 2;
    train.total_steps = 6;
    OPI_ASSERT_OK_FATAL(open_under(&by_plan, &train, 2, cases[c].flags, cases[c].schedule),
                        &by_plan.err);
    double rates[STEPS + 1];
    for (uint32_t i = 0; i < STEPS + 1; ++i)
      rates[i] = step(&by_plan).lr;
    OPI_ASSERT(rates[0] == 0.005 && rates[3] < rates[2]);
    train.lr = 0.5;
    train.lr_schedule = OPIPE_LR_CONSTANT;
    train.warmup_steps = 0;
    OPI_ASSERT_OK_FATAL(open_under(&by_host, &train, 2, cases[c].flags, cases[c].schedule),
                        &by_host.err);
    for (uint32_t i = 0; i < STEPS + 1; ++i)
      OPI_ASSERT(step_by(&by_host, rates[i]).lr == rates[i]);
    OPI_ASSERT_OK(by_plan.api->session_flush(by_plan.session, &by_plan.err), &by_plan.err);
    OPI_ASSERT_OK(by_host.api->session_flush(by_host.session, &by_host.err), &by_host.err);
    expect_same(&by_plan, &by_host, OPIPE_STATE_WEIGHT);
    expect_same(&by_plan, &by_host, OPIPE_STATE_FIRST_MOMENT);
    const double stands = step_by(&by_host, 0).lr;
    OPI_ASSERT(stands == 0 && step(&by_host).lr == 0.5);
    kit_close(&by_plan);
    kit_close(&by_host);
  }
}

static void expect_refused(host_kit *k, uint32_t flags, double lr, const char *why) {
  opipe_binding_io inputs[2];
  opipe_request *ticket = NULL;
  opipe_submit_params params = batch_of(inputs);
  params.flags = flags;
  params.lr = lr;
  OPI_ASSERT_ERROR(k->api->session_train_step(k->session, &params, &ticket, &k->err),
                   OPIPE_E_INVALID, &k->err, why);
}

static void test_wrong_learning_rates_are_refused(void) {
  host_kit k, runs;
  opipe_binding_io inputs[2];
  opipe_request *request = NULL;
  const opipe_train_options train = options_of(OPIPE_OPTIMIZER_SGD);
  OPI_ASSERT_OK_FATAL(open_training(&k, &train, 2, 0), &k.err);
  expect_refused(&k, OPIPE_SUBMIT_LR, -0.1, "session_train_step: lr -0.1, 0 to 1e+30");
  expect_refused(&k, OPIPE_SUBMIT_LR, 2e30, "session_train_step: lr 2e+30, 0 to 1e+30");
  expect_refused(&k, OPIPE_SUBMIT_LR, NAN, "session_train_step: lr nan, 0 to 1e+30");
  expect_refused(&k, 0, 0.1, "session_train_step: lr 0.1 without OPIPE_SUBMIT_LR");
  opipe_submit_params params = batch_of(inputs);
  params.flags = OPIPE_SUBMIT_LR;
  params.struct_size = (uint32_t)OPIPE_END(opipe_submit_params, reserved2);
  OPI_ASSERT_ERROR(
      k.api->session_train_step(k.session, &params, &request, &k.err), OPIPE_E_INVALID, &k.err,
      "session_train_step: flags 0x2 ask for lr, which lies beyond the struct's 96 bytes");
  params.struct_size = sizeof params;
  params.lr = 0.1;
  OPI_ASSERT_ERROR(
      k.api->session_evaluate(k.session, &params, &request, &k.err), OPIPE_E_INVALID, &k.err,
      "session_evaluate: flags 0x2, lr 0.1: only session_train_step has a learning rate");
  OPI_ASSERT(step(&k).step == 1);
  kit_close(&k);
  OPI_ASSERT_OK_FATAL(kit_plan(&runs, NULL, GPT, BATCH, SEQ, NULL), &runs.err);
  OPI_ASSERT_OK_FATAL(kit_open(&runs, NULL), &runs.err);
  params.n_inputs = 1;
  OPI_ASSERT_ERROR(
      runs.api->session_submit(runs.session, &params, &request, &runs.err), OPIPE_E_INVALID,
      &runs.err, "session_submit: flags 0x2, lr 0.1: only session_train_step has a learning rate");
  kit_close(&runs);
}

/* Nowhere else are gradients multiplied by it. */
static void test_a_loss_scale_is_for_fp16(void) {
  static const struct {
    uint32_t compute;
    const char *says;
  } others[] = {{0, "loss_scaling is 1 and compute is fp32"},
                {OPIPE_FLOAT, "loss_scaling is 1 and compute is fp32"},
                {OPIPE_BFLOAT16, "loss_scaling is 1 and compute is bf16"}};
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    host_kit k;
    opipe_train_options train = options_of(OPIPE_OPTIMIZER_SGD);
    train.loss_scaling = 1;
    train.compute = others[i].compute;
    OPI_ASSERT_ERROR(open_training(&k, &train, 2, 0), OPIPE_E_INVALID, &k.err, others[i].says);
    OPI_ASSERT(k.plan == NULL);
    kit_close(&k);
  }
}

static double scale_of(host_kit *k) {
  opipe_train_clock clock = {.struct_size = sizeof clock};
  OPI_ASSERT_OK(k->api->session_clock(k->session, &clock, &k->err), &k->err);
  return clock.loss_scale;
}

/* fp16 with a loss scale, fp32, and fp16 again: each has its own, and gradients of one size. */
static void test_a_checkpoint_goes_from_one_compute_type_to_another(void) {
  host_kit half, full, again;
  opipe_train_options train = options_of(OPIPE_OPTIMIZER_SGD);
  const opipe_train_clock clock = {
      .struct_size = sizeof clock, .steps = 1, .updates = 1, .good_steps = 1, .loss_scale = 1024};
  OPI_ASSERT_OK_FATAL(open_training(&full, &train, 2, 0), &full.err);
  train.compute = OPIPE_FLOAT16;
  train.loss_scaling = 1;
  OPI_ASSERT_OK_FATAL(open_training(&half, &train, 2, 0), &half.err);
  OPI_ASSERT_OK_FATAL(open_training(&again, &train, 2, 0), &again.err);
  (void)step(&half);
  OPI_ASSERT_OK(half.api->session_save(half.session, opi_test_tmp("half"), NULL, &half.err),
                &half.err);
  OPI_ASSERT_OK(full.api->session_load(full.session, opi_test_tmp("half"), NULL, &full.err),
                &full.err);
  OPI_ASSERT(scale_of(&half) == 65536 && scale_of(&full) == 1);
  const opipe_train_report a = step(&half), b = step(&full);
  OPI_ASSERT(a.loss_scale == 65536 && b.loss_scale == 1 && b.step == 2);
  OPI_ASSERT(fabs(a.gradient_norm - b.gradient_norm) <= 0.02 * b.gradient_norm);
  OPI_ASSERT_OK(full.api->session_set_clock(full.session, &clock, &full.err), &full.err);
  OPI_ASSERT(scale_of(&full) == 1);
  OPI_ASSERT_OK(full.api->session_save(full.session, opi_test_tmp("full"), NULL, &full.err),
                &full.err);
  OPI_ASSERT_OK(again.api->session_load(again.session, opi_test_tmp("full"), NULL, &again.err),
                &again.err);
  OPI_ASSERT(scale_of(&again) == 65536);
  OPI_ASSERT_OK(again.api->session_set_clock(again.session, &clock, &again.err), &again.err);
  OPI_ASSERT(scale_of(&again) == 1024);
  kit_close(&half);
  kit_close(&full);
  kit_close(&again);
}

OPI_TEST_MAIN("train", OPI_TEST(test_waiting_for_the_newest_step_flushes),
              OPI_TEST(test_steps_and_evaluation), OPI_TEST(test_a_step_has_the_loss_alone),
              OPI_TEST(test_a_checkpoint_continues_under_other_stages),
              OPI_TEST(test_a_loss_scale_is_for_fp16),
              OPI_TEST(test_a_checkpoint_goes_from_one_compute_type_to_another),
              OPI_TEST(test_parameters_by_name), OPI_TEST(test_calls_that_do_not_fit),
              OPI_TEST(test_the_host_says_the_learning_rate),
              OPI_TEST(test_wrong_learning_rates_are_refused))
