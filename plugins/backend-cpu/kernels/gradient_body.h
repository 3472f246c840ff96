/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the packed product, included once per instruction set after matmul_body.h.
 *
 * dX: panels of W^T are made from the panels of W, a block of depth at a time, and multiplied like
 * any other. dW: X arrives transposed, so that its columns are the rows of a register tile; the
 * panels of dW are the tile's C, and the chain goes on from what they hold. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_GRADIENT_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_GRADIENT_BODY_H_

#include "matmul_body.h"
#include "pack_body.h"

/* out[n - depth.begin][64] = columns [column, column + columns) of W^T, for rows n in depth. */
CPU_STATIC void turn_panel(const float *panels, int64_t w_rows, int64_t column, int64_t columns,
                           cpu_range depth, float *out) {
  for (int64_t n = depth.begin; n < depth.end; n += CPU_PANEL) {
    const float *in = panels + (n / CPU_PANEL * w_rows + column) * CPU_PANEL;
    const int64_t count = depth.end - n < CPU_PANEL ? depth.end - n : CPU_PANEL;
    float *to = out + (n - depth.begin) * CPU_PANEL;
    transpose_share(in, CPU_PANEL, columns, count, to, CPU_PANEL);
    for (int64_t i = 0; columns < CPU_PANEL && i < count; ++i)
      memset(to + i * CPU_PANEL + columns, 0, (size_t)(CPU_PANEL - columns) * sizeof(float));
  }
}

CPU_STATIC void product_dx_share(const cpu_product *p, cpu_range panels, cpu_range rows,
                                 float *buffer) {
  fetch_state none = {.next = NULL, .end = NULL, .lines = 0};
  if (p->k == 0) {
    product_of_nothing(p, panels, rows);
    return;
  }
  const int64_t blocks = (rows.end - rows.begin + TILE_ROWS - 1) / TILE_ROWS;
  for (int64_t n = 0; n < p->k; n += CPU_DX_DEPTH) {
    const cpu_range depth = {n, p->k - n < CPU_DX_DEPTH ? p->k : n + CPU_DX_DEPTH};
    for (int64_t j = panels.begin; j < panels.end; ++j) {
      const int64_t column = j * CPU_PANEL;
      const int64_t columns = p->n - column < CPU_PANEL ? p->n - column : CPU_PANEL;
      turn_panel(p->panels, p->n, column, columns, depth, buffer);
      int64_t row = rows.begin;
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t height = (rows.end - row + blocks - i - 1) / (blocks - i);
        panel_tile(p, buffer, j, row, height, depth, &none);
        row += height;
      }
    }
  }
}

CPU_STATIC void product_dw_share(const cpu_matmul_dw_args *g, const float *turned,
                                 int64_t turned_stride, cpu_range sample, cpu_range depth,
                                 cpu_range panels, float *buffer) {
  const cpu_pack_source dy = {.data = g->dy + sample.begin * g->dy_stride,
                              .dtype = CPU_F32,
                              .k = sample.end - sample.begin,
                              .n = g->n,
                              .k_stride = g->dy_stride,
                              .n_stride = 1};
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    float *dw = (float *)g->dw + j * CPU_PANEL * g->k;
    pack_panel(&dy, j, buffer);
    for (int64_t k = depth.begin; k < depth.end; k += TILE_ROWS) {
      const int64_t height = depth.end - k < TILE_ROWS ? depth.end - k : TILE_ROWS;
      const char *next = (const char *)(dw + (k + height) * CPU_PANEL);
      const int64_t lines = TILE_ROWS * CPU_PANEL * sizeof(float) / 64;
      fetch_state fetch = {next, next + lines * 64, 1, 0};
      tile_job t = {.a = turned + (k - depth.begin) * turned_stride,
                    .a_stride = turned_stride,
                    .b = buffer,
                    .b_stride = CPU_PANEL,
                    .c = dw + k * CPU_PANEL,
                    .c_stride = CPU_PANEL,
                    .steps = dy.k,
                    .mode = TILE_RESUME,
                    .fetch = &fetch};
      tile_columns(&t, height, PANEL_VECTORS);
    }
  }
}

CPU_STATIC void sum_columns_share(const float *in, int64_t in_row, int64_t rows, int64_t columns,
                                  float *out) {
  for (int64_t c = 0; c < columns; c += 16) {
    const int64_t n = columns - c;
    v16 sum = v16_load_part_or(out + c, n, 0.0f);
    for (int64_t r = 0; r < rows; ++r)
      sum = v16_add(sum, v16_load_part_or(in + r * in_row + c, n, 0.0f));
    if (n >= 16)
      v16_store(out + c, sum);
    else
      v16_store_part(out + c, n, sum);
  }
}

#endif
