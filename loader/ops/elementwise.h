/* SPDX-License-Identifier: Apache-2.0 */
/* Rules shared by arithmetic and logic. Private to loader/ops. */
#ifndef OPI_OPS_ELEMENTWISE_H
#define OPI_OPS_ELEMENTWISE_H

#include "loader/ops/common.h"
#include "loader/ops/rules.h"

/* Lifts an operator with two inputs; resolves the attributes broadcast and axis of opset < 7. */
opipe_status opi_lift_binary(opi_builder *b, const opi_node *node, opipe_error *err);
/* Lifts an operator unchanged, without attributes. */
opipe_status opi_lift_plain(opi_builder *b, const opi_node *node, opipe_error *err);
/* Output 0 has type dtype and the broadcast shape of inputs first .. first + n - 1. */
opipe_status opi_infer_broadcast(opi_builder *b, const opi_node *node, uint32_t first, uint32_t n,
                                 uint32_t dtype, opipe_error *err);

/* Gradient rules (elementwise_gradient.c). */
opipe_status opi_gradient_add(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_sub(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_mul(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_div(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_mod(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_pow(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_extreme(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_unary(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_neg(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_clip(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_cast(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_where(opi_grad *g, const opi_node *node, opipe_error *err);

/* Attributes of operators that broadcast by attribute up to opset 6, and by shape since. */
#define OPI_A_BROADCASTS OPI_A_BROADCAST, OPI_A(INT, "broadcast", .since = 7, OPI_NO_EFFECT)

#endif /* OPI_OPS_ELEMENTWISE_H */
