/* SPDX-License-Identifier: Apache-2.0 */
/* Attention (opset 23 to 25) and RotaryEmbedding (23).
 *
 * Canonical: the form of opset 24 with every attribute written out (also the head counts of 4-D
 * inputs; left_window_size only where it bounds what is seen). Semantics are those of release 1.23,
 * which corrected them in place: softcap before the mask; causal by position counted from the start
 * of the past. Windows, and causality beside nonpad_kv_seqlen, become a mask (attention_mask.c),
 * except causality over lengths, with or without a window, where devices attend to lengths
 * (builder.h: appends). The batch and the heads may be split; the token axis is not carried (a
 * later key may matter to an earlier row's stage).
 */
#include "loader/ops/attention.h"

#include <math.h>

typedef struct extents {
  int64_t batch, q_heads, kv_heads, q_len, kv_len, head, v_head, past, total;
  bool flat; /* inputs of rank 3 */
} extents;

opipe_status opi_attention_emit(opi_builder *b, const opi_attention *how, const uint32_t *in,
                                uint32_t want, uint32_t pattern, uint32_t *out, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  const char *names[OPI_ATT_OUTPUTS] = {NULL};
  uint32_t n_out = 1;
  opi_attrs_int(&attrs, "q_num_heads", how->q_heads);
  opi_attrs_int(&attrs, "kv_num_heads", how->kv_heads);
  opi_attrs_float(&attrs, "scale", how->scale);
  opi_attrs_int(&attrs, "is_causal", how->causal ? 1 : 0);
  opi_attrs_float(&attrs, "softcap", how->softcap);
  opi_attrs_int(&attrs, "qk_matmul_output_mode", how->qk_mode);
  opi_attrs_int(&attrs, "softmax_precision", how->precision);
  if (how->window > 0)
    opi_attrs_int(&attrs, "left_window_size", how->window - 1);
  for (uint32_t o = 0; o < OPI_ATT_OUTPUTS; ++o) {
    if ((want >> o & 1u) != 0)
      n_out = o + 1;
    names[o] = (want >> o & 1u) != 0 ? NULL : "";
  }
  const opi_emit emit = {.op = "Attention",
                         .in = in,
                         .n_in = OPI_ATT_INPUTS,
                         .n_out = n_out,
                         .attrs = attrs.list,
                         .n_attrs = attrs.n,
                         .version = 24,
                         .out_names = names,
                         .pattern = pattern};
  return opi_b_emit(b, &emit, out, err);
}

opi_attention opi_attention_of(const opi_node *node) {
  return (opi_attention){.q_heads = opi_attr_int(node, "q_num_heads", 1),
                         .kv_heads = opi_attr_int(node, "kv_num_heads", 1),
                         .scale = opi_attr_float(node, "scale", 1.0),
                         .softcap = opi_attr_float(node, "softcap", 0.0),
                         .causal = opi_attr_int(node, "is_causal", 0) != 0,
                         .window = opi_attr_int(node, "left_window_size", -1) + 1,
                         .qk_mode = opi_attr_int(node, "qk_matmul_output_mode", 0),
                         .precision = opi_attr_int(node, "softmax_precision", OPIPE_FLOAT)};
}

/* -- shapes ------------------------------------------------------------------------------------ */

static opipe_status split_heads(const opi_builder *b, const opi_node *node, uint32_t i,
                                int64_t heads, int64_t *out_size, opipe_error *err) {
  const opi_value *x = opi_input(b, node, i);
  if (heads < 1 || x->shape[2] % heads != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' has hidden size %lld, no multiple of %lld heads", x->name,
                         (long long)x->shape[2], (long long)heads);
  }
  *out_size = x->shape[2] / heads;
  return OPIPE_OK;
}

