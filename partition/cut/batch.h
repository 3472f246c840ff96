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

#include "partition/plan.h"

/* The name of dimension `axis` of a file graph's input as bindings know it: its dim_param, or
 * "INPUT.axis" in `buffer`. */
const char *opi_batch_dim_key(const opi_value *input, uint32_t axis, char *buffer, size_t room);
/* Is `key` one of the names in `batch_dim`? */
bool opi_is_batch_dim(const char *batch_dim, const char *key);
/* Axis of the file graph's input `index` that carries the batch, -1: none. */
int32_t opi_batch_axis(const opi_model *model, const char *batch_dim, uint32_t index);
/* The batch of a model whose free dimensions were bound to `dims`: the names of axis 0 of the
 * inputs, as far as they agree in number with the first input's. In `arena`. NULL: axis 0 of the
 * first input is not free. */
const char *opi_find_batch(const opi_model *model, const opi_dim_binding *dims, uint32_t n_dims,
                           opi_arena *arena, int64_t *out_rows);
/* Rows of micro-batch m of M: they differ by at most one, the larger first. */
static inline int64_t opi_microbatch_rows(int64_t rows, uint32_t n_microbatches, uint32_t m) {
  return rows / n_microbatches + (m < (uint64_t)rows % n_microbatches);
}
/* First row of micro-batch m. */
static inline int64_t opi_microbatch_start(int64_t rows, uint32_t n_microbatches, uint32_t m) {
  const int64_t extra = rows % n_microbatches;
  return rows / n_microbatches * m + (m < extra ? m : extra);
}
/* Copies `dims` into `arena` with the batch set to `rows`. NULL: out of memory. */
opi_dim_binding *opi_batch_bind(const opi_dim_binding *dims, uint32_t n_dims, const char *batch_dim,
                                int64_t rows, opi_arena *arena);

#endif /* OPI_BATCH_H */
