/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax, LogSoftmax, Hardmax and the gradients of the first two.
 *
 * Along the last axis a warp takes a row, or a block where the row is long;
 * along another axis a thread takes a line, its neighbours the neighbouring
 * ones. A row of minus infinities gives NaN.
 */
#include "map_math.cuh"

enum { SOFTMAX, LOG_SOFTMAX, HARDMAX };

template <class T, bool BLOCK, class R>
CUDA_FN void softmax_rows(const cuda_softmax_args &a, const row_team<BLOCK, R> &team) {
  const int V = lanes<T>::n;
  const bool whole = a.n % V == 0 && aligned16(a.x) && aligned16(a.y);
  for (int64_t row = team.first_row(); row < a.outer; row += team.row_step()) {
    const T *x = static_cast<const T *>(a.x) + row * a.n;
    T *y = static_cast<T *>(a.y) + row * a.n;
    R top = (R)-INFINITY, sum = 0;
    for (int64_t i = (int64_t)team.rank() * V; i < a.n; i += team.size() * V) {
      R v[V];
      load_packet(x, i, a.n, whole, v);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        top = i + k < a.n ? max_two()(top, v[k]) : top;
    }
    top = team.all(top, max_two());
    for (int64_t i = (int64_t)team.rank() * V; i < a.n; i += team.size() * V) {
      R v[V];
      load_packet(x, i, a.n, whole, v);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        sum += i + k < a.n ? exp_of(v[k] - top) : (R)0;
    }
    sum = team.sum(sum);
    const R scale = (R)1 / sum, shift = a.mode == LOG_SOFTMAX ? log_of(sum) : (R)0;
    for (int64_t i = (int64_t)team.rank() * V; i < a.n; i += team.size() * V) {
      R v[V];
      load_packet(x, i, a.n, whole, v);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        v[k] = a.mode == LOG_SOFTMAX ? v[k] - top - shift : exp_of(v[k] - top) * scale;
      store_packet(y, i, a.n, whole, v);
    }
  }
}

/* One thread a line of any stride. */
template <class T>
CUDA_FN void softmax_lines(const cuda_softmax_args &a) {
  typedef typename real_of<T>::type R;
  for (int64_t line = first_element(); line < a.outer * a.inner; line += element_step()) {
    const int64_t first = line / a.inner * a.n * a.inner + line % a.inner;
    const T *x = static_cast<const T *>(a.x) + first;
    T *y = static_cast<T *>(a.y) + first;
    R top = (R)-INFINITY, sum = 0;
    int64_t top_at = 0;
    for (int64_t k = 0; k < a.n; ++k) {
      const R v = get(x, k * a.inner);
      const bool better = v > top || v != v;
      top = better ? v : top;
      top_at = better ? k : top_at;
    }
    for (int64_t k = 0; k < a.n; ++k)
      sum += exp_of(get(x, k * a.inner) - top);
    for (int64_t k = 0; k < a.n; ++k) {
      const R v = get(x, k * a.inner) - top;
      put(y, k * a.inner,
          a.mode == SOFTMAX       ? exp_of(v) / sum
          : a.mode == LOG_SOFTMAX ? v - log_of(sum)
                                  : (R)(k == top_at));
    }
  }
}

/* x [outer, n]: dX = Y (dY - sum(dY Y)), where an element with Y = 0 gives 0
 * whatever its dY is, a row of NaN 0; of the logarithm dX = dY - exp(Y)
 * sum(dY). */
template <class T, bool BLOCK, class R>
CUDA_FN void softmax_grad_rows(const cuda_softmax_grad_args &a, const row_team<BLOCK, R> &team) {
  const int V = lanes<T>::n;
  const bool whole = a.n % V == 0 && aligned16(a.dy) && aligned16(a.y) && aligned16(a.dx);
  const bool log = a.mode == LOG_SOFTMAX;
  for (int64_t row = team.first_row(); row < a.outer; row += team.row_step()) {
    const T *dy = static_cast<const T *>(a.dy) + row * a.n;
    const T *y = static_cast<const T *>(a.y) + row * a.n;
    R sum = 0;
    for (int64_t i = (int64_t)team.rank() * V; i < a.n; i += team.size() * V) {
      R d[V], v[V];
      load_packet(dy, i, a.n, whole, d);
      load_packet(y, i, a.n, whole, v);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        sum += log ? d[k] : v[k] == 0 || v[k] != v[k] ? (R)0 : d[k] * v[k];
    }
    sum = team.sum(sum);
    for (int64_t i = (int64_t)team.rank() * V; i < a.n; i += team.size() * V) {
      R d[V], v[V];
      load_packet(dy, i, a.n, whole, d);
      load_packet(y, i, a.n, whole, v);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        d[k] = log                         ? d[k] - exp_of(v[k]) * sum
               : v[k] == 0 || v[k] != v[k] ? (R)0
                                           : v[k] * (d[k] - sum);
      store_packet(static_cast<T *>(a.dx) + row * a.n, i, a.n, whole, d);
    }
  }
}

template <class T>
CUDA_FN void softmax_grad_lines(const cuda_softmax_grad_args &a) {
  typedef typename real_of<T>::type R;
  const bool log = a.mode == LOG_SOFTMAX;
  for (int64_t line = first_element(); line < a.outer * a.inner; line += element_step()) {
    const int64_t first = line / a.inner * a.n * a.inner + line % a.inner;
    const T *dy = static_cast<const T *>(a.dy) + first;
    const T *y = static_cast<const T *>(a.y) + first;
    R sum = 0;
    for (int64_t k = 0; k < a.n; ++k) {
      const R v = get(y, k * a.inner), d = get(dy, k * a.inner);
      sum += log ? d : v == 0 || v != v ? (R)0 : d * v;
    }
    for (int64_t k = 0; k < a.n; ++k) {
      const R v = get(y, k * a.inner), d = get(dy, k * a.inner);
      put(static_cast<T *>(a.dx) + first, k * a.inner,
          log                ? d - exp_of(v) * sum
          : v == 0 || v != v ? (R)0
                             : v * (d - sum));
    }
  }
}

#define CUDA_SOFTMAX(SUFFIX, TYPE, REAL)                        \
  CUDA_KERNEL(opipe_softmax_warp_##SUFFIX) {                    \
    softmax_rows<TYPE>(a, row_team<false, REAL>{nullptr});      \
  }                                                             \
  CUDA_KERNEL(opipe_softmax_block_##SUFFIX) {                   \
    CUDA_SHARED(block_room<REAL>, room);                        \
    softmax_rows<TYPE>(a, row_team<true, REAL>{&room});         \
  }                                                             \
  CUDA_KERNEL(opipe_softmax_line_##SUFFIX) {                    \
    softmax_lines<TYPE>(a);                                     \
  }                                                             \
  CUDA_KERNEL(opipe_softmax_grad_warp_##SUFFIX) {               \
    softmax_grad_rows<TYPE>(a, row_team<false, REAL>{nullptr}); \
  }                                                             \
  CUDA_KERNEL(opipe_softmax_grad_block_##SUFFIX) {              \
    CUDA_SHARED(block_room<REAL>, room);                        \
    softmax_grad_rows<TYPE>(a, row_team<true, REAL>{&room});    \
  }                                                             \
  CUDA_KERNEL(opipe_softmax_grad_line_##SUFFIX) {               \
    softmax_grad_lines<TYPE>(a);                                \
  }
CUDA_SOFTMAX(f32, float, float)
CUDA_SOFTMAX(bf16, bf16, float)
CUDA_SOFTMAX(f16, f16, float)
CUDA_SOFTMAX(f64, double, double)
