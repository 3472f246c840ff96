/* SPDX-License-Identifier: Apache-2.0 */
/* ConvInteger: int32 sums of products of 8-bit integers less their zero points, modulo 2^32; what
 * lies beyond the edge is the zero point and adds nothing.
 *
 *   packed  W a parameter, one group: some pixels at a time, the window of each as a row of signed
 *           bytes, by W's packed codes (codes.h); fused with what makes the sums numbers, bias,
 *           activation, integers of 8 bits again. Windows of more than their pixel are gathered
 *           from the image with channels last, signed, with a sum for each pixel
 *   depthwise  one or two axes: differences and products in fp32, where such sums are exact
 *   plain   everything else
 */
#include "../codes.h"
#include "window.h"

/* Pixels whose windows lie in the workspace at once: whole register tiles, about so many bytes. */
enum { PIXELS_LEAST = 48, BLOCK_BYTES = 1 << 19 };

typedef struct conv_integer_plan {
  cpu_window window;
  int64_t images, groups, c_in, c_out; /* channels of all groups */
  bool w_zeros;                        /* a zero point for each output channel */
  uint32_t n_in;                       /* of the node: behind them, what was fused */
  cpu_fusion fusion;
  cpu_codes form; /* packed: [taps * c_in, c_out] */
  int32_t w_base;
  int64_t pixels;           /* at once */
  bool pointwise;           /* windows are pixels */
  int64_t padded[2], share; /* depthwise: extents with borders, planes a thread */
  /* In the workspace, behind the image: sums of pixels, results, rows (depthwise: of a thread). */
  uint64_t pixels_at, results_at, rows_at;
} conv_integer_plan;

static int32_t byte_at(const cpu_tensor *t, int64_t at) {
  return t->dtype == OPIPE_INT8 ? ((const int8_t *)t->data)[at] : ((const uint8_t *)t->data)[at];
}

/* Zero point `at` of input i, 0 where there is none. */
static int32_t zero_at(const cpu_call *call, uint32_t i, int64_t at) {
  const conv_integer_plan *plan = call->plan;
  return i < plan->n_in && call->in[i].data != NULL ? byte_at(&call->in[i], at) : 0;
}

/* Where tap `k` of the window of output pixel `o` lies in a plane; -1: beyond the edge. */
static int64_t tap_at(const cpu_window *w, int64_t o, int64_t k) {
  const int64_t o_at[3] = {o / w->out[2] / w->out[1], o / w->out[2] % w->out[1], o % w->out[2]};
  const int64_t k_at[3] = {k / w->kernel[2] / w->kernel[1], k / w->kernel[2] % w->kernel[1],
                           k % w->kernel[2]};
  int64_t at = 0;
  for (int a = 0; a < 3; ++a) {
    const int64_t i = o_at[a] * w->stride[a] - w->begin[a] + k_at[a] * w->dilation[a];
    if (i < 0 || i >= w->in[a])
      return -1;
    at = at * w->in[a] + i;
  }
  return at;
}

/* ---- plain: planes of the output, (image, channel) ---- */

static void plain_planes(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const conv_integer_plan *plan = call->plan;
  const cpu_window *w = &plan->window;
  const int64_t channels = plan->c_in / plan->groups;
  const int32_t zx = zero_at(call, 2, 0);
  for (int64_t plane = begin; plane < end; ++plane) {
    const int64_t c = plane % plan->c_out;
    const int64_t first =
        plane / plan->c_out * plan->c_in + c / (plan->c_out / plan->groups) * channels;
    const int32_t zw = zero_at(call, 3, plan->w_zeros ? c : 0);
    int32_t *out = (int32_t *)call->out[0].data + plane * w->n_out;
    for (int64_t o = 0; o < w->n_out; ++o) {
      uint32_t sum = 0;
      for (int64_t k = 0; k < w->n_kernel; ++k) {
        const int64_t at = tap_at(w, o, k);
        for (int64_t i = 0; at >= 0 && i < channels; ++i) {
          const int32_t x = byte_at(&call->in[0], (first + i) * w->n_in + at) - zx;
          const int32_t y = byte_at(&call->in[1], (c * channels + i) * w->n_kernel + k) - zw;
          sum += (uint32_t)(x * y);
        }
      }
      out[o] = (int32_t)sum;
    }
  }
}

