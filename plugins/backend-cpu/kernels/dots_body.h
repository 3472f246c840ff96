/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 by bf16 in the order of dots.h, included once per kind. The includer defines
 *
 *   DOTS_ROWS                 rows that are multiplied at once
 *   dots_begin(), dots_end()  before and after a thread's share
 *   dots_chain(t)             see dots_tile
 *
 * B is made a chain of a panel at a time, of whatever holds it: two steps of a column side by side,
 * as panels of bf16 have them. It then serves a block of rows, which are read where they lie; only
 * rows and steps that do not fill a tile are copied. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_DOTS_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_DOTS_BODY_H_

#include "dots.h"
#include "half.h"
#include "matmul_body.h"
#include "pack_body.h"

enum {
  DOTS_BLOCK = 576,                     /* rows that share a chain of B: whole tiles of any kind */
  DOTS_B = CPU_CHAIN * CPU_PANEL,       /* numbers of B in a buffer */
  DOTS_MOST_ROWS = 32,                  /* of a tile of any kind */
  DOTS_A = DOTS_MOST_ROWS * CPU_DW_ROWS /* and numbers of A behind them */
};

/* sum[rows][64] = a[rows][steps] b[steps / 2][64][2], from 0 or (resume) going on from what stands
 * there; steps: a multiple of CPU_DOTS_STEPS. DOTS_ROWS rows of a may be read, and of sum written.
 * Meanwhile so many bytes of what comes next are fetched, from `ahead` on, for every two steps. */
typedef struct dots_tile {
  const uint16_t *a;
  int64_t a_stride;
  const uint16_t *b;
  int64_t steps, rows;
  float *sum;
  bool resume;
  const char *ahead;
  int64_t ahead_bytes;
} dots_tile;

CPU_STATIC void dots_begin(void);
CPU_STATIC void dots_end(void);
CPU_STATIC void dots_chain(const dots_tile *t);

CPU_INLINE int64_t dots_padded(int64_t steps) {
  return (steps + CPU_DOTS_STEPS - 1) / CPU_DOTS_STEPS * CPU_DOTS_STEPS;
}

/* out[64][2] from two rows of 64. */
CPU_INLINE void dots_pair_row(const uint16_t *first, const uint16_t *second, uint16_t *out) {
  for (int u = 0; u < CPU_PANEL; u += 16)
    interleave_16(first + u, second + u, out + 2 * u);
}

/* out[64] = in[64] rounded. */
CPU_INLINE void dots_round(const float *in, uint16_t *out) {
  for (int u = 0; u < CPU_PANEL; u += 16)
    v16_store_bf16(out + u, v16_load(in + u));
}

static const uint16_t dots_zeros[CPU_PANEL] = {0};

/* ---- sources of B ---- */

/* fill: out[steps / 2][64][2], zeros behind the steps of k; at: where CPU_PANEL steps from k on lie
 * one behind the other, numbers of so many bytes. */
typedef struct dots_source {
  void (*fill)(const cpu_half_product *h, int64_t panel, cpu_range k, uint16_t *out);
  const char *(*at)(const cpu_half_product *h, int64_t panel, int64_t k);
  int64_t bytes;
  bool pairs; /* the bytes there are those that fill would write, without the zeros */
} dots_source;

CPU_STATIC const char *dots_at_half(const cpu_half_product *h, int64_t panel, int64_t k) {
  return (const char *)h->panels + (panel * h->product.k + k) * CPU_PANEL * 2;
}

CPU_STATIC const char *dots_at_f32(const cpu_half_product *h, int64_t panel, int64_t k) {
  return (const char *)h->panels + (panel * h->product.k + k) * CPU_PANEL * 4;
}

CPU_STATIC const char *dots_at_turned(const cpu_half_product *h, int64_t panel, int64_t k) {
  const int64_t row = k / CPU_PANEL * h->product.n + panel * CPU_PANEL;
  return (const char *)h->panels + row * CPU_PANEL * 4;
}

/* Panels of bf16, where the steps do not fill a tile. */
CPU_STATIC void dots_fill_half(const cpu_half_product *h, int64_t panel, cpu_range k,
                               uint16_t *out) {
  const int64_t steps = k.end - k.begin, even = steps / 2 * 2, padded = dots_padded(steps);
  const uint16_t *from = (const uint16_t *)(const void *)dots_at_half(h, panel, k.begin);
  memcpy(out, from, (size_t)(even * CPU_PANEL) * sizeof *out);
  memset(out + even * CPU_PANEL, 0, (size_t)((padded - even) * CPU_PANEL) * sizeof *out);
  if (even < steps)
    dots_pair_row(from + even * CPU_PANEL, dots_zeros, out + even * CPU_PANEL);
}

