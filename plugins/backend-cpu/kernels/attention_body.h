/* SPDX-License-Identifier: Apache-2.0 */
/* Fused attention for one (batch, head), included once per instruction set after matmul_body.h.
 *
 * Keys are packed into panels of 64 and values into panels of 64 columns as far as the row blocks
 * come to need them (causal blocks need few at first). Scores of a block stand in a buffer
 * [ATTENTION_ROWS][keys], become exp(score - max) in place, unnormalised, and are the operand A of
 * the second product; the output is multiplied by 1 / sum. Keys that a row does not see have weight
 * 0, which changes no sum, so it does not matter how far the block as a whole looks. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ATTENTION_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_ATTENTION_BODY_H_

#include "attention_plan.h"
#include "matmul_body.h"
#include "norm_body.h"
#include "pack_body.h"

/* One (batch, head) at work. */
typedef struct attention_head {
  const cpu_attention_args *g;
  const float *q, *k, *v;
  float *out;
  const float *mask_add;
  const uint8_t *mask_keep;
  int64_t keys;          /* that count at all */
  int64_t padded_keys;   /* row stride of the scores */
  int64_t packed_keys;   /* panels so far, in keys */
  int64_t packed_values; /* rows so far */
  int values_in_place;
  attention_plan plan;
} attention_head;

/* ---- softmax of one row ---- */

/* Very low scores as the sum in the mask's own type gives them; see mask_bits. Splitting by
 * 2^(24 - bits) + 1 rounds to that many bits (Veltkamp). */
CPU_INLINE v16 attention_round_low(uint32_t bits, v16 s) {
  const v16 split = v16_mul(s, v16_set((float)(1u << (24u - bits)) + 1.0f));
  const v16 rounded = v16_sub(split, v16_sub(split, s));
  const v16 low = v16_select(v16_less(s, v16_set(-1e30f)), s, rounded);
  const v16 ends =
      bits == 11 ? v16_select(v16_less(low, v16_set(-65504.0f)), v16_set(-INFINITY), low) : low;
  return v16_select(v16_less(s, v16_set(-1024.0f)), ends, s);
}

CPU_INLINE v16 attention_add(const cpu_attention_args *g, v16 s, v16 mask) {
  const v16 sum = v16_add(s, mask);
  return g->mask_bits == 0 ? sum : attention_round_low(g->mask_bits, sum);
}

/* Scores of keys [c, c + 16) from products: scaled, capped, masked. Keys outside [low, high) are
 * minus infinity. */
CPU_INLINE v16 attention_mask(const attention_head *h, int64_t row, int64_t c, int64_t n, v16 s) {
  const cpu_attention_args *g = h->g;
  const int64_t at = row * g->mask_stride[2] + c * g->mask_stride[3];
  float lane[16] = {0};
  if (h->mask_add != NULL) {
    if (g->mask_stride[3] == 1)
      return attention_add(g, s, v16_load_part_or(h->mask_add + at, n, 0.0f));
    for (int64_t i = 0; i < n; ++i)
      lane[i] = h->mask_add[at + i * g->mask_stride[3]];
    return attention_add(g, s, v16_load(lane));
  }
  if (n == 16 && g->mask_stride[3] == 1)
    return v16_select(v16_less(v16_zero(), v16_load_u8(h->mask_keep + at)), s, v16_set(-INFINITY));
  for (int64_t i = 0; i < n; ++i)
    lane[i] = h->mask_keep[at + i * g->mask_stride[3]] != 0 ? 1.0f : 0.0f;
  return v16_select(v16_less(v16_zero(), v16_load(lane)), s, v16_set(-INFINITY));
}

CPU_INLINE v16 attention_cap(float cap, v16 s) {
  return v16_mul(v16_set(cap), v16_tanh(v16_div(s, v16_set(cap))));
}

CPU_INLINE v16 attention_score(const attention_head *h, const int plain, int64_t row, int64_t c,
                               cpu_range seen, v16 product) {
  const cpu_attention_args *g = h->g;
  const int64_t n = seen.end - c < 16 ? seen.end - c : 16;
  v16 s = v16_mul(product, v16_set(g->scale));
  if (!plain) {
    const int masked = h->mask_add != NULL || h->mask_keep != NULL;
    if (g->softcap > 0.0f && !g->cap_after_mask)
      s = attention_cap(g->softcap, s);
    if (masked)
      s = attention_mask(h, row, c, n, s);
    if (g->softcap > 0.0f && g->cap_after_mask)
      s = attention_cap(g->softcap, s);
    if (c < seen.begin)
      s = v16_select(v16_first(seen.begin - c < 16 ? seen.begin - c : 16), v16_set(-INFINITY), s);
  }
  return n < 16 ? v16_select(v16_first(n), s, v16_set(-INFINITY)) : s;
}

