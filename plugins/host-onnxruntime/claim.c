/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes are taken: the whole graph, if the library can have it; else, with partition=auto,
 * sets of nodes that it can. What is refused is logged with its reason and stays with ORT.
 *
 * A set must not have a way out of it and back in. So every node gets a level: behind one that is
 * not taken it rises by one where it meets one that is; then nodes of one level that are taken are
 * a set, since whatever leaves a set comes back on a higher level.
 */
#include <string.h>

#include "adapter.h"

enum { LEAST = 4 /* nodes of a set: fewer are not worth a call */ };

/* Can the library have these tables? OK also where it only needs values that come with a run. */
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
  if (status < 0 && err->domain == OPIPE_DOMAIN_INPUT)
    status = OPIPE_OK;
  return status;
}

static ort_status *fuse(const ep *e, ort_support *support, const ort_node *const *nodes, size_t n,
                        bool drop) {
  const ort_fusion_options options = {.version = e->f->version, .drop_constants = drop};
  return ORT(e->f->ep_api, EpGraphSupportInfo_AddNodesToFuse)(support, nodes, n, &options);
}

/* ---- sets ---- */

typedef struct level {
  bool taken;
  uint32_t at;
} level;

/* May the node be taken? Only what the library does not have is a reason against it: shapes that do
 * not fit are made up here. */
static ort_status *probe(const ep *e, const ort_graph *graph, const ort_node *node, bool *out) {
  tables t = {.copies = e->set.copies};
  opipe_error err = OPIPE_ERROR_INIT;
  ort_status *status = tables_read(e->f, graph, node, &t);
  *out = status == NULL && try_tables(e, &t, &err) != OPIPE_E_UNSUPPORTED;
  if (status == NULL && !*out) {
    ep_log(e, ORT_LOG_WARNING, "onnx-pipe leaves node '%s' (%s) to ONNX Runtime: %s",
           t.graph.nodes[0].name, t.graph.nodes[0].op, err.message);
  }
  host_pool_free(&t.memory);
  return status;
}

static bool makes(const opipe_build_node *node, const char *name) {
  for (uint32_t i = 0; i < node->n_outputs; ++i) {
    if (strcmp(node->outputs[i], name) == 0)
      return true;
  }
  return false;
}

static bool reads(const opipe_build_node *node, const opipe_build_node *from) {
  for (uint32_t i = 0; i < node->n_inputs; ++i) {
    if (node->inputs[i][0] != '\0' && makes(from, node->inputs[i]))
      return true;
  }
  for (uint32_t a = 0; a < node->n_attrs; ++a) {
    const opipe_build_graph *body = node->attrs[a].data;
    for (uint32_t i = 0; node->attrs[a].kind == OPIPE_ATTR_GRAPH && i < body->n_nodes; ++i) {
      if (reads(&body->nodes[i], from))
        return true;
    }
  }
  return false;
}

/* The highest among the nodes that it, or a body of it, reads. ORT's nodes stand in an executable
 * order. */
static uint32_t level_of(const opipe_build_graph *g, uint32_t n, const level *levels, bool taken) {
  uint32_t most = 0;
  for (uint32_t from = 0; from < n; ++from) {
    if (!reads(&g->nodes[n], &g->nodes[from]))
      continue;
    const uint32_t at = levels[from].at + (taken && !levels[from].taken ? 1 : 0);
    most = at > most ? at : most;
  }
  return most;
}

static ort_status *claim_sets(const ep *e, const ort_graph *graph, ort_support *support,
                              tables *t) {
  const uint32_t n = t->graph.n_nodes;
  const ort_node **nodes = host_pool_take(&t->memory, (n + 1) * sizeof *nodes);
  const ort_node **set = host_pool_take(&t->memory, (n + 1) * sizeof *set);
  level *levels = host_pool_take(&t->memory, (n + 1) * sizeof *levels);
  uint32_t most = 0, n_taken = 0, n_sets = 0;
  if (nodes == NULL || set == NULL || levels == NULL)
    return ep_no_memory(e->f);
  ORT_TRY(ORT(e->f->ort, Graph_GetNodes)(graph, nodes, n));
  for (uint32_t i = 0; i < n; ++i) {
    ORT_TRY(probe(e, graph, nodes[i], &levels[i].taken));
    levels[i].at = level_of(&t->graph, i, levels, levels[i].taken);
    most = levels[i].at > most ? levels[i].at : most;
  }
  for (uint32_t at = 0; at <= most; ++at) {
    size_t n_set = 0;
    for (uint32_t i = 0; i < n; ++i) {
      if (levels[i].taken && levels[i].at == at)
        set[n_set++] = nodes[i];
    }
    if (n_set < LEAST)
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
  ORT_TRY(tables_read(e->f, graph, NULL, t));
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
