/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of Attention and RotaryEmbedding; shapes and work of opipe.AttentionGrad.
 *
 * AttentionGrad makes the scores again. Gradients that arrive at present_key and present_value are
 * cut into those of the past and of K and V and added with standard operators; so is what arrives
 * at the scores (qk_matmul_output), which few models read: it goes through plain products.
 */
#include "loader/ops/attention.h"

#include <string.h>

#include "loader/ops/rules.h"

/* The forward node inside an AttentionGrad: its inputs follow dY. */
static opi_node forward_of(const opi_node *node) {
  opi_node forward = *node;
  forward.in = node->in + 1;
  forward.n_in = (node->n_in < OPI_ATT_GRAD_Y ? node->n_in : OPI_ATT_GRAD_Y) - 1;
  return forward;
}

opipe_status opi_attention_grad_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  static const uint32_t of[6] = {OPI_ATT_Q,    OPI_ATT_K,      OPI_ATT_V,
                                 OPI_ATT_MASK, OPI_ATT_PAST_K, OPI_ATT_PAST_V};
  int64_t shape[4];
  uint32_t rank;
  OPI_TRY(opi_need(b, node, 0, "dY", OPI_T_FLOAT, 3, 4, err));
  const opi_node forward = forward_of(node);
  OPI_TRY(opi_attention_shape(b, &forward, shape, &rank, err));
  OPI_TRY(opi_need_shape(b, node, 0, shape, rank, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
  if (node->n_in > OPI_ATT_GRAD_Y) {
    const int64_t rows[3] = {shape[0], opi_attr_int(node, "q_num_heads", 1),
                             opi_input(b, &forward, OPI_ATT_Q)->shape[rank - 2]};
    OPI_TRY(opi_need_same_type(b, node, 0, OPI_ATT_GRAD_Y, err));
    OPI_TRY(opi_need_shape(b, node, OPI_ATT_GRAD_Y, shape, rank, err));
    OPI_TRY(
        opi_need(b, node, OPI_ATT_GRAD_FOUND, "the intermediate results", OPI_T_FLOAT, 3, 3, err));
    OPI_TRY(opi_need_shape(b, node, OPI_ATT_GRAD_FOUND, rows, 3, err));
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (!opi_wants(node, o))
      continue;
    const opi_value *x = opi_input(b, &forward, of[o]);
    if (x == NULL || !opi_dtype_is_float(x->dtype)) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "output %u is the gradient of an input that has none", o);
    }
    const opi_value like = *x;
    OPI_TRY(opi_b_set(b, node, o, like.dtype, like.shape, (uint32_t)like.rank, err));
  }
  return OPIPE_OK;
}

/* Five products of the forward's two sizes: scores, dP, dQ, dK, dV. */
void opi_attention_grad_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const opi_value *q = &graph->values[node->in[1]], *k = &graph->values[node->in[2]];
  const uint32_t past = opi_node_in(node, 1 + OPI_ATT_PAST_K);
  const bool flat = q->rank == 3;
  const double rows = (double)q->shape[0] * (double)opi_attr_int(node, "q_num_heads", 1) *
                      (double)q->shape[flat ? 1 : 2];
  double keys = (double)k->shape[flat ? 1 : 2];
  if (past != OPIPE_NONE)
    keys += (double)graph->values[past].shape[2];
  out_work->flops = 2.0 * keys * (3.0 * opi_k_elems(q) + 2.0 * opi_k_elems_of(graph, node->in[0])) +
                    10.0 * rows * keys;
  out_work->bytes = opi_work_bytes(graph, node);
}

/* -- Attention --------------------------------------------------------------------------------- */

/* Adds b (or nothing) to *io_a (or nothing). */
static opipe_status add_to(opi_grad *g, uint32_t *io_a, uint32_t b, opipe_error *err) {
  if (b == OPIPE_NONE)
    return OPIPE_OK;
  if (*io_a == OPIPE_NONE) {
    *io_a = b;
    return OPIPE_OK;
  }
  return opi_b_op2(g->builder, "Add", *io_a, b, io_a, err);
}

