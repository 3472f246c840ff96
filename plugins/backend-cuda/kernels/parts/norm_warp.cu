/* SPDX-License-Identifier: Apache-2.0 */
/* LayerNormalization and RMSNormalization with a residual, and their gradients, of rows of up to
 * CUDA_WARP_ROW elements: a warp takes a row and keeps it in registers, so that everything is read
 * once. Formulas and orders of additions are those of norm.cu. */
#include "columns.cuh"

/* A lane's packets of a row, elements (32 p + lane) V and on. */
template <class T>
struct kept_row {
  static const int packets = CUDA_WARP_ROW / 32 / lanes<T>::n;
  packet<T> p[packets];
};

CUDA_FN int lane_of(void) {
  return (int)(threadIdx.x % 32);
}

/* Beyond n: 0. whole: see load_packet. */
template <class T>
CUDA_FN void load_row(const T *row, int n, bool whole, kept_row<T> *out) {
  const int V = lanes<T>::n;
  CUDA_UNROLL
  for (int p = 0; p < kept_row<T>::packets; ++p) {
    const int i = (p * 32 + lane_of()) * V;
    if (i >= n)
      continue;
    if (whole) {
      out->p[p] = *reinterpret_cast<const packet<T> *>(row + i);
      continue;
    }
    CUDA_UNROLL
    for (int k = 0; k < V; ++k) {
      narrow((typename real_of<T>::type)0, &out->p[p].v[k]);
      if (i + k < n)
        out->p[p].v[k] = row[i + k];
    }
  }
}

template <class T, class R>
CUDA_FN void moments_of(const kept_row<T> &row, int n, bool rms, double epsilon, R *out_mean,
                        R *out_inverse) {
  const int V = lanes<T>::n;
  R mean = 0, square = 0;
  if (!rms) {
    CUDA_UNROLL
    for (int p = 0; p < kept_row<T>::packets; ++p) {
      if ((p * 32 + lane_of()) * V < n) {
        CUDA_UNROLL
        for (int k = 0; k < V; ++k)
          mean += (R)widen(row.p[p].v[k]);
      }
    }
    mean = warp_all(mean, add_two()) / (R)n;
  }
  CUDA_UNROLL
  for (int p = 0; p < kept_row<T>::packets; ++p) {
    CUDA_UNROLL
    for (int k = 0; k < V; ++k) {
      const R v = (R)widen(row.p[p].v[k]) - mean;
      square += (p * 32 + lane_of()) * V + k < n ? v * v : (R)0;
    }
  }
  *out_mean = mean;
  *out_inverse = (R)1 / root_of(warp_all(square, add_two()) / (R)n + (R)epsilon);
}

/* io += residual, rounded as it is stored to `sum` (NULL: nowhere). */
template <class T>
CUDA_FN void add_residual(kept_row<T> *io, const T *residual, T *sum, int n, bool whole) {
  typedef typename real_of<T>::type R;
  const int V = lanes<T>::n;
  CUDA_UNROLL
  for (int p = 0; p < kept_row<T>::packets; ++p) {
    const int i = (p * 32 + lane_of()) * V;
    if (i >= n)
      continue;
    R u[V];
    load_packet(residual, i, n, whole, u);
    CUDA_UNROLL
    for (int k = 0; k < V; ++k) {
      u[k] = (R)widen(io->p[p].v[k]) + u[k];
      narrow(u[k], &io->p[p].v[k]);
    }
    if (sum != nullptr)
      store_packet(sum, i, n, whole, u);
  }
}

