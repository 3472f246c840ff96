/* SPDX-License-Identifier: Apache-2.0 */
/* Requests from the caller's side: poll, wait, cancel, look at results, release; and the pool that
 * they come from.
 *
 * A request belongs to the caller from submit to release, and to the ranks until they have passed
 * it. Its memory goes back to the pool with its result buffers, so that submitting allocates
 * nothing after warm-up.
 */
#include <sched.h>

#include "runtime/requests/peers.h"
#include "runtime/requests/requests.h"

enum { SHORT_WAIT_NS = 1000000 }; /* a caller spins through waits of up to twice this */
enum { LOOKS_PER_CLOCK = 4 };

/* ---- the pool ---- */

static void end_request(void *request) {
  opi_request_release(request);
}

/* A request's two sides; its tables follow. */
typedef struct whole {
  opi_request request;
  opi_caller caller;
} whole;

static size_t whole_bytes(const opi_setup *s) {
  return sizeof(whole) + s->n_inputs * sizeof(opi_feed) + s->n_outputs * sizeof(opi_result);
}

static opi_request *make(opi_session *s, opipe_error *err) {
  const opipe_allocator *allocator = s->setup->allocator;
  const size_t n_bytes = whole_bytes(s->setup);
  whole *all = opi_alloc_zero(allocator, 1, n_bytes);
  if (all == NULL) {
    (void)opi_fail_nomem(err, n_bytes, "a request");
    return NULL;
  }
  opi_request *request = &all->request;
  request->setup = s->setup;
  request->caller = &all->caller;
  request->caller->session = s;
  request->caller->slot =
      opi_handle_slot_take(OPI_HANDLE_REQUEST, request, end_request, s->setup->env.owner, err);
  if (request->caller->slot == NULL || opi_ticket_make(request, err) < 0) {
    opi_handle_slot_give(request->caller->slot);
    opi_free(allocator, all, n_bytes);
    return NULL;
  }
  request->feeds = (opi_feed *)(void *)(all + 1);
  request->results = (opi_result *)(void *)(request->feeds + s->setup->n_inputs);
  return request;
}

static void unmake(opi_session *s, opi_request *request) {
  const opipe_allocator *allocator = s->setup->allocator;
  opi_handle_slot_give(request->caller->slot);
  opi_ticket_free(request);
  opi_lent_free(request);
  opi_parcel_free(request);
  for (uint32_t o = 0; o < s->setup->n_outputs; ++o)
    opi_free(allocator, request->results[o].own, request->results[o].own_bytes);
  opi_free(allocator, request, whole_bytes(s->setup));
}

static bool grow_pool(opi_session *s) {
  if (s->pool.n < s->pool.room)
    return true;
  const uint32_t room = s->pool.room == 0 ? 16 : s->pool.room * 2;
  opi_request **pool = opi_resize(s->setup->allocator, s->pool.all, s->pool.room * sizeof *pool,
                                  room * sizeof *pool);
  if (pool == NULL)
    return false;
  s->pool.all = pool;
  s->pool.room = room;
  return true;
}

opi_request *opi_request_new(opi_session *s, opipe_error *err) {
  opi_lock_take(&s->waits.lock);
  opi_request *request = s->pool.free;
  if (request != NULL) {
    s->pool.free = request->caller->next_free;
  } else if (!grow_pool(s)) {
    (void)opi_fail_nomem(err, s->pool.room * 2 * sizeof(void *), "requests");
  } else {
    request = make(s, err);
    if (request != NULL)
      s->pool.all[s->pool.n++] = request;
  }
  opi_lock_give(&s->waits.lock);
  if (request != NULL) {
    request->stream_kept = NULL;
    request->bound = NULL;
    request->lends = false;
    request->is_gap = false;
  }
  return request;
}

void opi_request_recycle(opi_request *request) {
  opi_session *s = request->caller->session;
  opi_handle_slot_disarm(request->caller->slot);
  opi_lock_take(&s->waits.lock);
  atomic_store(&request->caller->state, OPI_REQUEST_FREE);
  request->caller->next_free = s->pool.free;
  s->pool.free = request;
  opi_lock_give(&s->waits.lock);
}

