/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on one member's part of a table or of classes: opipe.GatherPart, CrossEntropyPart,
 * CrossEntropyMerge, CrossEntropyPartGrad. See abi/guide/operators.md, families D. */
#include "ops/rule.h"

opipe_status cuda_read_range(const cuda_rule *r, int64_t own, int64_t *out_first,
                             int64_t *out_whole) {
  const int64_t first = opipe_attr_int(r->node, "first", 0);
  const int64_t whole = opipe_attr_int(r->node, "whole", own);
  *out_first = first;
  *out_whole = whole;
  return first >= 0 && own <= whole && first <= whole - own
             ? OPIPE_OK
             : cuda_refuse(r, OPIPE_E_INVALID, "%lld entries from %lld on are not a part of %lld",
                           (long long)own, (long long)first, (long long)whole);
}

static opipe_status rule_gather_part(cuda_rule *r) {
  const opipe_value *table = cuda_in(r, 0), *indices = cuda_in(r, 1);
  int64_t shape[2 * OPIPE_MAX_RANK];
  uint32_t rank = 0;
  cuda_launch launch;
  if (table->rank < 1 || cuda_size(table) == 0 ||
      (indices->dtype != OPIPE_INT32 && indices->dtype != OPIPE_INT64)) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%s indices of %s", opipe_dtype_name(indices->dtype),
                       opipe_dtype_name(table->dtype));
  }
  for (uint32_t i = 0; i < indices->rank; ++i)
    shape[rank++] = indices->shape[i];
  for (uint32_t i = 1; i < table->rank; ++i)
    shape[rank++] = table->shape[i];
  CUDA_TRY(cuda_expect(r, 0, table->dtype, shape, rank));
  cuda_gather_args args = {.out = cuda_at_out(r, 0),
                           .data = cuda_at_in(r, 0),
                           .indices = cuda_at_in(r, 1),
                           .outer = 1,
                           .extent = table->shape[0],
                           .n_indices = (int64_t)cuda_elems(indices),
                           .inner = cuda_extent(table, 1, table->rank),
                           .size = cuda_size(table),
                           .index_bytes = cuda_size(indices)};
  CUDA_TRY(cuda_read_range(r, args.extent, &args.first, &args.whole));
  CUDA_TRY(cuda_at_status(r, &args.status, &args.node));
  return cuda_plan_gather(&args, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, table);
}

/* ---- cross entropy ---- */

typedef struct part_classes {
  int64_t rows, own, inner, first; /* scores [rows, own, inner] */
  cuda_entropy_labels of;          /* without addresses */
  double smoothing;
  uint32_t columns, dtype; /* of statistics */
} part_classes;

/* scores: the input that holds them; labels follow. */
static opipe_status read_part(const cuda_rule *r, uint32_t scores, part_classes *out) {
  const opipe_value *x = cuda_in(r, scores), *labels = cuda_in(r, scores + 1);
  const opipe_attr *ignored = opipe_attr_find(r->node, "ignore_index");
  if (!cuda_is_float(x->dtype) || x->rank < 2 ||
      (labels->dtype != OPIPE_INT32 && labels->dtype != OPIPE_INT64)) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%s of rank %u with labels of %s",
                       opipe_dtype_name(x->dtype), x->rank, opipe_dtype_name(labels->dtype));
  }
  *out = (part_classes){.rows = x->shape[0],
                        .own = x->shape[1],
                        .inner = cuda_extent(x, 2, x->rank),
                        .smoothing = opipe_attr_float(r->node, "smoothing", 0.0),
                        .dtype = x->dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT};
  if (labels->rank + 1 != x->rank || (int64_t)cuda_elems(labels) != out->rows * out->inner)
    return cuda_refuse(r, OPIPE_E_INVALID, "its labels are not the scores' shape without classes");
  out->columns = out->smoothing > 0 ? 4 : 3;
  out->of.bytes = cuda_size(labels);
  out->of.ignores = ignored != NULL && ignored->kind == OPIPE_ATTR_INT;
  out->of.ignored = out->of.ignores ? ignored->i : 0;
  return cuda_read_range(r, out->own, &out->first, &out->of.whole);
}

/* Addresses of the labels, which are input i, and of what is reported. */
static opipe_status point_labels(cuda_rule *r, uint32_t i, cuda_entropy_labels *io) {
  io->labels = cuda_at_in(r, i);
  return cuda_at_status(r, &io->status, &io->node);
}

/* Input i, which may be absent where `optional`, has n elements of `dtype`. */
static opipe_status expect_elements(const cuda_rule *r, uint32_t i, bool optional, uint32_t dtype,
                                    int64_t n) {
  const opipe_value *x = cuda_in(r, i);
  if (x == NULL && optional)
    return OPIPE_OK;
  if (x == NULL || (int64_t)cuda_elems(x) != n)
    return cuda_refuse(r, OPIPE_E_INVALID, "input %u is not %lld numbers", i, (long long)n);
  return x->dtype == dtype ? OPIPE_OK
                           : cuda_refuse(r, OPIPE_E_UNSUPPORTED, "input %u is %s, not %s", i,
                                         opipe_dtype_name(x->dtype), opipe_dtype_name(dtype));
}

