/* SPDX-License-Identifier: Apache-2.0 */
/* See parts.h. The parts are the stages of a plan of their own, each on a rank of its own,
 * predicted as any plan is. A run is the sum of its parts, minus what they share. In tensor groups
 * member 0 counts, which has most. */
#include "partition/memory/parts.h"

#include <string.h>

#include "partition/memory/predict.h"

typedef struct parts {
  const opi_decision *plan; /* its stages are the parts */
  const opi_cut_model *model;
  const opi_memory *memory; /* [n_parts * width] by rank */
  uint32_t **slots;         /* [n_parts] of the parameter table */
  uint32_t *n_slots;        /* [n_parts] */
  uint32_t *slot_seen;      /* [n_params] the run's first part + 1 */
  uint32_t *value_seen;     /* [n_values] the same */
  uint64_t rank_bytes;      /* weights of a rank, independent of its stages */
  uint32_t alignment;
} parts;

/* ---- the plan of parts ---- */

static opipe_status repeat_device(const opi_decision *from, uint32_t rank, uint32_t n,
                                  opi_arena *scratch, opi_decision *plan, opipe_error *err) {
  const uint32_t width = opi_plan_width(from);
  opi_device_spec *devices = OPI_ARENA_ARRAY(scratch, opi_device_spec, (size_t)n * width);
  plan->instance_rank = OPI_ARENA_ARRAY(scratch, uint32_t, n);
  if (devices == NULL || plan->instance_rank == NULL)
    return opi_fail_nomem(err, n * sizeof *devices, "parts of a model");
  for (uint32_t i = 0; i < n * width; ++i)
    devices[i] = from->devices[rank];
  for (uint32_t i = 0; i < n; ++i)
    plan->instance_rank[i] = i * width;
  plan->devices = devices;
  return OPIPE_OK;
}

/* Makes a stage for every part, with F and B on whole micro-batches. */
static opipe_status plan_parts(const opi_decision *from, const opi_parts_place *place,
                               opi_arena *scratch, opi_decision *plan, opipe_error *err) {
  *plan = *from;
  plan->stage_of_node =
      opi_arena_copy(scratch, place->part_of_node, from->n_nodes * sizeof(uint32_t));
  if (plan->stage_of_node == NULL)
    return opi_fail_nomem(err, from->n_nodes * sizeof(uint32_t), "parts of a model");
  plan->n_stages = place->n_parts;
  plan->n_ranks = place->n_parts * opi_plan_width(from);
  plan->n_replicas = 1;
  plan->n_slices = plan->n_parts = 1;
  plan->copies = 0;
  plan->in_turn = false;
  plan->shares = NULL;
  plan->slice_lengths = NULL;
  plan->actions = NULL;
  plan->rank_first = NULL;
  plan->n_actions = 0;
  return repeat_device(from, place->rank, place->n_parts, scratch, plan, err);
}

/* ---- runs ---- */

/* A parameter of several parts is held once: the bytes that a second one would add. */
static uint64_t again_bytes(const parts *p, uint32_t slot) {
  const opi_cut *cut = p->model->cuts[0];
  const uint64_t once = opi_align_up(cut->sources[slot].n_bytes, p->alignment);
  const uint32_t versions = p->plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED ? 2 : 1;
  if (!opi_plan_trains(p->plan))
    return once;
  const uint32_t moments = opi_optimizer_moments(&p->plan->train->optimizer);
  return once * (versions + (cut->trained[slot] ? 1 + moments : 0));
}

static void fill_row(const parts *p, uint32_t from, opi_parts_run *row) {
  const opi_cut *cut = p->model->cuts[0];
  opi_parts_run sum = {.arena_bytes = 0};
  for (uint32_t k = from; k < p->plan->n_stages; ++k) {
    const opi_memory *m = &p->memory[k * p->model->n_members];
    const uint64_t arena = m->activation_bytes + m->workspace_bytes;
    uint64_t own = m->params_bytes + m->gradient_bytes + m->optimizer_bytes + m->version_bytes +
                   m->state_bytes - p->rank_bytes;
    for (uint32_t i = 0; i < p->n_slots[k]; ++i) {
      const uint32_t slot = p->slots[k][i];
      const uint64_t again = p->slot_seen[slot] == from + 1 ? again_bytes(p, slot) : 0;
      own -= again < own ? again : own;
      p->slot_seen[slot] = from + 1;
    }
    const uint32_t n = p->model->n_pieces, first = cut->cell_first[k * n];
    for (uint32_t c = first; c < cut->cell_first[(k + 1) * n]; ++c) {
      const opi_cell *cell = &cut->cells[c];
      if (!cell->stash || cell->stage % p->model->n_members != 0 ||
          p->value_seen[cell->value] == from + 1)
        continue;
      p->value_seen[cell->value] = from + 1;
      sum.stash_bytes += opi_align_up(cell->n_bytes, p->alignment);
    }
    sum.weight_bytes += own;
    sum.arena_bytes = arena > sum.arena_bytes ? arena : sum.arena_bytes;
    row[k + 1] = sum;
  }
}