/* Makes p[0, seen.end) the weights of a row and returns 1 / their sum; p[seen.end, width) becomes
 * 0. `plain` (a constant): neither cap nor mask nor window, so scores are cheaper computed twice
 * than stored. */
CPU_INLINE float attention_weights(const attention_head *h, const int plain, int64_t row,
                                   cpu_range seen, int64_t width, float *p) {
  row_sum m = row_sum_start(-INFINITY);
  v16 bad = v16_zero(); /* NaN where any score is */
  CPU_ROW_LOOP(seen.end, {
    (void)n;
    v16 s = attention_score(h, plain, row, c, seen, v16_load(p + c));
    m.part[q] = v16_max(s, m.part[q]);
    if (!plain) {
      v16_store(p + c, s);
    }
    bad = v16_select(v16_is_nan(s), s, bad);
  });
  const float max =
      v16_largest(v16_max(v16_max(m.part[0], m.part[1]), v16_max(m.part[2], m.part[3])));
  const float worst = v16_sum(bad);
  float inverse;
  if (worst != worst) { /* NaN: so is the row */
    inverse = worst;
  } else if (max == -INFINITY) {
    inverse = h->g->masked_row == CPU_MASKED_ROW_ZERO ? 0.0f : NAN;
    memset(p, 0, (size_t)seen.end * sizeof(float));
  } else {
    const v16 top = v16_set(max);
    row_sum sum = row_sum_start(0.0f);
    CPU_ROW_LOOP(seen.end, {
      (void)n;
      v16 s = v16_load(p + c);
      s = plain ? attention_score(h, 1, row, c, seen, s) : s;
      v16 e = v16_exp_negative(v16_sub(s, top));
      v16_store(p + c, e);
      sum.part[q] = v16_add(sum.part[q], e);
    });
    inverse = 1.0f / row_sum_total(&sum);
  }
  for (int64_t c = seen.end; c < width; ++c)
    p[c] = 0.0f;
  return inverse;
}

/* ---- the two products ---- */

CPU_STATIC void attention_pack(attention_head *h, int64_t limit) {
  const cpu_attention_args *g = h->g;
  const cpu_pack_source keys = {.data = h->k,
                                .dtype = CPU_F32,
                                .k = g->qk_dim,
                                .n = h->keys,
                                .k_stride = 1,
                                .n_stride = g->k_stride.row};
  for (; h->packed_keys < limit; h->packed_keys += CPU_PANEL)
    pack_panel(&keys, h->packed_keys / CPU_PANEL, h->plan.keys + h->packed_keys * g->qk_dim);
  for (; !h->values_in_place && h->packed_values < limit; ++h->packed_values) {
    const float *in = h->v + h->packed_values * g->v_stride.row;
    for (int64_t u = 0; u < g->v_dim; u += CPU_PANEL) {
      int64_t columns = g->v_dim - u < CPU_PANEL ? g->v_dim - u : CPU_PANEL;
      float *out = h->plan.values + u * g->kv_rows + h->packed_values * CPU_PANEL;
      memcpy(out, in + u, (size_t)columns * sizeof(float));
      memset(out + columns, 0, (size_t)(CPU_PANEL - columns) * sizeof(float));
    }
  }
}

/* scores[count][limit rounded up to 64] = Q K^T */
CPU_STATIC void attention_scores(const attention_head *h, int64_t row, int64_t count,
                                 int64_t limit) {
  const cpu_attention_args *g = h->g;
  const int64_t tiles_high = (count + TILE_ROWS - 1) / TILE_ROWS;
  if (g->qk_dim == 0) {
    memset(h->plan.scores, 0, (size_t)(count * h->padded_keys) * sizeof(float));
    return;
  }
  for (int64_t j = 0; j < limit; j += CPU_PANEL) {
    int64_t r = 0;
    for (int64_t b = 0; b < tiles_high; ++b) {
      int64_t height = (count - r + tiles_high - b - 1) / (tiles_high - b);
      tile_job t = {.a = h->q + (row + r) * g->q_stride.row,
                    .a_stride = g->q_stride.row,
                    .b = h->plan.keys + j * g->qk_dim,
                    .b_stride = CPU_PANEL,
                    .c = h->plan.scores + r * h->padded_keys + j,
                    .c_stride = h->padded_keys,
                    .steps = g->qk_dim};
      tile_chains(&t, height, PANEL_VECTORS, 1);
      r += height;
    }
  }
}

