/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of token slices: dynamic programming over where a sequence is cut along its tokens, and
 * over how many rows of a batch go together (Li et al., TeraPipe, section 3).
 *
 * A slice of l tokens after c tokens of the same rows takes alone(l) + context(l, c). Over K stages
 * a batch takes the sum over all its slices plus (K - 1) times the longest one: the pipeline fills
 * and drains once. Times are of one stage, forward and backward together, in any unit.
 */
#ifndef OPI_SLICES_H
#define OPI_SLICES_H

#include "loader/base/base.h"

/* context(l, c) = at[0] + at[1] l + at[2] c + at[3] l c for c > 0, else 0. */
typedef struct opi_slice_context {
  double at[4];
} opi_slice_context;

/* Of `rows` rows computed together. */
typedef struct opi_slice_times {
  const double *alone; /* [n_tokens + 1]; [0] is not read */
  opi_slice_context context;
} opi_slice_times;

typedef struct opi_slice_problem {
  uint32_t n_tokens;                   /* of a sequence */
  uint32_t unit;                       /* cuts stand at multiples of this many tokens */
  uint32_t n_stages;                   /* K */
  uint32_t n_rows;                     /* of the batch */
  const opi_slice_times *const *times; /* [n_rows] index rows - 1; NULL: not as many together */
  double step; /* the bound on the longest slice is tried at distances of `step` or more: the result
                  is at most (K - 1) * step above the best; 0: exact */
} opi_slice_problem;

/* Rows that go together, all cut alike. */
typedef struct opi_slice_group {
  uint32_t rows;
  uint32_t n_slices;
  const uint32_t *lengths; /* [n_slices] in tokens */
} opi_slice_group;

typedef struct opi_slicing {
  opi_arena arena;
  opi_slice_group *groups; /* larger ones first */
  uint32_t n_groups;
  double sum, longest, total; /* total = sum + (K - 1) * longest */
} opi_slicing;

/* The fastest. Errors: INVALID with the number that is wrong, LIMIT (more than 4096 units). */
opipe_status opi_slices_plan(const opi_slice_problem *problem, const opipe_allocator *allocator,
                             opi_slicing *out_slicing, opipe_error *err);
/* Every row by itself in n_slices slices that differ by at most one unit, longer ones first. */
opipe_status opi_slices_even(const opi_slice_problem *problem, uint32_t n_slices,
                             const opipe_allocator *allocator, opi_slicing *out_slicing,
                             opipe_error *err);
void opi_slicing_free(opi_slicing *slicing); /* of a slicing that was made; or of zeros */

double opi_slice_time(const opi_slice_times *times, uint32_t length, uint32_t context);

/* What a context of `context` tokens added to a slice of `length`. */
typedef struct opi_slice_sample {
  uint32_t length, context;
  double extra;
} opi_slice_sample;

/* Least squares. Errors: INVALID, samples that do not tell the four apart. */
opipe_status opi_slices_fit(const opi_slice_sample *samples, uint32_t n,
                            opi_slice_context *out_context, opipe_error *err);

#endif /* OPI_SLICES_H */
