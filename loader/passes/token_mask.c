/* SPDX-License-Identifier: Apache-2.0 */
/* Shows what stands above the diagonal of a mask or of scores, whatever the inputs hold.
 *
 * Each value is bounded element by element: lo <= value <= hi. The bounds of a node's output are
 * made of its inputs' by a few nodes of the same kind, which the evaluator computes at once (what
 * is known has equal bounds; a movement moves both; a comparison is decided where the bounds are
 * apart). So it does not matter how a mask is spelt. Bounds stay as small as they broadcast from: a
 * batch that a constant was expanded to costs nothing.
 *
 * Assumptions: a graph input that a mask is computed from holds numbers from 0 to 1 (such a number
 * never decides a comparison, unless it was made very large); activations and products of
 * parameters are ordinary numbers, of which a score of LOW leaves nothing.
 */
#include "loader/passes/token_mask.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "loader/ops/common.h"
#include "loader/ops/kit.h"

enum { MOST_DEPTH = 256 };
static const double LOW = -1e3;     /* exp(LOW) is 0 in every type */
static const double ORDINARY = 1e2; /* an activation */
static const double WHOLE = 1e9;    /* an integer that is computed from activations */
static const uint64_t MOST_ELEMS = OPI_TOKEN_MOST;

typedef struct bounds {
  uint32_t lo, hi; /* constants of the prover's graph, fp32; OPIPE_NONE: not looked at yet */
  bool assumed;    /* from what a graph input is taken to hold */
} bounds;

typedef struct prover {
  const opi_graph *whole;
  opi_arena scratch;
  opi_builder b;
  bounds *of; /* [whole->n_values] */
  opipe_error *err;
} prover;

/* ---- constants ---- */

static opipe_status number(prover *p, double x, uint32_t *out) {
  return opi_k_const(*out = opi_b_const_scalar(&p->b, OPIPE_FLOAT, x), p->err);
}

static opipe_status between(prover *p, double lo, double hi, bounds *out) {
  OPI_TRY(number(p, lo, &out->lo));
  return number(p, hi, &out->hi);
}

static opipe_status unknown(prover *p, uint32_t dtype, bounds *out) {
  const bool integer = opi_dtype_is_integer(dtype);
  const double most = dtype == OPIPE_BOOL ? 1 : integer ? WHOLE : ORDINARY;
  return between(p, dtype == OPIPE_BOOL ? 0 : -most, most, out);
}

/* Known content as fp32; one number where all are the same. */
static opipe_status exact(prover *p, const opi_value *v, bounds *out) {
  const uint64_t n = opi_elems(v);
  float *list = n == 0 || n > MOST_ELEMS ? NULL : opi_arena_array(&p->scratch, n, sizeof *list);
  bool same = true;
  if (n == 0 || n > MOST_ELEMS)
    return unknown(p, v->dtype, out);
  if (list == NULL)
    return opi_fail_nomem(p->err, n * sizeof *list, "a mask");
  for (uint64_t i = 0; i < n; ++i) {
    list[i] = (float)opi_known_element(v, i);
    same = same && list[i] == list[0];
  }
  if (same) {
    OPI_TRY(number(p, (double)list[0], &out->lo));
  } else {
    OPI_TRY(opi_k_const(
        out->lo = opi_b_borrow(&p->b, NULL, OPIPE_FLOAT, v->shape, (uint32_t)v->rank, list),
        p->err));
  }
  out->hi = out->lo;
  return OPIPE_OK;
}

/* ---- short forms; every result is computed at once ---- */

static opipe_status two(prover *p, const char *op, uint32_t a, uint32_t c, uint32_t *out) {
  return opi_b_op2(&p->b, op, a, c, out, p->err);
}

/* a < c as 0 and 1 */
static opipe_status less(prover *p, const char *op, uint32_t a, uint32_t c, uint32_t *out) {
  uint32_t yes;
  OPI_TRY(two(p, op, a, c, &yes));
  return opi_k_cast(&p->b, yes, OPIPE_FLOAT, out, p->err);
}

static opipe_status opposite(prover *p, uint32_t a, uint32_t *out) {
  uint32_t one;
  OPI_TRY(number(p, 1, &one));
  return two(p, "Sub", one, a, out);
}

