/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that a model computes from the length of the axis and that scale sums over it: a loss
 * divided by the rows of its batch, by rows times tokens, multiplied by one over them.
 *
 * Bound, they are constants; two bindings tell them from numbers of the file. They are known by
 * their names from then on, and every other binding is asked whether they are what its own length
 * makes them.
 */
#include <math.h>
#include <string.h>

#include "loader/passes/carry.h"

typedef struct known_count {
  const char *name;
  double times; /* of the length, or of its inverse */
  int32_t power;
  struct known_count *next;
} known_count;

struct opi_known_counts {
  opi_arena *arena;
  known_count *first;
};

opi_known_counts *opi_known_counts_new(opi_arena *arena) {
  opi_known_counts *counts = OPI_ARENA_NEW(arena, opi_known_counts);
  if (counts != NULL)
    counts->arena = arena;
  return counts;
}

/* The one element of a known tensor, as a double; false: there are more, or it is no number. */
static bool number_of(const opi_value *v, double *out) {
  uint64_t n = 0;
  float single = 0;
  if (v->data == NULL || !opi_shape_elems(v->shape, (uint32_t)v->rank, &n) || n != 1)
    return false;
  if (v->dtype == OPIPE_FLOAT)
    *out = (memcpy(&single, v->data, sizeof single), (double)single);
  else if (v->dtype == OPIPE_DOUBLE)
    memcpy(out, v->data, sizeof *out);
  else if (v->dtype == OPIPE_INT32 || v->dtype == OPIPE_INT64)
    *out = (double)opi_index_at(v, 0);
  else
    return false;
  return true;
}

/* The factor between x and a length (or its inverse); x was rounded once or twice in fp32. */
static double times_of(double x, double length, int32_t power) {
  return power > 0 ? x / length : x * length;
}

static bool is_near(double a, double b) {
  return a != 0 && fabs(a - b) <= 4e-7 * fabs(a);
}

opipe_status opi_known_count_note(opi_known_counts *counts, const opi_value *a, int64_t whole,
                                  const opi_value *b, int64_t length, bool *out_is,
                                  opipe_error *err) {
  double x, y;
  *out_is = false;
  if (counts == NULL || whole <= 0 || length <= 0 || whole == length || a->rank != b->rank ||
      !number_of(a, &x) || !number_of(b, &y))
    return OPIPE_OK;
  for (int32_t power = -1; power <= 1 && !*out_is; power += 2) {
    const double times = times_of(y, (double)length, power);
    if (!is_near(times_of(x, (double)whole, power), times))
      continue;
    known_count *own = OPI_ARENA_NEW(counts->arena, known_count);
    const char *name = opi_arena_strdup(counts->arena, b->name);
    if (own == NULL || name == NULL)
      return opi_fail_nomem(err, sizeof *own, "a number of rows");
    *own = (known_count){name, times, power, counts->first};
    counts->first = own;
    *out_is = true;
  }
  return OPIPE_OK;
}

static opipe_status mark(const opi_follower *f, const known_count *count, uint32_t v,
                         opipe_error *err) {
  double x = 0;
  if (!number_of(&f->graph->values[v], &x) ||
      !is_near(count->times, times_of(x, (double)f->length, count->power))) {
    return opi_fail(
        err, OPIPE_E_UNSUPPORTED,
        "constant '%s' is %g with %lld rows, and not %g as in other numbers of rows", count->name,
        x, (long long)f->length,
        count->power > 0 ? count->times * (double)f->length : count->times / (double)f->length);
  }
  f->carry[v].power = count->power;
  return OPIPE_OK;
}

opipe_status opi_known_count_mark(const opi_follower *f, opipe_error *err) {
  const opi_known_counts *counts = opi_known_axis_counts(f->known);
  const known_count *first = counts == NULL || f->length <= 0 ? NULL : counts->first;
  for (const known_count *c = first; c != NULL; c = c->next) {
    for (uint32_t v = 0; v < f->graph->n_values; ++v) {
      if (f->graph->values[v].data != NULL && strcmp(f->graph->values[v].name, c->name) == 0)
        OPI_TRY(mark(f, c, v, err));
    }
  }
  return OPIPE_OK;
}
