/* SPDX-License-Identifier: Apache-2.0 */
/* The papers' planners on described models and on machines that there are: what a planner predicts
 * of its plan and what the simulator says of it are not far apart, and token slices are what a
 * causal model wants.
 * ctest: timeout=120
 */
#include "tests/partition/study/auto.h"

#include "partition/study/arch/arch.h"

static opi_cluster find_cluster(const char *spec) {
  const char *const folder = opi_test_source("partition/study/cluster/ready");
  opi_cluster cluster;
  opi_text text;
  opi_text_init(&text, opi_allocator_system());
  OPI_ASSERT_OK_FATAL(opi_cluster_find(spec, &folder, 1, &text, &err), &err);
  OPI_ASSERT_OK_FATAL(opi_cluster_read(spec, text.data, text.n, &arena, &cluster, &err), &err);
  opi_text_release(&text);
  return cluster;
}

static opi_layers *describe(const char *spec, const opi_cluster *cluster, uint32_t batch) {
  uint32_t samples[] = {1, batch};
  const opi_arch_place place = {cluster, 0};
  opi_layers *layers = NULL;
  opi_arch arch;
  OPI_ASSERT_OK_FATAL(opi_arch_parse(spec, &arch, &err), &err);
  OPI_ASSERT_OK_FATAL(
      opi_arch_layers(&arch, spec, &place, samples, 2, opi_allocator_system(), &layers, &err),
      &err);
  return layers;
}

#define LLAMA "llama:layers=32,hidden=4096,heads=32,vocab=32000,seq=2048"
#define GPT "gpt:layers=24,hidden=2048,heads=16,vocab=50257,seq=2048,type=fp16"

/* ---- predictions ---- */

typedef struct question {
  const char *arch, *cluster;
  uint32_t batch;
} question;
static const question questions[] = {
    {LLAMA, "selene:nodes=1", 8},
    {LLAMA ",type=bf16", "h100:nodes=2", 64},
    {GPT, "p3.16xlarge:nodes=2", 32},
    {"bert:layers=48,hidden=1024,heads=16,vocab=30522,seq=128", "piz-daint:nodes=16", 256},
};

/* A planner's formula leaves out what its paper leaves out: ends of pipelines, sharing of ports;
 * and that of 2bw has sums of gradients beside computing, of which the longer one counts, where one
 * pipeline stage waits for both. */
static const double apart_most = 2;

static void compare(const opi_auto *q, const char *name, const question *asked) {
  opi_strategy *s = NULL;
  opi_judged judged;
  const opipe_status status = opi_planner_find(name)(&q->planning, &s, &err);
  if (strcmp(name, "terapipe") == 0 && strncmp(asked->arch, "bert", 4) == 0) {
    OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &err, "the costs of token slices");
    return;
  }
  OPI_ASSERT_OK(status, &err);
  if (status < 0)
    return;
  opi_auto own = *q;
  double predicted = s->step_ns;
  if (strcmp(name, "pipedream") == 0) { /* knows no memory, and no end of a mini-batch */
    own.uncapped = true;
    s->schedule = "1f1b";
    predicted = s->objective * (s->microbatches + s->n_stages - 1);
  }
  OPI_ASSERT_OK(opi_strategy_judge(&own, s, &judged, &err), &err);
  const double ratio = predicted / judged.step_ns;
  printf("    %-9s %-12.12s on %-20s %2u x %3u stages x %u, %3u of %2u: %9.1f ms, played %9.1f\n",
         name, asked->arch, asked->cluster, s->pipelines, s->n_stages, s->width, s->microbatches,
         s->samples, predicted * 1e-6, judged.step_ns * 1e-6);
  if (!(ratio < apart_most && ratio > 1 / apart_most)) {
    OPI_FAIL("%s, %s on %s: predicts %g ms, played %g", name, asked->arch, asked->cluster,
             predicted * 1e-6, judged.step_ns * 1e-6);
  }
  opi_strategy_free(s);
}

