/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of fp32 by tiles, on plain products: 32 query rows a block, 8 a warp; keys in tiles of
 * 64, a tile's values copied while its scores are made, the next keys while those are weighed.
 *
 * Half a warp has 4 rows; of a product [32, 64] a lane holds 4 rows and columns `lane`, `lane` +
 * 16,
 * .. of scores, 4 `lane` .. and so on by 64 of the output. Scores become exponentials above the
 * largest so far, as in flash.cu. A row's bits depend on its own keys alone: where some row of the
 * warp does not see a key, or a mask may hide it, weights of 0 are left out. */
#include "flash.cuh"

enum { ROWS = CUDA_FLASH_PLAIN_ROWS, KEYS = CUDA_FLASH_PLAIN_KEYS };

/* A block's tiles. Rows that lanes read in columns are 4 elements longer than they are, so that 8
 * of them lie in different banks. */
template <int D>
struct plain_tiles {
  float q[ROWS][D + 4], keys[KEYS][D + 4], values[KEYS][D], weights[ROWS][KEYS + 4];
};

/* Begins to copy N rows, four elements at a time, of which `rows` are there. */
template <int D, int N, int STEP, class ROW>
CUDA_FN void begin_floats(float (*tile)[STEP], int rows, int width, const ROW &row_at) {
  CUDA_ROLLED
  for (int i = (int)threadIdx.x; i < N * (D / 4); i += CUDA_FLASH_THREADS) {
    const int row = i / (D / 4), column = i % (D / 4) * 4;
    const bool there = row < rows && column < width;
    copy_begin(&tile[row][column], row_at(there ? row : 0) + (there ? column : 0), there);
  }
}

CUDA_FN packet<float> four_at(const float *at) {
  return *reinterpret_cast<const packet<float> *>(at);
}

struct lane_place {
  int row, lane; /* the first of four in the block; of 16 */
  CUDA_FN lane_place() : row((int)(threadIdx.x / 16) * 4), lane((int)(threadIdx.x % 16)) {}
};

/* s = products of the lane's rows and keys */
template <int D>
CUDA_FN void multiply_floats(const plain_tiles<D> &in, const lane_place &own, float (*s)[4]) {
  CUDA_UNROLL
  for (int i = 0; i < 16; ++i)
    s[i / 4][i % 4] = 0;
  CUDA_UNROLL_2
  for (int d = 0; d < D; d += 4) {
    packet<float> q[4];
    CUDA_UNROLL
    for (int r = 0; r < 4; ++r)
      q[r] = four_at(&in.q[own.row + r][d]);
    CUDA_UNROLL
    for (int k = 0; k < 4; ++k) {
      const packet<float> key = four_at(&in.keys[own.lane + 16 * k][d]);
      CUDA_UNROLL
      for (int i = 0; i < 16; ++i)
        s[i / 4][k] = fmaf(q[i / 4].v[i % 4], key.v[i % 4], s[i / 4][k]);
    }
  }
}

/* o += the lane's rows of weights times values. CAREFUL: where a weight is 0, whatever the value.
 */
template <int D, bool CAREFUL>
CUDA_FN void add_values(const plain_tiles<D> &in, const lane_place &own, float (*o)[D / 16]) {
  CUDA_UNROLL_2
  for (int j = 0; j < KEYS; j += 4) {
    packet<float> weight[4];
    CUDA_UNROLL
    for (int r = 0; r < 4; ++r)
      weight[r] = four_at(&in.weights[own.row + r][j]);
    CUDA_UNROLL
    for (int k = 0; k < 4; ++k) {
      CUDA_UNROLL
      for (int c = 0; c < D / 64; ++c) {
        const packet<float> value = four_at(&in.values[j + k][64 * c + 4 * own.lane]);
        CUDA_UNROLL
        for (int i = 0; i < 16; ++i) {
          const float w = weight[i / 4].v[k];
          float *sum = &o[i / 4][4 * c + i % 4];
          *sum = CAREFUL && w == 0 ? *sum : fmaf(w, value.v[i % 4], *sum);
        }
      }
    }
  }
}

/* Scores of the lane's keys, from `first` on. */
CUDA_FN void finish_floats(const cuda_attention_args &a, const attention_place &at,
                           const key_range &range, const lane_place &own, int first,
                           float (*s)[4]) {
  const float scale = (float)a.scale;
  const bool plain = a.mask_kind == 0 && !(a.softcap > 0);
  CUDA_UNROLL
  for (int i = 0; i < 16; ++i) {
    const int row = (int)at.row + own.row + i / 4, j = first + own.lane + 16 * (i % 4);
    const bool seen = row < (int)a.queries && j < range.seen(row);
    float x = s[i / 4][i % 4] * scale;
    if (!plain && seen)
      x = add_mask<float>(a, moved(at, row), j, capped(a, x));
    s[i / 4][i % 4] = seen ? x : -INFINITY;
  }
}

