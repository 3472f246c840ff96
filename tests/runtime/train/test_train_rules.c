/* SPDX-License-Identifier: Apache-2.0 */
/* Training over transports that match messages by the order in which ranks issue them: the lists
 * are proven under each rule and run over the emulated transport, which fails where two ranks do
 * not agree, or one begins what it may not. Bits are those of the plan's reference. ctest:
 * timeout=600 */
#include <stdio.h>
#include <stdlib.h>

#include "partition/lists/lists.h"
#include "partition/program/model.h"
#include "tests/runtime/train/cases.h"

enum { M = 4, CLASSES = 32, RULES = 6 };
static const char *const rule_names[RULES] = {"tag",  "stream",   "edge",
                                              "pair", "blocking", "grouped"};

static const char *model_path(void) {
  return opi_test_source("tests/data/gpt_8block/model.onnx");
}

/* ---- every schedule under every rule ---- */

/* What runs is a plan that was read. */
static void read_again(kit *k) {
  opi_test_text text = {NULL, 0};
  OPI_ASSERT_OK_FATAL(opi_plan_write(k->plan, opi_test_take, &text, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(kit_read_plan(k, text.data, text.n), &k->err);
  free(text.data);
}

static void run_rule(kit *k, const kit_schedule *schedule, uint32_t n_ranks, uint32_t rule) {
  char name[4200], transport[80], what[4300];
  kit_outcome a, b;
  kit_schedule_name(schedule, n_ranks, M, name, sizeof name);
  kit_case c = kit_case_of(name, n_ranks, M, rule % 2 == 0);
  (void)snprintf(transport, sizeof transport, "emulated:rule=%s,latency_us=20", rule_names[rule]);
  (void)snprintf(what, sizeof what, "%s, %u ranks, rule %s", schedule->name, n_ranks,
                 rule_names[rule]);
  c.transport = transport;
  if ((schedule->traits & KIT_BUFFERED) != 0 && rule > OPIPE_RULE_STREAM) {
    OPI_ASSERT_ERROR(kit_plan(k, &c), OPIPE_E_UNSUPPORTED, &k->err, rule_names[rule]);
    return;
  }
  OPI_ASSERT_OK_FATAL(kit_plan(k, &c), &k->err);
  OPI_ASSERT_INT(k->plan->link.rule, rule);
  read_again(k);
  if (kit_train(k, &c, CLASSES, 0, &a) < 0 ||
      kit_train(k, &c, CLASSES, OPIPE_SESSION_REFERENCE, &b) < 0)
    OPI_FAIL("%s: %s", what, k->err.message);
  else
    kit_compare(what, &a, &b, 0);
}

static void test_every_rule(void) {
  uint32_t n = 0;
  for (size_t i = 0; i < kit_n_schedules; ++i) {
    for (uint32_t rule = 0; rule < RULES; ++rule) {
      kit k;
      const bool one = strcmp(kit_schedules[i].name, "sequential") == 0;
      if (one || (kit_schedules[i].traits & KIT_BOUNDED) != 0 || !opi_test_covers(i + rule, 8))
        continue;
      OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
      run_rule(&k, &kit_schedules[i], (kit_schedules[i].traits & KIT_FOUR) != 0 ? 4 : 2, rule);
      if (i % 3 == 0)
        run_rule(&k, &kit_schedules[i], 4, rule);
      kit_close(&k);
      ++n;
    }
  }
  OPI_ASSERT(n > 0);
}

/* Replicas sum in the background, also while messages are matched by order. */
static void test_replicas(void) {
  for (uint32_t rule = OPIPE_RULE_EDGE; rule < RULES; ++rule) {
    char transport[60];
    kit k;
    kit_outcome a, b;
    kit_case c = kit_case_of("chimera:sync=eager", 4, M, true);
    c.spec.replicas = 2;
    (void)snprintf(transport, sizeof transport, "emulated:rule=%s", rule_names[rule]);
    c.transport = transport;
    OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, 0, &a), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, OPIPE_SESSION_REFERENCE, &b), &k.err);
    kit_compare(rule_names[rule], &a, &b, 0);
    kit_close(&k);
  }
}

