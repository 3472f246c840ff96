/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows: weights are read once, 16 bytes at a time, for all
 * rows; what counts is the bandwidth.
 *
 *   w [k, n]   a block takes a strip of columns, 8 packets wide, and
 * CUDA_FEW_DEPTH rows of w: threads of one column every 32nd row, added by a
 * tree; parts of k are added in order by a second launch w [n, k]   a warp
 * takes a row of w, lanes packets of it in turn, added by a butterfly Each
 * row's sums are its own: their bits do not depend on m. */
#include "map_math.cuh"

enum { STRIP = 8, SLICES = CUDA_THREADS / STRIP };

template <class R, int V>
struct few_room {
  R part[SLICES][STRIP * V];
};

/* partial [parts][m][n] */
template <class T>
CUDA_FN void few_columns(const cuda_few_rows_args &a) {
  typedef typename real_of<T>::type R;
  const int V = lanes<T>::n;
  typedef few_room<R, lanes<T>::n> room_type;
  CUDA_SHARED(room_type, room);
  const T *x = static_cast<const T *>(a.x), *w = static_cast<const T *>(a.w);
  const int strip = (int)(threadIdx.x % STRIP), slice = (int)(threadIdx.x / STRIP);
  const int64_t column = ((int64_t)blockIdx.x * STRIP + strip) * V;
  const int64_t first = (int64_t)blockIdx.y * CUDA_FEW_DEPTH;
  const int64_t end = first + CUDA_FEW_DEPTH < a.k ? first + CUDA_FEW_DEPTH : a.k;
  const bool whole = a.n % V == 0 && aligned16(w) && column + V <= a.n;
  R sum[CUDA_FEW_ROWS][V];
  CUDA_UNROLL
  for (int r = 0; r < CUDA_FEW_ROWS; ++r) {
    CUDA_UNROLL
    for (int v = 0; v < V; ++v)
      sum[r][v] = 0;
  }
  for (int64_t k = first + slice; k < end && column < a.n; k += SLICES) {
    R v[V];
    load_packet(w + k * a.n, column, a.n, whole, v);
    CUDA_UNROLL
    for (int r = 0; r < CUDA_FEW_ROWS; ++r) {
      if (r < a.m) {
        const R xk = get(x, r * a.k + k);
        CUDA_UNROLL
        for (int c = 0; c < V; ++c)
          sum[r][c] += xk * v[c];
      }
    }
  }
  CUDA_UNROLL
  for (int r = 0; r < CUDA_FEW_ROWS; ++r) {
    if (r >= a.m)
      break;
    CUDA_UNROLL
    for (int c = 0; c < V; ++c)
      room.part[slice][strip * V + c] = sum[r][c];
    for (int d = SLICES / 2; d > 0; d /= 2) {
      __syncthreads();
      if (slice < d) {
        CUDA_UNROLL
        for (int c = 0; c < V; ++c)
          room.part[slice][strip * V + c] += room.part[slice + d][strip * V + c];
      }
    }
    if (slice == 0) {
      CUDA_UNROLL
      for (int c = 0; c < V; ++c) {
        if (column + c < a.n) {
          static_cast<R *>(a.workspace)[((int64_t)blockIdx.y * a.m + r) * a.n + column + c] =
              room.part[0][strip * V + c];
        }
      }
    }
    __syncthreads();
  }
}

template <class T, class R>
CUDA_FN R finish_product(const cuda_few_rows_args &a, R sum, int64_t row, int64_t column) {
  sum *= (R)a.alpha;
  if (a.bias != nullptr)
    sum += (R)get(static_cast<const T *>(a.bias), column);
  if (a.residual != nullptr)
    sum += (R)get(static_cast<const T *>(a.residual), row * a.n + column);
  return sum;
}

template <class T>
CUDA_FN void few_sums(const cuda_few_rows_args &a) {
  typedef typename real_of<T>::type R;
  const R *partial = static_cast<const R *>(a.workspace);
  const int64_t parts = (a.k + CUDA_FEW_DEPTH - 1) / CUDA_FEW_DEPTH;
  for (int64_t i = first_element(); i < a.m * a.n; i += element_step()) {
    R sum = 0;
    for (int64_t p = 0; p < parts; ++p)
      sum += partial[p * a.m * a.n + i];
    put(static_cast<T *>(a.y), i, finish_product<T>(a, sum, i / a.n, i % a.n));
  }
}

template <class T>
CUDA_FN void few_turned(const cuda_few_rows_args &a) {
  typedef typename real_of<T>::type R;
  const int V = lanes<T>::n;
  const T *x = static_cast<const T *>(a.x), *w = static_cast<const T *>(a.w);
  const bool whole_w = a.k % V == 0 && aligned16(w), whole_x = a.k % V == 0 && aligned16(x);
  const int lane = (int)(threadIdx.x % 32);
  for (int64_t column = (int64_t)blockIdx.x * CUDA_WARPS + threadIdx.x / 32; column < a.n;
       column += (int64_t)gridDim.x * CUDA_WARPS) {
    R sum[CUDA_FEW_ROWS] = {0};
    for (int64_t k = (int64_t)lane * V; k < a.k; k += 32 * V) {
      R v[V];
      load_packet(w + column * a.k, k, a.k, whole_w, v);
      CUDA_UNROLL
      for (int r = 0; r < CUDA_FEW_ROWS; ++r) {
        if (r < a.m) {
          R u[V];
          load_packet(x + r * a.k, k, a.k, whole_x, u);
          CUDA_UNROLL
          for (int c = 0; c < V; ++c)
            sum[r] += u[c] * v[c];
        }
      }
    }
    CUDA_UNROLL
    for (int r = 0; r < CUDA_FEW_ROWS; ++r) {
      if (r < a.m) {
        const R all = warp_all(sum[r], add_two());
        if (lane == 0)
          put(static_cast<T *>(a.y), r * a.n + column, finish_product<T>(a, all, r, column));
      }
    }
  }
}

#define CUDA_FEW(SUFFIX, TYPE)              \
  CUDA_KERNEL(opipe_few_columns_##SUFFIX) { \
    few_columns<TYPE>(a);                   \
  }                                         \
  CUDA_KERNEL(opipe_few_sums_##SUFFIX) {    \
    few_sums<TYPE>(a);                      \
  }                                         \
  CUDA_KERNEL(opipe_few_turned_##SUFFIX) {  \
    few_turned<TYPE>(a);                    \
  }
CUDA_FEW(f32, float)
CUDA_FEW(bf16, bf16)
CUDA_FEW(f16, f16)
CUDA_FEW(f64, double)
