/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that are not there yet: nothing is read, counted or written before the host sets its
 * flag, no submit spins meanwhile, and the time is not the library's: only a deadline ends it.
 * ctest: timeout=120
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "tests/abi/host_kit.h"

#define GPT "tests/data/gpt_8block/model.onnx"
enum { BATCH = 2, SEQ = 8, N = BATCH * SEQ };
static const uint64_t WATCHDOG_NS = UINT64_C(200000000), LONG_NS = UINT64_C(700000000);
static const uint64_t SOON_NS = UINT64_C(20000000);
static const int64_t shape[2] = {BATCH, SEQ};
static int64_t ids[N], labels[N];

static opipe_binding_io named(const char *name, const int64_t *data) {
  opipe_binding_io io = kit_ids(data, shape);
  io.name = name;
  return io;
}

static opipe_fence flag_of(uint32_t *flag) {
  return (opipe_fence){.kind = OPIPE_FENCE_HOST_FLAG, .handle = flag};
}

static void set_flag(uint32_t *flag) {
  __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

static void fill(int64_t *list, bool whole) {
  for (int64_t i = 0; i < N; ++i)
    list[i] = whole || i == 3 ? (i * 37 + 11) % 344 : -100;
}

static opipe_train_options options_of(int64_t shift) {
  opipe_train_options train = opipe_train_options_init();
  train.loss = OPIPE_LOSS_CROSS_ENTROPY;
  train.output = "logits";
  train.labels = "labels";
  train.ignore = -100;
  train.shift = (uint32_t)shift;
  train.optimizer = OPIPE_OPTIMIZER_SGD;
  return train;
}

static void open_training(host_kit *k, uint32_t shift, const char *schedule, uint32_t threads,
                          uint32_t flags) {
  const opipe_train_options train = options_of(shift);
  opipe_plan_params plan = opipe_plan_params_init();
  opipe_session_params session = opipe_session_params_init();
  plan.n_stages = 2;
  plan.n_microbatches = 2;
  plan.schedule = schedule;
  plan.train = &train;
  session.threads = threads;
  session.flags = flags;
  session.watchdog_ns = WATCHDOG_NS;
  OPI_ASSERT_OK_FATAL(kit_plan_training(k, GPT, BATCH, SEQ, &plan), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, &session), &k->err);
  fill(ids, true);
}

/* inputs [2]: ids and labels. */
static opipe_status start(host_kit *k, bool trains, const opipe_binding_io *inputs,
                          const opipe_binding_io *output, uint64_t deadline_ns,
                          opipe_request **out) {
  opipe_submit_params params = opipe_submit_params_init();
  params.inputs = inputs;
  params.n_inputs = 2;
  params.outputs = output;
  params.n_outputs = output != NULL;
  params.deadline_ns = deadline_ns;
  return trains ? k->api->session_train_step(k->session, &params, out, &k->err)
                : k->api->session_evaluate(k->session, &params, out, &k->err);
}

