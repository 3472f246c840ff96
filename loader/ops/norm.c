/* SPDX-License-Identifier: Apache-2.0 */
/* Normalisations: LayerNormalization, RMSNormalization (and SimplifiedLayerNormalization),
 * BatchNormalization, GroupNormalization, InstanceNormalization, LpNormalization.
 *
 * Canonical: LayerNormalization-17, RMSNormalization-23, GroupNormalization-21
 * (InstanceNormalization is one group per channel) and BatchNormalization-15 in its inference form;
 * the training form and LpNormalization are written out in simpler operators. LayerNormalization
 * and SimplifiedLayerNormalization stand in the default domain at any opset, as fused files have
 * them.
 */
#include <math.h>
#include <string.h>
#include "loader/ops/gradients.h"

#include "loader/ops/kit.h"

/* The type that statistics are kept in: 1 or 11. */
static opipe_status stash_of(const opi_builder *b, const opi_node *node, int64_t *out_stash,
                             opipe_error *err) {
  const int64_t stash = opi_attr_int(node, "stash_type", 1);
  *out_stash = stash == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
  if (stash == OPIPE_FLOAT || stash == OPIPE_DOUBLE)
    return OPIPE_OK;
  if ((stash == 0 || stash == OPIPE_FLOAT16 || stash == OPIPE_BFLOAT16) && !opi_wants(node, 1) &&
      !opi_wants(node, 2))
    return OPIPE_OK; /* less precise statistics that nobody reads: kept in float32 */
  return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                       "stash_type is %lld, 1 (float) or 11 (double) is needed", (long long)stash);
}

/* Scale or bias: broadcasts to X one way. Over X.shape[axis:] alone it is expanded to that;
 * *out_outer: it also varies outside. */
static opipe_status fit_to(opi_builder *b, const opi_node *node, uint32_t i, const char *role,
                           uint32_t axis, uint32_t *out, bool *out_outer, opipe_error *err) {
  const opi_value *x = opi_input(b, node, 0);
  int64_t both[OPIPE_MAX_RANK];
  char has[128], want[128];
  uint32_t rank;
  *out = opi_node_in(node, i);
  if (*out == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_need(b, node, i, role, OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  const opi_value *s = opi_input(b, node, i);
  const int64_t *tail = x->shape + axis;
  const uint32_t n = (uint32_t)x->rank - axis;
  double elems = 1;
  bool inside = true;
  if (!opi_broadcast(s->shape, (uint32_t)s->rank, x->shape, (uint32_t)x->rank, both, &rank) ||
      rank != (uint32_t)x->rank || memcmp(both, x->shape, rank * sizeof(*both)) != 0) {
    opi_shape_text(has, sizeof(has), s->shape, (uint32_t)s->rank);
    opi_shape_text(want, sizeof(want), x->shape, (uint32_t)x->rank);
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (%s) has shape %s, which does not broadcast to %s", s->name,
                         role, has, want);
  }
  for (int32_t a = 0; a + (int32_t)n < s->rank; ++a)
    inside = inside && s->shape[a] == 1;
  for (uint32_t a = 0; a < n; ++a)
    elems *= (double)tail[a];
  *out_outer = *out_outer || !inside;
  if (!inside || opi_k_elems(s) == elems)
    return OPIPE_OK;
  if (s->rank > (int32_t)n)
    OPI_TRY(opi_k_reshape(b, *out, s->shape + (s->rank - (int32_t)n), n, out, err));
  return opi_k_expand(b, *out, tail, n, out, err);
}

/* Ones over the normalised axes: the scale is applied afterwards. */
static opipe_status ones(opi_builder *b, uint32_t of, uint32_t axis, uint32_t *out,
                         opipe_error *err) {
  const opi_value x = *opi_b_value(b, of);
  uint32_t one;
  OPI_TRY(opi_k_const(one = opi_b_const_scalar(b, x.dtype, 1), err));
  return opi_k_expand(b, one, x.shape + axis, (uint32_t)x.rank - axis, out, err);
}

static opipe_status norm_head(opi_builder *b, const opi_node *node, opi_attrs *attrs,
                              uint32_t *out_axis, opipe_error *err) {
  int64_t stash;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_axis(b, node, -1, out_axis, err));
  OPI_TRY(stash_of(b, node, &stash, err));
  opi_attrs_int(attrs, "axis", *out_axis);
  opi_attrs_float(attrs, "epsilon", opi_attr_float(node, "epsilon", (double)1e-5f));
  opi_attrs_int(attrs, "stash_type", stash);
  return OPIPE_OK;
}

