/* SPDX-License-Identifier: Apache-2.0 */
/* Inside products: what product.c, choices.c and tune.c share. */
#ifndef OPIPE_BACKEND_CUDA_PRODUCT_H_
#define OPIPE_BACKEND_CUDA_PRODUCT_H_

#include "program.h"

enum {
  CUDA_INVARIANT_ROWS = 64,             /* whose algorithm products of any number of rows have */
  CUDA_WORKSPACE_LIMIT = 32 << 20,      /* bytes of one product */
  CUDA_SCHEMES = CUDA_LT_SCHEME_COMPUTE /* how pieces of a sum may be added: bits */
};

/* Descriptors of a product; freed together. */
typedef struct cuda_lt_descriptors {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, d;
} cuda_lt_descriptors;

/* It writes nothing, and has no algorithm. */
static inline bool cuda_product_is_empty(const cuda_product *p) {
  return p->m == 0 || p->n == 0 || p->batch == 0;
}

/* Traits that follow from a product and its device. */
typedef struct cuda_product_traits {
  int compute, scale, type, d_type; /* the library's numbers; type: of A and B */
  uint32_t size, d_size;            /* bytes of an element */
  uint32_t align[4];                /* addresses of A, B, D and bias are multiples of these */
} cuda_product_traits;
void cuda_product_traits_of(const opipe_device *device, const cuda_product *product,
                            cuda_product_traits *out);

/* ---- product.c ---- */

opipe_status cuda_lt_answer(const opipe_device *device, cublasStatus_t status, const char *what,
                            opipe_error *err);
/* args: NULL where addresses do not matter. */
opipe_status cuda_lt_describe(const opipe_device *device, const cuda_product *product,
                              const cuda_product_args *args, cuda_lt_descriptors *out,
                              opipe_error *err);
void cuda_lt_describe_end(const cuda_products *lt, cuda_lt_descriptors *all);
/* The library's choices, its first one first; at least one. UNSUPPORTED: it has none. */
opipe_status cuda_product_candidates(const opipe_device *device, const cuda_product *product,
                                     const cuda_lt_descriptors *all, uint32_t most,
                                     cuda_lt_choice *out_choices, uint32_t *out_n,
                                     opipe_error *err);
/* Queues the product by another algorithm than its own. */
cublasStatus_t cuda_product_run_as(const opipe_device *device, const cuda_bound_product *bound,
                                   const cuda_lt_algo *algo, CUdeviceptr workspace,
                                   uint64_t workspace_bytes, CUstream stream);

/* ---- choices.c ---- */

/* All that the algorithm of a product depends on, as opipe_kernel.what. */
void cuda_product_what(const opipe_device *device, const cuda_product *product, char *out,
                       size_t room);
/* An algorithm's attributes, as opipe_kernel.choice. */
opipe_status cuda_choice_text(const opipe_device *device, const cuda_lt_algo *algo, char *out,
                              size_t room, opipe_error *err);
/* The algorithm that a choice's text says. False: it cannot be read, adds pieces otherwise than
 * CUDA_SCHEMES, or is none that the library takes for the product. */
bool cuda_choice_make(const opipe_device *device, const cuda_product *product,
                      const cuda_lt_descriptors *all, const char *text, cuda_lt_choice *out);
/* The algorithm that kernels_use gave for the product. False: nothing, or what cuda_choice_make
 * does not make (it is then as if nothing was given, and program_kernels says so). */
bool cuda_choice_find(const opipe_device *device, const cuda_product *product,
                      const cuda_lt_descriptors *all, cuda_lt_choice *out);

#endif /* OPIPE_BACKEND_CUDA_PRODUCT_H_ */