static opipe_train_report report_of(host_kit *k, opipe_request *request) {
  opipe_train_report report = opipe_train_report_init();
  OPI_ASSERT_OK_FATAL(k->api->request_wait(request, UINT64_MAX, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->request_report(request, &report, &k->err), &k->err);
  k->api->request_release(request);
  return report;
}

static opipe_train_report run(host_kit *k, bool trains) {
  const opipe_binding_io in[2] = {named("input_ids", ids), named("labels", labels)};
  opipe_request *request = NULL;
  OPI_ASSERT_OK_FATAL(start(k, trains, in, NULL, 0, &request), &k->err);
  return report_of(k, request);
}

/* ---- labels ---- */

typedef struct later {
  uint32_t *flag;
  bool whole;
} later;

static void *write_later(void *arg) {
  const later *l = arg;
  const struct timespec t = {.tv_nsec = 30000000};
  (void)nanosleep(&t, NULL);
  fill(labels, l->whole);
  set_flag(l->flag);
  return NULL;
}

/* They are other ones when the call returns. */
static void check_labels(uint32_t shift, const char *schedule, uint32_t flags, bool trains) {
  host_kit k;
  uint32_t flag = 0;
  pthread_t writer;
  opipe_request *request = NULL;
  later l = {&flag, true};
  opipe_binding_io in[2] = {named("input_ids", ids), named("labels", labels)};
  open_training(&k, shift, schedule, OPIPE_THREADS_LIBRARY, flags);
  fill(labels, true);
  const opipe_train_report want = run(&k, trains);
  fill(labels, false);
  in[1].ready = flag_of(&flag);
  OPI_ASSERT_FATAL(pthread_create(&writer, NULL, write_later, &l) == 0);
  OPI_ASSERT_OK_FATAL(start(&k, trains, in, NULL, 0, &request), &k.err);
  const opipe_train_report got = report_of(&k, request);
  OPI_ASSERT_INT(pthread_join(writer, NULL), 0);
  opi_test_check(
      got.count == want.count && got.loss == want.loss && got.gradient_norm == want.gradient_norm,
      __FILE__, __LINE__, false, "shift %u, %s, trains %d: %g of %g, not %g of %g", shift, schedule,
      trains, got.loss, got.count, want.loss, want.count);
  kit_close(&k);
}

static void test_labels_are_counted_when_they_are_there(void) {
  for (uint32_t shift = 0; shift < 2; ++shift) {
    for (int trains = 0; trains < 2; ++trains)
      check_labels(shift, "1f1b", 0, trains != 0);
  }
  check_labels(1, "2bw", 0, true);
  check_labels(1, "1f1b", OPIPE_SESSION_REFERENCE, true);
}

/* The step behind has its labels, and waits its turn; room is there, or is waited for. */
static void test_steps_behind_wait_their_turn(void) {
  host_kit k;
  uint32_t flag = 0;
  opipe_request *first = NULL, *second = NULL;
  opipe_binding_io in[2] = {named("input_ids", ids), named("labels", labels)};
  open_training(&k, 1, "1f1b", OPIPE_THREADS_LIBRARY, 0);
  fill(labels, true);
  in[1].ready = flag_of(&flag);
  OPI_ASSERT_OK_FATAL(start(&k, true, in, NULL, 0, &first), &k.err);
  in[1].ready = (opipe_fence){.kind = OPIPE_FENCE_NONE};
  OPI_ASSERT_OK_FATAL(start(&k, true, in, NULL, 0, &second), &k.err);
  OPI_ASSERT_INT(k.api->request_wait(second, LONG_NS, &k.err), OPIPE_E_TIMEOUT);
  set_flag(&flag);
  OPI_ASSERT_INT(report_of(&k, second).step, 2);
  OPI_ASSERT_INT(report_of(&k, first).step, 1);
  kit_close(&k);
}

/* ---- values ---- */

/* y = x in the shape s. */
static void open_reshape(host_kit *k) {
  static const int64_t any[] = {-1}, two[] = {2};
  static const char *const of[] = {"x", "s"}, *const to[] = {"y"}, *const names[] = {"n"};
  static int64_t plain[] = {2, 6};
  const opipe_build_value in[2] = {{"x", any, names, OPIPE_FLOAT, 1},
                                   {"s", two, NULL, OPIPE_INT64, 1}};
  const opipe_build_value out = {.name = "y", .rank = -1};
  const opipe_build_node node = {
      .op = "Reshape", .inputs = of, .outputs = to, .n_inputs = 2, .n_outputs = 1};
  const opipe_build_opset opset = {"", 17};
  const opipe_dim dim = {"n", 12};
  opipe_pin pin = {.input = "s", .value = kit_ids(plain, two).tensor};
  opipe_build_graph graph = opipe_build_graph_init();
  opipe_build_params build = opipe_build_params_init();
  opipe_bind_options bind = opipe_bind_options_init();
  pin.value.rank = 1;
  graph.inputs = in;
  graph.n_inputs = 2;
  graph.outputs = &out;
  graph.n_outputs = 1;
  graph.nodes = &node;
  graph.n_nodes = 1;
  build.graph = &graph;
  build.opsets = &opset;
  build.n_opsets = 1;
  bind.dims = &dim;
  bind.n_dims = 1;
  bind.pins = &pin;
  bind.n_pins = 1;
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_build(k->context, &build, &k->model, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_bind(k->model, &bind, &k->bound, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_make(k->bound, NULL, &k->plan, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, NULL), &k->err);
}

typedef struct setter {
  uint32_t *flag;
  int64_t *value;
} setter;

static void *set_value(void *arg) {
  const setter *s = arg;
  const struct timespec t = {.tv_nsec = 30000000};
  (void)nanosleep(&t, NULL);
  s->value[0] = 3;
  s->value[1] = 4;
  set_flag(s->flag);
  return NULL;
}

static void test_a_shape_is_read_when_its_flag_is_set(void) {
  static const int64_t twelve[] = {12}, two[] = {2};
  host_kit k;
  float x[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  int64_t value[2] = {2, 6}, plain[2] = {2, 6};
  uint32_t flag = 0, before = 0;
  pthread_t thread;
  opipe_request *request = NULL, *held = NULL;
  opipe_tensor out;
  opipe_binding_io in[2] = {kit_ids(value, twelve), kit_ids(value, two)};
  opipe_submit_params params = opipe_submit_params_init();
  setter s = {&flag, value};
  in[0].name = "x";
  in[0].tensor.data = x;
  in[0].tensor.dtype = (opipe_dtype){OPIPE_DL_FLOAT, 32, 1};
  in[1].name = "s";
  in[0].tensor.rank = in[1].tensor.rank = 1;
  params.inputs = in;
  params.n_inputs = 2;
  params.stream = 1;
  open_reshape(&k);
  in[1].tensor.data = plain;
  in[1].ready = (opipe_fence){.kind = OPIPE_FENCE_NONE};
  in[0].ready = flag_of(&before);
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &params, &held, &k.err), &k.err);
  in[1].tensor.data = value; /* whatever is in flight: that flag is enough */
  in[1].ready = flag_of(&flag);
  in[0].ready = (opipe_fence){.kind = OPIPE_FENCE_NONE};
  OPI_ASSERT_INT(k.api->session_submit(k.session, &params, &request, &k.err), OPIPE_PENDING);
  OPI_ASSERT_INT(k.api->session_wait_room(k.session, SOON_NS, &k.err), OPIPE_E_TIMEOUT);
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, set_value, &s) == 0);
  OPI_ASSERT_OK(k.api->session_wait_room(k.session, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_INT(__atomic_load_n(&flag, __ATOMIC_ACQUIRE), 1);
  params.stream = 2;
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &params, &request, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->request_output(request, 0, &out, &k.err), &k.err);
  set_flag(&before);
  OPI_ASSERT_OK(k.api->request_wait(held, UINT64_MAX, &k.err), &k.err);
  k.api->request_release(held);
  OPI_ASSERT(out.rank == 2 && out.shape[0] == 3 && out.shape[1] == 4);
  OPI_ASSERT_INT(pthread_join(thread, NULL), 0);
  OPI_ASSERT_OK(k.api->session_wait_room(k.session, 0, &k.err), &k.err);
  k.api->request_release(request);
  kit_close(&k);
}