static opipe_status plain_kernel(const cpu_call *call, opipe_error *err) {
  const conv_integer_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->images * plan->c_out,
               (int64_t)call->out[0].n * (plan->window.n_kernel * plan->c_in / plan->groups + 1),
               plain_planes, &copy);
  return OPIPE_OK;
}

/* ---- packed ---- */

/* Sixteen bytes; both halves of two of them, interleaved. */
typedef uint8_t bytes16 __attribute__((vector_size(16)));
enum { SQUARE = 16 };

static inline bytes16 low_halves(bytes16 a, bytes16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

static inline bytes16 high_halves(bytes16 a, bytes16 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
}

/* Turns a square: interleaving rows i and i + 8 four times moves each row's number into the
 * columns. */
static void turn_square(bytes16 *x) {
  bytes16 y[SQUARE];
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < SQUARE / 2; ++i) {
      y[2 * i] = low_halves(x[i], x[i + SQUARE / 2]);
      y[2 * i + 1] = high_halves(x[i], x[i + SQUARE / 2]);
    }
    memcpy(x, y, sizeof y);
  }
}

/* out[c][r] = in[r][c], a square at a time. */
static void turn_bytes(const uint8_t *in, int64_t in_stride, int64_t rows, int64_t columns,
                       uint8_t *out, int64_t out_stride) {
  for (int64_t r = 0; r < rows; r += SQUARE) {
    const int64_t n_rows = rows - r < SQUARE ? rows - r : SQUARE;
    for (int64_t c = 0; c < columns; c += SQUARE) {
      const int64_t n = columns - c < SQUARE ? columns - c : SQUARE;
      bytes16 x[SQUARE] = {{0}};
      for (int64_t i = 0; i < n_rows; ++i)
        memcpy(&x[i], in + (r + i) * in_stride + c, n == SQUARE ? SQUARE : (size_t)n);
      turn_square(x);
      for (int64_t i = 0; i < n; ++i)
        memcpy(out + (c + i) * out_stride + r, &x[i], n_rows == SQUARE ? SQUARE : (size_t)n_rows);
    }
  }
}

typedef struct block {
  const cpu_call *call;
  int64_t image, pixel, pixels; /* [pixel, pixel + pixels) of an image */
} block;

/* Writes the channels of pixels [first, first + n) of the image as signed bytes, `stride` bytes
 * from one pixel to the next, and the sum of each pixel's channels, `sum_stride` bytes apart. */
static void turn_pixels(const block *b, int64_t first, int64_t n, uint8_t *to, int64_t stride,
                        char *sums, int64_t sum_stride) {
  const conv_integer_plan *plan = b->call->plan;
  const int64_t n_in = plan->window.n_in, c = plan->c_in;
  const uint8_t *image = (const uint8_t *)b->call->in[0].data + b->image * c * n_in;
  const bool is_signed = b->call->in[0].dtype == OPIPE_INT8;
  turn_bytes(image + first, n_in, c, n, to, stride);
  for (int64_t i = 0; i < n; ++i) {
    const int32_t sum = cpu_signed_bytes(to + i * stride, is_signed, c, to + i * stride);
    memcpy(sums + i * sum_stride, &sum, sizeof sum);
  }
}

/* Pixels of the image, in units of 64. */
enum { UNIT = 64 };
static void turn_image(void *ctx, int64_t begin, int64_t end) {
  const block *b = ctx;
  const conv_integer_plan *plan = b->call->plan;
  const int64_t n = plan->window.n_in, first = begin * UNIT;
  const int64_t last = end * UNIT < n ? end * UNIT : n;
  char *sums = (char *)b->call->workspace + plan->pixels_at;
  turn_pixels(b, first, last - first, (uint8_t *)b->call->workspace + first * plan->c_in,
              plan->c_in, sums + first * (int64_t)sizeof(int32_t), sizeof(int32_t));
}

