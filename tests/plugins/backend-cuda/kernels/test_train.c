/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Kernels of training: writing and reading by index, products of few rows,
 * optimizers, against plain loops in double and against the CPU backend's kernels bit by bit where
 * they must agree so. */
#include "kit.h"
#include "opipe/backend.h"
#include "plugins/backend-cpu/kernels/kernels.h"

/* ---- by index ---- */

static double join(uint32_t kind, double x, double y) {
  return kind == 0   ? y
         : kind == 1 ? x + y
         : kind == 2 ? x * y
         : kind == 3 ? fmax(x, y)
                     : fmin(x, y);
}

static void scatter_case(uint32_t dtype, uint32_t out_dtype, uint32_t form, uint32_t kind,
                         int64_t n, int64_t inner, int64_t extent, bool bad) {
  cuda_scatter_args args = {.outer = 1,
                            .extent = extent,
                            .n = n,
                            .inner = inner,
                            .form = form,
                            .kind = kind,
                            .index_bytes = n % 2 != 0 ? 4 : 8,
                            .node = 3};
  const uint32_t index_dtype = args.index_bytes == 4 ? OPIPE_INT32 : OPIPE_INT64;
  const uint32_t tuple = form == CUDA_SCATTER_TUPLES ? 2 : 1;
  const int64_t half = extent / 2;
  if (form == CUDA_SCATTER_AXIS)
    args.outer = 2;
  args.rank = 2;
  args.axis = 0;
  args.out_shape[0] = form == CUDA_SCATTER_TUPLES
                          ? half
                          : extent; /* TUPLES: [half, 2]; ELEMENTS: [extent, 3] along 0 */
  args.out_shape[1] = form == CUDA_SCATTER_TUPLES ? 2 : 3;
  args.index_shape[0] = n / 3;
  args.index_shape[1] = 3;
  const int64_t places = form == CUDA_SCATTER_TUPLES     ? half * 2
                         : form == CUDA_SCATTER_ELEMENTS ? extent * 3
                                                         : extent;
  const double low = dtype == OPIPE_UINT64 ? 0 : -3;
  const kit_tensor at =
      kit_random(index_dtype, n * tuple, 1, form == CUDA_SCATTER_TUPLES ? -1 : (double)-extent / 2,
                 form == CUDA_SCATTER_TUPLES ? 1 : (double)extent / 2);
  const kit_tensor updates = kit_random(dtype, args.outer * n * inner, 2, low, 3);
  const kit_tensor out = kit_random(out_dtype, args.outer * places * inner, 3, low, 3);
  double *want = kit_doubles(out.n);
  cuda_status *const status = kit_status();
  if (bad)
    kit_set(&at, 0, 1e6);
  for (int64_t i = 0; i < out.n; ++i)
    want[i] = kit_get(&out, i);
  for (int64_t o = 0; o < args.outer; ++o) {
    for (int64_t i = bad ? 1 : 0; i < n; ++i) {
      int64_t to = (int64_t)kit_get(&at, i * tuple);
      to += to < 0 ? args.out_shape[0] : 0;
      if (form == CUDA_SCATTER_TUPLES) {
        const int64_t second = (int64_t)kit_get(&at, 2 * i + 1);
        to = to * 2 + second + (second < 0 ? 2 : 0);
      } else if (form == CUDA_SCATTER_ELEMENTS) {
        to = to * 3 + i % 3;
      }
      for (int64_t c = 0; c < inner; ++c) {
        double *x = &want[(o * places + to) * inner + c];
        *x = join(kind, *x, kit_get(&updates, (o * n + i) * inner + c));
      }
    }
  }
  args.out = out.data;
  args.updates = updates.data;
  args.indices = at.data;
  args.status = status;
  args.workspace = kit_workspace(cuda_scatter_workspace(&args));
  cuda_launch launches[CUDA_LAUNCHES];
  const uint32_t count = cuda_plan_scatter(&args, dtype, out_dtype, launches);
  OPI_ASSERT_FATAL(count > 0 && count <= CUDA_LAUNCHES);
  KIT_RUN(launches, count, &out);
  if (!kit_close(&out, want, out_dtype == OPIPE_FLOAT ? 1e-5 : 0, "out", __LINE__)) {
    OPI_FAIL("form %u, kind %u, %s, n %lld", form, kind, opipe_dtype_row_of(dtype)->name,
             (long long)n);
  }
  OPI_ASSERT_INT(status->code, bad ? CUDA_STATUS_INDEX : 0);
  OPI_ASSERT_INT(status->value, bad ? 1000000 : 0);
  kit_end();
}

