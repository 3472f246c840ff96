/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of LayerNormalization, RMSNormalization, BatchNormalization (with given statistics) and
 * GroupNormalization.
 *
 * dX and the gradients of scale and bias are nodes of their own, so that the latter can wait. The
 * optional outputs Mean and InvStdDev of a LayerNormalization are seldom read by anything: where a
 * gradient arrives there, it is added with standard operators.
 */
#include "loader/ops/gradients.h"

#include "loader/ops/rules.h"

static opipe_status two(opi_grad *g, const char *op, uint32_t a, uint32_t b, uint32_t *out,
                        opipe_error *err) {
  return opi_b_op2(g->builder, op, a, b, out, err);
}

/* `value` in the type and shape of input i, as its gradient. */
static opipe_status give_as(opi_grad *g, const opi_node *node, uint32_t i, uint32_t value,
                            opipe_error *err) {
  const opi_value like = *opi_b_value(g->builder, node->in[i]);
  OPI_TRY(opi_k_cast(g->builder, value, like.dtype, &value, err));
  OPI_TRY(opi_k_reshape(g->builder, value, like.shape, (uint32_t)like.rank, &value, err));
  return opi_grad_give(g, node, i, value, err);
}

/* fp64 for fp64, else fp32. */
static uint32_t work_type(opi_grad *g, uint32_t x) {
  return opi_b_value(g->builder, x)->dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
}

/* axis, epsilon and stash_type as the forward has them. */
static opi_attrs norm_attrs(const opi_node *node) {
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", opi_attr_int(node, "axis", -1));
  opi_attrs_float(&attrs, "epsilon", opi_attr_float(node, "epsilon", (double)1e-5f));
  opi_attrs_int(&attrs, "stash_type", opi_attr_int(node, "stash_type", OPIPE_FLOAT));
  return attrs;
}

/* -- LayerNormalization ------------------------------------------------------------------------ */

/* Mean over the normalised axes, kept as ones. */
static opipe_status row_mean(opi_grad *g, const opi_node *node, uint32_t x, uint32_t *out,
                             opipe_error *err) {
  const uint32_t rank = (uint32_t)opi_b_value(g->builder, x)->rank;
  const uint32_t axis = (uint32_t)opi_attr_int(node, "axis", 0);
  int64_t axes[OPIPE_MAX_RANK];
  for (uint32_t a = axis; a < rank; ++a)
    axes[a - axis] = a;
  return opi_k_reduce(g->builder, "ReduceMean", 0, x, axes, rank - axis, true, out, err);
}

/* Gradient of X through the outputs Mean and InvStdDev: (dMean - dInv inv^3 (x - mean)) / n. */
static opipe_status statistics_gradient(opi_grad *g, const opi_node *node, uint32_t *io_dx,
                                        opipe_error *err) {
  const uint32_t dmean = opi_grad_of(g, node, 1), dinv = opi_grad_of(g, node, 2);
  const opi_value like = *opi_b_value(g->builder, node->in[0]);
  uint32_t x, mean, n, sum = dmean, part;
  double count = 1;
  for (int32_t a = (int32_t)opi_attr_int(node, "axis", 0); a < like.rank; ++a)
    count *= (double)like.shape[a];
  if (dinv != OPIPE_NONE) {
    const uint32_t inv = node->out[2];
    OPI_TRY(opi_k_cast(g->builder, node->in[0], opi_b_value(g->builder, inv)->dtype, &x, err));
    OPI_TRY(row_mean(g, node, x, &mean, err));
    OPI_TRY(two(g, "Sub", mean, x, &x, err));
    OPI_TRY(two(g, "Mul", inv, inv, &part, err));
    OPI_TRY(two(g, "Mul", part, inv, &part, err));
    OPI_TRY(two(g, "Mul", part, dinv, &part, err));
    OPI_TRY(two(g, "Mul", part, x, &part, err));
    sum = part;
    if (dmean != OPIPE_NONE)
      OPI_TRY(two(g, "Add", part, dmean, &sum, err));
  }
  OPI_TRY(opi_grad_const(g, sum, count, &n, err));
  OPI_TRY(two(g, "Div", sum, n, &sum, err));
  OPI_TRY(opi_k_expand(g->builder, sum, like.shape, (uint32_t)like.rank, &sum, err));
  OPI_TRY(opi_k_cast(g->builder, sum, like.dtype, &sum, err));
  if (*io_dx != OPIPE_NONE)
    OPI_TRY(two(g, "Add", *io_dx, sum, &sum, err));
  *io_dx = sum;
  return OPIPE_OK;
}

