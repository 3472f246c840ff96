/* SPDX-License-Identifier: Apache-2.0 */
/* Attention from MatMul, Softmax, MatMul and what exporters write around them.
 *
 * Starts at a Softmax over the last axis. Upwards from it stand, in any number and order that keeps
 * the meaning: Casts, Reshapes of the leading axes, masks (Add, Where, s m - c (1 - m)), the
 * softcap, scales, the product of queries and keys. Downwards: Casts, Reshapes, Where(IsNaN(p), 0,
 * p), the product with the values. Scales on either operand, transposed keys, key heads repeated by
 * Expand or one key head that the products broadcast, and a past joined by Concat are taken apart
 * too. Anything else is left as it is. If
 * only a multiplied mask of unknown content prevents the fusion, the Softmax is marked, so that the
 * attention is counted.
 */
#include <math.h>

#include "loader/passes/fuse_attention.h"

#include "loader/ops/attention.h"

enum { MAX_STEPS = 16 };

/* -- upwards: from the softmax to the product -------------------------------------------------- */

static bool keeps_matrix(const opi_fuse *f, const opi_node *reshape) {
  const opi_value *a = opi_f_value(f, reshape->in[0]), *b = opi_f_value(f, reshape->out[0]);
  return a->rank >= 2 && b->rank >= 2 && a->rank <= 4 && b->rank <= 4 &&
         a->shape[a->rank - 1] == b->shape[b->rank - 1] &&
         a->shape[a->rank - 2] == b->shape[b->rank - 2];
}

static bool is_product(const opi_node *node) {
  if (opi_f_is(node, "MatMul"))
    return true;
  return strcmp(node->op, "FusedMatMul") == 0 && opi_attr_int(node, "transA", 0) == 0;
}

/* Does v come from a product of its own matrix size through scores' arithmetic? */
static bool leads(const opi_fuse *f, uint32_t v, uint32_t depth) {
  const opi_node *node = opi_f_made(f, v, NULL);
  const opi_value *x = opi_f_value(f, v);
  if (node == NULL || depth == 0 || x->rank < 2)
    return false;
  if (is_product(node))
    return true;
  if (opi_f_is(node, "Cast") || opi_f_is(node, "Tanh") || opi_f_is(node, "Reshape"))
    return leads(f, node->in[0], depth - 1);
  if (opi_f_is(node, "Where"))
    return leads(f, node->in[1], depth - 1) || leads(f, node->in[2], depth - 1);
  if (opi_f_is(node, "Mul") || opi_f_is(node, "Add"))
    return leads(f, node->in[0], depth - 1) || leads(f, node->in[1], depth - 1);
  return (opi_f_is(node, "Div") || opi_f_is(node, "Sub")) && leads(f, node->in[0], depth - 1);
}

static bool push_mask(const opi_fuse *f, opi_scores *s, opi_mask_item item, uint32_t at) {
  if (s->n_masks == OPI_MAX_MASKS || !(s->scale > 0) || s->softcap != 0)
    return false;        /* inside a soft cap: another meaning */
  item.fill *= s->scale; /* c (x + m) = c x + c m */
  item.factor = s->scale;
  item.rank = opi_f_value(f, at)->rank;
  s->dtype = opi_f_value(f, at)->dtype;
  s->masks[s->n_masks++] = item;
  return true;
}

/* tanh(x / c) c -> x */
static bool read_softcap(const opi_fuse *f, const opi_node *mul, opi_scores *s, uint32_t *io) {
  double cap, inside;
  for (uint32_t i = 0; i < 2; ++i) {
    const opi_node *tanh = opi_f_made(f, opi_f_other(mul, i), "Tanh");
    if (tanh == NULL || !opi_f_number(f, mul->in[i], &cap) || !opi_f_free(f, tanh->out[0], 1))
      continue;
    const opi_node *down = opi_f_made(f, tanh->in[0], NULL);
    const uint32_t dtype = opi_f_value(f, tanh->in[0])->dtype;
    if (down == NULL || !opi_f_free(f, tanh->in[0], 1) || s->scale != 1 || s->softcap != 0 ||
        !(cap > 0))
      return false;
    const bool div = opi_f_is(down, "Div");
    if (!div && !opi_f_is(down, "Mul"))
      return false;
    if (!opi_f_number(f, down->in[1], &inside) ||
        !opi_f_near(dtype, div ? inside : 1 / inside, cap))
      return false;
    s->softcap = cap;
    *io = down->in[0];
    return true;
  }
  return false;
}

