/* SPDX-License-Identifier: Apache-2.0 */
/* Where codes, scales and zeros lie in a packed matrix: what codes.c (packing) and codes_body.h
 * (products) share.
 *
 *   panel: block, block ...     of 64 columns, zero beyond N
 *   block: scales [64] (without: sums of the codes, int32), zeros [64] where they differ, words
 * [ceil(steps * bits / 32)][64] word:  32 / bits consecutive codes of a column, the first in the
 * lowest bits */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CODES_PLAN_H_
#define OPIPE_BACKEND_CPU_KERNELS_CODES_PLAN_H_

#include "codes.h"

static inline int64_t codes_scale_bytes(const cpu_codes *form) {
  return CPU_PANEL * (form->scale == CPU_F32 ? 4 : 2);
}

static inline int64_t codes_head_bytes(const cpu_codes *form) {
  const int64_t scales = codes_scale_bytes(form);
  return scales + (form->zeros == CPU_ZEROS_ONE     ? 0
                   : form->zeros == CPU_ZEROS_BYTES ? CPU_PANEL
                                                    : scales);
}

/* Bytes of the words of `steps` codes a column. */
static inline int64_t codes_word_bytes(const cpu_codes *form, int64_t steps) {
  const int64_t per_word = 32 / (int64_t)form->bits;
  return (steps + per_word - 1) / per_word * CPU_PANEL * 4;
}

static inline int64_t codes_block_bytes(const cpu_codes *form) {
  return codes_head_bytes(form) + codes_word_bytes(form, form->block);
}

static inline int64_t codes_panel_bytes(const cpu_codes *form) {
  const int64_t whole = form->k / form->block, rest = form->k % form->block;
  return whole * codes_block_bytes(form) +
         (rest == 0 ? 0 : codes_head_bytes(form) + codes_word_bytes(form, rest));
}

/* ---- rows of A rounded to 8 bits: heads [blocks], then bytes, a block's behind the other's ----
 */

enum { CODES_INT8_BLOCK = 256 }; /* largest block: its sums stay below 2^24 */

typedef struct codes_row_head {
  float scale, sum; /* sum: of the block's bytes */
} codes_row_head;

static inline int64_t codes_row_heads(const cpu_codes *form) { /* bytes of them, aligned */
  const int64_t blocks = form->k / form->block + (form->k % form->block != 0);
  const int64_t bytes = blocks * (int64_t)sizeof(codes_row_head);
  return (bytes + CPU_ALIGN_BYTES - 1) / CPU_ALIGN_BYTES * CPU_ALIGN_BYTES;
}

static inline int64_t codes_row_bytes(const cpu_codes *form) {
  return codes_row_heads(form) + (form->k + CPU_ALIGN_BYTES) / CPU_ALIGN_BYTES * CPU_ALIGN_BYTES;
}

/* cpu_codes_integer_row */
static inline int64_t codes_integer_row(const cpu_codes *form) {
  return CPU_ALIGN_BYTES + (form->k + CPU_ALIGN_BYTES - 1) / CPU_ALIGN_BYTES * CPU_ALIGN_BYTES;
}

/* Codes that share a scale and follow each other. */
typedef struct codes_place {
  const char *block, *words;
  int64_t steps;
} codes_place;

/* The codes from step `at` on, as many as one block has before `end`. */
static inline codes_place codes_place_of(const cpu_codes *form, const char *panel, int64_t at,
                                         int64_t end) {
  const int64_t block = at / form->block, within = at % form->block;
  const int64_t left = form->block - within;
  codes_place place = {.block = panel + block * codes_block_bytes(form)};
  place.words = place.block + codes_head_bytes(form) + codes_word_bytes(form, within);
  place.steps = left < end - at ? left : end - at;
  return place;
}

#endif
