/* SPDX-License-Identifier: Apache-2.0 */
/* Process 0's side of a followed session: its calls are told in the order in which it makes them.
 *
 *   known shape   the request is accepted ── SUBMIT ──►
 *   new shape     ── PREPARE ──►  all agree about it  ── ACCEPTED or REFUSED ──►
 */
#include <string.h>

#include "abi/api/team/follow.h"

enum { FIRST_STATES = 16, PAD = 8 };

/* ---- the message ---- */

/* Room for n more bytes, zeroed. NULL: out of memory. */
static uint8_t *add(opi_following *f, uint64_t n) {
  const opipe_allocator *a = &f->session->plan->model->context->allocator;
  const uint64_t need = f->n + opi_align_up(n, PAD);
  if (need > f->room) {
    uint8_t *grown = opi_resize(a, f->bytes, f->room, 2 * need);
    if (grown == NULL)
      return NULL;
    f->bytes = grown;
    f->room = 2 * need;
  }
  uint8_t *at = f->bytes + f->n;
  memset(at, 0, need - f->n);
  f->n = need;
  return at;
}

static opipe_status tell(opi_following *f, opipe_error *err) {
  return opi_team_mail(f->session->meeting.team->team, f->lane, f->bytes, f->n, err);
}

static opipe_status tell_head(const opi_following *f, const opi_followed *head, opipe_error *err) {
  return opi_team_mail(f->session->meeting.team->team, f->lane, head, sizeof *head, err);
}

static uint32_t find_input(const opi_setup *s, const char *name) {
  for (uint32_t i = 0; name != NULL && i < s->n_inputs; ++i) {
    if (strcmp(s->inputs[i].name, name) == 0)
      return i;
  }
  return OPIPE_NONE; /* refused before this is told */
}

/* An input's shape, and its value where shapes depend on it. */
static bool add_input(opi_following *f, const opipe_binding_io *io) {
  const opi_setup *s = f->session->session->setup;
  const opipe_tensor *t = &io->tensor;
  const uint32_t index = find_input(s, io->name);
  opi_followed_input head = {.input = index, .rank = (uint32_t)t->rank, .type = t->dtype};
  if (index == OPIPE_NONE)
    return true;
  head.has_data = s->inputs[index].valued && t->data != NULL ? 1 : 0;
  if (head.has_data != 0 &&
      !opi_tensor_bytes(opi_dtype_from_dl(t->dtype), t->shape, (uint32_t)t->rank, &head.n_bytes))
    return true;
  uint8_t *at = add(f, sizeof head);
  if (at == NULL)
    return false;
  memcpy(at, &head, sizeof head);
  at = add(f, head.rank * sizeof *t->shape);
  if (at == NULL)
    return false;
  if (head.rank != 0)
    memcpy(at, t->shape, head.rank * sizeof *t->shape);
  at = head.n_bytes == 0 ? NULL : add(f, head.n_bytes);
  if (at != NULL)
    opi_tensor_pack(t, at);
  return head.n_bytes == 0 || at != NULL;
}

static opipe_status tell_submit(opi_following *f, uint32_t what, uint64_t number,
                                opipe_error *err) {
  const opipe_submit_params *p = f->params;
  opi_followed head = {.what = what,
                       .start = f->start,
                       .number = number,
                       .stream = p->stream,
                       .deadline_ns = p->deadline_ns,
                       .state = f->state,
                       .n_items = p->n_inputs};
  f->n = 0;
  uint8_t *at = add(f, sizeof head);
  bool has = at != NULL;
  if (has)
    memcpy(at, &head, sizeof head);
  for (uint32_t i = 0; i < p->n_inputs && has; ++i) {
    opipe_binding_io io;
    opi_array_get(p->inputs, p->io_stride, i, &io, sizeof io);
    has = add_input(f, &io);
  }
  return has ? tell(f, err) : opi_fail_nomem(err, f->n, "a call that others repeat");
}

