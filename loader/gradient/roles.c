/* SPDX-License-Identifier: Apache-2.0 */
/* How constants meet activations: from an initializer through all that is made of constants alone,
 * to the nodes that join it with an activation.
 */
#include "loader/gradient/roles.h"

#include <string.h>

#include "loader/ops/kit.h"
#include "loader/passes/keep.h"

enum {
  KIND_TABLE = 1, /* an initializer of several floats leads to it: no plain number */
  KIND_COUNT = 2, /* depends on inputs, all of them integers, and on no table */
  KIND_FEEDS_SCORES = 4
};

static bool is_table(const opi_value *value) {
  return (value->flags & OPI_VALUE_INITIALIZER) != 0 && opi_dtype_is_float(value->dtype) &&
         opi_k_elems(value) > 1;
}

/* Forwards: what comes of tables, what is computed from integer inputs alone. */
static void mark_kinds(opi_roles *r) {
  const opi_graph *graph = r->s->training->graph;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opi_value *value = &graph->values[v];
    const bool fed = (value->flags & OPI_VALUE_INPUT) != 0;
    if (value->producer == OPIPE_NONE && is_table(value))
      r->kinds[v] |= KIND_TABLE;
    if (fed && !opi_dtype_is_float(value->dtype))
      r->kinds[v] |= KIND_COUNT;
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    bool table = false, counts = false, other = false;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      const uint32_t v = node->in[i];
      if (v == OPIPE_NONE)
        continue;
      table = table || (r->kinds[v] & KIND_TABLE) != 0;
      counts = counts || (r->kinds[v] & KIND_COUNT) != 0;
      other = other || ((r->kinds[v] & KIND_COUNT) == 0 && (r->s->flags[v] & OPI_V_CONSTANT) == 0);
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (node->out[o] != OPIPE_NONE) {
        r->kinds[node->out[o]] |=
            (uint8_t)((table ? KIND_TABLE : 0) | (counts && !other && !table ? KIND_COUNT : 0));
      }
    }
  }
}

/* Adds, subtracts, multiplies or divides. */
static bool is_sum(const opi_op *op) {
  return op->meets == OPI_MEETS_SHIFT || op->meets == OPI_MEETS_SCALE;
}

/* Backwards from Softmax and from masks of Attention. */
static void mark_scores(opi_roles *r) {
  const uint32_t through = OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_CAST |
                           OPI_TAKES_STRETCHED | OPI_TAKES_PART | OPI_TAKES_JOINED |
                           OPI_TAKES_EXTREME | OPI_TAKES_CHOSEN | OPI_TAKES_LIMITED;
  const opi_graph *graph = r->s->training->graph;
  for (uint32_t n = graph->n_nodes; n-- > 0;) {
    const opi_node *node = &graph->nodes[n];
    const opi_op *op = opi_op_of(node);
    const uint32_t out = opi_node_out(node, 0);
    if (op->kind == OPI_KIND_SOFTMAX)
      r->kinds[node->in[0]] |= KIND_FEEDS_SCORES;
    if (op->meets == OPI_MEETS_SCORES && opi_node_in(node, 3) != OPIPE_NONE)
      r->kinds[node->in[3]] |= KIND_FEEDS_SCORES;
    if (out == OPIPE_NONE || (r->kinds[out] & KIND_FEEDS_SCORES) == 0 ||
        ((op->takes & through) == 0 && !is_sum(op)))
      continue;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (node->in[i] != OPIPE_NONE)
        r->kinds[node->in[i]] |= KIND_FEEDS_SCORES;
    }
  }
}

/* True for the input of the loss, also before a change of form. */
static bool is_judged(const opi_roles *r, uint32_t v) {
  const uint32_t forms = OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_CAST | OPI_TAKES_PART;
  const opi_graph *graph = r->s->training->graph;
  uint32_t at = r->judged;
  while (at != OPIPE_NONE && at != v) {
    const uint32_t p = graph->values[at].producer;
    at = p != OPIPE_NONE && (opi_op_of(&graph->nodes[p])->takes & forms) != 0
             ? graph->nodes[p].in[0]
             : OPIPE_NONE;
  }
  return at == v;
}

/* A graph input, in another form, or scaled and shifted by constants. */
static bool is_raw_input(const opi_roles *r, uint32_t v) {
  const uint32_t forms = OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_CAST;
  const opi_graph *graph = r->s->training->graph;
  while (graph->values[v].producer != OPIPE_NONE) {
    const opi_node *node = &graph->nodes[graph->values[v].producer];
    const opi_op *op = opi_op_of(node);
    const bool sum = is_sum(op);
    if (!sum && (op->takes & forms) == 0)
      return false;
    v = node->in[0];
    if (sum && (r->s->flags[v] & OPI_V_CONSTANT) != 0)
      v = node->in[1];
    else if (sum && (r->s->flags[node->in[1]] & OPI_V_CONSTANT) == 0)
      return false;
  }
  return (graph->values[v].flags & OPI_VALUE_INPUT) != 0;
}

