/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the row-wise operations. Rows are dense; sums along a row as in rowwise.h. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ROWGRAD_H_
#define OPIPE_BACKEND_CPU_KERNELS_ROWGRAD_H_

#include <stdbool.h>
#include <stdint.h>

#include "base.h"

/* Layer (rms: RMS) normalisation. With h = (x - mean) / s and g = dy scale:
 *   dx = (g - mean(g) - h mean(g h)) / s          rms: without the means of x and g
 * dx may be dy or x. */
typedef struct cpu_norm_grad_args {
  int64_t rows, columns;
  bool rms;
  float epsilon;
  const float *dy, *x, *scale;
  float *dx;
} cpu_norm_grad_args;

void cpu_norm_grad(const cpu_exec *x, const cpu_norm_grad_args *args);

/* dscale[c] += dy[0, c] h[0, c] + ..., dbias[c] += dy[0, c] + ..., one after the other; NULL: not
 * wanted. workspace: 2 floats a row. */
typedef struct cpu_norm_grad_scale_args {
  int64_t rows, columns;
  bool rms;
  float epsilon;
  const float *dy, *x;
  float *dscale, *dbias;
  float *workspace;
} cpu_norm_grad_scale_args;

void cpu_norm_grad_scale(const cpu_exec *x, const cpu_norm_grad_scale_args *args);

/* dx = y (dy - sum(dy y)); where y is 0 or NaN, 0 whatever dy is. log: dx = dy - exp(y) sum(dy). dx
 * may be dy or y. */
void cpu_softmax_grad(const cpu_exec *x, bool log, int64_t rows, int64_t columns, const float *dy,
                      const float *y, float *dx);

/* dx = dy f'(x), element by element; RELU, GELU_*, SILU, TANH, SIGMOID. dx may be dy or x. */
void cpu_activation_grad(const cpu_exec *x, cpu_activation activation, const float *dy,
                         const float *in, float *dx, int64_t n);

/* dx[r, c] = dl (softmax(x)[r, c] - each - (c == label[r] ? 1 - smoothing : 0)), each = smoothing /
 * columns. dl: one for all rows, or one a row. label -1: the row is 0. dx may be x. */
typedef struct cpu_loss_grad_args {
  int64_t rows, columns;
  const float *dl;
  bool dl_rows;
  float smoothing;
  const float *x;
  const int64_t *label; /* [rows], -1 or checked */
  float *dx;
} cpu_loss_grad_args;

void cpu_loss_grad(const cpu_exec *x, const cpu_loss_grad_args *args);

#endif
