/* SPDX-License-Identifier: Apache-2.0 */
/* The border of kernels.h, continued: convolutions, pools, and norms by channel. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_WINDOW_H_
#define OPIPE_BACKEND_CUDA_KERNELS_WINDOW_H_

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Windows over x [batch, channels, in...] that make y [batch, outputs, out...]; axes that are not
 * there have extent 1. w [outputs, channels / groups, kernel...], bias [outputs] or NULL. Sums run
 * over channels, then the kernel, in rising order, in float (double of double). */
enum { CUDA_WINDOW_AXES = 3 };
typedef struct cuda_window_args {
  void *to;         /* CONV, POOL: y; CONV_GRAD_X, POOL_GRAD: dx; CONV_GRAD_W: dw */
  const void *x;    /* CONV, POOL: x; CONV_GRAD_W: x; POOL_GRAD: x (largest) or NULL (mean) */
  const void *w;    /* CONV, CONV_GRAD_X */
  const void *bias; /* CONV */
  const void *dy;   /* gradients */
  int64_t batch, channels, outputs, groups;
  int64_t in[CUDA_WINDOW_AXES], out[CUDA_WINDOW_AXES], kernel[CUDA_WINDOW_AXES];
  int64_t stride[CUDA_WINDOW_AXES], dilation[CUDA_WINDOW_AXES];
  int64_t begin[CUDA_WINDOW_AXES], end[CUDA_WINDOW_AXES]; /* pads */
  uint32_t mean;       /* pools: 1 the mean, 0 the largest (the first of equals; NaN wins) */
  uint32_t count_pads; /* of a mean: elements of the padded input count */
} cuda_window_args;
bool cuda_plan_conv(const cuda_window_args *args, uint32_t dtype, cuda_launch *out);
bool cuda_plan_conv_grad_x(const cuda_window_args *args, uint32_t dtype, cuda_launch *out);
bool cuda_plan_conv_grad_w(const cuda_window_args *args, uint32_t dtype, cuda_launch *out);
/* outputs == channels */
bool cuda_plan_pool(const cuda_window_args *args, uint32_t dtype, cuda_launch *out);
bool cuda_plan_pool_grad(const cuda_window_args *args, uint32_t dtype, cuda_launch *out);

/* y = (x - mean) / sqrt(variance + epsilon) scale + bias by channel of x [batch, channels, inner];
 * all of one type */
typedef struct cuda_batch_norm_args {
  void *y;
  const void *x, *scale, *bias, *mean, *variance;
  int64_t n, channels, inner; /* n: elements of x */
  double epsilon;
} cuda_batch_norm_args;
bool cuda_plan_batch_norm(const cuda_batch_norm_args *args, uint32_t dtype, cuda_launch *out);

#ifdef __cplusplus
}
#endif
#endif
