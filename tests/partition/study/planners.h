/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to the papers' planners, and what holds for every answer. */
#ifndef TESTS_PARTITION_PLANNERS_H
#define TESTS_PARTITION_PLANNERS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "partition/study/planners/dapple.h"
#include "tests/support/support.h"

enum { NODES_MOST = 4, LAYERS_MOST = 64, STAGES_MOST = 16, DEVICES_MOST = 32 };

static opipe_error err = OPIPE_ERROR_INIT;
static opi_arena arena; /* of clusters */

/* ---- questions ---- */

typedef struct rates {
  double inside, inside_sum, across, across_sum; /* GB/s */
  double latency_ns;
} rates;
static const rates dapple_rates = {25, 100, 1, 3, 0}; /* of the authors' code */

static inline opi_cluster make_cluster(uint32_t nodes, uint32_t per_node, uint64_t memory,
                                       rates r) {
  char text[1024];
  opi_cluster c;
  (void)snprintf(
      text, sizeof text,
      "{\"format\": \"onnx-pipe cluster 1\", \"nodes\": %u, \"devices\": [{\"kind\": \"x\", "
      "\"count\": %u, \"memory_bytes\": %llu, \"alignment\": 64}], \"tiers\": [{\"name\": \"in\", "
      "\"nodes\": 1, \"latency_ns\": %.17g, \"bandwidth\": %.17g, \"collective_bandwidth\": "
      "%.17g}, "
      "{\"name\": \"out\", \"latency_ns\": %.17g, \"bandwidth\": %.17g, \"collective_bandwidth\": "
      "%.17g}]}",
      nodes, per_node, (unsigned long long)memory, r.latency_ns, r.inside * 1e9, r.inside_sum * 1e9,
      r.latency_ns, r.across * 1e9, r.across_sum * 1e9);
  OPI_ASSERT_OK_FATAL(opi_cluster_read("test", text, strlen(text), &arena, &c, &err), &err);
  return c;
}

static inline opi_layers *make_layers(uint32_t n, uint32_t samples) {
  opi_layers *layers = NULL;
  OPI_ASSERT_OK_FATAL(opi_layers_new("test", n, 1, opi_allocator_system(), &layers, &err), &err);
  layers->samples[0] = samples;
  return layers;
}

/* Every layer in one stage, in order; every device in at most one. */
static inline void check_strategy(const opi_planning *q, const opi_strategy *s) {
  bool taken[4096] = {false};
  uint32_t at = 0;
  for (uint32_t k = 0; k < s->n_stages; ++k) {
    const opi_strategy_stage *stage = &s->stages[k];
    OPI_ASSERT(stage->first == at && stage->end > at && stage->n_devices > 0);
    at = stage->end;
    for (uint32_t i = 0; i < stage->n_devices; ++i) {
      OPI_ASSERT_FATAL(stage->devices[i] < q->cluster->n_devices);
      if (s->chunks == 1 && strcmp(s->planner, "chimera") != 0) /* others: one stage a device */
        OPI_ASSERT(!taken[stage->devices[i]]);
      taken[stage->devices[i]] = true;
    }
    OPI_ASSERT(stage->forward_ns >= 0 && stage->memory_bytes <= s->memory_bytes);
  }
  OPI_ASSERT_INT(at, q->layers->n_layers);
  OPI_ASSERT(s->step_ns > 0 && s->objective > 0 && s->microbatches > 0);
}

/* Equal blocks without ends. */
static inline opi_layers *equal_blocks(uint32_t n, double forward_ns, double backward_ns,
                                       uint64_t cut, uint64_t stash, uint64_t params) {
  opi_layers *layers = make_layers(n, 1);
  for (uint32_t i = 0; i < n; ++i) {
    layers->at[i] = (opi_layer){.forward_ns = forward_ns,
                                .input_ns = backward_ns / 2,
                                .weight_ns = backward_ns / 2,
                                .output_bytes = cut,
                                .cut_bytes = cut,
                                .stash_bytes = stash,
                                .param_bytes = params};
  }
  return layers;
}

static inline int run_planners(const opi_test *tests, size_t n, int argc, char **argv) {
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const int failed = opi_test_main("planners", tests, n, argc, argv);
  opi_arena_release(&arena);
  return failed;
}

#endif /* TESTS_PARTITION_PLANNERS_H */
