/* SPDX-License-Identifier: Apache-2.0 */
/* LayerNormalization and RMSNormalization from the spellings of exporters.
 *
 *   centred  (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)      the difference written once or
 * twice plain    x / sqrt(mean(x^2) + eps) folded   x G + (beta - mean(x) G), G = gamma / sqrt(...)
 * keras then * gamma and + beta, in any order of operands. 1/sqrt is Div, Mul by Reciprocal(Sqrt),
 * by Div(1, Sqrt) or by Pow(-0.5); squares are Pow 2 or x x; Casts between floating-point types
 * count as nothing. The fused node computes in float32 at least and rounds once.
 */
#include <math.h>

#include "loader/passes/fuse.h"

typedef struct norm {
  uint32_t x;           /* the normalised value, as the arithmetic reads it */
  uint32_t result;      /* last value of the group so far */
  uint32_t gamma, beta; /* OPIPE_NONE: none */
  uint32_t axis;
  double epsilon;
  bool centred;
} norm;

static bool inner(const opi_fuse *f, uint32_t v) {
  return (opi_f_value(f, v)->flags & (OPI_VALUE_OUTPUT | OPI_VALUE_BARRIER)) == 0;
}

/* v = a + number -> a. */
static bool plus_number(const opi_fuse *f, uint32_t v, uint32_t *out_a, double *out_number) {
  const opi_node *node = opi_f_made(f, v, "Add");
  if (node == NULL || !inner(f, v))
    return false;
  for (uint32_t i = 0; i < 2; ++i) {
    if (!opi_f_number(f, node->in[i], out_number))
      continue;
    *out_a = opi_f_other(node, i);
    return true;
  }
  return false;
}

/* v = sqrt(a) -> a. */
static bool root(const opi_fuse *f, uint32_t v, uint32_t *out_a) {
  const opi_node *node = opi_f_made(f, v, NULL);
  double exponent;
  if (node == NULL || !inner(f, v))
    return false;
  *out_a = node->in[0];
  if (opi_f_is(node, "Sqrt"))
    return true;
  return opi_f_is(node, "Pow") && opi_f_number(f, node->in[1], &exponent) && exponent == 0.5;
}

/* v = 1 / sqrt(a) -> a. */
static bool inverse_root(const opi_fuse *f, uint32_t v, uint32_t *out_a) {
  v = opi_f_uncast(f, v);
  const opi_node *node = opi_f_made(f, v, NULL);
  double number;
  if (node == NULL || !inner(f, v))
    return false;
  if (opi_f_is(node, "Reciprocal"))
    return root(f, opi_f_uncast(f, node->in[0]), out_a);
  if (opi_f_is(node, "Div") && opi_f_number(f, node->in[0], &number) && number == 1)
    return root(f, opi_f_uncast(f, node->in[1]), out_a);
  *out_a = node->in[0];
  return opi_f_is(node, "Pow") && opi_f_number(f, node->in[1], &number) && number == -0.5;
}

/* v = mean of x over the last axes, kept -> x, first axis. */
static bool mean_of(const opi_fuse *f, uint32_t v, uint32_t *out_x, uint32_t *out_axis) {
  const opi_node *node = opi_f_made(f, v, "ReduceMean");
  uint32_t n = 0;
  if (node == NULL || !inner(f, v) || opi_attr_int(node, "keepdims", 1) == 0)
    return false;
  const uint32_t axes = opi_node_in(node, 1);
  const int64_t *list = axes != OPIPE_NONE ? opi_b_ints(f->b, axes, &n) : NULL;
  const int64_t rank = opi_f_value(f, node->in[0])->rank;
  uint32_t seen = 0;
  if (list == NULL || n == 0 || n > (uint32_t)rank)
    return false;
  for (uint32_t i = 0; i < n; ++i) {
    const int64_t axis = list[i] < 0 ? list[i] + rank : list[i];
    if (axis < rank - (int64_t)n || axis >= rank)
      return false;
    seen |= 1u << axis;
  }
  *out_x = node->in[0];
  *out_axis = (uint32_t)rank - n;
  return seen == ((1u << n) - 1u) << *out_axis;
}

