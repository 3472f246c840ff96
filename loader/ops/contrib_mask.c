/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of com.microsoft attentions: padding of keys in the five shapes that ORT knows, as numbers
 * that are added to the scores. A padded key gets mask_filter_value (default -10000), not -inf:
 * that decides rows without any allowed key. Unidirectional masking is the canonical causal flag.
 */
#include "loader/ops/contrib.h"

opipe_status opi_ms_only(const opi_builder *b, const opi_node *node, const char *name,
                         int64_t value, opipe_error *err) {
  const int64_t has = opi_attr_int(node, name, value);
  if (has == value)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                       "attribute %s is %lld, only %lld is supported", name, (long long)has,
                       (long long)value);
}

opipe_status opi_ms_range(opi_builder *b, int64_t n, uint32_t *out, opipe_error *err) {
  const int64_t shape[2] = {1, n};
  int64_t *ints = OPI_ARENA_ARRAY(b->scratch, int64_t, (size_t)n);
  if (ints == NULL)
    return opi_fail_nomem(err, (uint64_t)n * 8, "a range");
  for (int64_t i = 0; i < n; ++i)
    ints[i] = i;
  *out = opi_b_const(b, OPIPE_INT64, shape, 2, ints);
  return opi_k_const(*out, err);
}

opipe_status opi_ms_split(opi_builder *b, uint32_t x, const int64_t *sizes, uint32_t n,
                          uint32_t *out, opipe_error *err) {
  int64_t begin = 0;
  const int64_t axis = opi_b_value(b, x)->rank - 1;
  for (uint32_t i = 0; i < n; ++i) {
    OPI_TRY(opi_k_slice(b, x, axis, begin, begin + sizes[i], &out[i], err));
    begin += sizes[i];
  }
  return OPIPE_OK;
}

/* keys < ends (and >= begins): bool [B, T]. ends and begins are one input of length B or 2B. */
static opipe_status from_lengths(opi_builder *b, const opi_node *node, const opi_padding *how,
                                 uint32_t *out, opipe_error *err) {
  const int64_t column[2] = {how->batch, 1};
  const int64_t n = opi_input(b, node, how->input)->shape[0];
  uint32_t wide, ends, keys = OPIPE_NONE, begins, after;
  OPI_TRY(opi_k_cast(b, node->in[how->input], OPIPE_INT64, &wide, err));
  OPI_TRY(opi_ms_range(b, how->total, &keys, err));
  OPI_TRY(opi_k_slice(b, wide, 0, 0, how->batch, &ends, err));
  OPI_TRY(opi_k_reshape(b, ends, column, 2, &ends, err));
  OPI_TRY(opi_b_op2(b, "Less", keys, ends, out, err));
  if (n == how->batch)
    return OPIPE_OK;
  OPI_TRY(opi_k_slice(b, wide, 0, how->batch, n, &begins, err));
  OPI_TRY(opi_k_reshape(b, begins, column, 2, &begins, err));
  OPI_TRY(opi_b_op2(b, "GreaterOrEqual", keys, begins, &after, err));
  return opi_b_op2(b, "And", *out, after, out, err);
}

/* A mask of zeros and ones of rank 2 to 4 -> bool [B, 1, 1 or S, T]. */
static opipe_status from_marks(opi_builder *b, const opi_node *node, const opi_padding *how,
                               uint32_t *out, opipe_error *err) {
  const opi_value m = *opi_input(b, node, how->input);
  const int64_t shape[4] = {how->batch, 1, m.rank == 2 ? 1 : how->q_len, how->total};
  uint32_t x = node->in[how->input], zero;
  OPI_TRY(opi_need_dim(b, node, how->input, 0, how->batch, "the batch", err));
  if (m.rank == 4) {
    OPI_TRY(opi_need_dim(b, node, how->input, 1, 1, "one mask for all heads", err));
    OPI_TRY(
        opi_need_dim(b, node, how->input, 3, m.shape[2], "as its axis 2: the largest length", err));
    if (m.shape[2] < how->total) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "input '%s' covers %lld positions, there are %lld", m.name,
                           (long long)m.shape[2], (long long)how->total);
    }
    OPI_TRY(opi_k_slice(b, x, 2, how->total - how->q_len, how->total, &x, err));
    OPI_TRY(opi_k_slice(b, x, 3, 0, how->total, &x, err));
  } else {
    if (m.rank == 3)
      OPI_TRY(opi_need_dim(b, node, how->input, 1, how->q_len, "the query's length", err));
    OPI_TRY(opi_need_dim(b, node, how->input, (uint32_t)m.rank - 1, how->total,
                         "past and present keys", err));
    OPI_TRY(opi_k_reshape(b, x, shape, 4, &x, err));
  }
  OPI_TRY(opi_k_const(zero = opi_b_const_scalar(b, m.dtype, 0), err));
  return opi_b_op2(b, "Greater", x, zero, out, err);
}

