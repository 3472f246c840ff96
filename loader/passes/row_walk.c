/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the graph of rows from that of a whole sequence; see row_form.h.
 *
 * A value of the whole graph is *whole* (the same for all rows, or known for every position of the
 * context: its readers pick their rows), *rows* (its carry says where), or *stale* (made from keys
 * and values of before: not made). A node that reads rows, or that makes something of every
 * position, is emitted for rows; its operator's axis rule must agree, as for micro-batches. */
#include <inttypes.h>
#include <stdio.h>

#include "loader/ops/attention.h"
#include "loader/passes/private.h"
#include "loader/passes/rower.h"

enum { TABLE_BYTES = 1 << 28 }; /* rows of every position, made when the graph is */

static bool is_attention(const opi_node *node) {
  return opi_op_of(node)->kind == OPI_KIND_ATTENTION;
}

/* ---- operands ---- */

/* entries of x by `at` along an axis, under the axis's own extent. */
static opipe_status pick(rower *r, const opi_node *node, uint32_t x, const opi_carry *how,
                         uint32_t at, uint32_t *out) {
  const uint32_t in[2] = {x, at};
  opi_attrs attrs = {.n = 0};
  if (how->outer != 1 || how->inner != 1)
    return opi_s_refuse(&r->s, node, "tokens are folded with other dimensions");
  opi_attrs_int(&attrs, "axis", how->axis);
  return opi_k_one(&r->s.b, "Gather", 0, in, 2, &attrs, out, r->s.err);
}

/* The rows of a value that is known for every position. */
static opipe_status rows_of_table(rower *r, const opi_node *node, uint32_t v, const opi_carry *how,
                                  bool few, uint32_t *out) {
  uint32_t *made = &r->tables[few][v];
  if (*made == OPIPE_NONE)
    OPI_TRY(pick(r, node, r->s.map[v], how, r->place[few], made));
  *out = *made;
  return OPIPE_OK;
}

opipe_status opi_r_operand(rower *r, const opi_node *node, uint32_t v, const opi_carry *how,
                           bool few, uint32_t *out) {
  const opi_value *value = &r->s.whole->values[v];
  char why[200];
  if (opi_s_sliced(&r->s, v)) {
    *out = r->s.map[v];
    if (!few || r->few[v])
      return OPIPE_OK;
    if (r->picked[v] == OPIPE_NONE)
      OPI_TRY(pick(r, node, r->s.map[v], &r->s.carry[v], r->wanted, &r->picked[v]));
    *out = r->picked[v];
    return OPIPE_OK;
  }
  if (r->stale[v] || (value->producer == OPIPE_NONE && !opi_value_known(value) &&
                      (value->flags & OPI_VALUE_INITIALIZER) == 0)) {
    (void)snprintf(why, sizeof why,
                   "it reads '%.80s', which is neither rows nor keys and values of before",
                   value->name);
    return opi_s_refuse(&r->s, node, why);
  }
  if (r->s.t->differs[v]) {
    (void)snprintf(why, sizeof why, "it reads '%.80s', which depends on the number of tokens",
                   value->name);
    return opi_s_refuse(&r->s, node, why);
  }
  if (opi_carries(how))
    return rows_of_table(r, node, v, how, few, out);
  *out = r->s.map[v];
  return OPIPE_OK;
}

/* The shape operand of Reshape and Expand: the output's, with rows for tokens. */
static opipe_status shape_operand(rower *r, const opi_node *node, const opi_carry *out_carry,
                                  int64_t rows, uint32_t *out) {
  const opi_value *y = &r->s.whole->values[node->out[0]];
  int64_t shape[OPIPE_MAX_RANK];
  for (int32_t d = 0; d < y->rank; ++d)
    shape[d] = y->shape[d];
  if (opi_carries(out_carry))
    shape[out_carry->axis] = out_carry->outer * rows * out_carry->inner;
  return opi_ints_value(&r->s.b, shape, (uint32_t)y->rank, out, r->s.err);
}

/* ---- nodes ---- */

