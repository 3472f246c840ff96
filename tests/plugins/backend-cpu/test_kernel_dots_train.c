/* SPDX-License-Identifier: Apache-2.0 */
/* Products of training in bf16: every kind of this machine against plain loops in the order that
 * dots.h states, bit for bit, with one thread and two: Y and dX from fp32 panels, whose numbers are
 * rounded on the way, and dW, one chain over the rows, whatever calls they come in. */
#include "kernel_test.h"
#include "plugins/backend-cpu/kernels/half.h"

/* ctest: timeout=120 */

typedef struct shape {
  int64_t m, k, n;
} shape;

static const shape shapes[] = {{1, 1, 1},      {2, 130, 66}, {3, 64, 33},   {7, 300, 128},
                               {16, 96, 40},   {33, 70, 20}, {70, 33, 287}, {129, 17, 64},
                               {200, 38, 130}, {515, 20, 70}};

typedef struct numbers {
  shape s;
  uint16_t *x, *dy;  /* [M,K], [M,N] */
  float *w, *panels; /* [K,N], and packed */
  float *bias;       /* [K] or [N] */
  float *dw;         /* packed dW before */
  uint64_t bytes;
} numbers;

static bool is_pairs(int kind) {
  return kind == CPU_DOTS_PAIRS || kind == CPU_DOTS_PAIRS_MODEL;
}

static float flushed(float x) {
  return fabsf(x) < 1.17549435e-38f ? x * 0.0f : x;
}

static float fused(uint16_t a, uint16_t b, float sum) {
  return flushed(fmaf(flushed(cpu_bf16_to_f32(a)), flushed(cpu_bf16_to_f32(b)), flushed(sum)));
}

/* sum + the products of steps of a and b, in the order of a kind. */
static float chain(int kind, const uint16_t *a, int64_t a_step, const uint16_t *b, int64_t b_step,
                   int64_t steps, float sum) {
  if (is_pairs(kind)) {
    for (int64_t k = 0; k < steps; k += 2) {
      sum = k + 1 < steps ? fused(a[(k + 1) * a_step], b[(k + 1) * b_step], sum) : flushed(sum);
      sum = fused(a[k * a_step], b[k * b_step], sum);
    }
    return sum;
  }
  for (int64_t from = 0; from < steps; from += CPU_DOTS_STEPS) {
    float part[2] = {0.0f, 0.0f};
    for (int64_t k = from; k < steps && k < from + CPU_DOTS_STEPS; ++k)
      part[k % 2] = fused(a[k * a_step], b[k * b_step], part[k % 2]);
    sum = flushed(flushed(sum) + flushed(part[0] + part[1]));
  }
  return sum;
}

/* The sum over `steps`, by chains of CPU_CHAIN. */
static float product(int kind, const uint16_t *a, const uint16_t *b, int64_t b_step,
                     int64_t steps) {
  float sum = 0.0f;
  for (int64_t k = 0; k < steps; k += CPU_CHAIN) {
    const int64_t now = steps - k < CPU_CHAIN ? steps - k : CPU_CHAIN;
    const float part = chain(kind, a + k, 1, b + k * b_step, b_step, now, 0.0f);
    sum = k == 0 ? part : sum + part;
  }
  return sum;
}

static uint16_t *rounded(const float *from, int64_t n) {
  uint16_t *out = kernel_memory((size_t)n * sizeof *out);
  for (int64_t i = 0; i < n; ++i)
    out[i] = cpu_f32_to_bf16(from[i]);
  return out;
}

static uint16_t *random_half(int64_t n, uint32_t seed) {
  float *from = kernel_random(n, seed);
  for (int64_t i = 5; i < n; i += 97)
    from[i] *= 1e-38f;
  uint16_t *out = rounded(from, n);
  free(from);
  return out;
}

static float *packed(const cpu_exec *x, const float *from, int64_t k, int64_t n, uint64_t *bytes) {
  const cpu_pack_source source = {
      .data = from, .dtype = CPU_F32, .k = k, .n = n, .k_stride = n, .n_stride = 1};
  OPI_ASSERT(cpu_pack_bytes(CPU_PACK_F32_PANEL, k, n, bytes));
  float *out = kernel_memory(*bytes);
  cpu_pack(x, CPU_PACK_F32_PANEL, &source, out);
  return out;
}

