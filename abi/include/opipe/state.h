/* SPDX-License-Identifier: Apache-2.0 */
/* State that streams of requests keep from one request to the next; part of host.h.
 *
 *   plan_make (pairs)  session_state_open -> state      session_submit (state), ... in order
 *     "present" -> "past"                   state_reset, state_copy, state_get, state_close
 *
 * A pair says that an output becomes an input of the same stream's next request (keys and values of
 * a decoder, the state of a recurrence). Pairs are decisions of the plan. The output's producer and
 * the input's consumers must be in one stage: a searched cut keeps them together, and a given cut
 * that does not is refused with both stages. The content stays on the device of that stage's rank
 * and never travels (later stages may read the output as any other tensor).
 *
 * A *state* belongs to one stream. For every pair it has two buffers; a request reads one and
 * writes the other, so the next request finds its input where it was made. Every request that names
 * the state belongs to the stream. Requests of a stream run in the order of submission, as many in
 * flight as the session takes, beside other streams and requests that name no state and pass all
 * inputs.
 *   The first request of a state, and the first after a reset, passes the input of every pair
 * (zero elements are fine). Later ones do not: the shape is that of the previous output. Outputs of
 * pairs stay on their device: request_output answers NOTFOUND for them; state_get reads them.
 *     A request whose input or output has more elements than the state has room for is refused with
 * LIMIT, naming the pair and both numbers; nothing has changed then.
 *     A request that was cancelled, is late or has failed breaks the state. The state, later
 * requests of the stream, and calls that need the content (submit, state_copy from it, the content
 * of state_get) answer STATE until the reset.
 *
 * Sessions with some of the ranks each: every session makes the same calls in the same order, and
 * each keeps the content of its own ranks. A request after one that failed is then accepted, and
 * fails.
 */
#ifndef OPIPE_STATE_H
#define OPIPE_STATE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stream's state. Its handle lives until state_close or session_close. */
typedef struct opipe_state opipe_state;

/* A pair of equal element type and shape; one dimension may differ, which must be free in the
 * input. Names are borrowed for the call. Each output and each input is in one pair at most. */
typedef struct opipe_state_pair {
  const char *output;
  const char *input;
  uint64_t capacity; /* elements of each of the two buffers, unless a stream states its own; 0:
                        those of the bound model, the larger of output and input */
} opipe_state_pair;

typedef struct opipe_state_params {
  uint32_t struct_size;
  uint32_t n_capacities;      /* 0: the plan's; otherwise the plan's number of pairs */
  const uint64_t *capacities; /* [n_capacities] elements of each of the two buffers, in the order of
                                 the plan's pairs; 0: the plan's. Borrowed for the call */
} opipe_state_params;

enum {
  OPIPE_STATE_EMPTY = 1u,    /* no request since it was opened or reset: neither shape nor content
                              */
  OPIPE_STATE_BROKEN = 2u,   /* a request has failed; reset it */
  OPIPE_STATE_ELSEWHERE = 4u /* a rank of another session keeps this pair */
};

/* A pair of a state, as the last accepted request leaves it. Names belong to the session. */
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
  uint32_t holder; /* rank of the plan that keeps it; in tensor groups the first of those that do */
  uint32_t rank;   /* dimensions in shape */
  int64_t shape[16]; /* [rank], OPIPE_MAX_RANK at most */
} opipe_state_info;

#include "frozen/state.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_STATE_H */
