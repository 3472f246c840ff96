/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions for products of bf16, in C: what the manuals say of VDPBF16PS and TDPBF16PS, to
 * the bit. Sums are fused multiply-adds, rounded to nearest even; subnormal operands count as zero
 * and subnormal results become zero, with their sign, whatever the control register says. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_TILES_MODEL_H_
#define OPIPE_BACKEND_CPU_KERNELS_TILES_MODEL_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "half.h"

enum { MODEL_TILES = 8, MODEL_TILE_ROWS = 16, MODEL_TILE_BYTES = 64 };

/* The registers of a thread: 8 tiles of 16 rows of 64 bytes. */
typedef struct model_tiles {
  unsigned char rows[MODEL_TILES][MODEL_TILE_ROWS][MODEL_TILE_BYTES];
} model_tiles;

static inline float model_flush(float x) {
  return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* sum + a b */
static inline float model_fma(uint16_t a, uint16_t b, float sum) {
  const float x = model_flush(cpu_bf16_to_f32(a)), y = model_flush(cpu_bf16_to_f32(b));
  return model_flush(fmaf(x, y, model_flush(sum)));
}

static inline float model_add(float a, float b) {
  return model_flush(model_flush(a) + model_flush(b));
}

/* One lane of VDPBF16PS: sum + a[1] b[1] + a[0] b[0], in that order. */
static inline float model_pair(const uint16_t a[2], const uint16_t b[2], float sum) {
  return model_fma(a[0], b[0], model_fma(a[1], b[1], sum));
}

static inline void model_zero(model_tiles *t, int tile) {
  memset(t->rows[tile], 0, sizeof t->rows[tile]);
}

static inline void model_load(model_tiles *t, int tile, const void *from, int64_t stride) {
  for (int r = 0; r < MODEL_TILE_ROWS; ++r)
    memcpy(t->rows[tile][r], (const char *)from + r * stride, MODEL_TILE_BYTES);
}

static inline void model_store(const model_tiles *t, int tile, void *to, int64_t stride) {
  for (int r = 0; r < MODEL_TILE_ROWS; ++r)
    memcpy((char *)to + r * stride, t->rows[tile][r], MODEL_TILE_BYTES);
}

/* TDPBF16PS of whole tiles: c[m][n] += the sum over k of a[m][2k] b[k][2n], and that over k of
 * a[m][2k + 1] b[k][2n + 1], which are added to each other first. */
static inline void model_dot(model_tiles *t, int c, int a, int b) {
  for (int m = 0; m < MODEL_TILE_ROWS; ++m) {
    for (int n = 0; n < MODEL_TILE_BYTES / 4; ++n) {
      float even = 0.0f, odd = 0.0f, old;
      for (int k = 0; k < MODEL_TILE_BYTES / 4; ++k) {
        uint16_t x[2], y[2];
        memcpy(x, t->rows[a][m] + 4 * k, sizeof x);
        memcpy(y, t->rows[b][k] + 4 * n, sizeof y);
        even = model_fma(x[0], y[0], even);
        odd = model_fma(x[1], y[1], odd);
      }
      memcpy(&old, t->rows[c][m] + 4 * n, sizeof old);
      old = model_add(old, model_add(even, odd));
      memcpy(t->rows[c][m] + 4 * n, &old, sizeof old);
    }
  }
}

#endif
