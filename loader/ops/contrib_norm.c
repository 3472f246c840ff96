/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft SkipLayerNormalization, SkipSimplifiedLayerNormalization, EmbedLayerNormalization.
 *
 * Sums and gathers followed by the standard's LayerNormalization or RMSNormalization over the last
 * axis.
 */
#include "loader/ops/contrib.h"

/* Emits the norm of `x` over its last axis; want: bit per output (mean, inverse deviation). beta
 * OPIPE_NONE: none. */
static opipe_status emit_norm(opi_builder *b, const opi_node *node, const char *op, uint32_t x,
                              uint32_t gamma, uint32_t beta, uint32_t want, uint32_t *out,
                              opipe_error *err) {
  const uint32_t in[3] = {x, gamma, beta};
  const bool rms = strcmp(op, "RMSNormalization") == 0;
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", opi_b_value(b, x)->rank - 1);
  opi_attrs_float(&attrs, "epsilon", opi_attr_float(node, "epsilon", (double)1e-12f));
  opi_attrs_int(&attrs, "stash_type", OPIPE_FLOAT);
  return opi_k_node(b, op, NULL, rms ? 23 : 17, in, rms ? 2 : 3, want, &attrs, out, err);
}

/* skip must broadcast to x: same shape, [1, S, H] or [S, H]. */
static opipe_status check_skip(const opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = opi_input(b, node, 0);
  const opi_value *skip = opi_input(b, node, 1);
  const uint32_t lead = (uint32_t)(x->rank - skip->rank);
  char has[128], want[128];
  bool fits = skip->rank >= 2 && skip->rank <= x->rank;
  for (uint32_t a = 0; fits && a < (uint32_t)skip->rank; ++a) {
    fits = skip->shape[a] == x->shape[a + lead] ||
           (a + lead == 0 && x->rank == 3 && skip->shape[a] == 1);
  }
  if (fits)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "input '%s' (skip) has shape %s, which does not fit %s of input '%s'",
                       skip->name,
                       opi_shape_text(has, sizeof(has), skip->shape, (uint32_t)skip->rank),
                       opi_shape_text(want, sizeof(want), x->shape, (uint32_t)x->rank), x->name);
}

/* Outputs 1 and 2 of the simplified form, [.., 1] float: zeros (nothing is subtracted), and 1 /
 * sqrt(mean(x^2) + epsilon). */
static opipe_status rms_statistics(opi_builder *b, const opi_node *node, uint32_t x,
                                   opipe_error *err) {
  const int64_t last = opi_b_value(b, x)->rank - 1;
  uint32_t v, zero, eps;
  if (!opi_wants(node, 1) && !opi_wants(node, 2))
    return OPIPE_OK;
  OPI_TRY(opi_k_cast(b, x, OPIPE_FLOAT, &v, err));
  OPI_TRY(opi_b_op2(b, "Mul", v, v, &v, err));
  OPI_TRY(opi_k_reduce(b, "ReduceMean", 0, v, &last, 1, true, &v, err));
  if (opi_wants(node, 1)) {
    const opi_value like = *opi_b_value(b, v);
    OPI_TRY(opi_k_const(zero = opi_b_const_scalar(b, OPIPE_FLOAT, 0), err));
    OPI_TRY(opi_k_expand(b, zero, like.shape, (uint32_t)like.rank, &zero, err));
    OPI_TRY(opi_b_result(b, node, 1, zero, err));
  }
  OPI_TRY(opi_k_const(
      eps = opi_b_const_scalar(b, OPIPE_FLOAT, opi_attr_float(node, "epsilon", (double)1e-12f)),
      err));
  OPI_TRY(opi_b_op2(b, "Add", v, eps, &v, err));
  OPI_TRY(opi_b_op1(b, "Sqrt", v, &v, err));
  OPI_TRY(opi_b_op1(b, "Reciprocal", v, &v, err));
  return opi_wants(node, 2) ? opi_b_result(b, node, 2, v, err) : OPIPE_OK;
}

/* Inputs: x, skip, gamma, beta? (not for the simplified form), bias?. Outputs: y, mean?, inverse
 * deviation?, sum?. */
