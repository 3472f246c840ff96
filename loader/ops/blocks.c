/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of an image as channels, and back: DepthToSpace (a pixel shuffle) and SpaceToDepth. Both
 * are a Transpose between two views.
 */
#include "loader/ops/kit.h"

/* x [N, C, H, W] of any type; *out_size: elements along a side of a block. */
static opipe_status check(const opi_builder *b, const opi_node *node, int64_t *out_size,
                          opipe_error *err) {
  const uint32_t any =
      OPI_T_FLOAT | OPI_T_WIDE | OPI_T_UWIDE | OPI_T_SMALL | OPI_T_USMALL | OPI_T_BOOL;
  OPI_TRY(opi_need(b, node, 0, "input", any, 4, 4, err));
  const opi_value *x = opi_input(b, node, 0);
  for (uint32_t a = 1; a < 4; ++a) { /* nothing overflows below, also where there is no element */
    if (x->shape[a] > INT32_MAX) {
      return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "input '%s' has %lld along axis %u",
                           x->name, (long long)x->shape[a], a);
    }
  }
  return opi_need_int(b, node, "blocksize", 1, 1 << 15, out_size, err);
}

static opipe_status not_whole(const opi_builder *b, const opi_node *node, uint32_t axis,
                              int64_t size, opipe_error *err) {
  const opi_value *x = opi_input(b, node, 0);
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "input '%s' has %lld along axis %u, no multiple of %lld", x->name,
                       (long long)x->shape[axis], axis, (long long)size);
}

/* mode of both: in DCR a channel's number is (row in the block, column, channel), in CRD (channel,
 * row, column). */
static opipe_status depth_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  static const int64_t dcr[6] = {0, 3, 4, 1, 5, 2}, crd[6] = {0, 1, 4, 2, 5, 3};
  const char *mode = opi_attr_string(node, "mode", "DCR");
  const bool last = strcmp(mode, "CRD") == 0;
  int64_t s = 1;
  uint32_t y;
  OPI_TRY(check(b, node, &s, err));
  const int64_t *x = opi_input(b, node, 0)->shape;
  if (!last && strcmp(mode, "DCR") != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute mode is '%.40s', it must be DCR or CRD", mode);
  }
  if (x[1] % (s * s) != 0)
    return not_whole(b, node, 1, s * s, err);
  const int64_t c = x[1] / (s * s);
  const int64_t apart[6] = {x[0], last ? c : s, s, last ? s : c, x[2], x[3]};
  const int64_t whole[4] = {x[0], c, x[2] * s, x[3] * s};
  OPI_TRY(opi_k_reshape(b, node->in[0], apart, 6, &y, err));
  OPI_TRY(opi_k_transpose(b, y, last ? crd : dcr, 6, &y, err));
  OPI_TRY(opi_k_reshape(b, y, whole, 4, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static opipe_status space_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  static const int64_t dcr[6] = {0, 3, 5, 1, 2, 4}, crd[6] = {0, 1, 3, 5, 2, 4};
  const bool last = strcmp(opi_attr_string(node, "mode", "DCR"), "CRD") == 0;
  int64_t s = 1;
  uint32_t y;
  OPI_TRY(check(b, node, &s, err));
  const int64_t *x = opi_input(b, node, 0)->shape;
  for (uint32_t a = 2; a < 4; ++a) {
    if (x[a] % s != 0)
      return not_whole(b, node, a, s, err);
  }
  const int64_t apart[6] = {x[0], x[1], x[2] / s, s, x[3] / s, s};
  const int64_t whole[4] = {x[0], x[1] * s * s, x[2] / s, x[3] / s};
  OPI_TRY(opi_k_reshape(b, node->in[0], apart, 6, &y, err));
  OPI_TRY(opi_k_transpose(b, y, last ? crd : dcr, 6, &y, err));
  OPI_TRY(opi_k_reshape(b, y, whole, 4, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static const opi_op ops[] = {
    {OPI_OP("DepthToSpace", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(28, OPI_A(INT, "blocksize"),
               OPI_A(STRING, "mode", .since = 11, OPI_TEXTS("DCR CRD"))),
     .lift = depth_lift},
    {OPI_OP("SpaceToDepth", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(28, OPI_A(INT, "blocksize"),
               OPI_A(STRING, "mode", .since = 28, OPI_TEXTS("DCR CRD"))),
     .lift = space_lift},
};
extern const opi_op_family opi_ops_blocks;
const opi_op_family opi_ops_blocks = {ops, OPI_COUNT(ops)};
