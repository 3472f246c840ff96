/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows: weights are read once, 16 bytes at a time, for all rows; what counts is the
 * bandwidth, so a thread has FEW_AHEAD packets under way.
 *
 *   w [k, n]   a block takes a strip of 32 packets of columns and a part of k, a warp every eighth
 *              row of it; warps are added in order, then the parts: by the last block of the strip
 *              to arrive, or, with the same bits, by a second launch
 *   w [n, k]   a warp takes two rows of w, lanes packets of them in turn, added by a butterfly
 *
 * A block's first packets are fetched while the launch in front ends. How long a part is follows
 * from n and k. Each row's sums are its own, in an order that is the same for any number of rows:
 * ROWS, 1, 4 or 8, is how many a kernel has room for. */
#include "columns.cuh"
#include "last_block.cuh"
#include "words.cuh"

enum { FEW_AHEAD = 8, FEW_TURNED_AHEAD = 4, FEW_COLUMNS = 2 };

/* An element's bits, where they lie in a packet. */
CUDA_FN unsigned word_of(float x, int) {
  return __float_as_uint(x);
}
template <class T>
CUDA_FN unsigned word_of(T half, int i) {
  return (unsigned)half.bits << i % 2 * 16;
}

/* Elements i and on of a row of n; 0 beyond. whole: see load_packet. */
template <class T>
CUDA_FN words load_words(const T *row, int64_t i, int64_t n, bool whole) {
  words p = {{0, 0, 0, 0}};
  if (whole)
    return words_at(row, i);
  CUDA_UNROLL
  for (int v = 0; v < lanes<T>::n; ++v) {
    if (i + v < n)
      p.w[v * 4 / lanes<T>::n] |= word_of(row[i + v], v);
  }
  return p;
}

/* The rows of w that a thread takes next, from k on: every eighth. */
template <class T>
CUDA_FN void load_ahead(const cuda_few_rows_block &a, int64_t k, int64_t end, int64_t column,
                        bool whole, words *ahead) {
  const T *w = static_cast<const T *>(a.f.w);
  CUDA_UNROLL
  for (int j = 0; j < FEW_AHEAD; ++j) {
    const int64_t row = k + j * COLUMN_SLICES;
    if (row < end && column < a.f.n)
      ahead[j] = load_words(w + row * a.f.n, column, a.f.n, whole);
  }
}

template <class T, int ROWS>
struct few_room {
  typedef typename real_of<T>::type real;
  real x[CUDA_FEW_DEPTH][ROWS];
  slice_room<real, lanes<T>::n> sums;
  bool is_last;
};

/* Rounded once; GELU (tanh) of the whole, what it is of beside it. */
template <class T, class R>
CUDA_FN void finish_product(const cuda_few_rows_args &a, R sum, int64_t row, int64_t column) {
  const int64_t i = row * a.n + column;
  sum *= (R)a.alpha;
  if (a.bias != nullptr)
    sum = plain_sum(sum, (R)get(static_cast<const T *>(a.bias), column));
  if (a.residual != nullptr)
    sum = plain_sum(sum, (R)get(static_cast<const T *>(a.residual), i));
  if (a.aux != nullptr)
    put(static_cast<T *>(a.aux), i, sum);
  put(static_cast<T *>(a.y), i, a.gelu ? gelu_tanh(sum) : sum);
}

/* The parts of a row's columns of the strip: a warp takes a run of them, as a slice of add_chunks
 * does. */
template <class T>
CUDA_FN void add_parts(const cuda_few_rows_args &a, int64_t row,
                       slice_room<float, lanes<T>::n> *room) {
  const int V = lanes<T>::n, AHEAD = FEW_AHEAD * 4 / V;
  const int64_t parts = gridDim.y, each = (parts + COLUMN_SLICES - 1) / COLUMN_SLICES;
  const int64_t first = threadIdx.x / 32 * each, step = a.m * a.n;
  const int64_t end = first + each < parts ? first + each : parts;
  const int64_t column = ((int64_t)blockIdx.x * 32 + threadIdx.x % 32) * V;
  const float *partial = static_cast<const float *>(a.workspace) + row * a.n + column;
  float sum[V] = {}, whole;
  for (int64_t k = first; k < end; k += AHEAD) {
    packet<float> ahead[AHEAD][V / 4];
    CUDA_UNROLL
    for (int i = 0; i < AHEAD * V / 4; ++i) {
      const int64_t part = k + i / (V / 4), at = i % (V / 4) * 4;
      ahead[i / (V / 4)][i % (V / 4)] = {{0, 0, 0, 0}};
      if (part < end && column + at < a.n)
        ahead[i / (V / 4)][i % (V / 4)] = four_of_others(partial + part * step + at);
    }
    CUDA_UNROLL
    for (int i = 0; i < AHEAD * V; ++i)
      sum[i % V] += ahead[i / V][i % V / 4].v[i % 4];
  }
  int64_t own;
  if (sum_slices<float, lanes<T>::n>(sum, room, a.n, &own, &whole))
    finish_product<T>(a, whole, row, own);
}

