/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of norms along with sums over their rows: dX has the bits of the gradient alone, sums
 * are those of plain loops in double. */
#include "plugins/backend-cuda/kernels/kernels_train.h"
#include "tests/plugins/backend-cuda/kernels/kit.h"

enum { SCALE = 1 << CUDA_NORM_OF_SCALE, BIAS = 1 << CUDA_NORM_OF_BIAS, DX = 1 << CUDA_NORM_OF_DX };

typedef struct sums_case {
  uint32_t dtype, scale_dtype;
  int64_t rows, n;
  uint32_t wanted, adds; /* bits */
  bool rms, residual;
} sums_case;

typedef struct operands {
  kit_tensor x, dy, residual, scale, dx, sums[CUDA_NORM_SUMS];
  cuda_norm_sums_args args;
} operands;

static operands draw(const sums_case *c) {
  const int64_t all = c->rows * c->n;
  operands o = {.x = kit_random(c->dtype, all, 5, -3, 3),
                .dy = kit_random(c->dtype, all, 6, -1, 1),
                .residual = kit_random(c->dtype, all, 9, -1, 1),
                .scale = kit_random(c->scale_dtype, c->n, 7, 0.5, 2),
                .dx = kit_new(c->dtype, all)};
  o.args.grad = (cuda_norm_grad_args){.dx = o.dx.data,
                                      .dy = o.dy.data,
                                      .x = o.x.data,
                                      .scale = o.scale.data,
                                      .residual = c->residual ? o.residual.data : NULL,
                                      .rows = c->rows,
                                      .n = c->n,
                                      .epsilon = 1e-5,
                                      .rms = c->rms};
  for (uint32_t i = 0; i < CUDA_NORM_SUMS; ++i) {
    o.sums[i] = kit_random(OPIPE_FLOAT, c->n, 10 + i, -1, 1);
    o.args.sums[i] = (c->wanted >> i & 1u) != 0 ? o.sums[i].data : NULL;
  }
  o.args.adds = c->adds;
  o.args.workspace = kit_workspace(cuda_norm_sums_workspace(&o.args));
  return o;
}

/* Sums by columns of dY h, dY and dX, as these are stored. */
static void add_up(const sums_case *c, const operands *o, double *const *out) {
  for (int64_t i = 0; i < c->rows; ++i) {
    double mean = 0, square = 0;
    for (int64_t k = 0; k < c->n && !c->rms; ++k)
      mean += kit_get(&o->x, i * c->n + k) / (double)c->n;
    for (int64_t k = 0; k < c->n; ++k) {
      const double v = kit_get(&o->x, i * c->n + k) - mean;
      square += v * v;
    }
    const double inverse = 1 / sqrt(square / (double)c->n + 1e-5);
    for (int64_t k = 0; k < c->n; ++k) {
      const int64_t at = i * c->n + k;
      const double d = kit_get(&o->dy, at);
      out[CUDA_NORM_OF_SCALE][k] += d * (kit_get(&o->x, at) - mean) * inverse;
      out[CUDA_NORM_OF_BIAS][k] += d;
      out[CUDA_NORM_OF_DX][k] += kit_get(&o->dx, at);
    }
  }
}

