/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a shape: a boundary buffer of its own on every rank, and the rank's arena, which all
 * shapes share. A shape that needs a larger arena gets a new one; the old one goes when the last
 * shape bound to it goes. Everything is charged to the budget before it is taken.
 */
#include "runtime/state.h"

static opipe_status charge(opi_rank *rank, uint64_t n_bytes, const char *what, opipe_error *err) {
  const opi_session *s = rank->session;
  if (s->env.budget == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_budget_charge(s->env.budget, s->env.backends[rank->index].id,
                            s->plan->devices[rank->index].index, n_bytes, what, err));
  rank->charged_bytes += n_bytes;
  return OPIPE_OK;
}

static void release(opi_rank *rank, uint64_t n_bytes) {
  const opi_session *s = rank->session;
  if (s->env.budget == NULL)
    return;
  opi_budget_release(s->env.budget, s->env.backends[rank->index].id,
                     s->plan->devices[rank->index].index, n_bytes);
  rank->charged_bytes -= n_bytes;
}

static opipe_status take(opi_rank *rank, uint64_t n_bytes, uint32_t kind, const char *what,
                         opipe_buffer **out_buffer, opipe_error *err) {
  OPI_TRY(charge(rank, n_bytes, what, err));
  const opipe_status status =
      OPI_ASK_RANK(rank, buffer_alloc, err, rank->device, n_bytes, kind, out_buffer);
  if (status < 0) {
    release(rank, n_bytes);
    (void)opi_error_prefix(err, "rank %u, %s of %llu bytes: ", rank->index, what,
                           (unsigned long long)n_bytes);
  }
  return status;
}

static opipe_status take_arena(opi_shape *shape, opi_rank *rank, opipe_error *err) {
  const uint64_t need =
      opi_align_up(shape->layout->ranks[rank->index].arena_bytes, rank->alignment);
  uint32_t i = 0, place = OPIPE_NONE;
  while (i < rank->n_arenas && (rank->arenas[i].buffer == NULL || rank->arenas[i].n_bytes < need)) {
    if (rank->arenas[i].buffer == NULL)
      place = i;
    ++i;
  }
  if (i == rank->n_arenas) {
    if (place == OPIPE_NONE && rank->n_arenas == OPI_ARENAS) {
      return opi_fail(err, OPIPE_E_LIMIT,
                      "rank %u: a shape needs an arena of %llu bytes, %d arenas are in use",
                      rank->index, (unsigned long long)need, OPI_ARENAS);
    }
    opipe_buffer *buffer = NULL;
    OPI_TRY(take(rank, need, OPIPE_BUFFER_ARENA, "the arena of a session", &buffer, err));
    i = place == OPIPE_NONE ? rank->n_arenas++ : place;
    rank->arenas[i] = (opi_rank_arena){.buffer = buffer, .n_bytes = need};
  }
  ++rank->arenas[i].n_shapes;
  shape->arena_of_rank[rank->index] = i;
  return OPIPE_OK;
}

static opipe_status take_boundary(opi_shape *shape, opi_rank *rank, opipe_error *err) {
  const uint64_t need =
      opi_align_up(shape->layout->ranks[rank->index].boundary_bytes, rank->alignment);
  if (need == 0)
    return OPIPE_OK;
  OPI_TRY(take(rank, need, OPIPE_BUFFER_BOUNDARY, "the boundary buffer of a session",
               &shape->boundary[rank->index], err));
  shape->boundary_bytes[rank->index] = need;
  if ((rank->device_flags & OPIPE_DEVICE_HOST_MEMORY) == 0)
    return OPIPE_OK;
  void *host = NULL;
  OPI_TRY(opi_buffer_host(rank, shape->boundary[rank->index], &host, err));
  shape->boundary_host[rank->index] = host;
  return OPIPE_OK;
}

opipe_status opi_shape_memory(opi_shape *shape, opipe_error *err) {
  opi_session *s = shape->session;
  const uint32_t n = s->plan->n_ranks;
  shape->boundary = OPI_ARENA_ARRAY(&shape->arena, opipe_buffer *, n);
  shape->boundary_host = OPI_ARENA_ARRAY(&shape->arena, char *, n);
  shape->boundary_bytes = OPI_ARENA_ARRAY(&shape->arena, uint64_t, n);
  shape->started = OPI_ARENA_ARRAY(&shape->arena, bool, n);
  uint32_t *arenas = OPI_ARENA_ARRAY(&shape->arena, uint32_t, n);
  if (shape->boundary == NULL || shape->boundary_host == NULL || shape->boundary_bytes == NULL ||
      shape->started == NULL || arenas == NULL) {
    return opi_fail_nomem(err, n * sizeof(uint64_t), "a shape's memory");
  }
  for (uint32_t r = 0; r < n; ++r)
    arenas[r] = OPIPE_NONE;
  shape->arena_of_rank = arenas;
  for (uint32_t r = 0; r < n; ++r) {
    if (shape->layout->ranks[r].arena_bytes != 0)
      OPI_TRY(take_arena(shape, &s->ranks[r], err));
    OPI_TRY(take_boundary(shape, &s->ranks[r], err));
  }
  return OPIPE_OK;
}

void opi_shape_memory_free(opi_shape *shape) {
  opi_session *s = shape->session;
  for (uint32_t r = 0; shape->arena_of_rank != NULL && r < s->plan->n_ranks; ++r) {
    opi_rank *rank = &s->ranks[r];
    if (shape->boundary[r] != NULL) {
      rank->backend->buffer_free(shape->boundary[r]);
      release(rank, opi_align_up(shape->layout->ranks[r].boundary_bytes, rank->alignment));
    }
    if (shape->arena_of_rank[r] == OPIPE_NONE)
      continue;
    opi_rank_arena *arena = &rank->arenas[shape->arena_of_rank[r]];
    if (--arena->n_shapes != 0)
      continue;
    rank->backend->buffer_free(arena->buffer);
    release(rank, arena->n_bytes);
    *arena = (opi_rank_arena){.buffer = NULL};
  }
}

opipe_region opi_slot_region(const opi_shape *shape, const opi_slot *slot, uint64_t sequence,
                             uint64_t n_bytes) {
  return (opipe_region){
      .buffer = shape->boundary[slot->rank],
      .offset_bytes = slot->offset_bytes + sequence % slot->depth * slot->stride_bytes,
      .n_bytes = n_bytes};
}

char *opi_slot_host(const opi_shape *shape, const opi_slot *slot, uint64_t sequence) {
  char *base = shape->boundary_host[slot->rank];
  return base == NULL ? NULL
                      : base + slot->offset_bytes + sequence % slot->depth * slot->stride_bytes;
}