static void test_scatter(void) {
  static const uint32_t types[] = {OPIPE_FLOAT,  OPIPE_BFLOAT16, OPIPE_FLOAT16,
                                   OPIPE_DOUBLE, OPIPE_INT32,    OPIPE_UINT64};
  for (size_t t = 0; t < 6; ++t) {
    for (uint32_t kind = 0; kind < 5; ++kind) {
      scatter_case(types[t], types[t], CUDA_SCATTER_AXIS, kind, 9, 5, 40, false);
      scatter_case(types[t], types[t], CUDA_SCATTER_ELEMENTS, kind, 30, 1, 100, false);
      scatter_case(types[t], types[t], CUDA_SCATTER_TUPLES, kind, 8, 3, 700, kind == 2);
    }
  }
  scatter_case(OPIPE_INT8, OPIPE_INT8, CUDA_SCATTER_TUPLES, 0, 8, 3, 20, false);
  scatter_case(OPIPE_BFLOAT16, OPIPE_FLOAT, CUDA_SCATTER_AXIS, 1, 50, 7, 20, true);
  scatter_case(OPIPE_FLOAT16, OPIPE_FLOAT, CUDA_SCATTER_AXIS, 1, 51, 7, 20, false);
  scatter_case(OPIPE_FLOAT, OPIPE_FLOAT, CUDA_SCATTER_AXIS, 1, 5000, 2, 50257,
               false); /* two digits, three tiles */
  scatter_case(OPIPE_FLOAT, OPIPE_FLOAT, CUDA_SCATTER_AXIS, 1, 4500, 1, 3, false); /* long runs */
  cuda_launch launches[CUDA_LAUNCHES];
  cuda_scatter_args args = {
      .outer = 1, .extent = 5, .n = 1, .inner = 1, .kind = 1, .index_bytes = 8};
  OPI_ASSERT(cuda_plan_scatter(&args, OPIPE_BOOL, OPIPE_BOOL, launches) == 0);
  OPI_ASSERT(cuda_plan_scatter(&args, OPIPE_BFLOAT16, OPIPE_DOUBLE, launches) == 0);
  args.extent = INT64_C(1) << 33;
  OPI_ASSERT(cuda_plan_scatter(&args, OPIPE_FLOAT, OPIPE_FLOAT, launches) == 0);
  args.form = CUDA_SCATTER_TUPLES;
  args.rank = 2;
  args.out_shape[0] = args.out_shape[1] = INT64_C(1) << 40;
  OPI_ASSERT(cuda_plan_scatter(&args, OPIPE_FLOAT, OPIPE_FLOAT, launches) == 0);
}

