/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of groups and stashes that leave: read and printed, placed, proven, refused each by
 * name, played. */
#include <math.h>

#include "partition/schedule/passes.h"
#include "partition/study/simulate/order_play.h"
#include "tests/partition/schedule/orders.h"

static made m;
static opi_arena arenas[2]; /* of the cluster, of what is played */
static opipe_error err = OPIPE_ERROR_INIT;

/* One stage on each rank. */
#define HEAD(ranks, microbatches, more)                      \
  "#onnx-pipe-schedule v1\n#ranks=" #ranks " stages=" #ranks \
  " replicas=1 microbatches=" #microbatches                  \
  " slices=1 parts=1 mode=train versions=one sync=end\n" more
#define ONE(microbatches, more, line) HEAD(1, microbatches, more "#place=0\n") "rank 0: " line "\n"

/* ---- text ---- */

static void test_text_is_read_as_it_was_printed(void) {
  static const char *const texts[] = {
      ONE(3, "", "0F0 0OFFLOAD0 0F1 0F2 0RELOAD0 0B1 0B0 0B2 STEP"),
      ONE(1, "#copies=3 tensor=2 sharded=1\n", "0F0 0SUM_F0 0B0 0SUM_B0 0SCATTER STEP 0GATHER"),
      ONE(1, "#tensor=4 sequence=1 scattered=1\n",
          "0GATHER_F0 0F0 0SCATTER_F0 0GATHER_B0 0B0 0SCATTER_B0 STEP")};
  for (size_t i = 0; i < OPI_COUNT(texts); ++i) {
    opi_order *order = order_read(texts[i], OPI_DIALECT_OPIPE);
    char *same = order_text(order, OPI_ORDER_TEXT, OPI_DIALECT_OPIPE);
    OPI_ASSERT_STR(same, texts[i]);
    OPI_ASSERT_OK(order_prove(order, OPI_RULE_TAG, &err), &err);
    for (uint32_t format = OPI_ORDER_CSV; format <= OPI_ORDER_JSON; ++format) {
      char *text = order_text(order, format, OPI_DIALECT_OPIPE);
      opi_order *again = order_read(text, OPI_DIALECT_OPIPE);
      char *back = order_text(again, OPI_ORDER_TEXT, OPI_DIALECT_OPIPE);
      OPI_ASSERT_STR(back, texts[i]);
      free(back);
      free(text);
      opi_order_free(again);
    }
    opi_text text;
    opi_text_init(&text, opi_allocator_system());
    OPI_ASSERT_ERROR(opi_order_write(order, OPI_ORDER_CSV, OPI_DIALECT_TORCH, &text, &err),
                     OPIPE_E_UNSUPPORTED, &err, "torch's dialect");
    opi_text_release(&text);
    free(same);
    opi_order_free(order);
  }
}

static void test_headers_that_are_not_understood(void) {
  static const char *const rows[][2] = {{"#tensor=0\n", "tensor=0"},
                                        {"#copies=70000\n", "copies=70000"},
                                        {"#sharded=2\n", "sharded=2"},
                                        {"#sequence=yes\n", "sequence=yes"}};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    char text[400];
    opi_order *order = NULL;
    (void)snprintf(text, sizeof text, "%s%s#place=0\nrank 0: 0F0 0B0\n", HEAD(1, 1, ""),
                   rows[i][0]);
    OPI_ASSERT_ERROR(
        opi_order_read(text, strlen(text), OPI_DIALECT_OPIPE, opi_allocator_system(), &order, &err),
        OPIPE_E_INVALID, &err, rows[i][1]);
  }
}

/* ---- lowering ---- */

