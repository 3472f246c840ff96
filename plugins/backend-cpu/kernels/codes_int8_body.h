/* SPDX-License-Identifier: Apache-2.0 */
/* Products with packed codes whose rows of A were rounded to 8 bits, included once per instruction
 * set after codes_body.h.
 *
 * The codes at one place of a word's four bytes ("plane") are multiplied by four bytes of A at
 * once. Where pairs of products are summed in 16 bits, codes of 8 bits are taken as two planes of
 * 4, so that none overflows: 2 * 15 * 128 * CODES_FOLD < 2^15. All sums within a block are exact
 * integers below 2^24: they have the same bits however they are taken.
 *
 * One row takes all columns of a panel at once, word after word: as memory has them, and with sums
 * that do not wait for each other. Several rows take one vector of columns, or two. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CODES_INT8_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_CODES_INT8_BODY_H_

#include "codes_body.h"

enum { CODES_FOLD = 8, CODES_INT8_ROWS = 4 };
enum { CODES_INT8_VECTORS = (P16_VECTORS + 1) / 2 }; /* of columns, that several rows take */
/* Rows of integers: as many as there are registers for; they read the codes less often. */
enum { CODES_INTEGER_ROWS = P16_IS_WHOLE && P16_VECTORS == 4 ? 8 : CODES_INT8_ROWS };
enum { CODES_SUMS_MOST = 16 };

/* ---- rows of A ---- */

/* One block of a row: bytes in the order of words and planes, zero behind `steps`. */
CPU_STATIC void codes_round_block(const cpu_codes *form, const float *a, int64_t steps, int8_t *out,
                                  codes_row_head *head) {
  const int64_t per_word = 32 / (int64_t)form->bits, planes = per_word / 4;
  float rounded[CODES_INT8_BLOCK];
  v16 most = v16_zero(), wrong = v16_zero(); /* wrong: NaN where a number is none, or infinite */
  const int64_t padded = (steps + 15) / 16 * 16;
  for (int64_t i = 0; i < padded; i += 16) {
    const v16 x = v16_load_part_or(a + i, steps - i, 0.0f);
    most = v16_max(most, v16_abs(x));
    wrong = v16_fma(x, v16_zero(), wrong);
  }
  const bool finite = v16_sum(wrong) == 0.0f;
  const float scale = v16_largest(most) / 127.0f;
  const bool usable = finite && scale >= 1.1754944e-38f; /* what is smaller counts as 0 */
  const float inverse = usable ? 1.0f / scale : 0.0f;
  const v16 one = v16_set(inverse), shift = v16_set(12582912.0f); /* 1.5 * 2^23 */
  for (int64_t i = 0; i < padded; i += 16) {
    const v16 x = v16_mul(v16_load_part_or(a + i, steps - i, 0.0f), one);
    v16_store(rounded + i, v16_sub(v16_add(x, shift), shift));
  }
  int32_t sum = 0;
  for (int64_t w = 0; w < steps; w += per_word) {
    for (int64_t i = 0; i < per_word; ++i) {
      const int8_t q = usable && w + i < steps ? (int8_t)rounded[w + i] : 0;
      out[w + i % planes * 4 + i / planes] = q;
      sum += q;
    }
  }
  head->scale = finite ? (usable ? scale : 0.0f) : NAN;
  head->sum = (float)sum;
}

CPU_STATIC void codes_round_rows(const cpu_codes *form, const float *a, int64_t a_stride,
                                 cpu_range rows, void *out) {
  const int64_t row_bytes = codes_row_bytes(form), heads = codes_row_heads(form);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    char *row = (char *)out + r * row_bytes;
    codes_row_head *head = (codes_row_head *)(void *)row;
    int8_t *bytes = (int8_t *)row + heads;
    for (int64_t k = 0; k < form->k; k += form->block, ++head) {
      const int64_t steps = form->k - k < form->block ? form->k - k : form->block;
      codes_round_block(form, a + r * a_stride + k, steps, bytes, head);
      bytes += codes_word_bytes(form, steps) / (CPU_PANEL * 4) * (32 / (int64_t)form->bits);
    }
  }
}

