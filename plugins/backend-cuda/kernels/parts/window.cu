/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions and pools, plainly: a thread gathers what its element is made of, a warp the
 * gradient of a weight. The measure of what a library does with them. Norms by channel. */
#include "numbers.cuh"

struct window_place { /* of an output, an input or in a kernel */
  int64_t at[CUDA_WINDOW_AXES];
};

CUDA_FN window_place place_in(const int64_t *extents, int64_t i) {
  return {{i / extents[2] / extents[1], i / extents[2] % extents[1], i % extents[2]}};
}

CUDA_FN int64_t count_of(const int64_t *extents) {
  return extents[0] * extents[1] * extents[2];
}

/* Position in a plane of the input of kernel element k at output o; -1: outside. padded: whether
 * the padded plane has it. */
CUDA_FN int64_t input_of(const cuda_window_args &a, const window_place &o, const window_place &k,
                         bool *out_padded) {
  int64_t index = 0;
  bool inside = true, padded = true;
  CUDA_UNROLL
  for (int d = 0; d < CUDA_WINDOW_AXES; ++d) {
    const int64_t i = o.at[d] * a.stride[d] - a.begin[d] + k.at[d] * a.dilation[d];
    inside = inside && i >= 0 && i < a.in[d];
    padded = padded && i < a.in[d] + a.end[d];
    index = index * a.in[d] + i;
  }
  *out_padded = padded;
  return inside ? index : -1;
}

/* The output whose kernel element k lies on input i; -1: none. */
CUDA_FN int64_t output_of(const cuda_window_args &a, const window_place &i, const window_place &k) {
  int64_t index = 0;
  bool good = true;
  CUDA_UNROLL
  for (int d = 0; d < CUDA_WINDOW_AXES; ++d) {
    const int64_t shifted = i.at[d] + a.begin[d] - k.at[d] * a.dilation[d];
    const int64_t o = shifted / a.stride[d];
    good = good && shifted >= 0 && shifted % a.stride[d] == 0 && o < a.out[d];
    index = index * a.out[d] + o;
  }
  return good ? index : -1;
}

template <class T>
CUDA_FN void conv(const cuda_window_args &a) {
  typedef typename real_of<T>::type R;
  const int64_t n_out = count_of(a.out), n_in = count_of(a.in), n_kernel = count_of(a.kernel);
  const int64_t each = a.channels / a.groups, made = a.outputs / a.groups;
  const T *w = static_cast<const T *>(a.w);
  bool padded;
  for (int64_t i = first_element(); i < a.batch * a.outputs * n_out; i += element_step()) {
    const int64_t m = i / n_out % a.outputs, b = i / n_out / a.outputs;
    const window_place o = place_in(a.out, i % n_out);
    const T *x = static_cast<const T *>(a.x) + (b * a.channels + m / made * each) * n_in;
    R sum = 0;
    for (int64_t c = 0; c < each; ++c) {
      for (int64_t k = 0; k < n_kernel; ++k) {
        const int64_t at = input_of(a, o, place_in(a.kernel, k), &padded);
        if (at >= 0)
          sum += (R)get(x, c * n_in + at) * (R)get(w, (m * each + c) * n_kernel + k);
      }
    }
    if (a.bias != nullptr)
      sum += (R)get(static_cast<const T *>(a.bias), m);
    put(static_cast<T *>(a.to), i, sum);
  }
}

template <class T>
CUDA_FN void conv_grad_x(const cuda_window_args &a) {
  typedef typename real_of<T>::type R;
  const int64_t n_out = count_of(a.out), n_in = count_of(a.in), n_kernel = count_of(a.kernel);
  const int64_t each = a.channels / a.groups, made = a.outputs / a.groups;
  const T *w = static_cast<const T *>(a.w), *dy = static_cast<const T *>(a.dy);
  for (int64_t i = first_element(); i < a.batch * a.channels * n_in; i += element_step()) {
    const int64_t c = i / n_in % a.channels, b = i / n_in / a.channels;
    const window_place at = place_in(a.in, i % n_in);
    R sum = 0;
    for (int64_t m = c / each * made; m < (c / each + 1) * made; ++m) {
      for (int64_t k = 0; k < n_kernel; ++k) {
        const int64_t o = output_of(a, at, place_in(a.kernel, k));
        if (o >= 0) {
          sum += (R)get(dy, (b * a.outputs + m) * n_out + o) *
                 (R)get(w, (m * each + c % each) * n_kernel + k);
        }
      }
    }
    put(static_cast<T *>(a.to), i, sum);
  }
}

