/* SPDX-License-Identifier: Apache-2.0 */
/* DAPPLE's and PipeDream's planners: their recurrences against searches of the test's own, and the
 * plans that their authors publish.
 */
#include "tests/partition/study/planners.h"

static opi_layers *random_layers(opi_test_random *random, uint32_t n, uint32_t samples) {
  opi_layers *layers = make_layers(n, samples);
  for (uint32_t i = 0; i < n; ++i) {
    layers->at[i] = (opi_layer){.forward_ns = opi_test_uniform(random, 1e5, 1e6),
                                .input_ns = opi_test_uniform(random, 1e5, 1e6),
                                .weight_ns = opi_test_uniform(random, 1e5, 1e6),
                                .cut_bytes = opi_test_next(random) % 1000000,
                                .stash_bytes = opi_test_next(random) % 1000000,
                                .param_bytes = opi_test_next(random) % 2000000};
    layers->at[i].output_bytes = layers->at[i].cut_bytes;
  }
  return layers;
}

/* Layers [first, ...) of a published profile; NULL: it is absent. */
static opi_layers *read_published(const char *file, uint32_t samples, uint32_t first) {
  char name[128];
  opi_layers *all = NULL;
  size_t n = 0;
  (void)snprintf(name, sizeof name, "oracles/partition/dapple/profiling_results/%s", file);
  const char *path = opi_test_shared(name);
  char *text = path == NULL ? NULL : opi_test_read_file(path, &n);
  if (text == NULL)
    return NULL;
  OPI_ASSERT_OK_FATAL(
      opi_layers_read_text(file, text, n, samples, opi_allocator_system(), &all, &err), &err);
  free(text);
  opi_layers *rest = make_layers(all->n_layers - first, samples);
  memcpy(rest->at, all->at + first, rest->n_layers * sizeof(opi_layer));
  opi_layers_free(all);
  return rest;
}

/* ---- plans as the authors of DAPPLE give them ---- */

typedef struct given_stage {
  uint32_t first, end;
  const char *devices; /* "0-5,8-13" */
} given_stage;

static opi_strategy *make_given(const given_stage *stages, uint32_t n) {
  opi_strategy *s = NULL;
  OPI_ASSERT_OK_FATAL(opi_strategy_new("given", n, opi_allocator_system(), &s, &err), &err);
  for (uint32_t k = 0; k < n; ++k) {
    uint32_t *devices = OPI_ARENA_ARRAY(&s->arena, uint32_t, DEVICES_MOST), count = 0;
    for (const char *at = stages[k].devices; *at != '\0';) {
      char *stop = NULL;
      const unsigned long a = strtoul(at, &stop, 10);
      const unsigned long b = *stop == '-' ? strtoul(stop + 1, &stop, 10) : a;
      for (unsigned long d = a; d <= b; ++d)
        devices[count++] = (uint32_t)d;
      at = *stop == ',' ? stop + 1 : stop;
    }
    s->stages[k] = (opi_strategy_stage){
        .first = stages[k].first, .end = stages[k].end, .devices = devices, .n_devices = count};
  }
  return s;
}

static void measure(const opi_planning *q, opi_strategy *s, double *out_latency,
                    double *out_played) {
  double numbers[5][2 * STAGES_MOST];
  opi_dapple_pipe pipe = {numbers[0], numbers[1], numbers[2], 0, 0};
  opi_machine machine;
  opi_planning question = *q;
  OPI_ASSERT_OK_FATAL(opi_planning_check("test", &question, &machine, &err), &err);
  opi_dapple_fill(&question, &machine, s, &pipe);
  *out_latency = opi_dapple_latency_ns(&pipe, NULL);
  *out_played = opi_dapple_play_ns(&pipe, &numbers[3][0]);
}

static const given_stage vgg_dapple[] = {{0, 20, "0-30"}, {20, 25, "31"}};
static const given_stage vgg_pipedream[] = {
    {0, 10, "0-5,8-13,16-21"}, {10, 16, "6-7,14-15,22-23"}, {16, 21, "24-30"}, {21, 25, "31"}};

