/* SPDX-License-Identifier: Apache-2.0 */
/* Micro-batches that are cut along the batch: backwards in halves, replicas of unequal number.
 * Losses and weights have the bits
 * of the plan's reference and are close to the uncut model's; memory is what was predicted.
 * ctest: timeout=600 label=twice */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/trace/trace.h"
#include "tests/runtime/train/cases.h"
#include "tests/runtime/train/memory.h"

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
  OPI_ASSERT(memory_as_predicted(k, session, what));
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
  if (kit_train(k, c, VOCABULARY, OPIPE_SESSION_POISON, &whole) < 0 ||
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
    if (file != NULL && opi_test_covers(i, opi_test_sparse(2)))
      check_halves(file, 8, 7, 4, false);
  }
}

/* Graphs of one row have other nodes than those of two where they are bound apart: micro-batches of
 * both go through one pipeline. */
static void check_uneven(const char *model, const char *schedule, int64_t rows, uint32_t m) {
  kit k;
  kit_outcome uncut;
  char what[160];
  (void)snprintf(what, sizeof what, "%s, %s, %lld rows in %u", strrchr(model, '/') - 12, schedule,
                 (long long)rows, m);
  OPI_ASSERT_OK_FATAL(kit_open(&k, model, rows, 8), &k.err);
  k.dropout = OPI_DROPOUT_GRAPH;
  OPI_ASSERT_OK_FATAL(train_uncut(&k, false, &uncut), &k.err);
  const kit_case c = kit_case_of(schedule, 2, m, false);
  check_case(&k, &c, &uncut, what, 1e-5);
  kit_close(&k);
}

static void test_one_row_beside_two(void) {
  static const char *const models[] = {"gpt2", "llama", "bloom", "gemma2", "olmo2"};
  check_uneven(MODEL, "seq1f1b:slices=2", 3, 2);
  check_uneven(opi_test_source("tests/data/odd/batch_chosen/model.onnx"), "1f1b", 5, 2);
  const char *flat = opi_test_shared("models/gradients/torch_encoder/model.onnx");
  if (flat != NULL) { /* keys of [1, batch * heads, tokens, size] */
    check_uneven(flat, "seq1f1b:slices=2", 4, 2);
    check_uneven(flat, "seq1f1b:slices=2", 3, 2);
  }
  for (size_t i = 0; i < OPI_COUNT(models); ++i) {
    char path[80];
    (void)snprintf(path, sizeof path, "models/modern/%s/train/model.onnx", models[i]);
    const char *file = opi_test_shared(path);
    if (file != NULL && opi_test_covers(i, opi_test_sparse(2)))
      check_uneven(file, i % 2 == 0 ? "terapipe:slices=2" : "seq1f1b:slices=4", 3, 2);
  }
}

/* ---- replicas ---- */

typedef struct replicas_case {
  const char *schedule;
  uint32_t list[4], n; /* replicas of each rank of the schedule */
  int64_t rows;
  uint32_t m;
} replicas_case;

static kit_case with_replicas(const replicas_case *r, bool adam) {
  kit_case c = kit_case_of(r->schedule, 0, r->m, adam);
  c.spec.rank_replicas = r->list;
  c.spec.n_rank_replicas = r->n;
  return c;
}

static void check_one(const char *model, const replicas_case *r, int64_t tokens, bool adam) {
  kit k;
  kit_outcome uncut;
  char what[120], path[512];
  const kit_case c = with_replicas(r, adam);
  (void)snprintf(path, sizeof path, "%s", model);
  (void)snprintf(what, sizeof what, "%s, replicas %u %u %u, %lld rows in %u micro-batches",
                 r->schedule, r->list[0], r->list[1], r->list[2], (long long)r->rows, r->m);
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, r->rows, tokens), &k.err);
  OPI_ASSERT_OK_FATAL(train_uncut(&k, adam, &uncut), &k.err);
  check_case(&k, &c, &uncut, what, adam ? 1e-3 : 1e-5);
  OPI_ASSERT_INT(k.plan == NULL ? 0 : k.plan->decided.n_ranks,
                 r->list[0] + r->list[1] + r->list[2] + r->list[3]);
  kit_close(&k);
}

static void check_replicas(const replicas_case *cases, size_t n, int64_t tokens, bool adam) {
  for (size_t i = 0; i < n; ++i) {
    if (opi_test_covers(i + adam, opi_test_sparse(4)))
      check_one(MODEL, &cases[i], tokens, adam);
  }
}

