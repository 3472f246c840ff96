/* SPDX-License-Identifier: Apache-2.0 */
/* A host that drives the ranks itself, in one thread with an event loop: nothing blocks it and
 * nothing makes it spin; what it cancels, lets go of or forgets to drive ends. And on_done, in
 * every mode. ctest: timeout=120 */
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const int64_t shape[2] = {1, 8};
enum { RANKS = 3, REQUESTS = 8, ELEMS = 8 * 344 };
#define MS UINT64_C(1000000)

static bool open_driven(host_kit *k, uint32_t threads, uint32_t flags, uint64_t watchdog_ns) {
  const opipe_plan_params plan = {.struct_size = sizeof plan, .n_stages = RANKS};
  const opipe_session_params session = {.struct_size = sizeof session,
                                        .threads = threads,
                                        .flags = flags,
                                        .max_in_flight = REQUESTS,
                                        .watchdog_ns = watchdog_ns};
  opipe_status status = kit_plan(k, NULL, GPT, 1, 8, &plan);
  if (status == OPIPE_OK)
    status = kit_open(k, &session);
  return OPI_ASSERT_OK(status, &k->err);
}

/* The end of a request, and the call that reported it. */
typedef struct outcome {
  const opipe_api *api;
  int64_t ids[8];
  opipe_request *request, *told; /* submit's, on_done's */
  opipe_status status;
  uint32_t n_calls;
  bool release; /* from inside */
  opipe_status inside_poll, inside_output, inside_submit, inside_wait;
  float logits[ELEMS];
} outcome;

static void on_done(void *ctx, opipe_request *request, opipe_status status) {
  outcome *o = ctx;
  opipe_tensor out;
  opipe_error err = OPIPE_ERROR_INIT;
  ++o->n_calls;
  o->status = status;
  o->told = request;
  if (!o->release)
    return;
  const opipe_submit_params none = {.struct_size = sizeof none};
  opipe_request *other = NULL;
  o->inside_poll = o->api->request_poll(request, &err);
  o->inside_output = o->api->request_output(request, 0, &out, &err);
  if (o->inside_output == OPIPE_OK)
    memcpy(o->logits, out.data, sizeof o->logits);
  o->inside_wait = o->api->request_wait(request, 0, &err);
  o->inside_submit = o->api->session_submit((opipe_session *)(void *)request, &none, &other, &err);
  o->api->request_release(request);
}

static opipe_status submit(host_kit *k, outcome *o, uint32_t seed, uint64_t deadline_ns) {
  const bool release = o->release;
  memset(o, 0, sizeof *o);
  o->release = release;
  o->api = k->api;
  for (uint32_t i = 0; i < 8; ++i)
    o->ids[i] = (int64_t)((seed * 31 + i * 17) % 344);
  const opipe_binding_io input = kit_ids(o->ids, shape);
  const opipe_submit_params params = {.struct_size = sizeof params,
                                      .n_inputs = 1,
                                      .inputs = &input,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .deadline_ns = deadline_ns,
                                      .on_done = on_done,
                                      .on_done_ctx = o};
  return k->api->session_submit(k->session, &params, &o->request, &k->err);
}

