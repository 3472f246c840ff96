/* SPDX-License-Identifier: Apache-2.0 */
/* Products with packed codes whose rows of A were rounded to 8 bits, included once per instruction
 * set: the rounding, several rows (a vector of columns at a time, or two), and integers. One row is
 * in codes_byte_row_body.h; all have the same bits. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CODES_INT8_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_CODES_INT8_BODY_H_

#include "codes_byte_row_body.h"
#include "quantize_body.h"

/* Rows of a tile, whose sums are in registers; rows that read a panel together. */
enum { CODES_INT8_ROWS = 4, CODES_INT8_MOST = 16 };
enum { CODES_INT8_VECTORS = (P16_VECTORS + 1) / 2 }; /* of columns, that several rows take */
/* Rows of integers: as many as there are registers for; they read the codes less often. */
enum { CODES_INTEGER_ROWS = P16_IS_WHOLE && P16_VECTORS == 4 ? 8 : CODES_INT8_ROWS };

/* ---- rows of A ---- */

/* The bytes at even places of 8, then the others. */
CPU_INLINE uint64_t codes_parted(uint64_t bytes) {
  uint64_t half[2] = {bytes & UINT64_C(0x00ff00ff00ff00ff),
                      bytes >> 8 & UINT64_C(0x00ff00ff00ff00ff)};
  CPU_UNROLL(2)
  for (int i = 0; i < 2; i++) {
    half[i] = (half[i] | half[i] >> 8) & UINT64_C(0x0000ffff0000ffff);
    half[i] = (half[i] | half[i] >> 16) & UINT64_C(0x00000000ffffffff);
  }
  return half[0] | half[1] << 32;
}

/* 16 bytes in the order of words and planes: with two planes those of 8 at even places come first,
 * with four every fourth byte of 16. */
CPU_INLINE void codes_order_bytes(const uint8_t *bytes, const int planes, uint8_t *out) {
  uint64_t two[2];
  memcpy(two, bytes, sizeof two);
  CPU_UNROLL(2)
  for (int i = 1; i < planes; i *= 2) {
    const uint64_t low = codes_parted(two[0]), high = codes_parted(two[1]);
    two[0] = planes == 2 ? low : (low & UINT64_C(0xffffffff)) | high << 32;
    two[1] = planes == 2 ? high : low >> 32 | (high & UINT64_C(0xffffffff00000000));
  }
  memcpy(out, two, sizeof two);
}

/* One block of a row: bytes in the order of words and planes (a constant), zero behind `steps` up
 * to whole runs of 16. */
CPU_INLINE void codes_round_block(const float *a, int64_t steps, const int planes, uint8_t *out,
                                  codes_row_head *head) {
  v16 most = v16_zero(), wrong = v16_zero(); /* wrong: NaN where a number is none, or infinite */
  for (int64_t i = 0; i < steps; i += 16) {
    const v16 x = v16_load_part_or(a + i, steps - i, 0.0f);
    most = v16_max(most, v16_abs(x));
    wrong = v16_fma(x, v16_zero(), wrong);
  }
  const bool finite = v16_sum(wrong) == 0.0f;
  const float scale = v16_largest(most) / 127.0f;
  const bool usable = finite && scale >= 1.1754944e-38f; /* smaller scales count as 0 */
  const v16 one = v16_set(usable ? 1.0f / scale : 0.0f),
            shift = v16_set(12582912.0f); /* 1.5 * 2^23 */
  v16 sum = v16_zero();                   /* of integers: exact in any order */
  for (int64_t i = 0; i < steps; i += 16) {
    const v16 x = v16_mul(v16_load_part_or(a + i, steps - i, 0.0f), one);
    const v16 rounded = usable ? v16_sub(v16_add(x, shift), shift) : v16_zero();
    uint8_t bytes[16];
    sum = v16_add(sum, rounded);
    v16_store_bytes(bytes, rounded);
    codes_order_bytes(bytes, planes, out + i);
  }
  head->scale = finite ? (usable ? scale : 0.0f) : NAN;
  head->sum = v16_sum(sum);
}

