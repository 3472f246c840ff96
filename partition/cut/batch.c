/* SPDX-License-Identifier: Apache-2.0 */
/* The batch axis by its dimension names. */
#include "partition/cut/batch.h"

#include <stdio.h>
#include <string.h>

const char *opi_batch_dim_key(const opi_value *input, uint32_t axis, char *buffer, size_t room) {
  if (input->dim_names != NULL && input->dim_names[axis] != NULL &&
      input->dim_names[axis][0] != '\0') {
    return input->dim_names[axis];
  }
  (void)snprintf(buffer, room, "%s.%u", input->name, axis);
  return buffer;
}

bool opi_is_batch_dim(const char *batch_dim, const char *key) {
  const size_t n = strlen(key);
  for (const char *at = batch_dim; at != NULL && *at != '\0';) {
    const char *end = strchr(at, ',');
    const size_t length = end == NULL ? strlen(at) : (size_t)(end - at);
    if (length == n && memcmp(at, key, n) == 0)
      return true;
    at += length + (end != NULL);
  }
  return false;
}

int32_t opi_batch_axis(const opi_model *model, const char *batch_dim, uint32_t index) {
  const opi_value *input = &model->graph->values[model->graph->inputs[index]];
  char buffer[256];
  for (int32_t d = 0; d < input->rank; ++d) {
    if (opi_is_batch_dim(batch_dim, opi_batch_dim_key(input, (uint32_t)d, buffer, sizeof(buffer))))
      return d;
  }
  return -1;
}

static bool find_dim(const opi_dim_binding *dims, uint32_t n_dims, const char *key,
                     int64_t *out_value) {
  for (uint32_t i = 0; i < n_dims; ++i) {
    if (strcmp(dims[i].name, key) != 0)
      continue;
    *out_value = dims[i].value;
    return true;
  }
  return false;
}

const char *opi_find_batch(const opi_model *model, const opi_dim_binding *dims, uint32_t n_dims,
                           opi_arena *arena, int64_t *out_rows) {
  const char *names = NULL;
  char buffer[256];
  for (uint32_t i = 0; i < model->graph->n_inputs; ++i) {
    const opi_value *input = &model->graph->values[model->graph->inputs[i]];
    int64_t rows = 0;
    if (input->rank < 1)
      continue;
    const char *key = opi_batch_dim_key(input, 0, buffer, sizeof(buffer));
    if (!find_dim(dims, n_dims, key, &rows))
      continue;
    if (names == NULL) {
      names = opi_arena_strdup(arena, key);
      *out_rows = rows;
    } else if (rows == *out_rows && !opi_is_batch_dim(names, key) && strchr(key, '.') != NULL) {
      names = opi_arena_printf(arena, "%s,%s", names, key);
    }
    if (names == NULL)
      return NULL;
  }
  return names;
}

opi_dim_binding *opi_batch_bind(const opi_dim_binding *dims, uint32_t n_dims, const char *batch_dim,
                                int64_t rows, opi_arena *arena) {
  opi_dim_binding *copy = opi_arena_copy(arena, dims, n_dims * sizeof(*dims));
  if (copy == NULL)
    return NULL;
  for (uint32_t i = 0; i < n_dims; ++i) {
    if (opi_is_batch_dim(batch_dim, copy[i].name))
      copy[i].value = rows;
  }
  return copy;
}
