/* SPDX-License-Identifier: Apache-2.0 */
/* Interpolation along one axis as a band of weights: element o of the result is the sum over t of
 * weight[o][t] * x[first[o] + t]. Private to loader/ops.
 */
#ifndef OPI_OPS_INTERPOLATE_H
#define OPI_OPS_INTERPOLATE_H

#include "loader/ops/kit.h"

typedef struct opi_band {
  int64_t in, out; /* extents of the axis before and after */
  int64_t taps;    /* weights per row, at most `in` */
  int64_t *first;  /* [out], 0 <= first, first + taps <= in */
  double *weight;  /* [out][taps] */
} opi_band;

/* Makes a band from a table of arbitrary positions: place [out][n] within [0, in), weight [out][n];
 * weights of equal positions are added. Allocates in b's scratch. Errors: NOMEM; LIMIT, a band of
 * more than 2^26 weights; names `node`. */
opipe_status opi_band_make(opi_builder *b, const opi_node *node, int64_t in, int64_t out, int64_t n,
                           const int64_t *place, const double *weight, opi_band *out_band,
                           opipe_error *err);
/* Emits opipe.Interpolate of x along `axis`. Weights are fp64 if x is, else fp32. */
opipe_status opi_band_emit(opi_builder *b, const opi_band *band, uint32_t x, uint32_t axis,
                           uint32_t *out, opipe_error *err);

#endif /* OPI_OPS_INTERPOLATE_H */
