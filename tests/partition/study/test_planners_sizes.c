/* SPDX-License-Identifier: Apache-2.0 */
/* The planners that choose numbers of copies, stages and samples: 2bw, chimera and megatron against
 * their papers' formulas written out, and what these publish; questions that have no answer.
 */
#include "partition/study/arch/arch.h"
#include "tests/partition/study/planners.h"

/* ---- 2bw ---- */

/* Algorithm 1 written out for equal blocks on one node. */
static const rates one_rate = {3, 3, 3, 3, 0};
static const double bw_cut = 1e6, bw_stash = 10e6, bw_params = 30e6, bw_state = 4;
enum { BW_LAYERS = 12, BW_DEVICES = 8, BW_BATCH = 64 };

/* ns per sample of a width and depth with the largest micro-batch that fits. */
static double bw_ns(uint32_t w, uint32_t d, bool recompute, double memory) {
  const double blocks = (double)BW_LAYERS / d;
  const uint32_t share = BW_BATCH / w;
  double t = INFINITY;
  for (uint32_t s = 1; s <= share && share % s == 0 && share / s >= d; s *= 2) {
    const double input = d == 1 ? 0 : s * bw_cut;
    const double bytes = (bw_state + (d > 1)) * blocks * bw_params +
                         (recompute ? 1 : d) * s * blocks * bw_stash + d * input;
    if (bytes > memory)
      break;
    const double compute = (s + 1) / 2.0 * blocks * 3e6 * (recompute ? 4.0 / 3 : 1);
    const double sum = 2.0 * (w - 1) / w * blocks * bw_params / one_rate.inside;
    t = fmax(compute + 2 * input / one_rate.inside, sum / ((double)share / s)) / (s * w);
  }
  return t;
}

static double bw_best(double memory) {
  double best = INFINITY;
  for (uint32_t w = 1; w <= BW_DEVICES; ++w) {
    for (uint32_t d = 1; d <= BW_DEVICES / w; ++d) {
      if (BW_LAYERS % d == 0 && BW_BATCH % w == 0)
        best = fmin(best, fmin(bw_ns(w, d, false, memory), bw_ns(w, d, true, memory)));
    }
  }
  return best;
}

/* Blocks of which half a sample's time is fixed. */
static opi_layers *bw_layers(void) {
  opi_layers *one =
      equal_blocks(BW_LAYERS, 1e6, 2e6, (uint64_t)bw_cut, (uint64_t)bw_stash, (uint64_t)bw_params);
  opi_layers *layers = NULL;
  OPI_ASSERT_OK_FATAL(opi_layers_new("2bw", BW_LAYERS, 2, opi_allocator_system(), &layers, &err),
                      &err);
  layers->samples[0] = 1;
  layers->samples[1] = BW_BATCH;
  for (uint32_t i = 0; i < BW_LAYERS; ++i) {
    opi_layer *many = &layers->at[BW_LAYERS + i];
    layers->at[i] = *many = one->at[i];
    many->forward_ns *= (BW_BATCH + 1) / 2.0;
    many->input_ns *= (BW_BATCH + 1) / 2.0;
    many->weight_ns *= (BW_BATCH + 1) / 2.0;
    many->output_bytes *= BW_BATCH;
    many->cut_bytes *= BW_BATCH;
    many->stash_bytes *= BW_BATCH;
  }
  opi_layers_free(one);
  return layers;
}

static void test_2bw_algorithm(void) {
  for (uint64_t memory = 200000000; memory <= 3000000000; memory = memory * 5 / 4) {
    opi_layers *layers = bw_layers();
    const opi_cluster cluster = make_cluster(1, BW_DEVICES, memory, one_rate);
    const opi_planning q = {.layers = layers,
                            .cluster = &cluster,
                            .allocator = opi_allocator_system(),
                            .batch = BW_BATCH};
    opi_strategy *found = NULL;
    const double best = bw_best((double)memory);
    const opipe_status status = opi_plan_2bw(&q, &found, &err);
    OPI_ASSERT((status >= 0) == isfinite(best));
    if (status >= 0) {
      check_strategy(&q, found);
      OPI_ASSERT(fabs(found->objective / best - 1) < 1e-12);
      OPI_ASSERT(found->memory_bytes <= memory);
      opi_strategy_free(found);
    } else {
      OPI_ASSERT(strstr(err.message, "no depth and width") != NULL);
    }
    opi_layers_free(layers);
  }
}

