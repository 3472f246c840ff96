/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of cuDNN's double for tensors, operations and graphs. */
#include <stdlib.h>
#include <string.h>

#include "dnn.h"

enum { DEPTH_MOST = 256 }; /* of a head */

const dnn_attribute *dnn_find(const dnn_descriptor *d, int name) {
  const dnn_attribute *a = d->attributes;
  while (a != NULL && a->name != name)
    a = a->next;
  return a;
}

int64_t dnn_find_int64(const dnn_descriptor *d, int name, int64_t otherwise) {
  const dnn_attribute *a = dnn_find(d, name);
  return a != NULL ? (int64_t)a->bytes[0] : otherwise;
}

static int find_int(const dnn_descriptor *d, int name, int otherwise) {
  const dnn_attribute *a = dnn_find(d, name);
  int value = otherwise;
  if (a != NULL)
    memcpy(&value, a->bytes, sizeof value);
  return value;
}

static bool find_bool(const dnn_descriptor *d, int name) {
  const dnn_attribute *a = dnn_find(d, name);
  bool value = false;
  if (a != NULL)
    memcpy(&value, a->bytes, sizeof value);
  return value;
}

/* A descriptor that was given, if it is done and of the type; else NULL. */
const dnn_descriptor *dnn_find_final(const dnn_descriptor *d, int name, int type) {
  const dnn_attribute *a = dnn_find(d, name);
  const dnn_descriptor *found = a != NULL ? (const dnn_descriptor *)(uintptr_t)a->bytes[0] : NULL;
  return found != NULL && found->type == type && found->is_final ? found : NULL;
}

/* ---- tensors and operations ---- */

static int64_t count_of(const dnn_tensor *tensor) {
  return tensor->size[0] * tensor->size[1] * tensor->size[2] * tensor->size[3];
}

static void read_tensor(const dnn_descriptor *d, dnn_tensor *out) {
  const dnn_attribute *size = dnn_find(d, CUDA_DNN_TENSOR_DIMENSIONS);
  const dnn_attribute *stride = dnn_find(d, CUDA_DNN_TENSOR_STRIDES);
  memset(out, 0, sizeof *out);
  out->id = dnn_find_int64(d, CUDA_DNN_TENSOR_ID, 0);
  out->dtype = find_int(d, CUDA_DNN_TENSOR_TYPE, -1);
  out->alignment = dnn_find_int64(d, CUDA_DNN_TENSOR_ALIGNMENT, 0);
  out->is_virtual = find_bool(d, CUDA_DNN_TENSOR_VIRTUAL);
  out->by_value = find_bool(d, CUDA_DNN_TENSOR_BY_VALUE);
  if (size == NULL || stride == NULL || size->n != DNN_AXES || stride->n != DNN_AXES) {
    out->id = 0;
    return;
  }
  memcpy(out->size, size->bytes, sizeof out->size);
  memcpy(out->stride, stride->bytes, sizeof out->stride);
}

cudnnStatus_t dnn_check_tensor(const dnn_descriptor *d) {
  dnn_tensor t;
  read_tensor(d, &t);
  const int64_t least = t.dtype == CUDA_DNN_FLOAT ? (int64_t)sizeof(float) : 16;
  bool good = t.id > 0 && t.dtype >= 0 && (t.is_virtual || t.by_value || t.alignment >= least);
  for (int i = 0; i < DNN_AXES; ++i)
    good = good && t.size[i] > 0 && t.stride[i] > 0;
  if (!good)
    return dnn_fail(CUDA_DNN_BAD_PARAM, "a tensor lacks its id, type, sizes, strides or alignment");
  return CUDA_DNN_SUCCESS;
}

/* An operand; false: it is missing or not done. */
static bool operand(const dnn_descriptor *op, int name, bool optional, dnn_tensor *out) {
  const dnn_descriptor *d = dnn_find_final(op, name, CUDA_DNN_TENSOR);
  memset(out, 0, sizeof *out);
  if (d != NULL)
    read_tensor(d, out);
  return d != NULL || (optional && dnn_find(op, name) == NULL);
}

