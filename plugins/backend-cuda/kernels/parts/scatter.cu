/* SPDX-License-Identifier: Apache-2.0 */
/* Writing by index without a race: positions are sorted by where they go (least
 * significant digit first, each pass stable), and whoever finds the first
 * position of a place goes through all of them in rising order. So the gradient
 * of an embedding has one order of additions, whatever the tokens. Reading by
 * index, one-hot, padding. */
#include "numbers.cuh"

enum { SORT_TILE = 2048, SORT_DIGITS = 256 };
static const uint32_t NOWHERE = 0xffffffffu; /* of a bad index; sorts behind all places */

/* ---- where each update goes ---- */

CUDA_FN int64_t element_place(const int64_t *index_shape, const int64_t *out_shape, uint32_t rank,
                              uint32_t axis, int64_t i, int64_t along) {
  int64_t at = 0, stride = 1;
  for (int k = (int)rank - 1; k >= 0; --k) {
    at += (k == (int)axis ? along : i % index_shape[k]) * stride;
    i /= index_shape[k];
    stride *= out_shape[k];
  }
  return at;
}

CUDA_FN int64_t tuple_place(const void *indices, uint32_t bytes, int64_t first, uint32_t tuple,
                            const int64_t *shape, cuda_status *status, uint32_t node,
                            bool *out_good) {
  int64_t at = 0;
  bool all_good = true;
  for (uint32_t k = 0; k < tuple; ++k) {
    bool good;
    at = at * shape[k] +
         place_of(index_at(indices, bytes, first + k), shape[k], status, node, &good);
    all_good = all_good && good;
  }
  *out_good = all_good;
  return at;
}

CUDA_KERNEL(opipe_sort_keys) {
  const cuda_scatter_args &s = a.s;
  for (int64_t i = first_element(); i < s.n; i += element_step()) {
    bool good;
    int64_t at;
    if (s.form == CUDA_SCATTER_TUPLES) {
      at = tuple_place(s.indices, s.index_bytes, i * s.rank, s.rank, s.out_shape, s.status, s.node,
                       &good);
    } else {
      const int64_t extent = s.form == CUDA_SCATTER_AXIS ? s.extent : s.out_shape[s.axis];
      at = place_of(index_at(s.indices, s.index_bytes, i), s.whole > 0 ? s.whole : extent, s.status,
                    s.node, &good) -
           s.first;
      good = good && at >= 0 && at < extent;
      if (s.form == CUDA_SCATTER_ELEMENTS)
        at = element_place(s.index_shape, s.out_shape, s.rank, s.axis, i, at);
    }
    a.keys[0][i] = good ? (uint32_t)at : NOWHERE;
    a.positions[0][i] = (uint32_t)i;
  }
}

/* ---- a pass of the sort ---- */

struct digit_room {
  unsigned count[SORT_DIGITS];
};

/* How many keys of a tile have each digit: counts [digit][tile]. */
CUDA_KERNEL(opipe_sort_count) {
  CUDA_SHARED(digit_room, room);
  const int64_t tiles = (a.s.n + SORT_TILE - 1) / SORT_TILE;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    room.count[threadIdx.x] = 0;
    __syncthreads();
    for (int k = 0; k < SORT_TILE / CUDA_THREADS; ++k) {
      const int64_t i = tile * SORT_TILE + k * CUDA_THREADS + threadIdx.x;
      if (i < a.s.n)
        atomicAdd(&room.count[a.keys[a.from][i] >> a.shift & 255u], 1u);
    }
    __syncthreads();
    a.counts[(int64_t)threadIdx.x * tiles + tile] = room.count[threadIdx.x];
    __syncthreads();
  }
}

/* One block: counts become the place of the first key of each digit and tile.
 */
