/* SPDX-License-Identifier: Apache-2.0 */
/* MatMul, FusedMatMul, Gemm: products by cublasLt; of few rows, where the device is told, by our
 * kernel.
 *
 * Batch axes that A and B walk evenly become the library's batch; where B is the same for all of
 * them they become rows of A. Batches that still broadcast in several axes are a product each.
 */
#include "ops/rule.h"

enum { MOST_PRODUCTS = 4096 };

/* The last two axes of an operand, as op() sees them. */
typedef struct matrix {
  int64_t rows, columns;
  bool transposed;
  uint32_t n_batch; /* axes before them */
  int64_t distance; /* between its rows as they lie */
} matrix;

/* Input i. */
static matrix matrix_of(const cuda_rule *r, uint32_t i, bool transposed, bool vector_is_row) {
  const opipe_value *value = cuda_in(r, i);
  matrix m = {1, 1, false, 0, 1};
  if (value->rank == 1) {
    *(vector_is_row ? &m.columns : &m.rows) = value->shape[0];
    m.distance = m.columns;
    return m;
  }
  m.distance = cuda_row_distance(r->program, r->node->in[i]);
  m.n_batch = value->rank - 2;
  m.transposed = transposed;
  m.rows = value->shape[value->rank - (transposed ? 1 : 2)];
  m.columns = value->shape[value->rank - (transposed ? 2 : 1)];
  return m;
}

/* From one matrix of a batch to the next. */
static int64_t stride_of(const matrix *m) {
  return (m->transposed ? m->columns : m->rows) * m->distance;
}

/* Between rows of the result, of so many columns. */
static int64_t result_distance(const cuda_rule *r, int64_t columns) {
  const uint32_t y = r->node->out[0];
  const int64_t pitch =
      r->program->matched.pitches != NULL && y != OPIPE_NONE ? r->program->matched.pitches[y] : 0;
  return pitch != 0 ? pitch : columns;
}

static int64_t most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* Y[M,N] = alpha A B, read by columns. */
static cuda_product product_of(const cuda_rule *r, const matrix *a, const matrix *b, double alpha) {
  const uint32_t dtype = cuda_in(r, 0)->dtype;
  const int64_t m = b->columns, n = a->rows, k = a->columns;
  return (cuda_product){.m = m,
                        .n = n,
                        .k = k,
                        .batch = 1,
                        .a_distance = most(b->distance, 1),
                        .b_distance = most(a->distance, 1),
                        .d_distance = most(result_distance(r, m), 1),
                        .alpha = alpha,
                        .dtype = dtype,
                        .d_dtype = dtype,
                        .trans_a = b->transposed,
                        .trans_b = a->transposed};
}

/* Batch axes with strides of A, B and Y in elements; shape gets them. */
static opipe_status batch_loop(cuda_rule *r, const matrix *a, const matrix *b, cuda_loop *loop,
                               int64_t *shape, uint32_t *out_rank) {
  const matrix *views[2] = {a, b};
  const uint32_t rank = a->n_batch > b->n_batch ? a->n_batch : b->n_batch;
  memset(loop, 0, sizeof *loop);
  loop->rank = rank;
  loop->n_operands = 3;
  for (uint32_t i = 0; i < rank; ++i) {
    shape[i] = 1;
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t missing = rank - views[k]->n_batch;
      const int64_t n = i >= missing ? cuda_in(r, k)->shape[i - missing] : 1;
      if (n != 1 && shape[i] != 1 && shape[i] != n) {
        return cuda_refuse(r, OPIPE_E_INVALID, "batch axis %u has %lld and %lld", i,
                           (long long)shape[i], (long long)n);
      }
      shape[i] = n != 1 ? n : shape[i];
    }
  }
  for (uint32_t k = 0; k < 2; ++k) {
    (void)opipe_broadcast_strides(cuda_in(r, k)->shape, views[k]->n_batch, shape, rank,
                                  loop->stride[k]);
  }
  opipe_dense_strides(shape, rank, loop->stride[2]);
  for (uint32_t i = 0; i < rank; ++i) {
    loop->shape[i] = shape[i];
    loop->stride[0][i] *= stride_of(a);
    loop->stride[1][i] *= stride_of(b);
    loop->stride[2][i] *= a->rows * result_distance(r, b->columns);
  }
  *out_rank = rank;
  return cuda_loop_merge(r, loop);
}

