/* SPDX-License-Identifier: Apache-2.0 */
/* Predicted memory of training plans is what devices hand out, category by category; a cap one byte
 * smaller is refused with the number; a plan that was written and read says the same.
 * ctest: timeout=300 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/runtime/train/kit.h"

static kit_case make_case(const char *schedule, uint32_t n_ranks, uint32_t m, uint32_t kind) {
  return (kit_case){
      .schedule = schedule,
      .n_ranks = n_ranks,
      .n_microbatches = m,
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .optimizer = {.kind = kind,
                             .lr = 0.01,
                             .momentum = 0.9,
                             .beta1 = 0.9,
                             .beta2 = 0.99,
                             .epsilon = 1e-8}}};
}

static void compare(const char *what, uint32_t rank, const opi_memory *p,
                    const opipe_memory_info *m) {
  const uint64_t predicted[] = {p->params_bytes,     p->gradient_bytes,  p->optimizer_bytes,
                                p->version_bytes,    p->stash_bytes,     p->boundary_bytes,
                                p->activation_bytes, p->workspace_bytes, p->total_bytes};
  const uint64_t measured[] = {m->params_bytes,     m->gradient_bytes,  m->optimizer_bytes,
                               m->version_bytes,    m->stash_bytes,     m->boundary_bytes,
                               m->activation_bytes, m->workspace_bytes, m->total_bytes};
  static const char *const names[] = {"parameters",  "gradients", "optimizer",
                                      "versions",    "stashes",   "boundaries",
                                      "activations", "workspace", "total"};
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    if (predicted[i] != measured[i])
      OPI_FAIL("%s, rank %u, %s: predicted %llu, measured %llu", what, rank, names[i],
               (unsigned long long)predicted[i], (unsigned long long)measured[i]);
  }
  OPI_ASSERT(p->gradient_bytes > 0 && p->stash_bytes > 0);
}

static void check(const char *schedule, uint32_t n_ranks, uint32_t m, uint32_t kind) {
  kit k;
  opi_session *session = NULL;
  char what[100];
  (void)snprintf(what, sizeof what, "%s, %u ranks, %u micro-batches", schedule, n_ranks, m);
  kit_case c = make_case(schedule, n_ranks, m, kind);
  OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source("tests/data/gpt_8block/model.onnx"), 8, 8),
                      &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  uint64_t most = 0;
  for (uint32_t r = 0; r < k.plan->n_ranks; ++r) {
    opipe_memory_info info = {.struct_size = (uint32_t)sizeof info};
    OPI_ASSERT_OK(opi_session_memory(session, r, &info, &k.err), &k.err);
    compare(what, r, &k.plan->memory[r], &info);
    if (k.plan->memory[r].total_bytes > most)
      most = k.plan->memory[r].total_bytes;
  }
  opi_session_close(session);
  for (uint32_t r = 0; r < k.plan->n_ranks; ++r) {
    c.memory_bytes = most;
    if (k.plan->memory[r].total_bytes != most)
      continue;
    OPI_ASSERT_OK(kit_plan(&k, &c), &k.err); /* just enough */
    c.memory_bytes = most - 1;
    c.n_stages = 0;
    if (kit_plan(&k, &c) == OPIPE_E_LIMIT)
      OPI_ASSERT(strlen(k.err.message) > 10);
    break;
  }
  kit_close(&k);
}

typedef struct sink {
  char *text;
  size_t n;
} sink;

static opipe_status take(void *ctx, const void *data, size_t n) {
  sink *s = ctx;
  char *more = realloc(s->text, s->n + n + 1);
  if (more == NULL)
    return OPIPE_E_NOMEM;
  memcpy(more + s->n, data, n);
  s->text = more;
  s->n += n;
  s->text[s->n] = '\0';
  return OPIPE_OK;
}

static void test_written_and_read(void) {
  static const char *const schedules[] = {"gpipe", "zb-h1", "chimera", "zbv",
                                          "chimera:concat=halving"};
  for (size_t i = 0; i < OPI_COUNT(schedules); ++i) {
    kit k;
    sink first = {NULL, 0}, second = {NULL, 0};
    const char *no_decay[] = {"*bias*"};
    kit_case c = make_case(schedules[i], 2, 4, OPI_OPT_ADAMW);
    c.spec.optimizer.no_decay = no_decay;
    c.spec.optimizer.n_no_decay = 1;
    OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source("tests/data/gpt_8block/model.onnx"), 8, 8),
                        &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT_OK_FATAL(opi_plan_write(k.plan, take, &first, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(kit_read_plan(&k, first.text, first.n), &k.err);
    OPI_ASSERT_OK_FATAL(opi_plan_write(k.plan, take, &second, &k.err), &k.err);
    OPI_ASSERT_STR(second.text, first.text);
    free(first.text);
    free(second.text);
    kit_close(&k);
  }
}

static void test_one_stage(void) {
  check("gpipe", 1, 1, OPI_OPT_SGD);
}
static void test_pipelines(void) {
  check("gpipe", 4, 8, OPI_OPT_ADAMW);
  check("1f1b", 4, 8, OPI_OPT_ADAMW);
  check("zb-h1", 4, 8, OPI_OPT_ADAMW);
  check("chimera", 4, 4, OPI_OPT_ADAMW);
  check("interleaved", 2, 4, OPI_OPT_SGD);
}
static void test_uneven_rows(void) {
  check("1f1b", 2, 3, OPI_OPT_ADAM);
}

OPI_TEST_MAIN("training memory", OPI_TEST(test_one_stage), OPI_TEST(test_pipelines),
              OPI_TEST(test_written_and_read), OPI_TEST(test_uneven_rows))
