/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.RowAttention: writes the keys and values of token rows into pages and attends to what lies
 * before each row; see kernels/attention_rows.h. Pages that come out are those that came in, with
 * the rows written: where both lie at one address, nothing else is touched. */
#include <math.h>

#include "../kernels/attention_rows.h"
#include "../kernels/kernels.h"
#include "loop.h"

enum { IN_Q, IN_K, IN_V, IN_POSITION, IN_SEQUENCE, IN_TABLE, IN_KEYS, IN_VALUES, IN_SLOPES, IN_COPIES };

typedef struct row_plan {
  cpu_row_attention_args sizes; /* no pointers */
  int64_t sequences, pool;      /* rows of the table; pages */
} row_plan;

/* Every row's place, and the pages of all that it sees. */
static opipe_status check_rows(const cpu_call *call, const cpu_row_attention_args *g,
                               opipe_error *err) {
  const row_plan *plan = call->plan;
  const int64_t room = g->pages * g->page;
  for (int64_t r = 0; r < g->rows; ++r) {
    const int64_t sequence = g->sequence[r], position = g->position[r];
    if (sequence < 0)
      continue;
    if (sequence >= plan->sequences) {
      return cpu_fail(call, err, OPIPE_E_INVALID,
                      "row %lld is of sequence %lld, the table has %lld", (long long)r,
                      (long long)sequence, (long long)plan->sequences);
    }
    if (position < 0 || position >= room) {
      return cpu_fail(call, err, OPIPE_E_INVALID,
                      "row %lld is at position %lld, 0 to %lld have pages", (long long)r,
                      (long long)position, (long long)(room - 1));
    }
    const int64_t first = g->window > 0 && position >= g->window ? position - g->window + 1 : 0;
    for (int64_t p = first / g->page; p <= position / g->page; ++p) {
      const int64_t page = g->table[sequence * g->pages + p];
      if (page < 0 || page >= plan->pool) {
        return cpu_fail(call, err, OPIPE_E_INVALID,
                        "row %lld needs page %lld of sequence %lld, which is %lld of %lld",
                        (long long)r, (long long)p, (long long)sequence, (long long)page,
                        (long long)plan->pool);
      }
    }
  }
  return OPIPE_OK;
}

/* Both pages of every copy, and its tokens. */
static opipe_status check_copies(const cpu_call *call, const cpu_row_attention_args *g,
                                 opipe_error *err) {
  const row_plan *plan = call->plan;
  for (int64_t c = 0; c < g->n_copies; ++c) {
    const int64_t *copy = g->copies + 3 * c;
    if (copy[0] < 0)
      continue;
    if (copy[0] >= plan->pool || copy[1] < 0 || copy[1] >= plan->pool || copy[2] < 0 ||
        copy[2] > g->page) {
      return cpu_fail(call, err, OPIPE_E_INVALID,
                      "copy %lld is of %lld tokens from page %lld to page %lld; there are %lld "
                      "pages of %lld",
                      (long long)c, (long long)copy[2], (long long)copy[0], (long long)copy[1],
                      (long long)plan->pool, (long long)g->page);
    }
  }
  return OPIPE_OK;
}

/* The pages to write: those that come out, else those that come in. */
static float *pages_of(const cpu_call *call, uint32_t which) {
  const cpu_tensor *out = call->n_out > 1 + which ? &call->out[1 + which] : NULL;
  return out != NULL && out->data != NULL ? out->data : call->in[IN_KEYS + which].data;
}

static void bind_rows(const cpu_call *call, cpu_row_attention_args *g) {
  const row_plan *plan = call->plan;
  *g = plan->sizes;
  g->q = call->in[IN_Q].data;
  g->k = call->in[IN_K].data;
  g->v = call->in[IN_V].data;
  g->position = call->in[IN_POSITION].data;
  g->sequence = call->in[IN_SEQUENCE].data;
  g->table = call->in[IN_TABLE].data;
  g->slopes = call->n_in > IN_SLOPES ? call->in[IN_SLOPES].data : NULL;
  g->copies = call->n_in > IN_COPIES ? call->in[IN_COPIES].data : NULL;
  g->out = call->out[0].data;
  g->key_pages = pages_of(call, 0);
  g->value_pages = pages_of(call, 1);
  g->workspace = call->workspace;
}