opipe_status opi_gradient_layer_norm(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  const opi_attrs attrs = norm_attrs(node);
  if (opi_grad_wants(g, node, 0)) {
    const uint32_t in[3] = {dy, node->in[0], node->in[1]};
    uint32_t dx = OPIPE_NONE;
    if (dy != OPIPE_NONE)
      OPI_TRY(opi_grad_own(g, "LayerNormalizationGrad", in, 3, &attrs, &dx, err));
    if (opi_grad_of(g, node, 1) != OPIPE_NONE || opi_grad_of(g, node, 2) != OPIPE_NONE)
      OPI_TRY(statistics_gradient(g, node, &dx, err));
    OPI_TRY(opi_grad_give(g, node, 0, dx, err));
  }
  const uint32_t want =
      (opi_grad_wants(g, node, 1) ? 1u : 0u) | (opi_grad_wants(g, node, 2) ? 2u : 0u);
  if (want == 0 || dy == OPIPE_NONE)
    return OPIPE_OK;
  const uint32_t in[2] = {dy, node->in[0]};
  uint32_t out[2];
  OPI_TRY(opi_k_node(g->builder, "LayerNormalizationGradScale", "opipe", 1, in, 2, want, &attrs,
                     out, err));
  for (uint32_t i = 0; i < 2; ++i) {
    if ((want >> i & 1u) != 0)
      OPI_TRY(give_as(g, node, 1 + i, out[i], err));
  }
  return OPIPE_OK;
}

opipe_status opi_gradient_rms_norm(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t in[3] = {opi_grad_of(g, node, 0), node->in[0], node->in[1]};
  const opi_attrs attrs = norm_attrs(node);
  uint32_t out;
  if (opi_grad_wants(g, node, 0)) {
    OPI_TRY(opi_grad_own(g, "RMSNormalizationGrad", in, 3, &attrs, &out, err));
    OPI_TRY(opi_grad_give(g, node, 0, out, err));
  }
  if (!opi_grad_wants(g, node, 1))
    return OPIPE_OK;
  OPI_TRY(opi_grad_own(g, "RMSNormalizationGradScale", in, 2, &attrs, &out, err));
  return give_as(g, node, 1, out, err);
}

/* -- norms by channel -------------------------------------------------------------------------- */

/* Sum over all axes but the channels: [C]. */
static opipe_status sum_channels(opi_grad *g, uint32_t x, uint32_t *out, opipe_error *err) {
  const uint32_t rank = (uint32_t)opi_b_value(g->builder, x)->rank;
  int64_t axes[OPIPE_MAX_RANK] = {0};
  for (uint32_t a = 2; a < rank; ++a)
    axes[a - 1] = a;
  return opi_k_reduce(g->builder, "ReduceSum", 0, x, axes, rank - 1, false, out, err);
}

/* A vector by channel, [C] -> [C, 1, ...], in type `dtype`, to go with X of rank `rank`. */
static opipe_status by_channel(opi_grad *g, uint32_t v, uint32_t rank, uint32_t dtype,
                               uint32_t *out, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK] = {opi_b_value(g->builder, v)->shape[0]};
  for (uint32_t a = 1; a + 1 < rank; ++a)
    shape[a] = 1;
  OPI_TRY(opi_k_cast(g->builder, v, dtype, &v, err));
  return opi_k_reshape(g->builder, v, shape, rank - 1, out, err);
}

