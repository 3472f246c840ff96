/* SPDX-License-Identifier: Apache-2.0 */
/* Makespans, bubbles and stashes: the figures computed for the papers' orders, and their closed
 * formulas over a grid of ranks, micro-batches and chunks.
 */
#include <math.h>

#include "tests/plugins/schedules/kit.h"

static void expect(const char *what, uint32_t d, uint32_t n, double found, double wanted) {
  if (fabs(found - wanted) > 1e-9)
    OPI_FAIL("%s, %u ranks, %u micro-batches: %.6f, not %.6f", what, d, n, found, wanted);
  else
    OPI_ASSERT(true);
}

/* F = 1, B = 2, equal stages; without and with messages of 1/4. */
static void test_regression_makespans(void) {
  static const struct {
    const char *schedule;
    uint32_t d, n;
    double free, quarter;
  } rows[] = {
      {"1f1b", 4, 4, 21, 23.5},
      {"1f1b", 4, 8, 33, 37},
      {"1f1b", 8, 8, 45, 51.5},
      {"1f1b", 8, 32, 117, 134},
      {"gpipe", 4, 4, 21, 22.5},
      {"gpipe", 4, 8, 33, 34.5},
      {"gpipe", 8, 8, 45, 48.5},
      {"gpipe", 8, 32, 117, 120.5},
      {"chimera", 4, 4, 16, 17.75},
      {"chimera", 4, 8, 30, 32.75},
      {"chimera", 8, 8, 36, 40.75},
      {"chimera", 8, 32, 126, 139.75},
      {"chimera:concat=doubling", 4, 8, 27, 28.75},
      {"chimera:concat=doubling", 8, 32, 105, 114.5},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    const uint32_t d = rows[i].d, n = rows[i].n;
    expect(rows[i].schedule, d, n, kit_simulate(rows[i].schedule, d, n, 1, 2, 0).makespan,
           rows[i].free);
    expect(rows[i].schedule, d, n, kit_simulate(rows[i].schedule, d, n, 1, 2, 0.25).makespan,
           rows[i].quarter);
  }
}

/* D = 4, N = 64: policy PA pays for every hop, policy PB hides it. */
static void test_policies_under_latency(void) {
  static const struct {
    double hop, pa, pb;
  } rows[] = {{0, 201, 201}, {0.1, 211, 201.6}, {0.3, 231, 202.8}, {1, 301, 207}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    const double pa = kit_simulate("1f1b:policy=pa", 4, 64, 1, 2, rows[i].hop).makespan;
    const double pb = kit_simulate("1f1b:policy=pb", 4, 64, 1, 2, rows[i].hop).makespan;
    OPI_ASSERT(fabs(pa - rows[i].pa) < 1); /* printed to three digits */
    OPI_ASSERT(fabs(pb - rows[i].pb) < 1);
  }
}

static void test_one_forward_one_backward(void) {
  static const char *const names[] = {"1f1b", "1f1b:policy=pb", "1f1b:eager=1", "gpipe"};
  for (uint32_t kind = 0; kind < 4; ++kind) {
    for (uint32_t s = 1; s <= 9; ++s) {
      for (uint32_t m = 1; m <= 20; ++m) {
        const kit_times t = kit_simulate(names[kind], s, m, 1, 2, 0);
        expect(names[kind], s, m, t.makespan, 3.0 * (m + s - 1));
        expect("bubble", s, m, t.bubble, (s - 1.0) / (m + s - 1.0));
        for (uint32_t i = 0; i < s; ++i) {
          const uint32_t most = kind == 0 ? s - i : kind == 3 ? m : 2 * (s - i) - 1;
          expect(names[kind], s, m, t.peak[i], most < m ? most : m);
        }
      }
    }
  }
}

