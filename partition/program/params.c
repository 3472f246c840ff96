/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the parameters that a graph's nodes read: values known before any run. */
#include <string.h>

#include "partition/program/build.h"

enum { CONSTANT_MOST_BYTES = 1024 }; /* larger known values stay outside the programs */

bool opi_value_is_known(const opi_value *value) {
  return value->data != NULL || (value->flags & OPI_VALUE_MISSING) != 0;
}

bool opi_value_is_param(const opi_value *value) {
  if (value->n_bytes > CONSTANT_MOST_BYTES || (value->flags & OPI_VALUE_MISSING) != 0)
    return true;
  const uint32_t bits = opi_dtype_bits(value->dtype);
  const bool codes = value->rank >= 2 && bits >= 2 && bits <= 8 && value->dtype != OPIPE_BOOL;
  uint64_t elems = 0;
  return (value->flags & OPI_VALUE_INITIALIZER) != 0 &&
         (codes || opi_dtype_is_float(value->dtype)) &&
         opi_shape_elems(value->shape, (uint32_t)value->rank, &elems) && elems > 1;
}

opipe_param_source opi_param_source_of(const opi_value *value) {
  return (opipe_param_source){.name = value->name,
                              .data = value->data,
                              .shape = value->shape,
                              .n_bytes = value->n_bytes,
                              .dtype = value->dtype,
                              .rank = (uint32_t)value->rank};
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

/* Slot of a parameter in the master's table; OPIPE_NONE: it is missing (folded from dimensions).
 * `next`: after the last one found, for tables that are nearly equal. */
static opipe_status master_slot(opi_cut_builder *b, const opi_value *value, uint32_t next,
                                uint32_t *out_slot) {
  const opi_cut *master = b->source->master;
  const opipe_param_source source = opi_param_source_of(value);
  *out_slot = next;
  if (next < master->n_params && opi_same_source(&master->sources[next], &source))
    return OPIPE_OK;
  if (b->master_slots == NULL) {
    OPI_TRY(opi_map_names(b->scratch.allocator, master->sources, master->n_params,
                          sizeof *master->sources, &b->master_slots, b->err));
  }
  if (!opi_map_get(b->master_slots, source.name, out_slot) ||
      !opi_same_source(&master->sources[*out_slot], &source))
    *out_slot = OPIPE_NONE;
  return OPIPE_OK;
}

static opipe_status add_param(opi_cut_builder *b, uint32_t v, bool trained, uint32_t *io_next) {
  opi_cut *c = b->cut;
  const opi_value *value = &b->graph->values[v];
  if (b->param_of_value[v] != OPIPE_NONE) {
    c->trained[b->param_of_value[v]] = c->trained[b->param_of_value[v]] || trained;
    return OPIPE_OK;
  }
  if (b->source->rows != NULL) {
    b->param_of_value[v] = b->source->rows[v];
    return OPIPE_OK;
  }
  if (b->source->master != NULL) {
    OPI_TRY(master_slot(b, value, *io_next, &b->param_of_value[v]));
    if (b->param_of_value[v] != OPIPE_NONE)
      *io_next = b->param_of_value[v] + 1;
    return OPIPE_OK;
  }
  if (!opi_arena_grow(&c->arena, (void **)&c->sources, &b->room_sources, c->n_params + 1,
                      sizeof *c->sources) ||
      !opi_arena_grow(&c->arena, (void **)&c->trained, &b->room_trained, c->n_params + 1,
                      sizeof(bool)))
    return opi_fail_nomem(b->err, sizeof *c->sources, "a parameter");
  c->sources[c->n_params] = opi_param_source_of(value);
  c->trained[c->n_params] = trained;
  b->param_of_value[v] = c->n_params++;
  return OPIPE_OK;
}

static opipe_status add_trained(opi_cut_builder *b, uint32_t *io_next) {
  const opi_training *t = b->training;
  for (uint32_t p = 0; p < t->n_params; ++p) {
    const opi_train_param *param = &t->params[p];
    if (param->n_gradients == 0 || param->value == OPIPE_NONE)
      continue;
    OPI_TRY(add_param(b, param->value, true, io_next));
    for (uint32_t i = 0; i < param->n_gradients; ++i)
      b->gradient_of_value[param->gradients[i]] = b->param_of_value[param->value];
    if (b->param_of_value[param->value] == OPIPE_NONE) {
      return opi_fail(b->err, OPIPE_E_INTERNAL,
                      "parameter '%s' is trained with one number of rows and not with another",
                      param->name);
    }
  }
  return OPIPE_OK;
}

opipe_status opi_cut_params(opi_cut_builder *b) {
  const opi_graph *g = b->graph;
  const opi_cut *master = b->source->master;
  uint32_t next = 0;
  if (master != NULL) {
    b->cut->sources = master->sources;
    b->cut->trained = master->trained;
    b->cut->parts = master->parts;
    b->cut->n_params = master->n_params;
  }
  for (uint32_t s = 0; b->source->scalars != NULL && s < OPI_SCALAR_TABLE; ++s) {
    if (b->source->scalars[s] != OPIPE_NONE)
      b->scalar_of_value[b->source->scalars[s]] = s;
  }
  if (b->training != NULL)
    OPI_TRY(add_trained(b, &next));
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      if (v != OPIPE_NONE && opi_value_is_known(&g->values[v]) && opi_value_is_param(&g->values[v]))
        OPI_TRY(add_param(b, v, false, &next));
    }
  }
  b->seen_param = opi_cut_table(b, b->cut->n_params);
  return b->seen_param == NULL
             ? opi_fail_nomem(b->err, b->cut->n_params * sizeof(uint32_t), "parameters")
             : OPIPE_OK;
}
