/* SPDX-License-Identifier: Apache-2.0 */
/* A graph input that becomes an initializer: models whose parameters are fed from outside. */
#include <string.h>

#include "loader/base/nearest.h"
#include "loader/wire/wire.h"

static opipe_status not_found(const opi_graph *g, const char *name, opipe_error *err) {
  char meant[OPI_NEAREST_ROOM];
  opi_nearest nearest = {.word = name, .n = strlen(name)};
  opi_text text;
  opi_text_init(&text, g->arena->allocator);
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    opi_text_printf(&text, "%s'%s'", i == 0 ? "" : ", ", g->values[g->inputs[i]].name);
    opi_nearest_look(&nearest, g->values[g->inputs[i]].name);
  }
  const opipe_status status = opi_fail(
      err, OPIPE_E_NOTFOUND, "the model has no input '%s' to be a parameter; it has %.240s%s", name,
      text.data == NULL ? "none" : text.data, opi_nearest_words(&nearest, meant, sizeof meant));
  opi_text_release(&text);
  return status;
}

static opipe_status check(const opi_value *input, const opi_replacement *value, opipe_error *err) {
  char have[128], want[128];
  uint64_t n_bytes = 0;
  bool fits = input->rank < 0 || input->rank == (int32_t)value->rank;
  for (uint32_t d = 0; fits && input->rank >= 0 && d < value->rank; ++d)
    fits = input->shape[d] < 0 || input->shape[d] == value->shape[d];
  if (!fits) {
    return opi_fail(err, OPIPE_E_INVALID, "input '%s' has shape %s, its value as a parameter %s",
                    value->name,
                    opi_shape_text(want, sizeof want, input->shape, (uint32_t)input->rank),
                    opi_shape_text(have, sizeof have, value->shape, value->rank));
  }
  if (input->dtype != OPIPE_UNDEFINED && input->dtype != value->dtype) {
    return opi_fail(err, OPIPE_E_INVALID, "input '%s' is of %s, its value as a parameter of %s",
                    value->name, opi_dtype_name(input->dtype), opi_dtype_name(value->dtype));
  }
  if (!opi_tensor_bytes(value->dtype, value->shape, value->rank, &n_bytes) ||
      n_bytes != value->n_bytes) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "parameter '%s': %llu bytes, its shape and type make %llu", value->name,
                    (unsigned long long)value->n_bytes, (unsigned long long)n_bytes);
  }
  return OPIPE_OK;
}

opipe_status opi_model_promote(opi_model *model, const opi_replacement *value, bool borrow,
                               opipe_error *err) {
  opi_graph *g = model->graph;
  uint32_t i = 0;
  while (i < g->n_inputs && strcmp(g->values[g->inputs[i]].name, value->name) != 0)
    ++i;
  if (i == g->n_inputs)
    return not_found(g, value->name, err);
  opi_value *input = &g->values[g->inputs[i]];
  OPI_TRY(check(input, value, err));
  int64_t *shape = opi_arena_copy(&model->arena, value->shape, value->rank * sizeof *shape);
  const void *data = borrow && value->n_bytes != 0
                         ? value->data
                         : opi_arena_copy(&model->arena, value->data, (size_t)value->n_bytes);
  if (shape == NULL || data == NULL)
    return opi_fail_nomem(err, value->n_bytes, value->name);
  input->shape = shape;
  input->rank = (int32_t)value->rank;
  input->dim_names = NULL;
  input->dtype = value->dtype;
  input->data = data;
  input->n_bytes = value->n_bytes;
  input->flags = (input->flags & ~(uint32_t)OPI_VALUE_INPUT) | OPI_VALUE_INITIALIZER |
                 OPI_VALUE_PROMOTED | OPI_VALUE_BORROWED;
  for (; i + 1 < g->n_inputs; ++i)
    g->inputs[i] = g->inputs[i + 1];
  --g->n_inputs;
  return OPIPE_OK;
}
