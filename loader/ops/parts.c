/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on one member's part of a table or of logits, domain "opipe" (group.h).
 *
 *   GatherPart(table [own, ...], indices)      rows whose index lies in [first, first + own); zeros
 *     for the others. An index outside [-whole, whole) is an error. Axis 0.
 *   CrossEntropyPart(scores [N, own, d...], labels [N, d...])      statistics [1, N, d..., 3 or 4]
 *     of the member's classes: the largest score, the sum of exp(score - largest), the label's
 *     score (0 if it is another member's) and, with `smoothing`, the sum of the scores.
 *   CrossEntropyMerge(scores, labels, weights?, statistics [members, N, d..., 3 or 4])      loss,
 *     log of the sum of exp over all classes [N, d...]: merged in rising order of members.
 *   CrossEntropyPartGrad(dL, scores, labels, weights?, log of the sum)      of the scores.
 *
 * `first` and `whole` say which of all rows or classes the member has.
 */
#include "loader/ops/common.h"
#include "loader/ops/gradients.h"
#include "loader/ops/group.h"

#include <inttypes.h>

opipe_status opi_part_range_of(const opi_builder *b, const opi_node *node, int64_t own,
                               opi_part_range *out, opipe_error *err) {
  out->own = own;
  OPI_TRY(opi_need_int(b, node, "whole", own, INT64_MAX, &out->whole, err));
  return opi_need_int(b, node, "first", 0, out->whole - own, &out->first, err);
}

/* -- GatherPart -------------------------------------------------------------------------------- */

static opipe_status gather_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t shape[2 * OPIPE_MAX_RANK];
  uint32_t rank = 0;
  opi_part_range range;
  OPI_TRY(opi_need(b, node, 0, "table", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "indices", OPI_T_WIDE, 0, OPIPE_MAX_RANK, err));
  const opi_value x = *opi_input(b, node, 0), at = *opi_input(b, node, 1);
  OPI_TRY(opi_part_range_of(b, node, x.shape[0], &range, err));
  for (int32_t d = 0; d < at.rank; ++d)
    shape[rank++] = at.shape[d];
  for (int32_t d = 1; d < x.rank; ++d)
    shape[rank++] = x.shape[d];
  return opi_b_set(b, node, 0, x.dtype, shape, rank, err);
}

static opipe_status gather_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err) {
  if (in[0].axis >= 0)
    return opi_carry_refuse(graph, node, 0, "the rows are a part already", err);
  out[0] = in[1];
  return OPIPE_OK;
}

static opipe_status gather_gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  const opi_value x = *opi_b_value(g->builder, node->in[0]);
  const uint32_t in[2] = {opi_grad_of(g, node, 0), node->in[1]};
  opi_attrs attrs = {.n = 0};
  uint32_t dx;
  if (in[0] == OPIPE_NONE)
    return OPIPE_OK;
  opi_attrs_int(&attrs, "axis", 0);
  opi_attrs_ints(&attrs, "shape", x.shape, (uint32_t)x.rank);
  opi_attrs_int(&attrs, "first", opi_attr_int(node, "first", 0));
  opi_attrs_int(&attrs, "whole", opi_attr_int(node, "whole", x.shape[0]));
  OPI_TRY(opi_k_node(g->builder, "GatherGrad", "opipe", 2, in, 2, 1, &attrs, &dx, err));
  return opi_grad_give(g, node, 0, dx, err);
}

/* -- cross entropy ----------------------------------------------------------------------------- */