static void keep_pages(const cpu_call *call) {
  for (uint32_t i = 0; i < 2; ++i) {
    const cpu_tensor *from = &call->in[IN_KEYS + i];
    float *to = pages_of(call, i);
    if (from->data != to)
      memcpy(to, from->data, (size_t)from->n_bytes);
  }
}

/* One row and head in fp64. */
static void plain_row(const cpu_row_attention_args *g, int64_t r, int64_t head, double *s) {
  const int64_t kv = head / (g->heads / g->kv_heads), sequence = g->sequence[r];
  const int64_t end = g->position[r] + 1;
  const int64_t begin = g->window > 0 && end > g->window ? end - g->window : 0;
  const float *q = g->q + (r * g->heads + head) * g->qk_dim;
  float *out = g->out + (r * g->heads + head) * g->v_dim;
  double top = -(double)INFINITY, sum = 0;
  for (int64_t j = begin; j < end; ++j) {
    const float *keys = cpu_page_keys(g, sequence, kv, j - j % CPU_PANEL) + j % CPU_PANEL;
    double score = 0;
    for (int64_t d = 0; d < g->qk_dim; ++d)
      score += (double)q[d] * (double)keys[d * CPU_PANEL];
    score *= (double)g->scale;
    if (g->softcap > 0.0f)
      score = (double)g->softcap * tanh(score / (double)g->softcap);
    if (g->slopes != NULL)
      score += (double)g->slopes[head] * (double)(j + 1 - end);
    s[j] = score;
    top = score > top || isnan(score) ? score : top;
  }
  for (int64_t j = begin; j < end; ++j)
    sum += s[j] = exp(s[j] - top);
  for (int64_t d = 0; d < g->v_dim; ++d) {
    double y = 0;
    for (int64_t j = begin; j < end; ++j)
      y += s[j] / sum * (double)cpu_page_value(g, sequence, kv, j)[d];
    out[d] = (float)y;
  }
}

static opipe_status rows_reference(const cpu_call *call, opipe_error *err) {
  cpu_row_attention_args g;
  bind_rows(call, &g);
  CPU_TRY(check_rows(call, &g, err));
  CPU_TRY(check_copies(call, &g, err));
  keep_pages(call);
  cpu_attention_rows_write(&g, 0, g.kv_heads);
  memset(g.out, 0, (size_t)call->out[0].n_bytes);
  for (int64_t i = 0; i < g.rows * g.heads; ++i) {
    if (g.sequence[i / g.heads] >= 0)
      plain_row(&g, i / g.heads, i % g.heads, call->workspace);
  }
  return OPIPE_OK;
}

static opipe_status rows_fast(const cpu_call *call, opipe_error *err) {
  cpu_row_attention_args g;
  bind_rows(call, &g);
  CPU_TRY(check_rows(call, &g, err));
  CPU_TRY(check_copies(call, &g, err));
  keep_pages(call);
  cpu_attention_rows(call->exec, &g);
  return OPIPE_OK;
}

