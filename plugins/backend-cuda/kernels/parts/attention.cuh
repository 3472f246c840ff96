/* SPDX-License-Identifier: Apache-2.0 */
/* Attention: where rows lie and what a score is. Semantics: abi/guide/operators.md. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_ATTENTION_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_ATTENTION_CUH_

#include "map_math.cuh"

/* block_all of a block of any number of warps up to CUDA_WARPS. */
template <class R, class Op>
CUDA_FN R threads_all(R x, Op op, block_room<R> *room) {
  x = warp_all(x, op);
  __syncthreads(); /* the room may still be read */
  if (threadIdx.x % 32 == 0)
    room->part[threadIdx.x / 32] = x;
  __syncthreads();
  R y = room->part[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w)
    y = op(y, room->part[w]);
  return y;
}

struct attention_place { /* of a query row */
  int64_t b, h, kv, row;
};

CUDA_FN attention_place place_of_row(const cuda_attention_args &a, int64_t i) {
  attention_place at;
  at.row = i % a.queries;
  at.h = i / a.queries % a.heads;
  at.b = i / a.queries / a.heads;
  at.kv = at.h / (a.heads / a.kv_heads);
  return at;
}

template <class T>
CUDA_FN const T *query_row(const cuda_attention_args &a, const attention_place &at) {
  return static_cast<const T *>(a.q) + at.b * a.q_stride[0] + at.h * a.q_stride[1] +
         at.row * a.q_stride[2];
}

/* Row j of [0, past + fresh) of the keys or values of a head. */
template <class T>
CUDA_FN const T *joined_row(const void *past, const int64_t *past_stride, const void *fresh,
                            const int64_t *stride, int64_t n_past, int64_t b, int64_t kv,
                            int64_t j) {
  return j < n_past ? static_cast<const T *>(past) + b * past_stride[0] + kv * past_stride[1] +
                          j * past_stride[2]
                    : static_cast<const T *>(fresh) + b * stride[0] + kv * stride[1] +
                          (j - n_past) * stride[2];
}
template <class T>
CUDA_FN const T *key_row(const cuda_attention_args &a, const attention_place &at, int64_t j) {
  return joined_row<T>(a.past_k, a.past_k_stride, a.k, a.k_stride, a.past, at.b, at.kv, j);
}
template <class T>
CUDA_FN const T *value_row(const cuda_attention_args &a, const attention_place &at, int64_t j) {
  return joined_row<T>(a.past_v, a.past_v_stride, a.v, a.v_stride, a.past, at.b, at.kv, j);
}

/* Keys [0, n) may be seen by this row; the mask may take more away. */
CUDA_FN int64_t visible_keys(const cuda_attention_args &a, const attention_place &at) {
  int64_t n = a.keys;
  if (a.mask_kind != 0 && a.mask_keys < n)
    n = a.mask_keys;
  if (a.nonpad != nullptr && a.nonpad[at.b] < n)
    n = a.nonpad[at.b];
  if (a.causal && at.row + a.past + 1 < n)
    n = at.row + a.past + 1;
  return n < 0 ? 0 : n;
}

/* Sums below -1024 as the mask's own type of `bits` gives them: split by 2^(24 - bits) + 1
 * (Veltkamp). */
template <class R>
CUDA_FN R round_low(uint32_t bits, R s) {
  if (bits == 0 || !(s < -1024) || s < (R)-1e30)
    return s;
  const int digits = sizeof(R) == 8 ? 53 : 24;
  const R split = s * ((R)((uint64_t)1 << (digits - (int)bits)) + (R)1);
  const R rounded = split - (split - s);
  return bits == 11 && rounded < -65504 ? (R)-INFINITY : rounded;
}

template <class T>
struct mask_bits { /* of a mask in the type of the queries */
  static const uint32_t n = 0;
};
template <>
struct mask_bits<f16> {
  static const uint32_t n = 11;
};
template <>
struct mask_bits<bf16> {
  static const uint32_t n = 8;
};

template <class T, class R>
CUDA_FN R add_mask(const cuda_attention_args &a, const attention_place &at, int64_t j, R s) {
  const int64_t i = at.b * a.mask_stride[0] + at.h * a.mask_stride[1] + at.row * a.mask_stride[2] +
                    j * a.mask_stride[3];
  if (a.mask_kind == 1)
    return static_cast<const uint8_t *>(a.mask)[i] != 0 ? s : (R)-INFINITY;
  if (a.mask_kind == 2)
    return round_low(mask_bits<T>::n, s + (R)get(static_cast<const T *>(a.mask), i));
  if (a.mask_kind == 3)
    return s + (R) static_cast<const float *>(a.mask)[i];
  return s;
}

template <class R>
CUDA_FN R capped(const cuda_attention_args &a, R s) {
  return a.softcap > 0 ? (R)a.softcap * tanh_of(s / (R)a.softcap) : s;
}

/* Derivative of the cap, by the score before it. */
template <class R>
CUDA_FN R cap_slope(const cuda_attention_args &a, R s) {
  const R t = a.softcap > 0 ? tanh_of(s / (R)a.softcap) : (R)0;
  return (R)1 - t * t;
}

template <class T, class R>
CUDA_FN R dot(const R *x, const T *y, int64_t n) {
  R sum = 0;
  for (int64_t d = 0; d < n; ++d)
    sum += x[d] * (R)widen(y[d]);
  return sum;
}

/* ---- gradients ---- */

template <class T>
CUDA_FN const T *dy_row(const cuda_attention_grad_args &g, const attention_place &at) {
  return static_cast<const T *>(g.dy) + at.b * g.dy_stride[0] + at.h * g.dy_stride[1] +
         at.row * g.dy_stride[2];
}

/* Where the gradient of joined row j goes; NULL: nowhere. */
template <class T>
CUDA_FN T *grad_row(void *past, const int64_t *past_stride, void *fresh, const int64_t *stride,
                    int64_t n_past, const attention_place &at, int64_t j) {
  if (j < n_past) {
    return past == nullptr ? nullptr
                           : static_cast<T *>(past) + at.b * past_stride[0] +
                                 at.kv * past_stride[1] + j * past_stride[2];
  }
  return fresh == nullptr ? nullptr
                          : static_cast<T *>(fresh) + at.b * stride[0] + at.kv * stride[1] +
                                (j - n_past) * stride[2];
}

#endif
