/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on [B, H, S, D] between transpositions becomes Attention on [B, S, H*D]: the kernel
 * reads heads by stride, so that queries, keys, values and the result need no copies. A
 * RotaryEmbedding in between moves to the same form.
 */
#include "loader/passes/fuse.h"

#include "loader/ops/attention.h"

static bool inner(const opi_fuse *f, uint32_t v) {
  return (opi_f_value(f, v)->flags & (OPI_VALUE_OUTPUT | OPI_VALUE_BARRIER)) == 0;
}

static bool swaps_heads(const opi_node *node) {
  static const int64_t perm[4] = {0, 2, 1, 3};
  uint32_t n = 0;
  const int64_t *has = opi_f_is(node, "Transpose") ? opi_attr_ints(node, "perm", &n) : NULL;
  return has != NULL && n == 4 && memcmp(has, perm, sizeof(perm)) == 0;
}

/* v [B, H, S, D] = Transpose(x [B, S, H, D]), perhaps turned in between. *out_turn: the
 * RotaryEmbedding, NULL: none. */
static bool source_of(const opi_fuse *f, uint32_t v, uint32_t *out_x, const opi_node **out_turn) {
  const opi_node *node = opi_f_made(f, v, NULL);
  *out_turn = NULL;
  if (node != NULL && opi_f_is(node, "RotaryEmbedding") && opi_f_free(f, v, 1)) {
    *out_turn = node;
    v = node->in[0];
    node = opi_f_made(f, v, NULL);
  }
  if (node == NULL || !inner(f, v) || !swaps_heads(node))
    return false;
  *out_x = node->in[0];
  return true;
}

/* x [B, S, H, D] -> [B, S, H*D], turned again where it was. */
static opipe_status flatten(opi_fuse *f, uint32_t x, const opi_node *turn, uint32_t *out,
                            opipe_error *err) {
  const int64_t *s = opi_f_value(f, x)->shape;
  const int64_t flat[3] = {s[0], s[1], s[2] * s[3]};
  opi_attrs attrs = {.n = 0};
  OPI_TRY(opi_k_reshape(f->b, x, flat, 3, out, err));
  if (turn == NULL)
    return OPIPE_OK;
  uint32_t in[4] = {*out, turn->in[1], turn->in[2], opi_node_in(turn, 3)};
  opi_attrs_int(&attrs, "interleaved", opi_attr_int(turn, "interleaved", 0));
  opi_attrs_int(&attrs, "num_heads", s[2]);
  opi_attrs_int(&attrs, "rotary_embedding_dim", opi_attr_int(turn, "rotary_embedding_dim", 0));
  OPI_TRY(opi_k_one(f->b, "RotaryEmbedding", 23, in, 4, &attrs, out, err));
  opi_f_mark(f, *out, turn->pattern);
  return OPIPE_OK;
}

opipe_status opi_fuse_flat_attention(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node node = *opi_f_node(f, n);
  uint32_t in[OPI_ATT_INPUTS], x[3], out[OPI_ATT_OUTPUTS], want = 0, y;
  const opi_node *found[3];
  opi_node turns[3];
  if (!opi_f_is(&node, "Attention") || opi_f_value(f, node.in[0])->rank != 4 ||
      opi_wants(&node, OPI_ATT_QK))
    return OPIPE_OK;
  const uint32_t after = opi_f_next(f, node.out[0], "Transpose");
  if (after == OPIPE_NONE || !swaps_heads(opi_f_node(f, after)))
    return OPIPE_OK;
  for (uint32_t i = 0; i < 3; ++i) {
    if (!source_of(f, node.in[i], &x[i], &found[i]))
      return OPIPE_OK;
    if (found[i] != NULL)
      turns[i] = *found[i];
  }
  const uint32_t result = opi_f_node(f, after)->out[0];
  const opi_value shape = *opi_f_value(f, result);
  for (uint32_t i = 0; i < OPI_ATT_INPUTS; ++i)
    in[i] = opi_node_in(&node, i);
  for (uint32_t i = 0; i < 3; ++i)
    OPI_TRY(flatten(f, x[i], found[i] != NULL ? &turns[i] : NULL, &in[i], err));
  for (uint32_t o = 0; o < OPI_ATT_OUTPUTS; ++o)
    want |= opi_wants(&node, o) ? 1u << o : 0u;
  const opi_attention how = opi_attention_of(&node);
  OPI_TRY(opi_attention_emit(f->b, &how, in, want, node.pattern, out, err));
  for (uint32_t o = OPI_ATT_PRESENT_K; o <= OPI_ATT_PRESENT_V; ++o) {
    if ((want >> o & 1u) != 0)
      OPI_TRY(opi_f_replace(f, node.out[o], out[o], node.pattern, err));
  }
  OPI_TRY(opi_k_reshape(f->b, out[OPI_ATT_Y], shape.shape, 4, &y, err));
  return opi_f_replace(f, result, y, node.pattern, err);
}
