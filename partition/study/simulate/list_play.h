/* SPDX-License-Identifier: Apache-2.0 */
/* The lists that a session executes, on a cluster: with their own posts, drains, reserved places,
 * sums over replicas, of tied parameters and of norms, and barriers at updates. */
#ifndef OPI_LIST_PLAY_H
#define OPI_LIST_PLAY_H

#include "partition/plan/playlist.h"
#include "partition/study/simulate/order_play.h"

typedef struct opi_list_played {
  opi_play play;
  opi_played result;
  double step_ns;      /* of a request or a mini-batch; double-buffered: in the steady state */
  uint32_t n_batches;  /* requests or mini-batches played */
  opi_do_list *labels; /* labels of operations: one action per item of the playlist, with the plan's
                          stages and micro-batches; owned: opi_do_list_free */
} opi_list_played;

/* Plays the predicted lists, with rank r on device r: one request of a stream; one mini-batch of a
 * step that flushes; `n_bodies` (0: 8) bodies of a double-buffered order between its prologue and
 * its epilogue. Reads cluster, collective, n_bodies and apart from `how`. Allocates in `arena`,
 * except labels. Errors: INVALID, an end of a message that is never sent, or is sent twice; as
 * opi_play_run; LIMIT, more operations than 2^32. */
opipe_status opi_list_play_run(const opi_plan *plan, const opi_order_play *how, opi_arena *arena,
                               opi_list_played *out_played, opipe_error *err);

#endif /* OPI_LIST_PLAY_H */
