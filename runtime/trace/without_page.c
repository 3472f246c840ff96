/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses traces as pages in a build without partition/study. */
#include "runtime/trace/page.h"

opipe_status opi_trace_page(const opi_plan *plan, const char *title, const opi_trace_list *list,
                            const opipe_allocator *allocator, opipe_write_fn write, void *ctx,
                            opipe_error *err) {
  (void)plan, (void)title, (void)list, (void)allocator, (void)write, (void)ctx;
  return opi_fail(err, OPIPE_E_UNSUPPORTED, "a trace as an HTML page: built without the study");
}
