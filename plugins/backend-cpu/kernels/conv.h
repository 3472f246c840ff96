/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution of one or two spatial dimensions, as a matrix product. Include kernels.h, not this
 * file.
 *
 * Y[image, group] [Cout/G, pixels] = W[group] [Cout/G, K] x patches [K, pixels], K = Cin/G * kernel
 * height * width in that order (the order of W's storage). Patches are written straight into panels
 * of 64 pixels, one panel a thread at a time, so that W needs no packing and Y comes out as stored.
 */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CONV_H_
#define OPIPE_BACKEND_CPU_KERNELS_CONV_H_

#include <stdbool.h>
#include <stdint.h>

#include "base.h"

/* One spatial dimension: set the height's size, kernel, stride and dilation to 1 and its pads to 0.
 */
typedef struct cpu_conv_args {
  int64_t images, groups;
  int64_t c_in, c_out; /* of all groups together */
  int64_t in_size[2];  /* height, width */
  int64_t out_size[2]; /* as the operator's shape rule says */
  int64_t kernel[2];
  int64_t stride[2];
  int64_t dilation[2];
  int64_t pad_begin[2]; /* top, left; what lies beyond the input is zero, so the end pads follow
                           from out_size */
  const float *in;      /* [images, c_in, height, width] */
  const float *weight;  /* [c_out, c_in/groups, kernel height, kernel width] */
  const float *bias;    /* [c_out], NULL: none */
  cpu_activation activation;
  float *out;      /* [images, c_out, out height, out width] */
  void *workspace; /* cpu_conv_workspace */
} cpu_conv_args;

/* k = c_in / groups * kernel height * kernel width. */
bool cpu_conv_workspace(int32_t threads, int64_t k, uint64_t *out_bytes);
void cpu_conv(const cpu_exec *x, const cpu_conv_args *args);

#endif
