/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-ceilings: what the device and the vendor's products reach, as JSON.
 *
 *   --ceilings   products of 8192^3 by type, copies on the device
 *   --choices    products of GPT-2's shapes in bf16: the first choice, the best of 8, a bias as
 *                epilogue beside none
 *   --size N     side of the products in place of 8192; --tokens N: rows in place of 16384
 * Operands are random; a figure is the median of 5 measurements of some runs each. Stands on the
 * plugin's own way to find the libraries. Status 3: no device.
 */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "libraries.h"

enum { ROUNDS = 5, RUNS = 8, CHOICES = 8, WORKSPACE = 32 << 20 };

static const cuda_libraries *libraries;
static CUstream stream;
static CUdeviceptr workspace;

static void must(int result, const char *what) {
  if (result == 0)
    return;
  (void)fprintf(stderr, "gpu-ceilings: %s answers %d\n", what, result);
  exit(1);
}

static double now_s(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* ---- memory ---- */

static CUdeviceptr device_bytes(size_t n_bytes) {
  CUdeviceptr at = 0;
  must((int)libraries->driver.memory_alloc(&at, n_bytes), "cuMemAlloc");
  return at;
}

/* n elements in (-1, 1) of a type of `size` bytes, from a block of random ones that repeats. */
static CUdeviceptr random_elements(size_t n, uint32_t size, int type) {
  enum { BLOCK = 1 << 20 };
  static unsigned char block[BLOCK * 4];
  uint64_t state = 88172645463325252u;
  for (size_t i = 0; i < BLOCK; ++i) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const float value = (float)(state >> 40) * 0x1p-23f - 1.0f;
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    if (size == 4) {
      memcpy(block + 4 * i, &bits, 4);
    } else { /* the upper half of fp32 is bf16; fp16: sign, an exponent below 15, 10 bits */
      const uint16_t half =
          type == CUDA_R16BF ? (uint16_t)(bits >> 16)
                             : (uint16_t)((bits >> 16 & 0x8000) | (10 + (state >> 30) % 4) << 10 |
                                          (state >> 20 & 0x3ff));
      memcpy(block + 2 * i, &half, 2);
    }
  }
  const CUdeviceptr at = device_bytes(n * size);
  for (size_t done = 0; done < n; done += BLOCK) {
    const size_t part = n - done < BLOCK ? n - done : BLOCK;
    must((int)libraries->driver.write(at + done * size, block, part * size, stream), "a copy");
    must((int)libraries->driver.stream_sync(stream), "a copy");
  }
  return at;
}

/* ---- products: D [m, n] = A^T B, A [k, m], B [k, n] by columns, as row-major layers are ---- */

typedef struct product {
  int64_t m, n, k;
  int type, compute;
  uint32_t size;
  CUdeviceptr a, b, d, bias;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t layouts[3];
  cublasLtHandle_t handle;
} product;

static void set(product *p, int attribute, const void *value, size_t n_bytes) {
  must((int)libraries->products.desc_set(p->desc, (cublasLtMatmulDescAttributes_t)attribute, value,
                                         n_bytes),
       "cublasLtMatmulDescSetAttribute");
}

