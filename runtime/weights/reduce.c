/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of gradients: over the replicas of a stage as soon as they are complete, for all parameters
 * at once; over stages at the step, in the table's order.
 *
 * A parameter that several instances of a rank read is complete when the last of them is, and is
 * then summed once. Sums start in the order in which they became complete, whatever a transport or
 * device answers: lists put the sums of one group of ranks in one order on all of them, and
 * transports may rely on that. Nothing here waits.
 */
#include "runtime/weights/kept.h"

/* ---- replicas ---- */

static bool is_collected(const opi_weight_param *p) {
  return p->bucket != NULL && p->bucket->collects;
}

/* Its last reader on the rank is done. */
static opipe_status complete(opi_holder *holder, opi_weight_param *p, opipe_error *err) {
  p->n_complete = 0;
  p->summed = !p->replicated;
  OPI_TRY(OPI_ASK("backend", holder->env.backend, gradients_fold, err, holder->gradients,
                  holder->env.queue, p->slot));
  bool due = false;
  if (p->bucket != NULL)
    OPI_TRY(opi_bucket_complete(holder, p->bucket, &due, err));
  if (due)
    holder->due[holder->n_due++] = (opi_due){.bucket = p->bucket};
  else if (!is_collected(p) && p->replicated)
    holder->due[holder->n_due++] = (opi_due){.param = p};
  return OPIPE_OK;
}

/* The gradients of the part's last `n` parameters are complete: a backward completes those first.
 */
static opipe_status pass(opi_part *part, uint32_t n, opipe_error *err) {
  opi_holder *holder = part->holder;
  part->sum = OPI_SUM_RUNS;
  while (part->n_passed < n) {
    opi_weight_param *p = &holder->trained[part->trained[part->n_trained - ++part->n_passed]];
    if (++p->n_complete == p->n_readers)
      OPI_TRY(complete(holder, p, err));
  }
  return OPIPE_OK;
}

static opipe_status begin_sum(opi_part *part, opipe_error *err) {
  part->reduced = true;
  return pass(part, part->n_trained, err);
}

/* Starts what is due, in its order. OPIPE_PENDING: one does not start yet, nor those behind it. */
static opipe_status start_due(opi_weights *w, opi_holder *holder, opipe_error *err) {
  while (holder->n_started < holder->n_due) {
    const opi_due *due = &holder->due[holder->n_started];
    const opipe_status status = due->bucket != NULL
                                    ? opi_bucket_start(w, holder, due->bucket, err)
                                    : opi_member_start(w, holder, &due->param->replicas,
                                                       &due->param->gradient, OPIPE_FLOAT, err);
    if (status != OPIPE_OK)
      return status;
    ++holder->n_started;
  }
  return OPIPE_OK;
}

/* Tests what has started. */
static opipe_status test_started(opi_weights *w, opi_holder *holder, opipe_error *err) {
  for (uint32_t i = 0; i < holder->n_started; ++i) {
    const opi_due *due = &holder->due[i];
    opipe_status status = OPIPE_OK;
    if (due->bucket != NULL) {
      status = opi_bucket_test(w, holder, due->bucket, err);
    } else if (!due->param->summed) {
      status = opi_member_test(w, holder, &due->param->replicas, err);
      due->param->summed = status == OPIPE_OK;
    }
    if (status < 0)
      return status;
  }
  return OPIPE_OK;
}

static void end_part(opi_part *part) {
  if (!part->reduced)
    return;
  for (uint32_t i = 0; i < part->n_trained; ++i) {
    if (!part->holder->trained[part->trained[i]].summed)
      return;
  }
  part->sum = OPI_SUM_DONE;
}

/* Advances all sums that have begun. */
static opipe_status advance_rank(opi_weights *w, opi_weight_rank *rank, opipe_error *err) {
  bool pending = false;
  if (rank->holder != NULL) {
    const opipe_status status = start_due(w, rank->holder, err);
    if (status < 0)
      return status;
    OPI_TRY(test_started(w, rank->holder, err));
  }
  for (uint32_t i = 0; i < rank->n_parts; ++i) {
    if (rank->parts[i]->sum == OPI_SUM_RUNS)
      end_part(rank->parts[i]);
    pending = pending || rank->parts[i]->sum == OPI_SUM_RUNS;
  }
  return pending ? OPIPE_PENDING : OPIPE_OK;
}

