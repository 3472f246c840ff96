/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a bound graph apart: for each stage its nodes, the values it reads and makes, and every
 * tensor that crosses as a route.
 *
 * Three passes: (1) find the routes and check that edges go forward; (2) sort them; (3) build each
 * stage's program, numbering boundary slots in the order inputs (first use), then outputs (node
 * order), and tell the routes their slots.
 */
#include "partition/cut/cutting.h"

#include <stdlib.h>
#include <string.h>

enum {
  CONSTANT_MOST_BYTES = 1024
}; /* larger known values are parameters: they stay outside the program */

typedef struct build {
  const opi_graph *graph;
  const uint32_t *stage_of_node;
  opi_cutting *cutting;
  opi_arena scratch;
  uint32_t *param_of_value; /* [n_values] index in the parameter table, OPIPE_NONE */
  uint32_t *local;          /* [n_values] index in the stage under construction, OPIPE_NONE */
  uint32_t room_routes;
  opipe_error *err;
} build;

bool opi_value_is_known(const opi_value *value) {
  return value->data != NULL || (value->flags & OPI_VALUE_MISSING) != 0;
}

bool opi_value_is_param(const opi_value *value) {
  if (value->n_bytes > CONSTANT_MOST_BYTES || (value->flags & OPI_VALUE_MISSING) != 0)
    return true;
  uint64_t elems = 0;
  return (value->flags & OPI_VALUE_INITIALIZER) != 0 && opi_dtype_is_float(value->dtype) &&
         opi_shape_elems(value->shape, (uint32_t)value->rank, &elems) && elems > 1;
}

static uint32_t producer_stage(const build *b, uint32_t value) {
  const uint32_t node = b->graph->values[value].producer;
  return node == OPIPE_NONE ? OPIPE_NONE : b->stage_of_node[node];
}

/* ---- routes ---- */

static opipe_status add_route(build *b, uint32_t value, uint32_t src, uint32_t dst) {
  opi_cutting *c = b->cutting;
  if (!opi_arena_grow(&c->arena, (void **)&c->routes, &b->room_routes, c->n_routes + 1,
                      sizeof(*c->routes))) {
    return opi_fail_nomem(b->err, sizeof(*c->routes), "a route");
  }
  c->routes[c->n_routes++] = (opi_route){.value = value,
                                         .src_stage = src,
                                         .dst_stage = dst,
                                         .src_slot = OPIPE_NONE,
                                         .dst_slot = OPIPE_NONE,
                                         .n_bytes = b->graph->values[value].n_bytes};
  return OPIPE_OK;
}

static opipe_status find_node_routes(build *b, uint32_t node, uint32_t *seen) {
  const opi_graph *g = b->graph;
  const uint32_t stage = b->stage_of_node[node];
  for (uint32_t i = 0; i < g->nodes[node].n_in; ++i) {
    const uint32_t v = g->nodes[node].in[i];
    if (v == OPIPE_NONE || opi_value_is_known(&g->values[v]))
      continue;
    const uint32_t src = producer_stage(b, v);
    if (src == OPIPE_NONE || src == stage || seen[v] == stage)
      continue;
    if (src > stage) {
      return opi_fail(
          b->err, OPIPE_E_INVALID,
          "the cut sends tensor '%s' backwards: stage %u makes it, node '%s' reads it in stage %u",
          g->values[v].name, src, g->nodes[node].name, stage);
    }
    seen[v] = stage;
    OPI_TRY(add_route(b, v, src, stage));
  }
  return OPIPE_OK;
}

static int by_stages(const void *left, const void *right) {
  const opi_route *a = left, *b = right;
  if (a->src_stage != b->src_stage)
    return a->src_stage < b->src_stage ? -1 : 1;
  if (a->dst_stage != b->dst_stage)
    return a->dst_stage < b->dst_stage ? -1 : 1;
  return a->value < b->value ? -1 : a->value > b->value;
}

