/* SPDX-License-Identifier: Apache-2.0 */
/* The batch axis by its dimension names. */
#include "partition/program/batch.h"

#include <stdio.h>
#include <string.h>

const char *opi_batch_dim_key(const opi_value *input, uint32_t axis, char *buffer, size_t room) {
  if (input->dim_names != NULL && input->dim_names[axis] != NULL &&
      input->dim_names[axis][0] != '\0')
    return input->dim_names[axis];
  (void)snprintf(buffer, room, "%s.%u", input->name, axis);
  return buffer;
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

static bool is_word(char c) {
  return c == '_' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
         (c >= 'A' && c <= 'Z');
}

bool opi_depends_on_batch(const char *batch_dim, const char *key) {
  char word[128];
  if (batch_dim == NULL || strpbrk(key, "+-*/") == NULL)
    return false;
  for (const char *at = key; *at != '\0';) {
    size_t n = 0;
    while (is_word(at[n]))
      ++n;
    if (n != 0 && n < sizeof word) {
      memcpy(word, at, n);
      word[n] = '\0';
      if (opi_is_batch_dim(batch_dim, word))
        return true;
    }
    at += n == 0 ? 1 : n;
  }
  return false;
}

opi_dim_binding *opi_batch_bind(const opi_dim_binding *dims, uint32_t *io_n_dims,
                                const char *batch_dim, int64_t rows, opi_arena *arena) {
  opi_dim_binding *copy = OPI_ARENA_ARRAY(arena, opi_dim_binding, *io_n_dims);
  uint32_t n = 0;
  for (uint32_t i = 0; copy != NULL && i < *io_n_dims; ++i) {
    if (opi_depends_on_batch(batch_dim, dims[i].name))
      continue; /* follows from the rows */
    copy[n] = dims[i];
    if (opi_is_batch_dim(batch_dim, copy[n].name))
      copy[n].value = rows;
    ++n;
  }
  *io_n_dims = n;
  return copy;
}