/* Before the standard had LayerNormalization, ONNX Runtime's own could have X of one type, and
 * Scale, B and Y of another: all of `in` become double where one is, else float. */
static opipe_status widen(opi_builder *b, uint32_t in[3], opipe_error *err) {
  const uint32_t x = opi_b_value(b, in[0])->dtype, scale = opi_b_value(b, in[1])->dtype;
  const uint32_t wide = x == OPIPE_DOUBLE || scale == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
  for (uint32_t i = 0; i < 3 && x != scale; ++i) {
    if (in[i] != OPIPE_NONE)
      OPI_TRY(opi_k_cast(b, in[i], wide, &in[i], err));
  }
  return OPIPE_OK;
}

static opipe_status layer_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  uint32_t axis, in[3], out[3], want = 0, after[2] = {OPIPE_NONE, OPIPE_NONE};
  bool outer = false;
  OPI_TRY(norm_head(b, node, &attrs, &axis, err));
  OPI_TRY(opi_need(b, node, 1, "Scale", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  in[0] = node->in[0];
  OPI_TRY(fit_to(b, node, 1, "Scale", axis, &in[1], &outer, err));
  OPI_TRY(fit_to(b, node, 2, "B", axis, &in[2], &outer, err));
  const uint32_t type = opi_input(b, node, node->version < 17 ? 1 : 0)->dtype;
  if (node->version < 17)
    OPI_TRY(widen(b, in, err));
  if (outer) {
    memcpy(after, in + 1, sizeof(after));
    OPI_TRY(ones(b, in[0], axis, &in[1], err));
    in[2] = OPIPE_NONE;
  }
  for (uint32_t i = 0; i < 3; ++i)
    want |= opi_wants(node, i) ? 1u << i : 0u;
  OPI_TRY(opi_k_node(b, "LayerNormalization", NULL, 17, in, 3, want | 1u, &attrs, out, err));
  if (after[0] != OPIPE_NONE)
    OPI_TRY(opi_b_op2(b, "Mul", out[0], after[0], &out[0], err));
  if (after[1] != OPIPE_NONE)
    OPI_TRY(opi_b_op2(b, "Add", out[0], after[1], &out[0], err));
  OPI_TRY(opi_k_cast(b, out[0], type, &out[0], err));
  for (uint32_t i = 0; i < 3; ++i) {
    if (want >> i & 1u)
      OPI_TRY(opi_b_result(b, node, i, out[i], err));
  }
  return OPIPE_OK;
}

static opipe_status check_affine(opi_builder *b, const opi_node *node, uint32_t i, const char *role,
                                 uint32_t axis, opipe_error *err) {
  const opi_value *x = opi_input(b, node, 0);
  const opi_value *s = opi_input(b, node, i);
  double n = 1;
  if (s == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_need(b, node, i, role, OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  for (uint32_t a = axis; a < (uint32_t)x->rank; ++a)
    n *= (double)x->shape[a];
  if (opi_k_elems(s) != n) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (%s) has %.0f elements, %.0f are normalised", s->name, role,
                         opi_k_elems(s), n);
  }
  return OPIPE_OK;
}

static opipe_status layer_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t axis;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_axis(b, node, -1, &axis, err));
  OPI_TRY(opi_need(b, node, 1, "Scale", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(check_affine(b, node, 1, "Scale", axis, err));
  OPI_TRY(check_affine(b, node, 2, "B", axis, err));
  OPI_TRY(opi_need_same_type(b, node, 1, 2, err));
  const opi_value *x = opi_input(b, node, 0);
  const opi_value *s = opi_input(b, node, 1);
  const uint32_t stash =
      opi_attr_int(node, "stash_type", 1) == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
  if (s->dtype != x->dtype && s->dtype != OPIPE_FLOAT)
    OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
  for (uint32_t a = 0; a < (uint32_t)x->rank; ++a)
    shape[a] = a < axis ? x->shape[a] : 1;
  OPI_TRY(opi_b_set(b, node, 0, x->dtype, x->shape, (uint32_t)x->rank, err));
  OPI_TRY(opi_b_set(b, node, 1, stash, shape, (uint32_t)x->rank, err));
  return opi_b_set(b, node, 2, stash, shape, (uint32_t)x->rank, err);
}

static opipe_status rms_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t axis;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_axis(b, node, -1, &axis, err));
  OPI_TRY(opi_need(b, node, 1, "scale", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(check_affine(b, node, 1, "scale", axis, err));
  const opi_value *x = opi_input(b, node, 0);
  return opi_b_set(b, node, 0, opi_input(b, node, 1)->dtype, x->shape, (uint32_t)x->rank, err);
}

static opipe_status rms_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  uint32_t axis, in[2], y;
  bool outer = false;
  OPI_TRY(norm_head(b, node, &attrs, &axis, err));
  OPI_TRY(opi_need(b, node, 1, "scale", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  in[0] = node->in[0];
  OPI_TRY(fit_to(b, node, 1, "scale", axis, &in[1], &outer, err));
  const uint32_t scale = in[1];
  if (outer)
    OPI_TRY(ones(b, in[0], axis, &in[1], err));
  OPI_TRY(opi_k_one(b, "RMSNormalization", 23, in, 2, &attrs, &y, err));
  if (outer)
    OPI_TRY(opi_b_op2(b, "Mul", y, scale, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

/* 1 / sqrt(mean(x^2) + epsilon) over the axes from `axis` on. */
static opipe_status inverse_rms(opi_builder *b, uint32_t x, uint32_t axis, double epsilon,
                                uint32_t *out, opipe_error *err) {
  int64_t axes[OPIPE_MAX_RANK];
  const uint32_t rank = (uint32_t)opi_b_value(b, x)->rank;
  uint32_t v;
  for (uint32_t a = axis; a < rank; ++a)
    axes[a - axis] = a;
  OPI_TRY(opi_k_cast(b, x, OPIPE_FLOAT, &v, err));
  OPI_TRY(opi_b_op2(b, "Mul", v, v, &v, err));
  OPI_TRY(opi_k_reduce(b, "ReduceMean", 0, v, axes, rank - axis, true, &v, err));
  const uint32_t eps = opi_b_const_scalar(b, OPIPE_FLOAT, epsilon);
  OPI_TRY(opi_k_const(eps, err));
  OPI_TRY(opi_b_op2(b, "Add", v, eps, &v, err));
  OPI_TRY(opi_b_op1(b, "Sqrt", v, &v, err));
  return opi_b_op1(b, "Reciprocal", v, out, err);
}

/* ORT's name for RMSNormalization; a second output is the inverse root mean square. */
static opipe_status simplified_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t axis, inv;
  OPI_TRY(rms_lift(b, node, err));
  if (!opi_wants(node, 1))
    return OPIPE_OK;
  OPI_TRY(opi_need_axis(b, node, -1, &axis, err));
  OPI_TRY(
      inverse_rms(b, node->in[0], axis, opi_attr_float(node, "epsilon", (double)1e-5f), &inv, err));
  return opi_b_result(b, node, 1, inv, err);
}

static void norm_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, 8.0, out_work);
}

static opipe_status norm_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err) {
  return opi_carry_not(graph, node, (uint32_t)opi_attr_int(node, "axis", 0), false, in, out, err);
}

/* -- BatchNormalization ------------------------------------------------------------------------ */

static const char *const batch_roles[5] = {"X", "scale", "B", "mean", "var"};

static opipe_status batch_check(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 2, OPIPE_MAX_RANK, err));
  for (uint32_t i = 1; i < 5; ++i) {
    OPI_TRY(opi_need(b, node, i, batch_roles[i], OPI_T_FLOAT, 1, 1, err));
    OPI_TRY(opi_need_dim(b, node, i, 0, opi_input(b, node, 0)->shape[1], "the channels of X", err));
  }
  return OPIPE_OK;
}

