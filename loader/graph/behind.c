/* SPDX-License-Identifier: Apache-2.0 */
/* Names of parameters -> initializers of the file graph. */
#include "loader/graph/behind.h"

#include <string.h>

static const opi_value *find_value(const opi_graph *graph, const char *name) {
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if (strcmp(graph->values[v].name, name) == 0)
      return &graph->values[v];
  }
  return NULL;
}

const opi_value *opi_initializer_behind(const opi_graph *graph, const char *name) {
  const opi_value *found = opi_graph_initializer(graph, name);
  const opi_value *value = found == NULL ? find_value(graph, name) : NULL;
  while (found == NULL && value != NULL && value->producer != OPIPE_NONE) {
    const opi_node *node = &graph->nodes[value->producer];
    const bool same = strcmp(node->op, "Identity") == 0 && node->n_in == 1;
    value = same && node->in[0] != OPIPE_NONE ? &graph->values[node->in[0]] : NULL;
    if (value != NULL && (value->flags & OPI_VALUE_INITIALIZER) != 0)
      found = value;
  }
  return found;
}
