/* SPDX-License-Identifier: Apache-2.0 */
/* The discrete Fourier transform.
 *
 * Canonical: DFT(X, dft_length, axis), both known int64 scalars, axis >= 0; attributes inverse and
 * onesided. X is [..., 1] (real) or [..., 2]. Y is [..., 2]; with inverse and onesided (the input
 * is half of a spectrum) [..., 1]. It is linear; each rule below is the transform's transposed.
 */
#include <math.h>
#include <string.h>

#include "loader/ops/common.h"
#include "loader/ops/rules.h"

enum { IN_X = 0, IN_LENGTH = 1, IN_AXIS = 2 };

typedef struct transform {
  uint32_t axis, parts; /* parts: 1 (real) or 2 */
  int64_t extent;       /* of X along the axis */
  int64_t length;
  bool inverse, onesided;
} transform;

static opipe_status known_scalar(opi_builder *b, const opi_node *node, uint32_t i, const char *role,
                                 int64_t *out, opipe_error *err) {
  const int64_t *ints;
  uint32_t n = 0;
  OPI_TRY(opi_known_ints(b, node, i, &ints, &n, err));
  if (n != 1) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input '%s' (%s) has %u numbers, not 1",
                         opi_input(b, node, i)->name, role, n);
  }
  *out = ints[0];
  return OPIPE_OK;
}

static opipe_status read_axis(opi_builder *b, const opi_node *node, const opi_value *x,
                              transform *t, opipe_error *err) {
  int64_t axis = node->version < 20 ? 1 : -2;
  if (node->version < 20)
    OPI_TRY(opi_int_attr(b, node, "axis", 1, &axis, err));
  else if (opi_node_in(node, IN_AXIS) != OPIPE_NONE)
    OPI_TRY(known_scalar(b, node, IN_AXIS, "axis", &axis, err));
  if (opi_axis(axis, (uint32_t)x->rank, &t->axis) && t->axis + 1 < (uint32_t)x->rank)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "axis %lld is no signal axis of input '%s' of rank %d", (long long)axis,
                       x->name, x->rank);
}

static opipe_status read_transform(opi_builder *b, const opi_node *node, transform *t,
                                   opipe_error *err) {
  OPI_TRY(opi_need(b, node, IN_X, "input", OPI_T_FLOAT, 2, OPIPE_MAX_RANK, err));
  const opi_value *x = opi_input(b, node, IN_X);
  const int64_t parts = x->shape[x->rank - 1];
  t->inverse = opi_attr_int(node, "inverse", 0) != 0;
  t->onesided = opi_attr_int(node, "onesided", 0) != 0;
  const bool halved = t->onesided && t->inverse;
  OPI_TRY(read_axis(b, node, x, t, err));
  if (parts < 1 || parts > 2 || (t->onesided && parts != (t->inverse ? 2 : 1))) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' has %lld numbers an element; %s", x->name, (long long)parts,
                         !t->onesided ? "1 (real) or 2 (complex) are needed"
                         : t->inverse ? "an inverse onesided transform needs 2"
                                      : "a onesided transform needs 1");
  }
  t->parts = (uint32_t)parts;
  t->extent = x->shape[t->axis];
  t->length = halved ? 2 * (t->extent - 1) : t->extent;
  if (opi_node_in(node, IN_LENGTH) != OPIPE_NONE)
    OPI_TRY(known_scalar(b, node, IN_LENGTH, "dft_length", &t->length, err));
  if (t->length >= 1 && t->length <= INT32_MAX / 4)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID, "transforms %lld elements of '%s'",
                       (long long)t->length, x->name);
}

/* The canonical node. */
static opipe_status emit(opi_builder *b, uint32_t x, int64_t length, uint32_t axis, bool inverse,
                         bool onesided, uint32_t *out, opipe_error *err) {
  const int64_t at = axis;
  const uint32_t in[3] = {x, opi_b_const(b, OPIPE_INT64, NULL, 0, &length),
                          opi_b_const(b, OPIPE_INT64, NULL, 0, &at)};
  opi_attrs attrs = {.n = 0};
  OPI_TRY(opi_k_const(in[1], err));
  OPI_TRY(opi_k_const(in[2], err));
  opi_attrs_int(&attrs, "inverse", inverse);
  opi_attrs_int(&attrs, "onesided", onesided);
  return opi_k_one(b, "DFT", 0, in, 3, &attrs, out, err);
}

static opipe_status lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  transform t;
  uint32_t y;
  OPI_TRY(read_transform(b, node, &t, err));
  OPI_TRY(emit(b, node->in[IN_X], t.length, t.axis, t.inverse, t.onesided, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static opipe_status infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK];
  transform t;
  OPI_TRY(read_transform(b, node, &t, err));
  const opi_value *x = opi_input(b, node, IN_X);
  memcpy(shape, x->shape, (size_t)x->rank * sizeof(*shape));
  shape[t.axis] = t.onesided && !t.inverse ? t.length / 2 + 1 : t.length;
  shape[x->rank - 1] = t.onesided && t.inverse ? 1 : 2;
  return opi_b_set(b, node, 0, x->dtype, shape, (uint32_t)x->rank, err);
}