/* Fetches the packets that load_ahead takes first. */
template <class T>
CUDA_FN void fetch_columns(const cuda_few_rows_block &a) {
  const int across = 32 * 16 / CUDA_SECTOR, down = CUDA_THREADS / across;
  const int64_t first = (int64_t)blockIdx.y * a.depth;
  const int64_t column =
      ((int64_t)blockIdx.x * across + threadIdx.x % across) * CUDA_SECTOR / (int)sizeof(T);
  CUDA_UNROLL
  for (int j = 0; j < FEW_AHEAD * COLUMN_SLICES / down; ++j) {
    const int row = (int)threadIdx.x / across + j * down;
    if (row < a.depth && first + row < a.f.k && column < a.f.n)
      fetch_sector(static_cast<const T *>(a.f.w) + (first + row) * a.f.n + column);
  }
}

/* partial [parts][m][n] */
template <class T, int ROWS>
CUDA_FN void few_columns(const cuda_few_rows_block &a) {
  typedef typename real_of<T>::type R;
  typedef few_room<T, ROWS> room_type;
  const int V = lanes<T>::n, slice = (int)(threadIdx.x / 32);
  CUDA_SHARED(room_type, room);
  const T *x = static_cast<const T *>(a.f.x);
  const int64_t m = a.f.m, n = a.f.n, column = ((int64_t)blockIdx.x * 32 + threadIdx.x % 32) * V;
  const int64_t first = (int64_t)blockIdx.y * a.depth;
  const int64_t end = first + a.depth < a.f.k ? first + a.depth : a.f.k;
  const bool whole = n % V == 0 && aligned16(a.f.w) && column + V <= n;
  words ahead[FEW_AHEAD];
  R sum[ROWS][V];
  load_ahead<T>(a, first + slice, end, column, whole, ahead);
  const int deep = (int)(end - first);
  for (int i = (int)threadIdx.x; i < deep * ROWS; i += CUDA_THREADS) {
    const int row = i / deep, k = i % deep;
    room.x[k][row] = row < m ? (R)get(x, row * a.f.k + first + k) : (R)0;
  }
  CUDA_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    CUDA_UNROLL
    for (int v = 0; v < V; ++v)
      sum[r][v] = 0;
  }
  __syncthreads();
  for (int64_t k = first + slice; k < end; k += FEW_AHEAD * COLUMN_SLICES) {
    CUDA_UNROLL
    for (int j = 0; j < FEW_AHEAD; ++j) {
      const int64_t at = k + j * COLUMN_SLICES;
      if (at >= end || column >= n)
        continue;
      CUDA_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        CUDA_UNROLL
        for (int v = 0; v < V; ++v)
          sum[r][v] = joined(room.x[at - first][r], element(ahead[j], v, T()), sum[r][v]);
      }
    }
    load_ahead<T>(a, k + FEW_AHEAD * COLUMN_SLICES, end, column, whole, ahead);
  }
  R *partial = static_cast<R *>(a.f.workspace) + (int64_t)blockIdx.y * m * n;
  CUDA_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    if (r < m)
      add_slices<R, V>(sum[r], &room.sums, partial + r * n, n);
  }
  if (a.f.counters == nullptr ||
      !is_last_block(a.f.counters + blockIdx.x, gridDim.y, &room.is_last))
    return;
  CUDA_ROLLED
  for (int64_t r = 0; r < m; ++r)
    add_parts<T>(a.f, r, &room.sums);
}

/* blockIdx.y: the row */
template <class T>
CUDA_FN void few_sums(const cuda_few_rows_block &a) {
  typedef typename real_of<T>::type R;
  CUDA_SHARED(run_room<R>, room);
  const R *partial = static_cast<const R *>(a.f.workspace) + (int64_t)blockIdx.y * a.f.n;
  const int64_t parts = (a.f.k + a.depth - 1) / a.depth;
  int64_t column;
  R sum;
  if (add_chunks(partial, a.f.m * a.f.n, parts, a.f.n, &room, &column, &sum))
    finish_product<T>(a.f, sum, blockIdx.y, column);
}

/* Packets of up to FEW_COLUMNS rows of w, from element i of them on: lanes side by side. */
template <class T>
CUDA_FN void load_turned_ahead(const cuda_few_rows_args &a, int64_t first, int64_t i, bool whole,
                               words (*ahead)[FEW_TURNED_AHEAD]) {
  const T *w = static_cast<const T *>(a.w);
  CUDA_UNROLL
  for (int c = 0; c < FEW_COLUMNS; ++c) {
    CUDA_UNROLL
    for (int j = 0; j < FEW_TURNED_AHEAD; ++j) {
      const int64_t at = i + j * 32 * lanes<T>::n;
      if (first + c < a.n && at < a.k)
        ahead[c][j] = load_words(w + (first + c) * a.k, at, a.k, whole);
    }
  }
}