static opipe_status choose(prover *p, uint32_t cond, uint32_t yes, uint32_t no, uint32_t *out) {
  uint32_t truth;
  OPI_TRY(opi_k_cast(&p->b, cond, OPIPE_BOOL, &truth, p->err));
  return opi_k_where(&p->b, truth, yes, no, out, p->err);
}

/* The least and the largest of all pairs of ends. */
static opipe_status corners(prover *p, const char *op, const bounds *a, const bounds *c,
                            bounds *out) {
  const uint32_t left[2] = {a->lo, a->hi}, right[2] = {c->lo, c->hi};
  for (uint32_t i = 0; i < 4; ++i) {
    uint32_t x;
    if ((i / 2 != 0 && a->lo == a->hi) || (i % 2 != 0 && c->lo == c->hi))
      continue;
    OPI_TRY(two(p, op, left[i / 2], right[i % 2], &x));
    if (i == 0)
      out->lo = out->hi = x;
    if (i == 0)
      continue;
    OPI_TRY(two(p, "Min", out->lo, x, &out->lo));
    OPI_TRY(two(p, "Max", out->hi, x, &out->hi));
  }
  return OPIPE_OK;
}

/* ---- comparisons and logic ---- */

/* An end that rests on what an input is taken to hold counts where it is very large alone. */
static opipe_status believed(prover *p, const bounds *x, bounds *out) {
  uint32_t edge, far, sure;
  *out = *x;
  if (!x->assumed)
    return OPIPE_OK;
  OPI_TRY(number(p, LOW, &edge));
  OPI_TRY(less(p, "LessOrEqual", x->hi, edge, &sure));
  OPI_TRY(number(p, INFINITY, &far));
  OPI_TRY(choose(p, sure, x->hi, far, &out->hi));
  OPI_TRY(number(p, -LOW, &edge));
  OPI_TRY(less(p, "GreaterOrEqual", x->lo, edge, &sure));
  OPI_TRY(number(p, -INFINITY, &far));
  return choose(p, sure, x->lo, far, &out->lo);
}

static opipe_status equal(prover *p, const bounds *x, const bounds *y, bounds *out) {
  bounds a, c;
  uint32_t t;
  OPI_TRY(believed(p, x, &a));
  OPI_TRY(believed(p, y, &c));
  OPI_TRY(less(p, "LessOrEqual", a.lo, c.hi, &out->hi));
  OPI_TRY(less(p, "LessOrEqual", c.lo, a.hi, &t));
  OPI_TRY(two(p, "Mul", out->hi, t, &out->hi));
  OPI_TRY(less(p, "GreaterOrEqual", a.lo, c.hi, &out->lo));
  OPI_TRY(less(p, "GreaterOrEqual", c.lo, a.hi, &t));
  return two(p, "Mul", out->lo, t, &out->lo);
}

/* rising: the operator asks whether x is less, not greater. */
static opipe_status compare(prover *p, const char *op, bool rising, const bounds *x,
                            const bounds *y, bounds *out) {
  bounds a, c;
  OPI_TRY(believed(p, x, &a));
  OPI_TRY(believed(p, y, &c));
  OPI_TRY(less(p, op, rising ? a.hi : a.lo, rising ? c.lo : c.hi, &out->lo));
  return less(p, op, rising ? a.lo : a.hi, rising ? c.hi : c.lo, &out->hi);
}

static opipe_status where(prover *p, const bounds *c, const bounds *x, const bounds *y,
                          bounds *out) {
  if (c->lo == c->hi) {
    OPI_TRY(choose(p, c->lo, x->lo, y->lo, &out->lo));
    return choose(p, c->lo, x->hi, y->hi, &out->hi);
  }
  OPI_TRY(two(p, "Min", x->lo, y->lo, &out->lo));
  OPI_TRY(two(p, "Max", x->hi, y->hi, &out->hi));
  OPI_TRY(choose(p, c->hi, out->lo, y->lo, &out->lo));
  OPI_TRY(choose(p, c->hi, out->hi, y->hi, &out->hi));
  OPI_TRY(choose(p, c->lo, x->lo, out->lo, &out->lo));
  return choose(p, c->lo, x->hi, out->hi, &out->hi);
}

