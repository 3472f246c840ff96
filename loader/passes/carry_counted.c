/* SPDX-License-Identifier: Apache-2.0 */
/* Positions that count along the axis: row * tokens + token, by which exporters pick from a batch
 * that they have flattened.
 *
 * Such a value is n * count + local for element n of the axis, where `local` is what the element
 * alone would have. Moving, adding and scaling keep this form. Picking from data that hold `count`
 * entries per element is the element's own business when `local` stays within them, which is shown
 * from the operators that made it; the part of a split picks the same from its own rows.
 */
#include "loader/passes/carry.h"

enum { MOST_STEPS_BACK = 32 };

/* Is dimension [outer, N, inner] of known integers v(n) = v(0) + n * count everywhere? */
static bool counts(const opi_value *value, const opi_carry *form, int64_t length,
                   int64_t *out_count) {
  int64_t before = form->outer, after = form->inner;
  for (int32_t d = 0; d < form->axis; ++d)
    before *= value->shape[d];
  for (int32_t d = form->axis + 1; d < value->rank; ++d)
    after *= value->shape[d];
  int64_t count = 0, step = 0;
  if (before == 0 || after == 0 ||
      __builtin_sub_overflow(opi_index_at(value, (uint64_t)after), opi_index_at(value, 0), &count))
    return false;
  for (int64_t i = 0; i < before * length * after; ++i) {
    const int64_t previous = i / after % length == 0 ? i : i - after;
    if (__builtin_sub_overflow(opi_index_at(value, (uint64_t)i),
                               opi_index_at(value, (uint64_t)previous), &step) ||
        step != (previous == i ? 0 : count))
      return false;
  }
  *out_count = count;
  return count != 0;
}

static bool is_index_type(uint32_t dtype) {
  return dtype == OPIPE_INT64 || dtype == OPIPE_INT32;
}

opi_carry opi_carry_counting(const opi_follower *f, uint32_t v) {
  const opi_value *value = &f->graph->values[v];
  if (f->length < 2 || value->data == NULL || !is_index_type(value->dtype))
    return OPI_CARRY_NONE;
  for (int32_t d = 0; d < value->rank; ++d) {
    const int64_t rest = value->shape[d] / f->length;
    if (rest < 1 || value->shape[d] % f->length != 0)
      continue;
    for (uint32_t form = 0; form < (rest == 1 ? 1u : 2u); ++form) {
      opi_carry carry = {d, 0, form == 0 ? 1 : rest, form == 0 ? rest : 1, 0};
      if (counts(value, &carry, f->length, &carry.count))
        return carry;
    }
  }
  return OPI_CARRY_NONE;
}

/* ---- the range of `local` ---- */

typedef struct range {
  int64_t low, high;
} range;

static bool local_range(const opi_follower *f, uint32_t v, uint32_t depth, range *out);

static bool known_range(const opi_follower *f, uint32_t v, range *out) {
  const opi_value *value = &f->graph->values[v];
  const uint64_t elems = opi_elems(value);
  const opi_carry carry = f->derived != NULL ? f->derived[v] : OPI_CARRY_NONE;
  int64_t after = carry.inner;
  if (!is_index_type(value->dtype) || elems == 0)
    return false;
  for (int32_t d = carry.axis + 1; opi_carries(&carry) && d < value->rank; ++d)
    after *= value->shape[d];
  for (uint64_t i = 0; i < elems; ++i) {
    const int64_t n = opi_carries(&carry) ? (int64_t)i / after % f->length : 0;
    const int64_t local = opi_index_at(value, i) - n * carry.count;
    out->low = i == 0 || local < out->low ? local : out->low;
    out->high = i == 0 || local > out->high ? local : out->high;
  }
  return true;
}

/* The two inputs' ranges; wide numbers are not followed, so that nothing overflows. */
static bool two_ranges(const opi_follower *f, const opi_node *node, uint32_t depth, range *a,
                       range *b) {
  const int64_t most = (int64_t)1 << 31;
  return local_range(f, node->in[0], depth, a) && local_range(f, node->in[1], depth, b) &&
         a->low > -most && a->high < most && b->low > -most && b->high < most;
}

static bool arithmetic_range(const opi_follower *f, const opi_node *node, uint32_t depth,
                             range *out) {
  const uint32_t rule = opi_op_of(node)->range;
  range a, b;
  if (!two_ranges(f, node, depth, &a, &b))
    return false;
  if (rule == OPI_RANGE_ADD) {
    *out = (range){a.low + b.low, a.high + b.high};
  } else if (rule == OPI_RANGE_SUB) {
    *out = (range){a.low - b.high, a.high - b.low};
  } else {
    const int64_t p[4] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
    *out = (range){p[0], p[0]};
    for (uint32_t i = 1; i < 4; ++i) {
      out->low = p[i] < out->low ? p[i] : out->low;
      out->high = p[i] > out->high ? p[i] : out->high;
    }
  }
  return true;
}

