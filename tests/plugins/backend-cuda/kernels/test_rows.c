/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Kernels over rows: softmax, norms and their gradients, sums of columns, against double. */
#include "kit.h"

static double tolerance(uint32_t dtype) {
  return dtype == OPIPE_FLOAT ? 1e-5 : 0;
}

static void softmax_case(uint32_t dtype, int64_t outer, int64_t n, int64_t inner, uint32_t mode) {
  const kit_tensor x = kit_random(dtype, outer * n * inner, 3, -6, 6);
  const kit_tensor y = kit_new(dtype, x.n);
  double *want = kit_doubles(x.n);
  for (int64_t line = 0; line < outer * inner; ++line) {
    const int64_t first = line / inner * n * inner + line % inner;
    double top = -(double)INFINITY, sum = 0;
    int64_t at = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double v = kit_get(&x, first + k * inner);
      at = v > top ? k : at;
      top = v > top ? v : top;
    }
    for (int64_t k = 0; k < n; ++k)
      sum += exp(kit_get(&x, first + k * inner) - top);
    for (int64_t k = 0; k < n; ++k) {
      const double v = kit_get(&x, first + k * inner) - top;
      want[first + k * inner] = mode == 0   ? exp(v) / sum
                                : mode == 1 ? v - log(sum)
                                            : (double)(k == at);
    }
  }
  const cuda_softmax_args args = {y.data, x.data, outer, n, inner, mode, 0};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_softmax(&args, dtype, &launch));
  KIT_RUN(&launch, 1, &y);
  KIT_CLOSE(y, want, tolerance(dtype));
  if (mode == 2) {
    kit_end();
    return;
  }
  const kit_tensor dy = kit_random(dtype, x.n, 4, -1, 1);
  const kit_tensor dx = kit_new(dtype, x.n);
  if (mode == 0)
    kit_set(&y, 0, 0); /* an element that is masked: its gradient is 0 whatever comes */
  if (mode == 0)
    kit_set(&dy, 0, INFINITY);
  for (int64_t line = 0; line < outer * inner; ++line) {
    const int64_t first = line / inner * n * inner + line % inner;
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double v = kit_get(&y, first + k * inner), d = kit_get(&dy, first + k * inner);
      sum += mode == 1 ? d : v == 0 ? 0 : v * d;
    }
    for (int64_t k = 0; k < n; ++k) {
      const double v = kit_get(&y, first + k * inner), d = kit_get(&dy, first + k * inner);
      want[first + k * inner] = mode == 1 ? d - exp(v) * sum : v == 0 ? 0 : v * (d - sum);
    }
  }
  const cuda_softmax_grad_args grad = {dx.data, dy.data, y.data, outer, n, inner, mode, 0};
  OPI_ASSERT_FATAL(cuda_plan_softmax_grad(&grad, dtype, &launch));
  KIT_RUN(&launch, 1, &dx);
  KIT_CLOSE(dx, want, tolerance(dtype));
  kit_end();
}

static void test_softmax(void) {
  static const int64_t shapes[][3] = {{3, 1, 1},    {5, 7, 1},    {9, 64, 1},   {17, 257, 1},
                                      {2, 1024, 1}, {2, 1025, 1}, {2, 4100, 1}, {2, 33, 3},
                                      {3, 5, 70},   {1, 2048, 1}};
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    for (int t = 0; t < KIT_TYPES; ++t) {
      for (uint32_t mode = 0; mode < 3; ++mode) {
        if (kit_covers((s * KIT_TYPES + (size_t)t) * 3 + mode, 5))
          softmax_case(kit_types[t], shapes[s][0], shapes[s][1], shapes[s][2], mode);
      }
    }
  }
}

