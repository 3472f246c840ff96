/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tiles on the matrix instructions: tasks, tiles in shared memory, products of a warp,
 * scores and their exponentials.
 *
 * D, the elements of a row in tiles, is 64 or 128: rows are filled up with zeros. A warp takes M
 * pieces of 16 rows; of a product [16 M, N] a lane holds [M][N / 8][4], each piece as tensor.cuh
 * says. Of a piece these are two rows, so that a lane has 2 M. Weights are rounded to the halves'
 * type before their products; sums are float.
 *
 * BARE: scores have neither mask nor cap, and a scale above 0. They stay products then: the scale
 * is in the exponent. Bits of a row are the same for every M, BARE or not is of the call's form. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_FLASH_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_FLASH_CUH_

#include "attention.cuh"
#include "tensor.cuh"

#define CUDA_LOG2E 1.44269504088896340736f

/* ---- tasks ---- */

/* Task i of tiles of own rows: heads in groups of which a device holds about all keys, of a group
 * the tiles with the most work first. */
struct flash_task {
  int64_t head, tile;
};
CUDA_FN flash_task task_of(int64_t i, int64_t heads, int64_t tiles) {
  const int64_t most = tiles < 512 ? 512 / tiles : 1, first = i / (most * tiles) * most;
  const int64_t group = heads - first < most ? heads - first : most;
  const int64_t rest = i - first * tiles;
  return {first + rest % group, rest / group};
}
CUDA_FN int64_t tiles_of(int64_t rows, int size) {
  return (rows + size - 1) / size;
}

CUDA_FN attention_place moved(attention_place at, int64_t row) {
  at.row = row;
  return at;
}

/* Task i of query rows by `size`: late rows see the most keys. */
CUDA_FN attention_place place_of_tile(const cuda_attention_args &a, int64_t i, int size) {
  const int64_t tiles = tiles_of(a.queries, size);
  const flash_task task = task_of(i, a.batch * a.heads, tiles);
  const int64_t h = task.head % a.heads;
  return {task.head / a.heads, h, h / (a.heads / a.kv_heads), (tiles - 1 - task.tile) * size};
}

/* What rows see but for the mask: keys [0, seen(row)). */
struct key_range {
  int limit, shift; /* of all rows; of row 0, one more for each row after it */
  CUDA_FN int seen(int row) const {
    return row + shift < limit ? row + shift : limit;
  }
};
CUDA_FN key_range range_of(const cuda_attention_args &a, const attention_place &at) {
  const int limit = (int)visible_keys(a, moved(at, a.keys)); /* a row beyond all that are hidden */
  return {limit, a.causal ? (int)a.past + 1 : limit};
}

/* The query rows of a warp's pieces, and of a lane. */
struct warp_rows {
  int first, last; /* none: last < first */
  key_range range;
  CUDA_FN int of_lane(int i) const { /* i < 2 M */
    return first + i * 8 + (int)(threadIdx.x % 32 / 4);
  }
  CUDA_FN int seen(void) const {
    return last < first ? 0 : range.seen(last);
  }
};
template <int M>
CUDA_FN warp_rows rows_of_warp(const cuda_attention_args &a, const attention_place &at) {
  const int first = (int)at.row + (int)(threadIdx.x / 32) * 16 * M, end = (int)a.queries;
  return {first, (first + 16 * M < end ? first + 16 * M : end) - 1, range_of(a, at)};
}
/* Keys that one row at least of a block's `size` sees. */
CUDA_FN int keys_of_tile(const cuda_attention_args &a, const attention_place &at, int size) {
  const int64_t end = at.row + size < a.queries ? at.row + size : a.queries;
  return range_of(a, at).seen((int)end - 1);
}

/* ---- tiles ---- */

/* Eight elements of a tile's row. Chunks are exchanged so that those of eight rows lie in
 * different banks. */
template <class T, int D>
CUDA_FN T *chunk_at(T *tile, int row, int chunk) {
  return tile + row * D + (chunk ^ (row & 7)) * 8;
}

/* Begins to copy N rows that lie `step` elements apart, of which `rows` are there, with `width`
 * elements each. */
template <class T, int D, int N>
CUDA_FN void begin_tile(T *tile, const T *from, int64_t step, int rows, int width) {
  const int chunk = (int)(threadIdx.x % (D / 8)), first = (int)(threadIdx.x / (D / 8));
  const int by = CUDA_FLASH_THREADS / (D / 8);
  const int end = chunk * 8 < width ? rows : 0;
  const T *at = from + first * step + chunk * 8;
  T *to = chunk_at<T, D>(tile, first, chunk); /* `by` is a multiple of 8 */
  CUDA_UNROLL
  for (int i = 0; i < N / by; ++i) {
    copy_begin(to + i * by * D, at, first + i * by < end);
    at += by * step;
  }
}

