/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are complete before their REDUCE: the sums of a stage's buckets start while the
 * rest of its last backward is computed.
 *
 *   COMPUTE (last micro-batch)  ├── part ──┼── part ──┼──── part ────┤ REDUCE
 *                                          └ sum of the first bucket │ └ of the last
 *                                                     └ of the second
 *
 * The last backward of an instance is the run of steps in front of its REDUCE that compute nothing
 * else: a program, or I and W, or the stretches of a tensor group. Buckets start in one order on
 * all ranks: that of the REDUCEs, then from the highest slots down, which a backward completes
 * first. Not under rules that match by order, whose lists have a place for every start.
 */
#ifndef OPI_LISTS_PASSED_H
#define OPI_LISTS_PASSED_H

#include "partition/lists/lists.h"

enum { OPI_PARTS_MOST = 16 }; /* of a last backward: buckets beyond start together */

typedef struct opi_passed {
  uint32_t step; /* a COMPUTE of the last backward */
  uint32_t n;    /* gradients of the instance that are complete, from the highest slot down */
  double at;     /* in the program: a place, or without places a share of its time */
} opi_passed;

/* The places of the program of a step (opipe_backend.program_places): by slot, in memory that lasts
 * until the next call, and their number; NULL: it does not run in parts. */
typedef const uint32_t *(*opi_places_fn)(void *ctx, const opi_step *step, uint32_t *out_n);

typedef struct opi_passed_query {
  const opi_piece_plan *plan;
  const opi_lists *lists;
  const opi_cut *const *cuts; /* [OPI_ROW_CLASSES] */
  uint32_t rank, reduce;      /* reduce: its REDUCE, a step */
  const uint32_t *slots;      /* [n_slots] rising: trained parameters of the instance */
  const uint32_t *buckets;    /* [n_slots] OPIPE_NONE: not summed over ranks at once */
  uint32_t n_slots;
  opi_places_fn places; /* NULL: programs are not compiled, and shares of time are told */
  void *ctx;
} opi_passed_query;

/* Lists where buckets are complete, in order; none: at the REDUCE alone. out_list [n] in `arena`.
 * Errors: NOMEM. */
opipe_status opi_passed_find(const opi_passed_query *from, opi_arena *arena, opi_passed **out_list,
                             uint32_t *out_n, opipe_error *err);

#endif /* OPI_LISTS_PASSED_H */