static opipe_status cast(prover *p, const opi_value *from, const opi_value *to, const bounds *x,
                         bounds *out) {
  uint32_t zero, below, above;
  *out = *x;
  if (to->dtype == from->dtype || opi_dtype_is_float(to->dtype))
    return OPIPE_OK;
  if (to->dtype != OPIPE_BOOL) {
    OPI_TRY(opi_b_op1(&p->b, "Floor", x->lo, &out->lo, p->err));
    return opi_b_op1(&p->b, "Ceil", x->hi, &out->hi, p->err);
  }
  OPI_TRY(number(p, 0, &zero)); /* true: all above or all below 0; false: both ends are 0 */
  OPI_TRY(less(p, "Less", zero, x->lo, &above));
  OPI_TRY(less(p, "Less", x->hi, zero, &below));
  OPI_TRY(two(p, "Max", above, below, &out->lo));
  if (x->lo == x->hi) {
    out->hi = out->lo;
    return OPIPE_OK;
  }
  OPI_TRY(less(p, "Less", x->lo, zero, &below));
  OPI_TRY(less(p, "Less", zero, x->hi, &above));
  return two(p, "Max", above, below, &out->hi);
}

/* 0 to 1, and 0 where the score is LOW. */
static opipe_status weights(prover *p, const bounds *x, bounds *out) {
  uint32_t low;
  OPI_TRY(number(p, LOW, &low));
  OPI_TRY(number(p, 0, &out->lo));
  return less(p, "Less", low, x->hi, &out->hi);
}

/* ---- movements: both bounds are moved ---- */

/* Bit i: input i is moved; the others (shapes, indices) must be known. */
static uint32_t moved(const opi_op *op) {
  if (op->takes == OPI_TAKES_JOINED)
    return UINT32_MAX;
  return (op->takes & (OPI_TAKES_PADDED | OPI_TAKES_SCATTERED)) != 0 ? 5 : 1;
}

static opipe_status whole_shape(prover *p, const opi_value *v, uint32_t x, uint32_t *out) {
  return opi_k_expand(&p->b, x, v->shape, (uint32_t)v->rank, out, p->err);
}

static opipe_status move_one(prover *p, const opi_node *node, uint32_t data, bool high,
                             uint32_t output, uint32_t *out) {
  uint32_t *in = OPI_ARENA_ARRAY(&p->scratch, uint32_t, node->n_in);
  uint32_t *made = OPI_ARENA_ARRAY(&p->scratch, uint32_t, node->n_out);
  if (in == NULL || made == NULL)
    return opi_fail_nomem(p->err, node->n_in * 4, "a mask");
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = OPIPE_NONE;
    if (node->in[i] == OPIPE_NONE)
      continue;
    const opi_value *v = &p->whole->values[node->in[i]];
    const bounds *x = &p->of[node->in[i]];
    if (i < 32 && (data >> i & 1u) != 0) {
      OPI_TRY(whole_shape(p, v, high ? x->hi : x->lo, &in[i]));
    } else {
      OPI_TRY(opi_k_const(
          in[i] = opi_b_borrow(&p->b, NULL, v->dtype, v->shape, (uint32_t)v->rank, v->data),
          p->err));
    }
  }
  const opi_emit emit = {.op = node->op,
                         .in = in,
                         .n_in = node->n_in,
                         .n_out = node->n_out,
                         .attrs = node->attrs,
                         .n_attrs = node->n_attrs,
                         .version = node->version};
  OPI_TRY(opi_b_emit(&p->b, &emit, made, p->err));
  *out = made[output];
  return OPIPE_OK;
}

/* True if one pair of bounds holds for every element; movements keep that. */
static bool is_uniform(const prover *p, const bounds *x) {
  return p->b.graph->values[x->lo].rank == 0 && p->b.graph->values[x->hi].rank == 0;
}

/* The ends over all elements. */
static opipe_status hull(prover *p, const bounds *x, bounds *out) {
  const opi_value *lo = &p->b.graph->values[x->lo], *hi = &p->b.graph->values[x->hi];
  double least = INFINITY, most = -INFINITY;
  for (uint64_t i = 0; i < opi_elems(lo); ++i)
    least = fmin(least, opi_known_element(lo, i));
  for (uint64_t i = 0; i < opi_elems(hi); ++i)
    most = fmax(most, opi_known_element(hi, i));
  return between(p, least, most, out);
}

