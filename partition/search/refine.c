/* SPDX-License-Identifier: Apache-2.0 */
/* Local search over single nodes near the boundaries. A move must keep every edge forward and lower
 * the largest stage time, or keep that and lower the sum of squares. Times include receiving, so a
 * move that cuts more tensors pays for them. No stage loses its last node.
 */
#include "partition/search/dp.h"

#include <string.h>

enum { PASSES_MOST = 8 };

typedef struct refine {
  const opi_cut_problem *problem;
  opi_arena scratch;
  uint32_t *stage;
  opi_uses uses;
  double *ns;        /* [n_stages] */
  double *trial;     /* [n_stages] */
  uint32_t *n_nodes; /* [n_stages] */
  opipe_error *err;
} refine;

static const opi_profile *profile_of(const refine *r, uint32_t stage) {
  return r->problem->profiles[stage];
}

/* Time of receiving value v in `stage`. */
static double receive_ns(const refine *r, uint32_t v, uint32_t stage) {
  const opi_profile *p = profile_of(r, stage);
  return p->transfer_ns + (double)r->problem->graph->values[v].n_bytes *
                              (1 / p->transfer_bytes_per_ns + r->problem->link_ns_per_byte);
}

/* Adds the cost of receiving v, times `sign`, to every stage that reads it, except its producer's.
 */
static void count_routes(const refine *r, uint32_t v, double sign, double *ns) {
  const opi_value *value = &r->problem->graph->values[v];
  if (value->producer == OPIPE_NONE || value->data != NULL)
    return;
  const uint32_t home = r->stage[value->producer];
  for (uint32_t i = r->uses.first[v]; i < r->uses.first[v + 1]; ++i) {
    const uint32_t stage = r->stage[r->uses.users[i]];
    bool repeated = stage == home;
    for (uint32_t j = r->uses.first[v]; j < i && !repeated; ++j)
      repeated = r->stage[r->uses.users[j]] == stage;
    if (!repeated)
      ns[stage] += sign * receive_ns(r, v, stage);
  }
}

static void count_node(const refine *r, uint32_t node, double sign, double *ns) {
  const opi_node *n = &r->problem->graph->nodes[node];
  ns[r->stage[node]] += sign * profile_of(r, r->stage[node])->node_ns[node];
  for (uint32_t i = 0; i < n->n_in; ++i) {
    bool repeated = n->in[i] == OPIPE_NONE;
    for (uint32_t j = 0; j < i && !repeated; ++j)
      repeated = n->in[j] == n->in[i];
    if (!repeated)
      count_routes(r, n->in[i], sign, ns);
  }
  for (uint32_t i = 0; i < n->n_out; ++i) {
    if (n->out[i] != OPIPE_NONE)
      count_routes(r, n->out[i], sign, ns);
  }
}

static bool may_move(const refine *r, uint32_t node, uint32_t to) {
  const opi_graph *g = r->problem->graph;
  const opi_node *n = &g->nodes[node];
  if (r->problem->stays != NULL && r->problem->stays[node])
    return false;
  for (uint32_t i = 0; i < n->n_in; ++i) {
    if (n->in[i] == OPIPE_NONE)
      continue;
    const uint32_t producer = g->values[n->in[i]].producer;
    if (producer != OPIPE_NONE && r->stage[producer] > to)
      return false;
  }
  for (uint32_t i = 0; i < n->n_out; ++i) {
    if (n->out[i] == OPIPE_NONE)
      continue;
    for (uint32_t u = r->uses.first[n->out[i]]; u < r->uses.first[n->out[i] + 1]; ++u) {
      if (r->stage[r->uses.users[u]] < to)
        return false;
    }
  }
  return true;
}

static void score(const double *ns, uint32_t n, double *out_worst, double *out_squares) {
  *out_worst = *out_squares = 0;
  for (uint32_t s = 0; s < n; ++s) {
    if (ns[s] > *out_worst)
      *out_worst = ns[s];
    *out_squares += ns[s] * ns[s];
  }
}