/* The extents, from the attributes and the pages. */
static opipe_status read_rows(cpu_prep *p, row_plan *plan) {
  const opipe_value *q = cpu_in(p, IN_Q), *keys = cpu_in(p, IN_KEYS),
                    *values = cpu_in(p, IN_VALUES), *table = cpu_in(p, IN_TABLE),
                    *copies = p->node->n_in > IN_COPIES ? cpu_in(p, IN_COPIES) : NULL;
  cpu_row_attention_args *g = &plan->sizes;
  if (q->dtype != OPIPE_FLOAT || keys->dtype != OPIPE_FLOAT || values->dtype != OPIPE_FLOAT)
    return cpu_refuse(p, "keeps keys and values as float, not %s", opipe_dtype_name(keys->dtype));
  g->heads = opipe_attr_int(p->node, "num_heads", 0);
  g->kv_heads = opipe_attr_int(p->node, "kv_num_heads", 0);
  if (q->rank != 2 || keys->rank != 4 || values->rank != 4 || table->rank != 2 || g->kv_heads < 1 ||
      g->heads < 1 || g->heads % g->kv_heads != 0) {
    return cpu_invalid(p, "%lld heads of queries and %lld of keys", (long long)g->heads,
                       (long long)g->kv_heads);
  }
  g->rows = q->shape[0];
  g->page = keys->shape[2];
  g->qk_dim = keys->shape[3];
  g->v_dim = values->shape[3];
  g->pages = table->shape[1];
  plan->sequences = table->shape[0];
  plan->pool = keys->shape[0];
  g->n_copies = copies == NULL || copies->rank != 2 ? 0 : copies->shape[0];
  if (g->page < 1 || g->page % CPU_PANEL != 0) {
    return cpu_refuse(p, "a page has %lld tokens, no multiple of %d", (long long)g->page,
                      (int)CPU_PANEL);
  }
  g->scale = (float)opipe_attr_float(p->node, "scale", 1.0);
  g->softcap = (float)opipe_attr_float(p->node, "softcap", 0.0);
  g->window = opipe_attr_int(p->node, "left_window_size", -1) + 1;
  return OPIPE_OK;
}

static opipe_status check_shapes(cpu_prep *p, const row_plan *plan) {
  const cpu_row_attention_args *g = &plan->sizes;
  const int64_t shape[IN_COPIES + 1][4] = {{g->rows, g->heads * g->qk_dim},
                                           {g->rows, g->kv_heads * g->qk_dim},
                                           {g->rows, g->kv_heads * g->v_dim},
                                           {g->rows},
                                           {g->rows},
                                           {plan->sequences, g->pages},
                                           {plan->pool, g->kv_heads, g->page, g->qk_dim},
                                           {plan->pool, g->kv_heads, g->page, g->v_dim},
                                           {g->heads},
                                           {g->n_copies, 3}};
  static const uint32_t rank[IN_COPIES + 1] = {2, 2, 2, 1, 1, 2, 4, 4, 1, 2};
  for (uint32_t i = 0; i < p->node->n_in; ++i) {
    const opipe_value *x = cpu_in(p, i);
    const bool whole = (i >= IN_POSITION && i <= IN_TABLE) || i == IN_COPIES;
    const uint32_t dtype = whole ? OPIPE_INT64 : OPIPE_FLOAT;
    if (x != NULL && (x->rank != rank[i] || x->dtype != dtype ||
                      memcmp(x->shape, shape[i], rank[i] * sizeof(int64_t)) != 0)) {
      return cpu_invalid(p, "'%.80s' does not fit %lld rows of %lld heads", x->name,
                         (long long)g->rows, (long long)g->heads);
    }
    if (x != NULL)
      cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  }
  const int64_t y[2] = {g->rows, g->heads * g->v_dim};
  CPU_TRY(cpu_expect(p, 0, OPIPE_FLOAT, y, 2));
  for (uint32_t o = 1; o < p->node->n_out; ++o) {
    if (p->node->out[o] != OPIPE_NONE)
      CPU_TRY(cpu_expect(p, o, OPIPE_FLOAT, shape[IN_KEYS + o - 1], 4));
  }
  return OPIPE_OK;
}

static opipe_status prepare_rows(cpu_prep *p) {
  row_plan *plan = CPU_PLAN(p, row_plan);
  uint64_t bytes = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(read_rows(p, plan));
  CPU_TRY(check_shapes(p, plan));
  const bool fits = p->fast
                        ? cpu_attention_rows_workspace(p->device->threads, &plan->sizes, &bytes)
                        : !__builtin_mul_overflow(plan->sizes.pages, plan->sizes.page, &bytes) &&
                              !__builtin_mul_overflow(bytes, sizeof(double), &bytes);
  if (!fits) {
    return cpu_refuse(p, "%lld pages of %lld tokens need more workspace than can be addressed",
                      (long long)plan->sizes.pages, (long long)plan->sizes.page);
  }
  cpu_want_workspace(p, bytes);
  p->step->run = p->fast ? rows_fast : rows_reference;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"RowAttention", "opipe", prepare_rows, 8, 10, 3, 0, 0},
};

const cpu_op_family cpu_family_row_attention = {ops, CPU_COUNT_OF(ops)};
