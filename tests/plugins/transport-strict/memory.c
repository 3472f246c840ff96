/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers of an endpoint: where its regions must lie, and how many are in flight. */
#include "strict.h"

static opipe_memory *find(const opipe_endpoint *e, const opipe_buffer *buffer) {
  opipe_memory *m = e->memories;
  while (m != NULL && (m->buffer != buffer || m->dropped))
    m = m->next;
  return m;
}

static opipe_status register_locked(opipe_endpoint *e, opipe_memory *memory, opipe_error *err) {
  char who[STRICT_WHO];
  const opipe_memory *old = find(e, memory->buffer);
  const opipe_status status = strict_check(e->place, err);
  if (status < 0)
    return status;
  strict_who_rank(e, who);
  if (old != NULL) {
    return strict_refuse(who, "memory_register", err,
                         "%llu bytes of a buffer of which %llu are registered already",
                         (unsigned long long)memory->n_bytes, (unsigned long long)old->n_bytes);
  }
  memory->next = e->memories;
  e->memories = memory;
  atomic_fetch_add(&strict_counted()->registered, 1);
  return OPIPE_OK;
}

opipe_status strict_memory_register(opipe_endpoint *e, opipe_buffer *buffer, uint64_t n_bytes,
                                    opipe_memory **out_memory, opipe_error *err) {
  const opipe_region all = {.buffer = buffer, .n_bytes = n_bytes};
  char who[STRICT_WHO];
  void *base = NULL;
  strict_who_rank(e, who);
  if (buffer == NULL || n_bytes == 0) {
    return strict_refuse(who, "memory_register", err, "%llu bytes of %s buffer",
                         (unsigned long long)n_bytes, buffer == NULL ? "no" : "a");
  }
  opipe_status status = opipe_endpoint_address(e->rank, e->backend, &all, &base, err);
  if (status < 0)
    return status;
  opipe_memory *memory =
      opipe_zeroed(e->world->host, "registered memory", sizeof *memory, STRICT_ALIGN, err);
  if (memory == NULL)
    return OPIPE_E_NOMEM;
  memory->endpoint = e;
  memory->buffer = buffer;
  memory->base = base;
  memory->n_bytes = n_bytes;
  pthread_mutex_lock(&e->place->lock);
  status = register_locked(e, memory, err);
  pthread_mutex_unlock(&e->place->lock);
  if (status < 0)
    opipe_free(e->world->host, memory, sizeof *memory, STRICT_ALIGN);
  else
    *out_memory = memory;
  return status;
}

static void forget(opipe_memory *memory) {
  opipe_endpoint *e = memory->endpoint;
  opipe_memory **at = &e->memories;
  while (*at != memory)
    at = &(*at)->next;
  *at = memory->next;
  opipe_free(e->world->host, memory, sizeof *memory, STRICT_ALIGN);
}

void strict_memory_drop(opipe_memory *memory) {
  if (memory == NULL)
    return;
  opipe_endpoint *e = memory->endpoint;
  pthread_mutex_lock(&e->place->lock);
  if (memory->n_in_flight != 0 && atomic_load(&e->place->aborted) == 0) {
    strict_break(e->world->host, e->place, e->rank,
                 "memory_drop: rank %u: %llu regions of the %llu bytes are in flight", e->rank,
                 (unsigned long long)memory->n_in_flight, (unsigned long long)memory->n_bytes);
  }
  if (memory->n_in_flight != 0)
    strict_calm(e, NULL); /* the world has ended: no thread takes anything up again */
  memory->dropped = true;
  if (memory->n_in_flight == 0)
    forget(memory);
  pthread_mutex_unlock(&e->place->lock);
  strict_endpoint_leave(e);
}

opipe_status strict_region(const opipe_endpoint *e, const opipe_region *region, const char *who,
                           const char *call, opipe_memory **out_memory, char **out_data,
                           opipe_error *err) {
  *out_memory = NULL;
  *out_data = NULL;
  if (region->n_bytes == 0)
    return OPIPE_OK;
  opipe_memory *m = find(e, region->buffer);
  if (m == NULL) {
    uint32_t n = 0;
    for (const opipe_memory *k = e->memories; k != NULL; k = k->next)
      ++n;
    return strict_refuse(who, call, err,
                         "a region of %llu bytes in none of the %u buffers that are registered",
                         (unsigned long long)region->n_bytes, n);
  }
  if (region->offset_bytes > m->n_bytes || region->n_bytes > m->n_bytes - region->offset_bytes) {
    return strict_refuse(who, call, err,
                         "%llu bytes from byte %llu of a buffer of which %llu are registered",
                         (unsigned long long)region->n_bytes,
                         (unsigned long long)region->offset_bytes, (unsigned long long)m->n_bytes);
  }
  *out_memory = m;
  *out_data = m->base + region->offset_bytes;
  return OPIPE_OK;
}

void strict_take(opipe_memory *memory) {
  if (memory != NULL)
    ++memory->n_in_flight;
}

void strict_give(opipe_memory **io_memory) {
  opipe_memory *memory = *io_memory;
  *io_memory = NULL;
  if (memory == NULL || --memory->n_in_flight != 0 || !memory->dropped)
    return;
  forget(memory);
}
