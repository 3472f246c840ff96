/* SPDX-License-Identifier: Apache-2.0 */
/* A loss that is a linear form of sums over the batch, each over a number of its own: several heads
 * with labels of their own, balancing terms, a sum beside a mean, a mask whose count is clamped.
 *
 * Every value that the loss is made of has such a form:
 *
 *   FIXED   the same in every micro-batch: it does not hang on the batch, or it is a function of
 *           *totals*, numbers of data alone that are added up over the mini-batch before its first
 *           backward (scalars of the run)
 *   ROWS    it carries the batch
 *   MEAN    a mean over rows, or a sum divided by the rows: shares by rows
 *   SUM     a sum over rows: shares as they are
 *   LINEAR  a sum of the others' shares
 *   ODD     none of these
 *
 * The forward copy puts totals in the place of what the file computes of one micro-batch, divides a
 * loss node's sum by its count of the whole mini-batch, and turns what is added up into shares
 * where forms meet; so the shares of all micro-batches add up to the loss of the mini-batch.
 */
#include <string.h>

#include "loader/gradient/state.h"

enum { FIXED, ROWS, MEAN, SUM, LINEAR, ODD };
enum { NO_TOTAL = 0xff };

struct opi_grad_shares {
  uint8_t *form;  /* [bound values] */
  bool *data;     /* [bound values] made of data alone, and of no total */
  bool *needed;   /* [bound nodes] for the loss */
  uint8_t *total; /* [bound nodes] the number among sums that it needs; NO_TOTAL */
  bool *meets;    /* [bound nodes] forms meet: what it reads becomes shares */
  opi_counted sums[OPI_MOST_SUMS];
  uint32_t n_sums;
};

static bool is_single(const opi_value *v) {
  uint64_t n = 0;
  return opi_shape_elems(v->shape, (uint32_t)v->rank, &n) && n == 1;
}

/* A number that training does not change. */
static bool is_data(const opi_value *v) {
  if (v->producer != OPIPE_NONE || (v->flags & OPI_VALUE_INPUT) != 0)
    return true;
  return !opi_dtype_is_float(v->dtype) || (is_single(v) && (v->flags & OPI_VALUE_KEPT) == 0);
}

static bool hands_on(const opi_graph *g, const opi_node *node) {
  const opi_op *op = opi_op_of(node);
  if ((op->takes & OPI_TAKES_CAST) != 0)
    return opi_dtype_is_float(g->values[node->out[0]].dtype);
  return (op->takes & (OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_PART | OPI_TAKES_PARTS)) !=
             0 ||
         op->range == OPI_RANGE_NEG || op->kind == OPI_KIND_SUM || op->kind == OPI_KIND_MEAN;
}

/* Is it a sum of what it reads from input `first` on? */
static bool adds(const opi_op *op, uint32_t *out_first) {
  *out_first = (op->takes & OPI_TAKES_CHOSEN) != 0 ? 1 : 0;
  return op->range == OPI_RANGE_ADD || op->range == OPI_RANGE_SUB ||
         (op->takes & (OPI_TAKES_JOINED | OPI_TAKES_CHOSEN)) != 0;
}

static uint32_t form_of_sum(const struct opi_grad_shares *h, const opi_node *node, uint32_t first) {
  uint32_t form = FIXED;
  if (first == 1 && h->form[node->in[0]] != FIXED)
    return ODD;
  for (uint32_t i = first; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    const uint32_t x = h->form[node->in[i]];
    if (i == first || (form == FIXED && x == MEAN))
      form = x;
    else if (x != form && !(x == FIXED && form == MEAN))
      form = LINEAR;
  }
  return form;
}

