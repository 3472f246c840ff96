/* SPDX-License-Identifier: Apache-2.0 */
/* Token slices of attention that stands as products and a Softmax: with fusion switched off, or in
 * a form that no pattern knows (a column of attention sinks beside the scores).
 *
 *   scores = Q K^T     rows of this slice, columns of all tokens so far: K is handed on, as it
 * comes between            element by element; masks are cut to rows and columns Softmax, ReduceMax
 * along the columns: what is left out must be shown to be very low weights V          what is left
 * out must be shown to be 0; V is handed on
 *
 * Columns that are no tokens may stand before and after them (Concat), until a Slice drops them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "loader/passes/slicer.h"

static const opi_token_plane NO_PLANE = {-1, -1, 0, 0};

static const opi_value *whole_value(const slicer *s, uint32_t v) {
  return &s->whole->values[v];
}

static bool is_product(const opi_node *node) {
  return opi_op_of(node)->kind == OPI_KIND_PRODUCT && opi_attr_int(node, "transA", 0) == 0 &&
         opi_attr_int(node, "transBatchA", 0) == 0 && opi_attr_int(node, "transBatchB", 0) == 0;
}

/* The axis of the right operand that is summed over, or that makes the columns. */
static int32_t right_axis(const slicer *s, const opi_node *node, bool summed) {
  const bool turned = opi_attr_int(node, "transB", 0) != 0;
  return whole_value(s, node->in[1])->rank - (turned == summed ? 1 : 2);
}

/* ---- scores in the whole graph ---- */

static bool has_axis(const slicer *s, uint32_t v, int32_t axis) {
  return s->t->dims[v][0] == axis && s->t->dims[v][1] < 0;
}

static bool makes_scores(const slicer *s, const opi_node *node, const bool *weighty) {
  const opi_value *y = whole_value(s, node->out[0]);
  const int8_t *d = s->t->dims[node->out[0]];
  if (d[0] < 0 || d[1] < 0)
    return false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE && s->scores[node->in[i]])
      return true;
  }
  return is_product(node) && d[0] == y->rank - 2 && d[1] == y->rank - 1 && weighty[node->in[0]] &&
         weighty[node->in[1]] && has_axis(s, node->in[0], whole_value(s, node->in[0])->rank - 2) &&
         has_axis(s, node->in[1], right_axis(s, node, false));
}

opipe_status opi_s_find_scores(slicer *s) {
  bool *weighty = OPI_ARENA_ARRAY(&s->scratch, bool, s->whole->n_values);
  if (weighty == NULL)
    return opi_fail_nomem(s->err, s->whole->n_values, "a token slice");
  for (uint32_t v = 0; v < s->whole->n_values; ++v)
    weighty[v] = opi_s_is_parameter(whole_value(s, v));
  for (uint32_t n = 0; n < s->whole->n_nodes; ++n) {
    const opi_node *node = &s->whole->nodes[n];
    bool heavy = false;
    for (uint32_t i = 0; i < node->n_in; ++i)
      heavy = heavy || (node->in[i] != OPIPE_NONE && weighty[node->in[i]]);
    const bool scores = node->out[0] != OPIPE_NONE && heavy && makes_scores(s, node, weighty);
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (node->out[o] == OPIPE_NONE)
        continue;
      weighty[node->out[o]] = heavy;
      s->scores[node->out[o]] = scores;
    }
  }
  return OPIPE_OK;
}

static bool broadcasts(const opi_node *node) {
  switch (opi_op_of(node)->range) {
    case OPI_RANGE_ADD:
    case OPI_RANGE_SUB:
    case OPI_RANGE_MUL:
    case OPI_RANGE_DIV:
    case OPI_RANGE_MIN:
    case OPI_RANGE_MAX:
    case OPI_RANGE_AND:
    case OPI_RANGE_OR:
    case OPI_RANGE_CHOICE:
      return true;
    default:
      return false;
  }
}

/* More than one element where value p has its columns, `back` from the last dimension. */
static bool spans(const opi_value *v, int32_t back) {
  return v->rank >= back && v->shape[v->rank - back] != 1;
}

bool opi_s_is_mask(const slicer *s, const opi_node *node, uint32_t i) {
  if (!broadcasts(node) || node->in[i] == OPIPE_NONE || s->scores[node->in[i]])
    return false;
  for (uint32_t k = 0; k < node->n_in; ++k) {
    const uint32_t p = node->in[k];
    if (p != OPIPE_NONE && s->scores[p])
      return spans(whole_value(s, node->in[i]), whole_value(s, p)->rank - s->t->dims[p][1]);
  }
  return false;
}

