/* SPDX-License-Identifier: Apache-2.0 */
/* If every rank has one stage, the best estimate is found by dynamic programming over the ends of
 * stages. Otherwise all ends are tried, stage by stage, while the partial cut may still beat the
 * best cut that was judged.
 */
#include "partition/search/fit.h"

#include <math.h>
#include <string.h>

enum {
  LOOKS_MOST = 3000000, /* candidate ends tried exhaustively, over all judgments */
  FASTER_MOST = 8       /* judgments that look for a faster cut after one fits */
};

/* Share by which estimates may be too high: a cut is judged if it could be better by that much. It
 * is twice the mean error so far, within these limits. */
static const double DOUBT_LEAST = 0.01, DOUBT_MOST = 0.08;
/* If a rank's bytes differ by more than this share although its stages are the same, they depend on
 * the whole cut. */
static const double SAME = 0.002;

typedef struct judged {
  uint32_t *ends;
  uint64_t *bytes; /* [n_ranks]; NULL: not a valid cut */
  double *held;    /* [n_instances] problem->held at that time */
  double *error;   /* [n_ranks] exact bytes less the sum of runs under `held` */
} judged;

typedef struct value {
  double overflow, ns;
} value;

/* The best way to reach an end of a stage. */
typedef struct arrival {
  value value;
  uint32_t from;
} arrival;

typedef struct search {
  const opi_fit_problem *problem;
  opi_arena scratch;
  judged *all; /* [n_all] */
  uint32_t n_all;
  uint32_t *first, *instances; /* instances of rank r, by stage: from instances[first[r]] on */
  uint32_t *ends, *found;      /* [n_stages + 1] current; best of this round */
  double *least_error;         /* [n_ranks] least of all judged cuts */
  double *least_held;          /* [n_instances] least of all judged cuts */
  arrival *arrivals;           /* [n_stages + 1][n_parts + 1] */
  value best;
  uint32_t n_looks;
  double doubt, sum_of_errors; /* relative errors of estimates */
  bool any_that_fits;          /* a cut has fitted: from then on only the time counts */
  bool any;
  bool coupled; /* a rank's bytes also depend on the stages of others, through their order */
  opipe_error *err;
} search;

/* ---- estimates ---- */

static uint32_t stage_of(const search *f, uint32_t i) {
  return f->instances[i] / f->problem->n_replicas;
}

static const opi_parts_run *run_of(const search *f, uint32_t rank, const uint32_t *ends,
                                   uint32_t i) {
  const uint32_t s = stage_of(f, i);
  return &f->problem->runs[rank][(size_t)ends[s] * (f->problem->n_parts + 1) + ends[s + 1]];
}

/* Bytes of the rank's stages before `n_stages` by their runs, without correction. held NULL:
 * without stashes. */
static double sum_runs(const search *f, uint32_t rank, const uint32_t *ends, uint32_t n_stages,
                       const double *held) {
  double sum = 0;
  uint64_t arena = 0;
  for (uint32_t i = f->first[rank]; i < f->first[rank + 1] && stage_of(f, i) < n_stages; ++i) {
    const opi_parts_run *run = run_of(f, rank, ends, i);
    sum += (double)run->weight_bytes;
    sum += held == NULL ? 0 : held[f->instances[i]] * (double)run->stash_bytes;
    arena = run->arena_bytes > arena ? run->arena_bytes : arena;
  }
  return sum + (double)arena;
}

static double stash_bytes(const search *f, uint32_t rank, const uint32_t *ends,
                          const double *held) {
  double sum = 0;
  for (uint32_t i = f->first[rank]; i < f->first[rank + 1]; ++i)
    sum += held[f->instances[i]] * (double)run_of(f, rank, ends, i)->stash_bytes;
  return sum;
}

static uint32_t apart(uint32_t a, uint32_t b) {
  return a > b ? a - b : b - a;
}

/* Distance of the rank's stages from those of a judged cut: in parts, summed over all ends.
 */
