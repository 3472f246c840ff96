/* SPDX-License-Identifier: Apache-2.0 */
/* Given cuts. Boundary k separates everything from which its tensors are computed (stages 0 .. k)
 * from their consumers, as if those edges were removed from the graph. A node that neither feeds a
 * boundary nor reads across one stays with its producers.
 */
#include "partition/search/given.h"

#include <string.h>

#include "loader/base/nearest.h"

/* ---- parsing ---- */

typedef struct parser {
  const char *at;
  opi_arena *arena;
  opi_cut_edge *edges;
  uint32_t n_edges, room;
  opipe_error *err;
} parser;

/* Takes a name up to an unescaped delimiter. "::" does not delimit: exporters write it in names,
 * and no consumer's name is empty. */
static opipe_status take_name(parser *p, const char *spec, const char **out_name) {
  char *name = opi_arena_alloc(p->arena, strlen(p->at) + 1);
  size_t n = 0;
  if (name == NULL)
    return opi_fail_nomem(p->err, strlen(p->at), "a cut");
  while (*p->at != '\0') {
    const bool pair = p->at[0] == ':' && p->at[1] == ':';
    if (!pair && strchr(",:+;", *p->at) != NULL)
      break;
    if (pair)
      name[n++] = *p->at++;
    else if (*p->at == '\\' && p->at[1] != '\0')
      ++p->at;
    name[n++] = *p->at++;
  }
  if (n == 0) {
    return opi_fail(p->err, OPIPE_E_INVALID, "cut '%s': a name is missing at character %zu", spec,
                    (size_t)(p->at - spec));
  }
  *out_name = name;
  return OPIPE_OK;
}

static opipe_status take_edge(parser *p, const char *spec, uint32_t boundary) {
  opi_cut_edge edge = {.boundary = boundary};
  uint32_t room = 0;
  OPI_TRY(take_name(p, spec, &edge.tensor));
  if (*p->at == ':') {
    do {
      ++p->at;
      if (!opi_arena_grow(p->arena, (void **)&edge.consumers, &room, edge.n_consumers + 1,
                          sizeof(char *)))
        return opi_fail_nomem(p->err, sizeof(char *), "a cut");
      OPI_TRY(take_name(p, spec, &edge.consumers[edge.n_consumers]));
      ++edge.n_consumers;
    } while (*p->at == '+');
  }
  if (*p->at == ':' || *p->at == '+') {
    return opi_fail(p->err, OPIPE_E_INVALID, "cut '%s': '%c' is not allowed at character %zu", spec,
                    *p->at, (size_t)(p->at - spec));
  }
  if (!opi_arena_grow(p->arena, (void **)&p->edges, &p->room, p->n_edges + 1, sizeof(edge)))
    return opi_fail_nomem(p->err, sizeof(edge), "a cut");
  p->edges[p->n_edges++] = edge;
  return OPIPE_OK;
}

opipe_status opi_cut_parse(const char *spec, opi_arena *arena, opi_cut_edge **out_edges,
                           uint32_t *out_n_edges, uint32_t *out_n_boundaries, opipe_error *err) {
  parser p = {.at = spec, .arena = arena, .err = err};
  uint32_t boundary = 0;
  for (;;) {
    OPI_TRY(take_edge(&p, spec, boundary));
    if (*p.at == '\0')
      break;
    if (*p.at == ';')
      ++boundary;
    ++p.at;
  }
  *out_edges = p.edges;
  *out_n_edges = p.n_edges;
  *out_n_boundaries = boundary + 1;
  return OPIPE_OK;
}

/* ---- from edges to stages ---- */

typedef struct given {
  const opi_bound *bound;
  const opi_graph *graph;
  const opi_graph *file_graph;
  opi_arena scratch;
  opi_map *nodes;    /* name of output or node -> node */
  uint32_t *ceiling; /* [n_nodes] latest stage, because a boundary is computed from it */
  uint32_t *floor;   /* [n_nodes] earliest stage, because it reads across a boundary */
  bool *free;        /* [n_nodes] reads only graph inputs and feeds no boundary */
  opi_uses uses;
  uint32_t n_stages;
  opipe_error *err;
} given;

static opipe_status index_names(given *g) {
  for (uint32_t n = 0; n < g->graph->n_nodes; ++n) {
    const opi_node *node = &g->graph->nodes[n];
    OPI_TRY(opi_map_set(g->nodes, node->name, n, g->err));
    for (uint32_t i = 0; i < node->n_out; ++i) {
      if (node->out[i] != OPIPE_NONE)
        OPI_TRY(opi_map_set(g->nodes, g->graph->values[node->out[i]].name, n, g->err));
    }
  }
  return OPIPE_OK;
}

static bool in_file(const given *g, const char *name) {
  for (uint32_t v = 0; g->file_graph != NULL && v < g->file_graph->n_values; ++v) {
    if (strcmp(g->file_graph->values[v].name, name) == 0)
      return true;
  }
  return false;
}

