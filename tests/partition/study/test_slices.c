/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of token slices: the search against all slicings of short sequences, its stated distance
 * under a step, batches in groups, the published tables, fits of what a context costs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "partition/study/planners/slices.h"
#include "tests/support/support.h"

enum { TOKENS_MOST = 8192 };

static opipe_error err = OPIPE_ERROR_INIT;

/* ---- against brute force ---- */

/* All ways to cut `units` units, as bits between them. */
static void one_group(const opi_slice_times *times, uint32_t units, uint32_t unit, uint32_t bits,
                      double *out_sum, double *out_longest) {
  uint32_t first = 0;
  *out_sum = *out_longest = 0;
  for (uint32_t b = 1; b <= units; ++b) {
    if (b < units && (bits >> (b - 1) & 1) == 0)
      continue;
    const double time = opi_slice_time(times, (b - first) * unit, first * unit);
    *out_sum += time;
    *out_longest = time > *out_longest ? time : *out_longest;
    first = b;
  }
}

/* Rows left, with what is so far: the best total. Groups of one size are cut alike in a best plan.
 */
static double brute(const opi_slice_problem *p, uint32_t units, uint32_t left, double sum,
                    double longest) {
  double best = INFINITY;
  if (left == 0)
    return sum + (p->n_stages - 1.0) * longest;
  for (uint32_t r = 1; r <= left; ++r) {
    for (uint32_t bits = 0; p->times[r - 1] != NULL && bits < 1u << (units - 1); ++bits) {
      double s, l;
      one_group(p->times[r - 1], units, p->unit, bits, &s, &l);
      const double total = brute(p, units, left - r, sum + s, l > longest ? l : longest);
      best = total < best ? total : best;
    }
  }
  return best;
}

static void check_slicing(const opi_slice_problem *p, const opi_slicing *s) {
  double sum = 0, longest = 0;
  uint32_t rows = 0;
  for (uint32_t g = 0; g < s->n_groups; ++g) {
    uint32_t tokens = 0;
    for (uint32_t k = 0; k < s->groups[g].n_slices; ++k) {
      const uint32_t length = s->groups[g].lengths[k];
      const double time = opi_slice_time(p->times[s->groups[g].rows - 1], length, tokens);
      OPI_ASSERT(length > 0 && tokens % p->unit == 0);
      tokens += length;
      sum += time;
      longest = time > longest ? time : longest;
    }
    OPI_ASSERT_INT(tokens, p->n_tokens);
    rows += s->groups[g].rows;
  }
  OPI_ASSERT_INT(rows, p->n_rows);
  OPI_ASSERT(fabs(sum - s->sum) <= 1e-9 * sum && longest == s->longest);
  OPI_ASSERT(fabs(s->total - s->sum - (p->n_stages - 1.0) * s->longest) <= 1e-9 * s->total);
}

static void random_times(opi_test_random *random, double *alone, uint32_t tokens,
                         opi_slice_times *out) {
  alone[0] = NAN; /* not to be read */
  for (uint32_t l = 1; l <= tokens; ++l)
    alone[l] = opi_test_uniform(random, 0.1, 4) + 0.3 * l;
  *out = (opi_slice_times){alone,
                           {{opi_test_uniform(random, 0, 1), opi_test_uniform(random, 0, 0.2),
                             opi_test_uniform(random, 0, 0.2), opi_test_uniform(random, 0, 0.1)}}};
}

static void test_brute_force(void) {
  opi_test_random random = {1};
  static double alone[3][32];
  for (uint32_t round = 0; round < 120; ++round) {
    opi_slice_times times[3];
    const opi_slice_times *which[3] = {&times[0], &times[1], &times[2]};
    const uint32_t units = 1 + round % 6, rows = 1 + round % 3;
    for (uint32_t r = 0; r < 3; ++r)
      random_times(&random, alone[r], units * 2, &times[r]);
    which[1] = round % 4 == 0 ? NULL : which[1];
    opi_slice_problem p = {units * 2, 2, 1 + round % 9, rows, which, 0};
    opi_slicing s;
    OPI_ASSERT_OK_FATAL(opi_slices_plan(&p, opi_allocator_system(), &s, &err), &err);
    const double best = brute(&p, units, rows, 0, 0);
    if (fabs(s.total - best) > 1e-9 * best) {
      OPI_FAIL("%u units, %u rows, %u stages: %.9f, best %.9f", units, rows, p.n_stages, s.total,
               best);
    }
    check_slicing(&p, &s);
    opi_slicing_free(&s);
    p.step = opi_test_uniform(&random, 0, 2);
    OPI_ASSERT_OK_FATAL(opi_slices_plan(&p, opi_allocator_system(), &s, &err), &err);
    OPI_ASSERT(s.total <= best + (p.n_stages - 1.0) * p.step + 1e-9 && s.total >= best - 1e-9);
    opi_slicing_free(&s);
  }
}

