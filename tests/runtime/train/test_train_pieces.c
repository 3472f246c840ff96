/* SPDX-License-Identifier: Apache-2.0 */
/* Micro-batches that are cut along the batch: backwards in halves. Losses and weights have the bits
 * of the plan's reference and are close to the uncut model's; memory is what was predicted.
 * ctest: timeout=600 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/runtime/train/kit.h"

enum { VOCABULARY = 32 };
#define MODEL opi_test_source("tests/data/gpt_8block/model.onnx")

/* One micro-batch of the whole batch on one rank. */
static opipe_status train_uncut(kit *k, bool adam, kit_outcome *out) {
  const kit_case c = kit_case_of("gpipe", 1, 1, adam);
  OPI_TRY(kit_plan(k, &c));
  return kit_train(k, &c, VOCABULARY, 0, out);
}

static void compare_memory(kit *k, const char *what) {
  opi_session *session = NULL;
  OPI_ASSERT_OK_FATAL(kit_session(k, 0, &session), &k->err);
  for (uint32_t r = 0; r < k->plan->n_ranks; ++r) {
    const opi_memory *p = &k->plan->memory[r];
    opipe_memory_info m = {.struct_size = (uint32_t)sizeof m};
    OPI_ASSERT_OK(opi_session_memory(session, r, &m, &k->err), &k->err);
    if (p->params_bytes != m.params_bytes || p->gradient_bytes != m.gradient_bytes ||
        p->optimizer_bytes != m.optimizer_bytes || p->version_bytes != m.version_bytes ||
        p->stash_bytes != m.stash_bytes || p->boundary_bytes != m.boundary_bytes ||
        p->activation_bytes != m.activation_bytes || p->workspace_bytes != m.workspace_bytes ||
        p->total_bytes != m.total_bytes)
      OPI_FAIL("%s, rank %u: predicted %llu bytes, measured %llu", what, r,
               (unsigned long long)p->total_bytes, (unsigned long long)m.total_bytes);
  }
  opi_session_close(session);
}

static void check_case(kit *k, const kit_case *c, const kit_outcome *uncut, const char *what,
                       double tolerance) {
  kit_outcome whole, reference;
  if (kit_plan(k, c) < 0) {
    OPI_FAIL("%s: no plan: %s", what, k->err.message);
    return;
  }
  compare_memory(k, what);
  if (kit_train(k, c, VOCABULARY, 0, &whole) < 0 ||
      kit_train(k, c, VOCABULARY, OPIPE_SESSION_REFERENCE, &reference) < 0) {
    OPI_FAIL("%s: %s", what, k->err.message);
    return;
  }
  kit_compare(what, &whole, &reference, 0);
  kit_compare(what, &whole, uncut, tolerance);
}

/* ---- halves ---- */

static void check_halves(const char *model, int64_t rows, int64_t tokens, uint32_t m, bool adam) {
  static const char *const schedules[] = {"chimera:concat=halving",
                                          "chimera:concat=halving,sync=eager"};
  kit k;
  kit_outcome uncut;
  char what[120];
  OPI_ASSERT_OK_FATAL(kit_open(&k, model, rows, tokens), &k.err);
  OPI_ASSERT_OK_FATAL(train_uncut(&k, adam, &uncut), &k.err);
  for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
    const kit_case c = kit_case_of(schedules[ranks == 4], ranks, m, adam);
    (void)snprintf(what, sizeof what, "%s, %u ranks, %lld rows in %u micro-batches", c.schedule,
                   ranks, (long long)rows, m);
    check_case(&k, &c, &uncut, what, adam ? 1e-3 : 1e-5);
  }
  kit_close(&k);
}

/* Micro-batches of 2, of 4, of 3, of 5 and 4; tensors of a row that begin where the device's
 * alignment does not let them (5 tokens). */
static void test_halves(void) {
  check_halves(MODEL, 8, 8, 4, false);
  check_halves(MODEL, 8, 8, 2, true);
  check_halves(MODEL, 6, 5, 2, false);
  check_halves(MODEL, 14, 5, 3, true);
}

/* Input and weight backward apart, of one replica, written by hand. */
static void test_halves_apart(void) {
  static const char order[] =
      "#onnx-pipe-schedule v1\n"
      "#ranks=2 stages=2 replicas=1 microbatches=2 slices=1 parts=2 mode=train versions=one "
      "sync=end\n"
      "#place=0,1\n"
      "0F0,0F1,0I0~0,0I0~1,0W0~0,0I1~0,0W0~1,0I1~1,0W1~0,0W1~1\n"
      "1F0,1I0~0,1W0~0,1I0~1,1F1,1I1~0,1W0~1,1I1~1,1W1~0,1W1~1\n";
  char path[] = "/tmp/opipe_order_XXXXXX", schedule[64];
  const int fd = mkstemp(path);
  OPI_ASSERT_FATAL(fd >= 0);
  OPI_ASSERT(write(fd, order, sizeof order - 1) == (ssize_t)(sizeof order - 1));
  (void)close(fd);
  (void)snprintf(schedule, sizeof schedule, "file:%s", path);
  for (int64_t tokens = 5; tokens <= 8; tokens += 3) {
    kit k;
    kit_outcome uncut;
    const kit_case c = kit_case_of(schedule, 2, 2, false);
    OPI_ASSERT_OK_FATAL(kit_open(&k, MODEL, 7, tokens), &k.err);
    OPI_ASSERT_OK_FATAL(train_uncut(&k, false, &uncut), &k.err);
    check_case(&k, &c, &uncut, "I and W of halves", 1e-5);
    kit_close(&k);
  }
  (void)unlink(path);
}

static void test_one_row(void) {
  kit k;
  const kit_case c = kit_case_of("chimera:concat=halving", 2, 4, false);
  OPI_ASSERT_OK_FATAL(kit_open(&k, MODEL, 4, 8), &k.err);
  OPI_ASSERT_ERROR(kit_plan(&k, &c), OPIPE_E_INVALID, &k.err, "1 row cannot be cut");
  kit_close(&k);
  OPI_ASSERT_OK_FATAL(kit_open(&k, MODEL, 6, 8), &k.err); /* 2, 2, 1, 1 */
  OPI_ASSERT_ERROR(kit_plan(&k, &c), OPIPE_E_INVALID, &k.err, "1 row cannot be cut");
  kit_close(&k);
}

static void test_models_of_today(void) {
  static const char *const models[] = {"llama", "gpt2", "bert", "t5"};
  for (size_t i = 0; i < OPI_COUNT(models); ++i) {
    char path[80];
    (void)snprintf(path, sizeof path, "models/modern/%s/train/model.onnx", models[i]);
    const char *file = opi_test_shared(path);
    if (file != NULL)
      check_halves(file, 8, 7, 4, false);
  }
}

OPI_TEST_MAIN("pieces of micro-batches", OPI_TEST(test_halves), OPI_TEST(test_halves_apart),
              OPI_TEST(test_one_row), OPI_TEST(test_models_of_today))
