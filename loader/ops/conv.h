/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of windows over spatial axes (conv_gradient.c), for the rows in conv.c and train.c. */
#ifndef OPI_OPS_CONV_H
#define OPI_OPS_CONV_H

#include "loader/ops/op.h"

enum { OPI_MAX_SPATIAL = 3 };

/* Gradient rules of Conv, AveragePool and MaxPool. */
opipe_status opi_gradient_conv(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_pool(opi_grad *g, const opi_node *node, opipe_error *err);

/* opipe.ConvGradX (dY, W), ConvGradW (dY, X); opipe.AveragePoolGrad (dY), MaxPoolGrad (dY, X). */
opipe_status opi_conv_grad_infer(opi_builder *b, const opi_node *node, opipe_error *err);
opipe_status opi_pool_grad_infer(opi_builder *b, const opi_node *node, opipe_error *err);
void opi_conv_grad_work(const opi_graph *graph, const opi_node *node, opi_work *out_work);

#endif /* OPI_OPS_CONV_H */
