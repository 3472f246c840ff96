/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of a convolution of up to three spatial dimensions, as matrix products. Include
 * kernels.h, not this file.
 *
 * dX[image, group] [Cin/G, pixels] = W'[group] [Cin/G, K] x spread [K, pixels], K = Cout/G * kernel
 * in that order: element (k, pixel) of `spread` is what of dY the tap reads that pixel for, or 0.
 * dW[group] is the sum, over images and blocks of CPU_CHAIN output pixels in rising order, of
 * patches [Cin/G * kernel, pixels] x dY' [pixels, Cout/G], each a chain of the product; of few
 * filters in a group (a depthwise convolution has one), sums of rows by rows.
 */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CONV_GRAD_H_
#define OPIPE_BACKEND_CPU_KERNELS_CONV_GRAD_H_

#include "conv.h"

/* of: sizes alone; its pointers and its activation are not read. */
typedef struct cpu_conv_grad_args {
  cpu_conv_args of;
  const float *dy;    /* [images, c_out, out depth, height, width] */
  const float *other; /* for dX the weights, for dW the input, both as cpu_conv_args has them */
  float *out;         /* of the other's partner's shape */
  void *workspace;    /* of the function that is called */
} cpu_conv_grad_args;

bool cpu_conv_grad_input_workspace(int32_t threads, const cpu_conv_args *of, uint64_t *out_bytes);
void cpu_conv_grad_input(const cpu_exec *x, const cpu_conv_grad_args *args);

bool cpu_conv_grad_weight_workspace(int32_t threads, const cpu_conv_args *of, uint64_t *out_bytes);
void cpu_conv_grad_weight(const cpu_exec *x, const cpu_conv_grad_args *args);

#endif