static uint64_t now_ns(clockid_t clock) {
  struct timespec t;
  (void)clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void sleep_ms(long ms) {
  (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void drive_all(host_kit *k) {
  bool moved = true;
  while (moved) {
    moved = false;
    for (uint32_t r = 0; r < RANKS; ++r)
      moved = k->api->session_drive(k->session, r, 0, &k->err) == OPIPE_OK || moved;
  }
}

/* The bits that every session of the plan gives. */
static void reference(uint32_t seed, float *logits) {
  host_kit k;
  static outcome o;
  opipe_tensor out;
  if (!open_driven(&k, OPIPE_THREADS_LIBRARY, OPIPE_SESSION_REFERENCE, 0))
    return;
  OPI_ASSERT_OK_FATAL(submit(&k, &o, seed, 0), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->request_output(o.request, 0, &out, &k.err), &k.err);
  memcpy(logits, out.data, ELEMS * sizeof *logits);
  kit_close(&k);
}

/* ---- the loop ---- */

typedef struct loop {
  int epoll;
  int32_t fds[RANKS + 1]; /* the last: finished */
  uint32_t n_drives, n_wakes;
} loop;

static bool open_loop(host_kit *k, loop *l) {
  *l = (loop){.epoll = epoll_create1(EPOLL_CLOEXEC)};
  for (uint32_t i = 0; i <= RANKS; ++i) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
    if (!OPI_ASSERT_OK(
            k->api->session_fd(k->session, i < RANKS ? i : OPIPE_NONE, &l->fds[i], &k->err),
            &k->err) ||
        epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->fds[i], &event) != 0)
      return false;
  }
  return true;
}

/* One turn of a host's loop over the descriptors that are ready; false: none was, for
 * timeout_ms. */
static bool turn(host_kit *k, loop *l, int timeout_ms) {
  struct epoll_event events[RANKS + 1];
  const int n = epoll_wait(l->epoll, events, RANKS + 1, timeout_ms);
  for (int i = 0; i < n; ++i) {
    uint64_t count = 0;
    if (events[i].data.u32 == RANKS) {
      l->n_wakes += read(l->fds[RANKS], &count, sizeof count) == sizeof count;
      continue;
    }
    ++l->n_drives;
    OPI_ASSERT(k->api->session_drive(k->session, events[i].data.u32, 0, &k->err) >= 0);
  }
  return n > 0;
}

static void test_one_thread_runs_three_ranks_in_a_loop(void) {
  host_kit k;
  loop l;
  static outcome o[REQUESTS];
  static float wanted[ELEMS];
  reference(3, wanted);
  if (!open_driven(&k, OPIPE_THREADS_HOST, 0, 0) || !open_loop(&k, &l))
    return;
  while (turn(&k, &l, 0)) { /* everything is ready at first */
  }
  OPI_ASSERT(!turn(&k, &l, 20)); /* and then nothing, until there is work */
  for (uint32_t round = 0; round < 20; ++round) {
    for (uint32_t i = 0; i < REQUESTS; ++i) {
      o[i].release = i % 2 == 0;
      OPI_ASSERT_OK_FATAL(submit(&k, &o[i], i, 0), &k.err);
    }
    l.n_drives = l.n_wakes = 0;
    uint32_t left = REQUESTS;
    while (left != 0 && turn(&k, &l, 2000)) {
      left = 0;
      for (uint32_t i = 0; i < REQUESTS; ++i)
        left += o[i].n_calls == 0;
    }
    OPI_ASSERT_INT(left, 0);
    OPI_ASSERT(l.n_drives < 40 * REQUESTS); /* it does not spin */
    while (turn(&k, &l, 0)) {
    }
    OPI_ASSERT(l.n_wakes > 0);
    for (uint32_t i = 0; i < REQUESTS; ++i) {
      OPI_ASSERT_INT(o[i].n_calls, 1);
      OPI_ASSERT_INT(o[i].status, OPIPE_OK);
      OPI_ASSERT(o[i].told == o[i].request);
      OPI_ASSERT_INT(k.api->request_poll(o[i].request, &k.err),
                     o[i].release ? OPIPE_E_STATE : OPIPE_OK);
      if (!o[i].release && i == 3) {
        opipe_tensor out;
        OPI_ASSERT_OK_FATAL(k.api->request_output(o[i].request, 0, &out, &k.err), &k.err);
        OPI_ASSERT_BITS(out.data, wanted, ELEMS, OPIPE_FLOAT);
      }
      if (!o[i].release)
        k.api->request_release(o[i].request);
    }
  }
  OPI_ASSERT(!turn(&k, &l, 20));
  kit_close(&k);
  (void)close(l.epoll);
}

static void test_an_idle_rank_sleeps(void) {
  host_kit k;
  static outcome o;
  if (!open_driven(&k, OPIPE_THREADS_HOST, 0, 0))
    return;
  OPI_ASSERT_INT(k.api->session_drive(k.session, 0, 0, &k.err), OPIPE_PENDING);
  const uint64_t start = now_ns(CLOCK_MONOTONIC), work = now_ns(CLOCK_THREAD_CPUTIME_ID);
  OPI_ASSERT_INT(k.api->session_drive(k.session, 0, 100 * MS, &k.err), OPIPE_PENDING);
  OPI_ASSERT(now_ns(CLOCK_MONOTONIC) - start >= 99 * MS);
  OPI_ASSERT(now_ns(CLOCK_THREAD_CPUTIME_ID) - work < 50 * MS);
  OPI_ASSERT_OK_FATAL(submit(&k, &o, 1, 0), &k.err);
  for (uint32_t r = 0; r < RANKS; ++r) /* none of them can go on alone, each posts its receives */
    OPI_ASSERT_INT(k.api->session_drive(k.session, r, 10 * MS, &k.err), OPIPE_OK);
  drive_all(&k);
  OPI_ASSERT_INT(o.n_calls, 1);
  kit_close(&k);
}

/* ---- ends of requests ---- */

static void test_what_no_rank_has_begun_is_cancelled_at_once(void) {
  host_kit k;
  static outcome o[REQUESTS];
  if (!open_driven(&k, OPIPE_THREADS_HOST, 0, 0))
    return;
  for (uint32_t i = 0; i < REQUESTS; ++i)
    OPI_ASSERT_OK_FATAL(submit(&k, &o[i], i, 0), &k.err);
  OPI_ASSERT_INT(k.api->session_drive(k.session, 0, 0, &k.err), OPIPE_OK); /* begins some */
  OPI_ASSERT_OK(k.api->request_cancel(o[0].request, &k.err), &k.err);
  OPI_ASSERT_INT(k.api->request_poll(o[0].request, &k.err), OPIPE_PENDING); /* a rank is at it */
  OPI_ASSERT_INT(o[0].n_calls, 0);
  OPI_ASSERT_OK(k.api->request_cancel(o[REQUESTS - 1].request, &k.err), &k.err);
  OPI_ASSERT_INT(k.api->request_poll(o[REQUESTS - 1].request, &k.err), OPIPE_E_CANCELLED);
  OPI_ASSERT_INT(k.api->request_wait(o[REQUESTS - 1].request, UINT64_MAX, &k.err),
                 OPIPE_E_CANCELLED);
  OPI_ASSERT_INT(o[REQUESTS - 1].n_calls, 1);
  OPI_ASSERT_ERROR(k.api->request_cancel(o[REQUESTS - 1].request, &k.err), OPIPE_E_STATE, &k.err,
                   "cannot be cancelled");
  k.api->request_release(o[REQUESTS - 1].request);
  drive_all(&k);
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    OPI_ASSERT_INT(o[i].n_calls, 1);
    OPI_ASSERT_INT(o[i].status, i == 0 || i == REQUESTS - 1 ? OPIPE_E_CANCELLED : OPIPE_OK);
    k.api->request_release(o[i].request);
  }
  for (uint32_t i = 0; i < REQUESTS; ++i) /* all places are free again */
    OPI_ASSERT_OK(submit(&k, &o[i], i, 0), &k.err);
  kit_close(&k);
  for (uint32_t i = 0; i < REQUESTS; ++i) { /* unfinished at close */
    OPI_ASSERT_INT(o[i].n_calls, 1);
    OPI_ASSERT_INT(o[i].status, OPIPE_E_CANCELLED);
  }
}

