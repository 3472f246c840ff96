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
  return opipe_collect_size(g->what.kind, g->what.dtype);
}

/* Values of chunk k of the round. */
static opipe_part values_of(const opipe_group *g, uint64_t k) {
  const uint64_t most = g->chunk_bytes / size_of(g), first = k * most;
  return (opipe_part){first, g->n_values - first < most ? g->n_values - first : most};
}

/* The values of chunk k that are in member m's part. */
static opipe_part values_within(const opipe_group *g, uint64_t k, uint32_t m) {
  const opipe_part chunk = values_of(g, k), part = opipe_collect_part(&g->what, m, g->n_values);
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
  shm_line *own = line_of(g, g->index);
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
  const bool gathers = g->what.kind == OPIPE_COLLECT_ALL_GATHER;
  const opipe_part own = gathers ? values_within(g, k, g->index) : chunk;
  const uint64_t skipped = gathers ? opipe_collect_part(&g->what, g->index, g->n_values).first : 0;
  if (own.n != 0) {
    opipe_cursor_get(&g->from, (own.first - skipped) * size,
                     chunk_of(g, g->index, g->base + k) + (own.first - chunk.first) * size,
                     own.n * size);
  }
}

/* The member's share of a chunk: whole blocks, as equal as they come. */
static void add_share(const opipe_group *g, uint64_t k) {
  const uint64_t n_values = values_of(g, k).n, size = size_of(g);
  const uint64_t n_blocks = (n_values + OPIPE_SUM_BLOCK - 1) / OPIPE_SUM_BLOCK;
  const uint64_t end = n_blocks * (g->index + 1) / g->n;
  opipe_sum sum;
  if (g->what.kind == OPIPE_COLLECT_ALL_GATHER)
    return;
  for (uint64_t b = n_blocks * g->index / g->n; b < end; ++b) {
    const uint64_t first = b * OPIPE_SUM_BLOCK;
    const uint64_t n = n_values - first < OPIPE_SUM_BLOCK ? n_values - first : OPIPE_SUM_BLOCK;
    for (uint32_t m = 0; m < g->n; ++m) {
      const char *values = chunk_of(g, m, g->base + k) + first * size;
      opipe_sum_add(&sum, g->what.dtype, values, 0, n, m == 0);
    }
    opipe_sum_round(&sum, g->what.dtype, chunk_of(g, 0, g->base + k) + first * size, n);
  }
}

/* The member takes its values of chunk k. */
static void take_chunk(opipe_group *g, uint64_t k) {
  const uint64_t size = size_of(g);
  const opipe_part chunk = values_of(g, k);
  const bool scatters = g->what.kind == OPIPE_COLLECT_REDUCE_SCATTER;
  if (g->what.kind != OPIPE_COLLECT_ALL_GATHER) {
    const opipe_part own = scatters ? values_within(g, k, g->index) : chunk;
    const uint64_t skipped =
        scatters ? opipe_collect_part(&g->what, g->index, g->n_values).first : 0;
    const char *sums = chunk_of(g, 0, g->base + k) + (own.first - chunk.first) * size;
    if (own.n != 0)
      opipe_cursor_put(&g->to, (own.first - skipped) * size, sums, own.n * size);
    return;
  }
  for (uint32_t m = 0; m < g->n; ++m) {
    const opipe_part part = values_within(g, k, m);
    const char *values = chunk_of(g, m, g->base + k) + (part.first - chunk.first) * size;
    if (part.n != 0)
      opipe_cursor_put(&g->to, part.first * size, values, part.n * size);
  }
}

/* ---- a round ---- */

static opipe_collect_head head_of(const opipe_group *g, uint32_t i) {
  const shm_line *line = line_of(g, i);
  return (opipe_collect_head){.rank = g->ranks[i],
                              .kind = atomic_load(&line->kind),
                              .dtype = atomic_load(&line->dtype),
                              .n_values = atomic_load(&line->n_values),
                              .parts = g->collects ? parts_of(g, i) : NULL};
}

