/* SPDX-License-Identifier: Apache-2.0 */
/* The fp32 product on panels of 64 columns, included once per instruction set after vec.h.
 *
 * A register tile is 6 rows by CPU_TILE_VECTORS vectors; its sums run over one chain (CPU_CHAIN
 * steps of K) at most and are then added to C, in rising order. Which rows and columns share a
 * tile, and how K is cut into blocks of whole chains, therefore never shows in a result.
 *
 * Loops: rows by ROW_BLOCK, K by K_BLOCK, panels, row blocks of equal height. While a panel is used
 * by two row blocks or more, the next one is fetched to L2, evenly spread over the steps. With a
 * single row block the panel is only streamed through, and software prefetch would be in the way;
 * up to three rows take several panels at once. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_MATMUL_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_MATMUL_BODY_H_

#include "table.h"
#include "vmath_body.h"

enum {
  TILE_ROWS = 6,                             /* of several row blocks */
  MOST_ROWS = CPU_TILE_VECTORS == 4 ? 7 : 6, /* of a single one: fits the registers just so */
  PANEL_VECTORS = CPU_PANEL / 16,
  TILES_WIDE = PANEL_VECTORS / CPU_TILE_VECTORS,
  ROW_BLOCK = 192,
  K_BLOCK = 4 * CPU_CHAIN,
  STREAM_K_BLOCK = 32 * CPU_CHAIN, /* with a single row block, whose rows stay in L2 */
  STREAM_ROWS = CPU_TILE_VECTORS == 4 ? 6 : 2,
  STREAM_AHEAD = 128,
  /* Tiles that are narrower than a panel, up to so many rows: a panel of more than two stretches,
   * which the first-level cache does not hold, is read a stretch at a time, in order. */
  STRETCH_ROWS = CPU_TILE_VECTORS == 4 ? 0 : 24,
  STRETCH = 64,
  STRETCH_AHEAD = 64,
  TILE_STEPS = CPU_TILE_VECTORS == 4 ? 1 : 4, /* in a turn of a tile's loop; a power of two */
  /* Tiles do simple epilogues themselves. With sixteen registers the code for that costs the loop
   * before it more moves than it saves. */
  TILE_ENDS = CPU_TILE_VECTORS == 4
};

typedef enum tile_mode {
  TILE_SET = 0,   /* c = chain from 0 */
  TILE_ADD = 1,   /* c = c + chain from 0 */
  TILE_RESUME = 2 /* c = the chain going on from c */
} tile_mode;

/* Lines fetched to L2 while tiles compute: `lines` cache lines at every step whose number has no
 * bit of `skip`, from `next` on, up to `end`. Small helpings, evenly spread: more than the core's
 * twenty or so outstanding lines at once make its own loads wait, and steps without any leave the
 * memory idle. */
typedef struct fetch_state {
  const char *next, *end;
  int64_t lines, skip;
  int64_t together; /* lines of TILE_STEPS steps, at the first of them */
} fetch_state;

/* The part of an epilogue that a tile does in registers, before its sums are stored. bias,
 * residual: of the tile's first column and row, or NULL. */
typedef struct tile_end {
  float alpha;
  cpu_activation activation; /* none, relu, hard swish */
  const float *bias, *residual;
  int64_t residual_stride;
  bool relu_last;
} tile_end;

typedef struct tile_job {
  const float *a;
  int64_t a_stride;
  const float *b;
  int64_t b_stride; /* CPU_PANEL, except where nothing is fetched ahead */
  float *c;
  int64_t c_stride;
  int64_t steps;
  tile_mode mode;
  fetch_state *fetch;  /* NULL: nothing, and no prefetch of b to L1 either */
  const tile_end *end; /* NULL: sums are stored as they are */
  int64_t column;      /* of `end`, where a narrow tile begins */
} tile_job;

