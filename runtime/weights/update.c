/* SPDX-License-Identifier: Apache-2.0 */
/* The step of a rank: sums, ties, norm, update. It is a state machine, which stops wherever a peer
 * is awaited.
 *
 *   SUM -> TIES -> NORM (squares of the parameters that this rank owns, summed with all ranks')
 *       -> READ (on the host: norm, clip, is all finite) -> update of all it holds, next version
 *
 * All ranks read the same table and so make the same decision. A step whose loss or norm is not
 * finite changes nothing. With two sets the new version is written over the oldest one, which no
 * micro-batch reads any more.
 *
 * Double-buffered steps without clipping and loss scale do not wait for other ranks' norms, so that
 * the pipeline is never flushed (Narayanan et al., PipeDream-2BW, section 3.1): each rank judges
 * its own part and goes on, and the table is summed beside the next mini-batch, for the report.
 */
#include <math.h>
#include <string.h>

#include "runtime/weights/kept.h"
#include "runtime/weights/optimizer.h"

enum { GOOD_STEPS = 2000 }; /* steps without overflow after which the loss scale doubles */
static const double SCALE_MOST = 16777216.0;
static const double CLIP_EPSILON = 1e-6;

/* ---- norms ---- */

/* Does the backend take the norms, and the updates, of many parameters at once? */
static bool takes_many(const opi_holder *holder) {
  return OPIPE_HAS(opi_backend_of(holder), opipe_backend, sum_squares_many) &&
         opi_backend_of(holder)->sum_squares_many != NULL;
}

/* Writes the sums of squares of the gradients into the rank's table: of what ranks share, those of
 * its own part, whether it has moments of others or not, so that the norm is the same sum. */
static opipe_status sum_squares(const opi_weight_rank *rank, opipe_error *err) {
  const opi_holder *holder = rank->holder;
  uint32_t n = 0;
  for (uint32_t k = 0; k < holder->n_trained; ++k) {
    const opi_weight_param *p = &holder->trained[k];
    holder->cells[n] = (opipe_region){.buffer = rank->table,
                                      .offset_bytes = p->trained_index * rank->stride,
                                      .n_bytes = sizeof(double)};
    holder->squared[n] = opi_own_part(p, &p->gradient);
    n += !p->repeats && (p->bucket != NULL ? p->own_bytes != 0 : p->owner);
  }
  if (n != 0 && takes_many(holder)) {
    return OPI_ASK("backend", holder->env.backend, sum_squares_many, err, holder->env.queue,
                   holder->cells, holder->squared, n);
  }
  for (uint32_t i = 0; i < n; ++i) {
    OPI_TRY(OPI_ASK("backend", holder->env.backend, sum_squares, err, holder->env.queue,
                    &holder->cells[i], &holder->squared[i]));
  }
  return OPIPE_OK;
}

static opipe_status fill_table(const opi_weights *w, opi_weight_rank *rank, bool finite,
                               opipe_error *err) {
  static const double one = 1;
  const opi_holder *holder = rank->holder;
  const opipe_region all = {.buffer = rank->table, .n_bytes = rank->table_bytes};
  if (rank->table == NULL)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK("backend", holder->env.backend, fill_zero, err, holder->env.queue, &all));
  OPI_TRY(sum_squares(rank, err));
  if (finite)
    return OPIPE_OK;
  const opipe_region loss = {.buffer = rank->table,
                             .offset_bytes = w->n_trained * rank->stride,
                             .n_bytes = sizeof(double)};
  return OPI_ASK("backend", holder->env.backend, write, err, holder->env.queue, &loss, &one);
}

/* False for the only rank with parameters: its table is complete. */
static bool shares_norms(const opi_weight_rank *rank) {
  return rank->norms.group != NULL || rank->norms.plain != NULL;
}

