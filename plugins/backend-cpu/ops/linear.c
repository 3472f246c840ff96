/* SPDX-License-Identifier: Apache-2.0 */
/* MatMul, Gemm, FusedMatMul: shapes, strides and the choice of kernels.
 */
#include "linear.h"

/* Rows, columns and strides of an operand's last two axes; a vector is a row (A) or a column (B).
 */
typedef struct matrix_view {
  int64_t rows, columns;
  int64_t row_stride, column_stride;
  uint32_t n_batch; /* leading axes */
} matrix_view;

static matrix_view view_of(const opipe_value *value, bool transposed, bool vector_is_row) {
  matrix_view v = {1, 1, 0, 1, 0};
  if (value->rank == 1) {
    *(vector_is_row ? &v.columns : &v.rows) = value->shape[0];
    v.row_stride = vector_is_row ? value->shape[0] : 1;
    return v;
  }
  v.n_batch = value->rank - 2;
  v.rows = value->shape[v.n_batch];
  v.columns = value->shape[v.n_batch + 1];
  v.row_stride = v.columns;
  if (transposed) {
    const matrix_view w = v;
    v.rows = w.columns;
    v.columns = w.rows;
    v.row_stride = 1;
    v.column_stride = w.columns;
  }
  return v;
}

/* The loop over broadcast batch axes; the output's shape ends up in `shape`. */
static opipe_status batch_loop(cpu_prep *p, const matrix_view *a, const matrix_view *b,
                               cpu_linear_plan *plan, int64_t *shape, uint32_t *out_rank) {
  const opipe_value *values[2] = {cpu_in(p, 0), cpu_in(p, 1)};
  const matrix_view *views[2] = {a, b};
  const uint32_t rank = a->n_batch > b->n_batch ? a->n_batch : b->n_batch;
  int64_t(*strides)[OPIPE_MAX_RANK] = cpu_pool_array(p->pool, 3, sizeof *strides);
  if (strides == NULL)
    return cpu_nomem(p);
  for (uint32_t i = 0; i < rank; ++i) {
    shape[i] = 1;
    for (int k = 0; k < 2; ++k) {
      const uint32_t missing = rank - views[k]->n_batch;
      const int64_t n = i >= missing ? values[k]->shape[i - missing] : 1;
      if (n != 1 && shape[i] != 1 && shape[i] != n) {
        return cpu_invalid(p, "batch axis %u has %lld and %lld", i, (long long)shape[i],
                           (long long)n);
      }
      shape[i] = n != 1 ? n : shape[i];
    }
  }
  for (int k = 0; k < 2; ++k) {
    const int64_t size = views[k]->rows * views[k]->columns;
    (void)opipe_broadcast_strides(values[k]->shape, views[k]->n_batch, shape, rank, strides[k]);
    for (uint32_t i = 0; i < rank; ++i)
      strides[k][i] *= size;
  }
  opipe_dense_strides(shape, rank, strides[2]);
  for (uint32_t i = 0; i < rank; ++i)
    strides[2][i] *= plan->m * plan->n;
  cpu_loop_init(&plan->batch, shape, rank, 3, strides);
  *out_rank = rank;
  return OPIPE_OK;
}

static opipe_status choose_kernel(cpu_prep *p, cpu_linear_plan *plan) {
  if (cpu_out(p, 0)->role == OPIPE_VALUE_GRADIENT)
    return cpu_linear_accumulate(p, plan);
  for (uint32_t i = 0; i < p->step->n_in; ++i) {
    if (cpu_in(p, i) != NULL && cpu_in(p, i)->dtype != cpu_in(p, 0)->dtype) {
      return cpu_invalid(p, "input %u is %s, input 0 %s", i, opipe_dtype_name(cpu_in(p, i)->dtype),
                         opipe_dtype_name(cpu_in(p, 0)->dtype));
    }
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  }
  if (!cpu_linear_reference(cpu_in(p, 0)->dtype, &p->step->run))
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(cpu_in(p, 0)->dtype));
  CPU_TRY(p->fast ? cpu_linear_fast(p, plan) : OPIPE_OK);
  return p->fusion == NULL || plan->packed
             ? OPIPE_OK
             : opipe_fail(p->err, OPIPE_E_INTERNAL, "node '%.80s': fused without packed weights",
                          p->node->name);
}

/* The output's shape; of a fused product, which may end in a view, its size. */
static opipe_status check_output(cpu_prep *p, const int64_t *shape, uint32_t rank) {
  const opipe_value *out = cpu_out(p, 0);
  const uint32_t dtype = cpu_in(p, 0)->dtype;
  uint64_t n = 0;
  if (p->fusion == NULL)
    return cpu_expect(p, 0, dtype, shape, rank);
  return opipe_shape_elems(shape, rank, &n) && cpu_elems(out) == n && out->dtype == dtype
             ? OPIPE_OK
             : cpu_invalid(p, "'%.80s' is not as large as the product", out->name);
}

