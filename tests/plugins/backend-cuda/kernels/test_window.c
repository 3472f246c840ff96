/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Convolutions, pools and their gradients, norms by channel, against plain loops in double that
 * scatter where the kernels gather. */
#include "kit.h"

typedef struct shape {
  int64_t batch, channels, outputs, groups;
  int64_t in[3], kernel[3], stride[3], dilation[3], begin[3], end[3];
} shape;

static const shape shapes[] = {
    {2, 3, 4, 1, {1, 6, 7}, {1, 3, 2}, {1, 2, 1}, {1, 1, 2}, {0, 1, 0}, {0, 1, 1}},
    {1, 4, 6, 2, {1, 1, 9}, {1, 1, 3}, {1, 1, 1}, {1, 1, 1}, {0, 0, 1}, {0, 0, 1}},
    {1, 2, 2, 2, {3, 4, 5}, {2, 2, 2}, {1, 2, 2}, {1, 1, 1}, {0, 0, 1}, {1, 0, 0}},
    {1, 3, 2, 1, {1, 8, 8}, {1, 4, 4}, {1, 4, 4}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}}};

static cuda_window_args args_of(const shape *s) {
  cuda_window_args a = {
      .batch = s->batch, .channels = s->channels, .outputs = s->outputs, .groups = s->groups};
  for (int i = 0; i < 3; ++i) {
    a.in[i] = s->in[i];
    a.kernel[i] = s->kernel[i];
    a.stride[i] = s->stride[i];
    a.dilation[i] = s->dilation[i];
    a.begin[i] = s->begin[i];
    a.end[i] = s->end[i];
    a.out[i] = (s->in[i] + s->begin[i] + s->end[i] - s->dilation[i] * (s->kernel[i] - 1) - 1) /
                   s->stride[i] +
               1;
  }
  return a;
}

static int64_t size(const int64_t *extents) {
  return extents[0] * extents[1] * extents[2];
}

/* Position in the input's plane of kernel element k at output o; -1: outside. */
static int64_t where(const cuda_window_args *a, int64_t o, int64_t k, bool *out_padded) {
  int64_t at = 0, weight = 1;
  bool inside = true;
  *out_padded = true;
  for (int i = 2; i >= 0; --i) {
    const int64_t x =
        o % a->out[i] * a->stride[i] - a->begin[i] + k % a->kernel[i] * a->dilation[i];
    o /= a->out[i];
    k /= a->kernel[i];
    inside = inside && x >= 0 && x < a->in[i];
    *out_padded = *out_padded && x < a->in[i] + a->end[i];
    at += x * weight;
    weight *= a->in[i];
  }
  return inside ? at : -1;
}

static void conv_case(const shape *s, uint32_t dtype) {
  cuda_window_args a = args_of(s);
  const int64_t n_in = size(a.in), n_out = size(a.out), n_kernel = size(a.kernel);
  const int64_t each = a.channels / a.groups, made = a.outputs / a.groups;
  const kit_tensor x = kit_random(dtype, a.batch * a.channels * n_in, 1, -1, 1);
  const kit_tensor w = kit_random(dtype, a.outputs * each * n_kernel, 2, -1, 1);
  const kit_tensor bias = kit_random(dtype, a.outputs, 3, -1, 1);
  const kit_tensor dy = kit_random(dtype, a.batch * a.outputs * n_out, 4, -1, 1);
  const kit_tensor y = kit_new(dtype, dy.n), dx = kit_new(dtype, x.n), dw = kit_new(dtype, w.n);
  double *want_y = kit_doubles(y.n), *want_dx = kit_doubles(x.n), *want_dw = kit_doubles(w.n);
  cuda_launch launch;
  for (int64_t i = 0; i < y.n; ++i) {
    const int64_t m = i / n_out % a.outputs, b = i / n_out / a.outputs;
    want_y[i] = kit_get(&bias, m);
    for (int64_t j = 0; j < each * n_kernel; ++j) {
      bool padded;
      const int64_t at = where(&a, i % n_out, j % n_kernel, &padded);
      const int64_t from = (b * a.channels + m / made * each + j / n_kernel) * n_in + at;
      const int64_t by = m * each * n_kernel + j;
      if (at < 0)
        continue;
      want_y[i] += kit_get(&x, from) * kit_get(&w, by);
      want_dx[from] += kit_get(&dy, i) * kit_get(&w, by);
      want_dw[by] += kit_get(&dy, i) * kit_get(&x, from);
    }
  }
  a.x = x.data;
  a.w = w.data;
  a.bias = bias.data;
  a.dy = dy.data;
  a.to = y.data;
  OPI_ASSERT_FATAL(cuda_plan_conv(&a, dtype, &launch));
  KIT_RUN(&launch, 1, &y);
  KIT_CLOSE(y, want_y, 0);
  a.to = dx.data;
  OPI_ASSERT_FATAL(cuda_plan_conv_grad_x(&a, dtype, &launch));
  KIT_RUN(&launch, 1, &dx);
  KIT_CLOSE(dx, want_dx, 0);
  a.to = dw.data;
  OPI_ASSERT_FATAL(cuda_plan_conv_grad_w(&a, dtype, &launch));
  KIT_RUN(&launch, 1, &dw);
  KIT_CLOSE(dw, want_dw, 0);
  kit_end();
}

