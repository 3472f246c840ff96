/* SPDX-License-Identifier: Apache-2.0 */
/* Plans whose programs and messages take modelled times, simulated and run: their lists played on a
 * cluster that says of the links what the transport is opened with, beside sessions on emulated
 * devices. */
#ifndef TESTS_TRAIN_SIMULATED_H
#define TESTS_TRAIN_SIMULATED_H

#include "tests/runtime/train/kit.h"

typedef struct simulated_case {
  const char *schedule, *rule;
  const char *cut;                                    /* NULL: the planner's */
  uint32_t n_ranks, chunks, n_microbatches, replicas; /* ranks of one copy; stages of a rank */
  double latency_us, bandwidth; /* bytes per second of every stream, and of a rank's sums */
  bool unequal;                 /* stages take different times */
  bool clips;      /* double-buffered: by a norm of all ranks, which wait for each other
                      at every update */
  bool follow;     /* mini-batches are given one behind the other, not alone */
  bool tied;       /* the first stage and the last read one parameter */
  uint32_t tensor; /* members of a tensor group, counted in n_ranks; every program takes one time;
                      0: none */
  bool scattered;  /* which send parts to other stages */
  bool queued;     /* asynchronous devices, programs an eighth as long: measured on their clock */
  bool buckets;    /* a chain of products whose gradients are a bucket each */
  bool shard;      /* the optimizer's state is shared out */
  double host_bandwidth; /* all stashes wait in the host's memory; 0: none does */
} simulated_case;

/* The first SIMULATED_COVER have one of every kind. */
enum { SIMULATED_CASES = 45, SIMULATED_COVER = 9 };
extern const simulated_case simulated_cases[SIMULATED_CASES];

/* By the plan's own clock, which knows nothing of sums over ranks, and played, in ns. */
void simulated_play(const simulated_case *c, double *out_planned, double *out_played);
/* Gradients of `buckets`: how many, the bytes of each, and the times of a stage's passes in ns. */
enum { SIMULATED_BUCKETS = 5, SIMULATED_WIDTH = 1024 };
double simulated_pass_ns(uint32_t phase);
/* The best of some steps of a session is within 1.5 % of what was simulated. Fails the test where
 * it is not. */
void simulated_run(const simulated_case *c);
/* On asynchronous devices, by the clock of their programs: within 1 %. */
void simulated_queue(const simulated_case *c);

#endif /* TESTS_TRAIN_SIMULATED_H */