static opipe_status emit_rows(rower *r, const opi_node *node, const opi_carry *in_carry,
                              const opi_carry *out_carry, bool few) {
  const bool shaped = (opi_op_of(node)->takes & (OPI_TAKES_FORM | OPI_TAKES_STRETCHED)) != 0;
  uint32_t *in = OPI_ARENA_ARRAY(&r->s.scratch, uint32_t, node->n_in);
  if (in == NULL)
    return opi_fail_nomem(r->s.err, node->n_in * 4, "a node");
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = OPIPE_NONE;
    if (shaped && i == 1)
      OPI_TRY(shape_operand(r, node, &out_carry[0], few ? r->wish->wanted : r->wish->rows, &in[i]));
    else if (node->in[i] != OPIPE_NONE)
      OPI_TRY(opi_r_operand(r, node, node->in[i], &in_carry[i], few, &in[i]));
  }
  OPI_TRY(opi_s_emit(&r->s, node, in));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    r->s.carry[node->out[o]] = out_carry[o];
    r->few[node->out[o]] = few;
  }
  return OPIPE_OK;
}

/* Tables over the positions are computed now, however large the parameter behind them. */
static opipe_status emit_whole(rower *r, const opi_node *node) {
  const uint64_t limit = r->s.b.fold_limit_bytes;
  const opi_carry none = OPI_CARRY_NONE;
  uint32_t *in = OPI_ARENA_ARRAY(&r->s.scratch, uint32_t, node->n_in);
  if (in == NULL)
    return opi_fail_nomem(r->s.err, node->n_in * 4, "a node");
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = OPIPE_NONE;
    if (node->in[i] != OPIPE_NONE)
      OPI_TRY(opi_r_operand(r, node, node->in[i], &none, false, &in[i]));
  }
  if (node->n_out > 0 && opi_carries(&(opi_carry){r->s.t->dims[node->out[0]][0], 0, 1, 1, 0})) {
    r->s.folds = true;
    r->s.b.fold_limit_bytes = TABLE_BYTES;
  }
  const opipe_status status = opi_s_emit(&r->s, node, in);
  r->s.folds = false;
  r->s.b.fold_limit_bytes = limit;
  return status;
}

static void mark_outputs(bool *marks, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      marks[node->out[o]] = true;
  }
}

/* Earlier keys with nothing new are not made. *out_done: the node was this, or a write into them.
 */
static opipe_status walk_stale(rower *r, const opi_node *node, bool rows, bool stale,
                               bool *out_done) {
  uint32_t from;
  int32_t axis;
  *out_done = false;
  OPI_TRY(opi_r_cache(r, node, &from, &axis));
  if (from != OPIPE_NONE) {
    r->s.map[node->out[0]] = r->s.map[from];
    r->s.carry[node->out[0]] = (opi_carry){axis, 0, 1, 1, 0};
    r->few[node->out[0]] = r->few[from];
    *out_done = true;
    return OPIPE_OK;
  }
  if (!stale)
    return OPIPE_OK;
  if (rows) {
    return opi_s_refuse(&r->s, node,
                        "it joins rows with a state that is no keys and values by position");
  }
  mark_outputs(r->stale, node);
  *out_done = true;
  return OPIPE_OK;
}

/* The last token: every wanted row is one. Where its axis goes, the batch of 1 before it takes the
 * rows. */
static opipe_status walk_last(rower *r, const opi_node *node, int32_t axis, bool few) {
  const uint32_t v = node->in[0], y = node->out[0];
  const opi_value *whole = &r->s.whole->values[y];
  const int64_t rows = few ? r->wish->wanted : r->few[v] ? r->wish->wanted : r->wish->rows;
  int64_t shape[OPIPE_MAX_RANK];
  OPI_TRY(opi_r_operand(r, node, v, &r->s.carry[v], few, &r->s.map[y]));
  r->s.carry[y] = r->s.carry[v];
  r->few[y] = few || r->few[v];
  if (whole->rank == r->s.whole->values[v].rank)
    return OPIPE_OK;
  for (int32_t d = 0; d < whole->rank; ++d)
    shape[d] = whole->shape[d];
  if (axis == 0 || whole->shape[axis - 1] != 1)
    return opi_s_refuse(&r->s, node, "the last token is picked from under other dimensions");
  shape[axis - 1] = rows;
  r->s.carry[y].axis = axis - 1;
  return opi_k_reshape(&r->s.b, r->s.map[y], shape, (uint32_t)whole->rank, &r->s.map[y], r->s.err);
}

