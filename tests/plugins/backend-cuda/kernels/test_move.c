/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Kernels that move elements, reduce, order and check, against plain loops. */
#include "kit.h"

#include <stdio.h>

/* ---- moves ---- */

static void move_case(uint32_t dtype, uint32_t rank, const int64_t *shape, const int64_t *in,
                      const int64_t *out, int64_t n_in, int64_t n_out, int64_t first_in) {
  cuda_move_args args = {.n = 1, .rank = rank, .size = opipe_dtype_row_of(dtype)->bits / 8};
  for (uint32_t i = 0; i < rank; ++i) {
    args.shape[i] = shape[i];
    args.in_stride[i] = in[i];
    args.out_stride[i] = out[i];
    args.n *= shape[i];
  }
  const kit_tensor x = kit_random(dtype, n_in, 3, -100, 100), y = kit_new(dtype, n_out),
                   want = kit_new(dtype, n_out);
  for (int64_t i = 0; i < args.n; ++i) {
    int64_t rest = i, from = first_in, to = 0;
    for (uint32_t a = rank; a > 0; --a) {
      from += rest % shape[a - 1] * in[a - 1];
      to += rest % shape[a - 1] * out[a - 1];
      rest /= shape[a - 1];
    }
    memcpy((char *)want.data + to * x.bytes, (const char *)x.data + from * x.bytes, x.bytes);
  }
  args.out = y.data;
  args.in = (const char *)x.data + first_in * x.bytes;
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_move(&args, &launch));
  KIT_RUN(&launch, 1, &y);
  OPI_ASSERT(kit_same(&y, 0, &want, 0, n_out));
  kit_end();
}

static void test_moves(void) {
  static const uint32_t types[] = {OPIPE_INT8, OPIPE_FLOAT16, OPIPE_FLOAT, OPIPE_INT64};
  for (size_t t = 0; t < 4; ++t) {
    const uint32_t d = types[t];
    move_case(d, 1, (int64_t[]){100}, (int64_t[]){1}, (int64_t[]){1}, 100, 100, 0);
    move_case(d, 1, (int64_t[]){99}, (int64_t[]){-1}, (int64_t[]){1}, 99, 99,
              98); /* a step of -1 */
    move_case(d, 2, (int64_t[]){7, 48}, (int64_t[]){96, 1}, (int64_t[]){64, 1}, 7 * 96, 7 * 64, 16);
    move_case(d, 3, (int64_t[]){3, 40, 33}, (int64_t[]){40 * 33, 1, 40},
              (int64_t[]){40 * 33, 33, 1}, 3960, 3960, 0);
    move_case(d, 2, (int64_t[]){64, 64}, (int64_t[]){1, 64}, (int64_t[]){64, 1}, 4096, 4096, 0);
    move_case(d, 4, (int64_t[]){2, 3, 5, 8}, (int64_t[]){120, 8, 24, 1}, (int64_t[]){120, 40, 8, 1},
              240, 240, 0);
    move_case(d, 4, (int64_t[]){2, 9, 3, 10}, (int64_t[]){270, 1, 90, 9},
              (int64_t[]){270, 30, 10, 1}, 540, 540, 0);
    move_case(d, 2, (int64_t[]){6, 5}, (int64_t[]){0, 1}, (int64_t[]){5, 1}, 5, 30, 0); /* Expand */
    move_case(d, 0, NULL, NULL, NULL, 1, 1, 0);
  }
  cuda_launch launch;
  const cuda_move_args odd = {.n = 1, .size = 3}, deep = {.n = 1, .size = 4, .rank = CUDA_AXES + 1};
  OPI_ASSERT(!cuda_plan_move(&odd, &launch));
  OPI_ASSERT(!cuda_plan_move(&deep, &launch));
}

/* Copies of a map, of any type, and more than 2^31 elements in a shape (counted, not moved). */
static void test_copies(void) {
  const kit_tensor x = kit_random(OPIPE_BOOL, 24, 1, 0, 2), y = kit_new(OPIPE_BOOL, 24);
  const cuda_map_args args = {.out = y.data,
                              .in = {x.data},
                              .n = 24,
                              .shape = {4, 6},
                              .rank = 2,
                              .stride = {{1, 4}},
                              .op = CUDA_MAP_COPY};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_map(&args, OPIPE_BOOL, OPIPE_BOOL, &launch));
  KIT_RUN(&launch, 1, &y);
  for (int64_t i = 0; i < 24; ++i)
    OPI_ASSERT_INT(kit_get(&y, i), kit_get(&x, i / 6 + i % 6 * 4));
  kit_end();
}