bool opi_s_at_scores(const slicer *s, const opi_node *node) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (opi_s_plane(s, node->in[i]))
      return true;
  }
  return node->out[0] != OPIPE_NONE && s->scores[node->out[0]] && is_product(node) &&
         opi_s_sliced(s, node->in[0]) && opi_s_sliced(s, node->in[1]);
}

/* ---- omitted columns ---- */

static opipe_status need_above(slicer *s, const opi_node *node, uint32_t what) {
  char why[300] = "", text[360];
  bool shown = false;
  OPI_TRY(opi_tokens_above(s->t, node->in[0], &s->planes[node->in[0]], what, s->evaluator, &shown,
                           why, sizeof why, s->err));
  (void)snprintf(text, sizeof text, "it is not causal: %s", why);
  return shown ? OPIPE_OK : opi_s_refuse(s, node, text);
}

/* ---- products ---- */

/* Operand v of all tokens so far along `axis`: handed on from slice to slice. */
static opipe_status join(slicer *s, const opi_node *node, uint32_t v, int32_t axis,
                         const char *what, uint32_t *out) {
  const opi_value *x = whole_value(s, v);
  const bool last = opi_s_end(s) == s->t->n_tokens;
  const opipe_attr attr = OPI_ATTR_I("axis", axis);
  uint32_t in[2] = {OPIPE_NONE, s->map[v]}, state = s->n_states;
  int64_t shape[OPIPE_MAX_RANK];
  for (int32_t d = 0; d < x->rank; ++d)
    shape[d] = d == axis ? s->first : x->shape[d];
  s->state_names[state] =
      opi_arena_printf(&s->scratch, "%s/%s", whole_value(s, node->out[0])->name, what);
  if (s->state_names[state] == NULL)
    return opi_fail_nomem(s->err, 64, "a name");
  OPI_TRY(opi_s_past(s, x->dtype, shape, (uint32_t)x->rank, &in[0]));
  const bool first = in[0] == OPIPE_NONE;
  const opi_emit emit = {.op = first ? "Identity" : "Concat",
                         .in = first ? &in[1] : in,
                         .n_in = first ? 1 : 2,
                         .n_out = 1,
                         .attrs = &attr,
                         .n_attrs = first ? 0 : 1,
                         .out_names = &s->state_names[state]};
  *out = in[1];
  if (!first || !last)
    OPI_TRY(opi_b_emit_kept(&s->b, &emit, out, s->err));
  s->pasts[state] = in[0];
  s->presents[state] = last ? OPIPE_NONE : *out;
  s->n_states = state + 1;
  return OPIPE_OK;
}

static bool is_plain(const opi_carry *c, int32_t axis) {
  return c->axis == axis && c->outer == 1 && c->inner == 1;
}

static opipe_status finish_product(slicer *s, const opi_node *node, uint32_t right,
                                   const opi_token_plane *plane) {
  const uint32_t in[2] = {s->map[node->in[0]], right};
  OPI_TRY(opi_s_emit(s, node, in));
  const int32_t row = whole_value(s, node->out[0])->rank - 2;
  s->carry[node->out[0]] = (opi_carry){row, 0, 1, 1};
  s->planes[node->out[0]] = *plane;
  return OPIPE_OK;
}

/* Q K^T */
static opipe_status product(slicer *s, const opi_node *node) {
  const opi_value *y = whole_value(s, node->out[0]);
  const opi_token_plane plane = {.row = y->rank - 2, .column = y->rank - 1};
  const int32_t axis = right_axis(s, node, false);
  uint32_t keys;
  if (!is_plain(&s->carry[node->in[0]], whole_value(s, node->in[0])->rank - 2) ||
      !is_plain(&s->carry[node->in[1]], axis))
    return opi_s_refuse(s, node, "queries and keys do not have tokens as rows and columns");
  OPI_TRY(join(s, node, node->in[1], axis, "keys", &keys));
  return finish_product(s, node, keys, &plane);
}

