/* SPDX-License-Identifier: Apache-2.0 */
/* The problem as numbers, orders, and their replay: ranks work in order, an F waits for the F of
 * the stage before, an I for its own F and for the I of the stage after, a W for its I; a hop
 * between ranks delays the arrival and costs neither rank anything.
 */
#include "zb.h"

enum { COST_BITS = 36, OPS_MOST = 1 << 26 };

static opipe_status no_memory(opipe_error *err, const char *what) {
  return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %s of a schedule", what);
}

static uint64_t largest(const uint64_t *values, uint32_t n) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < n; ++i)
    most = values[i] > most ? values[i] : most;
  return most;
}

static uint32_t shift_for(uint64_t most) {
  uint32_t shift = 0;
  while (most >> shift >> COST_BITS != 0)
    ++shift;
  return shift;
}

static void scale_costs(const opipe_schedule_problem *problem, zb_model *model) {
  const uint64_t *const from[3] = {problem->forward_ns, problem->backward_input_ns,
                                   problem->backward_weight_ns};
  const uint32_t n = model->n_stages;
  uint64_t most = largest(problem->transfer_ns, n);
  for (uint32_t pass = 0; pass < 3; ++pass) {
    const uint64_t x = largest(from[pass], n);
    most = x > most ? x : most;
  }
  const uint32_t shift = shift_for(most);
  const bool forward_known = largest(from[ZB_F], n) != 0;
  for (uint32_t s = 0; s < n; ++s) {
    for (uint32_t pass = 0; pass < 3; ++pass) { /* a pass of no known cost counts as the forward */
      const uint64_t *known = largest(from[pass], n) != 0 ? from[pass] : from[ZB_F];
      model->ns[pass][s] = forward_known || known != from[ZB_F] ? known[s] >> shift : 1;
    }
    const bool crosses = s + 1 < n && model->rank_of[s] != model->rank_of[s + 1];
    model->hop_ns[s] = crosses ? problem->transfer_ns[s] >> shift : 0;
  }
}

static void scale_stashes(const opipe_schedule_problem *problem, zb_model *model) {
  const uint64_t most = largest(problem->stash_bytes, model->n_stages);
  const uint32_t shift = shift_for(most);
  const uint64_t up = ((uint64_t)1 << shift) - 1;
  model->stash_shift = shift;
  for (uint32_t s = 0; s < model->n_stages; ++s) { /* rounded up, against caps rounded down */
    const uint64_t bytes = problem->stash_bytes[s];
    model->stash[s] = most == 0 ? 1 : (bytes >> shift) + ((bytes & up) != 0);
  }
  for (uint32_t r = 0; r < model->n_ranks; ++r) {
    const uint64_t cap = problem->rank_memory_bytes[r];
    model->cap[r] = most == 0 || cap == UINT64_MAX ? UINT64_MAX : cap >> shift;
  }
}

opipe_status zb_model_make(opipe_work *work, const opipe_schedule_problem *problem,
                           zb_model *out_model, opipe_error *err) {
  const opipe_layout *layout = problem->layout;
  const uint32_t n = layout->n_stages, p = layout->n_ranks;
  zb_model model = {.n_ranks = p,
                    .n_stages = n,
                    .chunks = n / p,
                    .n_mb = problem->n_microbatches,
                    .rank_of = layout->instance_rank};
  if ((uint64_t)n * problem->n_microbatches > OPS_MOST / 3) {
    return opipe_fail(err, OPIPE_E_LIMIT, "%u stages x %u micro-batches: more than %d actions", n,
                      problem->n_microbatches, OPS_MOST);
  }
  for (uint32_t pass = 0; pass < 3; ++pass)
    model.ns[pass] = (uint64_t *)opipe_work_array(work, n, sizeof(uint64_t));
  model.hop_ns = (uint64_t *)opipe_work_array(work, n, sizeof(uint64_t));
  model.stash = (uint64_t *)opipe_work_array(work, n, sizeof(uint64_t));
  model.cap = (uint64_t *)opipe_work_array(work, p, sizeof(uint64_t));
  model.stage_of = (uint32_t *)opipe_work_array(work, n, sizeof(uint32_t));
  uint32_t *filled = (uint32_t *)opipe_work_array(work, p, sizeof(uint32_t));
  if (model.ns[0] == NULL || model.ns[1] == NULL || model.ns[2] == NULL || model.hop_ns == NULL ||
      model.stash == NULL || model.cap == NULL || model.stage_of == NULL || filled == NULL)
    return no_memory(err, "the costs");
  for (uint32_t s = 0; s < n; ++s) {
    const uint32_t r = model.rank_of[s];
    if (r >= p || filled[r] == model.chunks) {
      return opipe_fail(
          err, OPIPE_E_INVALID,
          "the layout has stage %u on rank %u of %u, each of which takes %u of %u stages", s, r, p,
          model.chunks, n);
    }
    model.stage_of[r * model.chunks + filled[r]++] = s;
  }
  scale_costs(problem, &model);
  scale_stashes(problem, &model);
  *out_model = model;
  return OPIPE_OK;
}