static void test_softmax_corners(void) {
  const double row[2][3] = {{-INFINITY, -INFINITY, -INFINITY}, {1, NAN, 2}};
  for (int inner = 1; inner <= 2; ++inner) {
    for (int r = 0; r < 2; ++r) {
      const kit_tensor x = kit_new(OPIPE_FLOAT, 3 * inner), y = kit_new(OPIPE_FLOAT, 3 * inner);
      double *want = kit_doubles(3 * inner);
      for (int i = 0; i < 3 * inner; ++i) {
        kit_set(&x, i, row[r][i / inner]);
        want[i] = NAN;
      }
      const cuda_softmax_args args = {y.data, x.data, 1, 3, inner, 0, 0};
      cuda_launch launch;
      OPI_ASSERT_FATAL(cuda_plan_softmax(&args, OPIPE_FLOAT, &launch));
      KIT_RUN(&launch, 1, &y);
      KIT_CLOSE(y, want, 0);
      kit_end();
    }
  }
  cuda_launch launch;
  const cuda_softmax_args args = {NULL, NULL, 1, 3, 1, 0, 0};
  const cuda_softmax_grad_args grad = {NULL, NULL, NULL, 1, 3, 1, 0, 0};
  OPI_ASSERT(!cuda_plan_softmax(&args, OPIPE_INT64, &launch));
  OPI_ASSERT(!cuda_plan_softmax_grad(&grad, OPIPE_INT64, &launch));
}

/* ---- norms ---- */

typedef struct norm_case {
  uint32_t dtype, scale_dtype;
  int64_t rows, n;
  bool rms, residual, keep_sum, bias;
} norm_case;

static void moments(const double *x, int64_t n, bool rms, double epsilon, double *mean,
                    double *inverse) {
  double square = 0;
  *mean = 0;
  for (int64_t i = 0; !rms && i < n; ++i)
    *mean += x[i] / (double)n;
  for (int64_t i = 0; i < n; ++i)
    square += (x[i] - *mean) * (x[i] - *mean);
  *inverse = 1 / sqrt(square / (double)n + epsilon);
}

static void norm_forward(const norm_case *c) {
  const uint32_t wide = c->dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
  const int64_t all = c->rows * c->n;
  const kit_tensor x = kit_random(c->dtype, all, 5, -3, 3), r = kit_random(c->dtype, all, 6, -1, 1);
  const kit_tensor scale = kit_random(c->scale_dtype, c->n, 7, 0.5, 2),
                   bias = kit_random(c->scale_dtype, c->n, 8, -1, 1);
  const kit_tensor y = kit_new(c->dtype, all), sum = kit_new(c->dtype, all);
  const kit_tensor mean = kit_new(wide, c->rows), inv = kit_new(wide, c->rows);
  double *want = kit_doubles(all), *want_mean = kit_doubles(c->rows),
         *want_inv = kit_doubles(c->rows);
  double *row = kit_doubles(c->n), *want_sum = kit_doubles(all);
  const kit_tensor rounded = kit_new(c->dtype, 1);
  for (int64_t i = 0; i < c->rows; ++i) {
    for (int64_t k = 0; k < c->n; ++k) {
      row[k] = kit_get(&x, i * c->n + k) + (c->residual ? kit_get(&r, i * c->n + k) : 0);
      kit_set(&rounded, 0, row[k]);
      row[k] = kit_get(&rounded, 0);
      want_sum[i * c->n + k] = row[k];
    }
    moments(row, c->n, c->rms, 1e-5, &want_mean[i], &want_inv[i]);
    for (int64_t k = 0; k < c->n; ++k) {
      want[i * c->n + k] = (row[k] - want_mean[i]) * want_inv[i] * kit_get(&scale, k) +
                           (c->bias ? kit_get(&bias, k) : 0);
    }
  }
  const cuda_norm_args args = {.y = y.data,
                               .x = x.data,
                               .residual = c->residual ? r.data : NULL,
                               .sum = c->keep_sum ? sum.data : NULL,
                               .scale = scale.data,
                               .bias = c->bias ? bias.data : NULL,
                               .mean = mean.data,
                               .inv_std = inv.data,
                               .rows = c->rows,
                               .n = c->n,
                               .epsilon = 1e-5,
                               .rms = c->rms};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_norm(&args, c->dtype, c->scale_dtype, &launch));
  KIT_RUN(&launch, 1, &y, &sum, &mean, &inv);
  KIT_CLOSE(y, want, tolerance(c->dtype));
  KIT_CLOSE(inv, want_inv, 1e-5);
  if (!c->rms)
    KIT_CLOSE(mean, want_mean, 1e-4);
  if (c->keep_sum)
    KIT_CLOSE(sum, want_sum, 0);
  /* the last row alone has the bits that it has among the others */
  const kit_tensor one = kit_new(c->dtype, c->n);
  cuda_norm_args alone = args;
  const int64_t skip = (c->rows - 1) * c->n * x.bytes;
  alone.rows = 1;
  alone.x = (const char *)x.data + skip;
  alone.residual = c->residual ? (const char *)r.data + skip : NULL;
  alone.y = one.data;
  alone.sum = NULL;
  alone.mean = NULL;
  alone.inv_std = NULL;
  OPI_ASSERT_FATAL(cuda_plan_norm(&alone, c->dtype, c->scale_dtype, &launch));
  KIT_RUN(&launch, 1, &one);
  OPI_ASSERT(kit_same(&one, 0, &y, (c->rows - 1) * c->n, c->n));
  kit_end();
}

