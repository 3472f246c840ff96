/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions and collects, chunk by chunk, two chunks of each member at a time: every member gives
 * its values, adds its share of the elements over all members in their order, so that the bits do
 * not depend on who came when, and takes the sums, which are written over member 0's values; of an
 * all-gather it takes the others' parts. Each member says in its line how many chunks it has given,
 * added and taken since the start. A chunk is a stretch of all values together, in whoever's list
 * they are. An all-reduce is a collect of one region.
 */
#include "shm.h"

static shm_line *line_of(const opipe_group *g, uint32_t member) {
  return (shm_line *)(void *)atomic_load_explicit(&g->area, memory_order_relaxed) + member;
}

/* [n] of a member's, as it says. */
static uint64_t *parts_of(const opipe_group *g, uint32_t member) {
  char *area = atomic_load_explicit(&g->area, memory_order_relaxed);
  return (uint64_t *)(void *)(area + shm_group_parts(g)) + (size_t)member * g->n;
}

static char *chunk_of(const opipe_group *g, uint32_t member, uint64_t chunk) {
  char *area = atomic_load_explicit(&g->area, memory_order_relaxed);
  return area + shm_group_chunks(g) + (2 * (uint64_t)member + chunk % 2) * g->chunk_bytes;
}

static uint64_t size_of(const opipe_group *g) {
  return opipe_collect_size(g->round.what.kind, g->round.what.dtype);
}

/* Values of chunk k of the round. */
static opipe_part values_of(const opipe_group *g, uint64_t k) {
  const uint64_t most = g->chunk_bytes / size_of(g), first = k * most;
  return (opipe_part){first, g->round.n_values - first < most ? g->round.n_values - first : most};
}

/* The values of chunk k that are in member m's part. */
static opipe_part values_within(const opipe_group *g, uint64_t k, uint32_t m) {
  const opipe_part chunk = values_of(g, k),
                   part = opipe_collect_part(&g->round.what, m, g->round.n_values);
  const uint64_t begin = chunk.first > part.first ? chunk.first : part.first;
  const uint64_t chunk_end = chunk.first + chunk.n, part_end = part.first + part.n;
  const uint64_t end = chunk_end < part_end ? chunk_end : part_end;
  return (opipe_part){begin, end > begin ? end - begin : 0};
}

enum { GIVEN = 0, ADDED, TAKEN };

static bool all_have(const opipe_group *g, int what, uint64_t n) {
  for (uint32_t i = 0; i < g->n; ++i) {
    const shm_line *line = line_of(g, i);
    const _Atomic uint64_t *count = what == GIVEN   ? &line->given
                                    : what == ADDED ? &line->added
                                                    : &line->taken;
    if (atomic_load(count) < n)
      return false;
  }
  return true;
}

/* Whoever is last rings; two that are last at once both see it. */
static void say(const opipe_group *g, int what, uint64_t n) {
  shm_line *own = line_of(g, g->round.index);
  atomic_store(what == GIVEN ? &own->given : what == ADDED ? &own->added : &own->taken, n);
  if (!all_have(g, what, n))
    return;
  for (uint32_t i = 0; i < g->n; ++i)
    shm_ring_rank(g->endpoint->world, g->ranks[i]);
}

/* ---- chunks ---- */

/* The member's values of chunk k, to its place in the area. */
static void give_chunk(opipe_group *g, uint64_t k) {
  const uint64_t size = size_of(g);
  const opipe_part chunk = values_of(g, k);
  const bool gathers = g->round.what.kind == OPIPE_COLLECT_ALL_GATHER;
  const opipe_part own = gathers ? values_within(g, k, g->round.index) : chunk;
  const uint64_t skipped =
      gathers ? opipe_collect_part(&g->round.what, g->round.index, g->round.n_values).first : 0;
  if (own.n != 0) {
    opipe_cursor_get(&g->round.from, (own.first - skipped) * size,
                     chunk_of(g, g->round.index, g->base + k) + (own.first - chunk.first) * size,
                     own.n * size);
  }
}

/* The member's share of a chunk: whole blocks, as equal as they come. */
static void add_share(const opipe_group *g, uint64_t k) {
  const uint64_t n_values = values_of(g, k).n, size = size_of(g);
  const uint64_t n_blocks = (n_values + OPIPE_SUM_BLOCK - 1) / OPIPE_SUM_BLOCK;
  const uint64_t end = n_blocks * (g->round.index + 1) / g->n;
  opipe_sum sum;
  if (g->round.what.kind == OPIPE_COLLECT_ALL_GATHER)
    return;
  for (uint64_t b = n_blocks * g->round.index / g->n; b < end; ++b) {
    const uint64_t first = b * OPIPE_SUM_BLOCK;
    const uint64_t n = n_values - first < OPIPE_SUM_BLOCK ? n_values - first : OPIPE_SUM_BLOCK;
    for (uint32_t m = 0; m < g->n; ++m) {
      const char *values = chunk_of(g, m, g->base + k) + first * size;
      opipe_sum_add(&sum, g->round.what.dtype, values, 0, n, m == 0);
    }
    opipe_sum_round(&sum, g->round.what.dtype, chunk_of(g, 0, g->base + k) + first * size, n);
  }
}

