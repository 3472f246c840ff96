/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.Interpolate: every element of an axis becomes a weighted sum of neighbours; what linear and
 * cubic Resize come as.
 *
 * Canonical: Interpolate(X, first, weight), attribute axis: y[o] = sum over t of weight[o][t] *
 * x[first[o] + t]. first: known int64 [out]; weight: known [out, taps]. It is linear, so its
 * gradient is the same operator with the table turned.
 */
#include "loader/ops/interpolate.h"

#include <string.h>

#include "loader/ops/common.h"
#include "loader/ops/rules.h"

enum { MAX_WEIGHTS = 1 << 26 };

/* -- bands ------------------------------------------------------------------------------------- */

/* Room for `out` rows of `taps`. */
static opipe_status open_band(opi_builder *b, const opi_node *node, opi_band *band,
                              opipe_error *err) {
  if (band->out > 0 && band->taps > MAX_WEIGHTS / band->out) {
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT,
                         "interpolates %lld elements of %lld each, %d weights are the limit",
                         (long long)band->out, (long long)band->taps, MAX_WEIGHTS);
  }
  band->first = OPI_ARENA_ARRAY(b->scratch, int64_t, (size_t)band->out);
  band->weight = OPI_ARENA_ARRAY(b->scratch, double, (size_t)(band->out * band->taps));
  if (band->first == NULL || band->weight == NULL)
    return opi_fail_nomem(err, (uint64_t)(band->out * band->taps) * sizeof(double), "weights");
  for (int64_t i = 0; i < band->out * band->taps; ++i)
    band->weight[i] = 0;
  return OPIPE_OK;
}

/* Where the row of an element begins, its least place being `low`: no row passes the end. */
static int64_t row_begin(const opi_band *band, int64_t low) {
  return low > band->in - band->taps ? band->in - band->taps : low;
}

opipe_status opi_band_make(opi_builder *b, const opi_node *node, int64_t in, int64_t out, int64_t n,
                           const int64_t *place, const double *weight, opi_band *out_band,
                           opipe_error *err) {
  opi_band band = {.in = in, .out = out, .taps = 1};
  for (int pass = 0; pass < 2; ++pass) {
    if (pass == 1)
      OPI_TRY(open_band(b, node, &band, err));
    for (int64_t o = 0; o < out; ++o) {
      int64_t low = in - 1, high = -1;
      for (int64_t i = o * n; i < (o + 1) * n; ++i) {
        if (weight[i] == 0)
          continue;
        low = place[i] < low ? place[i] : low;
        high = place[i] > high ? place[i] : high;
      }
      if (pass == 0) {
        band.taps = high - low + 1 > band.taps ? high - low + 1 : band.taps;
        continue;
      }
      band.first[o] = row_begin(&band, low);
      for (int64_t i = o * n; i < (o + 1) * n; ++i) {
        if (weight[i] != 0)
          band.weight[o * band.taps + place[i] - band.first[o]] += weight[i];
      }
    }
  }
  *out_band = band;
  return OPIPE_OK;
}

/* Row i of the result: what element i of the axis before gave to every element after. */
static opipe_status turn_band(opi_builder *b, const opi_node *node, const opi_band *from,
                              opi_band *to, opipe_error *err) {
  int64_t *range = OPI_ARENA_ARRAY(b->scratch, int64_t, 2 * (size_t)from->in);
  *to = (opi_band){.in = from->out, .out = from->in, .taps = 1};
  if (range == NULL)
    return opi_fail_nomem(err, (uint64_t)from->in * 16, "weights");
  int64_t *low = range, *high = range + from->in;
  for (int64_t i = 0; i < from->in; ++i) {
    low[i] = from->out - 1;
    high[i] = -1;
  }
  for (int64_t k = 0; k < from->out * from->taps; ++k) {
    const int64_t o = k / from->taps, i = from->first[o] + k % from->taps;
    if (from->weight[k] == 0)
      continue;
    low[i] = o < low[i] ? o : low[i];
    high[i] = o > high[i] ? o : high[i];
    to->taps = high[i] - low[i] + 1 > to->taps ? high[i] - low[i] + 1 : to->taps;
  }
  OPI_TRY(open_band(b, node, to, err));
  for (int64_t i = 0; i < to->out; ++i)
    to->first[i] = row_begin(to, low[i]);
  for (int64_t k = 0; k < from->out * from->taps; ++k) {
    const int64_t o = k / from->taps, i = from->first[o] + k % from->taps;
    if (from->weight[k] != 0)
      to->weight[i * to->taps + o - to->first[i]] = from->weight[k];
  }
  return OPIPE_OK;
}

