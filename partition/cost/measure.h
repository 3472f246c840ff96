/* SPDX-License-Identifier: Apache-2.0 */
/* Measured node times. */
#ifndef OPI_MEASURE_H
#define OPI_MEASURE_H

#include "partition/cut/cutting.h"

/* Runs every stage of `single` (one node each) 3 times on zeros and takes the best. out_ns
 * [n_stages]. Parameters must be present. */
opipe_status opi_measure_nodes(const opi_cutting *single, const opi_backend_ref *backend,
                               opipe_device *device, const opipe_allocator *allocator,
                               uint64_t (*now_ns)(void), double *out_ns, opipe_error *err);

#endif /* OPI_MEASURE_H */
