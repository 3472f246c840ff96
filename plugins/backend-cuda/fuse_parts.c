/* SPDX-License-Identifier: Apache-2.0 */
/* Values that lie in another one, as columns of its rows, so that nothing moves them:
 *
 *   Split along the last axis -> Attention, AttentionGrad      they read the whole, also as a piece
 *                                                              of K or V (fuse_past.c)
 *   AttentionGrad -> Concat along the last axis                it writes the whole
 *
 * Only attention walks its operands by rows of any distance, so it alone may touch parts; a node
 * that does not take them so is found out before, by its rule.
 */
#include "ops/rule.h"

enum { WHOLE_WORDS = 16 }; /* parts begin at multiples of this, in bytes: vectors stay whole */

static bool is_attention(const opipe_node *node, uint32_t *out_first_in) {
  const bool grad = cuda_named(node, "opipe", "AttentionGrad");
  *out_first_in = grad ? 1 : 0;
  return grad || cuda_named(node, "", "Attention");
}

/* Is the node a Concat that attention does without? */
static bool is_read_through(const opipe_program *program, const opipe_node *node) {
  return node->n_out > 0 && node->out[0] != OPIPE_NONE &&
         cuda_join_of(program, node->out[0]) == node;
}

/* Do all readers of the value take it as Q, K or V? */
static bool is_read_by_attention(const opipe_program *program, uint32_t value) {
  const opipe_graph *graph = program->graph;
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const opipe_node *node = &graph->nodes[i];
    uint32_t first = 0;
    const bool attention = is_attention(node, &first);
    for (uint32_t k = 0; k < node->n_in; ++k) {
      const bool reads = attention ? k >= first && k < first + 3 : is_read_through(program, node);
      if (node->in[k] == value && !reads)
        return false;
    }
  }
  return true;
}

/* Is the value nothing but Q's, K's or V's gradient, on its way to node `reader`, and of the same
 * attention as the others? *io_maker: that node; OPIPE_NONE: not known yet. */
static bool is_made_by_attention(const opipe_program *program, uint32_t value, uint32_t reader,
                                 uint32_t *io_maker) {
  const opipe_graph *graph = program->graph;
  if (program->matched.reader[value] != reader)
    return false;
  for (uint32_t i = 0; i < reader; ++i) {
    const opipe_node *node = &graph->nodes[i];
    for (uint32_t k = 0; k < node->n_out; ++k) {
      if (node->out[k] != value)
        continue;
      const bool first = *io_maker == OPIPE_NONE;
      *io_maker = first ? i : *io_maker;
      return cuda_named(node, "opipe", "AttentionGrad") && k < 3 && *io_maker == i;
    }
  }
  return false;
}

/* A node that parts rows of `whole` into `values`, or joins them. */
typedef struct parting {
  uint32_t whole, n;
  const uint32_t *values;
  bool joins;
} parting;

static bool read_parting(const opipe_graph *graph, const opipe_node *node, parting *out) {
  out->joins = cuda_named(node, "", "Concat");
  if ((!out->joins && !cuda_named(node, "", "Split")) || node->n_in < 1 || node->n_out < 1)
    return false;
  out->whole = out->joins ? node->out[0] : node->in[0];
  out->values = out->joins ? node->in : node->out;
  out->n = out->joins ? node->n_in : node->n_out;
  return out->whole != OPIPE_NONE && graph->values[out->whole].rank == 3 &&
         opipe_attr_int(node, "axis", 0) == 2;
}

/* Where each part lies. False: they stay by themselves. */
static bool place_parts(opipe_program *program, const parting *p, uint32_t node) {
  const opipe_graph *graph = program->graph;
  const opipe_value *whole = &graph->values[p->whole];
  const int64_t row = whole->shape[2];
  const uint32_t size = cuda_size(whole);
  uint32_t maker = OPIPE_NONE;
  int64_t first = 0;
  bool fits = size != 0 && row * size % WHOLE_WORDS == 0 && cuda_elems(whole) > 0 &&
              program->matched.parts[p->whole].whole == OPIPE_NONE &&
              (!p->joins || whole->role == OPIPE_VALUE_TEMP);
  for (uint32_t i = 0; fits && i < p->n; ++i) {
    const uint32_t v = p->values[i];
    fits = v != OPIPE_NONE && graph->values[v].role == OPIPE_VALUE_TEMP &&
           graph->values[v].rank == 3 && graph->values[v].dtype == whole->dtype &&
           graph->values[v].shape[0] == whole->shape[0] &&
           graph->values[v].shape[1] == whole->shape[1] && first * size % WHOLE_WORDS == 0 &&
           (p->joins ? is_made_by_attention(program, v, node, &maker)
                     : is_read_by_attention(program, v));
    if (fits) {
      program->matched.parts[v] = (cuda_part){p->whole, first, row};
      first += graph->values[v].shape[2];
    }
  }
  return fits && first == row;
}

static bool is_part(const parting *p, uint32_t value) {
  bool found = false;
  for (uint32_t i = 0; i < p->n; ++i)
    found = found || (value != OPIPE_NONE && value == p->values[i]);
  return found;
}

static bool touches(const opipe_program *program, const opipe_node *node, const parting *p) {
  const uint32_t *list = p->joins ? node->out : node->in, n = p->joins ? node->n_out : node->n_in;
  for (uint32_t k = 0; k < n; ++k) {
    const opipe_node *join = p->joins ? NULL : cuda_join_of(program, list[k]);
    if (is_part(p, list[k]) ||
        (join != NULL && (is_part(p, join->in[0]) || is_part(p, join->in[1]))))
      return true;
  }
  return false;
}

/* Asks those that are to read or write the parts. */
static opipe_status ask(const opipe_program *program, opipe_program *probe, const parting *p,
                        bool *out_taken, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  uint32_t first = 0;
  *out_taken = true;
  for (uint32_t i = 0; *out_taken && i < graph->n_nodes; ++i) {
    opipe_error why = OPIPE_ERROR_INIT;
    if (!is_attention(&graph->nodes[i], &first) || !touches(program, &graph->nodes[i], p))
      continue;
    const opipe_status status = cuda_probe(probe, i, &why);
    if (status == OPIPE_E_NOMEM || status == OPIPE_E_DEVICE)
      return opipe_fail(err, status, "%s", why.message);
    *out_taken = status >= 0;
  }
  return OPIPE_OK;
}

opipe_status cuda_match_parts(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  opipe_program probe;
  program->matched.parts = CUDA_POOL_ARRAY(&program->pool, cuda_part, graph->n_values);
  if (program->matched.parts == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u values", graph->n_values);
  for (uint32_t v = 0; v < graph->n_values; ++v)
    program->matched.parts[v].whole = OPIPE_NONE;
  opipe_status status = cuda_probe_make(program, &probe, err);
  for (uint32_t i = 0; status >= 0 && i < graph->n_nodes; ++i) {
    parting p;
    bool taken = false;
    if (program->matched.taken[i] || !read_parting(graph, &graph->nodes[i], &p))
      continue;
    if (place_parts(program, &p, i))
      status = ask(program, &probe, &p, &taken, err);
    program->matched.taken[i] = taken;
    for (uint32_t k = 0; !taken && k < p.n; ++k) {
      if (p.values[k] != OPIPE_NONE && program->matched.parts[p.values[k]].whole == p.whole)
        program->matched.parts[p.values[k]].whole = OPIPE_NONE;
    }
  }
  cuda_pool_release(&probe.pool);
  return status;
}
