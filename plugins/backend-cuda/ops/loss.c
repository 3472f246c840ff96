/* SPDX-License-Identifier: Apache-2.0 */
/* Losses by class, and the gradient of the cross entropy. */
#include "ops/rule.h"

/* Extents of scores [N, C, d...] and labels [N, d...]; weights may be absent. */
typedef struct classes {
  int64_t rows, classes, inner, ignored;
  uint32_t ignores, label_bytes;
} classes;

/* first: the input that holds the scores; labels and weights follow. */
static opipe_status read_classes(const cuda_rule *r, uint32_t first, classes *out) {
  const opipe_value *scores = cuda_in(r, first), *labels = cuda_in(r, first + 1);
  const opipe_value *weights = cuda_in(r, first + 2);
  const opipe_attr *ignored = opipe_attr_find(r->node, "ignore_index");
  if (!cuda_is_float(scores->dtype) || scores->rank < 2 ||
      (labels->dtype != OPIPE_INT32 && labels->dtype != OPIPE_INT64)) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%s of rank %u with labels of %s",
                       opipe_dtype_name(scores->dtype), scores->rank,
                       opipe_dtype_name(labels->dtype));
  }
  out->rows = scores->shape[0];
  out->classes = scores->shape[1];
  out->inner = cuda_extent(scores, 2, scores->rank);
  out->label_bytes = cuda_size(labels);
  out->ignores = ignored != NULL && ignored->kind == OPIPE_ATTR_INT;
  out->ignored = out->ignores ? ignored->i : 0;
  if (labels->rank != scores->rank - 1 || labels->shape[0] != out->rows ||
      (labels->rank > 1 && memcmp(labels->shape + 1, scores->shape + 2,
                                  (labels->rank - 1) * sizeof labels->shape[0]) != 0))
    return cuda_refuse(r, OPIPE_E_INVALID, "its labels are not the scores' shape without classes");
  if (weights != NULL && (weights->dtype != scores->dtype || weights->rank != 1 ||
                          weights->shape[0] != out->classes)) {
    return cuda_refuse(r, OPIPE_E_INVALID, "its weights are not %lld of %s",
                       (long long)out->classes, opipe_dtype_name(scores->dtype));
  }
  return OPIPE_OK;
}

/* Arguments without addresses. */
static opipe_status read_loss(const cuda_rule *r, cuda_loss_args *out) {
  static const char *const reductions[] = {"none", "sum", "mean"};
  const opipe_value *scores = cuda_in(r, 0), *labels = cuda_in(r, 1);
  const char *reduction = opipe_attr_string(r->node, "reduction", "mean");
  classes of;
  *out = (cuda_loss_args){.softmax = strncmp(r->node->op, "Softmax", 7) == 0};
  while (out->reduction < 3 && strcmp(reductions[out->reduction], reduction) != 0)
    ++out->reduction;
  if (out->reduction == 3)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "reduction '%.20s' is not known", reduction);
  CUDA_TRY(read_classes(r, 0, &of));
  CUDA_TRY(out->reduction == 0 ? cuda_expect(r, 0, scores->dtype, labels->shape, labels->rank)
                               : cuda_expect(r, 0, scores->dtype, NULL, 0));
  if (cuda_out(r, 1) != NULL)
    CUDA_TRY(cuda_expect_like(r, 1, scores));
  out->rows = of.rows;
  out->classes = of.classes;
  out->inner = of.inner;
  out->ignored = of.ignored;
  out->ignores = of.ignores;
  out->label_bytes = of.label_bytes;
  return OPIPE_OK;
}

/* Elements between rows, where these are longer than their own. */
static int64_t pitch_of(const cuda_rule *r, uint32_t value) {
  return r->program->matched.pitches != NULL ? r->program->matched.pitches[value] : 0;
}

