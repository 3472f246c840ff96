/* SPDX-License-Identifier: Apache-2.0 */
/* Data that a program refuses: an evaluation fails alone; a training step ends the session, and its
 * parameters are to be had as the step before left them. Steps that were not done leave no trace in
 * the random numbers of later ones. Calls with wrong arguments are refused. ctest: timeout=120
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

#define GPT "tests/data/gpt_8block/model.onnx"
enum { BATCH = 2, SEQ = 8, N = BATCH * SEQ, ROUNDS = 20 };
static const int64_t shape[2] = {BATCH, SEQ};
static int64_t ids[N], bad[N];

static const char *frozen; /* parameter that is not trained; NULL: all are */

static void open_training(host_kit *k, uint32_t threads, uint32_t flags) {
  const opipe_train_glob glob = {.pattern = frozen};
  opipe_train_options train = opipe_train_options_init();
  opipe_plan_params plan = opipe_plan_params_init();
  opipe_session_params session = opipe_session_params_init();
  train.loss = OPIPE_LOSS_CROSS_ENTROPY;
  train.output = "logits";
  train.labels = "labels";
  train.ignore = -100;
  train.shift = 1;
  train.lr = 0.1;
  train.momentum = 0.9;
  train.globs = &glob;
  train.n_globs = frozen != NULL;
  plan.n_stages = 2;
  plan.n_microbatches = 2;
  plan.train = &train;
  session.threads = threads;
  session.flags = flags;
  session.max_in_flight = 8;
  OPI_ASSERT_OK_FATAL(kit_plan_training(k, GPT, BATCH, SEQ, &plan), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, &session), &k->err);
  for (int64_t i = 0; i < N; ++i)
    bad[i] = ids[i] = (i * 37 + 11) % 344;
  bad[N - 1] = 999999; /* of the second micro-batch */
}

static opipe_status start(host_kit *k, bool trains, const int64_t *tokens, const int64_t *labels,
                          opipe_request **out) {
  opipe_binding_io in[2] = {kit_ids(tokens, shape), kit_ids(labels, shape)};
  opipe_submit_params params = opipe_submit_params_init();
  in[1].name = "labels";
  params.inputs = in;
  params.n_inputs = 2;
  return trains ? k->api->session_train_step(k->session, &params, out, &k->err)
                : k->api->session_evaluate(k->session, &params, out, &k->err);
}