static opipe_status flat_extents(const opi_builder *b, const opi_node *node, extents *e,
                                 opipe_error *err) {
  int64_t head_k = 0;
  OPI_TRY(opi_need_int(b, node, "q_num_heads", 1, INT32_MAX, &e->q_heads, err));
  OPI_TRY(opi_need_int(b, node, "kv_num_heads", 1, INT32_MAX, &e->kv_heads, err));
  OPI_TRY(split_heads(b, node, OPI_ATT_Q, e->q_heads, &e->head, err));
  OPI_TRY(split_heads(b, node, OPI_ATT_K, e->kv_heads, &head_k, err));
  OPI_TRY(split_heads(b, node, OPI_ATT_V, e->kv_heads, &e->v_head, err));
  e->q_len = opi_input(b, node, OPI_ATT_Q)->shape[1];
  e->kv_len = opi_input(b, node, OPI_ATT_K)->shape[1];
  if (head_k != e->head) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (K) has head size %lld, '%s' (Q) has %lld",
                         opi_input(b, node, OPI_ATT_K)->name, (long long)head_k,
                         opi_input(b, node, OPI_ATT_Q)->name, (long long)e->head);
  }
  return opi_need_dim(b, node, OPI_ATT_V, 1, e->kv_len, "the length of K", err);
}

static opipe_status wide_extents(const opi_builder *b, const opi_node *node, extents *e,
                                 opipe_error *err) {
  const opi_value *q = opi_input(b, node, OPI_ATT_Q);
  const opi_value *k = opi_input(b, node, OPI_ATT_K);
  e->q_heads = q->shape[1];
  e->q_len = q->shape[2];
  e->head = q->shape[3];
  e->kv_heads = k->shape[1];
  e->kv_len = k->shape[2];
  e->v_head = opi_input(b, node, OPI_ATT_V)->shape[3];
  OPI_TRY(opi_need_dim(b, node, OPI_ATT_K, 3, e->head, "the head size of Q", err));
  OPI_TRY(opi_need_dim(b, node, OPI_ATT_V, 1, e->kv_heads, "the heads of K", err));
  return opi_need_dim(b, node, OPI_ATT_V, 2, e->kv_len, "the length of K", err);
}

static opipe_status check_past(const opi_builder *b, const opi_node *node, extents *e,
                               opipe_error *err) {
  const opi_value *k = opi_input(b, node, OPI_ATT_PAST_K);
  const opi_value *v = opi_input(b, node, OPI_ATT_PAST_V);
  if ((k == NULL) != (v == NULL)) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "input '%s' is given without its partner: past_key and past_value go together",
        (k != NULL ? k : v)->name);
  }
  e->total = e->kv_len;
  if (k == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_need(b, node, OPI_ATT_PAST_K, "past_key", OPI_T_FLOAT, 4, 4, err));
  OPI_TRY(opi_need(b, node, OPI_ATT_PAST_V, "past_value", OPI_T_FLOAT, 4, 4, err));
  OPI_TRY(opi_need_same_type(b, node, OPI_ATT_Q, OPI_ATT_PAST_K, err));
  OPI_TRY(opi_need_same_type(b, node, OPI_ATT_Q, OPI_ATT_PAST_V, err));
  e->past = k->shape[2];
  const int64_t key[4] = {e->batch, e->kv_heads, e->past, e->head};
  const int64_t value[4] = {e->batch, e->kv_heads, e->past, e->v_head};
  OPI_TRY(opi_need_shape(b, node, OPI_ATT_PAST_K, key, 4, err));
  OPI_TRY(opi_need_shape(b, node, OPI_ATT_PAST_V, value, 4, err));
  if (__builtin_add_overflow(e->past, e->kv_len, &e->total)) {
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "past %lld and new %lld keys overflow",
                         (long long)e->past, (long long)e->kv_len);
  }
  if (opi_node_in(node, OPI_ATT_SEQLEN) != OPIPE_NONE) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (nonpad_kv_seqlen) cannot be combined with past_key '%s'",
                         opi_input(b, node, OPI_ATT_SEQLEN)->name, k->name);
  }
  return OPIPE_OK;
}

