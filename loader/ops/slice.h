/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a Slice, clamped. Private to loader/ops. */
#ifndef OPI_OPS_SLICE_H
#define OPI_OPS_SLICE_H

#include "loader/ops/common.h"

typedef struct opi_slice_axis {
  uint32_t axis;
  int64_t start, end, step; /* canonical, see slice.c */
  int64_t count;            /* elements taken */
} opi_slice_axis;

/* out_axes has room for OPIPE_MAX_RANK, in the given order. */
opipe_status opi_slice_read(opi_builder *b, const opi_node *node, const opi_value *x,
                            opi_slice_axis *out_axes, uint32_t *out_n, opipe_error *err);

#endif /* OPI_OPS_SLICE_H */