uint64_t zb_bytes(const zb_model *model, uint64_t units) {
  return units > UINT64_MAX >> model->stash_shift ? UINT64_MAX : units << model->stash_shift;
}

/* The stash of one micro-batch in all stages of one rank together. */
static uint64_t rank_stash(const zb_model *model, uint32_t rank) {
  uint64_t sum = 0;
  for (uint32_t c = 0; c < model->chunks; ++c)
    sum += model->stash[model->stage_of[rank * model->chunks + c]];
  return sum;
}

void zb_model_limit(zb_model *model, double units) {
  uint64_t unit = 0;
  for (uint32_t r = 0; r < model->n_ranks; ++r) {
    const uint32_t deep = model->n_ranks - r;
    const uint64_t held = rank_stash(model, r) * (deep < model->n_mb ? deep : model->n_mb);
    unit = held > unit ? held : unit;
  }
  const double limit = units * (double)unit;
  const uint64_t cap = limit >= 9e18 ? UINT64_MAX : (uint64_t)limit;
  for (uint32_t r = 0; r < model->n_ranks; ++r)
    model->cap[r] = model->cap[r] < cap ? model->cap[r] : cap;
}

opipe_status zb_model_check(const zb_model *model, const char *name, opipe_error *err) {
  for (uint32_t r = 0; r < model->n_ranks; ++r) {
    const uint64_t need = rank_stash(model, r);
    if (need > model->cap[r]) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "schedule '%s': one micro-batch keeps %llu bytes on rank %u, which may "
                        "hold %llu",
                        name, (unsigned long long)zb_bytes(model, need), r,
                        (unsigned long long)zb_bytes(model, model->cap[r]));
    }
  }
  return OPIPE_OK;
}

/* ---- orders ---- */

opipe_status zb_order_make(opipe_work *work, const zb_model *model, zb_order *out_order,
                           opipe_error *err) {
  out_order->room = 3 * model->chunks * model->n_mb;
  out_order->ops =
      (zb_op *)opipe_work_array(work, (uint64_t)out_order->room * model->n_ranks, sizeof(zb_op));
  out_order->n = (uint32_t *)opipe_work_array(work, model->n_ranks, sizeof(uint32_t));
  return out_order->ops == NULL || out_order->n == NULL ? no_memory(err, "an order") : OPIPE_OK;
}

void zb_order_clear(const zb_model *model, zb_order *order) {
  memset(order->n, 0, model->n_ranks * sizeof(*order->n));
}

void zb_order_copy(const zb_model *model, const zb_order *from, zb_order *to) {
  memcpy(to->n, from->n, model->n_ranks * sizeof(*to->n));
  memcpy(to->ops, from->ops, (size_t)from->room * model->n_ranks * sizeof(*to->ops));
}

/* A list that is full takes nothing more: such an order has something twice, and is refused. */
void zb_push(zb_order *order, uint32_t rank, uint32_t pass, uint32_t stage, uint32_t microbatch) {
  if (order->n[rank] < order->room)
    order->ops[(size_t)rank * order->room + order->n[rank]++] = (zb_op){stage, microbatch, pass};
}

opipe_status zb_emit(const opipe_schedule_problem *problem, const zb_model *model,
                     const zb_order *order, opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  static const uint8_t passes[3] = {OPIPE_PASS_FORWARD, OPIPE_PASS_BACKWARD_INPUT,
                                    OPIPE_PASS_BACKWARD_WEIGHT};
  for (uint32_t r = 0; r < model->n_ranks; ++r) {
    for (uint32_t i = 0; i < order->n[r]; ++i) {
      const zb_op *op = &order->ops[(size_t)r * order->room + i];
      const opipe_status status = opipe_emit_pass(problem, emit, emit_ctx, op->stage,
                                                  op->microbatch, 0, passes[op->pass], 0, err);
      if (status < 0)
        return status;
    }
  }
  return OPIPE_OK;
}

/* ---- replay ---- */

