/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels of norms share: rows that a warp keeps in registers, and the formulas of gradients,
 * which are rounded alike wherever they stand. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_NORM_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_NORM_CUH_

#include "columns.cuh"

/* A packet as registers hold it: in words, which stand for elements of other types in memory. */
template <class T>
struct __attribute__((aligned(16), may_alias)) held_packet {
  unsigned w[4];
};

/* A lane's packets of a row, elements (32 p + lane) V and on. */
template <class T, class P = packet<T>>
struct kept_row {
  static const int packets = CUDA_WARP_ROW / 32 / lanes<T>::n;
  P p[packets];
};

CUDA_FN int lane_of(void) {
  return (int)(threadIdx.x % 32);
}

/* Elements i and on of a row; beyond n: 0. whole: see load_packet. */
template <class T>
CUDA_FN void keep_packet(const T *row, int i, int n, bool whole, packet<T> *out) {
  const int V = lanes<T>::n;
  if (whole) {
    *out = *reinterpret_cast<const packet<T> *>(row + i);
    return;
  }
  CUDA_UNROLL
  for (int k = 0; k < V; ++k) {
    narrow((typename real_of<T>::type)0, &out->v[k]);
    if (i + k < n)
      out->v[k] = row[i + k];
  }
}
template <class T>
CUDA_FN void keep_packet(const T *row, int i, int n, bool whole, held_packet<T> *out) {
  if (whole) {
    *out = *reinterpret_cast<const held_packet<T> *>(row + i);
    return;
  }
  packet<T> p;
  keep_packet(row, i, n, false, &p);
  memcpy(out, &p, sizeof *out);
}

template <class T, class P>
CUDA_FN void load_row(const T *row, int n, bool whole, kept_row<T, P> *out) {
  CUDA_UNROLL
  for (int p = 0; p < kept_row<T, P>::packets; ++p) {
    const int i = (p * 32 + lane_of()) * lanes<T>::n;
    if (i < n)
      keep_packet(row, i, n, whole, &out->p[p]);
  }
}

template <class T, class R>
CUDA_FN void widen_packet(const packet<T> &p, R *out) {
  CUDA_UNROLL
  for (int k = 0; k < lanes<T>::n; ++k)
    out[k] = (R)widen(p.v[k]);
}
CUDA_FN void widen_packet(const held_packet<float> &p, float *out) {
  CUDA_UNROLL
  for (int k = 0; k < 4; ++k)
    out[k] = __uint_as_float(p.w[k]);
}
template <class H>
CUDA_FN void widen_packet(const held_packet<H> &p, float *out) {
  CUDA_UNROLL
  for (int k = 0; k < 4; ++k) {
    out[2 * k] = widen(H{(uint16_t)p.w[k]});
    out[2 * k + 1] = widen(H{(uint16_t)(p.w[k] >> 16)});
  }
}

template <class R, class T, class P>
CUDA_FN R mean_of(const kept_row<T, P> &row, int n) {
  const int V = lanes<T>::n;
  R mean = 0;
  CUDA_UNROLL
  for (int p = 0; p < kept_row<T, P>::packets; ++p) {
    if ((p * 32 + lane_of()) * V < n) {
      R v[V];
      widen_packet(row.p[p], v);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        mean += v[k];
    }
  }
  return warp_all(mean, add_two()) / (R)n;
}

/* ---- gradients ---- */

/* What an element adds to the sums of its row: of g = dY scale, and of g h. */
template <class R>
CUDA_FN void add_terms(R d, R scale, R h, bool within, R *sum, R *dot) {
  const R g = plain_product(d, scale);
  *sum = plain_sum(*sum, g);
  *dot = plain_sum(*dot, within ? plain_product(g, h) : (R)0);
}

/* dX of an element, from the means of both. */
template <class R>
CUDA_FN R grad_of(R d, R scale, R h, R sum, R dot, R inverse) {
  return joined(-h, dot, joined(d, scale, -sum)) * inverse;
}

#endif
