/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules that split backwards: published tables cell by cell, reference points and closed
 * formulas, completeness over a grid, memory limits, searches that are never worse than what they
 * start from.  ctest: timeout=120
 */
#include <math.h>

#include "tests/plugins/schedules/lab.h"

static lab_times simulate(const char *id, const char *key, const char *value, uint32_t p,
                          uint32_t m) {
  const lab_request q = {id, key, value, OPIPE_MODE_TRAIN, p, 0, m, NULL};
  return lab_simulate(&q);
}

static void expect_near(const char *what, double found, double wanted, double within) {
  if (!(fabs(found - wanted) <= within))
    OPI_FAIL("%s: %.6f, not %.6f", what, found, wanted);
  else
    OPI_ASSERT(true);
}

/* ---- tables ---- */

static void test_tables(void) {
  static const struct {
    const char *id, *key, *value;
    uint32_t p, m;
    const char *file;
  } rows[] = {
      {"zb-interleaved", "chunks", "2", 2, 4, "interleaved_zb1p_r2_v2_m4"},
      {"zb-interleaved", "chunks", "2", 2, 8, "interleaved_zb1p_r2_v2_m8"},
      {"zb-interleaved", "chunks", "3", 2, 4, "interleaved_zb1p_r2_v3_m4"},
      {"zb-interleaved", "chunks", "3", 2, 8, "interleaved_zb1p_r2_v3_m8"},
      {"zbv", "order", "torch", 2, 4, "zbv_r2_m4"},
      {"zbv", "order", "torch", 2, 8, "zbv_r2_m8"},
      {"zbv", "order", "torch", 4, 4, "zbv_r4_m4"},
      {"zbv", "order", "torch", 4, 8, "zbv_r4_m8"},
      {"dualpipev", NULL, NULL, 2, 4, "dualpipev_r2_m4"},
      {"dualpipev", NULL, NULL, 2, 8, "dualpipev_r2_m8"},
      {"dualpipev", NULL, NULL, 4, 8, "dualpipev_r4_m8"},
  };
  if (opi_test_shared("oracles/schedules") == NULL)
    return;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    char file[96];
    const lab_request q = {rows[i].id, rows[i].key, rows[i].value, OPIPE_MODE_TRAIN,
                           rows[i].p,  0,           rows[i].m,     NULL};
    (void)snprintf(file, sizeof file, "torch/generated/%s_compute.csv", rows[i].file);
    lab_compare(&q, file);
  }
  const lab_request zb = {"zb-interleaved", "chunks", "2", OPIPE_MODE_TRAIN, 2, 0, 8, NULL};
  lab_compare(&zb, "torch/zb1p_2rank_2stagep_compute.csv");
  const lab_request dual = {"dualpipev", NULL, NULL, OPIPE_MODE_TRAIN, 4, 0, 10, NULL};
  lab_compare(&dual, "torch/dualpipev_4rank_10mb.csv");
}

/* ---- reference points ---- */

