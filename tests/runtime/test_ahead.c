/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks queue ahead of devices that work later: how far, who fails when, and what is used again.
 * ctest: timeout=120
 */
#include <poll.h>
#include <time.h>

#include "runtime/executor/ahead.h"
#include "tests/runtime/held.h"

enum { MOST = 100 };
static const toy_plan one_rank = {.n_nodes = 12,
                                  .n_stages = 1,
                                  .n_ranks = 1,
                                  .n_microbatches = 1,
                                  .depth = 2,
                                  .rows = 4,
                                  .seq = 2};
static const toy_plan three_ranks = {.n_nodes = 12,
                                     .n_stages = 3,
                                     .n_ranks = 3,
                                     .n_microbatches = 2,
                                     .depth = 2,
                                     .rows = 4,
                                     .seq = 2};
static const char *const node_of_rank[3] = {"node_h1", "node_h6", "node_h9"};

static bool open_toy(toy *t, const toy_plan *plan, uint32_t flags, uint64_t watchdog_ms) {
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .flags = flags,
      .max_in_flight = MOST,
      .watchdog_ns = watchdog_ms * 1000000};
  opipe_error err = OPIPE_ERROR_INIT;
  held_reset();
  bool made = opi_test_check_ok(toy_make(t, plan, &OPIPE_PLUGIN_STATIC(transport_local), &err),
                                err.message, "toy_make", __FILE__, __LINE__, false);
  for (uint32_t r = 0; made && r < plan->n_ranks; ++r)
    t->backends[r].table = held_table();
  return made && opi_test_check_ok(toy_open(t, &params, &err), err.message, "toy_open", __FILE__,
                                   __LINE__, false);
}

static void submit(toy *t, uint32_t seed, uint32_t flags, toy_request *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(toy_submit(t, 4, 2, seed, flags, 0, out, &err), &err);
}

static void rest(uint32_t ms) {
  const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  (void)nanosleep(&t, NULL);
}

/* Until so many programs wait on devices, at most for two seconds. */
static bool queued(uint64_t n) {
  for (uint32_t i = 0; i < 2000 && atomic_load(&gate.n_waiting) < n; ++i)
    rest(1);
  return atomic_load(&gate.n_waiting) >= n;
}

/* Devices with and without addresses that the host may use, where the transport can do without. */
static toy with_flags(uint32_t flags) {
  return (toy){.faults = {.device_flags = flags}};
}

static void test_nothing_waits_for_a_program(void) {
  toy t = with_flags(OPIPE_DEVICE_HOST_MEMORY);
  toy_request r[6];
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &one_rank, 0, 0))
    return;
  for (uint32_t i = 0; i < 6; ++i)
    submit(&t, i, i % 2 == 0 ? TOY_STRIDED : 0, &r[i]);
  OPI_ASSERT(queued(6));
  for (uint32_t i = 0; i < 6; ++i)
    OPI_ASSERT_INT(opi_request_poll(r[i].request, &err), OPIPE_PENDING);
  atomic_store(&gate.n_let_go, 1);
  OPI_ASSERT_OK(opi_request_wait(r[0].request, UINT64_MAX, &err), &err);
  OPI_ASSERT_INT(opi_request_poll(r[1].request, &err), OPIPE_PENDING);
  held_let_all_go();
  for (uint32_t i = 0; i < 6; ++i) {
    OPI_ASSERT_OK(opi_request_wait(r[i].request, UINT64_MAX, &err), &err);
    OPI_ASSERT(toy_check(&t, &r[i]));
    toy_release(&r[i]);
  }
  toy_end(&t);
}

static void test_what_is_queued_has_a_bound(void) {
  toy t = with_flags(OPIPE_DEVICE_HOST_MEMORY);
  toy_request r[MOST];
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &one_rank, 0, 0))
    return;
  for (uint32_t i = 0; i < MOST; ++i)
    submit(&t, i, 0, &r[i]);
  OPI_ASSERT(queued(2));
  rest(100);
  OPI_ASSERT(atomic_load(&gate.most_waits) <= OPI_AHEAD);
  held_let_all_go();
  for (uint32_t i = 0; i < MOST; ++i) {
    OPI_ASSERT_OK(opi_request_wait(r[i].request, UINT64_MAX, &err), &err);
    OPI_ASSERT(toy_check(&t, &r[i]));
    toy_release(&r[i]);
  }
  OPI_ASSERT(atomic_load(&gate.most_waits) <= OPI_AHEAD);
  toy_end(&t);
}

