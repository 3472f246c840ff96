/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions for products of bf16 and of bytes, in C: what the manuals say of VDPBF16PS,
 * TDPBF16PS and TDPBSUD, to the bit. Sums of bf16 are fused multiply-adds, rounded to nearest even;
 * subnormal operands count as zero and subnormal results become zero, with their sign, whatever the
 * control register says. Sums of bytes are integers modulo 2^32. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_TILES_MODEL_H_
#define OPIPE_BACKEND_CPU_KERNELS_TILES_MODEL_H_

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "half.h"

enum { MODEL_TILES = 8, MODEL_TILE_ROWS = 16, MODEL_TILE_BYTES = 64 };

/* The registers of a thread: 8 tiles of up to 16 rows of up to 64 bytes, and how many they have. */
typedef struct model_tiles {
  unsigned char rows[MODEL_TILES][MODEL_TILE_ROWS][MODEL_TILE_BYTES];
  int n_rows[MODEL_TILES], row_bytes[MODEL_TILES];
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

/* LDTILECFG, as tiles_body.h uses tiles: 0, 1 (of C) and 4 (A) have `upper` rows, 2, 3 (C) and 5
 * (A) have `lower`, which may be 0; a row of A has `depth` words of four bytes, for which B has a
 * row each. */
static inline void model_configure(model_tiles *t, int upper, int lower, int depth) {
  const int rows[MODEL_TILES] = {upper, upper, lower, lower, upper, lower, depth, depth};
  for (int i = 0; i < MODEL_TILES; ++i) {
    t->n_rows[i] = rows[i];
    t->row_bytes[i] = i == 4 || i == 5 ? 4 * depth : MODEL_TILE_BYTES;
  }
}

/* Rows and bytes beyond the tile's shape become zero. */
static inline void model_load(model_tiles *t, int tile, const void *from, int64_t stride) {
  model_zero(t, tile);
  for (int r = 0; r < t->n_rows[tile]; ++r)
    memcpy(t->rows[tile][r], (const char *)from + r * stride, (size_t)t->row_bytes[tile]);
}

static inline void model_store(const model_tiles *t, int tile, void *to, int64_t stride) {
  for (int r = 0; r < t->n_rows[tile]; ++r)
    memcpy((char *)to + r * stride, t->rows[tile][r], (size_t)t->row_bytes[tile]);
}

/* Shapes that go together; a processor refuses others, here all of C becomes -1 or NaN. */
static inline bool model_fits(model_tiles *t, int c, int a, int b) {
  const bool fits = t->n_rows[c] > 0 && t->n_rows[c] == t->n_rows[a] &&
                    t->row_bytes[a] == 4 * t->n_rows[b] && t->row_bytes[b] == t->row_bytes[c];
  if (!fits)
    memset(t->rows[c], 0xff, sizeof t->rows[c]);
  return fits;
}

/* TDPBF16PS: c[m][n] += the sum over k of a[m][2k] b[k][2n], and that over k of
 * a[m][2k + 1] b[k][2n + 1], which are added to each other first. */
static inline void model_dot_bf16(model_tiles *t, int c, int a, int b) {
  const int n_rows = model_fits(t, c, a, b) ? t->n_rows[c] : 0;
  for (int m = 0; m < n_rows; ++m) {
    for (int n = 0; n < t->row_bytes[c] / 4; ++n) {
      float even = 0.0f, odd = 0.0f, old;
      for (int k = 0; k < t->n_rows[b]; ++k) {
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

/* TDPBSUD: c[m][n] += the sum over k and i < 4 of a[m][4k + i] b[k][4n + i], signed by unsigned. */
static inline void model_dot_bytes(model_tiles *t, int c, int a, int b) {
  const int n_rows = model_fits(t, c, a, b) ? t->n_rows[c] : 0;
  for (int m = 0; m < n_rows; ++m) {
    for (int n = 0; n < t->row_bytes[c] / 4; ++n) {
      uint32_t sum;
      memcpy(&sum, t->rows[c][m] + 4 * n, sizeof sum);
      for (int k = 0; k < 4 * t->n_rows[b]; ++k) {
        const int32_t x = (int8_t)t->rows[a][m][k], y = t->rows[b][k / 4][4 * n + k % 4];
        sum += (uint32_t)(x * y);
      }
      memcpy(t->rows[c][m] + 4 * n, &sum, sizeof sum);
    }
  }
}

#endif
