/* SPDX-License-Identifier: Apache-2.0 */
/* GELU (erf and tanh), quick GELU and SiLU from any spelling.
 *
 * No list of spellings: around a node T (Erf, Tanh or Sigmoid) the arithmetic is multiplied out as
 * a polynomial in x and T. The argument of T must be the right polynomial in some x, and a value
 * behind T must be the right one in x and T: erf     T(x / sqrt 2)                            x/2 +
 * x T/2 tanh    T(sqrt(2/pi) x + sqrt(2/pi) 0.044715 x^3)  x/2 + x T/2 SiLU    T(alpha x) x T
 * (alpha 1.702: quick GELU) Casts between floating-point types count as nothing; x and the result
 * must be of one type.
 */
#include <math.h>

#include "loader/passes/fuse.h"

enum { DEGREE = 3, MAX_DEPTH = 8, MAX_CANDIDATES = 24 };

/* c[i][j]: coefficient of x^i T^j */
typedef struct poly {
  double c[DEGREE + 1][2];
} poly;

typedef struct reading {
  const opi_fuse *f;
  uint32_t x, t; /* the two variables; t OPIPE_NONE: only x */
  uint32_t dtype;
  uint32_t root; /* the value that will be replaced: it may be a graph output */
} reading;

static bool multiply(const poly *a, const poly *b, poly *out) {
  poly p = {{{0}}};
  for (uint32_t i = 0; i <= DEGREE; ++i) {
    for (uint32_t k = 0; k <= DEGREE; ++k) {
      for (uint32_t j = 0; j < 4; ++j) {
        const double c = a->c[i][j & 1] * b->c[k][j >> 1];
        if (c == 0)
          continue;
        if (i + k > DEGREE || (j & 1) + (j >> 1) > 1)
          return false;
        p.c[i + k][(j & 1) + (j >> 1)] += c;
      }
    }
  }
  *out = p;
  return true;
}

static void add(const poly *a, const poly *b, double sign, poly *out) {
  for (uint32_t i = 0; i <= DEGREE; ++i) {
    for (uint32_t j = 0; j < 2; ++j)
      out->c[i][j] = a->c[i][j] + sign * b->c[i][j];
  }
}

static bool read_poly(const reading *r, uint32_t v, uint32_t depth, poly *out);

static bool read_power(const reading *r, const opi_node *node, uint32_t depth, poly *out) {
  double exponent;
  poly x;
  if (!opi_f_number(r->f, node->in[1], &exponent) || !read_poly(r, node->in[0], depth, &x))
    return false;
  if (exponent != 2 && exponent != 3)
    return false;
  if (!multiply(&x, &x, out))
    return false;
  return exponent == 2 || multiply(out, &x, out);
}

static bool read_pair(const reading *r, const opi_node *node, uint32_t depth, poly *out) {
  double number;
  poly a, b;
  if (!opi_f_number(r->f, node->in[0], &number) && !opi_f_number(r->f, node->in[1], &number) &&
      !opi_f_same_shape(r->f, node->in[0], node->in[1]))
    return false;
  if (!read_poly(r, node->in[0], depth, &a) || !read_poly(r, node->in[1], depth, &b))
    return false;
  if (opi_f_is(node, "Add") || opi_f_is(node, "Sub")) {
    add(&a, &b, opi_f_is(node, "Add") ? 1 : -1, out);
    return true;
  }
  if (opi_f_is(node, "Mul"))
    return multiply(&a, &b, out);
  const double divisor = b.c[0][0];
  b.c[0][0] = 0;
  for (uint32_t i = 0; i <= DEGREE; ++i) {
    if (b.c[i][0] != 0 || b.c[i][1] != 0)
      return false;
  }
  if (divisor == 0)
    return false;
  for (uint32_t i = 0; i <= DEGREE; ++i) {
    for (uint32_t j = 0; j < 2; ++j)
      out->c[i][j] = a.c[i][j] / divisor;
  }
  return true;
}

