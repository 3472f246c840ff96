/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of LayerNormalization and RMSNormalization (domain opipe), and what goes along with
 * them (fuse_norms.c). */
#include "ops/rule.h"

/* dY and X of one type and size; rows of X.shape[axis:]. */
static opipe_status read_rows(const cuda_rule *r, int64_t *out_rows, int64_t *out_n) {
  const opipe_value *dy = cuda_in(r, 0), *x = cuda_in(r, 1);
  uint32_t axis = 0;
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", -1), x->rank, &axis));
  if (!cuda_is_float(x->dtype) || dy->dtype != x->dtype || cuda_elems(dy) != cuda_elems(x)) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "a gradient of %s for %s",
                       opipe_dtype_name(dy->dtype), opipe_dtype_name(x->dtype));
  }
  *out_rows = cuda_extent(x, 0, axis);
  *out_n = cuda_extent(x, axis, x->rank);
  return OPIPE_OK;
}

static bool is_rms(const cuda_rule *r) {
  return strncmp(r->node->op, "RMS", 3) == 0;
}

/* Are the gradients of scale and bias of the rows' type and size? */
static opipe_status check_scale(const cuda_rule *r, int64_t *out_rows, int64_t *out_n) {
  const uint32_t dtype =
      cuda_in(r, 1)->dtype == OPIPE_DOUBLE ? (uint32_t)OPIPE_DOUBLE : (uint32_t)OPIPE_FLOAT;
  CUDA_TRY(read_rows(r, out_rows, out_n));
  for (uint32_t i = 0; i < r->node->n_out; ++i) {
    const opipe_value *out = cuda_out(r, i);
    if (out != NULL && (out->dtype != dtype || (int64_t)cuda_elems(out) != *out_n)) {
      return cuda_refuse(r, OPIPE_E_INVALID, "output %u is not of %lld elements of %s", i,
                         (long long)*out_n, opipe_dtype_name(dtype));
    }
  }
  return OPIPE_OK;
}

/* The gradients of scale and bias. given: the workspace begins with the rows' statistics. */
static opipe_status emit_scale(cuda_rule *r, bool given) {
  const opipe_value *x = cuda_in(r, 1);
  cuda_norm_scale_args args = {
      .epsilon = opipe_attr_float(r->node, "epsilon", 1e-5), .rms = is_rms(r), .given = given};
  cuda_launch launches[CUDA_LAUNCHES];
  CUDA_TRY(check_scale(r, &args.rows, &args.n));
  args.dy = cuda_at_in(r, 0);
  args.x = cuda_at_in(r, 1);
  args.dscale = cuda_at_out(r, 0);
  args.dbias = cuda_at_out(r, 1);
  args.adds = cuda_accumulator(r, 0) != OPIPE_NONE || cuda_accumulator(r, 1) != OPIPE_NONE;
  args.workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0);
  const uint32_t n = cuda_plan_norm_scale(&args, x->dtype, launches);
  if (n == 0)
    return cuda_no_kernel(r, x);
  CUDA_TRY(cuda_emit_all(r, launches, n));
  cuda_want_workspace(r, cuda_norm_scale_workspace(&args));
  return OPIPE_OK;
}

static opipe_status rule_norm_scale(cuda_rule *r) {
  return emit_scale(r, false);
}

/* dX, or what the Add behind it makes, may lie where the addend or dY does. */
static void may_overwrite_rows(cuda_rule *r, const cuda_tail *tail, uint32_t to) {
  const uint32_t from = tail != NULL ? tail->addend : r->node->in[0];
  const uint32_t root = cuda_root(r->program, from);
  for (uint32_t i = tail != NULL ? 0 : 1; i < r->node->n_in; ++i) {
    if (cuda_root(r->program, r->node->in[i]) == root)
      return;
  }
  r->step->overwrites = from;
  r->step->result = to;
}

/* Output i of a node that is done along, or its accumulator; *io_adds: bit `place` where it is one.
 */
static void *at_made(cuda_rule *r, const opipe_node *node, uint32_t i, uint32_t place,
                     uint32_t *io_adds) {
  const cuda_rule of = {.program = r->program, .node = node};
  const uint32_t sum = cuda_accumulator(&of, i);
  if (sum != OPIPE_NONE)
    *io_adds |= 1u << place;
  return cuda_at(r, sum != OPIPE_NONE ? sum : i < node->n_out ? node->out[i] : OPIPE_NONE, 0);
}

/* dX, the gradients of scale and bias, and sums of the columns of what is made: two launches.
 * *out_done false: there is nothing of the kind, or no kernel for it. */
