/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: MatMul, Gemm, com.microsoft FusedMatMul, MatMulInteger, Einsum.
 *
 * Canonical: MatMul and FusedMatMul (alpha, transA, transB) with batch broadcast, Gemm in two
 * dimensions. FusedMatMul's transBatch attributes become Transpose nodes. Einsum: see einsum.c.
 */
#include "loader/ops/einsum.h"
#include "loader/ops/gradients.h"
#include "loader/ops/kit.h"

enum { NUMBERS = OPI_T_FLOAT | OPI_T_WIDE | OPI_T_UWIDE };

/* -- MatMul and FusedMatMul -------------------------------------------------------------------- */

/* Extents of a product: y[batch..., m, n] = a[..., m, k] b[..., k, n]; 1-D operands have no m (or
 * n). */
typedef struct product {
  int64_t m, k, k2, n;
  bool vec_a, vec_b;
} product;

static product product_of(const opi_value *a, const opi_value *c, bool trans_a, bool trans_b) {
  product p = {.m = 1, .n = 1, .vec_a = a->rank == 1, .vec_b = c->rank == 1};
  const int64_t *sa = a->shape + a->rank;
  const int64_t *sb = c->shape + c->rank;
  if (p.vec_a) {
    p.k = sa[-1];
  } else {
    p.m = trans_a ? sa[-1] : sa[-2];
    p.k = trans_a ? sa[-2] : sa[-1];
  }
  if (p.vec_b) {
    p.k2 = sb[-1];
  } else {
    p.n = trans_b ? sb[-2] : sb[-1];
    p.k2 = trans_b ? sb[-1] : sb[-2];
  }
  return p;
}

/* dtype: of the output, of operands that may differ; UNDEFINED: theirs, which is one. */
static opipe_status product_infer(opi_builder *b, const opi_node *node, uint32_t classes,
                                  uint32_t dtype, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK];
  char ta[128], tb[128];
  uint32_t rank = 0;
  OPI_TRY(opi_need(b, node, 0, "A", classes, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "B", classes, 1, OPIPE_MAX_RANK, err));
  if (dtype == OPIPE_UNDEFINED)
    OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
  const opi_value *x = opi_input(b, node, 0);
  const opi_value *y = opi_input(b, node, 1);
  const product p =
      product_of(x, y, opi_attr_int(node, "transA", 0) != 0, opi_attr_int(node, "transB", 0) != 0);
  opi_shape_text(ta, sizeof(ta), x->shape, (uint32_t)x->rank);
  opi_shape_text(tb, sizeof(tb), y->shape, (uint32_t)y->rank);
  if (p.k != p.k2) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "inputs '%s' %s and '%s' %s do not fit: %lld and %lld along the summed axis", x->name, ta,
        y->name, tb, (long long)p.k, (long long)p.k2);
  }
  const uint32_t batch_a = x->rank > 2 ? (uint32_t)x->rank - 2 : 0;
  const uint32_t batch_b = y->rank > 2 ? (uint32_t)y->rank - 2 : 0;
  if (!opi_broadcast(x->shape, batch_a, y->shape, batch_b, shape, &rank)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "inputs '%s' %s and '%s' %s: the batch axes do not broadcast", x->name, ta,
                         y->name, tb);
  }
  if (!p.vec_a)
    shape[rank++] = p.m;
  if (!p.vec_b)
    shape[rank++] = p.n;
  return opi_b_set(b, node, 0, dtype == OPIPE_UNDEFINED ? x->dtype : dtype, shape, rank, err);
}

static opipe_status matmul_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  return product_infer(b, node, NUMBERS, OPIPE_UNDEFINED, err);
}

static opipe_status fused_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  return product_infer(b, node, OPI_T_FLOAT, OPIPE_UNDEFINED, err);
}

static void product_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const product p =
      product_of(&graph->values[node->in[0]], &graph->values[node->in[1]],
                 opi_attr_int(node, "transA", 0) != 0, opi_attr_int(node, "transB", 0) != 0);
  out_work->flops = 2.0 * opi_k_elems_of(graph, node->out[0]) * (double)p.k;
  out_work->bytes = opi_work_bytes(graph, node);
}

