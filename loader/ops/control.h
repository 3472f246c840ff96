/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of Loop and Scan, and the stacking of their trips' results. Private to loader/ops.
 */
#ifndef OPI_OPS_CONTROL_H
#define OPI_OPS_CONTROL_H

#include "loader/ops/common.h"
#include "loader/ops/kit.h"

#define OPI_MOST_TRIPS 1024

/* The body in attribute `name`; NULL: absent or not a graph. */
const opi_graph *opi_body_of(const opi_node *node, const char *name);
/* Resolves `axis` for stacking items like `item` along a new axis. */
opipe_status opi_stack_axis(opi_builder *b, const opi_node *node, uint32_t item, int64_t axis,
                            uint32_t *out, opipe_error *err);
/* Stacks items [n], n >= 1, of one shape, along a new axis; *out is OPI_POISONED if one of them is.
 */
opipe_status opi_stack(opi_builder *b, const opi_node *node, const uint32_t *items, uint32_t n,
                       int64_t axis, uint32_t *out, opipe_error *err);
/* The empty stack of items like `item`. */
opipe_status opi_stack_nothing(opi_builder *b, const opi_node *node, uint32_t item, int64_t axis,
                               uint32_t *out, opipe_error *err);

/* Splits a value into n parts along an axis of length n >= 1 and drops that axis: out [n]. */
opipe_status opi_unstack(opi_builder *b, uint32_t value, uint32_t axis, uint32_t n, uint32_t *out,
                         opipe_error *err);

#endif /* OPI_OPS_CONTROL_H */
