/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of a form against plain loops in double: what tests of its kernels share. */
#ifndef TESTS_PLUGINS_BACKEND_CUDA_KERNELS_ATTENTION_H_
#define TESTS_PLUGINS_BACKEND_CUDA_KERNELS_ATTENTION_H_

#include "kit.h"

typedef struct form {
  int64_t batch, heads, kv_heads, queries, fresh, past, depth, value_depth;
  uint32_t causal, mask_kind;
  int mask_repeats;   /* bits: batch 1, heads 2, rows 4 */
  int64_t mask_short; /* keys that the mask lacks */
  double softcap;
  bool nonpad;
} form;

typedef struct problem {
  form f;
  uint32_t dtype;
  kit_tensor q, k, v, past_k, past_v, mask, nonpad, y, dy;
  cuda_attention_args args;
} problem;

static inline void strides(int64_t *out, int64_t heads, int64_t rows,
                           int64_t depth) { /* [B, rows, heads * depth] */
  out[0] = heads * rows * depth;
  out[1] = depth;
  out[2] = heads * depth;
}

static inline problem make(const form *f, uint32_t dtype) {
  problem p = {.f = *f, .dtype = dtype};
  const int64_t keys = f->past + f->fresh, kv = f->batch * f->kv_heads;
  p.q = kit_random(dtype, f->batch * f->heads * f->queries * f->depth, 1, -1, 1);
  p.k = kit_random(dtype, kv * f->fresh * f->depth, 2, -1, 1);
  p.v = kit_random(dtype, kv * f->fresh * f->value_depth, 3, -1, 1);
  p.past_k = kit_random(dtype, kv * f->past * f->depth, 4, -1, 1);
  p.past_v = kit_random(dtype, kv * f->past * f->value_depth, 5, -1, 1);
  p.y = kit_new(dtype, f->batch * f->heads * f->queries * f->value_depth);
  p.dy = kit_random(dtype, p.y.n, 6, -1, 1);
  p.nonpad = kit_random(OPIPE_INT64, f->batch, 7, 0, (double)keys + 1);
  cuda_attention_args *a = &p.args;
  *a = (cuda_attention_args){.q = p.q.data,
                             .k = p.k.data,
                             .v = p.v.data,
                             .y = p.y.data,
                             .batch = f->batch,
                             .heads = f->heads,
                             .kv_heads = f->kv_heads,
                             .queries = f->queries,
                             .keys = keys,
                             .past = f->past,
                             .depth = f->depth,
                             .value_depth = f->value_depth,
                             .scale = 0.7,
                             .softcap = f->softcap,
                             .causal = f->causal,
                             .mask_kind = f->mask_kind,
                             .mask_keys = keys};
  a->past_k = f->past > 0 ? p.past_k.data : NULL;
  a->past_v = f->past > 0 ? p.past_v.data : NULL;
  a->nonpad = f->nonpad ? p.nonpad.data : NULL;
  strides(a->q_stride, f->heads, f->queries, f->depth);
  strides(a->k_stride, f->kv_heads, f->fresh, f->depth);
  strides(a->v_stride, f->kv_heads, f->fresh, f->value_depth);
  strides(a->y_stride, f->heads, f->queries, f->value_depth);
  strides(a->past_k_stride, f->kv_heads, f->past, f->depth);
  strides(a->past_v_stride, f->kv_heads, f->past, f->value_depth);
  if (f->mask_kind != 0) {
    const int64_t extent[4] = {(f->mask_repeats & 1) != 0 ? 1 : f->batch,
                               (f->mask_repeats & 2) != 0 ? 1 : f->heads,
                               (f->mask_repeats & 4) != 0 ? 1 : f->queries, keys - f->mask_short};
    int64_t n = 1;
    for (int i = 3; i >= 0; --i) {
      a->mask_stride[i] = extent[i] > 1 ? n : 0;
      n *= extent[i];
    }
    a->mask_keys = extent[3];
    p.mask = f->mask_kind == 1   ? kit_random(OPIPE_BOOL, n, 8, 0, 2)
             : f->mask_kind == 2 ? kit_random(dtype, n, 8, -2, 2)
                                 : kit_random(OPIPE_FLOAT, n, 8, -2, 2);
    if (f->mask_kind > 1) { /* nothing, hardly anything, and sums that a half type rounds */
      kit_set(&p.mask, 0, -(double)INFINITY);
      kit_set(&p.mask, n / 2, -30000);
    }
    a->mask = p.mask.data;
  }
  return p;
}

static inline int64_t at_of(const int64_t *stride, int64_t b, int64_t h, int64_t s) {
  return b * stride[0] + h * stride[1] + s * stride[2];
}

static inline double joined(const problem *p, bool values, int64_t b, int64_t kv, int64_t j,
                            int64_t d) {
  const cuda_attention_args *a = &p->args;
  if (j < a->past) {
    return values ? kit_get(&p->past_v, at_of(a->past_v_stride, b, kv, j) + d)
                  : kit_get(&p->past_k, at_of(a->past_k_stride, b, kv, j) + d);
  }
  return values ? kit_get(&p->v, at_of(a->v_stride, b, kv, j - a->past) + d)
                : kit_get(&p->k, at_of(a->k_stride, b, kv, j - a->past) + d);
}

