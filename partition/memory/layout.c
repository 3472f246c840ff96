/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets of every boundary slot, rank by rank: the planner predicts with them, the runtime
 * allocates by them.
 *
 * A produced tensor has one home that its program writes into: the slots of a reader on the same
 * rank if there is one, else, with a transport that writes in place, the slots of its first reader
 * on the other rank, else slots of its own.
 */
#include "partition/memory/layout.h"

enum { SLOTS_MOST = 65536 }; /* OPIPE_DEPTH_MOST of <opipe/streams.h> */

typedef struct build {
  const opi_plan *plan;
  const opi_cut *cut;
  opi_layout *layout;
  bool direct;
  opipe_error *err;
} build;

static uint32_t rank_of(const build *b, uint32_t stage) {
  return opi_plan_rank(b->plan, stage, 0);
}

/* Several stages on a rank may compute all micro-batches of one before the next: then every
 * micro-batch needs a slot. */
uint32_t opi_route_depth(const opi_plan *plan) {
  uint32_t depth = plan->depth == 0 ? 1 : plan->depth;
  if (plan->n_stages > plan->n_ranks && plan->n_microbatches > depth)
    depth = plan->n_microbatches;
  return depth;
}

uint32_t opi_route_slots(const opi_plan *plan, const opi_route *route) {
  const uint32_t skipped = route->dst_stage - route->src_stage - 1;
  const uint64_t least = (uint64_t)(plan->depth == 0 ? 1 : plan->depth) + skipped;
  uint32_t slots = opi_route_depth(plan);
  while (slots < least && slots <= SLOTS_MOST / 2)
    slots *= 2;
  return slots;
}

static opipe_status place(build *b, uint32_t rank, uint64_t n_bytes, uint32_t depth,
                          opi_slot *out_slot) {
  opi_rank_layout *r = &b->layout->ranks[rank];
  uint64_t stride = 0, total = 0;
  if (opi_add_u64(n_bytes, r->alignment - 1, &stride))
    goto overflow;
  stride &= ~(r->alignment - 1);
  if (stride == 0)
    stride = r->alignment;
  if (opi_mul_u64(stride, depth, &total))
    goto overflow;
  *out_slot = (opi_slot){
      .offset_bytes = r->boundary_bytes, .stride_bytes = stride, .rank = rank, .depth = depth};
  if (opi_add_u64(r->boundary_bytes, total, &r->boundary_bytes))
    goto overflow;
  return OPIPE_OK;
overflow:
  return opi_fail(b->err, OPIPE_E_LIMIT, "boundary buffers of rank %u exceed 2^64 bytes", rank);
}

/* The route whose slots the producer writes into, OPIPE_NONE: none. */
uint32_t opi_home_route(const opi_plan *plan, const opi_cut *cut, const opi_cell *cell,
                        bool direct) {
  for (uint32_t r = cell->first_out; r != OPIPE_NONE; r = cut->routes[r].next_out) {
    if (opi_plan_rank(plan, cut->routes[r].dst_stage, 0) == opi_plan_rank(plan, cell->stage, 0))
      return r;
  }
  return direct ? cell->first_out : OPIPE_NONE;
}

/* Of a cell that is received, or made for routes; 1: neither. */
static uint32_t slots_of(const build *b, const opi_cell *cell) {
  uint32_t most = 1;
  if (cell->source == OPI_CELL_RECEIVED)
    return opi_route_slots(b->plan, &b->cut->routes[cell->route]);
  for (uint32_t r = cell->first_out; r != OPIPE_NONE; r = b->cut->routes[r].next_out) {
    const uint32_t slots = opi_route_slots(b->plan, &b->cut->routes[r]);
    most = slots > most ? slots : most;
  }
  return most;
}

/* In the order of the programs' boundaries, inputs before outputs. */
static opipe_status place_stage(build *b, uint32_t s, bool made) {
  const opi_program *program = opi_forward_of(b->cut, s);
  for (uint32_t i = 0; i < program->graph.n_boundaries; ++i) {
    const opi_cell *cell = opi_cell_of(b->cut, program, i);
    opi_slot *slot = &b->layout->cells[program->cells[i]];
    if ((cell->source == OPI_CELL_MADE) != made)
      continue;
    const uint32_t home = made ? opi_home_route(b->plan, b->cut, cell, b->direct) : OPIPE_NONE;
    if (home != OPIPE_NONE) {
      *slot = b->layout->cells[b->cut->routes[home].dst_cell];
      continue;
    }
    OPI_TRY(place(b, rank_of(b, s), cell->n_bytes, slots_of(b, cell), slot));
  }
  return OPIPE_OK;
}

static opipe_status build_all(build *b, const uint64_t *arena_bytes, const uint32_t *alignment) {
  opi_layout *l = b->layout;
  l->n_ranks = b->plan->n_ranks;
  l->ranks = OPI_ARENA_ARRAY(&l->arena, opi_rank_layout, l->n_ranks);
  l->cells = OPI_ARENA_ARRAY(&l->arena, opi_slot, b->cut->n_cells);
  if (l->ranks == NULL || l->cells == NULL)
    return opi_fail_nomem(b->err, b->cut->n_cells * sizeof *l->cells, "a memory layout");
  for (uint32_t r = 0; r < l->n_ranks; ++r)
    l->ranks[r].alignment = alignment[r] == 0 ? 1 : alignment[r];
  for (uint32_t s = 0; s < b->cut->n_stages; ++s) {
    opi_rank_layout *rank = &l->ranks[rank_of(b, s)];
    if (arena_bytes[s] > rank->arena_bytes)
      rank->arena_bytes = arena_bytes[s];
    OPI_TRY(place_stage(b, s, false));
  }
  for (uint32_t s = 0; s < b->cut->n_stages; ++s)
    OPI_TRY(place_stage(b, s, true));
  return OPIPE_OK;
}

opipe_status opi_layout_build(const opi_plan *plan, const opi_cut *cut, const uint64_t *arena_bytes,
                              const uint32_t *alignment, bool direct,
                              const opipe_allocator *allocator, opi_layout **out_layout,
                              opipe_error *err) {
  opi_layout *layout = opi_alloc_zero(allocator, 1, sizeof(*layout));
  if (layout == NULL)
    return opi_fail_nomem(err, sizeof(*layout), "a memory layout");
  opi_arena_init(&layout->arena, allocator, 0);
  build b = {.plan = plan, .cut = cut, .layout = layout, .direct = direct, .err = err};
  const opipe_status status = build_all(&b, arena_bytes, alignment);
  if (status < 0) {
    opi_layout_free(layout);
    return status;
  }
  *out_layout = layout;
  return OPIPE_OK;
}

void opi_layout_free(opi_layout *layout) {
  if (layout == NULL)
    return;
  const opipe_allocator *allocator = layout->arena.allocator;
  opi_arena_release(&layout->arena);
  opi_free(allocator, layout, sizeof(*layout));
}
