/* SPDX-License-Identifier: Apache-2.0 */
/* Attention, plainly: every form, any depth up to CUDA_DEPTH, a block a row, of as many warps as
 * depth and keys need. The measure of the others.
 *
 * Scores are made twice: for the largest and the sum, then for the weights.
 * Gradients make them again: rows   largest, 1 / sum and D = sum(p dP) of each
 * query row, and dQ = sum(dS K) scale keys dV = sum(p dY), dK = sum(dS Q) scale
 * of each key row, over the heads that read it and their rows in rising order
 * mask   dS summed over what the mask repeats, in rising order with dS = p (dP
 * - D), times the slope of the cap. */
#include "attention.cuh"

template <class R>
struct attention_room {
  block_room<R> reduce;
  R query[CUDA_DEPTH], dy[CUDA_DEPTH];
  R weight[CUDA_THREADS], slope[CUDA_THREADS];
};

/* Raw and final score of key j; `first` the row's queries in shared memory. */
template <class T, class R>
CUDA_FN R score(const cuda_attention_args &a, const attention_place &at, const R *query, int64_t j,
                R *out_raw) {
  *out_raw = dot(query, key_row<T>(a, at, j), a.depth) * (R)a.scale;
  return add_mask<T>(a, at, j, capped(a, *out_raw));
}

/* Largest score and 1 / sum of exponentials of a row; 0 where all of it is
 * masked. */
template <class T, class R>
CUDA_FN void row_statistics(const cuda_attention_args &a, const attention_place &at, int64_t n,
                            attention_room<R> *room, R *out_top, R *out_inverse) {
  R top = (R)-INFINITY, sum = 0, raw;
  for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
    top = max_two()(top, score<T>(a, at, room->query, j, &raw));
  top = threads_all(top, max_two(), &room->reduce);
  for (int64_t j = threadIdx.x; j < n && top != (R)-INFINITY; j += blockDim.x)
    sum += exp_of(score<T>(a, at, room->query, j, &raw) - top);
  sum = threads_all(sum, add_two(), &room->reduce);
  *out_top = top;
  *out_inverse = sum == 0 ? (R)0 : (R)1 / sum;
}

/* Scores of all keys at the stage that the mode asks for. */
template <class T, class R>
CUDA_FN void write_scores(const cuda_attention_args &a, const attention_place &at, int64_t n,
                          int64_t row, const R *query, R top, R inverse) {
  T *out = static_cast<T *>(a.scores) + row * a.keys;
  for (int64_t j = threadIdx.x; j < a.keys; j += blockDim.x) {
    const R raw = dot(query, key_row<T>(a, at, j), a.depth) * (R)a.scale;
    R s = j < n ? add_mask<T>(a, at, j, capped(a, raw)) : (R)-INFINITY;
    if (a.scores_mode == 3)
      s = inverse == 0 || j >= n ? (R)0 : exp_of(s - top) * inverse;
    put(out, j, a.scores_mode == 0 ? raw : a.scores_mode == 1 ? capped(a, raw) : s);
  }
}

/* out[d] = sum of weight[j] value[j][d] over the tiles of keys; `tile` fills
 * the weights. */
template <class T>
CUDA_FN void attend(const cuda_attention_args &a) {
  typedef typename real_of<T>::type R;
  CUDA_SHARED(attention_room<R>, room);
  const int64_t rows = a.batch * a.heads * a.queries;
  for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    const attention_place at = place_of_row(a, i);
    const int64_t n = visible_keys(a, at);
    const int64_t d = threadIdx.x;
    R top, inverse, sum = 0;
    __syncthreads(); /* of the row before */
    if (d < a.depth)
      room.query[d] = get(query_row<T>(a, at), d);
    __syncthreads();
    row_statistics<T>(a, at, n, &room, &top, &inverse);
    if (a.found != nullptr && d == 0)
      a.found[i] = inverse == 0 ? INFINITY : (float)(top - log_of(inverse));
    if (a.scores != nullptr)
      write_scores<T>(a, at, n, i, room.query, top, inverse);
    for (int64_t first = 0; first < n; first += blockDim.x) {
      const int64_t j = first + threadIdx.x;
      R raw;
      __syncthreads();
      room.weight[threadIdx.x] = j < n && inverse != 0
                                     ? exp_of(score<T>(a, at, room.query, j, &raw) - top) * inverse
                                     : (R)0;
      __syncthreads();
      for (int64_t k = 0; k < blockDim.x && first + k < n && d < a.value_depth; ++k) {
        const R p = room.weight[k];
        sum += p == 0 ? (R)0 : p * (R)get(value_row<T>(a, at, first + k), d);
      }
    }
    if (d < a.value_depth) {
      put(static_cast<T *>(a.y) + at.b * a.y_stride[0] + at.h * a.y_stride[1] +
              at.row * a.y_stride[2],
          d, sum);
    }
  }
}

