/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolution and pooling with channels last: lanes are channels. A unit is one line of
 * output pixels by a block of CPU_CHANNEL_BLOCK channels. And the patches of other convolutions. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CONV_LAST_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_CONV_LAST_BODY_H_

#include "table.h"
#include "vmath_body.h"

/* Taps [*begin, *end) of a window that begins at `first` and lie inside 0 .. n. */
CPU_INLINE void taps_inside(int64_t first, int64_t kernel, int64_t dilation, int64_t n,
                            int64_t *begin, int64_t *end) {
  *begin = first < 0 ? (dilation - 1 - first) / dilation : 0;
  *end = first < n ? (n - first + dilation - 1) / dilation : 0;
  *end = *end < kernel ? *end : kernel;
  *begin = *begin < *end ? *begin : *end;
}

CPU_INLINE v16 load_channels(const float *p, int64_t n) {
  return n >= 16 ? v16_load(p) : v16_load_part(p, n);
}

/* Sixteen channels (n of them there) of `count` output pixels that read the same taps, kx[0] to
 * kx[1]; w: of tap 0. Each pixel's sum is one chain, whatever the count. */
CPU_INLINE void depthwise_pixels(const cpu_conv_last_args *g, const float *image, const float *w,
                                 const int64_t at[2], const int64_t ky[2], const int64_t kx[2],
                                 int64_t n, const int count, v16 *sum) {
  const int64_t next = g->stride[1] * g->c_in;
  CPU_UNROLL(4)
  for (int i = 0; i < count; ++i)
    sum[i] = v16_zero();
  for (int64_t y = ky[0]; y < ky[1]; ++y) {
    const float *line = image + (at[0] + y * g->dilation[0]) * g->in_size[1] * g->c_in;
    for (int64_t x = kx[0]; x < kx[1]; ++x) {
      const float *in = line + (at[1] + x * g->dilation[1]) * g->c_in;
      const v16 by = load_channels(w + (y * g->kernel[1] + x) * CPU_PANEL, n);
      CPU_UNROLL(4)
      for (int i = 0; i < count; ++i)
        sum[i] = v16_fma(load_channels(in + i * next, n), by, sum[i]);
    }
  }
}

/* Four pixels side by side whose `taps` (a constant of 5 at most) in a line all lie inside, stride
 * and dilation 1: every input is read once. */
CPU_INLINE void depthwise_near(const cpu_conv_last_args *g, const float *image, const float *w,
                               const int64_t at[2], const int64_t ky[2], const int taps, v16 *sum) {
  CPU_UNROLL(4)
  for (int i = 0; i < 4; ++i)
    sum[i] = v16_zero();
  for (int64_t y = ky[0]; y < ky[1]; ++y) {
    const float *in = image + ((at[0] + y * g->dilation[0]) * g->in_size[1] + at[1]) * g->c_in;
    v16 by[5];
    CPU_UNROLL(5)
    for (int x = 0; x < taps; ++x)
      by[x] = v16_load(w + (y * taps + x) * CPU_PANEL);
    CPU_UNROLL(8)
    for (int p = 0; p < taps + 3; ++p) {
      const v16 v = v16_load(in + p * g->c_in);
      CPU_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        if (p >= i && p < i + taps)
          sum[i] = v16_fma(v, by[p - i], sum[i]);
      }
    }
  }
}

/* One pixel, sixteen channels `vectors` times (a constant), all of them there. */
CPU_INLINE void depthwise_vectors(const cpu_conv_last_args *g, const float *image, const float *w,
                                  const int64_t at[2], const int64_t ky[2], const int64_t kx[2],
                                  const int vectors, v16 *sum) {
  CPU_UNROLL(4)
  for (int v = 0; v < vectors; ++v)
    sum[v] = v16_zero();
  for (int64_t y = ky[0]; y < ky[1]; ++y) {
    const float *line = image + (at[0] + y * g->dilation[0]) * g->in_size[1] * g->c_in;
    for (int64_t x = kx[0]; x < kx[1]; ++x) {
      const float *in = line + (at[1] + x * g->dilation[1]) * g->c_in;
      const float *by = w + (y * g->kernel[1] + x) * CPU_PANEL;
      CPU_UNROLL(4)
      for (int v = 0; v < vectors; ++v)
        sum[v] = v16_fma(v16_load(in + 16 * v), v16_load(by + 16 * v), sum[v]);
    }
  }
}

/* What a product's epilogue does, on channels. */
CPU_INLINE v16 finish_channels(const cpu_conv_last_args *g, v16 v, int64_t c, int64_t at,
                               int64_t n) {
  if (g->bias != NULL)
    v = v16_add(v, load_channels(g->bias + c, n));
  if (g->activation != CPU_ACT_NONE)
    v = v16_activate(g->activation, v);
  if (g->multiplier != NULL)
    v = v16_mul(v, load_channels(g->multiplier + at, n));
  if (g->residual != NULL)
    v = v16_add(v, load_channels(g->residual + at, n));
  return v;
}