static uint32_t distance(const search *f, uint32_t rank, const uint32_t *ends, const judged *j) {
  uint32_t sum = 0;
  for (uint32_t i = f->first[rank]; i < f->first[rank + 1]; ++i) {
    const uint32_t s = stage_of(f, i);
    sum += apart(ends[s], j->ends[s]) + apart(ends[s + 1], j->ends[s + 1]);
  }
  return sum;
}

/* Estimate for all of the rank's stages: their runs, corrected by the errors of judged cuts, the
 * nearest weighted most. */
static double estimate(const search *f, uint32_t rank, const uint32_t *ends) {
  double weights = 0, sum = 0;
  for (uint32_t k = f->n_all; k-- > 0;) {
    const judged *j = &f->all[k];
    if (j->bytes == NULL)
      continue;
    const uint32_t d = distance(f, rank, ends, j) + (f->coupled ? 1 : 0);
    if (d == 0)
      return (double)j->bytes[rank];
    const double weight = 1.0 / d / d;
    weights += weight;
    sum += weight * (stash_bytes(f, rank, ends, j->held) + j->error[rank]);
  }
  if (weights == 0)
    return sum_runs(f, rank, ends, f->problem->n_stages, f->problem->held);
  return (sum_runs(f, rank, ends, f->problem->n_stages, NULL) + sum / weights) * (1 - f->doubt);
}

static double over(const search *f, uint32_t rank, double bytes) {
  const uint64_t cap = f->problem->caps_bytes[rank];
  return cap == UINT64_MAX ? -INFINITY : bytes - (double)cap;
}

static double stage_ns(const opi_fit_problem *p, uint32_t stage, uint32_t from, uint32_t to) {
  return p->ns_before[stage][to] - p->ns_before[stage][from];
}

/* Time of the slowest rank. */
static double slowest_ns(const search *f, const uint32_t *ends) {
  double most = 0;
  for (uint32_t r = 0; r < f->problem->n_ranks; ++r) {
    double sum = 0;
    for (uint32_t i = f->first[r]; i < f->first[r + 1]; ++i) {
      const uint32_t s = stage_of(f, i);
      sum += stage_ns(f->problem, s, ends[s], ends[s + 1]);
    }
    most = sum > most ? sum : most;
  }
  return most;
}

static bool better(const search *f, value a, value b) {
  const double x = f->any_that_fits && a.overflow < 0 ? 0 : a.overflow;
  const double y = f->any_that_fits && b.overflow < 0 ? 0 : b.overflow;
  return x < y - 0.5 || (x <= y + 0.5 && a.ns < b.ns * (1 - 1e-9));
}

static bool was_judged(const search *f, const uint32_t *ends) {
  for (uint32_t k = 0; k < f->n_all; ++k) {
    if (memcmp(f->all[k].ends, ends, (f->problem->n_stages + 1) * sizeof *ends) == 0)
      return true;
  }
  return false;
}

/* ---- the best estimate: a stage on every rank ---- */

static void extend(search *f, uint32_t s) {
  const opi_fit_problem *p = f->problem;
  const uint32_t n = p->n_parts, left = p->n_stages - 1 - s;
  const arrival *before = &f->arrivals[(size_t)s * (n + 1)];
  arrival *after = &f->arrivals[(size_t)(s + 1) * (n + 1)];
  for (uint32_t to = 0; to <= n; ++to)
    after[to] = (arrival){.value = {INFINITY, INFINITY}, .from = OPIPE_NONE};
  for (uint32_t from = s; from < n; ++from) {
    if (isinf(before[from].value.ns))
      continue;
    for (uint32_t to = left == 0 ? n : from + 1; to + left <= n; ++to) {
      value v = before[from].value;
      f->ends[s] = from;
      f->ends[s + 1] = to;
      for (uint32_t i = s * p->n_replicas; i < (s + 1) * p->n_replicas; ++i) {
        const uint32_t rank = p->instance_rank[i];
        if (rank != OPIPE_NONE && p->caps_bytes[rank] != UINT64_MAX)
          v.overflow = fmax(v.overflow, over(f, rank, estimate(f, rank, f->ends)));
      }
      v.ns = fmax(v.ns, stage_ns(p, s, from, to));
      if (isinf(after[to].value.ns) || better(f, v, after[to].value))
        after[to] = (arrival){.value = v, .from = from};
    }
  }
}