opipe_status opi_ms_skip_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  const bool rms = strcmp(node->op, "SkipSimplifiedLayerNormalization") == 0;
  const uint32_t n_vectors = rms ? 2 : 3; /* gamma (beta) bias */
  static const char *const full[3] = {"gamma", "beta", "bias"}, *const simple[2] = {"gamma",
                                                                                    "bias"};
  uint32_t x, out[3], want = 1;
  OPI_TRY(opi_need(b, node, 0, "input", OPI_T_FLOAT, 2, 3, err));
  OPI_TRY(opi_need(b, node, 1, "skip", OPI_T_FLOAT, 2, 3, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
  OPI_TRY(check_skip(b, node, err));
  const opi_value *v = opi_input(b, node, 0);
  const int64_t hidden = v->shape[v->rank - 1];
  OPI_TRY(opi_need(b, node, 2, "gamma", OPI_T_FLOAT, 1, 1, err));
  for (uint32_t i = 0; i < n_vectors; ++i) {
    OPI_TRY(opi_may(b, node, i + 2, rms ? simple[i] : full[i], OPI_T_FLOAT, 1, 1, err));
    OPI_TRY(opi_need_same_type(b, node, 0, i + 2, err));
    OPI_TRY(opi_need_dim(b, node, i + 2, 0, hidden, "the hidden size of the input", err));
  }
  const uint32_t bias = opi_node_in(node, n_vectors + 1);
  OPI_TRY(opi_b_op2(b, "Add", node->in[0], node->in[1], &x, err));
  if (bias != OPIPE_NONE)
    OPI_TRY(opi_b_op2(b, "Add", x, bias, &x, err));
  if (rms)
    OPI_TRY(rms_statistics(b, node, x, err));
  for (uint32_t o = 1; o < 3 && !rms; ++o)
    want |= opi_wants(node, o) ? 1u << o : 0u;
  OPI_TRY(emit_norm(b, node, rms ? "RMSNormalization" : "LayerNormalization", x, node->in[2],
                    rms ? OPIPE_NONE : opi_node_in(node, 3), want, out, err));
  for (uint32_t o = 0; o < 3; ++o) {
    if ((want >> o & 1u) != 0)
      OPI_TRY(opi_b_result(b, node, o, out[o], err));
  }
  return opi_wants(node, 3) ? opi_b_result(b, node, 3, x, err) : OPIPE_OK;
}

/* -- EmbedLayerNormalization ------------------------------------------------------------------- */

enum {
  IN_IDS,
  IN_SEGMENTS,
  IN_WORD,
  IN_POSITION,
  IN_SEGMENT,
  IN_GAMMA,
  IN_BETA,
  IN_MASK,
  IN_POSITIONS
};

static opipe_status gather_rows(opi_builder *b, uint32_t table, uint32_t ids, uint32_t *out,
                                opipe_error *err) {
  const uint32_t in[2] = {table, ids};
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", 0);
  return opi_k_one(b, "Gather", 0, in, 2, &attrs, out, err);
}

static opipe_status embed_check(const opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(opi_need(b, node, IN_IDS, "input_ids", OPI_T_WIDE, 2, 2, err));
  OPI_TRY(opi_need(b, node, IN_WORD, "word_embedding", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_need(b, node, IN_POSITION, "position_embedding", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_may(b, node, IN_SEGMENTS, "segment_ids", OPI_T_WIDE, 2, 2, err));
  OPI_TRY(opi_may(b, node, IN_SEGMENT, "segment_embedding", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_need(b, node, IN_GAMMA, "gamma", OPI_T_FLOAT, 1, 1, err));
  OPI_TRY(opi_need(b, node, IN_BETA, "beta", OPI_T_FLOAT, 1, 1, err));
  OPI_TRY(opi_may(b, node, IN_MASK, "mask", OPI_T_WIDE, 2, 2, err));
  OPI_TRY(opi_may(b, node, IN_POSITIONS, "position_ids", OPI_T_WIDE, 2, 2, err));
  const opi_value *ids = opi_input(b, node, IN_IDS);
  const int64_t hidden = opi_input(b, node, IN_WORD)->shape[1];
  OPI_TRY(opi_need_shape(b, node, IN_SEGMENTS, ids->shape, 2, err));
  OPI_TRY(opi_need_shape(b, node, IN_MASK, ids->shape, 2, err));
  OPI_TRY(opi_need_dim(b, node, IN_POSITION, 1, hidden, "the hidden size", err));
  OPI_TRY(opi_need_dim(b, node, IN_SEGMENT, 1, hidden, "the hidden size", err));
  OPI_TRY(opi_need_dim(b, node, IN_GAMMA, 0, hidden, "the hidden size", err));
  OPI_TRY(opi_need_dim(b, node, IN_BETA, 0, hidden, "the hidden size", err));
  if ((opi_node_in(node, IN_SEGMENTS) == OPIPE_NONE) !=
      (opi_node_in(node, IN_SEGMENT) == OPIPE_NONE)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "segment_ids and segment_embedding go together, one of them is absent");
  }
  if (opi_node_in(node, IN_POSITIONS) == OPIPE_NONE &&
      ids->shape[1] > opi_input(b, node, IN_POSITION)->shape[0]) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' has %lld tokens, position_embedding '%s' has %lld rows",
                         ids->name, (long long)ids->shape[1], opi_input(b, node, IN_POSITION)->name,
                         (long long)opi_input(b, node, IN_POSITION)->shape[0]);
  }
  return OPIPE_OK;
}

/* int32 [B]: how many ones each row of the mask has; zeros without a mask. */
static opipe_status mask_index(opi_builder *b, const opi_node *node, uint32_t *out,
                               opipe_error *err) {
  const opi_value ids = *opi_input(b, node, IN_IDS);
  const int64_t last = 1;
  uint32_t x, one;
  if (opi_node_in(node, IN_MASK) == OPIPE_NONE || opi_attr_int(node, "mask_index_type", 1) == 0) {
    OPI_TRY(opi_k_const(x = opi_b_const_scalar(b, OPIPE_INT32, 0), err));
    return opi_k_expand(b, x, ids.shape, 1, out, err);
  }
  OPI_TRY(opi_k_const(one = opi_b_const_scalar(b, opi_input(b, node, IN_MASK)->dtype, 1), err));
  OPI_TRY(opi_b_op2(b, "Equal", node->in[IN_MASK], one, &x, err));
  OPI_TRY(opi_k_cast(b, x, OPIPE_INT32, &x, err));
  return opi_k_reduce(b, "ReduceSum", 0, x, &last, 1, false, out, err);
}

/* Outputs: y [B, S, H], mask_index? [B], sum of the embeddings?. */
opipe_status opi_ms_embed_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t x, row, y;
  OPI_TRY(embed_check(b, node, err));
  OPI_TRY(gather_rows(b, node->in[IN_WORD], node->in[IN_IDS], &x, err));
  if (opi_node_in(node, IN_POSITIONS) != OPIPE_NONE) {
    OPI_TRY(gather_rows(b, node->in[IN_POSITION], node->in[IN_POSITIONS], &row, err));
  } else {
    OPI_TRY(opi_k_slice(b, node->in[IN_POSITION], 0, 0, opi_input(b, node, IN_IDS)->shape[1], &row,
                        err));
  }
  OPI_TRY(opi_b_op2(b, "Add", x, row, &x, err));
  if (opi_node_in(node, IN_SEGMENT) != OPIPE_NONE) {
    OPI_TRY(gather_rows(b, node->in[IN_SEGMENT], node->in[IN_SEGMENTS], &row, err));
    OPI_TRY(opi_b_op2(b, "Add", x, row, &x, err));
  }
  OPI_TRY(emit_norm(b, node, "LayerNormalization", x, node->in[IN_GAMMA], node->in[IN_BETA], 1, &y,
                    err));
  OPI_TRY(opi_b_result(b, node, 0, y, err));
  if (opi_wants(node, 1)) {
    OPI_TRY(mask_index(b, node, &y, err));
    OPI_TRY(opi_b_result(b, node, 1, y, err));
  }
  return opi_wants(node, 2) ? opi_b_result(b, node, 2, x, err) : OPIPE_OK;
}