static inline double mask_of(const problem *p, int64_t b, int64_t h, int64_t s, int64_t j,
                             double score) {
  const cuda_attention_args *a = &p->args;
  if ((a->causal && j > s + a->past) || (p->f.nonpad && j >= (int64_t)kit_get(&p->nonpad, b)) ||
      (a->mask_kind != 0 && j >= a->mask_keys))
    return -(double)INFINITY;
  if (a->mask_kind == 0)
    return score;
  const double m = kit_get(&p->mask, at_of(a->mask_stride, b, h, s) + j * a->mask_stride[3]);
  if (a->mask_kind == 1)
    return m != 0 ? score : -(double)INFINITY;
  double sum = score + m;
  if (a->mask_kind == 2 && (p->dtype == OPIPE_FLOAT16 || p->dtype == OPIPE_BFLOAT16) &&
      sum < -1024 && sum > -1e30) {
    const kit_tensor t = kit_new(p->dtype, 1);
    kit_set(&t, 0, sum);
    sum = kit_get(&t, 0);
  }
  return sum;
}

/* Scores at the four stages, [4][keys]; slope of the cap. */
static inline void score_row(const problem *p, int64_t b, int64_t h, int64_t s, double *stage,
                             double *slope) {
  const cuda_attention_args *a = &p->args;
  const int64_t n = a->keys, kv = h / (a->heads / a->kv_heads);
  double top = -(double)INFINITY, sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    double x = 0;
    for (int64_t d = 0; d < a->depth; ++d)
      x += kit_get(&p->q, at_of(a->q_stride, b, h, s) + d) * joined(p, false, b, kv, j, d);
    stage[j] = x * a->scale;
    const double t = a->softcap > 0 ? tanh(stage[j] / a->softcap) : 0;
    slope[j] = 1 - t * t;
    stage[n + j] = a->softcap > 0 ? a->softcap * t : stage[j];
    stage[2 * n + j] = mask_of(p, b, h, s, j, stage[n + j]);
    top = stage[2 * n + j] > top ? stage[2 * n + j] : top;
  }
  for (int64_t j = 0; j < n; ++j) {
    stage[3 * n + j] = top == -(double)INFINITY ? 0 : exp(stage[2 * n + j] - top);
    sum += stage[3 * n + j];
  }
  for (int64_t j = 0; j < n; ++j)
    stage[3 * n + j] = sum == 0 ? 0 : stage[3 * n + j] / sum;
}

static inline double tolerance(uint32_t dtype) {
  return dtype == OPIPE_FLOAT     ? 2e-5
         : dtype == OPIPE_DOUBLE  ? 1e-11
         : dtype == OPIPE_FLOAT16 ? 2e-3
                                  : 1e-2;
}

/* The logarithm of the sum of exponentials of a row's scores. */
static inline double log_sum(const double *scores, int64_t n) {
  double top = -(double)INFINITY, sum = 0;
  for (int64_t j = 0; j < n; ++j)
    top = scores[j] > top ? scores[j] : top;
  for (int64_t j = 0; j < n && top != -(double)INFINITY; ++j)
    sum += exp(scores[j] - top);
  return sum == 0 ? (double)INFINITY : top + log(sum);
}

/* With a workspace of just the bytes that it asks for. */
static inline uint32_t plan(cuda_attention_args *io_args, uint32_t dtype, cuda_launch *out) {
  io_args->workspace = kit_workspace(cuda_attention_workspace(io_args, dtype));
  return cuda_plan_attention(io_args, dtype, out);
}

static inline void forward(const problem *p, const form *f, uint32_t mode) {
  cuda_attention_args args = p->args;
  const int64_t n = args.keys;
  double *want = kit_doubles(p->y.n), *stage = kit_doubles(4 * n), *slope = kit_doubles(n);
  const kit_tensor scores = kit_new(p->dtype, f->batch * f->heads * f->queries * n);
  double *want_scores = kit_doubles(scores.n);
  const kit_tensor found = kit_new(OPIPE_FLOAT, f->batch * f->heads * f->queries);
  double *want_found = kit_doubles(found.n);
  for (int64_t i = 0; i < f->batch * f->heads * f->queries; ++i) {
    const int64_t b = i / f->queries / f->heads, h = i / f->queries % f->heads, s = i % f->queries;
    score_row(p, b, h, s, stage, slope);
    for (int64_t d = 0; d < f->value_depth; ++d) {
      for (int64_t j = 0; j < n; ++j) {
        want[at_of(args.y_stride, b, h, s) + d] +=
            stage[3 * n + j] == 0
                ? 0
                : stage[3 * n + j] * joined(p, true, b, h / (f->heads / f->kv_heads), j, d);
      }
    }
    memcpy(want_scores + i * n, stage + mode % 4 * n, (size_t)n * sizeof *stage);
    want_found[i] = log_sum(stage + 2 * n, n);
  }
  args.scores = mode < 4 ? scores.data : NULL;
  args.scores_mode = mode % 4;
  cuda_launch launches[CUDA_ATTENTION_LAUNCHES];
  uint32_t count = plan(&args, p->dtype, launches);
  OPI_ASSERT_FATAL(count > 0);
  KIT_RUN(launches, count, &p->y, &scores);
  KIT_CLOSE(p->y, want, tolerance(p->dtype));
  if (mode < 4)
    KIT_CLOSE(scores, want_scores, tolerance(p->dtype));
  args.found = found.data;
  count = plan(&args, p->dtype, launches);
  OPI_ASSERT_FATAL(count > 0);
  KIT_RUN(launches, count, &p->y, &scores, &found);
  KIT_CLOSE(p->y, want, tolerance(p->dtype));
  KIT_CLOSE(found, want_found, 2e-5);
}

#endif