/* true -> 0, false -> filter. */
static opipe_status to_added(opi_builder *b, uint32_t keep, double filter, uint32_t dtype,
                             uint32_t *out, opipe_error *err) {
  uint32_t zero, low;
  OPI_TRY(opi_k_const(zero = opi_b_const_scalar(b, dtype, 0), err));
  OPI_TRY(opi_k_const(low = opi_b_const_scalar(b, dtype, filter), err));
  return opi_k_where(b, keep, zero, low, out, err);
}

/* int32 [B] lengths, [2B] ends and begins, [B, T], [B, S, T] or [B, 1, M, M] -> dtype [B, 1, 1 or
 * S, T]. */
static opipe_status padding(opi_builder *b, const opi_node *node, const opi_padding *how,
                            uint32_t *out, opipe_error *err) {
  uint32_t keep;
  OPI_TRY(opi_need(b, node, how->input, "mask of keys", OPI_T_WIDE, 1, 4, err));
  const opi_value m = *opi_input(b, node, how->input);
  if (m.rank == 1) {
    const int64_t shape[4] = {how->batch, 1, 1, how->total};
    if (m.shape[0] == 3 * how->batch + 2) {
      return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                           "input '%s' of %lld lengths and offsets is not supported", m.name,
                           (long long)m.shape[0]);
    }
    if (m.shape[0] != how->batch && m.shape[0] != 2 * how->batch) {
      return opi_node_fail(
          b, node, err, OPIPE_E_INVALID,
          "input '%s' has %lld elements, %lld or %lld are needed for a batch of %lld", m.name,
          (long long)m.shape[0], (long long)how->batch, (long long)(2 * how->batch),
          (long long)how->batch);
    }
    OPI_TRY(from_lengths(b, node, how, &keep, err));
    OPI_TRY(opi_k_reshape(b, keep, shape, 4, &keep, err));
  } else {
    OPI_TRY(from_marks(b, node, how, &keep, err));
  }
  return to_added(b, keep, how->filter, how->dtype, out, err);
}

opipe_status opi_ms_add_bias(opi_builder *b, const opi_node *node, uint32_t i, const int64_t *full,
                             uint32_t mask, uint32_t *out, opipe_error *err) {
  *out = mask;
  if (opi_node_in(node, i) == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_need(b, node, i, "attention_bias", OPI_T_FLOAT, 4, 4, err));
  OPI_TRY(opi_need_same_type(b, node, 0, i, err));
  const opi_value *bias = opi_input(b, node, i);
  if (bias->shape[0] != 1)
    OPI_TRY(opi_need_dim(b, node, i, 0, full[0], "the batch, or 1", err));
  if (bias->shape[1] != 1)
    OPI_TRY(opi_need_dim(b, node, i, 1, full[1], "the heads, or 1", err));
  OPI_TRY(opi_need_dim(b, node, i, 2, full[2], "the query's length", err));
  OPI_TRY(opi_need_dim(b, node, i, 3, full[3], "past and present keys", err));
  if (mask == OPIPE_NONE) {
    *out = node->in[i];
    return OPIPE_OK;
  }
  return opi_b_op2(b, "Add", node->in[i], mask, out, err);
}

/* A mask with one mark for each sample, or for all, that stands for every key. */
static bool is_one_mark(opi_builder *b, const opi_node *node, const opi_padding *how) {
  const opi_value *m = opi_input(b, node, how->input);
  return how->one_mark && m->rank == 2 && m->shape[1] == 1 &&
         (m->shape[0] == 1 || (m->shape[0] == how->batch && how->total != 1));
}

opipe_status opi_ms_mask(opi_builder *b, const opi_node *node, const opi_padding *how,
                         uint32_t bias, int64_t heads, uint32_t *out, opipe_error *err) {
  const int64_t full[4] = {how->batch, heads, how->q_len, how->total};
  uint32_t mask = OPIPE_NONE;
  if (opi_node_in(node, how->input) != OPIPE_NONE && !is_one_mark(b, node, how))
    OPI_TRY(padding(b, node, how, &mask, err));
  return opi_ms_add_bias(b, node, bias, full, mask, out, err);
}