/* Rows [row, row + count) of the output: weights times values, times 1 / sum. */
CPU_STATIC void attention_output(const attention_head *h, int64_t row, int64_t count, int64_t limit,
                                 const float *inverse) {
  const cpu_attention_args *g = h->g;
  float result[TILE_ROWS * CPU_PANEL];
  for (int64_t u = 0; u < g->v_dim; u += CPU_PANEL) {
    const int64_t columns = g->v_dim - u < CPU_PANEL ? g->v_dim - u : CPU_PANEL;
    for (int64_t r = 0; r < count; r += TILE_ROWS) {
      const int64_t height = count - r < TILE_ROWS ? count - r : TILE_ROWS;
      tile_job t = {.a = h->plan.scores + r * h->padded_keys,
                    .a_stride = h->padded_keys,
                    .b = h->values_in_place ? h->v + u : h->plan.values + u * g->kv_rows,
                    .b_stride = h->values_in_place ? g->v_stride.row : CPU_PANEL,
                    .c = result,
                    .c_stride = CPU_PANEL,
                    .steps = limit};
      memset(result, 0, limit == 0 ? sizeof result : 0);
      tile_chains(&t, height, (columns + 15) / 16, 1);
      for (int64_t i = 0; i < height; ++i) {
        float *out = h->out + (row + r + i) * g->out_stride.row + u;
        for (int64_t c = 0; c < columns; c += 16) {
          v16 v = v16_mul(v16_load(result + i * CPU_PANEL + c), v16_set(inverse[r + i]));
          store_row(out + c, columns - c, v16_add(v, v16_zero())); /* -0 becomes 0 */
        }
      }
    }
  }
}

CPU_STATIC void attention_block(attention_head *h, int64_t row, int64_t count) {
  const cpu_attention_args *g = h->g;
  const int plain =
      h->mask_add == NULL && h->mask_keep == NULL && !(g->softcap > 0.0f) && g->window <= 0;
  const int64_t limit = attention_keys_seen(g, h->keys, row + count - 1).end;
  float inverse[ATTENTION_ROWS];
  attention_pack(h, limit);
  attention_scores(h, row, count, limit);
  for (int64_t r = 0; r < count; ++r) {
    const cpu_range seen = attention_keys_seen(g, h->keys, row + r);
    float *p = h->plan.scores + r * h->padded_keys;
    inverse[r] = plain ? attention_weights(h, 1, row + r, seen, limit, p)
                       : attention_weights(h, 0, row + r, seen, limit, p);
  }
  attention_output(h, row, count, limit, inverse);
}

/* As one batch entry sees them: with its own offset. */
CPU_INLINE cpu_attention_args attention_args_of(const cpu_attention_args *args, int64_t batch) {
  cpu_attention_args own = *args;
  own.causal_offset = args->offsets == NULL ? args->causal_offset : args->offsets[batch];
  return own;
}

CPU_STATIC void attention_share(const cpu_attention_args *args, int64_t batch, int64_t head,
                                cpu_range blocks, void *workspace) {
  const cpu_attention_args own = attention_args_of(args, batch), *const g = &own;
  const int64_t kv_head = head / (g->heads / g->kv_heads);
  const int64_t mask_at = batch * g->mask_stride[0] + head * g->mask_stride[1];
  attention_head h = {.g = g,
                      .q = g->q + batch * g->q_stride.batch + head * g->q_stride.head,
                      .k = g->k + batch * g->k_stride.batch + kv_head * g->k_stride.head,
                      .v = g->v + batch * g->v_stride.batch + kv_head * g->v_stride.head,
                      .out = g->out + batch * g->out_stride.batch + head * g->out_stride.head,
                      .mask_add = g->mask_add == NULL ? NULL : g->mask_add + mask_at,
                      .mask_keep = g->mask_keep == NULL ? NULL : g->mask_keep + mask_at,
                      .keys = g->kv_valid == NULL ? g->kv_rows : g->kv_valid[batch],
                      .values_in_place = g->v_dim % 16 == 0 && blocks.end - blocks.begin == 1};
  attention_divide_workspace(workspace, g->kv_rows, g->qk_dim, g->v_dim, &h.plan);
  h.padded_keys = h.plan.padded_keys;
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const int64_t row = b * ATTENTION_ROWS;
    const int64_t rest = g->q_rows - row;
    attention_block(&h, row, rest < ATTENTION_ROWS ? rest : ATTENTION_ROWS);
  }
}

#endif
