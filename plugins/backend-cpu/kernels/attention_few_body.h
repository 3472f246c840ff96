/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of few query rows, included once per instruction set after attention_body.h.
 *
 * The rows of all heads that share a kv head go together. 64 keys at a time are turned into a panel
 * that stays in the first-level cache and serves every row; values are read where they lie, a chain
 * of 256 keys at a time. The order of additions is that of attention_body.h, so the bits are too.
 */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ATTENTION_FEW_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_ATTENTION_FEW_BODY_H_

#include "attention_body.h"

/* The heads at work. */
typedef struct few_heads {
  const cpu_attention_args *g;
  const float *k, *v; /* of the kv head */
  int64_t rows;       /* of all heads */
  cpu_range seen;     /* keys that any row sees, from the beginning of a chain on */
  attention_few_plan plan;
} few_heads;

/* panel[qk_dim][64]: keys [at, at + n), n <= 64, zeros up to a whole vector. */
CPU_STATIC void few_turn(const few_heads *h, int64_t at, int64_t n) {
  const cpu_attention_args *g = h->g;
  const int64_t stride = g->k_stride.row;
  const int64_t depth = g->qk_dim - g->qk_dim % 16;
  for (int64_t u = 0; u < n; u += 16) {
    const float *from = h->k + (at + u) * stride;
    const int64_t m = n - u < 16 ? n - u : 16;
    float *to = h->plan.panel + u;
    for (int64_t d = 0; d < depth; d += 16) {
      float block[16 * 16] = {0};
      if (m == 16) {
        v16_transpose(from + d, stride, to + d * CPU_PANEL, CPU_PANEL);
        continue;
      }
      for (int64_t i = 0; i < m; ++i)
        v16_store(block + 16 * i, v16_load(from + i * stride + d));
      v16_transpose(block, 16, to + d * CPU_PANEL, CPU_PANEL);
    }
    for (int64_t d = depth; d < g->qk_dim; ++d) {
      for (int64_t i = 0; i < 16; ++i)
        to[d * CPU_PANEL + i] = i < m ? from[i * stride + d] : 0.0f;
    }
  }
}

/* scores[rows][seen, up to whole vectors] = Q K^T */
CPU_STATIC void few_scores(const few_heads *h) {
  const cpu_attention_args *g = h->g;
  const int64_t padded = h->plan.padded_keys;
  if (g->qk_dim == 0) {
    memset(h->plan.scores, 0, (size_t)(h->rows * padded) * sizeof(float));
    return;
  }
  for (int64_t j = h->seen.begin; j < h->seen.end; j += CPU_PANEL) {
    const int64_t n = h->seen.end - j < CPU_PANEL ? h->seen.end - j : CPU_PANEL;
    few_turn(h, j, n);
    for (int64_t r = 0; r < h->rows; r += TILE_ROWS) {
      tile_job t = {.a = h->plan.q + r * g->qk_dim,
                    .a_stride = g->qk_dim,
                    .b = h->plan.panel,
                    .b_stride = CPU_PANEL,
                    .c = h->plan.scores + r * padded + j,
                    .c_stride = padded,
                    .steps = g->qk_dim};
      tile_chains(&t, h->rows - r < TILE_ROWS ? h->rows - r : TILE_ROWS, (n + 15) / 16, 1);
    }
  }
}

/* result[rows][v_dim] = weights V. Chains before `seen` would add zeros. */
CPU_STATIC void few_values(const few_heads *h) {
  const cpu_attention_args *g = h->g;
  if (h->seen.begin >= h->seen.end)
    memset(h->plan.result, 0, (size_t)(h->rows * g->v_dim) * sizeof(float));
  for (int64_t j = h->seen.begin; j < h->seen.end; j += CPU_CHAIN) {
    for (int64_t u = 0; u < g->v_dim; u += CPU_PANEL) {
      const int64_t columns = g->v_dim - u < CPU_PANEL ? g->v_dim - u : CPU_PANEL;
      for (int64_t r = 0; r < h->rows; r += TILE_ROWS) {
        tile_job t = {.a = h->plan.scores + r * h->plan.padded_keys + j,
                      .a_stride = h->plan.padded_keys,
                      .b = h->v + j * g->v_stride.row + u,
                      .b_stride = g->v_stride.row,
                      .c = h->plan.result + r * g->v_dim + u,
                      .c_stride = g->v_dim,
                      .steps = h->seen.end - j < CPU_CHAIN ? h->seen.end - j : CPU_CHAIN,
                      .mode = j == h->seen.begin ? TILE_SET : TILE_ADD};
        tile_columns(&t, h->rows - r < TILE_ROWS ? h->rows - r : TILE_ROWS, columns / 16);
      }
    }
  }
}

