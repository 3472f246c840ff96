/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets in the arena: the same as those of a plain scan, for storages of every kind of lifetime.
 */
#include "loader/base/base.h"
#include "plugins/backend-cpu/program.h"
#include "tests/support/support.h"

enum { STORAGES_MOST = 400, ROUNDS = 600 };

static uint32_t below(opi_test_random *random, uint32_t n) {
  return (uint32_t)(opi_test_next(random) % n);
}

/* The lowest offset of the smallest gap among those `placed` that live with `fresh`. */
static uint64_t scan(const cpu_storage *storages, const uint32_t *placed, uint32_t n,
                     const cpu_storage *fresh) {
  uint64_t end = 0, best = UINT64_MAX, best_size = UINT64_MAX;
  for (uint32_t i = 0; i < n; ++i) {
    const cpu_storage *other = &storages[placed[i]];
    if (other->last < fresh->first || fresh->last < other->first)
      continue;
    if (other->offset >= end + fresh->n_bytes && other->offset - end < best_size) {
      best = end;
      best_size = other->offset - end;
    }
    end = other->offset + other->n_bytes > end ? other->offset + other->n_bytes : end;
  }
  return best != UINT64_MAX ? best : end;
}

static bool goes_before(const cpu_storage *a, const cpu_storage *b) {
  return a->n_bytes != b->n_bytes ? a->n_bytes > b->n_bytes : a->first < b->first;
}

static uint64_t place_by_scan(cpu_storage *storages, uint32_t n) {
  uint32_t order[STORAGES_MOST], placed[STORAGES_MOST];
  uint64_t high = 0;
  for (uint32_t i = 0; i < n; ++i) {
    storages[i].n_bytes = cpu_align_up(storages[i].n_bytes, CPU_ALIGN_BYTES);
    uint32_t k = i;
    for (; k > 0 && goes_before(&storages[i], &storages[order[k - 1]]); --k)
      order[k] = order[k - 1];
    order[k] = i;
  }
  for (uint32_t i = 0; i < n; ++i) {
    cpu_storage *fresh = &storages[order[i]];
    uint32_t k = i;
    fresh->offset = scan(storages, placed, i, fresh);
    for (; k > 0 && storages[placed[k - 1]].offset > fresh->offset; --k)
      placed[k] = placed[k - 1];
    placed[k] = order[i];
    high = fresh->offset + fresh->n_bytes > high ? fresh->offset + fresh->n_bytes : high;
  }
  return high;
}

static bool same_as_scan(const opipe_host *host, cpu_storage *storages, uint32_t n) {
  cpu_storage expected[STORAGES_MOST];
  opipe_program program = {.storages = storages, .n_storages = n};
  opipe_error err = OPIPE_ERROR_INIT;
  memcpy(expected, storages, n * sizeof expected[0]);
  cpu_pool_init(&program.pool, host);
  bool same = cpu_place_arena(&program, &err) == OPIPE_OK &&
              program.temp_bytes == place_by_scan(expected, n);
  for (uint32_t i = 0; i < n && same; ++i)
    same = storages[i].offset == expected[i].offset;
  cpu_pool_release(&program.pool);
  return same;
}

static void test_offsets_are_those_of_a_scan(void) {
  const opipe_host host = {.struct_size = sizeof host, .realloc = opi_allocator_system()->realloc};
  opi_test_random random = {7};
  uint32_t round = 0;
  for (; round < ROUNDS; ++round) {
    static cpu_storage storages[STORAGES_MOST];
    const uint32_t n = 1 + below(&random, round % 10 == 0 ? STORAGES_MOST : 60);
    const uint32_t sizes = 1 + below(&random, 12), longest = 1 + below(&random, n);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t first = below(&random, n);
      storages[i] = (cpu_storage){.kind = CPU_PLACE_ARENA,
                                  .n_bytes = 50 * below(&random, sizes), /* also none */
                                  .first = first,
                                  .last = first + below(&random, longest)};
    }
    if (!same_as_scan(&host, storages, n))
      break;
  }
  OPI_ASSERT_INT(round, ROUNDS); /* of `round` some offset differs */
}

OPI_TEST_MAIN("arena", OPI_TEST(test_offsets_are_those_of_a_scan))
