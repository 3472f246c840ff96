/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of replicas of single stages in inference; see shares.h. */
#include "tests/matrix/shares.h"

#include "tests/matrix/slices.h"

#include <stdio.h>
#include <string.h>

typedef struct shares_case {
  const char *schedule;
  uint32_t list[4], n; /* replicas of every rank of the schedule */
  uint32_t microbatches;
  int64_t rows, other; /* of the plan; of requests in turn with its own */
} shares_case;

/* Micro-batches of equal and of unequal rows, cut evenly and not; more stages than ranks; requests
 * with too few rows for all micro-batches, and with more than the plan's. */
static const shares_case CASES[] = {
    {"gpipe", {2, 1}, 2, 2, 6, 9},      {"1f1b", {1, 3}, 2, 2, 7, 4},
    {"gpipe", {1, 2, 1}, 3, 3, 9, 8},   {"sequential", {2, 1, 3}, 3, 2, 7, 3},
    {"looped-bfs", {2, 1}, 2, 3, 7, 2}, {"interleaved", {1, 2}, 2, 2, 6, 5},
    {"zbv", {3, 2}, 2, 2, 9, 7},        {"gpipe", {2, 2}, 2, 1, 7, 2},
    {"sequential", {2, 3}, 2, 3, 9, 6}, {"gpipe", {1, 1, 2, 1}, 4, 4, 9, 2},
};

/* The same of token slices: for decoders. */
static const shares_case SLICED[] = {
    {"terapipe:slices=2", {2, 1}, 2, 2, 7, 4},
    {"seq1f1b:slices=3", {1, 3}, 2, 1, 6, 9},
    {"terapipe:slices=3", {1, 2, 1}, 3, 2, 8, 5},
};

static opipe_status make_plan(mx_bench *b, const shares_case *c, opipe_plan **out_plan) {
  const opipe_device_choice device = kit_place_device(&b->place);
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .devices = &device,
                                    .n_devices = 1,
                                    .devices_stride = sizeof device,
                                    .n_microbatches = c->microbatches,
                                    .stage_replicas = c->list,
                                    .n_stage_replicas = c->n,
                                    .schedule = c->schedule,
                                    .transport = b->place.transport,
                                    .flags = OPIPE_PLAN_IGNORE_ANNOTATIONS};
  return b->m.api->plan_make(b->m.bound, &params, out_plan, &b->m.err);
}

/* false: the model has no other rows than its data set's. */
static bool run_case(mx_bench *b, const shares_case *c, mx_count *count, uint32_t *io_seen) {
  opipe_plan *plan = NULL;
  if (!mx_bench_bind(b, c->other) || !mx_bench_bind(b, c->rows)) {
    ++count->refused_rows;
    return false;
  }
  const opipe_status status = make_plan(b, c, &plan);
  if (status == OPIPE_OK || !mx_refused(count, &b->m, status)) {
    const char *wrong =
        status == OPIPE_OK ? mx_bench_serve(b, &plan, c->rows, c->other) : b->m.err.message;
    ++*(wrong == NULL ? &count->passed : &count->failed);
    *io_seen += wrong == NULL;
    if (wrong != NULL) {
      OPI_FAIL("%s, replicas %u %u %u %u under %s, %u micro-batches of %lld rows, then %lld: %s",
               b->folder->name, c->list[0], c->list[1], c->list[2], c->list[3], c->schedule,
               c->microbatches, (long long)c->rows, (long long)c->other, wrong);
    }
  } else {
    (void)printf("%s is not cut: %s\n", b->folder->name, b->m.err.message);
  }
  b->m.api->plan_destroy(plan);
  return true;
}

void mx_shares(bool full, const kit_place *places, uint32_t n_places, mx_count *count) {
  const char *names[MX_FOLDERS];
  const size_t n = mx_list(names);
  uint32_t seen[OPI_COUNT(CASES)] = {0};
  uint32_t turn = 0, sliced = 0;
  memset(count, 0, sizeof *count);
  for (size_t i = 0; i < n; ++i) {
    static mx_bench b;
    if (!full && !opi_test_covers((uint32_t)i, opi_test_is_sanitized() ? 3 : 2))
      continue;
    if (!mx_bench_open(&b, names[i], &places[i / 2 % n_places], turn % 2 == 0)) {
      ++count->failed;
      continue;
    }
    bool goes_on = true;
    for (size_t k = 0; goes_on && k < (full ? OPI_COUNT(CASES) : 1); ++k) {
      const size_t at = (turn + k) % OPI_COUNT(CASES);
      goes_on = run_case(&b, &CASES[at], count, &seen[at]);
    }
    for (size_t k = 0; mx_is_decoder(names[i]) && k < (full ? OPI_COUNT(SLICED) : 1); ++k)
      (void)run_case(&b, &SLICED[(turn + k) % OPI_COUNT(SLICED)], count, &sliced);
    mx_bench_close(&b);
    ++turn;
  }
  for (size_t k = 0; k < OPI_COUNT(CASES); ++k) {
    if (seen[k] == 0)
      OPI_FAIL("no model passed under case %zu, %s", k, CASES[k].schedule);
  }
  if (n != 0 && sliced == 0)
    OPI_FAIL("no model passed in %s", "token slices");
  (void)printf(
      "\n%zu models: %u passed, %u failed; refused as they must be: %u by a node that does "
      "not carry the batch, %u without a free batch dimension, %u with rows of their own\n",
      n, count->passed, count->failed, count->refused_node, count->refused_batch,
      count->refused_rows);
}
