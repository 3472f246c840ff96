/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys the rows of an Attention may see by their places, as a mask: windows, and causality
 * over a cache that is filled to another length in each sequence.
 *
 * Row i of sequence b stands at place p = i + offset, offset being the past's length, or
 * nonpad_kv_seqlen[b] - S where that is given. It sees keys p - left .. p + right (-1: no bound),
 * causal ones up to p. The canonical form has plain causality only, so that all else becomes part
 * of its mask; keys behind the mask's width are hidden already.
 */
#include <math.h>

#include "loader/ops/attention.h"

/* int64 [n]: first, first + 1, ... */
static opipe_status count_from(opi_builder *b, int64_t n, int64_t first, uint32_t *out,
                               opipe_error *err) {
  int64_t *ints = OPI_ARENA_ARRAY(b->scratch, int64_t, (size_t)n);
  if (ints == NULL)
    return opi_fail_nomem(err, (uint64_t)n * 8, "places");
  for (int64_t i = 0; i < n; ++i)
    ints[i] = first + i;
  return opi_k_const(*out = opi_b_const(b, OPIPE_INT64, &n, 1, ints), err);
}

/* bool [B, 1, S, width] from nonpad_kv_seqlen [B]. */
static opipe_status ragged_band(opi_builder *b, const opi_attention_window *p, uint32_t lengths,
                                int64_t width, uint32_t *out, opipe_error *err) {
  const int64_t column[4] = {p->batch, 1, 1, 1}, rows[4] = {1, 1, p->rows, 1};
  uint32_t at, row, key = OPIPE_NONE, shift, bound, low, high = OPIPE_NONE;
  OPI_TRY(opi_k_cast(b, lengths, OPIPE_INT64, &at, err));
  OPI_TRY(opi_k_reshape(b, at, column, 4, &at, err));
  OPI_TRY(count_from(b, p->rows, -p->rows, &row, err));
  OPI_TRY(opi_k_reshape(b, row, rows, 4, &row, err));
  OPI_TRY(opi_b_op2(b, "Add", at, row, &at, err));
  OPI_TRY(count_from(b, width, 0, &key, err));
  if (p->right >= 0) {
    OPI_TRY(opi_k_const(shift = opi_b_const_scalar(b, OPIPE_INT64, (double)p->right), err));
    OPI_TRY(opi_b_op2(b, "Add", at, shift, &bound, err));
    OPI_TRY(opi_b_op2(b, "LessOrEqual", key, bound, &high, err));
  }
  *out = high;
  if (p->left < 0)
    return OPIPE_OK;
  OPI_TRY(opi_k_const(shift = opi_b_const_scalar(b, OPIPE_INT64, (double)p->left), err));
  OPI_TRY(opi_b_op2(b, "Sub", at, shift, &bound, err));
  OPI_TRY(opi_b_op2(b, "GreaterOrEqual", key, bound, &low, err));
  *out = low;
  return high == OPIPE_NONE ? OPIPE_OK : opi_b_op2(b, "And", high, low, out, err);
}

/* Joins a mask with the band: a key must pass both. */
static opipe_status join_mask(opi_builder *b, uint32_t mask, uint32_t band, uint32_t *out,
                              opipe_error *err) {
  const uint32_t dtype = opi_b_value(b, mask)->dtype;
  uint32_t hidden;
  if (dtype == OPIPE_BOOL)
    return opi_b_op2(b, "And", mask, band, out, err);
  OPI_TRY(opi_k_const(hidden = opi_b_const_scalar(b, dtype, -INFINITY), err));
  return opi_k_where(b, band, mask, hidden, out, err);
}

opipe_status opi_attention_places(opi_builder *b, const opi_attention_window *places,
                                  uint32_t *io_mask, uint32_t lengths, bool *io_causal,
                                  opipe_error *err) {
  opi_attention_window p = *places;
  uint32_t band;
  const bool bounded = p.left >= 0 || (p.right >= 0 && !*io_causal);
  if (!bounded && (!*io_causal || lengths == OPIPE_NONE))
    return OPIPE_OK;
  if (*io_causal)
    p.right = 0;
  const opi_value *mask = *io_mask != OPIPE_NONE ? opi_b_value(b, *io_mask) : NULL;
  const int64_t width = mask != NULL && mask->rank > 0 && mask->shape[mask->rank - 1] != 1
                            ? mask->shape[mask->rank - 1]
                            : p.keys;
  const int64_t far = INT32_MAX;
  if (lengths != OPIPE_NONE) {
    OPI_TRY(ragged_band(b, &p, lengths, width, &band, err));
  } else {
    OPI_TRY(opi_k_band(b, p.rows, width, p.past, p.left < 0 ? -far : -p.left,
                       p.right < 0 ? far : p.right, &band, err));
  }
  *io_causal = false;
  if (mask != NULL)
    return join_mask(b, *io_mask, band, io_mask, err);
  *io_mask = band;
  return OPIPE_OK;
}
