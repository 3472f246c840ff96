/* SPDX-License-Identifier: Apache-2.0 */
/* One row of bytes by packed codes, included by codes_int8_body.h: as fast as memory is read.
 *
 * All columns of a panel are taken at once, word after word as memory has them, where there are
 * registers for it, and their sums stay there from block to block. Where four products are summed
 * in 32 bits, codes stay where they are in their bytes: those of every other plane are 2^bits times
 * as large, have a sum of their own, and it is moved down at the end of the block. If there are
 * four planes, the upper two are moved down once and added to the same two sums. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CODES_BYTE_ROW_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_CODES_BYTE_ROW_BODY_H_

#include "codes_dots_body.h"

/* dot[P16_VECTORS] = start + the sums of one block. x: the row's bytes of the block; bits is a
 * constant */
CPU_INLINE void codes_byte_row_whole(const float *words, int64_t n_words, const int8_t *x,
                                     const int bits, p16 start, i16 *dot) {
  const int planes = 8 / bits, sums = bits == 8 ? 1 : 2;
  const uint32_t mask = bits == 2 ? UINT32_C(0x03030303) : UINT32_C(0x0f0f0f0f);
  p16 sum[2][P16_VECTORS];
  CPU_UNROLL(4)
  for (int s = 0; s < sums; s++) {
    CPU_UNROLL(4)
    for (int v = 0; v < P16_VECTORS; v++) {
      sum[s][v] = s == 0 ? start : p16_zero();
    }
  }
  for (int64_t w = 0; w < n_words; ++w, words += CPU_PANEL, x += 4 * planes) {
    v16 word[P16_VECTORS];
    CPU_UNROLL(4)
    for (int v = 0; v < P16_VECTORS; v++) {
      word[v] = v16_load(words + v * 16);
    }
    CPU_UNROLL(4)
    for (int s = 0; s < planes; s++) {
      int32_t four;
      memcpy(&four, x + s * 4, sizeof four);
      CPU_UNROLL(4)
      for (int v = 0; v < P16_VECTORS; v++) {
        if (s == 2)
          word[v] = v16_shift_bits(word[v], 4);
        const v16 codes = planes == 1 ? word[v] : v16_and_bits(word[v], mask << (s % 2 * bits));
        sum[s % 2][v] = p16_dot(sum[s % 2][v], codes, four);
      }
    }
  }
  CPU_UNROLL(4)
  for (int v = 0; v < P16_VECTORS; v++) {
    dot[v] = p16_fold(sum[0][v], 1);
    CPU_UNROLL(4)
    for (int s = 1; s < sums; s++) {
      dot[v] = i16_add(dot[v], i16_shift(p16_fold(sum[s][v], 1), s * bits));
    }
  }
}

CPU_INLINE void codes_byte_row_dots(const float *words, int64_t n_words, const int8_t *x,
                                    const int bits, i16 start, i16 *dot) {
  if (P16_IS_WHOLE) {
    codes_byte_row_whole(words, n_words, x, bits, start, dot);
  } else {
    codes_dots_folded(words, n_words, &x, bits, 1, P16_VECTORS, dot);
    CPU_UNROLL(4)
    for (int v = 0; v < P16_VECTORS; v++) {
      dot[v] = i16_add(dot[v], start);
    }
  }
}

/* Processors with VNNI (Zen 4, Sapphire Rapids) fetch one line in four: what lies between is left
 * to the hardware, which every line would keep from it. Others (Zen 3) are late without every line:
 * twice as slow. */
CPU_INLINE void codes_byte_row_fetch(const codes_place *place, int64_t n_words) {
  enum { AHEAD = P16_IS_WHOLE ? 2048 : 4096, STEP = P16_IS_WHOLE ? 256 : 64 };
  const char *end = place->words + n_words * CPU_PANEL * 4;
  for (const char *at = place->block; at < end; at += STEP)
    v16_prefetch_l2(at + AHEAD);
}

/* sum[PANEL_VECTORS] += one block. The head of a block lies before its words, and is read before
 * them: memory that is read out of order is read slowly. One zero for all takes part in the exact
 * sums. */
