/* SPDX-License-Identifier: Apache-2.0 */
/* Planned and measured events beside each other, one lane per rank, as a Chrome trace
 * (opens in Perfetto) or as a picture.
 */
#ifndef OPI_TRACE_H
#define OPI_TRACE_H

#include "runtime/requests/requests.h"

enum { OPI_TRACE_MEASURED = 0, OPI_TRACE_PLANNED = 1, OPI_TRACE_KINDS = 2 };

/* The clock of a rank's measured programs. */
enum {
  OPI_CLOCK_NONE = 0, /* the rank is in another session */
  OPI_CLOCK_HOST = 1, /* sees the end of an asynchronous device's program late */
  OPI_CLOCK_DEVICE = 2,
  OPI_CLOCKS = 3
};

typedef struct opi_trace_event {
  const char *pass; /* "F", "B", "I", "W", "update", "reduce", "sum", "offload", "reload" */
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
  uint32_t n_ranks;
  uint8_t *clocks; /* [n_ranks] OPI_CLOCK_* */
  uint8_t *ways;   /* [n_ranks] the worst of the ranks' messages here, OPIPE_WAY_*; NULL: unknown */
} opi_trace_list;

/* The passes of events. */
enum { OPI_TRACE_PASSES = 9 };
extern const char *const opi_trace_passes[OPI_TRACE_PASSES];

/* team.c: replaces the measured events of a list, which has no others yet, by those of all
 * processes; `last`: the request that they are of, 0: of a step. All call it, also with an error of
 * their own (`own`), and get one answer. Nothing happens without a team. */
opipe_status opi_trace_merge(const opi_together *together, opi_trace_list *list, uint64_t last,
                             opipe_status own, opipe_error *err);

extern const char *const opi_clock_names[OPI_CLOCKS]; /* NULL for NONE */

void opi_trace_chrome(const opi_trace_list *list, opi_text *text);
void opi_trace_svg(const opi_trace_list *list, opi_text *text);

/* The last request or training step, measured and planned; all processes of a team call it, and
 * each writes all ranks. format: OPIPE_TRACE_*. Training flushes. title: of the page; NULL: none.
 * Errors: STATE, some are unfinished, or nothing has run. */
opipe_status opi_session_trace(opi_session *session, uint32_t format, const char *title,
                               opipe_write_fn write, void *ctx, opipe_error *err);

#endif /* OPI_TRACE_H */
