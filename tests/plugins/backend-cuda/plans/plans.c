/* SPDX-License-Identifier: Apache-2.0 */
/* plans LIBCUDNN [all]: cuDNN itself makes plans of the plugin's graphs, for chips that are
 * described to it. It proves that graphs are well-formed and that the library has engines for them,
 * no numbers. Without `all` a cover for one chip: a plan takes a third of a second to compile. A
 * line per plan; status 0: all are as `cases` says.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "cudnn.h"

static const char form_of_device[] =
    "{\"deviceVer\":%d,\"driverVer\":13000,\"cudaDeviceId\":0,\"totalGlobalMem\":85017493504,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,"
    "\"l2CacheSize\":52428800,\"deviceName\":\"%s\"}";

static const struct {
  int version, processors, shared;
  const char *name;
} chips[] = {{900, 132, 232448, "NVIDIA H100"},
             {800, 108, 166912, "NVIDIA A100"},
             {1000, 148, 232448, "NVIDIA B200"}};

typedef struct plan_case {
  int64_t batch, heads, kv_heads, queries, keys, depth;
  uint32_t dtype, causal, unsteady;
  int refused; /* SMALLER: gradients on chips other than sm_90 */
  bool in_cover;
  uint32_t mask; /* type of the mask; 0: none */
  int repeats;   /* bits: batch 1, heads 2, rows 4 */
} plan_case;
enum { TAKEN, REFUSED, SMALLER };

static const plan_case cases[] = {
    {8, 12, 12, 1024, 1024, 64, OPIPE_BFLOAT16, 1, 0, TAKEN, true},
    {8, 12, 12, 1024, 1024, 64, OPIPE_BFLOAT16, 1, 1, TAKEN, true},
    {4, 16, 16, 1024, 1024, 64, OPIPE_FLOAT16, 0, 0, TAKEN, false},
    {2, 32, 8, 2048, 2048, 128, OPIPE_BFLOAT16, 1, 0, TAKEN, false},
    {1, 4, 1, 37, 1000, 32, OPIPE_FLOAT16, 0, 0, TAKEN, true},
    {1, 2, 2, 1000, 37, 40, OPIPE_BFLOAT16, 0, 0, TAKEN, false},
    {1, 2, 2, 64, 64, 60, OPIPE_BFLOAT16, 1, 0, REFUSED, true},
    {2, 8, 8, 512, 512, 160, OPIPE_BFLOAT16, 1, 0, SMALLER, false},
    {2, 8, 4, 512, 512, 192, OPIPE_FLOAT16, 0, 0, SMALLER, false},
    {2, 8, 2, 1024, 1024, 256, OPIPE_BFLOAT16, 1, 0, SMALLER, false},
    {2, 8, 2, 1024, 1024, 256, OPIPE_BFLOAT16, 1, 1, SMALLER, false},
    {2, 12, 12, 1024, 1024, 64, OPIPE_BFLOAT16, 0, 0, TAKEN, true, OPIPE_FLOAT, 2},
    {2, 12, 12, 1024, 1024, 64, OPIPE_BFLOAT16, 0, 1, TAKEN, false, OPIPE_FLOAT, 2},
    {2, 12, 12, 1024, 1024, 64, OPIPE_BFLOAT16, 1, 0, TAKEN, true, OPIPE_BFLOAT16, 2},
    {2, 12, 12, 1024, 1024, 64, OPIPE_BFLOAT16, 0, 0, TAKEN, false, OPIPE_BFLOAT16, 3},
    {2, 12, 12, 1024, 1024, 64, OPIPE_BFLOAT16, 0, 0, TAKEN, false, OPIPE_BFLOAT16, 6},
    {2, 8, 2, 256, 256, 128, OPIPE_FLOAT16, 0, 0, TAKEN, false, OPIPE_FLOAT, 2},
    {2, 8, 2, 1024, 1024, 128, OPIPE_FLOAT16, 1, 1, TAKEN, false, OPIPE_FLOAT, 6},
    {2, 32, 8, 512, 512, 128, OPIPE_BFLOAT16, 0, 0, TAKEN, false, OPIPE_BFLOAT16, 2},
    {2, 8, 8, 100, 75, 64, OPIPE_BFLOAT16, 0, 0, TAKEN, true, OPIPE_FLOAT, 0},
    {2, 8, 8, 100, 75, 64, OPIPE_BFLOAT16, 0, 0, TAKEN, false, OPIPE_BFLOAT16, 1},
    {2, 8, 8, 900, 775, 64, OPIPE_BFLOAT16, 0, 1, TAKEN, false, OPIPE_FLOAT, 7},
    {2, 8, 8, 75, 100, 64, OPIPE_FLOAT16, 1, 0, TAKEN, false, OPIPE_FLOAT, 4},
    {1, 4, 1, 37, 1000, 32, OPIPE_FLOAT16, 0, 0, TAKEN, false, OPIPE_FLOAT, 2},
    {2, 8, 2, 512, 512, 256, OPIPE_BFLOAT16, 1, 0, SMALLER, false, OPIPE_FLOAT, 2},
    {2, 8, 2, 512, 1024, 64, OPIPE_BFLOAT16, CUDA_DNN_LAST, 0, TAKEN, true},
    {2, 8, 8, 50, 77, 128, OPIPE_FLOAT16, CUDA_DNN_LAST, 0, TAKEN, false},
};