static opipe_status check_mask(const opi_builder *b, const opi_node *node, const extents *e,
                               opipe_error *err) {
  const int64_t full[4] = {e->batch, e->q_heads, e->q_len, e->total};
  const opi_value *m = opi_input(b, node, OPI_ATT_MASK);
  char has[128], want[128];
  if (m == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_need(b, node, OPI_ATT_MASK, "attn_mask", OPI_T_FLOAT | OPI_T_BOOL, 1, 4, err));
  const uint32_t type = opi_input(b, node, OPI_ATT_Q)->dtype;
  const bool wide = m->dtype == OPIPE_FLOAT && (type == OPIPE_FLOAT16 || type == OPIPE_BFLOAT16);
  if (m->dtype != OPIPE_BOOL && !wide) /* numbers in fp32 keep their range beside half types */
    OPI_TRY(opi_need_same_type(b, node, OPI_ATT_Q, OPI_ATT_MASK, err));
  for (int32_t back = 1; back <= m->rank; ++back) {
    const int64_t n = m->shape[m->rank - back];
    if (n == 1 || n == full[4 - back] || (back == 1 && n <= e->total))
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (attn_mask) has shape %s, which does not broadcast to %s",
                         m->name, opi_shape_text(has, sizeof(has), m->shape, (uint32_t)m->rank),
                         opi_shape_text(want, sizeof(want), full, 4));
  }
  return OPIPE_OK;
}

static opipe_status find_extents(const opi_builder *b, const opi_node *node, extents *e,
                                 opipe_error *err) {
  static const char *const roles[3] = {"Q", "K", "V"};
  *e = (extents){0};
  for (uint32_t i = 0; i < 3; ++i) {
    OPI_TRY(opi_need(b, node, i, roles[i], OPI_T_FLOAT, 3, 4, err));
    OPI_TRY(opi_need_same_type(b, node, 0, i, err));
  }
  const opi_value *q = opi_input(b, node, OPI_ATT_Q);
  e->flat = q->rank == 3;
  e->batch = q->shape[0];
  for (uint32_t i = 1; i < 3; ++i) {
    OPI_TRY(opi_need(b, node, i, roles[i], OPI_T_FLOAT, q->rank, q->rank, err));
    OPI_TRY(opi_need_dim(b, node, i, 0, e->batch, "the batch of Q", err));
  }
  OPI_TRY(e->flat ? flat_extents(b, node, e, err) : wide_extents(b, node, e, err));
  if (e->kv_heads < 1 || e->q_heads % e->kv_heads != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (Q) has %lld heads, no multiple of the %lld heads of '%s' (K)",
                         q->name, (long long)e->q_heads, (long long)e->kv_heads,
                         opi_input(b, node, OPI_ATT_K)->name);
  }
  OPI_TRY(check_past(b, node, e, err));
  OPI_TRY(check_mask(b, node, e, err));
  OPI_TRY(opi_may(b, node, OPI_ATT_SEQLEN, "nonpad_kv_seqlen", OPI_T_WIDE, 1, 1, err));
  return opi_need_dim(b, node, OPI_ATT_SEQLEN, 0, e->batch, "the batch of Q", err);
}

opipe_status opi_attention_shape(const opi_builder *b, const opi_node *node, int64_t *shape,
                                 uint32_t *out_rank, opipe_error *err) {
  extents e;
  int64_t hidden;
  OPI_TRY(find_extents(b, node, &e, err));
  if (__builtin_mul_overflow(e.q_heads, e.v_head, &hidden)) {
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "%lld heads of size %lld overflow",
                         (long long)e.q_heads, (long long)e.v_head);
  }
  const int64_t y3[4] = {e.batch, e.q_len, hidden, 0};
  const int64_t y4[4] = {e.batch, e.q_heads, e.q_len, e.v_head};
  memcpy(shape, e.flat ? y3 : y4, sizeof(y3));
  *out_rank = e.flat ? 3 : 4;
  return OPIPE_OK;
}