static bool read_scale(const opi_fuse *f, const opi_node *node, opi_scores *s, uint32_t *io) {
  double x;
  if (opi_f_is(node, "Div")) {
    if (!opi_f_number(f, node->in[1], &x) || x == 0)
      return false;
    s->scale /= x;
    *io = node->in[0];
    return true;
  }
  for (uint32_t i = 0; i < 2; ++i) {
    if (!opi_f_number(f, node->in[i], &x))
      continue;
    s->scale *= x;
    *io = opi_f_other(node, i);
    return true;
  }
  return false;
}

/* Where(c, scores, number) or Where(c, number, scores) */
static bool read_where(const opi_fuse *f, const opi_node *node, opi_scores *s, uint32_t at,
                       uint32_t *io) {
  for (uint32_t i = 1; i < 3; ++i) {
    opi_mask_item item = {.value = node->in[0], .keeps = true, .inverted = i == 2};
    if (!opi_f_number(f, node->in[3 - i], &item.fill) || !opi_f_same_shape(f, node->in[i], at))
      continue;
    *io = node->in[i];
    return push_mask(f, s, item, at);
  }
  return false;
}

/* v = c (1 - m) -> true */
static bool complement(const opi_fuse *f, uint32_t v, uint32_t m) {
  const opi_node *mul = opi_f_made(f, v, "Mul");
  double number;
  for (uint32_t i = 0; mul != NULL && i < 2; ++i) {
    const opi_node *sub = opi_f_made(f, opi_f_other(mul, i), "Sub");
    if (sub == NULL || !opi_f_number(f, mul->in[i], &number) || sub->in[1] != m)
      continue;
    return number > 0 && opi_f_number(f, sub->in[0], &number) && number == 1;
  }
  return false;
}

/* scores m - c (1 - m) with an m that is not known: an attention, but none that the canonical form
 * can say. */
static bool read_unknown_product(const opi_fuse *f, const opi_node *sub, opi_scores *s, uint32_t at,
                                 uint32_t *io) {
  const opi_node *mul = opi_f_made(f, sub->in[0], "Mul");
  for (uint32_t i = 0; mul != NULL && i < 2; ++i) {
    if (!opi_f_same_shape(f, opi_f_other(mul, i), at) || !complement(f, sub->in[1], mul->in[i]))
      continue;
    *io = opi_f_other(mul, i);
    s->kept = true;
    return true;
  }
  return false;
}

/* scores m - c with m known zeros and ones, and c one number where m is 0, else 0. */
static bool read_product_mask(const opi_fuse *f, const opi_node *sub, opi_scores *s, uint32_t at,
                              uint32_t *io) {
  const opi_node *mul = opi_f_made(f, sub->in[0], "Mul");
  const opi_value *c = opi_f_value(f, sub->in[1]);
  if (mul == NULL || c->data == NULL || !opi_f_free(f, sub->in[0], 1))
    return false;
  for (uint32_t i = 0; i < 2; ++i) {
    const opi_value *m = opi_f_value(f, mul->in[i]);
    opi_mask_item item = {.value = mul->in[i], .keeps = true};
    if (m->data == NULL || !opi_f_same_shape(f, mul->in[i], sub->in[1]) ||
        !opi_f_same_shape(f, opi_f_other(mul, i), at))
      continue;
    for (uint64_t k = 0; k < (uint64_t)opi_k_elems(m); ++k) {
      const double kept = opi_known_element(m, k), minus = opi_known_element(c, k);
      if (kept == 0 && item.fill == 0)
        item.fill = -minus;
      if ((kept != 0 && kept != 1) || (kept == 1 ? minus != 0 : minus != -item.fill))
        return false;
    }
    *io = opi_f_other(mul, i);
    return item.fill < 0 && push_mask(f, s, item, at);
  }
  return false;
}

