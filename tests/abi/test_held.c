/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are held for their fences: those of a REFERENCE session end as any other's, a
 * thread that is cancelled while it waits harms nobody, they cost neither a core nor, however many
 * there are, a submit's time; and submits that wait. ctest: timeout=120
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "tests/abi/host_kit.h"

#define GPT "tests/data/gpt_8block/model.onnx"
#define MS UINT64_C(1000000)
enum { BATCH = 2, SEQ = 8, N = BATCH * SEQ };
static const int64_t shape[2] = {BATCH, SEQ};
static int64_t ids[N];

static uint64_t clock_of(clockid_t clock) {
  struct timespec t;
  (void)clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec;
}

static void sleep_ms(uint32_t ms) {
  const struct timespec t = {.tv_nsec = (long)(ms * MS)};
  (void)nanosleep(&t, NULL);
}

static opipe_fence flag_of(uint32_t *flag) {
  return (opipe_fence){.kind = OPIPE_FENCE_HOST_FLAG, .handle = flag};
}

static void set_flag(uint32_t *flag) {
  __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

static void open_gpt(host_kit *k, bool trains, uint32_t flags, uint32_t threads,
                     uint32_t in_flight) {
  opipe_train_options train = opipe_train_options_init();
  opipe_plan_params plan = opipe_plan_params_init();
  opipe_session_params session = opipe_session_params_init();
  train.loss = OPIPE_LOSS_CROSS_ENTROPY;
  train.output = "logits";
  train.labels = "labels";
  train.ignore = -100;
  train.shift = 1;
  train.optimizer = OPIPE_OPTIMIZER_SGD;
  train.lr = 0.01;
  plan.n_stages = 2;
  plan.train = trains ? &train : NULL;
  session.flags = flags;
  session.threads = threads;
  session.max_in_flight = in_flight;
  for (int64_t i = 0; i < N; ++i)
    ids[i] = (i * 37 + 11) % 344;
  OPI_ASSERT_OK_FATAL(trains ? kit_plan_training(k, GPT, BATCH, SEQ, &plan)
                             : kit_plan(k, NULL, GPT, BATCH, SEQ, &plan),
                      &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, &session), &k->err);
}

/* How requests end, in their order. */
typedef struct ended {
  _Atomic uint32_t n;
  opipe_status status[8];
} ended;

static void note_end(void *ctx, opipe_request *request, opipe_status status) {
  ended *e = ctx;
  (void)request;
  const uint32_t n = atomic_load(&e->n);
  e->status[n % 8] = status;
  atomic_store(&e->n, n + 1);
}

typedef struct given {
  opipe_binding_io in[2];
  opipe_submit_params params;
} given;

static void give(given *g, bool trains, uint32_t *flag, uint64_t deadline_ns, ended *e) {
  g->params = opipe_submit_params_init();
  g->in[0] = kit_ids(ids, shape);
  g->in[1] = kit_ids(ids, shape);
  g->in[1].name = "labels";
  if (flag != NULL)
    g->in[trains ? 1 : 0].ready = flag_of(flag);
  g->params.inputs = g->in;
  g->params.n_inputs = trains ? 2 : 1;
  g->params.deadline_ns = deadline_ns;
  g->params.on_done = e == NULL ? NULL : note_end;
  g->params.on_done_ctx = e;
}

static opipe_status start(host_kit *k, bool trains, given *g, opipe_request **out) {
  return trains ? k->api->session_train_step(k->session, &g->params, out, &k->err)
                : k->api->session_submit(k->session, &g->params, out, &k->err);
}

/* ---- the reference ---- */

static void *close_session(void *arg) {
  host_kit *k = arg;
  sleep_ms(20);
  k->api->session_close(k->session);
  return NULL;
}