static numbers make(const cpu_exec *x, shape s) {
  numbers d = {.s = s};
  float *before = kernel_random(s.k * s.n, 4);
  d.x = random_half(s.m * s.k, 1);
  d.dy = random_half(s.m * s.n, 2);
  d.w = kernel_random(s.k * s.n, 3);
  d.panels = packed(x, d.w, s.k, s.n, &d.bytes);
  d.dw = packed(x, before, s.k, s.n, &d.bytes);
  d.bias = kernel_random(s.k > s.n ? s.k : s.n, 5);
  free(before);
  return d;
}

static void drop(numbers *d) {
  free(d->x), free(d->dy), free(d->w), free(d->panels), free(d->dw), free(d->bias);
}

/* Workspace of a call, full of NaN. */
static void *workspace(uint64_t bytes) {
  void *room = kernel_memory(bytes);
  memset(room, 0xff, bytes);
  return room;
}

/* Y = X W / 2 + bias. */
static void forward(const cpu_exec *x, const numbers *d, const cpu_dots *dots, float *y) {
  const cpu_epilogue epilogue = {.alpha = 0.5f, .bias = d->bias};
  uint64_t room = 0;
  OPI_ASSERT(cpu_matmul_workspace(cpu_team_size(x->team), CPU_PACK_BF16_PANEL, &room));
  const cpu_matmul_args g = {.m = d->s.m,
                             .a_stride = d->s.k,
                             .b = {CPU_PACK_F32_PANEL, d->s.k, d->s.n, d->panels},
                             .c = y,
                             .c_stride = d->s.n,
                             .epilogue = &epilogue,
                             .workspace = workspace(room),
                             .dots = dots,
                             .a_half = d->x};
  cpu_matmul(x, &g);
  free(g.workspace);
}

/* dX = dY W^T / 2 + bias. */
static void backward(const cpu_exec *x, const numbers *d, const cpu_dots *dots, float *dx) {
  const cpu_epilogue epilogue = {.alpha = 0.5f, .bias = d->bias};
  uint64_t room = 0;
  OPI_ASSERT(cpu_matmul_dx_workspace(cpu_team_size(x->team), &room));
  const cpu_matmul_dx_args g = {.m = d->s.m,
                                .dy_stride = d->s.n,
                                .w = {CPU_PACK_F32_PANEL, d->s.k, d->s.n, d->panels},
                                .dx = dx,
                                .dx_stride = d->s.k,
                                .epilogue = &epilogue,
                                .workspace = workspace(room),
                                .dots = dots,
                                .dy_half = d->dy};
  cpu_matmul_dx(x, &g);
  free(g.workspace);
}

/* dw += X^T dY of rows [first, first + rows). */
static void weights(const cpu_exec *x, const numbers *d, const cpu_dots *dots, int64_t first,
                    int64_t rows, float *dw) {
  uint64_t room = 0;
  OPI_ASSERT(cpu_matmul_dw_workspace(cpu_team_size(x->team), d->s.k, &room));
  const cpu_matmul_dw_args g = {.m = rows,
                                .k = d->s.k,
                                .n = d->s.n,
                                .x_stride = d->s.k,
                                .dy_stride = d->s.n,
                                .format = CPU_PACK_F32_PANEL,
                                .dw = dw,
                                .workspace = workspace(room),
                                .dots = dots,
                                .x_half = d->x + first * d->s.k,
                                .dy_half = d->dy + first * d->s.n};
  cpu_matmul_dw(x, &g);
  free(g.workspace);
}

static const cpu_dots *kind_of(int kind) {
  return cpu_dots_get((cpu_dots_kind)kind);
}