static bool read_sum(const opi_fuse *f, const opi_node *node, opi_scores *s, uint32_t at,
                     uint32_t *io) {
  if (opi_f_is(node, "Sub")) {
    if (read_product_mask(f, node, s, at, io) || read_unknown_product(f, node, s, at, io))
      return true;
    *io = node->in[0];
    return opi_f_same_shape(f, *io, at) &&
           push_mask(f, s, (opi_mask_item){.value = node->in[1], .subtracted = true}, at);
  }
  for (uint32_t i = 0; i < 2; ++i) {
    if (!opi_f_same_shape(f, node->in[i], at) || !leads(f, node->in[i], MAX_STEPS))
      continue;
    *io = node->in[i];
    return push_mask(f, s, (opi_mask_item){.value = opi_f_other(node, i)}, at);
  }
  return false;
}

/* One step up from `at`. False: it is no part of an attention. */
static bool step_up(const opi_fuse *f, const opi_node *node, opi_scores *s, uint32_t at,
                    uint32_t *io) {
  *io = node->in[0];
  if (opi_f_is(node, "Cast"))
    return opi_dtype_is_float(opi_f_value(f, node->in[0])->dtype);
  if (opi_f_is(node, "Reshape"))
    return keeps_matrix(f, node);
  if (opi_f_is(node, "Where"))
    return read_where(f, node, s, at, io);
  if (opi_f_is(node, "Add") || opi_f_is(node, "Sub"))
    return read_sum(f, node, s, at, io);
  if (opi_f_is(node, "Div"))
    return read_scale(f, node, s, io);
  if (opi_f_is(node, "Mul"))
    return read_softcap(f, node, s, io) || read_scale(f, node, s, io);
  return false;
}

static void note_dims(const opi_fuse *f, uint32_t v, opi_scores *s) {
  const opi_value *x = opi_f_value(f, v);
  if (x->rank == 4)
    memcpy(s->dims, x->shape, sizeof(s->dims));
}

static bool read_scores(const opi_fuse *f, uint32_t v, opi_scores *s) {
  *s = (opi_scores){.scale = 1, .dims = {-1, -1, -1, -1}, .dtype = opi_f_value(f, v)->dtype};
  for (uint32_t step = 0; step < MAX_STEPS; ++step) {
    const opi_node *node = opi_f_made(f, v, NULL);
    if (node == NULL || !opi_f_free(f, v, 1))
      return false;
    note_dims(f, v, s);
    if (is_product(node)) {
      const opi_value *x = opi_f_value(f, v);
      s->left = node->in[0];
      s->right = node->in[1];
      s->trans_right = opi_attr_int(node, "transB", 0) != 0;
      s->scale *= opi_attr_float(node, "alpha", 1.0);
      if (s->dims[0] < 0 && x->rank >= 2 && x->rank <= 3) {
        const int64_t own[4] = {1, x->rank == 3 ? x->shape[0] : 1, x->shape[x->rank - 2],
                                x->shape[x->rank - 1]};
        memcpy(s->dims, own, sizeof(own));
      }
      return s->dims[0] >= 0;
    }
    if (!step_up(f, node, s, v, &v))
      return false;
  }
  return false;
}

/* -- downwards: from the softmax to the product with the values -------------------------------- */

/* Where(IsNaN(p), 0, p) */
static uint32_t nan_guard(const opi_fuse *f, uint32_t p) {
  if (!opi_f_free(f, p, 2))
    return OPIPE_NONE;
  const uint32_t *users = f->uses.users + f->uses.first[p];
  for (uint32_t i = 0; i < 2; ++i) {
    const opi_node *isnan = opi_f_node(f, users[i]), *where = opi_f_node(f, users[1 - i]);
    double zero;
    if (!opi_f_is(isnan, "IsNaN") || !opi_f_is(where, "Where") || where->in[0] != isnan->out[0])
      continue;
    if (opi_f_free(f, isnan->out[0], 1) && opi_f_number(f, where->in[1], &zero) && zero == 0 &&
        where->in[2] == p)
      return where->out[0];
  }
  return OPIPE_NONE;
}

