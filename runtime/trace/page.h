/* SPDX-License-Identifier: Apache-2.0 */
/* Measured and planned events as an HTML page. */
#ifndef OPI_TRACE_PAGE_H
#define OPI_TRACE_PAGE_H

#include "partition/plan/plan.h"
#include "runtime/trace/trace.h"

/* Writes two tracks, planned and measured, of events in any order, and the plan's decisions beside
 * them. Between programs a rank waits for the tensors that its next one reads: until other ranks
 * have made the last of them, then for its transfer. title: the model; NULL: it has no name.
 * Errors: NOMEM; the sink's. */
opipe_status opi_trace_page(const opi_plan *plan, const char *title, const opi_trace_list *list,
                            const opipe_allocator *allocator, opipe_write_fn write, void *ctx,
                            opipe_error *err);

#endif /* OPI_TRACE_PAGE_H */
