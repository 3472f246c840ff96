/* SPDX-License-Identifier: Apache-2.0 */
/* The forward part of a training graph: the nodes of the bound graph that the loss needs.
 *
 * Values made from constants and parameters only (a transposed weight, a table turned into a bias,
 * a Cast) are not activations: every stage that reads one gets its own copy, so that it never
 * travels and its gradient ends in an Accumulate of that stage. Edges of all other values lead from
 * a stage to the same or a later one.
 */
#include <inttypes.h>
#include <string.h>

#include "loader/gradient/state.h"
#include "loader/ops/attention.h"

static uint32_t stage_of(const opi_grad_state *s, uint32_t n) {
  return s->options->stage_of_node != NULL ? s->options->stage_of_node[n] : 0;
}

/* Marks bound values that are made of constants and parameters only. */
static void mark_constants(opi_grad_state *s) {
  const opi_graph *graph = s->bound->graph;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opi_value *value = &graph->values[v];
    if (value->producer == OPIPE_NONE && (value->flags & OPI_VALUE_INPUT) == 0)
      s->bound_flags[v] |= OPI_V_CONSTANT;
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    bool constant = opi_op_of(node)->kind != OPI_KIND_RANDOM;
    for (uint32_t i = 0; i < node->n_in && constant; ++i)
      constant = node->in[i] == OPIPE_NONE || (s->bound_flags[node->in[i]] & OPI_V_CONSTANT) != 0;
    for (uint32_t o = 0; o < node->n_out && constant; ++o) {
      if (node->out[o] != OPIPE_NONE)
        s->bound_flags[node->out[o]] |= OPI_V_CONSTANT;
    }
  }
}

static bool is_copied(const opi_grad_state *s, uint32_t v) {
  return (s->bound_flags[v] & OPI_V_CONSTANT) != 0 &&
         s->bound->graph->values[v].producer != OPIPE_NONE;
}

/* Which nodes the target and the labels need, and where: needed[n * n_stages + stage]. */
static void mark_needed(const opi_grad_state *s, uint32_t labels, bool *needed) {
  const opi_graph *graph = s->bound->graph;
  const uint32_t roots[2] = {s->target, labels};
  for (uint32_t r = 0; r < 2; ++r) {
    const uint32_t n = roots[r] != OPIPE_NONE ? graph->values[roots[r]].producer : OPIPE_NONE;
    if (n != OPIPE_NONE)
      needed[(size_t)n * s->n_stages + s->target_stage] = true;
  }
  for (uint32_t n = graph->n_nodes; n-- > 0;) {
    const opi_node *node = &graph->nodes[n];
    for (uint32_t t = 0; t < s->n_stages; ++t) {
      if (!needed[(size_t)n * s->n_stages + t])
        continue;
      for (uint32_t i = 0; i < node->n_in; ++i) {
        const uint32_t v = node->in[i];
        if (v == OPIPE_NONE || graph->values[v].producer == OPIPE_NONE)
          continue;
        const uint32_t p = graph->values[v].producer;
        needed[(size_t)p * s->n_stages + (is_copied(s, v) ? t : stage_of(s, p))] = true;
      }
    }
  }
}

/* The value of the training graph that stands for bound value v in `stage`. */
static uint32_t mapped(const opi_grad_state *s, uint32_t v, uint32_t stage) {
  return is_copied(s, v) ? s->copies[(size_t)v * s->n_stages + stage] : s->map[v];
}

static opipe_status copy_value(opi_grad_state *s, uint32_t v, opipe_error *err) {
  const opi_value from = s->bound->graph->values[v];
  const uint32_t made =
      opi_b_borrow(&s->builder, from.name, from.dtype, from.shape, (uint32_t)from.rank, from.data);
  if (made == OPIPE_NONE)
    return opi_fail_nomem(err, sizeof(opi_value), "a value");
  opi_value *to = opi_b_value(&s->builder, made);
  to->flags = (from.flags & ~(uint32_t)(OPI_VALUE_INPUT | OPI_VALUE_OUTPUT)) |
              (from.data != NULL ? OPI_VALUE_BORROWED : 0u);
  to->source = from.source;
  s->map[v] = made;
  if (from.flags & OPI_VALUE_INPUT && !opi_graph_add_input(s->training->graph, made))
    return opi_fail_nomem(err, 4, "an input");
  return OPIPE_OK;
}

