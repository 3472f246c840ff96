/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a tensor group's members: parameters packed from the whole tensor, and outputs put
 * together in the caller's buffer, beside plain loops over every element. */
#include <string.h>

#include "partition/program/packed.h"
#include "runtime/compiled/parts.h"
#include "tests/support/support.h"

enum { OUTER = 3, WIDE = 10, INNER = 2, ALL = OUTER * WIDE * INNER };

/* Member 1's entries of [q|k|v] packed in one: some of each. */
static const opi_shard_run runs[2][3] = {{{0, 2}, {4, 1}, {6, 2}}, {{2, 2}, {5, 1}, {8, 2}}};

static opi_param_part part_of(const float *data, const int64_t *shape, int32_t axis,
                              uint32_t n_runs, const opi_shard_run *of) {
  return (opi_param_part){.whole = {.name = "w",
                                    .data = data,
                                    .shape = shape,
                                    .n_bytes = ALL * sizeof *data,
                                    .dtype = OPIPE_FLOAT,
                                    .rank = 3},
                          .axis = axis,
                          .n_runs = n_runs,
                          .runs = of};
}

static void test_parameters_are_packed_run_by_run(void) {
  static const int64_t shape[] = {OUTER, WIDE, INNER};
  float whole[ALL], packed[ALL] = {0};
  for (uint32_t i = 0; i < ALL; ++i)
    whole[i] = (float)i;
  for (uint32_t member = 0; member < 2; ++member) {
    const opi_param_part part = part_of(whole, shape, 1, 3, runs[member]);
    uint32_t at = 0;
    OPI_ASSERT(opi_part_is_packed(&part));
    opi_part_pack(&part, packed);
    for (int64_t o = 0; o < OUTER; ++o) {
      for (uint32_t k = 0; k < 3; ++k) {
        for (int64_t e = 0; e < runs[member][k].n * INNER; ++e, ++at) {
          const int64_t from = (o * WIDE + runs[member][k].first) * INNER + e;
          OPI_ASSERT(packed[at] == whole[from]);
        }
      }
    }
    OPI_ASSERT_INT(at, ALL / 2);
  }
}

static void test_one_piece_of_the_file_is_no_copy(void) {
  static const int64_t shape[] = {OUTER, WIDE, INNER}, flat[] = {1, OUTER * WIDE, INNER};
  static const opi_shard_run one = {1, 2};
  const float whole[ALL] = {0};
  const opi_param_part rows = part_of(whole, shape, 0, 1, &one),
                       columns = part_of(whole, shape, 1, 1, &one),
                       alone = part_of(whole, flat, 1, 1, &one);
  OPI_ASSERT(!opi_part_is_packed(&rows));
  OPI_ASSERT(opi_part_is_packed(&columns));
  OPI_ASSERT(!opi_part_is_packed(&alone));
}

/* Rows [first, first + n) of OUTER, and a member's columns of WIDE. */
static void put(float *result, const float *whole, uint32_t member, int64_t first, int64_t n) {
  int64_t shape[] = {n, WIDE / 2, INNER};
  float part[ALL];
  uint32_t at = 0;
  const opi_value value = {.name = "y",
                           .dtype = OPIPE_FLOAT,
                           .rank = 3,
                           .shape = shape,
                           .n_bytes = (uint64_t)n * WIDE / 2 * INNER * sizeof(float)};
  const opi_port_part columns = {.axis = 1, .n_runs = 3, .n_whole = WIDE, .runs = runs[member]};
  const opi_result_place place = {.rows = {.carry = {.axis = 0, .outer = 1, .inner = 1},
                                           .n_whole = OUTER,
                                           .first = first,
                                           .n = n},
                                  .tokens = {.carry = {.axis = -1}},
                                  .member = &columns};
  const opi_result to = {.data = (char *)result};
  for (int64_t o = first; o < first + n; ++o) {
    for (uint32_t k = 0; k < 3; ++k) {
      for (int64_t e = 0; e < runs[member][k].n * INNER; ++e)
        part[at++] = whole[(o * WIDE + runs[member][k].first) * INNER + e];
    }
  }
  opi_result_put(&to, &value, &place, (const char *)part);
}

