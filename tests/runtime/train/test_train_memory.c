/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of training, every schedule once: predicted = measured by category, enough to the byte,
 * one byte less refused with the numbers; a plan that was written and read says the same. (All
 * choices of recomputation and optimizer: test_train_memory_full.c.)
 * ctest: timeout=300 label=twice */
#include <stdio.h>
#include <stdlib.h>

#include "tests/runtime/train/memory.h"

static void test_every_schedule(void) {
  memory_count count = {0, 0, 0};
  memory_check_model(opi_test_source("tests/data/gpt_8block/model.onnx"), 8, true, false, &count);
  uint32_t n_rows = 0;
  for (uint32_t i = 0; i < MEMORY_ROWS; ++i)
    n_rows += opi_test_covers(i, opi_test_sparse(MEMORY_TURN));
  OPI_ASSERT_INT(count.passed, n_rows);
  OPI_ASSERT_INT(count.failed, 0);
}

/* A table that is looked up, and that the head of the same stage multiplies by: backwards in two
 * halves see but one of both. */
static void test_tied_table(void) {
  static const memory_row row = {"zb-h1", 4, 8, false, {0}};
  const char *path = opi_test_shared("models/modern/t5/train/model.onnx");
  memory_count count = {0, 0, 0};
  kit k;
  if (path == NULL)
    return;
  const kit_case c = memory_case(&row, OPI_RECOMPUTE_NONE, OPIPE_OPTIMIZER_ADAMW);
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, 8, 8), &k.err);
  memory_check(&k, &c, "zb-h1 on T5", &count);
  OPI_ASSERT_INT(count.passed, 1);
  kit_close(&k);
}

/* Memory of the kit's rank 0 under such a plan. */
static opi_memory memory_of(kit *k, const char *schedule, uint32_t n_stages, uint32_t kind) {
  const memory_row row = {schedule, n_stages == 1 ? 0 : 1, 4, false, {0}};
  kit_case c = memory_case(&row, OPI_RECOMPUTE_NONE, kind);
  c.n_stages = n_stages;
  OPI_ASSERT_OK_FATAL(kit_plan(k, &c), &k->err);
  OPI_ASSERT_INT(k->plan->decided.n_ranks, 1);
  OPI_ASSERT_INT(k->plan->decided.n_stages, n_stages);
  return k->plan->predicted.memory[0];
}

static void print_weights(const char *schedule, uint32_t n_stages, uint32_t kind,
                          const opi_memory *m) {
  (void)printf("%-22s %u %-5s %9.1f %9.1f %9.1f\n", schedule, n_stages,
               kind == OPIPE_OPTIMIZER_SGD ? "sgd" : "adamw", (double)m->params_bytes / 1024,
               (double)m->gradient_bytes / 1024, (double)m->optimizer_bytes / 1024);
}

/* A tied table is one parameter of the rank, however many of its stages read it, and whether they
 * gather from it or multiply by it: a weight, a gradient and moments, as in a plan of one stage. */
static void test_ties_on_one_rank(void) {
  static const struct {
    const char *schedule;
    uint32_t n_stages;
  } rows[] = {{"zbv", 2}, {"interleaved:chunks=4", 4}, {"dualpipev", 2}};
  static const char *const models[] = {"tests/data/gpt_8block/model.onnx",
                                       "tests/data/encoder/model.onnx",
                                       "tests/data/llama_8block/model.onnx"};
  static const uint32_t kinds[] = {OPIPE_OPTIMIZER_SGD, OPIPE_OPTIMIZER_ADAMW};
  for (size_t i = 0; i < OPI_COUNT(models) * OPI_COUNT(kinds); ++i) {
    kit k;
    const uint32_t kind = kinds[i % 2];
    if (opi_test_is_sanitized() && !opi_test_covers(i / 2 + i, 2))
      continue; /* each model, with one of the optimizers */
    OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source(models[i / 2]), 8, 8), &k.err);
    const opi_memory whole = memory_of(&k, "gpipe", 1, kind);
    (void)printf("\n%s\none rank         stages optimizer weights gradients   moments  KiB\n",
                 models[i / 2]);
    print_weights("gpipe", 1, kind, &whole);
    for (size_t r = 0; r < OPI_COUNT(rows); ++r) {
      memory_count count = {0, 0, 0};
      const memory_row row = {rows[r].schedule, 1, 4, false, {0}};
      const kit_case c = memory_case(&row, OPI_RECOMPUTE_NONE, kind);
      const opi_memory m = memory_of(&k, rows[r].schedule, rows[r].n_stages, kind);
      print_weights(rows[r].schedule, rows[r].n_stages, kind, &m);
      OPI_ASSERT_INT(m.gradient_bytes, whole.gradient_bytes);
      OPI_ASSERT_INT(m.optimizer_bytes, whole.optimizer_bytes);
      OPI_ASSERT_INT(m.params_bytes, whole.params_bytes);
      memory_check(&k, &c, rows[r].schedule, &count);
      OPI_ASSERT_INT(count.passed, 1);
    }
    kit_close(&k);
  }
}