/* Inputs all and in order, then what the needed nodes read. */
static opipe_status copy_values(opi_grad_state *s, const bool *needed, opipe_error *err) {
  const opi_graph *graph = s->bound->graph;
  for (uint32_t i = 0; i < graph->n_inputs; ++i)
    OPI_TRY(copy_value(s, graph->inputs[i], err));
  bool *used = OPI_ARENA_ARRAY(&s->scratch, bool, graph->n_values);
  if (used == NULL)
    return opi_fail_nomem(err, graph->n_values, "marking values");
  used[s->target] = true;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    bool any = false;
    for (uint32_t t = 0; t < s->n_stages; ++t)
      any = any || needed[(size_t)n * s->n_stages + t];
    for (uint32_t i = 0; any && i < node->n_in; ++i) {
      if (node->in[i] != OPIPE_NONE)
        used[node->in[i]] = true;
    }
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if (used[v] && s->map[v] == OPIPE_NONE && graph->values[v].producer == OPIPE_NONE)
      OPI_TRY(copy_value(s, v, err));
  }
  return OPIPE_OK;
}

/* Does the Attention hand on what it found (OPIPE_DEVICE_HANDS_ON)? With a past it does not. */
static bool hands_on(const opi_grad_state *s, const opi_node *node, const uint32_t *in) {
  if (!s->options->hands_on || opi_op_of(node)->kind != OPI_KIND_ATTENTION ||
      opi_attr_float(node, "softcap", 0.0) != 0)
    return false;
  const uint32_t dtype = s->training->graph->values[in[OPI_ATT_Q]].dtype;
  for (uint32_t i = OPI_ATT_MASK + 1; i < node->n_in; ++i) {
    if (in[i] != OPIPE_NONE)
      return false;
  }
  return dtype == OPIPE_BFLOAT16 || dtype == OPIPE_FLOAT16;
}

static opipe_status copy_attention(opi_grad_state *s, const opi_node *node, const uint32_t *in,
                                   const char *const *out_names, uint32_t *out, opipe_error *err) {
  opi_node wide = *node;
  const char *names[OPI_ATT_FOUND + 1];
  uint32_t made[OPI_ATT_FOUND + 1];
  for (uint32_t o = 0; o < OPI_ATT_FOUND; ++o)
    names[o] = o < node->n_out ? out_names[o] : "";
  names[OPI_ATT_FOUND] = NULL; /* made up */
  wide.n_out = OPI_ATT_FOUND + 1;
  OPI_TRY(opi_b_emit_again(&s->builder, &wide, in, names, made, err));
  memcpy(out, made, node->n_out * sizeof(*out));
  return OPIPE_OK;
}

opipe_status opi_grad_copy_node(opi_grad_state *s, const opi_node *node, const uint32_t *in,
                                const char *const *out_names, uint32_t *out, opipe_error *err) {
  if (opi_op_of(node)->kind == OPI_KIND_RANDOM)
    return opi_grad_dropout(s, node, in[0], out_names, out, err);
  if (hands_on(s, node, in))
    return copy_attention(s, node, in, out_names, out, err);
  return opi_b_emit_again(&s->builder, node, in, out_names, out, err);
}

static opipe_status check_edge(const opi_grad_state *s, const opi_node *node, uint32_t v,
                               uint32_t stage, opipe_error *err) {
  const uint32_t p = s->bound->graph->values[v].producer;
  if (p == OPIPE_NONE || is_copied(s, v) || stage_of(s, p) <= stage)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "node '%s' of stage %" PRIu32 " reads '%s', which stage %" PRIu32 " makes",
                  node->name, stage, s->bound->graph->values[v].name, stage_of(s, p));
}

