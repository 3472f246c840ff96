/* SPDX-License-Identifier: Apache-2.0 */
/* Orders by search: the best of all where problems are small, never worse than their beginning,
 * within caps, proven, the same for the same seed; bounds that nothing beats.
 * ctest: timeout=300
 */
#include "partition/study/improve/ask.h"
#include "partition/study/improve/named.h"
#include "partition/study/improve/works.h"
#include "tests/partition/study/improve/enumeration.h" /* before the error of the next one */

#include "tests/partition/study/auto.h"

static opipe_status list_schedules(void *ctx, opi_arena *to, const char *const **out_ids,
                                   uint32_t *out_n, opipe_error *e) {
  (void)ctx;
  (void)to;
  (void)e;
  *out_ids = auto_schedules;
  *out_n = OPI_COUNT(auto_schedules);
  return OPIPE_OK;
}

static const opi_plugins plugins = {.schedule = auto_find, .schedules = list_schedules};

/* ---- small problems ---- */

static void test_small_problems_are_the_best_of_all(void) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (uint32_t stages = 1; stages <= 3; ++stages) {
      const small p = small_random(seed, stages, stages == 3 ? 3 : 4);
      small_compare(seed, &p, true);
    }
  }
}

/* Looking through all of them, from the worst: the search has no part in it. */
static void test_all_orders_alone_find_the_best(void) {
  for (uint64_t seed = 300; seed < 360; ++seed) {
    const small p = small_random(seed, 2 + seed % 2, 3);
    const opi_improve_effort effort = {.moves = 1};
    const opi_improved found = small_improve(&p, &effort);
    const double best = all_orders(&p, true);
    OPI_ASSERT(found.exact);
    if (found.found_ns != best)
      OPI_FAIL("seed %llu: %g, the best is %g", (unsigned long long)seed, found.found_ns, best);
  }
}

/* No order in which micro-batches overtake each other is better: the search keeps them in turn. */
static void test_overtaking_gains_nothing(void) {
  for (uint64_t seed = 100; seed < 110; ++seed) {
    const small p = small_random(seed, 2, seed < 109 ? 2 : 3);
    small_compare(seed, &p, false);
  }
}

/* Without the enumeration of the library, moves alone: close, and never below. */
static void test_moves_alone_come_close(void) {
  double sum = 0;
  enum { PROBLEMS = 40 };
  for (uint64_t seed = 1; seed <= PROBLEMS; ++seed) {
    const small p = small_random(seed, 3, 3);
    const opi_improve_effort effort = {.moves = 300, .no_exact = true};
    const double found = small_improve(&p, &effort).found_ns, best = all_orders(&p, true);
    OPI_ASSERT(found >= best);
    sum += found / best - 1;
  }
  OPI_ASSERT(sum / PROBLEMS < 0.01);
}

static void test_bounds_are_not_beaten(void) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    small p = small_random(seed, 2 + seed % 2, 3);
    p.cap = 1 + (uint32_t)(seed % 3);
    const opi_improve_effort few = {.moves = 1, .no_exact = true};
    const double bound = small_improve(&p, &few).bound_ns, best = all_orders(&p, true);
    if (bound > best || bound < best / 2) {
      OPI_FAIL("seed %llu: bound %g, the best order takes %g", (unsigned long long)seed, bound,
               best);
    }
  }
}

/* ---- larger ones ---- */

typedef struct larger {
  double forward[16], input[16], weight[16];
  opi_costs costs;
  opi_question question;
} larger;

static void larger_make(larger *x, uint64_t seed, const char *schedule, uint32_t n_ranks,
                        uint32_t n_microbatches) {
  for (uint32_t s = 0; s < 16; ++s) {
    x->forward[s] = 1 + (double)(small_draw(&seed) % 100) / 100;
    x->input[s] = 1 + (double)(small_draw(&seed) % 100) / 100;
    x->weight[s] = 0.5 + (double)(small_draw(&seed) % 100) / 100;
  }
  x->costs = (opi_costs){.comm = (double)(small_draw(&seed) % 3) / 4,
                         .stage_forward = x->forward,
                         .stage_input = x->input,
                         .stage_weight = x->weight};
  x->question = (opi_question){.schedule = schedule,
                               .mode = OPIPE_MODE_TRAIN,
                               .n_ranks = n_ranks,
                               .n_microbatches = n_microbatches,
                               .costs = &x->costs};
}