/* Nodes are visited stage by stage, so that `seen` needs one entry per value only. */
static opipe_status find_routes(build *b) {
  const opi_graph *g = b->graph;
  opi_cutting *c = b->cutting;
  uint32_t *seen = OPI_ARENA_ARRAY(&b->scratch, uint32_t, g->n_values);
  if (seen == NULL)
    return opi_fail_nomem(b->err, g->n_values * sizeof(*seen), "routes");
  memset(seen, 0xff, g->n_values * sizeof(*seen));
  for (uint32_t s = 0; s < c->n_stages; ++s) {
    for (uint32_t i = 0; i < c->stages[s].graph.n_nodes; ++i)
      OPI_TRY(find_node_routes(b, c->stages[s].nodes[i], seen));
  }
  if (c->n_routes > 1)
    qsort(c->routes, c->n_routes, sizeof(*c->routes), by_stages);
  for (uint32_t r = 1; r < c->n_routes; ++r) {
    const bool same = c->routes[r].src_stage == c->routes[r - 1].src_stage &&
                      c->routes[r].dst_stage == c->routes[r - 1].dst_stage;
    c->routes[r].index = same ? c->routes[r - 1].index + 1 : 0;
  }
  return OPIPE_OK;
}

static opi_route *route_of(const build *b, uint32_t value, uint32_t dst_stage) {
  for (uint32_t r = 0; r < b->cutting->n_routes; ++r) {
    opi_route *route = &b->cutting->routes[r];
    if (route->value == value && route->dst_stage == dst_stage)
      return route;
  }
  return NULL;
}

/* ---- nodes and parameters ---- */

static opipe_status count_stages(build *b) {
  const opi_graph *g = b->graph;
  opi_cutting *c = b->cutting;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const uint32_t s = b->stage_of_node[n];
    if (s >= c->n_stages) {
      return opi_fail(b->err, OPIPE_E_INVALID, "node '%s' stands in stage %u of %u",
                      g->nodes[n].name, s, c->n_stages);
    }
    ++c->stages[s].graph.n_nodes;
  }
  for (uint32_t s = 0; s < c->n_stages; ++s) {
    const uint32_t n = c->stages[s].graph.n_nodes;
    c->stages[s].nodes = OPI_ARENA_ARRAY(&c->arena, uint32_t, n);
    if (c->stages[s].nodes == NULL)
      return opi_fail_nomem(b->err, n * sizeof(uint32_t), "a stage");
    c->stages[s].graph.n_nodes = 0;
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    opi_stage *stage = &c->stages[b->stage_of_node[n]];
    stage->nodes[stage->graph.n_nodes++] = n;
  }
  return OPIPE_OK;
}

static opipe_status find_params(build *b) {
  const opi_graph *g = b->graph;
  opi_cutting *c = b->cutting;
  uint32_t room = 0;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      if (v == OPIPE_NONE || !opi_value_is_known(&g->values[v]) ||
          !opi_value_is_param(&g->values[v]))
        continue;
      if (b->param_of_value[v] != OPIPE_NONE)
        continue;
      if (!opi_arena_grow(&c->arena, (void **)&c->params, &room, c->n_params + 1,
                          sizeof(*c->params))) {
        return opi_fail_nomem(b->err, sizeof(*c->params), "a parameter");
      }
      const opi_value *value = &g->values[v];
      c->params[c->n_params] = (opi_param){.value = v,
                                           .source = {.name = value->name,
                                                      .data = value->data,
                                                      .shape = value->shape,
                                                      .n_bytes = value->n_bytes,
                                                      .dtype = value->dtype,
                                                      .rank = (uint32_t)value->rank},
                                           .first_stage = OPIPE_NONE};
      b->param_of_value[v] = c->n_params++;
    }
  }
  c->sources = OPI_ARENA_ARRAY(&c->arena, opipe_param_source, c->n_params);
  if (c->sources == NULL)
    return opi_fail_nomem(b->err, c->n_params * sizeof(*c->sources), "parameters");
  for (uint32_t p = 0; p < c->n_params; ++p)
    c->sources[p] = c->params[p].source;
  return OPIPE_OK;
}

/* ---- one stage's program ---- */