static void test_pick(void) {
  static const uint32_t types[] = {OPIPE_INT8, OPIPE_FLOAT16, OPIPE_FLOAT, OPIPE_INT64};
  for (size_t t = 0; t < 4; ++t) {
    const kit_tensor data = kit_random(types[t], 2 * 4 * 5 * 3, 1, -9, 9),
                     at = kit_random(OPIPE_INT64, 24, 2, -4, 4);
    const kit_tensor y = kit_new(types[t], 24), rows = kit_new(types[t], 2 * 6 * 3);
    cuda_status *const status = kit_status();
    kit_set(&at, 23, 9);
    cuda_pick_args args = {.y = y.data,
                           .data = data.data,
                           .indices = at.data,
                           .status = status,
                           .n = 24,
                           .index_shape = {6, 4},
                           .out_shape = {4, 30},
                           .form = CUDA_SCATTER_ELEMENTS,
                           .rank = 2,
                           .axis = 0,
                           .index_bytes = 8,
                           .size = data.bytes,
                           .node = 2};
    cuda_launch launch;
    OPI_ASSERT_FATAL(cuda_plan_pick(&args, &launch)); /* y[i][j] = data[at[i][j]][j] */
    KIT_RUN(&launch, 1, &y);
    for (int64_t i = 0; i < 23; ++i) {
      const int64_t from = (int64_t)kit_get(&at, i);
      OPI_ASSERT_INT(kit_get(&y, i), kit_get(&data, (from < 0 ? from + 4 : from) * 30 + i % 4));
    }
    OPI_ASSERT(kit_get(&y, 23) == 0 && status->code == CUDA_STATUS_INDEX && status->value == 9 &&
               status->limit == 4);
    kit_set(&at, 23, 0);
    args = (cuda_pick_args){.y = rows.data,
                            .data = data.data,
                            .indices = at.data,
                            .outer = 2,
                            .n = 6,
                            .inner = 3,
                            .out_shape = {4, 5},
                            .form = CUDA_SCATTER_TUPLES,
                            .rank = 2,
                            .index_bytes = 8,
                            .size = data.bytes};
    OPI_ASSERT_FATAL(cuda_plan_pick(&args, &launch));
    KIT_RUN(&launch, 1, &rows);
    for (int64_t i = 0; i < rows.n; ++i) {
      int64_t p = (int64_t)kit_get(&at, i / 3 * 2), q = (int64_t)kit_get(&at, i / 3 * 2 + 1);
      p += p < 0 ? 4 : 0;
      q += q < 0 ? 5 : 0;
      OPI_ASSERT_INT(kit_get(&rows, i), kit_get(&data, ((i / 18 * 4 + p) * 5 + q) * 3 + i % 3));
    }
    args.form = CUDA_SCATTER_AXIS;
    OPI_ASSERT(!cuda_plan_pick(&args, &launch));
    kit_end();
  }
}

static void test_one_hot(void) {
  static const uint32_t types[] = {OPIPE_INT8, OPIPE_FLOAT16, OPIPE_FLOAT, OPIPE_INT64};
  for (size_t t = 0; t < 4; ++t) {
    const kit_tensor at = kit_random(t % 2 != 0 ? OPIPE_FLOAT : OPIPE_INT32, 12, 1, -6, 6),
                     y = kit_new(types[t], 60);
    const kit_tensor values = kit_random(types[t], 2, 2, 1, 9);
    double *want = kit_doubles(60);
    for (int64_t i = 0; i < 12; ++i) {
      if (t % 2 != 0)
        kit_set(&at, i, floor(kit_get(&at, i)));
    }
    for (int64_t i = 0; i < 60; ++i) { /* [3, depth 5, 4] */
      const double index = kit_get(&at, i / 20 * 4 + i % 4);
      want[i] = kit_get(&values, (index < 0 ? index + 5 : index) == (double)(i / 4 % 5));
    }
    const cuda_one_hot_args args = {y.data, at.data, values.data, 3, 5, 4, y.bytes, 0};
    cuda_launch launch;
    OPI_ASSERT_FATAL(cuda_plan_one_hot(&args, at.dtype, &launch));
    KIT_RUN(&launch, 1, &y);
    KIT_CLOSE(y, want, 1e-9);
    OPI_ASSERT(!cuda_plan_one_hot(&args, OPIPE_BOOL, &launch));
    kit_end();
  }
}

