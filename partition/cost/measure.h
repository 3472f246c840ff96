/* SPDX-License-Identifier: Apache-2.0 */
/* Measured node times. */
#ifndef OPI_MEASURE_H
#define OPI_MEASURE_H

#include "partition/program/cut.h"

/* Runs every program (one node each) 3 times on zeros; the best counts. PARAMETER values index
 * sources [n_params], all of which must be present. out_ns [n]. */
opipe_status opi_measure_programs(const opipe_graph *const *graphs, uint32_t n,
                                  const opipe_param_source *sources, uint32_t n_params,
                                  const opi_backend_ref *backend, opipe_device *device,
                                  const opipe_allocator *allocator, uint64_t (*now_ns)(void),
                                  double *out_ns, opipe_error *err);

#endif /* OPI_MEASURE_H */
