/* SPDX-License-Identifier: Apache-2.0 */
/* Executes a graph of cuDNN's double, operation by operation. Every tensor is rounded to its type
 * when it is made; those that lie nowhere live in memory of the host meanwhile. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dnn.h"
#include "double.h"
#include "half.h"

/* A tensor's elements: of virtual ones, numbers at the offsets that its strides say. */
typedef struct cell {
  int64_t id;
  double *data;
} cell;

typedef struct machine {
  cell cells[DNN_OPERATIONS];
  uint32_t n;
  int64_t turn; /* of sums: which term is the first */
} machine;

static double *cell_of(const machine *m, int64_t id) {
  for (uint32_t i = 0; i < m->n; ++i) {
    if (m->cells[i].id == id)
      return m->cells[i].data;
  }
  return NULL;
}

static int64_t offset_of(const dnn_tensor *t, const int64_t *at) {
  int64_t offset = 0;
  for (int i = 0; i < DNN_AXES; ++i)
    offset += at[i] * t->stride[i];
  return offset;
}

static int64_t span_of(const dnn_tensor *t) {
  const int64_t last[DNN_AXES] = {t->size[0] - 1, t->size[1] - 1, t->size[2] - 1, t->size[3] - 1};
  return offset_of(t, last) + 1;
}

static double rounded(int dtype, double value) {
  float single = (float)value;
  uint32_t bits = 0;
  if (dtype == CUDA_DNN_HALF)
    return half_to_double(to_half(value));
  if (dtype == CUDA_DNN_BF16 && !isnan(single)) {
    memcpy(&bits, &single, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&single, &bits, sizeof bits);
  }
  return (double)single;
}

/* The element at an offset, and writing it. */
static double load(const machine *m, const dnn_tensor *t, int64_t offset) {
  uint32_t bits = 0;
  float single = 0;
  if (t->by_value)
    return t->value;
  if (t->is_virtual)
    return cell_of(m, t->id)[offset];
  switch (t->dtype) {
    case CUDA_DNN_HALF:
      return half_to_double(((const uint16_t *)t->at)[offset]);
    case CUDA_DNN_BF16:
      bits = (uint32_t)((const uint16_t *)t->at)[offset] << 16;
      memcpy(&single, &bits, sizeof single);
      return (double)single;
    default:
      return (double)((const float *)t->at)[offset];
  }
}

static void store(const machine *m, const dnn_tensor *t, int64_t offset, double value) {
  const double made = rounded(t->dtype, value);
  const float single = (float)made;
  uint32_t bits = 0;
  if (t->is_virtual) {
    cell_of(m, t->id)[offset] = made;
  } else if (t->dtype == CUDA_DNN_HALF) {
    ((uint16_t *)t->at)[offset] = to_half(made);
  } else if (t->dtype == CUDA_DNN_BF16) {
    memcpy(&bits, &single, sizeof bits);
    ((uint16_t *)t->at)[offset] = (uint16_t)(bits >> 16);
  } else {
    ((float *)t->at)[offset] = single;
  }
}

/* The element for position `at` of a tensor of `size`: where this one is smaller, several share one
 * (all of them where it has one, neighbours where it has more). */
static double shared(const machine *m, const dnn_tensor *t, const int64_t *size,
                     const int64_t *at) {
  int64_t own[DNN_AXES];
  for (int i = 0; i < DNN_AXES; ++i)
    own[i] = at[i] / (size[i] / t->size[i]);
  return load(m, t, offset_of(t, own));
}

static bool next(const int64_t *size, int64_t *at) {
  for (int i = DNN_AXES - 1; i >= 0; --i) {
    if (++at[i] < size[i])
      return true;
    at[i] = 0;
  }
  return false;
}

/* Lines of a matrix of a product, [count][depth], in the order of its sums: the one at `at` of a
 * stack, whose lines run along axis `along` (2 or 3). */
static double *lines_of(const machine *m, const dnn_tensor *t, const dnn_tensor *y,
                        const int64_t *at, int along) {
  const int across = 5 - along;
  const int64_t depth = t->size[along], count = t->size[across];
  double *lines = malloc((size_t)(depth * count + 1) * sizeof *lines);
  if (lines == NULL)
    abort();
  int64_t of[DNN_AXES] = {at[0] / (y->size[0] / t->size[0]), at[1] / (y->size[1] / t->size[1])};
  for (int64_t line = 0; line < count; ++line) {
    of[across] = line;
    for (int64_t i = 0; i < depth; ++i) {
      of[along] = (i + m->turn) % depth;
      lines[line * depth + i] = load(m, t, offset_of(t, of));
    }
  }
  return lines;
}

static void run_product(const machine *m, const dnn_operation *op) {
  const dnn_tensor *x = &op->operand[DNN_X], *b = &op->operand[DNN_B], *y = &op->operand[DNN_Y];
  const int64_t depth = x->size[3], stack[DNN_AXES] = {y->size[0], y->size[1], 1, 1};
  int64_t at[DNN_AXES] = {0};
  do {
    double *rows = lines_of(m, x, y, at, 3), *columns = lines_of(m, b, y, at, 2);
    int64_t own[DNN_AXES] = {at[0], at[1], 0, 0};
    for (own[2] = 0; own[2] < y->size[2]; ++own[2]) {
      for (own[3] = 0; own[3] < y->size[3]; ++own[3]) {
        const double *row = rows + own[2] * depth, *column = columns + own[3] * depth;
        float sum = 0;
        for (int64_t i = 0; i < depth; ++i)
          sum += (float)(row[i] * column[i]);
        store(m, y, offset_of(y, own), (double)sum);
      }
    }
    free(rows);
    free(columns);
  } while (next(stack, at));
}