static void test_deadlines_are_looked_at_by_poll(void) {
  host_kit k;
  static outcome late, well;
  if (!open_driven(&k, OPIPE_THREADS_HOST, 0, 0))
    return;
  OPI_ASSERT_OK_FATAL(submit(&k, &late, 1, 1 * MS), &k.err);
  OPI_ASSERT_OK_FATAL(submit(&k, &well, 2, 0), &k.err);
  sleep_ms(5);
  OPI_ASSERT_ERROR(k.api->request_poll(late.request, &k.err), OPIPE_E_TIMEOUT, &k.err, "deadline");
  OPI_ASSERT_INT(late.n_calls, 1);
  k.api->request_release(late.request);
  drive_all(&k);
  OPI_ASSERT_INT(well.status, OPIPE_OK);
  OPI_ASSERT_INT(well.n_calls, 1);
  kit_close(&k);
}

static void test_release_never_blocks(void) {
  host_kit k;
  static outcome o[REQUESTS];
  if (!open_driven(&k, OPIPE_THREADS_HOST, 0, 0))
    return;
  for (uint32_t round = 0; round < 10; ++round) {
    for (uint32_t i = 0; i < REQUESTS; ++i) {
      OPI_ASSERT_OK_FATAL(submit(&k, &o[i], i, 0), &k.err);
      if (i % 3 == 0)
        (void)k.api->session_drive(k.session, 0, 0, &k.err);
      if (i % 4 == 0)
        (void)k.api->request_cancel(o[i].request, &k.err);
      k.api->request_release(o[i].request);
      OPI_ASSERT_INT(k.api->request_poll(o[i].request, &k.err), OPIPE_E_STATE);
    }
    drive_all(&k);
    for (uint32_t i = 0; i < REQUESTS; ++i)
      OPI_ASSERT_INT(o[i].n_calls, 1);
  }
  OPI_ASSERT_OK_FATAL(submit(&k, &o[0], 0, 0), &k.err);
  k.api->request_release(o[0].request);
  kit_close(&k);
  OPI_ASSERT_INT(o[0].n_calls, 1);
}