static void work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const opi_value *x = &graph->values[node->in[IN_X]];
  const double length = (double)opi_index_at(&graph->values[node->in[IN_LENGTH]], 0);
  const int64_t axis = opi_index_at(&graph->values[node->in[IN_AXIS]], 0);
  const double of_a_line = (double)x->shape[axis] * (double)x->shape[x->rank - 1];
  const double lines = of_a_line > 0 ? opi_k_elems(x) / of_a_line : 0;
  out_work->flops = lines * 5.0 * length * log2(length + 1);
  out_work->bytes = opi_work_bytes(graph, node);
}

static opipe_status carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                          opi_carry *out, opipe_error *err) {
  const int64_t axis = opi_index_at(&graph->values[node->in[IN_AXIS]], 0);
  if (in[0].axis >= 0 &&
      (in[0].axis == axis || in[0].axis == graph->values[node->in[IN_X]].rank - 1))
    return opi_carry_refuse(graph, node, IN_X, "its elements are transformed together", err);
  return opi_carry_first(graph, node, in, out, err);
}

/* -- gradient ---------------------------------------------------------------------------------- */

/* `x` along `axis` cut to `extent`, or continued with zeros. */
static opipe_status fit(opi_builder *b, uint32_t axis, int64_t extent, uint32_t *io,
                        opipe_error *err) {
  const opi_value v = *opi_b_value(b, *io);
  int64_t pads[2 * OPIPE_MAX_RANK] = {0};
  if (v.shape[axis] >= extent)
    return opi_k_slice(b, *io, axis, 0, extent, io, err);
  pads[(uint32_t)v.rank + axis] = extent - v.shape[axis];
  return opi_k_pad(b, *io, pads, io, err);
}

/* Times [n] numbers along `axis`, of x's type. */
static opipe_status times(opi_builder *b, const double *numbers, int64_t n, uint32_t axis,
                          uint32_t *io, opipe_error *err) {
  const opi_value v = *opi_b_value(b, *io);
  int64_t shape[OPIPE_MAX_RANK] = {n};
  uint32_t in[2] = {*io, OPIPE_NONE};
  for (uint32_t d = 1; d < (uint32_t)v.rank - axis; ++d)
    shape[d] = 1;
  in[1] = opi_b_const(b, OPIPE_DOUBLE, shape, n == 1 ? 0 : (uint32_t)v.rank - axis, numbers);
  OPI_TRY(opi_k_const(in[1], err));
  OPI_TRY(opi_k_cast(b, in[1], v.dtype, &in[1], err));
  return opi_k_one(b, "Mul", 0, in, 2, NULL, io, err);
}

/* Half of a spectrum stands for the whole: each element but the first, and the middle one of an
 * even length, counts twice. */
static opipe_status of_halved(opi_builder *b, const transform *t, uint32_t *io, opipe_error *err) {
  const int64_t n = t->length / 2 + 1;
  double *numbers = OPI_ARENA_ARRAY(b->scratch, double, (size_t)n);
  if (numbers == NULL)
    return opi_fail_nomem(err, (uint64_t)n * sizeof(double), "factors");
  for (int64_t k = 0; k < n; ++k)
    numbers[k] = (k == 0 || 2 * k == t->length ? 1.0 : 2.0) / (double)t->length;
  OPI_TRY(emit(b, *io, t->length, t->axis, false, true, io, err));
  return times(b, numbers, n, t->axis, io, err);
}

static opipe_status gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  opi_builder *b = g->builder;
  uint32_t dx = opi_grad_of(g, node, 0);
  transform t;
  OPI_TRY(read_transform(b, node, &t, err));
  if (t.inverse && t.onesided) {
    OPI_TRY(of_halved(b, &t, &dx, err));
  } else {
    const double by = t.inverse ? 1.0 / (double)t.length : (double)t.length;
    OPI_TRY(emit(b, dx, t.length, t.axis, !t.inverse, false, &dx, err));
    OPI_TRY(times(b, &by, 1, t.axis, &dx, err));
  }
  OPI_TRY(fit(b, t.axis, t.extent, &dx, err));
  OPI_TRY(fit(b, (uint32_t)opi_b_value(b, dx)->rank - 1, t.parts, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

static const opi_op ops[] = {
    {OPI_OP("DFT", "", 17, OPI_NEWEST_ONNX, 1, 3, 1, 1),
     OPI_ATTRS(20, OPI_A(INT, "inverse", OPI_PRESET(0)),
               OPI_A(INT, "axis", .until = 19, OPI_PRESET(1)),
               OPI_A(INT, "onesided", OPI_PRESET(0))),
     .lift = lift, .infer = infer, .work = work, .carry = carry, .gradient = gradient,
     .stops_gradient = 6, OPI_COLUMNS(NONE, WIDE, OTHER, ANY, NONE, PLAIN, NEVER)},
};

extern const opi_op_family opi_ops_dft;
const opi_op_family opi_ops_dft = {ops, OPI_COUNT(ops)};