static bool read_poly(const reading *r, uint32_t v, uint32_t depth, poly *out) {
  double number;
  *out = (poly){{{0}}};
  if (v == r->x || v == r->t) {
    out->c[v == r->x][v == r->t] = 1;
    return true;
  }
  if (opi_f_number(r->f, v, &number)) {
    out->c[0][0] = number;
    return true;
  }
  const uint32_t producer = opi_f_value(r->f, v)->producer; /* the root may be a barrier */
  const opi_node *node = v == r->root && producer != OPIPE_NONE ? opi_f_node(r->f, producer)
                                                                : opi_f_made(r->f, v, NULL);
  if (node == NULL || depth == 0)
    return false;
  if (v != r->root && (opi_f_value(r->f, v)->flags & (OPI_VALUE_OUTPUT | OPI_VALUE_BARRIER)) != 0)
    return false;
  if (opi_f_is(node, "Cast")) {
    return opi_dtype_is_float(opi_f_value(r->f, v)->dtype) &&
           read_poly(r, node->in[0], depth - 1, out);
  }
  if (opi_f_is(node, "Reshape"))
    return read_poly(r, node->in[0], depth - 1, out); /* element by element all the same */
  if (opi_f_is(node, "Pow"))
    return read_power(r, node, depth - 1, out);
  if (opi_f_is(node, "Neg")) {
    const poly zero = {{{0}}};
    poly a;
    if (!read_poly(r, node->in[0], depth - 1, &a))
      return false;
    add(&zero, &a, -1, out);
    return true;
  }
  if (!opi_f_is(node, "Add") && !opi_f_is(node, "Sub") && !opi_f_is(node, "Mul") &&
      !opi_f_is(node, "Div"))
    return false;
  return read_pair(r, node, depth - 1, out);
}

static bool is_poly(const reading *r, uint32_t v, const poly *want) {
  poly has;
  if (!read_poly(r, v, MAX_DEPTH, &has))
    return false;
  for (uint32_t i = 0; i <= DEGREE; ++i) {
    for (uint32_t j = 0; j < 2; ++j) {
      if (want->c[i][j] == 0 ? fabs(has.c[i][j]) > 1e-9
                             : !opi_f_near(r->dtype, has.c[i][j], want->c[i][j]))
        return false;
    }
  }
  return true;
}

/* Values that the argument is computed from, deepest last. */
static uint32_t candidates(const opi_fuse *f, uint32_t v, uint32_t *list) {
  static const char *const through[] = {"Add", "Sub",  "Mul", "Div",
                                        "Pow", "Cast", "Neg", "Reshape"};
  uint32_t n = 1;
  list[0] = v;
  for (uint32_t k = 0; k < n; ++k) {
    const opi_node *node = opi_f_made(f, list[k], NULL);
    bool known = false;
    for (size_t i = 0; node != NULL && i < OPI_COUNT(through); ++i)
      known = known || opi_f_is(node, through[i]);
    for (uint32_t i = 0; known && i < node->n_in; ++i) {
      bool seen = node->in[i] == OPIPE_NONE || opi_value_known(opi_f_value(f, node->in[i]));
      for (uint32_t j = 0; !seen && j < n; ++j)
        seen = list[j] == node->in[i];
      if (!seen && n < MAX_CANDIDATES)
        list[n++] = node->in[i];
    }
  }
  return n;
}

typedef struct shape_of_t {
  const char *op; /* of T */
  const char *canonical;
  poly argument, result;
} shape_of_t;

static const shape_of_t gelus[] = {
    {"Erf",
     "none",
     {{{0, 0}, {0.70710678118654752, 0}, {0, 0}, {0, 0}}},
     {{{0, 0}, {0.5, 0.5}, {0, 0}, {0, 0}}}},
    {"Tanh",
     "tanh",
     {{{0, 0}, {0.79788456080286536, 0}, {0, 0}, {0.035677408136300125, 0}}},
     {{{0, 0}, {0.5, 0.5}, {0, 0}, {0, 0}}}},
};
static const poly gate = {{{0, 0}, {0, 1}, {0, 0}, {0, 0}}};

