/* SPDX-License-Identifier: Apache-2.0 */
/* Bindings: one per (program, places of its tensors, set of weights), found again where places
 * repeat. */
#include <string.h>

#include "runtime/compiled/build.h"

opipe_bind_params opi_unit_params(const opi_compiled *t, const opi_program_unit *unit,
                                  const opi_rank *rank, const opipe_region *regions) {
  const uint32_t arena = t->shape->arena_of_rank[rank->index];
  opipe_bind_params params = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
                              .n_boundaries = unit->cut->graph.n_boundaries,
                              .program = unit->program,
                              .boundaries = regions,
                              .params = rank->params};
  if (arena != OPIPE_NONE) {
    params.arena = (opipe_region){.buffer = rank->arenas[arena].block.buffer,
                                  .n_bytes = rank->arenas[arena].block.n_bytes};
  }
  return params;
}

opipe_status opi_unit_bind(const opi_compiled *t, const opi_program_unit *unit, uint32_t instance,
                           const opipe_region *regions, opipe_binding **out_binding,
                           opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_rank *rank = &s->ranks[t->pieces->instance_rank[instance]];
  const opipe_bind_params params = opi_unit_params(t, unit, rank, regions);
  return opi_rank_bind(rank, opi_whole_instance(t, instance) / s->plan->decided.n_replicas, &params,
                       out_binding, err);
}

uint32_t opi_most_boundaries(const opi_compiled *t) {
  uint32_t most = 1;
  for (uint32_t u = 0; u < t->n_instances * t->n_classes * OPI_PROGRAMS; ++u) {
    const opi_program *cut = t->units[u].cut;
    most = cut != NULL && cut->graph.n_boundaries > most ? cut->graph.n_boundaries : most;
  }
  return most;
}

static opipe_status find_binding(opi_compiled *t, uint32_t instance, uint32_t program,
                                 uint32_t microbatch, uint32_t *out_binding, opipe_error *err) {
  opi_program_unit *unit = opi_unit_at(t, instance, opi_class_at(t, microbatch), program);
  const uint32_t n = unit->program == NULL ? 0 : unit->cut->graph.n_boundaries;
  *out_binding = OPIPE_NONE;
  if (unit->program == NULL)
    return OPIPE_OK;
  for (uint32_t i = 0; i < unit->n_bindings; ++i) {
    uint32_t b = 0;
    while (b < n && unit->bindings[i].key[b] ==
                        opi_cell_region(t, unit->cut->cells[b], microbatch).offset_bytes)
      ++b;
    if (b < n)
      continue;
    *out_binding = i;
    return OPIPE_OK;
  }
  opipe_region *regions = OPI_ARENA_ARRAY(&t->arena, opipe_region, n);
  uint64_t *key = OPI_ARENA_ARRAY(&t->arena, uint64_t, n);
  if (regions == NULL || key == NULL ||
      !opi_arena_grow(&t->arena, (void **)&unit->bindings, &unit->room_bindings,
                      unit->n_bindings + 1, sizeof *unit->bindings))
    return opi_fail_nomem(err, n * sizeof *regions, "a binding");
  *out_binding = unit->n_bindings++;
  opi_unit_binding *binding = &unit->bindings[*out_binding];
  *binding = (opi_unit_binding){.key = key};
  for (uint32_t b = 0; b < n; ++b) {
    regions[b] = opi_cell_region(t, unit->cut->cells[b], microbatch);
    key[b] = regions[b].offset_bytes;
  }
  return t->setup->shapes->kind->bind(t, unit, instance, regions, binding->sets, err);
}

opipe_status opi_bindings_make(opi_compiled *t, opipe_error *err) {
  const opi_lists *lists = t->lists;
  const opi_piece_plan *plan = t->pieces;
  t->binding_of_step = OPI_ARENA_ARRAY(&t->arena, uint32_t, lists->n_steps);
  t->eval_of_step = OPI_ARENA_ARRAY(&t->arena, uint32_t, lists->n_steps);
  t->bound = OPI_ARENA_ARRAY(&t->arena, opipe_binding *, lists->n_steps);
  if (t->binding_of_step == NULL || t->eval_of_step == NULL || t->bound == NULL)
    return opi_fail_nomem(err, lists->n_steps * sizeof(uint32_t), "bindings");
  for (uint32_t i = 0; i < lists->n_steps; ++i) {
    const opi_step *step = &lists->steps[i];
    const uint32_t instance = step->stage * plan->n_replicas + step->replica;
    t->binding_of_step[i] = t->eval_of_step[i] = OPIPE_NONE;
    if (step->kind != OPI_ACT_COMPUTE)
      continue;
    OPI_TRY(find_binding(t, instance, step->pass, step->microbatch, &t->binding_of_step[i], err));
    if (t->binding_of_step[i] != OPIPE_NONE) {
      const opi_program_unit *unit =
          opi_unit_at(t, instance, opi_class_at(t, step->microbatch), step->pass);
      t->bound[i] = unit->bindings[t->binding_of_step[i]].sets[0];
    }
    if (step->pass == OPI_PROGRAM_F) /* inference has no program E, and so no binding */
      OPI_TRY(find_binding(t, instance, OPI_PROGRAM_E, step->microbatch, &t->eval_of_step[i], err));
  }
  return OPIPE_OK;
}
