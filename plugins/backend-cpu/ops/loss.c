/* SPDX-License-Identifier: Apache-2.0 */
/* SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss: scores [N, C, d...], labels [N, d...].
 *
 * Sums run in fp64 in index order. A label outside [0, C) that is not ignore_index is an error of
 * the run. "mean" divides by the sum of the weights of the labels that count.
 */
#include <math.h>

#include "loop.h"

typedef enum loss_reduction { LOSS_NONE, LOSS_SUM, LOSS_MEAN } loss_reduction;

typedef struct loss_plan {
  int64_t n, classes, inner;
  int64_t ignored;
  loss_reduction reduction;
  bool softmax, ignores;
} loss_plan;

static void put(const cpu_tensor *out, int64_t i, double value) {
  if (out->dtype == OPIPE_DOUBLE)
    ((double *)out->data)[i] = value;
  else
    ((float *)out->data)[i] = (float)value;
}

/* log(sum(exp(scores))) of one column of classes; 0 where the scores are log-probabilities. */
static double log_sum(const cpu_call *call, const loss_plan *plan, int64_t first) {
  double top = -(double)INFINITY;
  double sum = 0;
  if (!plan->softmax)
    return 0;
  for (int64_t c = 0; c < plan->classes; ++c) {
    const double v = cpu_number(&call->in[0], (uint64_t)(first + c * plan->inner));
    top = v > top || isnan(v) ? v : top;
  }
  for (int64_t c = 0; c < plan->classes; ++c)
    sum += exp(cpu_number(&call->in[0], (uint64_t)(first + c * plan->inner)) - top);
  return log(sum) + top;
}

static void write_logs(const cpu_call *call, const loss_plan *plan, int64_t first, double shift) {
  for (int64_t c = 0; c < plan->classes; ++c) {
    const int64_t at = first + c * plan->inner;
    put(&call->out[1], at, cpu_number(&call->in[0], (uint64_t)at) - shift);
  }
}

static opipe_status loss_kernel(const cpu_call *call, opipe_error *err) {
  const loss_plan *plan = call->plan;
  const bool weighted = call->n_in > 2 && call->in[2].data != NULL;
  double sum = 0;
  double weights = 0;
  for (int64_t i = 0; i < plan->n * plan->inner; ++i) {
    const int64_t first = i / plan->inner * plan->classes * plan->inner + i % plan->inner;
    const int64_t label = cpu_index(&call->in[1], (uint64_t)i);
    const bool counts = !plan->ignores || label != plan->ignored;
    const double shift = log_sum(call, plan, first);
    double loss = 0;
    if (call->n_out > 1 && call->out[1].data != NULL)
      write_logs(call, plan, first, shift);
    if (counts && (label < 0 || label >= plan->classes)) {
      return cpu_fail(call, err, OPIPE_E_INVALID, "label %lld is outside [0, %lld)",
                      (long long)label, (long long)plan->classes);
    }
    if (counts) {
      const double weight = weighted ? cpu_number(&call->in[2], (uint64_t)label) : 1.0;
      loss = weight * (shift - cpu_number(&call->in[0], (uint64_t)(first + label * plan->inner)));
      weights += weight;
      sum += loss;
    }
    if (plan->reduction == LOSS_NONE)
      put(&call->out[0], i, loss);
  }
  if (plan->reduction != LOSS_NONE)
    put(&call->out[0], 0, plan->reduction == LOSS_MEAN ? sum / weights : sum);
  return OPIPE_OK;
}

enum { BLOCK_ROWS = 64 };

/* The loss of one row whose log-probabilities are known; its weight in *out_weight. */
static opipe_status row_loss(const cpu_call *call, const loss_plan *plan, int64_t row,
                             const float *logs, double *out_loss, double *out_weight,
                             opipe_error *err) {
  const int64_t label = cpu_index(&call->in[1], (uint64_t)row);
  *out_loss = 0;
  *out_weight = 0;
  if (plan->ignores && label == plan->ignored)
    return OPIPE_OK;
  if (label < 0 || label >= plan->classes) {
    return cpu_fail(call, err, OPIPE_E_INVALID, "label %lld is outside [0, %lld)", (long long)label,
                    (long long)plan->classes);
  }
  const bool weighted = call->n_in > 2 && call->in[2].data != NULL;
  *out_weight = weighted ? cpu_number(&call->in[2], (uint64_t)label) : 1.0;
  *out_loss = -*out_weight * (double)logs[label];
  return OPIPE_OK;
}

/* fp32 rows of scores: log-probabilities of BLOCK_ROWS rows at a time by the vector kernel, into
 * the output where they are wanted, else into the workspace. */