static void run_case(const sums_case *c) {
  const operands o = draw(c);
  const kit_tensor alone = kit_new(c->dtype, o.dx.n);
  cuda_launch launches[CUDA_LAUNCHES], one;
  double *want[CUDA_NORM_SUMS];
  for (uint32_t i = 0; i < CUDA_NORM_SUMS; ++i) {
    want[i] = kit_doubles(c->n);
    for (int64_t k = 0; k < c->n && (c->adds >> i & 1u) != 0; ++k)
      want[i][k] = kit_get(&o.sums[i], k);
  }
  const kit_tensor before[] = {kit_copy(&o.sums[0]), kit_copy(&o.sums[1]), kit_copy(&o.sums[2])};
  const uint32_t n = cuda_plan_norm_sums(&o.args, c->dtype, c->scale_dtype, launches);
  OPI_ASSERT_INT(n, 2);
  KIT_RUN(launches, n, &o.dx, &o.sums[0], &o.sums[1], &o.sums[2]);
  cuda_norm_grad_args args = o.args.grad;
  args.dx = alone.data;
  OPI_ASSERT_FATAL(cuda_plan_norm_grad(&args, c->dtype, c->scale_dtype, &one));
  KIT_RUN(&one, 1, &alone);
  OPI_ASSERT(kit_same(&o.dx, 0, &alone, 0, o.dx.n));
  add_up(c, &o, want);
  for (uint32_t i = 0; i < CUDA_NORM_SUMS; ++i) {
    if ((c->wanted >> i & 1u) == 0)
      OPI_ASSERT(kit_same(&o.sums[i], 0, &before[i], 0, c->n));
    else if (c->n > 1 || i != CUDA_NORM_OF_SCALE) /* of rows of one element h is noise */
      KIT_CLOSE(o.sums[i], want[i], 1e-5);
  }
  kit_end();
}

static const struct {
  uint32_t dtype, scale_dtype;
} pairs[] = {{OPIPE_FLOAT, OPIPE_FLOAT},
             {OPIPE_BFLOAT16, OPIPE_BFLOAT16},
             {OPIPE_FLOAT16, OPIPE_FLOAT16},
             {OPIPE_BFLOAT16, OPIPE_FLOAT},
             {OPIPE_FLOAT16, OPIPE_FLOAT}};
enum { PAIRS = sizeof pairs / sizeof pairs[0] };

static void test_sums(void) {
  static const int64_t shapes[][2] = {{1, 1},   {3, 5},    {16, 64},   {17, 768}, {40, 1024},
                                      {9, 999}, {300, 40}, {1300, 17}, {8300, 8}};
  static const uint32_t wanted[] = {SCALE | BIAS | DX, SCALE,     DX,   SCALE | BIAS,
                                    SCALE | DX,        BIAS | DX, BIAS, SCALE | BIAS | DX};
  for (size_t i = 0; i < PAIRS * sizeof shapes / sizeof shapes[0]; ++i) {
    const size_t s = i / PAIRS, t = i % PAIRS;
    const sums_case c = {pairs[t].dtype, pairs[t].scale_dtype, shapes[s][0], shapes[s][1],
                         wanted[i % 8],  (uint32_t)(i % 7),    i % 4 == 1,   i % 3 != 0};
    if (kit_covers(i, 5) && (c.rows < 2000 || t == 1)) /* many rows take long */
      run_case(&c);
  }
}

/* Rows that no vectors begin: the same bits. */
static void test_alignment_changes_no_bits(void) {
  const sums_case c = {OPIPE_BFLOAT16, OPIPE_FLOAT, 50, 136, SCALE | BIAS | DX, BIAS, false, true};
  operands o[2];
  for (int skewed = 0; skewed < 2; ++skewed) {
    cuda_launch launches[CUDA_LAUNCHES];
    kit_skew = skewed;
    o[skewed] = draw(&c);
    kit_skew = 0;
    OPI_ASSERT_INT(cuda_plan_norm_sums(&o[skewed].args, c.dtype, c.scale_dtype, launches), 2);
    KIT_RUN(launches, 2, &o[skewed].dx, &o[skewed].sums[0], &o[skewed].sums[1], &o[skewed].sums[2]);
  }
  OPI_ASSERT(kit_same(&o[0].dx, 0, &o[1].dx, 0, o[0].dx.n));
  for (uint32_t i = 0; i < CUDA_NORM_SUMS; ++i)
    OPI_ASSERT(kit_same(&o[0].sums[i], 0, &o[1].sums[i], 0, c.n));
  kit_end();
}