/* With f = 1 / sqrt(var + epsilon), per channel: dX = dY scale f, dscale = f sum(dY (x - mean)),
 * dB = sum(dY), dmean = -scale f sum(dY), dvar = -f^3 scale sum(dY (x - mean)) / 2. */
typedef struct batch_norm {
  uint32_t dy, f, scale, sum; /* sum: of dY, [C] */
  uint32_t rank, dtype;
} batch_norm;

/* sum(dY (x - mean)), [C]. */
static opipe_status centred_sum(opi_grad *g, const opi_node *node, const batch_norm *n,
                                uint32_t *out, opipe_error *err) {
  uint32_t x, mean;
  OPI_TRY(opi_k_cast(g->builder, node->in[0], n->dtype, &x, err));
  OPI_TRY(by_channel(g, node->in[3], n->rank, n->dtype, &mean, err));
  OPI_TRY(two(g, "Sub", x, mean, &x, err));
  OPI_TRY(two(g, "Mul", x, n->dy, &x, err));
  return sum_channels(g, x, out, err);
}

static opipe_status batch_scale_var(opi_grad *g, const opi_node *node, const batch_norm *n,
                                    opipe_error *err) {
  uint32_t s, d, c;
  OPI_TRY(centred_sum(g, node, n, &s, err));
  OPI_TRY(two(g, "Mul", s, n->f, &s, err));
  if (opi_grad_wants(g, node, 1))
    OPI_TRY(give_as(g, node, 1, s, err));
  if (!opi_grad_wants(g, node, 4))
    return OPIPE_OK;
  OPI_TRY(opi_grad_const(g, s, -0.5, &c, err));
  OPI_TRY(two(g, "Mul", s, n->f, &d, err));
  OPI_TRY(two(g, "Mul", d, n->f, &d, err));
  OPI_TRY(two(g, "Mul", d, n->scale, &d, err));
  OPI_TRY(two(g, "Mul", d, c, &d, err));
  return give_as(g, node, 4, d, err);
}

opipe_status opi_gradient_batch_norm(opi_grad *g, const opi_node *node, opipe_error *err) {
  batch_norm n = {.rank = (uint32_t)opi_b_value(g->builder, node->in[0])->rank,
                  .dtype = work_type(g, node->in[0])};
  uint32_t v, eps, d;
  OPI_TRY(opi_k_cast(g->builder, opi_grad_of(g, node, 0), n.dtype, &n.dy, err));
  OPI_TRY(opi_k_cast(g->builder, node->in[1], n.dtype, &n.scale, err));
  OPI_TRY(opi_k_cast(g->builder, node->in[4], n.dtype, &v, err));
  OPI_TRY(opi_grad_const(g, v, opi_attr_float(node, "epsilon", (double)1e-5f), &eps, err));
  OPI_TRY(two(g, "Add", v, eps, &v, err));
  OPI_TRY(opi_b_op1(g->builder, "Sqrt", v, &v, err));
  OPI_TRY(opi_b_op1(g->builder, "Reciprocal", v, &n.f, err));
  OPI_TRY(two(g, "Mul", n.scale, n.f, &v, err));
  if (opi_grad_wants(g, node, 0)) {
    OPI_TRY(by_channel(g, v, n.rank, n.dtype, &d, err));
    OPI_TRY(two(g, "Mul", n.dy, d, &d, err));
    OPI_TRY(give_as(g, node, 0, d, err));
  }
  if (opi_grad_wants(g, node, 2) || opi_grad_wants(g, node, 3)) {
    OPI_TRY(sum_channels(g, n.dy, &n.sum, err));
    if (opi_grad_wants(g, node, 2))
      OPI_TRY(give_as(g, node, 2, n.sum, err));
  }
  if (opi_grad_wants(g, node, 3)) {
    OPI_TRY(two(g, "Mul", n.sum, v, &d, err));
    OPI_TRY(opi_b_op1(g->builder, "Neg", d, &d, err));
    OPI_TRY(give_as(g, node, 3, d, err));
  }
  if (opi_grad_wants(g, node, 1) || opi_grad_wants(g, node, 4))
    OPI_TRY(batch_scale_var(g, node, &n, err));
  return OPIPE_OK;
}