static bool is_product(const opi_op *op) {
  return op->meets == OPI_MEETS_PRODUCT || op->meets == OPI_MEETS_LAYER;
}

/* Input i is the bias of a layer, or scale or bias of a norm. */
static bool is_norm_part(const opi_op *op, uint32_t i) {
  switch (op->meets) {
    case OPI_MEETS_LAYER:
      return i == 2;
    case OPI_MEETS_NORM:
    case OPI_MEETS_BATCH_NORM:
    case OPI_MEETS_GROUP_NORM:
    case OPI_MEETS_SLOPE:
      return i > 0;
    default:
      return false;
  }
}

static uint32_t in_product(const opi_roles *r, const opi_node *node, uint32_t i, bool counts) {
  const opi_value *v = &r->s->training->graph->values[node->in[i]];
  const bool outer =
      counts && v->rank >= 1 && v->shape[v->rank - (i == 0 || v->rank == 1 ? 1 : 2)] == 1;
  return outer ? OPI_ROLE_COUNT : OPI_ROLE_WEIGHT;
}

/* Roles of a constant that meets value `other` as input i of a sum, a product or a quotient. */
static uint32_t on_input(const opi_roles *r, const opi_node *node, uint32_t i, uint32_t other) {
  const uint32_t range = opi_op_of(node)->range;
  if (other == OPIPE_NONE || !is_raw_input(r, other))
    return 0;
  return OPI_ROLE_INPUT |
         (i == 1 && (range == OPI_RANGE_SUB || range == OPI_RANGE_DIV) ? (uint32_t)OPI_ROLE_MEAN
                                                                       : 0u) |
         (r->s->training->graph->values[other].rank == 4 ? (uint32_t)OPI_ROLE_IMAGE : 0u);
}

/* Roles of a constant in a sum with activations. */
static uint32_t in_sum(const opi_roles *r, uint32_t out) {
  uint32_t roles = OPI_ROLE_SHIFT;
  if (out != OPIPE_NONE && (r->kinds[out] & KIND_FEEDS_SCORES) != 0)
    roles |= OPI_ROLE_SCORE;
  if (out != OPIPE_NONE && is_judged(r, out))
    roles |= OPI_ROLE_JUDGED;
  return roles;
}

/* The role of v as input i of a node that joins it with activations. */
static uint32_t joined(const opi_roles *r, const opi_node *node, uint32_t i) {
  const opi_op *op = opi_op_of(node);
  const uint32_t other = node->n_in == 2 ? node->in[1 - i] : OPIPE_NONE;
  const bool counts = other != OPIPE_NONE && (r->kinds[other] & KIND_COUNT) != 0;
  const bool term = other != OPIPE_NONE && r->s->training->graph->values[other].rank == 0;
  if (is_norm_part(op, i))
    return OPI_ROLE_NORM | (op->meets == OPI_MEETS_GROUP_NORM ? (uint32_t)OPI_ROLE_GROUP : 0u);
  switch (op->meets) {
    case OPI_MEETS_PRODUCT:
    case OPI_MEETS_LAYER:
      return in_product(r, node, i, counts);
    case OPI_MEETS_ROWS:
      return OPI_ROLE_ROWS | (is_raw_input(r, node->in[1]) ? 0u : (uint32_t)OPI_ROLE_PLACES);
    case OPI_MEETS_SCORES:
      return i == 3 ? OPI_ROLE_SCORE | OPI_ROLE_SHIFT : OPI_ROLE_OTHER;
    case OPI_MEETS_SHIFT:
      return term ? OPI_ROLE_TERM : in_sum(r, opi_node_out(node, 0)) | on_input(r, node, i, other);
    case OPI_MEETS_SCALE:
      return counts ? OPI_ROLE_COUNT | on_input(r, node, i, other)
             : term ? OPI_ROLE_TERM
                    : OPI_ROLE_SCALE | on_input(r, node, i, other);
    case OPI_MEETS_NUMBERS:
      return OPI_ROLE_NUMBER;
    default:
      return OPI_ROLE_OTHER;
  }
}

/* The role of v as input i of a node all of whose inputs are constants; 0: the node's result goes
 * on for it. */
static uint32_t among_constants(const opi_roles *r, const opi_node *node, uint32_t i) {
  const opi_op *op = opi_op_of(node);
  if (is_norm_part(op, i))
    return OPI_ROLE_NORM;
  if (op->meets == OPI_MEETS_NUMBERS && i > 0 &&
      opi_k_elems(&r->s->training->graph->values[node->in[i]]) == 1)
    return OPI_ROLE_NUMBER;
  if (!is_product(op))
    return 0;
  if (i > 0)
    return OPI_ROLE_WEIGHT;
  const uint32_t other = node->n_in > 1 ? node->in[1] : OPIPE_NONE;
  return other != OPIPE_NONE && (r->kinds[other] & KIND_TABLE) != 0 ? OPI_ROLE_LEFT : 0;
}