/* Late, cancelled, in its time, and closed while a thread waits for it. */
static void check_reference(bool trains) {
  host_kit k;
  given g;
  ended e = {.n = 0};
  uint32_t flag = 0;
  pthread_t closer;
  opipe_request *request = NULL;
  open_gpt(&k, trains, OPIPE_SESSION_REFERENCE, OPIPE_THREADS_LIBRARY, 0);
  give(&g, trains, &flag, 20 * MS, &e);
  OPI_ASSERT_OK_FATAL(start(&k, trains, &g, &request), &k.err);
  OPI_ASSERT_INT(k.api->request_wait(request, UINT64_MAX, &k.err), OPIPE_E_TIMEOUT);
  OPI_ASSERT(strstr(k.err.message, "its deadline passed") != NULL);
  k.api->request_release(request);
  give(&g, trains, &flag, 0, &e);
  OPI_ASSERT_OK_FATAL(start(&k, trains, &g, &request), &k.err);
  OPI_ASSERT_INT(k.api->request_wait(request, MS, &k.err), OPIPE_E_TIMEOUT);
  OPI_ASSERT_OK(k.api->request_cancel(request, &k.err), &k.err);
  OPI_ASSERT_INT(k.api->request_poll(request, &k.err), OPIPE_E_CANCELLED);
  k.api->request_release(request);
  OPI_ASSERT_OK_FATAL(start(&k, trains, &g, &request), &k.err);
  OPI_ASSERT_INT(k.api->request_poll(request, &k.err), OPIPE_PENDING);
  set_flag(&flag);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  k.api->request_release(request);
  OPI_ASSERT_INT(atomic_load(&e.n), 3);
  OPI_ASSERT_INT(e.status[0], OPIPE_E_TIMEOUT);
  OPI_ASSERT_INT(e.status[1], OPIPE_E_CANCELLED);
  OPI_ASSERT_INT(e.status[2], OPIPE_OK);
  flag = 0;
  OPI_ASSERT_OK_FATAL(start(&k, trains, &g, &request), &k.err);
  OPI_ASSERT_FATAL(pthread_create(&closer, NULL, close_session, &k) == 0);
  const opipe_status status = k.api->request_wait(request, UINT64_MAX, &k.err);
  OPI_ASSERT(status == OPIPE_E_CANCELLED || status == OPIPE_E_STATE);
  OPI_ASSERT_INT(pthread_join(closer, NULL), 0);
  OPI_ASSERT_INT(atomic_load(&e.n), 4);
  OPI_ASSERT_INT(e.status[3], OPIPE_E_CANCELLED);
  k.session = NULL;
  kit_close(&k);
}

static void test_the_reference_waits_for_no_flag(void) {
  check_reference(false);
  check_reference(true);
}

/* An output's flag too; and what was held keeps its turn. */
static void test_the_reference_keeps_the_order(void) {
  static const int64_t to[3] = {BATCH, SEQ, 344};
  host_kit k;
  given first, second;
  uint32_t flag = 0;
  opipe_request *one = NULL, *two = NULL;
  float *logits = malloc((size_t)N * 344 * sizeof *logits);
  const opipe_binding_io out = {.name = "logits",
                                .tensor = {.data = logits,
                                           .device_type = OPIPE_DL_CPU,
                                           .rank = 3,
                                           .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                           .shape = to},
                                .ready = flag_of(&flag)};
  OPI_ASSERT_FATAL(logits != NULL);
  open_gpt(&k, false, OPIPE_SESSION_REFERENCE, OPIPE_THREADS_LIBRARY, 0);
  give(&first, false, NULL, 0, NULL);
  give(&second, false, NULL, 0, NULL);
  first.params.outputs = &out;
  first.params.n_outputs = 1;
  OPI_ASSERT_OK_FATAL(start(&k, false, &first, &one), &k.err);
  OPI_ASSERT_OK_FATAL(start(&k, false, &second, &two), &k.err);
  OPI_ASSERT_INT(k.api->request_poll(two, &k.err), OPIPE_PENDING);
  second.params.stream = 7; /* of another stream: at once */
  opipe_request *other = NULL;
  OPI_ASSERT_OK_FATAL(start(&k, false, &second, &other), &k.err);
  OPI_ASSERT_OK(k.api->request_poll(other, &k.err), &k.err);
  set_flag(&flag);
  OPI_ASSERT_OK(k.api->session_flags_set(k.session, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_poll(one, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_poll(two, &k.err), &k.err);
  k.api->request_release(other);
  k.api->request_release(two);
  k.api->request_release(one);
  kit_close(&k);
  free(logits);
}

/* ---- a thread that is cancelled ---- */

typedef struct waiter {
  host_kit *k;
  opipe_request *request;
  _Atomic uint32_t waits;
} waiter;

static void *wait_for(void *arg) {
  waiter *w = arg;
  atomic_store(&w->waits, 1);
  (void)w->k->api->request_wait(w->request, 200 * MS, NULL);
  pthread_testcancel();
  return NULL;
}

static void test_a_cancelled_thread_harms_nobody(void) {
  host_kit k;
  given g;
  uint32_t flag = 0;
  pthread_t thread;
  void *answer = NULL;
  waiter w = {.k = &k};
  open_gpt(&k, false, 0, OPIPE_THREADS_LIBRARY, 0);
  give(&g, false, &flag, 0, NULL);
  OPI_ASSERT_OK_FATAL(start(&k, false, &g, &w.request), &k.err);
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, wait_for, &w) == 0);
  while (atomic_load(&w.waits) == 0)
    sleep_ms(1);
  sleep_ms(20);
  OPI_ASSERT_INT(pthread_cancel(thread), 0);
  OPI_ASSERT_INT(pthread_join(thread, &answer), 0);
  OPI_ASSERT(answer == PTHREAD_CANCELED); /* once the call had returned */
  set_flag(&flag);
  OPI_ASSERT_OK(k.api->request_wait(w.request, UINT64_MAX, &k.err), &k.err);
  k.api->request_release(w.request);
  OPI_ASSERT_OK_FATAL(start(&k, false, &g, &w.request), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(w.request, UINT64_MAX, &k.err), &k.err);
  k.api->request_release(w.request);
  kit_close(&k);
}

