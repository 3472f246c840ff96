/* SPDX-License-Identifier: Apache-2.0 */
/* The backend in a stand-in for its server: what it completes and refuses, what it answers to
 * requests that come alone, together, in pieces, from many threads, cancelled or wrong, and when
 * the server itself fails; whatever it was given it gives back.
 * ctest: timeout=120 label=twice always */
#include <opipe/host.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/plugins/host-triton/kit.h"

enum { WIDTH = 16, ROWS = 4, FP32 = 11, INT64 = 9, VOCAB = 5 };

/* y = table[ids] . w: integers in, which can be out of range; floats out. */
static float table[VOCAB * WIDTH], w[WIDTH * WIDTH];

bool save_model(const char *path) {
  static const int64_t table_shape[] = {VOCAB, WIDTH}, w_shape[] = {WIDTH, WIDTH},
                       ids_shape[] = {-1, -1}, y_shape[] = {-1, -1, WIDTH};
  static const char *const ids_dims[] = {"batch", "seq"}, *const y_dims[] = {"batch", "seq", NULL};
  static const char *const gather_in[] = {"table", "ids"}, *const gather_out[] = {"x"},
                           *const product_in[] = {"x", "w"}, *const product_out[] = {"z"},
                           *const relu_in[] = {"z"}, *const relu_out[] = {"y"};
  const opipe_build_value in = {"ids", ids_shape, ids_dims, OPIPE_INT64, 2},
                          out = {"y", y_shape, y_dims, OPIPE_FLOAT, 3};
  const opipe_build_tensor tensors[] = {{.name = "table",
                                         .shape = table_shape,
                                         .data = table,
                                         .n_bytes = sizeof table,
                                         .dtype = OPIPE_FLOAT,
                                         .rank = 2},
                                        {.name = "w",
                                         .shape = w_shape,
                                         .data = w,
                                         .n_bytes = sizeof w,
                                         .dtype = OPIPE_FLOAT,
                                         .rank = 2}};
  const opipe_build_node nodes[] = {{.name = "pick",
                                     .op = "Gather",
                                     .inputs = gather_in,
                                     .outputs = gather_out,
                                     .n_inputs = 2,
                                     .n_outputs = 1},
                                    {.name = "multiply",
                                     .op = "MatMul",
                                     .inputs = product_in,
                                     .outputs = product_out,
                                     .n_inputs = 2,
                                     .n_outputs = 1},
                                    {.name = "cut",
                                     .op = "Relu",
                                     .inputs = relu_in,
                                     .outputs = relu_out,
                                     .n_inputs = 1,
                                     .n_outputs = 1}};
  const opipe_build_opset opset = {"", 17};
  opipe_build_graph graph = opipe_build_graph_init();
  opipe_build_params params = opipe_build_params_init();
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_api *api = NULL;
  opipe_context *context = NULL;
  opipe_model *model = NULL;
  graph.inputs = &in, graph.n_inputs = 1;
  graph.outputs = &out, graph.n_outputs = 1;
  graph.tensors = tensors, graph.n_tensors = 2;
  graph.nodes = nodes, graph.n_nodes = 3;
  params.graph = &graph;
  params.opsets = &opset, params.n_opsets = 1;
  for (int i = 0; i < VOCAB * WIDTH; ++i)
    table[i] = (float)((i * 37 + 11) % 101 - 50) / 50.0f;
  for (int i = 0; i < WIDTH * WIDTH; ++i)
    w[i] = (float)((i * 29 + 7) % 97 - 48) / 100.0f;
  const bool good = OPI_ASSERT_OK(opipe_get_api(OPIPE_VIEW, &api, &err), &err) &&
                    OPI_ASSERT_OK(api->context_create(NULL, &context, &err), &err) &&
                    OPI_ASSERT_OK(api->model_build(context, &params, &model, &err), &err) &&
                    OPI_ASSERT_OK(api->model_write(model, path, &err), &err);
  if (api != NULL) {
    api->model_destroy(model);
    api->context_destroy(context);
  }
  return good;
}

