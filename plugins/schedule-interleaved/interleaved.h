/* SPDX-License-Identifier: Apache-2.0 */
/* The table of positions of interleaved 1F1B and its replay. */
#ifndef INTERLEAVED_H
#define INTERLEAVED_H

#include <opipe/orders.h>

/* Micro-batches go in groups: n_first groups of first_size, then groups of rest_size. */
typedef struct interleaved {
  uint32_t n_ranks;  /* p */
  uint32_t n_chunks; /* v */
  uint32_t n_microbatches;
  uint32_t n_first;
  uint32_t first_size; /* at least rest_size, and above 0 */
  uint32_t rest_size;  /* 0 when no group is left */
  bool torch;          /* warm-up of torch's schedule */
  bool narrow;         /* groups below p were asked for */
  bool whole;          /* all forwards first, where there is more than one chunk */
  bool halves;         /* a backward is I, then W */
  bool cells;          /* with the idle cells of torch's table */
} interleaved;

/* Emits every rank's order, ranks in turn. `work` gives 16 bytes per rank. */
opipe_status interleaved_replay(const interleaved *order, const opipe_schedule_problem *problem,
                                opipe_work *work, opipe_emit_fn emit, void *emit_ctx,
                                opipe_error *err);

#endif /* INTERLEAVED_H */