static void find_by_ends(search *f) {
  const opi_fit_problem *p = f->problem;
  const uint32_t n = p->n_parts;
  for (uint32_t k = 0; k <= n; ++k)
    f->arrivals[k] = (arrival){.value = {INFINITY, INFINITY}, .from = OPIPE_NONE};
  f->arrivals[0].value = (value){-INFINITY, 0};
  for (uint32_t s = 0; s < p->n_stages; ++s)
    extend(f, s);
  uint32_t at = n;
  for (uint32_t s = p->n_stages; s > 0; --s) {
    f->ends[s] = at;
    at = f->arrivals[(size_t)s * (n + 1) + at].from;
  }
  f->ends[0] = 0;
  const value v = f->arrivals[(size_t)p->n_stages * (n + 1) + n].value;
  f->any = better(f, v, f->best) && !was_judged(f, f->ends);
  if (f->any)
    memcpy(f->found, f->ends, (p->n_stages + 1) * sizeof *f->found);
}

/* ---- the best estimate: several stages on a rank ---- */

/* A lower bound on the overflow of the ranks of stage `s`; exact for those whose last stage it is.
 */
static double over_so_far(const search *f, uint32_t s) {
  const opi_fit_problem *p = f->problem;
  double most = -INFINITY;
  for (uint32_t i = s * p->n_replicas; i < (s + 1) * p->n_replicas; ++i) {
    const uint32_t rank = p->instance_rank[i];
    if (rank == OPIPE_NONE || p->caps_bytes[rank] == UINT64_MAX)
      continue;
    const bool all = stage_of(f, f->first[rank + 1] - 1) == s;
    const double sum =
        all ? estimate(f, rank, f->ends)
            : (sum_runs(f, rank, f->ends, s + 1, f->least_held) + f->least_error[rank]) *
                  (1 - f->doubt);
    most = fmax(most, over(f, rank, sum));
  }
  return most;
}

static void take(search *f, value v) {
  const opi_fit_problem *p = f->problem;
  v.ns = slowest_ns(f, f->ends);
  if (!better(f, v, f->best) || was_judged(f, f->ends))
    return;
  f->best = v;
  f->any = true;
  memcpy(f->found, f->ends, (p->n_stages + 1) * sizeof *f->found);
}

/* Walks the ends of all stages, the last fastest. so_far[s]: value of the stages before s. */
static void find_by_trying(search *f, value *so_far) {
  const opi_fit_problem *p = f->problem;
  uint32_t s = 0;
  so_far[0] = (value){-INFINITY, 0};
  f->ends[0] = f->ends[1] = 0;
  for (bool more = true; more && f->n_looks < LOOKS_MOST; ++f->n_looks) {
    const uint32_t left = p->n_stages - 1 - s;
    const uint32_t to = f->ends[s + 1] =
        left == 0 && f->ends[s + 1] < p->n_parts ? p->n_parts : f->ends[s + 1] + 1;
    if (to + left > p->n_parts) { /* back to the previous stage */
      more = s > 0;
      s -= more;
      continue;
    }
    const value v = {fmax(so_far[s].overflow, over_so_far(f, s)),
                     fmax(so_far[s].ns, stage_ns(p, s, f->ends[s], to))};
    if (!better(f, v, f->best))
      continue;
    if (left == 0) {
      take(f, v);
      continue;
    }
    so_far[++s] = v;
    f->ends[s + 1] = to;
  }
}

/* ---- judgments ---- */

static bool has_one_stage_each(const search *f) {
  for (uint32_t r = 0; r < f->problem->n_ranks; ++r) {
    if (f->first[r + 1] > f->first[r] + 1)
      return false;
  }
  return true;
}