typedef struct stage_build {
  build *b;
  opi_stage *stage;
  uint32_t s;
  opipe_value *values;
  uint32_t *globals; /* [n_values] the bound graph's value of each local one */
  uint32_t room_values, room_globals, room_boundaries, room_params;
} stage_build;

static opipe_status add_boundary(stage_build *sb, opi_boundary boundary, opipe_value *value) {
  opi_stage *stage = sb->stage;
  if (!opi_arena_grow(&sb->b->cutting->arena, (void **)&stage->boundaries, &sb->room_boundaries,
                      stage->graph.n_boundaries + 1, sizeof(*stage->boundaries))) {
    return opi_fail_nomem(sb->b->err, sizeof(boundary), "a boundary");
  }
  value->slot = stage->graph.n_boundaries;
  boundary.n_bytes = value->n_bytes;
  stage->boundaries[stage->graph.n_boundaries++] = boundary;
  return OPIPE_OK;
}

static opipe_status add_param_use(stage_build *sb, uint32_t param) {
  opi_stage *stage = sb->stage;
  opi_param *p = &sb->b->cutting->params[param];
  if (!opi_arena_grow(&sb->b->cutting->arena, (void **)&stage->params, &sb->room_params,
                      stage->n_params + 1, sizeof(*stage->params))) {
    return opi_fail_nomem(sb->b->err, sizeof(param), "a parameter");
  }
  uint32_t at = stage->n_params++;
  for (; at > 0 && stage->params[at - 1] > param; --at)
    stage->params[at] = stage->params[at - 1];
  stage->params[at] = param;
  if (p->first_stage == OPIPE_NONE)
    p->first_stage = sb->s;
  ++p->n_stages;
  return OPIPE_OK;
}

static uint32_t input_port(const opi_graph *g, uint32_t value) {
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    if (g->inputs[i] == value)
      return i;
  }
  return OPIPE_NONE;
}

static uint32_t output_port(const opi_graph *g, uint32_t value) {
  for (uint32_t i = 0; i < g->n_outputs; ++i) {
    if (g->outputs[i] == value)
      return i;
  }
  return OPIPE_NONE;
}

/* Sets role and slot of a value that the stage reads but does not make. */
static opipe_status place_outer(stage_build *sb, uint32_t v, opipe_value *out) {
  const opi_graph *g = sb->b->graph;
  const opi_value *value = &g->values[v];
  if (opi_value_is_known(value)) {
    const uint32_t param = sb->b->param_of_value[v];
    out->role = param == OPIPE_NONE ? OPIPE_VALUE_CONSTANT : OPIPE_VALUE_PARAMETER;
    out->data = param == OPIPE_NONE ? value->data : NULL;
    out->slot = param;
    return param == OPIPE_NONE ? OPIPE_OK : add_param_use(sb, param);
  }
  out->role = OPIPE_VALUE_INPUT;
  if (value->producer == OPIPE_NONE) {
    const uint32_t port = input_port(g, v);
    if (port == OPIPE_NONE)
      return opi_fail(sb->b->err, OPIPE_E_INTERNAL, "tensor '%s' comes from nowhere", value->name);
    return add_boundary(
        sb,
        (opi_boundary){.kind = OPI_BOUNDARY_REQUEST, .value = v, .route = OPIPE_NONE, .port = port},
        out);
  }
  opi_route *route = route_of(sb->b, v, sb->s);
  if (route == NULL)
    return opi_fail(sb->b->err, OPIPE_E_INTERNAL, "tensor '%s' has no route", value->name);
  OPI_TRY(add_boundary(sb,
                       (opi_boundary){.kind = OPI_BOUNDARY_RECEIVED,
                                      .value = v,
                                      .route = (uint32_t)(route - sb->b->cutting->routes),
                                      .port = OPIPE_NONE},
                       out));
  route->dst_slot = out->slot;
  return OPIPE_OK;
}

