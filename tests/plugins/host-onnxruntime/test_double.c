/* SPDX-License-Identifier: Apache-2.0 */
/* The adapter for ONNX Runtime inside a stand-in for it: every slot that it uses is called, results
 * are those of plain loops, weights are lent, mapped or copied as they lie, calls come from many
 * threads; what it refuses, and that nothing of the stand-in's is left over. ctest: timeout=120
 * always
 */
#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "tests/plugins/host-onnxruntime/double.h"
#include "tests/support/support.h"

enum { WIDTH = 128, ROWS = 5, FLOAT = 1, BOOL = 9 };

/* y = Transpose(Transpose(If(c) { a + k } else { a })) * h + e, flattened;
 * a = Gelu(LeakyRelu(x W + b)) */
static float w[WIDTH * WIDTH], b[WIDTH], k[WIDTH], e[WIDTH];
static const float half = 0.5f, slope = 0.25f;
static const bool yes = true;
static const int64_t turn[] = {1, 0}, one = 1;

#define TENSOR(of, type, n, content)                               \
  static const ort_value of##_value = {.dtype = (type),            \
                                       .rank = 1,                  \
                                       .n_bytes = sizeof(content), \
                                       .shape = {n},               \
                                       .data = (void *)(uintptr_t)&content}
static const ort_value w_value = {
    .dtype = FLOAT, .rank = 2, .n_bytes = sizeof w, .shape = {WIDTH, WIDTH}, .data = w};
TENSOR(b, FLOAT, WIDTH, b);
TENSOR(k, FLOAT, WIDTH, k);
TENSOR(e, FLOAT, WIDTH, e);
static const ort_value c_value = {
    .dtype = BOOL, .rank = 0, .n_bytes = 1, .data = (void *)(uintptr_t)&yes};

#define VALUE(of) static ort_value_info v_##of = {.name = #of, .dtype = FLOAT}
static ort_value_info v_x = {
    .name = "x", .dtype = FLOAT, .rank = 2, .shape = {-1, WIDTH}, .dims = {"batch"}};
static ort_value_info v_w = {
    .name = "w", .dtype = FLOAT, .rank = 2, .shape = {WIDTH, WIDTH}, .content = &w_value};
static ort_value_info v_c = {.name = "c", .dtype = BOOL, .content = &c_value};
static ort_value_info v_k = {
    .name = "k", .dtype = FLOAT, .rank = 1, .shape = {WIDTH}, .content = &k_value};
static ort_value_info v_e = {
    .name = "e", .dtype = FLOAT, .rank = 1, .shape = {WIDTH}, .content = &e_value};
static ort_value_info v_r = {.name = "r", .dtype = FLOAT, .rank = 2, .shape = {-1, WIDTH}};
static ort_value_info v_v = {.name = "v", .dtype = FLOAT, .rank = 2, .shape = {-1, WIDTH}};
static ort_value_info v_h = {.name = "h", .dtype = FLOAT, .rank = 1, .shape = {1}};
VALUE(b);
VALUE(p);
VALUE(q);
VALUE(g);
VALUE(t);
VALUE(u);
VALUE(s);
VALUE(m);
VALUE(z);
VALUE(y);
VALUE(in_then);
VALUE(in_else);

static const ort_attr a_value = {"value", ORT_ATTR_TENSOR, &b_value, 0};
static const ort_attr a_alpha = {"alpha", ORT_ATTR_FLOAT, &slope, sizeof slope};
static const ort_attr a_tanh = {"approximate", ORT_ATTR_STRING, "tanh", 5};
static const ort_attr a_perm = {"perm", ORT_ATTR_INTS, turn, sizeof turn};
static const ort_attr a_floats = {"value_floats", ORT_ATTR_FLOATS, &half, sizeof half};
static const ort_attr a_strings = {"value_strings", ORT_ATTR_STRINGS, "one\0two", 8};
static const ort_attr a_axis = {"axis", ORT_ATTR_INT, &one, sizeof one};
static const ort_attr a_then = {"then_branch", ORT_ATTR_GRAPH, NULL, 0};
static const ort_attr a_else = {"else_branch", ORT_ATTR_GRAPH, NULL, 0};

