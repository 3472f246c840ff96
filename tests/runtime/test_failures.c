/* SPDX-License-Identifier: Apache-2.0 */
/* How requests and sessions end when something goes wrong: at each rank, in each way, and what
 * stays usable afterwards. ctest: timeout=120
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/requests/requests.h"
#include "tests/runtime/toy.h"

static const toy_plan three_ranks = {.n_nodes = 12,
                                     .n_stages = 3,
                                     .n_ranks = 3,
                                     .n_microbatches = 2,
                                     .depth = 2,
                                     .rows = 4,
                                     .seq = 2};
/* Nodes of the three stages (q, h0 .. h3 | h4 .. h8 | h9, h10, y, t, f). */
static const char *const node_of_rank[3] = {"node_h1", "node_h6", "node_h9"};

static opipe_session_params session_params(uint32_t flags) {
  return (opipe_session_params){
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .flags = flags,
      .max_in_flight = 8,
      .spin_us = UINT32_MAX};
}

static bool open_toy(toy *t, const toy_plan *plan, const opipe_session_params *params) {
  opipe_error err = OPIPE_ERROR_INIT;
  const bool made =
      opi_test_check_ok(toy_make(t, plan, &OPIPE_PLUGIN_STATIC(transport_local), &err), err.message,
                        "toy_make", __FILE__, __LINE__, false);
  return made && opi_test_check_ok(toy_open(t, params, &err), err.message, "toy_open", __FILE__,
                                   __LINE__, false);
}

static void submit_ok(toy *t, uint32_t seed, uint32_t flags, uint64_t deadline_ns,
                      toy_request *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(toy_submit(t, 4, 2, seed, flags, deadline_ns, out, &err), &err);
}

static void test_cancelled_request_flows_on(void) {
  for (uint32_t rank = 0; rank < 3; ++rank) {
    toy t = {.faults = {.stall_node = node_of_rank[rank], .stall_ms = 20}};
    const opipe_session_params params = session_params(0);
    toy_request r[4];
    opipe_error err = OPIPE_ERROR_INIT;
    if (!open_toy(&t, &three_ranks, &params))
      return;
    for (uint32_t i = 0; i < 4; ++i)
      submit_ok(&t, i, 0, 0, &r[i]);
    OPI_ASSERT_OK(opi_request_cancel(r[1].request, &err), &err);
    OPI_ASSERT_ERROR(opi_request_cancel(r[1].request, &err), OPIPE_E_STATE, &err, "request 1");
    for (uint32_t i = 0; i < 4; ++i) {
      const opipe_status status = opi_request_wait(r[i].request, UINT64_MAX, &err);
      OPI_ASSERT_INT(status, i == 1 ? OPIPE_E_CANCELLED : OPIPE_OK);
      if (i != 1)
        OPI_ASSERT(toy_check(&t, &r[i]));
    }
    OPI_ASSERT_ERROR(opi_request_cancel(r[0].request, &err), OPIPE_E_STATE, &err, "finished");
    for (uint32_t i = 0; i < 4; ++i)
      toy_release(&r[i]);
    toy_end(&t);
  }
}

static void test_deadline_fails_one_request(void) {
  toy t = {.faults = {.stall_node = node_of_rank[1], .stall_ms = 30}};
  const opipe_session_params params = session_params(0);
  toy_request late, good;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  submit_ok(&t, 1, 0, 5000000, &late);
  submit_ok(&t, 2, 0, 0, &good);
  OPI_ASSERT_ERROR(opi_request_wait(late.request, UINT64_MAX, &err), OPIPE_E_TIMEOUT, &err,
                   "deadline");
  OPI_ASSERT_ERROR(opi_request_poll(late.request, &err), OPIPE_E_TIMEOUT, &err, "request 0");
  OPI_ASSERT_OK(opi_request_wait(good.request, UINT64_MAX, &err), &err);
  OPI_ASSERT(toy_check(&t, &good));
  toy_release(&late);
  toy_release(&good);
  toy_end(&t);
}