enum {
  MOVES =
      OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_STRETCHED | OPI_TAKES_REPEATED | OPI_TAKES_PART
};

static bool local_range(const opi_follower *f, uint32_t v, uint32_t depth, range *out) {
  const opi_value *value = &f->graph->values[v];
  if (depth == 0)
    return false;
  if (value->data != NULL)
    return known_range(f, v, out);
  if (value->producer == OPIPE_NONE)
    return false;
  const opi_node *node = &f->graph->nodes[value->producer];
  const opi_op *op = opi_op_of(node);
  const opi_value *x = &f->graph->values[node->in[0]];
  if (op->range == OPI_RANGE_PLACE) {
    *out = (range){0, x->shape[opi_attr_int(node, "axis", 0)] - 1};
    return true;
  }
  if (op->takes == OPI_TAKES_CAST && x->dtype == OPIPE_BOOL) {
    *out = (range){0, 1};
    return true;
  }
  if (op->range == OPI_RANGE_ADD || op->range == OPI_RANGE_SUB || op->range == OPI_RANGE_MUL)
    return arithmetic_range(f, node, depth - 1, out);
  const bool cast =
      op->takes == OPI_TAKES_CAST && is_index_type(x->dtype) && is_index_type(value->dtype);
  return (cast || (op->takes & MOVES) != 0) && local_range(f, node->in[0], depth - 1, out);
}

/* ---- rules ---- */

/* The one number that a known value holds everywhere. */
static bool known_scalar(const opi_value *value, int64_t *out) {
  const uint64_t elems = opi_elems(value);
  if (value->data == NULL || !is_index_type(value->dtype) || elems == 0)
    return false;
  *out = opi_index_at(value, 0);
  for (uint64_t i = 1; i < elems; ++i) {
    if (opi_index_at(value, i) != *out)
      return false;
  }
  return true;
}

static bool count_of(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                     int64_t *out) {
  const opi_op *op = opi_op_of(node);
  int64_t factor = 0;
  *out = in[0].count;
  if (op->range == OPI_RANGE_ADD)
    return !__builtin_add_overflow(in[0].count, in[1].count, out);
  if (op->range == OPI_RANGE_SUB)
    return !__builtin_sub_overflow(in[0].count, in[1].count, out);
  if (op->range == OPI_RANGE_MUL) {
    const uint32_t other = in[0].count != 0 ? 1 : 0;
    return known_scalar(&graph->values[node->in[other]], &factor) &&
           !__builtin_mul_overflow(in[1 - other].count, factor, out);
  }
  if (op->takes == OPI_TAKES_CAST)
    return is_index_type(graph->values[node->out[0]].dtype);
  if (op->takes != OPI_TAKES_JOINED)
    return (op->takes & MOVES) != 0;
  for (uint32_t i = 1; i < node->n_in; ++i) {
    if (in[i].count != in[0].count)
      return false;
  }
  return true;
}

/* Data [.., rows * inner, ..] picked by row * inner + local. */
static opipe_status pick(const opi_follower *f, const opi_node *node, const opi_carry *in,
                         opi_carry *out, opipe_error *err) {
  const int32_t axis = (int32_t)opi_attr_int(node, "axis", 0);
  const char *name = f->graph->values[node->in[1]].name;
  range local = {0, 0};
  if (in[0].axis != axis || in[0].outer != 1 || in[0].inner != in[1].count) {
    return opi_carry_fail(f->graph, node, err,
                          "'%s' counts %" PRId64
                          " for each element of it, which '%s' does not hold",
                          name, in[1].count, f->graph->values[node->in[0]].name);
  }
  if (!local_range(f, node->in[1], MOST_STEPS_BACK, &local) || local.low < 0 ||
      local.high >= in[1].count) {
    return opi_carry_fail(f->graph, node, err,
                          "'%s' may pick entries of another element than its own", name);
  }
  out[0] = in[1];
  out[0].axis += axis;
  out[0].count = 0;
  return OPIPE_OK;
}

opipe_status opi_carry_counted(const opi_follower *f, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err) {
  const opi_op *op = opi_op_of(node);
  opi_carry plain[8];
  int64_t count = 0;
  if (op->takes == OPI_TAKES_ROWS && in[0].count == 0 && opi_carries(&in[0]))
    return pick(f, node, in, out, err);
  if (op->carry == NULL || node->n_in > OPI_COUNT(plain) || !count_of(f->graph, node, in, &count))
    return opi_carry_fail(f->graph, node, err, "an input counts along it");
  for (uint32_t i = 0; i < node->n_in; ++i) {
    plain[i] = in[i];
    plain[i].count = 0;
  }
  OPI_TRY(op->carry(f->graph, node, plain, out, err));
  for (uint32_t o = 0; o < node->n_out; ++o)
    out[o].count = count;
  return OPIPE_OK;
}