/* One step of K for a tile's sums. */
CPU_INLINE void tile_step(v16 sum[MOST_ROWS][CPU_TILE_VECTORS], const float *a[MOST_ROWS],
                          const int64_t step, const float *b, const int rows, const int vectors,
                          const int ahead) {
  v16 w[CPU_TILE_VECTORS];
  CPU_UNROLL(4)
  for (int v = 0; v < vectors; v++) {
    w[v] = v16_load(b + 16 * v);
    if (ahead) {
      v16_prefetch_l1(b + 8 * CPU_PANEL + 16 * v);
    }
  }
  CPU_UNROLL(7)
  for (int r = 0; r < rows; r++) {
    v16 x = v16_set(a[r][step]);
    CPU_UNROLL(4)
    for (int v = 0; v < vectors; v++) {
      sum[r][v] = v16_fma(x, w[v], sum[r][v]);
    }
  }
}

/* Fetches `n` lines, or up to the end. */
CPU_INLINE const char *fetch_lines(const char *next, const char *end, int64_t n) {
  for (; n > 0 && next < end; --n, next += 64)
    v16_prefetch_l2(next);
  return next;
}

/* One operation on all sums of a tile. */
#define CPU_EACH_SUM(r, v, result)      \
  CPU_UNROLL(7)                         \
  for (int r = 0; r < rows; r++) {      \
    CPU_UNROLL(4)                       \
    for (int v = 0; v < vectors; v++) { \
      sum[r][v] = (result);             \
    }                                   \
  }

CPU_INLINE void tile_finish(const tile_end *e, const int64_t column,
                            v16 sum[MOST_ROWS][CPU_TILE_VECTORS], const int rows,
                            const int vectors) {
  const cpu_activation activation = e->activation;
  const float *residual = e->residual;
  const int64_t stride = e->residual_stride;
  if (e->alpha != 1.0f) {
    const v16 alpha = v16_set(e->alpha);
    CPU_EACH_SUM(r, v, v16_mul(alpha, sum[r][v]))
  }
  if (e->bias != NULL) {
    const float *bias = e->bias + column;
    CPU_EACH_SUM(r, v, v16_add(sum[r][v], v16_load(bias + 16 * v)))
  }
  if (activation == CPU_ACT_RELU) {
    CPU_EACH_SUM(r, v, v16_activate(CPU_ACT_RELU, sum[r][v]))
  } else if (activation == CPU_ACT_HARD_SWISH) {
    CPU_EACH_SUM(r, v, v16_activate(CPU_ACT_HARD_SWISH, sum[r][v]))
  }
  if (residual != NULL) {
    CPU_EACH_SUM(r, v, v16_add(sum[r][v], v16_load(residual + column + r * stride + 16 * v)))
  }
  if (e->relu_last) {
    CPU_EACH_SUM(r, v, v16_activate(CPU_ACT_RELU, sum[r][v]))
  }
}

/* c[rows][16 * vectors]; rows, vectors and ahead are constants. A turn of a narrow tile's loop has
 * several steps, since counting and fetching would else cost as much as the products. */
