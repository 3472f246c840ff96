/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of Attention and RotaryEmbedding; shapes and work of opipe.AttentionGrad.
 *
 * AttentionGrad makes the scores again. What it does not do is written around it: gradients that
 * arrive at present_key and present_value are added to those of K, V and the past; a gradient of
 * the score output (qk_matmul_output) takes Attention apart into products.
 */
#include "loader/ops/attention.h"

#include <string.h>

#include "loader/gradient/rules.h"

/* The forward node inside an AttentionGrad: its inputs follow dY. */
static opi_node forward_of(const opi_node *node) {
  opi_node forward = *node;
  forward.in = node->in + 1;
  forward.n_in = node->n_in - 1;
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
  for (uint32_t o = 0; o < node->n_out; o++) {
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