/* ---- the watchdog ---- */

static void test_a_rank_that_nobody_drives_is_named(void) {
  host_kit k;
  static outcome o;
  if (!open_driven(&k, OPIPE_THREADS_HOST, 0, 60 * MS))
    return;
  OPI_ASSERT_OK_FATAL(submit(&k, &o, 1, 0), &k.err);
  opipe_status status = OPIPE_PENDING;
  for (uint32_t i = 0; i < 1000 && status == OPIPE_PENDING; ++i) {
    for (uint32_t r = 0; r < RANKS; ++r) {
      if (r != 1)
        (void)k.api->session_drive(k.session, r, 0, &k.err);
    }
    sleep_ms(2);
    status = k.api->request_poll(o.request, &k.err);
  }
  OPI_ASSERT_INT(status, OPIPE_E_TIMEOUT);
  OPI_ASSERT(strstr(k.err.message, "rank 1 has work and has not been driven") != NULL);
  OPI_ASSERT_INT(o.n_calls, 1);
  OPI_ASSERT_INT(k.api->session_drive(k.session, 1, 0, &k.err), OPIPE_E_TIMEOUT);
  kit_close(&k);
}

static void test_wait_ends_where_nobody_drives(void) {
  host_kit k;
  static outcome o;
  if (!open_driven(&k, OPIPE_THREADS_HOST, 0, 60 * MS))
    return;
  OPI_ASSERT_OK_FATAL(submit(&k, &o, 1, 0), &k.err);
  OPI_ASSERT_ERROR(k.api->request_wait(o.request, UINT64_MAX, &k.err), OPIPE_E_TIMEOUT, &k.err,
                   "not been driven");
  k.api->request_release(o.request);
  kit_close(&k);
}

