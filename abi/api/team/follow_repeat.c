/* SPDX-License-Identifier: Apache-2.0 */
/* The other processes' side of a followed session: they repeat what process 0 has called. Messages
 * come over the team's channel, and are checked like any foreign bytes. */
#include <string.h>

#include "abi/api/team/follow.h"
#include "runtime/executor/executor.h"

static const uint64_t LOOK_NS = 200000000;
enum { SHORTEST_NS = 10000, LONGEST_NS = 1000000 };

/* ---- hearing ---- */

static opipe_status refuse_message(const opi_following *f, opipe_error *err) {
  return opi_fail(err, OPIPE_E_INTERNAL,
                  "session_follow: a message of %llu bytes from process 0 cannot be read",
                  (unsigned long long)f->n);
}

/* The next message; its head to *out. CANCELLED: the session is being closed here. */
static opipe_status hear(opi_following *f, opi_followed *out, opipe_error *err) {
  const opi_session_object *s = f->session;
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING) {
    if (atomic_load(&s->session->setup->ending.closing) != 0)
      return opi_fail(err, OPIPE_E_CANCELLED, "session_follow: the session is being closed");
    status = opi_team_mail_take(s->meeting.team->team, f->lane, LOOK_NS, &f->bytes, &f->room, &f->n,
                                err);
  }
  OPI_TRY(status);
  if (f->n < sizeof *out)
    return refuse_message(f, err);
  memcpy(out, f->bytes, sizeof *out);
  return OPIPE_OK;
}

/* Keeps a cancel for later: a request is being submitted, under the session's lock. */
static opipe_status keep_cancel(opi_following *f, uint64_t number, opipe_error *err) {
  const opipe_allocator *a = &f->session->plan->model->context->allocator;
  if (f->n_cancels == f->cancels_room) {
    const uint32_t room = 2 * f->cancels_room + 16;
    uint64_t *grown =
        opi_resize(a, f->cancels, f->cancels_room * sizeof *grown, room * sizeof *grown);
    if (grown == NULL)
      return opi_fail_nomem(err, room * sizeof *grown, "cancels of a followed session");
    f->cancels = grown;
    f->cancels_room = room;
  }
  f->cancels[f->n_cancels++] = number;
  return OPIPE_OK;
}

opipe_status opi_follow_await(opi_following *f, opipe_error *err) {
  opi_followed word;
  f->awaits_word = false;
  OPI_TRY(hear(f, &word, err));
  while (word.what == OPI_CALL_CANCEL) { /* told by another thread than that which submits */
    OPI_TRY(keep_cancel(f, word.number, err));
    OPI_TRY(hear(f, &word, err));
  }
  f->accepted = word.number;
  if (word.what == OPI_CALL_ACCEPTED)
    return OPIPE_OK;
  return word.what == OPI_CALL_REFUSED
             ? opi_fail(err, OPIPE_E_CANCELLED, "process 0 has not accepted the request")
             : refuse_message(f, err);
}

/* ---- requests ---- */

static void let_go(void *ctx, opipe_request *request, opipe_status status) {
  opi_followed_request *own = ctx;
  (void)status;
  opi_handle_destroy(request, OPI_HANDLE_REQUEST, "session_follow");
  atomic_store_explicit(&own->busy, 0, memory_order_release);
}

/* The first that is free; a few more than max_in_flight may still be in let_go. */
static opi_followed_request *find_place(const opi_following *f) {
  const struct timespec pause = {.tv_nsec = SHORTEST_NS};
  for (uint32_t i = 0;; ++i) {
    opi_followed_request *r = &f->requests[i % f->n_requests];
    if (atomic_load_explicit(&r->busy, memory_order_acquire) == 0)
      return r;
    if (i % f->n_requests + 1 == f->n_requests)
      (void)nanosleep(&pause, NULL);
  }
}

