/* SPDX-License-Identifier: Apache-2.0 */
/* Less is moved: codes instead of the numbers that they stand for, and rows that are picked instead
 * of the whole table.
 *
 *   move(DequantizeLinear(x))              becomes DequantizeLinear(move(x)): views, parts,
 *                                          transpositions, rows that are picked, and largest
 *                                          elements of windows
 *   Concat of several with equal scales    the same
 *   QuantizeLinear(DequantizeLinear(x))    of equal scales becomes x
 *   Gather(Transpose(x), i)                becomes Transpose(Gather(x, i)) where it picks less than
 *                                          the table has: embeddings tied to a product's weights
 *
 * One scale for the whole tensor, which is not known before the run (weights stay where they are
 * read). Numbers and codes are the same, bit for bit. Not in training: gradients flow through the
 * numbers.
 */
#include <math.h>

#include "loader/passes/fuse.h"

enum { MOST_MOVED = 64 }; /* operands of a Concat, results of a Split */

/* Between these a code comes back from (code - zero) * scale. */
static const double least_scale = 1e-30, greatest_scale = 1e30;

static bool inner(const opi_fuse *f, uint32_t v) {
  return (opi_f_value(f, v)->flags & (OPI_VALUE_OUTPUT | OPI_VALUE_BARRIER)) == 0;
}

/* The node that unpacks 8-bit activations with one positive, known scale; NULL: none. */
static const opi_node *unpacked(const opi_fuse *f, uint32_t v) {
  const opi_node *node = opi_f_made(f, v, "DequantizeLinear");
  double scale;
  if (node == NULL || opi_value_known(opi_f_value(f, node->in[0])) ||
      opi_dtype_bits(opi_f_value(f, node->in[0])->dtype) != 8 ||
      !opi_f_number(f, node->in[1], &scale) || scale < least_scale || scale > greatest_scale ||
      opi_f_value(f, node->in[1])->dtype != OPIPE_FLOAT)
    return NULL;
  return node;
}

/* One known number for both, or one value. */
static bool same_number(const opi_fuse *f, uint32_t a, uint32_t b) {
  double x = 0, y = 0;
  if (a == b)
    return true;
  if (a == OPIPE_NONE || b == OPIPE_NONE)
    return opi_f_number(f, a == OPIPE_NONE ? b : a, &x) && x == 0;
  return opi_f_number(f, a, &x) && opi_f_number(f, b, &y) && x == y;
}

static bool same_scale(const opi_fuse *f, const opi_node *a, const opi_node *b) {
  return same_number(f, a->in[1], b->in[1]) && same_number(f, opi_node_in(a, 2), opi_node_in(b, 2));
}

static bool moves(const opi_node *node) {
  const uint32_t takes = OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_PART | OPI_TAKES_PARTS |
                         OPI_TAKES_ROWS | OPI_TAKES_TUPLES | OPI_TAKES_ENTRIES;
  return (opi_op_of(node)->takes & takes) != 0 || opi_f_is(node, "MaxPool");
}

/* Unpacks `codes` like `like` does. */
static opipe_status unpack_like(opi_fuse *f, const opi_node *like, uint32_t codes, uint32_t *out,
                                opipe_error *err) {
  const uint32_t in[3] = {codes, like->in[1], opi_node_in(like, 2)};
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", 0);
  opi_attrs_int(&attrs, "block_size", 0);
  return opi_k_one(f->b, "DequantizeLinear", 25, in, in[2] == OPIPE_NONE ? 2 : 3, &attrs, out, err);
}

/* `n` on codes: the first n_codes inputs are replaced by them. */
static opipe_status move_codes(opi_fuse *f, uint32_t n, const opi_node *like, const uint32_t *codes,
                               uint32_t n_codes, opipe_error *err) {
  const opi_node node = *opi_f_node(f, n), unpack = *like;
  uint32_t in[MOST_MOVED], made[MOST_MOVED], y;
  memcpy(in, node.in, node.n_in * sizeof *in);
  memcpy(in, codes, n_codes * sizeof *in);
  OPI_TRY(opi_b_emit_again(f->b, &node, in, NULL, made, err));
  for (uint32_t o = 0; o < node.n_out; ++o) {
    if (node.out[o] == OPIPE_NONE)
      continue;
    OPI_TRY(unpack_like(f, &unpack, made[o], &y, err));
    OPI_TRY(opi_f_replace(f, node.out[o], y, OPI_PATTERN_NONE, err));
  }
  return OPIPE_OK;
}

