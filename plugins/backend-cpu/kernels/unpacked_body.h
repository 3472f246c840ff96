/* SPDX-License-Identifier: Apache-2.0 */
/* Products with panels that are stored in fewer bits, several rows at a time: a panel's chain
 * becomes fp32 in a buffer, and all rows of a block multiply by it. Included once per instruction
 * set after matmul_body.h, whose order of additions this keeps. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_UNPACKED_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_UNPACKED_BODY_H_

#include "matmul_body.h"

typedef struct unpacked_product {
  cpu_product product; /* its panels are not read */
  /* out[steps][64] = steps `k` of a panel; both ends are multiples of CPU_CHAIN, or the end is K */
  void (*fill)(const void *ctx, int64_t panel, cpu_range k, float *out);
  const void *ctx;
  float *buffer; /* CPU_CHAIN steps of a panel */
} unpacked_product;

/* One block of rows by all panels of the share. */
CPU_STATIC void unpacked_row_block(const unpacked_product *u, cpu_range panels, cpu_range rows) {
  const cpu_product *p = &u->product;
  const int64_t count = rows.end - rows.begin;
  const int64_t blocks = count <= MOST_ROWS ? 1 : (count + TILE_ROWS - 1) / TILE_ROWS;
  for (int64_t deep = 0; deep < p->k; deep += K_BLOCK) {
    const int64_t deep_end = p->k - deep < K_BLOCK ? p->k : deep + K_BLOCK;
    for (int64_t j = panels.begin; j < panels.end; ++j) {
      for (int64_t k = deep; k < deep_end; k += CPU_CHAIN) {
        const cpu_range depth = {k, deep_end - k < CPU_CHAIN ? deep_end : k + CPU_CHAIN};
        int64_t row = rows.begin;
        u->fill(u->ctx, j, depth, u->buffer);
        for (int64_t i = 0; i < blocks; ++i) {
          const int64_t height = (rows.end - row + blocks - i - 1) / (blocks - i);
          panel_tile(p, u->buffer, j, row, height, depth, NULL);
          row += height;
        }
      }
    }
  }
}

#endif