CUDA_KERNEL(opipe_sort_scan) {
  CUDA_SHARED(digit_room, room);
  const int64_t n = SORT_DIGITS * ((a.s.n + SORT_TILE - 1) / SORT_TILE), each = n / CUDA_THREADS;
  const int64_t first = threadIdx.x * each; /* the tiles of one digit */
  unsigned sum = 0;
  for (int64_t i = 0; i < each; ++i)
    sum += a.counts[first + i];
  room.count[threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
  for (unsigned i = 0; i < threadIdx.x; ++i)
    sum += room.count[i];
  for (int64_t i = 0; i < each; ++i) {
    const unsigned own = a.counts[first + i];
    a.counts[first + i] = sum;
    sum += own;
  }
}

struct place_room {
  unsigned next[SORT_DIGITS];                /* of this tile */
  unsigned in_warp[CUDA_WARPS][SORT_DIGITS]; /* keys of this round; then those
                                                of the warps before */
};

CUDA_KERNEL(opipe_sort_place) {
  CUDA_SHARED(place_room, room);
  const int64_t tiles = (a.s.n + SORT_TILE - 1) / SORT_TILE;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    room.next[threadIdx.x] = a.counts[(int64_t)threadIdx.x * tiles + tile];
    for (int k = 0; k < SORT_TILE / CUDA_THREADS; ++k) {
      const int64_t i = tile * SORT_TILE + k * CUDA_THREADS + threadIdx.x;
      const bool there = i < a.s.n;
      const uint32_t key = there ? a.keys[a.from][i] : 0;
      const unsigned digit = there ? key >> a.shift & 255u : (unsigned)SORT_DIGITS;
      for (unsigned w = 0; w < CUDA_WARPS; ++w)
        room.in_warp[w][threadIdx.x] = 0;
      __syncthreads();
      const unsigned same = __match_any_sync(0xffffffffu, digit);
      const unsigned rank = (unsigned)__popc(same & ((1u << lane) - 1u));
      if (there && rank == 0)
        room.in_warp[warp][digit] = (unsigned)__popc(same);
      __syncthreads();
      unsigned sum = room.next[threadIdx.x]; /* a thread a digit */
      for (unsigned w = 0; w < CUDA_WARPS; ++w) {
        const unsigned own = room.in_warp[w][threadIdx.x];
        room.in_warp[w][threadIdx.x] = sum;
        sum += own;
      }
      __syncthreads();
      room.next[threadIdx.x] = sum;
      if (there) {
        const unsigned to = room.in_warp[warp][digit] + rank;
        a.keys[a.from ^ 1][to] = key;
        a.positions[a.from ^ 1][to] = a.positions[a.from][i];
      }
      __syncthreads();
    }
  }
}

/* ---- the updates of a place, one after the other ---- */

/* A thread an element of an update: those that are the first of their place go
 * on to its last. NUMBER: how elements are read, joined and written. */
template <class NUMBER>
CUDA_FN void apply(const cuda_scatter_block &a, const NUMBER &number) {
  const cuda_scatter_args &s = a.s;
  const uint32_t *keys = a.keys[a.from], *positions = a.positions[a.from];
  const int64_t per_outer = s.n * s.inner;
  for (int64_t i = first_element(); i < s.outer * per_outer; i += element_step()) {
    const int64_t outer = i / per_outer, column = i % s.inner;
    int64_t k = (i - outer * per_outer) / s.inner;
    const uint32_t key = keys[k];
    if (key == NOWHERE || (k > 0 && keys[k - 1] == key))
      continue;
    const int64_t to = (outer * s.extent + key) * s.inner + column;
    typename NUMBER::type x = number.before(to);
    for (; k < s.n && keys[k] == key; ++k)
      x = number.join(x, number.update((outer * s.n + positions[k]) * s.inner + column));
    number.after(to, x);
  }
}

template <class T, class OUT>
struct floats {
  typedef typename real_of<OUT>::type type;
  OUT *out;
  const T *updates;
  uint32_t kind;
  CUDA_FN type before(int64_t i) const {
    return widen(out[i]);
  }
  CUDA_FN type update(int64_t i) const {
    return (type)widen(updates[i]);
  }
  CUDA_FN type join(type x, type y) const {
    switch (kind) {
      case 1:
        return x + y;
      case 2:
        return x * y;
      case 3:
        return x > y ? x : y;
      default:
        return x < y ? x : y;
    }
  }
  CUDA_FN void after(int64_t i, type x) const {
    put(out, i, x);
  }
};

struct integers {
  typedef int64_t type;
  void *out;
  const void *updates;
  uint32_t kind, dtype;
  CUDA_FN type before(int64_t i) const {
    return load_integer(out, dtype, i);
  }
  CUDA_FN type update(int64_t i) const {
    return load_integer(updates, dtype, i);
  }
  CUDA_FN type join(type x, type y) const {
    const bool less = dtype == TYPE_U64 ? (uint64_t)x < (uint64_t)y : x < y;
    switch (kind) {
      case 1:
        return (type)((uint64_t)x + (uint64_t)y);
      case 2:
        return (type)((uint64_t)x * (uint64_t)y);
      case 3:
        return less ? y : x;
      default:
        return less ? x : y;
    }
  }
  CUDA_FN void after(int64_t i, type x) const {
    store_integer(out, dtype, i, x);
  }
};

template <class T>
struct copies { /* the last one stays */
  typedef T type;
  T *out;
  const T *updates;
  CUDA_FN type before(int64_t i) const {
    return out[i];
  }
  CUDA_FN type update(int64_t i) const {
    return updates[i];
  }
  CUDA_FN type join(type, type y) const {
    return y;
  }
  CUDA_FN void after(int64_t i, type x) const {
    out[i] = x;
  }
};

#define CUDA_SCATTER(SUFFIX, TYPE, OUT)                                            \
  CUDA_KERNEL(opipe_scatter_##SUFFIX) {                                            \
    apply(a, floats<TYPE, OUT>{static_cast<OUT *>(a.s.out),                        \
                               static_cast<const TYPE *>(a.s.updates), a.s.kind}); \
  }
