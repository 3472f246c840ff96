/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding from x cos + rotated(x) sin.
 *
 *   half split    rotated = Concat(-x[h:], x[:h])
 *   interleaved   rotated = pairs (-x[2i+1], x[2i]) put together by Unsqueeze, Concat, Reshape
 * Partial rotation is a Concat of the turned part and the rest of the same tensor. cos and sin are
 * as wide as x there; the canonical operator wants half of them, so both halves must be the same:
 * known and compared, or made by Concat(t, t) before Cos and Sin. Models in half types turn in
 * float32: x and rotated(x) are cast on their way in, the sum on its way out; the operator computes
 * so itself, from x as it is.
 */
#include "loader/passes/fuse.h"

typedef struct section {
  uint32_t base;
  int64_t begin, end, step;
} section;

typedef struct rotation {
  uint32_t x, cos, sin, result;
  int64_t dim;
  bool interleaved;
} rotation;

static bool inner(const opi_fuse *f, uint32_t v) {
  return (opi_f_value(f, v)->flags & (OPI_VALUE_OUTPUT | OPI_VALUE_BARRIER)) == 0;
}

static int64_t last_of(const opi_fuse *f, uint32_t v) {
  const opi_value *x = opi_f_value(f, v);
  return x->rank > 0 ? x->shape[x->rank - 1] : 0;
}

static bool ints_at(const opi_fuse *f, const opi_node *node, uint32_t i, uint32_t n, int64_t *out) {
  uint32_t has = 0;
  const int64_t *list =
      opi_node_in(node, i) == OPIPE_NONE ? NULL : opi_b_ints(f->b, node->in[i], &has);
  if (list == NULL || has != n)
    return false;
  *out = list[0];
  return true;
}

/* v as a piece of another value along the last axis: a Slice, an output of a Split. */
static bool section_of(const opi_fuse *f, uint32_t v, section *out) {
  const opi_node *node = opi_f_made(f, v, NULL);
  int64_t axis;
  if (node == NULL || !inner(f, v))
    return false;
  *out = (section){.base = node->in[0], .step = 1};
  if (opi_f_is(node, "Slice")) {
    return ints_at(f, node, 1, 1, &out->begin) && ints_at(f, node, 2, 1, &out->end) &&
           ints_at(f, node, 3, 1, &axis) && ints_at(f, node, 4, 1, &out->step) &&
           axis == opi_f_value(f, v)->rank - 1 && out->step > 0;
  }
  if (!opi_f_is(node, "Split") || opi_attr_int(node, "axis", 0) != opi_f_value(f, v)->rank - 1)
    return false;
  for (uint32_t o = 0; o < node->n_out && node->out[o] != v; ++o)
    out->begin += last_of(f, node->out[o]);
  out->end = out->begin + last_of(f, v);
  return true;
}

/* v = -u -> u. */
static bool negated(const opi_fuse *f, uint32_t v, uint32_t *out_u) {
  const opi_node *node = opi_f_made(f, v, NULL);
  double minus;
  if (node == NULL || !inner(f, v))
    return false;
  *out_u = node->in[0];
  if (opi_f_is(node, "Neg"))
    return true;
  for (uint32_t i = 0; opi_f_is(node, "Mul") && i < 2; ++i) {
    *out_u = opi_f_other(node, i);
    if (opi_f_number(f, node->in[i], &minus) && minus == -1)
      return true;
  }
  return false;
}

static bool last_concat(const opi_fuse *f, uint32_t v, const opi_node **out_node) {
  const opi_node *node = opi_f_made(f, v, "Concat");
  *out_node = node;
  return node != NULL && node->n_in == 2 &&
         opi_attr_int(node, "axis", 0) == opi_f_value(f, v)->rank - 1;
}

