/* SPDX-License-Identifier: Apache-2.0 */
/* Products by cublasLt.
 *
 * The library's matrices are column-major. A row-major Y[M,N] = A[M,K] B[K,N] is, read by columns,
 * Y^T = B^T A^T: so our B is the library's A, our A its B, and m = N, n = M. Nothing is transposed
 * for that, and a bias of N elements runs along the library's rows, as its epilogue wants it. Other
 * work of a product before it rounds (an addend as C, GELU by tanh, its derivative) is an operand
 * or an epilogue too. Sums of an operand over k are epilogues as well: of dW = X^T dY those of dY,
 * our B and the library's A, or of its transpose dY^T X our A and the library's B.
 *
 * The algorithm is the one that the device was given for the shape, types, transposition,
 * distances, epilogue, alignment and processors that are aimed at (choices.c), else the library's
 * first choice for these under a limit of workspace; it does not depend on addresses. With
 * `invariant` it is the first choice without pieces for CUDA_INVARIANT_ROWS rows, made anew for the
 * product's own; what the library does not take for these is an error. Where it sums
 * in pieces these are added in the type that is summed in, when all are done: the library's other
 * ways round them to the result's type, and one adds them there as they come.
 */
#include "product.h"

struct cuda_bound_product {
  const cuda_product *product;
  cuda_product_args args;
  cuda_lt_descriptors all;
  union {
    float f32;
    double f64;
  } alpha, beta;
};

typedef struct type_row {
  uint32_t dtype;
  int type, compute, scale;
  uint32_t size;
} type_row;

static const type_row types[] = {{OPIPE_FLOAT, CUDA_R32F, CUDA_COMPUTE_32F, CUDA_R32F, 4},
                                 {OPIPE_DOUBLE, CUDA_R64F, CUDA_COMPUTE_64F, CUDA_R64F, 8},
                                 {OPIPE_FLOAT16, CUDA_R16F, CUDA_COMPUTE_32F, CUDA_R32F, 2},
                                 {OPIPE_BFLOAT16, CUDA_R16BF, CUDA_COMPUTE_32F, CUDA_R32F, 2}};

static const type_row *type_of(uint32_t dtype) {
  for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
    if (types[i].dtype == dtype)
      return &types[i];
  }
  return NULL;
}

static opipe_status fail_as(const opipe_device *device, opipe_status as, cublasStatus_t status,
                            const char *what, opipe_error *err) {
  const char *name = device->place->libraries->products.status_name(status);
  (void)opipe_fail(err, as, "%s answers %s (%d)", what, name, (int)status);
  if (err != NULL) {
    err->domain = OPIPE_DOMAIN_CUBLAS;
    err->native = (int32_t)status;
  }
  return as == OPIPE_E_DEVICE ? cuda_library_failed(device, what, err) : as;
}

opipe_status cuda_lt_answer(const opipe_device *device, cublasStatus_t status, const char *what,
                            opipe_error *err) {
  if (status == CUDA_LT_SUCCESS)
    return OPIPE_OK;
  return fail_as(device,
                 status == CUDA_LT_NOT_SUPPORTED ? OPIPE_E_UNSUPPORTED
                 : status == CUDA_LT_NO_MEMORY   ? OPIPE_E_NOMEM
                                                 : OPIPE_E_DEVICE,
                 status, what, err);
}

/* Before anything runs: what the library cannot be told, or has not for the chip, it does not
 * support. */
static opipe_status answer_to_question(const opipe_device *device, cublasStatus_t status,
                                       const char *what, opipe_error *err) {
  return status == CUDA_LT_INVALID_VALUE || status == CUDA_LT_OTHER_CHIP
             ? fail_as(device, OPIPE_E_UNSUPPORTED, status, what, err)
             : cuda_lt_answer(device, status, what, err);
}

void cuda_lt_describe_end(const cuda_products *lt, cuda_lt_descriptors *all) {
  if (all->desc != NULL)
    (void)lt->desc_destroy(all->desc);
  if (all->a != NULL)
    (void)lt->layout_destroy(all->a);
  if (all->b != NULL)
    (void)lt->layout_destroy(all->b);
  if (all->d != NULL)
    (void)lt->layout_destroy(all->d);
}