static void test_lowering_places_what_the_header_asks_for(void) {
  static const char *const rows[][3] = {
      {"#tensor=2\n", "0F0 0SUM_F0 0SEND_F0 0RECV_B0 0B0 0SUM_B0 0FREE0 STEP",
       "1RECV_F0 1F0 1SUM_F0 1B0 1SUM_B0 1FREE0 1SEND_B0 STEP"},
      {"#tensor=2 sequence=1\n",
       "0GATHER_F0 0F0 0SCATTER_F0 0SEND_F0 0RECV_B0 0GATHER_B0 0B0 0SCATTER_B0 0FREE0 STEP",
       "1RECV_F0 1GATHER_F0 1F0 1SCATTER_F0 1GATHER_B0 1B0 1SCATTER_B0 1FREE0 1SEND_B0 STEP"},
      {"#tensor=2 scattered=1\n",
       "0F0 0SUM_F0 0SEND_F0 0RECV_B0 0GATHER_B0 0B0 0SUM_B0 0FREE0 STEP",
       "1RECV_F0 1GATHER_F0 1F0 1SUM_F0 1B0 1SUM_B0 1FREE0 1SEND_B0 STEP"},
      {"#copies=2\n", "0F0 0SEND_F0 0RECV_B0 0B0 0FREE0 0REDUCE STEP",
       "1RECV_F0 1F0 1B0 1FREE0 1SEND_B0 1REDUCE STEP"},
      {"#copies=2 sharded=1\n", "0F0 0SEND_F0 0RECV_B0 0B0 0FREE0 0SCATTER STEP 0GATHER",
       "1RECV_F0 1F0 1B0 1FREE0 1SEND_B0 1SCATTER STEP 1GATHER"},
      {"#sharded=1\n", "0F0 0SEND_F0 0RECV_B0 0B0 0FREE0 STEP",
       "1RECV_F0 1F0 1B0 1FREE0 1SEND_B0 STEP"}};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    char text[600], wanted[800];
    const char *const head = HEAD(2, 1, "");
    (void)snprintf(text, sizeof text, "%s%s#place=0,1\nrank 0: 0F0 0B0\nrank 1: 1F0 1B0\n", head,
                   rows[i][0]);
    (void)snprintf(wanted, sizeof wanted, "%s%s#place=0,1\nrank 0: %s\nrank 1: %s\n", head,
                   rows[i][0], rows[i][1], rows[i][2]);
    opi_order *order = order_read(text, OPI_DIALECT_OPIPE), *lowered = order_lower(order, 1);
    char *found = order_text(lowered, OPI_ORDER_TEXT, OPI_DIALECT_OPIPE);
    OPI_ASSERT_STR(found, wanted);
    for (uint32_t rule = 0; rule < OPI_RULES; ++rule)
      OPI_ASSERT_OK(order_prove(lowered, rule, &err), &err);
    /* A list lowered again, from its own computes, is the same. */
    opi_do_list *again = NULL;
    OPI_ASSERT_OK(
        opi_pass_groups(&lowered->problem, lowered->list, opi_allocator_system(), &again, &err),
        &err);
    OPI_ASSERT_INT(again->n_items, lowered->list->n_items);
    OPI_ASSERT(memcmp(again->items, lowered->list->items, again->n_items * sizeof *again->items) ==
               0);
    opi_do_list_free(again);
    free(found);
    opi_order_free(lowered);
    opi_order_free(order);
  }
}

/* The collectives of a pair all stand in front of its first action or behind its second. */
static void test_pairs_stay_together(void) {
  static const char *const text = ONE(2, "#tensor=2 sequence=1\n", "0F0 (0F1;0B0)OVERLAP_F_B 0B1");
  opi_order *order = order_read(text, OPI_DIALECT_OPIPE), *lowered = order_lower(order, 1);
  char *found = order_text(lowered, OPI_ORDER_TEXT, OPI_DIALECT_OPIPE);
  OPI_ASSERT(strstr(found, "0GATHER_F1 0GATHER_B0 (0F1;0B0)OVERLAP_F_B 0SCATTER_F1 0SCATTER_B0") !=
             NULL);
  OPI_ASSERT_OK(order_prove(lowered, OPI_RULE_TAG, &err), &err);
  free(found);
  opi_order_free(lowered);
  opi_order_free(order);
}

