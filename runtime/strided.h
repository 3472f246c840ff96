/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between views with strides and dense memory, and between a whole batch and its
 * micro-batches. */
#ifndef OPI_STRIDED_H
#define OPI_STRIDED_H

#include "loader/base/base.h"

/* A view: shape [rank] and strides [rank] in elements of elem_bytes. */
typedef struct opi_view {
  const char *data;
  const int64_t *shape;
  const int64_t *strides;
  uint32_t rank;
  uint32_t elem_bytes;
} opi_view;

/* True when the elements lie one after the other in row-major order. */
bool opi_view_is_dense(const opi_view *view);
/* dst: dense, as many elements as the view has. */
void opi_view_gather(const opi_view *view, char *dst);
/* Are the view's elements those of `dense`, bit by bit? */
bool opi_view_equals(const opi_view *view, const char *dense);

/* A micro-batch's part of a dense tensor that is `outer` blocks of n_whole units of unit_bytes; the
 * part has n_part units of each block, from unit `first`. Copies the dense part into its places in
 * `whole`. */
void opi_scatter_part(char *whole, const char *part, uint64_t outer, uint64_t n_whole,
                      uint64_t first, uint64_t n_part, uint64_t unit_bytes);

#endif /* OPI_STRIDED_H */