static void test_a_pause_of_the_host_is_no_failure(void) {
  host_kit k;
  static outcome o;
  if (!open_driven(&k, OPIPE_THREADS_HOST, 0, 60 * MS))
    return;
  OPI_ASSERT_OK_FATAL(submit(&k, &o, 1, 0), &k.err);
  OPI_ASSERT_INT(k.api->request_poll(o.request, &k.err), OPIPE_PENDING);
  sleep_ms(200);
  OPI_ASSERT_INT(k.api->request_poll(o.request, &k.err), OPIPE_PENDING);
  drive_all(&k);
  OPI_ASSERT_INT(o.status, OPIPE_OK);
  OPI_ASSERT_INT(o.n_calls, 1);
  kit_close(&k);
}

/* ---- on_done in other modes ---- */

static void test_on_done_in_every_mode(void) {
  static float wanted[ELEMS];
  static outcome o[REQUESTS];
  reference(3, wanted);
  for (uint32_t mode = 0; mode < 2; ++mode) {
    host_kit k;
    int32_t fd = -1;
    if (!open_driven(&k, OPIPE_THREADS_LIBRARY, mode == 0 ? 0 : OPIPE_SESSION_REFERENCE, 0))
      return;
    OPI_ASSERT_OK(k.api->session_fd(k.session, OPIPE_NONE, &fd, &k.err), &k.err);
    OPI_ASSERT_INT(k.api->session_fd(k.session, 0, &fd, &k.err), OPIPE_E_STATE);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    for (uint32_t i = 0; i < REQUESTS; ++i) {
      o[i].release = i == 3;
      OPI_ASSERT_OK_FATAL(submit(&k, &o[i], i, 0), &k.err);
    }
    for (uint32_t i = 0; i < REQUESTS; ++i) { /* on_done has been called when wait returns */
      const opipe_status status = k.api->request_wait(o[i].request, UINT64_MAX, &k.err);
      if (i == 3 && status == OPIPE_E_STATE)
        continue; /* released by then */
      OPI_ASSERT_OK(status, &k.err);
      OPI_ASSERT_INT(o[i].n_calls, 1);
      k.api->request_release(o[i].request);
    }
    OPI_ASSERT_INT(poll(&ready, 1, 0), 1);
    kit_close(&k);
    OPI_ASSERT_INT(o[3].n_calls, 1);
    OPI_ASSERT(o[3].told == o[3].request);
    OPI_ASSERT_INT(o[3].inside_poll, OPIPE_OK);
    OPI_ASSERT_INT(o[3].inside_output, OPIPE_OK);
    OPI_ASSERT_INT(o[3].inside_wait, OPIPE_E_STATE);
    OPI_ASSERT_INT(o[3].inside_submit, OPIPE_E_STATE);
    OPI_ASSERT_BITS(o[3].logits, wanted, ELEMS, OPIPE_FLOAT);
  }
}

/* ---- training ---- */

static opipe_status step(host_kit *k, opipe_binding_io *inputs, uint64_t deadline_ns, outcome *o) {
  const opipe_submit_params params = {.struct_size = sizeof params,
                                      .n_inputs = 2,
                                      .inputs = inputs,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .deadline_ns = deadline_ns,
                                      .on_done = on_done,
                                      .on_done_ctx = o};
  *o = (outcome){.api = k->api};
  return k->api->session_train_step(k->session, &params, &o->request, &k->err);
}

static double loss_of(host_kit *k, outcome *o) {
  opipe_train_report report = {.struct_size = sizeof report};
  OPI_ASSERT_OK(k->api->request_report(o->request, &report, &k->err), &k->err);
  k->api->request_release(o->request);
  return report.loss;
}

/* Ways in which a second step may end while the first has begun. */
enum { LEFT_ALONE = 0, CANCELLED = 1, LATE_BY_POLL = 2, LATE_BY_RANKS = 3, WAYS = 4 };