static tri_request ask(const int64_t *ids, int64_t rows, int64_t tokens) {
  return (tri_request){.input = {.name = "ids",
                                 .type = INT64,
                                 .rank = 2,
                                 .n_pieces = 1,
                                 .shape = {rows, tokens},
                                 .data = (const char *)ids,
                                 .n_bytes = (uint64_t)(rows * tokens) * sizeof *ids},
                       .wanted = "y"};
}

static bool is_right(const tri_request *r) {
  const tri_output *y = r->response == NULL ? NULL : &r->response->outputs[0];
  const int64_t *ids = (const int64_t *)(const void *)r->input.data;
  const int64_t n = r->input.shape[0] * r->input.shape[1];
  if (y == NULL || r->n_sent != 1 || r->n_released != 1 || r->response->error != NULL ||
      r->response->n_outputs != 1 || y->rank != 3 || y->shape[0] != r->input.shape[0] ||
      y->shape[1] != r->input.shape[1] || y->n_bytes != (uint64_t)n * WIDTH * sizeof(float))
    return false;
  for (int64_t i = 0; i < n * WIDTH; ++i) {
    double sum = 0;
    for (int k = 0; k < WIDTH; ++k)
      sum += (double)table[ids[i / WIDTH] * WIDTH + k] * w[k * WIDTH + i % WIDTH];
    sum = sum < 0 ? 0 : sum;
    const double away = sum - ((const float *)y->data)[i];
    if (away > 1e-4 || away < -1e-4)
      return false;
  }
  return true;
}

static void expect_error(tri_request *r, int code, const char *part) {
  const tri_error *e = r->response == NULL ? NULL : r->response->error;
  OPI_ASSERT_INT(r->n_sent, 1);
  OPI_ASSERT_INT(r->n_released, 1);
  if (OPI_ASSERT(e != NULL)) {
    opi_test_check(e->code == code && strstr(e->text, part) != NULL, __FILE__, __LINE__, false,
                   "%d: %s", e->code, e->text);
  }
}

static const int64_t some[ROWS * 4] = {0, 1, 2, 3, 4, 3, 2, 1, 1, 0, 4, 4, 3, 3, 0, 2};
#define STAGES ",\"parameters\":{\"stages\":{\"string_value\":\"2\"}}"
#define BATCHES ",\"max_batch_size\":8"

/* ---- tests ---- */

static void test_requests_are_answered_and_joined(void) {
  server s;
  tri_request r[5];
  tri_request *list[5];
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, STAGES)))
    return;
  for (int round = 0; round < 3; ++round) {
    r[0] = ask(some, 1, 4);
    r[1] = ask(some + 4, 2, 4);
    r[2] = ask(some, 1, 4);
    r[2].input.n_pieces = 3; /* not even of whole numbers */
    r[3] = ask(some, 2, 3);  /* of another shape */
    r[4] = ask(some + 1, 1, 4);
    r[4].input.n_pieces = round == 0 ? 1 : 2;
    for (int k = 0; k < 5; ++k)
      list[k] = &r[k];
    OPI_ASSERT(s.execute(&s.instance, list, 5) == NULL);
    for (int k = 0; k < 5; ++k) {
      wait_for(&r[k]);
      OPI_ASSERT(is_right(&r[k]));
      forget(&r[k]);
    }
  }
  end(&s);
  OPI_ASSERT_INT(s.instance.n_good, 15);
  OPI_ASSERT_INT(s.instance.n_bad, 0);
  OPI_ASSERT_INT(s.instance.n_runs, 9); /* the first three as one */
  OPI_ASSERT_INT(s.instance.n_rows, 3 * (4 + 2 + 1));
}