/* The node that multiplies the weights with the values; NULL: none. swap: the weights must be
 * transposed on the way. */
static const opi_node *find_output(const opi_fuse *f, uint32_t p, bool swap) {
  for (uint32_t step = 0; step < MAX_STEPS; ++step) {
    const uint32_t guarded = nan_guard(f, p);
    if (guarded != OPIPE_NONE) {
      p = guarded;
      continue;
    }
    const uint32_t n = opi_f_next(f, p, NULL);
    if (n == OPIPE_NONE || !opi_f_free(f, p, 1))
      return NULL;
    const opi_node *node = opi_f_node(f, n);
    if (is_product(node)) {
      const bool plain =
          opi_attr_int(node, "transB", 0) == 0 && opi_attr_float(node, "alpha", 1.0) == 1.0;
      return node->in[0] == p && plain && !swap ? node : NULL;
    }
    if (swap && opi_f_is(node, "Transpose") && opi_f_swaps_last(node)) {
      swap = false;
      p = node->out[0];
      continue;
    }
    const bool through =
        (opi_f_is(node, "Cast") && opi_dtype_is_float(opi_f_value(f, node->out[0])->dtype)) ||
        (opi_f_is(node, "Reshape") && keeps_matrix(f, node));
    if (!through)
      return NULL;
    p = node->out[0];
  }
  return NULL;
}

/* -- operands ---------------------------------------------------------------------------------- */

typedef struct operand {
  uint32_t value;  /* [B, heads, rows, size] once settled */
  uint32_t past;   /* OPIPE_NONE: none */
  uint32_t joined; /* the Concat of past and new, OPIPE_NONE: none */
  int64_t heads;
} operand;

static bool has_shape(const opi_fuse *f, uint32_t v, const int64_t *shape) {
  const opi_value *x = opi_f_value(f, v);
  return x->rank == 4 && memcmp(x->shape, shape, 4 * sizeof(*shape)) == 0;
}

/* Scales on an operand of the product are the product's. */
static uint32_t strip_scale(const opi_fuse *f, uint32_t v, opi_scores *s) {
  for (uint32_t step = 0; step < 4; ++step) {
    const opi_node *node = opi_f_made(f, v, NULL);
    uint32_t inside;
    if (node == NULL || (!opi_f_is(node, "Mul") && !opi_f_is(node, "Div")))
      return v;
    if ((opi_f_value(f, v)->flags & OPI_VALUE_BARRIER) != 0 || !opi_f_same_shape(f, v, node->in[0]))
      return v;
    const double before = s->scale;
    if (!read_scale(f, node, s, &inside))
      return v;
    if (!opi_f_same_shape(f, inside, v)) {
      s->scale = before;
      return v;
    }
    v = inside;
  }
  return v;
}

/* v, or what it is a Reshape of, in the shape [B, heads, rows, size]; emits a Reshape when there is
 * none. */
static opipe_status as_shape(opi_fuse *f, uint32_t v, const int64_t *shape, uint32_t *out,
                             opipe_error *err) {
  uint32_t from = v;
  for (uint32_t step = 0; step < 4; ++step) {
    const opi_node *node = opi_f_made(f, from, "Reshape");
    if (has_shape(f, from, shape)) {
      *out = from;
      return OPIPE_OK;
    }
    if (node == NULL)
      break;
    from = node->in[0];
  }
  return opi_k_reshape(f->b, v, shape, 4, out, err);
}