/* The planner's own plan is none worse. */
static void check_found(const opi_planning *q, const double *latency) {
  opi_strategy *found = NULL;
  OPI_ASSERT_OK_FATAL(opi_plan_dapple(q, &found, &err), &err);
  check_strategy(q, found);
  printf("    found: %u stages, latency %.1f ms; of the published plans %.1f and %.1f\n",
         found->n_stages, found->objective * 1e-6, latency[0] * 1e-6, latency[1] * 1e-6);
  OPI_ASSERT(found->objective <= latency[0] * (1 + 1e-9));
  OPI_ASSERT(found->objective <= latency[1] * (1 + 1e-9));
  opi_strategy_free(found);
}

/* The two plans for VGG-19 on four machines of eight V100: 7.42 and 2.25 times one device by the
 * authors' recursion, 3.30 times each other (the paper: 3.23). */
static void test_published_plans_of_vgg(void) {
  opi_layers *layers = read_published("vgg-19-pbs-32.txt", 32, 1);
  if (layers == NULL)
    return;
  const opi_cluster cluster = make_cluster(4, 8, 16000000000, dapple_rates);
  const opi_planning q = {
      .layers = layers, .cluster = &cluster, .allocator = opi_allocator_system(), .batch = 2048};
  const opi_layer all = opi_layers_sum(layers, 0, layers->n_layers, 32);
  const double one = (all.forward_ns + opi_layer_backward_ns(&all)) * 64;
  opi_strategy *ours = make_given(vgg_dapple, 2), *theirs = make_given(vgg_pipedream, 4);
  double latency[2], played[2];
  measure(&q, ours, &latency[0], &played[0]);
  measure(&q, theirs, &latency[1], &played[1]);
  printf("    vgg-19: %.2f and %.2f times one device, ratio %.3f; published 7.42, 2.25, 3.30\n",
         one / played[0], one / played[1], played[1] / played[0]);
  OPI_ASSERT(fabs(one / played[0] / 7.42 - 1) < 0.02);
  OPI_ASSERT(fabs(one / played[1] / 2.25 - 1) < 0.02);
  OPI_ASSERT(fabs(played[1] / played[0] / 3.30 - 1) < 0.01);
  if (!opi_test_is_cover() && !opi_test_is_sanitized()) /* tens of millions of plans */
    check_found(&q, latency);
  opi_strategy_free(ours);
  opi_strategy_free(theirs);
  opi_layers_free(layers);
}

/* ---- dapple: the recurrence from above ---- */

typedef struct plan {
  double ns;
  uint32_t n; /* stages before the rest */
  uint32_t ends[STAGES_MOST], used[STAGES_MOST][NODES_MOST];
} plan;

typedef struct reference {
  const opi_planning *q;
  opi_machine machine;
} reference;

/* Devices of a node in a policy's set; false: there is none. */
static bool place(const reference *r, const uint32_t *used, uint32_t n, uint32_t policy,
                  uint32_t *out) {
  const uint32_t size = r->machine.per_node, nodes = r->machine.n_nodes;
  for (uint32_t k = 0; k < nodes; ++k)
    out[k] = used[k];
  for (uint32_t left = n, turn = 0; left > 0;) {
    uint32_t k = 0;
    if (policy == 2) {
      uint32_t tries = 0;
      while (tries < nodes && out[turn % nodes] == size) {
        ++turn;
        ++tries;
      }
      if (tries == nodes)
        return false;
      k = turn++ % nodes;
    } else {
      while (k < nodes && (out[k] == size || (policy == 0) != (used[k] == 0)))
        ++k;
      if (k == nodes)
        return false;
    }
    ++out[k];
    --left;
  }
  return true;
}

static double latency_of(const reference *r, const plan *p) {
  given_stage stages[STAGES_MOST + 1];
  static char text[STAGES_MOST + 1][256];
  static const uint32_t none[NODES_MOST];
  for (uint32_t s = 0; s <= p->n; ++s) {
    const uint32_t *before = s == 0 ? none : p->used[s - 1];
    size_t at = 0;
    text[s][0] = '\0';
    for (uint32_t k = 0; k < r->machine.n_nodes; ++k) {
      const uint32_t end = s == p->n ? r->machine.per_node : p->used[s][k];
      for (uint32_t i = before[k]; i < end; ++i) {
        at += (size_t)snprintf(text[s] + at, sizeof text[s] - at, "%s%u", at == 0 ? "" : ",",
                               k * r->machine.per_node + i);
      }
    }
    stages[s] = (given_stage){s == 0 ? 0 : p->ends[s - 1],
                              s == p->n ? r->q->layers->n_layers : p->ends[s], text[s]};
  }
  opi_strategy *given = make_given(stages, p->n + 1);
  double latency = 0, played = 0;
  measure(r->q, given, &latency, &played);
  opi_strategy_free(given);
  return latency;
}