/* The same of rows [first, first + N) of what lies in two pieces, `end` rows in all. */
template <class T, int D, int N>
CUDA_FN void begin_joined(T *tile, const void *past, const int64_t *past_stride, const void *fresh,
                          const int64_t *stride, int n_past, const attention_place &at, int first,
                          int end, int width) {
  const T *rows = static_cast<const T *>(fresh) + at.b * stride[0] + at.kv * stride[1];
  if (first >= n_past) {
    begin_tile<T, D, N>(tile, rows + (first - n_past) * stride[2], stride[2], end - first, width);
    return;
  }
  const T *before = static_cast<const T *>(past) + at.b * past_stride[0] + at.kv * past_stride[1];
  CUDA_ROLLED
  for (int i = (int)threadIdx.x; i < N * (D / 8); i += CUDA_FLASH_THREADS) {
    const int row = i / (D / 8), chunk = i % (D / 8), j = first + row;
    const T *from = j < n_past ? before + j * past_stride[2] : rows + (j - n_past) * stride[2];
    copy_begin(chunk_at<T, D>(tile, row, chunk), from + chunk * 8, j < end && chunk * 8 < width);
  }
}

/* Begins to copy N keys from `first` on, of those before `end`, and their values. */
template <class T, int D, int N>
CUDA_FN void begin_keys(const cuda_attention_args &a, const attention_place &at, int first, int end,
                        T *keys, T *values) {
  begin_joined<T, D, N>(keys, a.past_k, a.past_k_stride, a.k, a.k_stride, (int)a.past, at, first,
                        end, (int)a.depth);
  begin_joined<T, D, N>(values, a.past_v, a.past_v_stride, a.v, a.v_stride, (int)a.past, at, first,
                        end, (int)a.value_depth);
}

/* Begins to copy N queries from `at` on; their dY. */
template <class T, int D, int N>
CUDA_FN void begin_queries(const cuda_attention_args &a, const attention_place &at, T *to) {
  begin_tile<T, D, N>(to, query_row<T>(a, at), a.q_stride[2], (int)(a.queries - at.row),
                      (int)a.depth);
}
template <class T, int D, int N>
CUDA_FN void begin_dy(const cuda_attention_grad_args &g, const attention_place &at, T *to) {
  begin_tile<T, D, N>(to, dy_row<T>(g, at), g.dy_stride[2], (int)(g.forward.queries - at.row),
                      (int)g.forward.value_depth);
}

/* ---- products ---- */

/* Where a lane begins in 16 rows of a tile that are left factors, or turned right ones; and right
 * ones. It goes on to columns 16 k by ^ 16 k. */
template <int D>
CUDA_FN int left_lane(void) {
  const unsigned lane = threadIdx.x % 32;
  return (int)(lane % 16 * D + (lane / 16 ^ lane % 8) * 8);
}
template <int D>
CUDA_FN int right_lane(void) {
  const unsigned lane = threadIdx.x % 32;
  return (int)((lane / 16 * 8 + lane % 8) * D + (lane / 8 % 2 ^ lane % 8) * 8);
}

/* The rows of a warp's pieces as left factors, [16 M, D]: HELD in registers, or read again. */
template <class T, int D, int M, bool HELD>
struct left_rows {
  unsigned held[HELD ? D / 16 : 1][M][4];
  T *tile;

  CUDA_FN void read(int k, unsigned (*out)[4]) const {
    const int lane = left_lane<D>();
    CUDA_UNROLL
    for (int m = 0; m < M; ++m)
      load_pieces(out[m], tile + (lane ^ 16 * k) + 16 * m * D);
  }
  CUDA_FN void take(T *rows) { /* once they are there */
    tile = rows + (int)(threadIdx.x / 32) * 16 * M * D;
    CUDA_UNROLL
    for (int k = 0; HELD && k < D / 16; ++k)
      read(k, held[k]);
  }
  CUDA_FN void get(int k, unsigned (*out)[4]) const {
    if (!HELD)
      read(k, out);
    CUDA_UNROLL
    for (int i = 0; HELD && i < 4 * M; ++i)
      out[i / 4][i % 4] = held[HELD ? k : 0][i / 4][i % 4];
  }
};

/* s [16 M, N] = a times the rows of b [N, D] */
template <class T, int D, int M, int N, bool HELD>
CUDA_FN void multiply_rows(float (*s)[N / 8][4], const left_rows<T, D, M, HELD> &a, T *b) {
  const int lane = right_lane<D>();
  CUDA_UNROLL
  for (int i = 0; i < M * N / 2; ++i)
    s[i / (N / 2)][i / 4 % (N / 8)][i % 4] = 0;
  CUDA_UNROLL
  for (int k = 0; k < D / 16; ++k) {
    unsigned left[M][4], right[4];
    a.get(k, left);
    CUDA_UNROLL
    for (int n = 0; n < N / 16; ++n) {
      load_pieces(right, b + (lane ^ 16 * k) + 16 * n * D);
      CUDA_UNROLL
      for (int m = 0; m < M; ++m) {
        multiply_add(s[m][2 * n], left[m], right, T());
        multiply_add(s[m][2 * n + 1], left[m], right + 2, T());
      }
    }
  }
}

