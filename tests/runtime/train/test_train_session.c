/* SPDX-License-Identifier: Apache-2.0 */
/* Training sessions beyond the loss: evaluation, data parallel copies, tied parameters across
 * stages, shifted labels, bad data, wrong input. ctest: timeout=300 */
#include <math.h>
#include <stdio.h>

#include "tests/runtime/train/kit.h"

static kit_case make_case(const char *schedule, uint32_t n_ranks, uint32_t m) {
  return (kit_case){
      .schedule = schedule,
      .n_ranks = n_ranks,
      .n_microbatches = m,
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .optimizer = {.kind = OPIPE_OPTIMIZER_SGD, .lr = 0.05, .momentum = 0.9}}};
}

static const char *model_path(void) {
  return opi_test_source("tests/data/gpt_8block/model.onnx");
}

/* Loss and weights after two steps. */
static void run(kit *k, const kit_case *c, uint32_t flags, double *losses, float **weights,
                size_t *n) {
  opi_session *session = NULL;
  kit_batch batch;
  OPI_ASSERT_OK_FATAL(kit_session(k, flags, &session), &k->err);
  for (uint32_t s = 0; s < 2; ++s) {
    OPI_ASSERT_OK_FATAL(kit_batch_random(k, c, 32, 7 + s, &batch), &k->err);
    OPI_ASSERT_OK_FATAL(kit_step(k, session, &batch, &losses[s]), &k->err);
  }
  OPI_ASSERT_OK(kit_state(k, session, OPI_TENSOR_WEIGHT, weights, n), &k->err);
  opi_session_close(session);
}

static void compare_runs(kit *k, const kit_case *uncut, const kit_case *cut) {
  double a[2], b[2], r[2];
  float *wa = NULL, *wb = NULL, *wr = NULL;
  size_t n = 0;
  OPI_ASSERT_OK_FATAL(kit_plan(k, uncut), &k->err);
  run(k, uncut, 0, a, &wa, &n);
  OPI_ASSERT_OK_FATAL(kit_plan(k, cut), &k->err);
  run(k, cut, 0, b, &wb, &n);
  run(k, cut, OPIPE_SESSION_REFERENCE, r, &wr, &n);
  OPI_ASSERT(b[0] == r[0] && b[1] == r[1]);
  OPI_ASSERT_BITS(wb, wr, n, OPIPE_FLOAT);
  OPI_ASSERT(fabs(a[1] - b[1]) <= 1e-5 * fabs(a[1]));
  OPI_ASSERT_CLOSE(wb, wa, n, OPIPE_FLOAT, 1e-5);
}

static void test_data_parallel(void) {
  kit k;
  kit_case uncut = make_case("gpipe", 1, 4), cut = make_case("1f1b", 4, 4);
  cut.spec.replicas = 2;
  OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
  compare_runs(&k, &uncut, &cut);
  OPI_ASSERT_INT(k.plan->decided.n_stages, 2);
  OPI_ASSERT_INT(k.plan->decided.n_replicas, 2);
  cut.spec.replicas = 4; /* no pipeline at all; 3 micro-batches do not reach 4 copies */
  compare_runs(&k, &uncut, &cut);
  cut.n_microbatches = 3;
  OPI_ASSERT_ERROR(kit_plan(&k, &cut), OPIPE_E_INVALID, &k.err, "4 replicas");
  kit_close(&k);
}

/* GPT-2's embedding is its head: stage 0 and the last read it. */
static void test_ties_across_stages(void) {
  static const char *const schedules[] = {"1f1b", "zb-h1", "chimera", "zbv"};
  const char *folder = opi_test_shared("models/modern/gpt2/train/model.onnx");
  if (folder == NULL)
    return;
  for (size_t i = 0; i < OPI_COUNT(schedules); ++i) {
    kit k;
    const kit_case uncut = make_case("gpipe", 1, 4), cut = make_case(schedules[i], 2, 4);
    OPI_ASSERT_OK_FATAL(kit_open(&k, folder, 8, 6), &k.err);
    compare_runs(&k, &uncut, &cut);
    kit_close(&k);
  }
}

/* Evaluation has the loss of the step that follows it, changes nothing, and gives the logits. */
static void test_evaluate(void) {
  static const char *const schedules[] = {"gpipe", "1f1b", "chimera", "zbv", "2bw"};
  for (size_t i = 0; i < OPI_COUNT(schedules); ++i) {
    kit k;
    kit_batch batch;
    opi_session *session = NULL;
    double before = 0, loss = 0, twice = 0;
    float *logits = NULL, *again = NULL;
    size_t n = 0;
    const kit_case c = make_case(schedules[i], 2, 4);
    OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
    OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, 32, 3, &batch), &k.err);
    OPI_ASSERT_OK_FATAL(kit_evaluate(&k, session, &batch, &before, &logits, &n), &k.err);
    OPI_ASSERT_OK_FATAL(kit_evaluate(&k, session, &batch, &twice, &again, &n), &k.err);
    OPI_ASSERT(before == twice);
    OPI_ASSERT_BITS(again, logits, n, OPIPE_FLOAT);
    if (strcmp(schedules[i], "2bw") != 0) {
      OPI_ASSERT_OK_FATAL(kit_step(&k, session, &batch, &loss), &k.err);
      OPI_ASSERT(loss == before);
      OPI_ASSERT_OK_FATAL(kit_evaluate(&k, session, &batch, &twice, &again, &n), &k.err);
      OPI_ASSERT(twice < before);
    }
    opi_session_close(session);
    kit_close(&k);
  }
}

