/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting a request into micro-batches along the batch axis: its dimension and the rows of each
 * micro-batch.
 *
 * A batch is named by its dimension(s): "batch", or several names joined by ',' where inputs have
 * unnamed or differently named ones
 * ("ids.0,mask.0"). An input carries the batch at the axis that bears such a name. */
#ifndef OPI_BATCH_H
#define OPI_BATCH_H

#include "partition/plan/env.h"
#include "partition/plan/plan.h"

/* The name of dimension `axis` of a file graph's input, as bindings use it: its dim_param, or
 * "INPUT.axis" in `buffer`. */
const char *opi_batch_dim_key(const opi_value *input, uint32_t axis, char *buffer, size_t room);
/* Whether an expression ("2*batch") depends on one of the names. */
bool opi_depends_on_batch(const char *batch_dim, const char *key);
/* Axis of the file graph's input `index` that carries the batch; -1: none. */
int32_t opi_batch_axis(const opi_model *model, const char *batch_dim, uint32_t index);
/* Rows of micro-batch m of M. They differ by at most one, the larger ones first. */
static inline int64_t opi_microbatch_rows(int64_t rows, uint32_t n_microbatches, uint32_t m) {
  return rows / n_microbatches + (m < (uint64_t)rows % n_microbatches);
}
/* Rows of the largest micro-batch; 0: no dimension is the batch. */
static inline int64_t opi_microbatch_rows_most(const opi_decision *plan) {
  return plan->binding.batch_dim == NULL
             ? 0
             : opi_microbatch_rows(plan->binding.batch_rows, plan->n_microbatches, 0);
}
/* First row of micro-batch m. */
static inline int64_t opi_microbatch_start(int64_t rows, uint32_t n_microbatches, uint32_t m) {
  const int64_t extra = rows % n_microbatches;
  return rows / n_microbatches * m + (m < extra ? m : extra);
}
/* The dimension of each input of the model's bound graph that holds the batch: in_carry [n_inputs].
 * Inputs that are not in the file (keys and values of earlier tokens) hold it in dimension
 * `otherwise`. */
void opi_batch_inputs(const opi_decision *plan, const opi_model *model, const opi_graph *graph,
                      int32_t otherwise, opi_carry *in_carry);
/* Proves that the plan's micro-batches compute the same as the whole request, and sets
 * binding.batch, which lies in `arena`. `part`: the graph of a micro-batch; NULL: bound here.
 * Errors: those of opi_bind; UNSUPPORTED, the node that mixes rows or reads their number. */
opipe_status opi_batch_prove(opi_decision *plan, const opi_model *model,
                             const opi_bind_options *base, const opi_bound *part, opi_arena *arena,
                             opipe_error *err);
/* Follows the batch through a model, which `bind` binds for a given number of rows; `like`: the
 * graph of any number of rows. Results lie in `arena`. */
typedef opipe_status (*opi_bind_rows_fn)(void *ctx, int64_t rows, opi_bound **out_bound,
                                         opipe_error *err);
opipe_status opi_batch_learn(const opi_decision *plan, const opi_model *model,
                             const opi_graph *like, opi_bind_rows_fn bind, void *ctx,
                             opi_arena *arena, const opi_known_axis **out_known, opipe_error *err);
/* Copies `dims` into `arena` with the batch set to `rows`, without dimensions that follow from it
 * (*io_n_dims). NULL: out of memory. */
opi_dim_binding *opi_batch_bind(const opi_dim_binding *dims, uint32_t *io_n_dims,
                                const char *batch_dim, int64_t rows, opi_arena *arena);

/* ---- batch_choose.c: the batch's dimensions, by one rule for every plan that is made ---- */

/* Takes the batch's names from `asked` ("a" or "a,b"), or else the first dimensions of all inputs
 * with as many rows as the first input; sets batch_dim and batch_rows. The dims must be set.
 * Errors: NOTFOUND (a name that is no free dimension), INVALID (names of different lengths). */
opipe_status opi_batch_choose(const opi_plan_env *env, const char *asked, opi_plan *plan,
                              opipe_error *err);

/* Proves that rows may be cut, once it is known whether they are. Without names in `asked`,
 * candidates are tried in turn, all dimensions of one length together first; without a cut a
 * forward plan keeps only the first. Errors name input, dimension, the dimensions that could be
 * named instead, and the first reason. */
opipe_status opi_batch_settle(const opi_plan_env *env, const char *asked, opi_plan *plan,
                              opipe_error *err);

#endif /* OPI_BATCH_H */
