/* SPDX-License-Identifier: Apache-2.0 */
/* Name -> index map: the one place that uses uthash. Its out-of-memory exit is turned into a
 * status, its memory comes from the context. Entries lie in an arena and end together: models with
 * a million names are read. */
#include "loader/base/base.h"

#include <string.h>

typedef struct entry entry;

struct opi_map {
  const opipe_allocator *allocator;
  opi_arena entries;
  entry *head;
  bool failed; /* set by uthash when it could not grow its tables */
};

#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(elt) (map->failed = true)
#define uthash_malloc(n) opi_alloc(map->allocator, (n))
#define uthash_free(ptr, n) opi_free(map->allocator, (ptr), (n))
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wshadow"
#include <uthash.h>

struct entry {
  UT_hash_handle hh;
  uint32_t value;
};

opipe_status opi_map_create(const opipe_allocator *allocator, opi_map **out_map, opipe_error *err) {
  opi_map *map = opi_alloc_zero(allocator, 1, sizeof(*map));
  if (map == NULL)
    return opi_fail_nomem(err, sizeof(*map), "a name map");
  map->allocator = allocator;
  opi_arena_init(&map->entries, allocator, 0);
  *out_map = map;
  return OPIPE_OK;
}

void opi_map_free(opi_map *map) {
  if (map == NULL)
    return;
  HASH_CLEAR(hh, map->head);
  opi_arena_release(&map->entries);
  opi_free(map->allocator, map, sizeof(*map));
}

static entry *find(const opi_map *map, const char *key) {
  entry *e = NULL;
  HASH_FIND(hh, map->head, key, strlen(key), e);
  return e;
}

static opipe_status set(opi_map *map, const char *key, bool borrow, uint32_t value,
                        opipe_error *err) {
  const size_t n = strlen(key);
  unsigned hash = 0;
  entry *e = NULL;
  HASH_VALUE(key, n, hash);
  HASH_FIND_BYHASHVALUE(hh, map->head, key, n, hash, e);
  if (e != NULL) {
    e->value = value;
    return OPIPE_OK;
  }
  e = OPI_ARENA_NEW(&map->entries, entry);
  const char *kept = borrow ? key : opi_arena_strndup(&map->entries, key, n);
  if (e == NULL || kept == NULL)
    return opi_fail_nomem(err, sizeof(*e) + n + 1, "a name");
  e->value = value;
  map->failed = false;
  HASH_ADD_KEYPTR_BYHASHVALUE(hh, map->head, kept, n, hash, e);
  return map->failed ? opi_fail_nomem(err, sizeof(*e), "a name") : OPIPE_OK;
}

opipe_status opi_map_set(opi_map *map, const char *key, uint32_t value, opipe_error *err) {
  return set(map, key, false, value, err);
}

opipe_status opi_map_keep(opi_map *map, const char *key, uint32_t value, opipe_error *err) {
  return set(map, key, true, value, err);
}

bool opi_map_get(const opi_map *map, const char *key, uint32_t *out_value) {
  const entry *e = find(map, key);
  if (e == NULL)
    return false;
  *out_value = e->value;
  return true;
}

void opi_map_remove(opi_map *map, const char *key) {
  entry *e = find(map, key);
  if (e == NULL)
    return;
  HASH_DEL(map->head, e);
}

opipe_status opi_map_names(const opipe_allocator *allocator, const void *elements, uint32_t n,
                           size_t stride, opi_map **out_map, opipe_error *err) {
  opi_map *map = NULL;
  OPI_TRY(opi_map_create(allocator, &map, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t i = n; i-- > 0 && status >= 0;) { /* the first of a name stays */
    const char *name = NULL;
    memcpy(&name, (const char *)elements + i * stride, sizeof(name));
    status = opi_map_keep(map, name, i, err);
  }
  if (status < 0) {
    opi_map_free(map);
    return status;
  }
  *out_map = map;
  return OPIPE_OK;
}

uint32_t opi_map_count(const opi_map *map) {
  return (uint32_t)HASH_COUNT(map->head);
}
#pragma GCC diagnostic pop