static void test_replicas(void) {
  static const replicas_case cases[] = {
      {"1f1b", {2, 1}, 2, 8, 4},        {"gpipe", {1, 2}, 2, 10, 4}, /* 3, 3, 2, 2 */
      {"zb-h1", {3, 1}, 2, 9, 3},       {"interleaved", {2, 1}, 2, 8, 4},
      {"zb-h1", {2, 1, 2}, 3, 7, 2},    {"zbv", {1, 3}, 2, 14, 4}, /* 4, 4, 3, 3 */
      {"dualpipev", {3, 2}, 2, 13, 4},  {"interleaved", {2, 1, 2}, 3, 12, 6},
      {"1f1b", {2, 3, 4, 1}, 4, 18, 4}, {"looped-bfs", {2, 2}, 2, 8, 4},
      {"sequential", {3}, 1, 7, 2}};
  check_replicas(cases, OPI_COUNT(cases), 8, false);
  check_replicas(cases, 5, 5, true);
}

/* Its uncut model keeps two versions too. */
static void test_double_buffered(void) {
  static const replicas_case cases[] = {{"2bw", {2, 1}, 2, 8, 4}, {"2bw", {1, 3}, 2, 14, 4}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    kit k;
    kit_outcome uncut;
    const kit_case c = with_replicas(&cases[i], false);
    const kit_case one = kit_case_of("2bw", 1, cases[i].m, false);
    OPI_ASSERT_OK_FATAL(kit_open(&k, MODEL, cases[i].rows, 8), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &one), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &one, VOCABULARY, 0, &uncut), &k.err);
    check_case(&k, &c, &uncut, "2bw", 1e-5);
    kit_close(&k);
  }
}

static void test_replicas_of_models_of_today(void) {
  static const char *const models[] = {"llama", "gpt2", "bert", "t5"};
  static const replicas_case cases[] = {{"zb-h1", {2, 1}, 2, 8, 4}, {"1f1b", {1, 2, 3}, 3, 10, 2}};
  for (size_t i = 0; i < OPI_COUNT(models); ++i) {
    char path[80];
    (void)snprintf(path, sizeof path, "models/modern/%s/train/model.onnx", models[i]);
    const char *file = opi_test_shared(path);
    for (size_t c = 0; file != NULL && c < OPI_COUNT(cases); ++c) {
      if (opi_test_covers(i + 2 * c, opi_test_sparse(4)))
        check_one(file, &cases[c], 7, false);
    }
  }
}

static void refuse(const replicas_case *r, int32_t status, const char *words) {
  kit k;
  const kit_case c = with_replicas(r, false);
  OPI_ASSERT_OK_FATAL(kit_open(&k, MODEL, r->rows, 8), &k.err);
  OPI_ASSERT_ERROR(kit_plan(&k, &c), status, &k.err, words);
  kit_close(&k);
}

static void test_refusals(void) {
  refuse(&(replicas_case){"1f1b", {3, 1}, 2, 8, 4}, OPIPE_E_INVALID,
         "stage 0 has 3 replicas, which cannot share a micro-batch of 2 rows");
  refuse(&(replicas_case){"chimera", {2, 1}, 2, 8, 2}, OPIPE_E_UNSUPPORTED,
         "2 replicas of its own");
}

/* ---- slices with halves, with replicas, with both ---- */

/* Replicas of 0: one rank for every stage. The order of file: an index in kit_pieces; OPIPE_NONE:
 * the schedule by name. */
typedef struct together_case {
  replicas_case r;
  uint32_t file;
  int64_t tokens;
} together_case;

static void check_together(const char *model, const together_case *t, bool adam) {
  char name[600], path[512];
  replicas_case r = t->r;
  (void)snprintf(path, sizeof path, "%s", model);
  if (t->file != OPIPE_NONE) {
    kit_schedule_name(&kit_pieces[t->file], r.n == 0 ? 2 : r.n, r.m, name, sizeof name);
    r.schedule = name;
  }
  if (r.n != 0) {
    check_one(path, &r, t->tokens, adam);
    return;
  }
  kit k;
  kit_outcome uncut;
  const kit_case c = kit_case_of(r.schedule, 2, r.m, adam);
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, r.rows, t->tokens), &k.err);
  OPI_ASSERT_OK_FATAL(train_uncut(&k, adam, &uncut), &k.err);
  check_case(&k, &c, &uncut, t->file == 0 ? "I and W of slices" : "I and W of halves of slices",
             adam ? 1e-3 : 1e-5);
  kit_close(&k);
}

