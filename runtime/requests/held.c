/* SPDX-License-Identifier: Apache-2.0 */
/* Requests whose tensors are not there yet: kept from the ranks until their fences are set, each
 * with what comes behind it in its own stream; in training also until nobody reads or writes
 * parameters (train/rest.c).
 *
 *   fenced ── r1 ─► r2 ─► r3 ─► r4        all of them, oldest first: what is looked at
 *   rows ──── last of stream A, of B ...  hashed; from there back through the stream
 *
 * Nothing that a submit does takes longer the more are held. A look takes all of them, so nobody
 * looks again before the last look has been paid for several times over; a host's flag rings
 * nothing, and the longer one has been waited for, the later it is looked at again.
 *
 * The reference has no ranks: what may go runs in the thread that looks, under run_lock, and ends
 * once submit_lock is free, so that an on_done may call.
 */
#include "runtime/requests/requests.h"

enum {
  ROWS_MOST = 1 << 16,
  LOOK_SHARE = 8 /* at least so many times as long as a look lasts nobody looks again */
};

opipe_status opi_held_open(opi_session *s, opipe_error *err) {
  uint32_t n = 1;
  while (n < s->setup->max_in_flight && n < ROWS_MOST)
    n *= 2;
  s->held.rows = OPI_ARENA_ARRAY(&s->setup->arena, opi_request *, n);
  if (s->held.rows == NULL)
    return opi_fail_nomem(err, n * sizeof *s->held.rows, "requests");
  s->held.mask = n - 1;
  s->held.end = &s->held.first;
  s->held.gate = UINT64_MAX;
  return OPIPE_OK;
}

/* ---- what may go ---- */

/* What ranks are given they do in turn: nothing of it may wait for the host. An output's flag is
 * looked at when it is stored; of a training session before that, since what has begun cannot be
 * left half done, and of the reference, which could do nothing else meanwhile. */
bool opi_request_may_go(const opi_request *request) {
  const opi_session *s = request->caller->session;
  for (uint32_t i = 0; i < s->setup->n_inputs; ++i) {
    if (request->feeds[i].given && !opi_feed_ready(request, i))
      return false;
  }
  for (uint32_t o = 0; o < s->setup->n_outputs; ++o) {
    const opi_result *result = &request->results[o];
    const bool later = request->ticket == NULL && !s->setup->reference &&
                       (!result->on_device || result->ready.kind == OPIPE_FENCE_HOST_FLAG);
    if (!later && !opi_result_ready(request, o))
      return false;
  }
  return true;
}

/* Its fences are set, then: labels are read. Whoever ends a request waits as long as somebody looks
 * (opi_request_finish): flags and tensors may go with it. */
static bool look(opi_request *request, opipe_status *out_status, opipe_error *why) {
  opi_session *s = request->caller->session;
  atomic_store(&s->held.looked_at, request);
  const bool may = !opi_request_failed(request) && opi_request_may_go(request);
  *out_status = may && request->ticket != NULL ? opi_train_look(request, why) : OPIPE_OK;
  atomic_store(&s->held.looked_at, NULL);
  return may;
}

/* ---- streams ---- */

/* Where sessions share the work all have one order, so all requests are of one stream. */
static bool same_stream(const opi_request *a, const opi_request *b) {
  return opi_is_shared(a->setup) ||
         (a->stream_kept == b->stream_kept &&
          (a->stream_kept != NULL || a->caller->stream == b->caller->stream));
}

/* The link to the last one of its stream that is held, or where one would be linked. */
static opi_request **link_of(const opi_request *like) {
  const opi_session *s = like->caller->session;
  const uint64_t key = opi_is_shared(s->setup)     ? 0
                       : like->stream_kept != NULL ? (uint64_t)(uintptr_t)like->stream_kept
                                                   : like->caller->stream;
  opi_request **at = &s->held.rows[(key * UINT64_C(0x9E3779B97F4A7C15) >> 40) & s->held.mask];
  while (*at != NULL && !same_stream(*at, like))
    at = &(*at)->caller->next_in_row;
  return at;
}

opi_request *opi_held_last(const opi_request *like) {
  return *link_of(like);
}

/* It holds up what comes behind it in its own stream. */
static void hold(opi_request *request) {
  opi_session *s = request->caller->session;
  opi_request **at = link_of(request), *last = *at;
  request->caller->ahead_in_stream = last;
  request->caller->behind_in_stream = NULL;
  request->caller->next_in_row = last == NULL ? NULL : last->caller->next_in_row;
  *at = request;
  if (last != NULL)
    last->caller->behind_in_stream = request;
  request->caller->foremost = last == NULL;
  request->caller->held = true;
  request->caller->next_fenced = NULL;
  *s->held.end = request;
  s->held.end = &request->caller->next_fenced;
  if (atomic_fetch_add(&s->held.n, 1) == 0)
    atomic_store(&s->held.since_ns, opi_clock_ns());
  if (!s->setup->reference)
    s->setup->transport->ring(opi_session_first(s->setup)->endpoint); /* which looks after them */
}

/* at: the link to it in the list of all. */
static void let_go(opi_request **at) {
  opi_request *request = *at, *ahead = request->caller->ahead_in_stream,
              *behind = request->caller->behind_in_stream;
  opi_session *s = request->caller->session;
  *at = request->caller->next_fenced;
  if (*at == NULL)
    s->held.end = at;
  if (behind == NULL) {
    opi_request **last = link_of(request);
    *last = ahead != NULL ? ahead : request->caller->next_in_row;
    if (ahead != NULL)
      ahead->caller->next_in_row = request->caller->next_in_row;
  } else {
    behind->caller->ahead_in_stream = ahead;
    behind->caller->foremost = request->caller->foremost;
  }
  if (ahead != NULL)
    ahead->caller->behind_in_stream = behind;
  request->caller->held = false;
  atomic_fetch_sub(&s->held.n, 1);
  atomic_store(&s->held.since_ns, opi_clock_ns()); /* something moves */
}