/* Fetches the packets that load_turned_ahead takes first. */
template <class T>
CUDA_FN void fetch_turned(const cuda_few_rows_block &block) {
  const cuda_few_rows_args &a = block.f;
  const int64_t first = ((int64_t)blockIdx.x * CUDA_WARPS + threadIdx.x / 32) * FEW_COLUMNS;
  const int n = FEW_TURNED_AHEAD * 32 * 16 / CUDA_SECTOR;
  CUDA_UNROLL
  for (int i = 0; i < FEW_COLUMNS * n / 32; ++i) {
    const int64_t row = first + i * 32 / n;
    const int64_t at = (i * 32 % n + (int)threadIdx.x % 32) * CUDA_SECTOR / (int)sizeof(T);
    if (row < a.n && at < a.k)
      fetch_sector(static_cast<const T *>(a.w) + row * a.k + at);
  }
}

template <class T, int ROWS>
CUDA_FN void few_turned(const cuda_few_rows_block &block) {
  typedef typename real_of<T>::type R;
  const cuda_few_rows_args &a = block.f;
  const int V = lanes<T>::n, lane = (int)(threadIdx.x % 32);
  const T *x = static_cast<const T *>(a.x);
  const bool whole_w = a.k % V == 0 && aligned16(a.w), whole_x = a.k % V == 0 && aligned16(x);
  const int64_t warps = (int64_t)gridDim.x * CUDA_WARPS;
  for (int64_t pair = (int64_t)blockIdx.x * CUDA_WARPS + threadIdx.x / 32; pair * FEW_COLUMNS < a.n;
       pair += warps) {
    const int64_t first = pair * FEW_COLUMNS;
    R sum[FEW_COLUMNS][ROWS];
    CUDA_UNROLL
    for (int c = 0; c < FEW_COLUMNS; ++c) {
      CUDA_UNROLL
      for (int r = 0; r < ROWS; ++r)
        sum[c][r] = 0;
    }
    for (int64_t i = (int64_t)lane * V; i < a.k; i += FEW_TURNED_AHEAD * 32 * V) {
      words ahead[FEW_COLUMNS][FEW_TURNED_AHEAD];
      load_turned_ahead<T>(a, first, i, whole_w, ahead);
      CUDA_UNROLL
      for (int j = 0; j < FEW_TURNED_AHEAD; ++j) {
        const int64_t at = i + j * 32 * V;
        CUDA_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          R u[V];
          if (at >= a.k || r >= a.m)
            continue;
          load_packet(x + r * a.k, at, a.k, whole_x, u);
          CUDA_UNROLL
          for (int c = 0; c < FEW_COLUMNS; ++c) {
            CUDA_UNROLL
            for (int v = 0; v < V; ++v) {
              if (first + c < a.n)
                sum[c][r] = joined(u[v], element(ahead[c][j], v, T()), sum[c][r]);
            }
          }
        }
      }
    }
    CUDA_UNROLL
    for (int c = 0; c < FEW_COLUMNS; ++c) {
      CUDA_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const R all = warp_all(sum[c][r], add_two());
        if (lane == 0 && r < a.m && first + c < a.n)
          finish_product<T>(a, all, r, first + c);
      }
    }
  }
}

#define CUDA_FEW(SUFFIX, TYPE)                                                               \
  CUDA_FETCHING_KERNEL(opipe_few_columns_1_##SUFFIX, fetch_columns<TYPE>, CUDA_THREADS, 4) { \
    few_columns<TYPE, 1>(a);                                                                 \
  }                                                                                          \
  CUDA_FETCHING_KERNEL(opipe_few_columns_4_##SUFFIX, fetch_columns<TYPE>, CUDA_THREADS) {    \
    few_columns<TYPE, 4>(a);                                                                 \
  }                                                                                          \
  CUDA_FETCHING_KERNEL(opipe_few_columns_8_##SUFFIX, fetch_columns<TYPE>, CUDA_THREADS) {    \
    few_columns<TYPE, 8>(a);                                                                 \
  }                                                                                          \
  CUDA_KERNEL(opipe_few_sums_##SUFFIX) {                                                     \
    few_sums<TYPE>(a);                                                                       \
  }                                                                                          \
  CUDA_FETCHING_KERNEL(opipe_few_turned_1_##SUFFIX, fetch_turned<TYPE>, CUDA_THREADS, 1) {   \
    few_turned<TYPE, 1>(a);                                                                  \
  }                                                                                          \
  CUDA_FETCHING_KERNEL(opipe_few_turned_4_##SUFFIX, fetch_turned<TYPE>, CUDA_THREADS, 1) {   \
    few_turned<TYPE, 4>(a);                                                                  \
  }                                                                                          \
  CUDA_FETCHING_KERNEL(opipe_few_turned_8_##SUFFIX, fetch_turned<TYPE>, CUDA_THREADS) {      \
    few_turned<TYPE, 8>(a);                                                                  \
  }
CUDA_FEW(f32, float)
CUDA_FEW(bf16, bf16)
CUDA_FEW(f16, f16)