/* A reduction over rows, or a loss node. *out_counts: its result needs a total. */
static uint32_t form_of_rows(const struct opi_grad_shares *h, const opi_graph *g,
                             const opi_node *node, bool *out_counts) {
  const opi_op *op = opi_op_of(node);
  if (op->kind == OPI_KIND_LOSS || op->kind == OPI_KIND_LIKELIHOOD) {
    const char *reduction = opi_attr_string(node, "reduction", "mean");
    const bool mean = strcmp(reduction, "mean") == 0;
    if (h->form[node->in[0]] != ROWS || (!mean && strcmp(reduction, "sum") != 0))
      return ODD;
    *out_counts =
        mean && (opi_attr_find(node, "ignore_index") != NULL || opi_node_in(node, 2) != OPIPE_NONE);
    return mean && !*out_counts ? MEAN : SUM;
  }
  if (h->form[node->in[0]] != ROWS || (op->kind != OPI_KIND_SUM && op->kind != OPI_KIND_MEAN))
    return ODD;
  *out_counts = h->data[node->in[0]] && is_single(&g->values[node->out[0]]);
  return *out_counts ? FIXED : op->kind == OPI_KIND_SUM ? SUM : MEAN;
}

/* Nothing that it reads is ODD or carries the batch. */
static uint32_t form_of_parts(const struct opi_grad_shares *h, const opi_graph *g,
                              const opi_node *node) {
  const opi_op *op = opi_op_of(node);
  const uint32_t a = opi_node_in(node, 0), b = opi_node_in(node, 1);
  uint32_t first = 0;
  if (adds(op, &first))
    return form_of_sum(h, node, first);
  if (a == OPIPE_NONE)
    return ODD;
  if (op->range == OPI_RANGE_MUL && b != OPIPE_NONE && h->form[a] == FIXED)
    return h->form[b];
  if ((op->range == OPI_RANGE_MUL || op->range == OPI_RANGE_DIV) && b != OPIPE_NONE)
    return h->form[b] == FIXED ? h->form[a] : ODD;
  return hands_on(g, node) ? h->form[a] : ODD;
}

/* The form of a product with a number of rows, or of a quotient by it; `of`: the other input. */
static uint32_t form_of_power(const struct opi_grad_shares *h, int32_t power, uint32_t of) {
  if (power == OPI_POWER_ODD || of == OPIPE_NONE)
    return ODD;
  if (power == -1 && h->form[of] == SUM)
    return MEAN;
  return power == 1 && h->form[of] == MEAN ? SUM : ODD;
}

static void follow(struct opi_grad_shares *h, const opi_graph *g, const opi_carry *carry,
                   uint32_t n) {
  const opi_node *node = &g->nodes[n];
  bool varies = false, rows = false, odd = false, counts = false;
  bool data = opi_op_of(node)->kind != OPI_KIND_RANDOM;
  uint32_t form = FIXED, first = 0, of;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    if (v == OPIPE_NONE)
      continue;
    varies = varies || h->form[v] != FIXED;
    rows = rows || h->form[v] == ROWS;
    odd = odd || h->form[v] == ODD;
    data = data && h->data[v];
  }
  const int32_t power = opi_grad_power(node, carry, &of);
  if (odd)
    form = ODD;
  else if (power != 0)
    form = form_of_power(h, power, of);
  else if (rows)
    form = form_of_rows(h, g, node, &counts);
  else if (varies)
    form = form_of_parts(h, g, node);
  counts = counts && h->needed[n] && carry[node->out[0]].axis < 0;
  if (counts && h->n_sums == OPI_MOST_SUMS)
    form = ODD;
  else if (counts)
    h->total[n] = (uint8_t)h->n_sums++;
  h->meets[n] = form == LINEAR && adds(opi_op_of(node), &first);
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    if (v == OPIPE_NONE)
      continue;
    h->form[v] = (uint8_t)(carry[v].axis >= 0 ? ROWS : o > 0 && form != FIXED ? ODD : form);
    h->data[v] = data && h->total[n] == NO_TOTAL;
  }
}