static void test_configurations_are_completed(void) {
  server s;
  if (!begin(&s, ",\"default-max-batch-size\":\"6\"") || !OPI_ASSERT(load(&s, "")))
    return;
  const char *c = s.model.completed == NULL ? "" : s.model.completed;
  opi_test_check(
      strstr(c, "\"max_batch_size\":6") != NULL && strstr(c, "\"dynamic_batching\":{}") != NULL &&
          strstr(c, "\"name\":\"ids\",\"data_type\":\"TYPE_INT64\",\"dims\":[-1]") != NULL &&
          strstr(c, "\"name\":\"y\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1,16]") != NULL,
      __FILE__, __LINE__, false, "%s", c);
  end(&s);
  if (!begin(&s, ",\"default-max-batch-size\":\"0\"") || !OPI_ASSERT(load(&s, "")))
    return;
  c = s.model.completed == NULL ? "" : s.model.completed;
  OPI_ASSERT(strstr(c, "\"dims\":[-1,-1]") != NULL && strstr(c, "dynamic_batching") == NULL);
  end(&s);
}

static void expect_refused(const char *options, const char *config, const char *part) {
  server s;
  if (begin(&s, options))
    (void)load(&s, config);
  const char *text = s.error == NULL ? "it was accepted" : s.error->text;
  opi_test_check(strstr(text, part) != NULL, __FILE__, __LINE__, false, "%s %s: %s", options,
                 config, text);
  end(&s);
}

#define PARAMETER(key, value) ",\"parameters\":{\"" key "\":{\"string_value\":\"" value "\"}}"
#define IDS(type, dims) \
  ",\"input\":[{\"name\":\"ids\",\"data_type\":\"" type "\",\"dims\":" dims "}]"
static void test_what_cannot_be_is_refused_with_its_reason(void) {
  expect_refused(",\"budget\":\"many\"", "", "option budget=many is no size");
  expect_refused(",\"library\":\"/no/such.so\"", "", "/no/such.so");
  expect_refused(",\"budget\":\"2KiB\"", "", "budget");
  expect_refused("", ",\"default_model_filename\":\"none.onnx\"", "none.onnx");
  expect_refused("", PARAMETER("memory", "1KiB"), "exceeds its cap");
  expect_refused("", PARAMETER("stages", "x"), "stages=x is no number");
  expect_refused("", PARAMETER("schedule", "nosuch"), "nosuch");
  expect_refused("", PARAMETER("plan", "/no/plan.json"), "/no/plan.json");
  expect_refused("", PARAMETER("bind", "nobody=3"), "nobody");
  expect_refused("", IDS("TYPE_INT32", "[-1,-1]"), "TYPE_INT64 in the model, TYPE_INT32");
  expect_refused("", BATCHES IDS("TYPE_INT64", "[-1,-1]"), "2 dimensions in the model, 3");
  expect_refused("", ",\"input\":[{\"name\":\"none\",\"data_type\":\"TYPE_INT64\"}]",
                 "'none' is not in the model");
  double_major = 2;
  expect_refused("", "", "is 2.19; the adapter's is 1");
  double_major = 0;
}