/* Every schedule as a beginning; caps are what it keeps itself. */
static void test_never_worse_within_what_it_kept_and_proven(void) {
  static const char *const specs[] = {"gpipe",
                                      "1f1b",
                                      "interleaved",
                                      "looped-bfs",
                                      "zb-h1",
                                      "zb-h2",
                                      "zb-interleaved",
                                      "zbv",
                                      "dualpipev",
                                      "v-half",
                                      "chimera",
                                      "seq1f1b:slices=2",
                                      "chimera:concat=halving"};
  uint32_t better = 0;
  for (size_t i = 0; i < OPI_COUNT(specs); ++i) {
    larger x;
    opi_order *order = NULL;
    opi_do_list *list = NULL;
    opi_improved found;
    opi_proof proof = {.peak_stash = (uint64_t[4]){0}};
    larger_make(&x, i, specs[i], 4, 8);
    OPI_ASSERT_OK_FATAL(opi_order_ask(&plugins, &x.question, opi_allocator_system(), &order, &err),
                        &err);
    opi_order *lowered = order_lower(order, 1);
    OPI_ASSERT_OK_FATAL(opi_proof_check(&order->problem, lowered->list, OPI_RULE_TAG,
                                        opi_allocator_system(), &proof, &err),
                        &err);
    uint64_t room[4];
    for (uint32_t r = 0; r < 4; ++r)
      room[r] = proof.peak_stash[r];
    order->problem.rank_stash_bytes = room;
    const opi_improve_effort effort = {.moves = 400};
    OPI_ASSERT_OK_FATAL(opi_improve_order(&order->problem, order->list, &x.costs, &effort,
                                          opi_allocator_system(), &list, &found, &err),
                        &err);
    if (found.found_ns > found.start_ns || found.found_ns < found.bound_ns * (1 - 1e-12)) {
      OPI_FAIL("%s: from %g to %g, bound %g", specs[i], found.start_ns, found.found_ns,
               found.bound_ns);
    }
    better += found.found_ns < found.start_ns * (1 - 1e-6);
    opi_order *after = order_with(order, list);
    opi_order *proven = order_lower(after, 1);
    for (uint32_t rule = 0; rule <= OPI_RULE_STREAM; ++rule)
      OPI_ASSERT_OK(order_prove(proven, rule, &err), &err);
    opi_order_free(proven);
    opi_order_free(after);
    opi_order_free(lowered);
    opi_order_free(order);
  }
  OPI_ASSERT(better >= 8);
}

static void test_whole_backwards_stay_whole(void) {
  larger x;
  opi_order *order = NULL;
  opi_do_list *list = NULL;
  opi_improved found;
  larger_make(&x, 5, "1f1b", 4, 8);
  OPI_ASSERT_OK_FATAL(opi_order_ask(&plugins, &x.question, opi_allocator_system(), &order, &err),
                      &err);
  const opi_improve_effort effort = {.moves = 200, .whole = true};
  OPI_ASSERT_OK_FATAL(opi_improve_order(&order->problem, order->list, &x.costs, &effort,
                                        opi_allocator_system(), &list, &found, &err),
                      &err);
  for (uint32_t i = 0; i < list->n_items; ++i)
    OPI_ASSERT(list->items[i].kind == OPI_DO_F || list->items[i].kind == OPI_DO_B);
  OPI_ASSERT(found.found_ns < found.start_ns);
  opi_do_list_free(list);
  opi_order_free(order);
}

/* ---- the schedule "search" ---- */

static char *search_text(larger *x, const char *spec, opi_improved *out) {
  opi_order *order = NULL;
  x->question.schedule = spec;
  OPI_ASSERT_OK_FATAL(
      opi_search_ask(&plugins, &x->question, false, opi_allocator_system(), &order, out, &err),
      &err);
  char *text = order_text(order, OPI_ORDER_CSV, OPI_DIALECT_TORCH);
  opi_order_free(order);
  return text;
}

static void test_the_same_seed_gives_the_same_bytes(void) {
  static const char *const specs[] = {"search:moves=500", "search:moves=500,seed=7"};
  larger x;
  opi_improved a, b;
  larger_make(&x, 11, NULL, 4, 16);
  x.costs = (opi_costs){.forward = 1, .input = 1.25, .weight = 0.75, .comm = 0.1};
  x.question.free_bytes = (uint64_t[4]){3, 3, 3, 3};
  x.question.stash_bytes = (uint64_t[4]){1, 1, 1, 1};
  for (size_t i = 0; i < OPI_COUNT(specs); ++i) {
    char *one = search_text(&x, specs[i], &a), *two = search_text(&x, specs[i], &b);
    OPI_ASSERT_STR(one, two);
    OPI_ASSERT_INT(a.moves, b.moves);
    OPI_ASSERT(a.moves >= 500 && a.moves <= 502); /* a last one is packed twice */
    free(one);
    free(two);
  }
}