/* r = Concat(-x[h:], x[:h]) */
static bool half_split(const opi_fuse *f, uint32_t r, uint32_t x) {
  const int64_t dim = last_of(f, x);
  const opi_node *concat;
  uint32_t high;
  section a, b;
  if (!last_concat(f, r, &concat) || !negated(f, concat->in[0], &high))
    return false;
  if (!section_of(f, high, &a) || !section_of(f, concat->in[1], &b) || a.base != x || b.base != x)
    return false;
  return a.step == 1 && b.step == 1 && b.begin == 0 && b.end == dim / 2 && a.begin == dim / 2 &&
         a.end == dim && dim % 2 == 0;
}

/* r = Reshape(Concat([-odd, 1], [even, 1])) */
static bool pair_split(const opi_fuse *f, uint32_t r, uint32_t x) {
  const opi_node *reshape = opi_f_made(f, r, "Reshape"), *concat, *first, *second;
  uint32_t odd;
  section a, b;
  if (reshape == NULL || !last_concat(f, reshape->in[0], &concat) ||
      last_of(f, reshape->in[0]) != 2)
    return false;
  first = opi_f_made(f, concat->in[0], "Reshape");
  second = opi_f_made(f, concat->in[1], "Reshape");
  if (first == NULL || second == NULL || !negated(f, first->in[0], &odd))
    return false;
  if (!section_of(f, odd, &a) || !section_of(f, second->in[0], &b) || a.base != x || b.base != x)
    return false;
  return a.step == 2 && b.step == 2 && a.begin == 1 && b.begin == 0 &&
         last_of(f, odd) * 2 == last_of(f, x) && last_of(f, second->in[0]) * 2 == last_of(f, x) &&
         opi_f_same_shape(f, r, x);
}

static bool known_twice(const opi_value *v, int64_t dim, bool interleaved) {
  const uint64_t size = opi_dtype_bits(v->dtype) / 8;
  const uint8_t *data = v->data;
  if (size == 0 || dim < 2)
    return false;
  for (uint64_t row = 0; row + (uint64_t)dim * size <= v->n_bytes; row += (uint64_t)dim * size) {
    for (int64_t i = 0; i < dim / 2; ++i) {
      const uint64_t a = (uint64_t)(interleaved ? 2 * i : i),
                     b = (uint64_t)(interleaved ? 2 * i + 1 : i + dim / 2);
      if (memcmp(data + row + a * size, data + row + b * size, size) != 0)
        return false;
    }
  }
  return true;
}

/* Are the two halves of v's last axis (or its pairs) the same by construction? */
static bool twice(const opi_fuse *f, uint32_t v, int64_t dim, bool interleaved) {
  static const char *const each[] = {"Cos", "Sin", "Cast", "Reshape", "Expand", "Mul", "Gather"};
  for (uint32_t step = 0; step < 12; ++step) {
    const opi_node *node = opi_f_made(f, v, NULL);
    bool through = false;
    double number;
    if (last_of(f, v) != dim)
      return false;
    if (opi_value_known(opi_f_value(f, v)))
      return known_twice(opi_f_value(f, v), dim, interleaved);
    if (node == NULL)
      return false;
    if (opi_f_is(node, "Concat")) {
      return !interleaved && node->n_in == 2 && node->in[0] == node->in[1] &&
             opi_attr_int(node, "axis", 0) == opi_f_value(f, v)->rank - 1;
    }
    for (size_t i = 0; i < OPI_COUNT(each); ++i)
      through = through || opi_f_is(node, each[i]);
    if (!through || (opi_f_is(node, "Gather") && opi_attr_int(node, "axis", 0) != 0))
      return false;
    uint32_t from = node->in[0];
    if (opi_f_is(node, "Mul") && opi_f_number(f, from, &number))
      from = node->in[1];
    else if (opi_f_is(node, "Mul") && !opi_f_number(f, node->in[1], &number))
      return false;
    v = from;
  }
  return false;
}