static opipe_status local_value(stage_build *sb, uint32_t v, bool produced, uint32_t *out_local) {
  build *b = sb->b;
  if (b->local[v] != OPIPE_NONE) {
    *out_local = b->local[v];
    return OPIPE_OK;
  }
  const uint32_t index = sb->stage->graph.n_values;
  opi_arena *arena = &b->cutting->arena;
  if (!opi_arena_grow(arena, (void **)&sb->values, &sb->room_values, index + 1,
                      sizeof(*sb->values)) ||
      !opi_arena_grow(&b->scratch, (void **)&sb->globals, &sb->room_globals, index + 1,
                      sizeof(*sb->globals))) {
    return opi_fail_nomem(b->err, sizeof(*sb->values), "a value");
  }
  const opi_value *value = &b->graph->values[v];
  opipe_value *out = &sb->values[index];
  *out = opi_value_view(value);
  if (!produced)
    OPI_TRY(place_outer(sb, v, out));
  sb->globals[index] = v;
  b->local[v] = index;
  ++sb->stage->graph.n_values;
  *out_local = index;
  return OPIPE_OK;
}

static opipe_status convert_node(stage_build *sb, const opi_node *node, opipe_node *out) {
  opi_arena *arena = &sb->b->cutting->arena;
  uint32_t *in = OPI_ARENA_ARRAY(arena, uint32_t, node->n_in);
  uint32_t *outs = OPI_ARENA_ARRAY(arena, uint32_t, node->n_out);
  if (in == NULL || outs == NULL)
    return opi_fail_nomem(sb->b->err, node->n_in * sizeof(*in), "a node");
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = OPIPE_NONE;
    if (node->in[i] != OPIPE_NONE)
      OPI_TRY(local_value(sb, node->in[i], false, &in[i]));
  }
  for (uint32_t i = 0; i < node->n_out; ++i) {
    outs[i] = OPIPE_NONE;
    if (node->out[i] != OPIPE_NONE)
      OPI_TRY(local_value(sb, node->out[i], true, &outs[i]));
  }
  *out = opi_node_view(node, in, outs);
  return OPIPE_OK;
}

/* Values that leave the stage become OUTPUT boundaries, in node order. */
static opipe_status mark_outputs(stage_build *sb) {
  build *b = sb->b;
  for (uint32_t local = 0; local < sb->stage->graph.n_values; ++local) {
    if (sb->values[local].role != OPIPE_VALUE_TEMP)
      continue;
    const uint32_t v = sb->globals[local];
    const uint32_t port = output_port(b->graph, v);
    uint32_t first = OPIPE_NONE;
    for (uint32_t r = 0; r < b->cutting->n_routes; ++r) {
      opi_route *route = &b->cutting->routes[r];
      if (route->value != v || route->src_stage != sb->s)
        continue;
      if (first == OPIPE_NONE)
        first = r;
      route->src_slot = sb->stage->graph.n_boundaries;
    }
    if (first == OPIPE_NONE && port == OPIPE_NONE)
      continue;
    sb->values[local].role = OPIPE_VALUE_OUTPUT;
    OPI_TRY(add_boundary(
        sb, (opi_boundary){.kind = OPI_BOUNDARY_PRODUCED, .value = v, .route = first, .port = port},
        &sb->values[local]));
    for (uint32_t i = 0; i < b->graph->n_outputs; ++i) {
      if (b->graph->outputs[i] != v)
        continue;
      b->cutting->output_stage[i] = sb->s;
      b->cutting->output_slot[i] = sb->values[local].slot;
    }
  }
  return OPIPE_OK;
}

static opipe_status build_stage(build *b, uint32_t s) {
  opi_stage *stage = &b->cutting->stages[s];
  stage_build sb = {.b = b, .stage = stage, .s = s};
  memset(b->local, 0xff, b->graph->n_values * sizeof(*b->local));
  opipe_node *nodes = OPI_ARENA_ARRAY(&b->cutting->arena, opipe_node, stage->graph.n_nodes);
  if (nodes == NULL)
    return opi_fail_nomem(b->err, stage->graph.n_nodes * sizeof(*nodes), "a stage");
  for (uint32_t i = 0; i < stage->graph.n_nodes; ++i) {
    OPI_TRY(convert_node(&sb, &b->graph->nodes[stage->nodes[i]], &nodes[i]));
    opi_work work = {0, 0};
    opi_node_work(b->graph, &b->graph->nodes[stage->nodes[i]], &work);
    stage->flops += work.flops;
    stage->bytes += work.bytes;
  }
  OPI_TRY(mark_outputs(&sb));
  stage->graph.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars);
  stage->graph.values = sb.values;
  stage->graph.nodes = nodes;
  stage->graph.n_params = b->cutting->n_params;
  return OPIPE_OK;
}

