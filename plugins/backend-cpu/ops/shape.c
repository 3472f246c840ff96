/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that leave the bytes alone (Reshape, Squeeze, Unsqueeze, Flatten, Identity: views, no
 * kernel) or ask for shapes (Shape, Size).
 */
#include "op.h"

/* The output is the input with another shape of the same number of elements. The shape itself was
 * decided when the graph was bound. */
static opipe_status prepare_view(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *out = cpu_out(p, 0);
  if (out == NULL || in->dtype != out->dtype || cpu_elems(in) != cpu_elems(out))
    return cpu_invalid(p, "input and output differ in type or number of elements");
  p->step->is_view = true;
  return OPIPE_OK;
}

typedef struct shape_plan {
  uint32_t n;
  uint32_t reserved;
  int64_t dims[OPIPE_MAX_RANK];
} shape_plan;

static opipe_status shape_kernel(const cpu_call *call, opipe_error *err) {
  const shape_plan *plan = call->plan;
  (void)err;
  memcpy(call->out[0].data, plan->dims, plan->n * sizeof plan->dims[0]);
  return OPIPE_OK;
}

/* Shape: dimensions start .. end of the input, both clamped to its rank. */
static opipe_status prepare_shape(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const int64_t rank = (int64_t)in->rank;
  int64_t start = opipe_attr_int(p->node, "start", 0);
  int64_t end = opipe_attr_int(p->node, "end", rank);
  shape_plan *plan = CPU_PLAN(p, shape_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  start = start < 0 ? start + rank : start;
  end = end < 0 ? end + rank : end;
  start = start < 0 ? 0 : start > rank ? rank : start;
  end = end < 0 ? 0 : end > rank ? rank : end;
  plan->n = end > start ? (uint32_t)(end - start) : 0;
  if (plan->n > 0)
    memcpy(plan->dims, in->shape + start, plan->n * sizeof plan->dims[0]);
  const int64_t n = plan->n;
  p->step->run = shape_kernel;
  return cpu_expect(p, 0, OPIPE_INT64, &n, 1);
}

static opipe_status prepare_size(cpu_prep *p) {
  shape_plan *plan = CPU_PLAN(p, shape_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  plan->n = 1;
  plan->dims[0] = (int64_t)cpu_elems(cpu_in(p, 0));
  p->step->run = shape_kernel;
  return cpu_expect(p, 0, OPIPE_INT64, NULL, 0);
}

static const cpu_op ops[] = {
    {"Reshape", NULL, prepare_view, 1, 2, 1, 0, 0},
    {"Squeeze", NULL, prepare_view, 1, 2, 1, 0, 0},
    {"Unsqueeze", NULL, prepare_view, 1, 2, 1, 0, 0},
    {"Flatten", NULL, prepare_view, 1, 1, 1, 0, 0},
    {"Identity", NULL, prepare_view, 1, 1, 1, 0, 0},
    {"Shape", NULL, prepare_shape, 1, 1, 1, 0, 0},
    {"Size", NULL, prepare_size, 1, 1, 1, 0, 0},
};

const cpu_op_family cpu_family_shape = {ops, CPU_COUNT_OF(ops)};
