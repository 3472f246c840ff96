/* SPDX-License-Identifier: Apache-2.0 */
/* How requests and sessions end: in success, by a reason of their own (cancelled, late, bad data),
 * or because a rank failed.
 *
 * The first reason stays. A request is handed back once, by the thread that moves it from ACTIVE to
 * ENDING; after a failure only when no rank touches a request's memory any more.
 */
#include "loader/base/fp.h"
#include "runtime/requests/requests.h"

static void set_done(const opipe_fence *fence) {
  if (fence->kind == OPIPE_FENCE_HOST_FLAG)
    __atomic_store_n((uint32_t *)fence->handle, 1, __ATOMIC_RELEASE);
}

/* ---- states ---- */

static bool is_over(uint32_t state) {
  return (state & ~(uint32_t)OPI_REQUEST_PASSING) == OPI_REQUEST_OVER;
}

/* Sets the phase, and recycles a request that is over. When this returns the request may be another
 * one's memory. */
static void set_phase(opi_request *request, uint32_t phase) {
  uint32_t old = atomic_load(&request->caller->state), next = 0;
  do {
    next = (old & ~(uint32_t)OPI_REQUEST_PROGRESS) | phase;
  } while (!atomic_compare_exchange_weak(&request->caller->state, &old, next));
  if (is_over(next))
    opi_request_recycle(request);
}

static void set_flag(opi_request *request, uint32_t flag) {
  const uint32_t old = atomic_fetch_or(&request->caller->state, flag);
  if ((old & flag) == 0 && is_over(old | flag))
    opi_request_recycle(request);
}

void opi_request_let_go(opi_request *request) {
  set_flag(request, OPI_REQUEST_RELEASED);
}

/* ---- on_done ---- */

/* The requests whose on_done runs on this thread, since an on_done may end another request. */
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
  if (request->caller->on_done == NULL)
    return;
  told = &now;
  set_phase(request, OPI_REQUEST_TELLING);
  opi_fp_border *lent = opi_fp_lend();
  request->caller->on_done(request->caller->on_done_ctx, opi_request_handle(request),
                           opi_request_failed(request) ? request->error.status : OPIPE_OK);
  opi_fp_take(lent);
  told = now.outer;
}

