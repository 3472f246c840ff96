/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution; see conv.h. The units are panels of 64 output pixels of one (image, group): a thread
 * writes the patches of its panel into its workspace and multiplies all filters with it. */
#include "conv.h"

#include <stddef.h>
#include <string.h>

#include "conv_patches.h"
#include "table.h"

bool cpu_conv_workspace(int32_t threads, int64_t k, uint64_t *out_bytes) {
  return cpu_matmul_batch_workspace(threads, k, out_bytes);
}

/* out[i] = in[first + i * step] for i < count, 0 where that lies outside of [0, width). */
static void copy_strided(const float *in, int64_t width, int64_t first, int64_t step, int64_t count,
                         float *out) {
  int64_t begin = first < 0 ? (step - 1 - first) / step : 0;
  int64_t end = first < width ? (width - first + step - 1) / step : 0;
  end = end < count ? end : count;
  if (begin < end && step == 1) {
    memcpy(out + begin, in + first + begin, (size_t)(end - begin) * sizeof(float));
    return;
  }
  for (int64_t i = begin; i < end; ++i)
    out[i] = in[first + i * step];
}

void cpu_conv_patch_row(const cpu_conv_args *g, const float *plane, const int64_t tap[3],
                        int64_t pixel, int64_t count, float *out) {
  const int64_t column = tap[2] * g->dilation[2] - g->pad_begin[2];
  int64_t z = pixel / g->out_size[2] / g->out_size[1];
  int64_t y = pixel / g->out_size[2] % g->out_size[1];
  int64_t x = pixel % g->out_size[2];
  memset(out, 0, CPU_PANEL * sizeof(float));
  while (count > 0) {
    const int64_t run = g->out_size[2] - x < count ? g->out_size[2] - x : count;
    const int64_t layer = z * g->stride[0] + tap[0] * g->dilation[0] - g->pad_begin[0];
    const int64_t row = y * g->stride[1] + tap[1] * g->dilation[1] - g->pad_begin[1];
    const float *line = plane + (layer * g->in_size[1] + row) * g->in_size[2];
    if (layer >= 0 && layer < g->in_size[0] && row >= 0 && row < g->in_size[1])
      copy_strided(line, g->in_size[2], x * g->stride[2] + column, g->stride[2], run, out);
    out += run;
    count -= run;
    x = 0;
    ++y;
    z += y == g->out_size[1];
    y = y == g->out_size[1] ? 0 : y;
  }
}

/* The patches [K][64] of a panel; `in` is the first plane of the group. */
static void patch_panel(const cpu_conv_args *g, const float *in, int64_t pixel, int64_t count,
                        float *out) {
  const int64_t planes = g->c_in / g->groups;
  for (int64_t c = 0; c < planes; ++c) {
    const float *plane = in + c * cpu_conv_volume(g->in_size);
    for (int64_t t = 0; t < cpu_conv_volume(g->kernel); ++t, out += CPU_PANEL) {
      int64_t tap[3];
      cpu_conv_split(t, g->kernel, tap);
      cpu_conv_patch_row(g, plane, tap, pixel, count, out);
    }
  }
}

typedef struct conv_job {
  const cpu_kernels *kernels;
  const cpu_conv_args *args;
} conv_job;

static void conv_task(void *argument, int32_t worker, int32_t workers) {
  const conv_job *j = argument;
  const cpu_conv_args *g = j->args;
  const int64_t pixels = cpu_conv_volume(g->out_size);
  const int64_t panels = (pixels + CPU_PANEL - 1) / CPU_PANEL;
  const int64_t planes = g->c_in / g->groups;
  const int64_t filters = g->c_out / g->groups;
  const int64_t k = planes * cpu_conv_volume(g->kernel);
  float *panel = (float *)g->workspace + worker * CPU_PANEL * k;
  cpu_range share;
  cpu_team_share(g->images * g->groups * panels, worker, workers, &share.begin, &share.end);
  for (int64_t u = share.begin; u < share.end; ++u) {
    const int64_t pixel = u % panels * CPU_PANEL;
    const int64_t count = pixels - pixel < CPU_PANEL ? pixels - pixel : CPU_PANEL;
    const int64_t group = u / panels % g->groups;
    const int64_t image = u / panels / g->groups;
    const int64_t plane = image * g->c_in + group * planes;
    patch_panel(g, g->in + plane * cpu_conv_volume(g->in_size), pixel, count, panel);
    cpu_epilogue epilogue = {.alpha = 1.0f,
                             .activation = g->activation,
                             .row_bias = g->bias == NULL ? NULL : g->bias + group * filters};
    cpu_product product = {.n = count,
                           .k = k,
                           .a = g->weight + group * filters * k,
                           .a_stride = k,
                           .panels = panel,
                           .c = g->out + (image * g->c_out + group * filters) * pixels + pixel,
                           .c_stride = pixels,
                           .epilogue = &epilogue};
    j->kernels->product(&product, (cpu_range){0, 1}, (cpu_range){0, filters});
  }
}

void cpu_conv(const cpu_exec *x, const cpu_conv_args *args) {
  conv_job job = {x->kernels, args};
  cpu_team_run(x->team, conv_task, &job);
}
