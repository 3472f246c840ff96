/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of half types on the matrix instructions, tile by tile (FlashAttention-2, Dao 2023): 64
 * or 128 query rows a block; keys in tiles of 64, the next one copied meanwhile. Scores become
 * exponentials above the largest score so far, what was summed before is scaled.
 *
 * A row's bits depend on nothing but its own keys: tiles that are hidden from it change nothing. */
#include "flash.cuh"

/* The rows of a task: o, largest scores and the lane's parts of the sums. */
template <class T, int D, bool BARE, int M>
CUDA_FN void flash_rows(const cuda_attention_args &a, const attention_place &at,
                        const warp_rows &own, T *q, float (*o)[D / 8][4], float *top, float *sum) {
  T *const tiles = q + 64 * M * D; /* two of keys, each with its values */
  const int n = keys_of_tile(a, at, 64 * M), seen = own.seen();
  const float exponent = exponent_of<BARE>(a);
  left_rows<T, D, M, M == 1 && (BARE || D == 64)> left; /* held where registers are left */
  float factor[2 * M];
  CUDA_UNROLL
  for (int i = 0; i < 2 * M; ++i)
    top[i] = -INFINITY;
  begin_queries<T, D, 64 * M>(a, at, q);
  if (n > 0)
    begin_keys<T, D, CUDA_FLASH_KEYS>(a, at, 0, n, tiles, tiles + CUDA_FLASH_KEYS * D);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  left.take(q);
  for (int first = 0; first < n; first += CUDA_FLASH_KEYS) {
    const int next = first + CUDA_FLASH_KEYS;
    T *const keys = tiles + first / CUDA_FLASH_KEYS % 2 * 2 * CUDA_FLASH_KEYS * D;
    T *const other = tiles + next / CUDA_FLASH_KEYS % 2 * 2 * CUDA_FLASH_KEYS * D;
    if (first > 0) {
      copy_wait<0>();
      __syncthreads(); /* this tile is there, and the other one is read */
    }
    if (next < n)
      begin_keys<T, D, CUDA_FLASH_KEYS>(a, at, next, n, other, other + CUDA_FLASH_KEYS * D);
    copy_commit();
    if (first >= seen)
      continue;
    float s[M][CUDA_FLASH_KEYS / 8][4];
    unsigned weights[M][CUDA_FLASH_KEYS / 16][4];
    multiply_rows<T, D, M, CUDA_FLASH_KEYS>(s, left, keys);
    finish_scores<T, M, CUDA_FLASH_KEYS, BARE>(a, at, own, first, s);
    rise<M, CUDA_FLASH_KEYS, BARE>(s, exponent, top, sum, factor);
    round_weights<T, M, CUDA_FLASH_KEYS>(s, weights);
    CUDA_UNROLL
    for (int i = 0; i < M * D / 2; ++i)
      o[i / (D / 2)][i / 4 % (D / 8)][i % 4] *= factor[i / (D / 2) * 2 + i % 4 / 2];
    multiply_weights<T, D, M, CUDA_FLASH_KEYS>(o, weights, keys + CUDA_FLASH_KEYS * D);
  }
  copy_wait<0>();
}

template <class T, int D, bool BARE>
CUDA_FN void flash(const cuda_attention_args &a) {
  const int M = CUDA_FLASH_PIECES(D, BARE), SIZE = CUDA_FLASH_ROWS(D, BARE);
  CUDA_DYNAMIC(memory);
  const int64_t tasks = a.batch * a.heads * tiles_of(a.queries, SIZE);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const attention_place at = place_of_tile(a, task, SIZE);
    const warp_rows own = rows_of_warp<M>(a, at);
    float o[M][D / 8][4] = {}, top[2 * M], sum[2 * M] = {};
    flash_rows<T, D, BARE, M>(a, at, own, reinterpret_cast<T *>(memory), o, top, sum);
    CUDA_UNROLL
    for (int i = 0; i < 2 * M; ++i) {
      const int row = own.of_lane(i);
      const float whole = row_all(sum[i], add_two());
      if (row <= own.last && a.found != nullptr && threadIdx.x % 4 == 0) {
        const float most = BARE ? top[i] * (float)a.scale : top[i];
        a.found[(at.b * a.heads + at.h) * a.queries + row] =
            whole == 0 ? INFINITY : most + logf(whole);
      }
      if (row <= own.last) {
        store_row<T, D>(o, i, whole == 0 ? 0.0f : 1.0f / whole,
                        static_cast<T *>(a.y) + at.b * a.y_stride[0] + at.h * a.y_stride[1] +
                            row * a.y_stride[2],
                        (int)a.value_depth);
      }
    }
    __syncthreads(); /* the tiles are read */
  }
}

#define CUDA_FLASH(D, SUFFIX, TYPE)                      \
  CUDA_ROOMY_KERNEL(opipe_flash_##D##_##SUFFIX) {        \
    flash<TYPE, D, true>(a);                             \
  }                                                      \
  CUDA_ROOMY_KERNEL(opipe_flash_masked_##D##_##SUFFIX) { \
    flash<TYPE, D, false>(a);                            \
  }
CUDA_FLASH(64, bf16, bf16)
CUDA_FLASH(64, f16, f16)
CUDA_FLASH(128, bf16, bf16)
CUDA_FLASH(128, f16, f16)
