/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of token rows of many sequences, keys and values in pages.
 *
 *   copy   pages whose beginning another one goes on with; a thread one element of every copy, so
 *          that they are made in order
 *   write  keys and values of all rows into their pages
 *   part   a block a part of the keys of a key-value head of a row: scores, exponentials above the
 *          part's largest one, sums of weighted values
 *   join   a row's parts, in rising order
 *
 * Parts begin at multiples of CUDA_ROWS_KEYS from key 0, and a part's threads and their order are
 * fixed: what a page holds, and what the other rows are, changes no bit. Blocks of parts that a row
 * does not see end at once. */
#include "map_math.cuh"

struct token_row {
  int64_t sequence;
  int64_t begin, end; /* keys that it sees; begin == end: there is no such row */
};

CUDA_FN token_row row_at(const cuda_row_attention_args &a, int64_t n) {
  const int64_t room = a.pages * a.page, position = a.position[n];
  token_row row = {a.sequence[n], 0, 0};
  if (row.sequence < 0)
    return row;
  if (row.sequence >= a.sequences) {
    report(a.status, CUDA_STATUS_SEQUENCE, a.node, row.sequence, a.sequences);
  } else if (position < 0 || position >= room) {
    report(a.status, CUDA_STATUS_POSITION, a.node, position, room);
  } else {
    row.end = position + 1;
    row.begin = a.window > 0 && row.end > a.window ? row.end - a.window : 0;
  }
  return row;
}

/* First element of token `at` of a head in keys or values of `depth`; NULL: its page is none. */
template <class T>
CUDA_FN T *page_row(const cuda_row_attention_args &a, void *pages, int64_t sequence, int64_t kv,
                    int64_t at, int64_t depth) {
  const unsigned size = (unsigned)a.page, token = (unsigned)at;
  const int64_t page = a.table[sequence * a.pages + token / size];
  if (page < 0 || page >= a.pool) {
    report(a.status, CUDA_STATUS_PAGE, a.node, page, a.pool);
    return nullptr;
  }
  return static_cast<T *>(pages) + ((page * a.kv_heads + kv) * a.page + token % size) * depth;
}

/* ---- copies and writes ---- */

/* Element i of a page; i is of both kinds, keys first. */
template <class T>
CUDA_FN void copy_element(const cuda_row_attention_args &a, int64_t i) {
  const int64_t n_keys = a.kv_heads * a.page * a.depth;
  const bool is_key = i < n_keys;
  const int64_t depth = is_key ? a.depth : a.value_depth, in_page = is_key ? i : i - n_keys;
  const int64_t token = in_page / depth % a.page, page_elements = a.kv_heads * a.page * depth;
  T *pages = static_cast<T *>(is_key ? a.key_pages : a.value_pages);
  for (int64_t c = 0; c < a.n_copies; ++c) {
    const int64_t from = a.copies[3 * c], to = a.copies[3 * c + 1], n = a.copies[3 * c + 2];
    if (from < 0)
      continue;
    if (from >= a.pool || to < 0 || to >= a.pool)
      report(a.status, CUDA_STATUS_PAGE, a.node, from >= a.pool ? from : to, a.pool);
    else if (n < 0 || n > a.page)
      report(a.status, CUDA_STATUS_COPY, a.node, n, a.page);
    else if (token < n && from != to)
      pages[to * page_elements + in_page] = pages[from * page_elements + in_page];
  }
}

CUDA_KERNEL(opipe_pages_copy) {
  const int64_t n = a.kv_heads * a.page * (a.depth + a.value_depth);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    if (a.size == 2)
      copy_element<uint16_t>(a, i);
    else
      copy_element<uint32_t>(a, i);
  }
}

template <class T>
CUDA_FN void write_rows(const cuda_row_attention_args &a) {
  const int64_t n_keys = a.kv_heads * a.depth, each = n_keys + a.kv_heads * a.value_depth;
  for (int64_t i = first_element(); i < a.rows * each; i += element_step()) {
    const int64_t n = i / each, at = i - n * each;
    const bool is_key = at < n_keys;
    const int64_t depth = is_key ? a.depth : a.value_depth, in_row = is_key ? at : at - n_keys;
    const token_row row = row_at(a, n);
    if (row.end == row.begin)
      continue;
    T *to = page_row<T>(a, is_key ? a.key_pages : a.value_pages, row.sequence, in_row / depth,
                        row.end - 1, depth);
    if (to != nullptr) {
      to[in_row % depth] =
          static_cast<const T *>(is_key ? a.k : a.v)[n * a.kv_heads * depth + in_row];
    }
  }
}

/* ---- parts ---- */