static opipe_status batch_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(batch_check(b, node, err));
  return opi_infer_float(b, node, err);
}

/* old * momentum + now * (1 - momentum), `now` [1, C, 1...] flattened. */
static opipe_status running(opi_builder *b, const opi_node *node, uint32_t out_index, uint32_t old,
                            uint32_t now, double momentum, opipe_error *err) {
  const opi_value *o = opi_b_value(b, old);
  const uint32_t dtype = o->dtype;
  uint32_t x, y, keep, add;
  if (!opi_wants(node, out_index))
    return OPIPE_OK;
  OPI_TRY(opi_k_reshape(b, now, o->shape, 1, &now, err));
  OPI_TRY(opi_k_cast(b, now, dtype, &now, err));
  OPI_TRY(opi_k_const(keep = opi_b_const_scalar(b, dtype, momentum), err));
  OPI_TRY(opi_k_const(add = opi_b_const_scalar(b, dtype, 1.0 - momentum), err));
  OPI_TRY(opi_b_op2(b, "Mul", old, keep, &x, err));
  OPI_TRY(opi_b_op2(b, "Mul", now, add, &y, err));
  OPI_TRY(opi_b_op2(b, "Add", x, y, &x, err));
  return opi_b_result(b, node, out_index, x, err);
}

/* Training form of opset 14: statistics of this batch, which the inference form then applies. */
static opipe_status batch_training(opi_builder *b, const opi_node *node, uint32_t *in,
                                   opipe_error *err) {
  int64_t axes[OPIPE_MAX_RANK];
  const double momentum = opi_attr_float(node, "momentum", (double)0.9f);
  const uint32_t rank = (uint32_t)opi_b_value(b, in[0])->rank;
  uint32_t mean, var, centred, n = 0;
  for (uint32_t a = 0; a < rank; ++a) {
    if (a != 1)
      axes[n++] = a;
  }
  OPI_TRY(opi_k_reduce(b, "ReduceMean", 0, in[0], axes, n, true, &mean, err));
  OPI_TRY(opi_b_op2(b, "Sub", in[0], mean, &centred, err));
  OPI_TRY(opi_b_op2(b, "Mul", centred, centred, &centred, err));
  OPI_TRY(opi_k_reduce(b, "ReduceMean", 0, centred, axes, n, true, &var, err));
  OPI_TRY(running(b, node, 1, in[3], mean, momentum, err));
  OPI_TRY(running(b, node, 2, in[4], var, momentum, err));
  OPI_TRY(opi_k_reshape(b, mean, opi_b_value(b, in[3])->shape, 1, &in[3], err));
  return opi_k_reshape(b, var, opi_b_value(b, in[4])->shape, 1, &in[4], err);
}