static cublasStatus_t make_layout(const cuda_products *lt, const cuda_product *p, int type,
                                  int64_t rows, int64_t columns, int64_t distance, int64_t stride,
                                  cublasLtMatrixLayout_t *out) {
  const int32_t batch = (int32_t)p->batch;
  cublasStatus_t status =
      lt->layout_create(out, (cudaDataType)type, (uint64_t)rows, (uint64_t)columns, distance);
  if (status != CUDA_LT_SUCCESS || p->batch == 1)
    return status;
  status = lt->layout_set(*out, (cublasLtMatrixLayoutAttribute_t)CUDA_LT_LAYOUT_BATCH_COUNT, &batch,
                          sizeof batch);
  return status != CUDA_LT_SUCCESS
             ? status
             : lt->layout_set(*out, (cublasLtMatrixLayoutAttribute_t)CUDA_LT_LAYOUT_BATCH_STRIDE,
                              &stride, sizeof stride);
}

static cublasStatus_t set_desc(const cuda_products *lt, cublasLtMatmulDesc_t desc, int attribute,
                               const void *value, size_t n_bytes) {
  return lt->desc_set(desc, (cublasLtMatmulDescAttributes_t)attribute, value, n_bytes);
}

static uint32_t epilogue_of(const cuda_product *p) {
  const uint32_t bits = (p->has_bias ? (uint32_t)CUDA_LT_EPILOGUE_BIAS : 0u) |
                        (p->through == CUDA_THROUGH_GELU ? (uint32_t)CUDA_LT_EPILOGUE_GELU : 0u) |
                        (p->through == CUDA_THROUGH_DGELU ? (uint32_t)CUDA_LT_EPILOGUE_DGELU : 0u) |
                        (p->sums == CUDA_SUMS_A ? (uint32_t)CUDA_LT_EPILOGUE_SUMS_A : 0u) |
                        (p->sums == CUDA_SUMS_B ? (uint32_t)CUDA_LT_EPILOGUE_SUMS_B : 0u) |
                        (p->has_aux ? (uint32_t)CUDA_LT_EPILOGUE_AUX : 0u);
  return bits != 0 ? bits : (uint32_t)CUDA_LT_EPILOGUE_DEFAULT;
}

