/* SPDX-License-Identifier: Apache-2.0 */
/* Attention and its gradients as operations for cuDNN. Between Q, K, V and the results nothing lies
 * in memory: tensors inside are virtual, fp32 but where a product takes them.
 *
 *   result      S = hide(scale Q K^T + MASK); M = max S; L = sum exp(S - M); O = (exp(S - M) / L) V
 *               STATS = M + log L
 *   gradients   SUMS = sum(dO O); P = exp(hide(scale Q K^T + MASK - STATS)); dV = P^T dO
 *               dS = (dO V^T - SUMS) P scale; dK = dS^T Q; dQ = dS K
 *
 * dQ is written by its product alone: its terms are kept in the workspace and summed in one order.
 * Where the order may change they are added to ACC in fp32 as they come (`unsteady`).
 */
#include "cudnn.h"

typedef cudnnBackendDescriptor_t node;
typedef struct size4 {
  int64_t n[4];
} size4;

enum { ALIGNMENT = 16, FIRST_SCALAR = 101, FIRST_VIRTUAL = 1001 };

int64_t cuda_dnn_tensor_id(uint32_t i) {
  return (int64_t)i + 1;
}

int64_t cuda_dnn_scalar_id(uint32_t i) {
  return FIRST_SCALAR + (int64_t)i;
}

bool cuda_dnn_has(const cuda_dnn_form *form, uint32_t i) {
  if (i == CUDA_DNN_AT_MASK)
    return form->mask_dtype != 0;
  if (i <= CUDA_DNN_AT_STATS)
    return true;
  return form->what == CUDA_DNN_GRADIENTS && (i != CUDA_DNN_AT_ACC || form->unsteady != 0);
}

bool cuda_dnn_has_scalar(const cuda_dnn_form *form, uint32_t i) {
  return i == CUDA_DNN_SCALE || (i == CUDA_DNN_HIDDEN && form->causal != 0) ||
         (i == CUDA_DNN_ONE && form->what == CUDA_DNN_GRADIENTS) ||
         ((i == CUDA_DNN_KEYS || i == CUDA_DNN_QUERIES) && form->causal == CUDA_DNN_LAST);
}

/* ---- descriptors ---- */

void cuda_dnn_note(cuda_dnn_maker *m, cudnnStatus_t status, const char *what) {
  if (m->status != CUDA_DNN_SUCCESS || status == CUDA_DNN_SUCCESS)
    return;
  m->status = status;
  m->what = what;
  m->dnn->last_error(m->why, sizeof m->why);
  m->why[sizeof m->why - 1] = '\0';
}

cudnnBackendDescriptor_t cuda_dnn_make(cuda_dnn_maker *m, int type, const char *what) {
  cuda_dnn_plan *plan = m->plan;
  cudnnBackendDescriptor_t made = NULL;
  if (m->status != CUDA_DNN_SUCCESS)
    return NULL;
  if (plan->n == CUDA_DNN_DESCRIPTORS) {
    cuda_dnn_note(m, (cudnnStatus_t)CUDA_DNN_NO_MEMORY, "a descriptor too many");
    return NULL;
  }
  cuda_dnn_note(m, m->dnn->make((cudnnBackendDescriptorType_t)type, &made), what);
  if (m->status == CUDA_DNN_SUCCESS)
    plan->all[plan->n++] = made;
  m->what = what;
  return made;
}

void cuda_dnn_set(cuda_dnn_maker *m, cudnnBackendDescriptor_t descriptor, int name, int type,
                  int64_t n, const void *elements) {
  if (m->status == CUDA_DNN_SUCCESS) {
    cuda_dnn_note(m,
                  m->dnn->set(descriptor, (cudnnBackendAttributeName_t)name,
                              (cudnnBackendAttributeType_t)type, n, elements),
                  m->what);
  }
}

void cuda_dnn_end(cuda_dnn_maker *m, cudnnBackendDescriptor_t descriptor) {
  if (m->status == CUDA_DNN_SUCCESS)
    cuda_dnn_note(m, m->dnn->finalize(descriptor), m->what);
}

static void set_type(cuda_dnn_maker *m, node descriptor, int name, int dtype) {
  cuda_dnn_set(m, descriptor, name, CUDA_DNN_T_DATA_TYPE, 1, &dtype);
}

static void set_node(cuda_dnn_maker *m, node descriptor, int name, node value) {
  cuda_dnn_set(m, descriptor, name, CUDA_DNN_T_DESCRIPTOR, 1, &value);
}

