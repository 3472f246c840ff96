/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of products of packed codes with bytes over one block, included by codes_int8_body.h.
 *
 * The codes at one place of a word's four bytes ("plane") are multiplied by four bytes of A at
 * once. Where pairs of products are summed in 16 bits, codes of 8 bits are taken as two planes of
 * 4, so that none overflows: 2 * 15 * 128 * CODES_FOLD < 2^15. All sums within a block are exact
 * integers below 2^24: they have the same bits however they are taken. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CODES_DOTS_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_CODES_DOTS_BODY_H_

#include "codes_body.h"

enum { CODES_FOLD = 8, CODES_SUMS_MOST = 16 };

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
      if (rows > 1) /* memory alone sets the pace of one */
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

/* pairs[rows][vectors] += the codes of so many words times their bytes; of 8 bits only the lower or
 * the `high` 4. */
CPU_INLINE void codes_pairs(const float *words, int64_t n_words, const int8_t *const *x,
                            const int bits, const int rows, const int vectors, const int high,
                            p16 *pairs) {
  const int planes = bits == 8 ? 1 : 8 / bits;
  const uint32_t mask = bits == 2 ? UINT32_C(0x03030303) : UINT32_C(0x0f0f0f0f);
  CPU_UNROLL(4)
  for (int64_t i = 0; i < n_words; i++) {
    v16 word[PANEL_VECTORS], codes[PANEL_VECTORS];
    CPU_UNROLL(4)
    for (int v = 0; v < vectors; v++) {
      word[v] = v16_load(words + i * CPU_PANEL + v * 16);
      word[v] = high ? v16_shift_bits(word[v], 4) : word[v];
    }
    CPU_UNROLL(4)
    for (int s = 0; s < planes; s++) {
      CPU_UNROLL(4)
      for (int v = 0; v < vectors; v++) {
        codes[v] = v16_and_bits(word[v], mask);
        word[v] = bits == 2 ? v16_shift_bits(word[v], 2) : v16_shift_bits(word[v], 4);
      }
      CPU_UNROLL(8)
      for (int r = 0; r < rows; r++) {
        int32_t four;
        memcpy(&four, x[r] + (i * planes + s) * 4, sizeof four);
        CPU_UNROLL(4)
        for (int v = 0; v < vectors; v++) {
          pairs[r * vectors + v] = p16_dot(pairs[r * vectors + v], codes[v], four);
        }
      }
    }
  }
}

/* dot[] = the sums of words that 16 bits hold. Codes of 8 bits are read twice: two sums each would
 * not fit the registers. */
CPU_INLINE void codes_dots_once(const float *words, int64_t n_words, const int8_t *const *x,
                                const int bits, const int rows, const int vectors, i16 *dot) {
  const int n_sums = rows * vectors, parts = bits == 8 ? 2 : 1;
  CPU_UNROLL(16)
  for (int i = 0; i < n_sums; i++) {
    dot[i] = i16_set(0);
  }
  CPU_UNROLL(2)
  for (int high = 0; high < parts; high++) {
    p16 pairs[CODES_SUMS_MOST];
    CPU_UNROLL(16)
    for (int i = 0; i < n_sums; i++) {
      pairs[i] = p16_zero();
    }
    codes_pairs(words, n_words, x, bits, rows, vectors, high, pairs);
    CPU_UNROLL(16)
    for (int i = 0; i < n_sums; i++) {
      dot[i] = i16_add(dot[i], p16_fold(pairs[i], high ? 16 : 1));
    }
  }
}

/* The same as codes_dots_whole where pairs are summed in 16 bits: so many words, and the sums are
 * taken out. Most matrices have blocks of just so many. */
CPU_INLINE void codes_dots_folded(const float *words, int64_t n_words, const int8_t *const *x,
                                  const int bits, const int rows, const int vectors, i16 *dot) {
  const int n_sums = rows * vectors, fold = bits == 8 ? CODES_FOLD : CODES_FOLD * bits / 8;
  if (n_words == fold) {
    codes_dots_once(words, fold, x, bits, rows, vectors, dot);
    return;
  }
  CPU_UNROLL(16)
  for (int i = 0; i < n_sums; i++) {
    dot[i] = i16_set(0);
  }
  for (int64_t from = 0; from < n_words; from += fold) {
    const int64_t count = n_words - from < fold ? n_words - from : fold;
    const int8_t *now[CODES_SUMS_MOST];
    i16 sum[CODES_SUMS_MOST];
    CPU_UNROLL(8)
    for (int r = 0; r < rows; r++) {
      now[r] = x[r] + from * (32 / bits);
    }
    codes_dots_once(words + from * CPU_PANEL, count, now, bits, rows, vectors, sum);
    CPU_UNROLL(16)
    for (int i = 0; i < n_sums; i++) {
      dot[i] = i16_add(dot[i], sum[i]);
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

#endif
