/* SPDX-License-Identifier: Apache-2.0 */
/* Transpositions of the last two axes and scales by a number, taken into the matrix product that
 * reads or makes them.
 *
 * MatMul becomes FusedMatMul (alpha, transA, transB); Gemm takes transpositions only.
 * Floating-point types only: an integer product must not be scaled by a float, and rounding happens
 * once, later than before.
 */
#include "loader/passes/fuse.h"

#include "loader/ops/contrib.h"

typedef struct product {
  uint32_t in[2];
  bool trans[2];
  double alpha;
  uint32_t result;
  bool changed;
} product;

static bool inner(const opi_fuse *f, uint32_t v) {
  return (opi_f_value(f, v)->flags & (OPI_VALUE_OUTPUT | OPI_VALUE_BARRIER)) == 0;
}

/* v = x * number, x / number, of x's shape -> x. */
static bool scaled(const opi_fuse *f, const opi_node *node, uint32_t v, uint32_t *out_x,
                   double *io_alpha) {
  double number;
  if (opi_f_is(node, "Div")) {
    *out_x = node->in[0];
    if (!opi_f_number(f, node->in[1], &number) || number == 0 || !opi_f_same_shape(f, *out_x, v))
      return false;
    *io_alpha /= number;
    return true;
  }
  for (uint32_t i = 0; opi_f_is(node, "Mul") && i < 2; ++i) {
    *out_x = opi_f_other(node, i);
    if (!opi_f_number(f, node->in[i], &number) || !opi_f_same_shape(f, *out_x, v))
      continue;
    *io_alpha *= number;
    return true;
  }
  return false;
}

static void take_operand(const opi_fuse *f, product *p, uint32_t i, bool scales) {
  for (uint32_t step = 0; step < 4; ++step) {
    const uint32_t v = p->in[i];
    const opi_node *node = opi_f_made(f, v, NULL);
    uint32_t x;
    if (node == NULL || !inner(f, v))
      return;
    if (opi_f_is(node, "Transpose") && opi_f_swaps_last(node)) {
      p->in[i] = node->in[0];
      p->trans[i] = !p->trans[i];
    } else if (scales && opi_f_uses(f, v) == 1 && scaled(f, node, v, &x, &p->alpha)) {
      p->in[i] = x;
    } else {
      return;
    }
    p->changed = true;
  }
}

static opipe_status fuse_gemm(opi_fuse *f, const opi_node *node, opipe_error *err) {
  product p = {
      .in = {node->in[0], node->in[1]},
      .trans = {opi_attr_int(node, "transA", 0) != 0, opi_attr_int(node, "transB", 0) != 0}};
  opi_attrs attrs = {.n = 0};
  uint32_t y;
  take_operand(f, &p, 0, false);
  take_operand(f, &p, 1, false);
  if (!p.changed)
    return OPIPE_OK;
  const uint32_t in[3] = {p.in[0], p.in[1], opi_node_in(node, 2)};
  const uint32_t result = node->out[0];
  opi_attrs_float(&attrs, "alpha", opi_attr_float(node, "alpha", 1.0));
  opi_attrs_float(&attrs, "beta", opi_attr_float(node, "beta", 1.0));
  opi_attrs_int(&attrs, "transA", p.trans[0]);
  opi_attrs_int(&attrs, "transB", p.trans[1]);
  OPI_TRY(opi_k_one(f->b, "Gemm", 13, in, 3, &attrs, &y, err));
  return opi_f_replace(f, result, y, OPI_PATTERN_MATMUL, err);
}

opipe_status opi_fuse_matmul(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node *node = opi_f_node(f, n);
  const bool fused = strcmp(node->op, "FusedMatMul") == 0;
  opi_attrs attrs = {.n = 0};
  uint32_t x, y;
  if (opi_f_is(node, "Gemm"))
    return fuse_gemm(f, node, err);
  if (!fused && !opi_f_is(node, "MatMul"))
    return OPIPE_OK;
  if (!opi_dtype_is_float(opi_f_value(f, node->out[0])->dtype))
    return OPIPE_OK;
  product p = {
      .in = {node->in[0], node->in[1]},
      .trans = {opi_attr_int(node, "transA", 0) != 0, opi_attr_int(node, "transB", 0) != 0},
      .alpha = opi_attr_float(node, "alpha", 1.0),
      .result = node->out[0]};
  take_operand(f, &p, 0, true);
  take_operand(f, &p, 1, true);
  for (uint32_t step = 0; step < 2; ++step) {
    const uint32_t next = opi_f_next(f, p.result, NULL);
    if (next == OPIPE_NONE || opi_f_uses(f, p.result) != 1)
      break;
    const opi_node *after = opi_f_node(f, next);
    if (!opi_f_is(after, "Mul") && !opi_f_is(after, "Div"))
      break;
    double alpha = p.alpha;
    if (!scaled(f, after, after->out[0], &x, &alpha) || x != p.result)
      break;
    p.alpha = alpha;
    p.result = after->out[0];
    p.changed = true;
  }
  if (!p.changed)
    return OPIPE_OK;
  opi_attrs_float(&attrs, "alpha", p.alpha);
  opi_attrs_int(&attrs, "transA", p.trans[0]);
  opi_attrs_int(&attrs, "transB", p.trans[1]);
  OPI_TRY(opi_k_node(f->b, "FusedMatMul", OPI_MS, 1, p.in, 2, 1, &attrs, &y, err));
  return opi_f_replace(f, p.result, y, OPI_PATTERN_MATMUL, err);
}