static opipe_status set_matrices(cpu_prep *p, cpu_linear_plan *plan, const matrix_view *a,
                                 const matrix_view *b) {
  if (a->columns != b->rows) {
    return cpu_invalid(p, "A has %lld columns, B %lld rows", (long long)a->columns,
                       (long long)b->rows);
  }
  plan->m = a->rows;
  plan->n = b->columns;
  plan->k = a->columns;
  plan->a_m = a->row_stride;
  plan->a_k = a->column_stride;
  plan->b_k = b->row_stride;
  plan->b_n = b->column_stride;
  return OPIPE_OK;
}

/* MatMul and FusedMatMul. */
static opipe_status prepare_matmul(cpu_prep *p) {
  const bool fused = p->op->code == 1;
  const opipe_value *left = cpu_in(p, 0);
  const opipe_value *right = cpu_in(p, 1);
  cpu_linear_plan *plan = CPU_PLAN(p, cpu_linear_plan);
  int64_t shape[OPIPE_MAX_RANK + 2];
  uint32_t rank = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (left->rank == 0 || right->rank == 0)
    return cpu_invalid(p, "an operand is a scalar");
  const matrix_view a = view_of(left, fused && opipe_attr_int(p->node, "transA", 0) != 0, true);
  const matrix_view b = view_of(right, fused && opipe_attr_int(p->node, "transB", 0) != 0, false);
  CPU_TRY(set_matrices(p, plan, &a, &b));
  plan->b_turned = fused && opipe_attr_int(p->node, "transB", 0) != 0;
  plan->alpha = fused ? opipe_attr_float(p->node, "alpha", 1.0) : 1.0;
  plan->c = -1;
  CPU_TRY(batch_loop(p, &a, &b, plan, shape, &rank));
  if (left->rank > 1)
    shape[rank++] = plan->m;
  if (right->rank > 1)
    shape[rank++] = plan->n;
  CPU_TRY(check_output(p, shape, rank));
  plan->fusion = p->fusion != NULL ? *p->fusion : (cpu_fusion)CPU_FUSION_NONE;
  return choose_kernel(p, plan);
}

static opipe_status prepare_gemm(cpu_prep *p) {
  const opipe_value *left = cpu_in(p, 0);
  const opipe_value *right = cpu_in(p, 1);
  const opipe_value *addend = p->node->n_in > 2 ? cpu_in(p, 2) : NULL;
  cpu_linear_plan *plan = CPU_PLAN(p, cpu_linear_plan);
  int64_t shape[2];
  uint32_t rank = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (left->rank != 2 || right->rank != 2)
    return cpu_invalid(p, "its operands have ranks %u and %u", left->rank, right->rank);
  const matrix_view a = view_of(left, opipe_attr_int(p->node, "transA", 0) != 0, true);
  const matrix_view b = view_of(right, opipe_attr_int(p->node, "transB", 0) != 0, false);
  CPU_TRY(set_matrices(p, plan, &a, &b));
  CPU_TRY(batch_loop(p, &a, &b, plan, shape, &rank));
  plan->b_turned = opipe_attr_int(p->node, "transB", 0) != 0;
  plan->alpha = opipe_attr_float(p->node, "alpha", 1.0);
  plan->beta = opipe_attr_float(p->node, "beta", 1.0);
  plan->c = -1;
  shape[0] = plan->m;
  shape[1] = plan->n;
  CPU_TRY(check_output(p, shape, 2));
  if (addend != NULL && plan->beta != 0) {
    int64_t strides[2];
    if (!opipe_broadcast_strides(addend->shape, addend->rank, shape, 2, strides)) {
      return cpu_invalid(p, "C does not broadcast to [%lld, %lld]", (long long)plan->m,
                         (long long)plan->n);
    }
    plan->c = 2;
    plan->c_m = strides[0];
    plan->c_n = strides[1];
  }
  plan->fusion = p->fusion != NULL ? *p->fusion : (cpu_fusion)CPU_FUSION_NONE;
  return choose_kernel(p, plan);
}

static const cpu_op ops[] = {
    {"MatMul", NULL, prepare_matmul, 2, 2, 1, CPU_OP_WIDEN, 0},
    {"FusedMatMul", "com.microsoft", prepare_matmul, 2, 2, 1, CPU_OP_WIDEN, 1},
    {"Gemm", NULL, prepare_gemm, 2, 3, 1, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_linear = {ops, CPU_COUNT_OF(ops)};
