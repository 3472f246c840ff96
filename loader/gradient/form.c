/* SPDX-License-Identifier: Apache-2.0 */
/* How a scalar that the graph makes is put together from the batch's rows, so that the shares of
 * micro-batches add up to it:
 *
 *   MEAN   of numbers by row, and what does not hang on them: shares by rows
 *   SUM    of numbers by row: shares as they are
 *   RATIO  of two sums, the lower one of data alone (a mask, labels that count): the upper sum over
 *          COUNT, which is the lower one of the whole mini-batch
 *   ODD    anything else: a linear form of several of these (shares.c), or (a root, a maximum) of
 * the whole mini-batch alone
 *
 * Each value of the bound graph has such a form; operators that are linear hand it on. A sum
 * divided by the rows of the batch, or by a multiple of them, is a mean, and a mean times them a
 * sum.
 */
#include <string.h>

#include "loader/gradient/state.h"

typedef struct former {
  const opi_graph *graph;
  const opi_carry *carry;
  uint8_t *form;   /* [n_values] */
  bool *learned;   /* [n_values] made of a float initializer of several elements */
  uint32_t *lower; /* [n_values] RATIO: what its sum is divided by; the node of a loss: itself */
  uint32_t *odd;   /* [n_values] ODD: the node that made it so */
} former;

static bool is_single(const opi_value *v) {
  uint64_t n = 0;
  return opi_shape_elems(v->shape, (uint32_t)v->rank, &n) && n == 1;
}

/* Does it hand on what it reads, element by element? A type without fractions rounds. */
static bool moves(const former *f, const opi_node *node) {
  const opi_op *op = opi_op_of(node);
  const uint32_t takes = op->takes;
  if ((takes & OPI_TAKES_CAST) != 0)
    return opi_dtype_is_float(f->graph->values[node->out[0]].dtype);
  return (takes & (OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_PART | OPI_TAKES_PARTS)) != 0 ||
         op->range == OPI_RANGE_NEG || op->kind == OPI_KIND_SUM || op->kind == OPI_KIND_MEAN;
}

/* The form of a + b, or of a and b concatenated. RATIOs must share their divisor. */
static uint32_t join(const former *f, uint32_t a, uint32_t b) {
  const uint32_t x = f->form[a], y = f->form[b];
  if (x == y)
    return x == OPI_FORM_RATIO && f->lower[a] != f->lower[b] ? OPI_FORM_ODD : x;
  return (x == OPI_FORM_FIXED && y == OPI_FORM_MEAN) || (x == OPI_FORM_MEAN && y == OPI_FORM_FIXED)
             ? OPI_FORM_MEAN
             : OPI_FORM_ODD;
}

static uint32_t form_of_joined(const former *f, const opi_node *node, uint32_t *out_lower) {
  uint32_t first = OPIPE_NONE, form = OPI_FORM_FIXED;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    if (v == OPIPE_NONE)
      continue;
    form = first == OPIPE_NONE    ? f->form[v]
           : form == OPI_FORM_ODD ? OPI_FORM_ODD
                                  : join(f, first, v);
    if (first == OPIPE_NONE || f->form[first] == OPI_FORM_FIXED)
      first = v;
  }
  *out_lower = first == OPIPE_NONE ? OPIPE_NONE : f->lower[first];
  return form;
}

/* A loss node over rows. */
static uint32_t form_of_loss(const opi_node *node, uint32_t n, uint32_t *out_lower) {
  const char *reduction = opi_attr_string(node, "reduction", "mean");
  if (strcmp(reduction, "sum") == 0)
    return OPI_FORM_SUM;
  if (strcmp(reduction, "mean") != 0)
    return OPI_FORM_ODD;
  if (opi_attr_find(node, "ignore_index") == NULL && opi_node_in(node, 2) == OPIPE_NONE)
    return OPI_FORM_MEAN;
  *out_lower = n | OPI_FORM_NODE;
  return OPI_FORM_RATIO;
}

static uint32_t form_of_quotient(const former *f, const opi_node *node, uint32_t *out_lower) {
  const uint32_t a = node->in[0], b = node->in[1];
  const opi_value *x = &f->graph->values[a], *y = &f->graph->values[b];
  *out_lower = f->lower[a];
  if (f->form[b] == OPI_FORM_FIXED)
    return f->form[a];
  if (f->form[a] != OPI_FORM_SUM || f->form[b] != OPI_FORM_SUM || f->learned[b] ||
      x->rank != y->rank || !is_single(x) || !is_single(y))
    return OPI_FORM_ODD;
  *out_lower = b;
  return OPI_FORM_RATIO;
}

/* A reduction of rows along the batch. */
static uint32_t of_rows(const opi_op *op) {
  if (op->kind == OPI_KIND_SUM)
    return OPI_FORM_SUM;
  return op->kind == OPI_KIND_MEAN ? OPI_FORM_MEAN : OPI_FORM_ODD;
}

int32_t opi_grad_power(const opi_node *node, const opi_carry *carry, uint32_t *out_of) {
  const opi_op *op = opi_op_of(node);
  int32_t power = 0;
  *out_of = OPIPE_NONE;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const int32_t own = node->in[i] == OPIPE_NONE ? 0 : carry[node->in[i]].power;
    if (own == 0)
      continue;
    const bool divides = op->range == OPI_RANGE_DIV && i == 1;
    if (power != 0 || node->n_in != 2 || (op->range != OPI_RANGE_MUL && !divides))
      return OPI_POWER_ODD;
    power = divides ? -own : own;
    *out_of = node->in[1 - i];
  }
  return power;
}

