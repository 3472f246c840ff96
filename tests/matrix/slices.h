/* SPDX-License-Identifier: Apache-2.0 */
/* Inference in token slices over the model folders: what is causal runs and has the bits of the
 * plan's reference, what is not is refused with the node or output and the reason. */
#ifndef TESTS_MATRIX_SLICES_H
#define TESTS_MATRIX_SLICES_H

#include "tests/matrix/kit.h"
#include "tests/runtime/train/kit.h"

typedef struct mx_sliced {
  uint32_t passed, failed, refused, models; /* models: of which some case ran */
} mx_sliced;

/* full: all cases; else a cover. Fails the running test for each that does not hold, and for a
 * decoder of the shelf that is refused. places: of the plans, by
 * model and binding in turn. */
void mx_slices(bool full, const kit_place *places, uint32_t n_places, mx_sliced *count);
/* Is it a decoder of the shelf whose outputs are rows of tokens? */
bool mx_is_decoder(const char *name);
/* Is a schedule with slices refused for a reason of the model's tokens? */
bool mx_slices_refused(const char *message);

#endif /* TESTS_MATRIX_SLICES_H */