CPU_INLINE void tile(const tile_job *t, const int rows, const int vectors, const int ahead) {
  v16 sum[MOST_ROWS][CPU_TILE_VECTORS];
  const float *a[MOST_ROWS]; /* of each row, the next element */
  CPU_UNROLL(7)
  for (int r = 0; r < rows; r++) {
    a[r] = t->a + r * t->a_stride;
    if (TILE_STEPS > 1)
      CPU_APART(a[r]); /* else every row and step has an offset, on the stack */
    CPU_UNROLL(4)
    for (int v = 0; v < vectors; v++) {
      sum[r][v] = t->mode == TILE_RESUME ? v16_load(t->c + r * t->c_stride + 16 * v) : v16_zero();
    }
  }
  const float *b = t->b;
  const int64_t b_stride = ahead ? CPU_PANEL : t->b_stride;
  const int64_t lines = ahead ? t->fetch->lines : 0;
  const int64_t skip = ahead ? t->fetch->skip : 0;
  const int64_t together = ahead ? t->fetch->together : 0;
  const char *const end = ahead ? t->fetch->end : NULL;
  const char *next = ahead ? t->fetch->next : NULL;
  int64_t left = t->steps;
  for (; TILE_STEPS > 1 && left >= TILE_STEPS; left -= TILE_STEPS) {
    if (ahead)
      next = fetch_lines(next, end, (left & skip & -TILE_STEPS) == 0 ? together : 0);
    CPU_UNROLL(4)
    for (int u = 0; u < TILE_STEPS; ++u) {
      tile_step(sum, a, u, b + u * b_stride, rows, vectors, ahead);
    }
    CPU_UNROLL(7)
    for (int r = 0; r < rows; r++) {
      a[r] += TILE_STEPS;
    }
    b += TILE_STEPS * b_stride;
  }
  for (; left > 0; --left, b += b_stride) {
    if (ahead)
      next = fetch_lines(next, end, (left & skip) == 0 ? lines : 0);
    tile_step(sum, a, 0, b, rows, vectors, ahead);
    CPU_UNROLL(7)
    for (int r = 0; r < rows; r++) {
      a[r] += 1;
    }
  }
  if (ahead)
    t->fetch->next = next;
  float *c = t->c;
  const int64_t c_stride = t->c_stride;
  if (t->mode == TILE_ADD) {
    CPU_EACH_SUM(r, v, v16_add(v16_load(c + r * c_stride + 16 * v), sum[r][v]))
  }
  if (TILE_ENDS && t->end != NULL)
    tile_finish(t->end, t->column, sum, rows, vectors);
  CPU_UNROLL(7)
  for (int r = 0; r < rows; r++) {
    CPU_UNROLL(4)
    for (int v = 0; v < vectors; v++) {
      v16_store(c + r * c_stride + 16 * v, sum[r][v]);
    }
  }
}

#define CPU_TILE_FUNCTION(rows, vectors, ahead)                                    \
  CPU_STATIC void tile_##rows##_##vectors##_##ahead(const tile_job *t) {           \
    tile(t, rows, vectors < CPU_TILE_VECTORS ? vectors : CPU_TILE_VECTORS, ahead); \
  }
#if CPU_TILE_VECTORS == 4
#define CPU_TILE_SEVEN(vectors, ahead) CPU_TILE_FUNCTION(7, vectors, ahead)
#define CPU_TILE_SEVEN_NAME(vectors, ahead) , tile_7_##vectors##_##ahead
#else
#define CPU_TILE_SEVEN(vectors, ahead)
#define CPU_TILE_SEVEN_NAME(vectors, ahead)
#endif
#define CPU_TILE_FUNCTIONS(vectors, ahead) \
  CPU_TILE_FUNCTION(1, vectors, ahead)     \
  CPU_TILE_FUNCTION(2, vectors, ahead)     \
  CPU_TILE_FUNCTION(3, vectors, ahead)     \
  CPU_TILE_FUNCTION(4, vectors, ahead)     \
  CPU_TILE_FUNCTION(5, vectors, ahead)     \
  CPU_TILE_FUNCTION(6, vectors, ahead)     \
  CPU_TILE_SEVEN(vectors, ahead)
#define CPU_TILE_ROW(vectors, ahead)                                                    \
  {                                                                                     \
    tile_1_##vectors##_##ahead, tile_2_##vectors##_##ahead, tile_3_##vectors##_##ahead, \
        tile_4_##vectors##_##ahead, tile_5_##vectors##_##ahead,                         \
        tile_6_##vectors##_##ahead CPU_TILE_SEVEN_NAME(vectors, ahead)                  \
  }

typedef void (*tile_function)(const tile_job *t);

CPU_TILE_FUNCTIONS(1, 0)
CPU_TILE_FUNCTIONS(1, 1)
#if CPU_TILE_VECTORS == 4
CPU_TILE_FUNCTIONS(2, 0)
CPU_TILE_FUNCTIONS(3, 0)
CPU_TILE_FUNCTIONS(4, 0)
CPU_TILE_FUNCTIONS(4, 1)
static const tile_function tiles[4][MOST_ROWS] = {CPU_TILE_ROW(1, 0), CPU_TILE_ROW(2, 0),
                                                  CPU_TILE_ROW(3, 0), CPU_TILE_ROW(4, 0)};