/* Index arithmetic by products and by divisions is the same: a kernel that is told that its shape
 * is large. */
static void test_large_shapes_count_alike(void) {
  const int64_t shape[3] = {7, 11, 13}, in[3] = {1, 7, 77};
  const kit_tensor x = kit_random(OPIPE_FLOAT, 1001, 3, -1, 1), small = kit_new(OPIPE_FLOAT, 1001);
  const kit_tensor large = kit_new(OPIPE_FLOAT, 1001);
  cuda_map_args args = {
      .out = small.data, .in = {x.data}, .n = 1001, .rank = 3, .op = CUDA_MAP_SIN};
  memcpy(args.shape, shape, sizeof shape);
  memcpy(args.stride[0], in, sizeof in);
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_map(&args, OPIPE_FLOAT, OPIPE_FLOAT, &launch));
  KIT_RUN(&launch, 1, &small);
  args.out = large.data;
  args.shape[0] = INT64_C(1) << 30; /* n stays: the elements behind are not made */
  OPI_ASSERT_FATAL(cuda_plan_map(&args, OPIPE_FLOAT, OPIPE_FLOAT, &launch));
  KIT_RUN(&launch, 1, &large);
  OPI_ASSERT(kit_same(&small, 0, &large, 0, 1001));
  kit_end();
}

static void test_trilu(void) {
  static const uint32_t types[] = {OPIPE_INT8, OPIPE_FLOAT16, OPIPE_FLOAT, OPIPE_INT64};
  for (size_t t = 0; t < 4; ++t) {
    for (int64_t k = -3; k <= 3; ++k) {
      for (uint32_t upper = 0; upper < 2; ++upper) {
        const kit_tensor x = kit_random(types[t], 2 * 5 * 7, 3, 1, 9), y = kit_new(types[t], x.n);
        const cuda_trilu_args args = {y.data, x.data, 2, 5, 7, k, upper, x.bytes};
        double *want = kit_doubles(x.n);
        for (int64_t i = 0; i < x.n; ++i) {
          const int64_t place = i % 7 - i / 7 % 5;
          want[i] = (upper ? place >= k : place <= k) ? kit_get(&x, i) : 0;
        }
        cuda_launch launch;
        OPI_ASSERT_FATAL(cuda_plan_trilu(&args, &launch));
        KIT_RUN(&launch, 1, &y);
        KIT_CLOSE(y, want, 1e-9);
        kit_end();
      }
    }
  }
}

static void test_fills(void) {
  static const uint32_t types[] = {OPIPE_INT8, OPIPE_FLOAT16, OPIPE_FLOAT, OPIPE_INT64};
  for (size_t t = 0; t < 4; ++t) {
    const kit_tensor y = kit_new(types[t], 333), value = kit_random(types[t], 1, 3, 1, 9);
    cuda_fill_args args = {y.data, value.data, 333, 0, y.bytes, 0};
    cuda_launch launch;
    OPI_ASSERT_FATAL(cuda_plan_fill(&args, &launch));
    KIT_RUN(&launch, 1, &y);
    for (int64_t i = 0; i < 333; ++i)
      OPI_ASSERT(kit_same(&y, i, &value, 0, 1));
    args.value = NULL;
    OPI_ASSERT_FATAL(cuda_plan_fill(&args, &launch));
    KIT_RUN(&launch, 1, &y);
    OPI_ASSERT_INT(kit_get(&y, 332), 0);
    args.size = 3;
    OPI_ASSERT(!cuda_plan_fill(&args, &launch));
    kit_end();
  }
}