static void test_predictions_are_near_the_simulator(void) {
  static const char *const names[] = {"dapple",  "pipedream", "2bw",
                                      "chimera", "megatron",  "terapipe"};
  for (size_t i = 0; i < OPI_COUNT(questions); ++i) {
    const opi_cluster cluster = find_cluster(questions[i].cluster);
    opi_layers *layers = describe(questions[i].arch, &cluster, questions[i].batch);
    opi_auto q = auto_question(layers, &cluster, questions[i].batch);
    q.hypothetical = q.planning.judged = true;
    q.planning.samples = cluster.n_devices; /* dapple, pipedream: any stage may be on all of them */
    for (size_t k = 0; k < OPI_COUNT(names); ++k) {
      if (!opi_test_is_sanitized() || opi_test_covers(i * OPI_COUNT(names) + k, 4))
        compare(&q, names[k], &questions[i]);
    }
    opi_layers_free(layers);
  }
}

/* Models that are no transformers, as others measured them (V100, fp32). dapple and pipedream are
 * told how many samples a micro-batch has; a mini-batch's rest is left out. */
static void test_published_profiles(void) {
  static const struct {
    const char *file;
    uint32_t samples, batch;
  } rows[] = {{"dapple/profiling_results/vgg-19-pbs-32.txt", 32, 2048},
              {"dapple/profiling_results/amoeba-36-pbs-1.txt", 1, 128},
              {"dapple/profiling_results/gnmt-16-pbs-64.txt", 64, 1024},
              {"dapple/profiling_results/xlnet-36-pbs-1.txt", 1, 128},
              {"dapple/profiling_results/bert-48-pbs-2.txt", 2, 128},
              {"pipedream/profiles/resnet50.graph.txt", 128, 2048}};
  static const char *const names[] = {"dapple", "2bw", "megatron"};
  const opi_cluster cluster = find_cluster("config-a:nodes=2");
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    char name[128];
    opi_layers *layers = NULL;
    size_t n = 0;
    (void)snprintf(name, sizeof name, "oracles/partition/%s", rows[i].file);
    const char *path = opi_test_shared(name);
    char *text = path == NULL ? NULL : opi_test_read_file(path, &n);
    if (text == NULL)
      return;
    OPI_ASSERT_OK_FATAL(opi_layers_read_text(rows[i].file, text, n, rows[i].samples,
                                             opi_allocator_system(), &layers, &err),
                        &err);
    free(text);
    const question asked = {strrchr(rows[i].file, '/') + 1, "config-a:nodes=2", rows[i].batch};
    opi_auto q = auto_question(layers, &cluster, rows[i].batch);
    q.planning.samples = rows[i].samples > cluster.n_devices ? rows[i].samples : cluster.n_devices;
    for (size_t k = 0; k < OPI_COUNT(names); ++k)
      compare(&q, names[k], &asked);
    opi_layers_free(layers);
  }
}

/* ---- slices ---- */

/* One stage has no pipeline to fill, and a slice has costs of its own. */
static void test_one_stage_wants_no_slices(void) {
  const opi_cluster cluster = find_cluster("selene:nodes=1");
  opi_layers *layers = describe(LLAMA, &cluster, 8);
  opi_planning q = {
      .layers = layers, .cluster = &cluster, .allocator = opi_allocator_system(), .batch = 8};
  const uint32_t ends[] = {0, layers->n_layers};
  opi_machine machine;
  opi_slicing slicing = {{0}};
  OPI_ASSERT_OK_FATAL(opi_planning_check("test", &q, &machine, &err), &err);
  for (uint32_t width = 1; width <= 8; width *= 2) {
    const opi_slice_question ask = {&q, &machine, ends, 1, width, 4, 1, 16, 0};
    OPI_ASSERT_OK_FATAL(opi_terapipe_slices(&ask, &slicing, &err), &err);
    OPI_ASSERT_INT(slicing.n_groups, 4);
    OPI_ASSERT_INT(slicing.groups[0].n_slices, 1);
    OPI_ASSERT_INT(slicing.groups[0].lengths[0], 2048);
    opi_slicing_free(&slicing);
  }
  opi_layers_free(layers);
}