/* A gradient of present_key or present_value [B, H, T, D] as one of K or V, rank 3 or 4. */
static opipe_status new_part(opi_grad *g, uint32_t present, int64_t past, const opi_value *like,
                             uint32_t *out, opipe_error *err) {
  static const int64_t swap[4] = {0, 2, 1, 3};
  const int64_t total = opi_b_value(g->builder, present)->shape[2];
  OPI_TRY(opi_k_slice(g->builder, present, 2, past, total, out, err));
  if (like->rank == 4)
    return OPIPE_OK;
  OPI_TRY(opi_k_transpose(g->builder, *out, swap, 4, out, err));
  return opi_k_reshape(g->builder, *out, like->shape, 3, out, err);
}

/* `present`, a gradient of all keys or values, goes to input `i` and, the first rows, to `past_i`.
 */
static opipe_status add_present(opi_grad *g, const opi_node *node, uint32_t present, uint32_t i,
                                uint32_t past_i, uint32_t *io_d, uint32_t *io_past,
                                opipe_error *err) {
  const uint32_t past_v = opi_node_in(node, past_i);
  uint32_t part;
  if (present == OPIPE_NONE)
    return OPIPE_OK;
  const int64_t past = past_v != OPIPE_NONE ? opi_b_value(g->builder, past_v)->shape[2] : 0;
  const opi_value like = *opi_b_value(g->builder, node->in[i]);
  if (opi_grad_wants(g, node, i)) {
    OPI_TRY(new_part(g, present, past, &like, &part, err));
    OPI_TRY(add_to(g, io_d, part, err));
  }
  if (past_v == OPIPE_NONE || !opi_grad_wants(g, node, past_i))
    return OPIPE_OK;
  OPI_TRY(opi_k_slice(g->builder, present, 2, 0, past, &part, err));
  return add_to(g, io_past, part, err);
}

/* d [6]: gradients of the first six inputs through Y, OPIPE_NONE where none is wanted. */
static opipe_status through_y(opi_grad *g, const opi_node *node, uint32_t *d, opipe_error *err) {
  uint32_t in[OPI_ATT_GRAD_INPUTS] = {opi_grad_of(g, node, OPI_ATT_Y)}, want = 0, made[6];
  const bool hands_on = opi_wants(node, OPI_ATT_FOUND);
  opi_attrs attrs = {.n = 0};
  for (uint32_t i = 0; i < OPI_ATT_SEQLEN; ++i)
    want |= opi_grad_wants(g, node, i) ? 1u << i : 0u;
  if (in[0] == OPIPE_NONE || want == 0)
    return OPIPE_OK;
  for (uint32_t i = 0; i < OPI_ATT_INPUTS; ++i)
    in[1 + i] = opi_node_in(node, i);
  in[OPI_ATT_GRAD_Y] = hands_on ? node->out[OPI_ATT_Y] : OPIPE_NONE;
  in[OPI_ATT_GRAD_FOUND] = hands_on ? node->out[OPI_ATT_FOUND] : OPIPE_NONE;
  for (uint32_t i = 0; i < node->n_attrs && i < OPI_COUNT(attrs.list); ++i)
    attrs.list[attrs.n++] = node->attrs[i];
  OPI_TRY(opi_k_node(g->builder, "AttentionGrad", "opipe", 1, in,
                     hands_on ? OPI_ATT_GRAD_INPUTS : OPI_ATT_GRAD_Y, want, &attrs, made, err));
  for (uint32_t i = 0; i < OPI_ATT_SEQLEN; ++i)
    d[i] = (want >> i & 1u) != 0 ? made[i] : OPIPE_NONE;
  return OPIPE_OK;
}

/* -- through the scores ------------------------------------------------------------------------ */

