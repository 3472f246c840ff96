/* SPDX-License-Identifier: Apache-2.0 */
/* The search by exact bytes against all cuts of small random models, whose exact bytes are off from
 * what is estimated: stages on ranks of their own, folded onto ranks, in turn, and in two
 * directions.
 */
#include <math.h>

#include "partition/search/fit.h"
#include "tests/support/support.h"

enum { PARTS = 12, STAGES = 8, RANKS = 4, ROUNDS = 40, JUDGMENTS = 48 };

enum { LINE, FOLD, TURNS, BOTH, N_LAYOUTS };

typedef struct model {
  opi_parts_run runs[PARTS * (PARTS + 1)];
  double ns_before[PARTS + 1];
  const opi_parts_run *rank_runs[RANKS];
  const double *stage_ns[STAGES];
  uint32_t instance_rank[STAGES * 2];
  uint64_t caps[RANKS], fixed[RANKS];
  double held[STAGES * 2], wanted_held[STAGES * 2];
  double noise[PARTS + 1];
  uint32_t n_asked;
  opi_fit_problem problem;
} model;

static void lay_out(model *m, uint32_t layout) {
  opi_fit_problem *p = &m->problem;
  p->n_ranks = RANKS;
  p->n_stages = layout == FOLD || layout == TURNS ? 2 * RANKS : RANKS;
  p->n_replicas = layout == BOTH ? 2 : 1;
  for (uint32_t i = 0; i < p->n_stages * p->n_replicas; ++i) {
    const uint32_t s = i / p->n_replicas, last = p->n_stages - 1;
    const bool back = layout == BOTH ? i % 2 == 1 : layout == FOLD && s >= RANKS;
    m->instance_rank[i] = (back ? last - s : s) % RANKS;
  }
}

static void make(model *m, uint32_t layout, opi_test_random *random) {
  memset(m, 0, sizeof *m);
  m->problem = (opi_fit_problem){.allocator = opi_allocator_system(),
                                 .n_parts = PARTS,
                                 .instance_rank = m->instance_rank,
                                 .caps_bytes = m->caps,
                                 .runs = m->rank_runs,
                                 .ns_before = m->stage_ns,
                                 .held = m->held,
                                 .judgments_most = JUDGMENTS,
                                 .ctx = m};
  lay_out(m, layout);
  opi_parts_run parts[PARTS];
  for (uint32_t k = 0; k < PARTS; ++k) {
    const uint64_t heavy = k == 0 || k + 1 == PARTS ? 6 : 1;
    parts[k] = (opi_parts_run){.weight_bytes = heavy * (20000 + opi_test_next(random) % 20000),
                               .stash_bytes = 500 + opi_test_next(random) % 2000,
                               .arena_bytes = opi_test_next(random) % 3000};
    m->ns_before[k + 1] = m->ns_before[k] + opi_test_uniform(random, 1, 10);
    m->noise[k] = opi_test_uniform(random, -300, 300);
  }
  for (uint32_t from = 0; from < PARTS; ++from) {
    opi_parts_run sum = {.weight_bytes = 0};
    for (uint32_t k = from; k < PARTS; ++k) {
      sum.weight_bytes += parts[k].weight_bytes;
      sum.stash_bytes += parts[k].stash_bytes;
      sum.arena_bytes =
          parts[k].arena_bytes > sum.arena_bytes ? parts[k].arena_bytes : sum.arena_bytes;
      m->runs[from * (PARTS + 1) + k + 1] = sum;
    }
  }
  for (uint32_t r = 0; r < RANKS; ++r) {
    m->rank_runs[r] = m->runs;
    m->caps[r] = 1;
    m->fixed[r] = opi_test_next(random) % 9000;
  }
  for (uint32_t s = 0; s < m->problem.n_stages; ++s)
    m->stage_ns[s] = m->ns_before;
  for (uint32_t i = 0; i < m->problem.n_stages * m->problem.n_replicas; ++i)
    m->wanted_held[i] = 1 + (double)(opi_test_next(random) % 4);
}

/* Exact bytes of a rank, which runs only approximate. */
static void exact(const model *m, const uint32_t *ends, uint64_t *bytes) {
  const opi_fit_problem *p = &m->problem;
  uint64_t arenas[RANKS] = {0};
  for (uint32_t r = 0; r < RANKS; ++r)
    bytes[r] = m->fixed[r];
  for (uint32_t i = 0; i < p->n_stages * p->n_replicas; ++i) {
    const uint32_t s = i / p->n_replicas, r = p->instance_rank[i];
    const opi_parts_run *run = &m->runs[ends[s] * (PARTS + 1) + ends[s + 1]];
    const double sum = (double)run->weight_bytes + m->wanted_held[i] * (double)run->stash_bytes +
                       m->noise[ends[s]];
    bytes[r] += (uint64_t)sum;
    arenas[r] = run->arena_bytes > arenas[r] ? run->arena_bytes : arenas[r];
  }
  for (uint32_t r = 0; r < RANKS; ++r)
    bytes[r] += arenas[r];
}

static double over(const model *m, const uint32_t *ends) {
  uint64_t bytes[RANKS];
  double most = -INFINITY;
  exact(m, ends, bytes);
  for (uint32_t r = 0; r < RANKS; ++r) {
    if (m->caps[r] != UINT64_MAX)
      most = fmax(most, (double)bytes[r] - (double)m->caps[r]);
  }
  return most;
}

