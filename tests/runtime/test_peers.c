/* SPDX-License-Identifier: Apache-2.0 */
/* A plan of four ranks in two sessions, which meet through transport-strict: how requests end in
 * both, whatever one of them does. ctest: timeout=120
 */
#include <pthread.h>
#include <time.h>

#include "runtime/requests/requests.h"
#include "tests/plugins/transport-strict/counts.h"
#include "tests/runtime/toy.h"

enum { REQUESTS = 6, RANKS = 4, SIDES = 2 };
static const uint64_t DEADLINE_NS = UINT64_C(10000000000);

static const toy_plan four_ranks = {.n_nodes = 12,
                                    .n_stages = 4,
                                    .n_ranks = RANKS,
                                    .n_microbatches = 2,
                                    .depth = 2,
                                    .rows = 5,
                                    .seq = 2};

/* One session and the thread that opens it, or makes its calls. */
typedef struct side {
  toy t;
  bool local[RANKS];
  char options[64];
  opipe_session_params params;
  toy_request r[REQUESTS];
  pthread_t thread;
  opipe_status status;
  opipe_error err;
} side;

typedef void *(*side_fn)(void *side);

static void both(side *sides, side_fn fn) {
  for (uint32_t i = 0; i < SIDES; ++i)
    (void)pthread_create(&sides[i].thread, NULL, fn, &sides[i]);
  for (uint32_t i = 0; i < SIDES; ++i)
    (void)pthread_join(sides[i].thread, NULL);
}

static void *open_side(void *arg) {
  side *s = arg;
  s->status = toy_make(&s->t, &four_ranks, &OPIPE_PLUGIN_STATIC(transport_strict), &s->err);
  s->t.env.transport_options = s->options;
  s->t.env.local = s->local;
  s->t.plan->decided.link.flags = 0;
  if (s->status == OPIPE_OK)
    s->status = toy_open(&s->t, &s->params, &s->err);
  return NULL;
}

/* Ranks 0 and 1 are of the first. Faults are set before. */
static bool open_sides(side *sides) {
  static uint32_t n;
  ++n;
  for (uint32_t i = 0; i < SIDES; ++i) {
    (void)snprintf(sides[i].options, sizeof sides[i].options, "meet=peers%u", n);
    sides[i].params.struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes);
    sides[i].params.max_in_flight = REQUESTS;
    sides[i].params.spin_us = UINT32_MAX;
    sides[i].params.max_shapes = 4;
    sides[i].err = (opipe_error)OPIPE_ERROR_INIT;
    for (uint32_t r = 0; r < RANKS; ++r)
      sides[i].local[r] = r / 2 == i;
  }
  both(sides, open_side);
  for (uint32_t i = 0; i < SIDES; ++i)
    OPI_ASSERT_OK(sides[i].status, &sides[i].err);
  return sides[0].status == OPIPE_OK && sides[1].status == OPIPE_OK;
}

/* One after the other, by one thread: nobody is cut off. */
static void close_sides(side *sides, uint32_t first) {
  for (uint32_t i = 0; i < SIDES; ++i) {
    side *s = &sides[(first + i) % SIDES];
    for (uint32_t k = 0; k < REQUESTS; ++k)
      toy_release(&s->r[k]);
    toy_end(&s->t);
  }
}

static void submit_last(side *sides, uint32_t last, uint32_t i, uint32_t seed,
                        uint64_t deadline_ns) {
  for (uint32_t n = 1; n <= SIDES; ++n) {
    const uint32_t k = (last + n) % SIDES;
    OPI_ASSERT_OK_FATAL(toy_submit(&sides[k].t, 5, 2, seed, 0, k == 1 ? deadline_ns : 0,
                                   &sides[k].r[i], &sides[k].err),
                        &sides[k].err);
  }
}

static void submit(side *sides, uint32_t i, uint32_t seed, uint64_t deadline_ns) {
  submit_last(sides, SIDES - 1, i, seed, deadline_ns);
}

/* How request i ends, in both alike; the message of the second is that of the first. */
static opipe_status ends(side *sides, uint32_t i, char text[512]) {
  opipe_status status[SIDES];
  for (uint32_t k = 0; k < SIDES; ++k) {
    opipe_error err = OPIPE_ERROR_INIT;
    status[k] = opi_request_wait(sides[k].r[i].request, DEADLINE_NS, &err);
    if (k == 1 && status[k] < 0)
      OPI_ASSERT_STR(err.message, text);
    (void)snprintf(text, 512, "%s", err.message);
  }
  OPI_ASSERT_INT(status[1], status[0]);
  return status[0];
}