opipe_status opi_band_emit(opi_builder *b, const opi_band *band, uint32_t x, uint32_t axis,
                           uint32_t *out, opipe_error *err) {
  const uint32_t dtype = opi_b_value(b, x)->dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
  const size_t n = (size_t)(band->out * band->taps);
  const int64_t shape[2] = {band->out, band->taps};
  const void *weight = band->weight;
  opi_attrs attrs = {.n = 0};
  if (dtype == OPIPE_FLOAT) {
    float *narrow = OPI_ARENA_ARRAY(b->scratch, float, n);
    if (narrow == NULL)
      return opi_fail_nomem(err, n * sizeof(float), "weights");
    for (size_t i = 0; i < n; ++i)
      narrow[i] = (float)band->weight[i];
    weight = narrow;
  }
  const uint32_t in[3] = {x, opi_b_const(b, OPIPE_INT64, shape, 1, band->first),
                          opi_b_const(b, dtype, shape, 2, weight)};
  OPI_TRY(opi_k_const(in[1], err));
  OPI_TRY(opi_k_const(in[2], err));
  opi_attrs_int(&attrs, "axis", axis);
  uint32_t y;
  OPI_TRY(opi_k_node(b, "Interpolate", "opipe", 1, in, 3, 1, &attrs, &y, err));
  *out = y;
  return OPIPE_OK;
}

/* -- the operator ------------------------------------------------------------------------------ */

static opipe_status infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  const int64_t *first;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t axis, n = 0;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 2, "weight", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_need_axis(b, node, 0, &axis, err));
  OPI_TRY(opi_known_ints(b, node, 1, &first, &n, err));
  const opi_value *x = opi_input(b, node, 0);
  const int64_t taps = opi_input(b, node, 2)->shape[1];
  OPI_TRY(opi_need_dim(b, node, 2, 0, n, "the elements that come out", err));
  for (uint32_t o = 0; o < n; ++o) {
    if (first[o] >= 0 && taps <= x->shape[axis] && first[o] <= x->shape[axis] - taps)
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "takes %lld elements from %lld on along axis %u of '%s', which has %lld",
                         (long long)taps, (long long)first[o], axis, x->name,
                         (long long)x->shape[axis]);
  }
  memcpy(shape, x->shape, (size_t)x->rank * sizeof(*shape));
  shape[axis] = n;
  return opi_b_set(b, node, 0, x->dtype, shape, (uint32_t)x->rank, err);
}

static void work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const opi_value *weight = &graph->values[node->in[2]];
  out_work->flops = 2.0 * (double)weight->shape[1] * opi_k_elems_of(graph, opi_node_out(node, 0));
  out_work->bytes = opi_work_bytes(graph, node);
}

static opipe_status carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                          opi_carry *out, opipe_error *err) {
  return opi_carry_not(graph, node, (uint32_t)opi_attr_int(node, "axis", 0), true, in, out, err);
}

static opipe_status gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  opi_builder *b = g->builder;
  const opi_value x = *opi_b_value(b, node->in[0]), weight = *opi_b_value(b, node->in[2]);
  const uint32_t axis = (uint32_t)opi_attr_int(node, "axis", 0);
  opi_band band = {.in = x.shape[axis], .out = weight.shape[0], .taps = weight.shape[1]}, turned;
  uint32_t dx;
  OPI_TRY(open_band(b, node, &band, err));
  for (int64_t o = 0; o < band.out; ++o)
    band.first[o] = opi_index_at(opi_b_value(b, node->in[1]), (uint64_t)o);
  for (int64_t k = 0; k < band.out * band.taps; ++k)
    band.weight[k] = opi_known_element(&weight, (uint64_t)k);
  OPI_TRY(turn_band(b, node, &band, &turned, err));
  OPI_TRY(opi_band_emit(b, &turned, opi_grad_of(g, node, 0), axis, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

static const opi_op ops[] = {
    {OPI_OP("Interpolate", "opipe", 1, 1, 3, 3, 1, 1), .infer = infer, .work = work, .carry = carry,
     .gradient = gradient, .stops_gradient = 6,
     OPI_COLUMNS(NONE, AS_IS, OTHER, ANY, NONE, PLAIN, NEVER)},
};

extern const opi_op_family opi_ops_interpolate;
const opi_op_family opi_ops_interpolate = {ops, OPI_COUNT(ops)};