/* Best plan whose first stages take `layers` layers and the devices `used`: over all states before
 * it, without a table. */
static plan best_of(const reference *r, uint32_t layers, const uint32_t *used) {
  plan best = {.ns = INFINITY};
  uint32_t total = 0, count = 1;
  for (uint32_t k = 0; k < r->machine.n_nodes; ++k) {
    total += used[k];
    count *= used[k] + 1;
  }
  if (layers == 0 && total == 0) {
    best.ns = latency_of(r, &best);
    return best;
  }
  if (layers == 0 || total == 0)
    return best;
  for (uint32_t index = 0; index < count; ++index) { /* placements below `used` */
    uint32_t before[NODES_MOST] = {0}, after[NODES_MOST], rest = index, taken = 0;
    bool reaches = false;
    for (uint32_t k = 0; k < r->machine.n_nodes; ++k) {
      before[k] = rest % (used[k] + 1);
      rest /= used[k] + 1;
      taken += before[k];
    }
    for (uint32_t policy = 0; taken < total && policy < 3; ++policy) {
      reaches = reaches || (place(r, before, total - taken, policy, after) &&
                            memcmp(after, used, r->machine.n_nodes * sizeof(*used)) == 0);
    }
    for (uint32_t from = 0; reaches && from < layers; ++from) {
      plan p = best_of(r, from, before);
      if (!isfinite(p.ns))
        continue;
      p.ends[p.n] = layers;
      memcpy(p.used[p.n++], used, r->machine.n_nodes * sizeof(*used));
      p.ns = latency_of(r, &p);
      if (p.ns < best.ns)
        best = p;
    }
  }
  return best;
}

/* The best of all answers on one or two nodes. */
static double best_of_all(const reference *r) {
  const uint32_t size = r->machine.per_node, second = r->machine.n_nodes == 2 ? size : 0;
  double best = INFINITY;
  for (uint32_t l = 0; l < r->q->layers->n_layers; ++l) {
    for (uint32_t index = 0; index + 1 < (size + 1) * (second + 1); ++index) {
      const uint32_t used[NODES_MOST] = {index % (size + 1), index / (size + 1)};
      best = fmin(best, best_of(r, l, used).ns);
    }
  }
  return best;
}

static void test_dapple_recurrence(void) {
  opi_test_random random = {7};
  for (uint32_t round = 0; round < 200; ++round) {
    const uint32_t nodes = 1 + round % 2, per_node = nodes == 1 ? 3 : 2 + round / 2 % 2,
                   n = 3 + round % 2;
    opi_layers *layers = random_layers(&random, n, 4);
    const rates r = {opi_test_uniform(&random, 1, 20), 50, opi_test_uniform(&random, 0.2, 5),
                     opi_test_uniform(&random, 0.5, 5), 0};
    const opi_cluster cluster = make_cluster(nodes, per_node, 0, r);
    const opi_planning q = {.layers = layers,
                            .cluster = &cluster,
                            .allocator = opi_allocator_system(),
                            .batch = 4 + 4 * (opi_test_next(&random) % 8)};
    reference ref = {.q = &q};
    opi_planning copy = q;
    opi_strategy *found = NULL;
    OPI_ASSERT_OK_FATAL(opi_planning_check("test", &copy, &ref.machine, &err), &err);
    const double best = best_of_all(&ref);
    OPI_ASSERT_OK_FATAL(opi_plan_dapple(&q, &found, &err), &err);
    check_strategy(&q, found);
    OPI_ASSERT(fabs(found->objective / best - 1) < 1e-12);
    double latency = 0, played = 0;
    measure(&q, found, &latency, &played);
    OPI_ASSERT(fabs(found->objective / latency - 1) < 1e-12 && found->step_ns == played);
    opi_strategy_free(found);
    opi_layers_free(layers);
  }
}

