/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.LSTM, GRU and RNN: recurrent layers of one direction, step by step.
 *
 * G holds what the layer's input gives to the gates (one product over all steps, in front of this
 * operator). A step multiplies the states of all rows by R, packed once a run, and works on the
 * gates row by row; a row whose steps have ended keeps its state, and its Y is 0. Bits of a row
 * depend on no other row. fp32 on packed products; the reference of it, and fp64, in plain loops.
 */
#include "recurrent.h"

#include "recurrent_f32_body.h"

#include "recurrent_body.h"
#undef REAL
#undef REC

#include "recurrent_f64_body.h"

#include "recurrent_body.h"
#undef REAL
#undef REC

static opipe_status kernel_in_double(const cpu_call *call, opipe_error *err) {
  return cpu_rec_in_double(call, forward_f64, err);
}

static opipe_status expect_outputs(cpu_prep *p, const cpu_rec_plan *plan) {
  const uint32_t dtype = cpu_in(p, CPU_REC_G)->dtype;
  const int64_t y[3] = {plan->steps, plan->batch, plan->hidden};
  if (cpu_out(p, 0) != NULL)
    CPU_TRY(cpu_expect(p, 0, dtype, y, 3));
  for (uint32_t i = 1; i < 3; ++i) {
    if (cpu_out(p, i) != NULL)
      CPU_TRY(cpu_expect(p, i, dtype, y + 1, 2));
  }
  return OPIPE_OK;
}

static opipe_status prepare_recurrent(cpu_prep *p) {
  cpu_rec_plan *plan = CPU_PLAN(p, cpu_rec_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(cpu_rec_init(p, plan, CPU_REC_LENS));
  CPU_TRY(expect_outputs(p, plan));
  if (plan->fast) {
    cpu_want_workspace(p, forward_bytes_f32(plan));
    p->step->run = forward_f32;
    return OPIPE_OK;
  }
  cpu_want_workspace(p, cpu_rec_double_bytes(p) + forward_bytes_f64(plan));
  p->step->run = cpu_in(p, 0)->dtype == OPIPE_DOUBLE ? forward_f64 : kernel_in_double;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"LSTM", "opipe", prepare_recurrent, 2, 6, 3, CPU_OP_WIDEN, CPU_CELL_LSTM},
    {"GRU", "opipe", prepare_recurrent, 2, 6, 3, CPU_OP_WIDEN, CPU_CELL_GRU},
    {"RNN", "opipe", prepare_recurrent, 2, 6, 3, CPU_OP_WIDEN, CPU_CELL_RNN},
};

const cpu_op_family cpu_family_recurrent = {ops, CPU_COUNT_OF(ops)};