CPU_STATIC void codes_round_rows(const cpu_codes *form, const float *a, int64_t a_stride,
                                 cpu_range rows, void *out) {
  const int64_t row_bytes = codes_row_bytes(form), heads = codes_row_heads(form);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    char *row = (char *)out + r * row_bytes;
    codes_row_head *head = (codes_row_head *)(void *)row;
    uint8_t *bytes = (uint8_t *)row + heads;
    for (int64_t k = 0; k < form->k; k += form->block, ++head) {
      const float *from = a + r * a_stride + k;
      const int64_t steps = form->k - k < form->block ? form->k - k : form->block;
      if (form->bits == 2)
        codes_round_block(from, steps, 4, bytes, head);
      else if (form->bits == 4)
        codes_round_block(from, steps, 2, bytes, head);
      else
        codes_round_block(from, steps, 1, bytes, head);
      bytes += codes_word_bytes(form, steps) / (CPU_PANEL * 4) * (32 / (int64_t)form->bits);
    }
  }
}

/* ---- the product ---- */

/* Rounded rows of A, from the block on that is multiplied. */
typedef struct codes_int8_rows {
  const char *head; /* of the first row's block; those of the others lie `stride` behind */
  const char *bytes;
  int64_t stride;
} codes_int8_rows;

/* Lines of blocks to come, to the second-level cache. */
CPU_INLINE void codes_int8_fetch(const codes_place *place, int64_t n_words) {
  enum { AHEAD = 4096, LINE = 64 };
  const char *end = place->words + n_words * CPU_PANEL * 4;
  for (const char *at = place->block; at < end; at += LINE)
    v16_prefetch_l2(at + AHEAD);
}

/* A row's scale in a block and, for zeros, the sum of its bytes, already times the zero where all
 * columns have the same. */
typedef struct codes_int8_row {
  float scale, zero;
} codes_int8_row;

CPU_INLINE codes_int8_row codes_int8_row_of(const cpu_codes *form, const char *at) {
  const codes_row_head *head = (const codes_row_head *)(const void *)at;
  const bool one = form->zeros == CPU_ZEROS_ONE;
  return (codes_int8_row){head->scale, one ? (float)-form->zero * head->sum : head->sum};
}

/* before + an exact sum less its zeros, as a number; zero: negated, where columns have their own.
 */
CPU_INLINE v16 codes_int8_add(v16 before, i16 dot, codes_int8_row row, v16 scale, v16 zero,
                              const bool one) {
  const v16 exact = i16_to_float(dot), all = v16_set(row.zero);
  const v16 whole = one ? v16_add(all, exact) : v16_fma(zero, all, exact);
  return v16_fma(whole, v16_mul(v16_set(row.scale), scale), before);
}

/* sum[rows][64] += one block, so many vectors of columns at a time. One zero for all is taken off
 * the exact sums at once. */
CPU_INLINE void codes_int8_block(const cpu_codes *form, const codes_place *place,
                                 const codes_int8_rows *a, float *sum, const int bits,
                                 const int rows, const int vectors) {
  const char *zeros = place->block + codes_scale_bytes(form);
  const int64_t per_word = 32 / bits, n_words = (place->steps + per_word - 1) / per_word;
  const bool one = form->zeros == CPU_ZEROS_ONE;
  const int8_t *x[CODES_INT8_ROWS];
  codes_int8_row row[CODES_INT8_ROWS];
  CPU_UNROLL(4)
  for (int r = 0; r < rows; r++) {
    x[r] = (const int8_t *)(a->bytes + r * a->stride);
    row[r] = codes_int8_row_of(form, a->head + r * a->stride);
  }
  for (int64_t first = 0; first < CPU_PANEL; first += 16 * vectors) {
    i16 dot[CODES_SUMS_MOST];
    codes_dots((const float *)(const void *)place->words + first, n_words, x, bits, rows, vectors,
               dot);
    CPU_UNROLL(4)
    for (int v = 0; v < vectors; v++) {
      const int64_t column = first + v * 16;
      const v16 scale = codes_number(form, place->block, column);
      const v16 zero = one ? v16_zero() : v16_neg(codes_zero(form, zeros, column));
      CPU_UNROLL(4)
      for (int r = 0; r < rows; r++) {
        float *to = sum + r * CPU_PANEL + column;
        v16_store(to, codes_int8_add(v16_load(to), dot[r * vectors + v], row[r], scale, zero, one));
      }
    }
  }
}