/* Equal stages without transfers: M + S - 1 times a stage, by formula and played. */
static void test_dapple_latency_of_equal_stages(void) {
  double f[7] = {1, 0, 1, 0, 1, 0, 1}, b[7] = {2, 0, 2, 0, 2, 0, 2}, sums[7] = {0}, scratch[14];
  for (uint32_t m = 4; m < 40; ++m) {
    const opi_dapple_pipe pipe = {f, b, sums, 7, m};
    OPI_ASSERT(fabs(opi_dapple_latency_ns(&pipe, NULL) - 3 * (m + 3.0)) < 1e-9);
    OPI_ASSERT(fabs(opi_dapple_play_ns(&pipe, scratch) - 3 * (m + 3.0)) < 1e-9);
  }
}

/* ---- pipedream: all plans ---- */

typedef struct hierarchy {
  const opi_layers *layers;
  double rate[2], sum_rate[2]; /* bytes per ns */
  uint32_t members[2];
} hierarchy;

static double range_ns(const hierarchy *h, uint32_t i, uint32_t j, double *out_weights) {
  double ns = 0;
  *out_weights = 0;
  for (uint32_t l = i; l <= j; ++l) {
    ns += h->layers->at[l].forward_ns + opi_layer_backward_ns(&h->layers->at[l]);
    *out_weights += (double)h->layers->at[l].param_bytes;
  }
  return ns;
}

static double least_of(const hierarchy *h, uint32_t k, uint32_t i, uint32_t j, uint32_t m);

static double one_stage(const hierarchy *h, uint32_t k, uint32_t i, uint32_t j, uint32_t m) {
  double weights = 0;
  const double inner =
      k == 0 ? range_ns(h, i, j, &weights) : least_of(h, k - 1, i, j, h->members[k - 1]);
  if (k > 0)
    (void)range_ns(h, i, j, &weights);
  return fmax(inner, 2.0 * (m - 1) * weights / h->sum_rate[k]) / m;
}

/* All ways to cut layers i to j over m members, first stage first. */
static double least_of(const hierarchy *h, uint32_t k, uint32_t i, uint32_t j, uint32_t m) {
  double best = one_stage(h, k, i, j, m);
  for (uint32_t s = i; s < j; ++s) {
    for (uint32_t first = 1; first < m; ++first) {
      const double rest = least_of(h, k, s + 1, j, m - first);
      const double send = 2.0 * (double)h->layers->at[s].cut_bytes / h->rate[k];
      best = fmin(best, fmax(fmax(one_stage(h, k, i, s, first), send), rest));
    }
  }
  return best;
}

static void test_pipedream_against_all_plans(void) {
  opi_test_random random = {11};
  for (uint32_t round = 0; round < 60; ++round) {
    const uint32_t nodes = 1 + round % 3, per_node = 1 + round / 3 % 3, n = 1 + round % 5;
    opi_layers *layers = random_layers(&random, n, 2);
    const rates r = {opi_test_uniform(&random, 1, 9), opi_test_uniform(&random, 1, 9),
                     opi_test_uniform(&random, 0.2, 3), opi_test_uniform(&random, 0.2, 3), 0};
    const opi_cluster cluster = make_cluster(nodes, per_node, 0, r);
    const opi_planning q = {
        .layers = layers, .cluster = &cluster, .allocator = opi_allocator_system(), .batch = 16};
    const hierarchy h = {
        layers, {r.inside, r.across}, {r.inside_sum, r.across_sum}, {per_node, nodes}};
    opi_strategy *found = NULL;
    OPI_ASSERT_OK_FATAL(opi_plan_pipedream(&q, &found, &err), &err);
    check_strategy(&q, found);
    const double best =
        nodes == 1 ? least_of(&h, 0, 0, n - 1, per_node) : least_of(&h, 1, 0, n - 1, nodes);
    if (!(fabs(found->objective / best - 1) < 1e-12)) {
      OPI_FAIL("%u layers on %u x %u: %g, of all plans %g", n, nodes, per_node, found->objective,
               best);
    }
    OPI_ASSERT(found->objective > 0);
    uint32_t devices = 0;
    for (uint32_t k = 0; k < found->n_stages; ++k)
      devices += found->stages[k].n_devices;
    OPI_ASSERT_INT(devices, nodes * per_node);
    opi_strategy_free(found);
    opi_layers_free(layers);
  }
}

