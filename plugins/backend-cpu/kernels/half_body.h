/* SPDX-License-Identifier: Apache-2.0 */
/* Products with panels of fp16 or bf16, included once per instruction set after unpacked_body.h.
 *
 * One row reads every element once and makes it fp32 in registers (fp16 by the conversion
 * instructions, bf16 by its place): its pace is that of the memory, which hands over half the
 * bytes. More rows share a panel's chain in a buffer. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_HALF_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_HALF_BODY_H_

#include "unpacked_body.h"

/* Two steps of 64 columns, of bf16 side by side; f16 is a constant. */
CPU_INLINE void half_load(const uint16_t *p, const int f16, v16 (*out)[PANEL_VECTORS]) {
  CPU_UNROLL(4)
  for (int v = 0; v < PANEL_VECTORS; v++) {
    if (f16) {
      out[0][v] = v16_load_f16(p + 16 * v);
      out[1][v] = v16_load_f16(p + CPU_PANEL + 16 * v);
    } else {
      const v16 pairs = v16_load((const float *)(const void *)(p + 32 * v));
      out[0][v] = v16_low_bf16(pairs);
      out[1][v] = v16_and_bits(pairs, UINT32_C(0xffff0000));
    }
  }
}

/* The last step of an odd number of them. */
CPU_INLINE void half_load_last(const uint16_t *p, const int f16, v16 *out) {
  CPU_UNROLL(4)
  for (int v = 0; v < PANEL_VECTORS; v++) {
    out[v] = f16 ? v16_load_f16(p + 16 * v) : v16_load_bf16(p + 16 * v);
  }
}

/* out[steps][64]; f16 is a constant. */
CPU_INLINE void half_widen(const uint16_t *from, int64_t steps, float *out, const int f16) {
  v16 two[2][PANEL_VECTORS];
  for (; steps > 1; steps -= 2, from += 2 * CPU_PANEL, out += 2 * CPU_PANEL) {
    half_load(from, f16, two);
    CPU_UNROLL(8)
    for (int i = 0; i < 2 * PANEL_VECTORS; i++) {
      v16_store(out + 16 * i, two[i / PANEL_VECTORS][i % PANEL_VECTORS]);
    }
  }
  if (steps == 0)
    return;
  half_load_last(from, f16, two[0]);
  for (int v = 0; v < PANEL_VECTORS; ++v)
    v16_store(out + 16 * v, two[0][v]);
}

CPU_STATIC void half_fill(const void *ctx, int64_t panel, cpu_range k, float *out) {
  const cpu_half_product *h = ctx;
  const uint16_t *from = (const uint16_t *)h->panels + (panel * h->product.k + k.begin) * CPU_PANEL;
  if (h->dtype == CPU_F16)
    half_widen(from, k.end - k.begin, out, 1);
  else
    half_widen(from, k.end - k.begin, out, 0);
}

/* sum[64] of one row and panel; f16 is a constant. */
CPU_INLINE void half_row_sums(const float *a, const uint16_t *b, int64_t steps, float *out,
                              const int f16) {
  for (int64_t k = 0; k < steps; k += CPU_CHAIN) {
    const int64_t end = steps - k < CPU_CHAIN ? steps : k + CPU_CHAIN;
    v16 sum[PANEL_VECTORS], w[2][PANEL_VECTORS];
    CPU_UNROLL(4)
    for (int v = 0; v < PANEL_VECTORS; v++) {
      sum[v] = v16_zero();
    }
    int64_t q = k;
    for (; q + 1 < end; q += 2, b += 2 * CPU_PANEL) {
      const v16 x = v16_set(a[q]), y = v16_set(a[q + 1]);
      half_load(b, f16, w);
      CPU_UNROLL(4)
      for (int v = 0; v < PANEL_VECTORS; v++) {
        sum[v] = v16_fma(y, w[1][v], v16_fma(x, w[0][v], sum[v]));
      }
    }
    if (q < end) {
      half_load_last(b, f16, w[0]);
      CPU_UNROLL(4)
      for (int v = 0; v < PANEL_VECTORS; v++) {
        sum[v] = v16_fma(v16_set(a[q]), w[0][v], sum[v]);
      }
      b += CPU_PANEL;
    }
    CPU_UNROLL(4)
    for (int v = 0; v < PANEL_VECTORS; v++) {
      v16_store(out + 16 * v, k == 0 ? sum[v] : v16_add(v16_load(out + 16 * v), sum[v]));
    }
  }
}

CPU_STATIC void half_row_f16(const float *a, const uint16_t *b, int64_t steps, float *out) {
  half_row_sums(a, b, steps, out, 1);
}

CPU_STATIC void half_row_bf16(const float *a, const uint16_t *b, int64_t steps, float *out) {
  half_row_sums(a, b, steps, out, 0);
}

/* One row of one panel, with its epilogue. */
CPU_STATIC void half_row_panel(const cpu_half_product *h, int64_t panel, int64_t row) {
  const cpu_product *p = &h->product;
  const uint16_t *b = (const uint16_t *)h->panels + panel * CPU_PANEL * p->k;
  const float *a = p->a + row * p->a_stride;
  const int64_t column = panel * CPU_PANEL;
  const int64_t columns = p->n - column < CPU_PANEL ? p->n - column : CPU_PANEL;
  float sum[CPU_PANEL];
  (h->dtype == CPU_F16 ? half_row_f16 : half_row_bf16)(a, b, p->k, sum);
  if (p->epilogue != NULL)
    finish_tile(p->epilogue, row, column, 1, columns, sum, CPU_PANEL);
  memcpy(p->c + row * p->c_stride + column, sum, (size_t)columns * sizeof(float));
}

CPU_STATIC void half_share(const cpu_half_product *h, cpu_range panels, cpu_range rows,
                           float *buffer) {
  const cpu_product *p = &h->product;
  const unpacked_product unpacked = {.product = *p, .fill = half_fill, .ctx = h, .buffer = buffer};
  if (p->k == 0) {
    product_of_nothing(p, panels, rows);
    return;
  }
  for (int64_t i = rows.begin; i < rows.end; i += ROW_BLOCK) {
    const cpu_range block = {i, rows.end - i < ROW_BLOCK ? rows.end : i + ROW_BLOCK};
    if (block.end - i > 1) {
      unpacked_row_block(&unpacked, panels, block);
      continue;
    }
    for (int64_t j = panels.begin; j < panels.end; ++j)
      half_row_panel(h, j, i);
  }
}

#endif