/* The product's right operand, its transposition undone. shape [B, H, T, D] is what is wanted. */
static opipe_status settle_keys(opi_fuse *f, opi_scores *s, const int64_t *shape, uint32_t *out,
                                opipe_error *err) {
  static const int64_t swap[4] = {0, 1, 3, 2}, forth[4] = {0, 2, 1, 3};
  const int64_t turned[4] = {shape[0], shape[1], shape[3], shape[2]};
  uint32_t v = strip_scale(f, s->right, s), from = v, n = 0;
  if (s->trans_right)
    return as_shape(f, v, shape, out, err);
  for (uint32_t step = 0; step < 3;
       ++step) { /* Reshapes of the leading axes around the transposition */
    const opi_node *node = opi_f_made(f, from, NULL);
    if (node == NULL)
      break;
    if (opi_f_is(node, "Transpose") && opi_f_swaps_last(node))
      return as_shape(f, strip_scale(f, node->in[0], s), shape, out, err);
    const int64_t *perm = opi_attr_ints(node, "perm", &n);
    if (opi_f_is(node, "Transpose") && n == 4 && perm[0] == 0 && perm[1] == 2 && perm[2] == 3 &&
        perm[3] == 1)
      return opi_k_transpose(f->b, strip_scale(f, node->in[0], s), forth, 4, out, err);
    if (!opi_f_is(node, "Reshape") || !keeps_matrix(f, node))
      break;
    from = node->in[0];
  }
  OPI_TRY(as_shape(f, v, turned, &v, err));
  return opi_k_transpose(f->b, v, swap, 4, out, err);
}

/* [B, G, 1, T, D] expanded to [B, G, n, T, D] and merged to [B, G n, T, D] -> [B, G, T, D] */
static opipe_status strip_repeats(opi_fuse *f, operand *o, opipe_error *err) {
  uint32_t v = o->value;
  const opi_node *node = opi_f_made(f, v, "Reshape");
  for (uint32_t step = 0; step < 3 && node != NULL; ++step) {
    v = node->in[0];
    node = opi_f_made(f, v, "Reshape");
  }
  const opi_node *expand = opi_f_made(f, v, "Expand");
  if (expand == NULL)
    return OPIPE_OK;
  const opi_value *one = opi_f_value(f, expand->in[0]), *many = opi_f_value(f, v),
                  *y = opi_f_value(f, o->value);
  if (one->rank != 5 || many->rank != 5 || y->rank != 4)
    return OPIPE_OK;
  const int64_t *x = one->shape, n = many->shape[2];
  const int64_t want_one[5] = {x[0], x[1], 1, x[3], x[4]},
                want_many[5] = {x[0], x[1], n, x[3], x[4]};
  const int64_t want[4] = {x[0], x[1] * n, x[3], x[4]}, groups[4] = {x[0], x[1], x[3], x[4]};
  if (memcmp(x, want_one, sizeof(want_one)) != 0 ||
      memcmp(many->shape, want_many, sizeof(want_many)) != 0 ||
      memcmp(y->shape, want, sizeof(want)) != 0)
    return OPIPE_OK;
  o->heads = groups[1];
  return as_shape(f, expand->in[0], groups, &o->value, err);
}

/* Concat(past, new) along the keys. */
static void strip_past(const opi_fuse *f, operand *o) {
  const opi_node *concat = opi_f_made(f, o->value, "Concat");
  if (concat == NULL || concat->n_in != 2 || opi_attr_int(concat, "axis", 0) != 2 ||
      opi_f_uses(f, o->value) > 1)
    return;
  if ((opi_f_value(f, o->value)->flags & OPI_VALUE_BARRIER) != 0)
    return;
  o->joined = o->value;
  o->past = concat->in[0];
  o->value = concat->in[1];
}

static void unstrip_past(operand *o) {
  if (o->joined != OPIPE_NONE)
    o->value = o->joined;
  o->joined = o->past = OPIPE_NONE;
}

/* -- putting it together ----------------------------------------------------------------------- */

/* [B, H, ., .] times [B, 1, ., .]: one head of keys or values that the product repeats. */
static bool one_head(const opi_fuse *f, uint32_t a, uint32_t b) {
  const opi_value *x = opi_f_value(f, a), *y = opi_f_value(f, b);
  return x->rank == 4 && y->rank == 4 && x->shape[1] > 1 && y->shape[1] == 1 &&
         x->shape[0] == y->shape[0];
}

/* The leading axes of a product's operands must be those of the result: nothing but one head of the
 * right one is broadcast. */
