/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to the planner `auto`, with the schedules as they are built. */
#ifndef TESTS_PARTITION_AUTO_H
#define TESTS_PARTITION_AUTO_H

#include "partition/study/auto/auto.h"
#include "tests/plugins/schedules/asked.h" /* before the error of the other one */

#include "tests/partition/study/planners.h"

static inline opipe_status auto_find(void *ctx, const char *id, opi_schedule_ref *out,
                                     opipe_error *e) {
  (void)ctx;
  (void)e;
  const asked_plugin *p = asked_open(id);
  *out = (opi_schedule_ref){.table = p->table, .self = p->self, .id = p->id};
  return OPIPE_OK;
}

static const opi_plugins auto_plugins = {.schedule = auto_find};
/* All that have no text for an order, by their ids. */
static const char *const auto_schedules[] = {
    "gpipe",    "1f1b",  "interleaved", "looped-bfs", "chimera",        "2bw",
    "terapipe", "zb-h1", "zb-h2",       "zb-auto",    "zb-interleaved", "zbv",
    "v-half",   "v-min", "dualpipev",   "seq1f1b",    "sequential"};

static inline opi_auto auto_question(const opi_layers *layers, const opi_cluster *cluster,
                                     uint64_t batch) {
  return (opi_auto){.planning = {.layers = layers,
                                 .cluster = cluster,
                                 .allocator = opi_allocator_system(),
                                 .batch = batch},
                    .plugins = &auto_plugins,
                    .schedules = auto_schedules,
                    .n_schedules = OPI_COUNT(auto_schedules),
                    .mode = OPIPE_MODE_TRAIN,
                    .n_threads = 2};
}

static inline opi_auto_answer *auto_ask(const opi_auto *q) {
  opi_auto_answer *answer = NULL;
  OPI_ASSERT_OK_FATAL(opi_auto_search(q, &answer, &err), &err);
  return answer;
}

static inline opi_layers *random_model(opi_test_random *random, uint32_t n) {
  opi_layers *layers = make_layers(n, 1);
  for (uint32_t i = 0; i < n; ++i) {
    layers->at[i] = (opi_layer){.forward_ns = opi_test_uniform(random, 1e5, 1e6),
                                .input_ns = opi_test_uniform(random, 1e5, 1e6),
                                .weight_ns = opi_test_uniform(random, 1e5, 1e6),
                                .cut_bytes = opi_test_next(random) % 1000000,
                                .stash_bytes = opi_test_next(random) % 1000000,
                                .param_bytes = opi_test_next(random) % 2000000,
                                .width_share = 1,
                                .width_bytes = opi_test_next(random) % 100000};
    layers->at[i].output_bytes = layers->at[i].cut_bytes;
  }
  return layers;
}

#endif /* TESTS_PARTITION_AUTO_H */
