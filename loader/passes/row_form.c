/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the row form of a model: binds it for the context, for one token less and for few, and
 * compares; see row_form.h. */
#include "loader/passes/row_form.h"

#include <inttypes.h>
#include <stdio.h>

#include "loader/ops/attention.h"
#include "loader/ops/common.h"
#include "loader/passes/rower.h"

enum { FEW_TOKENS = 4 };

opipe_status opi_row_refused(opipe_status status, opipe_error *err) {
  char why[400];
  if (status != OPIPE_E_UNSUPPORTED || err == NULL)
    return status;
  (void)snprintf(why, sizeof why, "%.390s", err->message);
  return opi_fail(err, status,
                  "%s; plans without generation run the model, with states if it has past keys",
                  why);
}

/* Entries [0, n) of the dimension `axis` of a are all of b's. */
static bool begins_alike(const opi_value *a, const opi_value *b, int32_t axis, int64_t n) {
  uint64_t outer = 1, inner = opi_dtype_bits(a->dtype) / 8;
  for (int32_t d = 0; d < a->rank; ++d) {
    if (d != axis)
      *(d < axis ? &outer : &inner) *= (uint64_t)a->shape[d];
  }
  for (uint64_t o = 0; o < outer; ++o) {
    const char *x = (const char *)a->data + o * (uint64_t)a->shape[axis] * inner;
    if (memcmp(x, (const char *)b->data + o * (uint64_t)n * inner, (uint64_t)n * inner) != 0)
      return false;
  }
  return true;
}

/* A value that is known for every position is so whatever the number of tokens. */
static opipe_status check_value(const opi_row_form *form, const opi_value *x, int32_t axis,
                                const opi_value *y, opipe_error *err) {
  bool alike = x->rank == y->rank && x->dtype == y->dtype && opi_value_known(y) &&
               opi_dtype_bits(x->dtype) >= 8;
  for (int32_t d = 0; alike && d < x->rank; ++d)
    alike = d == axis ? y->shape[d] == FEW_TOKENS : x->shape[d] == y->shape[d];
  if (!alike) /* another value under this name: that of fewer tokens is made in another way */
    return OPIPE_OK;
  if (axis >= 0 ? begins_alike(x, y, axis, FEW_TOKENS)
                : memcmp(x->data, y->data, (size_t)x->n_bytes) == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "no row form: '%s' is another for %d tokens than for %" PRId64
                  ": the context crosses a branch on the length",
                  x->name, (int)FEW_TOKENS, form->context);
}

static void mark_producer(const opi_graph *g, uint32_t v, bool *marks) {
  const uint32_t n = v == OPIPE_NONE ? OPIPE_NONE : g->values[v].producer;
  if (n != OPIPE_NONE)
    marks[n] = true;
}

/* The nodes that make value v: masks and lengths of attention are read, not made. front: those that
 * an attention needs; NULL: not wanted. Returns the number of attentions. */
static uint32_t mark_nodes(const opi_graph *g, uint32_t v, bool *main, bool *front) {
  uint32_t n_attentions = 0;
  memset(main, 0, g->n_nodes * sizeof *main);
  if (front != NULL)
    memset(front, 0, g->n_nodes * sizeof *front);
  mark_producer(g, v, main);
  for (uint32_t n = g->n_nodes; n-- > 0;) {
    const opi_node *node = &g->nodes[n];
    const bool attention = main[n] && opi_op_of(node)->kind == OPI_KIND_ATTENTION;
    n_attentions += attention;
    if (front != NULL)
      front[n] = front[n] || attention;
    for (uint32_t i = 0; main[n] && i < node->n_in; ++i) {
      if (attention && i > OPI_ATT_V)
        continue;
      mark_producer(g, node->in[i], main);
      if (front != NULL && front[n])
        mark_producer(g, node->in[i], front);
    }
  }
  return n_attentions;
}

