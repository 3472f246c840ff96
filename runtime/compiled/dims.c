/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures as dimensions and pins for binding a graph, and back.
 *
 * If the loader says that it needs the value of an input, that value becomes part of every later
 * signature, and the binding is tried again with the input pinned.
 */
#include <stdio.h>
#include <string.h>

#include "partition/program/batch.h"
#include "runtime/compiled/build.h"

/* Lists the free dimensions of all inputs with their lengths; the batch has `rows`. */
static opipe_status name_dims(const opi_shape *shape, int64_t rows, opi_arena *scratch,
                              opi_bind_options *options, opipe_error *err) {
  const opi_setup *s = shape->setup;
  opi_dim_binding *dims = OPI_ARENA_ARRAY(scratch, opi_dim_binding, s->n_dims);
  uint32_t n = 0, at = 0;
  char buffer[256];
  if (dims == NULL)
    return opi_fail_nomem(err, s->n_dims * sizeof *dims, "dimensions");
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    const opi_value *value = s->inputs[i].value;
    for (int32_t d = 0; d < value->rank; ++d, ++at) {
      if (value->shape[d] >= 0 || s->inputs[i].labels)
        continue;
      const char *key = opi_batch_dim_key(value, (uint32_t)d, buffer, sizeof buffer);
      const int64_t length = d == s->inputs[i].batch_axis ? rows : shape->dims[at];
      uint32_t k = 0;
      while (k < n && strcmp(dims[k].name, key) != 0)
        ++k;
      if (k < n && dims[k].value == length)
        continue;
      if (k < n) { /* a name with two lengths: the second dimension is named by its place */
        (void)snprintf(buffer, sizeof buffer, "%s.%d", s->inputs[i].name, d);
        key = buffer;
      }
      /* The loader computes an expression over the batch from the batch. */
      if (s->plan->decided.binding.batch_dim != NULL &&
          opi_depends_on_batch(s->plan->decided.binding.batch_dim, key))
        continue;
      dims[n] = (opi_dim_binding){.name = opi_arena_strdup(scratch, key), .value = length};
      if (dims[n++].name == NULL)
        return opi_fail_nomem(err, strlen(key), "dimensions");
    }
  }
  options->dims = dims;
  options->n_dims = n;
  return OPIPE_OK;
}

static opipe_status name_pins(const opi_shape *shape, opi_arena *scratch, opi_bind_options *options,
                              opipe_error *err) {
  const opi_setup *s = shape->setup;
  opi_pin *pins = OPI_ARENA_ARRAY(scratch, opi_pin, shape->n_pins);
  if (pins == NULL)
    return opi_fail_nomem(err, shape->n_pins * sizeof *pins, "pinned inputs");
  for (uint32_t p = 0; p < shape->n_pins; ++p) {
    const uint32_t input = shape->pins[p].input;
    uint32_t at = 0;
    for (uint32_t i = 0; i < input; ++i)
      at += (uint32_t)s->inputs[i].value->rank;
    pins[p] = (opi_pin){.input = s->inputs[input].name,
                        .data = shape->pins[p].data,
                        .shape = &shape->dims[at],
                        .rank = (uint32_t)s->inputs[input].value->rank,
                        .dtype = s->inputs[input].value->dtype};
  }
  options->pins = pins;
  options->n_pins = shape->n_pins;
  return OPIPE_OK;
}

opipe_status opi_shape_name(const opi_shape *shape, int64_t rows, opi_arena *arena,
                            opi_bind_options *out_options, opipe_error *err) {
  OPI_TRY(name_dims(shape, rows, arena, out_options, err));
  return name_pins(shape, arena, out_options, err);
}

/* Reads the plan's signature off its bound graph and its pins. */
opipe_status opi_shape_sign_plan(opi_shape *shape, const opi_graph *g, opipe_error *err) {
  const opi_setup *s = shape->setup;
  uint32_t at = 0;
  shape->dims = OPI_ARENA_ARRAY(&shape->arena, int64_t, s->n_dims);
  shape->pins = OPI_ARENA_ARRAY(&shape->arena, opi_shape_pin, s->n_inputs);
  if (shape->dims == NULL || shape->pins == NULL)
    return opi_fail_nomem(err, s->n_dims * sizeof(int64_t), "a shape signature");
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    const opi_pin *pin = s->inputs[i].pin;
    const int64_t *shape_of = pin == NULL ? NULL : pin->shape; /* may be NULL for rank 0 */
    bool found = pin != NULL && (int32_t)pin->rank == s->inputs[i].value->rank;
    for (uint32_t p = 0; pin == NULL && p < g->n_inputs; ++p) {
      const opi_value *value = &g->values[g->inputs[p]];
      if (strcmp(value->name, s->inputs[i].name) != 0 || value->rank != s->inputs[i].value->rank)
        continue;
      shape_of = value->shape;
      found = true;
    }
    if (!found && !s->inputs[i].labels) {
      return opi_fail(err, OPIPE_E_INTERNAL,
                      "input '%s' of rank %d is neither bound nor pinned by the plan",
                      s->inputs[i].name, s->inputs[i].value->rank);
    }
    if (s->inputs[i].value->rank > 0 && found)
      memcpy(&shape->dims[at], shape_of, (size_t)s->inputs[i].value->rank * sizeof(int64_t));
    at += (uint32_t)s->inputs[i].value->rank;
    if (pin == NULL)
      continue;
    opi_shape_pin *own = &shape->pins[shape->n_pins++];
    own->input = i;
    if (!opi_tensor_bytes(pin->dtype, pin->shape, pin->rank, &own->n_bytes)) {
      return opi_fail(err, OPIPE_E_INVALID, "the plan's value of input '%s' has no size",
                      pin->input);
    }
    own->data = opi_arena_copy(&shape->arena, pin->data, (size_t)own->n_bytes);
    if (own->data == NULL)
      return opi_fail_nomem(err, own->n_bytes, "a pinned input");
  }
  return OPIPE_OK;
}
