/* SPDX-License-Identifier: Apache-2.0 */
/* What Loop and Scan share: bodies, and what their trips make side by side. Private to loader/ops.
 */
#ifndef OPI_OPS_CONTROL_H
#define OPI_OPS_CONTROL_H

#include "loader/ops/common.h"
#include "loader/ops/kit.h"

#define OPI_MOST_TRIPS 1024

/* The body in attribute `name`; NULL: it is absent or no graph. */
const opi_graph *opi_body_of(const opi_node *node, const char *name);
/* `axis` of what items like `item` make when they are stacked along a new axis. */
opipe_status opi_stack_axis(opi_builder *b, const opi_node *node, uint32_t item, int64_t axis,
                            uint32_t *out, opipe_error *err);
/* items [n], n >= 1, of one shape, along a new axis; *out is OPI_POISONED where one of them is. */
opipe_status opi_stack(opi_builder *b, const opi_node *node, const uint32_t *items, uint32_t n,
                       int64_t axis, uint32_t *out, opipe_error *err);
/* The stack of no items that would be like `item`. */
opipe_status opi_stack_nothing(opi_builder *b, const opi_node *node, uint32_t item, int64_t axis,
                               uint32_t *out, opipe_error *err);

/* The n parts of a value along an axis that is n >= 1 long, without that axis: out [n]. */
opipe_status opi_unstack(opi_builder *b, uint32_t value, uint32_t axis, uint32_t n, uint32_t *out,
                         opipe_error *err);

#endif /* OPI_OPS_CONTROL_H */