/* dX in the place of what is added, and of dY. */
static void test_in_place(void) {
  for (int over_dy = 0; over_dy < 2; ++over_dy) {
    const sums_case c = {OPIPE_FLOAT16, OPIPE_FLOAT16, 37, 72, SCALE | BIAS | DX, DX,
                         true,          !over_dy};
    operands o = draw(&c);
    const kit_tensor *over = over_dy ? &o.dy : &o.residual;
    const kit_tensor sums[] = {kit_copy(&o.sums[0]), kit_copy(&o.sums[1]), kit_copy(&o.sums[2])};
    cuda_launch launches[CUDA_LAUNCHES];
    OPI_ASSERT_INT(cuda_plan_norm_sums(&o.args, c.dtype, c.scale_dtype, launches), 2);
    KIT_RUN(launches, 2, &o.dx, &o.sums[0], &o.sums[1], &o.sums[2]);
    o.args.grad.dx = over->data;
    for (uint32_t i = 0; i < CUDA_NORM_SUMS; ++i)
      o.args.sums[i] = sums[i].data;
    OPI_ASSERT_INT(cuda_plan_norm_sums(&o.args, c.dtype, c.scale_dtype, launches), 2);
    KIT_RUN(launches, 2, over, &sums[0], &sums[1], &sums[2]);
    OPI_ASSERT(kit_same(&o.dx, 0, over, 0, o.dx.n));
    for (uint32_t i = 0; i < CUDA_NORM_SUMS; ++i)
      OPI_ASSERT(kit_same(&o.sums[i], 0, &sums[i], 0, c.n));
    kit_end();
  }
}

static void test_what_is_refused(void) {
  cuda_launch launches[CUDA_LAUNCHES];
  float sum = 0;
  const cuda_norm_sums_args good = {.grad = {.rows = 3, .n = 1024}, .sums = {&sum}};
  cuda_norm_sums_args args = good;
  OPI_ASSERT_INT(cuda_plan_norm_sums(&good, OPIPE_FLOAT, OPIPE_FLOAT, launches), 2);
  OPI_ASSERT_INT(cuda_norm_sums_workspace(&good), 1024 * sizeof(float));
  OPI_ASSERT_INT(cuda_plan_norm_sums(&good, OPIPE_DOUBLE, OPIPE_DOUBLE, launches), 0);
  OPI_ASSERT_INT(cuda_plan_norm_sums(&good, OPIPE_FLOAT, OPIPE_FLOAT16, launches), 0);
  OPI_ASSERT_INT(cuda_plan_norm_sums(&good, OPIPE_INT32, OPIPE_INT32, launches), 0);
  args.grad.n = 1025;
  OPI_ASSERT_INT(cuda_plan_norm_sums(&args, OPIPE_FLOAT, OPIPE_FLOAT, launches), 0);
  args.grad.n = 0;
  OPI_ASSERT_INT(cuda_plan_norm_sums(&args, OPIPE_FLOAT, OPIPE_FLOAT, launches), 0);
  args = good;
  args.grad.rows = 0;
  OPI_ASSERT_INT(cuda_plan_norm_sums(&args, OPIPE_FLOAT, OPIPE_FLOAT, launches), 0);
  args = good;
  args.sums[0] = NULL;
  OPI_ASSERT_INT(cuda_plan_norm_sums(&args, OPIPE_FLOAT, OPIPE_FLOAT, launches), 0);
  /* chunks: of 16 rows at least, 512 at most */
  args = good;
  args.grad.rows = 8193;
  OPI_ASSERT_INT(cuda_plan_norm_sums(&args, OPIPE_FLOAT, OPIPE_FLOAT, launches), 2);
  OPI_ASSERT_INT(launches[0].grid[0], 410);
  args.grad.rows = 32768;
  OPI_ASSERT_INT(cuda_plan_norm_sums(&args, OPIPE_FLOAT, OPIPE_FLOAT, launches), 2);
  OPI_ASSERT_INT(launches[0].grid[0], 512);
}

OPI_TEST_MAIN("cuda_norm_sums", OPI_TEST(test_sums), OPI_TEST(test_alignment_changes_no_bits),
              OPI_TEST(test_in_place), OPI_TEST(test_what_is_refused))
