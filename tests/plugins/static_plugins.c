/* SPDX-License-Identifier: Apache-2.0 */
/* Every plugin of the project linked into this program, none opened from a file: they can be told
 * apart by their symbols, are accepted by a context that searches no file, and run a model in two
 * stages.
 */
#include <stdio.h>
#include <stdlib.h>

#include "opipe/host.h"
#include "tests/support/support.h"

extern const opipe_plugin *const opi_static_plugins[]; /* ended by NULL */

static const opipe_api *api_or_die(void) {
  const opipe_api *api = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &api, &err), &err);
  return api;
}

static opipe_context *static_context(const opipe_api *api) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_context *context = NULL;
  opipe_context_params params = {.struct_size = sizeof params,
                                 .log_level = OPIPE_LOG_WARN,
                                 .cores = 2,
                                 .flags = OPIPE_CONTEXT_ONLY_STATIC};
  OPI_ASSERT_OK_FATAL(api->context_create(&params, &context, &err), &err);
  for (size_t i = 0; opi_static_plugins[i]; ++i)
    OPI_ASSERT_OK(api->context_register_static(context, opi_static_plugins[i], &err), &err);
  return context;
}

/* Text that a describe function writes, cut off where it no longer fits. */
typedef struct text_sink {
  char text[65536];
  size_t n_bytes;
} text_sink;

static opipe_status keep_text(void *ctx, const void *data, size_t n_bytes) {
  text_sink *sink = ctx;
  size_t room = sizeof sink->text - 1 - sink->n_bytes;
  size_t taken = n_bytes < room ? n_bytes : room;
  memcpy(sink->text + sink->n_bytes, data, taken);
  sink->n_bytes += taken;
  return OPIPE_OK;
}

static void test_static_plugins_are_listed(void) {
  static text_sink sink;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_api *api = api_or_die();
  opipe_context *context = static_context(api);
  OPI_ASSERT_OK(api->context_plugins(context, OPIPE_FORMAT_JSON, keep_text, &sink, &err), &err);
  for (size_t i = 0; opi_static_plugins[i]; ++i) {
    if (!strstr(sink.text, opi_static_plugins[i]->id))
      OPI_FAIL("plugin %s is not listed in: %s", opi_static_plugins[i]->id, sink.text);
  }
  api->context_destroy(context);
}

static void run_two_stages(const opipe_api *api, opipe_context *context) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_model *model = NULL;
  opipe_model *bound = NULL;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  opipe_request *request = NULL;
  opipe_load_params load = {.struct_size = sizeof load,
                            .path = opi_test_source("tests/data/gpt_8block/model.onnx")};
  opipe_bind_options bind = {.struct_size = sizeof bind, .flags = OPIPE_BIND_DEFAULTS};
  opipe_plan_params cut = {.struct_size = sizeof cut, .n_stages = 2};
  opipe_session_params open = {.struct_size = sizeof open};
  opipe_tensor_info info = {.struct_size = sizeof info};
  opipe_tensor output;
  static int64_t ids[4096];

  OPI_ASSERT_OK_FATAL(api->model_load(context, &load, &model, &err), &err);
  OPI_ASSERT_OK_FATAL(api->model_bind(model, &bind, &bound, &err), &err);
  OPI_ASSERT_OK_FATAL(api->model_input(bound, 0, &info, &err), &err);
  OPI_ASSERT_OK_FATAL(api->plan_make(bound, &cut, &plan, &err), &err);
  OPI_ASSERT_OK_FATAL(api->session_open(context, plan, &open, &session, &err), &err);
  opipe_binding_io input = {.name = info.name,
                            .tensor = {.data = ids,
                                       .device_type = OPIPE_DL_CPU,
                                       .rank = (int32_t)info.rank,
                                       .dtype = {OPIPE_DL_INT, 64, 1},
                                       .shape = info.shape}};
  opipe_submit_params submit = {.struct_size = sizeof submit,
                                .n_inputs = 1,
                                .io_stride = sizeof(opipe_binding_io),
                                .inputs = &input};
  OPI_ASSERT_INT(info.dtype, OPIPE_INT64);
  OPI_ASSERT_OK_FATAL(api->session_submit(session, &submit, &request, &err), &err);
  OPI_ASSERT_OK(api->request_wait(request, UINT64_C(30000000000), &err), &err);
  OPI_ASSERT_OK(api->request_output(request, 0, &output, &err), &err);
  OPI_ASSERT_INT(output.rank, 3);
  api->request_release(request);
  api->session_close(session);
  api->plan_destroy(plan);
  api->model_destroy(bound);
  api->model_destroy(model);
}

static void test_static_plugins_run_a_model(void) {
  const opipe_api *api = api_or_die();
  opipe_context *context = static_context(api);
  run_two_stages(api, context);
  api->context_destroy(context);
}

OPI_TEST_MAIN("static plugins", OPI_TEST(test_static_plugins_are_listed),
              OPI_TEST(test_static_plugins_run_a_model))
