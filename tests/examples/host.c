/* SPDX-License-Identifier: Apache-2.0 */
/* A host in C that only opens the library: loads a model, cuts it into stages, streams requests.
 *
 *   cc -std=c11 -I<prefix>/include host.c -ldl -o host
 *   ./host <prefix>/lib/libonnxpipe.so model.onnx [STAGES [REQUESTS]]
 * Integer inputs are 1, others 0.5: the point is the calls, in the order in which a host makes
 * them.
 */
#include <opipe/host_helpers.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS_MOST = 16, IN_FLIGHT = 4 };

static opipe_error err = OPIPE_ERROR_INIT;

/* Ends the program when a call failed: the message names the thing. */
static void need(opipe_status status, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "%s: %s\n", what, err.message);
  exit(1);
}

/* A host would bring its own tensors: a pointer, a shape and a type, as DLPack has them. */
static opipe_binding_io make_input(const opipe_tensor_info *info) {
  opipe_tensor tensor = opipe_dense(info->dtype, NULL, info->shape, info->rank);
  const size_t n_bytes = (size_t)opipe_dense_bytes(&tensor);
  const size_t n = tensor.dtype.bits == 0 ? 0 : n_bytes / (tensor.dtype.bits / 8);
  const int one = info->index_limit == 1 ? 0 : 1;
  tensor.data = calloc(n_bytes + 1, 1);
  if (tensor.data == NULL)
    exit(1);
  for (size_t i = 0; i < n; ++i) {
    switch (info->dtype) {
      case OPIPE_INT64:
        ((int64_t *)tensor.data)[i] = one;
        break;
      case OPIPE_INT32:
        ((int32_t *)tensor.data)[i] = one;
        break;
      case OPIPE_FLOAT:
        ((float *)tensor.data)[i] = 0.5f;
        break;
      default:
        fprintf(stderr, "input %s: this example has no data of type %u\n", info->name, info->dtype);
        exit(1);
    }
  }
  return opipe_named(info->name, tensor);
}

int main(int argc, char **argv) {
  const uint32_t n_stages = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 2;
  const uint32_t n_requests = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 8;
  if (argc < 3 || n_stages == 0 || n_requests == 0) {
    fprintf(stderr, "usage: %s libonnxpipe.so model.onnx [STAGES [REQUESTS]]\n", argv[0]);
    return 2;
  }
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
  need(api->model_bind(model, &bind, &bound, &err), "bind");
  opipe_plan_params params = opipe_plan_params_init();
  params.n_stages = n_stages;
  need(api->plan_make(bound, &params, &plan, &err), "plan");
  need(api->session_open(context, plan, NULL, &session, &err), "session");
  api->plan_destroy(plan); /* a session keeps what it needs */

  opipe_binding_io inputs[INPUTS_MOST];
  opipe_model_info info = opipe_model_info_init();
  need(api->model_info(bound, &info, &err), "model");
  if (info.n_inputs > INPUTS_MOST)
    return 1;
  for (uint32_t i = 0; i < info.n_inputs; ++i) {
    opipe_tensor_info input = opipe_tensor_info_init();
    need(api->model_input(bound, i, &input, &err), "input");
    inputs[i] = make_input(&input);
  }

  /* Compiled now, not while the first request waits; other shapes in the same way. */
  need(opipe_warm_up(api, session, inputs, info.n_inputs, &err), "warming up");

  /* A stream: several requests in flight, results in the order of submission. */
  opipe_request *requests[IN_FLIGHT] = {NULL};
  opipe_submit_params submit = opipe_submit_params_init();
  submit.n_inputs = info.n_inputs;
  submit.inputs = inputs;
  for (uint32_t done = 0, sent = 0; done < n_requests;) {
    if (sent < n_requests && sent - done < IN_FLIGHT) {
      need(api->session_submit_wait(session, OPIPE_START_REQUEST, &submit, UINT64_MAX,
                                    &requests[sent++ % IN_FLIGHT], &err),
           "submit"); /* session_submit would answer OPIPE_PENDING where there is no room */
      continue;
    }
    opipe_tensor output;
    opipe_request *request = requests[done++ % IN_FLIGHT];
    need(api->request_wait(request, UINT64_MAX, &err), "request");
    need(api->request_output(request, 0, &output, &err), "output");
    if (done == n_requests && output.dtype.code == OPIPE_DL_FLOAT && output.dtype.bits == 32) {
      printf("%u requests in %u stages; first value of the last one: %g\n", done, n_stages,
             (double)*(const float *)output.data);
    }
    api->request_release(request);
  }

  for (uint32_t i = 0; i < info.n_inputs; ++i)
    free(inputs[i].tensor.data);
  api->session_close(session);
  api->model_destroy(bound);
  api->model_destroy(model);
  api->context_destroy(context);
  return 0;
}
