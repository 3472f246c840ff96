/* SPDX-License-Identifier: Apache-2.0 */
/* Orders for simulation alone against the formulas of the paper that compares them, forwards once
 * more, loads of stages, and slices that the planner finds. */
#include <math.h>

#include "partition/study/arch/arch.h"
#include "partition/study/planners/strategy.h"
#include "partition/study/simulate/baselines.h"
#include "partition/study/simulate/stage_loads.h"
#include "tests/support/support.h"

static opipe_error err = OPIPE_ERROR_INIT;
static opi_arena arena;
static const char FREE[] =
    "{\"format\": \"onnx-pipe cluster 1\", \"nodes\": 64, \"devices\": [{\"kind\": \"x\", "
    "\"alignment\": 64, \"flops\": 1e12, \"memory_bytes\": 1000000000000}], \"tiers\": "
    "[{\"latency_ns\": 0, \"bandwidth\": 1e9}]}";

static opi_cluster cluster;

static opi_order_played play(const opi_order *order, opi_order_play *how, opi_order **out_lowered) {
  const opi_lowering lowering = {.receive_depth = 1};
  opi_order_played played;
  how->cluster = &cluster;
  OPI_ASSERT_OK_FATAL(opi_order_lower(order, &lowering, opi_allocator_system(), out_lowered, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(opi_order_play_run(&(*out_lowered)->problem, (*out_lowered)->list, how,
                                         &arena, &played, &err),
                      &err);
  return played;
}

static opi_stage_load *loads(uint32_t n, double forward) {
  opi_stage_load *all = OPI_ARENA_ARRAY(&arena, opi_stage_load, n);
  for (uint32_t s = 0; s < n; ++s)
    all[s] = (opi_stage_load){.forward_ns = forward, .input_ns = forward, .weight_ns = forward};
  return all;
}

/* Every micro-batch takes D backwards and a forward behind the one before: bubble (D - 1) / (D +
 * 1/2) in the long run. */
static void gems(void) {
  for (uint32_t d = 2; d <= 16; d += 2) {
    opi_order *order = NULL, *lowered = NULL;
    opi_order_play how = {.stages = loads(d, 100)};
    const uint32_t n = 400;
    OPI_ASSERT_OK_FATAL(opi_order_gems(d, n, opi_allocator_system(), &order, &err), &err);
    opi_order_played played = play(order, &how, &lowered);
    OPI_ASSERT(fabs(played.bubble - (d - 1) / (d + 0.5)) < 0.005);
    opi_order_played_release(&played, lowered->list);
    opi_order_free(lowered);
    opi_order_free(order);
  }
  opi_order *none = NULL;
  OPI_ASSERT_ERROR(opi_order_gems(3, 4, opi_allocator_system(), &none, &err), OPIPE_E_INVALID, &err,
                   "3 ranks");
}

/* No bubble without sums; with them each micro-batch waits for its own. */
static void pipedream(void) {
  opi_order *order = NULL, *lowered = NULL;
  opi_order_play how = {.stages = loads(4, 100), .updates_each = true};
  OPI_ASSERT_OK_FATAL(opi_order_pipedream(4, opi_allocator_system(), &order, &err), &err);
  opi_order_played played = play(order, &how, &lowered);
  OPI_ASSERT(fabs(played.step_ns - 4 * 300) < 1e-6);
  opi_order_played_release(&played, lowered->list);
  opi_order_free(lowered);
  for (uint32_t s = 0; s < 4; ++s)
    ((opi_stage_load *)(uintptr_t)how.stages)[s].gradient_bytes = 60;
  how.n_data = 2; /* a ring of two: 2 messages of 30 bytes, 1 byte per ns */
  played = play(order, &how, &lowered);
  OPI_ASSERT(fabs(played.step_ns - 4 * 360) < 1e-6);
  opi_order_played_release(&played, lowered->list);
  opi_order_free(lowered);
  opi_order_free(order);
}

/* Stages 0 and 2 of GEMS once more: as much longer as their forwards, before or behind gradients.
 */
static void recompute(void) {
  const bool again[] = {true, false, true, false};
  opi_order *order = NULL, *lowered = NULL;
  opi_do_list *list = NULL;
  OPI_ASSERT_OK_FATAL(opi_order_gems(4, 2, opi_allocator_system(), &order, &err), &err);
  OPI_ASSERT_OK_FATAL(opi_pass_recompute(order->list, again, opi_allocator_system(), &list, &err),
                      &err);
  OPI_ASSERT_INT(list->n_items, order->list->n_items + 4);
  for (uint32_t i = 0; i < list->n_items; ++i) {
    if (list->items[i].kind == OPI_DO_R)
      OPI_ASSERT(again[list->items[i].stage] && list->items[i + 1].kind == OPI_DO_B);
    if (list->items[i].kind == OPI_DO_B && again[list->items[i].stage])
      OPI_ASSERT_INT(list->items[i - 1].kind, OPI_DO_R);
  }
  opi_do_list_free(order->list);
  order->list = list;
  double step[2];
  for (uint32_t late = 0; late < 2; ++late) {
    opi_order_play how = {.stages = loads(4, 100), .recomputes_late = late == 1};
    opi_order_played played = play(order, &how, &lowered);
    step[late] = played.step_ns;
    opi_order_played_release(&played, lowered->list);
    opi_order_free(lowered);
  }
  OPI_ASSERT(step[1] > step[0]);
  opi_order_free(order);
}

static opi_layers *make_model(const opi_cluster *on, const char *spec, uint32_t tokens) {
  const opi_arch_place place = {on, 0};
  const uint32_t samples = 1;
  opi_arch arch;
  opi_layers *layers = NULL;
  OPI_ASSERT_OK_FATAL(opi_arch_parse(spec, &arch, &err), &err);
  arch.seq = tokens;
  OPI_ASSERT_OK_FATAL(
      opi_arch_layers(&arch, spec, &place, &samples, 1, opi_allocator_system(), &layers, &err),
      &err);
  return layers;
}

static const char SPEC[] = "gpt:layers=4,hidden=64,heads=4,vocab=256,seq=64";

/* Sums over stages are those of the model; n devices have 1 / n of what is divided. */
static void stage_loads(void) {
  static const uint32_t ends[] = {0, 2, 4, 6}, keep[] = {OPI_KEEP_LAYERS, OPI_KEEP_STAGE, 0};
  opi_layers *layers = make_model(&cluster, SPEC, 64);
  opi_stage_load one[3], two[3];
  opi_stage_question q = {.layers = layers,
                          .ends = ends,
                          .keep = keep,
                          .n_stages = 3,
                          .width = 1,
                          .samples = 1,
                          .state_bytes = 4,
                          .gradient_bytes = 1};
  OPI_ASSERT_OK_FATAL(opi_stage_loads(&q, one, &err), &err);
  const opi_layer all = opi_layers_sum(layers, 0, 6, 1);
  OPI_ASSERT(fabs(one[0].forward_ns + one[1].forward_ns + one[2].forward_ns - all.forward_ns) <
             1e-6 * all.forward_ns);
  OPI_ASSERT(one[0].fixed_bytes + one[1].fixed_bytes + one[2].fixed_bytes ==
             4.0 * (double)all.param_bytes);
  OPI_ASSERT(one[0].send_bytes == 64 * 64 * 4 && one[2].send_bytes == 0);
  OPI_ASSERT(one[0].input_bytes == 64 * 64 * 4);
  OPI_ASSERT(one[1].input_bytes == 64 * 64 * 4 && one[2].input_bytes == 0);
  OPI_ASSERT(one[0].stash_bytes < one[1].stash_bytes && one[0].tensor_sums == 0);
  q.width = 2;
  OPI_ASSERT_OK_FATAL(opi_stage_loads(&q, two, &err), &err);
  const opi_layer block = opi_layers_at(layers, 2, 1);
  OPI_ASSERT(fabs(two[1].forward_ns - 2 * block.forward_ns * (1 - block.width_share / 2)) <
             1e-6 * block.forward_ns);
  OPI_ASSERT_INT(two[1].tensor_sums, 4);
  OPI_ASSERT(two[1].tensor_bytes == (double)block.width_bytes / 2);
  OPI_ASSERT(two[1].gradient_bytes == one[1].gradient_bytes / 2);
  q.ends = (const uint32_t[]){0, 2, 2, 6};
  OPI_ASSERT_ERROR(opi_stage_loads(&q, two, &err), OPIPE_E_INVALID, &err, "stage 1");
  opi_layers_free(layers);
}

/* The planner's slicing is no worse than every even one, at any number of slices; longer slices
 * come first, and its rows and tokens are all there. */
static void terapipe(void) {
  opi_layers *layers = make_model(&cluster, SPEC, 64);
  for (uint32_t i = 0; i < layers->n_layers; ++i) {
    layers->slices.context_ns[i] = 5.0;
    for (uint32_t k = 0; k < layers->slices.n; ++k)
      layers->slices.alone[k * layers->n_layers + i].ns += 100;
  }
  opi_planning q = {.layers = layers,
                    .cluster = &cluster,
                    .allocator = opi_allocator_system(),
                    .n_devices = 4,
                    .batch = 2};
  opi_strategy *found = NULL;
  opi_machine machine;
  OPI_ASSERT_OK_FATAL(opi_plan_terapipe(&q, &found, &err), &err);
  OPI_ASSERT_FATAL(found->n_groups > 0);
  uint32_t rows = 0;
  for (uint32_t g = 0; g < found->n_groups; ++g) {
    uint32_t sum = 0;
    for (uint32_t k = 0; k < found->groups[g].n_slices; ++k) {
      OPI_ASSERT(k == 0 || found->groups[g].lengths[k] <= found->groups[g].lengths[k - 1]);
      sum += found->groups[g].lengths[k];
    }
    OPI_ASSERT_INT(sum, 64);
    rows += found->groups[g].rows;
  }
  OPI_ASSERT_INT(rows * found->pipelines, 2);
  OPI_ASSERT_OK_FATAL(opi_planning_check("test", &q, &machine, &err), &err);
  for (uint32_t depth = 1; depth <= 4; depth *= 2) {
    uint32_t ends[8];
    OPI_ASSERT_FATAL(opi_even_stages(q.layers, depth, ends));
    for (uint32_t n = 1; n <= 8; ++n) {
      const opi_slice_question ask = {&q, &machine, ends, depth, 1, 2 * depth / 4, 1, 8, n};
      opi_slicing even = {{0}};
      if (ask.rows == 0)
        continue;
      OPI_ASSERT_OK_FATAL(opi_terapipe_slices(&ask, &even, &err), &err);
      if (depth == 4) /* one copy: no sums */
        OPI_ASSERT(found->objective <= even.total * (1 + 1e-3));
      opi_slicing_free(&even);
    }
  }
  opi_strategy_free(found);
  layers->slices.n = 0;
  OPI_ASSERT_ERROR(opi_plan_terapipe(&q, &found, &err), OPIPE_E_INVALID, &err,
                   "does not give the costs of token slices");
  opi_layers_free(layers);
}

/* ---- each with its own arena and cluster ---- */

static void with_cluster(void (*test)(void)) {
  opi_arena_init(&arena, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(opi_cluster_read("test", FREE, sizeof FREE - 1, &arena, &cluster, &err),
                      &err);
  test();
  opi_arena_release(&arena);
}

static void test_gems(void) {
  with_cluster(gems);
}
static void test_pipedream(void) {
  with_cluster(pipedream);
}
static void test_recompute(void) {
  with_cluster(recompute);
}
static void test_stage_loads(void) {
  with_cluster(stage_loads);
}
static void test_terapipe(void) {
  with_cluster(terapipe);
}

OPI_TEST_MAIN("baselines", OPI_TEST(test_gems), OPI_TEST(test_pipedream), OPI_TEST(test_recompute),
              OPI_TEST(test_stage_loads), OPI_TEST(test_terapipe))