#define NODE(of, ...) static ort_node of = {#of, __VA_ARGS__}
NODE(n_matmul, "MatMul", "", {&v_x, &v_w}, {&v_p}, .n_in = 2, .n_out = 1);
NODE(n_bias, "Constant", "", .out = {&v_b}, .attrs = {&a_value}, .n_out = 1, .n_attrs = 1);
NODE(n_add, "Add", "", {&v_p, &v_b}, {&v_q}, .n_in = 2, .n_out = 1);
NODE(n_leaky, "LeakyRelu", "", {&v_q}, {&v_r}, {&a_alpha}, .n_in = 1, .n_out = 1, .n_attrs = 1);
NODE(n_gelu, "Gelu", "", {&v_r}, {&v_g}, {&a_tanh}, .n_in = 1, .n_out = 1, .n_attrs = 1);
NODE(n_then, "Add", "", {&v_g, &v_k}, {&v_in_then}, .n_in = 2, .n_out = 1);
NODE(n_else, "Identity", "", {&v_g}, {&v_in_else}, .n_in = 1, .n_out = 1);
static ort_graph then_graph = {.out = {&v_in_then},
                               .initializers = {&v_k},
                               .nodes = {&n_then},
                               .n_out = 1,
                               .n_initializers = 1,
                               .n_nodes = 1};
static ort_graph else_graph = {.out = {&v_in_else}, .nodes = {&n_else}, .n_out = 1, .n_nodes = 1};
NODE(n_if, "If", "", {&v_c}, {&v_v}, {&a_then, &a_else}, {&then_graph, &else_graph},
     {"then_branch", "else_branch"}, .n_in = 1, .n_out = 1, .n_attrs = 2, .n_bodies = 2);
NODE(n_turn, "Transpose", "", {&v_v}, {&v_t}, {&a_perm}, .n_in = 1, .n_out = 1, .n_attrs = 1);
NODE(n_back, "Transpose", "", {&v_t}, {&v_u}, {&a_perm}, .n_in = 1, .n_out = 1, .n_attrs = 1);
NODE(n_half, "Constant", "", .out = {&v_h}, .attrs = {&a_floats}, .n_out = 1, .n_attrs = 1);
NODE(n_text, "Constant", "", .out = {&v_s}, .attrs = {&a_strings}, .n_out = 1, .n_attrs = 1);
NODE(n_mul, "Mul", "", {&v_u, &v_h}, {&v_m}, .n_in = 2, .n_out = 1);
NODE(n_end, "Add", "", {&v_m, &v_e}, {&v_z}, .n_in = 2, .n_out = 1);
NODE(n_flat, "Flatten", "", {&v_z}, {&v_y}, {&a_axis}, .n_in = 1, .n_out = 1, .n_attrs = 1);
static ort_graph graph = {.in = {&v_x, &v_w, &v_c, &v_e},
                          .out = {&v_y},
                          .initializers = {&v_w, &v_c, &v_e},
                          .nodes = {&n_matmul, &n_bias, &n_add, &n_leaky, &n_gelu, &n_if, &n_turn,
                                    &n_back, &n_half, &n_text, &n_mul, &n_end, &n_flat},
                          .n_in = 4,
                          .n_out = 1,
                          .n_initializers = 3,
                          .n_nodes = 13,
                          .path = ""};
NODE(n_fused, "Fused", "", {&v_x, &v_w, &v_c, &v_e}, {&v_y}, .n_in = 4, .n_out = 1);

static void fill_weights(void) {
  for (int i = 0; i < WIDTH * WIDTH; ++i)
    w[i] = (float)((i * 37 + 11) % 101 - 50) / 500.0f;
  for (int i = 0; i < WIDTH; ++i) {
    b[i] = (float)(i % 7 - 3) / 10.0f;
    k[i] = (float)(i % 5) / 4.0f;
    e[i] = (float)(i % 3) - 1.0f;
  }
}