static void test_pad(void) {
  static const uint32_t types[] = {OPIPE_INT8, OPIPE_FLOAT16, OPIPE_FLOAT, OPIPE_INT64};
  static const int64_t begin[2] = {2, -1}, x_shape[2] = {4, 5}, y_shape[2] = {9, 7};
  static const int rows[4][9] = {{-1, -1, 0, 1, 2, 3, -1, -1, -1},
                                 {2, 1, 0, 1, 2, 3, 2, 1, 0},
                                 {0, 0, 0, 1, 2, 3, 3, 3, 3},
                                 {2, 3, 0, 1, 2, 3, 0, 1, 2}};
  static const int columns[4][7] = {{1, 2, 3, 4, -1, -1, -1},
                                    {1, 2, 3, 4, 3, 2, 1},
                                    {1, 2, 3, 4, 4, 4, 4},
                                    {1, 2, 3, 4, 0, 1, 2}};
  for (size_t t = 0; t < 4; ++t) {
    for (uint32_t mode = 0; mode < 4; ++mode) {
      for (int with = 0; with < 2; ++with) {
        const kit_tensor x = kit_random(types[t], 20, 1, 1, 9), y = kit_new(types[t], 63),
                         value = kit_random(types[t], 1, 2, 1, 9);
        cuda_pad_args args = {.y = y.data,
                              .x = x.data,
                              .value = with != 0 ? value.data : NULL,
                              .n = 63,
                              .rank = 2,
                              .mode = mode,
                              .size = x.bytes};
        memcpy(args.begin, begin, sizeof begin);
        memcpy(args.x_shape, x_shape, sizeof x_shape);
        memcpy(args.y_shape, y_shape, sizeof y_shape);
        cuda_launch launch;
        OPI_ASSERT_FATAL(cuda_plan_pad(&args, &launch));
        KIT_RUN(&launch, 1, &y);
        for (int64_t i = 0; i < 63; ++i) {
          const int r = rows[mode][i / 7], c = columns[mode][i % 7];
          const double fill = with != 0 ? kit_get(&value, 0) : 0;
          OPI_ASSERT(kit_get(&y, i) == (r < 0 || c < 0 ? fill : kit_get(&x, r * 5 + c)));
        }
        kit_end();
      }
    }
  }
  cuda_launch launch;
  const cuda_pad_args args = {.mode = 4, .size = 4};
  OPI_ASSERT(!cuda_plan_pad(&args, &launch));
}

/* ---- products of few rows ---- */

static const uint32_t no_blocks[CUDA_COUNTERS];

/* At once: the last block of each strip to arrive adds up what all found, to the bits of two
 * launches, over the addend where there is one; counters are left as they were. */
static void few_rows_at_once(cuda_few_rows_args args, uint32_t dtype, const kit_tensor *residual,
                             const kit_tensor *wanted) {
  const uint32_t n = cuda_few_rows_counters(&args, dtype);
  const kit_tensor y = args.residual != NULL ? kit_copy(residual) : kit_new(dtype, wanted->n);
  cuda_launch launches[CUDA_LAUNCHES];
  args.counters = kit_placed(no_blocks, n * sizeof no_blocks[0]);
  args.residual = args.residual != NULL ? y.data : NULL;
  args.y = y.data;
  OPI_ASSERT_INT(n > 0, !args.turned && args.k > 0 && args.n % 4 == 0);
  const uint32_t count = cuda_plan_few_rows(&args, dtype, launches);
  OPI_ASSERT_INT(count, args.turned || args.k == 0 || n > 0 ? 1 : 2);
  KIT_RUN(launches, count, &y);
  OPI_ASSERT(kit_same(&y, 0, wanted, 0, y.n));
  OPI_ASSERT(memcmp(args.counters, no_blocks, n * sizeof no_blocks[0]) == 0);
}

static void few_rows_case(uint32_t dtype, int64_t m, int64_t n, int64_t k, bool turned, bool all) {
  const kit_tensor x = kit_random(dtype, m * k, 1, -1, 1), w = kit_random(dtype, k * n, 2, -1, 1);
  const kit_tensor bias = kit_random(dtype, n, 3, -1, 1),
                   residual = kit_random(dtype, m * n, 4, -1, 1);
  const kit_tensor y = kit_new(dtype, m * n), one = kit_new(dtype, n);
  double *want = kit_doubles(m * n);
  cuda_few_rows_args args = {.y = y.data,
                             .x = x.data,
                             .w = w.data,
                             .bias = all ? bias.data : NULL,
                             .residual = all ? residual.data : NULL,
                             .m = m,
                             .n = n,
                             .k = k,
                             .alpha = 0.5,
                             .turned = turned};
  for (int64_t i = 0; i < m * n; ++i) {
    for (int64_t j = 0; j < k; ++j)
      want[i] += kit_get(&x, i / n * k + j) * kit_get(&w, turned ? i % n * k + j : j * n + i % n);
    want[i] = 0.5 * want[i] + (all ? kit_get(&bias, i % n) + kit_get(&residual, i) : 0);
  }
  args.workspace = kit_workspace(cuda_few_rows_workspace(&args, dtype));
  cuda_launch launches[CUDA_LAUNCHES];
  uint32_t count = cuda_plan_few_rows(&args, dtype, launches);
  OPI_ASSERT_FATAL(count > 0);
  KIT_RUN(launches, count, &y);
  KIT_CLOSE(y, want, dtype == OPIPE_FLOAT ? 1e-5 : 0);
  few_rows_at_once(args, dtype, &residual, &y);
  args.m = 1; /* the last row alone: the same bits */
  args.x = (const char *)x.data + (m - 1) * k * x.bytes;
  args.residual = all ? (const char *)residual.data + (m - 1) * n * x.bytes : NULL;
  args.y = one.data;
  count = cuda_plan_few_rows(&args, dtype, launches);
  KIT_RUN(launches, count, &one);
  OPI_ASSERT(kit_same(&one, 0, &y, (m - 1) * n, n));
  kit_end();
}

