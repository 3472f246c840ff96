/* SPDX-License-Identifier: Apache-2.0 */
/* Name maps against a plain table of all names: adding, claiming, replacing and removing in any
 * order. */
#include <stdio.h>
#include <string.h>

#include "loader/base/base.h"
#include "tests/support/support.h"

enum { N_NAMES = 500, N_STEPS = 60000 };

typedef struct table {
  char names[N_NAMES][16];
  bool there[N_NAMES];
  uint32_t values[N_NAMES], n;
} table;

static uint32_t next_random(uint64_t *io_state) {
  *io_state = *io_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
  return (uint32_t)(*io_state >> 33);
}

static void put(table *t, uint32_t i, uint32_t value) {
  t->n += t->there[i] ? 0u : 1u;
  t->there[i] = true;
  t->values[i] = value;
}

/* One change of both; what the map says of the claimed name. */
static bool change(opi_map *map, table *t, uint32_t kind, uint32_t i, uint32_t value) {
  uint32_t said = 0;
  char lent[16];
  memcpy(lent, t->names[i], sizeof lent);
  if (kind == 0) {
    opi_map_remove(map, lent);
    t->n -= t->there[i] ? 1u : 0u;
    t->there[i] = false;
    return true;
  }
  if (kind == 1) {
    if (opi_map_claim(map, t->names[i], value, &said, NULL) != OPIPE_OK)
      return false;
    if (!t->there[i])
      put(t, i, value);
    return said == t->values[i];
  }
  put(t, i, value);
  return kind == 2 ? opi_map_keep(map, t->names[i], value, NULL) == OPIPE_OK
                   : opi_map_set(map, lent, value, NULL) == OPIPE_OK;
}

static bool agree(const opi_map *map, const table *t) {
  if (opi_map_count(map) != t->n)
    return false;
  for (uint32_t i = 0; i < N_NAMES; ++i) {
    uint32_t value = 0;
    const bool there = opi_map_get(map, t->names[i], &value);
    if (there != t->there[i] || (there && value != t->values[i]))
      return false;
  }
  return true;
}

static void test_any_order(void) {
  static table t;
  opi_map *map = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  uint64_t state = 1;
  bool good = true;
  OPI_ASSERT_OK_FATAL(opi_map_create(opi_allocator_system(), &map, &err), &err);
  for (uint32_t i = 0; i < N_NAMES; ++i)
    (void)snprintf(t.names[i], sizeof t.names[i], "%s%u", i % 2 == 0 ? "a" : "layer.", i);
  for (uint32_t step = 0; step < N_STEPS && good; ++step) {
    /* Now few names, now nearly all: the table is full at times and nearly empty at others. */
    const uint32_t kinds = step / 5000 % 2 == 0 ? 8 : 2;
    const uint32_t kind = next_random(&state) % kinds, i = next_random(&state) % N_NAMES;
    good = change(map, &t, kind < 3 ? kind : 3, i, step) && (step % 100 != 0 || agree(map, &t));
  }
  OPI_ASSERT(good);
  OPI_ASSERT(agree(map, &t));
  opi_map_free(map);
}

static void test_many_names(void) {
  enum { MANY = 100000 };
  opi_map *map = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t value = 0, wrong = 0;
  char name[32];
  OPI_ASSERT_OK_FATAL(opi_map_create(opi_allocator_system(), &map, &err), &err);
  OPI_ASSERT(!opi_map_get(map, "w0", &value));
  opi_map_remove(map, "w0");
  for (uint32_t i = 0; i < MANY; ++i) {
    (void)snprintf(name, sizeof name, "w%u", i);
    wrong += opi_map_set(map, name, i, NULL) != OPIPE_OK;
  }
  for (uint32_t i = 0; i < MANY; ++i) {
    (void)snprintf(name, sizeof name, "w%u", i);
    wrong += !opi_map_get(map, name, &value) || value != i;
  }
  OPI_ASSERT_INT(wrong, 0);
  OPI_ASSERT_INT(opi_map_count(map), MANY);
  OPI_ASSERT(!opi_map_get(map, "", &value));
  opi_map_free(map);
}

static void test_first_of_a_name(void) {
  const struct {
    const char *name;
    int32_t other;
  } elements[] = {{"x", 1}, {"y", 2}, {"x", 3}};
  opi_map *map = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t value = 9;
  OPI_ASSERT_OK_FATAL(
      opi_map_names(opi_allocator_system(), elements, 3, sizeof elements[0], &map, &err), &err);
  OPI_ASSERT(opi_map_get(map, "x", &value));
  OPI_ASSERT_INT(value, 0);
  OPI_ASSERT(opi_map_get(map, "y", &value));
  OPI_ASSERT_INT(value, 1);
  opi_map_free(map);
}

OPI_TEST_MAIN("name maps", OPI_TEST(test_any_order), OPI_TEST(test_many_names),
              OPI_TEST(test_first_of_a_name))
