/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of attention on the matrix instructions, in one order:
 *
 *   rows  64 or 128 query rows a block, twice over their keys: the statistics, then dQ = sum(dS K)
 *         scale
 *   keys  64 or 128 keys a block; over the queries of the heads that read them: dV = sum(p dY), dK
 * = sum(dS Q) scale
 *
 * with dS = p (dP - D) times the slope of the cap, dP = dY V, D = sum(p dP). Tiles of 64 keys or
 * queries are taken by halves. Statistics of a row, float: BARE the exponent's units of largest
 * score and sum in one, [rows], and D, [rows]; else those of attention.cu, [rows][3]. */
#include "flash.cuh"

enum { HALF = 32 }; /* of a tile, keys or queries */

/* Probability of a key that the row sees and its gradient's slope, from the product. */
template <class T>
CUDA_FN float weight_of(const cuda_attention_args &a, const attention_place &at, int row, int j,
                        float product, float top, float inverse, float *out_slope) {
  const float raw = product * (float)a.scale;
  *out_slope = a.softcap > 0 ? cap_slope(a, raw) : 1.0f;
  const float s = add_mask<T>(a, moved(at, row), j, capped(a, raw));
  return inverse == 0 ? 0.0f : power_of_two((s - top) * CUDA_LOG2E) * inverse;
}

/* Numbers of a lane's rows: `base` BARE largest score and sum together, else the largest;
 * `inverse`: 1 / sum and D. */
template <int M>
struct row_numbers {
  float base[2 * M], inverse[2 * M], weighted[2 * M];
};

/* The tiles of a block of query rows: its own, and two of keys, each with its values. */
template <class T, int D, int M>
struct row_tiles {
  T *q, *dy, *keys;
  CUDA_FN explicit row_tiles(unsigned char *memory)
      : q(reinterpret_cast<T *>(memory)), dy(q + 64 * M * D), keys(dy + 64 * M * D) {}
  CUDA_FN T *at(int first) const {
    return keys + first / CUDA_FLASH_KEYS % 2 * 2 * CUDA_FLASH_KEYS * D;
  }
};

/* Once over the keys of a tile of rows: `half` is called with the keys, the values and the first of
 * those of a half that a row of the warp sees. The first tile has been begun. */
template <class T, int D, int M, class HALF_OF>
CUDA_FN void sweep_keys(const cuda_attention_args &a, const attention_place &at, int seen,
                        const row_tiles<T, D, M> &in, const HALF_OF &half) {
  const int n = keys_of_tile(a, at, 64 * M);
  for (int first = 0; first < n; first += CUDA_FLASH_KEYS) {
    const int next = first + CUDA_FLASH_KEYS;
    copy_wait<0>();
    __syncthreads(); /* this tile is there, and the other one is read */
    if (next < n) {
      begin_keys<T, D, CUDA_FLASH_KEYS>(a, at, next, n, in.at(next),
                                        in.at(next) + CUDA_FLASH_KEYS * D);
    }
    copy_commit();
    CUDA_UNROLL
    for (int h = 0; h < CUDA_FLASH_KEYS; h += HALF) {
      if (first + h < seen)
        half(in.at(first) + h * D, in.at(first) + (CUDA_FLASH_KEYS + h) * D, first + h);
    }
  }
  copy_wait<0>();
  __syncthreads(); /* the tiles are read */
}

template <class T, int D, int M>
CUDA_FN void begin_sweep(const cuda_attention_args &a, const attention_place &at,
                         const row_tiles<T, D, M> &in) {
  const int n = keys_of_tile(a, at, 64 * M);
  if (n > 0)
    begin_keys<T, D, CUDA_FLASH_KEYS>(a, at, 0, n, in.keys, in.keys + CUDA_FLASH_KEYS * D);
  copy_commit();
}

