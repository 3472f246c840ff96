/* SPDX-License-Identifier: Apache-2.0 */
/* One self-contained HTML page of a plan: a document (web/, built into the library) around its data
 * as JSON.
 *
 * The data are *tracks* (simulated, planned, measured): a lane for each rank and one for each pair
 * of ranks that communicate, with *spans* of time on them. Spans are written as bytes, in base64:
 * times in ticks (a power of two, so that its multiples stay exact), as differences from the span
 * before:
 *
 *   class        LEB128, index in the lane's "classes":
 *                [kind, stage, replica, slice, part, take, give]
 *   micro-batch  zigzag LEB128, from that of the class's last span, plus one
 *   gap          zigzag LEB128, ticks from the end of the lane's last span
 *   length       zigzag LEB128, ticks from the length of the class's last span
 *
 * The data cannot end their HTML element: every '<' is written as an escape.
 */
#ifndef OPI_PAGE_H
#define OPI_PAGE_H

#include "loader/base/base.h"

/* Programs; causes of idle time; transfers on a link. */
#define OPI_SPANS(X)                                                     \
  X(F, "F")                                                              \
  X(B, "B")                                                              \
  X(I, "I")                                                              \
  X(W, "W")                                                              \
  X(R, "R")                                                              \
  X(STEP, "step")                                                        \
  X(REDUCE, "reduce")     /* sums over replicas */                       \
  X(GATHER, "gather")     /* weights, after a sharded step */            \
  X(TENSOR, "tensor")     /* sums and gathers of a tensor group */       \
  X(COPY, "copy")         /* of stashes, to or from the host's memory */ \
  X(FILL, "warm-up")      /* before the rank's first program */          \
  X(DRAIN, "cool-down")   /* after its last one */                       \
  X(WAIT_F, "activation") /* not made yet */                             \
  X(WAIT_B, "gradient")   /* not made yet */                             \
  X(LINK, "link")         /* made, and in transit */                     \
  X(OTHER, "other")                                                      \
  X(SEND_F, "send-f")                                                    \
  X(SEND_B, "send-b")
#define OPI_SPAN_NUMBER(NAME, name) OPI_SPAN_##NAME,
enum { OPI_SPANS(OPI_SPAN_NUMBER) OPI_SPAN_KINDS };
enum { OPI_SPAN_IDLE = OPI_SPAN_REDUCE, OPI_SPAN_IDLE_END = OPI_SPAN_SEND_F };

typedef struct opi_page_span {
  uint32_t kind;              /* OPI_SPAN_* */
  uint32_t stage, microbatch; /* OPIPE_NONE: none */
  uint32_t replica, slice, part;
  double start, end;
  double take, give; /* bytes kept from its start on, released at its end */
} opi_page_span;

typedef struct opi_page_track {
  const char *name;    /* "simulated" */
  const char *figures; /* JSON, or NULL */
  const char *kept;    /* unit of take and give: "bytes", or "stages" (activations of them) */
  double end;          /* of its last span */
  double first, step;  /* causes are summed over [first, first + step) */
} opi_page_track;

typedef struct opi_page_lane {
  uint32_t rank, peer; /* peer: rank that `rank` sends to; OPIPE_NONE: the lane of the rank itself
                        */
  uint32_t copies;     /* number of equal ranks */
  const char *device;  /* NULL: not known */
  const char *clock;   /* clock of measured times; NULL: they are modelled */
  double fixed_bytes, cap_bytes; /* always kept; 0: no cap */
  double message_bytes;
} opi_page_lane;

typedef struct opi_page_class {
  opi_page_span key;
  int64_t length;      /* ticks, of the class's last span */
  uint32_t microbatch; /* of the class's last span */
} opi_page_class;

/* Errors of building are reported by opi_page_write. Not thread-safe. */
typedef struct opi_page {
  opi_text data;  /* JSON so far */
  opi_text bytes; /* spans of the open lane */
  opi_arena arena;
  opi_page_class *classes; /* [n_classes] of the open lane */
  uint32_t n_classes, room_classes, at_class;
  uint32_t n_tracks, n_lanes, n_spans;
  opi_page_track track;
  opi_page_lane lane;
  double tick, busy, idle[OPI_SPAN_KINDS];
  int64_t end;                       /* ticks, end of the open lane's last span */
  bool in_lane, in_track, in_tracks; /* are open */
} opi_page;

/* title: the page's heading; unit: of times, "ns" or "" if costs have none. */
void opi_page_begin(opi_page *page, const opipe_allocator *allocator, const char *title,
                    const char *unit);
/* Ends the track before. Its strings are read during the call. */
void opi_page_add_track(opi_page *page, const opi_page_track *track);
/* Adds a lane to the open track and ends the lane before. Lanes of links follow those of ranks. */
void opi_page_add_lane(opi_page *page, const opi_page_lane *lane);
/* Adds a span to the open lane, in the order of starts. Spans of no length are left out unless they
 * are programs or take or give bytes. */
void opi_page_add_span(opi_page *page, const opi_page_span *span);
/* Adds a member to the data, whose value is JSON; tracks come before all members. */
void opi_page_add_member(opi_page *page, const char *name, const char *json);
/* The same, with text from a caller. Errors: INVALID, it is no JSON (what: its name). */
opipe_status opi_page_add_json(opi_page *page, const char *name, const void *json, uint64_t n_bytes,
                               const char *what, opipe_error *err);
/* Writes the document. Errors: NOMEM; the sink's. */
opipe_status opi_page_write(opi_page *page, opipe_write_fn write, void *ctx, opipe_error *err);
void opi_page_release(opi_page *page);

#endif /* OPI_PAGE_H */