/* v = x^2 -> x. */
static bool square_of(const opi_fuse *f, uint32_t v, uint32_t *out_x) {
  const opi_node *node = opi_f_made(f, v, NULL);
  double exponent;
  if (node == NULL || !inner(f, v))
    return false;
  *out_x = node->in[0];
  if (opi_f_is(node, "Mul"))
    return node->in[0] == node->in[1];
  return opi_f_is(node, "Pow") && opi_f_number(f, node->in[1], &exponent) && exponent == 2;
}

/* v = x - mean(x) -> x, first axis. */
static bool centred_of(const opi_fuse *f, uint32_t v, uint32_t *out_x, uint32_t *out_axis) {
  const opi_node *node = opi_f_made(f, v, "Sub");
  uint32_t of;
  if (node == NULL || !inner(f, v))
    return false;
  *out_x = node->in[0];
  return mean_of(f, opi_f_uncast(f, node->in[1]), &of, out_axis) &&
         opi_f_uncast(f, of) == opi_f_uncast(f, *out_x);
}

/* under = mean(c^2) + eps: fills axis and epsilon, gives c. */
static bool variance(const opi_fuse *f, uint32_t under, norm *out, uint32_t *out_c) {
  uint32_t mean, square;
  if (!plus_number(f, opi_f_uncast(f, under), &mean, &out->epsilon))
    return false;
  if (!mean_of(f, opi_f_uncast(f, mean), &square, &out->axis))
    return false;
  return square_of(f, opi_f_uncast(f, square), out_c);
}

/* top over the root of `under`. */
static bool quotient(const opi_fuse *f, uint32_t top, uint32_t under, norm *out) {
  uint32_t c, x = OPIPE_NONE, again = OPIPE_NONE, axis = 0, axis_again = 0;
  if (!variance(f, under, out, &c))
    return false;
  const uint32_t a = opi_f_uncast(f, top), b = opi_f_uncast(f, c);
  if (centred_of(f, a, &x, &axis) && centred_of(f, b, &again, &axis_again)) {
    out->x = x;
    out->centred = true;
    return opi_f_uncast(f, x) == opi_f_uncast(f, again) && axis == out->axis &&
           axis_again == out->axis;
  }
  out->x = top;
  out->centred = false;
  return a == b;
}

/* node = top / sqrt(under) in some spelling. */
static bool normalised(const opi_fuse *f, const opi_node *node, norm *out) {
  uint32_t under;
  if (opi_f_is(node, "Div"))
    return root(f, opi_f_uncast(f, node->in[1]), &under) && quotient(f, node->in[0], under, out);
  if (!opi_f_is(node, "Mul"))
    return false;
  for (uint32_t i = 0; i < 2; ++i) {
    if (inverse_root(f, node->in[i], &under) && quotient(f, opi_f_other(node, i), under, out))
      return true;
  }
  return false;
}

/* A vector for the normalised axes: its shape is x's from `axis` on, perhaps with ones before. */
static bool fits(const opi_fuse *f, uint32_t v, uint32_t x, uint32_t axis) {
  const opi_value *p = opi_f_value(f, v), *like = opi_f_value(f, x);
  if (!opi_dtype_is_float(p->dtype) || p->rank > like->rank)
    return false;
  for (int32_t back = 1; back <= like->rank; ++back) {
    const int64_t has = back <= p->rank ? p->shape[p->rank - back] : 1;
    if (has != (like->rank - back >= (int32_t)axis ? like->shape[like->rank - back] : 1))
      return false;
  }
  return true;
}