static void open_product(product *p, bool with_bias) {
  const cuda_products *lt = &libraries->products;
  const int32_t turned = CUDA_OP_T;
  const uint32_t epilogue = CUDA_LT_EPILOGUE_BIAS;
  const int64_t rows[] = {p->k, p->k, p->m}, columns[] = {p->m, p->n, p->n};
  must((int)lt->desc_create(&p->desc, (cublasComputeType_t)p->compute, (cudaDataType_t)CUDA_R32F),
       "cublasLtMatmulDescCreate");
  set(p, CUDA_LT_DESC_TRANSA, &turned, sizeof turned);
  if (with_bias) {
    const void *bias = (const void *)(uintptr_t)p->bias;
    set(p, CUDA_LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    set(p, CUDA_LT_DESC_BIAS_POINTER, &bias, sizeof bias);
  }
  for (int i = 0; i < 3; ++i) {
    must((int)lt->layout_create(&p->layouts[i], (cudaDataType)p->type, (uint64_t)rows[i],
                                (uint64_t)columns[i], rows[i]),
         "cublasLtMatrixLayoutCreate");
  }
}

static void close_product(product *p) {
  (void)libraries->products.desc_destroy(p->desc);
  for (int i = 0; i < 3; ++i)
    (void)libraries->products.layout_destroy(p->layouts[i]);
}

static int choose(const product *p, cublasLtMatmulHeuristicResult_t *choices) {
  const cuda_products *lt = &libraries->products;
  const uint64_t limit = WORKSPACE;
  cublasLtMatmulPreference_t preference = NULL;
  int n = 0;
  must((int)lt->preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  must((int)lt->preference_set(preference,
                               (cublasLtMatmulPreferenceAttributes_t)CUDA_LT_PREFER_WORKSPACE,
                               &limit, sizeof limit),
       "cublasLtMatmulPreferenceSetAttribute");
  must((int)lt->choose(p->handle, p->desc, p->layouts[0], p->layouts[1], p->layouts[2],
                       p->layouts[2], preference, CHOICES, choices, &n),
       "cublasLtMatmulAlgoGetHeuristic");
  (void)lt->preference_destroy(preference);
  return n;
}

static int multiply(const product *p, const cublasLtMatmulHeuristicResult_t *choice) {
  const float one = 1, zero = 0;
  cublasLtMatmulAlgo_t algo;
  memcpy(&algo, choice, sizeof algo); /* its first member */
  return (int)libraries->products.product(
      p->handle, p->desc, &one, (const void *)(uintptr_t)p->a, p->layouts[0],
      (const void *)(uintptr_t)p->b, p->layouts[1], &zero, (const void *)(uintptr_t)p->d,
      p->layouts[2], (void *)(uintptr_t)p->d, p->layouts[2], &algo, (void *)(uintptr_t)workspace,
      WORKSPACE, (cudaStream_t)stream);
}

/* Seconds of one; infinite where the library refuses the choice. */
static double time_product(const product *p, const cublasLtMatmulHeuristicResult_t *choice) {
  double seconds[ROUNDS];
  if (multiply(p, choice) != CUDA_LT_SUCCESS)
    return (double)INFINITY;
  must((int)libraries->driver.stream_sync(stream), "a product");
  for (int round = 0; round < ROUNDS; ++round) {
    const double began = now_s();
    for (int run = 0; run < RUNS; ++run)
      must(multiply(p, choice), "cublasLtMatmul");
    must((int)libraries->driver.stream_sync(stream), "a product");
    seconds[round] = (now_s() - began) / RUNS;
  }
  qsort(seconds, ROUNDS, sizeof seconds[0], by_value);
  return seconds[ROUNDS / 2];
}

static product make_product(cublasLtHandle_t handle, int64_t m, int64_t n, int64_t k, int type,
                            int compute) {
  product p = {.m = m, .n = n, .k = k, .type = type, .compute = compute, .handle = handle};
  p.size = type == CUDA_R32F ? 4 : 2;
  p.a = random_elements((size_t)(k * m), p.size, type);
  p.b = random_elements((size_t)(k * n), p.size, type);
  p.d = device_bytes((size_t)(m * n) * p.size);
  p.bias = random_elements((size_t)m, p.size, type);
  return p;
}

static void free_product(const product *p) {
  const CUdeviceptr all[] = {p->a, p->b, p->d, p->bias};
  for (int i = 0; i < 4; ++i)
    must((int)libraries->driver.memory_free(all[i]), "cuMemFree");
}

static double flops_of(const product *p, double seconds) {
  return 2.0 * (double)p->m * (double)p->n * (double)p->k / seconds;
}

/* ---- measurements to be asked for ---- */

static void ceilings(cublasLtHandle_t handle, int64_t side) {
  static const struct {
    const char *name;
    int type, compute;
  } rows[] = {{"bf16", CUDA_R16BF, CUDA_COMPUTE_32F},
              {"fp16", CUDA_R16F, CUDA_COMPUTE_32F},
              {"tf32", CUDA_R32F, CUDA_COMPUTE_32F_FAST_TF32},
              {"fp32", CUDA_R32F, CUDA_COMPUTE_32F}};
  cublasLtMatmulHeuristicResult_t choices[CHOICES];
  (void)printf("{\"side\": %lld", (long long)side);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    product p = make_product(handle, side, side, side, rows[i].type, rows[i].compute);
    open_product(&p, false);
    const int n = choose(&p, choices);
    if (n > 0) {
      (void)printf(", \"%s_tflops\": %.2f", rows[i].name,
                   1e-12 * flops_of(&p, time_product(&p, &choices[0])));
    }
    close_product(&p);
    free_product(&p);
  }
  const size_t n_bytes = (size_t)(side * side) * 8;
  const CUdeviceptr from = random_elements(n_bytes / 4, 4, CUDA_R32F), to = device_bytes(n_bytes);
  double seconds[ROUNDS];
  for (int round = 0; round < ROUNDS; ++round) {
    const double began = now_s();
    for (int run = 0; run < RUNS; ++run)
      must((int)libraries->driver.copy(to, from, n_bytes, stream), "a copy");
    must((int)libraries->driver.stream_sync(stream), "a copy");
    seconds[round] = (now_s() - began) / RUNS;
  }
  qsort(seconds, ROUNDS, sizeof seconds[0], by_value);
  (void)printf(", \"copy_read_and_write_gb_per_s\": %.1f}\n",
               2e-9 * (double)n_bytes / seconds[ROUNDS / 2]);
}

static void choices_of(cublasLtHandle_t handle, int64_t tokens) {
  static const int widths[] = {768, 1024, 1280, 1600};
  cublasLtMatmulHeuristicResult_t choices[CHOICES];
  bool first = true;
  (void)printf("[");
  for (size_t w = 0; w < sizeof widths / sizeof widths[0]; ++w) {
    const int64_t shapes[][2] = {{3 * widths[w], widths[w]},
                                 {widths[w], widths[w]},
                                 {4 * widths[w], widths[w]},
                                 {widths[w], 4 * widths[w]}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
      product p =
          make_product(handle, shapes[s][0], tokens, shapes[s][1], CUDA_R16BF, CUDA_COMPUTE_32F);
      double times[2][2]; /* [with bias][first, best] */
      for (int bias = 0; bias < 2; ++bias) {
        open_product(&p, bias != 0);
        const int n = choose(&p, choices);
        times[bias][0] = times[bias][1] = n > 0 ? time_product(&p, &choices[0]) : (double)INFINITY;
        for (int c = 1; c < n; ++c)
          times[bias][1] = fmin(times[bias][1], time_product(&p, &choices[c]));
        close_product(&p);
      }
      (void)printf(
          "%s{\"m\": %lld, \"n\": %lld, \"k\": %lld, \"first_tflops\": %.2f, "
          "\"best_tflops\": %.2f, \"with_bias_tflops\": %.2f}",
          first ? "" : ",\n ", (long long)p.m, (long long)p.n, (long long)p.k,
          1e-12 * flops_of(&p, times[0][0]), 1e-12 * flops_of(&p, times[0][1]),
          1e-12 * flops_of(&p, times[1][1]));
      first = false;
      free_product(&p);
    }
  }
  (void)printf("]\n");
}

int main(int argc, char **argv) {
  opipe_error err = OPIPE_ERROR_INIT;
  CUdevice device = 0;
  CUcontext context = NULL;
  cublasLtHandle_t handle = NULL;
  int64_t side = 8192, tokens = 16384;
  bool choice = false;
  for (int i = 1; i < argc; ++i) {
    choice = choice || strcmp(argv[i], "--choices") == 0;
    if (strcmp(argv[i], "--size") == 0 && i + 1 < argc)
      side = strtoll(argv[++i], NULL, 10);
    else if (strcmp(argv[i], "--tokens") == 0 && i + 1 < argc)
      tokens = strtoll(argv[++i], NULL, 10);
  }
  if (side < 8 || tokens < 8 || cuda_libraries_open(&libraries, &err) < 0 ||
      libraries->driver.device_get(&device, 0) != CUDA_OK) {
    (void)fprintf(stderr, "gpu-ceilings: %s\n",
                  err.message[0] != '\0' ? err.message : "no device, or a size below 8");
    return 3;
  }
  must((int)libraries->driver.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
  must((int)libraries->driver.context_push(context), "cuCtxPushCurrent");
  must((int)libraries->driver.stream_create(&stream, CUDA_STREAM_NON_BLOCKING), "cuStreamCreate");
  must((int)libraries->products.create(&handle), "cublasLtCreate");
  workspace = device_bytes(WORKSPACE);
  if (choice)
    choices_of(handle, tokens);
  else
    ceilings(handle, side);
  return 0;
}
