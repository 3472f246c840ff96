/* SPDX-License-Identifier: Apache-2.0 */
/* The strategies that planner `auto` ranks behind the best are different things to do, each as good
 * as any cut of its kind, however early bounds end the search. Bytes that an order keeps are
 * counted before it is played. ctest: timeout=120
 */
#include "partition/study/auto/space.h"
#include "tests/partition/study/auto.h"

/* Four samples at once take hardly longer than one, so that no bound of smaller micro-batches comes
 * close to the best: 2 stages of equal work, of all 4 samples. */
static opi_layers *dear_microbatches(uint32_t n) {
  opi_layers *layers = NULL;
  OPI_ASSERT_OK_FATAL(opi_layers_new("test", n, 2, opi_allocator_system(), &layers, &err), &err);
  for (uint32_t size = 0; size < 2; ++size) {
    layers->samples[size] = size == 0 ? 1 : 4;
    for (uint32_t i = 0; i < n; ++i) {
      const double ns = size == 0 ? 1e6 : 1.1e6;
      layers->at[size * n + i] = (opi_layer){.forward_ns = ns,
                                             .input_ns = ns,
                                             .weight_ns = ns,
                                             .output_bytes = 1000,
                                             .cut_bytes = 1000,
                                             .stash_bytes = 1000,
                                             .param_bytes = 100000};
    }
  }
  return layers;
}

static bool same_kind(const opi_strategy *a, const opi_strategy *b) {
  return strcmp(a->schedule, b->schedule) == 0 && a->n_stages == b->n_stages &&
         a->n_ranks == b->n_ranks && a->pipelines == b->pipelines && a->samples == b->samples &&
         a->microbatches == b->microbatches && a->recompute == b->recompute;
}

static void check_kinds(const opi_auto_answer *answer) {
  for (uint32_t i = 0; i < answer->n_ranked; ++i) {
    for (uint32_t k = 0; k < i; ++k)
      OPI_ASSERT(!same_kind(answer->ranked[i].strategy, answer->ranked[k].strategy));
  }
}

/* Two stages cut anywhere else, played. */
static void check_cuts(const opi_auto *q, const opi_auto_ranked *ranked) {
  opi_strategy *s = ranked->strategy;
  const uint32_t end = s->stages[0].end;
  for (uint32_t cut = 1; s->n_stages == 2 && cut < q->planning.layers->n_layers; ++cut) {
    opi_judged judged;
    s->stages[0].end = s->stages[1].first = cut;
    OPI_ASSERT_OK_FATAL(opi_strategy_judge(q, s, &judged, &err), &err);
    if (!(ranked->judged.interval_ns <= judged.interval_ns * (1 + 1e-9))) {
      OPI_FAIL("%s, %u micro-batches: cut at %u %.17g ns, at %u %.17g", s->schedule,
               s->microbatches, end, ranked->judged.interval_ns, cut, judged.interval_ns);
    }
  }
  s->stages[0].end = s->stages[1].first = end;
}

static bool same_shape(const opi_strategy *a, const opi_strategy *b) {
  return a->n_stages == b->n_stages && a->n_ranks == b->n_ranks && a->chunks == b->chunks &&
         a->pipelines == b->pipelines && a->samples == b->samples &&
         a->microbatches == b->microbatches && a->recompute == b->recompute;
}

static void take_cut(opi_strategy *s, const opi_strategy *from) {
  for (uint32_t i = 0; i < s->n_stages; ++i) {
    s->stages[i].first = from->stages[i].first;
    s->stages[i].end = from->stages[i].end;
  }
}

/* Another schedule for the shape of a better one is behind with that one's cut, too. Out: pairs. */
static uint32_t check_borrowed(const opi_auto *q, const opi_auto_answer *answer) {
  uint32_t n = 0;
  for (uint32_t i = 1; i < answer->n_ranked; ++i) {
    const opi_auto_ranked *r = &answer->ranked[i];
    uint32_t k = 0;
    while (k < i && !same_shape(r->strategy, answer->ranked[k].strategy))
      ++k;
    if (k == i)
      continue;
    const opi_auto_ranked *better = &answer->ranked[k];
    opi_judged judged;
    take_cut(r->strategy, better->strategy);
    OPI_ASSERT_OK_FATAL(opi_strategy_judge(q, r->strategy, &judged, &err), &err);
    if (!(judged.step_ns >= r->judged.step_ns * (1 - 1e-9))) {
      OPI_FAIL("%u: %s takes %.17g ns, with the cut of %u %.17g", i, r->strategy->schedule,
               r->judged.step_ns, k, judged.step_ns);
    }
    OPI_ASSERT(judged.step_ns > better->judged.step_ns * (1 + 1e-11) ||
               judged.bytes != better->judged.bytes);
    ++n;
  }
  return n;
}

static void test_bounds_hide_nobody(void) {
  opi_cluster c = make_cluster(1, 2, 0, dapple_rates);
  opi_layers *layers = dear_microbatches(16);
  opi_auto q = auto_question(layers, &c, 4);
  q.mode = OPIPE_MODE_FORWARD;
  q.objective = OPI_AUTO_THROUGHPUT;
  for (uint32_t all = 0; all < 2; ++all) {
    q.fixed.schedule = all ? NULL : "gpipe";
    opi_auto_answer *answer = auto_ask(&q);
    OPI_ASSERT(fabs(answer->ranked[0].judged.interval_ns / 8.8e6 - 1) < 0.01);
    OPI_ASSERT(answer->gap < 0.01 && answer->n_bounded > 0);
    /* gpipe: 1 stage or 2, of 4, 2, 1 samples; 2 copies of 1 stage, of 2 or 1 */
    OPI_ASSERT_INT(answer->n_ranked, all ? OPI_AUTO_RANKED_MOST : 8);
    check_kinds(answer);
    for (uint32_t i = 0; i < answer->n_ranked; ++i)
      check_cuts(&q, &answer->ranked[i]);
    opi_auto_free(answer);
  }
  opi_layers_free(layers);
}