/* p = 8, m = 16, F = I = W: what others' programs reach. Peaks in whole micro-batches of a rank. */
static void test_reference_points(void) {
  static const struct {
    const char *id, *key, *value;
    uint32_t chunks;
    double bubble, most;
    bool exact; /* else: not worse */
  } rows[] = {
      {"zb-h1", NULL, NULL, 1, .127, 8, true},
      {"zb-h2", NULL, NULL, 1, .127, 15, true},
      {"zb-auto", "memory", "1", 1, .127, 8, false},
      {"zb-auto", "memory", "2", 1, .127, 16, false},
      {"zb-interleaved", "chunks", "2", 2, .068, 8, true},
      {"zbv", "order", "torch", 2, .068, 8, true},
      {"zbv", NULL, NULL, 2, .068, 8, false},
      {"dualpipev", NULL, NULL, 2, .068, 8.5, true},
      {"v-half", NULL, NULL, 2, .150, 5, false},
      {"v-min", NULL, NULL, 2, .220, 4, false},
      {"seq1f1b", "slices", "4", 1, .099, 2.75, true},
      {"interleaved", "backward", "halves", 2, .127, 11.5, true},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    const lab_times t = simulate(rows[i].id, rows[i].key, rows[i].value, 8, 16);
    const double most = t.peak_most / rows[i].chunks;
    if (rows[i].exact) {
      expect_near(rows[i].id, t.bubble, rows[i].bubble, 5.1e-4);
      expect_near(rows[i].id, most, rows[i].most, 1e-9);
    } else if (t.bubble > rows[i].bubble + 5.1e-4 || most > rows[i].most + 1e-9) {
      OPI_FAIL("%s %s: bubble %.4f (%.3f), peak %.2f (%.2f)", rows[i].id,
               rows[i].value == NULL ? "" : rows[i].value, t.bubble, rows[i].bubble, most,
               rows[i].most);
    }
  }
  const lab_request narrow = {.id = "interleaved",
                              .key = "group",
                              .value = "4",
                              .mode = OPIPE_MODE_TRAIN,
                              .n_ranks = 8,
                              .m = 16,
                              .key2 = "backward",
                              .value2 = "halves"};
  const lab_times grouped = lab_simulate(&narrow);
  expect_near("grouped interleaved", grouped.bubble, .158, 5.1e-4);
  expect_near("grouped interleaved, most", grouped.peak_most / 2, 6, 1e-9);
  expect_near("grouped interleaved, least", grouped.peak_least / 2, 2.5, 1e-9);
  /* no rank waits between its first and its last action */
  expect_near("zb-h2, span", simulate("zb-h2", NULL, NULL, 8, 16).span, 48, 1e-9);
  expect_near("zb-auto, span", simulate("zb-auto", "memory", "2", 8, 16).span, 48, 1e-9);
  expect_near("zbv, span", simulate("zbv", "order", "torch", 8, 16).span, 96, 1e-9);
  OPI_ASSERT(simulate("seq1f1b", "slices", "4", 8, 16).peak_least == 1);
}

/* ---- closed formulas ---- */

static void expect_int(const char *what, uint32_t p, uint32_t m, double found, double wanted) {
  if (fabs(found - wanted) > 1e-9)
    OPI_FAIL("%s, %u ranks, %u micro-batches: %.4f, not %.4f", what, p, m, found, wanted);
  else
    OPI_ASSERT(true);
}

static void test_formulas_of_h1_and_h2(void) {
  for (uint32_t p = 1; p <= 9; ++p) {
    for (uint32_t m = 2 * p; m <= 24; m += 3) {
      const lab_times h1 = simulate("zb-h1", NULL, NULL, p, m);
      const lab_times h2 = simulate("zb-h2", NULL, NULL, p, m);
      expect_int("zb-h1, makespan", p, m, h1.makespan, 3 * m + (p - 1));
      expect_int("zb-h2, makespan", p, m, h2.makespan, 3 * m + (p - 1));
      expect_int("zb-h2, span", p, m, h2.span, 3 * m);
      for (uint32_t r = 0; r < p; ++r) { /* W are kept with what they need: the same on all ranks */
        expect_int("zb-h1, stash", p, m, h1.peak[r], p);
        expect_int("zb-h2, stash", p, m, h2.peak[r], 2 * p - 1);
      }
    }
  }
}

/* ZB-H1 under other costs: bubble (p-1)(F + I - W) as long as W is the shortest. */
static void test_formula_of_h1_with_costs(void) {
  static const uint64_t f[4] = {5, 5, 5, 5}, i[4] = {6, 6, 6, 6}, w[4] = {3, 3, 3, 3};
  const lab_costs costs = {.ns = {f, i, w}};
  const lab_request q = {"zb-h1", NULL, NULL, OPIPE_MODE_TRAIN, 4, 0, 12, &costs};
  expect_near("zb-h1", lab_simulate(&q).makespan, 12 * 14 + 3 * (5 + 6 - 3), 1e-9);
}

