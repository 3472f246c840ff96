/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering, the proof and the simulator: what is complete and what deadlocks, and times that can be
 * worked out by hand. */
#include "partition/lists/lists.h"
#include "partition/program/model.h"
#include "partition/program/records.h"
#include "partition/schedule/actions.h"
#include "tests/partition/toy.h"

/* A chain of n nodes of 8 floats, one per stage. */
static opi_cut *chain(toy *t, uint32_t n) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_cut *c = NULL;
  uint32_t stages[16];
  toy_open(t);
  uint32_t v = toy_input(t, "x", 8);
  for (uint32_t i = 0; i < n; ++i) {
    char name[16];
    (void)snprintf(name, sizeof(name), "v%u", i);
    v = toy_node(t, name, &v, 1, 8);
    stages[i] = i;
  }
  toy_output(t, v);
  const opi_cut_source source = {.graph = t->graph, .stage = stages, .n_stages = n};
  OPI_ASSERT_OK_FATAL(opi_cut_build(&source, opi_allocator_system(), &c, &err), &err);
  return c;
}

/* A plan of one cut, as lists hold it. */
typedef struct lowered {
  opi_cut_model model; /* view and cuts alone */
  opi_lists *lists;
} lowered;

static void lowered_free(lowered *l) {
  opi_lists_free(l->lists);
  opi_arena_release(&l->model.arena);
  *l = (lowered){.lists = NULL};
}

static opipe_status lower_and_prove(const opi_decision *plan, opi_cut *c, lowered *l,
                                    opipe_error *err) {
  const uint32_t alignment[16] = {0};
  *l = (lowered){.model = {.n_classes = 1,
                           .n_slices = 1,
                           .n_members = 1,
                           .n_places = 1,
                           .n_pieces = 1,
                           .cuts = {c}}};
  opi_arena_init(&l->model.arena, opi_allocator_system(), 0);
  OPI_TRY(opi_records_check(plan, c, err));
  OPI_TRY(opi_piece_plan_build(plan, &l->model, err));
  return opi_lists_build(&l->model, alignment, false, opi_allocator_system(), &l->lists, err);
}

static opi_replay_result times_of(lowered *l, opi_cut *c, double *ns, uint32_t n_requests) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_replay_result times = {0};
  l->model.piece_plan.times.stage_ns = ns;
  OPI_ASSERT_OK(
      opi_lists_replay(&l->model.piece_plan, l->lists, c, n_requests / l->lists->n_positions,
                       opi_allocator_system(), &times, &err),
      &err);
  return times;
}

static void test_a_straight_pipeline_is_proven_and_timed(void) {
  toy t;
  opipe_error err = OPIPE_ERROR_INIT;
  lowered l;
  opi_cut *c = chain(&t, 4);
  opi_decision plan = toy_plan(&t, 4, 3, 2);
  OPI_ASSERT_OK_FATAL(lower_and_prove(&plan, c, &l, &err), &err);
  /* rank 0: LOAD DRAIN COMPUTE SEND; rank 3: RECV COMPUTE STORE POST; three times in a request, and
   * two requests bring two slots back to where they were */
  OPI_ASSERT_INT(l.lists->n_positions, 2);
  OPI_ASSERT_INT(l.lists->rank_first[1], 2 * 3 * 4);
  OPI_ASSERT_INT(l.lists->steps[0].kind, OPI_ACT_LOAD);
  OPI_ASSERT_INT(l.lists->steps[l.lists->rank_first[3]].kind, OPI_ACT_RECV);
  OPI_ASSERT_INT(l.lists->steps[l.lists->rank_first[3] + 2].kind, OPI_ACT_STORE);
  OPI_ASSERT_INT(l.lists->steps[l.lists->rank_first[3] + 3].kind, OPI_ACT_POST);
  double ns[4] = {10, 10, 20, 10};
  const opi_replay_result times = times_of(&l, c, ns, 12);
  OPI_ASSERT_INT(times.request_ns,
                 10 + 10 + 3 * 20 + 10); /* fill, then the slowest stage three times, then drain */
  OPI_ASSERT_INT(times.interval_ns, 3 * 20);
  lowered_free(&l);
  opi_cut_free(c);
  toy_close(&t);
}

