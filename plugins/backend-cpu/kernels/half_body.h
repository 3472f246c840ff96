/* SPDX-License-Identifier: Apache-2.0 */
/* Products with panels of fp16 or bf16, included once per instruction set after unpacked_body.h.
 *
 * One row reads every element once and makes it fp32 in registers (fp16 by the conversion
 * instructions, bf16 by a shift): its pace is that of the memory, which hands over half the bytes.
 * More rows share a panel's chain in a buffer. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_HALF_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_HALF_BODY_H_

#include "unpacked_body.h"

CPU_INLINE v16 half_load(const uint16_t *p, const int f16) {
  return f16 ? v16_load_f16(p) : v16_load_bf16(p);
}

CPU_STATIC void half_fill(const void *ctx, int64_t panel, cpu_range k, float *out) {
  const cpu_half_product *h = ctx;
  const uint16_t *from = (const uint16_t *)h->panels + (panel * h->product.k + k.begin) * CPU_PANEL;
  const int64_t n = (k.end - k.begin) * CPU_PANEL;
  if (h->dtype == CPU_F16) {
    for (int64_t i = 0; i < n; i += 16)
      v16_store(out + i, half_load(from + i, 1));
  } else {
    for (int64_t i = 0; i < n; i += 16)
      v16_store(out + i, half_load(from + i, 0));
  }
}

/* sum[64] of one row and panel; f16 is a constant. */
CPU_INLINE void half_row_sums(const float *a, const uint16_t *b, int64_t steps, float *out,
                              const int f16) {
  for (int64_t k = 0; k < steps; k += CPU_CHAIN) {
    const int64_t end = steps - k < CPU_CHAIN ? steps : k + CPU_CHAIN;
    v16 sum[PANEL_VECTORS];
    CPU_UNROLL(4)
    for (int v = 0; v < PANEL_VECTORS; v++) {
      sum[v] = v16_zero();
    }
    for (int64_t q = k; q < end; ++q, b += CPU_PANEL) {
      const v16 x = v16_set(a[q]);
      CPU_UNROLL(4)
      for (int v = 0; v < PANEL_VECTORS; v++) {
        sum[v] = v16_fma(x, half_load(b + 16 * v, f16), sum[v]);
      }
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
