/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's time as spans: programs, and the causes of idle time between them. */
#ifndef OPI_LANE_H
#define OPI_LANE_H

#include "partition/schedule/actions.h"
#include "partition/study/page/page.h"

/* A span of an action. */
opi_page_span opi_lane_span(const opi_do *action, uint32_t kind, double start, double end);
/* OPI_SPAN_* of a compute, by its OPI_DO_*. */
uint32_t opi_lane_pass(uint32_t kind);

/* Time that a rank waited for a message: for the sender until it was `made` (kind:
 * OPI_SPAN_WAIT_*), then for the link. */
void opi_lane_wait(opi_page *page, const opi_do *action, uint32_t kind, double made, double start,
                   double end);

/* A rank's progress through its list. */
typedef struct opi_lane_cursor {
  opi_page *page;
  double at;  /* end of the spans so far */
  bool began; /* its first program has run; the time before that is one gap */
} opi_lane_cursor;

/* Adds the time from `at` to `start`, which has no cause of its own. */
void opi_lane_rest(opi_lane_cursor *lane, double start);
void opi_lane_program(opi_lane_cursor *lane, const opi_page_span *program);
/* Adds the time after the last program. */
void opi_lane_end(const opi_lane_cursor *lane, double end);

#endif /* OPI_LANE_H */