static void test_formulas_of_vs(void) {
  for (uint32_t p = 1; p <= 9; ++p) {
    for (uint32_t m = 2 * p; m <= 24; m += 3) {
      const lab_times z = simulate("zbv", "order", "torch", p, m);
      expect_int("zbv, makespan", p, m, z.makespan, 6 * m + (p - 1));
      expect_int("zbv, span", p, m, z.span, 6 * m);
      expect_int("zbv, stash", p, m, z.peak_most, 2 * p);
      const lab_times d = simulate("dualpipev", NULL, NULL, p, m);
      expect_int("dualpipev, makespan", p, m, d.makespan, 6 * m + (p - 1));
      expect_int("dualpipev, stash", p, m, d.peak_most, 2 * p + 1);
    }
  }
}

static void test_formulas_of_interleaved(void) {
  for (uint32_t p = 1; p <= 8; ++p) {
    for (uint32_t v = 1; v <= 4; ++v) {
      char chunks[8];
      (void)snprintf(chunks, sizeof chunks, "%u", v);
      for (uint32_t m = p; m <= 24; m += p) {
        const lab_times t = simulate("zb-interleaved", "chunks", chunks, p, m);
        expect_int("zb-interleaved", p, m, t.makespan, 3 * m * v + (p - 1));
      }
    }
  }
}

/* About half and a third of 1F1B's p, as the method's blocks give it. */
static void test_memory_of_blocks(void) {
  for (uint32_t p = 1; p <= 16; ++p) {
    const lab_times half = simulate("v-half", NULL, NULL, p, 24);
    const lab_times least = simulate("v-min", NULL, NULL, p, 24);
    if (half.peak_most > p + 2 || least.peak_most > 2 * ((p + 2) / 3) + 2) {
      OPI_FAIL("%u ranks: v-half keeps %.1f, v-min %.1f stages", p, half.peak_most,
               least.peak_most);
    }
    /* a half, and two thirds, of 1F1B's bubble (p-1)/(m+p-1), and a period of the block */
    OPI_ASSERT(half.makespan <= 6 * 24 + 3 * (p - 1) + 6);
    OPI_ASSERT(least.makespan <= 6 * 24 + 4 * (p - 1) + 6);
  }
}

/* ---- searches ---- */

static void fill(opi_test_random *random, uint64_t *values, uint32_t n, uint64_t least,
                 uint64_t most) {
  for (uint32_t i = 0; i < n; ++i)
    values[i] = least + opi_test_next(random) % (most - least + 1);
}

typedef struct uneven {
  uint64_t f[32], i[32], w[32], hop[32], stash[32], memory[32];
  lab_costs costs;
} uneven;

static void make_uneven(opi_test_random *random, uneven *u, uint64_t hop_most) {
  fill(random, u->f, 32, 50, 150);
  fill(random, u->i, 32, 50, 150);
  fill(random, u->w, 32, 20, 120);
  fill(random, u->hop, 32, 0, hop_most);
  fill(random, u->stash, 32, 80, 120);
  for (uint32_t r = 0; r < 32; ++r)
    u->memory[r] = UINT64_MAX;
  u->costs = (lab_costs){{u->f, u->i, u->w}, u->hop, u->stash, u->memory};
}

/* greedy is never worse than torch's, in time and in memory. */
static void test_greedy_v(void) {
  opi_test_random random = {7};
  static uneven u;
  for (uint32_t round = 0; round < 60; ++round) {
    const uint32_t p = 1 + round % 8, m = 1 + (uint32_t)(opi_test_next(&random) % 18);
    make_uneven(&random, &u, round % 3 * 40);
    const lab_costs *costs = round % 2 == 0 ? &u.costs : NULL;
    const lab_request torch = {"zbv", "order", "torch", OPIPE_MODE_TRAIN, p, 0, m, costs};
    const lab_request greedy = {"zbv", "order", "greedy", OPIPE_MODE_TRAIN, p, 0, m, costs};
    const lab_times a = lab_simulate(&torch), b = lab_simulate(&greedy);
    if (b.makespan > a.makespan || b.peak_most > a.peak_most) {
      OPI_FAIL("%u ranks, %u micro-batches: greedy %.0f (%.0f), torch %.0f (%.0f)", p, m,
               b.makespan, b.peak_most, a.makespan, a.peak_most);
    }
  }
  OPI_ASSERT(simulate("zbv", NULL, NULL, 8, 8).makespan < /* where torch's has holes */
             simulate("zbv", "order", "torch", 8, 8).makespan);
}