/* ---- refused groups ---- */

static void test_refusals(void) {
  static const struct {
    const char *text, *part;
  } rows[] = {
      {ONE(1, "", "0F0 0SUM_F0 0B0 STEP"), "step 1: 0SUM_F0: there are no tensor groups"},
      {ONE(1, "#tensor=2\n", "0SUM_F0 0F0 0B0 STEP"),
       "step 0: 0SUM_F0: it does not stand directly behind its forward"},
      {ONE(1, "#tensor=2\n", "0F0 0B0 0SUM_F0 STEP"), "directly behind its forward"},
      {ONE(1, "#tensor=2\n", "0F0 0GATHER_F0 0B0 STEP"),
       "step 1: 0GATHER_F0: it does not stand directly in front of its forward"},
      {ONE(1, "#tensor=2\n", "0F0 0SUM_B0 0B0 STEP"), "directly behind its backward"},
      {ONE(1, "#tensor=2\n", "0F0 0SUM_F0 0SUM_F0 0B0 STEP"), "step 2: 0SUM_F0: it occurs twice"},
      {ONE(2, "#tensor=2\n", "0F0 0SUM_F0 0F1 0B0 0B1 STEP"),
       "0F1: its collectives are none, those of the stage's other forwards SUM_F"},
      {ONE(2, "#tensor=2\n", "0F0 0F1 0B0 0SUM_B0 0B1 STEP"),
       "0B1: its collectives are none, those of the stage's other backwards SUM_B"},
      {ONE(1, "#tensor=2\n", "0F0 0SCATTER_F0 0B0 STEP"),
       "a scatter needs a gather before the pass"},
      {ONE(1, "#tensor=2\n", "0GATHER_F0 0F0 0SUM_F0 0SCATTER_F0 0B0 STEP"),
       "0F0: its collectives are SUM_F and GATHER_F and SCATTER_F"},
      {ONE(1, "", "0F0 0OFFLOAD0 0B0 STEP"),
       "step 2: 0B0: its stash is offloaded, and no 0RELOAD0 comes before it"},
      {ONE(1, "", "0F0 0OFFLOAD0 0R0 0B0 STEP"), "0R0: its stash is offloaded"},
      {ONE(1, "", "0F0 0RELOAD0 0B0 STEP"), "0RELOAD0: its 0OFFLOAD0 does not come before it"},
      {ONE(1, "", "0OFFLOAD0 0F0 0B0 STEP"), "0OFFLOAD0: its forward 0F0 does not run before it"},
      {ONE(1, "", "0F0 0B0 0OFFLOAD0 STEP"), "a reader of the stash has already run"},
      {ONE(1, "", "0F0 0R0 0OFFLOAD0 0B0 STEP"), "a reader of the stash has already run"},
      {ONE(2, "", "0F0 0OFFLOAD0 0F1 0RELOAD0 0B0 0B1 STEP"),
       "0RELOAD0: 1 computes lie between it and its 0OFFLOAD0: at least 2 are needed"},
      {ONE(1, "", "0F0 0OFFLOAD0 0OFFLOAD0 0B0 STEP"), "step 2: 0OFFLOAD0: it occurs twice"},
      {ONE(3, "", "0F0 0OFFLOAD0 0F1 0F2 0RELOAD0 0RELOAD0 0B0 0B1 0B2 STEP"),
       "step 5: 0RELOAD0: it occurs twice"},
      {ONE(1, "", "0F0 0OFFLOAD7 0B0 STEP"), "micro-batch 7 of 1"},
      {ONE(1, "", "0F0 0OFFLOAD0~1 0B0 STEP"), "part 1 of 1"},
      {ONE(1, "", "0F0 0OFFLOAD0+ 0B0 STEP"), "can be of the next mini-batch"},
      {"#onnx-pipe-schedule v1\n#ranks=1 stages=1 replicas=1 microbatches=1 slices=1 parts=1 "
       "mode=forward\n#place=0\nrank 0: 0F0 0OFFLOAD0\n",
       "there is no stash in a forward-only schedule"},
      {ONE(1, "#copies=2\n", "0F0 0B0 0SCATTER STEP"),
       "stage 0: gradients are scattered, and the weights that replica 0 on rank 0 steps a part of "
       "are never gathered (0GATHER)"},
      {ONE(1, "#copies=2\n", "0F0 0B0 0REDUCE STEP 0GATHER"),
       "stage 0: weights are gathered on rank 0, and its gradients were never scattered"},
      {ONE(1, "#copies=2\n", "0F0 0B0 0SCATTER 0GATHER STEP"), "its weights are not stepped yet"},
      {ONE(1, "#copies=2\n", "0F0 0SCATTER 0B0 STEP 0GATHER"),
       "1 backwards of this instance come later"},
      {"#onnx-pipe-schedule v1\n#ranks=2 stages=1 replicas=2 microbatches=2 slices=1 parts=1 "
       "mode=train\n#place=0,1\nrank 0: 0F0 0B0 0REDUCE STEP\nrank 1: 0@1F1 0@1B1 0@1SCATTER STEP "
       "0@1GATHER\n",
       "stage 0: gradients of replica 1 on rank 1: SCATTER, those of others: REDUCE"}};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    opi_order *order = order_read(rows[i].text, OPI_DIALECT_OPIPE);
    OPI_ASSERT_ERROR(order_prove(order, OPI_RULE_TAG, &err), OPIPE_E_INVALID, &err, rows[i].part);
    opi_order_free(order);
  }
}

