/* SPDX-License-Identifier: Apache-2.0 */
/* A host that has its own graph: built from tables, lent its content, a model has the bits of its
 * file, uncut and cut, trained, saved and written; lent bytes are given back once; results go where
 * the host says when their shape is known. ctest: timeout=120
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/abi/host_kit.h"
#include "tests/loader/wire/tables.h"

#define GPT "tests/data/gpt_8block/model.onnx"
enum { BATCH = 2, SEQ = 8, CLASSES_MOST = 1 << 16, STEPS = 3 };
static const int64_t ids[BATCH * SEQ] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
static const int64_t ids_shape[2] = {BATCH, SEQ};

/* ---- models ---- */

/* A file's graph in memory of ours, as a host has it: `copies` are what is lent. */
typedef struct memory {
  opi_model *file;
  opi_arena arena, copies;
  opipe_build_params params;
  uint32_t n_released;
} memory;

static void released(void *ctx) {
  ++((memory *)ctx)->n_released;
}

static bool memory_open(memory *m, const char *path) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_load_params load = {.path = opi_test_source(path)};
  memset(m, 0, sizeof *m);
  opi_arena_init(&m->arena, opi_allocator_system(), 0);
  opi_arena_init(&m->copies, opi_allocator_system(), 0);
  if (!OPI_ASSERT_OK(opi_model_load(&load, &m->file, &err), &err) ||
      !OPI_ASSERT(tables_of(&m->arena, m->file, &m->params)))
    return false;
  opipe_build_tensor *t = (opipe_build_tensor *)(uintptr_t)m->params.graph->tensors;
  for (uint32_t i = 0; i < m->params.graph->n_tensors; ++i)
    t[i].data = opi_arena_copy(&m->copies, t[i].data, (size_t)t[i].n_bytes);
  m->params.on_release = released;
  m->params.release_ctx = m;
  return true;
}

/* Overwrites lent memory before it goes: anyone who still reads it computes something else. */
static void memory_close(memory *m) {
  for (uint32_t i = 0; i < m->params.graph->n_tensors; ++i) {
    const opipe_build_tensor *t = &m->params.graph->tensors[i];
    memset((void *)(uintptr_t)t->data, 0xff, (size_t)t->n_bytes);
  }
  opi_arena_release(&m->copies);
  opi_arena_release(&m->arena);
  opi_model_free(m->file);
}

/* k has context and model; bind, plan, session. */
static bool open_rest(host_kit *k, uint32_t flags, const opipe_plan_params *plan) {
  const opipe_dim dims[] = {{"batch", BATCH}, {"seq", SEQ}};
  opipe_bind_options bind = opipe_bind_options_init();
  bind.flags = flags;
  bind.dims = dims;
  bind.n_dims = 2;
  return OPI_ASSERT_OK(k->api->model_bind(k->model, &bind, &k->bound, &k->err), &k->err) &&
         OPI_ASSERT_OK(k->api->plan_make(k->bound, plan, &k->plan, &k->err), &k->err) &&
         OPI_ASSERT_OK(kit_open(k, NULL), &k->err);
}

static bool open_model(host_kit *k, const char *path, const opipe_build_params *build) {
  opipe_load_params load = opipe_load_params_init();
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  load.path = path;
  return OPI_ASSERT_OK(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err) &&
         OPI_ASSERT_OK(k->api->context_create(NULL, &k->context, &k->err), &k->err) &&
         OPI_ASSERT_OK(build == NULL ? k->api->model_load(k->context, &load, &k->model, &k->err)
                                     : k->api->model_build(k->context, build, &k->model, &k->err),
                       &k->err);
}

typedef struct answer {
  float *data;
  size_t n;
} answer;

