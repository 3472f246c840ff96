/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a host are accepted, or refused at once: elements of complex numbers, strides that
 * reach too far and strides that say nothing, ranks in sessions that no transport joins, files of
 * plans of models bound for training.
 */
#include <stdlib.h>
#include <time.h>

#include "tests/abi/host_kit.h"

#define GPT "tests/data/gpt_8block/model.onnx"
static const int64_t ids[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int64_t shape[2] = {2, 8};

/* ---- complex numbers ---- */

/* y = Identity(Transpose(x)), [2, 3] -> [3, 2], in two stages. */
static void open_moves(host_kit *k, uint32_t dtype) {
  static const int64_t in_shape[2] = {2, 3};
  static const char *const x[] = {"x"}, *const t[] = {"t"}, *const y[] = {"y"};
  opipe_build_value input = {.name = "x"}, output = {.name = "y"};
  opipe_build_node nodes[2] = {{.op = "Transpose"}, {.op = "Identity"}};
  opipe_build_graph graph = opipe_build_graph_init();
  opipe_build_opset opset = {.domain = NULL, .version = 21};
  opipe_build_params build = opipe_build_params_init();
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_plan_params params = opipe_plan_params_init();
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  input.shape = in_shape, input.rank = 2, input.dtype = dtype;
  output.rank = -1;
  nodes[0].inputs = x, nodes[0].outputs = t;
  nodes[1].inputs = t, nodes[1].outputs = y;
  nodes[0].n_inputs = nodes[0].n_outputs = nodes[1].n_inputs = nodes[1].n_outputs = 1;
  graph.inputs = &input, graph.n_inputs = 1, graph.outputs = &output, graph.n_outputs = 1;
  graph.nodes = nodes, graph.n_nodes = 2;
  build.graph = &graph, build.opsets = &opset, build.n_opsets = 1;
  params.n_stages = 2;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_build(k->context, &build, &k->model, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_bind(k->model, &bind, &k->bound, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_make(k->bound, &params, &k->plan, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, NULL), &k->err);
}

static void test_complex_numbers_pass(void) {
  static const int64_t in_shape[2] = {2, 3};
  for (uint32_t wide = 0; wide < 2; ++wide) {
    host_kit k;
    double numbers[12], moved[12];
    opipe_request *request = NULL;
    opipe_tensor out;
    const size_t n_bytes = wide != 0 ? 16 : 8;
    char *bytes = (char *)numbers;
    open_moves(&k, wide != 0 ? OPIPE_COMPLEX128 : OPIPE_COMPLEX64);
    for (size_t i = 0; i < sizeof numbers; ++i)
      bytes[i] = (char)(i * 7 + 1);
    const opipe_binding_io input = {
        .name = "x",
        .tensor = {.data = numbers,
                   .device_type = OPIPE_DL_CPU,
                   .rank = 2,
                   .dtype = {OPIPE_DL_COMPLEX, (uint8_t)(8 * n_bytes), 1},
                   .shape = in_shape}};
    OPI_ASSERT_OK_FATAL(kit_submit(&k, &input, &request), &k.err);
    OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->request_output(request, 0, &out, &k.err), &k.err);
    OPI_ASSERT(out.dtype.code == OPIPE_DL_COMPLEX && out.dtype.bits == 8 * n_bytes);
    for (size_t i = 0; i < 6; ++i)
      memcpy((char *)moved + i * n_bytes, bytes + (i % 2 * 3 + i / 2) * n_bytes, n_bytes);
    OPI_ASSERT(memcmp(out.data, moved, 6 * n_bytes) == 0);
    k.api->request_release(request);
    kit_close(&k);
  }
}

/* ---- strides, lanes ---- */

static void test_strides_that_reach_too_far(void) {
  static const int64_t far[][2] = {{INT64_MAX / 2, 1},
                                   {INT64_MIN, 1},
                                   {INT64_MAX, INT64_MAX},
                                   {8, INT64_MAX / 8},
                                   {INT64_C(1) << 58, 1}};
  host_kit k;
  opipe_request *request = NULL;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 2, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  opipe_binding_io input = kit_ids(ids, shape);
  for (size_t i = 0; i < sizeof far / sizeof far[0]; ++i) {
    input.tensor.strides = far[i];
    OPI_ASSERT_ERROR(kit_submit(&k, &input, &request), OPIPE_E_INVALID, &k.err,
                     "input 'input_ids': with stride ");
  }
  input.tensor.strides = NULL;
  input.tensor.dtype.lanes = 2;
  OPI_ASSERT_ERROR(kit_submit(&k, &input, &request), OPIPE_E_INVALID, &k.err, "64 bits, 2 lanes");
  kit_close(&k);
}

/* The logits of one row of 8, or of two rows of 1, whose axis of one element has `stride`. */
static void run_with(host_kit *k, const int64_t rows_and_tokens[2], const int64_t *strides,
                     float *out, size_t n) {
  opipe_request *request = NULL;
  opipe_tensor logits;
  opipe_binding_io input = kit_ids(ids, rows_and_tokens);
  input.tensor.strides = strides;
  OPI_ASSERT_OK_FATAL(kit_submit(k, &input, &request), &k->err);
  OPI_ASSERT_OK(k->api->request_wait(request, UINT64_MAX, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->request_output(request, 0, &logits, &k->err), &k->err);
  memcpy(out, logits.data, n * sizeof *out);
  k->api->request_release(request);
}

static void bind_pinned(host_kit *k, const int64_t *rows_and_tokens, const int64_t *strides) {
  const opipe_dim dims[] = {{"batch", 1}, {"seq", 8}};
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_pin pin = {.input = "input_ids", .value = kit_ids(ids, rows_and_tokens).tensor};
  opipe_model *bound = NULL;
  pin.value.strides = strides;
  bind.dims = dims, bind.n_dims = 2;
  bind.pins = &pin, bind.n_pins = 1;
  OPI_ASSERT_OK(k->api->model_bind(k->model, &bind, &bound, &k->err), &k->err);
  k->api->model_destroy(bound);
}

/* As in DLPack: nobody steps along such an axis, so its stride says nothing. */
static void test_strides_of_axes_of_one_element(void) {
  static const int64_t any[] = {INT64_MAX, INT64_MIN, INT64_C(1) << 61, -1, 0, 8};
  static const int64_t row[2] = {1, 8}, column[2] = {2, 1};
  enum { FEW = 64 };
  host_kit k;
  float want[2][FEW], got[FEW];
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 2, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  run_with(&k, row, NULL, want[0], FEW);
  run_with(&k, column, NULL, want[1], FEW);
  for (size_t i = 0; i < sizeof any / sizeof any[0]; ++i) {
    const int64_t of_row[2] = {any[i], 1}, of_column[2] = {1, any[i]};
    run_with(&k, row, of_row, got, FEW);
    OPI_ASSERT_BITS(got, want[0], FEW, OPIPE_FLOAT);
    run_with(&k, column, of_column, got, FEW);
    OPI_ASSERT_BITS(got, want[1], FEW, OPIPE_FLOAT);
    bind_pinned(&k, row, of_row);
  }
  kit_close(&k);
}

/* ---- sessions that nothing joins ---- */

static void test_ranks_that_nothing_joins(void) {
  static const char *const transports[] = {"local", "emulated", "emulated:setup_us=1000"};
  const uint32_t first = 0;
  const opipe_session_params one = {
      .struct_size = sizeof one, .local_ranks = &first, .n_local_ranks = 1};
  const opipe_device_description away[2] = {
      {.alignment = 64, .domain = 1, .flops = 1e10, .bandwidth = 1e10, .max_threads = 1},
      {.alignment = 64, .domain = 2, .flops = 1e10, .bandwidth = 1e10, .max_threads = 1}};
  const opipe_device_choice devices[2] = {{.kind = "cpu", .threads = 1},
                                          {.kind = "cpu", .threads = 1}};
  for (size_t i = 0; i < sizeof transports / sizeof transports[0]; ++i) {
    host_kit k;
    opipe_plan_params params = opipe_plan_params_init();
    params.n_stages = 2;
    params.transport = transports[i];
    params.devices = devices, params.n_devices = 2;
    params.descriptions = away, params.n_descriptions = 2;
    OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 2, 8, &params), &k.err);
    const time_t before = time(NULL);
    OPI_ASSERT_ERROR(kit_open(&k, &one), OPIPE_E_UNSUPPORTED, &k.err,
                     "joins the ranks of one session: rank 0 is in this one, and its peer, rank 1");
    OPI_ASSERT(time(NULL) - before < 20); /* not after the watchdog's minute */
    kit_close(&k);
  }
}