/* Reports an unknown tensor and the nearest name in the file. */
static opipe_status no_tensor(const given *g, const char *name) {
  char meant[OPI_NEAREST_ROOM];
  opi_nearest nearest = {.word = name, .n = strlen(name)};
  for (uint32_t v = 0; g->file_graph != NULL && v < g->file_graph->n_values; ++v)
    opi_nearest_look(&nearest, g->file_graph->values[v].name);
  for (uint32_t v = 0; v < g->graph->n_values; ++v)
    opi_nearest_look(&nearest, g->graph->values[v].name);
  return opi_fail(g->err, OPIPE_E_NOTFOUND, "there is no tensor '%s' to cut at%s", name,
                  opi_nearest_words(&nearest, meant, sizeof meant));
}

static opipe_status mark_consumer(given *g, const opi_cut_edge *edge, uint32_t value,
                                  const char *name) {
  uint32_t node = 0;
  if (!opi_map_get(g->nodes, name, &node)) {
    const uint32_t made = opi_bound_value(g->bound, name);
    node = made == OPIPE_NONE ? OPIPE_NONE : g->graph->values[made].producer;
  }
  if (node == OPIPE_NONE) {
    if (in_file(g, name))
      return OPIPE_OK; /* folded or fused away */
    return opi_fail(g->err, OPIPE_E_NOTFOUND, "cut tensor '%s': there is no consumer '%s'",
                    edge->tensor, name);
  }
  bool reads = false;
  for (uint32_t i = 0; i < g->graph->nodes[node].n_in; ++i)
    reads |= g->graph->nodes[node].in[i] == value;
  if (!reads) {
    return opi_fail(g->err, OPIPE_E_INVALID, "cut tensor '%s': node '%s' does not read it",
                    edge->tensor, name);
  }
  if (g->floor[node] < edge->boundary + 1)
    g->floor[node] = edge->boundary + 1;
  return OPIPE_OK;
}

static opipe_status mark_edge(given *g, const opi_cut_edge *edge) {
  const uint32_t value = opi_bound_value(g->bound, edge->tensor);
  if (value == OPIPE_NONE) {
    if (in_file(g, edge->tensor))
      return OPIPE_OK; /* now a constant: every stage has it */
    return no_tensor(g, edge->tensor);
  }
  const uint32_t producer = g->graph->values[value].producer;
  if (producer != OPIPE_NONE && g->ceiling[producer] > edge->boundary)
    g->ceiling[producer] = edge->boundary;
  for (uint32_t c = 0; c < edge->n_consumers; ++c)
    OPI_TRY(mark_consumer(g, edge, value, edge->consumers[c]));
  if (edge->n_consumers != 0)
    return OPIPE_OK;
  for (uint32_t n = 0; n < g->graph->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->graph->nodes[n].n_in; ++i) {
      if (g->graph->nodes[n].in[i] == value && g->floor[n] < edge->boundary + 1)
        g->floor[n] = edge->boundary + 1;
    }
  }
  return OPIPE_OK;
}

/* The latest stage among a node's producers. *out_free: the node reads only graph inputs, known
 * values, and nodes of the same kind. */
static uint32_t producer_stage(const given *g, uint32_t n, const uint32_t *stage, bool *out_free) {
  const opi_graph *graph = g->graph;
  uint32_t latest = 0;
  for (uint32_t i = 0; i < graph->nodes[n].n_in; ++i) {
    const uint32_t v = graph->nodes[n].in[i];
    const uint32_t producer = v == OPIPE_NONE ? OPIPE_NONE : graph->values[v].producer;
    if (producer == OPIPE_NONE)
      continue;
    if (stage[producer] > latest)
      latest = stage[producer];
    *out_free &= g->free[producer];
  }
  return latest;
}

/* Passes ceilings on to producers: all that boundary k needs is in stage k at the latest, or
 * earlier if an earlier boundary needs it too. */
static void lower_ceilings(given *g) {
  for (uint32_t n = g->graph->n_nodes; n-- > 0;) {
    for (uint32_t i = 0; i < g->graph->nodes[n].n_in; ++i) {
      const uint32_t v = g->graph->nodes[n].in[i];
      const uint32_t producer = v == OPIPE_NONE ? OPIPE_NONE : g->graph->values[v].producer;
      if (producer != OPIPE_NONE && g->ceiling[producer] > g->ceiling[n])
        g->ceiling[producer] = g->ceiling[n];
    }
  }
}

/* Moves nodes that no boundary needs and that read nothing of other stages to their first reader.
 */