static void test_few_rows(void) {
  static const int64_t shapes[][3] = {{1, 1, 1},      {1, 33, 70}, {3, 64, 512},  {8, 100, 600},
                                      {2, 136, 1030}, {5, 7, 8},   {4, 520, 200}, {1, 260, 4300}};
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    for (int t = 0; t < 3; ++t) {
      if (!kit_covers(s * 3 + (size_t)t, 5))
        continue;
      few_rows_case(kit_types[t], shapes[s][0], shapes[s][1], shapes[s][2], false,
                    (s + (size_t)t) % 2 == 0);
      few_rows_case(kit_types[t], shapes[s][0], shapes[s][1], shapes[s][2], true,
                    (s + (size_t)t) % 2 != 0);
    }
  }
  few_rows_case(OPIPE_FLOAT, 2, 5, 0, false, true); /* an empty sum */
  cuda_launch launches[CUDA_LAUNCHES];
  const cuda_few_rows_args args = {.m = CUDA_FEW_ROWS + 1, .n = 1, .k = 1};
  OPI_ASSERT(cuda_plan_few_rows(&args, OPIPE_FLOAT, launches) == 0);
  const cuda_few_rows_args wide = {.m = 1, .n = 1, .k = 1};
  OPI_ASSERT(cuda_plan_few_rows(&wide, OPIPE_DOUBLE, launches) == 0);
  cuda_few_rows_args strips = {.m = 1, .n = CUDA_COUNTERS * 128, .k = 9};
  OPI_ASSERT_INT(cuda_few_rows_counters(&strips, OPIPE_FLOAT), CUDA_COUNTERS);
  strips.n += 4;
  OPI_ASSERT_INT(cuda_few_rows_counters(&strips, OPIPE_FLOAT), 0);
}

/* Parts of k are longer where there are blocks enough; a row's bits are those of eight rows. */
static void test_few_rows_of_many_columns(void) {
  enum { M = 6, K = 1100 };
  const bool many =
      opi_test_covers(1, 2); /* 50 million products, seconds of them in a slow build */
  const int64_t N = many ? 128 * 58 : 128 * 3, depth = many ? 128 : 64;
  const kit_tensor x = kit_random(OPIPE_FLOAT, M * K, 1, -1, 1),
                   w = kit_random(OPIPE_FLOAT, (int64_t)K * N, 2, -1, 1);
  const kit_tensor y = kit_new(OPIPE_FLOAT, M * N), one = kit_new(OPIPE_FLOAT, N);
  cuda_few_rows_args args = {
      .y = y.data, .x = x.data, .w = w.data, .m = M, .n = N, .k = K, .alpha = 1};
  cuda_launch launches[CUDA_LAUNCHES];
  args.workspace = kit_workspace(cuda_few_rows_workspace(&args, OPIPE_FLOAT));
  OPI_ASSERT_INT(cuda_plan_few_rows(&args, OPIPE_FLOAT, launches), 2);
  OPI_ASSERT_INT(launches[0].grid[1], (K + depth - 1) / depth);
  KIT_RUN(launches, 2, &y);
  few_rows_at_once(args, OPIPE_FLOAT, NULL, &y);
  for (int64_t i = 0; i < M * N; i += 997) {
    double want = 0;
    for (int64_t k = 0; k < K; ++k)
      want += kit_get(&x, i / N * K + k) * kit_get(&w, k * N + i % N);
    OPI_ASSERT(fabs(kit_get(&y, i) - want) <= 1e-4 * fabs(want) + 1e-4);
  }
  args.m = 1;
  args.y = one.data;
  OPI_ASSERT_INT(cuda_plan_few_rows(&args, OPIPE_FLOAT, launches), 2);
  KIT_RUN(launches, 2, &one);
  OPI_ASSERT(kit_same(&one, 0, &y, 0, N));
  kit_end();
}