/* ---- late hosts ---- */

/* The host drives both ranks until the request is over, or for `ns`. */
static opipe_status await(host_kit *k, bool drives, opipe_request *request, uint64_t ns) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  const uint64_t until = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec + ns;
  opipe_status status = OPIPE_PENDING;
  if (!drives)
    return k->api->request_wait(request, ns, &k->err);
  for (uint64_t now = 0; status == OPIPE_PENDING && now < until;) {
    for (uint32_t r = 0; r < 2; ++r)
      (void)k->api->session_drive(k->session, r, 1000000, &k->err);
    status = k->api->request_poll(request, &k->err);
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    now = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
  }
  return status == OPIPE_PENDING ? OPIPE_E_TIMEOUT : status;
}

/* fenced 0: the ids, 1: the labels, 2: the loss's buffer. */
static void check_late_step(uint32_t fenced, bool drives) {
  host_kit k;
  uint32_t flag = 0;
  float loss = -1;
  opipe_request *request = NULL;
  opipe_binding_io in[2] = {named("input_ids", ids), named("labels", labels)};
  opipe_binding_io out = {
      .name = "loss",
      .tensor = {.data = &loss, .device_type = OPIPE_DL_CPU, .dtype = {OPIPE_DL_FLOAT, 32, 1}}};
  open_training(&k, 1, "1f1b", drives ? OPIPE_THREADS_HOST : OPIPE_THREADS_LIBRARY, 0);
  fill(labels, true);
  (fenced == 2 ? &out : &in[fenced])->ready = flag_of(&flag);
  OPI_ASSERT_OK_FATAL(start(&k, true, in, &out, 0, &request), &k.err);
  OPI_ASSERT_INT(await(&k, drives, request, LONG_NS), OPIPE_E_TIMEOUT);
  OPI_ASSERT_OK(k.api->request_cancel(request, &k.err), &k.err);
  OPI_ASSERT_INT(await(&k, drives, request, UINT64_MAX / 2), OPIPE_E_CANCELLED);
  k.api->request_release(request);
  OPI_ASSERT_OK_FATAL(start(&k, true, in, &out, SOON_NS, &request), &k.err);
  OPI_ASSERT_INT(await(&k, drives, request, UINT64_MAX / 2), OPIPE_E_TIMEOUT);
  OPI_ASSERT(strstr(k.err.message, "its deadline passed") != NULL);
  k.api->request_release(request);
  OPI_ASSERT_OK_FATAL(start(&k, true, in, &out, 0, &request), &k.err);
  OPI_ASSERT(loss == -1);
  set_flag(&flag);
  OPI_ASSERT_OK(await(&k, drives, request, UINT64_MAX / 2), &k.err);
  OPI_ASSERT(loss > 0);
  k.api->request_release(request);
  kit_close(&k);
}

