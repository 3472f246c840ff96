/* SPDX-License-Identifier: Apache-2.0 */
/* A session: an opened plan that serves requests. What abi/api's session_* and request_* functions
 * do, handle checks excepted.
 *
 *   submit -> (compiled shape, by signature) -> every rank's thread interprets its lowered list ->
 * the request finishes
 *
 * Thread rules, lifetimes and errors are those that opipe/host.h states for the function of the
 * same name. In a forked child every function answers OPIPE_E_STATE "opened in another process",
 * and close does nothing.
 */
#ifndef OPI_SESSION_H
#define OPI_SESSION_H

#include <opipe/host.h>

#include "partition/plan/plan.h"
#include "runtime/device/budget.h"

typedef struct opi_session opi_session;
typedef struct opi_request opi_request;

/* How a shape's graph is made. NULL members: opi_bind, and what is known
 * of the batch from a binding of its own. */
typedef struct opi_shape_source {
  opipe_status (*bind)(const opi_model *model, const opi_bind_options *options,
                       opi_bound **out_bound, opipe_error *err);
  opipe_status (*carry)(const opi_graph *graph, const opi_carry *in_carry, opi_carry *out_carry,
                        opipe_error *err);
} opi_shape_source;

/* Parameters of sessions and requests are whole, and checked as abi/api/params.h says, when they
 * come here; arrays have the caller's strides. */

/* All borrowed: must outlive the session. */
typedef struct opi_session_env {
  const opipe_allocator *allocator;
  const opi_logger *logger; /* may be NULL */
  const opi_model *model;
  const opi_plan *plan;
  const opi_backend_ref *backends; /* [plan->n_ranks] */
  opi_transport_ref transport;
  const char *transport_options;  /* may be NULL */
  const opi_evaluator *evaluator; /* for binding further shapes; may be NULL */
  opi_budget *budget;             /* may be NULL */
  opi_shape_source source;
  uint64_t owner;    /* handle of the context, to which its requests belong; 0: none */
  const bool *local; /* [plan->n_ranks] ranks that are here, at least one; NULL: all */
  uint32_t cores;    /* cores that the ranks may use; 0: those the process is allowed */
} opi_session_env;

opipe_status opi_session_open(const opi_session_env *env, const opipe_session_params *params,
                              opi_session **out_session, opipe_error *err);
/* Ends all that is in flight and the threads; calls that are inside return soon. To be closed. */
void opi_session_stop(opi_session *session);
void opi_session_close(opi_session *session); /* accepts NULL */

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
opipe_status opi_session_drive(opi_session *session, uint32_t rank, uint64_t timeout_ns,
                               opipe_error *err);
/* rank: OPIPE_NONE, readable when a request has finished. */
opipe_status opi_session_fd(opi_session *session, uint32_t rank, int32_t *out_fd, opipe_error *err);
/* Is this thread inside an on_done, from where nothing may wait? */
bool opi_session_in_on_done(void);
opipe_status opi_session_memory(opi_session *session, uint32_t rank, opipe_memory_info *io_info,
                                opipe_error *err);
/* The last request or training step, measured and planned. format: OPIPE_TRACE_*.
 * Training flushes. title: of the page; NULL: none. Errors: STATE, some are unfinished, or nothing
 * has run. trace/session.c */
opipe_status opi_session_trace(opi_session *session, uint32_t format, const char *title,
                               opipe_write_fn write, void *ctx, opipe_error *err);
opipe_status opi_session_info(opi_session *session, opipe_session_info *io_info, opipe_error *err);

/* What a stream keeps (opipe/state.h). In `params->state` of a submit stands the opi_stream. */
typedef struct opi_stream opi_stream;
opipe_status opi_stream_open(opi_session *session, const opipe_state_params *params,
                             opipe_state **out_state, opipe_error *err);
opipe_status opi_stream_reset(opi_stream *stream, opipe_error *err);
opipe_status opi_stream_copy(opi_stream *to, opi_stream *from, opipe_error *err);
/* dst NULL: no content. */
opipe_status opi_stream_get(opi_stream *stream, uint32_t pair, opipe_state_info *out_info,
                            void *dst, uint64_t n_bytes, opipe_error *err);

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

#endif /* OPI_SESSION_H */
