/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.LSTMGrad, GRUGrad, RNNGrad: gradients of recurrent layers of one direction (recurrent.c).
 *
 * (G, R, Y, lens?, h0?, c0?, extra?, dY?, dY_h?, dY_c?) -> (dG, before?, u?, dh0?, dc0?, dextra?).
 * `before` [S,B,H] are the states before each step: R's gradient is a product of dG with it. In a
 * GRU the rows of the last gate are special: without linear_before_reset u is r h, which takes the
 * place of `before`; with it u is the gradient by h R^T, which takes the place of dG.
 */
#include "recurrent.h"

#include "recurrent_f32_body.h"

#include "recurrent_grad_body.h"
#undef REAL
#undef REC

#include "recurrent_f64_body.h"

#include "recurrent_grad_body.h"
#undef REAL
#undef REC

static opipe_status kernel_in_double(const cpu_call *call, opipe_error *err) {
  return cpu_rec_in_double(call, backward_f64, err);
}

/* Input i, where it is there, of this shape. */
static opipe_status need(cpu_prep *p, uint32_t i, const int64_t *shape, uint32_t rank) {
  const opipe_value *x = cpu_in(p, i);
  if (x == NULL || (x->dtype == cpu_in(p, 0)->dtype && x->rank == rank &&
                    memcmp(x->shape, shape, rank * sizeof *shape) == 0))
    return OPIPE_OK;
  return cpu_invalid(
      p, "input %u '%.80s' does not fit the layer's %lld steps, %lld rows, %lld units", i, x->name,
      (long long)shape[0], (long long)shape[1], (long long)shape[rank - 1]);
}

static opipe_status check_shapes(cpu_prep *p, const cpu_rec_plan *plan) {
  const uint32_t dtype = cpu_in(p, CPU_REC_G)->dtype;
  const int64_t y[3] = {plan->steps, plan->batch, plan->hidden};
  const int64_t extra = (plan->cell == CPU_CELL_LSTM ? 3 : 1) * plan->hidden;
  CPU_TRY(need(p, CPU_REC_GRAD_Y, y, 3));
  CPU_TRY(need(p, CPU_REC_GRAD_DY, y, 3));
  CPU_TRY(need(p, CPU_REC_GRAD_DYH, y + 1, 2));
  CPU_TRY(need(p, CPU_REC_GRAD_DYC, y + 1, 2));
  if (cpu_out(p, 0) != NULL)
    CPU_TRY(cpu_expect_like(p, 0, cpu_in(p, CPU_REC_G)));
  for (uint32_t i = 1; i < 5; ++i) {
    if (cpu_out(p, i) != NULL)
      CPU_TRY(i < 3 ? cpu_expect(p, i, dtype, y, 3) : cpu_expect(p, i, dtype, y + 1, 2));
  }
  return cpu_out(p, 5) == NULL ? OPIPE_OK : cpu_expect(p, 5, dtype, &extra, 1);
}

static opipe_status prepare_recurrent_grad(cpu_prep *p) {
  cpu_rec_plan *plan = CPU_PLAN(p, cpu_rec_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(cpu_rec_init(p, plan, CPU_REC_GRAD_LENS));
  CPU_TRY(check_shapes(p, plan));
  if (plan->fast) {
    cpu_want_workspace(p, backward_bytes_f32(plan));
    p->step->run = backward_f32;
    return OPIPE_OK;
  }
  cpu_want_workspace(p, cpu_rec_double_bytes(p) + backward_bytes_f64(plan));
  p->step->run = cpu_in(p, 0)->dtype == OPIPE_DOUBLE ? backward_f64 : kernel_in_double;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"LSTMGrad", "opipe", prepare_recurrent_grad, 3, 10, 6, CPU_OP_WIDEN, CPU_CELL_LSTM},
    {"GRUGrad", "opipe", prepare_recurrent_grad, 3, 10, 6, CPU_OP_WIDEN, CPU_CELL_GRU},
    {"RNNGrad", "opipe", prepare_recurrent_grad, 3, 10, 6, CPU_OP_WIDEN, CPU_CELL_RNN},
};

const cpu_op_family cpu_family_recurrent_grad = {ops, CPU_COUNT_OF(ops)};
