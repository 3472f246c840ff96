/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses what is made again, and clones it: see recompute.h. */
#include "loader/gradient/recompute.h"

#include <string.h>

opipe_status opi_recompute_choose(opi_grad_state *s, opi_recompute *out, opipe_error *err) {
  memset(out, 0, sizeof(*out));
  out->chosen = OPI_ARENA_ARRAY(&s->scratch, bool, s->n_forward_nodes);
  out->clone = OPI_ARENA_ARRAY(&s->scratch, uint32_t, s->n_forward_values);
  if (out->chosen == NULL || out->clone == NULL)
    return opi_fail_nomem(err, s->n_forward_values * 4u + s->n_forward_nodes, "recomputation");
  memset(out->clone, 0xff, s->n_forward_values * sizeof(uint32_t));
  return OPIPE_OK;
}

static opipe_status write_clone(opi_grad_state *s, opi_recompute *again, uint32_t n,
                                opipe_error *err) {
  opi_training *t = s->training;
  opi_graph *graph = t->graph;
  opi_arena *arena = graph->arena;
  const uint32_t at = again->n_nodes;
  opi_node *to = &again->nodes[at];
  *to = again->nodes[n]; /* forward nodes keep their places */
  to->name = opi_arena_printf(arena, "%s/again", to->name);
  to->in = opi_arena_copy(arena, to->in, to->n_in * sizeof(uint32_t));
  to->out = opi_arena_copy(arena, to->out, to->n_out * sizeof(uint32_t));
  if (to->name == NULL || to->in == NULL || to->out == NULL)
    return opi_fail_nomem(err, sizeof(*to), "a node made again");
  to->pass = OPIPE_PASS_BACKWARD_INPUT;
  for (uint32_t i = 0; i < to->n_in; ++i) {
    if (to->in[i] != OPIPE_NONE && again->clone[to->in[i]] != OPIPE_NONE)
      to->in[i] = again->clone[to->in[i]];
  }
  for (uint32_t o = 0; o < to->n_out; ++o) {
    const uint32_t v = to->out[o];
    if (v == OPIPE_NONE)
      continue;
    const opi_value from = graph->values[v];
    const char *name = opi_arena_printf(arena, "%s/again", from.name);
    const uint32_t made = name == NULL
                              ? OPIPE_NONE
                              : opi_graph_add_value(graph, name, from.dtype, from.shape, from.rank);
    if (made == OPIPE_NONE)
      return opi_fail_nomem(err, sizeof(from), "a value made again");
    graph->values[made].n_bytes = from.n_bytes;
    graph->values[made].producer = at;
    again->clone[v] = made;
    to->out[o] = made;
  }
  t->anchor[at] = n;
  t->stage[at] = s->stage[n];
  ++again->n_nodes;
  return OPIPE_OK;
}

/* Is v made in `stage` by a node that is to be made again? */
static bool is_lost(const opi_grad_state *s, const opi_recompute *again, uint32_t v,
                    uint32_t stage) {
  if (v == OPIPE_NONE || v >= s->n_forward_values || again->clone[v] != OPIPE_NONE)
    return false;
  const uint32_t p = s->training->graph->values[v].producer;
  return p != OPIPE_NONE && p < s->n_forward_nodes && again->chosen[p] && s->stage[p] == stage;
}

opipe_status opi_recompute_before(opi_grad_state *s, opi_recompute *again, const opi_node *node,
                                  uint32_t stage, opipe_error *err) {
  const opi_graph *graph = s->training->graph;
  if (again->n_chosen == 0)
    return OPIPE_OK;
  uint32_t *stack = OPI_ARENA_ARRAY(&s->scratch, uint32_t, s->n_forward_nodes + 1), n_stack = 0;
  if (stack == NULL)
    return opi_fail_nomem(err, s->n_forward_nodes * 4u, "recomputation");
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (!is_lost(s, again, node->in[i], stage))
      continue;
    stack[n_stack++] = graph->values[node->in[i]].producer;
    while (n_stack != 0) { /* depth first: a chain never holds a node twice */
      const uint32_t n = stack[n_stack - 1];
      uint32_t deeper = OPIPE_NONE;
      for (uint32_t k = 0; k < again->nodes[n].n_in && deeper == OPIPE_NONE; ++k) {
        if (is_lost(s, again, again->nodes[n].in[k], stage))
          deeper = graph->values[again->nodes[n].in[k]].producer;
      }
      if (deeper != OPIPE_NONE) {
        stack[n_stack++] = deeper;
        continue;
      }
      OPI_TRY(write_clone(s, again, n, err));
      --n_stack;
    }
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    if (v != OPIPE_NONE && v < s->n_forward_values && again->clone[v] != OPIPE_NONE)
      node->in[i] = again->clone[v];
  }
  return OPIPE_OK;
}