/* ---- the product ---- */

/* The codes of all planes in turn, each times its four bytes of a row: 32 bits at once. */
CPU_INLINE void codes_dots_whole(const float *words, int64_t n_words, const int8_t *const *x,
                                 const int bits, const int rows, const int vectors, i16 *dot) {
  enum { AHEAD = 8 };
  const int planes = 8 / bits, n_sums = rows * vectors;
  const uint32_t mask = bits == 2 ? UINT32_C(0x03030303) : UINT32_C(0x0f0f0f0f);
  p16 sum[CODES_SUMS_MOST];
  CPU_UNROLL(16)
  for (int i = 0; i < n_sums; i++) {
    sum[i] = p16_zero();
  }
  for (int64_t w = 0; w < n_words; ++w, words += CPU_PANEL) {
    v16 word[PANEL_VECTORS];
    CPU_UNROLL(4)
    for (int v = 0; v < vectors; v++) {
      word[v] = v16_load(words + v * 16);
      if (rows > 1) /* of one row: codes_fetch_block */
        v16_prefetch_l1(words + AHEAD * CPU_PANEL + v * 16);
    }
    CPU_UNROLL(4)
    for (int s = 0; s < planes; s++) {
      CPU_UNROLL(8)
      for (int r = 0; r < rows; r++) {
        int32_t four;
        memcpy(&four, x[r] + (w * planes + s) * 4, sizeof four);
        CPU_UNROLL(4)
        for (int v = 0; v < vectors; v++) {
          const v16 codes = planes == 1 ? word[v] : v16_and_bits(word[v], mask);
          sum[r * vectors + v] = p16_dot(sum[r * vectors + v], codes, four);
        }
      }
      const int again = planes > 1 ? vectors : 0;
      CPU_UNROLL(4)
      for (int v = 0; v < again; v++) {
        word[v] = bits == 2 ? v16_shift_bits(word[v], 2) : v16_shift_bits(word[v], 4);
      }
    }
  }
  CPU_UNROLL(16)
  for (int i = 0; i < n_sums; i++) {
    dot[i] = p16_fold(sum[i], 1);
  }
}

/* The same where pairs are summed in 16 bits: so many words, and the sums are taken out. */
CPU_INLINE void codes_dots_folded(const float *words, int64_t n_words, const int8_t *const *x,
                                  const int bits, const int rows, const int vectors, i16 *dot) {
  const bool halves = bits == 8;
  const int planes = halves ? 2 : 8 / bits, n_sums = rows * vectors;
  const int64_t fold = halves ? CODES_FOLD : CODES_FOLD / planes;
  const uint32_t mask = bits == 2 ? UINT32_C(0x03030303) : UINT32_C(0x0f0f0f0f);
  CPU_UNROLL(8)
  for (int i = 0; i < n_sums; i++) {
    dot[i] = i16_set(0);
  }
  for (int64_t from = 0; from < n_words; from += fold) {
    const int64_t to = n_words - from < fold ? n_words : from + fold;
    p16 pairs[CODES_SUMS_MOST][2];
    CPU_UNROLL(8)
    for (int i = 0; i < n_sums; i++) {
      pairs[i][0] = pairs[i][1] = p16_zero();
    }
    for (int64_t w = from; w < to; ++w) {
      v16 word[PANEL_VECTORS];
      CPU_UNROLL(4)
      for (int v = 0; v < vectors; v++) {
        word[v] = v16_load(words + w * CPU_PANEL + v * 16);
      }
      CPU_UNROLL(4)
      for (int s = 0; s < planes; s++) {
        const int64_t at = halves ? w * 4 : (w * planes + s) * 4;
        CPU_UNROLL(8)
        for (int i = 0; i < n_sums; i++) {
          const int r = i / vectors, v = i % vectors;
          const v16 codes = planes == 1 ? word[v] : v16_and_bits(word[v], mask);
          int32_t four;
          memcpy(&four, x[r] + at, sizeof four);
          p16 *sum = &pairs[i][halves ? s : 0];
          *sum = p16_dot(*sum, codes, four);
        }
        const int again = planes > 1 ? vectors : 0;
        CPU_UNROLL(4)
        for (int v = 0; v < again; v++) {
          word[v] = bits == 2 ? v16_shift_bits(word[v], 2) : v16_shift_bits(word[v], 4);
        }
      }
    }
    CPU_UNROLL(8)
    for (int i = 0; i < n_sums; i++) {
      dot[i] = i16_add(dot[i], p16_fold(pairs[i][0], 1));
      if (halves)
        dot[i] = i16_add(dot[i], p16_fold(pairs[i][1], 16));
    }
  }
}

