/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms of products that were chosen elsewhere, as texts: kernels_fit, kernels_use and
 * program_kernels of backend.h.
 *
 *   .what    product m=768 n=64 k=768 batch=1 trans=T,N types=1,1 ld=768,768,768 ...
 *   .choice  algorithm=21 tile=20 split=1 ...       an attribute each, those that are 0 left out
 *
 * An algorithm is made anew from its attributes, so that a table has no bytes that only one version
 * of the library understands, and asked whether it takes the product before anything runs.
 */
#include <stdlib.h>

#include "product.h"

enum {
  WHAT_ROOM = sizeof((opipe_kernel *)0)->what,
  CHOICE_ROOM = sizeof((opipe_kernel *)0)->choice
};

/* The choice given for one `what`. */
typedef struct given {
  char what[WHAT_ROOM];
  char choice[CHOICE_ROOM];
} given;

struct cuda_choices {
  uint32_t n;
  given rows[]; /* by `what` */
};

/* ---- texts ---- */

static const struct {
  int attribute;
  uint32_t size, most; /* bytes; the greatest value */
  const char *word;
} attributes[] = {{CUDA_LT_ALGO_ID, 4, INT32_MAX, "algorithm"},
                  {CUDA_LT_ALGO_TILE, 4, UINT32_MAX, "tile"},
                  {CUDA_LT_ALGO_SPLIT, 4, INT32_MAX, "split"},
                  {CUDA_LT_ALGO_SCHEME, 4, UINT32_MAX, "scheme"},
                  {CUDA_LT_ALGO_SWIZZLE, 4, UINT32_MAX, "swizzle"},
                  {CUDA_LT_ALGO_CUSTOM, 4, UINT32_MAX, "custom"},
                  {CUDA_LT_ALGO_STAGES, 4, UINT32_MAX, "stages"},
                  {CUDA_LT_ALGO_INNER, 2, UINT16_MAX, "inner"},
                  {CUDA_LT_ALGO_CLUSTER, 2, UINT16_MAX, "cluster"}};
enum { ATTRIBUTES = sizeof attributes / sizeof attributes[0] };

static const char *epilogue_of(const cuda_product *p) {
  static const char *const sums[] = {[CUDA_SUMS_A] = "sums_a", [CUDA_SUMS_B] = "sums_b"};
  static const char *const epilogues[][2][2] = {
      [CUDA_THROUGH_NOTHING] = {{"none", "none"}, {"bias", "bias"}},
      [CUDA_THROUGH_GELU] = {{"gelu", "gelu+aux"}, {"bias+gelu", "bias+gelu+aux"}},
      [CUDA_THROUGH_DGELU] = {{"dgelu", "dgelu"}, {"dgelu", "dgelu"}}};
  return p->sums != CUDA_SUMS_NOTHING ? sums[p->sums]
                                      : epilogues[p->through][p->has_bias != 0][p->has_aux];
}