static bool leading_fit(const opi_fuse *f, uint32_t a, uint32_t b) {
  const opi_value *x = opi_f_value(f, a), *y = opi_f_value(f, b);
  if (x->rank != y->rank || x->rank < 2 || x->rank > 4)
    return false;
  if (one_head(f, a, b))
    return true;
  return x->rank == 2 || memcmp(x->shape, y->shape, (size_t)(x->rank - 2) * sizeof(*x->shape)) == 0;
}

static bool sizes_fit(const opi_fuse *f, const opi_scores *s, const opi_node *output) {
  const opi_value *q = opi_f_value(f, s->left), *v = opi_f_value(f, output->in[1]),
                  *y = opi_f_value(f, output->out[0]);
  int64_t n = 1;
  if (!leading_fit(f, s->left, s->right) || !leading_fit(f, output->in[0], output->in[1]))
    return false;
  for (int32_t a = 0; a + 2 < q->rank; ++a)
    n *= q->shape[a];
  if (n != s->dims[0] * s->dims[1] || q->shape[q->rank - 2] != s->dims[s->transposed ? 3 : 2])
    return false;
  if (s->dims[0] < 1 || s->dims[1] < 1 || q->shape[q->rank - 1] < 1)
    return false;
  if ((one_head(f, s->left, s->right) || one_head(f, output->in[0], output->in[1])) &&
      (s->transposed || memcmp(q->shape, s->dims, 2 * sizeof(*q->shape)) != 0))
    return false;
  return v->shape[v->rank - 2] == s->dims[3] && y->shape[y->rank - 2] == s->dims[2] &&
         v->dtype == y->dtype;
}

/* Keys and values have as many heads: where a product broadcasts one head of keys or values alone,
 * it is expanded; repeated on one side only: both are left as they were. */
static opipe_status even_heads(opi_fuse *f, const int64_t *d, uint32_t whole, operand *o,
                               opipe_error *err) {
  const opi_value *x = opi_f_value(f, whole);
  const int64_t shape[4] = {d[0], d[1], x->shape[2], x->shape[3]};
  o->value = whole;
  o->heads = d[1];
  return opi_k_expand(f->b, whole, shape, 4, &o->value, err);
}

static opipe_status settle(opi_fuse *f, opi_scores *s, const opi_node *output, operand *q,
                           operand *k, operand *v, opipe_error *err) {
  const opi_value *left = opi_f_value(f, s->left), *values = opi_f_value(f, output->in[1]);
  const int64_t *d = s->dims;
  const int64_t size = left->shape[left->rank - 1], v_size = values->shape[values->rank - 1];
  const int64_t k_heads = one_head(f, s->left, s->right) ? 1 : d[1],
                v_heads = one_head(f, output->in[0], output->in[1]) ? 1 : d[1];
  const int64_t q_shape[4] = {d[0], d[1], d[2], size}, k_shape[4] = {d[0], k_heads, d[3], size},
                v_shape[4] = {d[0], v_heads, d[3], v_size};
  *q = *k = *v = (operand){.past = OPIPE_NONE, .joined = OPIPE_NONE, .heads = d[1]};
  if (s->transposed) {
    OPI_TRY(settle_keys(f, s, q_shape, &q->value, err));
    OPI_TRY(as_shape(f, strip_scale(f, s->left, s), k_shape, &k->value, err));
    return as_shape(f, output->in[1], v_shape, &v->value, err);
  }
  OPI_TRY(as_shape(f, strip_scale(f, s->left, s), q_shape, &q->value, err));
  OPI_TRY(settle_keys(f, s, k_shape, &k->value, err));
  OPI_TRY(as_shape(f, output->in[1], v_shape, &v->value, err));
  const uint32_t whole_k = k->value, whole_v = v->value;
  k->heads = k_heads;
  v->heads = v_heads;
  OPI_TRY(strip_repeats(f, k, err));
  OPI_TRY(strip_repeats(f, v, err));
  if (k->heads != v->heads) {
    OPI_TRY(even_heads(f, d, whole_k, k, err));
    OPI_TRY(even_heads(f, d, whole_v, v, err));
  }
  strip_past(f, k);
  strip_past(f, v);
  if (k->joined == OPIPE_NONE || v->joined == OPIPE_NONE ||
      opi_f_value(f, k->past)->shape[2] != opi_f_value(f, v->past)->shape[2]) {
    unstrip_past(k);
    unstrip_past(v);
  }
  return OPIPE_OK;
}