/* Did all members come to the same? */
static opipe_status agree(const opipe_group *g, opipe_error *err) {
  const opipe_collect_head own = {.rank = g->endpoint->rank,
                                  .kind = g->what.kind,
                                  .dtype = g->what.dtype,
                                  .n_values = g->n_values,
                                  .parts = g->what.parts};
  for (uint32_t i = 0; i < g->n; ++i) {
    const opipe_collect_head other = head_of(g, i);
    if (g->collects) {
      const opipe_status status =
          opipe_collect_agree(g->params.id, g->round - 1, g->n, &own, &other, err);
      if (status < 0)
        return status;
    } else if (other.n_values != own.n_values || other.dtype != own.dtype) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "all_reduce round %llu: the members' counts or types differ; rank %u gave "
                        "%llu of %s, rank %u %llu of %s",
                        (unsigned long long)(g->round - 1), own.rank,
                        (unsigned long long)own.n_values, opipe_dtype_name(own.dtype), other.rank,
                        (unsigned long long)other.n_values, opipe_dtype_name(other.dtype));
    }
  }
  return OPIPE_OK;
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

/* ---- values ---- */

static opipe_status poll_event(opipe_endpoint *e, opipe_event *event, opipe_error *err) {
  if (event == NULL)
    return OPIPE_OK;
  const opipe_status status = e->backend->event_poll(event, err);
  e->unready = e->unready || status == OPIPE_PENDING;
  return status;
}

/* Values without a host address are read to a bounce: queued once, then awaited. */
static opipe_status fetch(opipe_group *g, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = OPIPE_OK;
  if (g->bounce == NULL)
    g->bounce = shm_new(e->world->host, "values to sum", g->params.n_bytes, err);
  if (g->bounce == NULL)
    return OPIPE_E_NOMEM;
  opipe_bounce_spans(&g->what, g->index, g->n_values, g->bounce, &g->spans[0],
                     &g->spans[g->params.n_regions]);
  if (g->fetched != sequence + 1) {
    if (g->moved == NULL)
      status = e->backend->event_create(e->device, &g->moved, err);
    if (status >= 0)
      status = opipe_bounce_read(e->backend, e->queue, &g->what, &g->spans[0], g->moved, err);
    if (status < 0)
      return status;
    g->fetched = sequence + 1;
  }
  return poll_event(e, g->moved, err);
}

static opipe_status find_list(const opipe_group *g, const opipe_region *list, uint32_t n,
                              opipe_span *out, bool *io_remote, opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i) {
    void *data = NULL;
    bool remote = false;
    const opipe_status status = shm_address(g->endpoint, &list[i], &data, &remote, err);
    if (status < 0)
      return status;
    out[i] = (opipe_span){data, list[i].n_bytes};
    *io_remote = *io_remote || remote;
  }
  return OPIPE_OK;
}

/* Begins the round of g->what, which was checked, and whose values are all there or awaited. */
static opipe_status begin(opipe_group *g, uint64_t sequence, opipe_error *err) {
  opipe_span *from = g->spans, *to = g->spans + g->params.n_regions;
  shm_line *line = line_of(g, g->index);
  bool remote = false;
  opipe_status status = find_list(g, g->what.from, g->what.n_from, from, &remote, err);
  if (status == OPIPE_OK)
    status = find_list(g, g->what.to, g->what.n_to, to, &remote, err);
  if (status < 0)
    return status;
  g->away = remote && g->n_values > 0;
  status = g->away ? fetch(g, sequence, err) : poll_event(g->endpoint, g->what.ready, err);
  if (status != OPIPE_OK)
    return status;
  g->from = (opipe_cursor){.spans = from, .n = g->away ? 1 : g->what.n_from};
  g->to = (opipe_cursor){.spans = to, .n = g->away ? 1 : g->what.n_to};
  const uint64_t most = g->chunk_bytes / size_of(g);
  g->n_chunks = g->n_values == 0 ? 1 : (g->n_values + most - 1) / most;
  g->given = g->added = g->taken = 0;
  g->round = sequence + 1;
  atomic_store(&line->n_values, g->n_values);
  atomic_store(&line->dtype, g->what.dtype);
  atomic_store(&line->kind, g->what.kind);
  if (g->what.parts != NULL)
    memcpy(parts_of(g, g->index), g->what.parts, g->n * sizeof *g->what.parts);
  return go_on(g, err);
}