/* Through GELU: the activation of the whole sum, and what it is of. */
static void test_few_rows_through_gelu(void) {
  for (int turned = 0; turned < 2; ++turned) {
    const kit_tensor x = kit_random(OPIPE_FLOAT, 2 * 40, 1, -1, 1),
                     w = kit_random(OPIPE_FLOAT, 40 * 24, 2, -1, 1),
                     bias = kit_random(OPIPE_FLOAT, 24, 3, -1, 1);
    const kit_tensor y = kit_new(OPIPE_FLOAT, 48), aux = kit_new(OPIPE_FLOAT, 48);
    cuda_few_rows_args args = {.y = y.data,
                               .x = x.data,
                               .w = w.data,
                               .bias = bias.data,
                               .aux = aux.data,
                               .m = 2,
                               .n = 24,
                               .k = 40,
                               .alpha = 1,
                               .turned = turned != 0,
                               .gelu = 1};
    double *want = kit_doubles(48), *of = kit_doubles(48);
    cuda_launch launches[CUDA_LAUNCHES];
    args.workspace = kit_workspace(cuda_few_rows_workspace(&args, OPIPE_FLOAT));
    const uint32_t n = cuda_plan_few_rows(&args, OPIPE_FLOAT, launches);
    for (int64_t i = 0; i < 48; ++i) {
      of[i] = kit_get(&bias, i % 24);
      for (int64_t k = 0; k < 40; ++k) {
        const int64_t at = turned != 0 ? i % 24 * 40 + k : k * 24 + i % 24;
        of[i] += kit_get(&x, i / 24 * 40 + k) * kit_get(&w, at);
      }
      want[i] = 0.5 * of[i] *
                (1 + tanh(0.79788456080286535588 * (of[i] + 0.044715 * of[i] * of[i] * of[i])));
    }
    KIT_RUN(launches, n, &y, &aux);
    KIT_CLOSE(y, want, 1e-5);
    KIT_CLOSE(aux, of, 1e-5);
    few_rows_at_once(args, OPIPE_FLOAT, NULL, &y);
    kit_end();
  }
}

/* ---- optimizers ---- */

