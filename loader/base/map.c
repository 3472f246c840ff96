/* SPDX-License-Identifier: Apache-2.0 */
/* Name -> index map: the one place that uses uthash. Its out-of-memory exit is turned into a
 * status, its memory comes from the context. */
#include "loader/base/base.h"

#include <string.h>

typedef struct entry entry;

struct opi_map {
  const opipe_allocator *allocator;
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
  size_t n_bytes;
  uint32_t value;
  char key[];
};

opipe_status opi_map_create(const opipe_allocator *allocator, opi_map **out_map, opipe_error *err) {
  opi_map *map = opi_alloc_zero(allocator, 1, sizeof(*map));
  if (map == NULL)
    return opi_fail_nomem(err, sizeof(*map), "a name map");
  map->allocator = allocator;
  *out_map = map;
  return OPIPE_OK;
}

void opi_map_free(opi_map *map) {
  if (map == NULL)
    return;
  entry *e = NULL, *next = NULL;
  HASH_ITER(hh, map->head, e, next) {
    HASH_DEL(map->head, e);
    opi_free(map->allocator, e, e->n_bytes);
  }
  opi_free(map->allocator, map, sizeof(*map));
}

static entry *find(const opi_map *map, const char *key) {
  entry *e = NULL;
  HASH_FIND(hh, map->head, key, strlen(key), e);
  return e;
}

opipe_status opi_map_set(opi_map *map, const char *key, uint32_t value, opipe_error *err) {
  entry *e = find(map, key);
  if (e != NULL) {
    e->value = value;
    return OPIPE_OK;
  }
  const size_t n = strlen(key), n_bytes = sizeof(*e) + n + 1;
  e = opi_alloc_zero(map->allocator, 1, n_bytes);
  if (e == NULL)
    return opi_fail_nomem(err, n_bytes, "a name");
  e->n_bytes = n_bytes;
  e->value = value;
  memcpy(e->key, key, n + 1);
  map->failed = false;
  HASH_ADD_KEYPTR(hh, map->head, e->key, n, e);
  if (map->failed) {
    opi_free(map->allocator, e, n_bytes);
    return opi_fail_nomem(err, n_bytes, "a name");
  }
  return OPIPE_OK;
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
  opi_free(map->allocator, e, e->n_bytes);
}

opipe_status opi_map_names(const opipe_allocator *allocator, const void *elements, uint32_t n,
                           size_t stride, opi_map **out_map, opipe_error *err) {
  opi_map *map = NULL;
  OPI_TRY(opi_map_create(allocator, &map, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t i = n; i-- > 0 && status >= 0;) { /* the first of a name stays */
    const char *name = NULL;
    memcpy(&name, (const char *)elements + i * stride, sizeof(name));
    status = opi_map_set(map, name, i, err);
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
