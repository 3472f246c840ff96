/* SPDX-License-Identifier: Apache-2.0 */
/* A host in C that uses the GPU too: its tensors lie there, its work is on a stream of its own, and
 * the library stands between two pieces of that work without a copy and without a wait.
 *
 *   cc -std=c11 -I<prefix>/include gpu.c -ldl -o gpu
 *   ./gpu <prefix>/lib/libonnxpipe.so model.onnx [REQUESTS [libcuda.so.1]]
 * The model has one int64 input of token ids (0 to 31 here) and float outputs. Without a GPU it
 * says "not run".
 */
#include <dlfcn.h>
#include <opipe/host.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static opipe_error err = OPIPE_ERROR_INIT;

/* Ends the program when a call failed: the message names the thing. */
static void need(opipe_status status, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "%s: %s\n", what, err.message);
  exit(1);
}

static void *need_memory(size_t n_bytes) {
  void *data = calloc(1, n_bytes + 1);
  if (data == NULL)
    exit(1);
  return data;
}

/* ---- CUDA's driver, as far as it is used; a host with cuda.h has this already ---- */

typedef unsigned long long device_pointer;
static struct {
  int (*cuInit)(unsigned flags);
  int (*cuDeviceGetCount)(int *count);
  int (*cuDevicePrimaryCtxRetain)(void **context, int device);
  int (*cuCtxPushCurrent_v2)(void *context);
  int (*cuStreamCreate)(void **stream, unsigned flags);
  int (*cuStreamSynchronize)(void *stream);
  int (*cuStreamDestroy_v2)(void *stream);
  int (*cuMemAlloc_v2)(device_pointer *address, size_t n_bytes);
  int (*cuMemFree_v2)(device_pointer address);
  int (*cuMemcpyHtoDAsync_v2)(device_pointer to, const void *from, size_t n_bytes, void *stream);
  int (*cuMemcpyDtoHAsync_v2)(void *to, device_pointer from, size_t n_bytes, void *stream);
} cuda;
enum { NON_BLOCKING = 1 };

static void must(int result, const char *what) {
  if (result == 0)
    return;
  fprintf(stderr, "%s: CUDA error %d\n", what, result);
  exit(1);
}

/* Ends the program where there is no GPU. */
static void open_cuda(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *context = NULL;
  int n = 0;
  if (library == NULL) {
    printf("not run: no GPU (%s)\n", dlerror());
    exit(0);
  }
#define TAKE(name) *(void **)&cuda.name = dlsym(library, #name)
  TAKE(cuInit), TAKE(cuDeviceGetCount), TAKE(cuDevicePrimaryCtxRetain), TAKE(cuCtxPushCurrent_v2);
  TAKE(cuStreamCreate), TAKE(cuStreamSynchronize), TAKE(cuStreamDestroy_v2), TAKE(cuMemAlloc_v2);
  TAKE(cuMemFree_v2), TAKE(cuMemcpyHtoDAsync_v2), TAKE(cuMemcpyDtoHAsync_v2);
  if (cuda.cuInit(0) != 0 || cuda.cuDeviceGetCount(&n) != 0 || n == 0) {
    printf("not run: no GPU (the driver has none)\n");
    exit(0);
  }
  must(cuda.cuDevicePrimaryCtxRetain(&context, 0), "context");
  must(cuda.cuCtxPushCurrent_v2(context), "context");
}

/* ---- tensors ---- */

static size_t elements(const opipe_tensor_info *info) {
  size_t n = 1;
  for (uint32_t d = 0; d < info->rank; ++d)
    n *= (size_t)info->shape[d];
  return n;
}

/* A tensor as DLPack has it: a pointer, and whose memory it is. */
static opipe_binding_io tensor_of(const opipe_tensor_info *info, device_pointer address) {
  opipe_binding_io io;
  memset(&io, 0, sizeof io);
  io.name = info->name;
  io.tensor.data = (void *)(uintptr_t)address;
  io.tensor.device_type = OPIPE_DL_CUDA; /* device_id 0: the first that this process sees */
  io.tensor.rank = (int32_t)info->rank;
  io.tensor.shape = info->shape;
  io.tensor.dtype = info->dtype == OPIPE_INT64 ? (opipe_dtype){OPIPE_DL_INT, 64, 1}
                                               : (opipe_dtype){OPIPE_DL_FLOAT, 32, 1};
  return io;
}

static opipe_session *open_session(const opipe_api *api, const char *file, opipe_context **context,
                                   opipe_tensor_info *in, opipe_tensor_info *out) {
  const opipe_device_choice device = {.kind = "cuda"};
  const opipe_load_params load = {.struct_size = sizeof load, .path = file};
  const opipe_bind_options bind = {.struct_size = sizeof bind, .flags = OPIPE_BIND_DEFAULTS};
  opipe_plan_params params = opipe_plan_params_init();
  opipe_model *model = NULL, *bound = NULL;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  params.devices = &device;
  params.n_devices = 1;
  need(api->context_create(NULL, context, &err), "context");
  need(api->model_load(*context, &load, &model, &err), "load");
  need(api->model_bind(model, &bind, &bound, &err), "bind");
  need(api->model_input(bound, 0, in, &err), "input");
  need(api->model_output(bound, 0, out, &err), "output");
  need(api->plan_make(bound, &params, &plan, &err), "plan");
  need(api->session_open(*context, plan, NULL, &session, &err), "session");
  api->plan_destroy(plan);   /* a session keeps what it needs; names and shapes are the model's, */
  api->model_destroy(model); /* so the bound one stays, with the context */
  return session;
}