/* One operand's carried axis as an axis of the output counted from its end (1 = last); 0: none; -1:
 * the summed axis. */
static int64_t product_side(const opi_value *v, int32_t axis, bool trans, bool left,
                            bool other_vec) {
  const int64_t back = (int64_t)v->rank - axis; /* 1 = last */
  if (axis < 0)
    return 0;
  if (v->rank == 1)
    return -1;
  if (back > 2)
    return other_vec ? back - 1 : back;
  const bool is_last = (back == 1) != trans;
  if (left)
    return is_last ? -1 : (other_vec ? 1 : 2); /* m */
  return is_last ? 1 : -1;                     /* n */
}

static opipe_status product_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                  opi_carry *out, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[0]];
  const opi_value *y = &graph->values[node->in[1]];
  const opi_value *z = &graph->values[node->out[0]];
  const int64_t at_a =
      product_side(x, in[0].axis, opi_attr_int(node, "transA", 0) != 0, true, y->rank == 1);
  const int64_t at_b =
      product_side(y, in[1].axis, opi_attr_int(node, "transB", 0) != 0, false, x->rank == 1);
  if (at_a < 0)
    return opi_carry_refuse(graph, node, 0, "it is summed over", err);
  if (at_b < 0)
    return opi_carry_refuse(graph, node, 1, "it is summed over", err);
  out[0] = in[0];
  out[0].axis = -1;
  if (at_a == 0 && at_b == 0)
    return OPIPE_OK;
  if (at_a != 0 && at_b != 0) {
    if (at_a != at_b || in[0].outer != in[1].outer || in[0].inner != in[1].inner)
      return opi_carry_refuse(graph, node, 1, "both operands carry it, at different places", err);
  } else {
    /* A batch axis that only one operand carries: the other must be broadcast along it. */
    const opi_value *other = at_a != 0 ? y : x;
    const int64_t at = at_a != 0 ? at_a : at_b;
    const int64_t back = at + (y->rank == 1 || x->rank == 1 ? 1 : 0);
    if (back > 2 && back <= other->rank && other->shape[other->rank - back] != 1) {
      return opi_carry_refuse(graph, node, at_a != 0 ? 0 : 1,
                              "the other operand has that axis and does not carry it", err);
    }
  }
  out[0] = at_a != 0 ? in[0] : in[1];
  out[0].axis = z->rank - (int32_t)(at_a != 0 ? at_a : at_b);
  return OPIPE_OK;
}

/* transBatch: the first axis is the row (or column) axis, the batch axes follow it; the last axis
 * stays. */
static opipe_status batch_last(opi_builder *b, uint32_t x, uint32_t *out, opipe_error *err) {
  int64_t perm[OPIPE_MAX_RANK];
  const uint32_t rank = (uint32_t)opi_b_value(b, x)->rank;
  if (rank < 3) {
    *out = x;
    return OPIPE_OK;
  }
  for (uint32_t i = 0; i + 2 < rank; ++i)
    perm[i] = i + 1;
  perm[rank - 2] = 0;
  perm[rank - 1] = rank - 1;
  return opi_k_transpose(b, x, perm, rank, out, err);
}