/* Adds the last judged cut to the statistics. */
static void learn(search *f, judged *j) {
  const opi_fit_problem *p = f->problem;
  const uint32_t n_instances = p->n_stages * p->n_replicas;
  bool first = true;
  for (uint32_t k = 0; &f->all[k] != j; ++k)
    first = first && f->all[k].bytes == NULL;
  for (uint32_t k = 0; &f->all[k] != j; ++k) {
    const judged *other = &f->all[k];
    for (uint32_t r = 0; other->bytes != NULL && r < p->n_ranks; ++r) {
      const double a = (double)j->bytes[r], b = (double)other->bytes[r];
      f->coupled |= fabs(a - b) > SAME * b && distance(f, r, j->ends, other) == 0;
    }
  }
  memcpy(j->held, p->held, n_instances * sizeof *j->held);
  for (uint32_t r = 0; r < p->n_ranks; ++r) {
    j->error[r] = (double)j->bytes[r] - sum_runs(f, r, j->ends, p->n_stages, j->held);
    if (first || j->error[r] < f->least_error[r])
      f->least_error[r] = j->error[r];
  }
  for (uint32_t i = 0; i < n_instances; ++i) {
    if (first || j->held[i] < f->least_held[i])
      f->least_held[i] = j->held[i];
  }
}

/* The largest relative error of the estimate. */
static double find_error(search *f, const judged *j) {
  double most = 0;
  f->doubt = 0;
  for (uint32_t r = 0; f->n_all > 0 && r < f->problem->n_ranks; ++r) {
    if (j->bytes[r] != 0)
      most = fmax(most, fabs(estimate(f, r, j->ends) / (double)j->bytes[r] - 1));
  }
  return most;
}

/* Proposes the cut in f->found. *out_any: it may be better than `best`. */
static opipe_status propose(search *f, const value *best, bool *out_any) {
  const opi_fit_problem *p = f->problem;
  value *so_far = OPI_ARENA_ARRAY(&f->scratch, value, (size_t)p->n_stages + 1);
  if (so_far == NULL)
    return opi_fail_nomem(f->err, p->n_stages * sizeof *so_far, "a cut");
  if (!f->any_that_fits)
    f->doubt = fmin(fmax(2 * f->sum_of_errors / f->n_all, DOUBT_LEAST), DOUBT_MOST);
  f->best = *best;
  f->any = false;
  if (has_one_stage_each(f))
    find_by_ends(f);
  else
    find_by_trying(f, so_far);
  *out_any = f->any;
  return OPIPE_OK;
}

/* Asks for the exact bytes of f->found. */
static opipe_status judge(search *f, opi_fit_result *io_result, value *io_best) {
  const opi_fit_problem *p = f->problem;
  const size_t n_ends = (size_t)p->n_stages + 1;
  judged *j = &f->all[f->n_all];
  value v = {-INFINITY, 0};
  double ns = INFINITY;
  *j = (judged){.ends = opi_arena_copy(&f->scratch, f->found, n_ends * sizeof(uint32_t)),
                .bytes = OPI_ARENA_ARRAY(&f->scratch, uint64_t, p->n_ranks),
                .held = OPI_ARENA_ARRAY(&f->scratch, double, (size_t)p->n_stages * p->n_replicas),
                .error = OPI_ARENA_ARRAY(&f->scratch, double, p->n_ranks)};
  if (j->ends == NULL || j->bytes == NULL || j->held == NULL || j->error == NULL)
    return opi_fail_nomem(f->err, p->n_ranks * sizeof(double), "a cut");
  ++io_result->n_judged;
  const opipe_status status = p->judge(p->ctx, j->ends, j->bytes, &ns, f->err);
  if (status == OPIPE_OK) {
    f->sum_of_errors += find_error(f, j);
    learn(f, j);
  }
  ++f->n_all;
  if (status == OPIPE_E_NOMEM)
    return status;
  for (uint32_t r = 0; status == OPIPE_OK && r < p->n_ranks; ++r)
    v.overflow = fmax(v.overflow, over(f, r, (double)j->bytes[r]));
  v.ns = slowest_ns(f, j->ends);
  if (status < 0 || (v.overflow <= 0 && isinf(ns))) { /* excluded from further proposals */
    j->bytes = NULL;
    return OPIPE_OK;
  }
  if (ns < io_result->ns || (isinf(io_result->ns) && better(f, v, *io_best))) {
    *io_best = v;
    io_result->overflow = v.overflow;
    io_result->ns = ns;
    memcpy(io_result->ends, j->ends, n_ends * sizeof(uint32_t));
  }
  return OPIPE_OK;
}

