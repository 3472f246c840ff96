/* SPDX-License-Identifier: Apache-2.0 */
/* opipe/host_helpers.h and the TYPE_init() functions; targets that are the model's own files; a
 * learning rate that changes nothing. */
#include <stdlib.h>
#include <unistd.h>

#include "opipe/helpers.h"
#include "opipe/host_helpers.h"
#include "tests/abi/host_kit.h"

#define GPT "tests/data/gpt_8block/model.onnx"
static const int64_t ids[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

/* ---- tensors ---- */

static void test_dense_tensors(void) {
  static const int64_t shape[3] = {2, 3, 5}, none[3] = {2, 0, INT64_MAX},
                       huge[2] = {1 << 30, INT64_MAX}, negative[1] = {-1};
  opipe_tensor t = opipe_dense(OPIPE_BFLOAT16, ids, shape, 3);
  OPI_ASSERT(t.dtype.code == OPIPE_DL_BFLOAT && t.dtype.bits == 16 && t.dtype.lanes == 1);
  OPI_ASSERT(t.device_type == OPIPE_DL_CPU && t.rank == 3 && t.shape == shape &&
             t.strides == NULL && t.byte_offset == 0 && t.data == (const void *)ids);
  OPI_ASSERT_INT(opipe_dense_bytes(&t), 60);
  t = opipe_dense(OPIPE_INT4, ids, shape, 3);
  OPI_ASSERT_INT(opipe_dense_bytes(&t), 15); /* packed */
  t = opipe_dense(OPIPE_FLOAT, ids, NULL, 0);
  OPI_ASSERT_INT(opipe_dense_bytes(&t), 4);
  t = opipe_dense(OPIPE_FLOAT, ids, none, 3);
  OPI_ASSERT_INT(opipe_dense_bytes(&t), 0);
  t = opipe_dense(OPIPE_FLOAT, ids, huge, 2);
  OPI_ASSERT(opipe_dense_bytes(&t) == UINT64_MAX);
  t = opipe_dense(OPIPE_FLOAT, ids, negative, 1);
  OPI_ASSERT(opipe_dense_bytes(&t) == UINT64_MAX);
  OPI_ASSERT_INT(opipe_dl_dtype(OPIPE_STRING).bits, 0);
  const opipe_binding_io io = opipe_named("x", t);
  OPI_ASSERT_STR(io.name, "x");
  OPI_ASSERT(io.ready.kind == OPIPE_FENCE_NONE && io.done.kind == OPIPE_FENCE_NONE);
}

/* ---- a library by its path ---- */

static void test_libraries_by_path(void) {
  char path[512];
  const opipe_api *api = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  (void)snprintf(path, sizeof path, "%s/lib/libonnxpipe.so", getenv("OPIPE_BUILD_DIR"));
  OPI_ASSERT_ERROR(opipe_open_library("/no/such/libonnxpipe.so", &api, &err), OPIPE_E_NOTFOUND,
                   &err, "/no/such/libonnxpipe.so");
  OPI_ASSERT_ERROR(opipe_open_library("libdl.so.2", &api, &err), OPIPE_E_NOTFOUND, &err,
                   "opipe_get_api");
  OPI_ASSERT_OK_FATAL(opipe_open_library(path, &api, &err), &err);
  OPI_ASSERT_INT(api->abi_minor, OPIPE_ABI_MINOR);
}

/* ---- outputs by name, shapes ahead of their requests ---- */

static uint64_t n_compiled(const host_kit *k) {
  opipe_session_info info = opipe_session_info_init();
  OPI_ASSERT(k->api->session_info(k->session, &info, NULL) == OPIPE_OK);
  return info.shapes_compiled;
}

static void test_warm_shapes_and_named_outputs(void) {
  static const int64_t shape[2] = {1, 5}, too_many[2] = {1, INT64_MAX / 2};
  host_kit k;
  opipe_request *request = NULL;
  opipe_tensor by_name, by_index;
  uint32_t index = 99;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 2, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  const uint64_t before = n_compiled(&k);
  opipe_binding_io input = opipe_named("input_ids", opipe_dense(OPIPE_INT64, NULL, shape, 2));
  OPI_ASSERT_OK_FATAL(opipe_warm_up(k.api, k.session, &input, 1, &k.err), &k.err);
  OPI_ASSERT_INT(n_compiled(&k), before + 1);
  input.tensor.data = (void *)(uintptr_t)ids;
  OPI_ASSERT_OK_FATAL(kit_submit(&k, &input, &request), &k.err);
  OPI_ASSERT_INT(n_compiled(&k), before + 1); /* it was there */
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_OK(opipe_output_index(k.api, k.bound, "logits", &index, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_output(request, index, &by_index, &k.err), &k.err);
  OPI_ASSERT_OK(opipe_output_named(k.api, k.bound, request, "logits", &by_name, &k.err), &k.err);
  OPI_ASSERT(by_name.data == by_index.data && by_name.rank == 3 && by_name.shape[1] == 5);
  OPI_ASSERT_ERROR(opipe_output_named(k.api, k.bound, request, "logit", &by_name, &k.err),
                   OPIPE_E_NOTFOUND, &k.err, "the model has 1 outputs, and none is 'logit'");
  k.api->request_release(request);
  input.tensor.shape = too_many;
  OPI_ASSERT_ERROR(opipe_warm_up(k.api, k.session, &input, 1, &k.err), OPIPE_E_NOMEM, &k.err,
                   "input 'input_ids'");
  input.name = "nobody", input.tensor.shape = shape;
  OPI_ASSERT_ERROR(opipe_warm_up(k.api, k.session, &input, 1, &k.err), OPIPE_E_NOTFOUND, &k.err,
                   "nobody");
  kit_close(&k);
}

/* ---- beginnings ---- */

typedef struct heard {
  uint32_t n_warnings;
  char last[512];
} heard;

static void hear(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  heard *h = ctx;
  (void)file, (void)line;
  if (level != OPIPE_LOG_WARN || strstr(msg, "learning rate") == NULL)
    return;
  ++h->n_warnings;
  (void)snprintf(h->last, sizeof h->last, "%s", msg);
}

/* A training session of GPT with the options that TYPE_init() gives, and this learning rate. */
static void open_training(host_kit *k, heard *h, double lr) {
  opipe_context_params context = opipe_context_params_init();
  opipe_train_options train = opipe_train_options_init();
  opipe_plan_params plan = opipe_plan_params_init();
  opipe_session_params session = opipe_session_params_init();
  context.log = hear, context.log_ctx = h;
  train.loss = OPIPE_LOSS_CROSS_ENTROPY, train.output = "logits", train.labels = "labels";
  train.shift = 1;
  train.optimizer = OPIPE_OPTIMIZER_ADAMW;
  train.lr = lr;
  plan.n_stages = 2;
  plan.train = &train;
  session.flags = OPIPE_SESSION_KEEP_GRADIENTS;
  OPI_ASSERT_OK_FATAL(
      kit_plan_bound(k, &context, GPT, 2, 8, OPIPE_BIND_DEFAULTS | OPIPE_BIND_TRAIN, &plan),
      &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, &session), &k->err);
}

static void step(host_kit *k, uint32_t flags, double lr) {
  static const int64_t shape[2] = {2, 8};
  opipe_request *ticket = NULL;
  opipe_train_report report = opipe_train_report_init();
  opipe_submit_params submit = opipe_submit_params_init();
  opipe_binding_io io[2];
  io[0] = opipe_named("input_ids", opipe_dense(OPIPE_INT64, ids, shape, 2));
  io[1] = opipe_named("labels", io[0].tensor);
  submit.inputs = io, submit.n_inputs = 2;
  submit.flags = flags, submit.lr = lr;
  OPI_ASSERT_OK_FATAL(k->api->session_train_step(k->session, &submit, &ticket, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->request_wait(ticket, UINT64_MAX, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->request_report(ticket, &report, &k->err), &k->err);
  OPI_ASSERT_INT(report.skipped, OPIPE_SKIP_NONE); /* beta2 0 and epsilon 0 would not be finite */
  k->api->request_release(ticket);
}

static void test_beginnings(void) {
  const opipe_train_options o = opipe_train_options_init();
  const opipe_tuning_params t = opipe_tuning_params_init();
  OPI_ASSERT(o.ignore == -100 && o.beta1 == 0.9 && o.beta2 == 0.999 && o.epsilon == 1e-8);
  OPI_ASSERT(o.lr == 0 && o.globs_stride == sizeof(opipe_train_glob));
  OPI_ASSERT(t.struct_size == sizeof t && t.kind == NULL && t.measured == NULL);
}

static void test_a_learning_rate_of_0_is_warned_of_once(void) {
  heard h = {0};
  host_kit k;
  open_training(&k, &h, 0.01);
  step(&k, 0, 0);
  kit_close(&k);
  OPI_ASSERT_INT(h.n_warnings, 0);
  open_training(&k, &h, 0);
  step(&k, OPIPE_SUBMIT_LR, 0.01); /* it has its own */
  OPI_ASSERT_INT(h.n_warnings, 0);
  step(&k, 0, 0);
  step(&k, 0, 0);
  OPI_ASSERT_INT(h.n_warnings, 1);
  OPI_ASSERT(strstr(h.last, "the learning rate is 0, so no parameter changes") != NULL);
  kit_close(&k);
}

/* ---- targets ---- */

static void check_all(host_kit *k, const char *path, const char *part) {
  OPI_ASSERT_ERROR(k->api->session_save_gradients(k->session, path, &k->err), OPIPE_E_INVALID,
                   &k->err, part);
  OPI_ASSERT_ERROR(k->api->session_try_save(k->session, OPIPE_SAVE_GRADIENTS, path, &k->err),
                   OPIPE_E_INVALID, &k->err, part);
  OPI_ASSERT_ERROR(k->api->model_check_target(k->bound, path, OPIPE_TARGET_OTHER, &k->err),
                   OPIPE_E_INVALID, &k->err, part);
}

/* (Weights in files of their own: tests/loader/wire/test_save.c.) */
static void test_the_model_is_no_target(void) {
  heard h = {0};
  host_kit k;
  const char *link = opi_test_tmp("link.onnx"), *model = opi_test_source(GPT);
  OPI_ASSERT_FATAL(symlink(model, link) == 0);
  open_training(&k, &h, 0.01);
  step(&k, 0, 0);
  check_all(&k, model, "the model itself lies in");
  check_all(&k, link, "link.onnx': it would be written over");
  OPI_ASSERT_OK(k.api->model_check_target(k.model, link, OPIPE_TARGET_MODEL, &k.err), &k.err);
  OPI_ASSERT_OK(
      k.api->model_check_target(k.model, opi_test_tmp("none"), OPIPE_TARGET_OTHER, &k.err), &k.err);
  OPI_ASSERT_ERROR(k.api->model_check_target(k.model, link, 2, &k.err), OPIPE_E_INVALID, &k.err,
                   "what");
  OPI_ASSERT_ERROR(k.api->model_check_target(k.model, NULL, 0, &k.err), OPIPE_E_INVALID, &k.err,
                   "NULL");
  OPI_ASSERT_OK(k.api->session_save_gradients(k.session, opi_test_tmp("g.safetensors"), &k.err),
                &k.err);
  kit_close(&k);
}

/* ---- plugins' memory ---- */

static void *lua_like(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  (void)old_size, (void)align;
  *(size_t *)ctx += new_size;
  if (new_size != 0)
    return realloc(ptr, new_size);
  free(ptr);
  return NULL;
}

static void test_nothing_can_be_asked_for(void) {
  size_t asked = 0;
  const opipe_host host = {.ctx = &asked, .realloc = lua_like};
  opipe_error err = OPIPE_ERROR_INIT;
  void *data = opipe_zeroed(&host, "nothing", 0, 8, &err);
  OPI_ASSERT(data != NULL && err.status == OPIPE_OK);
  opipe_free(&host, data, 0, 8);
  OPI_ASSERT_INT(asked, 1);
}

OPI_TEST_MAIN("host helpers", OPI_TEST(test_dense_tensors), OPI_TEST(test_libraries_by_path),
              OPI_TEST(test_warm_shapes_and_named_outputs), OPI_TEST(test_beginnings),
              OPI_TEST(test_a_learning_rate_of_0_is_warned_of_once),
              OPI_TEST(test_the_model_is_no_target), OPI_TEST(test_nothing_can_be_asked_for))