/* ---- tensors ---- */

static node tensor_at(cuda_dnn_maker *m, int64_t id, int dtype, size4 size, size4 stride,
                      int placement, int64_t alignment) {
  const bool yes = true;
  const node made = cuda_dnn_make(m, CUDA_DNN_TENSOR, "a tensor");
  set_type(m, made, CUDA_DNN_TENSOR_TYPE, dtype);
  cuda_dnn_set(m, made, CUDA_DNN_TENSOR_DIMENSIONS, CUDA_DNN_T_INT64, 4, size.n);
  cuda_dnn_set(m, made, CUDA_DNN_TENSOR_STRIDES, CUDA_DNN_T_INT64, 4, stride.n);
  cuda_dnn_set(m, made, CUDA_DNN_TENSOR_ID, CUDA_DNN_T_INT64, 1, &id);
  cuda_dnn_set(m, made, CUDA_DNN_TENSOR_ALIGNMENT, CUDA_DNN_T_INT64, 1, &alignment);
  if (placement != 0)
    cuda_dnn_set(m, made, placement, CUDA_DNN_T_BOOL, 1, &yes);
  cuda_dnn_end(m, made);
  return made;
}

static node tensor(cuda_dnn_maker *m, int64_t id, int dtype, size4 size, size4 stride,
                   int placement) {
  return tensor_at(m, id, dtype, size, stride, placement, ALIGNMENT);
}

static size4 dense(size4 size) {
  return (size4){{size.n[1] * size.n[2] * size.n[3], size.n[2] * size.n[3], size.n[3], 1}};
}

static node scalar(cuda_dnn_maker *m, uint32_t i) {
  const size4 one = {{1, 1, 1, 1}};
  const int dtype = i == CUDA_DNN_KEYS || i == CUDA_DNN_QUERIES ? CUDA_DNN_INT32 : CUDA_DNN_FLOAT;
  return tensor(m, cuda_dnn_scalar_id(i), dtype, one, one, CUDA_DNN_TENSOR_BY_VALUE);
}

static node inner_strided(cuda_dnn_maker *m, int dtype, size4 size, size4 stride) {
  return tensor(m, FIRST_VIRTUAL + m->n_virtual++, dtype, size, stride, CUDA_DNN_TENSOR_VIRTUAL);
}

static node inner(cuda_dnn_maker *m, int dtype, size4 size) {
  return inner_strided(m, dtype, size, dense(size));
}

static int half_type(const cuda_dnn_form *f) {
  return f->dtype == OPIPE_BFLOAT16 ? CUDA_DNN_BF16 : CUDA_DNN_HALF;
}

/* Tensor i, [batch, heads, rows, depth]. */
static node rows(cuda_dnn_maker *m, uint32_t i, int64_t heads, int64_t n, int64_t depth) {
  const cuda_dnn_form *f = &m->plan->form;
  const int64_t *s = f->stride[i];
  return tensor(m, cuda_dnn_tensor_id(i), half_type(f), (size4){{f->batch, heads, n, depth}},
                (size4){{s[0], s[1], s[2], 1}}, 0);
}

/* The same bytes as [batch, heads, depth, rows]. */
static node columns(cuda_dnn_maker *m, uint32_t i, int64_t heads, int64_t n, int64_t depth) {
  const cuda_dnn_form *f = &m->plan->form;
  const int64_t *s = f->stride[i];
  return tensor(m, cuda_dnn_tensor_id(i), half_type(f), (size4){{f->batch, heads, depth, n}},
                (size4){{s[0], s[1], 1, s[2]}}, 0);
}

static size4 score_size(const cuda_dnn_form *f) {
  return (size4){{f->batch, f->heads, f->queries, f->keys}};
}

static size4 row_size(const cuda_dnn_form *f) {
  return (size4){{f->batch, f->heads, f->queries, 1}};
}

/* Tensor i, a number of fp32 for each query. A chunk of the batch begins at any of them. */
static node row_numbers(cuda_dnn_maker *m, uint32_t i) {
  const size4 size = row_size(&m->plan->form);
  return tensor_at(m, cuda_dnn_tensor_id(i), CUDA_DNN_FLOAT, size, dense(size), 0, sizeof(float));
}

/* ---- operations ---- */

static void append(cuda_dnn_maker *m, node operation) {
  cuda_dnn_end(m, operation);
  if (m->status == CUDA_DNN_SUCCESS && m->n_ops < sizeof m->ops / sizeof m->ops[0])
    m->ops[m->n_ops++] = operation;
}