/* The form of tensors [batch, rows, heads * depth]. */
static void fill_form(const plan_case *c, uint32_t what, cuda_dnn_form *out) {
  memset(out, 0, sizeof *out);
  out->batch = c->batch;
  out->heads = c->heads;
  out->kv_heads = c->kv_heads;
  out->queries = c->queries;
  out->keys = c->keys;
  out->depth = out->value_depth = c->depth;
  out->scale = 0.125f;
  out->dtype = c->dtype;
  out->what = what;
  out->causal = c->causal;
  if (c->mask != 0) {
    out->mask_dtype = c->mask;
    out->mask[0] = (c->repeats & 1) != 0 ? 1 : c->batch;
    out->mask[1] = (c->repeats & 2) != 0 ? 1 : c->heads;
    out->mask[2] = (c->repeats & 4) != 0 ? 1 : c->queries;
  }
  out->unsteady = what == CUDA_DNN_GRADIENTS ? c->unsteady : 0;
  for (uint32_t i = 0; i < CUDA_DNN_TENSORS; ++i) {
    const bool of_keys =
        i == CUDA_DNN_AT_K || i == CUDA_DNN_AT_V || i == CUDA_DNN_AT_DK || i == CUDA_DNN_AT_DV;
    const int64_t heads = of_keys ? c->kv_heads : c->heads, rows = of_keys ? c->keys : c->queries;
    out->stride[i][0] = rows * heads * c->depth;
    out->stride[i][1] = c->depth;
    out->stride[i][2] = heads * c->depth;
  }
}

static bool make(const cuda_dnn_functions *dnn, cudnnBackendDescriptor_t device, int version,
                 const plan_case *c, uint32_t what) {
  static cuda_dnn_plan plan;
  opipe_error err = OPIPE_ERROR_INIT;
  memset(&plan, 0, sizeof plan);
  fill_form(c, what, &plan.form);
  const opipe_status status = cuda_dnn_plan_make(dnn, NULL, device, &plan, &err);
  const long long scores = (long long)(c->batch * c->heads * c->queries * c->keys) * 2;
  const bool keeps = what == CUDA_DNN_GRADIENTS && c->unsteady == 0;
  const bool refused = c->refused == REFUSED ||
                       (c->refused == SMALLER && version != 900 && what == CUDA_DNN_GRADIENTS);
  const bool good = refused ? status == OPIPE_E_UNSUPPORTED
                            : status >= 0 && keeps == ((long long)plan.workspace_bytes >= scores);
  (void)printf(
      "%s %s of %lld x %lld (%lld) of %lld, %lld and %lld rows, %s%s%s%s%s: engine %lld, %llu "
      "bytes %s\n",
      good ? "ok    " : "FAILED", what == CUDA_DNN_GRADIENTS ? "gradients" : "attention",
      (long long)c->batch, (long long)c->heads, (long long)c->kv_heads, (long long)c->depth,
      (long long)c->queries, (long long)c->keys, opipe_dtype_name(c->dtype),
      c->causal == CUDA_DNN_LAST ? " causal to the last key"
      : c->causal != 0           ? " causal"
                                 : "",
      c->unsteady != 0 ? " in any order" : "", c->mask != 0 ? " masked by " : "",
      c->mask != 0 ? opipe_dtype_name(c->mask) : "", (long long)plan.engine,
      (unsigned long long)plan.workspace_bytes, status < 0 ? err.message : "");
  cuda_dnn_plan_end(dnn, &plan);
  return good;
}

static bool run_chip(const cuda_dnn_functions *dnn, size_t chip, bool all) {
  cudnnBackendDescriptor_t device = NULL;
  char text[1024];
  bool good = true;
  const int n = snprintf(text, sizeof text, form_of_device, chips[chip].version,
                         chips[chip].processors, chips[chip].shared, chips[chip].name);
  if (dnn->make((cudnnBackendDescriptorType_t)CUDA_DNN_DEVICE, &device) != CUDA_DNN_SUCCESS ||
      dnn->set(device, (cudnnBackendAttributeName_t)CUDA_DNN_DEVICE_JSON,
               (cudnnBackendAttributeType_t)CUDA_DNN_T_CHAR, n, text) != CUDA_DNN_SUCCESS ||
      dnn->finalize(device) != CUDA_DNN_SUCCESS) {
    (void)printf("FAILED %s: not described\n", chips[chip].name);
    return false;
  }
  (void)printf("%s\n", chips[chip].name);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    if (!all && !cases[i].in_cover)
      continue;
    if (cases[i].unsteady == 0 || all) /* only gradients may be */
      good = make(dnn, device, chips[chip].version, &cases[i], CUDA_DNN_RESULT) && good;
    good = make(dnn, device, chips[chip].version, &cases[i], CUDA_DNN_GRADIENTS) && good;
  }
  (void)dnn->free(device);
  return good;
}

int main(int argc, char **argv) {
  cuda_dnn_functions dnn;
  bool good = true;
  const bool all = argc == 3 && strcmp(argv[2], "all") == 0;
  void *library = argc == 2 || all ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    (void)fprintf(stderr, "plans LIBCUDNN [all]: %s\n", argc == 2 || all ? dlerror() : "arguments");
    return 2;
  }
#define TAKE(member, symbol, result, arguments) \
  *(void **)(void *)&dnn.member = dlsym(library, #symbol);
  CUDA_DNN_FUNCTIONS(TAKE)
  const size_t version = dnn.version();
  (void)printf("cuDNN %zu.%zu.%zu\n", version / 10000, version % 10000 / 100, version % 100);
  for (size_t i = 0; i < (all ? sizeof chips / sizeof chips[0] : 1); ++i)
    good = run_chip(&dnn, i, all) && good;
  return good ? 0 : 1;
}