static answer run(host_kit *k) {
  const opipe_binding_io in = kit_ids(ids, ids_shape);
  opipe_request *request = NULL;
  opipe_tensor out = {0};
  answer a = {NULL, 1};
  if (OPI_ASSERT_OK(kit_submit(k, &in, &request), &k->err) &&
      OPI_ASSERT_OK(k->api->request_wait(request, UINT64_MAX, &k->err), &k->err) &&
      OPI_ASSERT_OK(k->api->request_output(request, 0, &out, &k->err), &k->err)) {
    for (int32_t d = 0; d < out.rank; ++d)
      a.n *= (size_t)out.shape[d];
    a.data = malloc(a.n * sizeof(float));
    memcpy(a.data, out.data, a.n * sizeof(float));
  }
  k->api->request_release(request);
  return a;
}

static void expect_equal(answer a, answer b) {
  OPI_ASSERT_INT(a.n, b.n);
  if (OPI_ASSERT(a.data != NULL && b.data != NULL && a.n == b.n))
    OPI_ASSERT_BITS(a.data, b.data, a.n, OPIPE_FLOAT);
  free(b.data);
}

static opipe_plan_params stages(uint32_t n) {
  opipe_plan_params plan = opipe_plan_params_init();
  plan.n_stages = n;
  return plan;
}

static answer run_at(const char *path, const opipe_build_params *build, uint32_t n_stages) {
  host_kit k;
  answer a = {NULL, 0};
  const opipe_plan_params plan = stages(n_stages);
  if (open_model(&k, path, build) && open_rest(&k, 0, &plan))
    a = run(&k);
  kit_close(&k);
  return a;
}

static void test_built_models_have_the_bits_of_their_files(void) {
  for (uint32_t n = 1; n <= 3; ++n) {
    memory m;
    const answer file = run_at(opi_test_source(GPT), NULL, n);
    if (!memory_open(&m, GPT))
      return;
    expect_equal(file, run_at(NULL, &m.params, n));
    OPI_ASSERT_INT(m.n_released, 1);
    memory_close(&m);
    free(file.data);
  }
}

static void test_what_is_lent_is_given_back_once_and_last(void) {
  host_kit k;
  memory m;
  const opipe_plan_params plan = stages(2);
  if (!memory_open(&m, GPT))
    return;
  opipe_build_tensor *t = (opipe_build_tensor *)(uintptr_t)m.params.graph->tensors;
  if (!open_model(&k, NULL, &m.params) || !open_rest(&k, 0, &plan))
    return;
  opipe_model *other = NULL;
  --t[0].n_bytes;
  OPI_ASSERT_ERROR(k.api->model_build(k.context, &m.params, &other, &k.err), OPIPE_E_INVALID,
                   &k.err, t[0].name);
  ++t[0].n_bytes;
  OPI_ASSERT_INT(m.n_released, 0); /* a model that was not built borrows nothing */
  k.api->model_destroy(k.model);
  k.api->model_destroy(k.bound);
  k.api->plan_destroy(k.plan);
  k.model = k.bound = NULL;
  k.plan = NULL;
  OPI_ASSERT_INT(m.n_released, 0); /* the session needs it */
  free(run(&k).data);
  k.api->session_close(k.session);
  k.session = NULL;
  OPI_ASSERT_INT(m.n_released, 1);
  kit_close(&k);
  OPI_ASSERT_INT(m.n_released, 1);
  memory_close(&m);
}

/* ---- training, and files ---- */

