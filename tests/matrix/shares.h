/* SPDX-License-Identifier: Apache-2.0 */
/* Inference by replicas of single stages, which cut every micro-batch between them: model folder x
 * schedule's forward form x numbers of replicas x micro-batches x rows, each a session that serves
 * requests of two numbers of rows under a plan that was written and read; see copies.h.
 */
#ifndef TESTS_MATRIX_SHARES_H
#define TESTS_MATRIX_SHARES_H

#include "tests/matrix/copies.h"

/* full: every model folder under every case; else every other (third, under a sanitizer), each
 * under one, in turn. Fails the running test for each that does not hold. places: by model. */
void mx_shares(bool full, const kit_place *places, uint32_t n_places, mx_count *count);

#endif /* TESTS_MATRIX_SHARES_H */
