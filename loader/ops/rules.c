/* SPDX-License-Identifier: Apache-2.0 */
/* The interface that gradient rules call; see rules.h. */
#include "loader/ops/rules.h"

#include <string.h>

bool opi_grad_stops(const opi_op *op, uint32_t i) {
  return (op->stops_gradient >> (i < 63 ? i : 63) & 1u) != 0;
}

uint32_t opi_grad_of(opi_grad *g, const opi_node *node, uint32_t i) {
  const uint32_t v = opi_node_out(node, i);
  return v == OPIPE_NONE ? OPIPE_NONE : g->of(g->state, v);
}

bool opi_grad_wants(opi_grad *g, const opi_node *node, uint32_t i) {
  const uint32_t v = opi_node_in(node, i);
  const opi_op *op = opi_op_find(node->domain, node->op);
  return v != OPIPE_NONE && op != NULL && !opi_grad_stops(op, i) && g->wanted(g->state, v);
}

static bool same_form(const opi_value *a, const opi_value *b) {
  return a->dtype == b->dtype && a->rank == b->rank &&
         (a->rank == 0 || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(int64_t)) == 0);
}

opipe_status opi_grad_give(opi_grad *g, const opi_node *node, uint32_t i, uint32_t value,
                           opipe_error *err) {
  char have[96], want[96];
  if (!opi_grad_wants(g, node, i))
    return OPIPE_OK;
  const uint32_t v = node->in[i];
  const opi_value *x = opi_b_value(g->builder, v), *dx = opi_b_value(g->builder, value);
  if (!same_form(x, dx)) {
    return opi_node_fail(g->builder, node, err, OPIPE_E_INTERNAL,
                         "gives '%s' %s %s a gradient of %s %s", x->name, opi_dtype_name(x->dtype),
                         opi_shape_text(want, sizeof(want), x->shape, (uint32_t)x->rank),
                         opi_dtype_name(dx->dtype),
                         opi_shape_text(have, sizeof(have), dx->shape, (uint32_t)dx->rank));
  }
  return g->give(g->state, v, value, err);
}

opipe_status opi_grad_reduce(opi_grad *g, const opi_node *node, uint32_t i, uint32_t value,
                             uint32_t *out, opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, node->in[i]);
  const opi_value dx = *opi_b_value(g->builder, value);
  int64_t axes[OPIPE_MAX_RANK];
  uint32_t n = 0, sum = value, summed = 0, single = 0;
  const int32_t lead = dx.rank - x.rank;
  for (int32_t d = 0; d < dx.rank; ++d) {
    const bool one = d < lead || x.shape[d - lead] == 1;
    single |= one ? 1u << d : 0;
    summed |= one && (d < lead || dx.shape[d] != 1) ? 1u << d : 0;
  }
  summed |= opi_b_choose(g->builder, summed) & single;
  for (int32_t d = 0; d < dx.rank; ++d) {
    if ((summed & 1u << d) != 0)
      axes[n++] = d;
  }
  if (n != 0)
    OPI_TRY(opi_k_reduce(g->builder, "ReduceSum", 0, value, axes, n, true, &sum, err));
  return opi_k_reshape(g->builder, sum, x.shape, (uint32_t)x.rank, out, err);
}

opipe_status opi_grad_give_reduced(opi_grad *g, const opi_node *node, uint32_t i, uint32_t value,
                                   opipe_error *err) {
  uint32_t sum;
  if (!opi_grad_wants(g, node, i))
    return OPIPE_OK;
  OPI_TRY(opi_grad_reduce(g, node, i, value, &sum, err));
  return opi_grad_give(g, node, i, sum, err);
}

opipe_status opi_grad_const(opi_grad *g, uint32_t like, double number, uint32_t *out,
                            opipe_error *err) {
  *out = opi_b_const_scalar(g->builder, opi_b_value(g->builder, like)->dtype, number);
  return opi_k_const(*out, err);
}

opipe_status opi_grad_zeros(opi_grad *g, uint32_t like, uint32_t *out, opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, like);
  uint32_t in[2];
  OPI_TRY(opi_grad_const(g, like, 0, &in[0], err));
  if (x.rank == 0) {
    *out = in[0];
    return OPIPE_OK;
  }
  in[1] = opi_b_const_ints(g->builder, x.shape, (uint32_t)x.rank);
  OPI_TRY(opi_k_const(in[1], err));
  const opi_emit emit = {.op = "Expand", .in = in, .n_in = 2, .n_out = 1};
  return opi_b_emit_kept(g->builder, &emit, out, err); /* a large constant would be memory */
}

opipe_status opi_grad_own(opi_grad *g, const char *op, const uint32_t *in, uint32_t n_in,
                          const opi_attrs *attrs, uint32_t *out, opipe_error *err) {
  uint32_t y;
  OPI_TRY(opi_k_node(g->builder, op, "opipe", 1, in, n_in, 1, attrs, &y, err));
  *out = y;
  return OPIPE_OK;
}
