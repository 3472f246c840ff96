/* SPDX-License-Identifier: Apache-2.0 */
/* Input fences: a request whose inputs are not there yet holds up nobody but what comes behind it
 * in its own stream, until its deadline, a cancellation or the end of the session.
 */
#include <stdlib.h>

#include "tests/runtime/toy.h"

enum { MS = 1000000, N_FREE = 20 };
#define SOON (UINT64_C(20000) * MS) /* for what has to come: a test that is broken ends */

static const toy_plan three_ranks = {.n_nodes = 12,
                                     .n_stages = 3,
                                     .n_ranks = 3,
                                     .n_microbatches = 2,
                                     .depth = 2,
                                     .rows = 5,
                                     .seq = 2};

static void open_toy(toy *t, uint32_t threads) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .spin_us = UINT32_MAX,
      .watchdog_ns = UINT64_C(1000) * MS,
      .max_in_flight = 64,
      .threads = threads};
  OPI_ASSERT_OK_FATAL(toy_make(t, &three_ranks, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
  OPI_ASSERT_OK_FATAL(toy_open(t, &params, &err), &err);
}

/* ready NULL: it can be read at once. */
static void submit(toy *t, uint64_t stream, uint32_t *ready, uint32_t seed, uint64_t deadline_ns,
                   toy_request *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  t->stream = stream;
  t->ready = ready;
  OPI_ASSERT_OK_FATAL(toy_submit(t, seed % 2 == 0 ? 5 : 3, 2, seed, 0, deadline_ns, out, &err),
                      &err);
  t->ready = NULL;
}

static void drive(toy *t) {
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t r = 0; r < three_ranks.n_ranks; ++r)
    OPI_ASSERT(opi_session_drive(t->session, r, 0, &err) >= 0);
}

/* Until it ends; the host's threads are this one. */
static opipe_status ended(toy *t, const toy_request *r, uint32_t threads, opipe_error *err) {
  const uint64_t until = toy_now_ns() + SOON;
  opipe_status status = OPIPE_PENDING;
  if (threads != OPIPE_THREADS_HOST)
    return opi_request_wait(r->request, SOON, err);
  while (status == OPIPE_PENDING && toy_now_ns() < until) {
    drive(t);
    status = opi_request_poll(r->request, err);
  }
  return status;
}

/* Longer than the watchdog's time: nothing stands still. */
static void others_go_on(uint32_t threads) {
  toy t = {.allocator = NULL};
  toy_request first, behind, r[N_FREE];
  uint32_t ready = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  open_toy(&t, threads);
  submit(&t, 1, &ready, 0, 0, &first);
  submit(&t, 1, NULL, 1, 0, &behind); /* could be read, but requests of a stream end in order */
  const uint64_t until = toy_now_ns() + UINT64_C(1500) * MS;
  for (uint32_t round = 0; round == 0 || toy_now_ns() < until; ++round) {
    for (uint32_t i = 0; i < N_FREE; ++i)
      submit(&t, 2 + i % 3, NULL, round + i, 0, &r[i]);
    for (uint32_t i = 0; i < N_FREE; ++i) {
      OPI_ASSERT_OK(ended(&t, &r[i], threads, &err), &err);
      OPI_ASSERT(toy_check(&t, &r[i]));
      toy_release(&r[i]);
    }
  }
  OPI_ASSERT_INT(opi_request_poll(first.request, &err), OPIPE_PENDING);
  OPI_ASSERT_INT(opi_request_poll(behind.request, &err), OPIPE_PENDING);
  __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
  OPI_ASSERT_OK(ended(&t, &behind, threads, &err), &err);
  OPI_ASSERT_OK(opi_request_poll(first.request, &err), &err);
  OPI_ASSERT(toy_check(&t, &first) && toy_check(&t, &behind));
  toy_release(&first);
  toy_release(&behind);
  toy_end(&t);
}

static void test_others_go_on(void) {
  others_go_on(OPIPE_THREADS_LIBRARY);
}

static void test_others_go_on_where_the_host_drives(void) {
  others_go_on(OPIPE_THREADS_HOST);
}

/* Nobody looks at the late one: a rank does. */
static void test_a_deadline_ends_it(void) {
  toy t = {.allocator = NULL};
  toy_request late, behind;
  uint32_t never = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  open_toy(&t, OPIPE_THREADS_LIBRARY);
  submit(&t, 1, &never, 0, UINT64_C(20) * MS, &late);
  submit(&t, 1, NULL, 1, 0, &behind);
  OPI_ASSERT_OK(opi_request_wait(behind.request, SOON, &err), &err);
  OPI_ASSERT(toy_check(&t, &behind));
  OPI_ASSERT_ERROR(opi_request_poll(late.request, &err), OPIPE_E_TIMEOUT, &err,
                   "request 0: its deadline passed");
  toy_release(&late);
  toy_release(&behind);
  toy_end(&t);
}

static void test_it_can_be_cancelled(void) {
  toy t = {.allocator = NULL};
  toy_request r[3];
  uint32_t never = 0, soon = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  open_toy(&t, OPIPE_THREADS_LIBRARY);
  submit(&t, 1, &soon, 0, 0, &r[0]);
  submit(&t, 1, &never, 1, 0, &r[1]); /* not the foremost of its stream */
  submit(&t, 1, NULL, 2, 0, &r[2]);
  OPI_ASSERT_OK(opi_request_cancel(r[1].request, &err), &err);
  OPI_ASSERT_ERROR(opi_request_wait(r[1].request, SOON, &err), OPIPE_E_CANCELLED, &err,
                   "request 1 was cancelled");
  OPI_ASSERT_INT(opi_request_poll(r[2].request, &err), OPIPE_PENDING);
  __atomic_store_n(&soon, 1, __ATOMIC_RELEASE);
  OPI_ASSERT_OK(opi_request_wait(r[2].request, SOON, &err), &err);
  OPI_ASSERT(toy_check(&t, &r[0]) && toy_check(&t, &r[2]));
  for (uint32_t i = 0; i < 3; ++i)
    toy_release(&r[i]);
  OPI_ASSERT(toy_round(&t, 5, 2, 9, 0));
  toy_end(&t);
}

static void test_a_session_closes_over_it(void) {
  toy t = {.allocator = NULL};
  toy_request r[2];
  uint32_t never = 0;
  open_toy(&t, OPIPE_THREADS_LIBRARY);
  submit(&t, 1, &never, 0, 0, &r[0]);
  submit(&t, 1, NULL, 1, 0, &r[1]);
  opi_session_stop(t.session);
  for (uint32_t i = 0; i < 2; ++i) {
    free(r[i].x);
    free(r[i].p);
  }
  toy_end(&t);
}

OPI_TEST_MAIN("fences", OPI_TEST(test_others_go_on),
              OPI_TEST(test_others_go_on_where_the_host_drives), OPI_TEST(test_a_deadline_ends_it),
              OPI_TEST(test_it_can_be_cancelled), OPI_TEST(test_a_session_closes_over_it))
