/* SPDX-License-Identifier: Apache-2.0 */
/* Windows (window.h): attributes read and checked.
 */
#include "window.h"

static opipe_status read_list(cpu_prep *p, const char *name, uint32_t wanted, int64_t low,
                              const int64_t **out_list) {
  uint32_t n = 0;
  const int64_t *list = opipe_attr_ints(p->node, name, &n);
  if (list != NULL && n != wanted)
    return cpu_invalid(p, "%s has %u entries, not %u", name, n, wanted);
  for (uint32_t i = 0; i < n; ++i) {
    if (list[i] < low || list[i] > INT32_MAX)
      return cpu_invalid(p, "%s holds %lld", name, (long long)list[i]);
  }
  *out_list = list;
  return OPIPE_OK;
}

opipe_status cpu_window_init(cpu_prep *p, cpu_window *window, const opipe_value *in,
                             const opipe_value *out, const int64_t *fallback_kernel) {
  const int64_t *kernel = NULL;
  const int64_t *strides = NULL;
  const int64_t *dilations = NULL;
  const int64_t *pads = NULL;
  if (in->rank < 3 || in->rank > 5 || out->rank != in->rank)
    return cpu_refuse(p, "takes 1 to 3 spatial axes; its input has rank %u", in->rank);
  const uint32_t axes = in->rank - 2;
  CPU_TRY(read_list(p, "kernel_shape", axes, 1, &kernel));
  CPU_TRY(read_list(p, "strides", axes, 1, &strides));
  CPU_TRY(read_list(p, "dilations", axes, 1, &dilations));
  CPU_TRY(read_list(p, "pads", 2 * axes, INT32_MIN, &pads));
  const char *pad = opipe_attr_string(p->node, "auto_pad", "NOTSET");
  if (strcmp(pad, "NOTSET") != 0 && strcmp(pad, "VALID") != 0)
    return cpu_refuse(p, "auto_pad '%.20s' is not resolved", pad);
  kernel = kernel != NULL ? kernel : fallback_kernel;
  if (kernel == NULL)
    return cpu_invalid(p, "has no kernel_shape");
  memset(window, 0, sizeof *window);
  window->axes = axes;
  window->n_in = window->n_out = window->n_kernel = 1;
  for (uint32_t i = 0; i < 3; ++i) {
    const bool there = i + axes >= 3;
    const uint32_t a = there ? i + axes - 3 : 0;
    window->in[i] = there ? in->shape[2 + a] : 1;
    window->out[i] = there ? out->shape[2 + a] : 1;
    window->kernel[i] = there ? kernel[a] : 1;
    window->stride[i] = there && strides != NULL ? strides[a] : 1;
    window->dilation[i] = there && dilations != NULL ? dilations[a] : 1;
    window->begin[i] = there && pads != NULL ? pads[a] : 0;
    window->end[i] = there && pads != NULL ? pads[axes + a] : 0;
    window->n_in *= window->in[i];
    window->n_out *= window->out[i];
    window->n_kernel *= window->kernel[i];
  }
  return OPIPE_OK;
}

cpu_conv_args cpu_window_sizes(const cpu_window *w, int64_t images, int64_t groups, int64_t c_in,
                               int64_t c_out) {
  cpu_conv_args args = {.images = images, .groups = groups, .c_in = c_in, .c_out = c_out};
  args.activation = CPU_ACT_NONE;
  for (int a = 0; a < 3; ++a) {
    args.in_size[a] = w->in[a];
    args.out_size[a] = w->out[a];
    args.kernel[a] = w->kernel[a];
    args.stride[a] = w->stride[a];
    args.dilation[a] = w->dilation[a];
    args.pad_begin[a] = w->begin[a];
  }
  return args;
}