/* Two stages in both directions over two ranks: each rank gathers the weights of both. */
static void test_members_that_meet_in_another_order(void) {
  static const char *const text =
      "#onnx-pipe-schedule v1\n#ranks=2 stages=2 replicas=2 microbatches=2 slices=1 parts=1 "
      "mode=train sharded=1\n#place=0,1,1,0\nrank 0: 0F0 1@1F1 1@1B1 0B0\nrank 1: 0@1F1 1F0 1B0 "
      "0@1B1\n";
  opi_order *order = order_read(text, OPI_DIALECT_OPIPE), *lowered = order_lower(order, 0);
  char *found = order_text(lowered, OPI_ORDER_TEXT, OPI_DIALECT_OPIPE);
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule)
    OPI_ASSERT_OK(order_prove(lowered, rule, &err), &err);
  char *at = strstr(found, "STEP 0@1GATHER 1GATHER");
  OPI_ASSERT_FATAL(at != NULL && strstr(found, "STEP 0GATHER 1@1GATHER") != NULL);
  static const char turned[] = "STEP 1GATHER 0@1GATHER";
  memcpy(at, turned, sizeof turned - 1);
  opi_order *other = order_read(found, OPI_DIALECT_OPIPE);
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
    OPI_ASSERT_ERROR(order_prove(other, rule, &err), OPIPE_E_INVALID, &err, "deadlock (rule ");
    OPI_ASSERT(strstr(err.message, "0GATHER waits for rank 1") != NULL);
    OPI_ASSERT(strstr(err.message, "1GATHER waits for rank 0") != NULL);
  }
  opi_order_free(other);
  free(found);
  opi_order_free(lowered);
  opi_order_free(order);
}

/* ---- stashes ---- */

/* With early receives, which hold under all rules. */
static opi_do_list *lower(const opi_problem *problem, opi_do_list *list) {
  opi_do_list *lowered = NULL;
  const opi_lowering how = {.receive_depth = 0};
  OPI_ASSERT_OK_FATAL(opi_lower_order(problem, list, &how, opi_allocator_system(), &lowered, &err),
                      &err);
  opi_do_list_free(list);
  return lowered;
}

