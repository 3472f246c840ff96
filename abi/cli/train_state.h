/* SPDX-License-Identifier: Apache-2.0 */
/* All that a training session goes on from, taken out of one and put into others: by value, since
 * the folder that a run went on from may be written over by what the run saves.
 */
#ifndef CLI_TRAIN_STATE_H
#define CLI_TRAIN_STATE_H

#include "train_loop.h"

/* Moments that the run's optimizer keeps for a parameter. */
uint32_t train_n_moments(const train_run *run);
/* Of the loop's session, between two steps; `moments`: those of the optimizer too. To be freed,
 * whatever the status. */
int train_state_take(const train_loop *l, bool moments, train_state *out);
/* Into the loop's session, which may be of another plan. What it does not read is left out. */
int train_state_put(const train_loop *l, const train_state *state);
void train_state_free(train_state *state);

#endif /* CLI_TRAIN_STATE_H */