/* The numbers of the warp's rows, by the sums of exponentials and of those times dP. */
template <class T, int D, bool BARE, int M, class LEFT, class DY>
CUDA_FN void find_numbers(const cuda_attention_args &a, const attention_place &at,
                          const warp_rows &own, const row_tiles<T, D, M> &in, const LEFT &q,
                          const DY &dy, row_numbers<M> *out) {
  const float exponent = exponent_of<BARE>(a);
  float top[2 * M], sum[2 * M] = {}, weighted[2 * M] = {}, factor[2 * M];
  CUDA_UNROLL
  for (int i = 0; i < 2 * M; ++i)
    top[i] = -INFINITY;
  sweep_keys<T, D, M>(a, at, own.seen(), in, [&](T *keys, T *values, int first) {
    float s[M][HALF / 8][4], dp[M][HALF / 8][4];
    multiply_rows<T, D, M, HALF>(s, q, keys);
    multiply_rows<T, D, M, HALF>(dp, dy, values);
    finish_scores<T, M, HALF, BARE>(a, at, own, first, s);
    rise<M, HALF, BARE>(s, exponent, top, sum, factor);
    CUDA_UNROLL
    for (int i = 0; i < 2 * M; ++i) {
      float part = 0;
      CUDA_UNROLL
      for (int k = 0; k < HALF / 4; ++k) {
        part = fmaf(s[i / 2][k / 2][i % 2 * 2 + k % 2], dp[i / 2][k / 2][i % 2 * 2 + k % 2], part);
      }
      weighted[i] = fmaf(weighted[i], factor[i], part);
    }
  });
  CUDA_UNROLL
  for (int i = 0; i < 2 * M; ++i) {
    const float whole = row_all(sum[i], add_two());
    out->inverse[i] = whole == 0 ? 0.0f : 1.0f / whole;
    out->weighted[i] = row_all(weighted[i], add_two()) * out->inverse[i];
    out->base[i] = !BARE ? top[i] : whole == 0 ? INFINITY : fmaf(top[i], exponent, log2f(whole));
  }
}

template <bool BARE, int M>
CUDA_FN void keep_numbers(const cuda_attention_grad_args &g, const attention_place &at,
                          const warp_rows &own, const row_numbers<M> &of) {
  const cuda_attention_args &a = g.forward;
  const int64_t rows = a.batch * a.heads * a.queries;
  CUDA_UNROLL
  for (int i = 0; i < 2 * M; ++i) {
    const int64_t row = (at.b * a.heads + at.h) * a.queries + own.of_lane(i);
    float *to = static_cast<float *>(g.workspace) + (BARE ? row : 3 * row);
    if (threadIdx.x % 4 == 0 && own.of_lane(i) <= own.last) {
      to[0] = of.base[i];
      to[BARE ? rows : 2] = of.weighted[i];
      if (!BARE)
        to[1] = of.inverse[i];
    }
  }
}

/* Products of keys from `first` on become dS. */
template <class T, bool BARE, int M>
CUDA_FN void make_gradients(const cuda_attention_args &a, const attention_place &at,
                            const warp_rows &own, int first, float exponent,
                            const row_numbers<M> &of, float (*s)[HALF / 8][4],
                            const float (*dp)[HALF / 8][4]) {
  if (BARE)
    finish_scores<T, M, HALF, true>(a, at, own, first, s);
  CUDA_UNROLL
  for (int i = 0; i < 2 * M; ++i) {
    const int row = own.of_lane(i), column = (int)(threadIdx.x % 4 * 2);
    const int seen = row <= own.last ? own.range.seen(row) - first - column : 0;
    CUDA_UNROLL
    for (int k = 0; k < HALF / 4; ++k) {
      float *x = &s[i / 2][k / 2][i % 2 * 2 + k % 2];
      const float d = dp[i / 2][k / 2][i % 2 * 2 + k % 2] - of.weighted[i];
      if (BARE) {
        *x = power_of_two(fmaf(*x, exponent, -of.base[i])) * d;
      } else {
        const int j = k / 2 * 8 + k % 2;
        float slope = 0, p = 0;
        if (j < seen) {
          p = weight_of<T>(a, at, row, first + column + j, *x, of.base[i], of.inverse[i], &slope);
        }
        *x = p == 0 ? 0.0f : p * d * slope;
      }
    }
  }
}

