/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of training, shown from outside the library: nobody allocates while steps of any schedule
 * run, and the process grows by the prediction. ctest: timeout=300 label=nosan */
#include <malloc.h>
#include <stdlib.h>

#include "tests/loader/wire/writer.h"
#include "tests/runtime/train/memory.h"
#include "tests/support/allocations.h"

enum { ROWS = 8, TOKENS = 8, CLASSES = 20, WARM = 3, STEADY = 5 };

/* ---- nobody allocates ---- */

/* Some steps in flight at once, a flush, an evaluation. */
static opipe_status train(kit *k, opi_session *session, const kit_batch *batch, uint32_t n_steps) {
  const opipe_submit_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
      .n_inputs = batch->n_inputs,
      .io_stride = sizeof(opipe_binding_io),
      .inputs = batch->inputs};
  opipe_status status = OPIPE_OK;
  for (uint32_t s = 0; s < n_steps && status == OPIPE_OK; ++s) {
    opi_request *tickets[3] = {NULL, NULL, NULL};
    for (uint32_t i = 0; i < 2 && status == OPIPE_OK; ++i)
      status = opi_train_step(session, &params, &tickets[i], NULL, &k->err);
    if (status == OPIPE_OK)
      status = opi_train_flush(session, UINT64_C(60000000000), &k->err);
    if (status == OPIPE_OK)
      status = opi_train_evaluate(session, &params, &tickets[2], NULL, &k->err);
    for (uint32_t i = 0; i < 3 && status == OPIPE_OK; ++i)
      status = opi_request_wait(tickets[i], UINT64_C(60000000000), &k->err);
    for (uint32_t i = 0; i < 3; ++i)
      opi_request_release(tickets[i]);
  }
  return status;
}

static void steady(kit *k, const kit_case *c, const char *what, uint32_t flags) {
  opi_session *session = NULL;
  kit_batch batch;
  OPI_ASSERT_OK_FATAL(kit_batch_random(k, c, CLASSES, 3, &batch), &k->err);
  opi_test_count_allocations();
  opipe_status status = kit_session(k, flags, &session);
  OPI_ASSERT(opi_test_counted() > 10); /* opening allocates: the counter sees the library */
  if (status == OPIPE_OK)
    status = train(k, session, &batch, WARM);
  opi_test_count_allocations();
  if (status == OPIPE_OK)
    status = train(k, session, &batch, STEADY);
  const uint64_t n = opi_test_counted();
  if (status != OPIPE_OK)
    OPI_FAIL("%s: %s", what, k->err.message);
  if (n != 0) {
    OPI_FAIL("%s%s: %llu allocations in %d steps, the first by %p", what,
             flags == 0 ? "" : ", reference", (unsigned long long)n, 2 * STEADY,
             opi_test_first_caller());
  }
  opi_session_close(session);
}

static void check(kit *k, const kit_case *c) {
  char what[160];
  (void)snprintf(what, sizeof what, "%s, %u ranks, %u micro-batches, %s", c->schedule, c->n_ranks,
                 c->n_microbatches, c->transport == NULL ? "local" : c->transport);
  if (!OPI_ASSERT_OK(kit_plan(k, c), &k->err))
    return;
  steady(k, c, what, 0);
  steady(k, c, what, OPIPE_SESSION_REFERENCE);
}

static void test_nobody_allocates_in_a_step(void) {
  static const char *const transports[] = {NULL, "emulated:latency_us=20", "emulated:rule=stream"};
  kit k;
  if (!OPI_TEST_COUNTS_ALLOCATIONS)
    OPI_SKIP("a sanitizer has its own malloc");
  OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source("tests/data/gpt_8block/model.onnx"), ROWS, 8),
                      &k.err);
  for (uint32_t i = 0; i < MEMORY_ROWS; ++i) {
    kit_case c = memory_case(&memory_rows[i], i % 4,
                             i % 2 != 0 ? OPIPE_OPTIMIZER_SGD : OPIPE_OPTIMIZER_ADAMW);
    c.transport = transports[i % OPI_COUNT(transports)];
    c.spec.optimizer.clip_norm = i % 3 == 0 ? 1 : 0;
    c.spec.loss.shift = i % 4 == 3 && !memory_rows[i].sliced;
    check(&k, &c);
  }
  kit_close(&k);
}