static void test_gather(void) {
  static const uint32_t types[] = {OPIPE_INT8, OPIPE_FLOAT16, OPIPE_FLOAT, OPIPE_INT64};
  for (size_t t = 0; t < 4; ++t) {
    for (int64_t inner = 1; inner <= 48; inner = inner * 2 + 1) {
      for (uint32_t bytes = 4; bytes <= 8; bytes += 4) {
        const int64_t outer = 2, extent = 9, n = 7, wide = inner == 31 ? 32 : inner;
        const kit_tensor data = kit_random(types[t], outer * extent * wide, 3, -9, 9);
        const kit_tensor at = kit_random(bytes == 4 ? OPIPE_INT32 : OPIPE_INT64, n, 4, -9, 9);
        const kit_tensor out = kit_new(types[t], outer * n * wide);
        cuda_status *const status = kit_status();
        kit_set(&at, 5, 20);
        const cuda_gather_args args = {.out = out.data,
                                       .data = data.data,
                                       .indices = at.data,
                                       .status = status,
                                       .outer = outer,
                                       .extent = extent,
                                       .n_indices = n,
                                       .inner = wide,
                                       .size = data.bytes,
                                       .index_bytes = bytes,
                                       .node = 21};
        cuda_launch launch;
        OPI_ASSERT_FATAL(cuda_plan_gather(&args, &launch));
        KIT_RUN(&launch, 1, &out);
        for (int64_t i = 0; i < out.n; ++i) {
          const int64_t column = i % wide, k = i / wide % n, o = i / wide / n,
                        index = (int64_t)kit_get(&at, k);
          const int64_t row = index < 0 ? index + extent : index;
          OPI_ASSERT_INT(kit_get(&out, i),
                         k == 5 ? 0 : kit_get(&data, (o * extent + row) * wide + column));
        }
        OPI_ASSERT_INT(status->code, CUDA_STATUS_INDEX);
        OPI_ASSERT_INT(status->node, 21);
        OPI_ASSERT_INT(status->value, 20);
        OPI_ASSERT_INT(status->limit, 9);
        kit_end();
      }
    }
  }
}

/* ---- runs and checks ---- */

static void test_begin_and_reports(void) {
  cuda_run_block *const block = kit_placed(
      &(const cuda_run_block){.status = {3, 4, 5, 6}, .counters = {[0] = 7, [199] = 7, [200] = 7}},
      sizeof *block);
  cuda_begin_args args = {.block = block, .n = 3, .n_counters = 200, .scalars = {7, 8, 9}};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_begin(&args, &launch));
  KIT_RUN(&launch, 1, NULL);
  OPI_ASSERT(block->status.code == 0 && block->status.node == 0 && block->status.value == 0);
  OPI_ASSERT(block->scalars[0] == 7 && block->scalars[2] == 9 && block->scalars[3] == 0);
  OPI_ASSERT(block->counters[0] == 0 && block->counters[199] == 0 && block->counters[200] == 7);
  cuda_status *const to = kit_status(), *const taken = kit_status();
  cuda_status *const from = kit_placed(&(const cuda_status){2, 5, 6, 7}, sizeof *from);
  const cuda_report_args report = {to, from};
  OPI_ASSERT_FATAL(cuda_plan_report(&report, &launch));
  KIT_RUN(&launch, 1, NULL);
  OPI_ASSERT(to->code == 2 && to->node == 5 && to->value == 6 && to->limit == 7);
  from->code = 3;
  KIT_RUN(&launch, 1, NULL);
  OPI_ASSERT_INT(to->code, 2); /* the first one stays */
  const cuda_take_args take = {taken, to};
  OPI_ASSERT_FATAL(cuda_plan_take(&take, &launch));
  KIT_RUN(&launch, 1, NULL); /* three times: the last finds nothing more */
  OPI_ASSERT(to->code == 0 && taken->code == 0 && taken->node == 5);
  kit_end();
}

