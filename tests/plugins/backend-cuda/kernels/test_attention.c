/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Attention and rotary embedding with their gradients against plain loops in double: every form of
 * mask, past, heads, depths and types. */
#include "attention.h"

typedef struct sums {
  double *dq, *dk, *dv, *dpk, *dpv, *dmask;
} sums;

static void add_joined(const problem *p, double *fresh, const int64_t *stride, double *past,
                       const int64_t *past_stride, int64_t b, int64_t kv, int64_t j, int64_t d,
                       double x) {
  if (j < p->args.past)
    past[at_of(past_stride, b, kv, j) + d] += x;
  else
    fresh[at_of(stride, b, kv, j - p->args.past) + d] += x;
}

static void grad_row(const problem *p, int64_t b, int64_t h, int64_t s, double *stage,
                     double *slope, const sums *to) {
  const cuda_attention_args *a = &p->args;
  const int64_t n = a->keys, kv = h / (a->heads / a->kv_heads);
  double *weight = stage + 3 * n, *dp = stage, weighted = 0;
  score_row(p, b, h, s, stage, slope);
  for (int64_t j = 0; j < n; ++j) {
    dp[j] = 0;
    for (int64_t d = 0; d < a->value_depth && weight[j] != 0; ++d) {
      const double dy = kit_get(&p->dy, at_of(a->y_stride, b, h, s) + d);
      dp[j] += dy * joined(p, true, b, kv, j, d);
      add_joined(p, to->dv, a->v_stride, to->dpv, a->past_v_stride, b, kv, j, d, weight[j] * dy);
    }
    weighted += weight[j] * dp[j];
  }
  for (int64_t j = 0; j < n; ++j) {
    const double ds = weight[j] * (dp[j] - weighted);
    if (a->mask_kind > 1 && j < a->mask_keys)
      to->dmask[at_of(a->mask_stride, b, h, s) + j * a->mask_stride[3]] += ds;
    for (int64_t d = 0; d < a->depth; ++d) {
      const int64_t q = at_of(a->q_stride, b, h, s) + d;
      to->dq[q] += ds * slope[j] * a->scale * joined(p, false, b, kv, j, d);
      add_joined(p, to->dk, a->k_stride, to->dpk, a->past_k_stride, b, kv, j, d,
                 ds * slope[j] * a->scale * kit_get(&p->q, q));
    }
  }
}

static void backward(const problem *p, const form *f) {
  const kit_tensor dq = kit_new(p->dtype, p->q.n), dk = kit_new(p->dtype, p->k.n),
                   dv = kit_new(p->dtype, p->v.n);
  const kit_tensor dpk = kit_new(p->dtype, p->past_k.n), dpv = kit_new(p->dtype, p->past_v.n);
  const bool masked = f->mask_kind > 1;
  const kit_tensor dmask = masked ? kit_new(p->mask.dtype, p->mask.n) : kit_new(OPIPE_FLOAT, 0);
  const int64_t n = p->args.keys;
  double *stage = kit_doubles(4 * n), *slope = kit_doubles(n);
  const sums to = {kit_doubles(dq.n),  kit_doubles(dk.n),  kit_doubles(dv.n),
                   kit_doubles(dpk.n), kit_doubles(dpv.n), kit_doubles(dmask.n)};
  for (int64_t i = 0; i < f->batch * f->heads * f->queries; ++i) {
    grad_row(p, i / f->queries / f->heads, i / f->queries % f->heads, i % f->queries, stage, slope,
             &to);
  }
  cuda_attention_grad_args args = {.forward = p->args,
                                   .dy = p->dy.data,
                                   .dq = dq.data,
                                   .dk = dk.data,
                                   .dv = dv.data,
                                   .dpast_k = dpk.data,
                                   .dpast_v = dpv.data,
                                   .dmask = masked ? dmask.data : NULL};
  memcpy(args.dy_stride, p->args.y_stride, sizeof args.dy_stride);
  memcpy(args.dq_stride, p->args.q_stride, sizeof args.dq_stride);
  memcpy(args.dk_stride, p->args.k_stride, sizeof args.dk_stride);
  memcpy(args.dv_stride, p->args.v_stride, sizeof args.dv_stride);
  memcpy(args.dpast_k_stride, p->args.past_k_stride, sizeof args.dpast_k_stride);
  memcpy(args.dpast_v_stride, p->args.past_v_stride, sizeof args.dpast_v_stride);
  args.workspace = kit_workspace(cuda_attention_grad_workspace(&args));
  cuda_launch launches[CUDA_LAUNCHES];
  const uint32_t count = cuda_plan_attention_grad(&args, p->dtype, launches);
  OPI_ASSERT_FATAL(count > 0);
  KIT_RUN(launches, count, &dq, &dk, &dv, &dpk, &dpv, &dmask);
  const double tol = 2 * tolerance(p->dtype);
  KIT_CLOSE(dq, to.dq, tol);
  KIT_CLOSE(dk, to.dk, tol);
  KIT_CLOSE(dv, to.dv, tol);
  KIT_CLOSE(dpk, to.dpk, tol);
  KIT_CLOSE(dpv, to.dpv, tol);
  KIT_CLOSE(dmask, to.dmask, 2 * tolerance(dmask.dtype));
}

