/* SPDX-License-Identifier: Apache-2.0 */
/* Requests as seen by threads while others end them as fast as they can: the memory of a finished
 * request is another request's at once, and nobody who was in its end touches it any more; where
 * one of a stream has failed, the stream is broken for those behind it.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "runtime/compiled/stream.h"
#include "runtime/requests/requests.h"
#include "tests/runtime/toy.h"

enum { THREADS = 3, ROUNDS = 1000, LOOKS = 20 };
#define SECOND UINT64_C(1000000000)

static const toy_plan one_rank = {.n_nodes = 3,
                                  .n_stages = 1,
                                  .n_ranks = 1,
                                  .n_microbatches = 1,
                                  .depth = 2,
                                  .rows = 1,
                                  .seq = 2};

typedef struct worker {
  opi_session *session;
  uint64_t until_ns;
  uint32_t n_ended; /* requests that somebody else has ended */
  uint32_t n_failed;
} worker;

/* Ended, released, then passed by the last rank: the order in which a request is over in the midst
 * of opi_request_passed. */
static void begin_and_end(worker *w) {
  static const opipe_submit_params none = {.struct_size = sizeof none};
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t i = 0; i < ROUNDS && w->n_ended == 0; ++i) {
    opi_request *request = opi_request_new(w->session, &err);
    if (request == NULL) {
      ++w->n_failed;
      break;
    }
    request->shape = NULL;
    request->is_gap = true; /* it counts for nobody */
    for (uint32_t in = 0; in < w->session->setup->n_inputs; ++in)
      request->feeds[in] = (opi_feed){.given = false};
    for (uint32_t out = 0; out < w->session->setup->n_outputs; ++out)
      request->results[out].done = (opipe_fence){.kind = OPIPE_FENCE_NONE};
    opi_request_begin(request, &none);
    for (uint32_t look = 0; look < LOOKS && w->n_ended == 0; ++look)
      w->n_ended += opi_request_progress(request) != OPI_REQUEST_ACTIVE;
    opi_request_finish(request);
    opi_request_let_go(request);
    opi_request_passed(request);
  }
}

static void *begin_and_end_on(void *arg) {
  worker *w = arg;
  while (w->n_ended == 0 && w->n_failed == 0 && toy_now_ns() < w->until_ns)
    begin_and_end(w);
  return NULL;
}

static void test_nobody_ends_the_next_request(void) {
  toy t = {.allocator = NULL};
  opipe_error err = OPIPE_ERROR_INIT;
  pthread_t threads[THREADS];
  worker workers[THREADS];
  const opipe_session_params params = {.struct_size = sizeof params};
  OPI_ASSERT_OK_FATAL(toy_make(&t, &one_rank, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
  OPI_ASSERT_OK_FATAL(toy_open(&t, &params, &err), &err);
  for (uint32_t i = 0; i < THREADS; ++i) {
    workers[i] = (worker){.session = t.session, .until_ns = toy_now_ns() + SECOND};
    OPI_ASSERT_FATAL(pthread_create(&threads[i], NULL, begin_and_end_on, &workers[i]) == 0);
  }
  for (uint32_t i = 0; i < THREADS; ++i) {
    (void)pthread_join(threads[i], NULL);
    OPI_ASSERT_INT(workers[i].n_ended, 0);
    OPI_ASSERT_INT(workers[i].n_failed, 0);
  }
  toy_end(&t);
}

typedef struct pair {
  opi_stream stream;
  opi_request first, behind;
  _Atomic uint32_t round; /* that the first one fails in */
} pair;
enum { FAILURES = 2000 };

static void *fail_the_first(void *arg) {
  pair *p = arg;
  opipe_error why = OPIPE_ERROR_INIT;
  (void)opi_fail(&why, OPIPE_E_CANCELLED, "cancelled");
  for (uint32_t round = 1; round <= FAILURES; ++round) {
    while (atomic_load(&p->round) != round) {
    }
    (void)opi_request_fail(&p->first, &why);
  }
  return NULL;
}

static void test_whoever_sees_a_failure_finds_the_stream_broken(void) {
  static pair p;
  pthread_t thread;
  uint32_t n_whole = 0;
  p.first.stream_kept = p.behind.stream_kept = &p.stream;
  p.behind.sequence = 1;
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, fail_the_first, &p) == 0);
  for (uint32_t round = 1; round <= FAILURES; ++round) {
    atomic_store(&p.stream.broken_at, UINT64_MAX);
    atomic_store(&p.behind.failed, OPI_FATE_OPEN);
    atomic_store(&p.first.failed, OPI_FATE_OPEN);
    atomic_store(&p.round, round);
    while (!opi_request_failed(&p.first)) {
    }
    opi_stream_look(&p.behind);
    n_whole += !opi_request_failed(&p.behind);
    while (atomic_load(&p.first.failed) != OPI_FATE_FAILED) {
    }
  }
  (void)pthread_join(thread, NULL);
  OPI_ASSERT_INT(n_whole, 0);
}

