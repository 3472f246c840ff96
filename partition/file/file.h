/* SPDX-License-Identifier: Apache-2.0 */
/* Plan files: written whole, or their decisions alone; the hash of these; read without the model.
 * A file is read with its model by partition/make (read.h beside this one says in which steps). */
#ifndef OPI_FILE_H
#define OPI_FILE_H

#include <opipe/host.h>

#include "partition/plan/env.h"

opipe_status opi_plan_write(const opi_plan *plan, opipe_write_fn write, void *ctx,
                            opipe_error *err);
/* The decisions alone, as opi_plan_write has them: what is hashed. */
opipe_status opi_plan_write_decisions(const opi_plan *plan, opipe_write_fn write, void *ctx,
                                      opipe_error *err);
/* Fills plan->hash: the last act of making and reading. */
opipe_status opi_plan_hash(opi_plan *plan, opipe_error *err);
/* Of graph, names, types and shapes; not of weight values. */
void opi_model_fingerprint(const opi_model *model, uint64_t out_fingerprint[2]);

/* Without its model: for playing it (partition/study/simulate/plan_play.h) and for people alone.
 * What follows from the graph is as the file predicts it; its nodes are not checked. Errors: as
 * opi_plan_read; NOTFOUND, a file that was written without what its lists take. */
opipe_status opi_plan_read_alone(const opipe_allocator *allocator, const void *json,
                                 uint64_t n_bytes, opi_plan **out_plan, opipe_error *err);

#endif /* OPI_FILE_H */
