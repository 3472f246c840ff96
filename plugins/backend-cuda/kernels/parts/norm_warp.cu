/* SPDX-License-Identifier: Apache-2.0 */
/* LayerNormalization and RMSNormalization with a residual, of rows of up to CUDA_WARP_ROW elements:
 * a warp takes a row and keeps it in registers, so that everything is read once. Formulas and
 * orders of additions are those of norm.cu. (Gradients keep two rows: they were slower so.) */
#include "norm.cuh"

template <class T, class R>
CUDA_FN void moments_of(const kept_row<T> &row, int n, bool rms, double epsilon, R *out_mean,
                        R *out_inverse) {
  const int V = lanes<T>::n;
  const R mean = rms ? (R)0 : mean_of<R>(row, n);
  R square = 0;
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
      R v[V], s[V]; /* the scale, then the bias */
      load_run<V>(scale, at, n, vectors, s);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        v[k] = ((R)widen(row.p[p].v[k]) - mean) * inverse * s[k];
      if (bias != nullptr) {
        load_run<V>(bias, at, n, vectors, s);
        CUDA_UNROLL
        for (int k = 0; k < V; ++k)
          v[k] += s[k];
      }
      store_packet(static_cast<T *>(a.y) + i * n, at, n, whole, v);
    }
    if (lane_of() == 0 && a.mean != nullptr)
      static_cast<R *>(a.mean)[i] = mean;
    if (lane_of() == 0 && a.inv_std != nullptr)
      static_cast<R *>(a.inv_std)[i] = inverse;
  }
}

/* PAIR: elements of type T with a scale of type S. */
#define CUDA_NORM_WARP_PAIR(KERNEL, PAIR, T, S, R) \
  KERNEL(opipe_norm_warp_##PAIR) {                 \
    norm_of_rows<T, S, R>(a);                      \
  }
CUDA_NORM_WARP_PAIR(CUDA_KERNEL, f32, float, float, float)
CUDA_NORM_WARP_PAIR(CUDA_KERNEL, bf16, bf16, bf16, float)
CUDA_NORM_WARP_PAIR(CUDA_KERNEL, f16, f16, f16, float)
CUDA_NORM_WARP_PAIR(CUDA_ROOMY_KERNEL, f64, double, double, double)
CUDA_NORM_WARP_PAIR(CUDA_KERNEL, bf16_f32, bf16, float, float)
CUDA_NORM_WARP_PAIR(CUDA_KERNEL, f16_f32, f16, float, float)
CUDA_NORM_WARP_PAIR(CUDA_ROOMY_KERNEL, f64_f32, double, float, double)