static opipe_status move(prover *p, const opi_node *node, uint32_t output, bounds *out) {
  const uint32_t picks = OPI_TAKES_ROWS | OPI_TAKES_TUPLES | OPI_TAKES_ENTRIES;
  const uint32_t plain = picks | OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_PART |
                         OPI_TAKES_PARTS | OPI_TAKES_REPEATED;
  const opi_op *op = opi_op_of(node);
  const uint32_t data = moved(op);
  const opi_value *y = &p->whole->values[node->out[output]];
  const bounds *first = &p->of[node->in[0]];
  if ((op->takes & plain) != 0 && is_uniform(p, first)) {
    *out = *first;
    return OPIPE_OK;
  }
  bool known = opi_elems(y) <= MOST_ELEMS && node->n_in <= 32;
  for (uint32_t i = 0; i < node->n_in && known; ++i) {
    const uint32_t v = node->in[i];
    if (v == OPIPE_NONE)
      continue;
    known = (data >> i & 1u) != 0 ? opi_elems(&p->whole->values[v]) <= MOST_ELEMS
                                  : opi_value_known(&p->whole->values[v]);
    out->assumed = out->assumed || p->of[v].assumed;
  }
  if (!known && (op->takes & picks) != 0) /* any of them */
    return hull(p, first, out);
  if (!known)
    return unknown(p, y->dtype, out);
  OPI_TRY(move_one(p, node, data, false, output, &out->lo));
  out->hi = out->lo;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    if (v != OPIPE_NONE && (data >> i & 1u) != 0 && p->of[v].lo != p->of[v].hi)
      return move_one(p, node, data, true, output, &out->hi);
  }
  return OPIPE_OK;
}

/* ---- one node ---- */

static opipe_status sum(prover *p, const char *op, const bounds *a, const bounds *c, bounds *out) {
  OPI_TRY(two(p, op, a->lo, c->lo, &out->lo));
  out->hi = out->lo;
  if (a->lo == a->hi && c->lo == c->hi)
    return OPIPE_OK;
  return two(p, op, a->hi, c->hi, &out->hi);
}

static opipe_status difference(prover *p, const bounds *a, const bounds *c, bounds *out) {
  const bounds turned = {c->hi, c->lo, c->assumed};
  return sum(p, "Sub", a, &turned, out);
}

static opipe_status differs(prover *p, const bounds *a, const bounds *c, bounds *out) {
  bounds same = {OPIPE_NONE, OPIPE_NONE, false};
  OPI_TRY(equal(p, a, c, &same));
  OPI_TRY(opposite(p, same.hi, &out->lo));
  return opposite(p, same.lo, &out->hi);
}

static opipe_status absolute(prover *p, const bounds *x, bounds *out) {
  uint32_t a, c;
  OPI_TRY(opi_b_op1(&p->b, "Abs", x->lo, &a, p->err));
  OPI_TRY(opi_b_op1(&p->b, "Abs", x->hi, &c, p->err));
  OPI_TRY(number(p, 0, &out->lo));
  return two(p, "Max", a, c, &out->hi);
}

static opipe_status negate(prover *p, const bounds *x, bounds *out) {
  OPI_TRY(opi_b_op1(&p->b, "Neg", x->hi, &out->lo, p->err));
  out->hi = out->lo;
  return x->lo == x->hi ? OPIPE_OK : opi_b_op1(&p->b, "Neg", x->lo, &out->hi, p->err);
}

static opipe_status clip(prover *p, const opi_node *node, bounds *out) {
  *out = p->of[node->in[0]];
  for (uint32_t i = 1; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE)
      OPI_TRY(sum(p, i == 1 ? "Max" : "Min", out, &p->of[node->in[i]], out));
  }
  return OPIPE_OK;
}