/* Row r of the kernel, its end zero. */
static uint8_t *row_of(const block *b, int64_t r) {
  const conv_integer_plan *plan = b->call->plan;
  const int64_t stride = cpu_codes_integer_row(&plan->form), used = CPU_ALIGN_BYTES + plan->form.k;
  uint8_t *row = (uint8_t *)b->call->workspace + plan->rows_at + (uint64_t)(r * stride);
  memset(row + used, 0, (size_t)(stride - used));
  return row;
}

/* Pixels that are windows become rows, in units of 64. */
static void turn_rows(void *ctx, int64_t begin, int64_t end) {
  const block *b = ctx;
  const conv_integer_plan *plan = b->call->plan;
  const int64_t stride = cpu_codes_integer_row(&plan->form), first = begin * UNIT;
  const int64_t last = end * UNIT < b->pixels ? end * UNIT : b->pixels;
  for (int64_t r = last; r-- > first;)
    (void)row_of(b, r);
  uint8_t *row = row_of(b, first);
  turn_pixels(b, b->pixel + first, last - first, row + CPU_ALIGN_BYTES, stride, (char *)row,
              stride);
}

/* A row of a window: taps of the last axis side by side, of pixels from `first` on of a line of the
 * image (NULL: beyond the edge) with its pixels' sums. Adds to *io_sum, and returns the end. */
static uint8_t *put_taps(const conv_integer_plan *plan, const uint8_t *line, const int32_t *sums,
                         int64_t first, int8_t zero, uint8_t *to, uint32_t *io_sum) {
  const cpu_window *w = &plan->window;
  const int64_t c = plan->c_in, taps = w->kernel[2], step = w->dilation[2];
  if (line != NULL && step == 1 && first >= 0 && first + taps <= w->in[2]) {
    for (int64_t k = 0; k < taps; ++k)
      *io_sum += (uint32_t)sums[first + k];
    memcpy(to, line + first * c, (size_t)(taps * c));
    return to + taps * c;
  }
  for (int64_t k = 0; k < taps; ++k, to += c) {
    const int64_t i = first + k * step;
    if (line == NULL || i < 0 || i >= w->in[2]) {
      memset(to, zero, (size_t)c);
      *io_sum += (uint32_t)(zero * c);
    } else {
      memcpy(to, line + i * c, (size_t)c);
      *io_sum += (uint32_t)sums[i];
    }
  }
  return to;
}

/* Windows of some pixels as rows. */
static void gather_windows(void *ctx, int64_t begin, int64_t end) {
  const block *b = ctx;
  const conv_integer_plan *plan = b->call->plan;
  const cpu_window *w = &plan->window;
  const uint8_t *image = b->call->workspace;
  const int32_t *sums = (const int32_t *)(const void *)(image + plan->pixels_at);
  const int8_t zero =
      (int8_t)(zero_at(b->call, 2, 0) - (b->call->in[0].dtype == OPIPE_INT8 ? 0 : 128));
  for (int64_t r = begin; r < end; ++r) {
    const int64_t o = b->pixel + r, o1 = o / w->out[2] % w->out[1], o2 = o % w->out[2];
    const int64_t i0 = o / w->out[2] / w->out[1] * w->stride[0] - w->begin[0];
    const int64_t i1 = o1 * w->stride[1] - w->begin[1], i2 = o2 * w->stride[2] - w->begin[2];
    uint8_t *row = row_of(b, r), *to = row + CPU_ALIGN_BYTES;
    uint32_t sum = 0;
    for (int64_t k0 = 0; k0 < w->kernel[0]; ++k0) {
      const int64_t at0 = i0 + k0 * w->dilation[0];
      for (int64_t k1 = 0; k1 < w->kernel[1]; ++k1) {
        const int64_t at1 = i1 + k1 * w->dilation[1];
        const bool in = at0 >= 0 && at0 < w->in[0] && at1 >= 0 && at1 < w->in[1];
        const int64_t at = (at0 * w->in[1] + at1) * w->in[2];
        to = put_taps(plan, in ? image + at * plan->c_in : NULL, in ? sums + at : NULL, i2, zero,
                      to, &sum);
      }
    }
    memcpy(row, &sum, sizeof sum);
  }
}