static opipe_status finish(opipe_group *g, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = e->late != NULL ? shm_go_on(e, err) : shm_check(e->world, err);
  if (status < 0 || g->ended > sequence)
    return status;
  if (g->round <= sequence)
    return OPIPE_PENDING;
  status = go_on(g, err);
  if (status < 0)
    return status;
  if (g->taken < g->n_chunks)
    return OPIPE_PENDING;
  if (g->away) { /* the sums go home, in the queue's order */
    status = opipe_bounce_write(e->backend, e->queue, &g->what, g->to.spans, g->moved, err);
    if (status < 0)
      return status;
  }
  g->base += g->n_chunks;
  g->ended = g->round;
  return opipe_endpoint_record(e->rank, e->backend, e->queue, g->what.done, err);
}

/* ---- the slots ---- */

static opipe_status check_number(const opipe_group *g, const char *call, uint64_t sequence,
                                 opipe_error *err) {
  if (g->round != sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "%s: round %llu where rank %u is at round %llu", call,
                      (unsigned long long)sequence, g->endpoint->rank,
                      (unsigned long long)g->round);
  }
  if (g->collects && g->ended != sequence) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "%s: round %llu of group %llu while round %llu has not ended for rank %u",
                      call, (unsigned long long)sequence, (unsigned long long)g->params.id,
                      (unsigned long long)g->ended, g->endpoint->rank);
  }
  return OPIPE_OK;
}

opipe_status shm_all_reduce(opipe_group *g, uint64_t sequence, const opipe_region *region,
                            uint64_t n_elems, uint32_t dtype, opipe_event *ready, opipe_event *done,
                            opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = e->late != NULL ? shm_go_on(e, err) : shm_check(e->world, err);
  if (status == OPIPE_OK)
    status = opipe_reduce_check(g->params.n_bytes, region, n_elems, dtype, err);
  if (status == OPIPE_OK)
    status = check_number(g, "all_reduce", sequence, err);
  if (status < 0)
    return status;
  if (g->ended != sequence || !g->known)
    return OPIPE_PENDING;
  g->region =
      (opipe_region){region->buffer, region->offset_bytes, n_elems * opipe_reduce_size(dtype)};
  g->n_values = n_elems;
  g->what = (opipe_collect){.kind = OPIPE_COLLECT_ALL_REDUCE,
                            .dtype = dtype,
                            .n_from = 1,
                            .n_to = 1,
                            .from = &g->region,
                            .to = &g->region,
                            .ready = ready,
                            .done = done};
  return begin(g, sequence, err);
}

opipe_status shm_group_test(opipe_group *g, uint64_t sequence, opipe_error *err) {
  return finish(g, sequence, err);
}

opipe_status shm_collect(opipe_collective *collective, uint64_t sequence,
                         const opipe_collect *collect, opipe_error *err) {
  opipe_group *g = &collective->group;
  opipe_endpoint *e = g->endpoint;
  uint64_t n_values = 0;
  opipe_status status = e->late != NULL ? shm_go_on(e, err) : shm_check(e->world, err);
  if (status == OPIPE_OK)
    status = check_number(g, "collect", sequence, err);
  if (status == OPIPE_OK)
    status = opipe_collect_check(&g->params, g->index, collect, &n_values, err);
  if (status < 0)
    return status;
  if (!g->known)
    return OPIPE_PENDING;
  g->what = *collect;
  g->n_values = n_values;
  return begin(g, sequence, err);
}

opipe_status shm_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err) {
  return finish(&collective->group, sequence, err);
}
