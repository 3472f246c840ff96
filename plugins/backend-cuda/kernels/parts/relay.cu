/* SPDX-License-Identifier: Apache-2.0 */
/* Rows from one distance between them to another, where either side may begin at any element: a
 * warp takes a run of a row and stores whole 16 bytes, as they lie at the destination; each is cut
 * out of the two aligned ones of the source that it lies in, of which the second is the next lane's
 * first. The ends of a row, less than 48 bytes, go by element. */
#include "device.cuh"

enum {
  RELAY_RUN = 256, /* words of 16 bytes: of a warp at a time */
  RELAY_AHEAD = 4  /* words that a lane has under way */
};

typedef packet<uint32_t> relay_word;

/* 16 bytes from byte `by` of the first on, by < 16. */
CUDA_FN relay_word cut(const relay_word &first, const relay_word &second, uint32_t by) {
  uint32_t w[8];
  relay_word made;
  CUDA_UNROLL
  for (int k = 0; k < 4; ++k) {
    w[k] = first.v[k];
    w[k + 4] = second.v[k];
  }
  CUDA_UNROLL
  for (int k = 0; k < 6; ++k)
    w[k] = (by & 8u) != 0 ? w[k + 2] : w[k];
  CUDA_UNROLL
  for (int k = 0; k < 5; ++k)
    w[k] = (by & 4u) != 0 ? w[k + 1] : w[k];
  CUDA_UNROLL
  for (int k = 0; k < 4; ++k)
    made.v[k] = (uint32_t)(((uint64_t)w[k + 1] << 32 | w[k]) >> (by & 3u) * 8);
  return made;
}

/* Words [at, stop) of a row, from the aligned words of the source that the first one lies in. */
CUDA_FN void relay_words(const relay_word *from, relay_word *to, uint32_t by, int64_t at,
                         int64_t stop) {
  for (; at < stop; at += 32 * RELAY_AHEAD) {
    relay_word first[RELAY_AHEAD], second[RELAY_AHEAD];
    CUDA_UNROLL
    for (int k = 0; k < RELAY_AHEAD; ++k) {
      if (at + 32 * k < stop) {
        first[k] = from[at + 32 * k];
        second[k] = from[at + 32 * k + (by != 0 ? 1 : 0)];
      }
    }
    CUDA_UNROLL
    for (int k = 0; k < RELAY_AHEAD; ++k) {
      if (at + 32 * k < stop)
        to[at + 32 * k] = cut(first[k], second[k], by);
    }
  }
}

template <class T>
CUDA_FN void relay(const cuda_relay_args &a) {
  const int64_t bytes = a.n * (int64_t)sizeof(T);
  const int64_t per_row = (bytes + RELAY_RUN * 16 - 1) / (RELAY_RUN * 16);
  const T *const end = static_cast<const T *>(a.from) + (a.rows - 1) * a.from_distance + a.n;
  const int lane = (int)threadIdx.x % 32;
  const int64_t step = (int64_t)gridDim.x * (blockDim.x / 32);
  for (int64_t run = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; run < a.rows * per_row;
       run += step) {
    const int64_t row = run / per_row, part = run % per_row;
    T *to = static_cast<T *>(a.to) + row * a.to_distance;
    const T *from = static_cast<const T *>(a.from) + row * a.from_distance;
    const int64_t gap = (int64_t)((16 - ((uintptr_t)to & 15u)) & 15u);
    const int64_t head = gap < bytes ? gap : bytes;
    const uintptr_t source = (uintptr_t)from + (uintptr_t)head;
    const uint32_t by = (uint32_t)(source & 15u);
    int64_t words = (bytes - head) / 16;
    if (words > 0 && by != 0 && source - by + (uintptr_t)(16 * words + 16) > (uintptr_t)end)
      --words; /* its second half may be nobody's */
    const int64_t last = (part + 1) * RELAY_RUN;
    relay_words(reinterpret_cast<const relay_word *>(source - by),
                reinterpret_cast<relay_word *>((uintptr_t)to + (uintptr_t)head), by,
                part * RELAY_RUN + lane, last < words ? last : words);
    const int64_t n_head = head / (int64_t)sizeof(T);
    const int64_t behind = n_head + words * (int64_t)(16 / sizeof(T)) + lane;
    if (part == 0 && lane < n_head)
      to[lane] = from[lane];
    if (part == per_row - 1 && behind < a.n)
      to[behind] = from[behind];
  }
}

CUDA_KERNEL(opipe_relay) {
  if (a.size == 2)
    relay<uint16_t>(a);
  else
    relay<uint32_t>(a);
}