static opipe_status attention_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  extents e;
  int64_t y[4];
  uint32_t rank;
  OPI_TRY(find_extents(b, node, &e, err));
  OPI_TRY(opi_attention_shape(b, node, y, &rank, err));
  const uint32_t dtype = opi_input(b, node, OPI_ATT_Q)->dtype;
  const int64_t key[4] = {e.batch, e.kv_heads, e.total, e.head},
                value[4] = {e.batch, e.kv_heads, e.total, e.v_head};
  const int64_t qk[4] = {e.batch, e.q_heads, e.q_len, e.total};
  OPI_TRY(opi_b_set(b, node, OPI_ATT_Y, dtype, y, rank, err));
  OPI_TRY(opi_b_set(b, node, OPI_ATT_PRESENT_K, dtype, key, 4, err));
  OPI_TRY(opi_b_set(b, node, OPI_ATT_PRESENT_V, dtype, value, 4, err));
  OPI_TRY(opi_b_set(b, node, OPI_ATT_QK, dtype, qk, 4, err));
  return opi_b_set(b, node, OPI_ATT_FOUND, OPIPE_FLOAT, qk, 3, err);
}

static opipe_status attention_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[OPI_ATT_INPUTS], out[OPI_ATT_OUTPUTS], want = 0;
  extents e;
  if (node->n_out > OPI_ATT_OUTPUTS) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "has %u outputs, the operator gives 1 to %d", node->n_out,
                         OPI_ATT_OUTPUTS);
  }
  OPI_TRY(find_extents(b, node, &e, err));
  const uint32_t dtype = opi_input(b, node, OPI_ATT_Q)->dtype;
  const int64_t precision = opi_attr_int(node, "softmax_precision", dtype);
  opi_attention how = {
      .q_heads = e.q_heads,
      .kv_heads = e.kv_heads,
      .scale = opi_attr_float(node, "scale", e.head > 0 ? 1.0 / sqrt((double)e.head) : 1.0),
      .softcap = opi_attr_float(node, "softcap", 0.0),
      .causal = opi_attr_int(node, "is_causal", 0) != 0,
      .qk_mode = opi_attr_int(node, "qk_matmul_output_mode", 0),
      .precision = precision == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT};
  if (how.qk_mode < 0 || how.qk_mode > 3) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute qk_matmul_output_mode is %lld, it must be 0 to 3",
                         (long long)how.qk_mode);
  }
  if (!opi_dtype_is_float((uint32_t)precision)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute softmax_precision is %lld, no floating-point type",
                         (long long)precision);
  }
  if (!(how.softcap >= 0)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute softcap is %g, it must not be negative", how.softcap);
  }
  for (uint32_t i = 0; i < OPI_ATT_INPUTS; ++i)
    in[i] = opi_node_in(node, i);
  const opi_value *mask = opi_input(b, node, OPI_ATT_MASK);
  if (mask != NULL && mask->rank == 1) {
    const int64_t row[2] = {1, mask->shape[0]};
    OPI_TRY(opi_k_reshape(b, in[OPI_ATT_MASK], row, 2, &in[OPI_ATT_MASK], err));
  }
  const opi_attention_window places = {e.batch,
                                       e.q_len,
                                       e.total,
                                       e.past,
                                       opi_attr_int(node, "left_window_size", -1),
                                       opi_attr_int(node, "right_window_size", -1)};
  if (b->appends && in[OPI_ATT_SEQLEN] != OPIPE_NONE && how.causal) {
    how.window = places.left + 1;
  } else {
    OPI_TRY(
        opi_attention_places(b, &places, &in[OPI_ATT_MASK], in[OPI_ATT_SEQLEN], &how.causal, err));
  }
  for (uint32_t o = 0; o < OPI_ATT_OUTPUTS; ++o)
    want |= opi_wants(node, o) ? 1u << o : 0u;
  OPI_TRY(opi_attention_emit(b, &how, in, want, OPI_PATTERN_NONE, out, err));
  for (uint32_t o = 0; o < OPI_ATT_OUTPUTS; ++o) {
    if ((want >> o & 1u) != 0)
      OPI_TRY(opi_b_result(b, node, o, out[o], err));
  }
  return OPIPE_OK;
}

