/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors whose rows replicas that share a micro-batch cannot all hand on: tensors with rows that
 * are not contiguous; tensors made of all rows (a loss in progress); and tensors of positions among
 * the rows, as row * tokens + token, which are valid only if the rows begin where they were
 * counted. A search for a cut keeps the nodes that make and read such a tensor together, as far as
 * it can. */
#include "partition/program/batch.h"
#include "partition/program/model.h"

/* Whether some of its rows may travel, or all replicas have the same. */
static bool travels(const opi_value *value, const opi_carry *carry) {
  bool front = carry->outer == 1;
  for (int32_t d = 0; d < carry->axis; ++d)
    front = front && value->shape[d] == 1;
  return carry->axis < 0 || (front && carry->count == 0);
}

/* Whether every stage has equally many replicas, which then have the same rows. */
static bool are_alike(const opi_decision *plan) {
  uint32_t s = 1;
  while (s < plan->n_stages && plan->shares[s] == plan->shares[0])
    ++s;
  return s >= plan->n_stages;
}

/* [n_values] the last node that reads a value; its maker if none does. */
static uint32_t *last_readers(const opi_graph *g, opi_arena *scratch) {
  uint32_t *last = OPI_ARENA_ARRAY(scratch, uint32_t, g->n_values);
  for (uint32_t v = 0; last != NULL && v < g->n_values; ++v)
    last[v] = g->values[v].producer;
  for (uint32_t n = 0; last != NULL && n < g->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      if (g->nodes[n].in[i] != OPIPE_NONE)
        last[g->nodes[n].in[i]] = n;
    }
  }
  return last;
}

/* The batch in a graph's values, and the values made of all its rows. */
typedef struct followed {
  const opi_graph *graph;
  const opi_carry *carry;
  const bool *sums;
} followed;

static bool is_tied(const followed *f, uint32_t value) {
  const opi_value *values = f->graph->values;
  return value != OPIPE_NONE && values[value].producer != OPIPE_NONE &&
         (f->sums[value] || !travels(&values[value], &f->carry[value]));
}

/* The number of positions where the plan's stages may still begin; 0: too few. */
static uint32_t close_positions(const opi_decision *plan, const followed *f, const uint32_t *last,
                                bool *closed) {
  const opi_graph *g = f->graph;
  uint32_t n_open = 0;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const bool tied = is_tied(f, v);
    for (uint32_t n = g->values[v].producer + 1; tied && n <= last[v]; ++n)
      closed[n] = true;
  }
  for (uint32_t n = 1; n < g->n_nodes; ++n)
    n_open += !closed[n];
  return n_open + 1 >= plan->n_stages ? n_open : 0;
}

static void tie(const followed *f, const bool *closed, bool *out_stays, bool *out_closed) {
  const opi_graph *g = f->graph;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    out_closed[n] = out_closed[n] || closed[n];
    for (uint32_t i = 0; i < node->n_in; ++i)
      out_stays[n] = out_stays[n] || is_tied(f, node->in[i]);
    for (uint32_t i = 0; i < node->n_out; ++i)
      out_stays[n] = out_stays[n] || is_tied(f, node->out[i]);
  }
}

opipe_status opi_rows_tie(const opi_decision *plan, const opi_model *file, const opi_graph *g,
                          bool *out_stays, bool *out_closed, opipe_error *err) {
  opi_arena scratch;
  if (plan->shares == NULL || are_alike(plan))
    return OPIPE_OK;
  opi_arena_init(&scratch, plan->allocator, 0);
  opi_carry *in = OPI_ARENA_ARRAY(&scratch, opi_carry, g->n_inputs);
  opi_carry *carry = OPI_ARENA_ARRAY(&scratch, opi_carry, g->n_values);
  bool *closed = OPI_ARENA_ARRAY(&scratch, bool, (size_t)g->n_nodes + 1);
  bool *sums = OPI_ARENA_ARRAY(&scratch, bool, g->n_values);
  const followed f = {g, carry, sums};
  const uint32_t *last = last_readers(g, &scratch);
  opipe_status status = OPIPE_OK;
  if (in == NULL || carry == NULL || closed == NULL || last == NULL || sums == NULL) {
    status = opi_fail_nomem(err, g->n_values * sizeof *carry, "the batch axis");
  } else {
    for (uint32_t v = 0; v < g->n_values; ++v)
      carry[v] = (opi_carry){.axis = -1, .outer = 1, .inner = 1};
    opi_batch_inputs(plan, file, g, -1, in);
    opi_carry_part part;
    status = opi_batch_part(plan, g, &scratch, &part, err);
    if (status == OPIPE_OK)
      status = opi_carry_through(g, &part, plan->binding.batch, in, carry, sums, err);
  }
  if (status == OPIPE_OK && close_positions(plan, &f, last, closed) != 0)
    tie(&f, closed, out_stays, out_closed);
  opi_arena_release(&scratch);
  return status;
}
