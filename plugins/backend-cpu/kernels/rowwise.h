/* SPDX-License-Identifier: Apache-2.0 */
/* Operations along rows and element by element.
 *
 * Order of sums: element i of a row goes to partial sum i mod 64, in rising order; partial sums
 * s[0..63] are added as t[l] = (s[l] + s[16+l]) + (s[32+l] + s[48+l]), l < 16, then lanes l and
 * l+8, l+4, l+2, l+1. Missing elements count as 0 (of a maximum as minus infinity). */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ROWWISE_H_
#define OPIPE_BACKEND_CPU_KERNELS_ROWWISE_H_

#include <stdbool.h>
#include <stdint.h>

#include "base.h"

/* ---- element by element
 * ---------------------------------------------------------------------------------------- */

typedef enum cpu_unary {
  CPU_UNARY_COPY = 0, /* values 0 .. CPU_ACT_COUNT - 1 are those of cpu_activation */
  CPU_UNARY_EXP = 16,
  CPU_UNARY_LOG = 17,
  CPU_UNARY_ERF = 18,
  CPU_UNARY_SQRT = 19,
  CPU_UNARY_RECIPROCAL = 20,
  CPU_UNARY_NEG = 21,
  CPU_UNARY_ABS = 22,
  CPU_UNARY_SQUARE = 23,
  CPU_UNARY_RSQRT = 24 /* 1 / sqrt(x), both rounded */
} cpu_unary;

/* y[i] = op(x[i]), i < n. y may be x. */
void cpu_unary_f32(const cpu_exec *x, cpu_unary op, const float *in, float *out, int64_t n);

typedef enum cpu_binary {
  CPU_BINARY_ADD = 0,
  CPU_BINARY_SUB = 1,
  CPU_BINARY_MUL = 2,
  CPU_BINARY_DIV = 3,
  CPU_BINARY_MIN = 4, /* a NaN on either side gives NaN */
  CPU_BINARY_MAX = 5
} cpu_binary;

/* out[r, c] = op(a[r, c], b[r, c]). Row strides of a and b are free (0 broadcasts a row), their
 * column strides are 0 (one value per row) or 1. out may be a or b where the strides are the same.
 */
typedef struct cpu_binary_args {
  cpu_binary op;
  int64_t rows, columns;
  const float *a;
  int64_t a_row, a_column;
  const float *b;
  int64_t b_row, b_column;
  float *out;
  int64_t out_row;
} cpu_binary_args;

void cpu_binary_f32(const cpu_exec *x, const cpu_binary_args *args);

/* out = residual + activation(in + bias) * multiplier, every part optional (NULL), bits as in
 * cpu_epilogue of alpha 1. out may be in. */
typedef struct cpu_bias_args {
  int64_t rows, columns;
  const float *in;
  int64_t in_row;
  const float *bias; /* [columns] */
  cpu_activation activation;
  const float *multiplier;
  int64_t multiplier_row;
  const float *residual;
  int64_t residual_row;
  float *out;
  int64_t out_row;
} cpu_bias_args;

void cpu_bias_activation(const cpu_exec *x, const cpu_bias_args *args);

/* Storage conversion of n elements, round to nearest even; half-precision subnormals are kept,
 * overflow gives infinity. */
void cpu_convert(const cpu_exec *x, cpu_dtype from, const void *in, cpu_dtype to, void *out,
                 int64_t n);

/* ---- along the last axis
 * --------------------------------------------------------------------------------------- */

/* Softmax of every row: e = exp(in - max), out = e * (1 / sum e); or its logarithm, (in - max) -
 * log(sum e). A row of minus infinities gives NaN. out may be in. */
typedef struct cpu_softmax_args {
  int64_t rows, columns;
  bool log;
  const float *in;
  int64_t in_row;
  float *out;
  int64_t out_row;
} cpu_softmax_args;

void cpu_softmax(const cpu_exec *x, const cpu_softmax_args *args);

/* Layer and RMS normalisation, with the additions of SkipLayerNormalization in front:
 *   z = in + skip + skip_bias               (absent ones left out; z goes to `sum` when not NULL)
 *   layer: d = z - mean(z), out = d * (1 / sqrt(mean(d d) + epsilon)) * scale + bias
 *   RMS:   out = z * (1 / sqrt(mean(z z) + epsilon)) * scale + bias
 * A mean is the sum (order above, squares by fused multiply-add) times 1/columns. Scale and bias
 * are one fused multiply-add. out may be in or skip; sum may be in or skip; they differ from each
 * other.
 */
typedef struct cpu_norm_args {
  int64_t rows, columns;
  bool rms;
  float epsilon;
  const float *in;
  int64_t in_row;
  const float *skip; /* [rows, columns], NULL: none; a row stride of 0 broadcasts */
  int64_t skip_row;
  const float *skip_bias; /* [columns], NULL: none */
  const float *scale;     /* [columns], NULL: none */
  const float *bias;      /* [columns], NULL: none */
  float *out;
  int64_t out_row;
  float *sum; /* z, [rows, columns], NULL: not wanted */
  int64_t sum_row;
  float *mean;    /* [rows], NULL: not wanted; layer only */
  float *inv_std; /* [rows], NULL: not wanted */
} cpu_norm_args;

void cpu_norm(const cpu_exec *x, const cpu_norm_args *args);

typedef enum cpu_reduce {
  CPU_REDUCE_SUM = 0,
  CPU_REDUCE_MEAN = 1, /* sum / columns */
  CPU_REDUCE_SUM_SQUARE = 2,
  CPU_REDUCE_L2 = 3, /* sqrt of it */
  CPU_REDUCE_L1 = 4,
  CPU_REDUCE_MAX = 5, /* a NaN gives NaN */
  CPU_REDUCE_MIN = 6
} cpu_reduce;

/* out[r] = reduction of in[r, 0 .. columns). Without columns: 0, MEAN NaN, MAX and MIN the infinity
 * they start from. */
void cpu_reduce_rows(const cpu_exec *x, cpu_reduce op, int64_t rows, int64_t columns,
                     const float *in, int64_t in_row, float *out);

/* ---- positions and tables
 * -------------------------------------------------------------------------------------- */

/* Rotary embedding of x[batch, heads, rows, dim]: of the first rotary_dim elements (even), pairs
 * (a, b) become (a cos - b sin, b cos + a sin), two products and one addition each. Pairs are (i, i
 * + rotary_dim/2), or (2i, 2i + 1) when interleaved. The rest is copied. cos and sin hold
 * rotary_dim/2 values a row; the row of (batch b, row r) is positions[b * position_batch + r] when
 * positions is given, else table + b * table_batch + r * table_row. out may be in. */
typedef struct cpu_rotary_args {
  int64_t batch, heads, rows, dim, rotary_dim;
  bool interleaved;
  const float *in;
  int64_t in_stride[3]; /* batch, head, row */
  float *out;
  int64_t out_stride[3];
  const float *cos, *sin;
  int64_t table_batch, table_row; /* strides, the same for cos and sin */
  const int64_t *positions;       /* NULL: none; the caller has checked them against the table */
  int64_t position_batch;
} cpu_rotary_args;

void cpu_rotary(const cpu_exec *x, const cpu_rotary_args *args);

/* out[i] = table[index(i)] for rows of row_bytes; negative indices count from the end. `indices`
 * are int64_t, or int32_t when wide is false. Returns -1, or the first i whose index is out of
 * range (rows before it may have been written). */
int64_t cpu_gather_rows(const cpu_exec *x, const void *table, int64_t table_rows, int64_t row_bytes,
                        const void *indices, bool wide, int64_t count, void *out);

#endif