/* The times of slices add up to the sample's, except for launches, on any tensor width. */
static void test_slices_add_up(void) {
  const opi_cluster cluster = find_cluster("selene:nodes=1");
  opi_layers *layers = describe(LLAMA, &cluster, 8);
  opi_planning q = {
      .layers = layers, .cluster = &cluster, .allocator = opi_allocator_system(), .batch = 8};
  const uint32_t ends[] = {0, layers->n_layers};
  opi_machine machine;
  OPI_ASSERT_OK_FATAL(opi_planning_check("test", &q, &machine, &err), &err);
  const opi_layer all = opi_layers_sum(layers, 0, layers->n_layers, 1);
  const double whole = all.forward_ns + opi_layer_backward_ns(&all);
  for (uint32_t width = 1; width <= 8; width *= 8) {
    const opi_slice_question ask = {&q, &machine, ends, 1, width, 1, 1, 16, 0};
    const double share = 1 - all.width_share + all.width_share / width;
    const double one = opi_terapipe_compute_ns(&ask, 0, 1, 2048, 0);
    const double halves = opi_terapipe_compute_ns(&ask, 0, 1, 1024, 0) +
                          opi_terapipe_compute_ns(&ask, 0, 1, 1024, 1024);
    OPI_ASSERT(fabs(one / (whole * share) - 1) < 1e-3);
    OPI_ASSERT(halves > one && halves < 1.2 * one);
    OPI_ASSERT(opi_terapipe_compute_ns(&ask, 0, 1, 512, 1024) >
               opi_terapipe_compute_ns(&ask, 0, 1, 512, 0));
    /* rows that go together launch once */
    OPI_ASSERT(opi_terapipe_compute_ns(&ask, 0, 2, 1024, 0) <
               2 * opi_terapipe_compute_ns(&ask, 0, 1, 1024, 0));
  }
  opi_layers_free(layers);
}

/* Long to short, and fewer than 80 of them. */
static void test_lengths_fall(void) {
  const opi_cluster cluster = find_cluster("p3.16xlarge:nodes=24");
  opi_layers *layers = describe(GPT, &cluster, 16);
  const opi_planning q = {
      .layers = layers, .cluster = &cluster, .allocator = opi_allocator_system(), .batch = 16};
  opi_machine machine;
  opi_planning checked = q;
  uint32_t ends[64];
  OPI_ASSERT_OK_FATAL(opi_planning_check("test", &checked, &machine, &err), &err);
  for (uint32_t stages = 4; stages <= 24; stages *= stages == 4 ? 3 : 2) {
    opi_slicing slicing = {{0}};
    OPI_ASSERT_FATAL(opi_even_stages(layers, stages, ends));
    const opi_slice_question ask = {&checked, &machine, ends, stages, 1, 2, 1, 8, 0};
    OPI_ASSERT_OK_FATAL(opi_terapipe_slices(&ask, &slicing, &err), &err);
    for (uint32_t g = 0; g < slicing.n_groups; ++g) {
      OPI_ASSERT(slicing.groups[g].n_slices > 1 && slicing.groups[g].n_slices < 80);
      for (uint32_t k = 1; k < slicing.groups[g].n_slices; ++k)
        OPI_ASSERT(slicing.groups[g].lengths[k] <= slicing.groups[g].lengths[k - 1]);
    }
    printf("    %u stages: %u slices, %u to %u tokens\n", stages, slicing.groups[0].n_slices,
           slicing.groups[0].lengths[0], slicing.groups[0].lengths[slicing.groups[0].n_slices - 1]);
    opi_slicing_free(&slicing);
  }
  opi_layers_free(layers);
}

int main(int argc, char **argv) {
  static const opi_test tests[] = {OPI_TEST(test_predictions_are_near_the_simulator),
                                   OPI_TEST(test_published_profiles),
                                   OPI_TEST(test_one_stage_wants_no_slices),
                                   OPI_TEST(test_slices_add_up), OPI_TEST(test_lengths_fall)};
  return run_planners(tests, OPI_COUNT(tests), argc, argv);
}
