/* SPDX-License-Identifier: Apache-2.0 */
/* For training: float16 and bfloat16 of a bound graph become float32.
 *
 * Weights of half types are trained from float32 masters, and what products run in is said by the
 * training (loader/gradient/compute.c), not by the file, as PyTorch's model.float() under autocast
 * has it. Inputs keep the type in which they are fed, and are cast; outputs are float32. Casts
 * between float types that are one now go. After fusing: patterns are recognised in the types in
 * which they were written.
 */
#include <string.h>

#include "loader/graph/wide.h"
#include "loader/ops/kit.h"
#include "loader/passes/private.h"

typedef struct widening {
  opi_builder *b;
  const opi_model *model;
  opi_arena *arena;   /* of the bound graph: literals, which are not copied */
  uint32_t *replaced; /* [n_values] what readers take in its place; OPIPE_NONE: itself */
  opipe_error *err;
} widening;

static bool has_halves(const opi_graph *graph) {
  bool any = false;
  for (uint32_t v = 0; v < graph->n_values && !any; ++v)
    any = opi_dtype_is_half(graph->values[v].dtype);
  return any;
}

/* ---- values ---- */

/* The model caches the widened content of the file's initializers, for every graph that is bound.
 */
static opipe_status widen_data(widening *w, opi_value *value) {
  const opi_graph *file = w->model->graph;
  const uint64_t n = value->n_bytes / sizeof(uint16_t);
  const bool known = w->model->wide != NULL && value->source < file->n_values &&
                     (value->flags & OPI_VALUE_BORROWED) != 0 &&
                     file->values[value->source].data == value->data &&
                     file->values[value->source].n_bytes == value->n_bytes;
  const float *data = NULL;
  if (known) {
    OPI_TRY(opi_model_widened(w->model, value->source, &data, w->err));
  } else {
    float *own = opi_arena_alloc(w->b->scratch, (size_t)(n == 0 ? 1 : n) * sizeof *own);
    if (own == NULL)
      return opi_fail_nomem(w->err, n * sizeof *own, value->name);
    opi_widen(value->dtype, value->data, n, own);
    value->flags &= ~(uint32_t)OPI_VALUE_BORROWED;
    data = own;
  }
  value->data = data;
  return OPIPE_OK;
}

static opipe_status widen_value(widening *w, opi_value *value) {
  if (!opi_dtype_is_half(value->dtype) || (value->flags & OPI_VALUE_INPUT) != 0)
    return OPIPE_OK;
  if (value->data != NULL) {
    OPI_TRY(widen_data(w, value));
    value->flags |= value->dtype == OPIPE_FLOAT16 ? OPI_VALUE_WAS_HALF : OPI_VALUE_WAS_BFLOAT;
  }
  value->n_bytes *= sizeof(float) / sizeof(uint16_t);
  value->dtype = OPIPE_FLOAT;
  return OPIPE_OK;
}

/* ---- nodes ---- */

/* An attribute that names a type: "to", "dtype", "output_dtype". */
static bool names_half(const opipe_attr *attr) {
  static const char *const names[] = {"to", "dtype", "output_dtype", "output_datatype",
                                      "stash_type"};
  bool found = false;
  for (size_t i = 0; i < OPI_COUNT(names); ++i)
    found = found || strcmp(attr->name, names[i]) == 0;
  return found && attr->kind == OPIPE_ATTR_INT &&
         (attr->i == OPIPE_FLOAT16 || attr->i == OPIPE_BFLOAT16);
}

static opipe_status widen_literal(widening *w, opipe_attr *attr) {
  const opipe_literal *from = attr->data;
  if (attr->kind != OPIPE_ATTR_TENSOR || !opi_dtype_is_half(from->dtype))
    return OPIPE_OK;
  const uint64_t n = from->n_bytes / sizeof(uint16_t);
  opipe_literal *to = opi_arena_copy(w->arena, from, sizeof *from);
  float *data = opi_arena_alloc(w->arena, (size_t)(n == 0 ? 1 : n) * sizeof *data);
  if (to == NULL || data == NULL)
    return opi_fail_nomem(w->err, n * sizeof *data, "an attribute");
  opi_widen(from->dtype, from->data, n, data);
  to->data = data;
  to->n_bytes = n * sizeof *data;
  to->dtype = OPIPE_FLOAT;
  attr->data = to;
  return OPIPE_OK;
}

static opipe_status widen_attrs(widening *w, opi_node *node) {
  for (uint32_t a = 0; a < node->n_attrs; ++a) {
    if (names_half(&node->attrs[a]))
      node->attrs[a].i = OPIPE_FLOAT;
    OPI_TRY(widen_literal(w, &node->attrs[a]));
  }
  return OPIPE_OK;
}

/* A cast that has become one from float32 to float32 goes, unless something asks for its result by
 * name. */