static void prove(const opi_problem *problem, const opi_do_list *list, uint64_t *peaks) {
  opi_proof proof = {.peak_stash = peaks};
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
    OPI_ASSERT_OK_FATAL(opi_proof_check(problem, list, rule, opi_allocator_system(), &proof, &err),
                        &err);
  }
}

/* Beside the first compute behind it a stash still leaves; the second may have its room. */
static void test_stashes_leave_beside_a_compute(void) {
  static const struct {
    const char *text;
    uint64_t peak;
  } rows[] = {{ONE(2, "", "0F0 0OFFLOAD0 0F1 0B1 0RELOAD0 0B0 STEP"), 2},
              {ONE(3, "", "0F0 0OFFLOAD0 0F1 0F2 0B2 0B1 0RELOAD0 0B0 STEP"), 2},
              {ONE(3, "", "0F0 0F1 0OFFLOAD0 0F2 0B2 0B1 0RELOAD0 0B0 STEP"), 3},
              {ONE(3, "", "0F0 0OFFLOAD0 (0F1;0F2)OVERLAP_F_B 0B2 0B1 0RELOAD0 0B0 STEP"), 3},
              {ONE(3, "", "0F0 0F1 0F2 0B2 0B1 0B0 STEP"), 3}};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    opi_order *order = order_read(rows[i].text, OPI_DIALECT_OPIPE);
    uint64_t peak = 0;
    double simulated = 0;
    opi_proof proof = {.peak_stash = &peak};
    opi_simulation s = {.peak_stash = &simulated};
    OPI_ASSERT_OK(opi_proof_check(&order->problem, order->list, OPI_RULE_TAG,
                                  opi_allocator_system(), &proof, &err),
                  &err);
    OPI_ASSERT_OK(opi_simulate_order(&order->problem, order->list, &opi_unit_costs,
                                     opi_allocator_system(), &s, &err),
                  &err);
    OPI_ASSERT_INT(peak, rows[i].peak);
    OPI_ASSERT(simulated == (double)rows[i].peak);
    opi_order_free(order);
  }
}

/* Rank 0 of eight keeps eight micro-batches, and with offloads three: one that leaves, one that has
 * just been made, one that comes. */
static void test_offloaded_stashes_are_not_kept(void) {
  enum { RANKS = 8, MICROBATCHES = 16 };
  static const bool stages[RANKS] = {true, true, true, true, true, true, true, true};
  uint64_t before[RANKS], after[RANKS], caps[RANKS];
  double simulated[RANKS];
  opi_do_list *moved = NULL;
  made_1f1b(&m, RANKS, MICROBATCHES, false);
  opi_do_list *plain = lower(&m.problem, made_list(&m)), *order = made_list(&m);
  OPI_ASSERT_OK_FATAL(
      opi_pass_offload(&m.problem, order, stages, opi_allocator_system(), &moved, &err), &err);
  opi_do_list_free(order);
  moved = lower(&m.problem, moved);
  prove(&m.problem, plain, before);
  prove(&m.problem, moved, after);
  opi_simulation s = {.peak_stash = simulated};
  OPI_ASSERT_OK(
      opi_simulate_order(&m.problem, moved, &opi_unit_costs, opi_allocator_system(), &s, &err),
      &err);
  OPI_ASSERT_INT(opi_do_list_count(moved, 1u << OPI_DO_OFFLOAD),
                 opi_do_list_count(moved, 1u << OPI_DO_RELOAD));
  OPI_ASSERT_INT(before[0], RANKS);
  OPI_ASSERT_INT(after[0], 3);
  OPI_ASSERT_INT(after[RANKS - 1], 1);
  for (uint32_t r = 0; r < RANKS; ++r) {
    OPI_ASSERT(after[r] <= before[r] && after[r] <= 3);
    OPI_ASSERT(simulated[r] == (double)after[r]);
    caps[r] = 3;
  }
  opi_proof proof = {0};
  m.problem.rank_stash_bytes = caps;
  prove(&m.problem, moved, after);
  OPI_ASSERT_ERROR(
      opi_proof_check(&m.problem, plain, OPI_RULE_TAG, opi_allocator_system(), &proof, &err),
      OPIPE_E_LIMIT, &err, "stashes take 4, the rank has 3");
  caps[0] = 2;
  OPI_ASSERT_ERROR(
      opi_proof_check(&m.problem, moved, OPI_RULE_TAG, opi_allocator_system(), &proof, &err),
      OPIPE_E_LIMIT, &err, "stashes take 3, the rank has 2");
  opi_do_list_free(plain);
  opi_do_list_free(moved);
}