static void test_shifted_labels(void) {
  kit k;
  kit_batch batch, moved;
  opi_session *session = NULL;
  double shifted = 0, plain = 0;
  kit_case c = make_case("1f1b", 2, 4);
  OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, 32, 3, &batch), &k.err);
  moved = batch;
  for (uint32_t i = 0; i < moved.n_inputs; ++i)
    moved.inputs[i].tensor.shape = moved.shapes[i];
  const uint32_t last = batch.n_inputs - 1;
  const int64_t *labels = batch.inputs[last].tensor.data;
  int64_t *own = OPI_ARENA_ARRAY(&k.arena, int64_t, 64);
  for (uint32_t e = 0; e < 64; ++e)
    own[e] = e % 8 == 7 ? -100 : labels[e + 1];
  moved.inputs[last].tensor.data = own;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  OPI_ASSERT_OK(kit_step(&k, session, &moved, &plain), &k.err);
  opi_session_close(session);
  c.spec.loss.shift = 1;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  OPI_ASSERT_OK(kit_step(&k, session, &batch, &shifted), &k.err);
  OPI_ASSERT(shifted == plain);
  opi_session_close(session);
  kit_close(&k);
}

static void test_wrong_input_is_refused(void) {
  kit k;
  kit_batch batch;
  opi_session *session = NULL;
  double loss = 0;
  const kit_case c = make_case("1f1b", 2, 4);
  OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, 32, 3, &batch), &k.err);
  batch.shapes[0][0] = 4;
  OPI_ASSERT_ERROR(kit_step(&k, session, &batch, &loss), OPIPE_E_INVALID, &k.err, "");
  batch.shapes[0][0] = 8;
  --batch.n_inputs;
  OPI_ASSERT_ERROR(kit_step(&k, session, &batch, &loss), OPIPE_E_INVALID, &k.err, "labels");
  ++batch.n_inputs;
  OPI_ASSERT_OK(kit_step(&k, session, &batch, &loss), &k.err);
  opi_session_close(session);
  kit_close(&k);
}

/* A label that no class has ends the session on every rank; what comes after says so. */
static void test_bad_data_ends_the_session(void) {
  kit k;
  kit_batch batch;
  opi_session *session = NULL;
  double loss = 0;
  const kit_case c = make_case("1f1b", 4, 4);
  OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, 32, 3, &batch), &k.err);
  int64_t *labels = batch.inputs[batch.n_inputs - 1].tensor.data;
  labels[5] = 1000000;
  OPI_ASSERT_ERROR(kit_step(&k, session, &batch, &loss), OPIPE_E_INVALID, &k.err, "stage 3");
  labels[5] = 1;
  OPI_ASSERT_ERROR(kit_step(&k, session, &batch, &loss), OPIPE_E_STATE, &k.err, "failed");
  opi_session_close(session);
  kit_close(&k);
}

/* Weights of infinity: with the check on the node is named. */
static void test_not_finite(void) {
  kit k;
  kit_batch batch;
  opi_session *session = NULL;
  opi_weight_info info;
  double loss = 0;
  const kit_case c = make_case("zb-h1", 2, 4);
  OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_session(&k, OPIPE_SESSION_CHECK_FINITE, &session), &k.err);
  OPI_ASSERT_FATAL(opi_weights_info(opi_train_weights(session), 0, &info));
  float *weight = OPI_ARENA_ARRAY(&k.arena, float, info.source->n_bytes / 4);
  for (uint64_t e = 0; e < info.source->n_bytes / 4; ++e)
    weight[e] = INFINITY;
  OPI_ASSERT_OK_FATAL(opi_weights_set(opi_train_weights(session), info.source->name,
                                      OPI_TENSOR_WEIGHT, 0, weight, info.source->n_bytes, &k.err),
                      &k.err);
  OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, 32, 3, &batch), &k.err);
  const opi_weights_clock clock = {.n_steps = 41, .n_updates = 41, .loss_scale = 1};
  opi_weights_set_clock(opi_train_weights(session), &clock);
  opi_train_set_step(session, clock.n_steps);
  OPI_ASSERT_ERROR(kit_step(&k, session, &batch, &loss), OPIPE_E_INVALID, &k.err,
                   "forward, step 42, micro-batch");
  opi_session_close(session);
  kit_close(&k);
}

/* Values made again are the same values; fewer are kept. */
static void test_recomputation(void) {
  kit k;
  const kit_case uncut = make_case("gpipe", 1, 4);
  kit_case cut = make_case("1f1b", 2, 4);
  uint64_t stash[4] = {0};
  OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
  for (uint32_t mode = OPI_RECOMPUTE_NONE; mode <= OPI_RECOMPUTE_ATTENTION; ++mode) {
    cut.spec.recompute = mode;
    compare_runs(&k, &uncut, &cut);
    stash[mode] = k.plan->predicted.memory[0].stash_bytes;
  }
  OPI_ASSERT(stash[OPI_RECOMPUTE_STAGE] < stash[OPI_RECOMPUTE_BLOCK]);
  OPI_ASSERT(stash[OPI_RECOMPUTE_BLOCK] < stash[OPI_RECOMPUTE_NONE]);
  OPI_ASSERT(stash[OPI_RECOMPUTE_ATTENTION] <= stash[OPI_RECOMPUTE_NONE]);
  kit_close(&k);
}

OPI_TEST_MAIN("training sessions", OPI_TEST(test_data_parallel), OPI_TEST(test_ties_across_stages),
              OPI_TEST(test_evaluate), OPI_TEST(test_shifted_labels),
              OPI_TEST(test_wrong_input_is_refused), OPI_TEST(test_bad_data_ends_the_session),
              OPI_TEST(test_not_finite), OPI_TEST(test_recomputation))
