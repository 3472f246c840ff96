/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.LSTM, GRU and RNN: the steps of a recurrent layer of one direction, and their gradients.
 *
 * Canonical: (G [S,B,N*H], R [N*H,H], lens? [B], h0? [B,H], c0? [B,H], extra?) -> (Y [S,B,H], Y_h?,
 * Y_c?). G is what the layer's input gives to the gates, biases added; N is 4, 3, 1. extra: an
 * LSTM's peepholes [3H], or what a GRU with linear_before_reset adds to h R^T of its last gate [H].
 * Gates stand in the standard's order: i o f c, z r h. Y is always there: its gradient reads it.
 */
#include <string.h>

#include "loader/ops/common.h"
#include "loader/ops/recurrent.h"
#include "loader/ops/rules.h"

/* -- shapes ------------------------------------------------------------------------------------ */

/* G, R and the four inputs from `lens` on; out_y [S,B,H]. */
static opipe_status check(opi_builder *b, const opi_node *node, uint32_t lens, int64_t *out_y,
                          opipe_error *err) {
  const opi_recurrence cell = opi_recurrence_of(node);
  const int64_t gates = opi_recurrence_gates(cell);
  OPI_TRY(opi_need(b, node, OPI_REC_G, "G", OPI_T_FLOAT, 3, 3, err));
  OPI_TRY(opi_need(b, node, OPI_REC_R, "R", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_need_same_type(b, node, OPI_REC_G, OPI_REC_R, err));
  const opi_value *g = opi_input(b, node, OPI_REC_G), *r = opi_input(b, node, OPI_REC_R);
  const int64_t h = r->shape[1], extra = (cell == OPI_RECURRENCE_LSTM ? 3 : 1) * h;
  OPI_TRY(opi_need_dim(b, node, OPI_REC_R, 0, gates * h, "gates of as many units", err));
  OPI_TRY(opi_need_dim(b, node, OPI_REC_G, 2, gates * h, "the gates of R", err));
  out_y[0] = g->shape[0];
  out_y[1] = g->shape[1];
  out_y[2] = h;
  OPI_TRY(opi_may(b, node, lens, "lens", OPI_T_WIDE, 1, 1, err));
  OPI_TRY(opi_need_shape(b, node, lens, out_y + 1, 1, err));
  for (uint32_t i = 1; i < 4; ++i) {
    OPI_TRY(opi_may(b, node, lens + i, "a state", OPI_T_FLOAT, 1, 2, err));
    OPI_TRY(opi_need_same_type(b, node, OPI_REC_G, lens + i, err));
    OPI_TRY(i < 3 ? opi_need_shape(b, node, lens + i, out_y + 1, 2, err)
                  : opi_need_shape(b, node, lens + i, &extra, 1, err));
  }
  return OPIPE_OK;
}

static opipe_status infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t y[3];
  OPI_TRY(check(b, node, OPI_REC_LENS, y, err));
  const uint32_t dtype = opi_input(b, node, OPI_REC_G)->dtype;
  OPI_TRY(opi_b_set(b, node, 0, dtype, y, 3, err));
  OPI_TRY(opi_b_set(b, node, 1, dtype, y + 1, 2, err));
  return opi_b_set(b, node, 2, dtype, y + 1, 2, err);
}

static opipe_status grad_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t y[3];
  OPI_TRY(check(b, node, OPI_REC_GRAD_LENS, y, err));
  const opi_value g = *opi_input(b, node, OPI_REC_G);
  OPI_TRY(opi_need(b, node, OPI_REC_GRAD_Y, "Y", OPI_T_FLOAT, 3, 3, err));
  OPI_TRY(opi_need_shape(b, node, OPI_REC_GRAD_Y, y, 3, err));
  OPI_TRY(opi_need_shape(b, node, OPI_REC_GRAD_DY, y, 3, err));
  OPI_TRY(opi_need_shape(b, node, OPI_REC_GRAD_DY + 1, y + 1, 2, err));
  OPI_TRY(opi_need_shape(b, node, OPI_REC_GRAD_DY + 2, y + 1, 2, err));
  const int64_t extra = (opi_recurrence_of(node) == OPI_RECURRENCE_LSTM ? 3 : 1) * y[2];
  OPI_TRY(opi_b_set(b, node, 0, g.dtype, g.shape, 3, err));
  for (uint32_t i = 1; i < 5; ++i) {
    OPI_TRY(i < 3 ? opi_b_set(b, node, i, g.dtype, y, 3, err)
                  : opi_b_set(b, node, i, g.dtype, y + 1, 2, err));
  }
  return opi_b_set(b, node, 5, g.dtype, &extra, 1, err);
}