/* Micro-batches of equal and of unequal rows; slices of equal and of unequal tokens; rows that
 * begin where the device's alignment does not let them. */
static void test_slices_together(void) {
  static const together_case cases[] = {
      {{NULL, {0}, 0, 8, 2}, 1, 8},
      {{NULL, {0}, 0, 7, 2}, 1, 5},
      {{NULL, {0}, 0, 7, 3}, 0, 5},
      {{"terapipe:slices=2", {2, 1}, 2, 8, 2}, OPIPE_NONE, 8},
      {{"seq1f1b:slices=3", {1, 3}, 2, 14, 4}, OPIPE_NONE, 7},
      {{"terapipe:lengths=1+4", {2, 1, 2}, 3, 7, 2}, OPIPE_NONE, 5},
      {{NULL, {2, 1}, 2, 9, 2}, 0, 5},
      {{NULL, {1, 2}, 2, 9, 2}, 1, 5}, /* 5, 4; then 3, 2 and 2, 2; then parts of these */
      {{NULL, {2, 3}, 2, 13, 2}, 1, 6}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    if (opi_test_covers(i, opi_test_sparse(3)))
      check_together(MODEL, &cases[i], i % 3 == 2);
  }
}

static void test_slices_together_of_models_of_today(void) {
  static const char *const models[] = {"llama", "gpt2", "olmo2"};
  static const together_case cases[] = {{{NULL, {0}, 0, 8, 2}, 1, 7},
                                        {{"seq1f1b:slices=2", {2, 1}, 2, 8, 2}, OPIPE_NONE, 7},
                                        {{NULL, {1, 2}, 2, 8, 2}, 1, 7}};
  for (size_t i = 0; i < OPI_COUNT(models); ++i) {
    char path[80];
    (void)snprintf(path, sizeof path, "models/modern/%s/train/model.onnx", models[i]);
    const char *file = opi_test_shared(path);
    for (size_t c = 0; file != NULL && c < OPI_COUNT(cases); ++c) {
      if (opi_test_covers(i + 2 * c, opi_test_sparse(2)))
        check_together(file, &cases[c], false);
    }
  }
}

/* ---- all else that a session does ---- */

typedef struct evaluation {
  double step, loss;
  float *logits;
  size_t n;
} evaluation;

static void step_and_evaluate(kit *k, const kit_case *c, const kit_batch *batch, evaluation *out) {
  opi_session *session = NULL;
  opi_test_text trace = {NULL, 0};
  OPI_ASSERT_OK_FATAL(kit_plan(k, c), &k->err);
  OPI_ASSERT_OK_FATAL(kit_session(k, 0, &session), &k->err);
  OPI_ASSERT_OK(kit_step(k, session, batch, &out->step), &k->err);
  OPI_ASSERT_OK(kit_evaluate(k, session, batch, &out->loss, &out->logits, &out->n), &k->err);
  OPI_ASSERT_OK(
      opi_session_trace(session, OPIPE_TRACE_CHROME, NULL, opi_test_take, &trace, &k->err),
      &k->err);
  OPI_ASSERT(trace.data != NULL && strstr(trace.data, "update") != NULL);
  free(trace.data);
  opi_session_close(session);
}

/* A plan that was written and read trains and evaluates as before. */
static void test_evaluate(void) {
  static const replicas_case cases[] = {{"1f1b", {2, 1, 3}, 3, 7, 2},
                                        {"chimera:concat=halving", {0}, 0, 7, 2},
                                        {NULL, {0}, 0, 7, 2}}; /* slices with halves */
  char name[600];
  kit_schedule_name(&kit_pieces[1], 2, 2, name, sizeof name);
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    kit k;
    kit_batch batch;
    evaluation uncut = {.n = 0}, cut = {.n = 0};
    kit_case c = with_replicas(&cases[i], false);
    const kit_case one = kit_case_of("gpipe", 1, 1, false);
    c.n_ranks = i == 0 ? 0 : 2;
    c.schedule = cases[i].schedule == NULL ? name : cases[i].schedule;
    c.spec.recompute = i == 0 ? OPI_RECOMPUTE_STAGE : OPI_RECOMPUTE_BLOCK;
    OPI_ASSERT_OK_FATAL(kit_open(&k, MODEL, 7, 5), &k.err);
    OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, VOCABULARY, 7, &batch), &k.err);
    step_and_evaluate(&k, &one, &batch, &uncut);
    step_and_evaluate(&k, &c, &batch, &cut);
    OPI_ASSERT(fabs(cut.step - uncut.step) <= 1e-5 * uncut.step);
    OPI_ASSERT(fabs(cut.loss - uncut.loss) <= 1e-5 * uncut.loss);
    OPI_ASSERT_FATAL(cut.n == uncut.n);
    for (size_t e = 0; e < cut.n; ++e) {
      if (!(fabsf(cut.logits[e] - uncut.logits[e]) <= 1e-4F)) {
        OPI_FAIL("%s: logit %zu is %g, wanted %g", c.schedule, e, (double)cut.logits[e],
                 (double)uncut.logits[e]);
      }
    }
    kit_close(&k);
  }
}

