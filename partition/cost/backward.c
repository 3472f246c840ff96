/* SPDX-License-Identifier: Apache-2.0 */
/* Backward costs by node of the forward: the sum over the backward nodes that it anchors, by the
 * device's rates or measured. */
#include "partition/cost/backward.h"
#include <string.h>
#include "partition/cost/profile.h"

static double rate_ns(const opi_device_facts *device, uint32_t threads, const opi_graph *g,
                      const opi_node *node) {
  opi_work work = {0, 0};
  opi_node_work(g, node, &work);
  return opi_device_ns(device, threads, opi_node_type(g, node), work.flops, work.bytes);
}

opipe_status opi_train_costs(const opi_training *training, const opi_bound *bound,
                             const double *measured_ns, const opi_device_facts *device,
                             uint32_t threads, double *out_input_ns, double *out_weight_ns,
                             opipe_error *err) {
  const opi_graph *g = training->graph, *f = bound->graph;
  uint32_t *origin = opi_alloc_zero(training->arena.allocator, g->n_nodes, sizeof *origin);
  if (origin == NULL)
    return opi_fail_nomem(err, g->n_nodes * sizeof *origin, "costs");
  memset(origin, 0xff, g->n_nodes * sizeof *origin);
  for (uint32_t n = 0; n < f->n_nodes; ++n) {
    out_input_ns[n] = out_weight_ns[n] = 0;
    if (training->forward_of[n] != OPIPE_NONE)
      origin[training->forward_of[n]] = n;
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const uint32_t pass = g->nodes[n].pass, at = origin[training->anchor[n]];
    if (at == OPIPE_NONE || pass == OPIPE_PASS_FORWARD)
      continue;
    double *to = pass == OPIPE_PASS_BACKWARD_WEIGHT ? out_weight_ns : out_input_ns;
    to[at] += measured_ns != NULL && measured_ns[n] >= 0
                  ? measured_ns[n]
                  : rate_ns(device, threads, g, &g->nodes[n]);
  }
  opi_free(training->arena.allocator, origin, g->n_nodes * sizeof *origin);
  return OPIPE_OK;
}
