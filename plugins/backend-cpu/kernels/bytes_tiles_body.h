/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bytes on tiles: rows rounded to 8 bits by packed codes, and integers by integers, as
 * codes_int8_body.h has them and with the same bits; included once for the instructions (AMX) and
 * once for their model (tiles_body.h).
 *
 * A block of C has 32 rows by 64 columns, two by two tiles for each half of the columns; rows up to
 * 16 need half of the tiles. Four codes of 8 bits of a column are a word, as tiles of B want them;
 * those of 4 and 2 bits are unpacked once for all rows. Few rows are bound by memory, and go the
 * way of the vectors. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_BYTES_TILES_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_BYTES_TILES_BODY_H_

#include "codes_int8_body.h"
#include "tiles_body.h"

enum {
  BYTES_ROWS = 2 * TILE_EDGE, /* of a block of C */
  BYTES_LEAST = 4,            /* rows that are worth tiles */
  BYTES_DEEP = 4 * TILE_EDGE, /* steps of a whole tile */
  BYTES_LINE = CPU_PANEL * 4  /* bytes between rows of B, and of C */
};

/* sums[rows][64] = a[rows][steps] words[steps / 4][64][4]: n tiles of `depth` words a row; last:
 * NULL, or one more of B that is elsewhere. */
typedef struct bytes_tile {
  const char *a;
  int64_t a_stride;
  const char *words, *last;
  int64_t n, depth;
  int32_t *sums;
  bool lower; /* more than 16 rows */
} bytes_tile;

/* The rows from `begin` on that are multiplied at once, with the tiles of their shape; none where
 * too few are left. *io_rows: how many rows tiles have; 0: there are none yet. */
CPU_STATIC cpu_range bytes_rows(int64_t begin, int64_t end, int64_t depth, int64_t *io_rows) {
  const int64_t left = end - begin, count = left < BYTES_ROWS ? left : BYTES_ROWS;
  const int64_t upper = count < TILE_EDGE ? count : TILE_EDGE;
  if (left < BYTES_LEAST)
    return (cpu_range){begin, begin};
  if (count != *io_rows)
    tile_configure((int)upper, (int)(count - upper), (int)depth);
  *io_rows = count;
  return (cpu_range){begin, begin + count};
}

CPU_INLINE const char *bytes_words(const bytes_tile *t, int64_t i) {
  return i < t->n ? t->words + i * t->depth * BYTES_LINE : t->last;
}

/* 32 columns, from `column` on, of up to 16 rows. */
CPU_STATIC void bytes_one(const bytes_tile *t, int64_t column) {
  const int64_t n = t->n + (t->last != NULL);
  TILE_ZERO(0);
  TILE_ZERO(1);
  for (int64_t i = 0; i < n; ++i) {
    const char *b = bytes_words(t, i) + column * 4;
    TILE_LOAD(4, t->a + i * t->depth * 4, t->a_stride);
    TILE_LOAD(6, b, BYTES_LINE);
    TILE_LOAD(7, b + BYTES_DEEP, BYTES_LINE);
    TILE_DOT_BYTES(0, 4, 6);
    TILE_DOT_BYTES(1, 4, 7);
  }
  TILE_STORE(0, t->sums + column, BYTES_LINE);
  TILE_STORE(1, t->sums + column + TILE_EDGE, BYTES_LINE);
}

/* 32 columns of 17 to 32 rows. */
CPU_STATIC void bytes_two(const bytes_tile *t, int64_t column) {
  const int64_t n = t->n + (t->last != NULL);
  int32_t *sums = t->sums + column, *lower = sums + TILE_EDGE * CPU_PANEL;
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
  for (int64_t i = 0; i < n; ++i) {
    const char *a = t->a + i * t->depth * 4, *b = bytes_words(t, i) + column * 4;
    TILE_LOAD(4, a, t->a_stride);
    TILE_LOAD(6, b, BYTES_LINE);
    TILE_DOT_BYTES(0, 4, 6);
    TILE_LOAD(7, b + BYTES_DEEP, BYTES_LINE);
    TILE_DOT_BYTES(1, 4, 7);
    TILE_LOAD(5, a + TILE_EDGE * t->a_stride, t->a_stride);
    TILE_DOT_BYTES(2, 5, 6);
    TILE_DOT_BYTES(3, 5, 7);
  }
  TILE_STORE(0, sums, BYTES_LINE);
  TILE_STORE(1, sums + TILE_EDGE, BYTES_LINE);
  TILE_STORE(2, lower, BYTES_LINE);
  TILE_STORE(3, lower + TILE_EDGE, BYTES_LINE);
}

