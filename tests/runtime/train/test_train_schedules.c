/* SPDX-License-Identifier: Apache-2.0 */
/* Every schedule on 2 and 4 ranks: losses and weights after some steps have the bits of the plan's
 * reference (no schedule, no transport), and are close to the uncut model's. ctest: timeout=600 */
#include <math.h>
#include <stdio.h>

#include "tests/runtime/train/kit.h"

enum { ROWS = 8, TOKENS = 8, VOCABULARY = 32 };

static uint32_t dropout; /* OPI_DROPOUT_* of what check() plans */

static void check(const char *model, const char *const *schedules, size_t n, uint32_t m,
                  bool adam) {
  kit k;
  kit_outcome uncut, whole, reference;
  kit_case c = kit_case_of(strcmp(schedules[0], "2bw") == 0 ? "2bw" : "gpipe", 1, m, adam);
  OPI_ASSERT_OK_FATAL(kit_open(&k, model, ROWS, TOKENS), &k.err);
  k.dropout = dropout;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, VOCABULARY, 0, &uncut), &k.err);
  for (size_t i = 0; i < n; ++i) {
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
      char what[120];
      (void)snprintf(what, sizeof what, "%s, %u ranks, %u micro-batches", schedules[i], ranks, m);
      c = kit_case_of(schedules[i], ranks, m, adam);
      if (kit_plan(&k, &c) < 0) {
        OPI_FAIL("%s: no plan: %s", what, k.err.message);
        continue;
      }
      if (kit_train(&k, &c, VOCABULARY, 0, &whole) < 0 ||
          kit_train(&k, &c, VOCABULARY, OPIPE_SESSION_REFERENCE, &reference) < 0) {
        OPI_FAIL("%s: %s", what, k.err.message);
        continue;
      }
      kit_compare(what, &whole, &reference, 0);
      kit_compare(what, &whole, &uncut, adam ? 1e-3 : 1e-5);
    }
  }
  kit_close(&k);
}

static const char *const PLAIN[] = {"gpipe",   "1f1b",           "zb-h1",       "zb-h2",
                                    "zb-auto", "1f1b:policy=pb", "1f1b:eager=1"};
static const char *const MANY[] = {"interleaved", "looped-bfs", "zb-interleaved", "zbv",
                                   "v-half",      "v-min",      "dualpipev"};
static const char *const TWINS[] = {"chimera", "chimera:concat=halving"};

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
  static const char *const halves[] = {"chimera:concat=halving"};
  const char *model = opi_test_source("tests/data/odd/dropout_tokens/model.onnx");
  const kit_case c = kit_case_of("gpipe", 1, 1, false);
  kit_outcome still, dropping;
  kit k;
  OPI_ASSERT_OK_FATAL(kit_open(&k, model, ROWS, TOKENS), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, VOCABULARY, 0, &still), &k.err);
  k.dropout = OPI_DROPOUT_GRAPH;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, VOCABULARY, 0, &dropping), &k.err);
  OPI_ASSERT(fabs(still.losses[0] - dropping.losses[0]) > 1e-3);
  kit_close(&k);
  dropout = OPI_DROPOUT_GRAPH;
  check(model, cuts, OPI_COUNT(cuts), 4, false);
  check(model, cuts, 2, 3, false);
  check(model, halves, 1, 4, false);
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
  const kit_case c = kit_case_of("terapipe:slices=2", 2, 4, false);
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
