/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's numbers at one update: learning rate, bias corrections, which parameters decay,
 * the first loss scale. They are in double precision; the backend works in fp32.
 */
#include "runtime/weights/optimizer.h"

#include <math.h>

static const double SCALE_FIRST = 65536.0;

double opi_optimizer_lr(const opi_optimizer *o, uint64_t update) {
  static const double PI = 3.14159265358979323846;
  if (update < o->warmup_steps)
    return o->lr * (double)(update + 1) / (double)o->warmup_steps;
  if (o->lr_schedule == OPI_LR_CONSTANT || o->total_steps == 0)
    return o->lr;
  if (update >= o->total_steps)
    return 0;
  const double done = (double)(update - o->warmup_steps);
  const double all = (double)(o->total_steps - o->warmup_steps);
  if (o->lr_schedule == OPI_LR_LINEAR)
    return o->lr * (1 - done / all);
  return o->lr * 0.5 * (1 + cos(PI * done / all));
}

void opi_optimizer_first_scale(const opi_optimizer *optimizer, opi_weights_clock *io_clock) {
  io_clock->scales = opi_optimizer_scales(optimizer) ? 1 : 0;
  io_clock->loss_scale = io_clock->scales != 0 ? SCALE_FIRST : 1;
  io_clock->n_good = 0;
}

bool opi_optimizer_decays(const opi_optimizer *optimizer, const char *name) {
  for (uint32_t i = 0; i < optimizer->n_no_decay; ++i) {
    if (opi_glob(optimizer->no_decay[i], name))
      return false;
  }
  return true;
}

void opi_optimizer_fill(const opi_optimizer *o, uint64_t update, double gradient_scale,
                        opipe_update *out) {
#define FILL_NUMBER(KEY, field, ...) out->field = o->field;
#define FILL_SWITCH(KEY, field, ...) out->flags |= o->field != 0 ? OPIPE_UPDATE_##KEY : 0u;
  const uint32_t takes = opipe_optimizer_row_of(o->kind)->takes;
  const double t = (double)(update + 1);
  *out = (opipe_update){.struct_size = (uint32_t)OPIPE_END(opipe_update, decay),
                        .kind = o->kind,
                        .gradient_scale = gradient_scale};
  OPIPE_TAKES(FILL_NUMBER, FILL_SWITCH)
  out->lr = opi_optimizer_lr(o, update);
  out->correction1 = (takes & OPIPE_TAKES_BETA1) != 0 ? 1 - pow(o->beta1, t) : 1;
  out->correction2 = (takes & OPIPE_TAKES_BETA2) != 0 ? 1 - pow(o->beta2, t) : 1;
}
