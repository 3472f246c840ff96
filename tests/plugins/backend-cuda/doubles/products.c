/* SPDX-License-Identifier: Apache-2.0 */
/* cublasLt without a GPU: libcublasLt.so.13 of the tests. It does what the descriptors say
 * (layouts, transposition, batches, addend, bias, GELU and its derivative with what they are of,
 * sums of an operand over k), in the stream's order, and refuses what the vendor's refuses:
 * operands that do not fit each other, distances shorter than a column, an epilogue that the type
 * has not or two that do not go together, a bias of another type than D, an algorithm of another
 * product, addresses less aligned than it was told or, of a bias, saw when it chose, sums that
 * share bytes with an operand, a workspace that is too small. It writes over its workspace.
 *
 * It has several algorithms (`variants`), with times of their own by the stream's clock: sums in
 * one piece, or in several that are added in the end, which gives other bits. Who does not say
 * which schemes of adding pieces are wanted gets those first that add them in the result's type,
 * one of them in the order in which they are done. An algorithm for deep products does the latter
 * whatever it says, so that no two runs have the same bits; of one the sums over k alone never have
 * them. Others cannot be made anew from their attributes, or have other bits then: what kernel_tune
 * must find out.
 *
 * Environment: OPIPE_CUDA_DOUBLE_PRODUCTS (130100), its version; _PRODUCTS_ANSWER=N: what choosing
 * and checking answer to products with an epilogue ("N all": to every one).
 */
#include <stdlib.h>
#include <string.h>

#include "products.h"

struct cublasLtContext {
  int unused;
};
struct cuda_lt_preference {
  uint64_t workspace;
  uint32_t schemes;  /* bits of those that pieces may be added by */
  uint32_t align[4]; /* A, B, C, D */
};

/* An algorithm, in the place of the vendor's opaque words. */
typedef struct algorithm {
  uint64_t hash;     /* of the problem that it was chosen for; 0: made from attributes */
  uint32_t align[4]; /* A, B, C, D that it was told of */
  int32_t id, split;
  uint32_t tile, scheme, swizzle, custom, stages;
  uint16_t inner, cluster;
  int8_t types[6];   /* compute, scale, A, B, C, D */
  int8_t unsaid;     /* set by no attribute; 0: made from attributes */
  uint8_t bias_bits; /* low bits of the bias' address that were 0 */
} algorithm;
_Static_assert(sizeof(algorithm) == sizeof(cuda_lt_algo), "an algorithm fills the vendor's");

static const variant variants[] = {
    {21, 2, 20, 4, CUDA_LT_SCHEME_INPLACE, 0, 0.7, .deep = true, .unsteady = true},
    {21, 2, 20, 4, CUDA_LT_SCHEME_OUTPUT, 0, 0.7, .deep = true},
    {21, 2, 20, 4, CUDA_LT_SCHEME_COMPUTE, 0, 0.8, .deep = true},
    {21, 1, 20, 4, 0, 0, 1.0},
    {21, 1, 18, 3, 0, 0, 1.2},
    {31, 1, 24, 5, 0, 0x80000001u, 0.7, .whole = true},
    {31, 4, 24, 5, CUDA_LT_SCHEME_COMPUTE, 0, 0.6, .deep = true},
    {66, 3, 0, 0, CUDA_LT_SCHEME_COMPUTE, 0, 0.3, .deep = true, .unsteady = true},
    {71, 1, 26, 6, 0, 0, 0.2, .unsaid = LOST},
    {72, 1, 26, 6, 0, 0, 0.2, .unsaid = CHANGED},
    {81, 3, 28, 4, CUDA_LT_SCHEME_COMPUTE, 0, 0.1, .summing = true}};
enum { FOR_FEW = 8 }; /* the first one that is named where not all processors are aimed at */
/* The first one for fewer columns than LEAST, where OPIPE_CUDA_DOUBLE_PRODUCTS_BY_ROWS is set. */
enum { FOR_NARROW = 4, LEAST = 16 };
enum { VARIANTS = sizeof variants / sizeof variants[0] };