/* ---- chimera ---- */

/* A BERT-Large encoder layer on a P100, as the authors measured it: ms and MiB by micro-batch. */
static opi_layers *measured_bert(uint32_t n_layers) {
  static const struct {
    uint32_t samples;
    double forward_ms, backward_ms, stash_mib;
  } rows[] = {{1, 1.16, 1.67, 11},      {2, 1.51, 2.56, 22},    {4, 2.52, 4.20, 44},
              {8, 4.50, 7.65, 88},      {16, 9.30, 14.88, 176}, {32, 16.10, 26.95, 352.1},
              {64, 31.07, 52.88, 704.1}};
  opi_layers *layers = NULL;
  OPI_ASSERT_OK_FATAL(
      opi_layers_new("bert", n_layers, OPI_COUNT(rows), opi_allocator_system(), &layers, &err),
      &err);
  for (uint32_t k = 0; k < OPI_COUNT(rows); ++k) {
    layers->samples[k] = rows[k].samples;
    for (uint32_t i = 0; i < n_layers; ++i) {
      layers->at[(size_t)k * n_layers + i] =
          (opi_layer){.forward_ns = rows[k].forward_ms * 1e6,
                      .input_ns = rows[k].backward_ms * 0.5e6,
                      .weight_ns = rows[k].backward_ms * 0.5e6,
                      .output_bytes = (uint64_t)rows[k].samples * 524800,
                      .cut_bytes = (uint64_t)rows[k].samples * 524800,
                      .stash_bytes = (uint64_t)(rows[k].stash_mib * (1 << 20)),
                      .param_bytes = (uint64_t)(48.6 * (1 << 20))};
    }
  }
  return layers;
}

/* Figure 13: of W2 D16 B16, W4 D8 B16, W8 D4 B8 and W16 D2 B4 on 32 nodes with 512 samples the
 * model takes W8 D4 B8, which is the fastest measured. The encoder's layers alone. Chosen here,
 * since no paper gives them: 12.5 GB of 16 for the model, 3.5 bytes for a byte of parameters; hops
 * of 10 ms and 0.2 GB/s through host memory, sums at 2 GB/s. */
static void test_chimera_published_choice(void) {
  opi_layers *layers = measured_bert(48);
  const rates r = {0.2, 0.2, 0.2, 2, 10e6};
  const opi_cluster cluster = make_cluster(32, 1, 12500000000, r);
  const opi_planning q = {.layers = layers,
                          .cluster = &cluster,
                          .allocator = opi_allocator_system(),
                          .batch = 512,
                          .state_bytes = 3.5};
  opi_strategy *found = NULL;
  OPI_ASSERT_OK_FATAL(opi_plan_chimera(&q, &found, &err), &err);
  check_strategy(&q, found);
  printf("    bert-48, 32 nodes: W%u D%u B%u, %.0f samples/s; published W8 D4 B8, 166\n",
         found->pipelines, found->n_stages, found->samples, 512 / (found->step_ns * 1e-9));
  OPI_ASSERT_INT(found->pipelines * found->n_stages, 32);
  OPI_ASSERT_INT(found->n_stages, 4);
  OPI_ASSERT_INT(found->samples, 8);
  OPI_ASSERT(fabs(512 / (found->step_ns * 1e-9) / 166 - 1) < 0.1); /* as the paper says of it */
  opi_strategy_free(found);
  opi_layers_free(layers);
}

/* Equation 1 written out for equal blocks, one device a node. */
enum { CH_LAYERS = 16, CH_NODES = 16, CH_BATCH = 64 };
static const rates ch_rates = {2, 2, 2, 2, 1e4};
static const double ch_cut = 2e5, ch_stash = 4e6, ch_params = 50e6, ch_state = 3;

static double ch_bytes(uint32_t d, uint32_t s, uint32_t m, bool recompute) {
  const double blocks = (double)CH_LAYERS / d, weights = 2 * blocks * ch_params * ch_state;
  const double held = fmin(m, d); /* of the middle workers, who hold most */
  return weights +
         (recompute ? s * blocks * ch_stash + held * s * ch_cut : held * s * blocks * ch_stash);
}