static void test_convolutions(void) {
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    for (int t = 0; t < KIT_TYPES; ++t)
      conv_case(&shapes[s], kit_types[t]);
  }
}

static void pool_case(const shape *s, uint32_t dtype, bool mean, bool count_pads) {
  cuda_window_args a = args_of(s);
  a.outputs = a.channels;
  a.groups = 1;
  a.mean = mean;
  a.count_pads = count_pads;
  const int64_t n_in = size(a.in), n_out = size(a.out);
  const kit_tensor x = kit_random(dtype, a.batch * a.channels * n_in, 5, -1, 1);
  const kit_tensor dy = kit_random(dtype, a.batch * a.channels * n_out, 6, -1, 1);
  const kit_tensor y = kit_new(dtype, dy.n), dx = kit_new(dtype, x.n);
  double *want_y = kit_doubles(y.n), *want_dx = kit_doubles(x.n);
  cuda_launch launch;
  for (int64_t i = 0; i < y.n; ++i) {
    double sum = 0, best = -(double)INFINITY, count = 0;
    int64_t largest = -1;
    bool padded;
    for (int64_t k = 0; k < size(a.kernel); ++k) {
      const int64_t at = where(&a, i % n_out, k, &padded);
      count += count_pads ? padded : at >= 0;
      const double v = at >= 0 ? kit_get(&x, i / n_out * n_in + at) : 0;
      sum += v;
      largest = at >= 0 && v > best ? at : largest;
      best = at >= 0 && v > best ? v : best;
    }
    want_y[i] = mean ? sum / count : best;
    for (int64_t k = 0; k < size(a.kernel); ++k) {
      const int64_t at = where(&a, i % n_out, k, &padded);
      if (at >= 0 && (mean || at == largest))
        want_dx[i / n_out * n_in + at] += kit_get(&dy, i) / (mean ? count : 1);
    }
  }
  a.x = x.data;
  a.to = y.data;
  OPI_ASSERT_FATAL(cuda_plan_pool(&a, dtype, &launch));
  KIT_RUN(&launch, 1, &y);
  KIT_CLOSE(y, want_y, 0);
  a.dy = dy.data;
  a.to = dx.data;
  a.x = mean ? NULL : x.data;
  OPI_ASSERT_FATAL(cuda_plan_pool_grad(&a, dtype, &launch));
  KIT_RUN(&launch, 1, &dx);
  KIT_CLOSE(dx, want_dx, 0);
  kit_end();
}

static void test_pools(void) {
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    for (int t = 0; t < KIT_TYPES; ++t) {
      pool_case(&shapes[s], kit_types[t], false, false);
      pool_case(&shapes[s], kit_types[t], true, t % 2 != 0);
    }
  }
}

static void test_norms_by_channel(void) {
  enum { BATCH = 2, CHANNELS = 5, INNER = 7 };
  for (int t = 0; t < KIT_TYPES; ++t) {
    const uint32_t dtype = kit_types[t];
    const kit_tensor x = kit_random(dtype, BATCH * CHANNELS * INNER, 7, -2, 2);
    const kit_tensor scale = kit_random(dtype, CHANNELS, 8, -1, 1);
    const kit_tensor bias = kit_random(dtype, CHANNELS, 9, -1, 1);
    const kit_tensor mean = kit_random(dtype, CHANNELS, 10, -1, 1);
    const kit_tensor variance = kit_random(dtype, CHANNELS, 11, 0.5, 2);
    const kit_tensor y = kit_new(dtype, x.n);
    double *want = kit_doubles(x.n);
    cuda_launch launch;
    for (int64_t i = 0; i < x.n; ++i) {
      const int64_t c = i / INNER % CHANNELS;
      want[i] = (kit_get(&x, i) - kit_get(&mean, c)) / sqrt(kit_get(&variance, c) + 1e-3) *
                    kit_get(&scale, c) +
                kit_get(&bias, c);
    }
    const cuda_batch_norm_args args = {y.data,        x.data, scale.data, bias.data, mean.data,
                                       variance.data, x.n,    CHANNELS,   INNER,     1e-3};
    OPI_ASSERT_FATAL(cuda_plan_batch_norm(&args, dtype, &launch));
    KIT_RUN(&launch, 1, &y);
    KIT_CLOSE(y, want, 0);
    kit_end();
  }
}

OPI_TEST_MAIN("cuda kernels: windows", OPI_TEST(test_convolutions), OPI_TEST(test_pools),
              OPI_TEST(test_norms_by_channel))
