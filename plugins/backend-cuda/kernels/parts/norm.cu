/* SPDX-License-Identifier: Apache-2.0 */
/* LayerNormalization and RMSNormalization with a residual, of long rows (short ones: norm_warp.cu),
 * and their gradients; GroupNormalization.
 *
 * With h = (x - mean) / s and g = dY scale (Ba, Kiros and Hinton 2016; Zhang
 * and Sennrich 2019): dX = (g - mean(g) - h mean(g h)) / s, of RMS without the
 * means of x and g dScale = sum over rows of dY h, dBias = sum over rows of dY:
 * chunks of rows, then the chunks in order */
#include "norm.cuh"

/* Rows are read again for each sum: they are in the first-level cache. Every caller gets the same
 * bits. */
template <class T, bool BLOCK, class R>
CUDA_FN void moments(const T *x, int64_t n, bool whole, bool rms, double epsilon,
                     const row_team<BLOCK, R> &team, R *out_mean, R *out_inverse) {
  const int V = lanes<T>::n;
  R mean = 0, square = 0, v[V];
  if (!rms) {
    for (int64_t i = (int64_t)team.rank() * V; i < n; i += team.size() * V) {
      load_packet(x, i, n, whole, v);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        mean += v[k];
    }
    mean = team.sum(mean) / (R)n;
  }
  for (int64_t i = (int64_t)team.rank() * V; i < n; i += team.size() * V) {
    load_packet(x, i, n, whole, v);
    CUDA_UNROLL
    for (int k = 0; k < V; ++k)
      square = i + k < n ? joined(v[k] - mean, v[k] - mean, square) : square;
  }
  *out_mean = mean;
  *out_inverse = (R)1 / root_of(team.sum(square) / (R)n + (R)epsilon);
}

/* sum = x + residual, rounded as it is stored: what follows reads the stored
 * row. */
template <class T, class R>
CUDA_FN void add_residual(const T *x, const T *residual, T *sum, int64_t n, bool whole,
                          const row_team<true, R> &team) {
  const int V = lanes<T>::n;
  for (int64_t i = (int64_t)team.rank() * V; i < n; i += team.size() * V) {
    R u[V], v[V];
    load_packet(x, i, n, whole, u);
    load_packet(residual, i, n, whole, v);
    CUDA_UNROLL
    for (int k = 0; k < V; ++k)
      u[k] += v[k];
    store_packet(sum, i, n, whole, u);
  }
}

template <class T, class S, class R>
CUDA_FN void norm_rows(const cuda_norm_args &a, const row_team<true, R> &team) {
  const int V = lanes<T>::n;
  const S *scale = static_cast<const S *>(a.scale), *bias = static_cast<const S *>(a.bias);
  const bool whole =
      a.n % V == 0 && aligned16(a.x) && aligned16(a.y) && aligned16(a.residual) && aligned16(a.sum);
  const bool vectors = a.n % V == 0 && aligned16(scale) && aligned16(bias);
  for (int64_t row = team.first_row(); row < a.rows; row += team.row_step()) {
    const T *x = static_cast<const T *>(a.x) + row * a.n;
    T *y = static_cast<T *>(a.y) + row * a.n;
    R mean, inverse;
    if (a.residual != nullptr) { /* without `sum` it lies in y, which a thread
                                    reads before it writes */
      T *sum = a.sum != nullptr ? static_cast<T *>(a.sum) + row * a.n : y;
      add_residual(x, static_cast<const T *>(a.residual) + row * a.n, sum, a.n, whole, team);
      x = sum; /* every thread reads back what it wrote itself */
    }
    moments(x, a.n, whole, a.rms != 0, a.epsilon, team, &mean, &inverse);
    for (int64_t i = (int64_t)team.rank() * V; i < a.n; i += team.size() * V) {
      R v[V], s[V], b[V];
      load_packet(x, i, a.n, whole, v);
      load_run<V>(scale, i, a.n, vectors, s);
      if (bias != nullptr)
        load_run<V>(bias, i, a.n, vectors, b);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k) {
        v[k] = (v[k] - mean) * inverse * s[k];
        v[k] = bias != nullptr ? v[k] + b[k] : v[k];
      }
      store_packet(y, i, a.n, whole, v);
    }
    if (team.rank() == 0 && a.mean != nullptr)
      static_cast<R *>(a.mean)[row] = mean;
    if (team.rank() == 0 && a.inv_std != nullptr)
      static_cast<R *>(a.inv_std)[row] = inverse;
  }
}

/* ---- gradients ---- */