static opipe_status walk_node(rower *r, const opi_node *node, bool few) {
  slicer *s = &r->s;
  bool rows = false, stale = false, tokens = false, done;
  int32_t axis;
  opi_carry *in = OPI_ARENA_ARRAY(&s->scratch, opi_carry, (size_t)node->n_in + node->n_out);
  if (in == NULL)
    return opi_fail_nomem(s->err, (node->n_in + node->n_out) * sizeof(*in), "carries");
  opi_carry *out = in + node->n_in;
  OPI_TRY(opi_s_name_after(s, node));
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    in[i] = OPI_CARRY_NONE;
    if (v == OPIPE_NONE)
      continue;
    in[i] = opi_s_sliced(s, v) ? s->carry[v] : opi_s_plain_carry(s, v);
    rows = rows || opi_s_sliced(s, v);
    tokens = tokens || opi_carries(&in[i]);
    stale = stale || r->stale[v];
  }
  if (is_attention(node) && rows)
    return opi_r_attention(r, node);
  OPI_TRY(walk_stale(r, node, rows, stale, &done));
  if (done)
    return OPIPE_OK;
  if (opi_r_is_last(r, node, &axis))
    return walk_last(r, node, axis, few);
  if (rows) {
    OPI_TRY(opi_s_agree(s, node, in, out));
    return emit_rows(r, node, in, out, few);
  }
  if (tokens && opi_s_rule(s, node, in, out, NULL) >= 0 && opi_carries(&out[0]))
    return emit_rows(r, node, in, out, few);
  return emit_whole(r, node);
}

/* ---- inputs and outputs ---- */

static opipe_status add_input(rower *r, const char *name, uint32_t dtype, const int64_t *shape,
                              uint32_t rank, uint32_t *out) {
  *out = opi_b_borrow(&r->s.b, name, dtype, shape, rank, NULL);
  if (*out == OPIPE_NONE || !opi_graph_add_input(r->s.b.graph, *out))
    return opi_fail_nomem(r->s.err, sizeof(opi_value), "an input");
  opi_b_value(&r->s.b, *out)->flags = OPI_VALUE_INPUT;
  return OPIPE_OK;
}

/* A model's input with tokens: rows, without its batch. */
static opipe_status add_ids(rower *r, uint32_t v) {
  const opi_value *x = &r->s.whole->values[v];
  const opi_carry carry = opi_s_plain_carry(&r->s, v);
  int64_t shape[OPIPE_MAX_RANK], whole[OPIPE_MAX_RANK];
  uint32_t rank = 0, made;
  for (int32_t d = 0; d < x->rank; ++d) {
    whole[d] = d == carry.axis ? r->wish->rows : x->shape[d];
    if (d == carry.axis || x->shape[d] != 1)
      shape[rank++] = whole[d];
  }
  if (rank == 0 || shape[0] != r->wish->rows || x->shape[carry.axis] != r->form->context) {
    return opi_fail(r->s.err, OPIPE_E_UNSUPPORTED,
                    "no row form: input '%s' has other dimensions before its tokens", x->name);
  }
  OPI_TRY(add_input(r, x->name, x->dtype, shape, rank, &made));
  opi_b_value(&r->s.b, made)->source = x->source;
  r->ids[r->n_ids++] = made;
  OPI_TRY(opi_k_reshape(&r->s.b, made, whole, (uint32_t)x->rank, &r->s.map[v], r->s.err));
  r->s.carry[v] = carry;
  return OPIPE_OK;
}

static opipe_status add_places(rower *r) {
  const opi_row_wish *w = r->wish;
  const int64_t columns = (r->form->context - 1) / w->page + 1;
  const int64_t table[2] = {w->sequences, columns};
  OPI_TRY(add_input(r, "rows/position", OPIPE_INT64, &w->rows, 1, &r->position));
  OPI_TRY(add_input(r, "rows/sequence", OPIPE_INT64, &w->rows, 1, &r->sequence));
  OPI_TRY(add_input(r, "rows/table", OPIPE_INT64, table, 2, &r->table));
  const int64_t copies[2] = {w->copies, 3};
  const opi_carry first = {0, 0, 1, 1, 0};
  r->wanted = r->copies = OPIPE_NONE;
  r->place[0] = r->place[1] = r->position;
  if (w->wanted != 0) {
    OPI_TRY(add_input(r, "rows/wanted", OPIPE_INT64, &w->wanted, 1, &r->wanted));
    OPI_TRY(pick(r, NULL, r->position, &first, r->wanted, &r->place[1]));
  }
  return w->copies == 0 ? OPIPE_OK
                        : add_input(r, "rows/copies", OPIPE_INT64, copies, 2, &r->copies);
}

