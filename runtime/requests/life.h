/* SPDX-License-Identifier: Apache-2.0 */
/* A request's life, from the caller's side. compiled/request.h says how it fails.
 *
 *          begin            finish, withdraw,       on_done           (on_done is done,
 *   FREE ─────────► ACTIVE ────────────────► ENDING ────────► TELLING  or there is none)
 *    ▲                      passed, settle      │                │            │
 *    │ recycle                                  └────────────────┴────────────┴──► FINISHED
 *    └──────── once FINISHED, PASSED and RELEASED, whichever comes last
 *
 * Three flags stand beside the phase, each set once:
 *
 *   PASSING   a thread is about to set PASSED; no other one ends the request by passing it
 *   PASSED    no rank comes to it any more; it uses neither its shape nor lent tensors
 *   RELEASED  the caller has let go of it
 *
 *   transition     who                                lock          touched afterwards
 *   begin          the submitting thread              submit_lock   all, until it is published
 *   ► ENDING       one thread, by compare-exchange    none          that thread hands it back
 *   ► TELLING      the same thread                    none          on_done runs; finished for that
 *                                                                   thread alone
 *   ► FINISHED     the same thread                    none          nothing: it is the caller's
 *   PASSING        the last rank, end_all or settle   none          that thread passes it
 *   PASSED         the same thread                    none          nothing, unless the same
 * exchange made it ENDING RELEASED       the caller                         none          nothing
 *   recycle        the last of these three            pool's lock   nothing: it is free
 *
 * A request that was withdrawn (OPI_BEGUN_NEVER) is handed back at once and passed by the ranks
 * later. Every other one ends and passes in one exchange (set_passed), since a request that has
 * ended and was released is another request's memory the moment it has passed.
 *
 * A request is begun anew only under submit_lock. So a thread with that lock may go on writing to a
 * request that settle has ended meanwhile: its memory is in the pool at most. opi_session_settle
 * meets only requests of its own session after the failure: one that was begun anew between its
 * look and its exchange was begun by a submit that had not seen the failure, and must end as well.
 * A submit that begins one after settle has gone by settles itself (opi_submit_end).
 *
 * No on_done runs under submit_lock, so that it may call anything. Under that lock requests are
 * only failed (opi_request_fail, opi_session_break); they are handed back when the lock is free, by
 * end_all in held.c, opi_submit_end or leave_out_held. A request that the reference runs under the
 * lock cannot be withdrawn any more (begun is YES before), so that a missed deadline only fails it.
 * A wait for a device under the lock (a trace) may fail the session, but then no request is
 * unfinished, and settle hands none back.
 */
#ifndef OPI_LIFE_H
#define OPI_LIFE_H

#include "runtime/executor/executor.h"

enum {
  OPI_REQUEST_FREE = 0,
  OPI_REQUEST_ACTIVE = 1,
  OPI_REQUEST_ENDING = 2,
  OPI_REQUEST_TELLING = 3,
  OPI_REQUEST_FINISHED = 4,
  OPI_REQUEST_PROGRESS = 7, /* the bits of the above; the flags: */
  OPI_REQUEST_PASSED = 8,
  OPI_REQUEST_RELEASED = 16,
  OPI_REQUEST_PASSING = 32
};
enum { OPI_REQUEST_OVER = OPI_REQUEST_FINISHED | OPI_REQUEST_PASSED | OPI_REQUEST_RELEASED };

typedef struct opi_session opi_session;

/* The caller's side of a request. */
typedef struct opi_caller {
  opi_session *session;
  opi_handle_entry *slot; /* in the table of handles, kept from request to request */
  uint64_t handle;        /* the host's, from submit to release */
  uint64_t stream;        /* the host's number; requests of one stream finish in order */
  void (*on_done)(void *ctx, opipe_request *request, opipe_status status); /* NULL: none */
  void *on_done_ctx;
  _Atomic uint32_t state;   /* OPI_REQUEST_* */
  _Atomic uint32_t waiting; /* a thread is in request_wait */
  opi_request *next_free;   /* the pool's lock */
  /* links among held requests (held.c); submit_lock */
  opi_request *next_fenced, *ahead_in_stream, *behind_in_stream, *next_in_row;
  bool held, foremost; /* foremost: the first held one of its stream */
} opi_caller;

static inline uint32_t opi_request_progress(const opi_request *request) {
  return atomic_load_explicit(&request->caller->state, memory_order_acquire) & OPI_REQUEST_PROGRESS;
}

/* -- request.c: the pool -- */
opi_request *opi_request_new(opi_session *session, opipe_error *err);
void opi_request_recycle(opi_request *request);
/* Makes a request that is about to be published ACTIVE, with a handle of its own. */
void opi_request_begin(opi_request *request, const opipe_submit_params *params);

/* -- finish.c: how it ends -- */
void opi_request_finish(opi_request *request); /* ends it for the caller; the first call counts */
void opi_request_passed(opi_request *request); /* the last rank is done with it; ends it, too */
void opi_request_let_go(opi_request *request); /* the caller is done with it */
/* Is the request finished for this thread? In its on_done it is. */
bool opi_request_over(const opi_request *request);
/* Asks the host's on_output for the memory of a result; NULL: it gives none. As in an on_done, this
 * thread must not wait meanwhile. */
opipe_status opi_result_ask(const opi_setup *setup, const opipe_submit_params *params,
                            uint32_t output, const opi_result *result, void **out_data,
                            opipe_error *err);
/* Ends all unfinished requests of a failed session, unless a rank still touches their memory. */
void opi_session_settle(opi_session *session);
/* Are all unfinished requests their callers' already (they were cancelled, or other ranks made
 * their results), so that the ranks here only have to pass them? */
bool opi_session_only_passes(opi_session *session);
/* Is a request about to be handed back? It does not count in n_unfinished any more. */
bool opi_session_is_ending(opi_session *session);

#endif /* OPI_LIFE_H */
