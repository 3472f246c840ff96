/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of LayerNormalization and RMSNormalization of rows of up to CUDA_WARP_ROW elements,
 * along with sums over the rows: of dY h (dScale), of dY (dBias), and of dX as it is stored, which
 * is the gradient of a bias in front.
 *
 *   a block a chunk of rows, a warp every fourth of them, which it keeps in registers: x, dY and
 *   what is added are read once, packets of the next row as soon as those of this one are used
 *   sums lie in shared memory, of each warp by itself; its warps' in rising order are the chunk's
 *   a second launch adds up the chunks
 *
 * dX has the bits of opipe_norm_grad_warp. */
#include "norm.cuh"
#include "tensor.cuh"

enum { SUM_RUNS = 32 }; /* of chunks, which the second launch adds beside each other */

/* ---- sums in shared memory ---- */

/* Where a lane's elements 4 q and on of packet p lie in a sum: 16 bytes of a lane beside those of
 * the next. V: elements of a packet. */
template <int V>
CUDA_FN int place_of_four(int p, int q, int lane) {
  return ((p * (V / 4) + q) * 32 + lane) * 4;
}

/* The place of one column. */
template <int V>
CUDA_FN int place_of_column(int column) {
  const int packet = column / V;
  return place_of_four<V>(packet / 32, column % V / 4, packet % 32) + column % 4;
}

/* Floats of a sum: those of all lanes that have a part of a row. */
template <int V>
CUDA_FN int room_of_sum(int n) {
  return (n + 32 * V - 1) / (32 * V) * (32 * V);
}

/* The lane's own of packet p += v [V], or += v times by [V] where that is there. */
template <int V>
CUDA_FN void add_along(float *sum, int p, const float *v, const float *by) {
  CUDA_UNROLL
  for (int q = 0; q < V / 4; ++q) {
    packet<float> *at = reinterpret_cast<packet<float> *>(sum + place_of_four<V>(p, q, lane_of()));
    packet<float> four = *at;
    CUDA_UNROLL
    for (int k = 0; k < 4; ++k) {
      const float one = v[4 * q + k];
      four.v[k] = by != nullptr ? joined(one, by[4 * q + k], four.v[k]) : plain_sum(four.v[k], one);
    }
    *at = four;
  }
}

/* ---- rows ---- */

/* v [V] as they are stored. */
CUDA_FN void narrow_packet(const float *v, held_packet<float> *out) {
  CUDA_UNROLL
  for (int k = 0; k < 4; ++k)
    out->w[k] = __float_as_uint(v[k]);
}
template <class H>
CUDA_FN void narrow_packet(const float *v, held_packet<H> *out) {
  CUDA_UNROLL
  for (int k = 0; k < 4; ++k)
    out->w[k] = pair_of(v[2 * k], v[2 * k + 1], H());
}

/* Elements i and on of a row, none behind n. */
template <class T>
CUDA_FN void put_packet(T *row, int i, int n, bool whole, const held_packet<T> &p) {
  packet<T> made;
  if (whole) {
    *reinterpret_cast<held_packet<T> *>(row + i) = p;
    return;
  }
  memcpy(&made, &p, sizeof p);
  CUDA_UNROLL
  for (int k = 0; k < lanes<T>::n; ++k) {
    if (i + k < n)
      row[i + k] = made.v[k];
  }
}

/* The compiler takes what is made of it anew from here on, and keeps the words alone. */
template <class T>
CUDA_FN void forget(held_packet<T> *p) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(p->w[0]), "+r"(p->w[1]), "+r"(p->w[2]), "+r"(p->w[3]));
#else
  (void)p;
#endif
}

template <class T>
using held_row = kept_row<T, held_packet<T>>;

/* A row, and what it adds up to. */
struct row_facts {
  float mean, inverse;
  float sum, dot; /* means of g and of g h */
};

