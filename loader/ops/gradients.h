/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient rules in files of their own beside their family's (FAMILY_gradient.c). Private to
 * loader/ops.
 */
#ifndef OPI_OPS_GRADIENTS_H
#define OPI_OPS_GRADIENTS_H

#include "loader/ops/rules.h"

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
opipe_status opi_gradient_divided_entropy(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_likelihood(opi_grad *g, const opi_node *node, opipe_error *err);

/* norm_gradient.c */
opipe_status opi_gradient_layer_norm(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_rms_norm(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_batch_norm(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_group_norm(opi_grad *g, const opi_node *node, opipe_error *err);

/* index_gradient.c */
opipe_status opi_gradient_gather(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_gather_elements(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_gather_nd(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_scatter_elements(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_scatter_nd(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_tensor_scatter(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_one_hot(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_top_k(opi_grad *g, const opi_node *node, opipe_error *err);

/* einsum_gradient.c */
opipe_status opi_gradient_einsum(opi_grad *g, const opi_node *node, opipe_error *err);

#endif /* OPI_OPS_GRADIENTS_H */