/* -- GroupNormalization: LayerNormalization of [N, groups, rest], then scale by channel -------- */

typedef struct group_norm {
  int64_t flat[3];     /* [N, groups, rest] */
  const int64_t *wide; /* X's shape */
  uint32_t rank, ones;
  opi_attrs attrs;
} group_norm;

static opipe_status group_form(opi_grad *g, const opi_node *node, group_norm *n, opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const int64_t groups = opi_attr_int(node, "num_groups", 1);
  *n = (group_norm){
      .flat = {x.shape[0], groups, x.shape[1] / groups}, .wide = x.shape, .rank = (uint32_t)x.rank};
  for (int32_t a = 2; a < x.rank; ++a)
    n->flat[2] *= x.shape[a];
  opi_attrs_int(&n->attrs, "axis", 2);
  opi_attrs_float(&n->attrs, "epsilon", opi_attr_float(node, "epsilon", (double)1e-5f));
  opi_attrs_int(&n->attrs, "stash_type", opi_attr_int(node, "stash_type", OPIPE_FLOAT));
  OPI_TRY(opi_grad_const(g, node->in[0], 1, &n->ones, err));
  return opi_k_expand(g->builder, n->ones, &n->flat[2], 1, &n->ones, err);
}

/* dX: as of LayerNormalization, with dY scale for dY. */
static opipe_status group_input(opi_grad *g, const opi_node *node, const group_norm *n, uint32_t dy,
                                opipe_error *err) {
  uint32_t in[3] = {OPIPE_NONE, OPIPE_NONE, n->ones}, dx;
  const uint32_t dtype = opi_b_value(g->builder, dy)->dtype;
  OPI_TRY(by_channel(g, node->in[1], n->rank, dtype, &in[0], err));
  OPI_TRY(two(g, "Mul", dy, in[0], &in[0], err));
  OPI_TRY(opi_k_reshape(g->builder, in[0], n->flat, 3, &in[0], err));
  OPI_TRY(opi_k_reshape(g->builder, node->in[0], n->flat, 3, &in[1], err));
  OPI_TRY(opi_grad_own(g, "LayerNormalizationGrad", in, 3, &n->attrs, &dx, err));
  OPI_TRY(opi_k_reshape(g->builder, dx, n->wide, n->rank, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

static opipe_status group_scale(opi_grad *g, const opi_node *node, const group_norm *n, uint32_t dy,
                                opipe_error *err) {
  uint32_t in[2] = {OPIPE_NONE, n->ones}, h;
  OPI_TRY(opi_k_reshape(g->builder, node->in[0], n->flat, 3, &in[0], err));
  OPI_TRY(opi_k_one(g->builder, "LayerNormalization", 17, in, 2, &n->attrs, &h, err));
  OPI_TRY(opi_k_reshape(g->builder, h, n->wide, n->rank, &h, err));
  OPI_TRY(opi_k_cast(g->builder, h, opi_b_value(g->builder, dy)->dtype, &h, err));
  OPI_TRY(two(g, "Mul", h, dy, &h, err));
  OPI_TRY(sum_channels(g, h, &h, err));
  return give_as(g, node, 1, h, err);
}

opipe_status opi_gradient_group_norm(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  group_norm n;
  uint32_t wide, sum;
  OPI_TRY(group_form(g, node, &n, err));
  if (opi_grad_wants(g, node, 0))
    OPI_TRY(group_input(g, node, &n, dy, err));
  if (!opi_grad_wants(g, node, 1) && !opi_grad_wants(g, node, 2))
    return OPIPE_OK;
  OPI_TRY(opi_k_cast(g->builder, dy, work_type(g, dy), &wide, err));
  if (opi_grad_wants(g, node, 1))
    OPI_TRY(group_scale(g, node, &n, wide, err));
  if (!opi_grad_wants(g, node, 2))
    return OPIPE_OK;
  OPI_TRY(sum_channels(g, wide, &sum, err));
  return give_as(g, node, 2, sum, err);
}
