/* SPDX-License-Identifier: Apache-2.0 */
/* The loss: a scalar of the graph, or a loss attached to one of its outputs.
 *
 *   share of this micro-batch = sum of its valid terms / COUNT
 *
 * COUNT is a per-run scalar that the driver of the steps sums over the mini-batch beforehand: by
 * the count graph (labels that are not ignored, or their weights), or by the constant `count`
 * (elements of the predictions, rows of the batch).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "loader/gradient/state.h"
#include "loader/ops/group.h"

/* -- which value ------------------------------------------------------------------------------- */

static bool is_scalar(const opi_value *value) {
  uint64_t n = 0;
  return opi_dtype_is_float(value->dtype) &&
         opi_shape_elems(value->shape, (uint32_t)value->rank, &n) && n == 1;
}

static opipe_status fail_outputs(const opi_grad_state *s, const char *what, opipe_error *err) {
  const opi_graph *graph = s->bound->graph;
  opi_text text;
  char shape[96];
  opi_text_init(&text, s->options->allocator);
  for (uint32_t i = 0; i < graph->n_outputs; ++i) {
    const opi_value *v = &graph->values[graph->outputs[i]];
    opi_text_printf(&text, "%s'%s' %s %s", i == 0 ? "" : ", ", v->name, opi_dtype_name(v->dtype),
                    opi_shape_text(shape, sizeof(shape), v->shape, (uint32_t)v->rank));
  }
  const opipe_status status = opi_fail(err, OPIPE_E_INVALID, "%s; the outputs are %.300s", what,
                                       text.data != NULL ? text.data : "none");
  opi_text_release(&text);
  return status;
}

/* The only output that is a scalar (or, with a loss attached, a float of rank >= 1). */
static opipe_status only_output(opi_grad_state *s, bool scalar, opipe_error *err) {
  const opi_graph *graph = s->bound->graph;
  uint32_t n = 0;
  for (uint32_t i = 0; i < graph->n_outputs; ++i) {
    const opi_value *v = &graph->values[graph->outputs[i]];
    /* [1, 1] may be logits of one row: it is a loss when it is named. */
    if (scalar ? !is_scalar(v) || v->rank > 1 : !(opi_dtype_is_float(v->dtype) && v->rank >= 1))
      continue;
    s->target = graph->outputs[i];
    ++n;
  }
  if (n == 1)
    return OPIPE_OK;
  if (scalar) {
    return fail_outputs(s,
                        n == 0 ? "no output is a scalar float: name the loss, or the output that a "
                                 "loss is attached to"
                               : "several outputs are scalar floats: name the loss",
                        err);
  }
  return fail_outputs(s, "name the output that the loss judges", err);
}

/* For reports: a loss where there is one, else what it would be attached to. */
static opipe_status any_output(opi_grad_state *s, opipe_error *err) {
  const opi_graph *graph = s->bound->graph;
  s->loss = (opi_loss){.kind = OPI_LOSS_OUTPUT};
  if (only_output(s, true, NULL) == OPIPE_OK)
    return OPIPE_OK;
  s->loss.kind = OPI_LOSS_REPORT;
  for (uint32_t i = 0; i < graph->n_outputs; ++i) {
    s->target = graph->outputs[i];
    if (opi_dtype_is_float(graph->values[s->target].dtype))
      return OPIPE_OK;
  }
  return fail_outputs(s, "no output is a float", err);
}

opipe_status opi_grad_find_loss(opi_grad_state *s, opipe_error *err) {
  const bool scalar = s->loss.kind == OPI_LOSS_OUTPUT;
  char what[200];
  if (s->loss.kind == OPI_LOSS_REPORT)
    return any_output(s, err);
  if (s->loss.kind > OPI_LOSS_BCE)
    return opi_fail(err, OPIPE_E_INVALID, "loss kind %" PRIu32 " is not known", s->loss.kind);
  if (!(s->loss.smoothing >= 0 && s->loss.smoothing < 1)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "label smoothing is %g, it must be at least 0 and below 1", s->loss.smoothing);
  }
  if (s->loss.output == NULL)
    return only_output(s, scalar, err);
  s->target = opi_bound_value(s->bound, s->loss.output);
  if (s->target == OPIPE_NONE) {
    (void)snprintf(what, sizeof(what), "there is no '%.120s'", s->loss.output);
    return fail_outputs(s, what, err);
  }
  const opi_value *v = &s->bound->graph->values[s->target];
  if (scalar && !is_scalar(v)) {
    (void)snprintf(what, sizeof(what), "'%.120s' is not a scalar float", s->loss.output);
    return fail_outputs(s, what, err);
  }
  if (!scalar && !(opi_dtype_is_float(v->dtype) && v->rank >= 1)) {
    (void)snprintf(what, sizeof(what), "'%.120s' is not a float tensor", s->loss.output);
    return fail_outputs(s, what, err);
  }
  return OPIPE_OK;
}