/* ---- gradients ---- */

/* Probability of key j and the gradient that reaches it, dP = dY V. */
template <class T, class R>
CUDA_FN R probability(const cuda_attention_args &a, const attention_place &at, const R *query,
                      const R *dy, int64_t j, R top, R inverse, R *out_dp, R *out_slope) {
  R raw;
  const R s = score<T>(a, at, query, j, &raw);
  const R p = inverse == 0 ? (R)0 : exp_of(s - top) * inverse;
  *out_dp = p == 0 ? (R)0 : dot(dy, value_row<T>(a, at, j), a.value_depth);
  *out_slope = cap_slope(a, raw);
  return p;
}

template <class T>
CUDA_FN void grad_of_rows(const cuda_attention_grad_args &g) {
  typedef typename real_of<T>::type R;
  const cuda_attention_args &a = g.forward;
  CUDA_SHARED(attention_room<R>, room);
  R *statistics = static_cast<R *>(g.workspace);
  for (int64_t i = blockIdx.x; i < a.batch * a.heads * a.queries; i += gridDim.x) {
    const attention_place at = place_of_row(a, i);
    const int64_t n = visible_keys(a, at), d = threadIdx.x;
    R top, inverse, weighted = 0, sum = 0, dp, slope;
    __syncthreads();
    if (d < a.depth)
      room.query[d] = get(query_row<T>(a, at), d);
    if (d < a.value_depth)
      room.dy[d] = get(dy_row<T>(g, at), d);
    __syncthreads();
    row_statistics<T>(a, at, n, &room, &top, &inverse);
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
      const R p = probability<T>(a, at, room.query, room.dy, j, top, inverse, &dp, &slope);
      weighted += p * dp;
    }
    weighted = threads_all(weighted, add_two(), &room.reduce);
    if (d == 0) {
      statistics[3 * i] = top;
      statistics[3 * i + 1] = inverse;
      statistics[3 * i + 2] = weighted;
    }
    for (int64_t first = 0; first < n && g.dq != nullptr; first += blockDim.x) {
      const int64_t j = first + threadIdx.x;
      R ds = 0;
      if (j < n) {
        const R p = probability<T>(a, at, room.query, room.dy, j, top, inverse, &dp, &slope);
        ds = p == 0 ? (R)0 : p * (dp - weighted) * slope;
      }
      __syncthreads();
      room.weight[threadIdx.x] = ds;
      __syncthreads();
      for (int64_t k = 0; k < blockDim.x && first + k < n && d < a.depth; ++k) {
        const R w = room.weight[k];
        sum += w == 0 ? (R)0 : w * (R)get(key_row<T>(a, at, first + k), d);
      }
    }
    if (d < a.depth && g.dq != nullptr) {
      put(static_cast<T *>(g.dq) + at.b * g.dq_stride[0] + at.h * g.dq_stride[1] +
              at.row * g.dq_stride[2],
          d, sum * (R)a.scale);
    }
  }
}

/* Probability and gradient of the score of query row `at` for key j, from the
 * rows' statistics. */