/* ---- the reason of a failure ---- */

typedef struct reasons {
  opi_request request;
  _Atomic uint32_t stop;
  _Atomic uint32_t turn, seen; /* an odd turn pauses the reader, who answers with it */
  uint32_t n_read, n_torn;
} reasons;
enum { STAGES = 400, ROUNDS_OF_REASONS = 200 };

/* A message of one letter, told by the stage. */
static opipe_error reason_at(uint32_t stage) {
  opipe_error why = OPIPE_ERROR_INIT;
  why.status = OPIPE_E_INVALID;
  memset(why.message, 'a' + (int)(stage % 26), sizeof why.message - 1);
  return why;
}

static void *read_reasons(void *arg) {
  reasons *r = arg;
  while (atomic_load(&r->stop) == 0) {
    const uint32_t turn = atomic_load(&r->turn);
    atomic_store(&r->seen, turn);
    if (turn % 2 != 0)
      continue;
    opipe_error why = OPIPE_ERROR_INIT;
    uint32_t stage = 0;
    if (!opi_request_reason(&r->request, &why, &stage))
      continue;
    const opipe_error whole = reason_at(stage);
    ++r->n_read;
    r->n_torn += strcmp(why.message, whole.message) != 0;
  }
  return NULL;
}

/* A request whose reason was told is used again only when nobody reads it, as a session does. */
static void open_again(reasons *r) {
  const uint32_t turn = atomic_fetch_add(&r->turn, 1) + 1;
  while (atomic_load(&r->seen) != turn)
    (void)sched_yield();
  atomic_store(&r->request.failed, OPI_FATE_OPEN);
  (void)atomic_fetch_add(&r->turn, 1);
}

/* A lower stage's reason replaces a higher one's, as late devices tell them, while another thread
 * copies it. */
static void test_a_reason_is_copied_whole(void) {
  static reasons r;
  pthread_t thread;
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, read_reasons, &r) == 0);
  for (uint32_t round = 0; round < ROUNDS_OF_REASONS || (r.n_read == 0 && round < 1000000);
       ++round) {
    for (uint32_t stage = STAGES; stage > 0; --stage) {
      const opipe_error why = reason_at(stage - 1);
      OPI_ASSERT(opi_request_fail_at(&r.request, stage - 1, &why));
    }
    opi_request_close_fate(&r.request);
    const opipe_error late = reason_at(0);
    OPI_ASSERT(!opi_request_fail_at(&r.request, 0, &late)); /* the reported error stays */
    open_again(&r);
  }
  atomic_store(&r.stop, 1);
  (void)pthread_join(thread, NULL);
  OPI_ASSERT(r.n_read > 0);
  OPI_ASSERT_INT(r.n_torn, 0);
}

/* ---- a session that has failed ---- */

typedef struct failed {
  opi_session *session;
  uint64_t until_ns;
  _Atomic uint32_t stop;
  uint32_t n_ended, n_well; /* requests that settling has ended; of these, as if all were well */
} failed;

