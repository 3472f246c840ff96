/* SPDX-License-Identifier: Apache-2.0 */
/* See offload.h. */
#include "tests/runtime/train/offload.h"

#include <stdlib.h>

#include "partition/lists/lists.h"
#include "partition/program/model.h"
#include "tests/runtime/train/memory.h"

enum { CLASSES = 32 };

const kit_place offload_places[OFFLOAD_PLACES] = {
    {.device = "emulated", .device_options = "async=1,host_bandwidth=4e9"},
    {.device = "emulated",
     .device_index = 16,
     .device_options = "async=1,host_bandwidth=1e9",
     .transport = "staged"}};

uint32_t offload_moves(kit *k) {
  const opi_bind_options bind = {.dims = k->dims,
                                 .n_dims = k->n_dims,
                                 .flags = OPI_BIND_KEEP_PARAMETERS,
                                 .evaluator = k->evaluator,
                                 .allocator = opi_allocator_system()};
  const opi_cut_sources from = {.plan = &k->plan->decided,
                                .times = &k->plan->predicted.times,
                                .file = k->model,
                                .base = &bind};
  uint32_t alignment[64], n = 0;
  opi_cut_model *model = NULL;
  opi_lists *lists = NULL;
  for (uint32_t r = 0; r < k->plan->decided.n_ranks; ++r)
    alignment[r] = k->plan->decided.devices[r].alignment;
  OPI_ASSERT_OK_FATAL(opi_cut_model_build(&from, &model, &k->err), &k->err);
  OPI_ASSERT_OK(opi_lists_build(model, alignment, false, opi_allocator_system(), &lists, &k->err),
                &k->err);
  n = lists == NULL ? 0 : lists->n_moves;
  opi_lists_free(lists);
  opi_cut_model_free(model);
  return n;
}

uint64_t offload_bytes(const kit *k) {
  uint64_t n = 0;
  for (uint32_t r = 0; r < k->plan->decided.n_ranks; ++r)
    n += k->plan->predicted.memory[r].offload_bytes;
  return n;
}

/* The word by which offloads refuse a schedule; NULL: they do not. */
static const char *refusal(const kit_schedule *schedule) {
  return (schedule->traits & KIT_HALVED) != 0 ? "backwards in halves" : NULL;
}

static bool train_and_compare(kit *k, const kit_case *c, offload_count *count) {
  kit_outcome on, reference, off;
  kit_case without = *c;
  opi_session *session = NULL;
  without.offload = NULL;
  OPI_ASSERT_OK_FATAL(kit_plan(k, &without), &k->err);
  OPI_ASSERT_OK_FATAL(kit_train(k, &without, CLASSES, 0, &off), &k->err);
  OPI_ASSERT_INT(offload_bytes(k), 0);
  OPI_ASSERT_OK_FATAL(kit_plan(k, c), &k->err);
  const uint32_t n_moves = offload_moves(k);
  count->n_moves += n_moves;
  OPI_ASSERT((n_moves == 0) == (offload_bytes(k) == 0));
  OPI_ASSERT_OK_FATAL(kit_session(k, 0, &session), &k->err);
  OPI_ASSERT_OK_FATAL(kit_train_in(k, session, c, CLASSES, &on), &k->err);
  const bool same = memory_as_predicted(k, session, c->schedule);
  opi_session_close(session);
  OPI_ASSERT_OK_FATAL(kit_train(k, c, CLASSES, OPIPE_SESSION_REFERENCE, &reference), &k->err);
  kit_compare(c->schedule, &on, &reference, 0);
  kit_compare(c->schedule, &on, &off, 0);
  return same;
}

void offload_check(kit *k, const kit_schedule *schedule, const kit_case *c, offload_count *count) {
  const char *why = refusal(schedule);
  if (why == NULL) {
    ++*(train_and_compare(k, c, count) ? &count->passed : &count->failed);
    return;
  }
  const opipe_status status = kit_plan(k, c);
  const bool good = status == OPIPE_E_UNSUPPORTED && strstr(k->err.message, "offload: ") != NULL &&
                    strstr(k->err.message, why) != NULL;
  if (!good)
    OPI_FAIL("%s: status %d, '%s', wanted '%s'", c->schedule, (int)status, k->err.message, why);
  ++*(good ? &count->refused : &count->failed);
}