static void product(cuda_dnn_maker *m, node a, node b, node c) {
  const node how = cuda_dnn_make(m, CUDA_DNN_MATMUL, "a product");
  set_type(m, how, CUDA_DNN_MATMUL_TYPE, CUDA_DNN_FLOAT);
  cuda_dnn_end(m, how);
  const node op = cuda_dnn_make(m, CUDA_DNN_OP_MATMUL, "a product");
  set_node(m, op, CUDA_DNN_OP_MATMUL_DESC, how);
  set_node(m, op, CUDA_DNN_OP_MATMUL_A, a);
  set_node(m, op, CUDA_DNN_OP_MATMUL_B, b);
  set_node(m, op, CUDA_DNN_OP_MATMUL_C, c);
  append(m, op);
}

static void reduce(cuda_dnn_maker *m, int how, node x, node y) {
  const node desc = cuda_dnn_make(m, CUDA_DNN_REDUCTION, "a reduction");
  cuda_dnn_set(m, desc, CUDA_DNN_REDUCTION_OPERATOR, CUDA_DNN_T_REDUCTION, 1, &how);
  set_type(m, desc, CUDA_DNN_REDUCTION_TYPE, CUDA_DNN_FLOAT);
  cuda_dnn_end(m, desc);
  const node op = cuda_dnn_make(m, CUDA_DNN_OP_REDUCTION, "a reduction");
  set_node(m, op, CUDA_DNN_OP_REDUCTION_DESC, desc);
  set_node(m, op, CUDA_DNN_OP_REDUCTION_X, x);
  set_node(m, op, CUDA_DNN_OP_REDUCTION_Y, y);
  append(m, op);
}

/* y = mode(x, b) where t, or at positions along an axis; b and t may be NULL. */
static void pointwise(cuda_dnn_maker *m, int mode, int math, int64_t axis, node x, node b, node t,
                      node y) {
  const node how = cuda_dnn_make(m, CUDA_DNN_POINTWISE, "an element-wise operation");
  cuda_dnn_set(m, how, CUDA_DNN_POINTWISE_MODE, CUDA_DNN_T_POINTWISE, 1, &mode);
  set_type(m, how, CUDA_DNN_POINTWISE_TYPE, math);
  if (axis >= 0)
    cuda_dnn_set(m, how, CUDA_DNN_POINTWISE_AXIS, CUDA_DNN_T_INT64, 1, &axis);
  cuda_dnn_end(m, how);
  const node op = cuda_dnn_make(m, CUDA_DNN_OP_POINTWISE, "an element-wise operation");
  set_node(m, op, CUDA_DNN_OP_POINTWISE_DESC, how);
  set_node(m, op, CUDA_DNN_OP_POINTWISE_X, x);
  if (b != NULL)
    set_node(m, op, CUDA_DNN_OP_POINTWISE_B, b);
  if (t != NULL)
    set_node(m, op, CUDA_DNN_OP_POINTWISE_T, t);
  set_node(m, op, CUDA_DNN_OP_POINTWISE_Y, y);
  append(m, op);
}

/* A virtual fp32 tensor of `size`: mode(x, b). */
static node apply(cuda_dnn_maker *m, int mode, node x, node b, size4 size) {
  const node y = inner(m, CUDA_DNN_FLOAT, size);
  pointwise(m, mode, CUDA_DNN_FLOAT, -1, x, b, NULL, y);
  return y;
}

/* The same elements in another order. */
static void reshape(cuda_dnn_maker *m, node x, node y) {
  const node op = cuda_dnn_make(m, CUDA_DNN_OP_RESHAPE, "another order");
  set_node(m, op, CUDA_DNN_OP_RESHAPE_X, x);
  set_node(m, op, CUDA_DNN_OP_RESHAPE_Y, y);
  append(m, op);
}

/* ---- attention ---- */

/* scale Q K^T */
static node scores(cuda_dnn_maker *m, node q, node k, node scale) {
  const size4 size = score_size(&m->plan->form);
  const node s = inner(m, CUDA_DNN_FLOAT, size);
  product(m, q, k, s);
  return apply(m, CUDA_DNN_MUL, s, scale, size);
}