/* Panels of fp32, rounded. */
CPU_STATIC void dots_fill_f32(const cpu_half_product *h, int64_t panel, cpu_range k,
                              uint16_t *out) {
  const int64_t steps = k.end - k.begin;
  const float *from = (const float *)(const void *)dots_at_f32(h, panel, k.begin);
  uint16_t rows[2][CPU_PANEL];
  for (int64_t i = 0; i < dots_padded(steps); i += 2, out += 2 * CPU_PANEL) {
    for (int64_t r = 0; r < 2 && i + r < steps; ++r)
      dots_round(from + (i + r) * CPU_PANEL, rows[r]);
    dots_pair_row(i < steps ? rows[0] : dots_zeros, i + 1 < steps ? rows[1] : dots_zeros, out);
  }
}

/* Panels of W^T from panels of fp32 of W, rounded: steps are columns of W, whose neighbours are
 * pairs as they lie. */
CPU_STATIC void dots_fill_turned(const cpu_half_product *h, int64_t panel, cpu_range k,
                                 uint16_t *out) {
  enum { WORDS = CPU_PANEL / 2 };
  const int64_t w_rows = h->product.n, row = panel * CPU_PANEL;
  const int64_t rows = w_rows - row < CPU_PANEL ? w_rows - row : CPU_PANEL;
  uint16_t rounded[CPU_PANEL * CPU_PANEL];
  float words[CPU_PANEL * WORDS], turned[WORDS * CPU_PANEL];
  for (int64_t n = k.begin; n < k.end; n += CPU_PANEL, out += CPU_PANEL * CPU_PANEL) {
    const float *in = (const float *)(const void *)dots_at_turned(h, panel, n);
    for (int64_t i = 0; i < rows; ++i)
      dots_round(in + i * CPU_PANEL, rounded + i * CPU_PANEL);
    memset(rounded + rows * CPU_PANEL, 0, (size_t)((CPU_PANEL - rows) * CPU_PANEL) * 2);
    memcpy(words, rounded, sizeof words);
    for (int64_t i = 0; i < CPU_PANEL; i += 16) {
      for (int64_t w = 0; w < WORDS; w += 16)
        v16_transpose(words + i * WORDS + w, WORDS, turned + w * CPU_PANEL + i, CPU_PANEL);
    }
    memcpy(out, turned, sizeof turned);
  }
}

static const dots_source dots_half = {dots_fill_half, dots_at_half, 2, true},
                         dots_f32 = {dots_fill_f32, dots_at_f32, 4, false},
                         dots_turned = {dots_fill_turned, dots_at_turned, 4, false};

/* ---- products ---- */

/* The rows of a tile over the steps of k, where they lie or, what is missing zero, in `room`. */
CPU_STATIC void dots_take_rows(const cpu_half_product *h, cpu_range rows, cpu_range k,
                               uint16_t *room, dots_tile *t) {
  const int64_t steps = k.end - k.begin, count = rows.end - rows.begin;
  const uint16_t *a = h->a + rows.begin * h->product.a_stride + k.begin;
  t->a = a;
  t->a_stride = h->product.a_stride;
  t->rows = count;
  t->steps = dots_padded(steps);
  if (count == DOTS_ROWS && t->steps == steps)
    return;
  memset(room, 0, DOTS_ROWS * CPU_CHAIN * sizeof *room);
  for (int64_t r = 0; r < count; ++r)
    memcpy(room + r * CPU_CHAIN, a + r * h->product.a_stride, (size_t)steps * sizeof *room);
  t->a = room;
  t->a_stride = CPU_CHAIN;
}

/* Adds a chain of rows to C, in columns of a panel; `last`: with the epilogue. */
CPU_STATIC void dots_add(const cpu_product *p, int64_t panel, cpu_range rows, bool first, bool last,
                         float *sum) {
  const int64_t column = panel * CPU_PANEL, count = rows.end - rows.begin;
  const int64_t columns = p->n - column < CPU_PANEL ? p->n - column : CPU_PANEL;
  float *c = p->c + rows.begin * p->c_stride + column;
  const tile_place place = {sum, c, CPU_PANEL, p->c_stride, count};
  for (int64_t r = 0; r < count && !first; ++r) {
    for (int64_t u = 0; u < columns; u += 16) {
      const v16 before = v16_load_part_or(c + r * p->c_stride + u, columns - u, 0.0f);
      float *s = sum + r * CPU_PANEL + u;
      v16_store(s, v16_add(before, v16_load(s)));
    }
  }
  if (last && p->epilogue != NULL)
    finish_place(p->epilogue, rows.begin, column, columns, &place);
  else
    copy_place(columns, &place);
}

/* Has tile i of n fetch its part of the steps k of a panel: of a piece where those lie one behind
 * the other. */