static void expect_result(const float *x, int rows, const ort_value *y) {
  float want[ROWS * WIDTH];
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < WIDTH; ++c) {
      double sum = b[c];
      for (int i = 0; i < WIDTH; ++i)
        sum += (double)x[r * WIDTH + i] * w[i * WIDTH + c];
      sum = sum < 0 ? sum * slope : sum;
      sum = 0.5 * sum * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
      want[r * WIDTH + c] = (float)((sum + k[c]) * half + e[c]);
    }
  }
  OPI_ASSERT_INT(y->rank, 2);
  OPI_ASSERT_INT(y->shape[0], rows);
  if (OPI_ASSERT(y->data != NULL && y->n_bytes == (size_t)rows * WIDTH * sizeof(float)))
    OPI_ASSERT_CLOSE(y->data, want, (size_t)rows * WIDTH, FLOAT, 1e-5);
}

/* ---- the adapter ---- */

typedef struct adapter {
  ort_ep_factory *factory;
  ort_ep *ep;
  ort_compute *compute;
  void *state;
  ort_support support;
  ort_status *status;
  ort_status *(*release)(ort_ep_factory *self);
} adapter;

typedef ort_status *(*create_fn)(const char *name, const ort_api_base *base,
                                 const ort_logger *logger, ort_ep_factory **factories, size_t room,
                                 size_t *out_n);

static bool load(adapter *a) {
  create_fn create = NULL;
  size_t n = 0;
  memset(a, 0, sizeof *a);
  double_log[0] = '\0';
  double_fill();
  fill_weights();
  void *library = dlopen(opi_test_build("lib/libopipe-ort-ep.so"), RTLD_NOW | RTLD_LOCAL);
  OPI_ASSERT_FATAL(library != NULL);
  *(void **)&create = dlsym(library, "CreateEpFactories");
  *(void **)&a->release = dlsym(library, "ReleaseEpFactory");
  OPI_ASSERT_FATAL(create != NULL && a->release != NULL);
  a->status = create("any", &double_base, NULL, &a->factory, 4, &n);
  return OPI_ASSERT(a->status == NULL && n == 1);
}

#define OPTION "ep.onnxpipeexecutionprovider."
static ort_options with(const char *key, const char *value) {
  static char library[512];
  (void)snprintf(library, sizeof library, "%s", opi_test_build("lib/libonnxpipe.so"));
  return (ort_options){{OPTION "library", key}, {library, value}, key == NULL ? 1 : 2};
}

static bool open_ep(adapter *a, const ort_options *options) {
  a->status = a->factory->create_ep(a->factory, NULL, NULL, 0, options, NULL, &a->ep);
  return a->status == NULL;
}

/* Claimed and compiled. */
static bool compile(adapter *a) {
  const ort_graph *graphs[] = {&graph};
  const ort_node *fused[] = {&n_fused};
  a->status = a->ep->get_capability(a->ep, &graph, &a->support);
  if (a->status == NULL)
    a->status = a->ep->compile(a->ep, graphs, fused, 1, &a->compute, NULL);
  if (a->status == NULL)
    a->status = a->compute->create_state(a->compute, NULL, &a->state);
  return a->status == NULL;
}

static void close_adapter(adapter *a) {
  if (a->status != NULL)
    do_ReleaseStatus(a->status);
  if (a->compute != NULL) {
    a->compute->release_state(a->compute, a->state);
    a->ep->release_computes(a->ep, &a->compute, 1);
  }
  if (a->ep != NULL)
    a->factory->release_ep(a->factory, a->ep);
  OPI_ASSERT(a->release(a->factory) == NULL);
  OPI_ASSERT_INT(double_live, 0); /* whatever was asked of ORT was given back */
  double_live = 0;
}

static ort_status *run(const adapter *a, const float *x, int64_t rows, const ort_value *weights,
                       ort_kernel *call) {
  const ort_value input = {.dtype = FLOAT,
                           .rank = 2,
                           .n_bytes = (size_t)rows * WIDTH * sizeof(float),
                           .shape = {rows, WIDTH},
                           .data = (void *)(uintptr_t)x};
  call->in[0] = &input;
  call->in[1] = weights;
  call->in[2] = &c_value;
  call->in[3] = &e_value;
  return a->compute->compute(a->compute, a->state, call);
}