/* A place for one more; the message that was heard becomes its own. */
static opi_followed_request *take_place(opi_following *f) {
  opi_followed_request *r = find_place(f);
  uint8_t *const bytes = r->bytes;
  const uint64_t room = r->room;
  r->bytes = f->bytes;
  r->room = f->room;
  f->bytes = bytes;
  f->room = room;
  return r;
}

/* The inputs of a message; their shapes and values stay in it. */
static opipe_status read_inputs(opi_following *f, const uint8_t *bytes, const opi_followed *head,
                                opipe_error *err) {
  const opi_setup *s = f->session->session->setup;
  uint64_t at = sizeof *head;
  if (head->n_items > s->n_inputs)
    return refuse_message(f, err);
  for (uint32_t i = 0; i < head->n_items; ++i) {
    opi_followed_input in;
    if (f->n - at < sizeof in)
      return refuse_message(f, err);
    memcpy(&in, bytes + at, sizeof in);
    at += sizeof in;
    const uint64_t n_shape = in.rank * sizeof(int64_t);
    if (in.input >= s->n_inputs || in.rank > OPIPE_MAX_RANK || f->n - at < n_shape ||
        f->n - at - n_shape < in.n_bytes)
      return refuse_message(f, err);
    f->io[i] = (opipe_binding_io){
        .name = s->inputs[in.input].name,
        .tensor = {.data = in.has_data != 0 ? (void *)(uintptr_t)(bytes + at + n_shape) : NULL,
                   .device_type = OPIPE_DL_CPU,
                   .rank = (int32_t)in.rank,
                   .dtype = in.type,
                   .shape = (int64_t *)(uintptr_t)(bytes + at)}};
    at += n_shape + opi_align_up(in.n_bytes, sizeof(uint64_t));
    if (at > f->n)
      return refuse_message(f, err);
  }
  return OPIPE_OK;
}

static opipe_status make_lists(opi_following *f, opipe_error *err) {
  const opipe_allocator *a = &f->session->plan->model->context->allocator;
  const opi_setup *s = f->session->session->setup;
  if (f->io == NULL) {
    f->io = opi_alloc_zero(a, (size_t)s->n_inputs + 1, sizeof *f->io);
    f->n_io = f->io == NULL ? 0 : s->n_inputs + 1;
  }
  if (f->requests == NULL) {
    f->requests = opi_alloc_zero(a, (size_t)s->max_in_flight + 1, sizeof *f->requests);
    f->n_requests = f->requests == NULL ? 0 : s->max_in_flight + 1;
  }
  return f->io != NULL && f->requests != NULL
             ? OPIPE_OK
             : opi_fail_nomem(err, s->n_inputs * sizeof *f->io, "a followed session");
}

static opi_followed_state *state_of(const opi_following *f, uint32_t number) {
  for (uint32_t i = 0; i < f->n_states; ++i) {
    if (f->states[i].number == number)
      return &f->states[i];
  }
  return NULL;
}

static opipe_status start(opi_session_object *s, const opi_followed *head,
                          opipe_submit_params *params, opipe_request **out, opipe_error *err) {
  opi_request *request = NULL;
  if (head->start == OPIPE_START_EVALUATION)
    return opi_train_evaluate(s->session, params, &request, out, err);
  return params->state == NULL ? opi_session_submit(s->session, params, &request, out, err)
                               : opi_submit_to_state(s, params, out, err);
}

/* Until there is room: this process may be behind process 0. */
static opipe_status start_in_room(opi_following *f, const opi_followed *head,
                                  const opipe_submit_params *params, opipe_request **out,
                                  opipe_error *err) {
  opi_session_object *s = f->session;
  opipe_submit_params own = *params;
  opipe_status status = start(s, head, &own, out, err);
  while (status == OPIPE_PENDING) {
    OPI_TRY(opi_session_wait_room(s->session, UINT64_MAX, err));
    own = *params;
    status = start(s, head, &own, out, err);
  }
  return status;
}