/* 1F1B's fullest rank, the unit of zb-auto's limit. */
static double one_f_one_b(const uneven *u, uint32_t p, uint32_t m) {
  double most = 0;
  for (uint32_t r = 0; r < p; ++r) {
    const double held = (double)u->stash[r] * (m < p - r ? m : p - r);
    most = held > most ? held : most;
  }
  return most;
}

static void test_auto_keeps_its_limit(void) {
  static const char *const limits[] = {"1", "1.3", "2", "4"};
  opi_test_random random = {11};
  static uneven u;
  for (uint32_t round = 0; round < 48; ++round) {
    const uint32_t p = 1 + round % 8, m = 1 + (uint32_t)(opi_test_next(&random) % 20);
    double before = 1e300;
    make_uneven(&random, &u, round % 3 * 40);
    for (size_t k = 0; k < sizeof limits / sizeof limits[0]; ++k) {
      const lab_request q = {"zb-auto", "memory", limits[k], OPIPE_MODE_TRAIN, p, 0, m, &u.costs};
      const lab_times t = lab_simulate(&q);
      if (t.peak_most > strtod(limits[k], NULL) * one_f_one_b(&u, p, m) + 1e-6)
        OPI_FAIL("%u ranks, %u micro-batches, memory=%s: keeps %.0f", p, m, limits[k], t.peak_most);
      if (k != 1)
        before = t.makespan < before ? t.makespan : before;
    }
    const lab_request h2 = {"zb-h2", NULL, NULL, OPIPE_MODE_TRAIN, p, 0, m, &u.costs};
    const lab_times two = lab_simulate(&h2);
    const lab_request q = {"zb-auto", "memory", "4", OPIPE_MODE_TRAIN, p, 0, m, &u.costs};
    OPI_ASSERT(lab_simulate(&q).makespan <= two.makespan + 1e-6);
  }
}

/* Equal stages: with 1F1B's memory never longer than ZB-H1, which fits there. */
static void test_auto_beats_h1(void) {
  for (uint32_t p = 1; p <= 9; ++p) {
    for (uint32_t m = 1; m <= 24; m += 5) {
      const double h1 = simulate("zb-h1", NULL, NULL, p, m).makespan;
      const lab_times t = simulate("zb-auto", "memory", "1", p, m);
      OPI_ASSERT(t.makespan <= h1);
      OPI_ASSERT(t.peak_most <= (m < p ? m : p));
    }
  }
}

/* The bytes that the planner left on a rank count as well. */
static void test_rank_memory(void) {
  static uneven u;
  opi_test_random random = {3};
  make_uneven(&random, &u, 0);
  for (uint32_t r = 0; r < 32; ++r)
    u.memory[r] = 300 + 10 * r;
  static const char *const ids[] = {"zb-auto", "zbv"};
  for (size_t k = 0; k < 2; ++k) {
    const lab_request q = {ids[k], NULL, NULL, OPIPE_MODE_TRAIN, 4, 0, 12, &u.costs};
    const lab_times t = lab_simulate(&q);
    for (uint32_t r = 0; r < 4; ++r)
      OPI_ASSERT(t.peak[r] > 0 && t.peak[r] <= (double)u.memory[r]);
  }
}

/* ---- completeness ---- */

static const struct {
  const char *id, *key, *value;
  uint32_t chunks;
} every[] = {{"zb-h1", NULL, NULL, 1},
             {"zb-h2", NULL, NULL, 1},
             {"zb-auto", "memory", "1.5", 1},
             {"zb-interleaved", "chunks", "1", 1},
             {"zb-interleaved", "chunks", "2", 2},
             {"zb-interleaved", "chunks", "5", 5},
             {"zbv", NULL, NULL, 2},
             {"zbv", "order", "torch", 2},
             {"v-half", NULL, NULL, 2},
             {"v-min", NULL, NULL, 2},
             {"dualpipev", NULL, NULL, 2}};