/* The member takes its values of chunk k. */
static void take_chunk(opipe_group *g, uint64_t k) {
  const uint64_t size = size_of(g);
  const opipe_part chunk = values_of(g, k);
  const bool scatters = g->round.what.kind == OPIPE_COLLECT_REDUCE_SCATTER;
  if (g->round.what.kind != OPIPE_COLLECT_ALL_GATHER) {
    const opipe_part own = scatters ? values_within(g, k, g->round.index) : chunk;
    const uint64_t skipped =
        scatters ? opipe_collect_part(&g->round.what, g->round.index, g->round.n_values).first : 0;
    const char *sums = chunk_of(g, 0, g->base + k) + (own.first - chunk.first) * size;
    if (own.n != 0)
      opipe_cursor_put(&g->round.to, (own.first - skipped) * size, sums, own.n * size);
    return;
  }
  for (uint32_t m = 0; m < g->n; ++m) {
    const opipe_part part = values_within(g, k, m);
    const char *values = chunk_of(g, m, g->base + k) + (part.first - chunk.first) * size;
    if (part.n != 0)
      opipe_cursor_put(&g->round.to, part.first * size, values, part.n * size);
  }
}

/* ---- a round ---- */

static opipe_collect_head head_of(const opipe_group *g, uint32_t i) {
  const shm_line *line = line_of(g, i);
  return (opipe_collect_head){.rank = g->ranks[i],
                              .kind = atomic_load(&line->kind),
                              .dtype = atomic_load(&line->dtype),
                              .n_values = atomic_load(&line->n_values),
                              .parts = g->round.collects ? parts_of(g, i) : NULL};
}

/* Did all members come to the same? */
static opipe_status agree(const opipe_group *g, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < g->n && status == OPIPE_OK; ++i) {
    const opipe_collect_head other = head_of(g, i);
    status = machine_round_agree(&g->round, &other, err);
  }
  return status;
}

/* Does what can be done now. */
static opipe_status go_on(opipe_group *g, opipe_error *err) {
  bool moved = true;
  while (moved) {
    moved = false;
    const uint64_t next = g->base + g->given; /* it takes the place of the one before the last */
    if (g->given < g->n_chunks && (next < 2 || all_have(g, TAKEN, next - 1))) {
      give_chunk(g, g->given);
      say(g, GIVEN, g->base + ++g->given);
      moved = true;
    }
    if (g->added < g->given && all_have(g, GIVEN, g->base + g->added + 1)) {
      const opipe_status status = g->added == 0 ? agree(g, err) : OPIPE_OK;
      if (status < 0)
        return status;
      add_share(g, g->added);
      say(g, ADDED, g->base + ++g->added);
      moved = true;
    }
    if (g->taken < g->added && all_have(g, ADDED, g->base + g->taken + 1)) {
      take_chunk(g, g->taken);
      say(g, TAKEN, g->base + ++g->taken);
      moved = true;
    }
  }
  return OPIPE_OK;
}

/* Begins the round, which was checked, when its values are there. */
static opipe_status begin(opipe_group *g, opipe_error *err) {
  machine_round *round = &g->round;
  shm_line *line = line_of(g, round->index);
  const opipe_status status = machine_round_values(round, &g->endpoint->unready, err);
  if (status != OPIPE_OK)
    return status;
  const uint64_t most = g->chunk_bytes / size_of(g);
  g->n_chunks = round->n_values == 0 ? 1 : (round->n_values + most - 1) / most;
  g->given = g->added = g->taken = 0;
  ++round->begun;
  atomic_store(&line->n_values, round->n_values);
  atomic_store(&line->dtype, round->what.dtype);
  atomic_store(&line->kind, round->what.kind);
  if (round->what.parts != NULL)
    memcpy(parts_of(g, round->index), round->what.parts, g->n * sizeof *round->what.parts);
  return go_on(g, err);
}

static opipe_status finish(opipe_group *g, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = e->late != NULL ? shm_go_on(e, err) : shm_check(e->world, err);
  if (status < 0 || g->round.ended > sequence)
    return status;
  if (g->round.begun <= sequence)
    return OPIPE_PENDING;
  status = go_on(g, err);
  if (status < 0)
    return status;
  if (g->taken < g->n_chunks)
    return OPIPE_PENDING;
  status = machine_round_end(&g->round, err);
  if (g->round.ended > sequence)
    g->base += g->n_chunks;
  return status;
}

/* ---- the slots ---- */

opipe_status shm_all_reduce(opipe_group *g, uint64_t sequence, const opipe_region *region,
                            uint64_t n_elems, uint32_t dtype, opipe_event *ready, opipe_event *done,
                            opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = e->late != NULL ? shm_go_on(e, err) : shm_check(e->world, err);
  if (status == OPIPE_OK)
    status = machine_round_reduce(&g->round, sequence, region, n_elems, dtype, ready, done, err);
  if (status != OPIPE_OK)
    return status;
  return g->known ? begin(g, err) : OPIPE_PENDING;
}

opipe_status shm_group_test(opipe_group *g, uint64_t sequence, opipe_error *err) {
  return finish(g, sequence, err);
}

opipe_status shm_collect(opipe_collective *collective, uint64_t sequence,
                         const opipe_collect *collect, opipe_error *err) {
  opipe_group *g = &collective->group;
  opipe_endpoint *e = g->endpoint;
  opipe_status status = e->late != NULL ? shm_go_on(e, err) : shm_check(e->world, err);
  if (status == OPIPE_OK)
    status = machine_round_collect(&g->round, sequence, collect, err);
  if (status != OPIPE_OK)
    return status;
  return g->known ? begin(g, err) : OPIPE_PENDING;
}

opipe_status shm_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err) {
  return finish(&collective->group, sequence, err);
}