static void test_wrong_requests_fail_alone(void) {
  static const int64_t wrong[4] = {0, 77, 0, 0};
  server s;
  tri_request r[7];
  tri_request *list[7];
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, STAGES)))
    return;
  for (int k = 0; k < 7; ++k) {
    r[k] = ask(some, 1, 4);
    list[k] = &r[k];
  }
  r[1].input.data = (const char *)wrong;
  r[2].is_cancelled = 1;
  r[3].input.type = FP32;
  r[4].input.n_bytes -= 8;
  r[5].input.memory = TRI_MEMORY_GPU;
  r[5].input.shape[1] = 2, r[5].input.n_bytes = 16; /* alone */
  OPI_ASSERT(s.execute(&s.instance, list, 7) == NULL);
  for (int k = 0; k < 7; ++k)
    wait_for(&r[k]);
  OPI_ASSERT(is_right(&r[0]) && is_right(&r[6]));
  expect_error(&r[1], TRI_ERROR_INVALID_ARG, "index 77 is outside");
  expect_error(&r[2], TRI_ERROR_CANCELLED, "cancelled");
  expect_error(&r[3], TRI_ERROR_INVALID_ARG, "'ids' is of the server's type 11, not 9");
  expect_error(&r[4], TRI_ERROR_INVALID_ARG, "has 24 bytes, its shape needs 32");
  expect_error(&r[5], TRI_ERROR_UNSUPPORTED, "'ids' is in GPU memory");
  for (int k = 0; k < 7; ++k)
    forget(&r[k]);
  end(&s);
  OPI_ASSERT_INT(s.instance.n_good, 2);
  OPI_ASSERT_INT(s.instance.n_bad, 5);
}

/* Whatever fails in the server: every request is answered once, if it can be, and let go of. */
static void test_failures_of_the_server_are_survived(void) {
  static const int at[] = {
      DOUBLE_AT_RequestInput,       DOUBLE_AT_InputProperties,   DOUBLE_AT_InputBuffer,
      DOUBLE_AT_RequestOutputCount, DOUBLE_AT_RequestOutputName, DOUBLE_AT_ResponseNew,
      DOUBLE_AT_ResponseOutput,     DOUBLE_AT_OutputBuffer,      DOUBLE_AT_RequestIsCancelled};
  static const int load_at[] = {DOUBLE_AT_BackendConfig,        DOUBLE_AT_BackendSetState,
                                DOUBLE_AT_ModelConfig,          DOUBLE_AT_ModelRepository,
                                DOUBLE_AT_ModelSetConfig,       DOUBLE_AT_ModelSetState,
                                DOUBLE_AT_ModelInstanceSetState};
  server s;
  for (size_t i = 0; i < sizeof load_at / sizeof load_at[0]; ++i) {
    double_fails = load_at[i];
    OPI_ASSERT(!begin(&s, "") || !load(&s, ""));
    OPI_ASSERT(s.error != NULL && strstr(s.error->text, "does not go") != NULL);
    OPI_ASSERT_INT(double_fails, -1);
    end(&s);
  }
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, BATCHES)))
    return;
  for (size_t i = 0; i < 2 * sizeof at / sizeof at[0]; ++i) {
    const uint32_t n = 1 + (uint32_t)(i % 2);
    tri_request r[2] = {ask(some, 1, 4), ask(some, 1, 4)};
    tri_request *list[] = {&r[0], &r[1]};
    double_fails = at[i / 2];
    OPI_ASSERT(s.execute(&s.instance, list, n) == NULL);
    for (uint32_t k = 0; k < n; ++k) {
      wait_for(&r[k]);
      OPI_ASSERT_INT(r[k].n_released, 1);
      OPI_ASSERT_INT(r[k].n_sent, 1);
      if (k == 0 && r[k].response != NULL) /* the first call was for it */
        OPI_ASSERT(r[k].response->error != NULL);
      forget(&r[k]);
    }
    OPI_ASSERT_INT(double_fails, -1);
  }
  end(&s);
}

typedef struct caller {
  server *s;
  int n_pairs, seed, n_bad;
  pthread_t thread;
} caller;

static void *call_often(void *arg) {
  caller *c = arg;
  for (int i = 0; i < c->n_pairs; ++i) {
    tri_request r[2] = {ask(some + (i + c->seed) % 4, 1 + (i + c->seed) % 3, 4), ask(some, 1, 4)};
    tri_request *list[] = {&r[0], &r[1]};
    r[1].is_cancelled = i % 7 == 3;
    c->n_bad += c->s->execute(&c->s->instance, list, 2) != NULL;
    __atomic_store_n(&r[0].is_cancelled, i % 11 == 5, __ATOMIC_RELEASE); /* in flight, or over */
    for (int k = 0; k < 2; ++k) {
      wait_for(&r[k]);
      const bool right = is_right(&r[k]);
      const bool gone = r[k].response != NULL && r[k].response->error != NULL &&
                        r[k].response->error->code == TRI_ERROR_CANCELLED;
      c->n_bad += !right && !(gone && r[k].is_cancelled);
      forget(&r[k]);
    }
  }
  return NULL;
}