/* By a number that nobody knows: 0 stays 0. */
static opipe_status divide(prover *p, const bounds *x, bounds *out) {
  uint32_t zero, above, below;
  OPI_TRY(number(p, 0, &zero));
  OPI_TRY(less(p, "Less", zero, x->hi, &above));
  OPI_TRY(less(p, "Less", x->lo, zero, &below));
  OPI_TRY(two(p, "Max", above, below, &above));
  OPI_TRY(number(p, ORDINARY, &below));
  OPI_TRY(two(p, "Mul", above, below, &out->hi));
  return opi_b_op1(&p->b, "Neg", out->hi, &out->lo, p->err);
}

static opipe_status drop(prover *p, const bounds *x, bounds *out) {
  bounds factor = {OPIPE_NONE, OPIPE_NONE, false};
  OPI_TRY(between(p, 0, ORDINARY, &factor));
  return corners(p, "Mul", x, &factor, out);
}

static opipe_status negation(prover *p, const bounds *x, bounds *out) {
  OPI_TRY(opposite(p, x->hi, &out->lo));
  return opposite(p, x->lo, &out->hi);
}

static bool is_followed(const opi_node *node) {
  const uint32_t range = opi_op_of(node)->range;
  return range != OPI_RANGE_ANY && range != OPI_RANGE_PLACE;
}

static opipe_status bound_node(prover *p, const opi_node *node, uint32_t output, bounds *out) {
  const opi_value *x = &p->whole->values[node->in[0]], *y = &p->whole->values[node->out[0]];
  const bounds *a = &p->of[node->in[0]];
  const bounds *c = node->n_in < 2 || node->in[1] == OPIPE_NONE ? a : &p->of[node->in[1]];
  switch (opi_op_of(node)->range) {
    case OPI_RANGE_RISING:
    case OPI_RANGE_RUNNING_SUM:
      return move(p, node, output, out);
    case OPI_RANGE_ADD:
    case OPI_RANGE_MIN:
    case OPI_RANGE_MAX:
      return sum(p, node->op, a, c, out);
    case OPI_RANGE_SUB:
      return difference(p, a, c, out);
    case OPI_RANGE_MUL:
      return corners(p, "Mul", a, c, out);
    case OPI_RANGE_DIV:
      return c->lo == c->hi ? corners(p, "Div", a, c, out) : divide(p, a, out);
    case OPI_RANGE_ABS:
      return absolute(p, a, out);
    case OPI_RANGE_NEG:
      return negate(p, a, out);
    case OPI_RANGE_CLIP:
      return clip(p, node, out);
    case OPI_RANGE_CAST:
      return cast(p, x, y, a, out);
    case OPI_RANGE_CHOICE:
      return where(p, a, c, &p->of[node->in[2]], out);
    case OPI_RANGE_AND:
      return sum(p, "Mul", a, c, out);
    case OPI_RANGE_OR:
      return sum(p, "Max", a, c, out);
    case OPI_RANGE_XOR:
      return differs(p, a, c, out);
    case OPI_RANGE_NOT:
      return negation(p, a, out);
    case OPI_RANGE_EQUAL:
      return equal(p, a, c, out);
    case OPI_RANGE_LESS:
    case OPI_RANGE_GREATER:
      return compare(p, node->op, opi_op_of(node)->range == OPI_RANGE_LESS, a, c, out);
    case OPI_RANGE_WEIGHTS:
      return weights(p, a, out);
    case OPI_RANGE_NEVER: /* ordinary numbers only */
      return between(p, 0, 0, out);
    case OPI_RANGE_DROPPED:
      return drop(p, a, out);
    default: /* SAME: Expand's shape comes of the broadcast */
      *out = *a;
      return OPIPE_OK;
  }
}

static bool is_known(const prover *p, uint32_t v) {
  return v != OPIPE_NONE && opi_value_known(&p->b.graph->values[v]);
}

