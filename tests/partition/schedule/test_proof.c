/* SPDX-License-Identifier: Apache-2.0 */
/* The proof against a search through all interleavings, for random and perturbed lists under every
 * rule; what it says about each kind of mistake; its time on a large schedule.
 * ctest: timeout=120
 */
#include <time.h>

#include "tests/partition/schedule/replay.h"

static made m;

static opi_do_list *lower_bare(const made *order, uint32_t depth) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *list = made_list(order), *sent = NULL, *placed = NULL;
  OPI_ASSERT_OK_FATAL(opi_pass_messages(&order->problem, list, opi_allocator_system(), &sent, &err),
                      &err);
  opi_do_list_free(list);
  if (depth == 0)
    return sent;
  OPI_ASSERT_OK_FATAL(
      opi_pass_defer(&order->problem, sent, depth, opi_allocator_system(), &placed, &err), &err);
  opi_do_list_free(sent);
  return placed;
}

static opipe_status prove(const opi_problem *problem, const opi_do_list *list, uint32_t rule,
                          opipe_error *err) {
  opi_proof proof = {0};
  return opi_proof_check(problem, list, rule, opi_allocator_system(), &proof, err);
}

static void compare(const opi_do_list *list, uint32_t refused[OPI_RULES],
                    uint32_t accepted[OPI_RULES]) {
  OPI_ASSERT_FATAL(replay_states(list) <= REPLAY_STATES);
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
    opipe_error err = OPIPE_ERROR_INIT;
    uint32_t states = 0;
    const bool wanted = replay_all(&m.problem, list, rule, &states);
    const opipe_status found = prove(&m.problem, list, rule, &err);
    ++(wanted ? accepted : refused)[rule];
    if (wanted == (found == OPIPE_OK))
      continue;
    OPI_FAIL("rule %s: %s in %u states, the proof says %s", opi_rule_name(rule),
             wanted ? "runs" : "stands still", states, found == OPIPE_OK ? "yes" : err.message);
  }
}

/* As placed, lazily, and with neighbours swapped. */
static void test_the_proof_equals_all_interleavings(void) {
  opi_test_random random = {20240607};
  uint32_t refused[OPI_RULES] = {0}, accepted[OPI_RULES] = {0};
  for (uint32_t round = 0; round < 120; ++round) {
    const uint32_t ranks = 2 + round % 2, stages = ranks + round % 3 % 2, halves = round % 5 == 0;
    replay_random(&m, &random, ranks, stages, ranks == 2 ? 3 : 2, halves != 0);
    for (uint32_t depth = 0; depth < 3; ++depth) {
      opi_do_list *list = lower_bare(&m, depth);
      compare(list, refused, accepted);
      replay_perturb(list, &random, 1 + round % 3);
      compare(list, refused, accepted);
      opi_do_list_free(list);
    }
  }
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
    OPI_ASSERT(accepted[rule] > 50);
    OPI_ASSERT(refused[rule] > 50);
  }
}

/* A global order of messages holds under every rule. */
static void test_early_receives_hold_under_every_rule(void) {
  opi_test_random random = {7};
  for (uint32_t round = 0; round < 200; ++round) {
    replay_random(&m, &random, 2 + round % 3, 4 + round % 4, 1 + round % 8, round % 2 == 0);
    opi_do_list *list = lower_bare(&m, 0);
    for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
      opipe_error err = OPIPE_ERROR_INIT;
      OPI_ASSERT_OK(prove(&m.problem, list, rule, &err), &err);
    }
    opi_do_list_free(list);
  }
}

static uint32_t find(const opi_do_list *list, uint32_t kind, uint32_t stage, uint32_t microbatch) {
  const opi_do like = {.microbatch = microbatch};
  return replay_find(list, kind, stage, 0, &like);
}

