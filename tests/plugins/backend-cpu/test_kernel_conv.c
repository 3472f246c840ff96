/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution against plain loops in double: strides, pads, dilations, groups, one and two
 * dimensions; the same bits on every instruction set and number of threads. */
#include "kernel_test.h"

typedef struct setting {
  int64_t images, groups, c_in, c_out;
  int64_t in[2], kernel[2], stride[2], dilation[2], pad[2], pad_end[2];
  cpu_activation activation;
} setting;

static const setting settings[] = {
    {1, 1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, CPU_ACT_NONE},
    {2, 1, 3, 10, {20, 23}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, CPU_ACT_NONE},
    {1, 1, 3, 32, {32, 32}, {8, 8}, {8, 8}, {1, 1}, {0, 0}, {0, 0}, CPU_ACT_NONE},
    {2, 2, 6, 8, {17, 9}, {3, 2}, {2, 1}, {1, 2}, {1, 0}, {2, 1}, CPU_ACT_RELU},
    {1, 5, 5, 5, {1, 40}, {1, 4}, {1, 1}, {1, 1}, {0, 3}, {0, 0}, CPU_ACT_SILU},
    {1, 1, 80, 20, {1, 100}, {1, 3}, {1, 2}, {1, 1}, {0, 1}, {0, 1}, CPU_ACT_NONE},
};

static double exact_value(const cpu_conv_args *g, int64_t image, int64_t filter, int64_t y,
                          int64_t x) {
  const int64_t planes = g->c_in / g->groups;
  const int64_t group = filter / (g->c_out / g->groups);
  double sum = g->bias != NULL ? (double)g->bias[filter] : 0.0;
  for (int64_t c = 0; c < planes; ++c) {
    for (int64_t t = 0; t < g->kernel[0] * g->kernel[1]; ++t) {
      int64_t row = y * g->stride[0] + t / g->kernel[1] * g->dilation[0] - g->pad_begin[0];
      int64_t column = x * g->stride[1] + t % g->kernel[1] * g->dilation[1] - g->pad_begin[1];
      if (row < 0 || row >= g->in_size[0] || column < 0 || column >= g->in_size[1])
        continue;
      int64_t plane = image * g->c_in + group * planes + c;
      int64_t tap = (filter * planes + c) * g->kernel[0] * g->kernel[1] + t;
      sum += (double)g->in[(plane * g->in_size[0] + row) * g->in_size[1] + column] *
             (double)g->weight[tap];
    }
  }
  sum = g->activation == CPU_ACT_RELU && sum < 0.0 ? 0.0 : sum;
  return g->activation == CPU_ACT_SILU ? sum / (1.0 + exp(-sum)) : sum;
}

static void check(const setting *s) {
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  cpu_conv_args g = {.images = s->images,
                     .groups = s->groups,
                     .c_in = s->c_in,
                     .c_out = s->c_out,
                     .in_size = {s->in[0], s->in[1]},
                     .kernel = {s->kernel[0], s->kernel[1]},
                     .stride = {s->stride[0], s->stride[1]},
                     .dilation = {s->dilation[0], s->dilation[1]},
                     .pad_begin = {s->pad[0], s->pad[1]},
                     .activation = s->activation};
  for (int i = 0; i < 2; ++i) {
    g.out_size[i] =
        (s->in[i] + s->pad[i] + s->pad_end[i] - s->dilation[i] * (s->kernel[i] - 1) - 1) /
            s->stride[i] +
        1;
  }
  const int64_t k = s->c_in / s->groups * s->kernel[0] * s->kernel[1];
  const int64_t pixels = g.out_size[0] * g.out_size[1];
  const int64_t size = s->images * s->c_out * pixels;
  float *in = kernel_random(s->images * s->c_in * s->in[0] * s->in[1], 1);
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
  for (int64_t i = 0; i < size; ++i) {
    int64_t pixel = i % pixels;
    exact[i] = exact_value(&g, i / pixels / s->c_out, i / pixels % s->c_out, pixel / g.out_size[1],
                           pixel % g.out_size[1]);
  }
  kernel_close(first, exact, size, 2e-6, "convolution", "all");
  free(in), free(weight), free(bias), free(first), free(out), free(exact);
}

static void test_convolutions(void) {
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; ++i)
    check(&settings[i]);
}

OPI_TEST_MAIN("kernel_conv", OPI_TEST(test_convolutions))
