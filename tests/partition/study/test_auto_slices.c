/* SPDX-License-Identifier: Apache-2.0 */
/* The planner `auto` on models in which a token depends on those before it alone: TeraPipe's
 * lengths of token slices are among its candidates, where attention makes later slices dearer; no
 * answer of planner terapipe is faster; shapes without slices stay what they were.
 * ctest: timeout=300
 */
#include "tests/partition/study/auto.h"

enum { TOKENS = 512, COUNTS = 7 }; /* 8, 16, ... 512 tokens */

/* Blocks whose slices take a floor, a time for each token, and one for each pair of tokens; all of
 * a sample takes what its one slice takes. */
static opi_layers *causal_model(uint32_t n, double floor_ns, double token_ns, double pair_ns) {
  opi_layers *layers = equal_blocks(n, 0, 0, 4000 * TOKENS, 1000, 100000);
  const double whole = floor_ns + token_ns * TOKENS + pair_ns * TOKENS * TOKENS / 2;
  layers->tokens = TOKENS;
  OPI_ASSERT_OK_FATAL(opi_layers_add_slices(layers, COUNTS, &err), &err);
  for (uint32_t k = 0; k < COUNTS; ++k)
    layers->slices.tokens[k] = 8u << k;
  for (uint32_t i = 0; i < n; ++i) {
    opi_layer *x = &layers->at[i];
    x->forward_ns = whole / 3;
    x->input_ns = x->weight_ns = whole / 3;
    layers->slices.context_ns[i] = pair_ns;
    for (uint32_t k = 0; k < COUNTS; ++k) {
      layers->slices.alone[k * n + i] =
          (opi_token_cost){.ns = floor_ns + token_ns * layers->slices.tokens[k]};
    }
  }
  return layers;
}

static bool is_uneven(const opi_strategy *s) {
  for (uint32_t k = 1; s->n_groups > 0 && k < s->groups[0].n_slices; ++k) {
    if (s->groups[0].lengths[k] + 1 < s->groups[0].lengths[0])
      return true;
  }
  return false;
}

/* ---- random questions ---- */

static uint32_t n_uneven;

static void one_against_terapipe(uint32_t seed, bool forward) {
  opi_test_random random = {seed};
  const uint32_t per_node = 2u << opi_test_next(&random) % 2;
  const rates r = {opi_test_uniform(&random, 5, 50), opi_test_uniform(&random, 5, 50),
                   opi_test_uniform(&random, 2, 9), opi_test_uniform(&random, 2, 9), 1000};
  opi_cluster c = make_cluster(1u << opi_test_next(&random) % 2, per_node, 0, r);
  const double token = opi_test_uniform(&random, 500, 3000);
  opi_layers *layers = causal_model(4 + 4 * (uint32_t)(opi_test_next(&random) % 2),
                                    opi_test_uniform(&random, 0, 1) * 20000, token,
                                    token * opi_test_uniform(&random, 0, 1) / 64);
  opi_auto q = auto_question(layers, &c, 1u + opi_test_next(&random) % 4);
  opi_strategy *named = NULL;
  opi_judged judged;
  q.causal = true;
  q.mode = forward ? OPIPE_MODE_FORWARD : OPIPE_MODE_TRAIN;
  q.work_most = 400000;
  opi_auto_answer *answer = auto_ask(&q);
  const opi_strategy *best = answer->ranked[0].strategy;
  n_uneven += is_uneven(best);
  const double found = answer->ranked[0].judged.step_ns;
  OPI_ASSERT(answer->bound <= found * (1 + 1e-12));
  for (uint32_t i = 0; i < answer->n_ranked; ++i) {
    const opi_auto_ranked *x = &answer->ranked[i];
    if (!(x->bound_ns <= x->judged.step_ns * (1 + 1e-12))) {
      OPI_FAIL("seed %u: %s takes %.17g ns, below its bound %.17g", seed, x->strategy->schedule,
               x->judged.step_ns, x->bound_ns);
    }
  }
  if (opi_plan_terapipe(&q.planning, &named, &err) == OPIPE_OK) {
    OPI_ASSERT_OK_FATAL(opi_strategy_judge(&q, named, &judged, &err), &err);
    if (!(found <= (1 + 1e-9) * judged.step_ns)) {
      OPI_FAIL("seed %u: auto %.17g ns (%s), terapipe %.17g (%s)", seed, found, best->schedule,
               judged.step_ns, named->schedule);
    }
  }
  opi_strategy_free(named);
  opi_auto_free(answer);
  opi_layers_free(layers);
}

/* Some questions have such a slicing as their answer, or nothing would be seen here. */
static void test_no_slicing_of_terapipe_is_faster(void) {
  n_uneven = 0;
  for (uint32_t i = 0; i < 60; ++i) {
    if (i < 6 || opi_test_covers(i, 300))
      one_against_terapipe(i + 1, i % 3 == 2);
  }
  OPI_ASSERT(n_uneven > 0);
}

/* ---- by hand ---- */

static double best_of(const opi_auto *q, opi_auto_answer **out) {
  *out = auto_ask(q);
  return (*out)->ranked[0].judged.step_ns;
}

