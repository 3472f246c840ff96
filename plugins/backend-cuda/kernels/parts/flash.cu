/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of half types on the matrix instructions, tile by tile (FlashAttention-2, Dao 2023):
 * 64 query rows a block, 16 a warp; keys in tiles of 64, the next one copied meanwhile. Scores
 * become exponentials above the largest score so far, what was summed before is scaled.
 *
 * A row's bits depend on nothing but its own keys: tiles that are hidden from it change nothing. */
#include "flash.cuh"

template <class T, int D>
CUDA_FN void flash(const cuda_attention_args &a) {
  CUDA_DYNAMIC(memory);
  T *const q = reinterpret_cast<T *>(memory), *const keys = q + CUDA_FLASH_ROWS * D,
           *const values = keys + 2 * CUDA_FLASH_KEYS * D;
  const int warp = (int)(threadIdx.x / 32) * 16;
  for (int64_t task = blockIdx.x; task < query_tiles(a); task += gridDim.x) {
    const attention_place at = place_of_tile(a, task);
    const int n = keys_of_tile(a, at);
    const lane_rows own = rows_of_lane(a, at);
    float o[D / 8][4] = {}, s[CUDA_FLASH_KEYS / 8][4], sum[2] = {0, 0}, factor[2];
    float top[2] = {-INFINITY, -INFINITY};
    begin_queries<T, D, CUDA_FLASH_ROWS>(a, at, q);
    if (n > 0)
      begin_keys<T, D>(a, at, 0, n, keys, values);
    copy_commit();
    for (int first = 0; first < n; first += CUDA_FLASH_KEYS) {
      const int next = first + CUDA_FLASH_KEYS;
      const int stage = first / CUDA_FLASH_KEYS % 2 * CUDA_FLASH_KEYS * D,
                other = CUDA_FLASH_KEYS * D - stage;
      if (next < n)
        begin_keys<T, D>(a, at, next, n, keys + other, values + other);
      copy_commit();
      copy_wait<1>();
      __syncthreads();
      if ((int)at.row + warp < (int)a.queries) {
        multiply_rows<T, D, CUDA_FLASH_KEYS>(s, q, warp, keys + stage);
        finish_scores<T, CUDA_FLASH_KEYS>(a, at, own, first, s);
        rise<CUDA_FLASH_KEYS>(s, top, sum, factor);
        CUDA_UNROLL
        for (int i = 0; i < D / 2; ++i)
          o[i / 4][i % 4] *= factor[i % 4 / 2];
        multiply_weights<T, D, CUDA_FLASH_KEYS>(o, s, values + stage);
      }
      __syncthreads(); /* the tiles are read */
    }
    copy_wait<0>();
    T *rows[2];
    CUDA_UNROLL
    for (int r = 0; r < 2; ++r) {
      factor[r] = sum[r] == 0 ? 0.0f : 1.0f / sum[r];
      rows[r] = own.row[r] < (int)a.queries ? static_cast<T *>(a.y) + at.b * a.y_stride[0] +
                                                  at.h * a.y_stride[1] + own.row[r] * a.y_stride[2]
                                            : nullptr;
    }
    store_rows<T, D>(o, factor, rows, (int)a.value_depth);
  }
}

#define CUDA_FLASH(D, SUFFIX, TYPE)               \
  CUDA_ROOMY_KERNEL(opipe_flash_##D##_##SUFFIX) { \
    flash<TYPE, D>(a);                            \
  }
CUDA_FLASH(64, bf16, bf16)
CUDA_FLASH(64, f16, f16)
CUDA_FLASH(128, bf16, bf16)
CUDA_FLASH(128, f16, f16)
