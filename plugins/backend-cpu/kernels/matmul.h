/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products.
 *
 * Order of additions: an element of C is a sum of chains of fused multiply-adds, s = fma(a, b, s)
 * from 0 over CPU_CHAIN consecutive indices of K counted from 0, the chains added in rising order.
 * On that sum the epilogue works, in the order of its fields. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_MATMUL_H_
#define OPIPE_BACKEND_CPU_KERNELS_MATMUL_H_

#include <stdbool.h>
#include <stdint.h>

#include "base.h"
#include "dots.h"

enum { CPU_CHAIN = 256, CPU_PANEL = 64 };

/* Layouts of a packed B[K,N]: [ceil(N/64)] panels of [K][64], columns beyond N zero. In panels of
 * bf16 two steps of a column lie side by side, [K / 2][64][2], as instructions that multiply pairs
 * take them; behind them, of an odd K, the last step, [64]. */
typedef enum cpu_pack_format {
  CPU_PACK_F32_PANEL = 1, /* weights, gradients, optimizer state alike */
  CPU_PACK_F16_PANEL = 2, /* of fp16 sources: elements stay as they are, and become fp32 where a
                             product reads them */
  CPU_PACK_BF16_PANEL = 3 /* the same of bf16 */
} cpu_pack_format;

/* Where step k of K and column u of a panel of bf16 lie in it. */
static inline int64_t cpu_pair_at(int64_t depth, int64_t k, int64_t u) {
  return (k | 1) < depth ? (k / 2 * CPU_PANEL + u) * 2 + k % 2 : k * CPU_PANEL + u;
}

typedef struct cpu_packed {
  cpu_pack_format format;
  int64_t k, n;     /* of B, without padding */
  const void *data; /* CPU_ALIGN_BYTES-aligned, cpu_pack_bytes long; borrowed */
} cpu_packed;

/* B[K,N] as it is stored: element (k, n) at data[k * k_stride + n * n_stride]. Row-major:
 * n_stride 1. A weight stored transposed, [N,K]: k_stride 1. */
typedef struct cpu_pack_source {
  const void *data;
  cpu_dtype dtype;
  int64_t k, n;
  int64_t k_stride, n_stride;
  int64_t depth; /* rows of a whole panel, where these are k of them; 0: k */
} cpu_pack_source;

/* Bytes of B[k,n] in `format`; false when that does not fit 64 bits. Row-independent of threads and
 * instruction set. */
bool cpu_pack_bytes(cpu_pack_format format, int64_t k, int64_t n, uint64_t *out_bytes);

/* Packs a matrix into `packed` (cpu_pack_bytes; of a part in depth: where its first row,
 * an even one, goes).
 * Splits over the team by panels. */
void cpu_pack(const cpu_exec *x, cpu_pack_format format, const cpu_pack_source *source,
              void *packed);

/* The inverse of CPU_PACK_F32_PANEL, to row-major fp32: out[k * out_stride + n]. */
void cpu_unpack(const cpu_exec *x, const cpu_packed *packed, float *out, int64_t out_stride);

/* Steps applied to a finished sum s, in this order: v = alpha s; v += bias[n]; v += row_bias[m]; v
 * = activation(v); v *= multiplier[m, n]; v += residual[m, n]; with relu_last v = relu(v). A NULL
 * pointer leaves its step out. A row stride of 0 broadcasts a row. */
typedef struct cpu_epilogue {
  float alpha; /* 1: none */
  cpu_activation activation;
  const float *bias;       /* [N] */
  const float *row_bias;   /* [M] */
  const float *multiplier; /* [M,N]: the other half of a gated MLP */
  int64_t multiplier_stride;
  const float *residual; /* [M,N] */
  int64_t residual_stride;
  bool relu_last;
} cpu_epilogue;

typedef struct cpu_matmul_args {
  int64_t m;
  const float *a; /* [M,K] */
  int64_t a_stride;
  cpu_packed b; /* [K,N] */
  float *c;     /* [M,N] */
  int64_t c_stride;
  const cpu_epilogue *epilogue; /* NULL: none */
  void *workspace;              /* cpu_matmul_workspace; NULL where that is 0 */
  const cpu_dots *dots;   /* A is bf16 and multiplied as dots.h says, by panels of bf16, or of fp32
                             that are rounded to it; NULL: in fp32 */
  const uint16_t *a_half; /* with dots: [M,K] in place of a */
} cpu_matmul_args;

/* Bytes of the workspace: none for fp32. */
bool cpu_matmul_workspace(int32_t threads, cpu_pack_format format, uint64_t *out_bytes);

/* C = epilogue(A B), B packed once. C may not overlap any input, the residual neither. K = 0 gives
 * epilogue(0). The bits are those of the fp32 format, whichever B has. */
void cpu_matmul(const cpu_exec *x, const cpu_matmul_args *args);