/* Checks scores (input `at`) and labels behind them; labels [rank - 1] of the scores. */
static opipe_status need_scores(const opi_builder *b, const opi_node *node, uint32_t at,
                                int64_t *labels, opi_part_range *range, opipe_error *err) {
  OPI_TRY(opi_need(b, node, at, "scores", OPI_T_FLOAT, 2, OPIPE_MAX_RANK - 1, err));
  OPI_TRY(opi_need(b, node, at + 1, "labels", OPI_T_WIDE, 1, OPIPE_MAX_RANK, err));
  const opi_value *x = opi_input(b, node, at);
  const uint32_t rank = (uint32_t)x->rank - 1;
  for (uint32_t a = 0; a < rank; ++a)
    labels[a] = x->shape[a == 0 ? 0 : a + 1];
  OPI_TRY(opi_need_shape(b, node, at + 1, labels, rank, err));
  return opi_part_range_of(b, node, x->shape[1], range, err);
}

static int64_t n_statistics(const opi_node *node) {
  return opi_attr_float(node, "smoothing", 0) > 0 ? 4 : 3;
}

static uint32_t wide_type(const opi_value *scores) {
  return scores->dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
}

static opipe_status part_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK + 1] = {1};
  opi_part_range range;
  OPI_TRY(need_scores(b, node, 0, shape + 1, &range, err));
  const opi_value *x = opi_input(b, node, 0);
  shape[x->rank] = n_statistics(node);
  return opi_b_set(b, node, 0, wide_type(x), shape, (uint32_t)x->rank + 1, err);
}

static opipe_status need_weights(const opi_builder *b, const opi_node *node, uint32_t i,
                                 const opi_part_range *range, opipe_error *err) {
  OPI_TRY(opi_may(b, node, i, "weights", OPI_T_FLOAT, 1, 1, err));
  return opi_need_dim(b, node, i, 0, range->whole, "all classes", err);
}

static opipe_status merge_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK + 1];
  opi_part_range range;
  OPI_TRY(need_scores(b, node, 0, shape + 1, &range, err));
  OPI_TRY(need_weights(b, node, 2, &range, err));
  const opi_value x = *opi_input(b, node, 0);
  const bool none = strcmp(opi_attr_string(node, "reduction", "mean"), "none") == 0;
  OPI_TRY(opi_need(b, node, 3, "statistics", OPI_T_FLOAT, x.rank + 1, x.rank + 1, err));
  shape[0] = opi_input(b, node, 3)->shape[0];
  shape[x.rank] = n_statistics(node);
  OPI_TRY(opi_need_shape(b, node, 3, shape, (uint32_t)x.rank + 1, err));
  const uint32_t rank = (uint32_t)x.rank - 1;
  OPI_TRY(opi_b_set(b, node, 0, x.dtype, shape + 1, none ? rank : 0, err));
  return opi_b_set(b, node, 1, wide_type(&x), shape + 1, rank, err);
}

static opipe_status part_grad_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t labels[OPIPE_MAX_RANK];
  opi_part_range range;
  OPI_TRY(need_scores(b, node, 1, labels, &range, err));
  OPI_TRY(need_weights(b, node, 3, &range, err));
  const opi_value x = *opi_input(b, node, 1);
  const bool each = strcmp(opi_attr_string(node, "reduction", "sum"), "none") == 0;
  OPI_TRY(opi_need(b, node, 0, "dL", OPI_T_FLOAT, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_shape(b, node, 0, labels, each ? (uint32_t)x.rank - 1 : 0, err));
  OPI_TRY(opi_need(b, node, 4, "log of the sum", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_shape(b, node, 4, labels, (uint32_t)x.rank - 1, err));
  return opi_b_set(b, node, 0, x.dtype, x.shape, (uint32_t)x.rank, err);
}

static void loss_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  opi_work_each(graph, node, 6.0, out_work);
}