static void test_outputs_are_joined_by_columns_and_rows(void) {
  float whole[ALL], result[ALL];
  memset(result, 0xff, sizeof result);
  for (uint32_t i = 0; i < ALL; ++i)
    whole[i] = (float)i + 1;
  for (uint32_t member = 0; member < 2; ++member) {
    put(result, whole, member, 0, 2);
    put(result, whole, member, 2, OUTER - 2);
  }
  OPI_ASSERT_BITS(result, whole, ALL, OPIPE_FLOAT);
}

/* ---- entries that several members have ---- */

enum { MEMBERS = 3, RUNS_MOST = 2 };
static const opi_shard_run shared_runs[MEMBERS][RUNS_MOST] = {{{0, 4}}, {{2, 3}, {7, 2}}, {{3, 7}}};
static const uint32_t n_shared_runs[MEMBERS] = {1, 2, 1};

/* A member's entries, each with its number. */
static uint32_t make_part(uint32_t member, float *part) {
  uint32_t n = 0;
  for (int64_t o = 0; o < OUTER; ++o) {
    for (uint32_t k = 0; k < n_shared_runs[member]; ++k) {
      for (int64_t e = 0; e < shared_runs[member][k].n * INNER; ++e)
        part[n++] = (float)member;
    }
  }
  return n;
}

static bool has(uint32_t member, int64_t column) {
  for (uint32_t k = 0; k < n_shared_runs[member]; ++k) {
    const opi_shard_run *run = &shared_runs[member][k];
    if (column >= run->first && column < run->first + run->n)
      return true;
  }
  return false;
}

static void test_the_first_that_has_an_entry_writes_it(void) {
  opi_port_part parts[MEMBERS];
  opi_variant_slice slices[MEMBERS];
  float result[ALL], part[ALL];
  memset(slices, 0, sizeof slices);
  memset(result, 0xff, sizeof result);
  for (uint32_t m = 0; m < MEMBERS; ++m) {
    parts[m] = (opi_port_part){.axis = 1,
                               .n_runs = n_shared_runs[m],
                               .shared = true,
                               .n_whole = WIDE,
                               .runs = shared_runs[m]};
    slices[m].output_parts = &parts[m];
  }
  for (uint32_t m = MEMBERS; m-- > 0;) { /* the last one first: it must leave the others' alone */
    const uint32_t n = make_part(m, part);
    int64_t shape[] = {OUTER, n / OUTER / INNER, INNER};
    const opi_value value = {
        .name = "y", .dtype = OPIPE_FLOAT, .rank = 3, .shape = shape, .n_bytes = n * sizeof(float)};
    const opi_result_place place = {.rows = {.carry = {.axis = -1}},
                                    .tokens = {.carry = {.axis = -1}},
                                    .member = &parts[m],
                                    .slice = &slices[m],
                                    .n_before = m};
    const opi_result to = {.data = (char *)result};
    opi_result_put(&to, &value, &place, (const char *)part);
    for (int64_t i = 0; i < ALL; ++i) {
      const int64_t column = i / INNER % WIDE;
      uint32_t first = 0;
      while (first < MEMBERS && !has(first, column))
        ++first;
      OPI_ASSERT_INT(result[i] == (float)m, first == m);
    }
  }
}

OPI_TEST_MAIN("parts of members", OPI_TEST(test_the_first_that_has_an_entry_writes_it),
              OPI_TEST(test_parameters_are_packed_run_by_run),
              OPI_TEST(test_one_piece_of_the_file_is_no_copy),
              OPI_TEST(test_outputs_are_joined_by_columns_and_rows))