CPU_INLINE void codes_byte_row_block(const cpu_codes *form, const codes_place *place,
                                     const codes_row_head *head, const int8_t *x, v16 *sum,
                                     const int bits) {
  const char *zeros = place->block + codes_scale_bytes(form);
  const int64_t per_word = 32 / bits, n_words = (place->steps + per_word - 1) / per_word;
  const bool one = form->zeros == CPU_ZEROS_ONE;
  const i16 start = i16_set(one ? -form->zero * (int32_t)head->sum : 0);
  codes_byte_row_fetch(place, n_words);
  CPU_UNROLL(4)
  for (int first = 0; first < PANEL_VECTORS; first += P16_VECTORS) {
    const float *words = (const float *)(const void *)place->words + first * 16;
    v16 scale[P16_VECTORS], zero[P16_VECTORS];
    i16 dot[P16_VECTORS];
    CPU_UNROLL(4)
    for (int v = 0; v < P16_VECTORS; v++) {
      const int64_t column = (first + v) * 16;
      scale[v] = v16_mul(v16_set(head->scale), codes_number(form, place->block, column));
      zero[v] = one ? v16_zero() : codes_zero(form, zeros, column);
    }
    codes_byte_row_dots(words, n_words, x, bits, start, dot);
    CPU_UNROLL(4)
    for (int v = 0; v < P16_VECTORS; v++) {
      const v16 exact = i16_to_float(dot[v]);
      const v16 whole = one ? exact : v16_fma(v16_neg(zero[v]), v16_set(head->sum), exact);
      sum[first + v] = v16_fma(whole, scale[v], sum[first + v]);
    }
  }
}

/* A row of one panel, with its epilogue; bits, scale and one_zero are constants. */
CPU_INLINE void codes_byte_row_panel(const cpu_codes_product *p, int64_t panel, int64_t row,
                                     const int bits, const cpu_dtype scale, const bool one_zero) {
  cpu_codes form = *p->form;
  form.scale = scale;
  if (one_zero)
    form.zeros = CPU_ZEROS_ONE;
  const int64_t column = panel * CPU_PANEL;
  const int64_t columns = form.n - column < CPU_PANEL ? form.n - column : CPU_PANEL;
  const char *from = (const char *)p->rounded + row * codes_row_bytes(&form);
  const codes_row_head *head = (const codes_row_head *)(const void *)from;
  const int8_t *x = (const int8_t *)from + codes_row_heads(&form);
  const char *block = (const char *)p->packed + panel * codes_panel_bytes(&form);
  const int64_t head_bytes = codes_head_bytes(&form), block_bytes = codes_block_bytes(&form);
  v16 sum[PANEL_VECTORS];
  float out[CPU_PANEL];
  CPU_UNROLL(4)
  for (int v = 0; v < PANEL_VECTORS; v++) {
    sum[v] = v16_zero();
  }
  for (int64_t k = 0; k < form.k; k += form.block, block += block_bytes, ++head) {
    const int64_t left = form.k - k;
    const codes_place place = {block, block + head_bytes, left < form.block ? left : form.block};
    codes_byte_row_block(&form, &place, head, x, sum, bits);
    x += place.steps; /* whole words but of the last */
  }
  CPU_UNROLL(4)
  for (int v = 0; v < PANEL_VECTORS; v++) {
    v16_store(out + v * 16, sum[v]);
  }
  if (p->epilogue != NULL)
    finish_tile(p->epilogue, row, column, 1, columns, out, CPU_PANEL);
  memcpy(p->c + row * p->c_stride + column, out, (size_t)columns * sizeof(float));
}

#define CODES_BYTE_ROW(bits, name, scale)                                                         \
  CPU_STATIC void codes_byte_row_##bits##_##name(const cpu_codes_product *p, int64_t panel,       \
                                                 int64_t row) {                                   \
    codes_byte_row_panel(p, panel, row, bits, scale, false);                                      \
  }                                                                                               \
  CPU_STATIC void codes_byte_row_##bits##_##name##_one(const cpu_codes_product *p, int64_t panel, \
                                                       int64_t row) {                             \
    codes_byte_row_panel(p, panel, row, bits, scale, true);                                       \
  }
#define CODES_BYTE_ROWS(bits)        \
  CODES_BYTE_ROW(bits, f32, CPU_F32) \
  CODES_BYTE_ROW(bits, f16, CPU_F16) \
  CODES_BYTE_ROW(bits, bf16, CPU_BF16)
CODES_BYTE_ROWS(2)
CODES_BYTE_ROWS(4)
CODES_BYTE_ROWS(8)

typedef void (*codes_byte_row)(const cpu_codes_product *p, int64_t panel, int64_t row);

#define CODES_BYTE_ROW_OF(bits)                                           \
  {                                                                       \
    {codes_byte_row_##bits##_f32, codes_byte_row_##bits##_f32_one},       \
        {codes_byte_row_##bits##_f16, codes_byte_row_##bits##_f16_one}, { \
      codes_byte_row_##bits##_bf16, codes_byte_row_##bits##_bf16_one      \
    }                                                                     \
  }

CPU_STATIC codes_byte_row codes_byte_row_of(const cpu_codes *form) {
  static const codes_byte_row rows[3][3][2] = {CODES_BYTE_ROW_OF(2), CODES_BYTE_ROW_OF(4),
                                               CODES_BYTE_ROW_OF(8)};
  const int bits = form->bits == 2 ? 0 : form->bits == 4 ? 1 : 2;
  const int scale = form->scale == CPU_F32 ? 0 : form->scale == CPU_F16 ? 1 : 2;
  return rows[bits][scale][form->zeros == CPU_ZEROS_ONE];
}

#endif