/* Rows of one element do not depend on it: what is left of terms of scale / sqrt(epsilon) that
 * cancel. */
static void expect_cancelled(const kit_tensor *found, const double *want, double most) {
  for (int64_t i = 0; i < found->n; ++i)
    OPI_ASSERT(fabs(kit_get(found, i) - want[i]) <= most);
}

/* The result of the gradient alone and an Add behind it. */
static void expect_steps(const cuda_norm_grad_args *args, const norm_case *c, const kit_tensor *dx,
                         const kit_tensor *residual) {
  const kit_tensor plain = kit_new(c->dtype, dx->n);
  cuda_norm_grad_args alone = *args;
  cuda_launch launch;
  alone.dx = plain.data;
  alone.residual = NULL;
  alone.statistics = NULL;
  OPI_ASSERT_FATAL(cuda_plan_norm_grad(&alone, c->dtype, c->scale_dtype, &launch));
  KIT_RUN(&launch, 1, &plain);
  for (int64_t i = 0; i < dx->n; ++i)
    kit_set(&plain, i, kit_get(&plain, i) + kit_get(residual, i));
  OPI_ASSERT(kit_same(&plain, 0, dx, 0, dx->n));
}

static void norm_backward(const norm_case *c) {
  const uint32_t wide = c->dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
  const int64_t all = c->rows * c->n;
  const kit_tensor x = kit_random(c->dtype, all, 5, -3, 3),
                   dy = kit_random(c->dtype, all, 6, -1, 1);
  const kit_tensor r = kit_random(c->dtype, all, 9, -1, 1),
                   scale = kit_random(c->scale_dtype, c->n, 7, 0.5, 2);
  const kit_tensor dx = kit_new(c->dtype, all);
  const kit_tensor ds = kit_random(wide, c->n, 10, -1, 1), db = kit_random(wide, c->n, 11, -1, 1);
  double *want = kit_doubles(all), *want_s = kit_doubles(c->n), *want_b = kit_doubles(c->n),
         *row = kit_doubles(c->n);
  const bool adds = c->keep_sum;
  for (int64_t k = 0; k < c->n && adds; ++k) {
    want_s[k] = kit_get(&ds, k);
    want_b[k] = kit_get(&db, k);
  }
  for (int64_t i = 0; i < c->rows; ++i) {
    double mean, inverse, sum = 0, dot = 0;
    for (int64_t k = 0; k < c->n; ++k)
      row[k] = kit_get(&x, i * c->n + k);
    moments(row, c->n, c->rms, 1e-5, &mean, &inverse);
    for (int64_t k = 0; k < c->n; ++k) {
      const double d = kit_get(&dy, i * c->n + k), h = (row[k] - mean) * inverse;
      sum += c->rms ? 0 : d * kit_get(&scale, k);
      dot += d * kit_get(&scale, k) * h;
      want_s[k] += d * h;
      want_b[k] += d;
    }
    for (int64_t k = 0; k < c->n; ++k) {
      const double g = kit_get(&dy, i * c->n + k) * kit_get(&scale, k),
                   h = (row[k] - mean) * inverse;
      want[i * c->n + k] = (g - sum / (double)c->n - h * dot / (double)c->n) * inverse +
                           (c->residual ? kit_get(&r, i * c->n + k) : 0);
    }
  }
  const kit_tensor statistics = kit_new(wide, 2 * c->rows);
  const cuda_norm_grad_args args = {.dx = dx.data,
                                    .dy = dy.data,
                                    .x = x.data,
                                    .scale = scale.data,
                                    .residual = c->residual ? r.data : NULL,
                                    .statistics = statistics.data,
                                    .rows = c->rows,
                                    .n = c->n,
                                    .epsilon = 1e-5,
                                    .rms = c->rms};
  cuda_launch launches[CUDA_LAUNCHES];
  OPI_ASSERT_FATAL(cuda_plan_norm_grad(&args, c->dtype, c->scale_dtype, launches));
  KIT_RUN(launches, 1, &dx, &statistics);
  if (c->residual && c->rows < 300)
    expect_steps(&args, c, &dx, &r);
  if (c->n > 1 || c->rms)
    KIT_CLOSE(dx, want, tolerance(c->dtype));
  else
    expect_cancelled(&dx, want, (c->dtype == OPIPE_DOUBLE ? 1e-13 : 1e-5) * 2 / sqrt(1e-5));
  const kit_tensor given_ds = kit_copy(&ds), given_db = kit_copy(&db);
  cuda_norm_scale_args sums = {.dscale = ds.data,
                               .dbias = c->bias ? db.data : NULL,
                               .dy = dy.data,
                               .x = x.data,
                               .rows = c->rows,
                               .n = c->n,
                               .epsilon = 1e-5,
                               .rms = c->rms,
                               .adds = adds};
  sums.workspace = kit_workspace(cuda_norm_scale_workspace(&sums));
  uint32_t n = cuda_plan_norm_scale(&sums, c->dtype, launches);
  OPI_ASSERT_FATAL(n > 0);
  KIT_RUN(launches, n, &ds, &db);
  /* of given statistics: a launch less, the same bits */
  sums.workspace = kit_workspace(cuda_norm_scale_workspace(&sums));
  memcpy(sums.workspace, statistics.data, (size_t)statistics.n * statistics.bytes);
  sums.dscale = given_ds.data;
  sums.dbias = c->bias ? given_db.data : NULL;
  sums.given = 1;
  OPI_ASSERT_INT(cuda_plan_norm_scale(&sums, c->dtype, launches), n - 1);
  KIT_RUN(launches, n - 1, &given_ds, &given_db);
  OPI_ASSERT(kit_same(&ds, 0, &given_ds, 0, c->n) && kit_same(&db, 0, &given_db, 0, c->n));
  KIT_CLOSE(ds, want_s, 1e-5);
  if (c->bias)
    KIT_CLOSE(db, want_b, 1e-5);
  kit_end();
}

