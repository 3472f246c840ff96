/* SPDX-License-Identifier: Apache-2.0 */
/* How requests and sessions end: in success, by a reason of their own (cancelled, late, bad data),
 * or because a rank failed.
 *
 * The first reason stays. A request is handed back once, by whoever moves it from ACTIVE to ENDING;
 * after a failure that happens only when no rank touches a request's memory any more.
 */
#include "loader/base/fp.h"
#include "runtime/compiled/lent.h"

/* Whoever sees that it has failed finds its stream broken. */
static bool fail(opi_request *request, uint32_t from, uint32_t stage, const opipe_error *why) {
  if (request->stream_kept != NULL)
    opi_stream_hold(request->stream_kept);
  const bool first = atomic_compare_exchange_strong(&request->failed, &from, OPI_FATE_WRITTEN);
  if (first) {
    request->error = *why;
    request->error.struct_size = (uint32_t)sizeof request->error;
    request->failed_stage = stage;
    if (request->stream_kept != NULL)
      opi_stream_break(request);
    atomic_store_explicit(&request->failed, OPI_FATE_FAILED, memory_order_release);
  }
  if (request->stream_kept != NULL)
    opi_stream_let_go(request->stream_kept);
  return first;
}

/* Bad data that has flowed on may be noticed downstream first, where devices tell late: the lowest
 * stage is where it began. */
bool opi_request_fail_at(opi_request *request, uint32_t stage, const opipe_error *why) {
  if (fail(request, OPI_FATE_OPEN, stage, why))
    return true;
  return why->status == OPIPE_E_INVALID && stage < request->failed_stage &&
         request->failed_stage != OPIPE_NONE && fail(request, OPI_FATE_FAILED, stage, why);
}

bool opi_request_fail(opi_request *request, const opipe_error *why) {
  return opi_request_fail_at(request, OPIPE_NONE, why);
}

void opi_request_judge(opi_request *request, const opipe_error *why) {
  if (!opi_request_fail(request, why))
    (void)fail(request, OPI_FATE_SEALED, OPIPE_NONE, why);
}

/* With the reason in *out_why. rank, stage: where it was noticed, as below. */
static bool is_late(const opi_request *request, const opi_rank *rank, uint32_t stage,
                    opipe_error *out_why) {
  const uint64_t now = opi_clock_ns();
  if (request->deadline_ns == 0 || now < request->deadline_ns || opi_request_failed(request))
    return false;
  const double late_ms = (double)(now - request->deadline_ns) * 1e-6;
  if (rank == NULL || stage == OPIPE_NONE) {
    (void)opi_fail(out_why, OPIPE_E_TIMEOUT, "request %llu: its deadline passed %.3f ms ago",
                   (unsigned long long)request->number, late_ms);
  } else {
    (void)opi_fail(out_why, OPIPE_E_TIMEOUT,
                   "request %llu: its deadline passed %.3f ms before rank %u came to stage %u",
                   (unsigned long long)request->number, late_ms, rank->index, stage);
  }
  return request->ticket == NULL ||
         opi_rank_is_here(request->session, 0); /* else the session with rank 0 decides */
}

void opi_request_check_deadline(opi_request *request, const opi_rank *rank, uint32_t stage) {
  opipe_error why = OPIPE_ERROR_INIT;
  if (!is_late(request, rank, stage, &why))
    return;
  if (request->ticket != NULL && request->ticket->kind == OPI_TICKET_TRAIN)
    (void)opi_step_leave_out(request, &why);
  else
    (void)opi_request_fail(request, &why);
}

void opi_request_check_held(opi_request *request) {
  opipe_error why = OPIPE_ERROR_INIT;
  if (is_late(request, NULL, OPIPE_NONE, &why))
    (void)opi_request_fail(request, &why);
}

static void set_done(const opipe_fence *fence) {
  if (fence->kind == OPIPE_FENCE_HOST_FLAG)
    __atomic_store_n((uint32_t *)fence->handle, 1, __ATOMIC_RELEASE);
}