/* A tensor that skips stages has slots for all the micro-batches that are under way between its
 * ends: it holds nobody up, and all of them are powers of one number. */
static void test_a_skip_does_not_slow_the_stream(void) {
  toy t;
  opipe_error err = OPIPE_ERROR_INIT;
  lowered l;
  opi_cut *c = NULL;
  const uint32_t stages[6] = {0, 1, 2, 3, 4, 5};
  toy_open(&t);
  uint32_t v = toy_input(&t, "x", 8), first = OPIPE_NONE;
  for (uint32_t i = 0; i < 6; ++i) {
    char name[16];
    (void)snprintf(name, sizeof name, "v%u", i);
    const uint32_t in[2] = {v, first};
    v = toy_node(&t, name, in, i < 3 ? 1 : 2, 8); /* 3, 4 and 5 read the first as well */
    first = i == 0 ? v : first;
  }
  toy_output(&t, v);
  const opi_cut_source source = {.graph = t.graph, .stage = stages, .n_stages = 6};
  OPI_ASSERT_OK_FATAL(opi_cut_build(&source, opi_allocator_system(), &c, &err), &err);
  opi_decision plan = toy_plan(&t, 6, 1, 2);
  OPI_ASSERT_OK_FATAL(lower_and_prove(&plan, c, &l, &err), &err);
  double ns[6] = {10, 10, 10, 10, 10, 10};
  const opi_replay_result times = times_of(&l, c, ns, 40);
  OPI_ASSERT_INT(times.interval_ns, 10);
  static const uint32_t wanted[] = {0, 2, 4, 4, 8, 8}; /* by stages from end to end */
  for (uint32_t r = 0; r < c->n_routes; ++r) {
    const uint32_t distance = c->routes[r].dst_stage - c->routes[r].src_stage;
    OPI_ASSERT_INT(opi_forward_slots(&plan, distance), wanted[distance]);
  }
  lowered_free(&l);
  opi_cut_free(c);
  toy_close(&t);
}

static void test_one_in_flight_is_sequential(void) {
  toy t;
  opipe_error err = OPIPE_ERROR_INIT;
  lowered l;
  opi_cut *c = chain(&t, 3);
  opi_decision plan = toy_plan(&t, 3, 2, 2);
  plan.in_flight = 1;
  OPI_ASSERT_OK_FATAL(lower_and_prove(&plan, c, &l, &err), &err);
  double ns[3] = {5, 7, 9};
  const opi_replay_result times = times_of(&l, c, ns, 8);
  OPI_ASSERT_INT(times.request_ns, 2 * 21);
  OPI_ASSERT_INT(times.interval_ns, 2 * 21);
  lowered_free(&l);
  opi_cut_free(c);
  toy_close(&t);
}

static void test_missing_and_double_actions_are_named(void) {
  toy t;
  opipe_error err = OPIPE_ERROR_INIT;
  lowered l;
  opi_cut *c = chain(&t, 2);
  opi_decision plan = toy_plan(&t, 2, 2, 2);
  plan.actions[3].microbatch = 0; /* 1F0 twice, 1F1 never */
  OPI_ASSERT_ERROR(lower_and_prove(&plan, c, &l, &err), OPIPE_E_INVALID, &err,
                   "rank 1, step 1: 1F0: it occurs twice");
  lowered_free(&l);
  plan = toy_plan(&t, 2, 2, 2);
  plan.n_actions = plan.rank_first[2] = 3;
  OPI_ASSERT_ERROR(lower_and_prove(&plan, c, &l, &err), OPIPE_E_INVALID, &err,
                   "1F1 is missing (stage 1");
  lowered_free(&l);
  plan = toy_plan(&t, 2, 2, 2);
  plan.actions[0].stage = 1;
  OPI_ASSERT_ERROR(lower_and_prove(&plan, c, &l, &err), OPIPE_E_INVALID, &err,
                   "stage 1, replica 0 lives on rank 1");
  opi_cut_free(c);
  toy_close(&t);
}