/* Results [pixels][c_out] into the planes of the output, channels begin to end. */
static void scatter(void *ctx, int64_t begin, int64_t end) {
  const block *b = ctx;
  const conv_integer_plan *plan = b->call->plan;
  const char *from = (const char *)b->call->workspace + plan->results_at;
  const int64_t first = b->image * plan->c_out * plan->window.n_out + b->pixel;
  if (plan->fusion.y_scale >= 0) {
    turn_bytes((const uint8_t *)from + begin, plan->c_out, b->pixels, end - begin,
               (uint8_t *)b->call->out[0].data + first + begin * plan->window.n_out,
               plan->window.n_out);
    return;
  }
  const uint32_t *sums = (const uint32_t *)(const void *)from;
  for (int64_t c = begin; c < end; ++c) {
    uint32_t *to = (uint32_t *)b->call->out[0].data + first + c * plan->window.n_out;
    for (int64_t r = 0; r < b->pixels; ++r)
      to[r] = sums[r * plan->c_out + c];
  }
}

static const float *fused_operand(const cpu_call *call, int index) {
  return index < 0 ? NULL : call->in[index].data;
}

/* Sets everything but rows and results. */
static void set_args(const cpu_call *call, const cpu_epilogue *epilogue,
                     cpu_codes_integer_args *args) {
  static const float one = 1.0f;
  const conv_integer_plan *plan = call->plan;
  const cpu_fusion *fusion = &plan->fusion;
  const cpu_tensor *zeros = plan->n_in > 3 ? &call->in[3] : NULL;
  void *results = (char *)call->workspace + plan->results_at;
  *args = (cpu_codes_integer_args){
      .a_signed = call->in[0].dtype == OPIPE_INT8,
      .a_zero = zero_at(call, 2, 0),
      .form = &plan->form,
      .packed = call->in[1].data,
      .b_base = plan->w_base,
      .b_zeros = zeros != NULL ? zeros->data : NULL,
      .b_zeros_signed = zeros != NULL && zeros->dtype == OPIPE_INT8,
      .b_zero_each = plan->w_zeros,
      .c = fusion->numbers ? NULL : results,
      .numbers = fusion->numbers && fusion->y_scale < 0 ? results : NULL,
      .bytes = fusion->y_scale < 0 ? NULL : results,
      .scale = fusion->scale < 0 ? &one : call->in[fusion->scale].data,
      .scale_each = fusion->scale >= 0 && call->in[fusion->scale].n != 1,
      .epilogue = epilogue,
      .workspace = (char *)call->workspace + plan->rows_at,
  };
  cpu_fused_quantization(call, fusion, args);
}