CUDA_SCATTER(f32, float, float)
CUDA_SCATTER(bf16, bf16, bf16)
CUDA_SCATTER(f16, f16, f16)
CUDA_SCATTER(f64, double, double)
CUDA_SCATTER(bf16_f32, bf16, float)
CUDA_SCATTER(f16_f32, f16, float)

CUDA_KERNEL(opipe_scatter_int) {
  apply(a, integers{a.s.out, a.s.updates, a.s.kind, a.dtype});
}

template <class T>
CUDA_FN void copy_updates(const cuda_scatter_block &a) {
  apply(a, copies<T>{static_cast<T *>(a.s.out), static_cast<const T *>(a.s.updates)});
}

CUDA_KERNEL(opipe_scatter_copy) {
  switch (a.size) {
    case 1:
      copy_updates<uint8_t>(a);
      break;
    case 2:
      copy_updates<uint16_t>(a);
      break;
    case 4:
      copy_updates<uint32_t>(a);
      break;
    default:
      copy_updates<uint64_t>(a);
      break;
  }
}

/* ---- reading by index ---- */

template <class T>
CUDA_FN void pick(const cuda_pick_args &a) {
  const T *data = static_cast<const T *>(a.data);
  int64_t rows = 1;
  for (uint32_t k = 0; k < a.rank; ++k)
    rows *= a.out_shape[k];
  for (int64_t i = first_element(); i < a.outer * a.n * a.inner; i += element_step()) {
    bool good;
    int64_t at;
    if (a.form == CUDA_SCATTER_TUPLES) {
      const int64_t row = i / a.inner;
      at = tuple_place(a.indices, a.index_bytes, row * a.rank, a.rank, a.out_shape, a.status,
                       a.node, &good);
      at = (row / a.n * rows + at) * a.inner + i % a.inner;
    } else {
      at = place_of(index_at(a.indices, a.index_bytes, i), a.out_shape[a.axis], a.status, a.node,
                    &good);
      at = element_place(a.index_shape, a.out_shape, a.rank, a.axis, i, at);
    }
    static_cast<T *>(a.y)[i] = good ? data[at] : T();
  }
}

template <class T>
CUDA_FN void one_hot(const cuda_one_hot_args &a) {
  const T off = static_cast<const T *>(a.values)[0], on = static_cast<const T *>(a.values)[1];
  for (int64_t i = first_element(); i < a.outer * a.depth * a.inner; i += element_step()) {
    const int64_t place = i / a.inner % a.depth;
    const double index =
        load_number(a.indices, a.dtype, i / a.inner / a.depth * a.inner + i % a.inner);
    static_cast<T *>(a.y)[i] =
        (index < 0 ? index + (double)a.depth : index) == (double)place ? on : off;
  }
}

/* Position of the input that output position `at`, counted from the input's
 * first, takes; -1: the constant. */
CUDA_FN int64_t padded_from(uint32_t mode, int64_t at, int64_t n) {
  if (at >= 0 && at < n)
    return at;
  if (mode == CUDA_PAD_EDGE)
    return at < 0 ? 0 : n - 1;
  if (mode == CUDA_PAD_WRAP)
    return (at % n + n) % n;
  if (mode == CUDA_PAD_REFLECT) {
    const int64_t period = n > 1 ? 2 * (n - 1) : 1, phase = (at % period + period) % period;
    return phase < n ? phase : period - phase;
  }
  return -1;
}

template <class T>
CUDA_FN void pad(const cuda_pad_args &a) {
  const T constant = a.value != nullptr ? *static_cast<const T *>(a.value) : (T)0;
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    int64_t rest = i, from = 0, stride = 1;
    bool outside = false;
    for (int k = (int)a.rank - 1; k >= 0; --k) {
      const int64_t at = padded_from(a.mode, rest % a.y_shape[k] - a.begin[k], a.x_shape[k]);
      rest /= a.y_shape[k];
      outside = outside || at < 0;
      from += at * stride;
      stride *= a.x_shape[k];
    }
    static_cast<T *>(a.y)[i] = outside ? constant : static_cast<const T *>(a.x)[from];
  }
}

#define CUDA_BY_SIZE(KERNEL, NAME, FUNCTION) \
  KERNEL(NAME) {                             \
    switch (a.size) {                        \
      case 1:                                \
        FUNCTION<uint8_t>(a);                \
        break;                               \
      case 2:                                \
        FUNCTION<uint16_t>(a);               \
        break;                               \
      case 4:                                \
        FUNCTION<uint32_t>(a);               \
        break;                               \
      default:                               \
        FUNCTION<uint64_t>(a);               \
        break;                               \
    }                                        \
  }
CUDA_BY_SIZE(CUDA_ROOMY_KERNEL, opipe_pick, pick)
CUDA_BY_SIZE(CUDA_KERNEL, opipe_one_hot, one_hot)
CUDA_BY_SIZE(CUDA_KERNEL, opipe_pad, pad)
