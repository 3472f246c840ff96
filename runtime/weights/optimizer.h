/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of one update of an optimizer. Inside runtime/weights. */
#ifndef OPI_WEIGHTS_OPTIMIZER_H
#define OPI_WEIGHTS_OPTIMIZER_H

#include "runtime/weights/weights.h"

/* The loss scale that a session begins with, and what belongs to it. */
void opi_optimizer_first_scale(const opi_optimizer *optimizer, opi_weights_clock *io_clock);
bool opi_optimizer_decays(const opi_optimizer *optimizer, const char *name);
/* Everything of update number `update` (0: the first) but regions and element counts. */
void opi_optimizer_fill(const opi_optimizer *optimizer, uint64_t update, double gradient_scale,
                        opipe_update *out_update);

#endif /* OPI_WEIGHTS_OPTIMIZER_H */
