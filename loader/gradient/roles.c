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

static bool is_one_of(const char *op, const char *const *list, size_t n) {
  for (size_t k = 0; k < n; ++k) {
    if (strcmp(op, list[k]) == 0)
      return true;
  }
  return false;
}

#define IS_ONE_OF(op, list) is_one_of((op), (list), OPI_COUNT(list))

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
      if (node->out[o] != OPIPE_NONE)
        r->kinds[node->out[o]] |=
            (uint8_t)((table ? KIND_TABLE : 0) | (counts && !other && !table ? KIND_COUNT : 0));
    }
  }
}

/* Backwards from Softmax and from masks of Attention. */
static void mark_scores(opi_roles *r) {
  static const char *const through[] = {"Add",       "Sub",     "Mul",     "Div",     "Where",
                                        "Reshape",   "Cast",    "Expand",  "Tanh",    "Transpose",
                                        "Unsqueeze", "Squeeze", "Max",     "Min",     "Clip",
                                        "Slice",     "Concat",  "Flatten", "Identity"};
  const opi_graph *graph = r->s->training->graph;
  for (uint32_t n = graph->n_nodes; n-- > 0;) {
    const opi_node *node = &graph->nodes[n];
    const uint32_t out = opi_node_out(node, 0);
    if (strcmp(node->op, "Softmax") == 0)
      r->kinds[node->in[0]] |= KIND_FEEDS_SCORES;
    if (strcmp(node->op, "Attention") == 0 && opi_node_in(node, 3) != OPIPE_NONE)
      r->kinds[node->in[3]] |= KIND_FEEDS_SCORES;
    if (out == OPIPE_NONE || (r->kinds[out] & KIND_FEEDS_SCORES) == 0 ||
        !IS_ONE_OF(node->op, through))
      continue;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (node->in[i] != OPIPE_NONE)
        r->kinds[node->in[i]] |= KIND_FEEDS_SCORES;
    }
  }
}

/* What the loss judges, and the same before its form was changed. */
static bool is_judged(const opi_roles *r, uint32_t v) {
  static const char *const forms[] = {"Reshape", "Cast",      "Identity", "Slice",
                                      "Squeeze", "Unsqueeze", "Transpose"};
  const opi_graph *graph = r->s->training->graph;
  uint32_t at = r->judged;
  while (at != OPIPE_NONE && at != v) {
    const uint32_t p = graph->values[at].producer;
    at = p != OPIPE_NONE && IS_ONE_OF(graph->nodes[p].op, forms) ? graph->nodes[p].in[0]
                                                                 : OPIPE_NONE;
  }
  return at == v;
}

/* A graph input, in another form, or scaled and shifted by constants. */
static bool is_raw_input(const opi_roles *r, uint32_t v) {
  static const char *const forms[] = {"Reshape", "Cast", "Identity", "Transpose", "Unsqueeze"};
  static const char *const sums[] = {"Add", "Sub", "Mul", "Div"};
  const opi_graph *graph = r->s->training->graph;
  while (graph->values[v].producer != OPIPE_NONE) {
    const opi_node *node = &graph->nodes[graph->values[v].producer];
    const bool sum = IS_ONE_OF(node->op, sums);
    if (!sum && !IS_ONE_OF(node->op, forms))
      return false;
    v = node->in[0];
    if (sum && (r->s->flags[v] & OPI_V_CONSTANT) != 0)
      v = node->in[1];
    else if (sum && (r->s->flags[node->in[1]] & OPI_V_CONSTANT) == 0)
      return false;
  }
  return (graph->values[v].flags & OPI_VALUE_INPUT) != 0;
}

static bool is_product(const char *op) {
  static const char *const list[] = {"MatMul", "Gemm",        "Conv",         "ConvTranspose",
                                     "Einsum", "FusedMatMul", "MatMulInteger"};
  return IS_ONE_OF(op, list);
}

static bool is_norm(const char *op) {
  return strstr(op, "Normalization") != NULL || strcmp(op, "PRelu") == 0 ||
         strstr(op, "Bias") != NULL || strcmp(op, "FastGelu") == 0;
}

static bool takes_rows(const char *op) {
  return strncmp(op, "Gather", 6) == 0;
}

