/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout in training: a mask from a counter, not from a sequence.
 *
 * Element i is kept when a hash of (seed, node name, i) is at least `ratio`: the mask does not
 * depend on threads or on the order of kernels.
 */
#include "loop.h"

typedef struct dropout_plan {
  uint64_t key;
} dropout_plan;

static uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static opipe_status dropout_kernel(const cpu_call *call, opipe_error *err) {
  const dropout_plan *plan = call->plan;
  const cpu_tensor *in = &call->in[0];
  const cpu_tensor *out = &call->out[0];
  const double ratio =
      call->n_in > 1 && call->in[1].data != NULL ? cpu_number(&call->in[1], 0) : 0.5;
  const bool trains =
      call->n_in > 2 && call->in[2].data != NULL && cpu_number(&call->in[2], 0) != 0;
  uint8_t *mask = call->n_out > 1 ? call->out[1].data : NULL;
  (void)err;
  for (uint64_t i = 0; i < in->n; ++i) {
    const double draw = (double)(mix(plan->key + i * UINT64_C(0x9e3779b97f4a7c15)) >> 11) * 0x1p-53;
    const bool keep = !trains || draw >= ratio;
    const double x = cpu_number(in, i);
    const double y = !keep ? 0 : trains ? x / (1.0 - ratio) : x;
    if (out->dtype == OPIPE_DOUBLE)
      ((double *)out->data)[i] = y;
    else
      ((float *)out->data)[i] = (float)y;
    if (mask != NULL)
      mask[i] = keep;
  }
  return OPIPE_OK;
}

static opipe_status prepare_dropout(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *ratio = cpu_in(p, 1);
  const opipe_value *trains = cpu_in(p, 2);
  dropout_plan *plan = CPU_PLAN(p, dropout_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(in->dtype) || (ratio != NULL && !cpu_is_float(ratio->dtype)) ||
      (trains != NULL && trains->dtype != OPIPE_BOOL))
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(in->dtype));
  if ((ratio != NULL && cpu_elems(ratio) != 1) || (trains != NULL && cpu_elems(trains) != 1))
    return cpu_invalid(p, "ratio or training_mode is not one value");
  CPU_TRY(cpu_expect_like(p, 0, in));
  CPU_TRY(p->step->n_out > 1 ? cpu_expect(p, 1, OPIPE_BOOL, in->shape, in->rank) : OPIPE_OK);
  plan->key = mix((uint64_t)opipe_attr_int(p->node, "seed", 0));
  for (const char *c = p->node->name; *c != '\0'; ++c)
    plan->key = mix(plan->key ^ (unsigned char)*c);
  p->step->run = dropout_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"Dropout", NULL, prepare_dropout, 1, 3, 2, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_dropout = {ops, CPU_COUNT_OF(ops)};
