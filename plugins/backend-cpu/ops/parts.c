/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on one member's part of a table or of logits: opipe.GatherPart, CrossEntropyPart,
 * CrossEntropyMerge, CrossEntropyPartGrad.
 *
 * Scores are [N, own, d...], columns of classes `inner` apart; classes [first, first + own) of
 * `whole` are the member's. Sums run in fp64 in index order; statistics of members are merged in
 * rising order. A label outside [0, whole) that is not ignored, and an index outside the whole
 * table, are errors of the run in every member.
 */
#include <math.h>

#include "loop.h"

/* -- GatherPart -------------------------------------------------------------------------------- */

typedef struct rows_plan {
  int64_t first, own, whole, n;
  uint64_t row; /* bytes */
} rows_plan;

static void copy_rows(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const rows_plan *plan = call->plan;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t given = cpu_index(&call->in[1], (uint64_t)i);
    const int64_t at = (given < 0 ? given + plan->whole : given) - plan->first;
    char *to = (char *)call->out[0].data + (uint64_t)i * plan->row;
    if (at < 0 || at >= plan->own)
      memset(to, 0, (size_t)plan->row);
    else
      memcpy(to, (const char *)call->in[0].data + (uint64_t)at * plan->row, (size_t)plan->row);
  }
}

static opipe_status rows_kernel(const cpu_call *call, opipe_error *err) {
  const rows_plan *plan = call->plan;
  cpu_call copy = *call;
  for (int64_t i = 0; i < plan->n; ++i) {
    const int64_t at = cpu_index(&call->in[1], (uint64_t)i);
    if (at < -plan->whole || at >= plan->whole) {
      return cpu_fail(call, err, OPIPE_E_INVALID, "index %lld is outside [-%lld, %lld)",
                      (long long)at, (long long)plan->whole, (long long)plan->whole);
    }
  }
  cpu_parallel(call->exec, plan->n, plan->n * (int64_t)plan->row / 4, copy_rows, &copy);
  return OPIPE_OK;
}

/* first and whole. */
static opipe_status read_range(cpu_prep *p, int64_t own, int64_t *out_first, int64_t *out_whole) {
  *out_first = opipe_attr_int(p->node, "first", 0);
  *out_whole = opipe_attr_int(p->node, "whole", own);
  if (*out_first >= 0 && own <= *out_whole && *out_first <= *out_whole - own)
    return OPIPE_OK;
  return cpu_invalid(p, "%lld entries from %lld on are not a part of %lld", (long long)own,
                     (long long)*out_first, (long long)*out_whole);
}

