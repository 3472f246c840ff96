/* SPDX-License-Identifier: Apache-2.0 */
/* A small model, its plan and a backend with four operators: what the runtime's tests run on.
 *
 *   x [batch, seq, 8] -> n0 -> n1 -> ... -> y       every node: Mix (a * w + 1/4) with a parameter
 * of its own, but every third one, which adds the value of three nodes before: these tensors skip
 * stages outputs: y, mid (also read further on), x itself, a constant, q = Mix(p) without batch, t
 * = y with batch and seq swapped, f = y with batch and seq in one dimension
 *
 * The backend computes for real; faults, stalls and flags of the device are set in toy_faults.
 */
#ifndef TESTS_RUNTIME_TOY_H
#define TESTS_RUNTIME_TOY_H

#include <stdatomic.h>

#include "partition/make/make.h"
#include "runtime/session/session.h"
#include "tests/support/support.h"

enum { TOY_WIDTH = 8, TOY_MAX_NODES = 64, TOY_MAX_RANKS = 8, TOY_MAX_STAGES = 16 };
enum {
  TOY_Y = 0,
  TOY_MID = 1,
  TOY_X = 2,
  TOY_CONSTANT = 3,
  TOY_Q = 4,
  TOY_T = 5,
  TOY_F = 6,
  TOY_OUTPUTS = 7
};

/* Faults of the toy backend. Set before the session is opened, but for the counters. */
typedef struct toy_faults {
  const char *fail_node; /* the run of the program that holds this node fails */
  uint32_t fail_at;      /* at its nth run (1: the first); 0: never */
  int32_t fail_status;
  const char *unbound_node; /* bind of the program that holds it answers OK, and no binding */
  const char *stall_node;   /* ... takes stall_ms longer */
  uint32_t stall_at;        /* 0: always when stall_ms != 0 */
  uint32_t stall_ms;
  uint32_t device_flags; /* OPIPE_DEVICE_* */
  uint64_t memory_bytes; /* of a device */
  _Atomic uint32_t n_fail_runs, n_stall_runs;
  _Atomic uint64_t n_runs;
  _Atomic uint64_t last_end_ns; /* clock at the end of the last run: for measuring hand-offs */
  uint64_t *
      hops; /* [hops_room] time from the end of one run to the start of the next, by whoever runs */
  uint32_t hops_room;
  _Atomic uint32_t n_hops;
} toy_faults;

typedef struct toy_plan {
  uint32_t n_nodes, n_stages, n_ranks, n_microbatches, depth, in_flight;
  int64_t rows, seq;
  const uint32_t *rank_of_stage; /* NULL: stage s on rank s % n_ranks */
  bool by_microbatch; /* order of a rank: micro-batch after micro-batch; else stage after stage */
  uint64_t memory_bytes; /* cap of every device, 0: none */
} toy_plan;

typedef struct toy {
  const opipe_allocator *allocator;
  opipe_host host;
  toy_faults faults;
  toy_plan shape;
  opi_model model;
  opi_plan *plan;
  const opipe_plugin *transport_plugin;
  opipe_instance *transport_self;
  opi_session_env env;
  opi_backend_ref backends[TOY_MAX_RANKS];
  opi_session *session;
  uint32_t *ready;  /* host flag that what is submitted waits for; NULL: none */
  uint64_t stream;  /* of what is submitted */
  bool needs_value; /* binding needs the value of input "p", as a loader would say it */
  uint32_t n_binds;
} toy;

/* Fills `t` (zeroed by the caller; allocator and faults may be set before), without opening the
 * session. */
opipe_status toy_make(toy *t, const toy_plan *shape, const opipe_plugin *transport,
                      opipe_error *err);
opipe_status toy_open(toy *t, const opipe_session_params *params, opipe_error *err);
void toy_end(toy *t); /* closes the session too */

/* Input of element `i` of request `seed`. */
float toy_input(uint32_t seed, size_t i);

typedef struct toy_request {
  opi_request *request;
  float *x, *p;
  int64_t shape_x[3], strides_x[3], shape_p[1];
  int64_t rows, seq;
  uint32_t seed;
  float *y; /* caller's buffer for y when `own` was asked for */
} toy_request;
enum {
  TOY_STRIDED = 1u,
  /* x comes transposed in memory */ TOY_OWN_Y = 2u,
  TOY_NAN = 4u /* one NaN in the last row */
};
/* Submits; OPIPE_PENDING as opi_session_submit. `out` is zeroed first. */
opipe_status toy_submit(toy *t, int64_t rows, int64_t seq, uint32_t seed, uint32_t flags,
                        uint64_t deadline_ns, toy_request *out, opipe_error *err);
/* Compares all outputs of a finished request, in a session of some ranks those that it has, with a
 * plain computation, bit by bit. */
bool toy_check(const toy *t, const toy_request *request);
void toy_release(toy_request *request);
/* Submit, wait, check, release. */
bool toy_round(toy *t, int64_t rows, int64_t seq, uint32_t seed, uint32_t flags);

extern const opipe_backend toy_backend;
extern const opipe_plugin OPIPE_PLUGIN_STATIC(transport_local);
extern const opipe_plugin OPIPE_PLUGIN_STATIC(transport_emulated);
extern const opipe_plugin OPIPE_PLUGIN_STATIC(transport_strict);
extern const opipe_plugin OPIPE_PLUGIN_STATIC(backend_emulated);

/* for toy_backend.c */
static inline toy *toy_of(opipe_instance *self) {
  return (toy *)(void *)self;
}
uint64_t toy_now_ns(void);

#endif /* TESTS_RUNTIME_TOY_H */
