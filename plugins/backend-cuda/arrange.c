/* SPDX-License-Identifier: Apache-2.0 */
/* Where values lie: storages by role, lifetimes by step, offsets in the arena slot, and which
 * parameters are wanted.
 *
 * Offsets: largest first, each into the lowest gap among those that live at the same time. Sizes
 * are exact; nothing here depends on addresses.
 */
#include <stdlib.h>

#include "ops/rule.h"

enum { ZONE_BYTES = CUDA_ALIGN }; /* on either side of a value, with OPIPE_COMPILE_POISON */

static void place_by_role(opipe_program *program, uint32_t v) {
  static const uint8_t kinds[] = {
      [OPIPE_VALUE_TEMP] = CUDA_PLACE_ARENA,      [OPIPE_VALUE_CONSTANT] = CUDA_PLACE_CONSTANT,
      [OPIPE_VALUE_PARAMETER] = CUDA_PLACE_PARAM, [OPIPE_VALUE_INPUT] = CUDA_PLACE_BOUNDARY,
      [OPIPE_VALUE_OUTPUT] = CUDA_PLACE_BOUNDARY, [OPIPE_VALUE_STATE] = CUDA_PLACE_NONE,
      [OPIPE_VALUE_SCALAR] = CUDA_PLACE_SCALAR,   [OPIPE_VALUE_GRADIENT] = CUDA_PLACE_GRADIENT};
  const opipe_value *value = &program->graph->values[v];
  cuda_storage *storage = &program->storages[v];
  storage->n_bytes = cuda_stored_bytes(program, v);
  storage->first = UINT32_MAX;
  if (storage->kind == CUDA_PLACE_NONE) { /* else a view of it is an output */
    storage->kind = kinds[value->role];
    storage->slot = value->slot;
    storage->key = CUDA_LAYOUT_OWN;
  }
}

static void touch(cuda_storage *storage, uint32_t step) {
  if (storage->first == UINT32_MAX)
    storage->first = step;
  storage->last = step;
}

/* Lifetimes, and results that are written over an operand that nobody reads any more. */
static void find_lifetimes(opipe_program *program) {
  for (const cuda_step *step = program->steps; step != NULL; step = step->next) {
    for (const cuda_patch *patch = step->patches; patch != NULL; patch = patch->next) {
      if (patch->value < program->graph->n_values)
        touch(&program->storages[cuda_root(program, patch->value)], step->index);
    }
  }
  for (const cuda_step *step = program->steps; step != NULL; step = step->next) {
    if (step->overwrites == OPIPE_NONE)
      continue;
    const uint32_t from = cuda_root(program, step->overwrites);
    const uint32_t to = cuda_root(program, step->result);
    cuda_storage *old = &program->storages[from], *fresh = &program->storages[to];
    if (from == to || old->kind != CUDA_PLACE_ARENA || fresh->kind != CUDA_PLACE_ARENA ||
        old->last != step->index || fresh->first != step->index || old->n_bytes != fresh->n_bytes)
      continue;
    program->alias[to] = from;
    old->last = fresh->last;
    fresh->kind = CUDA_PLACE_NONE;
  }
}

static int by_size(const void *a, const void *b) {
  const cuda_storage *x = *(const cuda_storage *const *)a, *y = *(const cuda_storage *const *)b;
  if (x->n_bytes != y->n_bytes)
    return x->n_bytes > y->n_bytes ? -1 : 1;
  return (x > y) - (x < y);
}

static int by_offset(const void *a, const void *b) {
  const cuda_storage *x = *(const cuda_storage *const *)a, *y = *(const cuda_storage *const *)b;
  return (x->offset > y->offset) - (x->offset < y->offset);
}

/* placed [n]: those that have an offset; live [n]: scratch */
static void place_one(cuda_storage *storage, cuda_storage *const *placed, uint32_t n,
                      cuda_storage **live) {
  uint32_t n_live = 0;
  uint64_t at = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (placed[i]->first <= storage->last && storage->first <= placed[i]->last)
      live[n_live++] = placed[i];
  }
  qsort(live, n_live, sizeof live[0], by_offset);
  for (uint32_t i = 0; i < n_live; ++i) {
    if (live[i]->offset >= at + storage->n_bytes)
      break;
    const uint64_t end = live[i]->offset + live[i]->n_bytes;
    at = end > at ? end : at;
  }
  storage->offset = at;
}

