/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of what moves elements without arithmetic: each element's gradient goes back where it
 * came from, what was copied is summed, what was not taken gets 0.
 */
#include "loader/ops/common.h"
#include "loader/ops/gradients.h"
#include "loader/ops/slice.h"

opipe_status opi_gradient_identity(opi_grad *g, const opi_node *node, opipe_error *err) {
  return opi_grad_give(g, node, 0, opi_grad_of(g, node, 0), err);
}

opipe_status opi_gradient_reshape(opi_grad *g, const opi_node *node, opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  uint32_t dx;
  OPI_TRY(opi_k_reshape(g->builder, opi_grad_of(g, node, 0), x.shape, (uint32_t)x.rank, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

opipe_status opi_gradient_expand(opi_grad *g, const opi_node *node, opipe_error *err) {
  return opi_grad_give_reduced(g, node, 0, opi_grad_of(g, node, 0), err);
}

opipe_status opi_gradient_transpose(opi_grad *g, const opi_node *node, opipe_error *err) {
  int64_t back[OPIPE_MAX_RANK];
  uint32_t n = 0, dx;
  const int64_t *perm = opi_attr_ints(node, "perm", &n);
  for (uint32_t d = 0; d < n; ++d)
    back[perm[d]] = d;
  OPI_TRY(opi_k_transpose(g->builder, opi_grad_of(g, node, 0), back, n, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

/* Per repeated axis: [outer, repeats, inner] summed over the middle. */
opipe_status opi_gradient_tile(opi_grad *g, const opi_node *node, opipe_error *err) {
  opi_builder *b = g->builder;
  const opi_value x = *opi_b_value(b, node->in[0]), y = *opi_b_value(b, node->out[0]);
  const int64_t middle = 1;
  uint64_t outer = 1, inner = 0;
  uint32_t dx = opi_grad_of(g, node, 0);
  for (int32_t d = 0; d < x.rank; ++d) {
    const int64_t repeats = x.shape[d] != 0 ? y.shape[d] / x.shape[d] : 1;
    if (repeats != 1) {
      /* Axes before d have x's extents by now, those after d still y's. */
      if (!opi_shape_elems(y.shape + d + 1, (uint32_t)(x.rank - d - 1), &inner))
        return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "is too large");
      const int64_t shape[3] = {(int64_t)outer, repeats, x.shape[d] * (int64_t)inner};
      OPI_TRY(opi_k_reshape(b, dx, shape, 3, &dx, err));
      OPI_TRY(opi_k_reduce(b, "ReduceSum", 0, dx, &middle, 1, true, &dx, err));
    }
    outer *= (uint64_t)x.shape[d];
  }
  OPI_TRY(opi_k_reshape(b, dx, x.shape, (uint32_t)x.rank, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

opipe_status opi_gradient_concat(opi_grad *g, const opi_node *node, opipe_error *err) {
  const int64_t axis = opi_attr_int(node, "axis", 0);
  const uint32_t dy = opi_grad_of(g, node, 0);
  int64_t at = 0;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const int64_t end = at + opi_b_value(g->builder, node->in[i])->shape[axis];
    uint32_t dx;
    if (opi_grad_wants(g, node, i)) {
      OPI_TRY(opi_k_slice(g->builder, dy, axis, at, end, &dx, err));
      OPI_TRY(opi_grad_give(g, node, i, dx, err));
    }
    at = end;
  }
  return OPIPE_OK;
}

/* Zeros of a shape, of `like`'s type. */
static opipe_status zeros(opi_grad *g, uint32_t like, const int64_t *shape, uint32_t rank,
                          uint32_t *out, opipe_error *err) {
  uint32_t in[2];
  OPI_TRY(opi_grad_const(g, like, 0, &in[0], err));
  in[1] = opi_b_const_ints(g->builder, shape, rank);
  OPI_TRY(opi_k_const(in[1], err));
  const opi_emit emit = {.op = "Expand", .in = in, .n_in = 2, .n_out = 1};
  return opi_b_emit_kept(g->builder, &emit, out, err);
}

/* Outputs that get no gradient (or are absent) count as 0. */
opipe_status opi_gradient_split(opi_grad *g, const opi_node *node, opipe_error *err) {
  opi_builder *b = g->builder;
  const opi_value x = *opi_b_value(b, node->in[0]);
  const int64_t axis = opi_attr_int(node, "axis", 0);
  int64_t shape[OPIPE_MAX_RANK];
  const int64_t *split;
  uint32_t n, dx, *parts = OPI_ARENA_ARRAY(b->scratch, uint32_t, node->n_out), n_parts = 0;
  if (parts == NULL)
    return opi_fail_nomem(err, node->n_out * sizeof(*parts), "parts of a gradient");
  OPI_TRY(opi_known_ints(b, node, 1, &split, &n, err));
  memcpy(shape, x.shape, (size_t)x.rank * sizeof(*shape));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (split[o] == 0)
      continue;
    shape[axis] = split[o];
    parts[n_parts] = opi_grad_of(g, node, o);
    if (parts[n_parts] == OPIPE_NONE)
      OPI_TRY(zeros(g, node->in[0], shape, (uint32_t)x.rank, &parts[n_parts], err));
    ++n_parts;
  }
  if (n_parts == 0)
    return OPIPE_OK;
  dx = parts[0];
  if (n_parts > 1)
    OPI_TRY(opi_k_concat(b, parts, n_parts, axis, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

/* The element that place `i` of a padded axis repeats. */
static int64_t source_of(const char *mode, int64_t i, int64_t before, int64_t extent) {
  const int64_t at = i - before;
  if (strcmp(mode, "edge") == 0)
    return at < 0 ? 0 : at >= extent ? extent - 1 : at;
  if (strcmp(mode, "wrap") == 0)
    return (at % extent + extent) % extent;
  if (at < 0)
    return -at;
  return at >= extent ? 2 * extent - 2 - at : at;
}

/* One axis of the modes that repeat elements: additions in rising order of place. */
static opipe_status fold_axis(opi_grad *g, const opi_node *node, int64_t axis, int64_t before,
                              int64_t extent, uint32_t *io_dx, opipe_error *err) {
  opi_builder *b = g->builder;
  const char *mode = opi_attr_string(node, "mode", "constant");
  const opi_value d = *opi_b_value(b, *io_dx);
  const int64_t n = d.shape[axis];
  opi_attrs attrs = {.n = 0};
  int64_t shape[OPIPE_MAX_RANK];
  int64_t *places = OPI_ARENA_ARRAY(b->scratch, int64_t, (size_t)n);
  if (places == NULL)
    return opi_fail_nomem(err, (uint64_t)n * 8, "places of a padded axis");
  for (int64_t i = 0; i < n; ++i)
    places[i] = source_of(mode, i, before, extent);
  memcpy(shape, d.shape, (size_t)d.rank * sizeof(*shape));
  shape[axis] = extent;
  opi_attrs_int(&attrs, "axis", axis);
  opi_attrs_ints(&attrs, "shape", shape, (uint32_t)d.rank);
  const uint32_t in[2] = {*io_dx, opi_b_const_ints(b, places, (uint32_t)n)};
  OPI_TRY(opi_k_const(in[1], err));
  return opi_grad_own(g, "GatherGrad", in, 2, &attrs, io_dx, err);
}

/* The fill: the sum of dY where it stands. */
static opipe_status give_fill(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  uint32_t in[3] = {OPIPE_NONE, node->in[1], OPIPE_NONE}, filled, d;
  int64_t axes[OPIPE_MAX_RANK];
  opi_attrs attrs = {.n = 0};
  const uint32_t rank = (uint32_t)opi_b_value(g->builder, dy)->rank;
  for (uint32_t a = 0; a < rank; ++a)
    axes[a] = a;
  OPI_TRY(opi_grad_zeros(g, node->in[0], &in[0], err));
  OPI_TRY(opi_grad_const(g, dy, 1, &in[2], err));
  opi_attrs_string(&attrs, "mode", "constant");
  OPI_TRY(opi_k_one(g->builder, "Pad", 0, in, 3, &attrs, &filled, err));
  OPI_TRY(opi_b_op2(g->builder, "Mul", filled, dy, &d, err));
  OPI_TRY(opi_k_reduce(g->builder, "ReduceSum", 0, d, axes, rank, false, &d, err));
  return opi_grad_give(g, node, 2, d, err);
}

opipe_status opi_gradient_pad(opi_grad *g, const opi_node *node, opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const uint32_t rank = (uint32_t)x.rank;
  int64_t back[2 * OPIPE_MAX_RANK];
  const int64_t *pads;
  uint32_t n, dx = opi_grad_of(g, node, 0);
  OPI_TRY(opi_known_ints(g->builder, node, 1, &pads, &n, err));
  if (strcmp(opi_attr_string(node, "mode", "constant"), "constant") == 0) {
    for (uint32_t i = 0; i < 2 * rank; ++i)
      back[i] = -pads[i];
    if (opi_grad_wants(g, node, 2))
      OPI_TRY(give_fill(g, node, err));
    OPI_TRY(opi_k_pad(g->builder, dx, back, &dx, err));
    return opi_grad_give(g, node, 0, dx, err);
  }
  for (uint32_t d = rank; d-- > 0;) {
    if (pads[d] != 0 || pads[rank + d] != 0)
      OPI_TRY(fold_axis(g, node, d, pads[d], x.shape[d], &dx, err));
  }
  return opi_grad_give(g, node, 0, dx, err);
}

opipe_status opi_gradient_trilu(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t in[2] = {opi_grad_of(g, node, 0), node->in[1]};
  opi_attrs attrs = {.n = 0};
  uint32_t dx;
  opi_attrs_int(&attrs, "upper", opi_attr_int(node, "upper", 1));
  OPI_TRY(opi_k_one(g->builder, "Trilu", 0, in, 2, &attrs, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

/* -- Slice -- */

static opipe_status turn(opi_grad *g, uint32_t x, int64_t axis, uint32_t *out, opipe_error *err) {
  opi_builder *b = g->builder;
  const int64_t start = opi_b_value(b, x)->shape[axis] - 1, end = INT64_MIN, step = -1;
  const uint32_t in[5] = {x, opi_b_const_ints(b, &start, 1), opi_b_const_ints(b, &end, 1),
                          opi_b_const_ints(b, &axis, 1), opi_b_const_ints(b, &step, 1)};
  for (uint32_t i = 1; i < 5; ++i)
    OPI_TRY(opi_k_const(in[i], err));
  return opi_k_one(b, "Slice", 0, in, 5, NULL, out, err);
}

/* Each element along the axis followed by stride - 1 zeros. */
static opipe_status spread(opi_grad *g, uint32_t x, int64_t axis, int64_t stride, uint32_t *out,
                           opipe_error *err) {
  const opi_value v = *opi_b_value(g->builder, x);
  uint64_t before = 1, after = 1;
  int64_t shape[OPIPE_MAX_RANK];
  const int64_t pads[6] = {0, 0, 0, 0, stride - 1, 0};
  if (!opi_shape_elems(v.shape, (uint32_t)axis + 1, &before) ||
      !opi_shape_elems(v.shape + axis + 1, (uint32_t)(v.rank - axis - 1), &after))
    return opi_fail(err, OPIPE_E_LIMIT, "a gradient is too large");
  const int64_t flat[3] = {(int64_t)before, 1, (int64_t)after};
  OPI_TRY(opi_k_reshape(g->builder, x, flat, 3, &x, err));
  OPI_TRY(opi_k_pad(g->builder, x, pads, &x, err));
  memcpy(shape, v.shape, (size_t)v.rank * sizeof(*shape));
  shape[axis] *= stride;
  return opi_k_reshape(g->builder, x, shape, (uint32_t)v.rank, out, err);
}

opipe_status opi_gradient_slice(opi_grad *g, const opi_node *node, opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const uint32_t rank = (uint32_t)x.rank;
  opi_slice_axis axes[OPIPE_MAX_RANK];
  int64_t pads[2 * OPIPE_MAX_RANK] = {0};
  uint32_t n = 0, dx = opi_grad_of(g, node, 0);
  OPI_TRY(opi_slice_read(g->builder, node, opi_b_value(g->builder, node->in[0]), axes, &n, err));
  for (uint32_t i = 0; i < n; ++i) {
    const opi_slice_axis *s = &axes[i];
    int64_t low = s->start, stride = s->step;
    if (opi_b_choose(g->builder, s->count == 0) != 0 && s->count == 0)
      return OPIPE_OK;
    if (stride < 0) {
      low = s->start + (s->count - 1) * stride;
      stride = -stride;
      OPI_TRY(turn(g, dx, s->axis, &dx, err));
    }
    if (s->count == 1)
      stride = 1;
    if (stride != 1)
      OPI_TRY(spread(g, dx, s->axis, stride, &dx, err));
    pads[s->axis] = low;
    pads[rank + s->axis] = x.shape[s->axis] - low - s->count * stride;
  }
  OPI_TRY(opi_k_pad(g->builder, dx, pads, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}
