/* SPDX-License-Identifier: Apache-2.0 */
/* The doubles hold their caller to what the vendor leaves undefined (doubles/driver.h): what is
 * refused, and what ends the process with its name on stderr.
 * ctest: always */
#include <stdio.h>

#include "cuda_test.h"
#include "tests/support/apart.h"

typedef struct bench {
  cuda_driver driver;
  cuda_products products;
  CUcontext context;
  CUstream stream;
  cublasLtHandle_t handle;
  CUdeviceptr memory; /* [ROOM] */
} bench;

enum { ROOM = 4096, SIDE = 16, MATRIX = SIDE * SIDE * 2 /* bytes of bf16 */ };

static void give_up(const char *what) {
  (void)fputs(what, stderr);
  _exit(1);
}

/* In the child: threads and contexts of a parent are not its own. */
static void open_bench(bench *b) {
  void *driver = dlopen(opi_test_build("tests/cuda/libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
  void *products = dlopen(opi_test_build("tests/cuda/libcublasLt.so.13"), RTLD_NOW | RTLD_LOCAL);
#define TAKE_OF_DRIVER(member, symbol, result, arguments) \
  *(void **)(void *)&b->driver.member = dlsym(driver, #symbol);
#define TAKE_OF_PRODUCTS(member, symbol, result, arguments) \
  *(void **)(void *)&b->products.member = dlsym(products, #symbol);
  CUDA_DRIVER_FUNCTIONS(TAKE_OF_DRIVER)
  CUDA_PRODUCT_FUNCTIONS(TAKE_OF_PRODUCTS)
  if (b->driver.init(0) != CUDA_OK || b->driver.context_retain(&b->context, 0) != CUDA_OK ||
      b->driver.context_push(b->context) != CUDA_OK ||
      b->driver.stream_create(&b->stream, CUDA_STREAM_NON_BLOCKING) != CUDA_OK ||
      b->driver.memory_alloc(&b->memory, ROOM) != CUDA_OK ||
      b->driver.fill(b->memory, 0x3f, ROOM, b->stream) != CUDA_OK ||
      b->products.create(&b->handle) != CUDA_LT_SUCCESS)
    give_up("the doubles cannot be opened");
}

/* ---- products ---- */

/* D = gelu(A B) with what GELU is of, each [SIDE, SIDE] at a place in memory, in bytes. */
typedef struct places {
  uint32_t a, b, d, aux;
  bool refused; /* by the call */
} places;

static cublasStatus_t multiply(bench *b, const places *at) {
  const cuda_products *lt = &b->products;
  const uint32_t epilogue = CUDA_LT_EPILOGUE_GELU | CUDA_LT_EPILOGUE_AUX;
  const int64_t distance = SIDE;
  const float one = 1, zero = 0;
  char *memory = (char *)(uintptr_t)b->memory;
  void *aux = memory + at->aux;
  cublasLtMatmulDesc_t desc = NULL;
  cublasLtMatrixLayout_t square = NULL;
  cublasLtMatmulPreference_t preference = NULL;
  cuda_lt_choice choice;
  int n = 0;
  if (lt->desc_create(&desc, (cublasComputeType_t)CUDA_COMPUTE_32F, (cudaDataType)CUDA_R32F) != 0 ||
      lt->desc_set(desc, (cublasLtMatmulDescAttributes_t)CUDA_LT_DESC_EPILOGUE, &epilogue,
                   sizeof epilogue) != 0 ||
      lt->desc_set(desc, (cublasLtMatmulDescAttributes_t)CUDA_LT_DESC_AUX_POINTER, &aux,
                   sizeof aux) != 0 ||
      lt->desc_set(desc, (cublasLtMatmulDescAttributes_t)CUDA_LT_DESC_AUX_DISTANCE, &distance,
                   sizeof distance) != 0 ||
      lt->layout_create(&square, (cudaDataType)CUDA_R16BF, SIDE, SIDE, SIDE) != 0 ||
      lt->preference_create(&preference) != 0 ||
      lt->choose(b->handle, desc, square, square, square, square, preference, 1,
                 (cublasLtMatmulHeuristicResult_t *)(void *)&choice, &n) != 0 ||
      n != 1)
    give_up("the product cannot be described");
  const cublasStatus_t status = lt->product(
      b->handle, desc, &one, memory + at->a, square, memory + at->b, square, &zero, memory + at->d,
      square, memory + at->d, square, (const cublasLtMatmulAlgo_t *)(const void *)&choice.algo,
      NULL, 0, (cudaStream_t)(void *)b->stream);
  (void)lt->preference_destroy(preference);
  (void)lt->layout_destroy(square);
  (void)lt->desc_destroy(desc);
  return status;
}

static void try_product(void *ctx) {
  const places *at = ctx;
  bench b;
  open_bench(&b);
  const cublasStatus_t status = multiply(&b, at);
  if ((status != CUDA_LT_SUCCESS) != at->refused)
    give_up("the call answers something else");
  if (b.driver.stream_sync(b.stream) != CUDA_OK)
    give_up("the stream does not end");
}

static void test_products_write_beside_what_they_read(void) {
  static const struct {
    places at;
    const char *words;
  } rows[] = {{{0, MATRIX, 2 * MATRIX, 3 * MATRIX, false}, NULL},
              {{0, 0, 2 * MATRIX, 3 * MATRIX, false}, NULL},
              {{0, MATRIX, 0, 3 * MATRIX, true}, NULL},
              {{0, MATRIX, MATRIX + MATRIX / 2, 3 * MATRIX, true}, NULL},
              {{0, MATRIX, 2 * MATRIX, 0, false}, "a product writes over what it reads"},
              {{0, MATRIX, 2 * MATRIX, MATRIX / 2, false}, "a product writes over what it reads"}};
  char text[1024];
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    places at = rows[i].at;
    const bool ended = opi_test_apart(try_product, &at, text, sizeof text);
    if (ended != (rows[i].words == NULL) || (!ended && strstr(text, rows[i].words) == NULL))
      OPI_FAIL("product %zu: %s, '%s'", i, ended ? "ended" : "did not end", text);
  }
}

OPI_TEST_MAIN("doubles of CUDA", OPI_TEST(test_products_write_beside_what_they_read))