static opipe_status packed_kernel(const cpu_call *call, opipe_error *err) {
  const conv_integer_plan *plan = call->plan;
  const cpu_window *w = &plan->window;
  const cpu_epilogue epilogue = {.alpha = 1.0f,
                                 .activation = plan->fusion.activation,
                                 .bias = fused_operand(call, plan->fusion.bias)};
  cpu_codes_integer_args args;
  (void)err;
  set_args(call, &epilogue, &args);
  for (int64_t i = 0; i < plan->images; ++i) {
    block b = {call, i, 0, 0};
    if (!plan->pointwise)
      cpu_parallel(call->exec, (w->n_in + UNIT - 1) / UNIT, w->n_in * plan->c_in, turn_image, &b);
    for (int64_t o = 0; o < w->n_out; o += plan->pixels) {
      const int64_t left = w->n_out - o;
      b.pixel = o;
      b.pixels = left < plan->pixels ? left : plan->pixels;
      args.m = b.pixels;
      if (plan->pointwise) {
        cpu_parallel(call->exec, (b.pixels + UNIT - 1) / UNIT, b.pixels * plan->c_in, turn_rows,
                     &b);
      } else {
        cpu_parallel(call->exec, b.pixels, b.pixels * plan->form.k, gather_windows, &b);
      }
      cpu_codes_integer(call->exec, &args);
      cpu_parallel(call->exec, plan->c_out, b.pixels * plan->c_out, scatter, &b);
    }
  }
  return OPIPE_OK;
}

/* ---- depthwise: a channel by a channel ---- */

enum { MOST_TAPS = (1 << 24) / (255 * 255) }; /* whose sums are exact in fp32 */

static bool is_depthwise(const conv_integer_plan *plan) {
  return plan->groups > 1 && plan->groups == plan->c_in && plan->groups == plan->c_out &&
         plan->window.n_kernel <= MOST_TAPS && plan->window.in[0] == 1 &&
         plan->window.out[0] == 1 && plan->window.kernel[0] == 1 && plan->window.begin[0] == 0;
}

/* One row of the output: exact sums. x: differences from the zero point, padded. */
static void sum_row(const conv_integer_plan *plan, const float *x, const float *w, int64_t o1,
                    float *sums) {
  const cpu_window *win = &plan->window;
  memset(sums, 0, (size_t)win->out[2] * sizeof *sums);
  for (int64_t k1 = 0; k1 < win->kernel[1]; ++k1) {
    const float *row = x + (o1 * win->stride[1] + k1 * win->dilation[1]) * plan->padded[1];
    for (int64_t k2 = 0; k2 < win->kernel[2]; ++k2) {
      const float *from = row + k2 * win->dilation[2], factor = *w++;
      if (win->stride[2] == 1) {
        for (int64_t i = 0; i < win->out[2]; ++i)
          sums[i] += factor * from[i];
      } else {
        for (int64_t i = 0; i < win->out[2]; ++i)
          sums[i] += factor * from[i * win->stride[2]];
      }
    }
  }
}

/* Numbers of a plane: scale, bias, activation, each rounded as by itself; integers again. */
static void finish_plane(const cpu_call *call, const cpu_codes_integer_args *how, int64_t c,
                         int64_t plane, float *sums) {
  const conv_integer_plan *plan = call->plan;
  const cpu_exec alone = cpu_alone(call->exec);
  const int64_t n = plan->window.n_out;
  const float scale = how->scale[how->scale_each ? c : 0];
  const float *bias = fused_operand(call, plan->fusion.bias);
  if (!plan->fusion.numbers) {
    int32_t *y = (int32_t *)call->out[0].data + plane * n;
    for (int64_t i = 0; i < n; ++i)
      y[i] = (int32_t)sums[i];
    return;
  }
  for (int64_t i = 0; i < n; ++i)
    sums[i] = sums[i] * scale;
  for (int64_t i = 0; bias != NULL && i < n; ++i)
    sums[i] = sums[i] + bias[c];
  cpu_bias_activation(&alone, &(cpu_bias_args){.activation = plan->fusion.activation,
                                               .rows = 1,
                                               .columns = n,
                                               .in = sums,
                                               .in_row = n,
                                               .out = sums,
                                               .out_row = n});
  if (plan->fusion.y_scale < 0) {
    memcpy((float *)call->out[0].data + plane * n, sums, (size_t)n * sizeof *sums);
    return;
  }
  cpu_quantize(&alone, &(cpu_quantize_args){.x = sums,
                                            .n = n,
                                            .scale = how->y_scale,
                                            .zero = how->y_zero,
                                            .low = how->y_low,
                                            .high = how->y_high,
                                            .y = (uint8_t *)call->out[0].data + plane * n});
}

