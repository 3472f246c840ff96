/* SPDX-License-Identifier: Apache-2.0 */
/* What a session keeps to serve requests, grouped by who writes it and when. */
#ifndef OPI_SERVING_H
#define OPI_SERVING_H

#include "runtime/requests/life.h"

/* All requests ever made. */
typedef struct opi_pool {
  opi_request **all;
  uint32_t n, room;
  opi_request *free;
} opi_pool;

/* Requests that are kept from the ranks; submit_lock but for what is atomic. held.c */
typedef struct opi_held {
  opi_request *first; /* oldest first */
  opi_request **end;  /* the last one's link */
  opi_request **rows; /* [mask + 1] the last of each stream of them, hashed */
  uint32_t mask;
  uint64_t gate; /* requests with this number and later ones are kept: rest.c */
  _Atomic uint32_t n;
  _Atomic uint64_t since_ns;        /* when the first of them came, or the last of them went */
  _Atomic uint64_t look_ns;         /* before that nobody looks at them without need */
  _Atomic(opi_request *) looked_at; /* whose fences somebody reads, who holds submit_lock */
} opi_held;

/* Sleep of those who wait for room; room.c */
typedef struct opi_room {
  opi_lock lock;
  _Atomic uint32_t n_waiters;
  _Atomic uint64_t n_passed;   /* requests, ever */
  _Atomic uint64_t full_at;    /* 1 + n_passed when a submit found no room for its shape; 0: none */
  _Atomic uint64_t awaited_at; /* n_passed when a submit came to need shapes->awaited; `lock` */
} opi_room;

/* Callers that wait; `lock` is the pool's too. */
typedef struct opi_waits {
  opi_lock lock;
  _Atomic uint32_t n_waiters;
  _Atomic uint64_t lately_ns;  /* how long callers waited, lately: request.c */
  uint32_t spin_us;            /* a caller looks so long before it sleeps */
  uint32_t cores;              /* idle ones, on which callers may look for longer; 0: ranks compute,
                                  or the host chose */
  _Atomic int32_t finished_fd; /* readable when a request has finished; -1: none */
} opi_waits;

/* Training's own. steps.c, rest.c */
typedef struct opi_steps {
  opi_request *held;        /* double-buffered: its body has not been published; submit_lock */
  uint64_t n_items;         /* published; submit_lock */
  uint64_t n_steps;         /* double-buffered, reference: that ranks have got; submit_lock */
  opi_lock rest_lock;       /* of whoever reads or writes parameters */
  _Atomic uint64_t resting; /* that thread; 0: nobody */
} opi_steps;

struct opi_peers; /* peers.h */

struct opi_session {
  opi_setup *setup;
  opi_shapes *shapes;
  opi_engine *engine;
  opi_budget *caps;  /* that ranks have together; within the context's. NULL: none */
  bool opened;       /* all of it: threads run */
  opi_lock run_lock; /* the reference: taken before submit_lock, where requests run and end */
  /* submit_lock */
  uint64_t first_stream;               /* of the first request; */
  const struct opi_stream *first_kept; /* the same, where it has a state */
  bool has_streams;                    /* requests of more than one were given */
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
void opi_session_ring_finished(opi_session *session); /* the descriptor that says so */

/* -- peers: see opi_weights_options.share. Blocks until all sessions have called it -- */
opipe_status opi_peers_share(opi_session *session, uint32_t holder, void *data, uint64_t n_bytes,
                             opipe_status had, opipe_error *io_err);

/* -- held.c -- */
opipe_status opi_held_open(opi_session *session, opipe_error *err);
/* Gives the ranks the requests whose input fences are set by now, and ends those of them that have
 * failed; unless somebody else is at it (`waits`: until he is done). */
void opi_session_look(opi_session *session, bool waits);
/* The same, unless somebody has looked just now. */
void opi_session_admit(opi_session *session);
uint64_t opi_held_looks_ns(const opi_session *session); /* UINT64_MAX: none is held */
/* Around what submits: takes submit_lock (the reference: run_lock before), and gives it. `request`:
 * NULL, none was begun. */
void opi_submit_begin(opi_session *session);
void opi_submit_end(opi_session *session, opi_request *request);
/* The ranks get it, or it is kept from them. Under submit_lock, as all that follows. */
void opi_request_start(opi_request *request, bool goes);
/* May ranks be given the request, as far as fences go? */
bool opi_request_may_go(const opi_request *request);
/* The last one that is held of its stream; NULL: none. */
opi_request *opi_held_last(const opi_request *like);
/* How many are held of those with this number and later ones. */
uint32_t opi_held_from(const opi_session *session, uint64_t number);

/* -- submit.c -- */
/* A request from the pool, without a shape. OPIPE_PENDING: max_in_flight are unfinished.
 * submit_lock */
opipe_status opi_submit_admit(opi_session *session, opi_request **out_request, opipe_error *err);
/* Gives back a request that was not begun. status: why; n_passed: room.n_passed before its shape
 * was looked for. OPIPE_PENDING without a flag that is waited for: the shape finds no room.
 * submit_lock */
void opi_submit_refuse(opi_session *session, opi_request *request, uint64_t n_passed,
                       opipe_status status);
void opi_request_publish(opi_request *request); /* the ranks get it; the reference runs it */
/* Memory of the library's own for a result. */
opipe_status opi_result_own(const opi_setup *setup, uint32_t output, opi_result *result,
                            opipe_error *err);
/* A caller's buffer for output `output`, checked against the result's shape. */
opipe_status opi_result_take(const opi_setup *setup, uint32_t output, const opipe_binding_io *io,
                             opi_result *result, opipe_error *err);

/* -- room.c -- */
void opi_room_await(opi_session *session, const uint32_t *flag); /* opi_shapes_above.await_value */
/* One request less is unfinished, or the session ends: wakes those who wait for room. */
void opi_room_tell(opi_session *session);

/* -- steps.c -- */
opipe_status opi_ticket_make(opi_request *request, opipe_error *err); /* of a training session */
void opi_ticket_free(opi_request *request);
/* A double-buffered ticket that is held back for the next step goes out: the caller waits for it,
 * or lets go of it. */
void opi_train_let_finish(opi_request *request);
void opi_train_leave_none(opi_session *session); /* whichever is */
/* Its labels are there: shifts and counts them, where that has not been done. OPIPE_PENDING: they
 * are not. submit_lock */
opipe_status opi_train_look(opi_request *request, opipe_error *err);
void opi_train_publish(opi_request *request);      /* the ranks get it, in its turn. submit_lock */
void opi_train_finished(opi_request *request);     /* the last rank is done */
double opi_train_loss(const opi_request *request); /* of all micro-batches, in their order */

#endif /* OPI_SERVING_H */
