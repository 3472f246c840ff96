/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters: one set per rank, shared by all shapes. All shapes are cut like the plan's own (the
 * master), whose parameter table the set has.
 */
#include "partition/memory/layouts.h"
#include "partition/program/packed.h"
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

/* ---- parts ---- */

/* Takes memory for the parts that the rank packs. */
static opipe_status take_packed(opi_rank *rank, uint64_t n_bytes, char **out_data,
                                opipe_error *err) {
  void *data = NULL;
  *out_data = NULL;
  if (n_bytes == 0)
    return OPIPE_OK;
  if ((rank->device_flags & OPIPE_DEVICE_HOST_MEMORY) != 0) {
    OPI_TRY(opi_rank_take(rank, n_bytes, OPIPE_BUFFER_PARAMS, "parts of a session's parameters",
                          &rank->packed, err));
    OPI_TRY(opi_buffer_host(rank, rank->packed.buffer, &data, err));
    *out_data = data;
    return OPIPE_OK;
  }
  if (n_bytes <= SIZE_MAX)
    rank->packed_host = opi_alloc(rank->setup->allocator, (size_t)n_bytes);
  if (rank->packed_host == NULL)
    return opi_fail_nomem(err, n_bytes, "parts of a session's parameters");
  rank->packed_host_bytes = n_bytes;
  *out_data = rank->packed_host;
  return OPIPE_OK;
}

/* Gives the rank sources of its own: it packs the parts that its programs read, from the file, and
 * has nothing of the other members' rows. */
static opipe_status pack_parts(const opi_shape *shape, opi_rank *rank, opi_arena *scratch,
                               opipe_error *err) {
  static const int64_t none[] = {0};
  const opi_cut *master = rank->setup->shapes->master;
  const uint32_t n = master->n_params;
  bool *rows = OPI_ARENA_ARRAY(scratch, bool, n);
  opipe_param_source *sources =
      opi_arena_copy(&rank->setup->arena, master->sources, n * sizeof *sources);
  char *data = NULL;
  if (rows == NULL || sources == NULL)
    return opi_fail_nomem(err, n * sizeof *sources, "parameters");
  const uint64_t n_bytes =
      opi_packed_find(shape->compiled->model, rank->index, rank->alignment, rows);
  OPI_TRY(take_packed(rank, n_bytes, &data, err));
  for (uint32_t i = 0; i < n; ++i) {
    opipe_param_source *source = &sources[i];
    if (rows[i]) {
      opi_part_pack(master->parts[i], data);
      source->data = data;
      data += opi_align_up(source->n_bytes, rank->alignment);
    } else if (source->data == NULL && source->n_bytes != 0 && master->parts[i] != NULL) {
      source->shape = none;
      source->rank = 1;
      source->n_bytes = 0;
    }
  }
  rank->sources = sources;
  return OPIPE_OK;
}

/* The shape's programs may read no part that the first shape's did not. */
static opipe_status check_parts(const opi_shape *shape, const opi_rank *rank, opi_arena *scratch,
                                opipe_error *err) {
  const opi_cut *master = rank->setup->shapes->master;
  bool *rows = OPI_ARENA_ARRAY(scratch, bool, master->n_params);
  if (rows == NULL)
    return opi_fail_nomem(err, master->n_params, "parameters");
  (void)opi_packed_find(shape->compiled->model, rank->index, rank->alignment, rows);
  for (uint32_t i = 0; i < master->n_params; ++i) {
    if (rows[i] && rank->sources[i].data == NULL) {
      return opi_fail(err, OPIPE_E_INTERNAL, "rank %u has no part of parameter '%s'", rank->index,
                      master->sources[i].name);
    }
  }
  return OPIPE_OK;
}

static opipe_status find_parts(const opi_shape *shape, opi_rank *rank, opipe_error *err) {
  opi_arena scratch;
  opi_arena_init(&scratch, rank->setup->allocator, 0);
  const opipe_status status = rank->sources == NULL ? pack_parts(shape, rank, &scratch, err)
                                                    : check_parts(shape, rank, &scratch, err);
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_shape_sources(opi_shape *shape, opipe_error *err) {
  opi_setup *s = shape->setup;
  for (uint32_t i = 0; s->shapes->master->parts != NULL && i < s->n_here; ++i)
    OPI_TRY(find_parts(shape, &s->ranks[s->here[i]], err));
  return OPIPE_OK;
}

static opipe_status make_set(opi_rank *rank, opipe_error *err) {
  const opi_cut *master = rank->setup->shapes->master;
  return rank->params != NULL
             ? OPIPE_OK
             : OPI_MAKE_RANK(rank, params_create, &rank->params, err, rank->device,
                             rank->sources != NULL ? rank->sources : master->sources,
                             master->n_params);
}

static opipe_status prepare_rank(opi_shape *shape, opi_rank *rank, opipe_error *err) {
  uint64_t n_bytes = 0;
  opi_arena scratch;
  opi_arena_init(&scratch, rank->setup->allocator, 0);
  opipe_status status = make_set(rank, err);
  if (status == OPIPE_OK)
    status = sum_layouts(shape, rank, &scratch, &n_bytes, err);
  if (status == OPIPE_OK)
    status = prepare_sets(shape, rank, rank->packed.n_bytes + n_bytes, err);
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_shape_params(opi_shape *shape, opipe_error *err) {
  opi_setup *s = shape->setup;
  OPI_TRY(opi_shape_sources(shape, err));
  for (uint32_t i = 0; i < s->n_here; ++i) {
    opi_rank *rank = &s->ranks[s->here[i]];
    if (s->shapes->master->n_params == 0)
      return OPIPE_OK;
    OPI_TRY(prepare_rank(shape, rank, err));
  }
  return OPIPE_OK;
}
