/* SPDX-License-Identifier: Apache-2.0 */
/* Held requests: kept from the ranks until their fences are set, together with later requests of
 * the same stream. In training they are also kept while somebody reads or writes parameters
 * (rest.c).
 *
 *   first ──► r1 ─► r2 ─► r3 ─► r4        all of them, oldest first; a look goes along this list
 *   rows ──── last of stream A, of B ...  hashed; from there back through the stream
 *
 * The time of a submit does not grow with their number. A look at all of them does, so the next
 * look comes only after several times the last one's duration. A host's flag has no doorbell: the
 * longer it has been waited for, the later it is looked at again.
 *
 * The reference has no ranks. Its admitted requests run on the thread that looks, under run_lock,
 * and end once submit_lock is free, so that an on_done may call.
 */
#include "runtime/requests/requests.h"

enum {
  ROWS_MOST = 1 << 16,
  LOOK_SHARE = 8 /* the time between two looks is at least this many times a look's duration */
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

/* ---- fences ---- */

/* Ranks run requests in order, so a request must not wait for the host. An output's flag may still
 * be looked at when the output is stored. Training looks before that, since a step that has begun
 * cannot be left half done, and so does the reference, which could do nothing else meanwhile. */
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

/* Looks at the request's fences; once they are set, reads a step's labels. The end of a request
 * waits for this (hand_back), since its flags and tensors may be freed then. */
static bool look(opi_request *request, opipe_status *out_status, opipe_error *why) {
  opi_session *s = request->caller->session;
  atomic_store(&s->held.looked_at, request);
  const bool may = !opi_request_failed(request) && opi_request_may_go(request);
  *out_status = may && request->ticket != NULL ? opi_train_look(request, why) : OPIPE_OK;
  atomic_store(&s->held.looked_at, NULL);
  return may;
}

/* ---- streams ---- */

/* Sessions that share the work have one order, so all their requests are of one stream. */
static bool same_stream(const opi_request *a, const opi_request *b) {
  return opi_is_shared(a->setup) ||
         (a->stream_kept == b->stream_kept &&
          (a->stream_kept != NULL || a->caller->stream == b->caller->stream));
}

/* The link to the last held request of the same stream, or the link for a first one. */
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

/* Holds the request, and with it later ones of its stream. */
static void hold(opi_request *request) {
  opi_session *s = request->caller->session;
  opi_request **at = link_of(request), *last = *at;
  /* Link it behind the last one of its stream. */
  request->caller->ahead_in_stream = last;
  request->caller->behind_in_stream = NULL;
  request->caller->next_in_row = last == NULL ? NULL : last->caller->next_in_row;
  *at = request;
  if (last != NULL)
    last->caller->behind_in_stream = request;
  request->caller->foremost = last == NULL;
  request->caller->held = true;
  /* Link it behind all held ones, and let rank 0 look after them. */
  request->caller->next_fenced = NULL;
  *s->held.end = request;
  s->held.end = &request->caller->next_fenced;
  if (atomic_fetch_add(&s->held.n, 1) == 0)
    atomic_store(&s->held.since_ns, opi_clock_ns());
  if (!s->setup->reference)
    s->setup->transport->ring(opi_session_first(s->setup)->endpoint);
}

/* Unlinks a held request. at: the link to it in the list of all. */
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
  atomic_store(&s->held.since_ns, opi_clock_ns());
}

uint32_t opi_held_from(const opi_session *s, uint64_t number) {
  uint32_t n = 0;
  for (const opi_request *at = s->held.first; at != NULL; at = at->caller->next_fenced)
    n += at->number >= number;
  return n;
}

/* ---- admitting ---- */

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
  if (opi_is_shared(s->setup) && !opi_rank_is_here(s->setup, 0)) /* others would run the step */
    opi_session_break(s->setup, opi_session_first(s->setup)->index, request, why);
  else
    (void)opi_request_fail(request, why);
}

/* Gives the ranks the held requests that may go. Returns those that have failed, and in the
 * reference all that have run. */
static opi_request *admit(opi_session *s) {
  opi_request *ended = NULL, **end = &ended;
  for (opi_request **at = &s->held.first; *at != NULL && !opi_session_failed(s->setup);) {
    opi_request *request = *at;
    /* May it go? Look at its fences, and count a step's labels. */
    opi_request_check_held(request);
    opipe_error why = OPIPE_ERROR_INIT;
    opipe_status status = OPIPE_OK;
    const bool next = request->caller->foremost && request->number < s->held.gate;
    const bool may = next && look(request, &status, &why);
    if (status < 0)
      fail_for_labels(request, &why);
    if (opi_session_failed(s->setup))
      break;
    /* Keep it, give it to the ranks, or collect it for its end. */
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

/* Ends the collected requests. submit_lock is free, so that an on_done may call. */
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
    opi_session_admit(s); /* a late one that is ended makes room */
  (void)take(s, true);
}

void opi_submit_end(opi_session *s, opi_request *request) {
  opi_lock_give(&s->shapes->submit_lock);
  if (opi_session_failed(s->setup))
    opi_session_settle(s);
  if (!s->setup->reference)
    return;
  if (request != NULL && atomic_load(&request->begun) == OPI_BEGUN_YES)
    opi_request_passed(request); /* the reference has run it */
  opi_lock_give(&s->run_lock);
}
