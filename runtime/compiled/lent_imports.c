/* SPDX-License-Identifier: Apache-2.0 */
/* The host's handles, imported once for a rank and found again. The list is in order of use; when
 * it is long, the least recently used import that no request uses is freed.
 */
#include "runtime/compiled/lent_kit.h"

static bool is_it(const opi_import *import, uint32_t kind, uint64_t native, uint64_t n_bytes) {
  return import->kind == kind && import->native == native && import->n_bytes >= n_bytes;
}

static void free_import(opi_rank *rank, opi_import *import) {
  if (import->kind == OPI_IMPORT_BUFFER)
    rank->backend->buffer_free(import->as.buffer);
  else if (import->kind == OPI_IMPORT_EVENT)
    rank->backend->event_destroy(import->as.event);
  else
    rank->backend->queue_close(import->as.queue);
  opi_free(rank->setup->allocator, import, sizeof *import);
  --rank->n_imports;
}

/* Frees the last unused import. Without one the list grows, by as many as requests use at once. */
static void make_room(opi_rank *rank) {
  opi_import **found = NULL;
  if (rank->n_imports < OPI_IMPORTS)
    return;
  for (opi_import **at = &rank->imports; *at != NULL; at = &(*at)->next) {
    if (opi_is_idle(rank->setup, &(*at)->n_users))
      found = at;
  }
  if (found == NULL)
    return;
  opi_import *old = *found;
  *found = old->next;
  free_import(rank, old);
}

static opipe_status make(opi_rank *rank, opi_import *import, opipe_error *err) {
  if (import->kind == OPI_IMPORT_BUFFER) {
    return OPI_MAKE_RANK(rank, buffer_import, &import->as.buffer, err, rank->device, import->native,
                         import->n_bytes);
  }
  return import->kind == OPI_IMPORT_EVENT ? OPI_MAKE_RANK(rank, event_import, &import->as.event,
                                                          err, rank->device, import->native)
                                          : OPI_MAKE_RANK(rank, queue_import, &import->as.queue,
                                                          err, rank->device, import->native);
}

static opipe_status add(opi_rank *rank, uint32_t kind, uint64_t native, uint64_t n_bytes,
                        opipe_error *err) {
  const opi_setup *s = rank->setup;
  make_room(rank);
  opi_import *import = opi_alloc_zero(s->allocator, 1, sizeof *import);
  if (import == NULL)
    return opi_fail_nomem(err, sizeof *import, "a handle of the host's");
  import->kind = kind;
  import->native = native;
  import->n_bytes = n_bytes;
  const opipe_status status = make(rank, import, err);
  if (status < 0) {
    opi_free(s->allocator, import, sizeof *import);
    return status;
  }
  import->next = rank->imports;
  rank->imports = import;
  ++rank->n_imports;
  return OPIPE_OK;
}

opipe_status opi_import_take(opi_rank *rank, uint32_t kind, uint64_t native, uint64_t n_bytes,
                             opi_import **out_import, opipe_error *err) {
  opi_import **at = &rank->imports;
  while (*at != NULL && !is_it(*at, kind, native, n_bytes))
    at = &(*at)->next;
  if (*at == NULL) {
    OPI_TRY(add(rank, kind, native, n_bytes, err));
  } else {
    opi_import *found = *at;
    *at = found->next;
    found->next = rank->imports;
    rank->imports = found;
  }
  atomic_fetch_add(&rank->imports->n_users, 1);
  *out_import = rank->imports;
  return OPIPE_OK;
}

void opi_imports_free(opi_rank *rank) {
  while (rank->imports != NULL) {
    opi_import *import = rank->imports;
    rank->imports = import->next;
    free_import(rank, import);
  }
}
