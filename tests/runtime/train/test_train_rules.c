/* SPDX-License-Identifier: Apache-2.0 */
/* Training over transports that match messages by the order in which ranks issue them: the lists
 * are proven under each rule and run over the emulated transport, which fails where two ranks do
 * not agree, or one begins what it may not. Bits are those of the plan's reference.
 * ctest: timeout=600 label=twice */
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

/* Replaces the plan by one that was read, which then runs. */
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
  OPI_ASSERT_OK_FATAL(kit_plan(k, &c), &k->err);
  OPI_ASSERT_INT(k->plan->decided.link.rule, rule);
  read_again(k);
  if (kit_train(k, &c, CLASSES, 0, &a) < 0 ||
      kit_train(k, &c, CLASSES, OPIPE_SESSION_REFERENCE, &b) < 0)
    OPI_FAIL("%s: %s", what, k->err.message);
  else
    kit_compare(what, &a, &b, 0);
}

static void test_every_rule(void) {
  const size_t n_th = opi_test_is_sanitized() ? 24 : 8;
  uint32_t n = 0;
  for (size_t i = 0; i < kit_n_schedules; ++i) {
    for (uint32_t rule = 0; rule < RULES; ++rule) {
      kit k;
      const bool one = strcmp(kit_schedules[i].name, "sequential") == 0;
      if (one || (kit_schedules[i].traits & KIT_BOUNDED) != 0 || !opi_test_covers(i + rule, n_th))
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

/* ---- double-buffered: bodies, evaluations between them, flushes, other shapes ---- */

enum { TURNS = 9, MOST_M = 8 };

/* The calls of a session, in turn. The pipeline drains before an evaluation, at a flush, and where
 * the shape changes. */
typedef struct turn {
  bool evaluate, flush;
  int64_t rows, tokens;
} turn;
static const turn turns[TURNS] = {
    {false, false, 8, 8},  {false, false, 8, 8}, {true, false, 8, 8},
    {false, false, 8, 8},  {false, true, 8, 8},  {false, false, 11, 6},
    {false, false, 11, 6}, {true, false, 11, 6}, {false, false, 8, 8},
};

typedef struct series {
  double losses[TURNS];
  float *weights, *logits;
  size_t n, n_logits;
} series;

static opipe_status take_turn(kit *k, const kit_case *c, opi_session *session, uint32_t i,
                              opi_request **out_ticket, series *out) {
  kit_batch batch;
  OPI_TRY(kit_resize(k, turns[i].rows, turns[i].tokens));
  OPI_TRY(kit_batch_random(k, c, CLASSES, 300 + i, &batch));
  if (turns[i].evaluate)
    return kit_evaluate(k, session, &batch, &out->losses[i], &out->logits, &out->n_logits);
  const opipe_submit_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
      .n_inputs = batch.n_inputs,
      .io_stride = sizeof(opipe_binding_io),
      .inputs = batch.inputs};
  OPI_TRY(opi_train_step(session, &params, out_ticket, NULL, &k->err));
  return turns[i].flush ? opi_train_flush(session, UINT64_C(60000000000), &k->err) : OPIPE_OK;
}

static opipe_status run_turns(kit *k, const kit_case *c, uint32_t flags, series *out) {
  opi_session *session = NULL;
  opi_request *tickets[TURNS] = {NULL};
  opipe_status status = kit_session(k, flags, &session);
  for (uint32_t i = 0; i < TURNS && status == OPIPE_OK; ++i)
    status = take_turn(k, c, session, i, &tickets[i], out);
  if (status == OPIPE_OK)
    status = opi_train_flush(session, UINT64_C(60000000000), &k->err);
  for (uint32_t i = 0; i < TURNS; ++i) {
    opi_train_result result = {.loss = 0};
    if (status == OPIPE_OK && !turns[i].evaluate) {
      status = opi_train_report(tickets[i], &result, &k->err);
      out->losses[i] = result.loss;
    }
    opi_request_release(tickets[i]);
  }
  if (status == OPIPE_OK)
    status = kit_state(k, session, OPI_TENSOR_WEIGHT, &out->weights, &out->n);
  opi_session_close(session);
  return status;
}

typedef struct buffered_case {
  const char *schedule;
  size_t subject; /* of kit_subjects */
  uint32_t n_ranks, m;
  uint32_t replicas;        /* copies of the pipeline */
  uint32_t each[4], n_each; /* replicas of every rank of the schedule */
} buffered_case;

/* As many micro-batches as stages and more, whole and uneven, all held and few of them; copies, and
 * replicas of unequal number; the last but one has tensors that skip stages. */
static const buffered_case buffered[] = {
    {.schedule = "2bw", .n_ranks = 2, .m = 2},
    {.schedule = "2bw", .n_ranks = 2, .m = 5},
    {.schedule = "2bw:accumulate=4", .n_ranks = 2, .m = MOST_M},
    {.schedule = "2bw", .n_ranks = 3, .m = 3},
    {.schedule = "2bw", .n_ranks = 4, .m = 4},
    {.schedule = "2bw", .n_ranks = 4, .m = 7},
    {.schedule = "2bw:accumulate=2", .n_ranks = 4, .m = MOST_M},
    {.schedule = "2bw", .n_ranks = 4, .m = 4, .replicas = 2},
    {.schedule = "2bw", .n_ranks = 3, .m = 4, .each = {2, 1}, .n_each = 2},
    {.schedule = "2bw", .subject = 5, .n_ranks = 4, .m = 6},
    {.schedule = "2bw", .n_ranks = 1, .m = 3},
};

static void compare_series(const char *what, const series *a, const series *b) {
  for (uint32_t i = 0; i < TURNS; ++i) {
    if (a->losses[i] != b->losses[i])
      OPI_FAIL("%s: loss %.9g at turn %u, wanted %.9g", what, a->losses[i], i, b->losses[i]);
  }
  OPI_ASSERT_INT(a->n, b->n);
  OPI_ASSERT_INT(a->n_logits, b->n_logits);
  OPI_ASSERT_BITS(a->weights, b->weights, a->n, OPIPE_FLOAT);
  OPI_ASSERT_BITS(a->logits, b->logits, a->n_logits, OPIPE_FLOAT);
}

static void run_buffered(const char *path, const buffered_case *row, uint32_t rule) {
  char transport[80], what[100];
  kit k;
  series a, b;
  kit_case c = kit_case_of(row->schedule, row->n_ranks, row->m, rule % 2 == 0);
  c.spec.replicas = row->replicas;
  c.spec.rank_replicas = row->each;
  c.spec.n_rank_replicas = row->n_each;
  (void)snprintf(transport, sizeof transport, "emulated:rule=%s,latency_us=20", rule_names[rule]);
  (void)snprintf(what, sizeof what, "%s, %u ranks, %u micro-batches, rule %s", row->schedule,
                 row->n_ranks, row->m, rule_names[rule]);
  c.transport = transport;
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, turns[0].rows, turns[0].tokens), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_INT(k.plan->decided.versions, OPIPE_VERSIONS_DOUBLE_BUFFERED);
  read_again(&k);
  if (run_turns(&k, &c, 0, &a) < 0 || run_turns(&k, &c, OPIPE_SESSION_REFERENCE, &b) < 0)
    OPI_FAIL("%s: %s", what, k.err.message);
  else
    compare_series(what, &a, &b);
  kit_close(&k);
}

static void test_double_buffered(void) {
  uint32_t n = 0;
  for (size_t i = 0; i < OPI_COUNT(buffered); ++i) {
    const char *path = kit_subject_path(&kit_subjects[buffered[i].subject]);
    char kept[1024];
    if (path == NULL)
      continue;
    (void)snprintf(kept, sizeof kept, "%s", path); /* such texts do not last */
    for (uint32_t rule = 0; rule < RULES; ++rule) {
      if (!opi_test_covers(i + rule, opi_test_sparse(3)))
        continue;
      run_buffered(kept, &buffered[i], rule);
      ++n;
    }
  }
  OPI_ASSERT(n > 0);
}

/* Tensors that skip so many stages that they are read a body after they were sent: their receives
 * are posted before the step, at which no rank goes on without the others. */
static void test_skips_over_the_step(void) {
  enum { RANKS = 10, MICROBATCHES = 12, T5 = 5 };
  const char *path = kit_subject_path(&kit_subjects[T5]);
  if (path == NULL)
    return;
  kit k;
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, MICROBATCHES, 8), &k.err);
  for (uint32_t rule = 0; rule < RULES; ++rule) {
    char transport[60];
    kit_outcome a, b;
    uint32_t farthest = 0;
    kit_case c = kit_case_of("2bw", RANKS, MICROBATCHES, true);
    (void)snprintf(transport, sizeof transport, "emulated:rule=%s", rule_names[rule]);
    c.transport = transport;
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    for (uint32_t i = 0; i < k.plan->predicted.n_crossings; ++i) {
      const opi_crossing *x = &k.plan->predicted.crossings[i];
      farthest = x->dst_stage - x->src_stage > farthest ? x->dst_stage - x->src_stage : farthest;
    }
    OPI_ASSERT(farthest > 3);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, 0, &a), &k.err);
    OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, OPIPE_SESSION_REFERENCE, &b), &k.err);
    kit_compare(rule_names[rule], &a, &b, 0);
  }
  kit_close(&k);
}