static void attention_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const opi_value *q = &graph->values[node->in[OPI_ATT_Q]];
  const opi_value *k = &graph->values[node->in[OPI_ATT_K]];
  const uint32_t past = opi_node_in(node, OPI_ATT_PAST_K);
  const bool flat = q->rank == 3;
  const double heads = (double)opi_attr_int(node, "q_num_heads", 1);
  const double rows = (double)q->shape[0] * heads * (double)q->shape[flat ? 1 : 2];
  double keys = (double)k->shape[flat ? 1 : 2];
  if (past != OPIPE_NONE)
    keys += (double)graph->values[past].shape[2];
  const double q_size = opi_k_elems(q), y_size = opi_k_elems_of(graph, node->out[OPI_ATT_Y]);
  out_work->flops = 2.0 * keys * (q_size + y_size) + 5.0 * rows * keys;
  out_work->bytes = opi_work_bytes(graph, node);
}

/* -- how it carries axes ----------------------------------------------------------------------- */

/* Which of the special places an operand is carried at: 'b'atch, 'h'eads, 't'okens, 's'ize, '-'
 * none. */
static char place(const opi_value *v, const opi_carry *c, int64_t size) {
  if (c->axis < 0)
    return '-';
  if (c->axis == 0)
    return 'b';
  if (v->rank == 4)
    return c->axis == 1 ? 'h' : c->axis == 2 ? 't' : 's';
  if (c->axis == 1)
    return 't';
  return c->outer == 1 && size > 0 && c->inner % size == 0 ? 'h' : 's';
}

static opipe_status mask_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                               char at, opipe_error *err) {
  const uint32_t m = opi_node_in(node, OPI_ATT_MASK);
  if (m == OPIPE_NONE)
    return OPIPE_OK;
  const opi_value *v = &graph->values[m];
  const int32_t axis = v->rank - (at == 'b' ? 4 : 3);
  const bool has = axis >= 0 && v->shape[axis] != 1;
  if (in[OPI_ATT_MASK].axis < 0) {
    return has ? opi_carry_refuse(graph, node, OPI_ATT_MASK,
                                  "the mask has that axis and does not carry it", err)
               : OPIPE_OK;
  }
  if (in[OPI_ATT_MASK].axis != axis || in[OPI_ATT_MASK].outer != in[0].outer ||
      (at == 'b' && in[OPI_ATT_MASK].inner != in[0].inner)) {
    return opi_carry_refuse(graph, node, OPI_ATT_MASK,
                            "the mask carries it at another place than the queries", err);
  }
  return OPIPE_OK;
}

static opipe_status attention_carry(const opi_graph *graph, const opi_node *node,
                                    const opi_carry *in, opi_carry *out, opipe_error *err) {
  const opi_value *q = &graph->values[node->in[OPI_ATT_Q]];
  const bool flat = q->rank == 3;
  const int64_t heads = opi_attr_int(node, "q_num_heads", 1),
                kv_heads = opi_attr_int(node, "kv_num_heads", 1);
  const int64_t size = flat ? q->shape[2] / heads : q->shape[3];
  const int64_t v_size = flat ? graph->values[node->in[OPI_ATT_V]].shape[2] / kv_heads : 1;
  const char at = place(q, &in[OPI_ATT_Q], size);
  for (uint32_t o = 0; o < node->n_out; ++o)
    out[o] = (opi_carry){.axis = -1};
  if (at == 't')
    return opi_carry_refuse(graph, node, OPI_ATT_Q, "rows of later tokens read earlier keys", err);
  if (at == 's')
    return opi_carry_refuse(graph, node, OPI_ATT_Q, "the head size is summed over", err);
  for (uint32_t i = OPI_ATT_K; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE || i == OPI_ATT_MASK)
      continue;
    const int64_t own = i == OPI_ATT_V ? v_size : size;
    const char here = i == OPI_ATT_SEQLEN ? (in[i].axis == 0 ? 'b' : '-')
                                          : place(&graph->values[node->in[i]], &in[i], own);
    if (here == at || (i == OPI_ATT_SEQLEN && at == 'h' && here == '-'))
      continue;
    return opi_carry_refuse(graph, node, i, "queries, keys and values carry it at different places",
                            err);
  }
  if (at == '-')
    return OPIPE_OK;
  OPI_TRY(mask_carry(graph, node, in, at, err));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const bool four = o != OPI_ATT_Y || !flat;
    const bool kv = o == OPI_ATT_PRESENT_K || o == OPI_ATT_PRESENT_V;
    out[o] = in[OPI_ATT_Q];
    if (at == 'b')
      continue;
    out[o].axis = four ? 1 : 2;
    if (flat) {
      out[o].inner =
          four ? in[kv ? OPI_ATT_K : OPI_ATT_Q].inner / size : in[OPI_ATT_Q].inner / size * v_size;
    }
    if (!flat && kv)
      out[o] = in[OPI_ATT_K];
  }
  return OPIPE_OK;
}

