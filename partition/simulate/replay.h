/* SPDX-License-Identifier: Apache-2.0 */
/* Replays the lowered lists of a stream of requests in modelled time: the simulator of forward
 * plans, and the engine of the proof. */
#ifndef OPI_REPLAY_H
#define OPI_REPLAY_H

#include "partition/schedule/lower.h"

typedef struct opi_replay_result {
  double request_ns;         /* the first request, from its start to its last result */
  double interval_ns;        /* between results in the steady state (last half of the stream) */
  double *start_ns, *end_ns; /* [n_actions] given, of the first request's programs; NULL: not wanted
                              */
} opi_replay_result;

/* stage_ns [n_stages]: time of one micro-batch, NULL: all 0, and messages too; else those take
 * what plan->link says. n_requests >= 1. A deadlock is
 * OPIPE_E_INVALID: rank, step and action of every rank on the cycle. */
opipe_status opi_replay(const opi_plan *plan, const opi_cut *cut, const opi_program_list *list,
                        const double *stage_ns, uint32_t n_requests,
                        const opipe_allocator *allocator, opi_replay_result *out_result,
                        opipe_error *err);

#endif /* OPI_REPLAY_H */