/* ---- the proof refuses what ranks would stop at ---- */

typedef struct bench {
  kit k;
  opi_decision decided; /* of the kit's plan, under another rule */
  opi_cut_model *model;
  opi_lists *lists;
} bench;

static void make_lists(bench *b, const char *schedule, uint32_t rule) {
  const kit_case c = kit_case_of(schedule, 2, M, false);
  const opi_bind_options base = {.allocator = opi_allocator_system()};
  const uint32_t alignment[2] = {64, 64};
  opi_bind_options bind = base;
  OPI_ASSERT_OK_FATAL(kit_open(&b->k, model_path(), 8, 8), &b->k.err);
  bind.evaluator = b->k.evaluator;
  OPI_ASSERT_OK_FATAL(kit_plan(&b->k, &c), &b->k.err);
  b->decided = b->k.plan->decided;
  const opi_cut_sources from = {
      .plan = &b->decided, .times = &b->k.plan->predicted.times, .file = b->k.model, .base = &bind};
  OPI_ASSERT_OK_FATAL(opi_cut_model_build(&from, &b->model, &b->k.err), &b->k.err);
  b->decided.link.rule = rule;
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
    const char *schedule;
    uint32_t rule, first, second;
    const char *says; /* NULL: it holds */
  } rows[] = {
      /* two receives of a rank the other way round: no rule that counts bears it */
      {"1f1b", OPIPE_RULE_EDGE, OPI_ACT_POST, OPI_ACT_POST, "under rule 'edge'"},
      {"1f1b", OPIPE_RULE_PAIR, OPI_ACT_POST, OPI_ACT_POST, "under rule 'pair'"},
      {"1f1b", OPIPE_RULE_BLOCKING, OPI_ACT_POST, OPI_ACT_POST, "deadlocks: rank 0 at step"},
      {"1f1b", OPIPE_RULE_TAG, OPI_ACT_POST, OPI_ACT_POST, NULL},
      /* a receive in front of a send: directed edges bear it, pairs do not */
      {"1f1b", OPIPE_RULE_PAIR, OPI_ACT_POST, OPI_ACT_SEND, "under rule 'pair'"},
      {"2bw", OPIPE_RULE_PAIR, OPI_ACT_POST, OPI_ACT_SEND, "under rule 'pair'"},
      {"2bw", OPIPE_RULE_BLOCKING, OPI_ACT_POST, OPI_ACT_SEND, "deadlocks: rank 0 at step"},
      {"2bw", OPIPE_RULE_GROUPED, OPI_ACT_SEND, OPI_ACT_POST, "deadlocks: rank 0 at step"},
      {"2bw", OPIPE_RULE_TAG, OPI_ACT_SEND, OPI_ACT_POST, NULL},
  };
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    bench b = {.lists = NULL};
    make_lists(&b, rows[i].schedule, rows[i].rule);
    OPI_ASSERT_OK(prove(&b), &b.k.err);
    OPI_ASSERT_FATAL(swap_ends(b.lists, 1, rows[i].first, rows[i].second));
    if (rows[i].says == NULL)
      OPI_ASSERT_OK(prove(&b), &b.k.err);
    else
      OPI_ASSERT_ERROR(prove(&b), OPIPE_E_INVALID, &b.k.err, rows[i].says);
    end_lists(&b);
  }
}