template <class T, class S, bool BLOCK, class R>
CUDA_FN void norm_grad_rows(const cuda_norm_grad_args &a, const row_team<BLOCK, R> &team) {
  const int V = lanes<T>::n;
  const S *scale = static_cast<const S *>(a.scale);
  const bool whole =
      a.n % V == 0 && aligned16(a.x) && aligned16(a.dy) && aligned16(a.dx) && aligned16(a.residual);
  const bool vectors = a.n % V == 0 && aligned16(scale);
  for (int64_t row = team.first_row(); row < a.rows; row += team.row_step()) {
    const T *x = static_cast<const T *>(a.x) + row * a.n;
    const T *dy = static_cast<const T *>(a.dy) + row * a.n;
    const T *residual = static_cast<const T *>(a.residual);
    R mean, inverse, sum = 0, dot = 0;
    moments(x, a.n, whole, a.rms != 0, a.epsilon, team, &mean, &inverse);
    for (int64_t i = (int64_t)team.rank() * V; i < a.n; i += team.size() * V) {
      R v[V], d[V], s[V];
      load_packet(x, i, a.n, whole, v);
      load_packet(dy, i, a.n, whole, d);
      load_run<V>(scale, i, a.n, vectors, s);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        add_terms(d[k], s[k], (v[k] - mean) * inverse, i + k < a.n, &sum, &dot);
    }
    sum = a.rms ? (R)0 : team.sum(sum) / (R)a.n;
    dot = team.sum(dot) / (R)a.n;
    for (int64_t i = (int64_t)team.rank() * V; i < a.n; i += team.size() * V) {
      R v[V], d[V], s[V];
      load_packet(x, i, a.n, whole, v);
      load_packet(dy, i, a.n, whole, d);
      load_run<V>(scale, i, a.n, vectors, s);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        v[k] = grad_of(d[k], s[k], (v[k] - mean) * inverse, sum, dot, inverse);
      if (residual != nullptr) {
        load_packet(residual + row * a.n, i, a.n, whole, d);
        CUDA_UNROLL
        for (int k = 0; k < V; ++k)
          v[k] = plain_sum(as_stored<T>(v[k]), d[k]);
      }
      store_packet(static_cast<T *>(a.dx) + row * a.n, i, a.n, whole, v);
    }
    if (team.rank() == 0 && a.statistics != nullptr) {
      static_cast<R *>(a.statistics)[2 * row] = mean;
      static_cast<R *>(a.statistics)[2 * row + 1] = inverse;
    }
  }
}

/* statistics [rows][2] of the workspace: mean and 1 / s. */
template <class T, bool BLOCK, class R>
CUDA_FN void write_moments(const cuda_norm_scale_args &a, const row_team<BLOCK, R> &team) {
  R *to = static_cast<R *>(a.workspace);
  const bool whole = a.n % lanes<T>::n == 0 && aligned16(a.x);
  for (int64_t row = team.first_row(); row < a.rows; row += team.row_step()) {
    R mean, inverse;
    moments(static_cast<const T *>(a.x) + row * a.n, a.n, whole, a.rms != 0, a.epsilon, team, &mean,
            &inverse);
    if (team.rank() == 0) {
      to[2 * row] = mean;
      to[2 * row + 1] = inverse;
    }
  }
}

/* Chunks of rows: partial [chunks][2][n] lies behind the statistics. */
template <class T, class R>
CUDA_FN void scale_chunks(const cuda_norm_scale_args &a, slice_room<R, lanes<T>::n> *room) {
  const int V = lanes<T>::n;
  const R *statistics = static_cast<const R *>(a.workspace);
  R *partial = static_cast<R *>(a.workspace) + 2 * a.rows + (int64_t)blockIdx.y * 2 * a.n;
  const int64_t i = ((int64_t)blockIdx.x * 32 + threadIdx.x % 32) * V;
  const int64_t first = (int64_t)blockIdx.y * CUDA_CHUNK_ROWS;
  const int64_t end = first + CUDA_CHUNK_ROWS < a.rows ? first + CUDA_CHUNK_ROWS : a.rows;
  const bool whole = a.n % V == 0 && aligned16(a.x) && aligned16(a.dy);
  R scale[V], bias[V];
  CUDA_UNROLL
  for (int k = 0; k < V; ++k)
    scale[k] = bias[k] = 0;
  for (int64_t row = first + threadIdx.x / 32; row < end && i < a.n; row += COLUMN_SLICES) {
    const R mean = statistics[2 * row], inverse = statistics[2 * row + 1];
    R v[V], d[V];
    load_packet(static_cast<const T *>(a.x) + row * a.n, i, a.n, whole, v);
    load_packet(static_cast<const T *>(a.dy) + row * a.n, i, a.n, whole, d);
    CUDA_UNROLL
    for (int k = 0; k < V; ++k) {
      scale[k] += d[k] * ((v[k] - mean) * inverse);
      bias[k] += d[k];
    }
  }
  add_slices<R, V>(scale, room, partial, a.n);
  add_slices<R, V>(bias, room, partial + a.n, a.n);
}

