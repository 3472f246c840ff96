/* SPDX-License-Identifier: Apache-2.0 */
/* Gather of rows of a matrix of few bits: codes, scales and zero points of the rows are gathered,
 * and only those unpacked. The numbers are the same; the table stays as small as the file has it.
 *
 *   Gather(DequantizeLinear(x, s, z), i, axis 0)
 *     one scale             DequantizeLinear(Gather(x, i), s, z)
 *     one for each column   the same, along the last axis
 *     one for each row      DequantizeLinear(Gather(x, i), Gather(s, i), Gather(z, i)) in blocks as
 *                           long as a row
 *     blocks along the row  the same, in those blocks
 */
#include "loader/passes/fuse.h"

enum {
  MOST_INDICES_SHARE = 2
}; /* gathering more rows than a table has costs more than unpacking */

static opipe_status gather(opi_fuse *f, uint32_t table, uint32_t indices, uint32_t *out,
                           opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  const uint32_t in[2] = {table, indices};
  opi_attrs_int(&attrs, "axis", 0);
  return opi_k_one(f->b, "Gather", 0, in, 2, &attrs, out, err);
}

/* Scales or zero points, [rows] or [rows, blocks], of the rows that are picked: [..., blocks]. */
static opipe_status gather_scales(opi_fuse *f, uint32_t v, uint32_t indices, uint32_t *out,
                                  opipe_error *err) {
  const opi_value scales = *opi_f_value(f, v);
  const int64_t column[2] = {scales.shape[0], 1};
  if (scales.rank == 1)
    OPI_TRY(opi_k_reshape(f->b, v, column, 2, &v, err));
  return gather(f, v, indices, out, err);
}

/* Whole bytes a row, and as many numbers as one scale stands for. */
static bool fits(const opi_fuse *f, const opi_node *unpack, int64_t *out_block) {
  const opi_value *x = opi_f_value(f, unpack->in[0]), *scale = opi_f_value(f, unpack->in[1]);
  const int64_t axis = opi_attr_int(unpack, "axis", 0);
  *out_block = opi_attr_int(unpack, "block_size", 0);
  if (x->rank != 2 || !opi_value_known(x) ||
      x->shape[1] * (int64_t)opi_dtype_bits(x->dtype) % 8 != 0)
    return false;
  if (opi_k_elems(scale) != 1 && axis == 0 && *out_block != 0)
    return false; /* blocks of rows: indices would have to be divided */
  if (opi_k_elems(scale) != 1 && axis == 0)
    *out_block = x->shape[1];
  return true;
}

opipe_status opi_fuse_unpack(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node *node = opi_f_node(f, n);
  if (!opi_f_is(node, "Gather") || opi_attr_int(node, "axis", 0) != 0)
    return OPIPE_OK;
  const opi_node *unpack = opi_f_made(f, node->in[0], "DequantizeLinear");
  const uint32_t indices = node->in[1], result = node->out[0];
  int64_t block;
  if (unpack == NULL || opi_value_known(opi_f_value(f, indices)) || !fits(f, unpack, &block) ||
      opi_k_elems(opi_f_value(f, indices)) >
          MOST_INDICES_SHARE * (double)opi_f_value(f, unpack->in[0])->shape[0])
    return OPIPE_OK;
  const bool one = opi_k_elems(opi_f_value(f, unpack->in[1])) == 1;
  uint32_t in[3] = {unpack->in[0], unpack->in[1], opi_node_in(unpack, 2)}, y;
  opi_attrs attrs = {.n = 0};
  OPI_TRY(gather(f, in[0], indices, &in[0], err));
  for (uint32_t i = 1; i < 3 && block != 0; ++i) {
    if (in[i] != OPIPE_NONE)
      OPI_TRY(gather_scales(f, in[i], indices, &in[i], err));
  }
  opi_attrs_int(&attrs, "axis", one ? 0 : opi_f_value(f, in[0])->rank - 1);
  opi_attrs_int(&attrs, "block_size", block);
  OPI_TRY(
      opi_k_one(f->b, "DequantizeLinear", 25, in, in[2] == OPIPE_NONE ? 2 : 3, &attrs, &y, err));
  return opi_f_replace(f, result, y, OPI_PATTERN_NONE, err);
}