static opipe_status batch_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  uint32_t in[5], y;
  bool training = node->version >= 14 && opi_attr_int(node, "training_mode", 0) != 0;
  OPI_TRY(batch_check(b, node, err));
  if (opi_attr_int(node, "spatial", 1) == 0) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "attribute spatial is 0, only 1 is supported");
  }
  for (uint32_t i = 1; i < node->n_out; ++i) {
    if (opi_wants(node, i) && !training) {
      return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                           "output %u belongs to the training form, which is supported from opset "
                           "14 with training_mode 1",
                           i);
    }
  }
  memcpy(in, node->in, sizeof(in));
  if (training)
    OPI_TRY(batch_training(b, node, in, err));
  opi_attrs_float(&attrs, "epsilon", opi_attr_float(node, "epsilon", (double)1e-5f));
  OPI_TRY(opi_k_one(b, "BatchNormalization", 15, in, 5, &attrs, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static opipe_status channel_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                  opi_carry *out, opipe_error *err) {
  return opi_carry_not(graph, node, 1, true, in, out, err);
}

/* -- GroupNormalization and InstanceNormalization ---------------------------------------------- */

/* Scale and bias of opset 18 are per group: each value is repeated for the group's channels. */
static opipe_status per_channel(opi_builder *b, uint32_t v, int64_t groups, int64_t channels,
                                uint32_t *out, opipe_error *err) {
  const int64_t column[2] = {groups, 1}, wide[2] = {groups, channels / groups};
  OPI_TRY(opi_k_reshape(b, v, column, 2, &v, err));
  OPI_TRY(opi_k_expand(b, v, wide, 2, &v, err));
  return opi_k_reshape(b, v, &channels, 1, out, err);
}

static opipe_status group_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  const bool instance = strcmp(node->op, "InstanceNormalization") == 0;
  opi_attrs attrs = {.n = 0};
  int64_t groups, stash = OPIPE_FLOAT;
  uint32_t in[3], y;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 3, OPIPE_MAX_RANK, err));
  const int64_t channels = opi_input(b, node, 0)->shape[1];
  groups = channels;
  if (!instance) {
    OPI_TRY(opi_need_int(b, node, "num_groups", 1, INT32_MAX, &groups, err));
    OPI_TRY(stash_of(b, node, &stash, err));
  }
  if (groups < 1 || channels % groups != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' has %lld channels, no multiple of %lld groups",
                         opi_input(b, node, 0)->name, (long long)channels, (long long)groups);
  }
  in[0] = node->in[0];
  for (uint32_t i = 1; i < 3; ++i) {
    const bool grouped = !instance && node->version < 21;
    OPI_TRY(opi_need(b, node, i, i == 1 ? "scale" : "bias", OPI_T_FLOAT, 1, 1, err));
    OPI_TRY(opi_need_dim(b, node, i, 0, grouped ? groups : channels,
                         grouped ? "the groups" : "the channels", err));
    in[i] = node->in[i];
    if (grouped)
      OPI_TRY(per_channel(b, in[i], groups, channels, &in[i], err));
  }
  opi_attrs_float(&attrs, "epsilon", opi_attr_float(node, "epsilon", (double)1e-5f));
  opi_attrs_int(&attrs, "num_groups", groups);
  opi_attrs_int(&attrs, "stash_type", stash);
  OPI_TRY(opi_k_one(b, "GroupNormalization", 21, in, 3, &attrs, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static opipe_status group_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t groups;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 3, OPIPE_MAX_RANK, err));
  const int64_t channels = opi_input(b, node, 0)->shape[1];
  OPI_TRY(opi_need_int(b, node, "num_groups", 1, INT32_MAX, &groups, err));
  if (channels % groups != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "%lld channels in %lld groups",
                         (long long)channels, (long long)groups);
  }
  for (uint32_t i = 1; i < 3; ++i) {
    OPI_TRY(opi_need(b, node, i, i == 1 ? "scale" : "bias", OPI_T_FLOAT, 1, 1, err));
    OPI_TRY(opi_need_dim(b, node, i, 0, channels, "the channels", err));
  }
  return opi_infer_float(b, node, err);
}

