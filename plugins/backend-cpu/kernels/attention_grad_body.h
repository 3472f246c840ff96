/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of attention for one (batch, key head), included once per instruction set after
 * attention_body.h, whose masks and weights it uses. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ATTENTION_GRAD_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_ATTENTION_GRAD_BODY_H_

#include "attention_body.h"
#include "attention_grad_plan.h"
#include "gradient_body.h"

/* out[ceil(dim / 64)][held][64] = rows of a strided matrix; columns beyond dim are 0. */
CPU_STATIC void grad_pack_rows(const float *in, int64_t stride, int64_t count, int64_t dim,
                               int64_t held, float *out) {
  for (int64_t u = 0; u < dim; u += CPU_PANEL) {
    const int64_t columns = dim - u < CPU_PANEL ? dim - u : CPU_PANEL;
    for (int64_t r = 0; r < count; ++r) {
      float *to = out + u * held + r * CPU_PANEL;
      memcpy(to, in + r * stride + u, (size_t)columns * sizeof(float));
      memset(to + columns, 0, (size_t)(CPU_PANEL - columns) * sizeof(float));
    }
  }
}

/* c[count][limit rounded up to 64] = a panels, of depth `dim`. */
CPU_STATIC void grad_scores(const float *a, int64_t a_stride, int64_t count, const float *panels,
                            int64_t dim, int64_t limit, float *c, int64_t c_stride) {
  for (int64_t j = 0; j < limit; j += CPU_PANEL) {
    for (int64_t r = 0; r < count; r += TILE_ROWS) {
      const int64_t height = count - r < TILE_ROWS ? count - r : TILE_ROWS;
      tile_job t = {.a = a + r * a_stride,
                    .a_stride = a_stride,
                    .b = panels + j * dim,
                    .b_stride = CPU_PANEL,
                    .c = c + r * c_stride + j,
                    .c_stride = c_stride,
                    .steps = dim};
      tile_chains(&t, height, PANEL_VECTORS, 1);
    }
  }
}

/* out[count][dim] = a[count][limit] rows, rows packed by grad_pack_rows. */
CPU_STATIC void grad_times_rows(const float *a, int64_t a_stride, int64_t count, const float *rows,
                                int64_t held, int64_t limit, int64_t dim, float *out,
                                int64_t out_stride) {
  float result[TILE_ROWS * CPU_PANEL];
  for (int64_t u = 0; u < dim; u += CPU_PANEL) {
    const int64_t columns = dim - u < CPU_PANEL ? dim - u : CPU_PANEL;
    for (int64_t r = 0; r < count; r += TILE_ROWS) {
      const int64_t height = count - r < TILE_ROWS ? count - r : TILE_ROWS;
      tile_job t = {.a = a + r * a_stride,
                    .a_stride = a_stride,
                    .b = rows + u * held,
                    .b_stride = CPU_PANEL,
                    .c = result,
                    .c_stride = CPU_PANEL,
                    .steps = limit};
      memset(result, 0, limit == 0 ? sizeof result : 0);
      tile_chains(&t, height, (columns + 15) / 16, 1);
      for (int64_t i = 0; i < height; ++i) {
        memcpy(out + (r + i) * out_stride + u, result + i * CPU_PANEL,
               (size_t)columns * sizeof(float));
      }
    }
  }
}

/* sum[limit][dim] += a[count][limit]^T rows[count][dim]; sum in panels of `held` rows. */
CPU_STATIC void grad_add_turned(const attention_grad_plan *plan, const float *a, int64_t count,
                                const float *rows, int64_t limit, int64_t dim, float *sum) {
  transpose_share(a, plan->padded, count, limit, plan->turned, GRAD_ROWS);
  for (int64_t u = 0; u < dim; u += CPU_PANEL) {
    const int64_t columns = dim - u < CPU_PANEL ? dim - u : CPU_PANEL;
    for (int64_t k = 0; k < limit; k += TILE_ROWS) {
      const int64_t height = limit - k < TILE_ROWS ? limit - k : TILE_ROWS;
      tile_job t = {.a = plan->turned + k * GRAD_ROWS,
                    .a_stride = GRAD_ROWS,
                    .b = rows + u * GRAD_ROWS,
                    .b_stride = CPU_PANEL,
                    .c = sum + u * plan->padded + k * CPU_PANEL,
                    .c_stride = CPU_PANEL,
                    .steps = count,
                    .mode = TILE_RESUME};
      tile_columns(&t, height, (columns + 15) / 16);
    }
  }
}

