/* SPDX-License-Identifier: Apache-2.0 */
/* ConvInteger: int32 sums of products of 8-bit integers less their zero points, modulo 2^32; what
 * lies beyond the edge is the zero point and adds nothing.
 *
 *   packed  W a parameter, one group: some pixels at a time, the window of each as a row of bytes,
 *           by W's packed codes (codes.h)
 *   plain   everything else
 */
#include "../codes.h"
#include "window.h"

enum { PIXELS = 240 }; /* whose windows lie in the workspace at once: whole register tiles */

typedef struct conv_integer_plan {
  cpu_window window;
  int64_t images, groups, c_in, c_out; /* channels of all groups */
  bool w_zeros;                        /* a zero point for each output channel */
  cpu_codes form;                      /* packed: [c_in * taps, c_out] */
  int32_t w_base;
  uint64_t sums_at, scratch_at; /* in the workspace, behind the windows */
} conv_integer_plan;

static int32_t byte_at(const cpu_tensor *t, int64_t at) {
  return t->dtype == OPIPE_INT8 ? ((const int8_t *)t->data)[at] : ((const uint8_t *)t->data)[at];
}

/* Zero point `at` of input i, 0 where there is none. */
static int32_t zero_at(const cpu_call *call, uint32_t i, int64_t at) {
  return i < call->n_in && call->in[i].data != NULL ? byte_at(&call->in[i], at) : 0;
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

typedef struct block {
  const cpu_call *call;
  int64_t image, pixel, pixels; /* [pixel, pixel + pixels) of an image */
} block;

/* Windows of some pixels: rows of c_in * taps bytes. */
static void gather_windows(void *ctx, int64_t begin, int64_t end) {
  const block *b = ctx;
  const conv_integer_plan *plan = b->call->plan;
  const cpu_window *w = &plan->window;
  const uint8_t *image = (const uint8_t *)b->call->in[0].data + b->image * plan->c_in * w->n_in;
  const uint8_t zero = (uint8_t)zero_at(b->call, 2, 0);
  for (int64_t r = begin; r < end; ++r) {
    uint8_t *to = (uint8_t *)b->call->workspace + r * plan->form.k;
    for (int64_t k = 0; k < w->n_kernel; ++k) {
      const int64_t at = tap_at(w, b->pixel + r, k);
      for (int64_t c = 0; c < plan->c_in; ++c)
        to[c * w->n_kernel + k] = at < 0 ? zero : image[c * w->n_in + at];
    }
  }
}

/* Sums [pixels][c_out] into the planes of the output, channels begin to end. */
static void scatter_sums(void *ctx, int64_t begin, int64_t end) {
  const block *b = ctx;
  const conv_integer_plan *plan = b->call->plan;
  const int32_t *sums =
      (const int32_t *)(const void *)((const char *)b->call->workspace + plan->sums_at);
  for (int64_t c = begin; c < end; ++c) {
    int32_t *to = (int32_t *)b->call->out[0].data +
                  (b->image * plan->c_out + c) * plan->window.n_out + b->pixel;
    for (int64_t r = 0; r < b->pixels; ++r)
      to[r] = sums[r * plan->c_out + c];
  }
}

static opipe_status packed_kernel(const cpu_call *call, opipe_error *err) {
  const conv_integer_plan *plan = call->plan;
  const cpu_tensor *zeros = call->n_in > 3 ? &call->in[3] : NULL;
  char *workspace = call->workspace;
  (void)err;
  cpu_codes_integer_args args = {
      .a = workspace,
      .a_signed = call->in[0].dtype == OPIPE_INT8,
      .a_zero = zero_at(call, 2, 0),
      .form = &plan->form,
      .packed = call->in[1].data,
      .b_base = plan->w_base,
      .b_zeros = zeros != NULL ? zeros->data : NULL,
      .b_zeros_signed = zeros != NULL && zeros->dtype == OPIPE_INT8,
      .b_zero_each = plan->w_zeros,
      .c = (int32_t *)(void *)(workspace + plan->sums_at),
      .workspace = workspace + plan->scratch_at,
  };
  for (int64_t i = 0; i < plan->images; ++i) {
    for (int64_t o = 0; o < plan->window.n_out; o += PIXELS) {
      const int64_t left = plan->window.n_out - o;
      block b = {call, i, o, left < PIXELS ? left : PIXELS};
      args.m = b.pixels;
      cpu_parallel(call->exec, b.pixels, b.pixels * plan->form.k, gather_windows, &b);
      cpu_codes_integer(call->exec, &args);
      cpu_parallel(call->exec, plan->c_out, b.pixels * plan->c_out, scatter_sums, &b);
    }
  }
  return OPIPE_OK;
}

/* The matrix for the packed kernel, and room; false: not for it. */
static bool plan_packed(cpu_prep *p, conv_integer_plan *plan) {
  const opipe_value *w = cpu_in(p, 1);
  const bool is_signed = w->dtype == OPIPE_INT8;
  const int64_t k = plan->c_in * plan->window.n_kernel;
  uint64_t bytes = 0;
  cpu_matrix *matrix = CPU_POOL_ARRAY(p->pool, cpu_matrix, 1);
  if (matrix == NULL || !p->fast || !cpu_is_param(p, 1) || plan->groups != 1 || k == 0 ||
      (p->flags & OPIPE_COMPILE_OWNED) != 0)
    return false;
  plan->form = (cpu_codes){.k = k, .n = plan->c_out, .block = k, .bits = 8};
  plan->w_base = is_signed ? 128 : 0;
  const cpu_code_source source = {NULL, 8, is_signed, CPU_F32, 1, k};
  if (!cpu_matrix_of_bytes(&plan->form, w, &source, matrix) ||
      !cpu_codes_integer_workspace(&plan->form, PIXELS, &bytes))
    return false;
  plan->sums_at = cpu_align_up((uint64_t)(PIXELS * k), CPU_ALIGN_BYTES);
  plan->scratch_at =
      plan->sums_at + cpu_align_up((uint64_t)(PIXELS * plan->c_out) * 4, CPU_ALIGN_BYTES);
  p->step->matrix = matrix;
  p->step->in[1].layout = CPU_LAYOUT_CODES;
  cpu_want_workspace(p, plan->scratch_at + bytes);
  return true;
}

static bool is_byte(const opipe_value *value) {
  return value->dtype == OPIPE_INT8 || value->dtype == OPIPE_UINT8;
}

static opipe_status check_shapes(cpu_prep *p, conv_integer_plan *plan) {
  const opipe_value *x = cpu_in(p, 0), *w = cpu_in(p, 1), *zx = cpu_in(p, 2), *zw = cpu_in(p, 3);
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
  return cpu_expect(p, 0, OPIPE_INT32, shape, x->rank);
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
  CPU_TRY(check_shapes(p, plan));
  p->step->run = plan_packed(p, plan) ? packed_kernel : plain_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {{"ConvInteger", NULL, prepare, 2, 4, 1, 0, 0}};

const cpu_op_family cpu_family_conv_integer = {ops, CPU_COUNT_OF(ops)};
