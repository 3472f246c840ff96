/* SPDX-License-Identifier: Apache-2.0 */
/* Training steps of two shapes in turn, in one session: model x schedule (of one replica, of
 * copies, of replicas that cut micro-batches) x ranks x micro-batches x optimizer x times given or
 * modelled x the other shape x which of the two comes first, with evaluations of both between the
 * steps.
 *
 * A case holds when losses, evaluations, the weights after the first step and after the last have
 * the bits of the plan's reference in the same turns; the first step is close to one of the uncut
 * model, planned for that shape; memory is what the plan predicts, as long as its own shape is
 * alone, and afterwards what the context is charged for and, where times are given (slots depend on
 * them), what two plans for the two shapes predict. Or when plan or step are refused with the
 * text that the constraint documents.
 */
#ifndef TESTS_MATRIX_TURNS_H
#define TESTS_MATRIX_TURNS_H

#include "tests/runtime/train/cases.h"

/* full: every model under every schedule with every other shape, the other choices drawn by a fixed
 * seed. Else a cover: every schedule once, models and shapes in turn. places: of the plans, in
 * turn. Fails the running test for each case that does not hold, and where a value of a dimension
 * never passed.
 */
void mx_turns(bool full, const kit_place *places, uint32_t n_places, kit_tally *tally);

#endif /* TESTS_MATRIX_TURNS_H */
