/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters: one set per rank, shared by all shapes. All shapes are cut like the plan's own (the
 * master), whose parameter table the set has.
 */
#include "partition/memory/layouts.h"
#include "runtime/compiled/build.h"

/* The shape's k-th program if it runs on the rank, else NULL. */
static opipe_program *program_on(const opi_shape *shape, const opi_rank *rank, uint32_t k) {
  const opi_compiled *t = shape->compiled;
  return t->pieces->instance_rank[k / (t->n_classes * OPI_PROGRAMS)] == rank->index
             ? t->units[k].program
             : NULL;
}

static uint32_t n_programs(const opi_shape *shape) {
  return shape->compiled->n_instances * shape->compiled->n_classes * OPI_PROGRAMS;
}

static opipe_status held_bytes(const opi_rank *rank, uint64_t *out_bytes, opipe_error *err) {
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  OPI_TRY(OPI_ASK_RANK(rank, device_usage, err, rank->device, &usage));
  *out_bytes = usage.live_bytes[OPIPE_BUFFER_PARAMS];
  return OPIPE_OK;
}

/* Makes the layouts that the rank's programs lack. A set does not tell which layouts it holds, so
 * the bytes that are surely missing are charged first, and the rest once the device has counted
 * them. */
static opipe_status prepare_sets(opi_shape *shape, opi_rank *rank, uint64_t need_bytes,
                                 opipe_error *err) {
  uint64_t before = 0, after = 0;
  OPI_TRY(held_bytes(rank, &before, err));
  const uint64_t sure = need_bytes > before ? need_bytes - before : 0;
  OPI_TRY(opi_rank_charge(rank, sure, "the parameters of a session", err));
  for (uint32_t k = 0; k < n_programs(shape); ++k) {
    opipe_program *program = program_on(shape, rank, k);
    if (program == NULL)
      continue;
    const opipe_status status = OPI_ASK_RANK(rank, params_prepare, err, rank->params, program);
    if (status < 0) {
      const opi_compiled *t = shape->compiled;
      const uint32_t per_stage = t->n_classes * OPI_PROGRAMS * t->pieces->n_replicas;
      return opi_error_prefix(err, "rank %u, stage %u: ", rank->index,
                              k / per_stage / t->model->n_pieces);
    }
  }
  OPI_TRY(held_bytes(rank, &after, err));
  const uint64_t made = after > before ? after - before : 0;
  return opi_rank_charge(rank, made > sure ? made - sure : 0, "the parameters of a session", err);
}

/* Sums the device bytes of all layouts that the rank's programs use. */
static opipe_status sum_layouts(const opi_shape *shape, const opi_rank *rank, opi_arena *scratch,
                                uint64_t *out_bytes, opipe_error *err) {
  opi_layout_set set;
  OPI_TRY(opi_layouts_begin(&set, rank->setup->shapes->master->n_params, scratch, err));
  for (uint32_t k = 0; k < n_programs(shape); ++k) {
    const opipe_program *program = program_on(shape, rank, k);
    if (program != NULL)
      OPI_TRY(opi_layouts_add(&set, rank->index, opi_rank_backend(rank), program, false, err));
  }
  *out_bytes = 0;
  for (uint32_t i = 0; i < set.n; ++i)
    *out_bytes += opi_align_up(set.list[i].layout.n_bytes, rank->alignment);
  return OPIPE_OK;
}

static opipe_status prepare_rank(opi_shape *shape, opi_rank *rank, opipe_error *err) {
  uint64_t n_bytes = 0;
  opi_arena scratch;
  opi_arena_init(&scratch, rank->setup->allocator, 0);
  opipe_status status = sum_layouts(shape, rank, &scratch, &n_bytes, err);
  if (status == OPIPE_OK)
    status = prepare_sets(shape, rank, n_bytes, err);
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_shape_params(opi_shape *shape, opipe_error *err) {
  opi_setup *s = shape->setup;
  for (uint32_t i = 0; i < s->n_here; ++i) {
    opi_rank *rank = &s->ranks[s->here[i]];
    if (s->shapes->master->n_params == 0)
      return OPIPE_OK;
    if (rank->params == NULL) {
      OPI_TRY(OPI_MAKE_RANK(rank, params_create, &rank->params, err, rank->device,
                            s->shapes->master->sources, s->shapes->master->n_params));
    }
    OPI_TRY(prepare_rank(shape, rank, err));
  }
  return OPIPE_OK;
}
