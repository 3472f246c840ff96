/* SPDX-License-Identifier: Apache-2.0 */
/* How a shape is built, step by step; private to runtime/compiled.
 *
 *   signature ► graphs, ports ► lists ► programs ► memory ► (weights) ► bindings ► streams
 */
#ifndef OPI_BUILD_H
#define OPI_BUILD_H

#include "runtime/compiled/compiled.h"

/* How a session's shapes are built: for requests (inference.c) or for mini-batches (training.c).
 * opi_shapes_open chooses one. */
typedef struct opi_shape_kind {
  const char *what; /* for messages */
  uint32_t compile_flags;
  /* Fits t->given to the shape's rows, of which `units` make a sample. slices: the plan's slices
   * that have tokens, NULL: all. */
  opipe_status (*fit)(opi_compiled *t, int64_t units, const uint32_t *slices, opipe_error *err);
  /* Called once the model is built: makes the view for the lists; prepares the count of labels. */
  opipe_status (*complete)(opi_compiled *t, opipe_error *err);
  /* Fills in output_carry, in which no output carries the batch so far. */
  opipe_status (*carry)(opi_compiled *t, opipe_error *err);
  /* Takes the shape's memory and makes the parameters that its programs read. */
  opipe_status (*take)(opi_compiled *t, opipe_error *err);
  /* Binds a program with its boundaries in `regions`, once for each set of weights. */
  opipe_status (*bind)(const opi_compiled *t, const opi_program_unit *unit, uint32_t instance,
                       const opipe_region *regions, opipe_binding **sets, opipe_error *err);
  /* The cell in which this STORE makes that output of the session, or a part of it; OPIPE_NONE. */
  uint32_t (*makes)(const opi_compiled *t, const opi_step *step, uint32_t output);
  /* Completes `made` and `touched` for outputs that no STORE makes. */
  void (*tell_rest)(opi_compiled *t);
} opi_shape_kind;
extern const opi_shape_kind opi_request_shapes;
extern const opi_shape_kind opi_step_shapes;

/* -- signature.c, dims.c -- */
/* Is `shape` the one for requests like `request`, of `rows` rows? */
bool opi_shape_fits(const opi_shape *shape, const opi_request *request, int64_t rows);
/* Fills in the dims and pins of a new shape. */
opipe_status opi_shape_sign(opi_shape *shape, const opi_request *request, int64_t rows,
                            opipe_error *err);
/* Lists the free dimensions and pinned values of a signature with `rows` rows, in `arena`. */
opipe_status opi_shape_name(const opi_shape *shape, int64_t rows, opi_arena *arena,
                            opi_bind_options *out_options, opipe_error *err);
/* Fills in the dims and pins of the plan's own shape from its graph. */
opipe_status opi_shape_sign_plan(opi_shape *shape, const opi_graph *graph, opipe_error *err);

/* -- graphs.c -- */
/* A shape's graphs, ports and signature, from the session's plan (shape->keep) or the signature
 * that it has. The plan's own also names the session's outputs and adds the labels. */
opipe_status opi_compiled_graphs(opi_shape *shape, opipe_error *err);
/* How every value [n_values] of the base graph carries the batch. */
opipe_status opi_batch_follow(opi_compiled *t, opi_carry *all, opipe_error *err);

/* -- compiled.c: lists, programs, memory, bindings, streams -- */
opipe_status opi_compiled_build(opi_shape *shape, opipe_error *err);
void opi_compiled_stop(opi_shape *shape);
void opi_compiled_free(opi_shape *shape);
/* Arenas, boundary buffers, sends that wait, staging memory. */
opipe_status opi_compiled_memory(opi_compiled *t, opipe_error *err);

/* -- memory.c: arenas and boundary buffers as needs [n_ranks] says, charged -- */
typedef struct opi_rank_needs {
  uint64_t boundary_bytes, arena_bytes;
} opi_rank_needs;
opipe_status opi_shape_memory(opi_shape *shape, const opi_rank_needs *needs, opipe_error *err);
void opi_shape_memory_free(opi_shape *shape);

/* -- resident.c: tensors that ranks hold for all shapes. The plan's own shape finds them and takes
 * their memory, others find their places by name -- */
opipe_status opi_residents_find(opi_compiled *shape, opipe_error *err);
opipe_region opi_resident_region(const opi_compiled *shape, uint32_t held);
void opi_residents_free(opi_shapes *shapes);

/* -- meet.c: sums over tensor groups. Errors: UNSUPPORTED, a transport without collectives -- */
opipe_status opi_meets_make(opi_compiled *shape, opipe_error *err);
void opi_meets_stop(opi_compiled *shape);

/* -- ordered.c: events of batches that are queued; after the messages are placed, and after the
 * streams are closed -- */
opipe_status opi_batches_make(opi_compiled *shape, opipe_error *err);
void opi_batches_stop(opi_compiled *shape);

/* -- offload.c: host memory and events of moves, once programs are compiled -- */
opipe_status opi_moves_make(opi_compiled *shape, opipe_error *err);
void opi_moves_stop(opi_compiled *shape);

/* -- passed.c: fills `passed`, once weights are open -- */
opipe_status opi_parts_find(opi_compiled *shape, opipe_error *err);

/* -- params.c: prepares the ranks' parameter sets; in tensor groups, their sources -- */
opipe_status opi_shape_sources(opi_shape *shape, opipe_error *err);
opipe_status opi_shape_params(opi_shape *shape, opipe_error *err);

/* -- bindings.c -- */
opipe_status opi_bindings_make(opi_compiled *shape, opipe_error *err);
/* The largest number of boundaries of any program, at least 1. */
uint32_t opi_most_boundaries(const opi_compiled *shape);
/* Parameters of bind: the rank's own arena and parameters, boundaries in `regions`. */
opipe_bind_params opi_unit_params(const opi_compiled *shape, const opi_program_unit *unit,
                                  const opi_rank *rank, const opipe_region *regions);
/* Binds a program of inference with its boundaries in `regions`. */
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
