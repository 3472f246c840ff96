/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that a training session continues from, by value, to be taken from one session and put
 * into others: the folder that a run resumed may be overwritten by its own checkpoints. */
#ifndef CLI_TRAIN_STATE_H
#define CLI_TRAIN_STATE_H

#include "train_loop.h"

/* Number of moments that the run's optimizer keeps for a parameter. */
uint32_t train_n_moments(const train_run *run);
/* Copies the state of the loop's session between two steps. moments: with the optimizer's. To be
 * freed, whatever the status. */
int train_state_take(const train_loop *l, bool moments, train_state *out);
/* Sets the state of the loop's session, which may be of another plan. Parameters that it does not
 * read are skipped. */
int train_state_put(const train_loop *l, const train_state *state);
void train_state_free(train_state *state);

#endif /* CLI_TRAIN_STATE_H */