CPU_INLINE void store_channels(float *p, v16 v, int64_t n) {
  if (n >= 16)
    v16_store(p, v);
  else
    v16_store_part(p, n, v);
}

/* Channels [c, c + n) of an output pixel. */
CPU_INLINE void put_channels(const cpu_conv_last_args *g, v16 sum, int64_t pixel, int64_t c,
                             int64_t n) {
  const int64_t to = pixel * g->c_in + c;
  store_channels(g->out + to, finish_channels(g, sum, c, to, n), n);
}

/* Four pixels whose whole windows lie inside their line, n channels of at most sixteen. */
CPU_INLINE void depthwise_four(const cpu_conv_last_args *g, const float *image, const float *w,
                               const int64_t at[2], const int64_t ky[2], const int64_t kx[2],
                               int64_t n, v16 *sum) {
  const bool near = n == 16 && g->stride[1] == 1 && g->dilation[1] == 1;
  if (near && g->kernel[1] == 3)
    depthwise_near(g, image, w, at, ky, 3, sum);
  else if (near && g->kernel[1] == 5)
    depthwise_near(g, image, w, at, ky, 5, sum);
  else if (n == 16)
    depthwise_pixels(g, image, w, at, ky, kx, 16, 4, sum);
  else
    depthwise_pixels(g, image, w, at, ky, kx, n, 4, sum);
}

/* A line of output pixels, channels [c, c + n) of a block: pixels whose whole window lies inside
 * the line four at a time, others with all channels at once. image, w: of channel c. */
CPU_STATIC void depthwise_line(const cpu_conv_last_args *g, const float *image, const float *w,
                               int64_t line, int64_t c, int64_t n) {
  int64_t at[2] = {line % g->out_size[0] * g->stride[0] - g->pad_begin[0], 0}, ky[2], kx[2];
  const int64_t reach = 3 * g->stride[1] + (g->kernel[1] - 1) * g->dilation[1];
  v16 sum[4];
  taps_inside(at[0], g->kernel[0], g->dilation[0], g->in_size[0], &ky[0], &ky[1]);
  for (int64_t x = 0; x < g->out_size[1];) {
    const int64_t pixel = line * g->out_size[1] + x;
    at[1] = x * g->stride[1] - g->pad_begin[1];
    taps_inside(at[1], g->kernel[1], g->dilation[1], g->in_size[1], &kx[0], &kx[1]);
    const bool four = x + 4 <= g->out_size[1] && at[1] >= 0 && at[1] + reach < g->in_size[1];
    int64_t u = 0;
    if (!four && n == CPU_CHANNEL_BLOCK) {
      depthwise_vectors(g, image, w, at, ky, kx, 4, sum);
      for (; u < n; u += 16)
        put_channels(g, sum[u / 16], pixel, c + u, 16);
    }
    for (; u < n; u += 16) {
      const int64_t left = n - u < 16 ? n - u : 16;
      if (four)
        depthwise_four(g, image + u, w + u, at, ky, kx, left, sum);
      else
        depthwise_pixels(g, image + u, w + u, at, ky, kx, left, 1, sum);
      for (int64_t i = 0; i < (four ? 4 : 1); ++i)
        put_channels(g, sum[i], pixel + i, c + u, left);
    }
    x += four ? 4 : 1;
  }
}

/* panels: [blocks][taps][CPU_PANEL] */
CPU_STATIC void depthwise_share(const cpu_conv_last_args *g, const float *panels, cpu_range units) {
  const int64_t blocks = (g->c_in + CPU_CHANNEL_BLOCK - 1) / CPU_CHANNEL_BLOCK;
  const int64_t panel = g->kernel[0] * g->kernel[1] * CPU_PANEL;
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int64_t line = u / blocks, block = u % blocks, c = block * CPU_CHANNEL_BLOCK;
    const int64_t n = g->c_in - c < CPU_CHANNEL_BLOCK ? g->c_in - c : CPU_CHANNEL_BLOCK;
    const float *image = g->in + line / g->out_size[0] * g->in_size[0] * g->in_size[1] * g->c_in;
    depthwise_line(g, image + c, panels + block * panel, line, c, n);
  }
}

/* Largest or sum of the window at `at`, sixteen channels `vectors` times (a constant), or n <= 16
 * of one. */
CPU_INLINE void pool_pixel(const cpu_pool_last_args *g, const float *image, const int64_t at[2],
                           const int64_t ky[2], const int64_t kx[2], int64_t n, const int vectors,
                           v16 *v) {
  CPU_UNROLL(4)
  for (int i = 0; i < vectors; ++i)
    v[i] = g->average ? v16_zero() : v16_set(-INFINITY);
  for (int64_t y = ky[0]; y < ky[1]; ++y) {
    const float *line = image + (at[0] + y * g->dilation[0]) * g->in_size[1] * g->channels;
    for (int64_t x = kx[0]; x < kx[1]; ++x) {
      const float *in = line + (at[1] + x * g->dilation[1]) * g->channels;
      CPU_UNROLL(4)
      for (int i = 0; i < vectors; ++i) {
        const v16 a = load_channels(in + 16 * i, n);
        v[i] = g->average ? v16_add(v[i], a) : v16_max_nan(v[i], a);
      }
    }
  }
}