/* The best ten are ten different things to do, not ten cuts of one; neighbours of the best ones
 * where not all cuts are candidates. */
static void test_ranked_shapes(void) {
  opi_cluster c = make_cluster(1, 8, 0, dapple_rates);
  opi_test_random random = {5};
  opi_layers *layers = random_model(&random, 34);
  opi_auto q = auto_question(layers, &c, 16);
  q.work_most = 400000;
  opi_auto_answer *answer = auto_ask(&q);
  OPI_ASSERT_INT(answer->n_ranked, OPI_AUTO_RANKED_MOST);
  check_kinds(answer);
  opi_auto_free(answer);
  opi_layers_free(layers);
}

static void test_a_better_cut_is_everybodys(void) {
  opi_cluster c = make_cluster(1, 4, 0, dapple_rates);
  uint32_t n = 0;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    opi_test_random random = {seed};
    opi_layers *layers = random_model(&random, 34);
    opi_auto q = auto_question(layers, &c, 4);
    q.mode = seed % 2 == 0 ? OPIPE_MODE_FORWARD : OPIPE_MODE_TRAIN;
    opi_auto_answer *answer = auto_ask(&q);
    OPI_ASSERT(!answer->complete);
    n += check_borrowed(&q, answer);
    opi_auto_free(answer);
    opi_layers_free(layers);
  }
  OPI_ASSERT(n > 0);
}

/* ---- candidates that do not fit fall before they are played ---- */

/* Bytes of one stage of a strategy: what a micro-batch keeps of it, as the search counts them. */
static opi_stage_load kept_of(const opi_layers *layers, const opi_strategy *s, uint32_t stage) {
  const uint32_t a = s->stages[stage].first, b = s->stages[stage].end;
  opi_stage_load load = {.input_bytes = 0};
  for (uint32_t i = a; i < b; ++i)
    load.stash_bytes += (double)opi_layers_at(layers, i, s->samples).stash_bytes;
  if (a > 0 && s->recompute)
    load.input_bytes = (double)opi_layers_at(layers, a - 1, s->samples).cut_bytes;
  return load;
}

/* The bytes that an order's ranks are said to keep are those that its play finds: a millionth less
 * is too little, and as much is enough. */
static void one_kept(const opi_auto *q, const opi_strategy *s) {
  opi_shown shown;
  double peaks[64] = {0};
  opi_stage_load loads[64];
  OPI_ASSERT_OK_FATAL(opi_strategy_show(q, s, NULL, &shown, &err), &err);
  const uint32_t n = shown.order->problem.n_ranks, k = shown.played.result.n_classes;
  OPI_ASSERT_FATAL(n <= 64 && s->n_stages <= 64);
  for (uint32_t i = 0; i < s->n_stages; ++i)
    loads[i] = kept_of(q->planning.layers, s, i);
  for (uint32_t i = 0; i < n * k; ++i)
    peaks[i / k] = fmax(peaks[i / k], shown.played.result.peak_bytes[i]);
  for (uint32_t r = 0; r <= n; ++r) {
    const double had = peaks[r % n];
    OPI_ASSERT(had > 0);
    peaks[r % n] *= r < n ? 1 - 1e-6 : 1;
    const bool exceeds = opi_order_must_exceed(shown.order, loads, NULL, s->recompute, peaks, n);
    if (exceeds != (r < n)) {
      OPI_FAIL("%s%s, rank %u of %u: %.0f bytes kept, %s", s->schedule,
               s->recompute ? ", recomputed" : "", r, n, had, exceeds ? "refused" : "let pass");
    }
    peaks[r % n] = had;
  }
  opi_shown_release(&shown);
}

static void test_kept_before_it_is_played(void) {
  static const char *const schedules[] = {
      "gpipe",      "1f1b:policy=pa",  "zb-h1", "zbv", "interleaved:chunks=2",
      "looped-bfs", "seq1f1b:slices=2"};
  opi_cluster c = make_cluster(1, 4, 0, dapple_rates);
  opi_test_random random = {11};
  opi_layers *layers = random_model(&random, 12);
  for (uint32_t i = 0; i < 2 * OPI_COUNT(schedules); ++i) {
    opi_auto q = auto_question(layers, &c, 8);
    q.causal = true;
    q.fixed =
        (opi_auto_fixed){.schedule = schedules[i / 2],
                         .n_ranks = 4,
                         .pipelines = 1,
                         .microbatches = 8,
                         .recompute = i % 2 == 0 ? OPI_RECOMPUTES_NEVER : OPI_RECOMPUTES_ALWAYS};
    opi_auto_answer *answer = auto_ask(&q);
    one_kept(&q, answer->ranked[0].strategy);
    opi_auto_free(answer);
  }
  opi_layers_free(layers);
}

static const opi_test tests[] = {OPI_TEST(test_bounds_hide_nobody), OPI_TEST(test_ranked_shapes),
                                 OPI_TEST(test_a_better_cut_is_everybodys),
                                 OPI_TEST(test_kept_before_it_is_played)};

int main(int argc, char **argv) {
  return run_planners(tests, OPI_COUNT(tests), argc, argv);
}
