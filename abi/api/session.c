/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: resolves the plan's plugins, keeps model and plan alive as long as the session is open,
 * and passes every call to the runtime, whose request objects are behind the host's request
 * handles. */
#include <stdio.h>
#include <string.h>

#include "abi/api/api.h"
#include "abi/api/team/follow.h"
#include "runtime/rows/rows.h"
#include "runtime/trace/trace.h"

void opi_session_unref(void *session) {
  opi_session_object *s = session;
  if (s == NULL || !opi_unref(&s->refs))
    return;
  opi_plan_object *plan = s->plan;
  const opipe_allocator *allocator = &plan->model->context->allocator;
  opi_generator_close(s->generator); /* no pass is submitted after the word of the close */
  for (uint32_t i = 0; i < s->n_runners; ++i)
    opi_rows_close(&s->runners[i]);
  opi_free(allocator, s->runners, s->n_runners * sizeof *s->runners);
  opi_follow_tell_close(s);
  opi_meeting_part(s);
  opi_session_close(s->session);
  opi_follow_close(s);
  opi_meeting_end(&s->meeting);
  opi_free(allocator, s->devices, s->n_ranks * sizeof *s->devices);
  opi_free(allocator, s->backends, s->n_ranks * sizeof(*s->backends));
  opi_free(allocator, s->local, s->n_ranks * sizeof(*s->local));
  opi_free(allocator, s->owners, s->n_ranks * sizeof(*s->owners));
  opi_free(allocator, s, sizeof(*s));
  opi_plan_unref(plan);
}

/* A plan that was read, or made from descriptions, is checked against the devices of the ranks
 * here. The reference of a training plan is not held to caps. */
static opipe_status meet_devices(opi_context_object *context, const opi_session_object *s,
                                 const opi_evaluator *evaluator, const opipe_session_params *params,
                                 opipe_error *err) {
  const opi_plan *plan = &s->own;
  const opi_bind_options bind = {
      .allocator = &context->allocator, .logger = &context->logger, .evaluator = evaluator};
  const opi_plan_env env = {.allocator = &context->allocator,
                            .logger = &context->logger,
                            .plugins = &context->plugins,
                            .model = s->plan->model->file,
                            .bind = &bind,
                            .local = s->local,
                            .now_ns = opi_now_ns};
  if (plan->predicted.counted)
    return OPIPE_OK;
  OPI_TRY(opi_plan_compare_link(&env, &plan->decided, err));
  if ((params->flags & OPIPE_SESSION_REFERENCE) != 0)
    return OPIPE_OK;
  return opi_plan_recount(&env, plan, err);
}

/* The value of the option `kernels`, "" without it. */
static void find_kernels(const char *options, char out_kernels[32]) {
  static const char key[] = "kernels=";
  out_kernels[0] = '\0';
  for (const char *at = options; *at != '\0';) {
    const size_t n = strcspn(at, ","), k = sizeof key - 1;
    if (n > k && strncmp(at, key, k) == 0)
      (void)snprintf(out_kernels, 32, "%.*s", (int)(n - k), at + k);
    at += n + (at[n] == ',' ? 1 : 0);
  }
}

/* Kernels are not a decision of the plan: reports them here, and warns if ranks of one backend
 * differ. */
static void report_kernels(const opi_context_object *context, const opi_session_object *s) {
  const opi_device_spec *devices = s->devices;
  char own[32], before[32];
  for (uint32_t r = 0; r < s->n_ranks; ++r) {
    opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
    if (!s->local[r] || opi_device_ask(&s->backends[r], devices[r].index, &info, NULL) < 0)
      continue; /* opening the device reports the reason */
    find_kernels(devices[r].options, own);
    opi_log(&context->logger, OPIPE_LOG_INFO, "rank %u: device %s:%u, %s, kernels '%s'", r,
            devices[r].kind, devices[r].index, info.name, own[0] == '\0' ? "its choice" : own);
    if (r == 0 || !s->local[r - 1] || strcmp(devices[r].kind, devices[r - 1].kind) != 0)
      continue;
    find_kernels(devices[r - 1].options, before);
    if (strcmp(own, before) != 0) {
      opi_log(&context->logger, OPIPE_LOG_WARN,
              "ranks %u and %u use different kernels of backend '%s': '%s' and '%s'", r - 1, r,
              devices[r].kind, before[0] == '\0' ? "its choice" : before,
              own[0] == '\0' ? "its choice" : own);
    }
  }
}