/* The last receive of rank 1, of what the next mini-batch begins with, behind the step: the sender
 * stands at it, and its peer at the step, which is a barrier. */
static void test_bodies_that_differ(void) {
  for (uint32_t rule = OPIPE_RULE_EDGE; rule < RULES; ++rule) {
    bench b = {.lists = NULL};
    make_lists(&b, "2bw", rule);
    const uint32_t first = b.lists->rank_first[1], last = b.lists->rank_first[2] - 1;
    uint32_t at = last;
    while (at > first && b.lists->steps[at].kind != OPI_ACT_POST)
      --at;
    const opi_step post = b.lists->steps[at];
    OPI_ASSERT_FATAL(post.kind == OPI_ACT_POST && post.next == 1);
    OPI_ASSERT_INT(b.lists->steps[last].kind, OPI_ACT_UPDATE);
    memmove(&b.lists->steps[at], &b.lists->steps[at + 1], (last - at) * sizeof post);
    b.lists->steps[last] = post;
    OPI_ASSERT_ERROR(prove(&b), OPIPE_E_INVALID, &b.k.err, "deadlocks: rank 0 at step");
    OPI_ASSERT(strstr(b.k.err.message, "of micro-batch 0 from rank 0 (stage 0) to rank 1") != NULL);
    OPI_ASSERT(strstr(b.k.err.message, "the update, waits for rank 0") != NULL);
    end_lists(&b);
  }
}