size_t cublasLtGetVersion(void) {
  const char *text = getenv("OPIPE_CUDA_DOUBLE_PRODUCTS");
  return text != NULL ? strtoul(text, NULL, 10) : 130100;
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUDA_LT_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUDA_LT_NO_MEMORY     ? "CUBLAS_STATUS_ALLOC_FAILED"
         : status == CUDA_LT_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == CUDA_LT_OTHER_CHIP    ? "CUBLAS_STATUS_ARCH_MISMATCH"
         : status == CUDA_LT_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                           : "CUBLAS_STATUS_UNKNOWN";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  *handle = cuda_double_handle(sizeof **handle);
  return *handle != NULL ? CUDA_LT_SUCCESS : 1; /* not initialised */
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  cuda_double_wait_for_all("cublasLtDestroy");
  free(handle);
  return CUDA_LT_SUCCESS;
}

/* ---- descriptors ---- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = calloc(1, sizeof **desc);
  if (*desc == NULL)
    return 3;
  (*desc)->compute = compute; /* one by one: what lies between them stays 0, for hash_of */
  (*desc)->scale = scale;
  (*desc)->trans_a = (*desc)->trans_b = CUDA_OP_N;
  (*desc)->epilogue = CUDA_LT_EPILOGUE_DEFAULT;
  (*desc)->bias_type = -1;
  return CUDA_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  cuda_double_note_call();
  free(desc);
  return CUDA_LT_SUCCESS;
}