void opi_pool_free(opi_session *s) {
  for (uint32_t i = 0; i < s->pool.n; ++i)
    unmake(s, s->pool.all[i]);
  opi_free(s->setup->allocator, s->pool.all, s->pool.room * sizeof *s->pool.all);
  s->pool.all = NULL;
  s->pool.n = s->pool.room = 0;
}

void opi_request_begin(opi_request *request, const opipe_submit_params *params) {
  opi_session *s = request->caller->session;
  const bool told = OPIPE_HAS(params, opipe_submit_params, on_done_ctx);
  request->caller->on_done = told ? params->on_done : NULL;
  request->caller->on_done_ctx = told ? params->on_done_ctx : NULL;
  atomic_store(&request->n_ranks_left, s->setup->n_here);
  atomic_store(&request->n_reports_left, s->setup->n_here);
  atomic_store(&request->n_travels_left, request->is_gap ? 0 : opi_values_ways(s->peers));
  atomic_store(&request->failed, OPI_FATE_OPEN);
  atomic_store(&request->caller->waiting, 0);
  atomic_store(&request->begun, OPI_BEGUN_NO);
  atomic_fetch_add(&s->n_unfinished, request->is_gap ? 0 : 1);
  request->caller->handle = opi_handle_slot_arm(request->caller->slot);
  atomic_store(&request->caller->state, OPI_REQUEST_ACTIVE);
}

/* ---- the caller's side ---- */

opipe_request *opi_request_handle(const opi_request *request) {
  return opi_handle_pointer(request->caller->handle);
}

static opipe_status check(const opi_request *request, opipe_error *err) {
  if (request == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "no request was given (NULL)");
  /* While a session closes, requests may still be looked at in their on_done. */
  OPI_TRY(opi_session_in_on_done() ? opi_process_check(request->setup, err)
                                   : opi_session_check(request->setup, err));
  const uint32_t state = atomic_load(&request->caller->state);
  if (state == OPI_REQUEST_FREE || (state & OPI_REQUEST_RELEASED) != 0) {
    return opi_fail(err, OPIPE_E_STATE, "request %llu has been released",
                    (unsigned long long)request->number);
  }
  return OPIPE_OK;
}

/* How a finished request ended. */
static opipe_status outcome(const opi_request *request, opipe_error *err) {
  if (!opi_request_failed(request))
    return OPIPE_OK;
  if (err != NULL)
    *err = request->error;
  return request->error.status;
}

/* Is the request finished? Also ends it if it is late or its session has failed. */
static bool is_finished(opi_request *request) {
  if (opi_request_over(request))
    return true;
  if (opi_session_failed(request->setup))
    opi_session_settle(request->caller->session);
  opi_session_admit(request->caller->session);
  if (request->deadline_ns != 0) {
    opi_request_check_deadline(request, NULL, 0);
    if (opi_request_failed(request))
      (void)opi_request_withdraw(request);
  }
  return opi_request_over(request);
}

opipe_status opi_request_poll(opi_request *request, opipe_error *err) {
  OPI_TRY(check(request, err));
  if (!is_finished(request) && request->caller->session->setup->threads == OPIPE_THREADS_HOST)
    opi_watch(request->setup); /* perhaps no rank looks */
  return is_finished(request) ? outcome(request, err) : OPIPE_PENDING;
}