/* dot[rows][vectors] of so many vectors of columns over one block; bits, rows and vectors are
 * constants, of at most CODES_SUMS_MOST sums. x: the rows' bytes of the block */
CPU_INLINE void codes_dots(const float *words, int64_t n_words, const int8_t *const *x,
                           const int bits, const int rows, const int vectors, i16 *dot) {
  if (P16_IS_WHOLE)
    codes_dots_whole(words, n_words, x, bits, rows, vectors, dot);
  else
    codes_dots_folded(words, n_words, x, bits, rows, vectors, dot);
}

/* One row is as fast as memory is read, and that is slow where it is read out of order: the head of
 * a block, which is used behind its words, is fetched before them. Far ahead, one line in four is
 * fetched: what lies between is left to the hardware, which every line would keep from it. */
CPU_INLINE void codes_fetch_block(const codes_place *place, int64_t n_words) {
  enum { AHEAD = 8192, LINE = 64 };
  const char *end = place->words + n_words * CPU_PANEL * 4;
  for (const char *at = place->block; at < place->words; at += LINE)
    v16_prefetch_l1((const float *)(const void *)at);
  for (const char *at = place->block; at < end; at += 4 * LINE)
    v16_prefetch_l2(at + AHEAD);
}

/* sum[rows][64] += one block, so many vectors of columns at a time. */
CPU_INLINE void codes_int8_block(const cpu_codes *form, const codes_place *place,
                                 const codes_row_head *const *head, const int8_t *const *x,
                                 float *sum, const int bits, const int rows, const int vectors) {
  const char *zeros = place->block + codes_scale_bytes(form);
  const int64_t per_word = 32 / bits, n_words = (place->steps + per_word - 1) / per_word;
  if (rows == 1)
    codes_fetch_block(place, n_words);
  for (int64_t first = 0; first < CPU_PANEL; first += 16 * vectors) {
    i16 dot[CODES_SUMS_MOST];
    codes_dots((const float *)(const void *)place->words + first, n_words, x, bits, rows, vectors,
               dot);
    CPU_UNROLL(4)
    for (int v = 0; v < vectors; v++) {
      const int64_t column = first + v * 16;
      const v16 scale = codes_number(form, place->block, column);
      v16 zero = v16_set((float)form->zero);
      if (form->zeros == CPU_ZEROS_BYTES)
        zero = v16_load_u8((const uint8_t *)zeros + column);
      else if (form->zeros == CPU_ZEROS_FLOATS)
        zero = codes_number(form, zeros, column);
      CPU_UNROLL(4)
      for (int r = 0; r < rows; r++) {
        float *to = sum + r * CPU_PANEL + column;
        const v16 exact = i16_to_float(dot[r * vectors + v]);
        const v16 whole = v16_fma(v16_neg(zero), v16_set(head[r]->sum), exact);
        const v16 both = v16_mul(v16_set(head[r]->scale), scale);
        v16_store(to, v16_fma(whole, both, v16_load(to)));
      }
    }
  }
}

#define CODES_INT8(bits, rows, vectors)                                                       \
  CPU_STATIC void codes_int8_##bits##_##rows(const cpu_codes *form, const codes_place *place, \
                                             const codes_row_head *const *head,               \
                                             const int8_t *const *x, float *sum) {            \
    codes_int8_block(form, place, head, x, sum, bits, rows, vectors);                         \
  }
CODES_INT8(2, 1, P16_VECTORS)
CODES_INT8(2, 4, CODES_INT8_VECTORS)
CODES_INT8(4, 1, P16_VECTORS)
CODES_INT8(4, 4, CODES_INT8_VECTORS)
CODES_INT8(8, 1, P16_VECTORS)
CODES_INT8(8, 4, CODES_INT8_VECTORS)