/* ---- shapes of plans ---- */

static double alone[TOKENS_MOST + 1];

/* One row at a time: a fixed part, a part per token, and attention to what stands before. */
static opi_slice_times affine(double fixed, double token, double pair) {
  for (uint32_t l = 1; l <= TOKENS_MOST; ++l)
    alone[l] = fixed + token * l + pair * (double)l * l;
  return (opi_slice_times){alone, {{0, 0, 0, pair}}};
}

static opi_slicing plan_one(const opi_slice_times *times, uint32_t tokens, uint32_t unit,
                            uint32_t stages, uint32_t rows, double step) {
  static const opi_slice_times *which[128];
  opi_slicing s;
  memset(&s, 0, sizeof s);
  which[0] = times;
  const opi_slice_problem p = {tokens, unit, stages, rows, which, step};
  OPI_ASSERT_OK_FATAL(opi_slices_plan(&p, opi_allocator_system(), &s, &err), &err);
  check_slicing(&p, &s);
  return s;
}

static double even_total(const opi_slice_times *times, uint32_t tokens, uint32_t unit,
                         uint32_t stages, uint32_t rows, uint32_t n) {
  static const opi_slice_times *which[128];
  opi_slicing s;
  which[0] = times;
  const opi_slice_problem p = {tokens, unit, stages, rows, which, 0};
  OPI_ASSERT_OK_FATAL(opi_slices_even(&p, n, opi_allocator_system(), &s, &err), &err);
  check_slicing(&p, &s);
  const double total = s.total;
  opi_slicing_free(&s);
  return total;
}

/* A later slice sees more tokens: it is not longer than the one before. */
static void test_later_slices_are_shorter(void) {
  const opi_slice_times times = affine(0.5, 0.01, 1e-5);
  opi_slicing s = plan_one(&times, 2048, 16, 24, 4, 0.05);
  const opi_slice_group *g = &s.groups[0];
  OPI_ASSERT(g->n_slices > 2 && g->lengths[0] > g->lengths[g->n_slices - 1]);
  for (uint32_t k = 1; k < g->n_slices; ++k)
    OPI_ASSERT(g->lengths[k] <= g->lengths[k - 1] + 16); /* a unit of rounding */
  for (uint32_t n = 1; n <= 32; n *= 2)
    OPI_ASSERT(s.total <= even_total(&times, 2048, 16, 24, 4, n) + 23 * 0.05);
  opi_slicing_free(&s);
}

/* Without a pipeline a cut only costs; where a slice costs nothing by itself the finest cut wins.
 */
static void test_extremes(void) {
  opi_slice_times times = affine(1, 0.01, 0);
  opi_slicing s = plan_one(&times, 1000, 7, 1, 3, 0);
  OPI_ASSERT_INT(s.n_groups, 3);
  OPI_ASSERT_INT(s.groups[0].n_slices, 1);
  opi_slicing_free(&s);
  times = affine(0, 0.01, 0);
  s = plan_one(&times, 100, 7, 9, 2, 0);
  OPI_ASSERT_INT(s.groups[0].n_slices, 15);
  OPI_ASSERT(fabs(s.total - (2 * 1.0 + 8 * 0.07)) < 1e-9);
  opi_slicing_free(&s);
  times = affine(3, 0.01, 0);
  s = plan_one(&times, 1, 64, 9, 2, 0);
  OPI_ASSERT_INT(s.groups[0].lengths[0], 1);
  opi_slicing_free(&s);
}

/* ---- the paper's tables ---- */

/* GPT3-175B, 96 stages, batch 2, 2048 tokens: seconds of even slicings. In n slices of l tokens an
 * iteration takes (2 n + 95) t(l), which gives t at eight lengths. */
