/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout under schedules: no cut, slice or half changes a mask. ctest: timeout=300 */
#include <math.h>
#include <stdio.h>

#include "tests/runtime/train/kit.h"

enum { ROWS = 8, TOKENS = 8, VOCABULARY = 32 };

static void check(const char *model, const char *const *schedules, size_t n, uint32_t m) {
  kit k;
  kit_outcome uncut, whole, reference;
  kit_case c = kit_case_of("gpipe", 1, m, false);
  OPI_ASSERT_OK_FATAL(kit_open(&k, model, ROWS, TOKENS), &k.err);
  k.dropout = OPI_DROPOUT_GRAPH;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, VOCABULARY, 0, &uncut), &k.err);
  for (size_t i = 0; i < n; ++i) {
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
      char what[120];
      (void)snprintf(what, sizeof what, "%s, %u ranks, %u micro-batches", schedules[i], ranks, m);
      c = kit_case_of(schedules[i], ranks, m, false);
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
      kit_compare(what, &whole, &uncut, 1e-5);
    }
  }
  kit_close(&k);
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
  check(model, cuts, OPI_COUNT(cuts), 4);
  check(model, cuts, 2, 3);
  check(model, halves, 1, 4);
}

OPI_TEST_MAIN("training with dropout", OPI_TEST(test_dropout))