static void test_a_stage_that_is_not_there_is_named(void) {
  toy t;
  opipe_error err = OPIPE_ERROR_INIT;
  lowered l;
  opi_cut *c = chain(&t, 2);
  opi_decision plan = toy_plan(&t, 2, 2, 2);
  plan.actions[0].stage = 300000;
  OPI_ASSERT_ERROR(lower_and_prove(&plan, c, &l, &err), OPIPE_E_INVALID, &err, "stage 300000 of 2");
  plan.actions[0].stage = 0;
  plan.actions[3].microbatch = 7;
  OPI_ASSERT_ERROR(lower_and_prove(&plan, c, &l, &err), OPIPE_E_INVALID, &err,
                   "stage 1 of 2, micro-batch 7 of 2");
  opi_cut_free(c);
  toy_close(&t);
}

/* Rank 1 wants micro-batch 2 first; with one slot rank 0 cannot get that far. With three it can. */
static void test_a_deadlock_prints_its_cycle(void) {
  toy t;
  opipe_error err = OPIPE_ERROR_INIT;
  lowered l;
  opi_cut *c = chain(&t, 2);
  opi_decision plan = toy_plan(&t, 2, 3, 1);
  plan.actions[3].microbatch = 2;
  plan.actions[5].microbatch = 0;
  OPI_ASSERT_ERROR(lower_and_prove(&plan, c, &l, &err), OPIPE_E_INVALID, &err,
                   "deadlocks: rank 0 at step 5, tensor 'v0' of micro-batch 0 from rank 0 (stage "
                   "0) to rank 1 (stage 1) was never awaited; rank 1 at step 0, tensor 'v0' of "
                   "micro-batch 2 from rank 0 (stage 0) to rank 1 (stage 1) was never awaited");
  lowered_free(&l);
  plan.depth = 3;
  OPI_ASSERT_OK(lower_and_prove(&plan, c, &l, &err), &err);
  lowered_free(&l);
  opi_cut_free(c);
  toy_close(&t);
}

/* Stages 0 and 2 on rank 0, 1 and 3 on rank 1: each begins with what the other makes last. Under a
 * rule that matches by order a request is a list with an end. */
static void test_records_that_wait_in_a_circle_are_told(void) {
  toy t;
  opipe_error err = OPIPE_ERROR_INIT;
  lowered l;
  opi_cut *c = chain(&t, 4);
  opi_decision plan = toy_plan(&t, 4, 1, 1);
  plan.n_ranks = 2;
  plan.link.rule = OPI_RULE_EDGE;
  plan.rank_first[1] = 2;
  plan.rank_first[2] = 4;
  static const uint32_t stages[4] = {2, 0, 1, 3};
  for (uint32_t i = 0; i < 4; ++i) {
    plan.instance_rank[i] = i % 2;
    plan.actions[i].rank = i / 2;
    plan.actions[i].stage = stages[i];
  }
  OPI_ASSERT_ERROR(lower_and_prove(&plan, c, &l, &err), OPIPE_E_INVALID, &err,
                   "schedule 'toy' deadlocks: rank 0, action 0: 2F0 waits for rank 1, action 0: "
                   "1F0; rank 1, action 0: 1F0 waits for rank 0, action 1: 0F0");
  lowered_free(&l);
  plan.actions[0].stage = 0;
  plan.actions[1].stage = 2;
  OPI_ASSERT_OK(lower_and_prove(&plan, c, &l, &err), &err);
  lowered_free(&l);
  opi_cut_free(c);
  toy_close(&t);
}

/* ---- sums over ranks ---- */

enum { SUMS = 3, RANKS = 3 };

/* A mini-batch of sums alone: of gradients, or each awaited before the next. order [RANKS][SUMS]:
 * the sums to which a rank comes; OPIPE_NONE: no more. times NULL: it is proven. */