static void test_table_of_175b(void) {
  static const struct {
    uint32_t slices;
    double seconds;
  } rows[] = {{128, 3.252}, {64, 2.227}, {32, 1.593}, {16, 1.547},
              {8, 1.892},   {4, 2.902},  {1, 9.990}};
  static const uint32_t published[19] = {120, 120, 120, 120, 112, 112, 112, 112, 112, 112,
                                         104, 104, 104, 104, 104, 104, 104, 104, 64};
  double length[7], time[7];
  for (size_t i = 0; i < 7; ++i) {
    length[i] = 2048.0 / rows[i].slices;
    time[i] = 1e3 * rows[i].seconds / (2.0 * rows[i].slices + 95);
  }
  for (uint32_t l = 1; l <= 2048; ++l) {
    size_t k = 1;
    while (k < 6 && l > length[k])
      ++k;
    const double at = (l - length[k - 1]) / (length[k] - length[k - 1]);
    alone[l] = l <= length[0] ? time[0] : time[k - 1] + at * (time[k] - time[k - 1]);
  }
  const opi_slice_times times = {alone, {{0, 0, 0, 0}}};
  for (size_t i = 0; i < 7; ++i) {
    OPI_ASSERT(fabs(even_total(&times, 2048, 8, 96, 2, rows[i].slices) / 1e3 / rows[i].seconds -
                    1) < 1e-9);
  }
  opi_slicing s = plan_one(&times, 2048, 8, 96, 2, 0.01);
  double sum = 0, longest = 0;
  for (uint32_t k = 0; k < 19; ++k) {
    sum += 2 * alone[published[k]];
    longest = alone[published[k]] > longest ? alone[published[k]] : longest;
  }
  printf("    175b: %u slices of %u.., %.3f s; published %.3f s by these times, 1.481 measured\n",
         s.groups[0].n_slices, s.groups[0].lengths[0], s.total / 1e3, (sum + 95 * longest) / 1e3);
  OPI_ASSERT(s.total <= sum + 95 * longest + 95 * 0.01);
  OPI_ASSERT(fabs(s.total / 1e3 / 1.481 - 1) < 0.05);
  OPI_ASSERT(s.total <= 1547 + 95 * 0.01); /* the best even one */
  opi_slicing_free(&s);
}

/* GPT3-13B, 40 stages: seconds without slices give t of whole sequences, to which a fixed part, a
 * part per token and one per pair of tokens are fitted; the search then gives seconds with slices.
 */
static void test_table_of_lengths(void) {
  static const struct {
    uint32_t tokens, rows;
    double without, with;
  } rows[] = {{2048, 32, 1.863, 1.328},
              {4096, 8, 2.526, 0.913},
              {6144, 4, 3.754, 0.756},
              {8192, 2, 4.978, 0.636}};
  const double fixed =
      3.0; /* ms, what a slice costs however short: the one number that is chosen here */
  double a = 0, b = 0, c = 0, d = 0, e = 0;
  for (size_t i = 0; i < 4; ++i) { /* relative least squares for the other two */
    const double t = 1e3 * rows[i].without / (rows[i].rows + 39), x = rows[i].tokens / t;
    const double y = x * rows[i].tokens, z = (t - fixed) / t;
    a += x * x;
    b += x * y;
    c += y * y;
    d += x * z;
    e += y * z;
  }
  const double token = (d * c - e * b) / (a * c - b * b), pair = (a * e - b * d) / (a * c - b * b);
  const opi_slice_times times = affine(fixed, token, pair);
  double before = 0;
  for (size_t i = 0; i < 4; ++i) {
    opi_slicing s = plan_one(&times, rows[i].tokens, 32, 40, rows[i].rows, 0.05);
    const double whole = even_total(&times, rows[i].tokens, 32, 40, rows[i].rows, 1);
    printf("    13b, %u tokens: %.3f -> %.3f s in %u slices; measured %.3f -> %.3f\n",
           rows[i].tokens, whole / 1e3, s.total / 1e3, s.groups[0].n_slices, rows[i].without,
           rows[i].with);
    OPI_ASSERT(fabs(whole / 1e3 / rows[i].without - 1) < 0.05);
    OPI_ASSERT(fabs(s.total / 1e3 / rows[i].with - 1) < 0.10);
    OPI_ASSERT(whole / s.total > before); /* the longer the sequences, the more it gives */
    before = whole / s.total;
    opi_slicing_free(&s);
  }
}

/* ---- fit ---- */