/* The value behind T that is `want` in x and T: follows single readers. OPIPE_NONE: none. */
static uint32_t find_result(const reading *r, const poly *want) {
  uint32_t v = r->t;
  for (uint32_t step = 0; step < MAX_DEPTH; ++step) {
    const uint32_t n = opi_f_next(r->f, v, NULL);
    if (n == OPIPE_NONE || opi_f_node(r->f, n)->n_out != 1)
      return OPIPE_NONE;
    v = opi_f_node(r->f, n)->out[0];
    const opi_value *y = opi_f_value(r->f, v), *x = opi_f_value(r->f, r->x);
    if (y->dtype != x->dtype || opi_k_elems(y) != opi_k_elems(x))
      continue;
    reading rooted = *r;
    rooted.root = v;
    if (is_poly(&rooted, v, want))
      return v;
  }
  return OPIPE_NONE;
}

static opipe_status emit(opi_fuse *f, const char *op, uint32_t version, const opi_attrs *attrs,
                         uint32_t x, uint32_t result, uint32_t pattern, opipe_error *err) {
  const opi_value shape = *opi_f_value(f, result);
  uint32_t y;
  OPI_TRY(opi_k_one(f->b, op, version, &x, 1, attrs, &y, err));
  opi_f_mark(f, y, pattern);
  OPI_TRY(opi_k_reshape(f->b, y, shape.shape, (uint32_t)shape.rank, &y, err));
  return opi_f_replace(f, result, y, pattern, err);
}

static opipe_status fuse_gelu(opi_fuse *f, const shape_of_t *form, uint32_t arg, uint32_t t,
                              opipe_error *err) {
  uint32_t list[MAX_CANDIDATES];
  const uint32_t n = candidates(f, arg, list);
  for (uint32_t i = n; i-- > 0;) {
    const reading only = {f, list[i], OPIPE_NONE, opi_f_value(f, arg)->dtype, OPIPE_NONE};
    const reading both = {f, list[i], t, opi_f_value(f, arg)->dtype, OPIPE_NONE};
    if (!is_poly(&only, arg, &form->argument))
      continue;
    const uint32_t result = find_result(&both, &form->result);
    if (result == OPIPE_NONE)
      continue;
    opi_attrs attrs = {.n = 0};
    opi_attrs_string(&attrs, "approximate", form->canonical);
    return emit(f, "Gelu", 20, &attrs, list[i], result, OPI_PATTERN_GELU, err);
  }
  return OPIPE_OK;
}

static opipe_status fuse_gate(opi_fuse *f, uint32_t arg, uint32_t t, opipe_error *err) {
  uint32_t list[MAX_CANDIDATES];
  const uint32_t n = candidates(f, arg, list);
  for (uint32_t i = n; i-- > 0;) {
    const reading only = {f, list[i], OPIPE_NONE, opi_f_value(f, arg)->dtype, OPIPE_NONE};
    const reading both = {f, list[i], t, opi_f_value(f, arg)->dtype, OPIPE_NONE};
    poly p;
    if (!read_poly(&only, arg, MAX_DEPTH, &p) || p.c[1][0] == 0)
      continue;
    const double alpha = p.c[1][0];
    const poly line = {{{0, 0}, {alpha, 0}, {0, 0}, {0, 0}}};
    if (!is_poly(&only, arg, &line))
      continue;
    const uint32_t result = find_result(&both, &gate);
    if (result == OPIPE_NONE)
      continue;
    opi_attrs attrs = {.n = 0};
    opi_attrs_float(&attrs, "alpha", alpha);
    return emit(f, "Swish", 24, &attrs, list[i], result,
                alpha == 1.0 ? OPI_PATTERN_SILU : OPI_PATTERN_GELU, err);
  }
  return OPIPE_OK;
}

opipe_status opi_fuse_activation(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node *node = opi_f_node(f, n);
  for (size_t i = 0; i < OPI_COUNT(gelus); ++i) {
    if (opi_f_is(node, gelus[i].op))
      return fuse_gelu(f, &gelus[i], node->in[0], node->out[0], err);
  }
  if (opi_f_is(node, "Sigmoid"))
    return fuse_gate(f, node->in[0], node->out[0], err);
  return OPIPE_OK;
}
