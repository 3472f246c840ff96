/* SPDX-License-Identifier: Apache-2.0 */
/* A host in C that leaves every decision to the planner: this machine and the model are described,
 * the planner searches, the best of what it found becomes a plan, and a session runs it.
 *
 *   cc -std=c11 -I<prefix>/include plan.c -ldl -o plan
 *   ./plan <prefix>/lib/libonnxpipe.so model.onnx [BATCH]
 * The model's inputs are integers of shape [batch, seq]. The command line names no stages,
 * micro-batches, copies or schedules.
 */
#include <opipe/host_helpers.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 16, DEVICES = 2, TEXT_MOST = 1 << 16 };

static opipe_error err = OPIPE_ERROR_INIT;

/* Ends the program when a call failed: the message names the thing. */
static void need(opipe_status status, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "%s: %s\n", what, err.message);
  exit(1);
}

typedef struct text {
  char data[TEXT_MOST];
  size_t n;
} text;

static opipe_status keep(void *ctx, const void *data, size_t n_bytes) {
  text *t = ctx;
  if (n_bytes > sizeof t->data - t->n)
    return OPIPE_E_LIMIT;
  memcpy(t->data + t->n, data, n_bytes);
  t->n += n_bytes;
  return OPIPE_OK;
}

static opipe_status show(void *ctx, const void *data, size_t n_bytes) {
  (void)ctx;
  return fwrite(data, 1, n_bytes, stdout) == n_bytes ? OPIPE_OK : OPIPE_E_IO;
}

/* Two devices of one core each. Measured links and rates would be more exact, and take a second. */
static void describe_machine(const opipe_api *api, opipe_context *context,
                             const opipe_device_choice devices[DEVICES], text *out) {
  opipe_machine_params machine = opipe_machine_params_init();
  machine.devices = devices;
  machine.n_devices = DEVICES;
  need(api->cluster_of_machine(context, &machine, keep, out, &err), "this machine");
}

static opipe_strategy *search(const opipe_api *api, opipe_model *bound, uint32_t batch,
                              const text *cluster) {
  const uint32_t samples[] = {1, batch};
  opipe_profile *profile = NULL;
  opipe_strategy *strategy = NULL;
  opipe_strategy_info info = opipe_strategy_info_init();
  opipe_profile_params layers = opipe_profile_params_init();
  layers.samples = samples;
  layers.n_samples = batch > 1 ? 2 : 1;
  layers.cluster = cluster->data;
  layers.cluster_bytes = cluster->n;
  need(api->profile_of_model(bound, &layers, &profile, &err), "profile");
  opipe_strategy_params question = opipe_strategy_params_init();
  question.flags = OPIPE_STRATEGY_FORWARD;
  question.objective = OPIPE_OBJECTIVE_THROUGHPUT;
  question.cluster = cluster->data;
  question.cluster_bytes = cluster->n;
  question.batch = batch;
  need(api->strategy_make(profile, &question, &strategy, &err), "strategy");
  need(api->strategy_info(strategy, &info, &err), "strategy");
  need(api->strategy_describe(strategy, OPIPE_FORMAT_TEXT, show, NULL, &err), "strategy");
  printf("%llu of %llu candidates simulated, %llu ruled out by bounds; schedule %s\n",
         (unsigned long long)info.n_simulated, (unsigned long long)info.n_candidates,
         (unsigned long long)info.n_bounded, info.schedule);
  api->profile_destroy(profile); /* a strategy keeps what it needs */
  return strategy;
}

static void run(const opipe_api *api, opipe_session *session, opipe_model *bound, uint32_t batch) {
  const int64_t shape[2] = {batch, SEQ};
  int64_t *ids = calloc((size_t)batch * SEQ, sizeof *ids);
  opipe_model_info info = opipe_model_info_init();
  opipe_binding_io inputs[8];
  opipe_request *request = NULL;
  opipe_tensor out;
  need(api->model_info(bound, &info, &err), "model");
  for (uint32_t i = 0; ids != NULL && i < info.n_inputs && i < 8; ++i) {
    opipe_tensor_info input = opipe_tensor_info_init();
    need(api->model_input(bound, i, &input, &err), "input");
    inputs[i] = opipe_named(input.name, opipe_dense(OPIPE_INT64, ids, shape, 2));
  }
  opipe_submit_params submit = opipe_submit_params_init();
  submit.n_inputs = info.n_inputs;
  submit.inputs = inputs;
  need(api->session_submit_wait(session, OPIPE_START_REQUEST, &submit, UINT64_MAX, &request, &err),
       "submit");
  need(api->request_wait(request, UINT64_MAX, &err), "request");
  need(api->request_output(request, 0, &out, &err), "output");
  printf("output 0 of rank %u, begins with %g\n", (unsigned)out.rank, *(const float *)out.data);
  api->request_release(request);
  free(ids);
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s libonnxpipe.so model.onnx [BATCH]\n", argv[0]);
    return 2;
  }
  static text cluster;
  const uint32_t batch = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 8;
  const opipe_device_choice devices[DEVICES] = {{.kind = "cpu", .threads = 1},
                                                {.kind = "cpu", .threads = 1}};
  const opipe_dim dims[] = {{"batch", batch}, {"seq", SEQ}};
  const opipe_api *api = NULL;
  opipe_context *context = NULL;
  opipe_model *model = NULL, *bound = NULL;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;

  need(opipe_open_library(argv[1], &api, &err), "library");
  need(api->context_create(NULL, &context, &err), "context");
  opipe_load_params load = opipe_load_params_init();
  load.path = argv[2];
  need(api->model_load(context, &load, &model, &err), "load");
  opipe_bind_options bind = opipe_bind_options_init();
  bind.flags = OPIPE_BIND_DEFAULTS;
  bind.dims = dims;
  bind.n_dims = 2;
  need(api->model_bind(model, &bind, &bound, &err), "bind");

  describe_machine(api, context, devices, &cluster);
  opipe_strategy *strategy = search(api, bound, batch, &cluster);
  opipe_plan_params params = opipe_plan_params_init();
  params.devices = devices;
  params.n_devices = DEVICES;
  need(api->strategy_plan(strategy, bound, &params, &plan, &err), "plan");
  need(api->session_open(context, plan, NULL, &session, &err), "session");
  run(api, session, bound, batch);

  api->session_close(session);
  api->plan_destroy(plan);
  api->strategy_destroy(strategy);
  api->model_destroy(bound);
  api->model_destroy(model);
  api->context_destroy(context);
  return 0;
}