static void fill_input(float *x, int seed) {
  for (int i = 0; i < ROWS * WIDTH; ++i)
    x[i] = (float)((i * 13 + seed * 29) % 17 - 8) / 4.0f;
}

/* ---- tests ---- */

static void test_results_are_right(void) {
  const int cpu = ORT_DEVICE_CPU, gpu = 1;
  const ort_device *devices[] = {(const ort_device *)(const void *)&gpu,
                                 (const ort_device *)(const void *)&cpu};
  const char *file = opi_test_build("tests/ort_e.bin");
  const ort_options options = with(OPTION "stages", "2");
  float x[ROWS * WIDTH];
  ort_ep_device *offered[4];
  size_t n = 0;
  adapter a;
  if (!load(&a))
    return;
  FILE *out = fopen(file, "wb");
  OPI_ASSERT_FATAL(out != NULL && fseek(out, 64, SEEK_SET) == 0);
  OPI_ASSERT(fwrite(e, 1, sizeof e, out) == sizeof e && fclose(out) == 0);
  graph.path = opi_test_build("tests/model.onnx"); /* need not be there */
  v_e.file = "ort_e.bin", v_e.offset = 64;
  OPI_ASSERT(a.factory->get_devices(a.factory, devices, 2, offered, 4, &n) == NULL);
  OPI_ASSERT_INT(n, 1);
  if (OPI_ASSERT(open_ep(&a, &options)) && OPI_ASSERT(compile(&a))) {
    OPI_ASSERT_INT(a.support.n_sets, 1);
    OPI_ASSERT_INT(a.support.n_nodes, graph.n_nodes);
    OPI_ASSERT(!a.support.drops); /* w is lent: ORT must keep it */
    for (int rows = 1; rows <= ROWS; rows += 2) {
      ort_kernel call = {.refuses = false};
      fill_input(x, rows);
      a.status = run(&a, x, rows, &w_value, &call);
      OPI_ASSERT_FATAL(a.status == NULL);
      expect_result(x, rows, &call.out[0]);
      free(call.out[0].data);
    }
  }
  if (a.status != NULL)
    OPI_FAIL("%s", do_GetErrorMessage(a.status));
  OPI_ASSERT(double_ep_calls[ORT_AT_CreateEpDevice] == 1);
  close_adapter(&a);
  graph.path = "", v_e.file = NULL;
  (void)unlink(file);
}

static void test_bodies_are_left_alone(void) {
  const ort_options options = with(NULL, NULL);
  adapter a;
  if (!load(&a) || !OPI_ASSERT(open_ep(&a, &options)))
    return;
  then_graph.parent = &n_if;
  OPI_ASSERT(a.ep->get_capability(a.ep, &then_graph, &a.support) == NULL);
  OPI_ASSERT_INT(a.support.n_sets, 0);
  then_graph.parent = NULL;
  close_adapter(&a);
}

static void test_nodes_that_we_lack_stay_and_are_named(void) {
  for (int parts = 0; parts < 2; ++parts) {
    const ort_options options = with(OPTION "partition", parts ? "auto" : "whole");
    adapter a;
    if (!load(&a) || !OPI_ASSERT(open_ep(&a, &options)))
      return;
    n_leaky.op = "Unheard";
    OPI_ASSERT(a.ep->get_capability(a.ep, &graph, &a.support) == NULL);
    OPI_ASSERT(strstr(double_log, "n_leaky") != NULL && strstr(double_log, "Unheard") != NULL);
    OPI_ASSERT_INT(a.support.n_sets, parts ? 2 : 0);
    OPI_ASSERT_INT(a.support.n_nodes, parts ? 9 : 0); /* nor strings, nor bodies, nor one alone */
    OPI_ASSERT(!parts || strstr(double_log, "n_if") != NULL);
    n_leaky.op = "LeakyRelu";
    close_adapter(&a);
  }
}