/* Stages inside each of `copies` nodes. */
typedef struct given_group {
  uint32_t copies, n;
  struct {
    uint32_t first, end, replicas;
  } stages[2];
} given_group;

/* The published plan in PipeDream's own objective. */
static double given_ns(const hierarchy *h, const given_group *groups, uint32_t n) {
  double slowest = 0, weights = 0;
  for (uint32_t g = 0; g < n; ++g) {
    double inner = 0, all = 0;
    for (uint32_t k = 0; k < groups[g].n; ++k) {
      const uint32_t i = groups[g].stages[k].first, j = groups[g].stages[k].end - 1,
                     m = groups[g].stages[k].replicas;
      const double ns = range_ns(h, i, j, &weights);
      inner = fmax(inner, fmax(ns, 2.0 * (m - 1) * weights / h->sum_rate[0]) / m);
      all += weights;
      if (k + 1 < groups[g].n)
        inner = fmax(inner, 2.0 * (double)h->layers->at[j].cut_bytes / h->rate[0]);
      else if (g + 1 < n)
        slowest = fmax(slowest, 2.0 * (double)h->layers->at[j].cut_bytes / h->rate[1]);
    }
    const uint32_t m = groups[g].copies;
    slowest = fmax(slowest, fmax(inner, 2.0 * (m - 1) * all / h->sum_rate[1]) / m);
  }
  return slowest;
}

/* PipeDream's plans for 32 devices that the authors of DAPPLE compare with. */
static void test_pipedream_published_plans(void) {
  static const struct {
    const char *file;
    uint32_t samples, first, n;
    given_group groups[4];
  } rows[] = {
      {"vgg-19-pbs-32.txt",
       32,
       1,
       2,
       {{3, 2, {{0, 10, 6}, {10, 16, 2}}}, {1, 2, {{16, 21, 7}, {21, 25, 1}}}}},
      {"bert-24-pbs-6.txt",
       6,
       3,
       4,
       {{1, 2, {{0, 3, 3}, {3, 7, 5}}},
        {1, 2, {{7, 10, 4}, {10, 13, 4}}},
        {1, 2, {{13, 16, 4}, {16, 19, 4}}},
        {1, 2, {{19, 22, 4}, {22, 26, 4}}}}},
      {"xlnet-36-pbs-1.txt",
       1,
       2,
       4,
       {{1, 2, {{0, 5, 1}, {5, 13, 7}}},
        {1, 1, {{13, 22, 8}}},
        {1, 1, {{22, 31, 8}}},
        {1, 2, {{31, 39, 7}, {39, 41, 1}}}}},
  };
  const opi_cluster cluster = make_cluster(4, 8, 16000000000, dapple_rates);
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    opi_layers *layers = read_published(rows[i].file, rows[i].samples, rows[i].first);
    if (layers == NULL)
      return;
    const hierarchy h = {layers, {25, 1}, {100, 3}, {8, 4}};
    const opi_planning q = {
        .layers = layers, .cluster = &cluster, .allocator = opi_allocator_system(), .batch = 256};
    opi_strategy *found = NULL;
    const given_group *last = &rows[i].groups[rows[i].n - 1];
    OPI_ASSERT_INT(last->stages[last->n - 1].end, layers->n_layers);
    OPI_ASSERT_OK_FATAL(opi_plan_pipedream(&q, &found, &err), &err);
    check_strategy(&q, found);
    const double given = given_ns(&h, rows[i].groups, rows[i].n);
    printf("    %s: %u stages, %.2f ms a micro-batch; published plan %.2f\n", rows[i].file,
           found->n_stages, found->objective * 1e-6, given * 1e-6);
    OPI_ASSERT(found->objective <= given * (1 + 1e-12));
    opi_strategy_free(found);
    opi_layers_free(layers);
  }
}

int main(int argc, char **argv) {
  static const opi_test tests[] = {
      OPI_TEST(test_published_plans_of_vgg), OPI_TEST(test_dapple_recurrence),
      OPI_TEST(test_dapple_latency_of_equal_stages), OPI_TEST(test_pipedream_against_all_plans),
      OPI_TEST(test_pipedream_published_plans)};
  return run_planners(tests, OPI_COUNT(tests), argc, argv);
}