/* The single reader of `v` as `op` with a vector: follows Casts. */
static bool then(const opi_fuse *f, const char *op, norm *io, uint32_t *out_vector) {
  uint32_t v = io->result, n = opi_f_next(f, v, NULL);
  while (n != OPIPE_NONE && opi_f_is(opi_f_node(f, n), "Cast") &&
         opi_dtype_is_float(opi_f_value(f, opi_f_node(f, n)->out[0])->dtype)) {
    v = opi_f_node(f, n)->out[0];
    n = opi_f_next(f, v, NULL);
  }
  if (n == OPIPE_NONE || !opi_f_is(opi_f_node(f, n), op))
    return false;
  const opi_node *node = opi_f_node(f, n);
  for (uint32_t i = 0; i < 2; ++i) {
    if (node->in[i] != v || opi_f_other(node, i) == v ||
        !fits(f, opi_f_other(node, i), io->x, io->axis))
      continue;
    *out_vector = opi_f_other(node, i);
    io->result = node->out[0];
    return true;
  }
  return false;
}

/* A Cast that alone reads the result belongs to the group when it gives x's own type back. */
static void take_cast(const opi_fuse *f, norm *io) {
  const uint32_t n = opi_f_next(f, io->result, "Cast");
  if (n == OPIPE_NONE)
    return;
  const uint32_t y = opi_f_node(f, n)->out[0], dtype = opi_f_value(f, y)->dtype;
  if (dtype != opi_f_value(f, opi_f_uncast(f, io->x))->dtype)
    return;
  if (!io->centred && io->gamma != OPIPE_NONE && opi_f_value(f, io->gamma)->dtype != dtype)
    return;
  io->result = y;
}

static opipe_status ones_like(opi_fuse *f, const norm *n, uint32_t dtype, uint32_t *out,
                              opipe_error *err) {
  const opi_value x = *opi_f_value(f, n->x);
  uint32_t one;
  OPI_TRY(opi_k_const(one = opi_b_const_scalar(f->b, dtype, 1), err));
  return opi_k_expand(f->b, one, x.shape + n->axis, (uint32_t)x.rank - n->axis, out, err);
}

/* x in the type of `dtype`: before or after its Casts. OPIPE_NONE: in neither. */
static uint32_t x_as(const opi_fuse *f, uint32_t x, uint32_t dtype) {
  const uint32_t source = opi_f_uncast(f, x);
  if (opi_f_value(f, source)->dtype == dtype)
    return source;
  return opi_f_value(f, x)->dtype == dtype ? x : OPIPE_NONE;
}

/* A wider x than the result: normalised in x's type, vectors widened, rounded at the end. */
static opipe_status widen(opi_fuse *f, norm *n, opipe_error *err) {
  const uint32_t dtype = opi_f_value(f, n->x)->dtype;
  if (n->gamma != OPIPE_NONE)
    OPI_TRY(opi_k_cast(f->b, n->gamma, dtype, &n->gamma, err));
  return n->beta != OPIPE_NONE ? opi_k_cast(f->b, n->beta, dtype, &n->beta, err) : OPIPE_OK;
}

