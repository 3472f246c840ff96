/* SPDX-License-Identifier: Apache-2.0 */
/* The planner `auto`: no plan of a paper's planner is faster; on small problems nothing is, by a
 * search of the test's own; threads change nothing; what is not allowed is not done; what does not
 * fit is said.
 * ctest: timeout=600 label=nosan (others of this folder are sanitized)
 */
#include "partition/study/auto/space.h"
#include "tests/partition/study/auto.h"

#include <jansson.h>

#include "partition/study/simulate/order_play.h"

static uint32_t below(opi_test_random *random, uint32_t n) {
  return (uint32_t)(opi_test_next(random) % n);
}

/* ---- the papers' planners ---- */

/* Small machines and models of all kinds; every planner's answer that fits, played, is no faster.
 */
static void one_against_named(uint32_t seed, bool tiny) {
  static const char *const names[] = {"dapple", "pipedream", "2bw", "chimera", "megatron"};
  opi_test_random random = {seed};
  const uint32_t nodes = 1u << below(&random, 2), per_node = 2 + below(&random, tiny ? 1 : 3);
  const rates r = {opi_test_uniform(&random, 5, 50), opi_test_uniform(&random, 5, 50),
                   opi_test_uniform(&random, 0.5, 5), opi_test_uniform(&random, 0.5, 5), 1000};
  const uint64_t memory = opi_test_next(&random) % 2 == 0 ? 0 : 40000000;
  opi_cluster c = make_cluster(nodes, per_node, memory, r);
  opi_layers *layers = opi_test_next(&random) % 2 == 0
                           ? random_model(&random, 4 + below(&random, tiny ? 3 : 10))
                           : equal_blocks(tiny ? 4 : 12, 3e5, 6e5, 200000, 300000, 1000000);
  opi_auto q = auto_question(layers, &c, 4u << opi_test_next(&random) % 3);
  opi_auto_answer *answer = NULL;
  q.allow_stale = q.hypothetical = true;
  q.work_most = tiny ? 100000 : 500000; /* the papers' plans come first */
  q.planning.samples = 1;
  q.planning.judged = true;
  const opipe_status status = opi_auto_search(&q, &answer, &err);
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    opi_strategy *s = NULL;
    opi_judged judged;
    if (opi_planner_find(names[i])(&q.planning, &s, &err) != OPIPE_OK)
      continue;
    /* an order for simulation alone is played as one that can run */
    s->schedule = strcmp(names[i], "pipedream") == 0 ? "1f1b" : s->schedule;
    const opipe_status played = opi_strategy_judge(&q, s, &judged, &err);
    if (played == OPIPE_OK && judged.over_bytes <= 0) {
      OPI_ASSERT_FATAL(status == OPIPE_OK);
      const double found = answer->ranked[0].judged.step_ns;
      if (!(found <= (1 + 1e-9) * judged.step_ns))
        OPI_FAIL("seed %u: auto %.17g ns, %s %.17g", seed, found, names[i], judged.step_ns);
      OPI_ASSERT(answer->bound <= found && answer->gap >= 0);
    }
    opi_strategy_free(s);
  }
  OPI_ASSERT(status == OPIPE_OK || status == OPIPE_E_LIMIT);
  opi_auto_free(answer);
  opi_layers_free(layers);
}

static void test_no_paper_is_faster(void) {
  for (uint32_t i = 0; i < 200; ++i) {
    if (i < 4 || opi_test_covers(i, 1000)) /* the first ones are small */
      one_against_named(i + 1, i < 4);
  }
}

/* ---- every plan there is ---- */

static const char *const few[] = {"1f1b:policy=pa", "gpipe:", "chimera:pipelines=2"};

typedef struct brute {
  const opi_auto *q;
  const opi_layers *layers;
  const opi_cluster *cluster;
  const double *factor; /* [classes] times of a device, of those of class 0 */
  uint32_t n_devices, batch;
  double best;
  uint32_t n_played;
  /* the plan at hand */
  const char *schedule;
  uint32_t n_ranks, width, copies, samples, microbatches;
  bool cuts_rows;
  uint32_t shares[4], ends[5], order[4];
} brute;

static const opi_layer nothing;

static opi_layer sum_of(const brute *b, uint32_t stage) {
  opi_layer sum = nothing;
  for (uint32_t i = b->ends[stage]; i < b->ends[stage + 1]; ++i) {
    const opi_layer l = opi_layers_at(b->layers, i, b->samples);
    sum.forward_ns += l.forward_ns / b->width; /* every layer is divided as a whole */
    sum.input_ns += l.input_ns / b->width;
    sum.weight_ns += l.weight_ns / b->width;
    sum.param_bytes += l.param_bytes;
    sum.width_bytes += l.width_bytes;
    sum.cut_bytes = l.cut_bytes;
  }
  return sum;
}

