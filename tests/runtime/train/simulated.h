/* SPDX-License-Identifier: Apache-2.0 */
/* Plans whose programs and messages take modelled times, simulated and run: their lists played on a
 * cluster that says of the links what the transport is opened with, beside sessions on emulated
 * devices. */
#ifndef TESTS_TRAIN_SIMULATED_H
#define TESTS_TRAIN_SIMULATED_H

#include "tests/runtime/train/kit.h"

typedef struct simulated_case {
  const char *schedule, *rule;
  uint32_t n_ranks, chunks, n_microbatches, replicas; /* ranks of one copy; stages of a rank */
  double latency_us, bandwidth; /* bytes per second of every stream, and of a rank's sums */
  bool unequal;                 /* stages take different times */
  bool overlaps; /* sessions are faster than their lists say: what ends a step and what begins the
                    next run beside each other */
  bool clips;    /* by a norm of all ranks, which wait for each other at every update */
} simulated_case;

enum { SIMULATED_CASES = 17 };
extern const simulated_case simulated_cases[SIMULATED_CASES];

/* The plan's own clock and the play of its lists agree (without sums over replicas, of which the
 * first knows nothing): the two times in ns. */
void simulated_play(const simulated_case *c, double *out_planned, double *out_played);
/* The best of some steps of a session is within 1.5 % of what was simulated. Fails the test where
 * it is not. Not of cases that overlap. */
void simulated_run(const simulated_case *c);

#endif /* TESTS_TRAIN_SIMULATED_H */