static const tile_function tiles_ahead[MOST_ROWS] = CPU_TILE_ROW(4, 1);
#else
static const tile_function tiles[1][MOST_ROWS] = {CPU_TILE_ROW(1, 0)};
static const tile_function tiles_ahead[MOST_ROWS] = CPU_TILE_ROW(1, 1);
#endif

/* All columns of one tile job: `vectors` of the panel, as many at a time as a tile has. Jobs are
 * changed where they lie, not copied: a copy would read in wide pieces what was just written in
 * narrow ones, and wait until all stores before them are in the cache. */
CPU_STATIC void tile_columns(tile_job *t, int64_t rows, int64_t vectors) {
  const float *b = t->b;
  float *c = t->c;
  for (int64_t v = 0; v < vectors; v += CPU_TILE_VECTORS) {
    int64_t now = vectors - v < CPU_TILE_VECTORS ? vectors - v : CPU_TILE_VECTORS;
    t->b = b + 16 * v;
    t->c = c + 16 * v;
    t->column = 16 * v;
    tile_function f = t->fetch != NULL && now == CPU_TILE_VECTORS ? tiles_ahead[rows - 1]
                                                                  : tiles[now - 1][rows - 1];
    f(t);
  }
  t->b = b;
  t->c = c;
}

/* A tile over a K block: one chain after the other. `first`: nothing is in c yet. Changes the job.
 */
CPU_STATIC void tile_chains(tile_job *t, int64_t rows, int64_t vectors, int first) {
  const tile_end *end = t->end;
  t->mode = first ? TILE_SET : TILE_ADD;
  for (int64_t left = t->steps; left > 0; left -= CPU_CHAIN) {
    t->steps = left < CPU_CHAIN ? left : CPU_CHAIN;
    t->end = left <= CPU_CHAIN ? end : NULL;
    tile_columns(t, rows, vectors);
    t->mode = TILE_ADD;
    t->a += CPU_CHAIN;
    t->b += CPU_CHAIN * t->b_stride;
  }
}

/* Where a tile lies (`from`), and where its results go: the same, or elsewhere. */
typedef struct tile_place {
  const float *from;
  float *to;
  int64_t from_stride, to_stride, rows;
} tile_place;

/* Sixteen columns from column `at` of C on, of whole vectors, which lie `lane` elements behind the
 * place: nothing but a bias, an activation (a constant) and a residual. */
CPU_INLINE void finish_plain(const cpu_epilogue *e, const cpu_activation activation, int64_t row,
                             int64_t at, const tile_place *t, int64_t lane) {
  const v16 alpha = v16_set(e->alpha);
  const v16 bias = e->bias != NULL ? v16_load(e->bias + at) : v16_zero();
  const float *residual = e->residual != NULL ? e->residual + row * e->residual_stride + at : NULL;
  const int64_t from_stride = t->from_stride, to_stride = t->to_stride;
  const int64_t residual_stride = e->residual_stride;
  const bool biased = e->bias != NULL, last = e->relu_last;
  const float *from = t->from + lane;
  float *to = t->to + lane;
  for (int64_t left = t->rows; left > 0; --left, from += from_stride, to += to_stride) {
    v16 v = v16_mul(alpha, v16_load(from));
    if (biased)
      v = v16_add(v, bias);
    v = v16_activate(activation, v);
    if (residual != NULL) {
      v = v16_add(v, v16_load(residual));
      residual += residual_stride;
    }
    if (last)
      v = v16_activate(CPU_ACT_RELU, v);
    v16_store(to, v);
  }
}