/* -- labels -------------------------------------------------------------------------------------
 */

static uint32_t n_uses(const opi_graph *graph, uint32_t v) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < graph->n_nodes; ++k) {
    for (uint32_t i = 0; i < graph->nodes[k].n_in; ++i)
      n += graph->nodes[k].in[i] == v;
  }
  return n;
}

static opipe_status add_labels(opi_grad_state *s, const char *name, uint32_t dtype,
                               const int64_t *shape, uint32_t rank, opipe_error *err) {
  opi_training *t = s->training;
  if (opi_map_get(s->builder.names, name, &t->labels)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "labels '%s' would be a new input, the graph has a value of that name", name);
  }
  t->labels = opi_b_borrow(&s->builder, name, dtype, shape, rank, NULL);
  if (t->labels == OPIPE_NONE || !opi_graph_add_input(t->graph, t->labels))
    return opi_fail_nomem(err, sizeof(opi_value), "the labels");
  opi_b_value(&s->builder, t->labels)->flags &= ~(uint32_t)OPI_VALUE_BORROWED;
  return OPIPE_OK;
}

/* If the model reads the labels too, adds a second input of the same tensor for the shifted labels;
 * the model's own stays unshifted. */
static opipe_status apart(opi_grad_state *s, const char *name, uint32_t dtype, const int64_t *shape,
                          uint32_t rank, opipe_error *err) {
  opi_text text;
  opi_text_init(&text, s->options->allocator);
  opi_text_printf(&text, "%s as labels", name);
  const char *own =
      text.data == NULL ? NULL : opi_arena_strdup(s->training->graph->arena, text.data);
  opi_text_release(&text);
  return own == NULL ? opi_fail_nomem(err, strlen(name), "the labels")
                     : add_labels(s, own, dtype, shape, rank, err);
}

static opipe_status labels_input(opi_grad_state *s, uint32_t dtype, const int64_t *shape,
                                 uint32_t rank, opipe_error *err) {
  opi_training *t = s->training;
  opi_graph *graph = t->graph;
  char have[96], want[96];
  const char *name =
      opi_arena_strdup(graph->arena, s->loss.labels != NULL ? s->loss.labels : "labels");
  t->labels_name = name;
  if (name == NULL)
    return opi_fail_nomem(err, sizeof(opi_value), "the labels");
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const opi_value *v = &graph->values[graph->inputs[i]];
    if (strcmp(v->name, name) != 0)
      continue;
    /* a slice's graph may still have the tensor with all tokens: labels are the slice's */
    const bool own = s->loss.shift != 0 && n_uses(graph, graph->inputs[i]) != 0;
    const bool sliced = own && s->options->slice != NULL;
    const bool fits = v->rank == (int32_t)rank &&
                      (sliced || rank == 0 || memcmp(v->shape, shape, rank * sizeof(*shape)) == 0);
    const bool typed = v->dtype == dtype || (dtype == OPIPE_INT64 && v->dtype == OPIPE_INT32);
    if (!fits || !typed) {
      return opi_fail(err, OPIPE_E_INVALID, "labels '%s' are %s %s, the loss needs %s %s", name,
                      opi_dtype_name(v->dtype),
                      opi_shape_text(have, sizeof(have), v->shape, (uint32_t)v->rank),
                      opi_dtype_name(dtype), opi_shape_text(want, sizeof(want), shape, rank));
    }
    if (s->loss.shift != 0 && v->dtype != OPIPE_INT64) {
      return opi_fail(err, OPIPE_E_INVALID, "labels '%s' are %s, labels that are shifted %s", name,
                      opi_dtype_name(v->dtype), opi_dtype_name(OPIPE_INT64));
    }
    if (own)
      return apart(s, name, v->dtype, shape, rank, err);
    t->labels = graph->inputs[i];
    return OPIPE_OK;
  }
  return add_labels(s, name, dtype, shape, rank, err);
}