typedef struct scores {
  opi_attention how;
  uint32_t q, k;       /* [B, Hq, S, D], [B, Hq, T, D]: keys repeated for the query heads */
  uint32_t dtype, own; /* that is computed in; of Q */
  int64_t batch, total, head;
} scores;

/* [B, S, H * D] or [B, H, S, D] as the latter, in the type that is computed in. */
static opipe_status heads_first(opi_grad *g, const scores *s, uint32_t x, int64_t heads,
                                uint32_t *out, opipe_error *err) {
  static const int64_t swap[4] = {0, 2, 1, 3};
  const opi_value v = *opi_b_value(g->builder, x);
  OPI_TRY(opi_k_cast(g->builder, x, s->dtype, out, err));
  if (v.rank == 4)
    return OPIPE_OK;
  const int64_t shape[4] = {v.shape[0], v.shape[1], heads, v.shape[2] / heads};
  OPI_TRY(opi_k_reshape(g->builder, *out, shape, 4, out, err));
  return opi_k_transpose(g->builder, *out, swap, 4, out, err);
}

static opipe_status open_scores(opi_grad *g, const opi_node *node, scores *s, opipe_error *err) {
  opi_builder *b = g->builder;
  const uint32_t past = opi_node_in(node, OPI_ATT_PAST_K);
  s->how = opi_attention_of(node);
  s->own = opi_b_value(b, node->in[OPI_ATT_Q])->dtype;
  s->dtype = s->own == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
  OPI_TRY(heads_first(g, s, node->in[OPI_ATT_Q], s->how.q_heads, &s->q, err));
  OPI_TRY(heads_first(g, s, node->in[OPI_ATT_K], s->how.kv_heads, &s->k, err));
  if (past != OPIPE_NONE) {
    uint32_t both[2] = {past, s->k};
    OPI_TRY(opi_k_cast(b, past, s->dtype, &both[0], err));
    OPI_TRY(opi_k_concat(b, both, 2, 2, &s->k, err));
  }
  const int64_t *shape = opi_b_value(b, s->k)->shape;
  s->batch = shape[0];
  s->total = shape[2];
  s->head = shape[3];
  const int64_t kv = s->how.kv_heads, group = s->how.q_heads / kv;
  const int64_t narrow[5] = {s->batch, kv, 1, s->total, s->head};
  const int64_t wide[5] = {s->batch, kv, group, s->total, s->head};
  const int64_t flat[4] = {s->batch, s->how.q_heads, s->total, s->head};
  OPI_TRY(opi_k_reshape(b, s->k, narrow, 5, &s->k, err));
  OPI_TRY(opi_k_expand(b, s->k, wide, 5, &s->k, err));
  return opi_k_reshape(b, s->k, flat, 4, &s->k, err);
}

/* scale * op(a) op(c). */
static opipe_status scaled(opi_grad *g, const scores *s, uint32_t a, bool trans_a, uint32_t c,
                           bool trans_c, uint32_t *out, opipe_error *err) {
  const uint32_t in[2] = {a, c};
  opi_attrs attrs = {.n = 0};
  opi_attrs_float(&attrs, "alpha", s->how.scale);
  opi_attrs_int(&attrs, "transA", trans_a ? 1 : 0);
  opi_attrs_int(&attrs, "transB", trans_c ? 1 : 0);
  return opi_k_node(g->builder, "FusedMatMul", "com.microsoft", 1, in, 2, 1, &attrs, out, err);
}