static const form forms[] = {
    {1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, false},
    {2, 4, 2, 5, 5, 0, 16, 16, 1, 0, 0, 0, 0, false},
    {1, 2, 2, 3, 300, 0, 8, 8, 0, 0, 0, 0, 0, false},
    {2, 2, 1, 3, 4, 6, 8, 24, 1, 0, 0, 0, 0, false},
    {2, 2, 2, 4, 6, 0, 8, 8, 0, 1, 0, 0, 0, false},
    {2, 2, 2, 4, 6, 0, 8, 8, 0, 2, 2, 0, 0, false},
    {2, 2, 1, 4, 6, 1, 8, 8, 1, 2, 7, 2, 5, false},
    {2, 2, 1, 4, 6, 0, 8, 8, 0, 3, 5, 0, 0, false},
    {3, 2, 2, 2, 9, 0, 64, 64, 0, 0, 0, 0, 2.5, true},
    {1, 1, 1, 70, 70, 0, 64, 64, 1, 0, 0, 0, 0, false},
    {1, 6, 3, 1, 1, 40, 32, 32, 1, 0, 0, 0, 0, false},
    {2, 1, 1, 3, 5, 0, 4, 256, 0, 3, 3, 3, 0, false},
};

static void test_attention(void) {
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
    for (int t = 0; t < KIT_TYPES; ++t) {
      if (!kit_covers(i * KIT_TYPES + (size_t)t, 5))
        continue;
      const problem p = make(&forms[i], kit_types[t]);
      forward(&p, &forms[i], (uint32_t)(i % 5));
      kit_end();
    }
  }
}

static void test_attention_gradients(void) {
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
    for (int t = 0; t < KIT_TYPES; ++t) {
      if (!kit_covers(i * KIT_TYPES + (size_t)t, 5))
        continue;
      const problem p = make(&forms[i], kit_types[t]);
      backward(&p, &forms[i]);
      kit_end();
    }
  }
}

/* With enough keys: by tiles, half types on the matrix instructions. */
static const form tiled[] = {
    {2, 4, 2, 70, 70, 0, 64, 64, 1, 0, 0, 0, 0, false},
    {1, 2, 1, 40, 40, 50, 128, 128, 1, 0, 0, 0, 0, false},
    {1, 2, 2, 33, 70, 0, 80, 72, 0, 2, 4, 2, 5, false},
    {2, 1, 1, 66, 66, 0, 16, 24, 1, 3, 3, 0, 0, false},
    {3, 2, 1, 5, 40, 0, 32, 32, 0, 1, 5, 3, 0, false},
    {3, 2, 2, 65, 129, 0, 8, 64, 1, 0, 0, 0, 2.5, true},
    {1, 9, 1, 1, 1, 100, 104, 8, 1, 0, 0, 0, 0, false},
    {1, 1, 1, 20, 200, 0, 16, 16, 0, 0, 0, 0, 0, false},  /* tiles that take the place of others */
    {1, 2, 1, 200, 200, 0, 64, 64, 1, 0, 0, 0, 0, false}, /* several blocks of rows and of keys */
    {1, 2, 2, 140, 100, 60, 64, 40, 1, 0, 0, 0, 0, true},
    {1, 1, 1, 70, 150, 0, 128, 96, 0, 0, 0, 0, 0, false},
};

static bool is_tiled(const char *kernel) {
  return strncmp(kernel, "opipe_flash_", strlen("opipe_flash_")) == 0;
}

static void test_attention_by_tiles(void) {
  for (size_t i = 0; i < sizeof tiled / sizeof tiled[0]; ++i) {
    for (int t = 0; t < 3; ++t) {
      if (!kit_covers(i * 3 + (size_t)t, 5))
        continue;
      cuda_launch launch;
      const problem p = make(&tiled[i], kit_types[t]);
      OPI_ASSERT(cuda_plan_attention(&p.args, p.dtype, &launch) && is_tiled(launch.kernel));
      forward(&p, &tiled[i], 4);
      kit_end();
    }
  }
}

