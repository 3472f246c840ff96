/* SPDX-License-Identifier: Apache-2.0 */
/* What streams of requests keep from one request to the next; part of host.h.
 *
 *   plan_make (pairs)  session_state_open -> state      session_submit (state), ... in order
 *     "present" -> "past"                   state_reset, state_copy, state_get, state_close
 *
 * A pair says that an output is the same stream's input in its next request (keys and values of a
 * decoder, the state of a recurrence). It is a decision of the plan. What makes the output and what
 * reads the input are in one stage: a cut that is searched keeps them together, one that is given
 * and does not is refused with both stages. What is kept lies on the device of that stage's rank
 * and never travels (stages behind may read the output as any other tensor).
 *
 * A *state* is one stream: of every pair two buffers, of which a request reads one and writes the
 * other, so that the next one finds its input where it was made. Every request that names the state
 * belongs to the stream: they run in the order of submission, as many in flight as the session
 * takes, beside those of other streams and such that name no state and give all inputs themselves.
 *   The first request of a state, and the first after a reset, gives the input of every pair (zero
 * elements are fine). Later ones do not: its shape is that of the output before. The outputs of
 * pairs stay on their device: request_output answers NOTFOUND for them; state_get reads them.
 *   A request whose input or output has more elements than the state has room for is refused with
 * LIMIT, by pair, with both numbers; nothing has happened then.
 *   A request that was cancelled, is late or has failed leaves the state as nobody knows: it, those
 * of the stream behind it, and calls that need what it keeps (submit, state_copy from it, the
 * content of state_get) answer STATE until the reset.
 *
 * Sessions with some of the ranks each: every session makes the same calls in the same order; each
 * keeps what its own ranks hold. A request behind one that failed is then accepted, and fails.
 */
#ifndef OPIPE_STATE_H
#define OPIPE_STATE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stream's state. Its handle lives until state_close or session_close. */
typedef struct opipe_state opipe_state;

/* Of equal element types and shapes; one dimension may differ, which is free in the input. Names
 * are borrowed for the call. Each output and each input is in one pair at most. */
typedef struct opipe_state_pair {
  const char *output;
  const char *input;
  uint64_t capacity; /* elements of each of the two buffers, for streams that say nothing else; 0:
                        what the model is bound with, the larger of output and input */
} opipe_state_pair;

typedef struct opipe_state_params {
  uint32_t struct_size;
  uint32_t n_capacities;      /* 0: the plan's; else as many as the plan has pairs */
  const uint64_t *capacities; /* [n_capacities] elements of each of the two buffers, in the order of
                                 the plan's pairs; 0: the plan's. Borrowed for the call */
} opipe_state_params;

enum {
  OPIPE_STATE_EMPTY = 1u,    /* no request since it was opened or reset: no shape, no content */
  OPIPE_STATE_BROKEN = 2u,   /* a request has failed: reset it */
  OPIPE_STATE_ELSEWHERE = 4u /* this pair is kept by a rank of another session */
};

/* A pair of a state, as the last request that was accepted leaves it. Names belong to the session.
 */
typedef struct opipe_state_info {
  uint32_t struct_size;
  uint32_t flags; /* OPIPE_STATE_* */
  const char *output;
  const char *input;
  uint64_t n_elems;  /* now */
  uint64_t capacity; /* elements of each of the two buffers */
  uint64_t n_bytes;  /* of n_elems: what state_get reads */
  uint32_t dtype;    /* OPIPE_FLOAT ... */
  uint32_t stage;    /* of the plan */
  uint32_t holder;   /* rank of the plan that keeps it */
  uint32_t rank;     /* dimensions in shape */
  int64_t shape[16]; /* [rank], OPIPE_MAX_RANK at most */
} opipe_state_info;

#include "frozen/state.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_STATE_H */