template <class T, class R>
CUDA_FN R score_gradient(const cuda_attention_grad_args &g, const attention_place &at, const T *key,
                         const T *value, int64_t j, R *out_p, R *out_slope) {
  const cuda_attention_args &a = g.forward;
  const R *s =
      static_cast<const R *>(g.workspace) + 3 * ((at.b * a.heads + at.h) * a.queries + at.row);
  const T *query = query_row<T>(a, at), *dy = dy_row<T>(g, at);
  R raw = 0, dp = 0;
  *out_p = 0;
  *out_slope = 0;
  if (j >= visible_keys(a, at) || s[1] == 0)
    return 0;
  for (int64_t d = 0; d < a.depth; ++d)
    raw += get(query, d) * get(key, d);
  raw *= (R)a.scale;
  *out_p = exp_of(add_mask<T>(a, at, j, capped(a, raw)) - s[0]) * s[1];
  if (*out_p == 0)
    return 0;
  for (int64_t d = 0; d < a.value_depth; ++d)
    dp += get(dy, d) * get(value, d);
  *out_slope = cap_slope(a, raw);
  return *out_p * (dp - s[2]);
}

template <class T>
CUDA_FN void grad_of_keys(const cuda_attention_grad_args &g) {
  typedef typename real_of<T>::type R;
  const cuda_attention_args &a = g.forward;
  const int64_t group = a.heads / a.kv_heads, d = threadIdx.x;
  CUDA_SHARED(attention_room<R>, room);
  for (int64_t i = blockIdx.x; i < a.batch * a.kv_heads * a.keys; i += gridDim.x) {
    const int64_t j = i % a.keys;
    attention_place at = {i / a.keys / a.kv_heads, 0, i / a.keys % a.kv_heads, 0};
    const T *key = key_row<T>(a, at, j), *value = value_row<T>(a, at, j);
    R dk = 0, dv = 0;
    for (int64_t first = 0; first < group * a.queries; first += blockDim.x) {
      const int64_t r = first + threadIdx.x;
      R p = 0, slope = 0, ds = 0;
      if (r < group * a.queries) {
        at.h = at.kv * group + r / a.queries;
        at.row = r % a.queries;
        ds = score_gradient<T>(g, at, key, value, j, &p, &slope);
      }
      __syncthreads();
      room.weight[threadIdx.x] = p;
      room.slope[threadIdx.x] = ds * slope;
      __syncthreads();
      for (int64_t k = 0; k < blockDim.x && first + k < group * a.queries; ++k) {
        at.h = at.kv * group + (first + k) / a.queries;
        at.row = (first + k) % a.queries;
        if (d < a.value_depth && room.weight[k] != 0)
          dv += room.weight[k] * (R)get(dy_row<T>(g, at), d);
        if (d < a.depth && room.slope[k] != 0)
          dk += room.slope[k] * (R)get(query_row<T>(a, at), d);
      }
    }
    T *to_k = grad_row<T>(g.dpast_k, g.dpast_k_stride, g.dk, g.dk_stride, a.past, at, j);
    T *to_v = grad_row<T>(g.dpast_v, g.dpast_v_stride, g.dv, g.dv_stride, a.past, at, j);
    if (d < a.depth && to_k != nullptr)
      put(to_k, d, dk * (R)a.scale);
    if (d < a.value_depth && to_v != nullptr)
      put(to_v, d, dv);
  }
}

/* A thread an element of the mask. */
template <class T>
CUDA_FN void grad_of_mask(const cuda_attention_grad_args &g) {
  typedef typename real_of<T>::type R;
  const cuda_attention_args &a = g.forward;
  const int64_t full[4] = {a.batch, a.heads, a.queries, a.mask_keys};
  int64_t own[4], repeats[4];
  for (int k = 0; k < 4; ++k) {
    own[k] = a.mask_stride[k] != 0 ? full[k] : 1;
    repeats[k] = a.mask_stride[k] != 0 ? 1 : full[k];
  }
  for (int64_t i = first_element(); i < own[0] * own[1] * own[2] * own[3]; i += element_step()) {
    const int64_t at[4] = {i / own[3] / own[2] / own[1], i / own[3] / own[2] % own[1],
                           i / own[3] % own[2], i % own[3]};
    R sum = 0;
    for (int64_t r = 0; r < repeats[0] * repeats[1] * repeats[2] * repeats[3]; ++r) {
      attention_place place;
      place.b = at[0] + r / repeats[3] / repeats[2] / repeats[1];
      place.h = at[1] + r / repeats[3] / repeats[2] % repeats[1];
      place.kv = place.h / (a.heads / a.kv_heads);
      place.row = at[2] + r / repeats[3] % repeats[2];
      const int64_t j = at[3] + r % repeats[3];
      R p, slope;
      sum += score_gradient<T>(g, place, key_row<T>(a, place, j), value_row<T>(a, place, j), j, &p,
                               &slope);
    }
    const int64_t to = at[0] * a.mask_stride[0] + at[1] * a.mask_stride[1] +
                       at[2] * a.mask_stride[2] + at[3] * a.mask_stride[3];
    if (a.mask_kind == 2)
      put(static_cast<T *>(g.dmask), to, sum);
    else
      put(static_cast<float *>(g.dmask), to, (float)sum);
  }
}