/* Values that a set reads must have a rank, or no session could be made of it. */
static void test_sets_that_read_what_has_no_rank_stay(void) {
  const ort_options options = with(OPTION "partition", "auto");
  adapter a;
  if (!load(&a) || !OPI_ASSERT(open_ep(&a, &options)))
    return;
  n_leaky.op = "Unheard";
  v_v.rank = 0;
  OPI_ASSERT(a.ep->get_capability(a.ep, &graph, &a.support) == NULL);
  OPI_ASSERT(strstr(double_log, "the rank of 'v' is not known") != NULL);
  OPI_ASSERT_INT(a.support.n_sets, 1);
  n_leaky.op = "LeakyRelu";
  v_v.rank = 2;
  close_adapter(&a);
}

static void expect_refused(const char *key, const char *value, const char *part) {
  const ort_options options = with(key, value);
  adapter a;
  if (!load(&a))
    return;
  if (open_ep(&a, &options))
    (void)compile(&a);
  const char *text = a.status == NULL ? "it was accepted" : a.status->text;
  opi_test_check(strstr(text, part) != NULL, __FILE__, __LINE__, false, "%s=%s: %s", key, value,
                 text);
  close_adapter(&a);
}

static void test_what_cannot_be_is_refused_with_its_reason(void) {
  expect_refused(OPTION "stages", "many", "stages=many is no number");
  expect_refused(OPTION "memory", "1 parsec", "no size such as");
  expect_refused(OPTION "memory", "20KiB", "exceeds its cap");
  expect_refused(OPTION "weights", "borrowed", "known are lent and copy");
  expect_refused(OPTION "plan", "/no/such/plan", "/no/such/plan");
  expect_refused(OPTION "bind", "batch", "'batch' is no dim=number");
  expect_refused(OPTION "bind", "nobody=3", "nobody");
  expect_refused(OPTION "schedule", "nosuch", "nosuch");
  expect_refused(OPTION "team", "any", "option team: ONNX Runtime runs its own part of a graph");
}

static void test_runs_that_fail_say_why(void) {
  const ort_options options = with(OPTION "stages", "2");
  float x[ROWS * WIDTH], other[WIDTH * WIDTH] = {0};
  ort_value moved = w_value;
  ort_kernel call = {.refuses = true};
  adapter a;
  if (!load(&a) || !OPI_ASSERT(open_ep(&a, &options)) || !OPI_ASSERT(compile(&a)))
    return;
  fill_input(x, 1);
  moved.data = other; /* before the first run: then nothing may be read from there */
  ort_status *status = run(&a, x, 2, &moved, &call);
  OPI_ASSERT_FATAL(status != NULL);
  OPI_ASSERT(strstr(status->text, "'w'") != NULL && strstr(status->text, "weights=copy") != NULL);
  do_ReleaseStatus(status);
  status = run(&a, x, 2, &w_value, &call);
  OPI_ASSERT_FATAL(status != NULL);
  OPI_ASSERT_STR(status->text, "no room for an output");
  do_ReleaseStatus(status);
  call.refuses = false;
  v_x.dtype = FLOAT;
  const ort_value wrong = {.dtype = 7, .rank = 2, .shape = {1, WIDTH}, .data = x};
  call.in[0] = &wrong;
  status = a.compute->compute(a.compute, a.state, &call);
  OPI_ASSERT_FATAL(status != NULL);
  OPI_ASSERT(strstr(status->text, "'x' is of ONNX type 7") != NULL);
  do_ReleaseStatus(status);
  OPI_ASSERT(run(&a, x, 3, &w_value, &call) == NULL); /* the session is as good as before */
  expect_result(x, 3, &call.out[0]);
  free(call.out[0].data);
  close_adapter(&a);
}

