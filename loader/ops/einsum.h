/* SPDX-License-Identifier: Apache-2.0 */
/* Einsum's rules, in a file of their own because of the equation. Listed in linear.c. */
#ifndef OPI_EINSUM_H
#define OPI_EINSUM_H

#include "loader/ops/op.h"

opipe_status opi_einsum_lift(opi_builder *b, const opi_node *node, opipe_error *err);
opipe_status opi_einsum_infer(opi_builder *b, const opi_node *node, opipe_error *err);
void opi_einsum_work(const opi_graph *graph, const opi_node *node, opi_work *out_work);
opipe_status opi_einsum_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                              opi_carry *out, opipe_error *err);

#endif /* OPI_EINSUM_H */
