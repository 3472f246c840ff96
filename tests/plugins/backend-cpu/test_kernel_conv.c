/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution and its gradients against plain loops in double: strides, pads, dilations, groups,
 * one to three dimensions; the same bits on every instruction set and number of threads. */
#include "kernel_test.h"

typedef struct setting {
  int64_t images, groups, c_in, c_out;
  int64_t in[2], kernel[2], stride[2], dilation[2], pad[2], pad_end[2];
  cpu_activation activation;
  int64_t deep[6]; /* the same six of a third axis, which stands first; all 0: there is none */
} setting;

static const setting settings[] = {
    {1, 1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, CPU_ACT_NONE},
    {2, 1, 3, 10, {20, 23}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, CPU_ACT_NONE},
    {1, 1, 3, 32, {32, 32}, {8, 8}, {8, 8}, {1, 1}, {0, 0}, {0, 0}, CPU_ACT_NONE},
    {2, 2, 6, 8, {17, 9}, {3, 2}, {2, 1}, {1, 2}, {1, 0}, {2, 1}, CPU_ACT_RELU},
    {1, 5, 5, 5, {1, 40}, {1, 4}, {1, 1}, {1, 1}, {0, 3}, {0, 0}, CPU_ACT_SILU},
    {1, 1, 80, 20, {1, 100}, {1, 3}, {1, 2}, {1, 1}, {0, 1}, {0, 1}, CPU_ACT_NONE},
};