/* A prepared request was refused here: by all, or by process 0 afterwards, but not here alone? */
static bool is_refused_by_0(opi_following *f) {
  opipe_error word = OPIPE_ERROR_INIT;
  return !f->awaits_word || (opi_follow_await(f, &word) < 0 && word.status == OPIPE_E_CANCELLED);
}

static opipe_status repeat_submit(opi_following *f, const opi_followed *head, opipe_error *err) {
  const bool is_prepared = head->what == OPI_CALL_PREPARE;
  OPI_TRY(make_lists(f, err));
  opi_followed_request *own = take_place(f);
  OPI_TRY(read_inputs(f, own->bytes, head, err));
  const opi_followed_state *state = head->state == 0 ? NULL : state_of(f, head->state);
  if (head->state != 0 && state == NULL)
    return refuse_message(f, err);
  const opipe_submit_params params = {.struct_size = (uint32_t)sizeof params,
                                      .n_inputs = head->n_items,
                                      .io_stride = (uint32_t)sizeof *f->io,
                                      .inputs = f->io,
                                      .stream = head->stream,
                                      .deadline_ns = head->deadline_ns,
                                      .on_done = let_go,
                                      .on_done_ctx = own,
                                      .state = state == NULL ? NULL : state->handle};
  f->awaits_word = is_prepared;
  f->accepted = head->number;
  atomic_store_explicit(&own->busy, 1, memory_order_relaxed);
  const opipe_status status = start_in_room(f, head, &params, &own->handle, err);
  own->number = f->accepted;
  if (status == OPIPE_OK)
    return OPIPE_OK;
  atomic_store_explicit(&own->busy, 0, memory_order_relaxed);
  return is_prepared && is_refused_by_0(f) ? OPIPE_OK : status;
}

static void repeat_cancel(const opi_following *f, uint64_t number) {
  opi_entry in;
  for (uint32_t i = 0; i < f->n_requests; ++i) {
    const opi_followed_request *r = &f->requests[i];
    if (r->number != number || atomic_load_explicit(&r->busy, memory_order_relaxed) == 0 ||
        opi_handle_enter(r->handle, OPI_HANDLE_REQUEST, "session_follow", &in, NULL) < 0)
      continue; /* it has finished */
    (void)opi_request_cancel(in.object, NULL);
    opi_handle_leave(&in);
  }
}

/* ---- states ---- */

static opipe_status repeat_open(opi_following *f, const opi_followed *head, opipe_error *err) {
  const opipe_allocator *a = &f->session->plan->model->context->allocator;
  opipe_state *state = NULL;
  if ((f->n - sizeof *head) / sizeof(uint64_t) < head->n_items)
    return refuse_message(f, err);
  const opipe_state_params params = {
      .struct_size = (uint32_t)sizeof params,
      .n_capacities = head->n_items,
      .capacities = (const uint64_t *)(const void *)(f->bytes + sizeof *head)};
  if (f->n_states == f->states_room) {
    const uint32_t room = 2 * f->states_room + 16;
    opi_followed_state *grown =
        opi_resize(a, f->states, f->states_room * sizeof *grown, room * sizeof *grown);
    if (grown == NULL)
      return opi_fail_nomem(err, room * sizeof *grown, "states");
    f->states = grown;
    f->states_room = room;
  }
  OPI_TRY(opi_stream_open(f->session->session->setup, &params, &state, err));
  f->states[f->n_states++] = (opi_followed_state){.number = head->state, .handle = state};
  return OPIPE_OK;
}

/* Process 0 has waited for the state's requests, which may end here a little later. */
static void await_rest(const opi_session_object *s, const opi_stream *stream) {
  struct timespec pause = {.tv_nsec = SHORTEST_NS};
  const opi_ending *ending = &s->session->setup->ending;
  while (opi_stream_n_unfinished(stream) != 0 && !opi_session_failed(s->session->setup) &&
         atomic_load(&ending->closing) == 0) {
    (void)nanosleep(&pause, NULL);
    pause.tv_nsec = pause.tv_nsec < LONGEST_NS ? 2 * pause.tv_nsec : LONGEST_NS;
  }
}

