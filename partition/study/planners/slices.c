/* SPDX-License-Identifier: Apache-2.0 */
/* Under a bound on the longest slice, the least sum is a shortest path over cut positions, and the
 * batch a knapsack of groups. Bounds are tried in rising order among the times that occur. The
 * search ends once (K - 1) * bound plus the rows' least sum without any bound reaches the best
 * total.
 */
#include "partition/study/planners/slices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS_MOST = 4096, ROWS_MOST = 1 << 16 };
static const double rounding = 1e-13; /* relative, of a sum */

typedef struct search {
  const opi_slice_problem *problem;
  opi_arena scratch;
  uint32_t n_units;
  double *
      *cost; /* [n_rows] cost of a slice from unit a to unit b: [b * (n_units + 1) + a], or NULL */
  double *bounds; /* rising */
  uint32_t n_bounds;
  double *least;   /* [n_units + 1] least sum up to a position */
  uint32_t **from; /* [n_rows][n_units + 1] start of the last slice before a position */
  double *whole;   /* [n_rows] least sum of one group */
  double *batch;   /* [n_rows + 1] least sum of that many rows */
  uint32_t *taken; /* [n_rows + 1] rows of the last group in it */
  opipe_error *err;
} search;

double opi_slice_time(const opi_slice_times *times, uint32_t length, uint32_t context) {
  const double *a = times->context.at, l = length, c = context;
  const double extra = context == 0 ? 0 : a[0] + a[1] * l + a[2] * c + a[3] * l * c;
  return times->alone[length] + extra;
}

static uint32_t token_of(const opi_slice_problem *p, uint32_t unit) {
  const uint64_t token = (uint64_t)unit * p->unit;
  return token < p->n_tokens ? (uint32_t)token : p->n_tokens;
}

static opipe_status check(const opi_slice_problem *p, opipe_error *err) {
  bool any = false;
  if (p->n_tokens == 0 || p->unit == 0 || p->n_stages == 0 || p->n_rows == 0 ||
      p->n_rows > ROWS_MOST || !(p->step >= 0)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "slices: %u tokens in units of %u, %u stages, %u rows (at most %d), step %g",
                    p->n_tokens, p->unit, p->n_stages, p->n_rows, ROWS_MOST, p->step);
  }
  if ((p->n_tokens - 1) / p->unit + 1 > UNITS_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "slices: %u tokens in units of %u are more than %d units",
                    p->n_tokens, p->unit, UNITS_MOST);
  }
  for (uint32_t r = 0; r < p->n_rows; ++r)
    any = any || p->times[r] != NULL;
  return any ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID, "slices: no number of rows of %u has times",
                        p->n_rows);
}

static opipe_status fill_costs(search *s, uint32_t r) {
  const opi_slice_problem *p = s->problem;
  const size_t side = (size_t)s->n_units + 1;
  s->cost[r] = OPI_ARENA_ARRAY(&s->scratch, double, side *side);
  s->from[r] = OPI_ARENA_ARRAY(&s->scratch, uint32_t, side);
  if (s->cost[r] == NULL || s->from[r] == NULL)
    return opi_fail_nomem(s->err, side * side * sizeof(double), "slices");
  for (uint32_t b = 1; b <= s->n_units; ++b) {
    for (uint32_t a = 0; a < b; ++a) {
      const uint32_t first = token_of(p, a), length = token_of(p, b) - first;
      const double time = opi_slice_time(p->times[r], length, first);
      if (!(time > 0) || !isfinite(time)) {
        return opi_fail(s->err, OPIPE_E_INVALID,
                        "slices: %u tokens after %u of %u rows take %g; times are above 0", length,
                        first, r + 1, time);
      }
      s->cost[r][b * side + a] = time;
    }
  }
  return OPIPE_OK;
}

