/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of gradient rules (opi_op.gradient): query which gradients arrive and which are
 * wanted, emit nodes, contribute.
 *
 * A rule reads only its node's inputs and outputs and the gradients of its outputs. It emits
 * through g->builder, with canonical operators (domain "" or "com.microsoft") or those of domain
 * "opipe" (abi/guide/operators.md, families C). It never changes the forward node. Only the
 * gradient builder knows whose gradients these are; it gives opi_grad its three functions.
 */
#ifndef OPI_OPS_RULES_H
#define OPI_OPS_RULES_H

#include "loader/ops/kit.h"

/* Callbacks about values of the forward graph. `state` is the gradient builder's own. */
struct opi_grad {
  opi_builder *builder;
  struct opi_grad_state *state;
  uint32_t (*of)(const struct opi_grad_state *state, uint32_t value); /* OPIPE_NONE: none so far */
  bool (*wanted)(const struct opi_grad_state *state, uint32_t value);
  /* Adds one contribution, of the value's shape and type. */
  opipe_status (*give)(struct opi_grad_state *state, uint32_t value, uint32_t gradient,
                       opipe_error *err);
};

/* True if the operator never passes a gradient to input i. */
bool opi_grad_stops(const opi_op *op, uint32_t i);
/* Gradient of output i, with that output's shape and type. OPIPE_NONE: none arrives (as if zero).
 */
uint32_t opi_grad_of(opi_grad *g, const opi_node *node, uint32_t i);
/* True if a gradient of input i is wanted: it is present, a float, and a trainable parameter leads
 * to it. */
bool opi_grad_wants(opi_grad *g, const opi_node *node, uint32_t i);
/* Contributes `value`, with input i's shape, to its gradient. Call once per wanted input; no call
 * means zero. */
opipe_status opi_grad_give(opi_grad *g, const opi_node *node, uint32_t i, uint32_t value,
                           opipe_error *err);
/* The same after summing `value` over the axes along which input i was broadcast. */
opipe_status opi_grad_give_reduced(opi_grad *g, const opi_node *node, uint32_t i, uint32_t value,
                                   opipe_error *err);
/* Sums `value` over the axes along which input i was broadcast, giving input i's shape. */
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