CPU_STATIC void dots_fetch(const cpu_half_product *h, const dots_source *source, int64_t panel,
                           cpu_range k, int64_t i, int64_t n, dots_tile *t) {
  enum { LINE = 64 };
  const int64_t piece = CPU_PANEL * CPU_PANEL * source->bytes;
  const int64_t lines = (k.end - k.begin) * CPU_PANEL * source->bytes / LINE;
  const int64_t begin = lines * i / n * LINE, last = (begin / piece + 1) * piece;
  const int64_t end = lines * (i + 1) / n * LINE;
  t->ahead = source->at(h, panel, k.begin + begin / piece * CPU_PANEL) + begin % piece;
  t->ahead_bytes = ((end < last ? end : last) - begin) * 2 / t->steps;
  t->ahead_bytes = t->ahead_bytes < LINE ? t->ahead_bytes : LINE;
}

/* The steps that are multiplied after steps k of a panel, of panels before `end`; none: no
 * steps. */
CPU_STATIC cpu_range dots_next(const cpu_product *p, int64_t end, cpu_range k, int64_t *io_panel) {
  if (k.end < p->k)
    return (cpu_range){k.end, p->k - k.end < CPU_CHAIN ? p->k : k.end + CPU_CHAIN};
  ++*io_panel;
  return *io_panel < end ? (cpu_range){0, p->k < CPU_CHAIN ? p->k : CPU_CHAIN} : (cpu_range){0, 0};
}

/* One block of rows by panel `panels.begin`; what comes next is fetched meanwhile where there are
 * tiles enough for that. */
CPU_STATIC void dots_panel(const cpu_half_product *h, const dots_source *source, cpu_range panels,
                           cpu_range rows, uint16_t *buffer) {
  enum { TILES_LEAST = 8 };
  const cpu_product *p = &h->product;
  const int64_t panel = panels.begin;
  const int64_t n_tiles = (rows.end - rows.begin + DOTS_ROWS - 1) / DOTS_ROWS;
  _Alignas(CPU_ALIGN_BYTES) float sum[DOTS_ROWS * CPU_PANEL];
  for (int64_t k = 0; k < p->k; k += CPU_CHAIN) {
    const cpu_range steps = {k, p->k - k < CPU_CHAIN ? p->k : k + CPU_CHAIN};
    int64_t next_panel = panel;
    const cpu_range next = dots_next(p, panels.end, steps, &next_panel);
    const bool ready = source->pairs && (steps.end - k) % CPU_DOTS_STEPS == 0;
    const void *b = ready ? (const void *)source->at(h, panel, k) : buffer;
    if (!ready)
      source->fill(h, panel, steps, buffer);
    for (int64_t i = 0, r = rows.begin; i < n_tiles; ++i, r += DOTS_ROWS) {
      const cpu_range some = {r, rows.end - r < DOTS_ROWS ? rows.end : r + DOTS_ROWS};
      dots_tile t = {.b = b, .sum = sum};
      dots_take_rows(h, some, steps, buffer + DOTS_B, &t);
      t.ahead = b;
      if (n_tiles >= TILES_LEAST && next.end > next.begin)
        dots_fetch(h, source, next_panel, next, i, n_tiles, &t);
      dots_chain(&t);
      dots_add(p, panel, some, k == 0, steps.end == p->k, sum);
    }
  }
}

CPU_STATIC void dots_product(const cpu_half_product *h, const dots_source *source, cpu_range panels,
                             cpu_range rows, float *buffer) {
  if (h->product.k == 0) {
    product_of_nothing(&h->product, panels, rows);
    return;
  }
  dots_begin();
  for (int64_t i = rows.begin; i < rows.end; i += DOTS_BLOCK) {
    const cpu_range block = {i, rows.end - i < DOTS_BLOCK ? rows.end : i + DOTS_BLOCK};
    for (int64_t j = panels.begin; j < panels.end; ++j)
      dots_panel(h, source, (cpu_range){j, panels.end}, block, (uint16_t *)(void *)buffer);
  }
  dots_end();
}

/* buffer: CPU_CHAIN steps of a panel in fp32, which hold a chain of B in bf16 and a tile of A. */
CPU_STATIC void dots_share(const cpu_half_product *h, cpu_range panels, cpu_range rows,
                           float *buffer) {
  _Static_assert(DOTS_B + DOTS_MOST_ROWS * CPU_CHAIN <= 2 * CPU_CHAIN * CPU_PANEL, "fits");
  dots_product(h, h->dtype == CPU_F32 ? &dots_f32 : &dots_half, panels, rows, buffer);
}

CPU_STATIC void dots_dx_share(const cpu_half_product *h, cpu_range panels, cpu_range rows,
                              float *buffer) {
  _Static_assert((int)CPU_DX_DEPTH >= (int)CPU_CHAIN, "its buffer is larger");
  dots_product(h, &dots_turned, panels, rows, buffer);
}

/* ---- dW ---- */

