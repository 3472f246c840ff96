/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.Interpolate: weighted sums of neighbours along one axis.
 *
 * X is [outer, n, inner], the result [outer, out, inner]. Sums run over the taps in rising order,
 * in fp64 in the reference, in fp32 otherwise; elements behind the axis are worked on together.
 */
#include "loop.h"

enum { INTERPOLATE_RUN = 512 }; /* elements behind the axis at a time: they stay in the cache */

typedef struct interpolate_plan {
  int64_t outer, n, out, inner, taps;
} interpolate_plan;

#define ROWS(NAME, T, SUM)                                                                    \
  /* Rows of the result: (outer, out). */                                                     \
  static void NAME(void *ctx, int64_t begin, int64_t end) {                                   \
    const cpu_call *call = ctx;                                                               \
    const interpolate_plan *plan = call->plan;                                                \
    const T *weights = call->in[2].data;                                                      \
    for (int64_t row = begin; row < end; ++row) {                                             \
      const int64_t o = row % plan->out;                                                      \
      const int64_t first = row / plan->out * plan->n + cpu_index(&call->in[1], (uint64_t)o); \
      const T *w = weights + o * plan->taps;                                                  \
      for (int64_t at = 0; at < plan->inner; at += INTERPOLATE_RUN) {                         \
        const int64_t left = plan->inner - at;                                                \
        const int64_t run = left < INTERPOLATE_RUN ? left : INTERPOLATE_RUN;                  \
        const T *x = (const T *)call->in[0].data + first * plan->inner + at;                  \
        T *y = (T *)call->out[0].data + row * plan->inner + at;                               \
        SUM sum[INTERPOLATE_RUN];                                                             \
        for (int64_t i = 0; i < run; ++i)                                                     \
          sum[i] = (SUM)w[0] * (SUM)x[i];                                                     \
        for (int64_t t = 1; t < plan->taps; ++t) {                                            \
          const SUM by = (SUM)w[t];                                                           \
          x += plan->inner;                                                                   \
          for (int64_t i = 0; i < run; ++i)                                                   \
            sum[i] += by * (SUM)x[i];                                                         \
        }                                                                                     \
        for (int64_t i = 0; i < run; ++i)                                                     \
          y[i] = (T)sum[i];                                                                   \
      }                                                                                       \
    }                                                                                         \
  }
ROWS(rows_f32, float, float)
ROWS(rows_f32_wide, float, double)
ROWS(rows_f64, double, double)

#define LINES(NAME, T, SUM)                                       \
  /* Whole lines of the result, the axis being the last. */       \
  static void NAME(void *ctx, int64_t begin, int64_t end) {       \
    const cpu_call *call = ctx;                                   \
    const interpolate_plan *plan = call->plan;                    \
    for (int64_t line = begin; line < end; ++line) {              \
      const T *x = (const T *)call->in[0].data + line * plan->n;  \
      T *y = (T *)call->out[0].data + line * plan->out;           \
      const T *w = call->in[2].data;                              \
      for (int64_t o = 0; o < plan->out; ++o, w += plan->taps) {  \
        const T *from = x + cpu_index(&call->in[1], (uint64_t)o); \
        SUM sum = (SUM)w[0] * (SUM)from[0];                       \
        for (int64_t t = 1; t < plan->taps; ++t)                  \
          sum += (SUM)w[t] * (SUM)from[t];                        \
        y[o] = (T)sum;                                            \
      }                                                           \
    }                                                             \
  }
LINES(lines_f32, float, float)
LINES(lines_f32_wide, float, double)
LINES(lines_f64, double, double)

static opipe_status run_with(const cpu_call *call, cpu_range_body rows, cpu_range_body lines,
                             opipe_error *err) {
  const interpolate_plan *plan = call->plan;
  cpu_call copy = *call;
  for (int64_t o = 0; o < plan->out; ++o) {
    const int64_t first = cpu_index(&call->in[1], (uint64_t)o);
    if (first < 0 || first > plan->n - plan->taps) {
      return cpu_fail(call, err, OPIPE_E_INVALID,
                      "takes %lld elements from %lld on, there are %lld", (long long)plan->taps,
                      (long long)first, (long long)plan->n);
    }
  }
  const bool last = plan->inner == 1;
  cpu_parallel(call->exec, last ? plan->outer : plan->outer * plan->out,
               (int64_t)call->out[0].n * plan->taps, last ? lines : rows, &copy);
  return OPIPE_OK;
}

static opipe_status kernel_f32(const cpu_call *call, opipe_error *err) {
  return run_with(call, rows_f32, lines_f32, err);
}

static opipe_status kernel_f32_wide(const cpu_call *call, opipe_error *err) {
  return run_with(call, rows_f32_wide, lines_f32_wide, err);
}

static opipe_status kernel_f64(const cpu_call *call, opipe_error *err) {
  return run_with(call, rows_f64, lines_f64, err);
}

static opipe_status prepare_interpolate(cpu_prep *p) {
  const opipe_value *x = cpu_in(p, 0);
  const opipe_value *first = cpu_in(p, 1);
  const opipe_value *weight = cpu_in(p, 2);
  interpolate_plan *plan = CPU_PLAN(p, interpolate_plan);
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if ((x->dtype != OPIPE_FLOAT && x->dtype != OPIPE_DOUBLE) || weight->dtype != x->dtype ||
      weight->rank != 2 || first->rank != 1 || first->dtype != OPIPE_INT64) {
    return cpu_refuse(p, "does not take %s, weights of rank %u, places of %s of rank %u",
                      opipe_dtype_name(x->dtype), weight->rank, opipe_dtype_name(first->dtype),
                      first->rank);
  }
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", 0), x->rank, &axis));
  const int64_t n = first->shape[0];
  *plan = (interpolate_plan){
      .outer = 1, .n = x->shape[axis], .out = n, .inner = 1, .taps = weight->shape[1]};
  for (uint32_t d = 0; d < x->rank; ++d) {
    shape[d] = d == axis ? n : x->shape[d];
    plan->outer *= d < axis ? x->shape[d] : 1;
    plan->inner *= d > axis ? x->shape[d] : 1;
  }
  CPU_TRY(cpu_expect(p, 0, x->dtype, shape, x->rank));
  if (weight->shape[0] != n || plan->taps < 1 || plan->taps > plan->n) {
    return cpu_invalid(p,
                       "weights '%.80s' are not a row for each of %lld elements, of at most %lld",
                       weight->name, (long long)n, (long long)plan->n);
  }
  if (x->dtype == OPIPE_DOUBLE)
    p->step->run = kernel_f64;
  else
    p->step->run = p->fast ? kernel_f32 : kernel_f32_wide;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"Interpolate", "opipe", prepare_interpolate, 3, 3, 1, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_interpolate = {ops, CPU_COUNT_OF(ops)};