static opipe_status replay_sums(const opi_link *link, bool awaited, opi_list_meeting *meetings,
                                const uint32_t (*order)[SUMS], opi_replay_result *times,
                                opipe_error *err) {
  const opi_train_spec spec = {.optimizer = {.kind = OPIPE_OPTIMIZER_SGD}};
  const opi_decision whole = {.schedule.name = "toy",
                              .allocator = opi_allocator_system(),
                              .n_ranks = RANKS,
                              .link = *link,
                              .train = &spec};
  const opi_piece_plan plan = {.whole = &whole,
                               .n_ranks = RANKS,
                               .n_stages = SUMS,
                               .n_replicas = 2,
                               .n_pieces = 1,
                               .trains = true};
  opi_step steps[RANKS * (2 * SUMS + 1)];
  uint32_t rank_first[RANKS + 1], request_first[RANKS + 1] = {0};
  opi_lists lists = {.steps = steps,
                     .rank_first = rank_first,
                     .request_first = request_first,
                     .meetings = meetings,
                     .n_meetings = SUMS,
                     .n_ranks = RANKS,
                     .n_positions = 1};
  for (uint32_t rank = 0; rank < RANKS; ++rank) {
    rank_first[rank] = lists.n_steps;
    for (uint32_t i = 0; i < SUMS && order[rank][i] != OPIPE_NONE; ++i) {
      steps[lists.n_steps++] =
          (opi_step){.kind = awaited ? OPI_ACT_SUM : OPI_ACT_REDUCE, .route = order[rank][i]};
      if (awaited)
        steps[lists.n_steps++] = (opi_step){.kind = OPI_ACT_AWAIT, .route = order[rank][i]};
    }
    steps[lists.n_steps++] = (opi_step){.kind = OPI_ACT_UPDATE};
  }
  rank_first[RANKS] = lists.n_steps;
  const opi_cut cut = {.n_stages = 0};
  return times == NULL
             ? opi_lists_prove(&plan, &lists, &cut, opi_allocator_system(), err)
             : opi_lists_replay(&plan, &lists, &cut, 1, opi_allocator_system(), times, err);
}

static opipe_status prove_sums(uint32_t rule, opi_list_meeting *meetings,
                               const uint32_t (*order)[SUMS], opipe_error *err) {
  return replay_sums(&(opi_link){.rule = rule}, false, meetings, order, NULL, err);
}

/* Sums of groups that share two ranks must be met in one order on both. */
static void test_sums_in_two_orders_are_refused(void) {
  uint32_t both[2] = {0, 1}, other[2] = {1, 2};
  opi_list_meeting meetings[SUMS] = {
      {both, 2, 0, NULL, 0}, {both, 2, 1, NULL, 0}, {other, 2, 2, NULL, 0}};
  static const uint32_t swapped[RANKS][SUMS] = {{0, 1, OPIPE_NONE}, {2, 1, 0}, {2, OPIPE_NONE}};
  static const uint32_t lacking[RANKS][SUMS] = {
      {0, 1, OPIPE_NONE}, {0, 2, OPIPE_NONE}, {2, OPIPE_NONE}};
  static const uint32_t good[RANKS][SUMS] = {{0, 1, OPIPE_NONE}, {0, 2, 1}, {2, OPIPE_NONE}};
  opipe_error queue = OPIPE_ERROR_INIT; /* one of each rank: it waits at the sum itself */
  OPI_ASSERT_ERROR(
      prove_sums(OPI_RULE_GROUPED, meetings, swapped, &queue), OPIPE_E_INVALID, &queue,
      "rank 0 issues sum of stage 0, sum of stage 1; rank 1 issues sum of stage 1, sum "
      "of stage 0");
  OPI_ASSERT_ERROR(prove_sums(OPI_RULE_GROUPED, meetings, lacking, &queue), OPIPE_E_INVALID, &queue,
                   "rank 0 at step 1 waits for a sum: rank 1 has not come");
  OPI_ASSERT_OK(prove_sums(OPI_RULE_GROUPED, meetings, good, &queue), &queue);
  for (uint32_t rule = OPI_RULE_TAG; rule < OPI_RULE_GROUPED; ++rule) {
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_ERROR(prove_sums(rule, meetings, swapped, &err), OPIPE_E_INVALID, &err,
                     "schedule 'toy' deadlocks: rank 0 at step 2, the update, waits for a sum: "
                     "rank 0 comes at step 0 to the sum of stage 0's gradients and at step 1 to "
                     "the sum of stage 1's gradients; rank 1 comes at step 1 to the sum of stage "
                     "1's gradients and at step 2 to the sum of stage 0's gradients");
    OPI_ASSERT_ERROR(prove_sums(rule, meetings, lacking, &err), OPIPE_E_INVALID, &err,
                     "rank 0 at step 2, the update, waits for a sum: rank 1 has not come to the "
                     "sum of stage 1's gradients");
    OPI_ASSERT_OK(prove_sums(rule, meetings, good, &err), &err);
  }
}

