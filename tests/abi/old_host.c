/* SPDX-License-Identifier: Apache-2.0 */
/* A host of an old minor on today's library (mocks.cmake builds it from the frozen headers of every
 * released one): runs a model and trains it, through the tables as long as they were.
 *
 *   old_host LIBRARY MODEL PLUGIN...
 * Twice: with what the library brings (cpu, gpipe), and with plugins of the same old minor (mock,
 * mock-order; mock-grouped carries requests alone), which compute the same; every bit must agree.
 * Needs input_ids [batch, seq] and logits. Status 1 with the reason.
 */
#include <dlfcn.h>
#include <opipe/host.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 4, SEQ = 8, STEPS = 3, VALUES_MOST = 1 << 16 };

static opipe_error err = OPIPE_ERROR_INIT;

static void need(opipe_status status, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "%s: %s\n", what, err.message);
  exit(1);
}

static void expect(int holds, const char *what) {
  if (holds)
    return;
  fprintf(stderr, "not so: %s\n", what);
  exit(1);
}

/* Results: values of logits, then losses. */
typedef struct outcome {
  float value[VALUES_MOST];
  size_t n;
} outcome;

static void keep(outcome *o, const void *data, size_t n_bytes) {
  expect(n_bytes % sizeof(float) == 0 && o->n + n_bytes / sizeof(float) <= VALUES_MOST,
         "the outcome has room");
  memcpy(o->value + o->n, data, n_bytes);
  o->n += n_bytes / sizeof(float);
}

static int64_t ids[BATCH * SEQ];
static const int64_t ids_shape[2] = {BATCH, SEQ};

static opipe_binding_io tokens(const char *name) {
  opipe_binding_io io;
  memset(&io, 0, sizeof io);
  io.name = name;
  io.tensor.data = ids;
  io.tensor.device_type = OPIPE_DL_CPU;
  io.tensor.rank = 2;
  io.tensor.dtype = (opipe_dtype){OPIPE_DL_INT, 64, 1};
  io.tensor.shape = ids_shape;
  return io;
}

static void run(const opipe_api *api, opipe_session *session, outcome *out) {
  const opipe_binding_io input = tokens("input_ids");
  const opipe_submit_params submit = {.struct_size = sizeof submit,
                                      .n_inputs = 1,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = &input};
  opipe_request *request = NULL;
  opipe_tensor logits;
  size_t n = sizeof(float);
  need(api->session_submit(session, &submit, &request, &err), "submit");
  need(api->request_wait(request, UINT64_MAX, &err), "wait");
  need(api->request_output(request, 0, &logits, &err), "output");
  for (int32_t d = 0; d < logits.rank; ++d)
    n *= (size_t)logits.shape[d];
  keep(out, logits.data, n);
  api->request_release(request);
}

static void train(const opipe_api *api, opipe_session *session, outcome *out) {
  const opipe_binding_io inputs[2] = {tokens("input_ids"), tokens("labels")};
  const opipe_submit_params submit = {.struct_size = sizeof submit,
                                      .n_inputs = 2,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = inputs};
  float loss[STEPS];
  for (uint32_t s = 0; s < STEPS; ++s) {
    opipe_request *ticket = NULL;
    opipe_train_report report = {.struct_size = sizeof report};
    need(api->session_train_step(session, &submit, &ticket, &err), "train_step");
    need(api->request_wait(ticket, UINT64_MAX, &err), "wait");
    need(api->request_report(ticket, &report, &err), "report");
    expect(report.step == s + 1 && report.count == BATCH * (SEQ - 1), "the report of a step");
    loss[s] = (float)report.loss;
    api->request_release(ticket);
  }
  expect(loss[STEPS - 1] < loss[0], "the loss falls");
  keep(out, loss, sizeof loss);
}

static const opipe_train_options *training(void) {
  static const opipe_train_options options = {.struct_size = sizeof options,
                                              .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                              .output = "logits",
                                              .labels = "labels",
                                              .ignore = -100,
                                              .shift = 1,
                                              .optimizer = OPIPE_OPTIMIZER_ADAMW,
                                              .lr = 0.01,
                                              .beta1 = 0.9,
                                              .beta2 = 0.999,
                                              .epsilon = 1e-8,
                                              .decay = 0.01};
  return &options;
}