/* ---- their cost ---- */

/* All threads together, while one request waits for an input, then for an output's buffer. */
static void test_a_held_request_costs_no_core(void) {
  static const int64_t to[3] = {BATCH, SEQ, 344};
  float *logits = malloc((size_t)N * 344 * sizeof *logits);
  OPI_ASSERT_FATAL(logits != NULL);
  for (uint32_t late_output = 0; late_output < 2; ++late_output) {
    host_kit k;
    given g;
    uint32_t flag = 0;
    opipe_request *request = NULL;
    const opipe_binding_io out = {.name = "logits",
                                  .tensor = {.data = logits,
                                             .device_type = OPIPE_DL_CPU,
                                             .rank = 3,
                                             .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                             .shape = to},
                                  .ready = flag_of(&flag)};
    open_gpt(&k, false, 0, OPIPE_THREADS_LIBRARY, 0);
    give(&g, false, late_output != 0 ? NULL : &flag, 0, NULL);
    g.params.outputs = &out;
    g.params.n_outputs = late_output;
    OPI_ASSERT_OK_FATAL(start(&k, false, &g, &request), &k.err);
    sleep_ms(100);
    const uint64_t before = clock_of(CLOCK_PROCESS_CPUTIME_ID);
    sleep_ms(500);
    const uint64_t took = clock_of(CLOCK_PROCESS_CPUTIME_ID) - before;
    opi_test_check(took < 60 * MS, __FILE__, __LINE__, false, "%llu ms of 500, late output %u",
                   (unsigned long long)(took / MS), late_output);
    set_flag(&flag);
    OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
    k.api->request_release(request);
    kit_close(&k);
  }
  free(logits);
}