static int by_value(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

/* Collects all times that occur, thinned to distances of `step`. The largest stays, so that it
 * bounds nothing.
 */
static opipe_status collect_bounds(search *s) {
  const size_t side = (size_t)s->n_units + 1, slices = side * s->n_units / 2;
  size_t n = 0, sizes = 0;
  for (uint32_t r = 0; r < s->problem->n_rows; ++r)
    sizes += s->cost[r] != NULL;
  s->bounds = OPI_ARENA_ARRAY(&s->scratch, double, slices *sizes);
  if (s->bounds == NULL || slices * sizes > UINT32_MAX)
    return opi_fail_nomem(s->err, slices * sizes * sizeof(double), "slices");
  for (uint32_t r = 0; r < s->problem->n_rows; ++r) {
    for (uint32_t b = 1; s->cost[r] != NULL && b <= s->n_units; ++b) {
      for (uint32_t a = 0; a < b; ++a)
        s->bounds[n++] = s->cost[r][b * side + a];
    }
  }
  qsort(s->bounds, n, sizeof(double), by_value);
  uint32_t kept = 0;
  for (size_t i = 0; i < n;
       ++i) { /* keep the largest of each step, so that rounding down loses no slice */
    const bool last_of_step =
        i + 1 == n || kept == 0 || s->bounds[i + 1] - s->bounds[kept - 1] > s->problem->step;
    if (last_of_step && (kept == 0 || s->bounds[i] > s->bounds[kept - 1]))
      s->bounds[kept++] = s->bounds[i];
  }
  s->n_bounds = kept;
  return OPIPE_OK;
}

/* Least sum of one group of r + 1 rows whose slices take at most `bound`; infinite: impossible. */
static double shortest(search *s, uint32_t r, double bound) {
  const size_t side = (size_t)s->n_units + 1;
  s->least[0] = 0;
  for (uint32_t b = 1; b <= s->n_units; ++b) {
    const double *cost = s->cost[r] + b * side;
    s->least[b] = INFINITY;
    for (uint32_t a = 0; a < b; ++a) {
      /* of sums equal up to rounding take the first, with the longest last slice */
      if (cost[a] <= bound && s->least[a] + cost[a] < s->least[b] * (1 - rounding)) {
        s->least[b] = s->least[a] + cost[a];
        s->from[r][b] = a;
      }
    }
  }
  return s->least[s->n_units];
}

/* Least sum of the batch under the bound; fills whole, batch, taken, from. */
static double fill_batch(search *s, double bound) {
  const uint32_t n = s->problem->n_rows;
  for (uint32_t r = 0; r < n; ++r)
    s->whole[r] = s->cost[r] == NULL ? INFINITY : shortest(s, r, bound);
  s->batch[0] = 0;
  for (uint32_t k = 1; k <= n; ++k) {
    s->batch[k] = INFINITY;
    for (uint32_t r = 0; r < k; ++r) {
      if (s->batch[k - 1 - r] + s->whole[r] < s->batch[k]) {
        s->batch[k] = s->batch[k - 1 - r] + s->whole[r];
        s->taken[k] = r + 1;
      }
    }
  }
  return s->batch[n];
}

/* The longest slice of the groups taken. */
static double longest_taken(const search *s) {
  const size_t side = (size_t)s->n_units + 1;
  double longest = 0;
  for (uint32_t k = s->problem->n_rows; k > 0; k -= s->taken[k]) {
    const uint32_t r = s->taken[k] - 1;
    for (uint32_t b = s->n_units; b > 0; b = s->from[r][b]) {
      const double cost = s->cost[r][b * side + s->from[r][b]];
      longest = cost > longest ? cost : longest;
    }
  }
  return longest;
}

static opipe_status start(search *s, const opi_slice_problem *problem,
                          const opipe_allocator *allocator, opipe_error *err) {
  OPI_TRY(check(problem, err));
  *s = (search){.problem = problem, .err = err};
  opi_arena_init(&s->scratch, allocator, 0);
  const size_t n = problem->n_rows;
  s->n_units = (problem->n_tokens - 1) / problem->unit + 1;
  s->cost = OPI_ARENA_ARRAY(&s->scratch, double *, n);
  s->from = OPI_ARENA_ARRAY(&s->scratch, uint32_t *, n);
  s->least = OPI_ARENA_ARRAY(&s->scratch, double, (size_t)s->n_units + 1);
  s->whole = OPI_ARENA_ARRAY(&s->scratch, double, n);
  s->batch = OPI_ARENA_ARRAY(&s->scratch, double, n + 1);
  s->taken = OPI_ARENA_ARRAY(&s->scratch, uint32_t, n + 1);
  opipe_status status = OPIPE_OK;
  if (s->cost == NULL || s->from == NULL || s->least == NULL || s->whole == NULL ||
      s->batch == NULL || s->taken == NULL)
    status = opi_fail_nomem(err, n * sizeof(double), "slices");
  for (uint32_t r = 0; r < n && status == OPIPE_OK; ++r) {
    if (problem->times[r] != NULL)
      status = fill_costs(s, r);
  }
  if (status < 0)
    opi_arena_release(&s->scratch);
  return status;
}

/* ---- results ---- */

static void sort_falling(uint32_t *lengths, uint32_t n) {
  for (uint32_t i = 1; i < n; ++i) {
    const uint32_t x = lengths[i];
    uint32_t at = i;
    for (; at > 0 && lengths[at - 1] < x; --at)
      lengths[at] = lengths[at - 1];
    lengths[at] = x;
  }
}

/* Sum and longest slice of a group of r + 1 rows cut into `lengths`. False: not multiples of units.
 */
static bool measure(const search *s, uint32_t r, const uint32_t *lengths, uint32_t n,
                    double *out_sum, double *out_longest) {
  const opi_slice_problem *p = s->problem;
  const size_t side = (size_t)s->n_units + 1;
  uint32_t token = 0;
  *out_sum = *out_longest = 0;
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t a = token / p->unit, b = (token + lengths[k] - 1) / p->unit + 1;
    if (token_of(p, a) != token || token_of(p, b) != token + lengths[k])
      return false;
    const double cost = s->cost[r][b * side + a];
    *out_sum += cost;
    *out_longest = cost > *out_longest ? cost : *out_longest;
    token += lengths[k];
  }
  return true;
}