opipe_status opi_group_cross_entropy(opi_builder *b, const opi_divided_loss *how, uint32_t *out,
                                     opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  int64_t first = 0, whole = 0, ones[64];
  uint32_t stats, in[4] = {how->in[0], how->in[1], how->in[2]}, made[2];
  if (how->n_parts > OPI_COUNT(ones)) {
    return opi_fail(err, OPIPE_E_LIMIT, "%" PRIu32 " members of a group share a loss, %zu can",
                    how->n_parts, OPI_COUNT(ones));
  }
  for (uint32_t i = 0; i < how->n_parts; ++i) {
    first += i < how->member ? how->parts[i] : 0;
    whole += how->parts[i];
    ones[i] = 1;
  }
  opi_attrs_int(&attrs, "first", first);
  opi_attrs_int(&attrs, "whole", whole);
  opi_attrs_float(&attrs, "smoothing", how->smoothing);
  if (how->ignore != NULL)
    opi_attrs_int(&attrs, "ignore_index", how->ignore->i);
  OPI_TRY(opi_k_node(b, "CrossEntropyPart", "opipe", 1, in, 2, 1, &attrs, &stats, err));
  OPI_TRY(opi_group_gather(b, stats, 0, ones, how->n_parts, how->member, false, &in[3], err));
  opi_attrs_string(&attrs, "reduction", how->reduction);
  OPI_TRY(opi_k_node(b, "CrossEntropyMerge", "opipe", 1, in, 4, 3, &attrs, made, err));
  *out = made[0];
  return OPIPE_OK;
}

/* Scores and labels carry it together, not along the classes; statistics have one more axis. */
static opipe_status scores_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err) {
  const int32_t axis = in[0].axis;
  for (uint32_t o = 0; o < node->n_out; ++o)
    out[o] = OPI_CARRY_NONE;
  if (axis == 1)
    return opi_carry_refuse(graph, node, 0, "the classes are summed over", err);
  if (in[1].axis != (axis > 1 ? axis - 1 : axis) ||
      (axis >= 0 && (in[1].outer != in[0].outer || in[1].inner != in[0].inner)))
    return opi_carry_refuse(graph, node, 1, "scores and labels carry different axes", err);
  return OPIPE_OK;
}

static opipe_status part_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err) {
  OPI_TRY(scores_carry(graph, node, in, out, err));
  out[0] = in[0];
  out[0].axis = in[0].axis == 0 ? 1 : in[0].axis;
  return OPIPE_OK;
}

static opipe_status merge_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                opi_carry *out, opipe_error *err) {
  OPI_TRY(scores_carry(graph, node, in, out, err));
  if (in[0].axis >= 0 && strcmp(opi_attr_string(node, "reduction", "mean"), "none") != 0)
    return opi_carry_refuse(graph, node, 0, "the loss is reduced over it", err);
  out[0] = out[1] = in[1];
  return OPIPE_OK;
}

#define PART(name_, min_in_, max_in_, n_out_, infer_, carry_, kind_) \
  OPI_OP(name_, "opipe", 1, 1, min_in_, max_in_, n_out_, n_out_),    \
      .infer = infer_, .work = loss_work, .carry = carry_,           \
      OPI_COLUMNS(NONE, WIDE, OTHER, ANY, NONE, kind_, NEVER)

static const opi_op ops[] = {
    {OPI_OP("GatherPart", "opipe", 1, 1, 2, 2, 1, 1), .infer = gather_infer, .work = opi_work_move,
     .carry = gather_carry, .gradient = gather_gradient, .stops_gradient = 0x2,
     OPI_COLUMNS(NONE, AS_IS, ROWS, ANY, NONE, PLAIN, NEVER)},
    {PART("CrossEntropyPart", 2, 2, 1, part_infer, part_carry, PLAIN),
     .stops_gradient = UINT64_MAX},
    {PART("CrossEntropyMerge", 4, 4, 2, merge_infer, merge_carry, LOSS),
     .gradient = opi_gradient_divided_entropy, .stops_gradient = 0xe},
    {PART("CrossEntropyPartGrad", 5, 5, 1, part_grad_infer, NULL, PLAIN)},
};

extern const opi_op_family opi_ops_parts;
const opi_op_family opi_ops_parts = {ops, OPI_COUNT(ops)};