/* Half of a table [1 or B, (1), S, R] as [1 or B, S, R/2]. */
static opipe_status half_table(opi_fuse *f, uint32_t v, int64_t batch, int64_t length,
                               const rotation *r, uint32_t *out, opipe_error *err) {
  const uint32_t kind = r->interleaved ? OPI_MEMO_EVEN : OPI_MEMO_HALF;
  const int64_t axis = opi_f_value(f, v)->rank - 1, shape[3] = {batch, length, r->dim / 2};
  *out = opi_f_recall(f, kind, v, (uint32_t)batch);
  if (*out != OPIPE_NONE)
    return OPIPE_OK;
  if (r->interleaved) {
    const int64_t begin = 0, step = 2;
    const uint32_t in[5] = {v, opi_b_const_ints(f->b, &begin, 1),
                            opi_b_const_ints(f->b, &r->dim, 1), opi_b_const_ints(f->b, &axis, 1),
                            opi_b_const_ints(f->b, &step, 1)};
    for (uint32_t i = 1; i < 5; ++i)
      OPI_TRY(opi_k_const(in[i], err));
    OPI_TRY(opi_k_one(f->b, "Slice", 0, in, 5, NULL, out, err));
  } else {
    OPI_TRY(opi_k_slice(f->b, v, axis, 0, r->dim / 2, out, err));
  }
  OPI_TRY(opi_k_reshape(f->b, *out, shape, 3, out, err));
  return opi_f_remember(f, kind, v, (uint32_t)batch, *out, err);
}

/* Where the tokens stand in x of rank 4, judged by the tables: 2, or 1 (heads behind tokens); 0:
 * nowhere. */
static uint32_t token_axis(const opi_fuse *f, const rotation *r) {
  const opi_value *x = opi_f_value(f, r->x), *c = opi_f_value(f, r->cos);
  int64_t dims[4] = {1, 1, 1, 1};
  if (x->rank != 4 || c->rank < 2 || c->rank > 4 || !opi_f_same_shape(f, r->cos, r->sin))
    return 0;
  memcpy(dims + (4 - c->rank), c->shape, (size_t)c->rank * sizeof(*dims));
  if (dims[3] != r->dim || (dims[0] != 1 && dims[0] != x->shape[0]))
    return 0;
  if (dims[1] == 1 && dims[2] == x->shape[2])
    return 2;
  return dims[2] == 1 && dims[1] == x->shape[1] ? 1 : 0;
}

static opipe_status emit(opi_fuse *f, const rotation *r, opipe_error *err) {
  const opi_value x = *opi_f_value(f, r->x);
  const opi_value c = *opi_f_value(f, r->cos);
  const uint32_t tokens = token_axis(f, r);
  if (tokens == 0)
    return OPIPE_OK;
  const int64_t batch = c.rank == 4 ? c.shape[0] : 1, heads = x.shape[tokens == 2 ? 1 : 2];
  const int64_t flat[3] = {x.shape[0], x.shape[1], x.shape[2] * x.shape[3]};
  uint32_t in[3] = {r->x, r->cos, r->sin}, y;
  opi_attrs attrs = {.n = 0};
  OPI_TRY(half_table(f, r->cos, batch, x.shape[tokens], r, &in[1], err));
  OPI_TRY(half_table(f, r->sin, batch, x.shape[tokens], r, &in[2], err));
  if (tokens == 1)
    OPI_TRY(opi_k_reshape(f->b, r->x, flat, 3, &in[0], err));
  opi_attrs_int(&attrs, "interleaved", r->interleaved ? 1 : 0);
  opi_attrs_int(&attrs, "num_heads", heads);
  opi_attrs_int(&attrs, "rotary_embedding_dim", r->dim);
  OPI_TRY(opi_k_one(f->b, "RotaryEmbedding", 23, in, 3, &attrs, &y, err));
  opi_f_mark(f, y, OPI_PATTERN_ROTARY);
  if (tokens == 1)
    OPI_TRY(opi_k_reshape(f->b, y, x.shape, 4, &y, err));
  return opi_f_replace(f, r->result, y, OPI_PATTERN_ROTARY, err);
}