/* Sums the table over all ranks: a parameter's cell over those that have a part of it. */
static opipe_status sum_table(opi_weights *w, opi_weight_rank *rank, bool finite,
                              opipe_error *err) {
  const opipe_region all = {.buffer = rank->table, .n_bytes = rank->table_bytes};
  opi_holder *holder = rank->holder;
  opipe_status status = OPIPE_OK;
  if (!rank->started) {
    OPI_TRY(fill_table(w, rank, finite, err));
    rank->started = true;
  }
  if (rank->table == NULL || !shares_norms(rank))
    return OPIPE_OK;
  if (!rank->norms_given)
    status = opi_member_start(w, holder, &rank->norms, &all, OPIPE_DOUBLE, err);
  if (status != OPIPE_OK)
    return status;
  rank->norms_given = true;
  return opi_member_test(w, holder, &rank->norms, err);
}

/* Queues the copy to the host, then asks whether it is there. */
static opipe_status read_table(opi_weight_rank *rank, opipe_error *err) {
  opi_holder *holder = rank->holder;
  const opipe_region all = {.buffer = rank->table, .n_bytes = rank->table_bytes};
  if (rank->table == NULL)
    return OPIPE_OK;
  if (!rank->started) {
    OPI_TRY(OPI_ASK("backend", holder->env.backend, read, err, holder->env.queue, rank->host.data,
                    &all));
    if (holder->done != NULL) {
      OPI_TRY(OPI_ASK("backend", holder->env.backend, event_record, err, holder->env.queue,
                      holder->done));
    }
    rank->started = true;
  }
  return holder->done == NULL
             ? OPIPE_OK
             : OPI_POLL("backend", holder->env.backend, event_poll, err, holder->done);
}

/* The norm of all gradients with the loss scale in them. */
static double total_norm(const opi_weights *w, opi_weight_rank *rank) {
  double sum = 0;
  for (uint32_t t = 0; t < w->n_trained; ++t) {
    double square = 0;
    memcpy(&square, rank->host.data + t * rank->stride, sizeof square);
    rank->norms_now[t] = sqrt(square) / rank->clock.loss_scale;
    sum += square;
  }
  return sqrt(sum);
}

/* ---- update ---- */

/* Decides from the table whether the step is applied: OPI_SKIP_*. */
static uint32_t judge(const opi_weights *w, const opi_weight_rank *rank, double norm) {
  double losses = 0;
  if (rank->held)
    return OPI_SKIP_HELD;
  if (rank->table != NULL)
    memcpy(&losses, rank->host.data + w->n_trained * rank->stride, sizeof losses);
  if (losses == 0 && isfinite(norm))
    return OPI_SKIP_NONE;
  const bool scaled = opi_optimizer_scales(&w->optimizer) && rank->clock.loss_scale > 1;
  return losses == 0 && scaled ? OPI_SKIP_OVERFLOW : OPI_SKIP_NOT_FINITE;
}

/* The set that the step writes. */
static uint32_t set_written(const opi_weights *w, const opi_weight_rank *rank) {
  return (rank->newest + w->n_versions - 1) % w->n_versions;
}

/* Copies the newest version over the oldest, where the new one is made. A held rank keeps both
 * versions of the step that was not finite. */
static opipe_status begin_version(const opi_weights *w, const opi_weight_rank *rank,
                                  opipe_error *err) {
  const opi_holder *holder = rank->holder;
  const uint32_t to = set_written(w, rank);
  for (uint32_t k = 0; w->n_versions > 1 && !rank->held && k < holder->n_trained; ++k) {
    const opi_weight_param *p = &holder->trained[k];
    OPI_TRY(OPI_ASK("backend", holder->env.backend, copy, err, holder->env.queue, &p->weight[to],
                    &p->weight[rank->newest]));
  }
  return OPIPE_OK;
}

/* Clears the gradients of a step that is not applied. */
static opipe_status skip_param(const opi_weights *w, const opi_weight_rank *rank,
                               const opi_weight_param *p, opipe_error *err) {
  const opi_holder *holder = rank->holder;
  if (!w->keep_gradients) {
    OPI_TRY(
        OPI_ASK("backend", holder->env.backend, fill_zero, err, holder->env.queue, &p->gradient));
  }
  if (rank->held || w->n_versions == 1)
    return OPIPE_OK;
  return OPI_ASK("backend", holder->env.backend, params_refresh, err,
                 holder->sets[set_written(w, rank)], holder->env.queue, p->slot);
}

