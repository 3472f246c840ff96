/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduce, chunk by chunk, two chunks of each member at a time: every member gives its values,
 * adds its share of the elements over all members in their order, so that the bits do not depend on
 * who came when, and takes the sums, which are written over member 0's values. Each member says in
 * its line how many chunks it has given, added and taken since the start.
 */
#include "shm.h"

enum { BLOCK = 512 /* elements that are summed at once, on the stack */ };

static shm_line *line_of(const opipe_group *g, uint32_t member) {
  return (shm_line *)(void *)atomic_load_explicit(&g->area, memory_order_relaxed) + member;
}

static char *chunk_of(const opipe_group *g, uint32_t member, uint64_t chunk) {
  char *area = atomic_load_explicit(&g->area, memory_order_relaxed);
  return area + g->n * sizeof(shm_line) + (2 * (uint64_t)member + chunk % 2) * g->chunk_bytes;
}

static uint64_t chunk_elems(const opipe_group *g) {
  return g->chunk_bytes / opipe_reduce_size(g->dtype);
}

/* Chunk k of the round. */
static uint64_t elems_of(const opipe_group *g, uint64_t k) {
  const uint64_t most = chunk_elems(g), first = k * most;
  return g->n_elems - first < most ? g->n_elems - first : most;
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

/* ---- sums ---- */

static void add_floats(const opipe_group *g, uint64_t chunk, uint64_t first, uint64_t n) {
  float sum[BLOCK];
  memcpy(sum, (const float *)(void *)chunk_of(g, 0, chunk) + first, n * sizeof *sum);
  for (uint32_t m = 1; m < g->n; ++m) {
    const float *more = (const float *)(void *)chunk_of(g, m, chunk) + first;
    for (uint64_t i = 0; i < n; ++i)
      sum[i] += more[i];
  }
  memcpy((float *)(void *)chunk_of(g, 0, chunk) + first, sum, n * sizeof *sum);
}

static void add_doubles(const opipe_group *g, uint64_t chunk, uint64_t first, uint64_t n) {
  double sum[BLOCK];
  memcpy(sum, (const double *)(void *)chunk_of(g, 0, chunk) + first, n * sizeof *sum);
  for (uint32_t m = 1; m < g->n; ++m) {
    const double *more = (const double *)(void *)chunk_of(g, m, chunk) + first;
    for (uint64_t i = 0; i < n; ++i)
      sum[i] += more[i];
  }
  memcpy((double *)(void *)chunk_of(g, 0, chunk) + first, sum, n * sizeof *sum);
}

/* The member's share of a chunk: whole blocks, as equal as they come. */
static void add_share(const opipe_group *g, uint64_t k) {
  const uint64_t n_elems = elems_of(g, k), n_blocks = (n_elems + BLOCK - 1) / BLOCK;
  const uint64_t end = n_blocks * (g->index + 1) / g->n;
  for (uint64_t b = n_blocks * g->index / g->n; b < end; ++b) {
    const uint64_t first = b * BLOCK;
    const uint64_t n = n_elems - first < BLOCK ? n_elems - first : BLOCK;
    if (g->dtype == OPIPE_DOUBLE)
      add_doubles(g, g->base + k, first, n);
    else
      add_floats(g, g->base + k, first, n);
  }
}

/* ---- a round ---- */

/* Did all members say the same of this round? */
static opipe_status agree(const opipe_group *g, opipe_error *err) {
  for (uint32_t i = 0; i < g->n; ++i) {
    const uint64_t n_elems = atomic_load(&line_of(g, i)->n_elems);
    const uint32_t dtype = atomic_load(&line_of(g, i)->dtype);
    if (n_elems != g->n_elems || dtype != g->dtype) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "all_reduce round %llu: the members' counts or types differ; rank %u gave "
                        "%llu of %s, rank %u %llu of %s",
                        (unsigned long long)(g->round - 1), g->endpoint->rank,
                        (unsigned long long)g->n_elems, opipe_dtype_name(g->dtype), g->ranks[i],
                        (unsigned long long)n_elems, opipe_dtype_name(dtype));
    }
  }
  return OPIPE_OK;
}

static char *data_of(const opipe_group *g, uint64_t k) {
  return g->data + k * chunk_elems(g) * opipe_reduce_size(g->dtype);
}