/* One session of two stages: requests, or (trains) steps. */
static void work(const opipe_api *api, opipe_context *context, opipe_model *model,
                 const char *device, const char *schedule, const char *transport, int trains,
                 outcome *out) {
  static const opipe_dim dims[2] = {{"batch", BATCH}, {"seq", SEQ}};
  opipe_bind_options bind = {.struct_size = sizeof bind,
                             .flags = OPIPE_BIND_DEFAULTS,
                             .dims = dims,
                             .n_dims = 2,
                             .dims_stride = sizeof(opipe_dim)};
  const opipe_device_choice choice = {.kind = device};
  opipe_plan_params params = {.struct_size = sizeof params,
                              .n_stages = 2,
                              .devices = &choice,
                              .n_devices = 1,
                              .devices_stride = sizeof(opipe_device_choice),
                              .n_microbatches = 2,
                              .schedule = schedule,
                              .transport = transport};
  opipe_model *bound = NULL;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  if (trains) {
    bind.flags |= OPIPE_BIND_TRAIN;
    params.train = training();
  }
  need(api->model_bind(model, &bind, &bound, &err), "bind");
  need(api->plan_make(bound, &params, &plan, &err), schedule);
  need(api->session_open(context, plan, NULL, &session, &err), "session");
  if (trains)
    train(api, session, out);
  if (!trains)
    run(api, session, out);
  api->session_close(session);
  api->plan_destroy(plan);
  api->model_destroy(bound);
}

static const opipe_api *open_library(const char *path) {
  const opipe_api *api = NULL;
  opipe_get_api_fn get_api = NULL;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != NULL)
    *(void **)&get_api = dlsym(library, "opipe_get_api");
  if (get_api == NULL) {
    fprintf(stderr, "%s: %s\n", path, dlerror());
    exit(1);
  }
  need(get_api(OPIPE_VIEW, &api, &err), "opipe_get_api");
  expect(api->struct_size >= sizeof *api, "today's table is as long as that of this minor");
  return api;
}

int main(int argc, char **argv) {
  static outcome shipped, old, grouped;
  opipe_context *context = NULL;
  opipe_model *model = NULL;
  if (argc < 4) {
    fprintf(stderr, "usage: %s LIBRARY MODEL PLUGIN...\n", argv[0]);
    return 2;
  }
  const opipe_api *api = open_library(argv[1]);
  const opipe_context_params params = {.struct_size = sizeof params,
                                       .log_level = OPIPE_LOG_WARN,
                                       .plugin_paths = (const char *const *)(argv + 3),
                                       .n_plugin_paths = (uint32_t)(argc - 3)};
  const opipe_load_params load = {.struct_size = sizeof load, .path = argv[2]};
  need(api->context_create(&params, &context, &err), "context");
  need(api->model_load(context, &load, &model, &err), "load");
  for (uint32_t i = 0; i < BATCH * SEQ; ++i)
    ids[i] = (i * 37 + 11) % 344;
  for (int trains = 0; trains <= 1; ++trains) {
    work(api, context, model, "cpu", "gpipe", NULL, trains, &shipped);
    work(api, context, model, "mock", "mock-order", NULL, trains, &old);
  }
  work(api, context, model, "mock", "mock-order", "mock-grouped", 0, &grouped);
  expect(shipped.n > 0 && shipped.n == old.n &&
             memcmp(shipped.value, old.value, old.n * sizeof(float)) == 0,
         "old plugins compute what the shipped ones compute");
  expect(grouped.n > 0 && grouped.n < shipped.n &&
             memcmp(shipped.value, grouped.value, grouped.n * sizeof(float)) == 0,
         "requests are computed alike over an old transport of the rule GROUPED");
  printf("a host and plugins of 1.%d: %zu values, all equal\n", OPIPE_ABI_MINOR, old.n);
  api->model_destroy(model);
  api->context_destroy(context);
  return 0;
}