opipe_status opi_result_ask(const opi_setup *s, const opipe_submit_params *params, uint32_t output,
                            const opi_result *result, void **out_data, opipe_error *err) {
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

/* Hands the request back. Only the thread that has moved it from ACTIVE to ENDING calls this. */
static void hand_back(opi_request *request) {
  opi_session *s = request->caller->session;
  /* Decide its fate, and wait until no thread looks at its fences. */
  opi_request_close_fate(request);
  while (atomic_load(&s->held.looked_at) ==
         request) { /* the next one to look sees that it is over */
  }
  /* Complete its results: loss, fences, counters. */
  if (request->ticket != NULL)
    opi_train_finished(request);
  for (uint32_t i = 0; i < s->setup->n_inputs; ++i)
    set_done(&request->feeds[i].done);
  for (uint32_t o = 0; o < s->setup->n_outputs; ++o)
    set_done(&request->results[o].done);
  if (!request->is_gap)
    atomic_fetch_add(opi_request_failed(request) ? &s->n_failed : &s->n_done, 1);
  if (request->stream_kept != NULL)
    opi_stream_finish(request);
  /* Tell the host. From FINISHED on the request is the caller's. */
  tell(request);
  set_phase(request, OPI_REQUEST_FINISHED);
  /* Wake waiting callers. */
  if (atomic_load_explicit(&s->waits.finished_fd, memory_order_relaxed) >= 0)
    opi_session_ring_finished(s);
  if (atomic_load(&s->waits.n_waiters) == 0)
    return;
  opi_lock_take(&s->waits.lock);
  opi_lock_signal(&s->waits.lock);
  opi_lock_give(&s->waits.lock);
}

void opi_request_finish(opi_request *request) {
  uint32_t old = atomic_load(&request->caller->state);
  do {
    if ((old & OPI_REQUEST_PROGRESS) != OPI_REQUEST_ACTIVE)
      return;
  } while (!atomic_compare_exchange_weak(&request->caller->state, &old,
                                         old - OPI_REQUEST_ACTIVE + OPI_REQUEST_ENDING));
  hand_back(request);
}

/* Sets PASSED, and ENDING if nobody has ended the request, in one exchange: a request that has
 * ended and was released may be another one's memory the moment it has passed. */
static void set_passed(opi_request *request, bool ends) {
  uint32_t old = atomic_load(&request->caller->state), next = 0;
  bool mine = false;
  do {
    mine = ends && (old & OPI_REQUEST_PROGRESS) == OPI_REQUEST_ACTIVE;
    next = (mine ? old - OPI_REQUEST_ACTIVE + OPI_REQUEST_ENDING : old) | OPI_REQUEST_PASSED;
  } while (!atomic_compare_exchange_weak(&request->caller->state, &old, next));
  if (mine)
    hand_back(request);
  else if (is_over(next))
    opi_request_recycle(request);
}

/* Passes the request. Only the thread that has set PASSING calls this, and no other thread recycles
 * the request before it has passed. */
static void pass(opi_request *request) {
  opi_session *s = request->caller->session;
  /* Let go of lent tensors, then of the shape that their bindings belong to. */
  opi_lent_drop(request);
  if (request->shape != NULL)
    atomic_fetch_sub(&request->shape->n_users, 1);
  /* Make room for another request. A withdrawn one is ended by the thread that withdrew it. */
  const bool withdrawn = opi_request_withdrawn(request);
  atomic_fetch_sub(&s->n_unfinished, request->is_gap ? 0 : 1);
  opi_room_tell(s);
  set_passed(request, !withdrawn);
}

void opi_request_passed(opi_request *request) {
  uint32_t old = atomic_load(&request->caller->state);
  do {
    if (old == OPI_REQUEST_FREE || (old & OPI_REQUEST_PASSING) != 0)
      return;
  } while (!atomic_compare_exchange_weak(&request->caller->state, &old, old | OPI_REQUEST_PASSING));
  pass(request);
}

static bool is_touched(opi_session *s) {
  for (uint32_t i = 0; s->setup->ranks != NULL && i < s->setup->n_here; ++i) {
    if (atomic_load(&s->setup->ranks[s->setup->here[i]].worker->touching) != 0)
      return true;
  }
  return false;
}

static opi_request *pool_entry(opi_session *s, uint32_t index) {
  opi_lock_take(&s->waits.lock);
  opi_request *request = index < s->pool.n ? s->pool.all[index] : NULL;
  opi_lock_give(&s->waits.lock);
  return request;
}

bool opi_session_only_passes(opi_session *s) {
  bool over = true;
  opi_lock_take(&s->waits.lock);
  for (uint32_t i = 0; i < s->pool.n && over; ++i) {
    const uint32_t state = atomic_load(&s->pool.all[i]->caller->state);
    over = state == OPI_REQUEST_FREE || (state & OPI_REQUEST_PASSED) != 0 ||
           (state & OPI_REQUEST_PROGRESS) == OPI_REQUEST_FINISHED;
  }
  opi_lock_give(&s->waits.lock);
  return over;
}

static bool is_ending(const opi_request *request) {
  const uint32_t state = atomic_load(&request->caller->state), phase = state & OPI_REQUEST_PROGRESS;
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

/* Ends the request if nobody has. PASSING is set first: a request that has passed and was released
 * may be another one's memory, which would then pass without having failed. */
static void settle(opi_request *request, const opipe_error *why) {
  uint32_t old = atomic_load(&request->caller->state), phase = 0;
  do {
    phase = old & OPI_REQUEST_PROGRESS;
    if ((old & OPI_REQUEST_PASSING) != 0 ||
        (phase != OPI_REQUEST_ACTIVE && phase != OPI_REQUEST_FINISHED))
      return;
  } while (!atomic_compare_exchange_weak(&request->caller->state, &old, old | OPI_REQUEST_PASSING));
  if (phase == OPI_REQUEST_ACTIVE && !opi_rank_is_here(request->setup, 0))
    opi_request_judge(request, why); /* even if it succeeded here: no verdict has come */
  else if (phase == OPI_REQUEST_ACTIVE)
    (void)opi_request_fail(request, why);
  pass(request);
}

void opi_session_settle(opi_session *s) {
  opipe_error why = OPIPE_ERROR_INIT;
  if (!opi_session_failed(s->setup) || is_touched(s))
    return;
  if (s->setup->ending.why.status == OPIPE_E_CANCELLED)
    why = s->setup->ending.why;
  else
    (void)opi_fail(&why, OPIPE_E_PEER, "the session has failed: %s", s->setup->ending.why.message);
  opi_request *request = pool_entry(s, 0);
  for (uint32_t i = 0; request != NULL; request = pool_entry(s, ++i))
    settle(request, &why);
}