/* ---- played ---- */

#define CLUSTER(devices, more)                                                 \
  "{\"format\": \"onnx-pipe cluster 1\", \"nodes\": " #devices                 \
  ", \"devices\": [{\"kind\": \"x\", \"alignment\": 256, \"flops\": 1e12" more \
  "}], \"tiers\": [{\"latency_ns\": 0, \"bandwidth\": 1e9}]}"

static opi_cluster read_cluster(const char *text) {
  opi_cluster c;
  opi_arena_init(&arenas[0], opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(opi_cluster_read("test", text, strlen(text), &arenas[0], &c, &err), &err);
  return c;
}

/* Released by end(). */
static opi_order_played play(const opi_problem *problem, const opi_do_list *list,
                             const opi_order_play *how) {
  opi_order_played played;
  opi_arena_init(&arenas[1], opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(opi_order_play_run(problem, list, how, &arenas[1], &played, &err), &err);
  return played;
}

static void end(opi_order_played *played, const opi_do_list *list) {
  opi_order_played_release(played, list);
  opi_arena_release(&arenas[1]);
}

static void near(double found, double wanted, const char *what) {
  if (!(fabs(found - wanted) <= 1e-9 * fabs(wanted)))
    OPI_FAIL("%s: %.17g, wanted %.17g", what, found, wanted);
}

/* F0 leaves beside F1, F2 waits for it; it comes back beside B1, B0 waits for it. */
static void test_offloads_run_beside_computes(void) {
  static const struct { double bytes, step; } rows[] = {{1500, 9500}, {500, 9000}, {5000, 16000}};
  const opi_cluster cluster = read_cluster(CLUSTER(1, ", \"host_bandwidth\": 1e9"));
  opi_order *order =
      order_read(ONE(3, "", "0F0 0OFFLOAD0 0F1 0F2 0RELOAD0 0B1 0B0 0B2 STEP"), OPI_DIALECT_OPIPE);
  OPI_ASSERT_OK(order_prove(order, OPI_RULE_TAG, &err), &err);
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    const opi_stage_load load = {
        .forward_ns = 1000, .input_ns = 1000, .weight_ns = 1000, .stash_bytes = rows[i].bytes};
    const opi_order_play how = {.cluster = &cluster, .stages = &load};
    opi_order_played p = play(&order->problem, order->list, &how);
    near(p.step_ns, rows[i].step, "with an offload");
    near(p.result.peak_bytes[0], 3 * rows[i].bytes, "kept");
    end(&p, order->list);
  }
  opi_arena_release(&arenas[0]);
  const opi_cluster alone = read_cluster(CLUSTER(1, ", \"name\": \"gpu\""));
  const opi_stage_load load = {.forward_ns = 1, .stash_bytes = 8};
  const opi_order_play how = {.cluster = &alone, .stages = &load};
  opi_order_played p;
  opi_arena_init(&arenas[1], opi_allocator_system(), 0);
  OPI_ASSERT_ERROR(
      opi_order_play_run(&order->problem, order->list, &how, &arenas[1], &p, &err), OPIPE_E_INVALID,
      &err,
      "device 0 (gpu) of rank 0 offloads 8 bytes, but the cluster gives no \"host_bandwidth\"");
  opi_arena_release(&arenas[1]);
  opi_arena_release(&arenas[0]);
  opi_order_free(order);
}

/* Peaks of what a rank keeps are those that the proof counts. */
static void test_kept_bytes_are_the_proofs(void) {
  enum { RANKS = 6 };
  static const bool stages[RANKS] = {true, true, true, false, true, true};
  const opi_cluster cluster = read_cluster(CLUSTER(6, ", \"host_bandwidth\": 2e9"));
  opi_stage_load loads[RANKS];
  uint64_t peaks[RANKS], bytes[RANKS];
  opi_do_list *moved = NULL;
  made_1f1b(&m, RANKS, 9, false);
  for (uint32_t s = 0; s < RANKS; ++s) {
    bytes[s] = 100 * (s + 1);
    loads[s] = (opi_stage_load){.forward_ns = 1000,
                                .input_ns = 1000,
                                .weight_ns = 1000,
                                .send_bytes = 50,
                                .stash_bytes = (double)bytes[s]};
  }
  m.problem.stash_bytes = bytes;
  opi_do_list *order = made_list(&m);
  OPI_ASSERT_OK_FATAL(
      opi_pass_offload(&m.problem, order, stages, opi_allocator_system(), &moved, &err), &err);
  opi_do_list_free(order);
  moved = lower(&m.problem, moved);
  prove(&m.problem, moved, peaks);
  const opi_order_play how = {.cluster = &cluster, .stages = loads};
  opi_order_played p = play(&m.problem, moved, &how);
  for (uint32_t r = 0; r < RANKS; ++r)
    near(p.result.peak_bytes[r], (double)peaks[r], "kept");
  near(p.result.peak_bytes[3], 3 * 400, "kept by a stage that offloads nothing");
  end(&p, moved);
  opi_do_list_free(moved);
  opi_arena_release(&arenas[0]);
}

/* A gather before and a scatter behind a pass are the two halves of a ring's sum. */
static void test_sequence_groups_take_as_long_as_sums(void) {
  const opi_cluster cluster = read_cluster(CLUSTER(4, ""));
  opi_stage_load loads[2];
  for (uint32_t s = 0; s < 2; ++s) {
    loads[s] = (opi_stage_load){.forward_ns = 1000,
                                .input_ns = 1000,
                                .weight_ns = 1000,
                                .tensor_sums = 3,
                                .tensor_bytes = 100};
  }
  made_1f1b(&m, 2, 4, false);
  opi_do_list *list = lower(&m.problem, made_list(&m));
  for (uint32_t sequence = 0; sequence < 2; ++sequence) {
    const opi_order_play how = {.cluster = &cluster,
                                .stages = loads,
                                .n_tensor = 2,
                                .collective = OPI_COLLECTIVE_RING,
                                .sequence = sequence == 1};
    opi_order_played p = play(&m.problem, list, &how);
    near(p.step_ns, (4 + 1) * (3000 + 600), "with collectives");
    OPI_ASSERT_INT(p.result.n_classes, 1);
    end(&p, list);
  }
  opi_do_list_free(list);
  opi_arena_release(&arenas[0]);
}

/* Groups from an order's header and groups given when it is played make the same list with the same
 * bits. */
static void test_groups_of_the_header_and_of_the_play(void) {
  const opi_cluster cluster = read_cluster(CLUSTER(12, ""));
  opi_stage_load loads[2];
  for (uint32_t s = 0; s < 2; ++s) {
    loads[s] = (opi_stage_load){.forward_ns = 1000 + 7 * s,
                                .input_ns = 1100,
                                .weight_ns = 900,
                                .step_ns = 300,
                                .send_bytes = 70,
                                .gradient_bytes = 5000,
                                .tensor_sums = 2,
                                .tensor_bytes = 130};
  }
  for (uint32_t i = 0; i < 8; ++i) {
    made_1f1b(&m, 2, 5, false);
    opi_do_list *bare = lower(&m.problem, made_list(&m));
    const bool sharded = (i & 1) != 0, sequence = (i & 2) != 0, scattered = (i & 4) != 0;
    opi_order_play how = {.cluster = &cluster,
                          .stages = loads,
                          .n_tensor = 2,
                          .n_data = 3,
                          .sharded = sharded,
                          .sequence = sequence,
                          .scattered = scattered};
    opi_order_played p = play(&m.problem, bare, &how);
    const double step = p.step_ns;
    const uint32_t n = p.list->n_items;
    OPI_ASSERT(n > bare->n_items);
    end(&p, bare);
    m.problem.n_tensor = 2;
    m.problem.n_copies = 3;
    m.problem.sharded = sharded;
    m.problem.sequence = sequence;
    m.problem.scattered = scattered;
    opi_do_list *full = lower(&m.problem, made_list(&m));
    how = (opi_order_play){.cluster = &cluster, .stages = loads};
    p = play(&m.problem, full, &how);
    OPI_ASSERT(p.step_ns == step);
    OPI_ASSERT_INT(full->n_items, n);
    end(&p, full);
    how.n_data = 2;
    opi_arena_init(&arenas[1], opi_allocator_system(), 0);
    OPI_ASSERT_ERROR(opi_order_play_run(&m.problem, full, &how, &arenas[1], &p, &err),
                     OPIPE_E_INVALID, &err, "the order is of 3 copies, and is to be played with 2");
    opi_arena_release(&arenas[1]);
    opi_do_list_free(full);
    opi_do_list_free(bare);
  }
  opi_arena_release(&arenas[0]);
}

/* ---- memory ---- */

static opipe_status make_all(opi_test_memory *memory, void *arg) {
  static const bool stages[4] = {true, true, true, true};
  const opi_do_list *order = arg;
  opi_do_list *moved = NULL, *lowered = NULL;
  opi_proof proof = {0};
  const opi_lowering how = {.receive_depth = 1};
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_status status =
      opi_pass_offload(&m.problem, order, stages, &memory->allocator, &moved, &why);
  if (status == OPIPE_OK)
    status = opi_lower_order(&m.problem, moved, &how, &memory->allocator, &lowered, &why);
  if (status == OPIPE_OK)
    status = opi_proof_check(&m.problem, lowered, OPI_RULE_TAG, &memory->allocator, &proof, &why);
  opi_do_list_free(moved);
  opi_do_list_free(lowered);
  return status;
}

static void test_memory_that_fails(void) {
  made_1f1b(&m, 4, 6, false);
  m.problem.n_tensor = m.problem.n_copies = 2;
  m.problem.sharded = true;
  opi_do_list *order = made_list(&m);
  OPI_ASSERT(opi_test_every_allocation(make_all, order, 400) > 1);
  opi_do_list_free(order);
}

OPI_TEST_MAIN("groups", OPI_TEST(test_text_is_read_as_it_was_printed),
              OPI_TEST(test_headers_that_are_not_understood),
              OPI_TEST(test_lowering_places_what_the_header_asks_for),
              OPI_TEST(test_pairs_stay_together), OPI_TEST(test_refusals),
              OPI_TEST(test_members_that_meet_in_another_order),
              OPI_TEST(test_stashes_leave_beside_a_compute),
              OPI_TEST(test_offloaded_stashes_are_not_kept),
              OPI_TEST(test_offloads_run_beside_computes), OPI_TEST(test_kept_bytes_are_the_proofs),
              OPI_TEST(test_sequence_groups_take_as_long_as_sums),
              OPI_TEST(test_groups_of_the_header_and_of_the_play), OPI_TEST(test_memory_that_fails))