static opipe_status sink_concat(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node *node = opi_f_node(f, n), *first = unpacked(f, node->in[0]);
  uint32_t codes[MOST_MOVED];
  for (uint32_t i = 0; first != NULL && i < node->n_in; ++i) {
    const opi_node *unpack = unpacked(f, node->in[i]);
    if (unpack == NULL || !same_scale(f, first, unpack) ||
        opi_f_value(f, unpack->in[0])->dtype != opi_f_value(f, first->in[0])->dtype)
      return OPIPE_OK;
    codes[i] = unpack->in[0];
  }
  return first == NULL ? OPIPE_OK : move_codes(f, n, first, codes, node->n_in, err);
}

/* The same codes again. */
static void drop_pair(opi_fuse *f, const opi_node *node) {
  const opi_node *unpack = unpacked(f, node->in[0]);
  const uint32_t y = node->out[0];
  if (unpack == NULL || !inner(f, y) || !same_scale(f, node, unpack) ||
      opi_f_value(f, y)->dtype != opi_f_value(f, unpack->in[0])->dtype)
    return;
  opi_f_forward(f, y, unpack->in[0]);
}

/* Rows of a transposed table: picked first. */
static opipe_status pick_first(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node node = *opi_f_node(f, n), *turn = opi_f_made(f, node.in[0], "Transpose");
  const int64_t axis = opi_attr_int(&node, "axis", 0);
  int64_t order[OPIPE_MAX_RANK];
  uint32_t rank = 0, in[2], y, n_out = 0;
  if (turn == NULL || !inner(f, node.in[0]) ||
      opi_k_elems(opi_f_value(f, node.out[0])) >= opi_k_elems(opi_f_value(f, node.in[0])))
    return OPIPE_OK;
  const int64_t *perm = opi_attr_ints(turn, "perm", &rank);
  const int64_t indices = opi_f_value(f, node.in[1])->rank;
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", perm[axis]);
  for (uint32_t d = 0; d < rank; ++d) { /* axes behind the picked one make room for the indices' */
    if (d == (uint32_t)axis) {
      for (int64_t i = 0; i < indices; ++i)
        order[n_out++] = perm[axis] + i;
    } else {
      order[n_out++] = perm[d] < perm[axis] ? perm[d] : perm[d] + indices - 1;
    }
  }
  in[0] = turn->in[0];
  in[1] = node.in[1];
  OPI_TRY(opi_k_one(f->b, "Gather", 0, in, 2, &attrs, &y, err));
  OPI_TRY(opi_k_transpose(f->b, y, order, n_out, &y, err));
  return opi_f_value(f, y)->producer == OPIPE_NONE
             ? OPIPE_OK
             : opi_f_replace(f, node.out[0], y, OPI_PATTERN_NONE, err);
}

opipe_status opi_fuse_sink(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node *node = opi_f_node(f, n);
  if (f->b->keep_parameters || node->n_in == 0 || node->n_in > MOST_MOVED ||
      node->n_out > MOST_MOVED || node->in[0] == OPIPE_NONE)
    return OPIPE_OK;
  if (opi_f_is(node, "QuantizeLinear")) {
    drop_pair(f, node);
    return OPIPE_OK;
  }
  if (opi_f_is(node, "Concat"))
    return sink_concat(f, n, err);
  if (opi_f_is(node, "Gather") && opi_f_made(f, node->in[0], "Transpose") != NULL)
    return pick_first(f, n, err);
  const opi_node *unpack = moves(node) ? unpacked(f, node->in[0]) : NULL;
  return unpack == NULL ? OPIPE_OK : move_codes(f, n, unpack, &unpack->in[0], 1, err);
}