/* loss = sum / COUNT, fp32, rank 0. */
static opipe_status share(opi_grad_state *s, uint32_t sum, opipe_error *err) {
  opi_builder *b = &s->builder;
  uint32_t count, x = sum;
  OPI_TRY(opi_k_reshape(b, x, NULL, 0, &x, err));
  OPI_TRY(opi_grad_scalar(s, OPI_SCALAR_COUNT, &count, err));
  OPI_TRY(opi_k_cast(b, x, OPIPE_FLOAT, &x, err));
  OPI_TRY(opi_k_cast(b, count, OPIPE_FLOAT, &count, err));
  return opi_b_op2(b, "Div", x, count, &s->training->loss, err);
}

/* -- attached losses --------------------------------------------------------------------------- */

/* smoothing / classes * sum over valid rows of -sum of log p. */
static opipe_status smooth(opi_grad_state *s, uint32_t logits, uint32_t labels, uint32_t *io_sum,
                           opipe_error *err) {
  opi_builder *b = &s->builder;
  opi_attrs attrs = {.n = 0};
  const int64_t last = 1;
  uint32_t logp, mean, drop, none, zero, part, factor;
  opi_attrs_int(&attrs, "axis", 1);
  OPI_TRY(opi_k_one(b, "LogSoftmax", 0, &logits, 1, &attrs, &logp, err));
  OPI_TRY(opi_k_reduce(b, "ReduceMean", 0, logp, &last, 1, false, &mean, err));
  const uint32_t dtype = opi_b_value(b, labels)->dtype, real = opi_b_value(b, logits)->dtype;
  OPI_TRY(opi_k_const(none = opi_b_const_scalar(b, dtype, (double)s->loss.ignore), err));
  OPI_TRY(opi_b_op2(b, "Equal", labels, none, &drop, err));
  OPI_TRY(opi_k_const(zero = opi_b_const_scalar(b, real, 0), err));
  OPI_TRY(opi_k_where(b, drop, zero, mean, &part, err));
  OPI_TRY(opi_grad_sum_all(b, part, &part, err));
  OPI_TRY(opi_k_const(factor = opi_b_const_scalar(b, real, s->loss.smoothing), err));
  OPI_TRY(opi_b_op2(b, "Mul", part, factor, &part, err));
  OPI_TRY(opi_k_const(factor = opi_b_const_scalar(b, real, 1.0 - s->loss.smoothing), err));
  OPI_TRY(opi_b_op2(b, "Mul", *io_sum, factor, io_sum, err));
  return opi_b_op2(b, "Sub", *io_sum, part, io_sum, err);
}

static opipe_status wide(opi_grad_state *s, uint32_t x, uint32_t *out, opipe_error *err) {
  const uint32_t dtype = opi_b_value(&s->builder, x)->dtype;
  return opi_k_cast(&s->builder, x, dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT, out, err);
}

/* True for the batch axis of the loss's input. */
static bool is_batch_axis(const opi_grad_state *s, int32_t axis) {
  const opi_carry *carry = s->options->carry;
  return carry != NULL && carry[s->target].axis == axis && carry[s->target].inner == 1;
}

/* The sum of the terms; smoothing is in it. */
static opipe_status divided_sum(opi_grad_state *s, const uint32_t *in, int64_t own, uint32_t *out,
                                opipe_error *err) {
  const opi_divided_classes *classes = s->options->classes;
  const uint32_t all[3] = {in[0], in[1], OPIPE_NONE};
  const opipe_attr ignore = OPI_ATTR_I("ignore_index", s->loss.ignore);
  const opi_divided_loss how = {.in = all,
                                .parts = classes->parts,
                                .n_parts = classes->n_parts,
                                .member = classes->member,
                                .reduction = "sum",
                                .ignore = &ignore,
                                .smoothing = s->loss.smoothing};
  if (classes->member >= classes->n_parts || classes->parts[classes->member] != own) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "member %" PRIu32 " of %" PRIu32 " has %" PRId64
                    " classes, its logits %" PRId64,
                    classes->member, classes->n_parts,
                    classes->member < classes->n_parts ? classes->parts[classes->member] : 0, own);
  }
  return opi_group_cross_entropy(&s->builder, &how, out, err);
}