/* Members hold their parts of parameters, gradients and moments, and copies of what is whole; of
 * what other stages send over a link they receive parts. */
static void test_tensor_groups(void) {
  static const struct {
    const char *schedule;
    uint32_t n_ranks, tensor, recompute, kind;
  } rows[] = {{"gpipe", 2, 2, OPI_RECOMPUTE_NONE, OPIPE_OPTIMIZER_ADAMW},
              {"1f1b", 6, 3, OPI_RECOMPUTE_STAGE, OPIPE_OPTIMIZER_SGD},
              {"zb-h1", 4, 2, OPI_RECOMPUTE_NONE, OPIPE_OPTIMIZER_ADAMW},
              {"seq1f1b:slices=3", 4, 2, OPI_RECOMPUTE_NONE, OPIPE_OPTIMIZER_ADAMW},
              {"chimera:concat=halving", 6, 3, OPI_RECOMPUTE_BLOCK, OPIPE_OPTIMIZER_SGD}};
  kit k;
  OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source("tests/data/gpt_8block/model.onnx"), 8, 8),
                      &k.err);
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    memory_count count = {0, 0, 0};
    const memory_row row = {rows[i].schedule, rows[i].n_ranks, 4, false, {0}};
    kit_case c = memory_case(&row, rows[i].recompute, rows[i].kind);
    if (opi_test_is_sanitized() && !opi_test_covers(i, 2))
      continue;
    c.tensor = rows[i].tensor;
    c.transport = i % 2 == 1 || i == 4 ? "emulated:scattered=1" : c.transport;
    memory_check(&k, &c, rows[i].schedule, &count);
    OPI_ASSERT_INT(count.passed, 1);
  }
  kit_close(&k);
}

static void test_written_and_read(void) {
  static const char *const schedules[] = {"gpipe", "zb-h1", "chimera", "zbv",
                                          "chimera:concat=halving"};
  for (size_t i = 0; i < OPI_COUNT(schedules); ++i) {
    const memory_row row = {schedules[i], 2, 4, false, {0}};
    kit k;
    opi_test_text first = {NULL, 0}, second = {NULL, 0};
    const char *no_decay[] = {"*bias*"};
    kit_case c = memory_case(&row, OPI_RECOMPUTE_NONE, OPIPE_OPTIMIZER_ADAMW);
    c.spec.optimizer.no_decay = no_decay;
    c.spec.optimizer.n_no_decay = 1;
    OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source("tests/data/gpt_8block/model.onnx"), 8, 8),
                        &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT_OK_FATAL(opi_plan_write(k.plan, opi_test_take, &first, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(kit_read_plan(&k, first.data, first.n), &k.err);
    OPI_ASSERT_OK_FATAL(opi_plan_write(k.plan, opi_test_take, &second, &k.err), &k.err);
    OPI_ASSERT_STR(second.data, first.data);
    free(first.data);
    free(second.data);
    kit_close(&k);
  }
}

OPI_TEST_MAIN("training memory", OPI_TEST(test_every_schedule), OPI_TEST(test_tied_table),
              OPI_TEST(test_ties_on_one_rank), OPI_TEST(test_tensor_groups),
              OPI_TEST(test_written_and_read))
