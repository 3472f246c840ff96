/* SPDX-License-Identifier: Apache-2.0 */
/* MaxPool, AveragePool and their global forms, over one to three spatial axes.
 *
 * The output's shape is decided (ceil_mode included); a window that passes the end of the padded
 * input is clipped to it.
 */
#include <math.h>

#include "window.h"

typedef struct pool_plan {
  cpu_window window;
  int64_t planes;
  bool average, count_pads;
} pool_plan;

/* Largest or mean of the window at o, over the plane that begins at element `first`. */
static double pool_point(const cpu_call *call, int64_t first, const int64_t *o) {
  const pool_plan *plan = call->plan;
  const cpu_window *w = &plan->window;
  double best = -(double)INFINITY;
  double sum = 0;
  int64_t inside = 0;
  int64_t padded = 0;
  for (int64_t k = 0; k < w->n_kernel; ++k) {
    const int64_t at[3] = {k / w->kernel[2] / w->kernel[1], k / w->kernel[2] % w->kernel[1],
                           k % w->kernel[2]};
    bool in_input = true;
    bool in_padded = true;
    int64_t index = first;
    int64_t position[3];
    for (int a = 0; a < 3; ++a) {
      const int64_t i = o[a] * w->stride[a] - w->begin[a] + at[a] * w->dilation[a];
      position[a] = i;
      in_input = in_input && i >= 0 && i < w->in[a];
      in_padded = in_padded && i < w->in[a] + w->end[a];
    }
    padded += in_padded;
    if (!in_input)
      continue;
    index += (position[0] * w->in[1] + position[1]) * w->in[2] + position[2];
    const double v = cpu_number(&call->in[0], (uint64_t)index);
    best = v > best || isnan(v) ? v : best;
    sum += v;
    ++inside;
  }
  const int64_t count = plan->count_pads ? padded : inside;
  return plan->average ? sum / (double)count : best;
}

static void pool_planes(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const pool_plan *plan = call->plan;
  const cpu_window *w = &plan->window;
  const cpu_tensor *out = &call->out[0];
  for (int64_t plane = begin; plane < end; ++plane) {
    for (int64_t i = 0; i < w->n_out; ++i) {
      const int64_t o[3] = {i / w->out[2] / w->out[1], i / w->out[2] % w->out[1], i % w->out[2]};
      const double value = pool_point(call, plane * w->n_in, o);
      const float narrow = (float)value;
      const int64_t whole = isfinite(value) ? (int64_t)value : INT64_MIN;
      const int64_t at = plane * w->n_out + i;
      if (out->dtype == OPIPE_DOUBLE)
        cpu_store(CPU_CLASS_F64, out->dtype, &value, out->data, at, 1);
      else if (cpu_is_float(out->dtype))
        cpu_store(CPU_CLASS_F32, out->dtype, &narrow, out->data, at, 1);
      else
        cpu_store(CPU_CLASS_I64, out->dtype, &whole, out->data, at, 1);
    }
  }
}

static opipe_status pool_kernel(const cpu_call *call, opipe_error *err) {
  const pool_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->planes, (int64_t)call->out[0].n * plan->window.n_kernel,
               pool_planes, &copy);
  return OPIPE_OK;
}

/* ---- largest elements of fp32 and bytes: each axis clipped once for a row of windows ---- */

typedef struct clip {
  int64_t first, begin, end; /* of the taps: those inside */
} clip;

static clip clip_axis(const cpu_window *w, int a, int64_t o) {
  clip c = {o * w->stride[a] - w->begin[a], 0, w->kernel[a]};
  while (c.begin < c.end && c.first + c.begin * w->dilation[a] < 0)
    ++c.begin;
  while (c.end > c.begin && c.first + (c.end - 1) * w->dilation[a] >= w->in[a])
    --c.end;
  return c;
}

/* Output points [*begin, *end) of the last axis whose tap k lies inside. */
static void points_of_tap(const cpu_window *w, int64_t k, int64_t *begin, int64_t *end) {
  const int64_t stride = w->stride[2], first = k * w->dilation[2] - w->begin[2];
  *begin = first < 0 ? (stride - 1 - first) / stride : 0;
  *end = first < w->in[2] ? (w->in[2] - first + stride - 1) / stride : 0;
  *end = *end < w->out[2] ? *end : w->out[2];
}

/* A row of windows at a time: one tap of them all, in loops that compilers make vectors of where
 * the stride is a constant. Each window takes its taps in their order; the last NaN stays. */