static cublasStatus_t make_desc(const opipe_device *device, const cuda_product *p, const void *bias,
                                void *aux, cublasLtMatmulDesc_t *out) {
  const cuda_products *lt = &device->place->libraries->products;
  const int32_t trans_a = p->trans_a ? CUDA_OP_T : CUDA_OP_N;
  const int32_t trans_b = p->trans_b ? CUDA_OP_T : CUDA_OP_N;
  const uint32_t epilogue = epilogue_of(p);
  const int32_t sums_type = CUDA_R32F;
  cuda_product_traits traits;
  cuda_product_traits_of(device, p, &traits);
  cublasStatus_t status =
      lt->desc_create(out, (cublasComputeType_t)traits.compute, (cudaDataType_t)traits.scale);
  if (status == CUDA_LT_SUCCESS)
    status = set_desc(lt, *out, CUDA_LT_DESC_TRANSA, &trans_a, sizeof trans_a);
  if (status == CUDA_LT_SUCCESS)
    status = set_desc(lt, *out, CUDA_LT_DESC_TRANSB, &trans_b, sizeof trans_b);
  if (status == CUDA_LT_SUCCESS)
    status = set_desc(lt, *out, CUDA_LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  if (status == CUDA_LT_SUCCESS && device->processors != 0) {
    status =
        set_desc(lt, *out, CUDA_LT_DESC_PROCESSORS, &device->processors, sizeof device->processors);
  }
  if (status == CUDA_LT_SUCCESS && (p->has_bias || p->sums != CUDA_SUMS_NOTHING))
    status = set_desc(lt, *out, CUDA_LT_DESC_BIAS_POINTER, &bias, sizeof bias);
  if (status == CUDA_LT_SUCCESS && p->sums != CUDA_SUMS_NOTHING)
    status = set_desc(lt, *out, CUDA_LT_DESC_BIAS_TYPE, &sums_type, sizeof sums_type);
  if (status == CUDA_LT_SUCCESS && p->has_aux)
    status = set_desc(lt, *out, CUDA_LT_DESC_AUX_POINTER, &aux, sizeof aux);
  if (status == CUDA_LT_SUCCESS && p->has_aux)
    status = set_desc(lt, *out, CUDA_LT_DESC_AUX_DISTANCE, &p->d_distance, sizeof p->d_distance);
  return status;
}

opipe_status cuda_lt_describe(const opipe_device *device, const cuda_product *p,
                              const cuda_product_args *args, cuda_lt_descriptors *out,
                              opipe_error *err) {
  /* some answers depend on addresses being there, and on what these are multiples of */
  void *const somewhere = (void *)(uintptr_t)CUDA_ALIGN;
  const void *const some_bias = (const void *)((uintptr_t)CUDA_ALIGN + p->bias_offset);
  const cuda_products *lt = &device->place->libraries->products;
  const type_row *type = type_of(p->dtype);
  memset(out, 0, sizeof *out);
  if (type == NULL || type_of(p->d_dtype) == NULL)
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "no product of %s", opipe_dtype_name(p->dtype));
  cublasStatus_t status = make_desc(device, p, args != NULL ? args->bias : some_bias,
                                    args != NULL ? args->aux : somewhere, &out->desc);
  if (status == CUDA_LT_SUCCESS) {
    status = make_layout(lt, p, type->type, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k,
                         p->a_distance, p->a_stride, &out->a);
  }
  if (status == CUDA_LT_SUCCESS) {
    status = make_layout(lt, p, type->type, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n,
                         p->b_distance, p->b_stride, &out->b);
  }
  if (status == CUDA_LT_SUCCESS) {
    status = make_layout(lt, p, type_of(p->d_dtype)->type, p->m, p->n, p->d_distance, p->d_stride,
                         &out->d);
  }
  if (status != CUDA_LT_SUCCESS)
    cuda_lt_describe_end(lt, out);
  return answer_to_question(device, status, "describing the product to cublasLt", err);
}

/* ---- choosing ---- */

/* The alignment of the operand's addresses, given that its first one is of CUDA_ALIGN. */
static uint32_t alignment_of(const cuda_product *p, int64_t stride, uint64_t offset,
                             uint32_t size) {
  uint64_t bits = CUDA_ALIGN | offset;
  if (p->batch > 1)
    bits |= (uint64_t)stride * size;
  return (uint32_t)(bits & (~bits + 1));
}

void cuda_product_traits_of(const opipe_device *device, const cuda_product *p,
                            cuda_product_traits *out) {
  const type_row *type = type_of(p->dtype), *d_type = type_of(p->d_dtype);
  const bool rounds = device->tf32 && p->dtype == OPIPE_FLOAT;
  *out = (cuda_product_traits){.compute = rounds ? CUDA_COMPUTE_32F_FAST_TF32 : type->compute,
                               .scale = type->scale,
                               .type = type->type,
                               .d_type = d_type->type,
                               .size = type->size,
                               .d_size = d_type->size,
                               .align = {alignment_of(p, p->a_stride, p->a_offset, type->size),
                                         alignment_of(p, p->b_stride, p->b_offset, type->size),
                                         alignment_of(p, p->d_stride, p->d_offset, d_type->size),
                                         alignment_of(p, 0, p->bias_offset, d_type->size)}};
}