static void test_checks(void) {
  for (int t = 0; t < KIT_TYPES; ++t) {
    for (int bad = 0; bad < 3; ++bad) {
      const kit_tensor x = kit_random(kit_types[t], 3000, 1, -1, 1);
      cuda_status *const status = kit_status();
      if (bad != 0)
        kit_set(&x, 2999, bad == 1 ? NAN : -(double)INFINITY);
      const cuda_finite_args args = {x.data, status, x.n, 9, 0};
      cuda_launch launch;
      OPI_ASSERT_FATAL(cuda_plan_finite(&args, kit_types[t], &launch));
      KIT_RUN(&launch, 1, NULL);
      OPI_ASSERT_INT(status->code, bad != 0 ? CUDA_STATUS_FINITE : 0);
      OPI_ASSERT_INT(status->value, bad != 0 ? 2999 : 0);
      OPI_ASSERT(!cuda_plan_finite(&args, OPIPE_INT8, &launch));
      kit_end();
    }
  }
  const kit_tensor zone = kit_new(OPIPE_UINT8, 777);
  cuda_status *const status = kit_status();
  const cuda_zone_args args = {zone.data, NULL, status, zone.n, 9, 0};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_zone(&args, &launch));
  KIT_RUN(&launch, 1, NULL);
  OPI_ASSERT_INT(status->code, 0);
  kit_set(&zone, 700, 1);
  KIT_RUN(&launch, 1, NULL);
  OPI_ASSERT_INT(status->code, CUDA_STATUS_ZONE);
  OPI_ASSERT_INT(status->value, 700);
  kit_end();
}

/* ---- reductions ---- */

static double reduce_plain(const kit_tensor *x, const cuda_reduce_args *a, int64_t base) {
  const bool floats = opipe_dtype_row_of(x->dtype)->elements == OPIPE_ELEM_FLOAT;
  double sum = a->op == CUDA_REDUCE_PROD  ? 1
               : a->op == CUDA_REDUCE_MAX ? -(double)INFINITY
               : a->op == CUDA_REDUCE_MIN ? (double)INFINITY
                                          : 0;
  for (int64_t k = 0; k < a->n_in; ++k) {
    int64_t rest = k, at = base;
    for (uint32_t i = a->reduced_rank; i > 0; --i) {
      at += rest % a->reduced_shape[i - 1] * a->reduced_stride[i - 1];
      rest /= a->reduced_shape[i - 1];
    }
    const double v = kit_get(x, at);
    switch (a->op) {
      case CUDA_REDUCE_PROD:
        sum *= v;
        break;
      case CUDA_REDUCE_MAX:
        sum = v > sum ? v : sum;
        break;
      case CUDA_REDUCE_MIN:
        sum = v < sum ? v : sum;
        break;
      case CUDA_REDUCE_L1:
        sum += fabs(v);
        break;
      case CUDA_REDUCE_L2:
      case CUDA_REDUCE_SUMSQUARE:
        sum += v * v;
        break;
      case CUDA_REDUCE_LOGSUMEXP:
        sum += floats ? exp(v) : v;
        break;
      default:
        sum += v;
        break;
    }
  }
  switch (a->op) {
    case CUDA_REDUCE_MEAN:
      return floats ? sum / (double)a->n_in : trunc(sum / (double)a->n_in);
    case CUDA_REDUCE_L2:
      return floats ? sqrt(sum) : trunc(sqrt(sum));
    case CUDA_REDUCE_LOGSUM:
    case CUDA_REDUCE_LOGSUMEXP:
      return floats ? log(sum) : trunc(log(sum));
    default:
      return sum;
  }
}

/* x [a, b, c]: reduces b, or a and c. */
static void reduce_case(uint32_t dtype, uint32_t op, const int64_t *s, bool middle) {
  const bool floats = opipe_dtype_row_of(dtype)->elements == OPIPE_ELEM_FLOAT;
  const double low = op == CUDA_REDUCE_PROD ? 0.9 : op == CUDA_REDUCE_LOGSUM || !floats ? 1 : -2;
  const kit_tensor x =
      kit_random(dtype, s[0] * s[1] * s[2], 4, low, op == CUDA_REDUCE_PROD ? 1.1 : 4);
  cuda_reduce_args a = {.in = x.data, .op = op};
  if (middle) {
    a.n_out = s[0] * s[2];
    a.n_in = s[1];
    a.kept_rank = 2;
    memcpy(a.kept_shape, (int64_t[]){s[0], s[2]}, 16);
    memcpy(a.kept_stride, (int64_t[]){s[1] * s[2], 1}, 16);
    a.reduced_rank = 1;
    a.reduced_shape[0] = s[1];
    a.reduced_stride[0] = s[2];
  } else {
    a.n_out = s[1];
    a.n_in = s[0] * s[2];
    a.kept_rank = 1;
    a.kept_shape[0] = s[1];
    a.kept_stride[0] = s[2];
    a.reduced_rank = 2;
    memcpy(a.reduced_shape, (int64_t[]){s[0], s[2]}, 16);
    memcpy(a.reduced_stride, (int64_t[]){s[1] * s[2], 1}, 16);
  }
  const kit_tensor out = kit_new(dtype, a.n_out);
  double *want = kit_doubles(a.n_out);
  for (int64_t i = 0; i < a.n_out; ++i)
    want[i] = reduce_plain(&x, &a, middle ? i / s[2] * s[1] * s[2] + i % s[2] : i * s[2]);
  a.out = out.data;
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_reduce(&a, dtype, &launch));
  KIT_RUN(&launch, 1, &out);
  if (!kit_close(&out, want, dtype == OPIPE_FLOAT ? 1e-5 : 0, "out", __LINE__))
    OPI_FAIL("op %u of %s", op, opipe_dtype_row_of(dtype)->name);
  kit_end();
}