opipe_status zb_scratch_make(opipe_work *work, const zb_model *model, zb_scratch *out_scratch,
                             opipe_error *err) {
  const uint64_t cells = (uint64_t)model->n_stages * model->n_mb;
  bool made = true;
  for (uint32_t k = 0; k < 3; ++k) {
    out_scratch->end[k] = (uint64_t *)opipe_work_array(work, cells, sizeof(uint64_t));
    made = made && out_scratch->end[k] != NULL;
  }
  for (uint32_t k = 0; k < 3; ++k) {
    out_scratch->done[k] = (uint32_t *)opipe_work_array(work, model->n_stages, sizeof(uint32_t));
    made = made && out_scratch->done[k] != NULL;
  }
  uint64_t *ranks = (uint64_t *)opipe_work_array(work, model->n_ranks, 4 * sizeof(uint64_t));
  out_scratch->at = (uint32_t *)opipe_work_array(work, model->n_ranks, 2 * sizeof(uint32_t));
  for (out_scratch->width = 1; out_scratch->width < model->n_ranks;)
    out_scratch->width *= 2;
  out_scratch->tree =
      (uint32_t *)opipe_work_array(work, 2 * (uint64_t)out_scratch->width, sizeof(uint32_t));
  out_scratch->taken = (uint8_t *)opipe_work_array(work, 3 * cells, 1);
  if (!made || ranks == NULL || out_scratch->at == NULL || out_scratch->taken == NULL ||
      out_scratch->tree == NULL)
    return no_memory(err, "the replay");
  out_scratch->cursor = out_scratch->at + model->n_ranks;
  out_scratch->peak = ranks;
  out_scratch->held = ranks + model->n_ranks;
  out_scratch->now = ranks + 2 * (size_t)model->n_ranks;
  out_scratch->first = ranks + 3 * (size_t)model->n_ranks;
  return OPIPE_OK;
}

/* When `op` may start, 1 + time; 0: what it waits for has not been computed. */
static uint64_t ready_at(const zb_model *model, const zb_scratch *s, const zb_op *op) {
  const uint64_t cell = (uint64_t)op->stage * model->n_mb + op->microbatch;
  if (op->pass == ZB_W)
    return s->end[ZB_I][cell];
  if (op->pass == ZB_F) {
    const uint64_t before = op->stage == 0 ? 1 : s->end[ZB_F][cell - model->n_mb];
    return before == 0 || op->stage == 0 ? before : before + model->hop_ns[op->stage - 1];
  }
  if (s->end[ZB_F][cell] == 0 || op->stage + 1 == model->n_stages)
    return s->end[ZB_F][cell];
  const uint64_t after = s->end[ZB_I][cell + model->n_mb];
  const uint64_t arrives = after == 0 ? 0 : after + model->hop_ns[op->stage];
  return arrives > s->end[ZB_F][cell] || arrives == 0 ? arrives : s->end[ZB_F][cell];
}

static void run(const zb_model *model, zb_scratch *s, uint32_t rank, const zb_op *op,
                uint64_t ready) {
  const uint64_t cell = (uint64_t)op->stage * model->n_mb + op->microbatch;
  const uint64_t start = ready - 1 > s->now[rank] ? ready - 1 : s->now[rank];
  s->first[rank] = s->at[rank] == 0 ? start : s->first[rank];
  s->now[rank] = start + model->ns[op->pass][op->stage];
  if (op->pass == ZB_F) {
    s->held[rank] += model->stash[op->stage];
    s->peak[rank] = s->held[rank] > s->peak[rank] ? s->held[rank] : s->peak[rank];
  }
  if (op->pass == ZB_W)
    s->held[rank] -= model->stash[op->stage];
  else
    s->end[op->pass][cell] = s->now[rank] + 1;
}

zb_score zb_replay(const zb_model *model, const zb_order *order, zb_scratch *s) {
  const size_t cells = (size_t)model->n_stages * model->n_mb;
  zb_score score = {0, 0, true, true};
  memset(s->end[ZB_F], 0, cells * sizeof(uint64_t));
  memset(s->end[ZB_I], 0, cells * sizeof(uint64_t));
  memset(s->peak, 0, 4 * (size_t)model->n_ranks * sizeof(uint64_t));
  memset(s->at, 0, model->n_ranks * sizeof(*s->at));
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t r = 0; r < model->n_ranks; ++r) {
      for (; s->at[r] < order->n[r]; ++s->at[r], moved = true) {
        const zb_op *op = &order->ops[(size_t)r * order->room + s->at[r]];
        const uint64_t ready = ready_at(model, s, op);
        if (ready == 0)
          break;
        run(model, s, r, op, ready);
      }
    }
  }
  for (uint32_t r = 0; r < model->n_ranks; ++r) {
    const uint64_t span = s->now[r] - s->first[r];
    score.makespan = s->now[r] > score.makespan ? s->now[r] : score.makespan;
    score.span = span > score.span ? span : score.span;
    score.complete = score.complete && s->at[r] == order->n[r] && s->held[r] == 0 &&
                     order->n[r] == 3 * model->chunks * model->n_mb;
    score.fits = score.fits && s->peak[r] <= model->cap[r];
  }
  return score;
}

bool zb_better(const zb_score *a, const zb_score *b) {
  if (!a->complete || !a->fits)
    return false;
  if (!b->complete || !b->fits || a->makespan != b->makespan)
    return !b->complete || !b->fits || a->makespan < b->makespan;
  return a->span < b->span;
}
