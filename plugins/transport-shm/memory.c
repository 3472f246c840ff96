/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: own ones, in which a rank takes and gives spans, and those of others as they are mapped
 * here. A segment that its rank gave up stays mapped while somebody copies to it.
 */
#include <stdio.h>

#include "shm.h"

enum { SMALL_BYTES = 64 << 10, SHARED_BYTES = 256 << 10 };

/* ---- mapped segments ---- */

static opipe_status add_mapped(opipe_world *world, uint32_t rank, uint32_t id, char *data,
                               uint64_t n_bytes, int fd, opipe_error *err) {
  shm_seat *seat = &world->seats[rank];
  _Atomic(shm_mapped *) *table = atomic_load(&seat->table);
  if (table == NULL) {
    table = shm_new(world->host, "a rank's segments", SHM_SEGMENTS * sizeof *table, err);
    if (table == NULL)
      return OPIPE_E_NOMEM;
    atomic_store(&seat->table, table);
  }
  const shm_mapped *before = atomic_load(&table[id % SHM_SEGMENTS]);
  if (before != NULL && atomic_load(&before->dropped) == 0) {
    return opipe_fail(err, OPIPE_E_LIMIT, "rank %u: more than %d pieces of shared memory", rank,
                      SHM_SEGMENTS);
  }
  shm_mapped *m = shm_new(world->host, "shared memory", sizeof *m, err);
  if (m == NULL)
    return OPIPE_E_NOMEM;
  m->data = data;
  m->n_bytes = n_bytes;
  m->id = id;
  m->fd = fd;
  m->next = world->mapped;
  world->mapped = m;
  atomic_store(&table[id % SHM_SEGMENTS], m);
  return OPIPE_OK;
}

shm_mapped *shm_mapped_of(const opipe_world *world, uint32_t rank, uint32_t id) {
  _Atomic(shm_mapped *) *table = atomic_load(&world->seats[rank].table);
  shm_mapped *m = table == NULL ? NULL : atomic_load(&table[id % SHM_SEGMENTS]);
  return m == NULL || m->id != id ? NULL : m;
}

opipe_status shm_map(opipe_world *world, uint32_t rank, uint32_t id, uint64_t n_bytes, int fd,
                     opipe_error *err) {
  void *data = NULL;
  if (shm_mapped_of(world, rank, id) != NULL)
    return opipe_fail(err, OPIPE_E_INVALID, "segment %u of rank %u comes twice", id, rank);
  opipe_status status = machine_segment_take(fd, n_bytes, &data, err);
  if (status < 0)
    return status;
  status = add_mapped(world, rank, id, data, n_bytes, -1, err);
  if (status < 0)
    machine_segment_unmap(data, n_bytes);
  return status;
}

void shm_drop(opipe_world *world, uint32_t rank, uint32_t id) {
  shm_mapped *m = shm_mapped_of(world, rank, id);
  if (m != NULL)
    atomic_store(&m->dropped, 1);
  shm_sweep(world, false);
}

/* ---- pinned ones ---- */

static void unpin(shm_mapped *m) {
  const opipe_endpoint *e = m->pinned_by;
  if (e != NULL)
    e->backend->host_unregister(e->device, m->data);
  m->pinned_by = NULL;
}

bool shm_pin(opipe_endpoint *endpoint, shm_mapped *mapped, opipe_error *err) {
  if (atomic_load_explicit(&mapped->pins, memory_order_acquire) == SHM_PIN_UNTRIED) {
    const bool pinned =
        opipe_ring_pin(endpoint->backend, endpoint->device, mapped->data, mapped->n_bytes, err);
    if (pinned)
      mapped->pinned_by = endpoint;
    atomic_store_explicit(&mapped->pins, pinned ? SHM_PINNED : SHM_PIN_FAILED,
                          memory_order_release);
  }
  return atomic_load(&mapped->pins) == SHM_PINNED;
}

void shm_unpin_all(opipe_endpoint *endpoint) {
  for (shm_mapped *m = endpoint->world->mapped; m != NULL; m = m->next) {
    if (m->pinned_by == endpoint) {
      unpin(m);
      atomic_store(&m->pins, SHM_PIN_UNTRIED);
    }
  }
}

void shm_sweep(opipe_world *world, bool all) {
  for (shm_mapped *m = world->mapped; m != NULL; m = m->next) {
    if (m->unmapped || (!all && (atomic_load(&m->dropped) == 0 || atomic_load(&m->users) != 0)))
      continue;
    unpin(m);
    machine_segment_unmap(m->data, m->n_bytes);
    machine_close(m->fd);
    m->unmapped = true;
  }
}