/* The next node of `main` from n on that is not a mere movement; n_nodes: none. */
static uint32_t next_node(const opi_graph *g, const bool *main, uint32_t n) {
  const uint32_t moves = OPI_TAKES_FORM | OPI_TAKES_STRETCHED | OPI_TAKES_REPEATED |
                         OPI_TAKES_PART | OPI_TAKES_JOINED | OPI_TAKES_TURNED | OPI_TAKES_CAST;
  while (n < g->n_nodes && (!main[n] || (opi_op_of(&g->nodes[n])->takes & moves) != 0))
    ++n;
  return n;
}

/* The first parameter that x reads and y does not; NULL: none, *out_other: what y reads there. */
static const opi_value *other_parameter(const opi_graph *a, const opi_node *x, const opi_graph *b,
                                        const opi_node *y, const char **out_other) {
  const bool attention = opi_op_of(x)->kind == OPI_KIND_ATTENTION;
  const uint32_t n = attention ? OPI_ATT_V + 1 : x->n_in;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t q = opi_node_in(y, i);
    *out_other = q == OPIPE_NONE ? "" : b->values[q].name;
    if (x->in[i] != OPIPE_NONE && (a->values[x->in[i]].flags & OPI_VALUE_INITIALIZER) != 0 &&
        strcmp(a->values[x->in[i]].name, *out_other) != 0)
      return &a->values[x->in[i]];
  }
  return NULL;
}

static opipe_status check_node(const opi_row_form *form, const opi_node *x, const opi_graph *b,
                               const opi_node *y, opipe_error *err) {
  const char *other = "";
  if (x == NULL || y == NULL || strcmp(x->op, y->op) != 0) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "no row form: %" PRId64
                    " tokens have node '%s' (%s) where %d have '%s' (%s): "
                    "the context crosses a branch on the length",
                    form->context, x == NULL ? "" : x->name, x == NULL ? "none" : x->op,
                    (int)FEW_TOKENS, y == NULL ? "" : y->name, y == NULL ? "none" : y->op);
  }
  const opi_value *p = other_parameter(form->whole->graph, x, b, y, &other);
  if (p == NULL)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "no row form: node '%s' (%s) reads '%s' for %" PRId64
                  " tokens, '%s' for %d: the "
                  "context crosses a branch on the length",
                  x->name, x->op, p->name, form->context, other, (int)FEW_TOKENS);
}

/* The same operators on the same parameters, whatever the number of tokens. */
static opipe_status check_nodes(const opi_row_form *form, const opi_bound *few, opipe_error *err) {
  const opi_graph *a = form->whole->graph, *b = few->graph;
  const uint32_t logits = opi_bound_value(few, a->values[form->logits].name);
  bool *main = OPI_ARENA_ARRAY(&form->tokens->arena, bool, b->n_nodes + 1);
  if (main == NULL)
    return opi_fail_nomem(err, b->n_nodes, "nodes");
  if (logits != OPIPE_NONE)
    (void)mark_nodes(b, logits, main, NULL);
  uint32_t n = next_node(a, form->main, 0), m = next_node(b, main, 0);
  while (n < a->n_nodes || m < b->n_nodes) {
    OPI_TRY(check_node(form, n < a->n_nodes ? &a->nodes[n] : NULL, b,
                       m < b->n_nodes ? &b->nodes[m] : NULL, err));
    n = next_node(a, form->main, n + 1);
    m = next_node(b, main, m + 1);
  }
  return OPIPE_OK;
}

/* Values that something other than a mask reads. */
static opipe_status check_few(const opi_row_form *form, const opi_bound *few, opipe_error *err) {
  const opi_graph *g = form->whole->graph;
  OPI_TRY(check_nodes(form, few, err));
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    const bool attention = opi_op_of(node)->kind == OPI_KIND_ATTENTION;
    const bool shaped = (opi_op_of(node)->takes & (OPI_TAKES_FORM | OPI_TAKES_STRETCHED)) != 0;
    for (uint32_t i = 0; form->main[n] && i < node->n_in; ++i) {
      const uint32_t v = node->in[i];
      if (v == OPIPE_NONE || (attention && i > OPI_ATT_V) || (shaped && i == 1))
        continue;
      const opi_value *x = &g->values[v];
      const int8_t *dims = form->tokens->dims[v];
      const bool picks = i > 0 && (opi_op_of(node)->takes & (OPI_TAKES_PART | OPI_TAKES_ROWS)) != 0;
      if (!opi_value_known(x) || (x->flags & OPI_VALUE_INITIALIZER) != 0 || dims[0] == -2 ||
          dims[1] >= 0 || (picks && opi_elems(x) == 1)) /* the last token has another place */
        continue;
      const uint32_t y = opi_bound_value(few, x->name);
      if (y != OPIPE_NONE)
        OPI_TRY(check_value(form, x, dims[0], &few->graph->values[y], err));
    }
  }
  return OPIPE_OK;
}