/* p becomes probabilities and ds, which holds dP, the gradient of the raw scores. */
CPU_STATIC void grad_softmax_row(const attention_head *h, int plain, int64_t row, int64_t limit,
                                 float *p, float *ds, float *dscores) {
  const cpu_range seen = attention_keys_seen(h->g, h->keys, row);
  const v16 inverse = v16_set(plain ? attention_weights(h, 1, row, seen, limit, p)
                                    : attention_weights(h, 0, row, seen, limit, p));
  const v16 scale = v16_set(h->g->scale);
  row_sum dot = row_sum_start(0.0f);
  CPU_ROW_LOOP(limit, {
    const v16 w = v16_mul(v16_load_part_or(p + c, n, 0.0f), inverse);
    const v16 d = v16_load_part_or(ds + c, n, 0.0f);
    store_row(p + c, n, w);
    dot.part[q] = v16_select(v16_less(v16_zero(), w), v16_fma(w, d, dot.part[q]), dot.part[q]);
  });
  const v16 total = v16_set(row_sum_total(&dot));
  for (int64_t c = 0; c < limit; c += 16) {
    const int64_t n = limit - c;
    const v16 w = v16_load_part_or(p + c, n, 0.0f);
    v16 d = v16_mul(w, v16_sub(v16_load_part_or(ds + c, n, 0.0f), total));
    d = v16_select(v16_less(v16_zero(), w), d, v16_zero());
    if (dscores != NULL)
      store_row(dscores + c, n, d);
    store_row(ds + c, n, v16_mul(d, scale));
  }
}

/* Query rows [row, row + count) of one head. */
CPU_STATIC void grad_block(const cpu_attention_grad_args *a, const attention_head *h,
                           const attention_grad_plan *plan, int64_t row, int64_t count,
                           const float *dy, float *dq, float *dscores) {
  const cpu_attention_args *g = &a->forward;
  const int64_t limit = attention_keys_seen(g, h->keys, row + count - 1).end;
  const int plain = h->mask_add == NULL && h->mask_keep == NULL && g->window <= 0;
  const float *q = h->q + row * g->q_stride.row;
  const float *y = dy + row * a->dy_stride.row;
  grad_scores(q, g->q_stride.row, count, plan->keys, g->qk_dim, limit, plan->p, plan->padded);
  grad_scores(y, a->dy_stride.row, count, plan->values, g->v_dim, limit, plan->ds, plan->padded);
  for (int64_t r = 0; r < count; ++r) {
    grad_softmax_row(h, plain, row + r, limit, plan->p + r * plan->padded,
                     plan->ds + r * plan->padded,
                     dscores == NULL ? NULL : dscores + (row + r) * g->kv_rows);
  }
  if (dq != NULL) {
    grad_times_rows(plan->ds, plan->padded, count, plan->k_rows, plan->padded, limit, g->qk_dim,
                    dq + row * a->dq_stride.row, a->dq_stride.row);
  }
  if (a->dv != NULL) {
    grad_pack_rows(y, a->dy_stride.row, count, g->v_dim, GRAD_ROWS, plan->rows);
    grad_add_turned(plan, plan->p, count, plan->rows, limit, g->v_dim, plan->dv);
  }
  if (a->dk != NULL) {
    grad_pack_rows(q, g->q_stride.row, count, g->qk_dim, GRAD_ROWS, plan->rows);
    grad_add_turned(plan, plan->ds, count, plan->rows, limit, g->qk_dim, plan->dk);
  }
}

