/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the packed product: bit for bit plain loops in the documented order, on every
 * instruction set and number of threads; rows in several calls give the bits of one call. */
#include "kernel_test.h"

typedef struct shape {
  int64_t m, k, n;
} shape;

static const shape shapes[] = {{1, 1, 1},     {5, 64, 64},    {13, 70, 300}, {130, 33, 65},
                               {24, 200, 17}, {7, 100, 1100}, {530, 20, 40}, {2, 129, 63}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static cpu_packed pack(const cpu_exec *x, const float *b, int64_t k, int64_t n) {
  uint64_t bytes = 0;
  OPI_ASSERT(cpu_pack_bytes(CPU_PACK_F32_PANEL, k, n, &bytes));
  void *data = kernel_memory(bytes);
  cpu_pack_source source = {b, CPU_F32, k, n, n, 1, 0};
  cpu_pack(x, CPU_PACK_F32_PANEL, &source, data);
  return (cpu_packed){CPU_PACK_F32_PANEL, k, n, data};
}

static void check_dx(const kernel_exec *e, shape s) {
  float *dy = kernel_random(s.m * s.n, 1);
  float *w = kernel_random(s.k * s.n, 2);
  float *multiplier = kernel_random(s.m * s.k, 3);
  float *dx = kernel_floats(s.m * s.k);
  float *wanted = kernel_floats(s.m * s.k);
  uint64_t bytes = 0;
  for (int64_t i = 0; i < s.m * s.k; ++i) {
    const float *a = dy + i / s.k * s.n;
    const float *b = w + i % s.k * s.n;
    float sum = 0.0f;
    for (int64_t c = 0; c < s.n; c += CPU_CHAIN) {
      float chain = 0.0f;
      for (int64_t j = c; j < s.n && j < c + CPU_CHAIN; ++j)
        chain = fmaf(a[j], b[j], chain);
      sum = c == 0 ? chain : sum + chain;
    }
    wanted[i] = sum * multiplier[i];
  }
  OPI_ASSERT(cpu_matmul_dx_workspace(cpu_team_size(e->x.team), &bytes));
  const cpu_epilogue epilogue = {.alpha = 1.0f, .multiplier = multiplier, .multiplier_stride = s.k};
  cpu_packed packed = pack(&e->x, w, s.k, s.n);
  cpu_matmul_dx_args g = {.m = s.m,
                          .dy = dy,
                          .dy_stride = s.n,
                          .w = packed,
                          .dx = dx,
                          .dx_stride = s.k,
                          .epilogue = &epilogue,
                          .workspace = kernel_memory(bytes)};
  memset(dx, 0xff, (size_t)(s.m * s.k) * sizeof(float));
  cpu_matmul_dx(&e->x, &g);
  kernel_same(dx, wanted, s.m * s.k, "dX", e->name);
  free(dy), free(w), free(multiplier), free(dx), free(wanted), free(g.workspace);
  free((void *)(uintptr_t)packed.data);
}

static void check_dw(const kernel_exec *e, shape s) {
  float *x = kernel_random(s.m * s.k, 4);
  float *dy = kernel_random(s.m * s.n, 5);
  float *start = kernel_random(s.k * s.n, 6);
  float *dw = kernel_floats(s.k * s.n);
  float *wanted = kernel_floats(s.k * s.n);
  float *bias = kernel_random(s.n, 7);
  float *wanted_bias = kernel_random(s.n, 7);
  uint64_t bytes = 0;
  for (int64_t i = 0; i < s.k * s.n; ++i) {
    wanted[i] = start[i];
    for (int64_t r = 0; r < s.m; ++r)
      wanted[i] = fmaf(x[r * s.k + i / s.n], dy[r * s.n + i % s.n], wanted[i]);
  }
  for (int64_t r = 0; r < s.m; ++r) {
    for (int64_t c = 0; c < s.n; ++c)
      wanted_bias[c] += dy[r * s.n + c];
  }
  OPI_ASSERT(cpu_matmul_dw_workspace(cpu_team_size(e->x.team), s.k, &bytes));
  void *workspace = kernel_memory(bytes);
  for (int64_t part = s.m; part > 0; part = part == s.m && s.m > 1 ? s.m / 2 : 0) {
    cpu_packed packed = pack(&e->x, start, s.k, s.n);
    for (int64_t done = 0; done < s.m; done += part) {
      cpu_matmul_dw_args g = {.m = s.m - done < part ? s.m - done : part,
                              .k = s.k,
                              .n = s.n,
                              .x = x + done * s.k,
                              .x_stride = s.k,
                              .dy = dy + done * s.n,
                              .dy_stride = s.n,
                              .format = CPU_PACK_F32_PANEL,
                              .dw = (void *)(uintptr_t)packed.data,
                              .workspace = workspace};
      cpu_matmul_dw(&e->x, &g);
    }
    cpu_unpack(&e->x, &packed, dw, s.n);
    kernel_same(dw, wanted, s.k * s.n, "dW", e->name);
    free((void *)(uintptr_t)packed.data);
  }
  cpu_sum_columns(&e->x, dy, s.n, s.m, s.n, bias);
  kernel_same(bias, wanted_bias, s.n, "column sums", e->name);
  free(x), free(dy), free(start), free(dw), free(wanted), free(bias), free(wanted_bias);
  free(workspace);
}

static void test_input_gradient_is_the_plain_loop(void) {
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  for (int i = 0; i < n * N_SHAPES; ++i)
    check_dx(&execs[i / N_SHAPES], shapes[i % N_SHAPES]);
}

static void test_weight_gradient_is_the_plain_loop(void) {
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  for (int i = 0; i < n * N_SHAPES; ++i)
    check_dw(&execs[i / N_SHAPES], shapes[i % N_SHAPES]);
}

static void test_workspaces(void) {
  uint64_t bytes = 0, longest = 0;
  OPI_ASSERT(!cpu_matmul_dx_workspace(0, &bytes));
  OPI_ASSERT(!cpu_matmul_dw_workspace(0, 1, &bytes));
  OPI_ASSERT(cpu_matmul_dw_workspace(1, 100000, &bytes)); /* long sums go in pieces */
  OPI_ASSERT(cpu_matmul_dw_workspace(1, INT64_MAX, &longest));
  OPI_ASSERT(bytes == longest);
  OPI_ASSERT(!cpu_matmul_dw_workspace(1, -1, &bytes));
}

OPI_TEST_MAIN("kernel_gradient", OPI_TEST(test_input_gradient_is_the_plain_loop),
              OPI_TEST(test_weight_gradient_is_the_plain_loop), OPI_TEST(test_workspaces))