/* Sums between stretches: whoever needs a result waits, for ever if ranks need two in two orders.
 */
static void test_sums_that_are_awaited(void) {
  uint32_t both[2] = {0, 1}, other[2] = {1, 2};
  static const opi_group_value large = {
      .kind = OPI_COLLECTIVE_SUM, .dtype = OPIPE_FLOAT, .n_bytes = 100};
  static const opi_group_value small = {
      .kind = OPI_COLLECTIVE_SUM, .dtype = OPIPE_FLOAT, .n_bytes = 40};
  opi_list_meeting meetings[SUMS] = {{both, 2, 0, "x", 100, &large, 1},
                                     {both, 2, 0, "y", 100, &large, 1},
                                     {other, 2, 1, "z", 40, &small, 1}};
  static const uint32_t good[RANKS][SUMS] = {{0, 1, OPIPE_NONE}, {0, 2, 1}, {2, OPIPE_NONE}};
  static const uint32_t swapped[RANKS][SUMS] = {
      {0, 1, OPIPE_NONE}, {1, 0, OPIPE_NONE}, {OPIPE_NONE}};
  for (uint32_t rule = OPI_RULE_TAG; rule <= OPI_RULE_GROUPED; ++rule) {
    const opi_link link = {.rule = rule, .latency_ns = 10, .bytes_per_ns = 1};
    opi_replay_result times = {.start_ns = NULL};
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK(replay_sums(&link, true, meetings, good, NULL, &err), &err);
    OPI_ASSERT_OK(replay_sums(&link, true, meetings, good, &times, &err), &err);
    OPI_ASSERT_INT(times.request_ns, 2 * (10 + 50) + 2 * (10 + 20) + 2 * (10 + 50));
    OPI_ASSERT_ERROR(replay_sums(&link, true, meetings, swapped, NULL, &err), OPIPE_E_INVALID, &err,
                     rule == OPI_RULE_GROUPED
                         ? "rank 0 at step 0 waits for a sum: rank 1 has not come to the sum of 'x'"
                         : "rank 0 at step 1 waits for a sum: rank 1 has not come to the sum of "
                           "'x' in stage 0; rank 1 at step 1 waits for a sum: rank 0 has not come "
                           "to the sum of 'y' in stage 0");
  }
}

/* Three groups of which any two share one rank wait for each other in no order; but where a rank's
 * groups are one queue, each waits for the next.
 */
static void test_sums_of_other_groups_pass_each_other(void) {
  uint32_t pairs[SUMS][2] = {{0, 1}, {1, 2}, {0, 2}};
  opi_list_meeting meetings[SUMS] = {
      {pairs[0], 2, 0, NULL, 0}, {pairs[1], 2, 1, NULL, 0}, {pairs[2], 2, 2, NULL, 0}};
  static const uint32_t order[RANKS][SUMS] = {
      {0, 2, OPIPE_NONE}, {1, 0, OPIPE_NONE}, {2, 1, OPIPE_NONE}};
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK(prove_sums(OPI_RULE_BLOCKING, meetings, order, &err), &err);
  OPI_ASSERT_ERROR(prove_sums(OPI_RULE_GROUPED, meetings, order, &err), OPIPE_E_INVALID, &err,
                   "rank 0 issues sum of stage 0, sum of stage 2");
}

OPI_TEST_MAIN("proof", OPI_TEST(test_a_straight_pipeline_is_proven_and_timed),
              OPI_TEST(test_a_skip_does_not_slow_the_stream),
              OPI_TEST(test_one_in_flight_is_sequential),
              OPI_TEST(test_missing_and_double_actions_are_named),
              OPI_TEST(test_a_stage_that_is_not_there_is_named),
              OPI_TEST(test_a_deadlock_prints_its_cycle),
              OPI_TEST(test_records_that_wait_in_a_circle_are_told),
              OPI_TEST(test_sums_in_two_orders_are_refused), OPI_TEST(test_sums_that_are_awaited),
              OPI_TEST(test_sums_of_other_groups_pass_each_other))
