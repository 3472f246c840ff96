/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/requests: from a submit to a release. Thread rules, lifetimes and errors of what
 * hosts call are those that opipe/host.h states for the function of the same name.
 *
 *   life.h     a request's life: its states, who moves it, under which lock
 *   serving.h  what a session keeps to serve requests
 *   train.h    steps, evaluations, rest between steps
 *
 * Invariants
 * - One submitter at a time (submit_lock); the order of submission is the order in which every rank
 *   works. A submit of a known shape allocates nothing after warm-up.
 * - A request belongs to its caller until release and to the ranks until they have passed it;
 *   whoever lets go last gives it to the pool.
 * - A request whose fences are not set is kept from the ranks, with what comes behind it in its
 *   stream: what ranks are given they do in turn, and nothing of it may wait for the host.
 * - Order of locks: run_lock, submit_lock, shapes->lock or waits.lock or room.lock. rest_lock comes
 *   before submit_lock.
 * - No on_done runs under a lock.
 *
 * The executor's tables (opi_engine_above, opi_elsewhere) and the shapes' (opi_shapes_above) are
 * filled in here.
 */
#ifndef OPI_REQUESTS_H
#define OPI_REQUESTS_H

#include "runtime/requests/serving.h"
#include "runtime/requests/train.h"

/* ---- with the session ---- */

/* Locks, and what the layers below call up; the session is zeroed but for setup, shapes, engine. */
opipe_status opi_requests_begin(opi_session *session, opipe_error *err);
opipe_status opi_requests_open(opi_session *session, opipe_error *err); /* the pool's first ones */
/* All handles become stale; returns when nobody is inside. */
void opi_requests_shut(opi_session *session);
void opi_requests_stop(opi_session *session); /* what is the backends' */
void opi_requests_end(opi_session *session);  /* undoes begin */

/* Can the plan's ranks be in several sessions? UNSUPPORTED says why not. Then, once streams can
 * be; waits until the others have heard all that they have to, at most for the watchdog's time; and
 * before the endpoints. Nothing to do where all ranks are here. */
opipe_status opi_peers_check(const opi_setup *setup, opipe_error *err);
opipe_status opi_peers_open(opi_session *session, opipe_error *err);
void opi_peers_leave(opi_session *session);
void opi_peers_close(opi_session *session);

/* ---- for hosts ---- */

/* out_handle: what the host holds in the request's place, which stays right where an on_done has
 * let go of the request already; may be NULL. */
opipe_status opi_session_submit(opi_session *session, const opipe_submit_params *params,
                                opi_request **out_request, opipe_request **out_handle,
                                opipe_error *err);
/* Before the lists of `params` are read: no more inputs and outputs than the session has. trains:
 * is it asked for a step or an evaluation? */
opipe_status opi_session_check_counts(const opi_session *session, const char *call, bool trains,
                                      const opipe_submit_params *params, opipe_error *err);
/* Host flags may have been set: what is held and ranks that are at one look. */
opipe_status opi_session_flags_set(opi_session *session, opipe_error *err);
opipe_status opi_session_wait_room(opi_session *session, uint64_t timeout_ns, opipe_error *err);
/* Is this thread inside an on_done, from where nothing may wait? */
bool opi_session_in_on_done(void);
/* What the host holds in its place: stale once the request was released or its session stopped. */
opipe_request *opi_request_handle(const opi_request *request);
opipe_status opi_request_poll(opi_request *request, opipe_error *err);
opipe_status opi_request_wait(opi_request *request, uint64_t timeout_ns, opipe_error *err);
opipe_status opi_request_queued(opi_request *request, uint64_t timeout_ns, opipe_error *err);
opipe_status opi_request_cancel(opi_request *request, opipe_error *err);
opipe_status opi_request_output(opi_request *request, uint32_t index, opipe_tensor *out_tensor,
                                opipe_error *err);
/* May a release wait? Not for ranks that the caller himself may have to drive, or be one of. */
bool opi_request_release_waits(const opi_request *request);
void opi_request_release(opi_request *request); /* accepts NULL */

#endif /* OPI_REQUESTS_H */
