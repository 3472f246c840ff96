/* SPDX-License-Identifier: Apache-2.0 */
/* What threads see of requests that others end, as fast as they can: the memory of one that is over
 * is another request's at once, and nobody who was in its end touches it any more; where one of a
 * stream has failed, the stream is broken for those behind it.
 */
#include <pthread.h>

#include "runtime/state.h"
#include "runtime/streams/streams.h"
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
    for (uint32_t in = 0; in < w->session->n_inputs; ++in)
      request->feeds[in] = (opi_feed){.given = false};
    for (uint32_t out = 0; out < w->session->n_outputs; ++out)
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

OPI_TEST_MAIN("requests", OPI_TEST(test_nobody_ends_the_next_request),
              OPI_TEST(test_whoever_sees_a_failure_finds_the_stream_broken))
