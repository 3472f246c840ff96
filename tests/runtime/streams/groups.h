/* SPDX-License-Identifier: Apache-2.0 */
/* Streams in tensor groups: members keep the keys and values that their queries read. Heads may be
 * one member's, several members' or, where there are too few to divide, all of every member. */
#ifndef TESTS_RUNTIME_STREAMS_GROUPS_H
#define TESTS_RUNTIME_STREAMS_GROUPS_H

#include "tests/runtime/streams/runs.h"

enum { GROUP_MODELS = 6, WIDTHS = 3 };

typedef struct group_model {
  const char *name; /* NULL: gpt_past */
  uint32_t heads;
  uint32_t kept[WIDTHS]; /* heads that 2, 3 and 4 members keep, added up */
} group_model;

static const group_model GROUPS[GROUP_MODELS] = {
    {NULL, 2, {2, 6, 8}},      {"grown_6", 6, {6, 6, 6}},     {"grown_3", 3, {3, 3, 4}},
    {"grown_2", 2, {2, 4, 4}}, {"attention_2", 2, {2, 4, 4}}, {"group_query_2", 2, {2, 4, 4}}};

static run uncut;

static inline bool is_near(const float *a, const float *b, int64_t n) {
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    largest = fmax(largest, fabs((double)b[i]));
  }
  return largest > 0 && worst <= 1e-4 * largest;
}

/* Compares what was fed back or kept with the uncut model. */
static inline void near_uncut(const run *r) {
  for (uint32_t i = 0; i < STREAMS; ++i) {
    for (uint32_t s = 0; s < STEPS; ++s)
      OPI_ASSERT(is_near(r->calls[i][s].logits, uncut.calls[i][s].logits, LENGTHS[i][s] * CLASSES));
    for (uint32_t p = 0; p < PAIRS; ++p)
      OPI_ASSERT(is_near(r->kept[i][p], uncut.kept[i][p], kit_heads * first_of(i, STEPS) * WIDTH));
  }
}

/* A copy of a state has its bits, and a request of either goes on alike. */
static inline void check_copies(const plan_case *c) {
  static call a, b;
  static float from[PAIRS][KEPT], to[PAIRS][KEPT];
  const opipe_session_params open = {
      .struct_size = sizeof open, .max_in_flight = 6, .spin_us = UINT32_MAX};
  int64_t ids[MOST];
  host_kit k;
  OPI_ASSERT_OK_FATAL(kit_make_case(&k, c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, &open), &k.err);
  opipe_state *first = kit_state(&k), *second = kit_state(&k); /* on two copies of the pipeline */
  kit_ids_of(0, ids);
  OPI_ASSERT_OK(kit_step(&k, &a, first, ids, 5, kit_nothing, 0), &k.err);
  OPI_ASSERT_OK(kit_step(&k, &b, second, ids + 3, 2, kit_nothing, 0), &k.err);
  OPI_ASSERT_OK(k.api->state_copy(second, first, &k.err), &k.err);
  check_kept(&k, first, from, 5);
  check_kept(&k, second, to, 5);
  for (uint32_t p = 0; p < PAIRS; ++p)
    OPI_ASSERT(memcmp(from[p], to[p], kit_heads * 5 * WIDTH * sizeof(float)) == 0);
  OPI_ASSERT_OK(kit_step(&k, &a, first, ids + 5, 2, NULL, 0), &k.err);
  OPI_ASSERT_OK(kit_step(&k, &b, second, ids + 5, 2, NULL, 0), &k.err);
  OPI_ASSERT(memcmp(a.logits, b.logits, 2 * CLASSES * sizeof(float)) == 0);
  k.api->state_close(first);
  k.api->state_close(second);
  kit_close(&k);
}

static inline plan_case group_case(const group_model *m, uint32_t width, uint32_t n_stages) {
  return (plan_case){.n_stages = n_stages,
                     .n_streams = STREAMS,
                     .tensor = width,
                     .model = m->name,
                     .heads = m->heads,
                     .kept = m->kept[width - 2]};
}

/* The model whole, for near_uncut. */
static inline void run_uncut(const group_model *m) {
  check_streams(
      &(plan_case){.n_stages = 1, .n_streams = STREAMS, .model = m->name, .heads = m->heads}, 0);
  memcpy(&uncut, &fed, sizeof uncut);
}

static inline void check_group(const plan_case *c, uint32_t flags) {
  check_streams(c, flags);
  near_uncut(&fed);
  near_uncut(&kept);
}

#endif /* TESTS_RUNTIME_STREAMS_GROUPS_H */