/* The parts of a row and head leave: [parts][value_depth], then [parts] of these. */
struct row_part {
  float top, sum;
};
struct row_parts {
  float *values;
  row_part *found;
};
CUDA_FN row_parts parts_of_row(const cuda_row_attention_args &a, int64_t n, int64_t head) {
  const int64_t parts = (a.pages * a.page + CUDA_ROWS_KEYS - 1) / CUDA_ROWS_KEYS;
  const int64_t i = (n - a.first) * a.heads + head, all = a.count * a.heads;
  float *values = static_cast<float *>(a.workspace);
  const row_parts made = {
      values + i * parts * a.value_depth,
      reinterpret_cast<row_part *>(values + all * parts * a.value_depth) + i * parts};
  return made;
}

struct rows_room {
  float q[CUDA_ROWS_HEADS][CUDA_DEPTH];
  float weights[CUDA_ROWS_HEADS][CUDA_ROWS_KEYS]; /* scores at first */
  float values[CUDA_ROWS_HEADS][CUDA_THREADS];
};

/* Keys [begin, end) of part `part` that the row sees. */
struct seen_keys {
  int64_t first; /* of the part */
  int begin, end;
};

/* Scores of n_heads query heads: a warp a key, its lanes along the head. */
template <class T>
CUDA_FN void score_keys(const cuda_row_attention_args &a, const token_row &row, int64_t kv,
                        int64_t head, int n_heads, const seen_keys &seen, rows_room *room) {
  const int lane = (int)(threadIdx.x % 32), depth = (int)a.depth;
  for (int j = seen.begin + (int)(threadIdx.x / 32); j < seen.end; j += CUDA_WARPS) {
    const int64_t at = seen.first + j;
    const T *key = page_row<T>(a, a.key_pages, row.sequence, kv, at, a.depth);
    float sum[CUDA_ROWS_HEADS] = {};
    for (int d = lane; d < depth && key != nullptr; d += 32) {
      const float k = get(key, d);
      CUDA_UNROLL
      for (int h = 0; h < CUDA_ROWS_HEADS; ++h)
        sum[h] = joined(room->q[h][d], k, sum[h]);
    }
    CUDA_UNROLL
    for (int h = 0; h < CUDA_ROWS_HEADS; ++h) {
      if (h >= n_heads)
        break;
      float s = plain_product(warp_all(sum[h], add_two()), (float)a.scale);
      if (a.softcap > 0)
        s = plain_product((float)a.softcap, tanh_of(s / (float)a.softcap));
      if (a.slopes != nullptr)
        s = plain_sum(s, plain_product(a.slopes[head + h], (float)(at + 1 - row.end)));
      if (lane == 0)
        room->weights[h][j] = key != nullptr ? s : -INFINITY;
    }
  }
}

/* Weights above the part's largest score, a warp a head. */
CUDA_FN void weigh_keys(int n_heads, const seen_keys &seen, rows_room *room, row_part *out) {
  const int lane = (int)(threadIdx.x % 32), h = (int)(threadIdx.x / 32);
  float top = -INFINITY, sum = 0;
  if (h >= n_heads)
    return;
  for (int j = lane; j < CUDA_ROWS_KEYS; j += 32) {
    if (j >= seen.begin && j < seen.end)
      top = max_two()(top, room->weights[h][j]);
  }
  top = warp_all(top, max_two());
  for (int j = lane; j < CUDA_ROWS_KEYS; j += 32) {
    const bool has = j >= seen.begin && j < seen.end && top != -INFINITY;
    const float weight = has ? exp_of(room->weights[h][j] - top) : 0.0f;
    room->weights[h][j] = weight;
    sum = plain_sum(sum, weight);
  }
  sum = warp_all(sum, add_two());
  if (lane == 0) {
    out->top = top;
    out->sum = sum;
  }
}

/* Sums of weighted values: teams of threads, a thread an element, take every so many keys each;
 * then the teams in rising order. A key of weight 0 is left out, whatever its value. */
template <class T>
CUDA_FN void sum_values(const cuda_row_attention_args &a, const token_row &row, int64_t kv,
                        const seen_keys &seen, rows_room *room) {
  int across = 32;
  while (across < (int)a.value_depth)
    across *= 2;
  const int teams = CUDA_THREADS / across;
  const int d = (int)threadIdx.x % across, team = (int)threadIdx.x / across;
  float sum[CUDA_ROWS_HEADS] = {};
  for (int j = team; j < seen.end && d < (int)a.value_depth; j += teams) {
    const T *value = j < seen.begin ? nullptr
                                    : page_row<T>(a, a.value_pages, row.sequence, kv,
                                                  seen.first + j, a.value_depth);
    const float v = value != nullptr ? (float)get(value, d) : 0.0f;
    CUDA_UNROLL
    for (int h = 0; h < CUDA_ROWS_HEADS; ++h) {
      const float weight = room->weights[h][j];
      sum[h] = weight == 0.0f ? sum[h] : joined(weight, v, sum[h]);
    }
  }
  CUDA_UNROLL
  for (int h = 0; h < CUDA_ROWS_HEADS; ++h)
    room->values[h][threadIdx.x] = sum[h];
  __syncthreads();
  if (team != 0)
    return;
  CUDA_UNROLL
  for (int h = 0; h < CUDA_ROWS_HEADS; ++h) {
    for (int t = 1; t < teams; ++t)
      sum[h] = plain_sum(sum[h], room->values[h][t * across + d]);
    room->values[h][d] = sum[h];
  }
}