/* n <= 16 columns, and all that an epilogue has. */
CPU_STATIC void finish_any(const cpu_epilogue *e, int64_t row, int64_t at, int64_t n,
                           const tile_place *t, int64_t lane) {
  const v16 alpha = v16_set(e->alpha);
  const v16 bias = e->bias != NULL ? v16_load_part_or(e->bias + at, n, 0.0f) : v16_zero();
  const float *from = t->from + lane;
  float *to = t->to + lane;
  for (int64_t r = 0; r < t->rows; ++r) {
    v16 v = v16_mul(alpha, v16_load_part_or(from + r * t->from_stride, n, 0.0f));
    if (e->bias != NULL)
      v = v16_add(v, bias);
    if (e->row_bias != NULL)
      v = v16_add(v, v16_set(e->row_bias[row + r]));
    v = v16_activate(e->activation, v);
    if (e->multiplier != NULL) {
      const float *m = e->multiplier + (row + r) * e->multiplier_stride + at;
      v = v16_mul(v, v16_load_part_or(m, n, 0.0f));
    }
    if (e->residual != NULL) {
      const float *m = e->residual + (row + r) * e->residual_stride + at;
      v = v16_add(v, v16_load_part_or(m, n, 0.0f));
    }
    if (e->relu_last)
      v = v16_activate(CPU_ACT_RELU, v);
    if (n < 16)
      v16_store_part(to + r * t->to_stride, n, v);
    else
      v16_store(to + r * t->to_stride, v);
  }
}

/* Applies the epilogue to `columns` columns of the tile at (row, column) of C. The place is not
 * copied: a copy would be read in wider pieces than it was written in, and so wait until all that
 * the tile has stored before is in the cache. */
CPU_STATIC void finish_place(const cpu_epilogue *e, int64_t row, int64_t column, int64_t columns,
                             const tile_place *t) {
  const bool plain = e->row_bias == NULL && e->multiplier == NULL;
  for (int64_t u = 0; u < columns; u += 16) {
    if (!plain || columns - u < 16)
      finish_any(e, row, column + u, columns - u < 16 ? columns - u : 16, t, u);
    else if (e->activation == CPU_ACT_NONE)
      finish_plain(e, CPU_ACT_NONE, row, column + u, t, u);
    else if (e->activation == CPU_ACT_RELU)
      finish_plain(e, CPU_ACT_RELU, row, column + u, t, u);
    else if (e->activation == CPU_ACT_HARD_SWISH)
      finish_plain(e, CPU_ACT_HARD_SWISH, row, column + u, t, u);
    else
      finish_any(e, row, column + u, 16, t, u);
  }
}

/* The same where the tile lies: c[rows][columns]. */
CPU_STATIC void finish_tile(const cpu_epilogue *e, int64_t row, int64_t column, int64_t rows,
                            int64_t columns, float *c, int64_t c_stride) {
  const tile_place place = {c, c, c_stride, c_stride, rows};
  finish_place(e, row, column, columns, &place);
}

/* Columns [0, columns) of a tile to where they go, or come from. */
CPU_STATIC void copy_place(int64_t columns, const tile_place *t) {
  for (int64_t r = 0; r < t->rows; ++r) {
    const float *from = t->from + r * t->from_stride;
    float *to = t->to + r * t->to_stride;
    int64_t u = 0;
    for (; u + 16 <= columns; u += 16)
      v16_store(to + u, v16_load(from + u));
    if (u < columns)
      v16_store_part(to + u, columns - u, v16_load_part_or(from + u, columns - u, 0.0f));
  }
}