/* s + MASK */
static node add_mask(cuda_dnn_maker *m, node s) {
  const cuda_dnn_form *f = &m->plan->form;
  const size4 size = {{f->mask[0], f->mask[1], f->mask[2], f->keys}};
  if (f->mask_dtype == 0)
    return s;
  const node mask = tensor(m, cuda_dnn_tensor_id(CUDA_DNN_AT_MASK),
                           f->mask_dtype == OPIPE_BFLOAT16 ? CUDA_DNN_BF16 : CUDA_DNN_FLOAT, size,
                           dense(size), 0);
  return apply(m, CUDA_DNN_ADD, s, mask, score_size(f));
}

/* Numbers of rows, so that the last one is the last key's. */
static node last_rows(cuda_dnn_maker *m, node row) {
  const size4 size = score_size(&m->plan->form);
  if (m->plan->form.causal != CUDA_DNN_LAST)
    return row;
  const node sum = inner(m, CUDA_DNN_INT32, size), y = inner(m, CUDA_DNN_INT32, size);
  pointwise(m, CUDA_DNN_ADD, CUDA_DNN_INT32, -1, row, scalar(m, CUDA_DNN_KEYS), NULL, sum);
  pointwise(m, CUDA_DNN_SUB, CUDA_DNN_INT32, -1, sum, scalar(m, CUDA_DNN_QUERIES), NULL, y);
  return y;
}

static node hide(cuda_dnn_maker *m, node s) {
  const size4 size = score_size(&m->plan->form);
  if (m->plan->form.causal == 0)
    return s;
  const node row = inner(m, CUDA_DNN_INT32, size), column = inner(m, CUDA_DNN_INT32, size);
  const node seen = inner(m, CUDA_DNN_BOOL, size), y = inner(m, CUDA_DNN_FLOAT, size);
  pointwise(m, CUDA_DNN_INDEX, CUDA_DNN_INT32, 2, s, NULL, NULL, row);
  pointwise(m, CUDA_DNN_INDEX, CUDA_DNN_INT32, 3, s, NULL, NULL, column);
  pointwise(m, CUDA_DNN_GE, CUDA_DNN_BOOL, -1, last_rows(m, row), column, NULL, seen);
  pointwise(m, CUDA_DNN_SELECT, CUDA_DNN_FLOAT, -1, s, scalar(m, CUDA_DNN_HIDDEN), seen, y);
  return y;
}

static void describe_result(cuda_dnn_maker *m) {
  const cuda_dnn_form *f = &m->plan->form;
  const size4 size = score_size(f), row = row_size(f);
  const node q = rows(m, CUDA_DNN_AT_Q, f->heads, f->queries, f->depth);
  const node k = columns(m, CUDA_DNN_AT_K, f->kv_heads, f->keys, f->depth);
  const node v = rows(m, CUDA_DNN_AT_V, f->kv_heads, f->keys, f->value_depth);
  const node o = rows(m, CUDA_DNN_AT_O, f->heads, f->queries, f->value_depth);
  const node s = hide(m, add_mask(m, scores(m, q, k, scalar(m, CUDA_DNN_SCALE))));
  const node most = inner(m, CUDA_DNN_FLOAT, row), sum = inner(m, CUDA_DNN_FLOAT, row);
  reduce(m, CUDA_DNN_REDUCE_MAX, s, most);
  const node e = apply(m, CUDA_DNN_EXP, apply(m, CUDA_DNN_SUB, s, most, size), NULL, size);
  reduce(m, CUDA_DNN_REDUCE_ADD, e, sum);
  const node log = apply(m, CUDA_DNN_LOG, sum, NULL, row);
  pointwise(m, CUDA_DNN_ADD, CUDA_DNN_FLOAT, -1, most, log, NULL,
            row_numbers(m, CUDA_DNN_AT_STATS));
  const node p = inner(m, half_type(f), size);
  pointwise(m, CUDA_DNN_DIV, CUDA_DNN_FLOAT, -1, e, sum, NULL, p);
  product(m, p, v, o);
}

/* SUMS, a number for each query: sum(dO O). */
static node describe_sums(cuda_dnn_maker *m, node d_o, node o) {
  const cuda_dnn_form *f = &m->plan->form;
  const size4 size = {{f->batch, f->heads, f->queries, f->value_depth}};
  const node sum = inner(m, CUDA_DNN_FLOAT, row_size(f)), out = row_numbers(m, CUDA_DNN_AT_SUMS);
  reduce(m, CUDA_DNN_REDUCE_ADD, apply(m, CUDA_DNN_MUL, d_o, o, size), sum);
  pointwise(m, CUDA_DNN_MUL, CUDA_DNN_FLOAT, -1, sum, scalar(m, CUDA_DNN_ONE), NULL, out);
  return out;
}