opipe_status shm_use(opipe_world *world, uint32_t rank, shm_place place, uint64_t n_bytes,
                     uint64_t align, shm_mapped **out_mapped, char **out_data, opipe_error *err) {
  shm_mapped *m = shm_mapped_of(world, rank, place.segment);
  if (m == NULL)
    return OPIPE_PENDING;
  if (place.offset > m->n_bytes || n_bytes > m->n_bytes - place.offset ||
      place.offset % align != 0) {
    return opipe_fail(err, OPIPE_E_PEER,
                      "rank %u names %llu bytes at %llu of its segment %u, which has %llu", rank,
                      (unsigned long long)n_bytes, (unsigned long long)place.offset, place.segment,
                      (unsigned long long)m->n_bytes);
  }
  atomic_fetch_add(&m->users, 1);
  if (atomic_load(&m->dropped) != 0) {
    shm_let_go(m);
    return OPIPE_PENDING;
  }
  *out_mapped = m;
  *out_data = m->data + place.offset;
  return OPIPE_OK;
}

void shm_let_go(shm_mapped *mapped) {
  atomic_fetch_sub(&mapped->users, 1);
}

bool shm_find(const opipe_endpoint *endpoint, const void *data, uint64_t n_bytes,
              shm_place *out_place) {
  _Atomic(shm_mapped *) *table = atomic_load(&endpoint->world->seats[endpoint->rank].table);
  for (uint32_t i = 0; i < SHM_SEGMENTS; ++i) {
    const shm_mapped *m = atomic_load_explicit(&table[i], memory_order_acquire);
    if (m == NULL)
      return false; /* numbers rise from 0 */
    const uint64_t at = (uint64_t)((uintptr_t)data - (uintptr_t)m->data);
    if (atomic_load_explicit(&m->dropped, memory_order_relaxed) == 0 &&
        (uintptr_t)data >= (uintptr_t)m->data && at <= m->n_bytes && n_bytes <= m->n_bytes - at) {
      *out_place = (shm_place){.offset = at, .segment = m->id};
      return true;
    }
  }
  return false;
}

/* ---- spans of own segments ---- */

static shm_span *new_span(opipe_world *world, uint32_t rank, char *data, uint64_t n_bytes,
                          shm_place place, opipe_error *err) {
  shm_seat *seat = &world->seats[rank];
  shm_span *span = shm_new(world->host, "shared memory", sizeof *span, err);
  if (span != NULL) {
    *span = (shm_span){
        .next = seat->spans, .data = data, .n_bytes = n_bytes, .place = place, .rank = rank};
    seat->spans = span;
  }
  return span;
}

static opipe_status make(opipe_world *world, uint32_t rank, uint64_t n_bytes, const char *what,
                         shm_span **out_span, opipe_error *err) {
  shm_seat *seat = &world->seats[rank];
  char words[96];
  void *data = NULL;
  int fd = -1;
  (void)snprintf(words, sizeof words, "rank %u: %.60s", rank, what);
  opipe_status status = machine_segment_make(words, n_bytes, &fd, &data, &n_bytes, err);
  if (status < 0)
    return status;
  const uint32_t id = seat->last_segment;
  status = add_mapped(world, rank, id, data, n_bytes, fd, err);
  if (status < 0) {
    machine_segment_unmap(data, n_bytes);
    machine_close(fd);
    return status;
  }
  ++seat->last_segment;
  *out_span = new_span(world, rank, data, n_bytes, (shm_place){.segment = id}, err);
  if (*out_span == NULL)
    return OPIPE_E_NOMEM;
  return shm_tell_segment(world, rank, shm_mapped_of(world, rank, id), err);
}

static shm_span *free_span(const shm_seat *seat, uint64_t n_bytes) {
  shm_span *found = NULL;
  for (shm_span *at = seat->spans; at != NULL; at = at->next) {
    if (!at->used && at->n_bytes >= n_bytes && (found == NULL || at->n_bytes < found->n_bytes))
      found = at;
  }
  return found;
}

opipe_status shm_take(opipe_world *world, uint32_t rank, uint64_t n_bytes, bool apart,
                      const char *what, shm_span **out_span, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (n_bytes > INT64_MAX - MACHINE_LINE)
    return opipe_fail(err, OPIPE_E_LIMIT, "%s of %llu bytes", what, (unsigned long long)n_bytes);
  n_bytes =
      n_bytes == 0 ? MACHINE_LINE : (n_bytes + MACHINE_LINE - 1) / MACHINE_LINE * MACHINE_LINE;
  const bool own = apart || n_bytes > SMALL_BYTES;
  shm_span *span = own ? NULL : free_span(&world->seats[rank], n_bytes);
  if (span == NULL)
    status = make(world, rank, own ? n_bytes : (uint64_t)SHARED_BYTES, what, &span, err);
  if (status < 0)
    return status;
  if (!own && span->n_bytes > n_bytes) {
    const shm_place rest = {.offset = span->place.offset + n_bytes, .segment = span->place.segment};
    if (new_span(world, rank, span->data + n_bytes, span->n_bytes - n_bytes, rest, err) == NULL)
      return OPIPE_E_NOMEM;
    span->n_bytes = n_bytes;
  }
  span->used = true;
  if (!own)
    memset(span->data, 0, (size_t)span->n_bytes);
  *out_span = span;
  return OPIPE_OK;
}