/* A Concat of the turned part with the rest of the same tensor. */
static void take_rest(const opi_fuse *f, rotation *r) {
  const uint32_t n = opi_f_next(f, r->result, "Concat");
  const opi_node *concat;
  section turned, rest;
  if (n == OPIPE_NONE || !section_of(f, r->x, &turned))
    return;
  const uint32_t y = opi_f_node(f, n)->out[0];
  if (!last_concat(f, y, &concat) || concat->in[0] != r->result ||
      !section_of(f, concat->in[1], &rest))
    return;
  if (turned.base != rest.base || turned.begin != 0 || rest.begin != turned.end ||
      turned.step != 1 || rest.step != 1 || rest.end != last_of(f, turned.base))
    return;
  r->x = turned.base;
  r->result = y;
}

/* v = Cast(u) from a half type to float32 -> u; else v. */
static uint32_t narrow(const opi_fuse *f, uint32_t v) {
  const opi_node *cast = opi_f_made(f, v, "Cast");
  const uint32_t from = cast == NULL ? OPIPE_UNDEFINED : opi_f_value(f, cast->in[0])->dtype;
  const bool half = from == OPIPE_FLOAT16 || from == OPIPE_BFLOAT16;
  return half && opi_f_value(f, v)->dtype == OPIPE_FLOAT ? cast->in[0] : v;
}

/* Both operands come from a half type: the sum, where it does nothing but go back there, too. */
static void take_casts(const opi_fuse *f, rotation *r, uint32_t x) {
  const uint32_t n = opi_f_next(f, r->result, "Cast");
  if (n == OPIPE_NONE)
    return;
  const uint32_t y = opi_f_node(f, n)->out[0];
  if (opi_f_value(f, y)->dtype != opi_f_value(f, x)->dtype)
    return;
  r->x = x;
  r->result = y;
}

/* rotated is x's; both may stand behind a Cast to float32. */
static bool turns(const opi_fuse *f, uint32_t rotated, uint32_t x, rotation *r) {
  const uint32_t from = narrow(f, rotated), base = narrow(f, x);
  r->interleaved = pair_split(f, rotated, x);
  if (r->interleaved || half_split(f, rotated, x))
    return true;
  if (from == rotated || base == x || !inner(f, rotated))
    return false;
  r->interleaved = pair_split(f, from, base);
  return r->interleaved || half_split(f, from, base);
}

/* sum = x cos + rotated(x) sin, operands in any order. */
static bool match(const opi_fuse *f, const opi_node *sum, rotation *r) {
  for (uint32_t i = 0; i < 8; ++i) {
    const opi_node *plain = opi_f_made(f, sum->in[i & 1], "Mul"),
                   *turned = opi_f_made(f, opi_f_other(sum, i & 1), "Mul");
    if (plain == NULL || turned == NULL || !inner(f, sum->in[0]) || !inner(f, sum->in[1]))
      return false;
    r->x = plain->in[i >> 1 & 1];
    r->cos = opi_f_other(plain, i >> 1 & 1);
    r->sin = opi_f_other(turned, i >> 2);
    if (!turns(f, turned->in[i >> 2], r->x, r))
      continue;
    r->dim = last_of(f, r->x);
    r->result = sum->out[0];
    if (!opi_f_same_shape(f, r->result, r->x) || !twice(f, r->cos, r->dim, r->interleaved) ||
        !twice(f, r->sin, r->dim, r->interleaved))
      return false;
    if (narrow(f, r->x) != r->x)
      take_casts(f, r, narrow(f, r->x));
    return true;
  }
  return false;
}

opipe_status opi_fuse_rotary(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node *node = opi_f_node(f, n);
  rotation r;
  if (!opi_f_is(node, "Add") || !match(f, node, &r))
    return OPIPE_OK;
  const opi_value *x = opi_f_value(f, r.x), *c = opi_f_value(f, r.cos);
  if (!opi_dtype_is_float(x->dtype) ||
      (x->dtype != c->dtype && (c->dtype != OPIPE_FLOAT || x->dtype == OPIPE_DOUBLE)))
    return OPIPE_OK;
  if (token_axis(f, &r) != 0)
    take_rest(f, &r);
  return emit(f, &r, err);
}