static double loss_of(host_kit *k, bool trains) {
  opipe_request *request = NULL;
  opipe_train_report report = opipe_train_report_init();
  OPI_ASSERT_OK_FATAL(start(k, trains, ids, ids, &request), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->request_wait(request, UINT64_MAX, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->request_report(request, &report, &k->err), &k->err);
  k->api->request_release(request);
  return report.loss;
}

static void check_refused(host_kit *k, bool trains, const int64_t *tokens, const int64_t *labels) {
  opipe_request *request = NULL;
  OPI_ASSERT_OK_FATAL(start(k, trains, tokens, labels, &request), &k->err);
  OPI_ASSERT_ERROR(k->api->request_wait(request, UINT64_MAX, &k->err), OPIPE_E_INVALID, &k->err,
                   "999999");
  k->api->request_release(request);
}

/* ---- evaluations ---- */

static void check_evaluation(uint32_t flags) {
  host_kit k, same;
  open_training(&k, OPIPE_THREADS_LIBRARY, flags);
  open_training(&same, OPIPE_THREADS_LIBRARY, flags);
  const double first = loss_of(&k, true);
  OPI_ASSERT(loss_of(&same, true) == first);
  check_refused(&k, false, bad, ids);
  check_refused(&k, false, ids, bad);
  OPI_ASSERT(loss_of(&k, false) == loss_of(&same, false));
  for (uint32_t i = 0; i < 2; ++i)
    OPI_ASSERT(loss_of(&k, true) == loss_of(&same, true));
  OPI_ASSERT_OK(k.api->session_save(k.session, opi_test_tmp("evaluated"), NULL, &k.err), &k.err);
  kit_close(&k);
  kit_close(&same);
}

static void test_an_evaluation_fails_alone(void) {
  check_evaluation(0);
  check_evaluation(OPIPE_SESSION_REFERENCE);
}

/* ---- steps ---- */

/* The first parameter, which is trained. */
static opipe_parameter_info first_of(host_kit *k) {
  opipe_parameter_info info = opipe_parameter_info_init();
  OPI_ASSERT_OK_FATAL(k->api->session_parameter(k->session, 0, &info, &k->err), &k->err);
  OPI_ASSERT_INT(info.trained, 1);
  return info;
}

static void get(host_kit *k, float *values, uint64_t n_bytes) {
  OPI_ASSERT_OK_FATAL(k->api->session_get(k->session, first_of(k).name, OPIPE_STATE_MASTER, 0,
                                          values, n_bytes, &k->err),
                      &k->err);
}

/* Two steps, and behind them, before they are done, one that goes wrong: as if there were none. */
static void check_step(const int64_t *tokens, const int64_t *labels) {
  host_kit k, want;
  opipe_request *tickets[3] = {NULL};
  opipe_train_clock clock = opipe_train_clock_init();
  open_training(&k, OPIPE_THREADS_LIBRARY, 0);
  open_training(&want, OPIPE_THREADS_LIBRARY, 0);
  const uint64_t n_bytes = first_of(&k).n_bytes;
  float *a = malloc((size_t)n_bytes), *b = malloc((size_t)n_bytes);
  OPI_ASSERT_FATAL(n_bytes != 0 && a != NULL && b != NULL);
  for (uint32_t i = 0; i < 3; ++i) {
    OPI_ASSERT_OK_FATAL(start(&k, true, i < 2 ? ids : tokens, i < 2 ? ids : labels, &tickets[i]),
                        &k.err);
  }
  OPI_ASSERT_ERROR(k.api->request_wait(tickets[2], UINT64_MAX, &k.err), OPIPE_E_INVALID, &k.err,
                   "999999");
  for (uint32_t i = 0; i < 2; ++i) {
    OPI_ASSERT_OK(k.api->request_wait(tickets[i], UINT64_MAX, &k.err), &k.err);
    (void)loss_of(&want, true);
  }
  OPI_ASSERT_OK_FATAL(k.api->session_clock(k.session, &clock, &k.err), &k.err);
  OPI_ASSERT_INT(clock.steps, 2);
  get(&k, a, n_bytes);
  get(&want, b, n_bytes);
  OPI_ASSERT(memcmp(a, b, (size_t)n_bytes) == 0);
  OPI_ASSERT_OK(k.api->session_save(k.session, opi_test_tmp("saved"), NULL, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->session_save_model(k.session, opi_test_tmp("saved.onnx"), &k.err), &k.err);
  OPI_ASSERT_ERROR(
      k.api->session_set(k.session, first_of(&k).name, OPIPE_STATE_MASTER, 0, b, n_bytes, &k.err),
      OPIPE_E_STATE, &k.err, "999999");
  OPI_ASSERT_INT(start(&k, true, ids, ids, &tickets[0]), OPIPE_E_STATE);
  kit_close(&k);
  open_training(&k, OPIPE_THREADS_LIBRARY, 0);
  OPI_ASSERT_OK_FATAL(k.api->session_load(k.session, opi_test_tmp("saved"), NULL, &k.err), &k.err);
  OPI_ASSERT(loss_of(&k, true) == loss_of(&want, true));
  kit_close(&k);
  kit_close(&want);
  free(a);
  free(b);
}

static void test_what_was_trained_outlives_a_bad_step(void) {
  for (uint32_t i = 0; i < ROUNDS; ++i)
    check_step(i % 2 == 0 ? bad : ids, i % 2 == 0 ? ids : bad);
}

static void drive(host_kit *k) {
  for (uint32_t i = 0; i < 200; ++i)
    (void)k->api->session_drive(k->session, i % 2, 0, &k->err);
}

/* The ranks are driven one after the other: the one behind has its step to do first. */
static void test_driven_ranks_fail_evenly(void) {
  host_kit k;
  opipe_request *tickets[2] = {NULL};
  opipe_train_clock clock = opipe_train_clock_init();
  open_training(&k, OPIPE_THREADS_HOST, 0);
  OPI_ASSERT_OK_FATAL(start(&k, true, ids, ids, &tickets[0]), &k.err);
  OPI_ASSERT_OK_FATAL(start(&k, true, bad, ids, &tickets[1]), &k.err);
  drive(&k);
  OPI_ASSERT_OK(k.api->request_poll(tickets[0], &k.err), &k.err);
  OPI_ASSERT_INT(k.api->request_poll(tickets[1], &k.err), OPIPE_E_INVALID);
  OPI_ASSERT_OK(k.api->session_clock(k.session, &clock, &k.err), &k.err);
  OPI_ASSERT_INT(clock.steps, 1);
  kit_close(&k);
}

/* ---- random numbers ---- */

enum { ROWS = 4, WIDE = 8 };

/* y = dropout(x w) w; mean squares. */
static void open_dropout(host_kit *k) {
  static const int64_t rows[] = {-1, WIDE}, square[] = {WIDE, WIDE};
  static const char *const dims[] = {"batch", NULL};
  static const char *const i1[] = {"x", "w"}, *const o1[] = {"h"}, *const o2[] = {"d"};
  static const char *const i3[] = {"d", "w2"}, *const o3[] = {"y"};
  static float w[WIDE * WIDE], w2[WIDE * WIDE];
  const opipe_build_value x = {"x", rows, dims, OPIPE_FLOAT, 2},
                          y = {"y", rows, dims, OPIPE_FLOAT, 2};
  const opipe_build_tensor tensors[] = {{.name = "w",
                                         .shape = square,
                                         .data = w,
                                         .n_bytes = sizeof w,
                                         .dtype = OPIPE_FLOAT,
                                         .rank = 2},
                                        {.name = "w2",
                                         .shape = square,
                                         .data = w2,
                                         .n_bytes = sizeof w2,
                                         .dtype = OPIPE_FLOAT,
                                         .rank = 2}};
  const opipe_build_node nodes[] = {
      {.op = "MatMul", .inputs = i1, .outputs = o1, .n_inputs = 2, .n_outputs = 1},
      {.op = "Dropout", .inputs = o1, .outputs = o2, .n_inputs = 1, .n_outputs = 1},
      {.op = "MatMul", .inputs = i3, .outputs = o3, .n_inputs = 2, .n_outputs = 1}};
  const opipe_build_opset opset = {"", 17};
  const opipe_dim dim = {"batch", ROWS};
  opipe_build_graph graph = opipe_build_graph_init();
  opipe_build_params build = opipe_build_params_init();
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_train_options train = opipe_train_options_init();
  opipe_plan_params plan = opipe_plan_params_init();
  opipe_session_params session = opipe_session_params_init();
  for (int i = 0; i < WIDE * WIDE; ++i)
    w[i] = w2[WIDE * WIDE - 1 - i] = (float)(i * 37 % 101 - 50) / 100;
  graph.inputs = &x;
  graph.outputs = &y;
  graph.n_inputs = graph.n_outputs = 1;
  graph.tensors = tensors;
  graph.n_tensors = 2;
  graph.nodes = nodes;
  graph.n_nodes = 3;
  build.graph = &graph;
  build.opsets = &opset;
  build.n_opsets = 1;
  bind.dims = &dim;
  bind.n_dims = 1;
  bind.flags = OPIPE_BIND_TRAIN | OPIPE_BIND_DROPOUT_RATIO;
  bind.dropout_ratio = 0.5;
  train.loss = OPIPE_LOSS_MSE;
  train.output = "y";
  train.labels = "t";
  train.seed = 7;
  plan.n_stages = 2;
  plan.cut = "d";
  plan.train = &train;
  session.threads = OPIPE_THREADS_HOST;
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_build(k->context, &build, &k->model, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_bind(k->model, &bind, &k->bound, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_make(k->bound, &plan, &k->plan, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, &session), &k->err);
}

static opipe_status start_dropout(host_kit *k, uint64_t deadline_ns, opipe_request **out) {
  static const int64_t to[] = {ROWS, WIDE};
  static float x[ROWS * WIDE], t[ROWS * WIDE];
  opipe_binding_io in[2] = {kit_ids((const int64_t *)(const void *)x, to),
                            kit_ids((const int64_t *)(const void *)t, to)};
  opipe_submit_params params = opipe_submit_params_init();
  for (int i = 0; i < ROWS * WIDE; ++i)
    x[i] = (float)(i * 29 % 83 - 41) / 40;
  in[0].name = "x";
  in[1].name = "t";
  in[0].tensor.dtype = in[1].tensor.dtype = (opipe_dtype){OPIPE_DL_FLOAT, 32, 1};
  params.inputs = in;
  params.n_inputs = 2;
  params.deadline_ns = deadline_ns;
  return k->api->session_train_step(k->session, &params, out, &k->err);
}

static double dropout_loss(host_kit *k) {
  opipe_request *request = NULL;
  opipe_train_report report = opipe_train_report_init();
  OPI_ASSERT_OK_FATAL(start_dropout(k, 0, &request), &k->err);
  drive(k);
  OPI_ASSERT_OK_FATAL(k->api->request_poll(request, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->request_report(request, &report, &k->err), &k->err);
  k->api->request_release(request);
  return report.loss;
}

static void test_steps_not_done_take_no_random_numbers(void) {
  host_kit k, same, loaded;
  opipe_request *request = NULL;
  open_dropout(&k);
  open_dropout(&same);
  const double first = dropout_loss(&same), second = dropout_loss(&same);
  OPI_ASSERT(dropout_loss(&k) == first && first != second);
  for (uint32_t late = 0; late < 2; ++late) {
    OPI_ASSERT_OK_FATAL(start_dropout(&k, late, &request), &k.err);
    if (late == 0)
      OPI_ASSERT_OK(k.api->request_cancel(request, &k.err), &k.err);
    drive(&k);
    OPI_ASSERT(k.api->request_poll(request, &k.err) < 0);
    k.api->request_release(request);
  }
  OPI_ASSERT(dropout_loss(&k) == second);
  OPI_ASSERT_OK_FATAL(k.api->session_save(k.session, opi_test_tmp("dropout"), NULL, &k.err),
                      &k.err);
  open_dropout(&loaded);
  OPI_ASSERT_OK_FATAL(
      loaded.api->session_load(loaded.session, opi_test_tmp("dropout"), NULL, &loaded.err),
      &loaded.err);
  const double third = dropout_loss(&k);
  OPI_ASSERT(third == dropout_loss(&same) && third == dropout_loss(&loaded));
  kit_close(&k);
  kit_close(&same);
  kit_close(&loaded);
}

/* ---- parameters that are not trained ---- */

static bool holds(const char *path, const void *bytes, size_t n) {
  size_t n_file = 0;
  char *file = opi_test_read_file(path, &n_file);
  const bool found = file != NULL && memmem(file, n_file, bytes, n) != NULL;
  free(file);
  return found;
}

static void test_what_is_set_is_saved_though_not_trained(void) {
  host_kit k;
  char name[256];
  open_training(&k, OPIPE_THREADS_LIBRARY, 0);
  (void)snprintf(name, sizeof name, "%s", first_of(&k).name);
  const uint64_t n_bytes = first_of(&k).n_bytes;
  kit_close(&k);
  frozen = name;
  float *given = malloc((size_t)n_bytes), *found = malloc((size_t)n_bytes);
  OPI_ASSERT_FATAL(given != NULL && found != NULL);
  for (uint64_t i = 0; i < n_bytes / sizeof *given; ++i)
    given[i] = (float)i / 1024;
  open_training(&k, OPIPE_THREADS_LIBRARY, 0);
  OPI_ASSERT_OK(k.api->session_set(k.session, name, OPIPE_STATE_WEIGHT, 0, given, n_bytes, &k.err),
                &k.err);
  const double loss = loss_of(&k, false);
  OPI_ASSERT_OK(k.api->session_save(k.session, opi_test_tmp("set"), NULL, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->session_save_model(k.session, opi_test_tmp("set.onnx"), &k.err), &k.err);
  OPI_ASSERT(holds(opi_test_tmp("set.onnx"), given, (size_t)n_bytes));
  kit_close(&k);
  open_training(&k, OPIPE_THREADS_LIBRARY, 0);
  OPI_ASSERT(loss_of(&k, false) != loss);
  OPI_ASSERT_OK(k.api->session_load(k.session, opi_test_tmp("set"), NULL, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->session_get(k.session, name, OPIPE_STATE_WEIGHT, 0, found, n_bytes, &k.err),
                &k.err);
  OPI_ASSERT(memcmp(given, found, (size_t)n_bytes) == 0 && loss_of(&k, false) == loss);
  kit_close(&k);
  free(given);
  free(found);
  frozen = NULL;
}

/* ---- calls that do not fit ---- */

static void test_gradients_that_are_not_kept_cannot_be_saved(void) {
  host_kit k;
  open_training(&k, OPIPE_THREADS_LIBRARY, 0);
  OPI_ASSERT_ERROR(
      k.api->session_try_save(k.session, OPIPE_SAVE_GRADIENTS, opi_test_tmp("g"), &k.err),
      OPIPE_E_STATE, &k.err, "not kept");
  kit_close(&k);
  open_training(&k, OPIPE_THREADS_LIBRARY, OPIPE_SESSION_KEEP_GRADIENTS);
  OPI_ASSERT_OK(k.api->session_try_save(k.session, OPIPE_SAVE_GRADIENTS, opi_test_tmp("g"), &k.err),
                &k.err);
  kit_close(&k);
}

static void test_an_output_is_given_once(void) {
  host_kit k;
  float a = 0, b = 0;
  opipe_request *request = NULL;
  opipe_binding_io in[2] = {kit_ids(ids, shape), kit_ids(ids, shape)}, out[2];
  opipe_submit_params params = opipe_submit_params_init();
  open_training(&k, OPIPE_THREADS_LIBRARY, 0);
  for (uint32_t i = 0; i < 2; ++i) {
    out[i] = (opipe_binding_io){.name = "loss",
                                .tensor = {.data = i == 0 ? &a : &b,
                                           .device_type = OPIPE_DL_CPU,
                                           .dtype = {OPIPE_DL_FLOAT, 32, 1}}};
  }
  in[1].name = "labels";
  params.inputs = in;
  params.n_inputs = 2;
  params.outputs = out;
  params.n_outputs = 2;
  OPI_ASSERT_ERROR(k.api->session_train_step(k.session, &params, &request, &k.err), OPIPE_E_INVALID,
                   &k.err, "output 'loss' is given twice");
  kit_close(&k);
}

OPI_TEST_MAIN("bad data", OPI_TEST(test_an_evaluation_fails_alone),
              OPI_TEST(test_what_was_trained_outlives_a_bad_step),
              OPI_TEST(test_driven_ranks_fail_evenly),
              OPI_TEST(test_steps_not_done_take_no_random_numbers),
              OPI_TEST(test_what_is_set_is_saved_though_not_trained),
              OPI_TEST(test_gradients_that_are_not_kept_cannot_be_saved),
              OPI_TEST(test_an_output_is_given_once))
