/* SPDX-License-Identifier: Apache-2.0 */
/* How a shape is built, step by step; private to runtime/compiled.
 *
 *   signature ► graphs, ports ► lists ► programs ► memory ► (weights) ► bindings ► streams
 */
#ifndef OPI_BUILD_H
#define OPI_BUILD_H

#include "runtime/compiled/compiled.h"

/* -- signature.c, dims.c -- */
/* Is `shape` the one for requests like `request`, of `rows` rows? */
bool opi_shape_fits(const opi_shape *shape, const opi_request *request, int64_t rows);
/* Fills dims and pins of a new shape. */
opipe_status opi_shape_sign(opi_shape *shape, const opi_request *request, int64_t rows,
                            opipe_error *err);
/* Free dimensions and pinned values of a signature, with `rows` rows. In `arena`. */
opipe_status opi_shape_name(const opi_shape *shape, int64_t rows, opi_arena *arena,
                            opi_bind_options *out_options, opipe_error *err);
/* Dims and pins of the plan's own shape, as its graph has them. */
opipe_status opi_shape_sign_plan(opi_shape *shape, const opi_graph *graph, opipe_error *err);

/* -- graphs.c: a shape's graphs, ports and signature, by the session's plan (shape->keep) or the
 * signature that it has. The plan's own also names the session's outputs and adds the labels. -- */
opipe_status opi_compiled_graphs(opi_shape *shape, opipe_error *err);

/* -- compiled.c: lists, programs, memory, bindings, streams -- */
opipe_status opi_compiled_build(opi_shape *shape, opipe_error *err);
void opi_compiled_stop(opi_shape *shape);
void opi_compiled_free(opi_shape *shape);

/* -- memory.c: arenas and boundary buffers as needs [n_ranks] says, charged -- */
typedef struct opi_rank_needs {
  uint64_t boundary_bytes, arena_bytes;
} opi_rank_needs;
opipe_status opi_shape_memory(opi_shape *shape, const opi_rank_needs *needs, opipe_error *err);
void opi_shape_memory_free(opi_shape *shape);

/* -- params.c: prepares the ranks' parameter sets; train_weights.c: opens a session's weights -- */
opipe_status opi_shape_params(opi_shape *shape, opipe_error *err);
opipe_status opi_train_open_weights(opi_compiled *own, opipe_error *err);

/* -- bindings.c -- */
opipe_status opi_bindings_make(opi_compiled *shape, opipe_error *err);
/* A program of inference with its boundaries in `regions`. */
opipe_status opi_unit_bind(const opi_compiled *shape, const opi_program_unit *unit,
                           uint32_t instance, const opipe_region *regions,
                           opipe_binding **out_binding, opipe_error *err);

/* -- made.c: how much of every result is made here; which ranks here touch which tensors -- */
opipe_status opi_results_find(opi_compiled *shape, opipe_error *err);
opipe_status opi_touches_find(opi_compiled *shape, opipe_error *err);

/* -- count.c -- */
opipe_status opi_train_open_counters(opi_compiled *shape, opipe_error *err);
void opi_train_close_counters(opi_compiled *shape);

#endif /* OPI_BUILD_H */