static void test_norms(void) {
  static const int64_t shapes[][2] = {{1, 1},    {3, 5},    {9, 64},   {5, 768},
                                      {2, 1027}, {3, 2048}, {300, 40}, {1300, 17}};
  size_t i = 0;
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    for (int t = 0; t < KIT_TYPES; ++t) {
      for (int second = 0; second < 2; ++second, ++i) {
        const norm_case c = {kit_types[t], second != 0 ? OPIPE_FLOAT : kit_types[t],
                             shapes[s][0], shapes[s][1],
                             i % 2 != 0,   i % 3 != 0,
                             i % 3 == 1,   i % 5 != 0};
        if (!kit_covers(i, 5))
          continue;
        norm_forward(&c);
        norm_backward(&c);
      }
    }
  }
  kit_skew = 1; /* no vectors */
  const norm_case c = {OPIPE_BFLOAT16, OPIPE_BFLOAT16, 3, 96, false, true, true, true};
  norm_forward(&c);
  norm_backward(&c);
  kit_skew = 0;
}

/* Vectors or not, the bits are the same. */
static void test_alignment_changes_no_bits(void) {
  const int64_t n = 256, rows = 4;
  kit_tensor y[2];
  for (int skewed = 0; skewed < 2; ++skewed) {
    kit_skew = skewed;
    const kit_tensor x = kit_random(OPIPE_BFLOAT16, rows * n, 5, -3, 3);
    const kit_tensor scale = kit_random(OPIPE_BFLOAT16, n, 7, 0.5, 2);
    y[skewed] = kit_new(OPIPE_BFLOAT16, rows * n);
    const cuda_norm_args args = {.y = y[skewed].data,
                                 .x = x.data,
                                 .scale = scale.data,
                                 .rows = rows,
                                 .n = n,
                                 .epsilon = 1e-5};
    cuda_launch launch;
    OPI_ASSERT_FATAL(cuda_plan_norm(&args, OPIPE_BFLOAT16, OPIPE_BFLOAT16, &launch));
    KIT_RUN(&launch, 1, &y[skewed]);
  }
  kit_skew = 0;
  OPI_ASSERT(kit_same(&y[0], 0, &y[1], 0, rows * n));
  kit_end();
}