/* Lanes take images and outputs in turn. */
template <class T>
CUDA_FN void conv_grad_w(const cuda_window_args &a) {
  typedef typename real_of<T>::type R;
  const int64_t n_out = count_of(a.out), n_in = count_of(a.in), n_kernel = count_of(a.kernel);
  const int64_t each = a.channels / a.groups, made = a.outputs / a.groups;
  const int64_t n = a.outputs * each * n_kernel;
  const T *x = static_cast<const T *>(a.x), *dy = static_cast<const T *>(a.dy);
  bool padded;
  for (int64_t i = (int64_t)blockIdx.x * CUDA_WARPS + threadIdx.x / 32; i < n;
       i += (int64_t)gridDim.x * CUDA_WARPS) {
    const window_place k = place_in(a.kernel, i % n_kernel);
    const int64_t m = i / n_kernel / each, c = m / made * each + i / n_kernel % each;
    R sum = 0;
    for (int64_t r = threadIdx.x % 32; r < a.batch * n_out; r += 32) {
      const int64_t b = r / n_out, o = r % n_out;
      const int64_t at = input_of(a, place_in(a.out, o), k, &padded);
      if (at >= 0) {
        sum += (R)get(dy, (b * a.outputs + m) * n_out + o) *
               (R)get(x, (b * a.channels + c) * n_in + at);
      }
    }
    sum = warp_all(sum, add_two());
    if (threadIdx.x % 32 == 0)
      put(static_cast<T *>(a.to), i, sum);
  }
}

/* Elements of the window at o that its mean divides by, and the first largest one. */
struct window_facts {
  int64_t count, largest;
};

template <class T, class R>
CUDA_FN window_facts look(const cuda_window_args &a, const T *plane, const window_place &o,
                          R *out_sum, R *out_best) {
  window_facts facts = {0, -1};
  *out_sum = 0;
  *out_best = (R)-INFINITY;
  for (int64_t k = 0; k < count_of(a.kernel); ++k) {
    bool padded;
    const int64_t at = input_of(a, o, place_in(a.kernel, k), &padded);
    facts.count += a.count_pads ? padded : at >= 0;
    if (at < 0 || plane == nullptr)
      continue;
    const R v = (R)get(plane, at);
    *out_sum += v;
    if (facts.largest < 0 || v > *out_best || (v != v && *out_best == *out_best)) {
      *out_best = v;
      facts.largest = at;
    }
  }
  return facts;
}

template <class T>
CUDA_FN void pool(const cuda_window_args &a) {
  typedef typename real_of<T>::type R;
  const int64_t n_out = count_of(a.out), n_in = count_of(a.in);
  for (int64_t i = first_element(); i < a.batch * a.channels * n_out; i += element_step()) {
    R sum, best;
    const window_facts facts = look(a, static_cast<const T *>(a.x) + i / n_out * n_in,
                                    place_in(a.out, i % n_out), &sum, &best);
    put(static_cast<T *>(a.to), i, a.mean ? sum / (R)facts.count : best);
  }
}

template <class T>
CUDA_FN void pool_grad(const cuda_window_args &a) {
  typedef typename real_of<T>::type R;
  const int64_t n_out = count_of(a.out), n_in = count_of(a.in);
  for (int64_t i = first_element(); i < a.batch * a.channels * n_in; i += element_step()) {
    const int64_t plane = i / n_in, own = i % n_in;
    const window_place at = place_in(a.in, own);
    const T *x = a.mean ? nullptr : static_cast<const T *>(a.x) + plane * n_in;
    R total = 0;
    for (int64_t k = count_of(a.kernel) - 1; k >= 0; --k) { /* outputs rise as k falls */
      const int64_t o = output_of(a, at, place_in(a.kernel, k));
      R sum, best;
      if (o < 0)
        continue;
      const window_facts facts = look(a, x, place_in(a.out, o), &sum, &best);
      const R dy = (R)get(static_cast<const T *>(a.dy), plane * n_out + o);
      if (a.mean)
        total += dy / (R)facts.count;
      else if (facts.largest == own)
        total += dy;
    }
    put(static_cast<T *>(a.to), i, total);
  }
}

template <class T>
CUDA_FN void batch_norm(const cuda_batch_norm_args &a) {
  typedef typename real_of<T>::type R;
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    const int64_t c = i / a.inner % a.channels;
    const R deviation = (R)sqrt((double)get(static_cast<const T *>(a.variance), c) + a.epsilon);
    const R centred =
        (R)get(static_cast<const T *>(a.x), i) - (R)get(static_cast<const T *>(a.mean), c);
    put(static_cast<T *>(a.y), i,
        centred / deviation * (R)get(static_cast<const T *>(a.scale), c) +
            (R)get(static_cast<const T *>(a.bias), c));
  }
}

#define CUDA_WINDOW(SUFFIX, TYPE)                \
  CUDA_KERNEL(opipe_conv_##SUFFIX) {             \
    conv<TYPE>(a);                               \
  }                                              \
  CUDA_KERNEL(opipe_conv_grad_x_##SUFFIX) {      \
    conv_grad_x<TYPE>(a);                        \
  }                                              \
  CUDA_KERNEL(opipe_conv_grad_w_##SUFFIX) {      \
    conv_grad_w<TYPE>(a);                        \
  }                                              \
  CUDA_KERNEL(opipe_pool_##SUFFIX) {             \
    pool<TYPE>(a);                               \
  }                                              \
  CUDA_KERNEL(opipe_pool_grad_##SUFFIX) {        \
    pool_grad<TYPE>(a);                          \
  }                                              \
  CUDA_ROOMY_KERNEL(opipe_batch_norm_##SUFFIX) { \
    batch_norm<TYPE>(a);                         \
  }
CUDA_WINDOW(f32, float)
CUDA_WINDOW(bf16, bf16)
CUDA_WINDOW(f16, f16)
CUDA_WINDOW(f64, double)