/* One after the other in the same memory: ended and passed by whoever comes first. */
static void *begin_in_failed(void *arg) {
  static const opipe_submit_params none = {.struct_size = sizeof none};
  failed *f = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  const uint64_t at_most = f->until_ns + 20 * SECOND; /* where cores are scarce */
  while (f->n_well == 0 &&
         (toy_now_ns() < f->until_ns || (f->n_ended < 10 && toy_now_ns() < at_most))) {
    opi_request *request = opi_request_new(f->session, &err);
    if (request == NULL)
      break;
    request->shape = NULL;
    request->is_gap = true;
    for (uint32_t in = 0; in < f->session->setup->n_inputs; ++in)
      request->feeds[in] = (opi_feed){.given = false};
    for (uint32_t out = 0; out < f->session->setup->n_outputs; ++out)
      request->results[out].done = (opipe_fence){.kind = OPIPE_FENCE_NONE};
    opi_request_begin(request, &none);
    uint32_t look = 0;
    while (look < LOOKS && opi_request_progress(request) != OPI_REQUEST_FINISHED) {
      if (++look % 8 == 0)
        (void)sched_yield();
    }
    if (look < LOOKS) {
      ++f->n_ended;
      f->n_well += !opi_request_failed(request);
    } else {
      opi_request_finish(request);
      while (opi_request_progress(request) != OPI_REQUEST_FINISHED) {
      }
    }
    opi_request_let_go(request);
    opi_request_passed(request);
  }
  atomic_store(&f->stop, 1);
  return NULL;
}

static void test_what_a_failed_session_ends_has_failed(void) {
  toy t = {.allocator = NULL};
  opipe_error err = OPIPE_ERROR_INIT, why = OPIPE_ERROR_INIT;
  pthread_t thread;
  const opipe_session_params params = {.struct_size = sizeof params};
  OPI_ASSERT_OK_FATAL(toy_make(&t, &one_rank, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
  OPI_ASSERT_OK_FATAL(toy_open(&t, &params, &err), &err);
  (void)opi_fail(&why, OPIPE_E_CANCELLED, "it is over");
  opi_session_fail(t.session->setup, 0, NULL, &why);
  failed f = {.session = t.session, .until_ns = toy_now_ns() + SECOND};
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, begin_in_failed, &f) == 0);
  while (atomic_load(&f.stop) == 0)
    opi_session_settle(t.session);
  (void)pthread_join(thread, NULL);
  OPI_ASSERT_INT(f.n_well, 0);
  OPI_ASSERT(f.n_ended > 0);
  toy_end(&t);
}

/* Whoever has been handed a request back copies its reason, which stays as it is. */
static void test_a_reason_that_was_handed_back_stays(void) {
  static const opipe_submit_params none = {.struct_size = sizeof none};
  toy t = {.allocator = NULL};
  opipe_error err = OPIPE_ERROR_INIT, late = OPIPE_ERROR_INIT, early = OPIPE_ERROR_INIT;
  const opipe_session_params params = {.struct_size = sizeof params};
  OPI_ASSERT_OK_FATAL(toy_make(&t, &one_rank, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
  OPI_ASSERT_OK_FATAL(toy_open(&t, &params, &err), &err);
  (void)opi_fail(&late, OPIPE_E_INVALID, "stage 3 has bad data");
  (void)opi_fail(&early, OPIPE_E_INVALID, "stage 1 has bad data");
  for (uint32_t handed_back = 0; handed_back < 2; ++handed_back) {
    opi_request *request = opi_request_new(t.session, &err);
    OPI_ASSERT_FATAL(request != NULL);
    request->shape = NULL;
    request->is_gap = true;
    opi_request_begin(request, &none);
    OPI_ASSERT(opi_request_fail_at(request, 3, &late));
    if (handed_back != 0)
      opi_request_finish(request);
    OPI_ASSERT(opi_request_fail_at(request, 1, &early) == (handed_back == 0));
    OPI_ASSERT(opi_request_failed(request));
    OPI_ASSERT(strcmp(request->error.message, handed_back == 0 ? early.message : late.message) ==
               0);
    opi_request_finish(request);
    opi_request_judge(request, &early);
    opi_request_let_go(request);
    opi_request_passed(request);
  }
  toy_end(&t);
}

OPI_TEST_MAIN("requests", OPI_TEST(test_nobody_ends_the_next_request),
              OPI_TEST(test_whoever_sees_a_failure_finds_the_stream_broken),
              OPI_TEST(test_a_reason_is_copied_whole),
              OPI_TEST(test_what_a_failed_session_ends_has_failed),
              OPI_TEST(test_a_reason_that_was_handed_back_stays))