/* Back through softmax (mode 3) and the mask (2 and 3): of the scores after softcap. */
static opipe_status before_mask(opi_grad *g, const opi_node *node, const scores *s, uint32_t *io_ds,
                                uint32_t *out_mask, opipe_error *err) {
  opi_builder *b = g->builder;
  const uint32_t mask = opi_node_in(node, OPI_ATT_MASK);
  uint32_t in[2] = {*io_ds, OPIPE_NONE}, zero;
  opi_attrs attrs = {.n = 0};
  if (s->how.qk_mode < 2)
    return OPIPE_OK;
  OPI_TRY(opi_k_cast(b, node->out[OPI_ATT_QK], s->dtype, &in[1], err));
  if (s->how.qk_mode == 3) {
    opi_attrs_int(&attrs, "axis", 3);
    OPI_TRY(opi_grad_own(g, "SoftmaxGrad", in, 2, &attrs, io_ds, err));
  } else { /* -inf is a constant */
    opi_attrs_int(&attrs, "detect_negative", 1);
    opi_attrs_int(&attrs, "detect_positive", 1);
    OPI_TRY(opi_k_one(b, "IsInf", 0, &in[1], 1, &attrs, &in[1], err));
    OPI_TRY(opi_grad_const(g, *io_ds, 0, &zero, err));
    OPI_TRY(opi_k_where(b, in[1], zero, *io_ds, io_ds, err));
  }
  if (mask == OPIPE_NONE || !opi_grad_wants(g, node, OPI_ATT_MASK))
    return OPIPE_OK;
  const opi_value m = *opi_b_value(b, mask);
  const int64_t keys = m.shape[m.rank - 1];
  OPI_TRY(opi_k_slice(b, *io_ds, 3, 0, keys == 1 ? s->total : keys, out_mask, err));
  OPI_TRY(opi_k_cast(b, *out_mask, m.dtype, out_mask, err));
  return opi_grad_reduce(g, node, OPI_ATT_MASK, *out_mask, out_mask, err);
}

/* Softcap's slope, 1 - tanh^2. */
static opipe_status before_softcap(opi_grad *g, const scores *s, uint32_t *io_ds,
                                   opipe_error *err) {
  opi_builder *b = g->builder;
  uint32_t t, c;
  if (s->how.qk_mode == 0 || s->how.softcap == 0)
    return OPIPE_OK;
  OPI_TRY(scaled(g, s, s->q, false, s->k, true, &t, err));
  OPI_TRY(opi_grad_const(g, t, s->how.softcap, &c, err));
  OPI_TRY(opi_b_op2(b, "Div", t, c, &t, err));
  OPI_TRY(opi_b_op1(b, "Tanh", t, &t, err));
  OPI_TRY(opi_b_op2(b, "Mul", t, t, &t, err));
  OPI_TRY(opi_grad_const(g, t, 1, &c, err));
  OPI_TRY(opi_b_op2(b, "Sub", c, t, &t, err));
  return opi_b_op2(b, "Mul", *io_ds, t, io_ds, err);
}

/* dQ = scale dS K. */
static opipe_status scores_to_q(opi_grad *g, const opi_node *node, const scores *s, uint32_t ds,
                                uint32_t *io_d, opipe_error *err) {
  const opi_value like = *opi_b_value(g->builder, node->in[OPI_ATT_Q]);
  uint32_t dq;
  if (!opi_grad_wants(g, node, OPI_ATT_Q))
    return OPIPE_OK;
  OPI_TRY(scaled(g, s, ds, false, s->k, false, &dq, err));
  OPI_TRY(opi_k_cast(g->builder, dq, s->own, &dq, err));
  OPI_TRY(new_part(g, dq, 0, &like, &dq, err));
  return add_to(g, io_d, dq, err);
}

/* dK = scale dS^T Q, summed over the query heads that read a key head. */
static opipe_status scores_to_k(opi_grad *g, const opi_node *node, const scores *s, uint32_t ds,
                                uint32_t *d, opipe_error *err) {
  const int64_t kv = s->how.kv_heads, axis = 2;
  const int64_t wide[5] = {s->batch, kv, s->how.q_heads / kv, s->total, s->head};
  uint32_t dk;
  OPI_TRY(scaled(g, s, ds, true, s->q, false, &dk, err));
  OPI_TRY(opi_k_reshape(g->builder, dk, wide, 5, &dk, err));
  OPI_TRY(opi_k_reduce(g->builder, "ReduceSum", 0, dk, &axis, 1, false, &dk, err));
  OPI_TRY(opi_k_cast(g->builder, dk, s->own, &dk, err));
  return add_present(g, node, dk, OPI_ATT_K, OPI_ATT_PAST_K, &d[OPI_ATT_K], &d[OPI_ATT_PAST_K],
                     err);
}