template <class T, class S, class R>
CUDA_FN void norm_of_rows(const cuda_norm_args &a) {
  const int V = lanes<T>::n, n = (int)a.n;
  const S *scale = static_cast<const S *>(a.scale), *bias = static_cast<const S *>(a.bias);
  const bool whole =
      n % V == 0 && aligned16(a.x) && aligned16(a.y) && aligned16(a.residual) && aligned16(a.sum);
  const bool vectors = n % V == 0 && aligned16(scale) && aligned16(bias);
  const row_team<false, R> team = {nullptr};
  for (int64_t i = team.first_row(); i < a.rows; i += team.row_step()) {
    kept_row<T> row;
    R mean, inverse;
    load_row(static_cast<const T *>(a.x) + i * n, n, whole, &row);
    if (a.residual != nullptr) {
      add_residual(&row, static_cast<const T *>(a.residual) + i * n,
                   a.sum != nullptr ? static_cast<T *>(a.sum) + i * n : nullptr, n, whole);
    }
    moments_of(row, n, a.rms != 0, a.epsilon, &mean, &inverse);
    CUDA_UNROLL
    for (int p = 0; p < kept_row<T>::packets; ++p) {
      const int at = (p * 32 + lane_of()) * V;
      if (at >= n)
        continue;
      R v[V], s[V], b[V];
      load_run<V>(scale, at, n, vectors, s);
      if (bias != nullptr)
        load_run<V>(bias, at, n, vectors, b);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k) {
        v[k] = ((R)widen(row.p[p].v[k]) - mean) * inverse * s[k];
        v[k] = bias != nullptr ? v[k] + b[k] : v[k];
      }
      store_packet(static_cast<T *>(a.y) + i * n, at, n, whole, v);
    }
    if (lane_of() == 0 && a.mean != nullptr)
      static_cast<R *>(a.mean)[i] = mean;
    if (lane_of() == 0 && a.inv_std != nullptr)
      static_cast<R *>(a.inv_std)[i] = inverse;
  }
}

/* ---- gradients ---- */

template <class T, class S, class R>
CUDA_FN void norm_grad_of_rows(const cuda_norm_grad_args &a) {
  const int V = lanes<T>::n, n = (int)a.n;
  const S *scale = static_cast<const S *>(a.scale);
  const T *residual = static_cast<const T *>(a.residual);
  const bool whole =
      n % V == 0 && aligned16(a.x) && aligned16(a.dy) && aligned16(a.dx) && aligned16(a.residual);
  const bool vectors = n % V == 0 && aligned16(scale);
  const row_team<false, R> team = {nullptr};
  for (int64_t i = team.first_row(); i < a.rows; i += team.row_step()) {
    kept_row<T> x, dy;
    R mean, inverse, sum = 0, dot = 0;
    load_row(static_cast<const T *>(a.x) + i * n, n, whole, &x);
    load_row(static_cast<const T *>(a.dy) + i * n, n, whole, &dy);
    moments_of(x, n, a.rms != 0, a.epsilon, &mean, &inverse);
    CUDA_UNROLL
    for (int p = 0; p < kept_row<T>::packets; ++p) {
      const int at = (p * 32 + lane_of()) * V;
      if (at >= n)
        continue;
      R s[V];
      load_run<V>(scale, at, n, vectors, s);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k) { /* beyond n: dy is 0 */
        const R g = (R)widen(dy.p[p].v[k]) * s[k];
        sum += g;
        dot += at + k < n ? g * (((R)widen(x.p[p].v[k]) - mean) * inverse) : (R)0;
      }
    }
    sum = a.rms ? (R)0 : warp_all(sum, add_two()) / (R)n;
    dot = warp_all(dot, add_two()) / (R)n;
    CUDA_UNROLL
    for (int p = 0; p < kept_row<T>::packets; ++p) {
      const int at = (p * 32 + lane_of()) * V;
      if (at >= n)
        continue;
      R v[V], s[V];
      load_run<V>(scale, at, n, vectors, s);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k) {
        const R h = ((R)widen(x.p[p].v[k]) - mean) * inverse;
        v[k] = ((R)widen(dy.p[p].v[k]) * s[k] - sum - h * dot) * inverse;
      }
      if (residual != nullptr) {
        load_packet(residual + i * n, at, n, whole, s);
        CUDA_UNROLL
        for (int k = 0; k < V; ++k)
          v[k] += s[k];
      }
      store_packet(static_cast<T *>(a.dx) + i * n, at, n, whole, v);
    }
  }
}

/* Of scale and bias, not of double: a block takes a chunk of rows, a warp every eighth of them;
 * each lane adds up its own columns, then the warps in order. partial [chunks][2][n] as norm.cu has
 * it. */
template <class R>
struct warp_room {
  R part[2][CUDA_WARP_ROW];
};

/* The sums of one row's packet. */
template <class T, class R>
CUDA_FN void add_products(const packet<T> &x, const packet<T> &dy, R mean, R inverse, R *io_scale,
                          R *io_bias) {
  CUDA_UNROLL
  for (int k = 0; k < lanes<T>::n; ++k) {
    const R d = (R)widen(dy.v[k]);
    io_scale[k] += d * (((R)widen(x.v[k]) - mean) * inverse);
    io_bias[k] += d;
  }
}