/* The last backward of one precedes the first forward of the next. */
static void test_sequential(void) {
  for (uint32_t s = 1; s <= 9; ++s) {
    const kit_times t = kit_simulate("sequential", s, 5, 1, 2, 0.5);
    expect("sequential", s, 5, t.makespan, 5 * (3.0 * s + s - 1));
    for (uint32_t i = 0; i < s; ++i)
      expect("sequential", s, 5, t.peak[i], 1);
  }
}

/* Costs of a stage are 1/v of a rank's. */
static void test_interleaved(void) {
  static const struct {
    uint32_t p, m, v;
    double makespan, last, first; /* stash of the last and of the first rank, in whole ranks */
  } rows[] = {{4, 8, 2, 28.5, 2.5, 5.5},       {4, 4, 2, 16.5, 4, 4},
              {8, 32, 4, 101.25, 6.25, 9.75},  {12, 12, 4, 44.25, 12, 12},
              {12, 24, 4, 80.25, 9.25, 14.75}, {12, 60, 4, 188.25, 9.25, 14.75}};
  char name[64];
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    const uint32_t p = rows[i].p, m = rows[i].m, v = rows[i].v;
    (void)snprintf(name, sizeof name, "interleaved:chunks=%u", v);
    const kit_times t = kit_simulate(name, p, m, 1.0 / v, 2.0 / v, 0);
    expect(name, p, m, t.makespan, rows[i].makespan);
    expect(name, p, m, t.peak[p - 1] / v, rows[i].last);
    expect(name, p, m, t.peak[0] / v, rows[i].first);
  }
}

/* Where m is not p, a rank stashes W + 1 stages, of which there are m v. */
static void check_interleaved_stashes(const char *name, uint32_t p, uint32_t v, uint32_t m,
                                      const kit_times *t) {
  for (uint32_t r = 0; r < p && v > 1 && m != p; ++r) {
    const uint32_t g = (m + m / p - 1) / (m / p); /* the larger groups */
    const uint32_t w = 2 * (p - r - 1) + (v - 1) * g + 1;
    expect(name, p, m, t->peak[r], w < m * v ? w : m * v);
  }
}

static void test_interleaved_formula(void) {
  static const char *const kinds[] = {"interleaved:chunks=%u", "interleaved:chunks=%u,warmup=torch",
                                      "looped-bfs:chunks=%u"};
  char name[64];
  for (uint32_t kind = 0; kind < 3; ++kind) {
    for (uint32_t p = 1; p <= 9; ++p) {
      for (uint32_t v = 1; v <= 4; ++v) {
        for (uint32_t m = p; m <= 5 * p; ++m) {
          (void)snprintf(name, sizeof name, kinds[kind], v);
          const kit_times t = kit_simulate(name, p, m, 1.0 / v, 2.0 / v, 0);
          expect(name, p, m, t.makespan, 3.0 * (m + (p - 1.0) / v));
          check_interleaved_stashes(name, p, kind == 0 ? v : 1, m, &t);
        }
      }
    }
  }
}

/* Groups below p keep fewer activations: p - r - 1 + (v - 1) g + 1 of them. */
static void test_narrow_groups(void) {
  char name[64];
  for (uint32_t g = 4; g < 8; ++g) {
    (void)snprintf(name, sizeof name, "interleaved:chunks=2,group=%u", g);
    const kit_times t = kit_simulate(name, 8, 16, 0.5, 1, 0);
    for (uint32_t r = 0; r < 8; ++r)
      expect(name, 8, 16, t.peak[r], 8 - r + g);
  }
}

/* N = D. F = B: 2 N + D - 2 slots. B = 2 F: D forwards and 2 D - 2 backwards. 2 f pipelines: 2 D +
 * D / f - 2 slots, which is none idle at f = D / 2. */
