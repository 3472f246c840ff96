/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix: model folder x data set x fused or not x stages x schedule x micro-batches x caps.
 * Every case compares with the plan's reference (bits), the uncut model (close) and the data set,
 * and predicted with measured memory. */
#ifndef TESTS_MATRIX_CASES_H
#define TESTS_MATRIX_CASES_H

#include "tests/matrix/kit.h"
#include "tests/runtime/train/kit.h"

typedef struct mx_count {
  uint32_t passed, failed;
  uint32_t refused_rows, refused_batch, refused_node; /* micro-batches that cannot be */
  uint32_t capped, one_cut; /* plans that a cap moved; models whose cut no cap could move */
} mx_count;

typedef struct mx_scope {
  bool full;               /* all cases; else a cover: every stage count, the other choices in
                              pairs, in turn */
  uint32_t one_in;         /* of so many models one is taken, others in each cover; 0: all are */
  const kit_place *places; /* of plans, by model and binding in turn; n_places 0: the library's
                              choice */
  uint32_t n_places;
} mx_scope;
/* Fails the running test for each case that does not hold. */
void mx_matrix(const mx_scope *scope, mx_count *count);
/* One case; NULL when it holds, else why not (static storage). `uncut` is the whole model's. */
const char *mx_case(mx_model *m, opipe_plan *plan, const mx_result *uncut);
/* Compares the bytes that the devices of a session have handed out with the plan's prediction, by
 * rank and category; NULL or why not (static storage). */
const char *mx_memory(mx_model *m, opipe_plan *plan, opipe_session *session);
/* Several micro-batches were asked for, and m->err refuses them: as it must, with the node, or with
 * the rows that are missing? Counted then. */
bool mx_refused(mx_count *count, const mx_model *m, opipe_status status);

#endif /* TESTS_MATRIX_CASES_H */
