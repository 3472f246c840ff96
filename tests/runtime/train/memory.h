/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of training plans, judged case by case: what is predicted is what devices hand out, by
 * category; it is enough to the byte and one byte less is refused with the numbers, by the plan's
 * caps and by a context's budget alike; freed memory may be overwritten. And the table of all
 * schedules that these cases go through.
 */
#ifndef TESTS_TRAIN_MEMORY_H
#define TESTS_TRAIN_MEMORY_H

#include "tests/runtime/train/kit.h"

/* A schedule with the ranks and micro-batches that it is tried with (8 rows, 8 tokens). */
typedef struct memory_row {
  const char *schedule; /* NULL: a text of orders, written by memory_schedule */
  uint32_t n_ranks, n_microbatches;
  bool sliced;          /* of models that are causal along tokens */
  uint32_t replicas[2]; /* of the schedule's ranks, which are two; 0: one each */
} memory_row;
enum { MEMORY_ROWS = 38, MEMORY_SLICED = 3, MEMORY_TURN = 7 };
extern const memory_row memory_rows[MEMORY_ROWS];

/* The row's schedule as kit_plan takes it. */
const char *memory_schedule(const memory_row *row);
/* Cross entropy on "labels"; kind OPIPE_OPTIMIZER_*. */
kit_case memory_case(const memory_row *row, uint32_t recompute, uint32_t kind);

/* Compares the bytes that the session's devices have handed out with the prediction of the kit's
 * plan, by rank and category; fails the running test where they differ. */
bool memory_as_predicted(kit *k, opi_session *session, const char *what);

typedef struct memory_count {
  uint32_t passed, failed, refused; /* refused: with a reason, by design */
} memory_count;
/* All of it for one plan; what does not hold fails the running test. `k` is open. */
void memory_check(kit *k, const kit_case *c, const char *what, memory_count *count);
/* Every row of the table (one in MEMORY_TURN where a cover is enough): one recompute and optimizer
 * in turn, or all of them. */
void memory_check_model(const char *path, int64_t tokens, bool causal, bool all,
                        memory_count *count);

/* Every row of the table by tensor groups of 2 and of 3, with the ranks of each multiplied: in turn
 * plain, in rows and in parts over links, and one recompute and optimizer in turn. A refusal of the
 * form in rows is counted, and the plain form taken. */
void memory_check_groups(const char *path, int64_t tokens, bool causal, memory_count *count);

#endif /* TESTS_TRAIN_MEMORY_H */