/* All three of one type, that of the result. */
static bool one_type(const opi_fuse *f, uint32_t dtype, operand *q, operand *k, const operand *v) {
  if (opi_f_value(f, q->value)->dtype != dtype)
    q->value = opi_f_uncast(f, q->value);
  if (opi_f_value(f, k->value)->dtype != dtype && k->joined == OPIPE_NONE)
    k->value = opi_f_uncast(f, k->value);
  return opi_f_value(f, q->value)->dtype == dtype && opi_f_value(f, k->value)->dtype == dtype &&
         opi_f_value(f, v->value)->dtype == dtype && opi_dtype_is_float(dtype);
}

static opipe_status replace_present(opi_fuse *f, const operand *o, uint32_t present,
                                    opipe_error *err) {
  const bool read =
      o->joined != OPIPE_NONE && (opi_f_value(f, o->joined)->flags & OPI_VALUE_OUTPUT) != 0;
  return read ? opi_f_replace(f, o->joined, present, OPI_PATTERN_ATTENTION, err) : OPIPE_OK;
}

static uint32_t wanted(const opi_fuse *f, const operand *k, const operand *v) {
  uint32_t want = 1u << OPI_ATT_Y;
  if (k->joined != OPIPE_NONE && (opi_f_value(f, k->joined)->flags & OPI_VALUE_OUTPUT) != 0)
    want |= 1u << OPI_ATT_PRESENT_K;
  if (v->joined != OPIPE_NONE && (opi_f_value(f, v->joined)->flags & OPI_VALUE_OUTPUT) != 0)
    want |= 1u << OPI_ATT_PRESENT_V;
  return want;
}

/* An added mask is of the queries' type. Numbers in float32 beside half types must not lose their
 * range: then queries, keys and values are widened instead. */
static opipe_status meet_mask(opi_fuse *f, uint32_t mask, operand *q, operand *k, operand *v,
                              bool *out_ok, opipe_error *err) {
  const uint32_t dtype = opi_f_value(f, q->value)->dtype;
  const uint32_t type = mask != OPIPE_NONE ? opi_f_value(f, mask)->dtype : OPIPE_BOOL;
  *out_ok = type == OPIPE_BOOL || type == dtype ||
            (type == OPIPE_FLOAT && dtype != OPIPE_DOUBLE && k->past == OPIPE_NONE);
  if (!*out_ok || type == OPIPE_BOOL || type == dtype)
    return OPIPE_OK;
  OPI_TRY(opi_k_cast(f->b, q->value, type, &q->value, err));
  OPI_TRY(opi_k_cast(f->b, k->value, type, &k->value, err));
  return opi_k_cast(f->b, v->value, type, &v->value, err);
}