static const float LOG2_E = 0x1.715476p+0f, LN_2 = 0x1.62e43p-1f;

/* Engines take exponentials of two: what they keep of the largest of a row is its product with
 * log2(e), and what is made of that has been rounded on the way there and back. */
static bool is_largest(const dnn_work *w, const dnn_tensor *t) {
  for (uint32_t i = 0; i < w->n; ++i) {
    const dnn_operation *op = &w->operations[i];
    if (op->type == CUDA_DNN_OP_REDUCTION && op->mode != CUDA_DNN_REDUCE_ADD &&
        op->operand[DNN_Y].id == t->id)
      return true;
  }
  return false;
}

static double apply(const dnn_operation *op, double x, double b, double t, const int64_t *at) {
  switch (op->mode) {
    case CUDA_DNN_ADD:
      return x + b;
    case CUDA_DNN_MUL:
      return x * b;
    case CUDA_DNN_DIV:
      return x / b;
    case CUDA_DNN_SUB:
      return x - b;
    case CUDA_DNN_EXP:
      return (double)exp2f((float)x * LOG2_E);
    case CUDA_DNN_LOG:
      return log(x);
    case CUDA_DNN_GE:
      return x >= b;
    case CUDA_DNN_INDEX:
      return (double)at[op->axis];
    case CUDA_DNN_SELECT:
      return t != 0 ? x : b;
    default:
      return x;
  }
}

static void run_pointwise(const machine *m, const dnn_work *w, const dnn_operation *op) {
  const dnn_tensor *of = op->operand, *y = &of[DNN_Y];
  const bool masks = dnn_is_mask(op);
  const bool from_twos = op->mode == CUDA_DNN_ADD && is_largest(w, &of[DNN_X]);
  int64_t at[DNN_AXES] = {0};
  do {
    const double x = shared(m, &of[DNN_X], y->size, at);
    const double b = of[DNN_B].id != 0 ? shared(m, &of[DNN_B], y->size, at) : 0;
    if (masks && !isfinite((float)b * LOG2_E))
      cuda_double_die("cuDNN adds a mask that is not finite");
    const double t = of[DNN_T].id != 0 ? shared(m, &of[DNN_T], y->size, at) : 0;
    store(m, y, offset_of(y, at),
          from_twos ? (double)fmaf((float)x * LOG2_E, LN_2, (float)b) : apply(op, x, b, t, at));
  } while (next(y->size, at));
}

static void run_reduction(const machine *m, const dnn_operation *op) {
  const dnn_tensor *x = &op->operand[DNN_X], *y = &op->operand[DNN_Y];
  int64_t at[DNN_AXES] = {0}, size[DNN_AXES], inside[DNN_AXES];
  for (int i = 0; i < DNN_AXES; ++i)
    size[i] = x->size[i] / y->size[i];
  do {
    const bool adds = op->mode == CUDA_DNN_REDUCE_ADD;
    double sum = adds ? 0 : -INFINITY;
    int64_t part[DNN_AXES] = {0};
    do {
      for (int i = 0; i < DNN_AXES; ++i)
        inside[i] = at[i] * size[i] + part[i];
      const double value = load(m, x, offset_of(x, inside));
      sum = adds ? (double)((float)sum + (float)value) : fmax(sum, value);
    } while (next(size, part));
    store(m, y, offset_of(y, at), sum);
  } while (next(y->size, at));
}

/* The same memory under other sizes and strides. */
static void run_reshape(const machine *m, const dnn_operation *op) {
  const dnn_tensor *x = &op->operand[DNN_X], *y = &op->operand[DNN_Y];
  int64_t at[DNN_AXES] = {0};
  do {
    store(m, y, offset_of(x, at), load(m, x, offset_of(x, at)));
  } while (next(x->size, at));
}

static void make_cell(machine *m, const dnn_tensor *t) {
  if (!t->is_virtual)
    return;
  double *data = malloc((size_t)span_of(t) * sizeof *data);
  if (data == NULL)
    abort();
  for (int64_t i = 0; i < span_of(t); ++i)
    data[i] = (double)NAN; /* read before it is made: it shows */
  m->cells[m->n++] = (cell){t->id, data};
}

void dnn_run(const void *args) {
  static int64_t n_unsteady; /* under the driver's lock */
  const dnn_work *w = args;
  machine m = {.n = 0, .turn = w->unsteady ? n_unsteady++ : 0};
  memset(w->workspace, 0x5b, (size_t)w->workspace_bytes);
  for (uint32_t i = 0; i < w->n; ++i) {
    const dnn_operation *op = &w->operations[i];
    make_cell(&m, &op->operand[DNN_Y]);
    if (op->type == CUDA_DNN_OP_MATMUL)
      run_product(&m, op);
    else if (op->type == CUDA_DNN_OP_POINTWISE)
      run_pointwise(&m, w, op);
    else if (op->type == CUDA_DNN_OP_REDUCTION)
      run_reduction(&m, op);
    else
      run_reshape(&m, op);
  }
  for (uint32_t i = 0; i < m.n; ++i)
    free(m.cells[i].data);
}
