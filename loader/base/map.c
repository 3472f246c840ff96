/* SPDX-License-Identifier: Apache-2.0 */
/* Name -> index map: open addressing with linear probing, at most half full. A slot holds a part of
 * the hash beside the key, so that a look-up touches one line of the table and, where the hash
 * agrees, the key; growing reads the table in order, and no key. Copied keys lie in an arena and
 * end together: models with a million names are read. */
#define XXH_INLINE_ALL
#include "loader/base/base.h"

#include <string.h>
#include <xxhash.h>

typedef struct slot {
  const char *key; /* NULL: free */
  uint32_t hash, value;
} slot;

struct opi_map {
  const opipe_allocator *allocator;
  opi_arena keys; /* the copied ones */
  slot *slots;    /* [n_slots]; NULL while nothing was added */
  size_t n_slots; /* a power of two */
  uint32_t count;
};

enum { FIRST_SLOTS = 16 };

opipe_status opi_map_create(const opipe_allocator *allocator, opi_map **out_map, opipe_error *err) {
  opi_map *map = opi_alloc_zero(allocator, 1, sizeof(*map));
  if (map == NULL)
    return opi_fail_nomem(err, sizeof(*map), "a name map");
  map->allocator = allocator;
  opi_arena_init(&map->keys, allocator, 0);
  *out_map = map;
  return OPIPE_OK;
}

void opi_map_free(opi_map *map) {
  if (map == NULL)
    return;
  opi_free(map->allocator, map->slots, map->n_slots * sizeof(slot));
  opi_arena_release(&map->keys);
  opi_free(map->allocator, map, sizeof(*map));
}

/* Seeded by the map's address, so that names which collide in one map do not in the next. */
static uint32_t hash_of(const opi_map *map, const char *key) {
  return (uint32_t)XXH3_64bits_withSeed(key, strlen(key), (uintptr_t)map);
}

/* The key's slot, or the free one where it would be put; the map has slots. */
static slot *find(const opi_map *map, const char *key, uint32_t hash) {
  const size_t mask = map->n_slots - 1;
  size_t at = hash & mask;
  while (map->slots[at].key != NULL &&
         (map->slots[at].hash != hash || strcmp(map->slots[at].key, key) != 0))
    at = (at + 1) & mask;
  return &map->slots[at];
}

/* Room for one key more. */
static opipe_status grow(opi_map *map, opipe_error *err) {
  const size_t n = map->n_slots == 0 ? FIRST_SLOTS : map->n_slots * 2;
  if (map->count < map->n_slots / 2)
    return OPIPE_OK;
  slot *slots = opi_alloc_zero(map->allocator, n, sizeof(slot));
  if (slots == NULL)
    return opi_fail_nomem(err, n * sizeof(slot), "a name map");
  for (size_t i = 0; i < map->n_slots; ++i) {
    const slot *from = &map->slots[i];
    size_t at = from->hash & (n - 1);
    if (from->key == NULL)
      continue;
    while (slots[at].key != NULL)
      at = (at + 1) & (n - 1);
    slots[at] = *from;
  }
  opi_free(map->allocator, map->slots, map->n_slots * sizeof(slot));
  map->slots = slots;
  map->n_slots = n;
  return OPIPE_OK;
}

/* The key's slot, made with `value` where there is none. */
static opipe_status add(opi_map *map, const char *key, bool borrow, uint32_t value, slot **out_slot,
                        opipe_error *err) {
  const uint32_t hash = hash_of(map, key);
  OPI_TRY(grow(map, err));
  slot *s = find(map, key, hash);
  *out_slot = s;
  if (s->key != NULL)
    return OPIPE_OK;
  const char *kept = borrow ? key : opi_arena_strdup(&map->keys, key);
  if (kept == NULL)
    return opi_fail_nomem(err, strlen(key) + 1, "a name");
  *s = (slot){kept, hash, value};
  ++map->count;
  return OPIPE_OK;
}

opipe_status opi_map_set(opi_map *map, const char *key, uint32_t value, opipe_error *err) {
  slot *s = NULL;
  OPI_TRY(add(map, key, false, value, &s, err));
  s->value = value;
  return OPIPE_OK;
}

opipe_status opi_map_keep(opi_map *map, const char *key, uint32_t value, opipe_error *err) {
  slot *s = NULL;
  OPI_TRY(add(map, key, true, value, &s, err));
  s->value = value;
  return OPIPE_OK;
}

opipe_status opi_map_claim(opi_map *map, const char *key, uint32_t value, uint32_t *out_value,
                           opipe_error *err) {
  slot *s = NULL;
  OPI_TRY(add(map, key, true, value, &s, err));
  *out_value = s->value;
  return OPIPE_OK;
}

bool opi_map_get(const opi_map *map, const char *key, uint32_t *out_value) {
  const slot *s = map->n_slots == 0 ? NULL : find(map, key, hash_of(map, key));
  if (s == NULL || s->key == NULL)
    return false;
  *out_value = s->value;
  return true;
}

/* The slots behind the freed one move up, as far as their own places allow. */
void opi_map_remove(opi_map *map, const char *key) {
  slot *s = map->n_slots == 0 ? NULL : find(map, key, hash_of(map, key));
  if (s == NULL || s->key == NULL)
    return;
  const size_t mask = map->n_slots - 1;
  size_t hole = (size_t)(s - map->slots);
  for (size_t at = (hole + 1) & mask; map->slots[at].key != NULL; at = (at + 1) & mask) {
    const size_t home = map->slots[at].hash & mask;
    if (((at - home) & mask) < ((at - hole) & mask))
      continue;
    map->slots[hole] = map->slots[at];
    hole = at;
  }
  map->slots[hole] = (slot){0};
  --map->count;
}

opipe_status opi_map_names(const opipe_allocator *allocator, const void *elements, uint32_t n,
                           size_t stride, opi_map **out_map, opipe_error *err) {
  opi_map *map = NULL;
  OPI_TRY(opi_map_create(allocator, &map, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status >= 0; ++i) { /* the first of a name stays */
    const char *name = NULL;
    uint32_t first = 0;
    memcpy(&name, (const char *)elements + i * stride, sizeof(name));
    status = opi_map_claim(map, name, i, &first, err);
  }
  if (status < 0) {
    opi_map_free(map);
    return status;
  }
  *out_map = map;
  return OPIPE_OK;
}

uint32_t opi_map_count(const opi_map *map) {
  return map->count;
}