/* The first step has begun, and is done however late; the second has not. */
static void leave_out(host_kit *k, opipe_binding_io *inputs, uint32_t way, outcome *o) {
  const opipe_status expected = way == CANCELLED ? OPIPE_E_CANCELLED : OPIPE_E_TIMEOUT;
  OPI_ASSERT_OK_FATAL(step(k, inputs, way == CANCELLED ? 0 : 1 * MS, &o[1]), &k->err);
  (void)k->api->session_drive(k->session, 0, 0, &k->err);
  if (way == CANCELLED) {
    OPI_ASSERT_ERROR(k->api->request_cancel(o[0].request, &k->err), OPIPE_E_STATE, &k->err,
                     "cannot be left half done");
    OPI_ASSERT_OK(k->api->request_cancel(o[1].request, &k->err), &k->err);
  }
  sleep_ms(way == CANCELLED ? 0 : 60);
  OPI_ASSERT_INT(k->api->request_poll(o[0].request, &k->err), OPIPE_PENDING);
  if (way == LATE_BY_RANKS) {
    for (uint32_t i = 0; i < 1000 && o[1].n_calls == 0; ++i)
      drive_all(k);
  }
  OPI_ASSERT_INT(k->api->request_poll(o[1].request, &k->err), expected);
  OPI_ASSERT_INT(o[1].n_calls, 1);
  OPI_ASSERT_INT(o[1].status, expected);
  k->api->request_release(o[1].request);
}

static void test_double_buffered_steps_have_no_deadline(void) {
  static const int64_t ids[8] = {3, 1, 4, 1, 5, 9, 2, 6};
  static outcome o;
  host_kit k;
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels",
                                     .shift = 1};
  const opipe_plan_params plan = {
      .struct_size = sizeof plan, .n_stages = 1, .schedule = "2bw", .train = &train};
  const opipe_session_params params = {.struct_size = sizeof params, .threads = OPIPE_THREADS_HOST};
  opipe_binding_io inputs[2] = {kit_ids(ids, shape), kit_ids(ids, shape)};
  inputs[1].name = "labels";
  OPI_ASSERT_OK_FATAL(kit_plan_training(&k, GPT, 1, 8, &plan), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, &params), &k.err);
  OPI_ASSERT_ERROR(step(&k, inputs, 1 * MS, &o), OPIPE_E_UNSUPPORTED, &k.err, "double-buffered");
  kit_close(&k);
}

static void test_a_training_loop_without_threads(void) {
  static const int64_t ids[8] = {3, 1, 4, 1, 5, 9, 2, 6};
  static outcome o[3];
  host_kit k;
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels",
                                     .ignore = -100,
                                     .shift = 1,
                                     .lr = 0.1};
  const opipe_plan_params plan = {
      .struct_size = sizeof plan, .n_stages = RANKS, .schedule = "1f1b", .train = &train};
  const opipe_session_params params = {.struct_size = sizeof params, .threads = OPIPE_THREADS_HOST};
  double losses[WAYS][2];
  opipe_binding_io inputs[2] = {kit_ids(ids, shape), kit_ids(ids, shape)};
  inputs[1].name = "labels";
  float weight[4];
  for (uint32_t way = 0; way < WAYS; ++way) {
    OPI_ASSERT_OK_FATAL(kit_plan_training(&k, GPT, 1, 8, &plan), &k.err);
    OPI_ASSERT_OK_FATAL(kit_open(&k, &params), &k.err);
    OPI_ASSERT_OK_FATAL(step(&k, inputs, way < LATE_BY_POLL ? 0 : 50 * MS, &o[0]), &k.err);
    if (way != LEFT_ALONE)
      leave_out(&k, inputs, way, o);
    OPI_ASSERT_OK_FATAL(step(&k, inputs, 0, &o[2]), &k.err);
    OPI_ASSERT_INT(k.api->session_flush(k.session, &k.err), OPIPE_PENDING);
    OPI_ASSERT_ERROR(k.api->session_get(k.session, "none", 0, 0, weight, 16, &k.err), OPIPE_E_STATE,
                     &k.err, "drive the ranks");
    while (k.api->session_flush(k.session, &k.err) == OPIPE_PENDING)
      drive_all(&k);
    losses[way][0] = loss_of(&k, &o[0]);
    losses[way][1] = loss_of(&k, &o[2]);
    kit_close(&k);
  }
  OPI_ASSERT(losses[0][1] < losses[0][0]);
  for (uint32_t way = 1; way < WAYS; ++way)
    OPI_ASSERT(memcmp(losses[0], losses[way], sizeof losses[0]) == 0);
}