static opipe_status rows_kernel(const cpu_call *call, opipe_error *err) {
  const loss_plan *plan = call->plan;
  float *kept = call->n_out > 1 ? call->out[1].data : NULL;
  double sum = 0;
  double weights = 0;
  for (int64_t first = 0; first < plan->n; first += BLOCK_ROWS) {
    const int64_t rows = plan->n - first < BLOCK_ROWS ? plan->n - first : BLOCK_ROWS;
    float *logs = kept != NULL ? kept + first * plan->classes : call->workspace;
    const cpu_softmax_args args = {.rows = rows,
                                   .columns = plan->classes,
                                   .log = true,
                                   .in = (const float *)call->in[0].data + first * plan->classes,
                                   .in_row = plan->classes,
                                   .out = logs,
                                   .out_row = plan->classes};
    cpu_softmax(call->exec, &args);
    for (int64_t r = 0; r < rows; ++r) {
      double loss = 0;
      double weight = 0;
      CPU_TRY(row_loss(call, plan, first + r, logs + r * plan->classes, &loss, &weight, err));
      sum += loss;
      weights += weight;
      if (plan->reduction == LOSS_NONE)
        put(&call->out[0], first + r, loss);
    }
  }
  if (plan->reduction != LOSS_NONE)
    put(&call->out[0], 0, plan->reduction == LOSS_MEAN ? sum / weights : sum);
  return OPIPE_OK;
}

static void choose_fast(cpu_prep *p, const loss_plan *plan) {
  const uint64_t rows = plan->n < BLOCK_ROWS ? (uint64_t)plan->n : BLOCK_ROWS;
  if (!p->fast || !plan->softmax || plan->inner != 1 || cpu_in(p, 0)->dtype != OPIPE_FLOAT ||
      cpu_is_param(p, 0))
    return;
  p->step->run = rows_kernel;
  if (cpu_out(p, 1) == NULL)
    cpu_want_workspace(p, rows * (uint64_t)plan->classes * sizeof(float));
}

static opipe_status read_shapes(cpu_prep *p, loss_plan *plan) {
  const opipe_value *scores = cpu_in(p, 0);
  const opipe_value *labels = cpu_in(p, 1);
  const opipe_value *weights = cpu_in(p, 2);
  if (!cpu_is_float(scores->dtype) || scores->rank < 2 || labels->rank + 1 != scores->rank ||
      (labels->dtype != OPIPE_INT64 && labels->dtype != OPIPE_INT32)) {
    return cpu_refuse(p, "scores %s of rank %u, labels %s of rank %u",
                      opipe_dtype_name(scores->dtype), scores->rank,
                      opipe_dtype_name(labels->dtype), labels->rank);
  }
  plan->n = scores->shape[0];
  plan->classes = scores->shape[1];
  plan->inner = 1;
  bool fits = labels->shape[0] == plan->n;
  for (uint32_t i = 2; i < scores->rank; ++i) {
    plan->inner *= scores->shape[i];
    fits = fits && labels->shape[i - 1] == scores->shape[i];
  }
  if (!fits)
    return cpu_invalid(p, "scores and labels differ in shape");
  if (weights != NULL &&
      (weights->dtype != scores->dtype || (int64_t)cpu_elems(weights) != plan->classes)) {
    return cpu_invalid(p, "weights are not %lld of %s", (long long)plan->classes,
                       opipe_dtype_name(scores->dtype));
  }
  return OPIPE_OK;
}

static opipe_status prepare_loss(cpu_prep *p) {
  static const char *const names[] = {"none", "sum", "mean"};
  const opipe_value *scores = cpu_in(p, 0);
  const opipe_value *labels = cpu_in(p, 1);
  const opipe_attr *ignored = opipe_attr_find(p->node, "ignore_index");
  const char *reduction = opipe_attr_string(p->node, "reduction", "mean");
  loss_plan *plan = CPU_PLAN(p, loss_plan);
  uint32_t kind = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  while (kind < CPU_COUNT_OF(names) && strcmp(names[kind], reduction) != 0)
    ++kind;
  if (kind == CPU_COUNT_OF(names))
    return cpu_refuse(p, "reduction '%.20s' is not known", reduction);
  CPU_TRY(read_shapes(p, plan));
  plan->reduction = (loss_reduction)kind;
  plan->softmax = p->op->code == 0;
  plan->ignores = ignored != NULL && ignored->kind == OPIPE_ATTR_INT;
  plan->ignored = plan->ignores ? ignored->i : 0;
  CPU_TRY(kind == LOSS_NONE ? cpu_expect(p, 0, scores->dtype, labels->shape, labels->rank)
                            : cpu_expect(p, 0, scores->dtype, NULL, 0));
  CPU_TRY(p->step->n_out > 1 ? cpu_expect_like(p, 1, scores) : OPIPE_OK);
  p->step->run = loss_kernel;
  choose_fast(p, plan);
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"SoftmaxCrossEntropyLoss", NULL, prepare_loss, 2, 3, 2, CPU_OP_WIDEN, 0},
    {"NegativeLogLikelihoodLoss", NULL, prepare_loss, 2, 3, 1, CPU_OP_WIDEN, 1},
};

const cpu_op_family cpu_family_loss = {ops, CPU_COUNT_OF(ops)};
