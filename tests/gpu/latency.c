/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-latency LIBRARY MODEL TOKENS VOCABULARY REQUESTS [OPTIONS]: seconds of requests of one sample
 * on the first GPU, one after another, each waited for before the next is begun, as JSON:
 * {"seconds": [...]}. The first ones find everything cold. MODEL: ids [batch, TOKENS] -> one
 * output. OPTIONS: of the device, as graphs=1.
 */
#include <time.h>

#include "host.h"

static double now_s(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static opipe_session *open_session(const opipe_api *api, opipe_context *context, const char *file,
                                   const char *options, opipe_model **out_bound) {
  const opipe_device_choice device = {.kind = "cuda", .threads = 1, .options = options};
  const opipe_dim dims[] = {{"batch", 1}};
  opipe_load_params load = opipe_load_params_init();
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_plan_params params = opipe_plan_params_init();
  opipe_model *model = NULL;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  load.path = file;
  bind.flags = OPIPE_BIND_DEFAULTS;
  bind.dims = dims;
  bind.n_dims = 1;
  params.devices = &device;
  params.n_devices = 1;
  params.n_stages = 1;
  need(api->model_load(context, &load, &model, &err), "load");
  need(api->model_bind(model, &bind, out_bound, &err), "bind");
  need(api->plan_make(*out_bound, &params, &plan, &err), "plan");
  need(api->session_open(context, plan, NULL, &session, &err), "session");
  api->plan_destroy(plan);
  api->model_destroy(model);
  return session;
}

static void request(const opipe_api *api, opipe_session *session, const opipe_binding_io *input) {
  opipe_request *handle = NULL;
  opipe_submit_params submit = opipe_submit_params_init();
  submit.n_inputs = 1;
  submit.inputs = input;
  need(api->session_submit(session, &submit, &handle, &err), "submit");
  need(api->request_wait(handle, UINT64_MAX, &err), "request");
  api->request_release(handle);
}

int main(int argc, char **argv) {
  if (argc < 6) {
    fprintf(stderr, "usage: %s LIBRARY MODEL TOKENS VOCABULARY REQUESTS [OPTIONS]\n", argv[0]);
    return 2;
  }
  const int64_t shape[2] = {1, strtoll(argv[3], NULL, 10)};
  const int64_t vocabulary = strtoll(argv[4], NULL, 10);
  const long n = strtol(argv[5], NULL, 10);
  if (shape[1] < 1 || vocabulary < 1 || n < 1) {
    fprintf(stderr, "TOKENS, VOCABULARY and REQUESTS are at least 1\n");
    return 2;
  }
  const opipe_api *api = open_library(argv[1]);
  opipe_context *context = NULL;
  opipe_model *bound = NULL;
  int64_t *ids = calloc((size_t)shape[1], sizeof *ids);
  if (ids == NULL)
    return 1;
  for (int64_t t = 0; t < shape[1]; ++t)
    ids[t] = t * 7919 % vocabulary;
  need(api->context_create(NULL, &context, &err), "context");
  opipe_session *session = open_session(api, context, argv[2], argc > 6 ? argv[6] : NULL, &bound);
  const opipe_binding_io input = {.name = "ids",
                                  .tensor = {.data = ids,
                                             .device_type = OPIPE_DL_CPU,
                                             .rank = 2,
                                             .dtype = {OPIPE_DL_INT, 64, 1},
                                             .shape = shape}};
  printf("{\"seconds\": [");
  for (long i = 0; i < n; ++i) {
    const double began = now_s();
    request(api, session, &input);
    printf("%s%.9f", i == 0 ? "" : ", ", now_s() - began);
  }
  printf("]}\n");
  api->session_close(session);
  api->model_destroy(bound);
  api->context_destroy(context);
  free(ids);
  return 0;
}
