/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tiles on the matrix instructions: tiles in shared memory, products of a warp, scores
 * and their exponentials.
 *
 * D, the elements of a row in tiles, is 64 or 128: rows are filled up with zeros. A warp takes 16
 * rows; of a product [16, n] a lane holds what tensor.cuh says. Weights are rounded to the halves'
 * type before their products; sums are float. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_FLASH_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_FLASH_CUH_

#include "attention.cuh"
#include "tensor.cuh"

#define CUDA_LOG2E 1.44269504088896340736f

/* Eight elements of a tile's row. Chunks are exchanged so that those of eight rows lie in
 * different banks. */
template <class T, int D>
CUDA_FN T *chunk_at(T *tile, int row, int chunk) {
  return tile + row * D + (chunk ^ (row & 7)) * 8;
}

/* Begins to copy N rows, of which `rows` (1 or more) are there, with `width` elements each. */
template <class T, int D, int N, class ROW>
CUDA_FN void begin_tile(T *tile, int rows, int width, const ROW &row_at) {
  for (int i = (int)threadIdx.x; i < N * (D / 8); i += CUDA_FLASH_THREADS) {
    const int row = i / (D / 8), chunk = i % (D / 8);
    const bool there = row < rows && chunk * 8 < width;
    copy_begin(chunk_at<T, D>(tile, row, chunk), row_at(there ? row : 0) + (there ? chunk * 8 : 0),
               there);
  }
}