/* One mistake at a time in a lowered 1F1B. */
static void test_mistakes_are_named(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *lowered = NULL, *list = NULL;
  const opi_lowering how = {.receive_depth = 0};
  const opipe_allocator *allocator = opi_allocator_system();
  made_1f1b(&m, 3, 4, false);
  list = made_list(&m);
  OPI_ASSERT_OK_FATAL(opi_lower_order(&m.problem, list, &how, allocator, &lowered, &err), &err);
  OPI_ASSERT_OK(prove(&m.problem, lowered, OPI_RULE_TAG, &err), &err);
  const struct {
    uint32_t kind, stage, microbatch;
    opi_do becomes;
    const char *says;
  } rows[] = {
      {OPI_DO_F, 1, 2, {.kind = OPI_DO_F, .stage = 1, .microbatch = 1}, "occurs twice"},
      {OPI_DO_F, 1, 2, {.kind = OPI_DO_IDLE}, "forward 1F2 does not run before"},
      {OPI_DO_B, 2, 3, {.kind = OPI_DO_IDLE}, "2B3 is missing"},
      {OPI_DO_F, 0, 0, {.kind = OPI_DO_F, .stage = 2}, "lives on rank 2"},
      {OPI_DO_F, 0, 0, {.kind = OPI_DO_F, .microbatch = 9}, "micro-batch 9 of 4"},
      {OPI_DO_F, 0, 0, {.kind = OPI_DO_F, .version = 1}, "weight version 1"},
      {OPI_DO_SEND_F, 0, 1, {.kind = OPI_DO_IDLE}, "nobody sends it"},
      {OPI_DO_RECV_B, 0, 1, {.kind = OPI_DO_IDLE}, "nobody receives it"},
      {OPI_DO_STEP, OPIPE_NONE, 0, {.kind = OPI_DO_IDLE}, "STEP is missing (on rank 0; rank 1"},
      {OPI_DO_FREE, 0, 1, {.kind = OPI_DO_STEP, .stage = OPIPE_NONE}, "STEP: it occurs twice"},
      {OPI_DO_FREE, 1, 1, {.kind = OPI_DO_FREE, .stage = 1}, "1FREE0: it occurs twice"},
      {OPI_DO_FREE, 1, 2, {.kind = OPI_DO_IDLE}, "1FREE2 is missing (on rank 1"},
      {OPI_DO_FREE, 1, 2, {.kind = OPI_DO_FREE, .stage = 2}, "no such stage"},
      {OPI_DO_FREE, 1, 2, {.kind = OPI_DO_FREE, .stage = 1, .microbatch = 4}, "micro-batch 4 of 4"},
  };
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    const uint32_t at = find(lowered, rows[i].kind, rows[i].stage, rows[i].microbatch);
    OPI_ASSERT_FATAL(at != OPIPE_NONE);
    const opi_do held = lowered->items[at];
    lowered->items[at] = rows[i].becomes;
    lowered->items[at].edge = held.edge;
    OPI_ASSERT_ERROR(prove(&m.problem, lowered, OPI_RULE_TAG, &err), OPIPE_E_INVALID, &err,
                     rows[i].says);
    lowered->items[at] = held;
  }
  /* a step in front of a backward */
  const uint32_t step = find(lowered, OPI_DO_STEP, OPIPE_NONE, 0);
  const opi_do held = lowered->items[0];
  lowered->items[0] = lowered->items[step];
  OPI_ASSERT(prove(&m.problem, lowered, OPI_RULE_TAG, &err) < 0);
  lowered->items[0] = held;
  opi_do_list_free(lowered);
  opi_do_list_free(list);
}

/* A whole list without any step or free is proven; what computes again does so once. */
static void test_steps_and_frees_are_there_or_not(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  made_1f1b(&m, 3, 4, false);
  opi_do_list *list = lower_bare(&m, 0);
  OPI_ASSERT_OK(prove(&m.problem, list, OPI_RULE_TAG, &err), &err);
  opi_do_list_free(list);
  opi_order *order = order_read("0F0,0R0,0B0,0F1,0R1,0B1,STEP\n", OPI_DIALECT_OPIPE);
  OPI_ASSERT_OK(order_prove(order, OPI_RULE_TAG, &err), &err);
  opi_order_free(order);
  order = order_read("0F0,0R0,0R0,0B0\n", OPI_DIALECT_OPIPE);
  OPI_ASSERT_ERROR(order_prove(order, OPI_RULE_TAG, &err), OPIPE_E_INVALID, &err,
                   "rank 0, step 2: 0R0: it occurs twice");
  opi_order_free(order);
}