static opipe_status emit(opi_fuse *f, norm *n, opipe_error *err) {
  const uint32_t result = opi_f_value(f, n->result)->dtype;
  uint32_t x = n->centred ? x_as(f, n->x, result) : opi_f_uncast(f, n->x);
  uint32_t y, gamma;
  opi_attrs attrs = {.n = 0};
  if (x == OPIPE_NONE) {
    OPI_TRY(widen(f, n, err));
    x = n->x;
  }
  if (!opi_f_same_shape(f, x, n->result))
    return OPIPE_OK;
  const uint32_t dtype = n->centred ? opi_f_value(f, x)->dtype : result;
  gamma = n->gamma;
  if (gamma == OPIPE_NONE)
    OPI_TRY(ones_like(f, n, dtype, &gamma, err));
  const uint32_t scale = opi_f_value(f, gamma)->dtype;
  if (n->centred ? scale != dtype && scale != OPIPE_FLOAT : scale != dtype)
    return OPIPE_OK;
  if (n->beta != OPIPE_NONE && opi_f_value(f, n->beta)->dtype != scale)
    return OPIPE_OK;
  opi_attrs_int(&attrs, "axis", n->axis);
  opi_attrs_float(&attrs, "epsilon", n->epsilon);
  opi_attrs_int(&attrs, "stash_type", dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT);
  const uint32_t in[3] = {x, gamma, n->beta};
  if (n->centred)
    OPI_TRY(opi_k_one(f->b, "LayerNormalization", 17, in, 3, &attrs, &y, err));
  else
    OPI_TRY(opi_k_one(f->b, "RMSNormalization", 23, in, 2, &attrs, &y, err));
  opi_f_mark(f, y, n->centred ? OPI_PATTERN_LAYERNORM : OPI_PATTERN_RMSNORM);
  OPI_TRY(opi_k_cast(f->b, y, result, &y, err));
  return opi_f_replace(f, n->result, y, n->centred ? OPI_PATTERN_LAYERNORM : OPI_PATTERN_RMSNORM,
                       err);
}

/* v = mean(x) G for this G. */
static bool mean_times(const opi_fuse *f, uint32_t v, uint32_t g, norm *io) {
  const opi_node *node = opi_f_made(f, v, "Mul");
  uint32_t of, axis;
  if (node == NULL || !inner(f, v))
    return false;
  for (uint32_t i = 0; i < 2; ++i) {
    if (node->in[i] != g || !mean_of(f, opi_f_other(node, i), &of, &axis))
      continue;
    return of == io->x && axis == io->axis;
  }
  return false;
}

/* G = gamma / sqrt(mean((x - mean(x))^2) + eps). */
static bool folded_gain(const opi_fuse *f, uint32_t g, uint32_t x, norm *out) {
  const opi_node *node = opi_f_made(f, g, "Mul");
  uint32_t under, c, of, axis;
  if (node == NULL || !inner(f, g))
    return false;
  for (uint32_t i = 0; i < 2; ++i) {
    if (!inverse_root(f, node->in[i], &under) || !variance(f, under, out, &c))
      continue;
    if (!centred_of(f, c, &of, &axis) || of != x || axis != out->axis)
      continue;
    out->x = x;
    out->gamma = opi_f_other(node, i);
    return fits(f, out->gamma, x, axis);
  }
  return false;
}

/* sum = x G + (beta - mean(x) G) */
static bool folded(const opi_fuse *f, const opi_node *sum, norm *out) {
  for (uint32_t i = 0; i < 2; ++i) {
    const opi_node *product = opi_f_made(f, sum->in[i], "Mul");
    const opi_node *rest = opi_f_made(f, opi_f_other(sum, i), "Sub");
    if (product == NULL || rest == NULL || !inner(f, sum->in[i]) || !inner(f, opi_f_other(sum, i)))
      continue;
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t g = product->in[k], x = opi_f_other(product, k);
      if (!folded_gain(f, g, x, out) || !mean_times(f, rest->in[1], g, out))
        continue;
      out->beta = rest->in[0];
      out->result = sum->out[0];
      out->centred = true;
      return fits(f, out->beta, x, out->axis);
    }
  }
  return false;
}

opipe_status opi_fuse_norm(opi_fuse *f, uint32_t index, opipe_error *err) {
  const opi_node *node = opi_f_node(f, index);
  norm n = {.gamma = OPIPE_NONE, .beta = OPIPE_NONE};
  if (opi_f_is(node, "Add"))
    return folded(f, node, &n) ? emit(f, &n, err) : OPIPE_OK;
  if (!normalised(f, node, &n))
    return OPIPE_OK;
  n.gamma = n.beta = OPIPE_NONE;
  n.result = node->out[0];
  if (then(f, "Mul", &n, &n.gamma) && n.centred)
    (void)then(f, "Add", &n, &n.beta);
  take_cast(f, &n);
  return emit(f, &n, err);
}