CPU_STATIC void grad_store(const attention_grad_plan *plan, const float *sum, int64_t rows,
                           int64_t dim, float *out, int64_t out_stride) {
  for (int64_t u = 0; u < dim; u += CPU_PANEL) {
    const int64_t columns = dim - u < CPU_PANEL ? dim - u : CPU_PANEL;
    for (int64_t r = 0; r < rows; ++r) {
      memcpy(out + r * out_stride + u, sum + u * plan->padded + r * CPU_PANEL,
             (size_t)columns * sizeof(float));
    }
  }
}

/* Panels of a matrix whose rows are rows of the panels' source: M^T, [ceil(rows / 64)][dim][64]. */
CPU_STATIC void grad_pack_turned(const float *in, int64_t stride, int64_t rows, int64_t dim,
                                 float *out) {
  const cpu_pack_source source = {
      .data = in, .dtype = CPU_F32, .k = dim, .n = rows, .k_stride = 1, .n_stride = stride};
  for (int64_t j = 0; j < rows; j += CPU_PANEL)
    pack_panel(&source, j / CPU_PANEL, out + j * dim);
}

CPU_STATIC void attention_grad_share(const cpu_attention_grad_args *a, int64_t batch,
                                     int64_t kv_head, float *workspace) {
  const cpu_attention_args *g = &a->forward;
  const int64_t group = g->heads / g->kv_heads;
  attention_grad_plan plan;
  attention_head h = {.g = g,
                      .k = g->k + batch * g->k_stride.batch + kv_head * g->k_stride.head,
                      .v = g->v + batch * g->v_stride.batch + kv_head * g->v_stride.head,
                      .keys = g->kv_valid == NULL ? g->kv_rows : g->kv_valid[batch]};
  attention_grad_divide(workspace, g->kv_rows, g->qk_dim, g->v_dim, &plan);
  h.padded_keys = plan.padded;
  grad_pack_turned(h.k, g->k_stride.row, h.keys, g->qk_dim, plan.keys);
  grad_pack_turned(h.v, g->v_stride.row, h.keys, g->v_dim, plan.values);
  grad_pack_rows(h.k, g->k_stride.row, h.keys, g->qk_dim, plan.padded, plan.k_rows);
  memset(plan.dk, 0, (size_t)(plan.padded * grad_padded(g->qk_dim)) * sizeof(float));
  memset(plan.dv, 0, (size_t)(plan.padded * grad_padded(g->v_dim)) * sizeof(float));
  for (int64_t i = 0; i < group; ++i) {
    const int64_t head = kv_head * group + i;
    const int64_t mask_at = batch * g->mask_stride[0] + head * g->mask_stride[1];
    const float *dy = a->dy + batch * a->dy_stride.batch + head * a->dy_stride.head;
    float *dq =
        a->dq == NULL ? NULL : a->dq + batch * a->dq_stride.batch + head * a->dq_stride.head;
    float *dscores =
        a->dscores == NULL ? NULL : a->dscores + (batch * g->heads + head) * g->q_rows * g->kv_rows;
    h.q = g->q + batch * g->q_stride.batch + head * g->q_stride.head;
    h.mask_add = g->mask_add == NULL ? NULL : g->mask_add + mask_at;
    h.mask_keep = g->mask_keep == NULL ? NULL : g->mask_keep + mask_at;
    for (int64_t row = 0; row < g->q_rows; row += GRAD_ROWS) {
      const int64_t rest = g->q_rows - row;
      grad_block(a, &h, &plan, row, rest < GRAD_ROWS ? rest : GRAD_ROWS, dy, dq, dscores);
    }
  }
  if (a->dk != NULL) {
    grad_store(&plan, plan.dk, g->kv_rows, g->qk_dim,
               a->dk + batch * a->dk_stride.batch + kv_head * a->dk_stride.head, a->dk_stride.row);
  }
  if (a->dv != NULL) {
    grad_store(&plan, plan.dv, g->kv_rows, g->v_dim,
               a->dv + batch * a->dv_stride.batch + kv_head * a->dv_stride.head, a->dv_stride.row);
  }
}

#endif