/* As many slices of equal lengths are as good, but for what rounding lengths to tokens takes. */
static void compare_with_even(double best, const opi_strategy *s, opi_auto *q) {
  char schedule[64];
  opi_auto_answer *answer = NULL;
  OPI_ASSERT_FATAL(s->n_groups == 1);
  (void)snprintf(schedule, sizeof schedule, "terapipe:slices=%u", s->groups[0].n_slices);
  q->fixed.schedule = schedule;
  const double even = best_of(q, &answer);
  if (!(best > 0.99 * even))
    OPI_FAIL("%s takes %.17g ns, %s %.17g", s->schedule, best, schedule, even);
  opi_auto_free(answer);
}

/* A schedule that was given is not another one, though slices would be faster; no slice is without
 * a token, and none has one that is not there. */
static void test_slices_are_those_asked_for(void) {
  const rates free_links = {1000, 1000, 1000, 1000, 0};
  opi_cluster c = make_cluster(1, 4, 0, free_links);
  opi_layers *layers = causal_model(8, 1000, 1000, 15);
  opi_auto q = auto_question(layers, &c, 1);
  opi_auto_answer *answer = NULL;
  q.causal = true;
  q.fixed.schedule = "gpipe";
  answer = auto_ask(&q);
  for (uint32_t i = 0; i < answer->n_ranked; ++i)
    OPI_ASSERT_STR(answer->ranked[i].strategy->schedule, "gpipe");
  opi_auto_free(answer);
  answer = NULL;
  q.fixed.schedule = "terapipe:slices=513";
  OPI_ASSERT_ERROR(opi_auto_search(&q, &answer, &err), OPIPE_E_UNSUPPORTED, &err,
                   "513 token slices of 512 tokens");
  q.fixed.schedule = "terapipe:lengths=300+200";
  OPI_ASSERT_ERROR(opi_auto_search(&q, &answer, &err), OPIPE_E_UNSUPPORTED, &err,
                   "500 tokens together, and 512");
  opi_layers_free(layers);
}

/* One sequence over four stages: where pairs of tokens count, slices grow shorter; where none do
 * they are equal, or come to the same; a schedule that was given with its lengths stays. */
static void test_lengths_follow_the_context(void) {
  const rates free_links = {1000, 1000, 1000, 1000, 0};
  opi_cluster c = make_cluster(1, 4, 0, free_links);
  opi_layers *dear = causal_model(8, 1000, 1000, 15), *flat = causal_model(8, 1000, 1000, 0);
  opi_auto q = auto_question(dear, &c, 1), even = q, given = q, late = q;
  opi_auto_answer *answer = NULL, *other = NULL;
  q.causal = even.causal = given.causal = true;
  const double found = best_of(&q, &answer);
  OPI_ASSERT(strncmp(answer->ranked[0].strategy->schedule, "terapipe:lengths=", 17) == 0);
  OPI_ASSERT(is_uneven(answer->ranked[0].strategy));
  even.fixed.schedule = "terapipe:slices=4";
  OPI_ASSERT(found < 0.97 * best_of(&even, &other));
  opi_auto_free(other);
  given.fixed.schedule = "terapipe:lengths=256+256";
  (void)best_of(&given, &other);
  OPI_ASSERT_STR(other->ranked[0].strategy->schedule, "terapipe:lengths=256+256");
  opi_auto_free(other);
  (void)best_of(&late, &other); /* not said to be causal */
  for (uint32_t i = 0; i < other->n_ranked; ++i)
    OPI_ASSERT(other->ranked[i].strategy->n_groups == 0);
  opi_auto_free(other);
  opi_auto_free(answer);
  q.planning.layers = even.planning.layers = flat;
  const double best = best_of(&q, &answer); /* which makes the answer */
  compare_with_even(best, answer->ranked[0].strategy, &even);
  opi_auto_free(answer);
  opi_layers_free(dear);
  opi_layers_free(flat);
}

/* Slices take the time that was played: two slices of one stage on one device, one after the other.
 */
static void test_slices_take_what_layers_say(void) {
  const rates free_links = {1000, 1000, 1000, 1000, 0};
  opi_cluster c = make_cluster(1, 1, 0, free_links);
  opi_layers *layers = causal_model(2, 5000, 1000, 10);
  opi_auto q = auto_question(layers, &c, 2), linear = q;
  opi_auto_answer *answer = NULL;
  q.causal = linear.causal = true;
  q.fixed = (opi_auto_fixed){.schedule = "terapipe:lengths=384+128", .microbatches = 2};
  const double whole = 5000 + 1000.0 * 512 + 10.0 * 512 * 512 / 2;
  /* two layers of two rows in two slices: one floor more for each */
  const double wanted = 2 * 2 * (whole + 5000);
  const double found = best_of(&q, &answer);
  if (fabs(found / wanted - 1) > 1e-9)
    OPI_FAIL("%.17g ns, %.17g are wanted", found, wanted);
  opi_auto_free(answer);
  linear.fixed = q.fixed;
  linear.slice_ns = 700; /* said by the host: it holds, three passes of two layers and slices */
  const double said = best_of(&linear, &answer), told = 2 * 2 * (whole + 3 * 2 * 700);
  if (fabs(said / told - 1) > 1e-9)
    OPI_FAIL("%.17g ns, %.17g are wanted", said, told);
  opi_auto_free(answer);
  opi_layers_free(layers);
}

static const opi_test tests[] = {
    OPI_TEST(test_no_slicing_of_terapipe_is_faster), OPI_TEST(test_slices_are_those_asked_for),
    OPI_TEST(test_lengths_follow_the_context), OPI_TEST(test_slices_take_what_layers_say)};

int main(int argc, char **argv) {
  return run_planners(tests, OPI_COUNT(tests), argc, argv);
}
