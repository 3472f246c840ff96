/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on the tiles of a thread: instructions (AMX), or with CPU_TILES_MODEL their model in
 * C. The numbers of tiles are constants.
 *
 *   tile_configure(upper, lower, depth)   the shapes of model_configure (tiles_model.h)
 *   tile_release()
 *   TILE_ZERO(t)
 *   TILE_LOAD(t, from, bytes between rows)
 *   TILE_STORE(t, to, bytes between rows)
 *   TILE_DOT_BF16(c, a, b)    TDPBF16PS: c[16][16] += a[16][16][2] b[16][16][2]
 *   TILE_DOT_BYTES(c, a, b)   TDPBSUD: c[16][16] += a[16][16][4] b[16][16][4], signed by unsigned
 *
 * A block of C is two tiles of rows by two of columns: tiles 0 to 3. Tiles 4 and 5 are of A, 6 and
 * 7 of B. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_TILES_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_TILES_BODY_H_

#include <stdint.h>

#include "vec.h"

enum { TILE_EDGE = 16 };

#if defined(CPU_TILES_MODEL)
#include "tiles_model.h"

static _Thread_local model_tiles tile_model;

CPU_STATIC void tile_configure(int upper, int lower, int depth) {
  memset(&tile_model, 0xff, sizeof tile_model); /* NaN, or -1: reading what nobody has set shows */
  model_configure(&tile_model, upper, lower, depth);
}

CPU_STATIC void tile_release(void) {
  memset(&tile_model, 0xff, sizeof tile_model);
}

#define TILE_ZERO(t) model_zero(&tile_model, t)
#define TILE_LOAD(t, from, stride) model_load(&tile_model, t, from, stride)
#define TILE_STORE(t, to, stride) model_store(&tile_model, t, to, stride)
#define TILE_DOT_BF16(c, a, b) model_dot_bf16(&tile_model, c, a, b)
#define TILE_DOT_BYTES(c, a, b) model_dot_bytes(&tile_model, c, a, b)

#else

typedef struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_config;

CPU_STATIC void tile_configure(int upper, int lower, int depth) {
  const int rows[8] = {upper, upper, lower, lower, upper, lower, depth, depth};
  tile_config config = {.palette = 1};
  for (int t = 0; t < 8; ++t) {
    const int words = t == 4 || t == 5 ? depth : TILE_EDGE;
    config.rows[t] = (uint8_t)rows[t];
    config.row_bytes[t] = (uint16_t)(rows[t] == 0 ? 0 : 4 * words);
  }
  /* Compilers know of one byte that the instruction reads: all 64 have to be written before. */
  __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
}

CPU_STATIC void tile_release(void) {
  _tile_release();
}

#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, from, stride) _tile_loadd(t, from, stride)
#define TILE_STORE(t, to, stride) _tile_stored(t, to, stride)
#define TILE_DOT_BF16(c, a, b) _tile_dpbf16ps(c, a, b)
#define TILE_DOT_BYTES(c, a, b) _tile_dpbsud(c, a, b)

#endif
#endif