/* Half types, loss scaling, data parallel copies, tensor groups, dropout is the graph's. */
static void test_nobody_allocates_in_other_steps(void) {
  static const memory_row row = {"1f1b", 4, 4, false, {0}};
  kit k;
  if (!OPI_TEST_COUNTS_ALLOCATIONS)
    OPI_SKIP("a sanitizer has its own malloc");
  OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source("tests/data/llama_8block/model.onnx"), ROWS, 8),
                      &k.err);
  for (uint32_t i = 0; i < 6; ++i) {
    static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_BFLOAT16, OPIPE_FLOAT16,
                                     OPIPE_FLOAT, OPIPE_FLOAT,    OPIPE_BFLOAT16};
    kit_case c = memory_case(&row, OPI_RECOMPUTE_NONE, OPIPE_OPTIMIZER_ADAM);
    c.spec.compute = types[i];
    c.spec.replicas = i == 3 ? 2 : 1;
    c.spec.optimizer.clip_norm = i > 3 ? 1 : 0;
    c.tensor = i > 3 ? 2 : 1;
    c.sequence = i == 5;
    c.device = i == 3 ? "emulated" : "cpu";
    check(&k, &c);
  }
  kit_close(&k);
}

/* ---- the process grows by the prediction ---- */

enum { WIDTH = 1024, LAYERS = 16, BATCH = 256, SLACK_BYTES = 16 << 20 };

static void grows(const char *path, const memory_row *row, uint32_t recompute, uint32_t kind) {
  static float target[BATCH * WIDTH];
  const int64_t shape[] = {BATCH, WIDTH};
  kit k;
  kit_batch batch;
  opi_session *session = NULL;
  double loss = 0;
  uint64_t predicted = 0;
  kit_case c = memory_case(row, recompute, kind);
  c.spec.loss = (opi_loss){.kind = OPI_LOSS_MSE, .output = "y", .labels = "target"};
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, BATCH, 1), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, 1, 3, &batch), &k.err);
  kit_batch_add(&batch, "target", OPIPE_FLOAT, shape, 2, target);
  for (uint32_t r = 0; r < k.plan->decided.n_ranks; ++r)
    predicted += k.plan->predicted.memory[r].total_bytes;
  (void)malloc_trim(0);
  const uint64_t before = opi_test_private_bytes();
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  OPI_ASSERT_OK_FATAL(kit_step(&k, session, &batch, &loss), &k.err);
  OPI_ASSERT_OK_FATAL(kit_step(&k, session, &batch, &loss), &k.err);
  const double grown = (double)opi_test_private_bytes() - (double)before;
  const double off = grown - (double)predicted;
  (void)printf("\n%s, %u ranks: predicted %.1f MiB, grown by %.1f MiB", row->schedule, row->n_ranks,
               (double)predicted / 1048576, grown / 1048576);
  OPI_ASSERT(predicted > UINT64_C(180) << 20);
  OPI_ASSERT((off < 0 ? -off : off) <= 0.03 * (double)predicted + SLACK_BYTES);
  opi_session_close(session);
  kit_close(&k);
}

static void test_the_process_grows_by_the_prediction(void) {
  static const memory_row rows[] = {{"gpipe", 2, 8, false, {0}}, {"1f1b", 4, 8, false, {0}},
                                    {"2bw", 2, 4, false, {0}},   {"chimera", 2, 4, false, {0}},
                                    {"zb-h1", 2, 4, false, {0}}, {"interleaved", 2, 4, false, {0}}};
  if (!OPI_TEST_COUNTS_ALLOCATIONS || opi_test_private_bytes() == 0)
    OPI_SKIP("a sanitizer's shadow, or no /proc/self/smaps_rollup");
  const char *path = opi_test_tmp("large.onnx");
  OPI_ASSERT_FATAL(w_write_chain(path, "Tanh", -1, WIDTH, LAYERS));
  for (uint32_t i = 0; i < OPI_COUNT(rows); ++i) {
    if (!opi_test_covers(i, 2))
      continue;
    grows(path, &rows[i], i % 3 == 1 ? OPI_RECOMPUTE_STAGE : OPI_RECOMPUTE_NONE,
          i % 2 == 0 ? OPIPE_OPTIMIZER_ADAMW : OPIPE_OPTIMIZER_SGD);
  }
}

OPI_TEST_MAIN("training memory, from outside", OPI_TEST(test_nobody_allocates_in_a_step),
              OPI_TEST(test_nobody_allocates_in_other_steps),
              OPI_TEST(test_the_process_grows_by_the_prediction))
