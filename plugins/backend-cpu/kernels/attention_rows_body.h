/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of token rows over pages, included once per instruction set after attention_body.h.
 *
 * The rows of a unit, (row, head) pairs in row-major order, read each panel of keys together. A
 * panel of values that all of them see goes through tiles of several rows; where a row sees only
 * a part of it, it goes alone, and exactly as far as it sees. Chains of 256 keys run through four
 * panels: a tile goes on from where the one before it ended, which changes no bit. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ATTENTION_ROWS_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_ATTENTION_ROWS_BODY_H_

#include "attention_body.h"
#include "attention_rows_plan.h"

/* A unit at work. */
typedef struct rows_unit {
  const cpu_row_attention_args *g;
  cpu_attention_unit unit;
  attention_rows_plan plan;
  int64_t sequence, kv_head;
  int64_t n_heads, n;   /* heads; rows times heads */
  int64_t begin, limit; /* keys from the first panel that any row sees to the last key */
} rows_unit;

CPU_INLINE cpu_range rows_seen(const rows_unit *u, int64_t i) {
  return attention_rows_seen(u->g, u->g->position[u->unit.row + i / u->n_heads]);
}

/* c += A B in tiles; mode as tile_job's. Changes the job. */
CPU_STATIC void rows_tiles(tile_job *t, int64_t rows, int64_t vectors) {
  for (int64_t r = 0; r < rows; r += TILE_ROWS) {
    tile_columns(t, rows - r < TILE_ROWS ? rows - r : TILE_ROWS, vectors);
    t->a += TILE_ROWS * t->a_stride;
    t->c += TILE_ROWS * t->c_stride;
  }
}

/* scores[n][begin to limit, up to whole vectors] = Q K^T */
CPU_STATIC void rows_scores(const rows_unit *u) {
  const cpu_row_attention_args *g = u->g;
  for (int64_t j = u->begin; j < u->limit; j += CPU_PANEL) {
    const int64_t columns = u->limit - j < CPU_PANEL ? u->limit - j : CPU_PANEL;
    const float *keys = cpu_page_keys(g, u->sequence, u->kv_head, j);
    for (int64_t d = 0; d < g->qk_dim; d += CPU_CHAIN) {
      tile_job t = {.a = u->plan.q + d,
                    .a_stride = g->qk_dim,
                    .b = keys + d * CPU_PANEL,
                    .b_stride = CPU_PANEL,
                    .c = u->plan.scores + j - u->begin,
                    .c_stride = u->plan.padded_keys,
                    .steps = g->qk_dim - d < CPU_CHAIN ? g->qk_dim - d : CPU_CHAIN,
                    .mode = d == 0 ? TILE_SET : TILE_ADD};
      rows_tiles(&t, u->n, (columns + 15) / 16);
    }
  }
}

/* Weights of (row, head) pair i in place of its scores; returns 1 / their sum. */
CPU_STATIC float rows_weights(const rows_unit *u, int64_t i) {
  const cpu_row_attention_args *g = u->g;
  const cpu_attention_args how = {.scale = g->scale,
                                  .softcap = g->softcap,
                                  .mask_stride = {0, 0, 0, 1},
                                  .masked_row = CPU_MASKED_ROW_ZERO};
  const int64_t head = u->unit.heads.begin + i % u->n_heads;
  const int64_t position = g->position[u->unit.row + i / u->n_heads];
  attention_head h = {.g = &how};
  cpu_range seen = rows_seen(u, i);
  float *p = u->plan.scores + i * u->plan.padded_keys;
  seen.begin -= u->begin;
  seen.end -= u->begin;
  if (g->slopes != NULL) {
    for (int64_t j = 0; j < seen.end; ++j)
      u->plan.bias[j] = g->slopes[head] * (float)(u->begin + j - position);
    h.mask_add = u->plan.bias;
  }
  if (g->slopes == NULL && !(g->softcap > 0.0f) && g->window <= 0)
    return attention_weights(&h, 1, 0, seen, seen.end, p);
  return attention_weights(&h, 0, 0, seen, seen.end, p);
}

/* Values of keys [j, j + n), as rows of *out_stride, in whole vectors. */
CPU_STATIC const float *rows_values(const rows_unit *u, int64_t j, int64_t n, int64_t *out_stride) {
  const cpu_row_attention_args *g = u->g;
  const float *from = cpu_page_value(g, u->sequence, u->kv_head, j);
  *out_stride = u->plan.v_width;
  if (g->v_dim % 16 == 0)
    return from;
  for (int64_t i = 0; i < n; ++i) {
    float *to = u->plan.values + i * u->plan.v_width;
    memcpy(to, from + i * g->v_dim, (size_t)g->v_dim * sizeof(float));
    memset(to + g->v_dim, 0, (size_t)(u->plan.v_width - g->v_dim) * sizeof(float));
  }
  return u->plan.values;
}

