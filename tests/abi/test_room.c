/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for room: threads that submit through a full session sleep and all get through, with
 * shapes that find no place too; what ends a wait, and what may not wait. on_done tells the host.
 * ctest: timeout=120
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

#define GPT "tests/data/gpt_8block/model.onnx"
enum { CALLERS = 8, RUNS = 40, SHAPES = 6, SEQ_MOST = 8 };
static int64_t ids[SEQ_MOST] = {5, 3, 1, 2, 7, 8, 6, 4};

static bool open_two(host_kit *k, uint32_t max_in_flight, uint32_t max_shapes, uint32_t threads) {
  opipe_session_params session = opipe_session_params_init();
  session.max_in_flight = max_in_flight;
  session.max_shapes = max_shapes;
  session.threads = threads;
  return OPI_ASSERT_OK(kit_plan(k, NULL, GPT, 1, SEQ_MOST, NULL), &k->err) &&
         OPI_ASSERT_OK(kit_open(k, &session), &k->err);
}

static opipe_status submit(host_kit *k, const int64_t *shape, _Atomic uint32_t *done,
                           void (*on_done)(void *, opipe_request *, opipe_status),
                           opipe_request **out, opipe_error *err) {
  const opipe_binding_io in = kit_ids(ids, shape);
  opipe_submit_params params = opipe_submit_params_init();
  params.inputs = &in;
  params.n_inputs = 1;
  params.on_done = on_done;
  params.on_done_ctx = done;
  return k->api->session_submit(k->session, &params, out, err);
}

/* ---- many callers ---- */

typedef struct caller {
  host_kit *k;
  uint32_t first; /* of the shapes that it takes in turn */
  _Atomic uint32_t done;
  uint32_t n_ok, n_full;
  opipe_error err;
  pthread_t thread;
} caller;

static void count_done(void *ctx, opipe_request *request, opipe_status status) {
  (void)request;
  if (status == OPIPE_OK)
    atomic_fetch_add((_Atomic uint32_t *)ctx, 1);
}

static void *call(void *arg) {
  caller *c = arg;
  for (uint32_t i = 0; i < RUNS; ++i) {
    const int64_t shape[2] = {1, 1 + (c->first + i) % SHAPES};
    opipe_request *request = NULL;
    opipe_status status = submit(c->k, shape, &c->done, count_done, &request, &c->err);
    while (status == OPIPE_PENDING) {
      ++c->n_full;
      status = c->k->api->session_wait_room(c->k->session, UINT64_C(20000000000), &c->err);
      if (status == OPIPE_OK)
        status = submit(c->k, shape, &c->done, count_done, &request, &c->err);
    }
    if (status == OPIPE_OK)
      status = c->k->api->request_wait(request, UINT64_MAX, &c->err);
    c->n_ok += status == OPIPE_OK;
    c->k->api->request_release(request);
  }
  return NULL;
}

static void all_get_through(uint32_t max_in_flight, uint32_t max_shapes) {
  host_kit k;
  caller callers[CALLERS];
  uint32_t n_full = 0;
  if (!open_two(&k, max_in_flight, max_shapes, OPIPE_THREADS_LIBRARY))
    return;
  memset(callers, 0, sizeof callers);
  for (uint32_t i = 0; i < CALLERS; ++i) {
    callers[i].k = &k;
    callers[i].first = i;
    callers[i].err.struct_size = sizeof callers[i].err;
    OPI_ASSERT_FATAL(pthread_create(&callers[i].thread, NULL, call, &callers[i]) == 0);
  }
  for (uint32_t i = 0; i < CALLERS; ++i) {
    OPI_ASSERT_INT(pthread_join(callers[i].thread, NULL), 0);
    opi_test_check(callers[i].n_ok == RUNS, __FILE__, __LINE__, false, "caller %u: %u of %u: %s", i,
                   callers[i].n_ok, RUNS, callers[i].err.message);
    OPI_ASSERT_INT(callers[i].done, RUNS);
    n_full += callers[i].n_full;
  }
  OPI_ASSERT(n_full != 0 || opi_test_is_sanitized()); /* else nothing was waited for */
  kit_close(&k);
}

static void test_callers_of_a_full_session_all_get_through(void) {
  all_get_through(2, 0);
}

static void test_callers_with_more_shapes_than_places_all_get_through(void) {
  all_get_through(64, 4); /* the plan's own shape keeps one of the four */
}