static const setting deep[] = {
    {2, 1, 2, 3, {9, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, CPU_ACT_NONE, {5, 3, 1, 1, 1, 1}},
    {1, 1, 3, 24, {8, 8}, {4, 4}, {4, 4}, {1, 1}, {0, 0}, {0, 0}, CPU_ACT_NONE, {4, 2, 2, 1, 0, 0}},
    {1, 2, 6, 4, {7, 5}, {2, 3}, {2, 1}, {1, 2}, {1, 0}, {2, 1}, CPU_ACT_RELU, {8, 3, 2, 2, 3, 1}},
};

static double exact_value(const cpu_conv_args *g, int64_t image, int64_t filter, int64_t pixel) {
  const int64_t planes = g->c_in / g->groups;
  const int64_t group = filter / (g->c_out / g->groups);
  const int64_t taps = g->kernel[0] * g->kernel[1] * g->kernel[2];
  double sum = g->bias != NULL ? (double)g->bias[filter] : 0.0;
  for (int64_t c = 0; c < planes; ++c) {
    for (int64_t t = 0; t < taps; ++t) {
      int64_t at = image * g->c_in + group * planes + c, of_pixel = pixel, of_tap = t, place[3];
      bool inside = true;
      for (int a = 2; a >= 0; --a) {
        place[a] = of_pixel % g->out_size[a] * g->stride[a] +
                   of_tap % g->kernel[a] * g->dilation[a] - g->pad_begin[a];
        inside = inside && place[a] >= 0 && place[a] < g->in_size[a];
        of_pixel /= g->out_size[a];
        of_tap /= g->kernel[a];
      }
      for (int a = 0; a < 3; ++a)
        at = at * g->in_size[a] + place[a];
      if (inside)
        sum += (double)g->in[at] * (double)g->weight[(filter * planes + c) * taps + t];
    }
  }
  sum = g->activation == CPU_ACT_RELU && sum < 0.0 ? 0.0 : sum;
  if (g->activation == CPU_ACT_HARD_SWISH)
    return sum * fmin(1.0, fmax(0.0, sum / 6.0 + 0.5));
  return g->activation == CPU_ACT_SILU ? sum / (1.0 + exp(-sum)) : sum;
}

/* Sizes, without pointers. */
static cpu_conv_args args_of(const setting *s) {
  const int64_t flat[6] = {1, 1, 1, 1, 0, 0}, *first = s->deep[0] == 0 ? flat : s->deep;
  cpu_conv_args g = {.images = s->images,
                     .groups = s->groups,
                     .c_in = s->c_in,
                     .c_out = s->c_out,
                     .in_size = {first[0], s->in[0], s->in[1]},
                     .kernel = {first[1], s->kernel[0], s->kernel[1]},
                     .stride = {first[2], s->stride[0], s->stride[1]},
                     .dilation = {first[3], s->dilation[0], s->dilation[1]},
                     .pad_begin = {first[4], s->pad[0], s->pad[1]},
                     .activation = s->activation};
  const int64_t behind[3] = {first[5], s->pad_end[0], s->pad_end[1]};
  for (int i = 0; i < 3; ++i) {
    g.out_size[i] =
        (g.in_size[i] + g.pad_begin[i] + behind[i] - g.dilation[i] * (g.kernel[i] - 1) - 1) /
            g.stride[i] +
        1;
  }
  return g;
}

static void check(const setting *s) {
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  cpu_conv_args g = args_of(s);
  const int64_t k = s->c_in / s->groups * g.kernel[0] * g.kernel[1] * g.kernel[2];
  const int64_t pixels = g.out_size[0] * g.out_size[1] * g.out_size[2];
  const int64_t size = s->images * s->c_out * pixels;
  float *in = kernel_random(s->images * s->c_in * g.in_size[0] * g.in_size[1] * g.in_size[2], 1);
  float *weight = kernel_random(s->c_out * k, 2);
  float *bias = kernel_random(s->c_out, 3);
  float *first = kernel_floats(size);
  float *out = kernel_floats(size);
  double *exact = kernel_memory((size_t)size * sizeof(double));
  g.in = in;
  g.weight = weight;
  g.bias = s->groups == 2 ? NULL : bias;
  for (int i = 0; i < n; ++i) {
    uint64_t bytes = 0;
    OPI_ASSERT(cpu_conv_workspace(cpu_team_size(execs[i].x.team), k, &bytes));
    g.workspace = kernel_memory(bytes);
    g.out = i == 0 ? first : out;
    memset(g.out, 0xff, (size_t)size * sizeof(float));
    cpu_conv(&execs[i].x, &g);
    free(g.workspace);
    if (i > 0)
      kernel_same(out, first, size, "convolution", execs[i].name);
  }
  for (int64_t i = 0; i < size; ++i)
    exact[i] = exact_value(&g, i / pixels / s->c_out, i / pixels % s->c_out, i % pixels);
  kernel_close(first, exact, size, 2e-6, "convolution", "all");
  free(in), free(weight), free(bias), free(first), free(out), free(exact);
}

/* Both gradients, element by element of the sum that they are the gradients of. */
static void exact_gradients(const cpu_conv_args *g, const float *dy, double *dx, double *dw) {
  const int64_t planes = g->c_in / g->groups, filters = g->c_out / g->groups;
  const int64_t taps = g->kernel[0] * g->kernel[1] * g->kernel[2];
  const int64_t pixels = g->out_size[0] * g->out_size[1] * g->out_size[2];
  for (int64_t i = 0; i < g->images * g->c_out * pixels * planes * taps; ++i) {
    const int64_t t = i % taps, c = i / taps % planes, y = i / taps / planes;
    const int64_t image = y / pixels / g->c_out, filter = y / pixels % g->c_out;
    int64_t at = image * g->c_in + filter / filters * planes + c, place[3], pixel = y % pixels;
    int64_t tap = t;
    bool inside = true;
    for (int a = 2; a >= 0; --a) {
      place[a] = pixel % g->out_size[a] * g->stride[a] + tap % g->kernel[a] * g->dilation[a] -
                 g->pad_begin[a];
      inside = inside && place[a] >= 0 && place[a] < g->in_size[a];
      pixel /= g->out_size[a];
      tap /= g->kernel[a];
    }
    for (int a = 0; a < 3; ++a)
      at = at * g->in_size[a] + place[a];
    if (!inside)
      continue;
    dx[at] += (double)dy[y] * (double)g->weight[(filter * planes + c) * taps + t];
    dw[(filter * planes + c) * taps + t] += (double)dy[y] * (double)g->in[at];
  }
}

static void check_gradient(const cpu_conv_args *g, const float *dy, bool to_weight,
                           const double *exact, int64_t size) {
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  float *first = kernel_floats(size), *out = kernel_floats(size);
  for (int i = 0; i < n; ++i) {
    const int32_t threads = cpu_team_size(execs[i].x.team);
    uint64_t bytes = 0;
    OPI_ASSERT((to_weight ? cpu_conv_grad_weight_workspace : cpu_conv_grad_input_workspace)(
        threads, g, &bytes));
    cpu_conv_grad_args args = {.of = *g,
                               .dy = dy,
                               .other = to_weight ? g->in : g->weight,
                               .out = i == 0 ? first : out,
                               .workspace = kernel_memory(bytes)};
    memset(args.workspace, 0xff, bytes);
    memset(args.out, 0xff, (size_t)size * sizeof(float));
    (to_weight ? cpu_conv_grad_weight : cpu_conv_grad_input)(&execs[i].x, &args);
    free(args.workspace);
    if (i > 0)
      kernel_same(out, first, size, "a convolution's gradient", execs[i].name);
  }
  kernel_close(first, exact, size, 3e-6, to_weight ? "dW" : "dX", "all");
  free(first), free(out);
}

static void check_gradients(const setting *s) {
  cpu_conv_args g = args_of(s);
  const int64_t n_in = s->images * s->c_in * g.in_size[0] * g.in_size[1] * g.in_size[2];
  const int64_t n_out = s->images * s->c_out * g.out_size[0] * g.out_size[1] * g.out_size[2];
  const int64_t n_weight =
      s->c_out * (s->c_in / s->groups) * g.kernel[0] * g.kernel[1] * g.kernel[2];
  float *in = kernel_random(n_in, 1), *weight = kernel_random(n_weight, 2);
  float *dy = kernel_random(n_out, 3);
  double *dx = kernel_memory((size_t)n_in * sizeof(double));
  double *dw = kernel_memory((size_t)n_weight * sizeof(double));
  memset(dx, 0, (size_t)n_in * sizeof(double));
  memset(dw, 0, (size_t)n_weight * sizeof(double));
  g.in = in;
  g.weight = weight;
  exact_gradients(&g, dy, dx, dw);
  check_gradient(&g, dy, false, dx, n_in);
  check_gradient(&g, dy, true, dw, n_weight);
  free(in), free(weight), free(dy), free(dx), free(dw);
}

/* [images, planes, pixels] to [images, pixels, planes]. */
static float *channels_last(const float *from, int64_t images, int64_t planes, int64_t pixels) {
  float *to = kernel_floats(images * planes * pixels);
  for (int64_t i = 0; i < images * planes * pixels; ++i) {
    const int64_t image = i / (planes * pixels), plane = i / pixels % planes;
    to[(image * pixels + i % pixels) * planes + plane] = from[i];
  }
  return to;
}

typedef enum sum_kind { ALONE, WITH_RESIDUAL, WITH_RELU_OF_IT } sum_kind;

/* Channels last: as the other form, beside it within rounding; packed before and in the call. */
static void check_last(const setting *s, sum_kind kind) {
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  cpu_conv_args g = args_of(s);
  cpu_conv_last_args l = {.images = s->images,
                          .groups = s->groups,
                          .c_in = s->c_in,
                          .c_out = s->c_out,
                          .in_size = {s->in[0], s->in[1]},
                          .kernel = {s->kernel[0], s->kernel[1]},
                          .stride = {s->stride[0], s->stride[1]},
                          .dilation = {s->dilation[0], s->dilation[1]},
                          .pad_begin = {s->pad[0], s->pad[1]},
                          .activation = s->activation};
  for (int i = 0; i < 2; ++i)
    l.out_size[i] = g.out_size[i + 1];
  const int64_t taps = s->kernel[0] * s->kernel[1], k = s->c_in / s->groups * taps;
  const int64_t pixels = l.out_size[0] * l.out_size[1], size = s->images * s->c_out * pixels;
  float *in = kernel_random(s->images * s->c_in * s->in[0] * s->in[1], 1);
  float *turned = channels_last(in, s->images, s->c_in, s->in[0] * s->in[1]);
  float *weight = kernel_random(s->c_out * k, 2), *bias = kernel_random(s->c_out, 3);
  float *residual = kernel_random(size, 4);
  float *residual_last = channels_last(residual, s->images, s->c_out, pixels);
  float *first = kernel_floats(size), *out = kernel_floats(size);
  double *exact = kernel_memory((size_t)size * sizeof(double));
  g.in = in;
  g.weight = weight;
  g.bias = l.bias = bias;
  l.in = turned;
  l.residual = kind == ALONE ? NULL : residual_last;
  l.relu_last = kind == WITH_RELU_OF_IT;
  for (int i = 0; i < 2 * n; ++i) {
    const cpu_exec *x = &execs[i / 2].x;
    uint64_t bytes = 0, packed_bytes = 0;
    void *packed = NULL;
    if (i % 2 == 1 && s->groups == 1) {
      OPI_ASSERT(cpu_conv_pack_bytes(s->c_out, s->c_in, taps, &packed_bytes));
      packed = kernel_memory(packed_bytes);
      cpu_conv_pack(x, CPU_F32, weight, s->c_out, s->c_in, taps, packed);
    }
    l.weight = packed == NULL ? weight : NULL;
    l.packed = packed;
    OPI_ASSERT(cpu_conv_last_workspace(cpu_team_size(x->team), &l, &bytes));
    l.workspace = kernel_memory(bytes);
    l.out = i == 0 ? first : out;
    memset(l.out, 0xff, (size_t)size * sizeof(float));
    cpu_conv_last(x, &l);
    free(l.workspace), free(packed);
    if (i > 0)
      kernel_same(out, first, size, "convolution, channels last", execs[i / 2].name);
  }
  for (int64_t i = 0; i < size; ++i) { /* i as channels stand last */
    const int64_t image = i / (s->c_out * pixels), pixel = i / s->c_out % pixels;
    exact[i] = exact_value(&g, image, i % s->c_out, pixel);
    exact[i] += kind == ALONE ? 0 : (double)residual_last[i];
    exact[i] = kind == WITH_RELU_OF_IT && exact[i] < 0 ? 0 : exact[i];
  }
  kernel_close(first, exact, size, 2e-6, "convolution, channels last", "all");
  free(in), free(turned), free(weight), free(bias), free(residual), free(residual_last);
  free(first), free(out), free(exact);
}

static const setting more[] = {
    {2, 40, 40, 40, {9, 13}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, CPU_ACT_RELU},
    {1, 35, 35, 35, {14, 11}, {5, 5}, {2, 2}, {1, 1}, {2, 2}, {2, 2}, CPU_ACT_NONE},
    {1, 16, 16, 16, {1, 50}, {1, 4}, {1, 1}, {1, 3}, {0, 5}, {0, 2}, CPU_ACT_SILU},
    {2, 72, 72, 72, {7, 7}, {5, 5}, {1, 1}, {1, 1}, {2, 2}, {2, 2}, CPU_ACT_HARD_SWISH},
    {1, 70, 70, 70, {6, 3}, {7, 7}, {1, 1}, {1, 1}, {3, 3}, {3, 3}, CPU_ACT_NONE},
    {1, 48, 48, 48, {10, 15}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, CPU_ACT_RELU},
    {1, 24, 24, 24, {8, 33}, {7, 7}, {2, 2}, {1, 1}, {0, 3}, {3, 3}, CPU_ACT_NONE},
    {1, 64, 64, 64, {5, 12}, {9, 9}, {1, 1}, {1, 1}, {4, 4}, {4, 4}, CPU_ACT_NONE},
    {2, 128, 128, 128, {9, 16}, {3, 3}, {1, 1}, {2, 2}, {2, 2}, {2, 2}, CPU_ACT_HARD_SWISH},
    {3, 1, 70, 130, {5, 5}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, CPU_ACT_RELU},
    {1, 1, 300, 70, {9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, CPU_ACT_NONE},
    {1, 1, 20, 40, {11, 7}, {1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, CPU_ACT_NONE},
    {1, 3, 12, 66, {6, 6}, {2, 2}, {1, 1}, {1, 1}, {1, 0}, {0, 1}, CPU_ACT_NONE},
};

static void test_channels_last(void) {
  for (int kind = ALONE; kind <= WITH_RELU_OF_IT; ++kind) {
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; ++i)
      check_last(&settings[i], (sum_kind)kind);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; ++i)
      check_last(&more[i], (sum_kind)kind);
  }
}

/* One channel of one window in plain loops. */
static double exact_pool(const cpu_pool_last_args *g, int64_t image, int64_t c, int64_t y,
                         int64_t x) {
  double most = -(double)INFINITY, sum = 0;
  int64_t inside = 0, padded = 0;
  for (int64_t t = 0; t < g->kernel[0] * g->kernel[1]; ++t) {
    const int64_t r = y * g->stride[0] + t / g->kernel[1] * g->dilation[0] - g->pad_begin[0];
    const int64_t q = x * g->stride[1] + t % g->kernel[1] * g->dilation[1] - g->pad_begin[1];
    padded += r < g->in_size[0] + g->pad_end[0] && q < g->in_size[1] + g->pad_end[1];
    if (r < 0 || r >= g->in_size[0] || q < 0 || q >= g->in_size[1])
      continue;
    const double v =
        (double)g->in[((image * g->in_size[0] + r) * g->in_size[1] + q) * g->channels + c];
    most = v > most ? v : most;
    sum += v;
    ++inside;
  }
  return g->average ? sum / (double)(g->count_pads ? padded : inside) : most;
}

static void check_pool(cpu_pool_last_args g) {
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  const int64_t pixels = g.out_size[0] * g.out_size[1], size = g.images * pixels * g.channels;
  float *in = kernel_random(g.images * g.in_size[0] * g.in_size[1] * g.channels, 5);
  float *first = kernel_floats(size), *out = kernel_floats(size);
  double *exact = kernel_memory((size_t)size * sizeof(double));
  g.in = in;
  for (int i = 0; i < n; ++i) {
    g.out = i == 0 ? first : out;
    memset(g.out, 0xff, (size_t)size * sizeof(float));
    cpu_pool_last(&execs[i].x, &g);
    if (i > 0)
      kernel_same(out, first, size, "pool", execs[i].name);
  }
  for (int64_t i = 0; i < size; ++i) {
    const int64_t pixel = i / g.channels % pixels;
    exact[i] = exact_pool(&g, i / g.channels / pixels, i % g.channels, pixel / g.out_size[1],
                          pixel % g.out_size[1]);
  }
  kernel_close(first, exact, size, 2e-6, "pool", "all");
  free(in), free(first), free(out), free(exact);
}

static void test_pools(void) {
  cpu_pool_last_args g = {.images = 2,
                          .channels = 70,
                          .in_size = {9, 8},
                          .out_size = {5, 4},
                          .kernel = {3, 3},
                          .stride = {2, 2},
                          .dilation = {1, 1},
                          .pad_begin = {1, 1},
                          .pad_end = {1, 0}};
  check_pool(g);
  g.average = true;
  check_pool(g);
  g.count_pads = true;
  check_pool(g);
  g = (cpu_pool_last_args){.images = 1,
                           .channels = 20,
                           .in_size = {7, 7},
                           .out_size = {1, 1},
                           .kernel = {7, 7},
                           .stride = {1, 1},
                           .dilation = {1, 1},
                           .average = true};
  check_pool(g);
}

static const setting wide[] = {
    {1, 1, 70, 130, {9, 8}, {3, 3}, {2, 1}, {1, 1}, {1, 1}, {1, 1}, CPU_ACT_NONE},
    {3, 2, 8, 20, {20, 21}, {4, 3}, {3, 2}, {1, 2}, {1, 2}, {0, 2}, CPU_ACT_NONE},
};

static void test_gradients(void) {
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; ++i)
    check_gradients(&settings[i]);
  for (size_t i = 0; i < sizeof deep / sizeof deep[0]; ++i)
    check_gradients(&deep[i]);
  for (size_t i = 0; i < sizeof wide / sizeof wide[0]; ++i)
    check_gradients(&wide[i]);
}

static void test_convolutions(void) {
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; ++i)
    check(&settings[i]);
  for (size_t i = 0; i < sizeof deep / sizeof deep[0]; ++i)
    check(&deep[i]);
}

OPI_TEST_MAIN("kernel_conv", OPI_TEST(test_convolutions), OPI_TEST(test_gradients),
              OPI_TEST(test_channels_last), OPI_TEST(test_pools))