static opipe_status list_local(const opi_session_object *s, const opipe_session_params *params,
                               opipe_error *err) {
  if (params->n_local_ranks == 0 && s->meeting.team != NULL)
    return opi_meeting_share(s, err);
  for (uint32_t r = 0; r < s->n_ranks; ++r)
    s->local[r] = params->n_local_ranks == 0;
  for (uint32_t i = 0; i < params->n_local_ranks; ++i) {
    const uint32_t r = params->local_ranks[i];
    if (r >= s->n_ranks || s->local[r]) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "session_open: local_ranks[%u] is %u, which is %s; the plan has %u ranks", i,
                      r, r >= s->n_ranks ? "no rank" : "given twice", s->n_ranks);
    }
    s->local[r] = true;
  }
  return OPIPE_OK;
}

/* Takes the devices that ranks have here in place of the plan's. */
static opipe_status take_devices(opi_session_object *s, const opipe_session_params *params,
                                 opipe_error *err) {
  for (uint32_t i = 0; i < params->n_devices; ++i) {
    opipe_rank_device given;
    opi_array_get(params->devices, params->devices_stride, i, &given, sizeof given);
    if (given.rank >= s->n_ranks || !s->local[given.rank]) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "session_open: devices[%u] is of rank %u, which is %s; the plan has %u ranks",
                      i, given.rank, given.rank >= s->n_ranks ? "no rank" : "elsewhere",
                      s->n_ranks);
    }
    opi_device_spec *own = &s->devices[given.rank];
    own->index = given.index == OPIPE_NONE ? own->index : given.index;
    own->threads = given.threads == 0 ? own->threads : given.threads;
    if (given.memory_bytes != 0) {
      own->memory_bytes = given.memory_bytes;
      own->memory_with = 0;
    }
  }
  if (params->n_devices != 0)
    s->own.predicted.counted = false;
  return OPIPE_OK;
}

/* Refuses a budget that matches no device, since it would limit nothing. */
static opipe_status check_budgets(const opi_context_object *context, opipe_error *err) {
  const opi_plugins *plugins = &context->plugins;
  const void *at = NULL;
  opi_capped_device capped;
  while (opi_budget_next_cap(context->budget, &at, &capped)) {
    opi_backend_ref backend;
    uint32_t count = 0;
    opipe_status status = plugins->backend(plugins->ctx, capped.kind, &backend, err);
    if (status == OPIPE_OK)
      status = OPI_ASK("backend", &backend, device_count, err, backend.self, &count);
    if (status < 0) {
      return opi_error_prefix(err,
                              "session_open: the context's budget of %llu bytes is for device "
                              "%s:%u: ",
                              (unsigned long long)capped.cap_bytes, capped.kind, capped.index);
    }
    if (capped.index >= count) {
      return opi_fail(err, OPIPE_E_NOTFOUND,
                      "session_open: the context's budget of %llu bytes is for device %s:%u, "
                      "backend '%s' has %u (numbers from 0)",
                      (unsigned long long)capped.cap_bytes, capped.kind, capped.index, capped.kind,
                      count);
    }
  }
  return OPIPE_OK;
}

/* Everything that this process can know alone. */
static opipe_status prepare(opi_context_object *context, opi_session_object *s,
                            const opipe_session_params *params, opi_session_env *io_env,
                            char out_id[64], opipe_error *err) {
  const opi_plan *plan = &s->own;
  OPI_TRY(list_local(s, params, err));
  OPI_TRY(take_devices(s, params, err));
  OPI_TRY(check_budgets(context, err));
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    if (s->local[r]) {
      OPI_TRY(context->plugins.backend(context->plugins.ctx, plan->decided.devices[r].kind,
                                       &s->backends[r], err));
    }
  }
  OPI_TRY(opi_transport_split(plan->decided.transport, out_id, &io_env->transport_options, err));
  if (params->transport_options != NULL)
    io_env->transport_options = params->transport_options;
  OPI_TRY(context->plugins.transport(context->plugins.ctx, out_id, &io_env->transport, err));
  if (s->meeting.team != NULL) {
    OPI_TRY(
        opi_team_check_transport(s->meeting.team->team, &s->meeting.info, &io_env->transport, err));
  }
  OPI_TRY(opi_context_evaluator(context, &io_env->evaluator, err));
  return meet_devices(context, s, io_env->evaluator, params, err);
}