/* A drain of what its own rank has not sent yet is a wait that the proof sees. */
static void test_drains_are_proven(void) {
  bench b = {.lists = NULL};
  make_lists(&b, "2bw", OPIPE_RULE_TAG);
  uint32_t drain = b.lists->rank_first[0];
  while (drain < b.lists->rank_first[1] && b.lists->steps[drain].kind != OPI_ACT_DRAIN)
    ++drain;
  OPI_ASSERT_FATAL(drain < b.lists->rank_first[1]);
  OPI_ASSERT_OK(prove(&b), &b.k.err);
  b.lists->steps[drain].lap += 1; /* of a mini-batch that has not been sent */
  OPI_ASSERT_ERROR(prove(&b), OPIPE_E_INVALID, &b.k.err, "deadlocks: rank 0 at step");
  end_lists(&b);
}

/* ---- sums over replicas ---- */

/* Two stages with a replica of each on either rank: rank 0 is done with stage 0 first, rank 1 with
 * stage 1. */
static const char *const CROSSED =
    "csv:text=#sync=eager\n"
    "rank 0: 0F0 0F2 0B0 0B2 1@1F1 1@1B1 1@1F3 1@1B3\n"
    "rank 1: 1F0 1B0 1F2 1B2 0@1F1 0@1F3 0@1B1 0@1B3\n";