static void test_products_by_rounded_weights(void) {
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    numbers d = make(&execs[0].x, shapes[s]);
    uint16_t *w = rounded(d.w, d.s.k * d.s.n);
    float *y = kernel_floats(d.s.m * d.s.n), *y_wanted = kernel_floats(d.s.m * d.s.n);
    float *dx = kernel_floats(d.s.m * d.s.k), *dx_wanted = kernel_floats(d.s.m * d.s.k);
    for (int kind = 1; kind < CPU_DOTS_COUNT; ++kind) {
      if (kind_of(kind) == NULL)
        continue;
      for (int64_t i = 0; i < d.s.m * d.s.n; ++i) {
        const int64_t r = i / d.s.n, c = i % d.s.n;
        y_wanted[i] = 0.5f * product(kind, d.x + r * d.s.k, w + c, d.s.n, d.s.k) + d.bias[c];
      }
      for (int64_t i = 0; i < d.s.m * d.s.k; ++i) {
        const int64_t r = i / d.s.k, c = i % d.s.k;
        dx_wanted[i] = 0.5f * product(kind, d.dy + r * d.s.n, w + c * d.s.n, 1, d.s.n) + d.bias[c];
      }
      for (int i = n - 2; i < n; ++i) { /* one thread and two */
        char what[64];
        snprintf(what, sizeof what, "%s %lldx%lldx%lld", cpu_dots_name((cpu_dots_kind)kind),
                 (long long)d.s.m, (long long)d.s.k, (long long)d.s.n);
        forward(&execs[i].x, &d, kind_of(kind), y);
        kernel_same(y, y_wanted, d.s.m * d.s.n, what, execs[i].name);
        backward(&execs[i].x, &d, kind_of(kind), dx);
        kernel_same(dx, dx_wanted, d.s.m * d.s.k, what, execs[i].name);
      }
    }
    free(w), free(y), free(y_wanted), free(dx), free(dx_wanted);
    drop(&d);
  }
}

/* wanted, packed: the old value, then one chain over all rows. */
static void plain_weights(const numbers *d, int kind, float *wanted) {
  memcpy(wanted, d->dw, d->bytes);
  for (int64_t i = 0; i < d->s.k * d->s.n; ++i) {
    const int64_t k = i / d->s.n, c = i % d->s.n;
    float *at = wanted + (c / CPU_PANEL * d->s.k + k) * CPU_PANEL + c % CPU_PANEL;
    *at = chain(kind, d->x + k, d->s.k, d->dy + c, d->s.n, d->s.m, *at);
  }
}

static void test_gradients_of_weights_are_one_chain(void) {
  kernel_exec execs[KERNEL_EXECS];
  const int n = kernel_execs(execs);
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    numbers d = make(&execs[0].x, shapes[s]);
    float *dw = kernel_memory(d.bytes), *wanted = kernel_memory(d.bytes);
    const int64_t elements = (int64_t)(d.bytes / sizeof *dw);
    for (int kind = 1; kind < CPU_DOTS_COUNT; ++kind) {
      if (kind_of(kind) == NULL)
        continue;
      plain_weights(&d, kind, wanted);
      for (int i = n - 2; i < n; ++i) {
        char what[64];
        snprintf(what, sizeof what, "%s %lldx%lldx%lld", cpu_dots_name((cpu_dots_kind)kind),
                 (long long)d.s.m, (long long)d.s.k, (long long)d.s.n);
        memcpy(dw, d.dw, d.bytes);
        weights(&execs[i].x, &d, kind_of(kind), 0, d.s.m, dw);
        kernel_same(dw, wanted, elements, what, execs[i].name);
        if (d.s.m <= 2 * CPU_DOTS_STEPS)
          continue;
        memcpy(dw, d.dw, d.bytes); /* rows in three calls, the last with what is left */
        weights(&execs[i].x, &d, kind_of(kind), 0, CPU_DOTS_STEPS, dw);
        weights(&execs[i].x, &d, kind_of(kind), CPU_DOTS_STEPS, CPU_DOTS_STEPS, dw);
        weights(&execs[i].x, &d, kind_of(kind), 2 * CPU_DOTS_STEPS, d.s.m - 2 * CPU_DOTS_STEPS, dw);
        kernel_same(dw, wanted, elements, what, "in three calls");
      }
    }
    free(dw), free(wanted);
    drop(&d);
  }
}

OPI_TEST_MAIN("kernel_dots_train", OPI_TEST(test_products_by_rounded_weights),
              OPI_TEST(test_gradients_of_weights_are_one_chain))