static double ch_ns(uint32_t d, uint32_t s, uint32_t m, bool recompute) {
  const double blocks = (double)CH_LAYERS / d, owners = 2.0 * CH_NODES / d;
  const double f = s * blocks * 1e6, b = s * blocks * (2e6 + (recompute ? 1e6 : 0));
  const double hop = ch_rates.latency_ns + s * ch_cut / ch_rates.across;
  const double sum = 2 * log2(owners) * ch_rates.latency_ns +
                     2 * (owners - 1) / owners * blocks * ch_params / ch_rates.across_sum;
  double worst = 0;
  for (uint32_t i = 0; i < d / 2; ++i)
    worst = fmax(worst, fmax(0, sum + fmax(0, sum - (d / 2.0 - i) * b) - i * b));
  const uint32_t rounds = m / d;
  const double forwards = m < d ? d : d + 2 * (rounds - 1.0);
  const double backwards = m < d ? d + m - 2.0 : rounds * (2.0 * d - 2);
  return (f + hop) * forwards + (b + hop) * backwards + worst;
}

/* The greedy micro-batch of a depth: with a micro-batch for every stage, first without recomputing;
 * then with fewer. INFINITY: nothing fits. */
static double ch_greedy(uint32_t d, double memory) {
  const uint32_t share = CH_BATCH / (CH_NODES / d);
  for (uint32_t trial = 0; trial < 4; ++trial) {
    for (uint32_t s = share; s > 0; --s) {
      const uint32_t m = share / s;
      if (share % s == 0 && m >= 2 && m % 2 == 0 && (m < d) == (trial >= 2) &&
          (m < d || m % d == 0) && ch_bytes(d, s, m, trial % 2 == 1) <= memory)
        return ch_ns(d, s, m, trial % 2 == 1);
    }
  }
  return INFINITY;
}

static void test_chimera_equation(void) {
  for (uint64_t memory = 200000000; memory <= 6000000000; memory = memory * 4 / 3) {
    opi_layers *layers = equal_blocks(CH_LAYERS, 1e6, 2e6, (uint64_t)ch_cut, (uint64_t)ch_stash,
                                      (uint64_t)ch_params);
    const opi_cluster cluster = make_cluster(CH_NODES, 1, memory, ch_rates);
    const opi_planning q = {.layers = layers,
                            .cluster = &cluster,
                            .allocator = opi_allocator_system(),
                            .batch = CH_BATCH,
                            .state_bytes = ch_state};
    double best = INFINITY;
    for (uint32_t d = 2; d <= CH_NODES; d *= 2)
      best = fmin(best, ch_greedy(d, (double)memory));
    opi_strategy *found = NULL;
    const opipe_status status = opi_plan_chimera(&q, &found, &err);
    OPI_ASSERT((status >= 0) == isfinite(best));
    if (status >= 0) {
      check_strategy(&q, found);
      OPI_ASSERT(fabs(found->objective / best - 1) < 1e-12);
      opi_strategy_free(found);
    } else {
      OPI_ASSERT(strstr(err.message, "no even number of stages") != NULL);
    }
    opi_layers_free(layers);
  }
}

/* ---- megatron ---- */

/* Table 1: tensor width 8 and as few stages as the model needs, on nodes of eight A100. */
static void test_megatron_takeaways(void) {
  static const struct {
    const char *spec;
    uint32_t nodes, batch, tensor;
  } rows[] = {
      {"gpt:layers=24,hidden=2304,heads=24,vocab=51200,seq=2048,type=fp16", 4, 512, 1},
      {"gpt:layers=48,hidden=8192,heads=64,vocab=51200,seq=2048,type=fp16", 64, 1536, 8},
      {"gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048,type=fp16", 12, 60, 8},
      {"gpt:layers=96,hidden=16384,heads=128,vocab=51200,seq=2048,type=fp16", 240, 2160, 8},
  };
  const rates r = {230, 230, 24, 24, 5000};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    static const uint32_t samples[] = {1, 2, 4, 8, 16};
    const opi_cluster cluster = make_cluster(rows[i].nodes, 8, 85899345920, r);
    opi_cluster rated = cluster;
    opi_device_class class = *cluster.classes;
    class.rates = &(opi_rate){OPIPE_FLOAT16, 0, 2e14};
    class.n_rates = 1;
    rated.classes = &class;
    const opi_arch_place place_at = {&rated, 0};
    opi_layers *layers = NULL;
    opi_arch arch;
    opi_strategy *found = NULL;
    OPI_ASSERT_OK_FATAL(opi_arch_parse(rows[i].spec, &arch, &err), &err);
    OPI_ASSERT_OK_FATAL(opi_arch_layers(&arch, "x", &place_at, samples, OPI_COUNT(samples),
                                        opi_allocator_system(), &layers, &err),
                        &err);
    const opi_planning q = {.layers = layers,
                            .cluster = &rated,
                            .allocator = opi_allocator_system(),
                            .batch = rows[i].batch,
                            .state_bytes = 9}; /* 18 bytes per parameter of 2 */
    OPI_ASSERT_OK_FATAL(opi_plan_megatron(&q, &found, &err), &err);
    check_strategy(&q, found);
    printf("    %s on %u: t %u p %u d %u v %u b %u\n", rows[i].spec, rows[i].nodes * 8,
           found->width, found->n_stages / found->chunks, found->pipelines, found->chunks,
           found->samples);
    OPI_ASSERT_INT(found->width, rows[i].tensor);
    OPI_ASSERT_INT(found->pipelines * found->n_stages / found->chunks * found->width,
                   rows[i].nodes * 8);
    OPI_ASSERT(found->memory_bytes <= 85899345920u);
    opi_strategy_free(found);
    opi_layers_free(layers);
  }
}