static opipe_status place_arena(opipe_program *program, opipe_error *err) {
  const uint32_t n_values = program->graph->n_values;
  const uint64_t zones = (program->flags & OPIPE_COMPILE_POISON) != 0 ? 2 * ZONE_BYTES : 0;
  uint32_t n = 0;
  cuda_storage **order = CUDA_POOL_ARRAY(&program->pool, cuda_storage *, 2 * (uint64_t)n_values);
  if (order == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory to place %u values", n_values);
  for (uint32_t v = 0; v < n_values; ++v) {
    cuda_storage *storage = &program->storages[v];
    if (program->alias[v] != v || storage->kind != CUDA_PLACE_ARENA || storage->first == UINT32_MAX)
      continue;
    storage->n_bytes = cuda_align_up(storage->n_bytes) + zones;
    order[n++] = storage;
  }
  qsort(order, n, sizeof order[0], by_size);
  for (uint32_t i = 0; i < n; ++i) {
    place_one(order[i], order, i, order + n_values);
    const uint64_t end = order[i]->offset + order[i]->n_bytes;
    program->temp_bytes = end > program->temp_bytes ? end : program->temp_bytes;
  }
  return OPIPE_OK;
}

/* Constants that a kernel reads are copied into the arena slot when a run begins. */
static void place_constants(opipe_program *program) {
  uint64_t at = 0;
  for (uint32_t v = 0; v < program->graph->n_values; ++v) {
    cuda_storage *storage = &program->storages[v];
    if (program->alias[v] != v || storage->kind != CUDA_PLACE_CONSTANT ||
        storage->first == UINT32_MAX)
      continue;
    storage->offset = program->block_bytes + at;
    at += cuda_align_up(storage->n_bytes);
  }
  program->constant_bytes = at;
}

static void shift_arena(opipe_program *program) {
  const uint64_t zone = (program->flags & OPIPE_COMPILE_POISON) != 0 ? ZONE_BYTES : 0;
  for (uint32_t v = 0; v < program->graph->n_values; ++v) {
    if (program->storages[v].kind == CUDA_PLACE_ARENA)
      program->storages[v].offset += program->block_bytes + program->constant_bytes + zone;
  }
}

/* The parameter that a touched value is a rounded copy of, whose key is noted; else the value. */
static uint32_t read_as(const opipe_program *program, uint32_t role, uint32_t value,
                        uint8_t *io_rounded) {
  const uint32_t param = role == OPIPE_VALUE_PARAMETER && program->matched.rounded != NULL
                             ? program->matched.rounded[value]
                             : OPIPE_NONE;
  const cuda_storage *storage = &program->storages[value];
  if (param == OPIPE_NONE)
    return value;
  if (storage->first != UINT32_MAX)
    io_rounded[storage->slot] |= (uint8_t)(1u << storage->key);
  return param;
}

/* A program that trains holds each parameter that a node reads and each gradient that a node makes,
 * even if no step touches them: a member of a tensor group that has no rows has no steps, but the
 * same masters and accumulators as the others. */
static bool is_held(const opipe_program *program, uint32_t value, uint32_t role) {
  return value != OPIPE_NONE && (program->flags & OPIPE_COMPILE_OWNED) != 0 &&
         program->graph->values[value].role == role;
}

/* Marks values that a step touches, and those that are held without one. */
static opipe_status mark_used(opipe_program *program, bool **out, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  bool *used = CUDA_POOL_ARRAY(&program->pool, bool, graph->n_values);
  *out = used;
  if (used == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory to mark %u values", graph->n_values);
  for (uint32_t v = 0; v < graph->n_values; ++v)
    used[v] = program->storages[v].first != UINT32_MAX;
  for (uint32_t k = 0; k < graph->n_nodes; ++k) {
    const opipe_node *node = &graph->nodes[k];
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (is_held(program, node->in[i], OPIPE_VALUE_PARAMETER))
        used[node->in[i]] = true;
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
      if (is_held(program, node->out[i], OPIPE_VALUE_GRADIENT))
        used[node->out[i]] = true;
    }
  }
  return OPIPE_OK;
}

/* One layout per used parameter of the role, by rising slot; of a half type in an owned set a
 * second, its master; and its rounded copies. */
static opipe_status collect(opipe_program *program, uint32_t role, const bool *used,
                            cuda_layout **out, uint32_t *n, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  uint32_t *seen = CUDA_POOL_ARRAY(&program->pool, uint32_t, graph->n_params);
  uint8_t *rounded = CUDA_POOL_ARRAY(&program->pool, uint8_t, graph->n_params);
  *out = CUDA_POOL_ARRAY(&program->pool, cuda_layout, CUDA_LAYOUTS * (uint64_t)graph->n_params);
  if (seen == NULL || rounded == NULL || *out == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u parameters", graph->n_params);
  for (uint32_t i = 0; i < graph->n_values; ++i) {
    const uint32_t v = read_as(program, role, i, rounded);
    const opipe_value *value = &graph->values[v];
    if (value->role != role || !used[i])
      continue;
    if (seen[value->slot] != 0 && (graph->values[seen[value->slot] - 1].n_bytes != value->n_bytes ||
                                   graph->values[seen[value->slot] - 1].dtype != value->dtype)) {
      return opipe_fail(err, OPIPE_E_INVALID, "parameter %u has two types or shapes, as '%.80s'",
                        value->slot, value->name);
    }
    seen[value->slot] = v + 1;
  }
  for (uint32_t slot = 0; slot < graph->n_params; ++slot) {
    if (seen[slot] == 0)
      continue;
    (*out)[(*n)++] = (cuda_layout){slot, CUDA_LAYOUT_OWN, seen[slot] - 1};
    if ((program->flags & OPIPE_COMPILE_OWNED) != 0 &&
        cuda_is_half(graph->values[seen[slot] - 1].dtype))
      (*out)[(*n)++] = (cuda_layout){slot, CUDA_LAYOUT_F32, seen[slot] - 1};
    for (uint32_t key = CUDA_LAYOUT_BF16; key <= CUDA_LAYOUT_F16; ++key) {
      if (((uint32_t)rounded[slot] >> key & 1u) != 0)
        (*out)[(*n)++] = (cuda_layout){slot, key, seen[slot] - 1};
    }
  }
  return OPIPE_OK;
}

opipe_status cuda_arrange(opipe_program *program, opipe_error *err) {
  uint64_t scratch = 0;
  for (uint32_t v = 0; v < program->graph->n_values; ++v)
    place_by_role(program, v);
  find_lifetimes(program);
  for (const cuda_step *step = program->steps; step != NULL; step = step->next)
    scratch = step->workspace_bytes > scratch ? step->workspace_bytes : scratch;
  program->has_block |= (program->flags & OPIPE_COMPILE_POISON) != 0;
  program->block_bytes = program->has_counters ? cuda_align_up(sizeof(cuda_run_block))
                         : program->has_block  ? cuda_align_up(offsetof(cuda_run_block, counters))
                                               : 0;
  place_constants(program);
  CUDA_TRY(place_arena(program, err));
  shift_arena(program);
  program->workspace_bytes =
      program->block_bytes + program->constant_bytes + program->kept_bytes + cuda_align_up(scratch);
  program->arena_bytes = program->temp_bytes + program->workspace_bytes;
  bool *used = NULL;
  CUDA_TRY(mark_used(program, &used, err));
  CUDA_TRY(
      collect(program, OPIPE_VALUE_PARAMETER, used, &program->layouts, &program->n_layouts, err));
  return collect(program, OPIPE_VALUE_GRADIENT, used, &program->gradients, &program->n_gradients,
                 err);
}
