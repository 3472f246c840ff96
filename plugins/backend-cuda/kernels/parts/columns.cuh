/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of columns: chunks of CUDA_CHUNK_ROWS rows by blocks of 32 packets side by side, then the
 * chunks in order. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_COLUMNS_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_COLUMNS_CUH_

#include "map_math.cuh"

enum { COLUMN_SLICES = CUDA_WARPS }; /* of a chunk: a warp takes every eighth row */

/* What the slices of a block found: 32 packets of V columns side by side. */
template <class R, int V>
struct slice_room {
  R part[COLUMN_SLICES][32 * V];
};

/* Adds up the slices of the block's columns, of n, in order. own [V]: of this thread's packet.
 * true: this thread has the sum of a column. */
template <class R, int V>
CUDA_FN bool sum_slices(const R *own, slice_room<R, V> *room, int64_t n, int64_t *out_column,
                        R *out_sum) {
  const int lane = (int)(threadIdx.x % 32), slice = (int)(threadIdx.x / 32);
  __syncthreads(); /* the room may still be read */
  CUDA_UNROLL
  for (int k = 0; k < V; ++k)
    room->part[slice][lane * V + k] = own[k];
  __syncthreads();
  const int64_t column = (int64_t)blockIdx.x * 32 * V + threadIdx.x;
  if (threadIdx.x >= 32 * V || column >= n)
    return false;
  R sum = 0;
  CUDA_UNROLL
  for (int k = 0; k < COLUMN_SLICES; ++k)
    sum += room->part[k][threadIdx.x];
  *out_column = column;
  *out_sum = sum;
  return true;
}

/* The same into partial [n] of the block's chunk. */
template <class R, int V>
CUDA_FN void add_slices(const R *own, slice_room<R, V> *room, R *partial, int64_t n) {
  int64_t column;
  R sum;
  if (sum_slices<R, V>(own, room, n, &column, &sum))
    partial[column] = sum;
}

enum { COLUMN_AHEAD = 8 }; /* chunks under way in a thread */

/* RUNS: of chunks, a warp each. */
template <class R, int RUNS = COLUMN_SLICES>
struct run_room {
  R part[RUNS][32];
};

template <class R>
CUDA_FN R run_of_chunks(const R *partial, int64_t step, int64_t first, int64_t end) {
  R sum = 0;
  for (int64_t k = first; k < end; k += COLUMN_AHEAD) {
    R ahead[COLUMN_AHEAD];
    CUDA_UNROLL
    for (int j = 0; j < COLUMN_AHEAD; ++j)
      ahead[j] = k + j < end ? partial[(k + j) * step] : (R)0;
    CUDA_UNROLL
    for (int j = 0; j < COLUMN_AHEAD; ++j)
      sum += ahead[j];
  }
  return sum;
}

/* A block adds up the chunks of 32 columns, `step` elements from one chunk to the next: runs of
 * chunks, then the runs in order. true: this thread has the sum of a column. */
template <class R, int RUNS>
CUDA_FN bool add_chunks(const R *partial, int64_t step, int64_t chunks, int64_t n,
                        run_room<R, RUNS> *room, int64_t *out_column, R *out_sum) {
  const int lane = (int)(threadIdx.x % 32), slice = (int)(threadIdx.x / 32);
  const int64_t column = (int64_t)blockIdx.x * 32 + lane;
  const int64_t each = (chunks + RUNS - 1) / RUNS, first = slice * each;
  const int64_t end = first + each < chunks ? first + each : chunks;
  if (column < n)
    room->part[slice][lane] = run_of_chunks(partial + column, step, first, end);
  __syncthreads();
  if (slice != 0 || column >= n)
    return false;
  R sum = room->part[0][lane];
  CUDA_UNROLL
  for (int k = 1; k < RUNS; ++k)
    sum += room->part[k][lane];
  *out_column = column;
  *out_sum = sum;
  return true;
}

#endif