void cuda_product_what(const opipe_device *device, const cuda_product *p, char *out, size_t room) {
  cuda_product_traits t;
  const bool many = p->batch > 1; /* else the library is not told of strides */
  cuda_product_traits_of(device, p, &t);
  (void)snprintf(
      out, room,
      "product m=%lld n=%lld k=%lld batch=%lld trans=%c,%c types=%s,%s%s ld=%lld,%lld,%lld "
      "stride=%lld,%lld,%lld align=%u,%u,%u,%u beta=%d epilogue=%s sm=%d",
      (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->batch,
      p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', opipe_dtype_name(p->dtype),
      opipe_dtype_name(p->d_dtype), t.compute == CUDA_COMPUTE_32F_FAST_TF32 ? ",tf32" : "",
      (long long)p->a_distance, (long long)p->b_distance, (long long)p->d_distance,
      many ? (long long)p->a_stride : 0LL, many ? (long long)p->b_stride : 0LL,
      many ? (long long)p->d_stride : 0LL, t.align[0], t.align[1], t.align[2], t.align[3],
      p->beta != 0, epilogue_of(p), (int)device->processors);
}

static cublasStatus_t get(const cuda_products *lt, const cuda_lt_algo *algo, size_t i,
                          uint32_t *out) {
  size_t written = 0;
  *out = 0; /* little-endian: one of 16 bits fills its lower half */
  return lt->algo_get((const cublasLtMatmulAlgo_t *)(const void *)algo,
                      (cublasLtMatmulAlgoConfigAttributes_t)attributes[i].attribute, out,
                      attributes[i].size, &written);
}

opipe_status cuda_choice_text(const opipe_device *device, const cuda_lt_algo *algo, char *out,
                              size_t room, opipe_error *err) {
  const cuda_products *lt = &device->place->libraries->products;
  size_t used = 0;
  out[0] = '\0';
  for (size_t i = 0; i < ATTRIBUTES && used < room; ++i) {
    uint32_t value = 0;
    CUDA_TRY(cuda_lt_answer(device, get(lt, algo, i, &value),
                            "cublasLtMatmulAlgoConfigGetAttribute", err));
    if (value != 0 || i == 0) {
      used += (size_t)snprintf(out + used, room - used, "%s%s=%u", i == 0 ? "" : " ",
                               attributes[i].word, value);
    }
  }
  return OPIPE_OK;
}

/* A choice's numbers, 0 where it says none. False: it cannot be read. */
static bool parse(const char *text, uint32_t values[ATTRIBUTES]) {
  bool said[ATTRIBUTES] = {false};
  memset(values, 0, ATTRIBUTES * sizeof values[0]);
  for (const char *at = text; *at != '\0';) {
    const size_t n = strcspn(at, "= ");
    char *end = NULL;
    size_t i = 0;
    while (i < ATTRIBUTES &&
           (strlen(attributes[i].word) != n || memcmp(attributes[i].word, at, n) != 0))
      ++i;
    if (i == ATTRIBUTES || said[i] || at[n] != '=' || at[n + 1] < '0' || at[n + 1] > '9')
      return false;
    const unsigned long value = strtoul(at + n + 1, &end, 10);
    if (value > attributes[i].most || (*end != '\0' && *end != ' '))
      return false;
    values[i] = (uint32_t)value;
    said[i] = true;
    at = *end == ' ' ? end + 1 : end;
  }
  return said[0];
}

/* ---- the choices given ---- */

static int by_what(const void *left, const void *right) {
  return strcmp(((const given *)left)->what, ((const given *)right)->what);
}

static size_t bytes_of(uint32_t n) {
  return sizeof(cuda_choices) + n * sizeof(given);
}

void cuda_choices_free(opipe_device *device) {
  cuda_choices *choices = device->choices;
  device->choices = NULL;
  if (choices != NULL)
    opipe_free(device->host, choices, bytes_of(choices->n), _Alignof(cuda_choices));
}

/* Are pieces added otherwise than products may be? */
static bool adds_otherwise(const uint32_t values[ATTRIBUTES]) {
  for (size_t i = 0; i < ATTRIBUTES; ++i) {
    if (attributes[i].attribute == CUDA_LT_ALGO_SCHEME)
      return (values[i] & ~(uint32_t)CUDA_SCHEMES) != 0;
  }
  return false;
}

static void warn(const opipe_device *device, const opipe_kernel *kernel) {
  char text[WHAT_ROOM + CHOICE_ROOM + 200];
  if (device->host->log == NULL)
    return;
  (void)snprintf(text, sizeof text,
                 "cuda:%u: '%s' is not taken for '%s': pieces of its sums are added in the type of "
                 "the result",
                 device->place->index, kernel->choice, kernel->what);
  device->host->log(device->host->ctx, OPIPE_LOG_WARN, NULL, 0, text);
}

/* One of a caller's array, into a row. */
static opipe_status take(const opipe_device *device, const opipe_kernel *kernel, given *out,
                         opipe_error *err) {
  uint32_t values[ATTRIBUTES];
  if (memchr(kernel->what, '\0', WHAT_ROOM) == NULL ||
      memchr(kernel->choice, '\0', CHOICE_ROOM) == NULL)
    return opipe_fail(err, OPIPE_E_INVALID, "kernels_use: a text has no end");
  (void)snprintf(out->what, sizeof out->what, "%s", kernel->what);
  (void)snprintf(out->choice, sizeof out->choice, "%s", kernel->choice);
  if (!parse(kernel->choice, values)) {
    return opipe_fail(err, OPIPE_E_INVALID, "kernels_use: '%.120s' for '%.200s' is no algorithm",
                      kernel->choice, kernel->what);
  }
  if (adds_otherwise(values))
    warn(device, kernel);
  return OPIPE_OK;
}

opipe_status cuda_kernels_use(opipe_device *device, const opipe_kernel *kernels, uint32_t n,
                              opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (n == 0) {
    cuda_choices_free(device);
    return OPIPE_OK;
  }
  if (device->invariant) {
    return opipe_fail(
        err, OPIPE_E_STATE,
        "kernels_use: with invariant=1 a product has one algorithm for all numbers of "
        "rows");
  }
  if (!OPIPE_HAS(kernels, opipe_kernel, choice)) {
    return opipe_fail(err, OPIPE_E_ABI, "kernels_use: struct_size %u is too small",
                      kernels->struct_size);
  }
  cuda_choices *made =
      opipe_zeroed(device->host, "choices of kernels", bytes_of(n), _Alignof(cuda_choices), err);
  if (made == NULL)
    return OPIPE_E_NOMEM;
  made->n = n;
  for (uint32_t i = 0; status >= 0 && i < n; ++i) {
    const void *kernel = (const char *)kernels + (size_t)i * kernels->struct_size;
    status = take(device, kernel, &made->rows[i], err);
  }
  qsort(made->rows, n, sizeof made->rows[0], by_what);
  for (uint32_t i = 1; status >= 0 && i < n; ++i) {
    if (by_what(&made->rows[i - 1], &made->rows[i]) == 0)
      status = opipe_fail(err, OPIPE_E_INVALID, "kernels_use: '%.200s' twice", made->rows[i].what);
  }
  if (status < 0) {
    opipe_free(device->host, made, bytes_of(n), _Alignof(cuda_choices));
    return status;
  }
  cuda_choices_free(device);
  device->choices = made;
  return OPIPE_OK;
}

/* The algorithm of a choice's numbers. */
static cublasStatus_t make(const opipe_device *device, const cuda_product *product,
                           const uint32_t values[ATTRIBUTES], cuda_lt_algo *out) {
  const cuda_products *lt = &device->place->libraries->products;
  cublasLtMatmulAlgo_t *algo = (cublasLtMatmulAlgo_t *)(void *)out;
  cuda_product_traits t;
  cuda_product_traits_of(device, product, &t);
  cublasStatus_t status =
      lt->algo_init(device->products, (cublasComputeType_t)t.compute, (cudaDataType_t)t.scale,
                    (cudaDataType_t)t.type, (cudaDataType_t)t.type, (cudaDataType_t)t.d_type,
                    (cudaDataType_t)t.d_type, (int)values[0], algo);
  for (size_t i = 1; status == CUDA_LT_SUCCESS && i < ATTRIBUTES; ++i) {
    uint32_t has = 0;
    status = get(lt, out, i, &has);
    if (status == CUDA_LT_SUCCESS && has != values[i]) {
      status = lt->algo_set(algo, (cublasLtMatmulAlgoConfigAttributes_t)attributes[i].attribute,
                            &values[i], attributes[i].size);
    }
  }
  return status;
}

bool cuda_choice_make(const opipe_device *device, const cuda_product *product,
                      const cuda_lt_descriptors *all, const char *text, cuda_lt_choice *out) {
  const cuda_products *lt = &device->place->libraries->products;
  uint32_t values[ATTRIBUTES];
  cuda_lt_choice result;
  memset(out, 0, sizeof *out);
  memset(&result, 0, sizeof result);
  if (!parse(text, values) || adds_otherwise(values) ||
      make(device, product, values, &out->algo) != CUDA_LT_SUCCESS ||
      lt->algo_check(device->products, all->desc, all->a, all->b, all->d, all->d,
                     (const cublasLtMatmulAlgo_t *)(const void *)&out->algo,
                     (cublasLtMatmulHeuristicResult_t *)(void *)&result) != CUDA_LT_SUCCESS ||
      result.workspace_bytes > (size_t)CUDA_WORKSPACE_LIMIT)
    return false;
  out->workspace_bytes = result.workspace_bytes;
  return true;
}

bool cuda_choice_find(const opipe_device *device, const cuda_product *product,
                      const cuda_lt_descriptors *all, cuda_lt_choice *out) {
  const cuda_choices *choices = device->choices;
  given wanted;
  if (choices == NULL)
    return false;
  cuda_product_what(device, product, wanted.what, sizeof wanted.what);
  const given *found =
      bsearch(&wanted, choices->rows, choices->n, sizeof choices->rows[0], by_what);
  return found != NULL && cuda_choice_make(device, product, all, found->choice, out);
}

/* ---- the other slots ---- */

opipe_status cuda_kernels_fit(opipe_device *device, char *out_text, uint64_t room,
                              opipe_error *err) {
  const cuda_place *place = device->place;
  const cuda_driver *driver = place->driver;
  const uint64_t version = place->libraries->products_version;
  char name[64] = "GPU";
  static const int which[] = {CUDA_ATTRIBUTE_MAJOR, CUDA_ATTRIBUTE_MINOR,
                              CUDA_ATTRIBUTE_PROCESSORS};
  int values[3] = {0};
  (void)driver->device_name(name, (int)sizeof name, place->ordinal);
  for (size_t i = 0; i < 3; ++i) {
    CUDA_TRY(cuda_result(
        device->place,
        driver->device_attribute(&values[i], (CUdevice_attribute)which[i], place->ordinal),
        "cuDeviceGetAttribute", err));
  }
  const int n = snprintf(out_text, (size_t)room,
                         "%s (sm_%d%d), %d processors, cublasLt %llu.%llu.%llu, %d bytes of "
                         "workspace",
                         name, values[0], values[1], values[2], (unsigned long long)version / 10000,
                         (unsigned long long)version % 10000 / 100,
                         (unsigned long long)version % 100, CUDA_WORKSPACE_LIMIT);
  return (uint64_t)n < room ? OPIPE_OK
                            : opipe_fail(err, OPIPE_E_LIMIT, "kernels_fit: %d bytes, room for %llu",
                                         n + 1, (unsigned long long)room);
}

static opipe_status describe(const opipe_device *device, const cuda_product *product,
                             opipe_kernel *out, opipe_error *err) {
  const uint32_t size = out->struct_size;
  memset(out, 0, sizeof *out);
  out->struct_size = size;
  out->flags = product->is_given ? OPIPE_KERNEL_GIVEN : 0;
  cuda_product_what(device, product, out->what, sizeof out->what);
  return cuda_choice_text(device, &product->choice.algo, out->choice, sizeof out->choice, err);
}

opipe_status cuda_program_kernels(const opipe_program *program, opipe_kernel *out_kernels,
                                  uint32_t *io_count, opipe_error *err) {
  const uint32_t room = out_kernels != NULL ? *io_count : 0;
  uint32_t n = 0;
  if (room != 0 && !OPIPE_HAS(out_kernels, opipe_kernel, choice)) {
    return opipe_fail(err, OPIPE_E_ABI, "program_kernels: struct_size %u is too small",
                      out_kernels->struct_size);
  }
  for (const cuda_step *step = program->steps; step != NULL; step = step->next) {
    if (step->product == NULL || cuda_product_is_empty(step->product))
      continue;
    if (n < room) {
      void *to = (char *)out_kernels + (size_t)n * out_kernels->struct_size;
      CUDA_TRY(describe(program->device, step->product, to, err));
    }
    ++n;
  }
  *io_count = n;
  return room != 0 && room < n
             ? opipe_fail(err, OPIPE_E_LIMIT, "program_kernels: room for %u of %u", room, n)
             : OPIPE_OK;
}