/* -- RotaryEmbedding --------------------------------------------------------------------------- */

typedef struct turn {
  int64_t batch, heads, length, size, dim;
} turn;

static opipe_status turn_extents(const opi_builder *b, const opi_node *node, turn *t,
                                 opipe_error *err) {
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 3, 4, err));
  const opi_value *x = opi_input(b, node, 0);
  t->batch = x->shape[0];
  if (x->rank == 4) {
    t->heads = x->shape[1];
    t->length = x->shape[2];
    t->size = x->shape[3];
  } else {
    OPI_TRY(opi_need_int(b, node, "num_heads", 1, INT32_MAX, &t->heads, err));
    OPI_TRY(split_heads(b, node, 0, t->heads, &t->size, err));
    t->length = x->shape[1];
  }
  t->dim = opi_attr_int(node, "rotary_embedding_dim", 0);
  if (t->dim == 0)
    t->dim = t->size;
  if (t->dim < 2 || t->dim % 2 != 0 || t->dim > t->size) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "rotary_embedding_dim is %lld, input '%s' has head size %lld: an even "
                         "number up to it is needed",
                         (long long)t->dim, x->name, (long long)t->size);
  }
  return OPIPE_OK;
}

static opipe_status rotary_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  static const char *const roles[3] = {"X", "cos_cache", "sin_cache"};
  const bool indexed = opi_node_in(node, 3) != OPIPE_NONE;
  turn t;
  OPI_TRY(turn_extents(b, node, &t, err));
  const opi_value *x = opi_input(b, node, 0);
  for (uint32_t i = 1; i < 3; ++i) {
    OPI_TRY(opi_need(b, node, i, roles[i], OPI_T_FLOAT, indexed ? 2 : 3, indexed ? 2 : 3, err));
    if (opi_input(b, node, i)->dtype != OPIPE_FLOAT)
      OPI_TRY(opi_need_same_type(b, node, 0, i, err));
    OPI_TRY(
        opi_need_dim(b, node, i, indexed ? 1 : 2, t.dim / 2, "half of the rotary dimension", err));
    if (indexed)
      continue;
    if (opi_input(b, node, i)->shape[0] != 1)
      OPI_TRY(opi_need_dim(b, node, i, 0, t.batch, "the batch of X", err));
    OPI_TRY(opi_need_dim(b, node, i, 1, t.length, "the length of X", err));
  }
  OPI_TRY(opi_need_shape(b, node, 2, opi_input(b, node, 1)->shape,
                         (uint32_t)opi_input(b, node, 1)->rank, err));
  if (indexed) {
    const int64_t ids[2] = {t.batch, t.length};
    OPI_TRY(opi_need(b, node, 3, "position_ids", OPI_T_WIDE, 2, 2, err));
    OPI_TRY(opi_need_shape(b, node, 3, ids, 2, err));
  }
  return opi_b_set(b, node, 0, x->dtype, x->shape, (uint32_t)x->rank, err);
}

