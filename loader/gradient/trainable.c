/* SPDX-License-Identifier: Apache-2.0 */
/* Which initializers are trained, and why.
 *
 * By default: floats on a differentiable path to the loss that are no literal (one element, unless
 * it is the scale or the bias of a norm, a product or a convolution) and no buffer (tables that
 * reach the loss only through Sin, Cos or as those of a RotaryEmbedding, running statistics). Globs
 * come after, the last match wins; one-element initializers and running statistics are taken by
 * their full name only.
 */
#include <string.h>

#include "loader/gradient/state.h"

bool opi_grad_stops(const opi_op *op, uint32_t i) {
  return (op->stops_gradient >> (i < 63 ? i : 63) & 1u) != 0;
}

static bool is_float(const opi_graph *graph, uint32_t v) {
  return v != OPIPE_NONE && opi_dtype_is_float(graph->values[v].dtype);
}

/* From the loss backwards: what reaches it over differentiable edges. */
static void mark_reach(opi_grad_state *s) {
  const opi_graph *graph = s->training->graph;
  s->flags[s->training->loss] |= OPI_V_REACHES | OPI_V_DIRECT;
  for (uint32_t n = graph->n_nodes; n-- > 0;) {
    const opi_node *node = &graph->nodes[n];
    const opi_op *op = opi_op_find(node->domain, node->op);
    const bool wave = strcmp(node->op, "Sin") == 0 || strcmp(node->op, "Cos") == 0;
    uint8_t reach = 0;
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (is_float(graph, node->out[o]))
        reach |= s->flags[node->out[o]] & (OPI_V_REACHES | OPI_V_DIRECT);
    }
    if (wave)
      reach &= (uint8_t)~OPI_V_DIRECT;
    const bool turns = strcmp(node->op, "RotaryEmbedding") == 0; /* by tables of Cos and Sin */
    for (uint32_t i = 0; i < node->n_in && reach != 0; ++i) {
      if (is_float(graph, node->in[i]) && !opi_grad_stops(op, i))
        s->flags[node->in[i]] |= turns && i > 0 ? reach & (uint8_t)~OPI_V_DIRECT : reach;
    }
  }
}

/* One element, but the scale or bias of a layer that happens to be one wide. */
static bool is_layer_part(const opi_graph *graph, uint32_t v) {
  static const char *const layers[] = {"LayerNormalization",
                                       "RMSNormalization",
                                       "GroupNormalization",
                                       "BatchNormalization",
                                       "Gemm",
                                       "Conv"};
  if (graph->values[v].rank != 1)
    return false;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (node->in[i] != v)
        continue;
      for (size_t k = 0; k < OPI_COUNT(layers); ++k) {
        if (i > 0 && strcmp(node->op, layers[k]) == 0)
          return true;
      }
      const uint32_t other = node->n_in == 2 ? node->in[1 - i] : OPIPE_NONE;
      const uint32_t p = other == OPIPE_NONE ? OPIPE_NONE : graph->values[other].producer;
      if (strcmp(node->op, "Add") == 0 && p != OPIPE_NONE &&
          strcmp(graph->nodes[p].op, "MatMul") == 0 &&
          graph->values[other].shape[graph->values[other].rank - 1] == 1)
        return true;
    }
  }
  return false;
}

static bool is_statistic(const opi_graph *graph, uint32_t v) {
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    if (strcmp(node->op, "BatchNormalization") != 0)
      continue;
    if (opi_node_in(node, 3) == v || opi_node_in(node, 4) == v)
      return true;
  }
  return false;
}

static uint32_t base_rule(const opi_grad_state *s, const opi_value *value, uint32_t v) {
  const opi_graph *graph = s->training->graph;
  uint64_t n = 0;
  if (!opi_dtype_is_float(value->dtype))
    return OPI_NOT_FLOAT;
  if (v != OPIPE_NONE && is_statistic(graph, v))
    return OPI_NOT_BUFFER;
  if (v == OPIPE_NONE || (s->flags[v] & OPI_V_REACHES) == 0)
    return OPI_NOT_REACHED;
  if ((s->flags[v] & OPI_V_DIRECT) == 0)
    return OPI_NOT_BUFFER;
  if (!opi_shape_elems(value->shape, (uint32_t)value->rank, &n) || n == 0)
    return OPI_NOT_LITERAL;
  return n > 1 || is_layer_part(graph, v) ? OPI_TRAINED : OPI_NOT_LITERAL;
}

static bool is_plain(const char *pattern) {
  return strpbrk(pattern, "*?") == NULL;
}