static void drop_cast(widening *w, const opi_node *node) {
  const opi_graph *graph = w->b->graph;
  const uint32_t asked = OPI_VALUE_OUTPUT | OPI_VALUE_BARRIER;
  if ((opi_op_of(node)->takes & OPI_TAKES_CAST) == 0 || node->n_in != 1 ||
      graph->values[node->in[0]].dtype != OPIPE_FLOAT ||
      graph->values[node->out[0]].dtype != OPIPE_FLOAT ||
      (graph->values[node->out[0]].flags & asked) != 0)
    return;
  w->replaced[node->out[0]] = node->in[0];
}

/* Nodes stand in the order in which they run: what is replaced is known before it is read. */
static opipe_status widen_nodes(widening *w) {
  opi_graph *graph = w->b->graph;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    opi_node *node = &graph->nodes[n];
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (node->in[i] != OPIPE_NONE && w->replaced[node->in[i]] != OPIPE_NONE)
        node->in[i] = w->replaced[node->in[i]];
    }
    OPI_TRY(widen_attrs(w, node));
    drop_cast(w, node);
  }
  for (uint32_t a = 0; a < w->b->n_aliases; ++a) {
    opi_alias *alias = &w->b->aliases[a];
    if (alias->value != OPIPE_NONE && w->replaced[alias->value] != OPIPE_NONE &&
        (graph->values[alias->value].flags & OPI_VALUE_INPUT) == 0)
      alias->value = w->replaced[alias->value];
  }
  return OPIPE_OK;
}

/* ---- inputs ---- */

/* Casts of the inputs of half types, behind all other nodes for now. cast_of [n_inputs] */
static opipe_status cast_inputs(widening *w, uint32_t *cast_of) {
  opi_builder *b = w->b;
  for (uint32_t i = 0; i < b->graph->n_inputs; ++i) {
    const uint32_t v = b->graph->inputs[i];
    const opi_value *input = opi_b_value(b, v);
    cast_of[i] = OPIPE_NONE;
    if (!opi_dtype_is_half(input->dtype))
      continue;
    const opi_node origin = {.name = opi_arena_printf(b->graph->arena, "%s/float32", input->name),
                             .stage = -1};
    if (origin.name == NULL)
      return opi_fail_nomem(w->err, 32, "a cast's name");
    b->origin = &origin;
    b->origin_index = OPIPE_NONE;
    b->origin_stage = -1;
    b->n_emitted = 0;
    const opipe_status status = opi_k_cast(b, v, OPIPE_FLOAT, &cast_of[i], w->err);
    b->origin = NULL;
    OPI_TRY(status);
  }
  return OPIPE_OK;
}

/* The last n nodes to the front. */
static opipe_status move_to_front(opi_graph *graph, opi_arena *scratch, uint32_t n,
                                  opipe_error *err) {
  const uint32_t n_rest = graph->n_nodes - n;
  opi_node *casts = opi_arena_copy(scratch, graph->nodes + n_rest, n * sizeof *casts);
  if (casts == NULL)
    return opi_fail_nomem(err, n * sizeof *casts, "casts of inputs");
  memmove(graph->nodes + n, graph->nodes, n_rest * sizeof *casts);
  memcpy(graph->nodes, casts, n * sizeof *casts);
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    uint32_t *producer = &graph->values[v].producer;
    if (*producer != OPIPE_NONE)
      *producer = *producer < n_rest ? *producer + n : *producer - n_rest;
  }
  return OPIPE_OK;
}

opipe_status opi_pass_widen(opi_builder *b, const opi_model *model, opi_arena *arena,
                            opipe_error *err) {
  opi_graph *graph = b->graph;
  widening w = {.b = b, .model = model, .arena = arena, .err = err};
  if (!has_halves(graph))
    return OPIPE_OK;
  const uint32_t n_nodes = graph->n_nodes;
  uint32_t *cast_of = OPI_ARENA_ARRAY(b->scratch, uint32_t, graph->n_inputs);
  if (cast_of == NULL)
    return opi_fail_nomem(err, graph->n_inputs * sizeof *cast_of, "casts of inputs");
  OPI_TRY(cast_inputs(&w, cast_of));
  w.replaced = OPI_ARENA_ARRAY(b->scratch, uint32_t, graph->n_values);
  if (w.replaced == NULL)
    return opi_fail_nomem(err, graph->n_values * sizeof *w.replaced, "casts");
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    w.replaced[v] = OPIPE_NONE;
    OPI_TRY(widen_value(&w, &graph->values[v]));
  }
  for (uint32_t i = 0; i < graph->n_inputs; ++i)
    w.replaced[graph->inputs[i]] = cast_of[i];
  const uint32_t n_casts = graph->n_nodes - n_nodes;
  graph->n_nodes = n_nodes; /* the casts read the inputs themselves */
  OPI_TRY(widen_nodes(&w));
  graph->n_nodes += n_casts;
  OPI_TRY(move_to_front(graph, b->scratch, n_casts, err));
  return opi_pass_dead(b, err);
}