static void move_to_readers(given *g, uint32_t *io_stage) {
  for (uint32_t n = g->graph->n_nodes; n-- > 0;) {
    const opi_node *node = &g->graph->nodes[n];
    uint32_t first = OPIPE_NONE;
    if (!g->free[n])
      continue;
    for (uint32_t o = 0; o < node->n_out; ++o) {
      const uint32_t v = node->out[o];
      for (uint32_t u = v == OPIPE_NONE ? 0 : g->uses.first[v];
           v != OPIPE_NONE && u < g->uses.first[v + 1]; ++u) {
        if (io_stage[g->uses.users[u]] < first)
          first = io_stage[g->uses.users[u]];
      }
    }
    if (first != OPIPE_NONE)
      io_stage[n] = first;
  }
}

static opipe_status assign(given *g, uint32_t *out_stage) {
  lower_ceilings(g);
  for (uint32_t n = 0; n < g->graph->n_nodes; ++n) {
    bool free_node = g->floor[n] == 0 && g->ceiling[n] == g->n_stages - 1;
    const uint32_t latest = producer_stage(g, n, out_stage, &free_node);
    uint32_t stage = g->floor[n] > latest ? g->floor[n] : latest;
    if (stage > g->ceiling[n]) {
      return opi_fail(
          g->err, OPIPE_E_INVALID,
          "the cuts contradict each other: node '%s' feeds a tensor of boundary %u, but reads "
          "across boundary %u",
          g->graph->nodes[n].name, g->ceiling[n], stage - 1);
    }
    if (g->ceiling[n] < g->n_stages - 1)
      stage = g->ceiling[n];
    g->free[n] = free_node;
    out_stage[n] = stage;
  }
  move_to_readers(g, out_stage);
  return OPIPE_OK;
}

static opipe_status cut_given(given *g, const opi_cut_edge *edges, uint32_t n_edges,
                              uint32_t *out_stage) {
  g->ceiling = OPI_ARENA_ARRAY(&g->scratch, uint32_t, g->graph->n_nodes);
  g->floor = OPI_ARENA_ARRAY(&g->scratch, uint32_t, g->graph->n_nodes);
  g->free = OPI_ARENA_ARRAY(&g->scratch, bool, g->graph->n_nodes);
  if (g->ceiling == NULL || g->floor == NULL || g->free == NULL)
    return opi_fail_nomem(g->err, g->graph->n_nodes, "a cut");
  for (uint32_t n = 0; n < g->graph->n_nodes; ++n)
    g->ceiling[n] = g->n_stages - 1;
  OPI_TRY(index_names(g));
  OPI_TRY(opi_graph_uses(g->graph, &g->scratch, &g->uses, g->err));
  for (uint32_t e = 0; e < n_edges; ++e) {
    if (edges[e].boundary + 1 >= g->n_stages) {
      return opi_fail(g->err, OPIPE_E_INVALID,
                      "tensor '%s' is listed at boundary %u; %u stages have %u", edges[e].tensor,
                      edges[e].boundary, g->n_stages, g->n_stages - 1);
    }
    OPI_TRY(mark_edge(g, &edges[e]));
  }
  return assign(g, out_stage);
}

opipe_status opi_cut_given(const opi_bound *bound, const opi_graph *file_graph,
                           const opi_cut_edge *edges, uint32_t n_edges, uint32_t n_stages,
                           const opipe_allocator *allocator, uint32_t *out_stage_of_node,
                           opipe_error *err) {
  given g = {.bound = bound,
             .graph = bound->graph,
             .file_graph = file_graph,
             .n_stages = n_stages,
             .err = err};
  opi_arena_init(&g.scratch, allocator, 0);
  opipe_status status = opi_map_create(allocator, &g.nodes, err);
  if (status == OPIPE_OK)
    status = cut_given(&g, edges, n_edges, out_stage_of_node);
  opi_map_free(g.nodes);
  opi_arena_release(&g.scratch);
  return status;
}

opipe_status opi_cut_annotated(const opi_graph *graph, uint32_t n_stages,
                               uint32_t *out_stage_of_node, opipe_error *err) {
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    uint32_t latest = 0;
    const char *tensor = "";
    for (uint32_t i = 0; i < node->n_in; ++i) {
      const uint32_t producer =
          node->in[i] == OPIPE_NONE ? OPIPE_NONE : graph->values[node->in[i]].producer;
      if (producer == OPIPE_NONE || out_stage_of_node[producer] < latest)
        continue;
      latest = out_stage_of_node[producer];
      tensor = graph->values[node->in[i]].name;
    }
    if (node->stage >= (int32_t)n_stages) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "node '%s' is annotated with pipeline stage %d, the plan has %u", node->name,
                      node->stage, n_stages);
    }
    if (node->stage >= 0 && (uint32_t)node->stage < latest) {
      return opi_fail(
          err, OPIPE_E_INVALID,
          "node '%s' is annotated with pipeline stage %d, but reads tensor '%s' of stage %u",
          node->name, node->stage, tensor, latest);
    }
    out_stage_of_node[n] = node->stage >= 0 ? (uint32_t)node->stage : latest;
  }
  return OPIPE_OK;
}