/* weights V */
static opipe_status contraction(slicer *s, const opi_node *node) {
  const uint32_t weights = node->in[0], v = node->in[1];
  const opi_token_plane *plane = &s->planes[weights];
  const int32_t axis = right_axis(s, node, true), rank = whole_value(s, weights)->rank;
  uint32_t values = s->map[v];
  if (!opi_s_plane(s, weights) || opi_s_plane(s, v) || plane->column != rank - 1 ||
      !is_plain(&s->carry[weights], rank - 2))
    return opi_s_refuse(s, node, "queries are not the rows of its left operand");
  if (plane->lead != 0 || plane->tail != 0)
    return opi_s_refuse(s, node, "columns that are not tokens take part in it");
  OPI_TRY(need_above(s, node, OPI_ABOVE_ZERO));
  if (opi_s_sliced(s, v) && !is_plain(&s->carry[v], axis))
    return opi_s_refuse(s, node, "values do not have tokens as rows");
  if (opi_s_sliced(s, v))
    OPI_TRY(join(s, node, v, axis, "values", &values));
  else if (has_axis(s, v, axis))
    OPI_TRY(opi_k_slice(&s->b, values, axis, 0, opi_s_end(s), &values, s->err));
  else
    return opi_s_refuse(s, node, "values do not have tokens as rows");
  return finish_product(s, node, values, &NO_PLANE);
}

/* ---- all other nodes ---- */

typedef struct operands {
  opi_carry *rows, *columns;         /* [n_in] */
  opi_carry *out_rows, *out_columns; /* [n_out] */
  uint32_t *in;                      /* [n_in] to emit */
  uint32_t at;                       /* the first operand that is a plane */
} operands;

static opipe_status open_operands(slicer *s, const opi_node *node, operands *o) {
  const size_t n = (size_t)node->n_in + node->n_out;
  o->rows = opi_arena_array(&s->scratch, 2 * n, sizeof(opi_carry));
  o->in = OPI_ARENA_ARRAY(&s->scratch, uint32_t, node->n_in);
  if (o->rows == NULL || o->in == NULL)
    return opi_fail_nomem(s->err, n * 2 * sizeof(opi_carry), "carries");
  o->columns = o->rows + n;
  o->out_rows = o->rows + node->n_in;
  o->out_columns = o->columns + node->n_in;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    o->rows[i] = o->columns[i] = OPI_CARRY_NONE;
    o->in[i] = node->in[i] == OPIPE_NONE ? OPIPE_NONE : s->map[node->in[i]];
  }
  o->at = 0;
  while (!opi_s_plane(s, node->in[o->at]))
    ++o->at;
  return OPIPE_OK;
}

static bool is_shape(const opi_node *node, uint32_t i) {
  return i == 1 && (opi_op_of(node)->takes & (OPI_TAKES_FORM | OPI_TAKES_STRETCHED)) != 0;
}

/* How operand i carries rows and columns. */
static opipe_status place_operand(slicer *s, const opi_node *node, uint32_t i, operands *o) {
  const uint32_t v = node->in[i], p = node->in[o->at];
  const opi_value *x = whole_value(s, v), *at = whole_value(s, p);
  const int32_t row = x->rank - (at->rank - s->carry[p].axis),
                column = x->rank - (at->rank - s->planes[p].column);
  if (opi_s_sliced(s, v))
    o->rows[i] = s->carry[v];
  if (opi_s_plane(s, v)) {
    o->columns[i] = (opi_carry){s->planes[v].column, 0, 1, 1};
    if (s->planes[v].lead != s->planes[p].lead || s->planes[v].tail != s->planes[p].tail)
      return opi_s_refuse(s, node, "its operands have other columns that are not tokens");
    return OPIPE_OK;
  }
  if (opi_s_sliced(s, v)) {
    if (broadcasts(node) && column >= 0 && x->shape[column] != 1)
      return opi_s_refuse(s, node, "its inputs for each key are made from activations");
    return OPIPE_OK;
  }
  if (s->t->differs[v] || s->t->dims[v][0] == -2)
    return opi_s_refuse(s, node, "it reads the number of tokens");
  for (uint32_t k = 0; k < OPI_TOKEN_DIMS; ++k) {
    const int32_t d = s->t->dims[v][k];
    if (d >= 0 && d == row)
      o->rows[i] = (opi_carry){d, 0, 1, 1};
    else if (d >= 0 && d == column)
      o->columns[i] = (opi_carry){d, 0, 1, 1};
  }
  if (opi_carries(&o->columns[i]) && s->planes[p].lead + s->planes[p].tail != 0)
    return opi_s_refuse(s, node, "it joins tokens with columns that are not tokens");
  return OPIPE_OK;
}

static opipe_status place_operands(slicer *s, const opi_node *node, operands *o) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE && !is_shape(node, i))
      OPI_TRY(place_operand(s, node, i, o));
  }
  return OPIPE_OK;
}