static opipe_status rule_loss(cuda_rule *r) {
  const uint32_t scores = cuda_narrow(r->program, r->node->in[0]);
  const opipe_value *from = &r->program->graph->values[scores];
  cuda_loss_args args;
  cuda_launch launches[CUDA_LAUNCHES];
  CUDA_TRY(read_loss(r, &args));
  args.loss = cuda_at_out(r, 0);
  args.log_prob = cuda_at_out(r, 1);
  args.scores = cuda_at(r, scores, 0);
  args.labels = cuda_at_in(r, 1);
  args.weights = cuda_at_in(r, 2);
  args.workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0);
  args.distance = pitch_of(r, scores);
  CUDA_TRY(cuda_at_status(r, &args.status, &args.node));
  const uint32_t n = cuda_plan_loss(&args, from->dtype, cuda_in(r, 0)->dtype, launches);
  if (n == 0)
    return cuda_no_kernel(r, from);
  CUDA_TRY(cuda_emit_all(r, launches, n));
  cuda_want_workspace(r, cuda_loss_workspace(&args));
  return OPIPE_OK;
}

static opipe_status read_loss_grad(const cuda_rule *r, cuda_loss_grad_args *out) {
  const opipe_value *dl = cuda_in(r, 0), *scores = cuda_in(r, 1), *labels = cuda_in(r, 2);
  const char *reduction = opipe_attr_string(r->node, "reduction", "sum");
  const bool sum = strcmp(reduction, "sum") == 0;
  classes of;
  *out = (cuda_loss_grad_args){.smoothing = opipe_attr_float(r->node, "smoothing", 0.0),
                               .dl_rows = !sum};
  if (!sum && strcmp(reduction, "none") != 0)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "reduction '%.20s' is not known", reduction);
  CUDA_TRY(read_classes(r, 1, &of));
  CUDA_TRY(cuda_expect_like(r, 0, scores));
  if (dl->dtype != scores->dtype || (sum ? dl->rank != 0 : !cuda_same_shape(dl, labels)))
    return cuda_refuse(r, OPIPE_E_INVALID, "the loss' gradient is not like the loss");
  out->rows = of.rows;
  out->classes = of.classes;
  out->inner = of.inner;
  out->ignored = of.ignored;
  out->ignores = of.ignores;
  out->label_bytes = of.label_bytes;
  return OPIPE_OK;
}

static opipe_status rule_loss_grad(cuda_rule *r) {
  const uint32_t scores = cuda_narrow(r->program, r->node->in[1]),
                 made = cuda_narrow(r->program, r->node->out[0]);
  const opipe_value *from = &r->program->graph->values[scores];
  cuda_loss_grad_args args;
  cuda_launch launch;
  CUDA_TRY(read_loss_grad(r, &args));
  args.dx = cuda_at(r, made, 0);
  args.dl = cuda_at_in(r, 0);
  args.x = cuda_at(r, scores, 0);
  args.labels = cuda_at_in(r, 2);
  args.weights = cuda_at_in(r, 3);
  args.x_distance = pitch_of(r, scores);
  args.dx_distance = pitch_of(r, made);
  CUDA_TRY(cuda_at_status(r, &args.status, &args.node));
  if (!cuda_plan_loss_grad(&args, from->dtype, cuda_in(r, 1)->dtype, &launch))
    return cuda_no_kernel(r, from);
  CUDA_TRY(cuda_emit(r, &launch));
  r->step->overwrites = scores;
  r->step->result = made;
  return OPIPE_OK;
}

bool cuda_loss_reads(opipe_program *program, const opipe_node *node, uint32_t dtype) {
  opipe_error why = OPIPE_ERROR_INIT;
  const cuda_rule r = {.program = program, .node = node, .err = &why};
  cuda_launch launches[CUDA_LAUNCHES];
  cuda_loss_args loss;
  cuda_loss_grad_args grad;
  if (node->domain[0] == '\0') {
    return read_loss(&r, &loss) >= 0 && cuda_out(&r, 1) == NULL &&
           cuda_plan_loss(&loss, dtype, OPIPE_FLOAT, launches) > 0;
  }
  return read_loss_grad(&r, &grad) >= 0 && cuda_plan_loss_grad(&grad, dtype, OPIPE_FLOAT, launches);
}

static const cuda_row rows[] = {{"SoftmaxCrossEntropyLoss", rule_loss, 2, 3, 2},
                                {"NegativeLogLikelihoodLoss", rule_loss, 2, 3, 1}};
static const cuda_row gradient_rows[] = {{"SoftmaxCrossEntropyLossGrad", rule_loss_grad, 3, 4, 1}};

const cuda_family cuda_loss_family = {"", CUDA_ROWS(rows)};
const cuda_family cuda_loss_gradient_family = {"opipe", CUDA_ROWS(gradient_rows)};