/* The addend may lie where the result goes, unless it is read otherwise too. */
static void may_overwrite_addend(cuda_rule *r, const cuda_tail *tail, uint32_t to) {
  const uint32_t others[] = {r->node->in[0], r->node->in[1], tail->row, tail->aux};
  const uint32_t root = cuda_root(r->program, tail->addend);
  for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
    if (others[i] != OPIPE_NONE && cuda_root(r->program, others[i]) == root)
      return;
  }
  r->step->overwrites = tail->addend;
  r->step->result = to;
}

/* The product's sums over k are written behind its workspace, then added to the accumulator. */
static opipe_status emit_sums(cuda_rule *r, const cuda_product *p, const cuda_beside *beside) {
  const uint32_t bias = r->program->graph->nodes[beside->node].out[0];
  const int64_t n = p->sums == CUDA_SUMS_A ? p->m : p->n;
  const int64_t at = (int64_t)cuda_align_up(r->step->product->choice.workspace_bytes);
  cuda_launch launch;
  cuda_want_workspace(r, (uint64_t)at + (uint64_t)n * sizeof(float));
  CUDA_TRY(cuda_point(r, offsetof(cuda_product_args, bias), CUDA_AT_WORKSPACE, at));
  const cuda_accumulate_args args = {cuda_at(r, r->program->matched.adds_to[bias], 0),
                                     cuda_at(r, CUDA_AT_WORKSPACE, at), n};
  return cuda_plan_accumulate(&args, OPIPE_FLOAT, &launch) ? cuda_emit(r, &launch)
                                                           : cuda_no_kernel(r, cuda_in(r, 0));
}

/* to: the value that is written; row, from byte row_bytes on: the bias. */
static opipe_status emit_to(cuda_rule *r, const cuda_product *product, uint32_t to, uint32_t row,
                            int64_t row_bytes) {
  const cuda_tail *tail = cuda_tail_of(r->program, r->node);
  const cuda_ends ends = {.a = r->node->in[1],
                          .b = r->node->in[0],
                          .bias = row,
                          .c = tail != NULL ? tail->addend : OPIPE_NONE,
                          .aux = tail != NULL ? tail->aux : OPIPE_NONE,
                          .d = to,
                          .bias_bytes = row_bytes};
  bool done = false;
  CUDA_TRY(cuda_emit_padded(r, product, &ends, &done));
  if (done && ends.c != OPIPE_NONE)
    may_overwrite_addend(r, tail, to);
  if (done)
    return OPIPE_OK;
  const cuda_spots spots = {.a = {ends.a, (int64_t)product->a_offset},
                            .b = {ends.b, (int64_t)product->b_offset},
                            .c = {ends.c, 0},
                            .d = {ends.d, (int64_t)product->d_offset},
                            .bias = {ends.bias, ends.bias_bytes},
                            .aux = {ends.aux, 0}};
  CUDA_TRY(cuda_emit_even(r, product, &spots));
  if (ends.c != OPIPE_NONE)
    may_overwrite_addend(r, tail, to);
  return product->sums != CUDA_SUMS_NOTHING
             ? emit_sums(r, product, cuda_beside_of(r->program, r->node))
             : OPIPE_OK;
}

/* A product for each part of a Split of its columns. */
static opipe_status emit_parts(cuda_rule *r, const cuda_product *whole, const opipe_node *split,
                               uint32_t row) {
  const uint32_t size = cuda_size(cuda_in(r, 0));
  int64_t first = 0;
  for (uint32_t i = 0; i < split->n_out; ++i) {
    const opipe_value *part = &r->program->graph->values[split->out[i]];
    cuda_product product = *whole;
    product.m = product.d_distance = part->shape[part->rank - 1];
    product.a_offset = (uint64_t)(first * (whole->trans_a ? whole->a_distance : 1)) * size;
    product.bias_offset = (uint64_t)first * size;
    CUDA_TRY(emit_to(r, &product, split->out[i], row, first * (int64_t)size));
    first += product.m;
  }
  return OPIPE_OK;
}

enum { VECTOR_BYTES = 16 };

/* Is it a product of few rows, by the device's option, of dense operands, weights in rows of whole
 * vectors, and a tail that our kernel takes along? */
static bool has_few_rows(const cuda_rule *r, const cuda_product *p, const cuda_tail *tail) {
  const int64_t row_bytes = (p->trans_a ? p->k : p->m) * (int64_t)cuda_size(cuda_in(r, 0));
  return p->n <= (int64_t)r->program->device->few_rows && p->batch == 1 && p->m > 0 && p->k > 0 &&
         p->n > 0 && !p->trans_b && p->dtype == p->d_dtype && p->dtype != OPIPE_DOUBLE &&
         row_bytes % VECTOR_BYTES == 0 && p->through != CUDA_THROUGH_DGELU &&
         (tail == NULL || !tail->splits) && (tail != NULL || p->beta == 0.0) &&
         p->a_distance == (p->trans_a ? p->k : p->m) && p->b_distance == p->k &&
         p->d_distance == p->m;
}