/* y = -x, of one element. */
static void open_small(host_kit *k, uint32_t in_flight) {
  static const int64_t one[] = {1};
  static const char *const of[] = {"x"}, *const to[] = {"y"};
  const opipe_build_value in = {"x", one, NULL, OPIPE_FLOAT, 1};
  const opipe_build_value out = {.name = "y", .rank = -1};
  const opipe_build_node node = {
      .op = "Neg", .inputs = of, .outputs = to, .n_inputs = 1, .n_outputs = 1};
  const opipe_build_opset opset = {"", 17};
  opipe_build_graph graph = opipe_build_graph_init();
  opipe_build_params build = opipe_build_params_init();
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_session_params session = opipe_session_params_init();
  graph.inputs = &in, graph.n_inputs = 1;
  graph.outputs = &out, graph.n_outputs = 1;
  graph.nodes = &node, graph.n_nodes = 1;
  build.graph = &graph, build.opsets = &opset, build.n_opsets = 1;
  session.max_in_flight = in_flight;
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_build(k->context, &build, &k->model, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_bind(k->model, &bind, &k->bound, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_make(k->bound, NULL, &k->plan, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, &session), &k->err);
}

enum { MANY = 16000, STREAMS = 7 };

/* For every stream, the request that ended last. */
typedef struct order {
  _Atomic uint32_t n_done, n_wrong;
  uint32_t last[STREAMS];
} order;
typedef struct turn {
  order *o;
  uint32_t number, stream;
} turn;

static void end_turn(void *ctx, opipe_request *request, opipe_status status) {
  const turn *t = ctx;
  (void)request;
  if (status != OPIPE_OK || (t->o->last[t->stream] != 0 && t->o->last[t->stream] >= t->number))
    atomic_fetch_add(&t->o->n_wrong, 1);
  t->o->last[t->stream] = t->number;
  atomic_fetch_add(&t->o->n_done, 1);
}

/* The first one's flag is not set, nor are most of the others'. One in nine is cancelled. */
static void test_a_submit_takes_no_longer_the_more_are_held(void) {
  static const int64_t one[] = {1};
  static turn turns[MANY];
  host_kit k;
  order o = {.n_done = 0};
  float x = 3;
  uint32_t flag = 0, n_cancelled = 0;
  opipe_request **requests = calloc(MANY, sizeof *requests);
  OPI_ASSERT_FATAL(requests != NULL);
  open_small(&k, MANY);
  const uint64_t before = clock_of(CLOCK_THREAD_CPUTIME_ID);
  for (uint32_t i = 0; i < MANY; ++i) {
    opipe_submit_params params = opipe_submit_params_init();
    const opipe_binding_io in = {.name = "x",
                                 .tensor = {.data = &x,
                                            .device_type = OPIPE_DL_CPU,
                                            .rank = 1,
                                            .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                            .shape = one},
                                 .ready = flag_of(&flag)};
    turns[i] = (turn){&o, i + 1, i % STREAMS};
    params.inputs = &in;
    params.n_inputs = 1;
    params.stream = i % STREAMS;
    params.on_done = end_turn;
    params.on_done_ctx = &turns[i];
    OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &params, &requests[i], &k.err), &k.err);
  }
  const uint64_t took = clock_of(CLOCK_THREAD_CPUTIME_ID) - before;
  opi_test_check(took < 1500 * MS, __FILE__, __LINE__, false, "%llu ms for %u submits",
                 (unsigned long long)(took / MS), MANY);
  for (uint32_t i = 0; i < MANY; i += 9, ++n_cancelled)
    OPI_ASSERT_OK(k.api->request_cancel(requests[i], &k.err), &k.err);
  OPI_ASSERT_INT(atomic_load(&o.n_wrong), n_cancelled); /* they did not end well */
  set_flag(&flag);
  OPI_ASSERT_OK(k.api->session_flags_set(k.session, &k.err), &k.err);
  memset(o.last, 0, sizeof o.last);
  atomic_store(&o.n_wrong, 0);
  for (uint32_t i = 0; i < MANY; ++i) {
    OPI_ASSERT_INT(k.api->request_wait(requests[i], UINT64_MAX, &k.err),
                   i % 9 == 0 ? OPIPE_E_CANCELLED : OPIPE_OK);
    k.api->request_release(requests[i]);
  }
  OPI_ASSERT_INT(atomic_load(&o.n_done), MANY);
  OPI_ASSERT_INT(atomic_load(&o.n_wrong), 0);
  free(requests);
  kit_close(&k);
}

/* ---- flags that are told of ---- */

/* With a host that drives, the first rank's descriptor becomes readable. */
static void test_flags_set_is_heard(void) {
  host_kit k;
  given g;
  uint32_t flag = 0;
  int32_t fd = -1;
  opipe_request *request = NULL;
  open_gpt(&k, false, 0, OPIPE_THREADS_HOST, 0);
  give(&g, false, &flag, 0, NULL);
  OPI_ASSERT_OK_FATAL(start(&k, false, &g, &request), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->session_fd(k.session, 0, &fd, &k.err), &k.err);
  struct pollfd p = {.fd = fd, .events = POLLIN};
  for (uint32_t i = 0; i < 100 && poll(&p, 1, 20) == 1; ++i) /* readable at first */
    (void)k.api->session_drive(k.session, 0, 0, &k.err);
  OPI_ASSERT_INT(poll(&p, 1, 0), 0);
  set_flag(&flag);
  OPI_ASSERT_OK(k.api->session_flags_set(k.session, &k.err), &k.err);
  OPI_ASSERT_INT(poll(&p, 1, 1000), 1);
  while (k.api->request_poll(request, &k.err) == OPIPE_PENDING) {
    for (uint32_t r = 0; r < 2; ++r)
      (void)k.api->session_drive(k.session, r, 0, &k.err);
  }
  OPI_ASSERT_OK(k.api->request_poll(request, &k.err), &k.err);
  k.api->request_release(request);
  kit_close(&k);
}

