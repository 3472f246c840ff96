/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that an exporter merged, found in the file graph.
 *
 * TorchScript's exporter makes one initializer of parameters that are equal while nothing is
 * trained (fresh norms, zero biases, layers that were copied) and leaves an Identity under the name
 * of each other one. An Identity under any other name means what it says: one tensor, read twice.
 */
#include <string.h>

#include "loader/passes/keep.h"

static const char *leaf_of(const char *name) {
  const char *dot = strrchr(name, '.');
  return dot != NULL ? dot + 1 : NULL;
}

static bool is_parameter_name(const char *name) {
  return strchr(name, '.') != NULL && !opi_name_is_made(name);
}

/* All numbers are one, as those of fresh norms and biases are. */
static bool is_uniform(const opi_value *value) {
  const uint64_t size = opi_dtype_bits(value->dtype) / 8;
  const uint8_t *bytes = value->data;
  return bytes != NULL && size != 0 && value->n_bytes > size &&
         memcmp(bytes, bytes + size, (size_t)(value->n_bytes - size)) == 0;
}

/* Last parts of the names that layers gave to initializers: "weight", "bias". */
static opipe_status list_leaves(const opi_graph *file, opi_map *leaves, opipe_error *err) {
  for (uint32_t v = 0; v < file->n_values; ++v) {
    const opi_value *value = &file->values[v];
    if ((value->flags & OPI_VALUE_INITIALIZER) != 0 && is_parameter_name(value->name))
      OPI_TRY(opi_map_set(leaves, leaf_of(value->name), 1, err));
  }
  return OPIPE_OK;
}

static opipe_status find(const opi_graph *file, const opi_map *leaves, const uint32_t *n_readers,
                         opi_map *merged, opipe_error *err) {
  uint32_t unused = 0;
  for (uint32_t n = 0; n < file->n_nodes; ++n) {
    const opi_node *node = &file->nodes[n];
    const uint32_t in = opi_node_in(node, 0), out = opi_node_out(node, 0);
    if (strcmp(node->op, "Identity") != 0 || node->domain[0] != '\0' || in == OPIPE_NONE ||
        out == OPIPE_NONE)
      continue;
    const opi_value *from = &file->values[in], *to = &file->values[out];
    if ((from->flags & OPI_VALUE_INITIALIZER) == 0 || !opi_dtype_is_float(from->dtype) ||
        (to->flags & OPI_VALUE_OUTPUT) != 0 || n_readers[in] < 2 || !is_parameter_name(to->name))
      continue;
    if (opi_map_get(leaves, leaf_of(to->name), &unused) || is_uniform(from))
      OPI_TRY(opi_map_set(merged, to->name, 1, err));
  }
  return OPIPE_OK;
}

opipe_status opi_find_merged(const opi_graph *file, opi_arena *scratch, opi_map *merged,
                             opipe_error *err) {
  opi_map *leaves = NULL;
  uint32_t *n_readers = OPI_ARENA_ARRAY(scratch, uint32_t, file->n_values);
  if (n_readers == NULL)
    return opi_fail_nomem(err, (uint64_t)file->n_values * 4, "readers of values");
  for (uint32_t n = 0; n < file->n_nodes; ++n) {
    for (uint32_t i = 0; i < file->nodes[n].n_in; ++i) {
      if (file->nodes[n].in[i] != OPIPE_NONE)
        ++n_readers[file->nodes[n].in[i]];
    }
  }
  OPI_TRY(opi_map_create(scratch->allocator, &leaves, err));
  opipe_status status = list_leaves(file, leaves, err);
  if (status >= 0)
    status = find(file, leaves, n_readers, merged, err);
  opi_map_free(leaves);
  return status;
}
