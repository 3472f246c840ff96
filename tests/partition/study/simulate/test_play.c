/* SPDX-License-Identifier: Apache-2.0 */
/* Orders played on clusters: makespans against the simulation without links and closed forms, ports
 * that are shared, collectives, ranks that are played once against all of them, memory, scale.
 */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "partition/study/simulate/order_play.h"
#include "tests/partition/schedule/orders.h"

static made m;
static opi_arena arenas[2]; /* of the cluster, of what is played */
static opipe_error err = OPIPE_ERROR_INIT;

static opi_cluster read_cluster(const char *text) {
  opi_cluster c;
  opi_arena_init(&arenas[0], opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(opi_cluster_read("test", text, strlen(text), &arenas[0], &c, &err), &err);
  return c;
}

static opi_do_list *lower(const opi_problem *problem, opi_do_list *list) {
  opi_do_list *lowered = NULL;
  const opi_lowering how = {.receive_depth = 1};
  opi_proof proof = {0};
  OPI_ASSERT_OK_FATAL(opi_lower_order(problem, list, &how, opi_allocator_system(), &lowered, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(
      opi_proof_check(problem, lowered, OPI_RULE_TAG, opi_allocator_system(), &proof, &err), &err);
  opi_do_list_free(list);
  return lowered;
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

#define HEAD "{\"format\": \"onnx-pipe cluster 1\", "
#define GPU "\"kind\": \"x\", \"alignment\": 256, \"flops\": 1e12"
/* A line of devices; 1 byte per ns. */
#define LINE                                                 \
  HEAD "\"nodes\": 16, \"devices\": [{" GPU                  \
       "}], \"tiers\": [{\"latency_ns\": 0, \"bandwidth\": " \
       "1e9}]}"

static void fill(opi_stage_load *loads, uint32_t n, double f, double b, double bytes) {
  for (uint32_t s = 0; s < n; ++s) {
    loads[s] = (opi_stage_load){.forward_ns = f,
                                .input_ns = b / 2,
                                .weight_ns = b / 2,
                                .send_bytes = bytes,
                                .stash_bytes = 10,
                                .fixed_bytes = 100};
  }
}

/* Messages that take 0.25 of a forward on free links: the published makespans. */
static void test_regression_makespans(void) {
  static const struct {
    uint32_t d, n;
    double one[2], gpipe[2], chimera[2];
  } rows[] = {{4, 4, {21, 23.5}, {21, 22.5}, {16, 17.75}},
              {8, 8, {45, 51.5}, {45, 48.5}, {36, 40.75}},
              {4, 8, {33, 37}, {33, 34.5}, {0, 0}},
              {8, 32, {117, 134}, {117, 120.5}, {0, 0}}};
  const opi_cluster cluster = read_cluster(LINE);
  opi_stage_load loads[8];
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    for (uint32_t k = 0; k < 6; ++k) {
      const uint32_t d = rows[i].d, n = rows[i].n, c = k % 2;
      const double *const wanted[] = {rows[i].one, rows[i].gpipe, rows[i].chimera};
      if (wanted[k / 2][0] == 0)
        continue;
      if (k / 2 == 2)
        made_chimera(&m, d, n);
      else
        made_1f1b(&m, d, n, k / 2 == 1);
      fill(loads, d, 1000, 2000, 250 * c);
      opi_do_list *list = lower(&m.problem, made_list(&m));
      const opi_order_play how = {.cluster = &cluster, .stages = loads};
      opi_order_played p = play(&m.problem, list, &how);
      near(p.step_ns, 1000 * wanted[k / 2][c], "makespan");
      near(p.bubble, 1 - 3000.0 * n * d / (d * p.step_ns), "bubble");
      near(p.bubble_overhead, p.step_ns / (3000.0 * n) - 1, "overhead");
      if (k / 2 == 0) {
        for (uint32_t s = 0; s < d; ++s)
          near(p.result.peak_bytes[s], 10 * (d - s < n ? d - s : n), "stash");
      }
      end(&p, list);
      opi_do_list_free(list);
    }
  }
  opi_arena_release(&arenas[0]);
}

/* Two nodes of two: both pipelines of a data-parallel pair send between the nodes at once, over one
 * port; 100 ns each become 200. */
static void test_ports_are_shared(void) {
  static const char *const text =
      HEAD "\"nodes\": 2, \"devices\": [{" GPU
           ", \"count\": 2}], \"tiers\": [{\"nodes\": 1, "
           "\"bandwidth\": 1e12}, {\"latency_ns\": 7, \"bandwidth\": 1e9, \"port\": 1e9}]}";
  const opi_cluster cluster = read_cluster(text);
  opi_stage_load loads[2];
  fill(loads, 2, 1000, 2000, 100);
  made_1f1b(&m, 2, 1, false);
  opi_do_list *list = lower(&m.problem, made_list(&m));
  for (uint32_t n = 1; n <= 2; ++n) {
    for (uint32_t apart = 0; apart < 2; ++apart) {
      const opi_order_play how = {
          .cluster = &cluster, .stages = loads, .n_data = n, .apart = apart == 1};
      opi_order_play close = how;
      close.place = OPI_PLACE_TENSOR_PIPELINE_DATA;
      opi_order_played p = play(&m.problem, list, n == 1 ? &close : &how);
      /* alone: neighbours in one node; as a pair: rank 0 in one node, rank 1 in the other */
      near(p.step_ns, n == 1 ? 6000 + 2 * 0.1 : 6000 + 2 * (7 + 200), "makespan");
      OPI_ASSERT_INT(p.result.n_classes, apart == 1 ? n : 1);
      end(&p, list);
    }
  }
  opi_do_list_free(list);
  opi_arena_release(&arenas[0]);
}

/* A data-parallel pair reduces 1000 bytes at the end: 2 x 1/2 x 1000 ns. Sharded: scatter, the half
 * of the step, gather. */
static void test_reductions(void) {
  const opi_cluster cluster = read_cluster(LINE);
  opi_stage_load load = {.forward_ns = 1000,
                         .input_ns = 1000,
                         .weight_ns = 1000,
                         .step_ns = 60,
                         .gradient_bytes = 1000};
  made_1f1b(&m, 1, 2, false);
  opi_do_list *list = lower(&m.problem, made_list(&m));
  for (uint32_t sharded = 0; sharded < 2; ++sharded) {
    const opi_order_play how = {.cluster = &cluster,
                                .stages = &load,
                                .n_data = 2,
                                .collective = OPI_COLLECTIVE_RING,
                                .sharded = sharded == 1};
    opi_order_played p = play(&m.problem, list, &how);
    near(p.step_ns, 6000 + 1000 + (sharded == 1 ? 30 : 60), "with reductions");
    OPI_ASSERT_INT(p.n_ranks, 2);
    end(&p, list);
  }
  opi_do_list_free(list);
  opi_arena_release(&arenas[0]);
}

/* Sums over a tensor group of two follow every forward and backward. */
static void test_tensor_sums(void) {
  const opi_cluster cluster = read_cluster(LINE);
  opi_stage_load loads[2];
  fill(loads, 2, 1000, 2000, 0);
  for (uint32_t s = 0; s < 2; ++s) {
    loads[s].tensor_sums = 3;
    loads[s].tensor_bytes = 100; /* 100 ns each */
  }
  made_1f1b(&m, 2, 4, false);
  opi_do_list *list = lower(&m.problem, made_list(&m));
  const opi_order_play how = {
      .cluster = &cluster, .stages = loads, .n_tensor = 2, .collective = OPI_COLLECTIVE_RING};
  opi_order_played p = play(&m.problem, list, &how);
  near(p.step_ns, (4 + 1) * (3000 + 600), "with sums");
  OPI_ASSERT_INT(p.result.n_classes, 1);
  end(&p, list);
  opi_do_list_free(list);
  opi_arena_release(&arenas[0]);
}

/* 4 stages, tensor groups of 4, 4 replicas on nodes of 8 with ports that all of a node share: what
 * is played once is what all 64 ranks do. Then in groups that do not fit the nodes. */
static void test_shared_lists_are_the_full_play(void) {
  static const char *const texts[] = {
      HEAD "\"nodes\": 8, \"devices\": [{" GPU
           ", \"count\": 8}], \"tiers\": [{\"nodes\": 1, "
           "\"latency_ns\": 3, \"bandwidth\": 1e11, \"collective\": \"ring\"}, {\"latency_ns\": "
           "50, \"bandwidth\": 1e10, \"port\": 3e10}]}",
      HEAD "\"nodes\": 11, \"devices\": [{" GPU
           ", \"count\": 6}], \"tiers\": [{\"nodes\": 1, "
           "\"latency_ns\": 3, \"bandwidth\": 1e11, \"collective\": \"ring\"}, {\"nodes\": 4, "
           "\"latency_ns\": 50, \"bandwidth\": 1e10, \"port\": 3e10}, {\"latency_ns\": 90, "
           "\"bandwidth\": 1e10, \"oversubscription\": 3}]}"};
  opi_stage_load loads[4];
  fill(loads, 4, 1000, 2200, 9000);
  for (uint32_t s = 0; s < 4; ++s) {
    loads[s].forward_ns += 100 * s;
    loads[s].gradient_bytes = 1e5;
    loads[s].step_ns = 500;
    loads[s].tensor_sums = 2;
    loads[s].tensor_bytes = 4000;
  }
  made_1f1b(&m, 4, 8, false);
  opi_do_list *list = lower(&m.problem, made_list(&m));
  for (uint32_t i = 0; i < 32; ++i) {
    const opi_cluster cluster = read_cluster(texts[i % 2]);
    opi_order_play how = {.cluster = &cluster,
                          .stages = loads,
                          .n_tensor = 4,
                          .n_data = 4,
                          .place = i / 2 % 2,
                          .scattered = i / 4 % 2 == 1,
                          .sharded = i / 8 % 2 == 1,
                          .sequence = i / 16 == 1};
    opi_order_played one = play(&m.problem, list, &how);
    const double step = one.step_ns, bubble = one.bubble, bytes = one.result.tiers[1].n_bytes;
    const double busiest = one.result.tiers[1].busiest;
    const uint32_t n_classes = one.result.n_classes;
    double finish[4];
    for (uint32_t l = 0; l < 4; ++l)
      finish[l] = one.result.finish_ns[l * n_classes];
    OPI_ASSERT(i % 2 == 1 || n_classes == 1);
    end(&one, list);
    how.apart = true;
    opi_order_played all = play(&m.problem, list, &how);
    OPI_ASSERT_INT(all.result.n_classes, 16);
    near(step, all.step_ns, "step");
    near(bubble, all.bubble, "bubble");
    near(bytes, all.result.tiers[1].n_bytes, "bytes");
    near(busiest, all.result.tiers[1].busiest, "busiest port");
    for (uint32_t l = 0; l < 4; ++l)
      near(finish[l], all.result.finish_ns[l * 16], "end of copy 0");
    end(&all, list);
    opi_arena_release(&arenas[0]);
  }
  opi_do_list_free(list);
}

/* Copies by the ranks' own threads: sender and receiver stand still for each message. */
static void test_messages_occupy_ranks(void) {
  static const char *const text =
      HEAD "\"nodes\": 2, \"devices\": [{" GPU
           "}], \"links\": [{\"transport\": \"t\", \"rule\": "
           "\"tag\", \"occupies\": \"rank\"}], \"tiers\": [{\"bandwidth\": 1e9}]}";
  const opi_cluster cluster = read_cluster(text);
  opi_stage_load loads[2];
  fill(loads, 2, 1000, 2000, 100);
  made_1f1b(&m, 2, 1, false);
  opi_do_list *list = lower(&m.problem, made_list(&m));
  const opi_order_play how = {.cluster = &cluster, .stages = loads};
  opi_order_played p = play(&m.problem, list, &how);
  near(p.step_ns, 6000 + 4 * 100, "copied out and in, there and back");
  end(&p, list);
  opi_do_list_free(list);
  opi_arena_release(&arenas[0]);
}

static void test_refusals(void) {
  const opi_cluster cluster = read_cluster(LINE);
  opi_stage_load loads[4];
  opi_order_played played;
  fill(loads, 4, 1000, 2000, 0);
  made_1f1b(&m, 4, 4, false);
  opi_do_list *list = lower(&m.problem, made_list(&m));
  opi_order_play how = {.cluster = &cluster, .stages = loads, .n_tensor = 2, .n_data = 3};
  opi_arena_init(&arenas[1], opi_allocator_system(), 0);
  OPI_ASSERT_ERROR(opi_order_play_run(&m.problem, list, &how, &arenas[1], &played, &err),
                   OPIPE_E_INVALID, &err,
                   "4 ranks x 2 tensor ranks x 3 replicas, but the cluster "
                   "has 16");
  loads[1].input_ns = -1;
  how.n_data = 1;
  OPI_ASSERT_ERROR(opi_order_play_run(&m.problem, list, &how, &arenas[1], &played, &err),
                   OPIPE_E_INVALID, &err, "stage 1: time or bytes -1");
  opi_arena_release(&arenas[1]);
  opi_do_list_free(list);
  opi_arena_release(&arenas[0]);
}

/* Megatron-LM's last row: 64 stages, 512 micro-batches, tensor groups of 8, 6 replicas: 3,072
 * devices, of which 64 ranks are played. */
static void test_large(void) {
  enum { STAGES = 64, MICROBATCHES = 512 };
  static opi_stage_load loads[STAGES];
  static const char *const text =
      HEAD "\"nodes\": 384, \"devices\": [{" GPU
           ", \"count\": 8}], \"tiers\": [{\"nodes\": 1, "
           "\"latency_ns\": 4000, \"bandwidth\": 2.3e11, \"collective\": \"ring\"}, "
           "{\"latency_ns\": 7000, \"bandwidth\": 2.4e10}]}";
  const opi_cluster cluster = read_cluster(text);
  fill(loads, STAGES, 60e6, 180e6, 1e8);
  for (uint32_t s = 0; s < STAGES; ++s) {
    loads[s].gradient_bytes = 8e9;
    loads[s].tensor_sums = 4;
    loads[s].tensor_bytes = 1e8;
  }
  opi_problem problem = {.n_ranks = STAGES,
                         .n_stages = STAGES,
                         .n_replicas = 1,
                         .n_microbatches = MICROBATCHES,
                         .n_slices = 1,
                         .n_parts = 1,
                         .mode = OPIPE_MODE_TRAIN,
                         .n_edges = STAGES - 1};
  uint32_t place[STAGES];
  opi_stage_edge edges[STAGES];
  opi_do_list *list = NULL;
  for (uint32_t s = 0; s < STAGES; ++s)
    place[s] = s;
  opi_edges_chain(edges, STAGES);
  problem.instance_rank = place;
  problem.edges = edges;
  OPI_ASSERT_OK_FATAL(opi_do_list_create(opi_allocator_system(), STAGES, 0, &list, &err), &err);
  for (uint32_t rank = 0; rank < STAGES; ++rank) {
    const uint32_t warm = STAGES - rank - 1;
    opi_do_list_rank(list, rank);
    for (uint32_t i = 0; i < MICROBATCHES + warm; ++i) { /* one forward, one backward */
      const opi_do f = {.stage = rank, .microbatch = i, .edge = OPIPE_NONE, .kind = OPI_DO_F};
      const opi_do b = {
          .stage = rank, .microbatch = i - warm, .edge = OPIPE_NONE, .kind = OPI_DO_B};
      if (i < MICROBATCHES)
        OPI_ASSERT_OK(opi_do_list_add(list, f, &err), &err);
      if (i >= warm)
        OPI_ASSERT_OK(opi_do_list_add(list, b, &err), &err);
    }
  }
  opi_do_list_rank(list, STAGES);
  list = lower(&problem, list);
  opi_order_play how = {
      .cluster = &cluster, .stages = loads, .n_tensor = 8, .n_data = 6, .scattered = true};
  opi_order_played p = play(&problem, list, &how);
  OPI_ASSERT_INT(p.n_ranks, 3072);
  OPI_ASSERT_INT(p.result.n_classes, 1);
  OPI_ASSERT(arenas[1].total_bytes < UINT64_C(1) << 30);
  OPI_ASSERT(p.step_ns > (MICROBATCHES + STAGES - 1) * 240e6);
  end(&p, list);
  opi_do_list_free(list);
  opi_arena_release(&arenas[0]);
}

static double cpu_s(void) {
  return (double)clock() / CLOCKS_PER_SEC;
}

/* 64 ranks, 4 stages on each, 512 micro-batches: all forwards, stage by stage, then all backwards.
 */
static void test_many_chunks(void) {
  enum { RANKS = 64, CHUNKS = 4, STAGES = RANKS * CHUNKS, MICROBATCHES = 512 };
  static opi_stage_load loads[STAGES];
  static uint32_t place[STAGES];
  static opi_stage_edge edges[STAGES];
  const opi_cluster cluster =
      read_cluster(HEAD "\"nodes\": 8, \"devices\": [{" GPU
                        ", \"count\": 8}], \"tiers\": [{\"bandwidth\": 1e11}]}");
  opi_problem problem = {.n_ranks = RANKS,
                         .n_stages = STAGES,
                         .n_replicas = 1,
                         .n_microbatches = MICROBATCHES,
                         .n_slices = 1,
                         .n_parts = 1,
                         .mode = OPIPE_MODE_TRAIN,
                         .n_edges = STAGES - 1,
                         .instance_rank = place,
                         .edges = edges};
  opi_do_list *list = NULL;
  fill(loads, STAGES, 1e6, 2e6, 1e5);
  opi_edges_chain(edges, STAGES);
  OPI_ASSERT_OK_FATAL(opi_do_list_create(opi_allocator_system(), RANKS, 0, &list, &err), &err);
  for (uint32_t rank = 0; rank < RANKS; ++rank) {
    opi_do_list_rank(list, rank);
    for (uint32_t i = 0; i < 2 * CHUNKS * MICROBATCHES; ++i) {
      const uint32_t turn = i / MICROBATCHES;
      const uint32_t chunk = turn < CHUNKS ? turn : 2 * CHUNKS - 1 - turn;
      const opi_do a = {.stage = chunk * RANKS + rank,
                        .microbatch = i % MICROBATCHES,
                        .edge = OPIPE_NONE,
                        .kind = turn < CHUNKS ? OPI_DO_F : OPI_DO_B};
      place[a.stage] = rank;
      OPI_ASSERT_OK(opi_do_list_add(list, a, &err), &err);
    }
  }
  opi_do_list_rank(list, RANKS);
  const double begun = cpu_s();
  list = lower(&problem, list);
  const double lowered = cpu_s();
  const opi_order_play how = {.cluster = &cluster, .stages = loads};
  opi_order_played p = play(&problem, list, &how);
  const double played = cpu_s();
  (void)printf("lowered and proven in %.2f s, played in %.2f s\n", lowered - begun,
               played - lowered);
  OPI_ASSERT(p.step_ns > CHUNKS * MICROBATCHES * 3e6);
  OPI_ASSERT(opi_test_is_sanitized() || (lowered - begun < 5 && played - lowered < 1));
  end(&p, list);
  opi_do_list_free(list);
  opi_arena_release(&arenas[0]);
}

static opipe_status run_with(opi_test_memory *memory, void *arg) {
  const opi_do_list *list = arg;
  const opi_cluster cluster = read_cluster(LINE);
  opi_stage_load loads[2];
  opi_order_played played;
  opi_arena arena;
  opipe_error why = OPIPE_ERROR_INIT;
  fill(loads, 2, 1000, 2000, 10);
  const opi_order_play how = {.cluster = &cluster, .stages = loads, .n_data = 2};
  opi_arena_init(&arena, &memory->allocator, 0);
  const opipe_status status = opi_order_play_run(&m.problem, list, &how, &arena, &played, &why);
  if (status == OPIPE_OK)
    opi_order_played_release(&played, list);
  opi_arena_release(&arena);
  opi_arena_release(&arenas[0]);
  return status;
}

static void test_memory_that_fails(void) {
  made_1f1b(&m, 2, 2, false);
  opi_do_list *list = lower(&m.problem, made_list(&m));
  OPI_ASSERT(opi_test_every_allocation(run_with, list, 200) > 1);
  opi_do_list_free(list);
}

OPI_TEST_MAIN("play", OPI_TEST(test_regression_makespans), OPI_TEST(test_ports_are_shared),
              OPI_TEST(test_reductions), OPI_TEST(test_tensor_sums),
              OPI_TEST(test_shared_lists_are_the_full_play), OPI_TEST(test_messages_occupy_ranks),
              OPI_TEST(test_refusals), OPI_TEST(test_memory_that_fails), OPI_TEST(test_large),
              OPI_TEST(test_many_chunks))
