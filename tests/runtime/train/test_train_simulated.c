/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator of plans plays the lists that run: to the times of the plan's own clock, and, on
 * emulated devices and links, of sessions; see simulated.h. Sessions of all cases:
 * test_train_simulated_full.c. ctest: timeout=180 label=nosan serial */
#include <math.h>

#include "tests/runtime/train/simulated.h"

/* Norms are summed over a ring of all ranks: some 80 numbers, 64 bytes apart. */
static double norms_ns(const simulated_case *c, double n_bytes) {
  const uint32_t n = c->n_ranks * c->replicas;
  const double travel_ns = c->bandwidth > 0 ? n_bytes / n / c->bandwidth * 1e9 : 0;
  return 2 * (n - 1) * (c->latency_us * 1e3 + travel_ns);
}

/* Both clocks know the same waits; sums of gradients and norms only the play. A double-buffered
 * step that does not clip sums its norms beside the next. */
static void test_lists_are_played_to_the_plans_times(void) {
  for (size_t i = 0; i < SIMULATED_CASES; ++i) {
    const simulated_case *c = &simulated_cases[i];
    const bool beside = strcmp(c->schedule, "2bw") == 0 && !c->clips;
    /* three members have two heads of K and V between them, and sum the gradients of these */
    const bool sums =
        c->replicas > 1 || c->tied || c->tensor > 2 || strncmp(c->schedule, "chimera", 7) == 0;
    double planned = 0, played = 0;
    simulated_play(c, &planned, &played);
    const uint32_t members = c->tensor == 0 ? 1 : c->tensor; /* each has numbers of its parts */
    const double least = beside ? 0 : norms_ns(c, 70 * 64),
                 most = beside ? 0 : norms_ns(c, members * 90 * 64);
    /* two sums of a pair share the links in the play, and follow each other in the plan */
    const bool pairs = c->tensor != 0 && strcmp(c->schedule, "dualpipev") == 0;
    const double more = played - planned, near = (pairs ? 0.015 : 1e-4) * planned;
    if (more < least - near || (!sums && more > most + near)) {
      OPI_FAIL("%s, rule %s: planned %.9g ms, played %.9g", c->schedule, c->rule, planned * 1e-6,
               played * 1e-6);
    }
    OPI_ASSERT(played > 100e6);
  }
}

static void test_sessions_take_the_simulated_time(void) {
  for (size_t i = 1; i < SIMULATED_COVER; ++i) {
    if (opi_test_covers(i + 1, 2))
      simulated_run(&simulated_cases[i]);
  }
}

/* No device waits for its host in front of a batch: its programs follow each other as both clocks
 * have them, with a lane beside each rank. */
static void test_queued_batches_take_the_simulated_time(void) {
  static const char quarters[] = "add_11;add_23;add_35";
  static const char eighths[] = "add_5;add_11;add_17;add_23;add_29;add_35;add_41";
  static const simulated_case cases[] = {
      {"gpipe", "grouped", quarters, 4, 1, 8, 1, 0, 0, .queued = true, .unequal = true},
      {"1f1b", "grouped", quarters, 4, 1, 8, 1, 0, 0, .queued = true, .unequal = true},
      {"zb-h1", "grouped", quarters, 4, 1, 8, 1, 0, 0, .queued = true, .unequal = true},
      {"interleaved:chunks=2", "grouped", eighths, 4, 2, 8, 1, 0, 0, .queued = true,
       .unequal = true},
      {"chimera", "grouped", quarters, 4, 1, 8, 1, 0, 0, .queued = true, .unequal = true}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i)
    simulated_queue(&cases[i]);
}

/* The backward behind each bucket takes longer than its sum: a step is a forward, a backward, the
 * last sum and the norms. Without parts all sums stand behind the backward. */
static void test_all_sums_but_the_last_are_hidden(void) {
  for (size_t i = 0; i < SIMULATED_CASES; ++i) {
    const simulated_case *c = &simulated_cases[i];
    const double n_bytes = (double)SIMULATED_WIDTH * SIMULATED_WIDTH * sizeof(float);
    const double passes = simulated_pass_ns(0) + simulated_pass_ns(1) + simulated_pass_ns(2);
    const double sum = n_bytes / c->bandwidth * 1e9 + 2 * c->latency_us * 1e3;
    double planned = 0, played = 0;
    if (!c->buckets || c->n_ranks != 1)
      continue;
    simulated_play(c, &planned, &played);
    const double others = c->shard ? (SIMULATED_BUCKETS + 1) / 2.0 * sum : sum;
    OPI_ASSERT(played >= passes + others);
    OPI_ASSERT(played <= passes + others + 8 * c->latency_us * 1e3 + 0.01 * passes);
  }
}

OPI_TEST_MAIN("simulated training", OPI_TEST(test_queued_batches_take_the_simulated_time),
              OPI_TEST(test_all_sums_but_the_last_are_hidden),
              OPI_TEST(test_lists_are_played_to_the_plans_times),
              OPI_TEST(test_sessions_take_the_simulated_time))