static void mark_needed(struct opi_grad_shares *h, const opi_graph *g, uint32_t target) {
  if (g->values[target].producer != OPIPE_NONE)
    h->needed[g->values[target].producer] = true;
  for (uint32_t n = g->n_nodes; n-- > 0;) {
    for (uint32_t i = 0; h->needed[n] && i < g->nodes[n].n_in; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      if (v != OPIPE_NONE && g->values[v].producer != OPIPE_NONE)
        h->needed[g->values[v].producer] = true;
    }
  }
}

opipe_status opi_grad_find_shares(opi_grad_state *s, opipe_error *err) {
  const opi_graph *g = s->bound->graph;
  const opi_carry *carry = s->options->carry;
  opi_loss_form whole;
  if (s->loss.kind != OPI_LOSS_OUTPUT || carry == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_grad_form(s, &whole, err));
  if (whole.form != OPI_FORM_ODD)
    return OPIPE_OK;
  struct opi_grad_shares *h = OPI_ARENA_NEW(&s->scratch, struct opi_grad_shares);
  if (h == NULL)
    return opi_fail_nomem(err, sizeof *h, "the shares of the loss");
  h->form = OPI_ARENA_ARRAY(&s->scratch, uint8_t, g->n_values);
  h->data = OPI_ARENA_ARRAY(&s->scratch, bool, g->n_values);
  h->needed = OPI_ARENA_ARRAY(&s->scratch, bool, g->n_nodes);
  h->total = OPI_ARENA_ARRAY(&s->scratch, uint8_t, g->n_nodes);
  h->meets = OPI_ARENA_ARRAY(&s->scratch, bool, g->n_nodes);
  if (h->form == NULL || h->data == NULL || h->needed == NULL || h->total == NULL ||
      h->meets == NULL)
    return opi_fail_nomem(err, g->n_values * 2, "the shares of the loss");
  memset(h->total, NO_TOTAL, g->n_nodes);
  for (uint32_t v = 0; v < g->n_values; ++v) {
    h->form[v] = carry[v].axis >= 0 ? ROWS : FIXED;
    h->data[v] = is_data(&g->values[v]);
  }
  mark_needed(h, g, s->target);
  for (uint32_t n = 0; n < g->n_nodes; ++n)
    follow(h, g, carry, n);
  const uint32_t form = h->form[s->target];
  if (form != ROWS && form != ODD)
    s->shares = h;
  return OPIPE_OK;
}

/* -- in the training graph --------------------------------------------------------------------- */

/* A scalar of the run as a value of `like`'s type and shape. */
static opipe_status run_scalar(opi_grad_state *s, uint32_t slot, uint32_t like, uint32_t *out,
                               opipe_error *err) {
  const opi_value v = *opi_b_value(&s->builder, like);
  OPI_TRY(opi_grad_scalar(s, slot, out, err));
  OPI_TRY(opi_k_cast(&s->builder, *out, v.dtype, out, err));
  return opi_k_reshape(&s->builder, *out, v.shape, (uint32_t)v.rank, out, err);
}

/* x / a scalar of the run. */
static opipe_status over_scalar(opi_grad_state *s, uint32_t x, uint32_t slot, uint32_t *out,
                                opipe_error *err) {
  uint32_t lower;
  OPI_TRY(opi_grad_scalar(s, slot, &lower, err));
  OPI_TRY(opi_k_cast(&s->builder, lower, opi_b_value(&s->builder, x)->dtype, &lower, err));
  return opi_b_op2(&s->builder, "Div", x, lower, out, err);
}

/* The share of this micro-batch of a value of that form. */
static opipe_status share_of(opi_grad_state *s, uint32_t form, uint32_t x, uint32_t *out,
                             opipe_error *err) {
  const double n = opi_grad_batch_rows(s);
  uint32_t rows;
  *out = x;
  if (form == SUM || form == LINEAR)
    return OPIPE_OK;
  if (n != 1) {
    const uint32_t dtype = opi_b_value(&s->builder, x)->dtype;
    OPI_TRY(opi_k_const(rows = opi_b_const_scalar(&s->builder, dtype, n), err));
    OPI_TRY(opi_b_op2(&s->builder, "Mul", x, rows, &x, err));
  }
  return over_scalar(s, x, OPI_SCALAR_COUNT, out, err);
}

