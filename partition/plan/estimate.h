/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of programs on devices that can only be described: parameters dense, temporaries by the
 * lives of tensors, no workspace. What a backend makes of a program is not known before it compiles
 * it. */
#ifndef OPI_MEMORY_ESTIMATE_H
#define OPI_MEMORY_ESTIMATE_H

#include "partition/plan/plan.h"

/* Temporaries of `graph` at the fullest moment, its nodes run in order, each tensor rounded to
 * `alignment` (a power of two). Tensors that others hold (inputs, outputs, parameters, gradients)
 * do not count. Errors: NOMEM; LIMIT, beyond 2^64 bytes. */
opipe_status opi_estimate_arena(const opipe_graph *graph, uint32_t alignment,
                                const opipe_allocator *allocator, uint64_t *out_bytes,
                                opipe_error *err);

/* The layout of a parameter: dense, of one that is trained in fp32 (its master). */
opipe_param_layout opi_estimate_layout(const opipe_param_source *source, uint32_t slot,
                                       bool trained);

#endif /* OPI_MEMORY_ESTIMATE_H */
