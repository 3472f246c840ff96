/* SPDX-License-Identifier: Apache-2.0 */
/* Windows that slide over up to three spatial axes: what convolutions and pools share.
 */
#ifndef OPIPE_BACKEND_CPU_OPS_WINDOW_H_
#define OPIPE_BACKEND_CPU_OPS_WINDOW_H_

#include "loop.h"

/* Missing leading axes have extent 1, kernel 1, stride 1, no pads. */
typedef struct cpu_window {
  int64_t in[3], out[3], kernel[3], stride[3], dilation[3], begin[3], end[3];
  int64_t n_in, n_out, n_kernel; /* products */
  uint32_t axes;                 /* that the operator has */
} cpu_window;

/* Reads the attributes kernel_shape, strides, dilations, pads; shapes of input and output (both [N,
 * C, spatial...]) must be of equal rank, 3 to 5. fallback_kernel: NULL, or the weight's extents. */
opipe_status cpu_window_init(cpu_prep *p, cpu_window *window, const opipe_value *in,
                             const opipe_value *out, const int64_t *fallback_kernel);

/* A convolution's arguments without pointers; channels of all groups. */
cpu_conv_args cpu_window_sizes(const cpu_window *w, int64_t images, int64_t groups, int64_t c_in,
                               int64_t c_out);

/* ---- conv_last.c: channels stand last, [N, spatial..., C] (channels_last.h) ---- */

static inline bool cpu_is_last(const opipe_node *node) {
  return opipe_attr_int(node, "channels_last", 0) != 0;
}
opipe_status cpu_prepare_conv_last(cpu_prep *p);
opipe_status cpu_prepare_pool_last(cpu_prep *p);

#endif
