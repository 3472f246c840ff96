/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks 1 to 9, micro-batches 1 to 20, every option: the order has every pass once and can be
 * executed by ranks that each follow their own list. A combination that a schedule has no form for
 * is an error with both numbers.
 */
#include "tests/plugins/schedules/kit.h"

enum { RANKS_MOST = 9, MICROBATCHES_MOST = 20 };

static asked_order o;

static bool replays(const char *schedule, uint32_t mode, uint32_t p, uint32_t m) {
  const kit_request q = {schedule, mode, p, 0, m, 0, 0};
  const kit_costs costs = {1, 2, 0.125};
  asked_end(&o);
  if (!OPI_ASSERT_OK(kit_ask(&q, &o), &asked_err))
    return false;
  const kit_times t = kit_replay_order(&o, &costs);
  if (t.n_left + t.n_wrong + t.n_missing == 0)
    return OPI_ASSERT(true);
  return OPI_FAIL("%s, mode %u, %u ranks, %u micro-batches: %u cannot run, %u wrong, %u missing",
                  schedule, mode, p, m, t.n_left, t.n_wrong, t.n_missing);
}

static void check_all(const char *schedule, uint32_t ranks_step) {
  static uint32_t turn;
  if (!opi_test_covers(turn++, 3))
    return;
  for (uint32_t p = ranks_step; p <= RANKS_MOST; p += ranks_step) {
    for (uint32_t m = 1; m <= MICROBATCHES_MOST; ++m) {
      replays(schedule, OPIPE_MODE_TRAIN, p, m);
      if (replays(schedule, OPIPE_MODE_FORWARD, p, m))
        OPI_ASSERT_INT(o.layout.n_replicas * o.layout.n_parts * o.layout.n_slices, 1);
    }
  }
}

static void test_one_stage_per_rank(void) {
  check_all("sequential", 1);
  check_all("gpipe", 1);
  check_all("1f1b", 1);
  check_all("1f1b:policy=pb", 1);
  check_all("1f1b:policy=pb,depth=4", 1);
  check_all("1f1b:eager=1,depth=2", 1);
  check_all("1f1b:depth=1", 1);
}

static void test_several_stages_per_rank(void) {
  char schedule[64];
  for (uint32_t v = 1; v <= 4; ++v) {
    (void)snprintf(schedule, sizeof schedule, "looped-bfs:chunks=%u", v);
    check_all(schedule, 1);
    (void)snprintf(schedule, sizeof schedule, "interleaved:chunks=%u", v);
    check_all(schedule, 1);
    (void)snprintf(schedule, sizeof schedule, "interleaved:chunks=%u,warmup=torch", v);
    check_all(schedule, 1);
    for (uint32_t g = 1; g <= 12; ++g) {
      (void)snprintf(schedule, sizeof schedule, "interleaved:chunks=%u,group=%u%s", v, g,
                     g % 2 == 0 ? ",warmup=torch" : "");
      check_all(schedule, 1);
    }
  }
}

static void test_two_directions(void) {
  static const char *const concat[] = {"direct", "doubling", "halving"};
  char schedule[64];
  for (uint32_t kind = 0; kind < 3; ++kind) {
    for (uint32_t f = 1; f <= 4; ++f) {
      (void)snprintf(schedule, sizeof schedule, "chimera:pipelines=%u,concat=%s", 2 * f,
                     concat[kind]);
      check_all(schedule, 2 * f);
    }
  }
}

/* The flagged records are the prologue; those of the body alone hold every pass once. */
static void test_2bw_is_complete(void) {
  for (uint32_t d = 1; d <= RANKS_MOST; ++d) {
    for (uint32_t m = 1; m <= MICROBATCHES_MOST; ++m) {
      uint8_t seen[RANKS_MOST][MICROBATCHES_MOST][2] = {{{0}}};
      replays("2bw", OPIPE_MODE_FORWARD, d, m);
      const kit_request q = {"2bw", OPIPE_MODE_TRAIN, d, 0, m, 0, 0};
      asked_end(&o);
      if (m < d) {
        OPI_ASSERT_ERROR(kit_ask(&q, &o), OPIPE_E_INVALID, &asked_err, "stages");
        continue;
      }
      if (!OPI_ASSERT_OK(kit_ask(&q, &o), &asked_err))
        return;
      OPI_ASSERT_INT(o.n, 2 * d * m);
      for (uint32_t i = 0; i < o.n; ++i) {
        const opipe_action *a = &o.actions[i];
        OPI_ASSERT_FATAL(a->stage < d && a->rank == a->stage && a->microbatch < m);
        OPI_ASSERT_INT(++seen[a->stage][a->microbatch][a->pass == OPIPE_PASS_FORWARD], 1);
      }
    }
  }
}

/* ---- layouts ---- */

static void expect_layout(const char *schedule, uint32_t ranks, uint32_t stages,
                          uint32_t wanted_ranks, uint32_t wanted_stages) {
  const kit_request q = {schedule, OPIPE_MODE_TRAIN, ranks, stages, 8, 0, 0};
  asked_end(&o);
  if (OPI_ASSERT_OK(kit_ask(&q, &o), &asked_err)) {
    OPI_ASSERT_INT(o.layout.n_ranks, wanted_ranks);
    OPI_ASSERT_INT(o.layout.n_stages, wanted_stages);
  }
}

