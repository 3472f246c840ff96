/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles every stage and adds up: parameters by (name, layout), the largest arena, the boundary
 * buffers of the layout. Classes of one plan share parameters by name; their tables may list them
 * in another order, so names are compared.
 */
#include "partition/memory/predict.h"

#include <string.h>

/* One layout of a parameter on one rank; those of a parameter form a list. */
typedef struct counted {
  uint64_t key;
  uint32_t rank;
  uint32_t next; /* index + 1, 0: the last */
} counted;

typedef struct predict {
  const opi_plan *plan;
  const opi_rank_device *devices;
  const opi_cut *table; /* whose parameters the sets hold: the first class */
  opi_memory *memory;
  opi_arena scratch;
  opi_map *slots; /* of the table by name, for other cuts; NULL: not made yet */
  counted *seen;
  uint32_t *first_seen; /* [n_params of the table] index + 1, 0: none */
  uint32_t n_seen, room_seen;
  uint64_t *arena_bytes;                 /* [n_stages] of the class at hand */
  uint64_t *rank_arena, *rank_workspace; /* [n_ranks] of the largest program */
  uint32_t *alignment;                   /* [n_ranks] */
  uint32_t compile_flags;
  bool direct;
  opipe_error *err;
} predict;

static bool is_counted(const predict *p, uint32_t slot, uint64_t key, uint32_t rank) {
  for (uint32_t i = p->first_seen[slot]; i != 0; i = p->seen[i - 1].next) {
    if (p->seen[i - 1].rank == rank && p->seen[i - 1].key == key)
      return true;
  }
  return false;
}

/* Parameters are those of the first class; a known value that only another class has (folded from
 * its dimensions) becomes a constant of its programs: OPIPE_NONE. */
static opipe_status find_slot(predict *p, const opi_cut *cut, uint32_t slot, uint32_t *out_slot) {
  *out_slot = slot;
  if (cut == p->table)
    return OPIPE_OK;
  if (p->slots == NULL)
    OPI_TRY(opi_map_names(p->scratch.allocator, p->table->sources, p->table->n_params,
                          sizeof *p->table->sources, &p->slots, p->err));
  if (!opi_map_get(p->slots, cut->sources[slot].name, out_slot) ||
      !opi_same_source(&p->table->sources[*out_slot], &cut->sources[slot]))
    *out_slot = OPIPE_NONE;
  return OPIPE_OK;
}

static opipe_status beyond(const predict *p, uint32_t rank, const char *what) {
  return opi_fail(p->err, OPIPE_E_LIMIT, "rank %u: by backend '%s' its %s exceed 2^64 bytes", rank,
                  p->devices[rank].backend->id, what);
}

static opipe_status add_params(predict *p, const opi_cut *cut, const opipe_program *program,
                               uint32_t rank) {
  opipe_param_layout *list = NULL;
  uint32_t count = 0;
  OPI_TRY(opi_layouts_ask(p->devices[rank].backend, program, cut->n_params, false, &p->scratch,
                          &list, &count, p->err));
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t slot = OPIPE_NONE;
    OPI_TRY(find_slot(p, cut, list[i].slot, &slot));
    if (slot == OPIPE_NONE || is_counted(p, slot, list[i].key, rank))
      continue;
    if (!opi_arena_grow(&p->scratch, (void **)&p->seen, &p->room_seen, p->n_seen + 1,
                        sizeof(*p->seen))) {
      return opi_fail_nomem(p->err, sizeof(*p->seen), "parameter layouts");
    }
    p->seen[p->n_seen] = (counted){.key = list[i].key, .rank = rank, .next = p->first_seen[slot]};
    p->first_seen[slot] = ++p->n_seen;
    const uint64_t n_bytes = opi_align_up(list[i].n_bytes, p->alignment[rank]);
    opi_memory *m = &p->memory[rank];
    if (opi_add_u64(m->params_bytes, n_bytes, &m->params_bytes) ||
        opi_add_u64(m->mapped_bytes, list[i].mapped_bytes, &m->mapped_bytes))
      return beyond(p, rank, "parameters");
  }
  return OPIPE_OK;
}

static opipe_status predict_stage(predict *p, const opi_cut *cut, uint32_t s) {
  const uint32_t rank = opi_plan_rank(p->plan, s, 0);
  const opi_backend_ref *backend = p->devices[rank].backend;
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, stage),
      .flags = p->compile_flags,
      .graph = &opi_forward_of(cut, s)->graph,
      .stage = s};
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  opipe_program *program = NULL;
  OPI_TRY(OPI_ASK("backend", backend, compile, p->err, p->devices[rank].device, &params, &program));
  opipe_status status = opi_program_ask(backend, program, &info, p->err);
  if (status == OPIPE_OK)
    status = add_params(p, cut, program, rank);
  backend->table->program_free(program);
  if (status < 0)
    return status;
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
  p->first_seen = OPI_ARENA_ARRAY(&p->scratch, uint32_t, p->table->n_params);
  if (p->arena_bytes == NULL || p->rank_arena == NULL || p->rank_workspace == NULL ||
      p->alignment == NULL || p->first_seen == NULL) {
    return opi_fail_nomem(p->err, n_ranks * sizeof(uint64_t), "a prediction");
  }
  for (uint32_t r = 0; r < n_ranks; ++r) {
    const uint64_t cap = p->plan->devices[r].memory_bytes;
    p->alignment[r] = p->devices[r].alignment == 0 ? 1 : p->devices[r].alignment;
    p->memory[r] = (opi_memory){.cap_bytes = cap == 0 ? UINT64_MAX : cap};
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
               .table = cuts[0],
               .devices = devices,
               .memory = out_memory,
               .compile_flags = compile_flags,
               .direct = direct,
               .err = err};
  opi_arena_init(&p.scratch, allocator, 0);
  const opipe_status status = predict_all(&p, cuts, n_cuts, allocator);
  opi_map_free(p.slots);
  opi_arena_release(&p.scratch);
  return status;
}
