/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in a token slice. Keys and values of earlier slices come in as past_key and past_value
 * and leave, extended, as present_key and present_value. A past and present of the model itself are
 * kept: the first slice reads the model's own past, and the requested part of the present is
 * assembled from all slices.
 */
#include <stdio.h>

#include "loader/ops/attention.h"
#include "loader/passes/slicer.h"

/* Keys that were there before the sequence. */
static int64_t earlier_keys(const slicer *s, const opi_node *node) {
  const uint32_t past = opi_node_in(node, OPI_ATT_PAST_K);
  return past == OPIPE_NONE ? 0 : s->whole->values[past].shape[2];
}

/* Does a node that is wanted read v? */
static bool is_read(const slicer *s, uint32_t v) {
  bool found = false;
  for (uint32_t n = 0; n < s->whole->n_nodes && !found; ++n) {
    const opi_node *node = &s->whole->nodes[n];
    for (uint32_t i = 0; s->needed[n] && i < node->n_in; ++i)
      found = found || node->in[i] == v;
  }
  return found;
}

static bool is_wanted(const slicer *s, uint32_t v) {
  uint32_t o = 0;
  while (v != OPIPE_NONE && o < s->n_wanted && s->wanted[o] != v)
    ++o;
  return v != OPIPE_NONE && o < s->n_wanted;
}

static opipe_status need_causal_mask(slicer *s, const opi_node *node, uint32_t mask) {
  const opi_value *m = &s->whole->values[mask];
  const opi_token_plane plane = {
      .row = m->rank - 2, .column = m->rank - 1, .lead = earlier_keys(s, node)};
  char why[300] = "", text[360];
  bool shown = false;
  OPI_TRY(opi_tokens_above(s->t, mask, &plane,
                           m->dtype == OPIPE_BOOL ? OPI_ABOVE_FALSE : OPI_ABOVE_LOW, s->evaluator,
                           &shown, why, sizeof why, s->err));
  (void)snprintf(text, sizeof text, "it is not causal: %s", why);
  return shown ? OPIPE_OK : opi_s_refuse(s, node, text);
}

static opipe_status check_attention(slicer *s, const opi_node *node, uint32_t axis) {
  if (opi_node_in(node, OPI_ATT_SEQLEN) != OPIPE_NONE)
    return opi_s_refuse(s, node, "it has lengths of keys already");
  for (uint32_t i = OPI_ATT_PAST_K; i <= OPI_ATT_PAST_V; ++i) {
    if (opi_node_in(node, i) != OPIPE_NONE && opi_s_sliced(s, node->in[i]))
      return opi_s_refuse(s, node, "its earlier keys and values are made from these tokens");
  }
  for (uint32_t o = OPI_ATT_PRESENT_K; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    if (o == OPI_ATT_QK || is_read(s, node->out[o]))
      return opi_s_refuse(s, node, "more than its first output is read");
  }
  for (uint32_t i = 0; i <= OPI_ATT_V; ++i) {
    const opi_carry *c = &s->carry[node->in[i]];
    if (!opi_s_sliced(s, node->in[i]) || c->axis != (int32_t)axis || c->outer != 1 || c->inner != 1)
      return opi_s_refuse(s, node, "queries, keys and values do not all have tokens as rows");
  }
  const uint32_t mask = opi_node_in(node, OPI_ATT_MASK);
  if (mask != OPIPE_NONE && opi_s_sliced(s, mask))
    return opi_s_refuse(s, node, "its mask is made from activations");
  if (opi_attr_int(node, "is_causal", 0) != 0)
    return OPIPE_OK;
  if (mask == OPIPE_NONE)
    return opi_s_refuse(s, node, "it is not causal: it has no mask, rows read later tokens");
  return need_causal_mask(s, node, mask);
}

/* Rows of this slice, columns up to its end, where the mask has them. */
static opipe_status cut_mask(slicer *s, const opi_node *node, uint32_t *out) {
  const uint32_t mask = opi_node_in(node, OPI_ATT_MASK);
  const int64_t past = earlier_keys(s, node);
  *out = OPIPE_NONE;
  if (mask == OPIPE_NONE)
    return OPIPE_OK;
  const opi_value *m = &s->whole->values[mask];
  *out = s->map[mask];
  if (m->rank >= 2 && m->shape[m->rank - 2] == s->t->n_tokens)
    OPI_TRY(opi_k_slice(&s->b, *out, m->rank - 2, s->first, opi_s_end(s), out, s->err));
  if (m->rank < 1 || m->shape[m->rank - 1] == 1 || opi_s_end(s) == s->t->n_tokens)
    return OPIPE_OK;
  if (m->shape[m->rank - 1] != past + s->t->n_tokens)
    return opi_s_refuse(s, node, "its mask has other columns than tokens");
  return opi_k_slice(&s->b, *out, m->rank - 1, 0, past + opi_s_end(s), out, s->err);
}

