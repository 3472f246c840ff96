/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of few query rows, as a step of decoding has them: keys in parts of CUDA_FEW_KEYS, a
 * block a part of a key-value head, for all rows that read it. Bandwidth is the limit: a block's
 * keys and values are all under way, in registers, before the first is used.
 *
 *   few    scores, exponentials above the part's largest one, sums of weighted values
 *   join   a row's parts: eight runs, each of every eighth part in order, then the runs in order;
 * by the last block of the head to arrive, or, with the same bits, by a second launch
 *
 * Where all keys are one part there is nothing to join. A row's bits depend on nothing but its
 * own keys: it has as many parts as it sees, and a part's threads and their order are fixed. A key
 * of weight 0 is left out, whatever its value. */
#include "flash.cuh"
#include "last_block.cuh"
#include "words.cuh"

/* Threads side by side take a row of D elements, a packet each. */
template <class T, int D>
struct few_keys {
  static const int across = D / lanes<T>::n;     /* threads */
  static const int down = CUDA_THREADS / across; /* keys at a time */
  static const int each = CUDA_FEW_KEYS / down;  /* of a thread: every `down`-th */
  CUDA_FN static int column(void) {
    return (int)(threadIdx.x % across) * lanes<T>::n;
  }
  CUDA_FN static int key(int i) {
    return (int)(threadIdx.x / across) + i * down;
  }
};

template <int D>
struct few_attention_room {
  float q[CUDA_FEW_QUERIES][D];
  float weights[CUDA_FEW_QUERIES][CUDA_FEW_KEYS]; /* scores at first */
  float part[CUDA_FEW_QUERIES][CUDA_WARPS][D];
  float sums[CUDA_FEW_QUERIES];
};

/* Where a row's parts lie: [rows][parts][value_depth] values, then [rows][parts] of these. */
struct part_found {
  float top, sum;
};
struct part_places {
  float *values;
  part_found *found;
};
CUDA_FN part_places places_of_row(const cuda_attention_args &a, int64_t row, int64_t parts) {
  float *const all = static_cast<float *>(a.workspace);
  const int64_t rows = a.batch * a.heads * a.queries;
  part_found *const found = reinterpret_cast<part_found *>(all + rows * parts * a.value_depth);
  return {all + row * parts * a.value_depth, found + row * parts};
}

/* Query rows that read a key-value head. */
CUDA_FN int few_rows_of(const cuda_attention_args &a) {
  return (int)a.heads / (int)a.kv_heads * (int)a.queries;
}

/* Row r of them; `at`: of the first. */
CUDA_FN attention_place few_row(const cuda_attention_args &a, const attention_place &at, int r) {
  const int queries = (int)a.queries;
  return {at.b, at.h + r / queries, at.kv, r % queries};
}

/* The thread's packets of keys, or values, [first, end): `row_at` says where one lies. */
template <class T, int D, class ROW>
CUDA_FN void load_keys(int first, int end, int64_t width, const ROW &row_at, words *out) {
  typedef few_keys<T, D> own;
  CUDA_UNROLL
  for (int i = 0; i < own::each; ++i) {
    const int j = first + own::key(i);
    out[i] = {{0, 0, 0, 0}};
    if (j < end && own::column() < width)
      out[i] = words_at(row_at(j), own::column());
  }
}

/* scores [CUDA_FEW_KEYS] = products of a row's queries and the keys */
template <class T, int D>
CUDA_FN void score_keys(const words *keys, const float *q, float *scores) {
  typedef few_keys<T, D> own;
  float x[lanes<T>::n];
  CUDA_UNROLL
  for (int v = 0; v < lanes<T>::n; ++v)
    x[v] = q[own::column() + v];
  CUDA_UNROLL
  for (int i = 0; i < own::each; ++i) {
    float s = 0;
    CUDA_UNROLL
    for (int v = 0; v < lanes<T>::n; ++v)
      s = fmaf(x[v], element(keys[i], v, T()), s);
    CUDA_UNROLL
    for (int d = own::across / 2; d > 0; d /= 2)
      s += __shfl_xor_sync(0xffffffffu, s, d);
    if (own::column() == 0)
      scores[own::key(i)] = s;
  }
}