/* Up to CODES_INT8_ROWS rows of one panel, with their epilogue; fewer stand for themselves again
 * and again. */
CPU_STATIC void codes_int8_panel(const cpu_codes_product *p, int64_t panel, cpu_range rows) {
  const cpu_codes *form = p->form;
  const int64_t count = rows.end - rows.begin, column = panel * CPU_PANEL;
  const int64_t columns = form->n - column < CPU_PANEL ? form->n - column : CPU_PANEL;
  const char *codes = (const char *)p->packed + panel * codes_panel_bytes(form);
  const codes_row_head *head[CODES_INT8_ROWS];
  const int8_t *x[CODES_INT8_ROWS];
  float sum[CODES_INT8_ROWS * CPU_PANEL];
  memset(sum, 0, sizeof sum);
  for (int64_t r = 0; r < CODES_INT8_ROWS; ++r) {
    const int64_t row = rows.begin + (r < count ? r : 0);
    const char *from = (const char *)p->rounded + row * codes_row_bytes(form);
    head[r] = (const codes_row_head *)(const void *)from;
    x[r] = (const int8_t *)from + codes_row_heads(form);
  }
  for (int64_t k = 0; k < form->k;) {
    const codes_place place = codes_place_of(form, codes, k, form->k);
    const bool one = count == 1;
    if (form->bits == 2)
      (one ? codes_int8_2_1 : codes_int8_2_4)(form, &place, head, x, sum);
    else if (form->bits == 4)
      (one ? codes_int8_4_1 : codes_int8_4_4)(form, &place, head, x, sum);
    else
      (one ? codes_int8_8_1 : codes_int8_8_4)(form, &place, head, x, sum);
    const int64_t per_word = 32 / (int64_t)form->bits;
    for (int64_t r = 0; r < CODES_INT8_ROWS; ++r) {
      x[r] += (place.steps + per_word - 1) / per_word * per_word;
      ++head[r];
    }
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
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    for (int64_t i = rows.begin; i < rows.end; i += CODES_INT8_ROWS) {
      const int64_t left = rows.end - i;
      codes_int8_panel(p, j,
                       (cpu_range){i, left < CODES_INT8_ROWS ? rows.end : i + CODES_INT8_ROWS});
    }
  }
}

/* ---- integers by integers ---- */

/* What a column adds: c = dot + base - zero * (the sum of a row). Of columns that there are. */
CPU_STATIC void codes_integer_terms(const cpu_codes_integer_args *g, const int32_t *code_sums,
                                    int64_t first, int64_t columns, uint32_t *base,
                                    uint32_t *zero) {
  const uint32_t above = (uint32_t)((g->a_signed ? 0 : 128) - g->a_zero);
  for (int64_t u = 0; u < columns; ++u) {
    const int64_t z = g->b_zero_each ? first + u : 0;
    const int32_t of = g->b_zeros == NULL  ? 0
                       : g->b_zeros_signed ? ((const int8_t *)g->b_zeros)[z]
                                           : ((const uint8_t *)g->b_zeros)[z];
    base[u] = above * (uint32_t)code_sums[u];
    zero[u] = (uint32_t)(g->b_base + of);
  }
}

/* Sums of a vector of columns as numbers times their scales. */
CPU_STATIC void codes_integer_scale(const cpu_codes_integer_args *g, const uint32_t *sums,
                                    int64_t first, int64_t columns, float *to) {
  const v16 scale =
      g->scale_each ? v16_load_part_or(g->scale + first, columns, 0.0f) : v16_set(g->scale[0]);
  const v16 sum = i16_to_float(i16_from_bits(v16_load((const float *)(const void *)sums)));
  const v16 number = v16_mul(sum, scale);
  if (columns < 16)
    v16_store_part(to, columns, number);
  else
    v16_store(to, number);
}

