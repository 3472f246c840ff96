/* SPDX-License-Identifier: Apache-2.0 */
/* See fit.h. Where every rank has one stage, the best estimate is found by dynamic programming over
 * the ends of stages; else by trying all ends, stage by stage, as long as what is cut so far can
 * still be better than the best cut that was judged.
 */
#include "partition/search/fit.h"

#include <math.h>
#include <string.h>

enum {
  LOOKS_MOST = 3000000, /* at ends, where all are tried, for all judgments together */
  FASTER_MOST = 8       /* judgments that look for a faster cut once one fits */
};

/* What an estimate may be too high by: cuts that can only be better if theirs is are judged. */
static const double DOUBT = 0.01;

typedef struct judged {
  uint32_t *ends;
  uint64_t *bytes; /* [n_ranks] NULL: it is no cut */
  double *error;   /* [n_ranks] bytes less the estimate without errors */
} judged;

typedef struct value {
  double overflow, ns;
} value;

/* One way to come to an end of a stage. */
typedef struct arrival {
  value value;
  uint32_t from;
} arrival;

typedef struct search {
  const opi_fit_problem *problem;
  opi_arena scratch;
  judged *all; /* [n_all] */
  uint32_t n_all;
  uint32_t *first, *instances; /* instances of rank r: instances[first[r]] ... by stage */
  uint32_t *ends, *found;      /* [n_stages + 1] at hand; the best of this round */
  double *least_error;         /* [n_ranks] of all that were judged */
  arrival *arrivals;           /* [n_stages + 1][n_parts + 1] */
  value best;
  uint32_t n_looks;
  double doubt;
  bool any_that_fits; /* what fits is as good as what fits by far: the faster one is better */
  bool any;
  opipe_error *err;
} search;

/* ---- estimates ---- */

static uint32_t stage_of(const search *f, uint32_t i) {
  return f->instances[i] / f->problem->n_replicas;
}

/* Of the rank's stages before `n_stages`, without what estimates are off by. */
static double sum_runs(const search *f, uint32_t rank, const uint32_t *ends, uint32_t n_stages) {
  const opi_fit_problem *p = f->problem;
  double sum = 0;
  uint64_t arena = 0;
  for (uint32_t i = f->first[rank]; i < f->first[rank + 1] && stage_of(f, i) < n_stages; ++i) {
    const uint32_t s = stage_of(f, i);
    const opi_run *run = &p->runs[rank][(size_t)ends[s] * (p->n_parts + 1) + ends[s + 1]];
    sum += (double)run->weight_bytes + p->held[f->instances[i]] * (double)run->stash_bytes;
    arena = run->arena_bytes > arena ? run->arena_bytes : arena;
  }
  return sum + (double)arena;
}

static uint32_t apart(uint32_t a, uint32_t b) {
  return a > b ? a - b : b - a;
}

/* All of the rank's stages; as much off as those of the nearest cut that was judged. */
static double estimate(const search *f, uint32_t rank, const uint32_t *ends) {
  const double sum = sum_runs(f, rank, ends, f->problem->n_stages);
  uint32_t nearest = UINT32_MAX;
  double error = 0;
  for (uint32_t k = f->n_all; k-- > 0 && nearest != 0;) {
    const judged *j = &f->all[k];
    uint32_t distance = 0;
    for (uint32_t i = f->first[rank]; j->bytes != NULL && i < f->first[rank + 1]; ++i) {
      const uint32_t s = stage_of(f, i);
      distance += apart(ends[s], j->ends[s]) + apart(ends[s + 1], j->ends[s + 1]);
    }
    if (j->bytes == NULL || distance >= nearest)
      continue;
    nearest = distance;
    error = j->error[rank];
  }
  return nearest == 0 ? sum + error : (sum + error) * (1 - f->doubt);
}

static double over(const search *f, uint32_t rank, double bytes) {
  const uint64_t cap = f->problem->caps_bytes[rank];
  return cap == UINT64_MAX ? -INFINITY : bytes - (double)cap;
}

static double stage_ns(const opi_fit_problem *p, uint32_t stage, uint32_t from, uint32_t to) {
  return p->ns_before[stage][to] - p->ns_before[stage][from];
}

/* Of the rank that computes longest. */
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

static bool is_no_cut(const search *f, const uint32_t *ends) {
  for (uint32_t k = 0; k < f->n_all; ++k) {
    if (f->all[k].bytes == NULL &&
        memcmp(f->all[k].ends, ends, (f->problem->n_stages + 1) * sizeof *ends) == 0)
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
  f->any = better(f, v, f->best) && !is_no_cut(f, f->ends);
  if (f->any)
    memcpy(f->found, f->ends, (p->n_stages + 1) * sizeof *f->found);
}

/* ---- the best estimate: several stages on a rank ---- */

/* What the ranks of stage `s` are over by, at least: those whose last stage it is, by as much. */
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
            : sum_runs(f, rank, f->ends, s + 1) * (1 - f->doubt) + f->least_error[rank];
    most = fmax(most, over(f, rank, sum));
  }
  return most;
}