template <class T, int D, bool BARE>
CUDA_FN void flash_grad_rows(const cuda_attention_grad_args &g) {
  const int M = CUDA_FLASH_PIECES(D, BARE), SIZE = CUDA_FLASH_ROWS(D, BARE);
  const cuda_attention_args &a = g.forward;
  CUDA_DYNAMIC(memory);
  const row_tiles<T, D, M> in(memory);
  const float exponent = exponent_of<BARE>(a), scale = (float)a.scale;
  const int64_t tasks = a.batch * a.heads * tiles_of(a.queries, SIZE);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const attention_place at = place_of_tile(a, task, SIZE);
    const warp_rows own = rows_of_warp<M>(a, at);
    left_rows<T, D, M, true> q;
    left_rows<T, D, M, M == 1> dy;
    row_numbers<M> numbers;
    float dq[M][D / 8][4] = {};
    begin_queries<T, D, 64 * M>(a, at, in.q);
    begin_dy<T, D, 64 * M>(g, at, in.dy);
    begin_sweep(a, at, in);
    copy_wait<0>();
    __syncthreads();
    q.take(in.q);
    dy.take(in.dy);
    find_numbers<T, D, BARE, M>(a, at, own, in, q, dy, &numbers);
    keep_numbers<BARE, M>(g, at, own, numbers);
    if (g.dq == nullptr)
      continue;
    begin_sweep(a, at, in);
    sweep_keys<T, D, M>(a, at, own.seen(), in, [&](T *keys, T *values, int first) {
      float s[M][HALF / 8][4], dp[M][HALF / 8][4];
      unsigned ds[M][HALF / 16][4];
      multiply_rows<T, D, M, HALF>(s, q, keys);
      multiply_rows<T, D, M, HALF>(dp, dy, values);
      make_gradients<T, BARE, M>(a, at, own, first, exponent, numbers, s, dp);
      round_weights<T, M, HALF>(s, ds);
      multiply_weights<T, D, M, HALF>(dq, ds, keys);
    });
    CUDA_UNROLL
    for (int i = 0; i < 2 * M; ++i) {
      const int row = own.of_lane(i);
      if (row <= own.last) {
        store_row<T, D>(dq, i, scale,
                        static_cast<T *>(g.dq) + at.b * g.dq_stride[0] + at.h * g.dq_stride[1] +
                            row * g.dq_stride[2],
                        (int)a.depth);
      }
    }
  }
}

/* ---- keys ---- */

/* A block's keys of a batch's head of keys, and its way through the tiles of queries that see one
 * of them: those of one head after those of another. */
struct key_task {
  int64_t next;            /* the block's next task; -1: none */
  int b, kv, first, limit; /* the keys that a row can see: before limit */
  int head;                /* the first that reads them */
  int row, tiles, steps;   /* first row of every head, tiles of a head, of all that read the keys */
  float exponent;
  CUDA_FN key_task(const cuda_attention_args &a, int64_t i, int size, float factor)
      : exponent(factor) {
    const int64_t n = tiles_of(a.keys, size), all = a.batch * a.kv_heads;
    const flash_task own = task_of(i, all, n); /* early keys are seen by the most rows */
    const int group = (int)a.heads / (int)a.kv_heads;
    next = i + gridDim.x < all * n ? i + gridDim.x : -1;
    b = (int)(own.head / a.kv_heads);
    kv = (int)(own.head % a.kv_heads);
    first = (int)own.tile * size;
    const key_range range = range_of(a, {b, 0, kv, 0});
    const int hidden = a.causal ? first - range.shift + 1 : 0;
    limit = range.limit;
    row = hidden > 0 ? hidden / CUDA_FLASH_QUERIES * CUDA_FLASH_QUERIES : 0;
    tiles = row < (int)a.queries ? (int)tiles_of(a.queries - row, CUDA_FLASH_QUERIES) : 0;
    steps = first < limit ? tiles * group : 0;
    head = kv * group;
  }
  CUDA_FN attention_place place(int step) const {
    return {b, head + step / tiles, kv, row_of(step)};
  }
  CUDA_FN int row_of(int step) const {
    return row + step % tiles * CUDA_FLASH_QUERIES;
  }
  CUDA_FN key_range range(const cuda_attention_args &a) const {
    return {limit, a.causal ? (int)a.past + 1 : limit};
  }
};

/* The tiles of a block of keys: its own, and two of queries, each with its dY and, BARE, the
 * numbers of its rows. The task lies there too: registers are all taken. */
template <class T, int D, int M>
struct key_tiles {
  T *keys, *values, *queries;
  float *numbers; /* [2 tiles][2][CUDA_FLASH_QUERIES] */
  key_task *task;
  CUDA_FN explicit key_tiles(unsigned char *memory)
      : keys(reinterpret_cast<T *>(memory)),
        values(keys + 64 * M * D),
        queries(values + 64 * M * D),
        numbers(reinterpret_cast<float *>(queries + 4 * CUDA_FLASH_QUERIES * D)),
        task(reinterpret_cast<key_task *>(numbers + 4 * CUDA_FLASH_QUERIES)) {}
  CUDA_FN T *q(int step) const {
    return queries + step % 2 * 2 * CUDA_FLASH_QUERIES * D;
  }
  CUDA_FN T *dy(int step) const {
    return q(step) + CUDA_FLASH_QUERIES * D;
  }
  CUDA_FN float *of(int step) const {
    return numbers + step % 2 * 2 * CUDA_FLASH_QUERIES;
  }
};

