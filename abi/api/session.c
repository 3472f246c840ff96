/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: resolves the plan's plugins, keeps model and plan alive as long as the session is open,
 * and hands every call to the runtime, whose request objects are the host's request handles.
 */
#include <string.h>

#include "abi/api/api.h"

opipe_status opi_session_check_handle(const opipe_session *session, opipe_error *err) {
  return opi_handle_check(session == NULL ? NULL : &session->head, OPI_MAGIC_SESSION, "session",
                          err);
}

static opipe_status check(const opipe_session *session, opipe_error *err) {
  return opi_session_check_handle(session, err);
}

static void forget(opipe_session *s) {
  opipe_context *context = s->plan->model->context;
  const opipe_allocator *allocator = &context->allocator;
  opi_free(allocator, s->backends, s->n_ranks * sizeof(*s->backends));
  opipe_plan *plan = s->plan;
  opi_free(allocator, s, sizeof(*s));
  opi_plan_unref(plan);
}

static opipe_status open_runtime(opipe_context *context, opipe_session *s,
                                 const opipe_session_params *params, opipe_error *err) {
  const opi_plan *plan = s->plan->plan;
  char id[64];
  opi_session_env env = {.allocator = &context->allocator,
                         .logger = &context->logger,
                         .model = s->plan->model->file,
                         .plan = plan,
                         .backends = s->backends,
                         .budget = context->budget,
                         .cores = context->cores};
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    OPI_TRY(context->plugins.backend(context->plugins.ctx, plan->devices[r].kind, &s->backends[r],
                                     err));
  }
  OPI_TRY(opi_transport_split(plan->transport, id, &env.transport_options, err));
  OPI_TRY(context->plugins.transport(context->plugins.ctx, id, &env.transport, err));
  OPI_TRY(opi_context_evaluator(context, &env.evaluator, err));
  return opi_session_open(&env, params, &s->session, err);
}

opipe_status opi_api_session_open(opipe_context *context, opipe_plan *plan,
                                  const opipe_session_params *params, opipe_session **out_session,
                                  opipe_error *err) {
  opipe_session_params own = {.spin_us = UINT32_MAX};
  OPI_TRY(
      opi_handle_check(context == NULL ? NULL : &context->head, OPI_MAGIC_CONTEXT, "context", err));
  OPI_TRY(opi_handle_check(plan == NULL ? NULL : &plan->head, OPI_MAGIC_PLAN, "plan", err));
  if (out_session == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_open: out_session is NULL");
  if (plan->model->context != context)
    return opi_fail(err, OPIPE_E_INVALID, "session_open: the plan belongs to another context");
  if (params != NULL) {
    if (params->struct_size < OPIPE_END(opipe_session_params, flags)) {
      return opi_fail(err, OPIPE_E_ABI, "session_open: struct_size is %u", params->struct_size);
    }
    memcpy(&own, params, params->struct_size < sizeof(own) ? params->struct_size : sizeof(own));
  }
  own.struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes);
  opipe_session *s = opi_alloc_zero(&context->allocator, 1, sizeof(*s));
  if (s == NULL)
    return opi_fail_nomem(err, sizeof(*s), "a session");
  opi_handle_init(&s->head, OPI_MAGIC_SESSION);
  (void)atomic_fetch_add_explicit(&plan->head.refs, 1, memory_order_relaxed);
  s->plan = plan;
  s->n_ranks = plan->plan->n_ranks;
  s->backends = opi_alloc_zero(&context->allocator, s->n_ranks, sizeof(*s->backends));
  const opipe_status status =
      s->backends == NULL ? opi_fail_nomem(err, s->n_ranks * sizeof(*s->backends), "a session")
                          : open_runtime(context, s, &own, err);
  if (status < 0) {
    forget(s);
    return status;
  }
  *out_session = s;
  return OPIPE_OK;
}

void opi_api_session_close(opipe_session *s) {
  if (check(s, NULL) < 0 || !opi_handle_drop(&s->head))
    return;
  opi_session_close(s->session);
  forget(s);
}

opipe_status opi_api_session_submit(opipe_session *s, const opipe_submit_params *params,
                                    opipe_request **out_request, opipe_error *err) {
  opi_request *request = NULL;
  OPI_TRY(check(s, err));
  if (params == NULL || out_request == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_submit: an argument is NULL");
  const opipe_status status = opi_session_submit(s->session, params, &request, err);
  if (status == OPIPE_OK)
    *out_request = opi_request_handle(request);
  return status;
}

/* The runtime's request behind a handle, and the way into it. */
static opipe_status enter(opipe_request *request, const char *call, opi_entry *out_entry,
                          opi_request **out_request, opipe_error *err) {
  OPI_TRY(opi_handle_enter(request, OPI_HANDLE_REQUEST, call, out_entry, err));
  *out_request = out_entry->object;
  return OPIPE_OK;
}

opipe_status opi_api_request_poll(opipe_request *request, opipe_error *err) {
  opi_entry in;
  opi_request *r = NULL;
  OPI_TRY(enter(request, "request_poll", &in, &r, err));
  const opipe_status status = opi_request_poll(r, err);
  opi_handle_leave(&in);
  return status;
}

opipe_status opi_api_request_wait(opipe_request *request, uint64_t timeout_ns, opipe_error *err) {
  opi_entry in;
  opi_request *r = NULL;
  OPI_TRY(enter(request, "request_wait", &in, &r, err));
  const opipe_status status = opi_request_wait(r, timeout_ns, err);
  opi_handle_leave(&in);
  return status;
}

opipe_status opi_api_request_cancel(opipe_request *request, opipe_error *err) {
  opi_entry in;
  opi_request *r = NULL;
  OPI_TRY(enter(request, "request_cancel", &in, &r, err));
  const opipe_status status = opi_request_cancel(r, err);
  opi_handle_leave(&in);
  return status;
}

opipe_status opi_api_request_output(opipe_request *request, uint32_t index,
                                    opipe_tensor *out_tensor, opipe_error *err) {
  opi_entry in;
  opi_request *r = NULL;
  OPI_TRY(enter(request, "request_output", &in, &r, err));
  const opipe_status status =
      out_tensor == NULL ? opi_fail(err, OPIPE_E_INVALID, "request_output: out_tensor is NULL")
                         : opi_request_output(r, index, out_tensor, err);
  opi_handle_leave(&in);
  return status;
}

/* Others that are inside leave first, so that it is over when this returns. */
void opi_api_request_release(opipe_request *request) {
  opi_entry in;
  opi_request *r = NULL;
  if (request == NULL || enter(request, "request_release", &in, &r, NULL) < 0)
    return;
  if (opi_handle_kill(&in))
    opi_handle_slot_drain(in.slot, 1);
  opi_handle_leave(&in); /* ends in opi_request_release */
}

opipe_status opi_api_session_drive(opipe_session *s, uint32_t rank, uint64_t timeout_ns,
                                   opipe_error *err) {
  OPI_TRY(check(s, err));
  return opi_session_drive(s->session, rank, timeout_ns, err);
}

opipe_status opi_api_session_memory(opipe_session *s, uint32_t rank, opipe_memory_info *io_info,
                                    opipe_error *err) {
  OPI_TRY(check(s, err));
  if (io_info == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_memory: io_info is NULL");
  return opi_session_memory(s->session, rank, io_info, err);
}

opipe_status opi_api_session_info(opipe_session *s, opipe_session_info *io_info, opipe_error *err) {
  OPI_TRY(check(s, err));
  if (io_info == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_info: io_info is NULL");
  return opi_session_info(s->session, io_info, err);
}
