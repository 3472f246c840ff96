/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolution and pooling with channels last: lanes are channels. A unit is one line of
 * output pixels by a block of CPU_CHANNEL_BLOCK channels. And the patches of other convolutions. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CONV_LAST_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_CONV_LAST_BODY_H_

#include "matmul_body.h"
#include "table.h"

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

/* A line of output pixels, and what it reads: sixteen channels of it. */
typedef struct depthwise_slot {
  const float *image, *w; /* of their first channel */
  float *out;             /* of the first pixel */
  int64_t top, ky[2];     /* the first line of the windows; taps [ky[0], ky[1]) lie inside */
  int64_t n;              /* channels, at most sixteen */
  tile_end end;           /* of the first pixel and channel */
  bool ended;             /* `end` is all that there is to do; else: nothing of it */
} depthwise_slot;

/* Pixel x with all that `e` says; whole, a constant: sixteen channels. */
CPU_INLINE v16 depthwise_finish(const tile_end *e, int64_t x, int64_t n, const int whole, v16 v) {
  if (e->bias != NULL)
    v = v16_add(v, whole ? v16_load(e->bias) : v16_load_part(e->bias, n));
  if (e->activation == CPU_ACT_RELU)
    v = v16_activate(CPU_ACT_RELU, v);
  else if (e->activation == CPU_ACT_HARD_SWISH)
    v = v16_activate(CPU_ACT_HARD_SWISH, v);
  if (e->residual != NULL) {
    const float *more = e->residual + x * e->residual_stride;
    v = v16_add(v, whole ? v16_load(more) : v16_load_part(more, n));
  }
  if (e->relu_last)
    v = v16_activate(CPU_ACT_RELU, v);
  return v;
}

/* `count` (at most four) pixels side by side from pixel x on, `taps` (at most 7) and stride
 * constants, dilation 1: every input is read once. `edge`, a constant: fewer pixels, or not all
 * inputs inside; whole, a constant: sixteen channels. */
CPU_INLINE void depthwise_small(const cpu_conv_last_args *g, const depthwise_slot *f, int64_t x,
                                int64_t count, const int taps, const int stride, const int whole,
                                const int edge) {
  const int64_t first = x * stride - g->pad_begin[1], width = g->in_size[1], n = f->n;
  v16 sum[4];
  CPU_UNROLL(4)
  for (int i = 0; i < 4; ++i)
    sum[i] = v16_zero();
  for (int64_t y = f->ky[0]; y < f->ky[1]; ++y) {
    const float *line = f->image + (f->top + y * g->dilation[0]) * width * g->c_in;
    v16 by[7];
    CPU_UNROLL(7)
    for (int t = 0; t < taps; ++t)
      by[t] = v16_load(f->w + (y * taps + t) * CPU_PANEL);
    CPU_UNROLL(13)
    for (int p = 0; p < taps + 3 * stride; ++p) {
      if (edge && (first + p < 0 || first + p >= width))
        continue;
      const float *in = line + (first + p) * g->c_in;
      const v16 v = v16_held(whole ? v16_load(in) : v16_load_part(in, n));
      CPU_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        if (p >= i * stride && p < i * stride + taps)
          sum[i] = v16_fma(v, by[p - i * stride], sum[i]);
      }
    }
  }
  CPU_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    if (edge && i >= count)
      continue;
    const v16 v = f->ended ? depthwise_finish(&f->end, x + i, n, whole, sum[i]) : sum[i];
    float *out = f->out + (x + i) * g->c_in;
    if (whole)
      v16_store(out, v);
    else
      v16_store_part(out, n, v);
  }
}

CPU_INLINE void depthwise_line_of(const cpu_conv_last_args *g, const depthwise_slot *f,
                                  const int taps, const int stride, const int whole) {
  const int64_t reach = 3 * stride + taps - 1, width = g->out_size[1];
  for (int64_t x = 0; x < width; x += 4) {
    const int64_t first = x * stride - g->pad_begin[1];
    if (x + 4 <= width && first >= 0 && first + reach < g->in_size[1])
      depthwise_small(g, f, x, 4, taps, stride, whole, 0);
    else
      depthwise_small(g, f, x, width - x, taps, stride, whole, 1);
  }
}

#define CPU_DEPTHWISE_SMALL(taps, stride, whole)                                     \
  CPU_STATIC void depthwise_##taps##_##stride##_##whole(const cpu_conv_last_args *g, \
                                                        const depthwise_slot *f) {   \
    depthwise_line_of(g, f, taps, stride, whole);                                    \
  }