/* lab_simulate fails on what cannot run, is missing, or appears twice. */
static void test_grid(void) {
  static uneven u;
  opi_test_random random = {23};
  for (size_t k = 0; k < sizeof every / sizeof every[0]; ++k) {
    for (uint32_t p = 1; p <= 9; ++p) {
      for (uint32_t m = 1; m <= 24; m += p == 4 || p == 9 ? 1 : 4) {
        make_uneven(&random, &u, 60);
        if (!opi_test_covers(k + p + m, 3))
          continue;
        const lab_costs *costs = (m + p) % 2 == 0 && every[k].chunks * p <= 32 ? &u.costs : NULL;
        const lab_request train = {
            every[k].id, every[k].key, every[k].value, OPIPE_MODE_TRAIN, p, 0, m, costs};
        OPI_ASSERT(lab_simulate(&train).makespan > 0);
        const lab_request forward = {
            every[k].id, every[k].key, every[k].value, OPIPE_MODE_FORWARD, 0, p * every[k].chunks,
            m,           costs};
        OPI_ASSERT(lab_simulate(&forward).makespan > 0);
      }
    }
  }
}

static void test_large(void) {
  static const char *const ids[] = {"zb-auto", "zbv", "v-half"};
  for (size_t k = 0; k < opi_test_covered(3, 3); ++k) {
    const lab_times t = simulate(ids[k], NULL, NULL, 64, 256);
    OPI_ASSERT(t.bubble < 0.35);
  }
}

/* The last rank of a V starts p - 1 later, and its last forward has p - 1 hops to go. */
static void test_forward_form(void) {
  for (uint32_t p = 1; p <= 9; ++p) {
    const lab_request v = {"zbv", NULL, NULL, OPIPE_MODE_FORWARD, p, 0, 20, NULL};
    expect_int("zbv, forward", p, 20, lab_simulate(&v).makespan, 2 * 20 + 2 * (p - 1));
    const lab_request loop = {
        "zb-interleaved", "chunks", "2", OPIPE_MODE_FORWARD, p, 0, 2 * p, NULL};
    expect_int("zb-interleaved, forward", p, 2 * p, lab_simulate(&loop).makespan, 5 * p - 1);
  }
}

/* Chunks follow from ranks and stages where both are given. */
static void test_default_chunks(void) {
  static asked_order o;
  lab_request q = {"zb-interleaved", NULL, NULL, OPIPE_MODE_TRAIN, 2, 6, 4, NULL};
  OPI_ASSERT_OK(lab_ask(&q, &o), &asked_err);
  OPI_ASSERT_INT(o.layout.n_stages, 6);
  asked_end(&o);
  q.n_stages = 0;
  OPI_ASSERT_OK(lab_ask(&q, &o), &asked_err);
  OPI_ASSERT_INT(o.layout.n_stages, 4);
  asked_end(&o);
  q.n_stages = 5;
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err, "5 stages on 2 ranks do not fit");
  asked_end(&o);
}

/* ---- errors ---- */

static void test_errors(void) {
  static asked_order o;
  static const uint64_t tight[4] = {100, 1, 100, 100};
  const lab_costs costs = {.memory = tight};
  lab_request q = {"zb-auto", NULL, NULL, OPIPE_MODE_TRAIN, 4, 8, 4, NULL};
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err, "8 stages on 4 ranks");
  q = (lab_request){"zbv", NULL, NULL, OPIPE_MODE_TRAIN, 0, 7, 4, NULL};
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err,
                   "7 stages are not a multiple of 2");
  q = (lab_request){"zb-interleaved", "chunks", "0", OPIPE_MODE_TRAIN, 2, 0, 4, NULL};
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err, "chunks=0");
  q = (lab_request){"zb-auto", "memory", "0.1", OPIPE_MODE_TRAIN, 4, 0, 4, NULL};
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err, "one micro-batch keeps 1 bytes");
  q = (lab_request){"zb-auto", "memory", "many", OPIPE_MODE_TRAIN, 4, 0, 4, NULL};
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err, "memory=many");
  q = (lab_request){"zbv", NULL, NULL, OPIPE_MODE_TRAIN, 4, 0, 4, &costs};
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err,
                   "2 bytes on rank 1, which may hold 1");
  q.id = "v-half";
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err,
                   "bytes on rank 1, which may hold 1");
  q.mode = 7;
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_UNSUPPORTED, &asked_err, "mode 7");
  asked_end(&o);
}