/* s [N / 8][4] = rows [from, from + 16) of a [.., D] times the rows of b [N, D] */
template <class T, int D, int N>
CUDA_FN void multiply_rows(float (*s)[4], T *a, int from, T *b) {
  const int lane = (int)(threadIdx.x % 32);
  CUDA_UNROLL
  for (int i = 0; i < N / 2; ++i)
    s[i / 4][i % 4] = 0;
  CUDA_UNROLL
  for (int k = 0; k < D / 16; ++k) {
    unsigned left[4], right[4];
    load_pieces(left, chunk_at<T, D>(a, from + lane % 16, 2 * k + lane / 16));
    CUDA_UNROLL
    for (int n = 0; n < N / 16; ++n) {
      load_pieces(right,
                  chunk_at<T, D>(b, 16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      multiply_add(s[2 * n], left, right, T());
      multiply_add(s[2 * n + 1], left, right + 2, T());
    }
  }
}

/* o [D / 8][4] += w [16, N] b [N, D] */
template <class T, int D, int N>
CUDA_FN void multiply_weights(float (*o)[4], const float (*w)[4], T *b) {
  const int lane = (int)(threadIdx.x % 32);
  CUDA_UNROLL
  for (int k = 0; k < N / 16; ++k) {
    const float *low = w[2 * k], *high = w[2 * k + 1];
    const unsigned left[4] = {pair_of(low[0], low[1], T()), pair_of(low[2], low[3], T()),
                              pair_of(high[0], high[1], T()), pair_of(high[2], high[3], T())};
    CUDA_UNROLL
    for (int n = 0; n < D / 16; ++n) {
      unsigned right[4];
      load_turned(right, chunk_at<T, D>(b, 16 * k + lane % 16, 2 * n + lane / 16));
      multiply_add(o[2 * n], left, right, T());
      multiply_add(o[2 * n + 1], left, right + 2, T());
    }
  }
}

/* Rows of a product times their factors; a row without an address is left out. */
template <class T, int D>
CUDA_FN void store_rows(const float (*o)[4], const float *factor, T *const *rows, int width) {
  const int column = (int)(threadIdx.x % 4) * 2;
  CUDA_UNROLL
  for (int r = 0; r < 2; ++r) {
    CUDA_UNROLL
    for (int n = 0; n < D / 8; ++n) {
      if (rows[r] != nullptr && 8 * n < width) {
        *reinterpret_cast<unsigned *>(rows[r] + 8 * n + column) =
            pair_of(o[n][2 * r] * factor[r], o[n][2 * r + 1] * factor[r], T());
      }
    }
  }
}

/* The two query rows of a lane, and how many keys each may see: none where it is no row. */
struct lane_rows {
  int row[2], visible[2];
};

CUDA_FN attention_place moved(attention_place at, int row) {
  at.row = row;
  return at;
}

CUDA_FN lane_rows rows_of_lane(const cuda_attention_args &a, const attention_place &first) {
  lane_rows own;
  CUDA_UNROLL
  for (int r = 0; r < 2; ++r) {
    own.row[r] = (int)first.row + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * r;
    own.visible[r] =
        own.row[r] < (int)a.queries ? (int)visible_keys(a, moved(first, own.row[r])) : 0;
  }
  return own;
}

/* Task i of the tiles of query rows: those with the most keys first. */
CUDA_FN attention_place place_of_tile(const cuda_attention_args &a, int64_t i) {
  const int64_t heads = a.batch * a.heads,
                tiles = (a.queries + CUDA_FLASH_ROWS - 1) / CUDA_FLASH_ROWS;
  const int64_t head = i % heads % a.heads;
  return {i % heads / a.heads, head, head / (a.heads / a.kv_heads),
          (tiles - 1 - i / heads) * CUDA_FLASH_ROWS};
}
CUDA_FN int64_t query_tiles(const cuda_attention_args &a) {
  return a.batch * a.heads * ((a.queries + CUDA_FLASH_ROWS - 1) / CUDA_FLASH_ROWS);
}
/* Keys that a row of the tile may see. */
CUDA_FN int keys_of_tile(const cuda_attention_args &a, const attention_place &at) {
  const int last = (int)at.row + CUDA_FLASH_ROWS - 1;
  return (int)visible_keys(a, moved(at, last < (int)a.queries ? last : (int)a.queries - 1));
}

/* Begins to copy keys [first, first + 64) of n, and their values. */
template <class T, int D>
CUDA_FN void begin_keys(const cuda_attention_args &a, const attention_place &at, int first, int n,
                        T *keys, T *values) {
  begin_tile<T, D, CUDA_FLASH_KEYS>(keys, n - first, (int)a.depth,
                                    [&](int j) { return key_row<T>(a, at, first + j); });
  begin_tile<T, D, CUDA_FLASH_KEYS>(values, n - first, (int)a.value_depth,
                                    [&](int j) { return value_row<T>(a, at, first + j); });
}

/* Begins to copy N queries from `at` on; their dY. */
template <class T, int D, int N>
CUDA_FN void begin_queries(const cuda_attention_args &a, const attention_place &at, T *to) {
  begin_tile<T, D, N>(to, (int)(a.queries - at.row), (int)a.depth,
                      [&](int i) { return query_row<T>(a, moved(at, (int)at.row + i)); });
}
template <class T, int D, int N>
CUDA_FN void begin_dy(const cuda_attention_grad_args &g, const attention_place &at, T *to) {
  begin_tile<T, D, N>(to, (int)(g.forward.queries - at.row), (int)g.forward.value_depth,
                      [&](int i) { return dy_row<T>(g, moved(at, (int)at.row + i)); });
}

/* Scores as they are weighed, in the place of the products, of keys from `first` on. */
template <class T, int N>
CUDA_FN void finish_scores(const cuda_attention_args &a, const attention_place &at,
                           const lane_rows &own, int first, float (*s)[4]) {
  const float scale = (float)a.scale;
  const bool bare = a.mask_kind == 0 && !(a.softcap > 0);
  CUDA_UNROLL
  for (int i = 0; i < N / 2; ++i) {
    const int n = i / 4, k = i % 4, r = k / 2;
    const int j = first + 8 * n + (int)threadIdx.x % 4 * 2 + k % 2;
    float x = s[n][k] * scale;
    if (!bare && j < own.visible[r])
      x = add_mask<T>(a, moved(at, own.row[r]), j, capped(a, x));
    s[n][k] = j < own.visible[r] ? x : -INFINITY;
  }
}

/* Of the four lanes that share a row. */
template <class Op>
CUDA_FN float row_all(float x, Op op) {
  x = op(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return op(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Scores become exponentials above the rows' largest so far; factor: of what was summed before. */
template <int N>
CUDA_FN void rise(float (*s)[4], float *top, float *sum, float *factor) {
  CUDA_UNROLL
  for (int r = 0; r < 2; ++r) {
    float most = top[r], part = 0;
    CUDA_UNROLL
    for (int n = 0; n < N / 8; ++n)
      most = max_two()(most, max_two()(s[n][2 * r], s[n][2 * r + 1]));
    most = row_all(most, max_two());
    const float base = most == -INFINITY ? 0.0f : most * CUDA_LOG2E;
    factor[r] = power_of_two(fmaf(top[r], CUDA_LOG2E, -base));
    top[r] = most;
    CUDA_UNROLL
    for (int i = 0; i < N / 4; ++i) {
      float *x = &s[i / 2][2 * r + i % 2];
      *x = power_of_two(fmaf(*x, CUDA_LOG2E, -base));
      part += *x;
    }
    sum[r] = fmaf(sum[r], factor[r], row_all(part, add_two()));
  }
}

#endif