/* The role of v as input i of a node that joins it with activations. */
static uint32_t joined(const opi_roles *r, const opi_node *node, uint32_t i) {
  const uint32_t out = opi_node_out(node, 0);
  const uint32_t other = node->n_in == 2 ? node->in[1 - i] : OPIPE_NONE;
  const bool counts = other != OPIPE_NONE && (r->kinds[other] & KIND_COUNT) != 0;
  uint32_t roles = 0;
  if (is_product(node->op)) {
    const opi_value *v = &r->s->training->graph->values[node->in[i]];
    const bool outer =
        counts && v->rank >= 1 && v->shape[v->rank - (i == 0 || v->rank == 1 ? 1 : 2)] == 1;
    return i == 2 ? OPI_ROLE_NORM : outer ? OPI_ROLE_COUNT : OPI_ROLE_WEIGHT;
  }
  if (strcmp(node->op, "GroupNormalization") == 0 && i > 0)
    return OPI_ROLE_NORM | OPI_ROLE_GROUP;
  if (is_norm(node->op))
    return i > 0 ? OPI_ROLE_NORM : OPI_ROLE_OTHER;
  if (takes_rows(node->op))
    return OPI_ROLE_ROWS | (is_raw_input(r, node->in[1]) ? 0u : (uint32_t)OPI_ROLE_PLACES);
  if (strcmp(node->op, "Attention") == 0)
    return i == 3 ? OPI_ROLE_SCORE | OPI_ROLE_SHIFT : OPI_ROLE_OTHER;
  if (strcmp(node->op, "Add") == 0 || strcmp(node->op, "Sub") == 0)
    roles = OPI_ROLE_SHIFT;
  else if (strcmp(node->op, "Mul") == 0 || strcmp(node->op, "Div") == 0)
    return counts ? OPI_ROLE_COUNT
                  : OPI_ROLE_SCALE |
                        (other != OPIPE_NONE && is_raw_input(r, other) ? (uint32_t)OPI_ROLE_INPUT
                                                                       : 0u);
  else
    return OPI_ROLE_OTHER;
  if (out != OPIPE_NONE && (r->kinds[out] & KIND_FEEDS_SCORES) != 0)
    roles |= OPI_ROLE_SCORE;
  if (other != OPIPE_NONE && is_raw_input(r, other))
    roles |= OPI_ROLE_INPUT;
  if (out != OPIPE_NONE && is_judged(r, out))
    roles |= OPI_ROLE_JUDGED;
  return roles;
}

/* The role of v as input i of a node all of whose inputs are constants; 0: the node's result goes
 * on for it. */
static uint32_t among_constants(const opi_roles *r, const opi_node *node, uint32_t i) {
  if (is_product(node->op)) {
    const uint32_t other = i < 2 && node->n_in > 1 ? node->in[1 - i] : OPIPE_NONE;
    if (i == 2)
      return OPI_ROLE_NORM;
    if (i == 1)
      return OPI_ROLE_WEIGHT;
    return other != OPIPE_NONE && (r->kinds[other] & KIND_TABLE) != 0 ? OPI_ROLE_LEFT : 0;
  }
  if (is_norm(node->op) && i > 0)
    return OPI_ROLE_NORM;
  return 0;
}

uint32_t opi_roles_of(opi_roles *r, uint32_t v) {
  const opi_graph *graph = r->s->training->graph;
  const opi_value *start = &graph->values[v];
  uint32_t n = 0, roles = 0;
  r->todo[n++] = v;
  r->seen[v] = v + 1;
  while (n > 0) {
    const uint32_t at = r->todo[--n];
    for (uint32_t u = r->uses.first[at]; u < r->uses.first[at + 1]; ++u) {
      const opi_node *node = &graph->nodes[r->uses.users[u]];
      const opi_op *op = opi_op_find(node->domain, node->op);
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
        goes_on = goes_on || (constant && role == 0);
        if (constant && takes_rows(node->op))
          roles |= OPI_ROLE_ROWS | OPI_ROLE_PLACES;
        if (strcmp(node->op, "Cast") == 0 && opi_dtype_bits(start->dtype) == 16 &&
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

/* What the loss judges; where the graph makes the loss itself, what its operator reads. */
static uint32_t find_judged(const opi_grad_state *s) {
  static const char *const losses[] = {"SoftmaxCrossEntropyLoss", "LogSoftmax"};
  const opi_graph *graph = s->training->graph;
  if (s->training->output != OPIPE_NONE)
    return s->training->output;
  for (uint32_t n = graph->n_nodes; n-- > 0;) {
    if (IS_ONE_OF(graph->nodes[n].op, losses) &&
        (s->flags[graph->nodes[n].in[0]] & OPI_V_REACHES) != 0)
      return graph->nodes[n].in[0];
  }
  return OPIPE_NONE;
}

/* What the file's own names and types are like. */
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
  return OPIPE_OK;
}
