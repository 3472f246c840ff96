/* SPDX-License-Identifier: Apache-2.0 */
/* Einsum of any letters, plainly: a thread an element of the result, the sum in rising order. */
#include "numbers.cuh"

CUDA_FN double sum_of_products(const cuda_einsum_block &a, const int64_t *base) {
  double total = 0;
  for (int64_t k = 0; k < a.n_summed; ++k) {
    int64_t at[CUDA_EINSUM_OPERANDS];
    double product = 1;
    offsets<CUDA_EINSUM_OPERANDS>(a.summed, k, at);
    CUDA_UNROLL
    for (int i = 0; i < CUDA_EINSUM_OPERANDS; ++i)
      product *= i < (int)a.n_operands ? load_number(a.in[i], a.dtype, base[i] + at[i]) : 1.0;
    total += product;
  }
  return total;
}

CUDA_FN uint64_t sum_of_integers(const cuda_einsum_block &a, const int64_t *base) {
  uint64_t total = 0;
  for (int64_t k = 0; k < a.n_summed; ++k) {
    int64_t at[CUDA_EINSUM_OPERANDS];
    uint64_t product = 1;
    offsets<CUDA_EINSUM_OPERANDS>(a.summed, k, at);
    CUDA_UNROLL
    for (int i = 0; i < CUDA_EINSUM_OPERANDS; ++i) {
      if (i < (int)a.n_operands)
        product *= (uint64_t)load_integer(a.in[i], a.dtype, base[i] + at[i]);
    }
    total += product;
  }
  return total;
}

CUDA_ROOMY_KERNEL(opipe_einsum) {
  for (int64_t i = first_element(); i < a.n_out; i += element_step()) {
    int64_t base[CUDA_EINSUM_OPERANDS];
    offsets<CUDA_EINSUM_OPERANDS>(a.kept, i, base);
    if (is_float(a.dtype)) {
      const double total = sum_of_products(a, base);
      store_number(a.out, a.dtype, i, a.dtype == TYPE_F64 ? total : (double)(float)total);
    } else {
      store_integer(a.out, a.dtype, i, (int64_t)sum_of_integers(a, base));
    }
  }
}
