/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a plan, keys of nodes, slots of streams. */
#include "partition/plan/plan.h"

#include <string.h>

#include "loader/passes/row_model.h"

opipe_status opi_plan_new(const opipe_allocator *allocator, opi_plan **out_plan, opipe_error *err) {
  opi_plan *plan = opi_alloc_zero(allocator, 1, sizeof(*plan));
  if (plan == NULL)
    return opi_fail_nomem(err, sizeof(*plan), "a plan");
  plan->decided.allocator = allocator;
  opi_arena_init(&plan->arena, allocator, 0);
  *out_plan = plan;
  return OPIPE_OK;
}

void opi_plan_free(opi_plan *plan) {
  if (plan == NULL)
    return;
  const opipe_allocator *allocator = plan->decided.allocator;
  opi_row_model_free(plan->rows);
  opi_arena_release(&plan->arena);
  opi_free(allocator, plan, sizeof(*plan));
}

const opi_model *opi_plan_model(const opi_plan *plan, const opi_model *file) {
  return plan->rows == NULL ? file : &plan->rows->model;
}

const char *opi_cost_name(uint32_t kind) {
  static const char *const names[] = {"rates", "measured", "given"};
  return kind < OPI_COUNT(names) ? names[kind] : "?";
}

const char *opi_way_name(uint32_t way) {
  static const char *const names[] = {"none",   "host",   "device",  "peer",
                                      "shared", "staged", "pageable"};
  return way < OPI_COUNT(names) ? names[way] : "?";
}

const char *opi_way_words(uint32_t way) {
  static const char *const words[] = {"by a way that is not known yet",
                                      "within the host's memory",
                                      "within one device",
                                      "straight to the other device's memory",
                                      "straight to device memory of the other process",
                                      "through pinned host memory",
                                      "through host memory that is not pinned, whose copies wait"};
  return way < OPI_COUNT(words) ? words[way] : "?";
}

const char *opi_node_key(const opi_graph *graph, const opi_node *node) {
  for (uint32_t i = 0; i < node->n_out; ++i) {
    if (node->out[i] != OPIPE_NONE)
      return graph->values[node->out[i]].name;
  }
  return node->name;
}

bool opi_is_batch_dim(const char *batch_dim, const char *key) {
  const size_t n = strlen(key);
  for (const char *at = batch_dim; at != NULL && *at != '\0';) {
    const char *end = strchr(at, ',');
    const size_t length = end == NULL ? strlen(at) : (size_t)(end - at);
    if (length == n && memcmp(at, key, n) == 0)
      return true;
    at += length + (end != NULL);
  }
  return false;
}

/* ---- slots of a stream ---- */

enum { SLOTS_MOST = 65536 }; /* OPIPE_DEPTH_MOST of <opipe/streams.h> */

uint32_t opi_route_depth(const opi_decision *plan) {
  const uint64_t n = (uint64_t)plan->n_microbatches * (plan->n_slices == 0 ? 1 : plan->n_slices);
  const uint32_t depth = plan->depth == 0 ? 1 : plan->depth;
  if (plan->n_stages <= plan->n_ranks || n <= depth)
    return depth;
  return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

uint32_t opi_forward_slots(const opi_decision *plan, uint32_t distance) {
  const uint64_t least = (uint64_t)(plan->depth == 0 ? 1 : plan->depth) + distance - 1;
  uint32_t slots = opi_route_depth(plan);
  while (slots < least && slots <= SLOTS_MOST / 2)
    slots *= 2;
  return slots;
}
