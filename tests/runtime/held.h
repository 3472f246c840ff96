/* SPDX-License-Identifier: Apache-2.0 */
/* The toy backend with queues that do nothing by themselves: what they are given is noted, and done
 * in order by whoever asks one of their events, as many programs as the test has let go. */
#ifndef TESTS_RUNTIME_HELD_H
#define TESTS_RUNTIME_HELD_H

#include "tests/runtime/toy.h"

/* Set and read between and while sessions run. */
typedef struct held_gate {
  _Atomic uint64_t n_let_go;   /* programs that may be done, of all queues */
  _Atomic uint64_t n_done;     /* programs that were */
  _Atomic uint64_t n_waiting;  /* programs that wait in queues now, */
  _Atomic uint64_t most_waits; /* and the most that ever did in one */
  _Atomic uint64_t n_polls;    /* times that an event was asked */
  _Atomic uint64_t n_given_up; /* queues: what waits in them is never done */
} held_gate;
extern held_gate gate;

/* For devices without OPIPE_DEVICE_SYNCHRONOUS. */
const opipe_backend *held_table(void);

/* Nothing is let go, nothing counted. */
void held_reset(void);
static inline void held_let_all_go(void) {
  atomic_store(&gate.n_let_go, UINT64_MAX / 2);
}

#endif /* TESTS_RUNTIME_HELD_H */
