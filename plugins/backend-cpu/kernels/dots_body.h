/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 by bf16 in the order of dots.h, included once per kind. The includer defines
 *
 *   DOTS_ROWS                          rows that are multiplied at once
 *   dots_begin(), dots_end()           before and after a thread's share
 *   dots_chain(a, b, steps, rows, sum) sum[rows][64] = a[rows][CPU_CHAIN] b[CPU_CHAIN / 2][64][2]
 *                                      over `steps` steps, a multiple of CPU_DOTS_STEPS; rows of a
 *                                      up to DOTS_ROWS may be read, and of sum written
 *
 * A block of rows is rounded to bf16 chain by chain; a panel's chain is paired, two steps of a
 * column side by side, and serves all rows of the block. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_DOTS_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_DOTS_BODY_H_

#include "dots.h"
#include "half.h"
#include "matmul_body.h"

enum {
  DOTS_ROOM = 64, /* rows of CPU_CHAIN steps: with a panel's chain they fill the buffer */
  DOTS_BLOCK = DOTS_ROOM / DOTS_ROWS * DOTS_ROWS
};

CPU_STATIC void dots_begin(void);
CPU_STATIC void dots_end(void);
CPU_STATIC void dots_chain(const uint16_t *a, const uint16_t *b, int64_t steps, int64_t rows,
                           float *sum);

CPU_INLINE int64_t dots_padded(int64_t steps) {
  return (steps + CPU_DOTS_STEPS - 1) / CPU_DOTS_STEPS * CPU_DOTS_STEPS;
}

/* out[rows][CPU_CHAIN] = steps k of rows of A in bf16, zeros behind them and in rows up to the next
 * multiple of DOTS_ROWS. */
CPU_STATIC void dots_round_rows(const cpu_product *p, cpu_range rows, cpu_range k, uint16_t *out) {
  const int64_t steps = k.end - k.begin, count = rows.end - rows.begin;
  const int64_t all = (count + DOTS_ROWS - 1) / DOTS_ROWS * DOTS_ROWS;
  for (int64_t r = 0; r < all; ++r, out += CPU_CHAIN) {
    const float *a = p->a + (rows.begin + r) * p->a_stride + k.begin;
    const int64_t given = r < count ? steps : 0;
    int64_t i = 0;
    for (; i + 16 <= given; i += 16)
      v16_store_bf16(out + i, v16_load(a + i));
    for (; i < given; ++i)
      out[i] = cpu_f32_to_bf16(a[i]);
    for (; i < dots_padded(steps); ++i)
      out[i] = 0;
  }
}

/* out[steps / 2][64][2] = steps of a panel, from[steps][64]; zeros behind them. */
CPU_STATIC void dots_pair(const uint16_t *from, int64_t steps, uint16_t *out) {
  for (int64_t k = 0; k < dots_padded(steps); k += 2, out += 2 * CPU_PANEL) {
    if (k + 1 < steps) {
      const uint16_t *first = from + k * CPU_PANEL, *second = first + CPU_PANEL;
      for (int64_t u = 0; u < CPU_PANEL; ++u) {
        const uint32_t pair = first[u] | (uint32_t)second[u] << 16;
        memcpy(out + 2 * u, &pair, sizeof pair);
      }
    } else {
      for (int64_t u = 0; u < CPU_PANEL; ++u) {
        out[2 * u] = k < steps ? from[k * CPU_PANEL + u] : 0;
        out[2 * u + 1] = 0;
      }
    }
  }
}

/* Adds a chain of `rows` rows to C, in columns of a panel; `last`: with the epilogue. */
CPU_STATIC void dots_add(const cpu_product *p, int64_t panel, cpu_range rows, bool first, bool last,
                         float *sum) {
  const int64_t column = panel * CPU_PANEL, count = rows.end - rows.begin;
  const int64_t columns = p->n - column < CPU_PANEL ? p->n - column : CPU_PANEL;
  for (int64_t r = 0; r < count && !first; ++r) {
    const float *c = p->c + (rows.begin + r) * p->c_stride + column;
    for (int64_t u = 0; u < columns; ++u)
      sum[r * CPU_PANEL + u] = c[u] + sum[r * CPU_PANEL + u];
  }
  if (last && p->epilogue != NULL)
    finish_tile(p->epilogue, rows.begin, column, count, columns, sum, CPU_PANEL);
  for (int64_t r = 0; r < count; ++r) {
    memcpy(p->c + (rows.begin + r) * p->c_stride + column, sum + r * CPU_PANEL,
           (size_t)columns * sizeof(float));
  }
}

/* One block of rows by all panels of the share; a, b: see dots_share. */
CPU_STATIC void dots_block(const cpu_half_product *h, cpu_range panels, cpu_range rows, uint16_t *a,
                           uint16_t *b) {
  const cpu_product *p = &h->product;
  _Alignas(CPU_ALIGN_BYTES) float sum[DOTS_ROWS * CPU_PANEL];
  for (int64_t k = 0; k < p->k; k += CPU_CHAIN) {
    const int64_t steps = p->k - k < CPU_CHAIN ? p->k - k : CPU_CHAIN;
    dots_round_rows(p, rows, (cpu_range){k, k + steps}, a);
    for (int64_t j = panels.begin; j < panels.end; ++j) {
      dots_pair((const uint16_t *)h->panels + (j * p->k + k) * CPU_PANEL, steps, b);
      for (int64_t r = rows.begin; r < rows.end; r += DOTS_ROWS) {
        const int64_t end = rows.end - r < DOTS_ROWS ? rows.end : r + DOTS_ROWS;
        dots_chain(a + (r - rows.begin) * CPU_CHAIN, b, dots_padded(steps), end - r, sum);
        dots_add(p, j, (cpu_range){r, end}, k == 0, k + steps == p->k, sum);
      }
    }
  }
}

/* buffer: CPU_CHAIN steps of a panel in fp32, which are as many bytes as a[DOTS_ROOM][CPU_CHAIN]
 * and b[CPU_CHAIN / 2][64][2] together. */
CPU_STATIC void dots_share(const cpu_half_product *h, cpu_range panels, cpu_range rows,
                           float *buffer) {
  _Static_assert(DOTS_ROOM * 2 + CPU_PANEL * 2 == CPU_PANEL * sizeof(float), "fills the buffer");
  uint16_t *a = (uint16_t *)(void *)buffer, *b = a + DOTS_ROOM * CPU_CHAIN;
  if (h->product.k == 0) {
    product_of_nothing(&h->product, panels, rows);
    return;
  }
  dots_begin();
  for (int64_t i = rows.begin; i < rows.end; i += DOTS_BLOCK) {
    const cpu_range block = {i, rows.end - i < DOTS_BLOCK ? rows.end : i + DOTS_BLOCK};
    dots_block(h, panels, block, a, b);
  }
  dots_end();
}

#endif
