/* SPDX-License-Identifier: Apache-2.0 */
/* The cells of PyTorch's table of the interleaved form. Its generator counts idle cells, as many as
 * its number before a rank's first action, one for every hop behind the warm-up; then it goes
 * through the slots and lets a forward wait until the one of the stage before stands in an earlier
 * slot.
 */
#include "zb.h"

typedef struct lane {
  uint32_t at;   /* ops of the rank that are out */
  uint32_t owed; /* counted idle cells before the next one */
} lane;

typedef struct slots {
  zb_job *job;
  lane *lanes;      /* [n_ranks] */
  uint32_t *behind; /* [n_stages * n_mb] the slot behind its forward, 0: none yet */
  uint64_t left;    /* ops and counted idle cells */
  uint32_t slot;
  opipe_emit_fn emit;
  void *emit_ctx;
  opipe_error *err;
} slots;

/* Forwards behind which the hops are counted. */
static uint32_t warm_up(const zb_model *model, uint32_t rank) {
  const uint32_t m = model->n_mb, rounds = m / model->n_ranks > 1 ? m / model->n_ranks : 1;
  const uint32_t n = (model->chunks - 1) * (m / rounds) + (model->n_ranks - 1 - rank);
  return n < model->chunks * m ? n : model->chunks * m;
}

static bool waits(const slots *s, const zb_op *op) {
  if (op->pass != ZB_F || op->stage == 0)
    return false;
  const uint32_t before = s->behind[(size_t)(op->stage - 1) * s->job->model.n_mb + op->microbatch];
  return before == 0 || before > s->slot;
}

/* The rank's cell of this slot. */
static opipe_status put(slots *s, uint32_t rank) {
  static const uint8_t passes[3] = {OPIPE_PASS_FORWARD, OPIPE_PASS_BACKWARD_INPUT,
                                    OPIPE_PASS_BACKWARD_WEIGHT};
  const zb_order *order = &s->job->best;
  const zb_model *model = &s->job->model;
  lane *l = &s->lanes[rank];
  if (l->at == order->n[rank])
    return OPIPE_OK;
  const zb_op *op = &order->ops[(size_t)rank * order->room + l->at];
  if (l->owed > 0 || waits(s, op)) {
    s->left -= l->owed > 0;
    l->owed -= l->owed > 0;
    return opipe_emit_idle(s->emit, s->emit_ctx, rank, 1, s->err);
  }
  if (op->pass == ZB_F)
    s->behind[(size_t)op->stage * model->n_mb + op->microbatch] = s->slot + 1;
  ++l->at;
  --s->left;
  if (l->at == warm_up(model, rank))
    l->owed = model->n_ranks - 1 - rank;
  return opipe_emit_pass(s->job->problem, s->emit, s->emit_ctx, op->stage, op->microbatch, 0,
                         passes[op->pass], 0, s->err);
}

opipe_status zb_emit_slots(zb_job *job, opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint32_t n = job->model.n_ranks;
  const uint64_t n_cells = (uint64_t)job->model.n_stages * job->model.n_mb;
  slots s = {.job = job, .emit = emit, .emit_ctx = emit_ctx, .err = err};
  s.lanes = (lane *)opipe_work_array(&job->work, n, sizeof *s.lanes);
  s.behind = (uint32_t *)opipe_work_array(&job->work, n_cells, sizeof *s.behind);
  if (s.lanes == NULL || s.behind == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for the slots of %u ranks", n);
  for (uint32_t r = 0; r < n; ++r) {
    /* without a warm-up its hops come first as well */
    s.lanes[r].owed = r + (warm_up(&job->model, r) == 0 ? n - 1 - r : 0);
    s.left += job->best.n[r] + n - 1;
  }
  opipe_status status = OPIPE_OK;
  for (; s.left > 0 && status >= 0; ++s.slot) {
    const uint64_t before = s.left;
    for (uint32_t r = 0; r < n && status >= 0; ++r)
      status = put(&s, r);
    if (status >= 0 && s.left == before)
      return opipe_fail(err, OPIPE_E_INVALID, "the table deadlocks in slot %u", s.slot);
  }
  return status;
}