/* Begins to copy the numbers of query rows from `at` on. */
CUDA_FN void begin_numbers(const cuda_attention_grad_args &g, const attention_place &at,
                           float *to) {
  const cuda_attention_args &a = g.forward;
  const int which = (int)(threadIdx.x / CUDA_FLASH_QUERIES),
            row = (int)(threadIdx.x % CUDA_FLASH_QUERIES);
  const float *from = static_cast<const float *>(g.workspace) +
                      which * a.batch * a.heads * a.queries + (at.b * a.heads + at.h) * a.queries +
                      at.row + row;
  copy_word(to + threadIdx.x, from, at.row + row < a.queries);
}

/* s [keys from `first` on, queries from `row` on] becomes the probabilities, dp the gradients of
 * the scores. numbers: of the queries, largest score and sum together, and D a tile behind. */
template <int M>
CUDA_FN void turn_bare(const key_range &range, int row, int first, float exponent,
                       const float *numbers, float (*s)[HALF / 8][4], float (*dp)[HALF / 8][4]) {
  const int column = (int)(threadIdx.x % 4 * 2), lane = (int)(threadIdx.x % 32 / 4);
  if (range.seen(row) < first + 16 * M) { /* some row does not see some key */
    CUDA_UNROLL
    for (int i = 0; i < M * HALF / 2; ++i) {
      const int m = i / (HALF / 2), n = i / 4 % (HALF / 8), k = i % 4;
      if (first + 16 * m + k / 2 * 8 + lane >= range.seen(row + 8 * n + column + k % 2))
        s[m][n][k] = -INFINITY;
    }
  }
  CUDA_UNROLL
  for (int i = 0; i < HALF / 4; ++i) {
    const float *of = numbers + i / 2 * 8 + column + i % 2;
    CUDA_UNROLL
    for (int r = 0; r < 2 * M; ++r) {
      float *x = &s[r / 2][i / 2][r % 2 * 2 + i % 2], *d = &dp[r / 2][i / 2][r % 2 * 2 + i % 2];
      *x = power_of_two(fmaf(*x, exponent, -of[0]));
      *d = *x * (*d - of[CUDA_FLASH_QUERIES]);
    }
  }
}

/* The same with masks and caps. */
template <class T, int M>
CUDA_FN void turn_masked(const cuda_attention_grad_args &g, const attention_place &at,
                         const key_range &range, int first, float (*s)[HALF / 8][4],
                         float (*dp)[HALF / 8][4]) {
  const cuda_attention_args &a = g.forward;
  const float *numbers =
      static_cast<const float *>(g.workspace) + 3 * (at.b * a.heads + at.h) * a.queries;
  CUDA_UNROLL
  for (int i = 0; i < HALF / 4; ++i) { /* the lane's columns */
    const int n = i / 2, c = i % 2, row = (int)at.row + 8 * n + (int)(threadIdx.x % 4 * 2) + c;
    const bool there = row < (int)a.queries;
    const int seen = there ? range.seen(row) : 0;
    const float *of = numbers + 3 * (int64_t)(there ? row : 0);
    const float top = of[0], inverse = of[1], weighted = of[2];
    CUDA_UNROLL
    for (int r = 0; r < 2 * M; ++r) {
      float slope = 0, p = 0, *x = &s[r / 2][n][r % 2 * 2 + c], *d = &dp[r / 2][n][r % 2 * 2 + c];
      const int j = first + 8 * r + (int)(threadIdx.x % 32 / 4);
      if (j < seen)
        p = weight_of<T>(a, at, row, j, *x, top, inverse, &slope);
      *x = p;
      *d = p == 0 ? 0.0f : p * (*d - weighted) * slope;
    }
  }
}

template <class T, int D, bool BARE, int M>
CUDA_FN void begin_step(const cuda_attention_grad_args &g, const key_tiles<T, D, M> &in, int step) {
  if (step < in.task->steps) {
    const attention_place at = in.task->place(step);
    begin_queries<T, D, CUDA_FLASH_QUERIES>(g.forward, at, in.q(step));
    begin_dy<T, D, CUDA_FLASH_QUERIES>(g, at, in.dy(step));
    if (BARE)
      begin_numbers(g, at, in.of(step));
  }
  copy_commit();
}

