/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's time as spans: programs, and between them what it stood still for. */
#ifndef OPI_LANE_H
#define OPI_LANE_H

#include "partition/schedule/actions.h"
#include "partition/study/page/page.h"

/* A span of an action. */
opi_page_span opi_lane_span(const opi_do *action, uint32_t kind, double start, double end);
/* OPI_SPAN_* of a compute, by its OPI_DO_*. */
uint32_t opi_lane_pass(uint32_t kind);

/* Time that a rank stood still until a message came: until it was `made` its sender is waited for
 * (kind: OPI_SPAN_WAIT_*), then the link. */
void opi_lane_wait(opi_page *page, const opi_do *action, uint32_t kind, double made, double start,
                   double end);

/* A rank on its way through its list. */
typedef struct opi_lane {
  opi_page *page;
  double at;  /* until when its time has been told */
  bool began; /* it has had its first program; before that all of it is one gap */
} opi_lane;

/* What lies between `at` and `start` without a cause of its own. */
void opi_lane_rest(opi_lane *lane, double start);
void opi_lane_program(opi_lane *lane, const opi_page_span *program);
/* Behind the last program. */
void opi_lane_end(const opi_lane *lane, double end);

#endif /* OPI_LANE_H */
