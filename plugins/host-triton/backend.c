/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that the server calls. States hang on its handles; the state of an object that
 * could not be made is NULL, and the server calls the end of such an object too.
 */
#include "adapter.h"

#define ENTRY OPIPE_EXPORT tri_error *
ENTRY TRITONBACKEND_Initialize(tri_backend *handle);
ENTRY TRITONBACKEND_Finalize(tri_backend *handle);
ENTRY TRITONBACKEND_ModelInitialize(tri_model *handle);
ENTRY TRITONBACKEND_ModelFinalize(tri_model *handle);
ENTRY TRITONBACKEND_ModelInstanceInitialize(tri_instance *handle);
ENTRY TRITONBACKEND_ModelInstanceFinalize(tri_instance *handle);
ENTRY TRITONBACKEND_ModelInstanceExecute(tri_instance *handle, tri_request **requests, uint32_t n);

static void to_server(void *ctx, uint32_t level, const char *file, uint32_t line,
                      const char *text) {
  (void)ctx, (void)file, (void)line;
  tri_log(level <= OPIPE_LOG_ERROR  ? TRI_LOG_ERROR
          : level == OPIPE_LOG_WARN ? TRI_LOG_WARN
                                    : TRI_LOG_INFO,
          "onnx-pipe: %s", text);
}

static void close_backend(backend *b) {
  if (b == NULL)
    return;
  if (b->api != NULL)
    b->api->context_destroy(b->context);
  host_pool_free(&b->memory);
  host_give(b);
}

static tri_error *open_backend(tri_backend *handle, backend *b) {
  opipe_context_params params = opipe_context_params_init();
  opipe_device_budget budget = {.kind = "cpu"};
  opipe_error err = OPIPE_ERROR_INIT;
  TRI_TRY(config_read_backend(handle, b));
  budget.memory_bytes = b->budget_bytes;
  params.budgets = &budget;
  params.n_budgets = b->budget_bytes == 0 ? 0 : 1;
  params.cores = b->cores;
  params.log = to_server;
  opipe_status status = host_open_library(b->library, &b->api, &err);
  if (status == OPIPE_OK)
    status = b->api->context_create(&params, &b->context, &err);
  return status < 0 ? tri_fail_with(NULL, &err) : NULL;
}

tri_error *TRITONBACKEND_Initialize(tri_backend *handle) {
  uint32_t major = 0, minor = 0;
  if (!tri_look_up(__builtin_return_address(0)))
    return tri_fail(TRI_ERROR_UNSUPPORTED, "onnx-pipe: this server lacks functions for backends");
  TRI_TRY(tri.ApiVersion(&major, &minor));
  if (major != TRI_BACKEND_MAJOR) {
    return tri_fail(TRI_ERROR_UNSUPPORTED,
                    "onnx-pipe: this server's interface for backends is %u.%u; the adapter's is %d",
                    major, minor, TRI_BACKEND_MAJOR);
  }
  backend *b = host_take(sizeof *b);
  if (b == NULL)
    return tri_no_memory();
  tri_error *error = open_backend(handle, b);
  if (error == NULL)
    error = tri.BackendSetState(handle, b);
  if (error != NULL)
    close_backend(b);
  return error;
}

tri_error *TRITONBACKEND_Finalize(tri_backend *handle) {
  void *b = NULL;
  TRI_TRY(tri.BackendState(handle, &b));
  close_backend(b);
  return NULL;
}

tri_error *TRITONBACKEND_ModelInitialize(tri_model *handle) {
  tri_backend *owner = NULL;
  served *s = NULL;
  void *b = NULL;
  TRI_TRY(tri.ModelBackend(handle, &owner));
  TRI_TRY(tri.BackendState(owner, &b));
  TRI_TRY(model_open(handle, b, &s));
  tri_error *error = tri.ModelSetState(handle, s);
  if (error != NULL)
    model_close(s);
  return error;
}

tri_error *TRITONBACKEND_ModelFinalize(tri_model *handle) {
  void *s = NULL;
  TRI_TRY(tri.ModelState(handle, &s));
  model_close(s);
  return NULL;
}

tri_error *TRITONBACKEND_ModelInstanceInitialize(tri_instance *handle) {
  tri_model *model = NULL;
  instance *i = NULL;
  void *s = NULL;
  TRI_TRY(tri.ModelInstanceModel(handle, &model));
  TRI_TRY(tri.ModelState(model, &s));
  TRI_TRY(instance_open(handle, s, &i));
  tri_error *error = tri.ModelInstanceSetState(handle, i);
  if (error != NULL)
    instance_close(i);
  return error;
}

tri_error *TRITONBACKEND_ModelInstanceFinalize(tri_instance *handle) {
  void *i = NULL;
  TRI_TRY(tri.ModelInstanceState(handle, &i));
  instance_close(i);
  return NULL;
}

/* The requests are ours when this returns, and in flight: it waits only for room. */
tri_error *TRITONBACKEND_ModelInstanceExecute(tri_instance *handle, tri_request **requests,
                                              uint32_t n) {
  void *i = NULL;
  const uint64_t start_ns = now_ns();
  TRI_TRY(tri.ModelInstanceState(handle, &i));
  if (((const instance *)i)->s->set.n_context == 0)
    batch_take(i, requests, n, start_ns);
  for (uint32_t k = 0; k < n && ((const instance *)i)->s->set.n_context > 0; ++k)
    generate_take(i, requests[k], start_ns);
  return NULL;
}
