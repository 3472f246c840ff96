/* SPDX-License-Identifier: Apache-2.0 */
/* ArgMax and ArgMin along rows of floats, 16 bytes at a time: a block a row, or a block each part
 * of a row where rows are few; what is first in each part is then joined.
 *
 * A number has a key of 32 bits, the larger the sooner it stands: of what is none all ones for the
 * largest, the least for the smallest. Key and place together differ for all elements of a row, so
 * that the largest of them is the same however they are taken. */
#include "../device.cuh"

/* x for the largest, -x for the smallest. Both zeros have one key. */
CUDA_FN uint32_t key_of_number(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
template <bool LARGEST>
CUDA_FN uint32_t key_of_none(void) {
  return LARGEST ? 0xffffffffu : 1u; /* every number's lies between */
}
template <bool LARGEST>
CUDA_FN uint64_t place_key(float x, int64_t at, bool last) {
  const uint32_t key = x != x ? key_of_none<LARGEST>() : key_of_number(LARGEST ? x : -x);
  return (uint64_t)key << 32 | (last ? (uint32_t)at : ~(uint32_t)at);
}
CUDA_FN int64_t place_of_key(uint64_t key, bool last) {
  return last ? (uint32_t)key : ~(uint32_t)key;
}

struct later_key {
  CUDA_FN uint64_t operator()(uint64_t a, uint64_t b) const {
    return a > b ? a : b;
  }
};

/* The key of the first of a packet. */
template <class T, bool LARGEST>
CUDA_FN uint32_t packet_key(const T *row, int64_t at) {
  float x[lanes<T>::n], top = -INFINITY;
  bool none = !LARGEST; /* of the largest any that is none counts, of the smallest all */
  load_packet(row, at, 0, true, x);
  CUDA_UNROLL
  for (int k = 0; k < lanes<T>::n; ++k) {
    none = LARGEST ? none || x[k] != x[k] : none && x[k] != x[k];
    top = fmaxf(top, LARGEST ? x[k] : -x[k]);
  }
  return none ? key_of_none<LARGEST>() : key_of_number(top);
}

/* This thread's result among elements [first, end) of a row. 0: it has none of them. */
template <class T, bool LARGEST>
CUDA_FN uint64_t first_of_part(const T *row, int64_t first, int64_t end, bool last) {
  const int V = lanes<T>::n, rank = (int)threadIdx.x;
  const int64_t skew = (int64_t)((uintptr_t)(row + first) % 16 / sizeof(T));
  const int64_t ahead = first + (V - skew) % V, start = ahead < end ? ahead : end;
  const int64_t stop = start + (end - start) / V * V;
  const later_key later;
  uint64_t best = 0;
  uint32_t most = 0;
  int64_t at = -1;
  CUDA_UNROLL_BY(4)
  for (int64_t i = start + rank * V; i < stop; i += CUDA_THREADS * V) {
    const uint32_t key = packet_key<T, LARGEST>(row, i);
    const bool sooner = last ? key >= most : key > most;
    most = sooner ? key : most;
    at = sooner ? i : at;
  }
  for (int k = 0; k < V && at >= 0; ++k)
    best = later(place_key<LARGEST>(widen(row[at + k]), at + k, last), best);
  if (first + rank < start)
    best = later(place_key<LARGEST>(widen(row[first + rank]), first + rank, last), best);
  if (stop + rank < end)
    best = later(place_key<LARGEST>(widen(row[stop + rank]), stop + rank, last), best);
  return best;
}

template <class T>
CUDA_FN void arg_rows(const cuda_arg_block &a, block_room<uint64_t> *room) {
  for (int64_t i = blockIdx.x; i < a.rows * a.n_parts; i += gridDim.x) {
    const int64_t line = i / a.n_parts, first = i % a.n_parts * a.part;
    const int64_t end = first + a.part < a.n ? first + a.part : a.n;
    const T *row = static_cast<const T *>(a.x) + line * a.n;
    uint64_t best = a.largest ? first_of_part<T, true>(row, first, end, a.last != 0)
                              : first_of_part<T, false>(row, first, end, a.last != 0);
    best = block_all(best, later_key(), room);
    if (threadIdx.x == 0 && a.n_parts > 1)
      a.found[i] = best;
    if (threadIdx.x == 0 && a.n_parts == 1)
      a.indices[line] = place_of_key(best, a.last != 0);
  }
}

#define CUDA_ARG(SUFFIX, TYPE)               \
  CUDA_KERNEL(opipe_arg_rows_##SUFFIX) {     \
    CUDA_SHARED(block_room<uint64_t>, room); \
    arg_rows<TYPE>(a, &room);                \
  }
CUDA_ARG(f32, float)
CUDA_ARG(bf16, bf16)
CUDA_ARG(f16, f16)

/* A warp a row. */
CUDA_KERNEL(opipe_arg_join) {
  const row_team<false, uint64_t> team = {nullptr};
  for (int64_t line = team.first_row(); line < a.rows; line += team.row_step()) {
    uint64_t best = 0;
    for (int64_t i = team.rank(); i < a.n_parts; i += team.size())
      best = later_key()(a.found[line * a.n_parts + i], best);
    best = team.all(best, later_key());
    if (team.rank() == 0)
      a.indices[line] = place_of_key(best, a.last != 0);
  }
}