/* Outputs that no node makes: a graph input handed through, or a known value. */
static void place_plain_outputs(build *b) {
  const opi_graph *g = b->graph;
  for (uint32_t i = 0; i < g->n_outputs; ++i) {
    b->cutting->output_stage[i] = OPIPE_NONE;
    b->cutting->output_slot[i] =
        opi_value_is_known(&g->values[g->outputs[i]]) ? OPIPE_NONE : input_port(g, g->outputs[i]);
  }
}

static opipe_status build_all(build *b) {
  opi_cutting *c = b->cutting;
  const uint32_t n_values = b->graph->n_values, n_outputs = b->graph->n_outputs;
  b->param_of_value = OPI_ARENA_ARRAY(&b->scratch, uint32_t, n_values);
  b->local = OPI_ARENA_ARRAY(&b->scratch, uint32_t, n_values);
  c->stages = OPI_ARENA_ARRAY(&c->arena, opi_stage, c->n_stages);
  c->output_stage = OPI_ARENA_ARRAY(&c->arena, uint32_t, n_outputs);
  c->output_slot = OPI_ARENA_ARRAY(&c->arena, uint32_t, n_outputs);
  if (b->param_of_value == NULL || b->local == NULL || c->stages == NULL ||
      c->output_stage == NULL || c->output_slot == NULL) {
    return opi_fail_nomem(b->err, (uint64_t)n_values * sizeof(uint32_t), "a cutting");
  }
  memset(b->param_of_value, 0xff, n_values * sizeof(uint32_t));
  OPI_TRY(count_stages(b));
  OPI_TRY(find_params(b));
  OPI_TRY(find_routes(b));
  place_plain_outputs(b);
  for (uint32_t s = 0; s < c->n_stages; ++s)
    OPI_TRY(build_stage(b, s));
  return OPIPE_OK;
}

opipe_status opi_cutting_build(const opi_graph *graph, const uint32_t *stage_of_node,
                               uint32_t n_stages, const opipe_allocator *allocator,
                               opi_cutting **out_cutting, opipe_error *err) {
  if (n_stages == 0)
    return opi_fail(err, OPIPE_E_INVALID, "a cutting needs at least 1 stage, 0 were asked for");
  opi_cutting *cutting = opi_alloc_zero(allocator, 1, sizeof(*cutting));
  if (cutting == NULL)
    return opi_fail_nomem(err, sizeof(*cutting), "a cutting");
  opi_arena_init(&cutting->arena, allocator, 0);
  cutting->graph = graph;
  cutting->n_stages = n_stages;
  build b = {.graph = graph, .stage_of_node = stage_of_node, .cutting = cutting, .err = err};
  opi_arena_init(&b.scratch, allocator, 0);
  const opipe_status status = build_all(&b);
  opi_arena_release(&b.scratch);
  if (status < 0) {
    opi_cutting_free(cutting);
    return status;
  }
  *out_cutting = cutting;
  return OPIPE_OK;
}

void opi_cutting_free(opi_cutting *cutting) {
  if (cutting == NULL)
    return;
  const opipe_allocator *allocator = cutting->arena.allocator;
  opi_arena_release(&cutting->arena);
  opi_free(allocator, cutting, sizeof(*cutting));
}

bool opi_same_source(const opipe_param_source *a, const opipe_param_source *b) {
  if (strcmp(a->name, b->name) != 0 || a->dtype != b->dtype || a->rank != b->rank ||
      a->n_bytes != b->n_bytes)
    return false;
  if (a->rank > 0 && memcmp(a->shape, b->shape, a->rank * sizeof(int64_t)) != 0)
    return false;
  return a->data == b->data ||
         (a->data != NULL && b->data != NULL && memcmp(a->data, b->data, (size_t)a->n_bytes) == 0);
}