/* Equation 1, (B / (d b) + p - 1) (t_f + t_b), with the bubble over v, on links that take nothing.
 */
static void test_megatron_equation(void) {
  const uint32_t l = 16, n = 4;
  opi_layers *layers = equal_blocks(l, 1e6, 2e6, 1000, 2000, 1000000);
  const rates r = {1e6, 1e6, 1e6, 1e6, 0};
  const opi_cluster cluster = make_cluster(n, 1, 22000000, r);
  const opi_planning q = {
      .layers = layers, .cluster = &cluster, .allocator = opi_allocator_system(), .batch = 16};
  opi_strategy *found = NULL;
  OPI_ASSERT_OK_FATAL(opi_plan_megatron(&q, &found, &err), &err);
  check_strategy(&q, found);
  OPI_ASSERT_INT(found->n_stages / found->chunks, 4); /* 16 MB and Adam: 4 devices hold it */
  OPI_ASSERT_INT(found->chunks, 4);
  OPI_ASSERT_INT(found->samples, 1);
  OPI_ASSERT(fabs(found->step_ns / ((16 + 3 / 4.0) * 4 * 3e6) - 1) < 1e-4);
  OPI_ASSERT_STR(found->schedule, "interleaved:chunks=4");
  opi_strategy_free(found);
  opi_layers_free(layers);
}

/* ---- all of them ---- */

static void test_questions_without_an_answer(void) {
  static const char *const names[] = {"dapple", "pipedream", "2bw", "chimera", "megatron"};
  opi_layers *layers = equal_blocks(8, 1e6, 2e6, 1000, 2000, 1000000);
  const opi_cluster cluster = make_cluster(2, 2, 1000000, dapple_rates);
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    opi_planning q = {
        .layers = layers, .cluster = &cluster, .allocator = opi_allocator_system(), .batch = 8};
    opi_strategy *found = NULL;
    const opi_planner_fn planner = opi_planner_find(names[i]);
    OPI_ASSERT_FATAL(planner != NULL);
    OPI_ASSERT_ERROR(planner(&q, &found, &err), OPIPE_E_LIMIT, &err, names[i]);
    q.batch = 0;
    OPI_ASSERT_ERROR(planner(&q, &found, &err), OPIPE_E_INVALID, &err, "mini-batch of 0 samples");
    q.batch = 8;
    q.n_devices = 5;
    OPI_ASSERT_ERROR(planner(&q, &found, &err), OPIPE_E_INVALID, &err,
                     "5 devices of a cluster of 4");
    q.n_devices = 3;
    OPI_ASSERT_ERROR(planner(&q, &found, &err), OPIPE_E_INVALID, &err, "node 1 has 1 of the 3");
    q.n_devices = 4;
    q.samples = 9;
    OPI_ASSERT_ERROR(planner(&q, &found, &err), OPIPE_E_INVALID, &err,
                     "micro-batches of 9 samples");
  }
  OPI_ASSERT(opi_planner_find("none") == NULL);
  opi_layers_free(layers);
}