/* By default the output that most attentions stand before. */
static opipe_status find_logits(opi_row_form *form, const char *output, opipe_error *err) {
  const opi_graph *g = form->whole->graph;
  uint32_t most = 0;
  form->main = OPI_ARENA_ARRAY(&form->arena, bool, g->n_nodes + 1);
  form->front = OPI_ARENA_ARRAY(&form->arena, bool, g->n_nodes + 1);
  if (form->main == NULL || form->front == NULL)
    return opi_fail_nomem(err, g->n_nodes * 2, "nodes");
  form->logits = output != NULL ? opi_bound_value(form->whole, output) : OPIPE_NONE;
  for (uint32_t o = 0; output == NULL && o < g->n_outputs; ++o) {
    const uint32_t n = mark_nodes(g, g->outputs[o], form->main, form->front);
    if (form->logits != OPIPE_NONE && n <= most)
      continue;
    form->logits = g->outputs[o];
    most = n;
  }
  if (form->logits != OPIPE_NONE && mark_nodes(g, form->logits, form->main, form->front) > 0)
    return OPIPE_OK;
  if (form->logits != OPIPE_NONE) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "no row form: no attention was recognised before output '%s'",
                    g->values[form->logits].name);
  }
  return opi_fail(err, OPIPE_E_NOTFOUND, "the graph has no output '%s'",
                  output != NULL ? output : "");
}

static opipe_status compare(opi_row_form *form, const opi_model *model,
                            const opi_bind_options *options, opipe_error *err) {
  opi_bound *less = NULL, *few = NULL;
  opipe_status status = opi_row_bind(model, options, form->context - 1, &less, err);
  if (status >= 0) {
    status = opi_tokens_find(form->whole, form->context, less, form->context - 1,
                             options->allocator, &form->tokens, err);
    status = opi_row_refused(status, err);
  }
  if (status >= 0 && form->context > FEW_TOKENS)
    status = opi_row_bind(model, options, FEW_TOKENS, &few, err);
  if (status >= 0 && few != NULL)
    status = opi_row_refused(check_few(form, few, err), err);
  opi_bound_free(few);
  opi_bound_free(less);
  return status;
}

opipe_status opi_row_form_find(const opi_model *model, const opi_bind_options *options,
                               int64_t context, const char *output, opi_row_form **out_form,
                               opipe_error *err) {
  if (context < 2) {
    return opi_fail(err, OPIPE_E_INVALID, "a context of %" PRId64 " tokens, 2 is the least",
                    context);
  }
  opi_row_form *form = opi_alloc_zero(options->allocator, 1, sizeof *form);
  if (form == NULL)
    return opi_fail_nomem(err, sizeof *form, "a row form");
  opi_arena_init(&form->arena, options->allocator, 0);
  form->context = context;
  form->evaluator = options->evaluator;
  form->masks = opi_row_masks_new(&form->arena);
  opipe_status status = form->masks == NULL
                            ? opi_fail_nomem(err, 64, "masks")
                            : opi_row_bind(model, options, context, &form->whole, err);
  if (status >= 0)
    status = opi_row_refused(find_logits(form, output, err), err);
  if (status >= 0)
    status = compare(form, model, options, err);
  if (status < 0) {
    opi_row_form_free(form);
    return status;
  }
  *out_form = form;
  return OPIPE_OK;
}

void opi_row_form_free(opi_row_form *form) {
  if (form == NULL)
    return;
  const opipe_allocator *allocator = form->arena.allocator;
  opi_tokens_free(form->tokens);
  opi_bound_free(form->whole);
  opi_arena_release(&form->arena);
  opi_free(allocator, form, sizeof *form);
}