static void test_fit(void) {
  static const double wanted[4] = {0.2, 3e-4, -2e-5, 4e-7};
  opi_slice_sample samples[40];
  opi_test_random random = {9};
  uint32_t n = 0;
  for (uint32_t l = 64; l <= 512; l += 64) {
    for (uint32_t c = 128; c <= 2048; c *= 2) {
      samples[n++] =
          (opi_slice_sample){l, c, wanted[0] + wanted[1] * l + wanted[2] * c + wanted[3] * l * c};
    }
  }
  opi_slice_context found;
  OPI_ASSERT_OK_FATAL(opi_slices_fit(samples, n, &found, &err), &err);
  for (uint32_t k = 0; k < 4; ++k)
    OPI_ASSERT(fabs(found.at[k] / wanted[k] - 1) < 1e-6);
  for (uint32_t i = 0; i < n; ++i) /* a measurement's noise */
    samples[i].extra *= opi_test_uniform(&random, 0.98, 1.02);
  OPI_ASSERT_OK_FATAL(opi_slices_fit(samples, n, &found, &err), &err);
  for (uint32_t i = 0; i < n; ++i) {
    static const double nothing[513];
    const opi_slice_times times = {nothing, found};
    OPI_ASSERT(fabs(opi_slice_time(&times, samples[i].length, samples[i].context) -
                    samples[i].extra) < 0.05 * samples[i].extra);
  }
  OPI_ASSERT_ERROR(opi_slices_fit(samples, 3, &found, &err), OPIPE_E_INVALID, &err, "3 samples");
  OPI_ASSERT_ERROR(opi_slices_fit(samples, 5, &found, &err), OPIPE_E_INVALID, &err, /* one length */
                   "5 samples do not tell apart");
}

/* ---- errors ---- */

static void refuse(const opi_slice_problem *p, opipe_status status, const char *part) {
  opi_slicing s = {.groups = NULL};
  OPI_ASSERT_ERROR(opi_slices_plan(p, opi_allocator_system(), &s, &err), status, &err, part);
  OPI_ASSERT(s.groups == NULL);
}

static void test_errors(void) {
  opi_slice_times times = affine(1, 1, 0);
  const opi_slice_times *none[3] = {NULL, NULL, NULL}, *one[3] = {&times, NULL, NULL};
  const opi_slice_times *two[3] = {NULL, &times, NULL};
  refuse(&(opi_slice_problem){0, 8, 4, 1, one, 0}, OPIPE_E_INVALID, "0 tokens");
  refuse(&(opi_slice_problem){64, 0, 4, 1, one, 0}, OPIPE_E_INVALID, "units of 0");
  refuse(&(opi_slice_problem){64, 8, 0, 1, one, 0}, OPIPE_E_INVALID, "0 stages");
  refuse(&(opi_slice_problem){64, 8, 4, 0, one, 0}, OPIPE_E_INVALID, "0 rows");
  refuse(&(opi_slice_problem){64, 8, 4, 1, one, NAN}, OPIPE_E_INVALID, "step nan");
  refuse(&(opi_slice_problem){8192, 1, 4, 1, one, 0}, OPIPE_E_LIMIT, "more than 4096 units");
  refuse(&(opi_slice_problem){64, 8, 4, 3, none, 0}, OPIPE_E_INVALID, "no number of rows of 3");
  refuse(&(opi_slice_problem){64, 8, 4, 3, two, 0}, OPIPE_E_INVALID, "3 rows are not a sum");
  const opi_slice_problem even = {64, 8, 4, 3, one, 0};
  opi_slicing s = {.groups = NULL};
  OPI_ASSERT_ERROR(opi_slices_even(&even, 9, opi_allocator_system(), &s, &err), OPIPE_E_INVALID,
                   &err, "9 even slices of 8 units");
  alone[16] = 0;
  refuse(&(opi_slice_problem){64, 8, 4, 1, one, 0}, OPIPE_E_INVALID,
         "16 tokens after 0 of 1 rows take 0");
  alone[16] = INFINITY;
  refuse(&(opi_slice_problem){64, 8, 4, 1, one, 0}, OPIPE_E_INVALID, "16 tokens after 0");
  opi_slicing_free(&s);
}

/* ---- memory ---- */

static opipe_status plan_in(opi_test_memory *memory, void *arg) {
  opi_slicing s;
  const opipe_status status = opi_slices_plan(arg, &memory->allocator, &s, &err);
  if (status == OPIPE_OK)
    opi_slicing_free(&s);
  return status;
}

static void test_no_memory(void) {
  opi_slice_times times = affine(1, 1, 0);
  const opi_slice_times *which[3] = {&times, &times, NULL};
  opi_slice_problem p = {512, 4, 4, 3, which, 1};
  OPI_ASSERT(opi_test_every_allocation(plan_in, &p, 100) > 2);
}

OPI_TEST_MAIN("slices", OPI_TEST(test_brute_force), OPI_TEST(test_later_slices_are_shorter),
              OPI_TEST(test_extremes), OPI_TEST(test_table_of_175b),
              OPI_TEST(test_table_of_lengths), OPI_TEST(test_fit), OPI_TEST(test_errors),
              OPI_TEST(test_no_memory))
