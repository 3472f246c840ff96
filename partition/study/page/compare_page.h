/* SPDX-License-Identifier: Apache-2.0 */
/* Two plans side by side. */
#ifndef OPI_COMPARE_PAGE_H
#define OPI_COMPARE_PAGE_H

#include "partition/study/layers/compare.h"

/* A page of the differences, with a track for each plan (a strategy's file holds no order): its
 * records by the times of its stages, messages by its link and the bytes in the file. Errors: as
 * opi_plans_compare; INVALID, records that are no order. */
opipe_status opi_plans_page(const opi_plan_text texts[2], const opipe_allocator *allocator,
                            opipe_write_fn write, void *ctx, opipe_error *err);

#endif /* OPI_COMPARE_PAGE_H */