/* out[columns][CPU_DW_ROWS] = columns of X, over the rows of a sample, zeros behind them. */
CPU_STATIC void dots_turn_share(const uint16_t *x, int64_t x_stride, int64_t rows, int64_t columns,
                                uint16_t *out) {
  const int64_t whole = columns - columns % 16, deep = rows - rows % 32;
  uint16_t pairs[16 * 32];
  float words[16 * 16], turned[16 * 16];
  for (int64_t c = 0; c < whole; c += 16) {
    for (int64_t r = 0; r < deep; r += 32) {
      for (int64_t i = 0; i < 16; ++i) {
        const uint16_t *from = x + (r + 2 * i) * x_stride + c;
        interleave_16(from, from + x_stride, pairs + 32 * i);
      }
      memcpy(words, pairs, sizeof words);
      v16_transpose(words, 16, turned, 16);
      for (int64_t i = 0; i < 16; ++i)
        memcpy(out + (c + i) * CPU_DW_ROWS + r, turned + 16 * i, 32 * sizeof *out);
    }
  }
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = c < whole ? deep : 0; r < dots_padded(rows); ++r)
      out[c * CPU_DW_ROWS + r] = r < rows ? x[r * x_stride + c] : 0;
  }
}

/* out[rows / 2][64][2] = a panel of dY over a sample, zeros where there is nothing. */
CPU_STATIC void dots_pair_rows(const uint16_t *dy, int64_t dy_stride, int64_t rows, int64_t columns,
                               uint16_t *out) {
  for (int64_t r = 0; r < dots_padded(rows); r += 2, out += 2 * CPU_PANEL) {
    const uint16_t *first = dy + r * dy_stride, *second = first + dy_stride;
    if (columns >= CPU_PANEL) {
      dots_pair_row(r < rows ? first : dots_zeros, r + 1 < rows ? second : dots_zeros, out);
      continue;
    }
    for (int64_t u = 0; u < CPU_PANEL; ++u) {
      out[2 * u] = r < rows && u < columns ? first[u] : 0;
      out[2 * u + 1] = r + 1 < rows && u < columns ? second[u] : 0;
    }
  }
}

/* A tile of dW that has fewer than DOTS_ROWS rows, by way of room for all: a[DOTS_ROWS] of A. */
CPU_STATIC void dots_dw_rest(dots_tile *t, uint16_t *a, float *dw) {
  float sum[DOTS_ROWS * CPU_PANEL];
  const size_t bytes = (size_t)(t->rows * CPU_PANEL) * sizeof *sum;
  memset(a, 0, DOTS_ROWS * CPU_DW_ROWS * sizeof *a);
  memset(sum, 0, sizeof sum);
  memcpy(a, t->a, (size_t)(t->rows * CPU_DW_ROWS) * sizeof *a);
  memcpy(sum, dw, bytes);
  t->a = a;
  t->sum = sum;
  dots_chain(t);
  memcpy(dw, sum, bytes);
}

CPU_STATIC void dots_dw_share(const cpu_matmul_dw_args *g, const uint16_t *turned, cpu_range sample,
                              cpu_range depth, cpu_range panels, float *buffer) {
  _Static_assert(DOTS_A + CPU_DW_ROWS * CPU_PANEL <= 2 * CPU_DW_ROWS * CPU_PANEL, "fits");
  const int64_t rows = sample.end - sample.begin;
  uint16_t *b = (uint16_t *)(void *)buffer, *room = b + CPU_DW_ROWS * CPU_PANEL;
  dots_begin();
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    float *dw = (float *)g->dw + j * CPU_PANEL * g->k;
    dots_pair_rows(g->dy_half + sample.begin * g->dy_stride + j * CPU_PANEL, g->dy_stride, rows,
                   g->n - j * CPU_PANEL, b);
    for (int64_t k = depth.begin; k < depth.end; k += DOTS_ROWS) {
      float *sum = dw + k * CPU_PANEL;
      dots_tile t = {.a = turned + (k - depth.begin) * CPU_DW_ROWS,
                     .a_stride = CPU_DW_ROWS,
                     .b = b,
                     .steps = dots_padded(rows),
                     .rows = depth.end - k < DOTS_ROWS ? depth.end - k : DOTS_ROWS,
                     .sum = sum,
                     .resume = true,
                     .ahead = (const char *)(const void *)b};
      for (int64_t i = 0; i < t.rows * CPU_PANEL && k + DOTS_ROWS < depth.end; i += 16)
        v16_prefetch_l2(sum + DOTS_ROWS * CPU_PANEL + i);
      if (t.rows < DOTS_ROWS)
        dots_dw_rest(&t, room, sum);
      else
        dots_chain(&t);
    }
  }
  dots_end();
}

#define DOTS_TABLE(which) \
  { (which), dots_share, dots_dx_share, dots_turn_share, dots_dw_share }

#endif