/* Whole operands are cut to the rows of this slice and the columns so far. */
static opipe_status cut_operands(slicer *s, const opi_node *node, const operands *o) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE || opi_s_sliced(s, node->in[i]))
      continue;
    if (opi_carries(&o->rows[i])) {
      OPI_TRY(
          opi_k_slice(&s->b, o->in[i], o->rows[i].axis, s->first, opi_s_end(s), &o->in[i], s->err));
    }
    if (opi_carries(&o->columns[i]) && opi_s_end(s) != s->t->n_tokens)
      OPI_TRY(opi_k_slice(&s->b, o->in[i], o->columns[i].axis, 0, opi_s_end(s), &o->in[i], s->err));
  }
  return OPIPE_OK;
}

static opipe_status set_outputs(slicer *s, const opi_node *node, const operands *o,
                                const opi_token_plane *plane) {
  for (uint32_t out = 0; out < node->n_out; ++out) {
    const uint32_t v = node->out[out];
    const opi_carry *row = &o->out_rows[out], *column = &o->out_columns[out];
    if (v == OPIPE_NONE)
      continue;
    if (!is_plain(row, row->axis) || row->axis < 0 ||
        (column->axis >= 0 && !is_plain(column, column->axis)))
      return opi_s_refuse(s, node, "it joins rows or columns of scores with another dimension");
    s->carry[v] = *row;
    s->planes[v] = *plane;
    s->planes[v].row = row->axis;
    s->planes[v].column = column->axis;
  }
  return OPIPE_OK;
}

/* The shape operand: rows of this slice, columns so far and those that are no tokens. */
static opipe_status shape_of(slicer *s, const opi_node *node, const operands *o,
                             const opi_token_plane *plane, uint32_t *out) {
  const opi_value *y = whole_value(s, node->out[0]);
  int64_t shape[OPIPE_MAX_RANK];
  for (int32_t d = 0; d < y->rank; ++d)
    shape[d] = y->shape[d];
  if (opi_carries(&o->out_rows[0]))
    shape[o->out_rows[0].axis] = o->out_rows[0].outer * s->length * o->out_rows[0].inner;
  if (opi_carries(&o->out_columns[0]))
    shape[o->out_columns[0].axis] = plane->lead + opi_s_end(s) + plane->tail;
  return opi_ints_value(&s->b, shape, (uint32_t)y->rank, out, s->err);
}

static opipe_status generic(slicer *s, const opi_node *node, operands *o) {
  const opi_token_plane plane = s->planes[node->in[o->at]];
  OPI_TRY(place_operands(s, node, o));
  OPI_TRY(opi_s_rule(s, node, o->rows, o->out_rows, s->err));
  OPI_TRY(opi_s_rule(s, node, o->columns, o->out_columns, s->err));
  OPI_TRY(cut_operands(s, node, o));
  if (node->n_in > 1 && is_shape(node, 1))
    OPI_TRY(shape_of(s, node, o, &plane, &o->in[1]));
  OPI_TRY(set_outputs(s, node, o, &plane));
  return opi_s_emit(s, node, o->in);
}

/* Softmax, or a reduction, along the columns. */
static opipe_status along(slicer *s, const opi_node *node, operands *o, bool softmax) {
  const opi_token_plane plane = s->planes[node->in[0]];
  const bool zero = strcmp(node->op, "ReduceSum") == 0;
  o->rows[0] = s->carry[node->in[0]];
  OPI_TRY(opi_s_rule(s, node, o->rows, o->out_rows, s->err));
  OPI_TRY(need_above(s, node, zero ? OPI_ABOVE_ZERO : OPI_ABOVE_LOW));
  o->out_columns[0] = OPI_CARRY_NONE;
  if (softmax)
    o->out_columns[0] = (opi_carry){plane.column, 0, 1, 1};
  OPI_TRY(set_outputs(s, node, o, &plane));
  return opi_s_emit(s, node, o->in);
}

/* Columns that are no tokens, beside those that are. */
static opipe_status append(slicer *s, const opi_node *node, operands *o) {
  opi_token_plane plane = s->planes[node->in[o->at]];
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (i != o->at && opi_s_plane(s, node->in[i]))
      return opi_s_refuse(s, node, "it joins scores with scores");
    OPI_TRY(place_operand(s, node, i, o));
    if (i == o->at)
      continue;
    if (opi_carries(&o->columns[i]))
      return opi_s_refuse(s, node, "it joins scores with other columns of tokens");
    *(i < o->at ? &plane.lead : &plane.tail) += whole_value(s, node->in[i])->shape[plane.column];
  }
  OPI_TRY(opi_s_rule(s, node, o->rows, o->out_rows, s->err));
  o->out_columns[0] = (opi_carry){plane.column, 0, 1, 1};
  OPI_TRY(cut_operands(s, node, o));
  OPI_TRY(set_outputs(s, node, o, &plane));
  return opi_s_emit(s, node, o->in);
}