/* The differences of a plane from its zero point, with a border of 0. */
static void pad_plane(const cpu_call *call, int64_t plane, float *x) {
  const conv_integer_plan *plan = call->plan;
  const cpu_window *w = &plan->window;
  const cpu_exec alone = cpu_alone(call->exec);
  memset(x, 0, (size_t)(plan->padded[0] * plan->padded[1]) * sizeof *x);
  for (int64_t r = 0; r < w->in[1]; ++r) {
    cpu_dequantize(&alone,
                   &(cpu_dequantize_args){
                       .x = (const uint8_t *)call->in[0].data + plane * w->n_in + r * w->in[2],
                       .is_signed = call->in[0].dtype == OPIPE_INT8,
                       .zero = zero_at(call, 2, 0),
                       .scale = 1.0f,
                       .n = w->in[2],
                       .y = x + (r + w->begin[1]) * plan->padded[1] + w->begin[2]});
  }
}

static void depthwise_planes(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const conv_integer_plan *plan = call->plan;
  const cpu_window *w = &plan->window;
  const int64_t share = begin / plan->share; /* each has room of its own */
  float *x = (float *)(void *)((char *)call->workspace + (uint64_t)share * plan->rows_at);
  float *sums = x + plan->padded[0] * plan->padded[1], weights[MOST_TAPS];
  cpu_codes_integer_args how;
  set_args(call, NULL, &how);
  for (int64_t plane = begin; plane < end; ++plane) {
    const int64_t c = plane % plan->c_out;
    const int32_t zero = zero_at(call, 3, plan->w_zeros ? c : 0);
    for (int64_t k = 0; k < w->n_kernel; ++k)
      weights[k] = (float)(byte_at(&call->in[1], c * w->n_kernel + k) - zero);
    pad_plane(call, plane, x);
    for (int64_t o = 0; o < w->out[1]; ++o)
      sum_row(plan, x, weights, o, sums + o * w->out[2]);
    finish_plane(call, &how, c, plane, sums);
  }
}

static void depthwise_shares(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const conv_integer_plan *plan = call->plan;
  const int64_t planes = plan->images * plan->c_out;
  for (int64_t s = begin; s < end; ++s) {
    const int64_t last = (s + 1) * plan->share;
    depthwise_planes(ctx, s * plan->share, last < planes ? last : planes);
  }
}

static opipe_status depthwise_kernel(const cpu_call *call, opipe_error *err) {
  const conv_integer_plan *plan = call->plan;
  const int64_t planes = plan->images * plan->c_out;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, (planes + plan->share - 1) / plan->share,
               planes * plan->window.n_out * plan->window.n_kernel, depthwise_shares, &copy);
  return OPIPE_OK;
}

/* Room for a padded plane and its sums, for each thread. */
static bool plan_depthwise(cpu_prep *p, conv_integer_plan *plan) {
  const cpu_window *w = &plan->window;
  const int64_t planes = plan->images * plan->c_out, threads = p->device->threads;
  if (!p->fast || !is_depthwise(plan) || (p->flags & OPIPE_COMPILE_OWNED) != 0)
    return false;
  for (int a = 0; a < 2; ++a) {
    const int64_t reach =
        (w->out[a + 1] - 1) * w->stride[a + 1] + (w->kernel[a + 1] - 1) * w->dilation[a + 1] + 1;
    const int64_t padded = w->in[a + 1] + w->begin[a + 1] + w->end[a + 1];
    plan->padded[a] = reach > padded ? reach : padded;
  }
  plan->share = (planes + threads - 1) / threads;
  plan->share = plan->share > 0 ? plan->share : 1;
  plan->rows_at = cpu_align_up(
      (uint64_t)(plan->padded[0] * plan->padded[1] + w->n_out) * sizeof(float), CPU_ALIGN_BYTES);
  cpu_want_workspace(p, plan->rows_at * (uint64_t)threads);
  return true;
}

