/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise operations and those along rows, included once per instruction set after vec.h. The
 * order of sums stands in rowwise.h; SUM_STEP elements go round the partial sums once. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ROWWISE_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_ROWWISE_BODY_H_

#include "half.h"
#include "table.h"
#include "vmath_body.h"

enum { SUM_STEP = 64 };

/* The first n lanes, all of them from 16 on. */
CPU_INLINE void store_row(float *p, int64_t n, v16 v) {
  if (n >= 16)
    v16_store(p, v);
  else
    v16_store_part(p, n, v);
}

/* ---- element by element ---- */

CPU_INLINE v16 unary_value(cpu_unary op, v16 x) {
  switch (op) {
    case CPU_UNARY_EXP:
      return v16_exp(x);
    case CPU_UNARY_LOG:
      return v16_log(x);
    case CPU_UNARY_ERF:
      return v16_erf(x);
    case CPU_UNARY_SQRT:
      return v16_sqrt(x);
    case CPU_UNARY_RECIPROCAL:
      return v16_div(v16_set(1.0f), x);
    case CPU_UNARY_NEG:
      return v16_neg(x);
    case CPU_UNARY_ABS:
      return v16_abs(x);
    case CPU_UNARY_SQUARE:
      return v16_mul(x, x);
    case CPU_UNARY_RSQRT:
      return v16_div(v16_set(1.0f), v16_sqrt(x));
    default:
      return v16_activate((cpu_activation)op, x);
  }
}

/* One loop for an operation that is a constant here. */
CPU_INLINE void unary_loop(const cpu_unary op, const float *in, float *out, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    v16_store(out + i, unary_value(op, v16_load(in + i)));
  if (i < n)
    v16_store_part(out + i, n - i, unary_value(op, v16_load_part(in + i, n - i)));
}

#define CPU_UNARY_CASE(op)      \
  case op:                      \
    unary_loop(op, in, out, n); \
    break

CPU_STATIC void unary_share(cpu_unary op, const float *in, float *out, int64_t n) {
  switch ((int)op) {
    CPU_UNARY_CASE(CPU_UNARY_COPY);
    CPU_UNARY_CASE((cpu_unary)CPU_ACT_RELU);
    CPU_UNARY_CASE((cpu_unary)CPU_ACT_GELU_ERF);
    CPU_UNARY_CASE((cpu_unary)CPU_ACT_GELU_TANH);
    CPU_UNARY_CASE((cpu_unary)CPU_ACT_GELU_QUICK);
    CPU_UNARY_CASE((cpu_unary)CPU_ACT_SILU);
    CPU_UNARY_CASE((cpu_unary)CPU_ACT_TANH);
    CPU_UNARY_CASE((cpu_unary)CPU_ACT_SIGMOID);
    CPU_UNARY_CASE((cpu_unary)CPU_ACT_HARD_SWISH);
    CPU_UNARY_CASE(CPU_UNARY_EXP);
    CPU_UNARY_CASE(CPU_UNARY_LOG);
    CPU_UNARY_CASE(CPU_UNARY_ERF);
    CPU_UNARY_CASE(CPU_UNARY_SQRT);
    CPU_UNARY_CASE(CPU_UNARY_RECIPROCAL);
    CPU_UNARY_CASE(CPU_UNARY_NEG);
    CPU_UNARY_CASE(CPU_UNARY_ABS);
    CPU_UNARY_CASE(CPU_UNARY_SQUARE);
    CPU_UNARY_CASE(CPU_UNARY_RSQRT);
    default:
      break;
  }
}

CPU_INLINE v16 binary_value(const cpu_binary op, v16 a, v16 b) {
  switch (op) {
    case CPU_BINARY_SUB:
      return v16_sub(a, b);
    case CPU_BINARY_MUL:
      return v16_mul(a, b);
    case CPU_BINARY_DIV:
      return v16_div(a, b);
    case CPU_BINARY_MIN:
      return v16_min_nan(a, b);
    case CPU_BINARY_MAX:
      return v16_max_nan(a, b);
    default:
      return v16_add(a, b);
  }
}

CPU_INLINE void binary_rows(const cpu_binary op, const cpu_binary_args *g, cpu_range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *a = g->a + r * g->a_row;
    const float *b = g->b + r * g->b_row;
    float *out = g->out + r * g->out_row;
    for (int64_t c = 0; c < g->columns; c += 16) {
      int64_t n = g->columns - c;
      v16 x = g->a_column == 0 ? v16_set(*a) : v16_load_part_or(a + c, n, 0.0f);
      v16 y = g->b_column == 0 ? v16_set(*b) : v16_load_part_or(b + c, n, 0.0f);
      v16 z = binary_value(op, x, y);
      store_row(out + c, n, z);
    }
  }
}

