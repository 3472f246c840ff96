/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over rows: queries, keys and values become [rows, heads * size], and the keys and
 * values of before lie in pages. */
#include <stdio.h>

#include "loader/ops/attention.h"
#include "loader/passes/rower.h"

/* Lengths of keys must be those of the whole context. */
static opipe_status check_lengths(const rower *r, const opi_node *node) {
  const uint32_t v = opi_node_in(node, OPI_ATT_SEQLEN);
  const opi_value *x = v == OPIPE_NONE ? NULL : &r->s.whole->values[v];
  char why[160];
  if (x != NULL && !opi_value_known(x))
    return opi_s_refuse(&r->s, node, "its lengths of keys are not known from constants");
  for (uint64_t i = 0; x != NULL && i < opi_elems(x); ++i) {
    if (opi_index_at(x, i) == r->form->context)
      continue;
    (void)snprintf(why, sizeof why, "%lld of %lld keys count", (long long)opi_index_at(x, i),
                   (long long)r->form->context);
    return opi_s_refuse(&r->s, node, why);
  }
  return OPIPE_OK;
}

static opipe_status check_attention(const rower *r, const opi_node *node) {
  const slicer *s = &r->s;
  const int32_t axis = s->whole->values[node->in[OPI_ATT_Q]].rank == 3 ? 1 : 2;
  for (uint32_t i = OPI_ATT_PAST_K; i <= OPI_ATT_PAST_V; ++i) {
    const uint32_t v = opi_node_in(node, i);
    if (v != OPIPE_NONE && opi_elems(&s->whole->values[v]) != 0)
      return opi_s_refuse(s, node, "it has keys of before at the first token");
  }
  for (uint32_t i = 0; i <= OPI_ATT_V; ++i) {
    const uint32_t v = node->in[i];
    const opi_carry *c = &s->carry[v];
    if (i > OPI_ATT_Q && !opi_s_sliced(s, v))
      return opi_s_refuse(s, node, "its keys or values are the same for all rows: cross-attention");
    if (!opi_s_sliced(s, v) || c->axis != axis || c->outer != 1 || c->inner != 1)
      return opi_s_refuse(s, node, "queries, keys and values do not all have tokens as rows");
    if (s->whole->values[v].shape[0] != 1)
      return opi_s_refuse(s, node, "its batch is not 1");
  }
  if (opi_node_out(node, OPI_ATT_QK) != OPIPE_NONE)
    return opi_s_refuse(s, node, "its scores are wanted");
  return check_lengths(r, node);
}

/* [rows, heads * size] in fp32 from operand i. */
static opipe_status flatten(rower *r, const opi_node *node, uint32_t i, uint32_t *out) {
  static const int64_t perm[4] = {0, 2, 1, 3};
  opi_builder *b = &r->s.b;
  uint32_t x;
  OPI_TRY(opi_r_operand(r, node, node->in[i], &r->s.carry[node->in[i]], false, &x));
  if (opi_b_value(b, x)->rank == 4)
    OPI_TRY(opi_k_transpose(b, x, perm, 4, &x, r->s.err));
  const opi_value *v = opi_b_value(b, x);
  int64_t shape[2] = {r->wish->rows, v->shape[2]};
  if (v->rank == 4)
    shape[1] *= v->shape[3];
  OPI_TRY(opi_k_reshape(b, x, shape, 2, &x, r->s.err));
  return opi_k_cast(b, x, OPIPE_FLOAT, out, r->s.err);
}

static opipe_status add_pages(rower *r, const opi_node *node, int64_t heads, int64_t size,
                              uint32_t which, uint32_t *out) {
  const int64_t shape[4] = {r->wish->pages, heads, r->wish->page, size};
  const char *name =
      opi_arena_printf(&r->s.scratch, "%s/%s", node->name, which == 0 ? "keys" : "values");
  *out = name == NULL ? OPIPE_NONE : opi_b_borrow(&r->s.b, name, OPIPE_FLOAT, shape, 4, NULL);
  if (*out == OPIPE_NONE)
    return opi_fail_nomem(r->s.err, sizeof(opi_value), "pages");
  opi_b_value(&r->s.b, *out)->flags = OPI_VALUE_INPUT | (r->wish->in_place ? OPI_VALUE_HELD : 0u);
  r->pages[r->n_pages].in[which] = *out;
  return OPIPE_OK;
}

