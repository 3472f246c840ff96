/* SPDX-License-Identifier: Apache-2.0 */
/* One plan run by several sessions, each with some of the ranks, a model and a context of its own,
 * on a thread of its own; they meet through transport-strict. The parts of the outcome that they
 * have, put together, are bit-equal to the plan's reference. */
#ifndef TESTS_MATRIX_HALVES_H
#define TESTS_MATRIX_HALVES_H

#include "tests/matrix/strict.h"
#include "tests/runtime/train/cases.h"

enum { HALVES_MOST = 4 };

/* By rank of the plan: which session runs it. */
typedef struct mx_split {
  uint32_t n_ranks, n_parts;
  uint32_t part[MX_RANKS];
  uint32_t replicas[MX_RANKS], n_replicas; /* of single stages, in inference; 0: none are said */
} mx_split;
extern const mx_split mx_splits[];
extern const size_t mx_n_splits;

/* The folder's data set 0 under a schedule, several requests at once. NULL when it holds; else why
 * not (static storage). *out_refused: the plan is, by the rows or the batch, as it must be. */
const char *mx_halves_infer(const mx_folder *folder, const char *schedule, uint32_t n_microbatches,
                            const mx_split *split, uint32_t rule, bool *out_refused);
/* Four steps with a flush between them, then an evaluation and all weights by name, in every
 * session. */
const char *mx_halves_train(const kit_case *c, const char *model_path, int64_t rows,
                            const mx_split *split, uint32_t rule);

#endif /* TESTS_MATRIX_HALVES_H */