typedef void (*codes_int8_tile)(const cpu_codes *form, const codes_place *place,
                                const codes_int8_rows *a, float *sum);

#define CODES_INT8(bits, rows)                                                                \
  CPU_STATIC void codes_int8_##bits##_##rows(const cpu_codes *form, const codes_place *place, \
                                             const codes_int8_rows *a, float *sum) {          \
    codes_int8_block(form, place, a, sum, bits, rows, CODES_INT8_VECTORS);                    \
  }
#define CODES_INT8_EACH(bits) CODES_INT8(bits, 2) CODES_INT8(bits, 3) CODES_INT8(bits, 4)
CODES_INT8_EACH(2)
CODES_INT8_EACH(4)
CODES_INT8_EACH(8)
#define CODES_INT8_TILES(bits) \
  { codes_int8_##bits##_2, codes_int8_##bits##_3, codes_int8_##bits##_4 }

/* sum[count][64] += one block of 2 rows or more, in tiles of 2 to 4. */
CPU_STATIC void codes_int8_rows_of_block(const cpu_codes *form, const codes_place *place,
                                         const codes_int8_rows *a, int64_t count, float *sum) {
  static const codes_int8_tile all[3][CODES_INT8_ROWS - 1] = {
      CODES_INT8_TILES(2), CODES_INT8_TILES(4), CODES_INT8_TILES(8)};
  const codes_int8_tile *tile = all[form->bits == 2 ? 0 : form->bits == 4 ? 1 : 2];
  const int64_t n_tiles = (count + CODES_INT8_ROWS - 1) / CODES_INT8_ROWS;
  for (int64_t t = 0, r = 0; t < n_tiles; ++t) {
    const int64_t height = (count - r + n_tiles - t - 1) / (n_tiles - t);
    const codes_int8_rows some = {a->head + r * a->stride, a->bytes + r * a->stride, a->stride};
    tile[height - 2](form, place, &some, sum + r * CPU_PANEL);
    r += height;
  }
}

typedef void (*codes_int8_block_of)(const cpu_codes *form, const codes_place *place,
                                    const codes_int8_rows *a, int64_t count, float *sum);

/* 2 rows or more of one panel, with their epilogue: block by block, so that memory is read once.
 * sum: room for them, [rows][64] */
CPU_STATIC void codes_int8_panel(const cpu_codes_product *p, int64_t panel, cpu_range rows,
                                 codes_int8_block_of add, float *sum) {
  const cpu_codes *form = p->form;
  const int64_t count = rows.end - rows.begin, column = panel * CPU_PANEL;
  const int64_t columns = form->n - column < CPU_PANEL ? form->n - column : CPU_PANEL;
  const int64_t per_word = 32 / (int64_t)form->bits, stride = codes_row_bytes(form);
  const char *codes = (const char *)p->packed + panel * codes_panel_bytes(form);
  const char *head = (const char *)p->rounded + rows.begin * stride;
  codes_int8_rows a = {head, head + codes_row_heads(form), stride};
  memset(sum, 0, (size_t)count * CPU_PANEL * sizeof *sum);
  for (int64_t k = 0; k < form->k;) {
    const codes_place place = codes_place_of(form, codes, k, form->k);
    const int64_t n_words = (place.steps + per_word - 1) / per_word;
    codes_int8_fetch(&place, n_words);
    add(form, &place, &a, count, sum);
    a.head += sizeof(codes_row_head);
    a.bytes += n_words * per_word;
    k += place.steps;
  }
  if (p->epilogue != NULL)
    finish_tile(p->epilogue, rows.begin, column, count, columns, sum, CPU_PANEL);
  for (int64_t r = 0; r < count; ++r) {
    memcpy(p->c + (rows.begin + r) * p->c_stride + column, sum + r * CPU_PANEL,
           (size_t)columns * sizeof(float));
  }
}

CPU_STATIC void codes_int8_share(const cpu_codes_product *p, cpu_range panels, cpu_range rows) {
  const codes_byte_row row = codes_byte_row_of(p->form);
  float sum[CODES_INT8_MOST * CPU_PANEL];
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    for (int64_t i = rows.begin; i < rows.end; i += CODES_INT8_MOST) {
      const int64_t left = rows.end - i;
      const int64_t end = left < CODES_INT8_MOST ? rows.end : i + CODES_INT8_MOST;
      if (left == 1)
        row(p, j, i);
      else
        codes_int8_panel(p, j, (cpu_range){i, end}, codes_int8_rows_of_block, sum);
    }
  }
}