/* Y in the form that the node's readers know. */
static opipe_status give_back(rower *r, const opi_node *node, int64_t heads, uint32_t y) {
  static const int64_t perm[4] = {0, 2, 1, 3};
  const opi_value *whole = &r->s.whole->values[node->out[0]];
  opi_builder *b = &r->s.b;
  const int64_t size = opi_b_value(b, y)->shape[1];
  const int64_t flat[3] = {1, r->wish->rows, size};
  const int64_t split[4] = {1, r->wish->rows, heads, size / heads};
  OPI_TRY(opi_k_cast(b, y, whole->dtype, &y, r->s.err));
  if (whole->rank == 3) {
    OPI_TRY(opi_k_reshape(b, y, flat, 3, &y, r->s.err));
  } else {
    OPI_TRY(opi_k_reshape(b, y, split, 4, &y, r->s.err));
    OPI_TRY(opi_k_transpose(b, y, perm, 4, &y, r->s.err));
  }
  r->s.map[node->out[0]] = y;
  r->s.carry[node->out[0]] = (opi_carry){whole->rank == 3 ? 1 : 2, 0, 1, 1, 0};
  for (uint32_t o = 1; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      r->stale[node->out[o]] = true;
  }
  return OPIPE_OK;
}

static opipe_status give_slopes(rower *r, const opi_row_mask *mask, int64_t heads, uint32_t *out) {
  *out = OPIPE_NONE;
  if (mask->slopes == NULL)
    return OPIPE_OK;
  return opi_k_const(*out = opi_b_const(&r->s.b, OPIPE_FLOAT, &heads, 1, mask->slopes), r->s.err);
}

opipe_status opi_r_attention(rower *r, const opi_node *node) {
  const opi_value *k = &r->s.whole->values[node->in[OPI_ATT_K]];
  const opi_value *v = &r->s.whole->values[node->in[OPI_ATT_V]];
  const opi_attention att = opi_attention_of(node);
  const int64_t kv_heads = k->rank == 4 ? k->shape[1] : att.kv_heads;
  const int64_t heads =
      k->rank == 4 ? r->s.whole->values[node->in[OPI_ATT_Q]].shape[1] : att.q_heads;
  const bool flat = k->rank == 3;
  opi_row_attention how = {heads, kv_heads, att.scale, att.softcap, 0, r->wish->in_place};
  opi_row_mask mask;
  uint32_t in[OPI_ROWS_INPUTS], out[OPI_ROWS_OUTPUTS];
  OPI_TRY(check_attention(r, node));
  OPI_TRY(opi_r_mask(r, node, heads, k->shape[flat ? 1 : 2], &mask));
  how.window = mask.window;
  for (uint32_t i = 0; i <= OPI_ATT_V; ++i)
    OPI_TRY(flatten(r, node, i, &in[i]));
  in[OPI_ROWS_POSITION] = r->position;
  in[OPI_ROWS_SEQUENCE] = r->sequence;
  in[OPI_ROWS_TABLE] = r->table;
  OPI_TRY(add_pages(r, node, kv_heads, flat ? k->shape[2] / kv_heads : k->shape[3], 0,
                    &in[OPI_ROWS_KEY_PAGES]));
  OPI_TRY(add_pages(r, node, kv_heads, flat ? v->shape[2] / kv_heads : v->shape[3], 1,
                    &in[OPI_ROWS_VALUE_PAGES]));
  OPI_TRY(give_slopes(r, &mask, heads, &in[OPI_ROWS_SLOPES]));
  in[OPI_ROWS_COPIES] = r->copies;
  OPI_TRY(opi_row_attention_emit(&r->s.b, &how, in, out, r->s.err));
  opi_row_pages *pages = &r->pages[r->n_pages++];
  pages->node = node->name;
  pages->window = mask.window;
  pages->out[0] = out[OPI_ROWS_KEYS_OUT];
  pages->out[1] = out[OPI_ROWS_VALUES_OUT];
  return give_back(r, node, heads, out[OPI_ROWS_Y]);
}
