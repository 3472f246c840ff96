/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of the backward nodes of a training graph. */
#ifndef OPI_COST_BACKWARD_H
#define OPI_COST_BACKWARD_H

#include "loader/gradient/gradient.h"
#include "partition/plan/plan.h"

/* Backward time of every node of a bound graph, in its input and weight parts. Each is the sum over
 * the backward nodes anchored at the node, as measured (measured_ns, by node of the training graph)
 * or by the device's rates (NULL). out [n_nodes]. */
opipe_status opi_train_costs(const opi_training *training, const opi_bound *bound,
                             const double *measured_ns, const opi_device_facts *device,
                             uint32_t threads, double *out_input_ns, double *out_weight_ns,
                             opipe_error *err);
/* Measures the training graph's backward nodes, each run alone on an open device. Nodes that cannot
 * run alone get a time below 0: forwards, and sums into accumulators, which backends fuse with the
 * producers of their inputs. out_ns [graph->n_nodes]. */
opipe_status opi_train_measure(const opi_training *training, const opi_backend_ref *backend,
                               opipe_device *device, const opipe_allocator *allocator,
                               uint64_t (*now_ns)(void), double *out_ns, opipe_error *err);

#endif /* OPI_COST_BACKWARD_H */
