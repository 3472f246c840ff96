/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles every stage and adds up: parameters by (slot, layout), the largest arena, the boundary
 * buffers of the layout. Classes of one plan share the parameter table of the first.
 */
#include "partition/memory/predict.h"

#include "partition/memory/estimate.h"
#include "partition/memory/layouts.h"

typedef struct predict {
  const opi_plan *plan;
  const opi_rank_device *devices;
  opi_memory *memory;
  opi_arena scratch;
  opi_layout_set layouts;                /* by rank */
  uint64_t *arena_bytes;                 /* [n_stages] of the class at hand */
  uint64_t *rank_arena, *rank_workspace; /* [n_ranks] of the largest program */
  uint32_t *alignment;                   /* [n_ranks] */
  uint32_t compile_flags;
  bool direct;
  opipe_error *err;
} predict;

static opipe_status beyond(const predict *p, uint32_t rank, const char *what) {
  const opi_backend_ref *backend = p->devices[rank].backend;
  return opi_fail(p->err, OPIPE_E_LIMIT, "rank %u: by backend '%s' its %s exceed 2^64 bytes", rank,
                  backend == NULL ? p->plan->devices[rank].kind : backend->id, what);
}

/* The layouts of the set from the `first` on. */
static opipe_status add_params(predict *p, uint32_t first, uint32_t rank) {
  opi_memory *m = &p->memory[rank];
  for (uint32_t i = first; i < p->layouts.n; ++i) {
    const opipe_param_layout *layout = &p->layouts.list[i].layout;
    const uint64_t n_bytes = opi_align_up(layout->n_bytes, p->alignment[rank]);
    if (opi_add_u64(m->params_bytes, n_bytes, &m->params_bytes) ||
        opi_add_u64(m->mapped_bytes, layout->mapped_bytes, &m->mapped_bytes))
      return beyond(p, rank, "parameters");
  }
  return OPIPE_OK;
}

static opipe_status compile_stage(predict *p, const opi_cut *cut, uint32_t s, uint32_t rank,
                                  opipe_program_info *out_info) {
  const opi_backend_ref *backend = p->devices[rank].backend;
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, stage),
      .flags = p->compile_flags,
      .graph = &opi_forward_of(cut, s)->graph,
      .stage = s};
  opipe_program *program = NULL;
  OPI_TRY(OPI_ASK("backend", backend, compile, p->err, p->devices[rank].device, &params, &program));
  opipe_status status = opi_program_ask(backend, program, out_info, p->err);
  if (status == OPIPE_OK)
    status = opi_layouts_add(&p->layouts, rank, backend, program, false, p->err);
  backend->table->program_free(program);
  return status;
}

static opipe_status estimate_stage(predict *p, const opi_cut *cut, uint32_t s, uint32_t rank,
                                   opipe_program_info *out_info) {
  const opi_program *program = opi_forward_of(cut, s);
  OPI_TRY(opi_estimate_arena(&program->graph, p->alignment[rank], p->scratch.allocator,
                             &out_info->arena_bytes, p->err));
  return opi_layouts_estimate(&p->layouts, rank, cut->sources, program->params, program->n_params,
                              NULL, p->err);
}

static opipe_status predict_stage(predict *p, const opi_cut *cut, uint32_t s) {
  const uint32_t rank = opi_plan_rank(p->plan, s, 0), first = p->layouts.n;
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  OPI_TRY(p->devices[rank].backend == NULL ? estimate_stage(p, cut, s, rank, &info)
                                           : compile_stage(p, cut, s, rank, &info));
  OPI_TRY(add_params(p, first, rank));
  p->arena_bytes[s] = info.arena_bytes;
  const uint64_t arena = opi_align_up(info.arena_bytes, p->alignment[rank]);
  if (arena > p->rank_arena[rank]) {
    p->rank_arena[rank] = arena;
    p->rank_workspace[rank] = info.workspace_bytes;
  }
  return OPIPE_OK;
}

static opipe_status predict_class(predict *p, const opi_cut *cut,
                                  const opipe_allocator *allocator) {
  opi_layout *layout = NULL;
  for (uint32_t s = 0; s < cut->n_stages; ++s)
    OPI_TRY(predict_stage(p, cut, s));
  OPI_TRY(opi_layout_build(p->plan, cut, p->arena_bytes, p->alignment, p->direct, allocator,
                           &layout, p->err));
  opipe_status status = OPIPE_OK;
  for (uint32_t r = 0; r < p->plan->n_ranks && status == OPIPE_OK; ++r) {
    const uint64_t n_bytes = opi_align_up(layout->ranks[r].boundary_bytes, p->alignment[r]);
    if (n_bytes < layout->ranks[r].boundary_bytes ||
        opi_add_u64(p->memory[r].boundary_bytes, n_bytes, &p->memory[r].boundary_bytes))
      status = beyond(p, r, "boundaries");
  }
  opi_layout_free(layout);
  return status;
}

static opipe_status predict_all(predict *p, const opi_cut *const *cuts, uint32_t n_cuts,
                                const opipe_allocator *allocator) {
  const uint32_t n_ranks = p->plan->n_ranks;
  p->arena_bytes = OPI_ARENA_ARRAY(&p->scratch, uint64_t, p->plan->n_stages);
  p->rank_arena = OPI_ARENA_ARRAY(&p->scratch, uint64_t, n_ranks);
  p->rank_workspace = OPI_ARENA_ARRAY(&p->scratch, uint64_t, n_ranks);
  p->alignment = OPI_ARENA_ARRAY(&p->scratch, uint32_t, n_ranks);
  if (p->arena_bytes == NULL || p->rank_arena == NULL || p->rank_workspace == NULL ||
      p->alignment == NULL)
    return opi_fail_nomem(p->err, n_ranks * sizeof(uint64_t), "a prediction");
  OPI_TRY(opi_layouts_begin(&p->layouts, cuts[0]->n_params, &p->scratch, p->err));
  for (uint32_t r = 0; r < n_ranks; ++r) {
    const uint64_t cap = p->plan->devices[r].memory_bytes;
    p->alignment[r] = p->devices[r].alignment == 0 ? 1 : p->devices[r].alignment;
    p->memory[r] = (opi_memory){.cap_bytes = cap == 0 ? UINT64_MAX : cap,
                                .estimated = p->devices[r].backend == NULL};
  }
  for (uint32_t c = 0; c < n_cuts; ++c)
    OPI_TRY(predict_class(p, cuts[c], allocator));
  for (uint32_t r = 0; r < n_ranks; ++r) {
    opi_memory *m = &p->memory[r];
    m->workspace_bytes = p->rank_workspace[r];
    m->activation_bytes = p->rank_arena[r] - p->rank_workspace[r];
    if (opi_add_u64(m->params_bytes, p->rank_arena[r], &m->total_bytes) ||
        opi_add_u64(m->total_bytes, m->boundary_bytes, &m->total_bytes))
      return beyond(p, r, "needs");
  }
  return OPIPE_OK;
}

opipe_status opi_predict(const opi_plan *plan, const opi_cut *const *cuts, uint32_t n_cuts,
                         const opi_rank_device *devices, bool direct, uint32_t compile_flags,
                         const opipe_allocator *allocator, opi_memory *out_memory,
                         opipe_error *err) {
  predict p = {.plan = plan,
               .devices = devices,
               .memory = out_memory,
               .compile_flags = compile_flags,
               .direct = direct,
               .err = err};
  opi_arena_init(&p.scratch, allocator, 0);
  const opipe_status status = predict_all(&p, cuts, n_cuts, allocator);
  opi_arena_release(&p.scratch);
  return status;
}
