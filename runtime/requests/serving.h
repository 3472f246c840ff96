/* SPDX-License-Identifier: Apache-2.0 */
/* A session's state for serving requests, grouped by who writes it and when. */
#ifndef OPI_SERVING_H
#define OPI_SERVING_H

#include "runtime/requests/life.h"

/* All requests ever made. */
typedef struct opi_pool {
  opi_request **all;
  uint32_t n, room;
  opi_request *free;
} opi_pool;

/* Requests that are kept from the ranks. Under submit_lock, except atomic fields. held.c */
typedef struct opi_held {
  opi_request *first; /* oldest first */
  opi_request **end;  /* the last one's link */
  opi_request **rows; /* [mask + 1] the last held request of each stream, hashed */
  uint32_t mask;
  uint64_t gate; /* requests with this number and later ones are kept; rest.c */
  _Atomic uint32_t n;
  _Atomic uint64_t since_ns;        /* when the first one came, or the last one went */
  _Atomic uint64_t look_ns;         /* the earliest time of the next look */
  _Atomic(opi_request *) looked_at; /* the one whose fences a thread with submit_lock reads */
} opi_held;

/* Threads that wait for room. room.c */
typedef struct opi_room {
  opi_lock lock;
  _Atomic uint32_t n_waiters;
  _Atomic uint64_t n_passed;   /* requests passed so far */
  _Atomic uint64_t full_at;    /* 1 + n_passed when a submit found no room for its shape; 0: none */
  _Atomic uint64_t awaited_at; /* n_passed when shapes->awaited was set; `lock` */
} opi_room;

/* Callers that wait. `lock` also guards the pool. */
typedef struct opi_waits {
  opi_lock lock;
  _Atomic uint32_t n_waiters;
  _Atomic uint64_t lately_ns;  /* mean of the last waits; request.c */
  uint32_t spin_us;            /* a caller spins for this long before it sleeps */
  uint32_t cores;              /* idle cores, on which callers may spin longer; 0: ranks compute, or
                                  the host chose spin_us */
  _Atomic int32_t finished_fd; /* readable when a request has finished; -1: none */
} opi_waits;

/* State of training only. steps.c, rest.c */
typedef struct opi_steps {
  opi_request *held;        /* double-buffered: its body is not published yet; submit_lock */
  uint64_t n_items;         /* items published; submit_lock */
  uint64_t n_steps;         /* double-buffered, reference: steps given to ranks; submit_lock */
  opi_lock rest_lock;       /* held by the call that reads or writes parameters */
  _Atomic uint64_t resting; /* its thread; 0: none */
} opi_steps;

struct opi_peers; /* peers.h */

struct opi_session {
  opi_setup *setup;
  opi_shapes *shapes;
  opi_engine *engine;
  opi_budget *caps;  /* caps of ranks together, within the context's; NULL: none */
  bool opened;       /* open has succeeded */
  bool lingers;      /* being closed: threads drive the ranks, also where the host did */
  opi_lock run_lock; /* reference: taken before submit_lock, to run and end requests */
  /* under submit_lock */
  uint64_t first_stream;               /* the first request's stream, */
  const struct opi_stream *first_kept; /* or its state */
  bool has_streams;                    /* there were requests of more than one stream */
  uint32_t rung_version;               /* shapes->version when all ranks were last rung */
  opi_held held;
  opi_steps steps;
  opi_pool pool; /* waits.lock */
  opi_waits waits;
  opi_room room;
  _Atomic uint32_t n_unfinished;
  _Atomic uint64_t n_done, n_failed;
  struct opi_peers *peers; /* NULL: all ranks are here */
};

/* -- request.c, open.c -- */
void opi_pool_free(opi_session *session);
void opi_session_ring_finished(opi_session *session); /* makes finished_fd readable */

/* -- share.c -- */
/* opi_weights_options.share. Blocks until all sessions have called it. */
opipe_status opi_peers_share(opi_session *session, uint32_t holder, void *data, uint64_t n_bytes,
                             opipe_status had, opipe_error *io_err);

/* -- held.c -- */
opipe_status opi_held_open(opi_session *session, opipe_error *err);
/* Gives the ranks the held requests whose fences are set by now, and ends those that have failed.
 * If another thread does that, returns at once, or (`waits`) looks after it. */
void opi_session_look(opi_session *session, bool waits);
/* The same, unless a thread has looked just now. */
void opi_session_admit(opi_session *session);
uint64_t opi_held_looks_ns(const opi_session *session); /* until the next look; UINT64_MAX: none */
/* Begin and end of a submit: take and release submit_lock (in the reference also run_lock).
 * `request` NULL: none was begun. */
void opi_submit_begin(opi_session *session);
void opi_submit_end(opi_session *session, opi_request *request);
/* Gives the request to the ranks, or (goes false) holds it. Under submit_lock, as all that follow.
 */
void opi_request_start(opi_request *request, bool goes);
/* Are the fences set that the ranks must not wait for? */
bool opi_request_may_go(const opi_request *request);
/* The last held request of the same stream; NULL: none. */
opi_request *opi_held_last(const opi_request *like);
/* The number of held requests with this number or a later one. */
uint32_t opi_held_from(const opi_session *session, uint64_t number);

/* -- submit.c -- */
/* A request from the pool, without a shape. OPIPE_PENDING: max_in_flight are unfinished.
 * submit_lock */
opipe_status opi_submit_admit(opi_session *session, opi_request **out_request, opipe_error *err);
/* Tells that the next request is accepted, last of all; an error refuses it. submit_lock */
opipe_status opi_submit_follow(const opi_session *session, opipe_error *err);
/* Gives back a request that was not begun. status: why; n_passed: room.n_passed before its shape
 * was looked for. OPIPE_PENDING without a flag that is waited for: the shape finds no room.
 * submit_lock */
void opi_submit_refuse(opi_session *session, opi_request *request, uint64_t n_passed,
                       opipe_status status);
void opi_request_publish(opi_request *request); /* gives it to the ranks; the reference runs it */
/* Takes the library's own memory for a result. */
opipe_status opi_result_own(const opi_setup *setup, uint32_t output, opi_result *result,
                            opipe_error *err);
/* Takes a caller's buffer for output `output`, after comparing it with the result's shape. */
opipe_status opi_result_take(const opi_setup *setup, uint32_t output, const opipe_binding_io *io,
                             opi_result *result, opipe_error *err);

/* -- room.c -- */
void opi_room_await(opi_session *session, const uint32_t *flag); /* opi_shapes_above.await_value */
/* Wakes threads that wait for room: a request has passed, or the session ends. */
void opi_room_tell(opi_session *session);

/* -- steps.c -- */
opipe_status opi_ticket_make(opi_request *request, opipe_error *err); /* only in training */
void opi_ticket_free(opi_request *request);
/* Publishes the end of a double-buffered step that is held back for the next one, since the caller
 * waits for it or lets go of it. */
void opi_train_let_finish(opi_request *request);
void opi_train_leave_none(opi_session *session); /* the same for any such step */
/* Shifts and counts the step's labels, unless that is done. OPIPE_PENDING: the labels are not there
 * yet. submit_lock */
opipe_status opi_train_look(opi_request *request, opipe_error *err);
void opi_train_publish(opi_request *request);      /* gives it to the ranks. submit_lock */
void opi_train_finished(opi_request *request);     /* the last rank is done: sets the loss */
double opi_train_loss(const opi_request *request); /* summed in the order of micro-batches */

#endif /* OPI_SERVING_H */