/* A warp: products of a row and keys from `first` on become exponentials of their scores. */
template <class T>
CUDA_FN part_found weigh_keys(const cuda_attention_args &a, const attention_place &at, int seen,
                              int first, float *io_scores) {
  const bool plain = a.mask_kind == 0 && !(a.softcap > 0);
  const int lane = (int)(threadIdx.x % 32);
  float s[CUDA_FEW_KEYS / 32], top = -INFINITY, sum = 0;
  CUDA_UNROLL
  for (int k = 0; k < CUDA_FEW_KEYS / 32; ++k) {
    const int j = first + lane + 32 * k;
    s[k] = io_scores[lane + 32 * k] * (float)a.scale;
    if (!plain && j < seen)
      s[k] = add_mask<T>(a, at, j, capped(a, s[k]));
    s[k] = j < seen ? s[k] : -INFINITY;
    top = fmaxf(top, s[k]);
  }
  top = warp_all(top, most_of());
  const float base = top == -INFINITY ? 0.0f : top;
  CUDA_UNROLL
  for (int k = 0; k < CUDA_FEW_KEYS / 32; ++k) {
    const float p = power_of_two((s[k] - base) * CUDA_LOG2E);
    io_scores[lane + 32 * k] = p;
    sum += p;
  }
  return {top, warp_all(sum, add_two())};
}

/* part [CUDA_WARPS][D] = each warp's values times a row's weights */
template <class T, int D>
CUDA_FN void weigh_values(const words *values, const float *weights, float (*part)[D]) {
  typedef few_keys<T, D> own;
  float sum[lanes<T>::n] = {};
  CUDA_UNROLL
  for (int i = 0; i < own::each; ++i) {
    const float w = weights[own::key(i)];
    CUDA_UNROLL
    for (int v = 0; v < lanes<T>::n; ++v)
      sum[v] = w == 0 ? sum[v] : fmaf(w, element(values[i], v, T()), sum[v]);
  }
  CUDA_UNROLL
  for (int d = own::across; d < 32; d *= 2) {
    CUDA_UNROLL
    for (int v = 0; v < lanes<T>::n; ++v)
      sum[v] += __shfl_xor_sync(0xffffffffu, sum[v], d);
  }
  CUDA_UNROLL
  for (int v = 0; v < lanes<T>::n; ++v) {
    if (threadIdx.x % 32 < own::across)
      part[threadIdx.x / 32][own::column() + v] = sum[v];
  }
}

template <class T>
CUDA_FN T *result_row(const cuda_attention_args &a, const attention_place &at) {
  return static_cast<T *>(a.y) + at.b * a.y_stride[0] + at.h * a.y_stride[1] +
         at.row * a.y_stride[2];
}

/* Part `part` of `parts` of the keys of the rows from `at` on, of which rows see those before
 * `end`. */
template <class T, int D>
CUDA_FN void attend_part(const cuda_attention_args &a, const attention_place &at,
                         const key_range &range, int64_t part, int64_t parts,
                         few_attention_room<D> *room) {
  const int first = (int)part * CUDA_FEW_KEYS, end = range.seen((int)a.queries - 1);
  const int rows = few_rows_of(a), warp = (int)(threadIdx.x / 32);
  words keys[few_keys<T, D>::each], values[few_keys<T, D>::each];
  load_keys<T, D>(
      first, end, a.depth, [&](int j) { return key_row<T>(a, at, j); }, keys);
  load_keys<T, D>(
      first, end, a.value_depth, [&](int j) { return value_row<T>(a, at, j); }, values);
  for (int i = (int)threadIdx.x; i < rows * D; i += CUDA_THREADS) {
    const T *row = query_row<T>(a, few_row(a, at, i / D));
    room->q[i / D][i % D] = i % D < a.depth ? get(row, i % D) : 0.0f;
  }
  __syncthreads();
  CUDA_ROLLED
  for (int r = 0; r < rows; ++r)
    score_keys<T, D>(keys, room->q[r], room->weights[r]);
  __syncthreads();
  if (warp < rows) {
    const attention_place own = few_row(a, at, warp);
    const part_found found =
        weigh_keys<T>(a, own, range.seen((int)own.row), first, room->weights[warp]);
    const int64_t row = (own.b * a.heads + own.h) * a.queries + own.row;
    if (threadIdx.x % 32 == 0)
      room->sums[warp] = found.sum;
    if (threadIdx.x % 32 == 0 && parts > 1)
      places_of_row(a, row, parts).found[part] = found;
  }
  __syncthreads();
  CUDA_ROLLED
  for (int r = 0; r < rows; ++r)
    weigh_values<T, D>(values, room->weights[r], room->part[r]);
  __syncthreads();
  for (int i = (int)threadIdx.x; i < rows * D; i += CUDA_THREADS) {
    const int r = i / D, d = i % D;
    const attention_place own = few_row(a, at, r);
    const int64_t row = (own.b * a.heads + own.h) * a.queries + own.row;
    const float whole = room->sums[r];
    float sum = 0;
    CUDA_UNROLL
    for (int w = 0; w < CUDA_WARPS; ++w)
      sum += room->part[r][w][d];
    if (d < a.value_depth && parts > 1)
      places_of_row(a, row, parts).values[part * a.value_depth + d] = sum;
    if (d < a.value_depth && parts == 1)
      put(result_row<T>(a, own), d, sum * (whole == 0 ? 0.0f : 1.0f / whole));
  }
}