/* Head `head`, whose rows stand in the buffers from `first` on. */
CPU_STATIC attention_head few_head(const few_heads *h, int64_t batch, int64_t head) {
  const cpu_attention_args *g = h->g;
  const int64_t mask_at = batch * g->mask_stride[0] + head * g->mask_stride[1];
  return (attention_head){.g = g,
                          .q = g->q + batch * g->q_stride.batch + head * g->q_stride.head,
                          .out = g->out + batch * g->out_stride.batch + head * g->out_stride.head,
                          .mask_add = g->mask_add == NULL ? NULL : g->mask_add + mask_at,
                          .mask_keep = g->mask_keep == NULL ? NULL : g->mask_keep + mask_at,
                          .keys = g->kv_valid == NULL ? g->kv_rows : g->kv_valid[batch]};
}

/* Query rows of a head, from row `first` of the buffers on: their weights, or their results. */
CPU_STATIC void few_weights(const few_heads *h, const attention_head *head, int64_t first,
                            float *inverse) {
  const cpu_attention_args *g = h->g;
  const int plain =
      head->mask_add == NULL && head->mask_keep == NULL && !(g->softcap > 0.0f) && g->window <= 0;
  for (int64_t r = 0; r < g->q_rows; ++r) {
    const cpu_range seen = attention_keys_seen(g, head->keys, r);
    float *p = h->plan.scores + (first + r) * h->plan.padded_keys;
    inverse[first + r] = plain ? attention_weights(head, 1, r, seen, h->seen.end, p)
                               : attention_weights(head, 0, r, seen, h->seen.end, p);
  }
}

CPU_STATIC void few_finish(const few_heads *h, const attention_head *head, int64_t first,
                           const float *inverse) {
  const cpu_attention_args *g = h->g;
  for (int64_t r = 0; r < g->q_rows; ++r) {
    const float *from = h->plan.result + (first + r) * g->v_dim;
    float *out = head->out + r * g->out_stride.row;
    for (int64_t c = 0; c < g->v_dim; c += 16) {
      const v16 v = v16_mul(v16_load(from + c), v16_set(inverse[first + r]));
      v16_store(out + c, v16_add(v, v16_zero())); /* -0 becomes 0 */
    }
  }
}

CPU_STATIC void attention_few_share(const cpu_attention_args *args, int64_t batch, cpu_range heads,
                                    void *workspace) {
  const cpu_attention_args g = attention_args_of(args, batch);
  const int64_t kv_head = heads.begin / (g.heads / g.kv_heads);
  float inverse[ATTENTION_FEW_ROWS];
  few_heads h = {.g = &g,
                 .k = g.k + batch * g.k_stride.batch + kv_head * g.k_stride.head,
                 .v = g.v + batch * g.v_stride.batch + kv_head * g.v_stride.head,
                 .rows = (heads.end - heads.begin) * g.q_rows};
  attention_divide_few(workspace, &g, h.rows, &h.plan);
  for (int64_t i = heads.begin; i < heads.end; ++i) {
    const attention_head head = few_head(&h, batch, i);
    h.seen = attention_keys_seen(&g, head.keys, g.q_rows - 1);
    h.seen.begin = attention_keys_seen(&g, head.keys, 0).begin / CPU_CHAIN * CPU_CHAIN;
    for (int64_t r = 0; r < g.q_rows; ++r) {
      memcpy(h.plan.q + ((i - heads.begin) * g.q_rows + r) * g.qk_dim, head.q + r * g.q_stride.row,
             (size_t)g.qk_dim * sizeof(float));
    }
  }
  few_scores(&h);
  for (int64_t i = heads.begin; i < heads.end; ++i) {
    const attention_head head = few_head(&h, batch, i);
    few_weights(&h, &head, (i - heads.begin) * g.q_rows, inverse);
  }
  few_values(&h);
  for (int64_t i = heads.begin; i < heads.end; ++i) {
    const attention_head head = few_head(&h, batch, i);
    few_finish(&h, &head, (i - heads.begin) * g.q_rows, inverse);
  }
}

#endif
