/* SPDX-License-Identifier: Apache-2.0 */
/* Plans over transport-nccl are proven as one queue of each rank, across communicators: sums of
 * gradients, of tensor groups, and messages, which stand in one order on all ranks. Lists in which
 * one rank has two of them the other way round are refused, with the cycle and both ranks' lists.
 * On the driver's double; NCCL itself is not opened.
 * ctest: timeout=60 */
#include "partition/lists/lists.h"
#include "partition/program/model.h"
#include "tests/plugins/backend-cuda/training.h"

enum { RANKS = 2, M = 4, ROWS = 8, TOKENS = 8 };

/* Two stages with a replica of each on either rank: rank 0 is done with stage 0 first, rank 1 with
 * stage 1. */
static const char *const CROSSED =
    "csv:text=#sync=eager\n"
    "rank 0: 0F0 0F2 0B0 0B2 1@1F1 1@1B1 1@1F3 1@1B3\n"
    "rank 1: 1F0 1B0 1F2 1B2 0@1F1 0@1F3 0@1B1 0@1B3\n";

typedef struct bench {
  kit k;
  opi_cut_model *model;
  opi_lists *lists;
} bench;

/* The lists of a plan as a session would run them. */
static void make_lists(bench *b, const char *schedule, uint32_t tensor) {
  const uint32_t alignment[RANKS] = {256, 256};
  kit_case c = kit_case_of(schedule, RANKS, M, false);
  opi_bind_options bind = {.allocator = opi_allocator_system()};
  c.device = "cuda";
  c.spread = RANKS;
  c.transport = "nccl";
  c.tensor = tensor;
  OPI_ASSERT_FATAL(setenv("OPIPE_CUDA_DOUBLE_DEVICES", "2", 1) == 0);
  OPI_ASSERT_OK_FATAL(
      kit_open(&b->k, opi_test_source("tests/data/gpt_8block/model.onnx"), ROWS, TOKENS),
      &b->k.err);
  bind.evaluator = b->k.evaluator;
  OPI_ASSERT_OK_FATAL(kit_plan(&b->k, &c), &b->k.err);
  const opi_plan *plan = b->k.plan;
  OPI_ASSERT_INT(plan->decided.link.rule, OPIPE_RULE_GROUPED);
  OPI_ASSERT_STR(plan->decided.transport, "nccl");
  const opi_cut_sources from = {
      .plan = &plan->decided, .times = &plan->predicted.times, .file = b->k.model, .base = &bind};
  OPI_ASSERT_OK_FATAL(opi_cut_model_build(&from, &b->model, &b->k.err), &b->k.err);
  OPI_ASSERT_OK_FATAL(
      opi_lists_build(b->model, alignment, false, opi_allocator_system(), &b->lists, &b->k.err),
      &b->k.err);
}

static void end_lists(bench *b) {
  opi_lists_free(b->lists);
  opi_cut_model_free(b->model);
  kit_close(&b->k);
}

static opipe_status prove(bench *b) {
  return opi_lists_prove(&b->model->piece_plan, b->lists, b->model->cuts[0], opi_allocator_system(),
                         &b->k.err);
}

/* The rank's first step of the kind behind `after` (NULL: its first step). */
static opi_step *find(opi_lists *l, uint32_t rank, const opi_step *after, uint32_t kind) {
  uint32_t i = after == NULL ? l->rank_first[rank] : (uint32_t)(after - l->steps) + 1;
  while (i < l->rank_first[rank + 1] && l->steps[i].kind != kind)
    ++i;
  return i == l->rank_first[rank + 1] ? NULL : &l->steps[i];
}

static void swap(opi_step *a, opi_step *b) {
  const opi_step held = *a;
  OPI_ASSERT_FATAL(a != NULL && b != NULL && a->route != b->route);
  *a = *b;
  *b = held;
}

/* Refused: every one of these texts, ended by NULL, is in the message. */
static void expect_cycle(bench *b, const char *const *texts) {
  OPI_ASSERT_ERROR(prove(b), OPIPE_E_INVALID, &b->k.err, "deadlocks: rank ");
  for (; *texts != NULL; ++texts) {
    if (strstr(b->k.err.message, *texts) == NULL)
      OPI_FAIL("no '%s': %s", *texts, b->k.err.message);
  }
}

static void test_sums_of_gradients(void) {
  static const char *const texts[] = {
      "rank 0 at step ",
      "waits for a sum: rank 1 has not come to the sum of stage 1's gradients",
      "rank 1 at step ",
      "waits for a sum: rank 0 has not come to the sum of stage 0's gradients",
      "rank 0 issues sum of stage 1, sum of stage 0",
      "rank 1 issues sum of stage 0, sum of stage 1",
      NULL};
  bench b = {.lists = NULL};
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  make_lists(&b, CROSSED, 0);
  OPI_ASSERT(opi_plan_is_unordered(&b.k.plan->decided));
  OPI_ASSERT_OK(prove(&b), &b.k.err);
  opi_step *first = find(b.lists, 1, NULL, OPI_ACT_REDUCE);
  swap(first, first == NULL ? NULL : find(b.lists, 1, first, OPI_ACT_REDUCE));
  expect_cycle(&b, texts);
  end_lists(&b);
}

static void test_sums_of_a_tensor_group(void) {
  static const char *const texts[] = {
      "waits for a sum: rank 1 has not come to the sum of '",
      "waits for a sum: rank 0 has not come to the sum of '",
      "rank 0 issues sum of 'node_add_1/part~0', sum of 'node_add_4",
      "rank 1 issues sum of 'node_add_4/part~0', sum of 'node_add_1", NULL};
  bench b = {.lists = NULL};
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  make_lists(&b, "1f1b", RANKS);
  OPI_ASSERT(opi_plan_is_unordered(&b.k.plan->decided));
  OPI_ASSERT_OK(prove(&b), &b.k.err);
  opi_step *first = find(b.lists, 1, NULL, OPI_ACT_SUM);
  swap(first, first == NULL ? NULL : find(b.lists, 1, first, OPI_ACT_SUM));
  expect_cycle(&b, texts);
  end_lists(&b);
}

/* A sum and a message are of two communicators, and of one queue. */
static void test_a_sum_and_a_message(void) {
  static const char *const texts[] = {"rank 0 issues", "rank 1 issues", "sum of stage ",
                                      " of micro-batch ", NULL};
  bench b = {.lists = NULL};
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  make_lists(&b, CROSSED, 0);
  OPI_ASSERT_OK(prove(&b), &b.k.err);
  opi_step *sum = find(b.lists, 1, NULL, OPI_ACT_REDUCE), *last = NULL;
  OPI_ASSERT_FATAL(sum != NULL);
  for (opi_step *s = b.lists->steps + b.lists->rank_first[1]; s < sum; ++s)
    last = s->kind == OPI_ACT_SEND || s->kind == OPI_ACT_POST ? s : last;
  swap(last, sum);
  expect_cycle(&b, texts);
  end_lists(&b);
}

OPI_TEST_MAIN("proofs of plans over NCCL", OPI_TEST(test_sums_of_gradients),
              OPI_TEST(test_sums_of_a_tensor_group), OPI_TEST(test_a_sum_and_a_message))