/* Rows of a vector of columns: c[r][columns] from exact sums. base, zero: of the columns. */
CPU_STATIC void codes_integer_write(const cpu_codes_integer_args *g, const uint32_t *base,
                                    const uint32_t *zero, int64_t first, cpu_range rows,
                                    const int8_t *const *x, const i16 *dot) {
  const int64_t left = g->form->n - first, columns = left < 16 ? left : 16;
  const uint32_t above = (uint32_t)((g->a_signed ? 0 : 128) - g->a_zero);
  uint32_t out[16];
  for (int64_t r = 0; r < rows.end - rows.begin; ++r) {
    int32_t sum;
    memcpy(&sum, x[r] - CPU_ALIGN_BYTES, sizeof sum);
    v16_store((float *)(void *)out, i16_as_float(dot[r * CODES_INT8_VECTORS]));
    const uint32_t all = (uint32_t)sum + (uint32_t)g->form->k * above;
    for (int u = 0; u < 16; ++u)
      out[u] += base[u] - zero[u] * all;
    const int64_t at = (rows.begin + r) * g->form->n + first;
    if (g->c != NULL)
      memcpy(g->c + at, out, (size_t)columns * sizeof *out);
    else
      codes_integer_scale(g, out, first, columns, g->numbers + at);
  }
}

/* A panel that is multiplied. */
typedef struct codes_integer_panel {
  const float *words;
  int64_t first; /* its first column */
  uint32_t base[CPU_PANEL], zero[CPU_PANEL];
} codes_integer_panel;

/* Up to CODES_INTEGER_ROWS rows of CODES_INT8_VECTORS vectors of columns. */
CPU_STATIC void codes_integer_columns(const cpu_codes_integer_args *g, const codes_integer_panel *p,
                                      int64_t vector, cpu_range rows) {
  enum { V = CODES_INT8_VECTORS, MOST = CODES_INTEGER_ROWS };
  const cpu_codes *form = g->form;
  const int64_t row_bytes = codes_integer_row(form), count = rows.end - rows.begin;
  const int64_t n_words = (form->k + 3) / 4;
  const float *words = p->words + vector * 16;
  const int8_t *x[MOST];
  i16 dot[CODES_SUMS_MOST];
  for (int64_t r = 0; r < MOST; ++r) {
    const char *row = (const char *)g->workspace + (rows.begin + (r < count ? r : 0)) * row_bytes;
    x[r] = (const int8_t *)row + CPU_ALIGN_BYTES;
  }
  if (count > CODES_INT8_ROWS)
    codes_dots(words, n_words, x, 8, MOST, V, dot);
  else if (count > 1)
    codes_dots(words, n_words, x, 8, CODES_INT8_ROWS, V, dot);
  else
    codes_dots(words, n_words, x, 8, 1, V, dot);
  for (int64_t v = vector; v < vector + V && p->first + v * 16 < form->n; ++v) {
    codes_integer_write(g, p->base + v * 16, p->zero + v * 16, p->first + v * 16, rows, x,
                        dot + (v - vector));
  }
}

CPU_STATIC void codes_integer_share(const cpu_codes_integer_args *g, cpu_range panels,
                                    cpu_range rows) {
  codes_integer_panel p = {.words = NULL};
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    const char *block = (const char *)g->packed + j * codes_panel_bytes(g->form);
    p.first = j * CPU_PANEL;
    p.words = (const float *)(const void *)(block + codes_head_bytes(g->form));
    const int64_t left = g->form->n - p.first, columns = left < CPU_PANEL ? left : CPU_PANEL;
    codes_integer_terms(g, (const int32_t *)(const void *)block, p.first, columns, p.base, p.zero);
    for (int64_t i = rows.begin; i < rows.end; i += CODES_INTEGER_ROWS) {
      const int64_t end = rows.end - i < CODES_INTEGER_ROWS ? rows.end : i + CODES_INTEGER_ROWS;
      for (int64_t v = 0; v < PANEL_VECTORS && v * 16 < columns; v += CODES_INT8_VECTORS)
        codes_integer_columns(g, &p, v, (cpu_range){i, end});
      if (g->c == NULL && g->epilogue != NULL) {
        finish_tile(g->epilogue, i, p.first, end - i, columns,
                    g->numbers + i * g->form->n + p.first, g->form->n);
      }
    }
  }
}

#endif