/* The one entry of a known input of a Slice; false: none. */
static bool entry(const slicer *s, const opi_node *node, uint32_t i, int64_t *out) {
  const uint32_t v = opi_node_in(node, i);
  const opi_value *x = v == OPIPE_NONE ? NULL : whole_value(s, v);
  if (x == NULL || !opi_value_known(x) || opi_elems(x) != 1)
    return false;
  *out = (int64_t)opi_known_element(x, 0);
  return true;
}

/* Drops columns that are no tokens, never one that is. */
static opipe_status drop(slicer *s, const opi_node *node, operands *o) {
  opi_token_plane plane = s->planes[node->in[0]];
  int64_t begin = 0, end = 0, axis = 0, step = 0;
  if (!entry(s, node, 1, &begin) || !entry(s, node, 2, &end) || !entry(s, node, 3, &axis) ||
      !entry(s, node, 4, &step) || axis != plane.column || step != 1)
    return generic(s, node, o);
  const int64_t tokens_end = plane.lead + s->t->n_tokens;
  if (begin < 0 || begin > plane.lead || end < tokens_end || end > tokens_end + plane.tail)
    return opi_s_refuse(s, node, "it takes some of the columns of tokens");
  const int64_t left_out = s->t->n_tokens - opi_s_end(s);
  const uint32_t from = node->in[0], v = node->out[0];
  const char *name = whole_value(s, v)->name;
  uint32_t in[5] = {s->map[from], OPIPE_NONE, OPIPE_NONE, s->map[node->in[3]], s->map[node->in[4]]};
  const int64_t ends[2] = {begin, end - left_out};
  for (uint32_t i = 0; i < 2; ++i)
    OPI_TRY(opi_ints_value(&s->b, &ends[i], 1, &in[1 + i], s->err));
  plane.lead -= begin;
  plane.tail = end - tokens_end;
  o->out_rows[0] = s->carry[from];
  o->out_columns[0] = (opi_carry){plane.column, 0, 1, 1};
  OPI_TRY(set_outputs(s, node, o, &plane));
  const opi_emit emit = {.op = node->op,
                         .in = in,
                         .n_in = 5,
                         .n_out = 1,
                         .version = node->version,
                         .out_names = &name};
  OPI_TRY(opi_b_emit_kept(&s->b, &emit, &s->map[v], s->err));
  opi_b_value(&s->b, s->map[v])->source = whole_value(s, v)->source;
  return OPIPE_OK;
}

/* Is the columns' dimension among the axes of a reduction? */
static bool reduces_columns(const slicer *s, const opi_node *node) {
  const uint32_t v = opi_node_in(node, 1);
  const opi_value *axes = v == OPIPE_NONE ? NULL : whole_value(s, v);
  bool found = axes == NULL;
  for (uint64_t i = 0; axes != NULL && opi_value_known(axes) && i < opi_elems(axes); ++i)
    found = found || (int64_t)opi_known_element(axes, i) == s->planes[node->in[0]].column;
  return found;
}

opipe_status opi_s_walk_scores(slicer *s, const opi_node *node) {
  operands o;
  if (is_product(node)) {
    return opi_s_plane(s, node->in[0]) || opi_s_plane(s, node->in[1]) ? contraction(s, node)
                                                                      : product(s, node);
  }
  if (node->domain[0] != '\0' || node->in[0] == OPIPE_NONE)
    return opi_s_refuse(s, node, "it reads scores of queries and keys");
  OPI_TRY(open_operands(s, node, &o));
  const opi_op *op = opi_op_of(node);
  const opi_token_plane *plane = &s->planes[node->in[0]];
  if (op->kind == OPI_KIND_RANDOM)
    return opi_s_refuse(s, node, "dropout of attention weights counts along whole rows");
  if (op->kind == OPI_KIND_SOFTMAX && opi_attr_int(node, "axis", -1) == plane->column)
    return along(s, node, &o, true);
  if ((strcmp(node->op, "ReduceMax") == 0 || strcmp(node->op, "ReduceSum") == 0) &&
      opi_s_plane(s, node->in[0]) && reduces_columns(s, node))
    return along(s, node, &o, false);
  if (op->takes == OPI_TAKES_JOINED &&
      opi_attr_int(node, "axis", 0) == s->planes[node->in[o.at]].column)
    return append(s, node, &o);
  if (op->takes == OPI_TAKES_PART && opi_s_plane(s, node->in[0]))
    return drop(s, node, &o);
  return generic(s, node, &o);
}