static void test_nan_fails_one_request_and_names_the_node(void) {
  for (uint32_t reference = 0; reference <= 1; ++reference) {
    toy t = {.allocator = NULL};
    const opipe_session_params params = session_params(
        OPIPE_SESSION_CHECK_FINITE | (reference != 0 ? (uint32_t)OPIPE_SESSION_REFERENCE : 0u));
    toy_request bad, good;
    opipe_error err = OPIPE_ERROR_INIT;
    if (!open_toy(&t, &three_ranks, &params))
      return;
    submit_ok(&t, 1, TOY_NAN, 0, &bad);
    submit_ok(&t, 2, 0, 0, &good);
    OPI_ASSERT_ERROR(opi_request_wait(bad.request, UINT64_MAX, &err), OPIPE_E_INVALID, &err,
                     "rank 0, stage 0, request 0, micro-batch 1: node 'node_h0'");
    OPI_ASSERT_OK(opi_request_wait(good.request, UINT64_MAX, &err), &err);
    OPI_ASSERT(toy_check(&t, &good));
    opipe_tensor tensor;
    OPI_ASSERT_ERROR(opi_request_output(bad.request, 0, &tensor, &err), OPIPE_E_STATE, &err,
                     "node_h0");
    toy_release(&bad);
    toy_release(&good);
    toy_end(&t);
  }
}

static void test_failing_rank_ends_the_session(void) {
  for (uint32_t rank = 0; rank < 3; ++rank) {
    toy t = {.faults = {.fail_node = node_of_rank[rank],
                        .fail_at = 4,
                        .fail_status = OPIPE_E_DEVICE}}; /* request 1's second micro-batch */
    const opipe_session_params params = session_params(0);
    toy_request r[6];
    char wanted[64];
    opipe_error err = OPIPE_ERROR_INIT;
    if (!open_toy(&t, &three_ranks, &params))
      return;
    uint32_t n = 0;
    for (; n < 6; ++n) {
      if (toy_submit(&t, 4, 2, n, 0, 0, &r[n], &err) != OPIPE_OK)
        break;
    }
    (void)snprintf(wanted, sizeof wanted, "rank %u, stage %u, request 1, micro-batch 1: node '%s'",
                   rank, rank, node_of_rank[rank]);
    for (uint32_t i = 0; i < n; ++i) {
      const opipe_status status = opi_request_wait(r[i].request, UINT64_C(10000000000), &err);
      if (i == 1)
        OPI_ASSERT_ERROR(status, OPIPE_E_DEVICE, &err, wanted);
      if (i > 1)
        OPI_ASSERT_ERROR(status, OPIPE_E_PEER, &err, wanted);
      if (i == 0)
        OPI_ASSERT(status == OPIPE_OK ? toy_check(&t, &r[0]) : status == OPIPE_E_PEER);
      toy_release(&r[i]);
    }
    if (n < 6)
      toy_release(&r[n]);
    OPI_ASSERT_ERROR(toy_submit(&t, 4, 2, 9, 0, 0, &r[0], &err), OPIPE_E_STATE, &err, wanted);
    toy_release(&r[0]);
    opi_session_close(t.session);
    t.session = NULL;
    OPI_ASSERT_OK(toy_open(&t, &params, &err), &err);
    if (t.session != NULL)
      OPI_ASSERT(toy_round(&t, 4, 2, 5, 0));
    toy_end(&t);
  }
}

/* How long it was waited for a program of that rank that stands still for 700 ms; UINT64_MAX:
 * nothing was run. */
