/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the keys and values that token slices pass on (TeraPipe, Li et al. 2021).
 *
 * Backwards, slices run from the last to the first. The earlier tokens that a slice's attention
 * reads (past) get a gradient that belongs to the previous slices; those that it passes on
 * (present) have one that the later slices have summed. present = concat(past, own), so a
 * contribution travels back slice by slice until it reaches its own tokens.
 */
#include "loader/gradient/state.h"

opipe_status opi_grad_states(opi_grad_state *s, opipe_error *err) {
  const opi_token_slice *slice = s->options->slice;
  opi_training *t = s->training;
  if (slice == NULL)
    return OPIPE_OK;
  t->states = OPI_ARENA_ARRAY(&t->arena, opi_slice_state, slice->n_states);
  if (t->states == NULL)
    return opi_fail_nomem(err, slice->n_states * sizeof(*t->states), "slice states");
  t->n_states = slice->n_states;
  for (uint32_t i = 0; i < slice->n_states; ++i) {
    const opi_token_state *from = &slice->states[i];
    opi_slice_state *to = &t->states[i];
    *to = (opi_slice_state){.name = from->name,
                            .past = OPIPE_NONE,
                            .present = OPIPE_NONE,
                            .present_gradient = OPIPE_NONE,
                            .past_gradient = OPIPE_NONE};
    if (from->past != OPIPE_NONE)
      to->past = s->map[from->past];
    if (from->present != OPIPE_NONE)
      to->present = s->map[from->present];
  }
  return OPIPE_OK;
}

/* Whatever is handed on reaches the loss; what comes in was made by trained parameters. */
void opi_grad_mark_states(const opi_grad_state *s) {
  for (uint32_t i = 0; i < s->training->n_states; ++i) {
    const opi_slice_state *state = &s->training->states[i];
    if (state->present != OPIPE_NONE)
      s->flags[state->present] |= OPI_V_REACHES | OPI_V_DIRECT;
    if (state->past != OPIPE_NONE)
      s->flags[state->past] |= OPI_V_WANTED;
  }
}

/* The node that reads v, or makes it. */
static uint32_t node_of(const opi_grad_state *s, const opi_slice_state *state) {
  const opi_graph *graph = s->training->graph;
  if (state->present != OPIPE_NONE)
    return graph->values[state->present].producer;
  for (uint32_t n = 0; n < s->n_forward_nodes; ++n) {
    for (uint32_t i = 0; i < graph->nodes[n].n_in; ++i) {
      if (graph->nodes[n].in[i] == state->past)
        return n;
    }
  }
  return OPIPE_NONE;
}

opipe_status opi_grad_seed_states(opi_grad_state *s, opipe_error *err) {
  for (uint32_t i = 0; i < s->training->n_states; ++i) {
    opi_slice_state *state = &s->training->states[i];
    const uint32_t n =
        state->present == OPIPE_NONE && state->past == OPIPE_NONE ? OPIPE_NONE : node_of(s, state);
    if (n != OPIPE_NONE)
      state->stage = s->stage[n];
    if (state->present == OPIPE_NONE)
      continue;
    const opi_value v = *opi_b_value(&s->builder, state->present);
    const char *name = opi_arena_printf(s->training->graph->arena, "%s/gradient", v.name);
    const uint32_t seed =
        name == NULL ? OPIPE_NONE
                     : opi_b_borrow(&s->builder, name, v.dtype, v.shape, (uint32_t)v.rank, NULL);
    if (seed == OPIPE_NONE || !opi_graph_add_input(s->training->graph, seed))
      return opi_fail_nomem(err, sizeof(v), "a gradient of keys or values");
    opi_b_value(&s->builder, seed)->flags = OPI_VALUE_INPUT;
    OPI_TRY(opi_grad_flags(s, err));
    s->flags[seed] |= OPI_V_ACTIVE;
    state->present_gradient = seed;
  }
  return OPIPE_OK;
}

/* One gradient that came from the slices behind, added to those of this slice's own readers. */
static opipe_status meet(opi_grad_state *s, const opi_slice_state *state, const opi_node *node,
                         opipe_error *err) {
  uint32_t *sum = &s->gradient[state->present];
  if (*sum == OPIPE_NONE) {
    *sum = state->present_gradient;
    return OPIPE_OK;
  }
  s->builder.origin = opi_grad_origin(s, node->name, "/present/gradient");
  if (s->builder.origin == NULL)
    return opi_fail_nomem(err, sizeof(opi_node), "a gradient's name");
  OPI_TRY(opi_b_op2(&s->builder, "Add", state->present_gradient, *sum, sum, err));
  OPI_TRY(opi_grad_flags(s, err));
  s->flags[*sum] |= OPI_V_ACTIVE;
  return OPIPE_OK;
}

opipe_status opi_grad_meet_states(opi_grad_state *s, const opi_node *node, opipe_error *err) {
  for (uint32_t i = 0; i < s->training->n_states; ++i) {
    const opi_slice_state *state = &s->training->states[i];
    bool makes = false;
    for (uint32_t o = 0; o < node->n_out; ++o)
      makes = makes || (node->out[o] != OPIPE_NONE && node->out[o] == state->present);
    if (makes)
      OPI_TRY(meet(s, state, node, err));
  }
  return OPIPE_OK;
}

/* Zeros where no gradient came: the slice before reads it all the same. */
opipe_status opi_grad_close_states(opi_grad_state *s, opipe_error *err) {
  for (uint32_t i = 0; i < s->training->n_states; ++i) {
    opi_slice_state *state = &s->training->states[i];
    if (state->past == OPIPE_NONE)
      continue;
    state->past_gradient = s->gradient[state->past];
    if (state->past_gradient == OPIPE_NONE) {
      s->builder.origin = opi_grad_origin(s, state->name, "/past/gradient");
      if (s->builder.origin == NULL)
        return opi_fail_nomem(err, 64, "a gradient's name");
      OPI_TRY(opi_grad_zeros(&s->grad, state->past, &state->past_gradient, err));
      OPI_TRY(opi_grad_anchor(s, node_of(s, state), state->stage, err));
    }
    OPI_TRY(opi_grad_flags(s, err));
    s->flags[state->past_gradient] |= OPI_V_ACTIVE;
  }
  return OPIPE_OK;
}