static cublasStatus_t set(void *to, size_t room, const void *value, size_t bytes) {
  if (bytes != room)
    return CUDA_LT_INVALID_VALUE;
  memcpy(to, value, bytes);
  return CUDA_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
  switch ((int)attribute) {
    case CUDA_LT_DESC_TRANSA:
      return set(&desc->trans_a, sizeof desc->trans_a, value, bytes);
    case CUDA_LT_DESC_TRANSB:
      return set(&desc->trans_b, sizeof desc->trans_b, value, bytes);
    case CUDA_LT_DESC_EPILOGUE:
      return set(&desc->epilogue, sizeof desc->epilogue, value, bytes);
    case CUDA_LT_DESC_BIAS_POINTER:
      return set(&desc->bias, sizeof desc->bias, value, bytes);
    case CUDA_LT_DESC_BIAS_TYPE:
      return set(&desc->bias_type, sizeof desc->bias_type, value, bytes);
    case CUDA_LT_DESC_AUX_POINTER:
      return set(&desc->aux, sizeof desc->aux, value, bytes);
    case CUDA_LT_DESC_PROCESSORS:
      return set(&desc->processors, sizeof desc->processors, value, bytes);
    case CUDA_LT_DESC_AUX_DISTANCE:
      return set(&desc->aux_distance, sizeof desc->aux_distance, value, bytes);
    default:
      return CUDA_LT_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t distance) {
  *layout = calloc(1, sizeof **layout);
  if (*layout == NULL)
    return 3;
  **layout = (struct cuda_lt_layout){type, rows, columns, distance, 1, 0};
  return CUDA_LT_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  cuda_double_note_call();
  free(layout);
  return CUDA_LT_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes) {
  switch ((int)attribute) {
    case CUDA_LT_LAYOUT_BATCH_COUNT:
      return set(&layout->batch, sizeof layout->batch, value, bytes);
    case CUDA_LT_LAYOUT_BATCH_STRIDE:
      return set(&layout->stride, sizeof layout->stride, value, bytes);
    default:
      return CUDA_LT_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  *preference = calloc(1, sizeof **preference);
  if (*preference == NULL)
    return 3;
  **preference = (struct cuda_lt_preference){0, 7, {256, 256, 256, 256}};
  return CUDA_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  free(preference);
  return CUDA_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
  const int which = (int)attribute;
  if (which == CUDA_LT_PREFER_WORKSPACE)
    return set(&preference->workspace, sizeof preference->workspace, value, bytes);
  if (which == CUDA_LT_PREFER_SCHEMES)
    return set(&preference->schemes, sizeof preference->schemes, value, bytes);
  if (which < CUDA_LT_PREFER_ALIGN_A || which > CUDA_LT_PREFER_ALIGN_D)
    return CUDA_LT_INVALID_VALUE;
  return set(&preference->align[which - CUDA_LT_PREFER_ALIGN_A], sizeof(uint32_t), value, bytes);
}

/* ---- refused products ---- */

static bool fits(const struct cuda_lt_layout *layout, uint64_t rows, uint64_t columns,
                 const struct cuda_lt_layout *d) {
  return layout->rows == rows && layout->columns == columns && layout->distance >= (int64_t)rows &&
         layout->batch == d->batch && rows > 0 && columns > 0;
}

static bool has_bias(const struct cuda_lt_desc *desc) {
  return (desc->epilogue & CUDA_LT_EPILOGUE_BIAS) != 0;
}

static bool has_aux(const struct cuda_lt_desc *desc) {
  return (desc->epilogue & CUDA_LT_EPILOGUE_AUX) != 0;
}

/* The epilogue sums A or B over k. */
static bool has_sums(const struct cuda_lt_desc *desc) {
  return (desc->epilogue & (CUDA_LT_EPILOGUE_SUMS_A | CUDA_LT_EPILOGUE_SUMS_B)) != 0;
}

/* Addresses that the epilogue needs. */
static bool is_pointed(const struct cuda_lt_desc *desc) {
  return ((!has_bias(desc) && !has_sums(desc)) || desc->bias != NULL) &&
         (!has_aux(desc) || desc->aux != NULL);
}

static cublasStatus_t check_epilogue(const struct cuda_lt_desc *desc,
                                     const struct cuda_lt_layout *d) {
  const uint32_t gelu = CUDA_LT_EPILOGUE_GELU, with = CUDA_LT_EPILOGUE_BIAS | CUDA_LT_EPILOGUE_AUX;
  const bool half = d->type == CUDA_R16F || d->type == CUDA_R16BF;
  if (desc->epilogue == CUDA_LT_EPILOGUE_DEFAULT)
    return CUDA_LT_SUCCESS;
  if (desc->bias_type != -1 && desc->bias_type != d->type)
    return CUDA_LT_NOT_SUPPORTED;
  if (desc->epilogue == CUDA_LT_EPILOGUE_SUMS_A || desc->epilogue == CUDA_LT_EPILOGUE_SUMS_B)
    return d->type == CUDA_R64F || d->batch != 1 ? CUDA_LT_NOT_SUPPORTED : CUDA_LT_SUCCESS;
  if (desc->epilogue == CUDA_LT_EPILOGUE_BIAS)
    return d->type == CUDA_R64F ? CUDA_LT_NOT_SUPPORTED : CUDA_LT_SUCCESS;
  if (!half || d->batch != 1 ||
      ((desc->epilogue & ~with) != gelu && desc->epilogue != CUDA_LT_EPILOGUE_DGELU))
    return CUDA_LT_NOT_SUPPORTED;
  return has_aux(desc) && (desc->aux_distance < (int64_t)d->rows || desc->aux_distance % 8 != 0)
             ? CUDA_LT_NOT_SUPPORTED
             : CUDA_LT_SUCCESS;
}

static cublasStatus_t check(const struct cuda_lt_desc *desc, const struct cuda_lt_layout *a,
                            const struct cuda_lt_layout *b, const struct cuda_lt_layout *c,
                            const struct cuda_lt_layout *d, problem *out) {
  const bool is_double = d->type == CUDA_R64F;
  memset(out, 0, sizeof *out);
  out->desc = *desc;
  out->desc.bias = NULL;
  out->desc.aux = NULL;
  out->a = *a;
  out->b = *b;
  out->c = *c;
  out->d = *d;
  out->m = d->rows;
  out->n = d->columns;
  out->k = desc->trans_a == CUDA_OP_T ? a->rows : a->columns;
  const bool t_a = desc->trans_a == CUDA_OP_T, t_b = desc->trans_b == CUDA_OP_T;
  if (desc->processors < 0 || !fits(a, t_a ? out->k : out->m, t_a ? out->m : out->k, d) ||
      !fits(b, t_b ? out->n : out->k, t_b ? out->k : out->n, d) || !fits(c, out->m, out->n, d) ||
      !fits(d, out->m, out->n, d))
    return CUDA_LT_INVALID_VALUE;
  const bool mixed = a->type != d->type; /* half types may be summed in fp32 */
  if (a->type != b->type || c->type != d->type ||
      (mixed && (d->type != CUDA_R32F || (a->type != CUDA_R16F && a->type != CUDA_R16BF))))
    return CUDA_LT_NOT_SUPPORTED;
  if (is_double != (desc->compute == CUDA_COMPUTE_64F) ||
      desc->scale != (is_double ? CUDA_R64F : CUDA_R32F) ||
      (desc->compute == CUDA_COMPUTE_32F_FAST_TF32 && a->type != CUDA_R32F))
    return CUDA_LT_NOT_SUPPORTED;
  return check_epilogue(desc, d);
}

static uint64_t hash_of(const problem *p) { /* FNV-1a */
  const unsigned char *bytes = (const unsigned char *)p;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < sizeof *p; ++i)
    hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* ---- algorithms ---- */

static bool is_deep(const problem *p) {
  return p->k >= 4 * p->m;
}

/* Pieces of a split product are kept in the workspace, but where they are added in place. */
static uint64_t workspace_of(const problem *p, const variant *v) {
  if (v->scheme == CUDA_LT_SCHEME_INPLACE)
    return 256; /* counters */
  return v->split > 1 ? (p->m * p->n * (uint64_t)p->d.batch * 8 + 255) / 256 * 256 : 0;
}

static void write_types(const problem *p, int8_t types[6]) {
  const int all[6] = {p->desc.compute, p->desc.scale, p->a.type, p->b.type, p->c.type, p->d.type};
  for (int i = 0; i < 6; ++i)
    types[i] = (int8_t)all[i];
}

/* The variant that the attributes say, where it takes the problem; NULL: none does. */
static const variant *variant_of(const algorithm *algo, const problem *p) {
  int8_t types[6];
  write_types(p, types);
  if (memcmp(types, algo->types, sizeof types) != 0 || algo->swizzle != 0 || algo->inner != 0 ||
      algo->cluster != 0)
    return NULL;
  for (int i = 0; i < VARIANTS; ++i) {
    const variant *v = &variants[i];
    if (v->id == algo->id && v->split == algo->split && v->tile == algo->tile &&
        v->stages == algo->stages && v->scheme == algo->scheme && v->custom == algo->custom) {
      const bool possible = (!v->deep || is_deep(p)) && (!v->summing || has_sums(&p->desc));
      return !possible || (v->unsaid == LOST && algo->unsaid == 0) ? NULL : v;
    }
  }
  return NULL;
}

/* The answer that choosing and checking were told to give. */
static cublasStatus_t told(const problem *p) {
  const char *text = getenv("OPIPE_CUDA_DOUBLE_PRODUCTS_ANSWER");
  const bool all = text != NULL && strstr(text, "all") != NULL;
  return text != NULL && (all || p->desc.epilogue != CUDA_LT_EPILOGUE_DEFAULT)
             ? (cublasStatus_t)strtol(text, NULL, 10)
             : CUDA_LT_SUCCESS;
}

static bool serves(const variant *v, const problem *p, const struct cuda_lt_preference *asked) {
  const uint32_t *align = asked->align;
  const bool whole = align[0] >= 16 && align[1] >= 16 && align[2] >= 16 && align[3] >= 16;
  return (!v->deep || is_deep(p)) && (!v->whole || whole) && (!v->summing || has_sums(&p->desc)) &&
         workspace_of(p, v) <= asked->workspace &&
         (v->scheme == 0 || (v->scheme & asked->schemes) != 0);
}

static bool is_aligned(const void *address, uint32_t to) {
  return (uintptr_t)address % to == 0;
}

/* Alignment of the bias, as far as algorithms look: 2^n bytes. */
static uint8_t bias_bits(const void *bias) {
  uint8_t n = 0;
  while (n < 8 && is_aligned(bias, 2u << n))
    ++n;
  return n;
}

static algorithm name_variant(const variant *v, const problem *p, const uint32_t align[4]) {
  algorithm algo = {.hash = hash_of(p),
                    .id = v->id,
                    .split = v->split,
                    .tile = v->tile,
                    .stages = v->stages,
                    .scheme = v->scheme,
                    .custom = v->custom,
                    .unsaid = v->unsaid};
  memcpy(algo.align, align, sizeof algo.align);
  write_types(p, algo.types);
  return algo;
}

static int first_of(cublasLtMatmulDesc_t desc, const problem *p) {
  const bool by_rows = getenv("OPIPE_CUDA_DOUBLE_PRODUCTS_BY_ROWS") != NULL;
  return desc->processors != 0 ? FOR_FEW : by_rows && p->n < LEAST ? FOR_NARROW : 0;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t choices[],
                                              int *count) {
  problem p;
  *count = 0;
  if (handle == NULL || most < 1 || !is_pointed(desc))
    return CUDA_LT_INVALID_VALUE;
  cublasStatus_t status = check(desc, a, b, c, d, &p);
  if (status == CUDA_LT_SUCCESS)
    status = told(&p);
  for (int i = 0; status == CUDA_LT_SUCCESS && i < VARIANTS && *count < most; ++i) {
    const variant *v = &variants[(i + first_of(desc, &p)) % VARIANTS];
    if (!serves(v, &p, preference))
      continue;
    algorithm algo = name_variant(v, &p, preference->align);
    algo.bias_bits = bias_bits(desc->bias);
    memset(&choices[*count], 0, sizeof choices[0]);
    choices[*count].workspace_bytes = workspace_of(&p, v);
    memcpy(&choices[*count].algo, &algo, sizeof algo);
    ++*count;
  }
  return status;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute,
                                      cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                                      cudaDataType_t c, cudaDataType_t d, int id,
                                      cublasLtMatmulAlgo_t *algo) {
  bool known = false;
  const algorithm made = {
      .id = id,
      .split = 1,
      .types = {(int8_t)compute, (int8_t)scale, (int8_t)a, (int8_t)b, (int8_t)c, (int8_t)d}};
  for (int i = 0; i < VARIANTS; ++i)
    known = known || variants[i].id == id;
  memcpy(algo, &made, sizeof made);
  return handle != NULL && known ? CUDA_LT_SUCCESS : CUDA_LT_INVALID_VALUE;
}

/* An attribute's place. */
static void *attribute_of(algorithm *algo, int which, size_t *out_bytes) {
  void *const at[] = {&algo->id,     &algo->tile,   &algo->split, &algo->scheme, &algo->swizzle,
                      &algo->custom, &algo->stages, &algo->inner, &algo->cluster};
  *out_bytes = which < CUDA_LT_ALGO_INNER ? sizeof(uint32_t) : sizeof(uint16_t);
  return which >= CUDA_LT_ALGO_ID && which <= CUDA_LT_ALGO_CLUSTER ? at[which] : NULL;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t bytes, size_t *written) {
  algorithm copy;
  memcpy(&copy, algo, sizeof copy);
  const void *from = attribute_of(&copy, (int)attribute, written);
  if (from == NULL || bytes != *written)
    return CUDA_LT_INVALID_VALUE;
  memcpy(value, from, bytes);
  return CUDA_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void *value, size_t bytes) {
  algorithm copy;
  size_t room = 0;
  memcpy(&copy, algo, sizeof copy);
  void *to = (int)attribute == CUDA_LT_ALGO_ID ? NULL : attribute_of(&copy, (int)attribute, &room);
  if (to == NULL || bytes != room)
    return CUDA_LT_INVALID_VALUE;
  memcpy(to, value, bytes);
  memcpy(algo, &copy, sizeof copy);
  return CUDA_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result) {
  problem p;
  algorithm own;
  if (handle == NULL)
    return CUDA_LT_INVALID_VALUE;
  cublasStatus_t status = check(desc, a, b, c, d, &p);
  if (status == CUDA_LT_SUCCESS)
    status = told(&p);
  if (status != CUDA_LT_SUCCESS)
    return status;
  memcpy(&own, algo, sizeof own);
  const variant *v = variant_of(&own, &p);
  if (v == NULL)
    return CUDA_LT_NOT_SUPPORTED;
  result->workspace_bytes = workspace_of(&p, v);
  result->state = CUDA_LT_SUCCESS;
  return CUDA_LT_SUCCESS;
}

/* Does what D takes share bytes with an operand? The vendor's result is then undefined. */
static bool meets(const struct cuda_lt_layout *d, const void *d_at, const struct cuda_lt_layout *x,
                  const void *x_at) {
  const struct cuda_lt_layout *layouts[2] = {d, x};
  uintptr_t first[2] = {(uintptr_t)d_at, (uintptr_t)x_at}, end[2];
  for (int i = 0; i < 2; ++i) {
    const struct cuda_lt_layout *l = layouts[i];
    const int64_t last = (l->batch - 1) * (l->batch > 1 ? l->stride : 0) +
                         ((int64_t)l->columns - 1) * l->distance + (int64_t)l->rows;
    end[i] = first[i] + (uintptr_t)last * size_of(l->type);
  }
  return first[0] < end[1] && first[1] < end[0];
}

/* The same of what sums over k are written to, in D's type. */
static bool sums_meet(const product_work *w) {
  const problem *p = &w->p;
  const uint64_t n = p->desc.epilogue == CUDA_LT_EPILOGUE_SUMS_A ? p->m : p->n;
  const struct cuda_lt_layout sums = {p->d.type, n, 1, (int64_t)n, 1, 0};
  const struct cuda_lt_layout room = {CUDA_R16F, w->workspace_bytes / 2, 1, 0, 1, 0};
  return meets(&sums, w->sums, &p->a, w->a) || meets(&sums, w->sums, &p->b, w->b) ||
         meets(&sums, w->sums, &p->c, w->c) || meets(&sums, w->sums, &p->d, w->d) ||
         (w->workspace_bytes > 0 && meets(&sums, w->sums, &room, w->workspace));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream) {
  product_work w = {.a = a, .b = b, .c = c, .d = d, .workspace = workspace};
  algorithm own;
  if (handle == NULL || cuda_double_current() == NULL)
    return 1;
  const cublasStatus_t status = check(desc, a_layout, b_layout, c_layout, d_layout, &w.p);
  if (status != CUDA_LT_SUCCESS)
    return status;
  if (meets(&w.p.d, d, &w.p.a, a) || meets(&w.p.d, d, &w.p.b, b))
    return CUDA_LT_INVALID_VALUE;
  memcpy(&own, algo, sizeof own);
  w.by = variant_of(&own, &w.p);
  if (w.by == NULL || (own.hash != 0 && own.hash != hash_of(&w.p)))
    return CUDA_LT_INVALID_VALUE;
  w.n_pieces = (uint64_t)w.by->split + (w.by->unsaid == CHANGED && own.unsaid == 0 ? 1 : 0);
  for (int i = 0; own.hash == 0 && i < 4; ++i)
    own.align[i] = w.by->whole ? 16 : 1;
  w.workspace_bytes = workspace_of(&w.p, w.by);
  if (workspace_bytes < w.workspace_bytes || (w.workspace_bytes > 0 && !is_aligned(workspace, 256)))
    return CUDA_LT_INVALID_VALUE;
  if (!is_aligned(a, own.align[0]) || !is_aligned(b, own.align[1]) ||
      !is_aligned(c, own.align[2]) || !is_aligned(d, own.align[3]) ||
      (desc->bias != NULL && !is_aligned(desc->bias, 16)) ||
      (desc->bias != NULL && own.hash != 0 && bias_bits(desc->bias) < own.bias_bits) ||
      (desc->aux != NULL && !is_aligned(desc->aux, 16)) || !is_pointed(desc))
    return CUDA_LT_INVALID_VALUE;
  const bool is_double = w.p.d.type == CUDA_R64F;
  w.alpha = is_double ? *(const double *)alpha : (double)*(const float *)alpha;
  w.beta = is_double ? *(const double *)beta : (double)*(const float *)beta;
  w.bias = has_bias(desc) ? desc->bias : NULL;
  w.sums = has_sums(desc) ? (void *)(uintptr_t)desc->bias : NULL;
  if (w.sums != NULL && sums_meet(&w))
    return CUDA_LT_INVALID_VALUE;
  w.aux = has_aux(desc) ? desc->aux : NULL;
  const double n = (double)w.p.m * (double)w.p.n * (double)w.p.k * (double)w.p.d.batch;
  const double ns = 1000 + n * w.by->cost;
  return cuda_double_queue((CUstream)stream, product_run, &w, sizeof w, ns) == CUDA_OK
             ? CUDA_LT_SUCCESS
             : 13;
}