static void test_reductions(void) {
  static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_BFLOAT16, OPIPE_FLOAT16, OPIPE_DOUBLE,
                                   OPIPE_INT32, OPIPE_UINT64,   OPIPE_UINT8};
  static const int64_t shapes[][3] = {{2, 3, 5}, {4, 3, 40}, {20, 2, 130}, {3, 7, 1}};
  for (size_t t = 0; t < 7; ++t) {
    for (uint32_t op = 0; op < CUDA_REDUCE_COUNT; ++op) {
      for (size_t s = 0; s < 4; ++s) {
        if (t == 6 && (op != CUDA_REDUCE_MAX && op != CUDA_REDUCE_MIN))
          continue; /* sums of bytes wrap */
        reduce_case(types[t], op, shapes[s], true);
        reduce_case(types[t], op, shapes[s], false);
      }
    }
  }
  reduce_case(OPIPE_FLOAT, CUDA_REDUCE_SUM, (int64_t[]){1, 5000, 2},
              true); /* a block for a column */
  cuda_launch launch;
  cuda_reduce_args args = {.op = CUDA_REDUCE_SUM, .n_in = 1, .n_out = 1};
  OPI_ASSERT(!cuda_plan_reduce(&args, OPIPE_BOOL, &launch));
  args.op = CUDA_REDUCE_MAX;
  OPI_ASSERT(cuda_plan_reduce(&args, OPIPE_BOOL, &launch));
  args.op = CUDA_REDUCE_COUNT;
  OPI_ASSERT(!cuda_plan_reduce(&args, OPIPE_FLOAT, &launch));
}

static void test_reductions_at_corners(void) {
  static const struct {
    uint32_t op;
    double x[2], want;
  } cases[] = {{CUDA_REDUCE_MAX, {NAN, 1}, NAN},
               {CUDA_REDUCE_MIN, {1, NAN}, NAN},
               {CUDA_REDUCE_LOGSUMEXP, {-INFINITY, -INFINITY}, -INFINITY},
               {CUDA_REDUCE_LOGSUMEXP, {1000, 1000}, 1000.693147180559945}};
  for (size_t i = 0; i < 4; ++i) {
    const kit_tensor x = kit_new(OPIPE_FLOAT, 2), out = kit_new(OPIPE_FLOAT, 1);
    kit_set(&x, 0, cases[i].x[0]);
    kit_set(&x, 1, cases[i].x[1]);
    const cuda_reduce_args args = {.out = out.data,
                                   .in = x.data,
                                   .n_out = 1,
                                   .n_in = 2,
                                   .reduced_shape = {2},
                                   .reduced_stride = {1},
                                   .reduced_rank = 1,
                                   .op = cases[i].op};
    cuda_launch launch;
    OPI_ASSERT_FATAL(cuda_plan_reduce(&args, OPIPE_FLOAT, &launch));
    KIT_RUN(&launch, 1, &out);
    KIT_CLOSE(out, &cases[i].want, 0);
    kit_end();
  }
}

/* ---- orders ---- */

