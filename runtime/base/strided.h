/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between views with strides and dense memory, and between a whole tensor and its
 * parts by rows and tokens. */
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

/* Finds the first byte of a host's tensor of n_bytes. Messages say `what` and `name`. Errors:
 * INVALID if byte_offset or strides lead beyond any memory. */
opipe_status opi_tensor_begin(const opipe_tensor *tensor, uint64_t n_bytes, const char *what,
                              const char *name, const char **out_first, opipe_error *err);

/* True when the elements lie one after the other in row-major order. */
bool opi_view_is_dense(const opi_view *view);
/* Copies the view's elements to dst, densely. */
void opi_view_gather(const opi_view *view, char *dst);
/* Are the view's elements those of `dense`, bit by bit? */
bool opi_view_equals(const opi_view *view, const char *dense);

/* One dimension of a dense tensor; a part has its entries first to first + n_part - 1. */
typedef struct opi_extent {
  uint64_t n_whole, first, n_part;
} opi_extent;

/* n_bytes at part_at of a part belong at whole_at of the whole. */
typedef opipe_status (*opi_run_fn)(void *ctx, uint64_t whole_at, uint64_t part_at,
                                   uint64_t n_bytes);
/* Calls `each` for every contiguous run of a view and its place in a dense copy. whole_at counts
 * from the view's first element. */
opipe_status opi_view_runs(const opi_view *view, opi_run_fn each, void *ctx);
/* The same for a dense tensor [n] with entries of unit_bytes and a dense part of it. */
opipe_status opi_part_runs(const opi_extent *extents, uint32_t n, uint64_t unit_bytes,
                           opi_run_fn each, void *ctx);

#endif /* OPI_STRIDED_H */