/* ---- what a request is in ---- */

static bool is_over(uint32_t state) {
  return (state & ~(uint32_t)OPI_REQUEST_PASSING) == OPI_REQUEST_OVER;
}

/* Unless it completes what makes a request over, the request may be anybody's when this returns. */
static void set_phase(opi_request *request, uint32_t phase) {
  uint32_t old = atomic_load(&request->state), next = 0;
  do {
    next = (old & ~(uint32_t)OPI_REQUEST_PROGRESS) | phase;
  } while (!atomic_compare_exchange_weak(&request->state, &old, next));
  if (is_over(next))
    opi_request_recycle(request);
}

static void set_flag(opi_request *request, uint32_t flag) {
  const uint32_t old = atomic_fetch_or(&request->state, flag);
  if ((old & flag) == 0 && is_over(old | flag))
    opi_request_recycle(request);
}

void opi_request_let_go(opi_request *request) {
  set_flag(request, OPI_REQUEST_RELEASED);
}

/* ---- on_done ---- */

/* The requests whose on_done this thread is in: one cancels another. */
typedef struct telling {
  const opi_request *request;
  struct telling *outer;
} telling;
static _Thread_local telling *told;

bool opi_session_in_on_done(void) {
  return told != NULL;
}

bool opi_request_over(const opi_request *request) {
  const uint32_t phase = opi_request_progress(request);
  const telling *t = phase == OPI_REQUEST_TELLING ? told : NULL;
  while (t != NULL && t->request != request)
    t = t->outer;
  return phase == OPI_REQUEST_FINISHED || t != NULL;
}

static void tell(opi_request *request) {
  telling now = {.request = request, .outer = told};
  if (request->on_done == NULL)
    return;
  told = &now;
  set_phase(request, OPI_REQUEST_TELLING);
  opi_fp_border *lent = opi_fp_lend();
  request->on_done(request->on_done_ctx, opi_request_handle(request),
                   opi_request_failed(request) ? request->error.status : OPIPE_OK);
  opi_fp_take(lent);
  told = now.outer;
}

opipe_status opi_result_ask(const opi_session *s, const opipe_submit_params *params,
                            uint32_t output, const opi_result *result, void **out_data,
                            opipe_error *err) {
  telling now = {.request = NULL, .outer = told};
  const opipe_tensor tensor = {
      .device_type = result->on_device ? result->device_type : OPIPE_DL_CPU,
      .device_id = result->on_device ? result->device_id : 0,
      .rank = (int32_t)result->rank,
      .dtype = opi_dtype_to_dl(s->output_dtypes[output]),
      .shape = result->shape};
  *out_data = NULL;
  told = &now;
  opi_fp_border *lent = opi_fp_lend();
  const opipe_status status =
      params->on_output(params->on_output_ctx, output, &tensor, result->n_bytes, out_data);
  opi_fp_take(lent);
  told = now.outer;
  if (status == OPIPE_OK)
    return OPIPE_OK;
  return opi_fail(err, status < 0 ? status : OPIPE_E_INVALID,
                  "output '%s': the host's on_output answered %d for its %llu bytes",
                  s->output_names[output], (int)status, (unsigned long long)result->n_bytes);
}

/* ---- requests ---- */

/* From here on it ends as it ends: the host may copy the reason. */
static void close_fate(opi_request *request) {
  uint32_t fate = atomic_load(&request->failed);
  while (fate != OPI_FATE_DONE && fate != OPI_FATE_TOLD) {
    if (fate == OPI_FATE_WRITTEN) /* a few instructions long */
      fate = atomic_load_explicit(&request->failed, memory_order_acquire);
    else if (atomic_compare_exchange_weak(&request->failed, &fate,
                                          fate == OPI_FATE_FAILED ? OPI_FATE_TOLD : OPI_FATE_DONE))
      return;
  }
}