static opipe_status fuse(opi_fuse *f, opi_scores *s, const opi_node *output, opipe_error *err) {
  const uint32_t result = output->out[0];
  const opi_value y = *opi_f_value(f, result);
  uint32_t in[OPI_ATT_INPUTS], out[OPI_ATT_OUTPUTS], mask = OPIPE_NONE;
  bool causal = false, ok = true;
  operand q, k, v;
  OPI_TRY(settle(f, s, output, &q, &k, &v, err));
  if (!one_type(f, y.dtype, &q, &k, &v))
    return OPIPE_OK;
  const int64_t past = k.past != OPIPE_NONE ? opi_f_value(f, k.past)->shape[2] : 0;
  OPI_TRY(opi_fuse_masks(f, s, past, &mask, &causal, &ok, err));
  if (!ok)
    return OPIPE_OK;
  OPI_TRY(meet_mask(f, mask, &q, &k, &v, &ok, err));
  if (!ok)
    return OPIPE_OK;
  const opi_attention how = {.q_heads = q.heads,
                             .kv_heads = k.heads,
                             .scale = s->scale,
                             .softcap = s->softcap,
                             .causal = causal,
                             .precision = y.dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT};
  for (uint32_t i = 0; i < OPI_ATT_INPUTS; ++i)
    in[i] = OPIPE_NONE;
  in[OPI_ATT_Q] = q.value;
  in[OPI_ATT_K] = k.value;
  in[OPI_ATT_V] = v.value;
  in[OPI_ATT_MASK] = mask;
  in[OPI_ATT_PAST_K] = k.past;
  in[OPI_ATT_PAST_V] = v.past;
  OPI_TRY(opi_attention_emit(f->b, &how, in, wanted(f, &k, &v), OPI_PATTERN_ATTENTION, out, err));
  OPI_TRY(replace_present(f, &k, out[OPI_ATT_PRESENT_K], err));
  OPI_TRY(replace_present(f, &v, out[OPI_ATT_PRESENT_V], err));
  OPI_TRY(opi_k_cast(f->b, out[OPI_ATT_Y], y.dtype, &out[OPI_ATT_Y], err));
  OPI_TRY(opi_k_reshape(f->b, out[OPI_ATT_Y], y.shape, (uint32_t)y.rank, &out[OPI_ATT_Y], err));
  return opi_f_replace(f, result, out[OPI_ATT_Y], OPI_PATTERN_ATTENTION, err);
}

opipe_status opi_fuse_attention(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node *node = opi_f_node(f, n);
  opi_scores s;
  if (!opi_f_is(node, "Softmax"))
    return OPIPE_OK;
  const uint32_t scores = node->in[0], weights = node->out[0];
  const int64_t axis = opi_attr_int(node, "axis", -1), rank = opi_f_value(f, scores)->rank;
  const bool transposed = rank >= 2 && axis == rank - 2;
  if (axis != rank - 1 && !transposed)
    return OPIPE_OK;
  const opi_node *output = find_output(f, weights, transposed);
  if (output == NULL || !read_scores(f, scores, &s))
    return OPIPE_OK;
  if (transposed) {
    const int64_t rows = s.dims[2];
    if (s.n_masks != 0 || s.kept)
      return OPIPE_OK;
    s.transposed = true;
    s.dims[2] = s.dims[3];
    s.dims[3] = rows;
  }
  if (!sizes_fit(f, &s, output))
    return OPIPE_OK;
  if (s.kept) {
    opi_f_mark(f, weights, OPI_PATTERN_ATTENTION);
    return OPIPE_OK;
  }
  const opi_node last = *output;
  return fuse(f, &s, &last, err);
}

/* An Attention that reads key heads repeated by Expand reads them as they are. */
opipe_status opi_fuse_repeats(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node node = *opi_f_node(f, n);
  uint32_t in[OPI_ATT_INPUTS], out[OPI_ATT_OUTPUTS];
  if (!opi_f_is(&node, "Attention") || node.n_out != 1 ||
      opi_f_value(f, node.in[OPI_ATT_Q])->rank != 4)
    return OPIPE_OK;
  if (opi_node_in(&node, OPI_ATT_PAST_K) != OPIPE_NONE)
    return OPIPE_OK;
  const int64_t heads = opi_attr_int(&node, "kv_num_heads", 1);
  operand k = {.value = node.in[OPI_ATT_K], .heads = heads},
          v = {.value = node.in[OPI_ATT_V], .heads = heads};
  OPI_TRY(strip_repeats(f, &k, err));
  OPI_TRY(strip_repeats(f, &v, err));
  if (k.heads == heads || k.heads != v.heads)
    return OPIPE_OK;
  opi_attention how = opi_attention_of(&node);
  how.kv_heads = k.heads;
  for (uint32_t i = 0; i < OPI_ATT_INPUTS; ++i)
    in[i] = opi_node_in(&node, i);
  in[OPI_ATT_K] = k.value;
  in[OPI_ATT_V] = v.value;
  OPI_TRY(opi_attention_emit(f->b, &how, in, 1u << OPI_ATT_Y, node.pattern, out, err));
  return opi_f_replace(f, node.out[OPI_ATT_Y], out[OPI_ATT_Y], node.pattern, err);
}
