/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of a recognised attention, joined to one attn_mask or to the causal flag.
 *
 * The causal flag is set only when the mask is known and is exactly the causal one. A known mask
 * that keeps at least one key in every row and drops the others by -1e4 or less becomes a bool mask
 * (what is dropped has weight 0 either way). Everything else is added as the file has it, so rows
 * in which nothing is kept come out as before. Joined masks are made once and used by all layers.
 */
#include <math.h>

#include "loader/passes/fuse_attention.h"

#define DROPPED (-1e4) /* a score at or below it counts as dropped */

/* Bits of a known mask over its own shape: 1 kept. NULL: not known, or not of that kind. */
static const uint8_t *kept_bits(opi_fuse *f, const opi_mask_item *m) {
  const opi_value v = *opi_f_value(f, m->value);
  const uint64_t size = opi_dtype_bits(v.dtype) / 8;
  const uint32_t flags = (m->keeps ? 1u : 0u) | (m->inverted ? 2u : 0u) | (m->subtracted ? 4u : 0u);
  if (v.data == NULL || size == 0 || v.n_bytes > (uint64_t)1 << 28)
    return NULL;
  if (m->keeps && m->fill > DROPPED)
    return NULL;
  if (f->mask_bits != NULL && f->mask_value == m->value && f->mask_flags == flags && m->factor == 1)
    return f->mask_bits; /* all layers read the same one */
  const uint64_t n = v.n_bytes / size;
  uint8_t *bits = opi_arena_alloc(f->b->scratch, n);
  opi_value one = v;
  if (bits == NULL)
    return NULL;
  one.n_bytes = size;
  for (uint64_t i = 0; i < n; ++i) {
    double x = 0;
    one.data = (const uint8_t *)v.data + i * size;
    if (!opi_known_scalar(&one, &x))
      return NULL;
    if (m->subtracted)
      x = -x;
    x *= m->keeps ? 1 : m->factor;
    if (!m->keeps && x != 0 && !(x <= DROPPED))
      return NULL;
    bits[i] = m->keeps ? (x != 0) != m->inverted : x == 0;
  }
  f->mask_bits = bits;
  f->mask_value = m->value;
  f->mask_flags = flags;
  return bits;
}

/* Every row keeps at least one key. */
static bool rows_live(const uint8_t *bits, uint64_t n, int64_t row) {
  for (uint64_t at = 0; row > 0 && at < n; at += (uint64_t)row) {
    if (memchr(bits + at, 1, (size_t)row) == NULL)
      return false;
  }
  return row > 0;
}

/* bits [.., S, T] keep key j for row i exactly when j <= i + past, in every matrix. */
static bool is_causal(const opi_value *v, const uint8_t *bits, const opi_scores *s, int64_t past) {
  const int64_t rows = s->dims[2], cols = s->dims[3];
  if (v->rank < 2 || v->shape[v->rank - 1] != cols || v->shape[v->rank - 2] != rows)
    return false;
  const int64_t lines = (int64_t)(opi_k_elems(v) / (double)cols);
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t j = 0; j < cols; ++j) {
      if (bits[line * cols + j] != (j <= line % rows + past))
        return false;
    }
  }
  return true;
}

static bool all_kept(const uint8_t *bits, uint64_t n) {
  return n == 0 || memchr(bits, 0, (size_t)n) == NULL;
}

/* A mask of rank 2 to 4 that broadcasts to [B, H, S, T] from the right. */
static opipe_status align(opi_fuse *f, const opi_scores *s, const opi_mask_item *m, uint32_t *io,
                          bool *out_ok, opipe_error *err) {
  const opi_value v = *opi_f_value(f, *io);
  int64_t shape[4] = {1, 1, 1, 1};
  uint32_t rank = v.rank < 2 ? 2 : (uint32_t)v.rank;
  *out_ok = v.rank <= 4;
  if (!*out_ok)
    return OPIPE_OK;
  for (int32_t a = 0; a < v.rank; ++a)
    shape[rank - (uint32_t)v.rank + (uint32_t)a] = v.shape[a];
  if (m->rank == 3 && v.rank == 3 &&
      (v.shape[0] != 1 || s->dims[0] * s->dims[1] == 1)) { /* [B*H, S, T] */
    *out_ok = v.shape[0] == s->dims[0] * s->dims[1];
    shape[0] = s->dims[0];
    shape[1] = s->dims[1];
    shape[2] = v.shape[1];
    shape[3] = v.shape[2];
    rank = 4;
  }
  for (uint32_t back = 1; *out_ok && back <= rank; ++back) {
    const int64_t n = shape[rank - back];
    *out_ok = n == 1 || n == s->dims[4 - back];
  }
  return *out_ok ? opi_k_reshape(f->b, *io, shape, rank, io, err) : OPIPE_OK;
}

/* The same known content: exporters write one causal mask per layer. */
static bool same_content(const opi_fuse *f, uint32_t a, uint32_t b) {
  const opi_value *x = opi_f_value(f, a), *y = opi_f_value(f, b);
  return a == b ||
         (x->data != NULL && y->data != NULL && x->dtype == y->dtype && x->n_bytes == y->n_bytes &&
          opi_f_same_shape(f, a, b) && memcmp(x->data, y->data, x->n_bytes) == 0);
}

