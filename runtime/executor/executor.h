/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/executor: what a rank does with the requests that it was given.
 *
 *   workers.h   what the ranks are at; what is told upwards (opi_engine_above, opi_elsewhere)
 *
 * One thread per rank interprets its list, or the host drives it; the reference runs all lists in
 * the submitting thread.
 *
 * Invariants
 * - Ranks take requests in the order in which they were published, each rank all of them.
 * - The step loop takes no lock and allocates nothing. Every step happens or answers OPIPE_PENDING
 *   and is tried again, so an interpreter may stop at any step and go on later, on any thread.
 * - A request that has failed flows on: messages are received and sent, only loads, programs and
 *   stores are left out.
 * - A rank touches a request's memory only between opi_rank_touch and opi_rank_let_go, which say so
 *   to whoever would hand a failed session's requests back.
 * - What a rank has queued for a request is over before it leaves the request.
 * - A request ends for the caller when the last rank with a part in it leaves it (finish), and is
 *   the requests layer's again when the last rank of all has (passed).
 * - The executor knows the session's fixed part and its shapes. It calls the layer above only
 *   through the tables of workers.h, and only where a request begins or ends, or a thread waits.
 */
#ifndef OPI_EXECUTOR_H
#define OPI_EXECUTOR_H

#include "runtime/executor/workers.h"

/* ---- with the session ---- */

/* The engine is zeroed. Ring and workers, in the session's arena; before devices are open. */
opipe_status opi_engine_open(opi_engine *engine, opi_setup *setup, opipe_error *err);
opipe_status opi_engine_build(opi_engine *engine, opipe_error *err); /* once shapes are open */
opipe_status opi_session_start(opi_setup *setup, opipe_error *err);  /* threads of all ranks */
void opi_session_join(opi_setup *setup);
/* Asynchronous devices: entries and events; all that is queued is done; given back. [control] */
opipe_status opi_ahead_open(opi_rank *rank, opipe_error *err);
void opi_ahead_end(opi_rank *rank);
void opi_ahead_close(opi_rank *rank); /* accepts ranks without */

/* ---- running ---- */

/* Runs the rank as far as it goes. OPIPE_OK: no request left; OPIPE_PENDING: blocked; < 0: the
 * session has failed. */
opipe_status opi_rank_advance(opi_rank *rank, opipe_error *err);
/* Waits until something may have changed, at most until `until_ns`; watches. A transport that fails
 * while it waits has failed the session, which has the error. */
opipe_status opi_rank_wait(opi_rank *rank, uint32_t seen, bool idle, uint64_t until_ns);
uint64_t opi_rank_looks_ns(const opi_rank *rank); /* how soon it looks at its device again */
/* When to look again at a host's flag that has been waited for since then. */
uint64_t opi_flag_looks_ns(uint64_t since_ns);
void opi_rank_rest(opi_rank *rank); /* nobody runs it any more, for the watchdog */
/* Runs a request of the reference in this thread. */
opipe_status opi_reference_run(opi_setup *setup, opi_request *request, opipe_error *err);
/* Fails the session when a rank has been stuck for the watchdog's time. Any thread. */
void opi_watch(opi_setup *setup);

/* ---- requests ---- */

/* Ranks that have a part in it. */
uint32_t opi_request_n_taking(const opi_request *request);
/* The rank is done with it: the last of those here ends it. */
void opi_request_leave(const opi_rank *rank, opi_request *request);
/* A request's memory is touched only between these; false: the session has failed, do not. */
bool opi_rank_touch(opi_rank *rank);
void opi_rank_let_go(opi_rank *rank);
/* No rank has begun it: then it finishes now, and false comes from then on. Its reason is set. */
bool opi_request_withdraw(opi_request *request);
/* The same for a training step, whose fate is decided here: other ranks' sums need what one has
 * begun, so a step is left out as a whole or not at all. */
bool opi_step_leave_out(opi_request *request, const opipe_error *why);
/* Fails it if it is late. rank NULL: the caller's side; stage OPIPE_NONE: the rank is about to
 * begin. A training step that has begun is done, however late. */
void opi_request_check_deadline(opi_request *request, const opi_rank *rank, uint32_t stage);
/* The same of one that no rank has been given; whoever keeps it ends it. */
void opi_request_check_held(opi_request *request);
/* Shifts a step's labels for causal models. OPIPE_PENDING: they are not there. */
opipe_status opi_train_shift(opi_setup *setup, opi_request *request, opipe_error *err);

/* ---- the session's end ---- */

/* Ends the session: the first reason stays, all ranks stop, unfinished requests end. `request`:
 * whose step failed, NULL: nobody's. */
void opi_session_fail(opi_setup *setup, uint32_t rank, opi_request *request,
                      const opipe_error *why);
/* The same under submit_lock, where no request ends: whoever gives it back settles. */
void opi_session_break(opi_setup *setup, uint32_t rank, opi_request *request,
                       const opipe_error *why);

/* ---- traces ---- */

/* Does the rank take times by its device's clock? The session is at rest: the host's clock is met;
 * what the rank's spans are off it by. [control] */
bool opi_rank_has_stamps(const opi_rank *rank);
opipe_status opi_stamps_meet(const opi_setup *setup, opipe_error *err);
int64_t opi_stamps_shift(const opi_rank *rank);

/* Counts one of the owner's own numbers on, for others to read. */
static inline void opi_count_on(_Atomic uint64_t *number) {
  atomic_store_explicit(number, atomic_load_explicit(number, memory_order_relaxed) + 1,
                        memory_order_relaxed);
}

#endif /* OPI_EXECUTOR_H */