/* ---- files of plans ---- */

static void write_and_read(uint32_t flags) {
  host_kit k;
  opi_test_text file = {.data = NULL}, again = {.data = NULL};
  opipe_plan *plan = NULL;
  const opipe_plan_params two = {.struct_size = sizeof two, .n_stages = 2};
  OPI_ASSERT_OK_FATAL(kit_plan_bound(&k, NULL, GPT, 2, 8, OPIPE_BIND_DEFAULTS | flags, &two),
                      &k.err);
  OPI_ASSERT_OK(k.api->plan_write(k.plan, opi_test_take, &file, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_read(k.model, file.data, file.n, &plan, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->plan_write(plan, opi_test_take, &again, &k.err), &k.err);
  OPI_ASSERT(file.n == again.n && memcmp(file.data, again.data, file.n) == 0);
  free(file.data);
  free(again.data);
  k.api->plan_destroy(plan);
  kit_close(&k);
}

/* A plan for requests of a model that was bound for training is read as it was. */
static void test_plans_of_models_bound_for_training(void) {
  write_and_read(0);
  write_and_read(OPIPE_BIND_TRAIN);
  write_and_read(OPIPE_BIND_TRAIN | OPIPE_BIND_NO_FUSE);
}

OPI_TEST_MAIN("values that a host gives", OPI_TEST(test_complex_numbers_pass),
              OPI_TEST(test_strides_that_reach_too_far),
              OPI_TEST(test_strides_of_axes_of_one_element),
              OPI_TEST(test_ranks_that_nothing_joins),
              OPI_TEST(test_plans_of_models_bound_for_training))