/* Globs over the base rule. shy: taken by its full name only. used [n_globs]. */
static uint32_t by_globs(const opi_grad_state *s, const char *name, uint32_t why, bool shy,
                         bool *used) {
  const opi_train_glob *hit = NULL;
  for (uint32_t g = 0; g < s->options->n_globs; ++g) {
    const opi_train_glob *glob = &s->options->globs[g];
    if (!opi_glob(glob->pattern, name))
      continue;
    used[g] = true;
    if (glob->trainable && shy && !is_plain(glob->pattern))
      continue;
    hit = glob;
  }
  if (hit == NULL || why == OPI_NOT_FLOAT || why == OPI_NOT_REACHED)
    return why;
  if (!hit->trainable)
    return why == OPI_TRAINED ? OPI_FROZEN_BY_GLOB : why;
  return why == OPI_TRAINED ? OPI_TRAINED : OPI_TRAINED_BY_GLOB;
}

static opipe_status check_used(const opi_grad_state *s, const bool *used, opipe_error *err) {
  for (uint32_t g = 0; g < s->options->n_globs; ++g) {
    if (!used[g]) {
      return opi_fail(err, OPIPE_E_INVALID, "--%s '%s' matches no initializer of the bound graph",
                      s->options->globs[g].trainable ? "trainable" : "frozen",
                      s->options->globs[g].pattern);
    }
  }
  return OPIPE_OK;
}

/* What trained parameters lead to. */
static void mark_wanted(opi_grad_state *s) {
  const opi_graph *graph = s->training->graph;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    const opi_op *op = opi_op_find(node->domain, node->op);
    bool wanted = false;
    for (uint32_t i = 0; i < node->n_in && !wanted; ++i) {
      wanted = is_float(graph, node->in[i]) && !opi_grad_stops(op, i) &&
               (s->flags[node->in[i]] & OPI_V_WANTED) != 0;
    }
    for (uint32_t o = 0; o < node->n_out && wanted; ++o) {
      if (is_float(graph, node->out[o]))
        s->flags[node->out[o]] |= OPI_V_WANTED;
    }
  }
}

/* OPI_V_CONSTANT in the training graph. */
static void mark_constants(opi_grad_state *s) {
  const opi_graph *graph = s->training->graph;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opi_value *value = &graph->values[v];
    if (value->producer == OPIPE_NONE && (value->flags & (OPI_VALUE_INPUT | OPI_VALUE_SCALAR)) == 0)
      s->flags[v] |= OPI_V_CONSTANT;
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    bool constant = true;
    for (uint32_t i = 0; i < node->n_in && constant; ++i)
      constant = node->in[i] == OPIPE_NONE || (s->flags[node->in[i]] & OPI_V_CONSTANT) != 0;
    for (uint32_t o = 0; o < node->n_out && constant; ++o) {
      if (node->out[o] != OPIPE_NONE)
        s->flags[node->out[o]] |= OPI_V_CONSTANT;
    }
  }
}

static opipe_status list_params(opi_grad_state *s, opipe_error *err) {
  const opi_graph *bound = s->bound->graph;
  opi_training *t = s->training;
  bool *used = OPI_ARENA_ARRAY(&s->scratch, bool, s->options->n_globs);
  uint32_t n = 0;
  for (uint32_t v = 0; v < bound->n_values; ++v)
    n += (bound->values[v].flags & OPI_VALUE_INITIALIZER) != 0;
  t->params = OPI_ARENA_ARRAY(&t->arena, opi_train_param, n);
  if (t->params == NULL || used == NULL)
    return opi_fail_nomem(err, n * sizeof(*t->params), "the parameters");
  for (uint32_t v = 0; v < bound->n_values; ++v) {
    const opi_value *value = &bound->values[v];
    if ((value->flags & OPI_VALUE_INITIALIZER) == 0)
      continue;
    opi_train_param *p = &t->params[t->n_params++];
    p->name = value->name;
    p->value = s->map[v];
    const uint32_t why = base_rule(s, value, p->value);
    const bool statistic = why == OPI_NOT_BUFFER && is_statistic(s->training->graph, p->value);
    p->why = by_globs(s, p->name, why, statistic || why == OPI_NOT_LITERAL, used);
    if (p->why != OPI_TRAINED && p->why != OPI_TRAINED_BY_GLOB)
      continue;
    ++t->n_trained;
    s->flags[p->value] |= OPI_V_TRAINED | OPI_V_WANTED;
  }
  return check_used(s, used, err);
}

opipe_status opi_grad_trainable(opi_grad_state *s, opipe_error *err) {
  OPI_TRY(opi_grad_flags(s, err));
  mark_constants(s);
  opi_grad_mark_states(s);
  mark_reach(s);
  OPI_TRY(list_params(s, err));
  if (s->training->n_trained == 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "nothing can be trained: none of %u initializers is a float tensor on a "
                    "differentiable path to the loss",
                    s->training->n_params);
  }
  mark_wanted(s);
  return OPIPE_OK;
}