static void test_gradients_by_tiles(void) {
  for (size_t i = 0; i < sizeof tiled / sizeof tiled[0]; ++i) {
    for (int t = 1; t < 3; ++t) {
      if (!kit_covers(i * 2 + (size_t)t, 5))
        continue;
      cuda_launch launches[CUDA_LAUNCHES];
      const problem p = make(&tiled[i], kit_types[t]);
      const cuda_attention_grad_args grad = {.forward = p.args};
      OPI_ASSERT(cuda_plan_attention_grad(&grad, p.dtype, launches) == 2 &&
                 is_tiled(launches[0].kernel) && is_tiled(launches[1].kernel));
      backward(&p, &tiled[i]);
      kit_end();
    }
  }
}

/* Rows of which a mask hides every key alike: scores so low that no exponent holds their sum. */
static void test_rows_of_lowest_scores(void) {
  static const form masked = {1, 2, 1, 34, 40, 0, 64, 64, 0, 3, 3, 0, 0, false};
  for (int t = 0; t < 3; ++t) {
    const problem p = make(&masked, kit_types[t]);
    for (int64_t j = 0; j < 40; ++j)
      kit_set(&p.mask, 5 * 40 + j, -3.4e38);
    forward(&p, &masked, 4);
    backward(&p, &masked);
    kit_end();
  }
}

/* The bits of a row are the same among few rows, and beside tiles that only others see. */
static void test_rows_by_tiles(void) {
  static const form whole = {1, 2, 1, 150, 150, 0, 64, 64, 1, 0, 0, 0, 0, false};
  enum { FEW = 37 };
  cuda_launch launch;
  for (int t = 0; t < 2; ++t) {
    problem p = make(&whole, kit_types[t]);
    const kit_tensor few = kit_new(p.dtype, FEW * 2 * 64);
    OPI_ASSERT_FATAL(cuda_plan_attention(&p.args, p.dtype, &launch));
    KIT_RUN(&launch, 1, &p.y);
    p.args.queries = FEW;
    p.args.keys = 64;
    p.args.y = few.data;
    OPI_ASSERT_FATAL(cuda_plan_attention(&p.args, p.dtype, &launch) && is_tiled(launch.kernel));
    KIT_RUN(&launch, 1, &few);
    OPI_ASSERT(kit_same(&p.y, 0, &few, 0, few.n));
    kit_end();
  }
}

static void gradients_are_finite(const problem *p) {
  const kit_tensor dq = kit_new(p->dtype, p->q.n), dk = kit_new(p->dtype, p->k.n),
                   dv = kit_new(p->dtype, p->v.n);
  cuda_attention_grad_args args = {
      .forward = p->args, .dy = p->dy.data, .dq = dq.data, .dk = dk.data, .dv = dv.data};
  cuda_launch launches[CUDA_LAUNCHES];
  memcpy(args.dy_stride, p->args.y_stride, sizeof args.dy_stride);
  memcpy(args.dq_stride, p->args.q_stride, sizeof args.dq_stride);
  memcpy(args.dk_stride, p->args.k_stride, sizeof args.dk_stride);
  memcpy(args.dv_stride, p->args.v_stride, sizeof args.dv_stride);
  args.workspace = kit_workspace(cuda_attention_grad_workspace(&args));
  const uint32_t count = cuda_plan_attention_grad(&args, p->dtype, launches);
  OPI_ASSERT_FATAL(count > 0);
  KIT_RUN(launches, count, &dq, &dk, &dv);
  for (int64_t i = 0; i < dq.n; ++i)
    OPI_ASSERT(isfinite(kit_get(&dq, i)));
  for (int64_t i = 0; i < dk.n; ++i)
    OPI_ASSERT(isfinite(kit_get(&dk, i)) && isfinite(kit_get(&dv, i)));
}

/* Keys that no row may see are not read: what lies there may be anything. */
static void test_hidden_keys_are_not_read(void) {
  static const form padded = {1, 1, 1, 9, 100, 0, 16, 16, 0, 0, 0, 0, 0, true};
  cuda_launch launch;
  for (int t = 0; t < 3; t += 2) {
    problem p = make(&padded, kit_types[t]);
    kit_set(&p.nonpad, 0, 70);
    for (int64_t i = (int64_t)70 * 16; i < p.k.n; ++i) {
      kit_set(&p.k, i, (double)NAN);
      kit_set(&p.v, i, (double)NAN);
    }
    OPI_ASSERT_FATAL(cuda_plan_attention(&p.args, p.dtype, &launch) && is_tiled(launch.kernel));
    KIT_RUN(&launch, 1, &p.y);
    for (int64_t i = 0; i < p.y.n; ++i)
      OPI_ASSERT(isfinite(kit_get(&p.y, i)));
    gradients_are_finite(&p);
    kit_end();
  }
}