/* Two requests at a time of three shapes from n threads, some of them cancelled. */
static void call_from(server *s, int n, int n_pairs) {
  caller callers[8];
  for (int i = 0; i < n; ++i) {
    callers[i] = (caller){.s = s, .n_pairs = n_pairs, .seed = i};
    OPI_ASSERT_FATAL(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]) == 0);
  }
  for (int i = 0; i < n; ++i) {
    OPI_ASSERT_INT(pthread_join(callers[i].thread, NULL), 0);
    OPI_ASSERT_INT(callers[i].n_bad, 0);
  }
}

static void test_many_threads_stream_through(void) {
  server s;
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, BATCHES STAGES)))
    return;
  call_from(&s, 8, 60);
  end(&s);
}

/* An end waits for what is in flight. */
static void test_ends_wait_for_requests(void) {
  server s;
  tri_request r[16];
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, BATCHES STAGES)))
    return;
  for (int k = 0; k < 16; ++k) {
    tri_request *one = &r[k];
    r[k] = ask(some, 1, 4);
    OPI_ASSERT(s.execute(&s.instance, &one, 1) == NULL);
  }
  end(&s);
  for (int k = 0; k < 16; ++k) {
    OPI_ASSERT(is_right(&r[k]));
    forget(&r[k]);
  }
}

/* ---- a team ---- */

enum { IN_TEAM = 60, IN_TEAM_THREADS = 4, IN_TEAM_PAIRS = 125 };
#define IN_A_TEAM(more)                                        \
  ",\"parameters\":{\"team\":{\"string_value\":\"any\"}," more \
  "\"shapes\":{\"string_value\":\"4\"}}"

/* The variables of a launcher, for this process and the command that follows it. */
static void be_process(const char *rank) {
  static char job[64];
  (void)snprintf(job, sizeof job, "triton-%d", rank[0] == '0' ? (int)getpid() : (int)getppid());
  (void)setenv("RANK", rank, 1);
  (void)setenv("WORLD_SIZE", "2", 1);
  (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
  (void)setenv("MASTER_PORT", "29998", 1);
  (void)setenv("TORCHELASTIC_RUN_ID", job, 1);
}

static void be_none(void) {
  (void)unsetenv("RANK");
  (void)unsetenv("WORLD_SIZE");
}

static pid_t follow(const char *model) {
  const pid_t child = fork();
  if (child != 0)
    return child;
  be_process("1");
  (void)execl(opi_test_build("bin/onnx-pipe"), "onnx-pipe", "follow", model, (char *)NULL);
  _exit(127);
}

/* Requests of several shapes, joined and alone; then a thousand from four threads, some
 * cancelled. */
static void test_a_team_follows_the_server(void) {
  static tri_request r[IN_TEAM];
  tri_request *list[IN_TEAM];
  const char *path = opi_test_tmp("1/model.onnx");
  server s;
  int status = -1;
  if (access(opi_test_build("bin/onnx-pipe"), X_OK) != 0)
    OPI_SKIP("the command is not built here");
  (void)fflush(NULL);
  const pid_t child = follow(path);
  be_process("0");
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, IN_A_TEAM("")))) {
    opi_test_check(false, __FILE__, __LINE__, false, "%s", s.error == NULL ? "" : s.error->text);
    be_none();
    return;
  }
  for (int k = 0; k < IN_TEAM; ++k) {
    r[k] = ask(some + k % 4, 1 + k % 3, 4 - k % 2);
    list[k] = &r[k];
  }
  OPI_ASSERT(s.execute(&s.instance, list, IN_TEAM / 2) == NULL);
  for (int k = IN_TEAM / 2; k < IN_TEAM; ++k)
    OPI_ASSERT(s.execute(&s.instance, &list[k], 1) == NULL);
  for (int k = 0; k < IN_TEAM; ++k) {
    wait_for(&r[k]);
    OPI_ASSERT(is_right(&r[k]));
    forget(&r[k]);
  }
  call_from(&s, IN_TEAM_THREADS, IN_TEAM_PAIRS);
  end(&s);
  be_none();
  OPI_ASSERT(waitpid(child, &status, 0) == child);
  OPI_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void expect_refusal(const char *config, const char *part) {
  server s;
  if (begin(&s, "") && OPI_ASSERT(!load(&s, config))) {
    opi_test_check(strstr(s.error->text, part) != NULL, __FILE__, __LINE__, false, "%s",
                   s.error->text);
  }
  end(&s);
}

