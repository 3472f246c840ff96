/* SPDX-License-Identifier: Apache-2.0 */
/* Packets as they lie in registers while they are under way: halves in pairs. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_WORDS_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_WORDS_CUH_

#include "../device.cuh"

struct alignas(16) words {
  unsigned w[4];
};

/* Element i of a packet of the last argument's type. */
CUDA_FN float element(const words &p, int i, float) {
  return __uint_as_float(p.w[i]);
}
CUDA_FN float element(const words &p, int i, bf16) {
  return __uint_as_float(i % 2 != 0 ? p.w[i / 2] & 0xffff0000u : p.w[i / 2] << 16);
}
CUDA_FN float element(const words &p, int i, f16) {
  const f16 half = {(uint16_t)(p.w[i / 2] >> i % 2 * 16)};
  return widen(half);
}

template <class T>
CUDA_FN words words_at(const T *row, int64_t i) {
  return *reinterpret_cast<const words *>(row + i);
}

#endif
