/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of ranks, for orders with links and without. */
#include "partition/study/page/lane.h"

#include <math.h>

opi_page_span opi_lane_span(const opi_do *a, uint32_t kind, double start, double end) {
  return (opi_page_span){.kind = kind,
                         .stage = a->stage,
                         .microbatch = a->microbatch,
                         .replica = a->replica,
                         .slice = a->slice,
                         .part = a->part,
                         .start = start,
                         .end = end};
}

uint32_t opi_lane_pass(uint32_t kind) {
  static const uint32_t passes[] = {[OPI_DO_F] = OPI_SPAN_F,
                                    [OPI_DO_B] = OPI_SPAN_B,
                                    [OPI_DO_I] = OPI_SPAN_I,
                                    [OPI_DO_W] = OPI_SPAN_W,
                                    [OPI_DO_R] = OPI_SPAN_R};
  return passes[kind];
}

void opi_lane_wait(opi_page *page, const opi_do *a, uint32_t kind, double made, double start,
                   double end) {
  const double left = fmin(fmax(made, start), end);
  const opi_page_span waits = opi_lane_span(a, kind, start, left);
  const opi_page_span travels = opi_lane_span(a, OPI_SPAN_LINK, left, end);
  opi_page_add_span(page, &waits);
  opi_page_add_span(page, &travels);
}

static void add_gap(opi_page *page, uint32_t kind, double start, double end) {
  static const opi_do nobody = {.stage = OPIPE_NONE, .microbatch = OPIPE_NONE};
  const opi_page_span span = opi_lane_span(&nobody, kind, start, end);
  opi_page_add_span(page, &span);
}

void opi_lane_rest(opi_lane *lane, double start) {
  if (lane->began)
    add_gap(lane->page, OPI_SPAN_OTHER, lane->at, start);
}

void opi_lane_program(opi_lane *lane, const opi_page_span *program) {
  if (lane->began)
    opi_lane_rest(lane, program->start);
  else
    add_gap(lane->page, OPI_SPAN_FILL, lane->at, program->start);
  opi_page_add_span(lane->page, program);
  lane->at = program->end;
  lane->began = true;
}

void opi_lane_end(const opi_lane *lane, double end) {
  add_gap(lane->page, OPI_SPAN_DRAIN, lane->at, end);
}