static opipe_status cross_entropy(opi_grad_state *s, uint32_t logits, opipe_error *err) {
  opi_builder *b = &s->builder;
  const opi_value v = *opi_b_value(b, logits);
  const uint32_t rank = (uint32_t)v.rank;
  opi_attrs attrs = {.n = 0};
  uint64_t rows = 0;
  uint32_t in[2], sum;
  if (rank < 2 || !opi_shape_elems(v.shape, rank - 1, &rows)) {
    char shape[96];
    return opi_fail(err, OPIPE_E_INVALID,
                    "cross entropy needs logits [rows..., classes], '%s' is %s", v.name,
                    opi_shape_text(shape, sizeof(shape), v.shape, rank));
  }
  if (s->loss.shift != 0 && is_batch_axis(s, (int32_t)rank - 2)) {
    char shape[96];
    return opi_fail(err, OPIPE_E_INVALID,
                    "labels are shifted along the tokens, of which '%s' %s has no axis: shift=0",
                    v.name, opi_shape_text(shape, sizeof(shape), v.shape, rank));
  }
  OPI_TRY(labels_input(s, OPIPE_INT64, v.shape, rank - 1, err));
  const int64_t flat[2] = {(int64_t)rows, v.shape[rank - 1]};
  OPI_TRY(wide(s, logits, &in[0], err));
  OPI_TRY(opi_k_reshape(b, in[0], flat, 2, &in[0], err));
  OPI_TRY(opi_k_reshape(b, s->training->labels, flat, 1, &in[1], err));
  opi_attrs_string(&attrs, "reduction", "sum");
  opi_attrs_int(&attrs, "ignore_index", s->loss.ignore);
  if (s->options->classes != NULL) {
    OPI_TRY(divided_sum(s, in, flat[1], &sum, err));
  } else {
    OPI_TRY(opi_k_one(b, "SoftmaxCrossEntropyLoss", 13, in, 2, &attrs, &sum, err));
    if (s->loss.smoothing > 0)
      OPI_TRY(smooth(s, in[0], in[1], &sum, err));
  }
  OPI_TRY(opi_grad_count(s, s->training->labels, true, s->loss.ignore, OPIPE_NONE, err));
  return share(s, sum, err);
}

/* Squared differences, or softplus(x) - x t. */
static opipe_status by_element(opi_grad_state *s, uint32_t x, opipe_error *err) {
  opi_builder *b = &s->builder;
  const opi_value v = *opi_b_value(b, x);
  uint64_t n = 0;
  uint32_t t, terms;
  if (!opi_shape_elems(v.shape, (uint32_t)v.rank, &n))
    return opi_fail(err, OPIPE_E_LIMIT, "'%s' is too large", v.name);
  OPI_TRY(labels_input(s, v.dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT, v.shape,
                       (uint32_t)v.rank, err));
  t = s->training->labels;
  OPI_TRY(wide(s, x, &x, err));
  if (s->loss.kind == OPI_LOSS_MSE) {
    OPI_TRY(opi_b_op2(b, "Sub", x, t, &terms, err));
    OPI_TRY(opi_b_op2(b, "Mul", terms, terms, &terms, err));
  } else {
    uint32_t product;
    OPI_TRY(opi_b_op2(b, "Mul", x, t, &product, err));
    OPI_TRY(opi_b_op1(b, "Softplus", x, &terms, err));
    OPI_TRY(opi_b_op2(b, "Sub", terms, product, &terms, err));
  }
  OPI_TRY(opi_grad_sum_all(b, terms, &terms, err));
  s->training->count = (double)n;
  return share(s, terms, err);
}

/* -- a scalar of the graph --------------------------------------------------------------------- */