/* From the best named one, which no other of them beats. */
static void test_search_begins_with_the_best_there_is(void) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    larger x;
    opi_named best;
    opi_improved found;
    opi_arena own;
    larger_make(&x, seed, NULL, 4, 6);
    x.question.n_stages = 4;
    opi_arena_init(&own, opi_allocator_system(), 0);
    OPI_ASSERT_OK_FATAL(opi_named_best(&plugins, &x.question, NULL, &own, &best, &err), &err);
    opi_order_free(best.order);
    for (size_t i = 0; i < OPI_COUNT(auto_schedules); ++i) {
      opi_order *order = NULL;
      double peak[4];
      opi_simulation s = {.peak_stash = peak};
      opipe_error unused = OPIPE_ERROR_INIT;
      x.question.schedule = auto_schedules[i];
      if (opi_order_ask(&plugins, &x.question, opi_allocator_system(), &order, &unused) < 0)
        continue;
      if (order->problem.versions == OPIPE_VERSIONS_ONE && order->problem.n_replicas == 1 &&
          order->problem.n_slices == 1) {
        OPI_ASSERT_OK_FATAL(opi_simulate_order(&order->problem, order->list, &x.costs,
                                               opi_allocator_system(), &s, &err),
                            &err);
        OPI_ASSERT(best.ns <= s.makespan);
      }
      opi_order_free(order);
    }
    char *text = search_text(&x, "search:moves=100", &found);
    OPI_ASSERT(found.start_ns == best.ns && found.found_ns <= best.ns);
    free(text);
    opi_arena_release(&own);
  }
}

static void test_what_cannot_be_searched_is_refused(void) {
  static const struct {
    const char *spec, *why;
    int32_t status;
  } rows[] = {{"search:foo=1", "has no option 'foo=1'", OPIPE_E_INVALID},
              {"search:moves=0", "moves=0 is not an integer in [1, 1000000000]", OPIPE_E_INVALID},
              {"search:seed=x", "seed=x is not an integer", OPIPE_E_INVALID},
              {"search:from=search", "is a search itself", OPIPE_E_INVALID},
              {"search:from=2bw", "double-buffered", OPIPE_E_UNSUPPORTED},
              {"search:moves=5,from=zb-auto:memory=nothing", "is not a number", OPIPE_E_INVALID}};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    larger x;
    opi_order *order = NULL;
    larger_make(&x, 1, rows[i].spec, 4, 8);
    OPI_ASSERT_ERROR(
        opi_search_ask(&plugins, &x.question, false, opi_allocator_system(), &order, NULL, &err),
        rows[i].status, &err, rows[i].why);
  }
}

static void test_a_cap_that_nothing_fits_is_refused(void) {
  larger x;
  opi_order *order = NULL;
  opi_do_list *list = NULL;
  opi_improved found;
  const opi_improve_effort effort = {.moves = 10};
  larger_make(&x, 1, "1f1b", 4, 8);
  OPI_ASSERT_OK_FATAL(opi_order_ask(&plugins, &x.question, opi_allocator_system(), &order, &err),
                      &err);
  order->problem.rank_stash_bytes = (uint64_t[4]){4, 2, 2, 1};
  OPI_ASSERT_ERROR(opi_improve_order(&order->problem, order->list, &x.costs, &effort,
                                     opi_allocator_system(), &list, &found, &err),
                   OPIPE_E_INVALID, &err, "rank 1 of the order to improve keeps 3, its cap is 2");
  opi_order_free(order);
}

/* ---- the clock ---- */

/* Making an order by its own start times, and timing it, come to the same. */
static void test_the_clock_times_what_it_makes(void) {
  larger x;
  opi_order *order = NULL;
  opi_arena own;
  opi_works works;
  opi_works_order given, made_again, timed;
  opi_works_clock clock;
  larger_make(&x, 3, "zbv", 4, 8);
  OPI_ASSERT_OK_FATAL(opi_order_ask(&plugins, &x.question, opi_allocator_system(), &order, &err),
                      &err);
  opi_arena_init(&own, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(
      opi_works_build(&order->problem, order->list, &x.costs, &own, &works, &given, &err), &err);
  OPI_ASSERT_FATAL(opi_works_clock_make(&works, &own, &clock) &&
                   opi_works_order_make(&works, &own, &made_again) &&
                   opi_works_order_make(&works, &own, &timed));
  opi_works_clock_run(&works, &clock, &given);
  OPI_ASSERT_FATAL(opi_works_clock_order(&works, &clock, given.start, 0.5, &made_again));
  opi_works_order_copy(&works, &made_again, &timed);
  opi_works_clock_run(&works, &clock, &timed);
  OPI_ASSERT(timed.makespan == made_again.makespan);
  for (uint32_t i = 0; i < works.n; ++i)
    OPI_ASSERT(timed.start[i] == made_again.start[i]);
  opi_arena_release(&own);
  opi_order_free(order);
}

OPI_TEST_MAIN("improve", OPI_TEST(test_small_problems_are_the_best_of_all),
              OPI_TEST(test_all_orders_alone_find_the_best),
              OPI_TEST(test_overtaking_gains_nothing), OPI_TEST(test_moves_alone_come_close),
              OPI_TEST(test_bounds_are_not_beaten),
              OPI_TEST(test_never_worse_within_what_it_kept_and_proven),
              OPI_TEST(test_whole_backwards_stay_whole),
              OPI_TEST(test_the_same_seed_gives_the_same_bytes),
              OPI_TEST(test_search_begins_with_the_best_there_is),
              OPI_TEST(test_what_cannot_be_searched_is_refused),
              OPI_TEST(test_a_cap_that_nothing_fits_is_refused),
              OPI_TEST(test_the_clock_times_what_it_makes))
