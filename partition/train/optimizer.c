/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan says of its optimizer: numbers in their ranges, tensors of state. The updates
 * themselves are runtime/weights'.
 */
#include "partition/plan.h"

uint32_t opi_optimizer_moments(const opi_optimizer *optimizer) {
  if (optimizer->kind == OPI_OPT_SGD)
    return optimizer->momentum != 0 ? 1 : 0;
  return 2;
}

static opipe_status check_range(const char *what, double value, double low, double high,
                                opipe_error *err) {
  if (value >= low && value <= high) /* false for NaN */
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "optimizer: %s is %g, it must be %g to %g", what, value,
                  low, high);
}

opipe_status opi_optimizer_check(const opi_optimizer *o, opipe_error *err) {
  if (o->kind > OPI_OPT_ADAMW || o->lr_schedule > OPI_LR_COSINE) {
    return opi_fail(err, OPIPE_E_INVALID, "optimizer: kind %u (at most %d), lr_schedule %u (%d)",
                    o->kind, OPI_OPT_ADAMW, o->lr_schedule, OPI_LR_COSINE);
  }
  OPI_TRY(check_range("lr", o->lr, 0, 1e30, err));
  OPI_TRY(check_range("momentum", o->momentum, 0, 1, err));
  OPI_TRY(check_range("beta1", o->beta1, 0, 1 - 1e-12, err));
  OPI_TRY(check_range("beta2", o->beta2, 0, 1 - 1e-12, err));
  OPI_TRY(check_range("epsilon", o->epsilon, 0, 1e30, err));
  OPI_TRY(check_range("decay", o->decay, 0, 1e30, err));
  OPI_TRY(check_range("clip_norm", o->clip_norm, 0, 1e30, err));
  if (o->nesterov != 0 && (o->kind != OPI_OPT_SGD || o->momentum == 0)) {
    return opi_fail(err, OPIPE_E_INVALID, "optimizer: nesterov is for sgd with momentum, it is %g",
                    o->momentum);
  }
  if (o->lr_schedule != OPI_LR_CONSTANT && o->total_steps <= o->warmup_steps) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "optimizer: the learning rate falls to 0 at step %llu, after %llu of warm-up",
                    (unsigned long long)o->total_steps, (unsigned long long)o->warmup_steps);
  }
  return OPIPE_OK;
}