static cublasStatus_t make_preference(const opipe_device *device, const cuda_product *p,
                                      cublasLtMatmulPreference_t *out) {
  const cuda_products *lt = &device->place->libraries->products;
  const uint64_t workspace = device->invariant ? 0 : CUDA_WORKSPACE_LIMIT;
  cuda_product_traits traits;
  cuda_product_traits_of(device, p, &traits);
  const struct {
    int attribute;
    uint32_t value;
  } wanted[] = {{CUDA_LT_PREFER_SCHEMES, device->invariant ? 0u : (uint32_t)CUDA_SCHEMES},
                {CUDA_LT_PREFER_ALIGN_A, traits.align[0]},
                {CUDA_LT_PREFER_ALIGN_B, traits.align[1]},
                {CUDA_LT_PREFER_ALIGN_C, traits.align[2]},
                {CUDA_LT_PREFER_ALIGN_D, traits.align[2]}};
  cublasStatus_t status = lt->preference_create(out);
  if (status == CUDA_LT_SUCCESS) {
    status =
        lt->preference_set(*out, (cublasLtMatmulPreferenceAttributes_t)CUDA_LT_PREFER_WORKSPACE,
                           &workspace, sizeof workspace);
  }
  for (size_t i = 0; status == CUDA_LT_SUCCESS && i < sizeof wanted / sizeof wanted[0]; ++i) {
    status = lt->preference_set(*out, (cublasLtMatmulPreferenceAttributes_t)wanted[i].attribute,
                                &wanted[i].value, sizeof wanted[i].value);
  }
  return status;
}

opipe_status cuda_product_candidates(const opipe_device *device, const cuda_product *product,
                                     const cuda_lt_descriptors *all, uint32_t most,
                                     cuda_lt_choice *out_choices, uint32_t *out_n,
                                     opipe_error *err) {
  const cuda_products *lt = &device->place->libraries->products;
  cublasLtMatmulPreference_t preference = NULL;
  int n = 0;
  cublasStatus_t status = make_preference(device, product, &preference);
  if (status == CUDA_LT_SUCCESS) {
    status = lt->choose(device->products, all->desc, all->a, all->b, all->d, all->d, preference,
                        (int)most, (cublasLtMatmulHeuristicResult_t *)(void *)out_choices, &n);
  }
  if (status == CUDA_LT_SUCCESS && n == 0)
    status = (cublasStatus_t)CUDA_LT_NOT_SUPPORTED;
  if (preference != NULL)
    (void)lt->preference_destroy(preference);
  *out_n = (uint32_t)n;
  return answer_to_question(device, status, "cublasLtMatmulAlgoGetHeuristic", err);
}

/* The product with CUDA_INVARIANT_ROWS rows: nothing of it depends on how many there are. */
static cuda_product invariant_form(const cuda_product *product) {
  cuda_product form = *product;
  form.n = CUDA_INVARIANT_ROWS;
  if (form.trans_b && (form.b_distance == product->n || form.b_distance < form.n))
    form.b_distance = form.n;
  if (form.batch > 1) { /* odd: addresses are multiples of an element */
    form.b_stride = (form.n * form.k) | 1;
    form.d_stride = (form.n * form.m) | 1;
  }
  return form;
}

/* The first of the library's algorithms for the form that its attributes say in full, as text. */
static opipe_status name_invariant(const opipe_device *device, const cuda_product *form,
                                   const cuda_lt_descriptors *all, opipe_kernel *out,
                                   opipe_error *err) {
  enum { CANDIDATES = 16 };
  cuda_lt_choice found[CANDIDATES], made;
  uint32_t n = 0;
  memset(found, 0, sizeof found);
  CUDA_TRY(cuda_product_candidates(device, form, all, CANDIDATES, found, &n, err));
  for (uint32_t i = 0; i < n; ++i) {
    CUDA_TRY(cuda_choice_text(device, &found[i].algo, out->choice, sizeof out->choice, err));
    if (cuda_choice_make(device, form, all, out->choice, &made))
      return OPIPE_OK;
  }
  return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                    "invariant=1: none of %u algorithms of cublasLt for %d rows can be made anew",
                    n, CUDA_INVARIANT_ROWS);
}