opipe_status opi_follow_word(void *meeting, uint32_t how, uint64_t number, opipe_error *err) {
  opi_following *f = ((opi_meeting *)meeting)->follow;
  if (f == NULL)
    return OPIPE_OK;
  if (!f->leads)
    return how == OPI_FOLLOW_GOES && f->awaits_word ? opi_follow_await(f, err) : OPIPE_OK;
  if (how == OPI_FOLLOW_NEW) {
    f->is_prepared = true;
    return tell_submit(f, OPI_CALL_PREPARE, number, err);
  }
  if (!f->is_prepared)
    return tell_submit(f, OPI_CALL_SUBMIT, number, err);
  f->is_prepared = false;
  return tell_head(f, &(opi_followed){.what = OPI_CALL_ACCEPTED, .number = number}, err);
}

/* ---- states ---- */

static opi_followed_state *find_state(const opi_following *f, const opi_stream *stream,
                                      const opipe_state *handle) {
  for (uint32_t i = 0; i < f->n_states; ++i) {
    if (stream != NULL ? f->states[i].stream == stream : f->states[i].handle == handle)
      return &f->states[i];
  }
  return NULL;
}

static opipe_status reserve_state(opi_following *f, opipe_error *err) {
  const opipe_allocator *a = &f->session->plan->model->context->allocator;
  if (f->n_states < f->states_room)
    return OPIPE_OK;
  const uint32_t room = f->states_room == 0 ? FIRST_STATES : 2 * f->states_room;
  opi_followed_state *grown =
      opi_resize(a, f->states, f->states_room * sizeof *grown, room * sizeof *grown);
  if (grown == NULL)
    return opi_fail_nomem(err, room * sizeof *grown, "states");
  f->states = grown;
  f->states_room = room;
  return OPIPE_OK;
}

static opipe_status refuse_follower(const opi_following *f, const char *call, opipe_error *err) {
  return opi_fail(err, OPIPE_E_INVALID,
                  "%s: process %u follows process 0 in this session (session_follow), which alone "
                  "makes calls",
                  call, f->session->meeting.info.rank);
}

static opipe_status open_state(opi_following *f, const opipe_state_params *params,
                               opipe_state **out_state, opipe_error *err) {
  opi_followed head = {.what = OPI_CALL_STATE_OPEN, .n_items = params->n_capacities};
  opi_entry in;
  OPI_TRY(reserve_state(f, err));
  OPI_TRY(opi_stream_open(f->session->session->setup, params, out_state, err));
  OPI_TRY(opi_handle_enter(*out_state, OPI_HANDLE_STATE, "session_state_open", &in, err));
  head.state = ++f->last_state;
  f->states[f->n_states++] = (opi_followed_state){head.state, in.object, *out_state};
  opi_handle_leave(&in);
  f->n = 0;
  const uint64_t n_items = head.n_items * sizeof *params->capacities;
  uint8_t *at = add(f, sizeof head + n_items);
  if (at == NULL)
    return opi_fail_nomem(err, n_items, "a call that others repeat");
  memcpy(at, &head, sizeof head);
  if (n_items != 0)
    memcpy(at + sizeof head, params->capacities, n_items);
  return tell(f, err);
}

opipe_status opi_follow_state_open(opi_session_object *s, const opipe_state_params *params,
                                   opipe_state **out_state, opipe_error *err) {
  opi_following *f = s->meeting.follow;
  if (f == NULL)
    return opi_stream_open(s->session->setup, params, out_state, err);
  if (!f->leads)
    return refuse_follower(f, "session_state_open", err);
  (void)pthread_mutex_lock(&f->lock);
  const opipe_status status = open_state(f, params, out_state, err);
  (void)pthread_mutex_unlock(&f->lock);
  return status;
}

/* The session that a stream or request belongs to, if it is followed; NULL: it is not. */
static opi_following *follow_of(const opi_setup *setup) {
  const opi_together *together = &setup->env.together;
  return together->follow == NULL ? NULL : ((opi_meeting *)together->ctx)->follow;
}

