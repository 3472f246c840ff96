/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets of every boundary slot, rank by rank: the planner predicts with them, the runtime
 * allocates by them.
 *
 * A produced tensor has one home that its program writes into: the slots of a reader on the same
 * rank if there is one, else, with a transport that writes in place, the slots of its first reader
 * on the other rank, else slots of its own.
 */
#include "partition/memory/layout.h"

#include <string.h>

typedef struct build {
  const opi_plan *plan;
  const opi_cutting *cutting;
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

bool opi_devices_shared(const opi_backend_ref *backends, const opi_device_spec *devices,
                        uint32_t n_ranks) {
  for (uint32_t r = 0; r < n_ranks; ++r) {
    opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
    if (opi_device_ask(&backends[r], devices[r].index, &info, NULL) < 0 ||
        (info.flags & OPIPE_DEVICE_HOST_MEMORY) == 0 ||
        strcmp(backends[r].id, backends[0].id) != 0) {
      return false;
    }
  }
  return true;
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

static opipe_status place_inputs(build *b, uint32_t s) {
  const opi_stage *stage = &b->cutting->stages[s];
  const uint32_t rank = rank_of(b, s);
  for (uint32_t i = 0; i < stage->graph.n_boundaries; ++i) {
    const opi_boundary *boundary = &stage->boundaries[i];
    opi_slot *slot = &b->layout->boundaries[s][i];
    if (boundary->kind == OPI_BOUNDARY_RECEIVED) {
      OPI_TRY(place(b, rank, boundary->n_bytes, opi_route_depth(b->plan), slot));
      b->layout->routes[boundary->route] = *slot;
    } else if (boundary->kind == OPI_BOUNDARY_REQUEST) {
      OPI_TRY(place(b, rank, boundary->n_bytes, 1, slot));
    }
  }
  return OPIPE_OK;
}

/* The route whose slots the producer writes into, OPIPE_NONE: none. */
uint32_t opi_home_route(const opi_plan *plan, const opi_cutting *cutting, uint32_t stage,
                        uint32_t slot, bool direct) {
  uint32_t home = OPIPE_NONE;
  for (uint32_t r = 0; r < cutting->n_routes; ++r) {
    const opi_route *route = &cutting->routes[r];
    if (route->src_stage != stage || route->src_slot != slot)
      continue;
    if (opi_plan_rank(plan, route->dst_stage, 0) == opi_plan_rank(plan, stage, 0))
      return r;
    if (direct && home == OPIPE_NONE)
      home = r;
  }
  return home;
}

static opipe_status place_outputs(build *b, uint32_t s) {
  const opi_stage *stage = &b->cutting->stages[s];
  for (uint32_t i = 0; i < stage->graph.n_boundaries; ++i) {
    const opi_boundary *boundary = &stage->boundaries[i];
    if (boundary->kind != OPI_BOUNDARY_PRODUCED)
      continue;
    opi_slot *slot = &b->layout->boundaries[s][i];
    const uint32_t home = opi_home_route(b->plan, b->cutting, s, i, b->direct);
    if (home != OPIPE_NONE) {
      *slot = b->layout->routes[home];
      continue;
    }
    const uint32_t depth = boundary->route == OPIPE_NONE ? 1 : opi_route_depth(b->plan);
    OPI_TRY(place(b, rank_of(b, s), boundary->n_bytes, depth, slot));
  }
  return OPIPE_OK;
}

static opipe_status build_all(build *b, const uint64_t *arena_bytes, const uint32_t *alignment) {
  opi_layout *l = b->layout;
  l->n_ranks = b->plan->n_ranks;
  l->n_stages = b->cutting->n_stages;
  l->ranks = OPI_ARENA_ARRAY(&l->arena, opi_rank_layout, l->n_ranks);
  l->routes = OPI_ARENA_ARRAY(&l->arena, opi_slot, b->cutting->n_routes);
  l->boundaries = OPI_ARENA_ARRAY(&l->arena, opi_slot *, l->n_stages);
  if (l->ranks == NULL || l->routes == NULL || l->boundaries == NULL)
    return opi_fail_nomem(b->err, 0, "a memory layout");
  for (uint32_t r = 0; r < l->n_ranks; ++r)
    l->ranks[r].alignment = alignment[r] == 0 ? 1 : alignment[r];
  for (uint32_t s = 0; s < l->n_stages; ++s) {
    opi_rank_layout *rank = &l->ranks[rank_of(b, s)];
    l->boundaries[s] =
        OPI_ARENA_ARRAY(&l->arena, opi_slot, b->cutting->stages[s].graph.n_boundaries);
    if (l->boundaries[s] == NULL)
      return opi_fail_nomem(b->err, 0, "a memory layout");
    if (arena_bytes[s] > rank->arena_bytes)
      rank->arena_bytes = arena_bytes[s];
    OPI_TRY(place_inputs(b, s));
  }
  for (uint32_t s = 0; s < l->n_stages; ++s)
    OPI_TRY(place_outputs(b, s));
  return OPIPE_OK;
}

opipe_status opi_layout_build(const opi_plan *plan, const opi_cutting *cutting,
                              const uint64_t *arena_bytes, const uint32_t *alignment, bool direct,
                              const opipe_allocator *allocator, opi_layout **out_layout,
                              opipe_error *err) {
  opi_layout *layout = opi_alloc_zero(allocator, 1, sizeof(*layout));
  if (layout == NULL)
    return opi_fail_nomem(err, sizeof(*layout), "a memory layout");
  opi_arena_init(&layout->arena, allocator, 0);
  build b = {.plan = plan, .cutting = cutting, .layout = layout, .direct = direct, .err = err};
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
