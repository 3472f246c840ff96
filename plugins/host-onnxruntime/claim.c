/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes are taken: the whole graph, if the library can have it; else, with partition=auto,
 * sets of nodes that it can. Refused nodes are logged with the reason and stay with ORT.
 *
 * Nodes of one level (host_levels) that are taken are a set. Nodes with bodies never are: a body
 * that data decides goes on in ONNX Runtime.
 */
#include <opipe/helpers.h>

#include "adapter.h"

enum { LEAST = 4 /* nodes of a set: fewer are not worth a call */ };

/* One graph that ORT asks about. */
typedef struct question {
  const ep *e;
  const ort_graph *graph;
  ort_support *support;
  tables t;
  const ort_node **nodes; /* [n] */
  size_t n;
} question;

static ort_status *fuse(const question *q, const ort_node *const *nodes, size_t n, bool drop) {
  const ort_fusion_options options = {.version = q->e->f->version, .drop_constants = drop};
  return n == 0 ? NULL
                : ORT(q->e->f->ep_api, EpGraphSupportInfo_AddNodesToFuse)(q->support, nodes, n,
                                                                          &options);
}

/* ---- sets ---- */

/* The same for one node, or several that are to become one. */
static opipe_status try_set(const ep *e, tables *t, opipe_error *err) {
  const opipe_build_graph *g = &t->graph;
  const bool one = g->n_nodes == 1;
  if (one && host_has_bodies(g->nodes))
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "it has bodies");
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    opipe_build_value *in = (opipe_build_value *)(uintptr_t)&g->inputs[i];
    if (in->rank < 0 && !one)
      return opipe_fail(err, OPIPE_E_UNSUPPORTED, "the rank of '%.100s' is not known", in->name);
    in->rank = in->rank < 0 ? 0 : in->rank;
  }
  const opipe_status status = host_can_have(&e->maker, &t->params, err);
  return one && err->domain == OPIPE_DOMAIN_INPUT ? OPIPE_OK : status; /* of another, maybe */
}

/* Only what the library does not have is a reason against it: shapes that do not fit are made up
 * here. */
static ort_status *probe(const question *q, const ort_node *const *set, size_t n, bool *out) {
  const ep *e = q->e;
  tables t = {.copies = e->set.copies};
  opipe_error err = OPIPE_ERROR_INIT;
  ort_status *status = tables_read(e->f, q->graph, set, n, &t);
  *out = status == NULL && try_set(e, &t, &err) != OPIPE_E_UNSUPPORTED;
  if (status == NULL && !*out) {
    ep_log(e, ORT_LOG_WARNING, "onnx-pipe leaves %zu nodes from '%s' (%s) to ONNX Runtime: %s", n,
           t.graph.nodes[0].name, t.graph.nodes[0].op, err.message);
  }
  host_pool_free(&t.memory);
  return status;
}

static ort_status *claim_sets(question *q) {
  const bool drop = q->t.n_lent + q->t.n_turned == 0; /* a set may lack the original */
  opipe_build_graph own = q->t.graph;                 /* without nodes that tables_read added */
  own.nodes += q->t.n_turned;
  own.n_nodes -= q->t.n_turned;
  const ort_node **set = host_pool_take(&q->t.memory, (q->n + 1) * sizeof *set);
  bool *taken = host_pool_take(&q->t.memory, (q->n + 1) * sizeof *taken);
  uint32_t *levels = host_pool_take(&q->t.memory, (q->n + 1) * sizeof *levels);
  size_t n_taken = 0, n_sets = 0;
  if (set == NULL || taken == NULL || levels == NULL)
    return ep_no_memory(q->e->f);
  for (size_t i = 0; i < q->n; ++i)
    ORT_TRY(probe(q, &q->nodes[i], 1, &taken[i]));
  const uint32_t most = host_levels(&own, taken, levels);
  for (uint32_t at = 0; at <= most; ++at) {
    size_t n_set = 0;
    for (size_t i = 0; i < q->n; ++i) {
      if (taken[i] && levels[i] == at)
        set[n_set++] = q->nodes[i];
    }
    bool good = n_set >= LEAST;
    if (good)
      ORT_TRY(probe(q, set, n_set, &good));
    if (!good)
      continue;
    ORT_TRY(fuse(q, set, n_set, drop));
    n_taken += n_set;
    ++n_sets;
  }
  ep_log(q->e, ORT_LOG_INFO, "onnx-pipe takes %zu of %zu nodes in %zu sets", n_taken, q->n, n_sets);
  return NULL;
}

/* ---- the graph ---- */

static ort_status *claim(question *q) {
  const ep *e = q->e;
  opipe_error err = OPIPE_ERROR_INIT;
  ORT_TRY(ORT(e->f->ort, Graph_GetNumNodes)(q->graph, &q->n));
  q->nodes = host_pool_take(&q->t.memory, (q->n + 1) * sizeof *q->nodes);
  if (q->nodes == NULL)
    return ep_no_memory(e->f);
  ORT_TRY(ORT(e->f->ort, Graph_GetNodes)(q->graph, q->nodes, q->n));
  if (e->broken != NULL)
    return fuse(q, q->nodes, q->n, false); /* compilation says why */
  ORT_TRY(tables_read(e->f, q->graph, NULL, 0, &q->t));
  if (q->n != 0 && host_can_have(&e->maker, &q->t.params, &err) < 0) {
    ep_log(e, ORT_LOG_WARNING, "onnx-pipe does not take the graph of %zu nodes as a whole: %s",
           q->n, err.message);
    return e->set.in_parts ? claim_sets(q) : NULL;
  }
  return fuse(q, q->nodes, q->n, q->t.n_lent == 0);
}

ort_status *ep_get_capability(ort_ep *self, const ort_graph *graph, ort_support *support) {
  question q = {(const ep *)self, graph, support, .t.copies = ((const ep *)self)->set.copies};
  const ort_node *parent = NULL;
  ORT_TRY(ORT(q.e->f->ort, Graph_GetParentNode)(graph, &parent));
  if (parent != NULL)
    return NULL; /* a body: it goes with its node, or stays with ORT */
  ort_status *status = claim(&q);
  host_pool_free(&q.t.memory);
  return status;
}
