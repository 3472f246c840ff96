/* SPDX-License-Identifier: Apache-2.0 */
/* Products with packed codes, included once per instruction set after
 * unpacked_body.h.
 *
 * A 32-bit word of a panel holds 32 / bits consecutive codes of one column. The codes of its lower
 * 16 bits become numbers where they stand: with the exponent of 2^(23 - place), the bit at `place`
 * counts 1, so that and, or, subtract give code - zero exactly; the upper 16 bits are moved down
 * first. One multiplication by the scale follows, the only rounding. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CODES_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_CODES_BODY_H_

#include "codes_plan.h"
#include "unpacked_body.h"

enum {
  CODES_VECTORS = CPU_TILE_VECTORS == 4 ? 4 : 2, /* of a panel that one row takes at once */
  CODES_HALF = 8                                 /* most codes in 16 bits */
};

/* How the codes of a vector of columns become numbers, by place in 16 bits. */
typedef struct codes_block {
  v16 scale, zero;        /* zero: of CPU_ZEROS_FLOATS */
  v16 offset[CODES_HALF]; /* 2^(23 - place), plus the zero where that is an integer */
} codes_block;

CPU_INLINE v16 codes_number(const cpu_codes *form, const char *at, int64_t column) {
  const int64_t element = form->scale == CPU_F32 ? 4 : 2;
  const void *p = at + column * element;
  return form->scale == CPU_F32   ? v16_load(p)
         : form->scale == CPU_F16 ? v16_load_f16(p)
                                  : v16_load_bf16(p);
}

/* zeros: of the head of a block. */
CPU_INLINE v16 codes_zero(const cpu_codes *form, const char *zeros, int64_t column) {
  return form->zeros == CPU_ZEROS_ONE     ? v16_set((float)form->zero)
         : form->zeros == CPU_ZEROS_BYTES ? v16_load_u8((const uint8_t *)zeros + column)
                                          : codes_number(form, zeros, column);
}

CPU_INLINE float codes_one(const int place) { /* 2^(23 - place) */
  return (float)(1 << (23 - place));
}

CPU_INLINE void codes_block_load(const cpu_codes *form, const char *block, int64_t column,
                                 const int bits, const int floats, codes_block *out) {
  const char *zeros = block + codes_scale_bytes(form);
  const int n = 16 / bits;
  const v16 zero = codes_zero(form, zeros, column);
  out->scale = codes_number(form, block, column);
  out->zero = zero;
  CPU_UNROLL(8)
  for (int i = 0; i < n; i++) {
    out->offset[i] = v16_add(v16_set(codes_one(i * bits)), floats ? v16_zero() : zero);
  }
}

/* The weights at `place` of 16 bits; bits, place and floats are constants. */
CPU_INLINE v16 codes_weight(v16 half, const codes_block *b, const int bits, const int i,
                            const int floats) {
  const uint32_t mask = ((UINT32_C(1) << bits) - 1) << (i * bits);
  v16 code = v16_or(v16_and_bits(half, mask), v16_set(codes_one(i * bits)));
  v16 value = v16_sub(code, b->offset[i]);
  return v16_mul(floats ? v16_sub(value, b->zero) : value, b->scale);
}

/* ---- several rows: a panel's chain is unpacked, out[steps][64] ---- */

CPU_INLINE void codes_unpack_words(const cpu_codes *form, const char *block, const char *words,
                                   int64_t rows, float *out, const int bits, const int floats) {
  const int n = 16 / bits;
  for (int64_t column = 0; column < CPU_PANEL; column += 16) {
    codes_block b;
    codes_block_load(form, block, column, bits, floats, &b);
    const float *w = (const float *)(const void *)words + column;
    float *to = out + column;
    for (int64_t r = 0; r < rows; ++r, w += CPU_PANEL) {
      v16 half = v16_load(w);
      for (int h = 0; h < 2; ++h) {
        CPU_UNROLL(8)
        for (int i = 0; i < n; i++) {
          v16_store(to + i * CPU_PANEL, codes_weight(half, &b, bits, i, floats));
        }
        to += n * CPU_PANEL;
        half = v16_shift_bits(half, 16);
      }
    }
  }
}