static void layer_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const double per_unit = 10.0 * opi_k_elems_of(graph, node->in[OPI_REC_G]);
  const double h = (double)graph->values[node->in[OPI_REC_R]].shape[1];
  out_work->flops = 2.0 * h * opi_k_elems_of(graph, node->in[OPI_REC_G]) + per_unit;
  out_work->bytes = opi_work_bytes(graph, node);
}

/* The forward's product again and the one by R. */
static void grad_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  layer_work(graph, node, out_work);
  out_work->flops *= 2;
}

/* Rows of the batch stand side by side, the steps of one depend on each other. */
static opipe_status carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                          opi_carry *out, opipe_error *err) {
  opi_carry state = in[OPI_REC_G];
  if (in[OPI_REC_R].axis >= 0)
    return opi_carry_refuse(graph, node, OPI_REC_R, "its units depend on each other", err);
  if (state.axis >= 0 && state.axis != 1) {
    return opi_carry_refuse(
        graph, node, OPI_REC_G,
        state.axis == 0 ? "each step depends on the one before" : "its gates depend on each other",
        err);
  }
  state.axis = state.axis < 0 ? -1 : 0;
  for (uint32_t i = OPI_REC_LENS; i < node->n_in; ++i) {
    const bool parameter = i == OPI_REC_EXTRA;
    if (node->in[i] == OPIPE_NONE)
      continue;
    if (parameter ? in[i].axis >= 0
                  : in[i].axis != state.axis || (state.axis >= 0 && (in[i].outer != state.outer ||
                                                                     in[i].inner != state.inner)))
      return opi_carry_refuse(graph, node, i, "it does not hold the rows as G does", err);
  }
  out[0] = in[OPI_REC_G];
  for (uint32_t o = 1; o < node->n_out; ++o)
    out[o] = state;
  return OPIPE_OK;
}

/* -- gradient ---------------------------------------------------------------------------------- */

/* Rows [begin, end) of gates of [S,B,N*H], turned, times [S,B,H]: [end - begin, H]. */
static opipe_status by_state(opi_builder *b, uint32_t gates, int64_t begin, int64_t end,
                             uint32_t state, uint32_t *out, opipe_error *err) {
  static const int64_t turn[2] = {1, 0};
  const opi_value v = *opi_b_value(b, state);
  uint32_t in[2];
  OPI_TRY(opi_k_slice(b, gates, 2, begin, end, &in[0], err));
  const int64_t rows = v.shape[0] * v.shape[1];
  const int64_t a[2] = {rows, opi_b_value(b, in[0])->shape[2]}, c[2] = {rows, v.shape[2]};
  OPI_TRY(opi_k_reshape(b, in[0], a, 2, &in[0], err));
  OPI_TRY(opi_k_transpose(b, in[0], turn, 2, &in[0], err));
  OPI_TRY(opi_k_reshape(b, state, c, 2, &in[1], err));
  return opi_k_one(b, "MatMul", 0, in, 2, NULL, out, err);
}