static bool before(double x, int64_t at_x, double y, int64_t at_y, bool largest, bool last) {
  const int no_x = x != x, no_y = y != y;
  const int order = no_x || no_y ? no_x - no_y : (x > y) - (x < y);
  return order == 0 ? (last ? at_x > at_y : at_x < at_y) : (order > 0) == largest;
}

static void order_case(uint32_t dtype, const int64_t *s, int64_t k, bool largest, bool last) {
  const bool is_signed = dtype != OPIPE_UINT64;
  const kit_tensor x = kit_random(dtype, s[0] * s[1] * s[2], 4, is_signed ? -20 : 0, 20);
  const kit_tensor values = kit_new(dtype, s[0] * k * s[2]), at = kit_new(OPIPE_INT64, values.n);
  const kit_tensor arg = kit_new(OPIPE_INT64, s[0] * s[2]);
  double *want = kit_doubles(values.n), *want_at = kit_doubles(values.n),
         *want_arg = kit_doubles(arg.n);
  if (dtype == OPIPE_FLOAT)
    kit_set(&x, s[2] * (s[1] / 2), NAN);
  for (int64_t line = 0; line < arg.n; ++line) {
    const int64_t first = line / s[2] * s[1] * s[2] + line % s[2];
    for (int64_t i = 0; i < s[1]; ++i) {
      int64_t rank[2] = {0, 0};
      const double v = kit_get(&x, first + i * s[2]);
      for (int64_t j = 0; j < s[1]; ++j) {
        rank[0] += before(kit_get(&x, first + j * s[2]), j, v, i, largest, false);
        rank[1] += before(kit_get(&x, first + j * s[2]), j, v, i, largest, last);
      }
      if (rank[0] < k) {
        want[(line / s[2] * k + rank[0]) * s[2] + line % s[2]] = v;
        want_at[(line / s[2] * k + rank[0]) * s[2] + line % s[2]] = (double)i;
      }
      if (rank[1] == 0)
        want_arg[line] = (double)i;
    }
  }
  cuda_order_args args = {values.data, at.data, x.data, s[0], s[1], s[2],
                          k,           largest, last,   0,    0,    NULL};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_topk(&args, dtype, &launch));
  KIT_RUN(&launch, 1, &values, &at);
  KIT_CLOSE(values, want, 0);
  KIT_CLOSE(at, want_at, 0);
  args.values = NULL;
  args.indices = arg.data;
  OPI_ASSERT_INT(cuda_plan_arg(&args, dtype, &launch), 1);
  KIT_RUN(&launch, 1, &arg);
  KIT_CLOSE(arg, want_arg, 0);
  args.indices = NULL;
  OPI_ASSERT_FATAL(cuda_plan_topk(&args, dtype, &launch));
  KIT_RUN(&launch, 1, NULL);
  kit_end();
}

/* Rows in one part and in several, from any address: the first or the last of equals, both zeros
 * alike, and numbers that are none before or behind all others. */
static void arg_rows_case(uint32_t dtype, int64_t rows, int64_t n, uint32_t largest, uint32_t last,
                          int what) {
  const kit_tensor x = kit_random(dtype, rows * n, 11, -9, 9), at = kit_new(OPIPE_INT64, rows);
  double *want = kit_doubles(rows);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double v = round(kit_get(&x, row * n + i) / 3);
      const double low = largest ? -(double)INFINITY : (double)INFINITY;
      const bool none = (i * 7 + row) % 31 == 3;
      kit_set(&x, row * n + i,
              what == 0   ? v /* many equals */
              : what == 1 ? (i % 3 == 0 ? -0.0 : 0.0)
              : what == 2 ? (none ? (i % 2 == 0 ? (double)NAN : -(double)NAN) : v)
              : what == 3 ? (i == n / 2 ? low : (double)NAN) /* one number, the very last */
                          : (double)NAN);
    }
    for (int64_t i = 1; i < n; ++i) {
      const double v = kit_get(&x, row * n + i), b = kit_get(&x, row * n + best);
      best = before(v, i, b, best, largest != 0, last != 0) != 0 ? i : best;
    }
    want[row] = (double)best;
  }
  cuda_order_args args = {NULL, at.data, x.data, rows, n, 1, 0, largest, last, 0, 0, NULL};
  const uint64_t n_bytes = cuda_arg_workspace(&args, dtype);
  cuda_launch launches[CUDA_LAUNCHES];
  args.workspace = n_bytes > 0 ? kit_workspace(n_bytes) : NULL;
  const uint32_t count = cuda_plan_arg(&args, dtype, launches);
  OPI_ASSERT_INT(count, n_bytes > 0 ? 2 : 1);
  OPI_ASSERT(n <= 2048 || rows >= 512 || count == 2);
  KIT_RUN(launches, count, &at);
  KIT_CLOSE(at, want, 0);
  kit_end();
}