/* Spins until the request is finished or the time is over; yields the core after a while. */
static void spin(opi_request *request, uint64_t now_ns, uint64_t until_ns) {
  const uint64_t yields_ns = opi_later_ns(now_ns, OPI_POLL_NS);
  while (opi_request_progress(request) != OPI_REQUEST_FINISHED && now_ns < until_ns) {
    for (int i = 0; i < LOOKS_PER_CLOCK; ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    now_ns = opi_clock_ns();
    if (now_ns > yields_ns)
      (void)sched_yield();
  }
}

/* The reference has no rank that looks at held requests, so the caller does. */
static uint64_t looks_within(const opi_session *s, uint64_t slice_ns) {
  const uint64_t held = s->setup->reference ? opi_held_looks_ns(s) : UINT64_MAX;
  return held < slice_ns ? held : slice_ns;
}

static void sleep_for(opi_request *request, uint64_t until_ns) {
  opi_session *s = request->caller->session;
  const uint64_t slice =
      s->setup->watchdog_ns / 4 < OPI_LOOK_NS ? s->setup->watchdog_ns / 4 + 1 : OPI_LOOK_NS;
  while (!is_finished(request)) {
    const uint64_t now = opi_clock_ns();
    if (now >= until_ns)
      return;
    uint64_t end = opi_later_ns(now, looks_within(s, slice));
    if (until_ns < end)
      end = until_ns;
    if (request->deadline_ns > now && request->deadline_ns < end)
      end = request->deadline_ns;
    opi_lock_take(&s->waits.lock);
    if (opi_request_progress(request) != OPI_REQUEST_FINISHED)
      opi_lock_wait(&s->waits.lock, end);
    opi_lock_give(&s->waits.lock);
    opi_watch(s->setup);
  }
}

/* How long a caller spins before it sleeps. If the host left that to the library, cores are idle
 * and devices do the work, it spins through requests as short as the last ones, for which waking up
 * would take a good part of the time. */
static uint64_t looks_until(const opi_request *request, uint64_t now, uint64_t until_ns,
                            uint32_t n_waiters) {
  const opi_session *s = request->caller->session;
  const uint64_t lately = atomic_load_explicit(&s->waits.lately_ns, memory_order_relaxed);
  const bool adapts = n_waiters <= s->waits.cores && lately <= SHORT_WAIT_NS;
  uint64_t looks_ns = (uint64_t)s->waits.spin_us * 1000;
  if (adapts && 2 * lately > looks_ns)
    looks_ns = 2 * lately;
  if (request->deadline_ns != 0 && request->deadline_ns < until_ns)
    until_ns = request->deadline_ns;
  const uint64_t end = opi_later_ns(now, looks_ns);
  return end < until_ns ? end : until_ns;
}

/* A moving mean of waits. If two callers write at once, one is lost. */
static void note_wait(opi_session *s, uint64_t ns) {
  const uint64_t most = UINT64_C(4) * SHORT_WAIT_NS;
  const uint64_t lately = atomic_load_explicit(&s->waits.lately_ns, memory_order_relaxed);
  atomic_store_explicit(&s->waits.lately_ns, lately - lately / 4 + (ns < most ? ns : most) / 4,
                        memory_order_relaxed);
}

opipe_status opi_request_wait(opi_request *request, uint64_t timeout_ns, opipe_error *err) {
  OPI_TRY(check(request, err));
  opi_session *s = request->caller->session;
  if (atomic_exchange(&request->caller->waiting, 1) != 0) {
    return opi_fail(err, OPIPE_E_STATE, "request %llu: another thread is waiting for it already",
                    (unsigned long long)request->number);
  }
  /* A double-buffered step may be held back for the next one. */
  if (request->ticket != NULL && timeout_ns != 0 && !is_finished(request))
    opi_train_let_finish(request);
  /* Spin for a while, then sleep. */
  const uint64_t now = opi_clock_ns(), until = opi_later_ns(now, timeout_ns);
  const uint32_t n_waiters = atomic_fetch_add(&s->waits.n_waiters, 1) + 1;
  spin(request, now, looks_until(request, now, until, n_waiters));
  if (!is_finished(request))
    sleep_for(request, until);
  const bool finished = opi_request_over(request);
  if (finished)
    note_wait(s, opi_clock_ns() - now);
  opipe_status status = OPIPE_OK;
  if (finished) {
    status = outcome(request, err);
  } else {
    status = opi_fail(err, OPIPE_E_TIMEOUT, "request %llu is not finished after %llu ns of waiting",
                      (unsigned long long)request->number, (unsigned long long)timeout_ns);
  }
  atomic_store(&request->caller->waiting, 0);
  atomic_fetch_sub(&s->waits.n_waiters, 1); /* must be last: close waits for it */
  return status;
}

opipe_status opi_request_queued(opi_request *request, uint64_t timeout_ns, opipe_error *err) {
  OPI_TRY(check(request, err));
  opi_session *s = request->caller->session;
  const uint64_t until = opi_later_ns(opi_clock_ns(), timeout_ns);
  const uint64_t slice =
      s->setup->watchdog_ns / 4 < OPI_LOOK_NS ? s->setup->watchdog_ns / 4 + 1 : OPI_LOOK_NS;
  uint64_t now = opi_clock_ns();
  atomic_fetch_add(&s->waits.n_waiters, 1); /* before the first look, so that no signal is lost */
  while (!is_finished(request) && !opi_lent_queued(request) && now < until) {
    const uint64_t end = opi_later_ns(now, looks_within(s, slice));
    opi_lock_take(&s->waits.lock);
    if (opi_request_progress(request) != OPI_REQUEST_FINISHED && !opi_lent_queued(request))
      opi_lock_wait(&s->waits.lock, end < until ? end : until);
    opi_lock_give(&s->waits.lock);
    opi_watch(s->setup);
    now = opi_clock_ns();
  }
  opipe_status status = OPIPE_OK;
  if (opi_request_over(request)) {
    status = outcome(request, err);
  } else if (!opi_lent_queued(request)) {
    status = opi_fail(err, OPIPE_E_TIMEOUT, "request %llu is not queued after %llu ns of waiting",
                      (unsigned long long)request->number, (unsigned long long)timeout_ns);
  }
  atomic_fetch_sub(&s->waits.n_waiters, 1); /* last: closing waits for it */
  return status;
}

/* Leaves out a double-buffered step that is still held, since no earlier step has begun its
 * forwards then. Not if sessions share the work: the others may have admitted it. */
static bool leave_out_held(opi_request *request, const opipe_error *why) {
  opi_session *s = request->caller->session;
  uint32_t no = OPI_BEGUN_NO;
  if (opi_is_shared(s->setup) || opi_session_failed(s->setup))
    return false;
  opi_lock_take(&s->shapes->submit_lock);
  const bool out = request->caller->held &&
                   atomic_compare_exchange_strong(&request->begun, &no, OPI_BEGUN_NEVER);
  if (out)
    (void)opi_request_fail(request, why); /* no thread admits it any more */
  opi_lock_give(&s->shapes->submit_lock);
  if (out)
    opi_request_finish(request);
  return out;
}

/* Other ranks' sums need a step that one rank has begun, so it is left out by all ranks or none. */
static opipe_status cancel_step(opi_request *request, const opipe_error *why, opipe_error *err) {
  const bool periodic = request->caller->session->shapes->periodic;
  if (periodic ? leave_out_held(request, why) : opi_step_leave_out(request, why))
    return OPIPE_OK;
  if (periodic && !opi_request_over(request)) {
    return opi_fail(err, OPIPE_E_STATE,
                    "request %llu cannot be cancelled: with double-buffered weights the steps "
                    "before and after it share its work, as soon as its fences are set%s; it ends "
                    "with the next step, request_wait or session_flush",
                    (unsigned long long)request->number,
                    opi_is_shared(request->setup) ? ", or sessions share its ranks" : "");
  }
  return opi_fail(
      err, OPIPE_E_STATE, "request %llu cannot be cancelled: it has %s",
      (unsigned long long)request->number,
      opi_request_over(request) ? "finished" : "begun, and a step cannot be left half done");
}

opipe_status opi_request_cancel(opi_request *request, opipe_error *err) {
  opipe_error why = OPIPE_ERROR_INIT;
  OPI_TRY(check(request, err));
  (void)opi_fail(&why, OPIPE_E_CANCELLED, "request %llu was cancelled",
                 (unsigned long long)request->number);
  if (request->ticket != NULL && !opi_rank_is_here(request->setup, 0)) {
    return opi_fail(err, OPIPE_E_STATE,
                    "request %llu cannot be cancelled here: whether a step begins is decided in "
                    "the session with rank 0",
                    (unsigned long long)request->number);
  }
  if (request->ticket != NULL && request->ticket->kind == OPI_TICKET_TRAIN)
    return cancel_step(request, &why, err);
  if (opi_request_fail(request, &why)) {
    (void)opi_request_withdraw(request);
    return OPIPE_OK;
  }
  const uint32_t fate = atomic_load(&request->failed);
  if (fate == OPI_FATE_SEALED || fate == OPI_FATE_DONE) {
    return opi_fail(err, OPIPE_E_STATE, "request %llu cannot be cancelled: it has finished",
                    (unsigned long long)request->number);
  }
  return opi_fail(err, OPIPE_E_STATE, "request %llu cannot be cancelled: it has failed",
                  (unsigned long long)request->number);
}

opipe_status opi_request_output(opi_request *request, uint32_t index, opipe_tensor *out_tensor,
                                opipe_error *err) {
  OPI_TRY(check(request, err));
  const opi_session *s = request->caller->session;
  if (!is_finished(request)) {
    return opi_fail(err, OPIPE_E_STATE,
                    "request %llu has not finished: its outputs are not there yet",
                    (unsigned long long)request->number);
  }
  if (index >= s->setup->n_outputs) {
    return opi_fail(err, OPIPE_E_NOTFOUND, "output %u of a model with %u", index,
                    s->setup->n_outputs);
  }
  if (opi_request_failed(request)) {
    return opi_fail(err, OPIPE_E_STATE, "request %llu has failed and has no outputs: %s",
                    (unsigned long long)request->number, request->error.message);
  }
  const opi_result *result = &request->results[index];
  if (request->ticket != NULL && index != 0 &&
      request->ticket->kind != OPI_TICKET_EVALUATE) { /* only evaluations have logits */
    return opi_fail(err, OPIPE_E_NOTFOUND, "a training step has no output %u ('%s')", index,
                    s->setup->output_names[index]);
  }
  if (result->made == OPI_MADE_KEPT) {
    return opi_fail(err, OPIPE_E_NOTFOUND,
                    "output %u ('%s') is kept by the request's state: state_get reads it", index,
                    s->setup->output_names[index]);
  }
  if (result->made == OPI_MADE_NONE) {
    return opi_fail(err, OPIPE_E_NOTFOUND,
                    "output %u ('%s') is made by no rank of this session (the first of %u is rank "
                    "%u): it is in the session of the rank that makes it",
                    index, s->setup->output_names[index], s->setup->n_here, s->setup->here[0]);
  }
  *out_tensor =
      (opipe_tensor){.data = result->data,
                     .device_type = result->on_device ? result->device_type : OPIPE_DL_CPU,
                     .device_id = result->on_device ? result->device_id : 0,
                     .rank = (int32_t)result->rank,
                     .dtype = opi_dtype_to_dl(s->setup->output_dtypes[index]),
                     .shape = result->shape};
  return OPIPE_OK;
}

bool opi_request_release_waits(const opi_request *request) {
  const opi_session *s = request->caller->session;
  return (s->setup->threads != OPIPE_THREADS_HOST || s->setup->reference) &&
         !opi_session_in_on_done();
}

void opi_request_release(opi_request *request) {
  if (request == NULL || check(request, NULL) < 0)
    return;
  if (request->ticket != NULL && !opi_request_over(request))
    opi_train_let_finish(request);
  opipe_status status =
      opi_request_release_waits(request) ? opi_request_wait(request, UINT64_MAX, NULL) : OPIPE_OK;
  while (status == OPIPE_E_STATE &&
         !opi_request_over(request)) { /* another thread waits for it: until it is finished */
    const struct timespec t = {.tv_nsec = 1000000};
    (void)nanosleep(&t, NULL);
  }
  opi_request_let_go(request);
}