bool cpu_conv_integer_packs(const opipe_node *node, const opipe_value *w, uint32_t flags) {
  const int64_t group = opipe_attr_int(node, "group", 1);
  const bool known = w->role == OPIPE_VALUE_PARAMETER || w->role == OPIPE_VALUE_CONSTANT;
  const bool depthwise = known && group > 1 && (w->rank == 3 || w->rank == 4) &&
                         w->shape[0] == group && w->shape[1] == 1 &&
                         cpu_elems(w) <= (uint64_t)group * MOST_TAPS;
  return ((group == 1 && w->role == OPIPE_VALUE_PARAMETER) || depthwise) && cpu_elems(w) > 0 &&
         (w->dtype == OPIPE_INT8 || w->dtype == OPIPE_UINT8) && (flags & OPIPE_COMPILE_OWNED) == 0;
}

/* Where what lies in the workspace. */
static void lay_out(conv_integer_plan *plan, int64_t k) {
  const cpu_window *w = &plan->window;
  const int64_t fit = BLOCK_BYTES / (k + plan->c_out * 4);
  plan->pixels = fit < PIXELS_LEAST ? PIXELS_LEAST : fit / PIXELS_LEAST * PIXELS_LEAST;
  plan->pixels = plan->pixels < w->n_out ? plan->pixels : w->n_out;
  plan->pointwise = w->n_kernel == 1 && w->n_in == w->n_out && w->stride[0] == 1 &&
                    w->stride[1] == 1 && w->stride[2] == 1;
  for (int a = 0; a < 3; ++a)
    plan->pointwise = plan->pointwise && w->begin[a] == 0 && w->in[a] == w->out[a];
  const uint64_t pixels = plan->pointwise ? 0 : (uint64_t)w->n_in;
  plan->pixels_at = cpu_align_up(pixels * (uint64_t)plan->c_in, CPU_ALIGN_BYTES);
  plan->results_at = plan->pixels_at + cpu_align_up(pixels * sizeof(int32_t), CPU_ALIGN_BYTES);
  plan->rows_at =
      plan->results_at + cpu_align_up((uint64_t)(plan->pixels * plan->c_out) * 4, CPU_ALIGN_BYTES);
}

/* The matrix for the packed kernel, and room; false: not for it. */
static bool plan_packed(cpu_prep *p, conv_integer_plan *plan) {
  const opipe_value *w = cpu_in(p, 1);
  const bool is_signed = w->dtype == OPIPE_INT8;
  const int64_t taps = plan->window.n_kernel, k = plan->c_in * taps;
  uint64_t bytes = 0;
  cpu_matrix *matrix = CPU_POOL_ARRAY(p->pool, cpu_matrix, 1);
  if (matrix == NULL || !p->fast || plan->groups != 1 ||
      !cpu_conv_integer_packs(p->node, w, p->flags))
    return false;
  lay_out(plan, k);
  plan->form = (cpu_codes){.k = k, .n = plan->c_out, .block = k, .bits = 8};
  plan->w_base = is_signed ? 128 : 0;
  const cpu_code_source source = {.bits = 8, /* tap by tap, all channels of each */
                                  .is_signed = is_signed,
                                  .type = CPU_F32,
                                  .i_stride = taps,
                                  .j_stride = k,
                                  .i_inner = plan->c_in,
                                  .i_outer = 1};
  if (!cpu_matrix_of_bytes(&plan->form, w, &source, matrix) ||
      !cpu_codes_integer_workspace(&plan->form, plan->pixels, &bytes))
    return false;
  p->step->matrix = matrix;
  p->step->in[1].layout = CPU_LAYOUT_CODES;
  cpu_want_workspace(p, plan->rows_at + bytes);
  return true;
}

static bool is_byte(const opipe_value *value) {
  return value->dtype == OPIPE_INT8 || value->dtype == OPIPE_UINT8;
}