/* Updates one by one what update_many does in one call. */
static opipe_status update_each(const opi_holder *holder, uint32_t n, opipe_update *u,
                                opipe_error *err) {
  for (uint32_t k = 0; k < n; ++k) {
    const opipe_update_part *part = &holder->updates[k];
    u->n_elems = part->n_elems;
    u->weight = part->weight;
    u->gradient = part->gradient;
    u->first = part->first;
    u->second = part->second;
    u->decay = part->decay;
    OPI_TRY(OPI_ASK("backend", holder->env.backend, update, err, holder->env.queue, u));
    if (part->params != NULL) {
      OPI_TRY(OPI_ASK("backend", holder->env.backend, params_refresh, err, part->params,
                      holder->env.queue, part->slot));
    }
  }
  return OPIPE_OK;
}

/* Clears what an update of a part leaves of the gradients. */
static opipe_status clear_rest(const opi_weights *w, const opi_holder *holder, opipe_error *err) {
  for (uint32_t k = 0; !w->keep_gradients && opi_shares_out(w) && k < holder->n_trained; ++k) {
    const opi_weight_param *p = &holder->trained[k];
    if (p->bucket != NULL) {
      OPI_TRY(
          OPI_ASK("backend", holder->env.backend, fill_zero, err, holder->env.queue, &p->gradient));
    }
  }
  return OPIPE_OK;
}

static opipe_status update_all(const opi_weights *w, const opi_weight_rank *rank, opipe_update *u,
                               opipe_error *err) {
  const opi_holder *holder = rank->holder;
  const uint32_t to = set_written(w, rank);
  uint32_t n = 0;
  for (uint32_t k = 0; k < holder->n_trained; ++k) {
    const opi_weight_param *p = &holder->trained[k];
    const bool part =
        opi_shares_out(w) && p->bucket != NULL; /* its copies are renewed once it is whole */
    if (part && p->own_bytes == 0)
      continue;
    holder->updates[n++] =
        (opipe_update_part){.weight = part ? opi_own_part(p, &p->weight[to]) : p->weight[to],
                            .gradient = part ? opi_own_part(p, &p->gradient) : p->gradient,
                            .first = p->moments[0],
                            .second = p->moments[1],
                            .n_elems = (part ? p->own_bytes : p->n_bytes) / sizeof(float),
                            .decay = p->no_decay ? 0 : w->optimizer.decay,
                            .params = part ? NULL : holder->sets[to],
                            .slot = p->slot};
  }
  OPI_TRY(n != 0 && takes_many(holder) ? OPI_ASK("backend", holder->env.backend, update_many, err,
                                                 holder->env.queue, u, holder->updates, n)
                                       : update_each(holder, n, u, err));
  return clear_rest(w, holder, err);
}

static opipe_status update_rank(const opi_weights *w, opi_weight_rank *rank, double scale,
                                opipe_error *err) {
  opipe_update u;
  opi_optimizer_fill(&w->optimizer, rank->clock.n_updates, scale, &u);
  u.lr = rank->report.lr;
  if (!w->keep_gradients)
    u.flags |= OPIPE_UPDATE_CLEAR;
  OPI_TRY(begin_version(w, rank, err));
  rank->gathers =
      opi_shares_out(w) && rank->report.skipped == OPI_SKIP_NONE; /* all ranks decide alike */
  rank->holder->n_begun = rank->gathered = 0;
  if (rank->report.skipped == OPI_SKIP_NONE)
    return update_all(w, rank, &u, err);
  for (uint32_t k = 0; k < rank->holder->n_trained; ++k)
    OPI_TRY(skip_param(w, rank, &rank->holder->trained[k], err));
  return OPIPE_OK;
}