static opipe_status add_values(rower *r) {
  const opi_graph *g = r->s.whole;
  for (uint32_t v = 0; v < g->n_values; ++v)
    r->picked[v] = r->tables[0][v] = r->tables[1][v] = OPIPE_NONE;
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const uint32_t v = g->inputs[i];
    const opi_value *x = &g->values[v];
    const opi_carry tokens = opi_s_plain_carry(&r->s, v);
    if (opi_carries(&tokens) && x->rank <= 3)
      OPI_TRY(add_ids(r, v));
    else /* keys and values of before, or another state */
      r->stale[v] = opi_dtype_is_float(x->dtype) || x->rank > 3;
  }
  if (r->n_ids == 0)
    return opi_fail(r->s.err, OPIPE_E_UNSUPPORTED, "no row form: no input has tokens");
  OPI_TRY(add_places(r));
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const opi_value *value = &g->values[v];
    if (value->producer == OPIPE_NONE && r->s.map[v] == OPIPE_NONE &&
        (value->flags & OPI_VALUE_INPUT) == 0)
      OPI_TRY(opi_s_copy_value(&r->s, v));
  }
  return OPIPE_OK;
}

static opipe_status add_outputs(rower *r) {
  const uint32_t v = r->form->logits;
  opi_graph *g = r->s.b.graph;
  bool added = true;
  if (!opi_s_sliced(&r->s, v)) {
    return opi_fail(r->s.err, OPIPE_E_UNSUPPORTED, "no row form: output '%s' has no tokens as rows",
                    r->s.whole->values[v].name);
  }
  /* without an attention behind it, it is made for all rows */
  if (r->wanted != OPIPE_NONE && !r->few[v]) {
    OPI_TRY(pick(r, &r->s.whole->nodes[r->s.whole->values[v].producer], r->s.map[v], &r->s.carry[v],
                 r->wanted, &r->s.map[v]));
  }
  for (uint32_t k = 0; k < 2 * r->n_pages; ++k)
    added = added && opi_graph_add_input(g, r->pages[k / 2].in[k % 2]);
  added = added && opi_graph_add_output(g, r->s.map[v]);
  for (uint32_t k = 0; k < 2 * r->n_pages && !r->wish->in_place; ++k)
    added = added && opi_graph_add_output(g, r->pages[k / 2].out[k % 2]);
  return added ? OPIPE_OK : opi_fail_nomem(r->s.err, 4, "an output");
}

static opipe_status build(rower *r) {
  OPI_TRY(add_values(r));
  for (uint32_t n = 0; n < r->s.whole->n_nodes; ++n) {
    if (r->form->main[n])
      OPI_TRY(walk_node(r, &r->s.whole->nodes[n], r->wanted != OPIPE_NONE && !r->form->front[n]));
  }
  OPI_TRY(add_outputs(r));
  return opi_pass_dead(&r->s.b, r->s.err);
}

static opipe_status open_rower(rower *r) {
  const opi_graph *g = r->s.whole;
  OPI_TRY(opi_s_open(&r->s));
  r->few = OPI_ARENA_ARRAY(&r->s.scratch, bool, g->n_values);
  r->stale = OPI_ARENA_ARRAY(&r->s.scratch, bool, g->n_values);
  r->picked = OPI_ARENA_ARRAY(&r->s.scratch, uint32_t, g->n_values);
  r->tables[0] = OPI_ARENA_ARRAY(&r->s.scratch, uint32_t, g->n_values);
  r->tables[1] = OPI_ARENA_ARRAY(&r->s.scratch, uint32_t, g->n_values);
  r->ids = OPI_ARENA_ARRAY(&r->s.scratch, uint32_t, g->n_inputs + 1);
  r->pages = OPI_ARENA_ARRAY(&r->s.scratch, opi_row_pages, g->n_nodes + 1);
  if (r->few == NULL || r->stale == NULL || r->picked == NULL || r->tables[0] == NULL ||
      r->tables[1] == NULL || r->ids == NULL || r->pages == NULL)
    return opi_fail_nomem(r->s.err, g->n_values * 16, "rows");
  return OPIPE_OK;
}