static opipe_status expect_result(const cuda_rule *r, uint32_t i, uint32_t dtype, int64_t n) {
  const opipe_value *y = cuda_out(r, i);
  return y != NULL && y->dtype == dtype && (int64_t)cuda_elems(y) == n
             ? OPIPE_OK
             : cuda_refuse(r, OPIPE_E_INVALID, "output %u is not %lld of %s", i, (long long)n,
                           opipe_dtype_name(dtype));
}

static opipe_status rule_entropy(cuda_rule *r) {
  const opipe_value *scores = cuda_in(r, 0);
  part_classes c;
  cuda_launch launch;
  CUDA_TRY(read_part(r, 0, &c));
  CUDA_TRY(expect_result(r, 0, c.dtype, c.rows * c.inner * (int64_t)c.columns));
  CUDA_TRY(point_labels(r, 1, &c.of));
  const cuda_entropy_args args = {.statistics = cuda_at_out(r, 0),
                                  .scores = cuda_at_in(r, 0),
                                  .of = c.of,
                                  .rows = c.rows,
                                  .own = c.own,
                                  .inner = c.inner,
                                  .first = c.first,
                                  .columns = c.columns};
  return cuda_plan_entropy(&args, scores->dtype, &launch) ? cuda_emit(r, &launch)
                                                          : cuda_no_kernel(r, scores);
}

static opipe_status rule_entropy_merge(cuda_rule *r) {
  static const char *const reductions[] = {"none", "sum", "mean"};
  const opipe_value *scores = cuda_in(r, 0), *statistics = cuda_in(r, 3);
  const char *reduction = opipe_attr_string(r->node, "reduction", "mean");
  part_classes c;
  cuda_launch launches[CUDA_LAUNCHES];
  uint32_t how = 0;
  CUDA_TRY(read_part(r, 0, &c));
  while (how < 3 && strcmp(reductions[how], reduction) != 0)
    ++how;
  if (how == 3)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "reduction '%.20s' is not known", reduction);
  const int64_t rows = c.rows * c.inner;
  const int64_t members = statistics != NULL && statistics->rank > 0 ? statistics->shape[0] : 0;
  CUDA_TRY(expect_elements(r, 2, true, scores->dtype, c.of.whole));
  CUDA_TRY(expect_elements(r, 3, false, c.dtype, members * rows * (int64_t)c.columns));
  CUDA_TRY(expect_result(r, 0, scores->dtype, how == 0 ? rows : 1));
  if (cuda_out(r, 1) != NULL)
    CUDA_TRY(expect_result(r, 1, c.dtype, rows));
  CUDA_TRY(point_labels(r, 1, &c.of));
  const cuda_entropy_merge_args args = {.loss = cuda_at_out(r, 0),
                                        .log_sum = cuda_at_out(r, 1),
                                        .weights = cuda_at_in(r, 2),
                                        .statistics = cuda_at_in(r, 3),
                                        .workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0),
                                        .of = c.of,
                                        .rows = rows,
                                        .members = members,
                                        .smoothing = c.smoothing,
                                        .columns = c.columns,
                                        .reduction = how};
  const uint32_t n = cuda_plan_entropy_merge(&args, scores->dtype, launches);
  if (n == 0)
    return cuda_no_kernel(r, scores);
  CUDA_TRY(cuda_emit_all(r, launches, n));
  cuda_want_workspace(r, cuda_entropy_workspace(&args));
  return OPIPE_OK;
}

static opipe_status rule_entropy_grad(cuda_rule *r) {
  const opipe_value *scores = cuda_in(r, 1);
  const bool each = strcmp(opipe_attr_string(r->node, "reduction", "sum"), "none") == 0;
  part_classes c;
  cuda_launch launch;
  CUDA_TRY(read_part(r, 1, &c));
  const int64_t rows = c.rows * c.inner;
  CUDA_TRY(expect_elements(r, 0, false, scores->dtype, each ? rows : 1));
  CUDA_TRY(expect_elements(r, 3, true, scores->dtype, c.of.whole));
  CUDA_TRY(expect_elements(r, 4, false, c.dtype, rows));
  CUDA_TRY(cuda_expect_like(r, 0, scores));
  CUDA_TRY(point_labels(r, 2, &c.of));
  const cuda_entropy_grad_args args = {.dx = cuda_at_out(r, 0),
                                       .scores = cuda_at_in(r, 1),
                                       .dl = cuda_at_in(r, 0),
                                       .weights = cuda_at_in(r, 3),
                                       .log_sum = cuda_at_in(r, 4),
                                       .of = c.of,
                                       .rows = c.rows,
                                       .own = c.own,
                                       .inner = c.inner,
                                       .first = c.first,
                                       .smoothing = c.smoothing,
                                       .dl_rows = each};
  if (!cuda_plan_entropy_grad(&args, scores->dtype, &launch))
    return cuda_no_kernel(r, scores);
  CUDA_TRY(cuda_emit(r, &launch));
  cuda_may_overwrite(r, 1);
  return OPIPE_OK;
}

static const cuda_row rows[] = {
    {"GatherPart", rule_gather_part, 2, 2, 1},
    {"CrossEntropyPart", rule_entropy, 2, 2, 1},
    {"CrossEntropyMerge", rule_entropy_merge, 2, 4, 2},
    {"CrossEntropyPartGrad", rule_entropy_grad, 3, 5, 1},
};

const cuda_family cuda_parts_family = {"opipe", CUDA_ROWS(rows)};