/* fp32: a value is left out where its key is hidden from the row, by its place or by a mask. */
static void test_hidden_values_of_fp32(void) {
  static const form causal = {1, 1, 1, 100, 100, 0, 64, 64, 1, 0, 0, 0, 0, false};
  static const form masked = {1, 1, 1, 40, 100, 0, 64, 64, 0, 1, 7, 0, 0, false};
  enum { BAD = 60 };
  cuda_launch launch;
  for (int which = 0; which < 2; ++which) {
    const problem p = make(which == 0 ? &causal : &masked, OPIPE_FLOAT);
    for (int64_t d = 0; d < 64; ++d)
      kit_set(&p.v, BAD * 64 + d, (double)NAN);
    if (which == 1)
      kit_set(&p.mask, BAD, 0);
    OPI_ASSERT_FATAL(cuda_plan_attention(&p.args, p.dtype, &launch) && is_tiled(launch.kernel));
    KIT_RUN(&launch, 1, &p.y);
    for (int64_t i = 0; i < p.y.n; ++i)
      OPI_ASSERT_INT(isfinite(kit_get(&p.y, i)) != 0, which == 1 || i < BAD * 64);
    kit_end();
  }
}

/* Forms that tiles do not support use the plain kernels. */
static void test_attention_without_tiles(void) {
  static const form fitting = {1, 2, 1, 40, 40, 0, 64, 64, 1, 0, 0, 0, 0, false};
  cuda_launch launch;
  for (int t = 0; t < KIT_TYPES; ++t) {
    const problem p = make(&fitting, kit_types[t]);
    for (int which = 0; which < 7; ++which) {
      cuda_attention_args args = p.args;
      args.depth = which == 1 ? 58 : which == 2 ? 136 : args.depth;
      args.k_stride[2] += which == 3 ? 2 : 0;
      args.q = which == 4 ? (const char *)args.q + 8 : args.q;
      args.keys = which == 5 ? 31 : args.keys;
      args.scores = which == 6 ? p.y.data : NULL;
      OPI_ASSERT(cuda_plan_attention(&args, p.dtype, &launch));
      OPI_ASSERT_INT(is_tiled(launch.kernel), which == 0 && p.dtype != OPIPE_DOUBLE);
    }
    kit_end();
  }
}

/* Kernels without masks are of calls whose scores are products alone. */
static void test_bare_scores(void) {
  static const form fitting = {1, 2, 1, 40, 40, 0, 64, 64, 1, 0, 0, 0, 0, false};
  cuda_launch launch;
  const problem p = make(&fitting, OPIPE_FLOAT16);
  for (int which = 0; which < 5; ++which) {
    cuda_attention_args args = p.args;
    args.softcap = which == 1 ? 3 : 0;
    args.scale = which == 2 ? -1 : which == 3 ? 0 : args.scale;
    args.mask_kind = which == 4 ? 1 : 0;
    OPI_ASSERT(cuda_plan_attention(&args, p.dtype, &launch));
    OPI_ASSERT_STR(launch.kernel, which == 0 ? "opipe_flash_64_f16" : "opipe_flash_masked_64_f16");
  }
  kit_end();
}

static void test_attention_limits(void) {
  cuda_launch launches[CUDA_LAUNCHES];
  cuda_attention_args args = {.batch = 1,
                              .heads = 1,
                              .kv_heads = 1,
                              .queries = 1,
                              .keys = 1,
                              .depth = 257,
                              .value_depth = 8};
  OPI_ASSERT(cuda_plan_attention(&args, OPIPE_FLOAT, launches) == 0);
  cuda_attention_grad_args grad = {.forward = args};
  OPI_ASSERT(cuda_plan_attention_grad(&grad, OPIPE_FLOAT, launches) == 0);
  grad.forward.depth = 8;
  OPI_ASSERT(cuda_plan_attention_grad(&grad, OPIPE_INT32, launches) == 0);
}