uint32_t opi_roles_of(opi_roles *r, uint32_t v) {
  const opi_graph *graph = r->s->training->graph;
  const opi_value *start = &graph->values[v];
  const uint32_t layers = OPI_ROLE_NORM | OPI_ROLE_SHIFT | OPI_ROLE_SCALE;
  uint32_t n = 0, roles = 0;
  r->n_layers = 0;
  r->todo[n++] = v;
  r->seen[v] = v + 1;
  while (n > 0) {
    const uint32_t at = r->todo[--n];
    for (uint32_t u = r->uses.first[at]; u < r->uses.first[at + 1]; ++u) {
      const opi_node *node = &graph->nodes[r->uses.users[u]];
      const opi_op *op = opi_op_of(node);
      bool goes_on = false;
      for (uint32_t i = 0; i < node->n_in; ++i) {
        const uint32_t out = opi_node_out(node, 0);
        if (node->in[i] != at || opi_grad_stops(op, i) || out == OPIPE_NONE)
          continue;
        const bool constant = (r->s->flags[out] & OPI_V_CONSTANT) != 0;
        const uint32_t role = constant ? among_constants(r, node, i) : joined(r, node, i);
        if ((r->s->flags[out] & OPI_V_REACHES) == 0)
          continue;
        roles |= role;
        r->n_layers += at == v && (role & layers) != 0;
        goes_on = goes_on || (constant && role == 0);
        if (constant && op->meets == OPI_MEETS_ROWS)
          roles |= OPI_ROLE_ROWS | OPI_ROLE_PLACES;
        if (op->takes == OPI_TAKES_CAST && opi_dtype_bits(start->dtype) == 16 &&
            graph->values[at].dtype == start->dtype && graph->values[out].dtype != start->dtype)
          roles |= OPI_ROLE_HALF;
      }
      for (uint32_t o = 0; goes_on && o < node->n_out; ++o) {
        if (node->out[o] == OPIPE_NONE || r->seen[node->out[o]] == v + 1)
          continue;
        r->seen[node->out[o]] = v + 1;
        r->todo[n++] = node->out[o];
      }
    }
  }
  return roles;
}

/* The input of the loss or, if the graph computes the loss itself, the input of its operator. */
static uint32_t find_judged(const opi_grad_state *s) {
  const opi_graph *graph = s->training->graph;
  if (s->training->output != OPIPE_NONE)
    return s->training->output;
  for (uint32_t n = graph->n_nodes; n-- > 0;) {
    const uint32_t kind = opi_op_of(&graph->nodes[n])->kind;
    if ((kind == OPI_KIND_LOSS || kind == OPI_KIND_LOG_SOFTMAX) &&
        (s->flags[graph->nodes[n].in[0]] & OPI_V_REACHES) != 0)
      return graph->nodes[n].in[0];
  }
  return OPIPE_NONE;
}

/* Determines how the file names its parameters, and their types. */
static void look_at_names(opi_roles *r) {
  const opi_graph *graph = r->s->training->graph;
  double half = 0, all = 0;
  uint32_t dots = 0;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opi_value *value = &graph->values[v];
    if (!is_table(value))
      continue;
    all += opi_k_elems(value);
    half += opi_dtype_bits(value->dtype) == 16 ? opi_k_elems(value) : 0;
    dots += strchr(value->name, '.') != NULL && !opi_name_is_made(value->name);
  }
  r->dotted = dots >= 2;
  r->half = half * 2 > all;
}

const opi_origin *opi_roles_origin(const opi_roles *r, const char *name) {
  uint32_t i = 0;
  return opi_map_get(r->origins, name, &i) ? &r->s->bound->origins[i] : NULL;
}

static opipe_status list_origins(opi_roles *r, opipe_error *err) {
  const opi_bound *bound = r->s->bound;
  OPI_TRY(opi_map_create(r->s->options->allocator, &r->origins, err));
  for (uint32_t i = 0; i < bound->n_origins; ++i)
    OPI_TRY(opi_map_keep(r->origins, bound->origins[i].initializer, i, err));
  return OPIPE_OK;
}

void opi_roles_close(opi_roles *r) {
  opi_map_free(r->origins);
  r->origins = NULL;
}

opipe_status opi_roles_open(opi_roles *r, opi_grad_state *s, opipe_error *err) {
  const uint32_t n = s->training->graph->n_values;
  *r = (opi_roles){.s = s,
                   .kinds = OPI_ARENA_ARRAY(&s->scratch, uint8_t, n),
                   .seen = OPI_ARENA_ARRAY(&s->scratch, uint32_t, n),
                   .todo = OPI_ARENA_ARRAY(&s->scratch, uint32_t, (size_t)n + 1)};
  if (r->kinds == NULL || r->seen == NULL || r->todo == NULL)
    return opi_fail_nomem(err, n * 9u, "roles of constants");
  OPI_TRY(opi_graph_uses(s->training->graph, &s->scratch, &r->uses, err));
  r->judged = find_judged(s);
  mark_kinds(r);
  mark_scores(r);
  look_at_names(r);
  return list_origins(r, err);
}