/* The algorithm of the product's form, made for the product. */
static opipe_status choose_invariant(const opipe_device *device, const cuda_lt_descriptors *all,
                                     cuda_product *product, opipe_error *err) {
  const cuda_product form = invariant_form(product);
  cuda_lt_descriptors formed;
  opipe_kernel kernel;
  CUDA_TRY(cuda_lt_describe(device, &form, NULL, &formed, err));
  const opipe_status status = name_invariant(device, &form, &formed, &kernel, err);
  cuda_lt_describe_end(&device->place->libraries->products, &formed);
  if (status < 0 || cuda_choice_make(device, product, all, kernel.choice, &product->choice))
    return status;
  return opipe_fail(err, OPIPE_E_STATE,
                    "invariant=1: cublasLt does not take %s for %lld rows, which is its algorithm "
                    "for %d",
                    kernel.choice, (long long)product->n, CUDA_INVARIANT_ROWS);
}

opipe_status cuda_product_choose(opipe_device *device, cuda_product *product, opipe_error *err) {
  cuda_lt_descriptors all;
  uint32_t n = 0;
  if (cuda_product_is_empty(product))
    return OPIPE_OK;
  CUDA_TRY(cuda_lt_describe(device, product, NULL, &all, err));
  product->is_given =
      !device->invariant && cuda_choice_find(device, product, &all, &product->choice);
  const opipe_status status =
      product->is_given ? OPIPE_OK
      : device->invariant
          ? choose_invariant(device, &all, product, err)
          : cuda_product_candidates(device, product, &all, 1, &product->choice, &n, err);
  cuda_lt_describe_end(&device->place->libraries->products, &all);
  return status;
}

/* ---- running ---- */

opipe_status cuda_product_bind(opipe_device *device, const cuda_product *product,
                               const cuda_product_args *args, cuda_bound_product **out,
                               opipe_error *err) {
  cuda_bound_product *bound = opipe_zeroed(device->host, "a bound product", sizeof *bound,
                                           _Alignof(cuda_bound_product), err);
  if (bound == NULL)
    return OPIPE_E_NOMEM;
  bound->product = product;
  bound->args = *args;
  if (product->dtype == OPIPE_DOUBLE) {
    bound->alpha.f64 = product->alpha;
    bound->beta.f64 = product->beta;
  } else {
    bound->alpha.f32 = (float)product->alpha;
    bound->beta.f32 = (float)product->beta;
  }
  const opipe_status status = cuda_lt_describe(device, product, args, &bound->all, err);
  if (status < 0)
    cuda_product_free(device, bound);
  else
    *out = bound;
  return status;
}

void cuda_product_free(opipe_device *device, cuda_bound_product *bound) {
  if (bound == NULL)
    return;
  if (cuda_check_owner(device->owner, "", NULL) >= 0)
    cuda_lt_describe_end(&device->place->libraries->products, &bound->all);
  opipe_free(device->host, bound, sizeof *bound, _Alignof(cuda_bound_product));
}

cublasStatus_t cuda_product_run_as(const opipe_device *device, const cuda_bound_product *bound,
                                   const cuda_lt_algo *algo, CUdeviceptr workspace,
                                   uint64_t workspace_bytes, CUstream stream) {
  const cuda_products *lt = &device->place->libraries->products;
  const cuda_lt_descriptors *all = &bound->all;
  const cuda_product_args *args = &bound->args;
  return lt->product(device->products, all->desc, &bound->alpha, args->a, all->a, args->b, all->b,
                     &bound->beta, args->c != NULL ? args->c : args->d, all->d, args->d, all->d,
                     (const cublasLtMatmulAlgo_t *)(const void *)algo,
                     workspace_bytes > 0 ? (void *)(uintptr_t)workspace : NULL,
                     (size_t)workspace_bytes, (cudaStream_t)stream);
}

opipe_status cuda_product_run(opipe_device *device, const cuda_bound_product *bound,
                              CUdeviceptr workspace, uint64_t workspace_bytes, CUstream stream,
                              opipe_error *err) {
  const cublasStatus_t status = cuda_product_run_as(device, bound, &bound->product->choice.algo,
                                                    workspace, workspace_bytes, stream);
  if (status == CUDA_LT_SUCCESS && device->blocking) {
    return cuda_result(device->place, device->place->driver->stream_sync(stream), "cublasLtMatmul",
                       err);
  }
  return cuda_lt_answer(device, status, "cublasLtMatmul", err);
}