/* Counts the step, and sets the next loss scale. */
static void tick(const opi_weights *w, opi_weight_rank *rank) {
  opi_weights_clock *c = &rank->clock;
  const uint32_t skipped = rank->report.skipped;
  ++c->n_steps;
  c->n_updates += skipped == OPI_SKIP_NONE ? 1 : 0;
  rank->report.step = c->n_steps;
  rank->gradient_scale = c->loss_scale;
  if (!rank->held)
    rank->newest = (rank->newest + w->n_versions - 1) % w->n_versions;
  rank->dirty = w->keep_gradients;
  if (!opi_optimizer_scales(&w->optimizer) || skipped > OPI_SKIP_OVERFLOW)
    return;
  c->n_good = skipped == OPI_SKIP_OVERFLOW ? 0 : c->n_good + 1;
  if (skipped == OPI_SKIP_OVERFLOW) {
    c->loss_scale = c->loss_scale > 2 ? c->loss_scale / 2 : 1;
  } else if (c->n_good >= GOOD_STEPS && c->loss_scale < SCALE_MOST) {
    c->loss_scale *= 2;
    c->n_good = 0;
  }
}

opipe_status opi_rank_update(opi_weights *weights, opi_weight_rank *rank, const double *lr,
                             opipe_error *err) {
  const opi_optimizer *o = &weights->optimizer;
  const double norm = rank->table == NULL ? 0 : total_norm(weights, rank);
  const double scale = 1 / rank->clock.loss_scale;
  double clip = 1;
  rank->report =
      (opi_step_report){.gradient_norm = norm * scale,
                        .lr = lr != NULL ? *lr : opi_optimizer_lr(o, rank->clock.n_updates),
                        .loss_scale = rank->clock.loss_scale,
                        .skipped = judge(weights, rank, norm)};
  rank->held = rank->held || (weights->hold && rank->report.skipped == OPI_SKIP_NOT_FINITE);
  if (o->clip_norm > 0 && norm * scale + CLIP_EPSILON > o->clip_norm)
    clip = o->clip_norm / (norm * scale + CLIP_EPSILON);
  rank->updating = true;
  OPI_TRY(update_rank(weights, rank, scale * clip, err));
  tick(weights, rank);
  rank->updating = rank->gathers;
  return OPIPE_OK;
}

bool opi_weights_keep_gradients(const opi_weights *weights) {
  return weights->keep_gradients;
}

bool opi_weights_whole(const opi_weights *weights) {
  const opi_weight_rank *first = NULL;
  bool whole = true;
  for (uint32_t r = 0; r < weights->n_ranks; ++r) {
    const opi_weight_rank *rank = &weights->ranks[r];
    if (rank->holder == NULL || rank->holder->env.elsewhere != 0)
      continue;
    first = first == NULL ? rank : first;
    whole = whole && !rank->updating && rank->clock.n_steps == first->clock.n_steps;
  }
  return whole;
}

/* ---- the machine ---- */

static opipe_status run_phase(opi_weights *w, opi_weight_rank *rank, bool finite,
                              opipe_error *err) {
  switch (rank->phase) {
    case OPI_PHASE_SUM:
      return opi_rank_sum(w, rank, err);
    case OPI_PHASE_TIES:
      return opi_rank_ties(w, rank, err);
    case OPI_PHASE_NORM:
      return sum_table(w, rank, finite, err);
    case OPI_PHASE_READ:
      return read_table(rank, err);
    default:
      return rank->gathers ? opi_buckets_gather(w, rank, rank->newest, err) : OPIPE_OK;
  }
}

static void end_step(opi_weight_rank *rank) {
  rank->phase = OPI_PHASE_SUM;
  rank->started = rank->norms_given = rank->gathers = rank->updating = false;
  if (rank->holder != NULL)
    opi_buckets_end(rank->holder);
  for (uint32_t i = 0; i < rank->n_parts; ++i) {
    rank->parts[i]->sum = OPI_SUM_IDLE;
    rank->parts[i]->n_passed = 0;
    rank->parts[i]->reduced = false;
  }
}

