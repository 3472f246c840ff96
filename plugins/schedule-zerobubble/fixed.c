/* SPDX-License-Identifier: Apache-2.0 */
/* Orders that follow from ranks and micro-batches alone: ZB-H1 and ZB-H2 (Qi et al., Zero Bubble
 * Pipeline Parallelism, section 2), interleaved zero bubble, and the hand-made ZBV.
 */
#include "zb.h"

static uint32_t least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

void zb_lagged(const zb_model *model, uint32_t ahead, zb_order *order) {
  const uint64_t p = model->n_ranks, m = model->n_mb;
  for (uint32_t r = 0; r < p; ++r) {
    const uint64_t lag_i = (p - 1 - r) * ahead, lag_w = (p - 1) * ahead;
    for (uint64_t x = 0; x < m + lag_w; ++x) {
      if (x < m)
        zb_push(order, r, ZB_F, r, (uint32_t)x);
      if (x >= lag_i && x - lag_i < m)
        zb_push(order, r, ZB_I, r, (uint32_t)(x - lag_i));
      if (x >= lag_w)
        zb_push(order, r, ZB_W, r, (uint32_t)(x - lag_w));
    }
  }
}

/* ---- interleaved ---- */

/* Micro-batches go through a rank's stages in groups: a group passes chunk after chunk. */
typedef struct groups {
  uint32_t n;     /* groups */
  uint32_t large; /* this many hold size + 1 */
  uint32_t size;
  uint32_t chunks;
} groups;

/* The k-th (chunk, micro-batch) of a rank in forward order. */
static void forward_at(const groups *g, uint32_t k, uint32_t *out_chunk, uint32_t *out_mb) {
  const uint32_t in_large = g->large * (g->size + 1) * g->chunks;
  const bool large = k < in_large;
  const uint32_t size = large ? g->size + 1 : g->size;
  const uint32_t at = large ? k : k - in_large;
  const uint32_t group = at / (size * g->chunks), within = at % (size * g->chunks);
  const uint32_t first = large ? group * size : g->large * (g->size + 1) + group * size;
  *out_chunk = within / size;
  *out_mb = first + within % size;
}

static void push_at(const zb_model *model, const groups *g, uint32_t rank, uint32_t pass,
                    uint32_t k, zb_order *order) {
  uint32_t chunk = 0, mb = 0;
  forward_at(g, k, &chunk, &mb);
  if (pass != ZB_F)
    chunk = g->chunks - 1 - chunk;
  zb_push(order, rank, pass, chunk * model->n_ranks + rank, mb);
}

void zb_interleaved(const zb_model *model, zb_order *order) {
  const uint32_t p = model->n_ranks, m = model->n_mb, total = model->chunks * m;
  groups g = {.n = m / p > 1 ? m / p : 1, .chunks = model->chunks};
  g.size = m / g.n;
  g.large = m % g.n;
  const uint32_t first_group = g.size + (g.large > 0);
  for (uint32_t r = 0; r < p; ++r) {
    const uint32_t warm_up = least((g.chunks - 1) * first_group + (p - 1 - r), total);
    for (uint32_t k = 0; k < warm_up; ++k)
      push_at(model, &g, r, ZB_F, k, order);
    for (uint32_t k = 0; k < total + r; ++k) {
      if (k + warm_up < total)
        push_at(model, &g, r, ZB_F, k + warm_up, order);
      if (k < total)
        push_at(model, &g, r, ZB_I, k, order);
      if (k >= r)
        push_at(model, &g, r, ZB_W, k - r, order);
    }
  }
}

/* ---- ZBV ---- */

/* One rank of the V. Micro-batches beyond the real ones take part in the counting alone. */
typedef struct v_rank {
  const zb_model *model;
  zb_order *order;
  uint32_t rank;
  uint32_t next[3][2]; /* per pass and chunk */
} v_rank;

static void step(v_rank *v, uint32_t pass, uint32_t chunk) {
  const uint32_t stage = chunk == 0 ? v->rank : v->model->n_stages - 1 - v->rank;
  const uint32_t mb = v->next[pass][chunk]++;
  if (mb < v->model->n_mb)
    zb_push(v->order, v->rank, pass, stage, mb);
}

static void input_and_weight(v_rank *v, uint32_t chunk) {
  step(v, ZB_I, chunk);
  step(v, ZB_W, chunk);
}

static void v_cool_down(v_rank *v) {
  const uint32_t p = v->model->n_ranks;
  for (uint32_t i = 0; i < v->rank; ++i) {
    step(v, ZB_I, 0);
    step(v, ZB_I, 1);
  }
  for (uint32_t i = 0; i < p - v->rank; ++i)
    input_and_weight(v, 0);
  for (uint32_t left = 2; left-- > 0;) {
    while (v->next[ZB_W][left] < v->next[ZB_I][left])
      step(v, ZB_W, left);
  }
}

void zb_v_phases(const zb_model *model, zb_order *order) {
  const uint32_t p = model->n_ranks;
  const uint32_t n = model->n_mb > 2 * p - 1 ? model->n_mb : 2 * p - 1;
  for (uint32_t r = 0; r < p; ++r) {
    v_rank v = {.model = model, .order = order, .rank = r};
    for (uint32_t i = 0; i < 2 * (p - r) - 1; ++i)
      step(&v, ZB_F, 0);
    for (uint32_t i = 0; i < r; ++i) {
      step(&v, ZB_F, 1);
      step(&v, ZB_F, 0);
    }
    for (uint32_t i = 0; i < p - r; ++i) {
      step(&v, ZB_F, 1);
      input_and_weight(&v, 1);
    }
    while (v.next[ZB_F][1] < n) {
      if (v.next[ZB_F][0] < n)
        step(&v, ZB_F, 0);
      input_and_weight(&v, 0);
      step(&v, ZB_F, 1);
      input_and_weight(&v, 1);
    }
    v_cool_down(&v);
  }
}