static void update_case(uint32_t kind, uint32_t flags, bool with_first, double decay) {
  const cpu_exec exec = {cpu_kernels_get(CPU_ISA_PORTABLE), NULL};
  const int64_t n = 5000;
  const kit_tensor w = kit_random(OPIPE_FLOAT, n, 1, -1, 1),
                   g = kit_random(OPIPE_FLOAT, n, 2, -1, 1);
  const kit_tensor m = kit_random(OPIPE_FLOAT, n, 3, -1, 1),
                   v = kit_random(OPIPE_FLOAT, n, 4, 0, 1);
  const kit_tensor cpu[4] = {kit_copy(&w), kit_copy(&g), kit_copy(&m), kit_copy(&v)};
  const kit_tensor half = kit_new(OPIPE_BFLOAT16, n);
  kit_set(&g, 7, 0);
  kit_set(&v, 7, 0);
  kit_set(&cpu[1], 7, 0);
  kit_set(&cpu[3], 7, 0);
  const double lr = 0.01, b1 = 0.9, b2 = 0.99, c1 = 0.271, c2 = 0.0297,
               eps = kind == 0    ? 0
                     : flags != 0 ? 1e-8
                                  : 0;
  const bool decoupled = kind == OPIPE_UPDATE_ADAMW;
  const cpu_update_args want = {.kind = kind,
                                .nesterov = (flags & OPIPE_UPDATE_NESTEROV) != 0,
                                .inner = (flags & OPIPE_UPDATE_EPS_INNER) != 0,
                                .clear = (flags & OPIPE_UPDATE_CLEAR) != 0,
                                .n = n,
                                .weight = cpu[0].data,
                                .gradient = cpu[1].data,
                                .first = with_first ? cpu[2].data : NULL,
                                .second = kind == 0 ? NULL : cpu[3].data,
                                .lr = lr,
                                .correction1 = c1,
                                .correction2 = c2,
                                .gradient_scale = 0.25f,
                                .l2 = decoupled ? 0 : (float)decay,
                                .momentum = 0.9f,
                                .beta1 = (float)b1,
                                .beta2 = (float)b2,
                                .keep = decoupled ? (float)(1 - lr * decay) : 1,
                                .step = (float)lr,
                                .root = 1,
                                .epsilon = (float)eps,
                                .rest1 = (float)(1 - b1),
                                .rest2 = (float)(1 - b2)};
  cpu_update_f32(&exec, &want);
  cuda_update_args args = {.items = {{.weight = w.data,
                                      .gradient = g.data,
                                      .first = with_first ? m.data : NULL,
                                      .second = kind == 0 ? NULL : v.data,
                                      .half = half.data,
                                      .n = n,
                                      .half_dtype = OPIPE_BFLOAT16,
                                      .decay = decay}},
                           .n_items = 1,
                           .gradient_scale = 0.25,
                           .lr = lr,
                           .momentum = 0.9,
                           .beta1 = b1,
                           .beta2 = b2,
                           .correction1 = c1,
                           .correction2 = c2,
                           .epsilon = eps,
                           .kind = kind,
                           .flags = flags};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_update(&args, &launch));
  KIT_RUN(&launch, 1, &w, &g, &m, &v, &half);
  OPI_ASSERT(kit_same(&w, 0, &cpu[0], 0, n));
  OPI_ASSERT(kit_same(&g, 0, &cpu[1], 0, n));
  OPI_ASSERT(kit_same(&m, 0, &cpu[2], 0, n));
  OPI_ASSERT(kit_same(&v, 0, &cpu[3], 0, n));
  double *rounded = kit_doubles(n);
  for (int64_t i = 0; i < n; ++i)
    rounded[i] = kit_get(&w, i);
  KIT_CLOSE(half, rounded, 0);
  kit_end();
}

static void test_updates_have_the_bits_of_the_cpu(void) {
  update_case(OPIPE_UPDATE_SGD, 0, false, 0);
  update_case(OPIPE_UPDATE_SGD, OPIPE_UPDATE_CLEAR, true, 0.1);
  update_case(OPIPE_UPDATE_SGD, OPIPE_UPDATE_NESTEROV, true, 0.1);
  update_case(OPIPE_UPDATE_ADAM, 0, true, 0.1);
  update_case(OPIPE_UPDATE_ADAM, OPIPE_UPDATE_EPS_INNER, true, 0);
  update_case(OPIPE_UPDATE_ADAMW, OPIPE_UPDATE_CLEAR, true, 0.1);
  update_case(OPIPE_UPDATE_ADAMW, OPIPE_UPDATE_EPS_INNER | OPIPE_UPDATE_CLEAR, true, 0.01);
  cuda_launch launch;
  cuda_update_args args = {.kind = OPIPE_N_OPTIMIZERS, .n_items = 1};
  OPI_ASSERT(!cuda_plan_update(&args, &launch));
  args = (cuda_update_args){.n_items = CUDA_MANY + 1};
  OPI_ASSERT(!cuda_plan_update(&args, &launch));
}

/* Many parameters in one launch: each as alone. And the norms of their gradients. */
enum { MANY = 7 };
static const int64_t many_sizes[MANY] = {1, 4096, 4097, 9000, 30, 4096 * 300 + 5, 2};

static void many_items(uint32_t set, kit_tensor tensors[MANY][2][4], const kit_tensor *half,
                       cuda_update_item *out) {
  for (uint32_t i = 0; i < MANY; ++i) {
    out[i] = (cuda_update_item){.weight = tensors[i][set][0].data,
                                .gradient = tensors[i][set][1].data,
                                .first = tensors[i][set][2].data,
                                .second = tensors[i][set][3].data,
                                .half = i == 2 ? half->data : NULL,
                                .half_dtype = OPIPE_FLOAT16,
                                .n = many_sizes[i],
                                .decay = i * 0.01};
  }
}