static bool read_operation(const dnn_descriptor *op, dnn_operation *out) {
  dnn_tensor *of = out->operand;
  const dnn_descriptor *how = NULL;
  memset(out, 0, sizeof *out);
  out->type = op->type;
  switch (op->type) {
    case CUDA_DNN_OP_MATMUL:
      how = dnn_find_final(op, CUDA_DNN_OP_MATMUL_DESC, CUDA_DNN_MATMUL);
      return how != NULL && operand(op, CUDA_DNN_OP_MATMUL_A, false, &of[DNN_X]) &&
             operand(op, CUDA_DNN_OP_MATMUL_B, false, &of[DNN_B]) &&
             operand(op, CUDA_DNN_OP_MATMUL_C, false, &of[DNN_Y]);
    case CUDA_DNN_OP_POINTWISE:
      how = dnn_find_final(op, CUDA_DNN_OP_POINTWISE_DESC, CUDA_DNN_POINTWISE);
      out->mode = how != NULL ? find_int(how, CUDA_DNN_POINTWISE_MODE, -1) : -1;
      out->axis = how != NULL ? dnn_find_int64(how, CUDA_DNN_POINTWISE_AXIS, -1) : -1;
      return out->mode >= 0 && operand(op, CUDA_DNN_OP_POINTWISE_X, false, &of[DNN_X]) &&
             operand(op, CUDA_DNN_OP_POINTWISE_B, true, &of[DNN_B]) &&
             operand(op, CUDA_DNN_OP_POINTWISE_T, true, &of[DNN_T]) &&
             operand(op, CUDA_DNN_OP_POINTWISE_Y, false, &of[DNN_Y]);
    case CUDA_DNN_OP_REDUCTION:
      how = dnn_find_final(op, CUDA_DNN_OP_REDUCTION_DESC, CUDA_DNN_REDUCTION);
      out->mode = how != NULL ? find_int(how, CUDA_DNN_REDUCTION_OPERATOR, -1) : -1;
      return out->mode >= 0 && operand(op, CUDA_DNN_OP_REDUCTION_X, false, &of[DNN_X]) &&
             operand(op, CUDA_DNN_OP_REDUCTION_Y, false, &of[DNN_Y]);
    default:
      return operand(op, CUDA_DNN_OP_RESHAPE_X, false, &of[DNN_X]) &&
             operand(op, CUDA_DNN_OP_RESHAPE_Y, false, &of[DNN_Y]);
  }
}

/* Several of `whole` share one of `part`, in their order. */
static bool divides(int64_t part, int64_t whole) {
  return part > 0 && whole % part == 0;
}

static bool shapes_fit(const dnn_operation *op) {
  const dnn_tensor *x = &op->operand[DNN_X], *b = &op->operand[DNN_B], *y = &op->operand[DNN_Y];
  if (op->type == CUDA_DNN_OP_MATMUL) {
    return x->size[3] == b->size[2] && y->size[2] == x->size[2] && y->size[3] == b->size[3] &&
           divides(x->size[0], y->size[0]) && divides(b->size[0], y->size[0]) &&
           divides(x->size[1], y->size[1]) && divides(b->size[1], y->size[1]);
  }
  if (op->type == CUDA_DNN_OP_RESHAPE)
    return count_of(x) == count_of(y);
  for (int i = 0; i < DNN_AXES; ++i) {
    if (op->type == CUDA_DNN_OP_REDUCTION && !divides(y->size[i], x->size[i]))
      return false;
    if (op->type == CUDA_DNN_OP_POINTWISE &&
        ((x->size[i] != y->size[i] && x->size[i] != 1) ||
         (b->id != 0 && b->size[i] != y->size[i] && b->size[i] != 1)))
      return false;
  }
  return true;
}

cudnnStatus_t dnn_check_operation(const dnn_descriptor *d) {
  dnn_operation op;
  if (!read_operation(d, &op))
    return dnn_fail(CUDA_DNN_BAD_PARAM, "an operation lacks what it is or an operand");
  return shapes_fit(&op) ? CUDA_DNN_SUCCESS
                         : dnn_fail(CUDA_DNN_BAD_PARAM, "operands do not fit each other");
}

/* ---- graphs ---- */

uint32_t dnn_read_graph(const dnn_descriptor *graph, dnn_operation *out) {
  const dnn_attribute *ops = dnn_find(graph, CUDA_DNN_GRAPH_OPS);
  const uint32_t n = ops != NULL && ops->n <= DNN_OPERATIONS ? (uint32_t)ops->n : 0;
  for (uint32_t i = 0; i < n; ++i) {
    const dnn_descriptor *op = (const dnn_descriptor *)(uintptr_t)ops->bytes[i];
    if (!op->is_final || !read_operation(op, &out[i]))
      return 0;
  }
  return n;
}