/* The loss node with reduction mean that makes x and nothing else does: through Reshape and Cast.
 */
static opi_node *mean_loss(const opi_grad_state *s, uint32_t x) {
  const opi_graph *graph = s->training->graph;
  uint32_t uses = 0; /* of x itself: none */
  for (;;) {
    const uint32_t p = graph->values[x].producer;
    if (p == OPIPE_NONE || n_uses(graph, x) != uses)
      return NULL;
    opi_node *node = &graph->nodes[p];
    const opi_op *op = opi_op_of(node);
    if (op->kind == OPI_KIND_LOSS || op->kind == OPI_KIND_LIKELIHOOD) {
      const bool mean = strcmp(opi_attr_string(node, "reduction", "mean"), "mean") == 0;
      return mean && node->out[0] == x ? node : NULL;
    }
    if ((op->takes & (OPI_TAKES_FORM | OPI_TAKES_CAST)) == 0)
      return NULL;
    x = node->in[0];
    uses = 1;
  }
}

double opi_grad_batch_rows(const opi_grad_state *s) {
  const opi_graph *graph = s->bound->graph;
  for (uint32_t i = 0; s->options->carry != NULL && i < graph->n_inputs; ++i) {
    const opi_carry carry = s->options->carry[graph->inputs[i]];
    const opi_value *v = &graph->values[graph->inputs[i]];
    if (carry.axis >= 0 && carry.axis < v->rank && carry.outer * carry.inner != 0)
      return (double)(v->shape[carry.axis] / (carry.outer * carry.inner));
  }
  return 1;
}

void opi_grad_make_sum(opi_node *node) {
  for (uint32_t a = 0; a < node->n_attrs; ++a) {
    if (strcmp(node->attrs[a].name, "reduction") == 0)
      node->attrs[a] = OPI_ATTR_S("reduction", "sum");
  }
}

/* The mean of a loss node becomes its sum, and COUNT what it was divided by. */
static opipe_status sum_of_loss(opi_grad_state *s, opi_node *node, opipe_error *err) {
  opi_grad_make_sum(node);
  return opi_grad_count(s, node->in[1], opi_attr_find(node, "ignore_index") != NULL,
                        opi_attr_int(node, "ignore_index", 0), opi_node_in(node, 2), err);
}

/* The training graph's node that stands for one of the bound graph; casts lie behind it. */
static opi_node *copy_of(const opi_grad_state *s, const opi_node *node) {
  const opi_graph *graph = s->training->graph;
  uint32_t v = s->map[node->out[0]];
  for (;;) {
    const uint32_t p = v == OPIPE_NONE ? OPIPE_NONE : graph->values[v].producer;
    if (p == OPIPE_NONE || strcmp(graph->nodes[p].op, node->op) == 0)
      return p == OPIPE_NONE ? NULL : &graph->nodes[p];
    v = (opi_op_of(&graph->nodes[p])->takes & OPI_TAKES_CAST) != 0 ? graph->nodes[p].in[0]
                                                                   : OPIPE_NONE;
  }
}

/* Wherever the file divides by `lower`, 1 stands in its place: COUNT is divided by at the end. */
static opipe_status undo_quotients(opi_grad_state *s, uint32_t lower, opipe_error *err) {
  const opi_graph *g = s->bound->graph;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    if (opi_op_of(node)->range != OPI_RANGE_DIV || node->in[1] != lower)
      continue;
    opi_node *copy = copy_of(s, node);
    uint32_t one;
    if (copy == NULL)
      continue;
    const uint32_t index = (uint32_t)(copy - s->training->graph->nodes);
    const opi_value *v = opi_b_value(&s->builder, copy->in[1]);
    OPI_TRY(opi_k_const(one = opi_b_const_scalar(&s->builder, v->dtype, 1), err));
    s->training->graph->nodes[index].in[1] = one;
  }
  return OPIPE_OK;
}