/* Of whoever has moved it from ACTIVE to ENDING. */
static void hand_back(opi_request *request) {
  opi_session *s = request->session;
  close_fate(request);
  while (atomic_load(&s->looked_at) == request) { /* no longer: whoever looks next sees it failed */
  }
  if (request->ticket != NULL)
    opi_train_finished(request);
  for (uint32_t i = 0; i < s->n_inputs; ++i)
    set_done(&request->feeds[i].done);
  for (uint32_t o = 0; o < s->n_outputs; ++o)
    set_done(&request->results[o].done);
  if (!request->is_gap)
    atomic_fetch_add(opi_request_failed(request) ? &s->n_failed : &s->n_done, 1);
  if (request->stream_kept != NULL)
    opi_stream_finish(request);
  tell(request);
  set_phase(request, OPI_REQUEST_FINISHED); /* from here on it is the caller's */
  if (atomic_load_explicit(&s->finished_fd, memory_order_relaxed) >= 0)
    opi_session_ring_finished(s);
  if (atomic_load(&s->n_waiters) == 0)
    return;
  opi_lock_take(&s->lock);
  opi_lock_signal(&s->lock);
  opi_lock_give(&s->lock);
}

void opi_request_finish(opi_request *request) {
  uint32_t old = atomic_load(&request->state);
  do {
    if ((old & OPI_REQUEST_PROGRESS) != OPI_REQUEST_ACTIVE)
      return;
  } while (!atomic_compare_exchange_weak(&request->state, &old,
                                         old - OPI_REQUEST_ACTIVE + OPI_REQUEST_ENDING));
  hand_back(request);
}

bool opi_request_withdraw(opi_request *request) {
  uint32_t no = OPI_BEGUN_NO;
  if (!atomic_compare_exchange_strong(&request->begun, &no, OPI_BEGUN_NEVER))
    return false;
  opi_request_finish(request);
  return true;
}

bool opi_step_leave_out(opi_request *request, const opipe_error *why) {
  uint32_t no = OPI_BEGUN_NO;
  if (!atomic_compare_exchange_strong(&request->begun, &no, OPI_BEGUN_NEVER))
    return false;
  (void)opi_request_fail(request, why);
  opi_request_finish(request);
  return true;
}

/* It has passed, and ends if nobody has ended it: at one stroke, since one that has ended and was
 * released is another request's memory the moment it has passed. */
static void set_passed(opi_request *request, bool ends) {
  uint32_t old = atomic_load(&request->state), next = 0;
  bool mine = false;
  do {
    mine = ends && (old & OPI_REQUEST_PROGRESS) == OPI_REQUEST_ACTIVE;
    next = (mine ? old - OPI_REQUEST_ACTIVE + OPI_REQUEST_ENDING : old) | OPI_REQUEST_PASSED;
  } while (!atomic_compare_exchange_weak(&request->state, &old, next));
  if (mine)
    hand_back(request);
  else if (is_over(next))
    opi_request_recycle(request);
}

/* Of whoever has set PASSING: until it has passed it is nobody else's. */
static void pass(opi_request *request) {
  opi_session *s = request->session;
  opi_lent_drop(request); /* bindings of the shape go with it */
  if (request->shape != NULL)
    atomic_fetch_sub(&request->shape->n_users, 1);
  const bool withdrawn = opi_request_withdrawn(request); /* who withdrew it ends it */
  atomic_fetch_sub(&s->n_unfinished, request->is_gap ? 0 : 1);
  opi_room_tell(s);
  set_passed(request, !withdrawn);
}

void opi_request_passed(opi_request *request) {
  uint32_t old = atomic_load(&request->state);
  do {
    if (old == OPI_REQUEST_FREE || (old & OPI_REQUEST_PASSING) != 0)
      return;
  } while (!atomic_compare_exchange_weak(&request->state, &old, old | OPI_REQUEST_PASSING));
  pass(request);
}

static bool is_touched(opi_session *s) {
  for (uint32_t i = 0; s->ranks != NULL && i < s->n_here; ++i) {
    if (atomic_load(&s->ranks[s->here[i]].touching) != 0)
      return true;
  }
  return false;
}