static opipe_status fused_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  uint32_t in[2], y;
  OPI_TRY(opi_need(b, node, 0, "A", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, 1, "B", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  in[0] = node->in[0];
  in[1] = node->in[1];
  if (opi_attr_int(node, "transBatchA", 0) != 0)
    OPI_TRY(batch_last(b, in[0], &in[0], err));
  if (opi_attr_int(node, "transBatchB", 0) != 0)
    OPI_TRY(batch_last(b, in[1], &in[1], err));
  opi_attrs_float(&attrs, "alpha", opi_attr_float(node, "alpha", 1.0));
  opi_attrs_int(&attrs, "transA", opi_attr_int(node, "transA", 0) != 0);
  opi_attrs_int(&attrs, "transB", opi_attr_int(node, "transB", 0) != 0);
  OPI_TRY(opi_k_node(b, "FusedMatMul", "com.microsoft", 1, in, 2, 1, &attrs, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

/* -- MatMulInteger ----------------------------------------------------------------------------- */

static opipe_status integer_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  OPI_TRY(opi_need_bytes(b, node, 0, "A", 2, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need_bytes(b, node, 1, "B", 2, OPIPE_MAX_RANK, err));
  const opi_value *y = opi_input(b, node, 1);
  OPI_TRY(opi_need_zero_point(b, node, 2, 1, "column", err));
  OPI_TRY(opi_need_zero_point(b, node, 3, y->shape[y->rank - 1], "column", err));
  return product_infer(b, node, OPI_T_SMALL | OPI_T_USMALL, OPIPE_INT32, err);
}

static opipe_status integer_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                  opi_carry *out, opipe_error *err) {
  for (uint32_t i = 2; i < node->n_in; ++i) {
    if (in[i].axis >= 0)
      return opi_carry_refuse(graph, node, i, "zero points hold it", err);
  }
  return product_carry(graph, node, in, out, err);
}

/* -- Gemm -------------------------------------------------------------------------------------- */

/* Opset < 7: `broadcast` 0 wants C of the product's shape, 1 allows one-way broadcast from the
 * right. */
static opipe_status gemm_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  if (node->version < 11 && opi_node_in(node, 2) == OPIPE_NONE) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input 2 (C) is missing: it is optional from opset 11 on, the file has %u",
                         node->version);
  }
  opi_attrs_float(&attrs, "alpha", opi_attr_float(node, "alpha", 1.0));
  opi_attrs_float(&attrs, "beta", opi_attr_float(node, "beta", 1.0));
  opi_attrs_int(&attrs, "transA", opi_attr_int(node, "transA", 0) != 0);
  opi_attrs_int(&attrs, "transB", opi_attr_int(node, "transB", 0) != 0);
  if (node->version < 7 && opi_attr_int(node, "broadcast", 0) == 0) {
    const opi_value *c = opi_input(b, node, 2);
    OPI_TRY(opi_need(b, node, 2, "C", NUMBERS, 2, 2, err));
    OPI_TRY(opi_need(b, node, 0, "A", NUMBERS, 2, 2, err));
    OPI_TRY(opi_need(b, node, 1, "B", NUMBERS, 2, 2, err));
    const product p =
        product_of(opi_input(b, node, 0), opi_input(b, node, 1),
                   opi_attr_int(node, "transA", 0) != 0, opi_attr_int(node, "transB", 0) != 0);
    if (c->shape[0] != p.m || c->shape[1] != p.n) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "input '%s' is [%lld, %lld], without broadcast it must be [%lld, %lld]",
                           c->name, (long long)c->shape[0], (long long)c->shape[1], (long long)p.m,
                           (long long)p.n);
    }
  }
  return opi_k_lift(b, node, "Gemm", NULL, 13, &attrs, err);
}

static opipe_status gemm_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t both[OPIPE_MAX_RANK];
  uint32_t rank;
  OPI_TRY(opi_need(b, node, 0, "A", NUMBERS, 2, 2, err));
  OPI_TRY(opi_need(b, node, 1, "B", NUMBERS, 2, 2, err));
  OPI_TRY(opi_may(b, node, 2, "C", NUMBERS, 0, 2, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 2, err));
  const opi_value *x = opi_input(b, node, 0);
  const opi_value *y = opi_input(b, node, 1);
  const opi_value *c = opi_input(b, node, 2);
  const product p =
      product_of(x, y, opi_attr_int(node, "transA", 0) != 0, opi_attr_int(node, "transB", 0) != 0);
  const int64_t shape[2] = {p.m, p.n};
  if (p.k != p.k2) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "inputs '%s' and '%s' do not fit: %lld and %lld along the summed axis",
                         x->name, y->name, (long long)p.k, (long long)p.k2);
  }
  if (c != NULL && (!opi_broadcast(shape, 2, c->shape, (uint32_t)c->rank, both, &rank) ||
                    rank != 2 || both[0] != p.m || both[1] != p.n)) {
    char text[128];
    opi_shape_text(text, sizeof(text), c->shape, (uint32_t)c->rank);
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (C) has shape %s, which does not broadcast to [%lld, %lld]",
                         c->name, text, (long long)p.m, (long long)p.n);
  }
  return opi_b_set(b, node, 0, x->dtype, shape, 2, err);
}

