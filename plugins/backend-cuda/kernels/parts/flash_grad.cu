/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of attention on the matrix instructions, in one order:
 *
 *   rows  64 query rows a block, twice over their keys: the statistics of attention.cu (largest
 *         score, 1 / sum, D = sum(p dP)), then dQ = sum(dS K) scale
 *   keys  64 keys a block; queries of the heads that read them in tiles of 32: dV = sum(p dY), dK =
 *         sum(dS Q) scale
 *
 * with dS = p (dP - D) times the slope of the cap, and dP = dY V. */
#include "flash.cuh"

/* Probability of key j for a row with these statistics, from the product of both; `out_slope`: of
 * the cap. */
template <class T>
CUDA_FN float weight_of(const cuda_attention_args &a, const attention_place &at, int row,
                        int visible, int j, float product, float top, float inverse,
                        float *out_slope) {
  float s = product * (float)a.scale;
  *out_slope = 1;
  if (j >= visible || inverse == 0)
    return 0;
  if (a.softcap > 0)
    *out_slope = cap_slope(a, s);
  if (a.mask_kind != 0 || a.softcap > 0)
    s = add_mask<T>(a, moved(at, row), j, capped(a, s));
  return power_of_two((s - top) * CUDA_LOG2E) * inverse;
}

struct row_numbers { /* of a lane's two rows: largest score, sum of exponentials, of those times dP
                      */
  float top[2], sum[2], weighted[2];
};

/* s and dp become the exponentials and nothing; `weighted` runs along with the sum. */
template <class T>
CUDA_FN void add_statistics(const cuda_attention_args &a, const attention_place &at,
                            const lane_rows &own, int first, float (*s)[4], const float (*dp)[4],
                            row_numbers *io) {
  float factor[2];
  finish_scores<T, CUDA_FLASH_KEYS>(a, at, own, first, s);
  rise<CUDA_FLASH_KEYS>(s, io->top, io->sum, factor);
  CUDA_UNROLL
  for (int r = 0; r < 2; ++r) {
    float part = 0;
    CUDA_UNROLL
    for (int i = 0; i < CUDA_FLASH_KEYS / 4; ++i)
      part = fmaf(s[i / 2][2 * r + i % 2], dp[i / 2][2 * r + i % 2], part);
    io->weighted[r] = fmaf(io->weighted[r], factor[r], row_all(part, add_two()));
  }
}

/* s becomes dS; of the numbers `sum` is 1 / sum now. */
template <class T>
CUDA_FN void make_gradients(const cuda_attention_args &a, const attention_place &at,
                            const lane_rows &own, int first, float (*s)[4], const float (*dp)[4],
                            const row_numbers &of) {
  CUDA_UNROLL
  for (int i = 0; i < CUDA_FLASH_KEYS / 2; ++i) {
    const int n = i / 4, k = i % 4, r = k / 2;
    const int j = first + 8 * n + (int)threadIdx.x % 4 * 2 + k % 2;
    float slope;
    const float p =
        weight_of<T>(a, at, own.row[r], own.visible[r], j, s[n][k], of.top[r], of.sum[r], &slope);
    s[n][k] = p == 0 ? 0.0f : p * (dp[n][k] - of.weighted[r]) * slope;
  }
}

template <class T, int D>
struct row_tiles {
  T *q, *dy, *keys, *values; /* two tiles of keys, of values */
};

/* Once over the keys of a tile of rows: their statistics, or with those (SECOND) dq. */
template <class T, int D, bool SECOND>
CUDA_FN void sweep_keys(const cuda_attention_args &a, const attention_place &at,
                        const lane_rows &own, const row_tiles<T, D> &in, row_numbers *io,
                        float (*dq)[4]) {
  const int n = keys_of_tile(a, at);
  const int warp = (int)(threadIdx.x / 32) * 16;
  float s[CUDA_FLASH_KEYS / 8][4], dp[CUDA_FLASH_KEYS / 8][4];
  if (n > 0)
    begin_keys<T, D>(a, at, 0, n, in.keys, in.values);
  copy_commit();
  for (int first = 0; first < n; first += CUDA_FLASH_KEYS) {
    const int next = first + CUDA_FLASH_KEYS;
    const int stage = first / CUDA_FLASH_KEYS % 2 * CUDA_FLASH_KEYS * D,
              other = CUDA_FLASH_KEYS * D - stage;
    if (next < n)
      begin_keys<T, D>(a, at, next, n, in.keys + other, in.values + other);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    if ((int)at.row + warp < (int)a.queries) {
      multiply_rows<T, D, CUDA_FLASH_KEYS>(s, in.q, warp, in.keys + stage);
      multiply_rows<T, D, CUDA_FLASH_KEYS>(dp, in.dy, warp, in.values + stage);
      if (SECOND) {
        make_gradients<T>(a, at, own, first, s, dp, *io);
        multiply_weights<T, D, CUDA_FLASH_KEYS>(dq, s, in.keys + stage);
      } else {
        add_statistics<T>(a, at, own, first, s, dp, io);
      }
    }
    __syncthreads(); /* the tiles are read */
  }
  copy_wait<0>();
}