static uint64_t wait_for_stuck(uint32_t rank) {
  toy t = {.faults = {.stall_node = node_of_rank[rank], .stall_at = 1, .stall_ms = 700}};
  opipe_session_params params = session_params(0);
  toy_request r;
  char wanted[96];
  opipe_error err = OPIPE_ERROR_INIT;
  params.watchdog_ns = 150000000;
  if (!open_toy(&t, &three_ranks, &params))
    return UINT64_MAX;
  submit_ok(&t, 1, 0, 0, &r);
  (void)snprintf(wanted, sizeof wanted,
                 "rank %u has been in the program of stage %u (request 0, micro-batch 0)", rank,
                 rank);
  const uint64_t start = toy_now_ns();
  OPI_ASSERT_ERROR(opi_request_wait(r.request, UINT64_MAX, &err), OPIPE_E_TIMEOUT, &err, wanted);
  const uint64_t took = toy_now_ns() - start;
  toy_release(&r);
  toy_end(&t);
  return took;
}

/* A busy machine may keep the one that waits from its core, but not each of many times. */
static void test_watchdog_names_the_stuck_program(void) {
  for (uint32_t rank = 0; rank < 3; ++rank) {
    uint64_t quickest = UINT64_MAX;
    for (uint32_t i = 0; i < 10 && quickest >= 600000000; ++i) {
      const uint64_t took = wait_for_stuck(rank);
      if (took == UINT64_MAX)
        return;
      quickest = took < quickest ? took : quickest;
    }
    OPI_ASSERT(quickest < 600000000);
  }
}

typedef struct waiter {
  opi_request *request;
  opipe_status status;
  opipe_error err;
} waiter;

static void *wait_for_it(void *arg) {
  waiter *w = arg;
  w->status = opi_request_wait(w->request, UINT64_MAX, &w->err);
  return NULL;
}

/* A busy machine may take its time to start a thread. */
static void until_it_waits(const toy *t) {
  for (uint32_t i = 0; i < 10000 && atomic_load(&t->session->waits.n_waiters) == 0; ++i)
    (void)usleep(1000);
}

static void test_close_ends_what_is_in_flight(void) {
  toy t = {.faults = {.stall_node = node_of_rank[1], .stall_ms = 200}};
  const opipe_session_params params = session_params(0);
  toy_request r[3];
  waiter w = {.err = OPIPE_ERROR_INIT};
  pthread_t thread;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  for (uint32_t i = 0; i < 3; ++i)
    submit_ok(&t, i, TOY_OWN_Y, 0, &r[i]);
  w.request = r[2].request;
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, wait_for_it, &w) == 0);
  until_it_waits(&t);
  opi_session_close(t.session);
  t.session = NULL;
  (void)pthread_join(thread, NULL);
  OPI_ASSERT_ERROR(w.status, OPIPE_E_CANCELLED, &w.err, "closed");
  for (uint32_t i = 0; i < 3; ++i) {
    r[i].request = NULL; /* gone with the session */
    toy_release(&r[i]);
  }
  toy_end(&t);
}

static void test_only_one_thread_waits(void) {
  toy t = {.faults = {.stall_node = node_of_rank[1], .stall_ms = 400}};
  const opipe_session_params params = session_params(0);
  toy_request r;
  waiter w = {.err = OPIPE_ERROR_INIT};
  pthread_t thread;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_tensor tensor;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  submit_ok(&t, 1, 0, 0, &r);
  w.request = r.request;
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, wait_for_it, &w) == 0);
  until_it_waits(&t);
  OPI_ASSERT_ERROR(opi_request_wait(r.request, 0, &err), OPIPE_E_STATE, &err, "another thread");
  OPI_ASSERT_ERROR(opi_request_output(r.request, 0, &tensor, &err), OPIPE_E_STATE, &err,
                   "not finished");
  OPI_ASSERT_INT(opi_request_poll(r.request, &err), OPIPE_PENDING);
  (void)pthread_join(thread, NULL);
  OPI_ASSERT_INT(w.status, OPIPE_OK);
  OPI_ASSERT_ERROR(opi_request_output(r.request, TOY_OUTPUTS, &tensor, &err), OPIPE_E_NOTFOUND,
                   &err, "output 7");
  opi_request *released = r.request;
  toy_release(&r);
  OPI_ASSERT_ERROR(opi_request_poll(released, &err), OPIPE_E_STATE, &err, "released");
  toy_end(&t);
}

