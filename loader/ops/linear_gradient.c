/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of matrix products. With Y = alpha op(A) op(B):
 *
 *   dA = alpha dY op(B)^T   (transA: its transpose, alpha op(B) dY^T)
 *   dB = alpha op(A)^T dY   (transB: its transpose, alpha dY^T op(A))
 *
 * summed over batch axes that were broadcast. 1-D operands stand as a row (A) or a column (B).
 * Where B is one matrix for all batches (a weight), rows of all batches are one product: no partial
 * products of a batch each are made and added.
 */
#include "loader/ops/gradients.h"

/* The product of a node; operands have two axes or more. */
typedef struct product {
  uint32_t a, b, dy;
  bool trans_a, trans_b;
  double alpha;
} product;

static opipe_status multiply(opi_grad *g, double alpha, uint32_t x, bool trans_x, uint32_t y,
                             bool trans_y, uint32_t *out, opipe_error *err) {
  const uint32_t in[2] = {x, y};
  opi_attrs attrs = {.n = 0};
  if (alpha == 1 && !trans_x && !trans_y)
    return opi_k_one(g->builder, "MatMul", 13, in, 2, NULL, out, err);
  opi_attrs_float(&attrs, "alpha", alpha);
  opi_attrs_int(&attrs, "transA", trans_x);
  opi_attrs_int(&attrs, "transB", trans_y);
  return opi_k_node(g->builder, "FusedMatMul", "com.microsoft", 1, in, 2, 1, &attrs, out, err);
}

static opipe_status left(opi_grad *g, const product *p, uint32_t *out, opipe_error *err) {
  if (p->trans_a)
    return multiply(g, p->alpha, p->b, p->trans_b, p->dy, true, out, err);
  return multiply(g, p->alpha, p->dy, false, p->b, !p->trans_b, out, err);
}

static opipe_status right(opi_grad *g, const product *p, uint32_t *out, opipe_error *err) {
  if (p->trans_b)
    return multiply(g, p->alpha, p->dy, true, p->a, p->trans_a, out, err);
  return multiply(g, p->alpha, p->a, !p->trans_a, p->dy, false, out, err);
}

/* [..., m, n] as [all rows, n]. */
static opipe_status flatten(opi_grad *g, uint32_t x, uint32_t *out, opipe_error *err) {
  const opi_value v = *opi_b_value(g->builder, x);
  uint64_t rows = 0;
  if (!opi_shape_elems(v.shape, (uint32_t)v.rank - 1, &rows))
    return opi_fail(err, OPIPE_E_LIMIT, "'%s' is too large", v.name);
  const int64_t flat[2] = {(int64_t)rows, v.shape[v.rank - 1]};
  return opi_k_reshape(g->builder, x, flat, 2, out, err);
}

static bool is_one_matrix(const opi_value *v) {
  for (int32_t d = 0; d + 2 < v->rank; ++d) {
    if (v->shape[d] != 1)
      return false;
  }
  return true;
}

/* Are the batch axes of the product those of A? */
static bool has_all_rows(const opi_value *a, const opi_value *dy) {
  return a->rank == dy->rank &&
         (a->rank == 2 ||
          memcmp(a->shape, dy->shape, (size_t)(a->rank - 2) * sizeof(int64_t)) == 0);
}

static opipe_status give_right(opi_grad *g, const opi_node *node, const product *given,
                               opipe_error *err) {
  opi_builder *b = g->builder;
  product p = *given;
  uint32_t d;
  const opi_value va = *opi_b_value(b, p.a), vb = *opi_b_value(b, p.b), vy = *opi_b_value(b, p.dy);
  if (va.rank > 2 && !p.trans_a && is_one_matrix(&vb) && has_all_rows(&va, &vy)) {
    OPI_TRY(flatten(g, p.a, &p.a, err));
    OPI_TRY(flatten(g, p.dy, &p.dy, err));
  }
  OPI_TRY(right(g, &p, &d, err));
  if (opi_b_value(b, node->in[1])->rank == 1) { /* [..., k, 1]: the column goes */
    const opi_value v = *opi_b_value(b, d);
    OPI_TRY(opi_k_reshape(b, d, v.shape, (uint32_t)v.rank - 1, &d, err));
  }
  return opi_grad_give_reduced(g, node, 1, d, err);
}

/* 1-D operands as matrices, and dY with the axes that they lack. */
static opipe_status begin(opi_grad *g, const opi_node *node, product *p, opipe_error *err) {
  opi_builder *b = g->builder;
  const opi_value a = *opi_b_value(b, node->in[0]), c = *opi_b_value(b, node->in[1]);
  const opi_value y = *opi_b_value(b, node->out[0]);
  int64_t shape[OPIPE_MAX_RANK + 2];
  uint32_t rank = (uint32_t)y.rank;
  *p = (product){.a = node->in[0],
                 .b = node->in[1],
                 .dy = opi_grad_of(g, node, 0),
                 .trans_a = a.rank > 1 && opi_attr_int(node, "transA", 0) != 0,
                 .trans_b = c.rank > 1 && opi_attr_int(node, "transB", 0) != 0,
                 .alpha = opi_attr_float(node, "alpha", 1)};
  if (rank != 0)
    memcpy(shape, y.shape, rank * sizeof(*shape));
  if (a.rank == 1) {
    const int64_t row[2] = {1, a.shape[0]};
    OPI_TRY(opi_k_reshape(b, p->a, row, 2, &p->a, err));
    if (c.rank == 1) {
      shape[rank++] = 1;
    } else {
      shape[rank] = shape[rank - 1];
      shape[rank++ - 1] = 1;
    }
  }
  if (c.rank == 1) {
    const int64_t column[2] = {c.shape[0], 1};
    OPI_TRY(opi_k_reshape(b, p->b, column, 2, &p->b, err));
    shape[rank++] = 1;
  }
  return opi_k_reshape(b, p->dy, shape, rank, &p->dy, err);
}

opipe_status opi_gradient_product(opi_grad *g, const opi_node *node, opipe_error *err) {
  product p;
  uint32_t d;
  OPI_TRY(begin(g, node, &p, err));
  if (opi_grad_wants(g, node, 0)) {
    OPI_TRY(left(g, &p, &d, err));
    OPI_TRY(opi_grad_give_reduced(g, node, 0, d, err));
  }
  return opi_grad_wants(g, node, 1) ? give_right(g, node, &p, err) : OPIPE_OK;
}

opipe_status opi_gradient_gemm(opi_grad *g, const opi_node *node, opipe_error *err) {
  const double beta = opi_attr_float(node, "beta", 1);
  uint32_t d = opi_grad_of(g, node, 0), c;
  OPI_TRY(opi_gradient_product(g, node, err));
  if (!opi_grad_wants(g, node, 2) || beta == 0)
    return OPIPE_OK;
  OPI_TRY(opi_grad_reduce(g, node, 2, d, &d, err));
  if (beta != 1) {
    OPI_TRY(opi_grad_const(g, d, beta, &c, err));
    OPI_TRY(opi_b_op2(g->builder, "Mul", d, c, &d, err));
  }
  return opi_grad_give(g, node, 2, d, err);
}
