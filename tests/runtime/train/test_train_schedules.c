/* SPDX-License-Identifier: Apache-2.0 */
/* Every schedule on 2 and 4 ranks: losses and weights after some steps have the bits of the plan's
 * reference (no schedule, no transport), and are close to the uncut model's. ctest: timeout=600 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/runtime/train/kit.h"

enum { STEPS = 4, FLUSHED = 2, ROWS = 8, TOKENS = 8, VOCABULARY = 32 };

typedef struct outcome {
  double losses[STEPS];
  float *weights;
  size_t n;
} outcome;

static opipe_status train(kit *k, const kit_case *c, uint32_t flags, outcome *out) {
  opi_session *session = NULL;
  kit_batch batch;
  opi_request *tickets[STEPS] = {NULL};
  opipe_status status = kit_session(k, flags, &session);
  for (uint32_t s = 0; s < STEPS && status == OPIPE_OK; ++s) {
    status = kit_batch_random(k, c, VOCABULARY, 100 + s, &batch);
    const opipe_submit_params params = {
        .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
        .n_inputs = batch.n_inputs,
        .inputs = batch.inputs};
    if (status == OPIPE_OK) /* some steps in flight at once */
      status = opi_train_step(session, &params, &tickets[s], &k->err);
    if (s == FLUSHED && status == OPIPE_OK)
      status = opi_train_flush(session, UINT64_C(60000000000), &k->err);
  }
  if (status == OPIPE_OK)
    status = opi_train_flush(session, UINT64_C(60000000000), &k->err);
  for (uint32_t s = 0; s < STEPS && status == OPIPE_OK; ++s) {
    opi_train_result result = {.loss = 0};
    status = opi_train_report(tickets[s], &result, &k->err);
    out->losses[s] = result.loss;
  }
  for (uint32_t s = 0; s < STEPS; ++s)
    opi_request_release(tickets[s]);
  if (status == OPIPE_OK)
    status = kit_state(k, session, OPI_STATE_WEIGHT, &out->weights, &out->n);
  opi_session_close(session);
  return status;
}

static void compare(const char *what, const outcome *a, const outcome *b, double tolerance) {
  double far = 0, most = 0;
  bool same = a->n == b->n;
  for (uint32_t s = 0; s < STEPS; ++s) {
    if (tolerance == 0 ? a->losses[s] != b->losses[s]
                       : !(fabs(a->losses[s] - b->losses[s]) <= tolerance * fabs(b->losses[s])))
      OPI_FAIL("%s: loss %.9g at step %u, wanted %.9g", what, a->losses[s], s, b->losses[s]);
  }
  for (size_t i = 0; same && i < a->n; ++i) {
    const double d = fabs((double)a->weights[i] - (double)b->weights[i]);
    far = d > far || d != d ? d : far;
    most = fabs((double)b->weights[i]) > most ? fabs((double)b->weights[i]) : most;
  }
  if (!same || !(far <= tolerance * most))
    OPI_FAIL("%s: weights are %g apart (largest %g)", what, far, most);
}

static kit_case make_case(const char *schedule, uint32_t n_ranks, uint32_t m, bool adam) {
  const opi_optimizer sgd = {.kind = OPI_OPT_SGD, .lr = 0.05, .momentum = 0.9};
  const opi_optimizer adamw = {.kind = OPI_OPT_ADAMW,
                               .lr = 0.001,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .epsilon = 1e-4,
                               .decay = 0.01,
                               .clip_norm = 1.0};
  return (kit_case){
      .schedule = schedule,
      .n_ranks = n_ranks,
      .n_microbatches = m,
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .optimizer = adam ? adamw : sgd}};
}

static uint32_t dropout; /* OPI_DROPOUT_* of what check() plans */

static void check(const char *model, const char *const *schedules, size_t n, uint32_t m,
                  bool adam) {
  kit k;
  outcome uncut, whole, reference;
  kit_case c = make_case(strcmp(schedules[0], "2bw") == 0 ? "2bw" : "gpipe", 1, m, adam);
  OPI_ASSERT_OK_FATAL(kit_open(&k, model, ROWS, TOKENS), &k.err);
  k.dropout = dropout;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(train(&k, &c, 0, &uncut), &k.err);
  for (size_t i = 0; i < n; ++i) {
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
      char what[120];
      (void)snprintf(what, sizeof what, "%s, %u ranks, %u micro-batches", schedules[i], ranks, m);
      c = make_case(schedules[i], ranks, m, adam);
      if (kit_plan(&k, &c) < 0) {
        OPI_FAIL("%s: no plan: %s", what, k.err.message);
        continue;
      }
      if (train(&k, &c, 0, &whole) < 0 || train(&k, &c, OPIPE_SESSION_REFERENCE, &reference) < 0) {
        OPI_FAIL("%s: %s", what, k.err.message);
        continue;
      }
      compare(what, &whole, &reference, 0);
      compare(what, &whole, &uncut, adam ? 1e-3 : 1e-5);
    }
  }
  kit_close(&k);
}

