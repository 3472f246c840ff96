/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient rules that stand in a file of their own beside their family's (FAMILY_gradient.c).
 * Private to loader/ops.
 */
#ifndef OPI_OPS_GRADIENTS_H
#define OPI_OPS_GRADIENTS_H

#include "loader/gradient/rules.h"

/* movement_gradient.c: movement, shape, slice */
opipe_status opi_gradient_identity(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_reshape(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_expand(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_transpose(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_tile(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_concat(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_split(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_pad(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_trilu(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_slice(opi_grad *g, const opi_node *node, opipe_error *err);

/* reduce_gradient.c */
opipe_status opi_gradient_reduce(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_cum_sum(opi_grad *g, const opi_node *node, opipe_error *err);

/* linear_gradient.c */
opipe_status opi_gradient_product(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_gemm(opi_grad *g, const opi_node *node, opipe_error *err);

/* loss_gradient.c */
opipe_status opi_gradient_cross_entropy(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_likelihood(opi_grad *g, const opi_node *node, opipe_error *err);

#endif /* OPI_OPS_GRADIENTS_H */