static void take(search *f, value v) {
  const opi_fit_problem *p = f->problem;
  v.ns = slowest_ns(f, f->ends);
  if (!better(f, v, f->best) || is_no_cut(f, f->ends))
    return;
  f->best = v;
  f->any = true;
  memcpy(f->found, f->ends, (p->n_stages + 1) * sizeof *f->found);
}

/* Walks the ends of all stages, the last ones fastest; so_far[s]: of the stages before s. */
static void find_by_trying(search *f, value *so_far) {
  const opi_fit_problem *p = f->problem;
  uint32_t s = 0;
  so_far[0] = (value){-INFINITY, 0};
  f->ends[0] = f->ends[1] = 0;
  for (bool more = true; more && f->n_looks < LOOKS_MOST; ++f->n_looks) {
    const uint32_t left = p->n_stages - 1 - s;
    const uint32_t to = f->ends[s + 1] =
        left == 0 && f->ends[s + 1] < p->n_parts ? p->n_parts : f->ends[s + 1] + 1;
    if (to + left > p->n_parts) { /* back to the stage before */
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

static void find_errors(search *f) {
  const opi_fit_problem *p = f->problem;
  for (uint32_t r = 0; r < p->n_ranks; ++r)
    f->least_error[r] = 0;
  bool first = true;
  for (uint32_t k = 0; k < f->n_all; ++k) {
    judged *j = &f->all[k];
    for (uint32_t r = 0; j->bytes != NULL && r < p->n_ranks; ++r) {
      j->error[r] = (double)j->bytes[r] - sum_runs(f, r, j->ends, p->n_stages);
      f->least_error[r] =
          first || j->error[r] < f->least_error[r] ? j->error[r] : f->least_error[r];
    }
    first = first && j->bytes == NULL;
  }
}

/* *out_any: there may be a better cut than `best`: in f->found. */
static opipe_status propose(search *f, const value *best, bool *out_any) {
  const opi_fit_problem *p = f->problem;
  value *so_far = OPI_ARENA_ARRAY(&f->scratch, value, (size_t)p->n_stages + 1);
  if (so_far == NULL)
    return opi_fail_nomem(f->err, p->n_stages * sizeof *so_far, "a cut");
  find_errors(f);
  f->best = *best;
  f->any = false;
  if (has_one_stage_each(f))
    find_by_ends(f);
  else
    find_by_trying(f, so_far);
  *out_any = f->any;
  return OPIPE_OK;
}

/* Asks for the bytes of f->found. */
static opipe_status judge(search *f, opi_fit_result *io_result, value *io_best) {
  const opi_fit_problem *p = f->problem;
  const size_t n_ends = (size_t)p->n_stages + 1;
  judged *j = &f->all[f->n_all];
  value v = {-INFINITY, 0};
  bool fits = false;
  *j = (judged){.ends = opi_arena_copy(&f->scratch, f->found, n_ends * sizeof(uint32_t)),
                .bytes = OPI_ARENA_ARRAY(&f->scratch, uint64_t, p->n_ranks),
                .error = OPI_ARENA_ARRAY(&f->scratch, double, p->n_ranks)};
  if (j->ends == NULL || j->bytes == NULL || j->error == NULL)
    return opi_fail_nomem(f->err, p->n_ranks * sizeof(double), "a cut");
  ++io_result->n_judged;
  const opipe_status status = p->judge(p->ctx, j->ends, j->bytes, &fits, f->err);
  ++f->n_all;
  if (status == OPIPE_E_NOMEM)
    return status;
  for (uint32_t r = 0; status == OPIPE_OK && r < p->n_ranks; ++r)
    v.overflow = fmax(v.overflow, over(f, r, (double)j->bytes[r]));
  v.ns = slowest_ns(f, j->ends);
  if (status < 0 || (v.overflow <= 0 && !fits)) { /* not to be proposed again */
    j->bytes = NULL;
    return OPIPE_OK;
  }
  if (fits != io_result->fits ? fits : better(f, v, *io_best)) {
    *io_best = v;
    io_result->overflow = v.overflow;
    io_result->fits = fits;
    memcpy(io_result->ends, j->ends, n_ends * sizeof(uint32_t));
  }
  return OPIPE_OK;
}

/* Stages of about as many bytes each. */
static void cut_evenly(search *f) {
  const opi_fit_problem *p = f->problem;
  const opi_run *runs = p->runs[0];
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
  f->arrivals = OPI_ARENA_ARRAY(&f->scratch, arrival, n_ends * ((size_t)p->n_parts + 1));
  if (f->all == NULL || f->first == NULL || f->instances == NULL || f->ends == NULL ||
      f->found == NULL || f->least_error == NULL || f->arrivals == NULL)
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
  f->doubt = DOUBT;
  cut_evenly(f);
  while (more) {
    OPI_TRY(judge(f, io_result, &best));
    if (io_result->fits && !f->any_that_fits) {
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
  io_result->fits = false;
  io_result->n_judged = 0;
  opi_arena_init(&f.scratch, problem->allocator, 0);
  opipe_status status = prepare(&f);
  if (status == OPIPE_OK)
    status = improve(&f, io_result);
  opi_arena_release(&f.scratch);
  return status;
}