static void test_chimera_one_unit(void) {
  char name[64];
  for (uint32_t d = 2; d <= 32; d += 2) {
    const kit_times even = kit_simulate("chimera", d, d, 1, 1, 0);
    const kit_times t = kit_simulate("chimera", d, d, 1, 2, 0);
    expect("chimera", d, d, even.makespan, 3.0 * d - 2);
    expect("chimera", d, d, t.makespan, d + 2 * (2.0 * d - 2));
    for (uint32_t r = 0; r < d; ++r)
      expect("chimera stash", d, d, t.peak[r], r < d / 2 ? d / 2 + 1 + r : 3 * d / 2 - r);
    for (uint32_t f = 1; f <= d / 2; ++f) {
      if (d / 2 % f != 0)
        continue;
      (void)snprintf(name, sizeof name, "chimera:pipelines=%u", 2 * f);
      const kit_times many = kit_simulate(name, d, d, 1, 1, 0);
      expect(name, d, d, many.makespan, 2.0 * d + d / f - 2);
      expect(name, d, d, many.bubble, (d - 2.0 * f) / (2.0 * f * d + d - 2 * f));
      for (uint32_t r = 0; r < d; ++r)
        OPI_ASSERT(many.peak[r] >= d - d / (2 * f) + 1 && many.peak[r] <= d);
    }
  }
}

/* Idle share with B = 2 F and N = D. */
static void test_chimera_bubbles(void) {
  static const struct {
    uint32_t d, pipelines;
    double idle;
  } rows[] = {{4, 2, 0.250},  {6, 2, 0.308},  {8, 2, 0.333},   {16, 2, 0.368}, {32, 2, 0.385},
              {32, 4, 0.226}, {32, 8, 0.111}, {32, 16, 0.040}, {32, 32, 0}};
  char name[64];
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    (void)snprintf(name, sizeof name, "chimera:pipelines=%u", rows[i].pipelines);
    const double idle = kit_simulate(name, rows[i].d, rows[i].d, 1, 2, 0).bubble;
    OPI_ASSERT(fabs(idle - rows[i].idle) < 0.0006);
  }
}

/* N > D. Direct: D + 2 (2 D - 2), then 2 (2 D - 2) + 2 for each unit more. Doubling: 3 N + 1.5 (D -
 * 2), twice the stash. Halving: 3 N + D - 2, no more stash. */
static void test_chimera_many_units(void) {
  for (uint32_t d = 2; d <= 16; d += 2) {
    for (uint32_t units = 2; units <= 5; ++units) {
      expect("direct", d, units * d, kit_simulate("chimera", d, units * d, 1, 2, 0).makespan,
             d + 2 * (2.0 * d - 2) + (units - 1) * (2 * (2.0 * d - 2) + 2));
      expect("direct, F = B", d, units * d, kit_simulate("chimera", d, units * d, 1, 1, 0).makespan,
             2.0 * units * d + d - 2);
      const uint32_t n = 2 * units * d;
      const kit_times twice = kit_simulate("chimera:concat=doubling", d, n, 1, 2, 0);
      expect("doubling", d, n, twice.makespan, 3.0 * n + 1.5 * (d - 2));
      const kit_times half = kit_simulate("chimera:concat=halving", d, units * d, 1, 2, 0);
      expect("halving", d, units * d, half.makespan, 3.0 * units * d + d - 2);
      for (uint32_t r = 0; r < d; ++r) {
        OPI_ASSERT(twice.peak[r] <= 2 * d);
        OPI_ASSERT(half.peak[r] <= d + 0.5);
      }
    }
  }
}

OPI_TEST_MAIN("makespans of schedules", OPI_TEST(test_regression_makespans),
              OPI_TEST(test_policies_under_latency), OPI_TEST(test_one_forward_one_backward),
              OPI_TEST(test_sequential), OPI_TEST(test_interleaved),
              OPI_TEST(test_interleaved_formula), OPI_TEST(test_narrow_groups),
              OPI_TEST(test_chimera_one_unit), OPI_TEST(test_chimera_bubbles),
              OPI_TEST(test_chimera_many_units))