/* ---- integers by integers ---- */

/* A panel that is multiplied: its first column and how many it has, and what these add, zero behind
 * them: c = dot + base - zero * (the sum of a row). scale: of numbers */
typedef struct codes_integer_panel {
  const float *words;
  int64_t first, columns;
  int32_t base[CPU_PANEL], zero[CPU_PANEL];
  float scale[CPU_PANEL];
} codes_integer_panel;

/* The place that the results of some rows of a panel are written to. */
typedef struct codes_integer_place {
  float *to; /* its first column */
  int64_t stride;
} codes_integer_place;

/* A signed byte of a row plus this is a - a_zero. */
CPU_INLINE uint32_t codes_integer_above(const cpu_codes_integer_args *g) {
  return (uint32_t)((g->a_signed ? 0 : 128) - g->a_zero);
}

CPU_STATIC void codes_integer_panel_of(const cpu_codes_integer_args *g, int64_t panel,
                                       codes_integer_panel *p) {
  const char *block = (const char *)g->packed + panel * codes_panel_bytes(g->form);
  const int32_t *code_sums = (const int32_t *)(const void *)block;
  *p = (codes_integer_panel){
      .words = (const float *)(const void *)(block + codes_head_bytes(g->form)),
      .first = panel * CPU_PANEL};
  p->columns = g->form->n - p->first < CPU_PANEL ? g->form->n - p->first : CPU_PANEL;
  for (int64_t u = 0; u < p->columns; ++u) {
    const int64_t z = g->b_zero_each ? p->first + u : 0;
    const int32_t of = g->b_zeros == NULL  ? 0
                       : g->b_zeros_signed ? ((const int8_t *)g->b_zeros)[z]
                                           : ((const uint8_t *)g->b_zeros)[z];
    p->base[u] = (int32_t)(codes_integer_above(g) * (uint32_t)code_sums[u]);
    p->zero[u] = g->b_base + of;
    p->scale[u] = g->c != NULL ? 0.0f : g->scale[g->scale_each ? p->first + u : 0];
  }
}

CPU_INLINE i16 codes_integer_load(const int32_t *from) {
  return i16_from_bits(v16_load((const float *)(const void *)from));
}

/* A row of signed bytes, behind its sum. */
CPU_INLINE const char *codes_integer_row_at(const cpu_codes_integer_args *g, int64_t row) {
  return (const char *)g->workspace + row * codes_integer_row(g->form) + CPU_ALIGN_BYTES;
}

/* Vector v of a row's columns: c, or numbers at `to`, from exact sums. */
CPU_INLINE void codes_integer_write(const cpu_codes_integer_args *g, const codes_integer_panel *p,
                                    int64_t v, int64_t row, i16 dot, float *to) {
  const int64_t left = p->columns - v * 16;
  int32_t sum;
  memcpy(&sum, codes_integer_row_at(g, row) - CPU_ALIGN_BYTES, sizeof sum);
  const int32_t all = (int32_t)((uint32_t)sum + (uint32_t)g->form->k * codes_integer_above(g));
  const i16 off = i16_mul(codes_integer_load(p->zero + v * 16), i16_set(all));
  const i16 c = i16_sub(i16_add(dot, codes_integer_load(p->base + v * 16)), off);
  v16 out = v16_mul(i16_to_float(c), v16_load(p->scale + v * 16));
  if (g->c != NULL) {
    to = (float *)(void *)(g->c + row * g->form->n + p->first + v * 16);
    out = i16_as_float(c);
  }
  if (left < 16)
    v16_store_part(to, left, out);
  else
    v16_store(to, out);
}