static void test_wait_has_a_limit(void) {
  toy t = {.faults = {.stall_node = node_of_rank[1], .stall_ms = 60}};
  const opipe_session_params params = session_params(0);
  toy_request r;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  submit_ok(&t, 1, 0, 0, &r);
  OPI_ASSERT_ERROR(opi_request_wait(r.request, 1000000, &err), OPIPE_E_TIMEOUT, &err,
                   "not finished after 1000000 ns");
  OPI_ASSERT_OK(opi_request_wait(r.request, UINT64_MAX, &err), &err);
  OPI_ASSERT(toy_check(&t, &r));
  toy_release(&r);
  toy_end(&t);
}

static void test_forked_child_is_refused(void) {
  toy t = {.allocator = NULL};
  const opipe_session_params params = session_params(0);
  toy_request r;
  int code = 0;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  submit_ok(&t, 1, 0, 0, &r);
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK(opi_request_wait(r.request, UINT64_MAX, &err), &err);
  const pid_t child = fork();
  if (child == 0) {
    toy_request other;
    opipe_session_info info = {.struct_size = (uint32_t)sizeof info};
    int bad = 0;
    bad += opi_request_poll(r.request, &err) != OPIPE_E_STATE ||
           strstr(err.message, "another process") == NULL;
    bad += opi_request_wait(r.request, 0, &err) != OPIPE_E_STATE;
    bad += opi_request_cancel(r.request, &err) != OPIPE_E_STATE;
    bad += toy_submit(&t, 4, 2, 1, 0, 0, &other, &err) != OPIPE_E_STATE;
    bad += opi_session_drive(t.session, 0, 0, &err) != OPIPE_E_STATE;
    bad += opi_session_info(t.session, &info, &err) != OPIPE_E_STATE;
    opi_request_release(r.request);
    opi_session_close(t.session);
    _exit(bad);
  }
  OPI_ASSERT_FATAL(child > 0);
  OPI_ASSERT(waitpid(child, &code, 0) == child);
  OPI_ASSERT(WIFEXITED(code));
  OPI_ASSERT_INT(WEXITSTATUS(code), 0);
  OPI_ASSERT(toy_check(&t, &r)); /* the parent's is whole */
  toy_release(&r);
  toy_end(&t);
}

/* A status that no run may answer is the device's fault, never that of the request's data. */
static void test_odd_answers_of_a_device_end_the_session(void) {
  static const int32_t odd[] = {OPIPE_PENDING, 77, -99, OPIPE_E_CANCELLED};
  for (size_t i = 0; i < OPI_COUNT(odd); ++i) {
    toy t = {.faults = {.fail_node = node_of_rank[1], .fail_at = 1, .fail_status = odd[i]}};
    const opipe_session_params params = session_params(0);
    toy_request r;
    opipe_error err = OPIPE_ERROR_INIT;
    if (!open_toy(&t, &three_ranks, &params))
      return;
    OPI_ASSERT_OK_FATAL(toy_submit(&t, 4, 2, 0, 0, 0, &r, &err), &err);
    OPI_ASSERT_ERROR(opi_request_wait(r.request, UINT64_C(10000000000), &err), OPIPE_E_DEVICE, &err,
                     "rank 1, stage 1");
    toy_release(&r);
    OPI_ASSERT(toy_submit(&t, 4, 2, 0, 0, 0, &r, &err) == OPIPE_E_STATE);
    toy_release(&r);
    toy_end(&t);
  }
}

static void test_a_binding_that_is_none_is_refused(void) {
  toy t = {.faults = {.unbound_node = node_of_rank[1]}};
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_session_params params = session_params(0);
  OPI_ASSERT_OK_FATAL(toy_make(&t, &three_ranks, &OPIPE_PLUGIN_STATIC(transport_local), &err),
                      &err);
  OPI_ASSERT_ERROR(toy_open(&t, &params, &err), OPIPE_E_DEVICE, &err,
                   "bind answered 0 without an object");
  toy_end(&t);
}