static void test_either_number_is_filled_in(void) {
  static const char *const line[] = {"sequential", "gpipe", "1f1b", "chimera", "2bw"};
  for (size_t i = 0; i < sizeof line / sizeof line[0]; ++i) {
    expect_layout(line[i], 4, 0, 4, 4);
    expect_layout(line[i], 0, 4, 4, 4);
    expect_layout(line[i], 4, 4, 4, 4);
  }
  expect_layout("interleaved", 4, 0, 4, 8);
  expect_layout("interleaved", 0, 8, 4, 8);
  expect_layout("interleaved", 4, 12, 4, 12);
  expect_layout("interleaved:chunks=3", 0, 12, 4, 12);
  expect_layout("looped-bfs:chunks=3", 4, 0, 4, 12);
  expect_layout("looped-bfs", 2, 8, 2, 8);
}

static void expect_error(const kit_request *q, opipe_status status, const char *one,
                         const char *other) {
  asked_end(&o);
  OPI_ASSERT_ERROR(kit_ask(q, &o), status, &asked_err, one);
  if (!OPI_ASSERT(strstr(asked_err.message, other) != NULL))
    fprintf(stderr, "  '%s' does not say '%s'\n", asked_err.message, other);
}

static void test_constraints_name_both_numbers(void) {
  static const struct {
    kit_request q;
    const char *one, *other;
  } rows[] = {
      {{"sequential", OPIPE_MODE_TRAIN, 3, 5, 8, 0, 0}, "5 stages", "3 ranks"},
      {{"gpipe", OPIPE_MODE_TRAIN, 3, 5, 8, 0, 0}, "5 stages", "3 ranks"},
      {{"gpipe", OPIPE_MODE_FORWARD, 3, 5, 8, 0, 0}, "5 stages", "3 ranks"},
      {{"1f1b", OPIPE_MODE_TRAIN, 4, 2, 8, 0, 0}, "2 stages", "4 ranks"},
      {{"2bw", OPIPE_MODE_TRAIN, 4, 2, 8, 0, 0}, "2 stages", "4 ranks"},
      {{"chimera", OPIPE_MODE_TRAIN, 4, 2, 8, 0, 0}, "2 stages", "4 ranks"},
      {{"interleaved:chunks=3", OPIPE_MODE_TRAIN, 4, 8, 8, 0, 0}, "8 stages", "4 ranks"},
      {{"interleaved", OPIPE_MODE_TRAIN, 0, 7, 8, 0, 0}, "7 stages", "multiple of 2"},
      {{"looped-bfs:chunks=4", OPIPE_MODE_FORWARD, 0, 6, 8, 0, 0}, "6 stages", "multiple of 4"},
      {{"chimera", OPIPE_MODE_TRAIN, 5, 0, 8, 0, 0}, "even", "5 is odd"},
      {{"chimera", OPIPE_MODE_TRAIN, 1, 0, 8, 0, 0}, "even", "1 is odd"},
      {{"chimera:pipelines=3", OPIPE_MODE_TRAIN, 6, 0, 8, 0, 0}, "pipelines=3", "odd"},
      {{"chimera:pipelines=4", OPIPE_MODE_TRAIN, 6, 0, 8, 0, 0}, "pipelines=4", "6 stages"},
      {{"2bw", OPIPE_MODE_TRAIN, 6, 0, 5, 0, 0}, "5 micro-batches", "6 stages"},
      {{"2bw:accumulate=2", OPIPE_MODE_TRAIN, 3, 0, 7, 0, 0}, "6 micro-batches", "7 were"},
      {{"1f1b:policy=pa,eager=1", OPIPE_MODE_TRAIN, 3, 0, 7, 0, 0}, "policy=pa", "eager=1"},
      {{"1f1b:policy=pb,eager=0", OPIPE_MODE_TRAIN, 3, 0, 7, 0, 0}, "policy=pb", "eager=0"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
    expect_error(&rows[i].q, OPIPE_E_INVALID, rows[i].one, rows[i].other);
  const kit_request small = {"1f1b", OPIPE_MODE_TRAIN, 3, 0, 7, 1000, 999};
  expect_error(&small, OPIPE_E_LIMIT, "1000 bytes", "999 bytes");
  const kit_request exact = {"2bw:accumulate=2", OPIPE_MODE_TRAIN, 3, 0, 6, 0, 0};
  asked_end(&o);
  OPI_ASSERT_OK(kit_ask(&exact, &o), &asked_err);
}

/* The host checks settings before the plugin sees them; a host that does not gets an error. */
static void test_settings_out_of_range(void) {
  static const char *const specs[] = {
      "1f1b:depth=0",        "1f1b:depth=x",         "1f1b:eager=2",        "interleaved:chunks=0",
      "interleaved:group=0", "looped-bfs:chunks=-1", "chimera:pipelines=1", "2bw:accumulate=0"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; ++i) {
    const kit_request q = {specs[i], OPIPE_MODE_TRAIN, 4, 0, 8, 0, 0};
    const char *value = strchr(specs[i], ':') + 1;
    asked_end(&o);
    OPI_ASSERT_ERROR(kit_ask(&q, &o), OPIPE_E_INVALID, &asked_err, value);
  }
}

OPI_TEST_MAIN("grid of schedules", OPI_TEST(test_one_stage_per_rank),
              OPI_TEST(test_several_stages_per_rank), OPI_TEST(test_two_directions),
              OPI_TEST(test_2bw_is_complete), OPI_TEST(test_either_number_is_filled_in),
              OPI_TEST(test_constraints_name_both_numbers), OPI_TEST(test_settings_out_of_range))