/* ---- submits that wait, and those that do not ---- */

static void *set_soon(void *arg) {
  sleep_ms(20);
  set_flag(arg);
  return NULL;
}

static void check_waiting(bool trains) {
  host_kit k;
  given held, g;
  uint32_t flag = 0;
  pthread_t thread;
  opipe_request *one = NULL, *two = NULL;
  const uint32_t what = trains ? OPIPE_START_STEP : OPIPE_START_REQUEST;
  open_gpt(&k, trains, 0, OPIPE_THREADS_LIBRARY, 1);
  give(&held, trains, &flag, 0, NULL);
  give(&g, trains, NULL, 0, NULL);
  OPI_ASSERT_OK_FATAL(k.api->session_submit_wait(k.session, what, &held.params, 0, &one, &k.err),
                      &k.err);
  two = one; /* a handle of before */
  OPI_ASSERT_INT(start(&k, trains, &g, &two), OPIPE_PENDING);
  OPI_ASSERT(two == NULL);
  two = one;
  OPI_ASSERT_ERROR(k.api->session_submit_wait(k.session, what, &g.params, 2 * MS, &two, &k.err),
                   OPIPE_E_TIMEOUT, &k.err, "no room for another request");
  OPI_ASSERT(two == NULL);
  if (trains) {
    two = one;
    OPI_ASSERT_INT(k.api->session_evaluate(k.session, &g.params, &two, &k.err), OPIPE_PENDING);
    OPI_ASSERT(two == NULL);
  }
  OPI_ASSERT_ERROR(k.api->session_submit_wait(k.session, 3, &g.params, 0, &two, &k.err),
                   OPIPE_E_INVALID, &k.err, "session_submit_wait: what is 3, known are 0 to 2");
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, set_soon, &flag) == 0);
  OPI_ASSERT_OK_FATAL(k.api->session_submit_wait(k.session, trains ? OPIPE_START_EVALUATION : what,
                                                 &g.params, UINT64_MAX, &two, &k.err),
                      &k.err);
  OPI_ASSERT_INT(pthread_join(thread, NULL), 0);
  OPI_ASSERT_OK(k.api->request_wait(two, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(one, UINT64_MAX, &k.err), &k.err);
  k.api->request_release(two);
  k.api->request_release(one);
  kit_close(&k);
}

static void test_a_submit_waits(void) {
  check_waiting(false);
  check_waiting(true);
}

/* ---- the end ---- */

typedef struct last_look {
  host_kit *k;
  opipe_status poll, output;
  opipe_error err;
} last_look;

static void look_at_last(void *ctx, opipe_request *request, opipe_status status) {
  last_look *l = ctx;
  opipe_tensor out;
  (void)status;
  l->poll = l->k->api->request_poll(request, NULL);
  l->output = l->k->api->request_output(request, 0, &out, &l->err);
}

/* A request that ends while the session closes can be looked at inside its on_done as ever. */
static void test_a_last_look_while_closing(void) {
  host_kit k;
  given g;
  uint32_t flag = 0;
  opipe_request *request = NULL;
  last_look l = {.k = &k, .err = OPIPE_ERROR_INIT};
  open_gpt(&k, false, 0, OPIPE_THREADS_LIBRARY, 0);
  give(&g, false, &flag, 0, NULL);
  g.params.on_done = look_at_last;
  g.params.on_done_ctx = &l;
  OPI_ASSERT_OK_FATAL(start(&k, false, &g, &request), &k.err);
  k.api->session_close(k.session);
  k.session = NULL;
  OPI_ASSERT_INT(l.poll, OPIPE_E_CANCELLED);
  OPI_ASSERT(strstr(l.err.message, "being closed") == NULL);
  kit_close(&k);
}

OPI_TEST_MAIN("held", OPI_TEST(test_the_reference_waits_for_no_flag),
              OPI_TEST(test_the_reference_keeps_the_order),
              OPI_TEST(test_a_cancelled_thread_harms_nobody),
              OPI_TEST(test_a_held_request_costs_no_core),
              OPI_TEST(test_a_submit_takes_no_longer_the_more_are_held),
              OPI_TEST(test_flags_set_is_heard), OPI_TEST(test_a_submit_waits),
              OPI_TEST(test_a_last_look_while_closing))