uint32_t opi_held_from(const opi_session *s, uint64_t number) {
  uint32_t n = 0;
  for (const opi_request *at = s->held.first; at != NULL; at = at->caller->next_fenced)
    n += at->number >= number;
  return n;
}

/* ---- going ---- */

static void give(opi_request *request) {
  uint32_t no = OPI_BEGUN_NO;
  if (request->caller->session->setup->reference &&
      !atomic_compare_exchange_strong(&request->begun, &no, OPI_BEGUN_YES))
    return; /* withdrawn */
  if (request->ticket != NULL)
    opi_train_publish(request);
  else
    opi_request_publish(request);
}

void opi_request_start(opi_request *request, bool goes) {
  if (goes)
    give(request);
  else
    hold(request);
}

static void fail_for_labels(opi_request *request, const opipe_error *why) {
  opi_session *s = request->caller->session;
  if (opi_is_shared(s->setup) && !opi_rank_is_here(s->setup, 0)) /* others would go on with it */
    opi_session_break(s->setup, opi_session_first(s->setup)->index, request, why);
  else
    (void)opi_request_fail(request, why);
}

/* Those that can go, go; returns those that have failed, and of the reference all that went. */
static opi_request *admit(opi_session *s) {
  opi_request *ended = NULL, **end = &ended;
  for (opi_request **at = &s->held.first; *at != NULL && !opi_session_failed(s->setup);) {
    opi_request *request = *at;
    /* May it go now? Look at its fences, and count a step's labels. */
    opi_request_check_held(request);
    opipe_error why = OPIPE_ERROR_INIT;
    opipe_status status = OPIPE_OK;
    const bool next = request->caller->foremost && request->number < s->held.gate;
    const bool may = next && look(request, &status, &why);
    if (status < 0)
      fail_for_labels(request, &why);
    if (opi_session_failed(s->setup))
      break;
    /* Keep it, give it to the ranks, or end it. */
    const bool fails = opi_request_failed(request), ends = fails && !opi_is_shared(s->setup);
    if (!ends && !(next && (may || fails))) {
      at = &request->caller->next_fenced;
      continue;
    }
    let_go(at);
    if (!ends)
      give(request);
    if (ends || s->setup->reference) {
      request->caller->next_fenced = NULL;
      *end = request;
      end = &request->caller->next_fenced;
    }
  }
  return ended;
}

/* Nobody holds submit_lock any more: an on_done may call. */
static void end_all(opi_session *s, opi_request *ended) {
  while (ended != NULL) {
    opi_request *request = ended;
    ended = request->caller->next_fenced;
    (void)opi_request_withdraw(request);
    opi_request_passed(request);
  }
  if (opi_session_failed(s->setup))
    opi_session_settle(s);
}

static bool take(opi_session *s, bool waits) {
  if (waits) {
    if (s->setup->reference)
      opi_lock_take(&s->run_lock);
    opi_lock_take(&s->shapes->submit_lock);
    return true;
  }
  if (s->setup->reference && !opi_lock_try(&s->run_lock))
    return false;
  if (opi_lock_try(&s->shapes->submit_lock))
    return true;
  if (s->setup->reference)
    opi_lock_give(&s->run_lock);
  return false;
}

void opi_session_look(opi_session *s, bool waits) {
  if (atomic_load_explicit(&s->held.n, memory_order_relaxed) == 0 || opi_session_failed(s->setup) ||
      !take(s, waits))
    return;
  const uint64_t since = opi_clock_ns();
  opi_request *ended = admit(s);
  const uint64_t now = opi_clock_ns();
  atomic_store_explicit(&s->held.look_ns, now + LOOK_SHARE * (now - since), memory_order_relaxed);
  opi_lock_give(&s->shapes->submit_lock);
  end_all(s, ended);
  if (s->setup->reference)
    opi_lock_give(&s->run_lock);
}

void opi_session_admit(opi_session *s) {
  if (atomic_load_explicit(&s->held.n, memory_order_relaxed) != 0 &&
      opi_clock_ns() >= atomic_load_explicit(&s->held.look_ns, memory_order_relaxed))
    opi_session_look(s, false);
}

opipe_status opi_session_flags_set(opi_session *s, opipe_error *err) {
  OPI_TRY(opi_session_check(s->setup, err));
  opi_session_look(s, true);
  for (uint32_t i = 0; i < s->setup->n_here && !s->setup->reference; ++i)
    s->setup->transport->ring(s->setup->ranks[s->setup->here[i]].endpoint);
  return OPIPE_OK;
}

uint64_t opi_held_looks_ns(const opi_session *s) {
  return atomic_load_explicit(&s->held.n, memory_order_relaxed) == 0
             ? UINT64_MAX
             : opi_flag_looks_ns(atomic_load_explicit(&s->held.since_ns, memory_order_relaxed));
}

/* ---- around a submit ---- */

void opi_submit_begin(opi_session *s) {
  if (atomic_load(&s->n_unfinished) >= s->setup->max_in_flight)
    opi_session_admit(s); /* where nobody else looks that makes room */
  (void)take(s, true);
}

void opi_submit_end(opi_session *s, opi_request *request) {
  opi_lock_give(&s->shapes->submit_lock);
  if (opi_session_failed(s->setup))
    opi_session_settle(s);
  if (!s->setup->reference)
    return;
  if (request != NULL && atomic_load(&request->begun) == OPI_BEGUN_YES)
    opi_request_passed(request); /* it has run */
  opi_lock_give(&s->run_lock);
}