static opipe_status repeat_state(opi_following *f, const opi_followed *head, opipe_error *err) {
  opi_followed_state *state = state_of(f, head->state);
  const opi_followed_state *from = state_of(f, head->from);
  opi_entry in, of;
  if (state == NULL || (head->what == OPI_CALL_STATE_COPY && from == NULL))
    return refuse_message(f, err);
  if (head->what == OPI_CALL_STATE_CLOSE) {
    opi_handle_destroy(state->handle, OPI_HANDLE_STATE, "session_follow");
    *state = f->states[--f->n_states];
    return OPIPE_OK;
  }
  OPI_TRY(opi_handle_enter(state->handle, OPI_HANDLE_STATE, "session_follow", &in, err));
  opipe_status status = OPIPE_OK;
  await_rest(f->session, in.object);
  if (head->what == OPI_CALL_STATE_RESET) {
    status = opi_stream_reset(in.object, err);
  } else {
    status = opi_handle_enter(from->handle, OPI_HANDLE_STATE, "session_follow", &of, err);
    if (status == OPIPE_OK) {
      await_rest(f->session, of.object);
      status = opi_stream_copy(in.object, of.object, err);
      opi_handle_leave(&of);
    }
  }
  opi_handle_leave(&in);
  return status;
}

/* ---- all of it ---- */

static opipe_status repeat(opi_following *f, const opi_followed *head, opipe_error *err) {
  switch (head->what) {
    case OPI_CALL_SUBMIT:
    case OPI_CALL_PREPARE:
      OPI_TRY(repeat_submit(f, head, err));
      while (f->n_cancels > 0)
        repeat_cancel(f, f->cancels[--f->n_cancels]);
      return OPIPE_OK;
    case OPI_CALL_CANCEL:
      repeat_cancel(f, head->number);
      return OPIPE_OK;
    case OPI_CALL_STATE_OPEN:
      return repeat_open(f, head, err);
    case OPI_CALL_STATE_RESET:
    case OPI_CALL_STATE_COPY:
    case OPI_CALL_STATE_CLOSE:
      return repeat_state(f, head, err);
    default:
      return refuse_message(f, err);
  }
}

/* Process 0 could do it and this process cannot: the session fails everywhere. */
static opipe_status give_up(const opi_session_object *s, opipe_error *err) {
  opi_setup *setup = s->session->setup;
  (void)opi_error_prefix(err,
                         "process %u cannot repeat a call of process 0: ", s->meeting.info.rank);
  opi_session_fail(setup, opi_session_first(setup)->index, NULL, err);
  return err->status;
}

opipe_status opi_api_session_follow(opi_session_object *s, opipe_error *err) {
  opi_following *f = s->meeting.follow;
  opipe_error why = OPIPE_ERROR_INIT;
  opi_followed head = {0};
  opipe_status status = OPIPE_OK;
  if (f == NULL || f->leads) {
    return opi_fail(err, OPIPE_E_INVALID,
                    f == NULL ? "session_follow: the session was opened without "
                                "OPIPE_SESSION_FOLLOWED, or by one process alone"
                              : "session_follow: process 0 makes the calls that others follow");
  }
  while (status == OPIPE_OK) {
    status = hear(f, &head, &why);
    if (status < 0 || head.what == OPI_CALL_CLOSE)
      break;
    status = repeat(f, &head, &why);
    if (status < 0 && status != OPIPE_E_PEER && !opi_session_failed(s->session->setup))
      status = give_up(s, &why);
  }
  return status < 0 ? opi_fail(err, status, "%s", why.message) : OPIPE_OK;
}