template <class T, int D>
CUDA_FN void flash_grad_rows(const cuda_attention_grad_args &g) {
  const cuda_attention_args &a = g.forward;
  CUDA_DYNAMIC(memory);
  T *const q = reinterpret_cast<T *>(memory), *const keys = q + 2 * CUDA_FLASH_ROWS * D;
  const row_tiles<T, D> in = {q, q + CUDA_FLASH_ROWS * D, keys, keys + 2 * CUDA_FLASH_KEYS * D};
  for (int64_t task = blockIdx.x; task < query_tiles(a); task += gridDim.x) {
    const attention_place at = place_of_tile(a, task);
    const lane_rows own = rows_of_lane(a, at);
    row_numbers numbers = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
    float dq[D / 8][4] = {}, factor[2] = {(float)a.scale, (float)a.scale};
    T *rows[2];
    begin_queries<T, D, CUDA_FLASH_ROWS>(a, at, in.q);
    begin_dy<T, D, CUDA_FLASH_ROWS>(g, at, in.dy);
    sweep_keys<T, D, false>(a, at, own, in, &numbers, dq);
    CUDA_UNROLL
    for (int r = 0; r < 2; ++r) {
      numbers.sum[r] = numbers.sum[r] == 0 ? 0.0f : 1.0f / numbers.sum[r];
      numbers.weighted[r] *= numbers.sum[r];
      rows[r] = own.row[r] < (int)a.queries && g.dq != nullptr
                    ? static_cast<T *>(g.dq) + at.b * g.dq_stride[0] + at.h * g.dq_stride[1] +
                          own.row[r] * g.dq_stride[2]
                    : nullptr;
      if (threadIdx.x % 4 == 0 && own.row[r] < (int)a.queries) {
        float *statistics = static_cast<float *>(g.workspace) +
                            3 * ((at.b * a.heads + at.h) * a.queries + own.row[r]);
        statistics[0] = numbers.top[r];
        statistics[1] = numbers.sum[r];
        statistics[2] = numbers.weighted[r];
      }
    }
    if (g.dq != nullptr) {
      sweep_keys<T, D, true>(a, at, own, in, &numbers, dq);
      store_rows<T, D>(dq, factor, rows, (int)a.depth);
    }
  }
}

/* s [keys, queries] becomes the probabilities, dp the gradients of the scores, for queries from
 * `at` on, each of which sees at most `limit` keys; j: the lane's first key. */
template <class T>
CUDA_FN void turn_gradients(const cuda_attention_grad_args &g, const attention_place &at, int limit,
                            int j, float (*s)[4], float (*dp)[4]) {
  const cuda_attention_args &a = g.forward;
  const float *statistics =
      static_cast<const float *>(g.workspace) + 3 * (at.b * a.heads + at.h) * a.queries;
  CUDA_UNROLL
  for (int i = 0; i < CUDA_FLASH_QUERIES / 4; ++i) { /* the lane's columns */
    const int n = i / 2, c = i % 2, row = (int)at.row + 8 * n + (int)threadIdx.x % 4 * 2 + c;
    const bool there = row < (int)a.queries;
    const int own = a.causal ? row + (int)a.past + 1 : limit;
    const int visible = !there ? 0 : own < limit ? own : limit;
    const float *of = statistics + 3 * (there ? row : 0);
    const float top = of[0], inverse = of[1], weighted = of[2];
    CUDA_UNROLL
    for (int r = 0; r < 2; ++r) {
      float slope, *x = &s[n][2 * r + c], *d = &dp[n][2 * r + c];
      *x = weight_of<T>(a, at, row, visible, j + 8 * r, *x, top, inverse, &slope);
      *d = *x == 0 ? 0.0f : *x * (*d - weighted) * slope;
    }
  }
}

template <class T, int D>
struct key_tiles {
  T *keys, *values, *q, *dy; /* two tiles of queries, of dy */
};