static opipe_status gemm_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err) {
  const opi_value *c = opi_node_in(node, 2) == OPIPE_NONE ? NULL : &graph->values[node->in[2]];
  OPI_TRY(product_carry(graph, node, in, out, err));
  if (c == NULL)
    return OPIPE_OK;
  const int32_t back = out[0].axis < 0 ? 0 : 2 - out[0].axis;
  if (in[2].axis >= 0) {
    if (back == 0 || c->rank - in[2].axis != back || in[2].outer != out[0].outer ||
        in[2].inner != out[0].inner) {
      return opi_carry_refuse(graph, node, 2, "the product does not carry it at the same place",
                              err);
    }
  } else if (back != 0 && back <= c->rank && c->shape[c->rank - back] != 1) {
    return opi_carry_refuse(graph, node, 0, "the added input has that axis and does not carry it",
                            err);
  }
  return OPIPE_OK;
}

static const opi_op ops[] = {
    {OPI_OP("MatMul", "", 1, OPI_NEWEST_ONNX, 2, 2, 1, 1), OPI_NO_ATTRS(13), .infer = matmul_infer,
     .work = product_work, .carry = product_carry, .gradient = opi_gradient_product,
     OPI_COLUMNS(NONE, NARROW, PRODUCT, ANY, NONE, PRODUCT, PRODUCT)},
    {OPI_OP("FusedMatMul", "com.microsoft", 1, 1, 2, 2, 1, 1),
     OPI_ATTRS(1, OPI_A(INT, "transBatchB", OPI_PRESET(0)),
               OPI_A(INT, "transBatchA", OPI_PRESET(0)), OPI_A(INT, "transB", OPI_PRESET(0)),
               OPI_A(INT, "transA", OPI_PRESET(0)), OPI_A(FLOAT, "alpha", OPI_PRESET(1))),
     .lift = fused_lift, .infer = fused_infer, .work = product_work, .carry = product_carry,
     .gradient = opi_gradient_product,
     OPI_COLUMNS(NONE, NARROW, PRODUCT, ANY, NONE, PRODUCT, PRODUCT)},
    {OPI_OP("Gemm", "", 1, OPI_NEWEST_ONNX, 2, 3, 1, 1),
     OPI_ATTRS(13, OPI_A(FLOAT, "beta", OPI_PRESET(1)),
               OPI_A(INT, "broadcast", .until = 6, OPI_PRESET(0)),
               OPI_A(INT, "broadcast", .since = 7, OPI_NO_EFFECT),
               OPI_A(INT, "transB", OPI_PRESET(0)), OPI_A(FLOAT, "alpha", OPI_PRESET(1)),
               OPI_A(INT, "transA", OPI_PRESET(0))),
     .lift = gemm_lift, .infer = gemm_infer, .work = product_work, .carry = gemm_carry,
     .gradient = opi_gradient_gemm, OPI_COLUMNS(NONE, NARROW, LAYER, ANY, NONE, PLAIN, LAYER)},
    {OPI_OP("MatMulInteger", "", 10, OPI_NEWEST_ONNX, 2, 4, 1, 1), OPI_NO_ATTRS(10),
     .infer = integer_infer, .work = product_work, .carry = integer_carry,
     .stops_gradient = ~UINT64_C(0), OPI_COLUMNS(NONE, AS_IS, OTHER, ANY, NONE, PLAIN, NEVER)},
    {OPI_OP("Einsum", "", 12, OPI_NEWEST_ONNX, 1, 255, 1, 1),
     OPI_ATTRS(28, OPI_A(STRING, "equation")), .lift = opi_einsum_lift, .infer = opi_einsum_infer,
     .gradient = opi_gradient_einsum, .work = opi_einsum_work, .carry = opi_einsum_carry,
     OPI_COLUMNS(NONE, NARROW, PRODUCT, ANY, NONE, PLAIN, EACH)},
};

const opi_op_family opi_ops_linear = {ops, OPI_COUNT(ops)};
