/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 on tiles for AVX-512 with AMX-BF16. Everything in this file but the table is
 * static, so that no function built for one instruction set can be called by code of another. */
#if defined(__x86_64__)
#define CPU_VEC_AVX512 1
#include "vec.h"

typedef struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_config;

static void tile_configure(void) {
  tile_config config = {.palette = 1};
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = 64;
    config.rows[t] = 16;
  }
  /* Compilers know of one byte that the instruction reads: all 64 have to be written before. */
  __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
}

static void tile_release(void) {
  _tile_release();
}

#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, from, stride) _tile_loadd(t, from, stride)
#define TILE_STORE(t, to, stride) _tile_stored(t, to, stride)
#define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)

#include "dots_tiles_body.h"

const cpu_dots cpu_dots_tiles = DOTS_TABLE(CPU_DOTS_TILES);

#else
/* No kernels here for other architectures; C wants a declaration. */
typedef int cpu_no_dots_tiles;
#endif
