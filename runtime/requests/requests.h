/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/requests: from a submit to a release. Functions for hosts have the thread rules,
 * lifetimes and errors that opipe/host.h states for the function of the same name.
 *
 *   life.h     a request's life: its states, who moves it, under which lock
 *   serving.h  a session's state for serving requests
 *   train.h    steps, evaluations, rest between steps
 *
 * Invariants
 * - One submitter at a time (submit_lock); the order of submission is the order in which every rank
 *   works. A submit of a known shape allocates nothing after warm-up.
 * - A request belongs to its caller until release and to the ranks until they have passed it. The
 *   last to let go gives it back to the pool.
 * - A request whose fences are not set is kept from the ranks, together with later requests of its
 *   stream: ranks run requests in order, so none may wait for the host.
 * - Order of locks: run_lock, submit_lock, shapes->lock or waits.lock or room.lock. rest_lock comes
 *   before submit_lock.
 * - No on_done runs under a lock.
 *
 * This layer fills in the executor's tables (opi_engine_above, opi_elsewhere) and the shapes'
 * (opi_shapes_above).
 */
#ifndef OPI_REQUESTS_H
#define OPI_REQUESTS_H

#include "runtime/requests/serving.h"
#include "runtime/requests/train.h"

/* ---- with the session ---- */

/* Makes locks and fills in the tables that the layers below call. The session is zeroed, except
 * setup, shapes and engine. */
opipe_status opi_requests_begin(opi_session *session, opipe_error *err);
opipe_status opi_requests_open(opi_session *session, opipe_error *err); /* the pool's first ones */
/* Makes all handles stale; returns when no call is inside. */
void opi_requests_shut(opi_session *session);
void opi_requests_stop(opi_session *session); /* frees the backends' objects */
void opi_requests_end(opi_session *session);  /* undoes begin */

/* Ranks of other sessions; nothing happens if all ranks are here. check: UNSUPPORTED says why the
 * plan's ranks cannot be in several sessions. open: once streams can be opened. leave: waits, at
 * most for the watchdog's time, until the others have heard everything that they need. close:
 * before the endpoints. */
opipe_status opi_peers_check(const opi_setup *setup, opipe_error *err);
opipe_status opi_peers_open(opi_session *session, opipe_error *err);
void opi_peers_leave(opi_session *session);
void opi_peers_close(opi_session *session);
/* Bytes of the letters of a rank with n_lanes lanes: rank 0 has one for each rank elsewhere, those
 * have one each. n_values: lanes of values, of which the first rank of process 0 has one for each
 * other process, those processes' first ranks one each. leads: the rank is a process's first. */
uint64_t opi_peers_bytes(const opi_decision *plan, uint32_t rank, uint32_t n_lanes,
                         uint32_t n_values, bool leads);
uint64_t opi_peers_travelled(const opi_session *session); /* bytes of inputs and outputs so far */

/* ---- for hosts ---- */

/* out_handle: the host's handle of the request, valid even if an on_done has released the request
 * already; may be NULL. */
opipe_status opi_session_submit(opi_session *session, const opipe_submit_params *params,
                                opi_request **out_request, opipe_request **out_handle,
                                opipe_error *err);
/* Checks, before the lists of `params` are read, that there are no more inputs and outputs than the
 * session has. trains: a step or an evaluation is asked for. */
opipe_status opi_session_check_counts(const opi_session *session, const char *call, bool trains,
                                      const opipe_submit_params *params, opipe_error *err);
/* Host flags may have been set: held requests, and ranks that wait for a flag, look again. */
opipe_status opi_session_flags_set(opi_session *session, opipe_error *err);
opipe_status opi_session_wait_room(opi_session *session, uint64_t timeout_ns, opipe_error *err);
/* Is this thread inside an on_done, from where nothing may wait? */
bool opi_session_in_on_done(void);
/* The host's handle: stale once the request is released or its session stopped. */
opipe_request *opi_request_handle(const opi_request *request);
opipe_status opi_request_poll(opi_request *request, opipe_error *err);
opipe_status opi_request_wait(opi_request *request, uint64_t timeout_ns, opipe_error *err);
opipe_status opi_request_queued(opi_request *request, uint64_t timeout_ns, opipe_error *err);
opipe_status opi_request_cancel(opi_request *request, opipe_error *err);
opipe_status opi_request_output(opi_request *request, uint32_t index, opipe_tensor *out_tensor,
                                opipe_error *err);
/* May a release wait? Not if the caller may have to drive a rank, or is on a rank's thread. */
bool opi_request_release_waits(const opi_request *request);
void opi_request_release(opi_request *request); /* accepts NULL */

#endif /* OPI_REQUESTS_H */