static opipe_status rotary_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  turn t;
  OPI_TRY(turn_extents(b, node, &t, err));
  opi_attrs_int(&attrs, "interleaved", opi_attr_int(node, "interleaved", 0) != 0);
  opi_attrs_int(&attrs, "num_heads", t.heads);
  opi_attrs_int(&attrs, "rotary_embedding_dim", t.dim);
  return opi_k_lift(b, node, "RotaryEmbedding", NULL, 23, &attrs, err);
}

static opipe_status rotary_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[0]];
  const bool indexed = opi_node_in(node, 3) != OPIPE_NONE;
  const int64_t size =
      x->rank == 4 ? x->shape[3] : x->shape[2] / opi_attr_int(node, "num_heads", 1);
  const char at = place(x, &in[0], size);
  const int32_t want = at == 'b' ? 0 : at == 't' ? 1 : -1; /* axis of caches or position_ids */
  out[0] = in[0];
  if (at == 's')
    return opi_carry_refuse(graph, node, 0, "it turns pairs along the head size", err);
  for (uint32_t i = 1; i < node->n_in; ++i) {
    const opi_value *v = node->in[i] == OPIPE_NONE ? NULL : &graph->values[node->in[i]];
    const bool whole = v == NULL || (indexed && i < 3) || want < 0 || v->shape[want] == 1;
    if (v == NULL || (in[i].axis < 0 && whole))
      continue;
    if (in[i].axis < 0 || (indexed && i < 3) || in[i].axis != want || in[i].outer != in[0].outer ||
        in[i].inner != in[0].inner)
      return opi_carry_refuse(graph, node, i, "it and X carry different axes", err);
  }
  return OPIPE_OK;
}

static void rotary_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, 3.0, out_work);
}

static const opi_op ops[] = {
    {OPI_OP("Attention", "", 23, OPI_NEWEST_ONNX, 3, OPI_ATT_INPUTS, 1, OPI_ATT_FOUND + 1),
     OPI_ATTRS(
         25, OPI_A(INT, "qk_matmul_output_mode", OPI_RANGE(0, 3), OPI_PRESET(0)),
         OPI_A(FLOAT, "softcap", OPI_PRESET(0)), OPI_A(INT, "softmax_precision"),
         OPI_A(INT, "kv_num_heads"), OPI_A(INT, "q_num_heads"), OPI_A(FLOAT, "scale"),
         OPI_A(INT, "is_causal", OPI_PRESET(0)),
         OPI_A(INT, "right_window_size", .since = 25, OPI_RANGE(-1, INT32_MAX), OPI_PRESET(-1)),
         OPI_A(INT, "left_window_size", .since = 25, OPI_RANGE(-1, INT32_MAX), OPI_PRESET(-1))),
     .lift = attention_lift, .infer = attention_infer, .work = attention_work,
     .carry = attention_carry, .gradient = opi_gradient_attention,
     .stops_gradient = (uint64_t)1 << OPI_ATT_SEQLEN,
     OPI_COLUMNS(NONE, NARROW, SCORES, ANY, NONE, ATTENTION, NEVER)},
    {OPI_OP("RotaryEmbedding", "", 23, OPI_NEWEST_ONNX, 3, 4, 1, 1),
     OPI_ATTRS(23, OPI_A(INT, "num_heads"), OPI_A(INT, "rotary_embedding_dim", OPI_PRESET(0)),
               OPI_A(INT, "interleaved", OPI_PRESET(0))),
     .lift = rotary_lift, .infer = rotary_infer, .work = rotary_work, .carry = rotary_carry,
     .gradient = opi_gradient_rotary, .stops_gradient = 0x8,
     OPI_COLUMNS(NONE, AS_IS, TABLES, ANY, PLACES, ROTARY, NEVER)},
};

const opi_op_family opi_ops_attention = {ops, OPI_COUNT(ops)};