#define CODES_BY_FORM(form, f, ...)                            \
  do {                                                         \
    const int floats_ = (form)->zeros == CPU_ZEROS_FLOATS;     \
    switch ((form)->bits) {                                    \
      case 2:                                                  \
        floats_ ? f##_2_1(__VA_ARGS__) : f##_2_0(__VA_ARGS__); \
        break;                                                 \
      case 4:                                                  \
        floats_ ? f##_4_1(__VA_ARGS__) : f##_4_0(__VA_ARGS__); \
        break;                                                 \
      default:                                                 \
        floats_ ? f##_8_1(__VA_ARGS__) : f##_8_0(__VA_ARGS__); \
        break;                                                 \
    }                                                          \
  } while (0)

#define CODES_UNPACK(bits, floats)                                                              \
  CPU_STATIC void codes_unpack_##bits##_##floats(const cpu_codes *form, const char *block,      \
                                                 const char *words, int64_t rows, float *out) { \
    codes_unpack_words(form, block, words, rows, out, bits, floats);                            \
  }
CODES_UNPACK(2, 0)
CODES_UNPACK(2, 1)
CODES_UNPACK(4, 0)
CODES_UNPACK(4, 1)
CODES_UNPACK(8, 0)
CODES_UNPACK(8, 1)

/* Steps [k.begin, k.end) of a panel; both are multiples of 16, or the end is K. */
CPU_STATIC void codes_unpack_panel(const cpu_codes *form, const char *panel, cpu_range k,
                                   float *out) {
  const int64_t per_word = 32 / (int64_t)form->bits;
  for (int64_t at = k.begin; at < k.end;) {
    const codes_place place = codes_place_of(form, panel, at, k.end);
    const int64_t rows = (place.steps + per_word - 1) / per_word;
    CODES_BY_FORM(form, codes_unpack, form, place.block, place.words, rows, out);
    out += place.steps * CPU_PANEL;
    at += place.steps;
  }
}

/* ---- one row ---- */

/* chain[64] goes on over the codes of one block, whole 16 bits. */
CPU_INLINE void codes_row_words(const cpu_codes *form, const codes_place *place, const float *a,
                                float *chain, const int bits, const int floats) {
  const int n = 16 / bits;
  const int64_t half_words = place->steps / n;
  for (int64_t column = 0; column < CPU_PANEL; column += 16 * CODES_VECTORS) {
    const float *w = (const float *)(const void *)place->words + column;
    const float *x = a;
    codes_block b[CODES_VECTORS];
    v16 sum[CODES_VECTORS], half[CODES_VECTORS];
    CPU_UNROLL(4)
    for (int v = 0; v < CODES_VECTORS; v++) {
      codes_block_load(form, place->block, column + 16 * v, bits, floats, &b[v]);
      sum[v] = v16_load(chain + column + 16 * v);
    }
    for (int64_t h = 0; h < half_words; ++h, x += n) {
      CPU_UNROLL(4)
      for (int v = 0; v < CODES_VECTORS; v++) {
        half[v] = v16_load(w + 16 * v);
        if (h % 2 != 0)
          half[v] = v16_shift_bits(half[v], 16);
      }
      CPU_UNROLL(8)
      for (int i = 0; i < n; i++) {
        const v16 y = v16_set(x[i]);
        CPU_UNROLL(4)
        for (int v = 0; v < CODES_VECTORS; v++) {
          sum[v] = v16_fma(y, codes_weight(half[v], &b[v], bits, i, floats), sum[v]);
        }
      }
      w += h % 2 != 0 ? CPU_PANEL : 0;
    }
    CPU_UNROLL(4)
    for (int v = 0; v < CODES_VECTORS; v++) {
      v16_store(chain + column + 16 * v, sum[v]);
    }
  }
}

#define CODES_ROW(bits, floats)                                                                \
  CPU_STATIC void codes_row_##bits##_##floats(const cpu_codes *form, const codes_place *place, \
                                              const float *a, float *chain) {                  \
    codes_row_words(form, place, a, chain, bits, floats);                                      \
  }
CODES_ROW(2, 0)
CODES_ROW(2, 1)
CODES_ROW(4, 0)
CODES_ROW(4, 1)
CODES_ROW(8, 0)
CODES_ROW(8, 1)