/* c[rows][64 * panels] of whole panels, for very few rows: all of K in one go. */
CPU_INLINE void few_rows(const cpu_product *p, const int rows, const int panels, int64_t panel,
                         int64_t row) {
  const float *a = p->a + row * p->a_stride;
  const float *b = p->panels + panel * CPU_PANEL * p->k;
  float *c = p->c + row * p->c_stride + panel * CPU_PANEL;
  const int64_t a_stride = p->a_stride;
  const int64_t panel_stride = CPU_PANEL * p->k;
  for (int64_t k = 0; k < p->k; k += CPU_CHAIN) {
    v16 sum[3][4][PANEL_VECTORS];
    CPU_UNROLL(3)
    for (int r = 0; r < rows; r++) {
      CPU_UNROLL(4)
      for (int i = 0; i < panels; i++) {
        CPU_UNROLL(4)
        for (int v = 0; v < PANEL_VECTORS; v++) {
          sum[r][i][v] = v16_zero();
        }
      }
    }
    int64_t end = p->k - k < CPU_CHAIN ? p->k : k + CPU_CHAIN;
    for (int64_t q = k; q < end; ++q, b += CPU_PANEL) {
      v16 x[3];
      CPU_UNROLL(3)
      for (int r = 0; r < rows; r++) {
        x[r] = v16_set(a[r * a_stride + q]);
      }
      CPU_UNROLL(4)
      for (int i = 0; i < panels; i++) {
        CPU_UNROLL(4)
        for (int v = 0; v < PANEL_VECTORS; v++) {
          v16 w = v16_load(b + i * panel_stride + 16 * v);
          CPU_UNROLL(3)
          for (int r = 0; r < rows; r++) {
            sum[r][i][v] = v16_fma(x[r], w, sum[r][i][v]);
          }
        }
      }
    }
    CPU_UNROLL(3)
    for (int r = 0; r < rows; r++) {
      CPU_UNROLL(4)
      for (int i = 0; i < panels; i++) {
        CPU_UNROLL(4)
        for (int v = 0; v < PANEL_VECTORS; v++) {
          float *o = c + r * p->c_stride + i * CPU_PANEL + 16 * v;
          v16_store(o, k > 0 ? v16_add(v16_load(o), sum[r][i][v]) : sum[r][i][v]);
        }
      }
    }
  }
}

/* As many whole panels as fit groups of the best width for one to three rows; returns the first
 * panel that is left. */
CPU_STATIC int64_t few_rows_panels(const cpu_product *p, cpu_range panels, int64_t row,
                                   int64_t rows) {
  const int64_t whole = p->n / CPU_PANEL < panels.end ? p->n / CPU_PANEL : panels.end;
  const int64_t width = rows == 1 ? CPU_VECTOR_PANELS : CPU_TILE_VECTORS == 4 ? 5 - rows : 0;
  int64_t j = panels.begin;
  if (p->k == 0 || width == 0 || rows > 3)
    return j;
  for (; j + width <= whole; j += width) {
    if (rows == 1) {
      few_rows(p, 1, CPU_VECTOR_PANELS, j, row);
#if CPU_TILE_VECTORS == 4
    } else if (rows == 2) {
      few_rows(p, 2, 3, j, row);
    } else {
      few_rows(p, 3, 2, j, row);
#endif
    }
    if (p->epilogue != NULL) {
      finish_tile(p->epilogue, row, j * CPU_PANEL, rows, width * CPU_PANEL,
                  p->c + row * p->c_stride + j * CPU_PANEL, p->c_stride);
    }
  }
  return j;
}

/* The end of a tile at (row, column); false: it cannot do the epilogue, finish_place has to. */
CPU_STATIC bool plan_end(const cpu_epilogue *e, int64_t row, int64_t column, tile_end *out) {
  out->alpha = e->alpha;
  out->activation = e->activation;
  out->bias = e->bias != NULL ? e->bias + column : NULL;
  out->residual = e->residual != NULL ? e->residual + row * e->residual_stride + column : NULL;
  out->residual_stride = e->residual_stride;
  out->relu_last = e->relu_last;
  return e->row_bias == NULL && e->multiplier == NULL &&
         (e->activation == CPU_ACT_NONE || e->activation == CPU_ACT_RELU ||
          e->activation == CPU_ACT_HARD_SWISH);
}

/* Rows [row, row + rows) of one panel over the K block k, which b holds. The last, narrower panel
 * goes through a buffer, since a tile writes whole vectors. */