/* Up to CODES_INTEGER_ROWS rows of CODES_INT8_VECTORS vectors of columns. */
CPU_STATIC void codes_integer_columns(const cpu_codes_integer_args *g, const codes_integer_panel *p,
                                      int64_t vector, cpu_range rows,
                                      const codes_integer_place *place) {
  enum { V = CODES_INT8_VECTORS, MOST = CODES_INTEGER_ROWS };
  const int64_t count = rows.end - rows.begin, n_words = (g->form->k + 3) / 4;
  const float *words = p->words + vector * 16;
  const int8_t *x[MOST];
  i16 dot[CODES_SUMS_MOST];
  for (int64_t r = 0; r < MOST; ++r)
    x[r] = (const int8_t *)codes_integer_row_at(g, rows.begin + (r < count ? r : 0));
  if (count > CODES_INT8_ROWS)
    codes_dots(words, n_words, x, 8, MOST, V, dot);
  else if (count > 1)
    codes_dots(words, n_words, x, 8, CODES_INT8_ROWS, V, dot);
  else
    codes_dots(words, n_words, x, 8, 1, V, dot);
  for (int64_t v = 0; v < V && (vector + v) * 16 < p->columns; ++v) {
    for (int64_t r = 0; r < count; ++r) {
      codes_integer_write(g, p, vector + v, rows.begin + r, dot[r * V + v],
                          place->to + r * place->stride + (vector + v) * 16);
    }
  }
}

/* Numbers of a panel's rows go to `room`, [rows][64], or where they belong. */
CPU_INLINE codes_integer_place codes_integer_place_of(const cpu_codes_integer_args *g,
                                                      const codes_integer_panel *p, int64_t row,
                                                      float *room) {
  if (g->bytes != NULL || g->numbers == NULL)
    return (codes_integer_place){room, CPU_PANEL};
  return (codes_integer_place){g->numbers + row * g->form->n + p->first, g->form->n};
}

/* The epilogue of some rows of a panel, and their numbers as bytes. */
CPU_STATIC void codes_integer_finish(const cpu_codes_integer_args *g, const codes_integer_panel *p,
                                     cpu_range rows, const codes_integer_place *place) {
  if (g->c == NULL && g->epilogue != NULL) {
    finish_tile(g->epilogue, rows.begin, p->first, rows.end - rows.begin, p->columns, place->to,
                place->stride);
  }
  for (int64_t r = rows.begin; r < rows.end && g->bytes != NULL; ++r) {
    const cpu_quantize_args args = {.x = place->to + (r - rows.begin) * place->stride,
                                    .n = p->columns,
                                    .scale = g->y_scale,
                                    .zero = g->y_zero,
                                    .low = g->y_low,
                                    .high = g->y_high,
                                    .y = g->bytes + r * g->form->n + p->first};
    quantize_share(&args, (cpu_range){0, p->columns});
  }
}

/* Up to CODES_INTEGER_ROWS rows of a panel, with what follows the sums. */
CPU_STATIC void codes_integer_rows(const cpu_codes_integer_args *g, const codes_integer_panel *p,
                                   cpu_range rows) {
  float room[CODES_INTEGER_ROWS * CPU_PANEL];
  const codes_integer_place place = codes_integer_place_of(g, p, rows.begin, room);
  for (int64_t v = 0; v * 16 < p->columns; v += CODES_INT8_VECTORS)
    codes_integer_columns(g, p, v, rows, &place);
  codes_integer_finish(g, p, rows, &place);
}

CPU_STATIC void codes_integer_panel_rows(const cpu_codes_integer_args *g,
                                         const codes_integer_panel *p, cpu_range rows) {
  for (int64_t i = rows.begin; i < rows.end; i += CODES_INTEGER_ROWS) {
    const int64_t end = rows.end - i < CODES_INTEGER_ROWS ? rows.end : i + CODES_INTEGER_ROWS;
    codes_integer_rows(g, p, (cpu_range){i, end});
  }
}

CPU_STATIC void codes_integer_share(const cpu_codes_integer_args *g, cpu_range panels,
                                    cpu_range rows) {
  codes_integer_panel p;
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    codes_integer_panel_of(g, j, &p);
    codes_integer_panel_rows(g, &p, rows);
  }
}

#endif