static opipe_status emit_few_rows(cuda_rule *r, const cuda_product *p, const cuda_tail *tail,
                                  uint32_t to, uint32_t row) {
  cuda_few_rows_args args = {.m = p->n,
                             .n = p->m,
                             .k = p->k,
                             .alpha = p->alpha,
                             .turned = p->trans_a,
                             .gelu = p->through == CUDA_THROUGH_GELU};
  cuda_launch launches[CUDA_LAUNCHES];
  args.y = cuda_at(r, to, (int64_t)p->d_offset);
  args.x = cuda_at(r, r->node->in[0], (int64_t)p->b_offset);
  args.w = cuda_at(r, r->node->in[1], (int64_t)p->a_offset);
  args.bias = cuda_at(r, p->has_bias ? row : OPIPE_NONE, 0);
  args.residual = cuda_at(r, tail != NULL ? tail->addend : OPIPE_NONE, 0);
  args.aux = cuda_at(r, tail != NULL ? tail->aux : OPIPE_NONE, 0);
  args.workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0);
  if (cuda_few_rows_counters(&args, p->dtype) > 0)
    args.counters = cuda_at_counters(r);
  const uint32_t n = cuda_plan_few_rows(&args, p->dtype, launches);
  if (n == 0)
    return cuda_no_kernel(r, cuda_in(r, 0));
  CUDA_TRY(cuda_emit_all(r, launches, n));
  cuda_want_workspace(r, cuda_few_rows_workspace(&args, p->dtype));
  if (tail != NULL && tail->addend != OPIPE_NONE)
    may_overwrite_addend(r, tail, to);
  return OPIPE_OK;
}

static opipe_status emit_one(cuda_rule *r, const cuda_product *product) {
  const cuda_tail *tail = cuda_tail_of(r->program, r->node);
  const uint32_t own = r->node->n_in > 2 ? r->node->in[2] : OPIPE_NONE;
  const uint32_t row = tail != NULL && tail->row != OPIPE_NONE ? tail->row : own;
  const uint32_t sum = cuda_accumulator(r, 0);
  if (sum == OPIPE_NONE && has_few_rows(r, product, tail)) {
    const uint32_t end =
        tail != NULL ? r->program->graph->nodes[tail->nodes[tail->n - 1]].out[0] : r->node->out[0];
    return emit_few_rows(r, product, tail, end, row);
  }
  if (tail == NULL)
    return emit_to(r, product, sum != OPIPE_NONE ? sum : r->node->out[0], row, 0);
  const opipe_node *last = &r->program->graph->nodes[tail->nodes[tail->n - 1]];
  return tail->splits ? emit_parts(r, product, last, row)
                      : emit_to(r, product, last->out[0], row, 0);
}

/* A product that is summed in fp32. */
static void add_to_accumulator(const cuda_rule *r, cuda_product *product) {
  if (cuda_accumulator(r, 0) != OPIPE_NONE) {
    product->d_dtype = OPIPE_FLOAT;
    product->beta = 1.0;
  }
}

/* Adds the tail that the product does along. UNSUPPORTED where it is not one product. */
static opipe_status put_tail(const cuda_rule *r, bool is_one, cuda_product *product) {
  const cuda_tail *tail = cuda_tail_of(r->program, r->node);
  if (tail == NULL)
    return OPIPE_OK;
  if (!is_one || product->k == 0)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "no one product makes its result");
  product->has_bias = product->has_bias || tail->row != OPIPE_NONE;
  product->beta = tail->addend != OPIPE_NONE ? 1.0 : 0.0;
  product->through = tail->through;
  product->has_aux = tail->aux != OPIPE_NONE;
  return OPIPE_OK;
}

/* The bias' gradient that the product makes along: sums over k of an operand that lies as dY does,
 * a row for each k. UNSUPPORTED where it is not so, or where the operand is rounded first. */
