/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/executor: how ranks run the requests that they are given.
 *
 *   workers.h   the ranks' state; the calls upwards (opi_engine_above, opi_elsewhere)
 *
 * One thread per rank interprets its list, or the host drives it; the reference runs all lists in
 * the submitting thread.
 *
 * Invariants
 * - Every rank takes all requests, in the order in which they were published.
 * - The step loop takes no lock and allocates nothing. Every step happens or answers OPIPE_PENDING
 *   and is tried again, so an interpreter may stop at any step and go on later, on any thread.
 * - A failed request flows on: messages are received and sent, only loads, programs and stores are
 *   left out.
 * - A rank touches a request's memory only between opi_rank_touch and opi_rank_let_go, so that a
 *   failed session's requests are not handed back meanwhile.
 * - Work that a rank has queued for a request is done before the rank leaves the request.
 * - A request ends for the caller when the last rank with a part in it leaves it (finish). It is
 *   the requests layer's again when the last rank of all has left it (passed).
 * - The executor knows the session's fixed part and its shapes. It calls the layer above only
 *   through the tables of workers.h, and only where a request begins or ends, or a thread waits.
 */
#ifndef OPI_EXECUTOR_H
#define OPI_EXECUTOR_H

#include "runtime/executor/workers.h"

/* ---- with the session ---- */

/* Makes ring and workers in the session's arena, before devices are open. The engine is zeroed. */
opipe_status opi_engine_open(opi_engine *engine, opi_setup *setup, opipe_error *err);
opipe_status opi_engine_build(opi_engine *engine, opipe_error *err); /* once shapes are open */
opipe_status opi_session_start(opi_setup *setup, opipe_error *err);  /* threads of all ranks */
void opi_session_join(opi_setup *setup);
/* For asynchronous devices: open makes entries and events, end waits for queued work, close frees.
 * [control] */
opipe_status opi_ahead_open(opi_rank *rank, opipe_error *err);
void opi_ahead_end(opi_rank *rank);
void opi_ahead_close(opi_rank *rank); /* accepts ranks without */

/* ---- running ---- */

/* Runs the rank as far as it goes. OPIPE_OK: no request left; OPIPE_PENDING: blocked; < 0: the
 * session has failed. */
opipe_status opi_rank_advance(opi_rank *rank, opipe_error *err);
/* Waits until something may have changed, at most until `until_ns`, and lets the watchdog look. A
 * transport error during the wait fails the session, which has the error. */
opipe_status opi_rank_wait(opi_rank *rank, uint32_t seen, bool idle, uint64_t until_ns);
uint64_t opi_rank_looks_ns(const opi_rank *rank); /* time until it looks at its device again */
/* Time until the next look at a host's flag that has been waited for since `since_ns`. */
uint64_t opi_flag_looks_ns(uint64_t since_ns);
void opi_rank_rest(opi_rank *rank); /* tells the watchdog that nobody runs the rank any more */
/* Runs a request in this thread, for the reference. */
opipe_status opi_reference_run(opi_setup *setup, opi_request *request, opipe_error *err);
/* Fails the session if a rank has been stuck for the watchdog's time. Any thread. */
void opi_watch(opi_setup *setup);
/* Tells where the ranks here are. An opi_tell_fn; ctx: opi_setup. */
uint32_t opi_watch_tell(void *setup, opi_told *out, uint32_t room);
/* A peer has gone: waits a moment for what the other processes say about it, since a transport
 * knows no more than that it is gone. *why becomes their reason, with what `rank` is at. False:
 * they say nothing, *why stays. */
bool opi_watch_explain(opi_setup *setup, uint32_t rank, opipe_error *why);

/* ---- requests ---- */

/* The number of ranks here that have a part in the request. */
uint32_t opi_request_n_taking(const opi_request *request);
/* The rank is done with the request. The last one here ends it. */
void opi_request_leave(const opi_rank *rank, opi_request *request);
/* A request's memory is touched only between these. False: the session has failed, do not touch. */
bool opi_rank_touch(opi_rank *rank);
void opi_rank_let_go(opi_rank *rank);
/* Finishes the request, whose reason is set, if no rank has begun it. False: one has, or it has
 * been withdrawn before. */
bool opi_request_withdraw(opi_request *request);
/* Fails and withdraws a training step, on the same condition. A step is left out by all ranks or by
 * none, since other ranks' sums need a step that one rank has begun. */
bool opi_step_leave_out(opi_request *request, const opipe_error *why);
/* Fails the request if it is late. rank NULL: called from the caller's side; stage OPIPE_NONE: the
 * rank is about to begin. A training step that has begun is completed, however late. */
void opi_request_check_deadline(opi_request *request, const opi_rank *rank, uint32_t stage);
/* The same for a request that no rank has been given. Its keeper ends it. */
void opi_request_check_held(opi_request *request);
/* Shifts a step's labels for causal models. OPIPE_PENDING: the labels are not there yet. */
opipe_status opi_train_shift(opi_setup *setup, opi_request *request, opipe_error *err);

/* ---- the session's end ---- */

/* Ends the session: the first reason stays, all ranks stop, unfinished requests end. `request`: the
 * one whose step failed; NULL: none. */
void opi_session_fail(opi_setup *setup, uint32_t rank, opi_request *request,
                      const opipe_error *why);
/* The same under submit_lock, where no request may end: whoever releases the lock settles. */
void opi_session_break(opi_setup *setup, uint32_t rank, opi_request *request,
                       const opipe_error *why);

/* ---- traces ---- */

/* has_stamps: does the rank take times by its device's clock? meet: relates the devices' clocks to
 * the host's; the session is at rest. shift: the offset to add to the rank's spans. [control] */
bool opi_rank_has_stamps(const opi_rank *rank);
opipe_status opi_stamps_meet(const opi_setup *setup, opipe_error *err);
int64_t opi_stamps_shift(const opi_rank *rank);

/* Increments a counter that only the calling thread writes and others read. */
static inline void opi_count_on(_Atomic uint64_t *number) {
  atomic_store_explicit(number, atomic_load_explicit(number, memory_order_relaxed) + 1,
                        memory_order_relaxed);
}

#endif /* OPI_EXECUTOR_H */
