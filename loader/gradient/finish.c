/* SPDX-License-Identifier: Apache-2.0 */
/* The last steps: which backward nodes anything needs, which of them are I and which W, clones of
 * forward nodes for recomputation, and the final order.
 *
 * I: some path leads to the gradient of a value that is not made of parameters alone. W: leads only
 * to Accumulates.
 */
#include "loader/gradient/recompute.h"

/* From the back: a node is alive when it accumulates or a living node reads it; I when it is, or
 * feeds, the gradient of an activation. */
static void mark(const opi_grad_state *s, bool *alive) {
  opi_graph *graph = s->training->graph;
  bool *read = alive + graph->n_nodes; /* [n_values] */
  for (uint32_t i = 0; i < s->training->n_states; ++i) {
    if (s->training->states[i].past_gradient != OPIPE_NONE)
      read[s->training->states[i].past_gradient] = true;
  }
  for (uint32_t n = graph->n_nodes; n-- > s->n_forward_nodes;) {
    opi_node *node = &graph->nodes[n];
    bool active = false;
    alive[n] = opi_op_of(node)->kind == OPI_KIND_ACCUMULATE;
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (node->out[o] == OPIPE_NONE || !read[node->out[o]])
        continue;
      alive[n] = true;
      active = active || (s->flags[node->out[o]] & OPI_V_ACTIVE) != 0;
    }
    node->pass = active ? OPIPE_PASS_BACKWARD_INPUT : OPIPE_PASS_BACKWARD_WEIGHT;
    for (uint32_t i = 0; i < node->n_in && alive[n]; ++i) {
      if (node->in[i] == OPIPE_NONE)
        continue;
      read[node->in[i]] = true;
      if (active)
        s->flags[node->in[i]] |= OPI_V_ACTIVE;
    }
  }
  for (uint32_t n = 0; n < s->n_forward_nodes; ++n)
    alive[n] = true;
}

/* Writes the living nodes, and the clones before their first readers, into a new array. */
static opipe_status rebuild(opi_grad_state *s, const bool *alive, opipe_error *err) {
  opi_training *t = s->training;
  opi_graph *graph = t->graph;
  const opi_node *old = graph->nodes;
  const uint32_t n_old = graph->n_nodes;
  opi_recompute again;
  OPI_TRY(opi_recompute_choose(s, alive, &again, err));
  const uint32_t room = n_old + again.n_chosen;
  opi_node *nodes = OPI_ARENA_ARRAY(&t->arena, opi_node, room);
  t->anchor = OPI_ARENA_ARRAY(&t->arena, uint32_t, room);
  t->stage = OPI_ARENA_ARRAY(&t->arena, uint32_t, room);
  if (nodes == NULL || t->anchor == NULL || t->stage == NULL)
    return opi_fail_nomem(err, room * (sizeof(opi_node) + 8), "the training graph");
  again.nodes = nodes;
  for (uint32_t n = 0; n < n_old; ++n) {
    if (!alive[n]) {
      for (uint32_t o = 0; o < old[n].n_out; ++o) {
        if (old[n].out[o] != OPIPE_NONE)
          graph->values[old[n].out[o]].producer = OPIPE_NONE;
      }
      continue;
    }
    if (n >= s->n_forward_nodes)
      OPI_TRY(opi_recompute_before(s, &again, &old[n], s->stage[n], err));
    const uint32_t at = again.n_nodes++;
    nodes[at] = old[n];
    t->anchor[at] = s->anchor[n];
    t->stage[at] = s->stage[n];
    for (uint32_t o = 0; o < nodes[at].n_out; ++o) {
      if (nodes[at].out[o] != OPIPE_NONE)
        graph->values[nodes[at].out[o]].producer = at;
    }
    if (n >= s->n_forward_nodes)
      opi_recompute_behind(s, &again);
  }
  graph->nodes = nodes;
  graph->n_nodes = again.n_nodes;
  graph->room_nodes = room;
  return OPIPE_OK;
}

opipe_status opi_grad_finish(opi_grad_state *s, opipe_error *err) {
  opi_graph *graph = s->training->graph;
  OPI_TRY(opi_grad_flags(s, err));
  bool *alive = OPI_ARENA_ARRAY(&s->scratch, bool, (size_t)graph->n_nodes + graph->n_values);
  if (alive == NULL)
    return opi_fail_nomem(err, (uint64_t)graph->n_nodes + graph->n_values, "marking nodes");
  mark(s, alive);
  return rebuild(s, alive, err);
}
