/* SPDX-License-Identifier: Apache-2.0 */
/* Inference by copies of the pipeline: model folder x schedule's forward form x stages x copies x
 * micro-batches x rows, each a session that serves requests of two numbers of rows under a plan
 * that was written and read.
 *
 * A case holds when every result has the bits of the plan's reference and is close to the uncut
 * model that was bound to those rows, and the session's memory is what the plan predicts, or when
 * the model is refused as cases.h has it.
 */
#ifndef TESTS_MATRIX_COPIES_H
#define TESTS_MATRIX_COPIES_H

#include "tests/matrix/cases.h"
#include "tests/runtime/train/kit.h"

/* full: every model folder under every schedule, the other choices drawn by a fixed seed. Else a
 * cover: every other folder (third, under a sanitizer), each under one schedule, which takes them
 * all in turn. Fails the running test for each case that does not hold, and where a value of a
 * dimension never passed. places: of the
 * plans, by model in turn. */
void mx_copies(bool full, const kit_place *places, uint32_t n_places, mx_count *count);

#endif /* TESTS_MATRIX_COPIES_H */
