/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of Conv, AveragePool and MaxPool; shapes of opipe.ConvGradX, ConvGradW,
 * AveragePoolGrad, MaxPoolGrad.
 *
 * These operators carry the forward's window attributes and `shape`, the shape of their output.
 */
#include "loader/ops/conv.h"

#include <string.h>

#include "loader/ops/rules.h"

/* -- shapes of the own operators --------------------------------------------------------------- */

/* Is `out` an extent that a window of this kind gives over `in`? With ceil_mode one more. */
static bool fits_axis(const opi_node *node, uint32_t n, uint32_t a, int64_t in, int64_t out) {
  uint32_t count[4];
  const int64_t *kernel = opi_attr_ints(node, "kernel_shape", &count[0]);
  const int64_t *strides = opi_attr_ints(node, "strides", &count[1]);
  const int64_t *dilations = opi_attr_ints(node, "dilations", &count[2]);
  const int64_t *pads = opi_attr_ints(node, "pads", &count[3]);
  if (kernel == NULL || strides == NULL || dilations == NULL || pads == NULL || count[0] != n ||
      count[1] != n || count[2] != n || count[3] != 2 * n || kernel[a] < 1 || strides[a] < 1)
    return false;
  const int64_t room = in + pads[a] + pads[n + a] - ((kernel[a] - 1) * dilations[a] + 1);
  const int64_t floor = room / strides[a] + 1;
  const bool ceil = opi_attr_int(node, "ceil_mode", 0) != 0;
  return room >= 0 && (out == floor || (ceil && out == floor + 1));
}

/* x [N, C, spatial...] and y of one node. */
static opipe_status check_windows(const opi_builder *b, const opi_node *node, const int64_t *x,
                                  const int64_t *y, uint32_t rank, opipe_error *err) {
  for (uint32_t a = 2; a < rank; ++a) {
    if (!fits_axis(node, rank - 2, a - 2, x[a], y[a])) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "axis %u of the window's input is %lld, of its output %lld: they do "
                           "not fit its attributes",
                           a, (long long)x[a], (long long)y[a]);
    }
  }
  return OPIPE_OK;
}

static opipe_status read_shape(opi_builder *b, const opi_node *node, const int64_t **out_shape,
                               opipe_error *err) {
  uint32_t n = 0;
  OPI_TRY(opi_need(b, node, 0, "dY", OPI_T_FLOAT, 3, 2 + OPI_MAX_SPATIAL, err));
  *out_shape = opi_attr_ints(node, "shape", &n);
  if (*out_shape != NULL && n == (uint32_t)opi_input(b, node, 0)->rank)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "attribute shape has %u numbers, dY is of rank %d", n,
                       opi_input(b, node, 0)->rank);
}

opipe_status opi_conv_grad_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  const bool to_x = strcmp(node->op, "ConvGradX") == 0;
  const int64_t group = opi_attr_int(node, "group", 1);
  const int64_t *shape;
  OPI_TRY(read_shape(b, node, &shape, err));
  const opi_value *dy = opi_input(b, node, 0);
  const uint32_t rank = (uint32_t)dy->rank;
  OPI_TRY(opi_need(b, node, 1, to_x ? "W" : "X", OPI_T_FLOAT, dy->rank, dy->rank, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
  const int64_t *other = opi_input(b, node, 1)->shape;
  const int64_t *x = to_x ? shape : other, *w = to_x ? other : shape;
  if (group < 1 || x[0] != dy->shape[0] || w[0] != dy->shape[1] || w[0] % group != 0 ||
      x[1] % group != 0 || w[1] != x[1] / group) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "%lld channels, weights of %lld by %lld in %lld groups and dY of %lld do "
                         "not fit",
                         (long long)x[1], (long long)w[0], (long long)w[1], (long long)group,
                         (long long)dy->shape[1]);
  }
  OPI_TRY(check_windows(b, node, x, dy->shape, rank, err));
  return opi_b_set(b, node, 0, dy->dtype, shape, rank, err);
}