/* WHOLE: packets of rows and of the scale are aligned and complete. */
template <class T, class S, bool WHOLE>
CUDA_FN row_facts facts_of(const cuda_norm_grad_args &g, held_row<T> &x, held_row<T> &dy) {
  const int V = lanes<T>::n, n = (int)g.n;
  const float mean = g.rms ? 0.0f : mean_of<float>(x, n);
  float square = 0, sum = 0, dot = 0;
  CUDA_UNROLL
  for (int p = 0; p < held_row<T>::packets; ++p) {
    const int i = (p * 32 + lane_of()) * V;
    if (i >= n)
      continue;
    float v[V];
    widen_packet(x.p[p], v);
    CUDA_UNROLL
    for (int k = 0; k < V; ++k)
      square = WHOLE || i + k < n ? joined(v[k] - mean, v[k] - mean, square) : square;
  }
  const float inverse = 1.0f / root_of(warp_all(square, add_two()) / (float)n + (float)g.epsilon);
  CUDA_UNROLL
  for (int p = 0; p < held_row<T>::packets; ++p) {
    const int i = (p * 32 + lane_of()) * V;
    if (i >= n)
      continue;
    float v[V], d[V], s[V];
    widen_packet(x.p[p], v);
    widen_packet(dy.p[p], d);
    load_run<V>(static_cast<const S *>(g.scale), i, n, WHOLE, s);
    CUDA_UNROLL
    for (int k = 0; k < V; ++k)
      add_terms(d[k], s[k], (v[k] - mean) * inverse, WHOLE || i + k < n, &sum, &dot);
  }
  sum = g.rms ? 0.0f : warp_all(sum, add_two()) / (float)n;
  dot = warp_all(dot, add_two()) / (float)n;
  CUDA_UNROLL
  for (int p = 0; p < held_row<T>::packets; ++p) {
    forget(&x.p[p]);
    forget(&dy.p[p]);
  }
  return {mean, inverse, sum, dot};
}

/* dX of packet p of a row, and what it adds to the sums. residual: where the row has one. */
template <class T, class S, bool WHOLE>
CUDA_FN void finish_packet(const cuda_norm_sums_block &a, const row_facts &f, int64_t row, int p,
                           const held_packet<T> &x, const held_packet<T> &dy,
                           const held_packet<T> &residual, float *own) {
  const int V = lanes<T>::n, n = (int)a.g.n, i = (p * 32 + lane_of()) * V;
  float h[V], d[V], s[V];
  held_packet<T> made;
  widen_packet(x, h);
  widen_packet(dy, d);
  load_run<V>(static_cast<const S *>(a.g.scale), i, n, WHOLE, s);
  CUDA_UNROLL
  for (int k = 0; k < V; ++k)
    h[k] = (h[k] - f.mean) * f.inverse;
  if (a.place[CUDA_NORM_OF_SCALE] >= 0)
    add_along<V>(own + a.place[CUDA_NORM_OF_SCALE], p, d, h);
  if (a.place[CUDA_NORM_OF_BIAS] >= 0)
    add_along<V>(own + a.place[CUDA_NORM_OF_BIAS], p, d, nullptr);
  CUDA_UNROLL
  for (int k = 0; k < V; ++k)
    s[k] = grad_of(d[k], s[k], h[k], f.sum, f.dot, f.inverse);
  narrow_packet(s, &made);
  if (a.g.residual != nullptr) {
    widen_packet(made, s);
    widen_packet(residual, d);
    CUDA_UNROLL
    for (int k = 0; k < V; ++k)
      s[k] = plain_sum(s[k], d[k]);
    narrow_packet(s, &made);
  }
  put_packet(static_cast<T *>(a.g.dx) + row * n, i, n, WHOLE, made);
  if (a.place[CUDA_NORM_OF_DX] >= 0) {
    widen_packet(made, s);
    add_along<V>(own + a.place[CUDA_NORM_OF_DX], p, s, nullptr);
  }
}