static void test_a_late_host_ends_no_training(void) {
  for (uint32_t fenced = 0; fenced < 3; ++fenced) {
    check_late_step(fenced, false);
    check_late_step(fenced, true);
  }
}

/* Two double-buffered steps, and between them, or behind the first, one that waits for its fence.
 * Cancelled, that one is as if it had never been: the others have the losses that they have without
 * it. Work that ranks have been given is not taken back, and the message says how it ends. */
static void check_double_buffered(bool follows) {
  double loss[2][2] = {{0, 0}, {0, 0}};
  fill(labels, true);
  for (uint32_t without = 0; without < 2; ++without) {
    host_kit k;
    uint32_t flag = 0;
    opipe_request *first = NULL, *held = NULL, *last = NULL;
    opipe_binding_io in[2] = {named("input_ids", ids), named("labels", labels)};
    open_training(&k, 1, "2bw", OPIPE_THREADS_LIBRARY, 0);
    OPI_ASSERT_OK_FATAL(start(&k, true, in, NULL, 0, &first), &k.err);
    in[1].ready = flag_of(&flag);
    if (without == 0)
      OPI_ASSERT_OK_FATAL(start(&k, true, in, NULL, 0, &held), &k.err);
    in[1].ready = (opipe_fence){.kind = OPIPE_FENCE_NONE};
    if (follows)
      OPI_ASSERT_OK_FATAL(start(&k, true, in, NULL, 0, &last), &k.err);
    if (without == 0) {
      OPI_ASSERT_ERROR(k.api->request_cancel(first, &k.err), OPIPE_E_STATE, &k.err,
                       "it ends with the next step, request_wait or session_flush");
      OPI_ASSERT_OK_FATAL(k.api->request_cancel(held, &k.err), &k.err);
      OPI_ASSERT_INT(k.api->request_poll(held, &k.err), OPIPE_E_CANCELLED);
      OPI_ASSERT_ERROR(k.api->request_cancel(held, &k.err), OPIPE_E_STATE, &k.err,
                       "it has finished");
      k.api->request_release(held);
    }
    OPI_ASSERT_OK(k.api->session_flush(k.session, &k.err), &k.err);
    loss[without][0] = report_of(&k, first).loss;
    loss[without][1] = follows ? report_of(&k, last).loss : 0;
    kit_close(&k);
  }
  OPI_ASSERT(memcmp(loss[0], loss[1], sizeof loss[0]) == 0 && loss[0][0] > 0);
}

static void test_a_held_step_is_cancelled(void) {
  check_double_buffered(false);
  check_double_buffered(true);
}

static void check_late_output(bool drives) {
  host_kit k;
  uint32_t flag = 0;
  opipe_request *request = NULL;
  float *logits = malloc((size_t)N * 344 * sizeof *logits);
  static const int64_t to[3] = {BATCH, SEQ, 344};
  const opipe_binding_io in = kit_ids(ids, shape);
  const opipe_binding_io out = {.name = "logits",
                                .tensor = {.data = logits,
                                           .device_type = OPIPE_DL_CPU,
                                           .rank = 3,
                                           .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                           .shape = to},
                                .ready = flag_of(&flag)};
  opipe_submit_params params = opipe_submit_params_init();
  opipe_session_params session = opipe_session_params_init();
  session.threads = drives ? OPIPE_THREADS_HOST : OPIPE_THREADS_LIBRARY;
  session.watchdog_ns = WATCHDOG_NS;
  fill(ids, true);
  params.inputs = &in;
  params.n_inputs = 1;
  params.outputs = &out;
  params.n_outputs = 1;
  OPI_ASSERT_FATAL(logits != NULL);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, BATCH, SEQ, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, &session), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &params, &request, &k.err), &k.err);
  OPI_ASSERT_INT(await(&k, drives, request, LONG_NS), OPIPE_E_TIMEOUT);
  set_flag(&flag);
  OPI_ASSERT_OK(await(&k, drives, request, UINT64_MAX / 2), &k.err);
  k.api->request_release(request);
  kit_close(&k);
  free(logits);
}

static void test_a_late_output_ends_no_session(void) {
  check_late_output(false);
  check_late_output(true);
}

OPI_TEST_MAIN("unready", OPI_TEST(test_labels_are_counted_when_they_are_there),
              OPI_TEST(test_steps_behind_wait_their_turn),
              OPI_TEST(test_a_shape_is_read_when_its_flag_is_set),
              OPI_TEST(test_a_late_host_ends_no_training), OPI_TEST(test_a_held_step_is_cancelled),
              OPI_TEST(test_a_late_output_ends_no_session))