/* Cuts into stages of about equal bytes. */
static void cut_evenly(search *f) {
  const opi_fit_problem *p = f->problem;
  const opi_parts_run *runs = p->runs[0];
  const double all = (double)runs[p->n_parts].weight_bytes + (double)runs[p->n_parts].stash_bytes;
  uint32_t at = 0;
  f->found[0] = 0;
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    const uint32_t last = p->n_parts - (p->n_stages - 1 - s);
    const double share = all * (s + 1) / p->n_stages;
    ++at;
    while (at < last && (double)runs[at].weight_bytes + (double)runs[at].stash_bytes < share)
      ++at;
    f->found[s + 1] = at = s + 1 == p->n_stages ? p->n_parts : at;
  }
}

static opipe_status prepare(search *f) {
  const opi_fit_problem *p = f->problem;
  const uint32_t n_instances = p->n_stages * p->n_replicas;
  const size_t n_ends = (size_t)p->n_stages + 1;
  uint32_t n = 0;
  f->all = OPI_ARENA_ARRAY(&f->scratch, judged, p->judgments_most);
  f->first = OPI_ARENA_ARRAY(&f->scratch, uint32_t, (size_t)p->n_ranks + 1);
  f->instances = OPI_ARENA_ARRAY(&f->scratch, uint32_t, n_instances);
  f->ends = OPI_ARENA_ARRAY(&f->scratch, uint32_t, n_ends);
  f->found = OPI_ARENA_ARRAY(&f->scratch, uint32_t, n_ends);
  f->least_error = OPI_ARENA_ARRAY(&f->scratch, double, p->n_ranks);
  f->least_held = OPI_ARENA_ARRAY(&f->scratch, double, n_instances);
  f->arrivals = OPI_ARENA_ARRAY(&f->scratch, arrival, n_ends * ((size_t)p->n_parts + 1));
  if (f->all == NULL || f->first == NULL || f->instances == NULL || f->ends == NULL ||
      f->found == NULL || f->least_error == NULL || f->least_held == NULL || f->arrivals == NULL)
    return opi_fail_nomem(f->err, n_instances * sizeof(judged), "a cut");
  for (uint32_t r = 0; r < p->n_ranks; ++r) {
    for (uint32_t i = 0; i < n_instances; ++i) {
      if (p->instance_rank[i] == r)
        f->instances[n++] = i;
    }
    f->first[r + 1] = n;
  }
  return OPIPE_OK;
}

static opipe_status improve(search *f, opi_fit_result *io_result) {
  const uint32_t most = f->problem->judgments_most;
  value best = {INFINITY, INFINITY};
  bool more = most > 0;
  uint32_t end = most;
  cut_evenly(f);
  while (more) {
    OPI_TRY(judge(f, io_result, &best));
    if (!isinf(io_result->ns) && !f->any_that_fits) {
      f->any_that_fits = true;
      f->doubt = 0;
      end = f->n_all + FASTER_MOST < most ? f->n_all + FASTER_MOST : most;
    }
    more = f->n_all < end;
    if (more)
      OPI_TRY(propose(f, &best, &more));
  }
  return OPIPE_OK;
}

opipe_status opi_fit_search(const opi_fit_problem *problem, opi_fit_result *io_result,
                            opipe_error *err) {
  search f = {.problem = problem, .err = err};
  io_result->overflow = INFINITY;
  io_result->ns = INFINITY;
  io_result->n_judged = 0;
  opi_arena_init(&f.scratch, problem->allocator, 0);
  opipe_status status = prepare(&f);
  if (status == OPIPE_OK)
    status = improve(&f, io_result);
  opi_arena_release(&f.scratch);
  return status;
}