static bool is_made_before(const dnn_operation *ops, uint32_t n, int64_t id) {
  for (uint32_t i = 0; i < n; ++i) {
    if (ops[i].operand[DNN_Y].id == id)
      return true;
  }
  return false;
}

cudnnStatus_t dnn_check_graph(const dnn_descriptor *graph) {
  dnn_operation ops[DNN_OPERATIONS];
  const uint32_t n = dnn_read_graph(graph, ops);
  if (n == 0)
    return dnn_fail(CUDA_DNN_BAD_PARAM, "a graph without operations");
  for (uint32_t i = 0; i < n; ++i) {
    for (int k = DNN_X; k < DNN_Y; ++k) {
      const dnn_tensor *t = &ops[i].operand[k];
      if (t->id != 0 && t->is_virtual && !is_made_before(ops, i, t->id))
        return dnn_fail(CUDA_DNN_BAD_PARAM, "a tensor is read that nothing made");
    }
    if (is_made_before(ops, i, ops[i].operand[DNN_Y].id))
      return dnn_fail(CUDA_DNN_BAD_PARAM, "a tensor is made twice");
  }
  return CUDA_DNN_SUCCESS;
}

static bool is_half(int dtype) {
  return dtype == CUDA_DNN_HALF || dtype == CUDA_DNN_BF16;
}

/* Real operands of a product: half types, along rows or columns by eights. */
static bool takes_operand(const dnn_tensor *t) {
  const int64_t *s = t->stride;
  if (!is_half(t->dtype))
    return false;
  if (t->is_virtual)
    return true;
  const int along = s[3] == 1 ? 3 : 2, across = 5 - along;
  return s[along] == 1 && t->size[along] % 8 == 0 && t->size[along] <= DEPTH_MOST &&
         s[across] % 8 == 0 && s[0] % 8 == 0 && s[1] % 8 == 0;
}

static bool is_dense(const dnn_tensor *t) {
  return t->stride[3] == 1 && t->stride[2] == t->size[3] &&
         t->stride[1] == t->size[2] * t->size[3] &&
         t->stride[0] == t->size[1] * t->size[2] * t->size[3];
}

bool dnn_is_mask(const dnn_operation *op) {
  const dnn_tensor *b = &op->operand[DNN_B];
  return op->type == CUDA_DNN_OP_POINTWISE && op->mode == CUDA_DNN_ADD && b->id != 0 &&
         !b->is_virtual && !b->by_value;
}

/* Masks of a number for every key, and of graphs whose rows are counted from the first. */
static bool takes_masks(const dnn_operation *ops, uint32_t n) {
  bool masks = false, moves_rows = false;
  for (uint32_t i = 0; i < n; ++i) {
    const dnn_tensor *b = &ops[i].operand[DNN_B];
    moves_rows = moves_rows || (b->id != 0 && b->by_value && b->dtype == CUDA_DNN_INT32);
    if (!dnn_is_mask(&ops[i]))
      continue;
    masks = true;
    if ((b->dtype != CUDA_DNN_FLOAT && !is_half(b->dtype)) || !is_dense(b) ||
        b->size[3] != ops[i].operand[DNN_Y].size[3])
      return false;
  }
  return !masks || !moves_rows;
}

cudnnStatus_t dnn_check_support(const dnn_descriptor *graph) {
  dnn_operation ops[DNN_OPERATIONS];
  const uint32_t n = dnn_read_graph(graph, ops);
  const char *refuses = getenv("OPIPE_CUDA_DOUBLE_DNN_REFUSES");
  if (refuses != NULL && *refuses == '1')
    return dnn_fail(CUDA_DNN_NOT_SUPPORTED, "the double was told to refuse");
  if (!takes_masks(ops, n))
    return dnn_fail(CUDA_DNN_NOT_SUPPORTED, "such a mask");
  for (uint32_t i = 0; i < n; ++i) {
    const dnn_tensor *of = ops[i].operand;
    if (ops[i].type == CUDA_DNN_OP_MATMUL &&
        (!takes_operand(&of[DNN_X]) || !takes_operand(&of[DNN_B])))
      return dnn_fail(CUDA_DNN_NOT_SUPPORTED, "a product of such operands");
    if (!of[DNN_Y].is_virtual && of[DNN_Y].dtype == CUDA_DNN_FLOAT && !is_dense(&of[DNN_Y]))
      return dnn_fail(CUDA_DNN_NOT_SUPPORTED, "a result of fp32 that is not dense");
  }
  return CUDA_DNN_SUCCESS;
}