#define CPU_DEPTHWISE_TAPS(taps)  \
  CPU_DEPTHWISE_SMALL(taps, 1, 0) \
  CPU_DEPTHWISE_SMALL(taps, 1, 1) \
  CPU_DEPTHWISE_SMALL(taps, 2, 0) \
  CPU_DEPTHWISE_SMALL(taps, 2, 1)
#define CPU_DEPTHWISE_NAMES(taps, stride) \
  { depthwise_##taps##_##stride##_0, depthwise_##taps##_##stride##_1 }

typedef void (*depthwise_function)(const cpu_conv_last_args *g, const depthwise_slot *f);

CPU_DEPTHWISE_TAPS(3)
CPU_DEPTHWISE_TAPS(5)
CPU_DEPTHWISE_TAPS(7)
/* [kernel 3, 5, 7][stride 1, 2][sixteen channels, or fewer] */
static const depthwise_function depthwise_functions[3][2][2] = {
    {CPU_DEPTHWISE_NAMES(3, 1), CPU_DEPTHWISE_NAMES(3, 2)},
    {CPU_DEPTHWISE_NAMES(5, 1), CPU_DEPTHWISE_NAMES(5, 2)},
    {CPU_DEPTHWISE_NAMES(7, 1), CPU_DEPTHWISE_NAMES(7, 2)},
};

/* Functions of the kernel; NULL: there are none. */
CPU_INLINE const depthwise_function *depthwise_of(const cpu_conv_last_args *g) {
  const int64_t taps = g->kernel[1], stride = g->stride[1];
  const bool small = g->dilation[1] == 1 && stride <= 2 && (taps == 3 || taps == 5 || taps == 7);
  return small ? depthwise_functions[(taps - 3) / 2][stride - 1] : NULL;
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

CPU_INLINE void store_channels(float *p, v16 v, int64_t n) {
  if (n >= 16)
    v16_store(p, v);
  else
    v16_store_part(p, n, v);
}

/* A line of output pixels of any kernel, n channels of a block: pixels whose whole window lies
 * inside the line four at a time, others with all channels at once. */
CPU_STATIC void line_any(const cpu_conv_last_args *g, const float *image, const float *w,
                         int64_t top, const int64_t ky[2], int64_t n, float *out) {
  const int64_t reach = 3 * g->stride[1] + (g->kernel[1] - 1) * g->dilation[1];
  int64_t kx[2];
  v16 sum[4];
  for (int64_t x = 0; x < g->out_size[1];) {
    const int64_t at[2] = {top, x * g->stride[1] - g->pad_begin[1]};
    float *to = out + x * g->c_in;
    taps_inside(at[1], g->kernel[1], g->dilation[1], g->in_size[1], &kx[0], &kx[1]);
    const bool four = x + 4 <= g->out_size[1] && at[1] >= 0 && at[1] + reach < g->in_size[1];
    int64_t u = 0;
    if (!four && n == CPU_CHANNEL_BLOCK) {
      depthwise_vectors(g, image, w, at, ky, kx, 4, sum);
      for (; u < n; u += 16)
        v16_store(to + u, sum[u / 16]);
    }
    for (; u < n; u += 16) {
      const int64_t left = n - u < 16 ? n - u : 16;
      if (four && left == 16)
        depthwise_pixels(g, image + u, w + u, at, ky, kx, 16, 4, sum);
      else
        depthwise_pixels(g, image + u, w + u, at, ky, kx, left, four ? 4 : 1, sum);
      for (int64_t i = 0; i < (four ? 4 : 1); ++i)
        store_channels(to + i * g->c_in + u, sum[i], left);
    }
    x += four ? 4 : 1;
  }
}

/* Returns the first line of the windows of an output line; out_ky: their taps that lie inside. */
CPU_INLINE int64_t line_top(const cpu_conv_last_args *g, int64_t line, int64_t *out_ky) {
  const int64_t top = line % g->out_size[0] * g->stride[0] - g->pad_begin[0];
  taps_inside(top, g->kernel[0], g->dilation[0], g->in_size[0], &out_ky[0], &out_ky[1]);
  return top;
}

CPU_INLINE const float *line_image(const cpu_conv_last_args *g, int64_t line) {
  return g->in + line / g->out_size[0] * g->in_size[0] * g->in_size[1] * g->c_in;
}

/* A line of output pixels, channels [c, c + n) of a block, by a function for the kernel, sixteen at
 * a time. w: of channel c. */
CPU_STATIC void depthwise_small_line(const cpu_conv_last_args *g, const cpu_epilogue *e,
                                     const depthwise_function *functions, const float *w,
                                     int64_t line, int64_t c, int64_t n) {
  const int64_t pixel = line * g->out_size[1];
  depthwise_slot f = {.image = line_image(g, line) + c,
                      .w = w,
                      .out = g->out + pixel * g->c_in + c,
                      .ended = e->alpha == 1.0f};
  const tile_place place = {f.out, f.out, g->c_in, g->c_in, g->out_size[1]};
  f.top = line_top(g, line, f.ky);
  for (int64_t u = 0; u < n; u += 16, f.image += 16, f.w += 16, f.out += 16) {
    f.n = n - u < 16 ? n - u : 16;
    f.ended = plan_end(e, pixel, c + u, &f.end) && f.ended;
    functions[f.n == 16](g, &f);
  }
  if (!f.ended)
    finish_place(e, pixel, c, n, &place);
}

/* A line of output pixels, channels [c, c + n) of a block, by any kernel. w: of channel c. */
CPU_STATIC void depthwise_line(const cpu_conv_last_args *g, const cpu_epilogue *e, const float *w,
                               int64_t line, int64_t c, int64_t n) {
  const int64_t pixel = line * g->out_size[1];
  float *out = g->out + pixel * g->c_in + c;
  int64_t ky[2];
  const int64_t top = line_top(g, line, ky);
  line_any(g, line_image(g, line) + c, w, top, ky, n, out);
  const tile_place place = {out, out, g->c_in, g->c_in, g->out_size[1]};
  finish_place(e, pixel, c, n, &place);
}

/* Blocks [blocks.begin, blocks.end) of the channels of some lines, one block after the other: what
 * its lines read again is near. Sixteen channels at a time pass over the lines of an image that the
 * second-level cache holds: the first-level cache has what the line before has read. A larger image
 * is read once. */
CPU_STATIC void depthwise_lines(const cpu_conv_last_args *g, const cpu_epilogue *e,
                                const float *panels, cpu_range lines, cpu_range blocks) {
  enum { HELD = 1 << 20 }; /* bytes */
  const int64_t panel = g->kernel[0] * g->kernel[1] * CPU_PANEL;
  const int64_t bytes = g->in_size[0] * g->in_size[1] * CPU_CHANNEL_BLOCK * (int64_t)sizeof(float);
  const depthwise_function *functions = depthwise_of(g);
  const int64_t pass = functions != NULL && bytes <= HELD ? 16 : CPU_CHANNEL_BLOCK;
  for (int64_t c = blocks.begin * CPU_CHANNEL_BLOCK; c < blocks.end * CPU_CHANNEL_BLOCK;
       c += pass) {
    const float *w = panels + c / CPU_CHANNEL_BLOCK * panel + c % CPU_CHANNEL_BLOCK;
    const int64_t n = g->c_in - c < pass ? g->c_in - c : pass;
    for (int64_t line = lines.begin; line < lines.end && n > 0; ++line) {
      if (functions != NULL)
        depthwise_small_line(g, e, functions, w, line, c, n);
      else
        depthwise_line(g, e, w, line, c, n);
    }
  }
}

/* Units count blocks within lines, so that a thread has lines side by side, as products have rows.
 * panels: [blocks][taps][CPU_PANEL]; e: of the whole result. */
CPU_STATIC void depthwise_share(const cpu_conv_last_args *g, const cpu_epilogue *e,
                                const float *panels, cpu_range units) {
  const int64_t blocks = (g->c_in + CPU_CHANNEL_BLOCK - 1) / CPU_CHANNEL_BLOCK;
  for (int64_t u = units.begin; u < units.end;) {
    const int64_t line = u / blocks, first = u % blocks, whole = units.end / blocks;
    cpu_range lines = {line, line + 1}, of = {first, blocks};
    if (first == 0 && whole > line)
      lines.end = whole;
    else if (units.end - line * blocks < blocks)
      of.end = units.end - line * blocks;
    depthwise_lines(g, e, panels, lines, of);
    u = (lines.end - 1) * blocks + of.end;
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