/* Scores become weights, in their tile; what was summed before is scaled. */
template <int D>
CUDA_FN void rise_floats(plain_tiles<D> *io, const lane_place &own, float (*s)[4], float *top,
                         float *sum, float (*o)[D / 16]) {
  CUDA_UNROLL
  for (int r = 0; r < 4; ++r) {
    float most = fmaxf(fmaxf(s[r][0], s[r][1]), fmaxf(s[r][2], s[r][3])), part = 0;
    CUDA_UNROLL
    for (int d = 8; d > 0; d /= 2)
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
    most = fmaxf(most, top[r]);
    const float base = most == -INFINITY ? 0.0f : most;
    const float factor = power_of_two((top[r] - base) * CUDA_LOG2E);
    top[r] = most;
    CUDA_UNROLL
    for (int k = 0; k < 4; ++k) {
      const float p = power_of_two((s[r][k] - base) * CUDA_LOG2E);
      io->weights[own.row + r][own.lane + 16 * k] = p;
      part += p;
    }
    sum[r] = fmaf(sum[r], factor, part);
    CUDA_UNROLL
    for (int i = 0; i < D / 16; ++i)
      o[r][i] *= factor;
  }
}

template <int D>
CUDA_FN void begin_plain_keys(const cuda_attention_args &a, const attention_place &at, int first,
                              int n, plain_tiles<D> *to) {
  if (first < n) {
    begin_floats<D, KEYS>(to->keys, n - first, (int)a.depth,
                          [&](int j) { return key_row<float>(a, at, first + j); });
  }
  copy_commit();
}
template <int D>
CUDA_FN void begin_plain_values(const cuda_attention_args &a, const attention_place &at, int first,
                                int n, plain_tiles<D> *to) {
  begin_floats<D, KEYS>(to->values, n - first, (int)a.value_depth,
                        [&](int j) { return value_row<float>(a, at, first + j); });
  copy_commit();
}

template <int D>
CUDA_FN void plain_rows(const cuda_attention_args &a, const attention_place &at,
                        const lane_place &own, plain_tiles<D> *in, float (*o)[D / 16], float *sum) {
  const key_range range = range_of(a, at);
  const int n = keys_of_tile(a, at, ROWS), warp = (int)at.row + (int)(threadIdx.x / 32) * 8;
  const int last = warp + 8 < (int)a.queries ? warp + 7 : (int)a.queries - 1;
  const int seen = warp < (int)a.queries ? range.seen(last) : 0;
  const bool masked = a.mask_kind != 0;
  float s[4][4], top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  begin_floats<D, ROWS>(in->q, (int)(a.queries - at.row), (int)a.depth,
                        [&](int i) { return query_row<float>(a, moved(at, at.row + i)); });
  begin_plain_keys(a, at, 0, n, in);
  for (int first = 0; first < n; first += KEYS) {
    begin_plain_values(a, at, first, n, in);
    copy_wait<1>();
    __syncthreads(); /* the keys are there */
    if (first < seen) {
      multiply_floats(*in, own, s);
      finish_floats(a, at, range, own, first, s);
    }
    __syncthreads(); /* the keys are read */
    begin_plain_keys(a, at, first + KEYS, n, in);
    if (first < seen)
      rise_floats(in, own, s, top, sum, o);
    copy_wait<1>();
    __syncthreads(); /* the values are there, and the weights */
    if (first < seen && (masked || first + KEYS > range.seen(warp)))
      add_values<D, true>(*in, own, o);
    else if (first < seen)
      add_values<D, false>(*in, own, o);
    __syncthreads(); /* the values are read */
  }
  copy_wait<0>();
  __syncthreads(); /* nothing is copied any more */
}

template <int D>
CUDA_FN void flash_plain(const cuda_attention_args &a) {
  CUDA_DYNAMIC(memory);
  plain_tiles<D> *const in = reinterpret_cast<plain_tiles<D> *>(memory);
  const lane_place own;
  const int64_t tasks = a.batch * a.heads * tiles_of(a.queries, ROWS);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const attention_place at = place_of_tile(a, task, ROWS);
    float o[4][D / 16] = {}, sum[4] = {};
    plain_rows<D>(a, at, own, in, o, sum);
    CUDA_UNROLL
    for (int r = 0; r < 4; ++r) {
      float whole = sum[r];
      CUDA_UNROLL
      for (int d = 8; d > 0; d /= 2)
        whole += __shfl_xor_sync(0xffffffffu, whole, d);
      const float factor = whole == 0 ? 0.0f : 1.0f / whole;
      const int64_t row = at.row + own.row + r;
      float *y = static_cast<float *>(a.y) + at.b * a.y_stride[0] + at.h * a.y_stride[1] +
                 row * a.y_stride[2];
      CUDA_UNROLL
      for (int c = 0; c < D / 64; ++c) {
        const int column = 64 * c + 4 * own.lane;
        packet<float> out;
        CUDA_UNROLL
        for (int i = 0; i < 4; ++i)
          out.v[i] = o[r][4 * c + i] * factor;
        if (row < a.queries && column < (int)a.value_depth)
          *reinterpret_cast<packet<float> *>(y + column) = out;
      }
    }
  }
}

#define CUDA_FLASH_PLAIN(D)                  \
  CUDA_ROOMY_KERNEL(opipe_flash_##D##_f32) { \
    flash_plain<D>(a);                       \
  }
CUDA_FLASH_PLAIN(64)
CUDA_FLASH_PLAIN(128)