/* w [16 M, N] as left factors of a product, rounded. */
template <class T, int M, int N>
CUDA_FN void round_weights(const float (*w)[N / 8][4], unsigned (*out)[N / 16][4]) {
  CUDA_UNROLL
  for (int i = 0; i < M * N / 4; ++i) {
    const int m = i / (N / 4), k = i / 4 % (N / 16), of = i % 4;
    const float *pair = &w[m][2 * k + of / 2][of % 2 * 2];
    out[m][k][of] = pair_of(pair[0], pair[1], T());
  }
}

/* o [16 M, D] += w [16 M, N] b [N, D] */
template <class T, int D, int M, int N>
CUDA_FN void multiply_weights(float (*o)[D / 8][4], const unsigned (*w)[N / 16][4], T *b) {
  const int lane = left_lane<D>();
  CUDA_UNROLL
  for (int k = 0; k < N / 16; ++k) {
    unsigned right[4];
    CUDA_UNROLL
    for (int n = 0; n < D / 16; ++n) {
      load_turned(right, b + (lane ^ 16 * n) + 16 * k * D);
      CUDA_UNROLL
      for (int m = 0; m < M; ++m) {
        multiply_add(o[m][2 * n], w[m][k], right, T());
        multiply_add(o[m][2 * n + 1], w[m][k], right + 2, T());
      }
    }
  }
}

/* Row i of a lane, times its factor. */
template <class T, int D>
CUDA_FN void store_row(const float (*o)[D / 8][4], int i, float factor, T *row, int width) {
  CUDA_UNROLL
  for (int n = 0; n < D / 8; ++n) {
    if (8 * n < width) {
      *reinterpret_cast<unsigned *>(row + 8 * n + (int)(threadIdx.x % 4 * 2)) =
          pair_of(o[i / 2][n][i % 2 * 2] * factor, o[i / 2][n][i % 2 * 2 + 1] * factor, T());
    }
  }
}

/* ---- scores ---- */

/* Factor in the exponent of two. */
template <bool BARE>
CUDA_FN float exponent_of(const cuda_attention_args &a) {
  return BARE ? (float)a.scale * CUDA_LOG2E : CUDA_LOG2E;
}

/* Products of keys from `first` on become scores; -inf where a row does not see the key. */
template <class T, int M, int N, bool BARE>
CUDA_FN void finish_scores(const cuda_attention_args &a, const attention_place &at,
                           const warp_rows &own, int first, float (*s)[N / 8][4]) {
  if (BARE && first + N <= own.range.seen(own.first))
    return;
  const float scale = (float)a.scale;
  const bool plain = BARE || (a.mask_kind == 0 && !(a.softcap > 0));
  CUDA_UNROLL
  for (int i = 0; i < 2 * M; ++i) {
    const int row = own.of_lane(i), column = (int)(threadIdx.x % 4 * 2);
    const int seen = row <= own.last ? own.range.seen(row) - first - column : 0;
    CUDA_UNROLL
    for (int k = 0; k < N / 4; ++k) {
      float *x = &s[i / 2][k / 2][i % 2 * 2 + k % 2];
      const int j = k / 2 * 8 + k % 2;
      if (!BARE)
        *x *= scale;
      if (!plain && j < seen)
        *x = add_mask<T>(a, moved(at, row), first + column + j, capped(a, *x));
      *x = j < seen ? *x : -INFINITY;
    }
  }
}

/* Exponential of a score above `base`; BARE: which is in the exponent's units. */
template <bool BARE>
CUDA_FN float rise_above(float x, float factor, float base) {
  return power_of_two(BARE ? fmaf(x, factor, -base) : (x - base) * factor);
}

/* Of the four lanes that share a row. */
template <class Op>
CUDA_FN float row_all(float x, Op op) {
  x = op(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return op(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

struct most_of { /* of numbers; what is none shows in its exponential */
  CUDA_FN float operator()(float a, float b) const {
    return fmaxf(a, b);
  }
};

/* Scores become exponentials above their rows' largest so far; sum: the lane's part; factor: of
 * what was summed before. */
template <int M, int N, bool BARE>
CUDA_FN void rise(float (*s)[N / 8][4], float exponent, float *top, float *sum, float *factor) {
  CUDA_UNROLL
  for (int i = 0; i < 2 * M; ++i) {
    float most = top[i];
    CUDA_UNROLL
    for (int k = 0; k < N / 4; ++k)
      most = fmaxf(most, s[i / 2][k / 2][i % 2 * 2 + k % 2]);
    most = row_all(most, most_of());
    const float base = most == -INFINITY ? 0.0f : BARE ? most * exponent : most;
    factor[i] = rise_above<BARE>(top[i], exponent, base);
    top[i] = most;
    float part = 0;
    CUDA_UNROLL
    for (int k = 0; k < N / 4; ++k) {
      float *x = &s[i / 2][k / 2][i % 2 * 2 + k % 2];
      *x = rise_above<BARE>(*x, exponent, base);
      part += *x;
    }
    sum[i] = fmaf(sum[i], factor[i], part);
  }
}

#endif
