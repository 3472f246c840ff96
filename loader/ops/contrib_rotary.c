/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft RotaryEmbedding: input [B, S, N*H] or [B, N, S, H], position_ids [1] (an offset) or
 * [B, S], caches [max, R/2].
 *
 * Becomes the standard's RotaryEmbedding; an offset becomes positions. Scaling and packed batching
 * are not known.
 */
#include "loader/ops/contrib.h"

static opipe_status heads_of(const opi_builder *b, const opi_node *node, int64_t dim,
                             int64_t *out_heads, opipe_error *err) {
  const opi_value *x = opi_input(b, node, 0);
  int64_t heads = opi_attr_int(node, "num_heads", 0);
  if (x->rank == 4) {
    *out_heads = x->shape[1];
    return OPIPE_OK;
  }
  if (heads == 0 && opi_attr_int(node, "rotary_embedding_dim", 0) > 0) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "attribute num_heads is needed: rotary_embedding_dim is given and input '%s' has rank 3",
        x->name);
  }
  if (heads == 0)
    heads = dim > 0 && x->shape[2] % dim == 0 ? x->shape[2] / dim : 0;
  if (heads < 1 || x->shape[2] % heads != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' has hidden size %lld, which heads of size %lld (twice the "
                         "cache's width) do not fill",
                         x->name, (long long)x->shape[2], (long long)dim);
  }
  *out_heads = heads;
  return OPIPE_OK;
}

/* Positions [B, S] from an offset [1], or as they are. */
static opipe_status positions(opi_builder *b, const opi_node *node, int64_t batch, int64_t length,
                              uint32_t *out, opipe_error *err) {
  const int64_t shape[2] = {batch, length};
  uint32_t steps;
  OPI_TRY(opi_need(b, node, 1, "position_ids", OPI_T_WIDE, 1, 2, err));
  OPI_TRY(opi_k_cast(b, node->in[1], OPIPE_INT64, out, err));
  if (opi_input(b, node, 1)->rank == 2)
    return opi_need_shape(b, node, 1, shape, 2, err);
  OPI_TRY(opi_need_dim(b, node, 1, 0, 1, "one offset", err));
  OPI_TRY(opi_ms_range(b, length, &steps, err));
  OPI_TRY(opi_b_op2(b, "Add", steps, *out, out, err));
  return opi_k_expand(b, *out, shape, 2, out, err);
}

opipe_status opi_ms_rotary_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  int64_t heads = 0, dim;
  uint32_t in[4], y;
  OPI_TRY(opi_need(b, node, 0, "input", OPI_T_FLOAT, 3, 4, err));
  OPI_TRY(opi_need(b, node, 2, "cos_cache", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_need(b, node, 3, "sin_cache", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_ms_only(b, node, "is_packed_batching", 0, err));
  if (opi_attr_float(node, "scale", 1.0) != 1.0) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "attribute scale is %g, only 1 is supported",
                         opi_attr_float(node, "scale", 1.0));
  }
  const opi_value *x = opi_input(b, node, 0);
  const int64_t batch = x->shape[0], length = x->shape[x->rank == 4 ? 2 : 1];
  if (opi_input(b, node, 2)->shape[1] > INT32_MAX)
    OPI_TRY(opi_need_dim(b, node, 2, 1, INT32_MAX, "at most", err));
  dim = 2 * opi_input(b, node, 2)->shape[1];
  const int64_t given = opi_attr_int(node, "rotary_embedding_dim", 0);
  if (given != 0 && given != dim) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "input '%s' has width %lld, rotary_embedding_dim %lld needs half of that number",
        opi_input(b, node, 2)->name, (long long)(dim / 2), (long long)given);
  }
  OPI_TRY(heads_of(b, node, dim, &heads, err));
  in[0] = node->in[0];
  in[1] = node->in[2];
  in[2] = node->in[3];
  OPI_TRY(positions(b, node, batch, length, &in[3], err));
  opi_attrs_int(&attrs, "interleaved", opi_attr_int(node, "interleaved", 0) != 0);
  opi_attrs_int(&attrs, "num_heads", heads);
  opi_attrs_int(&attrs, "rotary_embedding_dim", dim);
  OPI_TRY(opi_k_one(b, "RotaryEmbedding", 23, in, 4, &attrs, &y, err));
  return opi_b_result(b, node, 0, y, err);
}