/* x^T of scores x, of the half type: a product's operand. */
static node turned(cuda_dnn_maker *m, node x) {
  const cuda_dnn_form *f = &m->plan->form;
  const int64_t n = f->queries * f->keys;
  const node y = inner_strided(m, half_type(f), (size4){{f->batch, f->heads, f->keys, f->queries}},
                               (size4){{f->heads * n, n, 1, f->keys}});
  reshape(m, x, y);
  return y;
}

/* Tensor i = a b, a row for each key: heads that share one are summed. */
static void key_gradient(cuda_dnn_maker *m, node a, node b, uint32_t i, int64_t depth) {
  const cuda_dnn_form *f = &m->plan->form;
  const node out = rows(m, i, f->kv_heads, f->keys, depth);
  if (f->heads == f->kv_heads) {
    product(m, a, b, out);
  } else {
    const node of_heads = inner(m, half_type(f), (size4){{f->batch, f->heads, f->keys, depth}});
    product(m, a, b, of_heads);
    reduce(m, CUDA_DNN_REDUCE_ADD, of_heads, out);
  }
}

static void query_gradient(cuda_dnn_maker *m, node d_s, node k) {
  const cuda_dnn_form *f = &m->plan->form;
  const int64_t *s = f->stride[CUDA_DNN_AT_K];
  const node out = rows(m, CUDA_DNN_AT_DQ, f->heads, f->queries, f->depth);
  const node by_rows =
      inner_strided(m, half_type(f), (size4){{f->batch, f->kv_heads, f->keys, f->depth}},
                    (size4){{s[0], s[1], s[2], 1}});
  reshape(m, k, by_rows);
  if (f->unsteady != 0) {
    const size4 size = {{f->batch, f->heads, f->queries, f->depth}};
    const node sums =
        tensor(m, cuda_dnn_tensor_id(CUDA_DNN_AT_ACC), CUDA_DNN_FLOAT, size, dense(size), 0);
    product(m, d_s, by_rows, sums);
    pointwise(m, CUDA_DNN_IDENTITY, CUDA_DNN_FLOAT, -1, sums, NULL, NULL, out);
  } else {
    product(m, d_s, by_rows, out);
  }
}

static void describe_gradients(cuda_dnn_maker *m) {
  const cuda_dnn_form *f = &m->plan->form;
  const size4 size = score_size(f);
  const node q = rows(m, CUDA_DNN_AT_Q, f->heads, f->queries, f->depth);
  const node k = columns(m, CUDA_DNN_AT_K, f->kv_heads, f->keys, f->depth);
  const node v = columns(m, CUDA_DNN_AT_V, f->kv_heads, f->keys, f->value_depth);
  const node o = rows(m, CUDA_DNN_AT_O, f->heads, f->queries, f->value_depth);
  const node d_o = rows(m, CUDA_DNN_AT_DO, f->heads, f->queries, f->value_depth);
  const node sums = describe_sums(m, d_o, o);
  const node scale = scalar(m, CUDA_DNN_SCALE), stats = row_numbers(m, CUDA_DNN_AT_STATS);
  const node s = apply(m, CUDA_DNN_SUB, add_mask(m, scores(m, q, k, scale)), stats, size);
  const node p = apply(m, CUDA_DNN_EXP, hide(m, s), NULL, size);
  key_gradient(m, turned(m, p), d_o, CUDA_DNN_AT_DV, f->value_depth);
  const node d_p = inner(m, CUDA_DNN_FLOAT, size);
  product(m, d_o, v, d_p);
  const node centred = apply(m, CUDA_DNN_SUB, d_p, sums, size);
  const node weighted = apply(m, CUDA_DNN_MUL, centred, p, size);
  const node d_s = inner(m, half_type(f), size);
  pointwise(m, CUDA_DNN_MUL, CUDA_DNN_FLOAT, -1, weighted, scale, NULL, d_s);
  key_gradient(m, turned(m, d_s), q, CUDA_DNN_AT_DK, f->depth);
  query_gradient(m, d_s, k);
}

void cuda_dnn_describe(cuda_dnn_maker *m) {
  if (m->plan->form.what == CUDA_DNN_GRADIENTS)
    describe_gradients(m);
  else
    describe_result(m);
}