#define CUDA_ATTENTION(KERNEL, SUFFIX, TYPE)        \
  KERNEL(opipe_attention_##SUFFIX) {                \
    attend<TYPE>(a);                                \
  }                                                 \
  CUDA_KERNEL(opipe_attention_grad_rows_##SUFFIX) { \
    grad_of_rows<TYPE>(a);                          \
  }                                                 \
  KERNEL(opipe_attention_grad_keys_##SUFFIX) {      \
    grad_of_keys<TYPE>(a);                          \
  }                                                 \
  CUDA_KERNEL(opipe_attention_grad_mask_##SUFFIX) { \
    grad_of_mask<TYPE>(a);                          \
  }
CUDA_ATTENTION(CUDA_KERNEL, f32, float)
CUDA_ATTENTION(CUDA_KERNEL, bf16, bf16)
CUDA_ATTENTION(CUDA_KERNEL, f16, f16)
CUDA_ATTENTION(CUDA_ROOMY_KERNEL, f64, double)

/* ---- RotaryEmbedding (Su et al. 2021) ---- */

template <class T, class C>
CUDA_FN void rotate(const cuda_rotary_args &a) {
  typedef typename real_of<T>::type R;
  const int64_t half = a.turned / 2, rest = a.depth - a.turned, per_row = half + rest;
  const int64_t n = a.batch * a.heads * a.queries * per_row;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t k = i % per_row, s = i / per_row % a.queries;
    const int64_t h = i / per_row / a.queries % a.heads, b = i / per_row / a.queries / a.heads;
    const T *x =
        static_cast<const T *>(a.x) + b * a.x_stride[0] + h * a.x_stride[1] + s * a.x_stride[2];
    T *y = static_cast<T *>(a.y) + b * a.y_stride[0] + h * a.y_stride[1] + s * a.y_stride[2];
    if (k >= half) {
      y[half + k] = x[half + k];
      continue;
    }
    int64_t position =
        a.ids != nullptr ? a.ids[b * a.queries + s] : s + (a.per_batch ? b * a.queries : 0);
    if (position < 0 || position >= a.positions) {
      report(a.status, CUDA_STATUS_POSITION, a.node, position, a.positions);
      position = 0;
    }
    const int64_t first = a.interleaved ? 2 * k : k, second = a.interleaved ? 2 * k + 1 : k + half;
    const R c = (R)get(static_cast<const C *>(a.cosines), position * half + k);
    const R sine = (R)get(static_cast<const C *>(a.sines), position * half + k);
    const R x1 = get(x, first), x2 = get(x, second);
    put(y, first, x1 * c - x2 * sine);
    put(y, second, x1 * sine + x2 * c);
  }
}

#define CUDA_ROTARY(PAIR, TYPE, CACHE) \
  CUDA_KERNEL(opipe_rotary_##PAIR) {   \
    rotate<TYPE, CACHE>(a);            \
  }
CUDA_ROTARY(f32, float, float)
CUDA_ROTARY(bf16, bf16, bf16)
CUDA_ROTARY(f16, f16, f16)
CUDA_ROTARY(f64, double, double)
CUDA_ROTARY(bf16_f32, bf16, float)
CUDA_ROTARY(f16_f32, f16, float)
CUDA_ROTARY(f64_f32, double, float)