static opipe_status put_sums(const cuda_rule *r, bool is_one, cuda_product *product) {
  const cuda_beside *beside = cuda_beside_of(r->program, r->node);
  if (beside == NULL)
    return OPIPE_OK;
  const bool of_a = beside->input == 1; /* by the library's names */
  const opipe_node *node = &r->program->graph->nodes[beside->node];
  const uint64_t n = cuda_elems(&r->program->graph->values[node->out[0]]);
  const bool rounds = r->program->device->tf32 && product->dtype == OPIPE_FLOAT;
  if (!is_one || product->k == 0 || product->m == 0 || product->n == 0 || product->has_bias ||
      product->alpha != 1.0 || product->beta != 1.0 || product->d_dtype != OPIPE_FLOAT || rounds ||
      (of_a ? product->trans_a != 0 : product->trans_b == 0) ||
      n != (uint64_t)(of_a ? product->m : product->n)) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "it does not sum the columns of input %u",
                       beside->input);
  }
  product->sums = of_a ? CUDA_SUMS_A : CUDA_SUMS_B;
  return OPIPE_OK;
}

/* Sums over nothing. */
static opipe_status emit_empty(cuda_rule *r) {
  return cuda_accumulator(r, 0) != OPIPE_NONE ? OPIPE_OK : cuda_emit_zeros(r);
}

/* One product for the innermost axis of the loop, for each index of the others. */
static opipe_status emit_batches(cuda_rule *r, const cuda_loop *loop, cuda_product *product) {
  const uint32_t last = loop->rank - 1, size = cuda_size(cuda_in(r, 0));
  const uint32_t d_size = opipe_dtype_bits(product->d_dtype) / 8;
  int64_t n = 1;
  if (loop->rank == 0)
    return emit_one(r, product);
  for (uint32_t i = 0; i < last; ++i)
    n *= loop->shape[i];
  if (n > MOST_PRODUCTS) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%lld products of its batch, at most %d",
                       (long long)n, MOST_PRODUCTS);
  }
  product->batch = loop->shape[last];
  product->b_stride = loop->stride[0][last];
  product->a_stride = loop->stride[1][last];
  product->d_stride = loop->stride[2][last];
  for (int64_t at = 0; at < n; ++at) {
    int64_t rest = at, offsets[3] = {0};
    for (uint32_t i = last; i > 0; --i) {
      for (uint32_t k = 0; k < 3; ++k)
        offsets[k] += rest % loop->shape[i - 1] * loop->stride[k][i - 1];
      rest /= loop->shape[i - 1];
    }
    product->b_offset = (uint64_t)offsets[0] * size;
    product->a_offset = (uint64_t)offsets[1] * size;
    product->d_offset = (uint64_t)offsets[2] * d_size;
    CUDA_TRY(emit_one(r, product));
  }
  return OPIPE_OK;
}

static opipe_status check_types(const cuda_rule *r) {
  const opipe_value *first = cuda_in(r, 0);
  for (uint32_t i = 1; i < r->node->n_in; ++i) {
    if (cuda_in(r, i) != NULL && cuda_in(r, i)->dtype != first->dtype) {
      return cuda_refuse(r, OPIPE_E_INVALID, "input %u is %s, input 0 %s", i,
                         opipe_dtype_name(cuda_in(r, i)->dtype), opipe_dtype_name(first->dtype));
    }
  }
  return cuda_is_float(first->dtype) ? OPIPE_OK
                                     : cuda_refuse(r, OPIPE_E_UNSUPPORTED, "no product of %s",
                                                   opipe_dtype_name(first->dtype));
}

static opipe_status check_depth(const cuda_rule *r, const matrix *a, const matrix *b) {
  return a->columns == b->rows ? OPIPE_OK
                               : cuda_refuse(r, OPIPE_E_INVALID, "A has %lld columns, B %lld rows",
                                             (long long)a->columns, (long long)b->rows);
}

static opipe_status rule_matmul(cuda_rule *r) {
  const bool fused = r->node->domain[0] != '\0';
  const opipe_value *left = cuda_in(r, 0), *right = cuda_in(r, 1);
  int64_t shape[OPIPE_MAX_RANK + 2];
  uint32_t rank = 0;
  cuda_loop loop;
  CUDA_TRY(check_types(r));
  if (left->rank == 0 || right->rank == 0)
    return cuda_refuse(r, OPIPE_E_INVALID, "an operand is a scalar");
  matrix a = matrix_of(r, 0, fused && opipe_attr_int(r->node, "transA", 0) != 0, true);
  const matrix b = matrix_of(r, 1, fused && opipe_attr_int(r->node, "transB", 0) != 0, false);
  CUDA_TRY(check_depth(r, &a, &b));
  CUDA_TRY(batch_loop(r, &a, &b, &loop, shape, &rank));
  if (left->rank > 1)
    shape[rank++] = a.rows;
  if (right->rank > 1)
    shape[rank++] = b.columns;
  CUDA_TRY(cuda_expect(r, 0, left->dtype, shape, rank));
  if (a.columns == 0 && cuda_tail_of(r->program, r->node) == NULL &&
      cuda_beside_of(r->program, r->node) == NULL)
    return emit_empty(r);
  if (loop.rank == 1 && loop.stride[1][0] == 0 && !a.transposed &&
      loop.stride[0][0] == stride_of(&a)) {
    a.rows *= loop.shape[0];
    loop.rank = 0;
  }
  cuda_product product =
      product_of(r, &a, &b, fused ? opipe_attr_float(r->node, "alpha", 1.0) : 1.0);
  add_to_accumulator(r, &product);
  CUDA_TRY(put_tail(r, loop.rank == 0, &product));
  CUDA_TRY(put_sums(r, loop.rank == 0, &product));
  return emit_batches(r, &loop, &product);
}

