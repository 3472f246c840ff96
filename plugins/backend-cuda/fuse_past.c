/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values of few rows that stand behind earlier ones, as a step of decoding has them:
 * attention reads both pieces where they lie, and nothing puts them together.
 *
 *   Concat of two along the rows -> Attention's K; another one -> its V
 *
 * This holds for Attention without causality or a past of its own, of which only Y is read. With
 * more rows cuDNN, which reads one piece, may be worth the copy.
 */
#include "kernels/blocks.h"
#include "ops/rule.h"

enum { IN_K = 1, IN_V, IN_PAST_K = 4, IN_PAST_V }; /* of Attention */

static uint32_t maker_of(const opipe_graph *graph, uint32_t value, uint32_t before) {
  for (uint32_t i = 0; i < before; ++i) {
    for (uint32_t k = 0; k < graph->nodes[i].n_out; ++k) {
      if (graph->nodes[i].out[k] == value)
        return i;
    }
  }
  return OPIPE_NONE;
}

/* Along the rows of [B, H, S, D], or of [B, S, H * D]. */
static bool joins_rows(const opipe_graph *graph, const opipe_node *node) {
  if (!cuda_named(node, "", "Concat") || node->n_in != 2 || node->in[0] == OPIPE_NONE ||
      node->in[1] == OPIPE_NONE)
    return false;
  const opipe_value *all = &graph->values[node->out[0]];
  const opipe_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]];
  const int64_t axis = opipe_attr_int(node, "axis", 0), rank = all->rank;
  bool fits = (rank == 3 || rank == 4) && (axis == rank - 2 || axis == -2) && cuda_elems(all) > 0 &&
              a->rank == rank && b->rank == rank && a->dtype == all->dtype &&
              b->dtype == all->dtype;
  for (int64_t i = 0; fits && i < rank; ++i) {
    fits = i == rank - 2 ? a->shape[i] + b->shape[i] == all->shape[i]
                         : a->shape[i] == all->shape[i] && b->shape[i] == all->shape[i];
  }
  return fits;
}

/* The Concat that makes node `reader`'s input `i` and nothing else reads; OPIPE_NONE. */
static uint32_t join_of(const opipe_program *program, uint32_t reader, uint32_t i) {
  const opipe_graph *graph = program->graph;
  const uint32_t value = graph->nodes[reader].in[i];
  if (value == OPIPE_NONE || graph->values[value].role != OPIPE_VALUE_TEMP ||
      program->matched.reader[value] != reader)
    return OPIPE_NONE;
  const uint32_t maker = maker_of(graph, value, reader);
  return maker != OPIPE_NONE && !program->matched.taken[maker] &&
                 joins_rows(graph, &graph->nodes[maker])
             ? maker
             : OPIPE_NONE;
}

static int64_t rows_of(const opipe_graph *graph, uint32_t value) {
  return graph->values[value].shape[graph->values[value].rank - 2];
}

static bool has_input(const opipe_node *node, uint32_t i) {
  return i < node->n_in && node->in[i] != OPIPE_NONE;
}

/* Attention of few rows that may read pieces. */
static bool may_read_pieces(const opipe_graph *graph, const opipe_node *node) {
  if (!cuda_named(node, "", "Attention") || node->n_in <= IN_V || node->in[0] == OPIPE_NONE ||
      has_input(node, IN_PAST_K) || has_input(node, IN_PAST_V) ||
      opipe_attr_int(node, "is_causal", 0) != 0)
    return false;
  for (uint32_t i = 1; i < node->n_out; ++i) {
    if (node->out[i] != OPIPE_NONE)
      return false;
  }
  const opipe_value *q = &graph->values[node->in[0]];
  return (q->rank == 3 || q->rank == 4) && q->shape[q->rank - 2] <= CUDA_FEW_QUERIES;
}

opipe_status cuda_match_past(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  opipe_program probe;
  program->matched.joins = CUDA_POOL_ARRAY(&program->pool, uint32_t, graph->n_values);
  if (program->matched.joins == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u values", graph->n_values);
  for (uint32_t v = 0; v < graph->n_values; ++v)
    program->matched.joins[v] = OPIPE_NONE;
  opipe_status status = cuda_probe_make(program, &probe, err);
  for (uint32_t i = 0; status >= 0 && i < graph->n_nodes; ++i) {
    const opipe_node *node = &graph->nodes[i];
    bool taken = false;
    if (!may_read_pieces(graph, node))
      continue;
    const uint32_t k = join_of(program, i, IN_K), v = join_of(program, i, IN_V);
    if (k == OPIPE_NONE || v == OPIPE_NONE ||
        rows_of(graph, graph->nodes[k].in[0]) != rows_of(graph, graph->nodes[v].in[0]))
      continue;
    program->matched.joins[node->in[IN_K]] = k;
    program->matched.joins[node->in[IN_V]] = v;
    status = cuda_probe_takes(&probe, i, &taken, err);
    if (taken) {
      program->matched.taken[k] = program->matched.taken[v] = true;
    } else {
      program->matched.joins[node->in[IN_K]] = OPIPE_NONE;
      program->matched.joins[node->in[IN_V]] = OPIPE_NONE;
    }
  }
  cuda_pool_release(&probe.pool);
  return status;
}

const opipe_node *cuda_join_of(const opipe_program *program, uint32_t value) {
  return value != OPIPE_NONE && program->matched.joins != NULL &&
                 program->matched.joins[value] != OPIPE_NONE
             ? &program->graph->nodes[program->matched.joins[value]]
             : NULL;
}