/* ---- a transport that fails while a rank waits ---- */

static opipe_transport cut; /* the local one, but for `wait` */
static const opipe_transport *whole;
static _Atomic uint32_t n_cuts;

static opipe_status wait_and_fail(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                                  opipe_error *e) {
  if (atomic_fetch_add(&n_cuts, 1) == 0) /* once: nobody would hear it again */
    return opi_fail(e, OPIPE_E_DEVICE, "the wire is cut");
  return whole->wait(endpoint, seen, timeout_ns, e);
}

static bool open_cut(toy *t, const opipe_session_params *params) {
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(toy_make(t, &three_ranks, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
  whole = t->env.transport.table;
  cut = *whole;
  cut.wait = wait_and_fail;
  t->env.transport.table = &cut;
  atomic_store(&n_cuts, 1); /* not before it is wanted */
  OPI_ASSERT_OK_FATAL(toy_open(t, params, &err), &err);
  return true;
}

static void test_an_error_of_a_wait_ends_the_session_with_its_words(void) {
  toy t = {.faults = {.stall_node = node_of_rank[0], .stall_ms = 20}};
  const opipe_session_params params = session_params(0);
  toy_request r;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_cut(&t, &params))
    return;
  atomic_store(&n_cuts, 0);
  submit_ok(&t, 1, 0, 0, &r);
  const opipe_status status = opi_request_wait(r.request, UINT64_C(10000000000), &err);
  OPI_ASSERT(status == OPIPE_E_DEVICE || status == OPIPE_E_PEER);
  OPI_ASSERT(strstr(err.message, "the wire is cut") != NULL);
  OPI_ASSERT(strstr(err.message, "rank ") != NULL);
  toy_release(&r);
  OPI_ASSERT_ERROR(toy_submit(&t, 4, 2, 9, 0, 0, &r, &err), OPIPE_E_STATE, &err, "the wire is cut");
  toy_release(&r);
  toy_end(&t);
}

/* Whoever drives a rank hears of it, and every other rank with it. */
static void test_an_error_of_a_wait_reaches_who_drives(void) {
  toy t = {.allocator = NULL};
  opipe_session_params params = session_params(0);
  toy_request r;
  opipe_error err = OPIPE_ERROR_INIT;
  params.threads = OPIPE_THREADS_HOST;
  if (!open_cut(&t, &params))
    return;
  submit_ok(&t, 1, 0, 0, &r);
  atomic_store(&n_cuts, 0); /* rank 1 has nothing to do before rank 0 has */
  OPI_ASSERT_ERROR(opi_session_drive(t.session, 1, 50000000, &err), OPIPE_E_DEVICE, &err,
                   "rank 1: the wire is cut");
  OPI_ASSERT(opi_session_drive(t.session, 0, 0, &err) < 0);
  OPI_ASSERT(strstr(err.message, "the wire is cut") != NULL);
  toy_release(&r);
  toy_end(&t);
}

OPI_TEST_MAIN("failures", OPI_TEST(test_cancelled_request_flows_on),
              OPI_TEST(test_deadline_fails_one_request),
              OPI_TEST(test_nan_fails_one_request_and_names_the_node),
              OPI_TEST(test_failing_rank_ends_the_session),
              OPI_TEST(test_odd_answers_of_a_device_end_the_session),
              OPI_TEST(test_a_binding_that_is_none_is_refused),
              OPI_TEST(test_an_error_of_a_wait_ends_the_session_with_its_words),
              OPI_TEST(test_an_error_of_a_wait_reaches_who_drives),
              OPI_TEST(test_watchdog_names_the_stuck_program),
              OPI_TEST(test_close_ends_what_is_in_flight), OPI_TEST(test_only_one_thread_waits),
              OPI_TEST(test_wait_has_a_limit), OPI_TEST(test_forked_child_is_refused))