CUDA_FN int64_t parts_of_keys(int64_t keys) {
  return (keys + CUDA_FEW_KEYS - 1) / CUDA_FEW_KEYS;
}

enum { JOIN_AHEAD = 4 }; /* parts under way in a thread */

struct join_room {
  block_room<float> reduce;
  float values[CUDA_WARPS][CUDA_FLASH_DEPTH];
  float sums[CUDA_WARPS];
};

/* The thread's four columns of every eighth part from `part` on. */
CUDA_FN void load_parts(const float *values, int64_t part, int64_t n, int64_t depth, int column,
                        packet<float> *ahead) {
  CUDA_UNROLL
  for (int k = 0; k < JOIN_AHEAD; ++k) {
    const int64_t p = part + k * CUDA_WARPS;
    if (p < n && column < depth)
      ahead[k] = four_of_others(values + p * depth + column);
  }
}

CUDA_FN part_found found_of_others(const part_found *at) {
  const float2 two = __ldcg(reinterpret_cast<const float2 *>(at));
  return {two.x, two.y};
}

/* The sum of one of the runs: every eighth part, scaled from its own largest score to the row's. */
CUDA_FN void join_run(const part_places &in, int64_t n, int64_t depth, join_room *room) {
  const int column = (int)(threadIdx.x % 32) * 4, run = (int)(threadIdx.x / 32);
  packet<float> ahead[JOIN_AHEAD], all = {{0, 0, 0, 0}};
  float top = -INFINITY, sum = 0;
  load_parts(in.values, run, n, depth, column, ahead);
  for (int64_t p = threadIdx.x; p < n; p += CUDA_THREADS)
    top = fmaxf(top, found_of_others(in.found + p).top);
  top = block_all(top, most_of(), &room->reduce);
  const float base = top == -INFINITY ? 0.0f : top;
  for (int64_t part = run; part < n; part += JOIN_AHEAD * CUDA_WARPS) {
    CUDA_UNROLL
    for (int k = 0; k < JOIN_AHEAD; ++k) {
      const int64_t p = part + k * CUDA_WARPS;
      if (p >= n)
        continue;
      const part_found found = found_of_others(in.found + p);
      const float factor = power_of_two((found.top - base) * CUDA_LOG2E);
      sum = fmaf(found.sum, factor, sum);
      CUDA_UNROLL
      for (int v = 0; v < 4; ++v)
        all.v[v] = column < depth ? fmaf(ahead[k].v[v], factor, all.v[v]) : 0.0f;
    }
    load_parts(in.values, part + JOIN_AHEAD * CUDA_WARPS, n, depth, column, ahead);
  }
  CUDA_UNROLL
  for (int v = 0; v < 4; ++v)
    room->values[run][column + v] = all.v[v];
  room->sums[run] = sum; /* the same of all lanes */
}