/* Y = C, broadcast. */
static opipe_status emit_addend(cuda_rule *r, const int64_t *strides) {
  const opipe_value *y = cuda_out(r, 0);
  cuda_loop loop = {.rank = 2, .n_operands = 2};
  cuda_move_args args = {.n = (int64_t)cuda_elems(y), .size = cuda_size(y)};
  cuda_launch launch;
  memcpy(loop.shape, y->shape, 2 * sizeof loop.shape[0]);
  memcpy(loop.stride[0], strides, 2 * sizeof strides[0]);
  opipe_dense_strides(y->shape, 2, loop.stride[1]);
  CUDA_TRY(cuda_loop_merge(r, &loop));
  args.rank = loop.rank;
  for (uint32_t i = 0; i < loop.rank; ++i) {
    args.shape[i] = loop.shape[i];
    args.in_stride[i] = loop.stride[0][i];
    args.out_stride[i] = loop.stride[1][i];
  }
  args.in = cuda_at_in(r, 2);
  args.out = cuda_at_out(r, 0);
  return cuda_plan_move(&args, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, y);
}

static opipe_status rule_gemm(cuda_rule *r) {
  const opipe_value *left = cuda_in(r, 0), *right = cuda_in(r, 1), *addend = cuda_in(r, 2);
  const double beta = opipe_attr_float(r->node, "beta", 1.0);
  int64_t strides[2] = {0};
  CUDA_TRY(check_types(r));
  if (left->rank != 2 || right->rank != 2) {
    return cuda_refuse(r, OPIPE_E_INVALID, "its operands have ranks %u and %u", left->rank,
                       right->rank);
  }
  const matrix a = matrix_of(r, 0, opipe_attr_int(r->node, "transA", 0) != 0, true);
  const matrix b = matrix_of(r, 1, opipe_attr_int(r->node, "transB", 0) != 0, false);
  CUDA_TRY(check_depth(r, &a, &b));
  const int64_t shape[2] = {a.rows, b.columns};
  CUDA_TRY(cuda_expect(r, 0, left->dtype, shape, 2));
  cuda_product product = product_of(r, &a, &b, opipe_attr_float(r->node, "alpha", 1.0));
  const bool adds = addend != NULL && beta != 0;
  add_to_accumulator(r, &product);
  if (adds && !opipe_broadcast_strides(addend->shape, addend->rank, shape, 2, strides)) {
    return cuda_refuse(r, OPIPE_E_INVALID, "C does not broadcast to [%lld, %lld]",
                       (long long)shape[0], (long long)shape[1]);
  }
  const bool is_row = strides[0] == 0 && strides[1] == 1;
  product.has_bias = adds && is_row && beta == 1.0 && left->dtype != OPIPE_DOUBLE && a.columns > 0;
  CUDA_TRY(put_tail(r, !adds || product.has_bias, &product));
  CUDA_TRY(put_sums(r, !adds, &product));
  if (adds && !product.has_bias) {
    product.beta = beta;
    CUDA_TRY(emit_addend(r, strides));
  }
  if (a.columns == 0 && !adds)
    return emit_empty(r);
  if (a.columns == 0 && beta != 1.0)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "a sum over nothing with beta %g", beta);
  return a.columns == 0 ? OPIPE_OK : emit_one(r, &product);
}

static const cuda_row rows[] = {{"MatMul", rule_matmul, 2, 2, 1}, {"Gemm", rule_gemm, 2, 3, 1}};
static const cuda_row contrib_rows[] = {{"FusedMatMul", rule_matmul, 2, 2, 1}};

const cuda_family cuda_linear_family = {"", CUDA_ROWS(rows)};
const cuda_family cuda_contrib_family = {"com.microsoft", CUDA_ROWS(contrib_rows)};