/* made: outputs of the gradient's node. */
static opipe_status give_r(opi_grad *g, const opi_node *node, const uint32_t *made,
                           opipe_error *err) {
  opi_builder *b = g->builder;
  const int64_t h = opi_b_value(b, node->in[OPI_REC_R])->shape[1];
  const int64_t gates = opi_recurrence_gates(opi_recurrence_of(node));
  uint32_t parts[2];
  if (opi_recurrence_of(node) != OPI_RECURRENCE_GRU) {
    OPI_TRY(by_state(b, made[0], 0, gates * h, made[1], &parts[0], err));
    return opi_grad_give(g, node, OPI_REC_R, parts[0], err);
  }
  OPI_TRY(by_state(b, made[0], 0, 2 * h, made[1], &parts[0], err));
  if (opi_attr_int(node, "linear_before_reset", 0) != 0)
    OPI_TRY(by_state(b, made[2], 0, h, made[1], &parts[1], err));
  else
    OPI_TRY(by_state(b, made[0], 2 * h, 3 * h, made[2], &parts[1], err));
  OPI_TRY(opi_k_concat(b, parts, 2, 0, &parts[0], err));
  return opi_grad_give(g, node, OPI_REC_R, parts[0], err);
}

static opipe_status gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  static const char *const names[3] = {"LSTMGrad", "GRUGrad", "RNNGrad"};
  static const uint32_t from[4] = {OPI_REC_G, OPI_REC_H0, OPI_REC_C0, OPI_REC_EXTRA};
  static const uint32_t to[4] = {0, 3, 4, 5};
  const opi_recurrence cell = opi_recurrence_of(node);
  const bool of_r = opi_grad_wants(g, node, OPI_REC_R);
  uint32_t in[10], made[6], want = 1;
  opi_attrs attrs = {.n = 0};
  in[0] = node->in[OPI_REC_G];
  in[1] = node->in[OPI_REC_R];
  in[OPI_REC_GRAD_Y] = node->out[0];
  for (uint32_t i = 0; i < 4; ++i)
    in[OPI_REC_GRAD_LENS + i] = opi_node_in(node, OPI_REC_LENS + i);
  for (uint32_t o = 0; o < 3; ++o)
    in[OPI_REC_GRAD_DY + o] = opi_grad_of(g, node, o);
  for (uint32_t i = 0; i < node->n_attrs && attrs.n < OPI_COUNT(attrs.list); ++i)
    attrs.list[attrs.n++] = node->attrs[i];
  want |= of_r ? (cell == OPI_RECURRENCE_GRU ? 6u : 2u) : 0u;
  for (uint32_t i = 1; i < 4; ++i)
    want |= opi_grad_wants(g, node, from[i]) ? 1u << to[i] : 0u;
  OPI_TRY(opi_k_node(g->builder, names[cell], "opipe", 1, in, 10, want, &attrs, made, err));
  for (uint32_t i = 0; i < 4; ++i) {
    if (opi_grad_wants(g, node, from[i]))
      OPI_TRY(opi_grad_give(g, node, from[i], made[to[i]], err));
  }
  return of_r ? give_r(g, node, made, err) : OPIPE_OK;
}

#define LAYER(name_, max_out_)                                                    \
  {                                                                               \
    OPI_OP(name_, "opipe", 1, 1, 2, 6, 1, max_out_),                              \
        .infer = infer, .work = layer_work, .carry = carry, .gradient = gradient, \
        .stops_gradient = 1u << OPI_REC_LENS,                                     \
        OPI_COLUMNS(NONE, NARROW, PRODUCT, ANY, NONE, PLAIN, NEVER)               \
  }
#define LAYER_GRAD(name_)                                         \
  {                                                               \
    OPI_OP(name_, "opipe", 1, 1, 3, 10, 1, 6),                    \
        .infer = grad_infer, .work = grad_work,                   \
        OPI_COLUMNS(NONE, NARROW, OTHER, ANY, NONE, PLAIN, NEVER) \
  }

static const opi_op ops[] = {
    LAYER("LSTM", 3),       LAYER("GRU", 2),       LAYER("RNN", 2),
    LAYER_GRAD("LSTMGrad"), LAYER_GRAD("GRUGrad"), LAYER_GRAD("RNNGrad"),
};

extern const opi_op_family opi_ops_recurrent_layer;
const opi_op_family opi_ops_recurrent_layer = {ops, OPI_COUNT(ops)};