CPU_STATIC void bytes_multiply(const bytes_tile *t, int64_t columns) {
  for (int64_t column = 0; column < columns; column += 2 * TILE_EDGE)
    (t->lower ? bytes_two : bytes_one)(t, column);
}

/* ---- rounded rows ---- */

/* Blocks that are whole tiles, or less than one. */
CPU_STATIC bool tiles_take_codes(const cpu_codes *form) {
  return form->block <= form->k && (form->block % BYTES_DEEP == 0 ||
                                    (form->block < BYTES_DEEP && form->block % TILE_EDGE == 0));
}

CPU_STATIC int64_t tiles_depth(const cpu_codes *form) { /* words of a row of A's tile */
  return (form->block < BYTES_DEEP ? form->block : BYTES_DEEP) / 4;
}

/* out[n_words * 8 / bits][64] = words of single codes; bits is a constant, 2 or 4. */
CPU_INLINE void tiles_unpack(const float *words, int64_t n_words, const int bits, float *out) {
  const int planes = 8 / bits;
  const uint32_t mask = bits == 2 ? UINT32_C(0x03030303) : UINT32_C(0x0f0f0f0f);
  for (int64_t w = 0; w < n_words; ++w, words += CPU_PANEL) {
    for (int64_t u = 0; u < CPU_PANEL; u += 16) {
      v16 word = v16_load(words + u);
      float *to = out + w * planes * CPU_PANEL + u;
      CPU_UNROLL(4)
      for (int s = 0; s < planes; s++) {
        v16_store(to + s * CPU_PANEL, v16_and_bits(word, mask));
        word = bits == 2 ? v16_shift_bits(word, 2) : v16_shift_bits(word, 4);
      }
    }
  }
}

/* sum[count][64] += numbers of exact sums of one block. */
CPU_STATIC void tiles_add(const cpu_codes *form, const codes_place *place, const codes_int8_rows *a,
                          int64_t count, const int32_t *sums, float *sum) {
  const char *zeros = place->block + codes_scale_bytes(form);
  const bool one = form->zeros == CPU_ZEROS_ONE;
  v16 scale[PANEL_VECTORS], zero[PANEL_VECTORS];
  CPU_UNROLL(4)
  for (int v = 0; v < PANEL_VECTORS; v++) {
    scale[v] = codes_number(form, place->block, v * 16);
    zero[v] = one ? v16_zero() : v16_neg(codes_zero(form, zeros, v * 16));
  }
  for (int64_t r = 0; r < count; ++r) {
    const codes_int8_row row = codes_int8_row_of(form, a->head + r * a->stride);
    CPU_UNROLL(4)
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const int64_t at = r * CPU_PANEL + v * 16;
      const i16 dot = codes_integer_load(sums + at);
      v16_store(sum + at, codes_int8_add(v16_load(sum + at), dot, row, scale[v], zero[v], one));
    }
  }
}