/* Products of activations with activations, for i0 < batch[0], i1 < batch[1]; stride 0 broadcasts
 * over that index. A[i0,i1] [M,K] at a + i0 a_batch[0] + i1 a_batch[1], rows a_stride apart,
 * columns adjacent B[i0,i1] [K,N], any strides (n_stride 1: as stored; k_stride 1: stored
 * transposed) C[i0,i1] [M,N], columns adjacent Of the epilogue alpha, bias, row_bias and activation
 * are used; multiplier and residual must be NULL. */
typedef struct cpu_matmul_batch_args {
  int64_t batch[2];
  int64_t m, n, k;
  const float *a;
  int64_t a_batch[2], a_stride;
  const float *b;
  int64_t b_batch[2], b_k_stride, b_n_stride;
  float *c;
  int64_t c_batch[2], c_stride;
  const cpu_epilogue *epilogue; /* NULL: none */
  void *workspace;              /* cpu_matmul_batch_workspace */
} cpu_matmul_batch_args;

bool cpu_matmul_batch_workspace(int32_t threads, int64_t k, uint64_t *out_bytes);
void cpu_matmul_batch(const cpu_exec *x, const cpu_matmul_batch_args *args);

/* ---- gradients: everything from, and into, the panels of the forward product ---- */

/* dX[M,K] = epilogue(dY[M,N] W^T), W[K,N] packed. Order of additions as above, over N. */
typedef struct cpu_matmul_dx_args {
  int64_t m;
  const float *dy; /* [M,N] */
  int64_t dy_stride;
  cpu_packed w; /* [K,N] */
  float *dx;    /* [M,K], overlapping nothing */
  int64_t dx_stride;
  const cpu_epilogue
      *epilogue;           /* NULL: none; [N] and [M,N] of its fields mean [K] and [M,K] here */
  void *workspace;         /* cpu_matmul_dx_workspace */
  const cpu_dots *dots;    /* dY is bf16 and multiplied as dots.h says; NULL: in fp32 */
  const uint16_t *dy_half; /* with dots: [M,N] in place of dy */
} cpu_matmul_dx_args;

bool cpu_matmul_dx_workspace(int32_t threads, uint64_t *out_bytes);
void cpu_matmul_dx(const cpu_exec *x, const cpu_matmul_dx_args *args);

/* dW[K,N] += X[M,K]^T dY[M,N] in the layout of the packed W. Every element is one chain of fused
 * multiply-adds over the rows, going on from what stands there: rows in several calls give the bits
 * of one call, with dots where all but the last have an even number of them (tiles: a multiple of
 * CPU_DOTS_STEPS). (Columns beyond N take part too: they stay 0 if they were and X is finite.)
 */
typedef struct cpu_matmul_dw_args {
  int64_t m, k, n;
  const float *x; /* [M,K] */
  int64_t x_stride;
  const float *dy; /* [M,N] */
  int64_t dy_stride;
  cpu_pack_format format;
  void *dw;             /* cpu_pack_bytes(format, k, n) */
  void *workspace;      /* cpu_matmul_dw_workspace */
  const cpu_dots *dots; /* X and dY are bf16 and multiplied as dots.h says; NULL: in fp32 */
  const uint16_t *x_half, *dy_half; /* with dots: in place of x and dy */
} cpu_matmul_dw_args;

bool cpu_matmul_dw_workspace(int32_t threads, int64_t k, uint64_t *out_bytes);
void cpu_matmul_dw(const cpu_exec *x, const cpu_matmul_dw_args *args);

/* out[c] += in[0, c] + in[1, c] + ..., one addition after the other: gradients of a bias. */
void cpu_sum_columns(const cpu_exec *x, const float *in, int64_t in_row, int64_t rows,
                     int64_t columns, float *out);

/* ---- the batched product in fp64, without an epilogue: C = alpha A B ---- */

typedef struct cpu_matmul_f64_args {
  int64_t batch[2];
  int64_t m, n, k;
  double alpha; /* 1: none */
  const double *a;
  int64_t a_batch[2], a_stride;
  const double *b;
  int64_t b_batch[2], b_k_stride, b_n_stride;
  double *c;
  int64_t c_batch[2], c_stride;
  void *workspace; /* cpu_matmul_f64_workspace */
} cpu_matmul_f64_args;

bool cpu_matmul_f64_workspace(int32_t threads, int64_t k, uint64_t *out_bytes);
void cpu_matmul_f64(const cpu_exec *x, const cpu_matmul_f64_args *args);

/* out[j * out_stride + i] = in[i * in_stride + j], i < rows, j < columns: for the rare operand A
 * stored transposed. */
void cpu_transpose(const cpu_exec *x, const float *in, int64_t in_stride, int64_t rows,
                   int64_t columns, float *out, int64_t out_stride);

#endif