opipe_status opi_follow_state(opi_stream *stream, opi_stream *from, opipe_error *err) {
  opi_following *f = follow_of(opi_stream_setup(stream));
  if (f != NULL && !f->leads)
    return refuse_follower(f, from == NULL ? "state_reset" : "state_copy", err);
  if (f != NULL)
    (void)pthread_mutex_lock(&f->lock);
  opipe_status status =
      from == NULL ? opi_stream_reset(stream, err) : opi_stream_copy(stream, from, err);
  const opi_followed_state *to = f == NULL ? NULL : find_state(f, stream, NULL);
  const opi_followed_state *of = f == NULL || from == NULL ? NULL : find_state(f, from, NULL);
  if (status == OPIPE_OK && to != NULL) {
    const opi_followed head = {.what = from == NULL ? OPI_CALL_STATE_RESET : OPI_CALL_STATE_COPY,
                               .state = to->number,
                               .from = of == NULL ? 0 : of->number};
    status = tell_head(f, &head, err);
  }
  if (f != NULL)
    (void)pthread_mutex_unlock(&f->lock);
  return status;
}

void opi_follow_state_close(const opipe_state *handle) {
  opi_entry in;
  if (handle == NULL || opi_handle_inherited(handle) ||
      opi_handle_enter(handle, OPI_HANDLE_STATE, "state_close", &in, NULL) < 0)
    return; /* state_close says why */
  const opi_stream *stream = in.object;
  opi_following *f = follow_of(opi_stream_setup(stream));
  if (f != NULL && f->leads) {
    (void)pthread_mutex_lock(&f->lock);
    opi_followed_state *state = find_state(f, stream, NULL);
    if (state != NULL && state->handle == handle) {
      (void)tell_head(f, &(opi_followed){.what = OPI_CALL_STATE_CLOSE, .state = state->number},
                      NULL);
      *state = f->states[--f->n_states];
    }
    (void)pthread_mutex_unlock(&f->lock);
  }
  opi_handle_leave(&in);
}

/* ---- requests ---- */

opipe_status opi_follow_begin(opi_session_object *s, uint32_t start,
                              const opipe_submit_params *params, opipe_error *err) {
  static const char *const calls[] = {"session_submit", "session_train_step", "session_evaluate"};
  opi_following *f = s->meeting.follow;
  if (f == NULL)
    return OPIPE_OK;
  if (!f->leads)
    return refuse_follower(f, calls[start], err);
  (void)pthread_mutex_lock(&f->lock);
  const opi_followed_state *state =
      params->state == NULL ? NULL : find_state(f, NULL, params->state);
  f->params = params;
  f->start = start;
  f->state = state == NULL ? 0 : state->number;
  f->is_prepared = false;
  return OPIPE_OK;
}

opipe_status opi_follow_end(opi_session_object *s, opipe_status status) {
  opi_following *f = s->meeting.follow;
  if (f == NULL || !f->leads)
    return status;
  if (f->is_prepared) /* told, and then not accepted */
    (void)tell_head(f, &(opi_followed){.what = OPI_CALL_REFUSED}, NULL);
  f->is_prepared = false;
  f->params = NULL;
  (void)pthread_mutex_unlock(&f->lock);
  return status;
}

void opi_follow_cancelled(const opi_request *request) {
  const opi_following *f = follow_of(request->setup);
  if (f != NULL && f->leads)
    (void)tell_head(f, &(opi_followed){.what = OPI_CALL_CANCEL, .number = request->number}, NULL);
}

opipe_status opi_follow_refuse(const opi_session_object *s, const char *call, opipe_error *err) {
  return s->meeting.follow == NULL
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_UNSUPPORTED,
                        "%s: all processes would have to make it, and in a followed session they "
                        "repeat requests, evaluations and states of process 0 alone",
                        call);
}

/* ---- open, close ---- */

static opipe_status check(const opi_session_object *s, const opipe_session_params *params,
                          opipe_error *err) {
  const uint32_t needed = OPIPE_SESSION_INPUTS_OF_0 | OPIPE_SESSION_OUTPUTS_TO_0;
  if (s->meeting.team == NULL) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "session_open: flags 0x%x: a followed session needs a team, and none is given",
                    params->flags);
  }
  if ((params->flags & needed) != needed || params->threads != OPIPE_THREADS_LIBRARY) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "session_open: flags 0x%x, threads %u: a followed session needs inputs of "
                    "process 0, outputs to process 0 (flags 0x%x) and the library's threads (%d)",
                    params->flags, params->threads, needed, OPIPE_THREADS_LIBRARY);
  }
  return OPIPE_OK;
}

