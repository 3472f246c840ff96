/* SPDX-License-Identifier: Apache-2.0 */
/* A play for people and machines: figures, a trace, a picture. */
#ifndef OPI_PLAY_REPORT_H
#define OPI_PLAY_REPORT_H

#include "partition/study/simulate/play.h"

typedef struct opi_play_report {
  const opi_play *play;
  const opi_played *result;
  uint32_t n_ranks;                        /* of the cluster */
  uint32_t n_microbatches;                 /* of a step, over all copies */
  double step_ns, bubble, bubble_overhead; /* as in opi_order_played */
  double flops, utilisation;               /* 0: unknown */
  double request_ns, interval_ns;          /* a plan's prediction; below 0: it is not a plan */
  const double *fixed_bytes;               /* [lists] */
  /* text writes an action's text into buffer [room]; kind gives its OPI_DO_*. */
  const char *(*text)(void *ctx, uint32_t item, char *buffer, size_t room);
  uint32_t (*kind)(void *ctx, uint32_t item);
  void *ctx;
} opi_play_report;

/* Writes lines or JSON. Played ranks represent `copies` each. */
void opi_play_describe(const opi_play_report *report, bool json, opi_text *out_text);
/* Writes Chrome's trace format (chrome://tracing, Perfetto): programs, causes of idle time, and the
 * bytes that programs keep, over time. */
void opi_play_trace(const opi_play_report *report, opi_text *out_text);
/* SVG 1.1: a lane per played rank. Errors: LIMIT above 200000 programs. */
opipe_status opi_play_draw(const opi_play_report *report, opi_text *out_text, opipe_error *err);

#endif /* OPI_PLAY_REPORT_H */