static opipe_status emit_with_sums(cuda_rule *r, const cuda_norm_grad_args *grad,
                                   const opipe_node *end, bool *out_done) {
  const opipe_node *columns = cuda_columns_of(r->program, r->node);
  const cuda_tail *tail = cuda_tail_of(r->program, r->node);
  cuda_norm_sums_args args = {.grad = *grad};
  cuda_rule scale = *r;
  cuda_launch launches[CUDA_LAUNCHES];
  int64_t rows = 0, n = 0;
  *out_done = false;
  scale.node = cuda_scale_of(r->program, r->node);
  if (!r->program->device->norm_sums || (scale.node == NULL && columns == NULL))
    return OPIPE_OK;
  if (scale.node != NULL) {
    CUDA_TRY(check_scale(&scale, &rows, &n));
    args.sums[CUDA_NORM_OF_SCALE] = at_made(r, scale.node, 0, CUDA_NORM_OF_SCALE, &args.adds);
    args.sums[CUDA_NORM_OF_BIAS] = at_made(r, scale.node, 1, CUDA_NORM_OF_BIAS, &args.adds);
  }
  if (columns != NULL) {
    if ((int64_t)cuda_elems(&r->program->graph->values[columns->out[0]]) != grad->n)
      return OPIPE_OK;
    args.sums[CUDA_NORM_OF_DX] = at_made(r, columns, 0, CUDA_NORM_OF_DX, &args.adds);
  }
  args.workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0);
  if (cuda_plan_norm_sums(&args, cuda_in(r, 1)->dtype, cuda_in(r, 2)->dtype, launches) != 2)
    return OPIPE_OK;
  const uint32_t n_tags = r->n_tags;
  *out_done = true;
  CUDA_TRY(cuda_emit(r, &launches[0]));
  cuda_want_workspace(r, cuda_norm_sums_workspace(&args));
  may_overwrite_rows(r, tail, end->out[0]);
  r->n_tags = n_tags; /* they are the second one's, too */
  CUDA_TRY(cuda_emit(r, &launches[1]));
  cuda_want_workspace(r, cuda_norm_sums_workspace(&args));
  return OPIPE_OK;
}

static opipe_status rule_norm_grad(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 1), *scale = cuda_in(r, 2);
  const cuda_tail *tail = cuda_tail_of(r->program, r->node);
  const opipe_node *end = tail != NULL ? &r->program->graph->nodes[tail->nodes[0]] : r->node;
  cuda_norm_grad_args args = {.epsilon = opipe_attr_float(r->node, "epsilon", 1e-5),
                              .rms = is_rms(r)};
  cuda_rule sums = *r;
  cuda_launch launch;
  bool done = false;
  CUDA_TRY(cuda_expect_like(r, 0, x));
  CUDA_TRY(read_rows(r, &args.rows, &args.n));
  if ((int64_t)cuda_elems(scale) != args.n) {
    return cuda_refuse(r, OPIPE_E_INVALID, "its scale has %llu elements, rows have %lld",
                       (unsigned long long)cuda_elems(scale), (long long)args.n);
  }
  args.dx = cuda_at(r, end->out[0], 0);
  args.dy = cuda_at_in(r, 0);
  args.x = cuda_at_in(r, 1);
  args.scale = cuda_at_in(r, 2);
  args.residual = cuda_at(r, tail != NULL ? tail->addend : OPIPE_NONE, 0);
  CUDA_TRY(emit_with_sums(r, &args, end, &done));
  if (done)
    return OPIPE_OK;
  if (cuda_columns_of(r->program, r->node) != NULL)
    return cuda_no_kernel(r, x);
  sums.node = cuda_scale_of(r->program, r->node);
  args.statistics = sums.node != NULL ? cuda_at(r, CUDA_AT_WORKSPACE, 0) : NULL;
  if (!cuda_plan_norm_grad(&args, x->dtype, scale->dtype, &launch))
    return cuda_no_kernel(r, x);
  CUDA_TRY(cuda_emit(r, &launch));
  may_overwrite_rows(r, tail, end->out[0]);
  return sums.node != NULL ? emit_scale(&sums, true) : OPIPE_OK;
}

static const cuda_row rows[] = {
    {"LayerNormalizationGrad", rule_norm_grad, 3, 3, 1},
    {"RMSNormalizationGrad", rule_norm_grad, 3, 3, 1},
    {"LayerNormalizationGradScale", rule_norm_scale, 2, 2, 2},
    {"RMSNormalizationGradScale", rule_norm_scale, 2, 2, 1},
};

const cuda_family cuda_norm_gradient_family = {"opipe", CUDA_ROWS(rows)};