static void test_written_and_read(void) {
  static const replicas_case cases[] = {{"zb-h1", {2, 1, 3}, 3, 7, 2},
                                        {"zbv", {1, 2}, 2, 4, 2},
                                        {"terapipe:slices=2", {1, 2}, 2, 4, 2}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    kit k;
    kit_outcome before, after;
    opi_test_text first = {NULL, 0}, second = {NULL, 0};
    const kit_case c = with_replicas(&cases[i], true);
    OPI_ASSERT_OK_FATAL(kit_open(&k, MODEL, cases[i].rows, 5), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, VOCABULARY, 0, &before), &k.err);
    OPI_ASSERT_OK_FATAL(opi_plan_write(k.plan, opi_test_take, &first, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(kit_read_plan(&k, first.data, first.n), &k.err);
    OPI_ASSERT_OK_FATAL(opi_plan_write(k.plan, opi_test_take, &second, &k.err), &k.err);
    OPI_ASSERT_STR(second.data, first.data);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, VOCABULARY, 0, &after), &k.err);
    kit_compare("a plan that was read", &after, &before, 0);
    free(first.data);
    free(second.data);
    kit_close(&k);
  }
}

/* A member of a tensor group must have the same heads in every slice: another slice's are refused
 * by name. */
static void test_slices_with_other_heads(void) {
  kit k;
  kit_case c = kit_case_of("terapipe:slices=2", 4, 2, false);
  opi_cut_model *model = NULL;
  c.tensor = 2;
  OPI_ASSERT_OK_FATAL(kit_open(&k, MODEL, 4, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  const opi_bind_options bind = {.allocator = opi_allocator_system(), .evaluator = k.evaluator};
  const opi_cut_sources from = {
      .plan = &k.plan->decided, .times = &k.plan->predicted.times, .file = k.model, .base = &bind};
  OPI_ASSERT_OK_FATAL(opi_cut_model_build(&from, &model, &k.err), &k.err);
  const opi_shard_member *second = &model->variants[model->base].shards[1]->members[0];
  OPI_ASSERT_FATAL(second->n_inputs != 0); /* keys of the slice before */
  opi_shard_run *run = second->inputs[0].runs;
  run->first += run->n;
  opi_cut_free(model->cuts[0]);
  model->cuts[0] = NULL;
  OPI_ASSERT_ERROR(opi_pieces_compose(&k.plan->decided, 0, NULL, model, &k.err),
                   OPIPE_E_UNSUPPORTED, &k.err, "token slice 1 of stage 0: member 0 of a tensor");
  OPI_ASSERT(strstr(k.err.message, "than in the slice that passes it on") != NULL);
  run->first -= run->n;
  OPI_ASSERT_OK(opi_pieces_compose(&k.plan->decided, 0, NULL, model, &k.err), &k.err);
  opi_cut_model_free(model);
  kit_close(&k);
}

OPI_TEST_MAIN("pieces of micro-batches", OPI_TEST(test_halves), OPI_TEST(test_halves_apart),
              OPI_TEST(test_one_row), OPI_TEST(test_one_row_beside_two),
              OPI_TEST(test_models_of_today), OPI_TEST(test_replicas),
              OPI_TEST(test_double_buffered), OPI_TEST(test_replicas_of_models_of_today),
              OPI_TEST(test_refusals), OPI_TEST(test_slices_together),
              OPI_TEST(test_slices_with_other_heads),
              OPI_TEST(test_slices_together_of_models_of_today), OPI_TEST(test_evaluate),
              OPI_TEST(test_written_and_read))
