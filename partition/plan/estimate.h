/* SPDX-License-Identifier: Apache-2.0 */
/* Estimated bytes of programs on devices that are only described: dense parameters, temporaries by
 * the lives of tensors, no workspace. Backends report exact bytes only after compiling. */
#ifndef OPI_MEMORY_ESTIMATE_H
#define OPI_MEMORY_ESTIMATE_H

#include "partition/plan/plan.h"

/* Peak bytes of `graph`'s temporaries when its nodes run in order, each tensor rounded up to
 * `alignment` (a power of two). Inputs, outputs, parameters and gradients are held by others and do
 * not count. Errors: NOMEM; LIMIT, beyond 2^64 bytes. */
opipe_status opi_estimate_arena(const opipe_graph *graph, uint32_t alignment,
                                const opipe_allocator *allocator, uint64_t *out_bytes,
                                opipe_error *err);

/* The layout of a parameter: dense, in fp32 (the master) if it is trained. */
opipe_param_layout opi_estimate_layout(const opipe_param_source *source, uint32_t slot,
                                       bool trained);

#endif /* OPI_MEMORY_ESTIMATE_H */
