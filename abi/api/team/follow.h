/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions whose calls process 0 makes alone (OPIPE_SESSION_FOLLOWED). Nothing happens in others.
 *
 *   follow.c         process 0: tells the calls; the table of states
 *   follow_repeat.c  the others: repeat them
 */
#ifndef OPI_API_FOLLOW_H
#define OPI_API_FOLLOW_H

#include "abi/api/api.h"

/* Calls as they travel. */
enum {
  OPI_CALL_SUBMIT = 1,   /* accepted at process 0 */
  OPI_CALL_PREPARE = 2,  /* a submit of a new shape: accepted, or not, by a later word */
  OPI_CALL_ACCEPTED = 3, /* that word */
  OPI_CALL_REFUSED = 4,
  OPI_CALL_CANCEL = 5,
  OPI_CALL_STATE_OPEN = 6,
  OPI_CALL_STATE_RESET = 7,
  OPI_CALL_STATE_COPY = 8,
  OPI_CALL_STATE_CLOSE = 9,
  OPI_CALL_CLOSE = 10
};

/* n_items opi_followed_input, or capacities, follow. */
typedef struct opi_followed {
  uint32_t what, start; /* OPI_CALL_*, OPIPE_START_* */
  uint64_t number;      /* of the request */
  uint64_t stream, deadline_ns;
  uint32_t state, from; /* numbers of states, from 1; 0: none */
  uint32_t n_items, reserved;
} opi_followed;

/* Its shape [rank] follows, and n_bytes of its value, padded to 8. */
typedef struct opi_followed_input {
  uint32_t input, rank; /* index among the session's */
  opipe_dtype type;
  uint32_t has_data;
  uint64_t n_bytes;
} opi_followed_input;

typedef struct opi_followed_state {
  uint32_t number;
  opi_stream *stream;  /* process 0 */
  opipe_state *handle; /* elsewhere */
} opi_followed_state;

/* A request that is repeated. Its shapes and values lie in `bytes` until it has finished. */
typedef struct opi_followed_request {
  _Atomic uint32_t busy;
  uint64_t number;
  opipe_request *handle;
  uint8_t *bytes;
  uint64_t room;
} opi_followed_request;

struct opi_following {
  opi_session_object *session;
  pthread_mutex_t lock; /* process 0: one call at a time, so that the others hear them in order */
  uint32_t lane;
  bool leads; /* process 0 */
  uint8_t *bytes;
  uint64_t room, n;           /* the message that is made, or was heard */
  opi_followed_state *states; /* [n_states] */
  uint32_t n_states, states_room, last_state;
  /* process 0: the submit that is under way */
  const opipe_submit_params *params;
  uint32_t start, state;
  bool is_prepared;
  /* the others */
  bool awaits_word;  /* the request that is repeated was only prepared */
  uint64_t accepted; /* the number that it then got */
  uint64_t *cancels; /* [n_cancels] requests whose cancel came before that word */
  uint32_t n_cancels, cancels_room;
  opipe_binding_io *io; /* [n_io] */
  uint32_t n_io;
  opi_followed_request *requests; /* [n_requests] */
  uint32_t n_requests;
};

/* Checks the flag, and makes the session followed. Errors: INVALID, the flags that it needs. */
opipe_status opi_follow_open(opi_session_object *session, const opipe_session_params *params,
                             opipe_error *err);
/* The others take process 0's sizes and flags, so that all evict and refuse alike. Collective. */
opipe_status opi_follow_share(const opi_session_object *session, opipe_session_params *io_params,
                              opipe_error *err);
/* Is this another process than 0, whose calls it follows? */
bool opi_follow_is_led(const opi_session_object *session);
/* Refuses a call that process 0 alone makes. */
opipe_status opi_follow_check(const opi_session_object *session, const char *call,
                              opipe_error *err);
void opi_follow_tell_close(const opi_session_object *session); /* process 0's close begins */
void opi_follow_close(opi_session_object *session);            /* after the session's end */
/* opi_together.follow */
opipe_status opi_follow_word(void *meeting, uint32_t how, uint64_t number, opipe_error *err);

/* Around a submit or an evaluation; end: also after begin has failed. */
opipe_status opi_follow_begin(opi_session_object *session, uint32_t start,
                              const opipe_submit_params *params, opipe_error *err);
opipe_status opi_follow_end(opi_session_object *session, opipe_status status);
void opi_follow_cancelled(const opi_request *request);
/* States, after the call has succeeded; before state_close. */
opipe_status opi_follow_state_open(opi_session_object *session, const opipe_state_params *params,
                                   opipe_state **out_state, opipe_error *err);
/* Makes the call, and tells it. from: NULL, a reset. */
opipe_status opi_follow_state(opi_stream *stream, opi_stream *from, opipe_error *err);
void opi_follow_state_close(const opipe_state *handle);
/* Refuses a call that all processes would have to make. */
opipe_status opi_follow_refuse(const opi_session_object *session, const char *call,
                               opipe_error *err);

/* follow_repeat.c: waits for process 0's word. */
opipe_status opi_follow_await(opi_following *follow, opipe_error *err);

#endif /* OPI_API_FOLLOW_H */
