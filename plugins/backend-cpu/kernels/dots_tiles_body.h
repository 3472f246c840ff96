/* SPDX-License-Identifier: Apache-2.0 */
/* A chain of a product of bf16 on tiles: 32 rows by 64 columns, as two by two tiles of 16 by 16 for
 * each half of the columns. Rows up to 16 need half of the tiles. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_DOTS_TILES_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_DOTS_TILES_BODY_H_

#define DOTS_ROWS 32
#include "dots_body.h"
#include "tiles_body.h"

enum {
  TILE_B_BYTES = CPU_PANEL * 4, /* between rows */
  TILE_C_BYTES = CPU_PANEL * 4
};

CPU_STATIC void dots_begin(void) {
  tile_configure(TILE_EDGE, TILE_EDGE, TILE_EDGE);
}

CPU_STATIC void dots_end(void) {
  tile_release();
}

/* 32 columns, from `column` on, of up to 16 rows. */
CPU_STATIC void tiles_one(const dots_tile *t, int64_t column) {
  const int64_t a_bytes = t->a_stride * (int64_t)sizeof *t->a;
  const uint16_t *b = t->b + 2 * column;
  float *sum = t->sum + column;
  TILE_ZERO(0);
  TILE_ZERO(1);
  if (t->resume) {
    TILE_LOAD(0, sum, TILE_C_BYTES);
    TILE_LOAD(1, sum + TILE_EDGE, TILE_C_BYTES);
  }
  for (int64_t k = 0; k < t->steps; k += CPU_DOTS_STEPS, b += CPU_DOTS_STEPS * CPU_PANEL) {
    TILE_LOAD(4, t->a + k, a_bytes);
    TILE_LOAD(6, b, TILE_B_BYTES);
    TILE_LOAD(7, b + 2 * TILE_EDGE, TILE_B_BYTES);
    TILE_DOT_BF16(0, 4, 6);
    TILE_DOT_BF16(1, 4, 7);
  }
  TILE_STORE(0, sum, TILE_C_BYTES);
  TILE_STORE(1, sum + TILE_EDGE, TILE_C_BYTES);
}

/* 32 columns of 32 rows. */
CPU_STATIC void tiles_two(const dots_tile *t, int64_t column) {
  const int64_t a_bytes = t->a_stride * (int64_t)sizeof *t->a;
  const uint16_t *b = t->b + 2 * column;
  float *sum = t->sum + column, *lower = sum + TILE_EDGE * CPU_PANEL;
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
  if (t->resume) {
    TILE_LOAD(0, sum, TILE_C_BYTES);
    TILE_LOAD(1, sum + TILE_EDGE, TILE_C_BYTES);
    TILE_LOAD(2, lower, TILE_C_BYTES);
    TILE_LOAD(3, lower + TILE_EDGE, TILE_C_BYTES);
  }
  for (int64_t k = 0; k < t->steps; k += CPU_DOTS_STEPS, b += CPU_DOTS_STEPS * CPU_PANEL) {
    TILE_LOAD(4, t->a + k, a_bytes);
    TILE_LOAD(6, b, TILE_B_BYTES);
    TILE_DOT_BF16(0, 4, 6);
    TILE_LOAD(7, b + 2 * TILE_EDGE, TILE_B_BYTES);
    TILE_DOT_BF16(1, 4, 7);
    TILE_LOAD(5, t->a + TILE_EDGE * t->a_stride + k, a_bytes);
    TILE_DOT_BF16(2, 5, 6);
    TILE_DOT_BF16(3, 5, 7);
  }
  TILE_STORE(0, sum, TILE_C_BYTES);
  TILE_STORE(1, sum + TILE_EDGE, TILE_C_BYTES);
  TILE_STORE(2, lower, TILE_C_BYTES);
  TILE_STORE(3, lower + TILE_EDGE, TILE_C_BYTES);
}

CPU_STATIC void dots_chain(const dots_tile *t) {
  for (int64_t k = 0; k < t->steps && t->ahead_bytes > 0; k += 2)
    v16_prefetch_l2(t->ahead + k / 2 * t->ahead_bytes);
  for (int64_t column = 0; column < CPU_PANEL; column += 2 * TILE_EDGE)
    (t->rows > TILE_EDGE ? tiles_two : tiles_one)(t, column);
}

#endif
