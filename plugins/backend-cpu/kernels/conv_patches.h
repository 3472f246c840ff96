/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by convolutions with channels first and their gradients: numbers of taps and pixels, and
 * rows of patches. Private to conv.c and conv_grad.c. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CONV_PATCHES_H_
#define OPIPE_BACKEND_CPU_KERNELS_CONV_PATCHES_H_

#include "conv.h"
#include "matmul.h"

static inline int64_t cpu_conv_volume(const int64_t size[3]) {
  return size[0] * size[1] * size[2];
}

/* The three coordinates of number i. */
static inline void cpu_conv_split(int64_t i, const int64_t size[3], int64_t out[3]) {
  out[0] = i / size[2] / size[1];
  out[1] = i / size[2] % size[1];
  out[2] = i % size[2];
}

/* The input under one tap of the kernel for pixels [pixel, pixel + count) of the result, count <=
 * CPU_PANEL; zeros behind, out [CPU_PANEL]. plane: one channel of an image. */
void cpu_conv_patch_row(const cpu_conv_args *g, const float *plane, const int64_t tap[3],
                        int64_t pixel, int64_t count, float *out);

#endif