/* A device that is a step behind at any time: memory that is written again too early would show. */
static void test_memory_is_used_again_behind_its_readers(void) {
  for (uint32_t depth = 1; depth <= 2; ++depth) {
    toy_plan plan = three_ranks;
    toy t = with_flags(OPIPE_DEVICE_HOST_MEMORY);
    toy_request r[24];
    opipe_error err = OPIPE_ERROR_INIT;
    plan.depth = depth;
    if (!open_toy(&t, &plan, depth == 1 ? OPIPE_SESSION_POISON : 0, 0))
      return;
    for (uint32_t i = 0; i < 24; ++i)
      submit(&t, i, 0, &r[i]);
    for (uint64_t n = 1; n <= 24 * 6; ++n) { /* one program after the other, of any rank */
      atomic_store(&gate.n_let_go, n);
      for (uint32_t k = 0; k < 2000 && atomic_load(&gate.n_done) < n; ++k)
        rest(1);
    }
    held_let_all_go();
    for (uint32_t i = 0; i < 24; ++i) {
      OPI_ASSERT_OK(opi_request_wait(r[i].request, UINT64_MAX, &err), &err);
      OPI_ASSERT(toy_check(&t, &r[i]));
      toy_release(&r[i]);
    }
    toy_end(&t);
  }
}

static void test_bad_data_fails_the_request_that_has_it(void) {
  toy t = with_flags(OPIPE_DEVICE_HOST_MEMORY);
  toy_request r[8];
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &three_ranks, OPIPE_SESSION_CHECK_FINITE, 0))
    return;
  for (uint32_t i = 0; i < 8; ++i)
    submit(&t, i, i == 3 || i == 4 ? TOY_NAN : 0, &r[i]);
  OPI_ASSERT(queued(2)); /* of the first rank, for all that its memory holds */
  held_let_all_go();
  for (uint32_t i = 0; i < 8; ++i) {
    const opipe_status status = opi_request_wait(r[i].request, UINT64_MAX, &err);
    if (i == 3 || i == 4)
      OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &err, "rank 0, stage 0, request");
    else
      OPI_ASSERT(status == OPIPE_OK && toy_check(&t, &r[i]));
    toy_release(&r[i]);
  }
  OPI_ASSERT(toy_round(&t, 4, 2, 77, 0)); /* and the session goes on */
  toy_end(&t);
}

static void test_a_lost_device_ends_the_session(void) {
  for (uint32_t rank = 0; rank < 3; ++rank) {
    toy t = {.faults = {.device_flags = OPIPE_DEVICE_HOST_MEMORY,
                        .fail_node = node_of_rank[rank],
                        .fail_at = 4, /* request 1's second micro-batch */
                        .fail_status = OPIPE_E_DEVICE}};
    toy_request r[6];
    char wanted[64];
    opipe_error err = OPIPE_ERROR_INIT;
    if (!open_toy(&t, &three_ranks, 0, 0))
      return;
    for (uint32_t i = 0; i < 6; ++i)
      submit(&t, i, 0, &r[i]);
    OPI_ASSERT(queued(2));
    held_let_all_go();
    (void)snprintf(wanted, sizeof wanted, "rank %u, stage %u, request 1, micro-batch 1: node '%s'",
                   rank, rank, node_of_rank[rank]);
    OPI_ASSERT_ERROR(opi_request_wait(r[1].request, UINT64_MAX, &err), OPIPE_E_DEVICE, &err,
                     wanted);
    OPI_ASSERT_ERROR(opi_request_wait(r[5].request, UINT64_MAX, &err), OPIPE_E_PEER, &err, wanted);
    for (uint32_t i = 0; i < 6; ++i)
      toy_release(&r[i]);
    toy_end(&t);
  }
}

/* The watchdog names the program that the device stands at, and for how long. */
static void test_watchdog_names_what_the_device_is_at(void) {
  toy t = with_flags(OPIPE_DEVICE_HOST_MEMORY);
  toy_request r[3];
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &three_ranks, 0, 200))
    return;
  for (uint32_t i = 0; i < 3; ++i)
    submit(&t, i, 0, &r[i]);
  OPI_ASSERT_ERROR(opi_request_wait(r[0].request, UINT64_MAX, &err), OPIPE_E_TIMEOUT, &err,
                   "rank 0 has been in the program of stage 0 (request 0, micro-batch 0)");
  held_let_all_go(); /* close waits for what is queued */
  for (uint32_t i = 0; i < 3; ++i)
    toy_release(&r[i]);
  toy_end(&t);
}