/* Losses of a few steps; the model afterwards is in `out`, annotated in `stages`. */
static void train(const char *path, const opipe_build_params *build, const char *out,
                  float losses[STEPS]) {
  host_kit k;
  const opipe_train_options options = {.struct_size = sizeof options,
                                       .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                       .labels = "labels",
                                       .shift = 1,
                                       .lr = 0.1};
  opipe_plan_params plan = stages(2);
  plan.train = &options;
  plan.schedule = "1f1b";
  plan.n_microbatches = 2;
  if (open_model(&k, path, build) && open_rest(&k, OPIPE_BIND_TRAIN, &plan)) {
    opipe_binding_io in[2] = {kit_ids(ids, ids_shape), kit_ids(ids, ids_shape)};
    in[1].name = "labels";
    opipe_submit_params step = opipe_submit_params_init();
    step.inputs = in;
    step.n_inputs = 2;
    for (uint32_t i = 0; i < STEPS; ++i) {
      opipe_request *ticket = NULL;
      opipe_tensor loss;
      if (!OPI_ASSERT_OK(k.api->session_train_step(k.session, &step, &ticket, &k.err), &k.err) ||
          !OPI_ASSERT_OK(k.api->request_wait(ticket, UINT64_MAX, &k.err), &k.err) ||
          !OPI_ASSERT_OK(k.api->request_output(ticket, 0, &loss, &k.err), &k.err))
        break;
      losses[i] = *(const float *)loss.data;
      k.api->request_release(ticket);
    }
    OPI_ASSERT_OK(k.api->session_try_save(k.session, OPIPE_SAVE_MODEL, out, &k.err), &k.err);
    OPI_ASSERT_OK(k.api->session_save_model(k.session, out, &k.err), &k.err);
  }
  kit_close(&k);
}

static void test_built_models_are_trained_and_saved(void) {
  memory m;
  float file[STEPS] = {0}, built[STEPS] = {1};
  const char *a = opi_test_build("tests/abi_file.onnx"),
             *b = opi_test_build("tests/abi_built.onnx");
  if (!memory_open(&m, GPT))
    return;
  const answer before = run_at(NULL, &m.params, 1);
  train(opi_test_source(GPT), NULL, a, file);
  train(NULL, &m.params, b, built);
  OPI_ASSERT_BITS(built, file, STEPS, OPIPE_FLOAT);
  OPI_ASSERT(file[STEPS - 1] < file[0]);
  const answer trained = run_at(a, NULL, 2);
  expect_equal(trained, run_at(b, NULL, 2));
  expect_equal(before, run_at(NULL, &m.params, 1)); /* lent memory was not written to */
  free(trained.data);
  free(before.data);
  memory_close(&m);
  (void)unlink(a);
  (void)unlink(b);
}

static opipe_status to_file(void *ctx, const void *data, size_t n_bytes) {
  return fwrite(data, 1, n_bytes, ctx) == n_bytes ? OPIPE_OK : OPIPE_E_IO;
}

static void test_written_and_annotated_models_are_the_same(void) {
  host_kit k, again;
  memory m;
  const char *path = opi_test_build("tests/abi_written.onnx");
  const opipe_plan_params plan = stages(2);
  opipe_model_info info = opipe_model_info_init();
  if (!memory_open(&m, GPT) || !open_model(&k, NULL, &m.params) || !open_rest(&k, 0, &plan))
    return;
  const answer want = run(&k);
  OPI_ASSERT_OK(k.api->model_write(k.bound, path, &k.err), &k.err);
  expect_equal(want, run_at(path, NULL, 2));
  FILE *file = fopen(path, "wb");
  OPI_ASSERT_FATAL(file != NULL);
  OPI_ASSERT_OK(k.api->plan_annotate(k.plan, to_file, file, &k.err), &k.err);
  OPI_ASSERT(fclose(file) == 0);
  if (open_model(&again, path, NULL)) {
    OPI_ASSERT_OK(again.api->model_info(again.model, &info, &again.err), &again.err);
    OPI_ASSERT_INT(info.n_annotated_stages, 2);
  }
  kit_close(&again);
  expect_equal(want, run_at(path, NULL, 2));
  OPI_ASSERT_ERROR(k.api->model_write(k.model, "/no/such/folder/m.onnx", &k.err), OPIPE_E_IO,
                   &k.err, "/no/such/folder/m.onnx");
  free(want.data);
  kit_close(&k);
  memory_close(&m);
  (void)unlink(path);
}

/* ---- parameters that are lent ---- */