/* Sorts longer slices first if that is as good, since the order found first is arbitrary. */
static opipe_status order_lengths(opi_slicing *out, const search *s, uint32_t r, uint32_t *lengths,
                                  uint32_t n, opipe_error *err) {
  double sum = 0, longest = 0, sorted_sum = 0, sorted_longest = 0;
  uint32_t *sorted = opi_arena_copy(&out->arena, lengths, n * sizeof *lengths);
  if (sorted == NULL)
    return opi_fail_nomem(err, n * sizeof *lengths, "slices");
  sort_falling(sorted, n);
  if (measure(s, r, lengths, n, &sum, &longest) &&
      measure(s, r, sorted, n, &sorted_sum, &sorted_longest) &&
      sorted_sum <= sum * (1 + n * rounding) && sorted_longest <= longest * (1 + rounding))
    memcpy(lengths, sorted, n * sizeof *lengths);
  return OPIPE_OK;
}

static opipe_status add_group(opi_slicing *out, const search *s, uint32_t r, opipe_error *err) {
  uint32_t n = 0;
  for (uint32_t b = s->n_units; b > 0; b = s->from[r][b])
    ++n;
  uint32_t *lengths = OPI_ARENA_ARRAY(&out->arena, uint32_t, n);
  if (lengths == NULL)
    return opi_fail_nomem(err, n * sizeof(uint32_t), "slices");
  uint32_t at = n;
  for (uint32_t b = s->n_units; b > 0; b = s->from[r][b])
    lengths[--at] = token_of(s->problem, b) - token_of(s->problem, s->from[r][b]);
  OPI_TRY(order_lengths(out, s, r, lengths, n, err));
  out->groups[out->n_groups++] = (opi_slice_group){r + 1, n, lengths};
  return OPIPE_OK;
}

static int larger_first(const void *left, const void *right) {
  const opi_slice_group *a = left, *b = right;
  return a->rows > b->rows ? -1 : a->rows < b->rows;
}

/* Reads the result out of the tables of `s`. */
static opipe_status read_out(const search *s, const opipe_allocator *allocator, opi_slicing *out,
                             opipe_error *err) {
  const uint32_t n = s->problem->n_rows;
  opi_arena_init(&out->arena, allocator, 0);
  out->n_groups = 0;
  out->groups = OPI_ARENA_ARRAY(&out->arena, opi_slice_group, n);
  opipe_status status =
      out->groups == NULL ? opi_fail_nomem(err, n * sizeof(opi_slice_group), "slices") : OPIPE_OK;
  for (uint32_t k = n; k > 0 && status == OPIPE_OK; k -= s->taken[k])
    status = add_group(out, s, s->taken[k] - 1, err);
  if (status < 0) {
    opi_slicing_free(out);
    return status;
  }
  qsort(out->groups, out->n_groups, sizeof(opi_slice_group), larger_first);
  out->sum = s->batch[n];
  out->longest = longest_taken(s);
  out->total = out->sum + (s->problem->n_stages - 1.0) * out->longest;
  return OPIPE_OK;
}

void opi_slicing_free(opi_slicing *slicing) {
  if (slicing->groups != NULL)
    opi_arena_release(&slicing->arena);
  *slicing = (opi_slicing){.groups = NULL};
}

