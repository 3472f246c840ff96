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

enum { CODES_FOLD = 8, CODES_INT8_ROWS = 4, CODES_INT8_SUMS = 8 };
enum { CODES_INT8_VECTORS = (P16_VECTORS + 1) / 2 }; /* of columns, that several rows take */

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

/* dot[rows][vectors] of so many vectors of columns over one block; bits, rows and vectors are
 * constants, of at most CODES_INT8_SUMS sums. x: the rows' bytes of the block */
CPU_INLINE void codes_dots(const float *words, int64_t n_words, const int8_t *const *x,
                           const int bits, const int rows, const int vectors, i16 *dot) {
  const bool halves = bits == 8 && !P16_IS_WHOLE;
  const int planes = halves ? 2 : 8 / bits, n_sums = rows * vectors;
  const int64_t fold = P16_IS_WHOLE ? n_words : halves ? CODES_FOLD : CODES_FOLD / planes;
  const uint32_t mask = bits == 2 ? UINT32_C(0x03030303) : UINT32_C(0x0f0f0f0f);
  CPU_UNROLL(8)
  for (int i = 0; i < n_sums; i++) {
    dot[i] = i16_set(0);
  }
  for (int64_t from = 0; from < n_words; from += fold) {
    const int64_t to = n_words - from < fold ? n_words : from + fold;
    p16 pairs[CODES_INT8_SUMS][2];
    CPU_UNROLL(8)
    for (int i = 0; i < n_sums; i++) {
      pairs[i][0] = pairs[i][1] = p16_zero();
    }
    for (int64_t w = from; w < to; ++w) {
      v16 word[CODES_INT8_SUMS];
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

/* sum[rows][64] += one block, so many vectors of columns at a time. */
CPU_INLINE void codes_int8_block(const cpu_codes *form, const codes_place *place,
                                 const codes_row_head *const *head, const int8_t *const *x,
                                 float *sum, const int bits, const int rows, const int vectors) {
  const char *zeros = place->block + codes_scale_bytes(form);
  const int64_t per_word = 32 / bits, n_words = (place->steps + per_word - 1) / per_word;
  for (int64_t first = 0; first < CPU_PANEL; first += 16 * vectors) {
    i16 dot[CODES_INT8_SUMS];
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

/* Up to CODES_INT8_ROWS rows of a vector of columns: c[r][columns] from exact sums. */
CPU_STATIC void codes_integer_write(const cpu_codes_integer_args *g, const int32_t *code_sums,
                                    int64_t first, cpu_range rows, const int8_t *const *x,
                                    const i16 *dot, int64_t dot_stride) {
  const int64_t left = g->form->n - first, columns = left < 16 ? left : 16;
  const uint32_t above = (uint32_t)((g->a_signed ? 0 : 128) - g->a_zero);
  uint32_t base[16] = {0}, zero[16] = {0}, out[16];
  codes_integer_terms(g, code_sums, first, columns, base, zero);
  for (int64_t r = 0; r < rows.end - rows.begin; ++r) {
    int32_t sum;
    memcpy(&sum, x[r] - CPU_ALIGN_BYTES, sizeof sum);
    v16_store((float *)(void *)out, i16_as_float(dot[r * dot_stride]));
    const uint32_t all = (uint32_t)sum + (uint32_t)g->form->k * above;
    for (int u = 0; u < 16; ++u)
      out[u] += base[u] - zero[u] * all;
    const int64_t at = (rows.begin + r) * g->form->n + first;
    if (g->c != NULL)
      memcpy(g->c + at, out, (size_t)columns * sizeof *out);
    else
      codes_integer_scale(g, out, first, columns, g->numbers + at);
  }
  if (g->c == NULL && g->epilogue != NULL) {
    finish_tile(g->epilogue, rows.begin, first, rows.end - rows.begin, columns,
                g->numbers + rows.begin * g->form->n + first, g->form->n);
  }
}

/* Up to CODES_INT8_ROWS rows of CODES_INT8_VECTORS vectors of columns. */
CPU_STATIC void codes_integer_columns(const cpu_codes_integer_args *g, const char *block,
                                      int64_t panel, int64_t vector, cpu_range rows) {
  enum { V = CODES_INT8_VECTORS };
  const cpu_codes *form = g->form;
  const int64_t row_bytes = codes_integer_row(form), count = rows.end - rows.begin;
  const int32_t *code_sums = (const int32_t *)(const void *)block + vector * 16;
  const float *words = (const float *)(const void *)(block + codes_head_bytes(form)) + vector * 16;
  const int8_t *x[CODES_INT8_ROWS];
  i16 dot[CODES_INT8_SUMS];
  for (int64_t r = 0; r < CODES_INT8_ROWS; ++r) {
    const char *row = (const char *)g->workspace + (rows.begin + (r < count ? r : 0)) * row_bytes;
    x[r] = (const int8_t *)row + CPU_ALIGN_BYTES;
  }
  if (count == 1)
    codes_dots(words, (form->k + 3) / 4, x, 8, 1, V, dot);
  else
    codes_dots(words, (form->k + 3) / 4, x, 8, CODES_INT8_ROWS, V, dot);
  for (int64_t v = 0; v < V; ++v) {
    const int64_t first = panel * CPU_PANEL + (vector + v) * 16;
    if (first < form->n)
      codes_integer_write(g, code_sums + v * 16, first, rows, x, dot + v, V);
  }
}

CPU_STATIC void codes_integer_share(const cpu_codes_integer_args *g, cpu_range panels,
                                    cpu_range rows) {
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    const char *block = (const char *)g->packed + j * codes_panel_bytes(g->form);
    for (int64_t i = rows.begin; i < rows.end; i += CODES_INT8_ROWS) {
      const int64_t end = rows.end - i < CODES_INT8_ROWS ? rows.end : i + CODES_INT8_ROWS;
      for (int64_t v = 0; v < PANEL_VECTORS && j * CPU_PANEL + v * 16 < g->form->n;
           v += CODES_INT8_VECTORS)
        codes_integer_columns(g, block, j, v, (cpu_range){i, end});
    }
  }
}

#endif