static opipe_status through_scores(opi_grad *g, const opi_node *node, uint32_t *d,
                                   opipe_error *err) {
  uint32_t ds = opi_grad_of(g, node, OPI_ATT_QK), dmask = OPIPE_NONE;
  scores s;
  if (ds == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(open_scores(g, node, &s, err));
  OPI_TRY(opi_k_cast(g->builder, ds, s.dtype, &ds, err));
  OPI_TRY(before_mask(g, node, &s, &ds, &dmask, err));
  OPI_TRY(add_to(g, &d[OPI_ATT_MASK], dmask, err));
  OPI_TRY(before_softcap(g, &s, &ds, err));
  OPI_TRY(scores_to_q(g, node, &s, ds, &d[OPI_ATT_Q], err));
  return scores_to_k(g, node, &s, ds, d, err);
}

opipe_status opi_gradient_attention(opi_grad *g, const opi_node *node, opipe_error *err) {
  uint32_t d[6] = {OPIPE_NONE, OPIPE_NONE, OPIPE_NONE, OPIPE_NONE, OPIPE_NONE, OPIPE_NONE};
  OPI_TRY(through_y(g, node, d, err));
  OPI_TRY(add_present(g, node, opi_grad_of(g, node, OPI_ATT_PRESENT_K), OPI_ATT_K, OPI_ATT_PAST_K,
                      &d[OPI_ATT_K], &d[OPI_ATT_PAST_K], err));
  OPI_TRY(add_present(g, node, opi_grad_of(g, node, OPI_ATT_PRESENT_V), OPI_ATT_V, OPI_ATT_PAST_V,
                      &d[OPI_ATT_V], &d[OPI_ATT_PAST_V], err));
  OPI_TRY(through_scores(g, node, d, err));
  for (uint32_t i = 0; i < OPI_ATT_SEQLEN; ++i) {
    if (d[i] != OPIPE_NONE)
      OPI_TRY(opi_grad_give(g, node, i, d[i], err));
  }
  return OPIPE_OK;
}

/* -- RotaryEmbedding --------------------------------------------------------------------------- */

/* X or dY as [B, S, H, D] or [B, H, S, D]; the axis of the heads. */
static opipe_status four_axes(opi_grad *g, const opi_node *node, uint32_t x, uint32_t *out,
                              int64_t *out_heads_axis, opipe_error *err) {
  const opi_value v = *opi_b_value(g->builder, x);
  const int64_t heads = opi_attr_int(node, "num_heads", 1);
  *out_heads_axis = v.rank == 4 ? 1 : 2;
  if (v.rank == 4) {
    *out = x;
    return OPIPE_OK;
  }
  const int64_t shape[4] = {v.shape[0], v.shape[1], heads, v.shape[2] / heads};
  return opi_k_reshape(g->builder, x, shape, 4, out, err);
}

/* The first or the second members of the pairs that are turned, [.., dim / 2]. */
static opipe_status members(opi_grad *g, const opi_node *node, uint32_t x, uint32_t which,
                            uint32_t *out, opipe_error *err) {
  const opi_value v = *opi_b_value(g->builder, x);
  const int64_t half = opi_attr_int(node, "rotary_embedding_dim", v.shape[3]) / 2;
  if (opi_attr_int(node, "interleaved", 0) == 0)
    return opi_k_slice(g->builder, x, 3, which * half, (which + 1) * half, out, err);
  const int64_t pairs[5] = {v.shape[0], v.shape[1], v.shape[2], half, 2};
  const int64_t flat[4] = {v.shape[0], v.shape[1], v.shape[2], half};
  OPI_TRY(opi_k_slice(g->builder, x, 3, 0, 2 * half, out, err));
  OPI_TRY(opi_k_reshape(g->builder, *out, pairs, 5, out, err));
  OPI_TRY(opi_k_slice(g->builder, *out, 4, which, which + 1, out, err));
  return opi_k_reshape(g->builder, *out, flat, 4, out, err);
}

/* dcos = dY1 x1 + dY2 x2, dsin = dY2 x1 - dY1 x2, summed over the heads and whatever shares a row
 * of the cache. */
static opipe_status give_cache(opi_grad *g, const opi_node *node, uint32_t i, const uint32_t *dy,
                               const uint32_t *x, int64_t heads_axis, opipe_error *err) {
  const opi_value like = *opi_b_value(g->builder, node->in[i]);
  uint32_t a, c, d;
  OPI_TRY(opi_b_op2(g->builder, "Mul", i == 1 ? dy[0] : dy[1], x[0], &a, err));
  OPI_TRY(opi_b_op2(g->builder, "Mul", i == 1 ? dy[1] : dy[0], x[1], &c, err));
  OPI_TRY(opi_b_op2(g->builder, i == 1 ? "Add" : "Sub", a, c, &d, err));
  OPI_TRY(opi_k_cast(g->builder, d, like.dtype, &d, err));
  OPI_TRY(opi_k_reduce(g->builder, "ReduceSum", 0, d, &heads_axis, 1, false, &d, err));
  if (opi_node_in(node, 3) == OPIPE_NONE)
    return opi_grad_give_reduced(g, node, i, d, err);
  const uint32_t in[2] = {d, node->in[3]};
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", 0);
  opi_attrs_ints(&attrs, "shape", like.shape, (uint32_t)like.rank);
  OPI_TRY(opi_grad_own(g, "GatherGrad", in, 2, &attrs, &d, err));
  return opi_grad_give(g, node, i, d, err);
}

/* dX: turned back, by the negative sine. */
opipe_status opi_gradient_rotary(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  uint32_t in[4] = {dy, node->in[1], node->in[2], opi_node_in(node, 3)}, dx, wide[2];
  uint32_t dy_part[2], x_part[2];
  int64_t heads_axis;
  if (opi_grad_wants(g, node, 0)) {
    opi_attrs attrs = {.n = 0};
    for (uint32_t i = 0; i < node->n_attrs && i < OPI_COUNT(attrs.list); ++i)
      attrs.list[attrs.n++] = node->attrs[i];
    OPI_TRY(opi_b_op1(g->builder, "Neg", in[2], &in[2], err));
    OPI_TRY(opi_k_one(g->builder, "RotaryEmbedding", 23, in, in[3] == OPIPE_NONE ? 3 : 4, &attrs,
                      &dx, err));
    OPI_TRY(opi_grad_give(g, node, 0, dx, err));
  }
  if (!opi_grad_wants(g, node, 1) && !opi_grad_wants(g, node, 2))
    return OPIPE_OK;
  OPI_TRY(four_axes(g, node, dy, &wide[0], &heads_axis, err));
  OPI_TRY(four_axes(g, node, node->in[0], &wide[1], &heads_axis, err));
  for (uint32_t k = 0; k < 2; ++k) {
    OPI_TRY(members(g, node, wide[0], k, &dy_part[k], err));
    OPI_TRY(members(g, node, wide[1], k, &x_part[k], err));
  }
  for (uint32_t i = 1; i < 3; ++i) {
    if (opi_grad_wants(g, node, i))
      OPI_TRY(give_cache(g, node, i, dy_part, x_part, heads_axis, err));
  }
  return OPIPE_OK;
}