static opipe_status check_shapes(cpu_prep *p, conv_integer_plan *plan) {
  const opipe_value *x = cpu_in(p, 0), *w = cpu_in(p, 1);
  const opipe_value *zx = plan->n_in > 2 ? cpu_in(p, 2) : NULL;
  const opipe_value *zw = plan->n_in > 3 ? cpu_in(p, 3) : NULL;
  const cpu_window *window = &plan->window;
  int64_t shape[5] = {plan->images, plan->c_out};
  if (w->rank != x->rank || plan->groups < 1 || plan->c_in % plan->groups != 0 ||
      plan->c_out % plan->groups != 0 || w->shape[1] != plan->c_in / plan->groups) {
    return cpu_invalid(p, "weight '%.80s' does not fit %lld channels in %lld groups", w->name,
                       (long long)plan->c_in, (long long)plan->groups);
  }
  plan->w_zeros = zw != NULL && cpu_elems(zw) != 1;
  if ((zx != NULL && (zx->dtype != x->dtype || cpu_elems(zx) != 1)) ||
      (zw != NULL &&
       (zw->dtype != w->dtype || (plan->w_zeros && cpu_elems(zw) != (uint64_t)plan->c_out)))) {
    return cpu_invalid(p,
                       "its zero points are not of the types of x and w, one each, or one for "
                       "each of %lld channels",
                       (long long)plan->c_out);
  }
  for (uint32_t i = 3 - window->axes; i < 3; ++i) {
    const int64_t span = window->in[i] + window->begin[i] + window->end[i] -
                         window->dilation[i] * (window->kernel[i] - 1);
    shape[i + window->axes - 1] = span < 1 ? 0 : (span - 1) / window->stride[i] + 1;
    if (window->kernel[i] != w->shape[i + window->axes - 1])
      return cpu_invalid(p, "kernel_shape and weight '%.80s' differ", w->name);
  }
  const uint32_t dtype = !plan->fusion.numbers      ? OPIPE_INT32
                         : plan->fusion.y_scale < 0 ? OPIPE_FLOAT
                                                    : cpu_out(p, 0)->dtype;
  for (uint32_t i = plan->n_in; i < p->step->n_in; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  return cpu_expect(p, 0, dtype, shape, x->rank);
}

static opipe_status prepare(cpu_prep *p) {
  const opipe_value *x = cpu_in(p, 0), *w = cpu_in(p, 1);
  conv_integer_plan *plan = CPU_PLAN(p, conv_integer_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (!is_byte(x) || !is_byte(w) || w->rank < 3) {
    return cpu_refuse(p, "does not take %s and %s of rank %u", opipe_dtype_name(x->dtype),
                      opipe_dtype_name(w->dtype), w->rank);
  }
  CPU_TRY(cpu_window_init(p, &plan->window, x, cpu_out(p, 0), w->shape + 2));
  plan->images = x->shape[0];
  plan->c_in = x->shape[1];
  plan->c_out = w->shape[0];
  plan->groups = opipe_attr_int(p->node, "group", 1);
  plan->n_in = p->node->n_in;
  plan->fusion = p->fusion != NULL ? *p->fusion : (cpu_fusion)CPU_FUSION_NONE;
  CPU_TRY(check_shapes(p, plan));
  const bool depthwise = plan_depthwise(p, plan);
  const bool packed = depthwise || plan_packed(p, plan);
  p->step->run = depthwise ? depthwise_kernel : packed ? packed_kernel : plain_kernel;
  return packed || p->fusion == NULL
             ? OPIPE_OK
             : opipe_fail(p->err, OPIPE_E_INTERNAL, "node '%.80s': fused without packed codes",
                          p->node->name);
}

static const cpu_op ops[] = {{"ConvInteger", NULL, prepare, 2, 4, 1, 0, 0}};

const cpu_op_family cpu_family_conv_integer = {ops, CPU_COUNT_OF(ops)};