/* sums[n][v_width]: their chains go on through the panel of keys [j, end). */
CPU_STATIC void rows_panel(const rows_unit *u, int64_t j, int64_t end, float *sums) {
  const int64_t width = u->plan.v_width, padded = u->plan.padded_keys;
  int64_t stride, i = 0;
  const float *values = rows_values(u, j, end - j, &stride);
  while (i < u->n) {
    const cpu_range seen = rows_seen(u, i);
    const int64_t low = seen.begin > j ? seen.begin : j, high = seen.end < end ? seen.end : end;
    int64_t count = 1;
    while (low == j && high == end && i + count < u->n) {
      const cpu_range next = rows_seen(u, i + count);
      if (next.begin > j || next.end < end)
        break;
      ++count;
    }
    if (low < high) {
      tile_job t = {.a = u->plan.scores + i * padded + low - u->begin,
                    .a_stride = padded,
                    .b = values + (low - j) * stride,
                    .b_stride = stride,
                    .c = sums + i * width,
                    .c_stride = width,
                    .steps = high - low,
                    .mode = TILE_RESUME};
      rows_tiles(&t, count, width / 16);
    }
    i += count;
  }
}

/* result[n][v_width] = weights V */
CPU_STATIC void rows_sum(const rows_unit *u) {
  const int64_t n = u->n * u->plan.v_width;
  memset(u->plan.result, 0, (size_t)n * sizeof(float));
  int64_t chain_end = u->begin / CPU_CHAIN * CPU_CHAIN + CPU_CHAIN;
  float *sums = u->plan.result;
  for (int64_t j = u->begin; j < u->limit; j += CPU_PANEL) {
    if (j == chain_end) {
      sums = u->plan.chain;
      memset(sums, 0, (size_t)n * sizeof(float));
      chain_end += CPU_CHAIN;
    }
    const int64_t end = u->limit - j < CPU_PANEL ? u->limit : j + CPU_PANEL;
    rows_panel(u, j, end, sums);
    if (sums != u->plan.result && (end == chain_end || end == u->limit)) {
      for (int64_t c = 0; c < n; c += 16) {
        const v16 sum = v16_add(v16_load(u->plan.result + c), v16_load(sums + c));
        v16_store(u->plan.result + c, sum);
      }
    }
  }
}

CPU_STATIC void attention_rows_share(const cpu_row_attention_args *g,
                                     const cpu_attention_unit *unit, void *workspace) {
  rows_unit u = {.g = g,
                 .unit = *unit,
                 .sequence = g->sequence[unit->row],
                 .kv_head = unit->heads.begin / (g->heads / g->kv_heads),
                 .n_heads = unit->heads.end - unit->heads.begin};
  const int64_t last = g->position[unit->row + unit->count - 1];
  float inverse[ATTENTION_UNIT_ROWS];
  u.n = u.n_heads * unit->count;
  u.begin = rows_seen(&u, 0).begin / CPU_PANEL * CPU_PANEL;
  u.limit = last + 1;
  attention_rows_divide(workspace, g, &u.plan);
  for (int64_t i = 0; i < unit->count; ++i) {
    memcpy(u.plan.q + i * u.n_heads * g->qk_dim,
           g->q + ((unit->row + i) * g->heads + unit->heads.begin) * g->qk_dim,
           (size_t)(u.n_heads * g->qk_dim) * sizeof(float));
  }
  rows_scores(&u);
  for (int64_t i = 0; i < u.n; ++i)
    inverse[i] = rows_weights(&u, i);
  rows_sum(&u);
  for (int64_t i = 0; i < u.n; ++i) {
    const int64_t row = unit->row + i / u.n_heads, head = unit->heads.begin + i % u.n_heads;
    float *out = g->out + (row * g->heads + head) * g->v_dim;
    for (int64_t c = 0; c < g->v_dim; c += 16) {
      const v16 v = v16_mul(v16_load(u.plan.result + i * u.plan.v_width + c), v16_set(inverse[i]));
      store_row(out + c, g->v_dim - c, v16_add(v, v16_zero())); /* -0 becomes 0 */
    }
  }
}

#endif