CPU_STATIC void panel_tile(const cpu_product *p, const float *b, int64_t panel, int64_t row,
                           int64_t rows, cpu_range k, fetch_state *fetch) {
  float buffer[MOST_ROWS * CPU_PANEL];
  const int64_t column = panel * CPU_PANEL;
  const int64_t columns = p->n - column < CPU_PANEL ? p->n - column : CPU_PANEL;
  float *out = p->c + row * p->c_stride + column;
  tile_job t = {.a = p->a + row * p->a_stride + k.begin,
                .a_stride = p->a_stride,
                .b = b,
                .b_stride = CPU_PANEL,
                .c = out,
                .c_stride = p->c_stride,
                .steps = k.end - k.begin,
                .fetch = fetch};
  if (columns % 16 != 0) {
    t.c = buffer;
    t.c_stride = CPU_PANEL;
    if (k.begin > 0)
      copy_place(columns, &(tile_place){out, buffer, p->c_stride, CPU_PANEL, rows});
  }
  tile_end end;
  const bool last = k.end == p->k && p->epilogue != NULL;
  const bool ended = TILE_ENDS && last && t.c == out && plan_end(p->epilogue, row, column, &end);
  t.end = ended ? &end : NULL;
  float *const from = t.c;
  const int64_t from_stride = t.c_stride;
  tile_chains(&t, rows, (columns + 15) / 16, k.begin == 0);
  const tile_place place = {from, out, from_stride, p->c_stride, rows};
  if (last && !ended)
    finish_place(p->epilogue, row, column, columns, &place);
  else if (from == buffer)
    copy_place(columns, &place);
}

/* Plans what to fetch during one panel; false for nothing. With several row blocks, what is next is
 * the same K block of the next panel. A single block of STREAM_ROWS or more is fast enough to
 * outrun the hardware's prefetch: it fetches the panel it reads, STREAM_AHEAD steps further on.
 * With fewer rows memory alone sets the pace, and prefetch would be in the way. */
CPU_STATIC int plan_fetch(const float *b, int64_t panel_stride, int64_t steps, int64_t rows,
                          int64_t blocks, fetch_state *out) {
  const int64_t passes = blocks * TILES_WIDE; /* over the panel's steps, 4 lines each */
  const float *from = b + (blocks == 1 ? STREAM_AHEAD * CPU_PANEL : panel_stride);
  out->next = (const char *)from;
  out->end = (const char *)(from + steps * CPU_PANEL);
  out->lines = (4 + passes - 1) / passes;
  out->skip = 0;
  out->together = TILE_STEPS * out->lines;
  while (2 * (out->skip + 1) <= passes / 4) {
    out->skip = 2 * out->skip + 1;
    out->together = out->together / 2 > out->lines ? out->together / 2 : out->lines;
  }
  return blocks > 1 || rows >= STREAM_ROWS;
}

/* chain[count][64] = the chain of `steps` from step k of panel b on. A stretch of the panel goes
 * through all tiles while it is in the first-level cache, and the stretches behind it are fetched.
 */
CPU_STATIC void stretch_chain(const cpu_product *p, const float *b, const cpu_range *rows,
                              int64_t k, int64_t steps, const char *end, float *chain) {
  const int64_t count = rows->end - rows->begin;
  const int64_t blocks = (count + TILE_ROWS - 1) / TILE_ROWS;
  for (int64_t s = 0; s < steps; s += STRETCH) {
    const float *from = b + (k + s) * CPU_PANEL;
    tile_job t = {.a_stride = p->a_stride,
                  .b_stride = CPU_PANEL,
                  .c_stride = CPU_PANEL,
                  .steps = steps - s < STRETCH ? steps - s : STRETCH,
                  .mode = s == 0 ? TILE_SET : TILE_RESUME};
    fetch_state fetch;
    (void)plan_fetch(from, STRETCH_AHEAD * CPU_PANEL, t.steps, count, blocks, &fetch);
    fetch.next = (const char *)(from + STRETCH_AHEAD * CPU_PANEL);
    fetch.end = fetch.next + t.steps * CPU_PANEL * (int64_t)sizeof *b;
    fetch.end = fetch.end < end ? fetch.end : end;
    t.fetch = &fetch;
    for (int64_t i = 0, r = 0; i < blocks; ++i) {
      const int64_t height = (count - r + blocks - i - 1) / (blocks - i);
      t.a = p->a + (rows->begin + r) * p->a_stride + k + s;
      t.b = from;
      t.c = chain + r * CPU_PANEL;
      tile_columns(&t, height, PANEL_VECTORS);
      r += height;
    }
  }
}