/* Two ranks that each wait for what the other does later. */
static void test_a_deadlock_is_told_as_its_cycle(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_order *order = order_read(
      "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n"
      "2RECV_B0,1RECV_F0,2F0,2SEND_F0,1F0,2B0,1B0,1SEND_B0\n",
      OPI_DIALECT_TORCH);
  OPI_ASSERT_ERROR(order_prove(order, OPI_RULE_TAG, &err), OPIPE_E_INVALID, &err,
                   "deadlock (rule tag): rank 1, step 2: 2F0 waits for rank 1, step 4: 1F0");
  opi_order_free(order);
  order = order_read(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
      OPI_DIALECT_TORCH);
  OPI_ASSERT_OK(order_prove(order, OPI_RULE_EDGE, &err), &err);
  OPI_ASSERT_ERROR(order_prove(order, OPI_RULE_BLOCKING, &err), OPIPE_E_INVALID, &err,
                   "rank 0, step 3: 0SEND_F1 waits for rank 1, step 4: 1RECV_F1; rank 1, step 3: "
                   "1SEND_B0 waits for rank 0, step 4: 0RECV_B0");
  OPI_ASSERT_ERROR(order_prove(order, OPI_RULE_PAIR, &err), OPIPE_E_INVALID, &err, "deadlock");
  opi_order_free(order);
}

/* The cycle names the computes in it and no others, by the steps of the order as it was given,
 * reductions that are placed anew included. */
static void test_a_deadlock_of_computes_is_told_as_its_cycle(void) {
  static const struct {
    const char *text, *says;
  } rows[] = {{"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n",
               "the order deadlocks: rank 0, step 1: 0B0 waits for rank 1, step 2: 1B0; rank 1, "
               "step 1: 1F1 waits for rank 0, step 2: 0F1"},
              {"0REDUCE,0F0,0I0,0W0,0F1,0B1\n1F0,1F1,1I0,1W0,1B1\n",
               "the order deadlocks: rank 0, step 2: 0I0 waits for rank 1, step 2: 1I0; rank 1, "
               "step 1: 1F1 waits for rank 0, step 4: 0F1"},
              {"(0F0;0B0)OVERLAP_F_B,0F1,0B1\n",
               "the order deadlocks: rank 0, step 1: 0B0 waits for rank 0, step 0: 0F0"}};
  const opi_lowering how = {.receive_depth = 0};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    opi_do_list *lowered = NULL;
    opi_order *order = order_read(rows[i].text, OPI_DIALECT_OPIPE);
    OPI_ASSERT_ERROR(
        opi_lower_order(&order->problem, order->list, &how, opi_allocator_system(), &lowered, &err),
        OPIPE_E_INVALID, &err, rows[i].says);
    OPI_ASSERT_INT(strlen(err.message), strlen(rows[i].says));
    opi_order_free(order);
  }
}

/* Receives in another order than their sends, where messages meet in order. */
static void test_a_deadlock_of_matching_is_told_as_its_cycle(void) {
  static const uint32_t rules[] = {OPI_RULE_STREAM, OPI_RULE_EDGE, OPI_RULE_PAIR};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_order *order = order_read(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
      OPI_DIALECT_OPIPE);
  OPI_ASSERT_OK(order_prove(order, OPI_RULE_TAG, &err), &err);
  for (size_t i = 0; i < OPI_COUNT(rules); ++i) {
    OPI_ASSERT_ERROR(order_prove(order, rules[i], &err), OPIPE_E_INVALID, &err,
                     "rank 1, step 0: 1RECV_F1 waits for rank 0, step 3: 0SEND_F1; rank 0, step 1: "
                     "0SEND_F0 waits for rank 1, step 1: 1RECV_F0");
  }
  opi_order_free(order);
}

