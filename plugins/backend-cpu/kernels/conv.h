/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution of up to three spatial dimensions, as a matrix product. Include kernels.h, not this
 * file.
 *
 * Y[image, group] [Cout/G, pixels] = W[group] [Cout/G, K] x patches [K, pixels], K = Cin/G * kernel
 * depth * height * width in that order (the order of W's storage). Patches are written straight
 * into panels of 64 pixels, one panel a thread at a time, so that W needs no packing and Y comes
 * out as stored.
 */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CONV_H_
#define OPIPE_BACKEND_CPU_KERNELS_CONV_H_

#include <stdbool.h>
#include <stdint.h>

#include "base.h"

/* Fewer than three: size, kernel, stride and dilation of the depth (and the height) are 1, pads 0.
 */
typedef struct cpu_conv_args {
  int64_t images, groups;
  int64_t c_in, c_out; /* of all groups together */
  int64_t in_size[3];  /* depth, height, width */
  int64_t out_size[3]; /* as the operator's shape rule says */
  int64_t kernel[3];
  int64_t stride[3];
  int64_t dilation[3];
  int64_t pad_begin[3]; /* front, top, left; what lies beyond the input is zero, so the end pads
                           follow from out_size */
  const float *in;      /* [images, c_in, depth, height, width] */
  const float *weight;  /* [c_out, c_in/groups, kernel depth, height, width] */
  const float *bias;    /* [c_out], NULL: none */
  cpu_activation activation;
  float *out;      /* [images, c_out, out depth, height, width] */
  void *workspace; /* cpu_conv_workspace */
} cpu_conv_args;

/* k = c_in / groups * elements of the kernel. */
bool cpu_conv_workspace(int32_t threads, int64_t k, uint64_t *out_bytes);
void cpu_conv(const cpu_exec *x, const cpu_conv_args *args);

#endif
