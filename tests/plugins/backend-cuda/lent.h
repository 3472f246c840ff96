/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of tensors and fences on a GPU: a host with a session on the doubles, a
 * stream and memory of its own, and the driver's counts.
 */
#ifndef TESTS_PLUGINS_BACKEND_CUDA_LENT_H_
#define TESTS_PLUGINS_BACKEND_CUDA_LENT_H_

#include <dlfcn.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"
#include "tests/plugins/backend-cuda/doubles/driver.h"

/* The second writes something of its own to the device in every run, the first nothing. */
#define LENT_MODEL "tests/data/gpt_8block/model.onnx"
#define LENT_SMALL "tests/data/gpt_raw/model.onnx"
enum { LENT_BATCH = 4, LENT_SEQ = 16, LENT_IDS = LENT_BATCH * LENT_SEQ, LENT_SLOTS = 24 };

typedef struct lent_host {
  host_kit k;
  cuda_driver driver;
  void (*look)(cuda_double_facts *out);
  void (*hold)(CUstream stream, bool hold);
  CUcontext context;
  CUstream stream;
  int64_t ids[LENT_IDS];
  int64_t ids_shape[2];
  CUdeviceptr d_ids; /* LENT_SLOTS times the ids, 4096 bytes apart */
  CUdeviceptr d_out; /* room for the result */
  const char *output;
  int64_t out_shape[3];
  size_t out_bytes;
  float *wanted, *got; /* the result from host memory; what a test brought home */
} lent_host;