/* By how much a mean is divided. */
CPU_INLINE float pool_count(const cpu_pool_last_args *g, const int64_t at[2], const int64_t ky[2],
                            const int64_t kx[2]) {
  int64_t begin, y, x;
  if (!g->count_pads)
    return (float)((ky[1] - ky[0]) * (kx[1] - kx[0]));
  taps_inside(at[0] + g->pad_begin[0], g->kernel[0], g->dilation[0],
              g->in_size[0] + g->pad_begin[0] + g->pad_end[0], &begin, &y);
  taps_inside(at[1] + g->pad_begin[1], g->kernel[1], g->dilation[1],
              g->in_size[1] + g->pad_begin[1] + g->pad_end[1], &begin, &x);
  return (float)(y * x);
}

CPU_STATIC void pool_share(const cpu_pool_last_args *g, cpu_range units) {
  const int64_t blocks = (g->channels + CPU_CHANNEL_BLOCK - 1) / CPU_CHANNEL_BLOCK;
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int64_t line = u / blocks, first = u % blocks * CPU_CHANNEL_BLOCK;
    const int64_t end = first + CPU_CHANNEL_BLOCK;
    const int64_t last = end < g->channels ? end : g->channels;
    const int64_t image = line / g->out_size[0];
    const float *in = g->in + image * g->in_size[0] * g->in_size[1] * g->channels;
    int64_t at[2] = {line % g->out_size[0] * g->stride[0] - g->pad_begin[0], 0}, ky[2], kx[2];
    taps_inside(at[0], g->kernel[0], g->dilation[0], g->in_size[0], &ky[0], &ky[1]);
    for (int64_t x = 0; x < g->out_size[1]; ++x) {
      at[1] = x * g->stride[1] - g->pad_begin[1];
      taps_inside(at[1], g->kernel[1], g->dilation[1], g->in_size[1], &kx[0], &kx[1]);
      float *to = g->out + (line * g->out_size[1] + x) * g->channels;
      const v16 count = v16_set(g->average ? pool_count(g, at, ky, kx) : 1.0f);
      v16 v[4];
      if (last - first == CPU_CHANNEL_BLOCK)
        pool_pixel(g, in + first, at, ky, kx, 16, 4, v);
      for (int64_t c = first; c < last; c += 16) {
        const int64_t n = last - c < 16 ? last - c : 16, i = (c - first) / 16;
        if (last - first < CPU_CHANNEL_BLOCK)
          pool_pixel(g, in + c, at, ky, kx, n, 1, &v[i]);
        store_channels(to + c, g->average ? v16_div(v[i], count) : v[i], n);
      }
    }
  }
}

/* ---- patches ---- */

/* n numbers; behind them, up to whole vectors, zeros. */
CPU_INLINE void copy_channels(const float *from, int64_t n, float *to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    v16_store(to + i, v16_load(from + i));
  if (i < n)
    v16_store(to + i, v16_load_part(from + i, n - i));
}

CPU_INLINE void zero_channels(int64_t n, float *to) {
  for (int64_t i = 0; i < n; i += 16)
    v16_store(to + i, v16_zero());
}

/* Channels [c, c + n) under the taps of one line of the kernel, `from` the input's line, x where
 * the first tap stands. */
CPU_INLINE void patch_line(const cpu_conv_last_args *g, const float *from, int64_t x, int64_t c,
                           int64_t n, float *to) {
  const int64_t width = g->in_size[1], taps = g->kernel[1];
  if (g->dilation[1] == 1 && n == g->c_in && x >= 0 && x + taps <= width) {
    copy_channels(from + x * n, taps * n, to);
    return;
  }
  for (int64_t k = 0; k < taps; ++k, to += n) {
    const int64_t at = x + k * g->dilation[1];
    if (at >= 0 && at < width)
      copy_channels(from + at * g->c_in + c, n, to);
    else
      zero_channels(n, to);
  }
}

/* In rising order: what is written beyond a line is overwritten by the next one. */
CPU_STATIC void patch_rows(const cpu_conv_last_args *g, cpu_range rows, int64_t c, int64_t n,
                           float *to) {
  const int64_t pixels = g->out_size[0] * g->out_size[1];
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t pixel = r % pixels;
    const float *image = g->in + r / pixels * g->in_size[0] * g->in_size[1] * g->c_in;
    const int64_t y = pixel / g->out_size[1] * g->stride[0] - g->pad_begin[0];
    const int64_t x = pixel % g->out_size[1] * g->stride[1] - g->pad_begin[1];
    for (int64_t k = 0; k < g->kernel[0]; ++k, to += g->kernel[1] * n) {
      const int64_t line = y + k * g->dilation[0];
      if (line >= 0 && line < g->in_size[0])
        patch_line(g, image + line * g->in_size[1] * g->c_in, x, c, n, to);
      else
        zero_channels(g->kernel[1] * n, to);
    }
  }
}

#endif