opipe_status opi_slices_plan(const opi_slice_problem *problem, const opipe_allocator *allocator,
                             opi_slicing *out_slicing, opipe_error *err) {
  search s;
  const double hops = problem->n_stages - 1.0;
  OPI_TRY(start(&s, problem, allocator, err));
  opipe_status status = collect_bounds(&s);
  const double least = status == OPIPE_OK ? fill_batch(&s, INFINITY) : INFINITY;
  double best = INFINITY, best_bound = INFINITY;
  if (status == OPIPE_OK && !isfinite(least)) {
    status = opi_fail(err, OPIPE_E_INVALID,
                      "slices: %u rows are not a sum of numbers of rows with known times",
                      problem->n_rows);
  }
  for (uint32_t i = 0; i < s.n_bounds && status == OPIPE_OK; ++i) {
    if (least + hops * (i == 0 ? 0 : s.bounds[i - 1]) >= best)
      break;
    const double sum = fill_batch(&s, s.bounds[i]);
    const double total = isfinite(sum) ? sum + hops * longest_taken(&s) : INFINITY;
    if (total < best) {
      best = total;
      best_bound = s.bounds[i];
    }
  }
  if (status == OPIPE_OK) {
    (void)fill_batch(&s, best_bound);
    status = read_out(&s, allocator, out_slicing, err);
  }
  opi_arena_release(&s.scratch);
  return status;
}

opipe_status opi_slices_even(const opi_slice_problem *problem, uint32_t n_slices,
                             const opipe_allocator *allocator, opi_slicing *out_slicing,
                             opipe_error *err) {
  search s;
  OPI_TRY(start(&s, problem, allocator, err));
  opipe_status status = OPIPE_OK;
  if (n_slices == 0 || n_slices > s.n_units || s.cost[0] == NULL) {
    status = opi_fail(err, OPIPE_E_INVALID,
                      "slices: %u even slices of %u units; a row by itself %s times", n_slices,
                      s.n_units, s.cost[0] == NULL ? "has no" : "has");
  }
  const size_t side = (size_t)s.n_units + 1;
  double sum = 0;
  for (uint32_t k = 0, b = 0; k < n_slices && status == OPIPE_OK; ++k) {
    const uint32_t a = b;
    b += s.n_units / n_slices + (k < s.n_units % n_slices);
    s.from[0][b] = a;
    sum += s.cost[0][b * side + a];
  }
  if (status == OPIPE_OK) {
    for (uint32_t k = 1; k <= problem->n_rows; ++k) {
      s.batch[k] = k * sum;
      s.taken[k] = 1;
    }
    status = read_out(&s, allocator, out_slicing, err);
  }
  opi_arena_release(&s.scratch);
  return status;
}

/* ---- fit ---- */

/* Solves m x = m[.][4] by elimination with row exchange; false: singular. */
static bool solve(double m[4][5], double out_x[4]) {
  for (int k = 0; k < 4; ++k) {
    int pivot = k;
    for (int r = k + 1; r < 4; ++r)
      pivot = fabs(m[r][k]) > fabs(m[pivot][k]) ? r : pivot;
    if (fabs(m[pivot][k]) < 1e-9)
      return false;
    for (int c = 0; c < 5; ++c) {
      const double held = m[k][c];
      m[k][c] = m[pivot][c];
      m[pivot][c] = held;
    }
    for (int r = 0; r < 4; ++r) {
      const double f = r == k ? 0 : m[r][k] / m[k][k];
      for (int c = k; c < 5; ++c)
        m[r][c] -= f * m[k][c];
    }
  }
  for (int k = 0; k < 4; ++k)
    out_x[k] = m[k][4] / m[k][k];
  return true;
}

opipe_status opi_slices_fit(const opi_slice_sample *samples, uint32_t n,
                            opi_slice_context *out_context, opipe_error *err) {
  double m[4][5] = {{0}}, x[4] = {0}, length = 1, context = 1;
  for (uint32_t i = 0; i < n;
       ++i) { /* scale columns alike, so that one threshold detects singularity */
    length = samples[i].length > length ? samples[i].length : length;
    context = samples[i].context > context ? samples[i].context : context;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const double l = samples[i].length / length, c = samples[i].context / context;
    const double row[5] = {1, l, c, l * c, samples[i].extra};
    for (int r = 0; r < 4; ++r) {
      for (int k = 0; k < 5; ++k)
        m[r][k] += row[r] * row[k] / n;
    }
  }
  if (n < 4 || !solve(m, x)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "slices: %u samples do not tell apart what a context costs; at least two "
                    "lengths with two contexts each are needed",
                    n);
  }
  out_context->at[0] = x[0];
  out_context->at[1] = x[1] / length;
  out_context->at[2] = x[2] / context;
  out_context->at[3] = x[3] / (length * context);
  return OPIPE_OK;
}
