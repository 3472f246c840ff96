/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that become others: rows of a divided table, layers whose bias comes behind the sum,
 * partial sums and what is added to them, losses and norms over a divided axis.
 */
#include <string.h>

#include "loader/shard/writer.h"

static const opi_value *value_of(const opi_writer *w, uint32_t v) {
  return &w->s->g->values[v];
}

static opipe_status add_aside(opi_writer *w, uint32_t v, const opi_aside *more, uint32_t one) {
  opi_aside *aside = &w->aside[v];
  const uint32_t n = aside->n + (more == NULL ? 1 : more->n);
  uint32_t *list = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)n + 1);
  if (list == NULL)
    return opi_fail_nomem(w->err, n * 4, "a member's node");
  if (aside->n != 0)
    memcpy(list, aside->list, aside->n * sizeof(*list));
  if (more != NULL && more->n != 0)
    memcpy(list + aside->n, more->list, more->n * sizeof(*list));
  if (more == NULL)
    list[aside->n] = one;
  *aside = (opi_aside){list, n};
  return OPIPE_OK;
}

/* ---- partial sums ---- */

static opipe_status rows(opi_writer *w, uint32_t n) {
  const opi_node *node = &w->s->g->nodes[n];
  opi_labels *l = w->s->decisions[n].reads[0].labels;
  opi_shard_run *runs;
  uint32_t n_runs = 0, in[2];
  int64_t sum = 0;
  bool shared = false;
  opi_attrs attrs = {.n = 0};
  OPI_TRY(opi_w_read(w, n, 0, &in[0]));
  OPI_TRY(opi_w_read(w, n, 1, &in[1]));
  OPI_TRY(opi_w_runs(w, l, &runs, &n_runs, &sum, &shared));
  opi_attrs_int(&attrs, "first", runs[0].first);
  opi_attrs_int(&attrs, "whole", value_of(w, node->in[0])->shape[0]);
  OPI_TRY(opi_w_origin(w, node));
  return opi_k_node(&w->b, "GatherPart", "opipe", 1, in, 2, 1, &attrs, &w->own[node->out[0]],
                    w->err);
}

/* A product without what a layer adds. */
static opipe_status sum(opi_writer *w, uint32_t n) {
  const opi_node *node = &w->s->g->nodes[n];
  opi_labels *none[1] = {NULL};
  uint32_t *in = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)node->n_in + 1), bias, beta;
  const bool layer = opi_op_of(node)->sums == OPI_SUMS_LAYER && opi_node_in(node, 2) != OPIPE_NONE;
  if (in == NULL)
    return opi_fail_nomem(w->err, node->n_in * 4, "a member's node");
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (layer && i == 2)
      in[i] = OPIPE_NONE;
    else
      OPI_TRY(opi_w_read(w, n, i, &in[i]));
  }
  OPI_TRY(opi_w_node(w, n, in, NULL, none, OPI_NAMES_PARTIAL, &w->own[node->out[0]]));
  if (!layer)
    return OPIPE_OK;
  OPI_TRY(opi_w_added(w, n, 2, &bias));
  if (opi_attr_float(node, "beta", 1) != 1) {
    OPI_TRY(opi_k_const(beta = opi_b_const_scalar(&w->b, value_of(w, node->in[2])->dtype,
                                                  opi_attr_float(node, "beta", 1)),
                        w->err));
    OPI_TRY(opi_b_op2(&w->b, "Mul", bias, beta, &bias, w->err));
  }
  return add_aside(w, node->out[0], NULL, bias);
}

static opipe_status add(opi_writer *w, uint32_t n) {
  const opi_node *node = &w->s->g->nodes[n];
  const uint32_t y = node->out[0];
  uint32_t parts[2], n_parts = 0, whole;
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t v = node->in[i];
    if (w->s->decisions[n].reads[i].kind == OPI_READ_OWN) {
      parts[n_parts++] = w->own[v];
      OPI_TRY(add_aside(w, y, &w->aside[v], 0));
      continue;
    }
    OPI_TRY(opi_w_added(w, n, i, &whole));
    OPI_TRY(add_aside(w, y, NULL, whole));
  }
  w->own[y] = parts[0];
  OPI_TRY(opi_w_origin(w, node));
  return n_parts == 1 ? OPIPE_OK : opi_b_op2(&w->b, "Add", parts[0], parts[1], &w->own[y], w->err);
}

/* ---- cross entropy ---- */