opipe_status opi_pool_grad_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  const int64_t *shape;
  OPI_TRY(read_shape(b, node, &shape, err));
  const opi_value *dy = opi_input(b, node, 0);
  const uint32_t rank = (uint32_t)dy->rank;
  if (strcmp(node->op, "MaxPoolGrad") == 0) {
    OPI_TRY(opi_need(b, node, 1, "X", OPI_T_FLOAT, dy->rank, dy->rank, err));
    OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
    OPI_TRY(opi_need_shape(b, node, 1, shape, rank, err));
  }
  OPI_TRY(opi_need_dim(b, node, 0, 0, shape[0], "the images of X", err));
  OPI_TRY(opi_need_dim(b, node, 0, 1, shape[1], "the channels of X", err));
  OPI_TRY(check_windows(b, node, shape, dy->shape, rank, err));
  return opi_b_set(b, node, 0, dy->dtype, shape, rank, err);
}

void opi_conv_grad_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const int64_t group = opi_attr_int(node, "group", 1);
  uint32_t n;
  const int64_t *kernel = opi_attr_ints(node, "kernel_shape", &n);
  const bool conv = strncmp(node->op, "Conv", 4) == 0;
  const bool to_x = strcmp(node->op, "ConvGradX") == 0;
  out_work->flops = (conv ? 2.0 : 1.0) * opi_k_elems_of(graph, node->in[0]);
  for (uint32_t i = 0; i < n; ++i)
    out_work->flops *= (double)kernel[i];
  if (conv) {
    const opi_value *with = &graph->values[to_x ? node->out[0] : node->in[1]];
    out_work->flops *= (double)with->shape[1] / (double)(group > 0 ? group : 1);
  }
  out_work->bytes = opi_work_bytes(graph, node);
}

/* -- rules ------------------------------------------------------------------------------------- */

/* The forward's attributes and `shape`. */
static void window_attrs(opi_attrs *attrs, const opi_node *node, const opi_value *like) {
  attrs->n = 0;
  for (uint32_t i = 0; i < node->n_attrs && attrs->n + 1 < OPI_COUNT(attrs->list); ++i)
    attrs->list[attrs->n++] = node->attrs[i];
  opi_attrs_ints(attrs, "shape", like->shape, (uint32_t)like->rank);
}

opipe_status opi_gradient_conv(opi_grad *g, const opi_node *node, opipe_error *err) {
  const uint32_t dy = opi_grad_of(g, node, 0);
  opi_attrs attrs;
  uint32_t out;
  for (uint32_t i = 0; i < 2; ++i) {
    if (!opi_grad_wants(g, node, i))
      continue;
    const opi_value like = *opi_b_value(g->builder, node->in[i]);
    const uint32_t in[2] = {dy, node->in[1 - i]};
    window_attrs(&attrs, node, &like);
    OPI_TRY(opi_grad_own(g, i == 0 ? "ConvGradX" : "ConvGradW", in, 2, &attrs, &out, err));
    OPI_TRY(opi_grad_give(g, node, i, out, err));
  }
  if (!opi_grad_wants(g, node, 2))
    return OPIPE_OK;
  int64_t axes[1 + OPI_MAX_SPATIAL] = {0};
  const uint32_t rank = (uint32_t)opi_b_value(g->builder, dy)->rank;
  for (uint32_t a = 2; a < rank; ++a)
    axes[a - 1] = a;
  OPI_TRY(opi_k_reduce(g->builder, "ReduceSum", 0, dy, axes, rank - 1, false, &out, err));
  return opi_grad_give(g, node, 2, out, err);
}

opipe_status opi_gradient_pool(opi_grad *g, const opi_node *node, opipe_error *err) {
  const bool average = strcmp(node->op, "AveragePool") == 0;
  const opi_value like = *opi_b_value(g->builder, node->in[0]);
  const uint32_t in[2] = {opi_grad_of(g, node, 0), node->in[0]};
  opi_attrs attrs;
  uint32_t dx;
  window_attrs(&attrs, node, &like);
  OPI_TRY(opi_grad_own(g, average ? "AveragePoolGrad" : "MaxPoolGrad", in, average ? 1 : 2, &attrs,
                       &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}
