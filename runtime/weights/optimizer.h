/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of one update of an optimizer. Inside runtime/weights. */
#ifndef OPI_WEIGHTS_OPTIMIZER_H
#define OPI_WEIGHTS_OPTIMIZER_H

#include "runtime/weights/weights.h"

/* Sets loss scale, `scales` and `n_good` as a session begins with them. */
void opi_optimizer_first_scale(const opi_optimizer *optimizer, opi_weights_clock *io_clock);
bool opi_optimizer_decays(const opi_optimizer *optimizer, const char *name);
/* Fills in update number `update` (0: the first), except regions and element counts. */
void opi_optimizer_fill(const opi_optimizer *optimizer, uint64_t update, double gradient_scale,
                        opipe_update *out_update);

#endif /* OPI_WEIGHTS_OPTIMIZER_H */
