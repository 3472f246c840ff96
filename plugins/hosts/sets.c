/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes of a graph can become one.
 *
 * Every node gets a level: behind one that is not taken it rises by one where it meets one that is.
 * Then whatever leaves the taken nodes of a level, and meets taken ones again, meets them on a
 * higher level.
 */
#include <opipe/helpers.h>
#include <stdlib.h>
#include <string.h>

#include "hosts.h"

bool host_has_bodies(const opipe_build_node *node) {
  for (uint32_t i = 0; i < node->n_attrs; ++i) {
    if (node->attrs[i].kind == OPIPE_ATTR_GRAPH)
      return true;
  }
  return false;
}

bool host_makes(const opipe_build_node *node, const char *name) {
  for (uint32_t i = 0; i < node->n_outputs; ++i) {
    if (strcmp(node->outputs[i], name) == 0)
      return true;
  }
  return false;
}

bool host_is_shape(const opipe_build_graph *g, int32_t i) {
  const opipe_build_value *in = i < 0 || (uint32_t)i >= g->n_inputs ? NULL : &g->inputs[i];
  const opipe_dtype_row *row = in == NULL ? NULL : opipe_dtype_row_of(in->dtype);
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    if (host_has_bodies(&g->nodes[n]))
      return false;
  }
  return row != NULL && in->rank >= 0 && in->rank <= 1 &&
         (row->dl == OPIPE_DL_INT || row->dl == OPIPE_DL_UINT || row->dl == OPIPE_DL_BOOL);
}

/* Itself, or in a body. */
static bool reads(const opipe_build_node *node, const opipe_build_node *from) {
  for (uint32_t i = 0; i < node->n_inputs; ++i) {
    if (node->inputs[i][0] != '\0' && host_makes(from, node->inputs[i]))
      return true;
  }
  for (uint32_t i = 0; i < node->n_attrs; ++i) {
    const opipe_build_graph *body =
        node->attrs[i].kind == OPIPE_ATTR_GRAPH ? node->attrs[i].data : NULL;
    for (uint32_t k = 0; body != NULL && k < body->n_nodes; ++k) {
      if (reads(&body->nodes[k], from))
        return true;
    }
  }
  return false;
}

uint32_t host_levels(const opipe_build_graph *g, const bool *taken, uint32_t *out_levels) {
  uint32_t highest = 0;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    out_levels[n] = 0;
    for (uint32_t from = 0; from < n; ++from) {
      const uint32_t at = out_levels[from] + (taken[n] && !taken[from] ? 1 : 0);
      if (at > out_levels[n] && reads(&g->nodes[n], &g->nodes[from]))
        out_levels[n] = at;
    }
    highest = out_levels[n] > highest ? out_levels[n] : highest;
  }
  return highest;
}

void host_drop_values(const opipe_build_graph *g, bool of_inputs, uint32_t *io_n) {
  opipe_build_value *values = (opipe_build_value *)(uintptr_t)(of_inputs ? g->inputs : g->outputs);
  uint32_t n = 0;
  for (uint32_t i = 0; i < *io_n; ++i) {
    bool drop = values[i].name[0] == '\0';
    for (uint32_t t = 0; !drop && of_inputs && t < g->n_tensors; ++t)
      drop = strcmp(g->tensors[t].name, values[i].name) == 0;
    for (uint32_t k = 0; !drop && of_inputs && k < g->n_nodes; ++k)
      drop = host_makes(&g->nodes[k], values[i].name);
    for (uint32_t k = 0; !drop && k < n; ++k)
      drop = strcmp(values[k].name, values[i].name) == 0;
    if (!drop)
      values[n++] = values[i];
  }
  *io_n = n;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const opipe_build_tensor *)a)->name, ((const opipe_build_tensor *)b)->name);
}

void host_sort_tensors(opipe_build_tensor *tensors, size_t n) {
  if (n > 1)
    qsort(tensors, n, sizeof *tensors, by_name);
}
