/* SPDX-License-Identifier: Apache-2.0 */
/* What a gradient rule (opi_op.gradient) may do: ask which gradients arrive and which are wanted,
 * emit nodes, contribute.
 *
 * A rule reads only inputs and outputs of its node and the gradients of its outputs. It emits
 * through g->builder with canonical operators (domain "" or "com.microsoft") or those of domain
 * "opipe" (abi/guide/operators.md, families C). It never changes the forward node.
 * Whose gradients they are is the gradient builder's to know: it gives opi_grad its three
 * functions.
 */
#ifndef OPI_OPS_RULES_H
#define OPI_OPS_RULES_H

#include "loader/ops/kit.h"

/* Of values of the forward graph. `state` is the gradient builder's own. */
struct opi_grad {
  opi_builder *builder;
  struct opi_grad_state *state;
  uint32_t (*of)(const struct opi_grad_state *state, uint32_t value); /* OPIPE_NONE: none so far */
  bool (*wanted)(const struct opi_grad_state *state, uint32_t value);
  /* One contribution more, of the value's shape and type. */
  opipe_status (*give)(struct opi_grad_state *state, uint32_t value, uint32_t gradient,
                       opipe_error *err);
};

/* Does the operator never pass a gradient to input i? */
bool opi_grad_stops(const opi_op *op, uint32_t i);
/* Gradient of output i: of that output's shape and type. OPIPE_NONE: none arrives (as if zero). */
uint32_t opi_grad_of(opi_grad *g, const opi_node *node, uint32_t i);
/* Is a gradient of input i wanted (it is there, a float, and a trainable parameter leads to it)? */
bool opi_grad_wants(opi_grad *g, const opi_node *node, uint32_t i);
/* Contributes `value`, of input i's shape, to its gradient. Call once per wanted input; none at all
 * means zero. */
opipe_status opi_grad_give(opi_grad *g, const opi_node *node, uint32_t i, uint32_t value,
                           opipe_error *err);
/* The same after summing `value` over the axes along which input i was broadcast. */
opipe_status opi_grad_give_reduced(opi_grad *g, const opi_node *node, uint32_t i, uint32_t value,
                                   opipe_error *err);
/* `value` summed over the axes along which input i was broadcast: of input i's shape. */
opipe_status opi_grad_reduce(opi_grad *g, const opi_node *node, uint32_t i, uint32_t value,
                             uint32_t *out, opipe_error *err);
/* Zeros like value `like` (a scalar constant, expanded). */
opipe_status opi_grad_zeros(opi_grad *g, uint32_t like, uint32_t *out, opipe_error *err);
/* Rank-0 constant of `like`'s type. */
opipe_status opi_grad_const(opi_grad *g, uint32_t like, double number, uint32_t *out,
                            opipe_error *err);
/* One node of domain "opipe", version 1, one output. */
opipe_status opi_grad_own(opi_grad *g, const char *op, const uint32_t *in, uint32_t n_in,
                          const opi_attrs *attrs, uint32_t *out, opipe_error *err);

#endif /* OPI_OPS_RULES_H */
