/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a plan's optimizer: ranges of its numbers, tensors of state. The updates themselves are
 * in runtime/weights.
 */
#include <math.h>
#include <stdio.h>

#include "partition/plan/plan.h"

/* Rows of opipe/optimizers.h are found by their number. */
#define PLACE(KEY, ...) PLACE_##KEY,
#define IN_PLACE(KEY, number, ...) \
  OPIPE_STATIC_ASSERT((int)PLACE_##KEY == (number), "rows of optimizers rise by one");
enum { OPIPE_OPTIMIZERS(PLACE) };
OPIPE_OPTIMIZERS(IN_PLACE)

uint32_t opi_optimizer_moments(const opi_optimizer *optimizer) {
  const opipe_optimizer_row *row = opipe_optimizer_row_of(optimizer->kind);
  return optimizer->momentum != 0 ? row->with_momentum : row->moments;
}

/* A limit just below a whole number is printed as "below" that number. */
static opipe_status check_range(const char *what, double value, double low, double high,
                                opipe_error *err) {
  const double above = ceil(high);
  if (value >= low && value <= high) /* false for NaN */
    return OPIPE_OK;
  if (high < above && above - high < 1e-9) {
    return opi_fail(err, OPIPE_E_INVALID, "optimizer: %s is %.15g, it must be from %g to below %g",
                    what, value, low, above);
  }
  return opi_fail(err, OPIPE_E_INVALID, "optimizer: %s is %.15g, it must be %g to %g", what, value,
                  low, high);
}

static opipe_status check_nesterov(const opi_optimizer *o, opipe_error *err) {
  char names[128] = "";
  size_t n = 0;
  const bool takes = (opipe_optimizer_row_of(o->kind)->takes & OPIPE_TAKES_NESTEROV) != 0;
  if (o->nesterov == 0 || (takes && o->momentum != 0))
    return OPIPE_OK;
  for (uint32_t kind = 0; kind < OPIPE_N_OPTIMIZERS && n < sizeof names; ++kind) {
    const opipe_optimizer_row *row = opipe_optimizer_row_of(kind);
    if ((row->takes & OPIPE_TAKES_NESTEROV) != 0)
      n += (size_t)snprintf(names + n, sizeof names - n, n == 0 ? "%s" : ", %s", row->name);
  }
  return opi_fail(err, OPIPE_E_INVALID, "optimizer: nesterov is for %s with momentum, it is %g",
                  names, o->momentum);
}

opipe_status opi_optimizer_check(const opi_optimizer *o, opipe_error *err) {
#define CHECK(KEY, field, key, most) OPI_TRY(check_range(#field, o->field, 0, most, err));
  if (o->kind >= OPIPE_N_OPTIMIZERS || o->lr_schedule > OPI_LR_COSINE) {
    return opi_fail(err, OPIPE_E_INVALID, "optimizer: kind %u (at most %d), lr_schedule %u (%d)",
                    o->kind, OPIPE_N_OPTIMIZERS - 1, o->lr_schedule, OPI_LR_COSINE);
  }
  OPIPE_TAKES(CHECK, OPIPE_LEFT_OUT)
  OPI_TRY(check_range("clip_norm", o->clip_norm, 0, 1e30, err));
  OPI_TRY(check_nesterov(o, err));
  if (o->lr_schedule != OPI_LR_CONSTANT && o->total_steps <= o->warmup_steps) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "optimizer: the learning rate falls to 0 at step %llu, after %llu of warm-up",
                    (unsigned long long)o->total_steps, (unsigned long long)o->warmup_steps);
  }
  return OPIPE_OK;
}