/* The session's answer to ids in host memory. */
static float *ask(const opipe_api *api, opipe_session *session, const opipe_tensor_info *in,
                  const int64_t *ids, size_t n_bytes) {
  opipe_binding_io io = tensor_of(in, (device_pointer)(uintptr_t)ids);
  opipe_submit_params submit = opipe_submit_params_init();
  opipe_request *request = NULL;
  opipe_tensor output;
  float *answer = need_memory(n_bytes);
  io.tensor.device_type = OPIPE_DL_CPU;
  submit.n_inputs = 1;
  submit.inputs = &io;
  need(api->session_submit_wait(session, OPIPE_START_REQUEST, &submit, UINT64_MAX, &request, &err),
       "submit");
  need(api->request_wait(request, UINT64_MAX, &err), "request");
  need(api->request_output(request, 0, &output, &err), "output");
  memcpy(answer, output.data, n_bytes);
  api->request_release(request);
  return answer;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s libonnxpipe.so model.onnx [REQUESTS [libcuda.so.1]]\n", argv[0]);
    return 2;
  }
  const uint32_t n_requests = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 8;
  const opipe_api *api = NULL;
  opipe_get_api_fn get_api = NULL;
  opipe_context *context = NULL;
  opipe_tensor_info in = {.struct_size = sizeof in}, out = {.struct_size = sizeof out};
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *stream = NULL;
  if (library != NULL)
    *(void **)&get_api = dlsym(library, "opipe_get_api");
  if (get_api == NULL) {
    fprintf(stderr, "%s: %s\n", argv[1], dlerror());
    return 1;
  }
  need(get_api(OPIPE_VIEW, &api, &err), "opipe_get_api");
  open_cuda(argc > 4 ? argv[4] : "libcuda.so.1");
  opipe_session *session = open_session(api, argv[2], &context, &in, &out);

  /* The host's own: a stream, the ids and room for the answer on the GPU. */
  const size_t n_ids = elements(&in), n_bytes = elements(&out) * sizeof(float);
  int64_t *ids = need_memory(n_ids * sizeof *ids);
  float *answer = need_memory(n_bytes);
  device_pointer d_ids = 0, d_answer = 0;
  must(cuda.cuStreamCreate(&stream, NON_BLOCKING), "stream");
  must(cuda.cuMemAlloc_v2(&d_ids, n_ids * sizeof *ids), "memory");
  must(cuda.cuMemAlloc_v2(&d_answer, n_bytes), "memory");

  /* `ready`: what the stream has been given; `done`: the stream waits. Where a tensor is dense and
   * lies at a multiple of 256 bytes, the programs read and write it where it is. */
  opipe_binding_io input = tensor_of(&in, d_ids), output = tensor_of(&out, d_answer);
  input.ready = output.ready = input.done = output.done =
      (opipe_fence){.kind = OPIPE_FENCE_NATIVE_STREAM, .handle = stream};
  opipe_submit_params submit = opipe_submit_params_init();
  submit.n_inputs = submit.n_outputs = 1;
  submit.inputs = &input;
  submit.outputs = &output;
  uint32_t n_equal = 0;
  for (uint32_t r = 0; r < n_requests; ++r) {
    opipe_request *request = NULL;
    for (size_t i = 0; i < n_ids; ++i)
      ids[i] = (int64_t)((i * 7 + r) % 32);
    must(cuda.cuMemcpyHtoDAsync_v2(d_ids, ids, n_ids * sizeof *ids, stream), "ids");
    need(
        api->session_submit_wait(session, OPIPE_START_REQUEST, &submit, UINT64_MAX, &request, &err),
        "submit");
    need(api->request_queued(request, UINT64_MAX, &err), "queued"); /* not: finished */
    must(cuda.cuMemcpyDtoHAsync_v2(answer, d_answer, n_bytes, stream), "answer");
    must(cuda.cuStreamSynchronize(stream), "stream");
    need(api->request_wait(request, UINT64_MAX, &err), "request");
    api->request_release(request);
    float *wanted = ask(api, session, &in, ids, n_bytes);
    n_equal += memcmp(answer, wanted, n_bytes) == 0;
    free(wanted);
  }
  printf("%u requests on the GPU, %u with the bits of host memory\n", n_requests, n_equal);

  api->session_close(session);
  api->context_destroy(context);
  must(cuda.cuMemFree_v2(d_ids) | cuda.cuMemFree_v2(d_answer), "memory");
  must(cuda.cuStreamDestroy_v2(stream), "stream");
  free(ids);
  free(answer);
  return n_equal == n_requests ? 0 : 1;
}
