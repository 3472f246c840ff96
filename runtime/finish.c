/* SPDX-License-Identifier: Apache-2.0 */
/* How requests and sessions end: in success, by a reason of their own (cancelled, late, bad data),
 * or because a rank failed.
 *
 * The first reason stays. A request is handed back once, by whoever moves it from ACTIVE to ENDING;
 * after a failure that happens only when no rank touches a request's memory any more.
 */
#include "runtime/train/state.h"

bool opi_request_fail(opi_request *request, const opipe_error *why) {
  uint32_t open = OPI_FATE_OPEN;
  if (!atomic_compare_exchange_strong(&request->failed, &open, OPI_FATE_WRITTEN))
    return false;
  request->error = *why;
  request->error.struct_size = (uint32_t)sizeof request->error;
  atomic_store_explicit(&request->failed, OPI_FATE_FAILED, memory_order_release);
  return true;
}

void opi_request_check_deadline(opi_request *request, const opi_rank *rank, uint32_t stage) {
  opipe_error why = OPIPE_ERROR_INIT;
  const uint64_t now = opi_clock_ns();
  if (request->deadline_ns == 0 || now < request->deadline_ns || opi_request_failed(request))
    return;
  const double late_ms = (double)(now - request->deadline_ns) * 1e-6;
  if (rank == NULL) {
    (void)opi_fail(&why, OPIPE_E_TIMEOUT, "request %llu: its deadline passed %.3f ms ago",
                   (unsigned long long)request->number, late_ms);
  } else {
    (void)opi_fail(&why, OPIPE_E_TIMEOUT,
                   "request %llu: its deadline passed %.3f ms before rank %u came to stage %u",
                   (unsigned long long)request->number, late_ms, rank->index, stage);
  }
  (void)opi_request_fail(request, &why);
}

static void set_done(const opipe_fence *fence) {
  if (fence->kind == OPIPE_FENCE_HOST_FLAG)
    __atomic_store_n((uint32_t *)fence->handle, 1, __ATOMIC_RELEASE);
}

void opi_request_finish(opi_request *request) {
  opi_session *s = request->session;
  uint32_t active = OPI_REQUEST_ACTIVE;
  if (!atomic_compare_exchange_strong(&request->state, &active, OPI_REQUEST_ENDING))
    return;
  uint32_t open = OPI_FATE_OPEN;
  (void)atomic_compare_exchange_strong(&request->failed, &open, OPI_FATE_SEALED);
  while (atomic_load_explicit(&request->failed, memory_order_acquire) ==
         OPI_FATE_WRITTEN) { /* a few instructions long */
  }
  if (s->train != NULL)
    opi_train_finished(request);
  for (uint32_t i = 0; i < s->n_inputs; ++i)
    set_done(&request->feeds[i].done);
  for (uint32_t o = 0; o < s->n_outputs; ++o)
    set_done(&request->results[o].done);
  for (uint32_t c = 0; c < OPI_CLASSES; ++c) {
    if (request->shape[c] != NULL)
      atomic_fetch_sub(&request->shape[c]->n_users, 1);
  }
  atomic_fetch_add(opi_request_failed(request) ? &s->n_failed : &s->n_done, 1);
  atomic_fetch_sub(&s->n_unfinished, 1);
  atomic_store(&request->state, OPI_REQUEST_FINISHED); /* from here on it is the caller's */
  if (atomic_load(&s->n_waiters) == 0)
    return;
  opi_lock_take(&s->lock);
  opi_lock_signal(&s->lock);
  opi_lock_give(&s->lock);
}

static bool is_touched(opi_session *s) {
  for (uint32_t r = 0; s->ranks != NULL && r < s->plan->n_ranks; ++r) {
    if (atomic_load(&s->ranks[r].touching) != 0)
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

bool opi_session_is_ending(opi_session *s) {
  bool found = false;
  opi_request *request = pool_entry(s, 0);
  for (uint32_t i = 0; request != NULL && !found; request = pool_entry(s, ++i))
    found = atomic_load(&request->state) == OPI_REQUEST_ENDING;
  return found;
}

void opi_session_settle(opi_session *s) {
  opipe_error why = OPIPE_ERROR_INIT;
  if (!opi_session_failed(s) || is_touched(s))
    return;
  if (s->why.status == OPIPE_E_CANCELLED) {
    why = s->why;
  } else {
    (void)opi_fail(&why, OPIPE_E_PEER, "the session has failed: %s", s->why.message);
  }
  opi_request *request = pool_entry(s, 0);
  for (uint32_t i = 0; request != NULL; request = pool_entry(s, ++i)) {
    if (atomic_load(&request->state) != OPI_REQUEST_ACTIVE)
      continue;
    (void)opi_request_fail(request, &why);
    opi_request_finish(request);
  }
}

void opi_session_fail(opi_session *s, uint32_t rank, opi_request *request, const opipe_error *why) {
  uint32_t none = 0;
  if (!atomic_compare_exchange_strong(&s->failing, &none, 1))
    return;
  s->why = *why;
  s->why.struct_size = (uint32_t)sizeof s->why;
  if (request != NULL)
    (void)opi_request_fail(request, why);
  atomic_store(&s->failed, 1);
  if (why->status != OPIPE_E_CANCELLED)
    opi_log(s->env.logger, OPIPE_LOG_ERROR, "session failed: %s", why->message);
  if (s->world != NULL)
    s->transport->abort(s->world, rank, why);
  opi_session_settle(s);
}

opipe_status opi_session_check(const opi_session *s, opipe_error *err) {
  const int32_t pid = opi_process_id();
  if (s->pid != pid) {
    return opi_fail(err, OPIPE_E_STATE,
                    "the session was opened in another process (%d, this is %d)", s->pid, pid);
  }
  if (atomic_load(&s->closing) != 0)
    return opi_fail(err, OPIPE_E_STATE, "the session is being closed");
  return OPIPE_OK;
}