/* dk and dv of the block's keys: over the heads that read them and their rows. */
template <class T, int D, bool BARE, int M>
CUDA_FN void sweep_rows(const cuda_attention_grad_args &g, const key_tiles<T, D, M> &in,
                        float (*dk)[D / 8][4], float (*dv)[D / 8][4]) {
  const cuda_attention_args &a = g.forward;
  const key_task &task = *in.task;
  left_rows<T, D, M, false> keys, values;
  keys.take(in.keys);
  values.take(in.values);
  begin_keys<T, D, 64 * M>(a, {task.b, 0, task.kv, 0}, task.first, task.limit, in.keys, in.values);
  begin_step<T, D, BARE, M>(g, in, 0);
  CUDA_ROLLED
  for (int step = 0; step < task.steps; ++step) {
    copy_wait<0>();
    __syncthreads(); /* this tile is there, and the other one is read */
    begin_step<T, D, BARE, M>(g, in, step + 1);
    CUDA_UNROLL
    for (int h = 0; h < CUDA_FLASH_QUERIES; h += HALF) {
      const int row = task.row_of(step) + h, own = task.first + (int)(threadIdx.x / 32) * 16 * M;
      if (row >= (int)a.queries || own >= task.range(a).seen(row + HALF - 1))
        continue;
      float s[M][HALF / 8][4], dp[M][HALF / 8][4];
      unsigned p[M][HALF / 16][4], ds[M][HALF / 16][4];
      multiply_rows<T, D, M, HALF>(s, keys, in.q(step) + h * D);
      multiply_rows<T, D, M, HALF>(dp, values, in.dy(step) + h * D);
      if (BARE)
        turn_bare<M>(task.range(a), row, own, task.exponent, in.of(step) + h, s, dp);
      else
        turn_masked<T, M>(g, moved(task.place(step), row), task.range(a), own, s, dp);
      round_weights<T, M, HALF>(s, p);
      round_weights<T, M, HALF>(dp, ds);
      multiply_weights<T, D, M, HALF>(dv, p, in.dy(step) + h * D);
      multiply_weights<T, D, M, HALF>(dk, ds, in.q(step) + h * D);
    }
  }
  copy_wait<0>();
}

template <class T, int D, bool BARE>
CUDA_FN void flash_grad_keys(const cuda_attention_grad_args &g) {
  const int M = CUDA_FLASH_PIECES(D, BARE), SIZE = CUDA_FLASH_ROWS(D, BARE);
  const cuda_attention_args &a = g.forward;
  CUDA_DYNAMIC(memory);
  const key_tiles<T, D, M> in(memory);
  for (int64_t i = blockIdx.x; i >= 0; i = in.task->next) {
    float dk[M][D / 8][4] = {}, dv[M][D / 8][4] = {};
    __syncthreads(); /* of the task before */
    if (threadIdx.x == 0)
      *in.task = key_task(a, i, SIZE, exponent_of<BARE>(a));
    __syncthreads();
    sweep_rows<T, D, BARE, M>(g, in, dk, dv);
    const attention_place at = {in.task->b, 0, in.task->kv, 0};
    CUDA_UNROLL
    for (int r = 0; r < 2 * M; ++r) {
      const int j =
          in.task->first + (int)(threadIdx.x / 32) * 16 * M + 8 * r + (int)(threadIdx.x % 32 / 4);
      if (j < (int)a.keys) {
        T *to_k = grad_row<T>(g.dpast_k, g.dpast_k_stride, g.dk, g.dk_stride, a.past, at, j);
        T *to_v = grad_row<T>(g.dpast_v, g.dpast_v_stride, g.dv, g.dv_stride, a.past, at, j);
        if (to_k != nullptr)
          store_row<T, D>(dk, r, (float)a.scale, to_k, (int)a.depth);
        if (to_v != nullptr)
          store_row<T, D>(dv, r, 1, to_v, (int)a.value_depth);
      }
    }
  }
}

#define CUDA_FLASH_GRAD(NAME, D, BARE, SUFFIX, TYPE)           \
  CUDA_ROOMY_KERNEL(opipe_flash_grad_rows_##NAME##_##SUFFIX) { \
    flash_grad_rows<TYPE, D, BARE>(a);                         \
  }                                                            \
  CUDA_ROOMY_KERNEL(opipe_flash_grad_keys_##NAME##_##SUFFIX) { \
    flash_grad_keys<TYPE, D, BARE>(a);                         \
  }
CUDA_FLASH_GRAD(64, 64, true, bf16, bf16)
CUDA_FLASH_GRAD(64, 64, true, f16, f16)
CUDA_FLASH_GRAD(128, 128, true, bf16, bf16)
CUDA_FLASH_GRAD(128, 128, true, f16, f16)
CUDA_FLASH_GRAD(masked_64, 64, false, bf16, bf16)
CUDA_FLASH_GRAD(masked_64, 64, false, f16, f16)
CUDA_FLASH_GRAD(masked_128, 128, false, bf16, bf16)
CUDA_FLASH_GRAD(masked_128, 128, false, f16, f16)
