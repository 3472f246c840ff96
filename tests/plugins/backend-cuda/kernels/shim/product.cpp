/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction mma.sync.m16n8k16 on the registers of 32 lanes, in plain C: who holds what, as
 * the PTX manual has it (9.7.14, "Matrix fragments"). Sums in the order of k. */
#include "shim.hpp"

#include "device.cuh"

template <class T>
static float half_of(unsigned word, int high) {
  T half;
  half.bits = (uint16_t)(high != 0 ? word >> 16 : word);
  return widen(half);
}

template <class T>
static void multiply(void **slots) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const shim_product *own = static_cast<const shim_product *>(slots[lane]);
    for (int i = 0; i < 8; ++i) { /* two of each piece */
      a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i / 4 * 8 + i % 2] =
          half_of<T>(own->a[i / 2], i % 2);
    }
    for (int i = 0; i < 4; ++i)
      b[lane % 4 * 2 + i / 2 * 8 + i % 2][lane / 4] = half_of<T>(own->b[i / 2], i % 2);
  }
  for (int row = 0; row < 16; ++row) {
    float sum[8] = {0};
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column)
        sum[column] += a[row][k] * b[k][column];
    }
    for (int column = 0; column < 8; ++column) {
      static_cast<const shim_product *>(slots[row % 8 * 4 + column / 2])
          ->d[row / 8 * 2 + column % 2] += sum[column];
    }
  }
}

void shim_multiply_bf16(void **slots, unsigned) {
  multiply<bf16>(slots);
}
void shim_multiply_f16(void **slots, unsigned) {
  multiply<f16>(slots);
}