/* Plans leave no memory behind, and the costs of hostile plans do not overflow. */
static void test_memory_and_extremes(void) {
  static uint64_t huge[32];
  asked_order o;
  for (uint32_t i = 0; i < 32; ++i)
    huge[i] = UINT64_MAX - i;
  const lab_costs costs = {{huge, huge, huge}, huge, huge, NULL};
  for (size_t k = 0; k < sizeof every / sizeof every[0]; ++k) {
    (void)simulate(every[k].id, every[k].key, every[k].value, 2, 2);
    const uint64_t before = asked_live_bytes;
    const lab_request q = {every[k].id, every[k].key, every[k].value, OPIPE_MODE_TRAIN, 3, 0,
                           7,           &costs};
    OPI_ASSERT_OK(lab_ask(&q, &o), &asked_err);
    const lab_times t = lab_run(&o, NULL);
    OPI_ASSERT_INT(t.n_left + t.n_wrong + t.n_missing, 0);
    OPI_ASSERT_INT(asked_live_bytes, before);
    asked_end(&o);
  }
}

/* Every allocation fails once: said as such, and nothing is left behind. */
static void test_no_memory(void) {
  static asked_order o;
  static const lab_request all[] = {
      {"zb-h1", NULL, NULL, OPIPE_MODE_TRAIN, 3, 0, 5, NULL},
      {"zb-auto", "memory", "2", OPIPE_MODE_TRAIN, 3, 0, 5, NULL},
      {"v-half", NULL, NULL, OPIPE_MODE_TRAIN, 3, 0, 5, NULL},
      {"dualpipev", NULL, NULL, OPIPE_MODE_TRAIN, 3, 0, 5, NULL},
      {"terapipe", "lengths", "5+4+3+2+1", OPIPE_MODE_TRAIN, 3, 0, 5, NULL},
  };
  for (size_t k = 0; k < sizeof all / sizeof all[0]; ++k) {
    (void)asked_open(all[k].id);
    const uint64_t before = asked_live_bytes;
    uint64_t n = 1;
    for (;; ++n) {
      asked_fail_at = n;
      const opipe_status status = lab_ask(&all[k], &o);
      const bool failed = asked_fail_at == 0;
      asked_fail_at = 0;
      asked_end(&o);
      if (!failed) {
        OPI_ASSERT_OK(status, &asked_err);
        break;
      }
      OPI_ASSERT_INT(status, OPIPE_E_NOMEM);
      OPI_ASSERT(asked_err.message[0] != '\0');
      OPI_ASSERT_INT(asked_live_bytes, before);
    }
    OPI_ASSERT(n > 1);
  }
}

OPI_TEST_MAIN("zero-bubble schedules", OPI_TEST(test_tables), OPI_TEST(test_reference_points),
              OPI_TEST(test_formulas_of_h1_and_h2), OPI_TEST(test_formula_of_h1_with_costs),
              OPI_TEST(test_formulas_of_vs), OPI_TEST(test_formulas_of_interleaved),
              OPI_TEST(test_memory_of_blocks), OPI_TEST(test_greedy_v),
              OPI_TEST(test_auto_keeps_its_limit), OPI_TEST(test_auto_beats_h1),
              OPI_TEST(test_rank_memory), OPI_TEST(test_grid), OPI_TEST(test_large),
              OPI_TEST(test_forward_form), OPI_TEST(test_default_chunks), OPI_TEST(test_errors),
              OPI_TEST(test_memory_and_extremes), OPI_TEST(test_no_memory))