static opipe_status look(prover *p, uint32_t v, uint32_t depth) {
  const opi_value *value = &p->whole->values[v];
  bounds found = {OPIPE_NONE, OPIPE_NONE, false};
  opipe_error reason = OPIPE_ERROR_INIT, *outer = p->err;
  if (p->of[v].lo != OPIPE_NONE)
    return OPIPE_OK;
  if (opi_value_known(value))
    return exact(p, value, &p->of[v]);
  if (value->producer == OPIPE_NONE) {
    p->of[v].assumed = value->dtype != OPIPE_BOOL;
    return between(p, 0, 1, &p->of[v]);
  }
  const opi_node *node = &p->whole->nodes[value->producer];
  if (depth == 0 || !is_followed(node))
    return unknown(p, value->dtype, &p->of[v]);
  bool assumed = false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    OPI_TRY(look(p, node->in[i], depth - 1));
    assumed = assumed || p->of[node->in[i]].assumed;
  }
  uint32_t output = 0;
  while (node->out[output] != v)
    ++output;
  p->err = &reason;
  const opipe_status status = bound_node(p, node, output, &found);
  p->err = outer;
  if (status == OPIPE_E_NOMEM)
    return opi_fail_nomem(p->err, 0, "following a mask");
  if (status < 0 || !is_known(p, found.lo) || !is_known(p, found.hi))
    OPI_TRY(unknown(p, value->dtype, &found));
  found.assumed = assumed && value->dtype != OPIPE_BOOL;
  p->of[v] = found;
  return OPIPE_OK;
}

/* ---- above the diagonal ---- */

/* An element of `end` at a column after its row that does not hold; n: all do. */
static uint64_t violation(const opi_value *end, const opi_value *v, const opi_token_plane *plane,
                          int64_t n_tokens, bool upper, uint32_t what, int64_t *out_row,
                          int64_t *out_column) {
  const int32_t off = v->rank - end->rank, r = plane->row - off, c = plane->column - off;
  const uint64_t n = opi_elems(end);
  uint64_t r_stride = 1, c_stride = 1;
  for (int32_t d = end->rank; d-- > 0;) {
    r_stride *= d > r ? (uint64_t)end->shape[d] : 1;
    c_stride *= d > c ? (uint64_t)end->shape[d] : 1;
  }
  const int64_t rows = r < 0 ? 1 : end->shape[r], columns = c < 0 ? 1 : end->shape[c];
  for (uint64_t i = 0; i < n; ++i) {
    const int64_t row = (int64_t)(i / r_stride) % rows;
    const int64_t column =
        columns == 1 ? n_tokens - 1 : (int64_t)(i / c_stride) % columns - plane->lead;
    if (column <= row || column >= n_tokens)
      continue;
    const double x = opi_known_element(end, i);
    if (what == OPI_ABOVE_LOW ? x <= LOW : upper ? x <= 0 : x >= 0)
      continue;
    *out_row = row;
    *out_column = columns == 1 ? row + 1 : column;
    return i;
  }
  return n;
}

/* A graph input that v is made of; NULL: none. */
static const char *input_behind(const prover *p, uint32_t v, uint32_t depth) {
  const opi_value *value = &p->whole->values[v];
  if (opi_value_known(value) || depth == 0)
    return NULL;
  if (value->producer == OPIPE_NONE)
    return value->name;
  const opi_node *node = &p->whole->nodes[value->producer];
  const char *found = NULL;
  for (uint32_t i = 0; is_followed(node) && i < node->n_in && found == NULL; ++i) {
    if (node->in[i] != OPIPE_NONE)
      found = input_behind(p, node->in[i], depth - 1);
  }
  return found;
}

static bool holds(const prover *p, uint32_t v, const opi_token_plane *plane, int64_t n_tokens,
                  uint32_t what, char *why, size_t n) {
  const opi_value *value = &p->whole->values[v];
  const opi_value *lo = &p->b.graph->values[p->of[v].lo], *hi = &p->b.graph->values[p->of[v].hi];
  int64_t row = 0, column = 0;
  uint64_t at = violation(hi, value, plane, n_tokens, true, what, &row, &column);
  const bool upper = at < opi_elems(hi);
  if (!upper && what == OPI_ABOVE_ZERO)
    at = violation(lo, value, plane, n_tokens, false, what, &row, &column);
  else if (!upper)
    return true;
  const opi_value *end = upper ? hi : lo;
  if (at == opi_elems(end))
    return true;
  const char *input = input_behind(p, v, 12);
  (void)snprintf(why, n, "row %" PRId64 " may read token %" PRId64 ", where '%s' may be %g%s%s%s",
                 row, column, value->name, opi_known_element(end, at) + 0.0,
                 input == NULL ? "" : "; it depends on input '", input == NULL ? "" : input,
                 input == NULL ? "" : "'");
  return false;
}