static void check_good(side *sides, uint32_t i) {
  char text[512];
  OPI_ASSERT_INT(ends(sides, i, text), OPIPE_OK);
  for (uint32_t k = 0; k < SIDES; ++k)
    OPI_ASSERT(toy_check(&sides[k].t, &sides[k].r[i]));
}

/* ---- places of outputs ---- */

static void test_outputs_are_where_they_are_made(void) {
  for (uint32_t first = 0; first < SIDES; ++first) {
    static side sides[SIDES];
    opipe_tensor t;
    opipe_error err = OPIPE_ERROR_INIT;
    memset(sides, 0, sizeof sides);
    if (!open_sides(sides))
      return;
    for (uint32_t i = 0; i < REQUESTS; ++i)
      submit(sides, i, i, 0);
    for (uint32_t i = 0; i < REQUESTS; ++i)
      check_good(sides, i);
    for (uint32_t k = 0; k < SIDES; ++k) { /* an input as it came is in both */
      OPI_ASSERT_OK(opi_request_output(sides[k].r[0].request, TOY_X, &t, &err), &err);
      OPI_ASSERT_INT(opi_request_output(sides[k].r[0].request, TOY_Y, &t, &err),
                     k == 1 ? OPIPE_OK : OPIPE_E_NOTFOUND);
    }
    OPI_ASSERT(strstr(err.message, "made by no rank of this session") != NULL);
    close_sides(sides, first);
  }
}

static void *stream_shapes(void *arg) {
  side *s = arg;
  for (uint32_t round = 0; round < 6 && s->status == OPIPE_OK; ++round) {
    for (uint32_t i = 0; i < REQUESTS && s->status == OPIPE_OK; ++i) {
      const int64_t rows = i % 2 == 0 ? 5 : 2 + (int64_t)round % 4, seq = 1 + (int64_t)round / 3;
      do { /* a place is free when the shape that was used longest ago rests */
        toy_release(&s->r[i]);
        s->status = toy_submit(&s->t, rows, seq, i, 0, 0, &s->r[i], &s->err);
      } while (s->status == OPIPE_PENDING);
    }
    for (uint32_t i = 0; i < REQUESTS && s->status == OPIPE_OK; ++i) {
      s->status = opi_request_wait(s->r[i].request, DEADLINE_NS, &s->err);
      if (s->status == OPIPE_OK && !toy_check(&s->t, &s->r[i]))
        s->status = OPIPE_E_INTERNAL;
      toy_release(&s->r[i]);
    }
  }
  return NULL;
}

/* More shapes than places: both give up the same ones. */
static void test_many_shapes(void) {
  static side sides[SIDES];
  memset(sides, 0, sizeof sides);
  if (!open_sides(sides))
    return;
  both(sides, stream_shapes);
  for (uint32_t k = 0; k < SIDES; ++k)
    OPI_ASSERT_OK(sides[k].status, &sides[k].err);
  close_sides(sides, 1);
}

/* ---- how requests fail ---- */

static void test_bad_data_fails_the_request_in_both(void) {
  for (uint32_t where = 0; where < SIDES; ++where) {
    static side sides[SIDES];
    char text[512];
    memset(sides, 0, sizeof sides);
    sides[where].t.faults.fail_node = where == 0 ? "node_h1" : "node_h10";
    sides[where].t.faults.fail_at = 3; /* of request 1 */
    sides[where].t.faults.fail_status = OPIPE_E_INVALID;
    if (!open_sides(sides))
      return;
    for (uint32_t i = 0; i < REQUESTS; ++i)
      submit(sides, i, i, 0);
    check_good(sides, 0);
    OPI_ASSERT_INT(ends(sides, 1, text), OPIPE_E_INVALID);
    OPI_ASSERT(strstr(text, "request 1") != NULL);
    for (uint32_t i = 2; i < REQUESTS; ++i)
      check_good(sides, i);
    close_sides(sides, where);
  }
}

static void test_cancel_in_either(void) {
  for (uint32_t where = 0; where < SIDES; ++where) {
    static side sides[SIDES];
    char text[512];
    opipe_error err = OPIPE_ERROR_INIT;
    memset(sides, 0, sizeof sides);
    for (uint32_t k = 0; k < SIDES; ++k) {
      sides[k].t.faults.stall_node = k == 0 ? "node_h1" : "node_h10";
      sides[k].t.faults.stall_ms = 5;
    }
    if (!open_sides(sides))
      return;
    for (uint32_t i = 0; i < REQUESTS; ++i)
      submit(sides, i, i, 0);
    OPI_ASSERT_OK(opi_request_cancel(sides[where].r[3].request, &err), &err);
    for (uint32_t i = 0; i < REQUESTS; ++i) {
      if (i != 3)
        check_good(sides, i);
    }
    OPI_ASSERT_INT(ends(sides, 3, text), OPIPE_E_CANCELLED);
    OPI_ASSERT_INT(opi_request_cancel(sides[where].r[4].request, &err), OPIPE_E_STATE);
    close_sides(sides, where);
  }
}