static void test_slots_and_caps(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  const uint64_t caps[] = {4, 3, 2, 1}, tight[] = {4, 2, 2, 1};
  opi_do_list *list = NULL;
  made_1f1b(&m, 4, 6, false);
  list = lower_bare(&m, 1);
  m.problem.rank_stash_bytes = caps;
  OPI_ASSERT_OK(prove(&m.problem, list, OPI_RULE_TAG, &err), &err);
  m.problem.rank_stash_bytes = tight;
  OPI_ASSERT_ERROR(prove(&m.problem, list, OPI_RULE_TAG, &err), OPIPE_E_LIMIT, &err,
                   "stashes take 3, the rank has 2");
  m.problem.rank_stash_bytes = NULL;
  m.problem.recv_slots = 1;
  OPI_ASSERT_OK(prove(&m.problem, list, OPI_RULE_TAG, &err), &err);
  opi_do_list_free(list);
  opi_order *order = order_read(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n",
      OPI_DIALECT_TORCH);
  order->problem.recv_slots = 1;
  OPI_ASSERT_ERROR(order_prove(order, OPI_RULE_TAG, &err), OPIPE_E_INVALID, &err,
                   "rank 1, step 1: 1RECV_F1 waits for rank 1, step 2: 1F0");
  order->problem.recv_slots = 2;
  OPI_ASSERT_OK(order_prove(order, OPI_RULE_TAG, &err), &err);
  opi_order_free(order);
  m.problem.recv_slots = 0;
  /* GPipe with one message under way: the last forwards wait for a receiver that waits for nothing
   */
  made_1f1b(&m, 2, 6, true);
  m.problem.send_slots = 1;
  list = lower_bare(&m, 1);
  OPI_ASSERT_OK(prove(&m.problem, list, OPI_RULE_TAG, &err), &err);
  opi_do_list_free(list);
}

static void test_two_directions_reduce(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  made_chimera(&m, 4, 4);
  for (uint32_t sync = OPIPE_SYNC_END; sync <= OPIPE_SYNC_EAGER_OPT; ++sync) {
    opi_do_list *list = made_list(&m), *lowered = NULL;
    const opi_lowering how = {.receive_depth = 1};
    uint32_t reductions = 0;
    m.problem.sync = sync;
    OPI_ASSERT_OK_FATAL(
        opi_lower_order(&m.problem, list, &how, opi_allocator_system(), &lowered, &err), &err);
    for (uint32_t i = 0; i < lowered->n_items; ++i)
      reductions += lowered->items[i].kind == OPI_DO_REDUCE;
    OPI_ASSERT_INT(reductions, 8);
    OPI_ASSERT_OK(prove(&m.problem, lowered, OPI_RULE_TAG, &err), &err);
    const uint32_t at = find(lowered, OPI_DO_REDUCE, 1, 0);
    lowered->items[at].kind = OPI_DO_IDLE;
    OPI_ASSERT_ERROR(prove(&m.problem, lowered, OPI_RULE_TAG, &err), OPIPE_E_INVALID, &err,
                     "never reduced");
    lowered->items[at].kind = OPI_DO_REDUCE;
    const opi_do held = lowered->items[at];
    uint32_t other = lowered->rank_first[m.problem.instance_rank[m.problem.n_replicas]];
    while (lowered->items[other].kind != OPI_DO_REDUCE || lowered->items[other].stage == 1)
      ++other;
    lowered->items[at] = lowered->items[other];
    OPI_ASSERT_ERROR(prove(&m.problem, lowered, OPI_RULE_TAG, &err), OPIPE_E_INVALID, &err,
                     "it occurs twice");
    lowered->items[at] = held;
    opi_do_list_free(lowered);
    opi_do_list_free(list);
  }
}

/* A micro-batch of a stage with two replicas is cut between them: messages to and from both. */
static void test_shares(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  static const uint32_t place[] = {0, 1, 2, OPIPE_NONE}, shares[] = {2, 1};
  made_begin(&m, 3, 2);
  m.problem.n_stages = 2;
  m.problem.n_edges = 1;
  m.problem.n_replicas = 2;
  m.problem.instance_rank = place;
  m.problem.stage_shares = shares;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (uint32_t k = 0; k < 4; ++k) {
      made_add(&m, rank, rank / 2, k < 2 ? OPIPE_PASS_FORWARD : OPIPE_PASS_BACKWARD, k % 2);
      m.records[m.n - 1].replica = rank == 1;
    }
  }
  opi_do_list *list = made_list(&m), *lowered = NULL;
  const opi_lowering how = {.receive_depth = 0};
  uint32_t messages = 0;
  OPI_ASSERT_OK_FATAL(
      opi_lower_order(&m.problem, list, &how, opi_allocator_system(), &lowered, &err), &err);
  for (uint32_t i = 0; i < lowered->n_items; ++i)
    messages += lowered->items[i].kind == OPI_DO_SEND_F || lowered->items[i].kind == OPI_DO_SEND_B;
  OPI_ASSERT_INT(messages, 8);
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule)
    OPI_ASSERT_OK(prove(&m.problem, lowered, rule, &err), &err);
  opi_do_list_free(lowered);
  opi_do_list_free(list);
}