static void test_copied_weights_may_go(void) {
  const ort_options options = with(OPTION "weights", "copy");
  float x[ROWS * WIDTH], kept[WIDTH * WIDTH];
  ort_kernel call = {.refuses = false};
  adapter a;
  if (!load(&a) || !OPI_ASSERT(open_ep(&a, &options)) || !OPI_ASSERT(compile(&a)))
    return;
  OPI_ASSERT(a.support.drops);
  fill_input(x, 4);
  memcpy(kept, w, sizeof w);
  memset(w, 0xff, sizeof w);
  ort_status *status = run(&a, x, ROWS, NULL, &call);
  memcpy(w, kept, sizeof w);
  OPI_ASSERT_FATAL(status == NULL);
  expect_result(x, ROWS, &call.out[0]);
  free(call.out[0].data);
  close_adapter(&a);
}

/* ---- weights that ORT has transposed ---- */

enum { DEEP = 160 };
static float file_h[DEEP * WIDTH], own_h[WIDTH * DEEP];
static const ort_value file_h_value = {
    .dtype = FLOAT, .rank = 2, .n_bytes = sizeof file_h, .shape = {DEEP, WIDTH}, .data = file_h};
static const ort_value own_h_value = {
    .dtype = FLOAT, .rank = 2, .n_bytes = sizeof own_h, .shape = {WIDTH, DEEP}, .data = own_h};
static ort_value_info v_original = {.name = "original",
                                    .dtype = FLOAT,
                                    .rank = 2,
                                    .shape = {DEEP, WIDTH},
                                    .content = &file_h_value,
                                    .file = "ort_h.bin",
                                    .offset = 4096};
static ort_value_info v_turned = {
    .name = "turned", .dtype = FLOAT, .rank = 2, .shape = {WIDTH, DEEP}, .content = &own_h_value};
static ort_value_info v_deep = {.name = "deep", .dtype = FLOAT, .rank = 2, .shape = {-1, DEEP}};
NODE(n_up, "MatMul", "", {&v_x, &v_turned}, {&v_deep}, .n_in = 2, .n_out = 1);
NODE(n_down, "MatMul", "", {&v_deep, &v_original}, {&v_y}, .n_in = 2, .n_out = 1);
static ort_graph tied = {.in = {&v_x},
                         .out = {&v_y},
                         .initializers = {&v_original, &v_turned},
                         .nodes = {&n_up, &n_down},
                         .n_in = 1,
                         .n_out = 1,
                         .n_initializers = 2,
                         .n_nodes = 2};
NODE(n_tied, "Fused", "", {&v_x}, {&v_y}, .n_in = 1, .n_out = 1);

/* y = x turned original */
static void expect_tied(const float *x, const ort_value *y) {
  float deep[DEEP], want[WIDTH];
  for (int d = 0; d < DEEP; ++d) {
    double sum = 0;
    for (int i = 0; i < WIDTH; ++i)
      sum += (double)x[i] * file_h[d * WIDTH + i];
    deep[d] = (float)sum;
  }
  for (int c = 0; c < WIDTH; ++c) {
    double sum = 0;
    for (int d = 0; d < DEEP; ++d)
      sum += (double)deep[d] * file_h[d * WIDTH + c];
    want[c] = (float)sum;
  }
  OPI_ASSERT_CLOSE(y->data, want, WIDTH, FLOAT, 1e-5);
}

static bool write_original(const char *path) {
  for (int i = 0; i < DEEP * WIDTH; ++i) {
    file_h[i] = (float)((i * 41 + 7) % 89 - 44) / 400.0f;
    own_h[i % WIDTH * DEEP + i / WIDTH] = file_h[i];
  }
  FILE *out = fopen(path, "wb");
  return OPI_ASSERT(out != NULL && fseek(out, 4096, SEEK_SET) == 0 &&
                    fwrite(file_h, 1, sizeof file_h, out) == sizeof file_h && fclose(out) == 0);
}