/* A ratio of sums over rows: the upper one over COUNT. */
static opipe_status ratio(opi_grad_state *s, uint32_t x, uint32_t lower, opipe_error *err) {
  if ((lower & OPI_FORM_NODE) != 0) {
    opi_node *node = copy_of(s, &s->bound->graph->nodes[lower & ~(uint32_t)OPI_FORM_NODE]);
    if (node == NULL)
      return opi_fail(err, OPIPE_E_INTERNAL, "the loss has no node");
    OPI_TRY(sum_of_loss(s, node, err));
  } else {
    OPI_TRY(opi_grad_count_sum(s, s->map[lower], err));
    OPI_TRY(undo_quotients(s, lower, err));
  }
  return share(s, x, err);
}

/* A sum over rows: its shares are sums themselves. */
static opipe_status sum(opi_grad_state *s, uint32_t x, opipe_error *err) {
  opi_builder *b = &s->builder;
  s->training->count = opi_grad_batch_rows(s);
  OPI_TRY(wide(s, x, &x, err));
  OPI_TRY(opi_k_reshape(b, x, NULL, 0, &x, err));
  return opi_k_cast(b, x, OPIPE_FLOAT, &s->training->loss, err);
}

static opipe_status scalar_loss(opi_grad_state *s, uint32_t x, opipe_error *err) {
  opi_builder *b = &s->builder;
  opi_training *t = s->training;
  if (s->shares != NULL)
    return opi_grad_share_loss(s, x, &t->loss, err);
  opi_node *node = mean_loss(s, x);
  opi_loss_form form;
  uint32_t rows;
  if (node != NULL) {
    OPI_TRY(sum_of_loss(s, node, err));
    return share(s, x, err);
  }
  OPI_TRY(opi_grad_form(s, &form, err));
  if (form.form == OPI_FORM_RATIO)
    return ratio(s, x, form.lower, err);
  if (form.form == OPI_FORM_SUM)
    return sum(s, x, err);
  t->odd = form.odd == NULL ? NULL : opi_arena_strdup(&t->arena, form.odd->name);
  t->is_odd = form.form == OPI_FORM_ODD;
  t->by_rows = true;
  t->count = opi_grad_batch_rows(s);
  OPI_TRY(wide(s, x, &x, err));
  if (t->count != 1) {
    OPI_TRY(opi_k_const(rows = opi_b_const_scalar(b, opi_b_value(b, x)->dtype, t->count), err));
    OPI_TRY(opi_b_op2(b, "Mul", x, rows, &x, err));
  }
  return share(s, x, err);
}

static opipe_status sum_of_output(opi_grad_state *s, uint32_t x, opipe_error *err) {
  OPI_TRY(wide(s, x, &x, err));
  OPI_TRY(opi_grad_sum_all(&s->builder, x, &x, err));
  s->training->count = 1;
  return share(s, x, err);
}

opipe_status opi_grad_loss(opi_grad_state *s, opipe_error *err) {
  const uint32_t x = s->map[s->target];
  s->training->output = s->loss.kind == OPI_LOSS_OUTPUT ? OPIPE_NONE : x;
  s->training->output_name =
      opi_arena_strdup(&s->training->arena, s->bound->graph->values[s->target].name);
  s->builder.origin = opi_grad_origin(s, opi_b_value(&s->builder, x)->name, "/loss");
  s->builder.origin_index = OPIPE_NONE;
  s->builder.origin_stage = -1;
  s->builder.n_emitted = 0;
  if (s->builder.origin == NULL || s->training->output_name == NULL)
    return opi_fail_nomem(err, sizeof(opi_node), "the loss");
  if (s->loss.kind == OPI_LOSS_OUTPUT)
    OPI_TRY(scalar_loss(s, x, err));
  else if (s->loss.kind == OPI_LOSS_CROSS_ENTROPY)
    OPI_TRY(cross_entropy(s, x, err));
  else if (s->loss.kind == OPI_LOSS_REPORT)
    OPI_TRY(sum_of_output(s, x, err));
  else
    OPI_TRY(by_element(s, x, err));
  OPI_TRY(opi_grad_anchor(s, OPIPE_NONE, s->target_stage, err));
  if (!opi_graph_add_output(s->training->graph, s->training->loss) ||
      (s->training->output != OPIPE_NONE &&
       !opi_graph_add_output(s->training->graph, s->training->output)))
    return opi_fail_nomem(err, 8, "the outputs");
  return OPIPE_OK;
}