/* A pass is a request that the other processes repeat. */
static opipe_status submit_pass(void *ctx, const opipe_submit_params *params,
                                opi_request **out_request, opipe_error *err) {
  opi_session_object *s = ctx;
  OPI_TRY(opi_follow_begin(s, OPIPE_START_REQUEST, params, err));
  return opi_follow_end(s, opi_session_submit(s->session, params, out_request, NULL, err));
}

/* The engine over passes of a plan that generates. In a team it is process 0's. */
static opipe_status open_generation(const opi_context_object *context, opi_session_object *s,
                                    const opipe_session_params *params, opipe_error *err) {
  const opi_pass_caller caller = {s, submit_pass};
  opi_generator_params p = {.allocator = &context->allocator,
                            .driven = params->threads == OPIPE_THREADS_HOST,
                            .owner = context->handle};
  if (s->own.rows == NULL || opi_follow_is_led(s))
    return OPIPE_OK;
  const uint32_t n = opi_rows_homes(s->session);
  s->runners = opi_alloc_zero(&context->allocator, n, sizeof *s->runners);
  if (s->runners == NULL)
    return opi_fail_nomem(err, n * sizeof *s->runners, "passes");
  s->n_runners = n;
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(opi_rows_open(s->session, &caller, i, &s->runners[i], &p.facts, err));
  p.runners = s->runners;
  p.n_runners = n;
  return opi_generator_open(&p, &s->generator, err);
}

/* Passes over several processes: process 0 makes them, the others repeat them. */
static opipe_status follow_passes(const opi_session_object *s, opipe_session_params *io_params,
                                  opipe_error *err) {
  if (s->own.rows == NULL)
    return OPIPE_OK;
  if (io_params->team != NULL) {
    io_params->flags |=
        OPIPE_SESSION_INPUTS_OF_0 | OPIPE_SESSION_OUTPUTS_TO_0 | OPIPE_SESSION_FOLLOWED;
    return OPIPE_OK;
  }
  if (io_params->n_local_ranks == 0 || io_params->n_local_ranks == s->n_ranks)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "session_open: local_ranks has %u of %u ranks: a plan for generation finds ranks "
                  "of other processes through a team",
                  io_params->n_local_ranks, s->n_ranks);
}

static opipe_status open_runtime(opi_context_object *context, opi_session_object *s,
                                 const opipe_session_params *params, opipe_error *err) {
  char id[64];
  memcpy(s->devices, s->own.decided.devices, s->n_ranks * sizeof *s->devices);
  s->own.decided.devices = s->devices;
  opi_session_env env = {.allocator = &context->allocator,
                         .logger = &context->logger,
                         .model = opi_plan_model(&s->own, s->plan->model->file),
                         .plan = &s->own,
                         .backends = s->backends,
                         .local = s->local,
                         .budget = context->budget,
                         .owner = context->handle,
                         .cores = context->cores};
  const bool meets = params->team != NULL;
  if (meets) {
    OPI_TRY(opi_meeting_begin(s, params, err));
    env.job = s->meeting.info.job;
    env.board = &s->meeting.board;
    env.places = s->owners;
    env.process = s->meeting.info.rank;
    env.n_processes = s->meeting.info.size;
    env.together = (opi_together){.agree = opi_meeting_agree,
                                  .compare = opi_meeting_alike,
                                  .gather = opi_meeting_gather,
                                  .check = opi_meeting_check,
                                  .told = opi_meeting_told,
                                  .box_open = opi_meeting_box_open,
                                  .box_close = opi_meeting_box_close,
                                  .letter = opi_meeting_letter,
                                  .letter_take = opi_meeting_letter_take,
                                  .ctx = &s->meeting};
  }
  opipe_status status = opi_follow_open(s, params, err);
  if (s->meeting.follow != NULL)
    env.together.follow = opi_follow_word;
  if (status == OPIPE_OK)
    status = prepare(context, s, params, &env, id, err);
  if (meets)
    status = opi_meeting_compare(s, params->flags, status, &env.threads_elsewhere, err);
  if (status < 0)
    return status;
  report_kernels(context, s);
  opipe_session_params of_all = *params;
  OPI_TRY(opi_follow_share(s, &of_all, err));
  OPI_TRY(opi_session_open(&env, &of_all, &s->session, err));
  return open_generation(context, s, params, err);
}