static opipe_status judge(void *ctx, const uint32_t *ends, uint64_t *out_bytes, double *out_ns,
                          opipe_error *err) {
  model *m = ctx;
  ++m->n_asked;
  exact(m, ends, out_bytes);
  memcpy(m->held, m->wanted_held, sizeof m->held);
  *out_ns = over(m, ends) <= 0 ? 0 : INFINITY;
  for (uint32_t s = 0; s < m->problem.n_stages; ++s)
    *out_ns = fmax(*out_ns, m->ns_before[ends[s + 1]] - m->ns_before[ends[s]]);
  return ends[1] == 5 && ends[2] == 6 ? opi_fail(err, OPIPE_E_INVALID, "no cut") : OPIPE_OK;
}

/* The best of all cuts that judge() does not refuse. */
static double try_all(const model *m, uint32_t s, uint32_t *ends) {
  const uint32_t n = m->problem.n_stages;
  double best = INFINITY;
  if (s + 1 == n) {
    ends[n] = PARTS;
    return ends[1] == 5 && ends[2] == 6 ? INFINITY : over(m, ends);
  }
  for (ends[s + 1] = ends[s] + 1; ends[s + 1] + (n - 1 - s) <= PARTS; ++ends[s + 1])
    best = fmin(best, try_all(m, s + 1, ends));
  return best;
}

static bool is_cut(const model *m, const uint32_t *ends) {
  bool rising = ends[0] == 0 && ends[m->problem.n_stages] == PARTS;
  for (uint32_t s = 0; s < m->problem.n_stages; ++s)
    rising = rising && ends[s] < ends[s + 1];
  return rising;
}

static void one(uint32_t layout, opi_test_random *random, uint32_t *io_judged) {
  model m;
  uint32_t ends[STAGES + 1] = {0}, found[STAGES + 1];
  opipe_error err = OPIPE_ERROR_INIT;
  opi_fit_result result = {.ends = found};
  make(&m, layout, random);
  m.problem.judge = judge;
  const double best = try_all(&m, 0, ends);
  OPI_ASSERT_OK_FATAL(opi_fit_search(&m.problem, &result, &err), &err);
  OPI_ASSERT(is_cut(&m, found) && isinf(result.ns));
  OPI_ASSERT(result.overflow == over(&m, found));
  OPI_ASSERT(result.overflow <= 1.02 * best);
  OPI_ASSERT(result.n_judged == m.n_asked && m.n_asked <= JUDGMENTS);
  *io_judged += m.n_asked;
  /* With exactly that more for every rank it is found again, or a faster one. */
  for (uint32_t r = 0; r < RANKS; ++r)
    m.caps[r] += (uint64_t)result.overflow;
  memset(m.held, 0, sizeof m.held);
  OPI_ASSERT_OK_FATAL(opi_fit_search(&m.problem, &result, &err), &err);
  OPI_ASSERT(!isinf(result.ns) && result.overflow <= 0 && over(&m, found) <= 0);
}

static void test_the_search_comes_close_to_all_cuts(void) {
  opi_test_random random = {7};
  uint32_t judged = 0;
  for (uint32_t round = 0; round < ROUNDS; ++round) {
    for (uint32_t layout = 0; layout < N_LAYOUTS; ++layout)
      one(layout, &random, &judged);
  }
  OPI_ASSERT(judged < ROUNDS * N_LAYOUTS * JUDGMENTS / 2); /* it ends by itself */
}

/* Ranks without a cap take what the others cannot. */
static void test_no_cap_is_no_limit(void) {
  opi_test_random random = {8};
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t found[STAGES + 1];
  model m;
  opi_fit_result result = {.ends = found};
  make(&m, LINE, &random);
  m.problem.judge = judge;
  for (uint32_t r = 0; r < RANKS; ++r)
    m.caps[r] = r == 1 ? UINT64_MAX : 300000;
  OPI_ASSERT_OK_FATAL(opi_fit_search(&m.problem, &result, &err), &err);
  OPI_ASSERT(!isinf(result.ns));
  m.caps[0] = m.caps[2] = m.caps[3] = UINT64_MAX;
  OPI_ASSERT_OK_FATAL(opi_fit_search(&m.problem, &result, &err), &err);
  OPI_ASSERT(!isinf(result.ns) && isinf(result.overflow));
}

/* The result is the fastest cut found among those that fit: equal shares of the time, where there
 * is room. */
static void test_what_fits_is_fast(void) {
  opi_test_random random = {9};
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t found[STAGES + 1];
  model m;
  opi_fit_result result = {.ends = found};
  make(&m, LINE, &random);
  m.problem.judge = judge;
  for (uint32_t k = 0; k <= PARTS; ++k)
    m.ns_before[k] = k;
  for (uint32_t r = 0; r < RANKS; ++r)
    m.caps[r] = UINT64_C(1) << 40;
  OPI_ASSERT_OK_FATAL(opi_fit_search(&m.problem, &result, &err), &err);
  for (uint32_t s = 0; s < RANKS; ++s)
    OPI_ASSERT_INT(found[s + 1] - found[s], PARTS / RANKS);
}

OPI_TEST_MAIN("the search by exact bytes", OPI_TEST(test_the_search_comes_close_to_all_cuts),
              OPI_TEST(test_no_cap_is_no_limit), OPI_TEST(test_what_fits_is_fast))