/* The same over the last codes of K, fewer than 16 bits. */
CPU_STATIC void codes_row_rest(const cpu_codes *form, const codes_place *place, int64_t rest,
                               const float *a, float *chain) {
  float w[32 / 2 * CPU_PANEL];
  const int64_t per_word = 32 / (int64_t)form->bits, first = place->steps - rest;
  const char *words = place->words + codes_word_bytes(form, first - first % per_word);
  CODES_BY_FORM(form, codes_unpack, form, place->block, words, 1, w);
  for (int64_t i = first; i < place->steps; ++i) {
    for (int v = 0; v < PANEL_VECTORS; ++v) {
      float *sum = chain + 16 * v;
      const v16 weight = v16_load(w + i % per_word * CPU_PANEL + 16 * v);
      v16_store(sum, v16_fma(v16_set(a[i]), weight, v16_load(sum)));
    }
  }
}

/* One row of one panel, with its epilogue. */
CPU_STATIC void codes_row_panel(const cpu_codes_product *p, int64_t panel, int64_t row) {
  const cpu_codes *form = p->form;
  const char *codes = (const char *)p->packed + panel * codes_panel_bytes(form);
  const int64_t column = panel * CPU_PANEL;
  const int64_t columns = form->n - column < CPU_PANEL ? form->n - column : CPU_PANEL;
  float sum[CPU_PANEL], chain[CPU_PANEL];
  float *out = p->c + row * p->c_stride + column;
  memset(sum, 0, sizeof sum);
  for (int64_t k = 0; k < form->k; k += CPU_CHAIN) {
    const int64_t end = form->k - k < CPU_CHAIN ? form->k : k + CPU_CHAIN;
    memset(chain, 0, sizeof chain);
    for (int64_t at = k; at < end;) {
      const codes_place place = codes_place_of(form, codes, at, end);
      const float *a = p->a + row * p->a_stride + at;
      const int64_t rest = place.steps % (16 / (int64_t)form->bits);
      CODES_BY_FORM(form, codes_row, form, &place, a, chain);
      if (rest != 0)
        codes_row_rest(form, &place, rest, a, chain);
      at += place.steps;
    }
    for (int v = 0; v < PANEL_VECTORS; ++v) {
      const v16 so_far = v16_load(chain + 16 * v);
      v16_store(sum + 16 * v, k == 0 ? so_far : v16_add(v16_load(sum + 16 * v), so_far));
    }
  }
  if (p->epilogue != NULL)
    finish_tile(p->epilogue, row, column, 1, columns, sum, CPU_PANEL);
  memcpy(out, sum, (size_t)columns * sizeof(float));
}

/* ---- a share ---- */

CPU_STATIC void codes_fill(const void *ctx, int64_t panel, cpu_range k, float *out) {
  const cpu_codes_product *p = ctx;
  codes_unpack_panel(p->form, (const char *)p->packed + panel * codes_panel_bytes(p->form), k, out);
}

CPU_STATIC void codes_share(const cpu_codes_product *p, cpu_range panels, cpu_range rows,
                            float *buffer) {
  if (p->form->k == 0) {
    const cpu_product nothing = {
        .n = p->form->n, .c = p->c, .c_stride = p->c_stride, .epilogue = p->epilogue};
    product_of_nothing(&nothing, panels, rows);
    return;
  }
  const unpacked_product unpacked = {.product = {.n = p->form->n,
                                                 .k = p->form->k,
                                                 .a = p->a,
                                                 .a_stride = p->a_stride,
                                                 .c = p->c,
                                                 .c_stride = p->c_stride,
                                                 .epilogue = p->epilogue},
                                     .fill = codes_fill,
                                     .ctx = p,
                                     .buffer = buffer};
  for (int64_t i = rows.begin; i < rows.end; i += ROW_BLOCK) {
    const cpu_range block = {i, rows.end - i < ROW_BLOCK ? rows.end : i + ROW_BLOCK};
    if (block.end - i > 1) {
      unpacked_row_block(&unpacked, panels, block);
      continue;
    }
    for (int64_t j = panels.begin; j < panels.end; ++j)
      codes_row_panel(p, j, i);
  }
}

#endif