/* The file descriptor tells of what the device has done, too. */
/* One rank, on the test's thread. */
static void open_driven(toy *t) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .threads = OPIPE_THREADS_HOST,
      .max_in_flight = 8};
  held_reset();
  OPI_ASSERT_OK_FATAL(toy_make(t, &one_rank, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
  t->backends[0].table = held_table();
  OPI_ASSERT_OK_FATAL(toy_open(t, &params, &err), &err);
}

static void test_host_driven(void) {
  toy t = with_flags(OPIPE_DEVICE_HOST_MEMORY);
  toy_request r[4];
  opipe_error err = OPIPE_ERROR_INIT;
  int32_t fd = -1;
  open_driven(&t);
  OPI_ASSERT_OK_FATAL(opi_session_fd(t.session, 0, &fd, &err), &err);
  for (uint32_t i = 0; i < 4; ++i)
    submit(&t, i, 0, &r[i]);
  for (uint32_t i = 0; i < 4; ++i) {
    struct pollfd look = {.fd = fd, .events = POLLIN};
    while (opi_request_poll(r[i].request, &err) == OPIPE_PENDING) {
      OPI_ASSERT_FATAL(poll(&look, 1, 2000) == 1);
      OPI_ASSERT(opi_session_drive(t.session, 0, 0, &err) >= 0);
      atomic_fetch_add(&gate.n_let_go, 1);
    }
    OPI_ASSERT(toy_check(&t, &r[i]));
    toy_release(&r[i]);
  }
  toy_end(&t);
}

static void test_close_waits_for_the_device(void) {
  toy t = with_flags(OPIPE_DEVICE_HOST_MEMORY);
  toy_request r[4];
  if (!open_toy(&t, &one_rank, 0, 0))
    return;
  for (uint32_t i = 0; i < 4; ++i)
    submit(&t, i, 0, &r[i]);
  OPI_ASSERT(queued(4));
  held_let_all_go();
  for (uint32_t i = 0; i < 4; ++i)
    toy_release(&r[i]);
  toy_end(&t);
  OPI_ASSERT_INT(atomic_load(&gate.n_waiting), 0);
}

/* The watchdog has ended the session, and the device stands: its queue is given up before anything
 * that the queue's work uses is freed, and nothing waits for it. */
static void test_a_queue_that_stands_is_given_up(void) {
  toy t = with_flags(OPIPE_DEVICE_HOST_MEMORY);
  toy_request r[3];
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &one_rank, 0, 200))
    return;
  for (uint32_t i = 0; i < 3; ++i)
    submit(&t, i, 0, &r[i]);
  OPI_ASSERT_ERROR(opi_request_wait(r[0].request, UINT64_MAX, &err), OPIPE_E_TIMEOUT, &err,
                   "rank 0 has been in the program of stage 0 (request 0, micro-batch 0)");
  for (uint32_t i = 0; i < 3; ++i)
    toy_release(&r[i]);
  toy_end(&t);
  OPI_ASSERT_INT(atomic_load(&gate.n_given_up), 1);
  OPI_ASSERT_INT(atomic_load(&gate.n_done), 0);
}

/* From when something moved on: soon at first, then ever later, by no more than a part of what the
 * rank has waited, and in the end at a steady pace. */
static void check_looks(opi_rank *rank) {
  uint64_t last = 0, waited = 0;
  rank->worker->ahead->moved_ns = opi_clock_ns();
  while (last < OPI_POLL_NS && waited < 10000000000) {
    const uint64_t next = opi_rank_looks_ns(rank);
    waited = opi_clock_ns() - rank->worker->ahead->moved_ns;
    OPI_ASSERT_FATAL(next >= OPI_POLL_LEAST_NS && next <= OPI_POLL_NS && next >= last);
    OPI_ASSERT_FATAL(next == OPI_POLL_LEAST_NS || next <= waited / 4);
    last = next;
  }
  OPI_ASSERT_INT(last, OPI_POLL_NS);
  rest(20);
  OPI_ASSERT_INT(opi_rank_looks_ns(rank), OPI_POLL_NS);
  rank->worker->ahead->moved_ns =
      opi_clock_ns() + 1000000000; /* a clock that is read on another core */
  OPI_ASSERT_INT(opi_rank_looks_ns(rank), OPI_POLL_LEAST_NS);
}