static opi_request *pool_entry(opi_session *s, uint32_t index) {
  opi_lock_take(&s->lock);
  opi_request *request = index < s->n_pool ? s->pool[index] : NULL;
  opi_lock_give(&s->lock);
  return request;
}

static bool is_ending(const opi_request *request) {
  const uint32_t state = atomic_load(&request->state), phase = state & OPI_REQUEST_PROGRESS;
  return phase == OPI_REQUEST_ENDING || phase == OPI_REQUEST_TELLING ||
         (phase == OPI_REQUEST_ACTIVE && (state & OPI_REQUEST_PASSING) != 0);
}

bool opi_session_is_ending(opi_session *s) {
  bool found = false;
  opi_request *request = pool_entry(s, 0);
  for (uint32_t i = 0; request != NULL && !found; request = pool_entry(s, ++i))
    found = is_ending(request);
  return found;
}

/* Ends it if nobody has. That it passes is said first: what has passed and was released may be
 * another request's memory, which would then pass without having failed. */
static void settle(opi_request *request, const opipe_error *why) {
  uint32_t old = atomic_load(&request->state), phase = 0;
  do {
    phase = old & OPI_REQUEST_PROGRESS;
    if ((old & OPI_REQUEST_PASSING) != 0 ||
        (phase != OPI_REQUEST_ACTIVE && phase != OPI_REQUEST_FINISHED))
      return;
  } while (!atomic_compare_exchange_weak(&request->state, &old, old | OPI_REQUEST_PASSING));
  if (phase == OPI_REQUEST_ACTIVE && !opi_rank_is_here(request->session, 0))
    opi_request_judge(request, why); /* though well done here: the verdict has not come */
  else if (phase == OPI_REQUEST_ACTIVE)
    (void)opi_request_fail(request, why);
  pass(request);
}

void opi_session_settle(opi_session *s) {
  opipe_error why = OPIPE_ERROR_INIT;
  if (!opi_session_failed(s) || is_touched(s))
    return;
  if (s->why.status == OPIPE_E_CANCELLED)
    why = s->why;
  else
    (void)opi_fail(&why, OPIPE_E_PEER, "the session has failed: %s", s->why.message);
  opi_request *request = pool_entry(s, 0);
  for (uint32_t i = 0; request != NULL; request = pool_entry(s, ++i))
    settle(request, &why);
}

/* False: it has before. */
static bool break_off(opi_session *s, uint32_t rank, opi_request *request, const opipe_error *why) {
  uint32_t none = 0;
  if (!atomic_compare_exchange_strong(&s->failing, &none, 1))
    return false;
  s->why = *why;
  s->why.struct_size = (uint32_t)sizeof s->why;
  if (request != NULL)
    (void)opi_request_fail(request, why);
  atomic_store(&s->failed, 1);
  if (why->status != OPIPE_E_CANCELLED && !opi_peers_have_gone(s))
    opi_log(s->env.logger, OPIPE_LOG_ERROR, "session failed: %s", why->message);
  if (s->world != NULL)
    s->transport->abort(s->world, rank, why);
  return true;
}

void opi_session_break(opi_session *s, uint32_t rank, opi_request *request,
                       const opipe_error *why) {
  (void)break_off(s, rank, request, why);
}

void opi_session_fail(opi_session *s, uint32_t rank, opi_request *request, const opipe_error *why) {
  if (break_off(s, rank, request, why))
    opi_session_settle(s);
}

opipe_status opi_process_check(const opi_session *s, opipe_error *err) {
  const int32_t pid = opi_process_id();
  if (s->pid != pid) {
    return opi_fail(err, OPIPE_E_STATE,
                    "the session was opened in another process (%d, this is %d)", s->pid, pid);
  }
  return OPIPE_OK;
}

opipe_status opi_session_check(const opi_session *s, opipe_error *err) {
  OPI_TRY(opi_process_check(s, err));
  if (atomic_load(&s->closing) != 0)
    return opi_fail(err, OPIPE_E_STATE, "the session is being closed");
  return OPIPE_OK;
}