/* Reads the rank's own part of the table to the host, then gives it to the sum. */
static opipe_status give_norms(opi_weights *w, opi_weight_rank *rank, bool finite,
                               opipe_error *err) {
  const opipe_region all = {.buffer = rank->table, .n_bytes = rank->table_bytes};
  if (rank->table == NULL)
    return OPIPE_OK;
  if (rank->phase == OPI_PHASE_NORM) {
    OPI_TRY(fill_table(w, rank, finite, err));
    rank->phase = OPI_PHASE_READ;
  }
  if (!rank->norms_given) {
    const opipe_status status = read_table(rank, err);
    if (status != OPIPE_OK)
      return status;
    rank->norms_given = true;
  }
  return shares_norms(rank)
             ? opi_member_start(w, rank->holder, &rank->norms, &all, OPIPE_DOUBLE, err)
             : OPIPE_OK;
}

/* The step of a rank that judges by its own part alone. */
static opipe_status step_alone(opi_weights *w, opi_weight_rank *rank, bool finite, const double *lr,
                               opipe_error *err) {
  opipe_status status = opi_weights_settle(w, (uint32_t)(rank - w->ranks), err);
  while (status == OPIPE_OK && rank->phase < OPI_PHASE_NORM) {
    status = run_phase(w, rank, finite, err);
    if (status == OPIPE_OK)
      ++rank->phase;
  }
  if (status == OPIPE_OK)
    status = give_norms(w, rank, finite, err);
  if (status != OPIPE_OK)
    return status;
  OPI_TRY(opi_rank_update(w, rank, lr, err));
  end_step(rank);
  rank->lags = rank->table != NULL;
  return OPIPE_OK;
}

bool opi_weights_lags(const opi_weights *weights, uint32_t rank) {
  return weights->ranks[rank].lags;
}

opipe_status opi_weights_settle(opi_weights *w, uint32_t index, opipe_error *err) {
  opi_weight_rank *rank = &w->ranks[index];
  if (!rank->lags)
    return OPIPE_OK;
  opipe_status status = opi_member_test(w, rank->holder, &rank->norms, err);
  if (status == OPIPE_OK)
    status = read_table(rank, err);
  if (status != OPIPE_OK)
    return status;
  const bool before = rank->report.skipped == OPI_SKIP_HELD;
  rank->held =
      rank->held && before; /* this step may be the one that holds: judge it by all parts */
  rank->report.gradient_norm = total_norm(w, rank);
  rank->report.skipped = judge(w, rank, rank->report.gradient_norm);
  rank->held = rank->held || (w->hold && rank->report.skipped == OPI_SKIP_NOT_FINITE);
  rank->started = rank->lags = false;
  return OPIPE_OK;
}

opipe_status opi_weights_step(opi_weights *weights, uint32_t index, bool finite, const double *lr,
                              opipe_error *err) {
  opi_weight_rank *rank = &weights->ranks[index];
  if (weights->alone && rank->holder != NULL)
    return step_alone(weights, rank, finite, lr, err);
  while (rank->holder != NULL && rank->phase <= OPI_PHASE_GATHER) {
    const opipe_status status = run_phase(weights, rank, finite, err);
    if (status != OPIPE_OK)
      return status;
    ++rank->phase;
    rank->started = false;
    if (rank->phase == OPI_PHASE_GATHER)
      OPI_TRY(opi_rank_update(weights, rank, lr, err));
  }
  end_step(rank);
  return OPIPE_OK;
}

opipe_status opi_weights_begin(opi_weights *weights, uint32_t index, opipe_error *err) {
  opi_weight_rank *rank = &weights->ranks[index];
  const opi_holder *holder = rank->holder;
  for (uint32_t k = 0; rank->dirty && k < holder->n_trained; ++k) {
    OPI_TRY(OPI_ASK("backend", holder->env.backend, fill_zero, err, holder->env.queue,
                    &holder->trained[k].gradient));
  }
  rank->dirty = false;
  return OPIPE_OK;
}

uint32_t opi_weights_set_of(const opi_weights *weights, uint32_t rank, uint32_t version) {
  return (weights->ranks[rank].newest + version) % weights->n_versions;
}

void opi_weights_report(const opi_weights *weights, uint32_t rank, opi_step_report *out_report) {
  *out_report = weights->ranks[rank].report;
}

double opi_weights_loss_scale(const opi_weights *weights, uint32_t rank) {
  return weights->ranks[rank].clock.loss_scale;
}
