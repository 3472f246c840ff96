/* SPDX-License-Identifier: Apache-2.0 */
/* Names of a file -> values of the graph under construction.
 *
 * Each name is made once in its scope. A subgraph may read what the graphs around it have: the
 * value is then captured, level by level. A function's body sees its arguments only. In the graph
 * every value of the whole model has a name of its own, so that inlining a subgraph can never
 * confuse two.
 */
#include "loader/wire/wire.h"

#include <stdio.h>
#include <string.h>

opipe_status opi_scope_open(opi_scope *scope, opi_load *load, opi_graph *graph, opi_scope *outer,
                            opipe_error *err) {
  *scope = (opi_scope){.load = load,
                       .graph = graph,
                       .outer = outer,
                       .prefix = "",
                       .source = OPIPE_NONE,
                       .stage = -1};
  if (load->n_scopes >= OPI_WIRE_MAX_SCOPES) {
    return opi_fail(err, OPIPE_E_LIMIT, "functions and subgraphs nest deeper than %d",
                    OPI_WIRE_MAX_SCOPES);
  }
  OPI_TRY(opi_map_create(load->allocator, &scope->names, err));
  ++load->n_scopes;
  if (outer != NULL) {
    scope->call = outer->call;
    scope->prefix = outer->prefix;
    scope->source = outer->source;
    scope->stage = outer->stage;
  }
  return OPIPE_OK;
}

void opi_scope_close(opi_scope *scope) {
  if (scope->names == NULL)
    return;
  opi_map_free(scope->names);
  opi_map_free(scope->promised);
  scope->names = scope->promised = NULL;
  --scope->load->n_scopes;
}

opipe_status opi_scope_unique(opi_load *load, opi_map *taken, const char *prefix, const char *name,
                              const char **out_name, opipe_error *err) {
  const char *wanted = prefix[0] == '\0' ? opi_arena_strdup(load->arena, name)
                                         : opi_arena_printf(load->arena, "%s%s", prefix, name);
  if (wanted == NULL)
    return opi_fail_nomem(err, strlen(prefix) + strlen(name) + 1, "a name");
  const uint32_t n_taken = opi_map_count(taken);
  uint32_t count = 0, unused = 0;
  *out_name = wanted;
  OPI_TRY(opi_map_claim(taken, wanted, 0, &count, err));
  if (opi_map_count(taken) != n_taken)
    return OPIPE_OK;
  do {
    *out_name = opi_arena_printf(load->arena, "%s__%u", wanted, ++count);
    if (*out_name == NULL)
      return opi_fail_nomem(err, strlen(wanted) + 16, "a name");
  } while (opi_map_get(taken, *out_name, &unused));
  OPI_TRY(opi_map_set(taken, wanted, count, err));
  return opi_map_keep(taken, *out_name, 0, err);
}

/* A value that has a place in the scope under `name`, with a name of its own in the model. */
static opipe_status add_value(opi_scope *scope, const char *name, uint32_t *out_value,
                              opipe_error *err) {
  const char *unique = NULL;
  OPI_TRY(opi_scope_unique(scope->load, scope->load->taken, scope->prefix, name, &unique, err));
  const uint32_t value = opi_graph_add_value(scope->graph, unique, OPIPE_UNDEFINED, NULL, -1);
  if (value == OPIPE_NONE)
    return opi_fail_nomem(err, sizeof(opi_value), "a value");
  *out_value = value;
  if (strcmp(unique, name) == 0)
    return opi_map_keep(scope->names, unique, value, err);
  return opi_map_set(scope->names, name, value, err);
}

/* The format forbids an inner name that stands outside too, and exporters write it: results of a
 * branch that are called as the node around it calls its own. Inside, the inner one is meant. */
static void warn_shadow(opi_scope *scope, const char *name) {
  uint32_t unused = 0;
  const opi_scope *at = scope->outer;
  while (at != NULL && !opi_map_get(at->names, name, &unused))
    at = at->outer;
  if (at == NULL || !opi_load_first(scope->load, OPI_WARNED_SHADOW))
    return;
  opi_log(scope->load->logger, OPIPE_LOG_WARN,
          "'%.200s' in subgraph '%.100s' hides a value of the same name outside of it", name,
          scope->graph->name);
}

opipe_status opi_scope_define(opi_scope *scope, const char *name, uint32_t *out_value,
                              opipe_error *err) {
  uint32_t value = OPIPE_NONE;
  if (opi_map_get(scope->names, name, &value)) {
    return opi_fail(
        err, OPIPE_E_INVALID, "'%.200s' is made twice in graph '%.200s'", name,
        scope->call != NULL ? opi_wire_text(scope->call->function->name) : scope->graph->name);
  }
  if (scope->promised != NULL && opi_map_get(scope->promised, name, &value)) {
    opi_map_remove(scope->promised, name);
    *out_value = value;
    return opi_map_set(scope->names, name, value, err);
  }
  warn_shadow(scope, name);
  return add_value(scope, name, out_value, err);
}

static opipe_status add_capture(opi_scope *scope, const char *name, uint32_t outer_value,
                                uint32_t *out_value, opipe_error *err) {
  opi_graph *graph = scope->graph;
  const opi_value *outer = &scope->outer->graph->values[outer_value];
  uint32_t room = graph->room_captures, value = OPIPE_NONE;
  const uint32_t need = graph->n_captures + 1;
  OPI_TRY(add_value(scope, name, &value, err));
  if (!opi_arena_grow(graph->arena, (void **)&graph->capture_inner, &room, need, 4) ||
      !opi_arena_grow(graph->arena, (void **)&graph->capture_outer, &graph->room_captures, need, 4))
    return opi_fail_nomem(err, 8 * (uint64_t)need, "captured names");
  opi_value *inner = &graph->values[value];
  inner->dtype = outer->dtype;
  inner->rank = outer->rank;
  inner->shape = outer->shape;
  inner->dim_names = outer->dim_names;
  inner->flags = outer->flags & OPI_VALUE_SEQUENCE;
  graph->capture_inner[graph->n_captures] = value;
  graph->capture_outer[graph->n_captures] = outer_value;
  ++graph->n_captures;
  *out_value = value;
  return OPIPE_OK;
}

opipe_status opi_scope_find(opi_scope *scope, const char *name, uint32_t *out_value,
                            opipe_error *err) {
  uint32_t outer_value = OPIPE_NONE;
  *out_value = OPIPE_NONE;
  if (name[0] == '\0' || opi_map_get(scope->names, name, out_value))
    return OPIPE_OK;
  if (scope->outer == NULL)
    return OPIPE_E_NOTFOUND;
  OPI_TRY(opi_scope_find(scope->outer, name, &outer_value, err));
  /* An absent argument of the function around is absent here too. */
  if (outer_value == OPIPE_NONE)
    return opi_map_set(scope->names, name, OPIPE_NONE, err);
  return add_capture(scope, name, outer_value, out_value, err);
}