static void test_arg_of_rows(void) {
  static const int64_t shapes[][2] = {{1, 1}, {2, 61}, {1, 5003}, {2, 2049}};
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    for (uint32_t form = 0; form < 4; ++form) {
      for (int what = 0; what < 5; ++what) {
        kit_skew = (int64_t)(s + form) % 4;
        arg_rows_case(kit_types[((int)form + what) % 3], shapes[s][0], shapes[s][1], form & 1,
                      form >> 1, what);
      }
    }
  }
  arg_rows_case(OPIPE_BFLOAT16, 512, 2050, 1, 0, 2);
  kit_skew = 0;
  cuda_launch launches[CUDA_LAUNCHES];
  const cuda_order_args vocabulary = {.outer = 1, .n = 50304, .inner = 1, .largest = 1};
  OPI_ASSERT_INT(cuda_plan_arg(&vocabulary, OPIPE_BFLOAT16, launches), 2);
  OPI_ASSERT_INT(launches[0].grid[0], 50);
}

static void test_orders(void) {
  static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_BFLOAT16, OPIPE_DOUBLE, OPIPE_INT32,
                                   OPIPE_UINT64};
  for (size_t t = 0; t < 5; ++t) {
    order_case(types[t], (int64_t[]){3, 7, 1}, 3, true, false);
    order_case(types[t], (int64_t[]){2, 300, 2}, 5, false, true);
    order_case(types[t], (int64_t[]){1, 40, 3}, 40, true, true);
  }
  cuda_launch launch;
  const cuda_order_args args = {.n = 1, .outer = 1, .inner = 1};
  OPI_ASSERT(!cuda_plan_topk(&args, OPIPE_BOOL, &launch));
  OPI_ASSERT(!cuda_plan_arg(&args, OPIPE_BOOL, &launch));
}

static void test_running_sums(void) {
  static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_BFLOAT16, OPIPE_FLOAT16, OPIPE_DOUBLE,
                                   OPIPE_INT32};
  for (size_t t = 0; t < 5; ++t) {
    for (uint32_t form = 0; form < 4; ++form) {
      const int64_t outer = 2, n = 19, inner = 3;
      const kit_tensor x = kit_random(types[t], outer * n * inner, 4, -3, 3),
                       y = kit_new(types[t], x.n);
      double *want = kit_doubles(x.n);
      for (int64_t line = 0; line < outer * inner; ++line) {
        double sum = 0;
        for (int64_t k = 0; k < n; ++k) {
          const int64_t at =
              line / inner * n * inner + line % inner + ((form & 2) != 0 ? n - 1 - k : k) * inner;
          want[at] = (form & 1) != 0 ? sum : sum + kit_get(&x, at);
          sum += kit_get(&x, at);
        }
      }
      const cuda_cumsum_args args = {y.data, x.data, outer, n, inner, form & 1, form >> 1};
      cuda_launch launch;
      OPI_ASSERT_FATAL(cuda_plan_cumsum(&args, types[t], &launch));
      KIT_RUN(&launch, 1, &y);
      KIT_CLOSE(y, want, 0);
      kit_end();
    }
  }
}

OPI_TEST_MAIN("cuda_move", OPI_TEST(test_moves), OPI_TEST(test_copies),
              OPI_TEST(test_large_shapes_count_alike), OPI_TEST(test_trilu), OPI_TEST(test_fills),
              OPI_TEST(test_gather), OPI_TEST(test_begin_and_reports), OPI_TEST(test_checks),
              OPI_TEST(test_reductions), OPI_TEST(test_reductions_at_corners),
              OPI_TEST(test_arg_of_rows), OPI_TEST(test_orders), OPI_TEST(test_running_sums))