/* Every rank has room for the norms of all parameters and the state of the loss. */
static uint64_t rank_bytes(const parts *p) {
  const opi_cut *cut = p->model->cuts[0];
  uint64_t n_trained = 0;
  for (uint32_t slot = 0; opi_plan_trains(p->plan) && slot < cut->n_params; ++slot)
    n_trained += cut->trained[slot] ? 1 : 0;
  return n_trained == 0 ? 0 : (n_trained + 1) * opi_align_up(sizeof(double), p->alignment);
}

static opipe_status fill_runs(parts *p, opi_arena *scratch, opi_parts_run *runs, opipe_error *err) {
  const uint32_t n = p->plan->n_stages;
  const opi_cut *cut = p->model->cuts[0];
  p->slots = OPI_ARENA_ARRAY(scratch, uint32_t *, n);
  p->n_slots = OPI_ARENA_ARRAY(scratch, uint32_t, n);
  p->slot_seen = OPI_ARENA_ARRAY(scratch, uint32_t, cut->n_params);
  p->value_seen = OPI_ARENA_ARRAY(scratch, uint32_t, cut->graph->n_values);
  if (p->slots == NULL || p->n_slots == NULL || p->slot_seen == NULL || p->value_seen == NULL)
    return opi_fail_nomem(err, cut->graph->n_values * sizeof(uint32_t), "parts of a model");
  for (uint32_t k = 0; k < n; ++k)
    OPI_TRY(opi_member_params(p->model, k, 0, scratch, &p->slots[k], &p->n_slots[k], err));
  p->rank_bytes = rank_bytes(p);
  for (uint32_t from = 0; from < n; ++from)
    fill_row(p, from, &runs[(size_t)from * (n + 1)]);
  return OPIPE_OK;
}

static opipe_status predict(parts *p, const opi_rank_device *device, opi_arena *scratch,
                            opi_parts_run *runs, opipe_error *err) {
  const uint32_t n = p->plan->n_ranks;
  opi_rank_device *devices = OPI_ARENA_ARRAY(scratch, opi_rank_device, n);
  opi_memory *memory = OPI_ARENA_ARRAY(scratch, opi_memory, n);
  uint64_t *nothing = OPI_ARENA_ARRAY(scratch, uint64_t, n);
  if (devices == NULL || memory == NULL || nothing == NULL)
    return opi_fail_nomem(err, n * sizeof *memory, "parts of a model");
  for (uint32_t k = 0; k < n; ++k)
    devices[k] = *device;
  const opi_lists lists = {.boundary_bytes = nothing, .stash_bytes = nothing};
  OPI_TRY(opi_memory_predict(p->plan, 0, p->model, &lists, NULL, 0, devices, 0, memory, NULL, err));
  p->memory = memory;
  return fill_runs(p, scratch, runs, err);
}

static opipe_status measure(const opi_plan_env *env, const opi_decision *plan,
                            const opi_bound *bound, const opi_rank_device *device,
                            opi_arena *scratch, opi_parts_run *runs, opipe_error *err) {
  const opi_cut_sources from = {
      .plan = plan, .file = env->model, .base = env->bind, .bound = bound};
  opi_cut_model *model = NULL;
  OPI_TRY(opi_cut_model_build(&from, &model, err));
  parts p = {
      .plan = plan, .model = model, .alignment = device->alignment == 0 ? 1 : device->alignment};
  const opipe_status status = predict(&p, device, scratch, runs, err);
  opi_cut_model_free(model);
  return status;
}

opipe_status opi_parts_measure(const opi_plan_env *env, const opi_decision *plan,
                               const opi_bound *bound, const opi_parts_place *place,
                               opi_arena *arena, opi_parts_run **out_runs, opipe_error *err) {
  opi_decision own;
  opi_arena scratch;
  const size_t n = place->n_parts;
  opi_parts_run *runs = OPI_ARENA_ARRAY(arena, opi_parts_run, n * (n + 1));
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = runs == NULL ? opi_fail_nomem(err, n * sizeof *runs, "parts of a model")
                                     : plan_parts(plan, place, &scratch, &own, err);
  if (status == OPIPE_OK)
    status = measure(env, &own, bound, place->device, &scratch, runs, err);
  opi_arena_release(&scratch);
  *out_runs = runs;
  return status;
}