/* False, after a skip: this build has no doubles. A context of the host's own is current. */
static inline bool lent_driver(lent_host *h) {
  memset(h, 0, sizeof *h);
  void *driver = dlopen(opi_test_build("tests/cuda/libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
  if (driver == NULL)
    return false;
#define LENT_TAKE(member, symbol, result, arguments) \
  *(void **)(void *)&h->driver.member = dlsym(driver, #symbol);
  CUDA_DRIVER_FUNCTIONS(LENT_TAKE)
  *(void **)(void *)&h->look = dlsym(driver, "cuda_double_look");
  *(void **)(void *)&h->hold = dlsym(driver, "cuda_double_hold");
  OPI_ASSERT_FATAL(h->driver.init(0) == CUDA_OK);
  OPI_ASSERT_FATAL(h->driver.context_retain(&h->context, 0) == CUDA_OK);
  OPI_ASSERT_FATAL(h->driver.context_push(h->context) == CUDA_OK);
  OPI_ASSERT_FATAL(h->driver.stream_create(&h->stream, CUDA_STREAM_NON_BLOCKING) == CUDA_OK);
  OPI_ASSERT_FATAL(h->driver.memory_alloc(&h->d_ids, LENT_SLOTS * 4096) == CUDA_OK);
  OPI_ASSERT_FATAL(h->driver.host_register(h->ids, sizeof h->ids, 0) ==
                   CUDA_OK); /* no copy waits */
  return true;
}

static inline opipe_fence lent_stream(const lent_host *h) {
  return (opipe_fence){.kind = OPIPE_FENCE_NATIVE_STREAM, .handle = h->stream};
}

static inline opipe_binding_io lent_ids(const lent_host *h, CUdeviceptr address) {
  opipe_binding_io io = kit_ids((const int64_t *)(uintptr_t)address, h->ids_shape);
  io.tensor.device_type = OPIPE_DL_CUDA;
  io.ready = lent_stream(h);
  return io;
}

static inline opipe_binding_io lent_out(const lent_host *h, CUdeviceptr address) {
  return (opipe_binding_io){.name = h->output,
                            .tensor = {.data = (void *)(uintptr_t)address,
                                       .device_type = OPIPE_DL_CUDA,
                                       .rank = 3,
                                       .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                       .shape = h->out_shape},
                            .done = lent_stream(h)};
}

static inline opipe_submit_params lent_params(const opipe_binding_io *in,
                                              const opipe_binding_io *out) {
  opipe_submit_params submit = opipe_submit_params_init();
  submit.n_inputs = 1;
  submit.inputs = in;
  submit.n_outputs = out != NULL;
  submit.outputs = out;
  return submit;
}

/* Asks the session with the ids in host memory. */
static inline void lent_ask(lent_host *h) {
  opipe_request *request = NULL;
  opipe_tensor out;
  const opipe_binding_io in = kit_ids(h->ids, h->ids_shape);
  OPI_ASSERT_OK_FATAL(kit_submit(&h->k, &in, &request), &h->k.err);
  OPI_ASSERT_OK_FATAL(h->k.api->request_wait(request, UINT64_MAX, &h->k.err), &h->k.err);
  OPI_ASSERT_OK_FATAL(h->k.api->request_output(request, 0, &out, &h->k.err), &h->k.err);
  OPI_ASSERT_FATAL(out.device_type == OPIPE_DL_CPU && out.rank == 3);
  h->out_bytes = sizeof(float);
  for (int d = 0; d < 3; ++d) {
    h->out_shape[d] = out.shape[d];
    h->out_bytes *= (size_t)out.shape[d];
  }
  h->wanted = malloc(h->out_bytes);
  h->got = malloc(h->out_bytes);
  OPI_ASSERT_FATAL(h->wanted != NULL && h->got != NULL);
  memcpy(h->wanted, out.data, h->out_bytes);
  h->k.api->request_release(request);
}

/* A session of so many stages, micro-batches and replicas on GPU 0. */
static inline bool lent_open(lent_host *h, const char *model, const opipe_plan_params *how,
                             uint32_t flags) {
  const opipe_device_choice device = {.kind = "cuda"};
  const opipe_session_params session = {.struct_size = sizeof session, .flags = flags};
  opipe_plan_params params = *how;
  opipe_tensor_info info = {.struct_size = sizeof info};
  if (!lent_driver(h))
    return false;
  params.devices = &device;
  params.n_devices = 1;
  params.devices_stride = sizeof device;
  h->ids_shape[0] = LENT_BATCH;
  h->ids_shape[1] = LENT_SEQ;
  for (int64_t i = 0; i < LENT_IDS; ++i)
    h->ids[i] = i * 7 % 32;
  OPI_ASSERT_OK_FATAL(kit_plan(&h->k, NULL, model, LENT_BATCH, LENT_SEQ, &params), &h->k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&h->k, &session), &h->k.err);
  OPI_ASSERT_OK_FATAL(h->k.api->model_output(h->k.bound, 0, &info, &h->k.err), &h->k.err);
  h->output = info.name;
  lent_ask(h);
  OPI_ASSERT_FATAL(h->driver.memory_alloc(&h->d_out, h->out_bytes + 4096) == CUDA_OK);
  return true;
}

/* On the host's stream: done when the doubles come to it, and not before. */
static inline void lent_fill(const lent_host *h, CUdeviceptr address) {
  OPI_ASSERT_FATAL(h->driver.fill(address, 0x7f, sizeof h->ids, h->stream) == CUDA_OK);
  OPI_ASSERT_FATAL(h->driver.write(address, h->ids, sizeof h->ids, h->stream) == CUDA_OK);
}

static inline void lent_bring(const lent_host *h, CUdeviceptr address) {
  memset(h->got, 0, h->out_bytes);
  OPI_ASSERT_FATAL(h->driver.read(h->got, address, h->out_bytes, h->stream) == CUDA_OK);
  OPI_ASSERT_FATAL(h->driver.stream_sync(h->stream) == CUDA_OK);
}

static inline bool lent_is_right(const lent_host *h) {
  return memcmp(h->got, h->wanted, h->out_bytes) == 0;
}

static inline cuda_double_facts lent_look(const lent_host *h) {
  cuda_double_facts facts;
  h->look(&facts);
  return facts;
}

/* The library gives back what it has before the host frees what it lent. */
static inline void lent_close(lent_host *h) {
  kit_close(&h->k);
  OPI_ASSERT(h->driver.stream_destroy(h->stream) == CUDA_OK);
  OPI_ASSERT(h->driver.host_unregister(h->ids) == CUDA_OK);
  OPI_ASSERT(h->driver.memory_free(h->d_ids) == CUDA_OK);
  OPI_ASSERT(h->d_out == 0 || h->driver.memory_free(h->d_out) == CUDA_OK);
  OPI_ASSERT_INT(lent_look(h).live_bytes, 0);
  OPI_ASSERT(h->driver.context_pop(&h->context) == CUDA_OK);
  OPI_ASSERT(h->driver.context_release(0) == CUDA_OK);
  free(h->wanted);
  free(h->got);
}

#endif /* TESTS_PLUGINS_BACKEND_CUDA_LENT_H_ */