static opipe_status group_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                opi_carry *out, opipe_error *err) {
  return opi_carry_not(graph, node, 1, false, in, out, err);
}

/* -- LpNormalization --------------------------------------------------------------------------- */

static opipe_status lp_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  const int64_t p = opi_attr_int(node, "p", 2);
  int64_t axes[1];
  uint32_t axis, norm, y;
  OPI_TRY(opi_need(b, node, 0, "input", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_axis(b, node, -1, &axis, err));
  if (p != 1 && p != 2) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute p is %lld, it must be 1 or 2",
                         (long long)p);
  }
  axes[0] = axis;
  OPI_TRY(
      opi_k_reduce(b, p == 1 ? "ReduceL1" : "ReduceL2", 0, node->in[0], axes, 1, true, &norm, err));
  OPI_TRY(opi_b_op2(b, "Div", node->in[0], norm, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

#define NORM(name_, first_, max_in_, max_out_, lift_, infer_, carry_, gradient_, half_, meets_,    \
             kind_, attrs_)                                                                        \
  {                                                                                                \
    OPI_OP(name_, "", first_, OPI_NEWEST_ONNX, 1, max_in_, 1, max_out_), attrs_,                   \
        .lift = lift_, .infer = infer_, .work = norm_work, .carry = carry_, .gradient = gradient_, \
        OPI_COLUMNS(NONE, half_, meets_, ANY, NONE, kind_, NEVER)                                  \
  }

static const opi_op ops[] = {
    NORM("LayerNormalization", 1, 3, 3, layer_lift, layer_infer, norm_carry,
         opi_gradient_layer_norm, AS_IS, NORM, LAYER_NORM,
         OPI_ATTRS(17, OPI_A(INT, "stash_type", OPI_PRESET(1)),
                   OPI_A(FLOAT, "epsilon", OPI_PRESET(1e-05)), OPI_A(INT, "axis", OPI_PRESET(-1)))),
    NORM("RMSNormalization", 23, 2, 1, rms_lift, rms_infer, norm_carry, opi_gradient_rms_norm,
         SCALE, NORM, RMS_NORM,
         OPI_ATTRS(23, OPI_A(INT, "stash_type", OPI_PRESET(1)),
                   OPI_A(FLOAT, "epsilon", OPI_PRESET(1e-05)), OPI_A(INT, "axis", OPI_PRESET(-1)))),
    {OPI_OP("SimplifiedLayerNormalization", "", 1, OPI_NEWEST_ONNX, 1, 2, 1, 2),
     OPI_ATTRS(1, OPI_A(INT, "stash_type", OPI_PRESET(1)),
               OPI_A(FLOAT, "epsilon", OPI_PRESET(1e-05)), OPI_A(INT, "axis", OPI_PRESET(-1))),
     .lift = simplified_lift},
    NORM("BatchNormalization", 1, 5, 5, batch_lift, batch_infer, channel_carry,
         opi_gradient_batch_norm, COMMON, BATCH_NORM, PLAIN,
         OPI_ATTRS(15, OPI_A_CONSUMED, OPI_A(FLOAT, "momentum", OPI_PRESET(0.9)),
                   OPI_A(FLOAT, "epsilon", OPI_PRESET(1e-05)),
                   OPI_A(INT, "is_test", .until = 6, OPI_NO_EFFECT),
                   OPI_A(INT, "spatial", .until = 8, OPI_PRESET(1)),
                   OPI_A(INT, "training_mode", .since = 14, OPI_PRESET(0)),
                   OPI_A(INT, "cudnn_*", OPI_NO_EFFECT))),
    NORM("GroupNormalization", 18, 3, 1, group_lift, group_infer, group_carry,
         opi_gradient_group_norm, COMMON, GROUP_NORM, PLAIN,
         OPI_ATTRS(21, OPI_A(INT, "num_groups"), OPI_A(FLOAT, "epsilon", OPI_PRESET(1e-05)),
                   OPI_A(INT, "stash_type", .since = 21, OPI_PRESET(1)))),
    {OPI_OP("InstanceNormalization", "", 1, OPI_NEWEST_ONNX, 1, 3, 1, 1),
     OPI_ATTRS(22, OPI_A(FLOAT, "epsilon", OPI_PRESET(1e-05)), OPI_A_CONSUMED), .lift = group_lift},
    {OPI_OP("LpNormalization", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(22, OPI_A(INT, "p", OPI_PRESET(2)), OPI_A(INT, "axis", OPI_PRESET(-1))),
     .lift = lp_lift},
};

const opi_op_family opi_ops_norm = {ops, OPI_COUNT(ops)};