/* An earlier mask of the kind with this content. */
static uint32_t recall_mask(const opi_fuse *f, uint32_t kind, const opi_mask_item *m) {
  for (uint32_t i = 0; i < f->n_memos; ++i) {
    const opi_fuse_memo *memo = &f->memos[i];
    if (memo->key[0] != kind || memo->key[2] != m->inverted || memo->number != m->fill)
      continue;
    if (same_content(f, memo->key[1], m->value))
      return memo->value;
  }
  return OPIPE_NONE;
}

static opipe_status remember_mask(opi_fuse *f, uint32_t kind, const opi_mask_item *m, uint32_t made,
                                  opipe_error *err) {
  OPI_TRY(opi_f_remember(f, kind, m->value, m->inverted, made, err));
  f->memos[f->n_memos - 1].number = m->fill;
  return OPIPE_OK;
}

/* The added value times the scales after it; made once for all layers. */
static opipe_status scaled(opi_fuse *f, const opi_mask_item *m, uint32_t *io, opipe_error *err) {
  opi_mask_item key = *m;
  uint32_t factor;
  key.fill = m->factor;
  key.inverted = m->subtracted;
  const uint32_t had = recall_mask(f, OPI_MEMO_SCALED, &key);
  if (had != OPIPE_NONE || m->factor == 1) {
    *io = m->factor == 1 ? *io : had;
    return OPIPE_OK;
  }
  const uint32_t dtype = opi_f_value(f, *io)->dtype;
  OPI_TRY(opi_k_const(factor = opi_b_const_scalar(f->b, dtype, m->factor), err));
  OPI_TRY(opi_b_op2(f->b, "Mul", *io, factor, io, err));
  return remember_mask(f, OPI_MEMO_SCALED, &key, *io, err);
}

/* The mask as numbers to add. */
static opipe_status as_added(opi_fuse *f, const opi_scores *s, const opi_mask_item *m,
                             uint32_t *out, opipe_error *err) {
  uint32_t keep = m->value, zero, fill;
  *out = m->value;
  if (!m->keeps) {
    if (m->subtracted)
      OPI_TRY(opi_b_op1(f->b, "Neg", m->value, out, err));
    return scaled(f, m, out, err);
  }
  *out = recall_mask(f, OPI_MEMO_MASK, m);
  if (*out != OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_k_cast(f->b, keep, OPIPE_BOOL, &keep, err));
  OPI_TRY(opi_k_const(zero = opi_b_const_scalar(f->b, s->dtype, 0), err));
  OPI_TRY(opi_k_const(fill = opi_b_const_scalar(f->b, s->dtype, m->fill), err));
  OPI_TRY(opi_k_where(f->b, keep, m->inverted ? fill : zero, m->inverted ? zero : fill, out, err));
  return remember_mask(f, OPI_MEMO_MASK, m, *out, err);
}

static opipe_status as_bool(opi_fuse *f, const opi_mask_item *m, const uint8_t *bits, uint32_t *out,
                            opipe_error *err) {
  const opi_value v = *opi_f_value(f, m->value);
  *out = recall_mask(f, OPI_MEMO_KEEP, m);
  if (*out != OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_k_const(*out = opi_b_const(f->b, OPIPE_BOOL, v.shape, (uint32_t)v.rank, bits), err));
  return remember_mask(f, OPI_MEMO_KEEP, m, *out, err);
}

static opipe_status join(opi_fuse *f, uint32_t a, uint32_t b, uint32_t *out, opipe_error *err) {
  *out = opi_f_recall(f, OPI_MEMO_SUM, a, b);
  if (*out != OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_b_op2(f->b, "Add", a, b, out, err));
  return opi_f_remember(f, OPI_MEMO_SUM, a, b, *out, err);
}

/* Drops masks that keep everything. */
static uint32_t needed(opi_fuse *f, const opi_scores *s, opi_mask_item *out) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n_masks; ++i) {
    const opi_value *v = opi_f_value(f, s->masks[i].value);
    const uint8_t *bits = kept_bits(f, &s->masks[i]);
    if (bits != NULL && all_kept(bits, (uint64_t)opi_k_elems(v)))
      continue;
    out[n++] = s->masks[i];
  }
  return n;
}

opipe_status opi_fuse_masks(opi_fuse *f, const opi_scores *s, int64_t past, uint32_t *out,
                            bool *out_causal, bool *out_ok, opipe_error *err) {
  opi_mask_item items[OPI_MAX_MASKS];
  const uint32_t n = needed(f, s, items);
  *out = OPIPE_NONE;
  *out_causal = false;
  *out_ok = true;
  if (n == 1) {
    const opi_value v = *opi_f_value(f, items[0].value);
    const uint8_t *bits = kept_bits(f, &items[0]);
    const bool whole = bits != NULL && v.rank > 0 && v.shape[v.rank - 1] == s->dims[3];
    if (whole && rows_live(bits, (uint64_t)opi_k_elems(&v), s->dims[3])) {
      *out_causal = is_causal(&v, bits, s, past);
      if (*out_causal)
        return OPIPE_OK;
      OPI_TRY(as_bool(f, &items[0], bits, out, err));
      return align(f, s, &items[0], out, out_ok, err);
    }
  }
  for (uint32_t i = n; i-- > 0;) { /* from the scores outwards */
    uint32_t v;
    OPI_TRY(as_added(f, s, &items[i], &v, err));
    OPI_TRY(align(f, s, &items[i], &v, out_ok, err));
    if (!*out_ok)
      return OPIPE_OK;
    if (*out == OPIPE_NONE)
      *out = v;
    else
      OPI_TRY(join(f, *out, v, out, err));
  }
  return OPIPE_OK;
}