/* The form of a product with a number of rows, or of a quotient by it. */
static uint32_t form_of_power(const former *f, int32_t power, uint32_t of) {
  if (power == -1 && f->form[of] == OPI_FORM_SUM)
    return OPI_FORM_MEAN;
  return power == 1 && f->form[of] == OPI_FORM_MEAN ? OPI_FORM_SUM : OPI_FORM_ODD;
}

/* The form of the output of a node that reads the batch but does not carry it. */
static uint32_t form_of(const former *f, uint32_t n, uint32_t *out_lower) {
  const opi_node *node = &f->graph->nodes[n];
  const opi_op *op = opi_op_of(node);
  const uint32_t a = node->in[0], b = node->n_in > 1 ? node->in[1] : OPIPE_NONE;
  *out_lower = a == OPIPE_NONE ? OPIPE_NONE : f->lower[a];
  if (op->kind == OPI_KIND_LOSS || op->kind == OPI_KIND_LIKELIHOOD)
    return f->form[a] == OPI_FORM_ROWS ? form_of_loss(node, n, out_lower) : OPI_FORM_ODD;
  if (a != OPIPE_NONE && f->form[a] == OPI_FORM_ROWS)
    return of_rows(op);
  if (op->range == OPI_RANGE_ADD || op->range == OPI_RANGE_SUB ||
      (op->takes & OPI_TAKES_JOINED) != 0)
    return form_of_joined(f, node, out_lower);
  if (op->range == OPI_RANGE_DIV && b != OPIPE_NONE)
    return form_of_quotient(f, node, out_lower);
  if (op->range == OPI_RANGE_MUL && f->form[a] == OPI_FORM_FIXED) {
    *out_lower = f->lower[b];
    return f->form[b];
  }
  if (op->range == OPI_RANGE_MUL && f->form[b] == OPI_FORM_FIXED)
    return f->form[a];
  return a != OPIPE_NONE && moves(f, node) ? f->form[a] : OPI_FORM_ODD;
}

static void follow_node(former *f, uint32_t n) {
  const opi_node *node = &f->graph->nodes[n];
  uint32_t lower = OPIPE_NONE, odd = n, form = OPI_FORM_FIXED, of;
  bool reads = false, learned = false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    if (v == OPIPE_NONE)
      continue;
    reads = reads || f->form[v] != OPI_FORM_FIXED;
    learned = learned || f->learned[v];
    if (f->form[v] == OPI_FORM_ODD)
      odd = f->odd[v];
  }
  const int32_t power = opi_grad_power(node, f->carry, &of);
  if (power != 0)
    form = power == OPI_POWER_ODD || of == OPIPE_NONE ? OPI_FORM_ODD : form_of_power(f, power, of);
  else if (reads)
    form = form_of(f, n, &lower);
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    if (v == OPIPE_NONE)
      continue;
    f->form[v] = (uint8_t)(f->carry[v].axis >= 0             ? OPI_FORM_ROWS
                           : o > 0 && form == OPI_FORM_RATIO ? OPI_FORM_ODD
                                                             : form);
    f->learned[v] = learned;
    f->lower[v] = lower;
    f->odd[v] = odd;
  }
}

static opipe_status follow(opi_grad_state *s, former *f, opipe_error *err) {
  const opi_graph *g = s->bound->graph;
  *f = (former){.graph = g,
                .carry = s->options->carry,
                .form = OPI_ARENA_ARRAY(&s->scratch, uint8_t, g->n_values),
                .learned = OPI_ARENA_ARRAY(&s->scratch, bool, g->n_values),
                .lower = OPI_ARENA_ARRAY(&s->scratch, uint32_t, g->n_values),
                .odd = OPI_ARENA_ARRAY(&s->scratch, uint32_t, g->n_values)};
  if (f->form == NULL || f->learned == NULL || f->lower == NULL || f->odd == NULL)
    return opi_fail_nomem(err, g->n_values, "the form of the loss");
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const opi_value *value = &g->values[v];
    f->lower[v] = OPIPE_NONE;
    f->form[v] = f->carry[v].axis >= 0 ? OPI_FORM_ROWS : OPI_FORM_FIXED;
    f->learned[v] = value->producer == OPIPE_NONE && (value->flags & OPI_VALUE_INPUT) == 0 &&
                    opi_dtype_is_float(value->dtype) && !is_single(value);
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n)
    follow_node(f, n);
  return OPIPE_OK;
}

opipe_status opi_grad_form(opi_grad_state *s, opi_loss_form *out, opipe_error *err) {
  former f;
  *out = (opi_loss_form){.form = OPI_FORM_MEAN, .lower = OPIPE_NONE};
  if (s->options->carry == NULL || s->options->slice != NULL)
    return OPIPE_OK;
  OPI_TRY(follow(s, &f, err));
  const uint32_t form = f.form[s->target];
  out->form = form == OPI_FORM_FIXED ? OPI_FORM_MEAN : form == OPI_FORM_ROWS ? OPI_FORM_ODD : form;
  out->lower = form == OPI_FORM_RATIO ? f.lower[s->target] : OPIPE_NONE;
  if (form == OPI_FORM_ODD)
    out->odd = &s->bound->graph->nodes[f.odd[s->target]];
  return OPIPE_OK;
}
