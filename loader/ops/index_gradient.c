/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of reading and writing by index: Gather GatherElements GatherND ScatterElements
 * ScatterND TensorScatter OneHot TopK.
 *
 * An element read several times gets the sum of the gradients, added in rising order of index
 * position. An element written several times (reduction none) keeps the last update only, so only
 * that one gets a gradient: positions are scattered the same way and compared, unless the indices
 * are known to differ.
 */
#include "loader/ops/gradients.h"

#include <stdlib.h>

#include "loader/ops/common.h"
#include "loader/ops/rules.h"

/* -- gather ------------------------------------------------------------------------------------ */

opipe_status opi_gradient_gather(opi_grad *g, const opi_node *node, opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const uint32_t in[2] = {opi_grad_of(g, node, 0), node->in[1]};
  opi_attrs attrs = {.n = 0};
  uint32_t dx;
  opi_attrs_int(&attrs, "axis", opi_attr_int(node, "axis", 0));
  opi_attrs_ints(&attrs, "shape", x.shape, (uint32_t)x.rank);
  OPI_TRY(opi_grad_own(g, "GatherGrad", in, 2, &attrs, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

/* data with `updates` written at (or added at) indices along the node's axis. */
static opipe_status scatter_elements(opi_grad *g, int64_t axis, const char *reduction,
                                     uint32_t data, uint32_t indices, uint32_t updates,
                                     uint32_t *out, opipe_error *err) {
  const uint32_t in[3] = {data, indices, updates};
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", axis);
  opi_attrs_string(&attrs, "reduction", reduction);
  return opi_k_one(g->builder, "ScatterElements", 0, in, 3, &attrs, out, err);
}

static opipe_status scatter_nd(opi_grad *g, const char *reduction, uint32_t data, uint32_t indices,
                               uint32_t updates, uint32_t *out, opipe_error *err) {
  const uint32_t in[3] = {data, indices, updates};
  opi_attrs attrs = {.n = 0};
  opi_attrs_string(&attrs, "reduction", reduction);
  return opi_k_one(g->builder, "ScatterND", 0, in, 3, &attrs, out, err);
}

static opipe_status gather_elements(opi_grad *g, int64_t axis, uint32_t data, uint32_t indices,
                                    uint32_t *out, opipe_error *err) {
  const uint32_t in[2] = {data, indices};
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", axis);
  return opi_k_one(g->builder, "GatherElements", 0, in, 2, &attrs, out, err);
}

static opipe_status gather_nd(opi_grad *g, uint32_t data, uint32_t indices, uint32_t *out,
                              opipe_error *err) {
  const uint32_t in[2] = {data, indices};
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "batch_dims", 0);
  return opi_k_one(g->builder, "GatherND", 0, in, 2, &attrs, out, err);
}

opipe_status opi_gradient_gather_elements(opi_grad *g, const opi_node *node, opipe_error *err) {
  uint32_t dx;
  OPI_TRY(opi_grad_zeros(g, node->in[0], &dx, err));
  OPI_TRY(scatter_elements(g, opi_attr_int(node, "axis", 0), "add", dx, node->in[1],
                           opi_grad_of(g, node, 0), &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

/* Coordinates along the leading `batch` dimensions, before the components of every index. */
static opipe_status with_batch(opi_grad *g, uint32_t indices, int64_t batch, uint32_t *out,
                               opipe_error *err) {
  const opi_value at = *opi_b_value(g->builder, indices);
  int64_t shape[OPIPE_MAX_RANK];
  uint64_t rows = 0, n = 0;
  memcpy(shape, at.shape, (size_t)at.rank * sizeof(*shape));
  shape[at.rank - 1] = batch;
  if (!opi_shape_elems(shape, (uint32_t)at.rank, &n) ||
      !opi_shape_elems(shape, (uint32_t)at.rank - 1, &rows))
    return opi_node_fail(g->builder, g->builder->origin, err, OPIPE_E_LIMIT, "too many indices");
  int64_t *list = OPI_ARENA_ARRAY(g->builder->scratch, int64_t, (size_t)n);
  if (list == NULL)
    return opi_fail_nomem(err, n * 8, "batch coordinates");
  for (uint64_t r = 0; r < rows; ++r) {
    uint64_t rest = r;
    for (int32_t d = at.rank - 1; d-- > 0;) {
      if (d < batch)
        list[r * (uint64_t)batch + (uint64_t)d] = (int64_t)(rest % (uint64_t)shape[d]);
      rest /= (uint64_t)shape[d];
    }
  }
  uint32_t in[2] = {opi_b_const(g->builder, OPIPE_INT64, shape, (uint32_t)at.rank, list), indices};
  OPI_TRY(opi_k_const(in[0], err));
  OPI_TRY(opi_k_cast(g->builder, in[0], at.dtype, &in[0], err));
  return opi_k_concat(g->builder, in, 2, at.rank - 1, out, err);
}

opipe_status opi_gradient_gather_nd(opi_grad *g, const opi_node *node, opipe_error *err) {
  const int64_t batch = opi_attr_int(node, "batch_dims", 0);
  uint32_t indices = node->in[1], dx;
  if (batch > 0)
    OPI_TRY(with_batch(g, indices, batch, &indices, err));
  OPI_TRY(opi_grad_zeros(g, node->in[0], &dx, err));
  OPI_TRY(scatter_nd(g, "add", dx, indices, opi_grad_of(g, node, 0), &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

/* -- scatter ----------------------------------------------------------------------------------- */

static opipe_status check_reduction(opi_grad *g, const opi_node *node, bool *out_adds,
                                    opipe_error *err) {
  const char *reduction = opi_attr_string(node, "reduction", "none");
  *out_adds = strcmp(reduction, "add") == 0;
  if (*out_adds || strcmp(reduction, "none") == 0)
    return OPIPE_OK;
  return opi_node_fail(g->builder, node, err, OPIPE_E_UNSUPPORTED,
                       "reduction '%s' has no gradient, only none and add", reduction);
}

/* 0, 1, 2, ... in a shape, int64. */
static opipe_status positions(opi_grad *g, const int64_t *shape, uint32_t rank, uint32_t *out,
                              opipe_error *err) {
  uint64_t n = 0;
  int64_t *list = NULL;
  if (opi_shape_elems(shape, rank, &n))
    list = OPI_ARENA_ARRAY(g->builder->scratch, int64_t, (size_t)n);
  if (list == NULL)
    return opi_fail_nomem(err, n * 8, "positions of updates");
  for (uint64_t i = 0; i < n; ++i)
    list[i] = (int64_t)i;
  *out = opi_b_const(g->builder, OPIPE_INT64, shape, rank, list);
  return opi_k_const(*out, err);
}

static opipe_status int_zeros(opi_grad *g, const int64_t *shape, uint32_t rank, uint32_t *out,
                              opipe_error *err) {
  OPI_TRY(opi_k_const(*out = opi_b_const_scalar(g->builder, OPIPE_INT64, 0), err));
  return opi_k_expand(g->builder, *out, shape, rank, out, err);
}

static int by_number(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* Marks, one number per place that is written, differ? */
static bool all_differ(int64_t *marks, uint64_t n) {
  qsort(marks, (size_t)n, sizeof(*marks), by_number);
  for (uint64_t i = 1; i < n; ++i) {
    if (marks[i] == marks[i - 1])
      return false;
  }
  return true;
}

/* Known indices that write no element twice. */
static bool elements_differ(opi_grad *g, const opi_value *x, const opi_value *at, int64_t axis) {
  const uint64_t n = opi_elems(at);
  int64_t *marks =
      at->data != NULL ? OPI_ARENA_ARRAY(g->builder->scratch, int64_t, (size_t)n) : NULL;
  for (uint64_t i = 0; marks != NULL && i < n; ++i) {
    uint64_t rest = i, step = 1;
    const int64_t given = opi_index_at(at, i);
    int64_t place = 0;
    for (int32_t d = at->rank; d-- > 0;) {
      int64_t c = (int64_t)(rest % (uint64_t)at->shape[d]);
      rest /= (uint64_t)at->shape[d];
      if (d == axis)
        c = given < 0 ? given + x->shape[d] : given;
      place += c * (int64_t)step;
      step *= (uint64_t)x->shape[d];
    }
    marks[i] = place;
  }
  return marks != NULL && all_differ(marks, n);
}

static bool rows_differ(opi_grad *g, const opi_value *x, const opi_value *at) {
  const uint64_t n = (uint64_t)at->shape[at->rank - 1];
  const uint64_t rows = n == 0 ? 0 : opi_elems(at) / n;
  int64_t *marks = at->data != NULL && n != 0
                       ? OPI_ARENA_ARRAY(g->builder->scratch, int64_t, (size_t)rows)
                       : NULL;
  for (uint64_t r = 0; marks != NULL && r < rows; ++r) {
    marks[r] = 0;
    for (uint64_t k = 0; k < n; ++k) {
      const int64_t given = opi_index_at(at, r * n + k);
      marks[r] = marks[r] * x->shape[k] + (given < 0 ? given + x->shape[k] : given);
    }
  }
  return marks != NULL && all_differ(marks, rows);
}

/* d where `kept`, else 0. */
static opipe_status only_kept(opi_grad *g, uint32_t kept, uint32_t d, uint32_t *out,
                              opipe_error *err) {
  uint32_t zero;
  OPI_TRY(opi_grad_const(g, d, 0, &zero, err));
  return opi_k_where(g->builder, kept, d, zero, out, err);
}

/* The updates that are still there: positions scattered and read back are their own. */
static opipe_status elements_kept(opi_grad *g, const opi_node *node, uint32_t *out,
                                  opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const opi_value at = *opi_b_value(g->builder, node->in[1]);
  const int64_t axis = opi_attr_int(node, "axis", 0);
  uint32_t own, there;
  OPI_TRY(positions(g, at.shape, (uint32_t)at.rank, &own, err));
  OPI_TRY(int_zeros(g, x.shape, (uint32_t)x.rank, &there, err));
  OPI_TRY(scatter_elements(g, axis, "none", there, node->in[1], own, &there, err));
  OPI_TRY(gather_elements(g, axis, there, node->in[1], &there, err));
  return opi_b_op2(g->builder, "Equal", there, own, out, err);
}

opipe_status opi_gradient_scatter_elements(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const opi_value at = *opi_b_value(g->builder, node->in[1]);
  const int64_t axis = opi_attr_int(node, "axis", 0);
  bool adds;
  uint32_t d = dy, kept;
  OPI_TRY(check_reduction(g, node, &adds, err));
  if (opi_grad_wants(g, node, 0)) {
    if (!adds) {
      OPI_TRY(opi_grad_zeros(g, node->in[2], &d, err));
      OPI_TRY(scatter_elements(g, axis, "none", dy, node->in[1], d, &d, err));
    }
    OPI_TRY(opi_grad_give(g, node, 0, d, err));
  }
  if (!opi_grad_wants(g, node, 2))
    return OPIPE_OK;
  OPI_TRY(gather_elements(g, axis, dy, node->in[1], &d, err));
  if (!adds && !elements_differ(g, &x, &at, axis)) {
    OPI_TRY(elements_kept(g, node, &kept, err));
    OPI_TRY(only_kept(g, kept, d, &d, err));
  }
  return opi_grad_give(g, node, 2, d, err);
}

/* One flag per index, with dimensions of 1 for what a row of updates has. */
static opipe_status rows_kept(opi_grad *g, const opi_node *node, uint32_t *out, opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const opi_value at = *opi_b_value(g->builder, node->in[1]);
  const int32_t up_rank = opi_b_value(g->builder, node->in[2])->rank;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t own, there;
  OPI_TRY(positions(g, at.shape, (uint32_t)at.rank - 1, &own, err));
  OPI_TRY(int_zeros(g, x.shape, (uint32_t)at.shape[at.rank - 1], &there, err));
  OPI_TRY(scatter_nd(g, "none", there, node->in[1], own, &there, err));
  OPI_TRY(gather_nd(g, there, node->in[1], &there, err));
  OPI_TRY(opi_b_op2(g->builder, "Equal", there, own, out, err));
  for (int32_t d = 0; d < up_rank; ++d)
    shape[d] = d + 1 < at.rank ? at.shape[d] : 1;
  return opi_k_reshape(g->builder, *out, shape, (uint32_t)up_rank, out, err);
}

opipe_status opi_gradient_scatter_nd(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const opi_value at = *opi_b_value(g->builder, node->in[1]);
  bool adds;
  uint32_t d = dy, kept;
  OPI_TRY(check_reduction(g, node, &adds, err));
  if (opi_grad_wants(g, node, 0)) {
    if (!adds) {
      OPI_TRY(opi_grad_zeros(g, node->in[2], &d, err));
      OPI_TRY(scatter_nd(g, "none", dy, node->in[1], d, &d, err));
    }
    OPI_TRY(opi_grad_give(g, node, 0, d, err));
  }
  if (!opi_grad_wants(g, node, 2))
    return OPIPE_OK;
  OPI_TRY(gather_nd(g, dy, node->in[1], &d, err));
  if (!adds && !rows_differ(g, &x, &at)) {
    OPI_TRY(rows_kept(g, node, &kept, err));
    OPI_TRY(only_kept(g, kept, d, &d, err));
  }
  return opi_grad_give(g, node, 2, d, err);
}

/* Where each element of the update is written along the axis: of the update's shape. */
static opipe_status places(opi_grad *g, const opi_node *node, uint32_t *out, opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const opi_value up = *opi_b_value(g->builder, node->in[1]);
  const int64_t axis = opi_attr_int(node, "axis", 0);
  int64_t rows[OPIPE_MAX_RANK], steps[OPIPE_MAX_RANK];
  uint32_t first, step, extent;
  for (int32_t d = 0; d < up.rank; ++d) {
    rows[d] = d == 0 ? up.shape[0] : 1;
    steps[d] = d == axis ? up.shape[d] : 1;
  }
  OPI_TRY(opi_k_reshape(g->builder, node->in[2], rows, (uint32_t)up.rank, &first, err));
  OPI_TRY(opi_k_cast(g->builder, first, OPIPE_INT64, &first, err));
  OPI_TRY(positions(g, steps, (uint32_t)up.rank, &step, err));
  OPI_TRY(opi_b_op2(g->builder, "Add", first, step, out, err));
  if (strcmp(opi_attr_string(node, "mode", "linear"), "circular") == 0) {
    opi_attrs attrs = {.n = 0};
    const double n = (double)x.shape[axis];
    OPI_TRY(opi_k_const(extent = opi_b_const_scalar(g->builder, OPIPE_INT64, n), err));
    const uint32_t in[2] = {*out, extent};
    opi_attrs_int(&attrs, "fmod", 0);
    OPI_TRY(opi_k_one(g->builder, "Mod", 0, in, 2, &attrs, out, err));
  }
  return opi_k_expand(g->builder, *out, up.shape, (uint32_t)up.rank, out, err);
}

opipe_status opi_gradient_tensor_scatter(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0), where = opi_node_in(node, 2);
  const int64_t axis = opi_attr_int(node, "axis", 0);
  uint32_t d;
  if (opi_grad_wants(g, node, 0)) {
    uint32_t in[3] = {dy, OPIPE_NONE, where};
    opi_attrs attrs = {.n = 0};
    opi_attrs_int(&attrs, "axis", axis);
    opi_attrs_string(&attrs, "mode", opi_attr_string(node, "mode", "linear"));
    OPI_TRY(opi_grad_zeros(g, node->in[1], &in[1], err));
    OPI_TRY(opi_k_one(g->builder, "TensorScatter", 0, in, where == OPIPE_NONE ? 2 : 3, &attrs, &d,
                      err));
    OPI_TRY(opi_grad_give(g, node, 0, d, err));
  }
  if (!opi_grad_wants(g, node, 1))
    return OPIPE_OK;
  if (where == OPIPE_NONE) {
    const int64_t n = opi_b_value(g->builder, node->in[1])->shape[axis];
    OPI_TRY(opi_k_slice(g->builder, dy, axis, 0, n, &d, err));
  } else {
    uint32_t at;
    OPI_TRY(places(g, node, &at, err));
    OPI_TRY(gather_elements(g, axis, dy, at, &d, err));
  }
  return opi_grad_give(g, node, 1, d, err);
}

/* -- OneHot, TopK ------------------------------------------------------------------------------ */

/* sum(dY) over the rows' hits (on) and over the rest (off): values are [off, on]. */
opipe_status opi_gradient_one_hot(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  const opi_value y = *opi_b_value(g->builder, dy);
  const int64_t pair[1] = {2}, single[1] = {1};
  int64_t axes[OPIPE_MAX_RANK];
  opi_attrs attrs = {.n = 0};
  uint32_t part[2], sum;
  for (int64_t d = 0; d < y.rank; ++d)
    axes[d] = d;
  opi_attrs_int(&attrs, "axis", opi_attr_int(node, "axis", 0));
  for (uint32_t i = 0; i < 2; ++i) {
    const double marks[2] = {i == 0, i == 1};
    uint32_t in[3] = {node->in[0], node->in[1],
                      opi_b_const(g->builder, OPIPE_DOUBLE, pair, 1, marks)};
    OPI_TRY(opi_k_const(in[2], err));
    OPI_TRY(opi_k_cast(g->builder, in[2], y.dtype, &in[2], err));
    OPI_TRY(opi_k_one(g->builder, "OneHot", 0, in, 3, &attrs, &part[i], err));
    OPI_TRY(opi_b_op2(g->builder, "Mul", part[i], dy, &part[i], err));
    OPI_TRY(opi_k_reduce(g->builder, "ReduceSum", 0, part[i], axes, (uint32_t)y.rank, false,
                         &part[i], err));
    OPI_TRY(opi_k_reshape(g->builder, part[i], single, 1, &part[i], err));
  }
  OPI_TRY(opi_k_concat(g->builder, part, 2, 0, &sum, err));
  return opi_grad_give(g, node, 2, sum, err);
}

opipe_status opi_gradient_top_k(opi_grad *g, const opi_node *node, opipe_error *err) {
  uint32_t at = opi_node_out(node, 1), dx;
  if (at == OPIPE_NONE) {
    opi_attrs attrs = {.n = 0};
    uint32_t out[2];
    for (uint32_t i = 0; i < node->n_attrs && attrs.n < OPI_COUNT(attrs.list); ++i)
      attrs.list[attrs.n++] = node->attrs[i];
    OPI_TRY(opi_k_node(g->builder, "TopK", NULL, 0, node->in, node->n_in, 2, &attrs, out, err));
    at = out[1];
  }
  OPI_TRY(opi_grad_zeros(g, node->in[0], &dx, err));
  OPI_TRY(scatter_elements(g, opi_attr_int(node, "axis", 0), "none", dx, at,
                           opi_grad_of(g, node, 0), &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}
