/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/session, and so of the runtime: a session is an opened plan that serves
 * requests. abi/api calls this, and the layers' own headers for the rest: requests.h (submit, wait,
 * release), train.h, streams.h (states), trace/trace.h, checkpoint/checkpoint.h.
 *
 *   submit ► compiled shape, by signature ► every rank interprets its list ► the request finishes
 *
 * Thread rules, lifetimes and errors are those that opipe/host.h states for the function of the
 * same name. In a forked child every function answers OPIPE_E_STATE "opened in another process",
 * and close does nothing. Parameters have all fields and are checked as abi/api/params.h says;
 * arrays have the caller's strides.
 *
 * Invariants
 * - Open makes the layers from the ground up, close takes them down in reverse order, also after an
 *   open that failed half-way.
 * - The plan's own shape is complete when open returns.
 */
#ifndef OPI_SESSION_H
#define OPI_SESSION_H

#include <opipe/host.h>

#include "runtime/requests/requests.h"

opipe_status opi_session_open(const opi_session_env *env, const opipe_session_params *params,
                              opi_session **out_session, opipe_error *err);
/* Ends all requests and the threads; calls that are inside return soon. Close must follow. */
void opi_session_stop(opi_session *session);
void opi_session_close(opi_session *session); /* accepts NULL */

opipe_status opi_session_drive(opi_session *session, uint32_t rank, uint64_t timeout_ns,
                               opipe_error *err);
/* rank OPIPE_NONE: the descriptor is readable when a request has finished. */
opipe_status opi_session_fd(opi_session *session, uint32_t rank, int32_t *out_fd, opipe_error *err);
opipe_status opi_session_memory(opi_session *session, uint32_t rank, opipe_memory_info *io_info,
                                opipe_error *err);
opipe_status opi_session_info(opi_session *session, opipe_session_info *io_info, opipe_error *err);
/* *out_needed: 1 if ranks here read the input in the plan's own shape, else 0. */
opipe_status opi_session_needs(opi_session *session, const char *input, uint32_t *out_needed,
                               opipe_error *err);
/* OPIPE_OK, or why the session has failed. */
opipe_status opi_session_reason(const opi_session *session, opipe_error *err);
/* The ranks here go on by themselves, while the caller waits for other sessions to close. */
void opi_session_linger(opi_session *session);

void opi_session_close_fds(opi_session *session); /* drive.c */

#endif /* OPI_SESSION_H */
