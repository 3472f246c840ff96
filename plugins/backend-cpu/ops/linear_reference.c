/* SPDX-License-Identifier: Apache-2.0 */
/* Plain matrix products: sums in rising order of k, in fp64 for floats, modulo 2^64 for integers.
 */
#include "linear.h"

enum { BLOCK = 64 }; /* columns summed at once */

/* Element of C times beta, 0 without C. */
#define ADDEND(T, S)                                               \
  (c == NULL ? (S)0                                                \
             : (S)((double)plan->beta == 1.0                       \
                       ? (S)c[m * plan->c_m + (j + b) * plan->c_n] \
                       : (S)(plan->beta * (double)c[m * plan->c_m + (j + b) * plan->c_n])))

#define PRODUCT(NAME, T, S)                                                                \
  static void NAME##_rows(void *ctx, int64_t begin, int64_t end) {                         \
    const cpu_call *call = ctx;                                                            \
    const cpu_linear_plan *plan = call->plan;                                              \
    const T *c = plan->c < 0 ? NULL : call->in[plan->c].data;                              \
    for (int64_t row = begin; row < end; ++row) {                                          \
      const int64_t at = row / plan->m;                                                    \
      const int64_t m = row % plan->m;                                                     \
      int64_t first[3];                                                                    \
      for (uint32_t i = 0; i < 3; ++i) {                                                   \
        first[i] = cpu_loop_offset(&plan->batch, i, at / plan->batch.columns) +            \
                   at % plan->batch.columns * plan->batch.stride[i][plan->batch.rank - 1]; \
      }                                                                                    \
      const T *x = (const T *)call->in[0].data + first[0] + m * plan->a_m;                 \
      const T *w = (const T *)call->in[1].data + first[1];                                 \
      T *y = (T *)call->out[0].data + first[2] + m * plan->n;                              \
      for (int64_t j = 0; j < plan->n; j += BLOCK) {                                       \
        S sum[BLOCK] = {0};                                                                \
        const int64_t n = plan->n - j < BLOCK ? plan->n - j : BLOCK;                       \
        for (int64_t k = 0; k < plan->k; ++k) {                                            \
          const S v = (S)x[k * plan->a_k];                                                 \
          const T *line = w + k * plan->b_k + j * plan->b_n;                               \
          for (int64_t b = 0; b < n; ++b) {                                                \
            sum[b] += v * (S)line[b * plan->b_n];                                          \
          }                                                                                \
        }                                                                                  \
        for (int64_t b = 0; b < n; ++b) {                                                  \
          const S s = plan->alpha == 1.0 ? sum[b] : (S)(plan->alpha * (double)sum[b]);     \
          y[j + b] = (T)(s + ADDEND(T, S));                                                \
        }                                                                                  \
      }                                                                                    \
    }                                                                                      \
  }                                                                                        \
  static opipe_status NAME(const cpu_call *call, opipe_error *err) {                       \
    const cpu_linear_plan *plan = call->plan;                                              \
    cpu_call copy = *call;                                                                 \
    (void)err;                                                                             \
    cpu_parallel(call->exec, plan->batch.rows * plan->batch.columns * plan->m,             \
                 (int64_t)call->out[0].n * (plan->k + 1), NAME##_rows, &copy);             \
    return OPIPE_OK;                                                                       \
  }

PRODUCT(product_f32, float, double)
PRODUCT(product_f64, double, double)
PRODUCT(product_i32, int32_t, uint64_t)
PRODUCT(product_u32, uint32_t, uint64_t)
PRODUCT(product_i64, int64_t, uint64_t)
PRODUCT(product_u64, uint64_t, uint64_t)

bool cpu_linear_reference(uint32_t dtype, cpu_kernel *out_kernel) {
  switch (dtype) {
    case OPIPE_FLOAT:
      *out_kernel = product_f32;
      return true;
    case OPIPE_DOUBLE:
      *out_kernel = product_f64;
      return true;
    case OPIPE_INT32:
      *out_kernel = product_i32;
      return true;
    case OPIPE_UINT32:
      *out_kernel = product_u32;
      return true;
    case OPIPE_INT64:
      *out_kernel = product_i64;
      return true;
    case OPIPE_UINT64:
      *out_kernel = product_u64;
      return true;
    default:
      return false;
  }
}