/* Does what can be done now. */
static opipe_status go_on(opipe_group *g, opipe_error *err) {
  const uint64_t size = opipe_reduce_size(g->dtype);
  bool moved = true;
  while (moved) {
    moved = false;
    const uint64_t next = g->base + g->given; /* it takes the place of the one before the last */
    if (g->given < g->n_chunks && (next < 2 || all_have(g, TAKEN, next - 1))) {
      if (elems_of(g, g->given) != 0)
        memcpy(chunk_of(g, g->index, next), data_of(g, g->given), elems_of(g, g->given) * size);
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
      if (elems_of(g, g->taken) != 0) {
        memcpy(data_of(g, g->taken), chunk_of(g, 0, g->base + g->taken),
               elems_of(g, g->taken) * size);
      }
      say(g, TAKEN, g->base + ++g->taken);
      moved = true;
    }
  }
  return OPIPE_OK;
}

/* Values without a host address are read to a bounce: queued once, then awaited. */
static opipe_status fetch(opipe_group *g, uint64_t sequence, const opipe_region *region,
                          opipe_event *ready, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = OPIPE_OK;
  if (g->fetched != sequence + 1) {
    if (g->bounce == NULL)
      g->bounce = shm_new(e->world->host, "values to sum", g->n_bytes, err);
    if (g->bounce == NULL)
      return OPIPE_E_NOMEM;
    if (g->moved == NULL)
      status = e->backend->event_create(e->device, &g->moved, err);
    if (status >= 0 && ready != NULL)
      status = e->backend->event_wait(e->queue, ready, err);
    if (status >= 0)
      status = e->backend->read(e->queue, g->bounce, region, err);
    if (status >= 0)
      status = e->backend->event_record(e->queue, g->moved, err);
    if (status < 0)
      return status;
    g->fetched = sequence + 1;
  }
  status = e->backend->event_poll(g->moved, err);
  e->unready = e->unready || status == OPIPE_PENDING;
  return status;
}

static opipe_status is_ready(opipe_endpoint *e, opipe_event *ready, opipe_error *err) {
  if (ready == NULL)
    return OPIPE_OK;
  const opipe_status status = e->backend->event_poll(ready, err);
  e->unready = e->unready || status == OPIPE_PENDING;
  return status;
}

opipe_status shm_all_reduce(opipe_group *g, uint64_t sequence, const opipe_region *region,
                            uint64_t n_elems, uint32_t dtype, opipe_event *ready, opipe_event *done,
                            opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  void *data = NULL;
  bool remote = false;
  opipe_status status = e->late != NULL ? shm_go_on(e, err) : shm_check(e->world, err);
  if (status == OPIPE_OK)
    status = opipe_reduce_check(g->n_bytes, region, n_elems, dtype, err);
  if (status == OPIPE_OK)
    status = shm_address(e, region, &data, &remote, err);
  if (status < 0)
    return status;
  if (g->round != sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "all_reduce: round %llu where rank %u is at round %llu",
                      (unsigned long long)sequence, e->rank, (unsigned long long)g->round);
  }
  if (g->ended != sequence || !g->known)
    return OPIPE_PENDING;
  const uint64_t n_bytes = n_elems * opipe_reduce_size(dtype);
  const opipe_region part = {region->buffer, region->offset_bytes, n_bytes};
  g->away = remote && n_bytes > 0;
  status = g->away ? fetch(g, sequence, &part, ready, err) : is_ready(e, ready, err);
  if (status != OPIPE_OK)
    return status;
  g->data = g->away ? g->bounce : data;
  g->region = part;
  g->n_elems = n_elems;
  g->dtype = dtype;
  g->done = done;
  g->n_chunks = n_elems == 0 ? 1 : (n_elems + chunk_elems(g) - 1) / chunk_elems(g);
  g->given = g->added = g->taken = 0;
  g->round = sequence + 1;
  atomic_store(&line_of(g, g->index)->n_elems, n_elems);
  atomic_store(&line_of(g, g->index)->dtype, dtype);
  return go_on(g, err);
}

opipe_status shm_group_test(opipe_group *g, uint64_t sequence, opipe_error *err) {
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
    status = e->backend->write(e->queue, &g->region, g->bounce, err);
    if (status >= 0)
      status = e->backend->event_record(e->queue, g->moved, err);
    if (status < 0)
      return status;
  }
  g->base += g->n_chunks;
  g->ended = g->round;
  return opipe_endpoint_record(e->rank, e->backend, e->queue, g->done, err);
}
