/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes are taken: the whole graph, if the library can have it; else, with partition=auto,
 * sets of nodes that it can. What is refused is logged with its reason and stays with ORT.
 *
 * Nodes of one level (host_levels) that are taken are a set. Those with bodies never are: a body
 * that data decides goes on in ONNX Runtime.
 */
#include <opipe/helpers.h>

#include "adapter.h"

enum { LEAST = 4 /* nodes of a set: fewer are not worth a call */ };

/* Can the library have these tables? OK also where it only needs the value of such an input: each
 * value is compiled for. */
static opipe_status try_tables(const ep *e, tables *t, opipe_error *err) {
  const opipe_api *api = e->maker.api;
  opipe_model *model = NULL, *bound = NULL;
  opipe_bind_options bind = opipe_bind_options_init();
  bind.flags = OPIPE_BIND_DEFAULTS;
  opipe_status status = api->model_build(e->maker.context, &t->params, &model, err);
  if (status == OPIPE_OK)
    status = api->model_bind(model, &bind, &bound, err);
  api->model_destroy(bound);
  api->model_destroy(model);
  if (status < 0 && err->domain == OPIPE_DOMAIN_INPUT && host_is_shape(&t->graph, err->native))
    status = OPIPE_OK;
  return status;
}

static ort_status *fuse(const ep *e, ort_support *support, const ort_node *const *nodes, size_t n,
                        bool drop) {
  const ort_fusion_options options = {.version = e->f->version, .drop_constants = drop};
  return ORT(e->f->ep_api, EpGraphSupportInfo_AddNodesToFuse)(support, nodes, n, &options);
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
  const opipe_status status = try_tables(e, t, err);
  return one && err->domain == OPIPE_DOMAIN_INPUT ? OPIPE_OK : status; /* of another, maybe */
}

/* Only what the library does not have is a reason against it: shapes that do not fit are made up
 * here. */
static ort_status *probe(const ep *e, const ort_graph *graph, const ort_node *const *set, size_t n,
                         bool *out) {
  tables t = {.copies = e->set.copies};
  opipe_error err = OPIPE_ERROR_INIT;
  ort_status *status = tables_read(e->f, graph, set, n, &t);
  *out = status == NULL && try_set(e, &t, &err) != OPIPE_E_UNSUPPORTED;
  if (status == NULL && !*out) {
    ep_log(e, ORT_LOG_WARNING, "onnx-pipe leaves %zu nodes from '%s' (%s) to ONNX Runtime: %s", n,
           t.graph.nodes[0].name, t.graph.nodes[0].op, err.message);
  }
  host_pool_free(&t.memory);
  return status;
}

static ort_status *claim_sets(const ep *e, const ort_graph *graph, ort_support *support,
                              tables *t) {
  const uint32_t n = t->graph.n_nodes;
  const ort_node **nodes = host_pool_take(&t->memory, (n + 1) * sizeof *nodes);
  const ort_node **set = host_pool_take(&t->memory, (n + 1) * sizeof *set);
  bool *taken = host_pool_take(&t->memory, (n + 1) * sizeof *taken);
  uint32_t *levels = host_pool_take(&t->memory, (n + 1) * sizeof *levels);
  uint32_t n_taken = 0, n_sets = 0;
  if (nodes == NULL || set == NULL || taken == NULL || levels == NULL)
    return ep_no_memory(e->f);
  ORT_TRY(ORT(e->f->ort, Graph_GetNodes)(graph, nodes, n));
  for (uint32_t i = 0; i < n; ++i)
    ORT_TRY(probe(e, graph, &nodes[i], 1, &taken[i]));
  const uint32_t most = host_levels(&t->graph, taken, levels);
  for (uint32_t at = 0; at <= most; ++at) {
    size_t n_set = 0;
    for (uint32_t i = 0; i < n; ++i) {
      if (taken[i] && levels[i] == at)
        set[n_set++] = nodes[i];
    }
    bool good = n_set >= LEAST;
    if (good)
      ORT_TRY(probe(e, graph, set, n_set, &good));
    if (!good)
      continue;
    ORT_TRY(fuse(e, support, set, n_set, t->n_lent == 0));
    n_taken += (uint32_t)n_set;
    ++n_sets;
  }
  ep_log(e, ORT_LOG_INFO, "onnx-pipe takes %u of %u nodes in %u sets", n_taken, n, n_sets);
  return NULL;
}

/* ---- the graph ---- */

static ort_status *claim_whole(const ep *e, const ort_graph *graph, ort_support *support, tables *t,
                               bool drop) {
  size_t n = 0;
  ORT_TRY(ORT(e->f->ort, Graph_GetNumNodes)(graph, &n));
  const ort_node **nodes = host_pool_take(&t->memory, (n + 1) * sizeof *nodes);
  if (nodes == NULL)
    return ep_no_memory(e->f);
  ORT_TRY(ORT(e->f->ort, Graph_GetNodes)(graph, nodes, n));
  return n == 0 ? NULL : fuse(e, support, nodes, n, drop);
}

static ort_status *claim(const ep *e, const ort_graph *graph, ort_support *support, tables *t) {
  opipe_error err = OPIPE_ERROR_INIT;
  ORT_TRY(tables_read(e->f, graph, NULL, 0, t));
  const uint32_t n = t->graph.n_nodes;
  if (n == 0)
    return NULL;
  if (try_tables(e, t, &err) < 0) {
    ep_log(e, ORT_LOG_WARNING, "onnx-pipe does not take the graph '%s' (%u nodes) as a whole: %s",
           t->graph.name == NULL ? "" : t->graph.name, n, err.message);
    return e->set.in_parts ? claim_sets(e, graph, support, t) : NULL;
  }
  return claim_whole(e, graph, support, t, t->n_lent == 0);
}

ort_status *ep_get_capability(ort_ep *self, const ort_graph *graph, ort_support *support) {
  const ep *e = (const ep *)self;
  const ort_node *parent = NULL;
  tables t = {.copies = e->set.copies};
  ORT_TRY(ORT(e->f->ort, Graph_GetParentNode)(graph, &parent));
  if (parent != NULL)
    return NULL; /* a body: it goes with its node, or stays with ORT */
  ort_status *status =
      e->broken != NULL ? claim_whole(e, graph, support, &t, false) : claim(e, graph, support, &t);
  host_pool_free(&t.memory);
  return status;
}