static opipe_status prepare_rows(cpu_prep *p) {
  const opipe_value *table = cpu_in(p, 0), *at = cpu_in(p, 1), *y = cpu_out(p, 0);
  rows_plan *plan = CPU_PLAN(p, rows_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (table->rank < 1 || cpu_dtype_bytes(table->dtype) == 0 || y->dtype != table->dtype ||
      (at->dtype != OPIPE_INT64 && at->dtype != OPIPE_INT32)) {
    return cpu_refuse(p, "does not take %s, %s", opipe_dtype_name(table->dtype),
                      opipe_dtype_name(at->dtype));
  }
  plan->own = table->shape[0];
  CPU_TRY(read_range(p, plan->own, &plan->first, &plan->whole));
  plan->n = (int64_t)cpu_elems(at);
  plan->row = cpu_dtype_bytes(table->dtype);
  for (uint32_t d = 1; d < table->rank; ++d)
    plan->row *= (uint64_t)table->shape[d];
  if (cpu_elems(y) * cpu_dtype_bytes(y->dtype) != (uint64_t)plan->n * plan->row)
    return cpu_invalid(p, "'%.80s' does not have %lld rows", y->name, (long long)plan->n);
  cpu_want_layout(p, 0, CPU_LAYOUT_COPY);
  cpu_want_layout(p, 1, CPU_LAYOUT_COPY);
  p->step->run = rows_kernel;
  return OPIPE_OK;
}

/* -- cross entropy ----------------------------------------------------------------------------- */

typedef struct entropy_plan {
  int64_t n, own, inner; /* of the scores */
  int64_t first, whole;
  int64_t ignored;
  int64_t members; /* CrossEntropyMerge */
  int64_t columns; /* statistics of a row */
  double smoothing;
  bool ignores, each, mean;
} entropy_plan;

/* The label of row i; *out_counts: it is not ignored. */
static opipe_status label_of(const cpu_call *call, const entropy_plan *plan, uint32_t input,
                             int64_t i, int64_t *out_label, bool *out_counts, opipe_error *err) {
  *out_label = cpu_index(&call->in[input], (uint64_t)i);
  *out_counts = !plan->ignores || *out_label != plan->ignored;
  if (!*out_counts || (*out_label >= 0 && *out_label < plan->whole))
    return OPIPE_OK;
  return cpu_fail(call, err, OPIPE_E_INVALID, "label %lld is outside [0, %lld)",
                  (long long)*out_label, (long long)plan->whole);
}

/* Position of class c of row i in the scores. */
static int64_t score_at(const entropy_plan *plan, int64_t i, int64_t c) {
  return (i / plan->inner * plan->own + c) * plan->inner + i % plan->inner;
}

static opipe_status part_kernel(const cpu_call *call, opipe_error *err) {
  const entropy_plan *plan = call->plan;
  for (int64_t i = 0; i < plan->n * plan->inner; ++i) {
    double top = -(double)INFINITY, sum = 0, all = 0;
    int64_t label = 0;
    bool counts = false;
    CPU_TRY(label_of(call, plan, 1, i, &label, &counts, err));
    for (int64_t c = 0; c < plan->own; ++c) {
      const double x = cpu_get(&call->in[0], score_at(plan, i, c));
      top = x > top || isnan(x) ? x : top;
      all += x;
    }
    for (int64_t c = 0; c < plan->own && top > -(double)INFINITY; ++c) /* else its share is 0 */
      sum += exp(cpu_get(&call->in[0], score_at(plan, i, c)) - top);
    const int64_t c = label - plan->first;
    const bool own = counts && c >= 0 && c < plan->own;
    const int64_t to = i * plan->columns;
    cpu_put(&call->out[0], to, top);
    cpu_put(&call->out[0], to + 1, sum);
    cpu_put(&call->out[0], to + 2, own ? cpu_get(&call->in[0], score_at(plan, i, c)) : 0);
    if (plan->columns > 3)
      cpu_put(&call->out[0], to + 3, all);
  }
  return OPIPE_OK;
}

typedef struct merged {
  double log_sum, picked, all;
} merged;

static merged merge_row(const cpu_call *call, const entropy_plan *plan, int64_t i) {
  const cpu_tensor *from = &call->in[3];
  const int64_t rows = plan->n * plan->inner;
  double top = -(double)INFINITY, sum = 0;
  merged m = {0, 0, 0};
  for (int64_t k = 0; k < plan->members; ++k) {
    const double x = cpu_get(from, (k * rows + i) * plan->columns);
    top = x > top || isnan(x) ? x : top;
  }
  for (int64_t k = 0; k < plan->members; ++k) {
    const int64_t at = (k * rows + i) * plan->columns;
    sum += cpu_get(from, at + 1) * exp(cpu_get(from, at) - top);
    m.picked += cpu_get(from, at + 2);
    m.all += plan->columns > 3 ? cpu_get(from, at + 3) : 0;
  }
  m.log_sum = log(sum) + top;
  return m;
}

static opipe_status merge_kernel(const cpu_call *call, opipe_error *err) {
  const entropy_plan *plan = call->plan;
  const bool weighted = call->in[2].data != NULL;
  double sum = 0, weights = 0;
  for (int64_t i = 0; i < plan->n * plan->inner; ++i) {
    const merged m = merge_row(call, plan, i);
    double loss = 0;
    int64_t label = 0;
    bool counts = false;
    CPU_TRY(label_of(call, plan, 1, i, &label, &counts, err));
    if (counts) {
      const double weight = weighted ? cpu_number(&call->in[2], (uint64_t)label) : 1.0;
      const double mean = m.log_sum - m.all / (double)plan->whole;
      loss = weight * (1 - plan->smoothing) * (m.log_sum - m.picked) + plan->smoothing * mean;
      weights += weight;
      sum += loss;
    }
    if (call->n_out > 1 && call->out[1].data != NULL)
      cpu_put(&call->out[1], i, m.log_sum);
    if (plan->each)
      cpu_put(&call->out[0], i, loss);
  }
  if (!plan->each)
    cpu_put(&call->out[0], 0, plan->mean ? sum / weights : sum);
  return OPIPE_OK;
}

static opipe_status part_grad_kernel(const cpu_call *call, opipe_error *err) {
  const entropy_plan *plan = call->plan;
  const bool weighted = call->in[3].data != NULL;
  const double even = plan->smoothing / (double)plan->whole;
  for (int64_t i = 0; i < plan->n * plan->inner; ++i) {
    const double log_sum = cpu_get(&call->in[4], i);
    const double dl = cpu_get(&call->in[0], plan->each ? i : 0);
    int64_t label = 0;
    bool counts = false;
    CPU_TRY(label_of(call, plan, 2, i, &label, &counts, err));
    const double weight = counts && weighted ? cpu_number(&call->in[3], (uint64_t)label) : 1.0;
    const double hard = weight * (1 - plan->smoothing);
    for (int64_t c = 0; c < plan->own; ++c) {
      const int64_t at = score_at(plan, i, c);
      const double p = exp(cpu_get(&call->in[1], at) - log_sum);
      const double d = (hard + plan->smoothing) * p - even - (c + plan->first == label ? hard : 0);
      cpu_put(&call->out[0], at, counts ? dl * d : 0);
    }
  }
  return OPIPE_OK;
}

/* Scores are input `at`, labels the next one. */
static opipe_status read_scores(cpu_prep *p, uint32_t at, entropy_plan *plan) {
  const opipe_value *x = cpu_in(p, at), *labels = cpu_in(p, at + 1);
  const opipe_attr *ignored = opipe_attr_find(p->node, "ignore_index");
  const char *reduction = opipe_attr_string(p->node, "reduction", "mean");
  if ((x->dtype != OPIPE_FLOAT && x->dtype != OPIPE_DOUBLE) || x->rank < 2 ||
      labels->rank + 1 != x->rank ||
      (labels->dtype != OPIPE_INT64 && labels->dtype != OPIPE_INT32)) {
    return cpu_refuse(p, "scores %s of rank %u, labels %s of rank %u", opipe_dtype_name(x->dtype),
                      x->rank, opipe_dtype_name(labels->dtype), labels->rank);
  }
  plan->n = x->shape[0];
  plan->own = x->shape[1];
  plan->inner = 1;
  for (uint32_t d = 2; d < x->rank; ++d)
    plan->inner *= x->shape[d];
  if ((int64_t)cpu_elems(labels) != plan->n * plan->inner)
    return cpu_invalid(p, "scores and labels differ in shape");
  CPU_TRY(read_range(p, plan->own, &plan->first, &plan->whole));
  plan->smoothing = opipe_attr_float(p->node, "smoothing", 0);
  plan->columns = plan->smoothing > 0 ? 4 : 3;
  plan->each = strcmp(reduction, "none") == 0;
  plan->mean = strcmp(reduction, "mean") == 0;
  plan->ignores = ignored != NULL && ignored->kind == OPIPE_ATTR_INT;
  plan->ignored = plan->ignores ? ignored->i : 0;
  return OPIPE_OK;
}

/* Input i, which may be absent with `optional`, has n elements of a real type. */
static opipe_status expect_elems(cpu_prep *p, uint32_t i, bool optional, int64_t n) {
  const opipe_value *x = cpu_in(p, i);
  if (x == NULL)
    return optional ? OPIPE_OK : cpu_invalid(p, "input %u is absent", i);
  if (((x->dtype == OPIPE_FLOAT || x->dtype == OPIPE_DOUBLE) && (int64_t)cpu_elems(x) == n))
    return OPIPE_OK;
  return cpu_invalid(p, "'%.80s' is not %lld numbers", x->name, (long long)n);
}

static opipe_status prepare_part(cpu_prep *p) {
  entropy_plan *plan = CPU_PLAN(p, entropy_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(read_scores(p, 0, plan));
  if ((int64_t)cpu_elems(cpu_out(p, 0)) != plan->n * plan->inner * plan->columns)
    return cpu_invalid(p, "'%.80s' has another size", cpu_out(p, 0)->name);
  p->step->run = part_kernel;
  return OPIPE_OK;
}

static opipe_status prepare_merge(cpu_prep *p) {
  entropy_plan *plan = CPU_PLAN(p, entropy_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(read_scores(p, 0, plan));
  const opipe_value *stats = cpu_in(p, 3);
  plan->members = stats != NULL && stats->rank > 0 ? stats->shape[0] : 0;
  CPU_TRY(expect_elems(p, 2, true, plan->whole));
  CPU_TRY(expect_elems(p, 3, false, plan->members * plan->n * plan->inner * plan->columns));
  p->step->run = merge_kernel;
  return OPIPE_OK;
}

static opipe_status prepare_part_grad(cpu_prep *p) {
  entropy_plan *plan = CPU_PLAN(p, entropy_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(read_scores(p, 1, plan));
  CPU_TRY(expect_elems(p, 0, false, plan->each ? plan->n * plan->inner : 1));
  CPU_TRY(expect_elems(p, 3, true, plan->whole));
  CPU_TRY(expect_elems(p, 4, false, plan->n * plan->inner));
  CPU_TRY(cpu_expect_like(p, 0, cpu_in(p, 1)));
  p->step->run = part_grad_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"GatherPart", "opipe", prepare_rows, 2, 2, 1, 0, 0},
    {"CrossEntropyPart", "opipe", prepare_part, 2, 2, 1, CPU_OP_WIDEN, 0},
    {"CrossEntropyMerge", "opipe", prepare_merge, 2, 4, 2, CPU_OP_WIDEN, 0},
    {"CrossEntropyPartGrad", "opipe", prepare_part_grad, 3, 5, 1, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_parts = {ops, CPU_COUNT_OF(ops)};