typedef opipe_status (*question)(prover *p, const opi_tokens *t, uint32_t v, void *ctx);

/* Bounds value v, then asks. */
static opipe_status with_bounds(const opi_tokens *t, uint32_t v, const opi_evaluator *evaluator,
                                question ask, void *ctx, opipe_error *err) {
  prover p = {.whole = t->whole->graph, .err = err};
  opi_arena_init(&p.scratch, t->arena.allocator, 0);
  opi_graph *graph = opi_graph_new(&p.scratch, "mask");
  p.of = OPI_ARENA_ARRAY(&p.scratch, bounds, p.whole->n_values);
  opipe_status status = graph == NULL || p.of == NULL
                            ? opi_fail_nomem(err, p.whole->n_values * sizeof *p.of, "a mask")
                            : opi_b_open(&p.b, graph, &p.scratch, p.scratch.allocator, err);
  if (status == OPIPE_OK) {
    p.b.evaluator = evaluator;
    p.b.fold_limit_bytes = MOST_ELEMS * sizeof(float);
    for (uint32_t i = 0; i < p.whole->n_values; ++i)
      p.of[i] = (bounds){OPIPE_NONE, OPIPE_NONE, false};
    status = look(&p, v, MOST_DEPTH);
    if (status == OPIPE_OK)
      status = ask(&p, t, v, ctx);
    opi_b_close(&p.b);
  }
  opi_arena_release(&p.scratch);
  return status;
}

typedef struct above_question {
  const opi_token_plane *plane;
  uint32_t what;
  bool shown;
  char *why;
  size_t n;
} above_question;

static opipe_status ask_above(prover *p, const opi_tokens *t, uint32_t v, void *ctx) {
  above_question *q = ctx;
  q->shown = holds(p, v, q->plane, t->n_tokens, q->what, q->why, q->n);
  return OPIPE_OK;
}

opipe_status opi_tokens_above(const opi_tokens *tokens, uint32_t v, const opi_token_plane *plane,
                              uint32_t what, const opi_evaluator *evaluator, bool *out_shown,
                              char *why, size_t n, opipe_error *err) {
  const uint8_t bit = (uint8_t)(1u << what);
  above_question q = {.plane = plane, .what = what, .why = why, .n = n};
  *out_shown = (tokens->above[v] & bit) != 0;
  if (*out_shown)
    return OPIPE_OK;
  OPI_TRY(with_bounds(tokens, v, evaluator, ask_above, &q, err));
  *out_shown = q.shown;
  if (q.shown)
    tokens->above[v] |= bit;
  return OPIPE_OK;
}

typedef struct content_question {
  opi_arena *arena;
  opi_token_content *content;
} content_question;

static opipe_status ask_content(prover *p, const opi_tokens *t, uint32_t v, void *ctx) {
  content_question *q = ctx;
  const opi_value *lo = &p->b.graph->values[p->of[v].lo];
  (void)t;
  *q->content = (opi_token_content){.input = input_behind(p, v, MOST_DEPTH)};
  if (p->of[v].lo != p->of[v].hi)
    return OPIPE_OK;
  const uint64_t n = opi_elems(lo);
  float *numbers = opi_arena_array(q->arena, n + 1, sizeof *numbers);
  if (numbers == NULL)
    return opi_fail_nomem(p->err, n * sizeof *numbers, "a mask");
  for (uint64_t i = 0; i < n; ++i)
    numbers[i] = (float)opi_known_element(lo, i);
  q->content->numbers = numbers;
  q->content->rank = (uint32_t)lo->rank;
  memcpy(q->content->shape, lo->shape, (size_t)lo->rank * sizeof(int64_t));
  return OPIPE_OK;
}

opipe_status opi_tokens_content(const opi_tokens *tokens, uint32_t v,
                                const opi_evaluator *evaluator, opi_arena *arena,
                                opi_token_content *out_content, opipe_error *err) {
  content_question q = {arena, out_content};
  return with_bounds(tokens, v, evaluator, ask_content, &q, err);
}
