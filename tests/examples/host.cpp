// SPDX-License-Identifier: Apache-2.0
// A host in C++17 that only opens the library: handles in unique_ptr, errors as exceptions, outputs
// written into the host's own memory, and two requests of different shapes alternating in one
// session.
//
//   c++ -std=c++17 -I<prefix>/include host.cpp -ldl -o host_cpp
//   ./host_cpp <prefix>/lib/libonnxpipe.so model.onnx
#include <opipe/host_helpers.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(opipe_status status, const opipe_error &err, const char *what) {
  if (status < 0)
    throw std::runtime_error(std::string(what) + ": " + err.message);
}

template <typename T>
using handle = std::unique_ptr<T, void (*)(T *)>;

// One row of token ids, one result: the shapes live as long as the tensors do.
struct sequence {
  std::vector<int64_t> ids, shape, out_shape;
  std::vector<float> logits;
  sequence(int64_t length, int64_t vocabulary)
      : ids(static_cast<size_t>(length)),
        shape{1, length},
        out_shape{1, length, vocabulary},
        logits(static_cast<size_t>(length * vocabulary)) {
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<int64_t>(i % 7);
  }
};

opipe_tensor view(uint32_t dtype, void *data, const std::vector<int64_t> &shape) {
  return opipe_dense(dtype, data, shape.data(), static_cast<uint32_t>(shape.size()));
}

void run(const opipe_api *api, opipe_session *session, const char *input, const char *output,
         sequence &s) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_binding_io in = opipe_named(input, view(OPIPE_INT64, s.ids.data(), s.shape));
  const opipe_binding_io out = opipe_named(output, view(OPIPE_FLOAT, s.logits.data(), s.out_shape));
  opipe_submit_params params = opipe_submit_params_init();
  params.n_inputs = params.n_outputs = 1;
  params.inputs = &in;
  params.outputs = &out;
  opipe_request *request = nullptr;
  check(api->session_submit_wait(session, OPIPE_START_REQUEST, &params, UINT64_MAX, &request, &err),
        err, "submit");
  handle<opipe_request> owned(request, api->request_release);
  check(api->request_wait(request, UINT64_MAX, &err), err, "wait");
}

int serve(const char *library, const char *path) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_api *api = nullptr;
  check(opipe_open_library(library, &api, &err), err, "library");
  opipe_context *context = nullptr;
  check(api->context_create(nullptr, &context, &err), err, "context");
  handle<opipe_context> own_context(context, api->context_destroy);

  opipe_load_params load = opipe_load_params_init();
  load.path = path;
  opipe_model *model = nullptr, *bound = nullptr;
  check(api->model_load(context, &load, &model, &err), err, "load");
  handle<opipe_model> own_model(model, api->model_destroy);

  opipe_bind_options bind = opipe_bind_options_init();
  bind.flags = OPIPE_BIND_DEFAULTS;
  check(api->model_bind(model, &bind, &bound, &err), err, "bind");
  handle<opipe_model> own_bound(bound, api->model_destroy);

  opipe_plan_params params = opipe_plan_params_init();
  params.n_stages = 2;
  opipe_plan *plan = nullptr;
  check(api->plan_make(bound, &params, &plan, &err), err, "plan");
  handle<opipe_plan> own_plan(plan, api->plan_destroy);
  opipe_session *session = nullptr;
  check(api->session_open(context, plan, nullptr, &session, &err), err, "session");
  handle<opipe_session> own_session(session, api->session_close);

  opipe_tensor_info input = opipe_tensor_info_init(), output = input;
  check(api->model_input(bound, 0, &input, &err), err, "input");
  check(api->model_output(bound, 0, &output, &err), err, "output");
  if (input.dtype != OPIPE_INT64 || input.rank != 2 || output.dtype != OPIPE_FLOAT ||
      output.rank != 3)
    throw std::runtime_error("this example wants token ids in and logits out");
  sequence shorter(4, output.shape[2]), longer(12, output.shape[2]);
  for (int i = 0; i < 3; ++i) {
    run(api, session, input.name, output.name, shorter);
    run(api, session, input.name, output.name, longer);
  }
  // A causal model gives a prefix the same logits whatever follows.
  float largest = 0, difference = 0;
  for (size_t i = 0; i < shorter.logits.size(); ++i) {
    const float d = shorter.logits[i] - longer.logits[i], value = shorter.logits[i];
    difference = d > difference ? d : -d > difference ? -d : difference;
    largest = value > largest ? value : -value > largest ? -value : largest;
  }
  std::printf("2 shapes alternated; prefixes differ by %g of %g\n", static_cast<double>(difference),
              static_cast<double>(largest));
  return difference <= 1e-5f * largest ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s libonnxpipe.so model.onnx\n", argv[0]);
    return 2;
  }
  try {
    return serve(argv[1], argv[2]);
  } catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
