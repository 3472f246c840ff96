/* SPDX-License-Identifier: Apache-2.0 */
/* From compute order to what a rank executes: loads, receives, sends and stores placed around the
 * computes (forward form). */
#ifndef OPI_LOWER_H
#define OPI_LOWER_H

#include "partition/program/cut.h"

typedef struct opi_program_list {
  opi_arena arena;
  opi_step *steps;      /* one request, rank by rank; a stream repeats it */
  uint32_t *rank_first; /* [n_ranks + 1] */
  uint32_t n_steps, n_ranks;
} opi_program_list;

/* The plan's records are proven (partition/program/records.h). Receives stand just before their
 * consumer, sends right after their producer. Routes between stages of one rank need no step. */
opipe_status opi_lower(const opi_plan *plan, const opi_cut *cut, const opipe_allocator *allocator,
                       opi_program_list **out_list, opipe_error *err);
void opi_program_list_free(opi_program_list *list); /* accepts NULL */

/* The proof before running, on a stream of requests with `plan->depth` slots per route: every
 * (stage, micro-batch) exactly once, inputs before use, no deadlock under tag-matched messages with
 * back-pressure; else OPIPE_E_INVALID with rank, step, action and the cycle. */
opipe_status opi_prove(const opi_plan *plan, const opi_cut *cut, const opi_program_list *list,
                       const opipe_allocator *allocator, opipe_error *err);

#endif /* OPI_LOWER_H */