/* What a warp's rows of the chunk sum to; the next row is under way while one is added. */
template <class T, class R>
CUDA_FN void sum_products(const cuda_norm_scale_args &a, int64_t first, int64_t end, R *scale,
                          R *bias) {
  const int V = lanes<T>::n, n = (int)a.n, P = kept_row<T>::packets;
  const bool whole = n % V == 0 && aligned16(a.x) && aligned16(a.dy);
  const T *x = static_cast<const T *>(a.x), *dy = static_cast<const T *>(a.dy);
  kept_row<T> row, next, row_dy, next_dy;
  CUDA_UNROLL
  for (int k = 0; k < P * V; ++k)
    scale[k] = bias[k] = 0;
  if (first < end) {
    load_row(x + first * n, n, whole, &next);
    load_row(dy + first * n, n, whole, &next_dy);
  }
  for (int64_t i = first; i < end; i += CUDA_WARPS) {
    R mean, inverse;
    row = next;
    row_dy = next_dy;
    if (i + CUDA_WARPS < end) {
      load_row(x + (i + CUDA_WARPS) * n, n, whole, &next);
      load_row(dy + (i + CUDA_WARPS) * n, n, whole, &next_dy);
    }
    moments_of(row, n, a.rms != 0, a.epsilon, &mean, &inverse);
    CUDA_UNROLL
    for (int p = 0; p < P; ++p) {
      if ((p * 32 + lane_of()) * V < n)
        add_products(row.p[p], row_dy.p[p], mean, inverse, scale + p * V, bias + p * V);
    }
  }
}

template <class T, class R>
CUDA_FN void scale_parts(const cuda_norm_scale_args &a, warp_room<R> *room) {
  const int V = lanes<T>::n, n = (int)a.n, P = kept_row<T>::packets;
  const int64_t first = (int64_t)blockIdx.y * CUDA_CHUNK_ROWS;
  const int64_t end = first + CUDA_CHUNK_ROWS < a.rows ? first + CUDA_CHUNK_ROWS : a.rows;
  const int warp = (int)(threadIdx.x / 32);
  R scale[P * V], bias[P * V];
  sum_products<T>(a, first + warp, end, scale, bias);
  for (int w = 0; w < CUDA_WARPS; ++w) {
    if (w == warp) {
      CUDA_UNROLL
      for (int k = 0; k < P * V; ++k) {
        const int column = (k / V * 32 + lane_of()) * V + k % V;
        room->part[0][column] = w == 0 ? scale[k] : room->part[0][column] + scale[k];
        room->part[1][column] = w == 0 ? bias[k] : room->part[1][column] + bias[k];
      }
    }
    __syncthreads();
  }
  R *partial = static_cast<R *>(a.workspace) + 2 * a.rows + (int64_t)blockIdx.y * 2 * n;
  for (int column = (int)threadIdx.x; column < n; column += CUDA_THREADS) {
    partial[column] = room->part[0][column];
    partial[n + column] = room->part[1][column];
  }
}

/* PAIR: elements of type T with a scale of type S. */
#define CUDA_NORM_WARP_PAIR(PAIR, T, S, R)         \
  CUDA_KERNEL(opipe_norm_warp_##PAIR) {            \
    norm_of_rows<T, S, R>(a);                      \
  }                                                \
  CUDA_ROOMY_KERNEL(opipe_norm_grad_warp_##PAIR) { \
    norm_grad_of_rows<T, S, R>(a);                 \
  }
#define CUDA_NORM_PARTS(SUFFIX, T, R)            \
  CUDA_ROOMY_KERNEL(opipe_norm_parts_##SUFFIX) { \
    CUDA_SHARED(warp_room<R>, room);             \
    scale_parts<T>(a, &room);                    \
  }
CUDA_NORM_WARP_PAIR(f32, float, float, float)
CUDA_NORM_WARP_PAIR(bf16, bf16, bf16, float)
CUDA_NORM_WARP_PAIR(f16, f16, f16, float)
CUDA_NORM_WARP_PAIR(f64, double, double, double)
CUDA_NORM_WARP_PAIR(bf16_f32, bf16, float, float)
CUDA_NORM_WARP_PAIR(f16_f32, f16, float, float)
CUDA_NORM_WARP_PAIR(f64_f32, double, float, double)
CUDA_NORM_PARTS(f32, float, float)
CUDA_NORM_PARTS(bf16, bf16, float)
CUDA_NORM_PARTS(f16, f16, float)