/* Spans of a segment that are next to each other and free become one. */
static void join_spans(opipe_world *world, shm_span *span) {
  shm_span **at = &world->seats[span->rank].spans;
  while (*at != NULL) {
    shm_span *other = *at;
    const bool same = other != span && !other->used && other->place.segment == span->place.segment;
    if (same &&
        (other->data + other->n_bytes == span->data || span->data + span->n_bytes == other->data)) {
      if (other->data < span->data) {
        span->data = other->data;
        span->place = other->place;
      }
      span->n_bytes += other->n_bytes;
      *at = other->next;
      shm_delete(world->host, other, sizeof *other);
    } else {
      at = &other->next;
    }
  }
}

void shm_give(opipe_world *world, shm_span *span) {
  if (span == NULL)
    return;
  span->used = false;
  join_spans(world, span);
  const shm_mapped *m = shm_mapped_of(world, span->rank, span->place.segment);
  if (m == NULL || span->n_bytes < m->n_bytes)
    return;
  shm_span **at = &world->seats[span->rank].spans;
  while (*at != span)
    at = &(*at)->next;
  *at = span->next;
  shm_tell_drop(world, span->rank, span->place.segment);
  shm_drop(world, span->rank, span->place.segment);
  shm_delete(world->host, span, sizeof *span);
}

void shm_leave(opipe_world *world, shm_heard *heard, shm_span *span) {
  if (span == NULL || heard == NULL || heard == &world->closed) {
    shm_give(world, span);
    return;
  }
  span->n_left = 1;
  span->limbo = heard->limbo;
  heard->limbo = span;
}

/* Segment 0 begins with the bell. */
opipe_status shm_memory_open(opipe_endpoint *endpoint, opipe_error *err) {
  shm_span *span = NULL;
  const opipe_status status = shm_take(endpoint->world, endpoint->rank, sizeof(machine_bell), false,
                                       "its doorbell", &span, err);
  if (status == OPIPE_OK) {
    endpoint->bell = (machine_bell *)(void *)span->data;
    endpoint->bell_place = span->place;
  }
  return status;
}

/* ---- slots of the table ---- */

opipe_status shm_address(const opipe_endpoint *endpoint, const opipe_region *region,
                         void **out_data, bool *out_remote, opipe_error *err) {
  return machine_address(endpoint->rank, endpoint->backend, endpoint->queue, region, out_data,
                         out_remote, err);
}

opipe_status shm_memory_register(opipe_endpoint *endpoint, opipe_buffer *buffer, uint64_t n_bytes,
                                 opipe_memory **out_memory, opipe_error *err) {
  const opipe_region region = {.buffer = buffer, .offset_bytes = 0, .n_bytes = n_bytes};
  shm_place place;
  void *data = NULL;
  bool remote = false;
  const opipe_status status = shm_address(endpoint, &region, &data, &remote, err);
  if (status < 0)
    return status;
  opipe_memory *memory = shm_new(endpoint->world->host, "registered memory", sizeof *memory, err);
  if (memory == NULL)
    return OPIPE_E_NOMEM;
  memory->endpoint = endpoint;
  opipe_status lent = OPIPE_OK;
  pthread_mutex_lock(&endpoint->world->lock);
  if (remote || !shm_find(endpoint, data, n_bytes, &place))
    endpoint->has_other = true;
  if (remote) {
    endpoint->has_remote = true;
    lent = shm_lend(endpoint, buffer, n_bytes, &memory->lent, err);
  }
  pthread_mutex_unlock(&endpoint->world->lock);
  if (lent < 0)
    shm_delete(endpoint->world->host, memory, sizeof *memory);
  else
    *out_memory = memory;
  return lent;
}

void shm_memory_drop(opipe_memory *memory) {
  if (memory == NULL)
    return;
  opipe_world *world = memory->endpoint->world;
  pthread_mutex_lock(&world->lock);
  if (memory->lent != NULL)
    shm_take_back(memory->endpoint, memory->lent);
  pthread_mutex_unlock(&world->lock);
  shm_delete(world->host, memory, sizeof *memory);
}

opipe_status shm_memory_alloc(opipe_endpoint *endpoint, uint64_t n_bytes, void **out_data,
                              opipe_error *err) {
  shm_span *span = NULL;
  pthread_mutex_lock(&endpoint->world->lock);
  const opipe_status status =
      shm_take(endpoint->world, endpoint->rank, n_bytes, true, "memory for messages", &span, err);
  if (status == OPIPE_OK) {
    endpoint->has_memory = true;
    *out_data = span->data;
  }
  pthread_mutex_unlock(&endpoint->world->lock);
  return status;
}

void shm_memory_free(opipe_endpoint *endpoint, void *data) {
  if (data == NULL)
    return;
  pthread_mutex_lock(&endpoint->world->lock);
  shm_span *span = endpoint->world->seats[endpoint->rank].spans;
  while (span != NULL && span->data != data)
    span = span->next;
  shm_give(endpoint->world, span);
  pthread_mutex_unlock(&endpoint->world->lock);
}