opipe_status opi_s_past(slicer *s, uint32_t dtype, const int64_t *shape, uint32_t rank,
                        uint32_t *out) {
  const char *name = opi_arena_printf(&s->scratch, "%s/past", s->state_names[s->n_states]);
  *out = OPIPE_NONE;
  if (s->first == 0)
    return OPIPE_OK;
  *out = name == NULL ? OPIPE_NONE : opi_b_borrow(&s->b, name, dtype, shape, rank, NULL);
  if (*out == OPIPE_NONE || !opi_graph_add_input(s->b.graph, *out))
    return opi_fail_nomem(s->err, sizeof(opi_value), "an input");
  opi_b_value(&s->b, *out)->flags = OPI_VALUE_INPUT;
  return OPIPE_OK;
}

static opipe_status add_past(slicer *s, const opi_node *node, uint32_t which, uint32_t *out) {
  const opi_value *x = &s->whole->values[node->in[which]];
  const int64_t heads = x->rank == 4 ? x->shape[1] : opi_attr_int(node, "kv_num_heads", 1);
  const int64_t size = x->rank == 4 ? x->shape[3] : x->shape[2] / heads;
  const int64_t shape[4] = {x->shape[0], heads, earlier_keys(s, node) + s->first, size};
  OPI_TRY(opi_s_past(s, x->dtype, shape, 4, out));
  const uint32_t before = opi_node_in(node, OPI_ATT_PAST_K + which - OPI_ATT_K);
  if (*out == OPIPE_NONE && before != OPIPE_NONE)
    *out = s->map[before];
  return OPIPE_OK;
}

/* The keys or values that the caller wants: those of this slice, in the first with what was there
 * before. */
static opipe_status keep_present(slicer *s, const opi_node *node, uint32_t which,
                                 uint32_t present) {
  const uint32_t v = opi_node_out(node, OPI_ATT_PRESENT_K + which);
  const int64_t past = earlier_keys(s, node), first = s->first == 0 ? 0 : past + s->first;
  if (!is_wanted(s, v))
    return OPIPE_OK;
  const char *name = s->whole->values[v].name;
  uint32_t part = present;
  if (first != 0)
    OPI_TRY(opi_k_slice(&s->b, present, 2, first, past + opi_s_end(s), &part, s->err));
  const opi_emit emit = {.op = "Identity", .in = &part, .n_in = 1, .n_out = 1, .out_names = &name};
  OPI_TRY(opi_b_emit_kept(&s->b, &emit, &s->map[v], s->err));
  opi_b_value(&s->b, s->map[v])->source = s->whole->values[v].source;
  s->carry[v] = (opi_carry){2, 0, 1, 1, 0};
  s->before[v] = past;
  return OPIPE_OK;
}

opipe_status opi_s_attention(slicer *s, const opi_node *node) {
  const opi_value *q = &s->whole->values[node->in[OPI_ATT_Q]];
  const uint32_t axis = q->rank == 3 ? 1 : 2;
  const bool last = opi_s_end(s) == s->t->n_tokens;
  const bool asked = is_wanted(s, opi_node_out(node, OPI_ATT_PRESENT_K)) ||
                     is_wanted(s, opi_node_out(node, OPI_ATT_PRESENT_V));
  uint32_t in[OPI_ATT_INPUTS], out[3];
  OPI_TRY(check_attention(s, node, axis));
  for (uint32_t i = 0; i < OPI_ATT_INPUTS; ++i)
    in[i] = i <= OPI_ATT_V ? s->map[node->in[i]] : OPIPE_NONE;
  OPI_TRY(cut_mask(s, node, &in[OPI_ATT_MASK]));
  const uint32_t state = s->n_states;
  const char *name = s->whole->values[node->out[0]].name;
  for (uint32_t k = 0; k < 2; ++k) {
    s->state_names[s->n_states] =
        opi_arena_printf(&s->scratch, "%s/%s", name, k == 0 ? "keys" : "values");
    if (s->state_names[s->n_states] == NULL)
      return opi_fail_nomem(s->err, 64, "a name");
    OPI_TRY(add_past(s, node, k == 0 ? OPI_ATT_K : OPI_ATT_V, &in[OPI_ATT_PAST_K + k]));
    s->pasts[s->n_states++] = s->first == 0 ? OPIPE_NONE : in[OPI_ATT_PAST_K + k];
  }
  const char *const names[3] = {name, s->state_names[state], s->state_names[state + 1]};
  const opi_emit how = {.op = node->op,
                        .domain = node->domain,
                        .in = in,
                        .n_in = OPI_ATT_PAST_V + 1,
                        .n_out = last && !asked ? 1 : 3,
                        .attrs = node->attrs,
                        .n_attrs = node->n_attrs,
                        .version = node->version,
                        .out_names = names,
                        .pattern = node->pattern};
  OPI_TRY(opi_s_emit_as(s, node, &how, out));
  s->map[node->out[0]] = out[0];
  opi_b_value(&s->b, out[0])->source = s->whole->values[node->out[0]].source;
  for (uint32_t k = 0; k < 2; ++k) {
    s->presents[state + k] = last ? OPIPE_NONE : out[1 + k];
    if (asked)
      OPI_TRY(keep_present(s, node, k, out[1 + k]));
  }
  const opi_value *y = &s->whole->values[node->out[0]];
  s->carry[node->out[0]] = (opi_carry){y->rank == 3 ? 1 : 2, 0, 1, 1};
  return OPIPE_OK;
}