/* A play gives each of a rank's replicas an equal part of a micro-batch's rows. Rows are whole: a
 * replica takes up to ceil(samples / replicas) of them, so many times as much. */
static double most_of(const brute *b, uint32_t rank) {
  const uint32_t n = b->shares[rank], rows = (b->samples + n - 1) / n;
  return b->cuts_rows ? (double)rows * n / b->samples : 1;
}

/* Plays it with loads of the test's own. */
static void play_plan(brute *b) {
  const uint32_t n = b->n_ranks, t = b->width;
  uint32_t used = 0;
  opi_stage_load stages[4], instances[32];
  memset(instances, 0, sizeof instances);
  for (uint32_t r = 0; r < n; ++r)
    used += b->shares[r];
  const double ms[4] = {1, 1, 1, 1};
  const opi_costs costs = {
      .stage_forward = ms, .stage_input = ms, .stage_weight = ms, .n_stages = n};
  const opi_question ask = {.schedule = b->schedule,
                            .mode = OPIPE_MODE_TRAIN,
                            .n_ranks = b->cuts_rows ? used : n * b->copies,
                            .n_microbatches = b->microbatches * b->copies,
                            .replicas = b->copies,
                            .n_rank_replicas = b->cuts_rows ? n : 0,
                            .rank_replicas = b->shares,
                            .costs = &costs};
  opi_order *order = NULL, *lowered = NULL;
  opi_order_played played;
  opi_arena own;
  if (opi_order_ask(&auto_plugins, &ask, opi_allocator_system(), &order, &err) != OPIPE_OK)
    return;
  const opi_problem *p = &order->problem;
  for (uint32_t i = 0; i < p->n_stages * p->n_replicas; ++i) {
    const uint32_t rank = p->instance_rank[i], stage = i / p->n_replicas;
    const opi_layer sum = sum_of(b, stage);
    double factor = 0;
    for (uint32_t k = 0; rank != OPIPE_NONE && k < t; ++k)
      factor = fmax(factor, b->factor[b->cluster->class_of[b->order[rank * t + k]]]);
    const double most = most_of(b, stage); /* where rows are divided, stage s is of rank s */
    factor *= most;
    instances[i] =
        (opi_stage_load){.forward_ns = sum.forward_ns * factor,
                         .input_ns = sum.input_ns * factor,
                         .weight_ns = sum.weight_ns * factor,
                         .send_bytes = stage + 1 == n ? 0 : (double)sum.cut_bytes,
                         .gradient_bytes = (double)sum.param_bytes / t,
                         .tensor_sums = t > 1 ? 2 * (b->ends[stage + 1] - b->ends[stage]) : 0,
                         .tensor_bytes = t > 1 ? most * (double)sum.width_bytes /
                                                     (2.0 * (b->ends[stage + 1] - b->ends[stage]))
                                               : 0};
    if (i % p->n_replicas == 0)
      stages[stage] = instances[i];
  }
  const opi_lowering lowering = {.receive_depth = 1};
  const opi_order_play how = {.cluster = b->cluster,
                              .stages = stages,
                              .instances = instances,
                              .device = b->order,
                              .n_tensor = t};
  opi_arena_init(&own, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(opi_order_lower(order, &lowering, opi_allocator_system(), &lowered, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(
      opi_order_play_run(&lowered->problem, lowered->list, &how, &own, &played, &err), &err);
  b->best = fmin(b->best, played.step_ns);
  ++b->n_played;
  opi_order_played_release(&played, lowered->list);
  opi_arena_release(&own);
  opi_order_free(lowered);
  opi_order_free(order);
}

/* All devices in all orders. */
static void each_order(brute *b, uint32_t at, uint32_t n, uint32_t taken) {
  if (at == n || at == OPI_COUNT(b->order)) {
    play_plan(b);
    return;
  }
  for (uint32_t d = 0; d < b->n_devices; ++d) {
    b->order[at] = d;
    if ((taken & 1u << d) == 0)
      each_order(b, at + 1, n, taken | 1u << d);
  }
}

static void each_cut(brute *b, uint32_t stage, uint32_t used) {
  const uint32_t n = b->layers->n_layers;
  if (stage + 2 >= OPI_COUNT(b->ends) || stage + 1 == b->n_ranks) {
    b->ends[stage + 1] = n;
    each_order(b, 0, used * b->copies * b->width, 0);
    return;
  }
  for (b->ends[stage + 1] = b->ends[stage] + 1; b->ends[stage + 1] + (b->n_ranks - 1 - stage) <= n;
       ++b->ends[stage + 1])
    each_cut(b, stage + 1, used);
}

static void each_share(brute *b, uint32_t rank, uint32_t used) {
  if (rank == b->n_ranks || rank == OPI_COUNT(b->shares)) {
    b->cuts_rows = used > b->n_ranks;
    if (b->cuts_rows && b->copies > 1)
      return;
    each_cut(b, 0, used);
    return;
  }
  const uint32_t rows = b->batch / (b->microbatches * b->copies);
  for (b->shares[rank] = 1; b->shares[rank] <= rows; ++b->shares[rank]) {
    if ((used + b->shares[rank] + (b->n_ranks - rank - 1)) * b->width * b->copies <= b->n_devices)
      each_share(b, rank + 1, used + b->shares[rank]);
  }
}

static void each_copies(brute *b) {
  for (b->copies = 1; b->copies * b->width * b->n_ranks <= b->n_devices; ++b->copies) {
    const uint32_t share = (b->batch + b->copies - 1) / b->copies;
    for (b->samples = 1; b->samples <= share; ++b->samples) {
      b->microbatches = (share + b->samples - 1) / b->samples;
      if ((share + b->microbatches - 1) / b->microbatches == b->samples &&
          b->microbatches * b->copies <= b->batch)
        each_share(b, 0, 0);
    }
  }
}

static void all_plans(brute *b) {
  const uint32_t most = b->n_devices < b->layers->n_layers ? b->n_devices : b->layers->n_layers;
  b->best = INFINITY;
  for (size_t m = 0; m < OPI_COUNT(few); ++m) {
    b->schedule = few[m];
    for (b->width = 1; b->width <= b->n_devices; ++b->width) {
      for (b->n_ranks = 1; b->n_ranks <= most; ++b->n_ranks)
        each_copies(b);
    }
  }
}

static void one_against_all(uint32_t seed, bool tiny) {
  opi_test_random random = {seed};
  char text[1024];
  opi_cluster c;
  const double slow = opi_test_uniform(&random, 1, 3), factor[2] = {1, slow};
  const bool mixed = opi_test_next(&random) % 2 == 0;
  const uint32_t n = tiny ? 3 : 4;
  (void)snprintf(
      text, sizeof text,
      "{\"format\": \"onnx-pipe cluster 1\", \"nodes\": 2, \"devices\": [{\"kind\": \"x\", "
      "\"flops\": "
      "1e12, \"alignment\": 64, \"count\": %u}, {\"kind\": \"x\", \"flops\": %.17g, \"alignment\": "
      "64, \"count\": %u}], \"tiers\": [{\"nodes\": 1, \"latency_ns\": 500, \"bandwidth\": %.17g}, "
      "{\"latency_ns\": 2000, \"bandwidth\": %.17g}]}",
      1, 1e12 / slow, 1, opi_test_uniform(&random, 2e9, 2e10), opi_test_uniform(&random, 2e8, 4e9));
  OPI_ASSERT_OK_FATAL(opi_cluster_read("test", text, strlen(text), &arena, &c, &err), &err);
  opi_layers *layers = random_model(&random, 3 + below(&random, tiny ? 2 : mixed ? 3 : 6));
  opi_auto q = auto_question(layers, &c, 1 + below(&random, tiny ? 2 : 4));
  q.schedules = few;
  q.n_schedules = OPI_COUNT(few);
  q.hypothetical = true;
  q.planning.n_devices = n;
  q.fixed.recompute = OPI_RECOMPUTES_NEVER;
  opi_auto_answer *answer = auto_ask(&q);
  brute b = {.q = &q,
             .layers = layers,
             .cluster = &c,
             .factor = factor,
             .n_devices = n,
             .batch = (uint32_t)q.planning.batch};
  all_plans(&b);
  const double found = answer->ranked[0].judged.step_ns;
  OPI_ASSERT(answer->complete && answer->n_left == 0);
  if (!(found <= b.best * (1 + 1e-9)))
    OPI_FAIL("seed %u: auto %.17g ns, all %u plans %.17g", seed, found, b.n_played, b.best);
  const opi_strategy *s = answer->ranked[0].strategy;
  /* sharding and scattering are beyond what the loops above try */
  if (!s->sharded && !s->scattered && !(found >= b.best * (1 - 1e-9))) {
    OPI_FAIL("seed %u: auto %.17g ns, which none of %u plans takes: %.17g", seed, found, b.n_played,
             b.best);
  }
  opi_auto_free(answer);
  opi_layers_free(layers);
}

static void test_nothing_is_faster(void) {
  for (uint32_t i = 0; i < 100; ++i) {
    if (i < 4 || opi_test_covers(i, 1000))
      one_against_all(i + 1, i < 4);
  }
}

/* ---- torch's vectors ---- */

/* The best makespan of a case for its chunks, under the schedule of its ranks. */
static void one_vector(const json_t *v, uint32_t *io_regressions) {
  const json_t *flops = json_object_get(v, "forward_flops"),
               *cuts = json_object_get(v, "comm_bytes");
  const json_t *here = json_object_get(v, "computed_here");
  const double rate = json_number_value(json_object_get(v, "throughput"));
  const double bandwidth = json_number_value(json_object_get(v, "bandwidth"));
  const double wanted = json_number_value(json_object_get(here, "exhaustive_makespan"));
  const uint32_t ranks = (uint32_t)json_integer_value(json_object_get(v, "pp"));
  const uint32_t n = (uint32_t)json_array_size(flops);
  if (wanted == 0 || ranks == 0 || json_integer_value(json_object_get(v, "virtual")) > 1)
    return;
  char text[512];
  opi_cluster c;
  /* messages are delays there, of the same bytes everywhere; they share nothing */
  (void)snprintf(
      text, sizeof text,
      "{\"format\": \"onnx-pipe cluster 1\", \"nodes\": %u, \"devices\": [{\"kind\": "
      "\"x\", \"alignment\": 64}], \"tiers\": [{\"bandwidth\": 1e18, \"latency_ns\": %.17g}]}",
      ranks, json_number_value(json_array_get(cuts, 0)) / bandwidth * 1e9);
  OPI_ASSERT_OK_FATAL(opi_cluster_read("test", text, strlen(text), &arena, &c, &err), &err);
  opi_layers *layers = make_layers(n, 1);
  for (uint32_t i = 0; i < n; ++i) {
    const double ns = json_number_value(json_array_get(flops, i)) / rate * 1e9;
    layers->at[i] = (opi_layer){.forward_ns = ns, .input_ns = ns, .weight_ns = ns};
  }
  opi_auto q =
      auto_question(layers, &c, (uint64_t)json_integer_value(json_object_get(v, "microbatches")));
  q.fixed = (opi_auto_fixed){.schedule = "1f1b:policy=pa",
                             .n_stages = ranks,
                             .n_ranks = ranks,
                             .microbatches = (uint32_t)q.planning.batch};
  opi_auto_answer *answer = auto_ask(&q);
  const double found = answer->ranked[0].judged.step_ns * 1e-9;
  if (!(found <= wanted * (1 + 1e-9)))
    OPI_FAIL("%u layers on %u ranks: %.17g s, published optimum %.17g", n, ranks, found, wanted);
  *io_regressions += fabs(wanted - 0.573) < 1e-9 && found < 0.573 * (1 + 1e-9);
  opi_auto_free(answer);
  opi_layers_free(layers);
}

/* Among them the one where cutting by the slowest stage takes 0.6. */
static void test_torch_vectors(void) {
  uint32_t n_regressions = 0;
  json_error_t why;
  const char *path = opi_test_shared("oracles/partition/torch/partition_vectors.json");
  json_t *root = path == NULL ? NULL : json_load_file(path, 0, &why);
  if (root == NULL)
    OPI_SKIP("oracles/partition is not there");
  const json_t *cases = json_object_get(root, "cases");
  OPI_ASSERT_FATAL(json_array_size(cases) > 0);
  for (size_t i = 0; i < json_array_size(cases); ++i)
    one_vector(json_array_get(cases, i), &n_regressions);
  OPI_ASSERT_INT(n_regressions, 1);
  json_decref(root);
}

/* ---- the same on any number of threads ---- */

static char *write_answer(opi_auto *q, uint32_t n_threads) {
  opi_text text;
  q->n_threads = n_threads;
  opi_auto_answer *answer = auto_ask(q);
  opi_text_init(&text, opi_allocator_system());
  opi_auto_write(answer, 0, &text);
  opi_auto_describe(answer, answer->n_ranked - 1, q->planning.layers, &text);
  opi_auto_free(answer);
  char *copy = strndup(text.data, text.n);
  opi_text_release(&text);
  return copy;
}

static void test_threads_change_nothing(void) {
  opi_test_random random = {7};
  for (uint32_t i = 0; i < 3; ++i) {
    opi_cluster c = make_cluster(2, i == 0 ? 2 : 4, 0, dapple_rates);
    opi_layers *layers = random_model(&random, 6 + 8 * i);
    opi_auto q = auto_question(layers, &c, 8);
    q.work_most = 400000; /* the second and third are stopped by it */
    char *one = write_answer(&q, 1), *four = write_answer(&q, 4);
    OPI_ASSERT_STR(one, four);
    free(one);
    free(four);
    opi_layers_free(layers);
  }
}

/* ---- options that are given, and options that are not ---- */

static void test_permissions(void) {
  opi_cluster c = make_cluster(1, 4, 0, dapple_rates);
  opi_layers *layers = equal_blocks(8, 1e6, 2e6, 1000, 4000, 100000000);
  opi_auto q = auto_question(layers, &c, 16);
  opi_auto_answer *answer = auto_ask(&q);
  for (uint32_t i = 0; i < answer->n_ranked; ++i) {
    const opi_strategy *s = answer->ranked[i].strategy;
    OPI_ASSERT(s->width == 1 && !s->sharded && !s->scattered && s->n_groups == 0);
    OPI_ASSERT(strncmp(s->schedule, "2bw", 3) != 0);
    OPI_ASSERT((uint64_t)s->pipelines * s->microbatches * s->samples >= 16);
    OPI_ASSERT((i == 0) == (answer->ranked[i].reason == NULL));
    OPI_ASSERT(i == 0 || s->objective >= answer->ranked[i - 1].strategy->objective);
  }
  const double alone = answer->ranked[0].judged.step_ns;
  opi_auto_free(answer);
  q.allow_stale = true; /* no flush any more */
  answer = auto_ask(&q);
  OPI_ASSERT(answer->ranked[0].judged.step_ns < alone);
  opi_auto_free(answer);
  q.allow_stale = false;
  q.fixed = (opi_auto_fixed){.schedule = "gpipe", .n_stages = 4, .microbatches = 8, .pipelines = 1};
  answer = auto_ask(&q);
  const opi_strategy *s = answer->ranked[0].strategy;
  OPI_ASSERT_STR(s->schedule, "gpipe");
  OPI_ASSERT(s->n_stages == 4 && s->microbatches == 8 && s->samples == 2 && s->pipelines == 1);
  opi_auto_free(answer);
  opi_layers_free(layers);
}

/* The least memory; under a limit of time more of it. */
static void test_objectives(void) {
  opi_cluster c = make_cluster(1, 4, 0, dapple_rates);
  opi_layers *layers = equal_blocks(4, 1e6, 2e6, 1000, 4000000, 1000000);
  opi_auto q = auto_question(layers, &c, 4);
  opi_auto_answer *fast = auto_ask(&q);
  q.objective = OPI_AUTO_MEMORY;
  opi_auto_answer *least = auto_ask(&q);
  q.limit_ns = fast->ranked[0].judged.step_ns * 1.2;
  opi_auto_answer *both = auto_ask(&q);
  OPI_ASSERT(least->ranked[0].judged.bytes <= both->ranked[0].judged.bytes);
  OPI_ASSERT(both->ranked[0].judged.bytes <= fast->ranked[0].judged.bytes);
  OPI_ASSERT(both->ranked[0].judged.step_ns <= q.limit_ns);
  OPI_ASSERT(least->ranked[0].judged.bytes < fast->ranked[0].judged.bytes);
  q.limit_ns = 1e6;
  opi_auto_answer *none = NULL;
  OPI_ASSERT_ERROR(opi_auto_search(&q, &none, &err), OPIPE_E_LIMIT, &err, "smallest limit");
  opi_auto_free(fast);
  opi_auto_free(least);
  opi_auto_free(both);
  q = auto_question(layers, &c, 4);
  q.mode = OPIPE_MODE_FORWARD;
  q.objective = OPI_AUTO_THROUGHPUT;
  opi_auto_answer *stream = auto_ask(&q);
  OPI_ASSERT(fabs(stream->ranked[0].judged.interval_ns - 4 * 4e6 / 4) < 1);
  q.objective = OPI_AUTO_LATENCY;
  opi_auto_answer *request = auto_ask(&q);
  OPI_ASSERT(request->ranked[0].judged.step_ns <= stream->ranked[0].judged.step_ns);
  opi_auto_free(stream);
  opi_auto_free(request);
  opi_layers_free(layers);
}

/* As many stages as a rank of 2 or 1 can have under some option; without times nothing is planned,
 * and training is not taken for requests. */
static void test_stages_that_are_given(void) {
  static const uint32_t given[] = {5, 7, 9, 10};
  opi_cluster c = make_cluster(1, 2, 0, dapple_rates);
  opi_layers *layers = equal_blocks(12, 1e6, 2e6, 1000, 1000, 1000);
  opi_auto q = auto_question(layers, &c, 16);
  opi_auto_answer *answer = NULL;
  for (size_t i = 0; i < OPI_COUNT(given); ++i) {
    q.fixed.n_stages = given[i];
    answer = auto_ask(&q);
    OPI_ASSERT_INT(answer->ranked[0].strategy->n_stages, given[i]);
    OPI_ASSERT(given[i] % 2 != 0 || answer->ranked[0].strategy->n_ranks == 2);
    opi_auto_free(answer);
  }
  opi_layers_free(layers);
  layers = equal_blocks(4, 0, 0, 1000, 1000, 1000);
  q = auto_question(layers, &c, 16);
  OPI_ASSERT_ERROR(opi_auto_search(&q, &answer, &err), OPIPE_E_INVALID, &err,
                   "0 ns for each of its 4 layers");
  opi_layers_free(layers);
}

/* Tensor groups of a model are taken where a layer fits no device, and where they are faster: not
 * over links on which sums take seconds. A width that is given is kept; a strategy that no
 * session executes is no candidate. */
static void test_tensor_groups(void) {
  enum {
    LARGE = 10000000,
    CAP = 32000000,
    ROOM = 100000000
  }; /* 4 bytes of each parameter's byte */
  for (uint32_t k = 0; k < 5; ++k) {
    const bool slow = k == 4, large = k % 2 == 0 && !slow, groups = k < 2 || slow;
    rates r = dapple_rates;
    r.inside_sum = slow ? 1e-6 : r.inside_sum;
    opi_cluster c = make_cluster(1, 2, large ? CAP : ROOM, r);
    opi_layers *layers = equal_blocks(2, 1e6, 2e6, 1000, 1000, 1000000);
    layers->at[0].param_bytes = LARGE;
    for (uint32_t i = 0; i < 2; ++i)
      layers->at[i].width_share = 1, layers->at[i].width_bytes = 1000;
    opi_auto q = auto_question(layers, &c, 4);
    opi_auto_answer *answer = NULL;
    q.groups = groups;
    if (large && !groups) {
      OPI_ASSERT_ERROR(opi_auto_search(&q, &answer, &err), OPIPE_E_LIMIT, &err, "tensor width");
    } else {
      answer = auto_ask(&q);
      OPI_ASSERT_INT(answer->ranked[0].strategy->width, large || (groups && !slow) ? 2 : 1);
      for (uint32_t i = 0; i < answer->n_ranked; ++i) {
        const opi_strategy *s = answer->ranked[i].strategy;
        OPI_ASSERT(!s->scattered && (s->width == 1 || s->n_groups == 0));
      }
      opi_auto_free(answer);
    }
    q.fixed.width = 2;
    if (groups) {
      answer = auto_ask(&q);
      OPI_ASSERT_INT(answer->ranked[0].strategy->width, 2);
      opi_auto_free(answer);
    } else {
      OPI_ASSERT_ERROR(opi_auto_search(&q, &answer, &err), OPIPE_E_LIMIT, &err, "without a model");
    }
    opi_layers_free(layers);
  }
}

static bool says(opi_text *text, const char *what) {
  const bool found = strstr(text->data, what) != NULL;
  opi_text_release(text);
  return found;
}

/* A device that has less than the other, and enough: the least is what it was, of the fullest
 * device and not of the one with the least room; and bytes are written as bytes. */
static void test_the_fullest_device(void) {
  opi_cluster c = make_cluster(1, 2, 1ull << 33, dapple_rates);
  opi_layers *layers = equal_blocks(8, 1e6, 2e6, 1000, 4000000, 1000000);
  opi_auto q = auto_question(layers, &c, 16);
  opi_text text;
  char bytes[64];
  q.objective = OPI_AUTO_MEMORY;
  q.fixed = (opi_auto_fixed){.schedule = "gpipe", .n_stages = 2, .microbatches = 16};
  opi_auto_answer *equal = auto_ask(&q);
  const double least = equal->ranked[0].judged.bytes;
  c.descriptions[1].memory_bytes = (uint64_t)(1.5 * least);
  opi_auto_answer *capped = auto_ask(&q);
  OPI_ASSERT(capped->ranked[0].judged.bytes == least && capped->ranked[0].judged.over_bytes <= 0);
  c.descriptions[1].memory_bytes = (uint64_t)(0.9 * least);
  opi_auto_answer *tight = auto_ask(&q);
  const opi_judged *found = &tight->ranked[0].judged;
  OPI_ASSERT(found->bytes > least && found->device == 0 && found->over_bytes <= 0);
  opi_text_init(&text, opi_allocator_system());
  opi_auto_describe(tight, 0, layers, &text);
  (void)snprintf(bytes, sizeof bytes, "(objective %.3f MiB)", found->bytes / (1 << 20));
  OPI_ASSERT(says(&text, bytes));
  opi_text_init(&text, opi_allocator_system());
  opi_auto_write(tight, 0, &text);
  OPI_ASSERT(says(&text, "\"objective_bytes\": "));
  opi_auto_free(equal);
  opi_auto_free(capped);
  opi_auto_free(tight);
  opi_layers_free(layers);
}

/* Requests one after the other in the order of one: with two stages in turn on each of two ranks,
 * the first rank waits for the second in the middle of each. */
static void test_streams_repeat_a_request(void) {
  opi_cluster c = make_cluster(1, 2, 0, dapple_rates);
  opi_layers *layers = equal_blocks(4, 1e6, 0, 0, 0, 0);
  opi_auto q = auto_question(layers, &c, 1);
  q.mode = OPIPE_MODE_FORWARD;
  q.objective = OPI_AUTO_THROUGHPUT;
  q.fixed = (opi_auto_fixed){
      .schedule = "interleaved:chunks=2", .n_stages = 4, .n_ranks = 2, .pipelines = 1};
  opi_auto_answer *answer = auto_ask(&q);
  OPI_ASSERT(fabs(answer->ranked[0].judged.step_ns / 4e6 - 1) < 0.01);
  OPI_ASSERT(fabs(answer->ranked[0].judged.interval_ns / 3e6 - 1) < 0.01);
  opi_auto_free(answer);
  q.fixed = (opi_auto_fixed){.n_stages = 2, .n_ranks = 2, .pipelines = 1};
  answer = auto_ask(&q);
  OPI_ASSERT(fabs(answer->ranked[0].judged.interval_ns / 2e6 - 1) < 0.01);
  opi_auto_free(answer);
  opi_layers_free(layers);
}

/* No candidate with so many stages is below its bound, or faster than what was found. */
static void no_faster_request(const opi_auto *question, uint32_t n_stages, double found_ns) {
  opi_auto q = *question;
  q.fixed = (opi_auto_fixed){.n_stages = n_stages};
  opi_auto_answer *given = auto_ask(&q);
  for (uint32_t i = 0; i < given->n_ranked; ++i) {
    const opi_auto_ranked *x = &given->ranked[i];
    if (!(x->bound_ns <= x->judged.step_ns * (1 + 1e-9))) {
      OPI_FAIL("%u stages: %s takes %.17g ns, below its bound of %.17g", n_stages,
               x->strategy->schedule, x->judged.step_ns, x->bound_ns);
    }
  }
  if (!(found_ns <= given->ranked[0].judged.step_ns * (1 + 1e-9))) {
    OPI_FAIL("auto %.17g ns, with %u stages %.17g", found_ns, n_stages,
             given->ranked[0].judged.step_ns);
  }
  opi_auto_free(given);
}

/* The dear link between two devices is taken once, by hand and by the bound; random models. */
static void test_requests_do_not_come_back(void) {
  const rates slow = {1, 1, 1, 1, 1000};
  opi_cluster two = make_cluster(1, 2, 0, slow), three = make_cluster(1, 3, 0, slow);
  opi_layers *layers = equal_blocks(2, 1e6, 0, 500000, 0, 0);
  opi_auto q = auto_question(layers, &two, 1);
  q.mode = OPIPE_MODE_FORWARD;
  q.objective = OPI_AUTO_LATENCY;
  q.fixed = (opi_auto_fixed){.n_stages = 2, .n_ranks = 2, .pipelines = 1};
  opi_auto_answer *answer = auto_ask(&q);
  OPI_ASSERT(fabs(answer->ranked[0].judged.step_ns / 2.501e6 - 1) < 1e-9);
  OPI_ASSERT(fabs(answer->ranked[0].bound_ns / 2.501e6 - 1) < 1e-9);
  opi_auto_free(answer);
  opi_layers_free(layers);
  q.planning.cluster = &three;
  q.fixed = (opi_auto_fixed){0};
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    opi_test_random random = {seed};
    q.planning.layers = layers = random_model(&random, 5);
    q.planning.batch = 1 + below(&random, 6);
    answer = auto_ask(&q);
    for (uint32_t n = 1; n <= 3; ++n)
      no_faster_request(&q, n, answer->ranked[0].judged.step_ns);
    opi_auto_free(answer);
    opi_layers_free(layers);
  }
}

/* Copies that take requests in turn, beside the stages of the same devices: work and weights by
 * hand. */
static void test_streams_know_what_replicas_would_do(void) {
  opi_cluster c = make_cluster(1, 2, 64 << 20, dapple_rates);
  opi_layers *layers = equal_blocks(3, 1e6, 0, 0, 0, 10 << 20);
  opi_auto q = auto_question(layers, &c, 1);
  q.mode = OPIPE_MODE_FORWARD;
  q.objective = OPI_AUTO_THROUGHPUT;
  opi_auto_answer *answer = auto_ask(&q); /* three blocks on two devices: two on one of them */
  OPI_ASSERT_INT(answer->turns.n_copies, 2);
  OPI_ASSERT(fabs(answer->turns.interval_ns / 1.5e6 - 1) < 0.01);
  OPI_ASSERT(fabs(answer->ranked[0].judged.interval_ns / 2e6 - 1) < 0.01);
  OPI_ASSERT(answer->turns.weights_bytes == 30 << 20);
  OPI_ASSERT(answer->turns.stage_weights_bytes == 20 << 20);
  opi_auto_free(answer);
  q.memory_bytes = 29 << 20; /* a device holds two blocks, not three */
  answer = auto_ask(&q);
  OPI_ASSERT_INT(answer->turns.n_copies, 0);
  OPI_ASSERT(isinf(answer->turns.interval_ns));
  opi_auto_free(answer);
  q.memory_bytes = 0;
  q.objective = OPI_AUTO_LATENCY;
  answer = auto_ask(&q);
  OPI_ASSERT(answer->turns.interval_ns == 0);
  opi_auto_free(answer);
  opi_layers_free(layers);
}

static void test_infeasible(void) {
  opi_cluster c = make_cluster(1, 2, 5000000, dapple_rates);
  opi_layers *layers = equal_blocks(4, 1e6, 2e6, 1000, 4000000, 1000000);
  opi_auto q = auto_question(layers, &c, 4);
  opi_auto_answer *answer = NULL;
  OPI_ASSERT_ERROR(opi_auto_search(&q, &answer, &err), OPIPE_E_LIMIT, &err,
                   "no plan fits 5000000 bytes (4.8 MiB) on each of 2 devices");
  double least = 0;
  const char *says = strstr(err.message, "takes ");
  OPI_ASSERT_FATAL(says != NULL && sscanf(says, "takes %lf bytes", &least) == 1);
  opi_cluster enough = make_cluster(1, 2, (uint64_t)least, dapple_rates); /* that cap suffices */
  q.planning.cluster = &enough;
  answer = auto_ask(&q);
  opi_auto_free(answer);
  answer = NULL;
  q.fixed = (opi_auto_fixed){.microbatches = 3, .pipelines = 2};
  OPI_ASSERT_ERROR(opi_auto_search(&q, &answer, &err), OPIPE_E_LIMIT, &err,
                   "3 micro-batches cannot be shared by 2 pipelines: 2, or 4, can");
  q.fixed = (opi_auto_fixed){.n_stages = 5};
  OPI_ASSERT_ERROR(opi_auto_search(&q, &answer, &err), OPIPE_E_LIMIT, &err, "5 stages of 4 layers");
  q.fixed = (opi_auto_fixed){.schedule = "terapipe:slices=2"};
  OPI_ASSERT_ERROR(opi_auto_search(&q, &answer, &err), OPIPE_E_UNSUPPORTED, &err,
                   "no token depends on later ones");
  q.fixed = (opi_auto_fixed){.schedule = "2bw"};
  OPI_ASSERT_ERROR(opi_auto_search(&q, &answer, &err), OPIPE_E_UNSUPPORTED, &err,
                   "weights are late");
  opi_layers_free(layers);
}

static const opi_test tests[] = {OPI_TEST(test_no_paper_is_faster),
                                 OPI_TEST(test_nothing_is_faster),
                                 OPI_TEST(test_torch_vectors),
                                 OPI_TEST(test_threads_change_nothing),
                                 OPI_TEST(test_permissions),
                                 OPI_TEST(test_objectives),
                                 OPI_TEST(test_the_fullest_device),
                                 OPI_TEST(test_stages_that_are_given),
                                 OPI_TEST(test_tensor_groups),
                                 OPI_TEST(test_infeasible),
                                 OPI_TEST(test_streams_repeat_a_request),
                                 OPI_TEST(test_requests_do_not_come_back),
                                 OPI_TEST(test_streams_know_what_replicas_would_do)};

int main(int argc, char **argv) {
  return run_planners(tests, OPI_COUNT(tests), argc, argv);
}
