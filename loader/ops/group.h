/* SPDX-License-Identifier: Apache-2.0 */
/* Collective operations of a tensor group, as nodes of domain "opipe", and the operators that work
 * on one member's part of a table, of logits or of a mask.
 *
 *   GroupSpread   Y = X; its gradient is the sum over the group          (Megatron's f)
 *   GroupSum      Y = sum of X over the group; its gradient is dY        (Megatron's g)
 *   GroupGather   Y = all members' X joined along `axis`; its gradient is the member's own part of
 *                 dY or, with `sum` 1, of the sum of dY over the group
 *   GroupScatter  Y = the member's own part along `axis` of the sum of X; its gradient joins dY
 *   GroupPart     Y = the member's own part along `axis` of X, which is whole; its gradient joins
 * dY
 *
 * Attributes: axis, parts (entries of every member along it), member (whose graph this is), sum.
 * No backend runs these nodes: the engine does what they say between two programs. GroupSpread
 * moves nothing: its output may share its input's memory. GroupPart has the inputs of a canonical
 * Slice and becomes one when the gradient is built (opi_group_parts_to_slices).
 */
#ifndef OPI_OPS_GROUP_H
#define OPI_OPS_GROUP_H

#include "loader/ops/collective.h"
#include "loader/ops/kit.h"

/* A part of the entries along an axis, as an operator of domain opipe states it (attributes `first`
 * and `whole`): entries [first, first + own) of `whole`. */
typedef struct opi_part_range {
  int64_t first, own, whole;
} opi_part_range;
opipe_status opi_part_range_of(const opi_builder *b, const opi_node *node, int64_t own,
                               opi_part_range *out, opipe_error *err);

/* Short forms of emission. */
opipe_status opi_group_spread(opi_builder *b, uint32_t x, uint32_t *out, opipe_error *err);
opipe_status opi_group_sum(opi_builder *b, uint32_t x, uint32_t *out, opipe_error *err);
opipe_status opi_group_gather(opi_builder *b, uint32_t x, uint32_t axis, const int64_t *parts,
                              uint32_t n_parts, uint32_t member, bool sum, uint32_t *out,
                              opipe_error *err);
opipe_status opi_group_scatter(opi_builder *b, uint32_t x, uint32_t axis, const int64_t *parts,
                               uint32_t n_parts, uint32_t member, uint32_t *out, opipe_error *err);
/* name: of the result. */
opipe_status opi_group_part(opi_builder *b, uint32_t x, const opi_collective *how, const char *name,
                            uint32_t *out, opipe_error *err);
/* Turns the graph's GroupParts into Slices. */
void opi_group_parts_to_slices(opi_graph *graph);

/* Cross entropy of logits whose classes are divided. attrs: those of SoftmaxCrossEntropyLoss
 * (reduction, ignore_index) and `smoothing`. in: the member's scores [N, own, d...], labels
 * [N, d...], weights of all classes or OPIPE_NONE. parts [n_parts]: classes of each member. Emits
 * CrossEntropyPart, GroupGather, CrossEntropyMerge. */
typedef struct opi_divided_loss {
  const uint32_t *in; /* [3] */
  const int64_t *parts;
  uint32_t n_parts, member;
  const char *reduction;
  const opipe_attr *ignore; /* NULL: none */
  double smoothing;
} opi_divided_loss;
opipe_status opi_group_cross_entropy(opi_builder *b, const opi_divided_loss *how, uint32_t *out,
                                     opipe_error *err);

#endif /* OPI_OPS_GROUP_H */