/* 64 ranks x 4 stages x 512 micro-batches, every micro-batch forward through all, then backward. */
static void test_large_schedules_are_proven_soon(void) {
  enum { RANKS = 64, STAGES = 256, MICROBATCHES = 512 };
  opipe_error err = OPIPE_ERROR_INIT;
  static uint32_t place[STAGES];
  static opi_stage_edge edges[STAGES];
  opi_do_list *list = NULL, *lowered = NULL;
  const opi_lowering how = {.receive_depth = 0};
  for (uint32_t s = 0; s < STAGES; ++s)
    place[s] = s % RANKS;
  opi_edges_chain(edges, STAGES);
  const opi_problem problem = {.n_ranks = RANKS,
                               .n_stages = STAGES,
                               .n_replicas = 1,
                               .n_microbatches = MICROBATCHES,
                               .n_slices = 1,
                               .n_parts = 1,
                               .mode = OPIPE_MODE_TRAIN,
                               .instance_rank = place,
                               .edges = edges,
                               .n_edges = STAGES - 1};
  OPI_ASSERT_OK_FATAL(opi_do_list_create(opi_allocator_system(), RANKS, 0, &list, &err), &err);
  for (uint32_t rank = 0; rank < RANKS; ++rank) {
    opi_do_list_rank(list, rank);
    for (uint32_t k = 0; k < 8 * MICROBATCHES; ++k) {
      const uint32_t chunk = k / MICROBATCHES;
      const opi_do item = {.kind = chunk < 4 ? OPI_DO_F : OPI_DO_B,
                           .stage = rank + RANKS * (chunk < 4 ? chunk : 7 - chunk),
                           .microbatch = k % MICROBATCHES,
                           .edge = OPIPE_NONE};
      OPI_ASSERT_OK_FATAL(opi_do_list_add(list, item, &err), &err);
    }
  }
  opi_do_list_rank(list, RANKS);
  const clock_t begun = clock();
  OPI_ASSERT_OK_FATAL(opi_lower_order(&problem, list, &how, opi_allocator_system(), &lowered, &err),
                      &err);
  OPI_ASSERT_OK(prove(&problem, lowered, OPI_RULE_TAG, &err), &err);
  const double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
  (void)printf("lowered and proven in %.2f s\n", seconds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  OPI_ASSERT(seconds < 2);
#endif
  opi_do_list_free(lowered);
  opi_do_list_free(list);
}

/* Flags that no pass has, and RECOMPUTE of what goes not backward: no record. */
static void test_flags_of_records(void) {
  for (uint32_t pass = 0; pass <= UINT8_MAX; ++pass) {
    const bool back = pass == OPIPE_PASS_BACKWARD || pass == OPIPE_PASS_BACKWARD_INPUT;
    const bool known = pass == OPIPE_PASS_FORWARD || back || pass == OPIPE_PASS_BACKWARD_WEIGHT;
    for (uint32_t flag = 1; flag != 0 && pass != OPIPE_CELL_IDLE; flag <<= 1) {
      const opipe_action record = {.pass = (uint8_t)pass, .flags = flag};
      const bool again = flag == OPIPE_ACTION_RECOMPUTE;
      const bool good = known && flag <= OPIPE_ACTION_NEXT_STEP && (!again || back);
      opi_do item;
      if (opi_do_of_record(&record, &item) != good)
        OPI_FAIL("pass %u, flag 0x%x", pass, flag);
    }
  }
  OPI_ASSERT(true);
}

OPI_TEST_MAIN("the proof of schedules", OPI_TEST(test_the_proof_equals_all_interleavings),
              OPI_TEST(test_early_receives_hold_under_every_rule),
              OPI_TEST(test_mistakes_are_named), OPI_TEST(test_flags_of_records),
              OPI_TEST(test_steps_and_frees_are_there_or_not),
              OPI_TEST(test_a_deadlock_is_told_as_its_cycle),
              OPI_TEST(test_a_deadlock_of_computes_is_told_as_its_cycle),
              OPI_TEST(test_a_deadlock_of_matching_is_told_as_its_cycle),
              OPI_TEST(test_slots_and_caps), OPI_TEST(test_two_directions_reduce),
              OPI_TEST(test_shares), OPI_TEST(test_large_schedules_are_proven_soon))