/* A place counted from the part's first key, kept within it. */
CUDA_FN int in_part(int64_t at) {
  const int64_t keys = CUDA_ROWS_KEYS;
  return (int)(at < 0 ? 0 : at < keys ? at : keys);
}

template <class T>
CUDA_FN void attend_part(const cuda_row_attention_args &a) {
  CUDA_SHARED(rows_room, room);
  const int64_t n = a.first + blockIdx.x / a.kv_heads, kv = blockIdx.x % a.kv_heads;
  const int64_t part = blockIdx.y, group = a.heads / a.kv_heads;
  const token_row row = row_at(a, n);
  const int64_t first = part * CUDA_ROWS_KEYS;
  const seen_keys seen = {first, in_part(row.begin - first), in_part(row.end - first)};
  if (seen.begin >= seen.end)
    return;
  for (int64_t from = 0; from < group; from += CUDA_ROWS_HEADS) {
    const int64_t head = kv * group + from;
    const int left = (int)(group - from), n_heads = left < CUDA_ROWS_HEADS ? left : CUDA_ROWS_HEADS;
    const T *q = static_cast<const T *>(a.q) + (n * a.heads + head) * a.depth;
    __syncthreads(); /* the room may still be read */
    for (int i = (int)threadIdx.x; i < CUDA_ROWS_HEADS * CUDA_DEPTH; i += CUDA_THREADS) {
      const int h = i / CUDA_DEPTH, d = i % CUDA_DEPTH;
      room.q[h][d] = h < n_heads && d < a.depth ? (float)get(q, h * a.depth + d) : 0.0f;
    }
    for (int i = (int)threadIdx.x; i < CUDA_ROWS_HEADS * CUDA_ROWS_KEYS; i += CUDA_THREADS)
      room.weights[i / CUDA_ROWS_KEYS][i % CUDA_ROWS_KEYS] = 0.0f;
    __syncthreads();
    score_keys<T>(a, row, kv, head, n_heads, seen, &room);
    __syncthreads();
    const int64_t own = head + threadIdx.x / 32;
    weigh_keys(n_heads, seen, &room,
               own < a.heads ? parts_of_row(a, n, own).found + part : nullptr);
    __syncthreads();
    sum_values<T>(a, row, kv, seen, &room);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n_heads * (int)a.value_depth; i += CUDA_THREADS) {
      const int h = i / (int)a.value_depth, d = i % (int)a.value_depth;
      parts_of_row(a, n, head + h).values[part * a.value_depth + d] = room.values[h][d];
    }
  }
}

/* ---- joining ---- */

template <class T>
CUDA_FN void join_parts(const cuda_row_attention_args &a) {
  const int64_t n = a.first + blockIdx.x / a.heads, head = blockIdx.x % a.heads;
  const token_row row = row_at(a, n);
  const row_parts parts = parts_of_row(a, n, head);
  T *y = static_cast<T *>(a.y) + (n * a.heads + head) * a.value_depth;
  const int64_t first = row.begin / CUDA_ROWS_KEYS;
  const int64_t end = (row.end + CUDA_ROWS_KEYS - 1) / CUDA_ROWS_KEYS;
  float top = -INFINITY, sum = 0, value = 0;
  const int d = (int)threadIdx.x;
  if (d >= a.value_depth)
    return;
  for (int64_t p = first; p < end; ++p)
    top = max_two()(top, parts.found[p].top);
  for (int64_t p = first; p < end && top != -INFINITY; ++p) {
    const float weight = exp_of(parts.found[p].top - top);
    if (weight == 0.0f)
      continue;
    sum = joined(parts.found[p].sum, weight, sum);
    value = joined(parts.values[p * a.value_depth + d], weight, value);
  }
  put(y, d, sum == 0.0f ? 0.0f : value / sum);
}

#define CUDA_ROW_ATTENTION(SUFFIX, TYPE)        \
  CUDA_KERNEL(opipe_pages_write_##SUFFIX) {     \
    write_rows<TYPE>(a);                        \
  }                                             \
  CUDA_ROOMY_KERNEL(opipe_rows_part_##SUFFIX) { \
    attend_part<TYPE>(a);                       \
  }                                             \
  CUDA_KERNEL(opipe_rows_join_##SUFFIX) {       \
    join_parts<TYPE>(a);                        \
  }
CUDA_ROW_ATTENTION(f32, float)
CUDA_ROW_ATTENTION(bf16, bf16)
CUDA_ROW_ATTENTION(f16, f16)