opipe_status opi_grad_share_inputs(opi_grad_state *s, uint32_t n, uint32_t *in, opipe_error *err) {
  const struct opi_grad_shares *h = s->shares;
  const opi_node *node = &s->bound->graph->nodes[n];
  uint32_t first = 0;
  if (h == NULL || !h->meets[n] || !adds(opi_op_of(node), &first))
    return OPIPE_OK;
  for (uint32_t i = first; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE)
      OPI_TRY(share_of(s, h->form[node->in[i]], in[i], &in[i], err));
  }
  return OPIPE_OK;
}

/* A loss node's sum over how many of the mini-batch's labels count. */
static opipe_status divide_loss(opi_grad_state *s, uint32_t k, uint32_t *io_out, opipe_error *err) {
  const opi_graph *g = s->training->graph;
  uint32_t v = *io_out;
  while (g->values[v].producer != OPIPE_NONE &&
         (opi_op_of(&g->nodes[g->values[v].producer])->takes & OPI_TAKES_CAST) != 0)
    v = g->nodes[g->values[v].producer].in[0];
  if (g->values[v].producer == OPIPE_NONE)
    return opi_fail(err, OPIPE_E_INTERNAL, "the loss has no node");
  opi_node *node = &s->training->graph->nodes[g->values[v].producer];
  opi_grad_make_sum(node);
  s->shares->sums[k] = (opi_counted){.labels = node->in[1],
                                     .weights = opi_node_in(node, 2),
                                     .ignore = opi_attr_int(node, "ignore_index", 0),
                                     .ignores = opi_attr_find(node, "ignore_index") != NULL};
  return over_scalar(s, *io_out, OPI_SCALAR_SUM + k, io_out, err);
}

opipe_status opi_grad_share_output(opi_grad_state *s, uint32_t n, uint32_t *io_out,
                                   opipe_error *err) {
  const opi_node *node = &s->bound->graph->nodes[n];
  const uint32_t kind = opi_op_of(node)->kind;
  const uint32_t k = s->shares == NULL ? NO_TOTAL : s->shares->total[n];
  if (k == NO_TOTAL)
    return OPIPE_OK;
  if (kind == OPI_KIND_LOSS || kind == OPI_KIND_LIKELIHOOD)
    return divide_loss(s, k, io_out, err);
  const bool mean = kind == OPI_KIND_MEAN;
  s->shares->sums[k] = (opi_counted){.labels = *io_out,
                                     .weights = OPIPE_NONE,
                                     .sums = true,
                                     .times = mean ? opi_grad_batch_rows(s) : 0};
  OPI_TRY(run_scalar(s, OPI_SCALAR_SUM + k, *io_out, io_out, err));
  return mean ? over_scalar(s, *io_out, OPI_SCALAR_COUNT, io_out, err) : OPIPE_OK;
}

opipe_status opi_grad_share_loss(opi_grad_state *s, uint32_t x, uint32_t *out, opipe_error *err) {
  opi_builder *b = &s->builder;
  const struct opi_grad_shares *h = s->shares;
  const uint32_t dtype = opi_b_value(b, x)->dtype;
  s->training->count = opi_grad_batch_rows(s);
  s->training->n_sums = h->n_sums;
  OPI_TRY(opi_k_cast(b, x, dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT, &x, err));
  OPI_TRY(share_of(s, h->form[s->target], x, &x, err));
  OPI_TRY(opi_k_reshape(b, x, NULL, 0, &x, err));
  OPI_TRY(opi_k_cast(b, x, OPIPE_FLOAT, out, err));
  return h->n_sums == 0 ? OPIPE_OK : opi_grad_count_all(s, h->sums, h->n_sums, err);
}