static opipe_status open_plan(opi_context_object *context, opi_plan_object *plan,
                              const opipe_session_params *params, opipe_session **out_session,
                              opipe_error *err) {
  opipe_session_params own = {.struct_size = (uint32_t)sizeof own, .spin_us = UINT32_MAX};
  uint64_t handle = 0;
  if (out_session == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_open: out_session is NULL");
  if (plan->model->context != context)
    return opi_fail(err, OPIPE_E_INVALID, "session_open: the plan belongs to another context");
  OPI_TRY(opi_params_read(&opi_struct_session_params, "session_open", params, &own, err));
  opi_session_object *s = opi_alloc_zero(&context->allocator, 1, sizeof(*s));
  if (s == NULL)
    return opi_fail_nomem(err, sizeof(*s), "a session");
  atomic_init(&s->refs, 1);
  opi_ref(&plan->refs);
  s->plan = plan;
  s->pid = opi_process_id();
  s->own = *plan->plan;
  s->n_ranks = plan->plan->decided.n_ranks;
  s->devices = opi_alloc_zero(&context->allocator, s->n_ranks, sizeof *s->devices);
  s->backends = opi_alloc_zero(&context->allocator, s->n_ranks, sizeof(*s->backends));
  s->local = opi_alloc_zero(&context->allocator, s->n_ranks, sizeof(*s->local));
  s->owners = opi_alloc_zero(&context->allocator, s->n_ranks, sizeof(*s->owners));
  opipe_status status =
      s->backends == NULL || s->local == NULL || s->owners == NULL || s->devices == NULL
          ? opi_fail_nomem(err, s->n_ranks * sizeof(*s->backends), "a session")
          : follow_passes(s, &own, err);
  if (status == OPIPE_OK)
    status = open_runtime(context, s, &own, err);
  if (status < 0) {
    opi_session_unref(s);
    return status;
  }
  OPI_TRY(opi_handle_new(OPI_HANDLE_SESSION, s, opi_session_unref, context->handle, &handle, err));
  *out_session = opi_handle_pointer(handle);
  return OPIPE_OK;
}

opipe_status opi_api_session_open(opi_context_object *context, opipe_plan *plan,
                                  const opipe_session_params *params, opipe_session **out_session,
                                  opipe_error *err) {
  opi_entry in;
  OPI_TRY(opi_handle_enter(plan, OPI_HANDLE_PLAN, "session_open", &in, err));
  const opipe_status status = open_plan(context, in.object, params, out_session, err);
  opi_handle_leave(&in);
  return status;
}

opipe_status opi_started(opipe_status status, opipe_request **out_request) {
  if (status == OPIPE_PENDING) /* an old handle must not pass for a started request */
    *out_request = NULL;
  return status;
}

opipe_status opi_api_session_submit(opi_session_object *s, const opipe_submit_params *params,
                                    opipe_request **out_request, opipe_error *err) {
  opi_request *request = NULL;
  opipe_submit_params own = {0};
  if (params == NULL || out_request == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_submit: an argument is NULL");
  OPI_TRY(opi_generation_refuse(s, "session_submit", err));
  OPI_TRY(opi_session_check_counts(s->session, "session_submit", false, params, err));
  OPI_TRY(opi_params_read(&opi_struct_submit_params, "session_submit", params, &own, err));
  OPI_TRY(opi_lr_check(params, "session_submit", false, err));
  OPI_TRY(opi_follow_begin(s, OPIPE_START_REQUEST, &own, err));
  const opipe_status status = own.state == NULL
                                  ? opi_session_submit(s->session, &own, &request, out_request, err)
                                  : opi_submit_to_state(s, &own, out_request, err);
  return opi_started(opi_follow_end(s, status), out_request);
}

static opipe_status start(opi_session_object *s, uint32_t what, const opipe_submit_params *params,
                          opipe_request **out_request, opipe_error *err) {
  switch (what) {
    case OPIPE_START_STEP:
      return opi_api_session_train_step(s, params, out_request, err);
    case OPIPE_START_EVALUATION:
      return opi_api_session_evaluate(s, params, out_request, err);
    default:
      return opi_api_session_submit(s, params, out_request, err);
  }
}

opipe_status opi_api_session_submit_wait(opi_session_object *s, uint32_t what,
                                         const opipe_submit_params *params, uint64_t timeout_ns,
                                         opipe_request **out_request, opipe_error *err) {
  const uint64_t since = opi_now_ns();
  OPI_TRY(opi_choice_check("session_submit_wait", "what", what, OPIPE_START_EVALUATION, err));
  opipe_status status = start(s, what, params, out_request, err);
  while (status == OPIPE_PENDING) { /* other threads may have taken the room */
    const uint64_t waited = opi_now_ns() - since;
    const uint64_t left = timeout_ns == UINT64_MAX ? UINT64_MAX
                          : waited < timeout_ns    ? timeout_ns - waited
                                                   : 0;
    OPI_TRY(opi_session_wait_room(s->session, left, err));
    status = start(s, what, params, out_request, err);
  }
  return status;
}

opipe_status opi_api_session_flags_set(opi_session_object *s, opipe_error *err) {
  return opi_session_flags_set(s->session, err);
}

opipe_status opi_api_request_poll(opi_request *request, opipe_error *err) {
  return opi_request_poll(request, err);
}

opipe_status opi_api_request_wait(opi_request *request, uint64_t timeout_ns, opipe_error *err) {
  return opi_session_in_on_done() ? opi_refuse_inside("request_wait", err)
                                  : opi_request_wait(request, timeout_ns, err);
}

opipe_status opi_api_request_queued(opi_request *request, uint64_t timeout_ns, opipe_error *err) {
  return opi_session_in_on_done() ? opi_refuse_inside("request_queued", err)
                                  : opi_request_queued(request, timeout_ns, err);
}

opipe_status opi_api_request_cancel(opi_request *request, opipe_error *err) {
  OPI_TRY(opi_request_cancel(request, err));
  opi_follow_cancelled(request);
  return OPIPE_OK;
}

opipe_status opi_api_request_output(opi_request *request, uint32_t index, opipe_tensor *out_tensor,
                                    opipe_error *err) {
  return out_tensor == NULL ? opi_fail(err, OPIPE_E_INVALID, "request_output: out_tensor is NULL")
                            : opi_request_output(request, index, out_tensor, err);
}

opipe_status opi_api_session_wait_room(opi_session_object *s, uint64_t timeout_ns,
                                       opipe_error *err) {
  return opi_session_wait_room(s->session, timeout_ns, err);
}

opipe_status opi_api_session_drive(opi_session_object *s, uint32_t rank, uint64_t timeout_ns,
                                   opipe_error *err) {
  const opipe_status status = opi_session_drive(s->session, rank, timeout_ns, err);
  opi_generator_step(s->generator);
  return status;
}

opipe_status opi_api_session_fd(opi_session_object *s, uint32_t rank, int32_t *out_fd,
                                opipe_error *err) {
  return out_fd == NULL ? opi_fail(err, OPIPE_E_INVALID, "session_fd: out_fd is NULL")
                        : opi_session_fd(s->session, rank, out_fd, err);
}

opipe_status opi_api_session_memory(opi_session_object *s, uint32_t rank,
                                    opipe_memory_info *io_info, opipe_error *err) {
  if (io_info == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_memory: io_info is NULL");
  return opi_session_memory(s->session, rank, io_info, err);
}

opipe_status opi_api_session_trace(opi_session_object *s, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err) {
  OPI_TRY(opi_choice_check("session_trace", "format", format, OPIPE_TRACE_HTML, err));
  OPI_TRY(opi_follow_refuse(s, "session_trace", err));
  const opi_model_object *model = s->plan->model;
  const opi_model *file = model->unbound != NULL ? model->unbound->file : model->file;
  return opi_session_trace(s->session, format, file == NULL ? NULL : file->path, write, ctx, err);
}

opipe_status opi_api_session_needs(opi_session_object *s, const char *name, uint32_t *out_needed,
                                   opipe_error *err) {
  return name == NULL || out_needed == NULL
             ? opi_fail(err, OPIPE_E_INVALID, "session_needs: an argument is NULL")
             : opi_session_needs(s->session, name, out_needed, err);
}

opipe_status opi_api_session_info(opi_session_object *s, opipe_session_info *io_info,
                                  opipe_error *err) {
  if (io_info == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_info: io_info is NULL");
  return opi_session_info(s->session, io_info, err);
}
