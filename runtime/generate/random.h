/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): random
 * numbers from a counter, so that a draw depends on nothing that was drawn before it. */
#ifndef OPI_GENERATE_RANDOM_H
#define OPI_GENERATE_RANDOM_H

#include <stdint.h>

/* Ten rounds over io_counter [4] with key [2]. */
static inline void opi_philox(uint32_t io_counter[4], const uint32_t key[2]) {
  uint32_t *c = io_counter, k0 = key[0], k1 = key[1];
  for (uint32_t round = 0; round < 10; ++round) {
    const uint64_t p0 = UINT64_C(0xd2511f53) * c[0], p1 = UINT64_C(0xcd9e8d57) * c[2];
    const uint32_t c1 = c[1], c3 = c[3];
    c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c[1] = (uint32_t)p1;
    c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c[3] = (uint32_t)p0;
    k0 += UINT32_C(0x9e3779b9);
    k1 += UINT32_C(0xbb67ae85);
  }
}

/* A number from [0, 1), of 53 bits, for the token at `position` of branch `branch`. */
static inline double opi_draw(uint64_t seed, uint32_t branch, uint32_t position) {
  uint32_t counter[4] = {position, branch, 0, 0};
  const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  opi_philox(counter, key);
  return (double)((((uint64_t)counter[1] << 32) | counter[0]) >> 11) * 0x1p-53;
}

#endif /* OPI_GENERATE_RANDOM_H */