/* ---- one at a time ---- */

/* With ranks that only this thread drives, what is full stays full. */
static void test_a_wait_ends_in_time_and_with_room(void) {
  host_kit k;
  const int64_t shape[2] = {1, SEQ_MOST};
  _Atomic uint32_t done = 0;
  opipe_request *one = NULL, *two = NULL;
  if (!open_two(&k, 1, 0, OPIPE_THREADS_HOST))
    return;
  OPI_ASSERT_OK(k.api->session_wait_room(k.session, 0, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(submit(&k, shape, &done, count_done, &one, &k.err), &k.err);
  OPI_ASSERT_INT(submit(&k, shape, &done, count_done, &two, &k.err), OPIPE_PENDING);
  OPI_ASSERT_ERROR(k.api->session_wait_room(k.session, 2000000, &k.err), OPIPE_E_TIMEOUT, &k.err,
                   "1 are unfinished, at most 1 may be");
  while (k.api->request_poll(one, &k.err) == OPIPE_PENDING) {
    for (uint32_t r = 0; r < 2; ++r)
      OPI_ASSERT(k.api->session_drive(k.session, r, 0, &k.err) >= 0);
  }
  OPI_ASSERT_INT(done, 1);
  OPI_ASSERT_OK(k.api->session_wait_room(k.session, 0, &k.err), &k.err);
  OPI_ASSERT_OK(submit(&k, shape, &done, count_done, &two, &k.err), &k.err);
  k.api->request_release(one);
  k.api->request_release(two);
  kit_close(&k);
}

typedef struct waiter {
  host_kit *k;
  opipe_status status;
  opipe_error err;
  _Atomic uint32_t inside;
} waiter;

static void *wait_for_room(void *arg) {
  waiter *w = arg;
  atomic_store(&w->inside, 1);
  w->status = w->k->api->session_wait_room(w->k->session, UINT64_MAX, &w->err);
  return NULL;
}

static void test_closing_ends_a_wait(void) {
  host_kit k;
  const int64_t shape[2] = {1, SEQ_MOST};
  _Atomic uint32_t done = 0;
  opipe_request *one = NULL;
  pthread_t thread;
  if (!open_two(&k, 1, 0, OPIPE_THREADS_HOST))
    return;
  waiter w = {.k = &k, .err = OPIPE_ERROR_INIT};
  OPI_ASSERT_OK_FATAL(submit(&k, shape, &done, count_done, &one, &k.err), &k.err);
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, wait_for_room, &w) == 0);
  while (atomic_load(&w.inside) == 0) {
  }
  const struct timespec t = {.tv_nsec = 5000000};
  (void)nanosleep(&t, NULL);
  k.api->session_close(k.session);
  k.session = NULL;
  OPI_ASSERT_INT(pthread_join(thread, NULL), 0);
  OPI_ASSERT_INT(w.status, OPIPE_E_STATE);
  OPI_ASSERT_INT(done, 0); /* it ended, but not well */
  kit_close(&k);
}

typedef struct inside {
  host_kit *k;
  opipe_status status;
} inside;

static void wait_inside(void *ctx, opipe_request *request, opipe_status status) {
  inside *in = ctx;
  (void)request;
  (void)status;
  in->status = in->k->api->session_wait_room(in->k->session, 0, NULL);
}

static void test_on_done_must_not_wait(void) {
  host_kit k;
  const int64_t shape[2] = {1, SEQ_MOST};
  if (!open_two(&k, 2, 0, OPIPE_THREADS_LIBRARY))
    return;
  inside in = {.k = &k};
  const opipe_binding_io input = kit_ids(ids, shape);
  opipe_submit_params params = opipe_submit_params_init();
  opipe_request *request = NULL;
  params.inputs = &input, params.n_inputs = 1;
  params.on_done = wait_inside, params.on_done_ctx = &in;
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &params, &request, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_INT(in.status, OPIPE_E_STATE);
  kit_close(&k);
}

OPI_TEST_MAIN("room", OPI_TEST(test_callers_of_a_full_session_all_get_through),
              OPI_TEST(test_callers_with_more_shapes_than_places_all_get_through),
              OPI_TEST(test_a_wait_ends_in_time_and_with_room), OPI_TEST(test_closing_ends_a_wait),
              OPI_TEST(test_on_done_must_not_wait))
