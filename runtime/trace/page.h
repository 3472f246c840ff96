/* SPDX-License-Identifier: Apache-2.0 */
/* What ran and what was planned, as a page. */
#ifndef OPI_TRACE_PAGE_H
#define OPI_TRACE_PAGE_H

#include "partition/plan/plan.h"
#include "runtime/trace/trace.h"

/* Two tracks, planned and measured, of events of both kinds in any order; beside them what the
 * plan decided. Between programs a rank waits for what its next one reads: until the last of what
 * other ranks make of it is made, then for its way. title: the model; NULL: it has no name.
 * Errors: NOMEM; the sink's. */
opipe_status opi_trace_page(const opi_plan *plan, const char *title, const opi_trace_list *list,
                            const opipe_allocator *allocator, opipe_write_fn write, void *ctx,
                            opipe_error *err);

#endif /* OPI_TRACE_PAGE_H */
