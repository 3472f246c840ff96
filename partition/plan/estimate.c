/* SPDX-License-Identifier: Apache-2.0 */
/* See estimate.h. */
#include "partition/plan/estimate.h"

static bool is_temporary(const opipe_graph *graph, uint32_t v) {
  return v != OPIPE_NONE && graph->values[v].role == OPIPE_VALUE_TEMP;
}

/* last [n_values]: number + 1 of the node that uses the value last, or of its producer if nothing
 * reads it.
 */
static void find_ends(const opipe_graph *graph, uint32_t *last) {
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opipe_node *node = &graph->nodes[n];
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (is_temporary(graph, node->in[i]))
        last[node->in[i]] = n + 1;
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (is_temporary(graph, node->out[o]))
        last[node->out[o]] = n + 1;
    }
  }
}

/* Ends the lives of a node's values. A value that occurs twice is subtracted once. */
static void end_lives(const opipe_graph *graph, const uint32_t *values, uint32_t n_values,
                      uint32_t node, uint32_t alignment, uint32_t *last, uint64_t *io_live) {
  for (uint32_t i = 0; i < n_values; ++i) {
    const uint32_t v = values[i];
    if (!is_temporary(graph, v) || last[v] != node + 1)
      continue;
    *io_live -= opi_align_up(graph->values[v].n_bytes, alignment);
    last[v] = 0;
  }
}

static opipe_status walk(const opipe_graph *graph, uint32_t alignment, uint32_t *last,
                         uint64_t *out_bytes, opipe_error *err) {
  uint64_t live = 0, most = 0;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opipe_node *node = &graph->nodes[n];
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (!is_temporary(graph, node->out[o]))
        continue;
      const uint64_t n_bytes = graph->values[node->out[o]].n_bytes;
      if (n_bytes > UINT64_MAX - alignment ||
          opi_add_u64(live, opi_align_up(n_bytes, alignment), &live))
        return opi_fail(err, OPIPE_E_LIMIT, "the temporaries of a program exceed 2^64 bytes");
    }
    most = live > most ? live : most;
    end_lives(graph, node->in, node->n_in, n, alignment, last, &live);
    end_lives(graph, node->out, node->n_out, n, alignment, last, &live);
  }
  *out_bytes = most;
  return OPIPE_OK;
}

opipe_status opi_estimate_arena(const opipe_graph *graph, uint32_t alignment,
                                const opipe_allocator *allocator, uint64_t *out_bytes,
                                opipe_error *err) {
  const size_t n = graph->n_values == 0 ? 1 : graph->n_values;
  uint32_t *last = opi_alloc_zero(allocator, n, sizeof *last);
  if (last == NULL)
    return opi_fail_nomem(err, n * sizeof *last, "an estimate");
  find_ends(graph, last);
  const opipe_status status = walk(graph, alignment, last, out_bytes, err);
  opi_free(allocator, last, n * sizeof *last);
  return status;
}

opipe_param_layout opi_estimate_layout(const opipe_param_source *source, uint32_t slot,
                                       bool trained) {
  opipe_param_layout layout = {
      .struct_size = (uint32_t)sizeof layout, .slot = slot, .n_bytes = source->n_bytes};
  uint64_t dense = 0;
  if (trained && opi_tensor_bytes(OPIPE_FLOAT, source->shape, source->rank, &dense))
    layout.n_bytes = dense;
  return layout;
}