static void rotary_case(uint32_t dtype, uint32_t cache, bool interleaved, int positions,
                        int64_t turned) {
  const int64_t batch = 2, heads = 3, rows = 5, depth = 12, half = turned / 2,
                table = positions == 2 ? 10 : 9;
  const kit_tensor x = kit_random(dtype, batch * heads * rows * depth, 1, -1, 1),
                   y = kit_new(dtype, x.n);
  const kit_tensor c = kit_random(cache, table * half, 2, -1, 1),
                   s = kit_random(cache, table * half, 3, -1, 1);
  const kit_tensor ids = kit_random(OPIPE_INT64, batch * rows, 4, 0, 9);
  double *want = kit_doubles(x.n);
  cuda_rotary_args args = {.y = y.data,
                           .x = x.data,
                           .cosines = c.data,
                           .sines = s.data,
                           .ids = positions == 1 ? ids.data : NULL,
                           .batch = batch,
                           .heads = heads,
                           .queries = rows,
                           .depth = depth,
                           .turned = turned,
                           .positions = table,
                           .interleaved = interleaved,
                           .per_batch = positions == 2};
  strides(args.x_stride, heads, rows, depth);
  strides(args.y_stride, heads, rows, depth);
  for (int64_t i = 0; i < x.n; ++i) {
    const int64_t d = i % depth, r = i / depth / heads % rows, b = i / depth / heads / rows,
                  first = i - d;
    const int64_t at = positions == 1   ? (int64_t)kit_get(&ids, b * rows + r)
                       : positions == 2 ? b * rows + r
                                        : r;
    const int64_t pair = interleaved ? d / 2 : d % half;
    const bool second = interleaved ? d % 2 != 0 : d >= half;
    want[i] = kit_get(&x, i);
    if (d < turned) {
      const double x1 = kit_get(&x, first + (interleaved ? 2 * pair : pair));
      const double x2 = kit_get(&x, first + (interleaved ? 2 * pair + 1 : pair + half));
      const double cosine = kit_get(&c, at * half + pair), sine = kit_get(&s, at * half + pair);
      want[i] = second ? x1 * sine + x2 * cosine : x1 * cosine - x2 * sine;
    }
  }
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_rotary(&args, dtype, cache, &launch));
  KIT_RUN(&launch, 1, &y);
  KIT_CLOSE(y, want, 0);
  kit_end();
}

static void test_rotary(void) {
  for (int t = 0; t < 2 * KIT_TYPES; ++t) {
    for (int positions = 0; positions < 3; ++positions) {
      const uint32_t dtype = kit_types[t / 2], cache = t % 2 != 0 ? OPIPE_FLOAT : dtype;
      rotary_case(dtype, cache, positions % 2 == 0, positions, 12);
      rotary_case(dtype, cache, t % 3 == 0, positions, 8);
    }
  }
}

static void test_rotary_position_is_reported(void) {
  const kit_tensor x = kit_random(OPIPE_FLOAT, 4, 1, -1, 1), y = kit_new(OPIPE_FLOAT, 4);
  const kit_tensor cache = kit_random(OPIPE_FLOAT, 6, 2, -1, 1),
                   ids = kit_random(OPIPE_INT64, 1, 3, 3, 4);
  cuda_status *const status = kit_status();
  const cuda_rotary_args args = {.y = y.data,
                                 .x = x.data,
                                 .cosines = cache.data,
                                 .sines = cache.data,
                                 .ids = ids.data,
                                 .status = status,
                                 .batch = 1,
                                 .heads = 1,
                                 .queries = 1,
                                 .depth = 4,
                                 .turned = 4,
                                 .positions = 3,
                                 .node = 8};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_rotary(&args, OPIPE_FLOAT, OPIPE_FLOAT, &launch));
  KIT_RUN(&launch, 1, &y);
  OPI_ASSERT_INT(status->code, CUDA_STATUS_POSITION);
  OPI_ASSERT_INT(status->node, 8);
  OPI_ASSERT_INT(status->value, 3);
  OPI_ASSERT_INT(status->limit, 3);
  kit_end();
}

OPI_TEST_MAIN("cuda_attention", OPI_TEST(test_attention), OPI_TEST(test_attention_gradients),
              OPI_TEST(test_attention_by_tiles), OPI_TEST(test_gradients_by_tiles),
              OPI_TEST(test_rows_of_lowest_scores), OPI_TEST(test_rows_by_tiles),
              OPI_TEST(test_hidden_keys_are_not_read), OPI_TEST(test_hidden_values_of_fp32),
              OPI_TEST(test_attention_without_tiles), OPI_TEST(test_bare_scores),
              OPI_TEST(test_attention_limits), OPI_TEST(test_rotary),
              OPI_TEST(test_rotary_position_is_reported))