static const char *const PLAIN[] = {"gpipe",   "1f1b",           "zb-h1",       "zb-h2",
                                    "zb-auto", "1f1b:policy=pb", "1f1b:eager=1"};
static const char *const MANY[] = {"interleaved", "looped-bfs", "zb-interleaved", "zbv",
                                   "v-half",      "v-min",      "dualpipev"};
static const char *const TWINS[] = {"chimera"};

static void test_plain_schedules(void) {
  check(opi_test_source("tests/data/gpt_8block/model.onnx"), PLAIN, OPI_COUNT(PLAIN), 8, false);
}
static void test_several_stages_per_rank(void) {
  check(opi_test_source("tests/data/gpt_8block/model.onnx"), MANY, OPI_COUNT(MANY), 8, false);
}
static void test_replicas(void) {
  check(opi_test_source("tests/data/gpt_8block/model.onnx"), TWINS, OPI_COUNT(TWINS), 4, false);
}
/* Its uncut model keeps two versions too. */
static const char *const BUFFERED[] = {"2bw"};
static void test_double_buffered(void) {
  check(opi_test_source("tests/data/gpt_8block/model.onnx"), BUFFERED, 1, 4, false);
  check(opi_test_source("tests/data/gpt_8block/model.onnx"), BUFFERED, 1, 8, true);
}
/* Slices of 2 tokens, of 3 + 5; rows in two classes. */
static const char *const SLICED[] = {"terapipe:slices=4", "seq1f1b:slices=4",
                                     "terapipe:lengths=3+5"};
static void test_token_slices(void) {
  check(opi_test_source("tests/data/gpt_8block/model.onnx"), SLICED, OPI_COUNT(SLICED), 4, false);
  check(opi_test_source("tests/data/gpt_8block/model.onnx"), SLICED, 2, 3, true);
}
static void test_adamw_and_clipping(void) {
  check(opi_test_source("tests/data/gpt_8block/model.onnx"), PLAIN, 3, 4, true);
}
/* 8 rows in 3 micro-batches: 3, 3, 2. */
static void test_uneven_rows(void) {
  check(opi_test_source("tests/data/gpt_8block/model.onnx"), PLAIN, OPI_COUNT(PLAIN), 3, false);
}

/* Masks are told by sample and token: however the mini-batch is cut, the same elements drop. */
static void test_dropout(void) {
  static const char *const cuts[] = {"1f1b", "terapipe:slices=4", "terapipe:lengths=3+5",
                                     "seq1f1b:slices=2"};
  const char *model = opi_test_source("tests/data/odd/dropout_tokens/model.onnx");
  const kit_case c = make_case("gpipe", 1, 1, false);
  outcome still, dropping;
  kit k;
  OPI_ASSERT_OK_FATAL(kit_open(&k, model, ROWS, TOKENS), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(train(&k, &c, 0, &still), &k.err);
  k.dropout = OPI_DROPOUT_GRAPH;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(train(&k, &c, 0, &dropping), &k.err);
  OPI_ASSERT(fabs(still.losses[0] - dropping.losses[0]) > 1e-3);
  kit_close(&k);
  dropout = OPI_DROPOUT_GRAPH;
  check(model, cuts, OPI_COUNT(cuts), 4, false);
  check(model, cuts, 2, 3, false);
  dropout = OPI_DROPOUT_OFF;
}

/* Models of today: rotary embeddings and grouped heads, no causality, an encoder beside a decoder.
 */
static void check_modern(const char *model, bool causal) {
  static const char *const some[] = {"1f1b", "zb-h1", "chimera", "interleaved"};
  char path[160];
  (void)snprintf(path, sizeof path, "models/modern/%s/train/model.onnx", model);
  const char *file = opi_test_shared(path);
  if (file == NULL)
    return;
  check(file, some, OPI_COUNT(some), 4, false);
  check(file, BUFFERED, 1, 4, false);
  if (causal) {
    check(file, SLICED, 2, 4, false);
    return;
  }
  kit k;
  const kit_case c = make_case("terapipe:slices=2", 2, 4, false);
  OPI_ASSERT_OK_FATAL(kit_open(&k, file, ROWS, TOKENS), &k.err);
  OPI_ASSERT_ERROR(kit_plan(&k, &c), OPIPE_E_UNSUPPORTED, &k.err, "slices tokens");
  kit_close(&k);
}

static void test_llama(void) {
  check_modern("llama", true);
}
static void test_gpt2(void) {
  check_modern("gpt2", true);
}
static void test_bert(void) {
  check_modern("bert", false);
}

OPI_TEST_MAIN("training schedules", OPI_TEST(test_plain_schedules),
              OPI_TEST(test_several_stages_per_rank), OPI_TEST(test_replicas),
              OPI_TEST(test_double_buffered), OPI_TEST(test_token_slices), OPI_TEST(test_dropout),
              OPI_TEST(test_adamw_and_clipping), OPI_TEST(test_uneven_rows), OPI_TEST(test_llama),
              OPI_TEST(test_gpt2), OPI_TEST(test_bert))