/* The result of a row, whose keys are in parts of which a call has `parts`. */
template <class T>
CUDA_FN void join_row(const cuda_attention_args &a, const attention_place &at, int64_t parts,
                      join_room *room) {
  const int64_t row = (at.b * a.heads + at.h) * a.queries + at.row;
  float whole = 0, sum = 0;
  __syncthreads(); /* the room may still be read */
  join_run(places_of_row(a, row, parts), parts_of_keys(visible_keys(a, at)), a.value_depth, room);
  __syncthreads();
  CUDA_UNROLL
  for (int w = 0; w < CUDA_WARPS; ++w) {
    whole += room->sums[w];
    sum += room->values[w][threadIdx.x % CUDA_FLASH_DEPTH];
  }
  if (threadIdx.x < a.value_depth)
    put(result_row<T>(a, at), threadIdx.x, sum * (whole == 0 ? 0.0f : 1.0f / whole));
}

template <class T>
CUDA_FN void join_rows(const cuda_attention_args &a) {
  CUDA_SHARED(join_room, room);
  const int64_t rows = a.batch * a.heads * a.queries;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
    join_row<T>(a, place_of_row(a, row), parts_of_keys(a.keys), &room);
}

template <int D>
struct few_block_room {
  union {
    few_attention_room<D> part;
    join_room join;
  };
  bool is_last;
};

/* The key-value head of a block, of `parts` for each: of its first row. */
CUDA_FN attention_place place_of_block(const cuda_attention_args &a, unsigned parts) {
  const unsigned head = blockIdx.x / parts, kv_heads = (unsigned)a.kv_heads, kv = head % kv_heads;
  return {head / kv_heads, kv * ((unsigned)a.heads / kv_heads), kv, 0};
}

/* Keys and values of the past: those of now are what the launch in front makes. */
template <class T, int D>
CUDA_FN void fetch_past(const cuda_attention_args &a) {
  typedef few_keys<T, D> own;
  const unsigned parts = (unsigned)parts_of_keys(a.keys);
  const attention_place at = place_of_block(a, parts);
  CUDA_UNROLL
  for (int i = 0; i < own::each; ++i) {
    const int64_t j = (int64_t)(blockIdx.x % parts) * CUDA_FEW_KEYS + own::key(i);
    if (j < a.past && own::column() < a.depth)
      fetch_sector(key_row<T>(a, at, j) + own::column());
    if (j < a.past && own::column() < a.value_depth)
      fetch_sector(value_row<T>(a, at, j) + own::column());
  }
}

/* A block a part of a head: no more of them than a grid has. */
template <class T, int D>
CUDA_FN void attend_few(const cuda_attention_args &a) {
  CUDA_SHARED(few_block_room<D>, room);
  const unsigned parts = (unsigned)parts_of_keys(a.keys);
  const unsigned head = blockIdx.x / parts, part = blockIdx.x % parts;
  const attention_place at = place_of_block(a, parts);
  const key_range range = range_of(a, at);
  const int64_t seen = parts_of_keys(range.seen((int)a.queries - 1));
  const unsigned all = seen > 1 ? (unsigned)seen : 1u; /* the first writes of rows that see none */
  if (part >= all)
    return;
  attend_part<T, D>(a, at, range, part, parts, &room.part);
  if (a.counters == nullptr || !is_last_block(a.counters + head, all, &room.is_last))
    return;
  CUDA_ROLLED
  for (int r = 0; r < few_rows_of(a); ++r)
    join_row<T>(a, few_row(a, at, r), parts, &room.join);
}

#define CUDA_ATTENTION_FEW(SUFFIX, TYPE)                                                           \
  CUDA_FETCHING_KERNEL(opipe_attention_few_64_##SUFFIX, (fetch_past<TYPE, 64>), CUDA_THREADS, 2) { \
    attend_few<TYPE, 64>(a);                                                                       \
  }                                                                                                \
  CUDA_FETCHING_KERNEL(opipe_attention_few_128_##SUFFIX, (fetch_past<TYPE, 128>), CUDA_THREADS,    \
                       2) {                                                                        \
    attend_few<TYPE, 128>(a);                                                                      \
  }                                                                                                \
  CUDA_KERNEL(opipe_attention_join_##SUFFIX) {                                                     \
    join_rows<TYPE>(a);                                                                            \
  }
CUDA_ATTENTION_FEW(f32, float)
CUDA_ATTENTION_FEW(bf16, bf16)
CUDA_ATTENTION_FEW(f16, f16)