/* Two copies of a pipeline of one stage: requests go to them in turn, and none waits for one that
 * is the other copy's. */
static void test_copies_take_requests_in_turn(void) {
  host_kit k;
  static outcome first, second, third;
  static float wanted[2][ELEMS];
  const opipe_plan_params plan = {.struct_size = sizeof plan, .n_stages = 1, .replicas = 2};
  const opipe_session_params session = {
      .struct_size = sizeof session, .threads = OPIPE_THREADS_HOST, .max_in_flight = REQUESTS};
  opipe_tensor out;
  first.release = second.release = third.release = false;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, &plan), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, &session), &k.err);
  OPI_ASSERT_OK_FATAL(submit(&k, &first, 1, 0), &k.err);
  OPI_ASSERT_OK_FATAL(submit(&k, &second, 2, 0), &k.err);
  while (k.api->session_drive(k.session, 1, 0, &k.err) == OPIPE_OK && second.n_calls == 0) {
  }
  OPI_ASSERT_INT(second.n_calls, 1);
  OPI_ASSERT_OK(second.status, &k.err);
  OPI_ASSERT_OK_FATAL(k.api->request_output(second.request, 0, &out, &k.err), &k.err);
  memcpy(wanted[0], out.data, sizeof wanted[0]);
  k.api->request_release(second.request);
  OPI_ASSERT_INT(first.n_calls, 0);
  OPI_ASSERT_OK(k.api->request_cancel(first.request, &k.err), &k.err); /* its copy has not begun */
  OPI_ASSERT_INT(first.n_calls, 1);
  OPI_ASSERT_INT(first.status, OPIPE_E_CANCELLED);
  k.api->request_release(first.request);
  OPI_ASSERT_OK_FATAL(submit(&k, &third, 2, 0), &k.err);
  while (k.api->session_drive(k.session, 0, 0, &k.err) == OPIPE_OK && third.n_calls == 0) {
  }
  OPI_ASSERT_INT(third.n_calls, 1);
  OPI_ASSERT_OK_FATAL(k.api->request_output(third.request, 0, &out, &k.err), &k.err);
  memcpy(wanted[1], out.data, sizeof wanted[1]);
  OPI_ASSERT(memcmp(wanted[0], wanted[1], sizeof wanted[0]) == 0);
  k.api->request_release(third.request);
  kit_close(&k);
}

OPI_TEST_MAIN("host-driven", OPI_TEST(test_one_thread_runs_three_ranks_in_a_loop),
              OPI_TEST(test_an_idle_rank_sleeps),
              OPI_TEST(test_what_no_rank_has_begun_is_cancelled_at_once),
              OPI_TEST(test_deadlines_are_looked_at_by_poll), OPI_TEST(test_release_never_blocks),
              OPI_TEST(test_a_rank_that_nobody_drives_is_named),
              OPI_TEST(test_wait_ends_where_nobody_drives),
              OPI_TEST(test_a_pause_of_the_host_is_no_failure),
              OPI_TEST(test_on_done_in_every_mode), OPI_TEST(test_a_training_loop_without_threads),
              OPI_TEST(test_double_buffered_steps_have_no_deadline),
              OPI_TEST(test_copies_take_requests_in_turn))