CPU_STATIC void binary_share(const cpu_binary_args *g, cpu_range rows) {
  switch (g->op) {
    case CPU_BINARY_ADD:
      binary_rows(CPU_BINARY_ADD, g, rows);
      break;
    case CPU_BINARY_SUB:
      binary_rows(CPU_BINARY_SUB, g, rows);
      break;
    case CPU_BINARY_MUL:
      binary_rows(CPU_BINARY_MUL, g, rows);
      break;
    case CPU_BINARY_DIV:
      binary_rows(CPU_BINARY_DIV, g, rows);
      break;
    case CPU_BINARY_MIN:
      binary_rows(CPU_BINARY_MIN, g, rows);
      break;
    case CPU_BINARY_MAX:
      binary_rows(CPU_BINARY_MAX, g, rows);
      break;
    default:
      break;
  }
}

CPU_STATIC void bias_share(const cpu_bias_args *g, cpu_range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *in = g->in + r * g->in_row;
    float *out = g->out + r * g->out_row;
    for (int64_t c = 0; c < g->columns; c += 16) {
      int64_t n = g->columns - c;
      v16 v = v16_load_part_or(in + c, n, 0.0f);
      if (g->bias != NULL)
        v = v16_add(v, v16_load_part_or(g->bias + c, n, 0.0f));
      v = v16_activate(g->activation, v);
      if (g->multiplier != NULL)
        v = v16_mul(v, v16_load_part_or(g->multiplier + r * g->multiplier_row + c, n, 0.0f));
      if (g->residual != NULL)
        v = v16_add(v, v16_load_part_or(g->residual + r * g->residual_row + c, n, 0.0f));
      store_row(out + c, n, v);
    }
  }
}

/* ---- storage types ---- */

CPU_INLINE v16 load_as(const cpu_dtype dtype, const void *p, int64_t i) {
  switch (dtype) {
    case CPU_F16:
      return v16_load_f16((const uint16_t *)p + i);
    case CPU_BF16:
      return v16_load_bf16((const uint16_t *)p + i);
    default:
      return v16_load((const float *)p + i);
  }
}

CPU_INLINE void store_as(const cpu_dtype dtype, void *p, int64_t i, v16 v) {
  switch (dtype) {
    case CPU_F16:
      v16_store_f16((uint16_t *)p + i, v);
      break;
    case CPU_BF16:
      v16_store_bf16((uint16_t *)p + i, v);
      break;
    default:
      v16_store((float *)p + i, v);
      break;
  }
}

CPU_STATIC void convert_share(cpu_dtype from, const void *in, cpu_dtype to, void *out, int64_t n) {
  const size_t from_bytes = from == CPU_F32 ? 4 : 2;
  const size_t to_bytes = to == CPU_F32 ? 4 : 2;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    store_as(to, out, i, load_as(from, in, i));
  if (i < n) { /* through buffers, so that the same instructions convert the rest */
    float a[16] = {0};
    float b[16];
    const size_t rest = (size_t)(n - i);
    memcpy(a, (const char *)in + (size_t)i * from_bytes, rest * from_bytes);
    store_as(to, b, 0, load_as(from, a, 0));
    memcpy((char *)out + (size_t)i * to_bytes, b, rest * to_bytes);
  }
}

/* ---- sums and maxima of a row ---- */

typedef struct row_sum {
  v16 part[4];
} row_sum;

CPU_INLINE row_sum row_sum_start(float value) {
  v16 v = v16_set(value);
  return (row_sum){{v, v, v, v}};
}

CPU_INLINE float row_sum_total(const row_sum *s) {
  return v16_sum(v16_add(v16_add(s->part[0], s->part[1]), v16_add(s->part[2], s->part[3])));
}

/* Runs `body` for every vector of a row: c the column, n how many of its elements exist (1 .. 16),
 * q the partial sum it goes to. Both loops are unrolled, so that the partial sums stay in
 * registers. */
#define CPU_ROW_LOOP(columns, body)                            \
  do {                                                         \
    int64_t c = 0;                                             \
    while (c + SUM_STEP <= (columns)) {                        \
      CPU_UNROLL(4)                                            \
      for (int q = 0; q < 4; q++, c += 16) {                   \
        const int64_t n = 16;                                  \
        (void)n;                                               \
        body                                                   \
      }                                                        \
    }                                                          \
    CPU_UNROLL(4)                                              \
    for (int q = 0; q < 4; q++) {                              \
      if (c < (columns)) {                                     \
        const int64_t n = (columns)-c < 16 ? (columns)-c : 16; \
        body c += 16;                                          \
      }                                                        \
    }                                                          \
  } while (0)

CPU_STATIC float row_max(const float *in, int64_t columns) {
  row_sum m = row_sum_start(-INFINITY);
  CPU_ROW_LOOP(columns,
               { m.part[q] = v16_max(v16_load_part_or(in + c, n, -INFINITY), m.part[q]); });
  return v16_largest(v16_max(v16_max(m.part[0], m.part[1]), v16_max(m.part[2], m.part[3])));
}