/* A few rows by all panels of the share, each read once in order. */
CPU_STATIC void stretch_rows(const cpu_product *p, cpu_range panels, cpu_range rows) {
  float sum[(STRETCH_ROWS + 1) * CPU_PANEL], chain[(STRETCH_ROWS + 1) * CPU_PANEL];
  const int64_t count = rows.end - rows.begin;
  const char *end = (const char *)(p->panels + panels.end * p->k * CPU_PANEL);
  for (int64_t j = panels.begin; j < panels.end; ++j) {
    const float *b = p->panels + j * p->k * CPU_PANEL;
    const int64_t column = j * CPU_PANEL;
    const int64_t columns = p->n - column < CPU_PANEL ? p->n - column : CPU_PANEL;
    for (int64_t k = 0; k < p->k; k += CPU_CHAIN) {
      const int64_t steps = p->k - k < CPU_CHAIN ? p->k - k : CPU_CHAIN;
      stretch_chain(p, b, &rows, k, steps, end, k == 0 ? sum : chain);
      for (int64_t u = 0; u < count * CPU_PANEL && k > 0; u += 16)
        v16_store(sum + u, v16_add(v16_load(sum + u), v16_load(chain + u)));
    }
    float *out = p->c + rows.begin * p->c_stride + column;
    const tile_place place = {sum, out, CPU_PANEL, p->c_stride, count};
    if (p->epilogue != NULL)
      finish_place(p->epilogue, rows.begin, column, columns, &place);
    else
      copy_place(columns, &place);
  }
}

/* One block of rows by all panels of the share. */
CPU_STATIC void row_block(const cpu_product *p, cpu_range panels, cpu_range rows) {
  const int64_t count = rows.end - rows.begin;
  const int64_t blocks = count <= MOST_ROWS ? 1 : (count + TILE_ROWS - 1) / TILE_ROWS;
  const int64_t k_block = blocks == 1 ? STREAM_K_BLOCK : K_BLOCK;
  for (int64_t k = 0; k < p->k; k += k_block) {
    const cpu_range depth = {k, p->k - k < k_block ? p->k : k + k_block};
    for (int64_t j = panels.begin; j < panels.end; ++j) {
      const float *b = p->panels + (j * p->k + k) * CPU_PANEL;
      fetch_state fetch;
      int ahead = plan_fetch(b, CPU_PANEL * p->k, depth.end - k, count, blocks, &fetch);
      fetch.end = j + 1 < panels.end ? fetch.end : fetch.next; /* after the last: nothing */
      int64_t row = rows.begin;
      for (int64_t i = 0; i < blocks; ++i) {
        int64_t height = (rows.end - row + blocks - i - 1) / (blocks - i);
        panel_tile(p, b, j, row, height, depth, ahead ? &fetch : NULL);
        row += height;
      }
    }
  }
}

/* K = 0: the sum is 0. */
CPU_STATIC void product_of_nothing(const cpu_product *p, cpu_range panels, cpu_range rows) {
  const int64_t column = panels.begin * CPU_PANEL;
  int64_t end = panels.end * CPU_PANEL < p->n ? panels.end * CPU_PANEL : p->n;
  for (int64_t i = rows.begin; i < rows.end && column < end; ++i) {
    float *c = p->c + i * p->c_stride + column;
    memset(c, 0, (size_t)(end - column) * sizeof(float));
    if (p->epilogue != NULL)
      finish_tile(p->epilogue, i, column, 1, end - column, c, 0);
  }
}

CPU_STATIC void product_share(const cpu_product *p, cpu_range panels, cpu_range rows) {
  if (p->k == 0) {
    product_of_nothing(p, panels, rows);
    return;
  }
  for (int64_t i = rows.begin; i < rows.end; i += ROW_BLOCK) {
    cpu_range block = {i, rows.end - i < ROW_BLOCK ? rows.end : i + ROW_BLOCK};
    cpu_range rest = panels;
    if (block.end - i <= 3)
      rest.begin = few_rows_panels(p, panels, i, block.end - i);
    if (p->k > 2 * STRETCH && block.end - i > 1 && block.end - i <= STRETCH_ROWS)
      stretch_rows(p, rest, block);
    else
      row_block(p, rest, block);
  }
}

#endif