/* The graph as one of its own. Inputs and outputs are in the order of add_values, add_outputs. */
static opipe_status finish(rower *r, opi_row_graph *out) {
  opi_bound *bound = out->bound;
  OPI_TRY(opi_graph_copy(r->s.b.graph, &bound->arena, &bound->graph, r->s.err));
  const opi_graph *g = bound->graph;
  uint32_t at = r->n_ids;
  out->n_ids = r->n_ids;
  out->position = g->inputs[at++];
  out->sequence = g->inputs[at++];
  out->table = g->inputs[at++];
  out->wanted = r->wanted == OPIPE_NONE ? OPIPE_NONE : g->inputs[at++];
  out->copies = r->copies == OPIPE_NONE ? OPIPE_NONE : g->inputs[at++];
  out->logits = g->outputs[0];
  out->n_pages = r->n_pages;
  out->pages = OPI_ARENA_ARRAY(&bound->arena, opi_row_pages, r->n_pages + 1);
  if (out->pages == NULL)
    return opi_fail_nomem(r->s.err, r->n_pages * sizeof *out->pages, "pages");
  for (uint32_t i = 0; i < r->n_pages; ++i) {
    out->pages[i] = r->pages[i];
    for (uint32_t k = 0; k < 2; ++k) {
      out->pages[i].in[k] = g->inputs[at + 2 * i + k];
      out->pages[i].out[k] = r->wish->in_place ? OPIPE_NONE : g->outputs[1 + 2 * i + k];
    }
  }
  OPI_TRY(opi_index_limits(g, &bound->arena, &bound->index_limits, r->s.err));
  return opi_graph_verify(g, r->s.err);
}

static opipe_status make(rower *r, opi_row_graph *out) {
  opipe_status status = open_rower(r);
  if (status >= 0)
    status = opi_row_refused(build(r), r->s.err);
  if (status >= 0)
    status = finish(r, out);
  opi_b_close(&r->s.b);
  return status;
}

static opipe_status check_wish(const opi_row_wish *w, opipe_error *err) {
  if (w->rows < 1 || w->sequences < 1 || w->page < 1 || w->pages < 1 || w->copies < 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%" PRId64 " rows, %" PRId64 " sequences, %" PRId64 " pages of %" PRId64
                    " tokens: all must be 1 at least",
                    w->rows, w->sequences, w->pages, w->page);
  }
  if (w->wanted >= 0 && w->wanted <= w->rows)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%" PRId64 " of %" PRId64 " rows are wanted", w->wanted,
                  w->rows);
}

opipe_status opi_row_graph_make(const opi_row_form *form, const opi_row_wish *wish,
                                const opipe_allocator *allocator, opi_row_graph **out_graph,
                                opipe_error *err) {
  rower r = {.form = form, .wish = wish};
  OPI_TRY(check_wish(wish, err));
  r.s.t = form->tokens;
  r.s.whole = form->whole->graph;
  r.s.length = wish->rows;
  r.s.evaluator = form->evaluator;
  r.s.noun = "rows";
  r.s.refusal = "no row form";
  r.s.err = err;
  opi_row_graph *made = opi_alloc_zero(allocator, 1, sizeof *made);
  opi_bound *bound = made == NULL ? NULL : opi_alloc_zero(allocator, 1, sizeof *bound);
  if (bound == NULL) {
    opi_free(allocator, made, sizeof *made);
    return opi_fail_nomem(err, sizeof *made + sizeof *bound, "a graph of rows");
  }
  opi_arena_init(&bound->arena, allocator, 0);
  opi_arena_init(&r.s.scratch, allocator, 0);
  made->bound = bound;
  const opipe_status status = make(&r, made);
  opi_arena_release(&r.s.scratch);
  if (status < 0) {
    opi_row_graph_free(made);
    return status;
  }
  *out_graph = made;
  return OPIPE_OK;
}

void opi_row_graph_free(opi_row_graph *graph) {
  if (graph == NULL)
    return;
  const opipe_allocator *allocator = graph->bound->arena.allocator;
  opi_bound_free(graph->bound);
  opi_free(allocator, graph, sizeof *graph);
}
