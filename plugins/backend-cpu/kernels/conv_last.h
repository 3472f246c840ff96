/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution and pooling of tensors whose channels stand last. Include kernels.h, not this file.
 *
 * Y [pixels, Cout] = patches [pixels, K] x W [K, Cout], K = kernel height * kernel width * Cin in
 * that order: with W packed like the weights of any product, and each output pixel a row, so that
 * bits of a pixel depend on no other. With one channel a group (depthwise) lanes are channels, and
 * a sum is one chain of fused multiply-adds over the taps inside the input, in rising order.
 */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CONV_LAST_H_
#define OPIPE_BACKEND_CPU_KERNELS_CONV_LAST_H_

#include <stdbool.h>
#include <stdint.h>

#include "base.h"

/* One spatial dimension: the height's size, kernel, stride and dilation 1, its pad 0. */
typedef struct cpu_conv_last_args {
  int64_t images, groups;
  int64_t c_in, c_out; /* of all groups together */
  int64_t in_size[2];  /* height, width */
  int64_t out_size[2];
  int64_t kernel[2], stride[2], dilation[2];
  int64_t pad_begin[2]; /* top, left */
  const float *in;      /* [images, height, width, c_in] */
  const float *weight; /* [c_out, c_in/groups, kernel height, kernel width]; NULL where packed is */
  const void *packed;  /* of one group, or depthwise: cpu_conv_pack; NULL: packed in this call */
  const float *bias;   /* [c_out], NULL: none */
  cpu_activation activation;
  const float *multiplier; /* of out's shape, NULL: none; as in cpu_epilogue */
  const float *residual;   /* the same */
  bool relu_last;          /* as in cpu_epilogue */
  float *out;              /* [images, out height, out width, c_out] */
  void *workspace;         /* cpu_conv_last_workspace */
} cpu_conv_last_args;

/* Bytes of packed weights [c_out, c_in, kernel...] of one group, depthwise [channels, 1,
 * kernel...]; taps: of the kernel. */
bool cpu_conv_pack_bytes(int64_t c_out, int64_t c_in, int64_t taps, uint64_t *out_bytes);
void cpu_conv_pack(const cpu_exec *x, cpu_dtype dtype, const void *weight, int64_t c_out,
                   int64_t c_in, int64_t taps, void *packed);

/* Depends on sizes, groups and kernel alone, and on whether `packed` is NULL; no other pointer is
 * looked at. */
bool cpu_conv_last_workspace(int32_t threads, const cpu_conv_last_args *args, uint64_t *out_bytes);
void cpu_conv_last(const cpu_exec *x, const cpu_conv_last_args *args);

/* Largest or mean element of each channel in a window; a NaN makes the largest NaN. A mean's
 * elements are added in rising order, and divided by the count of those inside (count_pads: of the
 * window, clipped to the padded input). */
typedef struct cpu_pool_last_args {
  int64_t images, channels;
  int64_t in_size[2], out_size[2];
  int64_t kernel[2], stride[2], dilation[2];
  int64_t pad_begin[2], pad_end[2];
  bool average, count_pads;
  const float *in;
  float *out;
} cpu_pool_last_args;

void cpu_pool_last(const cpu_exec *x, const cpu_pool_last_args *args);

#endif
