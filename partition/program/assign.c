/* SPDX-License-Identifier: Apache-2.0 */
/* Carries a plan's stages over to another binding of the same model (another shape). Nodes are
 * identified by the name of their first output. Names that the library generates (also of folded
 * constants) end in a counter, which may differ between shapes: nodes that are equal but for such
 * counters are identified by their position. Fusion or folding may differ between shapes, so a node
 * without a key goes to the latest stage of its producers. */
#include "partition/program/assign.h"

#include <string.h>

/* The first n characters without "_NUMBER" at their end. */
static size_t stem_length(const char *name, size_t n) {
  size_t at = n;
  while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9')
    --at;
  return at == n || at < 2 || name[at - 1] != '_' ? n : at - 1;
}

/* The start of the mark of recomputed values; the name's end: there is none. */
static size_t mark_at(const char *name) {
  static const char mark[] = "/again";
  const size_t length = strlen(name), n = stem_length(name, length), m = sizeof mark - 1;
  return n >= m && memcmp(name + n - m, mark, m) == 0 ? n - m : length;
}

bool opi_is_again(const char *name) {
  return name[mark_at(name)] != '\0';
}

bool opi_same_stem(const char *a, const char *b) {
  const size_t a_mark = mark_at(a), b_mark = mark_at(b), n = stem_length(a, a_mark);
  return n == stem_length(b, b_mark) && memcmp(a, b, n) == 0 &&
         (a[a_mark] == '\0') == (b[b_mark] == '\0');
}

/* Whether the graph's nodes are the plan's, one by one. */
static bool same_nodes(const opi_decision *plan, const opi_graph *graph) {
  if (plan->n_nodes != graph->n_nodes)
    return false;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    if (!opi_same_stem(plan->node_keys[n], opi_node_key(graph, &graph->nodes[n])))
      return false;
  }
  return true;
}

static uint32_t latest_producer(const opi_graph *graph, const opi_node *node,
                                const uint32_t *stage_of_node) {
  uint32_t stage = 0;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    const uint32_t producer = graph->values[node->in[i]].producer;
    if (producer != OPIPE_NONE && stage_of_node[producer] > stage)
      stage = stage_of_node[producer];
  }
  return stage;
}

opipe_status opi_plan_assign(const opi_decision *plan, const opi_graph *graph,
                             const opipe_allocator *allocator, uint32_t *out_stage_of_node,
                             opipe_error *err) {
  opi_map *keys = NULL;
  if (same_nodes(plan, graph)) {
    memcpy(out_stage_of_node, plan->stage_of_node, plan->n_nodes * sizeof *out_stage_of_node);
    return OPIPE_OK;
  }
  OPI_TRY(opi_map_create(allocator, &keys, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t n = 0; n < plan->n_nodes && status == OPIPE_OK; ++n)
    status = opi_map_set(keys, plan->node_keys[n], plan->stage_of_node[n], err);
  for (uint32_t n = 0; n < graph->n_nodes && status == OPIPE_OK; ++n) {
    const uint32_t floor = latest_producer(graph, &graph->nodes[n], out_stage_of_node);
    uint32_t stage = floor;
    if (opi_map_get(keys, opi_node_key(graph, &graph->nodes[n]), &stage) && stage < floor)
      stage = floor;
    out_stage_of_node[n] = stage;
  }
  opi_map_free(keys);
  return status;
}

/* The first node from `from` on with this key or, if there is none, with its stem. */
static uint32_t find_node(const opi_graph *graph, uint32_t from, const char *key) {
  uint32_t alike = OPIPE_NONE;
  for (uint32_t n = from; n < graph->n_nodes; ++n) {
    const char *own = opi_node_key(graph, &graph->nodes[n]);
    if (strcmp(own, key) == 0)
      return n;
    if (alike == OPIPE_NONE && opi_same_stem(own, key))
      alike = n;
  }
  return alike;
}

opipe_status opi_cut_behind(const opi_graph *graph, const char *const *ends, uint32_t n_stages,
                            uint32_t *out_stage_of_node, opipe_error *err) {
  uint32_t next = 0;
  for (uint32_t s = 0; s + 1 < n_stages; ++s) {
    const uint32_t end = find_node(graph, next, ends[s]);
    if (end == OPIPE_NONE) {
      return opi_fail(
          err, OPIPE_E_INVALID,
          "stage %u ends with '%.80s'; the model has no such node behind stage %u: is it "
          "another one?",
          s, ends[s], s == 0 ? 0 : s - 1);
    }
    while (next <= end)
      out_stage_of_node[next++] = s;
  }
  while (next < graph->n_nodes)
    out_stage_of_node[next++] = n_stages - 1;
  return OPIPE_OK;
}