/* ---- the proof refuses what ranks would stop at ---- */

typedef struct bench {
  kit k;
  opi_cut_model *model;
  opi_lists *lists;
} bench;

static void make_lists(bench *b, uint32_t rule) {
  const kit_case c = kit_case_of("1f1b", 2, M, false);
  const opi_bind_options base = {.allocator = opi_allocator_system()};
  const uint32_t alignment[2] = {64, 64};
  opi_bind_options bind = base;
  OPI_ASSERT_OK_FATAL(kit_open(&b->k, model_path(), 8, 8), &b->k.err);
  bind.evaluator = b->k.evaluator;
  OPI_ASSERT_OK_FATAL(kit_plan(&b->k, &c), &b->k.err);
  const opi_cut_sources from = {.plan = b->k.plan, .file = b->k.model, .base = &bind};
  OPI_ASSERT_OK_FATAL(opi_cut_model_build(&from, &b->model, &b->k.err), &b->k.err);
  b->model->piece_plan.plan.link.rule = rule;
  OPI_ASSERT_OK_FATAL(
      opi_lists_build(b->model, alignment, false, opi_allocator_system(), &b->lists, &b->k.err),
      &b->k.err);
}

static void end_lists(bench *b) {
  opi_lists_free(b->lists);
  opi_cut_model_free(b->model);
  kit_close(&b->k);
}

static bool is_end(const opi_step *step) {
  return step->kind == OPI_ACT_POST || step->kind == OPI_ACT_SEND;
}

/* Exchanges the first ends of messages of the two kinds that follow each other on a rank, whatever
 * stands between them. False: there are none. */
static bool swap_ends(opi_lists *l, uint32_t rank, uint32_t first, uint32_t second) {
  uint32_t before = OPIPE_NONE;
  for (uint32_t i = l->rank_first[rank]; i < l->rank_first[rank + 1]; ++i) {
    if (!is_end(&l->steps[i]))
      continue;
    if (before != OPIPE_NONE && l->steps[before].kind == first && l->steps[i].kind == second) {
      const opi_step held = l->steps[before];
      l->steps[before] = l->steps[i];
      l->steps[i] = held;
      return true;
    }
    before = i;
  }
  return false;
}

static opipe_status prove(bench *b) {
  return opi_lists_prove(&b->model->piece_plan, b->lists, b->model->cuts[0], opi_allocator_system(),
                         &b->k.err);
}

static void test_orders_that_differ(void) {
  static const struct {
    uint32_t rule, first, second;
    const char *says; /* NULL: it holds */
  } rows[] = {
      /* two receives of a rank the other way round: no rule that counts bears it */
      {OPIPE_RULE_EDGE, OPI_ACT_POST, OPI_ACT_POST, "under rule 'edge'"},
      {OPIPE_RULE_PAIR, OPI_ACT_POST, OPI_ACT_POST, "under rule 'pair'"},
      {OPIPE_RULE_BLOCKING, OPI_ACT_POST, OPI_ACT_POST, "deadlocks: rank 0 at step"},
      {OPIPE_RULE_TAG, OPI_ACT_POST, OPI_ACT_POST, NULL},
      /* a receive in front of a send: directed edges bear it, pairs do not */
      {OPIPE_RULE_PAIR, OPI_ACT_POST, OPI_ACT_SEND, "under rule 'pair'"},
  };
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    bench b = {.lists = NULL};
    make_lists(&b, rows[i].rule);
    OPI_ASSERT_OK(prove(&b), &b.k.err);
    OPI_ASSERT_FATAL(swap_ends(b.lists, 1, rows[i].first, rows[i].second));
    if (rows[i].says == NULL)
      OPI_ASSERT_OK(prove(&b), &b.k.err);
    else
      OPI_ASSERT_ERROR(prove(&b), OPIPE_E_INVALID, &b.k.err, rows[i].says);
    end_lists(&b);
  }
}

OPI_TEST_MAIN("training under the rules of transports", OPI_TEST(test_every_rule),
              OPI_TEST(test_replicas), OPI_TEST(test_orders_that_differ))
