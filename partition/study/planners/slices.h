/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of token slices: dynamic programming over the positions at which a sequence is cut along
 * its tokens, and over the number of rows of a batch that go together (Li et al., TeraPipe, section
 * 3).
 *
 * A slice of l tokens after c tokens of the same rows takes alone(l) + context(l, c). Over K stages
 * a batch takes the sum over all its slices plus (K - 1) times the longest, because the pipeline
 * fills and drains once. Times are of one stage, forward and backward together, in any unit.
 */
#ifndef OPI_SLICES_H
#define OPI_SLICES_H

#include "loader/base/base.h"

/* context(l, c) = at[0] + at[1] l + at[2] c + at[3] l c for c > 0, else 0. */
typedef struct opi_slice_context {
  double at[4];
} opi_slice_context;

/* Times for `rows` rows computed together. */
typedef struct opi_slice_times {
  const double *alone; /* [n_tokens + 1]; [0] is not read */
  opi_slice_context context;
} opi_slice_times;

typedef struct opi_slice_problem {
  uint32_t n_tokens; /* per sequence */
  uint32_t unit;     /* cuts are at multiples of this many tokens */
  uint32_t n_stages; /* K */
  uint32_t n_rows;   /* in the batch */
  const opi_slice_times *const
      *times;  /* [n_rows] by rows - 1; NULL: that many rows cannot go together */
  double step; /* distance of bounds tried; the result is within step * (K - 1) of the optimum */
} opi_slice_problem;

/* Rows that go together and are cut alike. */
typedef struct opi_slice_group {
  uint32_t rows;
  uint32_t n_slices;
  const uint32_t *lengths; /* [n_slices] tokens */
} opi_slice_group;

typedef struct opi_slicing {
  opi_arena arena;
  opi_slice_group *groups; /* larger ones first */
  uint32_t n_groups;
  double sum, longest, total; /* total = sum + (K - 1) * longest */
} opi_slicing;

/* The fastest slicing. Errors: INVALID names the wrong number; LIMIT, more than 4096 units. */
opipe_status opi_slices_plan(const opi_slice_problem *problem, const opipe_allocator *allocator,
                             opi_slicing *out_slicing, opipe_error *err);
/* Every row on its own, in n_slices slices that differ by at most one unit, longer ones first. */
opipe_status opi_slices_even(const opi_slice_problem *problem, uint32_t n_slices,
                             const opipe_allocator *allocator, opi_slicing *out_slicing,
                             opipe_error *err);
void opi_slicing_free(opi_slicing *slicing); /* accepts a zeroed one */

double opi_slice_time(const opi_slice_times *times, uint32_t length, uint32_t context);

/* Time that a context of `context` tokens adds to a slice of `length` tokens. */
typedef struct opi_slice_sample {
  uint32_t length, context;
  double extra;
} opi_slice_sample;

/* Least-squares fit. Errors: INVALID, the samples do not determine the four coefficients. */
opipe_status opi_slices_fit(const opi_slice_sample *samples, uint32_t n,
                            opi_slice_context *out_context, opipe_error *err);

#endif /* OPI_SLICES_H */