#define MOST(NAME, T, LEAST)                                                                    \
  static inline T NAME##_of(T v, T best) {                                                      \
    return v > best || v != v ? v : best;                                                       \
  }                                                                                             \
  static void NAME##_tap(const T *restrict from, int64_t n, int64_t stride, T *restrict best) { \
    if (stride == 1) {                                                                          \
      for (int64_t i = 0; i < n; ++i)                                                           \
        best[i] = NAME##_of(from[i], best[i]);                                                  \
    } else if (stride == 2) {                                                                   \
      for (int64_t i = 0; i < n; ++i)                                                           \
        best[i] = NAME##_of(from[2 * i], best[i]);                                              \
    } else {                                                                                    \
      for (int64_t i = 0; i < n; ++i)                                                           \
        best[i] = NAME##_of(from[stride * i], best[i]);                                         \
    }                                                                                           \
  }                                                                                             \
  static void NAME##_row(const cpu_window *w, const T *plane, int64_t o0, int64_t o1, T *out) { \
    const clip c0 = clip_axis(w, 0, o0), c1 = clip_axis(w, 1, o1);                              \
    for (int64_t i = 0; i < w->out[2]; ++i)                                                     \
      out[i] = LEAST;                                                                           \
    for (int64_t k0 = c0.begin; k0 < c0.end; ++k0) {                                            \
      for (int64_t k1 = c1.begin; k1 < c1.end; ++k1) {                                          \
        const int64_t row =                                                                     \
            (c0.first + k0 * w->dilation[0]) * w->in[1] + c1.first + k1 * w->dilation[1];       \
        for (int64_t k2 = 0; k2 < w->kernel[2]; ++k2) {                                         \
          int64_t begin, end;                                                                   \
          points_of_tap(w, k2, &begin, &end);                                                   \
          const int64_t at = begin * w->stride[2] + k2 * w->dilation[2] - w->begin[2];          \
          if (begin < end)                                                                      \
            NAME##_tap(plane + row * w->in[2] + at, end - begin, w->stride[2], out + begin);    \
        }                                                                                       \
      }                                                                                         \
    }                                                                                           \
  }                                                                                             \
  static void NAME(void *ctx, int64_t begin, int64_t end) {                                     \
    const cpu_call *call = ctx;                                                                 \
    const cpu_window *w = &((const pool_plan *)call->plan)->window;                             \
    for (int64_t p = begin; p < end; ++p) {                                                     \
      const T *in = (const T *)call->in[0].data + p * w->n_in;                                  \
      T *out = (T *)call->out[0].data + p * w->n_out;                                           \
      for (int64_t o = 0; o < w->out[0] * w->out[1]; ++o, out += w->out[2])                     \
        NAME##_row(w, in, o / w->out[1], o % w->out[1], out);                                   \
    }                                                                                           \
  }
MOST(most_f32, float, -INFINITY)
MOST(most_u8, uint8_t, 0)
MOST(most_i8, int8_t, INT8_MIN)

static opipe_status most_kernel(const cpu_call *call, opipe_error *err) {
  const pool_plan *plan = call->plan;
  const uint32_t dtype = call->in[0].dtype;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->planes, (int64_t)call->out[0].n * plan->window.n_kernel,
               dtype == OPIPE_FLOAT   ? most_f32
               : dtype == OPIPE_UINT8 ? most_u8
                                      : most_i8,
               &copy);
  return OPIPE_OK;
}

static opipe_status prepare_pool(cpu_prep *p) {
  if (cpu_is_last(p->node)) /* widened, it comes back with fp32 */
    return cpu_is_half(cpu_in(p, 0)->dtype) ? cpu_prepare_widened(p) : cpu_prepare_pool_last(p);
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *out = cpu_out(p, 0);
  const bool global = (p->op->code & 2u) != 0;
  pool_plan *plan = CPU_PLAN(p, pool_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  plan->average = (p->op->code & 1u) != 0;
  const bool bytes = in->dtype == OPIPE_INT8 || in->dtype == OPIPE_UINT8;
  if (in->rank < 3 || (!cpu_is_float(in->dtype) && !(bytes && !plan->average)))
    return cpu_refuse(p, "does not take %s of rank %u", opipe_dtype_name(in->dtype), in->rank);
  CPU_TRY(cpu_window_init(p, &plan->window, in, out, global ? in->shape + 2 : NULL));
  plan->count_pads = opipe_attr_int(p->node, "count_include_pad", 0) != 0;
  plan->planes = in->shape[0] * in->shape[1];
  if (out->dtype != in->dtype || out->shape[0] != in->shape[0] || out->shape[1] != in->shape[1])
    return cpu_invalid(p, "input and output differ in type, batch or channels");
  const bool most = p->fast && !plan->average && (bytes || in->dtype == OPIPE_FLOAT);
  p->step->run = most ? most_kernel : pool_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"MaxPool", NULL, prepare_pool, 1, 1, 1, 0, 0},
    {"AveragePool", NULL, prepare_pool, 1, 1, 1, 0, 1},
    {"GlobalMaxPool", NULL, prepare_pool, 1, 1, 1, 0, 2},
    {"GlobalAveragePool", NULL, prepare_pool, 1, 1, 1, 0, 3},
};

const cpu_op_family cpu_family_pool = {ops, CPU_COUNT_OF(ops)};