static void test_group_norm(void) {
  for (int t = 0; t < 2 * KIT_TYPES; ++t) {
    const uint32_t dtype = kit_types[t / 2], scale_dtype = t % 2 != 0 ? OPIPE_FLOAT : dtype;
    const int64_t batch = 2, channels = 6, pixels = 35, groups = 3, n = channels / groups * pixels;
    const kit_tensor x = kit_random(dtype, batch * channels * pixels, 2, -2, 2),
                     y = kit_new(dtype, x.n);
    const kit_tensor scale = kit_random(scale_dtype, channels, 3, 0.5, 2),
                     bias = kit_random(scale_dtype, channels, 4, -1, 1);
    double *want = kit_doubles(x.n), *row = kit_doubles(n);
    for (int64_t g = 0; g < batch * groups; ++g) {
      double mean, inverse;
      for (int64_t i = 0; i < n; ++i)
        row[i] = kit_get(&x, g * n + i);
      moments(row, n, false, 1e-3, &mean, &inverse);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t c = g % groups * (channels / groups) + i / pixels;
        want[g * n + i] = (row[i] - mean) * inverse * kit_get(&scale, c) + kit_get(&bias, c);
      }
    }
    const cuda_group_norm_args args = {y.data,   x.data, scale.data, bias.data, batch,
                                       channels, pixels, groups,     1e-3};
    cuda_launch launch;
    OPI_ASSERT_FATAL(cuda_plan_group_norm(&args, dtype, scale_dtype, &launch));
    KIT_RUN(&launch, 1, &y);
    KIT_CLOSE(y, want, tolerance(dtype));
    kit_end();
  }
}

static void columns_case(uint32_t dtype, int64_t rows, int64_t n, uint32_t adds, int64_t distance) {
  const kit_tensor x = kit_random(dtype, rows * distance, 2, -2, 2);
  const kit_tensor out = kit_random(adds ? OPIPE_FLOAT : dtype, n, 3, -1, 1);
  double *want = kit_doubles(n);
  for (int64_t k = 0; k < n; ++k) {
    want[k] = adds ? kit_get(&out, k) : 0;
    for (int64_t r = 0; r < rows; ++r)
      want[k] += kit_get(&x, r * distance + k);
  }
  for (int64_t i = 0; distance > n && i < x.n; ++i) {
    if (i % distance >= n)
      kit_set(&x, i, NAN); /* elements between rows */
  }
  cuda_columns_args args = {out.data, x.data, NULL, rows, n, adds, 0, distance != n ? distance : 0};
  cuda_launch launches[CUDA_LAUNCHES];
  args.workspace = kit_workspace(cuda_columns_workspace(&args));
  const uint32_t count = cuda_plan_columns(&args, dtype, launches);
  OPI_ASSERT_FATAL(count > 0);
  KIT_RUN(launches, count, &out);
  KIT_CLOSE(out, want, adds ? 1e-5 : 0);
  kit_end();
}

static void test_columns(void) {
  static const int64_t shapes[][2] = {{1, 1}, {127, 33}, {128, 64}, {400, 300}, {8500, 3}};
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    for (int t = 0; t < KIT_TYPES; ++t) {
      if (!kit_covers(s * KIT_TYPES + (size_t)t, 5))
        continue;
      columns_case(kit_types[t], shapes[s][0], shapes[s][1], 0, shapes[s][1]);
      if (kit_types[t] == OPIPE_DOUBLE)
        continue;
      columns_case(kit_types[t], shapes[s][0], shapes[s][1], 1, shapes[s][1]);
      columns_case(kit_types[t], shapes[s][0], shapes[s][1], 0, (shapes[s][1] + 64) / 64 * 64);
      columns_case(kit_types[t], shapes[s][0], shapes[s][1], 1, shapes[s][1] + 1);
    }
  }
}

OPI_TEST_MAIN("cuda_rows", OPI_TEST(test_softmax), OPI_TEST(test_softmax_corners),
              OPI_TEST(test_norms), OPI_TEST(test_alignment_changes_no_bits),
              OPI_TEST(test_group_norm), OPI_TEST(test_columns))
