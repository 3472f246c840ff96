/* SPDX-License-Identifier: Apache-2.0 */
/* Windows over spatial axes: convolution for fused forms (conv.c), and gradients (conv_gradient.c)
 * for the rows in conv.c and train.c. */
#ifndef OPI_OPS_CONV_H
#define OPI_OPS_CONV_H

#include "loader/ops/op.h"

enum { OPI_MAX_SPATIAL = 3 };

/* Reads attribute `name` into dst [n], `fallback` if absent; each number must be in [min,
 * INT32_MAX].
 */
opipe_status opi_window_ints(const opi_builder *b, const opi_node *node, const char *name,
                             uint32_t n, int64_t fallback, int64_t min, int64_t *dst,
                             opipe_error *err);
/* Converts a file node's inputs X, W, B? and Conv attributes into the canonical Conv: *out. */
opipe_status opi_conv_emit(opi_builder *b, const opi_node *node, uint32_t *out, opipe_error *err);
/* The same for ConvTranspose, as canonical nodes. */
opipe_status opi_conv_transpose_emit(opi_builder *b, const opi_node *node, uint32_t *out,
                                     opipe_error *err);

/* Gradient rules of Conv, AveragePool and MaxPool. */
opipe_status opi_gradient_conv(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_pool(opi_grad *g, const opi_node *node, opipe_error *err);

/* opipe.ConvGradX (dY, W), ConvGradW (dY, X); opipe.AveragePoolGrad (dY), MaxPoolGrad (dY, X). */
opipe_status opi_conv_grad_infer(opi_builder *b, const opi_node *node, opipe_error *err);
opipe_status opi_pool_grad_infer(opi_builder *b, const opi_node *node, opipe_error *err);
void opi_conv_grad_work(const opi_graph *graph, const opi_node *node, opi_work *out_work);

#endif /* OPI_OPS_CONV_H */
