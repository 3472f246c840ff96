/* SPDX-License-Identifier: Apache-2.0 */
/* Plan files: writing a plan or its decisions alone, hashing the decisions, reading without the
 * model. partition/make reads a file together with its model, in the steps of read.h. */
#ifndef OPI_FILE_H
#define OPI_FILE_H

#include <opipe/host.h>

#include "loader/shard/shard.h"
#include "partition/plan/env.h"

opipe_status opi_plan_write(const opi_plan *plan, opipe_write_fn write, void *ctx,
                            opipe_error *err);
/* Writes the decisions alone, in the form in which opi_plan_write has them: the input of the hash.
 */
opipe_status opi_plan_write_decisions(const opi_plan *plan, opipe_write_fn write, void *ctx,
                                      opipe_error *err);
/* Fills plan->hash: the last step of making or reading a plan. */
opipe_status opi_plan_hash(opi_plan *plan, opipe_error *err);
/* Covers graph, names, types and shapes, not weight values. */
void opi_model_fingerprint(const opi_model *model, uint64_t out_fingerprint[2]);

/* Reads a plan without its model, for people and for playing it
 * (partition/study/simulate/plan_play.h). Whatever follows from the graph is taken from the file's
 * prediction, and nodes are not checked. Errors: as opi_plan_read; NOTFOUND, the file has no
 * "play". */
opipe_status opi_plan_read_alone(const opipe_allocator *allocator, const void *json,
                                 uint64_t n_bytes, opi_plan **out_plan, opipe_error *err);

/* XXH3-128 of how a graph is divided: the members' parts of every parameter, input and output, and
 * their collectives. */
void opi_shards_print(const opi_shards *shards, uint64_t out_print[2]);

#endif /* OPI_FILE_H */
