/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting a request into micro-batches along the batch axis: which dimension it is, which rows a
 * micro-batch has.
 *
 * A batch is named by its dimension(s): "batch", or several names joined by ',' where inputs have
 * unnamed or differently named ones
 * ("ids.0,mask.0"). An input carries the batch at the axis that bears such a name.
 */
#ifndef OPI_BATCH_H
#define OPI_BATCH_H

#include "partition/plan/plan.h"

/* The name of dimension `axis` of a file graph's input as bindings know it: its dim_param, or
 * "INPUT.axis" in `buffer`. */
const char *opi_batch_dim_key(const opi_value *input, uint32_t axis, char *buffer, size_t room);
/* Does an expression ("2*batch") depend on one of the names? */
bool opi_depends_on_batch(const char *batch_dim, const char *key);
/* Axis of the file graph's input `index` that carries the batch, -1: none. */
int32_t opi_batch_axis(const opi_model *model, const char *batch_dim, uint32_t index);
/* Rows of micro-batch m of M: they differ by at most one, the larger first. */
static inline int64_t opi_microbatch_rows(int64_t rows, uint32_t n_microbatches, uint32_t m) {
  return rows / n_microbatches + (m < (uint64_t)rows % n_microbatches);
}
/* First row of micro-batch m. */
static inline int64_t opi_microbatch_start(int64_t rows, uint32_t n_microbatches, uint32_t m) {
  const int64_t extra = rows % n_microbatches;
  return rows / n_microbatches * m + (m < extra ? m : extra);
}
/* Where each input of a bound graph of the model holds the batch: in_carry [n_inputs]. Inputs that
 * the file does not have (keys and values of earlier tokens) hold it in dimension `otherwise`. */
void opi_batch_inputs(const opi_plan *plan, const opi_model *model, const opi_graph *graph,
                      int32_t otherwise, opi_carry *in_carry);
/* Proves that what the plan's micro-batches compute is what the whole request computes, and sets
 * plan->batch. `part`: the graph of a micro-batch, NULL: bound here. Errors: those of opi_bind;
 * UNSUPPORTED names the node that mixes rows or reads how many there are. */
opipe_status opi_batch_prove(opi_plan *plan, const opi_model *model, const opi_bind_options *base,
                             const opi_bound *part, opipe_error *err);
/* How the batch runs through a model that is bound as `bind` binds it, given a number of rows;
 * `like`: the graph of any number. What is found lies in `arena`. */
typedef opipe_status (*opi_bind_rows_fn)(void *ctx, int64_t rows, opi_bound **out_bound,
                                         opipe_error *err);
opipe_status opi_batch_learn(const opi_plan *plan, const opi_model *model, const opi_graph *like,
                             opi_bind_rows_fn bind, void *ctx, opi_arena *arena,
                             const opi_known_axis **out_known, opipe_error *err);
/* Copies `dims` into `arena` with the batch set to `rows`, without those that follow from it
 * (*io_n_dims). NULL: out of memory. */
opi_dim_binding *opi_batch_bind(const opi_dim_binding *dims, uint32_t *io_n_dims,
                                const char *batch_dim, int64_t rows, opi_arena *arena);

#endif /* OPI_BATCH_H */