/* dk and dv of the block's keys from `first` on: over the heads that read them and their rows. */
template <class T, int D>
CUDA_FN void sweep_rows(const cuda_attention_grad_args &g, attention_place at, int first,
                        const key_tiles<T, D> &in, float (*dk)[4], float (*dv)[4]) {
  const cuda_attention_args &a = g.forward;
  const int warp = (int)(threadIdx.x / 32) * 16, group = (int)(a.heads / a.kv_heads);
  const int hidden = a.causal && first > a.past ? (first - (int)a.past) / CUDA_FLASH_QUERIES : 0;
  const int tiles = ((int)a.queries + CUDA_FLASH_QUERIES - 1) / CUDA_FLASH_QUERIES - hidden;
  const int steps = tiles > 0 ? group * tiles : 0;
  const int limit = (int)visible_keys(a, moved(at, (int)a.keys));
  float s[CUDA_FLASH_QUERIES / 8][4], dp[CUDA_FLASH_QUERIES / 8][4];
  for (int step = -1; step < steps; ++step) { /* the one before the first only begins to copy */
    const int next = step + 1, other = next % 2 * CUDA_FLASH_QUERIES * D,
              stage = CUDA_FLASH_QUERIES * D - other;
    if (next < steps) {
      at.h = at.kv * group + next / tiles;
      at.row = (hidden + next % tiles) * CUDA_FLASH_QUERIES;
      begin_queries<T, D, CUDA_FLASH_QUERIES>(a, at, in.q + other);
      begin_dy<T, D, CUDA_FLASH_QUERIES>(g, at, in.dy + other);
    }
    copy_commit();
    if (step < 0)
      continue;
    copy_wait<1>();
    __syncthreads();
    at.h = at.kv * group + step / tiles;
    at.row = (hidden + step % tiles) * CUDA_FLASH_QUERIES;
    if (first + warp < (int)a.keys) {
      multiply_rows<T, D, CUDA_FLASH_QUERIES>(s, in.keys, warp, in.q + stage);
      multiply_rows<T, D, CUDA_FLASH_QUERIES>(dp, in.values, warp, in.dy + stage);
      turn_gradients<T>(g, at, limit, first + warp + (int)threadIdx.x % 32 / 4, s, dp);
      multiply_weights<T, D, CUDA_FLASH_QUERIES>(dv, s, in.dy + stage);
      multiply_weights<T, D, CUDA_FLASH_QUERIES>(dk, dp, in.q + stage);
    }
    __syncthreads(); /* the tiles are read */
  }
  copy_wait<0>();
}

template <class T, int D>
CUDA_FN void flash_grad_keys(const cuda_attention_grad_args &g) {
  const cuda_attention_args &a = g.forward;
  CUDA_DYNAMIC(memory);
  T *const keys = reinterpret_cast<T *>(memory), *const q = keys + 2 * CUDA_FLASH_KEYS * D;
  const key_tiles<T, D> in = {keys, keys + CUDA_FLASH_KEYS * D, q, q + 2 * CUDA_FLASH_QUERIES * D};
  const int64_t heads = a.batch * a.kv_heads,
                tiles = (a.keys + CUDA_FLASH_KEYS - 1) / CUDA_FLASH_KEYS;
  for (int64_t task = blockIdx.x; task < heads * tiles; task += gridDim.x) {
    const int64_t kv = task % heads % a.kv_heads;
    const int first = (int)(task / heads) * CUDA_FLASH_KEYS;
    const attention_place at = {task % heads / a.kv_heads, 0, kv, 0};
    const float ones[2] = {1, 1}, scales[2] = {(float)a.scale, (float)a.scale};
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    T *to_k[2], *to_v[2];
    begin_keys<T, D>(a, at, first, (int)a.keys, in.keys, in.values);
    sweep_rows<T, D>(g, at, first, in, dk, dv);
    CUDA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int j = first + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * r;
      to_k[r] = to_v[r] = nullptr;
      if (j < (int)a.keys) {
        to_k[r] = grad_row<T>(g.dpast_k, g.dpast_k_stride, g.dk, g.dk_stride, a.past, at, j);
        to_v[r] = grad_row<T>(g.dpast_v, g.dpast_v_stride, g.dv, g.dv_stride, a.past, at, j);
      }
    }
    store_rows<T, D>(dk, scales, to_k, (int)a.depth);
    store_rows<T, D>(dv, ones, to_v, (int)a.value_depth);
  }
}

#define CUDA_FLASH_GRAD(D, SUFFIX, TYPE)                    \
  CUDA_ROOMY_KERNEL(opipe_flash_grad_rows_##D##_##SUFFIX) { \
    flash_grad_rows<TYPE, D>(a);                            \
  }                                                         \
  CUDA_ROOMY_KERNEL(opipe_flash_grad_keys_##D##_##SUFFIX) { \
    flash_grad_keys<TYPE, D>(a);                            \
  }
CUDA_FLASH_GRAD(64, bf16, bf16)
CUDA_FLASH_GRAD(64, f16, f16)
CUDA_FLASH_GRAD(128, bf16, bf16)
CUDA_FLASH_GRAD(128, f16, f16)