/* A whole block on tiles; the last of a column, which may be less, by vectors. */
CPU_STATIC void tiles_block(const cpu_codes *form, const codes_place *place,
                            const codes_int8_rows *a, int64_t count, float *sum) {
  _Alignas(CPU_ALIGN_BYTES) int32_t sums[BYTES_ROWS * CPU_PANEL];
  float room[CODES_INT8_BLOCK / 4 * CPU_PANEL];
  const float *words = (const float *)(const void *)place->words;
  if (place->steps < form->block) {
    codes_int8_rows_of_block(form, place, a, count, sum);
    return;
  }
  if (form->bits == 4)
    tiles_unpack(words, form->block / 8, 4, room);
  else if (form->bits == 2)
    tiles_unpack(words, form->block / 16, 2, room);
  const int64_t depth = tiles_depth(form);
  const bytes_tile t = {.a = a->bytes,
                        .a_stride = a->stride,
                        .words = (const char *)(form->bits == 8 ? words : room),
                        .n = form->block / (4 * depth),
                        .depth = depth,
                        .sums = sums,
                        .lower = count > TILE_EDGE};
  bytes_multiply(&t, CPU_PANEL);
  tiles_add(form, place, a, count, sums, sum);
}

CPU_STATIC void tiles_codes_share(const cpu_codes_product *p, cpu_range panels, cpu_range rows) {
  const bool takes = tiles_take_codes(p->form);
  const int64_t depth = tiles_depth(p->form);
  float sum[BYTES_ROWS * CPU_PANEL];
  int64_t tile_rows = 0;
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    cpu_range now = {rows.begin, rows.begin};
    while (takes && (now = bytes_rows(now.end, rows.end, depth, &tile_rows), now.end > now.begin))
      codes_int8_panel(p, j, now, tiles_block, sum);
    codes_int8_share(p, (cpu_range){j, j + 1}, (cpu_range){now.end, rows.end});
  }
  if (tile_rows > 0)
    tile_release();
}

/* ---- integers by integers ---- */

/* last: what a panel's last tile of B has, where the steps do not fill it. */
CPU_STATIC void tiles_integer_rows(const cpu_codes_integer_args *g, const codes_integer_panel *p,
                                   cpu_range rows, const float *last) {
  _Alignas(CPU_ALIGN_BYTES) int32_t sums[BYTES_ROWS * CPU_PANEL];
  float room[BYTES_ROWS * CPU_PANEL];
  const codes_integer_place place = codes_integer_place_of(g, p, rows.begin, room);
  const bytes_tile t = {.a = codes_integer_row_at(g, rows.begin),
                        .a_stride = codes_integer_row(g->form),
                        .words = (const char *)p->words,
                        .last = g->form->k % BYTES_DEEP == 0 ? NULL : (const char *)last,
                        .n = g->form->k / BYTES_DEEP,
                        .depth = TILE_EDGE,
                        .sums = sums,
                        .lower = rows.end - rows.begin > TILE_EDGE};
  bytes_multiply(&t, p->columns);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t at = (r - rows.begin) * CPU_PANEL;
    for (int64_t v = 0; v * 16 < p->columns; ++v) {
      codes_integer_write(g, p, v, r, codes_integer_load(sums + at + v * 16),
                          place.to + (r - rows.begin) * place.stride + v * 16);
    }
  }
  codes_integer_finish(g, p, rows, &place);
}

CPU_STATIC void tiles_integer_share(const cpu_codes_integer_args *g, cpu_range panels,
                                    cpu_range rows) {
  _Alignas(CPU_ALIGN_BYTES) float last[TILE_EDGE * CPU_PANEL] = {0.0f};
  const int64_t whole = g->form->k / BYTES_DEEP * TILE_EDGE;
  const int64_t n_last = (g->form->k + 3) / 4 - whole;
  codes_integer_panel p;
  int64_t tile_rows = 0;
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    cpu_range now = {rows.begin, rows.begin};
    codes_integer_panel_of(g, j, &p);
    memcpy(last, p.words + whole * CPU_PANEL, (size_t)(n_last * CPU_PANEL) * sizeof *last);
    while (now = bytes_rows(now.end, rows.end, TILE_EDGE, &tile_rows), now.end > now.begin)
      tiles_integer_rows(g, &p, now, last);
    codes_integer_panel_rows(g, &p, (cpu_range){now.end, rows.end});
  }
  if (tile_rows > 0)
    tile_release();
}

#endif