static void many_squares(kit_tensor tensors[MANY][2][4]) {
  const kit_tensor sums = kit_new(OPIPE_DOUBLE, MANY), alone = kit_new(OPIPE_DOUBLE, MANY);
  cuda_squares_args args = {.n_items = MANY};
  cuda_launch launches[CUDA_LAUNCHES];
  uint64_t n_parts = 0;
  double *want = kit_doubles(MANY);
  for (uint32_t i = 0; i < MANY; ++i) {
    args.items[i] = (cuda_squares_item){
        .x = tensors[i][0][1].data, .sum = (double *)sums.data + i, .n = many_sizes[i]};
    n_parts += cuda_squares_parts(many_sizes[i]);
    for (int64_t j = 0; j < many_sizes[i]; ++j)
      want[i] += kit_get(&tensors[i][0][1], j) * kit_get(&tensors[i][0][1], j);
  }
  OPI_ASSERT_INT(n_parts, 1 + 1 + 2 + 3 + 1 + 151 + 1);
  args.workspace = kit_workspace(n_parts * sizeof(double));
  OPI_ASSERT_INT(cuda_plan_squares(&args, launches), 2);
  KIT_RUN(launches, 2, &sums);
  KIT_CLOSE(sums, want, 1e-12);
  for (uint32_t i = 0; i < MANY; ++i) {
    cuda_squares_args one = {.items = {args.items[i]}, .n_items = 1, .workspace = args.workspace};
    one.items[0].sum = (double *)alone.data + i;
    OPI_ASSERT_INT(cuda_plan_squares(&one, launches), 2);
    KIT_RUN(launches, 2, &alone);
  }
  OPI_ASSERT(kit_same(&sums, 0, &alone, 0, MANY));
}

static void test_all_parameters_at_once(void) {
  kit_tensor tensors[MANY][2][4], halves[2];
  const kit_tensor *changed[3 * MANY]; /* weights and moments */
  cuda_launch launch;
  for (uint32_t i = 0; i < MANY; ++i) {
    for (uint32_t k = 0; k < 4; ++k) {
      tensors[i][0][k] = kit_random(OPIPE_FLOAT, many_sizes[i], 10 * i + k, k == 3 ? 0 : -1, 1);
      tensors[i][1][k] = kit_copy(&tensors[i][0][k]);
    }
    changed[3 * i] = &tensors[i][0][0];
    changed[3 * i + 1] = &tensors[i][0][2];
    changed[3 * i + 2] = &tensors[i][0][3];
  }
  halves[0] = kit_new(OPIPE_FLOAT16, many_sizes[2]);
  halves[1] = kit_new(OPIPE_FLOAT16, many_sizes[2]);
  many_squares(tensors);
  cuda_update_args args = {.n_items = MANY,
                           .gradient_scale = 1,
                           .lr = 0.1,
                           .beta1 = 0.9,
                           .beta2 = 0.99,
                           .correction1 = 0.1,
                           .correction2 = 0.01,
                           .epsilon = 1e-8,
                           .kind = OPIPE_UPDATE_ADAMW};
  cuda_update_item alone[MANY];
  many_items(0, tensors, &halves[0], args.items);
  many_items(1, tensors, &halves[1], alone);
  OPI_ASSERT_FATAL(cuda_plan_update(&args, &launch));
  kit_run(&launch, 1, changed, 3 * MANY);
  args.n_items = 1;
  for (uint32_t i = 0; i < MANY; ++i) {
    args.items[0] = alone[i];
    OPI_ASSERT_FATAL(cuda_plan_update(&args, &launch));
    KIT_RUN(&launch, 1, &tensors[i][1][0], &tensors[i][1][2], &tensors[i][1][3]);
  }
  for (uint32_t i = 0; i < MANY; ++i)
    OPI_ASSERT(kit_same(&tensors[i][0][0], 0, &tensors[i][1][0], 0, many_sizes[i]));
  OPI_ASSERT(kit_same(&halves[0], 0, &halves[1], 0, many_sizes[2]));
  kit_end();
}

OPI_TEST_MAIN("cuda_train", OPI_TEST(test_scatter), OPI_TEST(test_pick), OPI_TEST(test_one_hot),
              OPI_TEST(test_pad), OPI_TEST(test_few_rows), OPI_TEST(test_few_rows_of_many_columns),
              OPI_TEST(test_few_rows_through_gelu), OPI_TEST(test_updates_have_the_bits_of_the_cpu),
              OPI_TEST(test_all_parameters_at_once))