/* The rank's k-th sum. */
static opi_step *sum_of(opi_lists *l, uint32_t rank, uint32_t k) {
  uint32_t i = l->rank_first[rank];
  while (i < l->rank_first[rank + 1] && (l->steps[i].kind != OPI_ACT_REDUCE || k-- > 0))
    ++i;
  return i == l->rank_first[rank + 1] ? NULL : &l->steps[i];
}

static void test_sums_stand_in_one_order(void) {
  for (uint32_t rule = 0; rule < RULES; ++rule) {
    bench b;
    make_lists(&b, CROSSED, rule);
    OPI_ASSERT_INT(b.lists->n_meetings, 2);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      OPI_ASSERT_FATAL(sum_of(b.lists, rank, 1) != NULL);
      OPI_ASSERT_INT(sum_of(b.lists, rank, 0)->stage, 1);
      OPI_ASSERT_INT(sum_of(b.lists, rank, 1)->stage, 0);
    }
    opi_step *first = sum_of(b.lists, 1, 0), *second = sum_of(b.lists, 1, 1);
    const opi_step held = *first;
    *first = *second;
    *second = held;
    OPI_ASSERT_ERROR(opi_lists_prove(&b.model->piece_plan, b.lists, b.model->cuts[0],
                                     opi_allocator_system(), &b.k.err),
                     OPIPE_E_INVALID, &b.k.err,
                     rule == OPIPE_RULE_GROUPED
                         ? "rank 1 has not come to the sum of stage 1's gradients; rank 1 at"
                         : "to the sum of stage 0's gradients and at step");
    end_lists(&b);
  }
}

/* One queue for messages and sums: a sum of one rank in front of a message that the other comes to
 * before its own. Under the other rules sums do not hold messages up. */
static void test_sums_stand_among_messages(void) {
  for (uint32_t rule = OPIPE_RULE_BLOCKING; rule <= OPIPE_RULE_GROUPED; ++rule) {
    bench b;
    make_lists(&b, CROSSED, rule);
    OPI_ASSERT_OK(prove(&b), &b.k.err);
    opi_step *steps = b.lists->steps;
    uint32_t sum = b.lists->rank_first[0], end = sum;
    while (steps[sum].kind != OPI_ACT_REDUCE)
      ++sum;
    for (uint32_t i = b.lists->rank_first[0]; i < sum; ++i)
      end = is_end(&steps[i]) ? i : end;
    OPI_ASSERT_FATAL(is_end(&steps[end]));
    const opi_step held = steps[end];
    memmove(&steps[end], &steps[end + 1], (sum - end) * sizeof held);
    steps[sum] = held;
    steps[sum].batch = 0;
    if (rule != OPIPE_RULE_GROUPED) {
      OPI_ASSERT_OK(prove(&b), &b.k.err);
    } else {
      OPI_ASSERT_ERROR(prove(&b), OPIPE_E_INVALID, &b.k.err, "rank 0 issues sum of stage");
      OPI_ASSERT(strstr(b.k.err.message, "; rank 1 issues ") != NULL);
    }
    end_lists(&b);
  }
}

static void test_crossed_sums_run(void) {
  kit k;
  kit_outcome a, b;
  const kit_case c = kit_case_of(CROSSED, 2, M, true);
  OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, 0, &a), &k.err);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, OPIPE_SESSION_REFERENCE, &b), &k.err);
  kit_compare("sums of two stages that cross", &a, &b, 0);
  kit_close(&k);
}

OPI_TEST_MAIN("training under the rules of transports", OPI_TEST(test_every_rule),
              OPI_TEST(test_replicas), OPI_TEST(test_double_buffered),
              OPI_TEST(test_skips_over_the_step), OPI_TEST(test_orders_that_differ),
              OPI_TEST(test_bodies_that_differ), OPI_TEST(test_drains_are_proven),
              OPI_TEST(test_sums_stand_in_one_order), OPI_TEST(test_sums_stand_among_messages),
              OPI_TEST(test_crossed_sums_run))