/* Found by all of its content: then ORT may drop it, and has when its kernels are made. */
static void test_what_ort_transposed_is_read_from_its_file(void) {
  const char *file = opi_test_build("tests/ort_h.bin");
  const ort_options options = with(OPTION "stages", "2");
  const ort_graph *graphs[] = {&tied};
  const ort_node *fused[] = {&n_tied};
  float x[ROWS * WIDTH];
  tied.path = opi_test_build("tests/model.onnx");
  for (int other = 0; other < 2; ++other) {
    ort_kernel call = {.refuses = false};
    adapter a;
    if (!load(&a) || !write_original(file) || !OPI_ASSERT(open_ep(&a, &options)))
      return;
    own_h[WIDTH * DEEP - 1] += (float)other;
    OPI_ASSERT(a.ep->get_capability(a.ep, &tied, &a.support) == NULL);
    OPI_ASSERT_INT(a.support.n_nodes, 2);
    OPI_ASSERT(a.support.drops == (other == 0)); /* one number is another: lent, as any */
    if (other == 0) {
      OPI_ASSERT_FATAL(a.ep->compile(a.ep, graphs, fused, 1, &a.compute, NULL) == NULL);
      memset(own_h, 0xff, sizeof own_h);
      OPI_ASSERT_FATAL(a.compute->create_state(a.compute, NULL, &a.state) == NULL);
      fill_input(x, 2);
      a.status = run(&a, x, 1, NULL, &call);
      if (OPI_ASSERT(a.status == NULL))
        expect_tied(x, &call.out[0]);
      free(call.out[0].data);
    }
    close_adapter(&a);
  }
  (void)unlink(file);
}

static int count_threads(void) {
  int n = 0;
  DIR *tasks = opendir("/proc/self/task");
  OPI_ASSERT_FATAL(tasks != NULL);
  while (readdir(tasks) != NULL)
    ++n;
  (void)closedir(tasks);
  return n;
}

/* With nothing lent weights wait for that; what is lent is read while it is sure to be there. */
static void test_sessions_open_when_ort_has_let_go(void) {
  const ort_graph *graphs[] = {&graph};
  const ort_node *fused[] = {&n_fused};
  for (int copies = 0; copies < 2; ++copies) {
    const ort_options options = with(OPTION "weights", copies ? "copy" : "lent");
    adapter a;
    if (!load(&a) || !OPI_ASSERT(open_ep(&a, &options)))
      return;
    OPI_ASSERT(a.ep->get_capability(a.ep, &graph, &a.support) == NULL);
    const int before = count_threads();
    OPI_ASSERT_FATAL(a.ep->compile(a.ep, graphs, fused, 1, &a.compute, NULL) == NULL);
    OPI_ASSERT((count_threads() > before) == !copies);
    OPI_ASSERT(a.compute->create_state(a.compute, NULL, &a.state) == NULL);
    OPI_ASSERT(count_threads() > before);
    close_adapter(&a);
  }
}

/* ---- the end of runs ---- */

/* A run of so many rows that it is waited for more than once. */
static ort_status *run_long(const adapter *a, const ort_run_options *how) {
  enum { MANY = 120000 };
  float *x = calloc((size_t)MANY * WIDTH, sizeof *x);
  ort_kernel call = {.refuses = false};
  OPI_ASSERT_FATAL(x != NULL);
  OPI_ASSERT(a->ep->on_run_start(a->ep, how) == NULL);
  ort_status *status = run(a, x, MANY, &w_value, &call);
  OPI_ASSERT(a->ep->on_run_end(a->ep, how, false) == NULL);
  free(call.out[0].data);
  free(x);
  return status;
}

static void test_terminate_ends_a_run_that_is_under_way(void) {
  const ort_options options = with(OPTION "stages", "3");
  const ort_run_options goes_on = {false}, ends = {true};
  for (int blind = 0; blind < 2; ++blind) {
    adapter a;
    if (!load(&a) || !OPI_ASSERT(open_ep(&a, &options)) || !OPI_ASSERT(compile(&a)))
      return;
    double_has_no_sessions = blind == 1;
    ort_status *status = run_long(&a, &ends);
    if (OPI_ASSERT((status != NULL) == !blind) && status != NULL) {
      OPI_ASSERT(strstr(status->text, "terminate") != NULL);
      do_ReleaseStatus(status);
    }
    OPI_ASSERT(!blind || strstr(double_log, "cannot see RunOptions.terminate") != NULL);
    OPI_ASSERT(run_long(&a, &goes_on) == NULL);
    OPI_ASSERT(run_long(&a, NULL) == NULL); /* ORT did not say */
    double_has_no_sessions = false;
    close_adapter(&a);
  }
}