static void test_deadline_in_one(void) {
  static side sides[SIDES];
  char text[512];
  memset(sides, 0, sizeof sides);
  sides[0].t.faults.stall_node = "node_h1";
  sides[0].t.faults.stall_ms = 10;
  if (!open_sides(sides))
    return;
  submit(sides, 0, 0, 0);
  submit(sides, 1, 1, 1000000);
  submit(sides, 2, 2, 0);
  check_good(sides, 0);
  OPI_ASSERT_INT(ends(sides, 1, text), OPIPE_E_TIMEOUT);
  check_good(sides, 2);
  close_sides(sides, 0);
}

/* Whatever else a device says ends the run in both, with its reason. */
static void test_a_device_fails(void) {
  for (uint32_t where = 0; where < SIDES; ++where) {
    static side sides[SIDES];
    memset(sides, 0, sizeof sides);
    sides[where].t.faults.fail_node = where == 0 ? "node_h1" : "node_h10";
    sides[where].t.faults.fail_at = 3;
    sides[where].t.faults.fail_status = OPIPE_E_DEVICE;
    if (!open_sides(sides))
      return;
    submit(sides, 0, 0, 0);
    submit_last(sides, where, 1, 1, 0); /* when it fails both have it */
    for (uint32_t k = 0; k < SIDES; ++k) {
      opipe_error err = OPIPE_ERROR_INIT;
      const opipe_status status = opi_request_wait(sides[k].r[1].request, DEADLINE_NS, &err);
      OPI_ASSERT_INT(status, k == where ? OPIPE_E_DEVICE : OPIPE_E_PEER);
      OPI_ASSERT_STR(strstr(err.message, "stage ") == NULL ? err.message : "", "");
    }
    close_sides(sides, where);
  }
}

/* ---- fences, watchdog, other calls ---- */

/* Inputs that come late in one session hold up what follows in both, in one order. */
static void test_a_fence_in_one(void) {
  static side sides[SIDES];
  uint32_t ready = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  const struct timespec while_ = {.tv_nsec = 20000000};
  memset(sides, 0, sizeof sides);
  if (!open_sides(sides))
    return;
  sides[0].t.ready = &ready;
  submit(sides, 0, 0, 0);
  sides[0].t.ready = NULL;
  sides[0].t.stream = sides[1].t.stream = 7;
  submit(sides, 1, 1, 0);
  (void)nanosleep(&while_, NULL);
  OPI_ASSERT_INT(opi_request_poll(sides[1].r[1].request, &err), OPIPE_PENDING);
  __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
  check_good(sides, 0);
  check_good(sides, 1);
  close_sides(sides, 0);
}

/* One session waits for longer than its watchdog's time while the other works. */
static void test_work_elsewhere_keeps_the_watchdog_quiet(void) {
  static side sides[SIDES];
  memset(sides, 0, sizeof sides);
  sides[1].t.faults.stall_node = "node_h10";
  sides[1].t.faults.stall_ms = 100;
  sides[0].params.watchdog_ns = sides[1].params.watchdog_ns = UINT64_C(300000000);
  if (!open_sides(sides))
    return;
  for (uint32_t i = 0; i < REQUESTS; ++i)
    submit(sides, i, i, 0);
  for (uint32_t i = 0; i < REQUESTS; ++i)
    check_good(sides, i);
  close_sides(sides, 0);
}

static void test_a_call_that_only_one_makes(void) {
  static side sides[SIDES];
  opipe_error err = OPIPE_ERROR_INIT;
  memset(sides, 0, sizeof sides);
  sides[0].params.watchdog_ns = sides[1].params.watchdog_ns = UINT64_C(300000000);
  if (!open_sides(sides))
    return;
  OPI_ASSERT_OK(toy_submit(&sides[1].t, 5, 2, 0, 0, 0, &sides[1].r[0], &err), &err);
  OPI_ASSERT_INT(opi_request_wait(sides[1].r[0].request, DEADLINE_NS, &err), OPIPE_E_TIMEOUT);
  OPI_ASSERT(strstr(err.message, "in another session") != NULL);
  close_sides(sides, 0);
}