static bool try_move(refine *r, uint32_t node, uint32_t to) {
  const uint32_t n_stages = r->problem->n_stages, from = r->stage[node];
  double worst = 0, squares = 0, new_worst = 0, new_squares = 0;
  if (r->n_nodes[from] == 1 || !may_move(r, node, to))
    return false;
  score(r->ns, n_stages, &worst, &squares);
  memcpy(r->trial, r->ns, n_stages * sizeof(double));
  count_node(r, node, -1, r->trial);
  r->stage[node] = to;
  count_node(r, node, +1, r->trial);
  score(r->trial, n_stages, &new_worst, &new_squares);
  if (new_worst < worst * (1 - 1e-9) ||
      (new_worst <= worst && new_squares < squares * (1 - 1e-9))) {
    memcpy(r->ns, r->trial, n_stages * sizeof(double));
    --r->n_nodes[from];
    ++r->n_nodes[to];
    return true;
  }
  r->stage[node] = from;
  return false;
}

static opipe_status prepare(refine *r) {
  const opi_graph *g = r->problem->graph;
  r->ns = OPI_ARENA_ARRAY(&r->scratch, double, r->problem->n_stages);
  r->trial = OPI_ARENA_ARRAY(&r->scratch, double, r->problem->n_stages);
  r->n_nodes = OPI_ARENA_ARRAY(&r->scratch, uint32_t, r->problem->n_stages);
  if (r->ns == NULL || r->trial == NULL || r->n_nodes == NULL)
    return opi_fail_nomem(r->err, r->problem->n_stages * sizeof(double), "a cut");
  OPI_TRY(opi_graph_uses(g, &r->scratch, &r->uses, r->err));
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    r->ns[r->stage[n]] += profile_of(r, r->stage[n])->node_ns[n];
    ++r->n_nodes[r->stage[n]];
  }
  for (uint32_t v = 0; v < g->n_values; ++v)
    count_routes(r, v, +1, r->ns);
  return OPIPE_OK;
}

opipe_status opi_cut_refine(const opi_cut_problem *problem, const opipe_allocator *allocator,
                            uint32_t *io_stage_of_node, uint32_t *out_moves, opipe_error *err) {
  refine r = {.problem = problem, .stage = io_stage_of_node, .err = err};
  opi_arena_init(&r.scratch, allocator, 0);
  const opipe_status status = prepare(&r);
  uint32_t moves = 0;
  bool moved = status == OPIPE_OK && problem->n_stages > 1;
  for (uint32_t pass = 0; moved && pass < PASSES_MOST; ++pass) {
    moved = false;
    for (uint32_t n = 0; n < problem->graph->n_nodes; ++n) {
      const uint32_t s = r.stage[n];
      if ((s + 1 < problem->n_stages && try_move(&r, n, s + 1)) ||
          (s > 0 && try_move(&r, n, s - 1))) {
        ++moves;
        moved = true;
      }
    }
  }
  opi_arena_release(&r.scratch);
  *out_moves = moves;
  return status;
}

opipe_status opi_cut_times(const opi_cut_problem *problem, const uint32_t *stage_of_node,
                           const opipe_allocator *allocator, double *out_ns, opipe_error *err) {
  refine r = {.problem = problem, .err = err};
  opi_arena_init(&r.scratch, allocator, 0);
  r.stage = opi_arena_copy(&r.scratch, stage_of_node, problem->graph->n_nodes * sizeof(uint32_t));
  opipe_status status =
      r.stage == NULL ? opi_fail_nomem(err, problem->graph->n_nodes, "a cut") : prepare(&r);
  if (status == OPIPE_OK)
    memcpy(out_ns, r.ns, problem->n_stages * sizeof(double));
  opi_arena_release(&r.scratch);
  return status;
}