template <class T, class S, bool WHOLE>
CUDA_FN void rows_of_chunk(const cuda_norm_sums_block &a, float *own) {
  const int V = lanes<T>::n, n = (int)a.g.n;
  const T *x = static_cast<const T *>(a.g.x), *dy = static_cast<const T *>(a.g.dy);
  const T *residual = static_cast<const T *>(a.g.residual);
  const int64_t first = (int64_t)blockIdx.x * a.chunk + threadIdx.x / 32;
  const int64_t behind = ((int64_t)blockIdx.x + 1) * a.chunk;
  const int64_t end = behind < a.g.rows ? behind : a.g.rows;
  held_row<T> u, d, r;
  if (first < end) {
    load_row(x + first * n, n, WHOLE, &u);
    load_row(dy + first * n, n, WHOLE, &d);
    if (residual != nullptr)
      load_row(residual + first * n, n, WHOLE, &r);
  }
  for (int64_t row = first; row < end; row += CUDA_NORM_WARPS) {
    const row_facts facts = facts_of<T, S, WHOLE>(a.g, u, d);
    const int64_t next = row + CUDA_NORM_WARPS;
    CUDA_UNROLL
    for (int p = 0; p < held_row<T>::packets; ++p) {
      const int i = (p * 32 + lane_of()) * V;
      if (i >= n)
        continue;
      finish_packet<T, S, WHOLE>(a, facts, row, p, u.p[p], d.p[p], r.p[p], own);
      if (next >= end)
        continue;
      keep_packet(x + next * n, i, n, WHOLE, &u.p[p]);
      keep_packet(dy + next * n, i, n, WHOLE, &d.p[p]);
      if (residual != nullptr)
        keep_packet(residual + next * n, i, n, WHOLE, &r.p[p]);
    }
  }
}

template <class T, class S>
CUDA_FN void grad_and_sums(const cuda_norm_sums_block &a) {
  CUDA_DYNAMIC(memory);
  float *room = reinterpret_cast<float *>(memory);
  const int V = lanes<T>::n, n = (int)a.g.n, each = room_of_sum<V>(n);
  const int all = (int)a.n_sums * each;
  for (int i = (int)threadIdx.x; i < CUDA_NORM_WARPS * all; i += CUDA_NORM_THREADS)
    room[i] = 0;
  __syncthreads();
  float *own = room + (int)(threadIdx.x / 32) * all;
  if (n % V == 0 && aligned16(a.g.x) && aligned16(a.g.dy) && aligned16(a.g.dx) &&
      aligned16(a.g.residual) && aligned16(a.g.scale))
    rows_of_chunk<T, S, true>(a, own);
  else
    rows_of_chunk<T, S, false>(a, own);
  __syncthreads();
  float *to = a.partial + (int64_t)blockIdx.x * a.n_sums * n;
  for (int i = (int)threadIdx.x; i < (int)a.n_sums * n; i += CUDA_NORM_THREADS) {
    const float *from = room + i / n * each + place_of_column<V>(i % n);
    float sum = from[0];
    CUDA_UNROLL
    for (int w = 1; w < CUDA_NORM_WARPS; ++w)
      sum += from[w * all];
    to[i] = sum;
  }
}

/* PAIR: elements of type T with a scale of type S. */
#define CUDA_NORM_SUMS(PAIR, T, S)           \
  CUDA_KERNEL(opipe_norm_grad_sums_##PAIR) { \
    grad_and_sums<T, S>(a);                  \
  }
CUDA_NORM_SUMS(f32, float, float)
CUDA_NORM_SUMS(bf16, bf16, bf16)
CUDA_NORM_SUMS(f16, f16, f16)
CUDA_NORM_SUMS(bf16_f32, bf16, float)
CUDA_NORM_SUMS(f16_f32, f16, float)

/* The chunks' sums, blockIdx.y which. */
CUDA_ROOMY_KERNEL(opipe_norm_grad_totals) {
  typedef run_room<float, SUM_RUNS> all_runs;
  CUDA_SHARED(all_runs, room);
  const int place = (int)blockIdx.y;
  float *out = a.sums[place], sum;
  int64_t column;
  if (!add_chunks(a.partial + place * a.g.n, (int64_t)a.n_sums * a.g.n, a.chunks, a.g.n, &room,
                  &column, &sum))
    return;
  out[column] = a.adds >> place & 1u ? out[column] + sum : sum;
}