static void test_a_device_is_looked_at_soon(void) {
  toy t = with_flags(OPIPE_DEVICE_HOST_MEMORY);
  toy_request r;
  opipe_error err = OPIPE_ERROR_INIT;
  open_driven(&t);
  submit(&t, 1, 0, &r);
  OPI_ASSERT(opi_session_drive(t.session, 0, 0, &err) >= 0);
  OPI_ASSERT_INT(atomic_load(&gate.n_waiting), 1);
  const uint64_t moved = t.session->setup->ranks[0].worker->ahead->moved_ns;
  for (uint32_t i = 0; i < 5; ++i)
    check_looks(&t.session->setup->ranks[0]);
  t.session->setup->ranks[0].worker->ahead->moved_ns = moved;
  held_let_all_go();
  while (opi_request_poll(r.request, &err) == OPIPE_PENDING)
    OPI_ASSERT_FATAL(opi_session_drive(t.session, 0, 1000000, &err) >= 0);
  OPI_ASSERT(toy_check(&t, &r));
  toy_release(&r);
  toy_end(&t);
}

/* While a program takes long its rank goes on looking, but leaves its core to others meanwhile. */
static void test_a_long_wait_is_no_spinning(void) {
  toy t = with_flags(OPIPE_DEVICE_HOST_MEMORY);
  toy_request r;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &one_rank, 0, 0))
    return;
  submit(&t, 1, 0, &r);
  OPI_ASSERT(queued(1));
  rest(20);
  const uint64_t from = opi_clock_ns(), before = atomic_load(&gate.n_polls);
  rest(200);
  const uint64_t looked = atomic_load(&gate.n_polls) - before, took = opi_clock_ns() - from;
  OPI_ASSERT(looked > 0 && looked <= took / OPI_POLL_NS + 16);
  held_let_all_go();
  OPI_ASSERT_OK(opi_request_wait(r.request, UINT64_MAX, &err), &err);
  toy_release(&r);
  toy_end(&t);
}

/* Callers look through short requests where cores are left, no rank computes on them, and the host
 * did not choose. */
static void test_who_looks_and_who_sleeps(void) {
  opipe_session_params params = {.struct_size =
                                     (uint32_t)OPIPE_END(opipe_session_params, max_shapes)};
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t i = 0; i < 16; ++i) {
    const bool chosen = i % 2 != 0, computes = i / 2 % 2 != 0;
    const uint32_t cores = 1u << i / 4, left = cores > 3 ? cores - 3 : 0;
    toy t = with_flags(computes ? OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS
                                : OPIPE_DEVICE_HOST_MEMORY);
    params.spin_us = chosen ? 7 : UINT32_MAX;
    held_reset();
    held_let_all_go();
    OPI_ASSERT_OK_FATAL(toy_make(&t, &three_ranks, &OPIPE_PLUGIN_STATIC(transport_local), &err),
                        &err);
    for (uint32_t r = 0; !computes && r < 3; ++r)
      t.backends[r].table = held_table();
    t.env.cores = cores;
    OPI_ASSERT_OK_FATAL(toy_open(&t, &params, &err), &err);
    OPI_ASSERT_INT(t.session->waits.cores, chosen || computes ? 0 : left);
    OPI_ASSERT_INT(t.session->waits.spin_us, left == 0 ? 0 : chosen ? 7 : 50);
    for (uint32_t n = 0; n < 20; ++n)
      OPI_ASSERT(toy_round(&t, 4, 2, n, 0));
    const uint64_t waited = atomic_load(&t.session->waits.lately_ns);
    OPI_ASSERT(waited > 0 && waited <= 4000000);
    toy_end(&t);
  }
}

OPI_TEST_MAIN("queueing ahead", OPI_TEST(test_nothing_waits_for_a_program),
              OPI_TEST(test_what_is_queued_has_a_bound),
              OPI_TEST(test_memory_is_used_again_behind_its_readers),
              OPI_TEST(test_bad_data_fails_the_request_that_has_it),
              OPI_TEST(test_a_lost_device_ends_the_session),
              OPI_TEST(test_watchdog_names_what_the_device_is_at), OPI_TEST(test_host_driven),
              OPI_TEST(test_close_waits_for_the_device),
              OPI_TEST(test_a_queue_that_stands_is_given_up),
              OPI_TEST(test_a_device_is_looked_at_soon), OPI_TEST(test_a_long_wait_is_no_spinning),
              OPI_TEST(test_who_looks_and_who_sleeps))