opipe_status opi_follow_open(opi_session_object *s, const opipe_session_params *params,
                             opipe_error *err) {
  const opipe_allocator *a = &s->plan->model->context->allocator;
  if ((params->flags & OPIPE_SESSION_FOLLOWED) == 0)
    return OPIPE_OK;
  OPI_TRY(check(s, params, err));
  if (s->meeting.info.size == 1)
    return OPIPE_OK;
  opi_following *f = opi_alloc_zero(a, 1, sizeof *f);
  if (f == NULL)
    return opi_fail_nomem(err, sizeof *f, "a followed session");
  f->session = s;
  f->leads = s->meeting.info.rank == 0;
  f->lane = opi_meeting_number(&s->meeting);
  (void)pthread_mutex_init(&f->lock, NULL);
  s->meeting.follow = f;
  return OPIPE_OK;
}

/* Sizes and flags that process 0 has chosen. */
typedef struct opi_followed_params {
  uint32_t flags, max_in_flight, max_shapes, reserved;
  uint64_t watchdog_ns;
} opi_followed_params;

static opipe_status take_params(void *ctx, uint32_t process, const void *data, uint64_t n) {
  (void)process;
  if (n == sizeof(opi_followed_params))
    memcpy(ctx, data, n);
  return OPIPE_OK;
}

opipe_status opi_follow_share(const opi_session_object *s, opipe_session_params *io_params,
                              opipe_error *err) {
  const opi_following *f = s->meeting.follow;
  opi_followed_params all = {.flags = io_params->flags,
                             .max_in_flight = io_params->max_in_flight,
                             .max_shapes = io_params->max_shapes,
                             .watchdog_ns = io_params->watchdog_ns};
  const opi_followed_params own = all;
  if (f == NULL)
    return OPIPE_OK;
  const opipe_gather_params call = {.struct_size = (uint32_t)sizeof call,
                                    .flags = OPIPE_GATHER_ROOT,
                                    .name = "followed",
                                    .data = f->leads ? &own : NULL,
                                    .n_bytes = f->leads ? sizeof own : 0,
                                    .timeout_ns = UINT64_MAX,
                                    .part = take_params,
                                    .part_ctx = &all};
  OPI_TRY(opi_meeting_gather((opi_meeting *)(uintptr_t)&s->meeting, &call, err));
  io_params->flags = all.flags;
  io_params->max_in_flight = all.max_in_flight;
  io_params->max_shapes = all.max_shapes;
  io_params->watchdog_ns = all.watchdog_ns;
  return OPIPE_OK;
}

bool opi_follow_is_led(const opi_session_object *s) {
  return s->meeting.follow != NULL && !s->meeting.follow->leads;
}

opipe_status opi_follow_check(const opi_session_object *s, const char *call, opipe_error *err) {
  return opi_follow_is_led(s) ? refuse_follower(s->meeting.follow, call, err) : OPIPE_OK;
}

void opi_follow_tell_close(const opi_session_object *s) {
  const opi_following *f = s->meeting.follow;
  if (f != NULL && f->leads && s->session != NULL && opi_process_id() == s->pid)
    (void)tell_head(f, &(opi_followed){.what = OPI_CALL_CLOSE}, NULL);
}

void opi_follow_close(opi_session_object *s) {
  const opipe_allocator *a = &s->plan->model->context->allocator;
  opi_following *f = s->meeting.follow;
  if (f == NULL)
    return;
  if (opi_process_id() == s->pid && !f->leads)
    opi_team_mail_end(s->meeting.team->team, f->lane);
  (void)pthread_mutex_destroy(&f->lock);
  opi_free(a, f->bytes, f->room);
  opi_free(a, f->states, f->states_room * sizeof *f->states);
  opi_free(a, f->io, f->n_io * sizeof *f->io);
  for (uint32_t i = 0; i < f->n_requests; ++i)
    opi_free(a, f->requests[i].bytes, f->requests[i].room);
  opi_free(a, f->requests, f->n_requests * sizeof *f->requests);
  opi_free(a, f->cancels, f->cancels_room * sizeof *f->cancels);
  opi_free(a, f, sizeof *f);
  s->meeting.follow = NULL;
}