static opipe_status loss(opi_writer *w, uint32_t n) {
  const opi_node *node = &w->s->g->nodes[n];
  const opi_labels *l = w->s->labels[node->in[0]];
  int64_t *parts = OPI_ARENA_ARRAY(&w->scratch, int64_t, w->s->width);
  uint32_t in[3] = {OPIPE_NONE, OPIPE_NONE, OPIPE_NONE};
  if (parts == NULL)
    return opi_fail_nomem(w->err, w->s->width * 8, "a member's node");
  for (uint32_t r = 0; r < w->s->width; ++r) {
    uint32_t n_runs = 0;
    bool shared = false;
    if (opi_sh_runs(w->s, l, r, &w->scratch, &n_runs, &parts[r], &shared) == NULL)
      return opi_fail_nomem(w->err, 64, "a member's node");
  }
  for (uint32_t i = 0; i < node->n_in; ++i)
    OPI_TRY(opi_w_read(w, n, i, &in[i]));
  const opi_divided_loss how = {.in = in,
                                .parts = parts,
                                .n_parts = w->s->width,
                                .member = w->r,
                                .reduction = opi_attr_string(node, "reduction", "mean"),
                                .ignore = opi_attr_find(node, "ignore_index")};
  OPI_TRY(opi_w_origin(w, node));
  return opi_group_cross_entropy(&w->b, &how, &w->own[node->out[0]], w->err);
}

/* ---- norms ---- */

typedef struct norm_form {
  int64_t axes[OPIPE_MAX_RANK];
  uint32_t n_axes;
  double elements; /* of the whole tensor, normalised together */
} norm_form;

/* The mean over the whole of x's divided and other normalised axes. */
static opipe_status mean_of(opi_writer *w, uint32_t x, const norm_form *f, uint32_t *out) {
  uint32_t by;
  OPI_TRY(opi_k_reduce(&w->b, "ReduceSum", 0, x, f->axes, f->n_axes, true, out, w->err));
  OPI_TRY(opi_group_sum(&w->b, *out, out, w->err));
  OPI_TRY(opi_k_const(by = opi_b_const_scalar(&w->b, OPIPE_FLOAT, f->elements), w->err));
  return opi_b_op2(&w->b, "Div", *out, by, out, w->err);
}

static opipe_status norm(opi_writer *w, uint32_t n) {
  const opi_node *node = &w->s->g->nodes[n];
  const opi_value *v = value_of(w, node->in[0]);
  opi_builder *b = &w->b;
  norm_form f = {.elements = 1};
  uint32_t x, mean, square, eps, other;
  for (int64_t d = opi_attr_int(node, "axis", v->rank - 1); d < v->rank; ++d) {
    f.axes[f.n_axes++] = d;
    f.elements *= (double)v->shape[d];
  }
  OPI_TRY(opi_w_read(w, n, 0, &x));
  OPI_TRY(opi_w_origin(w, node));
  if (opi_op_of(node)->kind == OPI_KIND_LAYER_NORM) {
    OPI_TRY(mean_of(w, x, &f, &mean));
    OPI_TRY(opi_w_spread_node(w, mean, &mean));
    OPI_TRY(opi_b_op2(b, "Sub", x, mean, &x, w->err));
  }
  OPI_TRY(opi_b_op2(b, "Mul", x, x, &square, w->err));
  OPI_TRY(mean_of(w, square, &f, &mean));
  OPI_TRY(opi_k_const(
      eps = opi_b_const_scalar(b, OPIPE_FLOAT, opi_attr_float(node, "epsilon", 1e-5)), w->err));
  OPI_TRY(opi_b_op2(b, "Add", mean, eps, &mean, w->err));
  OPI_TRY(opi_b_op1(b, "Sqrt", mean, &mean, w->err));
  OPI_TRY(opi_w_spread_node(w, mean, &mean));
  OPI_TRY(opi_b_op2(b, "Div", x, mean, &x, w->err));
  for (uint32_t i = 1; i < node->n_in && i < 3; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    OPI_TRY(opi_w_read(w, n, i, &other));
    OPI_TRY(opi_w_origin(w, node));
    OPI_TRY(opi_b_op2(b, i == 1 ? "Mul" : "Add", x, other, &x, w->err));
  }
  w->own[node->out[0]] = x;
  return OPIPE_OK;
}

opipe_status opi_w_special(opi_writer *w, uint32_t n) {
  switch (w->s->decisions[n].mode) {
    case OPI_MODE_ROWS:
      return rows(w, n);
    case OPI_MODE_SUM:
      return sum(w, n);
    case OPI_MODE_ADD:
      return add(w, n);
    case OPI_MODE_LOSS:
      return loss(w, n);
    default:
      return norm(w, n);
  }
}