static void test_a_team_that_cannot_be(void) {
  be_none();
  expect_refusal(IN_A_TEAM(""), "option team: this is the only process");
  expect_refusal(",\"parameters\":{\"team\":{\"string_value\":\"lsf\"}}",
                 "there is no launcher 'lsf'");
}

/* One request of a model whose option `trace` names that file, and one that is none. */
static bool run_traced(const char *trace) {
  char config[512];
  server s;
  (void)snprintf(
      config, sizeof config,
      ",\"parameters\":{\"stage\":{\"string_value\":\"2\"},\"trace\":{\"string_value\":\"%s\"}}",
      trace);
  tri_request r = ask(some, 1, 4);
  tri_request *one = &r;
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, config)))
    return false;
  OPI_ASSERT(s.execute(&s.instance, &one, 1) == NULL);
  wait_for(&r);
  forget(&r);
  end(&s);
  return true;
}

static void test_what_nobody_knows_is_named(void) {
  const char *trace = opi_test_tmp("trace.svg");
  if (!run_traced(trace))
    return;
  OPI_ASSERT(strstr(double_log, "parameter stage is none of ours") != NULL);
  OPI_ASSERT(access(trace, R_OK) == 0);
}

static void test_a_trace_spares_the_model(void) {
  const char *model = opi_test_tmp("1/model.onnx");
  size_t n_before = 0, n_after = 0;
  char *before = opi_test_read_file(model, &n_before);
  if (before != NULL && run_traced(model)) {
    char *after = opi_test_read_file(model, &n_after);
    OPI_ASSERT(strstr(double_log, "it would be written over") != NULL);
    OPI_ASSERT(after != NULL && n_after == n_before && memcmp(before, after, n_before) == 0);
    free(after);
  }
  free(before);
}

/* Last: what all tests before have called. */
static void test_every_function_was_used(void) {
#define USED(prefix, name, ...)                                                  \
  opi_test_check(double_calls[DOUBLE_AT_##name] != 0, __FILE__, __LINE__, false, \
                 "TRITON" #prefix "_" #name " is not used");
  TRI_FUNCTIONS(USED)
}

OPI_TEST_MAIN("host-triton", OPI_TEST(test_requests_are_answered_and_joined),
              OPI_TEST(test_configurations_are_completed),
              OPI_TEST(test_what_cannot_be_is_refused_with_its_reason),
              OPI_TEST(test_wrong_requests_fail_alone),
              OPI_TEST(test_failures_of_the_server_are_survived),
              OPI_TEST(test_many_threads_stream_through), OPI_TEST(test_ends_wait_for_requests),
              OPI_TEST(test_a_team_follows_the_server), OPI_TEST(test_a_team_that_cannot_be),
              OPI_TEST(test_what_nobody_knows_is_named), OPI_TEST(test_a_trace_spares_the_model),
              OPI_TEST(test_every_function_was_used))