/* e = exp(in - max) to out, and its sum; v16_max passes over NaN, but exp gives it back. */
CPU_STATIC float row_exp(const float *in, int64_t columns, float max, float *out) {
  const v16 top = v16_set(max);
  row_sum s = row_sum_start(0.0f);
  CPU_ROW_LOOP(columns, {
    v16 e = v16_exp_negative(v16_sub(v16_load_part_or(in + c, n, -INFINITY), top));
    if (n < 16) {
      e = v16_select(v16_first(n), e, v16_zero());
    }
    s.part[q] = v16_add(s.part[q], e);
    if (out != NULL) {
      store_row(out + c, n, e);
    }
  });
  return row_sum_total(&s);
}

CPU_STATIC void softmax_share(const cpu_softmax_args *g, cpu_range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float *in = g->in + r * g->in_row;
    float *out = g->out + r * g->out_row;
    const float max = row_max(in, g->columns);
    const float sum = row_exp(in, g->columns, max, g->log ? NULL : out);
    if (g->log) {
      float log_sum[16];
      v16_store(log_sum, v16_log(v16_set(sum)));
      const v16 shift = v16_set(log_sum[0]);
      CPU_ROW_LOOP(g->columns, {
        (void)q;
        v16 v = v16_sub(v16_load_part_or(in + c, n, 0.0f), v16_set(max));
        store_row(out + c, n, v16_sub(v, shift));
      });
    } else {
      const v16 scale = v16_set(1.0f / sum);
      CPU_ROW_LOOP(g->columns, {
        (void)q;
        store_row(out + c, n, v16_mul(v16_load_part_or(out + c, n, 0.0f), scale));
      });
    }
  }
}

CPU_INLINE v16 reduce_value(const cpu_reduce op, v16 sum, v16 x) {
  switch (op) {
    case CPU_REDUCE_SUM_SQUARE:
    case CPU_REDUCE_L2:
      return v16_fma(x, x, sum);
    case CPU_REDUCE_L1:
      return v16_add(sum, v16_abs(x));
    case CPU_REDUCE_MAX:
      return v16_max_nan(sum, x);
    case CPU_REDUCE_MIN:
      return v16_min_nan(sum, x);
    default:
      return v16_add(sum, x);
  }
}

/* Lanes of a maximum (or minimum) in which a NaN wins. */
CPU_STATIC float largest_nan(v16 a, cpu_reduce op) {
  float lane[16];
  v16_store(lane, a);
  float best = lane[0];
  for (int l = 1; l < 16; ++l) {
    int better = op == CPU_REDUCE_MAX ? lane[l] > best : lane[l] < best;
    best = better || lane[l] != lane[l] ? lane[l] : best;
    if (best != best)
      return best;
  }
  return best;
}

CPU_INLINE float reduce_row(const cpu_reduce op, const float *in, int64_t columns) {
  const float start = op == CPU_REDUCE_MAX ? -INFINITY : op == CPU_REDUCE_MIN ? INFINITY : 0.0f;
  row_sum s = row_sum_start(start);
  CPU_ROW_LOOP(columns,
               { s.part[q] = reduce_value(op, s.part[q], v16_load_part_or(in + c, n, start)); });
  if (op == CPU_REDUCE_MAX || op == CPU_REDUCE_MIN) {
    v16 a = reduce_value(op, s.part[0], s.part[1]);
    v16 b = reduce_value(op, s.part[2], s.part[3]);
    return largest_nan(reduce_value(op, a, b), op);
  }
  float total = row_sum_total(&s);
  if (op == CPU_REDUCE_L2)
    total = sqrtf(total);
  return op == CPU_REDUCE_MEAN ? total / (float)columns : total;
}

#define CPU_REDUCE_CASE(op)                              \
  case op:                                               \
    for (int64_t r = rows.begin; r < rows.end; r++) {    \
      out[r] = reduce_row(op, in + r * in_row, columns); \
    }                                                    \
    break

CPU_STATIC void reduce_share(cpu_reduce op, int64_t columns, const float *in, int64_t in_row,
                             float *out, cpu_range rows) {
  switch (op) {
    CPU_REDUCE_CASE(CPU_REDUCE_SUM);
    CPU_REDUCE_CASE(CPU_REDUCE_MEAN);
    CPU_REDUCE_CASE(CPU_REDUCE_SUM_SQUARE);
    CPU_REDUCE_CASE(CPU_REDUCE_L2);
    CPU_REDUCE_CASE(CPU_REDUCE_L1);
    CPU_REDUCE_CASE(CPU_REDUCE_MAX);
    CPU_REDUCE_CASE(CPU_REDUCE_MIN);
    default:
      break;
  }
}

#endif