/* ---- threads ---- */

typedef struct caller {
  const adapter *a;
  int seed, n_bad;
  pthread_t thread;
} caller;

static void *call_often(void *arg) {
  caller *c = arg;
  float x[ROWS * WIDTH], first[ROWS * WIDTH];
  fill_input(x, c->seed);
  for (int i = 0; i < 40; ++i) {
    ort_kernel call = {.refuses = false};
    ort_status *status = run(c->a, x, 1 + (i + c->seed) % ROWS, &w_value, &call);
    if (i == 0 && status == NULL)
      memcpy(first, call.out[0].data, WIDTH * sizeof(float));
    /* the first row has the same bits however many there are */
    c->n_bad += status != NULL || memcmp(first, call.out[0].data, WIDTH * sizeof(float)) != 0;
    if (status != NULL)
      do_ReleaseStatus(status);
    free(call.out[0].data);
  }
  return NULL;
}

static void test_many_threads_stream_through(void) {
  const ort_options options = with(OPTION "stages", "3");
  caller callers[8];
  adapter a;
  if (!load(&a) || !OPI_ASSERT(open_ep(&a, &options)) || !OPI_ASSERT(compile(&a)))
    return;
  for (int i = 0; i < 8; ++i) {
    callers[i] = (caller){.a = &a, .seed = i};
    OPI_ASSERT_FATAL(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]) == 0);
  }
  for (int i = 0; i < 8; ++i) {
    OPI_ASSERT_INT(pthread_join(callers[i].thread, NULL), 0);
    OPI_ASSERT_INT(callers[i].n_bad, 0);
  }
  close_adapter(&a);
}

/* ---- versions ---- */

static void test_tables_are_asked_for_by_what_both_know(void) {
  static const struct {
    const char *version;
    uint32_t asked;
  } cases[] = {{"1.23.2", 23}, {"1.29.0", 29}, {"1.99.1", ORT_KNOWN}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    adapter a;
    double_version = cases[i].version;
    if (!load(&a))
      return;
    OPI_ASSERT_INT(double_asked, cases[i].asked);
    OPI_ASSERT_INT(a.factory->version, cases[i].asked);
    close_adapter(&a);
  }
  double_version = "1.29.4";
}

/* Last: what all tests before have called. */
static void test_every_slot_was_used(void) {
#define USED(of, index, ...) \
  opi_test_check(double_calls[index] != 0, __FILE__, __LINE__, false, "slot %s is not used", #of);
  ORT_API_SLOTS(USED)
  OPI_ASSERT(double_ep_calls[ORT_AT_CreateEpDevice] != 0);
  OPI_ASSERT(double_ep_calls[ORT_AT_EpGraphSupportInfo_AddNodesToFuse] != 0);
}

OPI_TEST_MAIN("host-onnxruntime", OPI_TEST(test_results_are_right),
              OPI_TEST(test_bodies_are_left_alone),
              OPI_TEST(test_nodes_that_we_lack_stay_and_are_named),
              OPI_TEST(test_sets_that_read_what_has_no_rank_stay),
              OPI_TEST(test_what_cannot_be_is_refused_with_its_reason),
              OPI_TEST(test_runs_that_fail_say_why), OPI_TEST(test_copied_weights_may_go),
              OPI_TEST(test_what_ort_transposed_is_read_from_its_file),
              OPI_TEST(test_sessions_open_when_ort_has_let_go),
              OPI_TEST(test_terminate_ends_a_run_that_is_under_way),
              OPI_TEST(test_many_threads_stream_through),
              OPI_TEST(test_tables_are_asked_for_by_what_both_know),
              OPI_TEST(test_every_slot_was_used))