/* One copy of node n, in `stage`; `first`: it keeps its names. */
static opipe_status copy_into(opi_grad_state *s, uint32_t n, uint32_t stage, bool first,
                              opipe_error *err) {
  const opi_graph *graph = s->bound->graph;
  const opi_node *node = &graph->nodes[n];
  uint32_t *in = OPI_ARENA_ARRAY(&s->scratch, uint32_t, node->n_in);
  uint32_t *out = OPI_ARENA_ARRAY(&s->scratch, uint32_t, node->n_out);
  const char **names = OPI_ARENA_ARRAY(&s->scratch, const char *, node->n_out);
  opi_node *origin = OPI_ARENA_NEW(&s->scratch, opi_node);
  if (in == NULL || out == NULL || names == NULL || origin == NULL)
    return opi_fail_nomem(err, node->n_in * 4 + node->n_out * 12, "a forward node");
  *origin = *node;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = OPIPE_NONE;
    if (node->in[i] == OPIPE_NONE)
      continue;
    OPI_TRY(check_edge(s, node, node->in[i], stage, err));
    in[i] = mapped(s, node->in[i], stage);
  }
  opi_arena *arena = s->training->graph->arena;
  if (!first)
    origin->name = opi_arena_printf(arena, "%s/stage%" PRIu32, node->name, stage);
  for (uint32_t o = 0; o < node->n_out; ++o) {
    names[o] = "";
    if (node->out[o] == OPIPE_NONE)
      continue;
    names[o] = graph->values[node->out[o]].name;
    if (!first)
      names[o] = opi_arena_printf(arena, "%s/stage%" PRIu32, names[o], stage);
    if (names[o] == NULL)
      return opi_fail_nomem(err, 32, "a value's name");
  }
  s->builder.origin = origin;
  s->builder.origin_index = node->source;
  s->builder.origin_stage = node->stage;
  s->builder.n_emitted = 1; /* the node itself takes the name as it is */
  OPI_TRY(opi_grad_cast_inputs(s, node, stage, in, err));
  OPI_TRY(opi_grad_share_inputs(s, n, in, err));
  s->builder.n_emitted = 0;
  OPI_TRY(opi_grad_copy_node(s, node, in, names, out, err));
  const uint32_t index = s->training->graph->n_nodes - 1;
  OPI_TRY(opi_grad_cast_output(s, node, stage, &out[0], err));
  OPI_TRY(opi_grad_share_output(s, n, &out[0], err));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    if (v == OPIPE_NONE)
      continue;
    opi_b_value(&s->builder, out[o])->source = graph->values[v].source;
    if (is_copied(s, v))
      s->copies[(size_t)v * s->n_stages + stage] = out[o];
    else
      s->map[v] = out[o];
    if (v == s->target)
      s->map[v] = out[o];
  }
  if (first)
    s->training->forward_of[n] = index;
  return opi_grad_anchor(s, OPIPE_NONE, stage, err);
}

static opipe_status copy_nodes(opi_grad_state *s, const bool *needed, opipe_error *err) {
  const opi_graph *graph = s->bound->graph;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    bool first = true;
    for (uint32_t t = 0; t < s->n_stages; ++t) {
      if (!needed[(size_t)n * s->n_stages + t])
        continue;
      OPI_TRY(copy_into(s, n, t, first, err));
      first = false;
    }
  }
  return OPIPE_OK;
}

opipe_status opi_grad_forward(opi_grad_state *s, opipe_error *err) {
  const opi_graph *graph = s->bound->graph;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    if (stage_of(s, n) >= s->n_stages)
      s->n_stages = stage_of(s, n) + 1;
  }
  const size_t n_values = graph->n_values, n_nodes = graph->n_nodes;
  s->map = OPI_ARENA_ARRAY(&s->scratch, uint32_t, n_values);
  s->copies = opi_arena_array(&s->scratch, n_values * s->n_stages, sizeof(uint32_t));
  s->bound_flags = OPI_ARENA_ARRAY(&s->scratch, uint8_t, n_values);
  bool *needed = opi_arena_array(&s->scratch, n_nodes * s->n_stages, sizeof(bool));
  s->training->forward_of = OPI_ARENA_ARRAY(&s->training->arena, uint32_t, n_nodes);
  if (s->map == NULL || s->copies == NULL || s->bound_flags == NULL || needed == NULL ||
      s->training->forward_of == NULL)
    return opi_fail_nomem(err, n_values * s->n_stages * 4, "the forward graph");
  memset(s->map, 0xff, n_values * sizeof(uint32_t));
  memset(s->copies, 0xff, n_values * s->n_stages * sizeof(uint32_t));
  memset(s->training->forward_of, 0xff, n_nodes * sizeof(uint32_t));
  mark_constants(s);
  const uint32_t producer = graph->values[s->target].producer;
  s->target_stage = producer == OPIPE_NONE ? 0 : stage_of(s, producer);
  mark_needed(s, OPIPE_NONE, needed);
  OPI_TRY(copy_values(s, needed, err));
  OPI_TRY(copy_nodes(s, needed, err));
  return opi_grad_cast_target(s, err);
}