static void test_parameters_are_read_where_they_lie(void) {
  static const char *const in[] = {"x", "w"}, *const out[] = {"y"};
  static const int64_t x_shape[] = {1, 2}, w_shape[] = {2, 2}, strides[] = {1, 2};
  const char *path = opi_test_build("tests/abi_lent.onnx");
  opipe_build_value values[] = {{"x", x_shape, NULL, OPIPE_FLOAT, 2},
                                {"w", w_shape, NULL, OPIPE_FLOAT, 2}};
  opipe_build_value y = {.name = "y", .rank = -1};
  opipe_build_node node = {
      .op = "MatMul", .inputs = in, .outputs = out, .n_inputs = 2, .n_outputs = 1};
  opipe_build_opset opset = {"ai.onnx", 17};
  opipe_build_graph graph = opipe_build_graph_init();
  opipe_build_params build = opipe_build_params_init();
  memory m = {.n_released = 0};
  host_kit k;
  float w[] = {1, 2, 3, 4}, x[] = {10, 1};
  graph.inputs = values, graph.n_inputs = 2, graph.outputs = &y, graph.n_outputs = 1;
  graph.nodes = &node, graph.n_nodes = 1;
  build.graph = &graph, build.opsets = &opset, build.n_opsets = 1;
  if (!open_model(&k, NULL, &build) ||
      !OPI_ASSERT_OK(k.api->model_write(k.model, path, &k.err), &k.err))
    return;
  opipe_pin pin = {.input = "w",
                   .value = {.data = w,
                             .device_type = OPIPE_DL_CPU,
                             .rank = 2,
                             .dtype = {OPIPE_DL_FLOAT, 32, 1},
                             .shape = w_shape,
                             .strides = strides}};
  opipe_load_params load = opipe_load_params_init();
  load.path = path, load.flags = OPIPE_LOAD_BORROW;
  load.parameters = &pin, load.n_parameters = 1;
  load.on_release = released, load.release_ctx = &m;
  k.api->model_destroy(k.model);
  k.model = NULL;
  OPI_ASSERT_ERROR(k.api->model_load(k.context, &load, &k.model, &k.err), OPIPE_E_INVALID, &k.err,
                   "'w' has strides");
  pin.value.strides = NULL;
  OPI_ASSERT_OK_FATAL(k.api->model_load(k.context, &load, &k.model, &k.err), &k.err);
  OPI_ASSERT_INT(m.n_released, 0);
  w[0] = 5; /* read when the session opens: the host's own memory */
  const opipe_plan_params plan = stages(1);
  const opipe_bind_options bind = opipe_bind_options_init();
  opipe_binding_io input = kit_ids(NULL, x_shape);
  input.name = "x", input.tensor.data = x,
  input.tensor.dtype = (opipe_dtype){OPIPE_DL_FLOAT, 32, 1};
  opipe_request *request = NULL;
  opipe_tensor result;
  OPI_ASSERT_OK_FATAL(k.api->model_bind(k.model, &bind, &k.bound, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_make(k.bound, &plan, &k.plan, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_submit(&k, &input, &request), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->request_output(request, 0, &result, &k.err), &k.err);
  const float want[] = {53, 24};
  OPI_ASSERT_BITS(result.data, want, 2, OPIPE_FLOAT);
  OPI_ASSERT_OK(k.api->model_write(k.model, path, &k.err), &k.err); /* with the parameter in it */
  kit_close(&k);
  OPI_ASSERT_INT(m.n_released, 1);
  if (open_model(&k, path, NULL)) {
    opipe_model_info info = opipe_model_info_init();
    OPI_ASSERT_OK(k.api->model_info(k.model, &info, &k.err), &k.err);
    OPI_ASSERT_INT(info.parameter_elems, 4);
  }
  kit_close(&k);
  (void)unlink(path);
}

/* ---- results where the host says ---- */

typedef struct place {
  host_kit *k;
  float *data;
  size_t n_bytes;
  uint32_t n_asked;
  int32_t rank;
  int64_t shape[4];
  opipe_status answer, inside;
} place;

static opipe_status give(void *ctx, uint32_t index, const opipe_tensor *tensor, uint64_t n_bytes,
                         void **out_data) {
  place *p = ctx;
  opipe_session_info info = opipe_session_info_init();
  p->n_asked += index == 0;
  p->inside = p->k->api->session_info(p->k->session, &info, NULL);
  p->rank = tensor->data == NULL && tensor->strides == NULL ? tensor->rank : -1;
  memcpy(p->shape, tensor->shape, (size_t)tensor->rank * sizeof(int64_t));
  p->n_bytes = (size_t)n_bytes;
  *out_data = p->data;
  return p->answer;
}

static void test_results_go_where_the_host_says_when_their_shape_is_known(void) {
  host_kit k;
  const opipe_plan_params plan = stages(2);
  place p = {.k = &k};
  if (!open_model(&k, opi_test_source(GPT), NULL) || !open_rest(&k, 0, &plan))
    return;
  const answer want = run(&k);
  opipe_binding_io in = kit_ids(ids, ids_shape);
  opipe_submit_params submit = opipe_submit_params_init();
  opipe_request *request = NULL;
  opipe_tensor out;
  submit.inputs = &in, submit.n_inputs = 1;
  submit.on_output = give, submit.on_output_ctx = &p;
  p.data = malloc(want.n * sizeof(float));
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &submit, &request, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_output(request, 0, &out, &k.err), &k.err);
  OPI_ASSERT(out.data == p.data);
  OPI_ASSERT_INT(p.n_asked, 1);
  OPI_ASSERT_INT(p.inside, OPIPE_E_STATE);
  OPI_ASSERT_INT(p.rank, 3);
  OPI_ASSERT_INT(p.shape[0], BATCH);
  OPI_ASSERT_INT(p.shape[1], SEQ);
  OPI_ASSERT_INT(p.n_bytes, want.n * sizeof(float));
  OPI_ASSERT_BITS(p.data, want.data, want.n, OPIPE_FLOAT);
  k.api->request_release(request);
  float *kept = p.data;
  p.data = NULL; /* the library's own memory then */
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &submit, &request, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_output(request, 0, &out, &k.err), &k.err);
  OPI_ASSERT(out.data != kept);
  OPI_ASSERT_BITS(out.data, want.data, want.n, OPIPE_FLOAT);
  k.api->request_release(request);
  p.answer = OPIPE_E_NOMEM;
  OPI_ASSERT_ERROR(k.api->session_submit(k.session, &submit, &request, &k.err), OPIPE_E_NOMEM,
                   &k.err, "on_output answered -2");
  p.answer = 7;
  OPI_ASSERT_ERROR(k.api->session_submit(k.session, &submit, &request, &k.err), OPIPE_E_INVALID,
                   &k.err, "on_output answered 7");
  p.n_asked = 0;
  opipe_binding_io given = {.name = "logits", .tensor = out};
  given.tensor.data = kept, given.tensor.shape = p.shape;
  submit.outputs = &given, submit.n_outputs = 1; /* nothing is left to ask for */
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &submit, &request, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_INT(p.n_asked, 0);
  k.api->request_release(request);
  kit_close(&k);
  free(kept);
  free(want.data);
}

OPI_TEST_MAIN("build", OPI_TEST(test_built_models_have_the_bits_of_their_files),
              OPI_TEST(test_what_is_lent_is_given_back_once_and_last),
              OPI_TEST(test_built_models_are_trained_and_saved),
              OPI_TEST(test_written_and_annotated_models_are_the_same),
              OPI_TEST(test_parameters_are_read_where_they_lie),
              OPI_TEST(test_results_go_where_the_host_says_when_their_shape_is_known))