/* Adds up the chunks; blockIdx.y 0 the scale's, 1 the bias's. */
template <class R>
CUDA_FN void scale_sums(const cuda_norm_scale_args &a, run_room<R> *room) {
  R *out = static_cast<R *>(blockIdx.y == 0 ? a.dscale : a.dbias);
  const R *partial = static_cast<const R *>(a.workspace) + 2 * a.rows + (int64_t)blockIdx.y * a.n;
  const int64_t chunks = (a.rows + CUDA_CHUNK_ROWS - 1) / CUDA_CHUNK_ROWS;
  int64_t column;
  R sum;
  if (out == nullptr || !add_chunks(partial, 2 * a.n, chunks, a.n, room, &column, &sum))
    return;
  out[column] = a.adds ? out[column] + sum : sum;
}

/* The names of a type: PAIR has a scale of type S. */
#define CUDA_NORM_PAIR(PAIR, T, S, R)                     \
  CUDA_KERNEL(opipe_norm_block_##PAIR) {                  \
    CUDA_SHARED(block_room<R>, room);                     \
    norm_rows<T, S>(a, row_team<true, R>{&room});         \
  }                                                       \
  CUDA_ROOMY_KERNEL(opipe_norm_grad_warp_##PAIR) {        \
    norm_grad_rows<T, S>(a, row_team<false, R>{nullptr}); \
  }                                                       \
  CUDA_ROOMY_KERNEL(opipe_norm_grad_block_##PAIR) {       \
    CUDA_SHARED(block_room<R>, room);                     \
    norm_grad_rows<T, S>(a, row_team<true, R>{&room});    \
  }
#define CUDA_NORM_TYPE(SUFFIX, T, R)                  \
  CUDA_KERNEL(opipe_norm_moments_warp_##SUFFIX) {     \
    write_moments<T>(a, row_team<false, R>{nullptr}); \
  }                                                   \
  CUDA_KERNEL(opipe_norm_moments_block_##SUFFIX) {    \
    CUDA_SHARED(block_room<R>, room);                 \
    write_moments<T>(a, row_team<true, R>{&room});    \
  }                                                   \
  CUDA_KERNEL(opipe_norm_chunks_##SUFFIX) {           \
    typedef slice_room<R, lanes<T>::n> all_sums;      \
    CUDA_SHARED(all_sums, room);                      \
    scale_chunks<T>(a, &room);                        \
  }
CUDA_NORM_PAIR(f32, float, float, float)
CUDA_NORM_PAIR(bf16, bf16, bf16, float)
CUDA_NORM_PAIR(f16, f16, f16, float)
CUDA_NORM_PAIR(f64, double, double, double)
CUDA_NORM_PAIR(bf16_f32, bf16, float, float)
CUDA_NORM_PAIR(f16_f32, f16, float, float)
CUDA_NORM_PAIR(f64_f32, double, float, double)
CUDA_NORM_TYPE(f32, float, float)
CUDA_NORM_TYPE(bf16, bf16, float)
CUDA_NORM_TYPE(f16, f16, float)
CUDA_NORM_TYPE(f64, double, double)

CUDA_KERNEL(opipe_norm_sums_f32) {
  CUDA_SHARED(run_room<float>, room);
  scale_sums<float>(a, &room);
}
CUDA_KERNEL(opipe_norm_sums_f64) {
  CUDA_SHARED(run_room<double>, room);
  scale_sums<double>(a, &room);
}

/* ---- over groups of channels: x [batch, channels, pixels], a block a group
 * ---- */

template <class T, class S, class R>
CUDA_FN void group_norm(const cuda_group_norm_args &a, block_room<R> *room) {
  const int V = lanes<T>::n;
  const row_team<true, R> team = {room};
  const int64_t per_group = a.channels / a.groups, n = per_group * a.pixels;
  const bool whole = n % V == 0 && aligned16(a.x);
  for (int64_t g = blockIdx.x; g < a.batch * a.groups; g += gridDim.x) {
    const T *x = static_cast<const T *>(a.x) + g * n;
    R mean, inverse;
    moments(x, n, whole, false, a.epsilon, team, &mean, &inverse);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const int64_t channel = g % a.groups * per_group + i / a.pixels;
      const R scaled =
          (get(x, i) - mean) * inverse * (R)get(static_cast<const S *>(a.scale), channel);
      put(static_cast<T *>(a.y) + g * n, i,
          scaled + (R)get(static_cast<const S *>(a.bias), channel));
    }
  }
}

#define CUDA_GROUP_NORM(PAIR, T, S, R)         \
  CUDA_ROOMY_KERNEL(opipe_group_norm_##PAIR) { \
    CUDA_SHARED(block_room<R>, room);          \
    group_norm<T, S>(a, &room);                \
  }
CUDA_GROUP_NORM(f32, float, float, float)
CUDA_GROUP_NORM(bf16, bf16, bf16, float)
CUDA_GROUP_NORM(f16, f16, f16, float)
CUDA_GROUP_NORM(f64, double, double, double)
CUDA_GROUP_NORM(bf16_f32, bf16, float, float)
CUDA_GROUP_NORM(f16_f32, f16, float, float)
CUDA_GROUP_NORM(f64_f32, double, float, double)