opipe_status opi_weights_reduce(opi_weights *weights, uint32_t index, opipe_error *err) {
  opi_part *part = &weights->parts[index];
  if (part->reduced) {
    return opi_fail(err, OPIPE_E_STATE,
                    "stage %u, replica %u: its gradients are reduced a second time", part->stage,
                    part->replica);
  }
  OPI_TRY(begin_sum(part, err));
  const opipe_status status = advance_rank(weights, &weights->ranks[part->holder->env.rank], err);
  return status < 0 ? status : OPIPE_OK;
}

opipe_status opi_weights_pass(opi_weights *weights, uint32_t index, uint32_t n, opipe_error *err) {
  opi_part *part = &weights->parts[index];
  OPI_TRY(pass(part, n, err));
  const opipe_status status = advance_rank(weights, &weights->ranks[part->holder->env.rank], err);
  return status < 0 ? status : OPIPE_OK;
}

opipe_status opi_weights_progress(opi_weights *weights, uint32_t rank, opipe_error *err) {
  return advance_rank(weights, &weights->ranks[rank], err);
}

bool opi_weights_starts(const opi_weights *weights, uint32_t rank) {
  const opi_holder *holder = weights->ranks[rank].holder;
  return holder != NULL && holder->n_started < holder->n_due;
}

bool opi_weights_is_summed(const opi_weights *weights, uint32_t index) {
  return weights->parts[index].sum == OPI_SUM_DONE;
}

opipe_status opi_rank_sum(opi_weights *weights, opi_weight_rank *rank, opipe_error *err) {
  for (uint32_t i = 0; i < rank->n_parts; ++i) {
    if (!rank->parts[i]->reduced)
      OPI_TRY(begin_sum(rank->parts[i], err));
  }
  return advance_rank(weights, rank, err);
}

/* ---- ties ---- */

static opipe_region dense_region(const opi_holder *holder, const opi_weight_param *p) {
  return (opipe_region){.buffer = holder->dense, .n_bytes = p->dense_bytes};
}

static opipe_status start_tie(opi_weights *w, opi_holder *holder, opi_weight_param *p,
                              opipe_error *err) {
  if (!p->dense)
    return opi_member_start(w, holder, &p->tie, &p->gradient, OPIPE_FLOAT, err);
  const opipe_region dense = dense_region(holder, p);
  if (!p->tie.asked) {
    OPI_TRY(OPI_ASK("backend", holder->env.backend, params_export, err, holder->gradients,
                    holder->env.queue, p->slot, &dense));
  }
  return opi_member_start(w, holder, &p->tie, &dense, OPIPE_FLOAT, err);
}

static opipe_status end_tie(opi_weights *w, opi_holder *holder, opi_weight_param *p,
                            opipe_error *err) {
  const opipe_status status = opi_member_test(w, holder, &p->tie, err);
  if (status != OPIPE_OK || !p->dense)
    return status;
  const opipe_region dense = dense_region(holder, p);
  return OPI_ASK("backend", holder->env.backend, params_import, err, holder->gradients,
                 holder->env.queue, p->slot, &dense);
}

static opipe_status run_tie(opi_weights *w, opi_holder *holder, uint32_t slot, opipe_error *err) {
  opi_weight_param *p = opi_holder_param(holder, slot);
  if (p == NULL)
    return OPIPE_OK;
  if (is_collected(p))
    return opi_bucket_tie(w, holder, p->bucket, err);
  if (!p->tie_started) {
    const opipe_status status = start_tie(w, holder, p, err);
    if (status != OPIPE_OK)
      return status;
    p->tie_started = true;
  }
  const opipe_status status = end_tie(w, holder, p, err);
  if (status == OPIPE_OK)
    p->tie_started = false;
  return status;
}

opipe_status opi_rank_ties(opi_weights *weights, opi_weight_rank *rank, opipe_error *err) {
  while (rank->tie < weights->n_ties) {
    const opipe_status status = run_tie(weights, rank->holder, weights->ties[rank->tie], err);
    if (status != OPIPE_OK)
      return status;
    ++rank->tie;
  }
  rank->tie = 0;
  return OPIPE_OK;
}