/* Two entries of the file, of which the second has other rates, other memory, or none of both. */
static opi_cluster two_entries(double flops, double bandwidth, double product_flops,
                               uint64_t memory) {
  char text[512];
  opi_cluster c;
  (void)snprintf(
      text, sizeof text,
      "{\"format\": \"onnx-pipe cluster 1\", \"devices\": [{\"kind\": \"x\", \"alignment\": 64, "
      "\"flops\": 1e12, \"bandwidth\": 1e11}, {\"kind\": \"x\", \"alignment\": 64, \"flops\": %g, "
      "\"bandwidth\": %g, \"rates\": [{\"dtype\": \"fp32\", \"flops\": %g}], \"memory_bytes\": "
      "%llu}], "
      "\"tiers\": [{\"latency_ns\": 0, \"bandwidth\": 1e10}]}",
      flops, bandwidth, product_flops, (unsigned long long)memory);
  OPI_ASSERT_OK_FATAL(opi_cluster_read("test", text, strlen(text), &arena, &c, &err), &err);
  return c;
}

/* Every time is that of the first device: others are refused, unless the answer is judged; what was
 * measured is never quite the same, and caps may differ. */
static void test_devices_of_several_kinds(void) {
  static const char *const names[] = {"dapple", "pipedream", "2bw", "chimera", "megatron"};
  const opi_cluster slow = two_entries(1e12, 1e11, 2.5e11, 0),
                    far = two_entries(1e12, 9e10, 1e12, 0);
  const opi_cluster noisy = two_entries(1e12, 1e11, 0.9e12, 1ull << 40);
  opi_layers *layers = equal_blocks(8, 1e6, 2e6, 1000, 2000, 1000000);
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    opi_planning q = {
        .layers = layers, .cluster = &slow, .allocator = opi_allocator_system(), .batch = 8};
    opi_strategy *found = NULL;
    const opi_planner_fn planner = opi_planner_find(names[i]);
    OPI_ASSERT_ERROR(planner(&q, &found, &err), OPIPE_E_INVALID, &err,
                     "device 1 of the 2 has 2.5e+11 operations");
    q.cluster = &far;
    OPI_ASSERT_ERROR(planner(&q, &found, &err), OPIPE_E_INVALID, &err, "device 0 1e+12, 1e+11");
    q.judged = true;
    OPI_ASSERT_OK_FATAL(planner(&q, &found, &err), &err);
    opi_strategy_free(found);
    q.cluster = &noisy;
    q.judged = false;
    OPI_ASSERT_OK_FATAL(planner(&q, &found, &err), &err);
    opi_strategy_free(found);
  }
  opi_layers_free(layers);
}

static void test_strategies_are_written(void) {
  opi_layers *layers = equal_blocks(8, 1e6, 2e6, 1000, 2000, 1000000);
  const opi_cluster cluster = make_cluster(2, 2, 0, dapple_rates);
  const opi_planning q = {
      .layers = layers, .cluster = &cluster, .allocator = opi_allocator_system(), .batch = 8};
  opi_strategy *found = NULL;
  opi_text text, again;
  opi_text_init(&text, opi_allocator_system());
  opi_text_init(&again, opi_allocator_system());
  OPI_ASSERT_OK_FATAL(opi_plan_dapple(&q, &found, &err), &err);
  opi_strategy_write(found, &text);
  opi_strategy_write(found, &again);
  OPI_ASSERT_STR(again.data, text.data);
  OPI_ASSERT(strstr(text.data, "\"planner\": \"dapple\"") != NULL);
  OPI_ASSERT(strstr(text.data, "\"layers\": [0, ") != NULL);
  opi_strategy_describe(found, layers, false, &again);
  OPI_ASSERT(strstr(again.data, "stage 0   layers 0-") != NULL);
  opi_text_release(&text);
  opi_text_release(&again);
  opi_strategy_free(found);
  opi_layers_free(layers);
}

int main(int argc, char **argv) {
  static const opi_test tests[] = {OPI_TEST(test_2bw_algorithm),
                                   OPI_TEST(test_chimera_published_choice),
                                   OPI_TEST(test_chimera_equation),
                                   OPI_TEST(test_megatron_takeaways),
                                   OPI_TEST(test_megatron_equation),
                                   OPI_TEST(test_questions_without_an_answer),
                                   OPI_TEST(test_devices_of_several_kinds),
                                   OPI_TEST(test_strategies_are_written)};
  return run_planners(tests, OPI_COUNT(tests), argc, argv);
}