/* Requests that are not finished when a session goes end in the other too. */
static void test_one_is_closed_early(void) {
  static side sides[SIDES];
  opipe_error err = OPIPE_ERROR_INIT;
  memset(sides, 0, sizeof sides);
  sides[0].t.faults.stall_node = "node_h1";
  sides[0].t.faults.stall_ms = 50;
  if (!open_sides(sides))
    return;
  submit(sides, 0, 0, 0);
  opi_session_close(sides[1].t.session);
  sides[1].t.session = NULL;
  sides[1].r[0].request = NULL;
  OPI_ASSERT_INT(opi_request_wait(sides[0].r[0].request, DEADLINE_NS, &err), OPIPE_E_PEER);
  OPI_ASSERT(strstr(err.message, "the session was closed") != NULL);
  close_sides(sides, 0);
}

/* ---- ranks that the host drives ---- */

typedef struct driver {
  side *sides;
  uint32_t rank;
  _Atomic uint32_t *stop;
  pthread_t thread;
  opipe_status status;
} driver;

static void *drive_rank(void *arg) {
  driver *d = arg;
  while (atomic_load(d->stop) == 0 && d->status >= 0)
    d->status = opi_session_drive(d->sides[d->rank / 2].t.session, d->rank, 1000000, NULL);
  return NULL;
}

static void test_driven_by_the_host(void) {
  static side sides[SIDES];
  driver drivers[RANKS];
  _Atomic uint32_t stop = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  memset(sides, 0, sizeof sides);
  sides[0].params.threads = sides[1].params.threads = OPIPE_THREADS_HOST;
  if (!open_sides(sides))
    return;
  for (uint32_t i = 0; i < REQUESTS; ++i)
    submit(sides, i, i, 0);
  for (uint32_t r = 0; r < RANKS; ++r) {
    drivers[r] = (driver){.sides = sides, .rank = r, .stop = &stop};
    (void)pthread_create(&drivers[r].thread, NULL, drive_rank, &drivers[r]);
  }
  for (uint32_t i = 0; i < REQUESTS; ++i)
    check_good(sides, i);
  OPI_ASSERT_INT(opi_session_drive(sides[0].t.session, 2, 0, &err), OPIPE_E_NOTFOUND);
  OPI_ASSERT(strstr(err.message, "rank 2 is in another session") != NULL);
  atomic_store(&stop, 1);
  for (uint32_t r = 0; r < RANKS; ++r) {
    (void)pthread_join(drivers[r].thread, NULL);
    OPI_ASSERT(drivers[r].status >= 0);
  }
  sides[0].t.session->setup->watchdog_ns =
      20000000; /* nobody drives the other one's ranks any more */
  close_sides(sides, 0);
}

/* ---- impossible sessions ---- */

static void test_refusals(void) {
  static const bool half[RANKS] = {true, true, false, false};
  toy t = {.shape.n_nodes = 0};
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .flags = OPIPE_SESSION_REFERENCE,
      .spin_us = UINT32_MAX};
  OPI_ASSERT_OK_FATAL(toy_make(&t, &four_ranks, &OPIPE_PLUGIN_STATIC(transport_strict), &err),
                      &err);
  t.env.local = half;
  OPI_ASSERT_INT(toy_open(&t, &params, &err), OPIPE_E_UNSUPPORTED);
  OPI_ASSERT(strstr(err.message, "the reference runs all ranks: 2 of 4") != NULL);
  params.flags = 0;
  t.plan->decided.link.rule = OPIPE_RULE_PAIR;
  OPI_ASSERT_INT(toy_open(&t, &params, &err), OPIPE_E_UNSUPPORTED);
  OPI_ASSERT(strstr(err.message, "rule 3") != NULL);
  t.plan->decided.link.rule = OPIPE_RULE_TAG;
  t.plan->decided.link.flags |= OPIPE_TRANSPORT_DIRECT;
  OPI_ASSERT_INT(toy_open(&t, &params, &err), OPIPE_E_UNSUPPORTED);
  OPI_ASSERT(strstr(err.message, "write into each other's memory") != NULL);
  toy_end(&t);
}

OPI_TEST_MAIN("sessions with some of the ranks", OPI_TEST(test_outputs_are_where_they_are_made),
              OPI_TEST(test_many_shapes), OPI_TEST(test_bad_data_fails_the_request_in_both),
              OPI_TEST(test_cancel_in_either), OPI_TEST(test_deadline_in_one),
              OPI_TEST(test_a_device_fails), OPI_TEST(test_a_fence_in_one),
              OPI_TEST(test_work_elsewhere_keeps_the_watchdog_quiet),
              OPI_TEST(test_a_call_that_only_one_makes), OPI_TEST(test_one_is_closed_early),
              OPI_TEST(test_driven_by_the_host), OPI_TEST(test_refusals))
