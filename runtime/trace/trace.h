/* SPDX-License-Identifier: Apache-2.0 */
/* What ran when, one lane per rank: planned and measured beside each other, as a Chrome trace
 * (opens in Perfetto) or as a picture.
 */
#ifndef OPI_TRACE_H
#define OPI_TRACE_H

#include "loader/base/base.h"

enum { OPI_TRACE_MEASURED = 0, OPI_TRACE_PLANNED = 1, OPI_TRACE_KINDS = 2 };

typedef struct opi_trace_event {
  const char *pass; /* "F", "B", "I", "W", "update", "reduce" */
  uint32_t kind;    /* OPI_TRACE_* */
  /* stage OPIPE_NONE: of the whole rank. microbatch OPIPE_NONE: beside the rank's programs, on a
   * lane of its own */
  uint32_t rank, stage, replica, microbatch;
  uint32_t slice;            /* number of the token slice + 1; 0: whole sequences */
  uint64_t start_ns, end_ns; /* from the beginning of its kind's step */
} opi_trace_event;

typedef struct opi_trace_list {
  opi_arena arena;
  opi_trace_event *events; /* [n] */
  uint32_t n, room;
} opi_trace_list;

void opi_trace_chrome(const opi_trace_event *events, uint32_t n, uint32_t n_ranks, opi_text *text);
void opi_trace_svg(const opi_trace_event *events, uint32_t n, uint32_t n_ranks, opi_text *text);

#endif /* OPI_TRACE_H */
